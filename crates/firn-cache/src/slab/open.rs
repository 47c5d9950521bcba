//! A slab on its way: points in memory, in the order of time, until they fill one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use firn_model::{TimeRange, Timestamp};

use super::{KEYS_MIN, PREAMBLE_BYTES};

/// What a point takes in a slab at most, besides its payload.
pub(crate) const SLAB_POINT_BYTES: usize = 10 + 3 + 3 + 5;
/// What a point takes in memory, besides its payload.
const OPEN_POINT_BYTES: usize = 64;
/// What a key takes in a slab at most, besides its text, its note and its extents.
const SLAB_KEY_BYTES: usize = 32;

/// Points in memory that will be a slab. Every key's points are in the order of time.
#[derive(Debug)]
pub(crate) struct OpenSlab {
    field: u64,
    /// Texts in the order of their positions.
    keys: Vec<Arc<[u8]>>,
    positions: HashMap<Arc<[u8]>, u32>,
    points: BTreeMap<Timestamp, Vec<OpenPoint>>,
    /// Which keys have a point: sorted positions, each distinct list once.
    sets: Vec<Arc<[u32]>>,
    set_ids: HashMap<Arc<[u32]>, u32>,
    heads: Vec<Arc<[u8]>>,
    head_ids: HashMap<Arc<[u8]>, u32>,
    point_count: usize,
    payload_bytes: usize,
    /// What keys and heads take in the slab.
    shared_bytes: usize,
}

#[derive(Debug)]
pub(crate) struct OpenPoint {
    pub(crate) set: u32,
    pub(crate) head: Option<u32>,
    pub(crate) payload: Box<[u8]>,
}

impl OpenSlab {
    pub(crate) fn new(field: u64) -> OpenSlab {
        OpenSlab {
            field,
            keys: Vec::new(),
            positions: HashMap::new(),
            points: BTreeMap::new(),
            sets: Vec::new(),
            set_ids: HashMap::new(),
            heads: Vec::new(),
            head_ids: HashMap::new(),
            point_count: 0,
            payload_bytes: 0,
            shared_bytes: 0,
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
        match (self.points.first_key_value(), self.points.last_key_value()) {
            (Some((&start, _)), Some((&end, _))) => TimeRange { start, end },
            _ => TimeRange::EMPTY,
        }
    }

    /// What it takes in memory, about.
    pub(crate) fn heap_bytes(&self) -> u64 {
        (self.payload_bytes + self.point_count * OPEN_POINT_BYTES + self.shared_bytes) as u64
    }

    /// What it takes as a slab at most, beside the extents of its keys.
    pub(crate) fn slab_bytes(&self) -> usize {
        let points = self.payload_bytes + self.point_count * SLAB_POINT_BYTES;
        // A marker for each block, and a block that is not full before the data.
        let markers = (points / super::BLOCK_BYTES + 1) * super::MARKER_BYTES;
        let sets = self.sets.len() * (self.bit_bytes() + 5);
        PREAMBLE_BYTES + self.shared_bytes + sets + markers + points + super::BLOCK_BYTES
    }

    /// What [`OpenSlab::add_key`] adds to the slab at most.
    pub(crate) fn key_cost(&self, key: &[u8], note_bytes: usize) -> usize {
        if self.positions.contains_key(key) {
            return 0;
        }
        let count = self.keys.len();
        let doubles = count >= KEYS_MIN && count.is_power_of_two();
        let doubling = if doubles { self.sets.len() * count / 8 } else { 0 };
        key.len() + note_bytes + SLAB_KEY_BYTES + doubling
    }

    /// What a point adds at most besides itself: its head, and a bit array.
    pub(crate) fn shared_cost(&self, head: Option<&Arc<[u8]>>) -> usize {
        let head = head.filter(|head| !self.head_ids.contains_key(*head));
        head.map_or(0, |head| head.len() + 5) + self.bit_bytes() + 5
    }

    fn bit_bytes(&self) -> usize {
        self.keys.len().max(KEYS_MIN).next_power_of_two() / 8
    }

    /// The key's position, given to it if it has none; `note_bytes` are counted for it then.
    pub(crate) fn add_key(&mut self, key: &Arc<[u8]>, note_bytes: usize) -> u32 {
        if let Some(&position) = self.positions.get(key) {
            return position;
        }
        let position = self.keys.len() as u32;
        self.keys.push(Arc::clone(key));
        self.positions.insert(Arc::clone(key), position);
        self.shared_bytes += key.len() + note_bytes + SLAB_KEY_BYTES;
        position
    }

    /// Adds a point of the key at `position`. One that another key has just so is shared.
    pub(crate) fn push(
        &mut self,
        position: u32,
        ts: Timestamp,
        head: Option<&Arc<[u8]>>,
        payload: &[u8],
    ) {
        let head = head.map(|head| self.head_id(head));
        let same = |point: &OpenPoint| point.head == head && *point.payload == *payload;
        let shared = self.points.get(&ts).and_then(|points| points.iter().position(same));
        if let Some(idx) = shared {
            let set = self.points[&ts][idx].set;
            let set = self.set_with(set, position);
            if let Some(point) = self.points.get_mut(&ts).and_then(|points| points.get_mut(idx)) {
                point.set = set;
            }
            return;
        }
        let set = self.set_id(Arc::from([position]));
        self.point_count += 1;
        self.payload_bytes += payload.len();
        let point = OpenPoint { set, head, payload: Box::from(payload) };
        self.points.entry(ts).or_default().push(point);
    }

    /// Takes the points of a key out of `range`.
    pub(crate) fn clear(&mut self, position: u32, range: TimeRange) {
        if range.is_empty() {
            return;
        }
        let times = self.points.range(range.start..=range.end);
        let touched: Vec<Timestamp> = times
            .filter(|(_, points)| points.iter().any(|point| self.has_key(point.set, position)))
            .map(|(&ts, _)| ts)
            .collect();
        for ts in touched {
            let mut points = self.points.remove(&ts).unwrap_or_default();
            points.retain_mut(|point| match self.set_without(point.set, position) {
                Some(set) => {
                    point.set = set;
                    true
                }
                None => {
                    self.point_count -= 1;
                    self.payload_bytes -= point.payload.len();
                    false
                }
            });
            if !points.is_empty() {
                self.points.insert(ts, points);
            }
        }
    }

    /// The points in `range`, in order.
    pub(crate) fn points(
        &self,
        range: TimeRange,
    ) -> impl Iterator<Item = (Timestamp, &OpenPoint)> + '_ {
        let range = if range.is_empty() { None } else { Some(range.start..=range.end) };
        let times = range.into_iter().flat_map(|range| self.points.range(range));
        times.flat_map(|(&ts, points)| points.iter().map(move |point| (ts, point)))
    }

    pub(crate) fn has_key(&self, set: u32, position: u32) -> bool {
        self.sets[set as usize].binary_search(&position).is_ok()
    }

    pub(crate) fn sets(&self) -> &[Arc<[u32]>] {
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

    fn set_id(&mut self, set: Arc<[u32]>) -> u32 {
        if let Some(&id) = self.set_ids.get(&set) {
            return id;
        }
        let id = self.sets.len() as u32;
        self.sets.push(Arc::clone(&set));
        self.set_ids.insert(set, id);
        id
    }

    fn set_with(&mut self, set: u32, position: u32) -> u32 {
        let old = &self.sets[set as usize];
        let Err(idx) = old.binary_search(&position) else { return set };
        let mut new = old.to_vec();
        new.insert(idx, position);
        self.set_id(new.into())
    }

    /// `None` if nobody is left.
    fn set_without(&mut self, set: u32, position: u32) -> Option<u32> {
        let old = &self.sets[set as usize];
        let Ok(idx) = old.binary_search(&position) else { return Some(set) };
        let mut new = old.to_vec();
        new.remove(idx);
        (!new.is_empty()).then(|| self.set_id(new.into()))
    }
}
