//! Cardinality statistics: counts per label name and pair over all segments, merged in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use firn_model::{CancelToken, GroupId, METRIC_NAME, Result};
use hashbrown::HashMap;
use parking_lot::RwLock;

use crate::memory::index::{MemoryIndex, Watermark};
use crate::memory::listing::each_pair;
use crate::sealed::PairCounts;
use crate::version::IndexVersion;
use crate::view::IndexView;

// Parts read under one lock.
const PARTS_PER_LOCK: usize = 1_024;

/// The largest metrics, labels and groups of the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cardinality {
    /// Series in the view.
    pub series_count: u64,
    /// Groups in the view.
    pub group_count: u64,
    /// Label names in the view.
    pub name_count: u64,
    /// Label pairs in the view.
    pub pair_count: u64,
    /// The metric names with the most series, largest first.
    pub series_by_metric: Vec<(String, u64)>,
    /// The label names with the most values, largest first.
    pub values_by_name: Vec<(String, u64)>,
    /// The label names with the most bytes in distinct values, largest first.
    pub bytes_by_name: Vec<(String, u64)>,
    /// The label pairs (`name=value`) with the most series, largest first.
    pub series_by_pair: Vec<(String, u64)>,
    /// The groups with the most series, largest first, by their labels. Sibling groups count
    /// together; lone series do not count.
    pub series_by_group: Vec<(String, u64)>,
}

impl IndexView {
    /// Cardinality statistics with at most `top` entries per list. Reads every pair, and every part
    /// once per label.
    ///
    /// # Errors
    /// As [`IndexView::select`].
    pub fn cardinality(&self, top: usize, cancel: &CancelToken) -> Result<Cardinality> {
        let mut found = count(&self.version, self.mark, top, cancel)?;
        (found.series_count, found.group_count) = (self.series_count(), self.group_count());
        found.series_by_group = count_groups(self, &self.version, self.mark, top, cancel)?;
        Ok(found)
    }
}

/// Pairs of one segment with their series counts, in order of names and values.
enum PairCursor<'a> {
    Sealed(PairCounts<'a>),
    Memory(MemoryPairCursor<'a>),
}

/// Reads one name at a time, so that only one name's values are in memory.
struct MemoryPairCursor<'a> {
    memory: &'a RwLock<MemoryIndex>,
    mark: Watermark,
    /// Names with their ids, the next one last.
    names: Vec<(String, u32)>,
    name: String,
    /// Values of `name` with their series counts, the current one last.
    values: Vec<(String, u64)>,
}

/// All statistics except `series_count`, `group_count` and `series_by_group`.
///
/// # Errors
/// `Canceled` or `Timeout` as the token reports; `Corrupt` for a damaged segment.
fn count(
    version: &IndexVersion,
    mark: Watermark,
    top: usize,
    cancel: &CancelToken,
) -> Result<Cardinality> {
    let mut cursors = Vec::new();
    for segment in &version.sealed {
        cursors.push(PairCursor::Sealed(segment.sealed.pair_counts(cancel)?));
    }
    for (layer, mark) in version.layers(mark) {
        cursors.push(PairCursor::Memory(MemoryPairCursor::new(&layer.memory, mark)));
    }
    let mut open = Vec::with_capacity(cursors.len());
    for mut cursor in cursors {
        if cursor.advance()? {
            open.push(cursor);
        }
    }
    let mut sums = CardinalitySums::new(top);
    while let Some(least) = open.iter().map(PairCursor::pair).min() {
        if sums.pair_count.is_multiple_of(1_024) {
            cancel.check()?;
        }
        let (name, value) = (least.0.to_owned(), least.1.to_owned());
        let mut series_count = 0;
        let mut at = 0;
        while at < open.len() {
            if open[at].pair() != (name.as_str(), value.as_str()) {
                at += 1;
                continue;
            }
            series_count += open[at].series_count();
            if open[at].advance()? {
                at += 1;
            } else {
                open.swap_remove(at);
            }
        }
        sums.take(name, &value, series_count);
    }
    Ok(sums.finish())
}

/// [`Cardinality::series_by_group`]. Needs about 60 bytes per group meanwhile.
fn count_groups(
    view: &IndexView,
    version: &IndexVersion,
    mark: Watermark,
    top: usize,
    cancel: &CancelToken,
) -> Result<Vec<(String, u64)>> {
    let mut sizes: HashMap<GroupId, u64> = HashMap::new();
    let mut take = |group, member_count| *sizes.entry(group).or_default() += member_count;
    for segment in &version.sealed {
        segment.sealed.part_sizes(cancel, &mut take)?;
    }
    for (layer, mark) in version.layers(mark) {
        for start in (0..mark.parts).step_by(PARTS_PER_LOCK) {
            cancel.check()?;
            let memory = layer.memory.read();
            let parts = start..mark.parts.min(start + PARTS_PER_LOCK as u32);
            for part_no in parts.filter(|&part_no| !memory.parts.is_lone(part_no)) {
                let member_count = memory.parts.count_below(part_no, mark.series);
                take(memory.parts.id(part_no), u64::from(member_count));
            }
        }
    }
    // Siblings have the same labels; the one with the least id represents them.
    let mut by_labels: HashMap<u64, (u64, GroupId)> = HashMap::new();
    for (number, (group, member_count)) in sizes.into_iter().enumerate() {
        if number.is_multiple_of(PARTS_PER_LOCK) {
            cancel.check()?;
        }
        let Some(info) = view.group(group)? else { continue };
        let sum = by_labels.entry(info.labels.hash64()).or_insert((0, group));
        *sum = (sum.0 + member_count, sum.1.min(group));
    }
    let mut largest: Vec<(u64, GroupId)> =
        by_labels.into_values().filter(|sum| sum.0 > 0).collect();
    largest.sort_unstable_by_key(|&(count, group)| (Reverse(count), group));
    largest.truncate(top);
    let named = largest.into_iter().map(|(count, group)| {
        let labels = view.group(group)?.map(|info| info.labels.to_string());
        Ok((labels.unwrap_or_default(), count))
    });
    named.collect()
}

impl PairCursor<'_> {
    fn advance(&mut self) -> Result<bool> {
        match self {
            PairCursor::Sealed(pairs) => pairs.advance(),
            PairCursor::Memory(pairs) => Ok(pairs.advance()),
        }
    }

    fn pair(&self) -> (&str, &str) {
        match self {
            PairCursor::Sealed(pairs) => (pairs.name(), pairs.value()),
            PairCursor::Memory(pairs) => {
                (&pairs.name, pairs.values.last().map_or("", |one| &one.0))
            }
        }
    }

    fn series_count(&self) -> u64 {
        match self {
            PairCursor::Sealed(pairs) => pairs.series_count(),
            PairCursor::Memory(pairs) => pairs.values.last().map_or(0, |one| one.1),
        }
    }
}

impl MemoryPairCursor<'_> {
    fn new(memory: &RwLock<MemoryIndex>, mark: Watermark) -> MemoryPairCursor<'_> {
        let mut names: Vec<(String, u32)> = {
            let memory = memory.read();
            let ids = 0..memory.pairs.name_count();
            ids.map(|id| (memory.pairs.name_text(id).to_owned(), id)).collect()
        };
        names.sort_unstable_by(|a, b| b.cmp(a));
        MemoryPairCursor { memory, mark, names, name: String::new(), values: Vec::new() }
    }

    fn advance(&mut self) -> bool {
        self.values.pop();
        while self.values.is_empty() {
            let Some((name, id)) = self.names.pop() else { return false };
            let (mark, values) = (self.mark, &mut self.values);
            each_pair(self.memory, mark, id, |memory, pair| {
                values.push((
                    memory.pairs.value_text(pair).to_owned(),
                    count_series(memory, mark, pair),
                ));
            });
            values.sort_unstable_by(|a, b| b.0.cmp(&a.0));
            self.name = name;
        }
        true
    }
}

/// Number of series with `pair`.
fn count_series(memory: &MemoryIndex, mark: Watermark, pair: u32) -> u64 {
    let pair = memory.pairs.pair(pair);
    let (parts, sets) = (pair.parts.below(mark.parts), pair.sets.below(mark.sets));
    let in_parts = parts.iter().map(|no| u64::from(memory.parts.count_below(no, mark.series)));
    let with_set = sets.iter().map(|set| {
        let of_set = memory.sets.set(set).parts.below(mark.parts);
        // An older part may have got the member after the view was created.
        let is_seen = |&part_no: &u32| {
            let seen = memory.parts.count_below(part_no, mark.series) as usize;
            let places = memory.parts.sets(part_no);
            seen == places.len() || places[..seen].contains(&set)
        };
        of_set.iter().filter(is_seen).count() as u64
    });
    in_parts.sum::<u64>() + with_set.sum::<u64>()
}

struct CardinalitySums {
    name_count: u64,
    pair_count: u64,
    /// The current name, with the number and total bytes of its values.
    name: String,
    value_count: u64,
    value_bytes: u64,
    by_metric: TopCounts,
    values_by_name: TopCounts,
    bytes_by_name: TopCounts,
    by_pair: TopCounts,
}

impl CardinalitySums {
    fn new(top: usize) -> CardinalitySums {
        CardinalitySums {
            name_count: 0,
            pair_count: 0,
            name: String::new(),
            value_count: 0,
            value_bytes: 0,
            by_metric: TopCounts::new(top),
            values_by_name: TopCounts::new(top),
            bytes_by_name: TopCounts::new(top),
            by_pair: TopCounts::new(top),
        }
    }

    fn take(&mut self, name: String, value: &str, series_count: u64) {
        if name != self.name {
            self.end_name();
            self.name = name;
        }
        self.pair_count += 1;
        self.value_count += 1;
        self.value_bytes += value.len() as u64;
        self.by_pair.offer(series_count, || format!("{}={value}", self.name));
        if self.name == METRIC_NAME {
            self.by_metric.offer(series_count, || value.to_owned());
        }
    }

    fn end_name(&mut self) {
        if self.value_count > 0 {
            self.name_count += 1;
            self.values_by_name.offer(self.value_count, || self.name.clone());
            self.bytes_by_name.offer(self.value_bytes, || self.name.clone());
        }
        (self.value_count, self.value_bytes) = (0, 0);
    }

    fn finish(mut self) -> Cardinality {
        self.end_name();
        Cardinality {
            name_count: self.name_count,
            pair_count: self.pair_count,
            series_by_metric: self.by_metric.into_sorted(),
            values_by_name: self.values_by_name.into_sorted(),
            bytes_by_name: self.bytes_by_name.into_sorted(),
            series_by_pair: self.by_pair.into_sorted(),
            ..Cardinality::default()
        }
    }
}

/// Keeps the `count_max` largest counts; of equal counts the first by name.
struct TopCounts {
    count_max: usize,
    /// The smallest on top, to be replaced.
    kept: BinaryHeap<Reverse<(u64, Reverse<String>)>>,
}

impl TopCounts {
    fn new(count_max: usize) -> TopCounts {
        TopCounts { count_max, kept: BinaryHeap::new() }
    }

    /// Calls `name` only if the entry may be kept: there are millions of pairs.
    fn offer(&mut self, count: u64, name: impl FnOnce() -> String) {
        let is_full = self.kept.len() >= self.count_max;
        if is_full && self.kept.peek().is_none_or(|Reverse(least)| count < least.0) {
            return;
        }
        self.kept.push(Reverse((count, Reverse(name()))));
        if self.kept.len() > self.count_max {
            self.kept.pop();
        }
    }

    /// Largest first.
    fn into_sorted(self) -> Vec<(String, u64)> {
        let sorted = self.kept.into_sorted_vec().into_iter();
        sorted.map(|Reverse((count, Reverse(name)))| (name, count)).collect()
    }
}
