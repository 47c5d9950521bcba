//! A disk behind a network: the local one, but each file read waits for a round trip. Mapped files
//! do not.
//!
//! Cloud volumes respond in this way; a benchmark's local disk responds from the page cache.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use firn_env::{Disk, DiskFile, DiskPath, FileStamp, FolderLock, Mapped, OpenMode};
use firn_model::Result;

/// The latency of a read from a network volume.
pub const READ: Duration = Duration::from_micros(500);

/// Another disk, with [`READ`] added to every read.
#[derive(Debug)]
pub struct FarDisk(pub Arc<dyn Disk>);

#[derive(Debug)]
struct FarFile(Arc<dyn DiskFile>);

impl Disk for FarDisk {
    fn open(&self, path: &DiskPath, mode: OpenMode) -> Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(FarFile(self.0.open(path, mode)?)))
    }

    fn create_dir(&self, path: &DiskPath) -> Result<()> {
        self.0.create_dir(path)
    }

    fn list(&self, path: &DiskPath) -> Result<Vec<String>> {
        self.0.list(path)
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, path: &DiskPath) -> Result<()> {
        self.0.remove(path)
    }

    fn sync_dir(&self, path: &DiskPath) -> Result<()> {
        self.0.sync_dir(path)
    }

    fn sync_files(&self, files: &[Arc<dyn DiskFile>]) -> Vec<Result<()>> {
        self.0.sync_files(files)
    }

    fn folder(&self) -> Option<&Path> {
        self.0.folder()
    }

    fn free_bytes(&self) -> Result<u64> {
        self.0.free_bytes()
    }

    fn unit_bytes(&self) -> u64 {
        self.0.unit_bytes()
    }

    fn lock(&self) -> Result<Box<dyn FolderLock>> {
        self.0.lock()
    }
}

impl DiskFile for FarFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        std::thread::sleep(READ);
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        self.0.preallocate(len)
    }

    fn sync(&self) -> Result<()> {
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

    fn map(&self) -> Result<Mapped> {
        self.0.map()
    }
}
