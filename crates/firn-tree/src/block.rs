//! Blocks: chunks of some groups under one checksum, the unit of reading and of damage.
//!
//! ```text
//! block     = body_bytes:u32 crc32:u32 body
//! body      = 0:u8 payload                               plain
//!           | 1:u8 varint(payload bytes) zstd(payload)   packed
//! payload   = varint(chunk count) directory chunks
//! directory = varint(group - previous group) varint(chunk bytes), per chunk
//! ```
//! The checksum covers the table's salt, the block's offset, `body_bytes` and the body: a block
//! that was moved, or that belongs to another table, does not match. A block starts with its
//! length, so a table can be walked without its suffix.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::borrow::Cow;
use std::ops::Range;

use firn_codec::frame::crc32_parts;
use firn_codec::varint::{take_count, take_varint};
use firn_model::{Error, GroupId, Result, encode_varint};
use zstd::bulk::Compressor;

pub(crate) const BLOCK_HEADER_BYTES: usize = 8;
/// The offset of the payload in a plain block.
pub(crate) const PLAIN_PAYLOAD_AT: usize = BLOCK_HEADER_BYTES + 1;
/// A block contains some ten KiB and at most one chunk more; a larger length is damaged.
pub(crate) const BLOCK_BYTES_MAX: usize = 64 << 20;
const FORM_PLAIN: u8 = 0;
const FORM_PACKED: u8 = 1;
// Packing must save enough to pay for unpacking at every read: some 50 us for 64 KiB.
const PACKED_SAVES_AT_LEAST: usize = 16;

/// Collects the chunks of one block.
#[derive(Default)]
pub(crate) struct BlockBuilder {
    directory: Vec<u8>,
    chunks: Vec<u8>,
    chunk_count: u32,
    last_group: u64,
}

impl BlockBuilder {
    pub(crate) fn is_empty(&self) -> bool {
        self.chunk_count == 0
    }

    /// Bytes of the payload so far.
    pub(crate) fn bytes(&self) -> usize {
        self.directory.len().saturating_add(self.chunks.len())
    }

    /// Adds a chunk; groups must not fall.
    pub(crate) fn push(&mut self, group: GroupId, chunk: &[u8]) {
        let step = group.0.checked_sub(self.last_group).expect("groups of a block never fall");
        encode_varint(step, &mut self.directory);
        encode_varint(chunk.len() as u64, &mut self.directory);
        self.chunks.extend_from_slice(chunk);
        self.last_group = group.0;
        self.chunk_count = self.chunk_count.saturating_add(1);
    }

    /// Appends the block, which will be at `offset` of the table with `salt`, and starts an empty
    /// one. A `packer` packs it if that saves a sixteenth.
    pub(crate) fn seal(
        &mut self,
        salt: u32,
        offset: u64,
        packer: Option<&mut Compressor<'static>>,
        out: &mut Vec<u8>,
    ) {
        let header_at = out.len();
        out.extend_from_slice(&[0; BLOCK_HEADER_BYTES]);
        let body_at = out.len();
        out.push(FORM_PLAIN);
        let payload_at = out.len();
        encode_varint(self.chunk_count.into(), out);
        out.append(&mut self.directory);
        out.append(&mut self.chunks);
        let payload = out.get(payload_at..).unwrap_or_default();
        let directory = Block::open("", offset, payload).and_then(|block| block.chunks_at());
        assert!(directory.is_ok(), "the directory of a block differs from its chunks");
        if let Some(packer) = packer {
            pack(packer, body_at, payload_at, out);
        }
        let body = out.get(body_at..).unwrap_or_default();
        let body_bytes =
            u32::try_from(body.len()).expect("a block is bounded by block_bytes and one chunk");
        let checksum = checksum(salt, offset, body_bytes, body);
        // The checksum follows the length.
        let header = (u64::from(checksum) << 32) | u64::from(body_bytes);
        let stored = out.get_mut(header_at..body_at).expect("the header's bytes were appended");
        stored.copy_from_slice(&header.to_le_bytes());
        *self = BlockBuilder {
            directory: std::mem::take(&mut self.directory),
            chunks: std::mem::take(&mut self.chunks),
            ..BlockBuilder::default()
        };
    }
}

/// Packs the plain body at `body_at`, whose payload at `payload_at` is the rest of `out`, if that
/// saves enough. A reader refuses to unpack more than [`BLOCK_BYTES_MAX`].
fn pack(packer: &mut Compressor<'static>, body_at: usize, payload_at: usize, out: &mut Vec<u8>) {
    let payload = out.get(payload_at..).unwrap_or_default();
    let payload_bytes = payload.len();
    if payload_bytes > BLOCK_BYTES_MAX {
        return;
    }
    // Packing fails only for lack of memory; a plain block is as valid.
    let Ok(packed) = packer.compress(payload) else { return };
    if packed.len().saturating_add(payload_bytes / PACKED_SAVES_AT_LEAST) >= payload_bytes {
        return;
    }
    out.truncate(body_at);
    out.push(FORM_PACKED);
    encode_varint(payload_bytes as u64, out);
    out.extend_from_slice(&packed);
}

/// The payload of the block `bytes`: borrowed from their end, or unpacked.
///
/// # Errors
/// `Corrupt` with `file` and `offset`, also for a form that this version cannot read.
pub(crate) fn unpack<'a>(
    file: &str,
    offset: u64,
    salt: u32,
    bytes: &'a [u8],
) -> Result<Cow<'a, [u8]>> {
    let bad = |what: String| Error::corrupt(file, offset, what);
    let (header, body) = bytes
        .split_first_chunk::<BLOCK_HEADER_BYTES>()
        .ok_or_else(|| bad("block is cut short".into()))?;
    let [b0, b1, b2, b3, c0, c1, c2, c3] = *header;
    let body_bytes = u32::from_le_bytes([b0, b1, b2, b3]);
    let found = u32::from_le_bytes([c0, c1, c2, c3]);
    let expected = checksum(salt, offset, body_bytes, body);
    if found != expected || u64::from(body_bytes) != body.len() as u64 {
        return Err(bad(format!(
            "block checksum {found:#010x}, expected {expected:#010x} over {} bytes; other blocks \
             stay readable: run `firn check --repair`",
            body.len()
        )));
    }
    match body.split_first() {
        Some((&FORM_PLAIN, payload)) => Ok(Cow::Borrowed(payload)),
        Some((&FORM_PACKED, mut packed)) => {
            let payload_bytes = take_count(&mut packed, BLOCK_BYTES_MAX, "payload bytes")
                .map_err(|e| bad(e.what().into()))?;
            let payload = zstd::bulk::decompress(packed, payload_bytes)
                .map_err(|e| bad(format!("block does not unpack: {e}")))?;
            if payload.len() != payload_bytes {
                return Err(bad("block unpacks to another length than it states".into()));
            }
            Ok(Cow::Owned(payload))
        }
        _ => {
            Err(bad("block has a form that this version cannot read; start a newer version".into()))
        }
    }
}

/// The chunks of a block.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    payload: &'a [u8],
    chunk_count: usize,
    /// The directory and the chunks after it.
    rest: &'a [u8],
}

impl<'a> Block<'a> {
    /// Opens a payload of [`unpack`].
    ///
    /// # Errors
    /// `Corrupt` with `file` and `offset` if it cannot be a block.
    pub(crate) fn open(file: &str, offset: u64, payload: &'a [u8]) -> Result<Block<'a>> {
        let mut rest = payload;
        let chunk_count = take_count(&mut rest, payload.len(), "chunk count")
            .map_err(|e| Error::corrupt(file, offset, e.what()))?;
        Ok(Block { payload, chunk_count, rest })
    }

    /// Bytes of the block that starts with `header`; `None` if the header is too short.
    pub(crate) fn bytes_of(header: &[u8]) -> Option<u64> {
        let body_bytes = u32::from_le_bytes(*header.first_chunk::<4>()?);
        Some((BLOCK_HEADER_BYTES as u64).saturating_add(body_bytes.into()))
    }

    /// Calls `f` with each chunk's group and bytes, in order, until it returns [`Walk::Stop`].
    ///
    /// # Errors
    /// `Corrupt` (without file and offset) if the directory does not match the payload; those of
    /// `f`.
    pub(crate) fn for_chunks(
        &self,
        mut f: impl FnMut(GroupId, &'a [u8]) -> Result<Walk>,
    ) -> Result<()> {
        self.for_ranges(|group, range| f(group, self.payload.get(range).unwrap_or_default()))
    }

    /// Like [`Block::for_chunks`], with each chunk's range in the payload.
    pub(crate) fn for_ranges(
        &self,
        mut f: impl FnMut(GroupId, Range<usize>) -> Result<Walk>,
    ) -> Result<()> {
        // The directory is walked twice: first to find where the chunks begin.
        let mut start = self.chunks_at()?;
        let mut directory = self.rest;
        let mut group = 0u64;
        for _ in 0..self.chunk_count {
            group = group.wrapping_add(take_varint(&mut directory, "group")?);
            let left = self.payload.len().saturating_sub(start);
            let end = start.saturating_add(take_count(&mut directory, left, "chunk bytes")?);
            if f(GroupId(group), start..end)? == Walk::Stop {
                break;
            }
            start = end;
        }
        Ok(())
    }

    /// The offset of the first chunk in the payload. The writer asserts that this succeeds.
    ///
    /// # Errors
    /// `Corrupt` (without file and offset) if groups fall or the chunks do not fill the payload.
    fn chunks_at(&self) -> Result<usize> {
        let bad = |what: &str| Error::corrupt("", 0, what);
        let mut chunks = self.rest;
        let (mut group, mut chunk_bytes) = (0u64, 0u64);
        for _ in 0..self.chunk_count {
            let next = group.checked_add(take_varint(&mut chunks, "group")?);
            group = next.ok_or_else(|| bad("groups of a block fall"))?;
            chunk_bytes = chunk_bytes.saturating_add(take_varint(&mut chunks, "chunk bytes")?);
        }
        if chunk_bytes != chunks.len() as u64 {
            return Err(bad("the chunks of a block have another length than its directory has"));
        }
        Ok(self.payload.len().saturating_sub(chunks.len()))
    }
}

/// Whether a walk continues.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walk {
    On,
    Stop,
}

fn checksum(salt: u32, offset: u64, body_bytes: u32, body: &[u8]) -> u32 {
    crc32_parts(&[&salt.to_le_bytes(), &offset.to_le_bytes(), &body_bytes.to_le_bytes(), body])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: [u8; 600] = [7; 600];

    fn sample(packer: Option<&mut Compressor<'static>>) -> Vec<u8> {
        let mut builder = BlockBuilder::default();
        builder.push(GroupId(3), b"three");
        builder.push(GroupId(3), &LONG);
        builder.push(GroupId(u64::MAX), b"");
        let mut out = b"before".to_vec();
        builder.seal(7, 100, packer, &mut out);
        assert!(builder.is_empty() && builder.bytes() == 0);
        out.split_off(6)
    }

    #[test]
    fn chunks_are_read_back() {
        let plain = sample(None);
        let packed = sample(Some(&mut Compressor::new(9).unwrap()));
        assert!(plain.len() > LONG.len() && packed.len() < 100, "{} bytes", packed.len());
        for bytes in [plain, packed] {
            assert_eq!(Block::bytes_of(&bytes), Some(bytes.len() as u64));
            let payload = unpack("t", 100, 7, &bytes).unwrap();
            let block = Block::open("t", 100, &payload).unwrap();
            let mut seen = Vec::new();
            block
                .for_chunks(|group, chunk| {
                    seen.push((group.0, chunk.to_vec()));
                    Ok(if seen.len() == 2 { Walk::Stop } else { Walk::On })
                })
                .unwrap();
            assert_eq!(seen, [(3, b"three".to_vec()), (3, LONG.to_vec())]);
        }
    }

    #[test]
    fn a_directory_that_differs_from_its_chunks_is_refused() {
        let f = |payload: &[u8]| -> Result<()> {
            Block::open("t", 0, payload)?.for_chunks(|_, _| Ok(Walk::On))
        };
        f(&[2, 5, 1, 0, 1, b'a', b'b']).unwrap();
        let falling = [&[2, 5, 1][..], &[0xff; 9], &[1, 1, b'a', b'b']].concat();
        for payload in [&falling[..], &[1, 5, 2, b'a'], &[1, 5, 1, b'a', b'b'], &[1, 5]] {
            assert!(matches!(
                f(payload).unwrap_err().kind(),
                firn_model::ErrorKind::Corrupt { .. }
            ));
        }
    }

    #[test]
    fn incompressible_blocks_stay_plain() {
        let mut builder = BlockBuilder::default();
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) as u8
        };
        let noise: Vec<u8> = (0..600).map(|_| next()).collect();
        builder.push(GroupId(1), &noise);
        let mut out = Vec::new();
        builder.seal(7, 100, Some(&mut Compressor::new(9).unwrap()), &mut out);
        assert_eq!(out[BLOCK_HEADER_BYTES], FORM_PLAIN);
    }

    #[test]
    fn a_packed_block_with_a_wrong_length_is_refused() {
        // 64 MiB and one byte; a checksum that fits.
        for (payload_bytes, want) in [((64u64 << 20) + 1, "payload bytes"), (10, "unpack")] {
            let mut body = vec![FORM_PACKED];
            encode_varint(payload_bytes, &mut body);
            body.extend(zstd::bulk::compress(&LONG, 1).unwrap());
            let body_bytes = body.len() as u32;
            let mut bytes = body_bytes.to_le_bytes().to_vec();
            bytes.extend(checksum(7, 100, body_bytes, &body).to_le_bytes());
            bytes.extend(body);
            let error = unpack("t", 100, 7, &bytes).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn invariant_5_every_flipped_bit_and_every_move_is_detected() {
        for bytes in [sample(None), sample(Some(&mut Compressor::new(9).unwrap()))] {
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let error = unpack("t", 100, 7, &flipped).unwrap_err();
                assert!(error.to_string().starts_with("t at byte 100: "), "{error}");
            }
            assert!(unpack("t", 101, 7, &bytes).is_err(), "moved");
            assert!(unpack("t", 100, 8, &bytes).is_err(), "of another table");
            for len in 0..bytes.len() {
                assert!(unpack("t", 100, 7, &bytes[..len]).is_err());
            }
        }
    }
}
