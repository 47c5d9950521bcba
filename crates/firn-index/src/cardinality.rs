//! Cardinality statistics: counts per label name and pair over all segments, merged in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use firn_model::{Budget, GroupId, METRIC_NAME, Pool, QueryContext, Reservation, Result, RwLock};
use hashbrown::HashMap;

use crate::memory::index::{MemoryIndex, Watermark};
use crate::memory::listing::each_pair;
use crate::memory::matching::read_list;
use crate::sealed::PairCounts;
use crate::version::IndexVersion;
use crate::view::IndexView;

// Parts read under one lock.
const PARTS_PER_LOCK: usize = 1_024;
// The memory of a text in a list beside its bytes: the string, its count, its share of the growth.
const TEXT_BYTES: usize = 80;
// The memory of a group in both maps of `count_groups` and in the list that is made of them.
const GROUP_BYTES: u64 = 160;

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
    /// once per label. The reservation is that of the lists.
    ///
    /// # Errors
    /// As [`IndexView::select`].
    pub fn cardinality(
        &self,
        top: usize,
        context: &QueryContext,
    ) -> Result<(Cardinality, Reservation)> {
        let mut held = context.budget.empty(Pool::Query);
        let mut found = count(&self.version, self.mark, top, context, &mut held)?;
        (found.series_count, found.group_count) = (self.series_count(), self.group_count());
        found.series_by_group =
            count_groups(self, &self.version, self.mark, top, context, &mut held)?;
        Ok((found, held))
    }
}

impl Cardinality {
    /// All texts with their counts: metrics, names, names by bytes, pairs, groups.
    pub fn tables(&self) -> [&[(String, u64)]; 5] {
        [
            &self.series_by_metric,
            &self.values_by_name,
            &self.bytes_by_name,
            &self.series_by_pair,
            &self.series_by_group,
        ]
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
    context: &'a QueryContext,
    /// Names with their ids, the next one last.
    names: Vec<(String, u32)>,
    name: String,
    /// Values of `name` with their series counts, the current one last.
    values: Vec<(String, u64)>,
    names_held: Reservation,
    values_held: Reservation,
}

/// All statistics except `series_count`, `group_count` and `series_by_group`.
///
/// # Errors
/// `Canceled` or `Timeout` as the token reports; `Busy` or `TooLarge` without memory; `Corrupt` for
/// a damaged segment.
fn count(
    version: &IndexVersion,
    mark: Watermark,
    top: usize,
    context: &QueryContext,
    held: &mut Reservation,
) -> Result<Cardinality> {
    let cancel = &context.cancel;
    let mut cursors = Vec::new();
    let mut counts_held = context.budget.empty(Pool::Query);
    for segment in &version.sealed {
        counts_held.grow(segment.sealed.pair_counts_bytes())?;
        cursors.push(PairCursor::Sealed(segment.sealed.pair_counts(cancel)?));
    }
    for (layer, mark) in version.layers(mark) {
        cursors.push(PairCursor::Memory(MemoryPairCursor::new(&layer.memory, mark, context)?));
    }
    let mut open = Vec::with_capacity(cursors.len());
    for mut cursor in cursors {
        if cursor.advance()? {
            open.push(cursor);
        }
    }
    let mut sums = CardinalitySums::new(top, held);
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
        sums.take(name, &value, series_count)?;
    }
    sums.finish()
}

/// [`Cardinality::series_by_group`].
fn count_groups(
    view: &IndexView,
    version: &IndexVersion,
    mark: Watermark,
    top: usize,
    context: &QueryContext,
    held: &mut Reservation,
) -> Result<Vec<(String, u64)>> {
    let cancel = &context.cancel;
    let _maps_held =
        context.budget.reserve(Pool::Query, GROUP_BYTES.saturating_mul(view.group_count()))?;
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
        let Some(info) = view.group(group)? else { return Ok((String::new(), count)) };
        // A character takes up to ten bytes when it is escaped: `\u{10ffff}`.
        let bytes_max = (10 * info.labels.as_encoded().len() + TEXT_BYTES) as u64;
        held.grow(bytes_max)?;
        let text = info.labels.to_string();
        held.shrink(bytes_max.saturating_sub((text.capacity() + TEXT_BYTES) as u64));
        Ok((text, count))
    });
    named.collect()
}

impl PairCursor<'_> {
    fn advance(&mut self) -> Result<bool> {
        match self {
            PairCursor::Sealed(pairs) => pairs.advance(),
            PairCursor::Memory(pairs) => pairs.advance(),
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

impl<'a> MemoryPairCursor<'a> {
    fn new(
        memory: &'a RwLock<MemoryIndex>,
        mark: Watermark,
        context: &'a QueryContext,
    ) -> Result<MemoryPairCursor<'a>> {
        // Names are never removed; those that come later are not in the view.
        let name_count = memory.read().pairs.name_count();
        let name_bytes: usize = {
            let memory = memory.read();
            (0..name_count).map(|id| memory.pairs.name_text(id).len() + TEXT_BYTES).sum()
        };
        let names_held = context.budget.reserve(Pool::Query, name_bytes as u64)?;
        let mut names: Vec<(String, u32)> = {
            let memory = memory.read();
            (0..name_count).map(|id| (memory.pairs.name_text(id).to_owned(), id)).collect()
        };
        names.sort_unstable_by(|a, b| b.cmp(a));
        let values_held = context.budget.empty(Pool::Query);
        let (name, values) = (String::new(), Vec::new());
        Ok(MemoryPairCursor { memory, mark, context, names, name, values, names_held, values_held })
    }

    fn advance(&mut self) -> Result<bool> {
        self.values.pop();
        while self.values.is_empty() {
            let Some((name, id)) = self.names.pop() else { return Ok(false) };
            self.names_held.shrink((name.len() + TEXT_BYTES) as u64);
            let (mark, values) = (self.mark, &mut self.values);
            // Counted first: memory is not reserved under the lock.
            let mut bytes = 0;
            each_pair(self.memory, mark, id, |memory, pair| {
                bytes += memory.pairs.value_text(pair).len() + TEXT_BYTES;
            });
            self.values_held.shrink(self.values_held.bytes());
            self.values_held.grow(bytes as u64)?;
            *values = Vec::new();
            each_pair(self.memory, mark, id, |memory, pair| {
                values.push((memory.pairs.value_text(pair).to_owned(), u64::from(pair)));
            });
            for (idx, (_, pair_or_count)) in values.iter_mut().enumerate() {
                if idx.is_multiple_of(PARTS_PER_LOCK) {
                    self.context.cancel.check()?;
                }
                let pair = *pair_or_count as u32;
                *pair_or_count = count_series(self.memory, mark, pair, &self.context.budget)?;
            }
            values.sort_unstable_by(|a, b| b.0.cmp(&a.0));
            self.name = name;
        }
        Ok(true)
    }
}

/// Number of series with `pair`. Takes the lock for one list at a time.
fn count_series(
    memory: &RwLock<MemoryIndex>,
    mark: Watermark,
    pair: u32,
    budget: &Budget,
) -> Result<u64> {
    let parts = read_list(memory, mark.parts, budget, |memory| &memory.pairs.pair(pair).parts)?;
    let sets = read_list(memory, mark.sets, budget, |memory| &memory.pairs.pair(pair).sets)?;
    let mut count = 0;
    if !parts.is_empty() {
        let memory = memory.read();
        let in_parts = parts.iter().map(|no| memory.parts.count_below(no, mark.series));
        count += in_parts.map(u64::from).sum::<u64>();
    }
    for set in sets.iter() {
        let of_set = read_list(memory, mark.parts, budget, |memory| &memory.sets.set(set).parts)?;
        let memory = memory.read();
        // An older part may have got the member after the view was created.
        let is_seen = |&part_no: &u32| {
            let seen = memory.parts.count_below(part_no, mark.series) as usize;
            let places = memory.parts.sets(part_no);
            seen == places.len() || places[..seen].contains(&set)
        };
        count += of_set.iter().filter(is_seen).count() as u64;
    }
    Ok(count)
}

struct CardinalitySums<'h> {
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
    /// The memory of the texts in all four.
    held: &'h mut Reservation,
}

impl CardinalitySums<'_> {
    fn new(top: usize, held: &mut Reservation) -> CardinalitySums<'_> {
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
            held,
        }
    }

    fn take(&mut self, name: String, value: &str, series_count: u64) -> Result<()> {
        if name != self.name {
            self.end_name()?;
            self.name = name;
        }
        self.pair_count += 1;
        self.value_count += 1;
        self.value_bytes += value.len() as u64;
        self.by_pair.offer(series_count, &[&self.name, "=", value], self.held)?;
        if self.name == METRIC_NAME {
            self.by_metric.offer(series_count, &[value], self.held)?;
        }
        Ok(())
    }

    fn end_name(&mut self) -> Result<()> {
        if self.value_count > 0 {
            self.name_count += 1;
            self.values_by_name.offer(self.value_count, &[&self.name], self.held)?;
            self.bytes_by_name.offer(self.value_bytes, &[&self.name], self.held)?;
        }
        (self.value_count, self.value_bytes) = (0, 0);
        Ok(())
    }

    fn finish(mut self) -> Result<Cardinality> {
        self.end_name()?;
        Ok(Cardinality {
            name_count: self.name_count,
            pair_count: self.pair_count,
            series_by_metric: self.by_metric.into_sorted(),
            values_by_name: self.values_by_name.into_sorted(),
            bytes_by_name: self.bytes_by_name.into_sorted(),
            series_by_pair: self.by_pair.into_sorted(),
            ..Cardinality::default()
        })
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

    /// Builds the name of its parts only if the entry may be kept: there are millions of pairs.
    fn offer(&mut self, count: u64, name: &[&str], held: &mut Reservation) -> Result<()> {
        let is_full = self.kept.len() >= self.count_max;
        if is_full && self.kept.peek().is_none_or(|Reverse(least)| count < least.0) {
            return Ok(());
        }
        let bytes = |name: &str| (name.len() + TEXT_BYTES) as u64;
        held.grow(name.iter().map(|part| part.len() as u64).sum::<u64>() + TEXT_BYTES as u64)?;
        self.kept.push(Reverse((count, Reverse(name.concat()))));
        if self.kept.len() > self.count_max
            && let Some(Reverse((_, Reverse(dropped)))) = self.kept.pop()
        {
            held.shrink(bytes(&dropped));
        }
        Ok(())
    }

    /// Largest first.
    fn into_sorted(self) -> Vec<(String, u64)> {
        let sorted = self.kept.into_sorted_vec().into_iter();
        sorted.map(|Reverse((count, Reverse(name)))| (name, count)).collect()
    }
}
