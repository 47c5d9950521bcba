//! A slab that is being filled: points in memory.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::sync::Arc;

use firn_codec::varint::varint_bytes;
use firn_model::{TimeRange, Timestamp};
use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::format::{BLOCK_BYTES, KEYS_MIN, MARKER_BYTES, PREAMBLE_BYTES};

/// Upper bound of the bytes that a point adds to a slab, besides its payload.
pub(crate) const SLAB_POINT_BYTES: usize = 10 + 3 + 3 + 5;
/// Upper bound of the bytes of a set's first time: it is stored as the difference from the last
/// time of the previous set.
const FIRST_TIME_BYTES: usize = 10;
/// Memory of a point, besides its payload.
const OPEN_POINT_BYTES: usize = 112;
/// Upper bound of the bytes of a key in a slab, besides its text, its note and its extents.
const SLAB_KEY_BYTES: usize = 32;
/// Memory of a set, without its keys and points.
const SET_BYTES: usize = 128;
/// Memory of the points of a set, however few: a node of the tree.
const TREE_BYTES: usize = 11 * size_of::<(Timestamp, SmallVec<[OpenPoint; 1]>)>() + 16;
/// Memory of a key, besides its text: in three lists.
const OPEN_KEY_BYTES: usize = 112;
/// Memory of a key of a set: in the set and in the list of the key's sets.
const MEMBER_BYTES: usize = 8;
/// Most keys of all sets together, for each key: a point that one key after the other shares leaves
/// a set behind for each, so that the memory of their keys would grow with the square of the keys.
const MEMBERS_PER_KEY_MAX: usize = 16;
const MEMBERS_MIN: usize = 1_024;

/// Points in memory that will become a slab: per set of keys, the points that exactly these share,
/// ordered by time.
#[derive(Debug)]
pub(crate) struct OpenSlab {
    field: u64,
    /// Texts in the order of their positions.
    keys: Vec<Arc<[u8]>>,
    positions: HashMap<Arc<[u8]>, u32>,
    sets: Vec<KeySet>,
    set_ids: HashMap<Arc<[u32]>, u32, RandomState>,
    /// The sets of each key.
    sets_of_keys: Vec<Vec<u32>>,
    /// The set that may contain a point, by the hash of the point: used to share it.
    places: HashMap<u64, u32, RandomState>,
    heads: Vec<Arc<[u8]>>,
    head_ids: HashMap<Arc<[u8]>, u32>,
    point_count: usize,
    payload_bytes: usize,
    /// Bytes of the points in the slab: exact, except for an upper bound of each set's first time.
    data_bytes: usize,
    /// Bytes of keys and heads in the slab.
    shared_bytes: usize,
    /// Keys of all sets together.
    member_count: usize,
    /// Number of sets that have points.
    filled_count: usize,
}

/// Some keys, and the points that exactly these share.
#[derive(Debug)]
pub(crate) struct KeySet {
    /// Positions, sorted.
    pub(crate) keys: Arc<[u32]>,
    points: Points,
}

/// Nearly always there is one point per time: it is stored inside the tree.
type Points = BTreeMap<Timestamp, SmallVec<[OpenPoint; 1]>>;

#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct OpenPoint {
    pub(crate) head: Option<u32>,
    /// The text of a number is stored inline.
    pub(crate) payload: SmallVec<[u8; 16]>,
}

impl OpenSlab {
    pub(crate) fn new(field: u64) -> OpenSlab {
        OpenSlab {
            field,
            keys: Vec::new(),
            positions: HashMap::new(),
            sets: Vec::new(),
            set_ids: HashMap::default(),
            sets_of_keys: Vec::new(),
            places: HashMap::default(),
            heads: Vec::new(),
            head_ids: HashMap::new(),
            point_count: 0,
            payload_bytes: 0,
            data_bytes: 0,
            shared_bytes: 0,
            member_count: 0,
            filled_count: 0,
        }
    }

    pub(crate) fn field(&self) -> u64 {
        self.field
    }

    pub(crate) fn keys(&self) -> &[Arc<[u8]>] {
        &self.keys
    }

    pub(crate) fn position(&self, key: &[u8]) -> Option<u32> {
        self.positions.get(key).copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The times of its points.
    pub(crate) fn time_range(&self) -> TimeRange {
        let ends = |set: &KeySet| {
            Some(TimeRange::new(*set.points.first_key_value()?.0, *set.points.last_key_value()?.0))
        };
        self.sets.iter().filter_map(ends).fold(TimeRange::EMPTY, TimeRange::union)
    }

    /// Bytes of all payloads.
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.payload_bytes as u64
    }

    /// Approximate memory.
    pub(crate) fn heap_bytes(&self) -> u64 {
        let keys = self.keys.len() * OPEN_KEY_BYTES + self.shared_bytes;
        let sets = self.sets.len() * SET_BYTES
            + self.member_count * MEMBER_BYTES
            + self.filled_count * TREE_BYTES;
        (keys + sets + self.payload_bytes + self.point_count * OPEN_POINT_BYTES) as u64
    }

    /// Upper bound of the slab's bytes, given the bytes of the extents of its keys.
    pub(crate) fn slab_bytes(&self, extent_bytes: usize) -> usize {
        // A marker for each block, of which the last may be partly filled.
        let markers = (self.data_bytes / BLOCK_BYTES + 1) * MARKER_BYTES;
        let sets = self.sets.len() * (self.bit_bytes() + 5);
        // Three counts precede the keys, the bit arrays and the heads.
        let header = PREAMBLE_BYTES + 15 + self.shared_bytes + sets + markers + extent_bytes;
        header.next_multiple_of(BLOCK_BYTES) + self.data_bytes
    }

    /// Upper bound of the bytes that [`OpenSlab::add_key`] adds to the slab.
    pub(crate) fn key_cost(&self, key: &[u8], note_bytes: usize) -> usize {
        if self.positions.contains_key(key) {
            return 0;
        }
        let count = self.keys.len();
        let doubles = count >= KEYS_MIN && count.is_power_of_two();
        let doubling = if doubles { self.sets.len() * count / 8 } else { 0 };
        key.len() + note_bytes + SLAB_KEY_BYTES + doubling
    }

    /// Upper bound of the bytes that a point adds besides itself: its head, and a bit array.
    pub(crate) fn shared_cost(&self, head: Option<&Arc<[u8]>>) -> usize {
        let head = head.filter(|head| !self.head_ids.contains_key(*head));
        head.map_or(0, |head| head.len() + 5) + self.bit_bytes() + 5
    }

    fn bit_bytes(&self) -> usize {
        self.keys.len().max(KEYS_MIN).next_power_of_two() / 8
    }

    /// The position of a key, which is added if it is new, with `note_bytes` for its note.
    pub(crate) fn add_key(&mut self, key: &Arc<[u8]>, note_bytes: usize) -> u32 {
        if let Some(&position) = self.positions.get(key) {
            return position;
        }
        let position = self.keys.len() as u32;
        self.keys.push(Arc::clone(key));
        self.positions.insert(Arc::clone(key), position);
        self.sets_of_keys.push(Vec::new());
        self.shared_bytes += key.len() + note_bytes + SLAB_KEY_BYTES;
        position
    }

    /// Adds a point of the key at `position`. A point that another key has too is shared.
    pub(crate) fn push(
        &mut self,
        position: u32,
        ts: Timestamp,
        head: Option<&Arc<[u8]>>,
        payload: &[u8],
    ) {
        let point =
            OpenPoint { head: head.map(|head| self.head_id(head)), payload: payload.into() };
        let hash = self.hash(ts, &point);
        if let Some(&set) = self.places.get(&hash)
            && self.may_share(set, position, payload.len())
            && let Some(shared) = self.take(set, ts, &point)
        {
            let set = self.set_with(set, position);
            return self.put(set, ts, shared, hash);
        }
        self.point_count += 1;
        self.payload_bytes += payload.len();
        let set = self.set_id(&[position]);
        self.put(set, ts, point, hash);
    }

    /// Removes the points of a key in `range`.
    pub(crate) fn clear(&mut self, position: u32, range: TimeRange) {
        if range.is_empty() {
            return;
        }
        let sets = self.sets_of_keys.get(position as usize).cloned().unwrap_or_default();
        for set in sets {
            let points = &mut self.sets[set as usize].points;
            if points.range(range.start..=range.end).next().is_none() {
                continue;
            }
            let bytes = points_bytes(set, points);
            let mut taken = points.split_off(&range.start);
            if let Some(after) = range.end.checked_add(1) {
                points.append(&mut taken.split_off(&after));
            }
            self.data_bytes -= bytes - points_bytes(set, points);
            self.free_empty_tree(set);
            let rest = self.set_without(set, position);
            for (ts, point) in
                taken.into_iter().flat_map(|(ts, points)| points.into_iter().map(move |p| (ts, p)))
            {
                let hash = self.hash(ts, &point);
                match rest {
                    Some(rest) => self.put(rest, ts, point, hash),
                    None => {
                        self.point_count -= 1;
                        self.payload_bytes -= point.payload.len();
                        self.places.remove(&hash);
                    }
                }
            }
        }
    }

    /// Number of sets with points of a key.
    pub(crate) fn set_count(&self, position: u32) -> usize {
        self.sets_of_keys.get(position as usize).map_or(0, Vec::len)
    }

    /// The points of a key in `range`, set by set, each ordered by time.
    pub(crate) fn points_of(
        &self,
        position: u32,
        range: TimeRange,
    ) -> impl Iterator<Item = (Timestamp, &OpenPoint)> + '_ {
        let sets = self.sets_of_keys.get(position as usize).into_iter().flatten();
        sets.filter_map(|&set| self.sets.get(set as usize)).flat_map(move |set| set.points(range))
    }

    /// All points, set by set.
    pub(crate) fn points(&self) -> impl Iterator<Item = (u32, Timestamp, &OpenPoint)> + '_ {
        let sets = (0..).zip(&self.sets);
        sets.flat_map(|(id, set)| {
            set.points(TimeRange::ALL).map(move |(ts, point)| (id, ts, point))
        })
    }

    pub(crate) fn sets(&self) -> &[KeySet] {
        &self.sets
    }

    pub(crate) fn heads(&self) -> &[Arc<[u8]>] {
        &self.heads
    }

    fn head_id(&mut self, head: &Arc<[u8]>) -> u32 {
        if let Some(&id) = self.head_ids.get(head) {
            return id;
        }
        let id = self.heads.len() as u32;
        self.heads.push(Arc::clone(head));
        self.head_ids.insert(Arc::clone(head), id);
        self.shared_bytes += head.len() + 5;
        id
    }

    fn hash(&self, ts: Timestamp, point: &OpenPoint) -> u64 {
        self.places.hasher().hash_one((ts, point))
    }

    /// Removes a point equal to `like` from a set.
    fn take(&mut self, set: u32, ts: Timestamp, like: &OpenPoint) -> Option<OpenPoint> {
        let points = &mut self.sets.get_mut(set as usize)?.points;
        let same = points.get_mut(&ts)?;
        let idx = same.iter().position(|point| point == like)?;
        let point = same.swap_remove(idx);
        if same.is_empty() {
            points.remove(&ts);
        }
        self.data_bytes -= time_bytes(points, ts) + point.bytes(set);
        self.free_empty_tree(set);
        Some(point)
    }

    /// An empty tree may keep a node. To be called when points of the set were removed.
    fn free_empty_tree(&mut self, set: u32) {
        let points = &mut self.sets[set as usize].points;
        if points.is_empty() {
            *points = Points::new();
            self.filled_count -= 1;
        }
    }

    fn put(&mut self, set: u32, ts: Timestamp, point: OpenPoint, hash: u64) {
        self.places.insert(hash, set);
        let points = &mut self.sets[set as usize].points;
        self.filled_count += usize::from(points.is_empty());
        self.data_bytes += time_bytes(points, ts) + point.bytes(set);
        points.entry(ts).or_default().push(point);
    }

    /// Whether a point of a set is worth sharing with one more key. Points that are equal by chance
    /// would need a bit array for a few bytes each, and a reader reads all sets of its key.
    fn may_share(&self, set: u32, position: u32, payload_bytes: usize) -> bool {
        const PAYLOAD_BYTES_LARGE: usize = 256;
        let keys = &self.sets[set as usize].keys;
        let has_room = self.member_count + keys.len()
            < MEMBERS_PER_KEY_MAX * self.keys.len() + MEMBERS_MIN
            && (self.sets.len() < 2 * self.keys.len() + 64 || payload_bytes >= PAYLOAD_BYTES_LARGE);
        has_room || self.set_ids.contains_key(&*with(keys, position))
    }

    fn set_id(&mut self, keys: &[u32]) -> u32 {
        if let Some(&id) = self.set_ids.get(keys) {
            return id;
        }
        let keys: Arc<[u32]> = Arc::from(keys);
        let id = self.sets.len() as u32;
        for &position in keys.iter() {
            self.sets_of_keys[position as usize].push(id);
        }
        self.member_count += keys.len();
        self.sets.push(KeySet { keys: Arc::clone(&keys), points: BTreeMap::new() });
        self.set_ids.insert(keys, id);
        id
    }

    fn set_with(&mut self, set: u32, position: u32) -> u32 {
        let keys = with(&self.sets[set as usize].keys, position);
        self.set_id(&keys)
    }

    /// The set without one key; `None` if no key remains.
    fn set_without(&mut self, set: u32, position: u32) -> Option<u32> {
        let old = &self.sets[set as usize].keys;
        let Ok(idx) = old.binary_search(&position) else { return Some(set) };
        let mut new = old.to_vec();
        new.remove(idx);
        (!new.is_empty()).then(|| self.set_id(&new))
    }
}

impl OpenPoint {
    /// Bytes of the point in a slab besides its time.
    fn bytes(&self, set: u32) -> usize {
        let head = self.head.map_or(0, |head| u64::from(head) + 1);
        let len = self.payload.len();
        varint_bytes(u64::from(set)) + varint_bytes(head) + varint_bytes(len as u64) + len
    }
}

impl KeySet {
    fn points(&self, range: TimeRange) -> impl Iterator<Item = (Timestamp, &OpenPoint)> + '_ {
        let bounds = (!range.is_empty()).then_some(range.start..=range.end);
        let times = bounds.into_iter().flat_map(|bounds| self.points.range(bounds));
        times.flat_map(|(&ts, points)| points.iter().map(move |point| (ts, point)))
    }
}

/// Sorted positions with `position` added.
fn with(keys: &[u32], position: u32) -> Vec<u32> {
    let mut keys = keys.to_vec();
    if let Err(idx) = keys.binary_search(&position) {
        keys.insert(idx, position);
    }
    keys
}

/// Bytes that the time of one more point at `ts` adds.
fn time_bytes(points: &Points, ts: Timestamp) -> usize {
    let step = |from: Option<Timestamp>, to: Timestamp| {
        from.map_or(FIRST_TIME_BYTES, |from| varint_bytes(to.wrapping_sub(from) as u64))
    };
    let (before, after) = match points.last_key_value() {
        // Most points arrive in order.
        None => (None, None),
        Some((&last, _)) if last < ts => (Some(last), None),
        _ if points.contains_key(&ts) => return varint_bytes(0),
        _ => {
            let after = points.range(ts..).next();
            (points.range(..ts).next_back().map(|one| *one.0), after.map(|one| *one.0))
        }
    };
    let behind = after.map_or(0, |after| step(Some(ts), after));
    step(before, ts) + behind - after.map_or(0, |after| step(before, after))
}

/// Bytes of the points of a set in a slab.
fn points_bytes(set: u32, points: &Points) -> usize {
    let mut before = None;
    let mut bytes = 0;
    for (&ts, same) in points {
        bytes += before.map_or(FIRST_TIME_BYTES, |before: Timestamp| {
            varint_bytes(ts.wrapping_sub(before) as u64)
        });
        bytes += same.len() - 1 + same.iter().map(|point| point.bytes(set)).sum::<usize>();
        before = Some(ts);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use firn_sim::Rng;

    use super::*;

    /// Before, ten thousand keys with one value took 400 MB, which were not counted.
    #[test]
    fn a_point_of_many_keys_takes_memory_in_proportion_to_them() {
        let mut slab = OpenSlab::new(1);
        let mut shared = 0;
        for key in 0..10_000u32 {
            let position = slab.add_key(&Arc::from(key.to_le_bytes()), 0);
            let before = slab.point_count;
            slab.push(position, 7, None, b"1");
            shared += usize::from(slab.point_count == before);
        }
        assert!(shared > 9_000, "{shared} keys share the point of others");
        assert!(slab.member_count <= MEMBERS_PER_KEY_MAX * 10_000 + MEMBERS_MIN);
        let lists: usize = slab.sets_of_keys.iter().map(Vec::capacity).sum();
        let sets: usize = slab.sets.iter().map(|set| set.keys.len()).sum();
        let bytes = 4 * (lists + sets);
        assert!((bytes as u64) < slab.heap_bytes(), "{bytes} of {}", slab.heap_bytes());
        for position in 0..10_000 {
            assert_eq!(slab.points_of(position, TimeRange::ALL).count(), 1);
        }
    }

    #[test]
    fn data_bytes_are_exact_while_points_are_added_and_removed() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut slab = OpenSlab::new(1);
            (0..4u8).for_each(|key| {
                slab.add_key(&Arc::from([key]), 0);
            });
            for _ in 0..300 {
                let (key, ts) = (rng.below(4) as u32, rng.between(-300, 300));
                if rng.chance(0.1) {
                    slab.clear(key, TimeRange::new(ts, ts + rng.between(-1, 200)));
                } else {
                    // Some values repeat, so that keys share points.
                    slab.push(key, ts, None, &vec![ts as u8; rng.below(3) as usize * 70]);
                }
                let all = (0..).zip(&slab.sets);
                let bytes: usize = all.map(|(id, set)| points_bytes(id, &set.points)).sum();
                assert_eq!(slab.data_bytes, bytes, "seed {seed}");
            }
        }
    }
}
