//! Temporary folders of tools. The next tool removes those of killed ones.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::process::geteuid;
use tempfile::TempDir;

const PREFIX: &str = "firn-inspect-";
/// A tool locks its folder within this time.
const AGE_MIN: Duration = Duration::from_secs(60);

/// A new folder, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct ScratchFolder {
    folder: TempDir,
    /// Held as long as the process lives. The last field: the folder is removed before.
    _lock: File,
}

impl ScratchFolder {
    /// Makes a folder in the one for temporary files, and removes those of tools that were killed.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn new() -> io::Result<ScratchFolder> {
        ScratchFolder::new_in(&std::env::temp_dir(), AGE_MIN)
    }

    fn new_in(parent: &Path, age_min: Duration) -> io::Result<ScratchFolder> {
        remove_abandoned(parent, age_min);
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        let lock = File::open(folder.path())?;
        // A file system without locks of folders keeps those of killed tools.
        let _ = lock.try_lock();
        Ok(ScratchFolder { folder, _lock: lock })
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

fn remove_abandoned(parent: &Path, age_min: Duration) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let is_own = || {
            let found = fs::symlink_metadata(&path).ok()?;
            let age = found.modified().ok()?.elapsed().ok()?;
            let is_user = found.is_dir() && found.uid() == geteuid().as_raw();
            Some(is_user && age >= age_min)
        };
        if !name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) || is_own() != Some(true) {
            continue;
        }
        if let Ok(lock) = File::open(&path)
            && lock.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Before, each killed `firn inspect --slow-only` left a copy of the index for ever.
    #[test]
    fn folders_of_killed_tools_are_removed_by_the_next_one() {
        let parent = tempfile::tempdir().unwrap();
        let of = |age_min| ScratchFolder::new_in(parent.path(), age_min).unwrap();
        let killed = parent.path().join(format!("{PREFIX}killed"));
        fs::create_dir(&killed).unwrap();
        fs::write(killed.join("1.fix"), "index").unwrap();
        let kept = [parent.path().join("other"), parent.path().join(format!("{PREFIX}file"))];
        fs::create_dir(&kept[0]).unwrap();
        fs::write(&kept[1], "").unwrap();
        let link = parent.path().join(format!("{PREFIX}link"));
        symlink(&kept[0], &link).unwrap();
        // It may be one that a tool has just made.
        let young = of(AGE_MIN);
        assert!(killed.exists());
        fs::write(young.path().join("2.fix"), "index").unwrap();
        let second = of(Duration::ZERO);
        assert!(!killed.exists() && young.path().join("2.fix").exists());
        assert!(kept.iter().all(|path| path.exists()) && link.exists());
        let paths = [young.path().to_owned(), second.path().to_owned()];
        drop((young, second));
        assert!(!paths.iter().any(|path| path.exists()));
    }
}
