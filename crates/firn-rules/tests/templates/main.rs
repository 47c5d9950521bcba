//! Templates with the results of the package `template` of Prometheus 3.16 with Go 1.26.

#[test]
fn recorded_cases_pass() {
    let report = firn_collecttest::run_template_lines(include_str!("recorded.jsonl"));
    assert!(report.count() > 0, "no cases");
    assert!(report.failures.is_empty(), "{}", report.failures.join("\n"));
}
