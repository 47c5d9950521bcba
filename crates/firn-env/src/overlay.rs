//! A disk whose changes stay in memory, for tools that open a database and must not change it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use firn_model::{Error, ErrorKind, Result};

use crate::{
    Disk, DiskFile, DiskPath, FileStamp, FolderLock, Mapped, Memory, OpenMode, check_path,
};

/// The unit in which changed bytes are kept.
const PAGE_BYTES: usize = 4 << 10;

/// Changes take at most this many pages: 256 MiB. An opening changes a few; only a file that it
/// downloads can be large.
const PAGES_MAX: usize = 64 << 10;

/// The files of another disk, with changes that only this value sees. The disk below must not
/// change meanwhile; [`Disk::lock`] locks it.
#[derive(Debug)]
pub struct OverlayDisk {
    below: Arc<dyn Disk>,
    is_memory: bool,
    names: Mutex<Names>,
    page_count: Arc<AtomicUsize>,
}

/// Names that differ from those of the disk below, and open files.
#[derive(Debug, Default)]
struct Names {
    files: BTreeMap<String, Name>,
    folders: BTreeSet<String>,
}

#[derive(Debug)]
enum Name {
    /// A file that may have changes.
    Kept(Arc<Content>),
    /// A file of the disk below that was opened for reading.
    Read(Weak<Content>),
    Removed,
}

/// The bytes of a file, whatever its names and handles are.
#[derive(Debug)]
struct Content {
    path: String,
    is_memory: bool,
    /// `None` for a file that the disk below does not have.
    below: Option<Arc<dyn DiskFile>>,
    below_bytes: u64,
    changes: RwLock<Changes>,
    page_count: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Changes {
    /// Length of the file.
    bytes: u64,
    /// Changed pages by their number.
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
}

#[derive(Debug)]
struct OverlayFile {
    content: Arc<Content>,
    is_writable: bool,
}

impl OverlayDisk {
    /// Shows the files of `below`. `is_memory`: a torn write there leaves any mix of cache lines
    /// ([`DiskFile::memory`]).
    pub fn new(below: Arc<dyn Disk>, is_memory: bool) -> OverlayDisk {
        OverlayDisk { below, is_memory, names: Mutex::default(), page_count: Arc::default() }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn content(&self, path: &str, below: Option<Arc<dyn DiskFile>>) -> Result<Arc<Content>> {
        let below_bytes = below.as_ref().map_or(Ok(0), |below| below.len())?;
        Ok(Arc::new(Content {
            path: path.to_owned(),
            is_memory: self.is_memory,
            below,
            below_bytes,
            changes: RwLock::new(Changes { bytes: below_bytes, ..Changes::default() }),
            page_count: Arc::clone(&self.page_count),
        }))
    }

    /// The file at `path`.
    ///
    /// # Errors
    /// `NotFound`.
    fn find(&self, names: &mut Names, path: &str) -> Result<Arc<Content>> {
        match names.files.get(path) {
            Some(Name::Kept(content)) => return Ok(Arc::clone(content)),
            Some(Name::Removed) => return Err(not_found(path)),
            Some(Name::Read(content)) => {
                if let Some(content) = content.upgrade() {
                    return Ok(content);
                }
            }
            None => {}
        }
        let content = self.content(path, Some(self.below.open(path, OpenMode::Read)?))?;
        names.files.insert(path.to_owned(), Name::Read(Arc::downgrade(&content)));
        Ok(content)
    }

    fn has_folder(&self, names: &Names, path: &str) -> Result<bool> {
        if path.is_empty() || names.folders.contains(path) {
            return Ok(true);
        }
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok(self.below.list(parent)?.iter().any(|found| found == name))
    }
}

impl Disk for OverlayDisk {
    fn open(&self, path: &DiskPath, mode: OpenMode) -> Result<Arc<dyn DiskFile>> {
        check_path(path)?;
        let mut names = self.names();
        let found = self.find(&mut names, path);
        let content = match mode {
            OpenMode::Read | OpenMode::Write => found?,
            OpenMode::Create => {
                match found {
                    Ok(_) => {
                        let what = format!("create {path}: the file exists");
                        return Err(Error::new(ErrorKind::Conflict, what));
                    }
                    Err(error) if *error.kind() != ErrorKind::NotFound => return Err(error),
                    Err(_) => {}
                }
                if !self.has_folder(&names, path.rsplit_once('/').map_or("", |found| found.0))? {
                    return Err(not_found(path));
                }
                self.content(path, None)?
            }
        };
        if mode != OpenMode::Read {
            names.files.insert(path.to_owned(), Name::Kept(Arc::clone(&content)));
        }
        Ok(Arc::new(OverlayFile { content, is_writable: mode != OpenMode::Read }))
    }

    fn create_dir(&self, path: &DiskPath) -> Result<()> {
        check_path(path)?;
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        self.names().folders.extend(ends.map(|end| path[..end].to_owned()));
        Ok(())
    }

    fn list(&self, path: &DiskPath) -> Result<Vec<String>> {
        let mut found: BTreeSet<String> = self.below.list(path)?.into_iter().collect();
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let name_in = |full: &str| Some(full.strip_prefix(&prefix)?.split('/').next()?.to_owned());
        let names = self.names();
        found.extend(names.folders.iter().filter_map(|folder| name_in(folder)));
        for (full, name) in &names.files {
            let Some(own) = full.strip_prefix(&prefix) else { continue };
            match name {
                Name::Kept(_) => found.extend(name_in(full)),
                Name::Removed => {
                    found.remove(own);
                }
                Name::Read(_) => {}
            }
        }
        Ok(found.into_iter().collect())
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<()> {
        check_path(to)?;
        let mut names = self.names();
        let content = self.find(&mut names, from)?;
        names.files.insert(from.to_owned(), Name::Removed);
        names.files.insert(to.to_owned(), Name::Kept(content));
        Ok(())
    }

    fn remove(&self, path: &DiskPath) -> Result<()> {
        let mut names = self.names();
        match self.find(&mut names, path) {
            // A pipe, which a disk removes too.
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt { .. }) => {}
            found => drop(found?),
        }
        names.files.insert(path.to_owned(), Name::Removed);
        Ok(())
    }

    fn sync_dir(&self, path: &DiskPath) -> Result<()> {
        match self.has_folder(&self.names(), path)? {
            true => Ok(()),
            false => Err(not_found(path)),
        }
    }

    /// `None`: a file of the folder may lack its changes.
    fn folder(&self) -> Option<&Path> {
        None
    }

    fn free_bytes(&self) -> Result<u64> {
        self.below.free_bytes()
    }

    fn unit_bytes(&self) -> u64 {
        self.below.unit_bytes()
    }

    fn mapped_bytes_max(&self) -> u64 {
        self.below.mapped_bytes_max()
    }

    fn lock(&self) -> Result<Box<dyn FolderLock>> {
        self.below.lock()
    }
}

impl DiskFile for OverlayFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let changes = self.content.read();
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > changes.bytes) {
            let what = format!("the file ends before the {} requested bytes", buf.len());
            return Err(Error::corrupt(self.content.path.as_str(), offset, what));
        }
        self.content.copy(&changes, offset, buf)
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> bool {
        self.content.unchanged().is_some_and(|below| below.read_cached(offset, buf))
    }

    fn will_read(&self, offset: u64, len: u64) {
        if let Some(below) = &self.content.below {
            below.will_read(offset, len);
        }
    }

    /// A write that changes nothing takes no memory.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let content = &*self.content;
        if !self.is_writable {
            return Err(Error::internal(format!("{}: opened for reading", content.path)));
        }
        let mut changes = content.changes.write().unwrap_or_else(PoisonError::into_inner);
        let end = offset
            .checked_add(bytes.len() as u64)
            .ok_or_else(|| Error::too_large(format!("{}: write at {offset}", content.path)))?;
        changes.bytes = changes.bytes.max(end);
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let (number, start) = (at / PAGE_BYTES as u64, (at % PAGE_BYTES as u64) as usize);
            let (now, later) = rest.split_at(rest.len().min(PAGE_BYTES - start));
            let mut page = Box::new([0; PAGE_BYTES]);
            let page_at = number * PAGE_BYTES as u64;
            let len = (changes.bytes - page_at).min(PAGE_BYTES as u64) as usize;
            content.copy(&changes, page_at, &mut page[..len])?;
            if page[start..][..now.len()] != *now {
                page[start..][..now.len()].copy_from_slice(now);
                if changes.pages.insert(number, page).is_none() {
                    content.count_page()?;
                }
            }
            (at, rest) = (at + now.len() as u64, later);
        }
        Ok(())
    }

    fn preallocate(&self, len: u64) -> Result<()> {
        let mut changes = self.content.changes.write().unwrap_or_else(PoisonError::into_inner);
        changes.bytes = changes.bytes.max(len);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.content.read().bytes)
    }

    fn stamp(&self) -> Result<Option<FileStamp>> {
        self.content.unchanged().map_or(Ok(None), |below| below.stamp())
    }

    fn memory(&self) -> Option<&dyn Memory> {
        self.content.is_memory.then_some(self)
    }

    fn map(&self) -> Result<Mapped> {
        if let Some(below) = self.content.unchanged() {
            return below.map();
        }
        let changes = self.content.read();
        let mut bytes = vec![0; changes.bytes as usize];
        self.content.copy(&changes, 0, &mut bytes)?;
        Ok(Mapped::from(bytes))
    }
}

/// Nothing is durable.
impl Memory for OverlayFile {
    fn write_back(&self, _offset: u64, _len: u64) {}

    fn fence(&self) {}
}

impl Content {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, Changes> {
        self.changes.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file below, if it has the same bytes.
    fn unchanged(&self) -> Option<&Arc<dyn DiskFile>> {
        let changes = self.read();
        let is_unchanged = changes.pages.is_empty() && changes.bytes == self.below_bytes;
        self.below.as_ref().filter(|_| is_unchanged)
    }

    /// Fills `buf`, which ends before the end of the file.
    fn copy(&self, changes: &Changes, offset: u64, buf: &mut [u8]) -> Result<()> {
        let below_len = self.below_bytes.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (old, new) = buf.split_at_mut(below_len);
        if let Some(below) = self.below.as_ref().filter(|_| !old.is_empty()) {
            below.read_at(offset, old)?;
        }
        new.fill(0);
        let end = offset + buf.len() as u64;
        let pages = offset / PAGE_BYTES as u64..end.div_ceil(PAGE_BYTES as u64);
        for (number, page) in changes.pages.range(pages) {
            let page_at = number * PAGE_BYTES as u64;
            let (from, to) = (page_at.max(offset), (page_at + PAGE_BYTES as u64).min(end));
            let len = (to - from) as usize;
            let source = &page[(from - page_at) as usize..][..len];
            buf[(from - offset) as usize..][..len].copy_from_slice(source);
        }
        Ok(())
    }

    fn count_page(&self) -> Result<()> {
        if self.page_count.fetch_add(1, Ordering::Relaxed) < PAGES_MAX {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "{}: opening the database without a change to its folder needs more than {} MiB of \
             memory; run `firn check --repair`",
            self.path,
            (PAGES_MAX * PAGE_BYTES) >> 20
        )))
    }
}

fn not_found(path: &str) -> Error {
    Error::not_found(format!("{path} does not exist"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::LocalDisk;

    #[test]
    fn changes_are_seen_and_the_folder_below_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("log")).unwrap();
        for (name, bytes) in [("log/1", vec![7; 10_000]), ("log/2", vec![8; 3])] {
            fs::write(path(name), bytes).unwrap();
        }
        let disk =
            OverlayDisk::new(Arc::new(LocalDisk::open_to_read(folder.path()).unwrap()), false);
        let reader = disk.open("log/1", OpenMode::Read).unwrap();
        let file = disk.open("log/1", OpenMode::Write).unwrap();
        file.write_at(4_094, b"abcd").unwrap();
        let same = disk.open("log/2", OpenMode::Write).unwrap();
        same.write_at(1, &[8]).unwrap();
        assert_eq!(disk.page_count.load(Ordering::Relaxed), 2);
        disk.rename("log/2", "log/3").unwrap();
        file.preallocate(20_000).unwrap();
        disk.create_dir("a/b").unwrap();
        disk.open("a/b/c", OpenMode::Create).unwrap().write_at(5_000, b"x").unwrap();

        let mut bytes = [0; 6];
        reader.read_at(4_093, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\x07abcd\x07", "a reader sees later writes");
        reader.read_at(9_998, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\x07\x07\0\0\0\0");
        assert_eq!(disk.list("log").unwrap(), ["1", "3"]);
        assert_eq!(disk.list("").unwrap(), ["a", "log"]);
        assert_eq!(&disk.open("log/3", OpenMode::Read).unwrap().map().unwrap()[..], [8; 3]);
        assert_eq!(disk.open("log/1", OpenMode::Read).unwrap().map().unwrap().len(), 20_000);
        disk.remove("log/1").unwrap();
        assert!(disk.open("log/1", OpenMode::Read).is_err());

        assert_eq!(fs::read(path("log/1")).unwrap(), [7; 10_000]);
        assert_eq!(fs::read(path("log/2")).unwrap(), [8; 3]);
        let names = |name: &str| fs::read_dir(path(name)).unwrap().count();
        assert_eq!((names(""), names("log")), (1, 2), "no file was made");
    }

    #[test]
    fn readers_share_a_folder_and_a_writer_excludes_them() {
        let folder = tempfile::tempdir().unwrap();
        let reading = || LocalDisk::open_to_read(folder.path()).unwrap();
        drop(reading().lock().unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "no lock file was made");
        let writer = LocalDisk::open(folder.path()).unwrap();
        let held = writer.lock().unwrap();
        let error = reading().lock().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Busy { .. }), "{error}");
        drop(held);
        let (first, second) = (reading().lock().unwrap(), reading().lock().unwrap());
        let error = writer.lock().unwrap_err().to_string();
        assert!(error.contains("a tool that reads it"), "{error}");
        drop((first, second));
        drop(writer.lock().unwrap());
        let missing = folder.path().join("missing");
        let error = LocalDisk::open_to_read(&missing).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::NotFound, "{error}");
        assert!(!missing.exists());
    }
}
