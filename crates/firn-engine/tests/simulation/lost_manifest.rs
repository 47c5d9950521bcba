//! A folder with the files of a database and without its manifest: no file is removed before a
//! manifest was read that does not name it. A manifest that vanishes from an open database is
//! written again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use firn_engine::{Engine, EngineOptions, Lane, LogOptions, RecoveryProgress};
use firn_env::{Disk, Env};
use firn_model::{CancelToken, Error, ErrorKind, Labels, Result, RowBatch};
use firn_sim::{Sim, SimBucket, SimDisk};

use crate::lost_log::count;

fn options() -> EngineOptions {
    EngineOptions {
        shard_count: 4,
        log: LogOptions { segment_bytes: 64 << 10, ..Default::default() },
        ..EngineOptions::default()
    }
}

fn open(env: Env) -> Result<Arc<Engine>> {
    Engine::open(env, options(), &RecoveryProgress::default())
}

fn write(engine: &Engine, ts: i64) {
    let labels = |idx: usize| {
        Labels::from_pairs([("__name__", "up"), ("instance", &format!("{idx}"))]).expect("labels")
    };
    let labels: Vec<Labels> = (0..40).map(labels).collect();
    let mut batch = RowBatch::default();
    for found in engine.resolve(&labels) {
        batch.push(found.expect("resolves"), ts, ts as f64);
    }
    engine.write(&mut batch).expect("a write");
}

/// Samples on the slow tier, in local tables, and in the log alone.
fn written(sim: &Sim) -> usize {
    let engine = open(sim.env()).expect("opens");
    write(&engine, 1_000);
    engine.flush().expect("a flush");
    sim.clock.advance(Duration::from_secs(6 * 3_600));
    while engine.step(Lane::Tree).expect("a step").is_some() {}
    assert!(sim.bucket.bytes("manifest").is_some(), "nothing was uploaded");
    let now = sim.env().clock.now_ms();
    write(&engine, now);
    engine.flush().expect("a flush");
    write(&engine, now + 1_000);
    count(&engine)
}

/// The files of a disk, with their bytes.
fn contents(disk: &SimDisk) -> BTreeMap<String, Vec<u8>> {
    let read = |path: String| (path.clone(), disk.bytes(&path).expect("a file"));
    disk.files().into_iter().map(read).collect()
}

fn disk_with(sim: &Sim, files: &BTreeMap<String, Vec<u8>>) -> SimDisk {
    let disk = SimDisk::new(sim.faults.clone());
    for (path, bytes) in files {
        let folder = path.rsplit_once('/').map_or("", |found| found.0);
        disk.create_dir(folder).expect("a folder");
        let file = disk.open(path, firn_env::OpenMode::Create).expect("a file");
        file.write_at(0, bytes).expect("written");
        file.sync().expect("synced");
        disk.sync_dir(folder).expect("synced");
    }
    disk.sync_dir("").expect("synced");
    disk
}

fn env_with(sim: &Sim, disk: &SimDisk, bucket: &SimBucket) -> Env {
    Env { disk: Arc::new(disk.clone()), bucket: Arc::new(bucket.clone()), ..sim.env() }
}

/// Without the manifest, every way to open the folder is refused and keeps every file, with and
/// without the slow tier, and whether tables, index files and log segments are there or only one of
/// them. Before, all were removed. With the manifest the database has all samples again.
#[test]
fn files_without_a_manifest_are_refused_and_kept() {
    let sim = Sim::new(51);
    let sample_count = written(&sim);
    let whole = contents(&sim.disk);
    let empty = SimBucket::new(sim.faults.clone());
    for kept in ["", "tables/", "index/", "log/"] {
        let is_kept = |path: &str| !path.starts_with("manifest/") && path.starts_with(kept);
        let mut files = whole.clone();
        files.retain(|path, _| is_kept(path));
        assert!(!files.is_empty(), "nothing in {kept}");
        for bucket in [&sim.bucket, &empty] {
            let disk = disk_with(&sim, &files);
            let env = env_with(&sim, &disk, bucket);
            let repairs = EngineOptions { repair_index: true, ..options() };
            let follows = EngineOptions { read_only: true, ..options() };
            let with = |options| Engine::open(env.clone(), options, &RecoveryProgress::default());
            let mut errors: Vec<Error> = vec![
                open(env.clone()).map(drop).expect_err("a start"),
                with(repairs).map(drop).expect_err("a repair"),
                Engine::restore(&env).map(drop).expect_err("a restore"),
            ];
            if kept != "index/" {
                errors.push(with(follows).map(drop).expect_err("a replica"));
            }
            for error in errors {
                assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{kept}: {error}");
                assert!(error.to_string().contains("the manifest is missing"), "{error}");
            }
            assert!(contents(&disk) == files, "{kept}: {:?}", disk.files());
        }
    }
    let disk = disk_with(&sim, &whole);
    let engine = open(env_with(&sim, &disk, &sim.bucket)).expect("opens");
    assert_eq!(count(&engine), sample_count);
}

/// The log is on a disk of its own, and the other disk was replaced.
#[test]
fn a_log_without_its_database_is_refused_and_kept() {
    let sim = Sim::new(52);
    written(&sim);
    let mut files = contents(&sim.disk);
    files.retain(|path, _| path.starts_with("log/"));
    let log = disk_with(&sim, &files);
    let disk = SimDisk::new(sim.faults.clone());
    let env = Env { log: Some(Arc::new(log.clone())), ..env_with(&sim, &disk, &sim.bucket) };
    for error in [
        open(env.clone()).map(drop).expect_err("a start"),
        Engine::restore(&env).map(drop).expect_err("a restore"),
    ] {
        assert!(error.to_string().contains("the manifest is missing"), "{error}");
    }
    assert!(contents(&log) == files, "{:?}", log.files());
}

/// A restore is interrupted at each of its changes. A plain start is refused, a further restore
/// succeeds. The folder of a replica is restored, too.
#[test]
fn an_interrupted_restore_is_repeated() {
    let sim = Sim::new(53);
    let engine = open(sim.env()).expect("opens");
    write(&engine, 1_000);
    engine.flush().expect("a flush");
    sim.clock.advance(Duration::from_secs(6 * 3_600));
    while engine.step(Lane::Tree).expect("a step").is_some() {}
    let sample_count = count(&engine);
    drop(engine);
    let restored = |disk: &SimDisk| {
        let env = env_with(&sim, disk, &sim.bucket);
        Engine::restore(&env).expect("restores").expect("the folder has no database");
        assert_eq!(count(&open(env).expect("opens")), sample_count);
        let names = disk.list("manifest").expect("a list");
        assert!(names.iter().all(|name| name.ends_with(".a") || name.ends_with(".b")), "{names:?}");
    };
    let (mut is_done, mut number, mut with_files) = (false, 0, 0);
    while !is_done {
        let disk = SimDisk::new(sim.faults.clone());
        let env = env_with(&sim, &disk, &sim.bucket);
        sim.faults.crash_at(sim.faults.change_count() + number);
        is_done = Engine::restore(&env).is_ok();
        sim.faults.clear();
        sim.restart();
        disk.restart();
        if !is_done && open(env.clone()).is_err_and(|e| *e.kind() == ErrorKind::Conflict) {
            with_files += usize::from(disk.files().iter().any(|path| path.ends_with(".seg")));
            restored(&disk);
        }
        number += 1;
    }
    assert!(with_files > 0, "no restore was interrupted after a download");

    let disk = SimDisk::new(sim.faults.clone());
    let env = env_with(&sim, &disk, &sim.bucket);
    let follows = EngineOptions { read_only: true, ..options() };
    drop(Engine::open(env.clone(), follows, &RecoveryProgress::default()).expect("a replica"));
    let empty = SimBucket::new(sim.faults.clone());
    for bucket in [&sim.bucket, &empty] {
        let files = contents(&disk);
        let error = open(env_with(&sim, &disk, bucket)).expect_err("a replica's folder");
        assert_eq!(error.kind(), &ErrorKind::Conflict, "{error}");
        assert!(contents(&disk) == files, "{:?}", disk.files());
    }
    restored(&disk);
}

/// The first start is interrupted at each of its changes. The next one succeeds.
#[test]
fn an_interrupted_first_start_is_repeated() {
    let (mut is_done, mut number) = (false, 0);
    while !is_done {
        let sim = Sim::new(54);
        sim.faults.crash_at(number);
        is_done = open(sim.env()).is_ok();
        sim.faults.clear();
        sim.restart();
        open(sim.env()).unwrap_or_else(|e| panic!("change {number}: {e}"));
        number += 1;
    }
    assert!(number > 10, "{number} changes");
}

/// The manifest is removed, or replaced by that of a backup, while the database is open. Before,
/// the next start found no database, or that of the backup.
#[test]
fn a_manifest_that_vanishes_while_the_database_is_open_is_written_again() {
    for is_replaced in [false, true] {
        let sim = Sim::new(55);
        let engine = open(sim.env()).expect("opens");
        write(&engine, 1_000);
        let mut backup = contents(&sim.disk);
        backup.retain(|path, _| path.starts_with("manifest/"));
        write(&engine, 2_000);
        engine.flush().expect("a flush");
        let paths: Vec<String> = contents(&sim.disk).into_keys().collect();
        for path in paths.iter().filter(|path| path.starts_with("manifest/")) {
            sim.disk.remove(path).expect("removed");
        }
        if is_replaced {
            for (path, bytes) in &backup {
                // A backup may have a higher number than the current file.
                let path = path.replace("manifest/0000000", "manifest/0000007");
                let file = sim.disk.open(&path, firn_env::OpenMode::Create).expect("a file");
                file.write_at(0, bytes).expect("written");
                file.sync().expect("synced");
            }
        }
        sim.disk.sync_dir("manifest").expect("synced");
        engine.step(Lane::Log).expect("a step");
        write(&engine, 3_000);
        engine.flush().expect("a flush");
        let written = count(&engine);
        assert_eq!(written, 120);
        drop(engine);
        sim.restart();
        let engine = open(sim.env()).expect("opens");
        assert_eq!(engine.stats().recovery.damage, []);
        assert_eq!(count(&engine), written);
    }
}

/// The ends of the records of a manifest file.
fn record_ends(bytes: &[u8]) -> Vec<usize> {
    let (mut at, mut ends) = (24, Vec::new());
    // The first edit of a start is empty.
    while let Some(header) = bytes.get(at..at + 16).filter(|header| **header != [0; 16]) {
        let len = u32::from_le_bytes(header[..4].try_into().expect("four bytes")) as usize;
        at += 16 + len;
        ends.push(at);
    }
    ends
}

/// Both copies of the manifest lose the same last records, as no power failure leaves them. A cut
/// refuses the start. After zeros, rows that the log still has are replayed; if the log was purged
/// since, or a table that the older state names was removed, the loss is reported: nothing is
/// missing silently.
#[test]
fn records_that_both_copies_lost_are_replayed_or_reported() {
    let sim = Sim::new(52);
    let engine = open(sim.env()).expect("opens");
    let now = sim.env().clock.now_ms();
    for round in 0..6 {
        // More than a segment of the log.
        for step in 0..400 {
            write(&engine, now + (round - 6) * 400_000 + step * 1_000);
        }
        engine.flush().expect("a flush");
        while engine.step(Lane::Tree).expect("a step").is_some() {}
    }
    let sample_count = count(&engine);
    drop(engine);
    let whole = contents(&sim.disk);
    let newest = whole.keys().rfind(|path| path.starts_with("manifest/")).expect("a manifest");
    let ends = record_ends(&whole[newest]);
    assert!(ends.len() > 6, "{ends:?}");
    let (mut reported, mut replayed) = (0, 0);
    for &end in &ends[..ends.len() - 1] {
        for zeroes in [false, true] {
            let mut files = whole.clone();
            let copies = files.iter_mut().filter(|(path, _)| path.starts_with("manifest/"));
            for (_, bytes) in copies {
                match zeroes {
                    true => bytes[end..].fill(0),
                    false => bytes.truncate(end),
                }
            }
            let disk = disk_with(&sim, &files);
            let opened = open(env_with(&sim, &disk, &sim.bucket));
            if !zeroes {
                let error = opened.map(drop).expect_err("both copies are cut");
                assert!(error.to_string().contains("the file was cut"), "{error}");
                assert!(contents(&disk) == files, "files have changed");
                continue;
            }
            let engine = opened.expect("opens");
            let is_reported = !engine.stats().recovery.damage.is_empty()
                || !engine
                    .check(false, &CancelToken::new(), &mut |_| ())
                    .expect("a check")
                    .findings
                    .is_empty();
            let is_whole = !is_reported && count(&engine) == sample_count;
            assert!(is_reported || is_whole, "cut at {end}: samples are missing silently");
            reported += usize::from(is_reported);
            replayed += usize::from(is_whole);
        }
    }
    assert!(reported > 0 && replayed > 0, "{reported} reported, {replayed} replayed");
}
