//! Compaction: merges slabs that overlap in time into slabs that follow each other, each point
//! once, where that frees slots. The index never has a point twice, so the gain is the points that
//! changes and newer answers made unreachable.
//!
//! It merges the newest fresh slabs first, some at a time (TSCache 3.7: old ones will soon be
//! evicted anyway). Merged slabs do not count as crowded any more, but are merged again where fresh
//! slabs overlap them. The outputs wait in memory and are written like all sealed slabs; the slots
//! of the inputs are free at once.
//!
//! The used ranges of evicted slabs move in the same way: see `rescue`.

use std::collections::HashMap;
use std::sync::Arc;

use firn_model::{Pool, Reservation, Result, TimeRange, Timestamp};

use super::state::{Body, EXTENT_BYTES, FlashSlab, Node, Store, StoreOptions, StoreState};
use crate::key_index::{Deltas, Segment};
use crate::mutant::mutant;
use crate::policy::SlabId;
use crate::slab::{BLOCK_BYTES, OpenSlab, SLAB_POINT_BYTES};

/// Slabs are merged if their reachable points take at most this share of their slots.
const MERGED_SHARE_MAX: f64 = 0.75;

/// A source's blocks and its header take at most this number of slabs before they are decoded.
const READ_SLABS: u64 = 2;
/// Memory of a key that moves, beside its segments.
const LIVE_KEY_BYTES: usize = 96;

/// A planned merge.
pub(super) struct Merge {
    field: u64,
    sources: Vec<(SlabId, Arc<FlashSlab>)>,
    /// The ranges of each key that move.
    live: HashMap<Arc<[u8]>, LiveKey>,
    is_hot: bool,
    /// Whether the sources are evicted: ranges that do not move are lost.
    is_rescue: bool,
    slab_bytes: usize,
    /// Memory of the plan and of reading a source; grows by the decoded points.
    memory: Reservation,
}

struct LiveKey {
    note: Arc<[u8]>,
    /// Ordered by time; each range with the segment it is a part of.
    segments: Vec<(TimeRange, Segment)>,
}

/// A point of a source, with its key.
struct Gathered {
    ts: Timestamp,
    key: Arc<[u8]>,
    head: Option<Arc<[u8]>>,
    payload: Box<[u8]>,
}

/// The sources were read, and their points make these slabs.
struct Merged {
    outputs: Vec<Output>,
    /// Whether no point was dropped that needs more than one slab.
    is_complete: bool,
}

/// A slab that was written, and the time range for which it replaces the sources.
struct Output {
    slab: OpenSlab,
    range: TimeRange,
}

/// A slab of a crowd: its times, its id, whether compaction wrote it.
type Candidate = (TimeRange, SlabId, bool);

impl StoreState {
    /// Some slabs of a crowd that are worth merging.
    pub(super) fn plan_merge(&mut self, options: &StoreOptions) -> Option<Merge> {
        let (trigger, slab_bytes) = (options.compaction_trigger, options.slab_bytes);
        if self.stats.slabs_written < self.crowds_at {
            return None;
        }
        let fields = self.fields.keys();
        let crowds = fields.filter_map(|&field| Some((field, self.newest_crowd(field, trigger)?)));
        let newest = |crowd: &(u64, Vec<Candidate>)| crowd.1.iter().map(|one| one.0.end).max();
        let (_, crowd) = crowds.max_by_key(newest)?;
        let chosen = choose(crowd, trigger);
        // Outputs that take nearly as many slots are written for nothing.
        let live: f64 =
            chosen.iter().map(|&id| self.share_of(id, slab_bytes, |range, _| range)).sum();
        let is_worth_it = live <= MERGED_SHARE_MAX * chosen.len() as f64;
        // Policies that evict whole slabs merge every crowd, as in the paper.
        if self.policy.keeps_used_ranges() && !is_worth_it {
            self.postpone_merges(trigger);
            return None;
        }
        let is_hot = chosen.iter().any(|&id| self.policy.is_hot(id));
        self.merge_of(&chosen, slab_bytes, is_hot, false)
    }

    /// The next crowd is considered once more slabs are written.
    fn postpone_merges(&mut self, trigger: usize) {
        self.crowds_at = self.stats.slabs_written + (trigger as u64 / 4).max(1);
    }

    /// Plans the merge of some slabs of one field; `None` while there is no memory for it.
    pub(super) fn merge_of(
        &self,
        chosen: &[SlabId],
        slab_bytes: u32,
        is_hot: bool,
        is_rescue: bool,
    ) -> Option<Merge> {
        let field = self.nodes.get(chosen.first()?)?.field;
        // From the cache's pool, not from that of jobs, which calls reclaimers: not under this
        // lock.
        let mut memory = self.memory.budget.empty(Pool::Cache);
        // The blocks and the header of one source at a time. Without memory the merge waits: a
        // crowd is harmless.
        memory.grow(READ_SLABS * u64::from(slab_bytes)).ok()?;
        let sources: Vec<(SlabId, Arc<FlashSlab>)> = chosen
            .iter()
            .filter_map(|&id| match &self.nodes.get(&id)?.body {
                Body::Flash(flash) => Some((id, Arc::clone(flash))),
                _ => None,
            })
            .collect();
        let mut live = HashMap::new();
        let keys = &self.fields.get(&field)?.keys;
        let texts = chosen.iter().filter_map(|id| self.nodes.get(id)).flat_map(|n| n.keys.keys());
        let moving = |(range, segment): (TimeRange, Segment)| {
            let part = if is_rescue { range.intersect(segment.used) } else { range };
            (!part.is_empty() && chosen.contains(&segment.slab)).then_some((part, segment))
        };
        for text in texts {
            let Some(entry) = keys.get(text) else { continue };
            if live.contains_key(text) {
                continue;
            }
            let segment_count = entry.segments().filter_map(moving).count();
            let bytes = LIVE_KEY_BYTES + segment_count * size_of::<(TimeRange, Segment)>();
            memory.grow(bytes as u64).ok()?;
            live.entry(Arc::clone(text)).or_insert_with(|| LiveKey {
                note: Arc::clone(&entry.note),
                segments: entry.segments().filter_map(moving).collect(),
            });
        }
        let slab_bytes = slab_bytes as usize;
        Some(Merge { field, sources, live, is_hot, is_rescue, slab_bytes, memory })
    }

    /// The newest crowd: slabs of one virtual time range (TSCache 3.5: a chain of overlapping
    /// slabs) of which more than `trigger` are fresh.
    fn newest_crowd(&self, field: u64, trigger: usize) -> Option<Vec<Candidate>> {
        let own = self.nodes.iter().filter(|one| one.1.field == field && one.1.is_on_flash());
        let mut slabs: Vec<Candidate> =
            own.map(|(&id, node)| (node.range, id, node.is_compacted)).collect();
        slabs.sort_by_key(|one| (one.0.start, one.1));
        let mut found = None;
        let mut crowd: Vec<Candidate> = Vec::new();
        let mut end = Timestamp::MIN;
        let is_crowded = |crowd: &[Candidate]| crowd.iter().filter(|one| !one.2).count() > trigger;
        for slab in slabs {
            if slab.0.start > end && !crowd.is_empty() {
                found = is_crowded(&crowd).then(|| crowd.clone()).or(found);
                crowd.clear();
            }
            end = end.max(slab.0.end);
            crowd.push(slab);
        }
        if is_crowded(&crowd) { Some(crowd) } else { found }
    }

    /// Replaces the reachable ranges of the sources by the outputs, and removes the sources.
    fn merged(&mut self, merge: &Merge, outputs: Vec<Output>) {
        let is_source = |slab: SlabId| merge.sources.iter().any(|source| source.0 == slab);
        for Output { slab, range } in outputs {
            let id = self.draw_generation();
            let texts = slab.keys().to_vec();
            let mut node = Node::new(merge.field, Body::Sealed(Arc::new(slab)));
            node.is_compacted = true;
            node.is_hot = merge.is_hot;
            self.nodes.insert(id, node);
            for text in texts {
                let Some(field) = self.fields.get_mut(&merge.field) else { continue };
                let Some(entry) = field.keys.get_mut(&text) else { continue };
                let live = merge.live.get(&text).into_iter().flat_map(|key| &key.segments);
                let parts = live.flat_map(|(part, whole)| {
                    let is_whole = mutant!(self, RescuedWhole);
                    let part = if is_whole { TimeRange::new(part.start, whole.end) } else { *part };
                    entry.within(part.intersect(range))
                });
                let moved: Vec<(TimeRange, Segment)> =
                    parts.filter(|one| is_source(one.1.slab)).collect();
                let mut deltas = Deltas::new();
                for (part, segment) in &moved {
                    let used = match merge.is_rescue {
                        // Kept once more only if it is used once more.
                        true => TimeRange::EMPTY,
                        false => segment.used.intersect(*part),
                    };
                    entry.insert(*part, Segment { slab: id, used, ..*segment }, &mut deltas);
                }
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.range = moved.iter().fold(node.range, |all, one| all.union(one.0));
                }
                self.apply(merge.field, &text, deltas);
            }
            if self.nodes.get(&id).is_some_and(|node| node.keys.is_empty()) {
                self.take_node(id);
            }
        }
        for &(id, _) in &merge.sources {
            let count = match merge.is_rescue {
                true => &mut self.stats.slabs_rescued,
                false => &mut self.stats.slabs_compacted,
            };
            *count += 1;
            if merge.is_rescue && self.nodes.contains_key(&id) {
                self.evict(id);
            } else {
                self.remove_slab(id);
            }
        }
        self.fit_memory();
    }
}

impl Store {
    pub(super) fn merge(&self, mut merge: Merge) {
        let mut memory = merge.memory.split(u64::MAX);
        let merged = self.run_merge(&merge, &mut memory);
        let mut state = self.state.lock();
        // The outputs count for the state from here on.
        drop(memory);
        match merged {
            Some(Merged { outputs, is_complete }) if is_complete || merge.is_rescue => {
                state.merged(&merge, outputs);
            }
            // Evicted without the used ranges: a slab that waits needs their place.
            None if merge.is_rescue => state.merged(&merge, Vec::new()),
            // There is no memory, or the points of one time need several slabs, in which they are
            // already.
            _ => state.postpone_merges(self.options.compaction_trigger),
        }
    }

    /// Reads the sources and makes the outputs; `None` without memory.
    fn run_merge(&self, merge: &Merge, memory: &mut Reservation) -> Option<Merged> {
        let mut gathered = Gather { points: Vec::new(), bytes: 0, held: memory.split(0) };
        for (id, slab) in &merge.sources {
            let before = gathered.points.len();
            match self.gather(*id, slab, &merge.live, &mut gathered) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    gathered.points.truncate(before);
                    self.state.lock().lose(*id, &error);
                }
            }
        }
        gathered.points.sort_by(|a, b| (a.ts, &a.key).cmp(&(b.ts, &b.key)));
        let mut outputs_held = memory.split(0);
        let merged = cut(&gathered.points, merge, &mut outputs_held);
        memory.merge(outputs_held);
        merged
    }

    /// The reachable points of a slab. `false` without memory for them: points that many keys
    /// share take many times the bytes of the slab.
    fn gather(
        &self,
        id: SlabId,
        slab: &FlashSlab,
        live: &HashMap<Arc<[u8]>, LiveKey>,
        out: &mut Gather,
    ) -> Result<bool> {
        let header = self.read_header(slab.preamble)?;
        let mut header_held = out.held.split(0);
        if header_held.grow(header.heap_bytes()).is_err() {
            return Ok(false);
        }
        let blocks = 0..(slab.preamble.data_bytes as usize).div_ceil(BLOCK_BYTES);
        let mut bytes = vec![0; slab.preamble.data_bytes as usize];
        self.device.read(slab.preamble.slot, slab.preamble.data_at(), &mut bytes)?;
        header.check(self.device.path(), &blocks, &bytes)?;
        self.state.lock().stats.read_bytes += bytes.len() as u64;
        let mut has_room = true;
        header.walk(self.device.path(), &blocks, &bytes, &mut |point| {
            for position in header.positions(point.set) {
                let key = &header.keys[position].text;
                let Some(segments) = live.get(key).map(|key| &key.segments) else { continue };
                let idx = segments.partition_point(|one| one.0.end < point.ts);
                let owner = segments.get(idx).filter(|one| one.0.contains(point.ts));
                if owner.is_some_and(|one| one.1.slab == id) {
                    let head = point.head.and_then(|head| header.head(head));
                    has_room = out.push((point.ts, point.payload), key, head);
                }
                if !has_room {
                    break;
                }
            }
            has_room
        })?;
        Ok(has_room)
    }
}

/// Points of sources, and their memory.
struct Gather {
    points: Vec<Gathered>,
    bytes: u64,
    held: Reservation,
}

impl Gather {
    /// Adds a point of `key`. `false` without memory.
    fn push(
        &mut self,
        (ts, payload): (Timestamp, &[u8]),
        key: &Arc<[u8]>,
        head: Option<&Arc<[u8]>>,
    ) -> bool {
        // A list that grows, and beside it the half that sorting needs.
        const POINT_BYTES: usize = 3 * size_of::<Gathered>();
        self.bytes += (POINT_BYTES + payload.len().next_multiple_of(16)) as u64;
        if self.held.cover(self.bytes).is_err() {
            return false;
        }
        let (key, head, payload) = (Arc::clone(key), head.cloned(), Box::from(payload));
        self.points.push(Gathered { ts, key, head, payload });
        true
    }
}

/// The newest fresh slabs, and the merged slabs that overlap them.
fn choose(crowd: Vec<Candidate>, trigger: usize) -> Vec<SlabId> {
    let (mut compacted, mut fresh): (Vec<_>, Vec<_>) = crowd.into_iter().partition(|one| one.2);
    for slabs in [&mut compacted, &mut fresh] {
        slabs.sort_by_key(|one| std::cmp::Reverse((one.0.end, one.1)));
    }
    fresh.truncate(trigger.max(2));
    let hull = fresh.iter().fold(TimeRange::EMPTY, |all, one| all.union(one.0));
    compacted.retain(|one| one.0.overlaps(hull));
    compacted.truncate(trigger.max(2));
    fresh.iter().chain(&compacted).map(|one| one.1).collect()
}

/// Cuts the points into slabs; all points of one timestamp stay together. Those that need more than
/// one slab are dropped. `None` without memory.
fn cut(points: &[Gathered], merge: &Merge, held: &mut Reservation) -> Option<Merged> {
    // A 16th for extents and for keys with a complete range but no point.
    let room = merge.slab_bytes / 16 * 15;
    let mut outputs = Vec::new();
    let mut outputs_bytes = 0;
    let mut slab = OpenSlab::new(merge.field);
    let mut start = Timestamp::MIN;
    for group in points.chunk_by(|a, b| a.ts == b.ts) {
        let ts = group[0].ts;
        let cost: usize = group
            .iter()
            .map(|point| {
                let note_bytes = merge.live.get(&point.key).map_or(0, |key| key.note.len());
                slab.key_cost(&point.key, note_bytes)
                    + slab.shared_cost(point.head.as_ref())
                    + SLAB_POINT_BYTES
                    + point.payload.len()
            })
            .sum();
        if !slab.is_empty() && slab.slab_bytes(0) + cost > room {
            let full = std::mem::replace(&mut slab, OpenSlab::new(merge.field));
            outputs_bytes += full.heap_bytes();
            outputs.push(Output { slab: full, range: TimeRange::new(start, ts - 1) });
            start = ts;
        }
        for point in group {
            // Keys that share points take memory by the square of their number: nothing is added to
            // a slab that is dropped below.
            if slab.slab_bytes(0) > merge.slab_bytes {
                break;
            }
            let note_bytes = merge.live.get(&point.key).map_or(0, |key| key.note.len());
            let position = slab.add_key(&point.key, note_bytes);
            slab.push(position, ts, point.head.as_ref(), &point.payload);
        }
        held.cover(outputs_bytes + slab.heap_bytes()).ok()?;
    }
    outputs.push(Output { slab, range: TimeRange::new(start, Timestamp::MAX) });
    outputs.iter_mut().for_each(|output| add_keys_without_points(output, merge));
    let is_complete = outputs.iter().all(|output| {
        let extent_bytes = extent_count(output, merge) * EXTENT_BYTES;
        output.slab.slab_bytes(extent_bytes) <= merge.slab_bytes
    });
    outputs.retain(|output| output.slab.slab_bytes(0) <= merge.slab_bytes);
    Some(Merged { outputs, is_complete })
}

/// Extents of an output: a slab has to have room for them when it is written.
fn extent_count(output: &Output, merge: &Merge) -> usize {
    let keys = output.slab.keys().iter().filter_map(|text| merge.live.get(text));
    let is_here = |one: &&(TimeRange, Segment)| one.0.overlaps(output.range);
    keys.map(|key| key.segments.iter().filter(is_here).count()).sum()
}

/// Adds keys whose range is complete but empty: they have to be in the slab too.
fn add_keys_without_points(output: &mut Output, merge: &Merge) {
    let room = merge.slab_bytes / 32 * 31;
    for (text, key) in &merge.live {
        let is_here = key.segments.iter().any(|one| one.0.overlaps(output.range));
        let cost = output.slab.key_cost(text, key.note.len());
        if is_here && output.slab.slab_bytes(0) + cost <= room {
            output.slab.add_key(text, key.note.len());
        }
    }
}
