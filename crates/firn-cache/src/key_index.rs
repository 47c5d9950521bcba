//! The first layer of the index: which ranges of time are complete for each key, and in which slab.
//!
//! Source: TSCache 3.5. In the paper a range states only that something is cached, and filters in
//! slab nodes state where it may be. Here a segment names its slab: no lookup is in vain, a slab's
//! header is read only if it has points of the range, and of two versions of a point only the newer
//! is reachable. The paper's skip list is an ordered map here.

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_model::{CommitSeq, TimeRange, Timestamp};

use crate::policy::SlabId;
use crate::slab::Extent;

/// The cached ranges of one key.
#[derive(Debug)]
pub(crate) struct KeyEntry {
    /// Bytes that its owner gets back after a restart.
    pub(crate) note: Arc<[u8]>,
    /// The head of its newest points.
    pub(crate) last_head: Option<Arc<[u8]>>,
    /// By start, not overlapping.
    segments: BTreeMap<Timestamp, Segment>,
}

/// A range of time that is complete in one slab.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Segment {
    pub(crate) end: Timestamp,
    pub(crate) slab: SlabId,
    /// The newest snapshot that a part of it was computed from.
    pub(crate) number: CommitSeq,
    /// Density (TSCache 3.3).
    pub(crate) bytes_per_ms: f32,
    /// The hull of the lookups since it was written to its slab; empty if there were none.
    pub(crate) used: TimeRange,
}

impl Segment {
    /// Approximate bytes of a part of it.
    pub(crate) fn bytes_of(&self, part: TimeRange) -> f64 {
        if part.is_empty() {
            return 0.0;
        }
        f64::from(width_ms(part)) * f64::from(self.bytes_per_ms)
    }
}

/// Changes of the number of segments of a key per slab.
pub(crate) type Deltas = Vec<(SlabId, i64)>;

impl KeyEntry {
    pub(crate) fn new(note: &[u8]) -> KeyEntry {
        KeyEntry { note: Arc::from(note), last_head: None, segments: BTreeMap::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// All segments, in order.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (TimeRange, Segment)> + '_ {
        self.segments.iter().map(|(&start, &segment)| (TimeRange::new(start, segment.end), segment))
    }

    /// The segments that overlap `range`, cut to it, in order.
    pub(crate) fn within(
        &self,
        range: TimeRange,
    ) -> impl Iterator<Item = (TimeRange, Segment)> + '_ {
        let before = self.segments.range(..range.start).next_back();
        let bounds = (!range.is_empty()).then_some(range.start..=range.end);
        let inside = bounds.into_iter().flat_map(|bounds| self.segments.range(bounds));
        let all = before.into_iter().chain(inside);
        all.map(move |(&start, &segment)| {
            (TimeRange::new(start, segment.end).intersect(range), segment)
        })
        .filter(|(part, _)| !part.is_empty())
    }

    /// The extents in one slab.
    pub(crate) fn extents(&self, slab: SlabId) -> Vec<Extent> {
        let own = self.segments().filter(|(_, segment)| segment.slab == slab);
        own.map(|(range, segment)| Extent { range, number: segment.number }).collect()
    }

    /// Records a lookup of `range`.
    pub(crate) fn touch(&mut self, range: TimeRange) {
        if range.is_empty() {
            return;
        }
        let first =
            self.segments.range(..=range.start).next_back().map_or(range.start, |one| *one.0);
        for (&start, segment) in self.segments.range_mut(first..=range.end) {
            let part = TimeRange::new(start, segment.end).intersect(range);
            if !part.is_empty() {
                segment.used = segment.used.union(part);
            }
        }
    }

    /// Marks the segments in one slab as not looked up.
    pub(crate) fn cool(&mut self, slab: SlabId) {
        let own = self.segments.values_mut().filter(|segment| segment.slab == slab);
        own.for_each(|segment| segment.used = TimeRange::EMPTY);
    }

    /// Removes `range`.
    pub(crate) fn carve(&mut self, range: TimeRange, deltas: &mut Deltas) {
        let touched: Vec<Timestamp> = {
            let before = self.segments.range(..range.start).next_back();
            let before = before.filter(|(_, segment)| segment.end >= range.start);
            let bounds = (!range.is_empty()).then_some(range.start..=range.end);
            let inside = bounds.into_iter().flat_map(|bounds| self.segments.range(bounds));
            before.into_iter().chain(inside).map(|(&start, _)| start).collect()
        };
        if range.is_empty() {
            return;
        }
        for start in touched {
            let Some(segment) = self.segments.remove(&start) else { continue };
            deltas.push((segment.slab, -1));
            if start < range.start {
                let used = segment.used.intersect(TimeRange::new(start, range.start - 1));
                self.segments.insert(start, Segment { end: range.start - 1, used, ..segment });
                deltas.push((segment.slab, 1));
            }
            if segment.end > range.end {
                let used = segment.used.intersect(TimeRange::new(range.end + 1, segment.end));
                self.segments.insert(range.end + 1, Segment { used, ..segment });
                deltas.push((segment.slab, 1));
            }
        }
    }

    /// Inserts a segment, replacing its range, and unites it with neighbours in the same slab.
    pub(crate) fn insert(&mut self, range: TimeRange, mut segment: Segment, deltas: &mut Deltas) {
        self.carve(range, deltas);
        let mut start = range.start;
        segment.end = range.end;
        let before = self.segments.range(..range.start).next_back();
        let before = before.map(|(&start, &segment)| (start, segment));
        if let Some((at, other)) = before
            && other.end.checked_add(1) == Some(start)
            && other.slab == segment.slab
        {
            self.segments.remove(&at);
            segment = united((at, other), (start, segment));
            start = at;
            deltas.push((segment.slab, -1));
        }
        let after = segment.end.checked_add(1).and_then(|at| Some((at, *self.segments.get(&at)?)));
        if let Some((at, other)) = after
            && other.slab == segment.slab
        {
            self.segments.remove(&at);
            segment = united((start, segment), (at, other));
            deltas.push((segment.slab, -1));
        }
        self.segments.insert(start, segment);
        deltas.push((segment.slab, 1));
    }

    /// Removes all segments in one slab.
    pub(crate) fn forget(&mut self, slab: SlabId) {
        self.segments.retain(|_, segment| segment.slab != slab);
    }
}

/// Unites two adjacent segments. The number is the larger of both: older snapshots lose a hit,
/// never correctness.
fn united(first: (Timestamp, Segment), second: (Timestamp, Segment)) -> Segment {
    let ms = |(start, segment): (Timestamp, Segment)| width_ms(TimeRange::new(start, segment.end));
    let bytes = |one: (Timestamp, Segment)| one.1.bytes_per_ms * ms(one);
    Segment {
        end: second.1.end,
        slab: second.1.slab,
        number: first.1.number.max(second.1.number),
        bytes_per_ms: (bytes(first) + bytes(second)) / (ms(first) + ms(second)),
        used: first.1.used.union(second.1.used),
    }
}

/// Approximate number of timestamps of a range.
pub(crate) fn width_ms(range: TimeRange) -> f32 {
    range.end.wrapping_sub(range.start) as u64 as f32 + 1.0
}

#[cfg(test)]
mod tests {
    use firn_sim::Rng;

    use super::*;

    #[test]
    fn segments_are_a_map_from_times_to_slabs() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let mut entry = KeyEntry::new(b"");
            let mut model = [None; 64];
            let mut counts = BTreeMap::<SlabId, i64>::new();
            for _ in 0..60 {
                let start = rng.between(0, 63);
                let range = TimeRange::new(start, rng.between(start - 1, 63));
                let mut deltas = Deltas::new();
                if range.is_empty() || rng.chance(0.4) {
                    entry.carve(range, &mut deltas);
                    (range.start..=range.end).for_each(|ts| model[ts as usize] = None);
                } else {
                    let slab = rng.below(3);
                    let number = CommitSeq(rng.below(50));
                    let segment =
                        Segment { end: 0, slab, number, bytes_per_ms: 1.0, used: TimeRange::EMPTY };
                    entry.insert(range, segment, &mut deltas);
                    (range.start..=range.end).for_each(|ts| model[ts as usize] = Some(slab));
                }
                deltas.iter().for_each(|(slab, by)| *counts.entry(*slab).or_default() += by);
                let mut found = [None; 64];
                for (range, segment) in entry.segments() {
                    (range.start..=range.end).for_each(|ts| {
                        assert_eq!(found[ts as usize], None, "seed {seed}: no overlap");
                        found[ts as usize] = Some(segment.slab);
                    });
                }
                assert_eq!(found, model, "seed {seed}");
                for slab in 0..3 {
                    let count = counts.get(&slab).copied().unwrap_or_default();
                    assert_eq!(entry.extents(slab).len() as i64, count, "seed {seed}");
                }
                let part: Vec<_> = entry.within(range).map(|one| one.0).collect();
                let hull = part.iter().fold(TimeRange::EMPTY, |all, one| all.union(*one));
                assert!(range.is_empty() || range.covers(hull), "seed {seed}");
            }
        }
    }

    #[test]
    fn the_ends_of_time_are_times() {
        let (mut entry, mut deltas) = (KeyEntry::new(b""), Deltas::new());
        let (number, used) = (CommitSeq(1), TimeRange::EMPTY);
        let segment = Segment { end: 0, slab: 1, number, bytes_per_ms: 0.0, used };
        entry.insert(TimeRange::ALL, segment, &mut deltas);
        entry.carve(TimeRange::at(i64::MAX), &mut deltas);
        entry.carve(TimeRange::at(i64::MIN), &mut deltas);
        let all: Vec<_> = entry.segments().map(|one| one.0).collect();
        assert_eq!(all, [TimeRange::new(i64::MIN + 1, i64::MAX - 1)]);
        entry.insert(TimeRange::at(i64::MAX), segment, &mut deltas);
        assert_eq!(entry.segments().count(), 1);
    }
}
