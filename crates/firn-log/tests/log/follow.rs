//! Followers: every committed entry once, in order, across purges, failing disks, kills and power
//! losses, as long as the log is held for them.

use firn_log::{FollowReport, Follower, Log, LogSetup, StreamId, SyncPolicy};
use firn_model::{Error, ErrorKind, LogPosition, Result};
use firn_sim::Operation;

use crate::world::{Fate, STREAM_COUNT, World, seeds, setup};

/// The followers of all streams, and the position that each has stored.
#[derive(Debug, Default)]
struct Reading {
    stored: [LogPosition; STREAM_COUNT],
    /// The entries that it had read then.
    stored_count: [usize; STREAM_COUNT],
    /// Per stream, indexes of the model's records, as they were yielded.
    yielded: [Vec<usize>; STREAM_COUNT],
    reports: FollowReport,
}

impl Reading {
    fn followers(&self) -> Vec<Follower> {
        let streams = (0u16..).zip(self.stored);
        streams.map(|(stream, position)| Follower::new(StreamId(stream), position)).collect()
    }

    /// Reads `follower` on, for up to `count` entries.
    fn read(
        &mut self,
        world: &World,
        log: &Log,
        follower: &mut Follower,
        count: u64,
    ) -> Result<()> {
        let stream = usize::from(follower.stream().0);
        let (records, yielded) = (&world.streams[stream].records, &mut self.yielded[stream]);
        let (mut left, began) = (count, follower.position());
        let report = log.follow(follower, &mut |entry| {
            assert_eq!(entry.is_before, entry.position <= began);
            let is_it = |record: &&crate::world::Record| {
                (record.kind, record.shard, record.seq) == (entry.kind, entry.shard, entry.seq)
                    && record.payload == entry.payload
                    && entry.position <= record.position
            };
            let from = if entry.is_before { 0 } else { yielded.last().map_or(0, |last| last + 1) };
            let idx = from
                + records[from..]
                    .iter()
                    .position(|record| is_it(&record))
                    .unwrap_or_else(|| panic!("stream {stream}: unexpected {entry:?}"));
            if !entry.is_before {
                yielded.push(idx);
                left -= 1;
            }
            Ok(left > 0)
        })?;
        self.reports.missing_bytes += report.missing_bytes;
        self.reports.damaged_bytes += report.damaged_bytes;
        assert!(report.is_at_end || left == 0);
        Ok(())
    }

    /// Forgets the entries that were read and not stored, as a kill does.
    fn rewind(&mut self, ends: &[LogPosition]) {
        for (stream, yielded) in self.yielded.iter_mut().enumerate() {
            // A segment without an entry may be lost, and its positions are used again.
            self.stored[stream] = self.stored[stream].min(ends[stream]);
            yielded.truncate(self.stored_count[stream]);
        }
    }

    fn store(&mut self, follower: &Follower) {
        let stream = usize::from(follower.stream().0);
        self.stored[stream] = follower.position();
        self.stored_count[stream] = self.yielded[stream].len();
    }

    /// Every record that is safe was yielded once, and none that a restart lost.
    fn check(&self, world: &World) {
        for (model, yielded) in world.streams.iter().zip(&self.yielded) {
            let mut is_there = vec![false; model.records.len()];
            yielded.iter().for_each(|&idx| is_there[idx] = true);
            assert!(yielded.is_sorted(), "out of order");
            for (record, is_there) in model.records.iter().zip(is_there) {
                match record.fate {
                    Fate::Safe => assert!(is_there, "not yielded: {record:?}"),
                    Fate::Failed | Fate::Absent => {
                        assert!(!is_there, "yielded, though not committed: {record:?}");
                    }
                    Fate::Maybe => {}
                }
            }
        }
    }
}

#[test]
fn followers_see_every_committed_entry_once() {
    for seed in seeds(300_000_000, 400) {
        many_lives(&mut World::new(seed), false);
    }
}

#[test]
fn followers_see_every_committed_entry_once_on_failing_disks() {
    for seed in seeds(400_000_000, 400) {
        many_lives(&mut World::new(seed), true);
    }
}

fn many_lives(world: &mut World, with_failures: bool) {
    let mut reading = Reading::default();
    for _ in 0..5 {
        let faults = world.sim.faults.clone();
        faults.clear();
        if world.rng.chance(0.6) {
            let operations = world.rng.below(120);
            faults.crash_at(faults.change_count() + operations);
        }
        if with_failures {
            for kind in [Operation::Write, Operation::Sync, Operation::Create] {
                let rate = [0.0, 0.02, 0.3][world.rng.below(3) as usize];
                faults.set_rate(kind, rate);
            }
        }
        let segment_bytes = *world.rng.pick(&[4 << 10, 8 << 10, 32 << 10]);
        let steps = world.rng.below(100);
        let outcome = live(world, &mut reading, setup(segment_bytes, SyncPolicy::Always), steps);
        if let Err(error) = outcome {
            let expected = matches!(error.kind(), ErrorKind::Closed | ErrorKind::Unavailable);
            assert!(expected, "{error}");
        }
        if world.sim.faults.is_off() || world.rng.chance(0.5) {
            world.sim.restart();
        }
    }
    world.sim.faults.clear();
    live(world, &mut reading, setup(8 << 10, SyncPolicy::Always), 20).unwrap();
    reading.check(world);
    assert_eq!((reading.reports.missing_bytes, reading.reports.damaged_bytes), (0, 0));
}

/// Opens, works and reads for some steps, reads the rest if the disk works.
fn live(world: &mut World, reading: &mut Reading, setup: LogSetup, steps: u64) -> Result<()> {
    let log = world.open(setup)?;
    log.hold(&reading.stored, u64::MAX);
    let replayed = world.replay(&log)?;
    log.start()?;
    let held: Vec<Vec<Fate>> = world
        .streams
        .iter()
        .map(|model| model.records.iter().map(|record| record.fate).collect())
        .collect();
    world.settle(&replayed);
    // The replay starts at the floor; entries below it stay as they were, even if a purged segment
    // is back.
    for (model, held) in world.streams.iter_mut().zip(held) {
        for (record, fate) in model.records.iter_mut().zip(held) {
            if record.position <= model.floor {
                record.fate = if fate == Fate::Safe { fate } else { Fate::Absent };
            }
        }
    }
    reading.rewind(&ends(&log));
    let mut followers = reading.followers();
    let mut waiting = [None; STREAM_COUNT];
    for _ in 0..steps {
        let outcome = match world.rng.below(20) {
            0 => log.prepare(),
            1 => world.purge(&log),
            2 => {
                followers.iter().for_each(|follower| reading.store(follower));
                log.hold(&reading.stored, u64::MAX);
                Ok(())
            }
            3 => {
                let stream = world.rng.below(STREAM_COUNT as u64) as usize;
                let position = followers[stream].position();
                followers[stream].seek(position);
                Ok(())
            }
            4..8 => {
                let (stream, count) =
                    (world.rng.below(STREAM_COUNT as u64) as usize, 1 + world.rng.below(20));
                reading.read(world, &log, &mut followers[stream], count)
            }
            8..13 => {
                let positions: Vec<_> = waiting.iter_mut().filter_map(Option::take).collect();
                world.commit(&log, &positions)
            }
            _ => world.append(&log, 500).map(|(stream, position)| {
                waiting[usize::from(stream.0)] = Some((stream, position));
            }),
        };
        match outcome {
            Err(error) if *error.kind() == ErrorKind::Closed => return Err(error),
            Err(error) if error.is_retriable() => {}
            outcome => outcome?,
        }
    }
    let positions: Vec<_> = waiting.iter_mut().filter_map(Option::take).collect();
    let _ = world.commit(&log, &positions);
    for follower in &mut followers {
        reading.read(world, &log, follower, u64::MAX)?;
        reading.store(follower);
    }
    Ok(())
}

/// A log of one world with `count` committed entries of about 1 KiB in each stream.
fn filled(world: &mut World) -> Log {
    let log = world.open(setup(8 << 10, SyncPolicy::Always)).unwrap();
    world.replay(&log).unwrap();
    log.start().unwrap();
    for _ in 0..300 {
        let position = world.append(&log, 2_000).unwrap();
        world.commit(&log, &[position]).unwrap();
    }
    log
}

fn ends(log: &Log) -> Vec<LogPosition> {
    (0..STREAM_COUNT as u16).map(|stream| log.end(StreamId(stream))).collect()
}

#[test]
fn segments_below_the_floor_stay_while_a_follower_needs_them() {
    let mut world = World::new(1);
    let log = filled(&mut world);
    let live_bytes = log.stats().bytes;
    log.hold(&[LogPosition(0); STREAM_COUNT], u64::MAX);
    log.purge(&ends(&log)).unwrap();
    assert_eq!(log.stats().bytes, 0, "a recovery needs nothing");
    assert!(log.held_bytes() > live_bytes / 2, "{} of {live_bytes}", log.held_bytes());
    // A restart keeps them, too, and recycles none.
    drop(log);
    let floors = world.streams.iter_mut().map(|model| {
        model.floor = model.records.last().map_or(LogPosition(0), |record| record.position);
    });
    floors.for_each(drop);
    let log = world.open(setup(8 << 10, SyncPolicy::Always)).unwrap();
    log.hold(&[LogPosition(0); STREAM_COUNT], u64::MAX);
    world.replay(&log).unwrap();
    log.start().unwrap();
    for _ in 0..100 {
        let position = world.append(&log, 2_000).unwrap();
        world.commit(&log, &[position]).unwrap();
    }
    let mut reading = Reading::default();
    for mut follower in reading.followers() {
        reading.read(&world, &log, &mut follower, u64::MAX).unwrap();
    }
    reading.check(&world);
    log.hold(&ends(&log), u64::MAX);
    log.purge(&ends(&log)).unwrap();
    assert_eq!(log.held_bytes(), 0);
}

/// The limit is one of files, as the disk has them: each restart closes a file with few entries.
#[test]
fn files_that_only_followers_need_are_bounded() {
    let mut world = World::new(3);
    let made = setup(256 << 10, SyncPolicy::Always);
    let open = |world: &mut World| {
        let log = world.open(made.clone()).unwrap();
        log.hold(&[LogPosition(0); STREAM_COUNT], u64::MAX);
        world.replay(&log).unwrap();
        log.start().unwrap();
        world.is_started = true;
        log
    };
    for _ in 0..90 {
        let log = open(&mut world);
        let position = world.append(&log, 100).unwrap();
        world.commit(&log, &[position]).unwrap();
    }
    // Nothing is written since the start.
    let log = open(&mut world);
    log.purge(&ends(&log)).unwrap();
    assert!(log.held_bytes() >= 90 * (8 << 10), "{}", log.held_bytes());
    let limit = STREAM_COUNT as u64 * (64 << 10);
    log.hold(&[LogPosition(0); STREAM_COUNT], limit);
    log.purge(&ends(&log)).unwrap();
    assert_eq!(log.held_bytes(), limit);
    // Once they are read, only the proof of the stream is kept.
    log.hold(&ends(&log), limit);
    log.purge(&ends(&log)).unwrap();
    assert_eq!(log.held_bytes(), STREAM_COUNT as u64 * (8 << 10));
}

#[test]
fn a_follower_of_a_dropped_segment_continues_with_the_oldest_and_reports_the_gap() {
    let mut world = World::new(2);
    let log = filled(&mut world);
    let mut reading = Reading::default();
    let mut followers = reading.followers();
    for follower in &mut followers {
        reading.read(&world, &log, follower, 2).unwrap();
    }
    log.hold(&[], u64::MAX);
    log.purge(&ends(&log)).unwrap();
    // The files are overwritten.
    for _ in 0..300 {
        let position = world.append(&log, 2_000).unwrap();
        world.commit(&log, &[position]).unwrap();
    }
    for follower in &mut followers {
        reading.read(&world, &log, follower, u64::MAX).unwrap();
    }
    assert!(reading.reports.missing_bytes > 0);
    let last = |stream: usize| reading.yielded[stream].last().copied();
    for (stream, model) in world.streams.iter().enumerate() {
        assert_eq!(last(stream), Some(model.records.len() - 1), "the newest entry is there");
    }
}

#[test]
fn damage_costs_a_block_and_restarts_the_payloads() {
    let mut world = World::new(3);
    let log = filled(&mut world);
    let name = world.sim.disk.files().into_iter().find(|name| name.starts_with("log/0/"));
    let name = name.expect("a segment");
    world.sim.disk.damage(&name, |bytes| bytes[1_100] ^= 1).unwrap();
    let (mut restarts, mut follower) = (0, Follower::new(StreamId(0), LogPosition(0)));
    let report = log
        .follow(&mut follower, &mut |entry| {
            restarts += u32::from(entry.restarts);
            Ok::<bool, Error>(true)
        })
        .unwrap();
    assert!(report.damaged_bytes > 0 && report.is_at_end);
    let segments = log.stats().segments;
    assert!(restarts > 1 && u64::from(restarts) <= segments + 1, "{restarts} of {segments}");
}
