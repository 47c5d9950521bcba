//! Our own scripts and the shared ones must pass, except for one outdated case.

use std::path::{Path, PathBuf};

use firn_promqltest::{Report, run_script};

/// The number of cases in `../shared/promqltest`.
const FLOAT_COUNT: usize = 973;
const NATIVE_COUNT: usize = 680;
/// A case that its README declares outdated: an unchanged start timestamp is no reset.
const OUTDATED_CASE: (&str, &str, &str) =
    ("start_timestamps.test", "increase(series[5m])", "st_after_t");

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
        assert!(report.float_count + report.native_count > 0);
    }
}

#[test]
fn shared_conformance_files_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/promqltest");
    if !folder.is_dir() {
        let required = std::env::var("FIRN_REQUIRE_SHARED").is_ok_and(|value| value == "1");
        assert!(!required, "{} is missing and FIRN_REQUIRE_SHARED=1", folder.display());
        println!("skipped: {} does not exist", folder.display());
        return;
    }
    let mut total = Report::default();
    let mut failures = Vec::new();
    for (path, text) in scripts(&folder) {
        let report = run_script(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        total.add(&report);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        failures.extend(report.failures.into_iter().map(|failure| (name.clone(), failure)));
    }
    println!(
        "float {} of {}, native {} of {}",
        total.float_passed, total.float_count, total.native_passed, total.native_count
    );
    failures.retain(|(file, failure)| {
        let (known_file, query, series) = OUTDATED_CASE;
        file != known_file || failure.query != query || !failure.reason.contains(series)
    });
    assert!(failures.is_empty(), "{failures:#?}");
    assert_eq!((total.float_passed, total.float_count), (FLOAT_COUNT - 1, FLOAT_COUNT));
    assert_eq!((total.native_passed, total.native_count), (NATIVE_COUNT, NATIVE_COUNT));
}
