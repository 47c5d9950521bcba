//! The folders in which databases keep their own files. Nothing else may be written there: a
//! database would take it for its own.

use std::fmt;
use std::path::{Path, PathBuf};

use firn_env::{is_bucket_folder, real_path};
use firn_model::{Error, Result};

/// A folder, or the record of the log's device, that belongs to a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnFolder {
    /// Without links.
    pub path: PathBuf,
    /// Its content.
    pub kind: OwnFolderKind,
}

/// The content of an [`OwnFolder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnFolderKind {
    /// Recent data.
    Fast,
    /// History.
    Slow,
    /// Copies, each a database.
    Snapshots,
    /// The record of the log's device.
    LogDevice,
}

/// The record of the log's device; absent if the log is in files beside the tables.
pub(crate) const RECORD: &str = "log-device";

/// The names in the folder of a database.
const NAMES: [(&str, OwnFolderKind); 4] = [
    ("fast", OwnFolderKind::Fast),
    ("slow", OwnFolderKind::Slow),
    ("snapshots", OwnFolderKind::Snapshots),
    (RECORD, OwnFolderKind::LogDevice),
];

impl OwnFolder {
    /// The innermost folder of a database that is or contains `path`, which may not exist yet.
    /// `data` is the folder of a database that may not exist yet either.
    pub fn around(path: &Path, data: Option<&Path>) -> Option<OwnFolder> {
        let real = real_path(path);
        // They may be links to other disks.
        let of_data = data.into_iter().flat_map(|data| {
            NAMES.map(|(name, kind)| OwnFolder { path: real_path(&data.join(name)), kind })
        });
        let of_data = of_data.filter(|own| real.starts_with(&own.path));
        let of_others = real.ancestors().find_map(|folder| {
            let kind = match is_bucket_folder(folder) {
                true => OwnFolderKind::Slow,
                false => {
                    let name = folder.file_name()?;
                    let (_, kind) = NAMES.iter().find(|(own, _)| name == *own)?;
                    folder.parent().filter(|parent| is_database(parent)).map(|_| *kind)?
                }
            };
            Some(OwnFolder { path: folder.to_owned(), kind })
        });
        of_data.chain(of_others).max_by_key(|own| own.path.as_os_str().len())
    }
}

/// # Errors
/// `Invalid` if `folder` has no database and is among the files of another one. A snapshot is a
/// database.
pub(crate) fn check_data_folder(folder: &Path) -> Result<()> {
    match folder.join("fast").is_dir() {
        true => Ok(()),
        false => {
            OwnFolder::around(folder, None).map_or(Ok(()), |own| Err(in_database(folder, &own)))
        }
    }
}

pub(crate) fn in_database(folder: &Path, own: &OwnFolder) -> Error {
    let folder = folder.display();
    match own.kind {
        OwnFolderKind::Slow => {
            let tier = own.path.display();
            Error::invalid(format!(
                "{folder} is in the slow tier of a database: choose another data folder, and \
                 {tier} as its slow tier"
            ))
        }
        _ => Error::invalid(format!("{folder} is in {own}: choose another data folder")),
    }
}

/// `/data/fast, the folder of recent data of the database in /data`.
impl fmt::Display for OwnFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            OwnFolderKind::Fast => "the folder of recent data",
            OwnFolderKind::Slow => "the slow tier",
            OwnFolderKind::Snapshots => "the folder of snapshots",
            OwnFolderKind::LogDevice => "the record of the log's device",
        };
        // A slow tier may be anywhere.
        let names = NAMES.iter().filter(|(_, kind)| *kind == self.kind);
        let data = names
            .filter(|(name, _)| self.path.ends_with(name))
            .find_map(|_| self.path.parent().filter(|data| is_database(data)));
        let path = self.path.display();
        match data {
            Some(data) => {
                write!(f, "{path}, {what} of the database in {}", data.display())
            }
            None => write!(f, "{path}, {what} of a database"),
        }
    }
}

/// Whether a database was created in `folder`.
pub(crate) fn is_database(folder: &Path) -> bool {
    folder.join("fast/manifest").is_dir()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use firn_env::open_bucket;

    use super::*;
    use crate::{Db, Options, local_env};

    #[test]
    fn own_folders_are_recognised_by_each_path() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let db = Db::open(local_env(&root.join("data")).unwrap(), Options::default()).unwrap();
        db.copy_to(&root.join("data/snapshots/one"), None, false).unwrap();
        drop(db);
        drop(open_bucket(&root.join("tier").to_string_lossy()).unwrap());
        symlink(root.join("data/fast/tables"), root.join("link")).unwrap();
        fs::create_dir_all(root.join("plain/fast")).unwrap();
        let f = |path: &str, wanted: Option<(&str, OwnFolderKind)>| {
            let wanted = wanted.map(|(path, kind)| OwnFolder { path: root.join(path), kind });
            let new = root.join("new");
            assert_eq!(OwnFolder::around(&root.join(path), Some(&new)), wanted, "{path}");
        };
        let (fast, slow) = (OwnFolderKind::Fast, OwnFolderKind::Slow);
        f("data", None);
        f("data/other", None);
        f("data/log-devices", None);
        f("data/log-device", Some(("data/log-device", OwnFolderKind::LogDevice)));
        f("data/fast", Some(("data/fast", fast)));
        f("data/fast/log/0/new", Some(("data/fast", fast)));
        f("data/x/../fast/new", Some(("data/fast", fast)));
        f("link/new", Some(("data/fast", fast)));
        f("data/slow/new", Some(("data/slow", slow)));
        f("data/snapshots", Some(("data/snapshots", OwnFolderKind::Snapshots)));
        f("data/snapshots/two", Some(("data/snapshots", OwnFolderKind::Snapshots)));
        f("data/snapshots/one/slow", Some(("data/snapshots/one/slow", slow)));
        f("data/snapshots/one/fast/new", Some(("data/snapshots/one/fast", fast)));
        f("tier/a/b", Some(("tier", slow)));
        f("plain/fast/a", None);
        f("new/fast", Some(("new/fast", fast)));
        f("new/slow/a", Some(("new/slow", slow)));
        f("newer/fast", None);
        f("disk/fast/x", None);
        fs::create_dir_all(root.join("disk")).unwrap();
        fs::create_dir(root.join("new")).unwrap();
        symlink(root.join("disk"), root.join("new/fast")).unwrap();
        f("disk/x", Some(("disk", fast)));
        f("new/fast/x", Some(("disk", fast)));
        let shown = |path: &str| OwnFolder::around(&root.join(path), None).unwrap().to_string();
        let data = root.join("data");
        let data = data.display();
        let wanted = format!("{data}/fast, the folder of recent data of the database in {data}");
        assert_eq!(shown("link"), wanted);
        assert!(shown("tier").ends_with("/tier, the slow tier of a database"));
    }
}
