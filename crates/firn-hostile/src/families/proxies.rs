//! `firn cache --proxy`: paths, headers and answers between clients and the origin.

use std::time::Duration;

use super::origin::{ESCAPED, PASSWORD, PREFIX};
use crate::attack::{
    Attack, Expect, Family, attack, deaf, drip, flood, hold, ok, raw, script, status,
};
use crate::client::{Answer, CLOSED, Request, SILENT, form, get, post, request};
use crate::target::{Setup, Target};

pub(crate) fn family() -> Family {
    let setup = Setup::proxy(&["--size=64MiB", "--answer-bytes-max=4MiB", "--connections-max=64"]);
    Family::new("proxy", setup)
        .because("a request stays below the path of the origin", escapes())
        .because("the key of an answer contains every header that was forwarded", keys())
        .because("admin and writing paths are not forwarded unless allowed", paths())
        .because("the credentials of the proxy are shown nowhere", secrets())
        .because("a failing origin is reported, and delays only those that wait for it", origins())
        .because("memory grows with the answers, not with the sets of equal ones", equal_points())
        .because("a slow client costs a connection and nothing else", clients())
        .because("a browser's page is as foreign here as at the database", browsers())
}

const RANGE: &str = "/api/v1/query_range?query=up&start=1700000000&end=1700003600&step=60";

/// No request has left the prefix.
fn inside(_: &[Answer], target: &Target) -> Result<(), String> {
    let origin = target.origin.as_ref().ok_or("no origin")?;
    let requests = origin.take_requests();
    let path = |head: &String| head.split(' ').nth(1).unwrap_or_default().to_owned();
    let outside = requests.iter().map(path).find(|path| {
        let lower = path.to_ascii_lowercase();
        !path.starts_with(&format!("{PREFIX}/")) || lower.contains("..") || lower.contains("%2e")
    });
    outside.map_or(Ok(()), |path| Err(format!("the origin received {path}")))
}

fn escapes() -> Vec<Attack> {
    let paths = [
        "/../admin/x",
        "/api/v1/../../admin/x",
        "/%2e%2e/admin/x",
        "/%2E%2E/admin/x",
        "/.%2e/admin/x",
        "/api/v1/%2e%2e/%2e%2e/admin",
        "/..%2fadmin/x",
        "/..%5cadmin/x",
        "/..\\admin/x",
        "/api/v1/..;/admin",
        "/./../admin",
        "/%252e%252e/admin",
        "//evil.example/x",
        "/api/v1/query/../../../admin",
        "/../tenant-b/api/v1/query?query=up",
        "/..",
        "/.",
        "/api/v1/query%00/../admin",
        "/api/v1/query_range/..?query=up",
    ];
    let mut attacks: Vec<Attack> = paths
        .iter()
        .map(|path| {
            let expect = status([200, 400, 403, 404, 405, 421]).lacks(ESCAPED).check(inside);
            attack(format!("the path {path}"), get(*path), expect).quick()
        })
        .collect();
    attacks.push(attack(
        "an absolute URL of another server",
        get("http://127.0.0.1:1/api/v1/query"),
        status([200, 400, 403, 404, 421]).lacks(ESCAPED).check(inside),
    ));
    attacks.push(attack(
        "a CONNECT",
        request("CONNECT", "127.0.0.1:22"),
        status([400, 403, 404, 405, CLOSED]).check(inside),
    ));
    attacks
}

/// The answer is that of the tenant that the origin saw.
fn tenant(name: &'static str) -> Expect {
    ok().check(move |answers, _| {
        let wanted = format!("\"tenant\":\"{name}\"");
        match answers.iter().find(|answer| !answer.text().contains(&wanted)) {
            Some(answer) => Err(format!("expected tenant {name}: {}", answer.excerpt())),
            None => Ok(()),
        }
    })
}

fn keys() -> Vec<Attack> {
    // The attacker's request first, then the victim's, which must not get the attacker's answer.
    let poison = |attacker: fn() -> Request, victim: &'static str| {
        script(move |target| {
            attacker().send(target);
            std::thread::sleep(Duration::from_millis(50));
            vec![get(RANGE).header("X-Scope-OrgID", victim).send(target)]
        })
    };
    vec![
        attack(
            "a connection header that removes the tenant",
            poison(
                || {
                    get(RANGE)
                        .header("X-Scope-OrgID", "a")
                        .header("Connection", "close, X-Scope-OrgID")
                },
                "a",
            ),
            tenant("a"),
        )
        .quick(),
        attack(
            "the same with other case",
            poison(
                || get(RANGE).header("X-Scope-OrgID", "b").header("Connection", "x-scope-orgid"),
                "b",
            ),
            tenant("b"),
        ),
        attack(
            "the same in a second connection header",
            poison(
                || {
                    get(RANGE)
                        .header("X-Scope-OrgID", "c")
                        .header("Connection", "close")
                        .header("Connection", "X-Scope-OrgID")
                },
                "c",
            ),
            tenant("c"),
        ),
        attack(
            "a connection header that removes the credentials",
            poison(
                || {
                    get(RANGE)
                        .header("X-Scope-OrgID", "d")
                        .header("Authorization", "Bearer d")
                        .header("Connection", "Authorization, X-Scope-OrgID")
                },
                "d",
            ),
            tenant("d"),
        ),
        attack(
            "a tenant in a proxy header",
            poison(
                || {
                    get(RANGE)
                        .header("Proxy-Authorization", "Basic eDp5")
                        .header("X-Scope-OrgID", "other")
                },
                "e",
            ),
            tenant("e"),
        ),
        attack(
            "two tenants",
            poison(
                || get(RANGE).header("X-Scope-OrgID", "f").header("X-Scope-OrgID", "other"),
                "f",
            ),
            tenant("f"),
        ),
        attack(
            "no tenant after one",
            script(|target| {
                get(RANGE).header("X-Scope-OrgID", "g").send(target);
                vec![get(RANGE).send(target)]
            }),
            tenant("none"),
        )
        .quick(),
        attack(
            "100 clients of two tenants at once",
            script(|target| {
                let of = |tenant: &'static str| {
                    let path = RANGE.replace("query=up", "query=both");
                    get(path).header("X-Scope-OrgID", tenant).send(target)
                };
                std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..100)
                        .map(|n| {
                            scope.spawn(move || {
                                let wanted = if n % 2 == 0 { "even" } else { "odd" };
                                let answer = of(wanted);
                                // The check sees only answers of the wrong tenant.
                                if answer.text().contains(&format!("\"tenant\":\"{wanted}\"")) {
                                    Answer::of_status(200)
                                } else {
                                    answer
                                }
                            })
                        })
                        .collect();
                    threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
                })
            }),
            ok().lacks("tenant"),
        ),
        attack(
            "a query in the URL and another in the form",
            script(|target| {
                let request = || form(RANGE, [("query", "other")]).header("X-Scope-OrgID", "h");
                vec![request().send(target), request().send(target)]
            }),
            status([200, 400]),
        ),
    ]
}

fn not_forwarded(answers: &[Answer], target: &Target) -> Result<(), String> {
    let requests = target.origin.as_ref().ok_or("no origin")?.take_requests();
    match requests.first() {
        Some(head) => Err(format!("forwarded: {}", head.lines().next().unwrap_or_default())),
        None if answers.iter().any(|answer| answer.status < 400) => Err("answered".to_owned()),
        None => Ok(()),
    }
}

fn paths() -> Vec<Attack> {
    let refused = || status([400, 403, 404, 405, 501]).check(not_forwarded);
    let fresh = |request: fn() -> Request| {
        script(move |target| {
            if let Some(origin) = &target.origin {
                origin.take_requests();
            }
            vec![request().send(target)]
        })
    };
    vec![
        attack(
            "delete_series",
            fresh(|| post("/api/v1/admin/tsdb/delete_series?match[]=up")),
            refused(),
        )
        .quick(),
        attack("a snapshot", fresh(|| post("/api/v1/admin/tsdb/snapshot")), refused()).quick(),
        attack("quit", fresh(|| post("/-/quit")), refused()).quick(),
        attack("reload", fresh(|| request("PUT", "/-/reload")), refused()),
        attack("an escaped admin path", fresh(|| post("/api/v1/%61dmin/tsdb/snapshot")), refused())
            .quick(),
        attack(
            "an admin path with two slashes",
            fresh(|| post("/api/v1//admin/tsdb/snapshot")),
            refused(),
        ),
        attack(
            "an admin path with another case",
            fresh(|| post("/API/v1/Admin/tsdb/snapshot")),
            refused(),
        ),
        attack("pprof", fresh(|| get("/debug/pprof/heap")), refused()).quick(),
        attack("a DELETE", fresh(|| request("DELETE", "/api/v1/series")), refused()).quick(),
        attack("a TRACE", fresh(|| request("TRACE", "/api/v1/query")), refused()),
        attack(
            "20 InfluxDB statements of a million words that drop",
            script(|target| {
                let text = ["q=SELECT", &"+a".repeat(1_000_000), "+INTO+b"].concat();
                let form = post("/query")
                    .header("Content-Type", "application/x-www-form-urlencoded")
                    .body(text);
                std::thread::scope(|scope| {
                    let send = || form.send(target);
                    let threads: Vec<_> = (0..20).map(|_| scope.spawn(send)).collect();
                    threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
                })
            }),
            refused(),
        )
        .quick(),
        attack(
            "an InfluxDB statement that drops",
            fresh(|| post("/query?q=DROP%20DATABASE%20d")),
            status([400, 403, 404, 405, 501]),
        ),
    ]
}

fn secrets() -> Vec<Attack> {
    let log = |_: &[Answer], target: &Target| {
        let log = target.log();
        match ["hunter2", PASSWORD].iter().find(|secret| log.contains(**secret)) {
            Some(secret) => Err(format!("the log contains {secret}")),
            None => Ok(()),
        }
    };
    vec![
        attack(
            "the start line has no password",
            get("/-/cache/metrics"),
            ok().lacks(PASSWORD).check(log),
        )
        .quick(),
        attack(
            "a failing origin shows no password",
            get("/api/v1/query?query=no-answer"),
            status([502, 503, 504]).lacks(PASSWORD).lacks("hunter2").check(log),
        )
        .quick(),
        attack(
            "credentials in a query are not logged",
            get("/api/v1/query?query=no-answer&u=me&p=hunter2"),
            status([502, 503, 504]).lacks("hunter2").check(log),
        )
        .quick(),
        attack(
            "credentials in a range query are not logged",
            get(format!("{RANGE}&x=no-answer&password=hunter2")),
            status([502, 503, 504]).lacks("hunter2").check(log),
        ),
        attack(
            "a token in a query is not logged",
            get("/query?q=no-answer&db=d&token=hunter2&p=hunter2"),
            status([400, 403, 404, 502, 503, 504]).lacks("hunter2").check(log),
        ),
        attack(
            "garbage shows no password",
            get("/api/v1/query?query=garbage"),
            status([502, 503]).lacks(PASSWORD).check(log),
        ),
    ]
}

fn origins() -> Vec<Attack> {
    let failed = || status([502, 503, 504]);
    let ranged = |query: &str| RANGE.replace("query=up", &format!("query={query}"));
    let beside = |path: String| {
        script(move |target| {
            let bytes = get(path.as_str()).encode(target);
            let open: Vec<_> = (0..30)
                .filter_map(|_| {
                    let mut connection = target.connect().ok()?;
                    connection.write_all(&bytes).ok()?;
                    Some(connection)
                })
                .collect();
            std::thread::sleep(Duration::from_millis(500));
            let answers = (0..5)
                .map(|n| get(RANGE.replace("query=up", &format!("query=beside{n}"))).send(target))
                .collect();
            drop(open);
            answers
        })
    };
    vec![
        attack("no answer", get("/api/v1/query?query=no-answer"), failed()).quick(),
        attack("no answer to a range query", get(ranged("no-answer")), failed()),
        attack("an answer that is not HTTP", get(ranged("garbage")), failed()),
        attack("another protocol", get("/api/v1/query?query=other-protocol"), status([502]))
            .quick(),
        attack(
            "another protocol after a range query",
            get(ranged("other-protocol")),
            status([502]),
        ),
        attack(
            "an error without a body",
            get("/api/v1/query?query=empty-error"),
            status([500]).contains("origin"),
        )
        .quick(),
        attack(
            "an error without a body to a range query",
            get(ranged("empty-error")),
            status([500]).contains("origin"),
        ),
        attack("a head without an end", get(ranged("endless-head")), failed()).quick(),
        attack("300 MB to a range query", get(ranged("huge")), status([200, 502])).quick(),
        attack(
            "300 MB to 10 clients that do not read",
            deaf(10, 4, get("/api/v1/query?query=huge")),
            status([SILENT]),
        )
        .quick(),
        attack(
            "300 MB of a range query to 10 clients that do not read",
            deaf(10, 4, get(ranged("huge"))),
            status([SILENT]),
        ),
        attack("1 million nested lists", get(ranged("nested")), status([200, 502])),
        attack("a coding that is false", get(ranged("false-gzip")), status([200, 502])),
        attack(
            "30 hanging queries and 5 others",
            beside("/api/v1/query?query=hang-before-head".to_owned()),
            ok().within(5),
        )
        .quick(),
        attack(
            "30 hanging range queries and 5 others",
            beside(ranged("hang-before-head")),
            ok().within(5),
        ),
        attack("30 hanging heads and 5 others", beside(ranged("hang-in-head")), ok().within(5)),
        attack("30 hanging bodies and 5 others", beside(ranged("hang-in-body")), ok().within(5))
            .quick(),
        attack(
            "20 clients with one huge answer",
            flood(20, 1, get(ranged("huge20"))),
            status([200, 502, 503]),
        ),
    ]
}

/// Queries whose answers have the same points, each over another part of one long range.
fn equal_points() -> Vec<Attack> {
    let queries = |count: i64, steps: i64, clients: i64| {
        script(move |target| {
            let ask = |n: i64| {
                let (start, end) = (1_700_000_000 + 60 * (n % 18), 1_700_000_000 + 60 * steps);
                let path = "/api/v1/query_range";
                get(format!("{path}?query=equal{n}&start={start}&end={end}&step=60")).send(target)
            };
            std::thread::scope(|scope| {
                let asks = |client: i64| (client..count).step_by(clients as usize).map(ask);
                let threads: Vec<_> = (0..clients)
                    .map(|client| scope.spawn(move || asks(client).collect::<Vec<_>>()))
                    .collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
            })
        })
    };
    vec![
        attack("4,000 queries with 60 equal points", queries(4_000, 60, 4), ok().within(60))
            .quick(),
        attack("500 queries with 5,000 equal points", queries(500, 5_000, 4), ok().within(60)),
    ]
}

fn clients() -> Vec<Attack> {
    let open = || status([SILENT, CLOSED, 400, 408]);
    vec![
        attack("70 silent connections", hold(70, 3, ""), open()).quick(),
        attack("300 silent connections", hold(300, 3, ""), open()),
        attack("60 half heads", drip(60, 100, 3, "GET /api/v1/query?query=up HTTP/1.1\r\nHost: x"), open()),
        attack("60 forms of which a byte comes", hold(60, 3, "POST /api/v1/query_range HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 2000000\r\n\r\nq"), open()),
        attack("a form of 20 MB", post("/api/v1/query_range").header("Content-Type", "application/x-www-form-urlencoded").body(vec![b'a'; 20 << 20]), status([200, 400, 413, 502])).quick(),
        attack("40 forms of 2 MB", flood(40, 1, form("/api/v1/query_range", [("query", vec![b'a'; 1 << 20])])), status([200, 400, 413, 414, 429, 502, 503])).quick(),
        attack("a length and chunks", raw("POST /api/v1/query_range HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"), status([400, CLOSED, 200, SILENT]).check(|_, target| {
            let requests = target.origin.as_ref().ok_or("no origin")?.take_requests();
            if requests.iter().any(|head| head.contains("smuggled")) { Err("smuggled".to_owned()) } else { Ok(()) }
        })).quick(),
        attack("raw quotes in the URL", get("/api/v1/query?query=up{a=\"b\"}"), ok()),
    ]
}

fn browsers() -> Vec<Attack> {
    let refused = || status([400, 403, 421]).lacks("access-control-allow-origin");
    vec![
        attack("a host that was rebound", get(RANGE).header("Host", "evil.example"), refused())
            .quick(),
        attack(
            "a form of another origin",
            form("/api/v1/query", [("query", "up")]).header("Origin", "https://evil.example"),
            status([200, 400, 403]).lacks("access-control-allow-origin"),
        ),
        attack(
            "a write of another origin",
            post("/api/v1/write").header("Origin", "https://evil.example").body("x"),
            refused().or(404).or(405),
        )
        .quick(),
        attack(
            "a range query of another origin",
            get(RANGE).header("Origin", "https://evil.example"),
            status([200, 403]).lacks("access-control-allow-origin"),
        ),
        attack(
            "metrics for another host",
            get("/-/cache/metrics").header("Host", "evil.example"),
            refused(),
        ),
    ]
}
