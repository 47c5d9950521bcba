//! The memory of answers is reserved: while a server answers, the bytes that the allocator hands
//! out never exceed the reservations of its budget by more than some buffers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, SystemTime};

use clap::{Args, Command, FromArgMatches};
use firn_bench::index::counting::{
    Counting, compare_with, reset_unreserved_peak, unreserved_bytes, unreserved_peak,
};
use firn_server::{Flags, HostProcess, ServeConfig, Server};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// Labels of 4 kB; many series; many samples.
const LARGE_COUNT: usize = 2_000;
const MANY_COUNT: usize = 20_000;
const LONG_COUNT: usize = 20;
const LONG_SAMPLES: usize = 20_000;
const HOUR_S: u64 = 3_600;
const ATTEMPTS: u64 = 3;
// Buffers of connections and files, parameters, entries of small lists.
const SLACK_BYTES: i64 = 1 << 20;

struct Ask {
    name: &'static str,
    head: String,
    body: Vec<u8>,
}

struct Answer {
    status: u16,
    bytes: usize,
}

fn start(folder: &Path) -> Server {
    let data = format!("--data={}", folder.display());
    let args = [
        "firn",
        &data,
        "--listen=127.0.0.1:0",
        "--self-scrape=never",
        "--memory=1000MiB",
        "--enable-admin-api",
    ];
    let matches = Flags::<ServeConfig>::augment_args(Command::new("firn")).get_matches_from(args);
    let flags = Flags::<ServeConfig>::from_arg_matches(&matches).expect("flags");
    let process = HostProcess { release_memory: || (), is_dedicated: false };
    let config = flags.load().expect("settings").config;
    let mut server = Server::start(config, process).expect("starts");
    assert!(server.wait_until_ready(Duration::from_secs(60)).expect("opens"), "opens slowly");
    server
}

/// Sends a request and reads the answer into a small buffer.
fn send(at: SocketAddr, head: &str, body: &[u8]) -> Answer {
    let mut connection = TcpStream::connect(at).expect("connected");
    let mut lines = head.lines();
    let first = lines.next().expect("a request line");
    let fields: String = lines.map(|line| format!("{line}\r\n")).collect();
    let length = body.len();
    write!(
        connection,
        "{first} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n{fields}\
         Content-Length: {length}\r\n\r\n"
    )
    .expect("sent");
    connection.write_all(body).expect("sent");
    let (mut start, mut part, mut bytes) = ([0; 12], [0; 64 << 10], 0);
    connection.read_exact(&mut start).expect("a status");
    loop {
        match connection.read(&mut part).expect("read") {
            0 => break,
            count => bytes += count,
        }
    }
    let status = std::str::from_utf8(&start[9..]).ok().and_then(|status| status.parse().ok());
    Answer { status: status.expect("a status"), bytes }
}

fn fill(at: SocketAddr, now_s: u64) {
    let text = "\u{1}".repeat(2_000);
    let large = |idx: usize| {
        let (instance, own) = (idx / 4, idx % 4);
        format!("large{{instance=\"{text}{instance}\",text=\"{text}{own}\"}} {idx} {now_s}000\n")
    };
    let many = |idx: usize| format!("many{{i=\"{idx}\",job=\"a\"}} {idx} {now_s}000\n");
    let long = |idx: usize| {
        let (series, ts) = (idx % LONG_COUNT, now_s as usize - LONG_SAMPLES + idx / LONG_COUNT);
        format!("long{{i=\"{series}\"}} {}.5 {ts}000\n", idx * 7919 % 100_003)
    };
    import(at, (LARGE_COUNT, 100), large);
    import(at, (MANY_COUNT, 10_000), many);
    import(at, (LONG_COUNT * LONG_SAMPLES, 50_000), long);
}

/// Sends `count` lines, `batch` of them in each request.
fn import(at: SocketAddr, (count, batch): (usize, usize), line: impl Fn(usize) -> String) {
    for first in (0..count).step_by(batch) {
        let body: String = (first..first + batch).map(&line).collect();
        let written = send(at, "POST /api/v1/import/prometheus", body.as_bytes());
        assert!(written.status < 300, "{}", written.status);
    }
}

/// A remote read of all samples of a metric; streamed in chunks with `kind` 1, samples with 0.
fn remote_read(metric: &str, (start_ms, end_ms): (u64, u64), kind: u8) -> Vec<u8> {
    let varint = |mut value: u64| {
        let mut out = Vec::new();
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
        out
    };
    let field = |tag: u8, inner: Vec<u8>| [vec![tag], varint(inner.len() as u64), inner].concat();
    let matcher =
        [vec![0x08, 0], field(0x12, b"__name__".to_vec()), field(0x1a, metric.into())].concat();
    let query = [
        [vec![0x08], varint(start_ms)].concat(),
        [vec![0x10], varint(end_ms)].concat(),
        field(0x1a, matcher),
    ];
    let request = [field(0x0a, query.concat()), vec![0x10, kind]].concat();
    snap::raw::Encoder::new().compress_vec(&request).expect("fits in memory")
}

fn asks(now_s: u64, attempt: u64) -> Vec<Ask> {
    let (start, end) = (now_s - HOUR_S, now_s + 60);
    let get = |name, path: String| Ask { name, head: format!("GET {path}"), body: Vec::new() };
    let encoded = |query: &str| {
        let byte = |byte: u8| match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'_' => (byte as char).to_string(),
            byte => format!("%{byte:02x}"),
        };
        query.bytes().map(byte).collect::<String>()
    };
    let instant = |name, query: &str| {
        get(name, format!("/api/v1/query?time={now_s}&query={}", encoded(query)))
    };
    let range_of = |name, query: &str, step_s: u64| {
        let query = encoded(query);
        get(
            name,
            format!("/api/v1/query_range?start={start}&end={end}&step={step_s}&query={query}"),
        )
    };
    let read = |name, metric: &str, kind| Ask {
        name,
        head: "POST /api/v1/read\nContent-Encoding: snappy\nContent-Type: application/x-protobuf"
            .to_owned(),
        body: remote_read(metric, ((now_s - 30_000) * 1_000, end * 1_000), kind),
    };
    let mut asks = Vec::new();
    for (federate, instant_name, computed, kept, sum, metric) in [
        ("federate, large", "instant, large", "range, large", "kept, large", "sum, large", "large"),
        ("federate, many", "instant, many", "range, many", "kept, many", "sum, many", "many"),
        ("federate, long", "instant, long", "range, long", "kept, long", "sum, long", "long"),
    ] {
        asks.push(get(federate, format!("/federate?match[]={metric}")));
        asks.push(instant(instant_name, metric));
        asks.push(range_of(computed, metric, 15 + attempt));
        asks.push(range_of(kept, metric, 15));
        asks.push(range_of(
            sum,
            &format!("sum by (i, text, instance) (rate({metric}[5m]))"),
            20 + attempt,
        ));
    }
    let packed = |mut ask: Ask, name, coding: &str| {
        ask.name = name;
        ask.head += &format!("\nAccept-Encoding: {coding}");
        ask
    };
    asks.extend([
        packed(instant("", "large"), "instant, large, zstd", "zstd"),
        packed(range_of("", "long", 5 + attempt), "range, long, gzip", "gzip"),
        instant("matrix, long", "long[5h]"),
        instant("topk, many", "topk(5000, many)"),
        instant("sort, large", "sort(large)"),
        instant("label_replace, large", "label_replace(large, \"b\", \"$1\", \"text\", \"(.*)\")"),
        instant("label_join, large", "label_join(large, \"b\", \",\", \"text\", \"instance\")"),
        instant("binary, large", "large * on (instance, text) large"),
        instant("group_left, large", "large * on (instance) group_left max by (instance) (large)"),
        instant("or, many", "many or many * 2"),
        instant("count_values, many", "count_values(\"value\", many)"),
        range_of("count_values over time, long", "count_values(\"value\", long)", 60 + attempt),
        instant("quantile, long", "quantile_over_time(0.9, long[5h])"),
        range_of("subquery, long", "max_over_time(rate(long[1m])[30m:15s])", 60 + attempt),
        range_of("binary, long", "long + long", 3 + attempt),
        get("series, large", "/api/v1/series?match[]=large".to_owned()),
        get("series, many", "/api/v1/series?match[]=many".to_owned()),
        get("label values, large", "/api/v1/label/instance/values".to_owned()),
        get("label values, many", "/api/v1/label/i/values".to_owned()),
        get(
            "label values, two selectors",
            "/api/v1/label/instance/values?match[]=large&match[]=long".to_owned(),
        ),
        get("label names", "/api/v1/labels".to_owned()),
        get("label names, two selectors", "/api/v1/labels?match[]=large&match[]=many".to_owned()),
        get("groups", "/api/v1/groups?lone=true".to_owned()),
        get("groups, large", "/api/v1/groups?match[]=large".to_owned()),
        get("cardinality", "/api/v1/status/tsdb?limit=10000".to_owned()),
        get("status of groups", "/api/v1/status/groups".to_owned()),
        read("remote read of chunks, large", "large", 1),
        read("remote read of samples, large", "large", 0),
        read("remote read of chunks, many", "many", 1),
        read("remote read of samples, many", "many", 0),
        read("remote read of chunks, long", "long", 1),
        read("remote read of samples, long", "long", 0),
        Ask {
            name: "delete, many",
            head: "POST /api/v1/admin/tsdb/delete_series?match[]=many".to_owned(),
            body: Vec::new(),
        },
    ]);
    asks
}

#[test]
fn the_memory_of_answers_is_reserved() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path());
    let at = server.listen();
    let now_s = SystemTime::UNIX_EPOCH.elapsed().expect("a clock").as_secs();
    fill(at, now_s);
    let budget = server.budget().expect("open");
    compare_with(move || budget.usage().used_bytes);
    let mut failed = Vec::new();
    for idx in 0..asks(now_s, 0).len() {
        let mut failure = None;
        // Work beside a request, such as a flush, is not a part of it: one good attempt suffices.
        for attempt in 0..ATTEMPTS {
            let Attempt { name, bytes, unreserved } = try_once(at, &asks(now_s, attempt)[idx]);
            println!("{name}: {bytes} bytes, {unreserved} unreserved");
            failure = (unreserved > SLACK_BYTES).then_some((name, unreserved));
            if failure.is_none() {
                break;
            }
        }
        failed.extend(failure);
    }
    server.stop().expect("stops");
    assert!(failed.is_empty(), "{failed:#?}");
}

struct Attempt {
    name: &'static str,
    /// Of the answer.
    bytes: usize,
    /// The most at one time.
    unreserved: i64,
}

fn try_once(at: SocketAddr, Ask { name, head, body }: &Ask) -> Attempt {
    let before = unreserved_bytes();
    reset_unreserved_peak();
    let answer = send(at, head, body);
    assert!((200..300).contains(&answer.status), "{name}: {}", answer.status);
    Attempt { name, bytes: answer.bytes, unreserved: unreserved_peak() - before }
}
