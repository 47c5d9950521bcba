//! The disk seam: files below one root folder, with the crash semantics that the engine stands on.
//!
//! A write is visible to later reads at once but survives a crash only once [`DiskFile::sync`]
//! returned; before that any part of it may be lost or torn at any sector. A created, renamed or
//! removed name survives only after [`Disk::sync_dir`] of its folder.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use firn_model::{Error, Result};

use crate::Mapped;

/// A path below the disk's root with `/` between parts, such as `log/0/17.log`. Never absolute,
/// no `.` or `..` parts.
pub type DiskPath = str;

/// How [`Disk::open`] finds or makes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Must exist; reads only.
    Read,
    /// Must exist; reads and writes.
    Write,
    /// Must not exist; made empty, for reads and writes.
    Create,
}

/// Files of one root folder.
///
/// # Errors
/// `NotFound` when a name is missing, `Unavailable` when the disk is full or fails, with the path
/// and the operating system's words.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Opens or makes a file. Parent folders must exist.
    fn open(&self, path: &DiskPath, mode: OpenMode) -> Result<Arc<dyn DiskFile>>;

    /// Makes a folder and its parents; fine if they exist. Durable after `sync_dir` of the parents.
    fn create_dir(&self, path: &DiskPath) -> Result<()>;

    /// Names (not paths) of the files and folders in a folder, sorted. A missing folder is empty.
    fn list(&self, path: &DiskPath) -> Result<Vec<String>>;

    /// Renames a file over whatever was there, atomically.
    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<()>;

    /// Removes a file.
    fn remove(&self, path: &DiskPath) -> Result<()>;

    /// Makes the names in a folder durable (`""` is the root).
    fn sync_dir(&self, path: &DiskPath) -> Result<()>;

    /// Syncs several files of this disk side by side, each as [`DiskFile::sync`], and says for each
    /// how it went: the time is that of the slowest, not the sum.
    fn sync_files(&self, files: &[Arc<dyn DiskFile>]) -> Vec<Result<()>> {
        files.iter().map(|file| file.sync()).collect()
    }

    /// The folder of the file system that it is, if it is one: for [`crate::copy_file`].
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// Bytes still free for this disk's user.
    fn free_bytes(&self) -> Result<u64>;

    /// What who writes little at a time should fill before it begins the next: the device writes so many bytes as a
    /// whole. 8 where a cache lies in between.
    fn unit_bytes(&self) -> u64 {
        8
    }

    /// Locks the root folder against other processes until the lock is dropped.
    ///
    /// # Errors
    /// `Busy` when another process holds it, with what it wrote there (its process id).
    fn lock(&self) -> Result<Box<dyn FolderLock>>;
}

/// Keeps a folder for one process; dropping it lets go.
pub trait FolderLock: fmt::Debug + Send + Sync {}

/// One open file. All calls may come from several threads.
pub trait DiskFile: fmt::Debug + Send + Sync {
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// `Corrupt` if the file ends before `buf` is full, `Unavailable` if the disk fails.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Fills `buf` from `offset` if nobody has to wait for the device: if the system has it in memory. `false` if not, or
    /// if it cannot say so; nothing is known about `buf` then.
    fn read_cached(&self, _offset: u64, _buf: &mut [u8]) -> bool {
        false
    }

    /// Says that a range will be read at once: a disk that can begins with it and makes nobody wait. Who says so of several
    /// ranges before the first is read waits for them side by side. What goes wrong shows when they are read.
    fn will_read(&self, _offset: u64, _len: u64) {}

    /// Writes all of `bytes` at `offset`; a gap before it reads as zeros.
    ///
    /// # Errors
    /// `Unavailable`, then what is on disk in that range is unknown.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Reserves and zeroes room up to `len`, so that later writes below change no file metadata and
    /// cannot fail for want of space.
    ///
    /// # Errors
    /// `Unavailable` when the disk is full; the file is then as before.
    fn preallocate(&self, len: u64) -> Result<()>;

    /// Makes all writes so far durable (as `fdatasync`).
    ///
    /// # Errors
    /// `Unavailable`, then nothing is known about unsynced writes: do not retry in place.
    fn sync(&self) -> Result<()>;

    /// Length in bytes.
    fn len(&self) -> Result<u64>;

    /// The file as memory, where the processor writes to the device itself: there is no call into the system to wait
    /// for then, and [`DiskFile::write_at`] is a copy.
    fn memory(&self) -> Option<&dyn Memory> {
        None
    }

    /// All bytes of a file that nobody changes from now on: mapped into memory where the disk can, else
    /// a copy.
    ///
    /// # Errors
    /// As [`DiskFile::read_at`].
    fn map(&self) -> Result<Mapped> {
        let len = usize::try_from(self.len()?)
            .map_err(|_| Error::too_large("the file is larger than the address space"))?;
        let mut bytes = vec![0; len];
        self.read_at(0, &mut bytes)?;
        Ok(Mapped::from(bytes))
    }

    /// Whether the file has no bytes.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// Byte-addressable memory behind a file. What was written survives a crash once its cache lines were written back and a
/// fence came after that; before, each line may be lost or kept by itself.
pub trait Memory: fmt::Debug + Send + Sync {
    /// Begins to write the cache lines of `len` bytes at `offset` back, whichever thread wrote them.
    fn write_back(&self, offset: u64, len: u64);

    /// Waits until everything is durable that this thread has begun to write back, in any file of the disk.
    fn fence(&self);
}

/// Refuses a path that is not a [`DiskPath`]: absolute, or with an empty, `.` or `..` part. `""` is
/// the root.
///
/// # Errors
/// `Invalid` with the path.
pub fn check_path(path: &DiskPath) -> Result<()> {
    let is_part_bad = |part: &str| matches!(part, "" | "." | "..") || part.contains('\0');
    if !path.is_empty() && path.split('/').any(is_part_bad) {
        return Err(Error::invalid(format!("{path:?} is no path below a disk's root")));
    }
    Ok(())
}
