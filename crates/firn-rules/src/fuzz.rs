//! The checks that the fuzzers `template` and `rule_file` run on their inputs. Compiled for tests
//! and fuzzers only.

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_model::{Labels, PointValue};
use firn_promql::VectorPoint;

use crate::file::{ReadOptions, RuleFile, RuleNames, duplicates, duplicates_text};
use crate::template::{AlertData, BYTES_MAX, Environment, MissingKey, Template, Value};

/// A template of an alert, expanded twice.
///
/// # Panics
/// If the results differ, exceed the limit, or an error names no place.
pub fn template(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let template = match Template::parse_alert("a", &text) {
        Ok(template) => template,
        Err(error) => return check_error(&error.to_string()),
    };
    let map = |pairs: [(&str, &str); 2]| {
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Arc::new(BTreeMap::from(pairs))
    };
    let data = Value::Alert(Arc::new(AlertData {
        labels: map([("__name__", "up"), ("instance", "a:80")]),
        external_labels: map([("dc", "eu"), ("replica", "0")]),
        external_url: "http://host:9090/prom".into(),
        value: Value::Float(0.25),
    }));
    let query = |text: &str| match text.len() % 4 {
        0 => Err("no result".to_owned()),
        count => Ok((0..count).map(point).collect()),
    };
    let environment = Environment {
        now: 1_353_755_652_000,
        external_url: "http://host:9090/prom",
        missing_key: MissingKey::Zero,
        query: &query,
        reserve: &|_| Ok(()),
    };
    let result = template.execute(&data, &environment);
    assert_eq!(result, template.execute(&data, &environment));
    match &result {
        Ok(text) => assert!(text.len() <= BYTES_MAX),
        Err(error) => check_error(&error.to_string()),
    }
}

/// A rule file, read twice, with the warning for repeated rules.
///
/// # Panics
/// If the results differ, or a file is refused without a reason.
pub fn rule_file(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for names in [RuleNames::Utf8, RuleNames::Legacy] {
        let options = ReadOptions { names, ..ReadOptions::default() };
        let read = || RuleFile::parse(&text, &options).map(|file| file.groups);
        match (read(), read()) {
            (Ok(groups), Ok(again)) => {
                assert_eq!(format!("{groups:?}"), format!("{again:?}"));
                let repeated = duplicates(&groups);
                assert_eq!(duplicates_text(&repeated).is_some(), !repeated.is_empty());
            }
            (Err(mistakes), Err(again)) => {
                assert_eq!(mistakes, again);
                assert!(!mistakes.is_empty() && mistakes.iter().all(|text| !text.is_empty()));
            }
            (first, second) => panic!("{first:?} and then {second:?}"),
        }
    }
}

fn point(idx: usize) -> VectorPoint {
    let instance = format!("{idx}:80");
    let labels = [("__name__", "up"), ("instance", instance.as_str())];
    let labels = Labels::from_pairs(labels).expect("valid labels");
    VectorPoint { labels, ts: 0, value: PointValue::Float(idx as f64) }
}

fn check_error(error: &str) {
    assert!(error.starts_with("template: __alert_a:"), "{error}");
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Pieces of templates: most lists of them are wrong, some are not.
    const PIECES: [&str; 60] = [
        "{{",
        "}}",
        "{{- ",
        " -}}",
        " ",
        "\n",
        "text",
        "if ",
        "else",
        "else if ",
        "end",
        "range ",
        "with ",
        "break",
        "continue",
        "define \"x\"",
        "template \"x\" ",
        "block \"x\" .",
        "$x := ",
        "$x = ",
        "$x",
        "$i, $e := ",
        ".",
        ".Labels",
        ".Value",
        "$value",
        "$labels",
        ".instance",
        "|",
        "(",
        ")",
        "1",
        "0",
        "-3",
        "2.5",
        "1e9",
        "'a'",
        "\"a(b)*\"",
        "`%v %5.1f`",
        "nil",
        "true",
        "print ",
        "printf ",
        "index ",
        "slice ",
        "len ",
        "eq ",
        "lt ",
        "and ",
        "or ",
        "not ",
        "query \"up\"",
        "first ",
        "sortByLabel \"instance\" ",
        "args ",
        "match ",
        "humanize ",
        "toTime ",
        "toDuration ",
        ".Format ",
    ];

    proptest! {
        #[test]
        fn every_text_is_expanded_or_refused(pieces in vec(0..PIECES.len(), 0..40)) {
            let text: String = pieces.iter().map(|&idx| PIECES[idx]).collect();
            super::template(text.as_bytes());
        }

        /// Actions that are closed: more of these parse.
        #[test]
        fn every_action_is_expanded_or_refused(
            actions in vec(vec(5..PIECES.len(), 0..8), 0..8)
        ) {
            let action = |pieces: &Vec<usize>| {
                let words: Vec<&str> = pieces.iter().map(|&idx| PIECES[idx]).collect();
                format!("{{{{ {} }}}}", words.join(" "))
            };
            let text: String = actions.iter().map(action).collect();
            super::template(text.as_bytes());
        }
    }

    /// Lines of rule files: in order of a file, most lists of them are wrong.
    const LINES: [&str; 24] = [
        "groups:\n",
        "- name: g\n",
        "  interval: 30s\n",
        "  query_offset: 1m\n",
        "  limit: 3\n",
        "  labels: {a: b, c: \"{{ $value }}\"}\n",
        "  rules:\n",
        "  - record: a:b\n",
        "  - alert: A\n",
        "    expr: sum by (a) (rate(b[5m])) > 1\n",
        "    expr: |\n      up == 0\n",
        "    for: 5m\n",
        "    keep_firing_for: 1h\n",
        "    labels: {severity: page}\n",
        "    annotations: {text: \"{{ .Labels.a }}\"}\n",
        "    unknown: 1\n",
        "  - {record: x, expr: y}\n",
        "  - {record: x, alert: y, expr: z}\n",
        "---\n",
        "# text\n",
        "\t",
        "  - &x {record: x, expr: y}\n",
        "  - *x\n",
        "\u{feff}",
    ];

    proptest! {
        #[test]
        fn every_rule_file_is_read_or_refused(lines in vec(0..LINES.len(), 0..24), sorts: bool) {
            let mut lines = lines;
            if sorts {
                lines.sort_unstable();
            }
            let text: String = lines.iter().map(|&idx| LINES[idx]).collect();
            super::rule_file(text.as_bytes());
        }
    }
}
