//! A canary in every place for a secret: no output of any command, no response and no log has it.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::http;
use crate::process::{Process, free_address, wait_until_ready};

/// In every secret below.
const CANARY: &str = "c4n4ry";

fn firn(args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    command.args(args).env("RUST_LOG", "trace").envs(variables.iter().copied());
    command
}

/// The output of a command that ends by itself.
fn output(args: &[&str], variables: &[(&str, &str)]) -> String {
    let output = firn(args, variables).output().expect("firn runs");
    format!(
        "{:?}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn assert_hidden(text: &str, place: &str) {
    if let Some(at) = text.find(CANARY) {
        let line = text[..at].lines().next_back().unwrap_or_default();
        panic!("{place}: a secret is shown after {line:?}");
    }
}

/// Every path that a GET may read.
fn get_all(address: SocketAddr, paths: &[&str], headers: &[(&str, &str)]) {
    for path in paths {
        let answer = http::request(address, "GET", path, headers, b"").expect("an answer");
        assert_hidden(&format!("{}\n{}", answer.head, answer.body), path);
    }
}

#[test]
fn refused_arguments_repeat_no_secret() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data").display().to_string();
    let data = data.as_str();
    let file = folder.path().join("firn.yaml");
    let file = file.display().to_string();
    let url = format!("s3://key:{CANARY}@bucket/prefix");
    for text in [
        url.clone(),
        format!("s3://key:a/{CANARY}+b@bucket"),
        format!("s3://key:{CANARY}/bucket"),
        format!("s3://bucket?secret={CANARY}"),
        format!("https://{CANARY}@bucket"),
        format!("key:{CANARY}@bucket"),
    ] {
        for setting in ["slow-tier", "data", "listen", "memory", "cors-origin", "log-device"] {
            let flag = format!("--{setting}={text}");
            // Some of them are valid patterns, names or folders: a read-only print shows them.
            let listed = ["cors-origin", "data", "slow-tier"].contains(&setting);
            let is_plain = listed && !text.contains("://");
            if is_plain || setting == "cors-origin" {
                continue;
            }
            assert_hidden(&output(&["serve", "--data", data, &flag], &[]), &flag);
            let variable = format!("FIRN_{}", setting.replace('-', "_").to_uppercase());
            assert_hidden(&output(&["config", "print", "serve"], &[(&variable, &text)]), &variable);
            fs::write(&file, format!("{setting}: {text:?}\n")).expect("a file");
            assert_hidden(&output(&["config", "check", "serve", &file], &[]), setting);
        }
        // With two slashes and a colon some are valid origins, and the proxy would serve.
        let proxy = format!("--proxy={}", text.replace("://", "//").replace("s3//", "http//"));
        assert_hidden(&output(&["cache", "--data", data, &proxy], &[]), &proxy);
    }
    for args in [
        vec!["inspect", "tables", "--data", data, "--slow-tier", &url],
        vec!["check", "--data", data, "--slow-tier", &url],
        vec!["inspect", "groups", "--server", &format!("http://u:{CANARY}@127.0.0.1:1")],
        vec!["cache", "stats", "--server", &format!("http://u:{CANARY}@127.0.0.1:1")],
        vec!["cache", "stats", "--server", "127.0.0.1:1", "--token", CANARY],
        vec!["serve", &url],
        vec!["cache", "--proxi", &format!("http://u:{CANARY}@host")],
    ] {
        assert_hidden(&output(&args, &[]), &format!("{args:?}").replace(CANARY, "..."));
    }
}

#[test]
fn a_server_shows_no_credentials_of_its_slow_tier() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let store = free_address();
    let endpoint = format!("http://{store}");
    let secret = format!("{CANARY}/+secret");
    let variables = [
        ("AWS_ENDPOINT", endpoint.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", secret.as_str()),
        ("AWS_SESSION_TOKEN", CANARY),
        ("AWS_REGION", "us-east-1"),
    ];
    let data = folder.path().join("data").display().to_string();
    let listen = address.to_string();
    // The store is down: every attempt is an error with its causes.
    let args = ["serve", "--data", &data, "--listen", &listen, "--slow-tier", "s3://bucket/prefix"];
    let mut process = Process::start("serve", folder.path(), &mut firn(&args, &variables));
    wait_until_ready(address, "/-/healthy");
    let basic = format!("Basic {CANARY}");
    let headers = [("Authorization", basic.as_str()), ("Cookie", CANARY)];
    let paths = [
        "/",
        "/metrics",
        "/-/ready",
        "/version",
        "/api/v1/status/flags",
        "/api/v1/status/config",
        "/api/v1/status/runtimeinfo",
        "/api/v1/status/buildinfo",
        "/api/v1/status/tsdb",
        "/api/v1/targets",
        "/api/v1/query?query=up",
        "/api/v1/nothing",
    ];
    get_all(address, &paths, &headers);
    process.kill();
    assert_hidden(&process.output(), "the log of firn serve");
}

#[test]
fn a_proxy_shows_no_credentials_of_its_origin_and_clients() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, origin) = (free_address(), free_address());
    let url = format!("http://user:{CANARY}@{origin}");
    let data = folder.path().join("cache").display().to_string();
    let listen = address.to_string();
    let args = ["cache", "--data", &data, "--listen", &listen, "--size=64MiB", "--proxy", &url];
    let mut process = Process::start("proxy", folder.path(), &mut firn(&args, &[]));
    wait_until_ready(address, "/-/cache/metrics");
    let bearer = format!("Bearer {CANARY}");
    let headers = [("Authorization", bearer.as_str()), ("Cookie", CANARY)];
    let paths = [
        "/-/cache/metrics".to_owned(),
        format!("/query?u=admin&p={CANARY}&q=SHOW+DATABASES"),
        format!("/query?u=admin&p={CANARY}&q=DROP+DATABASE+d"),
        format!("/api/v1/query?query=up&token={CANARY}"),
        format!("/api/v1/query_range?query=up&start=1&end=2&step=1&token={CANARY}"),
        format!("/no/such/path?p={CANARY}"),
    ];
    get_all(address, &paths.each_ref().map(String::as_str), &headers);
    let form_type = [("Content-Type", "application/x-www-form-urlencoded")];
    let form = format!("u=admin&p={CANARY}&q=SHOW+DATABASES");
    let answer = http::request(address, "POST", "/query", &form_type, form.as_bytes());
    let answer = answer.expect("an answer");
    assert_eq!(answer.status, 502, "{}", answer.body);
    assert_hidden(&answer.body, "POST /query");
    process.kill();
    let log = process.output();
    assert_hidden(&log, "the output of firn cache --proxy");
    assert!(log.contains("FIRN_CACHE_PROXY"), "the list of processes shows it: {log}");
    let variables = [("FIRN_CACHE_PROXY", url.as_str())];
    assert_hidden(&output(&["config", "print", "cache"], &variables), "config print");
    assert_files_hide(Path::new(&data));
}

#[test]
fn a_cache_shows_no_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    fs::write(&token, format!("{CANARY}\n")).expect("a file");
    let address = free_address();
    let data = folder.path().join("cache").display().to_string();
    let (listen, token) = (address.to_string(), token.display().to_string());
    let args = ["cache", "--data", &data, "--listen", &listen, "--token-file", &token];
    let mut process = Process::start("cache", folder.path(), &mut firn(&args, &[]));
    let bearer = format!("Bearer {CANARY}");
    crate::process::wait_for("the cache", std::time::Duration::from_secs(60), || {
        let headers = [("Authorization", bearer.as_str())];
        http::request(address, "GET", "/-/cache/metrics", &headers, b"")
            .is_some_and(|answer| answer.status == 200)
    });
    get_all(address, &["/-/cache/metrics", "/"], &[("Authorization", &bearer)]);
    let stats = output(&["cache", "stats", "--server", &listen], &[("FIRN_CACHE_TOKEN", CANARY)]);
    assert!(stats.contains("hits"), "{stats}");
    assert_hidden(&stats, "firn cache stats");
    // Other users of the machine read the arguments of programs.
    assert!(!stats.contains("warning"), "{stats}");
    let by_file =
        output(&["cache", "stats", "--server", &listen, "--credentials-file", &token], &[]);
    assert!(by_file.contains("hits") && !by_file.contains("warning"), "{by_file}");
    let by_flag = output(&["cache", "stats", "--server", &listen, "--token", CANARY], &[]);
    let warnings: Vec<&str> = by_flag.lines().filter(|line| line.contains("warning")).collect();
    assert!(warnings.len() == 1 && warnings[0].contains("--credentials-file"), "{by_flag}");
    assert_hidden(&by_flag, "the warning");
    assert_hidden(
        &output(&["cache", "stats", "--help"], &[("FIRN_CACHE_TOKEN", CANARY)]),
        "--help",
    );
    process.kill();
    assert_hidden(&process.output(), "the output of firn cache");
}

/// Only their owner can read the cache's files, and they contain digests instead of passwords.
fn assert_files_hide(folder: &Path) {
    use std::os::unix::fs::MetadataExt;
    let mut modes = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        modes.insert(
            folder.clone(),
            (fs::metadata(&folder).expect("a folder").mode() & 0o777, 0o700),
        );
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let mode = fs::metadata(&path).expect("a file").mode() & 0o777;
            let bytes = fs::read(&path).expect("a file");
            assert_hidden(&String::from_utf8_lossy(&bytes), &path.display().to_string());
            modes.insert(path, (mode, 0o600));
        }
    }
    assert!(modes.len() > 2, "{modes:?}");
    for (path, (mode, wanted)) in modes {
        assert_eq!(mode, wanted, "{}: {mode:o}", path.display());
    }
}
