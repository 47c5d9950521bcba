//! The files of this machine that a configuration names.

use std::io;
use std::path::Path;

use firn_collect::config::Files;
use firn_env::given_file::read_document;
use firn_model::Budget;

/// Reads regular files of bounded length. Never waits for a pipe.
#[derive(Clone, Debug)]
pub(crate) struct LocalFiles {
    /// The memory of texts and their values while they are read.
    pub(crate) budget: Budget,
}

// A list of 100,000 targets has some 10 MB.
const FILE_BYTES_MAX: u64 = 64 << 20;

impl Files for LocalFiles {
    fn read(&self, path: &Path) -> io::Result<String> {
        read_document(path, FILE_BYTES_MAX)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        let names = std::fs::read_dir(folder)?;
        names.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn budget(&self) -> Budget {
        self.budget.clone()
    }

    /// At most those that are read.
    fn bytes(&self, path: &Path) -> u64 {
        std::fs::metadata(path).map_or(0, |metadata| metadata.len().min(FILE_BYTES_MAX))
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }
}
