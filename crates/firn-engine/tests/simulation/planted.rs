//! Mistakes made on purpose: each must be found within the seeds that a test run has.

use firn_engine::Planted;

use crate::world::World;
use crate::{life, outage, pressure, tiers};

const SEEDS_MAX: u64 = 2_000;

#[test]
fn every_planted_mistake_is_found() {
    let mut missed = Vec::new();
    // `FIRN_PLANTED=name` looks for one.
    let wanted = std::env::var("FIRN_PLANTED").ok();
    let is_wanted = |name: String| wanted.as_ref().is_none_or(|wanted| *wanted == name);
    for mistake in Planted::ALL.into_iter().filter(|one| is_wanted(format!("{one:?}"))) {
        match (0..SEEDS_MAX).find_map(|seed| found(seed, mistake)) {
            Some((seed, how)) => println!("{mistake:?}: found by seed {seed}: {how}"),
            None => missed.push(mistake),
        }
    }
    assert!(missed.is_empty(), "{SEEDS_MAX} seeds do not find {missed:?}");
}

fn found(seed: u64, mistake: Planted) -> Option<(u64, String)> {
    if matches!(mistake, Planted::FenceSkipped | Planted::ObjectsRemovedEarly) {
        return tiers::found(seed, mistake).map(|how| (seed, how));
    }
    if mistake == Planted::FastTierUnbounded {
        return outage::found(seed, mistake).map(|how| (seed, how));
    }
    let is_of_memory = matches!(mistake, Planted::MemoryNotReserved | Planted::PressureDropsRows);
    // A mistake may also break an assertion inside a room: that is found as well.
    let life = std::panic::AssertUnwindSafe(|| match is_of_memory {
        true => pressure::run(&mut World::short_of_memory(seed, Some(mistake))),
        false => life::run(&mut World::new(seed, Some(mistake))),
    });
    match std::panic::catch_unwind(life) {
        Ok(Ok(_)) => None,
        Ok(Err(failure)) => Some((seed, failure.to_string())),
        Err(_) => Some((seed, "an assertion inside the engine".into())),
    }
}
