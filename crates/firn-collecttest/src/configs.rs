//! `configs/`.

use std::collections::BTreeMap;
use std::path::Path;

use firn_collect::config::{Config, Files, LoadOptions, ScrapeConfig};
use serde_json::Value;

use super::report::{Report, error_parts, expect_equal, expect_error, map, read_json};

/// The real files.
pub(super) struct RealFiles;

impl Files for RealFiles {
    fn read(&self, path: &Path) -> std::io::Result<String> {
        std::fs::read_to_string(path)
    }

    fn list(&self, folder: &Path) -> std::io::Result<Vec<String>> {
        let names = std::fs::read_dir(folder)?;
        names.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }
}

pub(super) fn run(folder: &Path) -> Report {
    let folder = folder.join("configs");
    let index = read_json(&folder.join("index.json"));
    let mut report = Report::default();
    for (name, case) in map(&index) {
        report.run(name, || check(&folder, name, case));
    }
    report
}

fn check(folder: &Path, name: &str, case: &Value) -> Result<(), String> {
    let path = folder.join(name);
    let is_agent = case["agent"].as_bool().unwrap_or(false);
    let load = |env: &dyn Fn(&str) -> Option<String>| {
        let loaded = Config::load(&path, &RealFiles, &LoadOptions { env, is_agent });
        loaded.map(|loaded| loaded.config).map_err(|error| error.to_string())
    };
    let loaded = load(&|_| None);
    // Files that are wrong in an included file load themselves.
    let jobs = match (&loaded, case["stage"].as_str()) {
        (Ok(config), Some(_)) => {
            config.scrape_configs(&RealFiles).map_err(|error| error.to_string())
        }
        (Ok(config), None) => Ok(config.scrape_configs.to_vec()),
        (Err(error), _) => Err(error.clone()),
    };
    if case["expect"] == "error" {
        let parts = error_parts(&case["contains"], folder);
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        return expect_error(jobs, &parts);
    }
    let (config, jobs) = (loaded?, jobs?);
    for (got, want) in jobs.iter().zip(case["effective"].as_array().into_iter().flatten()) {
        for (key, want) in want.as_object().unwrap() {
            expect_equal(&format!("{key}: {}", effective(got, key)), &format!("{key}: {want}"))?;
        }
    }
    if let Some(want) = case["effective"].as_array() {
        expect_equal(&jobs.len().to_string(), &want.len().to_string())?;
    }
    for case in case["external_labels"].as_array().into_iter().flatten() {
        let env = |name: &str| Some(case["env"].get(name)?.as_str()?.to_owned());
        let config = load(&env)?;
        let labels: BTreeMap<_, _> = config.global.external_labels.iter().collect();
        expect_equal(&serde_json::json!(labels).to_string(), &case["labels"].to_string())?;
    }
    // Not those of included files.
    let all = config
        .scrape_configs
        .iter()
        .map(|job| &job.discoveries)
        .chain(config.alerting.alertmanagers.iter().map(|one| &one.discoveries));
    let mut unsupported: Vec<&str> = all.flat_map(|one| one.unsupported()).collect();
    unsupported.sort_unstable();
    unsupported.dedup();
    let want = case["other_discovery"].as_array();
    let want: Vec<&str> = want.into_iter().flatten().filter_map(Value::as_str).collect();
    expect_equal(&unsupported.join(" "), &want.join(" "))?;
    if !case["external_labels"].is_null() {
        // The printed labels would be expanded again.
        return Ok(());
    }
    // The printed configuration has no secret, so it is compared without one.
    let printed = config.to_yaml();
    let reread = Config::parse(&printed, &|_| None).map_err(|e| format!("{e}: {printed}"))?;
    expect_equal(&reread.config.to_yaml(), &printed)
}

/// The value of `key` as JSON.
fn effective(job: &ScrapeConfig, key: &str) -> String {
    let text = |text: &str| Value::from(text);
    let switch = |switch: Option<bool>| Value::from(switch.unwrap());
    let value = match key {
        "job_name" => text(&job.job_name),
        "scrape_interval" => text(&job.scrape_interval.to_string()),
        "scrape_timeout" => text(&job.scrape_timeout.to_string()),
        "scrape_protocols" => {
            let protocols = job.scrape_protocols.as_ref().unwrap();
            protocols.iter().map(|protocol| text(protocol.as_str())).collect()
        }
        "scrape_native_histograms" => switch(job.scrape_native_histograms),
        "always_scrape_classic_histograms" => switch(job.always_scrape_classic_histograms),
        "convert_classic_histograms_to_nhcb" => switch(job.convert_classic_histograms_to_nhcb),
        "extra_scrape_metrics" => switch(job.extra_scrape_metrics),
        "metric_name_validation_scheme" => text(job.metric_name_validation_scheme.as_str()),
        "metric_name_escaping_scheme" => text(job.metric_name_escaping_scheme.get().as_str()),
        other => panic!("unknown key {other}"),
    };
    value.to_string()
}
