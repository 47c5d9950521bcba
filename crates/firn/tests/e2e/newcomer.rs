//! The first days with the program: outputs that are closed, mistyped settings and places, wrong
//! clocks, senders of data that is not stored.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::http::{api, get, request};
use crate::process::{
    Process, S3, firn, free_address, installed, now_ms, start_firn, start_prometheus_with,
    wait_for, wait_until_ready,
};
use crate::remote_write::{WriteRequest, field, varint};

const MINUTE: Duration = Duration::from_secs(60);

/// Waits for the end of `child`; its exit code.
fn code(mut child: Child) -> Option<i32> {
    let mut status = None;
    wait_for("the end of firn", MINUTE, || {
        status = child.try_wait().expect("our child");
        status.is_some()
    });
    status.and_then(|status| status.code())
}

fn terminate(child: &Child) {
    let pid = child.id().to_string();
    Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs");
}

/// Requests that log: administrative ones, refused samples, a mistake in a query.
fn check_requests_that_log(address: SocketAddr) {
    let mut write = WriteRequest::default();
    write.series(&[("__name__", "kept"), ("job", "j")], &[(now_ms(), 1.0)]);
    write.series(&[("no_name", "x")], &[(now_ms(), 1.0)]);
    let (status, text) = write.send(address);
    assert!(status == 400 && text.starts_with("not written: 1 series"), "{status}: {text}");
    let post = |path: &str| request(address, "POST", path, &[], &[]).expect("an answer");
    let snapshot = post("/api/v1/admin/tsdb/snapshot");
    assert!(snapshot.status == 200 && snapshot.body.contains("name"), "{}", snapshot.body);
    let deleted = post("/api/v1/admin/tsdb/delete_series?match[]=kept");
    assert_eq!((deleted.status, deleted.body.as_str()), (204, ""));
    assert_eq!(get(address, "/api/v1/query?query=((").expect("an answer").status, 400);
    assert_eq!(get(address, "/-/ready").expect("an answer").status, 200);
}

/// As `firn serve 2>&1 >/dev/null | head -1`, and as a terminal that was closed.
#[test]
fn a_closed_standard_error_breaks_no_request_and_no_stop() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut command = firn(folder.path(), address);
    command.args(["--enable-admin-api", "--self-scrape=1s"]);
    command.env("RUST_LOG", "debug").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("firn starts");
    let mut log = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut first = String::new();
    log.read_line(&mut first).expect("a line");
    drop((log, child.stdout.take()));
    assert!(!first.is_empty());
    wait_until_ready(address, "/-/ready");
    check_requests_that_log(address);
    terminate(&child);
    assert_eq!(code(child), Some(0));
}

#[test]
fn a_log_on_a_full_disk_breaks_no_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let full = || File::options().write(true).open("/dev/full").expect("a device without space");
    let mut command = firn(folder.path(), address);
    command.args(["--enable-admin-api"]).env("RUST_LOG", "debug").stdout(full()).stderr(full());
    let child = command.spawn().expect("firn starts");
    wait_until_ready(address, "/-/ready");
    check_requests_that_log(address);
    terminate(&child);
    assert_eq!(code(child), Some(0));
}

/// A log collector that hangs: its pipe is full, and no request waits for it.
#[test]
fn an_unread_log_blocks_no_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut command = firn(folder.path(), address);
    let (mut log, mut filler) = std::io::pipe().expect("a pipe");
    // The size of a pipe on Linux.
    let mut held = vec![b'x'; 64 << 10];
    filler.write_all(&held).expect("an empty pipe");
    command.args(["--enable-admin-api"]).stdout(Stdio::null()).stderr(filler);
    let child = command.spawn().expect("firn starts");
    // Its copy of the pipe would stay open.
    drop(command);
    wait_until_ready(address, "/-/ready");
    check_requests_that_log(address);
    log.read_exact(&mut held).expect("a full pipe");
    // The next line has space again.
    check_requests_that_log(address);
    terminate(&child);
    let mut rest = String::new();
    log.read_to_string(&mut rest).expect("text");
    assert!(rest.contains(" log lines were lost: they could not be written"), "{rest}");
    assert_eq!(code(child), Some(0));
}

/// `firn config print | head -1` is no failure; a full disk is one.
#[test]
fn commands_survive_a_closed_pipe_and_report_a_full_disk() {
    let run = |stdout: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
        command.args(["config", "print"]).stdout(stdout).stderr(Stdio::piped());
        command.spawn().expect("firn starts").wait_with_output().expect("its end")
    };
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = run(writer.into());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let full = File::options().write(true).open("/dev/full").expect("a device without space");
    let output = run(full.into());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("firn: cannot write to standard output: No space left"), "{text}");
}

#[test]
fn mistyped_variables_and_a_changed_shard_count_are_warned_about() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(start_firn(folder.path(), free_address()).terminate(), Some(0));
    let address = free_address();
    let mut command = firn(folder.path(), address);
    command.args(["--shards=16", "--memory=900TiB"]).env("FIRN_RETENTOIN", "15d");
    let server = Process::start("firn", folder.path(), &mut command);
    wait_until_ready(address, "/-/ready");
    let log = server.output();
    for warning in [
        "FIRN_RETENTOIN: no setting has this variable; the nearest is FIRN_RETENTION",
        "--shards: 16 has no effect: the database was created with 64 shards",
        "--memory: 921600GiB is more than this machine or its control group has",
    ] {
        assert!(log.contains(warning), "{warning} is not in {log}");
    }
    let metrics = get(address, "/metrics").expect("metrics").body;
    let limit = metrics.lines().find_map(|line| line.strip_prefix("firn_memory_limit_bytes "));
    let limit: f64 = limit.expect("a limit").parse().expect("a number");
    assert!(limit < 900e12, "{limit}");
    let mut print = Command::new(env!("CARGO_BIN_EXE_firn"));
    let output = print.args(["config", "print"]).env("FIRN_RETENTOIN", "15d").output();
    let text = String::from_utf8_lossy(&output.expect("firn runs").stdout).into_owned();
    assert!(text.contains("# warning: FIRN_RETENTOIN: no setting"), "{text}");
}

/// The soft limit of a shell is raised; a hard one is warned about.
#[test]
fn the_limit_on_open_files_is_raised_or_warned_about() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = |limit: &str| {
        let address = free_address();
        let server = firn(folder.path(), address);
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit {limit}; exec \"$0\" \"$@\"")]);
        command.arg(server.get_program()).args(server.get_args());
        let process = Process::start("firn", folder.path(), &mut command);
        wait_until_ready(address, "/-/ready");
        process
    };
    let soft = start("-S -n 10");
    assert!(!soft.output().contains(" files may be open"), "{}", soft.output());
    drop(soft);
    let hard = start("-n 200");
    let warning = "200 files may be open, and --connections-max=512 needs 896";
    assert!(hard.output().contains(warning), "{}", hard.output());
}

/// The error of a start that fails: one line.
fn refused_start(command: &mut Command) -> String {
    let output = command.output().expect("firn runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("firn: ")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    errors[0].to_owned()
}

/// Before, it started with more memory in use than the limit, and refused all for ever.
#[test]
fn a_database_with_too_many_shards_for_its_memory_does_not_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let serve = |args: &[&str]| {
        let mut command = firn(folder.path(), address);
        command.args(args);
        command
    };
    let mut command = serve(&["--memory=128MiB", "--shards=4096"]);
    let mut server = Process::start("firn", folder.path(), &mut command);
    wait_until_ready(address, "/-/ready");
    assert_eq!(server.terminate(), Some(0), "{}", server.output());
    let error = refused_start(&mut serve(&["--memory=64MiB"]));
    assert!(error.contains("has 4096 shards and keeps them: it needs --memory 96MiB"), "{error}");
}

/// Before, the runtime panicked, and some starts waited for ever.
#[test]
fn a_start_without_threads_ends_with_a_sentence() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path(), open).expect("a mode");
    // The limit concerns users other than root, and all processes of one.
    let user = (40_000 + std::process::id() % 20_000).to_string();
    let data = folder.path().join("data").display().to_string();
    for limit in ["1", "2", "3"] {
        for arguments in [
            &["serve"][..],
            &["cache", "--size", "64MiB"],
            &["cache", "--size", "64MiB", "--proxy", "http://127.0.0.1:9"],
        ] {
            let mut command = Command::new("prlimit");
            command.args([&format!("--nproc={limit}"), "setpriv", "--clear-groups"]);
            command.args(["--reuid", &user, "--regid", &user]);
            command.arg(env!("CARGO_BIN_EXE_firn")).args(arguments);
            command.args(["--data", &data, "--listen", "127.0.0.1:0"]);
            let Ok(output) = command.output() else {
                eprintln!("skipped: prlimit is not installed");
                return;
            };
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            if text.contains("setpriv: ") {
                eprintln!(
                    "skipped: this test needs root, and a program that others may run: {text}"
                );
                return;
            }
            assert_eq!(output.status.code(), Some(1), "{limit} {arguments:?}: {text}");
            let errors: Vec<&str> =
                text.lines().filter(|line| line.starts_with("firn: ")).collect();
            assert!(
                errors.len() == 1 && !text.contains("panicked"),
                "{limit} {arguments:?}: {text}"
            );
            let _ = std::fs::remove_dir_all(&data);
        }
    }
}

#[test]
fn impossible_places_are_named_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("file"), "").expect("a file");
    std::os::unix::fs::symlink("nowhere", path("link")).expect("a link");
    let start = |data: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
        refused_start(command.args(["serve", "--listen", "127.0.0.1:0", "--data", data]))
    };
    let file = start(&path("file"));
    assert!(file.ends_with(&format!("{} is a file, or in one; expected a folder", path("file"))));
    assert!(start(&path("file/below")).contains("is a file, or in one; expected a folder"));
    let link = start(&path("link"));
    assert!(link.ends_with("link is a symbolic link to a folder that does not exist"), "{link}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    let error = refused_start(command.arg("serve").env("FIRN_CONFIG", ""));
    assert!(error.starts_with("firn: FIRN_CONFIG: expected a file, got \"\""), "{error}");
    for server in ["", "host", ":9420"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
        let error = refused_start(command.args(["inspect", "groups", "--server", server]));
        assert!(error.starts_with("firn: --server: expected HOST:PORT"), "{error}");
    }
}

#[test]
fn a_mistyped_url_makes_no_local_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    for (flag, text) in [
        ("--slow-tier", "s3:/bucket"),
        ("--slow-tier", "foo:bar"),
        ("--slow-tier", "s3:bucket/x"),
        ("--slow-tier", "htp://x/y"),
        ("--data", "s3://bucket/x"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
        command.arg("serve").args([flag, text]).current_dir(folder.path());
        let error = refused_start(&mut command);
        assert!(error.contains(flag) && error.contains("expected a folder"), "{error}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

/// An object store that answers every request with the same error.
fn failing_store(status: &'static str, code: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
                let mut stream = stream;
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|len| len > 0) {
                    if line == "\r\n" {
                        let body = format!("<Error><Code>{code}</Code></Error>");
                        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}", body.len());
                        if write!(stream, "{head}\r\n\r\n{body}").is_err() {
                            return;
                        }
                    }
                    line.clear();
                }
            });
        }
    });
    address
}

fn with_store(mut command: Command, store: SocketAddr, place: &str) -> Command {
    command.args(["--slow-tier", place]);
    command.env("AWS_ENDPOINT", format!("http://{store}")).env("AWS_ALLOW_HTTP", "true");
    command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "hunter2");
    command.env("AWS_REGION", "us-east-1");
    command
}

/// With a new folder and with one that has a database, which would otherwise never upload.
#[test]
fn wrong_credentials_fail_at_the_start_with_one_sentence() {
    let store = failing_store("403 Forbidden", "InvalidAccessKeyId");
    let folder = tempfile::tempdir().expect("a folder");
    for _ in 0..2 {
        let firn = firn(folder.path(), free_address());
        let error = refused_start(&mut with_store(firn, store, "s3://bucket/x"));
        let sentence = "the slow tier cannot be used: s3://bucket/x: the store refused the \
                        credentials (InvalidAccessKeyId); check them";
        assert!(error.contains(sentence), "{error}");
        assert!(!error.contains("hunter2") && !error.contains('<'), "{error}");
        assert_eq!(start_firn(folder.path(), free_address()).terminate(), Some(0));
    }
    // A store that fails otherwise may recover.
    let busy = failing_store("503 Slow Down", "SlowDown");
    let address = free_address();
    let mut command = with_store(firn(folder.path(), address), busy, "s3://bucket/x");
    let server = Process::start("firn", folder.path(), &mut command);
    wait_until_ready(address, "/-/ready");
    assert!(server.output().contains("the slow tier is not reachable"), "{}", server.output());
}

#[test]
fn a_bucket_that_does_not_exist_fails_at_the_start_with_one_sentence() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(s3) = S3::start(folder.path()) else { return };
    for _ in 0..2 {
        let mut command = firn(folder.path(), free_address());
        command.args(["--slow-tier", "s3://no-such-bucket/x"]).envs(s3.variables());
        let error = refused_start(&mut command);
        let sentence = "the slow tier cannot be used: s3://no-such-bucket/x: the bucket does not \
                        exist; create it, or correct the URL";
        assert!(error.ends_with(sentence), "{error}");
        assert_eq!(start_firn(folder.path(), free_address()).terminate(), Some(0));
    }
}

/// A sample of last year must not be accepted only to be dropped; one that expires is logged and
/// counted when it is dropped.
#[test]
fn retention_refuses_old_samples_and_reports_dropped_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let old_ms = now_ms() - 40 * 86_400_000;
    let old = |name: &str| {
        let mut write = WriteRequest::default();
        write.series(&[("__name__", name), ("job", "j")], &[(old_ms, 1.0)]);
        write
    };
    let address = free_address();
    let mut forever = start_firn(folder.path(), address);
    assert_eq!(old("kept").send(address).0, 204);
    assert_eq!(forever.terminate(), Some(0), "{}", forever.output());

    let address = free_address();
    let mut command = firn(folder.path(), address);
    command.args(["--retention=1d", "--self-scrape=never"]);
    let server = Process::start("firn", folder.path(), &mut command);
    wait_until_ready(address, "/-/ready");
    let (status, text) = old("refused").send(address);
    assert!(status == 400 && text.contains("older than the retention"), "{status}: {text}");
    wait_for("the drop of old data", MINUTE, || {
        let metrics = get(address, "/metrics").expect("metrics").body;
        metrics.contains("firn_expired_samples_total 1\n")
            && metrics.contains("firn_expired_tables_total 1\n")
    });
    let log = server.output();
    assert!(log.contains("dropped data beyond the retention"), "{log}");
    let time = (old_ms / 1_000).to_string();
    let found = api(address, "/api/v1/query", &[("query", "{job=\"j\"}"), ("time", &time)]);
    assert_eq!(found.expect("a query")["result"].to_string(), "[]");
}

/// A native histogram of 5 observations at `ts`, as a field of a series.
fn native_histogram(ts: i64) -> Vec<u8> {
    let mut histogram = vec![0x08, 5];
    histogram.extend_from_slice(&[0x19]);
    histogram.extend_from_slice(&18.4f64.to_le_bytes());
    histogram.extend_from_slice(&[0x20, 2, 0x29]);
    histogram.extend_from_slice(&0.001f64.to_le_bytes());
    histogram.extend_from_slice(&[0x30, 2]);
    field(0x5a, &[0x08, 0, 0x10, 2], &mut histogram);
    field(0x62, &[2, 2], &mut histogram);
    histogram.push(0x78);
    varint(ts as u64, &mut histogram);
    let mut series = Vec::new();
    field(0x22, &histogram, &mut series);
    series
}

/// A Prometheus that stores native histograms sends them on: FirnDB stores the floats, and its
/// sender counts nothing as failed.
#[test]
fn prometheus_sends_native_histograms_beside_floats() {
    let Some(program) = installed("prometheus") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, theirs) = (free_address(), free_address());
    let server = start_firn(folder.path(), ours);
    let config = format!(
        "remote_write:\n- url: http://{ours}/api/v1/write\n  send_native_histograms: true\n"
    );
    let _prometheus = start_prometheus_with(
        &program,
        folder.path(),
        theirs,
        &config,
        "--enable-feature=native-histograms",
    );
    // A sender skips samples from before its start.
    let start = now_ms() + 10_000;
    for idx in 0..20 {
        let mut write = WriteRequest::default();
        let ts = start + idx * 1_000;
        write.series(&[("__name__", "floats")], &[(ts, idx as f64)]);
        write.series_with(&[("__name__", "native")], &native_histogram(ts));
        let (status, text) = write.send(theirs);
        assert_eq!(status, 204, "Prometheus takes both: {text}");
    }
    let rejected = "firn_write_rejected_samples_total{protocol=\"remote_write\",\
                    reason=\"native_histogram\"} 20\n";
    wait_for("the floats and the histograms", MINUTE, || {
        let time = (start / 1_000 + 60).to_string();
        let count = [("query", "count_over_time(floats[5m])"), ("time", time.as_str())];
        api(ours, "/api/v1/query", &count).is_ok_and(|data| data["result"][0]["value"][1] == "20")
            && get(ours, "/metrics").expect("metrics").body.contains(rejected)
    });
    let theirs = get(theirs, "/metrics").expect("metrics").body;
    for failed in [
        "prometheus_remote_storage_samples_failed_total",
        "prometheus_remote_storage_histograms_failed_total",
    ] {
        let line = theirs.lines().find(|line| line.starts_with(failed)).unwrap_or_default();
        assert!(line.ends_with(" 0"), "{failed}: {line:?}");
    }
    wait_for("the reason in the log", MINUTE, || {
        server.output().contains("native histograms are not stored")
    });
    let log = server.output();
    assert_eq!(log.matches("rejected ").count(), 1, "one line for all of them: {log}");
}

/// The report names each damaged block; the last line the folder and the next step.
#[test]
fn a_failed_check_ends_with_the_next_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address();
    let mut server = start_firn(folder.path(), address);
    let mut write = WriteRequest::default();
    write.series(&[("__name__", "kept"), ("job", "j")], &[(now_ms(), 1.0)]);
    assert_eq!(write.send(address).0, 204);
    assert_eq!(server.terminate(), Some(0), "{}", server.output());
    let data = folder.path().join("firn-data");
    damage_a_table(&data.join("fast/tables"));
    let check = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
        let output = command.arg("check").arg("--data").arg(&data).args(args).output();
        let output = output.expect("firn runs");
        let [out, err] = [output.stdout, output.stderr].map(String::from_utf8);
        (output.status.code(), out.expect("text"), err.expect("text"))
    };
    let (code, out, err) = check(&[]);
    assert_eq!(code, Some(1), "{err}");
    assert!(out.contains("damaged   ") && !out.contains("backup"), "{out}");
    let last = format!("firn: the database in {} is damaged: ", data.display());
    assert!(err.starts_with(&last) && !err.contains("at byte"), "{err}");
    assert!(err.contains("run `firn check --repair`") && !err.contains("backup"), "{err}");
    let (code, out, err) = check(&["--repair"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert_eq!(check(&[]).0, Some(0));
    let mut command = Command::new(env!("CARGO_BIN_EXE_firn"));
    command.arg("check").arg("--data").arg(&data).env("FIRN_SLOW_TEIR", "s3://b");
    let output = command.output().expect("firn runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.starts_with("firn: warning: FIRN_SLOW_TEIR: no setting has this"), "{text}");
}

/// Flips a bit in the first block of a table.
fn damage_a_table(folder: &Path) {
    let mut entries = std::fs::read_dir(folder).expect("tables");
    let table = entries.next().expect("a table").expect("a table").path();
    let mut bytes = std::fs::read(&table).expect("a table");
    bytes[40] ^= 1;
    std::fs::write(&table, bytes).expect("a table");
}
