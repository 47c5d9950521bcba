//! Limits that the system sets for this process.

/// The files that the process may have open (`ulimit -n`); `u64::MAX` without a limit.
pub fn open_files_max() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}
