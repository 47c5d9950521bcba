//! `templates.json`, and cases of the same form.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use firn_model::{Labels, PointValue};
use firn_promql::VectorPoint;
use firn_rules::template::{
    AlertData, Environment, IntType, ListType, MissingKey, Template, UintType, Value,
};
use serde_json::Value as Json;

use super::report::{Report, expect_equal, list, read_json};

const NOW: i64 = 1_353_755_652_000;
const EXTERNAL_URL: &str = "http://testhost:9090/path/prefix";

/// A case may fail with any text where it must fail.
pub(super) fn run(folder: &Path) -> Report {
    let file = read_json(&folder.join("templates.json"));
    let mut report = Report::default();
    for case in list(&file["cases"]) {
        report.run(&name(case), || match expand(case) {
            Err(_) if case["error"].is_string() => Ok(()),
            result => check(case, result),
        });
    }
    report
}

/// Runs cases of the form of `templates.json`, one a line. `alert` cases have the data of an
/// alert. Texts of errors must be equal.
pub fn run_template_lines(lines: &str) -> Report {
    let mut report = Report::default();
    for line in lines.lines() {
        let case: Json = serde_json::from_str(line).unwrap();
        report.run(&name(&case), || check(&case, expand(&case)));
    }
    report
}

fn name(case: &Json) -> String {
    format!("{} {}", case["name"].as_str().unwrap_or_default(), case["text"])
}

/// `Err` unless the case has the output or the error that it demands.
fn check(case: &Json, result: Result<String, String>) -> Result<(), String> {
    let (key, got) = match &result {
        Ok(output) => ("output", output),
        Err(error) => ("error", error),
    };
    expect_equal(got, case[key].as_str().unwrap_or("the other kind of result"))
}

fn expand(case: &Json) -> Result<String, String> {
    let text = case["text"].as_str().unwrap();
    let is_alert = case["alert"] == true;
    let name = if is_alert { "__alert_X" } else { "test" };
    let parsed = match is_alert {
        true => Template::parse_alert("X", text),
        false => Template::parse(name, text),
    };
    let template = parsed.map_err(|error| format!("error parsing template {name}: {error}"))?;
    let query = |text: &str| match text {
        "bad" => Err("query failed".to_owned()),
        _ => Ok(query_result(&case["query_result"])),
    };
    let environment = Environment {
        now: NOW,
        external_url: EXTERNAL_URL,
        missing_key: missing_key(&case["options"]),
        query: &query,
        reserve: &|_| Ok(()),
    };
    let data = if is_alert { alert(case) } else { input(&case["input"]) };
    template
        .execute(&data, &environment)
        .map_err(|error| format!("error executing template {name}: {error}"))
}

fn alert(case: &Json) -> Value {
    let labels = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Arc::new(BTreeMap::from_iter(pairs))
    };
    Value::Alert(Arc::new(AlertData {
        labels: labels(&[("__name__", "up"), ("instance", "a:80"), ("job", "j")]),
        external_labels: labels(&[("dc", "eu"), ("replica", "0")]),
        external_url: EXTERNAL_URL.into(),
        value: Value::Float(case["value"].as_f64().unwrap()),
    }))
}

fn missing_key(options: &Json) -> MissingKey {
    let Some(options) = options.as_array() else { return MissingKey::Zero };
    match options.last().and_then(|option| option.as_str()) {
        Some("missingkey=error") => MissingKey::Error,
        Some("missingkey=zero") => MissingKey::Zero,
        _ => MissingKey::Invalid,
    }
}

fn query_result(rows: &Json) -> Vec<VectorPoint> {
    let point = |row: &Json| {
        let labels = row["metric"].as_object().unwrap();
        let labels = labels.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap()));
        VectorPoint {
            labels: Labels::from_pairs(labels).unwrap(),
            ts: NOW,
            value: PointValue::Float(number(&row["value"]).parse().unwrap()),
        }
    };
    rows.as_array().into_iter().flatten().map(point).collect()
}

/// A number, or its text where JSON has none.
fn number(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A list of values of a type of Go, or one of them.
fn input(input: &Json) -> Value {
    let Some(name) = input["type"].as_str() else { return Value::Nil };
    let (kind, item): (ListType, fn(String) -> Value) = match name {
        "float64" => (ListType::Float, |text| Value::Float(text.parse().unwrap())),
        "int" => (ListType::Int, |text| Value::Int(text.parse().unwrap(), IntType::Int)),
        "int64" => (ListType::Int64, |text| Value::Int(text.parse().unwrap(), IntType::Int64)),
        // As all unsigned numbers, `uint` behaves as the widest one.
        "uint" | "uint64" => {
            (ListType::Uint64, |text| Value::Uint(text.parse().unwrap(), UintType::Uint64))
        }
        "string" => (ListType::String, |text| Value::text(text)),
        other => panic!("unknown type {other}"),
    };
    match (&input["values"], &input["value"]) {
        (Json::Array(values), _) => {
            Value::List(kind, values.iter().map(|value| item(number(value))).collect::<Arc<[_]>>())
        }
        (Json::Null, one) | (one, _) => item(number(one)),
    }
}
