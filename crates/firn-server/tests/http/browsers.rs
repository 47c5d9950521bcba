//! Requests that a web page can make a browser send, to every route of the server: method, content
//! type, `Origin`, `Sec-Fetch-*` and `Host`. None of a foreign page writes or is answered readably.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use crate::Running;
use crate::client::{Answer, api, get, import, send};

/// Every path in the source of the routes: a new route is in the table by itself.
fn routes() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http");
    let mut paths = BTreeSet::new();
    for entry in std::fs::read_dir(folder).expect("the source") {
        let path = entry.expect("a file").path();
        let text = std::fs::read_to_string(path).unwrap_or_default();
        for part in text.split(".route(").skip(1) {
            let Some((_, path)) = part.split_once("\"/") else { continue };
            let path = path.split('"').next().expect("a path");
            if !path.contains("..") {
                let path = path.replace("{name}", "job").replace("{group}", "1");
                paths.insert(format!("/{path}"));
            }
        }
    }
    assert!(paths.len() > 40, "{paths:?}");
    paths
}

/// Every request of a foreign page: it may write nothing, and reads nothing.
#[test]
fn foreign_pages_reach_no_route() {
    let server = Running::start(&["--enable-admin-api", "--enable-lifecycle"]);
    let at = server.at();
    import(at, "a{n=\"1\"} 1 1000\n");
    let own = format!("http://{at}");
    let foreign: [&[(&str, &str)]; 7] = [
        &[("Origin", "http://evil.example")],
        &[("Origin", "http://evil.example"), ("Sec-Fetch-Site", "cross-site")],
        &[("Origin", "null"), ("Sec-Fetch-Site", "cross-site")],
        &[("Origin", "http://localhost:3000"), ("Sec-Fetch-Site", "same-site")],
        &[("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")],
        &[("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Mode", "no-cors")],
        &[("Origin", &own), ("Sec-Fetch-Site", "cross-site")],
    ];
    // Those that need no preflight, those that do, and none.
    let types = ["text/plain", "application/x-www-form-urlencoded", "application/json", ""];
    for path in routes() {
        for headers in foreign {
            for method in ["POST", "PUT", "DELETE", "PATCH"] {
                for content_type in types {
                    let mut headers = headers.to_vec();
                    if !content_type.is_empty() {
                        headers.push(("Content-Type", content_type));
                    }
                    let answer = send(at, method, &path, &headers, b"");
                    assert_refused(&answer, 403, &format!("{method} {path} {headers:?}"));
                }
            }
            let answer = send(at, "GET", &path, headers, b"");
            let case = format!("GET {path} {headers:?}");
            assert_eq!(answer.header("access-control-allow-origin"), "", "{case}");
            let is_measurable = !headers.contains(&("Sec-Fetch-Site", "cross-site"));
            assert!(is_measurable || answer.status == 403, "{case}: {}", answer.status);
            assert_protected(&answer, &case);
        }
        for origin in ["http://evil.example", "null"] {
            let preflight = [("Origin", origin), ("Access-Control-Request-Method", "POST")];
            let answer = send(at, "OPTIONS", &path, &preflight, b"");
            assert_refused(&answer, 403, &format!("OPTIONS {path} {origin}"));
        }
    }
    let data = api(at, "query", &[("query", "count_over_time(a[1h])"), ("time", "100")]);
    assert_eq!(data["result"][0]["value"][1], "1", "nothing was written or deleted: {data}");
    assert_eq!(get(at, "/-/healthy").status, 200, "nothing stopped the server");
    let metrics = get(at, "/metrics").text();
    let refused = "firn_http_guard_refused_requests_total{rule=\"origin\"} ";
    assert!(metrics.contains(refused) && !metrics.contains(&format!("{refused}0\n")), "{metrics}");
}

/// A page whose name was bound to the loopback address after it was loaded: for the browser it is
/// of the same origin.
#[test]
fn a_rebound_name_reaches_no_route() {
    let server = Running::start(&[]);
    let at = server.at();
    let rebound = |method: &str, path: &str, host: &str| {
        let mut stream = TcpStream::connect(at).expect("a connection");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n\
             Sec-Fetch-Site: same-origin\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("a text");
        text
    };
    for path in routes() {
        for host in ["evil.example", "evil.example:9420", "0.0.0.0", "127.0.0.1.evil.example"] {
            for method in ["GET", "POST", "OPTIONS"] {
                let answer = rebound(method, &path, host);
                assert!(answer.starts_with("HTTP/1.1 421 "), "{method} {path} {host}: {answer}");
                assert!(answer.contains("--allowed-hosts"), "{answer}");
            }
        }
    }
    for host in ["localhost", "localhost:1", "127.0.0.1", "[::1]:9420", &at.to_string()] {
        assert!(rebound("GET", "/-/healthy", host).starts_with("HTTP/1.1 200 "), "{host}");
    }
    let named = Running::start(&["--allowed-hosts=db.example"]);
    let headers = [("Host", "db.example")];
    // The test's client sends a Host of its own: two are refused.
    assert_eq!(send(named.at(), "GET", "/-/healthy", &headers, b"").status, 400);
}

/// Prometheus, Grafana, curl and the built-in page work as before.
#[test]
fn programs_and_the_own_page_are_not_refused() {
    let server = Running::start(&["--cors-origin=https://grafana\\.example"]);
    let at = server.at();
    let own = format!("http://{at}");
    let page = [("Origin", own.as_str()), ("Sec-Fetch-Site", "same-origin")];
    let typed = [("Sec-Fetch-Site", "none"), ("Sec-Fetch-Mode", "navigate")];
    let link = [
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Mode", "navigate"),
        ("Sec-Fetch-Dest", "document"),
    ];
    let grafana = [("Origin", "https://grafana.example"), ("Sec-Fetch-Site", "cross-site")];
    let text = ("Content-Type", "text/plain");
    for headers in [&[][..], &page, &[text], &grafana] {
        let path = "/api/v1/import/prometheus";
        let answer = send(at, "POST", path, headers, b"up 1 1000\n");
        assert_eq!(answer.status, 204, "{headers:?}: {}", answer.text());
        assert_protected(&answer, "a write");
    }
    for headers in [&[][..], &page, &typed, &link, &grafana] {
        let answer = send(at, "GET", "/api/v1/query?query=1", headers, b"");
        assert_eq!(answer.status, 200, "{headers:?}");
        let allowed = if headers == grafana { "https://grafana.example" } else { "" };
        assert_eq!(answer.header("access-control-allow-origin"), allowed);
    }
    let preflight = [grafana[0], ("Access-Control-Request-Method", "POST")];
    let answer = send(at, "OPTIONS", "/api/v1/query", &preflight, b"");
    assert_eq!((answer.status, answer.body.len()), (204, 0));
    assert_eq!(answer.header("access-control-allow-origin"), "https://grafana.example");
}

/// Input in a response is never run.
#[test]
fn reflected_input_is_data() {
    let server = Running::start(&[]);
    let script = "%3Cscript%3Ealert(1)%3C/script%3E";
    for target in [
        format!("/api/v1/query?query={script}"),
        format!("/api/v1/query?query=1&callback=alert&jsonp=alert&time={script}"),
        format!("/api/v1/label/{script}/values"),
        format!("/federate?match[]={script}"),
        format!("/{script}"),
        format!("/api/v1/series?match[]={script}"),
    ] {
        let answer = get(server.at(), &target);
        assert_protected(&answer, &target);
        let kind = answer.header("content-type");
        assert!(kind == "application/json" || kind.starts_with("text/plain"), "{target}: {kind}");
        assert!(!answer.text().starts_with("alert("), "{target}");
    }
    let page = get(server.at(), "/");
    let policy = page.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_protected(&page, "/");
}

/// The lines of `firn cache`, sent to the database.
#[test]
fn cache_commands_are_no_requests() {
    let server = Running::start(&[]);
    for lines in [
        "set k 0 0 9 json 9\r\n[[5,\"a\"]]\r\n",
        "get k 0 0 9 json\r\n",
        "auth token\r\nversion\r\n",
        "delete k 0 0 9 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(server.at()).expect("a connection");
        stream.write_all(lines.as_bytes()).expect("sent");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{lines}: {answer}");
    }
}

fn assert_refused(answer: &Answer, status: u16, case: &str) {
    assert_eq!(answer.status, status, "{case}: {}", answer.text());
    assert!(answer.text().contains("--cors-origin"), "{case}: {}", answer.text());
    assert_eq!(answer.header("access-control-allow-origin"), "", "{case}");
    assert_protected(answer, case);
}

fn assert_protected(answer: &Answer, case: &str) {
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        assert_eq!(answer.header(name), value, "{case}: {name}");
    }
    let policy = answer.header("content-security-policy");
    assert!(policy.contains("frame-ancestors 'none'"), "{case}: {policy}");
}
