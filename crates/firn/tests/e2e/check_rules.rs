//! `firn check rules` and `firn test rules`: output and exit codes of promtool.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::process::installed;

const RULES: &str = "groups:
- name: a
  labels: {team: x}
  rules:
  - {record: r, expr: sum(up)}
  - {alert: Down, expr: up == 0, for: 1m}
";
const TWICE: &str = "groups:
- name: a
  rules:
  - {record: r, expr: up, labels: {a: b}}
  - {record: r, expr: down, labels: {a: b}}
";
const WRONG: &str = "groups:
- name: a
  rules:
  - {record: r, expr: sum(}
  - {alert: b, record: c, expr: up, for: 1m}
  - {expr: up == 1}
";
const TESTS: &str = "rule_files: ['*les.yml', missing.yml]
tests:
- name: good
  input_series: [{series: 'up{a=\"b\"}', values: '1 0x9'}]
  promql_expr_test: [{expr: r, eval_time: 1m, exp_samples: [{labels: 'r{team=\"x\"}', value: 0}]}]
  alert_rule_test: [{eval_time: 2m, alertname: Down, exp_alerts: [{exp_labels: {a: b, team: x}}]}]
- name: bad
  input_series: [{series: 'up', values: '1 0x9'}]
  promql_expr_test: [{expr: r, eval_time: 1m, exp_samples: [{labels: r, value: 1.5}]}]
  alert_rule_test: [{eval_time: 3m, alertname: Down}]
";

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in
            [("rules.yml", RULES), ("twice.yml", TWICE), ("wrong.yml", WRONG), ("tests.yml", TESTS)]
        {
            std::fs::write(folder.path().join(name), text).expect("a file");
        }
        Files(folder)
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    fn run(&self, program: &str, arguments: &[&str], input: &str) -> Outcome {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.folder());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("a process");
        process.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("input");
        Outcome::of(&process.wait_with_output().expect("output"))
    }

    fn firn(&self, arguments: &[&str], input: &str) -> Outcome {
        self.run(env!("CARGO_BIN_EXE_firn"), arguments, input)
    }
}

#[derive(Debug, PartialEq)]
struct Outcome {
    code: Option<i32>,
    output: String,
    errors: String,
}

impl Outcome {
    fn of(done: &Output) -> Outcome {
        Outcome {
            code: done.status.code(),
            output: String::from_utf8_lossy(&done.stdout).into_owned(),
            errors: String::from_utf8_lossy(&done.stderr).into_owned(),
        }
    }
}

#[test]
fn rule_files_are_checked_as_by_promtool() {
    let files = Files::new();
    let good = files.firn(&["check", "rules", "rules.yml"], "");
    assert_eq!(
        (good.code, good.output.as_str(), good.errors.as_str()),
        (Some(0), "Checking rules.yml\n  SUCCESS: 2 rules found\n\n", "")
    );
    let wrong = files.firn(&["check", "rules", "wrong.yml", "rules.yml"], "");
    assert_eq!(wrong.code, Some(1));
    let want = "Checking wrong.yml\nChecking rules.yml\n  SUCCESS: 2 rules found\n\n";
    assert_eq!(wrong.output, want);
    let input = files.firn(&["check", "rules"], RULES);
    assert_eq!(input.output, "Checking standard input\n  SUCCESS: 2 rules found\n\n");
    let input = files.firn(&["check", "rules"], "groups: [{name: a, owner: b}]");
    assert!(input.errors.contains("field owner not found in type rulefmt.RuleGroup"), "{input:?}");
    assert_eq!(input.code, Some(1));
    let ignoring = ["check", "rules", "--ignore-unknown-fields"];
    assert_eq!(files.firn(&ignoring, "groups: [{name: a, owner: b}]").code, Some(0));

    let fatal =
        |lint: &str| files.firn(&["check", "rules", "--lint-fatal", lint, "twice.yml"], "").code;
    assert_eq!(files.firn(&["check", "rules", "twice.yml"], "").code, Some(0));
    assert_eq!(fatal("--lint=duplicate-rules"), Some(3));
    assert_eq!(fatal("--lint=all"), Some(3));
    assert_eq!(fatal("--lint=none"), Some(0));
}

/// Debian's promtool is older: it knows no labels of groups, and its unit tests print more.
#[test]
fn output_is_that_of_promtool() {
    let Some(promtool) = installed("promtool") else { return };
    let promtool = promtool.to_str().expect("UTF-8");
    let files = Files::new();
    let rules = RULES.replace("  labels: {team: x}\n", "");
    std::fs::write(files.folder().join("rules.yml"), rules).expect("a file");
    for name in ["rules.yml", "twice.yml"] {
        let arguments = ["check", "rules", name];
        let (got, want) = (files.firn(&arguments, ""), files.run(promtool, &arguments, ""));
        assert_eq!(got, want);
    }
}

/// Texts that were accepted, and flags that were refused.
#[test]
fn mistakes_are_those_of_promtool() {
    let Some(promtool) = installed("promtool") else { return };
    let promtool = promtool.to_str().expect("UTF-8");
    let files = Files::new();
    let check = |arguments: &[&str], input: &str| {
        let (got, want) = (files.firn(arguments, input), files.run(promtool, arguments, input));
        let is_equal = (got.code, &got.errors) == (want.code, &want.errors);
        assert!(is_equal, "{arguments:?} {input:?}: {got:?}, {want:?}");
    };
    for text in [
        "# TYPE a gauge\n# TYPE a gauge\na 1\n",
        "a 1\n# TYPE a gauge\n",
        "# HELP a x\n# HELP a y\na 1\n",
        "a{b=\"1\",b=\"2\"} 1\n",
        "a{__name__=\"x\"} 1\n",
        "a{b=\"\\x\"} 1\n",
        "a 1",
        "# TYPE h histogram\nh_bucket{le=\"x\"} 1\n",
        "# TYPE h summary\nh{quantile=\"x\"} 1\n",
        "# HELP a\na 1\n",
    ] {
        check(&["check", "metrics"], text);
    }
    for lint in ["--lint=foo", "--lint=all,foo", "--lint=all,none", "--lint="] {
        check(&["check", "rules", lint, "--lint-fatal", "twice.yml"], "");
        check(&["check", "--enable-feature=a", "rules", lint, "twice.yml"], "");
    }
    for (series, values) in [
        ("a{b=\"1\",b=\"2\"}", "1"),
        ("1z", "1"),
        ("z{1a=\"b\"}", "1"),
        ("a", "stalex2"),
        ("a", "1x-1"),
    ] {
        let text = format!("tests: [{{input_series: [{{series: '{series}', values: {values}}}]}}]");
        std::fs::write(files.folder().join("series.yml"), text).expect("a file");
        let arguments = ["test", "rules", "series.yml"];
        let (got, want) = (files.firn(&arguments, ""), files.run(promtool, &arguments, ""));
        // Version 3 counts lines from that of the command before the series.
        let errors = got.errors.replace("\n2:", "\n1:");
        assert_eq!((got.code, &errors), (want.code, &want.errors), "{series} {values}");
    }
}

#[test]
fn unit_tests_run_as_in_promtool() {
    let files = Files::new();
    let good = files.firn(&["test", "rules", "--run=^goo", "tests.yml"], "");
    assert_eq!((good.code, good.output.as_str()), (Some(0), "  SUCCESS\n\n"), "{good:?}");
    assert_eq!(good.errors, "  WARNING: no file match pattern missing.yml\n");
    let bad = files.firn(&["test", "--junit=out.xml", "rules", "tests.yml"], "");
    assert_eq!((bad.code, bad.output.as_str()), (Some(1), "\n\n\n"), "{bad:?}");
    let want = "  FAILED:
    name: bad,
    alertname: Down, time: 3m, \n        exp:[], \n        got:[
            0:
              Labels:{alertname=\"Down\", team=\"x\"}
              Annotations:{}
            ]
    expr: \"r\", time: 1m,
        exp: {__name__=\"r\"} 1.5E+00
        got: {__name__=\"r\", team=\"x\"} 0E+00
";
    let errors = bad.errors.split_once("missing.yml\n").expect("a warning").1;
    assert_eq!(errors, want);
    let junit = std::fs::read_to_string(files.folder().join("out.xml")).expect("a file");
    assert!(
        junit.starts_with(
            "<testsuites><testsuite name=\"tests.yml\" tests=\"2\" failures=\"2\" errors=\"0\" "
        ) && junit.contains("<testcase name=\"good\"></testcase><testcase name=\"bad\"><failure>"),
        "{junit}"
    );
    let diff = files.firn(&["test", "rules", "--diff", "--debug", "tests.yml"], "");
    assert!(diff.errors.contains("+ Labels:{alertname=\"Down\", team=\"x\"}"), "{diff:?}");
    let lines: Vec<&str> = diff.errors.lines().collect();
    let start = lines.iter().position(|line| *line == "DEBUG: Starting test good").expect("a test");
    let dump = "DEBUG: Dump of all data (input_series and rules) at ";
    assert!(lines[start + 1].starts_with(dump), "{diff:?}");
    assert!(lines[start + 2].ends_with(" =>"), "{diff:?}");
    assert!(diff.errors.contains("DEBUG: Test good finished, took "), "{diff:?}");
    assert_eq!(files.firn(&["test", "rules", "none.yml"], "").code, Some(1));
    assert_eq!(files.firn(&["test", "rules", "--run=(", "tests.yml"], "").code, Some(1));
}

#[test]
fn metrics_web_configurations_and_targets_are_checked() {
    let files = Files::new();
    let metrics = files.firn(&["check", "metrics", "--extended"], "a 1\na{b=\"c\"} 2\n");
    assert_eq!((metrics.code, metrics.errors.as_str()), (Some(3), "a no help text\n"));
    assert!(metrics.output.contains("Total     2              100%"), "{metrics:?}");
    assert_eq!(files.firn(&["check", "metrics"], "# HELP a b\na 1\n").code, Some(0));
    assert_eq!(files.firn(&["check", "metrics"], "a{ 1\n").code, Some(1));
    assert_eq!(files.firn(&["check", "metrics", "--lint=none"], "").code, Some(1));

    let write = |name: &str, text: &str| {
        std::fs::write(files.folder().join(name), text).expect("a file");
    };
    write("good.yml", "http_server_config: {http2: true}\n");
    write("bad.yml", "tls_server_config: {cert_file: a}\n");
    write("cipher.yml", "tls_server_config: {cipher_suites: [RC4]}\n");
    let web = ["check", "web-config", "good.yml", "bad.yml", "missing.yml", "cipher.yml"];
    let web = files.firn(&web, "");
    assert_eq!(web.code, Some(1));
    let lines: Vec<&str> = web.errors.lines().collect();
    assert_eq!(lines[0], "good.yml SUCCESS");
    assert!(lines[1].starts_with("bad.yml FAILED: "), "{web:?}");
    assert!(lines[2].starts_with("missing.yml FAILED: "), "{web:?}");
    assert!(lines[3].ends_with("unknown cipher: RC4"), "{web:?}");
    assert_eq!(files.firn(&["check", "web-config", "good.yml"], "").code, Some(0));

    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};

        let (mut stream, _) = listener.accept().expect("a request");
        let _ = stream.read(&mut [0; 4_096]);
        let list = "[{\"targets\": [\"h:1\", \"h:4\"], \"labels\": {\"x\": \"y\"}}]";
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n";
        let answer = format!("{head}Content-Length: {}\r\n\r\n{list}", list.len());
        stream.write_all(answer.as_bytes()).expect("an answer");
    });
    write(
        "p.yml",
        &format!(
            "scrape_configs:\n- job_name: a\n  \
             static_configs: [{{targets: ['h:1', 'h:2', 'h:1']}}]\n  \
             http_sd_configs: [{{url: 'http://{address}/'}}, {{url: 'http://127.0.0.1:1/'}}]\n  \
             vultr_sd_configs: [{{authorization: {{credentials: x}}}}]\n  \
             relabel_configs: [{{source_labels: [__address__], regex: 'h:2', action: drop}}]\n"
        ),
    );
    let targets = files.firn(&["check", "service-discovery", "p.yml", "a", "--timeout=20s"], "");
    server.join().expect("no panic");
    assert_eq!(targets.code, Some(0), "{targets:?}");
    for warning in ["vultr_sd_configs is not implemented", "the discovery http failed"] {
        assert_eq!(targets.errors.matches(warning).count(), 1, "{targets:?}");
    }
    let list = serde_json::from_str::<serde_json::Value>(&targets.output).expect("JSON");
    assert_eq!(list.as_array().map(Vec::len), Some(4));
    assert_eq!(list[0]["labels"]["instance"], "h:1");
    assert_eq!(list[1]["discoveredLabels"]["__address__"], "h:2");
    assert_eq!(list[1]["labels"], serde_json::json!({}));
    assert_eq!(list[2]["discoveredLabels"]["__meta_url"], format!("http://{address}/"));
    assert_eq!(
        (&list[3]["labels"]["instance"], &list[3]["labels"]["x"]),
        (&"h:4".into(), &"y".into())
    );
    write("t.json", "[{\"Targets\": [\"h:3\"]}]");
    write(
        "f.yml",
        "scrape_configs:\n- job_name: a\n  file_sd_configs: [{files: ['t.json']}]\n  \
         relabel_configs: [{source_labels: [__meta_filepath], regex: '.*t.json', action: keep}]\n",
    );
    let of_file = files.firn(&["check", "service-discovery", "f.yml", "a"], "");
    assert!(of_file.output.contains("\"instance\": \"h:3\""), "{of_file:?}");
    let unknown = files.firn(&["check", "service-discovery", "p.yml", "b"], "");
    assert_eq!(unknown.code, Some(1));
    assert_eq!(unknown.errors, "Job b not found. Select one of:\n\ta\n");
}
