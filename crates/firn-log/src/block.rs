//! Blocks: the unit of atomicity. A block is a header, a checksum and entries; it is valid as a
//! whole or not at all.
//!
//! Entries of one group commit share blocks of about [`BLOCK_BYTES`]. A damaged byte then costs at
//! most one block, and headers stay below a thousandth of the bytes. The entries of one append are
//! never split over two blocks, so an append is replayed whole or not at all. The checksum also
//! covers the segment's nonce and the block's position. Old bytes of a reused disk region and
//! blocks at another position therefore fail the check.
//!
//! Source: DecLog (PVLDB), section 4.4.2 (entries of a group in aligned blocks) and section 4.6 (an
//! incomplete block is not replayed). The paper's blocks end with an end flag; these carry a
//! checksum.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_model::{CommitSeq, LogPosition};

use crate::entry::{self, EntryRef};

/// Tag, checksum, length, entry count, durable mark.
pub(crate) const HEADER_BYTES: usize = 24;

/// Blocks begin at multiples of this. After a damaged block, the search for the next one steps by
/// it.
pub(crate) const ALIGN_BYTES: usize = 8;

/// A block of this size is closed. Damage costs about this much, and one header per 32 KiB costs
/// nothing.
const BLOCK_BYTES: usize = 32 << 10;

const _: () = assert!(HEADER_BYTES.is_multiple_of(ALIGN_BYTES));

/// The most bytes that appending `entries` adds to a [`BlockBuffer`].
pub(crate) fn bytes_max(entries: &[EntryRef<'_>]) -> usize {
    // Padding of the previous block, a header, padding at the end.
    entry::bytes_max(entries).saturating_add(2 * ALIGN_BYTES + HEADER_BYTES)
}

/// Blocks that wait to be written, back to back.
#[derive(Debug, Default)]
pub(crate) struct BlockBuffer {
    bytes: Vec<u8>,
    open: Option<OpenBlock>,
    /// Start of the block that was closed last.
    last: Option<usize>,
}

#[derive(Debug)]
struct OpenBlock {
    start: usize,
    entry_count: u32,
    last_seq: CommitSeq,
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "the buffer is written by this process"
)]
impl BlockBuffer {
    /// A buffer that begins with `head` (a segment's header) and reuses the memory of `bytes`.
    pub(crate) fn starting_with(head: &[u8], mut bytes: Vec<u8>) -> BlockBuffer {
        bytes.clear();
        bytes.extend_from_slice(head);
        BlockBuffer { bytes, open: None, last: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds entries, all in one block.
    pub(crate) fn append(&mut self, entries: &[EntryRef<'_>]) {
        if self.open.as_ref().is_some_and(|open| self.bytes.len() - open.start >= BLOCK_BYTES) {
            self.close();
        }
        let open = self.open.get_or_insert_with(|| {
            let start = self.bytes.len();
            self.bytes.resize(start + HEADER_BYTES, 0);
            OpenBlock { start, entry_count: 0, last_seq: CommitSeq(0) }
        });
        for entry in entries {
            entry::encode(entry, open.last_seq, &mut self.bytes);
            open.last_seq = entry.seq;
            open.entry_count += 1;
        }
    }

    /// Ends the open block: writes its length and pads it.
    pub(crate) fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let len = (self.bytes.len() - open.start - HEADER_BYTES) as u32;
        put(&mut self.bytes, open.start + 8, &len.to_le_bytes());
        put(&mut self.bytes, open.start + 12, &open.entry_count.to_le_bytes());
        self.last = Some(open.start);
        let padded = self.bytes.len().next_multiple_of(ALIGN_BYTES);
        self.bytes.resize(padded, 0);
    }

    /// Extends the last block with zeros until the batch, written at `offset` of a file, ends at a
    /// multiple of `unit_bytes`. No later write then touches a unit that this batch makes durable.
    ///
    /// Source: DecLog (PVLDB), section 4.4.2.
    pub(crate) fn pad(&mut self, offset: u64, unit_bytes: u64) {
        self.close();
        let Some(last) = self.last else { return };
        let end = (offset + self.bytes.len() as u64).next_multiple_of(unit_bytes) - offset;
        if end as usize > self.bytes.len() {
            self.bytes.resize(end as usize, 0);
            let len = (self.bytes.len() - last - HEADER_BYTES) as u32;
            put(&mut self.bytes, last + 8, &len.to_le_bytes());
        }
    }

    /// Closes the open block and takes all bytes out. The buffer continues in the memory of
    /// `spare`.
    pub(crate) fn take(&mut self, mut spare: Vec<u8>) -> Vec<u8> {
        self.close();
        self.last = None;
        spare.clear();
        std::mem::replace(&mut self.bytes, spare)
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.open = None;
        self.last = None;
        self.bytes.clear();
    }
}

/// The address that a block's checksum covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockAddress {
    /// The nonce of the block's segment, never 0. It is the tag of the segment's blocks.
    pub(crate) nonce: u32,
    /// The position of the block's first byte.
    pub(crate) position: LogPosition,
}

/// Fills in tags, checksums and the durable mark of the closed blocks in `bytes`, the first of
/// which is at `address`. Runs without the queue's lock.
///
/// # Panics
/// If the blocks do not fill `bytes` exactly, or if the mark is beyond the first block: replay
/// would misread the batch.
#[expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "the blocks were written by this process"
)]
pub(crate) fn seal(bytes: &mut [u8], mut address: BlockAddress, durable: LogPosition) {
    // `replay` refuses a block with a mark beyond it.
    assert!(durable <= address.position, "the durable mark {durable:?} is beyond {address:?}");
    let mut rest = bytes;
    while rest.len() >= HEADER_BYTES {
        let total = HEADER_BYTES + read_u32(rest, 8) as usize;
        let (block, behind) = rest.split_at_mut(total.next_multiple_of(ALIGN_BYTES));
        put(block, 0, &address.nonce.to_le_bytes());
        put(block, 16, &durable.0.to_le_bytes());
        let crc = checksum(&block[8..total], address);
        put(block, 4, &crc.to_le_bytes());
        address.position.0 += block.len() as u64;
        rest = behind;
    }
    assert!(rest.is_empty(), "{} bytes behind the last block of a batch", rest.len());
}

/// A block with a matching checksum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block<'a> {
    /// The stream was durable up to this position when the block was written.
    pub(crate) durable: LogPosition,
    /// The encoded entries; see [`Block::entries`].
    bytes: &'a [u8],
    entry_count: u32,
}

/// The size of the block with this header, padding included; `None` if the tag is wrong. The size
/// is only verified by [`check`].
pub(crate) fn len_of(header: &[u8; HEADER_BYTES], nonce: u32) -> Option<usize> {
    let total = HEADER_BYTES.checked_add(usize::try_from(read_u32(header, 8)).ok()?)?;
    let is_tagged = read_u32(header, 0) == nonce;
    is_tagged.then(|| total.checked_next_multiple_of(ALIGN_BYTES)).flatten()
}

/// The block in `bytes` (whose length is [`len_of`]) if its tag and checksum match.
pub(crate) fn check(bytes: &[u8], address: BlockAddress) -> Option<Block<'_>> {
    let header = bytes.first_chunk::<HEADER_BYTES>()?;
    len_of(header, address.nonce).filter(|&len| len == bytes.len())?;
    let total = HEADER_BYTES.checked_add(usize::try_from(read_u32(header, 8)).ok()?)?;
    let covered = bytes.get(8..total)?;
    let entries = bytes.get(HEADER_BYTES..total)?;
    (checksum(covered, address) == read_u32(header, 4)).then(|| Block {
        durable: LogPosition(read_u64(header, 16)),
        bytes: entries,
        entry_count: read_u32(header, 12),
    })
}

impl<'a> Block<'a> {
    /// The entries, each with the offset of its end from the block's start. An item is `None` if
    /// this version cannot read the entry.
    pub(crate) fn entries(self) -> impl Iterator<Item = Option<(EntryRef<'a>, usize)>> {
        let mut rest = self.bytes;
        let mut last_seq = CommitSeq(0);
        (0..self.entry_count).map(move |_| {
            let entry = entry::decode(&mut rest, last_seq)?;
            last_seq = entry.seq;
            let end = self.bytes.len().checked_sub(rest.len())?.checked_add(HEADER_BYTES)?;
            Some((entry, end))
        })
    }
}

fn checksum(covered: &[u8], address: BlockAddress) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&address.nonce.to_le_bytes());
    hasher.update(&address.position.0.to_le_bytes());
    hasher.update(covered);
    hasher.finalize()
}

#[expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "the buffer is written by this process"
)]
fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// The callers pass a whole header.
fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let chunk = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    chunk.map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    let chunk = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    chunk.map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use firn_model::ShardId;
    use proptest::prelude::*;

    use super::*;
    use crate::entry::EntryKind;

    const ADDRESS: BlockAddress = BlockAddress { nonce: 0x1234_5678, position: LogPosition(4096) };

    fn entry(seq: u64, payload: &[u8]) -> EntryRef<'_> {
        EntryRef { kind: EntryKind::Rows, shard: ShardId(3), seq: CommitSeq(seq), payload }
    }

    fn sealed(payloads: &[Vec<u8>]) -> Vec<u8> {
        let mut buffer = BlockBuffer::default();
        for (seq, payload) in payloads.iter().enumerate() {
            let room = bytes_max(&[entry(seq as u64, payload)]);
            let before = buffer.len();
            buffer.append(&[entry(seq as u64, payload)]);
            assert!(buffer.len() - before <= room);
        }
        let mut bytes = buffer.take(Vec::new());
        seal(&mut bytes, ADDRESS, LogPosition(4000));
        bytes
    }

    fn read_all(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut payloads = Vec::new();
        let mut at = 0;
        while let Some(header) = bytes[at..].first_chunk() {
            let len = len_of(header, ADDRESS.nonce).unwrap();
            let address =
                BlockAddress { position: LogPosition(ADDRESS.position.0 + at as u64), ..ADDRESS };
            let block = check(&bytes[at..at + len], address).unwrap();
            assert_eq!(block.durable, LogPosition(4000));
            payloads.extend(block.entries().map(|entry| entry.unwrap().0.payload.to_vec()));
            at += len;
        }
        payloads
    }

    #[test]
    fn entries_round_trip_over_many_blocks() {
        let payloads: Vec<Vec<u8>> = (0..100).map(|idx| vec![idx as u8; idx * 40]).collect();
        let bytes = sealed(&payloads);
        assert!(bytes.len() > 5 * BLOCK_BYTES);
        assert_eq!(read_all(&bytes), payloads);
    }

    /// The bytes of `docs/formats/log.md`. If this test changes, the version must change.
    #[test]
    fn the_bytes_match_the_format_page() {
        let bytes = sealed(&[vec![0xaa, 0xbb]]);
        assert_eq!(&bytes[..4], 0x1234_5678_u32.to_le_bytes());
        assert_eq!(&bytes[8..16], [6, 0, 0, 0, 1, 0, 0, 0], "length, entry count");
        assert_eq!(&bytes[16..24], 4000_u64.to_le_bytes(), "durable mark");
        assert_eq!(&bytes[24..30], [2, 1, 3, 0, 0xaa, 0xbb], "length, kind, shard, sequence");
        assert_eq!(&bytes[30..], [0; 2], "padding");
        let mut covered = Vec::from(0x1234_5678_u32.to_le_bytes());
        covered.extend(4096_u64.to_le_bytes());
        covered.extend(&bytes[8..30]);
        assert_eq!(&bytes[4..8], crc32fast::hash(&covered).to_le_bytes());
    }

    #[test]
    fn a_block_is_valid_at_its_address_only() {
        let bytes = sealed(&[vec![1, 2, 3]]);
        assert!(check(&bytes, ADDRESS).is_some());
        assert!(check(&bytes, BlockAddress { position: LogPosition(4104), ..ADDRESS }).is_none());
        assert!(check(&bytes, BlockAddress { nonce: 0x1234_5679, ..ADDRESS }).is_none());
        assert!(check(&bytes[..bytes.len() - 8], ADDRESS).is_none());
    }

    #[test]
    #[should_panic(expected = "bytes behind the last block")]
    fn a_batch_that_its_blocks_do_not_fill_is_not_written() {
        let mut bytes = sealed(&[vec![1, 2, 3]]);
        bytes.extend([0; 8]);
        seal(&mut bytes, ADDRESS, LogPosition(4000));
    }

    #[test]
    #[should_panic(expected = "is beyond")]
    fn a_mark_beyond_its_block_is_not_written() {
        let mut bytes = sealed(&[vec![1, 2, 3]]);
        seal(&mut bytes, ADDRESS, LogPosition(4097));
    }

    proptest! {
        #[test]
        fn a_flipped_bit_is_detected_or_harmless(payload: Vec<u8>, at: prop::sample::Index) {
            let good = sealed(std::slice::from_ref(&payload));
            let mut bad = good.clone();
            let bit = at.index(bad.len() * 8);
            bad[bit / 8] ^= 1 << (bit % 8);
            if let Some(block) = check(&bad, ADDRESS) {
                // Only padding is outside the checksum.
                prop_assert!(bit / 8 >= HEADER_BYTES + block.bytes.len());
                let found: Vec<_> = block.entries().map(|entry| entry.unwrap().0.payload).collect();
                prop_assert_eq!(found, vec![&payload[..]]);
            }
        }
    }
}
