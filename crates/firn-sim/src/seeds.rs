//! Many seeds, one scenario: the first that fails says how to run it alone.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Every so many seeds one is run twice and must end the same.
const TWICE_EVERY: u64 = 16;

/// Runs `scenario` for seeds 0 to `count`, and checks now and then that a seed gives one world:
/// what the scenario returns (a digest of all that it saw) must be the same again.
///
/// `FIRN_SEED=17` runs that seed alone, `FIRN_SEED_COUNT=100000` as many as that.
///
/// # Panics
/// When a scenario panics or differs, after printing the seed and its command.
pub fn for_seeds(count: u64, scenario: impl Fn(u64) -> u64) {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seeds = match number("FIRN_SEED") {
        Some(seed) => seed..seed.saturating_add(1),
        None => 0..number("FIRN_SEED_COUNT").unwrap_or(count),
    };
    for seed in seeds {
        let run = || {
            let digest = scenario(seed);
            if seed.is_multiple_of(TWICE_EVERY) {
                assert_eq!(scenario(seed), digest, "two runs of one seed differ");
            }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            let thread = std::thread::current();
            let test = thread.name().unwrap_or("the test");
            eprintln!("seed {seed} failed; again: FIRN_SEED={seed} cargo test {test}");
            resume_unwind(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn seeds_run_in_order_and_a_world_that_differs_is_found() {
        let seen = RefCell::new(Vec::new());
        for_seeds(3, |seed| {
            seen.borrow_mut().push(seed);
            seed
        });
        assert_eq!(*seen.borrow(), [0, 0, 1, 2]);
        let call_count = RefCell::new(0);
        let differing = catch_unwind(AssertUnwindSafe(|| {
            for_seeds(1, |_| {
                *call_count.borrow_mut() += 1;
                *call_count.borrow()
            });
        }));
        assert!(differing.is_err());
    }
}
