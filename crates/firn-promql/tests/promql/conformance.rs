//! Scripts: our own must pass wholly, the shared ones at least as far as they did.

use std::path::{Path, PathBuf};

use firn_promql::testing::{Report, run_script};

/// Float cases of `../shared/promqltest` that pass. The others need native histograms to be counted or told
/// apart, and one is out of date.
const FLOAT_PASSED_MIN: usize = 954;

fn scripts(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "test"))
        .map(|path| {
            let bytes = std::fs::read(&path).unwrap();
            (path, String::from_utf8_lossy(&bytes).into_owned())
        })
        .collect();
    found.sort();
    found
}

#[test]
fn own_scripts_pass() {
    let all = scripts(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts"));
    assert!(!all.is_empty());
    for (path, text) in all {
        let report = run_script(&text).unwrap();
        assert!(report.failures.is_empty(), "{}: {:#?}", path.display(), report.failures);
        assert!(report.float_count > 0);
    }
}

#[test]
fn shared_conformance_files_pass_as_far_as_they_did() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/promqltest");
    if !folder.is_dir() {
        let required = std::env::var("FIRN_REQUIRE_SHARED").is_ok_and(|value| value == "1");
        assert!(!required, "{} is missing and FIRN_REQUIRE_SHARED=1", folder.display());
        println!("skipped: {} is not there", folder.display());
        return;
    }
    let mut total = Report::default();
    for (path, text) in scripts(&folder) {
        let report = run_script(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        total.add(&report);
    }
    println!(
        "float {} of {}, native {} of {}",
        total.float_passed, total.float_count, total.native_passed, total.native_count
    );
    let failures: Vec<_> = total.failures.iter().filter(|failure| !failure.is_native).collect();
    assert!(total.float_passed >= FLOAT_PASSED_MIN, "{failures:#?}");
}
