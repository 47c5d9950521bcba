//! Edge cases of the interface: full disks, sizes, failing starts, options out of range.

use std::sync::Arc;

use firn_env::{Clock, Disk, OpenMode};
use firn_log::{Append, EntryKind, EntryRef, Log, LogOptions, LogSetup, StreamId, SyncPolicy};
use firn_model::{CommitSeq, ErrorKind, LogPosition, Result, ShardId};
use firn_sim::{Operation, RecordingDisk};

use crate::world::{STREAM_COUNT, World, setup};

const SEGMENT_BYTES: u64 = 8 << 10;

fn started(world: &World, setup: LogSetup) -> Result<Log> {
    let log = world.open(setup)?;
    world.replay(&log)?;
    log.start()?;
    Ok(log)
}

fn append(log: &Log, payload_bytes: usize) -> Result<Append> {
    let payload = vec![7; payload_bytes];
    let entry =
        EntryRef { kind: EntryKind::Rows, shard: ShardId(0), seq: CommitSeq(1), payload: &payload };
    log.append(StreamId(0), log.tip(StreamId(0)).segment, &[entry])
}

/// On a full disk, appends continue in the present segment and are durable. The first append that
/// needs another segment is refused before any of it is kept. With free space, appends continue.
#[test]
fn a_full_disk_fails_append_until_space_is_free() {
    let world = World::new(1);
    let log = started(&world, setup(SEGMENT_BYTES, SyncPolicy::Always)).unwrap();
    world.sim.disk.set_capacity_bytes(STREAM_COUNT as u64 * SEGMENT_BYTES);
    let mut last = LogPosition(0);
    let refused = loop {
        match append(&log, 1_000) {
            Ok(Append::At(position)) => last = position,
            Ok(Append::Rotated) => panic!("there is no room for another segment"),
            Err(error) => break error,
        }
        log.commit(&[(StreamId(0), last)]).unwrap();
    };
    assert_eq!(*refused.kind(), ErrorKind::Unavailable);
    assert!(refused.to_string().contains("cannot create segment log/0/"), "{refused}");
    assert_eq!(log.durable_before(StreamId(0), last), last);
    assert!(log.end(StreamId(0)) >= last && log.end(StreamId(0)).0 < last.0 + 8);
    // A small append still fits.
    assert!(matches!(append(&log, 10), Ok(Append::At(_))));

    world.sim.disk.set_capacity_bytes(u64::MAX);
    assert_eq!(append(&log, 1_000).unwrap(), Append::Rotated);
    let Append::At(position) = append(&log, 1_000).unwrap() else { panic!("rotated twice") };
    log.commit(&[(StreamId(0), position)]).unwrap();
    assert_eq!(log.stats().failures, 0);
}

/// A failed sync fails its commit, the next append returns `Rotated`, and the log continues.
#[test]
fn a_failed_sync_fails_its_commit_only() {
    let world = World::new(2);
    let log = started(&world, setup(SEGMENT_BYTES, SyncPolicy::Always)).unwrap();
    let Append::At(good) = append(&log, 10).unwrap() else { panic!("the segment is empty") };
    log.commit(&[(StreamId(0), good)]).unwrap();
    world.sim.faults.fail_nth(Operation::Sync, 1);
    let Append::At(bad) = append(&log, 10).unwrap() else { panic!("the segment is not full") };
    let error = log.commit(&[(StreamId(0), bad)]).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unavailable);
    // The position stays failed, even after later commits.
    assert_eq!(append(&log, 10).unwrap(), Append::Rotated);
    let Append::At(later) = append(&log, 10).unwrap() else { panic!("rotated twice") };
    log.commit(&[(StreamId(0), later)]).unwrap();
    assert!(later > bad);
    assert!(log.commit(&[(StreamId(0), bad)]).is_err());
    let good_end = log.durable_before(StreamId(0), bad);
    assert!(good <= good_end && good_end < bad);
    assert_eq!(log.durable_before(StreamId(0), later), later);
}

#[test]
fn an_append_over_the_segment_size_is_too_large() {
    let world = World::new(3);
    let log = started(&world, setup(SEGMENT_BYTES, SyncPolicy::Always)).unwrap();
    let error = append(&log, SEGMENT_BYTES as usize).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::TooLarge);
    assert!(matches!(append(&log, 6 << 10), Ok(Append::At(_))));
    // Near the limit, an append either fits into the next segment or is too large.
    for payload_bytes in 7_000..7_200 {
        let mut tries = (0..2).map(|_| append(&log, payload_bytes));
        let decided = tries.any(|outcome| !matches!(outcome, Ok(Append::Rotated)));
        assert!(decided, "{payload_bytes} bytes rotate for ever");
    }
}

#[test]
fn a_failed_start_can_be_retried() {
    let world = World::new(4);
    let log = world.open(setup(SEGMENT_BYTES, SyncPolicy::Always)).unwrap();
    assert_eq!(*log.start().unwrap_err().kind(), ErrorKind::Internal, "not replayed");
    world.replay(&log).unwrap();
    for nth in 1..=3 {
        world.sim.faults.fail_nth(Operation::Preallocate, nth);
        assert!(log.start().unwrap_err().is_retriable());
    }
    log.start().unwrap();
    assert!(matches!(append(&log, 10), Ok(Append::At(_))));
    assert_eq!(*log.start().unwrap_err().kind(), ErrorKind::Internal, "started twice");
}

#[test]
fn segments_below_the_floor_are_purged() {
    let mut world = World::new(5);
    let log = started(&world, setup(SEGMENT_BYTES, SyncPolicy::Always)).unwrap();
    for _ in 0..500 {
        let position = world.append(&log, 200).unwrap();
        world.commit(&log, &[position]).unwrap();
    }
    let before = log.stats();
    assert!(before.segments > 6, "{before:?}");
    let ends: Vec<LogPosition> =
        (0..STREAM_COUNT as u16).map(|stream| log.end(StreamId(stream))).collect();
    log.purge(&ends).unwrap();
    let after = log.stats();
    assert_eq!((after.segments, after.bytes), (STREAM_COUNT as u64, 0));
    // A few files wait to be recycled.
    let files = world.sim.disk.files().len();
    assert!((STREAM_COUNT + 1..=5 * STREAM_COUNT).contains(&files), "{files}");
    assert_eq!(after.disk_bytes, files as u64 * SEGMENT_BYTES);
    let found = world.open(setup(SEGMENT_BYTES, SyncPolicy::Always)).unwrap();
    let (all, rest) =
        (found.replay_bytes(&[LogPosition(0); STREAM_COUNT]), found.replay_bytes(&ends));
    assert!(rest <= STREAM_COUNT as u64 * SEGMENT_BYTES && rest < all, "{rest} of {all}");
    log.remove_spares();
    let files = world.sim.disk.files().len();
    assert_eq!((files, log.stats().disk_bytes), (STREAM_COUNT, after.segments * SEGMENT_BYTES));
    // Restarts without appends do not accumulate files.
    drop(log);
    for _ in 0..3 {
        started(&world, setup(SEGMENT_BYTES, SyncPolicy::Always)).unwrap();
        assert_eq!(world.sim.disk.files().len(), files + STREAM_COUNT);
    }
}

/// A kill leaves a file with few entries until the next flush. It must not be of full length.
#[test]
fn killed_processes_leave_short_files_that_count_as_slack() {
    const WHOLE_BYTES: u64 = 256 << 10;
    let mut world = World::new(9);
    let made = setup(WHOLE_BYTES, SyncPolicy::Always);
    let bytes = |world: &World| -> u64 {
        let files = world.sim.disk.files();
        files.iter().map(|name| world.sim.disk.bytes(name).unwrap().len() as u64).sum()
    };
    // Without entries, the files of the process before are used again.
    for _ in 0..10 {
        started(&world, made.clone()).unwrap().prepare().unwrap();
        assert!(bytes(&world) <= STREAM_COUNT as u64 * (WHOLE_BYTES + (8 << 10)));
    }
    for _ in 0..40 {
        let log = started(&world, made.clone()).unwrap();
        let position = world.append(&log, 100).unwrap();
        world.commit(&log, &[position]).unwrap();
        log.prepare().unwrap();
    }
    let most = STREAM_COUNT as u64 * WHOLE_BYTES + 43 * (8 << 10);
    assert!(bytes(&world) <= most, "{} bytes of files", bytes(&world));
    let log = started(&world, made).unwrap();
    let stats = log.stats();
    assert!(log.has_closed_segments());
    assert!(stats.slack_bytes > 40 * (6 << 10), "{stats:?}");
    assert!(stats.bytes + stats.slack_bytes <= 41 * (8 << 10), "{stats:?}");
    // A flush frees them, even while the current segments are empty. The newest one with a header
    // stays, as the proof that the stream was not lost.
    let ends: Vec<_> = (0..STREAM_COUNT as u16).map(|stream| log.end(StreamId(stream))).collect();
    log.purge(&ends).unwrap();
    let stats = log.stats();
    assert_eq!((stats.slack_bytes, log.has_closed_segments()), (0, false));
    assert_eq!(log.held_bytes(), STREAM_COUNT as u64 * (8 << 10), "{stats:?}");
}

/// The sync of the record in a file that was made ahead fails. Before, the file was used again,
/// although its bytes are unknown after a failed sync.
#[test]
fn a_file_made_ahead_is_left_after_a_failed_sync() {
    let mut world = World::new(11);
    let log = started(&world, setup(SEGMENT_BYTES, SyncPolicy::Always)).unwrap();
    log.prepare().unwrap();
    let before = world.sim.disk.files();
    for _ in 0..20 {
        let position = world.append(&log, 100).unwrap();
        world.commit(&log, &[position]).unwrap();
    }
    world.sim.faults.fail_nth(Operation::Sync, 1);
    log.prepare().unwrap_err();
    log.prepare().unwrap();
    let after = world.sim.disk.files();
    let left: Vec<_> = before.iter().filter(|path| !after.contains(path)).collect();
    assert_eq!((left.len(), after.len()), (1, before.len()), "{before:?}, {after:?}");
    for _ in 0..20 {
        let position = world.append(&log, 100).unwrap();
        world.commit(&log, &[position]).unwrap();
    }
}

/// A full disk may have no room for a short file, but a whole one to recycle.
#[test]
fn a_start_on_a_full_disk_recycles_a_whole_file() {
    let mut world = World::new(10);
    let made = setup(256 << 10, SyncPolicy::Always);
    let log = started(&world, made.clone()).unwrap();
    log.prepare().unwrap();
    for _ in 0..20 {
        let position = world.append(&log, 100).unwrap();
        world.commit(&log, &[position]).unwrap();
    }
    drop(log);
    let files = world.sim.disk.files();
    let used = files.iter().map(|name| world.sim.disk.bytes(name).unwrap().len() as u64);
    world.sim.disk.set_capacity_bytes(used.sum());
    let log = started(&world, made).unwrap();
    append(&log, 10).unwrap();
}

/// A purged file becomes a later segment. Few files are created, none is zeroed, and no old entry
/// is replayed.
#[test]
fn purged_segments_are_recycled() {
    let mut world = World::new(7);
    let recording = RecordingDisk::new(Arc::new(world.sim.disk.clone()));
    let disk: Arc<dyn Disk> = Arc::new(recording.clone());
    let clock: Arc<dyn Clock> = Arc::new(world.sim.clock.clone());
    let made = setup(SEGMENT_BYTES, SyncPolicy::Always);
    let log = Log::open(disk, clock, made.clone(), false).unwrap();
    world.replay(&log).unwrap();
    log.start().unwrap();
    for _ in 0..400 {
        for _ in 0..20 {
            let position = world.append(&log, 200).unwrap();
            world.commit(&log, &[position]).unwrap();
        }
        world.purge(&log).unwrap();
    }
    let record = recording.take();
    let count = |operation| record.iter().filter(|record| record.operation == operation).count();
    let (created, recycled) = (count(Operation::Create), count(Operation::Rename));
    assert!(recycled > 3 * created, "{created} files created, {recycled} recycled");
    world.sim.restart();
    let log = world.open(made).unwrap();
    let replayed = world.replay(&log).unwrap();
    world.check(&replayed);
    for replayed in &replayed {
        assert_eq!((replayed.report.damage_count, &replayed.report.torn_tail), (0, &None));
    }
}

#[test]
fn other_stream_and_shard_counts_are_refused() {
    let mut world = World::new(6);
    let made = setup(SEGMENT_BYTES, SyncPolicy::Always);
    let log = started(&world, made.clone()).unwrap();
    let position = world.append(&log, 10).unwrap();
    log.commit(&[position]).unwrap();
    drop(log);
    for other in
        [LogSetup { stream_count: 4, ..made.clone() }, LogSetup { shard_count: 16, ..made.clone() }]
    {
        let log = world.open(other).unwrap();
        let error = log.replay(position.0, LogPosition(0), &mut |_| Ok(())).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("with 3 streams and 8 shards"), "{error}");
    }
    for wrong in [
        LogSetup { stream_count: 0, ..made.clone() },
        LogSetup { options: LogOptions { segment_bytes: 4095, ..made.options }, ..made.clone() },
    ] {
        assert_eq!(*world.open(wrong).unwrap_err().kind(), ErrorKind::Invalid);
    }
    world.open(made).unwrap();
}

#[test]
#[should_panic(expected = "an entry is of another stream")]
fn an_entry_of_another_stream_is_not_logged() {
    let world = World::new(6);
    let log = started(&world, setup(SEGMENT_BYTES, SyncPolicy::Always)).unwrap();
    let entry =
        EntryRef { kind: EntryKind::Rows, shard: ShardId(1), seq: CommitSeq(1), payload: &[] };
    let _ = log.append(StreamId(0), log.tip(StreamId(0)).segment, &[entry]);
}

/// Positions and numbers that no stream reaches are refused before any arithmetic on them.
#[test]
fn positions_and_numbers_out_of_range_are_refused() {
    let world = World::new(8);
    let log = world.open(setup(SEGMENT_BYTES, SyncPolicy::Always)).unwrap();
    for floor in [LogPosition(u64::MAX), LogPosition(u64::MAX / 2)] {
        let error = log.replay(StreamId(0), floor, &mut |_| Ok(())).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
    }
    world.sim.disk.open("log/0/18446744073709551615.log", OpenMode::Create).unwrap();
    let error = world.open(setup(SEGMENT_BYTES, SyncPolicy::Always)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
}

/// The log folder was lost, but the manifest kept its floors. New entries must not be below the
/// floor.
#[test]
fn new_positions_are_above_the_floor_when_the_log_is_lost() {
    let world = World::new(7);
    let floor = LogPosition(1_000_003);
    for expected in [0, 1] {
        let log = world.open(setup(SEGMENT_BYTES, SyncPolicy::Always)).unwrap();
        let mut entries = 0;
        for stream in 0..STREAM_COUNT as u16 {
            log.replay(StreamId(stream), floor, &mut |entry| {
                assert!(!entry.below_floor);
                entries += 1;
                Ok(())
            })
            .unwrap();
        }
        assert_eq!(entries, expected);
        log.start().unwrap();
        let Append::At(position) = append(&log, 10).unwrap() else { panic!("the segment is new") };
        assert!(position > floor);
        log.commit(&[(StreamId(0), position)]).unwrap();
    }
}
