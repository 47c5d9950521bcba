//! SIGKILL at random moments of evaluations of a long chain of rules.
//!
//! Crash: the process, with any `--log-sync` and number of log streams. On disk: the data that the
//! system has. Afterwards: of each slot a first part of the chain is stored, and each result is the
//! one of its slot; no sample is between slots; the clock of `for` continues without the outage.
//!
//! `FIRN_KILLS=100` kills that number of times (`make soak`), `FIRN_SEED=7` draws settings and
//! times from another seed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::alerts::{WAIT_MAX, metric};
use crate::http;
use crate::kill::draw;
use crate::process::{Process, firn, free_address, wait_for, wait_until_ready};

const KILLS: u64 = 8;
/// Rules that read the previous one. Each is a write with a sync of its own.
const CHAIN: usize = 40;
/// Rules of a stage, each in a FirnDB group of its own.
const WIDTH: usize = 2;
const INTERVAL_MS: i64 = 100;

/// Rule `r0_0` is the time of its slot; all rules of stage `n` are `r0_0 + n`.
fn rules() -> String {
    let mut rules = String::from("groups:\n- name: chain\n  rules:\n");
    for stage in 0..CHAIN {
        for idx in 0..WIDTH {
            let expr = match stage.checked_sub(1) {
                None => "vector(time())".to_owned(),
                Some(previous) => format!("r{previous}_{idx} + 1"),
            };
            let _ = writeln!(rules, "  - {{record: r{stage}_{idx}, expr: '{expr}'}}");
        }
    }
    rules.push_str("  - {alert: Waits, expr: 'r0_0 > 0', for: 1h}\n");
    rules
}

fn start(folder: &Path, address: SocketAddr, random: &mut u64) -> Process {
    let mut command = firn(folder, address);
    command.arg(format!("--prometheus-config={}", folder.join("prometheus.yml").display()));
    command.args(["--self-scrape", "never", "--alert-grace-period", "1s"]);
    command.arg(format!("--log-streams={}", 1 + draw(random, 3)));
    command.arg(format!("--log-sync={}", ["always", "20ms", "never"][draw(random, 3) as usize]));
    let process = Process::start("firn", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    process
}

fn wait_for_evaluations(address: SocketAddr, count: u64) {
    // It counts rules.
    let count = count * (CHAIN * WIDTH + 1) as u64;
    wait_for("evaluations", WAIT_MAX, || {
        metric(address, "firn_rule_evaluations_total{") >= count as f64
    });
}

/// The samples of each series of a selector, by metric: times in milliseconds and values.
fn samples(address: SocketAddr, selector: &str) -> BTreeMap<String, Vec<(i64, f64)>> {
    let query = format!("{selector}[1h]");
    let data = http::api(address, "/api/v1/query", &[("query", &query)]).expect("an answer");
    let sample = |pair: &Value| {
        let ts = (pair[0].as_f64().expect("a time") * 1e3).round() as i64;
        (ts, pair[1].as_str().expect("a value").parse().expect("a number"))
    };
    let series = data["result"].as_array().expect("a matrix").iter().map(|series| {
        let name = series["metric"]["__name__"].as_str().expect("a name").to_owned();
        (name, series["values"].as_array().expect("values").iter().map(sample).collect())
    });
    series.collect()
}

#[test]
fn a_kill_in_an_evaluation_leaves_no_result_twice() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let (kills, seed) = (number("FIRN_KILLS").unwrap_or(KILLS), number("FIRN_SEED").unwrap_or(1));
    let filter = "a_kill_in_an_evaluation";
    println!("again: FIRN_SEED={seed} FIRN_KILLS={kills} cargo test -p firn --test e2e {filter}");
    let folder = TempDir::new().expect("a folder");
    let address = free_address();
    let config =
        format!("global: {{evaluation_interval: {INTERVAL_MS}ms}}\nrule_files: [rules.yml]\n");
    fs::write(folder.path().join("prometheus.yml"), config).expect("a file");
    fs::write(folder.path().join("rules.yml"), rules()).expect("a file");
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for _ in 0..kills {
        let mut server = start(folder.path(), address, &mut random);
        // Some evaluations, and a part of another one.
        wait_for_evaluations(address, 3 + draw(&mut random, 4));
        for _ in 0..draw(&mut random, 60) {
            let _ = http::get(address, "/-/healthy");
        }
        server.kill();
    }
    let _server = start(folder.path(), address, &mut random);
    wait_for_evaluations(address, 5);

    // The number of results, by slot and stage.
    let mut slots: BTreeMap<i64, BTreeMap<usize, usize>> = BTreeMap::new();
    for (name, samples) in samples(address, "{__name__=~\"r.*\"}") {
        let stage: usize = name[1..].split_once('_').expect("a stage").0.parse().expect("a stage");
        for (ts, value) in samples {
            assert_eq!(value, ts as f64 / 1e3 + stage as f64, "{name} at {ts}");
            *slots.entry(ts).or_default().entry(stage).or_default() += 1;
        }
    }
    let first = *slots.keys().next().expect("results");
    assert!(slots.keys().all(|ts| (ts - first) % INTERVAL_MS == 0), "beside the slots: {slots:?}");
    let mut part_count = 0;
    for (ts, stages) in &slots {
        assert!(stages.keys().copied().eq(0..stages.len()), "{ts}: {stages:?}");
        let before_last = stages.values().rev().skip(1);
        assert!(before_last.clone().all(|&count| count == WIDTH), "{ts}: {stages:?}");
        // The last slot may not have ended yet.
        part_count += usize::from(stages.len() < CHAIN);
    }
    println!("{} slots, {part_count} in part", slots.len());
    assert!(slots.len() as u64 >= 3 * kills, "{} slots", slots.len());

    let clocks = samples(address, "ALERTS_FOR_STATE");
    let clock = clocks.values().next().expect("the clock of the alert");
    for pair in clock.windows(2) {
        let (since_ms, outage_ms) = ((pair[1].1 - pair[0].1) * 1e3, (pair[1].0 - pair[0].0) as f64);
        // Starts and ends of outages are whole seconds.
        assert!((0.0..=outage_ms + 2_000.0).contains(&since_ms), "{pair:?}");
        // Two evaluations after a start do not write it.
        assert!(outage_ms >= 3.0 * INTERVAL_MS as f64 || since_ms == 0.0, "{pair:?}");
    }
}
