//! The engine, single-threaded, over a simulated world drawn from a seed, against a plain map.
//!
//! `FIRN_SEED_COUNT=n` runs n seeds in place of 5,000; `FIRN_SEED=s` runs one and prints its trace.

#![allow(clippy::disallowed_methods, reason = "measures real time")]

mod churn;
mod copies;
mod damage;
mod deletes;
mod failed_commits;
mod faults;
mod histories;
mod life;
mod lost_index;
mod mutants;
mod outage;
mod pressure;
mod random_transactions;
mod results;
mod tiers;
mod transactions;
mod world;

use std::cell::RefCell;

use firn_sim::{for_cases, for_seeds};
use world::{Tally, World};

const SEEDS: u64 = 5_000;

/// Acknowledged means durable, newest write wins, one consistent view, nothing half there, bit
/// exact: after every crash and at every read the engine says what the plain map says.
#[test]
fn invariants_1_2_3_7_engine_and_plain_map_agree_at_every_crash() {
    let tally = RefCell::new(Tally::default());
    let is_alone = std::env::var_os("FIRN_SEED").is_some();
    for_seeds(SEEDS, |seed| {
        let mut world = World::new(seed, None);
        // Those that are run twice must do the same each time.
        world.recovery_threads = if seed % 16 == 0 { 1 } else { 1 + (seed % 3) as usize };
        if is_alone {
            world.trace_to_stdout();
        }
        let digest = life::run(&mut world).unwrap_or_else(|failure| panic!("{failure}"));
        tally.borrow_mut().add(&world.tally);
        digest
    });
    println!("{:?}", tally.borrow());
    // A simulation in which something never happens proves nothing about it.
    if !is_alone {
        tally.borrow().assert_everything_happened();
    }
}

#[test]
fn every_write_of_a_life_is_crashed_at() {
    for_cases(40, |seed| {
        let writes = life::count_changes(seed);
        for crash_at in 0..writes {
            let mut world = World::new(seed, None);
            world.recovery_threads = 1 + (seed % 3) as usize;
            life::run_short(&mut world, Some(crash_at)).unwrap_or_else(|failure| {
                panic!("seed {seed}, crash at change {crash_at} of {writes}: {failure}")
            });
        }
    });
}
