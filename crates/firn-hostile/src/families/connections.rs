//! Targets that hang until the server may open no further file: its connections to other servers
//! are a quarter of them.

use std::fs;

use super::collecting::{
    INTERVAL, METRICS, SECRET, SERVED_TIME_MAX, is_unaffected, reload, setup, state, unaffected,
};
use super::peer::{bytes, peer, wait_until, whole};
use crate::attack::{Attack, Family, attack, script};
use crate::client::get;
use crate::target::Target;

pub(crate) fn family() -> Family {
    Family::new("connections", setup(&["--alert-resend-delay=1s"]).open_files_max(400))
        .because(
            "targets of a job that hang leave connections to other jobs, alerts, discoveries and \
             receivers",
            [
                hanging("400 targets that hang at the limit of files", 400, "1s"),
                hanging("4,000 targets that hang at the limit of files", 4_000, "1s"),
                hanging("400 targets that hang for long", 400, "10s"),
            ],
        )
        .with_quick(&["400 targets that hang at the limit of files"])
}

/// A quarter of 400 files, five eighths of these for scrapes, half of them for targets that do not
/// answer, three quarters of these for one job.
const HANGING: f64 = 23.0;

const JSON: &str = "application/json";
const SECOND: &str = "/connections-second";
const ALERTS: &str = "/connections-alerts";
const LIST: &str = "/connections-list";
const RECEIVER: &str = "/connections-receiver";

fn hanging(name: &'static str, count: usize, timeout: &'static str) -> Attack {
    let act = script(move |target| {
        peer().set(ALERTS, bytes(whole(JSON, "{}")));
        peer().set(LIST, bytes(whole(JSON, "[]")));
        peer().set(SECOND, bytes(whole(METRICS, "second 1\n")));
        peer().set(RECEIVER, bytes("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"));
        let (address, silent) = (peer().address, peer().silent);
        let groups: Vec<String> = (0..count)
            .map(|n| format!("{{targets: ['{silent}'], labels: {{n: '{n}'}}}}"))
            .collect();
        let auth = format!("basic_auth: {{username: u, password: {SECRET}}}");
        let jobs = format!(
            "- job_name: hostile\n  scrape_interval: {timeout}\n  scrape_timeout: {timeout}\n  \
             {auth}\n  static_configs: [{}]\n\
             - job_name: second\n  metrics_path: {SECOND}\n  \
             {auth}\n  static_configs: [{{targets: ['{address}']}}]\n\
             - job_name: listed\n  http_sd_configs: [{{url: 'http://{address}{LIST}', \
             refresh_interval: 1s, {auth}}}]\n",
            groups.join(",")
        );
        let rules = target.folder().join("rules.yml");
        let rule = "{alert: A, expr: vector(1)}";
        let text = format!("groups: [{{name: g, interval: {INTERVAL}, rules: [{rule}]}}]\n");
        let _ = fs::write(&rules, text);
        let sections = format!(
            "rule_files: ['{}']\n\
             alerting: {{alertmanagers: [{{path_prefix: '{ALERTS}', {auth}, \
             static_configs: [{{targets: ['{address}']}}]}}]}}\n\
             remote_write: [{{url: 'http://{address}{RECEIVER}', {auth}}}]\n",
            rules.display()
        );
        let mut answers = vec![reload(target, &jobs, &sections)];
        let time_max = target.limit(SERVED_TIME_MAX);
        if wait_until(time_max, || scrape_connections(target) >= HANGING)
            && [SECOND, ALERTS, LIST, RECEIVER]
                .iter()
                .all(|path| peer().wait_for(path, 2, time_max))
        {
            answers.extend(state(target));
        }
        answers
    });
    let expect = unaffected().within(90).check(|answers, target| {
        if answers.len() < 2 {
            let what = "no connection hangs, or targets, alerts, lists or samples wait for others";
            return Err(what.to_owned());
        }
        is_unaffected(target)?;
        reload(target, "", "");
        Ok(())
    });
    attack(name, act, expect)
}

/// Open connections to targets.
fn scrape_connections(target: &Target) -> f64 {
    let name = "firn_outgoing_connections{purpose=\"scrapes\"} ";
    let text = get("/metrics").send(target).text();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
    value.unwrap_or(0.0)
}
