//! Byte-addressable memory as a disk: a folder of a file system that maps the device itself (DAX).
//!
//! Names, lengths and reads use the file system; writes below the end of a file are stores into its
//! map. If the file system maps only its page cache, files are written the same way and
//! [`DiskFile::sync`] calls the system: correct, but no faster than files.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use firn_model::{Error, Result};

use crate::io_error::io_error;
use crate::lines::{LineFlusher, Mapping, Processor};
use crate::local::open_file;
use crate::{Disk, DiskFile, DiskPath, FileStamp, FolderLock, LocalDisk, Mapped, Memory, OpenMode};

/// The unit that such memory writes internally; smaller writes are read-modify-write cycles
/// (DecLog, section 4.4.2).
const UNIT_BYTES: u64 = 256;

/// Files of one folder, written as memory.
#[derive(Debug)]
pub struct MemoryDisk {
    below: LocalDisk,
    /// `None` if only the system can make writes durable.
    lines: Option<Arc<dyn LineFlusher>>,
}

struct MemoryFile {
    below: Arc<dyn DiskFile>,
    path: PathBuf,
    lines: Option<Arc<dyn LineFlusher>>,
    /// `Some` once the file has a length. Writes take the write lock, users of an address the read
    /// lock.
    mapping: RwLock<Option<Mapping>>,
}

impl MemoryDisk {
    /// Opens the folder `root`; creates it and its parents if missing.
    ///
    /// # Errors
    /// As [`LocalDisk::open`].
    pub fn open(root: impl Into<PathBuf>) -> Result<MemoryDisk> {
        let below = LocalDisk::open(root)?;
        let maps_device = maps_device(below.root())?;
        let processor = Processor::detect().filter(|_| maps_device);
        let lines = processor.map(|processor| Arc::new(processor) as Arc<dyn LineFlusher>);
        Ok(MemoryDisk { below, lines })
    }

    /// As [`MemoryDisk::open`], with another way to make lines durable, for simulators.
    ///
    /// # Errors
    /// As [`LocalDisk::open`].
    pub fn with_lines(root: impl Into<PathBuf>, lines: Arc<dyn LineFlusher>) -> Result<MemoryDisk> {
        Ok(MemoryDisk { below: LocalDisk::open(root)?, lines: Some(lines) })
    }

    /// Whether stores reach the device without a system call.
    pub fn is_direct(&self) -> bool {
        self.lines.is_some()
    }
}

/// Whether files in `folder` are maps of the device instead of the page cache.
fn maps_device(folder: &Path) -> Result<bool> {
    use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, statx};
    // The attribute belongs to files, so a probe file is needed.
    let path = folder.join("probe");
    let failed = |error| io_error("create or remove", &path, error);
    // The file is of an earlier process, or a link that another user has planted.
    let _ = std::fs::remove_file(&path);
    let file = File::create_new(&path).map_err(failed)?;
    let found = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
    std::fs::remove_file(&path).map_err(failed)?;
    // A kernel without this call supports no such file system.
    Ok(found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::DAX)))
}

impl Disk for MemoryDisk {
    fn open(&self, path: &DiskPath, mode: OpenMode) -> Result<Arc<dyn DiskFile>> {
        let below = self.below.open(path, mode)?;
        let full_path = self.below.root().join(path);
        let (lines, mapping) = (self.lines.clone(), RwLock::default());
        let file = MemoryFile { below, path: full_path, lines, mapping };
        if mode == OpenMode::Write {
            file.map_all()?;
        }
        Ok(Arc::new(file))
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
        self.below.sync_dir(path)
    }

    fn sync_files(&self, files: &[Arc<dyn DiskFile>]) -> Vec<Result<()>> {
        self.below.sync_files(files)
    }

    fn folder(&self) -> Option<&Path> {
        self.below.folder()
    }

    fn free_bytes(&self) -> Result<u64> {
        self.below.free_bytes()
    }

    fn unit_bytes(&self) -> u64 {
        if self.is_direct() { UNIT_BYTES } else { self.below.unit_bytes() }
    }

    fn mapped_bytes_max(&self) -> u64 {
        self.below.mapped_bytes_max()
    }

    fn lock(&self) -> Result<Box<dyn FolderLock>> {
        self.below.lock()
    }
}

impl MemoryFile {
    /// Maps the file at its current length.
    fn map_all(&self) -> Result<()> {
        let failed = |error| io_error("map", &self.path, error);
        let file = open_file(OpenOptions::new().read(true).write(true), "map", &self.path)?;
        let found = file.metadata().map_err(failed)?;
        let mut mapping = self.mapping.write().unwrap_or_else(PoisonError::into_inner);
        if found.len() > mapping.as_ref().map_or(0, Mapping::len) {
            *mapping = Some(Mapping::of_file(&file, found.ino()).map_err(failed)?);
        }
        Ok(())
    }

    fn with_mapping(&self, f: impl FnOnce(&dyn LineFlusher, &Mapping)) {
        let mapping = self.mapping.read().unwrap_or_else(PoisonError::into_inner);
        if let (Some(lines), Some(mapping)) = (&self.lines, &*mapping) {
            f(&**lines, mapping);
        }
    }
}

impl DiskFile for MemoryFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.below.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut mapping = self.mapping.write().unwrap_or_else(PoisonError::into_inner);
        let Some(mapping) = &mut *mapping else { return self.below.write_at(offset, bytes) };
        if mapping.write(offset, bytes) {
            return Ok(());
        }
        if self.lines.is_none() {
            return self.below.write_at(offset, bytes);
        }
        // No sync would write these bytes back.
        Err(Error::internal(format!(
            "{}: {} bytes at {offset} are past its end; the file must be created at full length",
            self.path.display(),
            bytes.len()
        )))
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        self.below.preallocate(len)?;
        if len > 0 { self.map_all() } else { Ok(()) }
    }

    /// Also covers writes from before the file was mapped.
    fn sync(&self) -> Result<()> {
        self.with_mapping(|lines, mapping| {
            lines.write_back(mapping, 0, mapping.len());
            lines.fence();
        });
        self.below.sync()
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

    fn memory(&self) -> Option<&dyn Memory> {
        let is_mapped = self.mapping.read().unwrap_or_else(PoisonError::into_inner).is_some();
        (self.lines.is_some() && is_mapped).then_some(self)
    }

    fn map(&self) -> Result<Mapped> {
        self.below.map()
    }
}

impl Memory for MemoryFile {
    fn write_back(&self, offset: u64, len: u64) {
        self.with_mapping(|lines, mapping| lines.write_back(mapping, offset, len));
    }

    fn fence(&self) {
        if let Some(lines) = &self.lines {
            lines.fence();
        }
    }
}

impl fmt::Debug for MemoryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryFile({})", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the instructions. A test cannot observe their effect, only that they do no harm.
    #[test]
    fn lines_are_written_back_wherever_they_begin_and_end() {
        let Some(processor) = Processor::detect() else { return };
        let mut kinds: Vec<Arc<dyn LineFlusher>> = vec![Arc::new(processor)];
        #[cfg(target_arch = "x86_64")]
        kinds.push(Arc::new(Processor::Clflush));
        for lines in kinds {
            let folder = tempfile::tempdir().unwrap();
            let disk = MemoryDisk::with_lines(folder.path(), lines).unwrap();
            let file = disk.open("a", OpenMode::Create).unwrap();
            assert!(file.memory().is_none(), "the file is empty");
            file.preallocate(10_000).unwrap();
            let memory = file.memory().expect("the file is mapped");
            for (offset, len) in [(0, 1), (63, 2), (64, 64), (9_999, 1), (9_000, 5_000), (0, 0)] {
                let bytes = vec![offset as u8; len.min(10_000 - offset)];
                file.write_at(offset as u64, &bytes).unwrap();
                memory.write_back(offset as u64, len as u64);
                memory.fence();
                let mut found = vec![0; bytes.len()];
                file.read_at(offset as u64, &mut found).unwrap();
                assert_eq!(found, bytes);
            }
            let beyond = file.write_at(9_999, &[1, 2]).unwrap_err();
            assert!(beyond.to_string().contains("past its end"), "{beyond}");
            file.sync().unwrap();
            let again = disk.open("a", OpenMode::Write).unwrap();
            assert!(again.memory().is_some());
        }
    }
}
