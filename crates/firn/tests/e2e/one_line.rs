//! No text of a client, a file or another server adds a line to a log or controls the terminal that
//! shows it: each line of a log is one event, and each error one line.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use firn_server::one_line;
use serde_json::{Value, json};

use crate::access::{add_user, basic};
use crate::http::{Answer, connect, encode, request};
use crate::process::{Process, free_address, wait_for, wait_until_ready};
use crate::remote_write::WriteRequest;

/// A line break and an event, an escape sequence in two forms, a reversed direction, separators.
const EVIL: &str = "x\r\n2026-01-01T00:00:00.000000Z ERROR forged\u{1b}[2J\u{9b}2J\u{202e}\u{2066}\u{2028}\u{85}\u{7f}";

/// One event of the log: a time, a level, and no character that ends or changes a line.
fn check_event(line: &str) {
    const SHAPE: &str = "0000-00-00T00:00:00.000000Z ";
    let is_shaped = |(found, wanted): (char, char)| match wanted {
        '0' => found.is_ascii_digit(),
        wanted => found == wanted,
    };
    let is_timed = line.len() > SHAPE.len() && line.chars().zip(SHAPE.chars()).all(is_shaped);
    assert!(is_timed, "no event: {line:?}");
    let level = line[SHAPE.len()..].split_whitespace().next().unwrap_or_default();
    assert!(matches!(level, "ERROR" | "WARN" | "INFO" | "DEBUG" | "TRACE"), "no event: {line:?}");
    assert_eq!(one_line(line), line, "an event with control characters");
    // It may be repeated inside of an event.
    assert!(!line.contains("Z ERROR forged") || line.matches("ERROR").count() > 0);
    assert_ne!(line, "2026-01-01T00:00:00.000000Z ERROR forged", "a forged event");
}

/// Of standard error alone.
fn check_log(path: &Path, wanted: &[&str]) {
    let log = fs::read_to_string(path).expect("a log in UTF-8");
    // `lines` knows only one of the ends.
    log.split('\n').filter(|line| !line.is_empty()).for_each(check_event);
    for wanted in wanted {
        assert!(log.contains(wanted), "{wanted} is not in\n{log}");
    }
}

fn check_json_lines(path: &Path) {
    let log = fs::read_to_string(path).expect("a log in UTF-8");
    for line in log.split('\n').filter(|line| !line.is_empty()) {
        assert_eq!(one_line(line), line, "a line with control characters");
        let _: Value = serde_json::from_str(line).expect("JSON");
    }
    assert!(log.contains("forged"), "{log}");
}

/// An error is one line, in JSON or not.
fn check_error(answer: &Answer) {
    let line = answer.body.strip_suffix('\n').unwrap_or(&answer.body);
    assert_eq!(one_line(line), line, "{}", answer.head);
    assert!(!line.is_empty(), "{}", answer.head);
}

/// Runs `command` with standard error in a file of its own.
fn start(name: &str, folder: &Path, command: &Command) -> Process {
    let mut shell = Command::new("sh");
    let log = folder.join(format!("{name}.err"));
    shell.args(["-c", "exec \"$@\" 2>\"$0\""]).arg(log).arg(command.get_program());
    shell.args(command.get_args()).env("RUST_LOG", "debug");
    Process::start(name, folder, &mut shell)
}

fn raw(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(address).expect("it listens");
    stream.write_all(bytes).expect("it reads");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn every_line_of_the_servers_logs_is_one_event() {
    let folder = tempfile::tempdir().expect("a folder");
    let (folder, address) = (folder.path(), free_address());
    let web = folder.join("web.yml");
    add_user(&web, "root", &["--role", "admin"], "secret");
    let evil_data = folder.join(format!("data{}", EVIL.replace('/', "")));
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    command.args(["serve", "--listen", &address.to_string(), "--data"]).arg(&evil_data);
    command.args(["--enable-admin-api", "--enable-lifecycle", "--web-config"]).arg(&web);
    for (flag, file) in [("--audit-log", "audit.log"), ("--query-log", "query.log")] {
        command.arg(flag).arg(folder.join(file));
    }
    let mut server = start("firn", folder, &command);
    wait_until_ready(address, "/-/ready");

    let root = basic("root", "secret");
    let evil = encode(EVIL);
    let call = |method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]| {
        let headers = [&[("Authorization", root.as_str())], headers].concat();
        request(address, method, path, &headers, body).expect("an answer")
    };
    let post = |path: &str, headers: &[(&str, &str)], body: &str| {
        call("POST", path, headers, body.as_bytes())
    };

    // Names and values of labels: too far in the future, repeated, too long.
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_millis() as i64;
    let mut late = WriteRequest::default();
    late.series(&[("__name__", EVIL), (EVIL, EVIL)], &[(now_ms + 900_000_000, 1.0)]);
    let mut repeated = WriteRequest::default();
    repeated.series(&[("__name__", "up"), (EVIL, "1"), (EVIL, "2")], &[(now_ms, 1.0)]);
    let mut long = WriteRequest::default();
    long.series(&[("__name__", "up"), (&EVIL.repeat(900), "1")], &[(now_ms, 1.0)]);
    for refused in [late, repeated, long] {
        let answer = refused.post_as(address, &root).expect("an answer");
        assert_eq!(answer.status, 400, "{}", answer.body);
        check_error(&answer);
    }
    let quoted = Value::from(EVIL);
    for (path, body) in [
        ("/api/v1/import/prometheus", format!("{EVIL}\n")),
        ("/api/v1/import/prometheus", "a{\"x\\ny\"=\"1\",\"x\\ny\"=\"2\"} 1\n".to_owned()),
        ("/api/v1/groups", format!("{{\"groups\":[{{{quoted}:1}}]}}")),
        ("/api/v1/transaction", format!("{{\"operations\":[{{{quoted}:1}}]}}")),
        ("/api/v1/write", EVIL.to_owned()),
        ("/api/v1/read", EVIL.to_owned()),
    ] {
        let answer = post(path, &[], &body);
        assert!(answer.status >= 400, "{path}: {}", answer.status);
        check_error(&answer);
    }
    // Headers cannot contain line breaks; these are a tab and bytes of C1 and of a direction.
    let header = "a\tb\u{9b}2J\u{202e}";
    for name in ["Content-Encoding", "Content-Type", "Accept", "Origin", "Sec-Fetch-Site"] {
        let answer = post("/api/v1/write", &[(name, header)], "x");
        assert!(answer.status >= 400, "{name}: {}", answer.status);
        check_error(&answer);
    }
    // Paths and parameters.
    for path in [
        format!("/{evil}"),
        format!("/api/v1/{evil}"),
        format!("/api/v1/label/{evil}/values?match[]={evil}"),
        format!("/api/v1/query?query={evil}"),
        format!("/api/v1/query?query=up&time={evil}"),
        format!("/api/v1/query?{evil}=%zz"),
        format!("/api/v1/series?match[]={evil}"),
        format!("/api/v1/groups/{evil}"),
        format!("/federate?match[]={evil}"),
        format!("/api/v1/status/groups?partition={evil}"),
    ] {
        let answer = call("GET", &path, &[], &[]);
        if answer.status >= 400 {
            check_error(&answer);
        }
    }
    // Into the query log, the audit log and the server's log.
    let selector = encode(&format!("{{{quoted}={quoted}}}"));
    let answer = call("GET", &format!("/api/v1/query?query={selector}"), &[], &[]);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let path = format!("/api/v1/admin/tsdb/delete_series?match[]={selector}");
    assert_eq!(post(&path, &[], "").status, 204);
    let operation = format!("{{\"op\":\"delete\",\"match\":\"{{a=~{evil}}}\"}}");
    check_error(&post("/api/v1/transaction", &[], &format!("{{\"operations\":[{operation}]}}")));
    let stranger = basic(EVIL, EVIL);
    let answer = request(address, "GET", &format!("/{evil}"), &[("Authorization", &stranger)], &[]);
    check_error(&answer.expect("an answer"));
    let answer =
        request(address, "GET", "/api/v1/labels", &[("Authorization", &stranger)], &[]).unwrap();
    assert_eq!(answer.status, 401);
    // Heads that are no HTTP.
    for head in [
        EVIL,
        "GET /\u{202e} HTTP/1.1\r\nHost: \u{9b}\r\n\r\n",
        "GET / HTTP/1.1\r\n\u{1b}: x\r\n\r\n",
    ] {
        raw(address, head.as_bytes());
    }
    // Files with such names, which are refused.
    let escaped = format!("{EVIL:?}").replace("\\u{", "\\u00").replace('}', "");
    for (idx, text) in [
        format!("users:\n- name: {quoted}\n  roles: [read]\n"),
        format!("users:\n- name: {escaped}\n  roles: [none]\n"),
        format!("{quoted}: 1\n"),
    ]
    .iter()
    .enumerate()
    {
        fs::write(&web, text).expect("a file");
        post("/-/reload", &[], "");
        wait_for("the file to be refused", Duration::from_secs(60), || {
            let log = fs::read_to_string(folder.join("firn.err")).expect("a log");
            log.matches("cannot be used").count() > idx
        });
    }
    assert_eq!(server.terminate(), Some(0), "{}", server.output());
    let wanted = ["rejected 1 samples", "deleted series", "forged"];
    check_log(&folder.join("firn.err"), &wanted);
    check_json_lines(&folder.join("audit.log"));
    check_json_lines(&folder.join("query.log"));
}

/// Answers each connection with `bytes`.
fn origin(bytes: &'static [u8]) -> SocketAddr {
    origin_of(bytes.to_vec())
}

fn origin_of(bytes: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("a port");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4_096]);
            let _ = stream.write_all(&bytes);
        }
    });
    address
}

#[test]
fn every_line_of_the_logs_of_caches_is_one_event() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let evil = encode(EVIL);
    let garbage = origin(b"HTTP/1.1 \x1b[2J\n2026-01-01T00:00:00.000000Z ERROR forged\r\n\r\n");
    let origin = format!("http://{garbage}");
    for (name, proxy) in [("cache", "none"), ("proxy", origin.as_str())] {
        let address = free_address();
        let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
        command.args(["cache", "--listen", &address.to_string(), "--proxy", proxy]);
        command.arg("--data").arg(folder.join(format!("{name}{EVIL}").replace('/', "")));
        let mut process = start(name, folder, &command);
        wait_until_ready(address, "/-/cache/metrics");
        match name {
            "cache" => {
                for line in [
                    EVIL,
                    &format!("get {EVIL} 0 1 2 json"),
                    &format!("set {EVIL} {EVIL} 1 2 json 3"),
                ] {
                    let answer = raw(address, format!("{line}\r\nquit\r\n").as_bytes());
                    let lines = answer.split_inclusive("\r\n");
                    for line in lines.map(|line| line.trim_end_matches("\r\n")) {
                        assert_eq!(one_line(line), line);
                    }
                }
            }
            _ => {
                for path in [
                    format!("/api/v1/query?query={evil}"),
                    format!("/api/v1/query_range?query={evil}&start=1&end=2&step=1"),
                    format!("/{evil}"),
                    format!("/query?q={evil}&db={evil}"),
                ] {
                    let answer = request(address, "GET", &path, &[], &[]).expect("an answer");
                    assert!(answer.status >= 400, "{path}: {}", answer.status);
                    check_error(&answer);
                }
            }
        }
        assert_eq!(process.terminate(), Some(0), "{}", process.output());
        check_log(&folder.join(format!("{name}.err")), &[]);
    }
}

/// A report of a server about groups, with `text` as a rule and as a label.
fn groups_report(text: &str) -> Value {
    let pair = json!({ "alone": 1.0, "grouped": 1.0 });
    let mut total = json!({
        "members": 1, "labels_per_series": 1.0, "group_labels": 1, "unique_labels": 1,
        "samples": 1, "net_bytes": 1.0, "index_bytes": pair, "data_bytes": pair,
        "timestamps": pair, "slow_seconds_one_member": pair, "slow_seconds_all_members": pair,
    });
    let mut group = total.clone();
    for (key, value) in
        [("group", 1.into()), ("rule", text.into()), ("labels", json!({text: text}))]
    {
        group[key] = value;
    }
    total["groups"] = 1.into();
    total["members_per_group"] = 1.0.into();
    json!({ "groups": [group], "total": total })
}

/// Texts of a server could print a line of their own, such as an error or a success. Each answer of
/// this server begins and continues with such lines.
#[test]
fn no_command_prints_a_line_that_a_server_forged() {
    const FORGED: &str = "x\nerror: forged\n  SUCCESS\r\u{1b}[2J";
    let folder = tempfile::tempdir().expect("a folder");
    let series = json!({ "__name__": FORGED, FORGED: FORGED });
    let vector =
        json!({ "resultType": "vector", "result": [{ "metric": series, "value": [1, "2"] }] });
    let ok = |data: Value, warnings: &str| {
        json!({ "status": "success", "data": data, "warnings": [warnings] }).to_string()
    };
    let refusal = json!({ "status": "error", "errorType": FORGED, "error": FORGED }).to_string();
    let instant: &[&str] = &["query", "instant", "URL", "up"];
    let labels: &[&str] = &["query", "labels", "URL", "a"];
    let groups: &[&str] = &["inspect", "groups", "--server", "URL"];
    let cache: &[&str] = &["cache", "stats", "--server", "URL"];
    for (status, body, arguments) in [
        ("200 OK", ok(vector, FORGED), instant),
        ("400 Bad Request", refusal.clone(), instant),
        ("500 No", FORGED.to_owned(), instant),
        ("200 OK", FORGED.to_owned(), instant),
        ("200 OK", ok(json!({ "resultType": FORGED, "result": [] }), ""), instant),
        ("200 OK", ok(json!([series]), ""), &["query", "series", "URL", "--match=a"]),
        ("200 OK", ok(json!([FORGED]), FORGED), labels),
        ("200 OK", FORGED.to_owned(), &["check", "healthy", "--url", "URL"]),
        ("503 No", FORGED.to_owned(), &["check", "ready", "--url", "URL"]),
        ("400 No", FORGED.to_owned(), &["push", "metrics", "URL", "a.prom"]),
        ("400 No", FORGED.to_owned(), &["debug", "metrics", "URL"]),
        ("200 OK", ok(groups_report(FORGED), ""), groups),
        ("400 No", refusal, groups),
        ("200 OK", FORGED.to_owned(), groups),
        ("200 OK", FORGED.to_owned(), cache),
    ] {
        let response = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let address = origin_of(response.into_bytes()).to_string();
        fs::write(folder.path().join("a.prom"), "a 1\n").expect("a file");
        let mut firn = Command::new(env!("CARGO_BIN_EXE_firn"));
        let arguments = arguments.iter().map(|word| if *word == "URL" { &*address } else { *word });
        let arguments: Vec<&str> = arguments.collect();
        let output = firn.args(&arguments).current_dir(folder.path()).output().expect("it runs");
        for bytes in [output.stdout, output.stderr] {
            let text = String::from_utf8(bytes).expect("UTF-8");
            for line in text.split('\n') {
                assert_eq!(one_line(line), line, "{arguments:?}");
                let is_forged = ["error: forged", "  SUCCESS"].iter().any(|start| {
                    line.starts_with(start) && !line.starts_with("  SUCCESS:  x\\nerror")
                });
                assert!(!is_forged, "{arguments:?}: {text}");
            }
        }
    }
}

/// The output of commands that repeat names of files, settings, flags and texts of a server.
/// Before, the characters reached the terminal.
#[test]
fn commands_print_no_control_characters() {
    const NAME: &str = "x\u{1b}[2J\u{9b}2J\u{202e}\u{85}\u{7f}";
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (conf, users) = (path(&format!("{NAME}.conf")), path(&format!("{NAME}.yml")));
    // YAML, as Prometheus reads it, has these characters as escapes only.
    let escapes = [('\u{1b}', "\\e"), ('\u{9b}', "\\x9b"), ('\u{7f}', "\\x7f")];
    let escaped =
        escapes.iter().fold(NAME.to_owned(), |text, (c, escape)| text.replace(*c, escape));
    fs::write(&conf, format!("data: \"/x{escaped}\"\n")).expect("a file");
    fs::write(&users, "users: []\n").expect("a file");
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = server.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        let mut report = groups_report(NAME);
        report[NAME] = NAME.into();
        for stream in server.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.read(&mut [0; 4_096]);
            let head = "HTTP/1.0 200 OK\r\n\r\n";
            let answer = format!("{head}{{\"status\":\"success\",\"data\":{report}}}");
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let shown = |arguments: &[&str]| {
        let mut firn = Command::new(env!("CARGO_BIN_EXE_firn"));
        let output = firn.args(arguments).output().expect("the command runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        (text(output.stdout), text(output.stderr))
    };
    for arguments in [
        &["config", "print", "serve", "--config", &conf][..],
        &["config", "print", "cache", "--data", NAME],
        &["config", "check", "serve", &conf],
        &["user", "check", "--web-config", &users],
        &["user", "add", "y", "--role", "read", "--no-password", "--web-config", &users],
        &["serve", &format!("--{NAME}")],
        &["serve", "--listen", NAME],
        &[NAME],
        &["check", "--data", &path(NAME)],
        &["cache", "stats", "--server", &address],
        &["inspect", "groups", "--server", &address],
        &["inspect", "groups", "--json", "--server", &address],
    ] {
        let (output, errors) = shown(arguments);
        assert!(!output.is_empty() || !errors.is_empty(), "{arguments:?}");
        for line in output.split('\n').chain(errors.split('\n')) {
            assert_eq!(one_line(line), line, "{arguments:?}");
        }
    }
    // The escapes are those of the format.
    let (json, _) = shown(&["inspect", "groups", "--json", "--server", &address]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json[NAME], NAME);
    let (printed, _) = shown(&["config", "print", "serve", "--config", &conf]);
    let copy = path("copy.conf");
    fs::write(&copy, &printed).expect("a file");
    let (again, errors) = shown(&["config", "print", "serve", "--config", &copy]);
    let data = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("data: "));
        line.and_then(|line| line.split(" # ").next()).map(|line| line.trim_end().to_owned())
    };
    assert!(data(&printed).is_some() && data(&again) == data(&printed), "{errors}{again}");
}
