//! Starts other programs.

use std::process::Command;

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

/// Runs the command to its end; its output is that of this program.
pub(crate) fn succeed(command: &mut Command) -> Result<(), String> {
    let line = |command: &Command| {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    };
    let status = command.status().map_err(|e| format!("cannot run {}: {e}", line(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed: {status}", line(command))) }
}
