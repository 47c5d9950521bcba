//! Pipes without another end, in place of files that settings name: a start, a reload and a stop
//! never wait for them.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::process::{Process, firn, free_address, wait_for, wait_until_ready};

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo runs").success());
}

/// Before, each of these starts waited for ever.
#[test]
fn a_start_refuses_every_pipe_without_another_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    make_pipe(&pipe);
    let shown = pipe.display().to_string();
    let data = folder.path().join("data").display().to_string();
    let server = ["--data", &data, "--listen", "127.0.0.1:0"];
    let cases: [(&[&str], &str, bool); 12] = [
        (&["serve"], "--audit-log", true),
        (&["serve"], "--query-log", true),
        (&["serve"], "--web-config", true),
        (&["serve"], "--config", true),
        (&["serve"], "--data", false),
        (&["cache"], "--web-config", true),
        (&["cache"], "--audit-log", true),
        (&["cache"], "--token-file", true),
        (&["cache"], "--config", true),
        (&["cache", "--proxy", "https://127.0.0.1:9"], "--origin-ca-file", true),
        (&["cache", "stats", "--server", "https://127.0.0.1:9"], "--ca-file", false),
        (&["cache", "stats"], "--credentials-file", false),
    ];
    for (command, setting, has_folder) in cases {
        let mut firn = Command::new(env!("CARGO_BIN_EXE_firn"));
        firn.args(command).args(if has_folder { &server[..] } else { &[] });
        firn.args([setting, &shown]).stdout(Stdio::null());
        firn.args(if setting == "--data" { &["--listen", "127.0.0.1:0"][..] } else { &[] });
        let mut process = Process::start("refused", folder.path(), &mut firn);
        wait_for(setting, Duration::from_secs(60), || process.has_ended());
        let output = process.output();
        let last = output.lines().last().unwrap_or_default();
        assert!(last.starts_with("firn: ") && last.contains("pipe"), "{setting}: {output}");
    }
    let inspect = ["inspect", "groups", "--server", "https://127.0.0.1:9"];
    let slow_tier = |url| [&["serve"], &server[..], &["--slow-tier", url]].concat();
    for (variable, command) in [
        ("SSL_CERT_FILE", [&["serve"], &server[..]].concat()),
        ("SSL_CERT_FILE", inspect.to_vec()),
        ("SSL_CERT_FILE", vec!["inspect", "tables", "--slow-only", "--slow-tier", "s3://b/p"]),
        ("SSL_CERT_FILE", vec!["inspect", "groups", "--slow-only", "--slow-tier", "gs://b/p"]),
        ("SSL_CERT_FILE", vec!["inspect", "tables", "--slow-only", "--slow-tier", "az://b/p"]),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", slow_tier("s3://b/p")),
        ("GOOGLE_APPLICATION_CREDENTIALS", slow_tier("gs://b/p")),
        ("AZURE_FEDERATED_TOKEN_FILE", slow_tier("az://b/p")),
    ] {
        let mut firn = Command::new(env!("CARGO_BIN_EXE_firn"));
        firn.args(command).env(variable, &pipe);
        let mut process = Process::start("variable", folder.path(), &mut firn);
        wait_for(variable, Duration::from_secs(60), || process.has_ended());
        let output = process.output();
        assert!(output.contains(variable) && output.contains("it is a pipe"), "{output}");
    }
}

/// The logs are replaced by pipes while the server runs. Before, SIGTERM after SIGHUP did not end
/// it.
#[test]
fn a_stop_does_not_wait_for_a_log_that_became_a_pipe() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut command = firn(folder.path(), address);
    let logs = ["audit.log", "query.log"].map(|name| folder.path().join(name));
    command.arg("--audit-log").arg(&logs[0]).arg("--query-log").arg(&logs[1]);
    let mut server = Process::start("firn", folder.path(), &mut command);
    wait_until_ready(address, "/-/ready");
    for log in &logs {
        fs::remove_file(log).expect("the log");
        make_pipe(log);
    }
    server.hang_up();
    wait_for("both logs to fail", Duration::from_secs(60), || {
        server.output().matches("it is a pipe that no program reads").count() == 2
    });
    let answer = crate::http::get(address, "/api/v1/query?query=1").expect("an answer");
    assert_eq!(answer.status, 200);
    assert_eq!(server.terminate(), Some(0), "{}", server.output());
}

/// Standard error as the audit log, in a pipe that is full and stays so.
#[test]
fn a_stop_does_not_wait_for_standard_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let command = firn(folder.path(), address);
    // The reader lives as long as the server and reads nothing.
    let mut shell = Command::new("sh");
    shell.args(["-c", "mkfifo \"$0\"; exec 3<>\"$0\"; exec \"$@\" --query-log stderr 2>&3"]);
    shell.arg(folder.path().join("full")).arg(command.get_program()).args(command.get_args());
    let mut server = Process::start("firn", folder.path(), &mut shell);
    wait_until_ready(address, "/-/ready");
    for _ in 0..400 {
        let answer = crate::http::get(address, "/api/v1/query?query=1").expect("an answer");
        assert_eq!(answer.status, 200);
    }
    wait_for("dropped lines", Duration::from_secs(60), || {
        let metrics = crate::http::get(address, "/metrics").expect("metrics").body;
        let dropped = metrics.lines().find_map(|line| {
            line.strip_prefix("firn_query_log_dropped_lines_total ")?.parse::<f64>().ok()
        });
        dropped.is_some_and(|count| count > 0.0)
    });
    assert_eq!(server.terminate(), Some(0), "{}", server.output());
}

/// Before, a check and an inspection waited for ever.
#[test]
fn a_pipe_in_place_of_the_lock_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut server = crate::process::start_firn(folder.path(), address);
    assert_eq!(server.terminate(), Some(0), "{}", server.output());
    let lock = folder.path().join("firn-data/fast/LOCK");
    fs::remove_file(&lock).expect("a lock");
    make_pipe(&lock);
    for words in [&["check"][..], &["check", "--repair"], &["inspect", "tables"], &["serve"]] {
        let mut firn = Command::new(env!("CARGO_BIN_EXE_firn"));
        firn.args(words).arg("--data").arg(folder.path().join("firn-data"));
        firn.args(if words == ["serve"] { &["--listen", "127.0.0.1:0"][..] } else { &[] });
        let mut process = Process::start("refused", folder.path(), &mut firn);
        wait_for("a refusal", Duration::from_secs(60), || process.has_ended());
        let output = process.output();
        let words = "fast/LOCK: it is a pipe, expected a file; move it away";
        assert!(output.contains(words), "{output}");
    }
}
