//! A slab of the slow cache: pieces of tables and their offsets, written in one write.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

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
    len.saturating_add(PREAMBLE_BYTES + ENTRY_BYTES) <= slab_bytes as usize
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
        let entries_bytes = self.entries.len().saturating_add(1).saturating_mul(ENTRY_BYTES);
        let bytes = self.bytes.len().saturating_add(len).saturating_add(entries_bytes);
        bytes <= self.slab_bytes as usize
    }

    /// Adds a piece, which must fit.
    pub(super) fn push(&mut self, key: PieceKey, crc: u32, piece: &[u8]) -> SlabEntry {
        let (offset, bytes) = (slab_u32(self.bytes.len()), slab_u32(piece.len()));
        let entry = SlabEntry { key, offset, bytes, crc };
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
        let entries_at = slab_u32(bytes.len());
        assert!(are_before(&entries, entries_at), "pieces are between preamble and entries");
        let mut encoded = Vec::new();
        for entry in &entries {
            encoded.extend_from_slice(&entry.key.table.0.to_le_bytes());
            let fields = [entry.key.print, entry.key.piece, entry.offset, entry.bytes, entry.crc];
            fields.iter().for_each(|field| encoded.extend_from_slice(&field.to_le_bytes()));
        }
        bytes.extend_from_slice(&encoded);
        let mut preamble = FORMAT.header().to_vec();
        preamble.extend_from_slice(&generation.to_le_bytes());
        let entry_count = slab_u32(entries.len());
        for field in [slot, slab_bytes, entries_at, entry_count, crc32(&encoded)] {
            preamble.extend_from_slice(&field.to_le_bytes());
        }
        let crc = crc32(&preamble);
        preamble.extend_from_slice(&crc.to_le_bytes());
        let room = bytes.get_mut(..PREAMBLE_BYTES).expect("an open slab has room for it");
        room.copy_from_slice(&preamble);
        assert!(bytes.len() <= slab_bytes as usize, "a slab fits its slot");
        (bytes, entries)
    }
}

/// Whether all pieces are between the preamble and the entries at `entries_at`. The writer asserts
/// it; a reader reports `Corrupt`.
fn are_before(entries: &[SlabEntry], entries_at: u32) -> bool {
    entries.iter().all(|entry| {
        let end = entry.offset.checked_add(entry.bytes);
        entry.offset as usize >= PREAMBLE_BYTES && end.is_some_and(|end| end <= entries_at)
    })
}

/// A length or offset in a slab.
fn slab_u32(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a slab is at most 2 MiB")
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_le_bytes(*b))
}

/// The preamble of a slab.
#[derive(Debug)]
pub(super) struct Preamble {
    /// Later slabs have larger ones.
    pub(super) generation: u64,
    pub(super) entries_at: u32,
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
        let u32_at = |at| u32_at(bytes, at);
        if u32_at(44) != crc32(&bytes[..44]) {
            return bad("preamble checksum does not match");
        }
        if u32_at(24) != slot || u32_at(28) != slab_bytes {
            return bad("it was written for another slot or slab size");
        }
        let preamble = Preamble {
            generation: bytes
                .get(16..)
                .and_then(<[u8]>::first_chunk)
                .map_or(0, |b| u64::from_le_bytes(*b)),
            entries_at: u32_at(32),
            entry_count: u32_at(36),
            entries_crc: u32_at(40),
        };
        let entries_bytes = u64::from(preamble.entry_count).saturating_mul(ENTRY_BYTES as u64);
        let end = entries_bytes.saturating_add(preamble.entries_at.into());
        if end > u64::from(slab_bytes) {
            return bad("its entries do not fit into the slab");
        }
        Ok(preamble)
    }

    pub(super) fn entries_bytes(&self) -> usize {
        (self.entry_count as usize).saturating_mul(ENTRY_BYTES)
    }

    /// Decodes the entries.
    ///
    /// # Errors
    /// `Corrupt` if the checksum does not match, or a piece is outside of its slab.
    pub(super) fn entries(&self, file: &str, offset: u64, bytes: &[u8]) -> Result<Vec<SlabEntry>> {
        if crc32(bytes) != self.entries_crc {
            return Err(Error::corrupt(file, offset, "the checksum of a slab's entries is wrong"));
        }
        let entry = |bytes: &[u8]| {
            let u32_at = |at| u32_at(bytes, at);
            let table = TableId(bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b)));
            let key = PieceKey { table, print: u32_at(8), piece: u32_at(12) };
            SlabEntry { key, offset: u32_at(16), bytes: u32_at(20), crc: u32_at(24) }
        };
        let entries: Vec<SlabEntry> = bytes.chunks_exact(ENTRY_BYTES).map(entry).collect();
        if !are_before(&entries, self.entries_at) {
            return Err(Error::corrupt(file, offset, "a piece is outside of its slab"));
        }
        Ok(entries)
    }
}
