//! The disk seam: files below one root folder, with the crash semantics that the engine relies on.
//!
//! Later reads see a write at once, but it survives a crash only after [`DiskFile::sync`] returned;
//! until then any part of it may be lost or torn at any sector. A created, renamed or removed name
//! survives only after [`Disk::sync_dir`] of its folder.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use firn_model::{Error, Result};

use crate::{FileStamp, Mapped};

/// A path below the disk's root with `/` between parts, such as `log/0/17.log`. Never absolute, no
/// `.` or `..` parts.
pub type DiskPath = str;

/// The mode of [`Disk::open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Must exist; reads only.
    Read,
    /// Must exist; reads and writes.
    Write,
    /// Must not exist; created empty, for reads and writes.
    Create,
}

/// Files of one root folder.
///
/// # Errors
/// `NotFound` when a name is missing, `Unavailable` when the disk is full or fails; each with the
/// path and the operating system's message.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Opens or creates a file. Its parent folders must exist.
    fn open(&self, path: &DiskPath, mode: OpenMode) -> Result<Arc<dyn DiskFile>>;

    /// Creates a folder and its parents; succeeds if they exist. Durable after `sync_dir` of the
    /// parents.
    fn create_dir(&self, path: &DiskPath) -> Result<()>;

    /// Names (not paths) of the files and folders in a folder, sorted. A missing folder is empty.
    fn list(&self, path: &DiskPath) -> Result<Vec<String>>;

    /// Renames a file atomically; replaces an existing file.
    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<()>;

    /// Removes a file.
    fn remove(&self, path: &DiskPath) -> Result<()>;

    /// Makes the names in a folder durable (`""` is the root).
    fn sync_dir(&self, path: &DiskPath) -> Result<()>;

    /// Syncs several files of this disk in parallel, each as [`DiskFile::sync`], and returns one
    /// result per file. Takes as long as the slowest sync, not the sum.
    fn sync_files(&self, files: &[Arc<dyn DiskFile>]) -> Vec<Result<()>> {
        files.iter().map(|file| file.sync()).collect()
    }

    /// The file system folder that the disk consists of, if it is one; for [`crate::copy_file`].
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// Free bytes that this user may allocate.
    fn free_bytes(&self) -> Result<u64>;

    /// The unit that the device writes as a whole. A writer of small pieces should fill one unit
    /// before it starts the next. 8 with a cache in between.
    fn unit_bytes(&self) -> u64 {
        8
    }

    /// Bytes of files that a room may have mapped at a time, so that other allocations have address
    /// space.
    fn mapped_bytes_max(&self) -> u64 {
        u64::MAX
    }

    /// Locks the root folder against other processes until the lock is dropped.
    ///
    /// # Errors
    /// `Busy` when another process holds the lock; names the process id stored in the lock file.
    fn lock(&self) -> Result<Box<dyn FolderLock>>;
}

/// A lock on a folder, released on drop.
pub trait FolderLock: fmt::Debug + Send + Sync {
    /// As [`DiskFile::is_in_place`], of the file in the folder that is locked. If it is not in
    /// place, the folder was removed, moved or replaced.
    fn is_in_place(&self) -> bool {
        true
    }
}

/// One open file. All calls may come from several threads.
pub trait DiskFile: fmt::Debug + Send + Sync {
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// `Corrupt` if the file ends before `buf` is full, `Unavailable` if the disk fails.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Fills `buf` from `offset` if that needs no device access, because the system caches the
    /// range. Returns `false` if it does not or if the disk cannot determine it; the contents of
    /// `buf` are then undefined.
    fn read_cached(&self, _offset: u64, _buf: &mut [u8]) -> bool {
        false
    }

    /// Announces that a range is read soon, so that the disk can start reading without blocking the
    /// caller. Announce several ranges before reading the first, and their reads overlap. Errors
    /// appear when the ranges are read.
    fn will_read(&self, _offset: u64, _len: u64) {}

    /// Writes all of `bytes` at `offset`; a gap before it reads as zeros.
    ///
    /// # Errors
    /// `Unavailable`; the contents of that range on disk are then unknown.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Reserves and zeroes the file up to `len`, so that later writes below `len` change no file
    /// metadata and cannot fail for lack of space.
    ///
    /// # Errors
    /// `Unavailable` when the disk is full; the file is then unchanged.
    fn preallocate(&self, len: u64) -> Result<()>;

    /// Makes all writes so far durable (as `fdatasync`).
    ///
    /// # Errors
    /// `Unavailable`; the state of unsynced writes is then unknown, so a retry proves nothing.
    fn sync(&self) -> Result<()>;

    /// Length in bytes.
    fn len(&self) -> Result<u64>;

    /// Its last change, to find out later whether another program has changed it. `None` if that
    /// cannot be found out, for instance because it was changed a moment ago.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails.
    fn stamp(&self) -> Result<Option<FileStamp>> {
        Ok(None)
    }

    /// Whether the path with which it was opened still leads to it. `false` once another program
    /// has removed, moved or replaced it. `true` if the disk cannot determine it.
    fn is_in_place(&self) -> bool {
        true
    }

    /// The file as memory, if the processor writes to the device directly. Then no system call is
    /// needed and [`DiskFile::write_at`] is a copy.
    fn memory(&self) -> Option<&dyn Memory> {
        None
    }

    /// All bytes of a file that is not written again: mapped into memory if the disk supports it,
    /// otherwise a copy.
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

/// Byte-addressable memory behind a file. A write survives a crash after its cache lines were
/// written back and a fence followed; until then each line may be lost or kept independently.
pub trait Memory: fmt::Debug + Send + Sync {
    /// Starts to write back the cache lines of `len` bytes at `offset`, whichever thread wrote
    /// them.
    fn write_back(&self, offset: u64, len: u64);

    /// Waits until all lines are durable that this thread started to write back, in any file of the
    /// disk.
    fn fence(&self);
}

/// Rejects a path that is not a [`DiskPath`]: absolute, or with an empty, `.` or `..` part. `""` is
/// the root.
///
/// # Errors
/// `Invalid` with the path.
pub fn check_path(path: &DiskPath) -> Result<()> {
    let is_part_bad = |part: &str| matches!(part, "" | "." | "..") || part.contains('\0');
    if !path.is_empty() && path.split('/').any(is_part_bad) {
        return Err(Error::invalid(format!("{path:?} is not a path below a disk's root")));
    }
    Ok(())
}
