//! Background work: writes sealed slabs and merges crowded ones. Plan, run, apply.

use std::sync::Arc;

use firn_model::{Mutex, TimeRange};

use super::compact::Merge;
use super::state::{Body, EXTENT_BYTES, FlashSlab, Node, Store, StoreOptions, StoreState};
use crate::lock;
use crate::policy::SlabId;
use crate::slab::{Identity, OpenSlab, Preamble, SlabKey, encode};

/// A unit of work.
enum Job {
    Write(WriteSlab),
    Merge(Merge),
}

/// A sealed slab and the slot it will be written to.
struct WriteSlab {
    id: SlabId,
    slab: Arc<OpenSlab>,
    keys: Vec<SlabKey>,
    identity: Identity,
}

impl Store {
    /// Does one unit of work: writes a sealed slab or merges some. Returns whether there was any.
    /// One thread at a time: a second one gets `false` at once.
    ///
    /// Never fails: after some failed writes in a row the cache turns itself off.
    pub fn work(&self) -> bool {
        let Some(_one_at_a_time) = self.lane.try_lock() else { return false };
        let job = self.state.lock().plan(&self.options);
        match job {
            None => false,
            Some(Job::Write(write)) => {
                let encoded = encode(&write.slab, &write.keys, &write.identity);
                let fits = encoded.bytes.len() <= self.options.slab_bytes as usize;
                let written = if fits {
                    self.device.write(write.identity.slot, &encoded.bytes)
                } else {
                    Ok(())
                };
                let is_full = written.is_err()
                    && self.disk.free_bytes().is_ok_and(|b| b < u64::from(self.options.slab_bytes));
                let mut state = self.state.lock();
                match written {
                    Ok(()) if fits => state.written(&write, encoded.preamble, encoded.bytes.len()),
                    Ok(()) => {
                        debug_assert!(false, "slab_bytes() is an upper bound of the encoded slab");
                        state.free_slots.push(write.identity.slot);
                        state.remove_slab(write.id);
                    }
                    Err(_) => state.write_failed(&write, is_full),
                }
                state.fit_memory();
                true
            }
            Some(Job::Merge(merge)) => {
                self.merge(merge);
                true
            }
        }
    }

    /// Seals all open slabs and does all pending work.
    pub fn flush(&self) {
        self.seal_open();
        while self.work() {}
    }

    /// Seals all open slabs: [`Store::work`] writes them.
    pub fn seal_open(&self) {
        let mut state = self.state.lock();
        let fields: Vec<u64> = state.fields.keys().copied().collect();
        fields.into_iter().for_each(|field| state.seal(field));
    }
}

impl StoreState {
    fn plan(&mut self, options: &StoreOptions) -> Option<Job> {
        self.reap();
        if self.is_off {
            return None;
        }
        let is_waiting = self.nodes.values().any(|node| matches!(node.body, Body::Sealed(_)));
        if is_waiting && let Some(rescue) = self.plan_rescue(options) {
            return Some(Job::Merge(rescue));
        }
        self.plan_write(options)
            .map(Job::Write)
            .or_else(|| self.plan_merge(options).map(Job::Merge))
    }

    /// Plans a write: the sealed slab with the newest data first, because it is looked up most.
    fn plan_write(&mut self, options: &StoreOptions) -> Option<WriteSlab> {
        let sealed = self.nodes.iter().filter(|one| matches!(one.1.body, Body::Sealed(_)));
        let id = sealed.max_by_key(|one| (one.1.range.end, *one.0)).map(|one| *one.0)?;
        self.fit_extents(id, options);
        let node = self.nodes.get(&id)?;
        let Body::Sealed(slab) = &node.body else { return None };
        let (slab, is_compacted) = (Arc::clone(slab), node.is_compacted);
        let field = self.fields.get(&node.field)?;
        let keys = slab.keys().iter().map(|text| match field.keys.get(text) {
            Some(entry) => SlabKey {
                text: Arc::clone(text),
                note: Arc::clone(&entry.note),
                extents: entry.extents(id),
            },
            None => SlabKey { text: Arc::clone(text), note: Arc::from([]), extents: Vec::new() },
        });
        let keys = keys.collect();
        let slot = self.take_slot()?;
        let (heard, is_doubted) = (self.heard, self.is_doubted);
        let identity = Identity { generation: id, slot, heard, is_compacted, is_doubted };
        Some(WriteSlab { id, slab, keys, identity })
    }

    /// Drops keys of a slab whose extents no longer fit into its header because trims split them.
    fn fit_extents(&mut self, id: SlabId, options: &StoreOptions) {
        let Some(Node { field, keys, body: Body::Sealed(slab), .. }) = self.nodes.get(&id) else {
            return;
        };
        let field = *field;
        let slab = Arc::clone(slab);
        let mut extent_count: usize = keys.values().map(|&count| count as usize).sum();
        let mut by_count: Vec<(u32, Arc<[u8]>)> =
            keys.iter().map(|(text, &count)| (count, Arc::clone(text))).collect();
        by_count.sort();
        while slab.slab_bytes(extent_count * EXTENT_BYTES) > options.slab_bytes as usize {
            let Some((count, text)) = by_count.pop() else { return };
            extent_count -= count as usize;
            let ranges: Vec<TimeRange> = self
                .fields
                .get(&field)
                .and_then(|field| field.keys.get(&text))
                .map(|entry| entry.extents(id).into_iter().map(|extent| extent.range).collect())
                .unwrap_or_default();
            ranges.into_iter().for_each(|range| {
                self.trim(&text, field, range);
            });
        }
    }

    /// Whether a slot is free.
    pub(super) fn has_place(&self) -> bool {
        !self.free_slots.is_empty() || self.fresh_slot < self.slot_count
    }

    /// A free slot: a released one, one never used, or that of the policy's victim.
    fn take_slot(&mut self) -> Option<u32> {
        if let Some(slot) = self.free_slots.pop() {
            return Some(slot);
        }
        if self.fresh_slot < self.slot_count {
            self.fresh_slot += 1;
            return Some(self.fresh_slot - 1);
        }
        // The slot of a victim that is being read becomes free later; then the next victim is
        // evicted.
        while let Some(victim) = self.policy.victim() {
            self.evict(victim);
            self.reap();
            if let Some(slot) = self.free_slots.pop() {
                return Some(slot);
            }
        }
        None
    }

    /// Frees the slots of removed slabs that no reader holds any more.
    fn reap(&mut self) {
        let (free, dying) = std::mem::take(&mut self.dying)
            .into_iter()
            .partition::<Vec<_>, _>(|slab| Arc::strong_count(slab) == 1);
        self.dying = dying;
        let limit = self.slot_count;
        let slots = free.iter().map(|slab| slab.preamble.slot);
        self.free_slots.extend(slots.filter(|&slot| slot < limit));
    }

    fn written(&mut self, write: &WriteSlab, preamble: Preamble, bytes: usize) {
        self.write_failures = 0;
        self.stats.slabs_written += 1;
        self.stats.written_bytes += bytes as u64;
        let flash = Arc::new(FlashSlab {
            preamble,
            heard: preamble.heard,
            payload_bytes: write.slab.payload_bytes(),
            keys: write.slab.keys().to_vec(),
            header: Mutex::new(&lock::HEADER, None),
        });
        let Some(node) = self.nodes.get_mut(&write.id) else {
            // Everything in it was trimmed meanwhile.
            self.dying.push(flash);
            return;
        };
        node.body = Body::Flash(flash);
        let newest = write.slab.time_range().end;
        let newest = if newest == TimeRange::EMPTY.end { node.range.end } else { newest };
        if node.is_hot {
            self.policy.insert_hot(write.id, newest);
        } else {
            self.policy.insert(write.id, newest);
        }
    }

    /// Drops a slab that could not be written. A full device gets no more new slots.
    fn write_failed(&mut self, write: &WriteSlab, is_full: bool) {
        self.write_failures += 1;
        self.device_failed();
        self.remove_slab(write.id);
        let slot = write.identity.slot;
        if is_full && slot + 1 == self.fresh_slot && slot > 0 {
            self.fresh_slot = slot;
            self.slot_count = slot;
        } else {
            self.free_slots.push(slot);
        }
    }
}
