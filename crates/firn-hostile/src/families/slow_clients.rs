//! Clients that send or read slowly, or stop in the middle.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{base_s, query, range, write};
use crate::attack::{Attack, Family, attack, deaf, drip, hold, ok, script, status, written};
use crate::client::{Answer, CLOSED, Request, SILENT, first_answer, form, get, insist, post};
use crate::target::{Setup, Target};
use crate::wire::{Message, one_series, snappy};

pub(crate) fn family() -> Family {
    Family::new("slow", Setup::database(&["--query-timeout=5s"]))
        .because("a client that sends slowly costs a connection and nothing else", writers())
        .because("a client that does not read holds its own response and no more", readers())
        .because("an endless sender is cut off", endless())
}

const FORM: &str = "POST /api/v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\n\
                    Content-Type: application/x-www-form-urlencoded\r\n";

const PIPELINED: &str = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip\r\n\r\n";

fn writers() -> Vec<Attack> {
    let open = || status([SILENT, CLOSED, 400, 408]);
    let body = |length: usize| {
        format!(
            "POST /api/v1/write HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\nx"
        )
    };
    vec![
        attack("200 heads, a byte per 100 ms", drip(200, 100, 4, FORM), open()),
        attack(
            "200 bodies, a byte per 100 ms",
            script(|target| {
                let head = format!("{FORM}Content-Length: 1000\r\n\r\n");
                slow_bodies(target, &head, 200)
            }),
            open(),
        ),
        attack(
            "a head that stops is closed after its timeout",
            script(|target| {
                let Ok(mut connection) = target.connect() else { return Vec::new() };
                let _ = connection.write_all(b"GET /-/healthy HTTP/1.1\r\nHo");
                vec![first_answer(&mut connection, Duration::from_secs(18))]
            }),
            status([CLOSED, 400, 408]),
        ),
        attack(
            // Browsers and proxies connect ahead of their requests. It is idle: it makes room for
            // others, as the family of idle clients shows, and is closed after two minutes.
            "a silent connection is an idle one",
            script(|target| {
                let Ok(mut connection) = target.connect() else { return Vec::new() };
                vec![first_answer(&mut connection, Duration::from_secs(18))]
            }),
            status([SILENT]),
        ),
        attack(
            "300 heads without an end",
            hold(300, 2, "GET /-/healthy HTTP/1.1\r\nX: y\r\n"),
            open(),
        )
        .quick(),
        attack("60 bodies of 32 MiB of which a byte comes", hold(60, 3, body(32 << 20)), open())
            .quick(),
        attack("200 bodies of 1 MiB of which a byte comes", hold(200, 2, body(1 << 20)), open()),
        attack(
            "200 chunked bodies of which a byte comes",
            hold(
                200,
                2,
                "POST /api/v1/write HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
            ),
            open(),
        ),
        attack(
            "100 remote reads of which a byte comes",
            hold(
                100,
                2,
                "POST /api/v1/read HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 33554432\r\n\r\nx",
            ),
            open(),
        ),
        attack(
            "100 forms of which a byte comes",
            hold(100, 2, format!("{FORM}Content-Length: 10000000\r\n\r\nq")),
            open(),
        ),
        attack(
            "30 heads of 100 kB without an end",
            hold(30, 2, format!("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: {}", "x".repeat(100_000))),
            status([SILENT, CLOSED, 400, 408, 431]),
        ),
        attack(
            "writes beside 60 announced bodies",
            script(move |target| {
                let open: Vec<_> = (0..60)
                    .filter_map(|_| {
                        let mut connection = target.connect().ok()?;
                        connection.write_all(body(32 << 20).as_bytes()).ok()?;
                        Some(connection)
                    })
                    .collect();
                let answers = (0..20)
                    .map(|n: i64| {
                        let labels = [("__name__", "beside"), ("n", &n.to_string())];
                        write(one_series(&labels, &[(base_s() * 1_000, 1.0)])).send(target)
                    })
                    .collect();
                drop(open);
                answers
            }),
            written().within(10),
        )
        .quick(),
        attack(
            "a large write beside 8 large bodies that stop",
            script(move |target| {
                let begun = [body(32 << 20).into_bytes(), vec![b'x'; 200 << 10]].concat();
                let open: Vec<_> = (0..8)
                    .filter_map(|_| {
                        let mut connection = target.connect().ok()?;
                        connection.write_all(&begun).ok()?;
                        Some(connection)
                    })
                    .collect();
                let large = large_import();
                let patience = target.limit(Duration::from_secs(20));
                let answer = insist(patience, || large.send(target), 204);
                drop(open);
                vec![answer]
            }),
            written().within(40),
        ),
        attack(
            "queries and writes beside forms that end at a byte per second",
            script(trickles),
            status([200, 204]).within(30),
        )
        .quick(),
        attack(
            "a large write beside 40 clients that announce and stop, again and again",
            script(move |target| {
                let begun = [body(12 << 20).into_bytes(), vec![b'#'; 66 << 10]].concat();
                let done = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    for _ in 0..40 {
                        scope.spawn(|| {
                            while !done.load(Ordering::Relaxed) {
                                let Ok(mut connection) = target.connect() else { return };
                                let _ = connection.write_all(&begun);
                                let _ = first_answer(&mut connection, Duration::from_secs(2));
                            }
                        });
                    }
                    std::thread::sleep(Duration::from_secs(1));
                    let answer = large_import().send(target);
                    done.store(true, Ordering::Relaxed);
                    vec![answer]
                })
            }),
            written().within(30),
        ),
    ]
}

/// An import of 4 MB of nine series.
fn large_import() -> Request {
    post("/api/v1/import/prometheus").make(|| {
        let line = |n: usize| format!("large{{n=\"{}\",pad=\"{:01000}\"}} 1\n", n % 9, 0);
        (0..4_000).map(line).collect::<String>().into_bytes()
    })
}

/// Holds forms of which all but the end has come, more than there is memory for, and sends a query
/// and a write until both are accepted.
fn trickles(target: &Target) -> Vec<Answer> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for bytes in [9_800_000, 9_800_000, 9_800_000, 9_800_000, 4_000_000, 900_000].repeat(3) {
            let done = &done;
            scope.spawn(move || {
                let Ok(mut connection) = target.connect() else { return };
                let head = format!("{FORM}Content-Length: {}\r\n\r\n", bytes + 9_999);
                let _ = connection.write_all(&[head.as_bytes(), &vec![b'x'; bytes]].concat());
                while !done.load(Ordering::Relaxed) && connection.write_all(b"x").is_ok() {
                    std::thread::sleep(Duration::from_millis(500));
                }
            });
        }
        std::thread::sleep(Duration::from_secs(8));
        let line = write(one_series(&[("__name__", "beside")], &[(base_s() * 1_000, 1.0)]));
        let answers = vec![query("1").send(target), line.send(target)];
        done.store(true, Ordering::Relaxed);
        answers
    })
}

fn slow_bodies(target: &Target, head: &str, count: usize) -> Vec<Answer> {
    let mut open: Vec<_> = (0..count)
        .filter_map(|_| {
            let mut connection = target.connect().ok()?;
            connection.write_all(head.as_bytes()).ok()?;
            Some(connection)
        })
        .collect();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        for connection in &mut open {
            let _ = connection.write_all(b"q");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    open.into_iter().map(|_| Answer::of_status(SILENT)).collect()
}

fn readers() -> Vec<Attack> {
    let silent = || status([SILENT]);
    let read = || {
        let matcher = Message::default().bytes(2, "__name__").bytes(3, "load");
        let one = Message::default().varint(2, (base_s() * 1_000) as u64).message(3, matcher);
        post("/api/v1/read").body(snappy(Message::default().message(1, one).0))
    };
    vec![
        attack("60 clients with a response of 4 MB", deaf(60, 4, range("load", 20)), silent())
            .quick(),
        attack("200 clients with a response of 1 MB", deaf(200, 3, query("load")), silent()),
        attack(
            "60 clients with a federation",
            deaf(60, 3, get("/federate?match[]=load")),
            silent(),
        ),
        attack(
            "60 clients with a list of series",
            deaf(60, 3, form("/api/v1/series", [("match[]", "load")])),
            silent(),
        ),
        attack("60 clients with a remote read", deaf(60, 3, read()), silent()),
        attack("100 clients with metrics", deaf(100, 2, get("/metrics")), silent()),
        attack(
            "12 clients with 2,000 requests for metrics in a row",
            hold(12, 4, PIPELINED.repeat(2_000)),
            status([200, SILENT, CLOSED]),
        )
        .quick(),
        // More than there are places before admission, which metrics do not need.
        attack(
            "200 clients with 500 requests for metrics in a row",
            hold(200, 4, PIPELINED.repeat(500)),
            status([200, SILENT, CLOSED]),
        )
        .quick(),
        attack(
            "60 clients with a compressed response",
            deaf(60, 3, range("load", 20).header("Accept-Encoding", "gzip")),
            silent(),
        ),
        attack(
            "60 clients with TSDB status",
            deaf(60, 2, get("/api/v1/status/tsdb?limit=10000")),
            silent(),
        ),
        attack(
            "queries beside 60 deaf clients",
            script(|target| {
                let bytes = range("load", 20).encode(target);
                let open: Vec<_> = (0..60)
                    .filter_map(|_| {
                        let mut connection = target.connect().ok()?;
                        connection.write_all(&bytes).ok()?;
                        Some(connection)
                    })
                    .collect();
                std::thread::sleep(Duration::from_secs(1));
                let answers = (0..10).map(|_| query("sum(load)").send(target)).collect();
                drop(open);
                answers
            }),
            status([200, 422, 429, 500, 503]).within(15),
        )
        .quick(),
        attack(
            "a pipeline of 1,000 queries without a reader",
            script(|target| {
                let one = "GET /api/v1/query?query=load HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
                let Ok(mut connection) = target.connect() else { return Vec::new() };
                let _ = connection.write_all(one.repeat(1_000).as_bytes());
                std::thread::sleep(Duration::from_secs(3));
                vec![query("1").send(target)]
            }),
            ok(),
        )
        .quick(),
        attack(
            "a reader of 10 bytes per second is cut off or served",
            script(|target| {
                use std::io::Read;
                let Ok(mut connection) = target.connect() else { return Vec::new() };
                let _ = connection.write_all(&range("load", 20).encode(target));
                let mut byte = [0; 10];
                for _ in 0..40 {
                    let _ = connection.read(&mut byte);
                    std::thread::sleep(Duration::from_millis(100));
                }
                vec![query("1").send(target)]
            }),
            ok(),
        ),
    ]
}

fn endless() -> Vec<Attack> {
    vec![
        attack("chunks without an end", script(|target| {
            let Ok(mut connection) = target.connect() else { return Vec::new() };
            let _ = connection.write_all(b"POST /api/v1/write HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n");
            let mut chunk = b"100000\r\n".to_vec();
            chunk.extend_from_slice(&vec![b'a'; 1 << 20]);
            chunk.extend_from_slice(b"\r\n");
            for _ in 0..200 {
                if connection.write_all(&chunk).is_err() {
                    break;
                }
            }
            vec![first_answer(&mut connection, target.limit(Duration::from_secs(5)))]
        }), status([413, 429, CLOSED])).quick(),
        attack("a head without an end", script(|target| {
            let Ok(mut connection) = target.connect() else { return Vec::new() };
            let _ = connection.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n");
            for _ in 0..200_000 {
                if connection.write_all(b"X: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n").is_err() {
                    break;
                }
            }
            vec![first_answer(&mut connection, target.limit(Duration::from_secs(5)))]
        }), status([431, 400, CLOSED])),
    ]
}
