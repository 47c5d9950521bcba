//! Damaged files: reported by name, never served, and the rest goes on.

use std::sync::Arc;
use std::time::Duration;

use firn_engine::{Engine, EngineOptions, Lane, RecoveryProgress};
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
        tree: firn_tree::TreeOptions { block_bytes: 256, ..Default::default() },
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

/// Data everywhere: log, memory's files, tables of both tiers, index and manifest on both.
fn filled() -> Sim {
    let sim = Sim::new(5);
    let engine = open(&sim).expect("opens");
    write(&engine, 0..SCRAPES);
    engine.flush().expect("a flush");
    sim.clock.advance(Duration::from_secs(6 * 3_600));
    while engine.step(Lane::Tree).expect("a step").is_some() {}
    write(&engine, SCRAPES..SCRAPES + 10);
    engine.flush().expect("a flush");
    while engine.step(Lane::Tree).expect("a step").is_some() {}
    write(&engine, SCRAPES + 10..SCRAPES + 12);
    sim
}

const ALL_SCRAPES: usize = SCRAPES as usize + 12;

/// Flips a bit, zeroes, cuts, or copies a stretch over another.
fn hurt(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let start = rng.below(bytes.len() as u64) as usize;
    let end = (start + 1 + rng.below(300) as usize).min(bytes.len());
    match rng.below(6) {
        0 => bytes[start..end].fill(0),
        1 => bytes.truncate(start),
        2 => {
            let to = rng.below((bytes.len() - (end - start)) as u64 + 1) as usize;
            bytes.copy_within(start..end, to);
        }
        _ => bytes[start] ^= 1 << rng.below(8),
    }
}

/// Whatever is hit, wherever: no wrong value is ever served; what is missing is named by an error or by the check;
/// after a repair of a table everything passes, and everything that could be read before still can.
/// `FIRN_DAMAGE_COUNT=n` hits n places in place of 2,000.
#[test]
fn invariant_5_damage_of_any_file_is_found_and_costs_what_was_hit() {
    let count = std::env::var("FIRN_DAMAGE_COUNT").ok().and_then(|n| n.parse().ok());
    let (mut found, mut refused, mut repaired) = (0, 0, 0);
    for place in 0..count.unwrap_or(2_000u64) {
        let sim = filled();
        let mut rng = Rng::new(place);
        let files = sim.disk.files();
        let mut places: Vec<(bool, String)> = files.into_iter().map(|file| (false, file)).collect();
        places.extend(sim.bucket.keys().into_iter().map(|key| (true, key)));
        let (is_slow, path) = rng.pick(&places).clone();
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
        sim.restart();
        let engine = match open(&sim) {
            Ok(engine) => engine,
            // The end of an index file, or both copies of something: nobody could tell what is missing.
            Err(e) => {
                assert!(e.to_string().contains(&path), "{path}: {e}");
                refused += 1;
                continue;
            }
        };
        let before: Vec<Option<usize>> =
            (0..HOSTS).map(|host| read_host(&engine, host).ok()).collect();
        let is_whole = before.iter().all(|&host| host == Some(ALL_SCRAPES));
        let report = engine.check(true, &CancelToken::new(), &mut |_| ()).expect("a check");
        let is_named = !report.findings.is_empty();
        // What stands behind the end of a log looks like what a crash leaves.
        let is_torn_tail =
            path.starts_with("log/") && !engine.stats().recovery.torn_tails.is_empty();
        assert!(is_whole || is_named || is_torn_tail, "place {place}, {path}: {before:?}");
        // An index file that does not open was fetched from the slow tier by then.
        let must_tell = path.starts_with("tables/") || (is_slow && path.starts_with("index/"));
        assert!(is_named || !has_changed || !must_tell, "place {place}, {path}: no word");
        found += u64::from(is_named);
        if path.starts_with("tables/") && is_named {
            assert!(report.findings.iter().all(|finding| finding.is_repaired), "{report:?}");
            let again = engine.check(false, &CancelToken::new(), &mut |_| ()).expect("a check");
            assert!(again.findings.is_empty(), "place {place}, {path}: {again:?}");
            for (host, before) in before.iter().enumerate() {
                let after = read_host(&engine, host).expect("everything can be read");
                assert!(
                    before.is_none_or(|before| before == after),
                    "host {host}: {before:?} {after}"
                );
            }
            repaired += 1;
        }
    }
    println!("{found} found, {refused} refused, {repaired} repaired");
    assert!(found > 0 && repaired > 0);
}
