//! Starts other programs.

use std::process::Command;

/// Runs the command to its end; its output is that of this program.
pub(crate) fn succeed(command: &mut Command) -> Result<(), String> {
    let line = |command: &Command| {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    };
    let status = command.status().map_err(|e| format!("cannot run {}: {e}", line(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed: {status}", line(command))) }
}
