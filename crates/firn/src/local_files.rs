//! Files that commands read.

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use firn_collect::config::Files;
use firn_model::Budget;
use firn_server::given_file::{read_document_once, read_stream};

/// The files of this machine: regular ones, and pipes that the shell has opened.
pub(crate) struct LocalFiles;

/// A list of 100,000 targets has some 10 MB.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Reads a file as [`LocalFiles`] does.
///
/// # Errors
/// As [`read_document_once`].
pub(crate) fn read_file(path: &Path) -> io::Result<String> {
    read_document_once(path, FILE_BYTES_MAX)
}

/// Reads all of standard input.
///
/// # Errors
/// As [`read_stream`].
pub(crate) fn read_input() -> io::Result<String> {
    read_stream(io::stdin().lock(), FILE_BYTES_MAX)
}

/// The memory of a configuration and of one file of targets: aliases of YAML make large ones of
/// small files.
const EXPANDED_BYTES_MAX: u64 = 512 << 20;

impl Files for LocalFiles {
    fn budget(&self) -> Budget {
        static BUDGET: OnceLock<Budget> = OnceLock::new();
        BUDGET.get_or_init(|| Budget::unlimited().part(EXPANDED_BYTES_MAX)).clone()
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        read_file(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        let names = std::fs::read_dir(folder)?;
        names.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn has_name(&self, path: &Path) -> bool {
        path.symlink_metadata().is_ok()
    }
}
