//! Remote write 1.0: accepted requests, and refusals with their status.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::client::{Answer, api, get, send};
use crate::write_request::{Message, send_block, series};
use crate::{Running, wait_for, wait_until};

const T: i64 = 1_700_000_000_000;

/// The values of `query` as (labels in JSON, value).
fn values(server: &Running, query: &str) -> Vec<(String, String)> {
    let data = api(server.at(), "query", &[("query", query), ("time", "1700000010")]);
    let result = data["result"].as_array().expect("a vector").clone();
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    result.iter().map(|s| (s["metric"].to_string(), text(&s["value"][1]))).collect()
}

fn check_refused(answer: &Answer, status: u16, wanted: &[&str]) {
    let text = answer.text();
    assert_eq!(answer.status, status, "{text}");
    for wanted in wanted {
        assert!(text.contains(wanted), "{wanted:?} is not in {text:?}");
    }
    assert_eq!(text.lines().count(), 1, "one sentence: {text}");
}

#[test]
fn acknowledged_writes_are_visible() {
    let server = Running::start(&[]);
    // Unsorted labels are sorted, empty values are no labels.
    let request = Message::default()
        .series(series(&[("z", "1"), ("__name__", "m"), ("a", "2"), ("gone", "")]).sample(T, 1.5))
        .series(series(&[("__name__", "n"), ("job", "j"), ("instance", "i")]).sample(T, -0.0))
        .series(series(&[("__name__", "no_samples")]));
    for _ in 0..2 {
        // The second time is a hit in the sender cache and an identical sample.
        let answer = request.send(server.at());
        assert_eq!((answer.status, answer.text().as_str()), (204, ""));
    }
    assert_eq!(
        values(&server, "m"),
        [(r#"{"__name__":"m","a":"2","z":"1"}"#.into(), "1.5".into())]
    );
    assert_eq!(values(&server, "n")[0].1, "-0");
    // Late and overwriting samples are accepted.
    let labels = [("a", "2"), ("__name__", "m"), ("z", "1")];
    let late = series(&labels).sample(T - 60_000, 7.0).sample(T, 8.0).sample(T - 90_000, 6.0);
    assert_eq!(Message::default().series(late).send(server.at()).status, 204);
    assert_eq!(values(&server, "sum_over_time(m[2m])")[0].1, "21");
}

#[test]
fn empty_requests_metadata_and_exemplars_are_taken() {
    let server = Running::start(&[]);
    assert_eq!(Message::default().send(server.at()).status, 204);
    let metadata =
        Message::default().varint(1, 1).bytes(2, "m").bytes(4, "What it is.\n").bytes(5, "s");
    let exemplar = series(&[("__name__", "m")]).sample(T, 1.0).bytes(3, [8, 1]);
    let request = Message::default().bytes(3, metadata.0).series(exemplar).bytes(99, "unknown");
    assert_eq!(request.send(server.at()).status, 204);
    let known = api(server.at(), "metadata", &[("metric", "m")]);
    let wanted = r#"{"m":[{"help":"What it is.\n","type":"counter","unit":"s"}]}"#;
    assert_eq!(known.to_string(), wanted);
    let metrics = get(server.at(), "/metrics").text();
    assert!(metrics.contains("firn_write_dropped_exemplars_total 1\n"), "{metrics}");
    assert!(
        metrics.contains("firn_write_stored_samples_total{protocol=\"remote_write\"} 1\n"),
        "{metrics}"
    );
}

#[test]
fn malformed_bodies_are_refused_whole() {
    let server = Running::start(&[]);
    let at = server.at();
    check_refused(&send_block(at, b""), 400, &["snappy"]);
    check_refused(&send_block(at, b"\xff\x06\x00\x00sNaPpY"), 400, &["snappy"]);
    check_refused(&send_block(at, &[100, 1, 2, 3]), 400, &["snappy"]);
    let good = series(&[("__name__", "m")]).sample(T, 1.0);
    let mut request = Message::default().series(good.clone());
    request.0.extend_from_slice(&[0x0a, 0x7f]);
    check_refused(&request.send(at), 400, &["protobuf", "byte"]);
    // Malformed labels refuse the whole request too, although they are parsed last.
    let broken = Message::default().bytes(1, [0x0a, 0x7f]).sample(T, 1.0);
    check_refused(&Message::default().series(good).series(broken).send(at), 400, &["protobuf"]);
    assert!(values(&server, "m").is_empty());
    let metrics = get(at, "/metrics").text();
    let refused = "firn_write_rejected_requests_total{protocol=\"remote_write\"} 4\n";
    assert!(metrics.contains(refused), "{metrics}");
}

#[test]
fn broken_series_are_named_and_the_others_written() {
    let server = Running::start(&["--label-value-bytes-max=100", "--label-name-bytes-max=64"]);
    let f = |bad: Message, wanted: &[&str]| {
        let name = format!("good_{}", bad.0.len());
        let good = series(&[("__name__", &name)]).sample(T, 1.0);
        let request = Message::default().series(bad.sample(T, 1.0)).series(good);
        check_refused(
            &request.send(server.at()),
            400,
            &[&["not written: 1 series"], wanted].concat(),
        );
        assert_eq!(values(&server, &name).len(), 1, "the valid series was written");
    };
    f(series(&[("a", "1")]), &["has no __name__", "a=\"1\""]);
    f(series(&[]), &["has no __name__"]);
    f(series(&[("__name__", "")]), &["has no __name__"]);
    f(series(&[("__name__", "m"), ("", "1")]), &["empty name"]);
    f(series(&[("__name__", "m"), ("a", "1"), ("a", "2")]), &["label \"a\" is repeated"]);
    f(series(&[("__name__", "m"), ("a", &"x".repeat(101))]), &["label \"a\"", "limit of 100"]);
    f(series(&[("__name__", "m"), (&"x".repeat(65), "1")]), &["limit of 64"]);
    f(series(&[("__name__", "m")]).label("a", b"\xff\xfe"), &["label value", "not UTF-8"]);
    f(series(&[("__name__", "m")]).label(b"\xff", "1"), &["label name", "not UTF-8"]);
    let many: Vec<(String, String)> = (0..65).map(|n| (format!("l{n}"), n.to_string())).collect();
    let many = many.iter().fold(series(&[("__name__", "m")]), |m, (n, v)| m.label(n, v));
    f(many, &["66 labels", "limit of 64"]);
    let metrics = get(server.at(), "/metrics").text();
    let series = |reason: &str| {
        let labels = format!("{{protocol=\"remote_write\",reason=\"{reason}\"}}");
        format!("firn_write_rejected_series_total{labels}")
    };
    assert!(metrics.contains(&format!("{} 7\n", series("invalid_labels"))), "{metrics}");
    assert!(metrics.contains(&format!("{} 3\n", series("label_limit"))), "{metrics}");
}

#[test]
fn clocks_that_are_ahead_are_refused_and_native_histograms_are_counted() {
    let server = Running::start(&["--future-max=1h"]);
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let now = i64::try_from(now.as_millis()).expect("before the year 292 million");
    let ahead =
        series(&[("__name__", "m"), ("a", "1")]).sample(T, 1.0).sample(now + 7_200_000, 2.0);
    let answer = Message::default().series(ahead).send(server.at());
    check_refused(
        &answer,
        400,
        &["1 samples out of bounds", "too far in the future", "m{a=\"1\"}"],
    );
    assert_eq!(values(&server, "m")[0].1, "1", "the other sample was written");
    let soon = series(&[("__name__", "soon")]).sample(now + 1_800_000, 1.0);
    assert_eq!(Message::default().series(soon).send(server.at()).status, 204);
    let histogram = series(&[("__name__", "h")]).sample(T, 3.0).bytes(4, [8, 1]);
    let answer = Message::default().series(histogram.clone()).send(server.at());
    // As exemplars: a sender would count all samples of the request as failed.
    assert_eq!((answer.status, answer.text().as_str()), (204, ""));
    let bad = series(&[("a", "1")]).sample(T, 1.0);
    let answer = Message::default().series(histogram).series(bad).send(server.at());
    check_refused(&answer, 400, &["not written: 1 series, 1 native histogram samples: "]);
    assert_eq!(values(&server, "h")[0].1, "3");
    let metrics = get(server.at(), "/metrics").text();
    assert!(metrics.contains(",reason=\"native_histogram\"} 2\n"), "{metrics}");
    assert!(metrics.contains(",reason=\"too_far_ahead\"} 1\n"), "{metrics}");
}

#[test]
fn leniency_answers_as_prometheus_does() {
    let server = Running::start(&["--write-lenient"]);
    let bad = series(&[("a", "1")]).sample(T, 1.0);
    assert_eq!(Message::default().series(bad).send(server.at()).status, 204);
    let rejected = ",reason=\"invalid_labels\"} 1\n";
    assert!(get(server.at(), "/metrics").text().contains(rejected));
}

#[test]
fn bodies_over_a_limit_are_refused_before_they_are_unpacked() {
    let server = Running::start(&["--body-bytes-max=70000", "--request-bytes-max=100000"]);
    check_refused(
        &send_block(server.at(), &[0; 70_001]),
        413,
        &["70000 bytes", "--body-bytes-max"],
    );
    // 4 GiB - 1 announced by five bytes.
    let announced = send_block(server.at(), &[0xff, 0xff, 0xff, 0xff, 0x0f, 0]);
    check_refused(
        &announced,
        413,
        &["4294967295 uncompressed bytes", "limit is 100000", "--request-bytes-max"],
    );
    let bomb = Message::default().bytes(99, vec![0; 200_000]);
    check_refused(&bomb.send(server.at()), 413, &["declares 200"]);
    // An uncompressed body is limited as it is sent, and only so.
    let import = |server: &Running, text: &str| {
        send(server.at(), "POST", "/api/v1/import/prometheus", &[], text.as_bytes())
    };
    let text = "m 1\n".repeat(20_000);
    check_refused(&import(&server, &text), 413, &["70000 bytes", "(--body-bytes-max)"]);
    let other = Running::start(&["--request-bytes-max=70000"]);
    assert_eq!(import(&other, &text).status, 204);
    // Without a length announced the limit holds as well.
    let chunk = format!("{:x}\r\n{}\r\n", 80_000, "x".repeat(80_000));
    let mut stream = TcpStream::connect(server.at()).expect("a connection");
    let head =
        "POST /api/v1/write HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all((head.to_owned() + &chunk).as_bytes()).expect("sent");
    let mut status = [0; 13];
    stream.read_exact(&mut status).expect("an answer");
    assert_eq!(&status, b"HTTP/1.1 413 ");
}

#[test]
fn tiny_messages_that_unpack_to_much_are_refused() {
    let server = Running::start(&[]);
    let request = (0..200_000).fold(Message::default(), |request, _| request.bytes(1, []));
    check_refused(&request.send(server.at()), 413, &["unpack to over"]);
}

#[test]
fn a_request_that_never_fits_is_refused_for_good() {
    let server = Running::start(&["--memory=64MiB", "--request-bytes-max=1GiB"]);
    // A block that declares 60 MiB: decoded, it would exceed the whole budget. It was 429.
    let zeros = Message::default().bytes(99, vec![0; 60 << 20]);
    let answer = zeros.send(server.at());
    check_refused(&answer, 413, &["bytes of memory", "5/8 of --memory", "split"]);
    assert_eq!(answer.header("retry-after"), "");
    // Its decoded form fits, its rows do not. It was 429, too.
    let rows = (0..320_000).fold(series(&[("__name__", "m")]), |row, n| row.sample(T + n, 1.0));
    let answer = Message::default().series(rows).send(server.at());
    check_refused(&answer, 413, &["bytes of memory", "5/8 of --memory", "split"]);
    let good = series(&[("__name__", "m")]).sample(T, 1.0);
    assert_eq!(Message::default().series(good).send(server.at()).status, 204, "it goes on");
}

#[test]
fn memory_of_a_process_with_other_users_refuses_nothing() {
    let server = Running::start(&["--memory=64MiB"]);
    let others = vec![1_u8; 128 << 20];
    // Large enough that a grant would measure the process.
    let noise = Message::default().bytes(99, vec![0; 4 << 20]);
    for _ in 0..3 {
        let good = series(&[("__name__", "m")]).sample(T, 1.0);
        assert_eq!(noise.clone().series(good).send(server.at()).status, 204);
    }
    let metrics = get(server.at(), "/metrics").text();
    assert!(metrics.contains("firn_memory_reserved_bytes{pool=\"process\"} 0\n"), "{metrics}");
    drop(std::hint::black_box(others));
}

#[test]
fn the_headers_choose_the_protocol() {
    let server = Running::start(&[]);
    let good = Message::default().series(series(&[("__name__", "m")]).sample(T, 1.0));
    let block = snap::raw::Encoder::new().compress_vec(&good.0).expect("fits");
    let f = |headers: &[(&str, &str)], status: u16| {
        let answer = send(server.at(), "POST", "/api/v1/write", headers, &block);
        assert_eq!(answer.status, status, "{headers:?}: {}", answer.text());
    };
    f(&[], 204);
    f(&[("Content-Encoding", "snappy")], 204);
    f(&[("Content-Type", "application/x-protobuf;proto=prometheus.WriteRequest")], 204);
    f(&[("Content-Type", "application/x-protobuf; foo=bar")], 204);
    for encoding in ["gzip", "zstd", "deflate"] {
        f(&[("Content-Encoding", encoding)], 415);
        // Before the body is read.
        let headers = [("Content-Encoding", encoding)];
        assert_eq!(send(server.at(), "POST", "/api/v1/write", &headers, b"junk").status, 415);
    }
    f(&[("Content-Type", "application/x-protobuf;proto=io.prometheus.write.v2.Request")], 415);
    f(&[("Content-Type", "application/x-protobuf; proto=io.prometheus.write.v2.Request")], 415);
    // Before, these were 204, and nothing of a message of 2.0 was stored.
    for parameter in ["Proto=io.prometheus.write.v2.Request", "PROTO = \"other\" ;charset=utf-8"] {
        let content_type = format!("Application/X-Protobuf;charset=utf-8 ; {parameter}");
        f(&[("Content-Type", &content_type)], 415);
    }
    let version = "X-Prometheus-Remote-Write-Version";
    f(&[(version, "2.0.0")], 415);
    f(&[(version, "0.1.0")], 204);
    f(&[("Content-Type", "application/json")], 415);
    assert_eq!(get(server.at(), "/api/v1/write").status, 405);
}

/// Before, requests for receivers that hang were no part of the memory of their destinations:
/// twenty of them left little to writes and queries.
#[test]
fn receivers_that_hang_hold_a_quarter_of_the_memory() {
    const RECEIVERS: usize = 20;
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    let section = |n| format!("- {{url: 'http://{address}/{n}', remote_timeout: 5m}}\n");
    let sections: String = (0..RECEIVERS).map(section).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("prometheus.yml");
    std::fs::write(&path, format!("remote_write:\n{sections}")).expect("a file");
    let config = format!("--prometheus-config={}", path.display());
    let metrics = |server: &Running, name: &str| -> Vec<f64> {
        let text = get(server.at(), "/metrics").text();
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse().ok()).collect()
    };
    let held =
        |server: &Running| metrics(server, "firn_memory_reserved_bytes{pool=\"requests\"}")[0];
    let long = "x".repeat(150);
    let write = |server: &Running| {
        for part in 0..80 {
            let line = |n| format!("m{{part=\"{part}\",n=\"{n}\",long=\"{long}\"}} 1 {T}\n");
            let body: String = (0..100).map(line).collect();
            let path = "/api/v1/import/prometheus";
            assert_eq!(send(server.at(), "POST", path, &[], body.as_bytes()).status, 204);
        }
    };
    // Threads for writes keep some of their memory.
    let without = Running::start(&["--memory=128MiB"]);
    write(&without);
    let server = Running::start(&[&config, "--memory=128MiB"]);
    let shards = || metrics(&server, "prometheus_remote_storage_shards_max{");
    wait_until("all receivers have shards", || shards().len() == RECEIVERS);
    write(&server);
    let pending = || metrics(&server, "prometheus_remote_storage_samples_pending{");
    // A reader of the log reserves its state in steps of 1 MiB.
    let others = RECEIVERS as f64 * f64::from(1 << 20) + held(&without);
    let quarter = f64::from(32 << 20);
    wait_for(|| {
        let (held, waiting) = (held(&server) - others, pending());
        assert!(held < quarter, "{held}");
        let all_wait = waiting.iter().filter(|count| **count > 0.0).count() == RECEIVERS;
        let is_so = all_wait && held > quarter / 4.0;
        is_so.then_some(()).ok_or_else(|| format!("{held} bytes, {waiting:?} samples"))
    });
}

/// The metrics were below `min_shards` while few samples waited.
#[test]
fn there_are_never_fewer_shards_than_configured() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("prometheus.yml");
    let text = "remote_write: [{name: far, url: 'http://127.0.0.1:1/w', \
                queue_config: {min_shards: 2}}]";
    std::fs::write(&path, text).unwrap();
    let server = Running::start(&[&format!("--prometheus-config={}", path.display())]);
    for body in ["", &format!("m 1 {T}\n")] {
        let path = "/api/v1/import/prometheus";
        assert_eq!(send(server.at(), "POST", path, &[], body.as_bytes()).status, 204);
        wait_for(|| {
            let text = get(server.at(), "/metrics").text();
            let shows = |name: &str, value: &str| {
                let name = format!("prometheus_remote_storage_{name}{{");
                text.lines().any(|line| line.starts_with(&name) && line.ends_with(value))
            };
            let pending = if body.is_empty() { " 0" } else { " 1" };
            let is_met = shows("samples_pending", pending)
                && shows("shards", " 2")
                && shows("shards_desired", " 2");
            if is_met { Ok(()) } else { Err(text) }
        });
    }
}
