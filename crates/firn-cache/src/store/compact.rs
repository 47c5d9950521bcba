//! Compaction: slabs over the same time become slabs one after the other, every point once. Only where that gives places
//! back: the index never has a point twice, so it is what changes and newer answers left behind that goes.
//!
//! The newest fresh slabs first, some at a time (TSCache 3.7: old ones will soon be gone anyway). What compaction made
//! counts as crowded no more, but is taken along where fresh slabs lie over it. The outputs wait in memory and go
//! to the file like all sealed slabs; the places of the inputs are free at once.
//!
//! In the same way, what was asked for of slabs that have to go moves into others: see `rescue`.

use super::*;
use crate::slab::BLOCK_BYTES;

/// Slabs are merged if what they still have takes at most this share of their places.
const MERGED_SHARE_MAX: f64 = 0.75;

/// What is merged.
pub(super) struct Merge {
    field: u64,
    sources: Vec<(SlabId, Arc<FlashSlab>)>,
    /// What of each key moves.
    live: HashMap<Arc<[u8]>, LiveKey>,
    is_hot: bool,
    /// The sources go for want of room: what does not move was evicted.
    is_rescue: bool,
    slab_bytes: usize,
    /// Inputs and outputs in memory.
    _memory: Reservation,
}

struct LiveKey {
    note: Arc<[u8]>,
    /// In the order of time, each a part of the segment beside it.
    segments: Vec<(TimeRange, Segment)>,
}

/// A point of a source and whose it is.
struct Gathered {
    ts: Timestamp,
    key: Arc<[u8]>,
    head: Option<Arc<[u8]>>,
    payload: Box<[u8]>,
}

/// A slab that comes out, and the time for which it takes over from the sources.
struct Output {
    slab: OpenSlab,
    range: TimeRange,
}

/// A slab of a crowd: its times, who it is, whether compaction made it.
type Candidate = (TimeRange, SlabId, bool);

impl State {
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
        // What takes nearly as many places afterwards is written for nothing.
        let live: f64 =
            chosen.iter().map(|&id| self.share_of(id, slab_bytes, |range, _| range)).sum();
        let is_worth_it = live <= MERGED_SHARE_MAX * chosen.len() as f64;
        // The policies that go by whole slabs are the paper's, with all that belongs to them.
        if options.policy == PolicyKind::UsedRanges && !is_worth_it {
            self.crowds_at = self.stats.slabs_written + (trigger as u64 / 4).max(1);
            return None;
        }
        let is_hot = chosen.iter().any(|&id| self.policy.is_hot(id));
        self.merge_of(&chosen, slab_bytes, is_hot, false)
    }

    /// What it takes to merge some slabs of one field; `None` while there is no memory for it.
    pub(super) fn merge_of(
        &self,
        chosen: &[SlabId],
        slab_bytes: u32,
        is_hot: bool,
        is_rescue: bool,
    ) -> Option<Merge> {
        let field = self.nodes.get(chosen.first()?)?.field;
        let bytes = 3 * chosen.len() as u64 * u64::from(slab_bytes);
        // Of the cache, not of jobs: for those others are asked to give back, which must not happen under this lock.
        let mut memory = self.memory.budget.empty(Pool::Cache);
        // Without memory it waits: nothing is wrong with a crowd but its size.
        memory.grow(bytes).ok()?;
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
            live.entry(Arc::clone(text)).or_insert_with(|| LiveKey {
                note: Arc::clone(&entry.note),
                segments: entry.segments().filter_map(moving).collect(),
            });
        }
        let slab_bytes = slab_bytes as usize;
        Some(Merge { field, sources, live, is_hot, is_rescue, slab_bytes, _memory: memory })
    }

    /// The slabs of a virtual time range (TSCache 3.5: times that hang together) with more than `trigger` fresh
    /// ones; the newest such range.
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

    /// The outputs take over what can still be reached in the sources; the sources go.
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
                    let is_whole = self.planted == Some(Planted::RescuedWhole);
                    let part = if is_whole { TimeRange::new(part.start, whole.end) } else { *part };
                    entry.within(part.intersect(range))
                });
                let moved: Vec<(TimeRange, Segment)> =
                    parts.filter(|one| is_source(one.1.slab)).collect();
                let mut deltas = Deltas::new();
                for (part, segment) in &moved {
                    let used = match merge.is_rescue {
                        // To stay once more it has to be asked for once more.
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
        self.settle_memory();
    }
}

impl Store {
    pub(super) fn merge(&self, merge: Merge) {
        let mut points = Vec::new();
        for (id, slab) in &merge.sources {
            let before = points.len();
            if let Err(error) = self.gather(*id, slab, &merge.live, &mut points) {
                points.truncate(before);
                self.state.lock().lose(*id, &error);
            }
        }
        points.sort_by(|a, b| (a.ts, &a.key).cmp(&(b.ts, &b.key)));
        let outputs = cut(&points, &merge);
        self.state.lock().merged(&merge, outputs);
    }

    /// The points of a slab that can be reached.
    fn gather(
        &self,
        id: SlabId,
        slab: &FlashSlab,
        live: &HashMap<Arc<[u8]>, LiveKey>,
        out: &mut Vec<Gathered>,
    ) -> Result<()> {
        let header = self.read_header(slab.preamble)?;
        let blocks = 0..(slab.preamble.data_bytes as usize).div_ceil(BLOCK_BYTES);
        let mut bytes = vec![0; slab.preamble.data_bytes as usize];
        self.device.read(slab.preamble.slot, slab.preamble.data_at(), &mut bytes)?;
        header.check(self.device.path(), &blocks, &bytes)?;
        self.state.lock().stats.read_bytes += bytes.len() as u64;
        header.walk(self.device.path(), &blocks, &bytes, &mut |point| {
            for position in header.positions(point.set) {
                let key = &header.keys[position].text;
                let Some(segments) = live.get(key).map(|key| &key.segments) else { continue };
                let idx = segments.partition_point(|one| one.0.end < point.ts);
                let owner = segments.get(idx).filter(|one| one.0.contains(point.ts));
                if owner.is_some_and(|one| one.1.slab == id) {
                    out.push(Gathered {
                        ts: point.ts,
                        key: Arc::clone(key),
                        head: point.head.and_then(|head| header.head(head)).cloned(),
                        payload: Box::from(point.payload),
                    });
                }
            }
            true
        })
    }
}

/// The newest fresh slabs, and what compaction made before where these lie over it.
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

/// Cuts the points into slabs, all of one timestamp together.
fn cut(points: &[Gathered], merge: &Merge) -> Vec<Output> {
    // A 16th for extents and for keys that are complete but have no point.
    let room = merge.slab_bytes / 16 * 15;
    let mut outputs = Vec::new();
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
            outputs.push(Output { slab: full, range: TimeRange::new(start, ts - 1) });
            start = ts;
        }
        for point in group {
            let note_bytes = merge.live.get(&point.key).map_or(0, |key| key.note.len());
            let position = slab.add_key(&point.key, note_bytes);
            slab.push(position, ts, point.head.as_ref(), &point.payload);
        }
    }
    outputs.push(Output { slab, range: TimeRange::new(start, Timestamp::MAX) });
    outputs.iter_mut().for_each(|output| add_keys_without_points(output, merge));
    outputs.retain(|output| output.slab.slab_bytes(0) <= merge.slab_bytes);
    outputs
}

/// A range may be complete and empty: its key has to be in the slab all the same.
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
