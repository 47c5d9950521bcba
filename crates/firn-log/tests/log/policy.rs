//! What the sync policies promise.

use std::time::Duration;

use firn_log::{Log, LogSetup, StreamId, SyncPolicy};
use firn_model::ErrorKind;
use firn_sim::Operation;

use crate::world::{Fate, STREAM_COUNT, World, options, seeds};

#[test]
fn a_killed_process_loses_nothing_whatever_the_policy() {
    for seed in seeds(0, 50) {
        for sync in [SyncPolicy::Always, SyncPolicy::IntervalMs(10), SyncPolicy::Never] {
            let mut world = World::new(seed);
            for _ in 0..4 {
                live(&mut world, options(8 << 10, sync), 40);
            }
        }
    }
}

/// The power goes; nothing is durable but what rotations and asked-for syncs made so. What is left
/// of each stream is its beginning, and nothing is called damaged.
#[test]
fn a_power_loss_costs_the_lazy_policies_a_tail() {
    let mut lost = 0;
    for seed in seeds(0, 300) {
        let mut world = World::new(seed);
        let options = options(8 << 10, SyncPolicy::Never);
        live(&mut world, options.clone(), 60);
        world.sim.restart();
        let log = world.open(options).unwrap();
        let replayed = world.replay(&log).unwrap();
        for (model, replayed) in world.streams.iter().zip(&replayed) {
            assert_eq!(replayed.report.damage_count, 0);
            assert!(replayed.found.iter().copied().eq(0..replayed.found.len()), "a gap");
            lost += model.records.len() - replayed.found.len();
        }
    }
    assert!(lost > 0, "the simulated disk keeps everything");
}

#[test]
fn an_asked_for_sync_makes_everything_durable() {
    for seed in seeds(0, 50) {
        let mut world = World::new(seed);
        let options = options(8 << 10, SyncPolicy::Never);
        let log = world.open(options.clone()).unwrap();
        world.replay(&log).unwrap();
        log.start().unwrap();
        for _ in 0..20 {
            world.append(&log, 500).unwrap();
        }
        log.sync().unwrap();
        for record in world.streams.iter_mut().flat_map(|stream| &mut stream.records) {
            record.fate = Fate::Safe;
        }
        world.sim.restart();
        let log = world.open(options).unwrap();
        world.check(&world.replay(&log).unwrap());
    }
}

/// What was acknowledged without a sync is lost by one that fails. Whoever asks for a sync is told, until it is kept elsewhere.
#[test]
fn a_sync_that_failed_is_told_until_the_floor_has_passed_what_it_lost() {
    for sync in [SyncPolicy::Never, SyncPolicy::IntervalMs(1 << 40)] {
        let mut world = World::new(1);
        let log = world.open(options(8 << 10, sync)).unwrap();
        world.replay(&log).unwrap();
        log.start().unwrap();
        let first = world.append(&log, 100).unwrap();
        log.commit(&[first]).unwrap();
        world.sim.faults.fail_nth(Operation::Sync, 1);
        for _ in 0..2 {
            assert_eq!(*log.sync().unwrap_err().kind(), ErrorKind::Unavailable);
            assert!(log.stats().has_lost_commits);
            let position = world.append(&log, 100).unwrap();
            log.commit(&[position]).expect("it goes on in another segment");
        }
        let ends = (0..STREAM_COUNT as u16).map(|stream| log.end(StreamId(stream)));
        log.purge(&ends.collect::<Vec<_>>()).unwrap();
        log.sync().expect("what was lost is not needed");
        assert!(!log.stats().has_lost_commits);
    }
}

/// After a second failure, too, only what is between the two is in doubt: not what was durable before it.
#[test]
fn what_was_lost_and_is_kept_elsewhere_says_nothing_of_later_entries() {
    let mut world = World::new(1);
    let log = world.open(options(8 << 10, SyncPolicy::Never)).unwrap();
    world.replay(&log).unwrap();
    log.start().unwrap();
    let faults = world.sim.faults.clone();
    let mut commit = || loop {
        let position = world.append(&log, 100).unwrap();
        log.commit(&[position]).unwrap();
        if position.0 == StreamId(0) {
            return position;
        }
    };
    let lost = commit();
    faults.fail_nth(Operation::Sync, 1);
    log.harden(&[lost]).expect_err("its sync fails");
    let ends = (0..STREAM_COUNT as u16).map(|stream| log.end(StreamId(stream)));
    log.purge(&ends.collect::<Vec<_>>()).unwrap();
    let durable = commit();
    log.harden(&[durable]).expect("the device works");
    let lost = commit();
    faults.fail_nth(Operation::Sync, 1);
    log.harden(&[lost]).expect_err("its sync fails");
    log.harden(&[durable]).expect("it was durable before");
    log.harden(&[lost]).expect_err("it is in doubt");
}

/// The power goes after a sync that failed, when later segments are durable: what was acknowledged before it is there, or is
/// told.
#[test]
fn what_a_failed_sync_lost_is_told_as_damage() {
    let (mut lost, mut told) = (0, 0);
    for seed in seeds(0, 200) {
        let mut world = World::new(seed);
        let options = options(8 << 10, SyncPolicy::Never);
        let log = fail_a_sync(&mut world, &options);
        drop(log);
        world.sim.restart();
        let log = world.open(options).unwrap();
        for (model, replayed) in world.streams.iter().zip(world.replay(&log).unwrap()) {
            let missing = model.records.len() - replayed.found.len();
            assert!(missing == 0 || replayed.report.damage_count > 0, "{missing} are gone");
            lost += missing;
            told += replayed.report.damage_count;
            let last = model.records.iter().rposition(|record| record.fate == Fate::Safe);
            assert!(last.is_none_or(|last| replayed.found.contains(&last)), "synced and gone");
        }
    }
    assert!(lost > 50 && told > 20, "{lost} lost, {told} places told");
}

/// The same, but the process is killed, and the power goes when it has been started again.
#[test]
fn what_a_failed_sync_left_to_the_system_is_durable_after_the_next_start() {
    for seed in seeds(0, 200) {
        let mut world = World::new(seed);
        let options = options(8 << 10, SyncPolicy::Never);
        let log = fail_a_sync(&mut world, &options);
        drop(log);
        let log = world.open(options.clone()).unwrap();
        let replayed = world.replay(&log).unwrap();
        log.start().unwrap();
        world.settle(&replayed);
        let records = world.streams.iter().flat_map(|stream| &stream.records);
        assert!(records.into_iter().all(|record| record.fate == Fate::Safe), "a kill lost it");
        log.sync().expect("nothing is lost");
        drop(log);
        world.sim.restart();
        let log = world.open(options).unwrap();
        let replayed = world.replay(&log).unwrap();
        world.check(&replayed);
        assert!(replayed.iter().all(|replayed| replayed.report.damage_count == 0));
    }
}

/// Records in all streams, of which one fails to sync; then records in all of them that are synced. Those are safe.
fn fail_a_sync(world: &mut World, options: &LogSetup) -> Log {
    let log = world.open(options.clone()).unwrap();
    world.replay(&log).unwrap();
    log.start().unwrap();
    for _ in 0..20 {
        let position = world.append(&log, 200).unwrap();
        log.commit(&[position]).unwrap();
    }
    let nth = 1 + world.rng.below(STREAM_COUNT as u64);
    world.sim.faults.fail_nth(Operation::Sync, nth);
    log.sync().expect_err("a sync fails");
    let before: Vec<usize> = world.streams.iter().map(|stream| stream.records.len()).collect();
    for _ in 0..20 {
        let position = world.append(&log, 200).unwrap();
        log.commit(&[position]).unwrap();
    }
    // What was lost is told again, and keeps nothing else from its sync.
    log.sync().expect_err("something is lost");
    for (stream, before) in world.streams.iter_mut().zip(before) {
        stream.records[before..].iter_mut().for_each(|record| record.fate = Fate::Safe);
    }
    log
}

#[test]
fn the_interval_policy_syncs_when_its_time_has_come() {
    let mut world = World::new(1);
    let log = world.open(options(8 << 10, SyncPolicy::IntervalMs(100))).unwrap();
    world.replay(&log).unwrap();
    log.start().unwrap();
    for (wait_ms, syncs) in [(0, 0), (99, 0), (1, 1), (0, 1), (50, 1), (50, 2)] {
        world.sim.clock.advance(Duration::from_millis(wait_ms));
        let position = loop {
            // One stream has one clock: keep to the first.
            let position = world.append(&log, 100).unwrap();
            if position.0.0 == 0 {
                break position;
            }
        };
        log.commit(&[position]).unwrap();
        assert_eq!(log.stats().syncs, syncs, "after {wait_ms} ms more");
    }
}

fn live(world: &mut World, options: LogSetup, steps: u64) {
    let payload_bytes_max = options.options.segment_bytes / 8;
    let log = world.open(options).unwrap();
    let replayed = world.replay(&log).unwrap();
    world.check(&replayed);
    log.start().unwrap();
    world.settle(&replayed);
    for _ in 0..steps {
        let position = world.append(&log, payload_bytes_max).unwrap();
        world.sim.clock.advance(Duration::from_millis(world.rng.below(5)));
        world.commit(&log, &[position]).unwrap();
    }
}
