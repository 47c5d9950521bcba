//! The shared cases of promtool, through the program.

use std::path::Path;

use firn_collecttest::{Kind, assert_shared_cases_pass};

#[test]
fn promtool_cases_pass() {
    assert_shared_cases_pass(&[Kind::Promtool], Path::new(env!("CARGO_BIN_EXE_firn")));
}
