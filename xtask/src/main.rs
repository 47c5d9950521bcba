//! The commands behind `make`: `cargo xtask test | lint | tidy | deps | fuzz`.

mod deps;
mod fuzz;
mod tidy;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

fn main() -> ExitCode {
    // `cargo run` sets the variable; the program may also be started by hand.
    let folder =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").into());
    let root = Path::new(&folder).join("..");
    if let Err(e) = std::env::set_current_dir(&root) {
        eprintln!("xtask: {}: {e}", root.display());
        return ExitCode::FAILURE;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let task = arguments.first().cloned().unwrap_or_default();
    let outcome = match task.as_str() {
        "test" => test(),
        "lint" => lint(),
        "tidy" => tidy::check(&arguments[1..]),
        "deps" => deps::install(),
        "fuzz" => fuzz::run(arguments.get(1).map(String::as_str)),
        _ => Err("usage: cargo xtask test | lint | tidy [PATH...] | deps | fuzz [SECONDS]".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask {task}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Everything that continuous integration runs, quick checks first.
fn test() -> Result<(), String> {
    deps::check()?;
    lint()?;
    run("documentation", "cargo", &["doc", "--workspace", "--no-deps", "--quiet"])?;
    // The end-to-end tests start the real program.
    run("program", "cargo", &["build", "--quiet", "--package", "firn"])?;
    run("tests", "cargo", &["test", "--workspace", "--quiet", "--no-fail-fast"])?;
    weak_memory()
}

/// Runs the tests of lock-free growing memory under Miri, whose memory model is the weakest that
/// the language allows.
fn weak_memory() -> Result<(), String> {
    let miri = Command::new("cargo")
        .args(["+nightly", "miri", "--version"])
        .env("RUSTUP_AUTO_INSTALL", "0")
        .output();
    if !miri.is_ok_and(|output| output.status.success()) {
        println!(
            "skipped: the tests of weak memory, which Miri runs; \
             `rustup toolchain install nightly --component miri --component rust-src` installs it"
        );
        return Ok(());
    }
    let head = ["+nightly", "miri", "test", "--quiet", "--package", "firn-head", "--lib", "--"];
    run("weak memory", "cargo", &[&head[..], &["arena", "growing", "words"]].concat())
}

fn lint() -> Result<(), String> {
    run("format", "cargo", &["fmt", "--all", "--", "--check"])?;
    let fuzzers = ["fmt", "--manifest-path", "fuzz/Cargo.toml", "--", "--check"];
    run("format of the fuzzers", "cargo", &fuzzers)?;
    tidy::check(&[])?;
    run(
        "lints",
        "cargo",
        &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"],
    )?;
    // The check looks at the crates of all platforms; a build fetches those of this one only.
    run("crates", "cargo", &["fetch", "--locked", "--quiet"])?;
    run(
        "dependencies",
        "cargo",
        &["deny", "--offline", "--log-level", "error", "check", "bans", "licenses", "sources"],
    )
}

/// Runs one command, with its name before and its time after.
fn run(name: &str, program: &str, args: &[&str]) -> Result<(), String> {
    let start = Instant::now();
    println!("== {name}: {program} {}", args.join(" "));
    let status = Command::new(program)
        .args(args)
        .env("RUSTDOCFLAGS", "-D warnings")
        .status()
        .map_err(|e| format!("{name}: cannot run {program}: {e}"))?;
    if !status.success() {
        return Err(format!("{name} failed: {program} {}", args.join(" ")));
    }
    println!("== {name}: ok, {} s", start.elapsed().as_secs());
    Ok(())
}
