//! The data structures of the store, and the operations that need no I/O.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use firn_env::Disk;
use firn_model::{Budget, CommitSeq, Error, Mutex, Pool, Reservation, TimeRange, Timestamp};

use crate::background::Wake;
use crate::device::Device;
use crate::key_index::{Deltas, KeyEntry, Segment, width_ms};
use crate::mutant::mutant;
use crate::policy::{EvictionPolicy, PolicyStats, SlabId};
use crate::slab::{Extent, Header, OpenSlab, Preamble, SLAB_POINT_BYTES};

/// Upper bound of the bytes of one extent in a slab's header.
pub(super) const EXTENT_BYTES: usize = 30;
/// Approximate memory of the index structures. A key has a node of a tree, however few its segments
/// are.
const SEGMENT_BYTES: u64 = 80;
const KEY_BYTES: u64 = 192 + 11 * size_of::<(Timestamp, Segment)>() as u64;
const NODE_BYTES: u64 = 320;
const NODE_KEY_BYTES: u64 = 80;
/// Writes, or reads, that fail in a row before the cache turns itself off.
const FAILURES_MAX: u32 = 8;

/// How large a cache may be and how it behaves.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Bytes of a slab: a multiple of 4 KiB, at least 16 KiB.
    pub slab_bytes: u32,
    /// Upper bound of the file's size.
    pub flash_bytes_max: u64,
    /// Bytes of decoded slab headers that are kept in memory.
    pub header_bytes_max: u64,
    /// Sealed slabs that may wait in memory for the device.
    pub waiting_slabs_max: usize,
    /// A time range with more slabs than this is compacted. 16 was best in the paper (TSCache 5.6).
    pub compaction_trigger: usize,
    /// The owner of the points. A file of another owner is replaced by an empty one.
    pub owner: u64,
    /// A deliberate bug that tests must catch.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub mutant: Option<crate::mutant::Mutant>,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            slab_bytes: 1 << 20,
            flash_bytes_max: 1 << 30,
            header_bytes_max: 16 << 20,
            waiting_slabs_max: 8,
            compaction_trigger: 16,
            owner: 0,
            #[cfg(feature = "test-util")]
            mutant: None,
        }
    }
}

/// A cache of points by key and time, in a file. All methods may be called from several threads.
///
/// Lock order: `lane`, then `state`. Neither is held while a reader or writer of the cache does
/// I/O; `lane` is held over the I/O of [`Store::work`].
pub struct Store {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) folder: String,
    pub(super) device: Device,
    pub(super) options: StoreOptions,
    pub(super) lane: Mutex<()>,
    pub(super) state: Mutex<StoreState>,
}

pub(super) struct StoreState {
    pub(super) fields: BTreeMap<u64, Field>,
    pub(super) nodes: BTreeMap<SlabId, Node>,
    pub(super) policy: Box<dyn EvictionPolicy>,
    /// Slots that were used and are free.
    pub(super) free_slots: Vec<u32>,
    /// The first slot that was never used.
    pub(super) fresh_slot: u32,
    /// Number of slots.
    pub(super) slot_count: u32,
    /// Slabs that left the index while a reader holds them: their slots become free later.
    pub(super) dying: Vec<Arc<FlashSlab>>,
    /// Slabs whose headers are in memory, in order of loading, with the bytes of the header.
    pub(super) headers: VecDeque<(Arc<FlashSlab>, u64)>,
    pub(super) header_bytes: u64,
    pub(super) next_generation: u64,
    /// The largest snapshot number seen: every change up to it has been announced.
    pub(super) heard: CommitSeq,
    /// Slabs written now may miss a change that recovery brings back: at open they are kept only if
    /// a checkpoint lists them.
    pub(super) is_doubted: bool,
    pub(super) memory: Memory,
    /// Failures in a row, counted apart: a device may still read when it no longer writes.
    pub(super) write_failures: u32,
    pub(super) read_failures: u32,
    pub(super) is_off: bool,
    #[cfg(feature = "test-util")]
    pub(super) mutant: Option<crate::mutant::Mutant>,
    /// Wakes the thread that calls [`Store::work`].
    pub(super) wake: Arc<Wake>,
    /// The next search for crowds is due when `slabs_written` reaches this.
    pub(super) crowds_at: u64,
    pub(super) stats: StoreStats,
}

/// The memory in use, counted by purpose.
pub(super) struct Memory {
    pub(super) budget: Budget,
    pub(super) reservation: Reservation,
    pub(super) segment_count: u64,
    pub(super) key_count: u64,
    /// Key texts and notes.
    pub(super) text_bytes: u64,
    /// Open and sealed slabs.
    pub(super) slab_bytes: u64,
    pub(super) node_key_count: u64,
}

#[derive(Default)]
pub(super) struct Field {
    pub(super) keys: HashMap<Arc<[u8]>, KeyEntry>,
    pub(super) open: Option<SlabId>,
}

/// A slab in the second layer of the index.
pub(super) struct Node {
    pub(super) field: u64,
    /// The times of its points and of its extents.
    pub(super) range: TimeRange,
    pub(super) body: Body,
    /// Number of segments that each key has in it.
    pub(super) keys: HashMap<Arc<[u8]>, u32>,
    pub(super) is_compacted: bool,
    /// Whether it replaces slabs of the LRU partition.
    pub(super) is_hot: bool,
}

pub(super) enum Body {
    Open(Box<OpenSlab>),
    Sealed(Arc<OpenSlab>),
    Flash(Arc<FlashSlab>),
}

/// A slab in the file. Its slot is free for another slab once the last reference is dropped.
pub(super) struct FlashSlab {
    pub(super) preamble: Preamble,
    /// The index entries of this slab reflect every change up to this number.
    pub(super) heard: CommitSeq,
    /// Approximate bytes of its payloads when it was written.
    pub(super) payload_bytes: u64,
    /// The texts of its key array.
    pub(super) keys: Vec<Arc<[u8]>>,
    pub(super) header: Mutex<Option<Arc<Header>>>,
}

/// A point to be set.
#[derive(Clone, Debug)]
pub struct Point<'a> {
    /// Its time.
    pub ts: Timestamp,
    /// Bytes that it shares with neighbouring points; stored once per slab.
    pub head: Option<Arc<[u8]>>,
    /// Its value.
    pub payload: &'a [u8],
}

/// A key of the cache.
#[derive(Clone, Debug)]
pub struct KeySummary {
    /// The key.
    pub text: Arc<[u8]>,
    /// The note of its first fill.
    pub note: Arc<[u8]>,
    /// The smallest range that covers all its extents.
    pub hull: TimeRange,
}

/// All points of one key in a range.
#[derive(Debug)]
pub struct Fill<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The field of the key.
    pub field: u64,
    /// The range that `points` covers completely.
    pub range: TimeRange,
    /// The snapshot that the points were computed from.
    pub number: CommitSeq,
    /// Bytes that the owner of the key gets back after a restart.
    pub note: &'a [u8],
    /// Ordered by time, inside `range`.
    pub points: &'a [Point<'a>],
}

/// Counters since the cache was opened, and its present size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Lookups that were answered completely.
    pub hits: u64,
    /// Lookups that were answered in part.
    pub partial_hits: u64,
    /// Lookups that were not answered.
    pub misses: u64,
    /// Bytes returned by hits: payloads of points in memory, whole blocks of slabs in the file.
    pub hit_bytes: u64,
    /// Bytes returned by partial hits.
    pub partial_bytes: u64,
    /// Partial answers that were withheld because they were too small.
    pub partial_declined: u64,
    /// Reads of the file for lookups.
    pub reads: u64,
    /// Bytes read from the file.
    pub read_bytes: u64,
    /// Bytes of the payloads that were set.
    pub set_bytes: u64,
    /// Bytes written to the file.
    pub written_bytes: u64,
    /// Sets that were refused, or kept only in part.
    pub refused: u64,
    /// Slabs written.
    pub slabs_written: u64,
    /// Slabs merged into others.
    pub slabs_compacted: u64,
    /// Evicted slabs of which the used ranges were kept.
    pub slabs_rescued: u64,
    /// Damaged slabs that were dropped.
    pub slabs_corrupt: u64,
    /// Writes and reads that failed.
    pub device_failures: u64,
    /// Whether the cache turned itself off because its device fails.
    pub is_off: bool,
    /// Keys.
    pub keys: u64,
    /// Ranges of keys.
    pub extents: u64,
    /// Slabs in the file.
    pub slabs: u64,
    /// Bytes of memory in use.
    pub memory_bytes: u64,
    /// Sizes and counters of the eviction policy.
    pub policy: PolicyStats,
}

impl Store {
    /// Keeps a range, or its first part if the rest does not fit now; replaces older points of the
    /// range. Returns the part that is kept.
    ///
    /// # Panics
    /// If the points are not ordered or not inside the range.
    pub fn set(&self, fill: &Fill<'_>) -> TimeRange {
        assert!(fill.points.is_sorted_by_key(|point| point.ts), "points are ordered by time");
        let (first, last) = (fill.points.first(), fill.points.last());
        let inside = |point: Option<&Point<'_>>| point.is_none_or(|p| fill.range.contains(p.ts));
        assert!(inside(first) && inside(last), "points are inside the range that they complete");
        self.state.lock().set(fill, &self.options)
    }

    /// Removes a range of a key. Returns whether the key is in the cache.
    pub fn trim(&self, key: &[u8], field: u64, range: TimeRange) -> bool {
        if mutant!(self.options, TrimForgotten) {
            return true;
        }
        self.state.lock().trim(key, field, range)
    }

    /// Announces a change again after a restart: slabs that were written without it lose the range.
    pub fn replay(&self, number: CommitSeq, key: &[u8], field: u64, range: TimeRange) {
        if mutant!(self.options, ReplayIgnored) {
            return;
        }
        self.state.lock().replay(number, key, field, range);
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// The handle that wakes the background thread when there is a slab to write.
    pub fn wake(&self) -> Arc<Wake> {
        Arc::clone(&self.state.lock().wake)
    }

    /// The head of the newest points of a key.
    pub fn last_head(&self, key: &[u8], field: u64) -> Option<Arc<[u8]>> {
        let state = self.state.lock();
        state.fields.get(&field)?.keys.get(key)?.last_head.clone()
    }

    /// Whether a key has any range in the cache.
    pub fn has_key(&self, key: &[u8], field: u64) -> bool {
        self.state.lock().fields.get(&field).is_some_and(|field| field.keys.contains_key(key))
    }

    /// All keys of a field.
    pub fn keys(&self, field: u64) -> Vec<KeySummary> {
        let state = self.state.lock();
        let keys = state.fields.get(&field).into_iter().flat_map(|field| &field.keys);
        keys.map(|(text, entry)| {
            let hull = |all: TimeRange, one: (TimeRange, Segment)| all.union(one.0);
            let hull = entry.segments().fold(TimeRange::EMPTY, hull);
            KeySummary { text: Arc::clone(text), note: Arc::clone(&entry.note), hull }
        })
        .collect()
    }

    /// Records a snapshot number: every change up to it has been announced and applied.
    pub fn heard(&self, number: CommitSeq) {
        let mut state = self.state.lock();
        state.heard = state.heard.max(number);
    }

    /// Sets whether slabs written from now on are doubted: at open they are kept only if a
    /// checkpoint lists them, because after a crash their owner may recover another history than
    /// the one they are computed from. While set, no checkpoint is made.
    pub fn set_doubted(&self, is_doubted: bool) {
        self.state.lock().is_doubted = is_doubted && !mutant!(self.options, DoubtIgnored);
    }

    /// Removes everything; the file stays.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        let slabs: Vec<SlabId> = state.nodes.keys().copied().collect();
        slabs.into_iter().for_each(|slab| state.remove_slab(slab));
    }

    /// Current counters and sizes.
    pub fn stats(&self) -> StoreStats {
        let mut state = self.state.lock();
        state.settle_memory();
        StoreStats {
            is_off: state.is_off,
            keys: state.memory.key_count,
            extents: state.memory.segment_count,
            slabs: state.nodes.values().filter(|node| node.is_on_flash()).count() as u64,
            memory_bytes: state.memory.reservation.bytes(),
            policy: state.policy.stats(),
            ..state.stats
        }
    }
}

impl StoreState {
    pub(super) fn set(&mut self, fill: &Fill<'_>, options: &StoreOptions) -> TimeRange {
        self.heard = self.heard.max(fill.number);
        let payload: usize = fill.points.iter().map(|point| point.payload.len()).sum();
        let wanted = payload + fill.points.len() * 128 + fill.key.len() + fill.note.len() + 4096;
        if fill.range.is_empty() || self.is_off || !self.make_room_in_memory(wanted as u64) {
            self.stats.refused += u64::from(!fill.range.is_empty());
            return TimeRange::EMPTY;
        }
        // Trim first: the open slab may contain points of the range.
        self.trim(fill.key, fill.field, fill.range);
        self.stats.set_bytes += payload as u64;
        let mut kept = self.set_pieces(fill, options);
        if self.fit_memory() {
            // Slabs in memory are removed first, some of those of this set among them.
            self.trim(fill.key, fill.field, fill.range);
            kept = TimeRange::EMPTY;
        }
        self.stats.refused += u64::from(kept != fill.range);
        kept
    }

    /// Puts the points into open slabs, sealing each one that is full.
    pub(super) fn set_pieces(&mut self, fill: &Fill<'_>, options: &StoreOptions) -> TimeRange {
        let text: Arc<[u8]> = Arc::from(fill.key);
        let (mut start, mut rest) = (fill.range.start, fill.points);
        let mut kept = TimeRange::EMPTY;
        while let Some(slab) = self.open_slab(fill.field, options) {
            let Some(Node { body: Body::Open(open), keys, .. }) = self.nodes.get_mut(&slab) else {
                break;
            };
            let was_empty = open.is_empty();
            let extent_count: u32 = keys.values().sum();
            let extent_bytes = (extent_count as usize + 1) * EXTENT_BYTES;
            let is_kept = mutant!(options, OldPointsKept);
            let range = TimeRange::new(start, fill.range.end);
            let cleared = if is_kept { TimeRange::EMPTY } else { range };
            let taken = push_points(open, &text, fill, cleared, rest, &|open, more| {
                open.slab_bytes(extent_bytes) + more <= filled_bytes_max(options.slab_bytes)
            });
            if let Some(taken) = taken.filter(|&taken| taken > 0 || rest.is_empty()) {
                let (now, later) = rest.split_at(taken);
                // A range without points is complete up to the next point.
                let end = later.first().map_or(fill.range.end, |point| point.ts - 1);
                let bytes: usize = now.iter().map(|point| point.payload.len()).sum();
                let range = TimeRange::new(start, end);
                self.add_segment(slab, &text, fill, range, bytes as f32 / width_ms(range));
                kept = kept.union(TimeRange::new(start, end));
                if later.is_empty() {
                    break;
                }
                (start, rest) = (end + 1, later);
            } else if was_empty {
                // The next point does not fit even into an empty slab.
                break;
            }
            self.seal(fill.field);
        }
        kept
    }

    /// The open slab of a field, a new one if there is none; `None` if too many wait for the
    /// device.
    pub(super) fn open_slab(&mut self, field: u64, options: &StoreOptions) -> Option<SlabId> {
        if let Some(open) = self.fields.entry(field).or_default().open {
            return Some(open);
        }
        if self.waiting() >= options.waiting_slabs_max {
            return None;
        }
        let slab = self.draw_generation();
        self.nodes.insert(slab, Node::new(field, Body::Open(Box::new(OpenSlab::new(field)))));
        self.fields.entry(field).or_default().open = Some(slab);
        Some(slab)
    }

    /// Number of slabs that wait for the device.
    pub(super) fn waiting(&self) -> usize {
        self.nodes.values().filter(|node| matches!(node.body, Body::Sealed(_))).count()
    }

    pub(super) fn draw_generation(&mut self) -> u64 {
        self.next_generation += 1;
        self.next_generation
    }

    /// Seals the open slab of a field; [`Store::work`] writes it.
    pub(super) fn seal(&mut self, field: u64) {
        let Some(slab) = self.fields.get_mut(&field).and_then(|field| field.open.take()) else {
            return;
        };
        let Some(mut node) = self.nodes.remove(&slab) else { return };
        node.body = match node.body {
            // No index entry leads to it: it need not be written.
            Body::Open(_) if node.keys.is_empty() => return,
            Body::Open(open) => Body::Sealed(Arc::new(*open)),
            other => other,
        };
        self.nodes.insert(slab, node);
        self.wake.call();
    }

    pub(super) fn add_segment(
        &mut self,
        slab: SlabId,
        text: &Arc<[u8]>,
        fill: &Fill<'_>,
        range: TimeRange,
        bytes_per_ms: f32,
    ) {
        let (end, number, used) = (range.end, fill.number, TimeRange::EMPTY);
        let segment = Segment { end, slab, number, bytes_per_ms, used };
        if let Some(node) = self.nodes.get_mut(&slab) {
            node.range = node.range.union(range);
        }
        let field = self.fields.entry(fill.field).or_default();
        let memory = &mut self.memory;
        let entry = field.keys.entry(Arc::clone(text)).or_insert_with(|| {
            memory.key_count += 1;
            memory.text_bytes += (text.len() + fill.note.len()) as u64;
            KeyEntry::new(fill.note)
        });
        if let Some(last) = fill.points.last() {
            entry.last_head.clone_from(&last.head);
        }
        let mut deltas = Deltas::new();
        entry.insert(range, segment, &mut deltas);
        self.apply(fill.field, text, deltas);
    }

    pub(super) fn trim(&mut self, key: &[u8], field: u64, range: TimeRange) -> bool {
        let Some(found) = self.fields.get_mut(&field) else { return false };
        let Some((text, _)) = found.keys.get_key_value(key) else { return false };
        let text = Arc::clone(text);
        let mut deltas = Deltas::new();
        if let Some(entry) = found.keys.get_mut(key) {
            entry.carve(range, &mut deltas);
        }
        self.apply(field, &text, deltas);
        self.drop_key_if_empty(field, &text);
        true
    }

    pub(super) fn replay(&mut self, number: CommitSeq, key: &[u8], field: u64, range: TimeRange) {
        let Some(entry) = self.fields.get(&field).and_then(|field| field.keys.get(key)) else {
            return;
        };
        let missed_it = |slab: SlabId| match self.nodes.get(&slab).map(|node| &node.body) {
            Some(Body::Flash(flash)) => flash.heard < number,
            _ => false,
        };
        let missed = entry.within(range).filter(|(_, segment)| missed_it(segment.slab));
        let missed: Vec<TimeRange> = missed.map(|one| one.0).collect();
        for part in missed {
            self.trim(key, field, part);
        }
    }

    /// Applies changed segment counts of a key to slab nodes; drops nodes without segments.
    pub(super) fn apply(&mut self, field: u64, text: &Arc<[u8]>, deltas: Deltas) {
        let mut touched = Vec::new();
        for (slab, by) in deltas {
            let Some(node) = self.nodes.get_mut(&slab) else { continue };
            let memory = &mut self.memory;
            memory.segment_count = memory.segment_count.saturating_add_signed(by);
            let count = node.keys.entry(Arc::clone(text)).or_insert_with(|| {
                memory.node_key_count += 1;
                0
            });
            *count = count.saturating_add_signed(by as i32);
            touched.push(slab);
        }
        for slab in touched {
            let Some(node) = self.nodes.get_mut(&slab) else { continue };
            if node.keys.get(text).is_some_and(|&count| count == 0) {
                node.keys.remove(text);
                self.memory.node_key_count -= 1;
            }
            if node.keys.is_empty() && self.fields.get(&field).and_then(|f| f.open) != Some(slab) {
                self.policy.remove(slab);
                self.take_node(slab);
            }
        }
    }

    pub(super) fn drop_key_if_empty(&mut self, field: u64, text: &Arc<[u8]>) {
        let Some(found) = self.fields.get_mut(&field) else { return };
        if found.keys.get(text).is_some_and(KeyEntry::is_empty)
            && let Some(entry) = found.keys.remove(text)
        {
            self.memory.key_count -= 1;
            self.memory.text_bytes -= (text.len() + entry.note.len()) as u64;
        }
    }

    /// Removes a slab and its segments from the index; its slot becomes free.
    pub(super) fn remove_slab(&mut self, slab: SlabId) {
        self.policy.remove(slab);
        let Some(node) = self.take_node(slab) else { return };
        let Some(field) = self.fields.get_mut(&node.field) else { return };
        if field.open == Some(slab) {
            field.open = None;
        }
        for (text, count) in &node.keys {
            self.memory.segment_count -= u64::from(*count);
            self.memory.node_key_count -= 1;
            if let Some(entry) = field.keys.get_mut(text) {
                entry.forget(slab);
            }
        }
        node.keys.keys().for_each(|text| self.drop_key_if_empty(node.field, text));
    }

    /// Removes a node. Its slot becomes free now, or when the last reader drops the slab.
    pub(super) fn take_node(&mut self, slab: SlabId) -> Option<Node> {
        let node = self.nodes.remove(&slab)?;
        if let Body::Flash(flash) = &node.body {
            self.forget_header(flash);
            self.dying.push(Arc::clone(flash));
        }
        Some(node)
    }

    /// Drops a slab that cannot be read.
    pub(super) fn lose(&mut self, slab: SlabId, error: &Error) {
        match error.kind() {
            firn_model::ErrorKind::Corrupt { .. } => self.stats.slabs_corrupt += 1,
            _ => {
                self.read_failures += 1;
                self.device_failed();
            }
        }
        self.remove_slab(slab);
    }

    pub(super) fn device_failed(&mut self) {
        self.stats.device_failures += 1;
        self.is_off |= self.write_failures.max(self.read_failures) >= FAILURES_MAX;
    }

    pub(super) fn forget_header(&mut self, slab: &Arc<FlashSlab>) {
        if let Some(idx) = self.headers.iter().position(|(other, _)| Arc::ptr_eq(slab, other))
            && let Some((_, bytes)) = self.headers.remove(idx)
        {
            self.header_bytes -= bytes;
        }
    }

    /// Reserves memory for a set. Evicts the next victims if the index entries of a few of them are
    /// enough: those take some kilobytes each, and memory of other rooms does not shrink by it.
    pub(super) fn make_room_in_memory(&mut self, bytes: u64) -> bool {
        const VICTIMS_MAX: usize = 4;
        if self.memory.reservation.grow(bytes).is_ok() {
            return true;
        }
        let missing = self.memory.budget.missing_bytes(Pool::Cache, bytes);
        let (mut victims, mut freed) = (Vec::new(), 0);
        for slab in self.policy.next_victims(VICTIMS_MAX) {
            if freed < missing {
                freed += self.nodes.get(&slab).map_or(0, Node::index_bytes);
                victims.push(slab);
            }
        }
        if freed < missing {
            return false;
        }
        victims.into_iter().for_each(|slab| self.evict(slab));
        self.settle_memory();
        self.memory.reservation.grow(bytes).is_ok()
    }

    /// Adjusts the reservation to the memory in use, and releases memory that nothing was left
    /// for. Returns whether it did.
    pub(super) fn fit_memory(&mut self) -> bool {
        let excess_bytes = self.settle_memory();
        if excess_bytes > 0 {
            self.release(self.memory.reservation.bytes().saturating_sub(excess_bytes));
        }
        excess_bytes > 0
    }

    /// Releases decoded headers first, which the file has too; then points that wait for the
    /// device; then slabs with their index entries, in the order of eviction; until at most
    /// `bytes_max` are in use.
    pub(super) fn release(&mut self, bytes_max: u64) {
        while let Some((slab, header_bytes)) = self.headers.pop_front() {
            slab.header.lock().take();
            self.header_bytes -= header_bytes;
        }
        self.settle_memory();
        while self.memory.reservation.bytes() > bytes_max {
            let in_memory = self.nodes.iter().find(|one| !one.1.is_on_flash()).map(|one| *one.0);
            if let Some(slab) = in_memory {
                self.remove_slab(slab);
            } else if let Some(victim) = self.policy.victim() {
                self.evict(victim);
            } else {
                break;
            }
            self.settle_memory();
        }
    }

    /// Adjusts the reservation to the memory in use. Returns the bytes of it that the budget has
    /// no room for; they count nevertheless, so that others are refused.
    pub(super) fn settle_memory(&mut self) -> u64 {
        let held = self.held_bytes();
        let reservation = &mut self.memory.reservation;
        reservation.shrink_to(held);
        let more = held.saturating_sub(reservation.bytes());
        if more == 0 || reservation.grow(more).is_ok() {
            return 0;
        }
        reservation.take(more);
        more
    }

    /// The memory in use.
    pub(super) fn held_bytes(&mut self) -> u64 {
        let slabs = self.nodes.values().map(|node| match &node.body {
            Body::Open(slab) => slab.heap_bytes(),
            Body::Sealed(slab) => slab.heap_bytes(),
            Body::Flash(_) => 0,
        });
        let memory = &mut self.memory;
        memory.slab_bytes = slabs.sum();
        memory.segment_count * SEGMENT_BYTES
            + memory.key_count * KEY_BYTES
            + memory.text_bytes
            + memory.slab_bytes
            + memory.node_key_count * NODE_KEY_BYTES
            + self.nodes.len() as u64 * NODE_BYTES
            + self.header_bytes
    }

    /// Evicts a slab for lack of space.
    pub(super) fn evict(&mut self, slab: SlabId) {
        let mut contents = Vec::new();
        if let Some(node) = self.nodes.get(&slab)
            && let Some(field) = self.fields.get(&node.field)
        {
            for text in node.keys.keys() {
                let Some(entry) = field.keys.get(text) else { continue };
                let hull = |all: TimeRange, one: Extent| all.union(one.range);
                let range = entry.extents(slab).into_iter().fold(TimeRange::EMPTY, hull);
                contents.push((hash(text), range));
            }
        }
        self.policy.evict(slab, contents);
        self.remove_slab(slab);
    }
}

impl Node {
    pub(super) fn new(field: u64, body: Body) -> Node {
        Node {
            field,
            range: TimeRange::EMPTY,
            body,
            keys: HashMap::new(),
            is_compacted: false,
            is_hot: false,
        }
    }

    pub(super) fn is_on_flash(&self) -> bool {
        matches!(self.body, Body::Flash(_))
    }

    /// Approximate memory of its index entries.
    pub(super) fn index_bytes(&self) -> u64 {
        let segment_count: u64 = self.keys.values().map(|&count| u64::from(count)).sum();
        NODE_BYTES + self.keys.len() as u64 * NODE_KEY_BYTES + segment_count * SEGMENT_BYTES
    }
}

/// Adds the key and as many points as fit; points of one timestamp are added together or not at
/// all. `None` if not even the key fits.
fn push_points(
    open: &mut OpenSlab,
    text: &Arc<[u8]>,
    fill: &Fill<'_>,
    range: TimeRange,
    points: &[Point<'_>],
    fits: &dyn Fn(&OpenSlab, usize) -> bool,
) -> Option<usize> {
    if !fits(open, open.key_cost(text, fill.note.len())) {
        return None;
    }
    let position = open.add_key(text, fill.note.len());
    open.clear(position, range);
    let mut taken = 0;
    for group in points.chunk_by(|a, b| a.ts == b.ts) {
        let cost: usize = group
            .iter()
            .map(|point| {
                point.payload.len() + SLAB_POINT_BYTES + open.shared_cost(point.head.as_ref())
            })
            .sum();
        if !fits(open, cost) {
            break;
        }
        for point in group {
            open.push(position, point.ts, point.head.as_ref(), point.payload);
        }
        taken += group.len();
    }
    Some(taken)
}

/// A slab is filled with points up to this size. The rest is for extents that later trims split.
fn filled_bytes_max(slab_bytes: u32) -> usize {
    slab_bytes as usize / 64 * 63
}

pub(super) fn hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
