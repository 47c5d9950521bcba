//! Groups with the real command: the commands of docs/groups.md as they are printed, and `firn
//! inspect groups`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::http::{api, request};
use crate::process::{repository, start_firn};

/// The shell blocks of docs/groups.md, in order.
fn blocks() -> Vec<String> {
    let page = std::fs::read_to_string(repository().join("docs/groups.md")).expect("the page");
    let blocks = page.split("```sh\n").skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap_or_default().to_owned()).collect()
}

fn shell(script: &str, folder: &Path, at: SocketAddr) -> Output {
    let here = script.replace("localhost:9420", &at.to_string());
    let firn = env!("CARGO_BIN_EXE_firn");
    let script = format!("set -e\nfirn() {{ {firn} \"$@\"; }}\n{here}");
    Command::new("sh").args(["-c", &script]).current_dir(folder).output().expect("a shell")
}

fn output_text(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn inspect(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    command.args(["inspect", "groups"]).args(args).current_dir(folder).output().expect("firn runs")
}

#[test]
fn commands_of_the_groups_page_work() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = crate::process::free_address();
    let mut server = start_firn(folder.path(), address);
    let blocks = blocks();
    let (inspecting, writing): (Vec<&String>, Vec<&String>) =
        blocks.iter().partition(|block| block.contains("firn inspect"));
    assert_eq!((writing.len(), inspecting.len()), (4, 1), "{blocks:?}");
    let script: Vec<&str> = writing.iter().map(|block| block.as_str()).collect();
    let answers = output_text(&shell(&script.join("echo\n"), folder.path(), address));
    assert_eq!(answers.matches("\"status\":\"success\"").count(), 5, "{answers}");
    assert!(answers.contains("\"written\":3") && answers.contains("\"written\":2"), "{answers}");
    let samples = |name: &str| {
        let query = [("query", name), ("time", "1700000060")];
        let data = api(address, "/api/v1/query", &query).expect("a query");
        data["result"][0]["values"].clone()
    };
    let json = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    assert_eq!(samples("flow[5m]"), json(r#"[[1700000000,"1.5"],[1700000030,"1.75"]]"#));
    assert_eq!(samples("pressure[5m]"), json(r#"[[1700000000,"20"],[1700000015,"NaN"]]"#));

    // The commands that inspect, except for the one that needs the folder for itself.
    for line in inspecting[0].lines().filter(|line| !line.contains("--data")) {
        let report = output_text(&shell(line, folder.path(), address));
        assert!(report.contains("pump-7"), "{line}: {report}");
    }
    let busy = inspect(folder.path(), &["--data", "firn-data"]);
    let refused = String::from_utf8_lossy(&busy.stderr).into_owned();
    assert!(!busy.status.success() && refused.contains("--server"), "{refused}");

    // A running server and its folder afterwards yield the same report.
    let address_text = address.to_string();
    let select = ["--json", "--match", "{device=\"pump-7\"}"];
    let of_server =
        output_text(&inspect(folder.path(), &[&["--server", &address_text], &select[..]].concat()));
    assert_eq!(server.terminate(), Some(0), "{}", server.output());
    let of_folder =
        output_text(&inspect(folder.path(), &[&["--data", "firn-data"], &select[..]].concat()));
    let (of_server, of_folder) = (json(&of_server), json(&of_folder));
    let index = |report: &Value| report["groups"][0]["index_bytes"].clone();
    assert_eq!(index(&of_server), index(&of_folder));
    let group = &of_folder["groups"][0];
    assert_eq!((&group["members"], &group["group_labels"]), (&json("3"), &json("2")));
    assert_eq!(of_folder["total"]["groups"], 1);
    let line = inspecting[0].lines().find(|line| line.contains("--data")).expect("a line");
    assert!(output_text(&shell(line, folder.path(), address)).contains("pump-7"));
}

#[test]
fn inspection_errors_name_the_cause() {
    let folder = tempfile::tempdir().expect("a folder");
    let f = |args: &[&str], wanted: &str| {
        let output = inspect(folder.path(), args);
        let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && output_text.contains(wanted),
            "{args:?}: {output_text}"
        );
    };
    f(&["--data", "nowhere"], "there is no database in nowhere");
    assert!(!folder.path().join("nowhere").exists(), "looking makes nothing");
    f(&["--partition", "soon"], "expected a duration such as 2h, got \"soon\"");
    f(&["--match", "{"], "selector \"{\"");
    let nobody = crate::process::free_address().to_string();
    f(&["--server", &nobody], &nobody);
}

/// Agents that send no `job` and no `instance`.
#[test]
fn hosts_have_groups_that_grow_after_sigkill_and_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = crate::process::free_address();
    let hosts = 5;
    let send = |metrics: std::ops::Range<usize>| {
        let line = |host: usize, m: usize| format!("m{m}{{host=\"h{host}\",rack=\"r{host}\"}} 1\n");
        let body: String =
            (0..hosts).flat_map(|h| metrics.clone().map(move |m| line(h, m))).collect();
        let path = "/api/v1/import/prometheus";
        let answer = request(address, "POST", path, &[], body.as_bytes()).expect("an answer");
        assert_eq!(answer.status, 204, "{}", answer.body);
    };
    let check = |members: usize| {
        let args = ["--server", &address.to_string(), "--json", "--match", "{host!=\"\"}"];
        let report = output_text(&inspect(folder.path(), &args));
        let report: Value = serde_json::from_str(&report).expect("JSON");
        let groups = report["groups"].as_array().expect("groups");
        assert_eq!(groups.len(), hosts, "{report}");
        for group in groups {
            assert_eq!(
                (&group["members"], &group["rule"]),
                (&members.into(), &"all labels".into())
            );
        }
        let count = api(address, "/api/v1/query", &[("query", "count({host!=\"\"})")]);
        let count = count.expect("a query")["result"][0]["value"][1].clone();
        assert_eq!(count, (hosts * members).to_string());
    };
    let mut server = start_firn(folder.path(), address);
    send(0..30);
    check(30);
    server.kill();
    let mut server = start_firn(folder.path(), address);
    // One new series of each host is no evidence by itself.
    send(30..31);
    check(31);
    assert_eq!(server.terminate(), Some(0), "{}", server.output());
    let _server = start_firn(folder.path(), address);
    send(31..32);
    check(32);
}
