//! Byte-addressable persistent memory, as far as a benchmark needs it: bytes in memory, with the
//! time of a write-back and fence charged to the caller.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use firn_env::{Disk, DiskFile, DiskPath, FolderLock, Memory, OpenMode};
use firn_model::{Error, Result};

/// The average latency of `clwb` and `sfence` (DecLog, section 4.2).
pub const FENCE_NS: u64 = 250;

/// A disk in memory. Files have the length of their reservation; a sync costs one fence.
#[derive(Clone, Default)]
pub struct MemoryDevice {
    files: Arc<Mutex<BTreeMap<String, Arc<MemoryFile>>>>,
}

/// One file: its bytes, and the number of its fences.
#[derive(Default)]
pub struct MemoryFile {
    bytes: RwLock<Vec<u8>>,
    fences: AtomicU64,
}

impl Memory for MemoryFile {
    /// Its time is a part of the fence's.
    fn write_back(&self, _: u64, _: u64) {}

    /// Waits as long as a fence takes. Spins, as the processor does.
    fn fence(&self) {
        self.fences.fetch_add(1, Ordering::Relaxed);
        let start = Instant::now();
        while start.elapsed() < Duration::from_nanos(FENCE_NS) {
            std::hint::spin_loop();
        }
    }
}

impl DiskFile for MemoryFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let bytes = self.bytes.read().unwrap_or_else(PoisonError::into_inner);
        let (start, end) = (offset as usize, offset as usize + buf.len());
        let found =
            bytes.get(start..end).ok_or_else(|| Error::corrupt("memory", offset, "the end"))?;
        buf.copy_from_slice(found);
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        let (start, end) = (offset as usize, offset as usize + from.len());
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(from);
        Ok(())
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        if bytes.len() < len as usize {
            // Touched, so that no page fault is charged to a commit.
            bytes.resize(len as usize, 0);
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.fence();
        Ok(())
    }

    fn memory(&self) -> Option<&dyn Memory> {
        Some(self)
    }

    fn len(&self) -> Result<u64> {
        Ok(self.bytes.read().unwrap_or_else(PoisonError::into_inner).len() as u64)
    }
}

impl Disk for MemoryDevice {
    fn open(&self, path: &DiskPath, mode: OpenMode) -> Result<Arc<dyn DiskFile>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match (files.get(path), mode) {
            (Some(file), _) => Arc::clone(file),
            (None, OpenMode::Create) => {
                let file = Arc::<MemoryFile>::default();
                files.insert(path.to_owned(), Arc::clone(&file));
                file
            }
            (None, _) => return Err(Error::not_found(path)),
        };
        Ok(file)
    }

    fn create_dir(&self, _: &DiskPath) -> Result<()> {
        Ok(())
    }

    fn list(&self, path: &DiskPath) -> Result<Vec<String>> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let below = |name: &String| Some(name.strip_prefix(path)?.strip_prefix('/')?.to_owned());
        Ok(files.keys().filter_map(below).filter(|name| !name.contains('/')).collect())
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<()> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let file = files.remove(from).ok_or_else(|| Error::not_found(from))?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, path: &DiskPath) -> Result<()> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.remove(path).map(|_| ()).ok_or_else(|| Error::not_found(path))
    }

    fn sync_dir(&self, _: &DiskPath) -> Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64> {
        Ok(u64::MAX)
    }

    fn lock(&self) -> Result<Box<dyn FolderLock>> {
        Ok(Box::new(NoLock))
    }
}

/// Nothing but its own process can reach the memory.
#[derive(Debug)]
struct NoLock;

impl FolderLock for NoLock {}

impl fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryDevice")
    }
}

impl fmt::Debug for MemoryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryFile")
    }
}
