//! Idle connections, up to and beyond every limit.

use std::time::Duration;

use super::query;
use crate::attack::{Attack, Family, attack, hold, ok, script, status};
use crate::client::{CLOSED, SILENT, first_answer, get};
use crate::dial::Connection;
use crate::target::Setup;

pub(crate) fn family() -> Family {
    Family::new("idle", Setup::database(&["--connections-max=64", "--query-timeout=5s"]).empty())
        .because("health and metrics answer beyond the limit of connections", beyond())
        .because("a connection costs little, and is free again at once", many())
}

fn beyond() -> Vec<Attack> {
    let open = || status([SILENT, CLOSED, 408]);
    vec![
        attack("70 silent connections", hold(70, 3, ""), open()),
        attack("300 silent connections", hold(300, 3, ""), open()).quick(),
        attack(
            "70 connections that have sent a request",
            hold(70, 3, "GET /-/healthy HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
            open().or(200),
        ),
        attack(
            "70 connections with half a head",
            hold(70, 3, "GET /-/healthy HTTP/1.1\r\nHo"),
            open(),
        ),
        attack(
            "70 connections with half a body",
            hold(
                70,
                3,
                "POST /api/v1/write HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\nx",
            ),
            open(),
        ),
        attack(
            "a query beside 300 silent connections",
            script(|target| {
                let open: Vec<_> = (0..300).filter_map(|_| target.connect().ok()).collect();
                std::thread::sleep(Duration::from_millis(500));
                let answers = vec![
                    query("1").send(target),
                    get("/-/healthy").send(target),
                    get("/metrics").send(target),
                ];
                drop(open);
                answers
            }),
            ok().within(5),
        )
        .quick(),
    ]
}

fn many() -> Vec<Attack> {
    vec![
        attack(
            "3,000 connections one after another",
            script(|target| {
                for _ in 0..3_000 {
                    drop(target.connect());
                }
                vec![query("1").send(target)]
            }),
            ok(),
        )
        .quick(),
        attack(
            "1,000 connections that are reset",
            script(|target| {
                for _ in 0..1_000 {
                    if let Ok(stream) = target.connect_plain() {
                        // Data that the server sends to a closed socket resets the connection.
                        use std::io::Write;
                        let _ = (&stream)
                            .write_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
                        let _ = stream.shutdown(std::net::Shutdown::Read);
                    }
                }
                vec![query("1").send(target)]
            }),
            ok(),
        ),
        attack(
            "half-closed connections",
            script(|target| {
                (0..50)
                    .flat_map(|_| {
                        let Ok(stream) = target.connect_plain() else { return Vec::new() };
                        use std::io::Write;
                        let _ = (&stream)
                            .write_all(b"GET /-/healthy HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
                        let _ = stream.shutdown(std::net::Shutdown::Write);
                        let mut stream: Box<dyn Connection> = Box::new(stream);
                        vec![first_answer(&mut stream, Duration::from_secs(20))]
                    })
                    .collect()
            }),
            status([200, CLOSED]),
        ),
    ]
}
