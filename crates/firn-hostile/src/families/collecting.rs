//! Shared by the families of a collecting server: its configuration, the target that must not be
//! affected by others, and the responses that must not show a secret.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::peer::{Behaviour, bytes, peer, wait_until, whole};
use crate::attack::{Attack, Expect, attack, script, status};
use crate::client::{Answer, get, post};
use crate::target::{Setup, Target};

/// The password and the token of every client of the configuration.
pub(crate) const SECRET: &str = "sekret-of-the-configuration";
/// Between scrapes, evaluations and refreshes.
pub(crate) const INTERVAL: &str = "500ms";
/// The type of metrics as text.
pub(crate) const METRICS: &str = "text/plain; version=0.0.4";

const FILE: &str = "prometheus.yml";
const GOOD_PATH: &str = "/good";
/// Other targets, rules and Alertmanagers have this long to be served on a busy machine.
pub(crate) const SERVED_TIME_MAX: Duration = Duration::from_secs(15);

/// A database that collects.
pub(crate) fn setup(flags: &[&str]) -> Setup {
    let mut all = vec!["--enable-lifecycle", "--query-timeout=5s", "--self-scrape=never"];
    // The load ends at the start of the program; rules still read it hours later.
    all.push("--lookback=1d");
    all.extend(flags);
    Setup::database(&all).prepared(prepare)
}

fn prepare(folder: &Path) -> io::Result<Vec<String>> {
    peer().set(GOOD_PATH, bytes(whole(METRICS, "good 1\n")));
    let path = folder.join(FILE);
    fs::write(&path, configuration("", ""))?;
    Ok(vec![format!("--prometheus-config={}", path.display())])
}

/// The file with further jobs and sections.
fn configuration(jobs: &str, sections: &str) -> String {
    let address = peer().address;
    format!(
        "global: {{scrape_interval: {INTERVAL}, scrape_timeout: {INTERVAL}, \
         evaluation_interval: {INTERVAL}}}\n{sections}\n\
         scrape_configs:\n\
         - job_name: good\n  metrics_path: {GOOD_PATH}\n  \
         authorization: {{credentials: {SECRET}}}\n  \
         static_configs: [{{targets: ['{address}']}}]\n{jobs}\n"
    )
}

/// Sets further jobs and sections.
pub(crate) fn reload(target: &Target, jobs: &str, sections: &str) -> Answer {
    let _ = fs::write(target.folder().join(FILE), configuration(jobs, sections));
    post("/-/reload").send(target)
}

/// The responses about targets, rules and alerts, and the metrics.
pub(crate) fn state(target: &Target) -> Vec<Answer> {
    const PATHS: [&str; 8] = [
        "/api/v1/targets",
        "/api/v1/targets/metadata?limit=1000",
        "/api/v1/scrape_pools",
        "/api/v1/rules",
        "/api/v1/alerts",
        "/api/v1/alertmanagers",
        "/api/v1/status/config",
        "/metrics",
    ];
    PATHS.iter().map(|path| get(*path).send(target)).collect()
}

/// Responses about the state, or refusals for want of memory; the good target is scraped; no
/// secret is shown.
pub(crate) fn unaffected() -> Expect {
    status([200, 422, 429, 503]).lacks(SECRET).within(60).check(|_, target| is_unaffected(target))
}

/// The good target is scraped, and the log contains no secret.
pub(crate) fn is_unaffected(target: &Target) -> Result<(), String> {
    is_good_scraped(target)?;
    match target.log().lines().find(|line| line.contains(SECRET)) {
        Some(line) => Err(format!("the log contains a secret: {line}")),
        None => Ok(()),
    }
}

fn is_good_scraped(target: &Target) -> Result<(), String> {
    let time_max = target.limit(SERVED_TIME_MAX);
    if !peer().wait_for(GOOD_PATH, 2, time_max) {
        return Err("another target is not scraped".to_owned());
    }
    let up = || get("/api/v1/query?query=up{job=\"good\"}==1".replace('"', "%22")).send(target);
    let is_up = || up().text().contains("\"good\"");
    match wait_until(time_max, is_up) {
        true => Ok(()),
        false => Err(format!("another target is not up: {}", up().excerpt())),
    }
}

/// A path that no other attack has.
pub(crate) fn path_of(name: &str) -> String {
    let is_kept = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    format!("/{}", name.chars().map(is_kept).collect::<String>())
}

/// A target with this behaviour, in a job with these further keys, is scraped twice.
pub(crate) fn target(name: &'static str, keys: &'static str, behaviour: Behaviour) -> Attack {
    let path = path_of(name);
    let act = script(move |target| {
        peer().set(&path, Behaviour::clone(&behaviour));
        let address = peer().address;
        let job = format!(
            "- job_name: hostile\n  metrics_path: '{path}'\n  \
             basic_auth: {{username: u, password: {SECRET}}}\n  \
             static_configs: [{{targets: ['{address}']}}]\n{}",
            indented(keys)
        );
        let mut answers = vec![reload(target, &job, "")];
        peer().wait_for(&path, 2, SERVED_TIME_MAX);
        wait_until(SERVED_TIME_MAX, || is_scraped(target, &path));
        answers.extend(state(target));
        answers
    });
    attack(name, act, unaffected())
}

/// Whether the target has the outcome of a scrape.
fn is_scraped(target: &Target, path: &str) -> bool {
    let text = get("/api/v1/targets?scrapePool=hostile").send(target).text();
    text.contains(path) && !text.contains("\"health\":\"unknown\"")
}

/// Lines of a job.
pub(crate) fn indented(keys: &str) -> String {
    keys.lines().map(|line| format!("  {line}\n")).collect()
}
