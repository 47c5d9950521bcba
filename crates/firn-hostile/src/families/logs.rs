//! Logs: floods of requests with long texts, which a log repeats only in part.

use std::fs;
use std::io;
use std::path::Path;

use super::{json, query};
use crate::attack::{Action, Attack, Expect, Family, attack, bad, flood, status};
use crate::client::{Request, form, get};
use crate::target::{Setup, Target};

/// Of each text.
const TEXT_BYTES: usize = 200_000;
/// Of the three logs together, for each request.
const LOG_BYTES_MAX: usize = 20_000;
const CLIENTS: usize = 4;
const TIMES: usize = 15;

pub(crate) fn family() -> Family {
    let setup = Setup::database(&["--query-timeout=5s", "--enable-admin-api"]).prepared(prepare);
    Family::new("logs", setup).because("a log repeats the beginning of a text", texts())
}

fn prepare(folder: &Path) -> io::Result<Vec<String>> {
    let flag = |name| format!("--{name}-log={}", folder.join(name).display());
    Ok(vec![flag("query"), flag("audit")])
}

fn texts() -> Vec<Attack> {
    let long = "x".repeat(TEXT_BYTES);
    let delete = |text: String| form("/api/v1/admin/tsdb/delete_series", [("match[]", text)]);
    let operation = format!(r#"{{"op":"delete","match":"{{x=\"{long}\"}}","start":0,"end":1}}"#);
    vec![
        attack("queries with a long comment", many(query(format!("1 # {long}"))), kept([200]))
            .quick(),
        attack(
            "queries with a long text that fail",
            many(query(format!("label_join(vector(1), \"{long}\", \"\", \"a\")"))),
            kept([400, 422]),
        ),
        attack("queries that are wrong at their end", many(query(format!("{long}("))), kept([400])),
        attack("deletes of a long value", many(delete(format!("{{x=\"{long}\"}}"))), kept([204])),
        attack(
            "transactions with a long value",
            many(json("/api/v1/transaction", format!(r#"{{"operations":[{operation}]}}"#))),
            kept([200]),
        ),
        attack(
            "a path of 50 kB",
            get(format!("/api/v1/{}", &long[..50_000])),
            bad().or(404).or(414),
        ),
    ]
}

fn many(request: Request) -> Action {
    flood(CLIENTS, TIMES, request)
}

/// The logs stay short.
fn kept(statuses: impl IntoIterator<Item = u16>) -> Expect {
    // Some requests may be refused for the memory of others.
    status(statuses).or(429).or(503).check(|_, target| {
        // Those of all attacks so far.
        let attacks = texts().len();
        let (found, most) = (log_bytes(target), attacks * CLIENTS * TIMES * LOG_BYTES_MAX);
        if found < most { Ok(()) } else { Err(format!("{found} bytes of logs")) }
    })
}

fn log_bytes(target: &Target) -> usize {
    let size = |name| fs::metadata(target.folder().join(name)).map_or(0, |file| file.len());
    ["query", "audit", "log"].map(size).iter().sum::<u64>() as usize
}
