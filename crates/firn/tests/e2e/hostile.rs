//! The short run of `make hostile`, against the program of the tests.

use firn_hostile::{Options, run};

/// Every family, fewer attacks. Other tests run at the same time, so the response time of health
/// checks is not asserted here.
#[test]
fn the_short_run_of_attacks_has_no_effect() {
    let options = Options {
        program: env!("CARGO_BIN_EXE_firn").into(),
        only: Vec::new(),
        is_verbose: false,
        is_quick: true,
        latency_ms_max: f64::INFINITY,
    };
    let report = run(&options).expect("servers start");
    report.print();
    assert!(report.all_withstood(), "{}", report.failures().join("\n"));
}
