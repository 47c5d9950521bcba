//! Answers that are larger than the data: labels of control characters, which JSON and other
//! formats write with up to six bytes each, through every endpoint that repeats labels.

use super::{base_s, json, query, range, write_made};
use crate::attack::{Attack, Family, attack, flood, script, status};
use crate::client::{Request, form, get, post};
use crate::target::Setup;
use crate::wire::{Message, series, snappy};

pub(crate) fn family() -> Family {
    Family::new("answers", Setup::database(&["--query-timeout=5s"]))
        .because("the data of this family", [large_labels(), underscores()])
        .because("an answer is reserved before it is written", answers())
}

const SERIES_COUNT: usize = 2_000;
const BATCH: usize = 100;

/// Writes groups of four series with 4 kB of control characters each; later ones may be refused.
fn large_labels() -> Attack {
    let write = |first: usize| {
        write_made(move || {
            let mut request = Message::default();
            for n in first..first + BATCH {
                // Half of the text names a group, half a member.
                let text = "\u{1}".repeat(2_000);
                let (group, member) = (format!("{text}{}", n / 4), format!("{text}{}", n % 4));
                let labels = [
                    ("__name__", "large"),
                    ("instance", group.as_str()),
                    ("job", "large"),
                    ("text", member.as_str()),
                ];
                request = request.message(1, series(&labels, &[(base_s() * 1_000, n as f64)]));
            }
            request
        })
    };
    let write_all = script(move |target| {
        (0..SERIES_COUNT).step_by(BATCH).map(|first| write(first).send(target)).collect()
    });
    attack("series with labels of 4 kB", write_all, status([204, 429, 503])).quick()
}

/// Writes series with names of underscores, of which an escape makes twice as many.
fn underscores() -> Attack {
    let write = |first: usize| {
        write_made(move || {
            (first..first + BATCH).fold(Message::default(), |request, n| {
                let name = |c: char| format!("{c}{}{n}", "_".repeat(900));
                let names = ['a', 'b', 'c', 'd'].map(name);
                let mut labels = vec![("__name__", "underscores"), ("job", "large")];
                labels.extend(names.iter().map(|name| (name.as_str(), "v")));
                request.message(1, series(&labels, &[(base_s() * 1_000, n as f64)]))
            })
        })
    };
    let write_all = script(move |target| {
        (0..SERIES_COUNT).step_by(BATCH).map(|first| write(first).send(target)).collect()
    });
    attack("series with names of underscores", write_all, status([204, 400, 429, 503])).quick()
}

fn answers() -> Vec<Attack> {
    let accepting = |accept: &str| get("/federate?match[]=large").header("Accept", accept);
    let escaped = |scheme: &str| {
        let accept = format!("text/plain;version=1.0.0;escaping={scheme}");
        get("/federate?match[]=underscores").header("Accept", accept)
    };
    let matcher = Message::default().bytes(2, "__name__").bytes(3, "large");
    let read_query = Message::default().varint(2, (base_s() * 1_000) as u64).message(3, matcher);
    let rows: Vec<(&str, Request)> = vec![
        ("TSDB status", get("/api/v1/status/tsdb?limit=10000")),
        ("group savings", get("/api/v1/status/groups?limit=10000")),
        ("groups", get("/api/v1/groups?lone=true")),
        ("series", form("/api/v1/series", [("match[]", "large")])),
        ("label values", get("/api/v1/label/instance/values")),
        ("values of matched series", get("/api/v1/label/instance/values?match[]=large")),
        ("an instant query", query("large")),
        ("a range query", range("large", 10)),
        (
            "a query with a copy of each label",
            query(r#"label_replace(large,"y","$1","instance","(.*)")"#),
        ),
        ("count_values of each", query(r#"count by (instance, text) (large)"#)),
        ("a query with statistics", form("/api/v1/query", [("query", "large"), ("stats", "all")])),
        ("federation", accepting("text/plain")),
        ("federation of names with dots", escaped("dots")),
        ("federation of names with values", escaped("values")),
        (
            "federation in OpenMetrics",
            accepting("application/openmetrics-text;version=1.0.0;escaping=values"),
        ),
        (
            "federation in protobuf",
            accepting(
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
            ),
        ),
        (
            "remote read",
            post("/api/v1/read").body(snappy(Message::default().message(1, read_query).0)),
        ),
        (
            "a transaction's read",
            json("/api/v1/transaction", r#"{"operations":[{"op":"read","match":"large"}]}"#),
        ),
        ("the parse of a string", query(format!("\"{}\"", "\\u0001".repeat(150_000)))),
        (
            "a query that is a string",
            form("/api/v1/parse_query", [("query", format!("\"{}\"", "\u{1}".repeat(900_000)))]),
        ),
        (
            "a formatted string",
            form("/api/v1/format_query", [("query", format!("\"{}\"", "\u{1}".repeat(900_000)))]),
        ),
    ];
    let expect = || status([200, 400, 422, 429, 500, 503]);
    let packed = |request: &Request| request.clone().header("Accept-Encoding", "gzip");
    let mut attacks = Vec::new();
    for (what, request) in rows {
        let packed = packed(&request);
        attacks
            .push(attack(format!("{what}, 10 at once"), flood(10, 1, request), expect()).quick());
        attacks.push(attack(format!("{what}, 10 at once, packed"), flood(10, 1, packed), expect()));
    }
    attacks
}
