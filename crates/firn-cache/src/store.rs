//! The cache itself: set a range of points of a key, get what of a range is there.
//!
//! New points gather in memory, one open slab per field; a full one is sealed and goes to its place in the file in
//! one write, by [`Store::work`]. Nobody who sets or gets waits for a write; a get waits for its own reads. No lock
//! is held over I/O.
//!
//! What cannot be kept is not kept: a set is refused, never an error, when memory is short or too many sealed slabs
//! wait for the device. Source: TSCache 3.1 to 3.7.

mod checkpoint;
mod compact;
mod open;
mod read;
mod reclaim;
mod rescue;
mod work;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use firn_env::Disk;
use firn_model::{Budget, CommitSeq, Error, Pool, Reservation, Result, TimeRange, Timestamp};
use parking_lot::Mutex;

use crate::background::Wake;
use crate::device::Device;
use crate::key_index::{Deltas, Entry, Segment, width_ms};
use crate::planted::Planted;
use crate::policy::{Policy, PolicyKind, PolicyStats, SlabId};
use crate::slab::{Extent, Header, OpenSlab, Preamble, SLAB_POINT_BYTES};

pub use open::OwnerHistory;
pub use read::{CachedRange, DeclineReason, Lookup, PointRef};

/// What an extent takes in a slab's header at most.
const EXTENT_BYTES: usize = 30;
/// What index structures take in memory, about.
const SEGMENT_BYTES: u64 = 80;
const KEY_BYTES: u64 = 192;
const NODE_BYTES: u64 = 320;
const NODE_KEY_BYTES: u64 = 64;
/// Writes, or reads, that fail in a row before the cache gives up on its device.
const FAILURES_MAX: u32 = 8;
/// How often a get begins anew because a slab turned out to be damaged.
const TRIES_MAX: usize = 16;

/// How large a cache may be and how it behaves.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Bytes of a slab, a multiple of 4 KiB, at least 16 KiB.
    pub slab_bytes: u32,
    /// Bytes of the file at most.
    pub flash_bytes_max: u64,
    /// Bytes of slab headers that are kept decoded.
    pub header_bytes_max: u64,
    /// Sealed slabs that may wait in memory for the device.
    pub waiting_slabs_max: usize,
    /// Slabs over the same time from which on they are merged. 16: the paper's sweep (5.6).
    pub compaction_trigger: usize,
    /// Which slab goes when a place is needed.
    pub policy: PolicyKind,
    /// Whose cache it is: one that belongs to somebody else is not used.
    pub owner: u64,
    /// For tests.
    #[doc(hidden)]
    pub planted: Option<Planted>,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            slab_bytes: 1 << 20,
            flash_bytes_max: 1 << 30,
            header_bytes_max: 16 << 20,
            waiting_slabs_max: 8,
            compaction_trigger: 16,
            policy: PolicyKind::default(),
            owner: 0,
            planted: None,
        }
    }
}

/// A cache of points by key and time, on a file. Share it; every call may come from any thread.
///
/// Lock order: `lane`, then `state`. Neither is held while a reader or writer of the cache does I/O; `lane` is held
/// over the I/O of [`Store::work`].
pub struct Store {
    disk: Arc<dyn Disk>,
    folder: String,
    device: Device,
    options: StoreOptions,
    lane: Mutex<()>,
    state: Mutex<State>,
}

struct State {
    fields: BTreeMap<u64, Field>,
    nodes: BTreeMap<SlabId, Node>,
    policy: Policy,
    /// Places that were used and are free.
    free_slots: Vec<u32>,
    /// Places from here on were never used.
    fresh_slot: u32,
    /// Places there are.
    slot_count: u32,
    /// Slabs that went while somebody reads them.
    dying: Vec<Arc<FlashSlab>>,
    /// Slabs whose headers are in memory, the first one first, with their bytes.
    headers: VecDeque<(Arc<FlashSlab>, u64)>,
    header_bytes: u64,
    next_generation: u64,
    /// The largest number of a snapshot that anybody came with: every change up to it has been told.
    heard: CommitSeq,
    /// A change may come up in a crash that what is cached from now on does not know.
    is_doubted: bool,
    memory: Memory,
    /// In a row, of writes and of reads: a device may do the one and not the other.
    write_failures: u32,
    read_failures: u32,
    is_off: bool,
    planted: Option<Planted>,
    /// Whoever does [`Store::work`].
    wake: Arc<Wake>,
    /// Crowds are looked at again when so many slabs were written.
    crowds_at: u64,
    stats: StoreStats,
}

/// What is held in memory, and what of it is counted where.
struct Memory {
    budget: Budget,
    reservation: Reservation,
    segment_count: u64,
    key_count: u64,
    /// Key texts, notes, heads.
    text_bytes: u64,
    /// Open and sealed slabs.
    slab_bytes: u64,
    node_key_count: u64,
}

#[derive(Default)]
struct Field {
    keys: HashMap<Arc<[u8]>, Entry>,
    open: Option<SlabId>,
}

/// A slab node: the second layer of the index.
struct Node {
    field: u64,
    /// The times of its points and of what is complete in it.
    range: TimeRange,
    body: Body,
    /// How many segments each key has in it.
    keys: HashMap<Arc<[u8]>, u32>,
    is_compacted: bool,
    /// It takes over from slabs that were in the LRU partition.
    is_hot: bool,
}

enum Body {
    Open(Box<OpenSlab>),
    Sealed(Arc<OpenSlab>),
    Flash(Arc<FlashSlab>),
}

/// A slab in the file. Its place is given to another only when nobody holds this any more.
struct FlashSlab {
    preamble: Preamble,
    /// Every change up to this one had been applied to what the index has of it when it came in.
    heard: CommitSeq,
    /// Bytes of its payloads when it was written, about.
    payload_bytes: u64,
    /// The texts of its key array.
    keys: Vec<Arc<[u8]>>,
    header: Mutex<Option<Arc<Header>>>,
}

/// A point on its way in.
#[derive(Clone, Debug)]
pub struct Point<'a> {
    /// When.
    pub ts: Timestamp,
    /// What it shares with its neighbours; stored once per slab.
    pub head: Option<Arc<[u8]>>,
    /// What.
    pub payload: &'a [u8],
}

/// A key that is in the cache.
#[derive(Clone, Debug)]
pub struct KeySummary {
    /// The key.
    pub text: Arc<[u8]>,
    /// What came with its first fill.
    pub note: Arc<[u8]>,
    /// What is complete of it lies in this range.
    pub hull: TimeRange,
}

/// A range of one key that is complete.
#[derive(Debug)]
pub struct Fill<'a> {
    /// Whose points.
    pub key: &'a [u8],
    /// Which of them.
    pub field: u64,
    /// The range that `points` are all of.
    pub range: TimeRange,
    /// The snapshot that they were computed from.
    pub number: CommitSeq,
    /// What the owner of the key wants to have back after a restart.
    pub note: &'a [u8],
    /// In the order of time, inside `range`.
    pub points: &'a [Point<'a>],
}

/// Counters since the cache was opened, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Questions that were answered in full.
    pub hits: u64,
    /// Questions that were answered in part.
    pub partial_hits: u64,
    /// Questions that were not answered.
    pub misses: u64,
    /// Bytes given in full answers: of points in memory, of blocks read.
    pub hit_bytes: u64,
    /// The same in answers in part.
    pub partial_bytes: u64,
    /// Partial answers that were not given because they were too small.
    pub partial_declined: u64,
    /// Pieces of slabs that questions read from the file.
    pub reads: u64,
    /// Bytes read from the file.
    pub read_bytes: u64,
    /// Bytes of points that were set.
    pub set_bytes: u64,
    /// Bytes written to the file.
    pub written_bytes: u64,
    /// Sets that were not kept, or not all of them.
    pub refused: u64,
    /// Slabs written.
    pub slabs_written: u64,
    /// Slabs merged into others.
    pub slabs_compacted: u64,
    /// Slabs that had to go and of which something was kept, because it had been asked for.
    pub slabs_rescued: u64,
    /// Damaged slabs that were dropped.
    pub slabs_corrupt: u64,
    /// Writes and reads that the device failed.
    pub device_failures: u64,
    /// Whether the cache gave up on its device.
    pub is_off: bool,
    /// Keys.
    pub keys: u64,
    /// Ranges of keys.
    pub extents: u64,
    /// Slabs in the file.
    pub slabs: u64,
    /// Bytes of memory in use.
    pub memory_bytes: u64,
    /// Who is where.
    pub policy: PolicyStats,
}

impl Store {
    /// Keeps a range, or as much of it as there is room for now; what was known of it before is replaced.
    /// Returns the part that is kept, from the start of the range.
    ///
    /// # Panics
    /// If the points are not in order or not inside the range.
    pub fn set(&self, fill: &Fill<'_>) -> TimeRange {
        assert!(fill.points.is_sorted_by_key(|point| point.ts), "points come in order");
        let (first, last) = (fill.points.first(), fill.points.last());
        let inside = |point: Option<&Point<'_>>| point.is_none_or(|p| fill.range.contains(p.ts));
        assert!(inside(first) && inside(last), "points lie inside the range that they complete");
        self.state.lock().set(fill, &self.options)
    }

    /// Forgets what is known of a range of a key. Returns whether there is such a key.
    pub fn trim(&self, key: &[u8], field: u64, range: TimeRange) -> bool {
        if self.options.planted == Some(Planted::TrimForgotten) {
            return true;
        }
        self.state.lock().trim(key, field, range)
    }

    /// Tells a change again that was told before the last end: what was written without knowing of it is forgotten.
    pub fn replay(&self, number: CommitSeq, key: &[u8], field: u64, range: TimeRange) {
        if self.options.planted == Some(Planted::ReplayIgnored) {
            return;
        }
        self.state.lock().replay(number, key, field, range);
    }

    /// Whom a slab wakes that is to be written.
    pub fn wake(&self) -> Arc<Wake> {
        Arc::clone(&self.state.lock().wake)
    }

    /// What the newest points of a key share.
    pub fn last_head(&self, key: &[u8], field: u64) -> Option<Arc<[u8]>> {
        let state = self.state.lock();
        state.fields.get(&field)?.keys.get(key)?.last_head.clone()
    }

    /// Whether anything of a key is there.
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

    /// A snapshot with this number was seen: every change up to it has been told and applied.
    pub fn heard(&self, number: CommitSeq) {
        let mut state = self.state.lock();
        state.heard = state.heard.max(number);
    }

    /// Whether what is written from now on outlives nothing but a checkpoint: its owner may have, after a crash, another
    /// past than what it is computed from. While it is so there are no checkpoints.
    pub fn set_doubted(&self, is_doubted: bool) {
        self.state.lock().is_doubted =
            is_doubted && self.options.planted != Some(Planted::DoubtIgnored);
    }

    /// Forgets everything; the file stays.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        let slabs: Vec<SlabId> = state.nodes.keys().copied().collect();
        slabs.into_iter().for_each(|slab| state.remove_slab(slab));
    }

    /// Numbers at this moment.
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

impl State {
    fn set(&mut self, fill: &Fill<'_>, options: &StoreOptions) -> TimeRange {
        self.heard = self.heard.max(fill.number);
        let payload: usize = fill.points.iter().map(|point| point.payload.len()).sum();
        let wanted = payload + fill.points.len() * 128 + fill.key.len() + fill.note.len() + 4096;
        if fill.range.is_empty() || self.is_off || !self.make_room_in_memory(wanted as u64) {
            self.stats.refused += u64::from(!fill.range.is_empty());
            return TimeRange::EMPTY;
        }
        // What is replaced goes first: the open slab may have points of it.
        self.trim(fill.key, fill.field, fill.range);
        self.stats.set_bytes += payload as u64;
        let kept = self.set_pieces(fill, options);
        self.stats.refused += u64::from(kept != fill.range);
        self.settle_memory();
        kept
    }

    /// Puts the points into open slabs, one after the other as they become full.
    fn set_pieces(&mut self, fill: &Fill<'_>, options: &StoreOptions) -> TimeRange {
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
            let cleared = match options.planted {
                Some(Planted::OldPointsKept) => TimeRange::EMPTY,
                _ => TimeRange::new(start, fill.range.end),
            };
            let taken = push_points(open, &text, fill, cleared, rest, &|open, more| {
                open.slab_bytes(extent_bytes) + more <= filled_bytes_max(options.slab_bytes)
            });
            if let Some(taken) = taken.filter(|&taken| taken > 0 || rest.is_empty()) {
                let (now, later) = rest.split_at(taken);
                // What has no points is complete up to the next one.
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
                // Even alone in a slab the next point does not fit.
                break;
            }
            self.seal(fill.field);
        }
        kept
    }

    /// The slab of a field that takes points; `None` if too many wait for the device.
    fn open_slab(&mut self, field: u64, options: &StoreOptions) -> Option<SlabId> {
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

    /// Slabs that wait for the device.
    fn waiting(&self) -> usize {
        self.nodes.values().filter(|node| matches!(node.body, Body::Sealed(_))).count()
    }

    fn draw_generation(&mut self) -> u64 {
        self.next_generation += 1;
        self.next_generation
    }

    /// Ends the open slab of a field; [`Store::work`] writes it.
    fn seal(&mut self, field: u64) {
        let Some(slab) = self.fields.get_mut(&field).and_then(|field| field.open.take()) else {
            return;
        };
        let Some(mut node) = self.nodes.remove(&slab) else { return };
        node.body = match node.body {
            // Nothing of it can be reached: it need not be written.
            Body::Open(_) if node.keys.is_empty() => return,
            Body::Open(open) => Body::Sealed(Arc::new(*open)),
            other => other,
        };
        self.nodes.insert(slab, node);
        self.wake.call();
    }

    fn add_segment(
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
            Entry::new(fill.note)
        });
        if let Some(last) = fill.points.last() {
            entry.last_head.clone_from(&last.head);
        }
        let mut deltas = Deltas::new();
        entry.insert(range, segment, &mut deltas);
        self.apply(fill.field, text, deltas);
    }

    fn trim(&mut self, key: &[u8], field: u64, range: TimeRange) -> bool {
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

    fn replay(&mut self, number: CommitSeq, key: &[u8], field: u64, range: TimeRange) {
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

    /// A key has more or fewer segments in some slabs; a slab without any is gone.
    fn apply(&mut self, field: u64, text: &Arc<[u8]>, deltas: Deltas) {
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

    fn drop_key_if_empty(&mut self, field: u64, text: &Arc<[u8]>) {
        let Some(found) = self.fields.get_mut(&field) else { return };
        if found.keys.get(text).is_some_and(Entry::is_empty)
            && let Some(entry) = found.keys.remove(text)
        {
            self.memory.key_count -= 1;
            self.memory.text_bytes -= (text.len() + entry.note.len()) as u64;
        }
    }

    /// Takes a slab out of the index with all that it has; its place becomes free.
    fn remove_slab(&mut self, slab: SlabId) {
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

    /// Takes a node out and frees its place, now or when its readers have left.
    fn take_node(&mut self, slab: SlabId) -> Option<Node> {
        let node = self.nodes.remove(&slab)?;
        if let Body::Flash(flash) = &node.body {
            self.forget_header(flash);
            self.dying.push(Arc::clone(flash));
        }
        Some(node)
    }

    /// A slab cannot be read.
    fn lose(&mut self, slab: SlabId, error: &Error) {
        match error.kind() {
            firn_model::ErrorKind::Corrupt { .. } => self.stats.slabs_corrupt += 1,
            _ => {
                self.read_failures += 1;
                self.device_failed();
            }
        }
        self.remove_slab(slab);
    }

    fn device_failed(&mut self) {
        self.stats.device_failures += 1;
        self.is_off |= self.write_failures.max(self.read_failures) >= FAILURES_MAX;
    }

    fn forget_header(&mut self, slab: &Arc<FlashSlab>) {
        if let Some(idx) = self.headers.iter().position(|(other, _)| Arc::ptr_eq(slab, other))
            && let Some((_, bytes)) = self.headers.remove(idx)
        {
            self.header_bytes -= bytes;
        }
    }

    /// Reserves for what comes. Slabs go for that, the next ones, if what a few of them have of the index is enough: it is
    /// some kilobytes each, and memory that others hold does not come back by it.
    fn make_room_in_memory(&mut self, bytes: u64) -> bool {
        const VICTIMS_MAX: usize = 4;
        if self.memory.reservation.grow(bytes).is_ok() {
            return true;
        }
        let missing = self.memory.budget.missing_bytes(Pool::Cache, bytes);
        let (mut victims, mut freed) = (Vec::new(), 0);
        for slab in self.policy.next_to_go(VICTIMS_MAX) {
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

    /// Makes the reservation what is really held.
    fn settle_memory(&mut self) {
        let slabs = self.nodes.values().map(|node| match &node.body {
            Body::Open(slab) => slab.heap_bytes(),
            Body::Sealed(slab) => slab.heap_bytes(),
            Body::Flash(_) => 0,
        });
        let memory = &mut self.memory;
        memory.slab_bytes = slabs.sum();
        let held = memory.segment_count * SEGMENT_BYTES
            + memory.key_count * KEY_BYTES
            + memory.text_bytes
            + memory.slab_bytes
            + memory.node_key_count * NODE_KEY_BYTES
            + self.nodes.len() as u64 * NODE_BYTES
            + self.header_bytes;
        let reserved = memory.reservation.bytes();
        if held > reserved {
            // What was reserved before was meant to be enough; if not, the next set is refused.
            let _ = memory.reservation.grow(held - reserved);
        } else {
            memory.reservation.shrink(reserved - held);
        }
    }

    /// A slab goes for want of room.
    fn evict(&mut self, slab: SlabId) {
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
    fn new(field: u64, body: Body) -> Node {
        Node {
            field,
            range: TimeRange::EMPTY,
            body,
            keys: HashMap::new(),
            is_compacted: false,
            is_hot: false,
        }
    }

    fn is_on_flash(&self) -> bool {
        matches!(self.body, Body::Flash(_))
    }

    /// What the index has of it in memory, about.
    fn index_bytes(&self) -> u64 {
        let segment_count: u64 = self.keys.values().map(|&count| u64::from(count)).sum();
        NODE_BYTES + self.keys.len() as u64 * NODE_KEY_BYTES + segment_count * SEGMENT_BYTES
    }
}

/// Adds the key and as many points as there is room for, all or none of one timestamp. `None` if there is not even
/// room for the key.
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

/// Up to where a slab is filled with points. Changes may cut what is complete into more extents until it is written.
fn filled_bytes_max(slab_bytes: u32) -> usize {
    slab_bytes as usize / 64 * 63
}

fn hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
