//! The check that the fuzzer `template` runs on its input. Compiled for tests and fuzzers only.

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_model::{Labels, PointValue};
use firn_promql::VectorPoint;

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
    };
    let result = template.execute(&data, &environment);
    assert_eq!(result, template.execute(&data, &environment));
    match &result {
        Ok(text) => assert!(text.len() <= BYTES_MAX),
        Err(error) => check_error(&error.to_string()),
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
}
