//! Writing segment files: sealed definitions, `docs/formats/index.md` byte by byte.
//!
//! A block holds its own strings, pairs and label sets, so that it is read alone, and a member of a
//! group costs about a byte: the distance of its label set from the one before.

use std::sync::Arc;

use firn_codec::frame::{BLOCK_TRAILER_BYTES, FileFormat, seal_block};
use firn_env::{Disk, DiskFile, OpenMode};
use firn_model::{Result, encode_varint};
use hashbrown::HashMap;

use crate::definition::Run;
use crate::sets::LOST_SET;
use crate::state::State;

pub(crate) const FORMAT: FileFormat = FileFormat { kind: *b"INDX", version: 1, oldest: 1 };
// Length and kind before each block.
pub(crate) const BLOCK_HEAD_BYTES: usize = 5;
pub(crate) const KIND_DEFINITIONS: u8 = 1;
pub(crate) const KIND_END: u8 = 2;
// 64 KiB: its own tables are then a few percent of it, and it fits a cache.
const BLOCK_BYTES: usize = 64 << 10;
// Written to the file in pieces of a megabyte.
const WRITE_BYTES: usize = 1 << 20;

/// Writes one segment file.
#[derive(Debug)]
pub(crate) struct Writer {
    file: Arc<dyn DiskFile>,
    written: u64,
    buf: Vec<u8>,
    block: Block,
    block_count: u64,
    series_count: u64,
}

/// A block that grows. Ids of the index on the left of each map, of the block on the right.
#[derive(Debug, Default)]
struct Block {
    strings: Table<(bool, u32)>,
    pairs: Table<u32>,
    sets: Table<Vec<u32>>,
    records: Vec<u8>,
    record_count: u64,
}

#[derive(Debug)]
struct Table<K> {
    ids: HashMap<K, u32>,
    bytes: Vec<u8>,
}

impl<K> Default for Table<K> {
    fn default() -> Table<K> {
        Table { ids: HashMap::new(), bytes: Vec::new() }
    }
}

impl Writer {
    /// A new file at `path`; one that is there is what is left of an interrupted seal.
    pub(crate) fn create(disk: &dyn Disk, path: &str) -> Result<Writer> {
        let file = disk.open(path, OpenMode::Create)?;
        let (buf, block) = (FORMAT.header().to_vec(), Block::default());
        Ok(Writer { file, written: 0, buf, block, block_count: 0, series_count: 0 })
    }

    /// Adds a group's slots, in memory. Lost ones are left out.
    pub(crate) fn add(&mut self, state: &State, run: Run) {
        self.series_count += self.block.add(state, run);
        if self.block.bytes() >= BLOCK_BYTES {
            self.end_block();
        }
    }

    /// Writes what is complete, once it is worth a write.
    pub(crate) fn write_out(&mut self) -> Result<()> {
        if self.buf.len() >= WRITE_BYTES { self.write_all() } else { Ok(()) }
    }

    /// Writes the end and makes the file durable; gives its length and how many series are in it.
    pub(crate) fn finish(mut self) -> Result<(u64, u64)> {
        if self.block.record_count > 0 {
            self.end_block();
        }
        let mut end = Vec::new();
        encode_varint(self.block_count, &mut end);
        encode_varint(self.series_count, &mut end);
        self.push_block(KIND_END, |out| out.extend_from_slice(&end));
        self.write_all()?;
        self.file.sync()?;
        Ok((self.written, self.series_count))
    }

    fn end_block(&mut self) {
        let block = std::mem::take(&mut self.block);
        self.block_count += 1;
        self.push_block(KIND_DEFINITIONS, |out| block.encode(out));
    }

    fn push_block(&mut self, kind: u8, fill: impl FnOnce(&mut Vec<u8>)) {
        let start = self.buf.len();
        self.buf.extend_from_slice(&[0; BLOCK_HEAD_BYTES]);
        self.buf[start + 4] = kind;
        fill(&mut self.buf);
        let len = u32::try_from(self.buf.len() - start + BLOCK_TRAILER_BYTES);
        // A block ends after the group that fills it, and no group has 4 GiB of labels: arenas end there.
        let len = len.expect("an index block is below 4 GiB");
        self.buf[start..start + 4].copy_from_slice(&len.to_le_bytes());
        seal_block(start, &mut self.buf);
    }

    fn write_all(&mut self) -> Result<()> {
        self.file.write_at(self.written, &self.buf)?;
        self.written += self.buf.len() as u64;
        self.buf.clear();
        Ok(())
    }
}

impl Block {
    fn bytes(&self) -> usize {
        let tables = [&self.strings.bytes, &self.pairs.bytes, &self.sets.bytes];
        self.records.len() + tables.iter().map(|bytes| bytes.len()).sum::<usize>()
    }

    /// Adds one record; gives how many series it holds.
    fn add(&mut self, state: &State, run: Run) -> u64 {
        let group_pairs: Vec<u32> = state.groups.labels(run.group_no).collect();
        let labels = self.set(state, group_pairs);
        let mut record = Vec::new();
        encode_varint(state.groups.id(run.group_no).0, &mut record);
        encode_varint(u64::from(state.groups.is_lone(run.group_no)), &mut record);
        encode_varint(u64::from(labels), &mut record);
        let mut series_count = 1;
        if !state.groups.is_lone(run.group_no) {
            series_count = self.add_members(state, run, &mut record);
        }
        self.records.append(&mut record);
        self.record_count += 1;
        series_count
    }

    fn add_members(&mut self, state: &State, run: Run, record: &mut Vec<u8>) -> u64 {
        let slots = state.groups.slots(run.group_no);
        let end = slots.len().min(run.first_slot as usize + run.count as usize);
        let wanted = slots.get(run.first_slot as usize..end).unwrap_or_default();
        let pieces = wanted.chunk_by(|a, b| (*a == LOST_SET) == (*b == LOST_SET));
        let is_known = |piece: &&[u32]| piece.first() != Some(&LOST_SET);
        encode_varint(pieces.clone().filter(is_known).count() as u64, record);
        let (mut slot, mut last_end, mut expected, mut series_count) = (run.first_slot, 0, 0u32, 0);
        for piece in pieces {
            if is_known(&piece) {
                encode_varint(u64::from(slot - last_end), record);
                encode_varint(piece.len() as u64, record);
                for &set in piece {
                    let set = self.set(state, state.sets.pairs(set).collect());
                    let delta = i64::from(set) - i64::from(expected);
                    encode_varint(((delta << 1) ^ (delta >> 63)) as u64, record);
                    expected = set + 1;
                }
                last_end = slot + piece.len() as u32;
                series_count += piece.len() as u64;
            }
            slot += piece.len() as u32;
        }
        series_count
    }

    fn set(&mut self, state: &State, pairs: Vec<u32>) -> u32 {
        if let Some(&set) = self.sets.ids.get(&pairs) {
            return set;
        }
        let ids: Vec<u32> = pairs.iter().map(|&pair| self.pair(state, pair)).collect();
        encode_varint(ids.len() as u64, &mut self.sets.bytes);
        ids.iter().for_each(|&id| encode_varint(u64::from(id), &mut self.sets.bytes));
        self.sets.give(pairs)
    }

    fn pair(&mut self, state: &State, pair: u32) -> u32 {
        if let Some(&id) = self.pairs.ids.get(&pair) {
            return id;
        }
        let name = self.string((true, state.pairs.pair(pair).name), state.pairs.text(pair).0);
        let value = self.string((false, pair), state.pairs.text(pair).1);
        encode_varint(u64::from(name), &mut self.pairs.bytes);
        encode_varint(u64::from(value), &mut self.pairs.bytes);
        self.pairs.give(pair)
    }

    fn string(&mut self, key: (bool, u32), text: &str) -> u32 {
        if let Some(&id) = self.strings.ids.get(&key) {
            return id;
        }
        encode_varint(text.len() as u64, &mut self.strings.bytes);
        self.strings.bytes.extend_from_slice(text.as_bytes());
        self.strings.give(key)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let mut section = |count: u64, bytes: &[u8]| {
            encode_varint(count, out);
            out.extend_from_slice(bytes);
        };
        section(self.strings.ids.len() as u64, &self.strings.bytes);
        section(self.pairs.ids.len() as u64, &self.pairs.bytes);
        section(self.sets.ids.len() as u64, &self.sets.bytes);
        section(self.record_count, &self.records);
    }
}

impl<K: Eq + std::hash::Hash> Table<K> {
    fn give(&mut self, key: K) -> u32 {
        let id = self.ids.len() as u32;
        self.ids.insert(key, id);
        id
    }
}
