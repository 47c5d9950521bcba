//! The layout of a slab, and the decoder of its preamble and header.

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
use firn_codec::varint::{take_bytes, take_count, take_varint, take_zigzag};
use firn_model::{CommitSeq, Error, Result, TimeRange, Timestamp};

/// The unit of markers and of reading. 4 KiB was best in the paper (TSCache 5.4.1).
pub(crate) const BLOCK_BYTES: usize = 4 << 10;
/// Bytes of the preamble.
pub(crate) const PREAMBLE_BYTES: usize = 64;
/// Bits of a bit array; doubled when a slab has more keys.
pub(crate) const KEYS_MIN: usize = 128;
/// Limits that are checked before memory is allocated for a header.
const KEYS_MAX: usize = 1 << 16;
const ITEMS_MAX: usize = 1 << 20;
pub(super) const MARKER_BYTES: usize = 18;
/// The offset of a block in which no point begins.
pub(super) const NO_POINT: u16 = u16::MAX;
const FLAG_COMPACTED: u32 = 1;
const FLAG_DOUBTED: u32 = 2;

const FORMAT: FileFormat = FileFormat { kind: *b"SLAB", version: 1, oldest: 1 };

const _: () = assert!(BLOCK_BYTES < NO_POINT as usize, "offsets in a block fit");

/// The preamble of a slab: enough to decide whether the rest is worth reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preamble {
    /// Unique among all slabs ever written to this file; later slabs have larger ones.
    pub(crate) generation: u64,
    /// The slot that it was written for.
    pub(crate) slot: u32,
    /// The field of all its points.
    pub(crate) field: u64,
    /// Its extents reflect every change up to this one.
    pub(crate) heard: CommitSeq,
    /// Whether compaction wrote it.
    pub(crate) is_compacted: bool,
    /// Whether it is kept at open only if the checkpoint lists it.
    pub(crate) is_doubted: bool,
    /// Bytes of the header after the preamble.
    pub(crate) header_bytes: u32,
    /// Bytes of the data.
    pub(crate) data_bytes: u32,
    pub(super) header_crc: u32,
}

/// A slab's header, decoded.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) preamble: Preamble,
    /// The key array: a key's position is its bit in the bit arrays.
    pub(crate) keys: Vec<SlabKey>,
    /// The distinct bit arrays.
    sets: Vec<Box<[u8]>>,
    /// The heads that points share.
    heads: Vec<Arc<[u8]>>,
    markers: Vec<Marker>,
}

/// One key of a slab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlabKey {
    /// The key's text.
    pub(crate) text: Arc<[u8]>,
    /// Bytes that its owner gets back after a restart.
    pub(crate) note: Arc<[u8]>,
    /// The ranges that were complete here when the slab was written, ordered, not overlapping.
    pub(crate) extents: Vec<Extent>,
}

/// A range of time that is complete for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The timestamps.
    pub(crate) range: TimeRange,
    /// The snapshot that it was computed from.
    pub(crate) number: CommitSeq,
}

/// The start of a block's points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marker {
    /// The bit array of the first point that begins in the block, or of the point that covers the
    /// block.
    pub(super) set: u32,
    /// The time of that point.
    pub(super) ts: Timestamp,
    /// The offset in the block at which it begins, or [`NO_POINT`].
    pub(super) offset: u16,
    pub(super) crc: u32,
}

/// A point as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredPoint<'a> {
    pub(crate) ts: Timestamp,
    /// The index of its bit array.
    pub(crate) set: u32,
    /// The index of its head.
    pub(crate) head: Option<u32>,
    pub(crate) payload: &'a [u8],
}

impl Preamble {
    /// Decodes the preamble of slot `slot` of `file`.
    ///
    /// # Errors
    /// `Corrupt` if no slab of this slot was completely written there; `Invalid` for another
    /// version.
    pub(crate) fn decode(file: &str, offset: u64, slot: u32, bytes: &[u8]) -> Result<Preamble> {
        let bad = |what: &str| Err(Error::corrupt(file, offset, format!("slab {slot}: {what}")));
        let Some(bytes) = bytes.first_chunk::<PREAMBLE_BYTES>() else {
            return bad("its preamble is cut short");
        };
        FORMAT.check(file, bytes)?;
        if u32_at(bytes, 60) != crc32(&bytes[..60]) {
            return bad("preamble checksum does not match");
        }
        let preamble = Preamble {
            generation: u64_at(bytes, 16),
            slot: u32_at(bytes, 24),
            field: u64_at(bytes, 28),
            heard: CommitSeq(u64_at(bytes, 36)),
            is_compacted: u32_at(bytes, 44) & FLAG_COMPACTED != 0,
            is_doubted: u32_at(bytes, 44) & FLAG_DOUBTED != 0,
            header_bytes: u32_at(bytes, 48),
            data_bytes: u32_at(bytes, 52),
            header_crc: u32_at(bytes, 56),
        };
        if preamble.slot != slot {
            return bad("it was written for another slot");
        }
        Ok(preamble)
    }

    pub(super) fn encode(&self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[..16].copy_from_slice(&FORMAT.header());
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.slot.to_le_bytes());
        bytes[28..36].copy_from_slice(&self.field.to_le_bytes());
        bytes[36..44].copy_from_slice(&self.heard.0.to_le_bytes());
        let flags = [(self.is_compacted, FLAG_COMPACTED), (self.is_doubted, FLAG_DOUBTED)];
        let flags: u32 = flags.iter().filter(|flag| flag.0).map(|flag| flag.1).sum();
        bytes[44..48].copy_from_slice(&flags.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.header_bytes.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.data_bytes.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.header_crc.to_le_bytes());
        let crc = crc32(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Offset of the data from the slab's start: a multiple of the block size.
    pub(crate) fn data_at(&self) -> u64 {
        let end = (PREAMBLE_BYTES as u64).saturating_add(self.header_bytes.into());
        end.next_multiple_of(BLOCK_BYTES as u64)
    }

    /// Bytes of the slab up to the end of its data.
    pub(crate) fn slab_bytes(&self) -> u64 {
        self.data_at().saturating_add(self.data_bytes.into())
    }
}

impl Header {
    /// Decodes the header that follows a preamble.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn decode(
        file: &str,
        offset: u64,
        preamble: Preamble,
        bytes: &[u8],
    ) -> Result<Header> {
        if crc32(bytes) != preamble.header_crc {
            let what = format!("slab {}: header checksum does not match", preamble.slot);
            return Err(Error::corrupt(file, offset, what));
        }
        let mut input = bytes;
        let decoded = Header::take(preamble, &mut input).and_then(|header| {
            header.check_order()?;
            Ok(header)
        });
        decoded.map_err(|e| Error::corrupt(file, offset, e.what().to_owned()))
    }

    fn take(preamble: Preamble, input: &mut &[u8]) -> Result<Header> {
        let key_count = take_count(input, KEYS_MAX, "keys of a slab")?;
        let mut keys = Vec::new();
        for _ in 0..key_count {
            keys.push(take_key(input)?);
        }
        let set_count = take_count(input, ITEMS_MAX, "bit arrays")?;
        let mut sets = Vec::new();
        for _ in 0..set_count {
            sets.push(Box::from(take_text(input, "bit array")?));
        }
        let head_count = take_count(input, ITEMS_MAX, "heads")?;
        let mut heads = Vec::new();
        for _ in 0..head_count {
            heads.push(Arc::from(take_text(input, "head")?));
        }
        let block_count = (preamble.data_bytes as usize).div_ceil(BLOCK_BYTES);
        let mut markers = Vec::new();
        for _ in 0..block_count {
            let bytes = take_bytes(input, MARKER_BYTES, "marker")?;
            markers.push(Marker {
                set: u32_at(bytes, 0),
                ts: u64_at(bytes, 4) as i64,
                offset: u16_at(bytes, 12),
                crc: u32_at(bytes, 14),
            });
        }
        Ok(Header { preamble, keys, sets, heads, markers })
    }

    /// Checks the order that readers rely on; [`super::encode`] asserts the same before writing.
    ///
    /// # Errors
    /// `Corrupt` if extents overlap or markers are out of order.
    pub(super) fn check_order(&self) -> Result<()> {
        let bad = |problem: &'static str| Err(Error::corrupt("slab", 0, problem));
        let follows = |a: &Extent, b: &Extent| a.range.end < b.range.start;
        if !self.keys.iter().all(|key| key.extents.is_sorted_by(follows)) {
            return bad("the extents of a key overlap");
        }
        if !self.markers.is_sorted_by_key(|marker| (marker.set, marker.ts)) {
            return bad("the markers are out of order");
        }
        Ok(())
    }

    /// The position of a key.
    pub(crate) fn position(&self, text: &[u8]) -> Option<usize> {
        self.keys.iter().position(|key| *key.text == *text)
    }

    /// Whether points with bit array `set` belong to the key at `position`.
    pub(crate) fn has_key(&self, set: u32, position: usize) -> bool {
        let bits = self.sets.get(set as usize);
        let byte = bits.and_then(|bits| bits.get(position / 8));
        byte.is_some_and(|byte| byte & (1 << (position % 8)) != 0)
    }

    /// The positions of the keys that have points with bit array `set`.
    pub(crate) fn positions(&self, set: u32) -> impl Iterator<Item = usize> + '_ {
        (0..self.keys.len()).filter(move |&position| self.has_key(set, position))
    }

    /// A head.
    pub(crate) fn head(&self, head: u32) -> Option<&Arc<[u8]>> {
        self.heads.get(head as usize)
    }

    /// Approximate memory.
    #[cfg_attr(
        not(test),
        expect(clippy::arithmetic_side_effects, reason = "sums of sizes of allocations")
    )]
    pub(crate) fn heap_bytes(&self) -> u64 {
        let key = |key: &SlabKey| 96 + key.text.len() + key.note.len() + size_of_val(&*key.extents);
        let keys: usize = self.keys.iter().map(key).sum();
        let sets: usize = self.sets.iter().map(|set| 24 + set.len()).sum();
        let heads: usize = self.heads.iter().map(|head| 32 + head.len()).sum();
        (keys + sets + heads + size_of_val(&*self.markers)) as u64
    }

    /// The bit arrays that have the key at `position`.
    pub(crate) fn sets_of(&self, position: usize) -> impl Iterator<Item = u32> + '_ {
        (0..).take(self.sets.len()).filter(move |&set| self.has_key(set, position))
    }

    /// The blocks with points of `range` that have bit array `set`.
    pub(crate) fn blocks(&self, set: u32, range: TimeRange) -> Range<usize> {
        let markers = &self.markers;
        let (start, end) = ((set, range.start), (set, range.end));
        let before = |marker: &Marker| (marker.set, marker.ts) < start;
        let mut first = markers.partition_point(before).saturating_sub(1);
        let covers = |idx: usize| markers.get(idx).is_some_and(|one| one.offset == NO_POINT);
        while first > 0 && covers(first) {
            first = first.saturating_sub(1);
        }
        let mut end = markers.partition_point(|marker| (marker.set, marker.ts) <= end);
        // The last point may end in the block where the first later one begins.
        if markers.get(end).is_some_and(|marker| marker.offset > 0) {
            end = end.saturating_add(1);
        }
        first..end.max(first)
    }

    /// The bytes of `blocks`, from the slab's start.
    pub(crate) fn bytes_of(&self, blocks: &Range<usize>) -> Range<u64> {
        let at = self.preamble.data_at();
        let start = blocks.start.saturating_mul(BLOCK_BYTES) as u64;
        let end = blocks.end.saturating_mul(BLOCK_BYTES).min(self.preamble.data_bytes as usize);
        at.saturating_add(start)..at.saturating_add(end as u64)
    }

    /// Compares the checksums of `blocks`.
    ///
    /// # Errors
    /// `Corrupt` if a block is not the one that was written.
    pub(crate) fn check(&self, file: &str, blocks: &Range<usize>, bytes: &[u8]) -> Result<()> {
        for (idx, block) in blocks.clone().zip(bytes.chunks(BLOCK_BYTES)) {
            if self.markers.get(idx).is_none_or(|marker| marker.crc != crc32(block)) {
                return Err(self.corrupt(file, idx, "checksum does not match"));
            }
        }
        Ok(())
    }

    fn corrupt(&self, file: &str, block: usize, problem: &str) -> Error {
        let at = self.preamble.data_at().saturating_add(block.saturating_mul(BLOCK_BYTES) as u64);
        let slot = self.preamble.slot;
        Error::corrupt(
            file,
            at,
            format!("slab {slot} block {block}: {problem}; the slab is dropped"),
        )
    }

    /// Calls `take` with the points in the bytes of checked `blocks`, in order, until it returns
    /// `false`. The last point may be cut off where the blocks end.
    ///
    /// # Errors
    /// `Corrupt` if the bytes cannot be decoded.
    pub(crate) fn walk<'a>(
        &self,
        file: &str,
        blocks: &Range<usize>,
        bytes: &'a [u8],
        take: &mut dyn FnMut(StoredPoint<'a>) -> bool,
    ) -> Result<()> {
        let Some(marker) = self.markers.get(blocks.start).filter(|_| !blocks.is_empty()) else {
            return Ok(());
        };
        let mut input = bytes.get(usize::from(marker.offset)..).unwrap_or_default();
        let mut ts = marker.ts;
        let mut is_first = true;
        while !input.is_empty() {
            let point = match take_point(&mut input, ts, is_first) {
                Ok(point) => point,
                Err(_) if blocks.end < self.markers.len() => return Ok(()),
                Err(e) => return Err(self.corrupt(file, blocks.start, e.what())),
            };
            (ts, is_first) = (point.ts, false);
            if !take(point) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Calls `take` with the points of `range` with bit array `set` in the bytes of its blocks, in
    /// order.
    ///
    /// # Errors
    /// `Corrupt` if the bytes cannot be decoded.
    pub(crate) fn walk_set<'a>(
        &self,
        file: &str,
        set: u32,
        range: TimeRange,
        bytes: &'a [u8],
        take: &mut dyn FnMut(StoredPoint<'a>),
    ) -> Result<()> {
        self.walk(file, &self.blocks(set, range), bytes, &mut |point| {
            if point.set == set && range.contains(point.ts) {
                take(point);
            }
            (point.set, point.ts) <= (set, range.end)
        })
    }
}

fn take_point<'a>(
    input: &mut &'a [u8],
    before: Timestamp,
    is_first: bool,
) -> Result<StoredPoint<'a>> {
    let delta = take_varint(input, "time of a point")?;
    // The first point of a block has its time in the marker; the time before it is unknown here.
    let ts = if is_first { before } else { before.wrapping_add(delta as i64) };
    let set = take_u32(input, "bit array of a point")?;
    let head = take_u32(input, "head of a point")?;
    let len = take_count(input, u32::MAX as usize, "bytes of a point")?;
    let payload = take_bytes(input, len, "point")?;
    Ok(StoredPoint { ts, set, head: head.checked_sub(1), payload })
}

fn take_key(input: &mut &[u8]) -> Result<SlabKey> {
    let text = Arc::from(take_text(input, "key")?);
    let note = Arc::from(take_text(input, "note of a key")?);
    let extent_count = take_count(input, ITEMS_MAX, "extents")?;
    let mut extents = Vec::new();
    for _ in 0..extent_count {
        extents.push(take_extent(input)?);
    }
    Ok(SlabKey { text, note, extents })
}

/// Decodes an extent of [`super::put_extent`].
///
/// # Errors
/// `Corrupt`, also for an empty range.
pub(crate) fn take_extent(input: &mut &[u8]) -> Result<Extent> {
    let start = take_zigzag(input, "start of an extent")?;
    let end = start.wrapping_add(take_varint(input, "length of an extent")? as i64);
    let number = CommitSeq(take_varint(input, "number of an extent")?);
    if end < start {
        return Err(Error::corrupt("extent", 0, "an extent ends before it starts"));
    }
    Ok(Extent { range: TimeRange { start, end }, number })
}

/// An index below [`ITEMS_MAX`].
fn take_u32(input: &mut &[u8], name: &'static str) -> Result<u32> {
    let index = take_count(input, ITEMS_MAX, name)?;
    u32::try_from(index).map_err(|_| Error::corrupt("slab", 0, name))
}

fn take_text<'a>(input: &mut &'a [u8], what: &'static str) -> Result<&'a [u8]> {
    let len = take_count(input, u32::MAX as usize, what)?;
    take_bytes(input, len, what)
}

/// The integer at `at`; 0 if there are fewer bytes, which callers exclude.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(chunk_at(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(chunk_at(bytes, at))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(chunk_at(bytes, at))
}

fn chunk_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let chunk = bytes.get(at..).and_then(|bytes| bytes.first_chunk::<N>());
    chunk.copied().unwrap_or([0; N])
}
