//! `cargo xtask fuzz [SECONDS] [--pack]`: runs each fuzzer for this time; `--pack` minimises and
//! keeps its corpus.
//!
//! The targets in `fuzz/` have the shape that cargo-fuzz requires (`cargo fuzz run parse` works
//! too). Here the stable compiler builds them with the same instrumentation, so that nothing need
//! be installed. No sanitizer is used: the rooms under test forbid unsafe code, and without a
//! sanitizer a fuzzer tries ten times more inputs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::command::{cargo, succeed};
use crate::corpus;

pub(crate) const TARGETS: [&str; 4] = ["parse", "evaluate", "generate", "cache_protocol"];
const SECONDS: u64 = 300;
const TARGET_DIR: &str = "target/fuzz";

const INSTRUMENTATION: &str = "--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

// A query of at most 200 bytes that takes over 10 s or 1 GiB has escaped its limits.
const LIMITS: [&str; 3] = ["-timeout=10", "-rss_limit_mb=1024", "-max_len=200"];

/// Runs all fuzzers. A failing input stops the run and stays in `target/fuzz`. `--pack` replaces
/// the corpus in `fuzz/corpus` by the minimised one; with 0 seconds it only minimises.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let mut seconds = SECONDS;
    let mut packs = false;
    for argument in arguments {
        if argument == "--pack" {
            packs = true;
        } else {
            let expected = || format!("fuzz: expected a number of seconds, got {argument:?}");
            seconds = argument.parse().map_err(|_| expected())?;
        }
    }
    let triple = host_triple()?;
    let mut build = cargo();
    build.args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml"]);
    build.args(["--target-dir", TARGET_DIR, "--target", &triple]);
    succeed(build.env("RUSTFLAGS", INSTRUMENTATION))?;
    for target in TARGETS {
        fuzz(target, &format!("{TARGET_DIR}/{triple}/release/{target}"), seconds, packs)?;
    }
    Ok(())
}

/// Compiles the fuzzers without instrumentation and without the fuzzing library, which is C++.
pub(crate) fn check() -> Result<(), String> {
    let mut check = cargo();
    check.args(["check", "--quiet", "--manifest-path", "fuzz/Cargo.toml"]);
    check.args(["--target-dir", TARGET_DIR]).env("RUSTFLAGS", "--cfg fuzzing");
    // Only its name is used: a check does not link.
    succeed(check.env("CUSTOM_LIBFUZZER_PATH", "/usr/lib/libFuzzer.a"))
}

fn fuzz(target: &str, program: &str, seconds: u64, packs: bool) -> Result<(), String> {
    let [kept, grown, merged] = ["kept", "grown", "merged"]
        .map(|kind| PathBuf::from(format!("{TARGET_DIR}/{kind}/{target}")));
    let pack = PathBuf::from(format!("fuzz/corpus/{target}.pack"));
    let before = corpus::unpack(&pack, &kept)?;
    fs::create_dir_all(&grown).map_err(|e| format!("{}: {e}", grown.display()))?;
    if seconds > 0 {
        let mut fuzzer = Command::new(program);
        fuzzer.args([&grown, &kept]).args(LIMITS).arg(format!("-max_total_time={seconds}"));
        fuzzer.arg(format!("-artifact_prefix={TARGET_DIR}/{target}-"));
        let dictionary = match target {
            "generate" => None,
            "cache_protocol" => Some("cache_protocol"),
            _ => Some("promql"),
        };
        fuzzer.args(dictionary.map(|name| format!("-dict=fuzz/{name}.dict")));
        succeed(&mut fuzzer)?;
    }
    if packs {
        // The existing corpus comes first, so that its inputs stay unless a shorter one covers the
        // same code.
        let _ = fs::remove_dir_all(&merged);
        fs::create_dir_all(&merged).map_err(|e| format!("{}: {e}", merged.display()))?;
        let mut merge = Command::new(program);
        merge.arg("-set_cover_merge=1").args([&merged, &kept, &grown]).args(LIMITS);
        succeed(&mut merge)?;
        let after = corpus::pack(&merged, &pack)?;
        println!("== {}: {after} inputs, {before} before", pack.display());
    }
    Ok(())
}

fn host_triple() -> Result<String, String> {
    let output = Command::new("rustc").arg("-vV").output().map_err(|e| format!("rustc: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc -vV names no host".to_owned())
}
