//! Blocks: the unit that is whole or not there. A block is a header, a checksum and some entries.
//!
//! Entries that wait for the same group commit share blocks of about [`BLOCK_BYTES`], so that a
//! damaged byte takes at most one of them down while their headers stay below a thousandth of the
//! bytes. What one append brings is never divided between blocks: it is replayed whole or not at
//! all. The checksum covers the segment's nonce and the block's position too, so that neither old
//! bytes of a reused disk region nor a block at another place can pass.
//!
//! Source: DecLog 4.4.2 (entries of a group in aligned blocks; an incomplete block is not
//! replayed). The paper's blocks have no checksum and so cannot know that they are incomplete.

use firn_model::{CommitSeq, LogPosition};

use crate::entry::{self, EntryRef};

/// Tag, checksum, length, entry count, durable mark.
pub(crate) const HEADER_BYTES: usize = 24;

/// Blocks begin at multiples of this, where the search after a damaged one looks for the next.
pub(crate) const ALIGN_BYTES: usize = 8;

/// A block that has this many bytes is closed: damage takes about this much down, a header every
/// 32 KiB costs nothing.
const BLOCK_BYTES: usize = 32 << 10;

const _: () = assert!(HEADER_BYTES.is_multiple_of(ALIGN_BYTES));

/// An upper bound of what appending `entries` adds to a [`BlockBuffer`].
pub(crate) fn bytes_max(entries: &[EntryRef<'_>]) -> usize {
    // Padding of the block before, a header, padding behind.
    ALIGN_BYTES + HEADER_BYTES + entry::bytes_max(entries) + ALIGN_BYTES
}

/// Blocks that wait to be written, back to back.
#[derive(Debug, Default)]
pub(crate) struct BlockBuffer {
    bytes: Vec<u8>,
    open: Option<OpenBlock>,
    /// Where the last block starts that was closed.
    last: Option<usize>,
}

#[derive(Debug)]
struct OpenBlock {
    start: usize,
    entry_count: u32,
    last_seq: CommitSeq,
}

impl BlockBuffer {
    /// A buffer that begins with `head` (a segment's header) and reuses the room of `bytes`.
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

    /// Ends the block that is open: writes its length and pads it.
    pub(crate) fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let len = (self.bytes.len() - open.start - HEADER_BYTES) as u32;
        put(&mut self.bytes, open.start + 8, &len.to_le_bytes());
        put(&mut self.bytes, open.start + 12, &open.entry_count.to_le_bytes());
        self.last = Some(open.start);
        let padded = self.bytes.len().next_multiple_of(ALIGN_BYTES);
        self.bytes.resize(padded, 0);
    }

    /// Lengthens the last block with zeros, so that what begins at `offset` of a file ends at a
    /// multiple of `unit_bytes`: no later write touches a unit that this one has made durable.
    ///
    /// Source: DecLog 4.4.2.
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

    /// Takes all bytes out and goes on in the room of `spare`. The open block is closed.
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

/// What makes a block's checksum its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The nonce of its segment, never 0: the tag of its blocks.
    pub(crate) nonce: u32,
    /// The position of its first byte.
    pub(crate) position: LogPosition,
}

/// Fills in tags, checksums and the durable mark of the closed blocks in `bytes`; the first of them
/// is at `place`. Runs without the queue's lock.
pub(crate) fn seal(bytes: &mut [u8], mut place: Place, durable: LogPosition) {
    let mut rest = bytes;
    while rest.len() >= HEADER_BYTES {
        let total = HEADER_BYTES + read_u32(rest, 8) as usize;
        let (block, behind) = rest.split_at_mut(total.next_multiple_of(ALIGN_BYTES));
        put(block, 0, &place.nonce.to_le_bytes());
        put(block, 16, &durable.0.to_le_bytes());
        let crc = checksum(&block[8..total], place);
        put(block, 4, &crc.to_le_bytes());
        place.position.0 += block.len() as u64;
        rest = behind;
    }
}

/// A block whose checksum is right.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block<'a> {
    /// Up to where the stream was durable when this block was written.
    pub(crate) durable: LogPosition,
    /// Its entries, to be walked with [`Block::entries`].
    bytes: &'a [u8],
    entry_count: u32,
}

/// The bytes that the block with this header takes, padding included; `None` if the tag is wrong.
/// The length itself is only known to be right once [`check`] says so.
pub(crate) fn len_of(header: &[u8; HEADER_BYTES], nonce: u32) -> Option<usize> {
    let is_tagged = read_u32(header, 0) == nonce;
    is_tagged.then(|| (HEADER_BYTES + read_u32(header, 8) as usize).next_multiple_of(ALIGN_BYTES))
}

/// The block that `bytes` (as many as [`len_of`] says) hold, if tag and checksum are right.
pub(crate) fn check(bytes: &[u8], place: Place) -> Option<Block<'_>> {
    let header = bytes.first_chunk::<HEADER_BYTES>()?;
    len_of(header, place.nonce).filter(|&len| len == bytes.len())?;
    let total = HEADER_BYTES + read_u32(header, 8) as usize;
    let covered = bytes.get(8..total)?;
    (checksum(covered, place) == read_u32(header, 4)).then(|| Block {
        durable: LogPosition(read_u64(header, 16)),
        bytes: &covered[HEADER_BYTES - 8..],
        entry_count: read_u32(header, 12),
    })
}

impl<'a> Block<'a> {
    /// Its entries, each with the offset of its end from the block's start; `None` in place of one
    /// that this version cannot read.
    pub(crate) fn entries(self) -> impl Iterator<Item = Option<(EntryRef<'a>, usize)>> {
        let mut rest = self.bytes;
        let mut last_seq = CommitSeq(0);
        (0..self.entry_count).map(move |_| {
            let entry = entry::decode(&mut rest, last_seq)?;
            last_seq = entry.seq;
            Some((entry, HEADER_BYTES + self.bytes.len() - rest.len()))
        })
    }
}

fn checksum(covered: &[u8], place: Place) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&place.nonce.to_le_bytes());
    hasher.update(&place.position.0.to_le_bytes());
    hasher.update(covered);
    hasher.finalize()
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Callers hold a whole header.
fn read_u32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use firn_model::ShardId;
    use proptest::prelude::*;

    use super::*;
    use crate::entry::EntryKind;

    const PLACE: Place = Place { nonce: 0x1234_5678, position: LogPosition(4096) };

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
        seal(&mut bytes, PLACE, LogPosition(4000));
        bytes
    }

    fn read_all(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(header) = bytes[at..].first_chunk() {
            let len = len_of(header, PLACE.nonce).unwrap();
            let place = Place { position: LogPosition(PLACE.position.0 + at as u64), ..PLACE };
            let block = check(&bytes[at..at + len], place).unwrap();
            assert_eq!(block.durable, LogPosition(4000));
            found.extend(block.entries().map(|entry| entry.unwrap().0.payload.to_vec()));
            at += len;
        }
        found
    }

    #[test]
    fn entries_come_back_over_many_blocks() {
        let payloads: Vec<Vec<u8>> = (0..100).map(|idx| vec![idx as u8; idx * 40]).collect();
        let bytes = sealed(&payloads);
        assert!(bytes.len() > 5 * BLOCK_BYTES);
        assert_eq!(read_all(&bytes), payloads);
    }

    /// `docs/formats/log.md`, as bytes. If this changes, the version has to.
    #[test]
    fn the_bytes_are_what_the_format_says() {
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
    fn a_block_is_valid_at_its_place_only() {
        let bytes = sealed(&[vec![1, 2, 3]]);
        assert!(check(&bytes, PLACE).is_some());
        assert!(check(&bytes, Place { position: LogPosition(4104), ..PLACE }).is_none());
        assert!(check(&bytes, Place { nonce: 0x1234_5679, ..PLACE }).is_none());
        assert!(check(&bytes[..bytes.len() - 8], PLACE).is_none());
    }

    proptest! {
        #[test]
        fn a_flipped_bit_is_seen_or_harmless(payload: Vec<u8>, at: prop::sample::Index) {
            let good = sealed(std::slice::from_ref(&payload));
            let mut bad = good.clone();
            let bit = at.index(bad.len() * 8);
            bad[bit / 8] ^= 1 << (bit % 8);
            if let Some(block) = check(&bad, PLACE) {
                // Only padding is not covered.
                prop_assert!(bit / 8 >= HEADER_BYTES + block.bytes.len());
                let found: Vec<_> = block.entries().map(|entry| entry.unwrap().0.payload).collect();
                prop_assert_eq!(found, vec![&payload[..]]);
            }
        }
    }
}
