//! Every sample that comes in is counted once: as written, or under the reason why not.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use firn_model::LabelLimits;
use firn_server::ingest::{Ingest, IngestLimits, Scratch};
use firn_server::metadata::MetadataStore;
use firn_server::tally::Reason;
use firndb::{Db, Options};

use crate::client::{Answer, get, send};
use crate::write_request::{Message, series};
use crate::{Running, wait_for, wait_until};

const T: i64 = 1_700_000_000_000;
const LIMITS: [&str; 5] = [
    "--series-max=8",
    "--series-per-metric-max=4",
    "--series-per-group-max=3",
    "--label-count-max=8",
    "--future-max=1h",
];

/// The server's counters for one protocol.
#[derive(Debug, Default)]
struct Counted {
    received: u64,
    stored: u64,
    rejected: BTreeMap<String, u64>,
}

/// All protocols; checks on the way that no sample is missing and none is counted twice.
fn counted(at: SocketAddr) -> BTreeMap<String, Counted> {
    let text = get(at, "/metrics").text();
    let mut all: BTreeMap<String, Counted> = BTreeMap::new();
    let mut written = None;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect("a value");
        let value = value.parse::<f64>().expect("a number") as u64;
        let (name, labels) = name.split_once('{').unwrap_or((name, ""));
        let label = |label: &str| {
            let rest = labels.split_once(&format!("{label}=\""))?.1;
            Some(rest.split_once('"')?.0.to_owned())
        };
        if name == "firn_engine_written_samples_total" {
            written = Some(value);
        }
        let Some(protocol) = label("protocol") else { continue };
        let counted = all.entry(protocol).or_default();
        match name {
            "firn_write_received_samples_total" => counted.received = value,
            "firn_write_stored_samples_total" => counted.stored = value,
            "firn_write_rejected_samples_total" => {
                counted.rejected.insert(label("reason").expect("a reason"), value);
            }
            _ => {}
        }
    }
    for (protocol, counted) in &all {
        let rejected = counted.rejected.values().sum::<u64>();
        assert_eq!(counted.received, counted.stored + rejected, "{protocol}: {counted:?}");
    }
    let stored = all.values().map(|counted| counted.stored).sum::<u64>();
    assert_eq!(written, Some(stored), "the engine's count");
    all
}

fn check(at: SocketAddr, protocol: &str, stored: u64, rejected: &[(&str, u64)]) {
    let counted = counted(at).remove(protocol).expect("a protocol");
    let found: Vec<(&str, u64)> = counted
        .rejected
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| (reason.as_str(), *count))
        .collect();
    assert_eq!((counted.stored, &found[..]), (stored, rejected));
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("before the year 292 million")
}

fn check_limited(answer: &Answer, wanted: &str) {
    assert_eq!(answer.status, 429, "{}", answer.text());
    assert!(answer.text().contains(wanted), "{}", answer.text());
    assert!(answer.header("retry-after").parse::<u64>().expect("seconds") >= 1);
}

/// One request with every kind of bad sample, and good ones beside them.
fn mixed() -> Message {
    let member = |name: &str| series(&[("__name__", name), ("job", "j"), ("instance", "i")]);
    let mut request = Message::default()
        .series(
            series(&[("__name__", "m")])
                .sample(T, 1.0)
                .sample(T + 1, 2.0)
                .sample(now_ms() + 7_200_000, 3.0),
        )
        .series(series(&[("a", "1")]).sample(T, 1.0).sample(T + 1, 1.0))
        .series(series(&[("__name__", "m"), ("a", "1"), ("a", "2")]).sample(T, 1.0))
        .series(
            series(&[
                ("__name__", "m"),
                ("a", "1"),
                ("b", "1"),
                ("c", "1"),
                ("d", "1"),
                ("e", "1"),
                ("f", "1"),
                ("g", "1"),
                ("h", "1"),
            ])
            .sample(T, 1.0)
            .sample(T + 1, 1.0)
            .sample(T + 2, 1.0),
        )
        .series(series(&[("__name__", "m")]).bytes(4, [8, 1]).bytes(4, [8, 2]))
        .series(series(&[("__name__", "without samples and over no limit")]));
    for idx in 0..6 {
        let one = series(&[("__name__", "p"), ("idx", &idx.to_string())]);
        request = request.series(one.sample(T, 1.0).sample(T + 1, 1.0));
    }
    for name in ["a", "b", "c", "d", "e"] {
        request = request.series(member(name).sample(T, 1.0));
    }
    request
}

#[test]
fn every_sample_of_a_remote_write_has_one_fate() {
    let server = Running::start(&[&LIMITS[..], &["--series-max=10"]].concat());
    let at = server.at();
    // The second time most series are known, and the refused ones are refused again.
    for times in 1..=2 {
        check_limited(&mixed().send(at), "new series refused");
        let rejected = [
            ("invalid_labels", 3 * times),
            ("label_limit", 3 * times),
            ("native_histogram", 2 * times),
            ("series_per_group_max", 2 * times),
            ("series_per_metric_max", 4 * times),
            ("too_far_ahead", times),
        ];
        check(at, "remote_write", (2 + 8 + 3) * times, &rejected);
    }
    let new = |name: &str| series(&[("__name__", name)]).sample(T, 1.0);
    let known = series(&[("__name__", "m")]).sample(T + 5, 1.0);
    let request = Message::default().series(new("tenth")).series(new("eleventh")).series(known);
    check_limited(&request.send(at), "10 series, the limit is 10 (series_max)");
    let counted = counted(at).remove("remote_write").expect("it is there");
    assert_eq!((counted.stored, counted.rejected["series_max"]), (28, 1));
    let metrics = get(at, "/metrics").text();
    for (limit, count) in
        [("series_max", 1), ("series_per_metric_max", 4), ("series_per_group_max", 4)]
    {
        let wanted = format!("firn_index_rejected_series_total{{limit=\"{limit}\"}} {count}\n");
        assert!(metrics.contains(&wanted), "{wanted} {metrics}");
    }
}

/// A malformed series at the end: no sample is written, and those that are at fault keep their
/// reasons. Before, all of them counted as `request`, the malformed one too.
#[test]
fn a_request_that_is_refused_whole_is_counted_whole() {
    let server = Running::start(&LIMITS);
    let at = server.at();
    let broken = Message::default().bytes(1, [0x0a, 0x7f]).sample(T, 1.0);
    assert_eq!(mixed().series(broken).send(at).status, 400);
    // 28 samples of the mixed one, and the broken one's.
    let rejected =
        [("invalid_labels", 4), ("label_limit", 3), ("native_histogram", 2), ("request", 20)];
    check(at, "remote_write", 0, &rejected);
}

#[test]
fn every_sample_of_an_import_has_one_fate() {
    let server = Running::start(&LIMITS);
    let at = server.at();
    let import = |text: &str| send(at, "POST", "/api/v1/import/prometheus", &[], text.as_bytes());
    assert_eq!(import("m 1 1700000000000\nm 2 1700000001000\nn 1\n").status, 204);
    check(at, "import", 3, &[]);
    // Before, the sample that is at fault counted as `request`, as those beside it do.
    let ahead = format!("m 3 1700000002000\nm 1 {}\nm 4 1700000003000\n", now_ms() + 7_200_000);
    assert_eq!(import(&ahead).status, 400);
    check(at, "import", 3, &[("request", 2), ("too_far_ahead", 1)]);
    assert_eq!(import("m 3 1700000002000\nm{a=\"1\",a=\"2\"} 1\n").status, 400);
    check(at, "import", 3, &[("invalid_labels", 1), ("request", 3), ("too_far_ahead", 1)]);
    let nine: Vec<String> = ('a'..='h').map(|name| format!("{name}=\"1\"")).collect();
    let answer = import(&format!("l{{{}}} 1\nm 3 1700000002000\n", nine.join(",")));
    assert_eq!(answer.status, 400);
    assert!(answer.text().starts_with("line 1: "), "{}", answer.text());
    let many: String = (0..6).map(|idx| format!("p{{idx=\"{idx}\"}} 1\n")).collect();
    check_limited(&import(&many), "metric \"p\" has 4 series, the limit is 4");
    let rejected = [
        ("invalid_labels", 1),
        ("label_limit", 1),
        ("request", 4),
        ("series_per_metric_max", 2),
        ("too_far_ahead", 1),
    ];
    check(at, "import", 7, &rejected);
    assert_eq!(import("m{").status, 400);
    let metrics = get(at, "/metrics").text();
    let refused = "firn_write_rejected_requests_total{protocol=\"import\"} 1\n";
    assert!(metrics.contains(refused), "{metrics}");
}

/// New series are resolved in pieces: a mistake in a later one defines no series of the others.
#[test]
fn a_mistake_in_a_long_import_defines_no_series() {
    let server = Running::start(&["--label-count-max=8", "--self-scrape=never"]);
    let at = server.at();
    let import = |text: &str| send(at, "POST", "/api/v1/import/prometheus", &[], text.as_bytes());
    let series_count = || {
        let status: serde_json::Value = get(at, "/api/v1/status/tsdb").json();
        status["data"]["headStats"]["numSeries"].as_u64()
    };
    let lines: String = (0..10_000).map(|idx| format!("m{{idx=\"{idx}\"}} 1\n")).collect();
    let nine: Vec<String> = ('a'..='h').map(|name| format!("{name}=\"1\"")).collect();
    let refused = import(&format!("{lines}m{{{}}} 1\n", nine.join(",")));
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("line 10001"), "{}", refused.text());
    assert_eq!(series_count(), Some(0));
    assert_eq!(import(&lines).status, 204);
    assert_eq!(series_count(), Some(10_000));
    assert_eq!(import(&lines).status, 204);
    assert_eq!(series_count(), Some(10_000));
}

#[test]
fn new_series_come_as_fast_as_they_may_and_known_ones_go_on() {
    let server = Running::start(&["--new-series-per-second-max=1"]);
    let at = server.at();
    let request = (0..12).fold(Message::default(), |request, idx| {
        request.series(series(&[("__name__", "m"), ("idx", &idx.to_string())]).sample(T, 1.0))
    });
    check_limited(&request.send(at), "new_series_per_second_max");
    check(at, "remote_write", 10, &[("new_series_per_second_max", 2)]);
    let known = series(&[("__name__", "m"), ("idx", "9")]).sample(T + 1, 1.0);
    assert_eq!(Message::default().series(known).send(at).status, 204);
}

/// A sender that drops a request after 429, or repeats it for ever, needs `--write-lenient`.
#[test]
fn lenient_servers_hide_limits_that_waiting_does_not_lift() {
    let server = Running::start(&["--write-lenient", "--series-max=1"]);
    let at = server.at();
    let request = Message::default()
        .series(series(&[("__name__", "a")]).sample(T, 1.0))
        .series(series(&[("__name__", "b")]).sample(T, 1.0));
    assert_eq!(request.send(at).status, 204);
    check(at, "remote_write", 1, &[("series_max", 1)]);
    drop(server);
    let server = Running::start(&["--write-lenient", "--new-series-per-second-max=1"]);
    let request = (0..11).fold(Message::default(), |request, idx| {
        request.series(series(&[("__name__", "m"), ("idx", &idx.to_string())]).sample(T, 1.0))
    });
    assert_eq!(request.send(server.at()).status, 429);
}

/// The database is closed during the write: earlier refusals keep their reason.
#[test]
fn samples_of_a_failed_write_are_counted() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let env = firndb::local_env(folder.path()).expect("a world");
    let db = Arc::new(
        Db::open(env, Options { future_ms_max: 0, ..Options::default() }).expect("a database"),
    );
    let limits = IngestLimits {
        labels: LabelLimits::default(),
        request_bytes_max: 1 << 20,
        cached_series_max: 1_000,
    };
    let ingest = Ingest::new(Arc::clone(&db), limits);
    let request = Message::default()
        .series(series(&[("__name__", "m")]).sample(T, 1.0).sample(T + 1, 1.0))
        .series(series(&[("no_name", "m")]).sample(T, 1.0));
    let block = snap::raw::Encoder::new().compress_vec(&request.0).expect("fits");
    let write = || {
        let mut scratch = Scratch::default();
        ingest
            .remote_write(&block, &mut scratch, &MetadataStore::new(1 << 20))
            .expect("well formed")
    };
    assert_eq!((write().tally.stored, write().tally.rejected(Reason::InvalidLabels)), (2, 1));
    db.close().expect("a clean close");
    let outcome = write();
    assert!(outcome.tally.is_exact() && outcome.error.is_some(), "{outcome:?}");
    assert_eq!(outcome.tally.rejected(Reason::InvalidLabels), 1);
    assert_eq!(outcome.tally.rejected(Reason::Unavailable), 2);
}

/// Group rows with every kind of mistake, and values that their own request overwrites.
#[test]
fn every_value_of_a_group_has_one_fate() {
    let server = Running::start(&LIMITS);
    let at = server.at();
    let post = |body: String| send(at, "POST", "/api/v1/groups/write", &[], body.as_bytes());
    let member = |name: &str| format!("{{\"__name__\":\"{name}\"}}");
    let group = |members: &[&str], rows: &str| {
        let members: Vec<String> = members.iter().map(|name| member(name)).collect();
        format!(
            "{{\"labels\":{{\"device\":\"d\"}},\"members\":[{}],\"rows\":[{rows}]}}",
            members.join(",")
        )
    };
    let row = |ts: i64, values: &str| format!("{{\"timestamp\":{ts},\"values\":[{values}]}}");
    let twice = [row(T, "1,2"), row(T, "null,3")].join(",");
    assert_eq!(post(format!("{{\"groups\":[{}]}}", group(&["a", "b"], &twice))).status, 200);
    check(at, "groups", 3, &[]);
    // Five members where a group may have three, one row of three ahead; nulls are no values.
    let rows = [
        row(T, "1,2,3,4,5"),
        row(now_ms() + 7_200_000, "1,2,3,4,5"),
        row(T + 1, "6,null,null,7,8"),
    ];
    let answer =
        post(format!("{{\"groups\":[{}]}}", group(&["a", "b", "c", "d", "e"], &rows.join(","))));
    check_limited(&answer, "series_per_group_max");
    check(at, "groups", 3 + 4, &[("series_per_group_max", 4), ("too_far_ahead", 5)]);
    // One error found in the database refuses the whole request.
    let collides = "{\"labels\":{},\"members\":[{\"__name__\":\"a\",\"device\":\"d\"}],\
                    \"rows\":[{\"timestamp\":1,\"values\":[1]}]}";
    let both = format!("{{\"groups\":[{},{collides}]}}", group(&["a"], &row(T, "1")));
    assert_eq!(post(both).status, 400);
    let rejected = [("request", 2), ("series_per_group_max", 4), ("too_far_ahead", 5)];
    check(at, "groups", 7, &rejected);
    assert_eq!(post("{".to_owned()).status, 400);
    let metrics = get(at, "/metrics").text();
    let refused = "firn_write_rejected_requests_total{protocol=\"groups\"} 1\n";
    assert!(metrics.contains(refused), "{metrics}");
}

/// Before, those of a refused transaction were not counted at all.
#[test]
fn every_sample_of_a_transaction_has_one_fate() {
    let server = Running::start(&[&LIMITS[..], &["--series-max=2"]].concat());
    let at = server.at();
    let insert = |name: &str, ts: i64| {
        format!(
            "{{\"op\":\"insert\",\"series\":{{\"__name__\":\"{name}\"}},\"timestamp\":{ts},\"value\":1}}"
        )
    };
    let post = |operations: &[String]| {
        let body = format!("{{\"operations\":[{}]}}", operations.join(","));
        send(at, "POST", "/api/v1/transaction", &[], body.as_bytes()).status
    };
    let read = "{\"op\":\"read\",\"match\":\"a\"}".to_owned();
    assert_eq!(post(&[insert("a", T), insert("a", T + 1), read.clone()]), 200);
    check(at, "transactions", 2, &[]);
    // A refused timestamp defines no series.
    let ahead = now_ms() + 7_200_000;
    assert_eq!(post(&[insert("b", T), insert("a", ahead), insert("a", ahead)]), 400);
    assert_eq!(get(at, "/api/v1/series?match[]=b").json()["data"], serde_json::json!([]));
    check(at, "transactions", 2, &[("request", 2), ("too_far_ahead", 1)]);
    assert_eq!(post(&[insert("a", T), insert("b", T), insert("c", T)]), 429);
    let limited = [("request", 4), ("series_max", 1), ("too_far_ahead", 1)];
    check(at, "transactions", 2, &limited);
    // A sample that does not exist, a pattern that cannot be compiled, and a lack of rights.
    let update = "{\"op\":\"update\",\"series\":{\"__name__\":\"a\"},\"timestamp\":5,\"value\":1}";
    assert_eq!(post(&[insert("a", T), update.to_owned()]), 404);
    let pattern = "{\"op\":\"read\",\"match\":\"{a=~\\\"(\\\"}\"}".to_owned();
    assert_eq!(post(&[insert("a", T), pattern]), 400);
    let delete = "{\"op\":\"delete\",\"match\":\"a\"}".to_owned();
    assert_eq!(post(&[insert("a", T), delete]), 400);
    let rejected = [("request", 8), ("series_max", 1), ("too_far_ahead", 1)];
    check(at, "transactions", 2, &rejected);
    assert_eq!(post(&[insert("a", T), "{".to_owned()]), 400);
    let metrics = get(at, "/metrics").text();
    let refused = "firn_write_rejected_requests_total{protocol=\"transactions\"} 1\n";
    assert!(metrics.contains(refused), "{metrics}");
}

/// Before, samples were counted with the response, which is not made for a client that has
/// disconnected, although its samples are stored.
#[test]
fn samples_of_clients_that_disconnect_are_counted() {
    use std::io::Write;

    let server = Running::start(&[]);
    let at = server.at();
    let insert = format!(
        "{{\"operations\":[{{\"op\":\"insert\",\"series\":{{\"__name__\":\"t\"}},\
         \"timestamp\":{T},\"value\":1}}]}}"
    );
    let group = format!(
        "{{\"groups\":[{{\"labels\":{{}},\"members\":[{{\"__name__\":\"g\"}}],\
         \"rows\":[{{\"timestamp\":{T},\"values\":[1]}}]}}]}}"
    );
    let message = Message::default().series(series(&[("__name__", "r")]).sample(T, 1.0));
    let message = snap::raw::Encoder::new().compress_vec(&message.0).expect("fits");
    let requests: [(&str, &[u8]); 4] = [
        ("/api/v1/write", &message),
        ("/api/v1/import/prometheus", b"i 1\n"),
        ("/api/v1/groups/write", group.as_bytes()),
        ("/api/v1/transaction", insert.as_bytes()),
    ];
    let send_all = || {
        for (path, body) in requests {
            let mut client = std::net::TcpStream::connect(at).expect("a connection");
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: {at}\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            client.write_all(&[head.as_bytes(), body].concat()).expect("a request");
        }
    };
    let counted = || {
        let metrics = get(at, "/metrics").text();
        let sum = |name: &str| -> f64 {
            let values = metrics.lines().filter(|line| line.starts_with(name));
            values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
        };
        (sum("firn_engine_written_samples_total"), sum("firn_write_stored_samples_total"))
    };
    // A server that sees the end of the connection first does not begin with the request.
    wait_until("twenty samples are written", || {
        send_all();
        counted().0 >= 20.0
    });
    // The last ones may still run, and the two counters are not read at once.
    wait_for(|| {
        let (written, stored) = counted();
        if written == stored { Ok(()) } else { Err(get(at, "/metrics").text()) }
    });
}

/// A value that a later one of the same request overwrites was received, and is counted as written.
#[test]
fn values_that_their_request_overwrites_are_counted() {
    let server = Running::start(&LIMITS);
    let one = || series(&[("__name__", "m")]).sample(T, 1.0);
    let request = Message::default().series(one()).series(one().sample(T, 2.0));
    assert_eq!(request.send(server.at()).status, 204);
    check(server.at(), "remote_write", 3, &[]);
}
