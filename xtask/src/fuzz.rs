//! `cargo xtask fuzz [SECONDS]`: runs each fuzzer for this time, then minimises its corpus.
//!
//! The targets in `fuzz/` have the shape that cargo-fuzz requires (`cargo fuzz run parse` works
//! too). Here the stable compiler builds them with the same instrumentation, so that nothing need
//! be installed. No sanitizer is used: the rooms under test forbid unsafe code, and without a
//! sanitizer a fuzzer tries ten times more inputs.

use std::fs;
use std::path::Path;
use std::process::Command;

const TARGETS: [&str; 4] = ["parse", "evaluate", "generate", "cache_protocol"];
const SECONDS: u64 = 300;
const TARGET_DIR: &str = "target/fuzz";

const INSTRUMENTATION: &str = "--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

// A query of these sizes that takes this long or this much has escaped its limits.
const LIMITS: [&str; 3] = ["-timeout=10", "-rss_limit_mb=1024", "-max_len=200"];

/// Runs all. A find stops it and leaves its input in `target/fuzz`.
pub(crate) fn run(seconds: Option<&str>) -> Result<(), String> {
    let seconds: u64 = match seconds {
        Some(text) => text.parse().map_err(|_| format!("{text:?} is no number of seconds"))?,
        None => SECONDS,
    };
    let triple = host_triple()?;
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml"]);
    build.args(["--target-dir", TARGET_DIR, "--target", &triple]);
    succeed(build.env("RUSTFLAGS", INSTRUMENTATION))?;
    for target in TARGETS {
        let program = format!("{TARGET_DIR}/{triple}/release/{target}");
        let kept = format!("fuzz/corpus/{target}");
        let [grown, merged] =
            ["grown", "merged"].map(|kind| format!("{TARGET_DIR}/{kind}/{target}"));
        fs::create_dir_all(&grown).map_err(|e| format!("{grown}: {e}"))?;
        let mut fuzzer = Command::new(&program);
        fuzzer.args([&grown, &kept]).args(LIMITS).arg(format!("-max_total_time={seconds}"));
        fuzzer.arg(format!("-artifact_prefix={TARGET_DIR}/{target}-"));
        let dictionary = match target {
            "generate" => None,
            "cache_protocol" => Some("cache_protocol"),
            _ => Some("promql"),
        };
        fuzzer.args(dictionary.map(|name| format!("-dict=fuzz/{name}.dict")));
        succeed(&mut fuzzer)?;
        // The existing corpus comes first, so that its inputs stay unless a shorter one covers the
        // same code.
        let _ = fs::remove_dir_all(&merged);
        fs::create_dir_all(&merged).map_err(|e| format!("{merged}: {e}"))?;
        succeed(
            Command::new(&program)
                .args(["-set_cover_merge=1", &merged, &kept, &grown])
                .args(LIMITS),
        )?;
        replace(&kept, &merged)?;
    }
    Ok(())
}

fn host_triple() -> Result<String, String> {
    let output = Command::new("rustc").arg("-vV").output().map_err(|e| format!("rustc: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc -vV names no host".to_owned())
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("{command:?}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed")) }
}

/// The files of `source` in place of those in `target`.
fn replace(target: &str, source: &str) -> Result<(), String> {
    let copy = || {
        fs::remove_dir_all(target)?;
        fs::create_dir_all(target)?;
        for entry in fs::read_dir(source)? {
            let entry = entry?;
            fs::copy(entry.path(), Path::new(target).join(entry.file_name()))?;
        }
        std::io::Result::Ok(())
    };
    copy().map_err(|e| format!("{target}: {e}"))
}
