//! `targets.json`.

use std::path::Path;

use firn_collect::config::{Config, LabelSet, ScrapeConfig};
use firn_collect::relabel::{LabelEditor, Rules};
use firn_collect::targets::{Target, sample_labels};
use firn_model::Labels;
use serde_json::Value;

use super::report::{Report, expect_equal, list, read_json};

pub(super) fn run(folder: &Path) -> Report {
    let cases = read_json(&folder.join("targets.json"));
    let mut report = Report::default();
    for case in list(&cases["populate"]) {
        report.run(&format!("populate {}", case["name"]), || populates(case));
    }
    for case in list(&cases["conflicts"]) {
        report.run(&format!("conflict {}", case["name"]), || unites(case));
    }
    report
}

fn populates(case: &Value) -> Result<(), String> {
    let config = serde_json::json!({ "scrape_configs": [case["scrape_config"]] }).to_string();
    let loaded = Config::parse(&config, &|_| None).map_err(|error| error.to_string())?;
    let job = &loaded.config.scrape_configs[0];
    match (populate(job, case), case["error"].as_str()) {
        (Err(error), Some(want)) => expect_equal(&error, want),
        (Err(error), None) => Err(error),
        (Ok(target), Some(want)) => Err(format!("got {target:?}, expected {want}")),
        (Ok(None), None) => expect_equal("true", &case["dropped"].to_string()),
        (Ok(Some(target)), None) => {
            expect_equal(&target.labels.to_string(), &labels(&case["labels"]).to_string())?;
            let before = labels(&case["before_relabelling"]).to_string();
            expect_equal(&target.discovered.to_string(), &before)
        }
    }
}

fn populate(job: &ScrapeConfig, case: &Value) -> Result<Option<Target>, String> {
    let pairs = case["discovered"].as_object().unwrap();
    let pairs: Vec<(&[u8], Vec<u8>)> = pairs
        .iter()
        .map(|(name, value)| (name.as_bytes(), bytes(value.as_str().unwrap())))
        .collect();
    let pairs = pairs.iter().map(|(name, value)| (*name, value.as_slice()));
    let target = LabelSet::from_bytes(pairs).map_err(|error| error.to_string())?;
    let mut editor = LabelEditor::default();
    let group = LabelSet::default();
    let discovered = Target::discovered_labels(job, &target, &group, &mut editor).unwrap();
    Target::populate(job, discovered, &mut editor).map_err(|error| error.to_string())
}

fn unites(case: &Value) -> Result<(), String> {
    let exposed = exposed(case["exposed"].as_str().unwrap());
    let exposed: Vec<(&str, &str)> =
        exposed.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let got = sample_labels(
        &exposed,
        &labels(&case["target_labels"]),
        case["honor_labels"].as_bool().unwrap(),
        &Rules::default(),
        &mut LabelEditor::default(),
    );
    let got = got.unwrap().unwrap();
    expect_equal(&got.to_string(), &labels(&case["stored"]).to_string())
}

fn labels(value: &Value) -> Labels {
    let pairs = value.as_object().unwrap();
    let pairs = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap()));
    Labels::from_pairs(pairs).unwrap()
}

/// `\xNN` is a byte.
fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\\x") {
        bytes.extend_from_slice(before.as_bytes());
        bytes.push(u8::from_str_radix(&after[..2], 16).unwrap());
        rest = &after[2..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

/// The labels of a line such as `name{a="1", b="2"} 3`, whose values have no escapes.
fn exposed(line: &str) -> Vec<(String, String)> {
    let (series, _) = line.rsplit_once(' ').unwrap();
    let (name, inside) = series.split_once('{').unwrap_or((series, ""));
    let mut labels = vec![("__name__".to_owned(), name.to_owned())];
    let pairs = inside.trim_end_matches('}').split(',').filter(|pair| !pair.trim().is_empty());
    labels.extend(pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap();
        (name.trim().to_owned(), value.trim().trim_matches('"').to_owned())
    }));
    labels
}
