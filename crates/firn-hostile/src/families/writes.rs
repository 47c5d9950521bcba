//! Writes: remote write, groups, text import and transactions with every mistake and excess.

use std::time::Duration;

use super::{base_s, json, load_labels, write, write_made};
use crate::attack::{
    Attack, Family, attack, bad, flood, limited, ok, script, status, survived, written,
};
use crate::client::{Request, insist, post};
use crate::target::{FORGED, Setup};
use crate::wire::{
    BYTES, GROUP, Message, VARINT, gzip, gzip_bomb, label, noise, one_series, sample, series,
    snappy,
};

pub(crate) fn family() -> Family {
    Family::new("writes", Setup::database(&["--query-timeout=5s"]))
        .because("no text of a client adds a line to a log or an error", lines())
        .because("a malformed message is refused completely, with its byte", malformed())
        .because("labels are checked before a series exists", labels())
        .because("times and values are data, whatever their bits", samples())
        .because("small messages that decode to large ones are paid for first", amplified())
        .because("groups are checked as a whole before one is written", groups())
        .because("a protobuf of groups is as untrusted as its JSON", groups_protobuf())
        .because("text is refused with its line, at any length", import())
        .because("a transaction is bounded before it starts", transactions())
        .because("many writers together stay within the budget", floods())
}

fn now_ms() -> i64 {
    base_s() * 1_000
}

/// Names and values that end a line, begin an event and control a terminal. The log shows the first
/// rejection of a minute.
fn lines() -> Vec<Attack> {
    let forged = format!("x\r\n{FORGED}\u{1b}[2J\u{202e}\u{85}");
    let labels = [("__name__", &*forged), (&*forged, &*forged)];
    let late = one_series(&labels, &[(now_ms() + 1_000_000_000, 1.0)]);
    let refused = || bad().lacks("\n2020").lacks("\u{1b}").lacks("\u{202e}");
    vec![
        attack("a label with the text of an event", write(late), refused()).quick(),
        attack(
            "an import with the text of an event",
            post("/api/v1/import/prometheus").body(format!("a{{\"{forged}\n")),
            refused(),
        )
        .quick(),
        attack(
            "a transaction with the text of an event",
            json("/api/v1/transaction", format!("{{\"{forged}\":1}}")),
            refused(),
        ),
    ]
}

fn malformed() -> Vec<Attack> {
    let empty = Message::default;
    let valid = || one_series(&[("__name__", "a")], &[(now_ms(), 1.0)]).0;
    let cut = |len: usize| empty().raw(&valid()[..len]);
    vec![
        attack("no body", post("/api/v1/write"), bad()).quick(),
        attack("no snappy", post("/api/v1/write").body("hello"), bad()).quick(),
        attack("snappy of text", write(empty().raw("hello, world")), bad()),
        attack("a series as a number", write(empty().varint(1, 7)), bad()),
        attack("a label as a number", write(empty().message(1, empty().varint(1, 7))), bad()),
        attack("a sample as a number", write(empty().message(1, empty().varint(2, 7))), bad()),
        attack(
            "a value as text",
            write(empty().message(1, empty().message(2, empty().bytes(1, "12345678")))),
            bad(),
        ),
        attack("metadata as a number", write(empty().varint(3, 7)), bad()),
        attack("a field with number 0", write(empty().varint(0, 7)), bad()),
        attack("a wire type that does not exist", write(empty().key(1, 7)), bad()).quick(),
        attack(
            "a varint of eleven bytes",
            write(empty().key(1, VARINT).raw([0xff; 10]).raw([1])),
            bad(),
        ),
        attack("a length beyond the end", write(empty().key(1, BYTES).raw([0xff, 0x7f])), bad())
            .quick(),
        attack(
            "a length of 2^63",
            write(
                empty().key(1, BYTES).raw([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
            ),
            bad(),
        ),
        attack(
            "a nested length beyond its parent",
            write(empty().bytes(1, [0x0a, 0x50, 0x0a, 0x01])),
            bad(),
        ),
        attack("the last byte is missing", write(cut(valid().len() - 1)), bad()),
        attack("only a key", write(empty().key(1, BYTES)), bad()),
        attack(
            "100,000 nested groups of protobuf",
            write((0..100_000).fold(empty(), |message, _| message.key(9, GROUP))),
            bad(),
        ),
        attack(
            "a group of protobuf without its end",
            write(empty().key(9, GROUP).varint(1, 1)),
            bad(),
        ),
        attack("unknown fields", write(empty().varint(15, 7).bytes(200, "x")), written()),
        attack(
            "remote write 2.0",
            write(empty()).header(
                "Content-Type",
                "application/x-protobuf;proto=io.prometheus.write.v2.Request",
            ),
            status([415]),
        )
        .quick(),
        attack("gzip", write(empty()).header("Content-Encoding", "gzip"), status([415])),
    ]
}

fn labels() -> Vec<Attack> {
    let at = || [(now_ms(), 1.0)];
    let one = move |labels: &[(&str, &str)]| write(one_series(labels, &at()));
    let raw_label = move |name: &[u8], value: &[u8]| {
        let labels = Message::default().message(1, label("__name__", "a"));
        let labels = labels.message(1, label(name, value));
        write(Message::default().message(1, labels.message(2, sample(now_ms(), 1.0))))
    };
    let many = |count: usize| {
        let named = Message::default().message(1, label("__name__", "a"));
        let all =
            (0..count).fold(named, |message, n| message.message(1, label(format!("l{n}"), "x")));
        write(Message::default().message(1, all.message(2, sample(now_ms(), 1.0))))
    };
    vec![
        attack("no label", one(&[]), bad()),
        attack("no metric name", one(&[("job", "a")]), bad()).quick(),
        attack("an empty metric name", one(&[("__name__", "")]), bad()),
        attack("a repeated label", one(&[("__name__", "a"), ("b", "1"), ("b", "2")]), bad()),
        attack("a repeated metric name", one(&[("__name__", "a"), ("__name__", "b")]), bad()),
        attack("an empty label name", one(&[("__name__", "a"), ("", "x")]), bad()),
        attack("a name that is not UTF-8", raw_label(b"\xff\xfe", b"x"), bad()),
        attack("a value that is not UTF-8", raw_label(b"b", b"\xc3\x28"), bad()).quick(),
        attack("a surrogate in a value", raw_label(b"b", b"\xed\xa0\x80"), bad()),
        attack("an overlong slash", raw_label(b"b", b"\xc0\xaf"), bad()),
        attack("a NUL in a value", raw_label(b"b", b"a\0b"), status([204, 400])),
        attack("a line break in a name", raw_label(b"a\nb", b"x"), status([204, 400])),
        attack("terminal escapes in a value", raw_label(b"b", b"\x1b[2J\x07"), status([204, 400])),
        attack("a right-to-left mark", raw_label(b"b", "\u{202e}txt".as_bytes()), written()),
        attack("a name of 64 KiB", raw_label(&[b'n'; 64 << 10], b"x"), bad()),
        attack("a value of 5 KiB", raw_label(b"b", &[b'v'; 5 << 10]), bad()),
        attack("a value of 5 MiB", raw_label(b"b", &vec![b'v'; 5 << 20]), bad()),
        attack("a metric name of 5 MiB", one(&[("__name__", &"m".repeat(5 << 20))]), bad()),
        attack("65 labels", many(65), bad()),
        attack("100,000 labels", many(100_000), bad()),
    ]
}

fn samples() -> Vec<Attack> {
    let at = |ts_ms: i64, value: f64| write(one_series(&[("__name__", "odd")], &[(ts_ms, value)]));
    vec![
        attack("the smallest time", at(i64::MIN, 1.0), status([204, 400])).quick(),
        attack("the largest time", at(i64::MAX, 1.0), bad()).quick(),
        attack("nanoseconds as milliseconds", at(now_ms() * 1_000_000, 1.0), bad()),
        attack("a time before 1970", at(-1, 1.0), status([204, 400])),
        attack(
            "a NaN with a payload",
            at(now_ms(), f64::from_bits(0x7ff8_dead_beef_cafe)),
            written(),
        ),
        attack(
            "the staleness marker",
            at(now_ms(), f64::from_bits(0x7ff0_0000_0000_0002)),
            written(),
        ),
        attack("infinity", at(now_ms(), f64::INFINITY), written()),
        attack("the smallest number", at(now_ms(), 5e-324), written()),
        attack(
            "a native histogram that is no message",
            write(Message::default().message(
                1,
                Message::default().message(1, label("__name__", "h")).bytes(4, [0xff; 50]),
            )),
            status([204, 400]),
        ),
        attack(
            "an exemplar that is no message",
            write(Message::default().message(
                1,
                Message::default().message(1, label("__name__", "e")).bytes(3, [0xff; 50]),
            )),
            status([204, 400]),
        ),
    ]
}

/// A repeated field in little space.
fn repeated(field: u64, count: usize) -> Message {
    let one = Message::default().bytes(field, []).0;
    Message(one.repeat(count))
}

fn amplified() -> Vec<Attack> {
    let inside = |field: u64, count: usize| {
        write_made(move || {
            let inner = Message::default().message(1, label("__name__", "a"));
            Message::default().message(1, inner.raw(repeated(field, count).0))
        })
    };
    vec![
        attack("8 million empty series", write_made(|| repeated(1, 8 << 20)), survived()).quick(),
        attack("30 million empty series", write_made(|| repeated(1, 30 << 20)), limited()),
        attack("8 million empty labels", inside(1, 8 << 20), survived()),
        attack("8 million empty samples", inside(2, 8 << 20), survived()),
        attack("30 million empty samples", inside(2, 30 << 20), survived()),
        attack("8 million empty exemplars", inside(3, 8 << 20), survived()),
        attack("8 million empty histograms", inside(4, 8 << 20), survived()),
        attack("8 million empty unknown fields", inside(9, 8 << 20), survived()),
        attack(
            "300,000 series without samples",
            write_made(|| {
                (0..300_000).fold(Message::default(), |message, n| {
                    let name = format!("n{n}");
                    message.message(1, series(&[("__name__", &name)], &[]))
                })
            }),
            survived(),
        )
        .quick(),
        attack(
            "one series 300,000 times",
            write_made(|| {
                let one = one_series(&[("__name__", "again")], &[(now_ms(), 1.0)]).0;
                Message(one.repeat(300_000))
            }),
            survived(),
        ),
        attack(
            "3,000 series with 4 KiB each, invalid at the end",
            // Beside the new series of earlier attacks there is no memory for it at first.
            script(|target| {
                let all = write_made(|| {
                    let all = (0..3_000).fold(Message::default(), |message, n| {
                        let value = noise(n, 4_000);
                        message.message(
                            1,
                            series(&[("__name__", "bad"), ("v", &value)], &[(now_ms(), 1.0)]),
                        )
                    });
                    all.varint(1, 1)
                });
                let patience = target.limit(Duration::from_secs(20));
                vec![insist(patience, || all.send(target), 400)]
            }),
            bad().within(30),
        ),
    ]
}

fn groups() -> Vec<Attack> {
    let define = |text: &str| json("/api/v1/groups", text);
    let write_rows = |text: &str| json("/api/v1/groups/write", text);
    let of = |labels: &str, members: &str| {
        format!(r#"{{"groups":[{{"labels":{labels},"members":{members}}}]}}"#)
    };
    let rows = |rows: &str| {
        format!(
            r#"{{"groups":[{{"labels":{{"g":"1"}},"members":[{{"__name__":"x"}}],"rows":{rows}}}]}}"#
        )
    };
    let members = |count: usize| {
        let all: Vec<String> = (0..count).map(|n| format!(r#"{{"__name__":"x{n}"}}"#)).collect();
        format!("[{}]", all.join(","))
    };
    vec![
        attack("no body", post("/api/v1/groups"), bad()).quick(),
        attack("no groups", define("{}"), status([200, 400])),
        attack("a member twice", define(&of(r#"{"g":"1"}"#, &members(1).replace(']', r#",{"__name__":"x0"}]"#))), bad()),
        attack("a member that repeats a label", define(&of(r#"{"g":"1"}"#, r#"[{"__name__":"x","g":"2"}]"#)), bad()),
        attack("a member without a name", define(&of(r#"{"g":"1"}"#, r#"[{"a":"b"}]"#)), bad()),
        attack("labels as a list", define(&of("[]", &members(1))), bad()).quick(),
        attack("20,000 members", define(&of(r#"{"g":"wide"}"#, &members(20_000))), status([200, 413, 429])),
        attack(
            "100,000 groups",
            post("/api/v1/groups").header("Content-Type", "application/json").make(|| {
                let one = r#"{"labels":{"g":"same"},"members":[{"__name__":"x"}]}"#;
                format!(r#"{{"groups":[{}]}}"#, vec![one; 100_000].join(",")).into_bytes()
            }),
            survived(),
        ),
        attack("a generation that does not exist", write_rows(r#"{"generation":"x","groups":[]}"#), status([200, 400, 404])),
        attack(
            "an id beyond all",
            write_rows(r#"{"generation":"x","groups":[{"group":18446744073709551615,"slots":[0],"rows":[{"timestamp":1,"values":[1]}]}]}"#),
            status([400, 404]),
        ).quick(),
        attack(
            "a slot of 2^32",
            write_rows(r#"{"generation":"x","groups":[{"group":1,"slots":[4294967296],"rows":[]}]}"#),
            status([400, 404]),
        ),
        attack("a row with too many values", write_rows(&rows(r#"[{"timestamp":1,"values":[1,2]}]"#)), bad()),
        attack("a row without a time", write_rows(&rows(r#"[{"values":[1]}]"#)), bad()),
        attack("a time of 1e300", write_rows(&rows(r#"[{"timestamp":1e300,"values":[1]}]"#)), bad()),
        attack("a value of 1e999", write_rows(&rows(&format!(r#"[{{"timestamp":{},"values":[1e999]}}]"#, now_ms()))), status([200, 400])),
        attack(
            "2 million rows of one time",
            post("/api/v1/groups/write").header("Content-Type", "application/json").make(move || {
                let one = format!(r#"{{"timestamp":{},"values":[1]}}"#, now_ms());
                let rows = vec![one; 1_000_000].join(",");
                format!(r#"{{"groups":[{{"labels":{{"g":"1"}},"members":[{{"__name__":"x"}}],"rows":[{rows}]}}]}}"#).into_bytes()
            }),
            survived(),
        ),
        attack("a group in text", post("/api/v1/groups").header("Content-Type", "text/plain").body("{}"), status([200, 400, 415])),
        attack("a group in an unknown coding", define("{}").header("Content-Encoding", "br"), status([415])),
        attack("groups by gzip that is none", define("{}").header("Content-Encoding", "gzip"), bad()),
    ]
}

fn groups_protobuf() -> Vec<Attack> {
    let proto = |path: &str, message: Message| -> Request {
        post(path).header("Content-Type", "application/x-protobuf").body(message.0)
    };
    let define = move |message: Message| proto("/api/v1/groups", message);
    let rows = move |message: Message| proto("/api/v1/groups/write", message);
    let packed = |make: fn() -> Message| {
        post("/api/v1/groups/write")
            .header("Content-Type", "application/x-protobuf")
            .header("Content-Encoding", "snappy")
            .make(move || snappy(make().0))
    };
    let group = || {
        let labels = Message::default().message(1, label("g", "p"));
        let member = Message::default().message(1, label("__name__", "p"));
        labels.message(2, member)
    };
    let row = |columns: &[u8], values: &[u8]| {
        let row = Message::default().varint(1, now_ms() as u64);
        row.bytes(2, values).bytes(3, columns)
    };
    let with_row = move |row: Message| rows(Message::default().message(3, group().message(6, row)));
    vec![
        attack("text as protobuf", define(Message::default().raw("hello")), bad()).quick(),
        attack("a group as a number", define(Message::default().varint(3, 1)), bad()),
        attack("a column beyond the members", with_row(row(&[9], &1f64.to_le_bytes())), bad()),
        attack(
            "a column of 2^63",
            with_row(row(
                &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
                &1f64.to_le_bytes(),
            )),
            bad(),
        ),
        attack("a column twice", with_row(row(&[0, 0], &[0; 16])), bad()),
        attack("values of seven bytes", with_row(row(&[], &[0; 7])), bad()),
        attack("more values than members", with_row(row(&[], &[0; 800])), bad()),
        attack("8 million empty groups", packed(|| repeated(3, 8 << 20)), survived()).quick(),
        attack(
            "8 million empty rows",
            packed(|| {
                let group = Message::default().message(1, label("g", "p"));
                let member = Message::default().message(1, label("__name__", "p"));
                Message::default().message(3, group.message(2, member).raw(repeated(6, 8 << 20).0))
            }),
            survived(),
        ),
        attack(
            "8 million empty members",
            packed(|| {
                let group = Message::default().message(1, label("g", "p"));
                Message::default().message(3, group.raw(repeated(2, 8 << 20).0))
            }),
            survived(),
        ),
        attack(
            "8 million empty labels",
            packed(|| Message::default().message(3, repeated(1, 8 << 20))),
            survived(),
        ),
        attack(
            "30 million slots",
            packed(|| {
                Message::default()
                    .bytes(1, "x")
                    .message(3, Message::default().varint(4, 1).bytes(5, vec![1; 30 << 20]))
            }),
            survived(),
        ),
        attack(
            "100,000 nested groups of protobuf",
            define((0..100_000).fold(Message::default(), |message, _| message.key(9, GROUP))),
            bad(),
        ),
    ]
}

fn import() -> Vec<Attack> {
    let text = |text: &str| post("/api/v1/import/prometheus").body(text);
    let made =
        |make: fn() -> String| post("/api/v1/import/prometheus").make(move || make().into_bytes());
    let packed = |bytes: Vec<u8>| {
        post("/api/v1/import/prometheus").header("Content-Encoding", "gzip").body(bytes)
    };
    vec![
        attack("bytes", post("/api/v1/import/prometheus").body([0xff, 0xfe, 0, 1]), bad()).quick(),
        attack("an open quote", text("a{b=\"c"), bad()),
        attack("an open brace", text("a{"), bad()),
        attack("a value that is none", text("a nope"), bad()),
        attack(
            "a number of 4 MB",
            made(|| format!("a {}", "9".repeat(4 << 20))),
            status([204, 400]),
        )
        .quick(),
        attack("a wrong number of 4 MB", made(|| format!("a {}x", "9".repeat(4 << 20))), bad()),
        attack("a time of 4 MB", made(|| format!("a 1 {}", "9".repeat(4 << 20))), bad()),
        attack("60 MB without a line break", made(|| "a".repeat(60 << 20)), limited()),
        attack(
            "an open quote of 60 MB",
            made(|| format!("a{{b=\"{}", "x".repeat(60 << 20))),
            limited(),
        ),
        attack("4 million empty lines", made(|| "\n".repeat(4 << 20)), written()),
        attack("1 million comments", made(|| "# no\n".repeat(1 << 20)), written()),
        attack(
            "500,000 types",
            made(|| (0..500_000).map(|n| format!("# TYPE t{n} counter\n")).collect()),
            survived(),
        ),
        attack(
            "a help of 20 MB",
            made(|| format!("# HELP h {}\nh 1\n", "x".repeat(20 << 20))),
            survived(),
        ),
        attack("a time of 400 digits", text(&format!("a 1 {}", "1".repeat(400))), bad()),
        attack(
            "an exponent of 400 digits",
            text(&format!("a 1e{}\n", "9".repeat(400))),
            status([204, 400]),
        ),
        attack(
            "100,000 labels",
            text(&format!(
                "a{{{}}} 1\n",
                (0..100_000).map(|n| format!("l{n}=\"x\",")).collect::<String>()
            )),
            bad(),
        ),
        attack("gzip that unpacks to 1 GiB", packed(gzip_bomb(1_024)), status([413, 429])).quick(),
        attack("gzip that is cut", packed(gzip("a 1\n".repeat(1_000))[..50].to_vec()), bad()),
        attack("gzip in gzip", packed(gzip(gzip("a 1\n"))), bad()),
        attack("100,000 gzip members", packed(gzip("\n").repeat(100_000)), survived()),
        attack(
            "a coding that is unknown",
            text("a 1\n").header("Content-Encoding", "zstd"),
            status([415]),
        ),
        attack(
            "60 kB of added labels on 8,000 series",
            post(format!(
                "/api/v1/import/prometheus?{}",
                (0..60)
                    .map(|n| format!("extra_label=l{n}={}&", "v".repeat(1_000)))
                    .collect::<String>()
            ))
            .make(|| {
                let lines = (0..8_000).map(|idx| format!("m{{i=\"{idx}\"}} 1\n"));
                lines.collect::<String>().into_bytes()
            }),
            limited(),
        )
        .quick(),
        attack(
            "an extra label without a value",
            post("/api/v1/import/prometheus?extra_label=x").body("a 1\n"),
            bad(),
        ),
        attack(
            "2,000 extra labels",
            post(format!(
                "/api/v1/import/prometheus?{}",
                (0..2_000).map(|n| format!("extra_label=l{n}=x&")).collect::<String>()
            ))
            .body("a 1\n"),
            bad(),
        ),
        attack(
            "a default time that is none",
            post("/api/v1/import/prometheus?timestamp=soon").body("a 1\n"),
            bad(),
        ),
    ]
}

fn transactions() -> Vec<Attack> {
    let operations =
        |list: &str| json("/api/v1/transaction", format!(r#"{{"operations":[{list}]}}"#));
    let many = |count: usize, one: fn(usize) -> String| {
        let all: Vec<String> = (0..count).map(one).collect();
        json("/api/v1/transaction", format!(r#"{{"operations":[{}]}}"#, all.join(",")))
    };
    vec![
        attack("no body", post("/api/v1/transaction"), bad()).quick(),
        attack("no operations", operations(""), status([200, 400])),
        attack(
            "10,001 operations",
            many(10_001, |_| r#"{"op":"read","match":"nothing"}"#.to_owned()),
            status([400, 413]),
        ),
        attack(
            "10,000 reads of everything",
            many(10_000, |_| r#"{"op":"read","match":"load"}"#.to_owned()),
            limited(),
        )
        .quick(),
        attack(
            "1,000 reads of everything",
            many(1_000, |_| r#"{"op":"read","match":"load"}"#.to_owned()),
            limited(),
        ),
        attack(
            "a read of all series",
            operations(r#"{"op":"read","match":"{__name__=~\".+\"}"}"#),
            // 422 over --query-memory, which depends on the series of earlier attacks.
            status([200, 400, 413, 422, 429]),
        ),
        attack(
            "10,000 inserts with 4 KiB labels",
            many(10_000, |n| {
                format!(
                    r#"{{"op":"insert","series":{{"__name__":"fat","v":"{}"}},"timestamp":{},"value":1}}"#,
                    noise(n as u64, 4_000),
                    now_ms()
                )
            }),
            survived(),
        ),
        attack(
            "an overwrite of everything",
            operations(r#"{"op":"update","match":"{__name__=~\".+\"}","value":666}"#),
            status([400, 403]),
        )
        .quick(),
        attack(
            "a delete of everything",
            operations(r#"{"op":"delete","match":"{__name__=~\".+\"}"}"#),
            status([400, 403]),
        )
        .quick(),
        attack(
            "a delete of one sample",
            operations(&format!(r#"{{"op":"delete","series":{},"timestamp":1}}"#, load_labels())),
            status([400, 403]),
        ),
        attack("an unknown operation", operations(r#"{"op":"drop"}"#), bad()),
        attack(
            "a digest that is none",
            operations(r#"{"op":"read","match":"load","digest":"x"}"#),
            bad(),
        ),
        attack(
            "a time with a fraction",
            operations(r#"{"op":"insert","series":{"__name__":"a"},"timestamp":1.5,"value":1}"#),
            bad(),
        ),
        attack(
            "a compressed transaction",
            operations("").header("Content-Encoding", "gzip"),
            status([415]),
        ),
        attack(
            "20 conflicting transactions",
            flood(
                20,
                10,
                operations(&format!(
                    r#"{{"op":"insert","series":{{"__name__":"hot"}},"timestamp":{0},"value":1}},{{"op":"update","series":{{"__name__":"hot"}},"timestamp":{0},"add":1}}"#,
                    now_ms()
                )),
            ),
            status([200, 409, 429]),
        ),
        attack(
            "a regular read",
            operations(r#"{"op":"read","match":"load{path=\"/path/1\"}"}"#),
            ok(),
        ),
    ]
}

fn floods() -> Vec<Attack> {
    // Different series in each sending: the time in microseconds is part of the labels.
    let new_series = |count: u64, value_bytes: usize| {
        write_made(move || {
            let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let seed = time.map_or(0, |time| time.as_nanos() as u64);
            (0..count).fold(Message::default(), |message, n| {
                let value = noise(seed ^ (n << 40), value_bytes);
                let labels = [("__name__", "flood"), ("value", value.as_str())];
                message.message(1, series(&labels, &[(now_ms(), 1.0)]))
            })
        })
    };
    vec![
        attack(
            "16 writers of new series",
            flood(16, 4, new_series(1_000, 500)),
            status([204, 429, 503]),
        ),
        attack(
            "40 writers of long labels",
            flood(40, 2, new_series(400, 1_500)),
            status([204, 429, 503]),
        ),
        attack(
            "16 writers of 30 MB",
            flood(16, 1, post("/api/v1/write").make(|| snappy(noise(1, 1 << 20).repeat(30)))),
            // One alone needs more than a request may take; several may fill the memory before that
            // is known.
            status([413, 429, 503]),
        )
        .quick(),
        attack(
            "16 writers of 10 MB",
            flood(16, 1, post("/api/v1/write").make(|| snappy(noise(1, 1 << 20).repeat(10)))),
            status([400, 429, 503]),
        )
        .quick(),
        attack(
            "30 gzip bombs",
            flood(
                30,
                1,
                post("/api/v1/import/prometheus")
                    .header("Content-Encoding", "gzip")
                    .body(gzip_bomb(60)),
            ),
            status([204, 413, 429, 503]),
        ),
        attack(
            "30 messages of empty series",
            flood(30, 1, write_made(|| repeated(1, 4 << 20))),
            status([204, 400, 413, 429, 503]),
        ),
    ]
}
