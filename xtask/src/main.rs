//! The commands behind `make`: `cargo xtask test | lint | tidy | serve | dist | deps | fuzz`.

mod command;
mod corpus;
mod deps;
mod fuzz;
mod packages;
mod release;
mod test_run;
mod tidy;
mod unit;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const USAGE: &str = "usage: cargo xtask COMMAND
  test                     the checks of lint, the documentation, all tests
  lint                     format, repository rules, packages, lints of the compiler
  tidy [PATH...]           repository rules, reported for these files and folders only
  serve [ARGUMENTS]        builds the server and starts it
  dist                     builds the program for packages into target/dist
  deps                     installs the programs that tests start
  fuzz [SECONDS] [NAME...] [--pack]
                           runs fuzzers; --pack minimises and keeps the corpus";

/// The seed of property tests: a commit passes or fails for its own content. `cargo test` by hand
/// chooses seeds by chance.
const FIXED_SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "1");

/// Below this, a link or a test may have failed for lack of disk space. They leave some of it when
/// they fail.
const FREE_MB_MIN: u64 = 4_096;

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
    let rest = arguments.get(1..).unwrap_or_default();
    let outcome = match task.as_str() {
        "test" => test(),
        "lint" => lint(),
        "tidy" => tidy::check(rest),
        "serve" => release::serve(rest),
        "dist" => release::dist(),
        "deps" => deps::install(),
        "fuzz" => fuzz::run(rest),
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask {task}: {why}");
            if let Some(hint) = full_disk() {
                eprintln!("{hint}");
            }
            ExitCode::FAILURE
        }
    }
}

/// A sentence for a failure on a full disk: a linker without room dies of SIGBUS, without a word.
fn full_disk() -> Option<String> {
    let output = command::output(&["df", "--output=avail", "-BM", "."])?;
    let free_mb: u64 = output.lines().last()?.trim().trim_end_matches('M').parse().ok()?;
    (free_mb < FREE_MB_MIN).then(|| {
        format!("only {free_mb} MB are free on this disk, which may be the cause: remove target/")
    })
}

/// Everything that continuous integration runs, quick checks first. The fuzzers take the time that
/// lints, builds and tests leave: at their ends one large crate or one test has a core to itself.
fn test() -> Result<(), String> {
    deps::provide()?;
    quick_checks()?;
    let stopping = AtomicBool::new(false);
    let (fuzzed, tested) = std::thread::scope(|scope| {
        let fuzzing = scope.spawn(|| fuzz::test(&stopping));
        let tested = lints().and_then(|()| test_run::run());
        stopping.store(tested.is_err(), Ordering::Relaxed);
        (fuzzing.join().expect("no panic"), tested)
    });
    tested?;
    fuzzed.map_err(|e| format!("fuzzers: {e}"))?;
    weak_memory()
}

/// Runs the tests of lock-free growing memory under Miri, whose memory model is the weakest that
/// the language allows.
fn weak_memory() -> Result<(), String> {
    let miri = command::cargo()
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
    step("weak memory", &[&head[..], &["arena", "growing", "words"]].concat())
}

fn lint() -> Result<(), String> {
    quick_checks()?;
    lints()
}

fn quick_checks() -> Result<(), String> {
    step("format", &["fmt", "--all", "--", "--check"])?;
    let fuzzers = ["fmt", "--manifest-path", "fuzz/Cargo.toml", "--", "--check"];
    step("format of the fuzzers", &fuzzers)?;
    tidy::check(&[])?;
    packages::check()?;
    unit::check()
}

fn lints() -> Result<(), String> {
    let clippy = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
    step("lints", &clippy)
}

/// Runs one cargo command, with its name before and its time after.
fn step(name: &str, arguments: &[&str]) -> Result<(), String> {
    step_with(name, arguments, &[])
}

/// As [`step`], with more variables.
fn step_with(name: &str, arguments: &[&str], variables: &[(&str, PathBuf)]) -> Result<(), String> {
    let start = Instant::now();
    println!("== {name}: cargo {}", arguments.join(" "));
    let mut command = command::cargo();
    command.args(arguments).env("RUSTDOCFLAGS", "-D warnings").env(FIXED_SEED.0, FIXED_SEED.1);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command::succeed(&mut command).map_err(|e| format!("{name}: {e}"))?;
    println!("== {name}: ok, {} s", start.elapsed().as_secs());
    Ok(())
}
