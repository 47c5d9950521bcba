//! A log whose files are missing when the database opens: its disk is not mounted, or a program
//! removed them. No acknowledged row disappears without a report.

use std::sync::Arc;

use firn_engine::{Engine, EngineOptions, Lane, LogOptions, RecoveryProgress};
use firn_env::Disk;
use firn_model::{Labels, Result, RowBatch, TimeRange};
use firn_sim::{ObservedSamples, Sim};

const SERIES: usize = 40;

fn open(sim: &Sim, forget_lost_log: bool) -> Result<Arc<Engine>> {
    let options = EngineOptions {
        shard_count: 4,
        stream_count: Some(2),
        forget_lost_log,
        log: LogOptions { segment_bytes: 64 << 10, ..Default::default() },
        ..EngineOptions::default()
    };
    Engine::open(sim.env(), options, &RecoveryProgress::default())
}

/// Writes a sample of each of `series` at `ts`.
fn write(engine: &Engine, series: std::ops::Range<usize>, ts: i64) {
    let labels = |idx: usize| {
        Labels::from_pairs([("__name__", "up"), ("job", "lost"), ("instance", &format!("{idx}"))])
            .expect("valid labels")
    };
    let labels: Vec<Labels> = series.map(labels).collect();
    let mut batch = RowBatch::default();
    for found in engine.resolve(&labels) {
        batch.push(found.expect("resolves"), ts, ts as f64);
    }
    engine.write(&mut batch).expect("a write");
}

pub(crate) fn count(engine: &Engine) -> usize {
    let seen = ObservedSamples::read(&engine.snapshot(), &[], TimeRange::ALL).expect("a read");
    seen.sample_count()
}

/// The files of `folder`.
fn files(sim: &Sim, folder: &str) -> Vec<String> {
    sim.disk.files().into_iter().filter(|path| path.starts_with(folder)).collect()
}

fn remove(sim: &Sim, paths: &[String]) {
    assert!(!paths.is_empty(), "nothing to remove");
    for path in paths {
        sim.disk.remove(path).expect("removed");
    }
    let mut folders: Vec<&str> =
        paths.iter().filter_map(|path| Some(path.rsplit_once('/')?.0)).collect();
    folders.dedup();
    folders.iter().for_each(|folder| sim.disk.sync_dir(folder).expect("synced"));
}

/// Flushed samples, and later ones that only the log has.
fn written(sim: &Sim) -> usize {
    let engine = open(sim, false).expect("opens");
    write(&engine, 0..SERIES, 1_000);
    engine.flush().expect("a flush");
    write(&engine, 0..SERIES, 2_000);
    write(&engine, SERIES..2 * SERIES, 2_000);
    count(&engine)
}

/// Without its log a database does not open, whether all streams or one are missing. With
/// `forget_lost_log` it has all rows of the tables and of the other stream, reports the loss, and
/// continues; the next start is a usual one.
#[test]
fn a_missing_log_is_refused_until_its_loss_is_accepted() {
    for folder in ["log/", "log/0/", "log/1/"] {
        let sim = Sim::new(1);
        let all = written(&sim);
        remove(&sim, &files(&sim, folder));
        for _ in 0..2 {
            let error = open(&sim, false).expect_err("the log is missing").to_string();
            assert!(
                error.contains(folder.trim_end_matches('/')) && error.contains("--forget-lost-log"),
                "{error}"
            );
        }
        let engine = open(&sim, true).expect("opens without it");
        let recovery = engine.stats().recovery;
        let stream_count = if folder == "log/" { 2 } else { 1 };
        assert_eq!(recovery.damage.len(), stream_count, "{recovery:?}");
        assert!(recovery.damage.iter().all(|found| found.is_in_log), "{recovery:?}");
        let left = count(&engine);
        assert!((SERIES..all).contains(&left), "{folder}: {left} of {all}");
        assert_eq!(left == SERIES, stream_count == 2, "the other stream is complete");
        write(&engine, 0..2 * SERIES, 3_000);
        drop(engine);
        sim.restart();
        let engine = open(&sim, false).expect("opens as usual");
        assert_eq!(engine.stats().recovery.damage, [], "{folder}");
        assert_eq!(count(&engine), left + 2 * SERIES, "{folder}");
    }
}

/// A database that was never written, or whose number of streams changes, misses no log.
#[test]
fn a_log_that_was_never_started_is_not_missed() {
    let sim = Sim::new(2);
    written(&sim);
    for stream_count in [1, 4, 3] {
        let options = EngineOptions { stream_count: Some(stream_count), ..Default::default() };
        let engine = Engine::open(sim.env(), options, &RecoveryProgress::default());
        assert_eq!(engine.expect("opens").stats().recovery.damage, []);
    }
}

/// The newest segment is removed, emptied or filled with zeros, and the file that was made ahead of
/// it is left. That is reported: before the first flush, behind a segment that is below the floor,
/// and after a start.
#[test]
fn a_missing_newest_segment_is_reported() {
    let lost: [fn(&Sim, &str); 4] = [
        |sim, path| remove(sim, &[path.to_owned()]),
        |sim, path| sim.disk.damage(path, Vec::clear).expect("emptied"),
        |sim, path| sim.disk.damage(path, |bytes| bytes.fill(0)).expect("zeroed"),
        |sim, path| sim.disk.damage(path, |bytes| bytes[1_024..].fill(0)).expect("zeroed"),
    ];
    for case in 0..16 {
        let (is_flushed, is_reopened) = (case % 2 > 0, case / 2 % 2 > 0);
        let lose = lost[case / 4];
        let sim = Sim::new(3);
        let mut engine = open(&sim, false).expect("opens");
        if is_flushed {
            write(&engine, 0..SERIES, 1_000);
            engine.flush().expect("a flush");
        }
        if is_reopened {
            drop(engine);
            sim.restart();
            engine = open(&sim, false).expect("opens again");
        }
        // Makes the next segments, and records there that the current ones have durable rows.
        while engine.step(Lane::Head).expect("a step").is_some() {}
        write(&engine, 0..SERIES, 2_000);
        if case / 4 > 0 {
            while engine.step(Lane::Head).expect("a step").is_some() {}
        }
        drop(engine);
        let is_used =
            |path: &String| sim.disk.bytes(path).is_ok_and(|bytes| bytes.starts_with(b"FIRNLOG"));
        let mut used: Vec<String> = files(&sim, "log/0/").into_iter().filter(is_used).collect();
        used.sort_by_key(|path| path.len());
        lose(&sim, &used[used.len() - 1]);
        let engine = open(&sim, false).expect("opens");
        let recovery = engine.stats().recovery;
        assert_eq!(recovery.damage.len(), 1, "{case}: {recovery:?}");
        let what = if case / 4 < 3 { "segment is missing" } else { "bytes are damaged" };
        assert!(recovery.damage[0].what.contains(what), "{case}: {recovery:?}");
    }
}

/// The definitions of all series are destroyed. The later rows, which are whole, cannot be shown
/// without them; they are counted.
#[test]
fn rows_without_their_definitions_are_counted() {
    let sim = Sim::new(4);
    let engine = open(&sim, false).expect("opens");
    write(&engine, 0..SERIES, 1_000);
    // A new segment begins with whole rows.
    drop(engine);
    sim.restart();
    let engine = open(&sim, false).expect("opens");
    write(&engine, 0..SERIES, 2_000);
    drop(engine);
    for stream in 0..2 {
        let path = format!("log/{stream}/1.log");
        sim.disk.damage(&path, |bytes| bytes[1_024..1_100].fill(7)).expect("damaged");
    }
    let engine = open(&sim, false).expect("opens");
    let recovery = engine.stats().recovery;
    assert_eq!((count(&engine), recovery.samples_lost), (0, SERIES as u64), "{recovery:?}");
}
