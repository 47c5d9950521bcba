//! The device of a database's log: files beside its tables, or byte-addressable memory.
//!
//! The device is chosen when the database is created and recorded in the file `log-device` in its
//! folder, so that every later start finds the log. A start with another device would find an empty
//! log and lose acknowledged data silently.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use firn_env::given_file::read_document;
use firn_env::{Disk, LocalDisk, MemoryDisk, OpenMode};
use firn_model::{Error, Result};

use crate::own_folder::{OwnFolder, RECORD, check_data_folder};

/// Above the longest path.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// The device of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogDevice {
    /// In files beside the tables.
    #[default]
    File,
    /// In this folder, on a file system that maps byte-addressable memory (DAX). On another file
    /// system it is correct but no faster than files.
    Memory(PathBuf),
}

impl LogDevice {
    /// The device of the database in `folder`, which may not exist yet.
    ///
    /// # Errors
    /// `Corrupt` if the record is not a device; `Unavailable` if the device has no log, because the
    /// memory is not mounted.
    pub(crate) fn of(folder: &Path) -> Result<LogDevice> {
        let path = folder.join(RECORD);
        let text = match read_document(&path, RECORD_BYTES_MAX) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(LogDevice::File),
            Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => {
                let what = "is a file, or in one; expected a folder";
                return Err(Error::invalid(format!("{} {what}", folder.display())));
            }
            Err(e) => {
                return Err(
                    Error::unavailable(format!("cannot read {}", path.display())).because(e)
                );
            }
        };
        let device: LogDevice = text.trim_end().parse().map_err(|error: Error| {
            Error::corrupt(path.display().to_string(), 0, error.to_string())
        })?;
        match &device {
            LogDevice::Memory(memory) if !memory.join("log").is_dir() => {
                Err(Error::unavailable(format!(
                    "cannot open the log of the database in {}: {} contains no log; \
                     mount the memory of the log there",
                    folder.display(),
                    memory.display()
                )))
            }
            _ => Ok(device),
        }
    }

    /// Records this device for the log of a new database in `folder`. Call it before
    /// [`crate::local_env`].
    ///
    /// # Errors
    /// `Invalid` if the database exists and has its log on another device, or if this device has
    /// the log of another database or is among the files of a database; `Unavailable` when a disk
    /// fails.
    pub fn choose(&self, folder: &Path) -> Result<()> {
        if folder.join("fast").is_dir() {
            let found = LogDevice::of(folder)?;
            return if found == *self { Ok(()) } else { Err(on_other_device(folder, &found)) };
        }
        check_data_folder(folder)?;
        let LogDevice::Memory(path) = self else { return Ok(()) };
        if let Some(own) = OwnFolder::around(path, Some(folder)) {
            return Err(Error::invalid(format!(
                "cannot place the log in {}: it is in {own}; choose another folder",
                path.display()
            )));
        }
        let memory = MemoryDisk::open(path)?;
        if !memory.list("log")?.is_empty() {
            return Err(Error::invalid(format!(
                "cannot place the log in {}: it contains the log of another database; \
                 choose another folder",
                path.display()
            )));
        }
        memory.create_dir("log")?;
        memory.sync_dir("")?;
        let disk = LocalDisk::open(folder)?;
        // A start that was killed before it created the database may have left a record.
        let _ = disk.remove(RECORD);
        let record = disk.open(RECORD, OpenMode::Create)?;
        record.write_at(0, format!("{self}\n").as_bytes())?;
        record.sync()?;
        disk.sync_dir("")
    }
}

fn on_other_device(folder: &Path, found: &LogDevice) -> Error {
    Error::invalid(format!(
        "the database in {} has its log on another device; start it with --log-device={found}, \
         or create another database from a snapshot",
        folder.display()
    ))
}

impl FromStr for LogDevice {
    type Err = Error;

    fn from_str(text: &str) -> Result<LogDevice> {
        match text.strip_prefix("memory:") {
            Some(path) if Path::new(path).is_absolute() => Ok(LogDevice::Memory(path.into())),
            None if text == "file" => Ok(LogDevice::File),
            _ => Err(Error::invalid(format!(
                "invalid log device {text:?}: expected \"file\", or \"memory:\" with an absolute \
                 path"
            ))),
        }
    }
}

impl fmt::Display for LogDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogDevice::File => f.write_str("file"),
            LogDevice::Memory(path) => write!(f, "memory:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use firn_model::{ErrorKind, Labels, RowBatch};

    use super::*;
    use crate::{Db, Options, RecoveryProgress, inspection_env, local_env};

    fn write(db: &Db, ts: i64) {
        let labels = Labels::from_pairs([("__name__", "m")]).unwrap();
        let series = db.resolve(&[labels]).pop().unwrap().unwrap();
        let mut batch = RowBatch::default();
        batch.push(series, ts, 1.0);
        db.write(&mut batch).unwrap();
    }

    #[test]
    fn a_log_on_memory_is_found_again_and_never_mistaken_for_an_empty_one() {
        let root = tempfile::tempdir().unwrap();
        let (folder, memory) = (root.path().join("data"), root.path().join("memory"));
        let device = LogDevice::Memory(memory.clone());
        device.choose(&folder).unwrap();
        // Like a start after one that was killed before it created the database.
        device.choose(&folder).unwrap();
        let open = || Db::open(local_env(&folder).unwrap(), Options::default()).unwrap();
        let db = open();
        write(&db, 1_000);
        assert!(memory.join("log/0").is_dir() && !folder.join("fast/log").exists());
        drop(db);
        device.choose(&folder).unwrap();
        let db = open();
        assert_eq!(db.stats().recovery.rows, 1);
        drop(db);
        let files = || std::fs::read_dir(memory.join("log/0")).unwrap().count();
        let before = files();
        let slow_tier = folder.join("slow");
        let env = inspection_env(&folder, slow_tier.to_str().unwrap()).unwrap();
        let db = Db::open_idle(env, Options::default(), &RecoveryProgress::default()).unwrap();
        assert_eq!((db.stats().recovery.rows, files()), (1, before), "for inspection");
        drop(db);
        let error = LogDevice::File.choose(&folder).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(&format!("--log-device={device}")), "{error}");
        let error = device.choose(&root.path().join("another")).unwrap_err();
        assert!(error.to_string().contains("another database"), "{error}");
        std::fs::rename(&memory, root.path().join("away")).unwrap();
        let error = local_env(&folder).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("mount"), "{error}");
    }

    /// Before, `fast` was refused as open in another process, and the others became a mixture of
    /// logs and tables.
    #[test]
    fn a_log_is_not_among_the_files_of_a_database() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("data");
        let other = root.path().join("other");
        drop(Db::open(local_env(&other).unwrap(), Options::default()).unwrap());
        for data in [&folder, &other] {
            for name in ["fast", "fast/tables", "fast/index", "fast/cache", "slow", "snapshots/x"] {
                let device = LogDevice::Memory(data.join(name));
                let error = device.choose(&folder).unwrap_err();
                assert_eq!(*error.kind(), ErrorKind::Invalid, "{device}");
                let wanted = format!("it is in {}", data.display());
                assert!(error.to_string().contains(&wanted), "{device}: {error}");
            }
        }
        assert!(!folder.exists() && !other.join("fast/cache").exists());
        LogDevice::Memory(folder.join("memory")).choose(&folder).unwrap();
    }

    #[test]
    fn devices_are_written_as_they_are_read() {
        for text in ["file", "memory:/mnt/memory/firn"] {
            assert_eq!(text.parse::<LogDevice>().unwrap().to_string(), text);
        }
        for text in ["", "files", "memory", "memory:", "memory:relative/path", "/mnt"] {
            assert!(text.parse::<LogDevice>().is_err(), "{text}");
        }
    }
}
