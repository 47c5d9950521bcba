//! Several machines and one slow tier: writers that are lost, writers that are only believed to be
//! lost, their successors, and replicas. The bucket fails, applies requests that it reported as
//! failed, and is down.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use firn_engine::{
    CheckReport, Engine, EngineOptions, GroupRule, HeadOptions, Lane, LogOptions, Mutant,
    RecoveryProgress, Request,
};
use firn_env::{Env, PutMode};
use firn_model::{CancelToken, ErrorKind, Labels, Matcher, RowBatch, Sample, TimeRange, Timestamp};
use firn_sim::{ObservedSamples, Operation, Oracle, Rng, Sim, SimBucket, SimDisk, for_seeds};

use crate::Outcome;
use crate::damage::write_durably;
use crate::world::small_arenas;

const SEEDS: u64 = 300;
const STEPS: u64 = 50;
const HOUR_MS: i64 = 3_600_000;

struct Machine {
    disk: SimDisk,
    engine: Option<Arc<Engine>>,
}

struct Cluster {
    sim: Sim,
    rng: Rng,
    mutant: Option<Mutant>,
    writer: Machine,
    /// Writers that still run although another writer has replaced them.
    zombies: Vec<Machine>,
    replica: Option<Machine>,
    replica_followed_ms: Timestamp,
    oracle: Oracle,
    /// All samples that were passed to a rightful writer, acknowledged or not.
    passed: BTreeSet<(Labels, Timestamp, u64)>,
    tally: BTreeMap<&'static str, u64>,
}

/// The series of three hosts. One of them has a job; the index learns the groups of the others.
fn labels(idx: u64) -> Labels {
    let (host, name) = (format!("host-{}", idx % 3), format!("m{idx}"));
    let mut pairs = vec![("__name__", name.as_str()), ("instance", &host)];
    if idx.is_multiple_of(3) {
        pairs.push(("job", "tiers"));
    }
    Labels::from_pairs(pairs).expect("valid labels")
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
            // A replica without caches reads everything that its manifest names from the slow tier
            // each time.
            cache_bytes_max: if read_only { 0 } else { 256 << 20 },
            slow_cache_bytes_max: if read_only { 0 } else { 1 << 20 },
            ..Default::default()
        },
        mutant,
        log: LogOptions { segment_bytes: 8 << 10, ..Default::default() },
        head: HeadOptions { convert: small_arenas(256), hot_bytes_max: 0, ..Default::default() },
        ..EngineOptions::default()
    }
}

impl Cluster {
    fn new(seed: u64, mutant: Option<Mutant>) -> Cluster {
        let sim = Sim::new(seed);
        Cluster {
            writer: Machine { disk: sim.disk.clone(), engine: None },
            rng: Rng::new(seed ^ 0x71e5),
            sim,
            mutant,
            zombies: Vec::new(),
            replica: None,
            replica_followed_ms: 0,
            oracle: Oracle::new(),
            passed: BTreeSet::new(),
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
                    self.learn_groups()?;
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

    /// Defines series from which the index learns groups, unless the rule came back with the index.
    fn learn_groups(&mut self) -> Outcome<()> {
        let engine = self.engine();
        let sets: Vec<Labels> = (100..130).map(labels).collect();
        let identity = sets[1].filter(|name| name == "instance");
        if engine.group_rule(&identity) != GroupRule::Other {
            self.count("groups known");
            return Ok(());
        }
        match engine.resolve(&sets).into_iter().find_map(Result::err) {
            None if engine.group_rule(&identity) != GroupRule::Other => {
                self.count("groups learned");
                Ok(())
            }
            None => Err("thirty series do not show the groups of hosts".into()),
            Some(e) => self.after_error("resolve", &e),
        }
    }

    fn engine(&self) -> Arc<Engine> {
        Arc::clone(self.writer.engine.as_ref().expect("opened"))
    }

    /// Accepts the errors that injected faults cause. After a power failure the machines restart.
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
            _ => Err(format!("{what}: an error without an injected cause: {e:?}")),
        }
    }

    /// Opens the writer again if the power failed.
    fn reopen_writer(&mut self) -> Outcome<()> {
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
            self.passed.insert((labels.clone(), ts, value.to_bits()));
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

    /// Replaced writers continue to write, to flush and to upload.
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
                return self.reopen_writer();
            }
            self.zombies.push(zombie);
        }
        Ok(())
    }

    /// A replica reads. Before that it may follow the manifest, and does so at least every hour.
    fn step_replica(&mut self) -> Outcome<()> {
        let follows = self.rng.chance(0.5);
        if self.replica.is_none() {
            let disk = SimDisk::new(self.sim.faults.clone());
            match self.open(&disk, true) {
                Ok(engine) => {
                    self.replica = Some(Machine { disk, engine: Some(engine) });
                    self.replica_followed_ms = self.now();
                }
                // The slow tier is still empty.
                Err(e) if *e.kind() == ErrorKind::NotFound => return Ok(()),
                Err(e) => {
                    self.after_error("replica", &e)?;
                    return self.reopen_writer();
                }
            }
        } else if follows || self.now() - self.replica_followed_ms >= HOUR_MS {
            self.sim.clock.advance(Duration::from_secs(11));
            let engine = self.replica.as_ref().and_then(|one| one.engine.clone()).expect("opened");
            match engine.step(Lane::Tree) {
                Ok(_) => self.replica_followed_ms = self.now(),
                Err(e) => {
                    self.after_error("follow", &e)?;
                    return self.reopen_writer();
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
                self.check_passed(&seen)
            }
            Err(e) => {
                self.after_error("replica's read", &e)?;
                self.reopen_writer()
            }
        }
    }

    /// Checks that every sample was passed to a rightful writer at some time.
    fn check_passed(&self, seen: &ObservedSamples) -> Outcome<()> {
        for (labels, samples) in &seen.series {
            for sample in samples {
                let passed = (labels.clone(), sample.ts, sample.value.to_bits());
                if !self.passed.contains(&passed) {
                    return Err(format!("{labels} {sample:?} was never passed to this database"));
                }
            }
        }
        Ok(())
    }

    fn end_faults(&mut self) {
        self.sim.faults.clear();
        self.sim.bucket.set_down(false);
    }

    /// Uploads all acknowledged changes.
    fn settle(&mut self) -> Outcome<()> {
        self.end_faults();
        self.reopen_writer()?;
        // An injected failure may still be pending in the log, or a failed commit waits to be
        // rolled back.
        for tries in 0.. {
            match self.engine().flush() {
                Ok(()) => break,
                Err(e) if tries > 5 => return Err(format!("no flush: {e:?}")),
                Err(e) => self.after_error("flush", &e)?,
            }
            self.reopen_writer()?;
            self.write()?;
            self.reopen_writer()?;
        }
        self.sim.clock.advance(Duration::from_secs(5 * 3_600));
        for _ in 0..400 {
            self.sim.clock.advance(Duration::from_secs(61));
            let is_over = !self.step()?;
            self.reopen_writer()?;
            if is_over && self.engine().stats().head.row_count == 0 {
                return Ok(());
            }
            // The power failed before, and replay of the log restored rows.
            if is_over {
                self.flush()?;
                self.reopen_writer()?;
                self.sim.clock.advance(Duration::from_secs(5 * 3_600));
            }
        }
        Err("the work does not end".into())
    }

    /// Checks that a new machine sees all acknowledged changes through the slow tier.
    fn check_on_another_machine(&mut self) -> Outcome<()> {
        let disk = SimDisk::new(self.sim.faults.clone());
        let replica = self.open(&disk, true).map_err(|e| format!("a new replica: {e:?}"))?;
        let seen = ObservedSamples::read(&replica.snapshot(), &[], TimeRange::ALL);
        let seen = seen.map_err(|e| format!("a new replica reads: {e:?}"))?;
        self.count("complete on another machine");
        self.oracle.settle(&seen).map_err(|e| format!("a new replica: {e}"))
    }

    fn copy_of_disk(&self) -> SimDisk {
        let (disk, from) = (SimDisk::new(self.sim.faults.clone()), &self.writer.disk);
        from.files()
            .iter()
            .for_each(|path| write_durably(&disk, path, &from.bytes(path).expect("one")));
        disk
    }

    /// Copies the writer's folder and continues with the copy. Returns the machine with the
    /// original, which may start once the copy has claimed the slow tier.
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
        self.check_on_another_machine()?;
        let disk = SimDisk::new(self.sim.faults.clone());
        let mut lost = std::mem::replace(&mut self.writer, Machine { disk, engine: None });
        if self.rng.chance(0.6) {
            self.zombies.push(lost);
        } else {
            lost.engine = None;
        }
        // A restore that the power interrupts at any change is repeated.
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

    fn inject_fault(&mut self) {
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
                        self.reopen_writer()?;
                    }
                }
                67..=74 => {
                    let minutes = self.rng.below(90);
                    self.sim.clock.advance(Duration::from_secs(60 * minutes));
                }
                75..=82 => self.step_replica()?,
                83..=89 => self.step_zombies()?,
                90..=92 => self.inject_fault(),
                93 | 94 => self.end_faults(),
                95 | 96 => self.verify()?,
                _ => self.lose_machine()?,
            }
            self.reopen_writer()?;
        }
        self.settle()?;
        self.verify()?;
        self.check_on_another_machine()?;
        self.check_no_object_is_left()
    }

    /// Checks that objects of killed uploads and of lost writers are removed after the grace
    /// period.
    fn check_no_object_is_left(&mut self) -> Outcome<()> {
        self.zombies.clear();
        self.writer.engine = None;
        self.open_writer()?;
        // As time passes partitions are merged, which leaves objects for another hour.
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

/// Helpers of the scenarios below.
impl Cluster {
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

fn is_reported(report: &CheckReport, words: &str) -> bool {
    report.findings.iter().any(|one| !one.is_repaired && one.error.to_string().contains(words))
}

pub(crate) fn catch_mutant(seed: u64, mutant: Mutant) -> Option<String> {
    Cluster::new(seed, Some(mutant)).live().err()
}

/// Machines lose power, are lost or are replaced while they still run, and the bucket fails. When a
/// machine is lost, all acknowledged changes are on the slow tier. A successor and every replica
/// see all of them and no others, only one writer changes the slow tier, and no object is left
/// over.
#[test]
fn history_outlives_its_machine_and_has_one_writer() {
    let tally: RefCell<BTreeMap<&'static str, u64>> = RefCell::default();
    for_seeds(SEEDS, |seed| {
        let mut cluster = Cluster::new(seed, None);
        cluster.live().unwrap_or_else(|failure| panic!("{failure}"));
        for (what, count) in cluster.tally {
            *tally.borrow_mut().entry(what).or_default() += count;
        }
        cluster.sim.faults.change_count()
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
            "complete on another machine",
            "restored",
            "crash in a restore",
            "left behind",
            "groups learned",
            "groups known",
        ] {
            assert!(tally.borrow().contains_key(what), "{what} never happened");
        }
    }
}

/// A day of uploads without faults lists the bucket only at the start of a new database and after
/// the claim.
#[test]
fn the_bucket_is_listed_only_at_the_start() {
    let mut cluster = Cluster::new(7, None);
    cluster.open_writer().expect("opens");
    for _ in 0..48 {
        cluster.write().expect("a write");
        cluster.flush().expect("a flush");
        cluster.sim.clock.advance(Duration::from_secs(1_800));
        while cluster.step().expect("a step") {}
    }
    let stats = cluster.engine().stats();
    let lists: u64 =
        stats.slow_tier.requests[Request::List as usize].iter().map(|kind| kind.requests).sum();
    assert_eq!(lists, 3);
    assert!(stats.tree.levels[2].table_count > 5, "{:?}", stats.tree);
    assert!(stats.slow_tier.newest_ts > Some(cluster.now() - 5 * HOUR_MS), "{:?}", stats.slow_tier);
}

/// The folder of a replaced machine is checked and repaired. The slow tier belongs to another
/// server; its objects are intact, then its manifest is damaged. Neither run changes an object, and
/// the repair of the owner succeeds without a loss.
#[test]
fn a_replaced_machines_repair_changes_nothing_on_the_slow_tier() {
    let mut cluster = Cluster::new(9, None);
    cluster.open_writer().expect("opens");
    cluster.write_and_settle();
    let disk = SimDisk::new(cluster.sim.faults.clone());
    let mut old = std::mem::replace(&mut cluster.writer, Machine { disk, engine: None });
    old.engine = None;
    Engine::restore(&cluster.env(&cluster.writer.disk)).expect("restores");
    cluster.open_writer().expect("opens");
    cluster.write_and_settle();
    let before = cluster.objects();

    let engine = cluster.open(&old.disk, false).expect("opens");
    let error = check(&engine, true).expect_err("another server's");
    assert_eq!(error.kind(), &ErrorKind::Conflict, "{error}");
    let report = check(&engine, false).expect("a check");
    assert!(report.orphans.is_empty(), "{report:?}");
    assert!(is_reported(&report, "written from another folder"), "{report:?}");
    assert!(cluster.objects() == before, "it changed something");

    // Both copies of the manifest are unreadable now, but it still names its writer.
    let ruin = |bytes: &mut Vec<u8>| {
        let half = bytes.len() / 2;
        [half - 1, 2 * half - 1].iter().for_each(|&at| bytes[at] ^= 1);
    };
    cluster.sim.bucket.damage("manifest", ruin).expect("a manifest");
    let before = cluster.objects();
    let report = check(&engine, true).expect("a check");
    assert!(is_reported(&report, "remove the object"), "{report:?}");
    assert!(cluster.objects() == before, "it changed something");
    drop(engine);
    let report = check(&cluster.engine(), true).expect("a check");
    assert!(report.findings.iter().all(|finding| finding.is_repaired), "{report:?}");
    assert!(check(&cluster.engine(), false).expect("a check").findings.is_empty());
    cluster.settle().expect("settles");
    cluster.verify().expect("everything is there");
    cluster.check_on_another_machine().expect("another machine reads everything");
}

/// A folder was moved by copying it. Days later the abandoned original is started by mistake and
/// repaired. It has the same owner mark as the copy. The original is fenced and changes nothing on
/// the slow tier, and the copy continues with all data.
#[test]
fn a_folder_that_was_left_behind_changes_nothing_on_the_slow_tier() {
    let mut cluster = Cluster::new(10, None);
    cluster.open_writer().expect("opens");
    cluster.write_and_settle();
    let left = cluster.move_folder().expect("moved");
    cluster.write_and_settle();
    let before = cluster.objects();

    let engine = cluster.open(&left.disk, false).expect("opens");
    for _ in 0..30 {
        let _ = engine.step(Lane::Tree);
        cluster.sim.clock.advance(Duration::from_secs(600));
    }
    assert!(engine.stats().slow_tier.is_fenced);
    let error = check(&engine, true).expect_err("another server's");
    assert_eq!(error.kind(), &ErrorKind::Conflict, "{error}");
    assert!(is_reported(&check(&engine, false).expect("a check"), "written from another folder"));
    assert!(cluster.objects() == before, "it changed something");
    cluster.settle().expect("the copy is not fenced");
    cluster.verify().expect("everything is there");
    cluster.check_on_another_machine().expect("another machine reads everything");

    // The copy may restart any number of times.
    for _ in 0..3 {
        cluster.writer.engine = None;
        cluster.open_writer().expect("opens");
        cluster.write_and_settle();
    }
    cluster.verify().expect("everything is there");
}

/// A machine is lost, and its folder is restored from a backup that is days old and from the same
/// process. The new process is fenced, and it does not remove objects that were uploaded after the
/// backup.
#[test]
fn a_folder_that_was_put_back_changes_nothing_on_the_slow_tier() {
    let mut cluster = Cluster::new(12, None);
    cluster.open_writer().expect("opens");
    cluster.write_and_settle();
    let disk = cluster.copy_of_disk();
    cluster.write_and_settle();
    let before = cluster.objects();
    cluster.writer.engine = None;

    let engine = cluster.open(&disk, false).expect("opens");
    for _ in 0..30 {
        let _ = engine.step(Lane::Tree);
        cluster.sim.clock.advance(Duration::from_secs(600));
    }
    assert!(engine.stats().slow_tier.is_fenced);
    assert!(is_reported(&check(&engine, false).expect("a check"), "restored from an older backup"));
    assert!(cluster.objects() == before, "it changed something");
}

/// A server starts with the wrong location of the slow tier, which is empty. Neither the server nor
/// a repair treats the history as lost, and the location is not claimed. If the location is right
/// and only the manifest is missing, the server writes its own copy again.
#[test]
fn a_location_without_the_history_is_refused() {
    let mut cluster = Cluster::new(11, None);
    cluster.open_writer().expect("opens");
    cluster.write_and_settle();
    cluster.writer.engine = None;
    let wrong = SimBucket::new(cluster.sim.faults.clone());
    let env = Env { bucket: Arc::new(wrong.clone()), ..cluster.env(&cluster.writer.disk) };
    let engine = Engine::open(env, options(None, false), &RecoveryProgress::default());
    let engine = engine.expect("opens");
    let error = check(&engine, true).expect_err("not there");
    assert_eq!(error.kind(), &ErrorKind::Conflict, "{error}");
    let report = check(&engine, false).expect("a check");
    assert!(report.findings.len() == 1 && is_reported(&report, "--slow-tier"), "{report:?}");
    for _ in 0..30 {
        let _ = engine.step(Lane::Tree);
        cluster.sim.clock.advance(Duration::from_secs(600));
    }
    assert_eq!(wrong.keys(), Vec::<String>::new());
    drop(engine);

    cluster.open_writer().expect("opens");
    cluster.verify().expect("everything is there");
    assert!(check(&cluster.engine(), false).expect("a check").findings.is_empty());
    cluster.writer.engine = None;
    let bucket = cluster.sim.env().bucket;
    bucket.delete(&["manifest".to_owned()]).expect("removed");
    cluster.open_writer().expect("opens");
    cluster.write_and_settle();
    assert!(check(&cluster.engine(), true).expect("a check").findings.is_empty());
    cluster.verify().expect("everything is there");
    cluster.check_on_another_machine().expect("another machine reads everything");
}

/// The slow tier's manifest is missing, and its tables are there. A check reports it and changes
/// nothing; a repair puts it again, or reports that it cannot. Before, both found no damage.
#[test]
fn a_missing_manifest_on_the_slow_tier_is_damage() {
    let mut cluster = Cluster::new(14, None);
    cluster.open_writer().expect("opens");
    cluster.write_and_settle();
    cluster.writer.engine = None;
    let bucket = cluster.sim.env().bucket;
    bucket.delete(&["manifest".to_owned()]).expect("removed");
    cluster.open_writer().expect("opens");
    let before = cluster.objects();
    let report = check(&cluster.engine(), false).expect("a check");
    assert!(is_reported(&report, "the manifest is missing"), "{report:?}");
    assert!(!report.findings[0].is_repaired && cluster.objects() == before, "{report:?}");
    cluster.sim.faults.set_rate(Operation::Put, 1.0);
    let report = check(&cluster.engine(), true).expect("a check");
    assert!(is_reported(&report, "the manifest is missing"), "{report:?}");
    assert!(!report.findings[0].is_repaired, "{report:?}");
    cluster.sim.faults.clear();
    let report = check(&cluster.engine(), true).expect("a check");
    assert!(report.findings.len() == 1 && report.findings[0].is_repaired, "{report:?}");
    assert!(check(&cluster.engine(), false).expect("a check").findings.is_empty());
    cluster.check_on_another_machine().expect("another machine reads everything");
}

/// The machine is lost and the slow tier's manifest, too. A new database is refused there, and no
/// table is deleted. Before, all were deleted an hour later. With the manifest they are restored.
#[test]
fn tables_without_a_manifest_on_the_slow_tier_are_kept() {
    let mut cluster = Cluster::new(15, None);
    cluster.open_writer().expect("opens");
    cluster.write_and_settle();
    cluster.writer = Machine { disk: SimDisk::new(cluster.sim.faults.clone()), engine: None };
    let bucket = cluster.sim.env().bucket;
    let manifest = cluster.sim.bucket.bytes("manifest").expect("a manifest");
    bucket.delete(&["manifest".to_owned()]).expect("removed");
    let before = cluster.objects();
    let error = cluster.open(&cluster.writer.disk, false).expect_err("tables of another");
    assert_eq!(error.kind(), &ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("without their manifest"), "{error}");
    assert!(cluster.objects() == before, "it changed something");
    bucket.put("manifest", manifest, PutMode::Create).expect("a put");
    Engine::restore(&cluster.env(&cluster.writer.disk)).expect("restores");
    cluster.open_writer().expect("opens");
    cluster.verify().expect("everything is there");
}

/// All objects on the slow tier are lost. Without `forget_lost_history` a server changes nothing,
/// at every start. With it the lost history is removed from the manifest, all data on this machine
/// stays, and new data is uploaded.
#[test]
fn lost_history_is_removed_only_on_request() {
    let mut cluster = Cluster::new(13, None);
    cluster.open_writer().expect("opens");
    cluster.write_and_settle();
    let late = |engine: &Engine, ts: Timestamp| {
        let series = engine.resolve(&[labels(77)]).remove(0).expect("resolves");
        let mut batch = RowBatch::default();
        batch.push(series, ts, 77.0);
        engine.write(&mut batch).expect("a write");
    };
    let now = cluster.now();
    late(&cluster.engine(), now);
    cluster.engine().flush().expect("a flush");
    late(&cluster.engine(), now + 1);
    cluster.writer.engine = None;
    let bucket = cluster.sim.env().bucket;
    bucket.delete(&cluster.sim.bucket.keys()).expect("removed");

    let engine = cluster.open(&cluster.writer.disk, false).expect("opens");
    let error = check(&engine, true).expect_err("not there");
    assert_eq!(error.kind(), &ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("--forget-lost-history"), "{error}");
    for _ in 0..30 {
        let _ = engine.step(Lane::Tree);
        cluster.sim.clock.advance(Duration::from_secs(600));
    }
    assert!(cluster.objects().is_empty());
    drop(engine);

    let options = EngineOptions { forget_lost_history: true, ..options(None, false) };
    let env = cluster.env(&cluster.writer.disk);
    let engine = Engine::open(env, options, &RecoveryProgress::default()).expect("opens");
    let report = check(&engine, true).expect("a check");
    let lost = report.findings.iter().filter(|finding| finding.loss.is_some()).count();
    assert!(lost > 0 && report.findings.iter().all(|one| one.is_repaired), "{report:?}");
    drop(engine);

    // From here on the database is normal.
    cluster.writer.engine = Some(cluster.open(&cluster.writer.disk, false).expect("opens"));
    let report = check(&cluster.engine(), false).expect("a check");
    assert!(report.findings.is_empty(), "{report:?}");
    let kept = |seen: &ObservedSamples| seen.series.get(&labels(77)).map_or(0, Vec::len);
    let seen = cluster.read_writer().expect("reads").expect("reads");
    assert_eq!((seen.series.len(), kept(&seen)), (1, 2));
    late(&cluster.engine(), cluster.now());
    cluster.settle().expect("settles");
    let replica = cluster.open(&SimDisk::new(cluster.sim.faults.clone()), true).expect("a replica");
    let seen = ObservedSamples::read(&replica.snapshot(), &[], TimeRange::ALL).expect("reads");
    assert_eq!(kept(&seen), 3);
}

/// One of the two copies of the slow tier's manifest is damaged or cut off. A replica opens with
/// the other copy. With both damaged the open fails as `Corrupt`.
#[test]
fn a_damaged_manifest_on_the_slow_tier_costs_nothing() {
    let mut cluster = Cluster::new(8, None);
    cluster.open_writer().expect("opens");
    for _ in 0..9 {
        cluster.write().expect("a write");
    }
    cluster.settle().expect("settles");
    let whole = cluster.sim.bucket.bytes("manifest").expect("a manifest");
    let put = |bytes: Vec<u8>| {
        let bucket = cluster.sim.env().bucket;
        bucket.put("manifest", bytes.into(), PutMode::Overwrite).expect("a put");
    };
    let opens = || cluster.open(&SimDisk::new(cluster.sim.faults.clone()), true);
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
    let error = opens().expect_err("both copies are damaged");
    assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
}
