//! The guarantees of the sync policies.

use std::time::Duration;

use firn_log::{Log, LogSetup, StreamId, SyncPolicy};
use firn_model::ErrorKind;
use firn_sim::Operation;

use crate::world::{Fate, STREAM_COUNT, World, seeds, setup};

#[test]
fn a_killed_process_loses_nothing_whatever_the_policy() {
    for seed in seeds(0, 50) {
        for sync in [SyncPolicy::Always, SyncPolicy::IntervalMs(10), SyncPolicy::Never] {
            let mut world = World::new(seed);
            for _ in 0..4 {
                live(&mut world, setup(8 << 10, sync), 40);
            }
        }
    }
}

/// A power loss with durability from rotations only. Each stream keeps a prefix, and no damage is
/// reported.
#[test]
fn a_power_loss_costs_the_lazy_policies_a_tail() {
    let mut lost = 0;
    for seed in seeds(0, 300) {
        let mut world = World::new(seed);
        let setup = setup(8 << 10, SyncPolicy::Never);
        live(&mut world, setup.clone(), 60);
        world.sim.restart();
        let log = world.open(setup).unwrap();
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
fn a_requested_sync_makes_everything_durable() {
    for seed in seeds(0, 50) {
        let mut world = World::new(seed);
        let setup = setup(8 << 10, SyncPolicy::Never);
        let log = world.open(setup.clone()).unwrap();
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
        let log = world.open(setup).unwrap();
        world.check(&world.replay(&log).unwrap());
    }
}

/// A failed sync loses entries that were acknowledged without a sync. Every later sync reports that
/// until they are durable elsewhere.
#[test]
fn a_failed_sync_is_reported_until_the_floor_passes_the_lost_range() {
    for sync in [SyncPolicy::Never, SyncPolicy::IntervalMs(1 << 40)] {
        let mut world = World::new(1);
        let log = world.open(setup(8 << 10, sync)).unwrap();
        world.replay(&log).unwrap();
        log.start().unwrap();
        let first = world.append(&log, 100).unwrap();
        log.commit(&[first]).unwrap();
        world.sim.faults.fail_nth(Operation::Sync, 1);
        for _ in 0..2 {
            assert_eq!(*log.sync().unwrap_err().kind(), ErrorKind::Unavailable);
            assert!(log.stats().has_lost_commits);
            let position = world.append(&log, 100).unwrap();
            log.commit(&[position]).expect("the log continues in another segment");
        }
        let ends = (0..STREAM_COUNT as u16).map(|stream| log.end(StreamId(stream)));
        log.purge(&ends.collect::<Vec<_>>()).unwrap();
        log.sync().expect("the lost range is below the floor");
        assert!(!log.stats().has_lost_commits);
    }
}

/// After a second failure, only the range between the two failures is in doubt.
#[test]
fn a_loss_below_the_floor_does_not_affect_later_entries() {
    let mut world = World::new(1);
    let log = world.open(setup(8 << 10, SyncPolicy::Never)).unwrap();
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

/// Power loss after a failed sync, with durable later segments. Every entry that was acknowledged
/// before the sync is there or reported.
#[test]
fn entries_that_a_failed_sync_lost_are_reported_as_damage() {
    let (mut lost, mut reported) = (0, 0);
    for seed in seeds(0, 200) {
        let mut world = World::new(seed);
        let setup = setup(8 << 10, SyncPolicy::Never);
        let log = fail_a_sync(&mut world, &setup);
        drop(log);
        world.sim.restart();
        let log = world.open(setup).unwrap();
        for (model, replayed) in world.streams.iter().zip(world.replay(&log).unwrap()) {
            let missing = model.records.len() - replayed.found.len();
            assert!(missing == 0 || replayed.report.damage_count > 0, "{missing} are missing");
            lost += missing;
            reported += replayed.report.damage_count;
            let last = model.records.iter().rposition(|record| record.fate == Fate::Safe);
            assert!(last.is_none_or(|last| replayed.found.contains(&last)), "synced, but missing");
        }
    }
    assert!(lost > 50 && reported > 20, "{lost} lost, {reported} ranges reported");
}

/// As above, but the process is killed, and the power is lost after the next start.
#[test]
fn the_next_start_makes_the_page_cache_of_a_failed_sync_durable() {
    for seed in seeds(0, 200) {
        let mut world = World::new(seed);
        let setup = setup(8 << 10, SyncPolicy::Never);
        let log = fail_a_sync(&mut world, &setup);
        drop(log);
        let log = world.open(setup.clone()).unwrap();
        let replayed = world.replay(&log).unwrap();
        log.start().unwrap();
        world.settle(&replayed);
        let records = world.streams.iter().flat_map(|stream| &stream.records);
        assert!(records.into_iter().all(|record| record.fate == Fate::Safe), "a kill lost it");
        log.sync().expect("nothing is lost");
        drop(log);
        world.sim.restart();
        let log = world.open(setup).unwrap();
        let replayed = world.replay(&log).unwrap();
        world.check(&replayed);
        assert!(replayed.iter().all(|replayed| replayed.report.damage_count == 0));
    }
}

/// Appends to all streams, fails the sync of one, then appends to all and syncs. The later records
/// are safe.
fn fail_a_sync(world: &mut World, setup: &LogSetup) -> Log {
    let log = world.open(setup.clone()).unwrap();
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
    // The sync reports the loss again, but syncs the rest.
    log.sync().expect_err("something is lost");
    for (stream, before) in world.streams.iter_mut().zip(before) {
        stream.records[before..].iter_mut().for_each(|record| record.fate = Fate::Safe);
    }
    log
}

#[test]
fn the_interval_policy_syncs_once_per_interval() {
    let mut world = World::new(1);
    let log = world.open(setup(8 << 10, SyncPolicy::IntervalMs(100))).unwrap();
    world.replay(&log).unwrap();
    log.start().unwrap();
    for (wait_ms, syncs) in [(0, 0), (99, 0), (1, 1), (0, 1), (50, 1), (50, 2)] {
        world.sim.clock.advance(Duration::from_millis(wait_ms));
        let position = loop {
            // Each stream has its own sync time: use the first only.
            let position = world.append(&log, 100).unwrap();
            if position.0.0 == 0 {
                break position;
            }
        };
        log.commit(&[position]).unwrap();
        assert_eq!(log.stats().syncs, syncs, "after {wait_ms} ms more");
    }
}

fn live(world: &mut World, setup: LogSetup, steps: u64) {
    let payload_bytes_max = setup.options.segment_bytes / 8;
    let log = world.open(setup).unwrap();
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
