//! Single-threaded simulation of the engine. A seed determines a simulated world and a run, and all
//! reads are compared with a plain map, the oracle.
//!
//! `FIRN_SEED_COUNT=n` runs n seeds of each test with seeds instead of its own number, 3,000 in
//! this file. `FIRN_SEED=s` runs only seed s and prints its trace.
//!
//! Random runs: `world` (engine, oracle and the events of a run), `lifecycle` (their order),
//! `random_transactions`, `learned_groups`, `faults` (every fault in every job), `pressure`,
//! `outage`, `tiers` (several machines), `results` (with a result cache), `histories` and
//! `reclaiming` (threads), and `mutants`, which shows that these runs catch bugs. Single scenarios:
//! all other files.

#![allow(clippy::disallowed_methods, reason = "measures real time")]

mod churn;
mod copies;
mod damage;
mod deletes;
mod failed_commits;
mod faults;
mod garbage;
mod histories;
mod learned_groups;
mod lifecycle;
mod lists;
mod lost_index;
mod lost_log;
mod lost_manifest;
mod many_deletes;
mod mutants;
mod outage;
mod pressure;
mod random_transactions;
mod reclaiming;
mod results;
mod tiers;
mod transactions;
mod world;

use std::cell::RefCell;

use firn_sim::{for_cases, for_seeds};
use world::{EventCounts, World};

/// Simulated disks and plain maps make many small allocations.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SEEDS: u64 = 3_000;

/// The result of a step of a scenario; the error describes the wrong behaviour.
type Outcome<T> = Result<T, String>;

/// Power failures, kills and failing operations hit the engine at random. After every crash and at
/// every read the engine agrees with the plain map: acknowledged changes are durable, the newest
/// write wins, a view is consistent, no change is visible in part, and values are equal bit for
/// bit.
#[test]
fn invariants_1_2_3_7_engine_and_plain_map_agree_at_every_crash() {
    let tally = RefCell::new(EventCounts::default());
    let is_alone = std::env::var_os("FIRN_SEED").is_some();
    for_seeds(SEEDS, |seed| {
        let mut world = World::new(seed, None);
        // Runs that are repeated must be deterministic, so they recover with one thread.
        world.recovery_threads = if seed % 16 == 0 { 1 } else { 1 + (seed % 3) as usize };
        if is_alone {
            world.trace_to_stdout();
        }
        let digest = lifecycle::run(&mut world).unwrap_or_else(|failure| panic!("{failure}"));
        tally.borrow_mut().add(&world.tally);
        digest
    });
    println!("{:?}", tally.borrow());
    // A simulation in which an event never happens does not test it.
    if !is_alone {
        tally.borrow().assert_everything_happened();
    }
}

/// The power fails at each change of a short run, one change per case. Of the unsynced data a part
/// is on the disk, lost or torn. The engine recovers and agrees with the plain map.
#[test]
fn every_change_of_a_short_run_survives_a_crash() {
    let tally = RefCell::new(EventCounts::default());
    for_cases(24, |seed| {
        let change_count = lifecycle::count_changes(seed);
        for crash_at in 0..change_count {
            let mut world = World::new(seed, None);
            world.recovery_threads = 1 + (seed % 3) as usize;
            lifecycle::run_short(&mut world, Some(crash_at)).unwrap_or_else(|failure| {
                panic!("seed {seed}, crash at change {crash_at} of {change_count}: {failure}")
            });
            tally.borrow_mut().add(&world.tally);
        }
    });
    if std::env::var_os("FIRN_SEED").is_none() {
        tally.borrow().assert_happened(&["groups learned", "host with lone series and members"]);
    }
}

/// A series that was lone leaves the index and returns as a member of its host's group: with new
/// samples, a transaction and a delete. The power fails at each change of this, one change per
/// case.
#[test]
fn a_lone_series_that_returns_as_a_member_survives_a_crash_at_each_change() {
    const RETURNED: [&str; 2] = ["lone series left the index", "lone series returned as members"];
    let tally = RefCell::new(EventCounts::default());
    // In other lives the power may fail before the first members are logged, and none returns.
    for_cases(3, |seed| {
        let mut world = World::new(seed, None);
        lifecycle::return_to_groups(&mut world, None).unwrap_or_else(|failure| panic!("{failure}"));
        world.tally.assert_happened(&RETURNED);
        let change_count = world.sim.faults.change_count();
        for crash_at in 0..change_count {
            let mut world = World::new(seed, None);
            lifecycle::return_to_groups(&mut world, Some(crash_at)).unwrap_or_else(|failure| {
                panic!("seed {seed}, crash at change {crash_at} of {change_count}: {failure}")
            });
            tally.borrow_mut().add(&world.tally);
        }
    });
    if std::env::var_os("FIRN_SEED").is_none() {
        tally.borrow().assert_happened(&RETURNED);
        tally.borrow().assert_happened(&["crash in the middle", "stale reference refused"]);
        tally.borrow().assert_happened(&["transaction acknowledged", "delete acknowledged"]);
    }
}
