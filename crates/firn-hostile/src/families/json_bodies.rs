//! JSON bodies: depth, length, numbers, duplicates, encodings, at every endpoint that reads JSON.

use super::json;
use crate::attack::{Attack, Expect, Family, attack, bad, flood, status, survived};
use crate::client::{Request, post};
use crate::target::Setup;

const GROUPS: &str = "/api/v1/groups";
const ROWS: &str = "/api/v1/groups/write";
const TRANSACTION: &str = "/api/v1/transaction";

pub(crate) fn family() -> Family {
    let family = Family::new("json", Setup::database(&[]).empty());
    let family = [GROUPS, ROWS, TRANSACTION].into_iter().fold(family, |family, path| {
        family.because("a malformed body is refused with its byte, at any depth", malformed(path))
    });
    family
        .because("numbers and texts have limits", values())
        .because("bodies are reserved before they are decoded", sizes())
}

fn malformed(path: &'static str) -> Vec<Attack> {
    let body = |text: &str| json(path, text);
    let named = |name: &str| format!("{}: {name}", path.trim_start_matches("/api/v1/"));
    vec![
        attack(named("an open brace"), body("{"), bad()).quick(),
        attack(named("a number"), body("1"), bad()),
        attack(named("null"), body("null"), bad()),
        attack(named("a text"), body("\"groups\""), bad()),
        attack(named("a list"), body("[]"), bad()),
        attack(named("a second value"), body("{}{}"), bad()),
        attack(named("a byte order mark"), body("\u{feff}{}"), bad()),
        attack(
            named("UTF-16"),
            post(path)
                .header("Content-Type", "application/json")
                .body([0xff, 0xfe, b'{', 0, b'}', 0]),
            bad(),
        ),
        attack(
            named("bytes that are not UTF-8"),
            post(path).header("Content-Type", "application/json").body(b"{\"\xff\":1}".to_vec()),
            bad(),
        ),
        attack(named("single quotes"), body("{'groups':[]}"), bad()),
        attack(named("a trailing comma"), body("{\"groups\":[],}"), bad()),
        attack(named("a comment"), body("{/* */}"), status([200, 400])),
        attack(named("a field that is unknown"), body("{\"x\":1}"), bad()),
        attack(named("__proto__"), body("{\"__proto__\":{\"admin\":true}}"), bad()),
        attack(
            named("a field twice"),
            body("{\"groups\":[],\"groups\":[],\"operations\":[],\"operations\":[]}"),
            bad(),
        ),
        attack(
            named("1 million nested lists"),
            post(path).header("Content-Type", "application/json").make(|| b"[".repeat(1 << 20)),
            bad(),
        )
        .quick(),
        attack(
            named("1 million nested lists in a field"),
            post(path)
                .header("Content-Type", "application/json")
                .make(|| format!("{{\"groups\":{}", "[".repeat(1 << 20)).into_bytes()),
            bad(),
        ),
        attack(
            named("1 million nested objects"),
            post(path)
                .header("Content-Type", "application/json")
                .make(|| b"{\"a\":".repeat(1 << 20)),
            bad(),
        )
        .quick(),
        attack(
            named("a name of 20 MB"),
            post(path)
                .header("Content-Type", "application/json")
                .make(|| format!("{{\"{}\":1}}", "n".repeat(20 << 20)).into_bytes()),
            bad(),
        )
        .quick(),
        attack(
            named("an open text of 60 MB"),
            post(path)
                .header("Content-Type", "application/json")
                .make(|| format!("{{\"{}", "n".repeat(60 << 20)).into_bytes()),
            status([400, 413, 429]),
        ),
        attack(named("a NUL"), body("{\"groups\0\":[]}"), bad()),
        attack(named("an unpaired surrogate"), body("{\"\\ud800\":[]}"), bad()),
    ]
}

fn insert(series: &str, ts: &str, value: &str) -> Request {
    json(
        TRANSACTION,
        format!(
            r#"{{"operations":[{{"op":"insert","series":{series},"timestamp":{ts},"value":{value}}}]}}"#
        ),
    )
}

fn values() -> Vec<Attack> {
    let name = r#"{"__name__":"json"}"#;
    let bad_or_stored = || -> Expect { status([200, 400]) };
    vec![
        attack("a time of 400 digits", insert(name, &"1".repeat(400), "1"), bad()).quick(),
        attack("a time of 20 MB", json(TRANSACTION, format!(r#"{{"operations":[{{"op":"insert","series":{name},"timestamp":{},"value":1}}]}}"#, "1".repeat(20 << 20))), bad()).quick(),
        attack("a value of 20 MB", insert(name, "1", &"9".repeat(20 << 20)), bad_or_stored()).quick(),
        attack("a text value of 20 MB", insert(name, "1", &format!("\"{}\"", "9".repeat(20 << 20))), bad_or_stored()),
        attack("a wrong text value of 20 MB", insert(name, "1", &format!("\"{}x\"", "9".repeat(20 << 20))), bad()).quick(),
        attack("a value with a plus", insert(name, "1", "+1"), bad()),
        attack("a value with leading zeros", insert(name, "1", "0001"), bad()),
        attack("a hexadecimal value", insert(name, "1", "0x1"), bad()),
        attack("NaN without quotes", insert(name, "1", "NaN"), bad()),
        attack("a time as text", insert(name, "\"1\"", "1"), bad()),
        attack("a time of minus zero", insert(name, "-0", "1"), bad_or_stored()),
        attack("a series without a name", insert("{}", "1", "1"), bad()),
        attack("a label that is a number", insert(r#"{"__name__":1}"#, "1", "1"), bad()),
        attack("a label of 20 MB", insert(&format!(r#"{{"__name__":"a","b":"{}"}}"#, "x".repeat(20 << 20)), "1", "1"), status([400, 413])).quick(),
        attack("a metric of 20 MB", insert(&format!(r#"{{"__name__":"{}"}}"#, "x".repeat(20 << 20)), "1", "1"), status([400, 413])),
        attack("a label of escapes", insert(&format!(r#"{{"__name__":"a","b":"{}"}}"#, r"\u0041".repeat(1_000)), "1", "1"), bad_or_stored()),
        attack("100,000 labels", insert(&format!(r#"{{"__name__":"a"{}}}"#, (0..100_000).map(|n| format!(r#","l{n}":"x""#)).collect::<String>()), "1", "1"), status([400, 413])),
        attack("a label twice", insert(r#"{"__name__":"a","b":"1","b":"2"}"#, "1", "1"), bad()),
        attack("a match of 20 MB", json(TRANSACTION, format!(r#"{{"operations":[{{"op":"read","match":"{}"}}]}}"#, "a".repeat(20 << 20))), status([200, 400, 413])).quick(),
        attack("an operation of 20 MB", json(TRANSACTION, format!(r#"{{"operations":[{{"op":"{}"}}]}}"#, "a".repeat(20 << 20))), bad()).quick(),
        attack("a digest of 20 MB", json(TRANSACTION, format!(r#"{{"operations":[{{"op":"read","match":"a","digest":"{}"}}]}}"#, "a".repeat(20 << 20))), status([400, 409])),
        attack("a generation of 20 MB", json(ROWS, format!(r#"{{"generation":"{}","groups":[]}}"#, "a".repeat(20 << 20))), status([200, 400, 404])),
    ]
}

fn sizes() -> Vec<Attack> {
    let made = |path: &str, make: fn() -> String| {
        post(path).header("Content-Type", "application/json").make(move || make().into_bytes())
    };
    vec![
        attack(
            "60 MB of blanks",
            made(GROUPS, || format!("{}{{\"groups\":[]}}", " ".repeat(60 << 20))),
            status([200, 400, 413, 429]),
        ),
        attack("70 MB", made(GROUPS, || " ".repeat(70 << 20)), status([413, 429])).quick(),
        attack(
            "10 million empty groups",
            made(GROUPS, || format!("{{\"groups\":[{}{{}}]}}", "{},".repeat(10 << 20))),
            survived(),
        ),
        attack(
            "10 million empty operations",
            made(TRANSACTION, || format!("{{\"operations\":[{}{{}}]}}", "{},".repeat(10 << 20))),
            survived(),
        )
        .quick(),
        attack(
            "10 million values in a row",
            made(ROWS, || {
                format!(
                    r#"{{"groups":[{{"labels":{{"g":"1"}},"members":[{{"__name__":"x"}}],"rows":[{{"timestamp":1,"values":[{}1]}}]}}]}}"#,
                    "1,".repeat(10 << 20)
                )
            }),
            survived(),
        ),
        attack(
            "10 million slots",
            made(ROWS, || {
                format!(
                    r#"{{"generation":"x","groups":[{{"group":1,"slots":[{}1],"rows":[]}}]}}"#,
                    "1,".repeat(10 << 20)
                )
            }),
            survived(),
        ),
        attack(
            "5 million members",
            made(GROUPS, || {
                format!(
                    r#"{{"groups":[{{"labels":{{"g":"1"}},"members":[{}{{}}]}}]}}"#,
                    "{},".repeat(5 << 20)
                )
            }),
            survived(),
        ),
        attack(
            "20 bodies of 30 MB",
            flood(
                20,
                1,
                made(GROUPS, || format!("{{\"groups\":[{}{{}}]}}", "{},".repeat(10 << 20))),
            ),
            survived(),
        ),
    ]
}
