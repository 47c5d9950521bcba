//! Runs a scenario for many seeds and prints the command that repeats a failing one.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Every seed that is a multiple of this runs twice, with equal results.
const TWICE_EVERY: u64 = 16;

/// Runs `scenario` for seeds 0 to `count`. Runs some seeds twice and checks that both runs return
/// the same digest of their observations.
///
/// `FIRN_SEED=17` runs only that seed, `FIRN_SEED_COUNT=100000` that number of seeds.
///
/// # Panics
/// When a scenario panics or differs, after printing the seed and its command.
pub fn for_seeds(count: u64, scenario: impl Fn(u64) -> u64) {
    let count = number("FIRN_SEED_COUNT").unwrap_or(count);
    for_cases(count, |seed| {
        let digest = scenario(seed);
        if seed.is_multiple_of(TWICE_EVERY) {
            assert_eq!(scenario(seed), digest, "two runs of one seed differ");
        }
    });
}

/// Runs `scenario` for each number below `count`, such as a damaged offset or a crash at an
/// operation.
///
/// `FIRN_SEED=17` runs only that number.
///
/// # Panics
/// When a scenario panics, after printing the number and its command.
pub fn for_cases(count: u64, scenario: impl Fn(u64)) {
    let numbers = match number("FIRN_SEED") {
        Some(seed) => seed..seed.saturating_add(1),
        None => 0..count,
    };
    for seed in numbers {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| scenario(seed))) {
            eprintln!("seed {seed} failed; run it again: {}", command(seed));
            resume_unwind(panic);
        }
    }
}

/// The command that runs one number of the current test.
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
    fn seeds_run_in_order_and_differing_runs_are_detected() {
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
    fn a_failing_number_prints_its_command() {
        let test = "seeds::tests::a_failing_number_prints_its_command";
        let wanted =
            format!("FIRN_SEED=7 cargo test --package firn-sim -- --exact {test} --nocapture");
        assert_eq!(command(7), wanted);
        let seen = RefCell::new(0);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            for_cases(5, |number| {
                *seen.borrow_mut() = number;
                assert!(number < 3, "intended failure");
            });
        }));
        assert!(failed.is_err());
        assert_eq!(*seen.borrow(), 3);
    }
}
