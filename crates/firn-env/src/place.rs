//! Paths of files and folders that may not exist yet, without links.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// The path without links and `..`. Parts that do not exist are created as folders, so a `..`
/// behind one is the folder in which it is created.
pub fn real_path(path: &Path) -> PathBuf {
    let mut real = match path.is_absolute() {
        true => PathBuf::new(),
        false => fs::canonicalize(".").unwrap_or_default(),
    };
    for component in path.components() {
        match component {
            Component::ParentDir => {
                // There are no links in it.
                real.pop();
            }
            other => real.push(other),
        }
        if let Ok(existing) = fs::canonicalize(&real) {
            real = existing;
        }
    }
    real
}

/// Whether both are one file, also by different names, or will be once it is created.
pub fn is_same_file(path: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    match (identity(path), identity(other)) {
        (Ok(one), Ok(two)) => one == two,
        _ => real_path(path) == real_path(other),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_is_the_same_by_each_of_its_names() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("folder/file"), "").unwrap();
        fs::write(at("other"), "").unwrap();
        fs::hard_link(at("folder/file"), at("hard")).unwrap();
        symlink(at("folder"), at("link")).unwrap();
        symlink(at("folder/file"), at("soft")).unwrap();
        let f = |one: &str, two: &str, is_same: bool| {
            assert_eq!(is_same_file(&at(one), &at(two)), is_same, "{one} {two}");
            assert_eq!(is_same_file(&at(two), &at(one)), is_same, "{two} {one}");
        };
        for name in ["folder/file", "hard", "soft", "link/file", "folder/../link/./file"] {
            f("folder/file", name, true);
            f("other", name, false);
            f("missing", name, false);
        }
        f("link/missing", "folder/missing", true);
        f("new/../missing", "missing", true);
        f("missing", "folder/missing", false);
    }
}
