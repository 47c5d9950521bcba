//! The file of a local table as memory, and which of its blocks were verified.
//!
//! The first read of a block since the table was opened is a transfer: an unreadable disk is an
//! error of that read, and the checksum is verified. Later reads use the map: no transfer, no copy,
//! no second checksum, and only the pages of the chunk that is read.
//!
//! Another program may change the file. So the verified blocks are valid for one stamp of the file
//! only, which each scan compares before it reads the map and after.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use firn_env::{Disk, DiskFile, FileStamp, Mapped};

use crate::block::PLAIN_PAYLOAD_AT;

// With more open tables than this, a file is opened per read: the process needs files elsewhere.
const OPEN_FILES_MAX: usize = 256;

/// The open files of all tables, and the address space of their maps.
#[derive(Debug)]
pub(crate) struct OpenTables {
    files: AtomicUsize,
    mapped_bytes: AtomicU64,
    mapped_bytes_max: u64,
}

/// An open file, counted in [`OpenTables`].
pub(crate) struct OpenFile {
    pub(crate) file: Arc<dyn DiskFile>,
    map: Option<Arc<TableMap>>,
    open: Arc<OpenTables>,
}

/// A mapped file, as long as nothing changes it.
pub(crate) struct TableMap {
    bytes: Mapped,
    file: Arc<dyn DiskFile>,
    /// From before the first read of a block.
    stamp: FileStamp,
    /// One bit per block: its checksum was verified since `stamp`, and it is plain.
    sound: Vec<AtomicU64>,
    open: Arc<OpenTables>,
}

/// Bytes of one block or of several neighbours.
#[derive(Clone)]
pub(crate) enum BlockBytes {
    Read(Arc<[u8]>),
    Mapped(Arc<TableMap>),
}

impl OpenTables {
    pub(crate) fn new(disk: &dyn Disk) -> OpenTables {
        OpenTables {
            files: AtomicUsize::new(0),
            mapped_bytes: AtomicU64::new(0),
            mapped_bytes_max: disk.mapped_bytes_max(),
        }
    }

    /// Whether another file may stay open.
    pub(crate) fn has_room(&self) -> bool {
        self.files.load(Ordering::Relaxed) < OPEN_FILES_MAX
    }

    /// Counts bytes of address space; `false`, without effect, if they exceed the limit.
    fn take_mapped(&self, bytes: u64) -> bool {
        let before = self.mapped_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.saturating_add(bytes) <= self.mapped_bytes_max;
        if !fits {
            self.mapped_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }
}

impl OpenFile {
    /// Counts `file`; `None` if too many are open.
    pub(crate) fn of(file: &Arc<dyn DiskFile>, open: &Arc<OpenTables>) -> Option<OpenFile> {
        if open.files.fetch_add(1, Ordering::Relaxed) >= OPEN_FILES_MAX {
            open.files.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(OpenFile { file: Arc::clone(file), map: None, open: Arc::clone(open) })
    }

    /// The map of the file of `block_count` blocks as it is now: if it was changed, a new one
    /// without verified blocks. `None` if it was changed a moment ago, and if the system refuses or
    /// has no room for a map; reads are then transfers.
    pub(crate) fn map(&mut self, block_count: u32) -> Option<&Arc<TableMap>> {
        let stamp = self.file.stamp().ok().flatten();
        if self.map.as_ref().is_some_and(|map| Some(map.stamp) != stamp) {
            self.map = None;
        }
        if self.map.is_none() {
            self.map = TableMap::of(&self.file, stamp?, block_count, &self.open).map(Arc::new);
        }
        self.map.as_ref()
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.open.files.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TableMap {
    fn of(
        file: &Arc<dyn DiskFile>,
        stamp: FileStamp,
        block_count: u32,
        open: &Arc<OpenTables>,
    ) -> Option<TableMap> {
        if !open.take_mapped(stamp.len()) {
            return None;
        }
        match file.map() {
            Ok(bytes) if bytes.len() as u64 == stamp.len() => {
                let sound = (0..block_count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
                let (file, open) = (Arc::clone(file), Arc::clone(open));
                Some(TableMap { bytes, file, stamp, sound, open })
            }
            _ => {
                open.mapped_bytes.fetch_sub(stamp.len(), Ordering::Relaxed);
                None
            }
        }
    }

    /// Whether no program has changed the file since it was mapped.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.file.stamp().is_ok_and(|stamp| stamp == Some(self.stamp))
    }

    /// The range of the payload of a verified block at `block`; `None` if it must be read and
    /// verified.
    pub(crate) fn payload(&self, block_idx: u32, block: Range<usize>) -> Option<Range<usize>> {
        let word = self.sound.get(block_idx as usize / 64)?;
        let is_sound = word.load(Ordering::Relaxed) & (1 << (block_idx % 64)) != 0;
        let start = block.start.checked_add(PLAIN_PAYLOAD_AT)?;
        (is_sound && start <= block.end && block.end <= self.bytes.len())
            .then_some(start..block.end)
    }

    /// The block was read from this file after it was mapped, and verified.
    pub(crate) fn set_sound(&self, block_idx: u32) {
        if let Some(word) = self.sound.get(block_idx as usize / 64) {
            word.fetch_or(1 << (block_idx % 64), Ordering::Relaxed);
        }
    }
}

impl Drop for TableMap {
    fn drop(&mut self) {
        self.open.mapped_bytes.fetch_sub(self.stamp.len(), Ordering::Relaxed);
    }
}

impl Deref for BlockBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            BlockBytes::Read(bytes) => bytes,
            BlockBytes::Mapped(map) => &map.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use firn_env::OpenMode;
    use firn_sim::Sim;

    use super::*;

    fn open(files: usize, mapped_bytes_max: u64) -> (Arc<OpenTables>, Vec<Option<OpenFile>>) {
        let disk = Sim::new(1).env().disk;
        let open = OpenTables { mapped_bytes_max, ..OpenTables::new(&*disk) };
        let open = Arc::new(open);
        let file = disk.open("a", OpenMode::Create).unwrap();
        file.write_at(0, &[7; 100]).unwrap();
        let files = (0..files).map(|_| OpenFile::of(&file, &open)).collect();
        (open, files)
    }

    #[test]
    fn files_and_maps_are_bounded_and_released() {
        let (open, mut files) = open(OPEN_FILES_MAX + 2, 250);
        assert_eq!(files.iter().flatten().count(), OPEN_FILES_MAX);
        let maps: Vec<_> = files.iter_mut().flatten().map(|file| file.map(70)).collect();
        assert_eq!(maps.iter().flatten().count(), 2, "three exceed the limit");
        let kept = Arc::clone(maps[1].unwrap());
        drop(files);
        assert_eq!(open.files.load(Ordering::Relaxed), 0);
        assert_eq!(open.mapped_bytes.load(Ordering::Relaxed), 100, "a reader has one");
        drop(kept);
        assert_eq!(open.mapped_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn only_verified_blocks_inside_the_file_are_returned() {
        let (_open, mut files) = open(1, 1_000);
        let map = files[0].as_mut().unwrap().map(70).unwrap();
        for idx in [0, 63, 64, 69] {
            assert_eq!(map.payload(idx, 24..64), None);
            map.set_sound(idx);
            assert_eq!(map.payload(idx, 24..64), Some(24 + 9..64));
            assert_eq!(map.payload(idx, 24..100), Some(24 + 9..100));
            for block in [24..101, 24..32, usize::MAX..usize::MAX, 100..140] {
                assert_eq!(map.payload(idx, block), None);
            }
        }
        assert!(map.is_unchanged());
        // The last word has room for more blocks than the table.
        map.set_sound(1_000);
        assert_eq!(map.payload(1_000, 24..64), None);
    }
}
