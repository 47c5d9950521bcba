//! Status pages and the process itself.

use std::collections::BTreeMap;

use firn_server::ServeConfig;
use firn_server::config::Settings;
use serde_json::Value;

use crate::client::{api, api_error, get, import, send};
use crate::{Running, start_in};

#[test]
fn the_build_names_its_prometheus_version() {
    let server = Running::start(&[]);
    let build = api(server.at(), "status/buildinfo", &[]);
    let fields: Vec<&String> = build.as_object().expect("an object").keys().collect();
    assert_eq!(fields, ["branch", "buildDate", "buildUser", "goVersion", "revision", "version"]);
    assert!(build.as_object().expect("an object").values().all(Value::is_string), "{build}");
    // Clients compare it part by part.
    let version = build["version"].as_str().expect("a text");
    let parts: Vec<u32> = version.split('.').map(|part| part.parse().expect("a number")).collect();
    assert!(parts.len() == 3 && parts[0] == 3, "{version}");
    let own = format!("firndb-{}", env!("CARGO_PKG_VERSION"));
    assert!(build["revision"].as_str().is_some_and(|revision| revision.starts_with(&own)));
    // Grafana takes a server with `features` here for another product.
    assert_eq!(build["features"], Value::Null);
    assert_eq!(get(server.at(), "/version").json(), build);
}

#[test]
fn the_run_reports_its_start_folder_and_threads() {
    let server = Running::start(&["--retention=15d"]);
    let info = api(server.at(), "status/runtimeinfo", &[]);
    // Times that the API itself reads.
    let seconds = |name: &str| {
        let time = info[name].as_str().expect("a time");
        let data = api(server.at(), "query", &[("query", "time()"), ("time", time)]);
        data["result"][0].as_f64().expect("seconds")
    };
    assert!(seconds("startTime") <= seconds("serverTime"));
    assert!(seconds("serverTime") - seconds("startTime") < 3_600.0, "{info}");
    assert_eq!(info["lastConfigTime"], info["startTime"]);
    assert_eq!(info["CWD"], std::env::current_dir().expect("a folder").display().to_string());
    assert!(info["hostname"].as_str().is_some_and(|name| !name.is_empty()));
    assert_eq!(info["reloadConfigSuccess"], true);
    assert_eq!((&info["corruptionCount"], &info["timeSeriesCount"]), (&0.into(), &0.into()));
    assert!(info["goroutineCount"].as_u64().is_some_and(|threads| threads > 1));
    assert!(info["GOMAXPROCS"].as_u64().is_some_and(|cores| cores > 0));
    assert_eq!(info["GOMEMLIMIT"], 256 << 20);
    assert_eq!((&info["GOGC"], &info["GODEBUG"]), (&"".into(), &"".into()));
    assert_eq!(info["storageRetention"], "15d");
}

#[test]
fn flags_are_texts_by_our_names_and_by_prometheus_names() {
    let server = Running::start(&["--lookback=90s", "--enable-admin-api", "--retention=30d"]);
    let flags = api(server.at(), "status/flags", &[]);
    let flags: BTreeMap<String, String> = serde_json::from_value(flags).expect("texts only");
    for setting in ServeConfig::TABLE {
        assert!(flags.contains_key(setting.name), "--{} is missing", setting.name);
    }
    let listen = server.at().to_string();
    for (name, want) in [
        ("lookback", "1m30s"),
        ("memory", "256MiB"),
        ("enable-admin-api", "true"),
        ("web.enable-admin-api", "true"),
        ("web.enable-lifecycle", "false"),
        ("web.enable-remote-write-receiver", "true"),
        ("web.listen-address", &listen),
        ("web.cors.origin", "none"),
        ("web.max-connections", "512"),
        ("storage.tsdb.retention.time", "30d"),
        ("storage.tsdb.path", flags["data"].as_str()),
        ("query.lookback-delta", "1m30s"),
        ("query.timeout", "2m"),
        ("query.max-samples", "50000000"),
        ("query.max-concurrency", "20"),
    ] {
        assert_eq!(flags.get(name).map(String::as_str), Some(want), "{name}");
    }
}

#[test]
fn the_configuration_is_yaml_of_effective_settings() {
    let server = Running::start(&["--external-labels=region=eu", "--query-timeout=7s"]);
    let data = api(server.at(), "status/config", &[]);
    let yaml = data["yaml"].as_str().expect("a text");
    assert!(
        yaml.starts_with("global:\n  external_labels:\n    \"region\": \"eu\"\nfirn:\n"),
        "{yaml}"
    );
    assert!(yaml.contains("\n  query-timeout: \"7s\"\n"), "{yaml}");
    assert!(yaml.contains("\n  self-scrape: \"never\"\n"), "{yaml}");
}

#[test]
fn cardinality_tables_count_existing_series() {
    let server = Running::start(&[]);
    let at = server.at();
    let empty = api(at, "status/tsdb", &[]);
    assert_eq!(
        empty["headStats"],
        serde_json::json!({
            "numSeries": 0, "numLabelPairs": 0, "chunkCount": 0,
            "minTime": i64::MAX, "maxTime": i64::MIN,
        })
    );
    let mut text = String::new();
    for instance in 0..12 {
        text += &format!("cpu{{job=\"node\",instance=\"host-{instance:02}\"}} 1 1700000000000\n");
    }
    text += "cpu{job=\"node\",instance=\"host-00\",core=\"0\"} 1 1700000005000\n";
    text += "up{job=\"node\",instance=\"host-00\"} 1 1700000002000\n";
    import(at, &text);
    let f = |params: &[(&str, &str)]| api(at, "status/tsdb", params);
    let data = f(&[]);
    let head = &data["headStats"];
    // cpu, up; node; twelve hosts; 0.
    assert_eq!((&head["numSeries"], &head["numLabelPairs"]), (&14.into(), &16.into()));
    assert_eq!(
        (&head["minTime"], &head["maxTime"]),
        (&1_700_000_000_000_i64.into(), &1_700_000_005_000_i64.into())
    );
    assert!(head["chunkCount"].as_u64().is_some_and(|count| count > 0), "{head}");
    let table = |data: &Value, name: &str| -> Vec<(String, u64)> {
        let rows = data[name].as_array().expect("a list").iter();
        let row = |row: &Value| {
            let name = row["name"].as_str().expect("a name").to_owned();
            (name, row["value"].as_u64().expect("a number"))
        };
        rows.map(row).collect()
    };
    let rows = |rows: &[(&str, u64)]| -> Vec<(String, u64)> {
        rows.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    };
    assert_eq!(table(&data, "seriesCountByMetricName"), rows(&[("cpu", 13), ("up", 1)]));
    assert_eq!(
        table(&data, "labelValueCountByLabelName"),
        rows(&[("instance", 12), ("__name__", 2), ("core", 1), ("job", 1)])
    );
    assert_eq!(
        table(&data, "memoryInBytesByLabelName"),
        rows(&[("instance", 12 * 7), ("__name__", 3 + 2), ("job", 4), ("core", 1)])
    );
    let pairs = table(&data, "seriesCountByLabelValuePair");
    assert_eq!(pairs.len(), 10, "ten without a limit");
    assert_eq!(
        pairs[..3],
        rows(&[("job=node", 14), ("__name__=cpu", 13), ("instance=host-00", 3)])
    );
    let groups = table(&data, "seriesCountByGroup");
    assert_eq!(groups[0], ("{instance=\"host-00\",job=\"node\"}".to_owned(), 3));
    let data = f(&[("limit", "1")]);
    assert_eq!(table(&data, "seriesCountByLabelValuePair"), rows(&[("job=node", 14)]));
    assert_eq!(table(&data, "seriesCountByMetricName"), rows(&[("cpu", 13)]));
    assert_eq!(data["headStats"]["numLabelPairs"], 16, "sums are not cut");
    assert_eq!(table(&f(&[("limit", "10000")]), "seriesCountByLabelValuePair").len(), 16);
    for (limit, want) in [
        ("0", "limit must be a positive number"),
        ("-1", "limit must be a positive number"),
        ("x", "limit must be a positive number"),
        ("10001", "limit must not exceed 10000"),
    ] {
        let (status, kind, text) = api_error(at, "status/tsdb", &[("limit", limit)]);
        assert_eq!((status, kind.as_str(), text.as_str()), (400, "bad_data", want));
    }
}

#[test]
fn blocks_are_the_tables() {
    let mut server = Running::start(&[]);
    assert_eq!(api(server.at(), "status/tsdb/blocks", &[]).to_string(), r#"{"blocks":[]}"#);
    import(server.at(), "a 1 1700000000000\na 2 1700000001000\nb 3 1700000002000\n");
    server.restart(&[]);
    let data = api(server.at(), "status/tsdb/blocks", &[]);
    let blocks = data["blocks"].as_array().expect("a list");
    assert!(!blocks.is_empty(), "a clean stop writes tables");
    let sum =
        |name: &str| blocks.iter().filter_map(|block| block["stats"][name].as_u64()).sum::<u64>();
    assert_eq!(sum("numSamples"), 3);
    assert!(sum("numChunks") >= 2);
    for block in blocks {
        let time = |name: &str| block[name].as_i64().expect("milliseconds");
        assert!(
            1_700_000_000_000 <= time("minTime") && time("minTime") < time("maxTime"),
            "{block}"
        );
        assert!(time("maxTime") <= 1_700_000_002_001, "{block}");
        let name = block["ulid"].as_str().expect("a name");
        assert!(name.len() == 26 && name.bytes().all(|byte| byte.is_ascii_digit()), "{name}");
        assert_eq!(block["compaction"]["sources"][0], name);
        assert!(block["compaction"]["level"].as_u64().is_some_and(|level| level > 0));
        assert_eq!(block["version"], 1);
    }
}

#[test]
fn replay_reports_its_progress_and_end() {
    let server = Running::start(&[]);
    let data = api(server.at(), "status/walreplay", &[]);
    assert_eq!(data["min"], 0);
    assert_eq!(data["current"], data["max"], "the start is over");
    assert_eq!((data["percent"].as_f64(), data["secondsLeft"].as_f64()), (Some(100.0), Some(0.0)));
}

#[test]
fn features_list_enabled_features() {
    let server = Running::start(&["--enable-admin-api"]);
    let features = api(server.at(), "features", &[]);
    let features: BTreeMap<String, BTreeMap<String, bool>> =
        serde_json::from_value(features).expect("categories of booleans");
    assert!(features["api"]["admin"] && !features["api"]["lifecycle"]);
    for function in ["rate", "info", "histogram_quantile", "sort_by_label"] {
        assert!(features["promql_functions"][function], "{function}");
    }
    // The language accepts every feature that is reported as on.
    for (name, query) in [
        ("anchored", "rate(m[5m] anchored)"),
        ("smoothed", "rate(m[5m] smoothed)"),
        ("duration_expr", "rate(m[5m + 1m])"),
        ("fill", "m + fill(0) n"),
        ("subqueries", "max_over_time(m[5m:1m])"),
        ("negative_offset", "m offset -5m"),
        ("at_modifier", "m @ end()"),
    ] {
        assert!(features["promql"][name], "{name}");
        api(server.at(), "query", &[("query", query)]);
    }
    assert_eq!(api(server.at(), "notifications", &[]).to_string(), "[]");
}

#[test]
fn health_responds_to_get_and_head() {
    let server = Running::start(&[]);
    for path in ["/-/healthy", "/-/ready"] {
        let got = get(server.at(), path);
        assert!(got.status == 200 && !got.body.is_empty());
        let head = send(server.at(), "HEAD", path, &[], b"");
        assert!(head.status == 200 && head.body.is_empty());
        let posted = send(server.at(), "POST", path, &[], b"");
        assert_eq!(posted.status, 405);
        assert!(posted.header("allow").contains("GET") && posted.header("allow").contains("HEAD"));
    }
    // A folder that another process has open never becomes ready, and its server reports that.
    let second = start_in(&server.folder, &[]);
    let told = get(second.listen(), "/-/ready");
    assert!(
        told.status == 503 && told.text().starts_with("Service Unavailable"),
        "{}",
        told.text()
    );
    let head = send(second.listen(), "HEAD", "/-/ready", &[], b"");
    assert_eq!((head.status, head.body.len()), (503, 0));
    assert_eq!(get(second.listen(), "/-/healthy").status, 200);
    assert_eq!(get(second.listen(), "/api/v1/status/buildinfo").status, 200);
    assert_eq!(get(second.listen(), "/api/v1/status/tsdb").status, 503);
    second.stop().expect("nothing to lose");
}

#[test]
fn reload_and_quit_need_a_setting_and_no_get() {
    let server = Running::start(&[]);
    for path in ["/-/reload", "/-/quit"] {
        for method in ["POST", "PUT"] {
            let told = send(server.at(), method, path, &[], b"");
            assert_eq!(told.status, 403);
            assert!(told.text().starts_with("Lifecycle API is not enabled"), "{}", told.text());
        }
        let told = get(server.at(), path);
        assert_eq!((told.status, told.text().trim()), (405, "Only POST or PUT requests allowed"));
        assert_eq!(send(server.at(), "DELETE", path, &[], b"").status, 405);
    }
}

#[test]
fn quit_stops_the_server_in_order() {
    let mut server = Running::start(&["--enable-lifecycle"]);
    let at = server.at();
    import(at, "kept 1 1700000000000\n");
    assert_eq!(send(at, "PUT", "/-/reload", &[], b"").status, 200);
    assert_eq!(get(at, "/-/quit").status, 405);
    let mut running = server.server.take().expect("it runs");
    let waiting = std::thread::spawn(move || {
        running.run(std::time::Duration::from_secs(60), |_| ()).expect("no failure");
        running.stop().expect("a clean stop");
    });
    let told = send(at, "POST", "/-/quit", &[], b"");
    assert_eq!((told.status, told.text().as_str()), (200, "Requesting termination... Goodbye!"));
    waiting.join().expect("it stops");
    let mut again = start_in(&server.folder, &[]);
    crate::wait_until_ready(&mut again);
    let data = api(again.listen(), "query", &[("query", "kept"), ("time", "1700000000")]);
    assert_eq!(data["result"][0]["value"][1], "1");
    again.stop().expect("a clean stop");
}
