//! TLS: junk and halves of handshakes, old versions, plain text, and attacks inside of it.

use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::time::Duration;

use super::{base_s, query, range, write};
use crate::attack::{
    Action, Attack, Expect, Family, attack, deaf, flood, hold, ok, raw, script, status, written,
};
use crate::client::{Answer, CLOSED, SILENT, TEXT, all_answers, get, post};
use crate::dial::Connection;
use crate::target::{Setup, Target};
use crate::wire::one_series;

const CERTIFICATE: &str = include_str!("test-certificate.pem");
const KEY: &str = include_str!("test-key.pem");

pub(crate) fn family() -> Family {
    let setup =
        Setup::database(&["--connections-max=64", "--query-timeout=5s"]).prepared(files).tls();
    Family::new("tls", setup)
        .because("bytes that are no handshake end the connection", junk())
        .because("versions and suites without security are not spoken", old())
        .because("a handshake costs a place only until its timeout", halves())
        .because("inside of TLS everything holds as without it", inside())
}

fn files(folder: &Path) -> io::Result<Vec<String>> {
    fs::write(folder.join("cert.pem"), CERTIFICATE)?;
    fs::write(folder.join("key.pem"), KEY)?;
    let path = folder.join("web.yml");
    fs::write(&path, "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n")?;
    Ok(vec![format!("--web-config={}", path.display())])
}

/// Bytes below TLS.
fn plain(bytes: impl Into<Vec<u8>>) -> Action {
    let bytes = bytes.into();
    script(move |target| {
        let Ok(mut stream) = target.connect_plain() else { return Vec::new() };
        let _ = stream.write_all(&bytes);
        all_answers(&mut (Box::new(stream) as Box<dyn Connection>))
    })
}

fn ended() -> Expect {
    status([CLOSED, TEXT, 400, SILENT]).lacks("/path/")
}

/// A record of TLS.
fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = (body.len() as u16).to_be_bytes();
    [&[kind, 3, 1][..], &len, body].concat()
}

/// A `ClientHello`.
fn hello(version: [u8; 2], suites: &[[u8; 2]], extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut body = version.to_vec();
    body.extend_from_slice(&[7; 32]);
    body.push(0);
    body.extend_from_slice(&((suites.len() * 2) as u16).to_be_bytes());
    body.extend(suites.iter().flatten());
    body.extend_from_slice(&[1, 0]);
    let mut list = Vec::new();
    for (kind, value) in extensions {
        list.extend_from_slice(&kind.to_be_bytes());
        list.extend_from_slice(&(value.len() as u16).to_be_bytes());
        list.extend_from_slice(value);
    }
    body.extend_from_slice(&(list.len() as u16).to_be_bytes());
    body.extend_from_slice(&list);
    let len = (body.len() as u32).to_be_bytes();
    [&[1, len[1], len[2], len[3]][..], &body].concat()
}

const SUITES: &[[u8; 2]] = &[[0x13, 0x01], [0xc0, 0x2b], [0xc0, 0x2f]];

fn junk() -> Vec<Attack> {
    vec![
        attack(
            "plain HTTP",
            plain("GET /api/v1/query?query=load HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
            ended(),
        )
        .quick(),
        attack("bytes", plain(vec![0xa5; 10_000]), ended()).quick(),
        attack(
            "a record of 64 KiB",
            plain([&[22, 3, 1, 0xff, 0xff][..], &[0; 65_535]].concat()),
            ended(),
        )
        .quick(),
        attack("100,000 empty records", plain(record(22, &[]).repeat(100_000)), ended()),
        attack("100,000 warnings", plain(record(21, &[1, 90]).repeat(100_000)), ended()),
        attack("data before the handshake", plain(record(23, b"GET / HTTP/1.1\r\n\r\n")), ended()),
        attack("a heartbeat that claims 16 KiB", plain(record(24, &[1, 0x40, 0])), ended()).quick(),
        attack("an unknown record", plain(record(99, &[0; 100])), ended()),
        attack("a hello of 2^24 bytes", plain(record(22, &[1, 0xff, 0xff, 0xff])), ended()).quick(),
        attack(
            "a hello that ends early",
            plain(record(22, &hello([3, 3], SUITES, &[])[..20])),
            ended(),
        ),
        attack(
            "a hello with an extension beyond its end",
            plain(record(22, &{
                let mut hello = hello([3, 3], SUITES, &[(0, vec![0; 10])]);
                let len = hello.len();
                hello[len - 11] = 0xff;
                hello
            })),
            ended(),
        ),
        attack(
            "a server name of 16 kB",
            plain(record(22, &hello([3, 3], SUITES, &[(0, vec![b'a'; 16_000])]))),
            ended(),
        ),
        attack(
            "4,000 unknown extensions",
            plain(record(
                22,
                &hello(
                    [3, 3],
                    SUITES,
                    &(0..4_000).map(|n| (0x4000 + n, vec![])).collect::<Vec<_>>(),
                ),
            )),
            ended(),
        ),
        attack(
            "a repeated extension",
            plain(record(22, &hello([3, 3], SUITES, &[(23, vec![]), (23, vec![])]))),
            ended(),
        ),
        attack(
            "a hello, a byte per record",
            plain(
                hello([3, 3], SUITES, &[])
                    .iter()
                    .flat_map(|byte| record(22, &[*byte]))
                    .collect::<Vec<_>>(),
            ),
            ended(),
        ),
        attack(
            "1,000 hellos",
            plain(record(22, &hello([3, 3], SUITES, &[])).repeat(1_000)),
            ended(),
        ),
    ]
}

fn old() -> Vec<Attack> {
    let refused = || status([CLOSED, TEXT]);
    vec![
        attack("SSL 2", plain([0x80, 0x2e, 1, 0, 2, 0, 0x15, 0, 0, 0, 0x10]), ended()).quick(),
        attack("SSL 3", plain(record(22, &hello([3, 0], SUITES, &[]))), refused()).quick(),
        attack("TLS 1.0", plain(record(22, &hello([3, 1], SUITES, &[]))), refused()).quick(),
        attack("TLS 1.1", plain(record(22, &hello([3, 2], SUITES, &[]))), refused()).quick(),
        attack(
            "only TLS 1.0 by extension",
            plain(record(22, &hello([3, 3], SUITES, &[(43, vec![2, 3, 1])]))),
            refused(),
        ),
        attack(
            "suites of export grade",
            plain(record(22, &hello([3, 3], &[[0, 3], [0, 6], [0, 8]], &[]))),
            refused(),
        ),
        attack(
            "suites without encryption",
            plain(record(22, &hello([3, 3], &[[0, 1], [0, 2], [0, 0x3b]], &[]))),
            refused(),
        ),
        attack("RC4", plain(record(22, &hello([3, 3], &[[0, 4], [0, 5]], &[]))), refused()),
        attack(
            "a fallback",
            plain(record(22, &hello([3, 2], &[[0x56, 0], [0xc0, 0x2b]], &[]))),
            refused(),
        ),
    ]
}

fn beside(count: usize, bytes: Vec<u8>) -> Action {
    script(move |target| {
        let open: Vec<_> = (0..count)
            .filter_map(|_| {
                let mut stream = target.connect_plain().ok()?;
                stream.write_all(&bytes).ok()?;
                Some(stream)
            })
            .collect();
        std::thread::sleep(Duration::from_millis(500));
        let answers = (0..5).map(|_| query("1").send(target)).collect();
        drop(open);
        answers
    })
}

fn resets(target: &Target) -> Vec<Answer> {
    let hello = record(22, &hello([3, 3], SUITES, &[(10, vec![0, 2, 0, 23])]));
    for _ in 0..500 {
        if let Ok(mut stream) = target.connect_plain() {
            let _ = stream.write_all(&hello);
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
    vec![query("1").send(target)]
}

fn halves() -> Vec<Attack> {
    let hello =
        || record(22, &hello([3, 3], SUITES, &[(10, vec![0, 2, 0, 23]), (13, vec![0, 2, 4, 3])]));
    vec![
        attack("60 silent connections", beside(60, Vec::new()), ok().within(8)),
        attack("300 silent connections", beside(300, Vec::new()), ok().within(8)).quick(),
        attack("300 halves of a record", beside(300, vec![22, 3, 1, 2]), ok().within(8)).quick(),
        attack("300 hellos without an answer", beside(300, hello()), ok().within(8)).quick(),
        attack("500 hellos that are reset", script(resets), ok()),
        attack(
            "a silent connection is closed after its timeout",
            script(|target| {
                let Ok(mut stream) = target.connect_plain() else { return Vec::new() };
                let _ = stream.set_read_timeout(Some(Duration::from_secs(18)));
                let mut byte = [0; 1];
                let read = stream.read(&mut byte);
                let is_closed = !read.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
                vec![Answer::of_status(if is_closed { CLOSED } else { SILENT })]
            }),
            status([CLOSED]),
        ),
        attack("200 handshakes", flood(20, 10, get("/-/healthy")), ok()),
    ]
}

fn inside() -> Vec<Attack> {
    vec![
        attack(
            "a regular write",
            write(one_series(&[("__name__", "secure")], &[(base_s() * 1_000, 1.0)])),
            written(),
        )
        .quick(),
        attack("bytes that are not HTTP", raw([0xff; 100]), status([400, CLOSED])),
        attack(
            "a length and chunks",
            raw(
                "POST /api/v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            ),
            status([400, CLOSED, SILENT]),
        ),
        attack(
            "300 half heads",
            hold(60, 2, "GET /-/healthy HTTP/1.1\r\nX"),
            status([SILENT, CLOSED, TEXT]).or(408),
        ),
        attack("40 clients that do not read", deaf(40, 3, range("load", 20)), status([SILENT])),
        attack(
            "a write of 60 MB",
            post("/api/v1/write").make(|| vec![0; 60 << 20]),
            status([413, CLOSED]),
        ),
        attack(
            "another host",
            get("/api/v1/query?query=load").header("Host", "evil.example"),
            status([400, 403, 421]),
        ),
    ]
}
