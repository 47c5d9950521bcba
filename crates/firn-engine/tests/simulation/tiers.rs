//! Several machines and one slow tier: writers that are lost, or only believed to be, those that take over,
//! and replicas. The bucket fails, answers late (does what it says it did not), goes down.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use firn_engine::{
    CheckReport, ConvertOptions, Engine, EngineOptions, HeadOptions, Lane, LogOptions, Mutant,
    RecoveryProgress, Request,
};
use firn_env::{Env, PutMode};
use firn_model::{CancelToken, ErrorKind, Labels, Matcher, RowBatch, Sample, TimeRange, Timestamp};
use firn_sim::{ObservedSamples, Operation, Oracle, Rng, Sim, SimBucket, SimDisk, for_seeds};

use crate::damage::lay_down;

const SEEDS: u64 = 300;
const STEPS: u64 = 50;
const HOUR_MS: i64 = 3_600_000;

type Outcome<T> = Result<T, String>;

struct Machine {
    disk: SimDisk,
    engine: Option<Arc<Engine>>,
}

struct Place {
    sim: Sim,
    rng: Rng,
    mutant: Option<Mutant>,
    writer: Machine,
    /// Writers that were believed to be lost when another took over.
    zombies: Vec<Machine>,
    replica: Option<Machine>,
    replica_followed_ms: Timestamp,
    oracle: Oracle,
    /// Everything that was ever given to a writer, acknowledged or not.
    given: BTreeSet<(Labels, Timestamp, u64)>,
    tally: BTreeMap<&'static str, u64>,
}

fn labels(idx: u64) -> Labels {
    let host = format!("host-{}", idx % 3);
    let name = format!("m{idx}");
    Labels::from_pairs([("__name__", name.as_str()), ("job", "tiers"), ("instance", &host)])
        .expect("valid labels")
}

fn options(mutant: Option<Mutant>, read_only: bool) -> EngineOptions {
    EngineOptions {
        memory_bytes_max: 256 << 20,
        shard_count: 4,
        stream_count: Some(2),
        log_bytes_max: 64 << 10,
        read_only,
        tree: firn_tree::TreeOptions {
            block_bytes: 256,
            table_bytes_max: 2 << 10,
            patches_max: 1,
            // A replica needs what its manifest names again and again.
            cache_bytes_max: if read_only { 0 } else { 256 << 20 },
            slow_cache_bytes_max: if read_only { 0 } else { 1 << 20 },
            ..Default::default()
        },
        mutant,
        log: LogOptions { segment_bytes: 8 << 10, ..Default::default() },
        head: HeadOptions {
            convert: ConvertOptions {
                arena_bytes_max: 256,
                sparse_arena_times: 4,
                ..ConvertOptions::default()
            },
            hot_bytes_max: 0,
            ..Default::default()
        },
        ..EngineOptions::default()
    }
}

impl Place {
    fn new(seed: u64, mutant: Option<Mutant>) -> Place {
        let sim = Sim::new(seed);
        Place {
            writer: Machine { disk: sim.disk.clone(), engine: None },
            rng: Rng::new(seed ^ 0x71e5),
            sim,
            mutant,
            zombies: Vec::new(),
            replica: None,
            replica_followed_ms: 0,
            oracle: Oracle::new(),
            given: BTreeSet::new(),
            tally: BTreeMap::new(),
        }
    }

    fn env(&self, disk: &SimDisk) -> Env {
        Env { disk: Arc::new(disk.clone()), ..self.sim.env() }
    }

    fn now(&self) -> Timestamp {
        self.sim.env().clock.now_ms()
    }

    fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    fn open(&self, disk: &SimDisk, read_only: bool) -> firn_model::Result<Arc<Engine>> {
        let options = options(self.mutant, read_only);
        Engine::open(self.env(disk), options, &RecoveryProgress::default())
    }

    fn open_writer(&mut self) -> Outcome<()> {
        for _ in 0..20 {
            match self.open(&self.writer.disk, false) {
                Ok(engine) => {
                    self.writer.engine = Some(engine);
                    let seen = self.read_writer()?;
                    return match seen {
                        Some(seen) => self.oracle.settle(&seen),
                        None => Ok(()),
                    };
                }
                Err(e) => self.after_error("open", &e)?,
            }
        }
        Err("the writer does not open in 20 tries".into())
    }

    fn engine(&self) -> Arc<Engine> {
        Arc::clone(self.writer.engine.as_ref().expect("opened"))
    }

    /// What a failed call may be: the fault that was asked for.
    fn after_error(&mut self, what: &str, e: &firn_model::Error) -> Outcome<()> {
        match e.kind() {
            ErrorKind::Closed if self.sim.faults.is_off() => {
                self.count("crash");
                self.writer.engine = None;
                self.zombies.clear();
                self.replica = None;
                self.sim.restart();
                self.writer.disk.restart();
                self.sim.faults.clear();
                Ok(())
            }
            ErrorKind::Unavailable | ErrorKind::Busy { .. } => {
                self.count("failed");
                Ok(())
            }
            _ => Err(format!("{what}: an error that nobody caused: {e:?}")),
        }
    }

    /// After an error the power may have gone.
    fn mend(&mut self) -> Outcome<()> {
        if self.writer.engine.is_none() { self.open_writer() } else { Ok(()) }
    }

    fn write(&mut self) -> Outcome<()> {
        let engine = self.engine();
        let picked: BTreeSet<u64> = (0..4).map(|_| self.rng.below(8)).collect();
        let labels: Vec<Labels> = picked.into_iter().map(labels).collect();
        let back = match self.rng.below(4) {
            0 => self.rng.below(60) as i64 * 15 * 60_000,
            _ => self.rng.below(8) as i64 * 15_000,
        };
        let ts = (self.now() - back).div_euclid(15_000) * 15_000;
        let mut batch = RowBatch::default();
        let mut pieces = BTreeMap::new();
        for (labels, series) in labels.iter().zip(engine.resolve(&labels)) {
            let series = series.map_err(|e| format!("resolve: {e:?}"))?;
            let value = self.rng.below(1_000) as f64;
            batch.push(series, ts, value);
            self.given.insert((labels.clone(), ts, value.to_bits()));
            let cells: &mut Vec<_> = pieces.entry(series.group).or_default();
            cells.push((labels.clone(), Sample { ts, value }));
        }
        let begun: Vec<_> = pieces.into_values().map(|cells| self.oracle.begin(cells)).collect();
        match engine.write(&mut batch) {
            Ok(_) => {
                begun.into_iter().for_each(|piece| self.oracle.acknowledge(piece));
                Ok(())
            }
            Err(e) => self.after_error("write", &e),
        }
    }

    fn delete(&mut self) -> Outcome<()> {
        let matchers = vec![Matcher::equal("__name__", format!("m{}", self.rng.below(8)))];
        let end = self.now() - self.rng.below(300) as i64 * 60_000;
        let range = TimeRange::new(end - 3 * HOUR_MS, end);
        let begun = self.oracle.begin_delete(&matchers, range);
        match self.engine().delete(&[matchers], range) {
            Ok(_) => {
                self.oracle.acknowledge(begun);
                Ok(())
            }
            Err(e) => self.after_error("delete", &e),
        }
    }

    fn flush(&mut self) -> Outcome<()> {
        match self.engine().flush() {
            Ok(()) => Ok(()),
            Err(e) => self.after_error("flush", &e),
        }
    }

    fn step(&mut self) -> Outcome<bool> {
        match self.engine().step(Lane::Tree) {
            Ok(done) => {
                if self.engine().stats().slow_tier.is_fenced {
                    return Err("the only writer that is not lost is fenced".into());
                }
                Ok(done.is_some())
            }
            Err(e) => self.after_error("step", &e).map(|()| true),
        }
    }

    fn read_writer(&mut self) -> Outcome<Option<ObservedSamples>> {
        match ObservedSamples::read(&self.engine().snapshot(), &[], TimeRange::ALL) {
            Ok(seen) => Ok(Some(seen)),
            Err(e) => self.after_error("read", &e).map(|()| None),
        }
    }

    fn verify(&mut self) -> Outcome<()> {
        match self.read_writer()? {
            Some(seen) => self.oracle.check(&seen),
            None => Ok(()),
        }
    }

    /// A writer that was believed to be lost goes on as if it was not.
    fn step_zombies(&mut self) -> Outcome<()> {
        let zombie_labels =
            Labels::from_pairs([("__name__", "z"), ("zombie", "1")]).expect("labels");
        for zombie in std::mem::take(&mut self.zombies) {
            let engine = Arc::clone(zombie.engine.as_ref().expect("a zombie runs"));
            let now = self.now();
            let mut batch = RowBatch::default();
            if let Ok(series) = engine.resolve(std::slice::from_ref(&zombie_labels)).remove(0) {
                batch.push(series, now, 1.0);
                match engine.write(&mut batch) {
                    Ok(_) => self.count("a zombie's write"),
                    Err(_) => self.count("a zombie's write refused"),
                }
            }
            let _ = engine.flush();
            for _ in 0..6 {
                let _ = engine.step(Lane::Tree);
            }
            if engine.stats().slow_tier.is_fenced {
                self.count("fenced");
            }
            if self.sim.faults.is_off() {
                let off = firn_model::Error::closed("off");
                self.after_error("zombie", &off)?;
                return self.mend();
            }
            self.zombies.push(zombie);
        }
        Ok(())
    }

    /// A replica reads; before that it looks for news, or not.
    fn step_replica(&mut self) -> Outcome<()> {
        let looks = self.rng.chance(0.5);
        if self.replica.is_none() {
            let disk = SimDisk::new(self.sim.faults.clone());
            match self.open(&disk, true) {
                Ok(engine) => {
                    self.replica = Some(Machine { disk, engine: Some(engine) });
                    self.replica_followed_ms = self.now();
                }
                // Nothing was ever put there.
                Err(e) if *e.kind() == ErrorKind::NotFound => return Ok(()),
                Err(e) => {
                    self.after_error("replica", &e)?;
                    return self.mend();
                }
            }
        } else if looks || self.now() - self.replica_followed_ms >= HOUR_MS {
            self.sim.clock.advance(Duration::from_secs(11));
            let engine = self.replica.as_ref().and_then(|one| one.engine.clone()).expect("opened");
            match engine.step(Lane::Tree) {
                Ok(_) => self.replica_followed_ms = self.now(),
                Err(e) => {
                    self.after_error("follow", &e)?;
                    return self.mend();
                }
            }
        }
        let engine = self.replica.as_ref().and_then(|one| one.engine.clone()).expect("opened");
        let mut batch = RowBatch::default();
        if engine.write(&mut batch).is_ok() || engine.resolve(&[labels(99)]).remove(0).is_ok() {
            return Err("a replica takes writes".into());
        }
        match ObservedSamples::read(&engine.snapshot(), &[], TimeRange::ALL) {
            Ok(seen) => {
                self.count("replica read");
                self.check_given(&seen)
            }
            Err(e) => {
                self.after_error("replica's read", &e)?;
                self.mend()
            }
        }
    }

    /// What is read was once given to a rightful writer.
    fn check_given(&self, seen: &ObservedSamples) -> Outcome<()> {
        for (labels, samples) in &seen.series {
            for sample in samples {
                let given = (labels.clone(), sample.ts, sample.value.to_bits());
                if !self.given.contains(&given) {
                    return Err(format!("{labels} {sample:?} was never given to this database"));
                }
            }
        }
        Ok(())
    }

    fn end_faults(&mut self) {
        self.sim.faults.clear();
        self.sim.bucket.set_down(false);
    }

    /// All that is acknowledged gets to the slow tier.
    fn settle(&mut self) -> Outcome<()> {
        self.end_faults();
        self.mend()?;
        // A first failure may still wait for its turn inside the log, and a failed commit be undone.
        for tries in 0.. {
            match self.engine().flush() {
                Ok(()) => break,
                Err(e) if tries > 5 => return Err(format!("no flush: {e:?}")),
                Err(e) => self.after_error("flush", &e)?,
            }
            self.mend()?;
            self.write()?;
            self.mend()?;
        }
        self.sim.clock.advance(Duration::from_secs(5 * 3_600));
        for _ in 0..400 {
            self.sim.clock.advance(Duration::from_secs(61));
            let is_over = !self.step()?;
            self.mend()?;
            if is_over && self.engine().stats().head.row_count == 0 {
                return Ok(());
            }
            // The power went before, and the log has given something back.
            if is_over {
                self.flush()?;
                self.mend()?;
                self.sim.clock.advance(Duration::from_secs(5 * 3_600));
            }
        }
        Err("the work does not end".into())
    }

    /// A new machine sees everything that the lost one had uploaded, which was all.
    fn check_elsewhere(&mut self) -> Outcome<()> {
        let disk = SimDisk::new(self.sim.faults.clone());
        let replica = self.open(&disk, true).map_err(|e| format!("a new replica: {e:?}"))?;
        let seen = ObservedSamples::read(&replica.snapshot(), &[], TimeRange::ALL);
        let seen = seen.map_err(|e| format!("a new replica reads: {e:?}"))?;
        self.count("all is elsewhere");
        self.oracle.settle(&seen).map_err(|e| format!("a new replica: {e}"))
    }

    fn copy_of_disk(&self) -> SimDisk {
        let (disk, from) = (SimDisk::new(self.sim.faults.clone()), &self.writer.disk);
        from.files().iter().for_each(|path| lay_down(&disk, path, &from.bytes(path).expect("one")));
        disk
    }

    /// The folder is copied, the copy goes on. What was left behind is started again when that has claimed.
    fn move_folder(&mut self) -> Outcome<Machine> {
        self.settle()?;
        self.writer.engine = None;
        let disk = self.copy_of_disk();
        let left = std::mem::replace(&mut self.writer, Machine { disk, engine: None });
        self.open_writer()?;
        self.settle()?;
        Ok(left)
    }

    fn lose_machine(&mut self) -> Outcome<()> {
        if self.rng.chance(0.3) {
            let left = self.move_folder()?;
            let engine = self.open(&left.disk, false).map_err(|e| format!("left behind: {e:?}"))?;
            self.zombies.push(Machine { engine: Some(engine), ..left });
            self.count("left behind");
            return Ok(());
        }
        self.settle()?;
        self.verify()?;
        self.check_elsewhere()?;
        let disk = SimDisk::new(self.sim.faults.clone());
        let mut lost = std::mem::replace(&mut self.writer, Machine { disk, engine: None });
        if self.rng.chance(0.6) {
            self.zombies.push(lost);
        } else {
            lost.engine = None;
        }
        // Interrupted anywhere, it is done again.
        let number = self.sim.faults.change_count() + self.rng.below(14);
        if self.rng.chance(0.5) && self.zombies.is_empty() {
            self.sim.faults.crash_at(number);
        }
        let error = self.open(&self.writer.disk, false).err();
        let is_conflict = |e: &firn_model::Error| *e.kind() == ErrorKind::Conflict;
        if !self.sim.faults.is_off() && !error.as_ref().is_some_and(is_conflict) {
            return Err(format!("a new database where there is one: {error:?}"));
        }
        if self.sim.faults.is_off() {
            self.sim.restart();
            self.writer.disk.restart();
        }
        for _ in 0..20 {
            match Engine::restore(&self.env(&self.writer.disk)) {
                Ok(_) => {
                    self.count("restored");
                    self.sim.faults.clear();
                    return self.open_writer();
                }
                Err(e) => {
                    if self.sim.faults.is_off() {
                        self.count("crash in a restore");
                    }
                    self.after_error("restore", &e)?;
                }
            }
        }
        Err("no restore in 20 tries".into())
    }

    fn break_something(&mut self) {
        match self.rng.below(9) {
            8 => self.sim.faults.delay_nth(1 + self.rng.below(30), Duration::from_secs(3 * 3_600)),
            7 => self.sim.faults.do_nth_later(1 + self.rng.below(6)),
            6 => self.sim.faults.set_partial_body_rate(0.2),
            0 => self.sim.bucket.set_down(true),
            1 => self.sim.faults.set_lost_acknowledgement_rate(0.3),
            2 => self.sim.faults.set_rate(Operation::Put, 0.4),
            3 => self.sim.faults.set_rate(Operation::Get, 0.2),
            4 => {
                let kinds = [Operation::Head, Operation::ListObjects, Operation::Delete];
                kinds.iter().for_each(|&kind| self.sim.faults.set_rate(kind, 0.4));
            }
            _ => {
                let number = self.sim.faults.change_count() + self.rng.below(30);
                self.sim.faults.crash_at(number);
            }
        }
    }

    fn live(&mut self) -> Outcome<()> {
        self.open_writer()?;
        for _ in 0..STEPS {
            match self.rng.below(100) {
                0..=34 => self.write()?,
                35..=38 => self.delete()?,
                39..=46 => self.flush()?,
                47..=66 => {
                    for _ in 0..4 {
                        self.step()?;
                        self.mend()?;
                    }
                }
                67..=74 => {
                    let minutes = self.rng.below(90);
                    self.sim.clock.advance(Duration::from_secs(60 * minutes));
                }
                75..=82 => self.step_replica()?,
                83..=89 => self.step_zombies()?,
                90..=92 => self.break_something(),
                93 | 94 => self.end_faults(),
                95 | 96 => self.verify()?,
                _ => self.lose_machine()?,
            }
            self.mend()?;
        }
        self.settle()?;
        self.verify()?;
        self.check_elsewhere()?;
        self.check_nothing_is_left()
    }

    /// What killed uploads and lost writers left is gone after the grace time.
    fn check_nothing_is_left(&mut self) -> Outcome<()> {
        self.zombies.clear();
        self.writer.engine = None;
        self.open_writer()?;
        // As time passes partitions grow together, which leaves objects for another hour.
        let mut left = Ok(());
        for _ in 0..8 {
            self.settle()?;
            left = self.check_objects();
            if left.is_ok() {
                break;
            }
        }
        left?;
        self.verify()
    }

    fn check_objects(&self) -> Outcome<()> {
        let stats = self.engine().stats();
        for (folder, named) in
            [("tables/", stats.tree.levels[2].table_count), ("index/", stats.index.segment_count)]
        {
            let keys = self.sim.bucket.keys().into_iter();
            let keys: Vec<String> = keys.filter(|key| key.starts_with(folder)).collect();
            if keys.len() as u64 != named {
                return Err(format!("{named} objects are named in {folder}, there are {keys:?}"));
            }
        }
        Ok(())
    }
}

/// What the scenes below have in common.
impl Place {
    fn write_and_settle(&mut self) {
        (0..9).for_each(|_| self.write().expect("a write"));
        self.settle().expect("settles");
    }

    fn objects(&self) -> Vec<(String, Arc<[u8]>)> {
        let keys = self.sim.bucket.keys().into_iter();
        keys.map(|key| (key.clone(), self.sim.bucket.bytes(&key).expect("there"))).collect()
    }
}

fn check(engine: &Engine, repairs: bool) -> firn_model::Result<CheckReport> {
    engine.check(repairs, &CancelToken::new(), &mut |_| ())
}

fn told(report: &CheckReport, words: &str) -> bool {
    report.findings.iter().any(|one| !one.is_repaired && one.error.to_string().contains(words))
}

pub(crate) fn found(seed: u64, mistake: Mutant) -> Option<String> {
    Place::new(seed, Some(mistake)).live().err()
}

#[test]
fn history_outlives_its_machine_and_has_one_writer() {
    let tally: RefCell<BTreeMap<&'static str, u64>> = RefCell::default();
    for_seeds(SEEDS, |seed| {
        let mut place = Place::new(seed, None);
        place.live().unwrap_or_else(|failure| panic!("{failure}"));
        for (what, count) in place.tally {
            *tally.borrow_mut().entry(what).or_default() += count;
        }
        place.sim.faults.change_count()
    });
    println!("{:?}", tally.borrow());
    if std::env::var_os("FIRN_SEED").is_none() {
        for what in [
            "crash",
            "failed",
            "fenced",
            "a zombie's write",
            "a zombie's write refused",
            "replica read",
            "all is elsewhere",
            "restored",
            "crash in a restore",
            "left behind",
        ] {
            assert!(tally.borrow().contains_key(what), "{what} never happened");
        }
    }
}

/// A day of uploads without trouble: two listings, after the claim.
#[test]
fn nothing_is_listed_but_at_the_start() {
    let mut place = Place::new(7, None);
    place.open_writer().expect("opens");
    for _ in 0..48 {
        place.write().expect("a write");
        place.flush().expect("a flush");
        place.sim.clock.advance(Duration::from_secs(1_800));
        while place.step().expect("a step") {}
    }
    let stats = place.engine().stats();
    let lists: u64 =
        stats.slow_tier.requests[Request::List as usize].iter().map(|kind| kind.requests).sum();
    assert_eq!(lists, 2);
    assert!(stats.tree.levels[2].table_count > 5, "{:?}", stats.tree);
    assert!(stats.slow_tier.newest_ts > Some(place.now() - 5 * HOUR_MS), "{:?}", stats.slow_tier);
}

/// The folder of a machine that was replaced is checked and repaired: the slow tier is another's, whole or damaged, and stays
/// as it is. Who it belongs to repairs it.
#[test]
fn a_replaced_machines_repair_changes_nothing_on_the_slow_tier() {
    let mut place = Place::new(9, None);
    place.open_writer().expect("opens");
    place.write_and_settle();
    let disk = SimDisk::new(place.sim.faults.clone());
    let mut old = std::mem::replace(&mut place.writer, Machine { disk, engine: None });
    old.engine = None;
    Engine::restore(&place.env(&place.writer.disk)).expect("restores");
    place.open_writer().expect("opens");
    place.write_and_settle();
    let before = place.objects();

    let engine = place.open(&old.disk, false).expect("opens");
    let error = check(&engine, true).expect_err("another server's");
    assert_eq!(error.kind(), &ErrorKind::Conflict, "{error}");
    let report = check(&engine, false).expect("a check");
    assert!(report.orphans.is_empty(), "{report:?}");
    assert!(told(&report, "written from another folder"), "{report:?}");
    assert!(place.objects() == before, "it changed something");

    // Now nobody can read it, but it still says who wrote it.
    let ruin = |bytes: &mut Vec<u8>| {
        let half = bytes.len() / 2;
        [half - 1, 2 * half - 1].iter().for_each(|&at| bytes[at] ^= 1);
    };
    place.sim.bucket.damage("manifest", ruin).expect("a manifest");
    let before = place.objects();
    let report = check(&engine, true).expect("a check");
    assert!(told(&report, "remove the object"), "{report:?}");
    assert!(place.objects() == before, "it changed something");
    drop(engine);
    let report = check(&place.engine(), true).expect("a check");
    assert!(report.findings.iter().all(|finding| finding.is_repaired), "{report:?}");
    assert!(check(&place.engine(), false).expect("a check").findings.is_empty());
    place.settle().expect("settles");
    place.verify().expect("everything is there");
    place.check_elsewhere().expect("for others too");
}

/// A folder was moved by copying it, and days later the one that was left behind is started by mistake, and repaired: it has
/// the mark of the one that goes on, and changes nothing there.
#[test]
fn a_folder_that_was_left_behind_changes_nothing_on_the_slow_tier() {
    let mut place = Place::new(10, None);
    place.open_writer().expect("opens");
    place.write_and_settle();
    let left = place.move_folder().expect("moved");
    place.write_and_settle();
    let before = place.objects();

    let engine = place.open(&left.disk, false).expect("opens");
    for _ in 0..30 {
        let _ = engine.step(Lane::Tree);
        place.sim.clock.advance(Duration::from_secs(600));
    }
    assert!(engine.stats().slow_tier.is_fenced);
    let error = check(&engine, true).expect_err("another server's");
    assert_eq!(error.kind(), &ErrorKind::Conflict, "{error}");
    assert!(told(&check(&engine, false).expect("a check"), "written from another folder"));
    assert!(place.objects() == before, "it changed something");
    place.settle().expect("the one that goes on is not fenced");
    place.verify().expect("everything is there");
    place.check_elsewhere().expect("for others too");

    // That one may start again as often as it likes.
    for _ in 0..3 {
        place.writer.engine = None;
        place.open_writer().expect("opens");
        place.write_and_settle();
    }
    place.verify().expect("everything is there");
}

/// A machine is lost, and its folder is put back as it was some days before, while the same process ran: what was uploaded since is
/// not taken for garbage.
#[test]
fn a_folder_that_was_put_back_changes_nothing_on_the_slow_tier() {
    let mut place = Place::new(12, None);
    place.open_writer().expect("opens");
    place.write_and_settle();
    let disk = place.copy_of_disk();
    place.write_and_settle();
    let before = place.objects();
    place.writer.engine = None;

    let engine = place.open(&disk, false).expect("opens");
    for _ in 0..30 {
        let _ = engine.step(Lane::Tree);
        place.sim.clock.advance(Duration::from_secs(600));
    }
    assert!(engine.stats().slow_tier.is_fenced);
    assert!(told(&check(&engine, false).expect("a check"), "restored from an older backup"));
    assert!(place.objects() == before, "it changed something");
}

/// Somebody forgets to say where history lies: what is there is not taken for lost, by a repair neither, and the place is not
/// claimed. Where tables are and only the manifest is missing, the server's own is put anew.
#[test]
fn a_place_without_the_history_is_refused() {
    let mut place = Place::new(11, None);
    place.open_writer().expect("opens");
    place.write_and_settle();
    place.writer.engine = None;
    let wrong = SimBucket::new(place.sim.faults.clone());
    let env = Env { bucket: Arc::new(wrong.clone()), ..place.env(&place.writer.disk) };
    let engine = Engine::open(env, options(None, false), &RecoveryProgress::default());
    let engine = engine.expect("opens");
    let error = check(&engine, true).expect_err("not there");
    assert_eq!(error.kind(), &ErrorKind::Conflict, "{error}");
    let report = check(&engine, false).expect("a check");
    assert!(report.findings.len() == 1 && told(&report, "--slow-tier"), "{report:?}");
    for _ in 0..30 {
        let _ = engine.step(Lane::Tree);
        place.sim.clock.advance(Duration::from_secs(600));
    }
    assert_eq!(wrong.keys(), Vec::<String>::new());
    drop(engine);

    place.open_writer().expect("opens");
    place.verify().expect("everything is there");
    assert!(check(&place.engine(), false).expect("a check").findings.is_empty());
    place.writer.engine = None;
    let bucket = place.sim.env().bucket;
    bucket.delete(&["manifest".to_owned()]).expect("removed");
    place.open_writer().expect("opens");
    assert!(check(&place.engine(), true).expect("a check").findings.is_empty());
    place.write_and_settle();
    place.verify().expect("everything is there");
    place.check_elsewhere().expect("for others too");
}

/// Everything on the slow tier is gone, and somebody says so: the history goes, what is on this machine stays, and all that
/// comes is uploaded. Unless it is said nothing happens, however often the server starts.
#[test]
fn history_that_is_lost_is_given_up_only_when_asked() {
    let mut place = Place::new(13, None);
    place.open_writer().expect("opens");
    place.write_and_settle();
    let late = |engine: &Engine, ts: Timestamp| {
        let series = engine.resolve(&[labels(77)]).remove(0).expect("resolves");
        let mut batch = RowBatch::default();
        batch.push(series, ts, 77.0);
        engine.write(&mut batch).expect("a write");
    };
    let now = place.now();
    late(&place.engine(), now);
    place.engine().flush().expect("a flush");
    late(&place.engine(), now + 1);
    place.writer.engine = None;
    let bucket = place.sim.env().bucket;
    bucket.delete(&place.sim.bucket.keys()).expect("removed");

    let engine = place.open(&place.writer.disk, false).expect("opens");
    let error = check(&engine, true).expect_err("not there");
    assert_eq!(error.kind(), &ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("--forget-lost-history"), "{error}");
    for _ in 0..30 {
        let _ = engine.step(Lane::Tree);
        place.sim.clock.advance(Duration::from_secs(600));
    }
    assert!(place.objects().is_empty());
    drop(engine);

    let options = EngineOptions { forget_lost_history: true, ..options(None, false) };
    let env = place.env(&place.writer.disk);
    let engine = Engine::open(env, options, &RecoveryProgress::default()).expect("opens");
    let report = check(&engine, true).expect("a check");
    let lost = report.findings.iter().filter(|finding| finding.loss.is_some()).count();
    assert!(lost > 0 && report.findings.iter().all(|one| one.is_repaired), "{report:?}");
    drop(engine);

    // From here on as ever.
    place.writer.engine = Some(place.open(&place.writer.disk, false).expect("opens"));
    let report = check(&place.engine(), false).expect("a check");
    assert!(report.findings.is_empty(), "{report:?}");
    let kept = |seen: &ObservedSamples| seen.series.get(&labels(77)).map_or(0, Vec::len);
    let seen = place.read_writer().expect("reads").expect("reads");
    assert_eq!((seen.series.len(), kept(&seen)), (1, 2));
    late(&place.engine(), place.now());
    place.settle().expect("settles");
    let replica = place.open(&SimDisk::new(place.sim.faults.clone()), true).expect("a replica");
    let seen = ObservedSamples::read(&replica.snapshot(), &[], TimeRange::ALL).expect("reads");
    assert_eq!(kept(&seen), 3);
}

/// Both copies of the slow tier's manifest are needed only when one is damaged.
#[test]
fn a_damaged_manifest_on_the_slow_tier_costs_nothing() {
    let mut place = Place::new(8, None);
    place.open_writer().expect("opens");
    for _ in 0..9 {
        place.write().expect("a write");
    }
    place.settle().expect("settles");
    let whole = place.sim.bucket.bytes("manifest").expect("a manifest");
    let put = |bytes: Vec<u8>| {
        let bucket = place.sim.env().bucket;
        bucket.put("manifest", bytes.into(), PutMode::Overwrite).expect("a put");
    };
    let opens = || place.open(&SimDisk::new(place.sim.faults.clone()), true);
    let half = whole.len() / 2;
    for at in (0..whole.len()).step_by(11) {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 4;
        put(bytes);
        opens().unwrap_or_else(|e| panic!("byte {at}: {e}"));
    }
    for damage in [
        whole[..half].to_vec(),
        whole[..half + 30].to_vec(),
        [vec![0; half], whole[half..].to_vec()].concat(),
    ] {
        put(damage);
        opens().expect("one copy is whole");
    }
    put(vec![0; whole.len()]);
    let error = opens().expect_err("both copies are gone");
    assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
}
