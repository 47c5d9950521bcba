//! The random run of one database, derived from a seed.

use std::time::Duration;

use firn_engine::Lane;
use firn_sim::Operation;

use crate::world::{Failure, World};

const STEPS: u64 = 60;
const STEPS_SHORT: u64 = 14;
const WRITES_LONG_LOG: u64 = 500;

/// A complete run with crashes, faults and restarts. Returns the digest of all reads.
pub(crate) fn run(world: &mut World) -> Result<u64, Failure> {
    world.open()?;
    for _ in 0..STEPS {
        step(world)?;
    }
    finish(world)
}

/// A short run without random faults. The power fails at change `crash_at`, if any.
pub(crate) fn run_short(world: &mut World, crash_at: Option<u64>) -> Result<u64, Failure> {
    if let Some(number) = crash_at {
        world.sim.faults.crash_at(number);
    }
    world.open()?;
    for idx in 0..STEPS_SHORT {
        match idx {
            4 | 9 => world.flush()?,
            6 | 11 => settle(world)?,
            7 => world.advance(Duration::from_secs(3_600)),
            3 | 12 => world.delete()?,
            2 | 8 | 13 => world.transact()?,
            // In some runs, because it takes many changes.
            5 if world.seed.is_multiple_of(4) => world.learn_groups()?,
            _ => world.write()?,
        }
    }
    finish(world)
}

/// Lone series leave the index and return as members of learned groups. The power fails at change
/// `crash_at`, if any.
pub(crate) fn return_to_groups(world: &mut World, crash_at: Option<u64>) -> Result<u64, Failure> {
    if let Some(number) = crash_at {
        world.sim.faults.crash_at(number);
    }
    world.open()?;
    world.return_to_groups()?;
    finish(world)
}

/// Fills more segments of the log than it keeps for reuse. The power fails at change `nth`, from 1
/// on, of the flush that removes them.
pub(crate) fn flush_long_log(world: &mut World, nth: u64) -> Result<u64, Failure> {
    world.open()?;
    for _ in 0..WRITES_LONG_LOG {
        world.write()?;
    }
    let next_change = world.sim.faults.change_count() + nth - 1;
    world.sim.faults.crash_at(next_change);
    world.flush()?;
    finish(world)
}

/// The number of changes to disk and bucket in a short run.
pub(crate) fn count_changes(seed: u64) -> u64 {
    let mut world = World::new(seed, None);
    run_short(&mut world, None).expect("a run without faults");
    world.sim.faults.change_count()
}

fn step(world: &mut World) -> Result<(), Failure> {
    world.sync_lazily()?;
    match world.rng.below(100) {
        0..=27 => world.write(),
        28..=33 => world.transact(),
        34 | 35 => world.rewrite_one_hour(false),
        36 => world.write_with_old_reference(),
        37 | 38 => world.remove_series(),
        39..=43 => world.delete(),
        44 => world.clean_tombstones(),
        45..=54 => world.step(Lane::Head),
        55..=66 => world.step(Lane::Tree),
        67..=70 => world.flush(),
        71 => world.recycle(),
        72..=73 => work_under_fault(world),
        74..=76 => {
            let minutes = world.rng.below(200);
            world.advance(Duration::from_secs(minutes * 60));
            Ok(())
        }
        77 => world.verify(),
        78 => world.learn_groups(),
        79 => world.kill(),
        80 => world.damage_slow_cache(),
        81..=82 => world.verify_list(),
        83..=84 => world.hold_snapshot(),
        85..=87 => world.verify_held(),
        88 => {
            let is_down = world.rng.chance(0.5);
            world.set_slow_tier_down(is_down);
            Ok(())
        }
        89 => {
            let are_lost = world.rng.chance(0.5);
            world.set_responses_lost(are_lost);
            Ok(())
        }
        90..=93 => {
            let operation = *world.rng.pick(&[
                Operation::Sync,
                Operation::Write,
                Operation::Create,
                Operation::Preallocate,
                Operation::SyncDir,
                Operation::Remove,
                Operation::Put,
            ]);
            let nth = 1 + world.rng.below(3);
            world.sim.faults.fail_nth(operation, nth);
            Ok(())
        }
        94..=95 => {
            // The power fails in one of the next operations, of whichever kind.
            let number = world.sim.faults.change_count() + world.rng.below(30);
            world.sim.faults.crash_at(number);
            Ok(())
        }
        96 => world.fill_disk(),
        97 => world.restart_cleanly(),
        _ => world.crash(),
    }
}

/// Runs tree jobs while operations of one kind fail repeatedly.
fn work_under_fault(world: &mut World) -> Result<(), Failure> {
    let faults = world.sim.faults.clone();
    let operation = *world.rng.pick(&[
        Operation::Read,
        Operation::Get,
        Operation::Get,
        Operation::Write,
        Operation::Put,
    ]);
    let kind = world.rng.below(9);
    match kind {
        0 => faults.set_lost_acknowledgement_rate(0.5),
        1 | 2 => faults.set_partial_body_rate(0.5),
        3 => world.set_slow_tier_down(true),
        _ => faults.set_rate(operation, 0.3),
    }
    for _ in 0..6 {
        // After a failure the slow tier is not used for a minute; by then more work is due.
        let minutes = 2 + world.rng.below(90);
        world.advance(Duration::from_secs(60 * minutes));
        world.step(Lane::Tree)?;
    }
    match kind {
        0 => faults.set_lost_acknowledgement_rate(0.0),
        1 | 2 => faults.set_partial_body_rate(0.0),
        3 => world.set_slow_tier_down(false),
        _ => faults.set_rate(operation, 0.0),
    }
    Ok(())
}

/// Ends all faults and completes all work. All acknowledged data is readable, before and after
/// another crash.
pub(crate) fn finish(world: &mut World) -> Result<u64, Failure> {
    world.end_faults()?;
    settle(world)?;
    world.verify_held()?;
    world.verify()?;
    world.crash()?;
    world.verify()?;
    Ok(world.digest())
}

fn settle(world: &mut World) -> Result<(), Failure> {
    for _ in 0..200 {
        let before = world.work_done();
        world.step(Lane::Head)?;
        world.step(Lane::Tree)?;
        if world.work_done() == before {
            break;
        }
    }
    Ok(())
}
