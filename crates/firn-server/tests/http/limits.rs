//! Queries that want too much: places, time, memory, depth, length; and clients that do not wait.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::client::{Answer, api, api_error, form, get, import, send, url};
use crate::write_request::{Message, series};
use crate::{Running, wait_until};

/// A server with 500 series that runs one query at a time.
fn with_one_place() -> Running {
    let server = Running::start(&["--query-concurrency-max=1", "--memory=1GiB"]);
    let lines = (0..500).fold(String::new(), |mut text, idx| {
        let _ = writeln!(text, "m{{idx=\"{idx}\"}} {idx} 1700000000000");
        text
    });
    import(server.at(), &lines);
    server
}

/// Minutes of work and little memory: nested sines for each series and each of 11,000 steps.
fn endless() -> String {
    let query = format!("{}m{}", "sin(".repeat(380), ")".repeat(380));
    let params = [
        ("query", query.as_str()),
        ("start", "1700000000"),
        ("end", "1700000220"),
        ("step", "0.02"),
        ("timeout", "2m"),
    ];
    url("/api/v1/query_range", &params)
}

fn metric(at: SocketAddr, name: &str) -> f64 {
    let text = get(at, "/metrics").text();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
}

/// The evaluation stops long before its end, no response is sent, and its slot is free.
#[test]
fn a_query_stops_when_its_client_goes() {
    let server = with_one_place();
    let at = server.at();
    let mut client = TcpStream::connect(at).expect("a connection");
    write!(client, "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", endless()).expect("sent");
    wait_until("the query runs", || metric(at, "firn_queries_running") == 1.0);
    drop(client);
    wait_until("the query stops", || metric(at, "firn_queries_running") == 0.0);
    let gone = r#"firn_http_requests_total{handler="/api/v1/query_range",code="499"}"#;
    wait_until("it is counted", || metric(at, gone) == 1.0);
    api(at, "query", &[("query", "1")]);
}

/// Two queries wait for a third: one for too long, the other until the third ends.
#[test]
fn queries_wait_for_a_place_as_long_as_their_timeout() {
    let server = with_one_place();
    let at = server.at();
    let mut client = TcpStream::connect(at).expect("a connection");
    write!(client, "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", endless()).expect("sent");
    wait_until("the query runs", || metric(at, "firn_queries_running") == 1.0);
    let (status, kind, text) = api_error(at, "query", &[("query", "1"), ("timeout", "50ms")]);
    assert_eq!((status, kind.as_str()), (503, "timeout"));
    assert_eq!(text, "query timed out in query queue");
    let patient = std::thread::spawn(move || api(at, "query", &[("query", "42"), ("time", "1")]));
    wait_until("the other waits", || metric(at, "firn_queries_waiting") == 1.0);
    drop(client);
    let data = patient.join().expect("an answer");
    assert_eq!(data["result"][1], "42");
}

#[test]
fn an_evaluation_ends_with_its_timeout() {
    let server = with_one_place();
    let at = server.at();
    // Long enough for a busy machine to start the evaluation.
    let target = endless().replace("timeout=2m", "timeout=8");
    let answer = get(at, &target);
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["errorType"], "timeout");
    assert_eq!(answer.json()["error"], "query timed out in expression evaluation");
    wait_until("the query stops", || metric(at, "firn_queries_running") == 0.0);
}

#[test]
fn a_query_is_bounded_in_memory_alone() {
    let server = Running::start(&["--query-memory=1MiB"]);
    let at = server.at();
    let lines = (0..300).fold(String::new(), |mut text, idx| {
        let _ = writeln!(text, "m{{idx=\"{idx}\"}} {idx} 1700000000000");
        text
    });
    import(at, &lines);
    let range = [("start", "1700000000"), ("end", "1700000200"), ("step", "0.1")];
    let ask = |query: &str| {
        let params = [&[("query", query)][..], &range].concat();
        get(at, &url("/api/v1/query_range", &params))
    };
    for query in ["m", "m * 2", "label_replace(m, 'x', '$1', 'idx', '(.*)')"] {
        let answer = ask(query).json();
        assert_eq!(answer["errorType"], "execution", "{query}: {answer}");
        assert!(answer["error"].as_str().expect("a text").contains("--query-memory"), "{answer}");
    }
    assert_eq!(ask("sum(m)").status, 200, "an aggregation does not hold its series");
    // The columns fit, their text does not.
    let answer = ask("topk(20, m)").json();
    assert_eq!(answer["errorType"], "execution", "{answer}");
    // The memory of a response is released after its last byte is sent.
    let used = || metric(at, "firn_memory_reserved_bytes{pool=\"query\"}");
    wait_until("all memory is released", || used() == 0.0);
}

/// Twelve times the text was reserved, whatever its lines are: 6 MB were refused for good.
#[test]
fn an_import_reserves_memory_for_its_lines() {
    let server = Running::start(&["--memory=64MiB"]);
    let name = "x".repeat(100);
    let line = |n: i64| format!("m{{name=\"{name}\",n=\"{}\"}} 1 {n}\n", n % 10);
    let text: String = (0..48_000).map(line).collect();
    let path = "/api/v1/import/prometheus";
    // Neither empty lines nor comments are items.
    let empty = "\n".repeat(4 << 20);
    let comments = "# no\n".repeat(1 << 20);
    let typed = "# TYPE m counter\n # HELP m H\n#\tUNIT m s\n \tm 1\n#".to_owned();
    for text in [text, empty, comments, typed] {
        let written = send(server.at(), "POST", path, &[], text.as_bytes());
        assert_eq!(written.status, 204, "{}", written.text());
    }
}

/// Before, the labels of the address were counted once, and each new series has them.
#[test]
fn labels_that_an_import_adds_are_reserved_for_each_series() {
    let server = Running::start(&["--memory=64MiB"]);
    let extra: Vec<String> =
        (0..60).map(|idx| format!("extra_label=l{idx}={}", "v".repeat(1_000))).collect();
    let target = format!("/api/v1/import/prometheus?{}", extra.join("&"));
    let lines = |count: usize| (0..count).map(|idx| format!("m{{i=\"{idx}\"}} 1\n"));
    let refused =
        send(server.at(), "POST", &target, &[], lines(4_096).collect::<String>().as_bytes());
    assert_eq!(refused.status, 413, "{}", refused.text());
    assert!(
        refused.text().contains("split or shorten it, or raise --memory"),
        "{}",
        refused.text()
    );
    assert_eq!(api(server.at(), "labels", &[]).to_string(), "[]", "nothing was written");
    let written = send(server.at(), "POST", &target, &[], lines(4).collect::<String>().as_bytes());
    assert_eq!(written.status, 204, "{}", written.text());
}

#[test]
fn texts_without_measure_are_refused_where_they_stand() {
    let server = Running::start(&[]);
    let at = server.at();
    let typed = [("Content-Type", "application/x-www-form-urlencoded")];
    let post = |query: &str| {
        send(at, "POST", "/api/v1/query", &typed, form(&[("query", query)]).as_bytes())
    };
    let f = |query: &str, wanted: &str| {
        let answer = post(query);
        assert_eq!(answer.status, 400, "{}", answer.text());
        let error = answer.json()["error"].as_str().expect("a text").to_owned();
        assert!(error.contains(wanted), "{error}");
    };
    let deep = "nested more than 400 levels deep";
    f(&format!("{}1{}", "(".repeat(100_000), ")".repeat(100_000)), deep);
    f(&"-".repeat(100_000), deep);
    f(&"1+".repeat(100_000), deep);
    f(&format!("1{}", "^1".repeat(100_000)), deep);
    f(&"sum(".repeat(100_000), deep);
    f(&" ".repeat(2 << 20), "at most 1048576 are read");
    f("m[99999999999999999999y]", "1:3: parse error: ");
    f("{a=~'x{99999}{99999}'}", "parse error: ");
    // One such expression compiles to megabytes, a thousand would to more than there is.
    let large = |count: usize| {
        let matchers = (0..count).map(|idx| format!("a=~'(\\\\pL{{10}}){{20}}{idx}',"));
        format!("m{{{}}}", matchers.collect::<String>())
    };
    assert_eq!(post(&large(1)).status, 200);
    let many = post(&large(1_000));
    assert_eq!(many.status, 422, "{}", many.text());
    assert!(many.text().contains("--query-memory"), "{}", many.text());
    f(&large(1_001), "a selector has over 1000 matchers");
    f(&format!("sum by ({}) (m)", "a,".repeat(1_001)), "a list has over 1000 labels");
    assert_eq!(post(&format!("m{{{}}}", "a=~'b.*',".repeat(200))).status, 200);
    assert_eq!(post(&format!("{}1", " ".repeat(1 << 19))).status, 200);
    // A body over 10 MiB is not read to its end.
    let huge = vec![b'x'; 11 << 20];
    let answer = send(at, "POST", "/api/v1/query", &typed, &huge);
    assert_eq!(answer.status, 400);
    let wanted = "error parsing form values: the body is over 10 MiB";
    assert!(answer.text().contains(wanted), "{}", answer.text());
}

/// Each of these was 429 or 503 with `Retry-After`, however often a client repeated it.
#[test]
fn a_request_that_never_finds_memory_is_refused_for_good() {
    let server = Running::start(&["--memory=64MiB"]);
    let refused = |answer: &Answer, status: u16, wanted: &str| {
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(answer.text().contains(wanted), "{}", answer.text());
        assert_eq!(answer.header("retry-after"), "");
    };
    let names = "n".repeat(1_000);
    refused(&new_names(10_000, 1, &names).send(server.at()), 413, "5/8 of --memory): split");
    let text = "m 1\n".repeat(500_000);
    let import = send(server.at(), "POST", "/api/v1/import/prometheus", &[], text.as_bytes());
    refused(&import, 413, "split or shorten it");
    let typed = [("Content-Type", "application/x-www-form-urlencoded")];
    let form = send(server.at(), "POST", "/api/v1/query", &typed, &b"a&".repeat(1 << 20));
    refused(&form, 400, "expected at most 2048");
    let json = [("Content-Type", "application/json")];
    let body = format!("{{\"groups\":[{{\"group\":1,\"slots\":[{}0]}}]}}", "1,".repeat(4 << 20));
    let groups = send(server.at(), "POST", "/api/v1/groups/write", &json, body.as_bytes());
    refused(&groups, 413, "split or shorten it");
}

/// Each took a part of the memory that all of them needed: one client in a loop was answered 11
/// times a second, two together less than once in two seconds.
#[test]
fn large_requests_take_turns() {
    let server = Running::start(&["--memory=64MiB"]);
    let at = server.at();
    let pad = "x".repeat(1_000);
    let line = |n: usize| format!("m{{pad=\"{pad}\",n=\"{}\"}} 1 {n}\n", n % 10);
    let text = |lines: usize| (0..lines).map(line).collect::<String>();
    let message = |series_count: usize| {
        (0..series_count).fold(Message::default(), |message, n| {
            let labels = [("__name__", "w"), ("n", &*(n % 10).to_string()), ("pad", &pad)];
            message.series(series(&labels).sample(n as i64, 1.0))
        })
    };
    // New series take more memory.
    import(at, &text(10));
    assert_eq!(message(10).send(at).status, 204);
    // The second one is small until it is decompressed.
    let (text, message) = (text(10_000), message(6_500));
    let send_text = || send(at, "POST", "/api/v1/import/prometheus", &[], text.as_bytes());
    let send_message = || message.send(at);
    let clients: [&(dyn Fn() -> Answer + Sync); 4] =
        [&send_text, &send_text, &send_message, &send_message];
    std::thread::scope(|scope| {
        for send in clients {
            scope.spawn(move || {
                for _ in 0..3 {
                    let answer = send();
                    assert_eq!(answer.status, 204, "{}", answer.text());
                }
            });
        }
    });
}

/// As [`large_requests_take_turns`]. Before, transactions took no turn: they refused each other,
/// and the imports beside them.
#[test]
fn large_transactions_take_turns() {
    let server = Running::start(&["--memory=64MiB", "--body-bytes-max=16MiB"]);
    let at = server.at();
    let pad = "x".repeat(1_500);
    let json = [("Content-Type", "application/json")];
    let transaction = |count: usize| {
        let insert = |n: usize| {
            format!(
                r#"{{"op":"insert","series":{{"__name__":"t","n":"{}","pad":"{pad}"}},"timestamp":{n},"value":1}}"#,
                n % 10
            )
        };
        let inserts: Vec<String> = (0..count).map(insert).collect();
        format!(r#"{{"operations":[{}]}}"#, inserts.join(","))
    };
    let send_body = |body: &str| send(at, "POST", "/api/v1/transaction", &json, body.as_bytes());
    assert_eq!(send_body(&transaction(10)).status, 200);
    let line = |n: usize| format!("t{{pad=\"{pad}\",n=\"{}\"}} 1 {n}\n", n % 10);
    let (body, text) = (transaction(6_000), (0..6_000).map(line).collect::<String>());
    let send_transaction = || send_body(&body);
    let send_text = || send(at, "POST", "/api/v1/import/prometheus", &[], text.as_bytes());
    let clients: [(&(dyn Fn() -> Answer + Sync), u16); 4] = [
        (&send_transaction, 200),
        (&send_transaction, 200),
        (&send_transaction, 200),
        (&send_text, 204),
    ];
    std::thread::scope(|scope| {
        for (send, status) in clients {
            scope.spawn(move || {
                for _ in 0..3 {
                    let answer = send();
                    assert_eq!(answer.status, status, "{}", answer.text());
                }
            });
        }
    });
}

/// The memory of all definitions was reserved at once: 40 MB more than there was, for ever.
#[test]
fn many_new_names_that_fit_are_written() {
    let server = Running::start(&["--memory=256MiB"]);
    let request = new_names(8_000, 3, &"n".repeat(1_000));
    let is_written = || match request.send(server.at()) {
        answer if answer.status == 204 => true,
        // Series wait for an index file; those of this try are known from now on.
        answer => {
            assert_eq!(answer.status, 429, "{}", answer.text());
            false
        }
    };
    wait_until("all series are written", is_written);
}

/// The request takes 30 MB at most, the index 16 MB, and freed pages that threads keep some more.
#[test]
fn a_group_with_many_new_names_is_defined() {
    let server = Running::start(&["--memory=64MiB"]);
    let name = "n".repeat(1_000);
    let member = |idx: usize| format!("{{\"__name__\":\"m\",\"{name}_{idx}\":\"v\"}}");
    let members: Vec<String> = (0..7_000).map(member).collect();
    let members = members.join(",");
    let body = format!("{{\"groups\":[{{\"labels\":{{\"g\":\"1\"}},\"members\":[{members}]}}]}}");
    let json = [("Content-Type", "application/json")];
    let is_defined = || match send(server.at(), "POST", "/api/v1/groups", &json, body.as_bytes()) {
        answer if answer.status == 200 => true,
        answer => {
            assert_eq!(answer.status, 429, "{}", answer.text());
            false
        }
    };
    wait_until("all members are defined", is_defined);
}

/// A request whose series have names of labels of their own.
fn new_names(series_count: usize, names_each: usize, prefix: &str) -> Message {
    let of = |idx: usize| {
        let labels = (0..names_each).map(|name| (format!("{prefix}_{idx:06}_{name}"), "v"));
        let series = Message::default().label("__name__", "m");
        let series = labels.fold(series, |series, (name, value)| series.label(name, value));
        series.sample(1_700_000_000_000, 1.0)
    };
    (0..series_count).fold(Message::default(), |message, idx| message.series(of(idx)))
}

/// A client that sends requests and does not read blocks no other.
#[test]
fn slow_readers_block_no_other() {
    let server = with_one_place();
    let at = server.at();
    let params = [("query", "m"), ("start", "1700000000"), ("end", "1700000200"), ("step", "0.1")];
    let mut slow = TcpStream::connect(at).expect("a connection");
    let target = url("/api/v1/query_range", &params);
    write!(slow, "GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let mut first = [0; 16];
    slow.read_exact(&mut first).expect("the answer begins");
    api(at, "query", &[("query", "1")]);
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).expect("the answer ends");
    assert!(rest.ends_with(b"]]}]}}"), "and is whole");
}
