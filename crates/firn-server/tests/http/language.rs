//! `format_query`, `parse_query`, `query_exemplars`.

use serde_json::{Value, json};

use crate::Running;
use crate::client::{Answer, api, api_error, form, get, send, url};

fn post(server: &Running, path: &str, query: &str) -> Answer {
    let typed = [("Content-Type", "application/x-www-form-urlencoded")];
    let target = format!("/api/v1/{path}");
    send(server.at(), "POST", &target, &typed, form(&[("query", query)]).as_bytes())
}

#[test]
fn queries_are_formatted() {
    let server = Running::start(&[]);
    let f = |query: &str, wanted: &str| {
        assert_eq!(api(server.at(), "format_query", &[("query", query)]), wanted);
        assert_eq!(post(&server, "format_query", query).json()["data"], wanted);
    };
    f("foo/bar", "foo / bar");
    f("sum(rate(x[5m]))by(job)", "sum by (job) (rate(x[5m]))");
    let long = "a_name_that_takes_room".repeat(3);
    f(
        &format!("sum by(job)({long}+{long})"),
        &format!("sum by (job) (\n    {long}\n  +\n    {long}\n)"),
    );
    let (status, kind, text) = api_error(server.at(), "format_query", &[("query", "sum(")]);
    assert_eq!((status, kind.as_str()), (400, "bad_data"));
    assert_eq!(text, r#"invalid parameter "query": 1:5: parse error: unclosed left parenthesis"#);
    let (_, _, text) = api_error(server.at(), "format_query", &[]);
    assert!(text.ends_with("no expression found in input"), "{text}");
}

/// The remedy was to query fewer series or a shorter range, of which these have none.
#[test]
fn a_long_query_is_advised_to_be_shorter() {
    let server = Running::start(&["--query-memory=1MiB"]);
    let long = format!("{{a=\"{}\"}}", "x".repeat(100_000));
    let pattern = format!("{{a=~\"{}\"}}", "(x|y)".repeat(10_000));
    for query in [&long, &pattern] {
        for path in ["format_query", "parse_query"] {
            let answer = post(&server, path, query);
            assert_eq!(answer.status, 422, "{path}: {}", answer.text());
            let text = answer.text();
            assert!(text.contains("shorten it, or raise --query-memory"), "{path}: {text}");
            assert!(!text.contains("shorter range"), "{path}: {text}");
        }
    }
}

fn tree(server: &Running, query: &str) -> Value {
    let posted = post(server, "parse_query", query).json()["data"].clone();
    assert_eq!(posted, api(server.at(), "parse_query", &[("query", query)]));
    posted
}

fn selector(name: &str) -> Value {
    json!({
        "type": "vectorSelector", "name": name, "offset": 0, "timestamp": null, "startOrEnd": null,
        "anchored": false, "smoothed": false,
        "matchers": [{"name": "__name__", "type": "=", "value": name}],
    })
}

#[test]
fn trees_have_prometheus_shapes() {
    let server = Running::start(&[]);
    let f = |query: &str, wanted: Value| assert_eq!(tree(&server, query), wanted, "{query}");
    f("-1e3", json!({"type": "numberLiteral", "val": "-1000"}));
    f("Inf", json!({"type": "numberLiteral", "val": "+Inf"}));
    f("'x'", json!({"type": "stringLiteral", "val": "x"}));
    f("(up)", json!({"type": "parenExpr", "expr": selector("up")}));
    f("-up", json!({"type": "unaryExpr", "op": "-", "expr": selector("up")}));
    f(
        "rate(x{a!='b',c=~'d',e!~'f'}[5m] offset -1m @ 1.5)",
        json!({
            "type": "call",
            "func": {"name": "rate", "argTypes": ["matrix"], "variadic": 0, "returnType": "vector"},
            "args": [{
                "type": "matrixSelector", "name": "x", "range": 300_000, "offset": -60_000,
                "timestamp": 1_500, "startOrEnd": null, "anchored": false, "smoothed": false,
                "matchers": [
                    {"name": "a", "type": "!=", "value": "b"},
                    {"name": "c", "type": "=~", "value": "d"},
                    {"name": "e", "type": "!~", "value": "f"},
                    {"name": "__name__", "type": "=", "value": "x"},
                ],
            }],
        }),
    );
    f(
        "topk by (a) (5, up @ start())",
        json!({
            "type": "aggregation", "op": "topk", "grouping": ["a"], "without": false,
            "param": {"type": "numberLiteral", "val": "5"},
            "expr": {
                "type": "vectorSelector", "name": "up", "offset": 0, "timestamp": null,
                "startOrEnd": "start", "anchored": false, "smoothed": false,
                "matchers": [{"name": "__name__", "type": "=", "value": "up"}],
            },
        }),
    );
    f(
        "sum without (a) (up)",
        json!({
            "type": "aggregation", "op": "sum", "grouping": ["a"], "without": true, "param": null,
            "expr": selector("up"),
        }),
    );
    f(
        "a > bool on (x) group_left (y) fill_right (2) b",
        json!({
            "type": "binaryExpr", "op": ">", "bool": true, "lhs": selector("a"), "rhs": selector("b"),
            "matching": {
                "card": "many-to-one", "labels": ["x"], "on": true, "include": ["y"],
                "fillValues": {"lhs": null, "rhs": 2},
            },
        }),
    );
    f(
        "a or b",
        json!({
            "type": "binaryExpr", "op": "or", "bool": false, "lhs": selector("a"), "rhs": selector("b"),
            "matching": {
                "card": "many-to-many", "labels": [], "on": false, "include": [],
                "fillValues": {"lhs": null, "rhs": null},
            },
        }),
    );
    f(
        "a + 1",
        json!({
            "type": "binaryExpr", "op": "+", "bool": false, "lhs": selector("a"),
            "rhs": {"type": "numberLiteral", "val": "1"}, "matching": null,
        }),
    );
    f(
        "a[1h:5m] offset 1m",
        json!({
            "type": "subquery", "expr": selector("a"), "range": 3_600_000, "step": 300_000,
            "offset": 60_000, "timestamp": null, "startOrEnd": null,
        }),
    );
    let joined = tree(&server, "label_join(up, 'a', ',', 'b')");
    assert_eq!(joined["func"]["variadic"], -1);
    assert_eq!(joined["func"]["argTypes"], json!(["vector", "string", "string", "string"]));
    assert_eq!(tree(&server, "{__name__='up'}")["name"], "");
    let (status, _, text) = api_error(server.at(), "parse_query", &[("query", "1+")]);
    assert_eq!(status, 400);
    assert!(text.starts_with(r#"invalid parameter "query": 1:3: parse error: "#), "{text}");
}

#[test]
fn exemplars_are_empty_and_mistakes_are_reported() {
    let server = Running::start(&[]);
    let at = server.at();
    let range = [("query", "sum(rate(up[5m]))"), ("start", "1"), ("end", "2")];
    assert_eq!(api(at, "query_exemplars", &range), json!([]));
    assert_eq!(post(&server, "query_exemplars", "up").json()["data"], json!([]));
    let none = get(at, &url("/api/v1/query_exemplars", &[("query", "1 + vector(2)")]));
    assert_eq!((none.status, none.body.len()), (204, 0));
    let f = |params: &[(&str, &str)], wanted: &str| {
        let (status, kind, text) = api_error(at, "query_exemplars", params);
        assert_eq!((status, kind.as_str(), text.as_str()), (400, "bad_data", wanted));
    };
    f(&[], "unknown position: parse error: no expression found in input");
    f(&[("query", "sum(")], "1:5: parse error: unclosed left parenthesis");
    let order = "end timestamp must not be before start timestamp";
    f(&[("query", "up"), ("start", "2"), ("end", "1")], order);
    let (_, _, text) = api_error(at, "query_exemplars", &[("query", "up"), ("end", "x")]);
    assert!(text.starts_with(r#"invalid parameter "end": "#), "{text}");
}
