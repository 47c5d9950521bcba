//! Frames of HTTP: request smuggling, chunks, headers, declared lengths, compressed bombs.

use super::{query, write};
use crate::attack::{
    Attack, Expect, Family, attack, bad, not_served, ok, raw, script, status, survived, written,
};
use crate::client::{Answer, CLOSED, SILENT, TEXT, get, post, request};
use crate::target::Setup;
use crate::wire::{Message, false_snappy, gzip_bomb, snappy, zstd};

pub(crate) fn family() -> Family {
    Family::new("framing", Setup::database(&[]).empty())
        .because("a request has one length, or is refused", smuggling())
        .because("chunks are read as the standard defines them", chunks())
        .because("the head is bounded and strict", heads())
        .because("methods and paths are those of the table of routes", routes())
        .because("a declared length is a claim", declared())
        .because("the output of a decompressor is bounded before it is made", bombs())
}

/// Bytes that end with a second request, whose response proves that it was smuggled.
const SMUGGLED: &str = "GET /api/v1/status/buildinfo HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";

/// No response to the smuggled request.
fn one_answer() -> Expect {
    not_served().or(SILENT).or(200).or(204).or(404).or(415).lacks("goversion")
}

/// A refusal, and then the end of the connection.
fn refused() -> Expect {
    bad().contains("connection: close").check(|answers, _| count_is(answers, 1))
}

fn head(line: &str, headers: &[&str]) -> String {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    format!("{line}\r\nHost: 127.0.0.1\r\n{headers}\r\n")
}

fn posted(headers: &[&str], body: &str) -> Vec<u8> {
    (head("POST /api/v1/query HTTP/1.1", headers) + body).into_bytes()
}

fn smuggling() -> Vec<Attack> {
    let length = format!("Content-Length: {}", SMUGGLED.len() + 5);
    let chunked = "Transfer-Encoding: chunked";
    let body = format!("0\r\n\r\n{SMUGGLED}");
    vec![
        attack("a length and chunks", raw(posted(&[&length, chunked], &body)), refused()).quick(),
        attack("chunks and a length", raw(posted(&[chunked, &length], &body)), refused()).quick(),
        attack(
            "two different lengths",
            raw(posted(&["Content-Length: 0", &length], SMUGGLED)),
            refused(),
        )
        .quick(),
        attack(
            "two equal lengths",
            raw(posted(&["Content-Length: 7", "Content-Length: 7"], "query=1")),
            refused(),
        ),
        attack("a list of lengths", raw(posted(&["Content-Length: 0, 60"], SMUGGLED)), refused()),
        attack("a negative length", raw(posted(&["Content-Length: -1"], SMUGGLED)), refused()),
        attack("a length with a plus", raw(posted(&["Content-Length: +0"], SMUGGLED)), refused()),
        attack("a hexadecimal length", raw(posted(&["Content-Length: 0x10"], SMUGGLED)), refused()),
        attack(
            "a length of 2^64",
            raw(posted(&["Content-Length: 18446744073709551616"], SMUGGLED)),
            refused(),
        )
        .quick(),
        attack(
            "a length of 2^64 - 1",
            raw(posted(&["Content-Length: 18446744073709551615"], SMUGGLED)),
            refused(),
        ),
        attack("an empty length", raw(posted(&["Content-Length: "], SMUGGLED)), refused()),
        attack(
            "a blank before the colon",
            raw(posted(&["Content-Length : 60"], SMUGGLED)),
            refused(),
        )
        .quick(),
        attack(
            "a folded header",
            raw(posted(&["X: a\r\n Content-Length: 60"], SMUGGLED)),
            refused(),
        ),
        attack(
            "a line that ends with LF alone",
            raw(posted(&["X: a\nContent-Length: 60"], SMUGGLED)),
            refused(),
        )
        .quick(),
        attack("an empty line of LF alone", raw(format!("\n{SMUGGLED}")), refused()),
        attack(
            "a return without a line break",
            raw(posted(&["X: a\rContent-Length: 60"], SMUGGLED)),
            refused(),
        ),
        attack(
            "a tab before the colon",
            raw(posted(&["Transfer-Encoding\t: chunked"], &body)),
            refused(),
        ),
        attack(
            "chunked last of two",
            raw(posted(&["Transfer-Encoding: gzip, chunked"], &body)),
            refused(),
        ),
        attack("no coding", raw(posted(&["Transfer-Encoding: identity"], &body)), refused()),
        attack(
            "a coding that is unknown",
            raw(posted(&["Transfer-Encoding: xchunked"], &body)),
            refused(),
        ),
        attack(
            "chunked twice",
            raw(posted(&["Transfer-Encoding: chunked, chunked"], &body)),
            refused(),
        )
        .quick(),
        attack(
            "chunked before gzip",
            raw(posted(&["Transfer-Encoding: chunked, gzip"], &body)),
            refused(),
        ),
        attack(
            "chunked in quotes",
            raw(posted(&["Transfer-Encoding: \"chunked\""], &body)),
            refused(),
        ),
        attack(
            "chunked behind a tab",
            raw(posted(&["Transfer-Encoding:\tchunked", &length], &body)),
            refused(),
        ),
        attack(
            "chunked behind a line break",
            raw(posted(&["Transfer-Encoding:\n chunked"], &body)),
            refused(),
        ),
        attack(
            "chunks of HTTP/1.0",
            raw(format!(
                "POST /api/v1/query HTTP/1.0\r\nHost: 127.0.0.1\r\n{chunked}\r\n\r\n{body}"
            )),
            refused(),
        ),
        attack(
            "a GET with a hidden request as body",
            raw(head("GET /-/healthy HTTP/1.1", &[&format!("Content-Length: {}", SMUGGLED.len())])
                + SMUGGLED),
            one_answer(),
        )
        .quick(),
        attack(
            "a HEAD with a hidden request as body",
            raw(head(
                "HEAD /-/healthy HTTP/1.1",
                &[&format!("Content-Length: {}", SMUGGLED.len())],
            ) + SMUGGLED),
            one_answer(),
        ),
        attack(
            "an OPTIONS with a hidden request as body",
            raw(head(
                "OPTIONS /api/v1/query HTTP/1.1",
                &[&format!("Content-Length: {}", SMUGGLED.len())],
            ) + SMUGGLED),
            one_answer(),
        ),
        attack(
            "a refused write with a hidden request as body",
            raw(head(
                "POST /api/v1/write HTTP/1.1",
                &["Content-Type: text/x", &format!("Content-Length: {}", SMUGGLED.len())],
            ) + SMUGGLED),
            one_answer(),
        )
        .quick(),
        attack(
            "an upgrade to HTTP/2",
            raw(head(
                "GET /-/healthy HTTP/1.1",
                &[
                    "Connection: Upgrade, HTTP2-Settings",
                    "Upgrade: h2c",
                    "HTTP2-Settings: AAMAAABkAAQAAP__",
                ],
            )),
            status([200, 400]),
        ),
        attack(
            "HTTP/2 without an upgrade",
            raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
            not_served().or(TEXT),
        ),
        attack(
            "a websocket",
            raw(head(
                "GET /-/healthy HTTP/1.1",
                &[
                    "Connection: Upgrade",
                    "Upgrade: websocket",
                    "Sec-WebSocket-Version: 13",
                    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
                ],
            )),
            status([200, 400]),
        ),
        attack(
            "100 pipelined requests",
            raw(SMUGGLED.replace("status/buildinfo", "labels").repeat(100)),
            ok().check(|answers, _| count_is(answers, 100)),
        )
        .quick(),
        attack(
            "a pipeline behind a bad request",
            raw(format!("BAD\r\n\r\n{SMUGGLED}")),
            not_served().lacks("goversion"),
        )
        .quick(),
    ]
}

fn count_is(answers: &[Answer], wanted: usize) -> Result<(), String> {
    match answers.len() == wanted {
        true => Ok(()),
        false => Err(format!("{} responses, expected {wanted}", answers.len())),
    }
}

fn chunks() -> Vec<Attack> {
    let form = "Content-Type: application/x-www-form-urlencoded";
    let chunked =
        |body: &str| raw(posted(&["Transfer-Encoding: chunked", "Connection: close", form], body));
    vec![
        attack("a regular body", chunked("7\r\nquery=1\r\n0\r\n\r\n"), ok()).quick(),
        attack("a size of 2^64", chunked("10000000000000000\r\nx"), not_served()).quick(),
        attack("a size of 2^63", chunked("8000000000000000\r\nx"), not_served().or(SILENT).or(200)),
        attack("a negative size", chunked("-1\r\nx"), not_served()),
        attack("a size with 0x", chunked("0x7\r\nquery=1\r\n0\r\n\r\n"), not_served()),
        attack("a size that is no number", chunked("zz\r\nquery=1\r\n0\r\n\r\n"), not_served()),
        attack("a blank behind a size", chunked("7 \r\nquery=1\r\n0\r\n\r\n"), bad()).quick(),
        attack("a tab behind a size", chunked("7\t\r\nquery=1\r\n0\r\n\r\n"), bad()),
        attack("a blank before an extension", chunked("7 ;a\r\nquery=1\r\n0\r\n\r\n"), bad()),
        attack("a size without a number", chunked("\r\nquery=1\r\n0\r\n\r\n"), not_served()),
        attack(
            "a chunk that is longer than its size",
            chunked("3\r\nquery=1\r\n0\r\n\r\n"),
            not_served(),
        ),
        attack("a chunk without its line break", chunked("7\r\nquery=10\r\n\r\n"), not_served()),
        attack(
            "line breaks without returns",
            chunked("7\nquery=1\n0\n\n"),
            not_served().or(200).or(SILENT),
        ),
        attack(
            "an extension of 1 MB",
            chunked(&format!("7;{}\r\nquery=1\r\n0\r\n\r\n", "x".repeat(1 << 20))),
            not_served(),
        )
        .quick(),
        attack(
            "100,000 short extensions",
            chunked(&format!("{}0\r\n\r\n", "1;x=y\r\na\r\n".repeat(100_000))),
            not_served().or(200),
        ),
        attack(
            "a size of 10,000 zeros",
            chunked(&format!("{}7\r\nquery=1\r\n0\r\n\r\n", "0".repeat(10_000))),
            not_served().or(200),
        ),
        attack(
            "1 million chunks of a byte",
            chunked(&format!("{}0\r\n\r\n", "1\r\na\r\n".repeat(1 << 20))),
            status([200, 400, 413, CLOSED]),
        ),
        attack(
            "a trailer",
            chunked("7\r\nquery=1\r\n0\r\nX: y\r\n\r\n"),
            status([200, 400, CLOSED]),
        ),
        attack(
            "a trailer of 1 MB",
            chunked(&format!("7\r\nquery=1\r\n0\r\nX: {}\r\n\r\n", "y".repeat(1 << 20))),
            not_served(),
        )
        .quick(),
        attack(
            "100,000 trailers",
            chunked(&format!("7\r\nquery=1\r\n0\r\n{}\r\n", "X: y\r\n".repeat(100_000))),
            not_served(),
        ),
        attack(
            "a trailer that is a length",
            chunked("7\r\nquery=1\r\n0\r\nContent-Length: 50\r\n\r\n"),
            status([200, 400, CLOSED]),
        ),
        attack(
            "20 MB in chunks to a form",
            post("/api/v1/query")
                .header("Content-Type", "application/x-www-form-urlencoded")
                .header("Transfer-Encoding", "chunked")
                .make(|| {
                    let mut body = b"100000\r\n".to_vec();
                    body.extend_from_slice(&vec![b'a'; 1 << 20]);
                    body.extend_from_slice(b"\r\n");
                    let mut all = body.repeat(20);
                    all.extend_from_slice(b"0\r\n\r\n");
                    all
                }),
            status([400, 413, CLOSED]),
        )
        .quick(),
    ]
}

fn heads() -> Vec<Attack> {
    let line = |line: &str| raw(format!("{line}\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"));
    let header =
        |header: &str| raw(head("GET /-/healthy HTTP/1.1", &["Connection: close", header]));
    vec![
        attack("bytes", raw([0xff, 0, 1, 2, 0x80, b'\r', b'\n', b'\r', b'\n']), not_served())
            .quick(),
        attack(
            "a TLS handshake",
            raw([0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]),
            not_served().or(SILENT),
        )
        .quick(),
        attack("SSH", raw("SSH-2.0-OpenSSH_9.0\r\n"), not_served().or(SILENT)),
        attack("a line break", raw("\r\n"), not_served().or(SILENT)),
        attack("100,000 line breaks", raw("\r\n".repeat(100_000)), not_served().or(SILENT)),
        attack("only a method", line("GET"), not_served()),
        attack("no version", line("GET /-/healthy"), not_served()),
        attack("HTTP/0.9", raw("GET /\r\n"), not_served().or(SILENT)),
        attack("HTTP/3", line("GET /-/healthy HTTP/3.0"), not_served()),
        attack("HTTP/1.10", line("GET /-/healthy HTTP/1.10"), not_served()),
        attack("a lower case version", line("GET /-/healthy http/1.1"), not_served()),
        attack("two blanks", line("GET  /-/healthy HTTP/1.1"), not_served()),
        attack("a tab", line("GET\t/-/healthy HTTP/1.1"), not_served()),
        attack(
            "a path of 1 MB",
            line(&format!("GET /{} HTTP/1.1", "a".repeat(1 << 20))),
            not_served(),
        )
        .quick(),
        attack(
            "a query string of 1 MB",
            line(&format!("GET /api/v1/query?query={} HTTP/1.1", "1".repeat(1 << 20))),
            not_served(),
        ),
        attack(
            "a method of 1 MB",
            line(&format!("{} / HTTP/1.1", "A".repeat(1 << 20))),
            not_served(),
        ),
        attack("a header of 1 MB", header(&format!("X: {}", "a".repeat(1 << 20))), not_served())
            .quick(),
        attack(
            "a header name of 1 MB",
            header(&format!("{}: x", "X".repeat(1 << 20))),
            not_served(),
        ),
        attack("10,000 headers", header(&"X: y\r\n".repeat(10_000)), not_served()).quick(),
        attack(
            "120 headers",
            header(&(0..120).map(|n| format!("X{n}: y\r\n")).collect::<String>()),
            not_served().or(200),
        ),
        attack("an empty header name", header(": x"), not_served()),
        attack("a header without a colon", header("X"), not_served()),
        attack("a NUL in a header", header("X: a\0b"), not_served()),
        attack("a return in a header", header("X: a\rb"), not_served()),
        attack(
            "a line break in a header",
            raw(b"GET /-/healthy HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n\n"),
            refused(),
        ),
        attack("no host", raw("GET /-/healthy HTTP/1.1\r\nConnection: close\r\n\r\n"), refused())
            .quick(),
        attack("two hosts", header("Host: other"), refused()).quick(),
        attack(
            "a password in a host",
            raw("GET /-/healthy HTTP/1.1\r\nHost: user:hidden-word@127.0.0.1\r\n\r\n"),
            refused().lacks("hidden-word"),
        ),
        attack(
            "a password in the URL",
            line("GET http://user:hidden-word@evil.example/-/healthy HTTP/1.1"),
            status([400, 403, 421]).lacks("hidden-word"),
        ),
        attack(
            "a host with a path",
            raw("GET /-/healthy HTTP/1.1\r\nHost: 127.0.0.1/x\r\n\r\n"),
            refused(),
        ),
        attack(
            "HTTP/1.0 without a host",
            raw("GET /-/healthy HTTP/1.0\r\n\r\n"),
            status([200, 400, 403, 421]),
        ),
        attack(
            "10,000 codings to accept",
            header(&format!("Accept-Encoding: {}", "gzip;q=0.1,".repeat(8_000))),
            status([200, 400, 431, CLOSED]),
        ),
        attack(
            "a weight of NaN",
            get("/metrics").header("Accept-Encoding", "gzip;q=NaN, zstd;q=inf, deflate;q=-1"),
            ok(),
        ),
        attack("a range", get("/metrics").header("Range", "bytes=0-,0-,0-,0-"), status([200, 206])),
        attack(
            "Expect with another value",
            post("/api/v1/query").header("Expect", "200-maybe").body("x"),
            status([200, 400, 417]),
        ),
    ]
}

fn routes() -> Vec<Attack> {
    let at = |path: &str| get(path);
    let gone = || status([404, 405, 400]);
    vec![
        attack("an unknown path", at("/nothing"), gone()).quick(),
        attack("an unknown path of the API", at("/api/v1/nothing"), gone()),
        attack("a path with dots", at("/api/v1/../../-/quit"), gone()),
        attack("an escaped path", at("/%2e%2e/%2e%2e/etc/passwd"), gone().lacks("root:")).quick(),
        attack("a path with a NUL", at("/api/v1/%00"), gone()),
        attack(
            "an absolute URL",
            at("http://example.com/-/healthy"),
            status([200, 400, 403, 404, 421]),
        ),
        attack("an asterisk", request("OPTIONS", "*"), status([200, 204, 400, 403, 404, 405])),
        attack(
            "an authority",
            request("CONNECT", "example.com:443"),
            status([400, 404, 405, CLOSED]),
        ),
        attack("TRACE", request("TRACE", "/-/healthy"), gone()).quick(),
        attack("DELETE of the API", request("DELETE", "/api/v1/series"), gone()),
        attack("PUT of a query", request("PUT", "/api/v1/query"), gone()),
        attack("PATCH of a write", request("PATCH", "/api/v1/write"), gone()),
        attack("GET of a write", get("/api/v1/write"), gone()).quick(),
        attack(
            "a method override",
            get("/api/v1/admin/tsdb/snapshot").header("X-HTTP-Method-Override", "POST"),
            gone(),
        ),
        attack("an unknown method", request("MAKEITSO", "/-/healthy"), gone()),
        attack("quit by GET", get("/-/quit"), status([403, 404, 405])).quick(),
        attack("quit by POST", post("/-/quit"), status([403, 404])).quick(),
        attack("reload by POST", post("/-/reload"), status([403, 404])),
        attack(
            "delete_series",
            post("/api/v1/admin/tsdb/delete_series?match[]=canary"),
            status([403, 404, 500]).contains("disabled"),
        )
        .quick(),
        attack("snapshot", post("/api/v1/admin/tsdb/snapshot"), status([403, 404, 500])),
        attack(
            "clean_tombstones",
            post("/api/v1/admin/tsdb/clean_tombstones"),
            status([403, 404, 500]),
        ),
        attack("a trailing slash", get("/api/v1/query/"), gone()),
        attack("two slashes", get("//api/v1/query?query=1"), gone()),
        attack("an API of another version", get("/api/v2/query"), gone()),
        attack("pprof", get("/debug/pprof/heap"), gone()),
        attack("a group of 2^64", get("/api/v1/groups/18446744073709551616"), status([400, 404])),
        attack("a negative group", get("/api/v1/groups/-1"), status([400, 404])),
    ]
}

fn declared() -> Vec<Attack> {
    let announced = |path: &str, length: &str| {
        raw(head(&format!("POST {path} HTTP/1.1"), &[&format!("Content-Length: {length}")]) + "x")
    };
    vec![
        attack(
            "a write of 2^60 bytes",
            announced("/api/v1/write", "1152921504606846976"),
            status([413]),
        )
        .quick(),
        attack(
            "a write of 32 MiB that does not come",
            announced("/api/v1/write", "33554432"),
            status([SILENT]),
        )
        .quick(),
        attack(
            "a transaction of 2^60 bytes",
            announced("/api/v1/transaction", "1152921504606846976"),
            status([413]),
        ),
        attack(
            "groups of 2^60 bytes",
            announced("/api/v1/groups", "1152921504606846976"),
            status([413]),
        ),
        attack(
            "a remote read of 2^60 bytes",
            announced("/api/v1/read", "1152921504606846976"),
            status([400, 413]),
        ),
        attack(
            "a form of 2^60 bytes",
            raw(head(
                "POST /api/v1/query HTTP/1.1",
                &[
                    "Content-Length: 1152921504606846976",
                    "Content-Type: application/x-www-form-urlencoded",
                ],
            ) + "x"),
            status([400, 413]),
        ),
        attack(
            "a write beside 34 announced bodies",
            script(|target| {
                let announced = head("POST /api/v1/write HTTP/1.1", &["Content-Length: 33554432"]);
                let open: Vec<_> = (0..34)
                    .filter_map(|_| {
                        let mut connection = target.connect().ok()?;
                        connection.write_all(announced.as_bytes()).ok()?;
                        Some(connection)
                    })
                    .collect();
                let answer = write(crate::wire::one_series(
                    &[("__name__", "beside"), ("n", "1")],
                    &[(super::base_s() * 1_000, 1.0)],
                ))
                .send(target);
                drop(open);
                vec![answer]
            }),
            written().within(5),
        )
        .quick(),
        attack(
            "100-continue that is not followed",
            raw(head(
                "POST /api/v1/write HTTP/1.1",
                &["Content-Length: 1000", "Expect: 100-continue"],
            )),
            status([100, SILENT]),
        ),
        attack(
            "100-continue for a body that is too large",
            raw(head(
                "POST /api/v1/write HTTP/1.1",
                &["Content-Length: 99999999999", "Expect: 100-continue"],
            )),
            status([413]),
        )
        .quick(),
        attack(
            "a body that ends early",
            script(|target| {
                let bytes = head("POST /api/v1/write HTTP/1.1", &["Content-Length: 1000"]) + "x";
                for _ in 0..200 {
                    if let Ok(mut connection) = target.connect() {
                        let _ = connection.write_all(bytes.as_bytes());
                    }
                }
                vec![query("1").send(target)]
            }),
            ok(),
        ),
    ]
}

fn bombs() -> Vec<Attack> {
    let written = |body: Vec<u8>| post("/api/v1/write").body(body);
    let read = |body: Vec<u8>| post("/api/v1/read").body(body);
    let groups = |coding: &str, body: Vec<u8>| {
        post("/api/v1/groups")
            .header("Content-Type", "application/json")
            .header("Content-Encoding", coding)
            .body(body)
    };
    let empty = || Message::default().0;
    vec![
        attack(
            "snappy that declares 2^32 - 1 bytes",
            written(false_snappy(u64::from(u32::MAX), "x")),
            status([400, 413]),
        )
        .quick(),
        attack(
            "snappy that declares 2^64 - 1 bytes",
            written(false_snappy(u64::MAX, "x")),
            status([400, 413]),
        )
        .quick(),
        attack(
            "snappy that declares 64 MiB and has 10 bytes",
            written(false_snappy(64 << 20, "0123456789")),
            status([400, 413, 429]),
        )
        .quick(),
        attack(
            "40 times snappy that declares 64 MiB",
            crate::attack::flood(40, 1, written(false_snappy(64 << 20, "0123456789"))),
            status([400, 413, 429]),
        ),
        attack("snappy that declares 0 bytes and has some", written(false_snappy(0, "x")), bad()),
        attack(
            "snappy with a copy before the start",
            written(false_snappy(10, [0x01, 0xff])),
            bad(),
        ),
        attack(
            "snappy with a copy of offset 0",
            written(false_snappy(100, [0x00, b'a', 0x01, 0x00])),
            bad(),
        ),
        attack(
            "snappy with a literal beyond its end",
            written(false_snappy(1_000, [0xfc, 0xff, 0xff, 0xff, 0xff])),
            bad(),
        ),
        attack("snappy with an endless length", written(vec![0xff; 100]), bad()),
        attack("a snappy stream", written(b"\xff\x06\x00\x00sNaPpY".to_vec()), bad()),
        attack(
            "snappy of 200 MB of zeros",
            post("/api/v1/write").make(|| snappy(vec![0; 200 << 20])),
            status([400, 413]),
        )
        .quick(),
        attack(
            "remote read: snappy of 200 MB of zeros",
            post("/api/v1/read").make(|| snappy(vec![0; 200 << 20])),
            status([400, 413]),
        ),
        attack(
            "remote read: snappy that declares 2^32 - 1 bytes",
            read(false_snappy(u64::from(u32::MAX), "x")),
            status([400, 413]),
        )
        .quick(),
        attack(
            "groups: snappy of 200 MB of blanks",
            groups("snappy", snappy(vec![b' '; 200 << 20])),
            status([400, 413]),
        ),
        attack("groups: gzip of 1 GiB", groups("gzip", gzip_bomb(1_024)), status([400, 413, 429]))
            .quick(),
        attack(
            "groups: gzip of 60 MB, 10 times",
            crate::attack::flood(10, 1, groups("gzip", gzip_bomb(60))),
            status([400, 413, 429, 503]),
        ),
        attack("groups: zstd", groups("zstd", zstd("{}")), status([415])),
        attack("groups: two codings", groups("gzip, snappy", empty()), status([415])),
        attack(
            "a form in gzip",
            post("/api/v1/query")
                .header("Content-Type", "application/x-www-form-urlencoded")
                .header("Content-Encoding", "gzip")
                .body(gzip_bomb(100)),
            survived(),
        ),
        attack("zstd as remote write", written(zstd(vec![0; 1 << 20])), bad()),
        attack("gzip as remote write", written(gzip_bomb(10)), bad()),
    ]
}
