//! Opening: loads the slabs of the file that can be trusted.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use firn_env::Disk;
use firn_model::{Budget, CommitSeq, Error, ErrorKind, Mutex, Pool, Result, TimeRange};

use super::checkpoint::{Checkpoint, forget_checkpoint, read_checkpoint};
use super::state::{Body, FlashSlab, Memory, Node, Store, StoreOptions, StoreState, StoreStats};
use crate::device::{Device, forget_slabs};
use crate::key_index::{Deltas, KeyEntry, Segment, width_ms};
use crate::lock;
use crate::mutant::mutant;
use crate::policy::{EvictionPolicy, SlabId, UsedRanges};
use crate::slab::{Extent, Header, PREAMBLE_BYTES, Preamble, SlabKey};

/// The history of the owner of the points, as it opens the cache again.
#[derive(Clone, Copy, Debug)]
pub struct OwnerHistory {
    /// The owner announces every change with a larger number again, right after opening. Each slab
    /// reflects the changes up to a number of its own; slabs that missed a change are dropped.
    pub replays_after: CommitSeq,
    /// The last number that the owner assigned. A slab with a later one knows changes that a crash
    /// undid, and their numbers will be assigned again: everything is dropped.
    pub through: CommitSeq,
}

impl OwnerHistory {
    /// The history of points that never change.
    pub const IMMUTABLE: OwnerHistory =
        OwnerHistory { replays_after: CommitSeq(0), through: CommitSeq(u64::MAX) };
}

/// A slab with an intact header.
struct LoadedSlab {
    slot: u32,
    header: Header,
}

impl Store {
    /// Opens the cache in `folder` of `disk` with the slabs that are intact. A damaged slab costs
    /// only itself.
    ///
    /// # Errors
    /// `Invalid` for options that contradict each other, `Unavailable` when the disk fails.
    pub fn open(
        disk: Arc<dyn Disk>,
        folder: &str,
        budget: &Budget,
        options: StoreOptions,
        recovered: OwnerHistory,
    ) -> Result<Store> {
        let policy = Box::new(UsedRanges::new(slot_count(&options) as usize));
        Store::open_with_policy(disk, folder, budget, options, recovered, policy)
    }

    /// Opens the cache with another policy than that of the product, for comparisons.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_with_policy(
        disk: Arc<dyn Disk>,
        folder: &str,
        budget: &Budget,
        options: StoreOptions,
        recovered: OwnerHistory,
        policy: Box<dyn EvictionPolicy>,
    ) -> Result<Store> {
        let (slab_bytes, slot_count) = (u64::from(options.slab_bytes), slot_count(&options));
        if slab_bytes < 16 << 10 || slab_bytes % 4096 != 0 || slot_count < 2 {
            return Err(Error::invalid(format!(
                "cannot open a cache of {} bytes in slabs of {slab_bytes}: a slab must be a \
                 multiple of 4096 bytes, at least 16384, and two slabs must fit",
                options.flash_bytes_max
            )));
        }
        let size = (options.slab_bytes, slot_count);
        let (device, is_new) = Device::open(&*disk, folder, size, options.owner)?;
        if is_new {
            // It may name slabs whose generations will be assigned to others.
            forget_checkpoint(&*disk, folder)?;
        }
        let memory = Memory {
            budget: budget.clone(),
            reservation: budget.empty(Pool::Cache),
            segment_count: 0,
            key_count: 0,
            text_bytes: 0,
            slab_bytes: 0,
            node_key_count: 0,
        };
        let state = StoreState {
            fields: BTreeMap::new(),
            nodes: BTreeMap::new(),
            policy,
            free_slots: Vec::new(),
            fresh_slot: 0,
            slot_count,
            dying: Vec::new(),
            headers: VecDeque::new(),
            header_bytes: 0,
            next_generation: 0,
            // Nothing was announced yet; replayed changes precede the first snapshot's number.
            heard: recovered.replays_after,
            memory,
            is_doubted: false,
            write_failures: 0,
            read_failures: 0,
            is_off: false,
            #[cfg(feature = "test-util")]
            mutant: options.mutant,
            wake: Arc::default(),
            crowds_at: 0,
            stats: StoreStats::default(),
        };
        let store = Store {
            disk,
            folder: folder.to_owned(),
            device,
            options,
            lane: Mutex::new(&lock::STORE_LANE, ()),
            state: Mutex::new(&lock::STORE, state),
        };
        if is_new || store.load(recovered)? {
            return Ok(store);
        }
        Store::forget(&*store.disk, folder)?;
        let policy = store.state.into_inner().policy;
        Store::open_with_policy(store.disk, folder, budget, options, recovered, policy)
    }

    /// Removes the cache in `folder`. Call it before the cache is opened.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails.
    pub fn forget(disk: &dyn Disk, folder: &str) -> Result<()> {
        disk.create_dir(folder)?;
        forget_slabs(disk, folder)?;
        forget_checkpoint(disk, folder)
    }

    /// Reads the headers of all slabs. Returns whether the file can be used.
    fn load(&self, recovered: OwnerHistory) -> Result<bool> {
        let slot_count = self.device.slot_count()?;
        let mut found = Vec::new();
        let mut corrupt = 0;
        let mut free_slots = Vec::new();
        let mut last_generation = 0;
        let mut held = self.state.lock().memory.budget.empty(Pool::Cache);
        let checkpoint = read_checkpoint(&*self.disk, &self.folder, self.options.owner, &mut held);
        for slot in 0..slot_count {
            match self.read_slot(slot) {
                Ok(header) => {
                    last_generation = last_generation.max(header.preamble.generation);
                    found.push(LoadedSlab { slot, header });
                }
                // Should it become readable again, the changes it has missed would be unknown.
                Err(e) if *e.kind() == ErrorKind::Unavailable => return Ok(false),
                // A slot that was never written, or torn by a crash, or damaged.
                Err(_) => {
                    corrupt = u64::saturating_add(corrupt, 1);
                    free_slots.push(slot);
                }
            }
        }
        let is_trusted = mutant!(self.options, LostPastTrusted);
        let heard = found.iter().filter_map(|slab| slab.heard(&checkpoint));
        if heard.max().is_some_and(|heard| heard > recovered.through) && !is_trusted {
            return Ok(false);
        }
        let mut state = self.state.lock();
        state.fresh_slot = slot_count;
        state.free_slots = free_slots;
        state.stats.slabs_corrupt = state.stats.slabs_corrupt.saturating_add(corrupt);
        // Also above the generation of a lost slab: its blocks may still be in its slot.
        state.next_generation =
            last_generation.max(checkpoint.last_generation).saturating_add(1_000_000);
        state.add_found(found, &checkpoint, recovered);
        state.fit_memory();
        Ok(true)
    }

    fn read_slot(&self, slot: u32) -> Result<Header> {
        let mut bytes = [0; PREAMBLE_BYTES];
        self.device.read(slot, 0, &mut bytes)?;
        let offset = self.device.offset(slot);
        let preamble = Preamble::decode(self.device.path(), offset, slot, &bytes)?;
        if preamble.slab_bytes() > u64::from(self.options.slab_bytes) {
            return Err(Error::corrupt(self.device.path(), offset, "slab larger than its place"));
        }
        self.read_header(preamble)
    }
}

/// How many slabs fit into the file.
fn slot_count(options: &StoreOptions) -> u32 {
    let slot_count = options.flash_bytes_max.checked_div(options.slab_bytes.into());
    u32::try_from(slot_count.unwrap_or(options.flash_bytes_max)).unwrap_or(u32::MAX)
}

impl LoadedSlab {
    /// The slab reflects the changes up to this number; `None` for a doubted slab that the
    /// checkpoint does not list.
    fn heard(&self, checkpoint: &Checkpoint) -> Option<CommitSeq> {
        let preamble = &self.header.preamble;
        let own = (!preamble.is_doubted).then_some(preamble.heard);
        let noted = checkpoint.slabs.contains_key(&(preamble.generation, self.slot));
        own.max(noted.then_some(checkpoint.through))
    }
}

impl StoreState {
    fn add_found(
        &mut self,
        found: Vec<LoadedSlab>,
        checkpoint: &Checkpoint,
        recovered: OwnerHistory,
    ) {
        // Each range belongs to the slab computed from the newest snapshot: by number, then
        // generation.
        let mut claims = Vec::new();
        let mut generations: HashMap<u64, u32> = HashMap::new();
        for slab in &found {
            let count = generations.entry(slab.header.preamble.generation).or_default();
            *count = count.saturating_add(1);
        }
        for slab in found {
            let heard = slab.heard(checkpoint);
            let LoadedSlab { slot, header } = slab;
            let preamble = header.preamble;
            let noted = checkpoint.slabs.get(&(preamble.generation, slot));
            let is_trusted = mutant!(self, MissedChangesTrusted);
            let is_kept = (heard >= Some(recovered.replays_after) || is_trusted)
                // A slab that was unreadable at the last open may have left its generation to
                // another.
                && generations.get(&preamble.generation) == Some(&1);
            if !is_kept {
                self.free_slots.push(slot);
                continue;
            }
            let slab = preamble.generation;
            let flash = FlashSlab {
                preamble,
                heard: heard.unwrap_or_default(),
                payload_bytes: u64::from(preamble.data_bytes),
                keys: header.keys.iter().map(|key| Arc::clone(&key.text)).collect(),
                header: Mutex::new(&lock::HEADER, None),
            };
            let mut node = Node::new(preamble.field, Body::Flash(Arc::new(flash)));
            node.is_compacted = preamble.is_compacted;
            self.nodes.insert(slab, node);
            // The size of each key's part is not stored: an equal share each.
            let extents = header.keys.iter().flat_map(|key| &key.extents);
            let ms: f32 = extents.map(|extent| width_ms(extent.range)).sum();
            let bytes_per_ms = preamble.data_bytes as f32 / ms.max(1.0);
            for (position, key) in (0u32..).zip(header.keys) {
                let SlabKey { text, note, extents } = key;
                let extents = match noted {
                    Some(noted) => noted.get(&position).cloned().unwrap_or_default(),
                    None => extents,
                };
                claims.extend(extents.into_iter().map(|extent| {
                    (
                        extent,
                        slab,
                        preamble.field,
                        Arc::clone(&text),
                        Arc::clone(&note),
                        bytes_per_ms,
                    )
                }));
            }
        }
        claims.sort_by_key(|claim| (claim.0.number, claim.1));
        for (extent, slab, field, text, note, bytes_per_ms) in claims {
            let Extent { range, number } = extent;
            let (end, used) = (range.end, TimeRange::EMPTY);
            let segment = Segment { end, slab, number, bytes_per_ms, used };
            let keys = &mut self.fields.entry(field).or_default().keys;
            let entry = keys.entry(text).or_insert_with(|| KeyEntry::new(&note));
            entry.insert(range, segment, &mut Deltas::new());
        }
        self.count_found();
    }

    /// Counts segments and keys, adds slabs with segments to the policy, and drops the others.
    fn count_found(&mut self) {
        let memory = &mut self.memory;
        for (text, entry) in self.fields.values().flat_map(|field| &field.keys) {
            memory.key_count = memory.key_count.saturating_add(1);
            let text_bytes = text.len().saturating_add(entry.note.len());
            memory.text_bytes = memory.text_bytes.saturating_add(text_bytes as u64);
            for (range, segment) in entry.segments() {
                let Some(node) = self.nodes.get_mut(&segment.slab) else { continue };
                let is_new = !node.keys.contains_key(text);
                memory.segment_count = memory.segment_count.saturating_add(1);
                memory.node_key_count = memory.node_key_count.saturating_add(is_new.into());
                let count = node.keys.entry(Arc::clone(text)).or_default();
                *count = count.saturating_add(1);
                node.range = node.range.union(range);
            }
        }
        let ids: Vec<SlabId> = self.nodes.keys().copied().collect();
        for id in ids {
            let Some(node) = self.nodes.get(&id) else { continue };
            if node.keys.is_empty() {
                self.remove_slab(id);
            } else {
                self.policy.insert(id, node.range.end);
            }
        }
    }
}
