//! Every fault at every operation of every kind of job. `FIRN_SEED=n` looks at the jobs of life n alone.
//!
//! A life without faults is lived once to see what its calls of the engine do. Then it is lived again, and in one call the
//! first operation that can goes wrong in one way, then again with the second one, until the call has no more of them. After
//! each the life goes on, and the plain map decides.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use firn_engine::Lane;
use firn_sim::{Faults, Operation, for_cases};

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

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// While an operation is done: what was not synced is there, is lost or is torn.
    PowerLost,
    /// A write, sync, rename, removal, put or delete fails.
    ChangeFails,
    Fails(Operation),
    AnswerLost,
    BodyCut,
    Down,
    /// The operation takes hours, and is done then.
    Delayed,
    /// A put or a delete is given up, and is done some requests later.
    DoneLater,
}

/// Longer than anything waits: a retry, an hour of grace, the age at which data is uploaded.
const DELAY: Duration = Duration::from_secs(5 * 3_600);

const FAULTS: [Fault; 12] = [
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
    Fault::Delayed,
    Fault::DoneLater,
];

/// What a fault is called, by what the error says of it; the first that fits.
const NAMES: [(&str, &str); 11] = [
    ("power lost", "simulated power loss"),
    ("done later", "no answer yet"),
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

const DELAYED: &str = "delayed";

/// Jobs, and what must hit each. All end in a record of the manifest but the last three: a claim of the slow tier where a
/// manifest is, a first claim or a new manifest, and the removal of files and objects.
const JOBS: [(&str, &[&str]); 15] = [
    ("Flush", &["power lost", "write failed", DELAYED]),
    ("Seal", &["power lost", "write failed", DELAYED]),
    ("Merge", &["power lost", "write failed", DELAYED]),
    ("RemoveSeries", &["power lost", "write failed", DELAYED]),
    ("Forget", &["power lost", "write failed", DELAYED]),
    ("delete", &["power lost", "write failed", DELAYED]),
    ("drop", &["power lost", "write failed", DELAYED]),
    ("compact", &["power lost", "write failed", "read failed", DELAYED]),
    (
        "upload",
        &[
            "power lost",
            "write failed",
            "read failed",
            "put failed",
            "answer lost",
            "done later",
            "slow tier down",
            DELAYED,
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
            "done later",
            "slow tier down",
            DELAYED,
        ],
    ),
    (
        "Claim",
        &[
            "power lost",
            "write failed",
            "get failed",
            "partial body",
            "head failed",
            "list failed",
            "put failed",
            "answer lost",
            "done later",
            "slow tier down",
            DELAYED,
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
            "done later",
            "slow tier down",
            DELAYED,
        ],
    ),
    (
        "Garbage",
        &["power lost", "write failed", "answer lost", "done later", "slow tier down", DELAYED],
    ),
];

const ON_SLOW_TIER: [&str; 9] = [
    "power lost",
    "write failed",
    "get failed",
    "partial body",
    "put failed",
    "answer lost",
    "done later",
    "slow tier down",
    DELAYED,
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
            Fault::Down => faults.take_down_at_nth(self.nth),
            Fault::Delayed => faults.delay_nth(self.nth, DELAY),
            Fault::DoneLater => faults.do_nth_later(self.nth),
        }
    }
}

#[test]
fn every_fault_hits_every_kind_of_job() {
    let table: RefCell<BTreeMap<(&str, &str), u64>> = RefCell::default();
    let calls = calls_by_job();
    for_cases(LIVES, |seed| {
        for (job, call) in calls.iter().filter(|done| done.1 == seed).map(|done| (done.0, done.2)) {
            for fault in FAULTS {
                for name in hits(seed, job, call, fault) {
                    *table.borrow_mut().entry((job, name)).or_default() += 1;
                }
            }
        }
    });
    // Which of the three it is is drawn for every sector and name that was not synced.
    println!("power lost: what was not synced is lost, torn or there");
    let columns: Vec<&str> = NAMES.iter().map(|name| name.0).chain([DELAYED]).collect();
    println!("{:16}  {}", "", columns.join("  "));
    for (job, _) in JOBS {
        let count = |fault| table.borrow().get(&(job, fault)).copied().unwrap_or(0);
        let counts: Vec<String> =
            columns.iter().map(|fault| format!("{:>1$}", count(*fault), fault.len())).collect();
        println!("{job:16}  {}", counts.join("  "));
    }
    for (job, faults) in JOBS.iter().filter(|_| std::env::var_os("FIRN_SEED").is_none()) {
        for fault in *faults {
            assert!(table.borrow().contains_key(&(*job, *fault)), "{job}: never {fault}");
        }
    }
}

/// Lives a life again and again, with a fault at the first operation of a call, then at the next: what each time came of it.
fn hits(seed: u64, job: &str, call: u64, fault: Fault) -> Vec<&'static str> {
    let mut names = Vec::new();
    for nth in 1..=OPERATIONS_MAX {
        let mut world = World::new(seed, None);
        world.aim = Some(Aim { call, fault, nth });
        live(&mut world).unwrap_or_else(|failure| {
            panic!("life {seed}, {fault:?} at operation {nth} of call {call}, {job}: {failure}")
        });
        let hit = world.hit.expect("the life comes to its call again");
        if !hit.is_hit {
            break;
        }
        names.extend(match hit.error {
            None if fault == Fault::Delayed => Some(DELAYED),
            // Asked for again.
            None if fault == Fault::BodyCut => Some("partial body"),
            None => None,
            Some(error) => name_of(job, &error),
        });
    }
    names
}

/// Where each kind of job was done: lives and their calls.
fn calls_by_job() -> Vec<(&'static str, u64, u64)> {
    let mut calls: Vec<(&'static str, u64, u64)> = Vec::new();
    for seed in 0..LIVES {
        let mut world = World::new(seed, None);
        live(&mut world).unwrap_or_else(|failure| panic!("life {seed}, nothing wrong: {failure}"));
        for (job, _) in JOBS {
            let known = calls.iter().filter(|known| known.0 == job).count();
            let done: Vec<u64> =
                world.done.iter().filter(|done| done.1 == job).map(|done| done.0).collect();
            // The first one is often the simplest.
            if known < CALLS_PER_JOB && !done.is_empty() {
                calls.push((job, seed, done[seed as usize % done.len()]));
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
