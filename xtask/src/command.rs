//! Starts other programs.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// `cargo`, without the variables that describe this package to this program.
///
/// Cargo sets them for every program that it runs, and some build scripts compare them with those
/// of their last run: `make test` after a plain `cargo test`, and the reverse, would compile TLS
/// and its dependents again.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new("cargo");
    for (name, _) in std::env::vars_os() {
        let of_this_package = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        });
        if of_this_package {
            command.env_remove(name);
        }
    }
    command
}

/// The same command at a lower priority; 0 is that of this program, 19 the lowest.
pub(crate) fn nice(command: &Command, niceness: u8) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", &niceness.to_string()]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    nice
}

/// The output of a command; `None` if it fails.
pub(crate) fn output(words: &[&str]) -> Option<String> {
    let (program, arguments) = words.split_first()?;
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs the command to its end; its output is that of this program.
pub(crate) fn succeed(command: &mut Command) -> Result<(), String> {
    succeed_unless(&AtomicBool::new(false), command)
}

/// As [`succeed`], but kills the command once `stopping` is set.
pub(crate) fn succeed_unless(stopping: &AtomicBool, command: &mut Command) -> Result<(), String> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let failed = |e: std::io::Error| format!("cannot run {line}: {e}");
    let mut child = command.spawn().map_err(failed)?;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if stopping.load(Ordering::Relaxed) {
            // It may have ended meanwhile.
            let _ = child.kill();
            child.wait().map_err(failed)?;
            return Err(format!("{line}: stopped"));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    if status.success() { Ok(()) } else { Err(format!("{line} failed: {status}")) }
}
