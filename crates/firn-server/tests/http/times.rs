//! Timestamps that would be lost or misplaced silently are refused by every protocol: older than
//! the retention, and in seconds.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::Running;
use crate::client::{Answer, api, get, send};
use crate::write_request::{Message, series};

const IN_2020: i64 = 1_577_836_800_000;

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("before the year 292 million")
}

/// One sample at `ts` by each protocol, each of another metric.
fn write_by_all(server: &Running, ts: i64) -> [(&'static str, Answer); 4] {
    let post = |path: &str, body: &str| send(server.at(), "POST", path, &[], body.as_bytes());
    let groups = format!(
        "{{\"groups\":[{{\"labels\":{{\"device\":\"d\"}},\"members\":[{{\"__name__\":\"by_groups\"}}],\
         \"rows\":[{{\"timestamp\":{ts},\"values\":[1]}}]}}]}}"
    );
    let transaction = format!(
        "{{\"operations\":[{{\"op\":\"insert\",\"series\":{{\"__name__\":\"by_transaction\"}},\
         \"timestamp\":{ts},\"value\":1}}]}}"
    );
    let sample = series(&[("__name__", "by_remote_write")]).sample(ts, 1.0);
    [
        ("remote_write", Message::default().series(sample).send(server.at())),
        ("import", post("/api/v1/import/prometheus", &format!("by_import 1 {ts}\n"))),
        ("groups", post("/api/v1/groups/write", &groups)),
        ("transactions", post("/api/v1/transaction", &transaction)),
    ]
}

fn check_refused(server: &Running, ts: i64, wanted: &str) {
    for (protocol, answer) in write_by_all(server, ts) {
        let text = answer.text();
        assert_eq!(answer.status, 400, "{protocol}: {text}");
        assert!(text.contains("out of bounds: timestamp ") && text.contains(wanted), "{text}");
        assert!(text.contains(&ts.to_string()), "{protocol}: {text}");
    }
}

fn rejected(server: &Running, protocol: &str, reason: &str) -> bool {
    let labels = format!("{{protocol=\"{protocol}\",reason=\"{reason}\"}}");
    let line = format!("firn_write_rejected_samples_total{labels} 1\n");
    get(server.at(), "/metrics").text().contains(&line)
}

#[test]
fn samples_older_than_the_retention_are_refused_by_every_protocol() {
    let server = Running::start(&["--retention=1d"]);
    check_refused(&server, IN_2020, "older than the retention");
    check_refused(&server, 0, "older than the retention");
    let names = api(server.at(), "label/__name__/values", &[]);
    assert_eq!(names.to_string(), "[]", "nothing is shown");
    for (protocol, answer) in write_by_all(&server, now_ms() - 3_600_000) {
        assert!(matches!(answer.status, 200 | 204), "{protocol}: {}", answer.text());
    }
    let again = Running::start(&["--retention=1d"]);
    write_by_all(&again, IN_2020);
    for protocol in ["remote_write", "groups", "import", "transactions"] {
        assert!(rejected(&again, protocol, "too_old"), "{protocol}");
    }
    let forever = Running::start(&[]);
    for (protocol, answer) in write_by_all(&forever, IN_2020) {
        assert!(matches!(answer.status, 200 | 204), "{protocol}: {}", answer.text());
    }
}

/// As milliseconds they are January 1970: accepted without a word, and never found.
#[test]
fn timestamps_in_seconds_are_refused_by_every_protocol() {
    let server = Running::start(&[]);
    let now_s = now_ms() / 1_000;
    check_refused(&server, now_s, "looks like seconds, send milliseconds");
    check_refused(&server, 1_700_000_000, "looks like seconds, send milliseconds");
    check_refused(&server, now_s * 1_000_000, "looks like microseconds, send milliseconds");
    check_refused(&server, now_s * 1_000_000_000, "looks like nanoseconds, send milliseconds");
    let default_ts = format!("/api/v1/import/prometheus?timestamp={now_s}");
    let answer = send(server.at(), "POST", &default_ts, &[], b"m 1\n");
    assert!(answer.status == 400 && answer.text().contains("seconds"), "{}", answer.text());
    // Small numbers remain possible.
    for (protocol, answer) in write_by_all(&server, 1_000) {
        assert!(matches!(answer.status, 200 | 204), "{protocol}: {}", answer.text());
    }
    let server = Running::start(&[]);
    write_by_all(&server, now_s);
    for protocol in ["remote_write", "groups", "import", "transactions"] {
        assert!(rejected(&server, protocol, "timestamp_in_seconds"), "{protocol}");
    }
}
