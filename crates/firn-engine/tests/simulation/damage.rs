//! Damaged files. Damage is reported with the name of the file, damaged data is never returned, and
//! reads and writes of all other data continue.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use firn_cache::{Dependency, ResultCache, ResultOptions, Span, StoreOptions};
use firn_engine::{Engine, EngineOptions, HeadOptions, Lane, LogOptions, RecoveryProgress};
use firn_env::{Disk, Env, OpenMode, PutMode};
use firn_model::{Budget, CancelToken, ErrorKind, Labels, MatchOp, Matcher, RowBatch, TimeRange};
use firn_sim::{ObservedSamples, Rng, Sim, for_cases};
use firn_tree::BlockOutline;

use crate::results::{STEP_MS, WINDOW_MS, bits, cache_query, compute, groups, open_beside};

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
            // No samples from memory: reads must use the damaged files.
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

/// Writes a row of every host for each scrape; on return the rows are in memory and in the log.
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

/// Whether a host lacks only its newest samples.
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

/// A result cache that keeps no answer in memory.
fn open_cache(engine: &Engine) -> Arc<ResultCache> {
    let store =
        StoreOptions { slab_bytes: 16 << 10, flash_bytes_max: 20 << 14, ..Default::default() };
    let options = ResultOptions { store, hot_bytes_max: 0, ..ResultOptions::default() };
    open_beside(engine, options).expect("a cache opens")
}

/// Looks up a host's answer, compares the cached part with a computed answer, and stores the
/// missing part. Returns the number of steps that were cached.
fn query_cache(cache: &ResultCache, engine: &Engine, host: usize) -> u64 {
    let matchers = vec![Matcher::equal("instance", format!("host-{host}"))];
    let span = Span::Relative { first_ms: -WINDOW_MS, last_ms: 0 };
    let dependencies = [Dependency { matchers, span }];
    let expression = format!("last(host-{host})");
    let cache_query = |range| cache_query(&expression, &dependencies, range);
    let all = (0, ALL_SCRAPES as i64 * STEP_MS);
    let (session, snapshot) = (cache.begin(&Budget::unlimited()), engine.snapshot());
    let found = cache.lookup(&session, &cache_query(all), snapshot.number());
    // A failed read leaves no answer to compare with.
    let Ok(whole) = compute(&snapshot, &dependencies[0], all.0, all.1) else { return 0 };
    let missing = found.missing.map(|(start, end)| TimeRange::new(start, end));
    let mut want = bits(&whole);
    let is_missing = |ts| missing.is_some_and(|missing| missing.contains(ts));
    want.values_mut().for_each(|points| points.retain(|&ts, _| !is_missing(ts)));
    want.retain(|_, points| !points.is_empty());
    assert_eq!(
        bits(&found.answer),
        want,
        "host {host}: the cached answer differs from the readable data"
    );
    if let Some(missing) = found.missing {
        let groups = [Some(groups(&snapshot, &dependencies[0].matchers).expect("an index"))];
        let part = compute(&snapshot, &dependencies[0], missing.0, missing.1).expect("a read");
        cache.fill(&session, &cache_query(missing), snapshot.number(), &groups, &part);
    }
    let step_count = |(start, end): (i64, i64)| ((end - start) / STEP_MS + 1) as u64;
    step_count(all) - found.missing.map_or(0, step_count)
}

/// A bit flips in a log that is completely synced, while the server is down. Lost rows are reported
/// with the path of the log, no wrong value is returned, and new writes are accepted.
#[test]
fn a_flipped_bit_in_the_log_is_reported() {
    for_cases(40, |place| {
        let sim = Sim::new(place);
        let engine = open(&sim).expect("opens");
        write(&engine, 0..SCRAPES);
        drop(engine);
        let path = "log/0/1.log";
        let used = sim.disk.bytes(path).expect("a log").iter().rposition(|&b| b != 0).unwrap_or(0);
        // The end is spared: damage to the last write looks like a crash.
        let at = used * place as usize / 50;
        sim.disk.damage(path, |bytes| bytes[at] ^= 8).expect("a log");
        sim.restart();
        let engine = open(&sim).expect("opens");
        let recovery = engine.stats().recovery;
        let left = read_all(&engine);
        let all = HOSTS * SCRAPES as usize;
        if left < all {
            let named = recovery.damage.iter().any(|found| found.what.contains(path));
            assert!(named, "byte {at}: {left} of {all} samples, no report: {recovery:?}");
        }
        write(&engine, SCRAPES..SCRAPES + 2);
        assert_eq!(read_all(&engine), left + 2 * HOSTS, "byte {at}: new writes are accepted");
    });
}

/// A bit flips in a synced log that contains a delete between two writes, while the server is down.
/// Deleted samples may reappear and later samples may be missing only if the damage is reported
/// with the path of the log. No wrong value is returned, and new writes are accepted.
#[test]
fn a_flipped_bit_in_a_logged_delete_is_reported() {
    let (shown, hidden) = (Cell::new(0), Cell::new(0));
    for_cases(200, |place| {
        let sim = Sim::new(place);
        let engine = open(&sim).expect("opens");
        write(&engine, 0..4);
        engine.delete(&[vec![]], TimeRange::ALL).expect("a delete");
        // The last write is spared: damage to it looks like a crash.
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
            let named = recovery.damage.iter().any(|found| found.what.contains(path));
            assert!(named, "byte {at}: {left} samples, no report: {recovery:?}");
        }
        shown.set(shown.get() + u64::from(left > 3 * HOSTS));
        hidden.set(hidden.get() + u64::from(recovery.deletes > 0 && left <= 3 * HOSTS));
        write(&engine, 6..8);
        assert_eq!(read_all(&engine), left + 2 * HOSTS, "byte {at}: new writes are accepted");
    });
    let (shown, hidden) = (shown.get(), hidden.get());
    let is_alone = std::env::var_os("FIRN_SEED").is_some();
    assert!(is_alone || (shown > 0 && hidden > 0), "{shown} deletes were hit, {hidden} were not");
}

/// The second half of a synced log is cut off while the server is down. The rows of the first half
/// and of the other log are readable, and new writes are accepted.
#[test]
fn a_truncated_log_keeps_the_rows_before_its_end() {
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

/// A bit flips in a table while the server is down. Queries that need the damaged block fail with
/// the path of the table. All other queries return every sample, and writes are accepted.
#[test]
fn invariant_5_a_flipped_bit_in_a_table_costs_that_block_and_is_named() {
    let damaged_count = Cell::new(0);
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
        damaged_count.set(damaged_count.get() + usize::from(failed > 0));
        write(&engine, SCRAPES..SCRAPES + 2);
    });
    let (damaged_count, is_alone) = (damaged_count.get(), std::env::var_os("FIRN_SEED").is_some());
    assert!(
        is_alone || damaged_count > 10,
        "queries found the damage at {damaged_count} of 20 offsets"
    );
}

/// A bit flips in one copy of the manifest while the server is down. The other copy replaces it:
/// the database opens, and no sample is missing.
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

/// The slow tier contains the tables and index files that the manifest names, the manifest, and
/// nothing else (invariant 6).
#[test]
fn invariant_6_the_slow_tier_holds_the_objects_of_the_manifest_only() {
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

/// An image of a database with data in every kind of file: logs, tables and index files on both
/// tiers, both manifests, the slow-tier cache, and slabs of the result cache. All files are
/// complete: the database was closed.
struct DatabaseImage {
    files: Vec<(String, Vec<u8>)>,
    objects: Vec<(String, Arc<[u8]>)>,
    now_ms: i64,
    /// The blocks of each table by its path: byte range and number of samples.
    blocks: BTreeMap<String, Vec<(Range<usize>, usize)>>,
}

impl DatabaseImage {
    fn new() -> DatabaseImage {
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
            query_cache(&cache, &engine, host);
        });
        engine.close(false).expect("closes");
        cache.close(engine.snapshot().number()).expect("closes");
        let bytes = |path: &String| sim.disk.bytes(path).expect("a file");
        let object = |key: &String| sim.bucket.bytes(key).expect("an object");
        DatabaseImage {
            files: sim.disk.files().iter().map(|path| (path.clone(), bytes(path))).collect(),
            objects: sim.bucket.keys().iter().map(|key| (key.clone(), object(key))).collect(),
            now_ms: sim.env().clock.now_ms(),
            blocks,
        }
    }

    /// The maximum number of samples that damage to the ranges `hit` of a file may cost after a
    /// repair.
    fn loss_max(&self, kind: &str, path: &str, hit: &[Range<usize>]) -> usize {
        match kind {
            // Tables keep their samples when a log is damaged.
            "fast log" => HOSTS * LOGGED_SCRAPES,
            "fast tables" | "slow tables" => {
                let is_hit = |block: &Range<usize>| {
                    hit.iter().any(|hit| hit.start < block.end && block.start < hit.end)
                };
                let blocks = self.blocks[path].iter().filter(|block| is_hit(&block.0));
                blocks.map(|block| block.1).sum()
            }
            // A manifest has two copies, an index file has one on each tier, and a cache contains
            // no data of its own.
            _ => 0,
        }
    }

    /// A simulated world with the files and objects of this image.
    fn world(&self, seed: u64) -> Sim {
        let sim = Sim::new(seed);
        let Env { bucket, clock, .. } = sim.env();
        self.files.iter().for_each(|(path, bytes)| write_durably(&sim.disk, path, bytes));
        for (key, bytes) in &self.objects {
            bucket.put(key, Arc::clone(bytes), PutMode::Create).expect("put");
        }
        sim.clock.advance(Duration::from_millis((self.now_ms - clock.now_ms()) as u64));
        sim
    }
}

/// Creates a file; the file and its folders are durable on return.
pub(crate) fn write_durably(disk: &dyn Disk, path: &str, bytes: &[u8]) {
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

/// The tier and the kind of a file, from its path.
fn kind_of(is_slow: bool, path: &str) -> String {
    let what = path.split(['/', '-']).next().unwrap_or_default();
    let tier = if is_slow { "slow" } else { "fast" };
    format!("{tier} {what}")
}

/// Number of scrapes of each host, and of those that no table contains yet.
const ALL_SCRAPES: usize = SCRAPES as usize + 20;
const LOGGED_SCRAPES: usize = 10;

/// Regions of a file: the first bytes (its header), any byte, and the last bytes before the
/// trailing zeros (the end of its directory or footer).
const REGIONS: [&str; 3] = ["first", "anywhere", "last"];
const REGION_BYTES: u64 = 64;
const NOTHING: Range<usize> = 0..0;

/// Damages one region, drawn at random: flips a bit, zeroes a range, truncates the file, copies a
/// range over another, or swaps two ranges. Returns the changed ranges and the region.
fn damage_bytes(bytes: &mut Vec<u8>, rng: &mut Rng) -> ([Range<usize>; 2], usize) {
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

/// One place of one file or object is damaged while the server is down. All other bytes are intact.
/// No wrong value is ever returned. Missing samples are named by an error or by the check. After a
/// repair the check passes, and every sample that was readable stays readable. The loss is at most
/// the damaged blocks of a table or the unflushed rows of a log; see [`DatabaseImage::loss_max`].
///
/// `FIRN_DAMAGE_COUNT=n` damages n places instead of 2,000. `FIRN_SEED=n` damages only place n.
#[test]
fn invariant_5_damage_of_any_file_is_found_and_costs_at_most_the_damaged_part() {
    let count = std::env::var("FIRN_DAMAGE_COUNT").ok().and_then(|n| n.parse().ok());
    let image = DatabaseImage::new();
    let mut places: BTreeMap<String, Vec<(bool, String)>> = BTreeMap::new();
    let files = image.files.iter().map(|file| (false, &file.0));
    for (is_slow, path) in files.chain(image.objects.iter().map(|object| (true, &object.0))) {
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
    let tally: RefCell<BTreeMap<&str, DamageTally>> = RefCell::default();
    for_cases(count.unwrap_or(2_000), |place| {
        let kind = kinds[(place % kinds.len() as u64) as usize];
        let mut outcome = DamageTally::default();
        kept.set(kept.get() + damage_one(&image, place, kind, &places[kind], &mut outcome));
        tally.borrow_mut().entry(kind).or_default().add(&outcome);
    });
    println!("{} cached steps were found", kept.get());
    assert!(kept.get() > 0);
    println!(
        "{:14} {:>9} {:>9} {:>9} {:>8} {:>8} {:>12}",
        "file", REGIONS[0], REGIONS[1], REGIONS[2], "named", "repaired", "most lost"
    );
    for (kind, outcome) in &*tally.borrow() {
        let DamageTally { damaged: [first, anywhere, last], named, repaired, lost_max } = outcome;
        println!(
            "{kind:14} {first:>9} {anywhere:>9} {last:>9} {named:>8} {repaired:>8} {lost_max:>12}"
        );
        let is_alone = std::env::var_os("FIRN_SEED").is_some();
        assert!(
            is_alone || outcome.damaged.iter().all(|&count| count > 0),
            "{kind}: a region was never damaged"
        );
        // Damage to the slow-tier cache is a cache miss and needs no report.
        let must_report = *kind != "fast slow" && std::env::var_os("FIRN_SEED").is_none();
        assert!(!must_report || *named > 0, "{kind}: damage was never reported");
    }
}

/// Outcomes of damage to one kind of file: damaged places by region, reports, repairs, and the
/// maximum number of samples that one place cost.
#[derive(Default)]
struct DamageTally {
    damaged: [u64; REGIONS.len()],
    named: u64,
    repaired: u64,
    lost_max: usize,
}

impl DamageTally {
    fn add(&mut self, other: &DamageTally) {
        self.damaged.iter_mut().zip(other.damaged).for_each(|(sum, one)| *sum += one);
        self.named += other.named;
        self.repaired += other.repaired;
        self.lost_max = self.lost_max.max(other.lost_max);
    }
}

/// Damages one file of a kind and checks the outcome. Returns the number of cached steps.
fn damage_one(
    image: &DatabaseImage,
    place: u64,
    kind: &str,
    places: &[(bool, String)],
    outcome: &mut DamageTally,
) -> u64 {
    let sim = image.world(place);
    let mut rng = Rng::new(place);
    let (is_slow, path) = rng.pick(places).clone();
    let (mut has_changed, mut hit, mut region) = (false, [NOTHING; 2], 1);
    let change = |bytes: &mut Vec<u8>| {
        let before = bytes.clone();
        if !bytes.is_empty() {
            (hit, region) = damage_bytes(bytes, &mut rng);
        }
        has_changed = *bytes != before;
    };
    match is_slow {
        true => sim.bucket.damage(&path, change).expect("an object"),
        false => sim.disk.damage(&path, change).expect("a file"),
    }
    outcome.damaged[region] += u64::from(has_changed);
    // In half of the cases the slow-tier cache is empty. Otherwise it serves all blocks of the
    // object.
    if kind == "slow tables" && (place / 9).is_multiple_of(2) {
        sim.disk.damage("slow-cache/slabs", Vec::clear).expect("a cache");
    }
    sim.restart();
    // The database opens, whichever single file is damaged.
    let engine = open(&sim).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut kept = 0;
    // A cached answer equals the readable data or is missing; a damaged slab is dropped and
    // counted. The exception is a log that lost synced entries at its end: that looks like a crash,
    // so an answer may still contain them.
    if kind != "fast log" {
        let cache = open_cache(&engine);
        kept = (0..HOSTS).map(|host| query_cache(&cache, &engine, host)).sum();
        outcome.named += u64::from(cache.stats().store.slabs_corrupt > 0);
    }
    let before: Vec<Option<usize>> = (0..HOSTS).map(|host| read_host(&engine, host).ok()).collect();
    let is_whole = before.iter().all(|&host| host == Some(ALL_SCRAPES));
    let report = engine.check(true, &CancelToken::new(), &mut |_| ()).expect("a check");
    let is_named = !report.findings.is_empty();
    // A log that ends early looks like a crash if nothing follows the lost entries.
    let is_shorter_log = kind == "fast log" && (0..HOSTS).all(|host| ends_early(&engine, host));
    assert!(is_whole || is_named || is_shorter_log, "{path}: {before:?}");
    // The kinds of files that a check reads.
    let is_checked = ["fast tables", "slow tables", "fast index", "slow index", "slow manifest"];
    let is_checked = is_checked.contains(&kind);
    assert!(is_named || !has_changed || !is_checked, "{path}: no report");
    outcome.named += u64::from(is_named);
    let is_repaired = report.findings.iter().all(|finding| finding.is_repaired);
    // A manifest that does not name its writer any more is not repaired: its owner is unknown.
    assert!(is_repaired || !is_checked || kind == "slow manifest", "{report:?}");
    if is_checked && is_named && is_repaired {
        let again = engine.check(false, &CancelToken::new(), &mut |_| ()).expect("a check");
        // A file that was fetched during the open stays in the report, as repaired, until the
        // database is closed.
        let is_left = again.findings.iter().any(|finding| !finding.is_repaired);
        assert!(!is_left, "{path}: {again:?}");
        outcome.repaired += 1;
    }
    let after: Vec<usize> =
        (0..HOSTS).map(|host| read_host(&engine, host).expect("everything can be read")).collect();
    for (host, (before, after)) in before.iter().zip(&after).enumerate() {
        assert!(before.is_none_or(|before| before == *after), "host {host}: {before:?} {after}");
    }
    let lost = HOSTS * ALL_SCRAPES - after.iter().sum::<usize>();
    outcome.lost_max = lost;
    let most = image.loss_max(kind, &path, &hit);
    assert!(lost <= most, "{path}: {lost} samples are lost, {most} at most");
    kept
}
