//! The checkpoint: the extents of each slab that were still valid at a change number, so that older
//! changes need not be announced again.
//!
//! Without it a slab is valid as of when it was written. The checkpoint is one small file, replaced
//! as a whole: an old or missing one costs slabs, never correctness.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::collections::HashMap;
use std::sync::Arc;

use firn_codec::frame::{FileFormat, HEADER_BYTES, open_block, seal_block};
use firn_codec::varint::{encode_varint, take_count, take_varint};
use firn_env::{Disk, OpenMode};
use firn_model::{CommitSeq, Error, ErrorKind, Reservation, Result};

use super::state::{Body, FlashSlab, Node, Store, StoreState};
use crate::mutant::mutant;
use crate::policy::SlabId;
use crate::slab::{Extent, put_extent, take_extent};

const FILE: &str = "checkpoint";
const FORMAT: FileFormat = FileFormat { kind: *b"CCHK", version: 1, oldest: 1 };
/// A larger file is not read: about 100 bytes for each of ten million extents.
const BYTES_MAX: u64 = 1 << 30;
/// Memory of the contents per byte of the file: a key with an extent has about 14 bytes, and takes
/// about 200.
const MEMORY_PER_BYTE: u64 = 16;

/// The contents of a checkpoint.
#[derive(Debug, Default)]
pub(super) struct Checkpoint {
    /// Every change up to this one is reflected.
    pub(super) through: CommitSeq,
    /// Generations up to this one were assigned.
    pub(super) last_generation: u64,
    pub(super) slabs: NotedSlabs,
}

/// The extents of a checkpoint by generation and slot, then by position in the key array.
pub(super) type NotedSlabs = HashMap<(u64, u32), HashMap<u32, Vec<Extent>>>;

impl Store {
    /// Makes all trims so far durable. Afterwards changes up to the returned number, the largest
    /// snapshot number seen, need not be announced again when the cache is opened. Slabs that wait
    /// in memory are not part of it.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails or while [slabs are doubted](Store::set_doubted): the
    /// previous checkpoint stays.
    pub fn checkpoint(&self) -> Result<CommitSeq> {
        let _one_at_a_time = self.lane.lock();
        let (through, body) = {
            let state = self.state.lock();
            if state.is_doubted {
                return Err(Error::unavailable(
                    "cannot write a checkpoint of the cache: a change may still appear in recovery",
                ));
            }
            state.encode_checkpoint(self.options.owner)
        };
        let mut bytes = FORMAT.header().to_vec();
        let start = bytes.len();
        bytes.extend_from_slice(&body);
        seal_block(start, &mut bytes);
        let (path, temporary) =
            (format!("{}/{FILE}", self.folder), format!("{}/{FILE}.new", self.folder));
        match self.disk.remove(&temporary) {
            Err(e) if *e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let file = self.disk.open(&temporary, OpenMode::Create)?;
        file.write_at(0, &bytes)?;
        file.sync()?;
        self.disk.rename(&temporary, &path)?;
        self.disk.sync_dir(&self.folder)?;
        Ok(through)
    }
}

/// Removes the checkpoint in `folder` durably, if there is one.
///
/// # Errors
/// `Unavailable` when the disk fails.
pub(super) fn forget_checkpoint(disk: &dyn Disk, folder: &str) -> Result<()> {
    match disk.remove(&format!("{folder}/{FILE}")) {
        Err(e) if *e.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| disk.sync_dir(folder)),
    }
}

impl StoreState {
    /// `varint(owner) varint(through) varint(last generation) varint(slabs)`, then for each slab
    /// `varint(generation) varint(slot) varint(keys)`, for each key `varint(position)
    /// varint(extents)` and its extents.
    fn encode_checkpoint(&self, owner: u64) -> (CommitSeq, Vec<u8>) {
        let mut out = Vec::new();
        encode_varint(owner, &mut out);
        let ahead = if mutant!(self, CheckpointAhead) { 5 } else { 0 };
        encode_varint(self.heard.0.saturating_add(ahead), &mut out);
        encode_varint(self.next_generation, &mut out);
        let slabs: Vec<(SlabId, &Node, &Arc<FlashSlab>)> = self
            .nodes
            .iter()
            .filter_map(|(&id, node)| match &node.body {
                Body::Flash(flash) => Some((id, node, flash)),
                _ => None,
            })
            .collect();
        encode_varint(slabs.len() as u64, &mut out);
        for (id, node, flash) in slabs {
            encode_varint(flash.preamble.generation, &mut out);
            encode_varint(u64::from(flash.preamble.slot), &mut out);
            encode_varint(node.keys.len() as u64, &mut out);
            for (position, text) in flash.keys.iter().enumerate() {
                if !node.keys.contains_key(text) {
                    continue;
                }
                let keys = self.fields.get(&node.field).map(|field| &field.keys);
                let entry = keys.and_then(|keys| keys.get(text));
                let extents = entry.map(|entry| entry.extents(id)).unwrap_or_default();
                encode_varint(position as u64, &mut out);
                encode_varint(extents.len() as u64, &mut out);
                extents.iter().for_each(|extent| put_extent(extent, &mut out));
            }
        }
        (self.heard, out)
    }
}

/// The checkpoint in `folder`, whose memory is added to `held`; an empty one if it is missing or
/// cannot be used. Slabs are then valid as of their own numbers.
pub(super) fn read_checkpoint(
    disk: &dyn Disk,
    folder: &str,
    owner: u64,
    held: &mut Reservation,
) -> Checkpoint {
    let path = format!("{folder}/{FILE}");
    let mut read = || {
        let bytes = read_file(disk, &path, held)?;
        decode_checkpoint(&path, &bytes, owner, held)
    };
    read().unwrap_or_default()
}

fn read_file(disk: &dyn Disk, path: &str, held: &mut Reservation) -> Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read)?;
    let len = file.len()?;
    let Some(count) = usize::try_from(len).ok().filter(|_| len <= BYTES_MAX) else {
        return Err(Error::corrupt(path, 0, format!("{len} bytes, expected at most {BYTES_MAX}")));
    };
    held.grow(len)?;
    let mut bytes = vec![0; count];
    file.read_at(0, &mut bytes)?;
    Ok(bytes)
}

fn decode_checkpoint(
    path: &str,
    bytes: &[u8],
    owner: u64,
    held: &mut Reservation,
) -> Result<Checkpoint> {
    FORMAT.check(path, bytes)?;
    let block = bytes.get(HEADER_BYTES..).unwrap_or_default();
    let mut input = open_block(path, HEADER_BYTES as u64, block)?;
    held.grow((input.len() as u64).saturating_mul(MEMORY_PER_BYTE))?;
    let input = &mut input;
    if take_varint(input, "owner")? != owner {
        return Ok(Checkpoint::default());
    }
    let through = CommitSeq(take_varint(input, "number")?);
    let last_generation = take_varint(input, "generation")?;
    let slab_count = take_count(input, u32::MAX as usize, "slabs")?;
    let mut slabs = NotedSlabs::new();
    for _ in 0..slab_count {
        let generation = take_varint(input, "generation")?;
        let slot = take_u32(input, "slot")?;
        let key_count = take_count(input, u32::MAX as usize, "keys")?;
        let mut keys = HashMap::new();
        for _ in 0..key_count {
            let position = take_u32(input, "position")?;
            let extent_count = take_count(input, u32::MAX as usize, "extents")?;
            let mut extents = Vec::new();
            for _ in 0..extent_count {
                extents.push(take_extent(input)?);
            }
            keys.insert(position, extents);
        }
        slabs.insert((generation, slot), keys);
    }
    Ok(Checkpoint { through, last_generation, slabs })
}

fn take_u32(input: &mut &[u8], name: &'static str) -> Result<u32> {
    let number = take_varint(input, name)?;
    u32::try_from(number).map_err(|_| Error::corrupt("checkpoint", 0, name))
}

#[cfg(test)]
mod tests {
    use firn_model::{Budget, Pool};
    use firn_sim::{Faults, SimDisk};

    use super::*;

    /// Before, a sparse file of 1 GiB was read into memory.
    #[test]
    fn a_checkpoint_without_memory_is_not_read() {
        let disk = SimDisk::new(Faults::new(1));
        disk.create_dir("cache").unwrap();
        let file = disk.open("cache/checkpoint", OpenMode::Create).unwrap();
        let mut bytes = FORMAT.header().to_vec();
        [7, 3, 9, 0].into_iter().for_each(|number| encode_varint(number, &mut bytes));
        seal_block(HEADER_BYTES, &mut bytes);
        file.write_at(0, &bytes).unwrap();
        let read = |memory_bytes: u64| {
            let mut held = Budget::unlimited().part(memory_bytes).empty(Pool::Cache);
            read_checkpoint(&disk, "cache", 7, &mut held).through
        };
        assert_eq!(read(1 << 20), CommitSeq(3));
        assert_eq!(read(bytes.len() as u64 + 3), CommitSeq(0), "no memory for the contents");
        assert_eq!(read(3), CommitSeq(0), "no memory for the file");
    }
}
