//! Alerts and a killed server: a real Alertmanager that was away receives the end of one alert and
//! the start of another one, and no alert before its time.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use firn_server::wire::number::parse_time;
use serde_json::Value;

use crate::alerts::{WAIT_MAX, import, metric, received, start, start_alertmanager};
use crate::http::request;
use crate::process::{free_address, installed, wait_for};

/// The way to an Alertmanager, which the test can close. It records the alerts that pass.
pub(crate) struct Gate {
    pub(crate) address: SocketAddr,
    is_open: Arc<AtomicBool>,
    passed: Arc<Mutex<Vec<PassedAlert>>>,
}

/// An alert that was sent through a gate.
#[derive(Clone, Debug)]
pub(crate) struct PassedAlert {
    at: Instant,
    /// The header `User-Agent`, in lower case.
    pub(crate) sender: String,
    /// Whether its end had passed.
    pub(crate) is_resolved: bool,
    pub(crate) alert: Value,
}

impl Gate {
    pub(crate) fn open(manager: SocketAddr) -> Gate {
        let gate = Gate {
            address: free_address(),
            is_open: Arc::new(AtomicBool::new(true)),
            passed: Arc::default(),
        };
        let listener = TcpListener::bind(gate.address).expect("a free port");
        let (is_open, passed) = (Arc::clone(&gate.is_open), Arc::clone(&gate.passed));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (is_open, passed) = (Arc::clone(&is_open), Arc::clone(&passed));
                std::thread::spawn(move || pass(stream, manager, &is_open, &passed));
            }
        });
        gate
    }

    /// All alerts, in order.
    pub(crate) fn all(&self) -> Vec<PassedAlert> {
        self.passed.lock().expect("no panic").clone()
    }

    /// The alerts of `job` that have passed since `since`.
    fn passed(&self, job: &str, since: Instant) -> Vec<Value> {
        let is_wanted = |one: &PassedAlert| one.alert["labels"]["job"] == job && one.at >= since;
        self.all().into_iter().filter(is_wanted).map(|one| one.alert).collect()
    }
}

/// Forwards the requests of a connection until the gate is closed.
fn pass(
    stream: TcpStream,
    manager: SocketAddr,
    is_open: &AtomicBool,
    passed: &Mutex<Vec<PassedAlert>>,
) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut path, mut sender, mut len) = (String::new(), String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end();
            if path.is_empty() {
                path = line.split(' ').nth(1).expect("a path").to_owned();
            } else if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                len = value.trim().parse().expect("a length");
            } else if let Some(value) = line.to_lowercase().strip_prefix("user-agent:") {
                sender = value.trim().to_owned();
            } else if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; len];
        let is_whole = reader.read_exact(&mut body).is_ok();
        if !is_whole || !is_open.load(Ordering::SeqCst) {
            return;
        }
        let alerts: Vec<Value> = serde_json::from_slice(&body).expect("a list");
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(since.as_millis()).expect("a time");
        let passing = |alert: Value| {
            let is_resolved = ends_at(&alert) <= now;
            PassedAlert { at: Instant::now(), sender: sender.clone(), is_resolved, alert }
        };
        passed.lock().expect("no panic").extend(alerts.into_iter().map(passing));
        let headers = [("Content-Type", "application/json")];
        let answer = request(manager, "POST", &path, &headers, &body).expect("an answer");
        let answer = format!("HTTP/1.1 {} x\r\nContent-Length: 0\r\n\r\n", answer.status);
        if reader.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// In milliseconds.
fn ends_at(alert: &Value) -> i64 {
    parse_time(alert["endsAt"].as_str().unwrap_or_default()).expect("a time")
}

const RESEND: Duration = Duration::from_secs(12);

/// The server is killed while no Alertmanager answers. On disk: the alerts with the times of their
/// deliveries. Afterwards: the firing and the resolved alert arrive, and the one that was delivered
/// just before the crash is sent when `--alert-resend-delay` is over.
#[test]
fn a_killed_server_loses_no_alert_and_repeats_none() {
    let Some(program) = installed("prometheus-alertmanager") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (address, manager) = (free_address(), free_address());
    let _alertmanager = start_alertmanager(&program, folder.path(), manager);
    let gate = Gate::open(manager);
    let config = format!(
        "global: {{evaluation_interval: 200ms}}\nrule_files: [rules.yml]\n\
         alerting: {{alertmanagers: [{{static_configs: [{{targets: ['{}']}}]}}]}}\n",
        gate.address
    );
    fs::write(folder.path().join("prometheus.yml"), config).expect("a file");
    let rules = "groups: [{name: g, rules: [{alert: Down, expr: 'x == 0'}]}]";
    fs::write(folder.path().join("rules.yml"), rules).expect("a file");
    let resend_delay = format!("{}s", RESEND.as_secs());
    let mut server = start(folder.path(), address, &resend_delay);
    let active = || {
        let alerts = received(manager, "Down");
        let job = |alert: &Value| alert["labels"]["job"].as_str().unwrap_or_default().to_owned();
        let mut jobs: Vec<String> = alerts.iter().map(job).collect();
        jobs.sort();
        jobs.join(" ")
    };

    let began = Instant::now();
    import(address, "x{job=\"ends\"} 0\nx{job=\"begins\"} 1\nx{job=\"stays\"} 0\n");
    wait_for("two alerts", WAIT_MAX, || active() == "ends stays");
    gate.is_open.store(false, Ordering::SeqCst);
    import(address, "x{job=\"ends\"} 1\nx{job=\"begins\"} 0\n");
    let errors = "firn_notifications_errors_total{";
    wait_for("failed deliveries", WAIT_MAX, || metric(address, errors) >= 2.0);
    server.kill();
    let restarted = Instant::now();
    gate.is_open.store(true, Ordering::SeqCst);
    let mut server = start(folder.path(), address, &resend_delay);
    wait_for("the end of one and the start of another", WAIT_MAX, || active() == "begins stays");
    // It was sent as resolved; it has not only expired.
    let ended = gate.passed("ends", restarted).remove(0);
    let begun = gate.passed("begins", restarted).remove(0);
    assert!(ended["endsAt"].as_str() < begun["endsAt"].as_str(), "{ended} {begun}");
    wait_for("another delivery", WAIT_MAX, || !gate.passed("stays", restarted).is_empty());
    // The delay counts from slot to slot, and the end of an alert is the same time after its slot.
    let ends: Vec<i64> = gate.passed("stays", began).iter().map(ends_at).collect();
    let gap_ms_min = RESEND.as_millis() as i64;
    assert!(ends.windows(2).all(|two| two[1] - two[0] >= gap_ms_min), "{ends:?}");
    let first = &gate.passed("stays", began)[0];
    let second = &gate.passed("stays", restarted)[0];
    assert_eq!(first["startsAt"], second["startsAt"], "its clock did not start again");
    assert_eq!(metric(address, "firn_rule_alert_load_failures_total"), 0.0);
    assert_eq!(server.terminate(), Some(0));
}

/// The file of alerts is damaged while the server is down. Afterwards: the server starts, counts
/// the file, and evaluates its rules.
#[test]
fn a_damaged_file_of_alerts_does_not_stop_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    fs::write(
        folder.path().join("prometheus.yml"),
        "global: {evaluation_interval: 200ms}\nrule_files: [rules.yml]\n",
    )
    .expect("a file");
    let rules = "groups: [{name: g, rules: [{alert: On, expr: vector(1)}]}]";
    fs::write(folder.path().join("rules.yml"), rules).expect("a file");
    let mut server = start(folder.path(), address, "1m");
    let saved = || {
        let files = fs::read_dir(folder.path().join("firn-data/fast/alerts")).ok()?;
        let path = files.flatten().map(|entry| entry.path()).next();
        path.filter(|path| path.extension().is_none())
    };
    wait_for("the file", WAIT_MAX, || saved().is_some());
    server.kill();
    let path = saved().expect("the file");
    let mut bytes = fs::read(&path).expect("the file");
    bytes.truncate(bytes.len() / 2);
    fs::write(&path, bytes).expect("the file");
    let mut server = start(folder.path(), address, "1m");
    let failures = "firn_rule_alert_load_failures_total";
    wait_for("the count", WAIT_MAX, || metric(address, failures) == 1.0);
    wait_for("the warning", WAIT_MAX, || {
        server.output().contains("saved alerts are not continued")
    });
    let evaluations = "firn_rule_evaluations_total{";
    wait_for("evaluations", WAIT_MAX, || metric(address, evaluations) >= 5.0);
    assert_eq!(server.terminate(), Some(0));
}
