//! `relabel.json`.

use std::path::Path;

use firn_collect::relabel::{LabelEditor, NameScheme, RuleConfig, Rules};
use firn_model::Labels;
use serde_json::{Value, json};

use super::report::{Report, expect_equal, expect_error, list, read_json};

pub(super) fn run(folder: &Path) -> Report {
    let cases = read_json(&folder.join("relabel.json"));
    let mut report = Report::default();
    for case in list(&cases["cases"]) {
        report.run(&format!("case {}", case["name"]), || relabels(case));
    }
    for case in list(&cases["validate"]) {
        report.run(&format!("validate {}", case["name"]), || validates(case));
    }
    for case in list(&cases["legacy_target_label"]) {
        report.run(&format!("target label {}", case["name"]), || {
            // A reference makes a template of the name; the action and the groups do not matter.
            let rule = json!([{ "target_label": case["target_label"] }]).to_string();
            let valid = Rules::parse(&rule, NameScheme::Legacy).is_ok();
            expect_equal(&valid.to_string(), &case["valid"].to_string())
        });
    }
    report
}

fn relabels(case: &Value) -> Result<(), String> {
    let rules = Rules::parse(&case["relabel"].to_string(), NameScheme::Utf8)
        .map_err(|error| error.to_string())?;
    let labels = labels(&case["input"]);
    let got = rules.relabel(&labels, &mut LabelEditor::default()).unwrap();
    let mut last = Some(labels.clone());
    let keep = |_: &RuleConfig, labels: Option<&Labels>| {
        last = labels.cloned();
        Ok(())
    };
    rules.for_each_step(&labels, keep).unwrap();
    expect_equal(&format!("{got:?}"), &format!("{last:?}"))?;
    match case["drop"].as_bool() {
        Some(true) => expect_equal(&format!("{got:?}"), "None"),
        _ => {
            expect_equal(&format!("{got:?}"), &format!("{:?}", Some(self::labels(&case["output"]))))
        }
    }
}

fn validates(case: &Value) -> Result<(), String> {
    let scheme = case["scheme"].as_str().unwrap().parse().unwrap();
    let rule = json!([case["config"]]).to_string();
    let result = Rules::parse(&rule, scheme).map_err(|error| error.to_string());
    match case["expect"].as_str() {
        Some("ok") => result.map(drop),
        _ => expect_error(result, &[case["contains"].as_str().unwrap()]),
    }
}

fn labels(value: &Value) -> Labels {
    let pairs = value.as_object().unwrap();
    let pairs = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap()));
    Labels::from_pairs(pairs).unwrap()
}
