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

    fn has_name(&self, path: &Path) -> bool {
        path.symlink_metadata().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use firn_collect::config::glob;

    use super::*;

    /// Before, a pattern skipped such links, so that a server started without their rules.
    #[test]
    fn links_without_a_target_match_patterns() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a.yml"), "a").unwrap();
        symlink(path("a.yml"), path("b.yml")).unwrap();
        symlink("/nonexistent", path("c.yml")).unwrap();
        symlink("d.yml", path("d.yml")).unwrap();
        let files = LocalFiles { budget: Budget::unlimited() };
        let all = ["a.yml", "b.yml", "c.yml", "d.yml"].map(path);
        assert_eq!(glob(&files, path("*.yml").to_str().unwrap()).unwrap(), all);
        assert_eq!(glob(&files, path("d.yml").to_str().unwrap()).unwrap(), all[3..]);
        assert_eq!(all.each_ref().map(|path| files.read(path).is_ok()), [true, true, false, false]);
        assert_eq!(all.map(|path| files.exists(&path)), [true, true, false, false]);
    }
}
