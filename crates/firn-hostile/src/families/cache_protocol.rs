//! `firn cache` without a proxy: its lines, values, connections, and browsers that speak to it.

use std::time::Duration;

use crate::attack::{Action, Attack, Expect, Family, attack, hold, raw, script, status};
use crate::client::{Answer, CLOSED, SILENT, TEXT, exchange, exchange_to_end};
use crate::target::{Setup, Target};

pub(crate) fn family() -> Family {
    Family::new("cache", Setup::cache(&["--size=64MiB", "--connections-max=64", "--idle=20s"]))
        .because("a line is a command, or an error of one line", lines())
        .because("a value has the length that it declares", values())
        .because("memory grows with the points and keys, not with the sets of keys", equal_points())
        .because("a browser cannot speak to the cache", browsers())
        .because("a silent client does not delay others", silent())
}

/// The family with a token.
pub(crate) fn with_token() -> Family {
    let setup = Setup::cache(&["--size=64MiB", "--connections-max=64"]).prepared(|folder| {
        let path = folder.join("token");
        std::fs::write(&path, "open-sesame\n")?;
        Ok(vec![format!("--token-file={}", path.display())])
    });
    // The probe and the canary send no token.
    Family::new("cache-token", setup.token("open-sesame"))
        .because("without the token nothing is served", tokens())
}

fn refused() -> Expect {
    status([TEXT, CLOSED]).lacks("STORED").lacks("VALUE").lacks("DELETED")
}

fn error() -> Expect {
    status([TEXT, CLOSED]).contains("CLIENT_ERROR").at_most_bytes(16 << 10)
}

fn lines() -> Vec<Attack> {
    vec![
        attack("an unknown command", raw("hello\r\n"), error()).quick(),
        attack("bytes", raw([0xff, 0, 1, 2, b'\n']), error()),
        attack("an empty line", raw("\r\nversion\r\n"), status([TEXT])),
        attack("a line of 10 kB", raw("g".repeat(10_000)), error()).quick(),
        attack("a line of 1 MB", raw("g".repeat(1 << 20)), status([TEXT, CLOSED])),
        attack(
            "a key of 5,000 bytes",
            raw(format!("get {} 0 0 1 json\r\n", "k".repeat(5_000))),
            error(),
        ),
        attack("a key with control characters", raw("get a\x01b 0 0 1 json\r\n"), error()),
        attack("a field of 16", raw("get k 16 0 1 json\r\n"), error()),
        attack("a field of 2^64", raw("get k 18446744073709551616 0 1 json\r\n"), error()),
        attack("a reversed range", raw("get k 0 1 0 json\r\n"), error()),
        attack("a time of 2^63", raw("get k 0 0 9223372036854775808 json\r\n"), error()).quick(),
        attack(
            "the whole range of times",
            raw("get k 0 -9223372036854775808 9223372036854775807 json 0\r\n"),
            status([TEXT]),
        ),
        attack("an unknown format", raw("get k 0 0 1 xml\r\n"), error()),
        attack("a word too many", raw("get k 0 0 1 json 0 0\r\n"), error()),
        attack("two blanks", raw("get  k 0 0 1 json\r\n"), error()),
        attack(
            "lower and upper case",
            raw("GET k 0 0 1 json\r\n"),
            // Upper case is a method of HTTP, in a version that is not served.
            status([TEXT, CLOSED, 400, 404]).or(405),
        ),
        attack(
            "a delete of all times",
            raw("delete other 0 -9223372036854775808 9223372036854775807\r\n"),
            status([TEXT]),
        ),
        attack(
            "100,000 pipelined gets",
            raw("get k 0 0 1 json\r\n".repeat(100_000)),
            status([TEXT]),
        )
        .quick(),
        attack("100,000 errors", raw("x\r\n".repeat(100_000)), status([TEXT, CLOSED])),
        attack(
            "50,000 keys",
            raw((0..50_000)
                .map(|n| format!("set key-{n} 0 0 1 json 7\r\n[[1,2]]\r\n"))
                .collect::<String>()),
            status([TEXT]),
        ),
        attack(
            "one key with 50,000 ranges",
            raw((0..50_000)
                .map(|n| {
                    format!(
                        "set ranges 0 {0} {0} json {1}\r\n[[{0},2]]\r\n",
                        n * 2,
                        format!("[[{},2]]", n * 2).len()
                    )
                })
                .collect::<String>()),
            status([TEXT]),
        ),
        // A lookup takes time for each range, and other clients must not wait for it.
        attack(
            "100 gets of all these ranges",
            raw("get ranges 0 0 100000 json 0\r\n".repeat(100)),
            status([TEXT]),
        ),
    ]
}

/// Keys with the same points, which are stored once for a set of keys: each key that lacks one of
/// them makes sets of its own.
fn equal_points() -> Vec<Attack> {
    const POINTS: i64 = 18;
    let sets = |keys: i64, fields: i64, lacks: fn(i64, i64) -> bool| {
        let set = move |n: i64| {
            let points = (0..POINTS).filter(|ts| !lacks(n, *ts)).map(|ts| format!("[{ts},1]"));
            let value = format!("[{}]", points.collect::<Vec<_>>().join(","));
            let (field, len) = (n % fields, value.len());
            format!("set equal-{n} {field} 0 {POINTS} json {len}\r\n{value}\r\n")
        };
        raw((0..keys).map(set).collect::<String>())
    };
    let stored = || status([TEXT]).contains("STORED").within(60);
    vec![
        attack("20,000 keys with equal points", sets(20_000, 1, |_, _| false), stored()).quick(),
        attack(
            "20,000 keys of 16 fields that lack one of the equal points",
            sets(20_000, 16, |n, ts| n / 16 % POINTS == ts),
            stored(),
        )
        .quick(),
        attack(
            "20,000 keys with any of the equal points",
            sets(20_000, 1, |n, ts| n >> (ts % 15) & 1 == 1),
            stored(),
        ),
        attack(
            "5,000 keys with one equal point, then keys with all of them",
            raw((0..5_000)
                .map(|n| (n, 1))
                .chain([(9_000, 5_000), (9_001, 5_000)])
                .map(|(n, count): (i64, i64)| {
                    let first = if count == 1 { n } else { 0 };
                    let points = (first..first + count).map(|ts| format!("[{ts},1]"));
                    let value = format!("[{}]", points.collect::<Vec<_>>().join(","));
                    format!("set all-{n} 0 0 5000 json {}\r\n{value}\r\n", value.len())
                })
                .collect::<String>()),
            stored(),
        ),
    ]
}

fn values() -> Vec<Attack> {
    let set = |range: &str, value: &str| {
        raw(format!("set v 0 {range} json {}\r\n{value}\r\n", value.len()))
    };
    let binary = |value: Vec<u8>| {
        let mut bytes = format!("set v 0 0 100 binary {}\r\n", value.len()).into_bytes();
        bytes.extend_from_slice(&value);
        bytes.extend_from_slice(b"\r\n");
        raw(bytes)
    };
    vec![
        attack("a length of 2^64", raw("set v 0 0 1 json 18446744073709551616\r\n"), error())
            .quick(),
        attack("a length of 2^63", raw("set v 0 0 1 json 9223372036854775807\r\nx"), error())
            .quick(),
        attack("a negative length", raw("set v 0 0 1 json -1\r\n"), error()),
        attack("a length of 1 GB", raw("set v 0 0 1 json 1000000000\r\nx"), status([TEXT, CLOSED])),
        attack("a value that is longer", raw("set v 0 0 1 json 2\r\n[[1,2]]\r\n"), error()),
        attack("no JSON", set("0 1", "hello"), error()).quick(),
        attack("1 million nested lists", set("0 1", &"[".repeat(1 << 20)), error()).quick(),
        attack(
            "1 million nested lists in a value",
            set("0 1", &format!("[[1,{}]]", "[".repeat(1 << 20))),
            error(),
        ),
        attack("points out of order", set("0 9", "[[5,1],[4,1]]"), error()),
        attack("points outside", set("0 9", "[[10,1]]"), error()),
        attack("a time with a fraction", set("0 9", "[[1.5,1]]"), error()),
        attack("a time of 20 digits", set("0 9", "[[99999999999999999999,1]]"), error()),
        attack(
            "2 million empty lists",
            set("0 9", &format!("[{}[1,1]]", "[],".repeat(2 << 20))),
            status([TEXT, CLOSED]),
        ),
        attack(
            "a binary length beyond the end",
            binary([&5i64.to_le_bytes()[..], &u32::MAX.to_le_bytes()].concat()),
            error(),
        )
        .quick(),
        attack("a binary point that is cut", binary(vec![0; 11]), error()),
        attack(
            "8 MiB of empty binary points",
            script(|target| {
                let points: Vec<u8> = (0..690_000i64)
                    .flat_map(|n| [&n.to_le_bytes()[..], &[0; 4]].concat())
                    .collect();
                let mut bytes =
                    format!("set empty 0 0 700000 binary {}\r\n", points.len()).into_bytes();
                bytes.extend_from_slice(&points);
                bytes.extend_from_slice(
                    b"\r\nget empty 0 0 700000 binary 0\r\nget empty 0 0 700000 json 0\r\n",
                );
                exchange(target, &bytes)
            }),
            status([TEXT]),
        )
        .quick(),
        attack(
            "20 clients with 8 MiB",
            script(|target| {
                let value = format!("[[1,\"{}\"]]", "x".repeat((8 << 20) - 10));
                let bytes = format!("set big 0 0 1 json {}\r\n{value}\r\nquit\r\n", value.len());
                std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..20)
                        .map(|_| scope.spawn(|| exchange_to_end(target, bytes.as_bytes())))
                        .collect();
                    threads
                        .into_iter()
                        .flat_map(|thread| thread.join().unwrap_or_default())
                        .collect()
                })
            }),
            status([TEXT, CLOSED]),
        )
        .quick(),
        attack(
            "8 clients with 8 MiB of short points",
            script(|target| {
                let points: Vec<u8> = (0..640_000i64)
                    .flat_map(|n| [&n.to_le_bytes()[..], &1u32.to_le_bytes(), b"1"].concat())
                    .collect();
                let client = |n: usize| {
                    let set = format!("set short-{n} 0 0 700000 binary {}\r\n", points.len());
                    let gets = format!("\r\nget short-{n} 0 0 700000 json 0\r\nquit\r\n");
                    exchange_to_end(target, &[set.as_bytes(), &points, gets.as_bytes()].concat())
                };
                std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..8).map(|n| scope.spawn(move || client(n))).collect();
                    threads
                        .into_iter()
                        .flat_map(|thread| thread.join().unwrap_or_default())
                        .collect()
                })
            }),
            status([TEXT, CLOSED]),
        ),
    ]
}

fn browsers() -> Vec<Attack> {
    let poison = "set canary 0 0 0 json 13\r\n[[0,\"evil\"]]\r\n";
    let posted = |method: &str, headers: &str| {
        format!(
            "{method} / HTTP/1.1\r\nHost: 127.0.0.1:9421\r\n{headers}Content-Length: {}\r\n\r\n{poison}",
            poison.len()
        )
    };
    vec![
        attack(
            "a POST with commands as its body",
            raw(posted("POST", "Origin: https://evil.example\r\n")),
            refused().or(400).or(403).or(404).or(405),
        )
        .quick(),
        attack(
            "a PUT with commands as its body",
            raw(posted("PUT", "")),
            refused().or(400).or(403).or(404).or(405),
        )
        .quick(),
        attack(
            "a GET with commands as its body",
            raw(posted("GET", "")),
            refused().or(400).or(403).or(404).or(405),
        )
        .quick(),
        attack(
            "an unknown method with commands",
            raw(posted("FOO", "")),
            refused().or(400).or(403).or(404).or(405),
        )
        .quick(),
        attack(
            "OPTIONS with commands",
            raw(posted("OPTIONS", "")),
            refused().or(400).or(403).or(404).or(405),
        ),
        attack(
            "commands behind a host",
            raw(format!("Host: evil.example\r\n{poison}")),
            refused().or(405).contains("connection: close"),
        )
        .quick(),
        attack(
            "commands in a header",
            raw(format!("GET / HTTP/1.1\r\nX: y\r\n{poison}\r\n")),
            refused().or(400).or(404),
        ),
        attack(
            "commands in a multipart form",
            raw(posted("POST", "Content-Type: multipart/form-data; boundary=x\r\n")),
            refused().or(400).or(403).or(404).or(405),
        ),
        attack(
            "commands behind a TLS handshake",
            raw([b"\x16\x03\x01\x00\x05hello\r\n", poison.as_bytes()].concat()),
            status([TEXT, CLOSED]),
        ),
        attack(
            "metrics for another host",
            raw("GET /-/cache/metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
            status([400, 403, 404, 421, TEXT, CLOSED]).lacks("firn_cache_requests_total"),
        ),
        attack(
            "metrics of another origin",
            raw(
                "GET /-/cache/metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: https://evil.example\r\n\r\n",
            ),
            status([200, 400, 403, CLOSED]).lacks("access-control-allow-origin"),
        ),
        attack(
            "metrics by lines that end with LF",
            raw("GET /-/cache/metrics HTTP/1.1\nHost: 127.0.0.1\n\n"),
            status([400]),
        ),
        attack(
            "metrics with two lengths",
            raw("GET /-/cache/metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\n\
                 Content-Length: 2\r\n\r\nab"),
            status([400]),
        ),
        attack(
            "metrics with a host behind 100 headers",
            raw(format!(
                "GET /-/cache/metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n{}Host: evil.example\r\n\r\n",
                "X: y\r\n".repeat(100)
            )),
            status([431]),
        ),
        attack(
            "an HTTP head of 1 MB",
            raw(format!("GET /-/cache/metrics HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(200_000))),
            status([TEXT, 200, 400, 431, CLOSED]),
        ),
    ]
}

fn others_are_served(target: &Target) -> Vec<Answer> {
    (0..10)
        .flat_map(|n| {
            let request = format!("set beside-{n} 0 0 1 json 7\r\n[[1,2]]\r\nquit\r\n");
            exchange_to_end(target, request.as_bytes())
        })
        .collect()
}

/// [`others_are_served`] some time after `count` clients have sent `bytes` and read nothing.
fn others_beside(target: &Target, count: usize, bytes: &str, after: Duration) -> Vec<Answer> {
    let open: Vec<_> = (0..count)
        .filter_map(|_| {
            let mut connection = target.connect().ok()?;
            connection.write_all(bytes.as_bytes()).ok()?;
            Some(connection)
        })
        .collect();
    std::thread::sleep(after);
    let answers = others_are_served(target);
    drop(open);
    answers
}

fn silent() -> Vec<Attack> {
    let beside = |count: usize, bytes: &'static str| {
        script(move |target| others_beside(target, count, bytes, Duration::from_millis(300)))
    };
    let stored = || status([TEXT]).contains("STORED").within(8);
    vec![
        attack("6 sets without a value", beside(6, "set s 0 0 1 json 8388600\r\nx"), stored())
            .quick(),
        attack("50 sets without a value", beside(50, "set s 0 0 1 json 8388600\r\nx"), stored())
            .quick(),
        attack("70 silent connections", hold(70, 3, ""), status([SILENT, CLOSED])),
        attack("300 silent connections", hold(300, 3, ""), status([SILENT, CLOSED])),
        attack("70 half lines", hold(70, 2, "get k 0"), status([SILENT, CLOSED])),
        attack("others beside 300 silent connections", beside(300, ""), stored()).quick(),
        attack("60 clients that do not read", deaf_clients(60), stored()).quick(),
        attack(
            "others beside 200 half heads of HTTP",
            beside(200, "GET /-/cache/metrics HTTP/1.1\r\n"),
            stored(),
        )
        .quick(),
        attack(
            "others beside 200 refused values without an end",
            beside(200, "set s 0 0 1 json 1000000000000\r\n"),
            stored(),
        ),
        attack("10 clients with 16 gets of points without values", empty_points(10), stored())
            .quick(),
    ]
}

/// Clients that request long values and do not read them, and the responses of others meanwhile.
fn deaf_clients(count: usize) -> Action {
    script(move |target| {
        let value = format!("[[1,\"{}\"]]", "x".repeat(400_000));
        let set = format!("set deaf 0 0 1 json {}\r\n{value}\r\nquit\r\n", value.len());
        exchange_to_end(target, set.as_bytes());
        let gets = "get deaf 0 0 1 json 0\r\n".repeat(50);
        others_beside(target, count, &gets, Duration::from_secs(3))
    })
}

/// Clients that request values of 4 MB whose points have no values, and do not read them.
fn empty_points(count: usize) -> Action {
    const POINTS: i64 = 30_000;
    const SETS: i64 = 12;
    script(move |target| {
        for first in (0..SETS).map(|n| n * POINTS) {
            let last = first + POINTS - 1;
            let points = (first..=last).flat_map(|ts| [&ts.to_le_bytes()[..], &[0; 4]].concat());
            let points: Vec<u8> = points.collect();
            let set = format!("set none 0 {first} {last} binary {}\r\n", points.len());
            exchange_to_end(target, &[set.as_bytes(), &points, b"\r\nquit\r\n"].concat());
        }
        let gets = format!("get none 0 0 {} binary 0\r\n", SETS * POINTS - 1).repeat(16);
        let open: Vec<_> = (0..count)
            .filter_map(|_| {
                let mut connection = target.connect().ok()?;
                connection.write_all(gets.as_bytes()).ok()?;
                Some(connection)
            })
            .collect();
        std::thread::sleep(Duration::from_secs(3));
        let answers = others_are_served(target);
        drop(open);
        answers
    })
}

fn tokens() -> Vec<Attack> {
    vec![
        attack("a set without the token", raw("set k 0 0 1 json 7\r\n[[1,2]]\r\n"), refused())
            .quick(),
        attack("a get without the token", raw("get canary 0 0 0 json\r\n"), refused()).quick(),
        attack("a delete without the token", raw("delete canary 0 0 0\r\n"), refused()),
        attack("an empty token", raw("auth \r\nget canary 0 0 0 json\r\n"), refused()),
        attack("a wrong token", raw("auth open\r\nget canary 0 0 0 json\r\n"), refused()).quick(),
        attack(
            "the token with another case",
            raw("auth OPEN-SESAME\r\nget canary 0 0 0 json\r\n"),
            refused(),
        ),
        attack("a token of 8 kB", raw(format!("auth {}\r\n", "t".repeat(8_000))), refused()),
        attack(
            "metrics without the token",
            raw("GET /-/cache/metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
            status([401, 403, TEXT, CLOSED]).lacks("firn_cache_requests_total"),
        )
        .quick(),
        attack(
            "metrics with a wrong token",
            raw(
                "GET /-/cache/metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer x\r\n\r\n",
            ),
            status([401, 403, TEXT, CLOSED]).lacks("firn_cache_requests_total"),
        ),
        attack(
            "a client with the token beside 70 without",
            script(|target| {
                let open: Vec<_> = (0..70).filter_map(|_| target.connect().ok()).collect();
                std::thread::sleep(Duration::from_millis(300));
                let answer = exchange_to_end(
                    target,
                    b"auth open-sesame\r\nset k 0 0 1 json 7\r\n[[1,2]]\r\nquit\r\n",
                );
                drop(open);
                answer
            }),
            status([TEXT]).contains("STORED").within(8),
        )
        .quick(),
        // The last one: afterwards the address has to wait.
        attack(
            "500 wrong tokens",
            script(|target| {
                (0..500)
                    .flat_map(|n| exchange(target, format!("auth guess-{n}\r\n").as_bytes()))
                    .collect()
            }),
            refused().within(20),
        ),
    ]
}
