//! Metadata of metrics: types, helps and units that a sender repeats, and the database keeps.

use super::{base_s, write_made};
use crate::attack::{Attack, Family, attack, flood, ok, script, status, survived};
use crate::client::{Request, get, post};
use crate::target::Setup;
use crate::wire::{Message, noise};

pub(crate) fn family() -> Family {
    Family::new("metadata", Setup::database(&[]))
        .because("metadata is charged to the budget before it is kept", writes())
        .because("the list is sent in parts of bounded size", reads())
}

fn entry(name: &str, help: &str, unit: &str) -> Message {
    Message::default().varint(1, 1).bytes(2, name).bytes(4, help).bytes(5, unit)
}

/// `count` entries with helps of `help_bytes`.
fn entries(count: usize, help_bytes: usize) -> Request {
    write_made(move || {
        let help = noise(7, help_bytes);
        (0..count).fold(Message::default(), |message, n| {
            message.message(3, entry(&format!("meta_{count}_{help_bytes}_{n}"), &help, "bytes"))
        })
    })
}

fn writes() -> Vec<Attack> {
    let text =
        |make: fn() -> String| post("/api/v1/import/prometheus").make(move || make().into_bytes());
    vec![
        attack(
            "4 million empty entries",
            write_made(|| Message([0x1a, 0].repeat(4 << 20))),
            survived(),
        )
        .quick(),
        attack(
            "8 clients with 4 million empty entries",
            flood(8, 1, write_made(|| Message([0x1a, 0].repeat(4 << 20)))),
            survived(),
        ),
        attack(
            "30 million empty entries",
            write_made(|| Message([0x1a, 0].repeat(30 << 20))),
            survived(),
        ),
        attack(
            "an entry without a name",
            write_made(|| Message::default().message(3, entry("", "h", "u"))),
            survived(),
        ),
        attack(
            "an unknown type",
            write_made(|| {
                Message::default().message(3, Message::default().varint(1, 77).bytes(2, "m"))
            }),
            status([204, 400]),
        ),
        attack(
            "a help that is not UTF-8",
            write_made(|| {
                Message::default().message(3, Message::default().bytes(2, "m").bytes(4, b"\xff"))
            }),
            status([204, 400]),
        ),
        attack(
            "a help of 20 MB",
            write_made(|| Message::default().message(3, entry("long", &noise(1, 20 << 20), ""))),
            survived(),
        )
        .quick(),
        attack(
            "a name of 20 MB",
            write_made(|| Message::default().message(3, entry(&noise(1, 20 << 20), "", ""))),
            survived(),
        ),
        attack(
            "a unit of 20 MB",
            write_made(|| Message::default().message(3, entry("unit", "", &noise(1, 20 << 20)))),
            survived(),
        ),
        attack(
            "30,000 metrics with helps of 3 KiB, by 15 requests",
            script(|target| {
                (0..15).map(|part: usize| entries(2_000, 3_000 + part).send(target)).collect()
            }),
            survived(),
        )
        .quick(),
        attack(
            "300,000 metrics with short helps",
            script(|target| {
                (0..10).map(|part: usize| entries(30_000, 10 + part).send(target)).collect()
            }),
            survived(),
        ),
        attack(
            "one metric with 1,000 helps",
            script(|target| {
                let request = write_made(|| {
                    (0..1_000).fold(Message::default(), |message, n| {
                        message.message(3, entry("same", &noise(n, 3_000), "u"))
                    })
                });
                vec![request.send(target)]
            }),
            survived(),
        ),
        attack(
            "100,000 helps as text",
            text(|| (0..100_000).map(|n| format!("# HELP text_{n} {}\n", noise(n, 100))).collect()),
            survived(),
        ),
        attack(
            "a help with escapes",
            text(|| {
                format!(
                    "# HELP escaped {}\nescaped 1 {}\n",
                    r"\\\n".repeat(10_000),
                    base_s() * 1_000
                )
            }),
            survived(),
        ),
        attack("8 clients with helps of 3 KiB", flood(8, 2, entries(3_000, 2_900)), survived()),
    ]
}

fn reads() -> Vec<Attack> {
    vec![
        attack("all metadata", get("/api/v1/metadata"), ok().at_most_bytes(128 << 20)).quick(),
        attack(
            "all metadata by 20 clients",
            flood(20, 1, get("/api/v1/metadata")),
            status([200, 429, 500, 503]),
        )
        .quick(),
        attack("a negative limit", get("/api/v1/metadata?limit=-1"), status([200, 400])),
        attack(
            "a limit of 20 digits",
            get("/api/v1/metadata?limit=99999999999999999999"),
            status([200, 400]),
        ),
        attack(
            "a metric of 60 kB",
            get(format!("/api/v1/metadata?metric={}", "m".repeat(60_000))),
            status([200, 400, 414, 431]).at_most_bytes(8 << 10),
        ),
        attack(
            "metadata of all targets",
            get("/api/v1/targets/metadata"),
            status([200, 400, 404, 429, 500, 503]),
        ),
    ]
}
