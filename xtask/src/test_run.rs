//! Compiles all tests once and runs their programs side by side.
//!
//! `cargo test` runs one program after the other. Some of them wait for servers most of the time
//! and others end with one long test, so that a core would be idle.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use serde_json::Value;

use crate::command::{cargo, nice, succeed};
use crate::{FIXED_SEED, step, step_with};

/// The programs that take longest, which start first.
const LONGEST: [&str; 4] = ["e2e", "simulation", "firn_cache", "promql"];
/// The program that measures delays of servers: all others leave it the processor.
const MEASURING: &str = "e2e";
const NICENESS: u8 = 5;
const LOGS: &str = "target/tests";

/// A compiled program of tests.
#[derive(Debug, PartialEq)]
struct TestProgram {
    package: String,
    target: String,
    file: PathBuf,
    /// The folder of its package, where it runs.
    folder: PathBuf,
}

/// Compiles and runs the tests of all packages, and compiles the documentation meanwhile. All run
/// to their end, and the error names each that failed.
pub(crate) fn run() -> Result<(), String> {
    let programs = compile()?;
    let start = Instant::now();
    let (documented, failed) = std::thread::scope(|scope| {
        let documented = scope.spawn(document);
        let failed = run_all(programs);
        (documented.join().expect("no panic"), failed)
    });
    documented?;
    if !failed.is_empty() {
        return Err(format!("failed tests: {}", failed.join(", ")));
    }
    println!("== all tests: ok, {} s", start.elapsed().as_secs());
    Ok(())
}

/// Reuses the checks of the lints: examples have dev-dependencies, so that cargo chooses the
/// features that the lints had, and the lints' compiler and its arguments are those of
/// `cargo clippy -- -D warnings`. Where they differ, cargo checks all again.
fn document() -> Result<(), String> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output();
    let output = output.map_err(|e| format!("rustc: {e}"))?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let doc = ["doc", "--workspace", "--no-deps", "--lib", "--bins", "--examples", "--quiet"];
    let lints = [
        ("RUSTC_WORKSPACE_WRAPPER", sysroot.join("bin/clippy-driver")),
        ("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__".into()),
    ];
    step_with("documentation", &doc, &lints)?;
    step("examples in the documentation", &["test", "--workspace", "--doc", "--quiet"])
}

fn compile() -> Result<Vec<TestProgram>, String> {
    let start = Instant::now();
    let mut arguments = vec!["test", "--workspace", "--lib", "--bins", "--tests"];
    // The lints have checked the examples; nothing here runs them.
    arguments.extend(["--quiet", "--no-run", "--message-format=json-render-diagnostics"]);
    println!("== compilation of the tests: cargo {}", arguments.join(" "));
    let output = cargo().args(&arguments).stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("cargo test: {e}"))?;
    if !output.status.success() {
        return Err(format!("compilation of the tests: {}", output.status));
    }
    let mut programs = programs_of(&String::from_utf8_lossy(&output.stdout))?;
    let place = |program: &TestProgram| LONGEST.iter().position(|name| *name == program.target);
    programs.sort_by_key(|program| place(program).unwrap_or(LONGEST.len()));
    let seconds = start.elapsed().as_secs();
    println!("== compilation of the tests: ok, {} programs, {seconds} s", programs.len());
    Ok(programs)
}

/// The programs of tests in cargo's messages, one JSON object in each line.
fn programs_of(messages: &str) -> Result<Vec<TestProgram>, String> {
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: Value =
            serde_json::from_str(line).map_err(|e| format!("cargo test: {e}: {line}"))?;
        let is_test = message["profile"]["test"].as_bool() == Some(true);
        let Some(file) = message["executable"].as_str().filter(|_| is_test) else { continue };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let manifest = message["manifest_path"].as_str().map(Path::new);
        let target = text(&message["target"]["name"]);
        let (Some(folder), Some(target)) = (manifest.and_then(Path::parent), target) else {
            return Err(format!("cargo test: expected a manifest and a target, got {line}"));
        };
        let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        programs.push(TestProgram { package, target, file: file.into(), folder: folder.into() });
    }
    Ok(programs)
}

/// Runs as many programs at once as there are cores, at least two. Returns the names of those that
/// failed.
fn run_all(programs: Vec<TestProgram>) -> Vec<String> {
    let queue = Mutex::new(VecDeque::from(programs));
    let failed = Mutex::new(Vec::new());
    let next = || queue.lock().expect("no thread panics").pop_front();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores.max(2) {
            scope.spawn(|| {
                while let Some(program) = next() {
                    let start = Instant::now();
                    let name = format!("{} {}", program.package, program.target);
                    let (outcome, output) = run_one(&program);
                    let mut failed = failed.lock().expect("no thread panics");
                    let seconds = start.elapsed().as_secs();
                    match outcome {
                        Ok(()) => println!("== tests of {name}: ok, {seconds} s{output}"),
                        Err(why) => {
                            println!("== tests of {name}: FAILED: {why}{output}");
                            failed.push(name);
                        }
                    }
                }
            });
        }
    });
    failed.into_inner().expect("no thread panics")
}

/// Runs one program and returns its output.
fn run_one(program: &TestProgram) -> (Result<(), String>, String) {
    let log = PathBuf::from(format!("{LOGS}/{}-{}.log", program.package, program.target));
    let outcome = run_logged(program, &log);
    let output = fs::read(&log).unwrap_or_default();
    (outcome, String::from_utf8_lossy(&output).trim_end().to_owned())
}

fn run_logged(program: &TestProgram, log: &Path) -> Result<(), String> {
    let in_log = |e: std::io::Error| format!("{}: {e}", log.display());
    fs::create_dir_all(LOGS).map_err(in_log)?;
    let file = File::create(log).map_err(in_log)?;
    let mut command = Command::new(&program.file);
    command.arg("--quiet").current_dir(&program.folder).stdin(Stdio::null());
    command.env("CARGO_MANIFEST_DIR", &program.folder).env("CARGO_PKG_NAME", &program.package);
    command.env(FIXED_SEED.0, FIXED_SEED.1);
    let niceness = if program.target == MEASURING { 0 } else { NICENESS };
    let mut command = nice(&command, niceness);
    succeed(command.stdout(file.try_clone().map_err(in_log)?).stderr(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_tests_are_found_in_the_messages_of_cargo() {
        let artifact = |name: &str, test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/a/room/Cargo.toml","target":{{"name":"{name}"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let messages = [
            artifact("room", false, "null"),
            artifact("an_example", false, r#""/a/target/an_example""#),
            artifact("e2e", true, r#""/a/target/e2e-1""#),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let found = programs_of(&messages.join("\n")).expect("messages");
        let expected = TestProgram {
            package: "room".into(),
            target: "e2e".into(),
            file: "/a/target/e2e-1".into(),
            folder: "/a/room".into(),
        };
        assert_eq!(found, [expected]);
        assert!(programs_of("error: no such package").is_err());
    }
}
