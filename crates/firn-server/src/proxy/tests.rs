//! Tests with a socket as the origin.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use std::net::{SocketAddr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use super::*;
use crate::config::from_flags;

/// A database of many tenants. It answers every range query with one point, whose label `tenant` is
/// the first `X-Scope-OrgID` of the request, with the header in `X-Test-Answer`, and with
/// statistics if they are requested.
struct FakeOrigin {
    address: SocketAddr,
    /// The heads that arrived.
    heads: Arc<Mutex<Vec<String>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

const ORIGIN_STATS: &str = ",\"stats\":{\"samples\":{\"peakSamples\":7}}";

impl FakeOrigin {
    fn start() -> FakeOrigin {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let is_over = Arc::new(AtomicBool::new(false));
        let (seen, over) = (Arc::clone(&heads), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let mut stream = stream.unwrap();
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) > 0 {
                    head.extend_from_slice(&byte);
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                let header = |name: &str| {
                    head.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
                };
                let tenant = header("x-scope-orgid: ").unwrap_or_else(|| "none".to_owned());
                let more = header("x-test-answer: ").map(|line| line + "\r\n");
                let has_stats = head.lines().next().is_some_and(|line| line.contains("stats="));
                let stats = if has_stats { ORIGIN_STATS } else { "" };
                let body = format!(
                    "{{\"status\":\"success\",\"data\":{{\"resultType\":\"matrix\",\"result\":\
                     [{{\"metric\":{{\"tenant\":\"{tenant}\"}},\"values\":[[1000,\"1\"]]}}]{stats}}}}}"
                );
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\
                     Access-Control-Allow-Origin: *\r\n{}Content-Length: {}\r\n\r\n{body}",
                    more.unwrap_or_default(),
                    body.len()
                );
                let raw = header("x-test-response: ").map(|line| line.replace('|', "\r\n"));
                seen.lock().push(head);
                let _ = stream.write_all(raw.unwrap_or(answer).as_bytes());
            }
        });
        FakeOrigin { address, heads, is_over, thread: Some(thread) }
    }

    /// The first lines of the requests since the last call.
    fn lines(&self) -> Vec<String> {
        let heads = std::mem::take(&mut *self.heads.lock());
        heads.iter().map(|head| head.lines().next().unwrap_or_default().to_owned()).collect()
    }
}

impl Drop for FakeOrigin {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A proxy of its own for a test.
struct RunningProxy {
    proxy: Proxy,
    _folder: tempfile::TempDir,
}

impl RunningProxy {
    fn start(origin: &str, more: &[(&str, &str)]) -> RunningProxy {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().display().to_string();
        let flags = [
            ("listen", "127.0.0.1:0"),
            ("data", &data),
            ("size", "64MiB"),
            ("memory", "64MiB"),
            ("answer-bytes-max", "1MiB"),
            ("partial-bytes-min", "0"),
            ("settle", "1ms"),
            ("proxy", origin),
        ];
        let flags: Vec<(&str, &str)> = flags.into_iter().chain(more.iter().copied()).collect();
        let config = from_flags::<CacheConfig>(&flags).unwrap();
        let proxy = Proxy::start(&config.proxy.get().unwrap(), config, || ()).unwrap();
        RunningProxy { proxy, _folder: folder }
    }

    /// Sends a request without a body. Returns the whole response.
    fn send(&self, method: &str, target: &str, headers: &str) -> String {
        String::from_utf8_lossy(&self.send_raw(method, target, headers)).into_owned()
    }

    fn send_raw(&self, method: &str, target: &str, headers: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.proxy.listens()[0]).unwrap();
        let host = if headers.contains("Host: ") { "" } else { "Host: localhost\r\n" };
        let end = if headers.contains("Connection: ") { "" } else { "Connection: close\r\n" };
        let head = format!("{method} {target} HTTP/1.1\r\n{host}{end}{headers}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    /// A range query; the tenant in its answer, and whether it came from the cache.
    fn ask(&self, headers: &str) -> (String, bool) {
        let target = "/api/v1/query_range?query=up&start=1000&end=1000&step=15";
        let answer = self.send("GET", target, headers);
        let tenant = answer.split_once("\"tenant\":\"").map(|(_, behind)| behind);
        let tenant = tenant.and_then(|behind| behind.split('"').next());
        let tenant = tenant.unwrap_or_else(|| panic!("{headers}: {answer}")).to_owned();
        (tenant, answer.contains("x-firn-cache: hit"))
    }
}

/// Before, they were removed for the origin, which received the proxy's own credentials instead.
#[test]
fn connection_names_no_header_that_selects_the_response() {
    let origin = FakeOrigin::start();
    let address = format!("http://own:secret@{}", origin.address);
    let proxy = RunningProxy::start(&address, &[]);
    let (range, page) =
        ("/api/v1/query_range?query=up&start=1000&end=1000&step=15", "/api/v1/query?query=up");
    for headers in [
        "X-Scope-OrgID: a\r\nConnection: close, X-Scope-OrgID\r\n",
        "x-scope-orgid: a\r\nconnection: x-SCOPE-orgid\r\nConnection: close\r\n",
        "Authorization: Basic YTpi\r\nConnection: close,authorization\r\n",
        "Connection: Authorization ,close\r\n",
        "Cookie: session=1\r\nConnection: close, Cookie\r\n",
        "X-Grafana-User: u\r\nConnection: close, X-Grafana-User\r\n",
    ] {
        for target in [range, page] {
            let answer = proxy.send("GET", target, headers);
            assert!(answer.starts_with("HTTP/1.1 400 "), "{headers}: {answer}");
            assert!(answer.contains("the header Connection names "), "{headers}: {answer}");
        }
    }
    assert_eq!(origin.lines(), [""; 0]);
    for headers in [
        "Connection: close, keep-alive, Upgrade, TE\r\nTE: trailers\r\nUpgrade: h2c\r\n",
        "Connection: close, HTTP2-Settings, X-None, ,\r\nHTTP2-Settings: x\r\n",
        "Connection: close, X-Request-ID\r\nX-Request-ID: 1\r\n",
    ] {
        let answer = proxy.send("GET", page, headers);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{headers}: {answer}");
    }
    proxy.proxy.stop().unwrap();
}

/// Before, a header that the proxy removes counted for the key: an answer without a tenant was
/// stored under the name of one.
#[test]
fn the_key_is_made_of_the_headers_that_are_forwarded() {
    let origin = FakeOrigin::start();
    let proxy = RunningProxy::start(&format!("http://{}", origin.address), &[]);
    assert_eq!(proxy.ask("Connection: close, TE\r\nTE: trailers\r\n"), ("none".to_owned(), false));
    assert_eq!(proxy.ask(""), ("none".to_owned(), true), "it is the same request");
    assert_eq!(proxy.ask("X-Scope-OrgID: a\r\n"), ("a".to_owned(), false));
    assert_eq!(proxy.ask("X-Scope-OrgID: a\r\n"), ("a".to_owned(), true));
    // The first of several counts here, the last elsewhere.
    let both = |first: &str, second: &str| {
        proxy.ask(&format!("X-Scope-OrgID: {first}\r\nX-Scope-OrgID: {second}\r\n"))
    };
    assert_eq!(both("b", "c"), ("b".to_owned(), false));
    assert_eq!(both("c", "b"), ("c".to_owned(), false));
    // Users do not share answers.
    for user in
        ["Authorization: Basic YTpi", "Cookie: session=1", "X-Grafana-User: u", "Accept: x/y"]
    {
        assert!(!proxy.ask(&format!("{user}\r\n")).1, "{user}");
        assert!(proxy.ask(&format!("{user}\r\n")).1, "{user}");
    }
    // A parameter that is given twice may mean either.
    let twice = "/api/v1/query_range?query=up&query=down&start=1000&end=1000&step=15";
    assert!(!proxy.send("GET", twice, "").contains("x-firn-cache"));
    proxy.proxy.stop().unwrap();
}

/// Such answers belong to one client, or to one time.
#[test]
fn answers_that_the_origin_marks_are_not_stored() {
    let origin = FakeOrigin::start();
    let proxy = RunningProxy::start(&format!("http://{}", origin.address), &[]);
    // With the clock ahead of the database's, unsettled steps look settled.
    let date = |ago_s: u64| {
        let then = SystemTime::now() - Duration::from_secs(ago_s);
        format!("Date: {}", httpdate::fmt_http_date(then))
    };
    for (answer, is_stored) in [
        ("Vary: Origin, Accept-Encoding", true),
        ("Vary: Authorization", true),
        ("Cache-Control: max-age=60", true),
        ("Vary: *", false),
        ("Vary: User-Agent", false),
        ("Set-Cookie: session=1", false),
        ("Cache-Control: private", false),
        ("Cache-Control: max-age=1, No-Store", false),
        (&date(0), true),
        (&date(3_600), false),
    ] {
        let header = format!("X-Test-Answer: {answer}\r\n");
        assert!(!proxy.ask(&header).1, "{answer}");
        assert_eq!(proxy.ask(&header).1, is_stored, "{answer}");
    }
    proxy.proxy.stop().unwrap();
}

/// Some are copied or packed on the network thread, others on another one.
#[test]
fn short_and_long_answers_have_the_coding_that_the_client_accepts() {
    let origin = FakeOrigin::start();
    let proxy = RunningProxy::start(&format!("http://{}", origin.address), &[]);
    let target = "/api/v1/query_range?query=up&start=1000&end=1000&step=15";
    for len in [10, 2_000, 8_000] {
        let tenant = "t".repeat(len);
        let header = format!("X-Scope-OrgID: {tenant}\r\n");
        for is_hit in [false, true] {
            assert_eq!(proxy.ask(&header), (tenant.clone(), is_hit), "{len}");
        }
        let plain = proxy.send("GET", target, &header);
        let (_, plain) = plain.split_once("\r\n\r\n").unwrap();
        let packed = proxy.send_raw("GET", target, &(header + "Accept-Encoding: gzip\r\n"));
        let head_bytes = packed.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
        let head = String::from_utf8_lossy(&packed[..head_bytes]).into_owned();
        assert_eq!(head.contains("content-encoding: gzip"), len > 1_000, "{head}");
        let mut text = String::new();
        match len > 1_000 {
            true => flate2::read::GzDecoder::new(&packed[head_bytes..]).read_to_string(&mut text),
            false => (&packed[head_bytes..]).read_to_string(&mut text),
        }
        .unwrap();
        assert_eq!(text, plain, "{len}");
    }
    proxy.proxy.stop().unwrap();
}

/// Statistics describe the computation of the request. Before, requests for them were forwarded.
#[test]
fn a_request_for_statistics_uses_the_cache() {
    let origin = FakeOrigin::start();
    let proxy = RunningProxy::start(&format!("http://{}", origin.address), &[]);
    let send = |more: &str| {
        let target = format!("/api/v1/query_range?query=up&start=1000&end=1000&step=15{more}");
        let answer = proxy.send("GET", &target, "");
        let found = answer.split_once("x-firn-cache: ").map(|(_, behind)| behind);
        let found = found.and_then(|behind| behind.split("\r\n").next()).map(str::to_owned);
        (found, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    };
    let (found, computed) = send("&stats=all");
    assert_eq!(found.as_deref(), Some("miss"));
    assert!(computed.contains(ORIGIN_STATS), "{computed}");
    let (found, plain) = send("");
    assert_eq!((found.as_deref(), &plain), (Some("hit"), &computed.replace(ORIGIN_STATS, "")));
    let (found, cached) = send("&stats=true");
    assert_eq!(found.as_deref(), Some("hit"));
    let zeros = cached.strip_prefix(plain.strip_suffix("}}").unwrap()).unwrap();
    assert!(zeros.starts_with(",\"stats\":{\"timings\":{\"evalTotalTime\":0,"), "{zeros}");
    assert!(serde_json::from_str::<serde_json::Value>(&cached).is_ok(), "{cached}");
    // Prometheus answers another value with a warning.
    assert_eq!(send("&stats=yes").0, None);
    proxy.proxy.stop().unwrap();
}

/// Before, `/../admin` was sent to the origin with the proxy's credentials.
#[test]
fn requests_stay_below_the_prefix_and_on_the_list() {
    let origin = FakeOrigin::start();
    let url = format!("http://proxy:s%40cret@{}/tenant/", origin.address);
    let proxy = RunningProxy::start(&url, &[("proxy-paths", "/extra/*")]);
    for target in [
        "/../admin",
        "/%2e%2e/admin",
        "/.%2E/admin",
        "/%252e%252e/admin",
        "/..;/admin",
        "/extra/../../admin",
        "/extra/..%2f..%2fadmin",
        "/extra/..\\..\\admin",
        "//evil.example/api/v1/query",
        "http://localhost/../admin",
        "*",
    ] {
        let answer = proxy.send("GET", target, "");
        assert!(answer.starts_with("HTTP/1.1 400 "), "{target}: {answer}");
    }
    for (method, target) in [
        ("POST", "/api/v1/admin/tsdb/delete_series"),
        ("PUT", "/api/v1/admin/tsdb/snapshot"),
        ("POST", "/-/quit"),
        ("DELETE", "/api/v1/query"),
        ("GET", "/debug/pprof/heap"),
        ("POST", "/query?q=DROP+DATABASE+d"),
        ("GET", "/query?q=SELECT+a+INTO+b+FROM+c"),
    ] {
        let answer = proxy.send(method, target, "");
        assert!(answer.starts_with("HTTP/1.1 403 "), "{method} {target}: {answer}");
        assert!(answer.contains("--proxy-paths"), "{answer}");
    }
    let overridden = proxy.send("GET", "/api/v1/query", "X-HTTP-Method-Override: DELETE\r\n");
    assert!(overridden.starts_with("HTTP/1.1 400 "), "{overridden}");
    let connect = proxy.send("CONNECT", "evil.example:80", "");
    assert!(connect.starts_with("HTTP/1.1 4"), "{connect}");
    assert_eq!(origin.lines(), Vec::<String>::new(), "nothing reached the origin");

    for (method, target, line) in [
        ("GET", "/api/v1/query?query=up", "GET /tenant/api/v1/query?query=up HTTP/1.1"),
        ("DELETE", "/extra/x", "DELETE /tenant/extra/x HTTP/1.1"),
        ("GET", "/query?q=SHOW+DATABASES", "GET /tenant/query?q=SHOW+DATABASES HTTP/1.1"),
        ("GET", "http://localhost/-/ready", "GET /tenant/-/ready HTTP/1.1"),
    ] {
        let answer = proxy.send(method, target, "");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{method} {target}: {answer}");
        let head = origin.heads.lock().last().cloned().unwrap();
        // proxy:s@cret
        assert!(head.contains("authorization: Basic cHJveHk6c0BjcmV0\r\n"), "{head}");
        assert_eq!(origin.lines(), [line]);
    }
    proxy.send("GET", "/api/v1/query", "Authorization: Bearer own\r\n");
    let head = origin.heads.lock().last().cloned().unwrap();
    assert!(head.contains("authorization: Bearer own\r\n") && !head.contains("Basic"), "{head}");
    proxy.proxy.stop().unwrap();
}

#[test]
fn foreign_pages_use_no_proxy() {
    let origin = FakeOrigin::start();
    let proxy = RunningProxy::start(
        &format!("http://{}", origin.address),
        &[("cors-origin", "http://grafana"), ("proxy-paths", "/*")],
    );
    for (method, target) in [
        ("POST", "/api/v1/query"),
        ("POST", "/api/v1/write"),
        ("DELETE", "/x"),
        ("OPTIONS", "/api/v1/query"),
        ("POST", METRICS_PATH),
    ] {
        let preflight = "Access-Control-Request-Method: POST\r\n";
        let headers = format!("Origin: http://evil.example\r\n{preflight}");
        let answer = proxy.send(method, target, &headers);
        assert!(answer.starts_with("HTTP/1.1 403 "), "{method} {target}: {answer}");
    }
    for target in ["/api/v1/query", "/", METRICS_PATH, "/api/v1/query_range?query=up"] {
        let answer = proxy.send("GET", target, "Host: evil.example\r\n");
        assert!(answer.starts_with("HTTP/1.1 421 "), "{target}: {answer}");
    }
    assert_eq!(origin.lines(), Vec::<String>::new(), "nothing reached the origin");
    // The origin's `Access-Control-Allow-Origin: *` is not passed on.
    let answer = proxy.send("GET", "/api/v1/query", "Origin: http://evil.example\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 ") && !answer.contains("access-control"), "{answer}");
    assert!(answer.contains("x-content-type-options: nosniff"), "{answer}");
    let answer = proxy.send("GET", "/api/v1/query", "Origin: http://grafana\r\n");
    assert!(answer.contains("access-control-allow-origin: http://grafana\r\n"), "{answer}");
    let preflight = "Origin: http://grafana\r\nAccess-Control-Request-Method: POST\r\n";
    assert!(proxy.send("OPTIONS", "/x", preflight).starts_with("HTTP/1.1 204 "));
    proxy.proxy.stop().unwrap();
}

/// Before, the answer and the log repeated the URL with its parameters.
#[test]
fn an_origin_that_is_down_leaves_no_secret_in_the_answer() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = RunningProxy::start(&format!("http://proxy:canary@{gone}"), &[]);
    let statement = "SELECT+mean(a)+FROM+b+WHERE+time>=0s+AND+time<=90s+GROUP+BY+time(1s)";
    for target in [
        "/query?u=admin&p=canary&q=SHOW+DATABASES".to_owned(),
        format!(
            "/query?u=admin&p=canary&db=d&epoch=ms&q={}",
            statement.replace('>', "%3E").replace('<', "%3C")
        ),
        "/write?u=admin&p=canary".to_owned(),
        "/api/v1/query_range?query=up&start=1000&end=1000&step=15&token=canary".to_owned(),
    ] {
        let method = if target.starts_with("/write") { "POST" } else { "GET" };
        let answer = proxy.send(method, &target, "Authorization: Bearer canary\r\n");
        assert!(answer.starts_with("HTTP/1.1 502 "), "{target}: {answer}");
        assert!(!answer.contains("canary") && answer.contains(&gone.to_string()), "{answer}");
    }
    assert!(!format!("{:?}", proxy.proxy).contains("canary"), "debug output");
    proxy.proxy.stop().unwrap();
}

/// Sends a form in chunks with `body` verbatim, and waits for the response if `stays`. Returns the
/// response.
fn post(proxy: &Proxy, body: &str, stays: bool) -> String {
    let mut stream = TcpStream::connect(proxy.listens()[0]).unwrap();
    let head = "POST /query?db=d HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\
                Content-Type: application/x-www-form-urlencoded\r\n\r\n";
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    if !stays {
        stream.shutdown(Shutdown::Write).unwrap();
    }
    let mut answer = Vec::new();
    // A client that disconnects may receive nothing.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Before, the form of a path with a slash at its end was forwarded unread.
#[test]
fn statements_are_checked_at_every_spelling_of_the_path() {
    let origin = FakeOrigin::start();
    let proxy = RunningProxy::start(&format!("http://{}", origin.address), &[]);
    for path in ["/query", "/query/", "/influx/query", "/influx/query/"] {
        for (form, status) in [("q=DROP+DATABASE+d", 403), ("q=SHOW+DATABASES", 200)] {
            let headers = format!(
                "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
                form.len()
            );
            let answer = proxy.send("POST", path, &headers);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
        }
    }
    assert_eq!(origin.lines().len(), 4);
    proxy.proxy.stop().unwrap();
}

/// Before, the client received the origin's 101 and its empty errors.
#[test]
fn every_error_of_the_origin_has_a_body_and_no_other_protocol_is_passed_on() {
    let origin = FakeOrigin::start();
    let proxy = RunningProxy::start(&format!("http://{}", origin.address), &[]);
    let range = "/api/v1/query_range?query=up&start=1000&end=1000&step=15";
    // In lower case, not to be taken for a header of this request.
    let ended = "connection: close|";
    for (response, status, wanted) in [
        ("101 Switching Protocols|upgrade: x|connection: upgrade||", 502, "status 101"),
        (&*format!("500 Oops|{ended}Content-Length: 0||"), 500, "without a text\n"),
        (&format!("500 Oops|{ended}Transfer-Encoding: chunked||0||"), 500, "without a text\n"),
        (&format!("503 Oops|{ended}|"), 503, "without a text\n"),
        (
            &format!("404 Oops|{ended}Content-Type: application/json|Content-Length: 0||"),
            404,
            "\"errorType\":\"not_found\",\"error\":\"the proxy's origin answered 404",
        ),
        (&format!("500 Oops|{ended}Content-Encoding: gzip|Content-Length: 0||"), 500, "without"),
        (&format!("500 Oops|{ended}Content-Length: 3||own"), 500, "\r\n\r\nown"),
        (&format!("500 Oops|{ended}Content-Type: image/png|Content-Length: 0||"), 500, "\r\n\r\n"),
    ] {
        for target in ["/api/v1/labels", range] {
            let header = format!("x-test-response: HTTP/1.1 {response}\r\n");
            let answer = proxy.send("GET", target, &header);
            let is_right = answer.starts_with(&format!("HTTP/1.1 {status} "));
            assert!(is_right && answer.contains(wanted), "{target} {response}: {answer}");
            assert!(!answer.contains("gzip"), "{target} {response}: {answer}");
        }
    }
    let header = format!("x-test-response: HTTP/1.1 500 Oops|{ended}Content-Length: 9||\r\n");
    assert!(proxy.send("HEAD", "/api/v1/labels", &header).ends_with("\r\n\r\n"));
    proxy.proxy.stop().unwrap();
}

/// Before, it was 502 and a log line about the origin.
#[test]
fn a_body_that_is_malformed_is_the_clients_error() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = RunningProxy::start(&format!("http://{}", silent.local_addr().unwrap()), &[]);
    for chunk in ["zz\r\n", "3\r\nabcd", "3\nabc", "3 \r\nabc\r\n", "0\r\nA: b\n\r\n"] {
        let headers = format!("Transfer-Encoding: chunked\r\n\r\n{chunk}");
        let answer = proxy.send("POST", "/api/v1/write", &headers);
        let is_named = answer.contains("the body of the request was cut off");
        assert!(answer.starts_with("HTTP/1.1 400 ") && is_named, "{chunk:?}: {answer}");
    }
    proxy.proxy.stop().unwrap();
}

/// InfluxDB accepts changes as forms: a part of one may be another change, and a larger one.
#[test]
fn a_form_that_breaks_off_never_reaches_the_origin() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    // The first request that arrives.
    let first = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut request, mut byte) = (Vec::new(), [0]);
        while !request.ends_with(b"host='a'") && stream.read(&mut byte).unwrap() > 0 {
            request.extend_from_slice(&byte);
        }
        let answer = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
        stream.write_all(answer).unwrap();
        String::from_utf8(request).unwrap()
    });
    // The path takes statements that change the database.
    let flags = [("connections-max", "4"), ("proxy-paths", "/query")];
    let RunningProxy { proxy, _folder } = RunningProxy::start(&origin, &flags);
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let begun = chunk("q=DROP SERIES FROM cpu");
    // Between chunks, in the middle of one, and with one that is none.
    for (cut, stays) in [("", false), ("15\r\n WHERE ho", false), ("no length\r\n", true)] {
        let answer = post(&proxy, &format!("{begun}{cut}"), stays);
        let is_refused = answer.starts_with("HTTP/1.1 400 ") && answer.contains("was cut off");
        assert!(is_refused || (answer.is_empty() && !stays), "{cut:?}: {answer}");
    }
    let answer = post(&proxy, &format!("{begun}{}0\r\n\r\n", chunk(" WHERE host='a'")), true);
    let request = first.join().unwrap();
    assert!(request.contains("q=DROP SERIES FROM cpu WHERE host='a'"), "{request}");
    assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
    proxy.stop().unwrap();
}

/// Before, the parameter was in the file of the cache.
#[test]
fn no_file_has_the_parameters_of_a_query() {
    let origin = FakeOrigin::start();
    let RunningProxy { proxy, _folder: folder } =
        RunningProxy::start(&format!("http://{}", origin.address), &[]);
    let proxy = RunningProxy { proxy, _folder: tempfile::tempdir().unwrap() };
    let target = "/api/v1/query_range?query=up&start=1000&end=1000&step=15&authKey=PARAMSECRET";
    for result in ["miss", "hit"] {
        let answer = proxy.send("GET", target, "Authorization: Bearer HEADSECRET\r\n");
        assert!(answer.contains(&format!("x-firn-cache: {result}")), "{answer}");
    }
    proxy.proxy.stop().unwrap();
    let mut folders = vec![folder.path().to_owned()];
    let mut file_count = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            file_count += 1;
            let bytes = std::fs::read(&path).unwrap();
            for secret in ["PARAMSECRET", "HEADSECRET"] {
                let is_in = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
                assert!(!is_in, "{secret} is in {}", path.display());
            }
        }
    }
    assert!(file_count > 0);
}

/// Before, the header of one client reached the origin, and its status 417 another client.
#[test]
fn a_shared_answer_depends_on_no_header_outside_of_its_key() {
    let origin = FakeOrigin::start();
    let proxy = RunningProxy::start(&format!("http://{}", origin.address), &[]);
    let foreign = "Expect: nonsense\r\nUser-Agent: sqlmap\r\nReferer: x\r\nX-Request-ID: ../../x\r\n\
                   Accept-Language: xx\r\nVia: loop\r\ntraceparent: 00-abc-1\r\n";
    assert_eq!(proxy.ask(foreign), ("none".to_owned(), false));
    let head = origin.heads.lock().concat().to_lowercase();
    for name in
        ["expect:", "user-agent:", "referer:", "x-request-id:", "accept-language:", "via: loop"]
    {
        assert!(!head.contains(&format!("\r\n{name}")), "{name}: {head}");
    }
    assert!(head.contains("\r\ntraceparent: 00-abc-1\r\n"), "{head}");
    proxy.proxy.stop().unwrap();
}

/// Before, the origin received the request without the body.
#[test]
fn a_body_of_a_get_is_refused() {
    let origin = FakeOrigin::start();
    let proxy = RunningProxy::start(&format!("http://{}", origin.address), &[]);
    for method in ["GET", "HEAD"] {
        for body in
            ["Content-Length: 5\r\n\r\nq=1&a", "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"]
        {
            let answer = proxy.send(method, "/api/v1/labels", body);
            assert!(answer.starts_with("HTTP/1.1 400 "), "{method} {body:?}: {answer}");
        }
    }
    assert!(origin.lines().is_empty());
    assert!(proxy.send("GET", "/api/v1/labels", "Content-Length: 0\r\n").contains(" 200 "));
    proxy.proxy.stop().unwrap();
}

/// Before, an origin made the proxy keep 400 KiB for each of its clients.
#[test]
fn a_long_head_of_the_origin_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let heads = std::thread::spawn(move || {
        for header_count in [6, 40] {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4_096]).unwrap();
            let long = format!("X-Long: {}\r\n", "x".repeat(4_000)).repeat(header_count);
            let answer = format!("HTTP/1.1 200 OK\r\n{long}Connection: close\r\n\r\n{{}}");
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let proxy = RunningProxy::start(&origin, &[]);
    let answer = proxy.send("GET", "/api/v1/labels", "");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.len() > 24_000, "{answer}");
    let answer = proxy.send("GET", "/api/v1/labels", "");
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert!(answer.contains("message head is too large"), "{answer}");
    heads.join().unwrap();
    proxy.proxy.stop().unwrap();
}

/// Serves `answers`, one for each connection; returns the heads of the requests.
fn answering(answers: &'static [&'static str]) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let heads = std::thread::spawn(move || {
        let one = |answer: &&str| {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) > 0 {
                head.extend_from_slice(&byte);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(head).unwrap()
        };
        answers.iter().map(one).collect()
    });
    (origin, heads)
}

/// Before, a client believed the length and took a part of the body for the next answer.
#[test]
fn an_answer_has_the_length_of_its_body() {
    let (origin, heads) = answering(&[
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n\
         5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 30\r\nTransfer-Encoding: chunked\r\n\
         Content-Type: application/json\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\nConnection: close\r\n\r\nhello",
    ]);
    let proxy = RunningProxy::start(&origin, &[]);
    let query = "/api/v1/query_range?query=up&start=1000&end=1000&step=15";
    for target in ["/api/v1/labels", query, "/api/v1/labels"] {
        let answer = proxy.send("GET", target, "");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let is_chunked = head.contains("transfer-encoding: chunked");
        let body = if is_chunked {
            body.replace("5\r\nhello\r\n0\r\n\r\n", "hello")
        } else {
            body.to_owned()
        };
        assert_eq!(body, "hello", "{answer}");
        assert!(is_chunked || head.contains("content-length: 5\r\n"), "{answer}");
    }
    heads.join().unwrap();
    proxy.proxy.stop().unwrap();
}

/// Before, a read failed if the origin had closed the connection between two requests.
#[test]
fn a_read_is_repeated_on_a_new_connection_and_a_write_is_not() {
    let (origin, heads) =
        answering(&["", "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n", ""]);
    let proxy = RunningProxy::start(&origin, &[("proxy-paths", "/write")]);
    let answer = proxy.send("GET", "/api/v1/labels", "");
    assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
    let answer = proxy.send("POST", "/write", "Content-Length: 0\r\n");
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    let heads = heads.join().unwrap();
    assert!(heads[0] == heads[1] && heads[2].starts_with("POST "), "{heads:?}");
    proxy.proxy.stop().unwrap();
}

/// A forwarder to an address that is known later. It accepts 20 connections.
fn forwarder() -> (String, Arc<OnceLock<SocketAddr>>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let target = Arc::<OnceLock<SocketAddr>>::default();
    let known = Arc::clone(&target);
    let thread = std::thread::spawn(move || {
        for stream in listener.incoming().take(20) {
            let Some(target) = known.get() else { return };
            let (mut from, mut to) = (stream.unwrap(), TcpStream::connect(target).unwrap());
            let (mut back, mut answers) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut answers, &mut back);
                let _ = back.shutdown(Shutdown::Both);
            });
        }
    });
    (url, target, thread)
}

/// Before, one query through a proxy that was its own origin became hundreds in a second.
#[test]
fn a_request_that_comes_back_is_refused() {
    let (url, target, _thread) = forwarder();
    let first = RunningProxy::start(&url, &[]);
    let second = RunningProxy::start(&format!("http://{}", first.proxy.listens()[0]), &[]);
    let range = "/api/v1/query_range?query=up&start=1000&end=1000&step=15";
    // Through itself, and through another one.
    target.set(second.proxy.listens()[0]).unwrap();
    let wanted = format!("--proxy {url}/ leads back to this proxy: set it to the address");
    for path in ["/api/v1/labels", range, "/write"] {
        let method = if path == "/write" { "POST" } else { "GET" };
        let answer = first.send(method, path, "Via: 1.1 other\r\n");
        assert!(answer.starts_with("HTTP/1.1 508 "), "{path}: {answer}");
        assert!(answer.contains(&wanted), "{path}: {answer}");
    }
    assert!(first.send("GET", METRICS_PATH, "").contains("firn_proxy_refused_requests_total 3\n"));
    // Each would else wait for the request of the other one.
    let answers = std::thread::scope(|scope| {
        let both = [&first, &second].map(|proxy| scope.spawn(|| proxy.send("GET", range, "")));
        both.map(|thread| thread.join().unwrap())
    });
    for answer in answers {
        assert!(answer.starts_with("HTTP/1.1 508 "), "{answer}");
    }
    first.proxy.stop().unwrap();
    second.proxy.stop().unwrap();
}

/// The proxies before this one, and no name by which an origin could refuse a shared answer.
#[test]
fn the_origin_receives_the_proxies_of_a_request() {
    let origin = FakeOrigin::start();
    let proxy = RunningProxy::start(&format!("http://{}", origin.address), &[]);
    let before = "Via: 1.0 fred, 1.1 firn-0123456789abcdef\r\n";
    let vias = || {
        let heads = std::mem::take(&mut *origin.heads.lock()).concat();
        let vias = heads.lines().filter_map(|line| line.strip_prefix("via: "));
        let vias: Vec<String> = vias.map(str::to_owned).collect();
        assert!(vias.last().unwrap().starts_with("1.1 firn-"), "{vias:?}");
        vias
    };
    proxy.send("GET", "/api/v1/labels", before);
    let passed = vias();
    assert_eq!(passed[..passed.len() - 1], ["1.0 fred, 1.1 firn-0123456789abcdef"]);
    assert!(!proxy.ask(before).1);
    let fetched = vias();
    assert_eq!(fetched[..fetched.len() - 1], ["1.1 firn-0123456789abcdef"]);
    assert_eq!(passed.last(), fetched.last(), "it is the name of the process");
    assert!(proxy.ask("").1, "the way to the proxy does not matter");
    proxy.proxy.stop().unwrap();
}
