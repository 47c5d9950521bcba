//! Where a database has its log: beside its tables, or on byte-addressable memory.
//!
//! It is decided when the database is made and written down in its folder, `log-device`, so that whoever opens it finds the
//! log. A log that is looked for in the wrong place would be an empty one, and what was acknowledged would be gone
//! without a word.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use firn_env::{Disk, LocalDisk, MemoryDisk, OpenMode};
use firn_model::{Error, Result};

/// The file in the database's folder, absent where the log is in files beside the tables.
const RECORD: &str = "log-device";

/// Where a log is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogDevice {
    /// In files beside the tables.
    #[default]
    File,
    /// In this folder, on a file system that maps byte-addressable memory (DAX). On another one it is right, and
    /// no quicker than files.
    Memory(PathBuf),
}

impl LogDevice {
    /// The device of the database in `folder`, which may be none yet.
    ///
    /// # Errors
    /// `Corrupt` if what is written down there is no device; `Unavailable` if there is no log at its place, because
    /// the memory is not mounted.
    pub(crate) fn of(folder: &Path) -> Result<LogDevice> {
        let path = folder.join(RECORD);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(LogDevice::File),
            Err(e) => {
                return Err(Error::unavailable(format!("reading {}", path.display())).because(e));
            }
        };
        let device: LogDevice = text.trim_end().parse().map_err(|error: Error| {
            Error::corrupt(path.display().to_string(), 0, error.to_string())
        })?;
        match &device {
            LogDevice::Memory(memory) if !memory.join("log").is_dir() => {
                Err(Error::unavailable(format!(
                    "the log of the database in {} is in {}, where there is none now: mount that memory",
                    folder.display(),
                    memory.display()
                )))
            }
            _ => Ok(device),
        }
    }

    /// The database in `folder` has its log here from the first start on. Called before [`crate::local_env`].
    ///
    /// # Errors
    /// `Invalid` if there is a database with its log elsewhere, or another one's log here; `Unavailable` when a disk
    /// fails.
    pub fn choose(&self, folder: &Path) -> Result<()> {
        if folder.join("fast").is_dir() {
            let found = LogDevice::of(folder)?;
            return if found == *self { Ok(()) } else { Err(elsewhere(folder, &found)) };
        }
        let LogDevice::Memory(path) = self else { return Ok(()) };
        let memory = MemoryDisk::open(path)?;
        if !memory.list("log")?.is_empty() {
            return Err(Error::invalid(format!(
                "{} has the log of another database: choose another folder there",
                path.display()
            )));
        }
        memory.create_dir("log")?;
        memory.sync_dir("")?;
        let disk = LocalDisk::open(folder)?;
        // Left by a start that was killed before there was a database.
        let _ = disk.remove(RECORD);
        let record = disk.open(RECORD, OpenMode::Create)?;
        record.write_at(0, format!("{self}\n").as_bytes())?;
        record.sync()?;
        disk.sync_dir("")
    }
}

fn elsewhere(folder: &Path, found: &LogDevice) -> Error {
    Error::invalid(format!(
        "the database in {} has its log on another device: start it with --log-device={found}, or make another of \
         a snapshot",
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
                "{text:?} is no log device: file, or memory: and the whole path of a folder"
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
    use crate::{Db, Options, local_env};

    fn write(db: &Db, ts: i64) {
        let labels = Labels::from_pairs([("__name__", "m")]).unwrap();
        let series = db.resolve(&[labels]).pop().unwrap().unwrap();
        let mut batch = RowBatch::default();
        batch.push(series, ts, 1.0);
        db.write(&mut batch).unwrap();
    }

    #[test]
    fn a_log_on_memory_is_found_again_and_never_taken_for_an_empty_one() {
        let place = tempfile::tempdir().unwrap();
        let (folder, memory) = (place.path().join("data"), place.path().join("memory"));
        let device = LogDevice::Memory(memory.clone());
        device.choose(&folder).unwrap();
        // As after a start that was killed before there was a database.
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
        let error = LogDevice::File.choose(&folder).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(&format!("--log-device={device}")), "{error}");
        let error = device.choose(&place.path().join("another")).unwrap_err();
        assert!(error.to_string().contains("another database"), "{error}");
        fs::rename(&memory, place.path().join("away")).unwrap();
        let error = local_env(&folder).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("mount"), "{error}");
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
