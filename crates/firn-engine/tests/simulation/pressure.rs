//! A run with a tenth of the memory that it needs. Writes are refused, no acknowledged change is
//! lost, and writes are accepted again once there is memory.

use std::cell::RefCell;

use firn_engine::Lane;
use firn_sim::for_seeds;

use crate::world::{EventCounts, Failure, World};

const SEEDS: u64 = 600;
const STEPS: u64 = 150;

/// Memory is scarce, and the power fails at random. Memory stays within its configured limit under
/// any load, and acknowledged changes are durable.
#[test]
fn invariant_8_short_of_memory_writes_are_refused_and_nothing_is_lost() {
    let tally = RefCell::new(EventCounts::default());
    let is_alone = std::env::var_os("FIRN_SEED").is_some();
    for_seeds(SEEDS, |seed| {
        let mut world = World::short_of_memory(seed, None);
        if is_alone {
            world.trace_to_stdout();
        }
        let digest = run(&mut world).unwrap_or_else(|failure| panic!("{failure}"));
        tally.borrow_mut().add(&world.tally);
        digest
    });
    println!("{:?}", tally.borrow());
    if !is_alone {
        tally.borrow().assert_happened(&[
            "write acknowledged",
            "write refused for memory",
            "series refused for memory",
            "Flush",
            "Convert",
            "compact",
            "crash",
            "held snapshot read",
            "process holds more",
        ]);
    }
}

/// A run under memory pressure. Returns the digest of all reads.
pub(crate) fn run(world: &mut World) -> Result<u64, Failure> {
    world.open()?;
    for _ in 0..STEPS {
        step(world)?;
        world.check_memory()?;
    }
    world.end_faults()?;
    world.verify_held()?;
    world.resume_writes()?;
    world.verify()?;
    world.crash()?;
    world.verify()?;
    Ok(world.digest())
}

fn step(world: &mut World) -> Result<(), Failure> {
    match world.rng.below(100) {
        0..=64 => world.write(),
        65..=66 => world.delete(),
        67..=74 => world.step(Lane::Head),
        75..=79 => world.step(Lane::Tree),
        80 => world.flush(),
        81..=85 => world.verify(),
        86..=87 => world.hold_snapshot(),
        88..=89 => world.verify_held(),
        90..=95 => {
            world.hold_unreserved();
            Ok(())
        }
        96 => world.restart_cleanly(),
        97 => world.crash(),
        _ => world.write_with_old_reference(),
    }
}
