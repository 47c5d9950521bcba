//! Files of a database whose manifest is missing.
//!
//! An opening removes the files that the manifest does not name, so without a manifest it would
//! remove all. A new database writes its first manifest before any of these files. A restore and a
//! replica download index files before: they first create a mark beside the manifest.

use std::fmt;

use firn_env::{Disk, Env, OpenMode};
use firn_model::{Error, ErrorKind, Result};

use crate::manifest::{COPIES_MARK, FOLDER};
use crate::slow::segments::INDEX_FOLDER;

/// The number of files in a folder without a manifest.
pub(crate) struct UnnamedFiles {
    tables: usize,
    segments: usize,
    logs: usize,
    /// Whether the segments have the mark of copies.
    are_copies: bool,
}

impl UnnamedFiles {
    /// Counts the files of `env`.
    ///
    /// # Errors
    /// `Unavailable`.
    pub(crate) fn count(env: &Env) -> Result<UnnamedFiles> {
        let (disk, log) = (&*env.disk, &**env.log_disk());
        let mut logs = 0;
        for stream in log.list("log")?.iter().filter(|name| name.parse::<u16>().is_ok()) {
            logs += count(log, &format!("log/{stream}"), ".log")?;
        }
        let mark = COPIES_MARK.strip_prefix(FOLDER).unwrap_or_default().trim_start_matches('/');
        Ok(UnnamedFiles {
            tables: count(disk, "tables", ".fst")?,
            segments: count(disk, INDEX_FOLDER.trim_end_matches('/'), ".seg")?,
            logs,
            are_copies: disk.list(FOLDER)?.iter().any(|name| name == mark),
        })
    }

    /// Refuses to create a database among copies of index files.
    ///
    /// # Errors
    /// `Conflict`.
    pub(crate) fn check_no_copies(&self) -> Result<()> {
        match self.segments {
            0 => Ok(()),
            count => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "this folder has no database, but {count} index files of a replica or of an \
                     interrupted --restore: start again with --read-only or --restore, or with an \
                     empty folder"
                ),
            )),
        }
    }

    /// Refuses files that are not marked as copies of those on the slow tier.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn check_copies_only(&self) -> Result<()> {
        if self.tables == 0 && self.logs == 0 && (self.segments == 0 || self.are_copies) {
            return Ok(());
        }
        Err(Error::corrupt(
            FOLDER,
            0,
            format!(
                "the manifest is missing, but the folder has {self}; nothing was changed. Put the \
                 folder `fast/manifest` back, or restore the whole data folder from a backup or a \
                 snapshot. Or move the folder `fast` (and that of the log, if it is elsewhere) \
                 away and start with --restore: then the data that was not uploaded to the slow \
                 tier is lost"
            ),
        ))
    }

    /// Refuses to show the slow tier in the folder of a server that writes. Index files without the
    /// mark are those of a replica of an earlier version.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn check_replica(self) -> Result<()> {
        UnnamedFiles { are_copies: true, ..self }.check_copies_only()
    }
}

impl fmt::Display for UnnamedFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnnamedFiles { tables, segments, logs, .. } = self;
        write!(f, "{tables} tables, {segments} index files and {logs} log segments")
    }
}

/// Marks the index files that will be downloaded as copies.
///
/// # Errors
/// `Unavailable`.
pub(crate) fn mark_copies(disk: &dyn Disk) -> Result<()> {
    disk.create_dir(FOLDER)?;
    disk.sync_dir("")?;
    match disk.open(COPIES_MARK, OpenMode::Create) {
        Err(e) if *e.kind() != ErrorKind::Conflict => Err(e),
        _ => disk.sync_dir(FOLDER),
    }
}

/// The number of files in `folder` that have a number for a name, and `extension`.
fn count(disk: &dyn Disk, folder: &str, extension: &str) -> Result<usize> {
    let is_numbered = |name: &String| {
        name.strip_suffix(extension).is_some_and(|number| number.parse::<u64>().is_ok())
    };
    Ok(disk.list(folder)?.iter().filter(|name| is_numbered(name)).count())
}
