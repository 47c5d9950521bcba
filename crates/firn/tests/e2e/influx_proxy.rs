//! `firn cache --proxy` in front of a real InfluxDB: the same bytes, most of them without a request
//! to InfluxDB.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::http::{self, Answer, encode};
use crate::process::{Process, free_address, installed, wait_until_ready};

const METRICS: &str = "/-/cache/metrics";

fn start_influx(program: &Path, folder: &Path, address: SocketAddr) -> Process {
    let config = format!(
        "reporting-disabled = true\nbind-address = \"{}\"\n\
         [meta]\ndir = \"{folder}/meta\"\n\
         [data]\ndir = \"{folder}/data\"\nwal-dir = \"{folder}/wal\"\n\
         [http]\nbind-address = \"{address}\"\nlog-enabled = false\n\
         [monitor]\nstore-enabled = false\n",
        free_address(),
        folder = folder.join("influx").display(),
    );
    let file = folder.join("influxdb.conf");
    fs::write(&file, config).expect("a configuration file");
    let mut command = Command::new(program);
    command.arg("-config").arg(file);
    let process = Process::start("influxd", folder, &mut command);
    crate::process::wait_for("influxd", std::time::Duration::from_secs(60), || {
        http::get(address, "/ping").is_some_and(|answer| answer.status == 204)
    });
    process
}

fn start_proxy(folder: &Path, origin: SocketAddr, address: SocketAddr) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    // Every part, however small.
    command
        .args(["cache", "--size=64MiB", "--partial-bytes-min=0", "--proxy"])
        .arg(format!("http://{origin}"));
    command.arg("--data").arg(folder.join("cache")).arg("--listen").arg(address.to_string());
    let process = Process::start("cache", folder, &mut command);
    wait_until_ready(address, METRICS);
    process
}

fn query(address: SocketAddr, statement: &str, more: &str) -> Answer {
    let path = format!("/query?db=d&q={}{more}", encode(statement));
    http::get(address, &path).expect("an answer")
}

fn found(answer: &Answer) -> Option<&str> {
    answer.head.lines().find_map(|line| line.strip_prefix("x-firn-cache: ")).map(str::trim)
}

/// Three hours of three hosts up to now. One of them starts late, and one has a field of its own.
fn write(influx: SocketAddr, now_s: i64) {
    let created = http::request(influx, "POST", "/query?q=CREATE+DATABASE+d", &[], b"");
    assert_eq!(created.expect("an answer").status, 200);
    let mut lines = String::new();
    for ts in (now_s - 3 * 3_600..now_s).step_by(10) {
        for (host, from_s) in [("a", 0), ("b\\ c", now_s - 5_400), ("d", now_s - 9_000)] {
            let is_there = ts >= from_s && (host != "d" || (ts / 600) % 3 != 0);
            if is_there {
                let (load, count) = ((ts * 7) % 1_009, ts % 13);
                let extra = if host == "d" { ",extra=2.5" } else { "" };
                lines += &format!(
                    "cpu,host={host},dc=x load={load}.25,n={count}i{extra} {ts}000000000\n"
                );
            }
        }
    }
    let written = http::request(influx, "POST", "/write?db=d", &[], lines.as_bytes());
    assert_eq!(written.expect("an answer").status, 204);
}

#[test]
fn an_influxdb_responds_the_same_behind_the_proxy() {
    let Some(program) = installed("influxd") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let (influx_at, proxy_at) = (free_address(), free_address());
    let _influx = start_influx(&program, folder, influx_at);
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64;
    write(influx_at, now_s);
    let _proxy = start_proxy(folder, influx_at, proxy_at);

    let statements = [
        "SELECT mean(\"load\") FROM \"cpu\" WHERE $time GROUP BY time(1m), \"host\" fill(null)",
        "SELECT mean(load), count(n) AS \"how many\", max(extra) FROM cpu WHERE $time \
         GROUP BY time(30s), host, dc",
        "select sum(n), first(load), last(load), min(n), median(load), spread(n) from cpu \
         where host =~ /a|d/ and $time group by time(2m), host fill(none)",
        "SELECT count(extra) FROM cpu WHERE $time GROUP BY time(5m)",
        "SELECT sum(nothing) FROM cpu WHERE $time GROUP BY time(1m)",
    ];
    // Windows slide by odd amounts, so that the first and last buckets are cut; the last one ends
    // now.
    let minute = 60_000;
    let windows = [(170, 100), (165, 95), (175, 90), (175, 90), (100, 30), (100, 0), (98, 0)];
    let now_ms = now_s * 1_000;
    for statement in statements {
        for (idx, (from, to)) in windows.into_iter().enumerate() {
            let (start, end) = (now_ms - from * minute + 17, now_ms - to * minute + 4_321);
            let time = format!("time >= {start}ms and time <= {end}ms");
            let text = statement.replace("$time", &time);
            let epoch = if idx % 2 == 0 { "&epoch=ms" } else { "&epoch=s" };
            let (direct, proxied) = (query(influx_at, &text, epoch), query(proxy_at, &text, epoch));
            assert_eq!((direct.status, &direct.body), (proxied.status, &proxied.body), "{text}");
            // The third is cached in the middle only. One range is requested, so that the cached
            // part is not used.
            let wanted = if idx == 0 || idx == 2 { "miss" } else { "partial" };
            assert_eq!(found(&proxied), Some(wanted), "{text}, window {idx}");
        }
    }
    // A range of whole buckets is cached completely. A form is equivalent to a URL.
    let start = (now_s - 170 * 60) / 300 * 300 + 300;
    let text =
        statements[3].replace("$time", &format!("time >= {start}s and time < {}s", start + 3_000));
    let direct = query(influx_at, &text, "&epoch=ms");
    let form = format!("db=d&epoch=ms&q={}", encode(&text));
    let form_type = [("Content-Type", "application/x-www-form-urlencoded")];
    let post = http::request(proxy_at, "POST", "/query", &form_type, form.as_bytes());
    let post = post.expect("an answer");
    assert_eq!((found(&post), &post.body), (Some("hit"), &direct.body));

    // Everything else is forwarded: invalid statements, statements without an aggregate by time,
    // other spellings, and changes.
    let time = format!("time >= {}s AND time <= {now_s}s", now_s - 3_000);
    for (statement, more) in [
        (format!("SELECT mean(load) FROM cpu WHERE {time} GROUP BY time(1m)"), ""),
        (
            format!("SELECT mean(load) FROM cpu WHERE {time} GROUP BY time(1m)"),
            "&epoch=ms&pretty=true",
        ),
        (
            format!("SELECT mean(load) FROM cpu WHERE {time} GROUP BY time(1m) fill(previous)"),
            "&epoch=ms",
        ),
        (
            format!("SELECT derivative(mean(load)) FROM cpu WHERE {time} GROUP BY time(1m)"),
            "&epoch=ms",
        ),
        (format!("SELECT mean(load) FROM cpu WHERE {time} GROUP BY time(1m) LIMIT 2"), "&epoch=ms"),
        (format!("SELECT load FROM cpu WHERE {time} LIMIT 5"), "&epoch=ms"),
        ("SELECT mean(load) FROM".to_owned(), "&epoch=ms"),
        ("SHOW MEASUREMENTS".to_owned(), "&epoch=ms"),
    ] {
        let (direct, proxied) =
            (query(influx_at, &statement, more), query(proxy_at, &statement, more));
        assert_eq!((direct.status, &direct.body), (proxied.status, &proxied.body), "{statement}");
        assert_eq!(found(&proxied), None, "{statement}");
    }
    let written = http::request(proxy_at, "POST", "/write?db=d", &[], b"new v=1 1000000000");
    assert_eq!(written.expect("an answer").status, 204);
    assert!(query(influx_at, "SELECT v FROM new", "").body.contains("\"v\""));
}
