//! Environments of a database: local folders, slow tiers, restores and copies.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use firn_engine::{CopyReport, Engine, RestoreReport};
use firn_env::{
    Bucket, Disk, EmptyBucket, Env, LocalDisk, MemoryDisk, OverlayDisk, SystemClock, open_bucket,
    open_bucket_to_read, real_path, scheme_of,
};
use firn_model::{Error, ErrorKind, Reservation, Result};

use crate::Db;
use crate::log_device::LogDevice;
use crate::own_folder::{OwnFolder, OwnFolderKind, check_data_folder, in_database, is_database};

/// The end of the name of an incomplete copy.
const UNFINISHED: &str = ".unfinished";

/// The environment of a database in `folder` with its slow tier in `folder/slow`.
///
/// # Errors
/// `Unavailable` when the folder cannot be created, or when the log's memory is not mounted;
/// `Corrupt` for a damaged record of the log's device.
pub fn local_env(folder: &Path) -> Result<Env> {
    local_env_with_slow_tier(folder, &folder.join("slow").to_string_lossy())
}

/// The environment of a database in `folder` with its slow tier in another folder or at a URL such
/// as `s3://bucket/prefix`.
///
/// # Errors
/// `Invalid` for an unsupported URL; those of [`local_env`].
pub fn local_env_with_slow_tier(folder: &Path, slow_tier: &str) -> Result<Env> {
    check_data_folder(folder)?;
    check_slow_tier(folder, slow_tier)?;
    env_with(folder, || open_bucket(slow_tier))
}

/// As [`local_env_with_slow_tier`], for [`Options::read_only`](crate::Options::read_only): nothing
/// is written to the slow tier, and nothing to `folder` if the slow tier is a folder that is
/// missing.
///
/// # Errors
/// As [`local_env_with_slow_tier`]; `NotFound` for a missing folder of the slow tier.
pub fn replica_env(folder: &Path, slow_tier: &str) -> Result<Env> {
    check_data_folder(folder)?;
    env_with(folder, || open_bucket_to_read(slow_tier))
}

/// The environment of the database in `folder` for a tool that only reads, with
/// [`Db::open_idle`]: the changes of an opening and of a replay of the log stay in memory, so the
/// folder and its slow tier keep every byte, name and owner. No server may have the folder open;
/// other tools may. The folder of a slow tier may be missing.
///
/// # Errors
/// As [`local_env_with_slow_tier`]; `NotFound` without a database.
pub fn inspection_env(folder: &Path, slow_tier: &str) -> Result<Env> {
    let overlay = |root: PathBuf, is_memory| -> Result<Arc<dyn Disk>> {
        let below = Arc::new(LocalDisk::open_to_read(root)?);
        Ok(Arc::new(OverlayDisk::new(below, is_memory)))
    };
    let log = match LogDevice::of(folder)? {
        LogDevice::File => None,
        LogDevice::Memory(path) => Some(overlay(path, true)?),
    };
    let bucket = match open_bucket_to_read(slow_tier) {
        Err(error) if *error.kind() == ErrorKind::NotFound => Arc::new(EmptyBucket),
        opened => opened?,
    };
    let disk = overlay(folder.join("fast"), false)?;
    Ok(Env { disk, log, bucket, clock: Arc::new(SystemClock::new()) })
}

/// # Errors
/// `Invalid` if `slow_tier` is a folder among other files of a database, whose names would be
/// objects, or if it contains a database, whose files would be.
fn check_slow_tier(folder: &Path, slow_tier: &str) -> Result<()> {
    let path = slow_tier.strip_prefix("file://").unwrap_or(slow_tier);
    if scheme_of(path).is_some() {
        return Ok(());
    }
    let path = Path::new(path);
    let own = OwnFolder::around(path, Some(folder));
    let real = real_path(path);
    let what = match own.filter(|own| own.kind != OwnFolderKind::Slow) {
        Some(own) => format!("is in {own}"),
        None if real_path(folder).starts_with(&real) => {
            format!("contains the data folder {}", folder.display())
        }
        None if is_database(&real) => "contains another database".to_owned(),
        None => return Ok(()),
    };
    Err(Error::invalid(format!(
        "--slow-tier: {slow_tier} {what}: choose another folder, such as {}",
        folder.join("slow").display()
    )))
}

fn env_with(folder: &Path, open_bucket: impl Fn() -> Result<Arc<dyn Bucket>>) -> Result<Env> {
    let device = LogDevice::of(folder)?;
    // Before the folder: without a slow tier nothing is created.
    let bucket = open_bucket()?;
    let log: Option<Arc<dyn Disk>> = match device {
        LogDevice::File => None,
        LogDevice::Memory(path) => Some(Arc::new(MemoryDisk::open(path)?)),
    };
    Ok(Env {
        disk: Arc::new(LocalDisk::open(folder.join("fast"))?),
        log,
        bucket,
        clock: Arc::new(SystemClock::new()),
    })
}

/// Restores a database into the empty folder of `env` from the manifest of its slow tier, and
/// claims the slow tier. [`Db::open`] opens the result. Data that was not uploaded is not restored.
/// Returns `None`, and does nothing, if the folder contains a database.
///
/// # Errors
/// `NotFound` if nothing was ever uploaded there, `Corrupt`, `Invalid` for a newer version,
/// `Conflict` when another process restores at the same time, `Unavailable` (try again).
pub fn restore(env: &Env) -> Result<Option<RestoreReport>> {
    Engine::restore(env)
}

impl Db {
    /// Copies the database to `folder`, which must not exist; its parents are created. The copy
    /// contains everything that was acknowledged before the call; with `skip_head`, without the
    /// data that is only in memory and log.
    ///
    /// [`local_env`] opens the copy. Its slow tier is `folder/slow`, or the empty folder or URL
    /// `slow_tier` ([`local_env_with_slow_tier`]). Files are hard-linked where possible, which
    /// takes no space, and copied otherwise. The folder gets its name when the copy is complete.
    ///
    /// # Errors
    /// `Invalid` for a folder among the files of a database, `Conflict` if the folder exists or the
    /// slow tier there is not empty: then nothing is written. `Unavailable` when a disk or tier
    /// fails or is full. Files copied until then are removed; objects in an object store remain.
    pub fn copy_to(
        &self,
        folder: &Path,
        slow_tier: Option<&str>,
        skip_head: bool,
    ) -> Result<CopyReport> {
        // A snapshot is among snapshots.
        let own = OwnFolder::around(folder, None);
        if let Some(own) = own.filter(|own| own.kind != OwnFolderKind::Snapshots) {
            return Err(in_database(folder, &own));
        }
        if let Some(slow_tier) = slow_tier {
            check_slow_tier(folder, slow_tier)?;
        }
        let unfinished = unfinished(folder)?;
        let copied =
            self.copy_to_unfinished(&unfinished, slow_tier, skip_head).and_then(|report| {
                rename(&unfinished, folder)?;
                Ok(report)
            });
        if copied.is_err() {
            let _ = fs::remove_dir_all(&unfinished);
        }
        copied
    }

    /// Replaces the types and help texts of metrics, in a format of the caller. Durable on return.
    ///
    /// # Errors
    /// `Closed`, and `Unavailable` if the disk fails or is full.
    pub fn save_metadata(&self, payload: &[u8]) -> Result<()> {
        self.engine.save_metadata(payload)
    }

    /// The bytes of the last [`Db::save_metadata`]; `None` without one.
    ///
    /// # Errors
    /// `Corrupt` if the file is damaged, `Invalid` for a newer version, `Unavailable`.
    pub fn load_metadata(&self) -> Result<Option<Vec<u8>>> {
        self.engine.load_metadata()
    }

    /// Replaces the stored alerts of the group of rules `key`, in a format of the caller. Durable
    /// on return. [`Db::copy_to`] does not copy them: a copy has sent no alerts.
    ///
    /// # Errors
    /// `Closed`, and `Unavailable` if the disk fails or is full.
    pub fn save_alerts(&self, key: u64, payload: &[u8]) -> Result<()> {
        self.engine.save_alerts(key, payload)
    }

    /// The bytes of the last [`Db::save_alerts`] for `key`; `None` without one. Their memory is
    /// reserved in `held`.
    ///
    /// # Errors
    /// `Corrupt` if the file is damaged, `Invalid` for a newer version, `Busy` without memory,
    /// `Unavailable`.
    pub fn load_alerts(&self, key: u64, held: &mut Reservation) -> Result<Option<Vec<u8>>> {
        self.engine.load_alerts(key, held)
    }

    /// Removes the stored alerts of all groups of rules but `keys`.
    ///
    /// # Errors
    /// `Closed`, and `Unavailable` if the disk fails.
    pub fn keep_alerts(&self, keys: &BTreeSet<u64>) -> Result<()> {
        self.engine.keep_alerts(keys)
    }

    fn copy_to_unfinished(
        &self,
        folder: &Path,
        slow_tier: Option<&str>,
        skip_head: bool,
    ) -> Result<CopyReport> {
        let in_folder = folder.join("slow");
        let slow_tier = slow_tier.map_or_else(|| in_folder.to_string_lossy(), Cow::from);
        let env = env_with(folder, || open_bucket(&slow_tier))?;
        self.engine.copy_to(&env, skip_head)
    }
}

/// Removes the incomplete copies in `parent` that killed processes have left: the folders with the
/// name of a copy, by `is_copy`, and the ending of an incomplete one. Links are not followed, not
/// even `parent` itself. Returns the folders, each with the outcome. No process may be copying to
/// `parent` meanwhile.
pub fn remove_unfinished_copies(
    parent: &Path,
    is_copy: impl Fn(&str) -> bool,
) -> Vec<(PathBuf, std::io::Result<()>)> {
    if !fs::symlink_metadata(parent).is_ok_and(|found| found.is_dir()) {
        return Vec::new();
    }
    let is_unfinished = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        name.to_str().and_then(|name| name.strip_suffix(UNFINISHED)).is_some_and(&is_copy)
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
    };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten().filter(is_unfinished);
    entries.map(|entry| (entry.path(), fs::remove_dir_all(entry.path()))).collect()
}

/// The folder in which the copy is made before it is renamed to `folder`.
fn unfinished(folder: &Path) -> Result<PathBuf> {
    let check_missing = |path: &Path| match fs::symlink_metadata(path) {
        Err(_) => Ok(()),
        Ok(_) => {
            let what = format!("cannot copy to {}: it exists; choose a new folder", path.display());
            Err(Error::new(ErrorKind::Conflict, what))
        }
    };
    check_missing(folder)?;
    let name = folder.file_name().ok_or_else(|| {
        Error::invalid("cannot copy to a folder without a name; use the path of a new folder")
    })?;
    let mut name = name.to_owned();
    name.push(UNFINISHED);
    let unfinished = folder.with_file_name(name);
    // A folder of a killed process may remain.
    if has_names_of_copy(&unfinished) {
        fs::remove_dir_all(&unfinished).map_err(|e| failed(&unfinished, e))?;
    }
    check_missing(&unfinished)?;
    Ok(unfinished)
}

/// Whether a folder contains nothing but the folders of a copy.
fn has_names_of_copy(folder: &Path) -> bool {
    let is_own = |entry: std::io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name() == "fast" || entry.file_name() == "slow")
    };
    fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir())
        && fs::read_dir(folder).is_ok_and(|mut entries| entries.all(is_own))
}

/// The names inside the folder are durable already.
fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|e| failed(to, e))?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    fs::File::open(parent).and_then(|folder| folder.sync_all()).map_err(|e| failed(parent, e))
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::unavailable(format!("cannot copy to {}", path.display())).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    /// Before, copies of killed processes stayed for ever.
    #[test]
    fn only_folders_of_unfinished_copies_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let (parent, other) = (root.path().join("copies"), root.path().join("other"));
        for folder in [
            "a.unfinished/fast",
            "a",
            "b.unfinished",
            "a.unfinished.old",
            "x.unfinished",
            ".unfinished",
        ] {
            fs::create_dir_all(parent.join(folder)).unwrap();
        }
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), "").unwrap();
        fs::write(parent.join("c.unfinished"), "").unwrap();
        let link = |from: &Path, to: PathBuf| std::os::unix::fs::symlink(from, to).unwrap();
        link(&other, parent.join("d.unfinished"));
        link(&other, parent.join("a.unfinished/link"));
        link(&parent, root.path().join("link"));
        let is_copy = |name: &str| ["a", "b", "c", "d"].contains(&name);
        let remove = |parent: &Path| {
            let removed = remove_unfinished_copies(parent, is_copy);
            assert!(removed.iter().all(|(_, outcome)| outcome.is_ok()), "{removed:?}");
            let names = removed.into_iter().map(|(path, _)| path.file_name().unwrap().to_owned());
            names.collect::<BTreeSet<_>>()
        };
        assert!(remove(&root.path().join("link")).is_empty());
        assert!(remove(&root.path().join("missing")).is_empty());
        assert_eq!(remove(&parent), ["a.unfinished", "b.unfinished"].map(Into::into).into());
        assert!(!parent.join("a.unfinished").exists() && !parent.join("b.unfinished").exists());
        for left in [
            "a",
            "a.unfinished.old",
            "x.unfinished",
            ".unfinished",
            "c.unfinished",
            "d.unfinished/file",
        ] {
            assert!(parent.join(left).exists(), "{left}");
        }
    }

    /// Before, a folder with the name of an incomplete copy was removed whatever it contained, and
    /// a copy was made in full before a link at its place was noticed.
    #[test]
    fn a_copy_is_refused_before_anything_is_removed_or_written() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let env = local_env(&path("data")).unwrap();
        // Without maintenance, which writes files of its own meanwhile.
        let progress = crate::RecoveryProgress::default();
        let db = Db::open_idle(env, Options::default(), &progress).unwrap();
        std::os::unix::fs::symlink("nowhere", path("link")).unwrap();
        fs::create_dir_all(path("mine.unfinished/fast")).unwrap();
        fs::write(path("mine.unfinished/notes"), "kept").unwrap();
        fs::create_dir_all(path("data/fast/x.unfinished/fast")).unwrap();
        fs::create_dir_all(path("full")).unwrap();
        fs::write(path("full/notes"), "kept").unwrap();
        let names = || {
            let mut names = BTreeSet::new();
            let mut folders = vec![root.path().to_owned()];
            while let Some(folder) = folders.pop() {
                for entry in fs::read_dir(folder).unwrap() {
                    let entry = entry.unwrap();
                    if entry.file_type().unwrap().is_dir() {
                        folders.push(entry.path());
                    }
                    names.insert(entry.path());
                }
            }
            names
        };
        let full = path("full").display().to_string();
        let own_slow = path("data/fast").display().to_string();
        let before = names();
        for (folder, slow_tier) in [
            ("data", None),
            ("data/fast", None),
            ("data/fast/x", None),
            ("data/slow/x", None),
            ("link", None),
            ("mine", None),
            ("new", Some(own_slow.as_str())),
        ] {
            let error = db.copy_to(&path(folder), slow_tier, true).unwrap_err();
            let is_refused = matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Invalid);
            assert!(is_refused && names() == before, "{folder}: {error}");
        }
        let error = db.copy_to(&path("new"), Some(&full), true).unwrap_err().to_string();
        assert!(error.contains("the target contains notes on its slow tier"), "{error}");
        assert!(!path("new").exists() && !path("new.unfinished").exists());
        // Of a killed process.
        fs::create_dir_all(path("new.unfinished/fast/tables")).unwrap();
        db.copy_to(&path("new"), None, true).unwrap();
    }

    #[test]
    fn a_data_folder_is_in_no_slow_tier() {
        let root = tempfile::tempdir().unwrap();
        drop(open_bucket(&root.path().join("tier").to_string_lossy()).unwrap());
        let f = |folder: &str, is_right: bool| {
            let checked = check_data_folder(&root.path().join(folder));
            assert_eq!(checked.is_ok(), is_right, "{folder}: {checked:?}");
        };
        f("data", true);
        f("tier", false);
        f("tier/a/data", false);
        // Before, only the part that exists was looked at.
        f("missing/../tier/data", false);
        f("tier/missing/../../data", true);
    }

    /// Before, two databases wrote into the same folders.
    #[test]
    fn a_data_folder_is_not_among_the_files_of_another_database() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("data");
        let db = Db::open(local_env(&folder).unwrap(), Options::default()).unwrap();
        for name in ["fast", "fast/log/0", "slow/x", "snapshots", "snapshots/x"] {
            let error = local_env(&folder.join(name)).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::Invalid, "{name}");
            assert!(error.to_string().contains("choose another data folder"), "{name}: {error}");
        }
        let error = local_env(&folder.join("fast/x")).unwrap_err().to_string();
        assert!(error.contains(&format!("of the database in {}:", folder.display())), "{error}");
        for name in ["fast/copy", "slow/copy"] {
            assert!(db.copy_to(&folder.join(name), None, true).is_err(), "{name}");
        }
        // A snapshot is opened where it is.
        let snapshot = folder.join("snapshots/copy");
        db.copy_to(&snapshot, None, true).unwrap();
        drop(local_env(&snapshot).unwrap());
        drop(local_env(&folder.join("inner")).unwrap());
    }

    /// Before, the server started, uploaded nothing and reported that another one had replaced it;
    /// in a location whose manifest was missing it deleted the other one's tables.
    #[test]
    fn the_slow_tier_of_another_database_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let open = |folder: &str, tier: &str| {
            let tier = path(tier).display().to_string();
            let env = local_env_with_slow_tier(&path(folder), &tier)?;
            Db::open_idle(env, Options::default(), &crate::RecoveryProgress::default())
        };
        let first = open("first", "tier").unwrap();
        first.settle(crate::Lane::Tree).unwrap();
        first.close().unwrap();
        drop(first);
        assert!(path("tier/manifest").exists());
        fs::create_dir_all(path("tables/tables")).unwrap();
        fs::write(path("tables/tables/1.fst"), "").unwrap();
        // It has never claimed its slow tier.
        open("second", "own").unwrap().close().unwrap();
        let bytes = |file: &str| fs::read(path(file)).unwrap();
        let before = bytes("tier/manifest");
        for (tier, wanted) in [("tier", "has another database (epoch "), ("tables", "has 1 tables")]
        {
            let error = open("second", tier).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::Conflict, "{error}");
            assert!(error.to_string().contains(wanted), "{error}");
        }
        assert_eq!(bytes("tier/manifest"), before);
        assert!(path("tables/tables/1.fst").exists());
        // The same process, and the folder that wrote it.
        for (folder, tier) in [("second", "own"), ("first", "tier")] {
            open(folder, tier).unwrap().close().unwrap();
        }
    }

    /// Before, the server started and no upload ever worked.
    #[test]
    fn the_slow_tier_is_not_among_recent_data() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("data");
        fs::create_dir_all(folder.join("fast")).unwrap();
        std::os::unix::fs::symlink(folder.join("fast"), root.path().join("link")).unwrap();
        let f = |slow_tier: &str, is_right: bool| {
            let slow_tier = root.path().join(slow_tier).display().to_string();
            for slow_tier in [slow_tier.clone(), format!("file://{slow_tier}")] {
                let checked = check_slow_tier(&folder, &slow_tier);
                assert_eq!(checked.is_ok(), is_right, "{slow_tier}: {checked:?}");
            }
        };
        f("data/slow", true);
        f("data/faster", true);
        f("other", true);
        f("data/fast", false);
        f("data/fast/a/b", false);
        f("data/fast/../fast", false);
        f("link/tier", false);
        // Before, a `..` behind a folder that does not exist yet was not resolved.
        f("data/slow/../fast", false);
        f("data/slow/../fast/a", false);
        f("data/a/b/../../fast", false);
        f("data/slow/../faster", true);
        f("data/slow/../../fast", true);
        f("link/a/../../slow", true);
        f("link/a/../b", false);
        f("link/../slow", true);
        f("data/snapshots/x", false);
        // Before, snapshots of a database in a slow tier failed.
        f("data", false);
        f("", false);
        let other = root.path().join("other");
        drop(Db::open(local_env(&other).unwrap(), Options::default()).unwrap());
        f("other", false);
        f("other/fast", false);
        f("other/snapshots", false);
        f("other/slow", true);
        assert!(check_slow_tier(&folder, "s3://bucket/data/fast").is_ok());
        let error = local_env_with_slow_tier(&folder, &folder.join("fast").to_string_lossy());
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("of recent data of a database: choose another folder")
        );
    }
}
