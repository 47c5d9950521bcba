//! The shared cases of rules and templates.

use std::path::Path;

use firn_collecttest::{Kind, assert_shared_cases_pass};

#[test]
fn shared_cases_pass() {
    assert_shared_cases_pass(&[Kind::Rules, Kind::Templates], Path::new(""));
}
