//! Wrappers of disks: one records changes, one skips or delays syncs; and a long file of zeros.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use firn_env::{Disk, DiskFile, DiskPath, FileStamp, FolderLock, OpenMode};
use firn_model::Result;

use crate::Operation;

/// Records every change of another disk in order, for tests that one change was synced before
/// another.
#[derive(Clone)]
pub struct RecordingDisk {
    below: Arc<dyn Disk>,
    record: Arc<Mutex<Vec<Record>>>,
}

/// One change through a [`RecordingDisk`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The operation.
    pub operation: Operation,
    /// The file or folder; the old name of a rename.
    pub path: String,
    /// Whether it succeeded.
    pub is_ok: bool,
}

/// A disk that acknowledges syncs of some files without doing them, or delays them. The first kind
/// is a mutant that every simulation must detect.
#[derive(Clone)]
pub struct SyncFaultDisk {
    below: Arc<dyn Disk>,
    prefix: String,
    wait: Option<Wait>,
}

type Wait = Arc<dyn Fn() + Send + Sync>;

/// A file of this length, all of whose bytes are zeros: longer than a test can store. It ignores
/// writes.
#[derive(Debug)]
pub struct ZeroFile(pub u64);

struct RecordedFile {
    disk: RecordingDisk,
    path: String,
    below: Arc<dyn DiskFile>,
}

struct SyncFaultFile(Arc<dyn DiskFile>, Option<Wait>);

impl RecordingDisk {
    /// Records the changes of `below`.
    pub fn new(below: Arc<dyn Disk>) -> RecordingDisk {
        RecordingDisk { below, record: Arc::default() }
    }

    /// The changes since the last call.
    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut *self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note<T>(&self, operation: Operation, path: &str, result: Result<T>) -> Result<T> {
        let record = Record { operation, path: path.to_owned(), is_ok: result.is_ok() };
        self.record.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        result
    }
}

impl Disk for RecordingDisk {
    fn open(&self, path: &DiskPath, mode: OpenMode) -> Result<Arc<dyn DiskFile>> {
        let opened = self.below.open(path, mode);
        let below = match mode {
            OpenMode::Create => self.note(Operation::Create, path, opened)?,
            OpenMode::Read | OpenMode::Write => opened?,
        };
        Ok(Arc::new(RecordedFile { disk: self.clone(), path: path.to_owned(), below }))
    }

    fn create_dir(&self, path: &DiskPath) -> Result<()> {
        self.note(Operation::CreateDir, path, self.below.create_dir(path))
    }

    fn list(&self, path: &DiskPath) -> Result<Vec<String>> {
        self.below.list(path)
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<()> {
        self.note(Operation::Rename, from, self.below.rename(from, to))
    }

    fn remove(&self, path: &DiskPath) -> Result<()> {
        self.note(Operation::Remove, path, self.below.remove(path))
    }

    fn sync_dir(&self, path: &DiskPath) -> Result<()> {
        self.note(Operation::SyncDir, path, self.below.sync_dir(path))
    }

    fn free_bytes(&self) -> Result<u64> {
        self.below.free_bytes()
    }

    fn lock(&self) -> Result<Box<dyn FolderLock>> {
        self.below.lock()
    }
}

impl DiskFile for RecordedFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.below.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.disk.note(Operation::Write, &self.path, self.below.write_at(offset, bytes))
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        self.disk.note(Operation::Preallocate, &self.path, self.below.preallocate(len))
    }

    fn sync(&self) -> Result<()> {
        self.disk.note(Operation::Sync, &self.path, self.below.sync())
    }

    fn len(&self) -> Result<u64> {
        self.below.len()
    }

    fn stamp(&self) -> Result<Option<FileStamp>> {
        self.below.stamp()
    }

    fn is_in_place(&self) -> bool {
        self.below.is_in_place()
    }
}

impl SyncFaultDisk {
    /// Skips syncs of files and folders with paths that start with `prefix`.
    pub fn skipping(below: Arc<dyn Disk>, prefix: impl Into<String>) -> SyncFaultDisk {
        SyncFaultDisk { below, prefix: prefix.into(), wait: None }
    }

    /// Calls `wait` before syncs of files with paths that start with `prefix`.
    pub fn delaying(
        below: Arc<dyn Disk>,
        prefix: impl Into<String>,
        wait: impl Fn() + Send + Sync + 'static,
    ) -> SyncFaultDisk {
        SyncFaultDisk { below, prefix: prefix.into(), wait: Some(Arc::new(wait)) }
    }
}

impl Disk for SyncFaultDisk {
    fn open(&self, path: &DiskPath, mode: OpenMode) -> Result<Arc<dyn DiskFile>> {
        let file = self.below.open(path, mode)?;
        let is_other = path.starts_with(&self.prefix);
        Ok(if is_other { Arc::new(SyncFaultFile(file, self.wait.clone())) } else { file })
    }

    fn create_dir(&self, path: &DiskPath) -> Result<()> {
        self.below.create_dir(path)
    }

    fn list(&self, path: &DiskPath) -> Result<Vec<String>> {
        self.below.list(path)
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<()> {
        self.below.rename(from, to)
    }

    fn remove(&self, path: &DiskPath) -> Result<()> {
        self.below.remove(path)
    }

    fn sync_dir(&self, path: &DiskPath) -> Result<()> {
        let is_left_out = self.wait.is_none() && path.starts_with(&self.prefix);
        if is_left_out { Ok(()) } else { self.below.sync_dir(path) }
    }

    fn free_bytes(&self) -> Result<u64> {
        self.below.free_bytes()
    }

    fn lock(&self) -> Result<Box<dyn FolderLock>> {
        self.below.lock()
    }
}

impl DiskFile for SyncFaultFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        self.0.preallocate(len)
    }

    fn sync(&self) -> Result<()> {
        let Some(wait) = &self.1 else { return Ok(()) };
        wait();
        self.0.sync()
    }

    fn len(&self) -> Result<u64> {
        self.0.len()
    }

    fn stamp(&self) -> Result<Option<FileStamp>> {
        self.0.stamp()
    }

    fn is_in_place(&self) -> bool {
        self.0.is_in_place()
    }
}

impl fmt::Debug for RecordingDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordingDisk({:?})", self.below)
    }
}

impl fmt::Debug for SyncFaultDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SyncFaultDisk({:?}, {:?})", self.below, self.prefix)
    }
}

impl fmt::Debug for RecordedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordedFile({:?})", self.below)
    }
}

impl fmt::Debug for SyncFaultFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SyncFaultFile({:?})", self.0)
    }
}

impl DiskFile for ZeroFile {
    fn read_at(&self, _: u64, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        Ok(())
    }

    fn write_at(&self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn preallocate(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::{Sim, conformance};

    #[test]
    fn both_pass_the_suite() {
        conformance::check_disk(&RecordingDisk::new(Sim::new(1).env().disk));
        conformance::check_disk(&SyncFaultDisk::skipping(Sim::new(1).env().disk, "bytes"));
    }

    #[test]
    fn changes_are_recorded_in_order_and_skipped_syncs_lose_data() {
        let mut lost = 0;
        for seed in 0..50 {
            let sim = Sim::new(seed);
            let faulty = SyncFaultDisk::skipping(sim.env().disk, "log");
            let disk = RecordingDisk::new(Arc::new(faulty));
            for path in ["log", "table"] {
                let file = disk.open(path, OpenMode::Create).unwrap();
                disk.sync_dir("").unwrap();
                file.write_at(0, b"x").unwrap();
                file.sync().unwrap();
            }
            let kinds: Vec<Operation> =
                disk.take().into_iter().take(4).map(|record| record.operation).collect();
            let expected =
                [Operation::Create, Operation::SyncDir, Operation::Write, Operation::Sync];
            assert_eq!(kinds, expected);
            sim.restart();
            assert_eq!(sim.disk.bytes("table").unwrap(), b"x");
            lost += usize::from(sim.disk.bytes("log").unwrap() != b"x");
        }
        assert!(lost > 10, "{lost} of 50 lost");
    }
}
