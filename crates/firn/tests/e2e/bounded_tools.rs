//! Tools that read a stranger's file or a server's response: each ends with one clear sentence and
//! a bounded amount of memory.

use std::fs;
use std::io::{Read, Write};
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

/// Runs `firn` in `folder` with at most 3 GiB of virtual memory. `input` becomes its standard input.
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
