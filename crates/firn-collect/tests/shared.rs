//! The shared cases of configurations, relabelling and targets.

use std::path::Path;

use firn_collecttest::{Kind, assert_shared_cases_pass};

#[test]
fn shared_cases_pass() {
    assert_shared_cases_pass(&[Kind::Configs, Kind::Relabel, Kind::Targets], Path::new(""));
}
