//! `rules/`.

use std::path::Path;

use firn_rules::file::{MORE_DOCUMENTS, ReadOptions, RuleFile, RuleNames};
use firn_rules::group::{Rule, batches, rule_links};
use serde_json::Value;

use super::report::{Report, error_parts, expect_equal, expect_error, map, read_json};

pub(super) fn run(folder: &Path) -> Report {
    let folder = folder.join("rules");
    let index = read_json(&folder.join("index.json"));
    let mut report = Report::default();
    for (name, case) in map(&index) {
        report.run(name, || check(&folder, name, case));
    }
    report
}

fn check(folder: &Path, name: &str, case: &Value) -> Result<(), String> {
    let names = if case["scheme"] == "legacy" { RuleNames::Legacy } else { RuleNames::Utf8 };
    let options = ReadOptions { names, ..ReadOptions::default() };
    let text = std::fs::read_to_string(folder.join(name)).map_err(|error| error.to_string())?;
    let read = RuleFile::parse(&text, &options).map_err(|mistakes| mistakes.join("\n"));
    if case["expect"] == "error" {
        let parts = error_parts(&case["contains"], folder);
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        return expect_error(read, &parts);
    }
    let file = read?;
    if let Some(count) = case["groups"].as_u64() {
        expect_equal(&file.groups.len().to_string(), &count.to_string())?;
    }
    let warning = file.has_more_documents.then_some(MORE_DOCUMENTS);
    expect_equal(warning.unwrap_or(""), case["warning"].as_str().unwrap_or(""))?;
    let rules = || file.groups.iter().flat_map(|group| &group.rules);
    let shapes: Vec<_> = rules().map(Rule::shape).collect();
    let links = rule_links(&shapes);
    if let Some(want) = case["dependencies"].as_object() {
        for (rule, links) in rules().zip(&links) {
            let got = serde_json::json!({
                "no_dependents": links.no_dependents, "no_dependencies": links.no_dependencies,
            });
            let want = want.get(rule.name()).ok_or_else(|| format!("{} is new", rule.name()))?;
            expect_equal(&format!("{}: {got}", rule.name()), &format!("{}: {want}", rule.name()))?;
        }
        expect_equal(&links.len().to_string(), &want.len().to_string())?;
    }
    if case["batches"].is_array() {
        expect_equal(
            &serde_json::json!(batches(&links)).to_string(),
            &case["batches"].to_string(),
        )?;
    }
    Ok(())
}
