//! Series, labels and label values: one test per rule of Prometheus' API.

use std::net::SocketAddr;

use serde_json::Value;

use crate::Running;
use crate::client::{api, api_error, form, get, import, send, url};

/// Two members of one group, three hours apart, and a series of its own.
fn filled() -> Running {
    let server = Running::start(&[]);
    import(
        server.at(),
        "early{job=\"a\",instance=\"1\",e=\"x\"} 1 1700000000000\n\
         late{job=\"a\",instance=\"1\",l=\"y\"} 2 1700010800000\n\
         late{job=\"a\",instance=\"1\",l=\"z\"} 3 1700010800500\n\
         alone{job=\"b\"} 4 1700010800000\n",
    );
    server
}

/// Every way to request a list returns the same.
fn list(at: SocketAddr, path: &str, params: &[(&str, &str)]) -> String {
    let asked = get(at, &url(&format!("/api/v1/{path}"), params));
    assert_eq!(asked.status, 200, "{path} {params:?}: {}", asked.text());
    let asked = asked.json();
    if !path.starts_with("label/") {
        let typed = [("Content-Type", "application/x-www-form-urlencoded")];
        let target = format!("/api/v1/{path}");
        let posted = send(at, "POST", &target, &typed, form(params).as_bytes());
        assert_eq!(posted.json(), asked, "{path} {params:?}");
    }
    assert_eq!(asked["warnings"], Value::Null, "{path} {params:?}");
    asked["data"].to_string()
}

#[test]
fn selectors_are_united_without_repeats() {
    let server = filled();
    let f = |path: &str, selectors: &[&str], want: &str| {
        let params: Vec<_> = selectors.iter().map(|selector| ("match[]", *selector)).collect();
        assert_eq!(list(server.at(), path, &params), want, "{path} {selectors:?}");
    };
    let alone = r#"{"__name__":"alone","job":"b"}"#;
    let early = r#"{"__name__":"early","e":"x","instance":"1","job":"a"}"#;
    f("series", &["alone"], &format!("[{alone}]"));
    f("series", &["early", "alone"], &format!("[{alone},{early}]"));
    f(
        "series",
        &["{job=~'a|b',e!='',__name__='early'}", "early", "{e='x'}"],
        &format!("[{early}]"),
    );
    f("series", &["{job='c'}", "alone"], &format!("[{alone}]"));
    f("series", &["nothing"], "[]");
    f("labels", &[], r#"["__name__","e","instance","job","l"]"#);
    f("labels", &["alone"], r#"["__name__","job"]"#);
    f("labels", &["alone", "early"], r#"["__name__","e","instance","job"]"#);
    f("labels", &["nothing"], "[]");
    f("label/job/values", &[], r#"["a","b"]"#);
    f("label/job/values", &["{e='x'}", "early"], r#"["a"]"#);
    f("label/job/values", &["early", "alone"], r#"["a","b"]"#);
    f("label/l/values", &["late"], r#"["y","z"]"#);
    f("label/l/values", &["early"], "[]");
    f("label/__name__/values", &["{job='a'}"], r#"["early","late"]"#);
}

#[test]
fn a_range_names_the_series_that_have_a_sample_inside() {
    let mut server = filled();
    for life in ["in memory", "in tables"] {
        let at = server.at();
        let names = |start: &str, end: &str| {
            let mut params = vec![("match[]", "{job!=''}")];
            params.extend([("start", start), ("end", end)].iter().filter(|(_, v)| !v.is_empty()));
            let data: Value =
                serde_json::from_str(&list(at, "series", &params)).expect("what it was");
            let series = data.as_array().expect("a list").iter();
            let name = |series: &Value| {
                let of = |label: &str| series[label].as_str().unwrap_or_default().to_owned();
                of("__name__") + &of("l")
            };
            series.map(name).collect::<Vec<_>>().join(" ")
        };
        let f = |start: &str, end: &str, want: &str| {
            assert_eq!(names(start, end), want, "{life}: from {start:?} to {end:?}");
        };
        f("", "", "alone early latey latez");
        f("1700000000", "1700000000", "early");
        f("1700000000.001", "1700010799.999", "");
        f("0", "1699999999.999", "");
        f("", "1700000000", "early");
        f("1700000001", "", "alone latey latez");
        // Samples in one second: rows are exact, directories of tables to 1/32 of a partition.
        let (first, second) = match life {
            "in memory" => ("alone latey", "latez"),
            _ => ("alone latey latez", "alone latey latez"),
        };
        f("1700010800", "1700010800.499", first);
        f("1700010800.5", "1700010800.5", second);
        let both =
            if life == "in memory" { "alone early latey" } else { "alone early latey latez" };
        f("2023-11-14T22:13:20Z", "2023-11-15T01:13:20Z", both);
        f("1700010801", "", "");
        f("2000000000", "2000000001", "");
        f("1700010800", "1700000000", "");

        let early = [("start", "1699990000"), ("end", "1700000001")];
        let late = [("start", "1700010000"), ("end", "1700020000")];
        let gap = [("start", "1700000001"), ("end", "1700010000")];
        let reversed = [("start", "2"), ("end", "1")];
        for (path, in_early, in_late) in [
            (
                "labels",
                r#"["__name__","e","instance","job"]"#,
                r#"["__name__","instance","job","l"]"#,
            ),
            ("label/__name__/values", r#"["early"]"#, r#"["alone","late"]"#),
            ("label/l/values", "[]", r#"["y","z"]"#),
            ("label/job/values", r#"["a"]"#, r#"["a","b"]"#),
        ] {
            assert_eq!(list(at, path, &early), in_early, "{life}: {path}");
            assert_eq!(list(at, path, &late), in_late, "{life}: {path}");
            assert_eq!(list(at, path, &gap), "[]", "{life}: {path}");
            assert_eq!(list(at, path, &reversed), "[]", "{life}: {path}");
        }
        server.restart(&[]);
    }
}

#[test]
fn a_limit_warns_only_if_it_truncated() {
    let server = filled();
    let f = |path: &str, params: &[(&str, &str)], limit: &str, want: &[&str]| {
        let mut params = params.to_vec();
        params.push(("limit", limit));
        let answer = get(server.at(), &url(&format!("/api/v1/{path}"), &params)).json();
        let cut = answer["warnings"][0].as_str();
        let names: Vec<String> = answer["data"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|item| item.as_str().or(item["__name__"].as_str()).unwrap_or_default().to_owned())
            .collect();
        assert_eq!(names, want, "{path} {limit}");
        (cut == Some("results truncated due to limit"), cut.is_none())
    };
    let all = [("match[]", "{job!=''}")];
    assert!(f("series", &all, "2", &["alone", "early"]).0);
    assert!(f("series", &all, "4", &["alone", "early", "late", "late"]).1);
    assert!(f("series", &all, "0", &["alone", "early", "late", "late"]).1);
    assert!(f("labels", &[], "1", &["__name__"]).0);
    assert!(f("labels", &[], "5", &["__name__", "e", "instance", "job", "l"]).1);
    assert!(f("label/l/values", &[], "1", &["y"]).0);
    assert!(f("label/l/values", &[], "2", &["y", "z"]).1);
    assert!(f("label/l/values", &[], "99999999999", &["y", "z"]).1);
}

#[test]
fn errors_have_prometheus_wording() {
    let server = filled();
    let f = |path: &str, params: &[(&str, &str)], want: &str| {
        let (status, kind, text) = api_error(server.at(), path, params);
        assert_eq!((status, kind.as_str()), (400, "bad_data"), "{path} {params:?}");
        assert!(text.starts_with(want), "{path} {params:?}: {text}");
    };
    f("series", &[], "no match[] parameter provided");
    f("series", &[("limit", "x"), ("start", "soon")], "no match[] parameter provided");
    for path in ["series", "labels", "label/job/values"] {
        let ok = ("match[]", "up");
        // Before, all of them named the parameter.
        let named = if path == "series" { "invalid parameter \"match[]\": " } else { "" };
        f(path, &[ok, ("match[]", "{")], &format!("{named}1:2: parse error: "));
        let empty = format!("{named}match[] must contain at least one non-empty matcher");
        f(path, &[ok, ("match[]", "{}")], &empty);
        f(path, &[("match[]", "{a=~'.*'}")], &empty);
        f(path, &[("match[]", "{a!='b'}")], &empty);
        f(path, &[ok, ("start", "soon")], "invalid parameter \"start\": ");
        f(path, &[ok, ("end", "soon")], "invalid parameter \"end\": ");
        f(path, &[ok, ("limit", "-1")], "invalid parameter \"limit\": ");
        f(path, &[ok, ("limit", "1.5")], "invalid parameter \"limit\": ");
    }
    // Before, the first two named the path, and the third one was a label without values.
    f("label/%ff/values", &[], r#"invalid label name: "\xff""#);
    f("label/%C3%BC%22%FFa/values", &[], r#"invalid label name: "ü\"\xffa""#);
    f("label/%zz/values", &[], r#"invalid URL escape "%zz""#);
    f("label/a%4/values", &[], r#"invalid URL escape "%4""#);
    f("label/U__/values", &[], r#"invalid label name: """#);
    f("groups/%ff", &[], r#"invalid group id: expected a number, got "\xff""#);
    f("groups/1.5", &[], r#"invalid group id: expected a number, got "1.5""#);
    f("groups/%1", &[], r#"invalid URL escape "%1""#);
    assert_eq!(send(server.at(), "POST", "/api/v1/label/job/values", &[], b"").status, 405);
}

#[test]
fn any_utf8_name_can_be_queried() {
    let server = Running::start(&[]);
    import(
        server.at(),
        "{\"http.status\",\"a.b\"=\"1\",\"sla/sh\"=\"2\",\"ü\"=\"3\",a_b=\"4\",U__=\"5\"} 1 1700000000000\n",
    );
    let f = |name: &str, want: &str| {
        let path = format!("label/{name}/values");
        assert_eq!(api(server.at(), &path, &[]).to_string(), want, "{name}");
    };
    f("U__a_2e_b", r#"["1"]"#);
    f("a.b", r#"["1"]"#);
    f("U__sla_2f_sh", r#"["2"]"#);
    f("sla%2Fsh", r#"["2"]"#);
    f("a+b", "[]");
    f("U___fc_", r#"["3"]"#);
    f("%C3%BC", r#"["3"]"#);
    f("U__a__b", r#"["4"]"#);
    f("a_b", r#"["4"]"#);
    // A text without escapes is a name.
    f("U__a_", "[]");
    f("not-there", "[]");
    f("__name__", r#"["http.status"]"#);
}
