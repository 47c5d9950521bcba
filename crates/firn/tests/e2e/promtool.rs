//! `firn query`, `debug`, `relabel`, `promql`, and `check` of a running server: the output, the
//! requests and the exit codes of promtool.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::http::{encode, get};
use crate::process::{Process, firn, free_address, installed, wait_for, wait_until_ready};

/// A server whose last response is that of all further requests. It keeps the last request.
struct Canned {
    address: SocketAddr,
    request: Arc<Mutex<String>>,
}

impl Canned {
    fn start(status: &str, body: &str) -> Canned {
        Canned::in_turn(&[(status, body)])
    }

    /// `responses` are statuses, with headers behind them, and bodies.
    fn in_turn(responses: &[(&str, &str)]) -> Canned {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let response = |(status, body): &(&str, &str)| {
            format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            )
        };
        let mut responses: Vec<String> = responses.iter().rev().map(response).collect();
        let request = Arc::new(Mutex::new(String::new()));
        let last = Arc::clone(&request);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                *last.lock().unwrap() = read_request(&mut stream);
                let response = match responses.len() {
                    1 => responses[0].clone(),
                    _ => responses.pop().unwrap(),
                };
                // A client that has read enough is no failure of the server.
                let _ = stream.write_all(response.as_bytes());
            }
        });
        Canned { address, request }
    }

    fn last(&self) -> String {
        self.request.lock().unwrap().clone()
    }

    /// The first line and the body of the last request.
    fn last_line_and_body(&self) -> (String, String) {
        let request = self.last();
        let line = request.lines().next().unwrap_or_default().to_owned();
        let body = request.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
        (line, body)
    }
}

fn read_request(stream: &mut TcpStream) -> String {
    let (mut request, mut buffer) = (String::new(), [0; 4_096]);
    loop {
        let Ok(count @ 1..) = stream.read(&mut buffer) else { return request };
        request.push_str(&String::from_utf8_lossy(&buffer[..count]));
        let Some((head, body)) = request.split_once("\r\n\r\n") else { continue };
        let len = head.to_lowercase().lines().find_map(|line| {
            line.strip_prefix("content-length:").and_then(|len| len.trim().parse::<usize>().ok())
        });
        if body.len() >= len.unwrap_or(0) {
            return request;
        }
    }
}

/// Exit code, output and errors.
type Outcome = (Option<i32>, String, String);

fn run(program: &Path, folder: &Path, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(program);
    let done = command.args(arguments).current_dir(folder).stdin(Stdio::null()).output();
    let Output { status, stdout, stderr } = done.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn run_firn(folder: &Path, arguments: &[&str]) -> Outcome {
    run(Path::new(env!("CARGO_BIN_EXE_firn")), folder, arguments)
}

const VECTOR: &str = r#"{"resultType":"vector","result":[
    {"metric":{"__name__":"up","job":"a \"<&>\n","job1":"é"},"value":[1435781451.781,"1"]},
    {"metric":{"__name__":"up"},"value":[1435781451,"+Inf"]},
    {"metric":{"b":"c"},"value":[1435781451.7,"1e-7"]},{"metric":{},"value":[1,"NaN"]}]}"#;
const MATRIX: &str = r#"{"resultType":"matrix","result":[
    {"metric":{"a":"2","b":"1"},"values":[[1,"1"],[2.5,"-3.25"]]},
    {"metric":{"z":"1"},"values":[[1,"12345678901234567890"]]},
    {"metric":{"a":"1","c":"1"},"values":[]}]}"#;

/// Results, errors and requests are compared with those of promtool, if it is installed.
#[test]
fn queries_are_those_of_promtool() {
    let folder = tempfile::tempdir().unwrap();
    let promtool = installed("promtool");
    let ok = |data: &str| format!(r#"{{"status":"success","data":{data}}}"#);
    let bad = r#"{"status":"error","errorType":"bad_data","error":"parse error: x"}"#;
    let instant: &[&str] = &["instant", "URL", "up{}", "--time=1435781451.781"];
    let range: &[&str] =
        &["range", "URL", "up", "--start=1", "--end=2015-07-01T20:10:51.781Z", "--step=1m30s"];
    let series: &[&str] = &["series", "URL", "--match=a", "--match={b=\"c\"}", "--start=1"];
    let labels: &[&str] = &["labels", "URL", "a_b", "--match=x", "--end=5"];
    let cases: &[(&str, String, &[&str], i32)] = &[
        ("200 OK", ok(VECTOR), instant, 0),
        ("200 OK", ok(r#"{"resultType":"vector","result":[]}"#), instant, 0),
        ("200 OK", ok(r#"{"resultType":"scalar","result":[1435781451.781,"-0.5"]}"#), instant, 0),
        ("200 OK", ok(MATRIX), range, 0),
        ("200 OK", ok(r#"[{"__name__":"up","b":"x\ny"},{"a":"<b>"},{}]"#), series, 0),
        ("200 OK", ok("[]"), series, 0),
        ("200 OK", ok(r#"["a","<b>","é"]"#), labels, 0),
        ("400 Bad Request", bad.to_owned(), instant, 1),
        ("422 Unprocessable Entity", bad.to_owned(), range, 1),
        ("503 Service Unavailable", " too busy\n".to_owned(), series, 1),
        ("404 Not Found", String::new(), labels, 1),
        ("400 Bad Request", ok("[]"), instant, 1),
        ("200 OK", bad.to_owned(), instant, 1),
        ("200 OK", bad.to_owned(), &["range", "URL", "up", "--start=5", "--end=5"], 1),
        ("200 OK", bad.to_owned(), &["instant", "URL", "up", "--time=yesterday"], 1),
    ];
    for (status, body, arguments, code) in cases {
        let server = Canned::start(status, body);
        let url = format!("http://{}", server.address);
        for format in ["promql", "json"] {
            let mut all = vec!["query", "-o", format];
            all.extend(arguments.iter().map(|word| if *word == "URL" { &*url } else { *word }));
            let got = run_firn(folder.path(), &all);
            assert_eq!(got.0, Some(*code), "{all:?} {got:?}");
            let sent = server.last_line_and_body();
            let Some(promtool) = &promtool else { continue };
            assert_eq!(got, run(promtool, folder.path(), &all), "{all:?}");
            let wanted = server.last_line_and_body();
            // Version 2 lists series with GET.
            let has_method = arguments[0] != "series";
            let sorted = |(line, body): &(String, String)| {
                let mut words: Vec<String> = line
                    .split(['?', '&', ' '])
                    .chain(body.split('&'))
                    .filter(|word| !word.is_empty() && !is_now(word))
                    .filter(|word| has_method || !["GET", "POST"].contains(word))
                    .map(str::to_owned)
                    .collect();
                words.sort_unstable();
                words
            };
            assert_eq!(sorted(&sent), sorted(&wanted), "{all:?}");
        }
    }
}

/// The output is that of promtool 3.14. Before, types and output were those of older versions.
#[test]
fn buckets_of_histograms_are_analyzed() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = r#"{"status":"success","data":{"resultType":"matrix","result":[
        {"metric":{"__name__":"b_bucket","le":"+Inf","job":"j"},"values":[[1,"5"],[2,"9"]]},
        {"metric":{"__name__":"b_bucket","le":"1","job":"j"},"values":[[1,"5"],[2,"8"]]},
        {"metric":{"__name__":"a_bucket","le":"1"},"values":[[1,"0"],[2,"0"]]},
        {"metric":{"__name__":"a_bucket","le":"2"},"values":[[1,"0"],[2,"1"]]},
        {"metric":{"__name__":"c_bucket","le":"2"},"values":[[1,"0"]]},
        {"metric":{"__name__":"b_sum","job":"j"},"values":[[1,"5"],[2,"9"]]},
        {"metric":{"__name__":"n","job":"j"},"histograms":[
            [1,{"count":"3","sum":"1","buckets":[[0,"0","1","2"],[0,"1","2","1"]]}],
            [2,{"count":"3","sum":"1","buckets":[[0,"0","1","2"],[0,"2","4","1"]]}]]},
        {"metric":{"__name__":"o"},"histograms":[[2,{"count":"0","sum":"0"}]]}]}}"#;
    let server = Canned::start("200 OK", matrix);
    let address = format!("--server=http://{}", server.address);
    let analyze = |kind: &str, address: &str, more: &[&str]| {
        let kind = format!("--type={kind}");
        let all = ["query", "analyze", &*kind, address, "--match={x=\"y\"}"];
        run_firn(folder.path(), &[&all[..], more].concat())
    };
    let head = "Bucket stats for each histogram series over time\n\
        ------------------------------------------------\n\
        First the min, avg, and max number of populated buckets, followed by the total\n\
        number of buckets (only if different from the max number of populated buckets\n\
        which is typical for classic but not native histograms).\n\n";
    let want = "- n{job=\"j\"} (native): 2/2.000/2/3\n\
        - a_bucket{} (classic): 0/0.500/1/2\n\
        - b_bucket{job=\"j\"} (classic): 1/1.500/2\n\
        \nAggregated bucket stats\n-----------------------\n\
        Each line shows min/avg/max over the series above.\n\n\
        Native histogram series (1 in total):\n- min populated: 2/2.000/2\n\
        - avg populated: 2/2.000/2\n- max populated: 2/2.000/2\n- total: 3/3.000/3\n\n\
        Classic histogram series (2 in total):\n- min populated: 0/0.500/1\n\
        - avg populated: 0/0.500/1\n- max populated: 1/1.500/2\n- total: 2/2.000/2\n";
    let found = analyze("histogram", &address, &["--duration=90m", "--time=5"]);
    assert_eq!(found, (Some(0), format!("{head}{want}"), String::new()));
    let (line, body) = server.last_line_and_body();
    assert_eq!(line, "POST /api/v1/query HTTP/1.1");
    assert_eq!(body, "query=%7Bx%3D%22y%22%7D%5B1h30m0s%5D&time=5");

    let wrong = |error: &str, output: &str, outcome: Outcome| {
        assert_eq!(outcome, (Some(1), output.to_owned(), format!("{error}\n")));
    };
    let kind = "analyze type is classichistograms, must be 'histogram'";
    wrong(kind, "", analyze("classichistograms", &address, &[]));
    let time = "error parsing time 'x': cannot parse \"x\" to a valid timestamp";
    wrong(time, "", analyze("histogram", &address, &["--time=x"]));
    let body = r#"{"status":"error","errorType":"bad_data","error":"no"}"#;
    let refusing = Canned::start("400 Bad Request", body);
    let refusing = format!("--server=http://{}", refusing.address);
    wrong("bad_data: no", head, analyze("histogram", &refusing, &[]));
    let busy = Canned::start("503 Service Unavailable", "busy");
    let busy = format!("--server=http://{}", busy.address);
    wrong("server_error: server error: 503", head, analyze("histogram", &busy, &[]));
}

/// The limits of lists are 9,999 hours from now.
fn is_now(word: &str) -> bool {
    let time = word.strip_prefix("start=").or_else(|| word.strip_prefix("end="));
    time.and_then(|time| time.parse::<f64>().ok()).is_some_and(|time| time > 1.5e9)
}

/// A hostile server and its operator's secrets.
#[test]
fn responses_do_not_control_the_terminal_and_errors_show_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let query = |url: &str, arguments: &[&str]| {
        run_firn(folder.path(), &[&["query", "labels", url, "a"], arguments].concat())
    };
    let url = |server: &Canned| format!("http://{}", server.address);
    let escape = r#"{"status":"success","data":["\u001b[2J\u009b\nx"],"warnings":["\u001b[1m"]}"#;
    let escape = Canned::start("200 OK", escape);
    for format in ["promql", "json"] {
        let (code, output, errors) = query(&url(&escape), &["-o", format]);
        assert_eq!((code, output.lines().count()), (Some(0), 1), "{output}");
        let is_control = |c: char| c.is_control() && c != '\n';
        assert!(!output.contains(is_control) && !errors.contains(is_control), "{output}{errors}");
        assert!(errors.starts_with("query warning: "), "{errors}");
    }
    for body in ["[".repeat(1 << 20), "<html>\u{1b}[2J".to_owned(), "{}".to_owned()] {
        let server = Canned::start("200 OK", &body);
        let (code, output, errors) = query(&url(&server), &[]);
        assert_eq!((code, output.as_str()), (Some(1), ""), "{errors}");
        assert!(errors.starts_with("query error: ") && !errors.contains('\u{1b}'), "{errors}");
    }

    let dead = free_address();
    let login = format!("http://user:hunter2@{dead}/path");
    let (code, _, errors) = query(&login, &[]);
    assert_eq!(code, Some(1));
    assert!(
        errors.starts_with(&format!("query error: Get \"http://{dead}/path/api/v1")),
        "{errors}"
    );
    assert!(!errors.contains("hunter2"), "{errors}");
    let server = Canned::start("200 OK", r#"{"status":"success","data":[]}"#);
    let login = format!("http://user:hunter2@{}", server.address);
    assert_eq!(query(&login, &[]).0, Some(0));
    let request = server.last().to_lowercase();
    assert!(request.contains("authorization: basic dxnlcjpodw50zxiy\r\n"), "{request}");

    // Relative paths in the file begin in the current folder.
    std::fs::write(folder.path().join("token"), "hunter2\n").unwrap();
    let config = "authorization: {credentials_file: token}\nhttp_headers: {A: {values: [b]}}\n";
    std::fs::write(folder.path().join("http.yml"), config).unwrap();
    let file = "--http.config.file=http.yml";
    assert_eq!(query(&url(&server), &[file]).0, Some(0));
    let request = server.last().to_lowercase();
    assert!(request.contains("authorization: bearer hunter2\r\n"), "{request}");
    assert!(request.contains("\r\na: b\r\n"), "{request}");
    let both = query(&login, &[file]);
    assert!(both.2.starts_with("Cannot set base auth in the server URL"), "{both:?}");
    std::fs::write(folder.path().join("http.yml"), "basic_auth: {user: hunter2}\n").unwrap();
    let wrong = query(&url(&server), &[file]);
    assert_eq!(wrong.0, Some(1));
    assert!(wrong.2.starts_with("Failed to load HTTP config file: "), "{wrong:?}");

    let headers = ["instant", "URL", "up", "--header=X-Scope-OrgID=1", "--header=x-a:b=c"];
    let url = url(&server);
    let headers = headers.map(|word| if word == "URL" { url.as_str() } else { word });
    run_firn(folder.path(), &[&["query"], &headers[..]].concat());
    let request = server.last().to_lowercase();
    assert!(request.contains("\r\nx-scope-orgid: 1\r\n"), "{request}");
    assert!(request.contains("\r\nx-a: b=c\r\n"), "{request}");
    let wrong = run_firn(folder.path(), &["query", "instant", &url, "up", "--header=a hunter2"]);
    assert_eq!((wrong.0, wrong.2.contains("hunter2")), (Some(1), false), "{wrong:?}");
}

const CONFIG: &str = "scrape_configs:
- job_name: a
  scrape_interval: 1h
  relabel_configs:
  - {source_labels: [__address__], regex: '(.*):1', target_label: host}
  - {action: drop, source_labels: [host], regex: bad}
  - {target_label: later, replacement: x}
  metric_relabel_configs:
  - {action: labeldrop, regex: tmp}
";

fn start(folder: &Path) -> (Process, SocketAddr) {
    std::fs::write(folder.join("p.yml"), CONFIG).unwrap();
    let address = free_address();
    let mut command = firn(folder, address);
    command.arg("--prometheus-config").arg(folder.join("p.yml"));
    let process = Process::start("firn", folder, &mut command);
    wait_until_ready(address, "/-/ready");
    (process, address)
}

#[test]
fn a_running_server_is_checked_and_debugged() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (_server, address) = start(folder);
    let url = format!("http://{address}");
    for endpoint in ["healthy", "ready"] {
        let (code, output, errors) = run_firn(folder, &["check", endpoint, "--url", &url]);
        assert_eq!((code, output.as_str()), (Some(0), ""), "{errors}");
        assert!(errors.starts_with("  SUCCESS:  "), "{errors}");
    }
    let busy = Canned::start("503 Service Unavailable", "");
    let busy = format!("http://{}", busy.address);
    let (code, _, errors) = run_firn(folder, &["check", "ready", "--url", &busy]);
    assert_eq!((code, errors), (Some(1), format!("check failed: URL={busy}, status=503\n")));

    let scalar = run_firn(folder, &["query", "instant", &url, "2 * 3", "--time", "5"]);
    assert_eq!(scalar, (Some(0), "scalar: 6 @[5]\n".to_owned(), String::new()));
    let wrong = run_firn(folder, &["query", "range", &url, "sum("]);
    assert_eq!(wrong.0, Some(1));
    assert!(
        wrong.2.starts_with("query error: bad_data: invalid parameter \"query\": "),
        "{wrong:?}"
    );

    let archived = |subject: &str| {
        let (code, output, errors) = run_firn(folder, &["debug", subject, &url]);
        assert_eq!(code, Some(0), "{errors}");
        assert!(output.starts_with("collecting: http://"), "{output}");
        let end = "Compiling debug information complete, all files written in \"debug.tar.gz\".\n";
        assert!(output.ends_with(end), "{output}");
        let tar = Command::new("tar").args(["-xzvf", "debug.tar.gz"]).current_dir(folder).output();
        (String::from_utf8(tar.unwrap().stdout).unwrap(), errors)
    };
    assert_eq!(archived("metrics"), ("metrics.txt\n".to_owned(), String::new()));
    let (pprof, errors) = archived("pprof");
    assert!(errors.contains("no profiles of pprof"), "{errors}");
    assert_eq!(archived("all").0, format!("metrics.txt\n{pprof}"));
    for name in pprof.lines() {
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        let state: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(state["status"], "success", "{name}");
    }
    let metrics = std::fs::read_to_string(folder.join("metrics.txt")).unwrap();
    assert!(metrics.contains("firn_"), "{metrics}");
    std::fs::remove_file(folder.join("debug.tar.gz")).unwrap();
    let dead = format!("http://u:hunter2@{}", free_address());
    let (code, output, errors) = run_firn(folder, &["debug", "all", &dead]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("error completing debug command: error executing HTTP"), "{errors}");
    assert!(!errors.contains("hunter2") && !output.contains("hunter2"), "{output}{errors}");
    assert!(!folder.join("debug.tar.gz").exists());
}

#[test]
fn relabelling_is_shown_step_by_step() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (_server, address) = start(folder);
    let steps = |pool: &str, labels: &str| {
        let mut target = String::from("/api/v1/targets/relabel_steps");
        let _ = write!(target, "?scrapePool={}&labels={}", encode(pool), encode(labels));
        let answer = get(address, &target).unwrap();
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        (answer.status, body)
    };
    let kept = r#"{"__address__":"h:1"}"#;
    let replace = json!({
        "source_labels": ["__address__"], "separator": ";", "regex": "(.*):1",
        "target_label": "host", "replacement": "$1", "action": "replace",
    });
    // A server is ready before its first targets are known.
    wait_for("pool of targets", Duration::from_secs(20), || steps("a", kept).0 == 200);
    let (status, body) = steps("a", kept);
    assert_eq!(status, 200, "{body}");
    let all = body["data"]["steps"].as_array().unwrap();
    let first = json!({ "__address__": "h:1", "host": "h" });
    assert_eq!(all[0], json!({ "rule": replace, "output": first, "keep": true }));
    assert_eq!(all[1]["output"], first);
    assert_eq!(all[2]["output"]["later"], "x");
    let (_, body) = steps("a", r#"{"__address__":"bad:1"}"#);
    let keeps: Vec<&Value> =
        body["data"]["steps"].as_array().unwrap().iter().map(|step| &step["keep"]).collect();
    assert_eq!(keeps, [&json!(true), &json!(false), &json!(false)]);
    assert_eq!(body["data"]["steps"][1]["output"], json!({}));
    for (pool, labels, error) in [
        ("", kept, "no scrapePool parameter provided"),
        ("a", "", "no labels parameter provided"),
        ("a", "[]", "error parsing labels: "),
        ("a", r#"{"a":1}"#, "error parsing labels: "),
        ("b\n", kept, "error retrieving scrape config: scrape pool \"b\\n\" not found"),
    ] {
        let (status, body) = steps(pool, labels);
        assert_eq!((status, body["errorType"].as_str()), (400, Some("bad_data")));
        assert!(body["error"].as_str().unwrap().starts_with(error), "{body}");
    }

    let job = ["--config", "p.yml", "--job", "a"];
    let relabel = |arguments: &[&str]| run_firn(folder, &[&["relabel"], arguments].concat());
    let (code, output, errors) = relabel(&[&[kept], &job[..], &["-o", "json"]].concat());
    assert_eq!(code, Some(0), "{errors}");
    let printed: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(printed["steps"][0]["rule"], replace);
    assert_eq!(printed["steps"][0]["output"]["__scrape_interval__"], "1h");
    let (code, output, _) = relabel(&[&[r#"{__address__="bad:1"}"#], &job[..]].concat());
    assert_eq!(code, Some(0));
    let lines: Vec<&str> = output.lines().skip(1).collect();
    let rule =
        r#"rule 1: replace regex="(.*):1" source_labels=["__address__"] target_label="host""#;
    assert_eq!(lines[..2], [rule, "  + host=\"bad\""]);
    assert_eq!(
        lines[3..],
        [
            "  dropped",
            "rule 3: replace replacement=\"x\" target_label=\"later\"",
            "  not applied: dropped before",
            "after: dropped",
        ]
    );
    let metric = relabel(&[&["up{tmp=\"1\"}", "--metric"], &job[..]].concat());
    assert_eq!(metric.1.lines().last(), Some("after: up"));
    std::fs::write(folder.join("r.yml"), "[{target_label: a, replacement: b}]").unwrap();
    let rules = relabel(&["{}", "--rules", "r.yml"]);
    assert_eq!(rules.1.lines().last(), Some("after: {a=\"b\"}"));
    let unknown = relabel(&["{}", "--config", "p.yml", "--job", "b"]);
    assert_eq!(unknown.0, Some(1));
    assert_eq!(unknown.2, "Job b not found. Select one of:\n\ta\n");
}

#[test]
fn queries_are_formatted_and_tsdb_commands_name_their_substitutes() {
    let folder = tempfile::tempdir().unwrap();
    let promql = |query: &str| run_firn(folder.path(), &["promql", "format", query]);
    assert_eq!(promql("sum(a)by(b)"), (Some(0), "sum by (b) (a)\n".to_owned(), String::new()));
    let flags = ["--experimental", "--enable-feature=a", "promql", "format", "a"];
    assert_eq!(run_firn(folder.path(), &flags).1, "a\n");
    let wrong = promql("sum(");
    assert_eq!(wrong.0, Some(1));
    assert!(wrong.2.starts_with("1:5: parse error: "), "{wrong:?}");
    let tsdb = run_firn(folder.path(), &["tsdb", "list", "--human-readable", "data/"]);
    assert_eq!(tsdb.0, Some(1));
    assert!(tsdb.2.contains("firn inspect tables"), "{tsdb:?}");
}

/// A list of targets, which aliases make of a small file, is printed as it is made. Before, the
/// command kept three copies of its output in memory, here of 88 MB.
#[test]
fn many_targets_of_a_small_file_are_printed_with_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let targets: String = (0..1_000).map(|idx| format!("'h{idx}:1',")).collect();
    let value = "x".repeat(4_000);
    let mut config = format!(
        "scrape_configs:\n- job_name: a\n  static_configs:\n  - {{targets: &t [{targets}], labels: \
         {{n: '0', long: &l '{value}'}}}}\n"
    );
    for idx in 1..10 {
        let _ = writeln!(config, "  - {{targets: *t, labels: {{n: '{idx}', long: *l}}}}");
    }
    std::fs::write(folder.path().join("p.yml"), config).unwrap();
    let program = env!("CARGO_BIN_EXE_firn");
    let line = format!("ulimit -v 200000; {program} check service-discovery p.yml a | wc -c");
    let (code, output, errors) = run(Path::new("sh"), folder.path(), &["-c", &line]);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{output}");
    assert!(output.trim().parse::<u64>().unwrap() > 88_000_000, "{output}");
}

#[test]
fn matchers_of_queries_are_set_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let f = |arguments: &[&str]| {
        run_firn(folder.path(), &[&["promql", "label-matchers"], arguments].concat())
    };
    let good = |arguments: &[&str], expected: &str| {
        assert_eq!(f(arguments), (Some(0), format!("{expected}\n"), String::new()));
    };
    good(&["set", "sum(a)/b{x=\"1\"}", "x", "2"], "sum(a{x=\"2\"}) / b{x=\"2\"}");
    good(
        &["set", "-t", "=~", "rate({y=\"1\",x!=\"1\"}[5m])", "x", "a|b"],
        "rate({x=~\"a|b\",y=\"1\"}[5m])",
    );
    good(
        &["set", "--type=!=", "a[1h:5m]", "é", "\"", "--experimental"],
        "a{\"é\"!=\"\\\"\"}[1h:5m]",
    );
    good(&["set", "up", "__name__", "down"], "up{__name__=\"down\"}");
    good(&["delete", "a{x=\"1\",y=\"2\",x!=\"3\"} + b", "x"], "a{y=\"2\"} + b");
    good(&["delete", "a", "x"], "a");
    let wrong = f(&["set", "-t", "~", "a", "x", "y"]);
    assert_eq!(wrong, (Some(1), String::new(), "invalid label match type: ~\n".to_owned()));
    for arguments in [&["set", "-t", "~", "a(", "x", "y"][..], &["delete", "a(", "x"]] {
        let (code, _, error) = f(arguments);
        assert!(code == Some(1) && error.contains("parse error"), "{error}");
    }
}

const PUSHED: &str = "# HELP t Seconds.\n# TYPE t histogram\nt_bucket{le=\"1\"} 2\n\
    t_bucket{le=\"+Inf\"} 3\nt_sum 1.5\nt_count 3\n\
    # TYPE up gauge\nup{job=\"a\",zone=\"own\"} 1\nold 4 1000\n";

/// Arguments of `push metrics` with text on standard input.
fn push(folder: &Path, arguments: &[&str], input: &str) -> Outcome {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    command.args(["push", "metrics"]).args(arguments).current_dir(folder);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The command may end before it reads.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// The pushed series that an instant query returns, as `labels value`.
fn pushed(address: SocketAddr, query: &str) -> Vec<String> {
    let path = format!("/api/v1/query?query={}", encode(query));
    let answer: Value = serde_json::from_str(&get(address, &path).unwrap().body).unwrap();
    let result = answer["data"]["result"].as_array().unwrap().clone();
    let line =
        |series: &Value| format!("{} {}", series["metric"], series["value"][1].as_str().unwrap());
    let mut lines: Vec<String> = result.iter().map(line).collect();
    lines.sort();
    lines
}

#[test]
fn metrics_are_pushed_by_remote_write() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address();
    let mut server = firn(folder.path(), address);
    server.args(["--self-scrape", "never", "--retention", "forever"]);
    let _server = Process::start("firn", folder.path(), &mut server);
    wait_until_ready(address, "/-/ready");
    let url = format!("http://{address}/api/v1/write");
    let done = push(folder.path(), &[&url], PUSHED);
    let printed = "Parsing standard input\n  SUCCESS: metrics pushed to remote write.\n";
    assert_eq!(done, (Some(0), printed.to_owned(), String::new()));
    assert_eq!(
        pushed(address, "{job=\"promtool\"}"),
        [
            r#"{"__name__":"t_bucket","job":"promtool","le":"+Inf"} 3"#,
            r#"{"__name__":"t_bucket","job":"promtool","le":"1.0"} 2"#,
            r#"{"__name__":"t_count","job":"promtool"} 3"#,
            r#"{"__name__":"t_sum","job":"promtool"} 1.5"#,
            r#"{"__name__":"up","exported_job":"a","job":"promtool","zone":"own"} 1"#,
        ]
    );
    let old = ["old @ 1", "timestamp(old @ 1)"].map(|query| pushed(address, query));
    assert_eq!(old, [[r#"{"__name__":"old","job":"promtool"} 4"#], [r#"{"job":"promtool"} 1"#]]);
    let metadata = get(address, "/api/v1/metadata?metric=t").unwrap().body;
    assert!(metadata.contains(r#"{"type":"histogram","help":"Seconds.","unit":""}"#), "{metadata}");

    // Labels of the arguments replace the job, and files may fail alone.
    std::fs::write(folder.path().join("a.prom"), PUSHED).unwrap();
    std::fs::write(folder.path().join("b.prom"), "a{\n").unwrap();
    let files = [&url, "a.prom", "none.prom", "b.prom", "--label=zone=b", "--label", "dc:eu"];
    let (code, output, errors) = push(folder.path(), &files, "");
    assert_eq!(code, Some(1));
    assert_eq!(
        output,
        "Parsing metrics file a.prom\n  SUCCESS: metrics file a.prom pushed to remote write.\n\
         Parsing metrics file b.prom\n"
    );
    let lines: Vec<&str> = errors.lines().collect();
    assert!(lines[0].starts_with("  FAILED: open none.prom: "), "{errors}");
    assert!(lines[1].starts_with("  FAILED: line 1: "), "{errors}");
    assert_eq!(
        pushed(address, "up{dc=\"eu\"}"),
        [r#"{"__name__":"up","dc":"eu","exported_job":"a","zone":"own"} 1"#]
    );
}

#[test]
fn a_push_sends_headers_and_reports_the_response() {
    let folder = tempfile::tempdir().unwrap();
    let refusing = Canned::start("400 Bad Request", "out of order\nsample\n");
    std::fs::write(folder.path().join("http.yml"), "basic_auth: {username: u, password: p}")
        .unwrap();
    let url = format!("http://{}/write/?tenant=a", refusing.address);
    let client = ["--http.config.file=http.yml", "--timeout=5s", "--remote-write.path="];
    let arguments = [&[&*url, "--header", "X-Scope-OrgID=team"][..], &client].concat();
    let (code, output, errors) = push(folder.path(), &arguments, "a 1\n");
    assert_eq!((code, output.as_str()), (Some(1), "Parsing standard input\n"));
    assert!(
        errors.starts_with("  FAILED: server returned HTTP status 400 Bad Request: out of order"),
        "{errors}"
    );
    let request = refusing.last().to_lowercase();
    for line in [
        "post /write?tenant=a http/1.1",
        "content-type: application/x-protobuf",
        "content-encoding: snappy",
        "x-prometheus-remote-write-version: 0.1.0",
        "x-scope-orgid: team",
        "authorization: basic dtpw",
    ] {
        assert!(request.lines().any(|found| found == line), "{line}: {request}");
    }
    let wrong = push(folder.path(), &[&url, "--label=x"], "");
    assert!(wrong.0 != Some(0) && wrong.2.contains("expected NAME=VALUE"), "{wrong:?}");
}

/// As promtool 3.14. Before, the path of remote write had to be part of the address, and nothing
/// was repeated.
#[test]
fn a_push_chooses_path_and_message_and_is_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let push = |server: &Canned, path: &str, more: &[&str]| {
        let url = format!("http://{}{path}", server.address);
        push(folder.path(), &[&[&*url][..], more].concat(), "a 1\n")
    };
    let succeeds = |server: &Canned, path: &str, more: &[&str], want: &str| {
        assert_eq!(push(server, path, more).0, Some(0), "{path} {more:?}");
        assert_eq!(server.last_line_and_body().0, format!("POST {want} HTTP/1.1"));
    };
    let server = Canned::start("204 No Content", "");
    succeeds(&server, "", &[], "/api/v1/write");
    succeeds(&server, "/x/", &[], "/x/api/v1/write");
    succeeds(&server, "/x/api/v1/write?a=b", &[], "/x/api/v1/write?a=b");
    succeeds(&server, "/x", &["--remote-write.path=y/z"], "/x/y/z");

    let v2 = ["--protobuf_message=io.prometheus.write.v2.Request"];
    let silent = push(&server, "", &v2);
    assert_eq!(silent.0, Some(1));
    assert!(silent.2.starts_with("  FAILED: sent v2 request; got 2xx, but PRW 2.0"), "{silent:?}");
    let status = "204 No Content\r\nX-Prometheus-Remote-Write-Samples-Written: 1";
    let counting = Canned::start(status, "");
    succeeds(&counting, "", &v2, "/api/v1/write");
    let request = counting.last().to_lowercase();
    for line in [
        "content-type: application/x-protobuf;proto=io.prometheus.write.v2.request",
        "x-prometheus-remote-write-version: 2.0.0",
    ] {
        assert!(request.lines().any(|found| found == line), "{line}: {request}");
    }
    let wrong = push(&server, "", &["--protobuf_message=v2"]);
    let text = "  FAILED: invalid protobuf message \"v2\", must be prometheus.WriteRequest or \
                io.prometheus.write.v2.Request\n";
    assert_eq!(wrong, (Some(1), String::new(), text.to_owned()));

    let busy = [("503 Service Unavailable", "busy"), ("204 No Content", "")];
    succeeds(&Canned::in_turn(&busy), "", &[], "/api/v1/write");
}
