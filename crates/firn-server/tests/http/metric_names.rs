//! The metrics of a server follow Prometheus' naming conventions, and every help is a sentence.

use crate::Running;
use crate::client::get;

/// Units and nouns that may end the name of a gauge.
const GAUGE_UNITS: [&str; 4] = ["_bytes", "_seconds", "_ratio", "_info"];
/// Suffixes that Prometheus' conventions reserve for other types, and abbreviations of units.
const NOT_IN_GAUGES: [&str; 7] = ["_total", "_count", "_sum", "_bucket", "_ms", "_size", "_num"];

/// The breaches of one metric family.
fn breaches(name: &str, kind: &str, help: &str) -> Vec<&'static str> {
    let words = help.split_whitespace().count();
    let numbered = ["_ms_", "_kb_", "_mb_", "_usec_"].iter().any(|unit| name.contains(unit));
    let rules = [
        (kind == "counter" && !name.ends_with("_total"), "a counter ends with _total"),
        (
            kind == "gauge" && NOT_IN_GAUGES.iter().any(|suffix| name.ends_with(suffix)),
            "a suffix that gauges do not have",
        ),
        (kind == "histogram" && !GAUGE_UNITS.iter().any(|unit| name.ends_with(unit)), "no unit"),
        (numbered, "base units are bytes and seconds"),
        (name.contains("__") || name != name.to_lowercase(), "lower case, single underscores"),
        (!(name.starts_with("firn_") || name.starts_with("process_")), "the prefix is firn_"),
        (words < 2 || !help.ends_with('.'), "the help is not a sentence"),
        (!help.starts_with(|first: char| first.is_uppercase() || first.is_numeric()), "lower case"),
    ];
    rules.into_iter().filter_map(|(broken, rule)| broken.then_some(rule)).collect()
}

#[test]
fn metrics_follow_the_naming_conventions() {
    let server = Running::start(&[]);
    let text = get(server.at(), "/metrics").text();
    let mut help = "";
    let mut families = 0;
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        }
        if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            families += 1;
            found.extend(
                breaches(name, kind, help).into_iter().map(|rule| format!("{name}: {rule}")),
            );
        }
    }
    assert!(families > 100, "{families} metrics\n{text}");
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn breaches_of_the_conventions_are_detected() {
    assert!(
        breaches("firn_log_syncs_total", "counter", "Group commits that were synced.").is_empty()
    );
    assert_eq!(breaches("firn_log_syncs", "counter", "Synced group commits.").len(), 1);
    assert_eq!(breaches("firn_log_size", "gauge", "Log.").len(), 2);
    assert_eq!(breaches("log_wait_ms_total", "counter", "time waited").len(), 4);
}
