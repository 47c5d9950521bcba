//! Regular expressions: their number, size, and the threads on which they are compiled.

use super::{json, query};
use crate::attack::{Attack, Expect, Family, attack, flood, limited, ok, status};
use crate::client::{Request, form, get, post};
use crate::target::Setup;
use crate::wire::{Message, encode, snappy};

pub(crate) fn family() -> Family {
    Family::new("regexes", Setup::database(&["--query-timeout=5s"]))
        .because("compiling is work of the query, on its threads", sizes())
        .because("the number of regular expressions is bounded", counts())
        .because("every endpoint with matchers has the same bounds", endpoints())
        .because("three slow compilations must not delay a health check", parallel())
}

fn regex(pattern: &str) -> Request {
    query(format!(r#"load{{path=~"{}"}}"#, pattern.replace('\\', "\\\\")))
}

fn bounded() -> Expect {
    limited().or(200).within(10)
}

fn sizes() -> Vec<Attack> {
    vec![
        attack("repetitions of repetitions", regex("((a{1,100}){1,100}){1,100}"), bounded())
            .quick(),
        attack("a repetition of 1,000 letters of any script", regex(r"\pL{1000}"), bounded())
            .quick(),
        attack("30 repetitions of any letter", regex(&r"\pL{100}".repeat(30)), bounded()),
        attack("words of 500 letters, 10 times", regex(&r"(\w{500})".repeat(10)), bounded()),
        attack(
            "case-insensitive classes",
            regex(&format!("(?i){}", r"[\w\s]{200}".repeat(5))),
            bounded(),
        ),
        attack(
            "an alternation of 50,000 words",
            regex(&(0..50_000).map(|n| format!("w{n}")).collect::<Vec<_>>().join("|")),
            bounded(),
        )
        .quick(),
        attack("100,000 groups", regex(&"()".repeat(100_000)), bounded()),
        attack(
            "2,000 nested groups",
            regex(&format!("{}a{}", "(".repeat(2_000), ")".repeat(2_000))),
            bounded(),
        )
        .quick(),
        attack(
            "100,000 nested groups",
            regex(&format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000))),
            bounded(),
        ),
        attack("a backtracking trap", regex("(a+)+(b+)+(c+)+$"), ok()),
        attack("a pattern of 900 kB", regex(&"a?".repeat(450_000)), bounded()),
        attack(
            "an invalid pattern of 900 kB",
            regex(&format!("{}(", "a".repeat(900_000))),
            limited(),
        )
        .quick(),
        attack("an unknown escape", regex(r"\q"), limited()),
        attack("a look-around", regex("(?=a)b"), limited()),
        attack("a backreference", regex(r"(a)\1"), limited()),
        attack("an empty pattern", regex(""), ok()),
        attack("a counted empty pattern", regex("(){1000000}"), bounded()),
        attack("a count of 20 digits", regex("a{99999999999999999999}"), limited()),
        attack("leading dot-stars", regex(&".*".repeat(5_000)), bounded()),
        attack("a DFA that explodes", regex(r".*[ab][^c]{14}x.*[ab][^c]{14}y.*"), bounded()),
        attack(
            "label_replace with any letter, 1,000 times",
            query(r#"label_replace(load,"x","$1","path","(\\pL{1000})")"#),
            bounded(),
        ),
    ]
}

fn counts() -> Vec<Attack> {
    let matchers = |count: usize, pattern: fn(usize) -> String| {
        let all: String = (0..count).map(|n| format!("l{n}=~\"{}\",", pattern(n))).collect();
        query(format!("load{{{all}}}"))
    };
    vec![
        attack(
            "60,000 small patterns",
            matchers(60_000, |n| format!("a{}.", n % 10)),
            limited().within(10),
        )
        .quick(),
        attack("5,000 small patterns", matchers(5_000, |n| format!("a{n}.+b")), bounded()),
        attack(
            "500 patterns of 1,000 letters",
            matchers(500, |_| r"\\pL{20}".to_owned()),
            bounded(),
        )
        .quick(),
        attack("60 large patterns", matchers(60, |_| r"\\w{300}".to_owned()), bounded()).quick(),
        attack(
            "2,000 selectors with a pattern each",
            query(
                (0..2_000).map(|n| format!("a{{b=~\"c{n}.*\"}}")).collect::<Vec<_>>().join(" or "),
            ),
            bounded(),
        ),
        attack(
            "20,000 selectors with a pattern each",
            query(
                (0..20_000).map(|n| format!("a{{b=~\"c{n}.*\"}}")).collect::<Vec<_>>().join(" or "),
            ),
            bounded(),
        ),
        attack(
            "2,000 label_replace",
            query(
                (0..2_000)
                    .map(|n| format!(r#"label_replace(up,"x","$1","job","(a{n}.*)")"#))
                    .collect::<Vec<_>>()
                    .join(" or "),
            ),
            bounded(),
        ),
    ]
}

fn endpoints() -> Vec<Attack> {
    let heavy = r#"load{path=~"\\pL{1000}"}"#;
    let pairs = |count: usize| vec![("match[]", heavy); count];
    let path = |path: &str, count: usize| {
        get(format!("{path}?{}", format!("match[]={}&", encode(heavy)).repeat(count)))
    };
    let transaction = |count: usize| {
        let one = r#"{"op":"read","match":"load{path=~\"\\\\pL{1000}\"}"}"#;
        json("/api/v1/transaction", format!(r#"{{"operations":[{}]}}"#, vec![one; count].join(",")))
    };
    let read = |count: usize| {
        let matcher = Message::default().varint(1, 2).bytes(2, "path").bytes(3, r"\pL{1000}");
        let one = (0..count).fold(Message::default(), |message, _| message.bytes(3, &matcher.0));
        post("/api/v1/read").body(snappy(Message::default().message(1, one).0))
    };
    vec![
        attack("series with 100 patterns", form("/api/v1/series", pairs(100)), bounded()).quick(),
        attack("labels with 100 patterns", form("/api/v1/labels", pairs(100)), bounded()),
        attack("label values with 100 patterns", path("/api/v1/label/job/values", 100), bounded())
            .quick(),
        attack("federation with 100 patterns", path("/federate", 100), bounded()).quick(),
        attack("groups with 100 patterns", path("/api/v1/groups", 100), bounded()).quick(),
        attack("group savings with 100 patterns", path("/api/v1/status/groups", 100), bounded()),
        attack("a transaction with 100 patterns", transaction(100), bounded().or(200)).quick(),
        attack("a transaction with 1,000 patterns", transaction(1_000), bounded()),
        attack("remote read with 100 patterns", read(100), bounded()).quick(),
        attack("remote read with 5,000 patterns", read(5_000), bounded()),
        attack(
            "delete_series with 100 patterns",
            form("/api/v1/admin/tsdb/delete_series", pairs(100)),
            bounded(),
        ),
        attack(
            "format_query with 60 patterns",
            form("/api/v1/format_query", [("query", vec![heavy; 60].join(" or "))]),
            bounded(),
        ),
        attack(
            "parse_query with 60 patterns",
            form("/api/v1/parse_query", [("query", vec![heavy; 60].join(" or "))]),
            bounded(),
        ),
        attack(
            "exemplars with 60 patterns",
            form(
                "/api/v1/query_exemplars",
                [
                    ("query", vec![heavy; 60].join(" or ")),
                    ("start", "0".to_owned()),
                    ("end", "1".to_owned()),
                ]
                .map(|(name, value)| (name, value)),
            ),
            bounded(),
        ),
    ]
}

fn parallel() -> Vec<Attack> {
    let heavy = |path: &str| form(path, vec![("match[]", r#"load{path=~"(\\pL{300}){3}"}"#); 20]);
    vec![
        attack(
            "3 clients on series",
            flood(3, 2, heavy("/api/v1/series")),
            status([200, 400, 422, 429, 500, 503]),
        )
        .quick(),
        attack(
            "10 clients on labels",
            flood(10, 2, heavy("/api/v1/labels")),
            status([200, 400, 422, 429, 500, 503]),
        ),
        attack(
            "10 clients on queries",
            flood(10, 2, regex(r"(\pL{300}){3}")),
            status([200, 400, 422, 429, 500, 503]),
        ),
        attack(
            "10 clients on federation",
            flood(
                10,
                2,
                get(format!("/federate?match[]={}", encode(r#"load{path=~"(\\pL{300}){3}"}"#))),
            ),
            status([200, 400, 422, 429, 500, 503]),
        ),
    ]
}
