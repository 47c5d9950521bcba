//! Around the API: the page, health, HTTP errors, start, stop, a folder in use.

use std::io::{Read, Write};
use std::time::Duration;

use crate::client::{api, get, import, send};
use crate::{Running, start_in, wait_until};

#[test]
fn pages_and_health_answer() {
    let server = Running::start(&[]);
    let at = server.at();
    let page = get(at, "/");
    assert!(page.status == 200 && page.text().contains("FirnDB"));
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    for path in ["/-/healthy", "/-/ready"] {
        assert_eq!(get(at, path).status, 200);
        let head = send(at, "HEAD", path, &[], b"");
        assert!(head.status == 200 && head.body.is_empty());
    }
    let metrics = get(at, "/metrics");
    assert_eq!(metrics.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    assert!(metrics.text().contains("firn_build_info{version=\""));
    let build = api(at, "status/buildinfo", &[]);
    assert!(build["version"].as_str().is_some_and(|version| version.starts_with("3.")), "{build}");
}

#[test]
fn unknown_paths_and_methods_get_plain_text_errors() {
    let server = Running::start(&[]);
    let at = server.at();
    let missing = get(at, "/api/v1/nothing");
    assert_eq!((missing.status, missing.text().as_str()), (404, "404 page not found\n"));
    assert!(missing.header("content-type").starts_with("text/plain"));
    let wrong = send(at, "DELETE", "/api/v1/query", &[], b"");
    assert_eq!(wrong.status, 405);
    assert_eq!(wrong.header("allow"), "GET, HEAD, OPTIONS, POST");
    assert_eq!(wrong.text(), "Method Not Allowed\n");
    assert!(wrong.header("content-type").starts_with("text/plain"));
    assert_eq!(send(at, "PUT", "/api/v1/write", &[], b"").header("allow"), "OPTIONS, POST");
    assert_eq!(send(at, "POST", "/-/healthy", &[], b"").header("allow"), "GET, HEAD");
    assert_eq!(send(at, "POST", "/api/v1/metadata", &[], b"").status, 405);
}

#[test]
fn other_origins_and_packed_answers() {
    let server = Running::start(&["--cors-origin=.*"]);
    let at = server.at();
    let plain = get(at, "/metrics");
    assert!(plain.headers.iter().any(|(name, value)| name == "vary" && value == "Origin"));
    assert_eq!(plain.header("access-control-allow-origin"), "");
    let origin = [("Origin", "http://grafana"), ("Accept-Encoding", "deflate, gzip")];
    let packed = send(at, "GET", "/metrics", &origin, b"");
    assert_eq!(packed.header("access-control-allow-origin"), "http://grafana");
    assert_eq!(packed.header("access-control-allow-methods"), "GET, POST, OPTIONS");
    assert_eq!(packed.header("content-encoding"), "gzip");
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed.body.as_slice()).read_to_string(&mut text).expect("gzip");
    assert!(
        text.contains("firn_http_requests_total{handler=\"/metrics\",code=\"200\"} 1\n"),
        "{text}"
    );
    let allowed = "Accept, Authorization, Content-Type, Origin";
    assert_eq!(packed.header("access-control-allow-headers"), allowed);
    assert_eq!(packed.header("access-control-expose-headers"), "Date");
    for path in ["/api/v1/query", "/api/v1/label/x/values", "/api/v1/nothing"] {
        let preflight = send(at, "OPTIONS", path, &origin[..1], b"");
        assert_eq!((preflight.status, preflight.body.len()), (204, 0));
        assert_eq!(preflight.header("access-control-allow-origin"), "http://grafana");
    }
    assert_eq!(send(at, "OPTIONS", "/metrics", &[], b"").status, 405);
}

#[test]
fn only_origins_that_match_may_read() {
    let server = Running::start(&["--cors-origin=https?://(a|b)\\.example"]);
    let f = |origin: &str, allowed: &str| {
        let answer = send(server.at(), "GET", "/api/v1/query?query=1", &[("Origin", origin)], b"");
        assert_eq!(answer.header("access-control-allow-origin"), allowed, "{origin}");
        assert!(answer.headers.iter().any(|(name, value)| name == "vary" && value == "Origin"));
    };
    f("http://a.example", "http://a.example");
    f("https://b.example", "https://b.example");
    f("http://a.example.evil", "");
    f("http://c.example", "");
}

#[test]
fn answers_are_packed_as_the_client_likes_best() {
    let server = Running::start(&[]);
    let ask = |accepted: &str| {
        let headers = [("Accept-Encoding", accepted)];
        send(server.at(), "GET", "/api/v1/query?query=vector(time())%5B10h%3A5s%5D", &headers, b"")
    };
    let plain = ask("identity");
    assert_eq!(plain.header("content-encoding"), "");
    let vary = |answer: &crate::client::Answer| {
        answer.headers.iter().any(|(name, value)| name == "vary" && value == "Accept-Encoding")
    };
    assert!(vary(&plain) && plain.status == 200, "{}", plain.text());
    for (accepted, coding) in [
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip, deflate", "gzip"),
        ("deflate, gzip;q=0.5", "deflate"),
    ] {
        let packed = ask(accepted);
        assert_eq!(packed.header("content-encoding"), coding);
        assert!(vary(&packed));
        assert!(packed.body.len() < plain.body.len() / 3, "{coding}: {}", packed.body.len());
        let mut unpacked = Vec::new();
        let read = match coding {
            "zstd" => {
                zstd::Decoder::new(packed.body.as_slice()).expect("zstd").read_to_end(&mut unpacked)
            }
            "gzip" => {
                flate2::read::GzDecoder::new(packed.body.as_slice()).read_to_end(&mut unpacked)
            }
            _ => flate2::read::ZlibDecoder::new(packed.body.as_slice()).read_to_end(&mut unpacked),
        };
        read.expect("packed well");
        assert!(unpacked.starts_with(br#"{"status":"success","data":{"resultType":"matrix""#));
    }
}

#[test]
fn input_that_is_not_http_is_harmless() {
    let server = Running::start(&["--connections-max=2"]);
    for junk in [&b"\x16\x03\x01\x02\x00"[..], b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b""] {
        let mut stream = std::net::TcpStream::connect(server.at()).expect("a connection");
        let _ = stream.write_all(junk);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
    }
    // More connections than are open at one time: the rest wait their turn.
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let at = server.at();
            std::thread::spawn(move || get(at, "/-/healthy").status)
        })
        .collect();
    assert!(threads.into_iter().all(|thread| thread.join().expect("no panic") == 200));
}

#[test]
fn data_is_there_after_a_clean_stop() {
    let mut server = Running::start(&[]);
    import(server.at(), "kept{x=\"1\"} 1.25 1700000000000\n");
    server.restart(&[]);
    let data = api(server.at(), "query", &[("query", "kept"), ("time", "1700000000")]);
    assert_eq!(data["result"][0]["value"][1], "1.25");
    import(server.at(), "kept{x=\"1\"} 2 1700000001000\n");
    let data = api(server.at(), "query", &[("query", "kept[1m]"), ("time", "1700000002")]);
    assert_eq!(data["result"][0]["values"].as_array().expect("two").len(), 2);
}

/// The second server listens, because it does so before the database is open, and reports that it
/// is not ready; opening fails with the folder's name.
#[test]
fn a_second_server_on_the_folder_is_refused_and_never_ready() {
    let first = Running::start(&[]);
    let mut second = start_in(&first.folder, &[]);
    let refused = second.wait_until_ready(Duration::from_secs(60));
    let refused = refused.expect_err("the folder is in use").to_string();
    assert!(refused.contains("is open in another process"), "{refused}");
    assert!(refused.contains(&first.folder.path().display().to_string()), "{refused}");
    let at = second.listen();
    assert_eq!(get(at, "/-/healthy").status, 200);
    for path in ["/-/ready", "/api/v1/query?query=1", "/api/v1/labels"] {
        let answer = get(at, path);
        assert_eq!(answer.status, 503);
        assert!(answer.text().starts_with("Service Unavailable: starting"), "{}", answer.text());
    }
    assert_eq!(send(at, "POST", "/api/v1/write", &[], b"").status, 503);
    assert_eq!(send(at, "POST", "/api/v1/import/prometheus", &[], b"a 1").status, 503);
    let started = r#"{"current":0,"max":0,"min":0,"percent":0.0,"secondsLeft":null}"#;
    assert_eq!(api(at, "status/walreplay", &[]).to_string(), started);
    assert!(get(at, "/metrics").text().contains("firn_ready 0\n"));
    second.stop().expect("nothing to lose");
}

/// Limits are for the data of others: with the strictest ones the server still shows itself, under
/// its own name.
#[test]
fn limits_on_series_do_not_concern_its_own_metrics() {
    // Longer than a label of others may be.
    let job = "me".repeat(40);
    let job_flag = format!("--self-scrape-job={job}");
    let server = Running::start(&[
        "--self-scrape=100ms",
        job_flag.as_str(),
        "--series-max=1",
        "--series-per-metric-max=1",
        "--series-per-group-max=1",
        "--new-series-per-second-max=1",
        "--label-count-max=8",
        "--label-name-bytes-max=64",
        "--label-value-bytes-max=64",
    ]);
    let query = format!("count by (job) ({{job=\"{job}\",__name__=~\"firn_.*\"}}) > 100");
    wait_until("its own series are within the limits", || {
        api(server.at(), "query", &[("query", &query)])["result"][0]["metric"]["job"] == job
    });
    // The outcome of a scrape is stored after its samples.
    let target = || api(server.at(), "targets", &[])["activeTargets"][0].clone();
    wait_until("the target is up", || target()["health"] == "up");
    assert_eq!(target()["labels"]["job"], job, "{}", target());
    // They count: others have no room. The limits of labels are for them too.
    let import =
        |text: String| send(server.at(), "POST", "/api/v1/import/prometheus", &[], text.as_bytes());
    let nine: Vec<String> = ('a'..='h').map(|name| format!("{name}=\"1\"")).collect();
    for (text, status) in [
        ("m 1\n".to_owned(), 429),
        ("{\"m\"} 1\n".to_owned(), 429),
        (format!("m{{job=\"{job}\"}} 1\n"), 400),
        (format!("{} 1\n", "m".repeat(65)), 400),
        (format!("m{{{}}} 1\n", nine.join(",")), 400),
    ] {
        let other = import(text.clone());
        assert_eq!(other.status, status, "{text}: {}", other.text());
    }
}

#[test]
fn it_scrapes_itself_from_the_first_second() {
    let server = Running::start(&["--self-scrape=1h"]);
    let query = format!("up{{job=\"firndb-self\",instance=\"{}\"}}", server.at());
    wait_until("it has a sample of its own", || {
        api(server.at(), "query", &[("query", &query)])["result"][0]["value"][1] == "1"
    });
    // Metadata is stored after the samples.
    let metric = "firn_engine_written_samples_total";
    wait_until("the type of a metric is known", || {
        api(server.at(), "metadata", &[("metric", metric)])[metric][0]["type"] == "counter"
    });
}
