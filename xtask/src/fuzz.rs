//! `cargo xtask fuzz [SECONDS] [NAME...] [--pack]`: runs the fuzzers for this time each, as many at
//! once as there are cores; `--pack` minimises and keeps their corpora.
//!
//! The targets in `fuzz/` have the shape that cargo-fuzz requires (`cargo fuzz run parse` works
//! too). Here the stable compiler builds them with the same instrumentation, so that only a C++
//! compiler is needed. No sanitizer is used: the rooms under test forbid unsafe code, and without a
//! sanitizer a fuzzer tries ten times more inputs.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::command::{cargo, nice, succeed_unless};
use crate::corpus;

/// A fuzzer of `fuzz/fuzz_targets`.
#[derive(Debug)]
pub(crate) struct Fuzzer {
    pub(crate) name: &'static str,
    /// A file of words in `fuzz/dict`.
    dictionary: Option<&'static str>,
    /// Longer inputs are not tried.
    input_bytes_max: u32,
}

const fn fuzzer(
    name: &'static str,
    dictionary: Option<&'static str>,
    input_bytes_max: u32,
) -> Fuzzer {
    Fuzzer { name, dictionary, input_bytes_max }
}

/// Every fuzzer.
pub(crate) const FUZZERS: [Fuzzer; 29] = [
    fuzzer("cache_client", Some("cache_protocol"), 4 << 10),
    fuzzer("cache_protocol", Some("cache_protocol"), 4 << 10),
    fuzzer("chunk", None, 4 << 10),
    fuzzer("compression", None, 64 << 10),
    fuzzer("config_file", Some("config"), 4 << 10),
    fuzzer("discovery_answer", Some("discovery"), 16 << 10),
    fuzzer("dns_message", None, 4 << 10),
    // A query of at most 200 bytes that takes over 10 s or 1 GiB has escaped its limits.
    fuzzer("evaluate", Some("promql"), 200),
    fuzzer("exposition", Some("exposition"), 64 << 10),
    fuzzer("generate", None, 200),
    fuzzer("groups_json", Some("groups"), 64 << 10),
    fuzzer("groups_protobuf", None, 64 << 10),
    fuzzer("headers", Some("headers"), 4 << 10),
    fuzzer("influx_answer", Some("influx"), 16 << 10),
    fuzzer("language", Some("promql"), 16 << 10),
    fuzzer("numbers", Some("numbers"), 1 << 10),
    fuzzer("parameters", Some("parameters"), 64 << 10),
    fuzzer("parse", Some("promql"), 200),
    fuzzer("prometheus_answer", Some("prometheus"), 16 << 10),
    fuzzer("proxy_query", Some("influx"), 4 << 10),
    fuzzer("remote_read", None, 16 << 10),
    fuzzer("remote_write", None, 64 << 10),
    fuzzer("rule_file", Some("rules"), 4 << 10),
    fuzzer("scrape", Some("exposition"), 16 << 10),
    fuzzer("selector", Some("promql"), 4 << 10),
    fuzzer("template", Some("template"), 1 << 10),
    fuzzer("transaction", Some("groups"), 64 << 10),
    fuzzer("web_config", Some("web_config"), 4 << 10),
    fuzzer("xor_chunk", None, 64 << 10),
];

/// Seconds of each fuzzer in `make test`.
pub(crate) const TEST_SECONDS: u64 = 20;
/// Two share a core: they try inputs near the corpus, and `make fuzz` searches further.
const TEST_FUZZERS_PER_CORE: usize = 2;
const SECONDS: u64 = 300;
/// Other work comes first: `make test` compiles and runs the tests meanwhile.
const NICENESS: u8 = 19;
/// As the tests: fuzzers that are built early run in the time that the tests leave, and not after
/// them.
const BUILD_NICENESS: u8 = 5;
const TARGET_DIR: &str = "target/fuzz";

const INSTRUMENTATION: &str = "--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Of one input, and of the whole process.
const LIMITS: [&str; 2] = ["-timeout=10", "-rss_limit_mb=1024"];

/// The arguments of `cargo xtask fuzz`.
#[derive(Debug, Default)]
struct Arguments {
    seconds: u64,
    /// All if it is empty.
    names: Vec<String>,
    packs: bool,
    /// The same inputs in each run, as far as the time allows.
    is_repeatable: bool,
    per_core: usize,
}

/// Runs fuzzers. A failing input stops its fuzzer and stays in `target/fuzz`. `--pack` replaces the
/// corpus in `fuzz/corpus` by the minimised one; with 0 seconds it only minimises.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let arguments = Arguments::parse(arguments)?;
    let stopping = AtomicBool::new(false);
    let folder = build(&stopping)?;
    fuzz_all(&folder, &arguments, &stopping)
}

/// Runs every fuzzer for a short time, in the time that other work leaves, until `stopping` is set.
/// Without a C++ compiler it only compiles them.
pub(crate) fn test(stopping: &AtomicBool) -> Result<(), String> {
    if !has_cpp_compiler() {
        println!("skipped: {TEST_SECONDS} s of each fuzzer, which need c++ (`make deps`)");
        return check(stopping);
    }
    let arguments = Arguments {
        seconds: TEST_SECONDS,
        is_repeatable: true,
        per_core: TEST_FUZZERS_PER_CORE,
        ..Arguments::default()
    };
    let start = Instant::now();
    let folder = build(stopping)?;
    println!("== compilation of the fuzzers: ok, {} s", start.elapsed().as_secs());
    fuzz_all(&folder, &arguments, stopping)
}

/// Compiles the fuzzers without instrumentation and without the fuzzing library, which is C++.
fn check(stopping: &AtomicBool) -> Result<(), String> {
    let mut check = cargo();
    check.args(["check", "--quiet", "--manifest-path", "fuzz/Cargo.toml"]);
    check.args(["--target-dir", TARGET_DIR]).env("RUSTFLAGS", "--cfg fuzzing");
    // Only its name is used: a check does not link.
    succeed_unless(stopping, check.env("CUSTOM_LIBFUZZER_PATH", "/usr/lib/libFuzzer.a"))
}

/// Builds the fuzzers and returns the folder of their programs.
fn build(stopping: &AtomicBool) -> Result<PathBuf, String> {
    let triple = host_triple()?;
    let mut build = cargo();
    build.args(["build", "--quiet", "--locked", "--release", "--manifest-path", "fuzz/Cargo.toml"]);
    build.args(["--target-dir", TARGET_DIR, "--target", &triple]);
    build.env("RUSTFLAGS", INSTRUMENTATION);
    succeed_unless(stopping, &mut nice(&build, BUILD_NICENESS))?;
    Ok(PathBuf::from(format!("{TARGET_DIR}/{triple}/release")))
}

/// All run to their end, and every failure is reported.
fn fuzz_all(
    folder: &std::path::Path,
    arguments: &Arguments,
    stopping: &AtomicBool,
) -> Result<(), String> {
    let is_chosen = |fuzzer: &&Fuzzer| {
        arguments.names.is_empty() || arguments.names.iter().any(|name| name == fuzzer.name)
    };
    let queue: VecDeque<&Fuzzer> = FUZZERS.iter().filter(is_chosen).collect();
    let (count, queue) = (queue.len(), Mutex::new(queue));
    let failures = Mutex::new(Vec::new());
    let work = || {
        let next = || queue.lock().ok()?.pop_front().filter(|_| !stopping.load(Ordering::Relaxed));
        while let Some(fuzzer) = next() {
            let start = Instant::now();
            let outcome = fuzz(fuzzer, &folder.join(fuzzer.name), arguments, stopping);
            let (name, seconds) = (fuzzer.name, start.elapsed().as_secs());
            match outcome {
                Ok(found) => println!("== fuzz {name}: ok, {found}, {seconds} s"),
                Err(why) => {
                    println!("== fuzz {name}: FAILED, {seconds} s");
                    failures.lock().expect("no thread panics").push(format!("{name}: {why}"));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..(cores * arguments.per_core).min(count) {
            scope.spawn(work);
        }
    });
    let failures = failures.into_inner().expect("no thread panics");
    match failures.as_slice() {
        [] => Ok(()),
        failures => Err(failures.join("\n")),
    }
}

/// Runs one fuzzer with its output in a file, and returns its last line of progress.
fn fuzz(
    fuzzer: &Fuzzer,
    program: &std::path::Path,
    arguments: &Arguments,
    stopping: &AtomicBool,
) -> Result<String, String> {
    let name = fuzzer.name;
    let [kept, grown, merged] = ["kept", "grown", "merged"]
        .map(|kind| PathBuf::from(format!("{TARGET_DIR}/{kind}/{name}")));
    let pack = PathBuf::from(format!("fuzz/corpus/{name}.pack"));
    let before = corpus::unpack(&pack, &kept)?;
    fs::create_dir_all(&grown).map_err(|e| format!("{}: {e}", grown.display()))?;
    let limits = [format!("-max_len={}", fuzzer.input_bytes_max)];
    let limits = limits.iter().map(String::as_str).chain(LIMITS);
    let log = PathBuf::from(format!("{TARGET_DIR}/{name}.log"));
    let mut summary = String::new();
    if arguments.seconds > 0 {
        let mut run = nice(&Command::new(program), NICENESS);
        run.args([&grown, &kept]).args(limits.clone());
        run.arg(format!("-max_total_time={}", arguments.seconds));
        run.args(arguments.is_repeatable.then_some("-seed=1"));
        run.arg(format!("-artifact_prefix={TARGET_DIR}/{name}-"));
        run.args(fuzzer.dictionary.map(|words| format!("-dict=fuzz/dict/{words}.dict")));
        run_logged(&mut run, &log, stopping)?;
        summary = last_line(&log, "DONE").unwrap_or_default();
    }
    if arguments.packs {
        // The existing corpus comes first, so that its inputs stay unless a shorter one covers the
        // same code.
        let _ = fs::remove_dir_all(&merged);
        fs::create_dir_all(&merged).map_err(|e| format!("{}: {e}", merged.display()))?;
        let mut merge = Command::new(program);
        merge.arg("-set_cover_merge=1").args([&merged, &kept, &grown]).args(limits);
        run_logged(&mut merge, &log, stopping)?;
        let after = corpus::pack(&merged, &pack)?;
        summary += &format!(" {}: {after} inputs, {before} before", pack.display());
    }
    Ok(summary)
}

/// Runs a program with its output in `log`; on a failure the end of the output is in the error.
fn run_logged(command: &mut Command, log: &PathBuf, stopping: &AtomicBool) -> Result<(), String> {
    let in_log = |e: std::io::Error| format!("{}: {e}", log.display());
    let file = File::create(log).map_err(in_log)?;
    command.stdout(file.try_clone().map_err(in_log)?).stderr(file);
    let Err(why) = succeed_unless(stopping, command) else { return Ok(()) };
    let output = fs::read(log).map_err(in_log)?;
    let output = String::from_utf8_lossy(&output);
    let lines: Vec<&str> = output.lines().collect();
    let end = lines.get(lines.len().saturating_sub(40)..).unwrap_or_default();
    Err(format!("{why}; the end of {}:\n{}", log.display(), end.join("\n")))
}

/// The last line of a log with this word, without its position.
fn last_line(log: &PathBuf, word: &str) -> Option<String> {
    let output = fs::read(log).ok()?;
    let output = String::from_utf8_lossy(&output);
    let line = output.lines().rev().find(|line| line.contains(word))?;
    Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn has_cpp_compiler() -> bool {
    let name = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
}

fn host_triple() -> Result<String, String> {
    let output = Command::new("rustc").arg("-vV").output().map_err(|e| format!("rustc: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc -vV names no host".to_owned())
}

impl Arguments {
    fn parse(arguments: &[String]) -> Result<Arguments, String> {
        let mut parsed = Arguments { seconds: SECONDS, per_core: 1, ..Arguments::default() };
        for argument in arguments {
            if argument == "--pack" {
                parsed.packs = true;
            } else if let Ok(seconds) = argument.parse() {
                parsed.seconds = seconds;
            } else if FUZZERS.iter().any(|fuzzer| fuzzer.name == argument) {
                parsed.names.push(argument.clone());
            } else {
                let names: Vec<&str> = FUZZERS.iter().map(|fuzzer| fuzzer.name).collect();
                return Err(format!(
                    "fuzz: expected a number of seconds, --pack or a fuzzer, got {argument:?}; the \
                     fuzzers are {}",
                    names.join(", ")
                ));
            }
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table, the programs of `fuzz/Cargo.toml` and the files of `fuzz/fuzz_targets` agree.
    #[test]
    fn every_fuzzer_is_listed() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
        let files = fs::read_dir(root.join("fuzz_targets")).expect("a folder");
        let mut files: Vec<String> = files
            .map(|file| file.expect("a file").file_name().to_string_lossy().replace(".rs", ""))
            .collect();
        files.sort();
        let listed: Vec<&str> = FUZZERS.iter().map(|fuzzer| fuzzer.name).collect();
        assert_eq!(files, listed);
        let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("a manifest");
        for fuzzer in &FUZZERS {
            assert!(manifest.contains(&format!("name = \"{}\"", fuzzer.name)), "{}", fuzzer.name);
            let words = fuzzer.dictionary.map(|words| root.join(format!("dict/{words}.dict")));
            assert!(words.is_none_or(|path| path.exists()), "{}", fuzzer.name);
        }
    }
}
