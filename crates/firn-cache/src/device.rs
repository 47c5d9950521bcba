//! The file of slabs: a superblock, then slots of equal size.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::ops::Range;
use std::sync::Arc;

use firn_codec::frame::{FileFormat, crc32};
use firn_env::{Disk, DiskFile, OpenMode};
use firn_model::{Error, ErrorKind, Result};

use crate::slab::BLOCK_BYTES;

/// The file's name in the cache's folder.
const FILE: &str = "slabs";
const SUPERBLOCK_BYTES: u64 = BLOCK_BYTES as u64;
const FORMAT: FileFormat = FileFormat { kind: *b"CACH", version: 1, oldest: 1 };
/// Bytes of the superblock that are used.
const FIELDS_BYTES: usize = 40;

/// An open file of slabs.
#[derive(Debug)]
pub(crate) struct Device {
    path: String,
    file: Arc<dyn DiskFile>,
    slab_bytes: u32,
}

impl Device {
    /// Opens the file in `folder`, or creates it if it is missing, no file, has another version,
    /// slab size or owner, or room for more than `slot_count_max` slabs: a cache can be computed
    /// again. Returns whether it is new.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails or is full.
    pub(crate) fn open(
        disk: &dyn Disk,
        folder: &str,
        (slab_bytes, slot_count_max): (u32, u32),
        owner: u64,
    ) -> Result<(Device, bool)> {
        disk.create_dir(folder)?;
        let path = format!("{folder}/{FILE}");
        let superblock = superblock(slab_bytes, owner);
        match disk.open(&path, OpenMode::Write) {
            Ok(file) => {
                let mut found = [0; FIELDS_BYTES];
                let read = file.read_at(0, &mut found);
                let device = Device { path: path.clone(), file, slab_bytes };
                // Slots beyond the limit cannot be ignored: if the limit rose again later, their
                // slabs would miss the changes until then.
                if read.is_ok() && found == superblock && device.slot_count()? <= slot_count_max {
                    return Ok((device, false));
                }
                // Removed, not truncated: a reader of the old file can still read its bytes.
                drop(device);
                disk.remove(&path)?;
            }
            // A pipe in its place.
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt { .. }) => disk.remove(&path)?,
            Err(e) if *e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        let file = disk.open(&path, OpenMode::Create)?;
        let mut block = superblock.to_vec();
        block.resize(BLOCK_BYTES, 0);
        file.write_at(0, &block)?;
        file.sync()?;
        disk.sync_dir(folder)?;
        Ok((Device { path, file, slab_bytes }, true))
    }

    /// The file's path, for messages.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Number of slots within the file's length, written or not.
    pub(crate) fn slot_count(&self) -> Result<u32> {
        let bytes = self.file.len()?.saturating_sub(SUPERBLOCK_BYTES);
        Ok(u32::try_from(bytes.div_ceil(u64::from(self.slab_bytes))).unwrap_or(u32::MAX))
    }

    /// Offset of a slot in the file.
    pub(crate) fn offset(&self, slot: u32) -> u64 {
        u64::from(slot).saturating_mul(self.slab_bytes.into()).saturating_add(SUPERBLOCK_BYTES)
    }

    /// Fills `buf` from byte `at` of a slot.
    ///
    /// # Errors
    /// `Corrupt` if the file ends before, `Unavailable` when the device fails.
    pub(crate) fn read(&self, slot: u32, at: u64, buf: &mut [u8]) -> Result<()> {
        if !self.is_inside(at, buf) {
            let what = format!("slab {slot}: its header claims more bytes than a slot has");
            return Err(Error::corrupt(&*self.path, self.offset(slot), what));
        }
        self.file.read_at(self.offset(slot).saturating_add(at), buf)
    }

    /// Like [`Device::read`], but `false` if it would wait for the device.
    pub(crate) fn read_cached(&self, slot: u32, at: u64, buf: &mut [u8]) -> bool {
        self.is_inside(at, buf) && self.file.read_cached(self.offset(slot).saturating_add(at), buf)
    }

    /// Whether bytes from `at` on are inside a slot.
    fn is_inside(&self, at: u64, buf: &[u8]) -> bool {
        at.checked_add(buf.len() as u64).is_some_and(|end| end <= self.slab_bytes.into())
    }

    /// Announces that some bytes of a slot will be read.
    pub(crate) fn will_read(&self, slot: u32, place: &Range<u64>) {
        let at = self.offset(slot).saturating_add(place.start);
        self.file.will_read(at, place.end.saturating_sub(place.start));
    }

    /// Writes a slab. Not synced: checksums reveal bytes that a crash loses.
    ///
    /// # Errors
    /// `Unavailable`; then the contents of the slot are unknown.
    pub(crate) fn write(&self, slot: u32, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= self.slab_bytes as usize, "a slab is not larger than its slot");
        self.file.write_at(self.offset(slot), bytes)
    }
}

/// Removes the file of slabs in `folder`, if there is one, because it cannot be trusted.
///
/// # Errors
/// `Unavailable` when the disk fails.
pub(crate) fn forget_slabs(disk: &dyn Disk, folder: &str) -> Result<()> {
    match disk.remove(&format!("{folder}/{FILE}")) {
        Err(e) if *e.kind() != ErrorKind::NotFound => Err(e),
        _ => disk.sync_dir(folder),
    }
}

fn superblock(slab_bytes: u32, owner: u64) -> [u8; FIELDS_BYTES] {
    let mut bytes = [0; FIELDS_BYTES];
    bytes[..16].copy_from_slice(&FORMAT.header());
    bytes[16..20].copy_from_slice(&slab_bytes.to_le_bytes());
    bytes[24..32].copy_from_slice(&owner.to_le_bytes());
    let crc = crc32(&bytes[..36]);
    bytes[36..].copy_from_slice(&crc.to_le_bytes());
    bytes
}
