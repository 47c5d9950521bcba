//! Deliveries to servers on loopback.

use std::fmt::Debug;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender as ChannelSender, channel};

use firn_collect::config::HttpClient;
use firn_rules::group::{Alert, AlertState, Texts};
use serde_json::Value;

use super::*;
use crate::notify::link;
use crate::throttle::lines_of;

const WAIT_MAX: Duration = Duration::from_secs(60);

/// A server that sends each received body to the test, and answers with `status`.
struct Receiving {
    port: u16,
    bodies: Receiver<(String, Value)>,
}

fn receive(status: &'static str) -> Receiving {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, bodies) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let sender = sender.clone();
            std::thread::spawn(move || answer_all(stream.unwrap(), status, &sender));
        }
    });
    Receiving { port, bodies }
}

/// Answers the requests of a connection until it ends or the test does.
fn answer_all(stream: TcpStream, status: &str, sender: &ChannelSender<(String, Value)>) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut head, mut len) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                len = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
            head += &line;
        }
        let mut body = vec![0; len];
        reader.read_exact(&mut body).unwrap();
        if sender.send((head, serde_json::from_slice(&body).unwrap())).is_err() {
            return;
        }
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok");
        if reader.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn notifier(queue_len_max: usize) -> Arc<Notifier> {
    let (budget, queue_bytes_max) = (Budget::unlimited(), u64::MAX);
    Arc::new(Notifier::new(NotifyOptions { queue_len_max, budget, queue_bytes_max }))
}

fn apply(notifier: &Notifier, alerting: &str) -> Result<()> {
    let text = format!("alerting: {alerting}");
    let config = Config::parse(&text, &|_| None).unwrap().config;
    notifier.apply(notifier.check(&config)?);
    Ok(())
}

fn notification(labels: &[(&str, &str)]) -> Notification {
    let alert = Alert {
        labels: Labels::from_pairs(labels.iter().copied()).unwrap(),
        annotations: Texts::default(),
        state: AlertState::Firing,
        value: 1.0,
        active_at: 1_700_000_000_000,
        fired_at: Some(1_700_000_000_000),
        resolved_at: None,
        last_sent_at: None,
        valid_until: Some(1_700_000_240_000),
        keep_firing_since: None,
    };
    Notification::new(alert, link("up", "http://here").into())
}

fn external() -> BTreeMap<String, String> {
    [("dc", "eu"), ("empty", "no")].map(|(n, v)| (n.to_owned(), v.to_owned())).into()
}

fn labels(body: &Value) -> Vec<String> {
    body.as_array().unwrap().iter().map(|alert| alert["labels"].to_string()).collect()
}

fn metrics(notifier: &Notifier) -> String {
    let mut text = MetricsText::default();
    notifier.write_text("prometheus", &mut text);
    text.finish()
}

/// Waits until `find` returns `wanted`.
fn wait_for<T: Debug + PartialEq>(wanted: T, find: impl Fn() -> T) {
    let began = Instant::now();
    loop {
        let found = find();
        if found == wanted {
            return;
        }
        assert!(began.elapsed() < WAIT_MAX, "{found:?}, expected {wanted:?}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn wait_for_metric(notifier: &Notifier, line: &str) {
    wait_for(Some(line), || metrics(notifier).contains(line).then_some(line));
}

#[test]
fn every_alertmanager_receives_every_alert_with_its_own_labels() {
    let runtime = runtime();
    let (first, second) = (receive("200 OK"), receive("202 Accepted"));
    let notifier = notifier(100);
    notifier.open(runtime.handle().clone());
    apply(
        &notifier,
        &format!(
            "{{alert_relabel_configs: [{{action: drop, source_labels: [severity], regex: none}}, \
             {{action: labeldrop, regex: replica}}], alertmanagers: [\
             {{static_configs: [{{targets: ['127.0.0.1:{}']}}]}}, \
             {{path_prefix: /am, timeout: 5s, \
             static_configs: [{{targets: ['127.0.0.1:{}', absent]}}], \
             relabel_configs: [{{action: drop, source_labels: [__address__], regex: absent}}], \
             alert_relabel_configs: [{{target_label: via, replacement: second}}]}}]}}",
            first.port, second.port
        ),
    )
    .unwrap();
    let alerts = [
        &[("alertname", "A"), ("replica", "1"), ("severity", "page")][..],
        &[("alertname", "B"), ("severity", "none")],
        &[("alertname", "C"), ("dc", "us")],
    ];
    notifier.send(&external(), alerts.iter().map(|labels| notification(labels)));
    let (head, body) = first.bodies.recv_timeout(WAIT_MAX).unwrap();
    assert!(head.starts_with("POST /api/v2/alerts HTTP/1.1\r\n"), "{head}");
    assert!(head.to_lowercase().contains("content-type: application/json\r\n"), "{head}");
    assert_eq!(
        labels(&body),
        [
            r#"{"alertname":"A","dc":"eu","empty":"no","severity":"page"}"#,
            r#"{"alertname":"C","dc":"us","empty":"no"}"#
        ]
    );
    let (head, body) = second.bodies.recv_timeout(WAIT_MAX).unwrap();
    assert!(head.starts_with("POST /am/api/v2/alerts HTTP/1.1\r\n"), "{head}");
    assert!(labels(&body)[0].contains(r#""via":"second""#), "{body}");
    let (active, dropped) = notifier.urls();
    let second_url = format!("http://127.0.0.1:{}/am/api/v2/alerts", second.port);
    assert_eq!(
        active,
        [format!("http://127.0.0.1:{}/api/v2/alerts", first.port), second_url.clone()]
    );
    assert_eq!(dropped, ["http://absent/am/api/v2/alerts"]);
    wait_for_metric(
        &notifier,
        &format!("prometheus_notifications_sent_total{{alertmanager=\"{second_url}\"}} 2\n"),
    );
    assert!(metrics(&notifier).contains("prometheus_notifications_alertmanagers_discovered 2\n"));
}

#[test]
fn a_failed_batch_is_counted_and_not_repeated() {
    let runtime = runtime();
    let failing = receive("500 Internal Server Error");
    let notifier = notifier(100);
    notifier.open(runtime.handle().clone());
    let port = failing.port;
    let section =
        format!("{{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]}}");
    apply(&notifier, &section).unwrap();
    notifier.send(&external(), vec![notification(&[("alertname", "A")])]);
    failing.bodies.recv_timeout(WAIT_MAX).unwrap();
    let url = format!("http://127.0.0.1:{port}/api/v2/alerts");
    for name in ["errors", "dropped", "sent"] {
        let line = format!("prometheus_notifications_{name}_total{{alertmanager=\"{url}\"}} 1\n");
        wait_for_metric(&notifier, &line);
    }
    notifier.send(&external(), vec![notification(&[("alertname", "B")])]);
    let (_, body) = failing.bodies.recv_timeout(WAIT_MAX).unwrap();
    assert!(labels(&body)[0].contains("\"B\""), "the first alert was repeated: {body}");
}

/// One Alertmanager accepts connections and never answers; the other one receives its alerts.
#[test]
fn an_alertmanager_that_hangs_delays_no_other_and_its_queue_is_bounded() {
    let runtime = runtime();
    let hanging = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let hanging_port = hanging.local_addr().unwrap().port();
    let good = receive("200 OK");
    let notifier = notifier(3);
    notifier.open(runtime.handle().clone());
    apply(
        &notifier,
        &format!(
            "{{alertmanagers: [{{timeout: 1h, static_configs: [{{targets: ['127.0.0.1:{}', \
             '127.0.0.1:{hanging_port}']}}]}}]}}",
            good.port
        ),
    )
    .unwrap();
    let mut received = 0;
    for idx in 0..50 {
        let name = idx.to_string();
        notifier.send(&external(), vec![notification(&[("alertname", &name)])]);
        received += labels(&good.bodies.recv_timeout(WAIT_MAX).unwrap().1).len();
    }
    assert_eq!(received, 50);
    let url = format!("http://127.0.0.1:{hanging_port}/api/v2/alerts");
    wait_for_metric(
        &notifier,
        &format!("prometheus_notifications_queue_length{{alertmanager=\"{url}\"}} 3\n"),
    );
    // A stop waits no longer than its limit.
    notifier.stop(Duration::from_millis(20));
    drop(hanging);
}

#[test]
fn a_stop_delivers_the_queue() {
    let runtime = runtime();
    let good = receive("200 OK");
    let notifier = notifier(10_000);
    let port = good.port;
    let section =
        format!("{{alertmanagers: [{{static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]}}");
    apply(&notifier, &section).unwrap();
    notifier.send(&external(), vec![notification(&[("alertname", "A")]); 600]);
    notifier.open(runtime.handle().clone());
    notifier.stop(WAIT_MAX);
    let batches: Vec<usize> = good.bodies.try_iter().map(|(_, body)| labels(&body).len()).collect();
    assert_eq!(batches, [256, 256, 88]);
}

#[test]
fn a_reload_keeps_queues_of_entries_without_a_change() {
    let notifier = notifier(100);
    let entry = |port: u16, prefix: &str| {
        format!("{{path_prefix: '{prefix}', static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}")
    };
    // Nothing is sent without a runtime.
    apply(&notifier, &format!("{{alertmanagers: [{}, {}]}}", entry(1, ""), entry(2, ""))).unwrap();
    notifier.send(&external(), vec![notification(&[("alertname", "A")])]);
    apply(&notifier, &format!("{{alertmanagers: [{}, {}]}}", entry(2, ""), entry(1, "/p")))
        .unwrap();
    let text = metrics(&notifier);
    let length = |url: &str, len: usize| {
        format!("prometheus_notifications_queue_length{{alertmanager=\"http://{url}\"}} {len}\n")
    };
    assert!(text.contains(&length("127.0.0.1:2/api/v2/alerts", 1)), "{text}");
    assert!(text.contains(&length("127.0.0.1:1/p/api/v2/alerts", 0)), "{text}");
    assert!(!text.contains("127.0.0.1:1/api"), "{text}");
}

/// Before, relabelling and the texts of links held a lock that metrics and the API need.
#[test]
fn alerts_are_relabelled_without_a_lock() {
    let notifier = notifier(100);
    apply(&notifier, "{alertmanagers: [{static_configs: [{targets: ['127.0.0.1:1']}]}]}").unwrap();
    let (reads, read) = channel();
    let notifications = std::iter::once(()).map(|()| {
        let (notifier, reads) = (Arc::clone(&notifier), reads.clone());
        std::thread::spawn(move || {
            let _ = reads.send((notifier.urls().0.len(), metrics(&notifier)));
        });
        let (url_count, text) = read.recv_timeout(WAIT_MAX).expect("readers wait for `send`");
        assert!(url_count == 1 && text.contains("alertmanagers_discovered 1\n"), "{text}");
        notification(&[("alertname", "A")])
    });
    notifier.send(&external(), notifications);
    assert!(metrics(&notifier).contains("/api/v2/alerts\"} 1\n"), "{}", metrics(&notifier));
}

/// The list of a file is followed while the process runs.
#[test]
fn alertmanagers_of_files_are_discovered() {
    let runtime = runtime();
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("am.yml");
    std::fs::write(&list, "[{targets: ['127.0.0.1:1'], labels: {a: b}}]").unwrap();
    let notifier = notifier(1);
    notifier.open(runtime.handle().clone());
    let path = list.display();
    let entry = "static_configs: [{targets: ['127.0.0.1:3']}]";
    let section =
        format!("{{alertmanagers: [{{file_sd_configs: [{{files: ['{path}']}}], {entry}}}]}}");
    apply(&notifier, &section).unwrap();
    let wait_for_ports = |ports: &[u16]| {
        let wanted: Vec<String> =
            ports.iter().map(|port| format!("http://127.0.0.1:{port}/api/v2/alerts")).collect();
        wait_for(wanted, || notifier.urls().0);
    };
    wait_for_ports(&[1, 3]);
    let next = folder.path().join("next.yml");
    std::fs::write(&next, "[{targets: ['127.0.0.1:1', '127.0.0.1:2']}]").unwrap();
    std::fs::rename(&next, &list).unwrap();
    wait_for_ports(&[1, 2, 3]);
    notifier.stop(Duration::ZERO);
}

/// Before, 25,000 Alertmanagers took 200 MB that nothing had reserved.
#[test]
fn a_list_of_alertmanagers_without_memory_is_refused_and_the_previous_one_stays() {
    let runtime = runtime();
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("am.yml");
    let write = |count: usize, port: u16| {
        let targets: Vec<String> =
            (0..count).map(|idx| format!("'127.0.{}.{}:{port}'", idx / 250, idx % 250)).collect();
        let next = folder.path().join("next.yml");
        std::fs::write(&next, format!("[{{targets: [{}]}}]", targets.join(","))).unwrap();
        std::fs::rename(&next, &list).unwrap();
    };
    write(3, 1);
    let budget = Budget::unlimited().part_of_setting(8 << 20, "--rule-memory");
    let options = NotifyOptions { queue_len_max: 9, budget, queue_bytes_max: 1 << 20 };
    let notifier = Arc::new(Notifier::new(options));
    notifier.open(runtime.handle().clone());
    let path = list.display();
    apply(&notifier, &format!("{{alertmanagers: [{{file_sd_configs: [{{files: ['{path}']}}]}}]}}"))
        .unwrap();
    wait_for(3, || notifier.urls().0.len());
    let used_bytes = notifier.destination_budget.usage().used_bytes;
    write(1_000, 1);
    wait_for(1, || notifier.discovery_failures().len());
    let warning = notifier.discovery_failures().concat();
    assert!(warning.contains("list fewer, or raise --rule-memory"), "{warning}");
    assert_eq!(notifier.urls().0.len(), 3);
    assert_eq!(notifier.destination_budget.usage().used_bytes, used_bytes);
    // Other Alertmanagers use the memory of those that they replace.
    for port in [2, 3] {
        write(60, port);
        let ends = format!(":{port}/api/v2/alerts");
        let replaced = || {
            let (active, _) = notifier.urls();
            (active.len(), active.iter().all(|url| url.ends_with(&ends)))
        };
        wait_for((60, true), replaced);
        assert_eq!(notifier.discovery_failures(), [""; 0]);
    }
    notifier.stop(Duration::ZERO);
    assert_eq!(notifier.destination_budget.usage().used_bytes, 0);
}

/// Before, a list of 10 KB with a long label of a group took minutes under the lock of the sets.
#[test]
fn repeated_alertmanagers_with_long_labels_are_bounded() {
    let notifier = notifier(1);
    let apply_repeated = |count: usize| {
        let (label, targets) = ("x".repeat(100_000), "'h:1',".repeat(count));
        let lists = format!("[{{labels: {{__meta_long: {label}}}, targets: [{targets} 'h:2']}}]");
        apply(&notifier, &format!("{{alertmanagers: [{{static_configs: {lists}}}]}}")).unwrap();
        notifier.urls().0.len()
    };
    assert_eq!((apply_repeated(500), apply_repeated(700)), (2, 1));
}

#[test]
fn the_memory_of_an_alertmanager_covers_its_task() {
    let (bodies, url) = (Bodies::new(&Budget::unlimited()), "u".to_owned());
    let delivery = Delivery {
        destination: Arc::new(Destination::new(url, 1)),
        client: Arc::new(Client::new(&HttpClient::default(), &bodies).unwrap()),
        timeout: WAIT_MAX,
        failures: Arc::default(),
        bodies: Budget::unlimited(),
    };
    let task_bytes = size_of_val(&delivery.run());
    let bytes = task_bytes + size_of::<Destination>() + size_of::<Sender>() + 512;
    assert!(bytes as u64 <= DESTINATION_BYTES, "{bytes}");
    assert!(bytes as u64 >= DESTINATION_BYTES / 2, "{bytes}");
}

#[test]
fn skipped_targets_of_alertmanagers_are_one_line_a_minute() {
    let notifier = notifier(1);
    let targets: Vec<String> = (0..500).map(|idx| format!("'h{idx}:1'")).collect();
    let lines = lines_of(|| {
        for prefix in ["a", "b"] {
            let section = format!(
                "{{alertmanagers: [{{path_prefix: {prefix}, static_configs: [{{targets: [{}]}}], \
                 relabel_configs: [{{target_label: __address__, replacement: 'a/b'}}]}}]}}",
                targets.join(",")
            );
            apply(&notifier, &section).unwrap();
        }
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("skipped") && lines[0].contains("count=500"), "{lines:?}");
}

#[test]
fn parts_that_are_not_supported_are_refused_by_name() {
    let notifier = notifier(1);
    let f = |entry: &str| {
        let refused = apply(&notifier, &format!("{{alertmanagers: [{entry}]}}")).unwrap_err();
        refused.to_string()
    };
    assert!(f("{sigv4: {region: eu}}").contains("sigv4"));
    let nomad = "{nomad_sd_configs: [{server: 'http://127.0.0.1:1'}]}";
    assert!(f(nomad).contains("nomad_sd_configs"));
    let missing = "{tls_config: {cert_file: /none.pem, key_file: /none.key}}";
    assert!(f(missing).contains("none.pem"), "{}", f(missing));
    assert_eq!(notifier.urls().0, [""; 0]);
}
