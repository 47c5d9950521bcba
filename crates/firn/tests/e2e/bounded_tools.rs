//! Tools that read a stranger's file or a server's response: each ends with one clear sentence and
//! a bounded amount of memory.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The end of a command.
#[derive(Debug)]
struct Outcome {
    code: Option<i32>,
    output: String,
    errors: String,
    /// The highest resident memory that was seen.
    peak_bytes: u64,
}

/// Runs `firn` in `folder` with at most 3 GiB of virtual memory. `input` becomes its standard
/// input.
fn run(folder: &Path, arguments: &[&str], input: impl FnOnce(&mut dyn Write) + Send) -> Outcome {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 3145728; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_firn")]);
    command.args(arguments).current_dir(folder).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let status_file = format!("/proc/{}/status", child.id());
    let (mut stdin, mut stdout, mut stderr) =
        (child.stdin.take().unwrap(), child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || input(&mut stdin));
        let peak = scope.spawn(|| {
            let mut peak_bytes = 0;
            while !has_ended.load(Ordering::Relaxed) {
                peak_bytes = peak_bytes.max(resident_bytes_max(&status_file));
                thread::park_timeout(Duration::from_millis(2));
            }
            peak_bytes
        });
        let errors = scope.spawn(move || {
            let mut errors = String::new();
            stderr.read_to_string(&mut errors).map(|_| errors)
        });
        let mut output = String::new();
        stdout.read_to_string(&mut output).unwrap();
        let errors = errors.join().unwrap().unwrap();
        let code = child.wait().unwrap().code();
        has_ended.store(true, Ordering::Relaxed);
        Outcome { code, output, errors, peak_bytes: peak.join().unwrap() }
    })
}

fn resident_bytes_max(status_file: &str) -> u64 {
    let status = fs::read_to_string(status_file).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Before, the labels of all series were kept: more than 300 MB here.
#[test]
fn the_cardinality_of_many_series_needs_the_memory_of_their_hashes() {
    const SERIES: usize = 300_000;
    let folder = tempfile::tempdir().unwrap();
    let done = run(folder.path(), &["check", "metrics", "--extended"], |input| {
        let mut text = String::from("# HELP a x\n");
        for idx in 0..SERIES {
            text += &format!("a{{instance=\"host-{idx}\",path=\"{}\"}} 1\n", "p".repeat(400));
            if text.len() > 1 << 20 {
                input.write_all(text.as_bytes()).unwrap();
                text.clear();
            }
        }
        input.write_all(text.as_bytes()).unwrap();
    });
    assert_eq!((done.code, done.errors.as_str()), (Some(0), ""), "{}", done.output);
    assert!(done.output.contains("Total     300000         100%"), "{}", done.output);
    assert!(done.peak_bytes < 96 << 20, "{} bytes", done.peak_bytes);
}

/// Writes until the reader has read enough.
fn write_on(target: &mut dyn Write, text: &[u8], times: usize) {
    let text = text.repeat((1 << 20) / text.len());
    (0..times).all(|_| target.write_all(&text).is_ok());
}

fn check_failure(name: &str, done: &Outcome, text: &str, bytes_max: u64) {
    assert_eq!(done.code, Some(1), "{name}: {done:.2000?}");
    assert!(done.errors.contains(text), "{name}: {:.2000}", done.errors);
    assert!(done.errors.lines().count() < 4, "{name}: {:.2000}", done.errors);
    assert!(done.peak_bytes < bytes_max, "{name}: {} bytes", done.peak_bytes);
}

/// The process was ended for lack of memory.
#[test]
fn inputs_without_an_end_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let endless = |input: &mut dyn Write| write_on(input, b"x", 4_096);
    let add = run(folder.path(), &["user", "add", "u", "--web-config", "u.yml"], endless);
    check_failure("user", &add, "expected a line of at most 4096 bytes", 64 << 20);
    let rules = run(folder.path(), &["check", "rules"], endless);
    check_failure("rules", &rules, "it is longer than 67108864 bytes", 256 << 20);
    let metrics = run(folder.path(), &["check", "metrics"], endless);
    check_failure("metrics", &metrics, "line 1 has more than 16777216 bytes", 128 << 20);

    let tiny = |input: &mut dyn Write| write_on(input, b"a 1\n", 60);
    let push = run(folder.path(), &["push", "metrics", "http://127.0.0.1:1/write"], tiny);
    check_failure("push", &push, "take more than 536870912 bytes of memory", 768 << 20);
    let rule = format!("{{alert: a, expr: '1', annotations: {{x: {}}}}}", "x".repeat(1 << 20));
    let aliases = "  - *r\n".repeat(100_000);
    let text = format!("groups:\n- name: g\n  rules:\n  - &r {rule}\n{aliases}");
    fs::write(folder.path().join("aliases.yml"), text).unwrap();
    let rules = run(folder.path(), &["check", "rules", "aliases.yml"], |_| ());
    let refusal = "the input takes more than 536870912 bytes of memory, a fixed limit";
    check_failure("aliases", &rules, refusal, 768 << 20);

    // It was advised to raise `--memory`, which this command does not have.
    let label = format!("a: &r {}", "x".repeat(1 << 20));
    let aliases: String = (0..1_000).map(|idx| format!("    a{idx}: *r\n")).collect();
    let text = format!("global:\n  external_labels:\n    {label}\n{aliases}");
    fs::write(folder.path().join("config.yml"), text).unwrap();
    let config = run(folder.path(), &["check", "config", "config.yml"], |_| ());
    check_failure("config", &config, refusal, 768 << 20);
}

/// A server whose response is `head` and then `text` again and again, up to `mib`.
fn long_server(head: &'static str, text: &'static [u8], mib: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4_096]);
            let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{head}");
            if stream.write_all(head.as_bytes()).is_ok() {
                write_on(&mut stream, text, mib);
            }
        }
    });
    address
}

#[test]
fn responses_without_an_end_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let labels = long_server(r#"{"status":"success","data":["#, br#""","#, 255);
    let url = format!("http://{labels}");
    let done = run(folder.path(), &["query", "labels", &url, "a"], |_| ());
    check_failure("labels", &done, "more than 16000000 values", 400 << 20);

    let plain = format!("http://{}", long_server("", b"x", 100));
    let done = run(folder.path(), &["check", "healthy", "--url", &plain], |_| ());
    assert_eq!(done.code, Some(0), "{:.2000}", done.errors);
    assert!(done.errors.len() < 1_000, "{} bytes", done.errors.len());
    let endless = format!("http://{}", long_server("", b"x", 1 << 20));
    let done = run(folder.path(), &["query", "labels", &endless, "a"], |_| ());
    check_failure("endless", &done, "body size limit exceeded", 768 << 20);
}
