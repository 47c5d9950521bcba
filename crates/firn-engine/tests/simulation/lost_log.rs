//! A log whose files are missing: when the database opens, because its disk is not mounted, or
//! because a program removed them, before or while the database is open. No acknowledged row
//! disappears without a report.

use std::sync::Arc;

use firn_engine::{Engine, EngineOptions, Lane, LogOptions, RecoveryProgress};
use firn_env::{Disk, OpenMode};
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

/// Log files are removed or replaced while the database is open, at rest, among writes, and after a
/// rotation. Everything written so far, and afterwards, survives the next crash. Before, rows were
/// acknowledged that no start could find.
#[test]
fn log_files_that_vanish_while_the_database_is_open_are_left() {
    let replace = |sim: &Sim, path: &str| {
        let bytes = sim.disk.bytes(path).expect("a file");
        remove(sim, &[path.to_owned()]);
        let file = sim.disk.open(path, OpenMode::Create).expect("another file");
        file.write_at(0, &bytes).expect("written");
        file.sync().expect("synced");
    };
    let all = |sim: &Sim| files(sim, "log/");
    let vanish: [&dyn Fn(&Sim); 4] = [
        &|sim| remove(sim, &all(sim)),
        &|sim| remove(sim, &files(sim, "log/1/")),
        &|sim| all(sim).iter().for_each(|path| replace(sim, path)),
        &|sim| remove(sim, &[all(sim).swap_remove(0)]),
    ];
    for (case, vanish) in vanish.iter().enumerate() {
        for rounds in [1, 2, 600] {
            let sim = Sim::new(5);
            let engine = open(&sim, false).expect("opens");
            (0..rounds).for_each(|round| write(&engine, 0..SERIES, 1_000 + round));
            let paths = files(&sim, "log/").len();
            assert!(rounds < 600 || paths > 2, "no segment was closed");
            vanish(&sim);
            engine.step(Lane::Log).expect("a step");
            write(&engine, 0..2 * SERIES, 2_000);
            while engine.step(Lane::Head).expect("a step").is_some() {}
            engine.step(Lane::Log).expect("a step");
            let made = files(&sim, "log/").len();
            for _ in 0..10 {
                engine.step(Lane::Log).expect("a step");
            }
            assert_eq!(files(&sim, "log/").len(), made, "nothing more is lost");
            write(&engine, 0..2 * SERIES, 3_000);
            let written = count(&engine);
            assert_eq!(written, SERIES * (rounds as usize + 4));
            drop(engine);
            sim.restart();
            let engine = open(&sim, false).expect("opens");
            assert_eq!(engine.stats().recovery.damage, [], "case {case}, {rounds} rounds");
            assert_eq!(count(&engine), written, "case {case}, {rounds} rounds");
        }
    }
}

/// The power fails before the flush that makes the lost rows durable: the next start reports them.
#[test]
fn a_crash_before_the_flush_of_lost_rows_is_reported() {
    let sim = Sim::new(6);
    let engine = open(&sim, false).expect("opens");
    write(&engine, 0..SERIES, 1_000);
    remove(&sim, &files(&sim, "log/"));
    engine.step(Lane::Log).expect("a step");
    write(&engine, 0..SERIES, 2_000);
    drop(engine);
    sim.restart();
    let engine = open(&sim, false).expect("opens");
    assert_eq!(engine.stats().recovery.damage.len(), 2, "one report for each stream");
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
