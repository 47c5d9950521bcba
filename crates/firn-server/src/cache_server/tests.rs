//! Tests of the cache server through its socket.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::config::from_flags;

fn config(folder: &std::path::Path) -> CacheConfig {
    let data = folder.display().to_string();
    let flags = [
        ("listen", "127.0.0.1:0"),
        ("data", &data),
        ("size", "16MiB"),
        ("memory", "64MiB"),
        ("connections-max", "4"),
        ("value-bytes-max", "100000"),
        ("partial-bytes-min", "0"),
        ("idle", "60s"),
    ];
    from_flags(&flags).unwrap()
}

/// Clients that announce values and send nothing hold no memory.
#[test]
fn silent_sets_delay_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().display().to_string();
    let flags = [
        ("listen", "127.0.0.1:0"),
        ("data", &data),
        ("size", "16MiB"),
        ("memory", "128MiB"),
        ("value-bytes-max", "8MiB"),
    ];
    let server = CacheServer::start(from_flags(&flags).unwrap(), || ()).unwrap();
    let mut silent: Vec<Client> = (0..40).map(|_| Client::new(&server)).collect();
    for client in &mut silent {
        assert_eq!(client.ask("get k 0 0 9 json\r\n"), "NOT_FOUND");
        client.send("set k 0 0 9 json 8000000\r\n[");
    }
    let mut client = Client::new(&server);
    // Without the mend the answer comes after a minute.
    client.0.get_ref().set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    assert_eq!(client.set("k", 0, 9, "[[1,2]]"), "STORED 0 9");
    assert_eq!(client.ask("get k 0 0 9 json\r\n"), "VALUE 0 9 [[1,2]]");
    server.stop().unwrap();
}

/// Each response to a client that does not read holds memory for seconds. Before, a stop waited for
/// one after the other of those that wait for it, up to 30 s.
#[test]
fn a_stop_refuses_requests_that_wait_for_memory() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().display().to_string();
    let flags = [
        ("listen", "127.0.0.1:0"),
        ("data", &data),
        ("size", "64MiB"),
        ("memory", "64MiB"),
        ("value-bytes-max", "4MiB"),
    ];
    let server = CacheServer::start(from_flags(&flags).unwrap(), || ()).unwrap();
    let text = "x".repeat(1_000);
    let points: Vec<String> = (0..3_900).map(|ts| format!("[{ts},\"{text}\"]")).collect();
    let value = format!("[{}]", points.join(","));
    assert_eq!(Client::new(&server).set("k", 0, 3_899, &value), "STORED 0 3899");
    // The memory is enough for one. Their clients read nothing.
    let mut clients: Vec<Client> = (0..9).map(|_| Client::new(&server)).collect();
    for client in &mut clients {
        let before = server.shared.numbers.gets.get();
        client.send(&"get k 0 0 3899 json\r\n".repeat(4));
        // No other client's request can arrive: the first response does not fit into its socket.
        while server.shared.numbers.gets.get() == before {
            std::thread::yield_now();
        }
    }
    let stopping = std::thread::spawn(|| server.stop());
    let last = clients.last_mut().unwrap();
    let answer = last.answer();
    assert!(answer == "SERVER_ERROR the server is stopping", "{} bytes", answer.len());
    assert!(last.is_closed());
    stopping.join().unwrap().unwrap();
}

/// Before, a stop waited ten seconds for a client that had sent half of a request.
#[test]
fn a_stop_does_not_wait_for_the_rest_of_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let server = CacheServer::start(config(folder.path()), || ()).unwrap();
    let mut client = Client::new(&server);
    // It arrives with the request before it.
    assert_eq!(client.ask("get k 0 0 9 json\r\nget k 0 "), "NOT_FOUND");
    // Between the three seconds of a stop and the ten of a line.
    client.0.get_ref().set_read_timeout(Some(std::time::Duration::from_secs(8))).unwrap();
    let stopping = std::thread::spawn(|| server.stop());
    assert_eq!(client.0.read(&mut [0]).unwrap(), 0);
    stopping.join().unwrap().unwrap();
}

/// Connections that have not sent the token take no place from one that has.
#[test]
fn clients_without_the_token_shut_nobody_out() {
    let folder = tempfile::tempdir().unwrap();
    let (data, token) = (folder.path().join("cache"), folder.path().join("token"));
    std::fs::write(&token, "s3cret\n").unwrap();
    let (data, token) = (data.display().to_string(), token.display().to_string());
    let flags = [
        ("listen", "127.0.0.1:0"),
        ("data", &data),
        ("size", "16MiB"),
        ("connections-max", "2"),
        ("token-file", &token),
    ];
    let server = CacheServer::start(from_flags(&flags).unwrap(), || ()).unwrap();
    let mut trusted = Client::new(&server);
    assert_eq!(trusted.ask("auth s3cret\r\n"), "OK");
    let mut strangers: Vec<Client> = (0..300).map(|_| Client::new(&server)).collect();
    for client in strangers.iter_mut().step_by(2) {
        let _ = client.0.get_mut().write_all(b"auth ");
    }
    let mut client = Client::new(&server);
    client.0.get_ref().set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    assert_eq!(client.ask("auth s3cret\r\n"), "OK");
    assert_eq!(client.set("k", 0, 9, "[[1,2]]"), "STORED 0 9");
    assert_eq!(trusted.ask("get k 0 0 9 json\r\n"), "VALUE 0 9 [[1,2]]");
    assert!(strangers[0].is_closed(), "it made room for newer ones");
    server.stop().unwrap();
}

/// Before, strangers within a head of HTTP, or in a value that was refused, could not be evicted:
/// no further connection was accepted for seconds, or for as long as they sent.
#[test]
fn strangers_within_requests_shut_nobody_out() {
    let folder = tempfile::tempdir().unwrap();
    let (data, token) = (folder.path().join("cache"), folder.path().join("token"));
    std::fs::write(&token, "s3cret\n").unwrap();
    let (data, token) = (data.display().to_string(), token.display().to_string());
    let flags =
        [("listen", "127.0.0.1:0"), ("data", &data), ("size", "16MiB"), ("token-file", &token)];
    let server = CacheServer::start(from_flags(&flags).unwrap(), || ()).unwrap();
    for request in
        ["GET /-/cache/metrics HTTP/1.1\r\n", "set k 0 0 9 json 1000000000000\r\n", "get k 0 "]
    {
        let mut strangers: Vec<Client> = (0..200).map(|_| Client::new(&server)).collect();
        for client in &mut strangers {
            // The oldest ones are closed meanwhile.
            let _ = client.0.get_mut().write_all(request.as_bytes());
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
        let mut client = Client::new(&server);
        client.0.get_ref().set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        assert_eq!(client.ask("auth s3cret\r\n"), "OK", "{request}");
    }
    server.stop().unwrap();
}

/// Before, gets reserved an estimate by the bytes of values: those of points without any took up to
/// 8 MiB each beside the limit, for each of 16 that a client sends at once.
#[test]
fn gets_take_the_memory_of_their_points() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().display().to_string();
    // Small slabs, as points without values take much more memory until they are written.
    let flags =
        [("listen", "127.0.0.1:0"), ("data", &data), ("size", "16MiB"), ("memory", "64MiB")];
    let server = CacheServer::start(from_flags(&flags).unwrap(), || ()).unwrap();
    const COUNT: i64 = 30_000;
    const SETS: i64 = 8;
    let mut client = Client::new(&server);
    for first in (0..SETS).map(|n| n * COUNT) {
        let last = first + COUNT - 1;
        let points = (first..=last).flat_map(|ts| [&ts.to_le_bytes()[..], &[0; 4]].concat());
        let points: Vec<u8> = points.collect();
        // Until the slabs before it are written.
        for tries in 0.. {
            assert!(tries < 200, "the set at {first} is not stored");
            client.send(&format!("set empty 0 {first} {last} binary {}\r\n", points.len()));
            client.0.get_mut().write_all(&points).unwrap();
            if client.ask("\r\n") == format!("STORED {first} {last}") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
    let value_bytes = (12 * SETS * COUNT) as usize;
    let range = firn_model::TimeRange::new(0, SETS * COUNT - 1);
    let place = protocol::RangeKey { key: b"empty".to_vec(), field: 0, range };
    let wanted = (place, protocol::Format::Binary, Some(0));
    let get = || server.shared.respond(&wanted);
    let room = server.shared.flights.usage().limit_bytes as usize;
    let mut unread = Vec::new();
    while let Some(response) = get() {
        assert!(response.bytes.starts_with(b"VALUE"));
        assert!(response.bytes.len() > value_bytes);
        unread.push(response);
        assert!(unread.len() * value_bytes < room, "{} responses", unread.len());
    }
    assert!(!unread.is_empty());
    drop(unread);
    assert!(get().unwrap().bytes.starts_with(b"VALUE"));
    server.stop().unwrap();
}

/// Before, they were refused at once: their room is estimated by the bytes of the values, and lists
/// of numbers take several times as much.
#[test]
fn parallel_gets_of_numbers_wait_for_memory() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().display().to_string();
    let flags =
        [("listen", "127.0.0.1:0"), ("data", &data), ("size", "256MiB"), ("memory", "128MiB")];
    let server = CacheServer::start(from_flags(&flags).unwrap(), || ()).unwrap();
    let mut client = Client::new(&server);
    const COUNT: i64 = 30_000;
    const SETS: i64 = 12;
    let mut whole = Vec::new();
    for first in (0..SETS).map(|n| n * COUNT) {
        let last = first + COUNT - 1;
        let points: Vec<String> =
            (first..=last).map(|n| format!("[{},{}]", 1_700_000_000_000 + n, n % 100)).collect();
        let points = points.join(",");
        let (start, end) = (1_700_000_000_000 + first, 1_700_000_000_000 + last);
        // Until the slabs before it are written.
        let stored = format!("STORED {start} {end}");
        for tries in 0.. {
            assert!(tries < 500, "the set at {start} is not stored");
            if client.set("k", start, end, &format!("[{points}]")) == stored {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        whole.push(points);
    }
    let get = |n: i64, sets: i64| {
        let start = 1_700_000_000_000 + n * COUNT;
        let end = start + sets * COUNT - 1;
        let points = whole[n as usize..(n + sets) as usize].join(",");
        (format!("get k 0 {start} {end} json\r\n"), format!("VALUE {start} {end} [{points}]"))
    };
    // Many in parallel, of which some do not fit.
    let (line, value) = get(0, SETS);
    assert!(value.len() > 6 << 20);
    let mut clients: Vec<Client> = (0..6).map(|_| Client::new(&server)).collect();
    clients.iter_mut().for_each(|client| client.send(&line));
    std::thread::scope(|scope| {
        for client in &mut clients {
            scope.spawn(|| assert!(client.answer() == value, "a list in parallel"));
        }
    });
    // Pipelined ones.
    for sets in [1, SETS] {
        let gets: Vec<(String, String)> =
            (0..16).map(|n| get(n % (SETS + 1 - sets), sets)).collect();
        client.send(&gets.iter().map(|get| &*get.0).collect::<String>());
        for (idx, (_, value)) in gets.iter().enumerate() {
            let answer = client.answer();
            assert!(answer == *value, "get {idx}: {}", &answer[..answer.len().min(99)]);
        }
    }
    assert_eq!(server.shared.flight_waiters.load(std::sync::atomic::Ordering::Relaxed), 0);
    assert_eq!(server.shared.numbers.server_errors.get(), 0);
    server.stop().unwrap();
}

/// Before, a list was decoded to its end before its times were checked: millions of equal ones took
/// a multiple of their reservation.
#[test]
fn the_first_wrong_time_ends_a_list() {
    use super::points::decode;
    use super::protocol::Format::{Binary, Json};
    let range = firn_model::TimeRange::new(0, 9);
    let why = |format, value: &[u8]| decode(format, range, value).unwrap_err();
    assert!(why(Json, b"[[1,1],[1,1],").contains("point 1 has time 1, after a point with 1"));
    assert!(why(Json, b"[[10,1],").contains("point 0 has time 10, outside the range 0 to 9"));
    assert!(why(Json, b"[[1,1],[2,1],").contains("expected a JSON list of [time,value]"));
    let points = [1_i64, 1].map(|ts| [&ts.to_le_bytes()[..], &[0; 4]].concat()).concat();
    assert!(why(Binary, &points).contains("point 1 has time 1, after a point with 1"));
    assert!(why(Binary, &[&points[..], &[7]].concat()).contains("point 1 has time 1"));
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn new(server: &CacheServer) -> Client {
        Client(BufReader::new(TcpStream::connect(server.listens()[0]).unwrap()))
    }

    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// A line, and the value behind it if there is one.
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["VALUE" | "INCOMPLETE", _, _, bytes, ref absent @ ..] = *words {
            let mut value = vec![0; bytes.parse::<usize>().unwrap() + 2];
            self.0.read_exact(&mut value).unwrap();
            return format!(
                "{} {}",
                [&words[..3], absent].concat().join(" "),
                String::from_utf8_lossy(&value).trim_end()
            );
        }
        line.trim_end().to_owned()
    }

    fn ask(&mut self, text: &str) -> String {
        self.send(text);
        self.answer()
    }

    fn set(&mut self, key: &str, start: i64, end: i64, value: &str) -> String {
        self.ask(&format!("set {key} 0 {start} {end} json {}\r\n{value}\r\n", value.len()))
    }

    fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0) | Err(_))
    }
}

#[test]
fn set_points_are_returned_by_range_until_they_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let server = CacheServer::start(config(folder.path()), || ()).unwrap();
    let mut client = Client::new(&server);
    assert_eq!(client.ask("get k 0 0 9 json\r\n"), "NOT_FOUND");
    assert_eq!(client.set("k", 0, 9, "[[1,\"a\"], [5, {\"x\": 2}]]"), "STORED 0 9");
    assert_eq!(client.ask("get k 0 0 9 json\r\n"), "VALUE 0 9 [[1,\"a\"],[5,{\"x\": 2}]]");
    assert_eq!(client.ask("get k 0 2 4 json\r\n"), "VALUE 2 4 []");
    // A partial hit; one that is too small; points that were set in the other format, or under
    // another field.
    assert_eq!(client.ask("get k 0 4 19 json\r\n"), "INCOMPLETE 10 19 [[5,{\"x\": 2}]]");
    assert_eq!(client.ask("get k 0 4 19 json 1000\r\n"), "INCOMPLETE 4 19 10 19 []");
    assert_eq!(client.ask("get k 0 0 9 binary\r\n"), "NOT_FOUND");
    assert_eq!(client.ask("get k 1 0 9 json\r\n"), "NOT_FOUND");
    // Overlapping points are replaced.
    assert_eq!(client.set("k", 5, 12, "[[12,null]]"), "STORED 5 12");
    assert_eq!(client.ask("get k 0 0 12 json\r\n"), "VALUE 0 12 [[1,\"a\"],[12,null]]");
    assert_eq!(client.ask("delete k 0 3 6\r\n"), "DELETED");
    assert_eq!(client.ask("get k 0 0 12 json\r\n"), "INCOMPLETE 3 6 [[1,\"a\"],[12,null]]");
    // Of ranges whose ends are missing, a cached middle is not returned.
    assert_eq!(client.ask("get k 0 -9 99 json 0\r\n"), "NOT_FOUND");
    assert_eq!(client.ask("delete other 0 3 6\r\n"), "NOT_FOUND");
    assert_eq!(client.ask("version\n"), concat!("VERSION ", env!("CARGO_PKG_VERSION")));
    client.send("quit\r\n");
    assert!(client.is_closed());
    server.stop().unwrap();
}

#[test]
fn errors_are_reported_and_the_next_request_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let server = CacheServer::start(config(folder.path()), || ()).unwrap();
    let mut client = Client::new(&server);
    let long = "x".repeat(100_001);
    for (request, problem) in [
        ("get k 0 9 0 json\r\n".to_owned(), "range 9 to 0 ends before it starts"),
        (format!("set k 0 0 9 json 100001\r\n{long}\r\n"), "100000 are allowed"),
        ("set k 0 9 0 json 4\r\n[[]]\r\n".to_owned(), "ends before it starts"),
        ("set k 0 0 9 json 4\r\n[[]]\r\n".to_owned(), "expected a JSON list of [time,value]"),
        ("set k 0 0 9 json 8\r\n[[10,1]]\r\n".to_owned(), "outside the range 0 to 9"),
        ("set k 0 0 9 binary 5\r\nabcde\r\n".to_owned(), "point 0 at byte 0"),
    ] {
        let answer = client.ask(&request);
        assert!(answer.starts_with("CLIENT_ERROR ") && answer.contains(problem), "{answer}");
        assert_eq!(client.ask("get k 0 0 9 json\r\n"), "NOT_FOUND", "{problem}");
    }
    // The start of the next request is unknown: the connection ends after an error.
    for (request, problem) in [
        ("nonsense\r\n".to_owned(), "unknown command \"nonsense\""),
        ("\r\n".to_owned(), "unknown command \"\""),
        (format!("get {long}\r\n"), "a line has more than 8192 bytes"),
        ("set k 0 0 9 json\r\n[]\r\n".to_owned(), "expected: set KEY"),
        ("set k 0 0 9 json 2\r\n[[1,2]]\r\n".to_owned(), "is the value longer?"),
    ] {
        let mut client = Client::new(&server);
        let answer = client.ask(&request);
        assert!(answer.starts_with("CLIENT_ERROR ") && answer.contains(problem), "{answer}");
        assert!(client.is_closed(), "{problem}");
    }
    assert_eq!(client.set("k", 0, 9, "[]"), "STORED 0 9");
    server.stop().unwrap();
}

#[test]
fn more_than_is_allowed_at_once_is_refused_and_got_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let text = "x".repeat(60_000);
    // Shorter in slabs than in the protocol; the limit applies to the protocol.
    let short = |from| (from..from + 5_000).map(|ts| format!("[{ts},1]")).collect::<Vec<_>>();
    let (first, last) = (1_700_000_000_000_i64, 1_700_000_009_999_i64);
    let middle = first + 5_000;
    for is_new in [true, false] {
        // The second time all points are in the file, where a point is read with its neighbours.
        let server = CacheServer::start(config(folder.path()), || ()).unwrap();
        let mut client = Client::new(&server);
        if is_new {
            for ts in 0..3 {
                let stored = format!("STORED {ts} {ts}");
                assert_eq!(client.set("k", ts, ts, &format!("[[{ts},\"{text}\"]]")), stored);
            }
            for (start, end) in [(first, middle - 1), (middle, last)] {
                let value = format!("[{}]", short(start).join(","));
                assert_eq!(
                    client.set("short", start, end, &value),
                    format!("STORED {start} {end}")
                );
            }
        }
        for (key, start, end) in [("k", 0, 2), ("k", 0, 1), ("k", 1, 2), ("short", first, last)] {
            let answer = client.ask(&format!("get {key} 0 {start} {end} json\r\n"));
            assert!(answer.contains("exceed 100000 bytes"), "{key}: {answer}");
        }
        for ts in 0..3 {
            let got = format!("VALUE {ts} {ts} [[{ts},\"{text}\"]]");
            assert!(client.ask(&format!("get k 0 {ts} {ts} json\r\n")) == got, "{ts}, {is_new}");
        }
        for (start, end) in [(first, middle - 1), (middle, last)] {
            let got = format!("VALUE {start} {end} [{}]", short(start).join(","));
            let answer = client.ask(&format!("get short 0 {start} {end} json\r\n"));
            assert!(answer == got, "{start}, {is_new}");
        }
        server.stop().unwrap();
    }
}

#[test]
fn a_token_is_wanted_first() {
    let folder = tempfile::tempdir().unwrap();
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, "s3cret\n").unwrap();
    let token_file = token_file.display().to_string().parse().unwrap();
    let config = CacheConfig { token_file, ..config(&folder.path().join("cache")) };
    let server = CacheServer::start(config, || ()).unwrap();
    for (request, problem) in
        [("get k 0 0 9 json\r\n", "send first: auth TOKEN"), ("auth wrong\r\n", "wrong token")]
    {
        let mut client = Client::new(&server);
        assert!(client.ask(request).contains(problem));
        assert!(client.is_closed());
    }
    let mut client = Client::new(&server);
    assert_eq!(client.ask("auth s3cret\r\n"), "OK");
    assert_eq!(client.ask("get k 0 0 9 json\r\n"), "NOT_FOUND");
    let http = |header: &str| {
        let mut client = Client::new(&server);
        client.send(&format!("GET /-/cache/metrics HTTP/1.1\r\nHost: localhost\r\n{header}\r\n"));
        let mut text = String::new();
        client.0.read_to_string(&mut text).unwrap();
        text
    };
    for wrong in ["", "authorization: Bearer s3cre\r\n", "authorization: Bearer \r\n"] {
        assert!(http(wrong).starts_with("HTTP/1.1 401 "), "{wrong}");
    }
    let metrics = http("authorization: Bearer s3cret\r\n");
    assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
    assert!(metrics.contains("\nfirn_cache_requests_total{command=\"get\"} 1\n"), "{metrics}");
    assert!(metrics.contains("\nfirn_cache_errors_total{side=\"client\"} 2\n"), "{metrics}");
    server.stop().unwrap();
}

/// A web configuration with one token for each user.
fn web_config(path: &std::path::Path, users: &[(&str, &str)]) {
    let mut text = "users:\n".to_owned();
    for (token, roles) in users {
        let digest = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
        let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        text += &format!("  - name: {token}\n    roles: [{roles}]\n");
        text += &format!("    tokens: [\"sha256:{digest}\"]\n");
    }
    std::fs::write(path, text).unwrap();
}

/// Before, an open connection kept the roles of its login, and one from before the first user all.
#[test]
fn open_connections_have_the_roles_of_the_current_users() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yml");
    std::fs::write(&file, "# none\n").unwrap();
    let web_config_flag = file.display().to_string().parse().unwrap();
    let config = CacheConfig { web_config: web_config_flag, ..config(&folder.path().join("c")) };
    let server = CacheServer::start(config, || ()).unwrap();
    let mut first = Client::new(&server);
    assert_eq!(first.set("k", 0, 9, "[[1,2]]"), "STORED 0 9");
    web_config(&file, &[("changed", "read, write"), ("removed", "read"), ("same", "read")]);
    server.shared.gate.reload().unwrap();
    assert!(first.ask("get k 0 0 9 json\r\n").contains("not authenticated"));
    assert!(first.is_closed());
    let mut clients = ["changed", "removed", "same"].map(|token| {
        let mut client = Client::new(&server);
        assert_eq!(client.ask(&format!("auth {token}\r\n")), "OK");
        assert_eq!(client.ask("get k 0 0 9 json\r\n"), "VALUE 0 9 [[1,2]]");
        client
    });
    web_config(&file, &[("changed", "read"), ("same", "read")]);
    server.shared.gate.reload().unwrap();
    let [changed, removed, same] = &mut clients;
    assert!(changed.set("k", 0, 9, "[[1,3]]").contains("role write"));
    assert!(removed.ask("get k 0 0 9 json\r\n").contains("not authenticated"));
    assert_eq!(same.ask("get k 0 0 9 json\r\n"), "VALUE 0 9 [[1,2]]");
    assert_eq!(changed.ask("get k 0 0 9 json\r\n"), "VALUE 0 9 [[1,2]]");
    server.stop().unwrap();
}

/// Before, a connection that had sent any token read them, and a head could have several meanings.
#[test]
fn metrics_need_role_read_and_a_strict_head() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yml");
    web_config(&file, &[("reader", "read"), ("writer", "write")]);
    let web_config_flag = file.display().to_string().parse().unwrap();
    let config = CacheConfig { web_config: web_config_flag, ..config(&folder.path().join("c")) };
    let server = CacheServer::start(config, || ()).unwrap();
    let send = |text: &str| {
        let mut client = Client::new(&server);
        client.send(text);
        let mut answer = String::new();
        let _ = client.0.read_to_string(&mut answer);
        answer
    };
    let get = "GET /-/cache/metrics HTTP/1.1\r\nHost: localhost\r\n";
    let reader = "Authorization: Bearer reader\r\n";
    for (request, status) in [
        (format!("{get}\r\n"), 401),
        (format!("{get}{reader}\r\n"), 200),
        (format!("{get}Authorization: Bearer writer\r\n\r\n"), 403),
        (format!("{get}{reader}Authorization: Bearer writer\r\n\r\n"), 401),
        (format!("auth reader\r\n{get}\r\n"), 200),
        (format!("auth writer\r\n{get}\r\n"), 403),
        (format!("{get}{reader}\r\n").replace('\r', ""), 400),
        (format!("{get}{reader}").replace("Host:", "Host :") + "\r\n", 400),
        (format!("{get}Content-Length: 3\r\nContent-Length: 5\r\n{reader}\r\nabcde"), 400),
        (format!("{get}Transfer-Encoding: x\r\nContent-Length: 5\r\n{reader}\r\nabcde"), 400),
        (format!("{get}{reader}\r\n").replace("localhost", "localhost@evil"), 400),
        (format!("{get}{reader} folded: x\r\n\r\n"), 400),
        (format!("{get}{reader}\0: x\r\n\r\n"), 400),
        (format!("{get}{reader}{}Host: evil\r\n\r\n", "X: y\r\n".repeat(98)), 431),
        (format!("{get}{reader}X: {}\r\n\r\n", "y".repeat(200_000)), 431),
        (format!("{get}{reader}\r\n").replace("1.1\r", "1.11\r"), 400),
    ] {
        let answer = send(&request);
        let answer = answer.strip_prefix("OK\r\n").unwrap_or(&answer);
        let shown = &request[..request.len().min(300)];
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{shown}: {answer}");
        assert_eq!(answer.contains("firn_cache_requests_total"), status == 200, "{shown}");
    }
    server.stop().unwrap();
}

/// A web page makes a browser send these: the body, or a header, has commands. Before, they were
/// carried out.
#[test]
fn commands_in_other_protocols_are_not_carried_out() {
    let folder = tempfile::tempdir().unwrap();
    let server = CacheServer::start(config(folder.path()), || ()).unwrap();
    let poison = "set k 0 0 9 json 8\r\n[[1,666]]\r\n";
    let poison = poison.replace(" 8\r", " 9\r");
    let http =
        "Host: 127.0.0.1:9421\r\nOrigin: http://evil.example\r\nContent-Type: text/plain\r\n";
    for foreign in [
        format!("POST / HTTP/1.1\r\n{http}Content-Length: 99\r\n\r\n{poison}"),
        format!("OPTIONS / HTTP/1.1\r\n{http}\r\n{poison}"),
        format!("GET /-/cache/metrics HTTP/1.1\r\n{poison}\r\n\r\n{poison}"),
        format!("GET /-/cache/metrics\r\n{poison}"),
        format!("{http}{poison}"),
        format!("EHLO evil.example\r\n{poison}QUIT\r\n"),
        format!("*1\r\n$4\r\nPING\r\n{poison}"),
        format!("\x16\x03\x01\x02\x00\x01\n{poison}"),
        format!("\r\n{poison}"),
    ] {
        let mut client = Client::new(&server);
        client.send(&foreign);
        let mut answer = String::new();
        let _ = client.0.read_to_string(&mut answer);
        assert!(!answer.contains("STORED"), "{foreign}: {answer}");
        let mut other = Client::new(&server);
        assert_eq!(other.ask("get k 0 0 9 json\r\n"), "NOT_FOUND", "{foreign}");
        let is_http = foreign.starts_with("POST") || foreign.starts_with("Host");
        assert_eq!(
            answer.starts_with("HTTP/1.1 405 "),
            is_http || foreign.starts_with("OPT") || foreign.starts_with("GET /-/cache/metrics\r"),
            "{answer}"
        );
    }
    assert_eq!(Client::new(&server).ask(&poison), "STORED 0 9", "it is a command");
    server.stop().unwrap();
}

#[test]
fn pages_of_other_sites_read_no_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let server = CacheServer::start(config(folder.path()), || ()).unwrap();
    let get = |path: &str, headers: &str| {
        let mut client = Client::new(&server);
        let version = if headers.is_empty() { "1.0" } else { "1.1" };
        client.send(&format!("GET {path} HTTP/{version}\r\n{headers}\r\n"));
        let mut text = String::new();
        client.0.read_to_string(&mut text).unwrap();
        text
    };
    let metrics = "/-/cache/metrics";
    let cross = "Host: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n";
    for (path, headers, status) in [
        (metrics, "Host: localhost:9421\r\n", 200),
        (metrics, "", 200),
        // Version 1.1 needs a host.
        (metrics, "X: y\r\n", 400),
        (metrics, "Host: evil.example\r\n", 421),
        (metrics, "Host: localhost\r\nHost: evil.example\r\n", 400),
        ("http://evil.example/-/cache/metrics", "Host: localhost\r\n", 421),
        (metrics, cross, 403),
        ("/", "Host: localhost\r\n", 404),
    ] {
        let answer = get(path, headers);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path} {headers}: {answer}");
        assert!(answer.contains("x-content-type-options: nosniff\r\n"), "{answer}");
        assert!(!answer.contains("access-control-"), "{answer}");
    }
    server.stop().unwrap();
}

#[test]
fn requests_in_a_row_are_answered_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let server = CacheServer::start(config(folder.path()), || ()).unwrap();
    let mut client = Client::new(&server);
    let mut requests = String::new();
    let mut answers = Vec::new();
    for round in 0..50 {
        let value = format!("[[{round},{round}]]");
        requests += &format!("set k 0 {round} {round} json {}\r\n{value}\r\n", value.len());
        answers.push(format!("STORED {round} {round}"));
        for back in 0..round.min(20) {
            let ts = round - back;
            requests += &format!("get k 0 {ts} {ts} json\r\n");
            answers.push(format!("VALUE {ts} {ts} [[{ts},{ts}]]"));
        }
        requests += &format!("delete k 0 {round} {round}\r\nget k 0 {round} {round} json\r\n");
        answers.extend(["DELETED".to_owned(), "NOT_FOUND".to_owned()]);
        requests += &format!("set k 0 {round} {round} json {}\r\n{value}\r\n", value.len());
        answers.push(format!("STORED {round} {round}"));
    }
    let mut writer = client.0.get_ref().try_clone().unwrap();
    let sent = std::thread::spawn(move || writer.write_all(requests.as_bytes()).unwrap());
    for (idx, answer) in answers.iter().enumerate() {
        assert_eq!(client.answer(), *answer, "answer {idx}");
    }
    sent.join().unwrap();
    server.stop().unwrap();
}

#[test]
fn points_survive_a_stop_and_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let server = CacheServer::start(config(folder.path()), || ()).unwrap();
    let mut client = Client::new(&server);
    assert_eq!(client.set("k", 0, 9, "[[3,4]]"), "STORED 0 9");
    assert_eq!(client.ask("delete k 0 7 9\r\n"), "DELETED");
    let mut idle = Client::new(&server);
    server.stop().unwrap();
    assert!(idle.is_closed());
    let server = CacheServer::start(config(folder.path()), || ()).unwrap();
    let other = CacheServer::start(config(folder.path()), || ());
    assert!(matches!(other.unwrap_err().kind(), firn_model::ErrorKind::Busy { .. }));
    let mut client = Client::new(&server);
    assert_eq!(client.ask("get k 0 0 9 json\r\n"), "INCOMPLETE 7 9 [[3,4]]");
    server.stop().unwrap();
}

/// A client's step in the property test: kind, key, range, width.
type Step = (u8, u8, i64, i64);

/// Several concurrent clients see the contents of a plain map, and no response is repeated.
#[test]
fn clients_see_the_contents_of_a_map() {
    let folder = tempfile::tempdir().unwrap();
    let server = CacheServer::start(config(folder.path()), || ()).unwrap();
    let steps = prop::collection::vec((0..10_u8, 0..3_u8, 0..60_i64, 0..20_i64), 1..80);
    let round = std::cell::Cell::new(0);
    let mut runner = TestRunner::new(Config { cases: 40, ..Config::default() });
    let found = std::cell::Cell::new(0);
    let outcome = runner.run(&steps, |steps: Vec<Step>| {
        round.set(round.get() + 1);
        let mut clients = [Client::new(&server), Client::new(&server)];
        // Value of each time that is known; `None` for a time that is known to have no point.
        let mut model = BTreeMap::<(u8, i64), Option<usize>>::new();
        for (idx, (kind, key, start, width)) in steps.into_iter().enumerate() {
            let client = &mut clients[idx % 2];
            let end = start + width;
            let name = format!("round{}/key{key}", round.get());
            match kind {
                0..4 => {
                    let times: Vec<i64> = (start..=end).filter(|ts| ts % 2 == 0).collect();
                    let value: Vec<String> =
                        times.iter().map(|ts| format!("[{ts},{idx}]")).collect();
                    let told = client.set(&name, start, end, &format!("[{}]", value.join(",")));
                    prop_assert_eq!(told, format!("STORED {} {}", start, end));
                    let value = |ts| (ts % 2 == 0).then_some(idx);
                    (start..=end).for_each(|ts| {
                        model.insert((key, ts), value(ts));
                    });
                }
                4 => {
                    let told = client.ask(&format!("delete {name} 0 {start} {end}\r\n"));
                    let was_there = model.keys().any(|known| known.0 == key);
                    prop_assert_eq!(told, if was_there { "DELETED" } else { "NOT_FOUND" });
                    model.retain(|known, _| known.0 != key || !(start..=end).contains(&known.1));
                }
                _ => {
                    let told = client.ask(&format!("get {name} 0 {start} {end} json\r\n"));
                    let known = |ts: &i64| model.contains_key(&(key, *ts));
                    let first = (start..=end).find(|ts| !known(ts));
                    let last = (start..=end).rev().find(|ts| !known(ts));
                    let missing = first.zip(last);
                    let is_given = |ts: i64| missing.is_none_or(|(a, b)| ts < a || ts > b);
                    let points: Vec<String> = (start..=end)
                        .filter(|&ts| is_given(ts))
                        .filter_map(|ts| Some(format!("[{ts},{}]", model[&(key, ts)]?)))
                        .collect();
                    let points = points.join(",");
                    let want = match missing {
                        None => format!("VALUE {start} {end} [{points}]"),
                        Some((a, b)) if (a, b) == (start, end) => "NOT_FOUND".to_owned(),
                        Some((a, b)) => format!("INCOMPLETE {a} {b} [{points}]"),
                    };
                    found.set(found.get() + u64::from(want != "NOT_FOUND"));
                    prop_assert_eq!(told, want);
                }
            }
        }
        Ok(())
    });
    outcome.unwrap();
    assert!(found.get() > 200, "{} gets found something", found.get());
    server.stop().unwrap();
}
