//! The query API: shapes, parameters, errors.

use crate::Running;
use crate::client::{api, api_error, form, get, import, send, url};

/// Three series at 1.7e9 s and 15 s later.
fn filled(args: &[&str]) -> Running {
    let server = Running::start(args);
    import(
        server.at(),
        "# HELP m_total Things.\n# TYPE m_total counter\n\
         m_total{job=\"a\",instance=\"1\"} 1 1700000000000\n\
         m_total{job=\"a\",instance=\"1\"} 3.5 1700000015000\n\
         m_total{job=\"a\",instance=\"2\"} NaN 1700000000000\n\
         n{job=\"b\"} 1e21 1700000000000\n",
    );
    server
}

#[test]
fn instant_queries_have_prometheus_shapes() {
    let server = filled(&[]);
    let f = |query: &str, want: &str| {
        let data = api(server.at(), "query", &[("query", query), ("time", "1700000020.5")]);
        assert_eq!(data.to_string(), want, "{query}");
    };
    f(
        r#"m_total{instance="1"}"#,
        r#"{"result":[{"metric":{"__name__":"m_total","instance":"1","job":"a"},"value":[1700000020.5,"3.5"]}],"resultType":"vector"}"#,
    );
    f(
        "sum(n)",
        r#"{"result":[{"metric":{},"value":[1700000020.5,"1e+21"]}],"resultType":"vector"}"#,
    );
    f("nothing", r#"{"result":[],"resultType":"vector"}"#);
    f("1 - 2", r#"{"result":[1700000020.5,"-1"],"resultType":"scalar"}"#);
    f("'text'", r#"{"result":[1700000020.5,"text"],"resultType":"string"}"#);
    f(
        r#"m_total{instance="1"}[1m]"#,
        r#"{"result":[{"metric":{"__name__":"m_total","instance":"1","job":"a"},"values":[[1700000000,"1"],[1700000015,"3.5"]]}],"resultType":"matrix"}"#,
    );
    let nan =
        api(server.at(), "query", &[("query", "m_total{instance='2'}"), ("time", "1700000000")]);
    assert_eq!(nan["result"][0]["value"][1], "NaN");
}

#[test]
fn range_queries_step_from_start_to_end() {
    let server = filled(&[]);
    let params = [
        ("query", "m_total{instance=\"1\"}"),
        ("start", "2023-11-14T22:13:20Z"),
        ("end", "1700000030"),
        ("step", "15"),
    ];
    let data = api(server.at(), "query_range", &params);
    assert_eq!(
        data.to_string(),
        r#"{"result":[{"metric":{"__name__":"m_total","instance":"1","job":"a"},"values":[[1700000000,"1"],[1700000015,"3.5"],[1700000030,"3.5"]]}],"resultType":"matrix"}"#
    );
    let scalar = [("query", "2"), ("start", "0"), ("end", "11000"), ("step", "1s")];
    let data = api(server.at(), "query_range", &scalar);
    assert_eq!(data["result"][0]["values"].as_array().expect("points").len(), 11_001);
    assert_eq!(data["result"][0]["metric"].to_string(), "{}");
}

#[test]
fn wrong_parameters_are_named() {
    let server = filled(&[]);
    let f = |path: &str, params: &[(&str, &str)], wanted: &str| {
        let (status, kind, text) = api_error(server.at(), path, params);
        assert_eq!((status, kind.as_str()), (400, "bad_data"), "{text}");
        assert!(text.contains(wanted), "{path} {params:?}: {text}");
    };
    let none =
        r#"invalid parameter "query": unknown position: parse error: no expression found in input"#;
    f("query", &[], none);
    f("query", &[("query", "")], none);
    f("query", &[("query", "sum(")], r#"invalid parameter "query": 1:5: parse error: "#);
    f("query", &[("query", "1"), ("time", "soon")], r#"cannot parse "soon" to a valid timestamp"#);
    let non_negative = r#"invalid parameter "limit": limit must be non-negative"#;
    f("query", &[("query", "1"), ("limit", "-1")], non_negative);
    let syntax = r#"invalid parameter "limit": strconv.Atoi: parsing "x": invalid syntax"#;
    f("query", &[("query", "1"), ("limit", "x")], syntax);
    f("query", &[("query", "1"), ("limit", "99999999999999999999")], "value out of range");
    let timeout = r#"invalid parameter "timeout": cannot parse "x" to a valid duration"#;
    f("query", &[("query", "1"), ("timeout", "x")], timeout);
    let lookback = r#"error parsing lookback delta duration: cannot parse "x" to a valid duration"#;
    f("query", &[("query", "1"), ("lookback_delta", "x")], lookback);
    let range = |start, end, step| [("query", "1"), ("start", start), ("end", end), ("step", step)];
    f("query_range", &range("", "1", "1"), r#"invalid parameter "start""#);
    f("query_range", &range("1", "", "1"), r#"invalid parameter "end""#);
    f("query_range", &range("2", "1", "1"), "end timestamp must not be before start time");
    f(
        "query_range",
        &range("1", "2", ""),
        r#"invalid parameter "step": cannot parse "" to a valid duration"#,
    );
    f("query_range", &range("1", "2", "1ns"), r#"cannot parse "1ns" to a valid duration"#);
    f("query_range", &range("1", "2", "1e20"), "to a valid duration. It overflows int64");
    f("query_range", &range("1", "2", "1e-9"), "zero or negative query resolution");
    f("query_range", &range("1", "2", "0"), "zero or negative query resolution");
    f("query_range", &range("1", "2", "-5"), "zero or negative query resolution");
    f("query_range", &range("0", "11001", "1"), "exceeded maximum resolution of 11,000 points");
    let extremes = ("-292273086-05-16T16:47:06Z", "+292277025-08-18T07:12:54.999999999Z");
    f("query_range", &range(extremes.0, extremes.1, "1"), "exceeded maximum resolution");
    let matrix = [("query", "n[5m]"), ("start", "0"), ("end", "1"), ("step", "1")];
    f("query_range", &matrix, r#"invalid expression type "range vector" for range query"#);
    f("series", &[], "no match[] parameter provided");
    f("series", &[("match[]", "{")], r#"invalid parameter "match[]""#);
    f("series", &[("match[]", "{a=~\".*\"}")], "at least one non-empty matcher");
    f("labels", &[("start", "x")], r#"invalid parameter "start""#);
    f("metadata", &[("limit", "x")], "limit must be a number");
    f("label/%ff/values", &[], "invalid label name");
}

#[test]
fn evaluation_errors_limits_and_timeouts_have_their_types() {
    let server = filled(&["--query-samples-max=2"]);
    let f = |params: &[(&str, &str)], wanted: (u16, &str)| {
        let (status, kind, text) = api_error(server.at(), "query", params);
        assert_eq!((status, kind.as_str()), wanted, "{text}");
        text
    };
    let time = ("time", "1700000020");
    let query = "label_replace(n, 'x', '$1', 'job', '(')";
    f(&[("query", query), time], (422, "execution"));
    assert_eq!(
        f(&[("query", "m_total[1m]"), time], (422, "execution")),
        "query processing would load too many samples into memory in query execution"
    );
    for timeout in ["0", "-1", "1e-9"] {
        let text = f(&[("query", "n"), time, ("timeout", timeout)], (503, "timeout"));
        assert!(text.starts_with("query timed out in query queue"), "{text}");
    }
    let server = filled(&[]);
    let many_to_many = "m_total{instance='1'} * on () group_left () {job=~'a|b'}";
    let (status, kind, text) = api_error(server.at(), "query", &[("query", many_to_many), time]);
    assert_eq!((status, kind.as_str()), (422, "execution"));
    assert!(text.starts_with("found duplicate series for the match group {}"), "{text}");
    // The limit truncates vectors and matrices only, and warns only if it did.
    let range = [("start", "1700000000"), ("end", "1700000020"), ("step", "5")];
    let f = |path: &str, query: &str, limit: &str, wanted: (usize, bool)| {
        let params = [&[("query", query), time, ("limit", limit)][..], &range].concat();
        let json = get(server.at(), &url(&format!("/api/v1/{path}"), &params)).json();
        let shown = json["data"]["result"].as_array().expect("a list").len();
        let warning = json["warnings"] == serde_json::json!(["results truncated due to limit"]);
        assert_eq!((shown, warning), wanted, "{path} {query} {limit}: {json}");
        assert!(warning || json["warnings"].is_null(), "{json}");
    };
    for path in ["query", "query_range"] {
        f(path, "{job!=''}", "1", (1, true));
        f(path, "{job!=''}", "3", (3, false));
        f(path, "{job!=''}", "0", (3, false));
        f(path, "nothing", "1", (0, false));
    }
    f("query", "{job!=''}[1m]", "2", (2, true));
    f("query", "1", "1", (2, false));
    f("query", "'text'", "1", (2, false));
}

/// The first mistake in Prometheus' order is reported.
#[test]
fn parameters_are_checked_in_order() {
    let server = Running::start(&[]);
    let mistakes = [
        ("limit", r#"invalid parameter "limit""#),
        ("time", r#"invalid parameter "time""#),
        ("timeout", r#"invalid parameter "timeout""#),
        ("lookback_delta", "error parsing lookback delta duration"),
        ("query", r#"invalid parameter "query""#),
    ];
    let range = [
        ("limit", r#"invalid parameter "limit""#),
        ("start", r#"invalid parameter "start""#),
        ("end", r#"invalid parameter "end""#),
        ("step", r#"invalid parameter "step""#),
        ("timeout", r#"invalid parameter "timeout""#),
        ("lookback_delta", "error parsing lookback delta duration"),
        ("query", r#"invalid parameter "query""#),
    ];
    for (path, mistakes) in [("query", &mistakes[..]), ("query_range", &range)] {
        for (idx, (_, wanted)) in mistakes.iter().enumerate() {
            let good = |name: &str| if name == "start" { "1" } else { "2" };
            let param = |(at, (name, _)): (usize, &(&'static str, _))| {
                (*name, if at < idx { good(name) } else { "x(" })
            };
            let params: Vec<(&str, &str)> = mistakes.iter().enumerate().map(param).collect();
            let (_, _, text) = api_error(server.at(), path, &params);
            assert!(text.starts_with(wanted), "{path} {idx}: {text}");
        }
    }
}

#[test]
fn times_and_durations_have_many_forms() {
    let server = filled(&[]);
    let at = server.at();
    let f = |time: &str, wanted: &str| {
        let data = api(at, "query", &[("query", "time()"), ("time", time)]);
        assert_eq!(data["result"][0].as_f64(), wanted.parse().ok(), "{time}");
    };
    f("1.7e9", "1700000000");
    f("+1700000000.0006", "1700000000.001");
    f("-1.5", "-1.5");
    f(".5", "0.5");
    f("2020-01-01T00:00:00.123456789+02:00", "1577829600.123");
    f("2020-01-01T00:00:00Z", "1577836800");
    // The extremes that the server itself prints come back.
    f("-292273086-05-16T16:47:06Z", "-9223372036854775.808");
    f("+292277025-08-18T07:12:54.999999999Z", "9223372036854775.807");
    for time in ["2020-01-01T00:00:00", "0x10", "NaN", "Inf", "1e300", "now", " 1"] {
        let (status, _, text) = api_error(at, "query", &[("query", "1"), ("time", time)]);
        assert_eq!(status, 400, "{text}");
        assert!(text.contains(&format!("cannot parse {time:?} to a valid timestamp")), "{text}");
    }
    let lookback = |lookback: &str| {
        let time = ("time", "1700000045");
        let params = [("query", "m_total{instance='1'}"), time, ("lookback_delta", lookback)];
        api(at, "query", &params)["result"].as_array().expect("a vector").len()
    };
    assert_eq!((lookback("30"), lookback("30.001"), lookback("31s")), (0, 1, 1));
    assert_eq!((lookback("1ms"), lookback("0"), lookback("")), (0, 1, 1));
}

#[test]
fn listings_know_names_values_and_series() {
    let server = filled(&[]);
    let f = |path: &str, params: &[(&str, &str)], want: &str| {
        assert_eq!(api(server.at(), path, params).to_string(), want, "{path} {params:?}");
    };
    f("labels", &[], r#"["__name__","instance","job"]"#);
    f("labels", &[("match[]", "n")], r#"["__name__","job"]"#);
    f("labels", &[("match[]", "n"), ("match[]", "m_total")], r#"["__name__","instance","job"]"#);
    f("label/__name__/values", &[], r#"["m_total","n"]"#);
    f("label/job/values", &[("match[]", "{instance=~'.+'}")], r#"["a"]"#);
    f("label/unknown/values", &[], "[]");
    f("label/U__instance/values", &[], r#"["1","2"]"#);
    f("series", &[("match[]", "n")], r#"[{"__name__":"n","job":"b"}]"#);
    f("series", &[("match[]", "n"), ("match[]", "{job='b'}")], r#"[{"__name__":"n","job":"b"}]"#);
    f("series", &[("match[]", "nothing")], "[]");
    f("labels", &[("start", "2000000000")], "[]");
    f("labels", &[("start", "2"), ("end", "1")], "[]");
    f("metadata", &[], r#"{"m_total":[{"help":"Things.","type":"counter","unit":""}]}"#);
    f("metadata", &[("limit", "0")], "{}");
    let cut = get(server.at(), "/api/v1/labels?limit=2").json();
    assert_eq!(cut["data"].to_string(), r#"["__name__","instance"]"#);
    assert_eq!(cut["warnings"][0], "results truncated due to limit");
    let whole = get(server.at(), "/api/v1/labels?limit=3").json();
    assert!(whole["warnings"].is_null());
}

#[test]
fn posted_forms_count_before_the_url() {
    let server = filled(&[]);
    let typed = [("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")];
    let post = |target: &str, headers: &[(&str, &str)], body: &str| {
        send(server.at(), "POST", target, headers, body.as_bytes())
    };
    let answer = post("/api/v1/query?query=1&time=5", &typed, "query=2");
    assert_eq!(answer.json()["data"]["result"].to_string(), r#"[5,"2"]"#);
    // Another content type: the body does not count.
    let answer = post("/api/v1/query", &[("Content-Type", "text/plain")], "query=2");
    assert!(answer.text().contains("no expression found"), "{}", answer.text());
    let body = form(&[("match[]", "n"), ("match[]", "m_total{instance='1'}")]);
    let answer = post("/api/v1/series", &typed, &body);
    assert_eq!(answer.json()["data"].as_array().expect("series").len(), 2);
    let answer = post("/api/v1/labels", &typed, "match%5B%5D=n");
    assert_eq!(answer.json()["data"].to_string(), r#"["__name__","job"]"#);
    let range = form(&[("query", "1"), ("start", "0"), ("end", "1"), ("step", "1")]);
    assert_eq!(post("/api/v1/query_range", &typed, &range).status, 200);
    assert_eq!(post("/api/v1/label/job/values", &typed, "").status, 405);
}

/// Before, 0 refused every query, federation and transaction that reads a sample.
#[test]
fn zero_samples_are_no_limit() {
    let server = filled(&["--query-samples-max=0"]);
    let params = [("query", "m_total[1m]"), ("time", "1700000020")];
    let data = api(server.at(), "query", &params);
    assert!(!data["result"][0]["values"].as_array().expect("samples").is_empty(), "{data}");
    let params = [("query", "n"), ("start", "1700000000"), ("end", "1700000020"), ("step", "1")];
    let data = api(server.at(), "query_range", &params);
    assert!(!data["result"].as_array().expect("series").is_empty(), "{data}");
}

#[test]
fn imports_are_taken_whole_or_not_at_all() {
    let server = Running::start(&["--request-bytes-max=100000"]);
    let post = |target: &str, headers: &[(&str, &str)], body: &[u8]| {
        let answer = send(server.at(), "POST", target, headers, body);
        (answer.status, answer.text())
    };
    let path = "/api/v1/import/prometheus";
    let (status, text) = post(path, &[], b"a 1 1700000000000\nb{ 2\n");
    assert_eq!((status, text.as_str()), (400, "line 2: expected a label name or `}`, got \"2\"\n"));
    let (status, text) = post(path, &[], b"a 1 1700000000000\nb{x=\"1\",x=\"2\"} 2\n");
    assert!(status == 400 && text.starts_with("line 2: label \"x\" is repeated"), "{text}");
    let (status, text) = post(path, &[], b"a 1\nb 2 9000000000000\n");
    assert!(status == 400 && text.contains("line 2: out of bounds"), "{text}");
    assert_eq!(api(server.at(), "labels", &[]).to_string(), "[]", "nothing was written");

    let target = format!("{path}?extra_label=job%3Dx&timestamp=1700000000000");
    assert_eq!(post(&target, &[], b"a 1").0, 204);
    let data = api(server.at(), "query", &[("query", "a[1m]"), ("time", "1700000000")]);
    assert_eq!(data["result"][0]["metric"]["job"], "x");
    assert_eq!(data["result"][0]["values"].to_string(), r#"[[1700000000,"1"]]"#);
    assert_eq!(post(&format!("{path}?extra_label=x"), &[], b"a 1").0, 400);
    assert_eq!(post(&format!("{path}?timestamp=soon"), &[], b"a 1").0, 400);

    let gzip = |bytes: &[u8]| {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).expect("a Vec");
        encoder.finish().expect("a Vec")
    };
    let packed = [("Content-Encoding", "gzip")];
    assert_eq!(post(path, &packed, &gzip(b"zipped 1")).0, 204);
    assert_eq!(api(server.at(), "query", &[("query", "zipped")])["result"][0]["value"][1], "1");
    let (status, text) = post(path, &packed, &gzip(&[b'#'; 200_000]));
    assert!(status == 413 && text.contains("--request-bytes-max"), "{text}");
    assert_eq!(post(path, &packed, b"junk").0, 400);
    assert_eq!(post(path, &[("Content-Encoding", "br")], b"a 1").0, 415);
    // The limit is that of decompression: a body that is not compressed has the other one.
    assert_eq!(post(path, &[], &[b'#'; 100_001]).0, 204);
}
