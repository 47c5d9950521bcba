//! The requests that the proxy forwards: those of a list of paths and methods.
//!
//! Everything else may administrate the database, with the proxy's own credentials. A path must
//! mean the same to this list, to the URL's parser and to the database: dot segments, encoded or
//! not, are refused, and so are headers that replace the method or the path.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use axum::http::request::Parts;
use axum::http::{HeaderName, Method, StatusCode};
use firn_model::excerpt;

use super::FORM_BYTES_MAX;
use crate::config::PathPatterns;
use crate::http::params::PARAMETER_COUNT_MAX;

/// Why a request is not forwarded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotForwarded {
    pub(super) status: StatusCode,
    pub(super) what: String,
}

/// A request that may be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// With any parameters.
    Always,
    /// If its InfluxQL statements only read ([`check_statements`]).
    IfStatementsRead,
    /// The same, and for users with role admin with any statement: a setting names the path.
    ByRole,
}

/// ListedMethods of a row of the list.
#[derive(Clone, Copy)]
enum ListedMethods {
    Get,
    GetPost,
    Post,
}

/// Paths below which an API may be: a tenant and a prefix, such as `select/0/prometheus`.
const PREFIX_SEGMENTS_MAX: usize = 4;
/// Segments that no such prefix has: they start paths of administration.
const PREFIX_SEGMENTS_REFUSED: [&str; 6] = ["-", "admin", "api", "debug", "internal", "snapshot"];
/// Rounds of percent-encoding that a path may have, the last one without effect.
const DECODE_ROUNDS_MAX: usize = 4;

/// Headers by which some servers replace the method or the path after this list was consulted.
const OVERRIDES: [&str; 6] = [
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
    "x-original-uri",
];

use ListedMethods::{Get, GetPost, Post};

/// The APIs of Prometheus and InfluxDB, below any prefix. `*` is one segment.
const API: [(ListedMethods, &str); 48] = [
    (GetPost, "api/v1/query"),
    (GetPost, "api/v1/query_range"),
    (GetPost, "api/v1/query_exemplars"),
    (GetPost, "api/v1/format_query"),
    (GetPost, "api/v1/parse_query"),
    (GetPost, "api/v1/series"),
    (GetPost, "api/v1/labels"),
    (Get, "api/v1/label/*/values"),
    (Post, "api/v1/read"),
    (Get, "api/v1/export"),
    (Get, "api/v1/series/count"),
    (Get, "api/v1/metadata"),
    (Get, "api/v1/targets"),
    (Get, "api/v1/targets/metadata"),
    (Get, "api/v1/targets/relabel_steps"),
    (Get, "api/v1/scrape_pools"),
    (Get, "api/v1/rules"),
    (Get, "api/v1/alerts"),
    (Get, "api/v1/alertmanagers"),
    (Get, "api/v1/features"),
    (Get, "api/v1/notifications"),
    (Get, "api/v1/notifications/live"),
    (Get, "api/v1/groups"),
    (Get, "api/v1/groups/*"),
    (Get, "api/v1/status/buildinfo"),
    (Get, "api/v1/status/runtimeinfo"),
    (Get, "api/v1/status/flags"),
    (Get, "api/v1/status/config"),
    (Get, "api/v1/status/walreplay"),
    (Get, "api/v1/status/tsdb"),
    (Get, "api/v1/status/tsdb/blocks"),
    (Get, "api/v1/status/groups"),
    (Get, "api/v1/status/active_queries"),
    (Get, "api/v1/status/top_queries"),
    (Get, "federate"),
    (Post, "api/v1/write"),
    (Post, "api/v1/push"),
    (Post, "api/v1/import"),
    (Post, "api/v1/import/prometheus"),
    (Post, "api/v1/import/csv"),
    (Post, "api/v1/import/native"),
    (Post, "api/v1/groups/write"),
    (Post, "api/v1/otlp/v1/metrics"),
    (GetPost, INFLUX_QUERY),
    (Post, "write"),
    (Get, "ping"),
    (Get, "health"),
    (Get, "version"),
];
const INFLUX_QUERY: &str = "query";

/// Pages of Prometheus and VictoriaMetrics, and health, without a prefix. `**` is any rest.
const PAGES: [&str; 26] = [
    "",
    "graph",
    "alerts",
    "targets",
    "rules",
    "config",
    "flags",
    "status",
    "tsdb-status",
    "service-discovery",
    "agent",
    "starting",
    "metrics",
    "-/healthy",
    "-/ready",
    "favicon.ico",
    "favicon.svg",
    "manifest.json",
    "robots.txt",
    "consoles/**",
    "static/**",
    "assets/**",
    "classic/**",
    "vmui",
    "vmui/**",
    "vmalert",
];

/// Checks the head of a request. `more` are paths of the setting.
///
/// # Errors
/// The reason, in one sentence that names the setting if one would help.
pub(super) fn check(parts: &Parts, more: Option<&PathPatterns>) -> Result<Admitted, NotForwarded> {
    if let Some(name) = OVERRIDES.iter().find(|name| parts.headers.contains_key(**name)) {
        let what = format!("the proxy forwards no requests with the header {name}; remove it");
        return Err(NotForwarded { status: StatusCode::BAD_REQUEST, what });
    }
    let path = parts.uri.path();
    if !is_plain(path) {
        let what = format!(
            "the path {:?} is not forwarded: expected segments without dots alone, backslashes, \
             empty names and repeated encoding",
            excerpt(path)
        );
        return Err(NotForwarded { status: StatusCode::BAD_REQUEST, what });
    }
    let is_http = !matches!(parts.method, Method::CONNECT | Method::TRACE);
    if is_http && more.is_some_and(|more| more.matches(path)) {
        let has_statements = may_have_statements(path);
        return Ok(if has_statements { Admitted::ByRole } else { Admitted::Always });
    }
    listed(&parts.method, path).ok_or_else(|| {
        let what = format!(
            "the proxy does not forward {} {:?}: it forwards queries, writes and pages; to forward \
             more, add the path to --proxy-paths",
            excerpt(parts.method.as_str()),
            excerpt(path)
        );
        NotForwarded { status: StatusCode::FORBIDDEN, what }
    })
}

/// Whether requests to this path may be InfluxQL.
fn may_have_statements(path: &str) -> bool {
    let path = path.trim_end_matches('/');
    let last = path.rsplit('/').next();
    last == Some(INFLUX_QUERY) && !path.ends_with("/api/v1/query")
}

/// Checks the statements in the parameters of InfluxDB's query endpoint, each a URL's query or a
/// form.
///
/// # Errors
/// If one of them may change the database.
pub(super) fn check_statements(parameters: &[&[u8]]) -> Result<(), NotForwarded> {
    // Old servers also separate parameters by semicolons.
    let separators: [&[u8]; 2] = [b"&", b"&;"];
    let is_separator = |byte: &&u8| matches!(byte, b'&' | b';');
    let has_many = |text: &&[u8]| text.iter().filter(is_separator).count() >= PARAMETER_COUNT_MAX;
    if parameters.iter().any(has_many) {
        return Err(unreadable_statements());
    }
    for (text, separators) in parameters.iter().flat_map(|text| separators.map(|s| (text, s))) {
        // The pairs are those of `&` alone.
        if separators.len() > 1 && !text.contains(&b';') {
            continue;
        }
        for pair in text.split(|byte| separators.contains(byte)) {
            for (name, value) in form_urlencoded::parse(pair) {
                if name == "q" && !only_reads(&value) {
                    let what = format!(
                        "the proxy forwards statements that read, got {:?}; to forward every \
                         statement, add the path to --proxy-paths",
                        excerpt(&value)
                    );
                    return Err(NotForwarded { status: StatusCode::FORBIDDEN, what });
                }
            }
        }
    }
    Ok(())
}

/// The refusal of statements that cannot be checked.
pub(super) fn unreadable_statements() -> NotForwarded {
    let what = format!(
        "the proxy forwards queries to InfluxDB in the URL, or in a form without encoding of at \
         most {} MiB, with at most {PARAMETER_COUNT_MAX} parameters; to forward others, add \
         the path to --proxy-paths",
        FORM_BYTES_MAX >> 20
    );
    NotForwarded { status: StatusCode::FORBIDDEN, what }
}

/// The refusal of a body that has no meaning (RFC 9110, 9.3.1) and that servers understand
/// differently.
pub(super) fn unexpected_body() -> NotForwarded {
    let what =
        "the proxy forwards no body of a GET or HEAD; send the parameters in the URL or by POST";
    NotForwarded { status: StatusCode::BAD_REQUEST, what: what.to_owned() }
}

/// The refusal of a request whose `Connection` names a header on which the response depends.
pub(super) fn stripped_header(name: &HeaderName) -> NotForwarded {
    let what = format!("the header Connection names {name}, which the proxy must not remove");
    NotForwarded { status: StatusCode::BAD_REQUEST, what }
}

/// Whether all of `text` reads. Strings, regular expressions and comments are not distinguished
/// from code: a statement with a semicolon or the word INTO inside of one is refused as well.
fn only_reads(text: &str) -> bool {
    const READING: [&str; 3] = ["SELECT", "SHOW", "EXPLAIN"];
    text.split(';').map(str::trim).filter(|part| !part.is_empty()).all(|part| {
        // A form has room for a million words: none is copied.
        let mut words = part
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .filter(|word| !word.is_empty());
        let reads = words
            .next()
            .is_some_and(|first| READING.iter().any(|word| first.eq_ignore_ascii_case(word)));
        part.starts_with(|c: char| c.is_ascii_alphabetic())
            && reads
            && !words.any(|word| word.eq_ignore_ascii_case("INTO"))
    })
}

/// Whether every server reads the same path.
fn is_plain(path: &str) -> bool {
    let decoded = decode_all(path);
    let Some(plain) = decoded.as_deref().and_then(|path| path.strip_prefix('/')) else {
        return false;
    };
    let segments: Vec<&str> = plain.split('/').collect();
    let Some((last, folders)) = segments.split_last() else { return false };
    let has_dots = |segment: &&str| {
        let name = segment.split(';').next().unwrap_or_default();
        matches!(name.trim(), "." | "..")
    };
    !plain.contains(|c: char| c.is_control() || matches!(c, '\\' | '?' | '#'))
        && !folders.iter().any(|segment| segment.is_empty())
        && !folders.iter().chain([last]).any(has_dots)
}

/// `text` without percent-encoding, however often it was encoded. `None` if that was too often, or
/// if it is not UTF-8.
fn decode_all(text: &str) -> Option<String> {
    let mut bytes = text.as_bytes().to_vec();
    let mut is_decoded = false;
    for _ in 0..DECODE_ROUNDS_MAX {
        let decoded = percent_decode(&bytes);
        is_decoded = decoded == bytes;
        bytes = decoded;
    }
    String::from_utf8(bytes).ok().filter(|_| is_decoded)
}

/// The bytes of `text`, in which `%41` is `A`. Other uses of `%` stay.
pub(super) fn percent_decode(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(decoded) if byte == b'%' => {
                plain.push(decoded);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    plain
}

/// Looks a path up in the list. Only names in a path may be encoded.
fn listed(method: &Method, path: &str) -> Option<Admitted> {
    let path = path.strip_prefix('/')?;
    let segments: Vec<&str> = path.split('/').collect();
    let is_refused = |segment: &&str| {
        let decoded = decode_all(segment).unwrap_or_default();
        let mut parts = decoded.split('/');
        parts.any(|part| PREFIX_SEGMENTS_REFUSED.iter().any(|no| part.eq_ignore_ascii_case(no)))
    };
    let is_allowed = |methods: ListedMethods| match methods {
        Get => matches!(*method, Method::GET | Method::HEAD),
        GetPost => matches!(*method, Method::GET | Method::HEAD | Method::POST),
        Post => *method == Method::POST,
    };
    for skipped in 0..=PREFIX_SEGMENTS_MAX {
        let Some((prefix, rest)) = segments.split_at_checked(skipped) else { break };
        if prefix.iter().any(is_refused) {
            break;
        }
        let row = API.iter().find(|(methods, pattern)| is_allowed(*methods) && fits(pattern, rest));
        if let Some((_, pattern)) = row {
            return Some(match *pattern {
                INFLUX_QUERY => Admitted::IfStatementsRead,
                _ => Admitted::Always,
            });
        }
    }
    let is_page = is_allowed(Get) && PAGES.iter().any(|pattern| fits(pattern, &segments));
    is_page.then_some(Admitted::Always)
}

fn fits(pattern: &str, segments: &[&str]) -> bool {
    let mut segments = segments.iter();
    for wanted in pattern.split('/') {
        match (wanted, segments.next()) {
            ("**", Some(_)) => return true,
            ("*", Some(segment)) if !segment.is_empty() => {}
            (wanted, Some(segment)) if wanted == *segment => {}
            _ => return false,
        }
    }
    // A slash at the end is an empty segment.
    matches!((segments.next(), segments.next()), (None | Some(&""), None))
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn outcome(method: &str, path: &str, more: Option<&str>) -> Result<Admitted, StatusCode> {
        let request = Request::builder().method(method).uri(path).body(()).unwrap();
        let more = more.map(|more| more.parse::<PathPatterns>().unwrap());
        check(&request.into_parts().0, more.as_ref()).map_err(|refused| refused.status)
    }

    #[test]
    fn queries_writes_and_pages_are_forwarded() {
        for (method, path) in [
            ("GET", "/api/v1/query?query=up"),
            ("POST", "/api/v1/query_range"),
            ("GET", "/select/0/prometheus/api/v1/query_range"),
            ("GET", "/api/v1/label/job/values"),
            ("GET", "/api/v1/label/a%2Fb/values"),
            ("GET", "/api/v1/label/caf%C3%A9/values"),
            ("GET", "/api/v1/status/tsdb/"),
            ("POST", "/api/v1/read"),
            ("POST", "/api/v1/write"),
            ("POST", "/write?db=d"),
            ("GET", "/ping"),
            ("GET", "/"),
            ("GET", "/graph"),
            ("HEAD", "/-/ready"),
            ("GET", "/static/js/main.1.js"),
            ("GET", "/assets/a..b/c.css"),
        ] {
            assert_eq!(outcome(method, path, None), Ok(Admitted::Always), "{method} {path}");
        }
        for (method, path) in [("GET", "/query?q=x"), ("POST", "/query"), ("GET", "/influx/query")]
        {
            let wanted = Ok(Admitted::IfStatementsRead);
            assert_eq!(outcome(method, path, None), wanted, "{method} {path}");
        }
    }

    #[test]
    fn administration_is_not_forwarded_unless_it_is_listed() {
        for (method, path) in [
            ("POST", "/api/v1/admin/tsdb/delete_series?match[]=up"),
            ("PUT", "/api/v1/admin/tsdb/snapshot"),
            ("GET", "/api/v1/admin/tsdb/snapshot"),
            ("POST", "/-/quit"),
            ("POST", "/-/reload"),
            ("GET", "/debug/pprof/heap"),
            ("GET", "/debug/pprof/api/v1/query"),
            ("GET", "/api/v1/admin/api/v1/query"),
            ("GET", "/a/b/c/d/e/api/v1/query"),
            ("POST", "/delete"),
            ("DELETE", "/api/v1/query"),
            ("PATCH", "/api/v1/rules"),
            ("POST", "/api/v1/rules"),
            ("POST", "/api/v1/alerts"),
            ("POST", "/api/v1/transaction"),
            ("GET", "/api/v1/write"),
            ("POST", "/graph"),
            ("TRACE", "/api/v1/query"),
            ("GET", "/api/v1/label//values"),
            ("GET", "/no/such/path"),
            ("GET", "/api/v1/query/x"),
            ("GET", "/API/v1/query"),
            ("GET", "/%61dmin/api/v1/query"),
            ("GET", "/x%2fadmin/api/v1/query"),
            ("GET", "/api/v1/%71uery"),
        ] {
            let refused = outcome(method, path, None).unwrap_err();
            let wanted = if path.contains("//") { 400 } else { 403 };
            assert_eq!(refused.as_u16(), wanted, "{method} {path}");
        }
        let admin = Some("/api/v1/admin/*,/delete");
        for (method, path, is_allowed) in [
            ("PUT", "/api/v1/admin/tsdb/snapshot", true),
            ("DELETE", "/delete", true),
            ("POST", "/delete/x", false),
            // Roles are those of the path as it is written.
            ("PUT", "/api/v1/%61dmin/tsdb/snapshot", false),
            ("POST", "/api/v1/admin/../../-/quit", false),
            ("POST", "/api/v1/admin%2f..%2fx", false),
            ("TRACE", "/delete", false),
        ] {
            assert_eq!(outcome(method, path, admin).is_ok(), is_allowed, "{method} {path}");
        }
        for path in ["/query", "/query/", "/influx/query"] {
            assert_eq!(outcome("POST", path, Some("/*")), Ok(Admitted::ByRole), "{path}");
        }
        assert_eq!(outcome("POST", "/api/v1/query", Some("/*")), Ok(Admitted::Always));
        assert_eq!(outcome("POST", "/delete", Some("/*")), Ok(Admitted::Always));
        assert!(outcome("GET", "/../x", Some("/*")).is_err());
    }

    /// Before, `/../admin` left the path in `--proxy`.
    #[test]
    fn no_path_leaves_its_prefix() {
        for path in [
            "/../admin/x",
            "/..",
            "/.",
            "/./api/v1/query",
            "/api/v1/../v1/query",
            "/%2e%2e/admin",
            "/%2E./admin",
            "/.%2e/admin",
            "/%252e%252e/admin",
            "/%25252e%25252e/admin",
            "/%2525252525252e/admin",
            "/..;/admin",
            "/..;a=b/admin",
            "/%2e%2e%3b/admin",
            "/..%2fadmin",
            "/x%2f..%2f..%2fadmin",
            "/..\\admin",
            "/x\\..\\admin",
            "/..%5cadmin",
            "/%5c..%5cadmin",
            "//evil.example/x",
            "/api//v1/query",
            "/api/v1/query%00",
            "/api/v1/query%0d%0aX:1",
            "/%c0%ae%c0%ae/admin",
            "/%ff",
            "/admin%3f/api/v1/query",
            "/admin%23/api/v1/query",
            "/..%20/admin",
        ] {
            assert_eq!(outcome("GET", path, Some("/*")), Err(StatusCode::BAD_REQUEST), "{path}");
        }
        for target in ["*", "evil.example:80"] {
            let method = if target == "*" { "OPTIONS" } else { "CONNECT" };
            assert_eq!(
                outcome(method, target, Some("/*")),
                Err(StatusCode::BAD_REQUEST),
                "{target}"
            );
        }
    }

    #[test]
    fn headers_replace_neither_method_nor_path() {
        for name in OVERRIDES {
            let request = Request::get("/api/v1/query").header(name, "DELETE").body(()).unwrap();
            let refused = check(&request.into_parts().0, None).unwrap_err();
            assert!(refused.what.contains(name), "{refused:?}");
        }
    }

    #[test]
    fn only_statements_that_read_are_forwarded() {
        for text in [
            "q=SELECT+mean(a)+FROM+b",
            "db=d&q=show%20databases%3B%20SELECT+1%3B",
            "q=EXPLAIN+SELECT+a+FROM+b&epoch=ms",
            "q=",
            "g0.expr=up",
            "q=SELECT+a+FROM+into_table",
        ] {
            assert_eq!(check_statements(&[text.as_bytes()]), Ok(()), "{text}");
        }
        let many = ["a&", ";"].map(|part| part.repeat(PARAMETER_COUNT_MAX) + "q=SELECT+1");
        for text in [
            many[0].as_str(),
            many[1].as_str(),
            "q=DROP+DATABASE+d",
            "q=drop%20series%20from%20a",
            "q=SELECT+1%3B+DROP+DATABASE+d",
            "q=SELECT+a+INTO+b+FROM+c",
            "q=select+a%0ainto%09b+from+c",
            "q=SELECT+a+FROM+b+WHERE+h%3D~/'/%3BDROP+DATABASE+d--'",
            "q=/**/DROP+DATABASE+d",
            "q=--%0ADROP+DATABASE+d",
            "q=SELECT+1&q=CREATE+USER+a+WITH+PASSWORD+'b'",
            "db=d;q=DELETE+FROM+a",
            "q=%C2%A0DROP+DATABASE+d",
            "q=GRANT+ALL+TO+a",
        ] {
            for parameters in [[text.as_bytes(), b""], [b"q=SELECT+1", text.as_bytes()]] {
                assert!(check_statements(&parameters).is_err(), "{text}");
            }
        }
    }
}
