//! Rules over a real database, with a clock that the test sets.

mod crash;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use firn_collect::config::{Config, Files};
use firn_model::{Budget, Labels, Timestamp};
use firn_rules::group::{Alert, AlertState, RuleHealth};
use firndb::{Db, Options, QueryOptions, QueryTime, Value, local_env};
use tempfile::TempDir;

use super::{RuleManager, RuleOptions, ShownGroup};
use crate::access::{Gate, GateOptions};
use crate::metrics_text::MetricsText;
use crate::query_log::QueryLog;
use crate::throttle::on_lines;

const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const START: Timestamp = 1_700_000_000_000;

/// Files in memory.
#[derive(Clone, Default)]
struct TestFiles(BTreeMap<PathBuf, String>);

impl Files for TestFiles {
    fn read(&self, path: &Path) -> io::Result<String> {
        self.0.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        let inside = |path: &&PathBuf| path.parent() == Some(folder);
        let name = |path: &PathBuf| path.file_name()?.to_str().map(str::to_owned);
        Ok(self.0.keys().filter(inside).filter_map(name).collect())
    }
}

/// A database with a manager.
struct Scene {
    db: Arc<Db>,
    manager: RuleManager,
    clock: Arc<AtomicI64>,
    files: TestFiles,
    config: String,
    folder: TempDir,
}

fn manager(clock: &Arc<AtomicI64>, memory_bytes: u64) -> RuleManager {
    let clock = Arc::clone(clock);
    RuleManager::new(RuleOptions {
        thread_count: 2,
        budget: Budget::unlimited().part_of_setting(memory_bytes, "--rule-memory"),
        memory_bytes,
        query: QueryOptions::default(),
        timeout: Duration::from_secs(100),
        outage_ms: 60 * MINUTE,
        grace_ms: 10 * MINUTE,
        resend_ms: MINUTE,
        queue_len_max: 100,
        external_labels: BTreeMap::new(),
        on_idle: || (),
        clock: Arc::new(move || clock.load(Ordering::Relaxed)),
    })
}

const URL: &str = "http://here:9090";

impl Scene {
    fn new() -> Scene {
        Scene::with_memory(256 << 20)
    }

    fn with_memory(memory_bytes: u64) -> Scene {
        let folder = TempDir::new().unwrap();
        let db = Arc::new(Db::open(local_env(folder.path()).unwrap(), Options::default()).unwrap());
        let clock = Arc::new(AtomicI64::new(START));
        let manager = manager(&clock, memory_bytes);
        manager.attach(&db, URL);
        let config = "global: {evaluation_interval: 1m, external_labels: {dc: eu}}\n\
                      rule_files: [/r/*.yml, /r/a.yml]"
            .to_owned();
        Scene { db, manager, clock, files: TestFiles::default(), config, folder }
    }

    fn load(&mut self, files: &[(&str, &str)]) -> Result<(), String> {
        self.files.0 = files
            .iter()
            .map(|(name, text)| (Path::new("/r").join(name), (*text).to_owned()))
            .collect();
        let config = Config::parse(&self.config, &|_| None).unwrap().config;
        let checked = self.manager.check(&config, &self.files).map_err(|e| e.to_string())?;
        self.manager.apply(checked);
        Ok(())
    }

    fn put(&self, labels: &[(&str, &str)], ts: Timestamp, value: f64) {
        let labels = Labels::from_pairs(labels.iter().copied()).unwrap();
        self.db.put(&labels, ts, value).unwrap();
    }

    /// Evaluates the groups that are due `ms` after the start.
    fn evaluate_at(&self, ms: i64) -> usize {
        self.clock.store(START + ms, Ordering::Relaxed);
        self.manager.evaluate_due()
    }

    /// The result of an instant query `ms` after the start, one line each, sorted.
    fn query(&self, text: &str, ms: i64) -> Vec<String> {
        let output = self.db.query_now(text, QueryTime::Instant(START + ms)).unwrap();
        let Value::Vector(points) = output.value else { panic!("a vector") };
        let mut lines: Vec<String> = points
            .iter()
            .map(|point| match &point.value {
                firn_model::PointValue::Float(value) => format!("{} {value}", point.labels),
                other => format!("{} {other:?}", point.labels),
            })
            .collect();
        lines.sort();
        lines
    }

    fn errors(&self) -> Vec<Option<String>> {
        let groups = self.manager.groups();
        let latest: Vec<_> = groups.iter().map(|group| group.latest()).collect();
        let rules = latest.iter().flat_map(|latest| &latest.rules);
        rules.map(|rule| rule.last_error.as_deref().map(str::to_owned)).collect()
    }

    fn metrics(&self) -> String {
        let mut text = MetricsText::default();
        self.manager.write_text("prometheus", &mut text);
        text.finish()
    }

    /// The names of the files of alerts.
    fn saved_files(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.folder.path().join("fast/alerts"));
        let name = |entry: io::Result<std::fs::DirEntry>| {
            entry.unwrap().file_name().into_string().unwrap()
        };
        files.map(|files| files.map(name).collect()).unwrap_or_default()
    }

    /// The process ends without a stop, and starts again.
    fn restart(self) -> Scene {
        let Scene { db, manager: old, clock, files, config, folder } = self;
        drop((old, db));
        let db = Arc::new(Db::open(local_env(folder.path()).unwrap(), Options::default()).unwrap());
        let manager = manager(&clock, 256 << 20);
        manager.attach(&db, URL);
        Scene { db, manager, clock, files, config, folder }
    }
}

const RECORDS: &str = "groups: [{name: g, rules: [\
    {record: 'job:x:sum', expr: 'sum by (job) (x)'}, \
    {record: y, expr: 'job:x:sum * 2', labels: {team: a}}, \
    {record: z, expr: 'count(x)'}]}]";

#[test]
fn results_are_rows_at_the_slot_and_later_rules_see_them() {
    let mut scene = Scene::new();
    scene.load(&[("a.yml", RECORDS)]).unwrap();
    for job in ["a", "b"] {
        scene.put(&[("__name__", "x"), ("job", job), ("n", "1")], START, 1.0);
        scene.put(&[("__name__", "x"), ("job", job), ("n", "2")], START, 2.0);
    }
    assert_eq!(scene.evaluate_at(0), 0, "no slot has passed");
    assert_eq!(scene.evaluate_at(MINUTE), 1);
    assert_eq!(scene.errors(), [const { None }; 3]);
    assert_eq!(
        scene.query("{__name__=~\"job:x:sum|y|z\"}", MINUTE),
        [
            "job:x:sum{job=\"a\"} 3",
            "job:x:sum{job=\"b\"} 3",
            "y{job=\"a\",team=\"a\"} 6",
            "y{job=\"b\",team=\"a\"} 6",
            "z 4",
        ]
    );
    // All samples have the time of the slot.
    let shown = &scene.manager.groups()[0];
    let times = scene.query("timestamp({__name__=~\"job:x:sum|y|z\"}) * 1000", MINUTE);
    let time = times[0].rsplit_once(' ').unwrap().1.to_owned();
    assert!(times.iter().all(|line| line.ends_with(&time)), "{times:?}");
    let slot: f64 = time.parse().unwrap();
    assert!(slot > START as f64 && slot <= (START + MINUTE) as f64, "{slot}");
    assert_eq!(shown.latest().sample_count, 5);
    // The series of a rule are one group.
    let name = Labels::from_pairs([("__name__", "y")]).unwrap();
    let member = |job| Labels::from_pairs([("job", job), ("team", "a")]).unwrap();
    let refs = scene.db.find_members(&name, &[member("a"), member("b")]).unwrap();
    assert_eq!(refs[0].unwrap().group, refs[1].unwrap().group);
}

/// Before, a panic beside an evaluation ended the thread, and the group that was due was lost.
#[test]
fn a_panic_while_series_end_loses_no_group() {
    let mut scene = Scene::new();
    let group = |name| format!("{{name: {name}, rules: [{{record: {name}, expr: vector(1)}}]}}");
    let load = |scene: &mut Scene, groups: &str| {
        scene.load(&[("a.yml", &format!("groups: [{groups}]"))]).unwrap();
    };
    load(&mut scene, &format!("{}, {}", group("a"), group("b")));
    assert_eq!(scene.evaluate_at(MINUTE), 2);
    load(&mut scene, &group("a"));
    // The stale marker cannot be written, and the line that reports it panics.
    scene.db.close().unwrap();
    let panic_count = Arc::new(AtomicI64::new(0));
    let counted = Arc::clone(&panic_count);
    let panics = move |line: String| {
        if line.contains("have no stale marker") {
            counted.fetch_add(1, Ordering::Relaxed);
            panic!("on purpose");
        }
    };
    on_lines(panics, || assert_eq!(scene.evaluate_at(4 * MINUTE), 1, "group a"));
    assert_eq!(panic_count.load(Ordering::Relaxed), 1);
    assert_eq!(scene.evaluate_at(5 * MINUTE), 1, "group a again");
}

/// Before, only queries of clients were logged.
#[test]
fn queries_of_rules_are_logged() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("queries.log");
    let log = Arc::new(QueryLog::new(Some(path.clone())));
    let gate = Gate::open(GateOptions::default(), Budget::unlimited(), || ()).unwrap();
    log.start(&Arc::new(gate), None).unwrap();
    let mut scene = Scene::new();
    scene.manager.log_queries(&log);
    let rules = "groups: [{name: g, query_offset: 10s, rules: [{record: a, expr: vector( 1 )}, \
                 {record: b, expr: 'label_replace(x, \"n\", \"\", \"\", \"\")'}]}]";
    scene.load(&[("a.yml", rules)]).unwrap();
    for n in ["1", "2"] {
        scene.put(&[("__name__", "x"), ("n", n)], START - MINUTE, 1.0);
    }
    scene.evaluate_at(MINUTE);
    drop((scene, log));
    let lines = std::fs::read_to_string(path).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0]["params"]["query"], "vector(1)");
    assert_eq!(lines[0]["params"]["start"], lines[0]["params"]["end"]);
    assert_eq!(lines[0]["error"], serde_json::Value::Null);
    assert!(lines[1]["error"].is_string(), "{lines:?}");
    let group = serde_json::json!({"file": "/r/a.yml", "name": "g"});
    assert!(lines.iter().all(|line| line["ruleGroup"] == group), "{lines:?}");
}

#[test]
fn series_that_vanish_end() {
    let mut scene = Scene::new();
    scene.load(&[("a.yml", RECORDS)]).unwrap();
    for job in ["a", "b"] {
        scene.put(&[("__name__", "x"), ("job", job)], START, 1.0);
    }
    scene.evaluate_at(MINUTE);
    scene.put(&[("__name__", "x"), ("job", "b")], START + 1, firn_model::STALE_NAN);
    scene.evaluate_at(2 * MINUTE);
    assert_eq!(scene.query("job:x:sum or z", 2 * MINUTE), ["job:x:sum{job=\"a\"} 1", "z 1"]);
    // A rule that a reload removes: at the next evaluation.
    let only_z = "groups: [{name: g, rules: [{record: z, expr: 'count(x)'}]}]";
    scene.load(&[("a.yml", only_z)]).unwrap();
    assert_eq!(scene.query("job:x:sum or y", 2 * MINUTE).len(), 2);
    scene.evaluate_at(3 * MINUTE);
    assert_eq!(scene.query("job:x:sum or y or z", 3 * MINUTE), ["z 1"]);
    // A group that a reload removes: two intervals later, with the time of the reload.
    scene.load(&[]).unwrap();
    assert_eq!(scene.evaluate_at(4 * MINUTE), 0);
    assert_eq!(scene.query("z", 4 * MINUTE), ["z 1"]);
    assert_eq!(scene.evaluate_at(5 * MINUTE), 1);
    assert_eq!(scene.query("z", 5 * MINUTE), [""; 0]);
    assert_eq!(scene.query("z", 3 * MINUTE), [""; 0], "the marker has the time of the reload");
    assert_eq!(scene.query("z", 3 * MINUTE - 1), ["z 1"]);
}

#[test]
fn a_rule_that_moves_to_another_group_goes_on() {
    let mut scene = Scene::new();
    let rules = |group: &str| {
        format!("groups: [{{name: {group}, rules: [{{record: z, expr: vector(1)}}]}}]")
    };
    scene.load(&[("a.yml", &rules("before"))]).unwrap();
    scene.evaluate_at(MINUTE);
    scene.load(&[("a.yml", &rules("after"))]).unwrap();
    for minute in 2..6 {
        scene.evaluate_at(minute * MINUTE);
        assert_eq!(scene.query("z", minute * MINUTE), ["z 1"], "{minute}");
    }
    assert_eq!(scene.query("count_over_time(z[10m])", 6 * MINUTE).len(), 1);
    assert_eq!(scene.query("z", MINUTE + 30 * SECOND), ["z 1"], "no marker between them");
}

#[test]
fn a_wrong_file_changes_nothing_and_all_mistakes_are_listed() {
    let mut scene = Scene::new();
    scene.load(&[("a.yml", RECORDS)]).unwrap();
    let before: Vec<String> = scene.manager.groups().iter().map(|g| g.name.clone()).collect();
    let error = scene
        .load(&[
            ("a.yml", "groups:\n- name: n\n  rules:\n  - record: 'r'\n    expr: 'sum('\n"),
            ("b.yml", "groups: [{name: '', rules: []}]"),
        ])
        .unwrap_err();
    assert!(error.contains("previous rule set restored"), "{error}");
    assert!(
        error.contains("/r/a.yml: 5:11: group \"n\", rule 1, \"r\": could not parse expression"),
        "{error}"
    );
    assert!(error.contains("/r/b.yml: 1:"), "{error}");
    let after: Vec<String> = scene.manager.groups().iter().map(|g| g.name.clone()).collect();
    assert_eq!(before, after);
}

#[test]
fn a_file_that_two_patterns_match_is_read_once() {
    let mut scene = Scene::new();
    let other = "groups: [{name: g, rules: []}, {name: b, interval: 5s, rules: []}]";
    scene.load(&[("a.yml", RECORDS), ("b.yml", other)]).unwrap();
    let groups: Vec<(String, String, i64)> = scene
        .manager
        .groups()
        .iter()
        .map(|group| (group.file.clone(), group.name.clone(), group.interval_ms))
        .collect();
    let group = |file: &str, name: &str, ms| (file.to_owned(), name.to_owned(), ms);
    assert_eq!(
        groups,
        [
            group("/r/a.yml", "g", MINUTE),
            group("/r/b.yml", "b", 5 * SECOND),
            group("/r/b.yml", "g", MINUTE),
        ]
    );
}

#[test]
fn slots_that_pass_during_an_evaluation_are_counted_and_skipped() {
    let mut scene = Scene::new();
    scene.load(&[("a.yml", RECORDS)]).unwrap();
    scene.evaluate_at(MINUTE);
    assert_eq!(scene.evaluate_at(5 * MINUTE), 1);
    let metrics = scene.metrics();
    for (name, value) in [
        ("evaluations_total", "6"),
        ("evaluation_failures_total", "0"),
        ("group_iterations_total", "5"),
        ("group_iterations_missed_total", "3"),
        ("group_interval_seconds", "60"),
        ("group_rules", "3"),
    ] {
        let line = format!("prometheus_rule_{name}{{rule_group=\"/r/a.yml;g\"}} {value}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    assert!(metrics.contains("# TYPE prometheus_rule_evaluation_duration_seconds summary\n"));
    assert!(metrics.contains("prometheus_rule_evaluation_duration_seconds_count 6\n"));
    assert!(metrics.contains("prometheus_rule_evaluation_duration_histogram_seconds_count 6\n"));
    let quantile = "prometheus_rule_group_duration_seconds{quantile=\"0.99\"} 0.";
    assert!(metrics.contains(quantile), "{metrics}");
    assert!(metrics.contains("prometheus_template_text_expansions_total 0\n"));
}

#[test]
fn the_offset_of_queries_shifts_results() {
    let mut scene = Scene::new();
    scene.config = scene.config.replace("1m,", "1m, rule_query_offset: 30s,");
    scene
        .load(&[(
            "a.yml",
            "groups: [{name: g, rules: [{record: z, expr: time()}]}, \
              {name: h, query_offset: 10s, rules: [{record: own, expr: time()}]}]",
        )])
        .unwrap();
    assert_eq!(scene.evaluate_at(MINUTE), 2);
    // The value of `time()` is the time of its sample.
    assert_eq!(scene.query("z - timestamp(z)", MINUTE), ["{} 0"]);
    assert_eq!(scene.query("own - timestamp(own)", MINUTE), ["{} 0"]);
    let schedule = |name: &str| {
        let schedule = firn_rules::group::Schedule::new("/r/a.yml", name, MINUTE);
        schedule.first_after(START) as f64 / 1e3
    };
    let value = |name: &str| scene.query(name, MINUTE)[0].rsplit_once(' ').unwrap().1.to_owned();
    assert_eq!(value("z"), (schedule("g") - 30.0).to_string());
    assert_eq!(value("own"), (schedule("h") - 10.0).to_string());
}

#[test]
fn subqueries_have_the_step_of_the_configuration() {
    let mut scene = Scene::new();
    scene.config = scene.config.replace("1m,", "10s,");
    let rules =
        "groups: [{name: g, rules: [{record: z, expr: 'count_over_time(vector(1)[1m:])'}]}]";
    scene.load(&[("a.yml", rules)]).unwrap();
    scene.evaluate_at(MINUTE);
    assert_eq!(scene.query("z", MINUTE), ["z 6"]);
}

const ALERTS: &str = "groups: [{name: g, rules: [{alert: Down, expr: 'up == 0', for: 20m, \
    labels: {severity: page}, \
    annotations: {summary: '{{ $labels.job }} {{ $externalLabels.dc }} {{ $externalURL }} \
    {{ with query \"count(up)\" }}{{ . | first | value }}{{ end }}'}}]}]";

#[test]
fn alerts_have_series_and_expanded_annotations() {
    let mut scene = Scene::new();
    scene.load(&[("a.yml", ALERTS)]).unwrap();
    for minute in 0..30 {
        scene.put(&[("__name__", "up"), ("job", "a")], START + minute * MINUTE, 0.0);
    }
    scene.evaluate_at(MINUTE);
    assert_eq!(scene.query("ALERTS", MINUTE), [""; 0], "not before the restoration");
    let groups = scene.manager.groups();
    let alert = groups[0].latest().rules[0].alerts[0].clone();
    assert_eq!(alert.state, AlertState::Pending);
    assert_eq!(alert.annotations["summary"], "a eu http://here:9090 1");
    assert_eq!(alert.labels.to_string(), "{alertname=\"Down\",job=\"a\",severity=\"page\"}");
    for minute in 2..25 {
        scene.evaluate_at(minute * MINUTE);
    }
    let firing = "ALERTS{alertname=\"Down\",alertstate=\"firing\",job=\"a\",severity=\"page\"} 1";
    assert_eq!(scene.query("ALERTS", 25 * MINUTE), [firing]);
    assert_eq!(scene.query("count_over_time(ALERTS_FOR_STATE[1h])", 25 * MINUTE).len(), 1);
    let metrics = scene.metrics();
    assert!(metrics.contains("prometheus_template_text_expansions_total 24\n"), "{metrics}");
    assert!(metrics.contains("prometheus_template_text_expansion_failures_total 0\n"));
}

/// The clock of `for` continues after a crash; the outage does not count.
#[test]
fn pending_alerts_are_restored_after_a_restart() {
    let mut scene = Scene::new();
    scene.load(&[("a.yml", ALERTS)]).unwrap();
    for minute in 0..90 {
        scene.put(&[("__name__", "up"), ("job", "a")], START + minute * MINUTE, 0.0);
    }
    for minute in 1..6 {
        scene.evaluate_at(minute * MINUTE);
    }
    let since = |scene: &Scene| {
        let groups = scene.manager.groups();
        let alert = groups[0].latest().rules[0].alerts[0].clone();
        (alert.state, alert.active_at)
    };
    let (_, active_at) = since(&scene);
    scene.clock.store(START + 10 * MINUTE, Ordering::Relaxed);
    let mut scene = scene.restart();
    scene.load(&[("a.yml", ALERTS)]).unwrap();
    assert_eq!(scene.evaluate_at(11 * MINUTE), 1);
    assert_ne!(since(&scene).1, active_at, "not before the second evaluation");
    assert_eq!(scene.evaluate_at(12 * MINUTE), 1);
    assert_eq!(scene.evaluate_at(13 * MINUTE), 1);
    let (state, restored) = since(&scene);
    assert_eq!(state, AlertState::Pending);
    // The last sample before the restart is from the fifth evaluation, the restoration from the
    // second one after it.
    let outage_ms = restored - active_at;
    assert!((6 * MINUTE..9 * MINUTE).contains(&outage_ms), "{outage_ms}");
    for minute in 14..30 {
        scene.evaluate_at(minute * MINUTE);
    }
    let firing = "ALERTS{alertname=\"Down\",alertstate=\"firing\",job=\"a\",severity=\"page\"} 1";
    assert_eq!(scene.query("ALERTS", 30 * MINUTE), [firing]);
    let metrics = scene.metrics();
    let restore = "prometheus_rule_group_last_restore_duration_seconds{";
    assert!(
        metrics.contains(restore)
            && !metrics.contains("_restore_duration_seconds{rule_group=\"/r/a.yml;g\"} 0\n")
    );
}

/// The process dies while one alert fires and another one is resolved.
#[test]
fn a_restart_continues_firing_and_resolved_alerts() {
    let mut scene = Scene::new();
    let rules = ALERTS.replace("for: 20m", "for: 0s");
    scene.load(&[("a.yml", &rules)]).unwrap();
    for minute in 0..30 {
        scene.put(&[("__name__", "up"), ("job", "a")], START + minute * MINUTE, 0.0);
        let value = if minute < 3 { 0.0 } else { 1.0 };
        scene.put(&[("__name__", "up"), ("job", "b")], START + minute * MINUTE, value);
    }
    for minute in 1..5 {
        scene.evaluate_at(minute * MINUTE);
    }
    let firing = |scene: &Scene| {
        let groups = scene.manager.groups();
        let alerts = groups[0].latest().rules[0].alerts.clone();
        let shown = |alert: Alert| (alert.labels, alert.fired_at, alert.last_sent_at);
        alerts.into_iter().map(shown).collect::<Vec<_>>()
    };
    let before = firing(&scene);
    assert_eq!(before.len(), 1);
    let files = scene.saved_files();
    assert_eq!(files.len(), 1);
    let mut scene = scene.restart();
    scene.load(&[("a.yml", &rules)]).unwrap();
    scene.evaluate_at(5 * MINUTE);
    let after = firing(&scene);
    assert_eq!((&after[0].0, after[0].1), (&before[0].0, before[0].1), "it fires since then");
    assert!(after[0].2 > before[0].2, "more than a minute later it is sent again");
    let no_failure = ["save", "load"].map(|what| format!("rule_alert_{what}_failures_total 0\n"));
    assert!(no_failure.iter().all(|line| scene.metrics().contains(line)));

    // A group that a reload removes takes its file along.
    scene.load(&[("b.yml", &rules)]).unwrap();
    assert_eq!(scene.saved_files(), [""; 0]);
    scene.evaluate_at(7 * MINUTE);
    assert_ne!(scene.saved_files(), files);
}

/// A flipped bit: the alerts of the group start from scratch, and another group continues.
#[test]
fn a_damaged_file_of_alerts_costs_only_its_alerts() {
    let mut scene = Scene::new();
    let rules = "groups: [{name: g, rules: [{alert: A, expr: vector(1)}]}, \
                 {name: h, rules: [{alert: B, expr: vector(1)}]}]";
    scene.load(&[("a.yml", rules)]).unwrap();
    scene.evaluate_at(MINUTE);
    let fired_at = |scene: &Scene| {
        let groups = scene.manager.groups();
        let alert = |group: &Arc<ShownGroup>| group.latest().rules[0].alerts[0].fired_at;
        groups.iter().map(alert).collect::<Vec<_>>()
    };
    let before = fired_at(&scene);
    let key = scene.manager.groups()[0].alerts_key;
    let path = scene.folder.path().join(format!("fast/alerts/{key:016x}"));
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let mut scene = scene.restart();
    scene.load(&[("a.yml", rules)]).unwrap();
    scene.evaluate_at(2 * MINUTE);
    let after = fired_at(&scene);
    assert!(after[0] > before[0] && after[1] == before[1], "{before:?} {after:?}");
    assert!(scene.metrics().contains("prometheus_rule_alert_load_failures_total 1\n"));
}

/// After an outage longer than `--alert-outage-max` an alert starts from scratch.
#[test]
fn old_alerts_do_not_continue() {
    for (minutes, is_continued) in [(50, true), (70, false)] {
        let mut scene = Scene::new();
        let rules = "groups: [{name: g, rules: [{alert: A, expr: vector(1)}]}]";
        scene.load(&[("a.yml", rules)]).unwrap();
        scene.evaluate_at(MINUTE);
        scene.clock.store(START + minutes * MINUTE, Ordering::Relaxed);
        let mut scene = scene.restart();
        scene.load(&[("a.yml", rules)]).unwrap();
        scene.evaluate_at((minutes + 1) * MINUTE);
        let groups = scene.manager.groups();
        let fired_at = groups[0].latest().rules[0].alerts[0].fired_at.unwrap();
        assert_eq!(fired_at < START + 2 * MINUTE, is_continued, "{minutes}");
    }
}

#[test]
fn a_reload_keeps_alerts_and_a_new_group_needs_no_restoration() {
    let mut scene = Scene::new();
    scene.load(&[("a.yml", ALERTS)]).unwrap();
    for minute in 0..60 {
        scene.put(&[("__name__", "up"), ("job", "a")], START + minute * MINUTE, 0.0);
    }
    for minute in 1..25 {
        scene.evaluate_at(minute * MINUTE);
    }
    let state = |scene: &Scene, file: usize| {
        let groups = scene.manager.groups();
        groups[file].latest().rules.first().map(|rule| rule.state)
    };
    assert_eq!(state(&scene, 0), Some(AlertState::Firing));
    let shorter = ALERTS.replace("for: 20m", "for: 15m");
    let quick = ALERTS.replace("for: 20m", "for: 0s").replace("Down", "Quick");
    scene.load(&[("a.yml", &shorter), ("b.yml", &quick)]).unwrap();
    scene.evaluate_at(25 * MINUTE);
    assert_eq!(state(&scene, 0), Some(AlertState::Firing));
    assert_eq!(state(&scene, 1), Some(AlertState::Firing));
    let names = scene.query("count by (alertname, alertstate) (ALERTS)", 25 * MINUTE);
    assert_eq!(
        names,
        [
            "{alertname=\"Down\",alertstate=\"firing\"} 1",
            "{alertname=\"Quick\",alertstate=\"firing\"} 1"
        ]
    );
}

#[test]
fn two_rules_with_one_series_are_a_mistake_of_the_second() {
    let mut scene = Scene::new();
    let rules = "groups: [{name: g, rules: [{record: z, expr: vector(1)}, \
                 {record: z, expr: vector(2)}, {record: w, expr: vector(3)}]}]";
    scene.load(&[("a.yml", rules)]).unwrap();
    scene.evaluate_at(MINUTE);
    let twice = Some("duplicate sample for timestamp".to_owned());
    assert_eq!(scene.errors(), [None, twice, None]);
    assert_eq!(scene.query("{__name__=~\"z|w\"}", MINUTE), ["w 3", "z 1"]);
}

#[test]
fn a_rule_beyond_the_memory_of_rules_fails_alone() {
    let mut scene = Scene::with_memory(1 << 20);
    for idx in 0..2_000 {
        let text = format!("{idx:0100}");
        scene.put(&[("__name__", "x"), ("text", &text)], START, 1.0);
    }
    let rules =
        "groups: [{name: g, rules: [{record: many, expr: x}, {record: one, expr: vector(1)}]}]";
    scene.load(&[("a.yml", rules)]).unwrap();
    scene.evaluate_at(MINUTE);
    let errors = scene.errors();
    assert!(errors[0].is_some() && errors[1].is_none(), "{errors:?}");
    assert_eq!(scene.manager.groups()[0].latest().rules[0].health, RuleHealth::Bad);
    assert_eq!(scene.query("one", MINUTE), ["one 1"]);
    assert_eq!(scene.query("many", MINUTE), [""; 0]);
}

/// No group was evaluated until the clock was where it had been.
#[test]
fn groups_go_on_after_the_clock_was_set_back() {
    let mut scene = Scene::new();
    let rules = "groups: [{name: g, rules: [{record: r, expr: time()}]}]";
    scene.load(&[("a.yml", rules)]).unwrap();
    assert_eq!((scene.evaluate_at(600 * MINUTE), scene.evaluate_at(601 * MINUTE)), (1, 1));
    assert_eq!(scene.evaluate_at(MINUTE), 0);
    assert_eq!(scene.evaluate_at(2 * MINUTE), 1);
    assert_eq!(scene.query("r", 2 * MINUTE).len(), 1);
    assert_eq!(scene.evaluate_at(2 * MINUTE), 0);
}

/// The memory of rules of a server with 64 MiB. Before, an alert with a regular expression needed
/// 36 MiB, so it never fired.
#[test]
fn an_alert_with_a_regular_expression_fires_with_little_memory() {
    let texts = "annotations: {text: '{{ reReplaceAll \"0+\" \"-\" $labels.id }} \
                 {{ if match \"[1-9]\" $labels.id }}y{{ end }}'}";
    let scene = alert_for_each(20, 2 << 20, texts);
    scene.evaluate_at(MINUTE);
    assert_eq!((&*scene.errors(), scene.alert_count()), (&[None][..], 20));
}

/// The rules that fill the memory can be replaced.
#[test]
fn rules_are_read_while_results_fill_the_memory() {
    let mut scene = alert_for_each(3_000, 1 << 20, "annotations: {text: '{{ $labels.id }}'}");
    scene.evaluate_at(MINUTE);
    assert!(scene.errors()[0].is_some(), "no memory is left");
    let one = "groups: [{name: g, rules: [{record: one, expr: vector(1)}]}]";
    scene.load(&[("a.yml", one)]).unwrap();
    scene.evaluate_at(2 * MINUTE);
    assert_eq!(scene.query("one", 2 * MINUTE), ["one 1"]);

    let rule = |idx: usize| format!("{{record: r{idx}, expr: '{idx} + {idx} + {idx}'}}, ");
    let many: String = (0..10_000).map(rule).collect();
    let many = format!("groups: [{{name: g, rules: [{many}]}}]");
    let refused = scene.load(&[("a.yml", &many)]).unwrap_err();
    assert!(refused.contains("raise --rule-memory") && !refused.contains("rule 1,"), "{refused}");
}

/// Rules were advised to raise `--query-memory`, which does not limit them.
#[test]
fn a_shortage_of_rules_names_their_setting() {
    let names_setting = |error: &str| {
        let names = error.contains("raise --rule-memory") && !error.contains("--query-memory");
        assert!(names, "{error}");
    };
    for expr in [
        format!("{}1", "1+".repeat(6_000)),
        format!("x{{a=~'{}'}}", "(y|z)".repeat(300)),
        "x{a=~'([^a]{50}){20}'}".to_owned(),
    ] {
        let mut scene = Scene::with_memory(1 << 20);
        let rules = format!("groups: [{{name: g, rules: [{{record: r, expr: \"{expr}\"}}]}}]");
        names_setting(&scene.load(&[("a.yml", &rules)]).unwrap_err());

        let query =
            format!("annotations: {{a: '{{{{ query \"{}\" }}}}'}}", expr.replace('\'', "''"));
        let scene = alert_for_each(1, 1 << 20, &query);
        scene.evaluate_at(MINUTE);
        let alert = &scene.manager.groups()[0].latest().rules[0].alerts[0];
        names_setting(&format!("{alert:?}"));
    }
    let scene = alert_for_each(3_000, 1 << 20, "annotations: {a: b}");
    scene.evaluate_at(MINUTE);
    names_setting(&scene.errors()[0].as_ref().unwrap().to_string());
}

/// A set of rules that fills the memory could only be replaced by itself.
#[test]
fn other_rules_replace_those_that_fill_the_memory() {
    let mut scene = Scene::with_memory(2 << 20);
    let file = |count: usize, metric: &str| {
        let rule =
            |idx| format!("  - {{record: r{idx}, expr: 'sum by (a) ({metric}{idx}) / 2'}}\n");
        let rules: String = (0..count).map(rule).collect();
        format!("groups:\n- name: g\n  rules:\n{rules}")
    };
    let mut count = 100;
    while scene.load(&[("a.yml", &file(count * 9 / 8, "m"))]).is_ok() {
        count = count * 9 / 8;
    }
    let used = scene.manager.memory().used_bytes;
    assert!(used > (2 << 20) / 4 * 3, "{used}");
    // Both sets fill the memory alone.
    scene.load(&[("a.yml", &file(count, "n"))]).unwrap();
    let too_many = scene.load(&[("a.yml", &file(count * 9 / 8, "o"))]).unwrap_err();
    assert!(too_many.contains("load fewer rules"), "{too_many}");
    scene.load(&[("a.yml", &file(count / 4, "o"))]).unwrap();
    assert!(scene.manager.memory().used_bytes < used / 3);
    let too_many = scene.load(&[("a.yml", &file(count * 9 / 8, "m"))]).unwrap_err();
    assert!(too_many.contains("load fewer rules"), "{too_many}");
}

/// A database with series of `x`, and one rule with an alert for each of them.
/// Before, a reload needed the memory of all expressions once more.
#[test]
fn a_reload_takes_no_memory_for_expressions_that_run() {
    let mut scene = Scene::with_memory(2 << 20);
    let rule = |idx: usize| format!("  - {{record: r{idx}, expr: 'sum by (a, b) (m{idx}) / 2'}}\n");
    let file = |count: usize| {
        let rules: String = (0..count).map(rule).collect();
        format!("groups:\n- name: g\n  rules:\n{rules}")
    };
    let fits = |scene: &mut Scene, count: usize| scene.load(&[("a.yml", &file(count))]).is_ok();
    let mut count = 100;
    while fits(&mut scene, count * 5 / 4) {
        count = count * 5 / 4;
    }
    // The expressions take over half of their memory.
    let used = scene.manager.memory().used_bytes;
    assert!(used > (2 << 20) / 16, "{used}");
    let running = Arc::clone(scene.manager.groups()[0].rules[0].expr());
    let changed = file(count).replace("record: r7,", "record: other,");
    scene.load(&[("a.yml", &changed)]).unwrap();
    assert!(Arc::ptr_eq(&running, scene.manager.groups()[0].rules[0].expr()));
    assert_eq!(scene.manager.memory().used_bytes, used);
    // Those of removed rules are free.
    scene.load(&[("a.yml", &file(1))]).unwrap();
    assert!(scene.manager.memory().used_bytes < used / 50);
}

fn alert_for_each(count: usize, memory_bytes: u64, texts: &str) -> Scene {
    let mut scene = Scene::with_memory(memory_bytes);
    for idx in 0..count {
        scene.put(&[("__name__", "x"), ("id", &idx.to_string())], START, 1.0);
    }
    let rules = format!("groups: [{{name: g, rules: [{{alert: A, expr: x, {texts}}}]}}]");
    scene.load(&[("a.yml", &rules)]).unwrap();
    scene
}

impl Scene {
    /// Most of the memory of rules that was used at a time.
    fn peak_bytes(&self) -> u64 {
        self.manager.memory().peak_bytes
    }

    fn alert_count(&self) -> usize {
        self.alert_count_of(0)
    }

    /// The alerts of a rule of the first group.
    fn alert_count_of(&self, rule: usize) -> usize {
        self.manager.groups()[0].latest().rules[rule].alerts.len()
    }
}

/// 50 MB of text that was outside of the limit.
#[test]
fn large_annotations_are_within_the_memory_of_rules() {
    const LIMIT: u64 = 16 << 20;
    let plain = format!("annotations: {{a: '{}'}}", "x".repeat(10_000));
    let scene = alert_for_each(5_000, LIMIT, &plain);
    for minute in 1..5 {
        scene.evaluate_at(minute * MINUTE);
        assert_eq!((scene.errors(), scene.alert_count()), (vec![None], 5_000), "{minute}");
    }
    let expanded = format!("annotations: {{a: '{}{{{{ $value }}}}'}}", "x".repeat(10_000));
    let scene = alert_for_each(5_000, LIMIT, &expanded);
    for minute in 1..4 {
        scene.evaluate_at(minute * MINUTE);
        let errors = scene.errors();
        let error = errors[0].as_ref().expect("50 MB do not fit into 16 MiB");
        assert!(
            error.starts_with("no memory: ") && error.ends_with("raise --rule-memory"),
            "{error}"
        );
        assert!(scene.peak_bytes() <= LIMIT, "{}", scene.peak_bytes());
        let health = scene.manager.groups()[0].latest().rules[0].health;
        assert_eq!((health, scene.alert_count()), (RuleHealth::Bad, 0));
        let failures = format!(
            "prometheus_rule_evaluation_failures_total{{rule_group=\"/r/a.yml;g\"}} {minute}\n"
        );
        assert!(scene.metrics().contains(&failures), "{}", scene.metrics());
    }
}

/// The limit at which the first evaluation succeeds is enough for all others.
#[test]
fn a_steady_set_of_alerts_fails_at_its_first_evaluation_or_never() {
    let texts = format!(
        "labels: {{team: '{{{{ $labels.id }}}}'}}, annotations: {{a: '{} {{{{ $labels.id }}}}'}}",
        "x".repeat(500)
    );
    let evaluate = |memory_bytes: u64| {
        let scene = alert_for_each(400, memory_bytes, &texts);
        let is_good = |minute: i64| {
            scene.evaluate_at(minute * MINUTE);
            (minute, scene.errors() == [None])
        };
        (1..5).map(is_good).collect::<Vec<_>>()
    };
    let (mut too_few, mut enough) = (400_000, 4_000_000);
    assert!(!evaluate(too_few)[0].1 && evaluate(enough)[0].1);
    while enough - too_few > 5_000 {
        let middle = u64::midpoint(too_few, enough);
        let results = evaluate(middle);
        // The first two evaluations after a start write no series of alerts.
        assert!(
            results.iter().all(|(_, is_good)| *is_good == results[0].1),
            "{middle}: {results:?}"
        );
        *(if results[0].1 { &mut enough } else { &mut too_few }) = middle;
    }
}

/// A label with the value makes new alerts at each evaluation; those before are resolved and were
/// kept for 15 minutes without a bound.
#[test]
fn alerts_that_change_at_each_evaluation_are_within_the_memory_of_rules() {
    const OF_EVALUATIONS: u64 = 2 << 20;
    const LIMIT: u64 = OF_EVALUATIONS / 7 * 8;
    let texts = "labels: {v: '{{ $value }}'}, annotations: {a: '{{ $value }}'}";
    let mut scene = alert_for_each(200, LIMIT, texts);
    let rules = format!(
        "groups: [{{name: g, interval: 5s, rules: [{{alert: A, expr: 'x * time()', {texts}}}]}}, \
         {{name: other, interval: 5s, rules: [{{record: one, expr: 'count(x)'}}]}}]"
    );
    scene.load(&[("a.yml", &rules)]).unwrap();
    let kept = |scene: &Scene| scene.manager.memory().used_bytes;
    let mut most = 0;
    for step in 1..60 {
        let ms = step * 5 * SECOND;
        for idx in 0..if step % 20 == 0 { 200 } else { 0 } {
            scene.put(&[("__name__", "x"), ("id", &idx.to_string())], START + ms, 1.0);
        }
        scene.evaluate_at(ms);
        assert_eq!(scene.errors(), [None, None], "{step}");
        most = most.max(kept(&scene));
    }
    let peak = scene.peak_bytes();
    assert!(peak <= OF_EVALUATIONS + (64 << 10) && most > OF_EVALUATIONS / 4, "{peak} {most}");
}

/// A thread without a due group evaluates rules of the group of another thread; results are those
/// of one thread.
#[test]
fn idle_threads_evaluate_rules_of_a_group() {
    let mut scene = Scene::new();
    let slow = "sum_over_time(vector(1)[5h:1s])";
    let rules: String = (0..20)
        .map(|idx| format!("{{record: slow, expr: '{slow}', labels: {{n: '{idx}'}}}}, "))
        .collect();
    let rules = format!(
        "groups: [{{name: g, rules: [{rules} {{record: all, expr: 'sum(slow)'}}, \
         {{alert: A, expr: 'slow > 0'}}]}}]"
    );
    scene.load(&[("a.yml", &rules)]).unwrap();
    let (helped, is_done) = (AtomicI64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                helped.fetch_add(i64::from(scene.manager.help()), Ordering::Relaxed);
                std::thread::yield_now();
            }
        });
        let began = std::time::Instant::now();
        let mut minute = 0;
        while minute < 3 || helped.load(Ordering::Relaxed) == 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "no thread helps");
            minute += 1;
            assert_eq!(scene.evaluate_at(minute * MINUTE), 1);
            assert_eq!(scene.errors(), [const { None }; 22]);
            let sum = 20 * 5 * 3_600;
            assert_eq!(scene.query("all", minute * MINUTE), [format!("all {sum}")]);
        }
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(scene.alert_count_of(21), 20);
    });
}

/// The threads evaluate without a call, and a stop ends them.
#[test]
fn threads_evaluate_due_groups() {
    let mut scene = Scene::new();
    scene.config = scene.config.replace("1m,", "50ms,");
    scene.load(&[("a.yml", RECORDS)]).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    scene.manager.open(&scene.db, URL, runtime.handle().clone()).unwrap();
    let used =
        |scene: &Scene| scene.db.budget().usage().by_pool[firn_model::Pool::Requests as usize];
    assert!(used(&scene) >= 256 << 20, "the memory of rules is set aside");
    let mut ms = 0;
    let began = std::time::Instant::now();
    while scene.query("z", ms).is_empty() {
        scene.put(&[("__name__", "x"), ("job", "a")], START + ms, 1.0);
        ms += 50;
        scene.clock.store(START + ms, Ordering::Relaxed);
        std::thread::park_timeout(Duration::from_millis(1));
        assert!(began.elapsed() < Duration::from_secs(60), "no thread evaluates");
    }
    let before = used(&scene);
    scene.manager.stop();
    assert_eq!(before - used(&scene), 256 << 20, "the groups are still there");
}
