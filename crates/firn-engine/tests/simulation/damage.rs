//! Damaged files: reported by name, never served, and the rest goes on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use firn_engine::{Engine, EngineOptions, Lane, RecoveryProgress};
use firn_env::{Env, OpenMode, PutMode};
use firn_model::{CancelToken, ErrorKind, Labels, MatchOp, Matcher, RowBatch, TimeRange};
use firn_sim::{Rng, Seen, Sim};

const HOSTS: usize = 20;
const SCRAPES: i64 = 40;

fn options() -> EngineOptions {
    EngineOptions {
        shard_count: 4,
        log_segment_bytes: 64 << 10,
        // Nothing from memory: what is read comes from the damaged files.
        hot_bytes_max: 0,
        tree: firn_tree::TreeOptions {
            block_bytes: 256,
            slow_cache_bytes_max: 64 << 10,
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
fn write(engine: &Engine, scrapes: std::ops::Range<i64>) {
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
    let seen = Seen::read(&engine.snapshot(), &[matcher], TimeRange::ALL)?;
    for sample in seen.series.values().flatten() {
        let expected = (sample.ts / 15_000) as f64 * 0.1 + host as f64;
        assert_eq!(sample.value.to_bits(), expected.to_bits(), "a wrong value is served");
    }
    Ok(seen.sample_count())
}

/// Whether all that a host lacks is its newest samples.
fn ends_early(engine: &Engine, host: usize) -> bool {
    let matcher = Matcher::equal("instance", format!("host-{host}"));
    let seen = Seen::read(&engine.snapshot(), &[matcher], TimeRange::ALL).expect("a read");
    let samples: Vec<_> = seen.series.values().flatten().collect();
    samples.last().is_none_or(|last| last.ts / 15_000 + 1 == samples.len() as i64)
}

fn read_all(engine: &Engine) -> usize {
    (0..HOSTS).map(|host| read_host(engine, host).expect("a read")).sum()
}

/// A flipped bit in what was synced long ago: named with file and offset, rows before it are there,
/// no wrong value is served, and the server goes on.
#[test]
fn a_flipped_bit_in_the_log_is_reported_and_costs_what_stands_there() {
    for place in 0..40 {
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
    }
}

/// A flipped bit somewhere in a log with a delete in it: what was deleted shows again only if the
/// damage is named, what was written afterwards is never hidden, no wrong value is served.
#[test]
fn a_flipped_bit_in_a_logged_delete_is_reported() {
    let (mut shown, mut hidden) = (0, 0);
    for place in 0..200 {
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
        shown += u64::from(left > 3 * HOSTS);
        hidden += u64::from(recovery.deletes > 0 && left <= 3 * HOSTS);
        write(&engine, 6..8);
        assert_eq!(read_all(&engine), left + 2 * HOSTS, "byte {at}: it goes on");
    }
    assert!(shown > 0 && hidden > 0, "{shown} deletes were hit, {hidden} were not");
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
    let mut hurt = 0;
    for place in 0..20 {
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
        hurt += usize::from(failed > 0);
        write(&engine, SCRAPES..SCRAPES + 2);
    }
    assert!(hurt > 10, "the damage was met in {hurt} of 20 places");
}

/// A flipped bit in the manifest: repaired from its other copy, reported, nothing is missing.
#[test]
fn a_flipped_bit_in_the_manifest_costs_nothing() {
    for at in (0..400).step_by(7) {
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
    }
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

/// Data everywhere: log, memory's files, tables of both tiers, index and manifest on both, and what is kept of the slow
/// tier here. Every file as it lies there, with its path.
struct Filled {
    files: Vec<(String, Vec<u8>)>,
    objects: Vec<(String, Arc<[u8]>)>,
    now_ms: i64,
}

impl Filled {
    fn new() -> Filled {
        let sim = Sim::new(5);
        let engine = open(&sim).expect("opens");
        write(&engine, 0..SCRAPES);
        engine.flush().expect("a flush");
        sim.clock.advance(Duration::from_secs(6 * 3_600));
        while engine.step(Lane::Tree).expect("a step").is_some() {}
        write(&engine, SCRAPES..SCRAPES + 10);
        engine.flush().expect("a flush");
        while engine.step(Lane::Tree).expect("a step").is_some() {}
        write(&engine, SCRAPES + 10..ALL_SCRAPES as i64);
        read_all(&engine);
        engine.close(false).expect("closes");
        let bytes = |path: &String| sim.disk.bytes(path).expect("a file");
        let object = |key: &String| sim.bucket.bytes(key).expect("an object");
        Filled {
            files: sim.disk.files().iter().map(|path| (path.clone(), bytes(path))).collect(),
            objects: sim.bucket.keys().iter().map(|key| (key.clone(), object(key))).collect(),
            now_ms: sim.env().clock.now_ms(),
        }
    }

    /// A world in which all that is.
    fn world(&self, seed: u64) -> Sim {
        let sim = Sim::new(seed);
        let Env { disk, bucket, clock, .. } = sim.env();
        for (path, bytes) in &self.files {
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
        for (key, bytes) in &self.objects {
            bucket.put(key, Arc::clone(bytes), PutMode::Create).expect("put");
        }
        sim.clock.advance(Duration::from_millis((self.now_ms - clock.now_ms()) as u64));
        sim
    }
}

/// What a file is, by its path.
fn kind_of(is_slow: bool, path: &str) -> String {
    let what = path.split(['/', '-']).next().unwrap_or_default();
    let tier = if is_slow { "slow" } else { "fast" };
    format!("{tier} {what}")
}

const ALL_SCRAPES: usize = SCRAPES as usize + 20;

/// Flips a bit, zeroes, cuts, copies a stretch over another, or swaps two; somewhere before the zeros at the end.
fn hurt(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let used = bytes.iter().rposition(|&byte| byte != 0).map_or(1, |last| last + 1);
    let start = rng.below(used as u64) as usize;
    let len = (1 + rng.below(300) as usize).min(bytes.len() - start);
    let to = rng.below((bytes.len() - len) as u64 + 1) as usize;
    match rng.below(7) {
        0 => bytes[start..start + len].fill(0),
        1 => bytes.truncate(start),
        2 => bytes.copy_within(start..start + len, to),
        3 => (0..len).for_each(|idx| bytes.swap(start + idx, to + idx)),
        _ => bytes[start] ^= 1 << rng.below(8),
    }
}

/// Whatever is hit, wherever: no wrong value is ever served; what is missing is named by an error or by the check;
/// after a repair of a table everything passes, and everything that could be read before still can.
/// `FIRN_DAMAGE_COUNT=n` hits n places in place of 2,000.
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
    // By kind of file: damaged, named, refused to open with, repaired.
    let mut counts: BTreeMap<&str, [u64; 4]> = BTreeMap::new();
    for place in 0..count.unwrap_or(2_000u64) {
        let sim = filled.world(place);
        let mut rng = Rng::new(place);
        let kind = kinds[(place % kinds.len() as u64) as usize];
        let [damaged, found, refused, repaired] = counts.entry(kind).or_default();
        let (is_slow, path) = rng.pick(&places[kind]).clone();
        let mut has_changed = false;
        let change = |bytes: &mut Vec<u8>| {
            let before = bytes.clone();
            if !bytes.is_empty() {
                hurt(bytes, &mut rng);
            }
            has_changed = *bytes != before;
        };
        match is_slow {
            true => sim.bucket.damage(&path, change).expect("an object"),
            false => sim.disk.damage(&path, change).expect("a file"),
        }
        *damaged += u64::from(has_changed);
        sim.restart();
        let engine = match open(&sim) {
            Ok(engine) => engine,
            // The end of an index file, or both copies of something: nobody could tell what is missing.
            Err(e) => {
                assert!(e.to_string().contains(&path), "{path}: {e}");
                *refused += 1;
                continue;
            }
        };
        let before: Vec<Option<usize>> =
            (0..HOSTS).map(|host| read_host(&engine, host).ok()).collect();
        let is_whole = before.iter().all(|&host| host == Some(ALL_SCRAPES));
        let report = engine.check(true, &CancelToken::new(), &mut |_| ()).expect("a check");
        let is_named = !report.findings.is_empty();
        // A log that ends earlier looks like what a crash leaves: with nothing behind what is lost.
        let is_shorter_log =
            path.starts_with("log/") && (0..HOSTS).all(|host| ends_early(&engine, host));
        assert!(is_whole || is_named || is_shorter_log, "place {place}, {path}: {before:?}");
        let must_tell = path.starts_with("tables/") || path.starts_with("index/");
        assert!(is_named || !has_changed || !must_tell, "place {place}, {path}: no word");
        *found += u64::from(is_named);
        let is_rewritten = path.starts_with("tables/") || path.starts_with("index/");
        if is_rewritten && is_named {
            assert!(report.findings.iter().all(|finding| finding.is_repaired), "{report:?}");
            let again = engine.check(false, &CancelToken::new(), &mut |_| ()).expect("a check");
            // What opening has fetched stays told as long as the database is open.
            let is_left = again.findings.iter().any(|finding| !finding.is_repaired);
            assert!(!is_left, "place {place}, {path}: {again:?}");
            for (host, before) in before.iter().enumerate() {
                let after = read_host(&engine, host).expect("everything can be read");
                assert!(
                    before.is_none_or(|before| before == after),
                    "host {host}: {before:?} {after}"
                );
            }
            *repaired += 1;
        }
    }
    println!("{:14} {:>8} {:>8} {:>8} {:>8}", "file", "damaged", "named", "refused", "repaired");
    for (kind, [damaged, found, refused, repaired]) in &counts {
        println!("{kind:14} {damaged:>8} {found:>8} {refused:>8} {repaired:>8}");
        assert!(*damaged > 0, "{kind} was never damaged");
        // A cache misses it.
        let is_told = *kind != "fast slow";
        assert!(!is_told || found + refused > 0, "{kind}: damage was never told");
    }
}
