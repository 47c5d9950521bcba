//! The last change of a file, as its file system notes it.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Two changes within this time can have the same stamp. File systems note times in steps: Linux
/// in those of its timer (up to 10 ms), FAT in 2 s.
const STEP: Duration = Duration::from_secs(3);

/// The last change of a file as its file system noted it. If two stamps of an open file are equal,
/// no program has changed the file in between through the system. A medium that decays changes
/// bytes without a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    len: u64,
    changed: [i128; 2],
}

impl FileStamp {
    /// The stamp of a file of `len` bytes; `changed` differs after each change, in any unit.
    pub fn new(len: u64, changed: [i128; 2]) -> FileStamp {
        FileStamp { len, changed }
    }

    /// `None` if the last change is so young that another one could have the same stamp.
    pub(crate) fn of(found: &Metadata, now: SystemTime) -> Option<FileStamp> {
        let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        // A program can set the first time, but not the second. Some file systems note only the
        // first.
        let changed =
            [ns(found.mtime(), found.mtime_nsec()), ns(found.ctime(), found.ctime_nsec())];
        let settled = now.checked_sub(STEP)?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
        let is_settled = changed.iter().all(|at| u128::try_from(*at).is_ok_and(|at| at < settled));
        is_settled.then(|| FileStamp::new(found.len(), changed))
    }

    /// The length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, FileTimes};
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn later() -> SystemTime {
        SystemTime::now() + Duration::from_secs(60)
    }

    /// A restored backup or a tool that hides its change sets the time of the last write, and the
    /// length may stay.
    #[test]
    fn a_change_by_another_program_changes_the_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, [7; 100]).unwrap();
        let file = File::open(&path).unwrap();
        let found = file.metadata().unwrap();
        // The file is only of now, so the tests set the time that the system notes on their own.
        let stamp = || FileStamp::of(&file.metadata().unwrap(), later()).unwrap();
        let first = stamp();
        assert_eq!(first, stamp());
        assert_eq!(first.len(), 100);
        let changed_ns = |at: &Metadata| (at.ctime(), at.ctime_nsec());
        let overwrite = || {
            let other = File::options().write(true).open(&path).unwrap();
            other.write_all_at(&[8], 50).unwrap();
            let times = FileTimes::new().set_modified(found.modified().unwrap());
            other.set_times(times).unwrap();
        };
        // The times have steps: repeated until the clock has passed one.
        while changed_ns(&file.metadata().unwrap()) == changed_ns(&found) {
            overwrite();
        }
        assert_eq!(file.metadata().unwrap().modified().unwrap(), found.modified().unwrap());
        assert_ne!(first, stamp());
        let second = stamp();
        File::options().append(true).open(&path).unwrap().write_all(&[0]).unwrap();
        assert_ne!(second, stamp());
    }

    #[test]
    fn a_young_change_has_no_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "x").unwrap();
        let found = fs::metadata(&path).unwrap();
        let changed = found.modified().unwrap();
        assert_eq!(FileStamp::of(&found, changed), None);
        assert_eq!(FileStamp::of(&found, changed + Duration::from_secs(2)), None);
        // The clock was set back.
        assert_eq!(FileStamp::of(&found, changed - Duration::from_secs(3_600)), None);
        assert_eq!(FileStamp::of(&found, UNIX_EPOCH), None);
        assert!(FileStamp::of(&found, later()).is_some());
    }
}
