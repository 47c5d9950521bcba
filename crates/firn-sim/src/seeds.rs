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
    let count = number("FIRN_SEED_COUNT").unwrap_or(count);
    for_places(count, |seed| {
        let digest = scenario(seed);
        if seed.is_multiple_of(TWICE_EVERY) {
            assert_eq!(scenario(seed), digest, "two runs of one seed differ");
        }
    });
}

/// Runs `scenario` once for each number below `count`: a place that is damaged, a crash in one of some lives.
///
/// `FIRN_SEED=17` runs that number alone.
///
/// # Panics
/// When a scenario panics, after printing the number and its command.
pub fn for_places(count: u64, scenario: impl Fn(u64)) {
    let numbers = match number("FIRN_SEED") {
        Some(seed) => seed..seed.saturating_add(1),
        None => 0..count,
    };
    for seed in numbers {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| scenario(seed))) {
            eprintln!("seed {seed} failed; again: {}", command(seed));
            resume_unwind(panic);
        }
    }
}

/// What runs one number of the test that runs now.
fn command(seed: u64) -> String {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("the test");
    let package = std::env::var("CARGO_PKG_NAME").map(|name| format!(" --package {name}"));
    let package = package.unwrap_or_default();
    format!("FIRN_SEED={seed} cargo test{package} -- --exact {test} --nocapture")
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
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

    #[test]
    fn a_number_that_fails_says_how_to_run_it_alone() {
        let test = "seeds::tests::a_number_that_fails_says_how_to_run_it_alone";
        let wanted =
            format!("FIRN_SEED=7 cargo test --package firn-sim -- --exact {test} --nocapture");
        assert_eq!(command(7), wanted);
        let seen = RefCell::new(0);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            for_places(5, |place| {
                *seen.borrow_mut() = place;
                assert!(place < 3, "planted");
            });
        }));
        assert!(failed.is_err());
        assert_eq!(*seen.borrow(), 3);
    }
}
