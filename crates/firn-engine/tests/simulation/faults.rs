//! Every fault at every operation of every kind of job.
//!
//! A life without faults is lived once to see what its calls of the engine do. Then it is lived again, and in one call the
//! first operation that can goes wrong in one way, then again with the second one, until the call has no more of them. After
//! each the life goes on, and the plain map decides.

use std::collections::BTreeMap;
use std::time::Duration;

use firn_engine::Lane;
use firn_sim::{Faults, Operation};

use crate::life;
use crate::world::{Failure, World};

/// Lives that are looked through for calls.
const LIVES: u64 = 120;
const STEPS: u64 = 45;
const STEPS_AFTER: u64 = 4;
/// Calls of each kind, of different lives: options differ from life to life.
const CALLS_PER_JOB: usize = 8;
/// Operations of one call, of each sort; what a long one does further on it does alike.
const OPERATIONS_MAX: u64 = 24;

/// What goes wrong once, in call number `call` of a life.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aim {
    pub(crate) call: u64,
    fault: Fault,
    /// At which operation of the call that it can hit; 1 is the first.
    nth: u64,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Hit {
    /// Whether the call had so many operations.
    pub(crate) is_hit: bool,
    /// What the call returned.
    pub(crate) error: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    PowerLost,
    /// A write, sync, rename, removal, put or delete fails.
    ChangeFails,
    Fails(Operation),
    AnswerLost,
    BodyCut,
    Down,
}

const FAULTS: [Fault; 10] = [
    Fault::PowerLost,
    Fault::ChangeFails,
    Fault::Fails(Operation::Read),
    Fault::Fails(Operation::Get),
    Fault::Fails(Operation::Put),
    Fault::Fails(Operation::Head),
    Fault::Fails(Operation::ListObjects),
    Fault::AnswerLost,
    Fault::BodyCut,
    Fault::Down,
];

/// What a fault is called, by what the error says of it; the first that fits.
const NAMES: [(&str, &str); 10] = [
    ("power lost", "simulated power loss"),
    ("answer lost", "loss of the answer"),
    ("partial body", "the slow tier sent"),
    ("slow tier down", "bucket is down"),
    ("get failed", "simulated failure of Get"),
    ("head failed", "simulated failure of Head"),
    ("list failed", "simulated failure of ListObjects"),
    ("put failed", "simulated failure of Put"),
    ("read failed", "simulated failure of Read"),
    ("write failed", "simulated failure of "),
];

/// Jobs, and what must hit each. All end in a record of the manifest but the last two: a claim or a new manifest of the
/// slow tier, and the removal of files and objects.
const JOBS: [(&str, &[&str]); 14] = [
    ("Flush", &["power lost", "write failed"]),
    ("Seal", &["power lost", "write failed"]),
    ("Merge", &["power lost", "write failed"]),
    ("RemoveSeries", &["power lost", "write failed"]),
    ("Forget", &["power lost", "write failed"]),
    ("delete", &["power lost", "write failed"]),
    ("drop", &["power lost", "write failed"]),
    ("compact", &["power lost", "write failed", "read failed"]),
    (
        "upload",
        &[
            "power lost",
            "write failed",
            "read failed",
            "put failed",
            "answer lost",
            "slow tier down",
        ],
    ),
    ("merge_patches", &ON_SLOW_TIER),
    ("merge_partitions", &ON_SLOW_TIER),
    (
        "clean",
        &[
            "power lost",
            "write failed",
            "read failed",
            "get failed",
            "partial body",
            "put failed",
            "answer lost",
            "slow tier down",
        ],
    ),
    (
        "Publish",
        &[
            "power lost",
            "read failed",
            "head failed",
            "list failed",
            "put failed",
            "answer lost",
            "slow tier down",
        ],
    ),
    ("Garbage", &["power lost", "write failed", "answer lost", "slow tier down"]),
];

const ON_SLOW_TIER: [&str; 7] = [
    "power lost",
    "write failed",
    "get failed",
    "partial body",
    "put failed",
    "answer lost",
    "slow tier down",
];

impl Aim {
    pub(crate) fn begin(&self, faults: &Faults) {
        let next_change = faults.change_count() + self.nth - 1;
        match self.fault {
            Fault::PowerLost => faults.crash_at(next_change),
            Fault::ChangeFails => faults.fail_at(next_change),
            Fault::Fails(operation) => faults.fail_nth(operation, self.nth),
            Fault::AnswerLost => faults.lose_nth_answer(self.nth),
            Fault::BodyCut => faults.cut_nth_body(self.nth),
            Fault::Down => faults.go_down_at_nth(self.nth),
        }
    }
}

#[test]
fn every_fault_hits_every_kind_of_job() {
    let mut table: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for (job, calls) in calls_by_job() {
        for (fault, (seed, call)) in
            FAULTS.into_iter().flat_map(|fault| calls.iter().map(move |call| (fault, *call)))
        {
            for nth in 1..=OPERATIONS_MAX {
                let mut world = World::new(seed, None);
                world.aim = Some(Aim { call, fault, nth });
                live(&mut world).unwrap_or_else(|failure| {
                    panic!(
                        "life {seed}, {fault:?} at operation {nth} of call {call}, {job}: {failure}"
                    )
                });
                let hit = world.hit.expect("the life comes to its call again");
                if !hit.is_hit {
                    break;
                }
                if let Some(name) = hit.error.and_then(|error| name_of(job, &error)) {
                    *table.entry((job, name)).or_default() += 1;
                }
            }
        }
    }
    println!("{:18} {:>15}  times", "job", "fault");
    for ((job, fault), count) in &table {
        println!("{job:18} {fault:>15}  {count}");
    }
    for (job, faults) in JOBS {
        for &fault in faults {
            assert!(table.contains_key(&(job, fault)), "{job}: never {fault}");
        }
    }
}

/// Where each kind of job was done: lives and their calls.
fn calls_by_job() -> BTreeMap<&'static str, Vec<(u64, u64)>> {
    let mut calls: BTreeMap<&'static str, Vec<(u64, u64)>> = BTreeMap::new();
    for seed in 0..LIVES {
        let mut world = World::new(seed, None);
        live(&mut world).unwrap_or_else(|failure| panic!("life {seed}, nothing wrong: {failure}"));
        for (job, _) in JOBS {
            let known = calls.entry(job).or_default();
            let done: Vec<u64> =
                world.done.iter().filter(|done| done.1 == job).map(|done| done.0).collect();
            // The first one is often the simplest.
            if known.len() < CALLS_PER_JOB && !done.is_empty() {
                known.push((seed, done[seed as usize % done.len()]));
            }
        }
    }
    calls
}

/// What hit `job`, if the error is of it: jobs of the tree name themselves, and in the same call the slow tier's manifest
/// may have been looked at before.
fn name_of(job: &str, error: &str) -> Option<&'static str> {
    let is_of_tree = job.starts_with(char::is_lowercase) && job != "delete";
    if is_of_tree && !error.contains(&format!("{job} of ")) {
        return None;
    }
    NAMES.into_iter().find(|(_, mark)| error.contains(mark)).map(|(name, _)| name)
}

/// A life in which nothing goes wrong but what is aimed at; soon after that it ends.
fn live(world: &mut World) -> Result<(), Failure> {
    let is_aimed = world.aim.is_some();
    world.open()?;
    let mut left = STEPS;
    while left > 0 {
        left -= 1;
        step(world)?;
        if is_aimed && world.hit.is_some() {
            left = left.min(STEPS_AFTER);
        }
    }
    life::finish(world).map(|_| ())
}

fn step(world: &mut World) -> Result<(), Failure> {
    match world.rng.below(20) {
        0..=5 => world.write(),
        6 => world.write_one_place(true),
        7 => world.let_series_leave(),
        8 | 9 => world.delete(),
        10 => world.clean_tombstones(),
        11 | 12 => world.flush(),
        13 if world.rng.chance(0.3) => world.restart_cleanly(),
        13 => world.step(Lane::Head),
        14..=17 => {
            for _ in 0..4 {
                world.step(Lane::Tree)?;
            }
            Ok(())
        }
        _ => {
            let minutes = world.rng.below(400);
            world.advance(Duration::from_secs(60 * minutes));
            Ok(())
        }
    }
}
