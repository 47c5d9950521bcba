//! The command itself: first run, a second process, SIGTERM, bad arguments, the README's lines.

use std::process::Command;

use crate::http::{api, get};
use crate::process::{Process, firn, free_address, start_firn, wait_until_ready};
use crate::remote_write::WriteRequest;

#[test]
fn a_first_run_shows_its_own_data_and_stops_on_sigterm() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut server = start_firn(folder.path(), address);
    // The server scrapes itself from the first second on.
    crate::process::wait_for("self-scrape", std::time::Duration::from_secs(60), || {
        api(address, "/api/v1/query", &[("query", "up{job=\"firndb-self\"}")])
            .is_ok_and(|data| data["result"][0]["value"][1] == "1")
    });
    let page = get(address, "/").expect("a page");
    assert!(page.status == 200 && page.body.contains("FirnDB"), "{}", page.body);
    for (path, location) in [("/graph", "./"), ("/graph?g0.expr=a%25b&g0.tab=1", "./#query=a%25b")]
    {
        let answer = get(address, path).expect("an answer");
        let found = answer.head.lines().find_map(|line| line.strip_prefix("location: "));
        assert_eq!((answer.status, found.map(str::trim)), (303, Some(location)), "{path}");
    }
    assert_eq!(server.terminate(), Some(0), "{}", server.output());
    let printed = server.output();
    let lines: Vec<&str> = printed.lines().filter(|line| line.contains("http://")).collect();
    assert!(!lines.is_empty() && printed.contains(&address.to_string()), "{printed}");
}

#[test]
fn acknowledged_samples_survive_sigkill() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut acknowledged = Vec::new();
    for life in 0..3 {
        let mut server = start_firn(folder.path(), address);
        for idx in 0..50 {
            let ts = 1_700_000_000_000 + (life * 50 + idx) * 1_000;
            let mut request = WriteRequest::default();
            request.series(&[("__name__", "kept"), ("job", "kill")], &[(ts, ts as f64)]);
            assert_eq!(request.send(address).0, 204);
            acknowledged.push(ts);
        }
        server.kill();
    }
    let _server = start_firn(folder.path(), address);
    let query = [("query", "kept[1h]"), ("time", "1700001000")];
    let data = api(address, "/api/v1/query", &query).expect("a query");
    let values = data["result"][0]["values"].as_array().cloned().unwrap_or_default();
    let found: Vec<i64> =
        values.iter().map(|v| (v[0].as_f64().unwrap_or(0.0) * 1000.0).round() as i64).collect();
    assert_eq!(found, acknowledged);
}

#[test]
fn a_second_process_on_the_same_folder_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let _first = start_firn(folder.path(), free_address());
    let output = firn(folder.path(), free_address()).output().expect("firn runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("firn-data") && text.contains("process"), "{text}");
}

/// As Prometheus; before, the code was that of other failures, such as a port in use.
#[test]
fn a_wrong_configuration_ends_the_start_with_code_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("prometheus.yml");
    let rules = folder.path().join("a.rules");
    std::fs::write(&rules, "groups: [{name: a, rules: [{record: r}]}]").expect("a file");
    for text in [None, Some("scrape_configs: [{}]"), Some("rule_files: ['*.rules']")] {
        if let Some(text) = text {
            std::fs::write(&config, text).expect("a file");
        }
        let mut firn = firn(folder.path(), free_address());
        let output = firn.arg("--prometheus-config").arg(&config).output().expect("firn runs");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text:?}: {errors}");
        assert!(errors.contains("--prometheus-config: "), "{text:?}: {errors}");
    }
}

#[test]
fn refused_arguments_are_named_with_the_expected_form() {
    let f = |args: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_firn")).args(args).output().expect("firn runs");
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(f(&["serve", "--listen", "nowhere"]).contains("nowhere"));
    assert!(f(&["serve", "--slow-tier", "ftp://x/y"]).contains("ftp"));
    assert!(f(&["serve", "--memory", "lots"]).contains("lots"));
    // Before, these were unexpected arguments to the parser.
    assert!(f(&["serve", "--retention", "-1d"]).contains("--retention: expected a duration"));
    assert!(f(&["serve", "--listen", "-x"]).contains("--listen: expected"));
    assert!(f(&["cache", "--settle", "-1m", "--proxy", "http://x"]).contains("--settle: expected"));
    let missing = f(&["serve", "--data", "--read-only"]);
    assert!(missing.contains("the value is missing before the next flag"), "{missing}");
    let proxy = f(&["cache", "--proxy", "nowhere"]);
    assert!(proxy.contains("--proxy: expected http://"), "{proxy}");
    assert!(f(&["cache", "--proxy", "http://x", "--size", "1KiB"]).contains("at least 8MiB"));
    let ignored = f(&["cache", "--settle", "1m"]);
    assert!(ignored.contains("--settle: has no effect without --proxy"), "{ignored}");
    assert!(f(&["nonsense"]).contains("nonsense"));
}

#[test]
fn a_configuration_file_is_checked_printed_and_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, address) = (folder.path().join("firn.yaml"), free_address());
    let data = folder.path().join("data");
    let text = format!(
        "data: {}\nlisten: {address}\nretention: 15d\nexternal-labels:\n  region: eu\n",
        data.display()
    );
    std::fs::write(&file, &text).expect("a configuration file");
    let file = file.display().to_string();
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
        let output = command.env("FIRN_LOOKBACK", "2m").args(args).output().expect("firn runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    assert_eq!(run(&["config", "check", "serve", &file]), (true, format!("{file}: ok\n")));
    let print = ["config", "print", "serve", "--config", &file, "--retention=20d"];
    let (is_printed, printed) = run(&print);
    assert!(is_printed, "{printed}");
    for (setting, source) in [
        ("retention: 20d", "# flag".to_owned()),
        ("lookback: 2m", "# FIRN_LOOKBACK".to_owned()),
        ("external-labels: region=eu", format!("# {file}:4")),
        ("query-timeout: 2m", "# default".to_owned()),
    ] {
        let line = printed.lines().find(|line| line.starts_with(setting)).unwrap_or_default();
        assert!(line.ends_with(&source), "{setting} in {printed}");
    }
    assert!(!data.exists(), "printing starts no server");

    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    command.args(["serve", "--config", &file, "--retention=20d"]);
    let _server = Process::start("firn", folder.path(), &mut command);
    wait_until_ready(address, "/-/ready");
    let body = get(address, "/api/v1/status/flags").expect("flags").body;
    let flags: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let flags = &flags["data"];
    assert_eq!(
        (flags["retention"].as_str(), flags["lookback"].as_str()),
        (Some("20d"), Some("5m"))
    );

    std::fs::write(&file, text + "retentoin: 15d\n").expect("a configuration file");
    let (is_ok, refusal) = run(&["config", "check", "serve", &file]);
    assert!(!is_ok, "{refusal}");
    let expected = "retentoin: no setting of firn serve; the nearest is retention";
    assert!(refusal.contains(&format!("{file}:6: {expected}")), "{refusal}");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let _first = start_firn(folder.path(), address);
    let other = tempfile::tempdir().expect("a folder");
    let output = firn(other.path(), address).output().expect("firn runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains(&address.to_string()), "{text}");
}

/// The shell examples of the documents, each document on a new server. Lines that start programs
/// are left out.
#[test]
fn examples_of_the_documents_work_on_a_new_database() {
    for (name, count) in [("transactions.md", 1), ("groups.md", 5), ("operations.md", 2)] {
        let path = crate::process::repository().join("docs").join(name);
        let text = std::fs::read_to_string(path).expect("a document");
        let fenced = text.split("```sh\n").skip(1).map(|rest| {
            let block = rest.split("```").next().unwrap_or_default();
            block.lines().filter(|line| !line.starts_with("firn ")).collect::<Vec<_>>().join("\n")
        });
        let blocks: Vec<String> = fenced.filter(|block| block.contains("curl ")).collect();
        assert_eq!(blocks.len(), count, "{name}");
        let folder = tempfile::tempdir().expect("a folder");
        let address = free_address();
        let mut command = firn(folder.path(), address);
        command.arg("--enable-admin-api");
        let _server = Process::start("firn", folder.path(), &mut command);
        wait_until_ready(address, "/-/ready");
        let start = "set -e; curl() { command curl -sS --fail-with-body \"$@\"; }\n".to_owned();
        let script = start + &blocks.join("\n").replace("localhost:9420", &address.to_string());
        let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && !text.contains("\"error\""), "{name}: {text}");
    }
}

/// The curl lines of the README, run as they are printed.
#[test]
fn commands_of_the_readme_work() {
    let readme =
        std::fs::read_to_string(crate::process::repository().join("README.md")).expect("README");
    let commands: Vec<&str> = readme.lines().filter(|line| line.starts_with("curl ")).collect();
    assert_eq!(commands.len(), 4, "{commands:?}");
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut command = firn(folder.path(), address);
    let _server = Process::start("firn", folder.path(), &mut command);
    wait_until_ready(address, "/-/ready");
    for command in commands {
        let here = command.replace("localhost:9420", &address.to_string());
        let output = Command::new("sh").args(["-c", &here]).output().expect("a shell");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{here}: {text}");
        assert!(!text.contains("error"), "{here}: {text}");
        if here.contains("/query") {
            assert!(text.contains("\"success\"") && text.contains("21.5"), "{here}: {text}");
        }
    }
}
