//! Mistakes made on purpose: each must be found within the seeds that a test run has.

use firn_engine::Mutant;

use crate::world::{Failure, World};
use crate::{life, outage, pressure, results, tiers, transactions};

const SEEDS_MAX: u64 = 2_000;

#[test]
fn every_mutant_is_caught() {
    let mut missed = Vec::new();
    // `FIRN_MUTANT=name` looks for one.
    let wanted = std::env::var("FIRN_MUTANT").ok();
    let is_wanted = |name: String| wanted.as_ref().is_none_or(|wanted| *wanted == name);
    for mistake in Mutant::ALL.into_iter().filter(|one| is_wanted(format!("{one:?}"))) {
        match (0..SEEDS_MAX).find_map(|seed| found(seed, mistake)) {
            Some((seed, how)) => println!("{mistake:?}: found by seed {seed}: {how}"),
            None => missed.push(mistake),
        }
    }
    for mistake in &missed {
        eprintln!("again: FIRN_MUTANT={mistake:?} cargo test --package firn-engine mutants::");
    }
    assert!(missed.is_empty(), "{SEEDS_MAX} seeds do not find {missed:?}");
}

fn found(seed: u64, mistake: Mutant) -> Option<(u64, String)> {
    if matches!(
        mistake,
        Mutant::FenceSkipped | Mutant::LeftCopyNotFenced | Mutant::ObjectsRemovedEarly
    ) {
        return tiers::found(seed, mistake).map(|how| (seed, how));
    }
    if mistake == Mutant::FastTierUnbounded {
        return outage::found(seed, mistake).map(|how| (seed, how));
    }
    if matches!(
        mistake,
        Mutant::ChangesNotReplayed | Mutant::CutNotRecorded | Mutant::FailedCommitNotAnnounced
    ) {
        return results::found(seed, mistake).map(|how| (seed, how));
    }
    if mistake == Mutant::UnflushedDeletesNamed {
        return transactions::found(seed, mistake).map(|how| (seed, how));
    }
    let mut world = World::new(seed, Some(mistake));
    if mistake == Mutant::UnflushedDeletesApplied && !world.may_lose_acknowledged() {
        return None;
    }
    let is_of_memory = matches!(mistake, Mutant::MemoryNotReserved | Mutant::PressureDropsRows);
    let how = how_it_fails(|| match is_of_memory {
        true => pressure::run(&mut World::short_of_memory(seed, Some(mistake))),
        false => life::run(&mut world),
    });
    how.map(|how| (seed, how))
}

/// A mistake may also break an assertion inside a room: that is found as well.
fn how_it_fails(life: impl FnOnce() -> Result<u64, Failure>) -> Option<String> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(life)) {
        Ok(Ok(_)) => None,
        Ok(Err(failure)) => Some(failure.to_string()),
        Err(_) => Some("an assertion inside the engine".into()),
    }
}

/// Memory that keeps nothing at a fence loses what was acknowledged, and that is found.
#[test]
fn memory_whose_fences_do_nothing_is_found() {
    let found = (0..SEEDS_MAX).find_map(|seed| {
        let mut world = World::new(seed, None);
        world.sim.memory.as_ref()?.ignore_fences();
        Some((seed, how_it_fails(|| life::run(&mut world))?))
    });
    let (seed, how) = found.expect("no seed finds it");
    println!("found by seed {seed}: {how}");
}
