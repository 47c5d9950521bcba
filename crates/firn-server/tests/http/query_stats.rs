//! The parameter `stats`.

use serde_json::{Value, json};

use crate::Running;
use crate::client::{get, import, url};

fn filled() -> Running {
    let server = Running::start(&[]);
    let lines: String =
        (0..100).map(|idx| format!("m {idx} {}\n", 1_700_000_000_000_i64 + idx * 10_000)).collect();
    import(server.at(), &lines);
    server
}

fn ask(server: &Running, path: &str, params: &[(&str, &str)]) -> Value {
    get(server.at(), &url(&format!("/api/v1/{path}"), params)).json()
}

#[test]
fn stats_are_returned_on_request() {
    let server = filled();
    let params = |stats| [("query", "rate(m[1m])"), ("time", "1700000100"), ("stats", stats)];
    assert!(ask(&server, "query", &params(""))["data"]["stats"].is_null());
    let json = ask(&server, "query", &params("true"));
    let stats = &json["data"]["stats"];
    for name in [
        "evalTotalTime",
        "resultSortTime",
        "queryPreparationTime",
        "innerEvalTime",
        "execQueueTime",
        "execTotalTime",
    ] {
        assert!(stats["timings"][name].as_f64().is_some_and(|time| time >= 0.0), "{name}: {stats}");
    }
    assert!(stats["timings"]["evalTotalTime"].as_f64() > Some(0.0), "it takes some time");
    let samples = &stats["samples"];
    assert_eq!(
        (&samples["totalQueryableSamples"], &samples["samplesRead"]),
        (&json!(6), &json!(6))
    );
    assert!(samples["peakSamples"].as_u64() > Some(0));
    assert_eq!(samples.as_object().expect("an object").len(), 3);
    assert!(stats["storage"].is_null() && json["warnings"].is_null());

    let all = ask(&server, "query", &params("all"));
    let samples = &all["data"]["stats"]["samples"];
    assert_eq!(samples["totalQueryableSamplesPerStep"], json!([[1_700_000_100, 6]]));
    assert_eq!(samples["samplesReadPerStep"], json!([[1_700_000_100, 6]]));
    let storage = &all["data"]["stats"]["storage"];
    assert_eq!((&storage["groupsScanned"], &storage["groupsMatched"]), (&json!(1), &json!(1)));
    assert_eq!((&storage["samplesDecoded"], &storage["slowBytes"]), (&json!(6), &json!(0)));
    assert!(storage["memoryBytes"].as_u64() > Some(0) && storage["peakBytes"].as_u64() > Some(0));

    let other = ask(&server, "query", &params("foo"));
    assert_eq!(other["data"]["stats"]["samples"]["totalQueryableSamples"], 6);
    assert_eq!(
        other["warnings"][0],
        "value \"foo\" for parameter \"stats\" is deprecated and will be rejected in the next major release, \
         use \"true\" or \"all\""
    );
}

#[test]
fn range_queries_count_each_step() {
    let server = filled();
    let params = [
        ("query", "max_over_time(m[30s])"),
        ("start", "1700000100"),
        ("end", "1700000120.5"),
        ("step", "10"),
        ("stats", "all"),
    ];
    let samples = &ask(&server, "query_range", &params)["data"]["stats"]["samples"];
    let steps = |counts: [u64; 3]| {
        json!([[1_700_000_100, counts[0]], [1_700_000_110, counts[1]], [1_700_000_120, counts[2]]])
    };
    assert_eq!(samples["totalQueryableSamplesPerStep"], steps([3, 3, 3]));
    assert_eq!(samples["samplesReadPerStep"], steps([3, 1, 1]));
    assert_eq!(
        (&samples["totalQueryableSamples"], &samples["samplesRead"]),
        (&json!(9), &json!(5))
    );
}

#[test]
fn stats_report_the_cached_part_of_an_answer() {
    let server = filled();
    let base =
        [("query", "sum(m)"), ("start", "1700000000"), ("end", "1700000090"), ("step", "10")];
    let storage = || {
        let params: Vec<(&str, &str)> = base.into_iter().chain([("stats", "all")]).collect();
        let json = ask(&server, "query_range", &params);
        let storage = &json["data"]["stats"]["storage"];
        [&storage["resultStepsKept"], &storage["resultStepsMissing"]].map(|n| n.as_u64())
    };
    assert_eq!(storage(), [Some(0), Some(10)]);
    ask(&server, "query_range", &base);
    assert_eq!(storage(), [Some(10), Some(0)]);
}

/// Before, a query with statistics did not use cached answers.
#[test]
fn only_computed_steps_count_samples() {
    let server = filled();
    let samples_until = |end: &str| {
        let params = [
            ("query", "sum(max_over_time(m[30s]))"),
            ("start", "1700000100"),
            ("end", end),
            ("step", "10"),
            ("stats", "all"),
        ];
        let json = ask(&server, "query_range", &params);
        let counts = |name: &str| {
            let steps = json["data"]["stats"]["samples"][name].as_array().expect("steps").clone();
            steps.iter().map(|step| step[1].as_u64().expect("a count")).collect::<Vec<_>>()
        };
        [counts("totalQueryableSamplesPerStep"), counts("samplesReadPerStep")]
    };
    assert_eq!(samples_until("1700000110"), [vec![3, 3], vec![3, 1]]);
    assert_eq!(samples_until("1700000110"), [vec![0, 0], vec![0, 0]]);
    assert_eq!(samples_until("1700000120"), [vec![0, 0, 3], vec![0, 0, 3]]);
}
