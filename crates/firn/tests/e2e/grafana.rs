//! The requests of Grafana's Prometheus data source, with their parameters and headers, over data
//! that the test wrote by remote write: shapes, numbers, and, where Prometheus is installed,
//! equality with its responses.

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::http::{self, encode};
use crate::process::{Process, free_address, installed, start_firn, wait_until_ready};
use crate::remote_write::WriteRequest;

/// The first sample; a whole minute.
const START_S: i64 = 1_700_000_040;
/// Seconds between two samples.
const INTERVAL_S: i64 = 15;
const SAMPLE_COUNT: i64 = 232;
/// The end of dashboards: seven seconds behind the last sample, so that no window has a sample on
/// its edge, which Prometheus 2 and 3 treat differently.
const END_S: i64 = START_S + (SAMPLE_COUNT - 1) * INTERVAL_S + 7;
/// When `deploy_version` changes.
const DEPLOY_S: i64 = START_S + 120 * INTERVAL_S;

/// A data source as Grafana sees it.
struct Source {
    at: SocketAddr,
}

impl Source {
    /// A query of the backend: a form.
    fn post(&self, path: &str, form: &[(&str, &str)]) -> Value {
        self.request("POST", path, form)
    }

    /// A resource call.
    fn get(&self, path: &str, params: &[(&str, &str)]) -> Value {
        self.request("GET", path, params)
    }

    /// The whole answer, which must be a success.
    fn request(&self, method: &str, path: &str, params: &[(&str, &str)]) -> Value {
        let (status, json) = self.send(method, path, params);
        assert_eq!(
            (status, &json["status"]),
            (200, &json!("success")),
            "{path} {params:?}: {json}"
        );
        json
    }

    fn send(&self, method: &str, path: &str, params: &[(&str, &str)]) -> (u16, Value) {
        let form = form(params);
        let mut headers = vec![
            ("Accept-Encoding", "gzip"),
            ("User-Agent", "Grafana/11.2.0"),
            ("X-Dashboard-Uid", "ab12cd"),
            ("X-Panel-Id", "4"),
            ("X-Datasource-Uid", "P1809F7CD0C75ACF3"),
            ("X-Grafana-Org-Id", "1"),
        ];
        let answer = if method == "POST" {
            headers.push(("Content-Type", "application/x-www-form-urlencoded"));
            http::request(self.at, "POST", path, &headers, form.as_bytes())
        } else {
            let path = if form.is_empty() { path.to_owned() } else { format!("{path}?{form}") };
            http::request(self.at, "GET", &path, &headers, b"")
        };
        let answer = answer.unwrap_or_else(|| panic!("{path}: no answer"));
        assert!(answer.head.contains("content-type: application/json"), "{}", answer.head);
        let body = if answer.head.contains("content-encoding: gzip") {
            let mut text = String::new();
            let mut packed = flate2::read::GzDecoder::new(answer.bytes.as_slice());
            packed.read_to_string(&mut text).expect("gzip of a text");
            text
        } else {
            answer.body
        };
        let json = serde_json::from_str(&body).unwrap_or_else(|e| panic!("{path}: {e} in {body}"));
        (answer.status, json)
    }

    /// An instant query as a table or a stat panel sends it.
    fn instant(&self, query: &str, time_s: i64) -> Value {
        let time = time_s.to_string();
        self.post("/api/v1/query", &[("query", query), ("time", &time)])
    }

    /// A graph panel: the ends are multiples of the step away from the epoch.
    fn range(&self, query: &str, step_s: i64) -> Value {
        let (start, end) = (END_S - 30 * step_s, END_S);
        let [start, end, step] = [start, end, step_s].map(|number| number.to_string());
        let params = [
            ("query", query),
            ("start", &start),
            ("end", &end),
            ("step", &step),
            ("timeout", "60s"),
        ];
        self.post("/api/v1/query_range", &params)
    }
}

#[test]
fn a_data_source_of_type_prometheus_works_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let firn_at = free_address();
    let _firn = start_firn(folder, firn_at);
    write_data(firn_at);
    let firn = Source { at: firn_at };

    save_and_test(&firn);
    query_builder(&firn);
    panels(&firn);
    tables(&firn);
    alert_list(&firn);
    annotations(&firn);
    variables(&firn);
    extras(&firn);
    mistakes(&firn);

    let Some(program) = installed("prometheus") else { return };
    let prometheus_at = free_address();
    let _prometheus = start_prometheus(&program, folder, prometheus_at);
    write_data(prometheus_at);
    compare(&Source { at: prometheus_at }, &firn);
}

fn write_data(at: SocketAddr) {
    let samples = |value: &dyn Fn(i64) -> f64| -> Vec<(i64, f64)> {
        (0..SAMPLE_COUNT).map(|idx| ((START_S + idx * INTERVAL_S) * 1_000, value(idx))).collect()
    };
    let per_second = |rate: f64| samples(&move |idx| rate * (idx * INTERVAL_S) as f64);
    let mut request = WriteRequest::default();
    for (instance, method, rate) in
        [("a:80", "GET", 1.0), ("a:80", "POST", 0.5), ("b:80", "GET", 2.0)]
    {
        let labels = [
            ("__name__", "http_requests_total"),
            ("instance", instance),
            ("job", "api"),
            ("method", method),
        ];
        request.series(&labels, &per_second(rate));
    }
    for (le, rate) in [("+Inf", 0.8), ("0.1", 0.2), ("1", 0.6)] {
        let labels = [
            ("__name__", "request_seconds_bucket"),
            ("instance", "a:80"),
            ("job", "api"),
            ("le", le),
        ];
        request.series(&labels, &per_second(rate));
    }
    let room = [("__name__", "temperature"), ("job", "house"), ("room", "attic")];
    request.series(&room, &samples(&|idx| 20.0 + (idx % 4) as f64));
    let deploys = [("__name__", "deploy_version"), ("job", "api"), ("service", "shop")];
    let deploy_idx = (DEPLOY_S - START_S) / INTERVAL_S;
    request.series(&deploys, &samples(&|idx| if idx < deploy_idx { 7.0 } else { 8.0 }));
    request.metadata(1, "http_requests_total", "Requests that were answered.", "");
    request.metadata(2, "temperature", "How warm it is.", "celsius");
    let (status, text) = request.send(at);
    assert!(status == 204 || status == 200, "{status}: {text}");
}

/// The button "Save & test", and how Grafana identifies the server.
fn save_and_test(source: &Source) {
    let health = source.post("/api/v1/query", &[("query", "1+1"), ("time", "4")]);
    assert_eq!(health["data"], json!({ "resultType": "scalar", "result": [4, "2"] }));
    let build = source.get("/api/v1/status/buildinfo", &[]);
    let version = build["data"]["version"].as_str().expect("a version");
    assert!(version.starts_with("3."), "{version}");
    assert!(build["data"]["features"].is_null() && build["data"]["application"].is_null());
}

/// The query builder and the metrics browser: metadata, names, labels, values, series of a range.
fn query_builder(source: &Source) {
    let metadata = source.get("/api/v1/metadata", &[("limit", "40000")]);
    let told = |name: &str| metadata["data"][name][0].clone();
    let requests = json!({ "type": "counter", "help": "Requests that were answered.", "unit": "" });
    assert_eq!(told("http_requests_total"), requests);
    let temperature = json!({ "type": "gauge", "help": "How warm it is.", "unit": "celsius" });
    assert_eq!(told("temperature"), temperature);
    let one = source.get("/api/v1/metadata", &[("metric", "temperature")]);
    assert_eq!(one["data"], json!({ "temperature": [temperature] }));

    let (start, end) = (START_S.to_string(), END_S.to_string());
    let within = |params: &[(&'static str, &'static str)]| -> Vec<(&str, String)> {
        let params = params.iter().map(|(name, value)| (*name, (*value).to_owned()));
        let range = [("start", start.clone()), ("end", end.clone()), ("limit", "40000".to_owned())];
        params.chain(range).collect()
    };
    let request = |method: &str, path: &str, params: &[(&'static str, &'static str)]| {
        let params = within(params);
        let params: Vec<(&str, &str)> = params.iter().map(|(n, v)| (*n, v.as_str())).collect();
        source.request(method, path, &params)["data"].clone()
    };
    for method in ["GET", "POST"] {
        assert_eq!(
            request(method, "/api/v1/labels", &[("match[]", "{__name__=\"http_requests_total\"}")]),
            json!(["__name__", "instance", "job", "method"])
        );
        assert_eq!(
            request(
                method,
                "/api/v1/series",
                &[("match[]", "{__name__=~\"temp.*\",job=\"house\"}")]
            ),
            json!([{ "__name__": "temperature", "job": "house", "room": "attic" }])
        );
    }
    assert_eq!(
        request("GET", "/api/v1/label/__name__/values", &[("match[]", "{job=\"api\"}")]),
        json!(["deploy_version", "http_requests_total", "request_seconds_bucket"])
    );
    assert_eq!(
        request("GET", "/api/v1/label/job/values", &[("match[]", "{room!=\"\"}")]),
        json!(["house"])
    );
    assert_eq!(request("GET", "/api/v1/label/room/values", &[]), json!(["attic"]));
}

/// Graphs: `query_range` with step and timeout.
fn panels(source: &Source) {
    let rates = source.range("sum by (method) (rate(http_requests_total{job=\"api\"}[5m]))", 60);
    assert_eq!(rates["data"]["resultType"], "matrix");
    let lines = rates["data"]["result"].as_array().expect("lines");
    let labels: Vec<&Value> = lines.iter().map(|line| &line["metric"]).collect();
    assert_eq!(labels, [&json!({ "method": "GET" }), &json!({ "method": "POST" })]);
    for (line, rate) in lines.iter().zip([3.0, 0.5]) {
        let values = line["values"].as_array().expect("points");
        assert_eq!(values.len(), 31);
        for (idx, point) in values.iter().enumerate() {
            assert_eq!(point[0], END_S - 60 * (30 - idx as i64), "{line}");
            assert!(close(number(&point[1]), rate), "{line}");
        }
    }
    let quantile = "histogram_quantile(0.5, sum by (le) (rate(request_seconds_bucket[5m])))";
    let quantile = source.range(quantile, 60);
    // Half of 0.8 a second is 0.4: half way between 0.2 at 0.1 s and 0.6 at 1 s.
    let values = quantile["data"]["result"][0]["values"].as_array().expect("points").clone();
    assert!(values.iter().all(|point| close(number(&point[1]), 0.55)), "{quantile}");
    let nothing = source.range("nothing_like_it", 60);
    assert_eq!(nothing["data"], json!({ "resultType": "matrix", "result": [] }));
    let scalar = source.range("1", 15);
    assert_eq!(scalar["data"]["result"][0]["metric"], json!({}));
    assert_eq!(scalar["data"]["result"][0]["values"].as_array().map(Vec::len), Some(31));
    // A step below a second, as in dashboards over the last minutes.
    let params = [
        ("query", "temperature"),
        ("start", "1700000400.5"),
        ("end", "1700000402"),
        ("step", "0.5"),
    ];
    let fine = source.post("/api/v1/query_range", &params);
    let times: Vec<f64> = fine["data"]["result"][0]["values"]
        .as_array()
        .expect("points")
        .iter()
        .filter_map(|point| point[0].as_f64())
        .collect();
    assert_eq!(times, [1_700_000_400.5, 1_700_000_401.0, 1_700_000_401.5, 1_700_000_402.0]);
}

/// Tables, stats and gauges: instant queries.
fn tables(source: &Source) {
    let table = source.instant("sum by (instance) (increase(http_requests_total[10m]))", END_S);
    assert_eq!(table["data"]["resultType"], "vector");
    let mut rows: Vec<(String, f64)> = table["data"]["result"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| {
            assert_eq!(row["value"][0], END_S);
            (row["metric"]["instance"].to_string(), number(&row["value"][1]))
        })
        .collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(rows[0].0, "\"a:80\"");
    assert!(rows.len() == 2 && close(rows[0].1, 900.0) && close(rows[1].1, 1_200.0), "{rows:?}");
    let top = source.instant("topk(1, http_requests_total)", END_S);
    assert_eq!(top["data"]["result"][0]["metric"]["instance"], "b:80");
    assert_eq!(top["data"]["result"][0]["value"], json!([END_S, "6930"]));
    let raw = source.instant("temperature[45s]", END_S);
    assert_eq!(raw["data"]["resultType"], "matrix");
    let values: Vec<&Value> = raw["data"]["result"][0]["values"]
        .as_array()
        .expect("points")
        .iter()
        .map(|point| &point[1])
        .collect();
    assert_eq!(values, ["21", "22", "23"]);
    assert_eq!(
        source.instant("\"text\"", 5)["data"],
        json!({ "resultType": "string", "result": [5, "text"] })
    );
}

/// The alert list.
fn alert_list(source: &Source) {
    assert_eq!(source.get("/api/v1/rules", &[])["data"], json!({ "groups": [] }));
    assert_eq!(source.get("/api/v1/rules", &[("type", "alert")])["data"], json!({ "groups": [] }));
    assert_eq!(source.get("/api/v1/alerts", &[])["data"], json!({ "alerts": [] }));
}

/// Annotations are range queries whose points above 0 become marks.
fn annotations(source: &Source) {
    let deploys = source.range("changes(deploy_version[2m]) > 0", 60);
    let result = deploys["data"]["result"].as_array().expect("marks");
    assert_eq!(result.len(), 1, "{deploys}");
    assert_eq!(result[0]["metric"], json!({ "job": "api", "service": "shop" }));
    let mark_s = result[0]["values"][0][0].as_i64().expect("a time");
    assert!((DEPLOY_S..DEPLOY_S + 60).contains(&mark_s), "{deploys}");
    assert_eq!(result[0]["values"], json!([[mark_s, "1"]]));
    let alerts = source.range("ALERTS{alertstate=\"firing\"}", 60);
    assert_eq!(alerts["data"]["result"], json!([]));
}

/// Template variables: `label_names()`, `label_values(...)`, `metrics(...)`, `query_result(...)`.
fn variables(source: &Source) {
    let (start, end) = (START_S.to_string(), END_S.to_string());
    let range = [("start", &*start), ("end", &*end)];
    let with = |selector| [("match[]", selector), range[0], range[1]];
    let data = |path: &str, params: &[(&str, &str)]| source.get(path, params)["data"].clone();
    let instances = "/api/v1/label/instance/values";
    assert_eq!(data(instances, &with("http_requests_total{job=\"api\"}")), json!(["a:80", "b:80"]));
    assert_eq!(data(instances, &with("request_seconds_bucket")), json!(["a:80"]));
    assert_eq!(
        data("/api/v1/labels", &range),
        // `job` and `instance` of the server's scrape of itself are later than the dashboard.
        json!(["__name__", "instance", "job", "le", "method", "room", "service"])
    );
    let names = data("/api/v1/label/__name__/values", &range);
    assert_eq!(
        names,
        json!(["deploy_version", "http_requests_total", "request_seconds_bucket", "temperature"])
    );
    // The request of older versions for the values of a label.
    let series = source.post("/api/v1/series", &with("http_requests_total{method=\"GET\"}"));
    let instances: Vec<&Value> = series["data"]
        .as_array()
        .expect("series")
        .iter()
        .map(|labels| &labels["instance"])
        .collect();
    assert_eq!(instances, ["a:80", "b:80"]);
    let result = source.instant("topk(2, sum by (instance) (http_requests_total))", END_S);
    assert_eq!(result["data"]["result"][0]["metric"], json!({ "instance": "b:80" }));
    // A dashboard that looks at another time finds nothing there.
    let earlier = [("start", "1600000000"), ("end", "1600003600")];
    assert_eq!(data("/api/v1/label/job/values", &earlier), json!([]));
}

/// The query inspector, and the switch "exemplars" of a graph.
fn extras(source: &Source) {
    let time = END_S.to_string();
    let params = [("query", "sum(temperature)"), ("time", &*time), ("stats", "all")];
    let stats = source.post("/api/v1/query", &params)["data"]["stats"].clone();
    assert!(stats["timings"]["evalTotalTime"].is_number(), "{stats}");
    assert_eq!(stats["samples"]["totalQueryableSamples"], 1, "{stats}");

    let (start, end) = (START_S.to_string(), END_S.to_string());
    let params = [
        ("query", "histogram_quantile(0.9, sum by (le) (rate(request_seconds_bucket[5m])))"),
        ("start", &*start),
        ("end", &*end),
    ];
    assert_eq!(source.post("/api/v1/query_exemplars", &params)["data"], json!([]));
}

/// The errors that a panel shows.
fn mistakes(source: &Source) {
    let f = |path: &str, params: &[(&str, &str)], want: (u16, &str)| {
        let (status, json) = source.send("POST", path, params);
        assert_eq!((status, json["errorType"].as_str()), (want.0, Some(want.1)), "{json}");
        json["error"].as_str().unwrap_or_default().to_owned()
    };
    let text = f("/api/v1/query", &[("query", "sum(rate(x[5m])")], (400, "bad_data"));
    assert!(text.contains("parse error"), "{text}");
    let fine = [("query", "up"), ("start", "0"), ("end", "1700000000"), ("step", "1")];
    let text = f("/api/v1/query_range", &fine, (400, "bad_data"));
    assert!(text.contains("exceeded maximum resolution of 11,000 points"), "{text}");
    let twice = "http_requests_total * on (job) http_requests_total";
    let time = END_S.to_string();
    f("/api/v1/query", &[("query", twice), ("time", &time)], (422, "execution"));
}

fn start_prometheus(program: &Path, folder: &Path, at: SocketAddr) -> Process {
    let config = folder.join("grafana-prometheus.yml");
    std::fs::write(&config, "global: {}\n").expect("a configuration file");
    let mut command = Command::new(program);
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.tsdb.path={}", folder.join("grafana-prometheus").display()));
    command.arg(format!("--web.listen-address={at}")).arg("--web.enable-remote-write-receiver");
    // The data is of 2023.
    command.arg("--storage.tsdb.retention.time=100y");
    let process = Process::start("prometheus", folder, &mut command);
    wait_until_ready(at, "/-/ready");
    process
}

/// Every kind of request once more: both return the same data.
fn compare(prometheus: &Source, firn: &Source) {
    let (start, end) = (START_S.to_string(), END_S.to_string());
    let range = [("start", &*start), ("end", &*end)];
    for (method, path, params) in [
        ("GET", "/api/v1/labels", &[][..]),
        ("POST", "/api/v1/labels", &[("match[]", "{job=\"house\"}")]),
        ("GET", "/api/v1/label/__name__/values", &[]),
        ("GET", "/api/v1/label/le/values", &[("match[]", "{__name__=~\".*bucket\"}")]),
        ("GET", "/api/v1/label/unknown/values", &[]),
        ("GET", "/api/v1/series", &[("match[]", "{job=~\"api|house\"}")]),
        ("POST", "/api/v1/series", &[("match[]", "temperature"), ("match[]", "{room!=\"\"}")]),
        ("GET", "/api/v1/rules", &[]),
        ("GET", "/api/v1/alertmanagers", &[]),
    ] {
        let params: Vec<(&str, &str)> = params.iter().copied().chain(range).collect();
        let request = |source: &Source| source.request(method, path, &params)["data"].clone();
        assert_eq!(sorted(request(firn)), sorted(request(prometheus)), "{path} {params:?}");
    }
    for query in [
        "1+1",
        "http_requests_total",
        "sum by (method) (rate(http_requests_total[5m]))",
        "irate(http_requests_total{method=\"GET\"}[1m])",
        "increase(http_requests_total[10m]) / 600",
        "histogram_quantile(0.95, sum by (le) (rate(request_seconds_bucket[5m])))",
        "avg_over_time(temperature[2m])",
        "max_over_time(deriv(temperature[125s])[10m:1m])",
        "topk(2, http_requests_total)",
        "temperature > 22",
        "deploy_version != deploy_version offset 15m",
        "label_replace(temperature, \"floor\", \"$1\", \"room\", \"(.*)\")",
        "absent(nothing)",
        "count(http_requests_total) or vector(0)",
    ] {
        let instant = |source: &Source| sorted(source.instant(query, END_S)["data"].clone());
        alike(query, &instant(firn), &instant(prometheus));
        let range = |source: &Source| sorted(source.range(query, 60)["data"].clone());
        alike(query, &range(firn), &range(prometheus));
    }
}

/// Series in the order of their labels: vectors and series have none.
fn sorted(mut data: Value) -> Value {
    let of_query = data["result"].is_array();
    let list = if of_query { data["result"].as_array_mut() } else { data.as_array_mut() };
    if let Some(list) = list.filter(|list| list.iter().all(Value::is_object)) {
        list.sort_by_key(
            |item| if of_query { item["metric"].to_string() } else { item.to_string() },
        );
    }
    data
}

/// Equal, except for the last digits of values, which are texts.
fn alike(query: &str, ours: &Value, theirs: &Value) {
    let same = match (ours, theirs) {
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            return a.iter().zip(b).for_each(|(a, b)| alike(query, a, b));
        }
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => {
            return a.values().zip(b.values()).for_each(|(a, b)| alike(query, a, b));
        }
        (Value::String(a), Value::String(b)) => {
            a == b || matches!((a.parse::<f64>(), b.parse::<f64>()), (Ok(a), Ok(b)) if close(a, b))
        }
        _ => ours == theirs,
    };
    assert!(same, "{query}: FirnDB {ours}, Prometheus {theirs}");
}

fn number(value: &Value) -> f64 {
    value
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("{value} is no value"))
}

fn close(a: f64, b: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

fn form(params: &[(&str, &str)]) -> String {
    let pairs = params.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value)));
    pairs.collect::<Vec<_>>().join("&")
}
