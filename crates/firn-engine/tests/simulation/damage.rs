//! Damaged files: reported by name, never served, and the rest goes on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use firn_cache::{Dependency, ResultCache, ResultOptions, Span, StoreOptions};
use firn_engine::{Engine, EngineOptions, HeadOptions, Lane, LogOptions, RecoveryProgress};
use firn_env::{Disk, Env, OpenMode, PutMode};
use firn_model::{CancelToken, ErrorKind, Labels, MatchOp, Matcher, RowBatch, TimeRange};
use firn_sim::{ObservedSamples, Rng, Sim, for_cases};
use firn_tree::BlockOutline;

use crate::results::{STEP_MS, WINDOW_MS, bits, compute, groups, open_beside, question};

const HOSTS: usize = 20;
const SCRAPES: i64 = 40;

fn options() -> EngineOptions {
    EngineOptions {
        shard_count: 4,
        stream_count: Some(2),
        tree: firn_tree::TreeOptions {
            block_bytes: 256,
            slow_cache_bytes_max: 64 << 10,
            ..Default::default()
        },
        log: LogOptions { segment_bytes: 64 << 10, ..Default::default() },
        head: HeadOptions {
            // Nothing from memory: what is read comes from the damaged files.
            hot_bytes_max: 0,
            ..Default::default()
        },
        ..EngineOptions::default()
    }
}

fn open(sim: &Sim) -> firn_model::Result<Arc<Engine>> {
    Engine::open(sim.env(), options(), &RecoveryProgress::default())
}

fn host_labels(host: usize) -> Labels {
    let host = format!("host-{host}");
    Labels::from_pairs([("__name__", "up"), ("job", "damage"), ("instance", &host)])
        .expect("valid labels")
}

/// Rows of every host; in memory and in the log afterwards.
fn write(engine: &Engine, scrapes: Range<i64>) {
    let labels: Vec<Labels> = (0..HOSTS).map(host_labels).collect();
    let refs: Vec<_> = engine.resolve(&labels).into_iter().map(|r| r.expect("resolves")).collect();
    for scrape in scrapes {
        let mut batch = RowBatch::default();
        for (host, &series) in refs.iter().enumerate() {
            batch.push(series, scrape * 15_000, scrape as f64 * 0.1 + host as f64);
        }
        engine.write(&mut batch).expect("a write");
    }
}

fn read_host(engine: &Engine, host: usize) -> firn_model::Result<usize> {
    let matcher = Matcher::new("instance", MatchOp::Equal, format!("host-{host}"))?;
    let seen = ObservedSamples::read(&engine.snapshot(), &[matcher], TimeRange::ALL)?;
    for sample in seen.series.values().flatten() {
        let expected = (sample.ts / 15_000) as f64 * 0.1 + host as f64;
        assert_eq!(sample.value.to_bits(), expected.to_bits(), "a wrong value is served");
    }
    Ok(seen.sample_count())
}

/// Whether all that a host lacks is its newest samples.
fn ends_early(engine: &Engine, host: usize) -> bool {
    let matcher = Matcher::equal("instance", format!("host-{host}"));
    let seen =
        ObservedSamples::read(&engine.snapshot(), &[matcher], TimeRange::ALL).expect("a read");
    let samples: Vec<_> = seen.series.values().flatten().collect();
    samples.last().is_none_or(|last| last.ts / 15_000 + 1 == samples.len() as i64)
}

fn read_all(engine: &Engine) -> usize {
    (0..HOSTS).map(|host| read_host(engine, host).expect("a read")).sum()
}

/// A cache of answers of which none is in memory.
fn open_cache(engine: &Engine) -> Arc<ResultCache> {
    let store =
        StoreOptions { slab_bytes: 16 << 10, flash_bytes_max: 20 << 14, ..Default::default() };
    let options = ResultOptions { store, hot_bytes_max: 0, ..ResultOptions::default() };
    open_beside(engine, options).expect("a cache opens")
}

/// Asks for a host's answer, keeps what is missing, and gives how many steps were there; what is there must be what can be read.
fn ask_cache(cache: &ResultCache, engine: &Engine, host: usize) -> u64 {
    let matchers = vec![Matcher::equal("instance", format!("host-{host}"))];
    let span = Span::Relative { first_ms: -WINDOW_MS, last_ms: 0 };
    let dependencies = [Dependency { matchers, span }];
    let expression = format!("last(host-{host})");
    let question = |range| question(&expression, &dependencies, range);
    let all = (0, ALL_SCRAPES as i64 * STEP_MS);
    let (session, snapshot) = (cache.begin(), engine.snapshot());
    let found = cache.lookup(&question(all), snapshot.number());
    // What cannot be read is an error, and no answer to compare with.
    let Ok(whole) = compute(&snapshot, &dependencies[0], all.0, all.1) else { return 0 };
    let missing = found.missing.map(|(start, end)| TimeRange::new(start, end));
    let mut want = bits(&whole);
    let is_missing = |ts| missing.is_some_and(|missing| missing.contains(ts));
    want.values_mut().for_each(|points| points.retain(|&ts, _| !is_missing(ts)));
    want.retain(|_, points| !points.is_empty());
    assert_eq!(bits(&found.answer), want, "host {host}: what is kept is not what can be read");
    if let Some(missing) = found.missing {
        let groups = [Some(groups(&snapshot, &dependencies[0].matchers).expect("an index"))];
        let part = compute(&snapshot, &dependencies[0], missing.0, missing.1).expect("a read");
        cache.fill(&session, &question(missing), snapshot.number(), &groups, &part);
    }
    let step_count = |(start, end): (i64, i64)| ((end - start) / STEP_MS + 1) as u64;
    step_count(all) - found.missing.map_or(0, step_count)
}

/// A flipped bit in what was synced long ago: named with file and offset, rows before it are there,
/// no wrong value is served, and the server goes on.
#[test]
fn a_flipped_bit_in_the_log_is_reported_and_costs_what_stands_there() {
    for_cases(40, |place| {
        let sim = Sim::new(place);
        let engine = open(&sim).expect("opens");
        write(&engine, 0..SCRAPES);
        drop(engine);
        let path = "log/0/1.log";
        let used = sim.disk.bytes(path).expect("a log").iter().rposition(|&b| b != 0).unwrap_or(0);
        // Not the very end: damage to the last write looks like what a crash leaves.
        let at = used * place as usize / 50;
        sim.disk.damage(path, |bytes| bytes[at] ^= 8).expect("a log");
        sim.restart();
        let engine = open(&sim).expect("opens");
        let recovery = engine.stats().recovery;
        let left = read_all(&engine);
        let all = HOSTS * SCRAPES as usize;
        if left < all {
            let named = recovery.damage.iter().any(|text| text.contains(path));
            assert!(named, "byte {at}: {left} of {all} samples and no word: {recovery:?}");
        }
        write(&engine, SCRAPES..SCRAPES + 2);
        assert_eq!(read_all(&engine), left + 2 * HOSTS, "byte {at}: it goes on");
    });
}

/// A flipped bit somewhere in a log with a delete in it: what was deleted shows again only if the
/// damage is named, what was written afterwards is never hidden, no wrong value is served.
#[test]
fn a_flipped_bit_in_a_logged_delete_is_reported() {
    let (shown, hidden) = (Cell::new(0), Cell::new(0));
    for_cases(200, |place| {
        let sim = Sim::new(place);
        let engine = open(&sim).expect("opens");
        write(&engine, 0..4);
        engine.delete(&[vec![]], TimeRange::ALL).expect("a delete");
        // Not the last write: damage there looks like what a crash leaves.
        let path = "log/0/1.log";
        let used = sim.disk.bytes(path).expect("a log").iter().rposition(|&b| b != 0).unwrap_or(0);
        let at = used * place as usize / 200;
        write(&engine, 3..6);
        drop(engine);
        sim.disk.damage(path, |bytes| bytes[at] ^= 8).expect("a log");
        sim.restart();
        let engine = open(&sim).expect("opens");
        let recovery = engine.stats().recovery;
        let left = read_all(&engine);
        if left != 3 * HOSTS {
            let named = recovery.damage.iter().any(|text| text.contains(path));
            assert!(named, "byte {at}: {left} samples and no word: {recovery:?}");
        }
        shown.set(shown.get() + u64::from(left > 3 * HOSTS));
        hidden.set(hidden.get() + u64::from(recovery.deletes > 0 && left <= 3 * HOSTS));
        write(&engine, 6..8);
        assert_eq!(read_all(&engine), left + 2 * HOSTS, "byte {at}: it goes on");
    });
    let (shown, hidden) = (shown.get(), hidden.get());
    let is_alone = std::env::var_os("FIRN_SEED").is_some();
    assert!(is_alone || (shown > 0 && hidden > 0), "{shown} deletes were hit, {hidden} were not");
}

/// The end of a log is cut off: what is left is there, and the server goes on.
#[test]
fn a_truncated_log_keeps_what_is_left() {
    let sim = Sim::new(1);
    let engine = open(&sim).expect("opens");
    write(&engine, 0..SCRAPES);
    drop(engine);
    let path = "log/1/1.log";
    let used = sim.disk.bytes(path).expect("a log").iter().rposition(|&b| b != 0).unwrap_or(0);
    sim.disk.damage(path, |bytes| bytes.truncate(used / 2)).expect("a log");
    sim.restart();
    let engine = open(&sim).expect("opens");
    let left = read_all(&engine);
    assert!(left > 0 && left < HOSTS * SCRAPES as usize, "{left} samples");
    write(&engine, SCRAPES..SCRAPES + 2);
    assert_eq!(read_all(&engine), left + 2 * HOSTS);
}

/// A flipped bit in a table: queries that need the block fail with file and offset, the others and
/// all writes go on.
#[test]
fn invariant_5_a_flipped_bit_in_a_table_costs_that_block_and_is_named() {
    let hurt = Cell::new(0);
    for_cases(20, |place| {
        let sim = Sim::new(place);
        let engine = open(&sim).expect("opens");
        write(&engine, 0..SCRAPES);
        engine.flush().expect("a flush");
        drop(engine);
        let path =
            sim.disk.files().into_iter().find(|f| f.starts_with("tables/")).expect("a table");
        let flip = |bytes: &mut Vec<u8>| {
            let at = bytes.len() * place as usize / 20;
            bytes[at] ^= 1;
        };
        sim.disk.damage(&path, flip).expect("a table");
        sim.restart();
        let engine = open(&sim).expect("opens");
        let mut failed = 0;
        for host in 0..HOSTS {
            match read_host(&engine, host) {
                Ok(samples) => assert_eq!(samples, SCRAPES as usize),
                Err(e) => {
                    assert!(matches!(e.kind(), ErrorKind::Corrupt { .. }), "{e:?}");
                    assert!(e.to_string().contains(&path), "{e}");
                    failed += 1;
                }
            }
        }
        hurt.set(hurt.get() + usize::from(failed > 0));
        write(&engine, SCRAPES..SCRAPES + 2);
    });
    let (hurt, is_alone) = (hurt.get(), std::env::var_os("FIRN_SEED").is_some());
    assert!(is_alone || hurt > 10, "the damage was met in {hurt} of 20 places");
}

/// A flipped bit in the manifest: repaired from its other copy, reported, nothing is missing.
#[test]
fn a_flipped_bit_in_the_manifest_costs_nothing() {
    for_cases(58, |place| {
        let at = 7 * place;
        let sim = Sim::new(at);
        let engine = open(&sim).expect("opens");
        write(&engine, 0..4);
        engine.flush().expect("a flush");
        while engine.step(Lane::Tree).expect("a step").is_some() {}
        drop(engine);
        let path = sim.disk.files().into_iter().find(|f| f.starts_with("manifest/")).expect("one");
        sim.disk.damage(&path, |bytes| bytes[at as usize] ^= 1).expect("a manifest");
        sim.restart();
        let engine = open(&sim).expect("opens");
        assert_eq!(read_all(&engine), 4 * HOSTS, "byte {at}");
    });
}

/// What the manifest names is there, and nothing else is left behind (invariant 6).
#[test]
fn invariant_6_the_slow_tier_holds_what_the_manifest_names() {
    let sim = Sim::new(3);
    let engine = open(&sim).expect("opens");
    write(&engine, 0..SCRAPES);
    engine.flush().expect("a flush");
    sim.clock.advance(Duration::from_secs(6 * 3_600));
    while engine.step(Lane::Tree).expect("a step").is_some() {}
    let stats = engine.stats();
    assert!(stats.tree.levels[2].table_count > 0, "old data is uploaded: {:?}", stats.tree);
    let objects = |folder: &str| {
        sim.bucket.keys().iter().filter(|key| key.starts_with(folder)).count() as u64
    };
    assert_eq!(objects("tables/"), stats.tree.levels[2].table_count);
    assert_eq!(objects("index/"), stats.index.segment_count);
    assert_eq!(objects(""), objects("tables/") + objects("index/") + 1);
    assert_eq!(read_all(&engine), HOSTS * SCRAPES as usize);
}

/// Data everywhere: log, memory's files, tables of both tiers, index and manifest on both, what is kept of the slow
/// tier here, and slabs of kept answers. Every file as it lies there, with its path.
struct Filled {
    files: Vec<(String, Vec<u8>)>,
    objects: Vec<(String, Arc<[u8]>)>,
    now_ms: i64,
    /// By path, the blocks of each table: where they lie, and their samples.
    blocks: BTreeMap<String, Vec<(Range<usize>, usize)>>,
}

impl Filled {
    fn new() -> Filled {
        let sim = Sim::new(5);
        let engine = open(&sim).expect("opens");
        let cache = open_cache(&engine);
        write(&engine, 0..SCRAPES);
        engine.flush().expect("a flush");
        sim.clock.advance(Duration::from_secs(6 * 3_600));
        while engine.step(Lane::Tree).expect("a step").is_some() {}
        write(&engine, SCRAPES..SCRAPES + 10);
        engine.flush().expect("a flush");
        while engine.step(Lane::Tree).expect("a step").is_some() {}
        write(&engine, SCRAPES + 10..ALL_SCRAPES as i64);
        read_all(&engine);
        let blocks = blocks_of_tables(&engine);
        (0..HOSTS).for_each(|host| {
            ask_cache(&cache, &engine, host);
        });
        engine.close(false).expect("closes");
        cache.close(engine.snapshot().number()).expect("closes");
        let bytes = |path: &String| sim.disk.bytes(path).expect("a file");
        let object = |key: &String| sim.bucket.bytes(key).expect("an object");
        Filled {
            files: sim.disk.files().iter().map(|path| (path.clone(), bytes(path))).collect(),
            objects: sim.bucket.keys().iter().map(|key| (key.clone(), object(key))).collect(),
            now_ms: sim.env().clock.now_ms(),
            blocks,
        }
    }

    /// How many samples damage of these stretches of a file may cost at most once all is repaired.
    fn loss_max(&self, kind: &str, path: &str, hit: &[Range<usize>]) -> usize {
        match kind {
            // What tables have is not lost with a log.
            "fast log" => HOSTS * LOGGED_SCRAPES,
            "fast tables" | "slow tables" => {
                let is_hit = |block: &Range<usize>| {
                    hit.iter().any(|hit| hit.start < block.end && block.start < hit.end)
                };
                let blocks = self.blocks[path].iter().filter(|block| is_hit(&block.0));
                blocks.map(|block| block.1).sum()
            }
            // A manifest is there twice, an index file on the other tier, and a cache has nothing of its own.
            _ => 0,
        }
    }

    /// A world in which all that is.
    fn world(&self, seed: u64) -> Sim {
        let sim = Sim::new(seed);
        let Env { bucket, clock, .. } = sim.env();
        self.files.iter().for_each(|(path, bytes)| lay_down(&sim.disk, path, bytes));
        for (key, bytes) in &self.objects {
            bucket.put(key, Arc::clone(bytes), PutMode::Create).expect("put");
        }
        sim.clock.advance(Duration::from_millis((self.now_ms - clock.now_ms()) as u64));
        sim
    }
}

/// Makes a file, durable with the folders that it is in.
pub(crate) fn lay_down(disk: &dyn Disk, path: &str, bytes: &[u8]) {
    let folder = path.rsplit_once('/').map_or("", |split| split.0);
    let above = folder.match_indices('/').map(|(at, _)| &folder[..at]);
    for folder in above.chain([folder]).filter(|folder| !folder.is_empty()) {
        disk.create_dir(folder).expect("a folder");
        let above = folder.rsplit_once('/').map_or("", |split| split.0);
        disk.sync_dir(above).expect("durable");
    }
    let file = disk.open(path, OpenMode::Create).expect("a file");
    file.write_at(0, bytes).and_then(|()| file.sync()).expect("written");
    disk.sync_dir(folder).expect("durable");
}

fn blocks_of_tables(engine: &Engine) -> BTreeMap<String, Vec<(Range<usize>, usize)>> {
    let snapshot = engine.snapshot();
    let tables = snapshot.tables().map(|record| {
        let mut blocks = Vec::new();
        let each = &mut |block: &BlockOutline| {
            let chunks = block.chunks.as_ref().expect("a whole block").iter();
            let columns = chunks.flat_map(|chunk| &chunk.columns.values);
            let samples: usize = columns.map(|(_, column)| column.entry_count).sum();
            let start = block.offset as usize;
            blocks.push((start..start + block.bytes as usize, samples));
            Ok(())
        };
        snapshot.inspect_table(record.id, None, each).expect("a table");
        (record.path(), blocks)
    });
    tables.collect()
}

/// What a file is, by its path.
fn kind_of(is_slow: bool, path: &str) -> String {
    let what = path.split(['/', '-']).next().unwrap_or_default();
    let tier = if is_slow { "slow" } else { "fast" };
    format!("{tier} {what}")
}

/// Of each host in all, and of them in no table yet.
const ALL_SCRAPES: usize = SCRAPES as usize + 20;
const LOGGED_SCRAPES: usize = 10;

/// Where in a file: its first bytes, which are its header, its last ones before the zeros, where directory or footer end, or
/// anywhere.
const REGIONS: [&str; 3] = ["first", "anywhere", "last"];
const REGION_BYTES: u64 = 64;
const NOTHING: Range<usize> = 0..0;

/// Flips a bit, zeroes, cuts, copies a stretch over another, or swaps two, in each region alike. Which stretches are not what
/// they were, and the region.
fn hurt(bytes: &mut Vec<u8>, rng: &mut Rng) -> ([Range<usize>; 2], usize) {
    let used = bytes.iter().rposition(|&byte| byte != 0).map_or(1, |last| last + 1);
    let used = used as u64;
    let region = rng.below(3) as usize;
    let start = match region {
        0 => rng.below(used.min(REGION_BYTES)),
        1 => rng.below(used),
        _ => used - 1 - rng.below(used.min(REGION_BYTES)),
    } as usize;
    let len = (1 + rng.below(300) as usize).min(bytes.len() - start);
    let to = rng.below((bytes.len() - len) as u64 + 1) as usize;
    let (here, there) = (start..start + len, to..to + len);
    let hit = match rng.below(7) {
        0 => {
            bytes[here.clone()].fill(0);
            [here, NOTHING]
        }
        1 => {
            bytes.truncate(start);
            [start..usize::MAX, NOTHING]
        }
        2 => {
            bytes.copy_within(here, to);
            [there, NOTHING]
        }
        3 => {
            (0..len).for_each(|idx| bytes.swap(start + idx, to + idx));
            [here, there]
        }
        _ => {
            bytes[start] ^= 1 << rng.below(8);
            [start..start + 1, NOTHING]
        }
    };
    (hit, region)
}

/// Whatever is hit, wherever: no wrong value is ever served; what is missing is named by an error or by the check;
/// after a repair everything passes, everything that could be read before still can, and no more is lost than the blocks of a
/// table that were hit, or what only the log had: see [`Filled::loss_max`].
/// `FIRN_DAMAGE_COUNT=n` hits n places in place of 2,000, `FIRN_SEED=n` hits place n alone.
#[test]
fn invariant_5_damage_of_any_file_is_found_and_costs_what_was_hit() {
    let count = std::env::var("FIRN_DAMAGE_COUNT").ok().and_then(|n| n.parse().ok());
    let filled = Filled::new();
    let mut places: BTreeMap<String, Vec<(bool, String)>> = BTreeMap::new();
    let files = filled.files.iter().map(|file| (false, &file.0));
    for (is_slow, path) in files.chain(filled.objects.iter().map(|object| (true, &object.0))) {
        places.entry(kind_of(is_slow, path)).or_default().push((is_slow, path.clone()));
    }
    let kinds: Vec<&String> = places.keys().collect();
    assert_eq!(
        kinds,
        [
            "fast cache",
            "fast index",
            "fast log",
            "fast manifest",
            "fast slow",
            "fast tables",
            "slow index",
            "slow manifest",
            "slow tables"
        ]
    );
    let kept = Cell::new(0);
    let tally: RefCell<BTreeMap<&str, Told>> = RefCell::default();
    for_cases(count.unwrap_or(2_000), |place| {
        let kind = kinds[(place % kinds.len() as u64) as usize];
        let mut told = Told::default();
        kept.set(kept.get() + damage_one(&filled, place, kind, &places[kind], &mut told));
        tally.borrow_mut().entry(kind).or_default().add(&told);
    });
    println!("{} steps of kept answers were there", kept.get());
    assert!(kept.get() > 0);
    println!(
        "{:14} {:>9} {:>9} {:>9} {:>8} {:>8} {:>12}",
        "file", REGIONS[0], REGIONS[1], REGIONS[2], "named", "repaired", "most lost"
    );
    for (kind, told) in &*tally.borrow() {
        let Told { damaged: [first, anywhere, last], named, repaired, lost_most } = told;
        println!(
            "{kind:14} {first:>9} {anywhere:>9} {last:>9} {named:>8} {repaired:>8} {lost_most:>12}"
        );
        let is_alone = std::env::var_os("FIRN_SEED").is_some();
        assert!(
            is_alone || told.damaged.iter().all(|&count| count > 0),
            "{kind}: a region is whole"
        );
        // A cache misses it.
        let must_tell = *kind != "fast slow" && std::env::var_os("FIRN_SEED").is_none();
        assert!(!must_tell || *named > 0, "{kind}: damage was never told");
    }
}

/// Of one kind of file: damage by region, how often what came of it, and the samples that one place cost at most.
#[derive(Default)]
struct Told {
    damaged: [u64; REGIONS.len()],
    named: u64,
    repaired: u64,
    lost_most: usize,
}

impl Told {
    fn add(&mut self, other: &Told) {
        self.damaged.iter_mut().zip(other.damaged).for_each(|(sum, one)| *sum += one);
        self.named += other.named;
        self.repaired += other.repaired;
        self.lost_most = self.lost_most.max(other.lost_most);
    }
}

/// Damages a file of a kind and looks what becomes of it. Gives how many steps of kept answers were there.
fn damage_one(
    filled: &Filled,
    place: u64,
    kind: &str,
    places: &[(bool, String)],
    told: &mut Told,
) -> u64 {
    let sim = filled.world(place);
    let mut rng = Rng::new(place);
    let (is_slow, path) = rng.pick(places).clone();
    let (mut has_changed, mut hit, mut region) = (false, [NOTHING; 2], 1);
    let change = |bytes: &mut Vec<u8>| {
        let before = bytes.clone();
        if !bytes.is_empty() {
            (hit, region) = hurt(bytes, &mut rng);
        }
        has_changed = *bytes != before;
    };
    match is_slow {
        true => sim.bucket.damage(&path, change).expect("an object"),
        false => sim.disk.damage(&path, change).expect("a file"),
    }
    told.damaged[region] += u64::from(has_changed);
    // What is kept here of the slow tier would stand in for all of it.
    if kind == "slow tables" && (place / 9).is_multiple_of(2) {
        sim.disk.damage("slow-cache/slabs", Vec::clear).expect("a cache");
    }
    sim.restart();
    // One file alone, whichever: it opens.
    let engine = open(&sim).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut kept = 0;
    // A kept answer says what can be read, or it is gone; a slab is dropped and counted. Only what a log has lost at its end,
    // like a crash, but after it was synced, may still be told.
    if kind != "fast log" {
        let cache = open_cache(&engine);
        kept = (0..HOSTS).map(|host| ask_cache(&cache, &engine, host)).sum();
        told.named += u64::from(cache.stats().store.slabs_corrupt > 0);
    }
    let before: Vec<Option<usize>> = (0..HOSTS).map(|host| read_host(&engine, host).ok()).collect();
    let is_whole = before.iter().all(|&host| host == Some(ALL_SCRAPES));
    let report = engine.check(true, &CancelToken::new(), &mut |_| ()).expect("a check");
    let is_named = !report.findings.is_empty();
    // A log that ends earlier looks like what a crash leaves: with nothing behind what is lost.
    let is_shorter_log = kind == "fast log" && (0..HOSTS).all(|host| ends_early(&engine, host));
    assert!(is_whole || is_named || is_shorter_log, "{path}: {before:?}");
    // All that a check reads.
    let is_checked = ["fast tables", "slow tables", "fast index", "slow index", "slow manifest"];
    let is_checked = is_checked.contains(&kind);
    assert!(is_named || !has_changed || !is_checked, "{path}: no word");
    told.named += u64::from(is_named);
    let is_repaired = report.findings.iter().all(|finding| finding.is_repaired);
    // Of a manifest that says nothing of its writer any more nobody knows whose it is.
    assert!(is_repaired || !is_checked || kind == "slow manifest", "{report:?}");
    if is_checked && is_named && is_repaired {
        let again = engine.check(false, &CancelToken::new(), &mut |_| ()).expect("a check");
        // What opening has fetched stays told as long as the database is open.
        let is_left = again.findings.iter().any(|finding| !finding.is_repaired);
        assert!(!is_left, "{path}: {again:?}");
        told.repaired += 1;
    }
    let after: Vec<usize> =
        (0..HOSTS).map(|host| read_host(&engine, host).expect("everything can be read")).collect();
    for (host, (before, after)) in before.iter().zip(&after).enumerate() {
        assert!(before.is_none_or(|before| before == *after), "host {host}: {before:?} {after}");
    }
    let lost = HOSTS * ALL_SCRAPES - after.iter().sum::<usize>();
    told.lost_most = lost;
    let most = filled.loss_max(kind, &path, &hit);
    assert!(lost <= most, "{path}: {lost} samples are lost, {most} at most");
    kept
}
