//! A slab of the slow cache: pieces of tables and their offsets, written in one write.

use firn_codec::frame::{FileFormat, crc32};
use firn_model::{Error, Reservation, Result};

use super::piece_key::PieceKey;
use crate::record::TableId;

pub(super) const PREAMBLE_BYTES: usize = 48;
const ENTRY_BYTES: usize = 28;
const FORMAT: FileFormat = FileFormat { kind: *b"SLOC", version: 1, oldest: 1 };

/// A piece in a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlabEntry {
    pub(super) key: PieceKey,
    /// From the slab's start.
    pub(super) offset: u32,
    pub(super) bytes: u32,
    pub(super) crc: u32,
}

/// A slab that is not written yet.
pub(super) struct OpenSlab {
    /// Room for the preamble, then the pieces.
    bytes: Vec<u8>,
    slab_bytes: u32,
    pub(super) entries: Vec<SlabEntry>,
    _memory: Reservation,
}

/// Whether a slab can hold a piece of `len` bytes.
pub(super) fn fits(len: usize, slab_bytes: u32) -> bool {
    PREAMBLE_BYTES + len + ENTRY_BYTES <= slab_bytes as usize
}

impl OpenSlab {
    /// An empty slab of `slab_bytes`, which `memory` accounts for.
    pub(super) fn new(slab_bytes: u32, memory: Reservation) -> OpenSlab {
        let mut bytes = Vec::with_capacity(slab_bytes as usize);
        bytes.resize(PREAMBLE_BYTES, 0);
        OpenSlab { bytes, slab_bytes, entries: Vec::new(), _memory: memory }
    }

    /// Whether a piece of `len` bytes still fits.
    pub(super) fn has_room(&self, len: usize) -> bool {
        let entries_bytes = (self.entries.len() + 1) * ENTRY_BYTES;
        self.bytes.len() + len + entries_bytes <= self.slab_bytes as usize
    }

    /// Adds a piece, which must fit.
    pub(super) fn push(&mut self, key: PieceKey, crc: u32, piece: &[u8]) -> SlabEntry {
        let entry =
            SlabEntry { key, offset: self.bytes.len() as u32, bytes: piece.len() as u32, crc };
        self.bytes.extend_from_slice(piece);
        self.entries.push(entry);
        entry
    }

    /// The bytes of a piece.
    pub(super) fn piece(&self, offset: u32, bytes: u32) -> Option<&[u8]> {
        self.bytes.get(offset as usize..)?.get(..bytes as usize)
    }

    /// The bytes of the slab, and its entries.
    pub(super) fn encode(self, slot: u32, generation: u64) -> (Vec<u8>, Vec<SlabEntry>) {
        let OpenSlab { mut bytes, slab_bytes, entries, .. } = self;
        let entries_at = bytes.len();
        for entry in &entries {
            bytes.extend_from_slice(&entry.key.table.0.to_le_bytes());
            let fields = [entry.key.print, entry.key.piece, entry.offset, entry.bytes, entry.crc];
            fields.iter().for_each(|field| bytes.extend_from_slice(&field.to_le_bytes()));
        }
        let mut preamble = FORMAT.header().to_vec();
        preamble.extend_from_slice(&generation.to_le_bytes());
        let entries_crc = crc32(&bytes[entries_at..]);
        for field in [slot, slab_bytes, entries_at as u32, entries.len() as u32, entries_crc] {
            preamble.extend_from_slice(&field.to_le_bytes());
        }
        let crc = crc32(&preamble);
        preamble.extend_from_slice(&crc.to_le_bytes());
        bytes[..PREAMBLE_BYTES].copy_from_slice(&preamble);
        assert!(bytes.len() <= slab_bytes as usize, "a slab fits its place");
        (bytes, entries)
    }
}

/// The preamble of a slab.
#[derive(Debug)]
pub(super) struct Preamble {
    /// Later slabs have larger ones.
    pub(super) generation: u64,
    pub(super) entries_at: u32,
    slab_bytes: u32,
    entry_count: u32,
    entries_crc: u32,
}

impl Preamble {
    /// # Errors
    /// `Corrupt` if no slab of this slot and size was completely written; `Invalid` for another
    /// version.
    pub(super) fn decode(
        file: &str,
        offset: u64,
        bytes: &[u8; PREAMBLE_BYTES],
        slot: u32,
        slab_bytes: u32,
    ) -> Result<Preamble> {
        FORMAT.check(file, bytes)?;
        let bad = |what: &str| Err(Error::corrupt(file, offset, format!("slab {slot}: {what}")));
        let u32_at = |at: usize| bytes[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        if u32_at(44) != crc32(&bytes[..44]) {
            return bad("preamble checksum does not match");
        }
        if u32_at(24) != slot || u32_at(28) != slab_bytes {
            return bad("it was written for another slot or slab size");
        }
        let preamble = Preamble {
            generation: bytes[16..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b)),
            slab_bytes,
            entries_at: u32_at(32),
            entry_count: u32_at(36),
            entries_crc: u32_at(40),
        };
        let end = u64::from(preamble.entry_count) * ENTRY_BYTES as u64;
        if end + u64::from(preamble.entries_at) > u64::from(slab_bytes) {
            return bad("its entries do not fit into the slab");
        }
        Ok(preamble)
    }

    pub(super) fn entries_bytes(&self) -> usize {
        self.entry_count as usize * ENTRY_BYTES
    }

    /// Decodes the entries.
    ///
    /// # Errors
    /// `Corrupt` if the checksum does not match.
    pub(super) fn entries(&self, file: &str, offset: u64, bytes: &[u8]) -> Result<Vec<SlabEntry>> {
        if crc32(bytes) != self.entries_crc {
            return Err(Error::corrupt(file, offset, "the checksum of a slab's entries is wrong"));
        }
        let entry = |bytes: &[u8]| {
            let u32_at =
                |at: usize| bytes[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
            let table = TableId(bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b)));
            let key = PieceKey { table, print: u32_at(8), piece: u32_at(12) };
            SlabEntry { key, offset: u32_at(16), bytes: u32_at(20), crc: u32_at(24) }
        };
        let entries: Vec<SlabEntry> = bytes.chunks_exact(ENTRY_BYTES).map(entry).collect();
        let fits = |entry: &SlabEntry| {
            entry.offset.checked_add(entry.bytes).is_some_and(|end| end <= self.slab_bytes)
        };
        if !entries.iter().all(fits) {
            return Err(Error::corrupt(file, offset, "a piece is outside of its slab"));
        }
        Ok(entries)
    }
}
