//! Every fault at every operation of every kind of job. `FIRN_SEED=n` tests only the jobs of run n.
//!
//! A run without faults records the jobs that its engine calls do. Then it is repeated: the first
//! operation of one call fails in one way, in the next repetition the second operation, and so on
//! until the call has no further operation. The effect on the disk depends on the [`Fault`]. After
//! the fault the run continues, and the oracle checks all reads: acknowledged changes are there,
//! and every other change is visible as a whole or not at all.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use firn_engine::Lane;
use firn_sim::{Faults, Operation, for_cases};

use crate::lifecycle;
use crate::world::{Failure, World};

/// Runs that are searched for calls.
const RUNS: u64 = 120;
const STEPS: u64 = 45;
const STEPS_AFTER: u64 = 4;
/// Calls of each kind of job, from different runs: options differ between runs.
const CALLS_PER_JOB: usize = 8;
/// Operations of one call that each fault is tested at; later operations of a long call repeat the
/// earlier ones.
const OPERATIONS_MAX: u64 = 24;

/// A fault that is injected once, in engine call number `call` of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedFault {
    pub(crate) call: u64,
    fault: Fault,
    /// The operation that fails, counted among those of the call that the fault can hit; 1 is the
    /// first.
    nth: u64,
}

/// The outcome of a planned fault.
#[derive(Debug)]
pub(crate) struct FaultOutcome {
    /// Whether the fault was injected: the call had at least `nth` operations.
    pub(crate) is_hit: bool,
    /// The error that the call returned.
    pub(crate) error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The power fails during an operation: unsynced data is intact, lost or torn.
    PowerLost,
    /// A write, sync, rename, removal, put or delete fails.
    ChangeFails,
    /// One operation of this kind fails.
    Fails(Operation),
    /// A put or a delete is applied but reports an error.
    AnswerLost,
    /// A range of an object is truncated without an error.
    BodyCut,
    /// The slow tier is down from an operation on.
    Down,
    /// The operation takes hours and then succeeds.
    Delayed,
    /// A put or a delete reports an error and is applied some requests later.
    DoneLater,
}

/// Longer than every wait: a retry, the grace period of an hour, the age at which data is uploaded.
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

/// Names of faults with the text that identifies each in an error; the first match counts.
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

/// Kinds of jobs and the faults that must hit each of them. All except the last four end with a
/// record in the manifest. `Claim` claims a slow tier that has a manifest, `Publish` claims an
/// empty one or writes a new manifest, `Garbage` removes files and `SlowGarbage` objects.
const JOBS: [(&str, &[&str]); 16] = [
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
    ("Garbage", &["power lost", "write failed", DELAYED]),
    ("SlowGarbage", &["answer lost", "done later", "slow tier down", DELAYED]),
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

impl PlannedFault {
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
    for_cases(RUNS, |seed| {
        for (job, call) in calls.iter().filter(|done| done.1 == seed).map(|done| (done.0, done.2)) {
            for fault in FAULTS {
                for name in hits(seed, job, call, fault) {
                    *table.borrow_mut().entry((job, name)).or_default() += 1;
                }
            }
        }
    });
    // One of the three is drawn for every unsynced sector and name.
    println!("power lost: unsynced data is lost, torn or intact");
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

/// Repeats a run with a fault at the first operation of a call, then at the next one, and so on.
/// Returns the names of the faults that hit.
fn hits(seed: u64, job: &str, call: u64, fault: Fault) -> Vec<&'static str> {
    let mut names = Vec::new();
    for nth in 1..=OPERATIONS_MAX {
        let mut world = World::new(seed, None);
        world.planned = Some(PlannedFault { call, fault, nth });
        run(&mut world).unwrap_or_else(|failure| {
            panic!("run {seed}, {fault:?} at operation {nth} of call {call}, {job}: {failure}")
        });
        let outcome = world.outcome.expect("the run repeats its call");
        if !outcome.is_hit {
            break;
        }
        names.extend(match outcome.error {
            None if fault == Fault::Delayed => Some(DELAYED),
            // The engine repeats the request.
            None if fault == Fault::BodyCut => Some("partial body"),
            // The claim does not need the listing, which it repeats later.
            None if fault == Fault::Fails(Operation::ListObjects) => Some("list failed"),
            None => None,
            Some(error) => name_of(job, &error),
        });
    }
    names
}

/// The calls that did each kind of job: job, seed of the run, number of the call.
fn calls_by_job() -> Vec<(&'static str, u64, u64)> {
    let mut calls: Vec<(&'static str, u64, u64)> = Vec::new();
    for seed in 0..RUNS {
        let mut world = World::new(seed, None);
        run(&mut world).unwrap_or_else(|failure| panic!("run {seed} without faults: {failure}"));
        for (job, _) in JOBS {
            let known = calls.iter().filter(|known| known.0 == job).count();
            let done: Vec<u64> =
                world.done.iter().filter(|done| done.1 == job).map(|done| done.0).collect();
            // Not always the first call, which is often the simplest.
            if known < CALLS_PER_JOB && !done.is_empty() {
                calls.push((job, seed, done[seed as usize % done.len()]));
            }
        }
    }
    calls
}

/// The name of the fault that hit `job`, if the error is from that job. Errors of tree jobs contain
/// the name of the job; the same call may have failed before, when it read the slow tier's
/// manifest.
fn name_of(job: &str, error: &str) -> Option<&'static str> {
    let is_of_tree = job.starts_with(char::is_lowercase) && job != "delete";
    if is_of_tree && !error.contains(&format!("{job} of ")) {
        return None;
    }
    NAMES.into_iter().find(|(_, mark)| error.contains(mark)).map(|(name, _)| name)
}

/// A run with no fault except the planned one; it ends soon after that.
fn run(world: &mut World) -> Result<(), Failure> {
    let is_planned = world.planned.is_some();
    world.open()?;
    let mut left = STEPS;
    while left > 0 {
        left -= 1;
        step(world)?;
        if is_planned && world.outcome.is_some() {
            left = left.min(STEPS_AFTER);
        }
    }
    lifecycle::finish(world).map(|_| ())
}

fn step(world: &mut World) -> Result<(), Failure> {
    match world.rng.below(20) {
        0..=5 => world.write(),
        6 => world.rewrite_one_hour(true),
        7 => world.remove_series(),
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
