//! Remote read: both response formats, limits, slow clients and clients that disconnect.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::client::{Answer, form, get, import, send, unchunk};
use crate::write_request::{Message, series};
use crate::{Running, wait_until, xor_decoder};

const STALE_NAN: f64 = f64::from_bits(0x7ff0_0000_0000_0002);
const SAMPLES: u64 = 0;
const STREAM: u64 = 1;

/// Labels and samples (ms, bits) of one series.
type Series = (Vec<(String, String)>, Vec<(i64, u64)>);

fn matcher(kind: u64, name: &str, value: &str) -> Message {
    Message::default().varint(1, kind).bytes(2, name).bytes(3, value)
}

fn query(start: i64, end: i64, matchers: &[Message]) -> Message {
    let query = Message::default().varint(1, start as u64).varint(2, end as u64);
    // With hints, which change nothing: a step, a function, a shorter range.
    let hints = Message::default().varint(1, 60_000).bytes(2, "rate").varint(3, 1).varint(4, 2);
    matchers.iter().fold(query, |query, matcher| query.bytes(3, &matcher.0)).bytes(4, hints.0)
}

fn request(queries: &[Message], accepted: &[u64]) -> Message {
    let request = queries.iter().fold(Message::default(), |all, query| all.bytes(1, &query.0));
    accepted.iter().fold(request, |request, number| request.varint(2, *number))
}

fn pack(message: &Message) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(&message.0).expect("fits")
}

fn ask(to: SocketAddr, request: &Message) -> Answer {
    send(to, "POST", "/api/v1/read", &[], &pack(request))
}

/// The answer in one message: series per query.
fn samples(to: SocketAddr, queries: &[Message]) -> Vec<Vec<Series>> {
    let answer = ask(to, &request(queries, &[]));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), "application/x-protobuf");
    assert_eq!(answer.header("content-encoding"), "snappy");
    let message = snap::raw::Decoder::new().decompress_vec(&answer.body).expect("a snappy block");
    let results = fields(&message);
    let series = |result: &Field| fields(&result.bytes).iter().map(read_series).collect();
    results.iter().map(series).collect()
}

fn read_series(series: &Field) -> Series {
    let series = fields(&series.bytes);
    let samples = series.iter().filter(|field| field.number == 2).map(|sample| {
        let sample = fields(&sample.bytes);
        (sample[1].value as i64, sample[0].value)
    });
    (labels(&series), samples.collect())
}

/// The streamed answer, put together; checks the order of frames.
fn streamed(to: SocketAddr, queries: &[Message]) -> Vec<Vec<Series>> {
    let answer = ask(to, &request(queries, &[STREAM, SAMPLES]));
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.header("content-type"),
        "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse"
    );
    assert_eq!(answer.header("content-encoding"), "");
    let mut found: Vec<Vec<Series>> = vec![Vec::new(); queries.len()];
    let mut last = None;
    for (query_idx, series) in frames(&answer.body) {
        assert!(last.as_ref() <= Some(&(query_idx, series.0.clone())), "frames are in order");
        let result = &mut found[query_idx];
        match result.last_mut() {
            Some((labels, samples)) if last == Some((query_idx, series.0.clone())) => {
                assert_eq!(*labels, series.0);
                samples.extend(series.1);
            }
            _ => result.push(series.clone()),
        }
        last = Some((query_idx, series.0));
    }
    found
}

/// Query and series of each frame. The checksum is that of the server's own unit tests.
fn frames(mut stream: &[u8]) -> Vec<(usize, Series)> {
    let mut found = Vec::new();
    while !stream.is_empty() {
        let message_bytes = firn_model::decode_varint(&mut stream).expect("a length") as usize;
        let (checksum, rest) = stream.split_at(4);
        let (message, rest) = rest.split_at(message_bytes);
        stream = rest;
        let wanted = firn_server::wire::crc32c::crc32c(message);
        assert_eq!(u32::from_be_bytes(checksum.try_into().expect("four")), wanted);
        let message = fields(message);
        let series = fields(&message[0].bytes);
        let chunks = series.iter().filter(|field| field.number == 2);
        let samples = chunks.flat_map(|chunk| xor_decoder::decode(&fields(&chunk.bytes)[3].bytes));
        found.push((message[1].value as usize, (labels(&series), samples.collect())));
    }
    found
}

struct Field {
    number: u64,
    value: u64,
    bytes: Vec<u8>,
}

fn fields(mut message: &[u8]) -> Vec<Field> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = firn_model::decode_varint(&mut message).expect("a key");
        let mut field = Field { number: key >> 3, value: 0, bytes: Vec::new() };
        match key & 7 {
            0 => field.value = firn_model::decode_varint(&mut message).expect("a number"),
            1 => {
                let (eight, rest) = message.split_at(8);
                field.value = u64::from_le_bytes(eight.try_into().expect("eight"));
                message = rest;
            }
            _ => {
                let len = firn_model::decode_varint(&mut message).expect("a length") as usize;
                let (bytes, rest) = message.split_at(len);
                field.bytes = bytes.to_vec();
                message = rest;
            }
        }
        found.push(field);
    }
    found
}

fn labels(series: &[Field]) -> Vec<(String, String)> {
    let text = |field: &Field| String::from_utf8(field.bytes.clone()).expect("a text");
    let labels = series.iter().filter(|field| field.number == 1).map(|label| {
        let label = fields(&label.bytes);
        (text(&label[0]), text(&label[1]))
    });
    labels.collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

fn bits(samples: &[(i64, f64)]) -> Vec<(i64, u64)> {
    samples.iter().map(|(ts, value)| (*ts, value.to_bits())).collect()
}

/// One of the server's own metrics.
fn metric(at: SocketAddr, name: &str) -> f64 {
    let text = get(at, "/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
    line.trim().parse().expect("a number")
}

#[test]
fn both_formats_return_the_same_requested_samples() {
    let server = Running::start(&["--remote-read-frame-bytes=1KiB"]);
    let at = server.at();
    // Later samples first, and one of them is written twice: the last counts.
    let long: Vec<(i64, f64)> =
        (0..1_000).map(|n| (n * 1_000 - 5_000, f64::sin(n as f64))).collect();
    let write = |labels: &[(&str, &str)], samples: &[(i64, f64)]| {
        let one = samples.iter().fold(series(labels), |all, &(ts, value)| all.sample(ts, value));
        assert_eq!(Message::default().series(one).send(at).status, 204);
    };
    write(&[("__name__", "m"), ("job", "b"), ("z", "1")], &long[400..]);
    write(&[("__name__", "m"), ("job", "b"), ("z", "1")], &[(long[0].0, 77.0)]);
    write(&[("__name__", "m"), ("job", "b"), ("z", "1")], &long[..400]);
    write(&[("__name__", "m"), ("A", "9")], &[(1_000, 1.0), (2_000, STALE_NAN), (3_000, -0.0)]);
    write(&[("__name__", "other")], &[(0, f64::NAN)]);

    let m = || matcher(0, "__name__", "m");
    let queries = [
        query(i64::MIN, i64::MAX, &[m()]),
        query(1_000, 2_000, &[m()]),
        query(1_001, 1_999, &[m()]),
        query(0, i64::MAX, &[matcher(0, "__name__", "nothing")]),
        query(0, 10_000, &[m(), matcher(1, "job", "")]),
        query(0, 10_000, &[m(), matcher(2, "job", "b|c"), matcher(3, "z", "2.*")]),
        query(5, 4, &[m()]),
    ];
    let small = (pairs(&[("A", "9"), ("__name__", "m")]), 0);
    let big = pairs(&[("__name__", "m"), ("job", "b"), ("z", "1")]);
    let stale = bits(&[(1_000, 1.0), (2_000, STALE_NAN)]);
    let wanted = vec![
        vec![
            (small.0.clone(), bits(&[(1_000, 1.0), (2_000, STALE_NAN), (3_000, -0.0)])),
            (big.clone(), bits(&long)),
        ],
        vec![(small.0.clone(), stale), (big.clone(), bits(&long[6..8]))],
        vec![],
        vec![],
        vec![(big.clone(), bits(&long[5..16]))],
        vec![(big.clone(), bits(&long[5..16]))],
        vec![],
    ];
    assert_eq!(samples(at, &queries), wanted);
    assert_eq!(streamed(at, &queries), wanted);
    let frame_count = |answer: &Answer| frames(&answer.body).len();
    let answer = ask(at, &request(&queries[..1], &[STREAM]));
    assert!(frame_count(&answer) > 4, "a long series continues in further frames");
    assert!(metric(at, "firn_query_read_samples_total") >= 3_000.0);
    wait_until("the end of all reads", || metric(at, "firn_remote_read_requests") == 0.0);
}

/// Before, a stream reserved three frames first: with these settings each was 422.
#[test]
fn frames_fit_into_the_memory_of_a_query() {
    let short: Vec<(i64, f64)> = (0..2_000).map(|n| (n * 1_000, f64::sin(n as f64))).collect();
    for flags in [
        &["--query-memory=1MiB"][..],
        &["--query-memory=1MiB", "--remote-read-frame-bytes=32MiB"],
        &["--query-memory=1MiB", "--remote-read-frame-bytes=1KiB"],
        &["--remote-read-frame-bytes=32MiB"],
    ] {
        let server = Running::start(flags);
        let written = (0..20).fold(Message::default(), |request, idx| {
            let one = series(&[("__name__", "m"), ("idx", &format!("{idx:02}"))]);
            request.series(short.iter().fold(one, |all, &(ts, value)| all.sample(ts, value)))
        });
        assert_eq!(written.send(server.at()).status, 204);
        let all = query(i64::MIN, i64::MAX, &[matcher(0, "__name__", "m")]);
        let answer = ask(server.at(), &request(std::slice::from_ref(&all), &[STREAM]));
        assert_eq!(answer.status, 200, "{flags:?}: {}", answer.text());
        let found = streamed(server.at(), &[all]).remove(0);
        assert_eq!(found.len(), 20, "{flags:?}");
        assert!(found.iter().all(|(_, samples)| *samples == bits(&short)), "{flags:?}");
    }
}

#[test]
fn no_queries_are_answered_with_nothing() {
    let server = Running::start(&[]);
    let answer = ask(server.at(), &request(&[], &[]));
    assert_eq!((answer.status, answer.body.as_slice()), (200, &[0][..]), "an empty snappy block");
    let answer = ask(server.at(), &request(&[], &[STREAM]));
    assert_eq!((answer.status, answer.body.len()), (200, 0));
}

#[test]
fn bad_requests_are_refused_in_plain_text() {
    let server = Running::start(&["--remote-read-samples-max=2"]);
    let at = server.at();
    import(at, "m{x=\"1\"} 1 1000\nm{x=\"1\"} 2 2000\nm{x=\"2\"} 3 1000\n");
    let g = |answer: Answer, status: u16, want: &str| {
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(answer.header("content-type").starts_with("text/plain"));
        assert!(answer.text().contains(want), "{}", answer.text());
    };
    let f = |answer: Answer, want: &str| g(answer, 400, want);
    let post = |body: &[u8]| send(at, "POST", "/api/v1/read", &[], body);
    f(post(b"not snappy"), "snappy");
    f(post(b""), "snappy");
    f(post(&pack(&Message(vec![0x0a, 0x7f]))), "protobuf");
    // 64 MiB are announced in a few bytes, and 33 MiB sent.
    g(post(&[0x80, 0x80, 0x80, 0x20, 0]), 413, "over 32 MiB");
    let announced = [("Content-Length", "34603008")];
    let mut stream = TcpStream::connect(at).expect("a connection");
    let head = format!(
        "POST /api/v1/read HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{}: {}\r\n\r\n",
        announced[0].0, announced[0].1
    );
    stream.write_all(head.as_bytes()).expect("the head is taken");
    let mut refused = String::new();
    stream.read_to_string(&mut refused).expect("an answer");
    assert!(refused.starts_with("HTTP/1.1 413") && refused.contains("over 32 MiB"), "{refused}");

    let asks = |matcher: Message| ask(at, &request(&[query(0, 9_000, &[matcher])], &[]));
    f(asks(matcher(2, "a", "(")), "error parsing regexp: missing closing )");
    f(asks(matcher(9, "a", "b")), "matcher type 9 does not exist");
    f(ask(at, &request(&[], &[5, 6])), "none of the response types [5, 6] is supported");
    g(asks(matcher(0, "__name__", "m")), 422, "exceeded sample limit (2)");
    // The limit is for one message and one query.
    let all = query(0, 9_000, &[matcher(0, "__name__", "m")]);
    assert_eq!(streamed(at, std::slice::from_ref(&all))[0].len(), 2);
    let first = query(0, 9_000, &[matcher(0, "x", "1")]);
    assert_eq!(samples(at, &[first.clone(), first])[1][0].1.len(), 2);
    for method in ["GET", "PUT"] {
        assert_eq!(send(at, method, "/api/v1/read", &[], b"").status, 405);
    }
    wait_until("the end of all reads", || metric(at, "firn_remote_read_requests") == 0.0);
}

#[test]
fn external_labels_are_added_and_not_matched_in_storage() {
    let server = Running::start(&["--external-labels=region=eu,a=0"]);
    let at = server.at();
    import(at, "m{b=\"1\"} 1 1000\nm{region=\"us\"} 2 1000\n");
    let m = || matcher(0, "__name__", "m");
    let eu = pairs(&[("__name__", "m"), ("a", "0"), ("b", "1"), ("region", "eu")]);
    let us = pairs(&[("__name__", "m"), ("a", "0"), ("region", "us")]);
    let one =
        |labels: &Vec<(String, String)>, value: f64| (labels.clone(), bits(&[(1_000, value)]));
    let queries = [
        query(0, 9_000, &[m()]),
        query(0, 9_000, &[m(), matcher(0, "region", "eu")]),
        query(0, 9_000, &[m(), matcher(0, "region", "us")]),
        query(0, 9_000, &[m(), matcher(0, "a", "1")]),
    ];
    let wanted =
        vec![vec![one(&eu, 1.0), one(&us, 2.0)], vec![one(&eu, 1.0)], vec![one(&us, 2.0)], vec![]];
    assert_eq!(samples(at, &queries), wanted);
    assert_eq!(streamed(at, &queries), wanted);
}

/// Writes more than any socket buffers: 2 million incompressible samples, about 18 MB.
fn write_much(at: SocketAddr) {
    let mut bits = 1u64;
    for number in 0..100 {
        let mut request = Message::default();
        for part in 0..10 {
            let (number, part) = (format!("{number:03}"), format!("{part}"));
            let mut one = series(&[("__name__", "much"), ("number", &number), ("part", &part)]);
            for n in 0..2_000 {
                bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                one = one.sample(n * 1_000, f64::from_bits(bits >> 2));
            }
            request = request.series(one);
        }
        assert_eq!(request.send(at).status, 204);
    }
}

/// Requests all of it and reads only the first bytes.
fn stalled(at: SocketAddr) -> TcpStream {
    let all = query(0, i64::MAX, &[matcher(0, "__name__", "much")]);
    let body = pack(&request(&[all], &[STREAM]));
    let mut stream = TcpStream::connect(at).expect("a connection");
    let head = format!(
        "POST /api/v1/read HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body)).expect("it is taken");
    let mut first = [0; 12];
    stream.read_exact(&mut first).expect("an answer");
    assert_eq!(&first, b"HTTP/1.1 200");
    stream
}

#[test]
fn a_slow_client_costs_no_memory_and_a_disconnected_one_is_dropped() {
    let server = Running::start(&["--remote-read-concurrency-max=1"]);
    let at = server.at();
    write_much(at);
    let before = metric(at, "firn_query_read_samples_total");
    let slow = stalled(at);
    assert_eq!(metric(at, "firn_remote_read_requests"), 1.0);
    // The next one waits for its turn.
    let waiting = std::thread::spawn(move || {
        let one = [matcher(0, "number", "007"), matcher(0, "part", "3")];
        samples(at, &[query(0, 1_000, &one)])
    });
    wait_until("the second read", || metric(at, "firn_remote_read_requests") == 2.0);
    // Memory holds a few frames, and the amount read is the capacity of the sockets.
    let query_bytes = metric(at, "firn_memory_reserved_bytes{pool=\"query\"}");
    assert!(query_bytes < 8.0 * 1_048_576.0, "{query_bytes} bytes");
    assert!(!waiting.is_finished(), "there is one place");
    drop(slow);
    let found = waiting.join().expect("no panic");
    assert_eq!(found[0][0].1.len(), 2);
    wait_until("the end of all reads", || metric(at, "firn_remote_read_requests") == 0.0);
    // A part that a thread was reading for the disconnected client is finished and dropped.
    let reserved = || metric(at, "firn_memory_reserved_bytes{pool=\"query\"}");
    wait_until("the memory of all reads", || reserved() == 0.0);
    let read = metric(at, "firn_query_read_samples_total") - before;
    assert!(read < 1_900_000.0, "{read} samples were read for clients that took few of them");

    // A client that resumes reading receives everything.
    let all = query(0, i64::MAX, &[matcher(0, "__name__", "much")]);
    let found = streamed(at, &[all]);
    assert_eq!(found[0].len(), 1_000);
    assert!(found[0].iter().all(|(_, samples)| samples.len() == 2_000));
}

#[test]
fn a_client_that_takes_nothing_is_cut_and_sees_it() {
    // Long enough for a busy machine to make a part.
    let server = Running::start(&["--query-timeout=5s"]);
    let at = server.at();
    write_much(at);
    let mut stalled = stalled(at);
    wait_until("the cut", || metric(at, "firn_remote_read_requests") == 0.0);
    let mut rest = Vec::new();
    // The connection may be reset, or be closed in the middle of the body.
    let _ = stalled.read_to_end(&mut rest);
    let body_start = rest.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    assert!(unchunk(&rest[body_start..]).is_none(), "a short stream must not end well");
    assert!(rest.len() < 15_000_000, "{} bytes are not all", rest.len());
}

/// Before, a remote read answered 400, and a delete and a transaction 413.
#[test]
fn a_request_over_the_memory_of_a_query_has_one_status() {
    let server = Running::start(&["--query-memory=1MiB", "--enable-admin-api"]);
    let at = server.at();
    for part in 0..8 {
        let lines = (0..5_000).map(|idx| format!("m{{idx=\"{part}-{idx}\"}} 1 {NOW_S}000\n"));
        import(at, &lines.collect::<String>());
    }
    let typed = [("Content-Type", "application/x-www-form-urlencoded")];
    let post = |path: &str, params: &[(&str, &str)]| {
        send(at, "POST", path, &typed, form(params).as_bytes())
    };
    let time = NOW_S.to_string();
    let selected = [("match[]", "{idx=~'.+'}")];
    let range = query(NOW_S * 1_000 - 1, NOW_S * 1_000 + 1, &[matcher(2, "idx", ".+")]);
    let read = "{\"operations\":[{\"op\":\"read\",\"match\":\"{idx=~'.+'}\"}]}";
    for (name, answer) in [
        ("query", post("/api/v1/query", &[("query", "m"), ("time", &time)])),
        ("series", post("/api/v1/series", &selected)),
        ("samples", ask(at, &request(std::slice::from_ref(&range), &[]))),
        ("stream", ask(at, &request(&[range], &[STREAM]))),
        ("delete", post("/api/v1/admin/tsdb/delete_series", &selected)),
        ("transaction", send(at, "POST", "/api/v1/transaction", &[], read.as_bytes())),
    ] {
        assert_eq!(answer.status, 422, "{name}: {}", answer.text());
        assert!(answer.text().contains("--query-memory"), "{name}: {}", answer.text());
    }
}

const NOW_S: i64 = 1_700_000_000;
