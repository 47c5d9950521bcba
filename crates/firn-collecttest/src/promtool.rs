//! `promtool/`: commands, and files of targets.

use std::path::Path;
use std::process::Command;

use firn_collect::config::discovery::TargetGroup;
use serde_json::Value;

use super::configs::RealFiles;
use super::report::{Report, error_parts, expect_equal, expect_error, map, read_json, texts};

pub(super) fn run(folder: &Path, firn: &Path) -> Report {
    let folder = folder.join("promtool");
    let index = read_json(&folder.join("index.json"));
    let mut report = Report::default();
    for (name, case) in map(&index) {
        report.run(name, || check(&folder, firn, case));
    }
    report
}

fn check(folder: &Path, firn: &Path, case: &Value) -> Result<(), String> {
    let path = folder.join(case["file"].as_str().unwrap());
    let parts = error_parts(&case["stderr"], folder);
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    if case["read_as"] == "file_sd" {
        let result = TargetGroup::read_file(&path, &RealFiles).map_err(|error| error.to_string());
        return match case["exit"].as_u64() {
            Some(0) => result.map(drop),
            _ => expect_error(result, &parts),
        };
    }
    // promtool takes the flags of a command anywhere, `firn` behind its words.
    let (flags, words): (Vec<&str>, Vec<&str>) =
        texts(&case["args"]).into_iter().partition(|argument| argument.starts_with('-'));
    let output = Command::new(firn)
        .args(words)
        .args(flags)
        .arg(&path)
        .output()
        .map_err(|error| format!("{}: {error}", firn.display()))?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code().map_or("a signal".to_owned(), |code| code.to_string());
    expect_equal(&code, &case["exit"].to_string()).map_err(|error| format!("{error}: {errors}"))?;
    expect_error::<()>(Err(errors.clone()), &parts)?;
    let duplicates = case["duplicates"].as_array();
    for duplicate in duplicates.into_iter().flatten() {
        let labels = duplicate["labels"].as_object().into_iter().flatten();
        let labels: String = labels
            .map(|(name, value)| format!("\t{name}: {}\n", value.as_str().unwrap_or_default()))
            .collect();
        let metric = duplicate["metric"].as_str().unwrap_or_default();
        let want = format!("Metric: {metric}\nLabel(s):\n{labels}");
        expect_error::<()>(Err(errors.clone()), &[&want])?;
    }
    if let Some(duplicates) = duplicates {
        let count = errors.matches("Metric: ").count();
        expect_equal(&count.to_string(), &duplicates.len().to_string())?;
    }
    Ok(())
}
