//! The cost of groups by equations 1 to 6 of TimeUnion (SIGMOD 2022), section 3.1, with the numbers
//! of this database.
//!
//! The paper compares a model without groups, in which every series has its own posting list
//! entries, labels and timestamps, with one that shares them. This module replaces the averages by
//! measured values: label texts are summed, and both forms of the data are encoded by the codec
//! that writes the tables.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashSet};
use std::ops::ControlFlow;

use firn_codec::{ENTRIES_MAX, Effort, GroupColumns, SeqRange, VALUES_MAX, encode_chunk};
use firn_engine::TreeOptions;
use firn_model::{
    Column, ColumnBatch, ColumnValues, CommitSeq, GroupId, Labels, Matcher, Pool, QueryContext,
    Reservation, Result, SeriesRef, Slot, TimeRange,
};

use crate::{Db, GroupSummary, Snapshot};

/// The parameters of the cost equations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostOptions {
    /// The length of the time partition of a query: this much of the newest data.
    pub partition_ms: i64,
    /// `S_p`: bytes of a posting list entry.
    pub posting_bytes: f64,
    /// `Cost_EBS`: seconds to read a byte from the fast tier.
    pub fast_seconds_per_byte: f64,
    /// `Cost_S3`: seconds to read a block from the slow tier.
    pub slow_seconds_per_block: f64,
    /// `S_block`: bytes of such a block.
    pub block_bytes: f64,
}

impl Default for CostOptions {
    fn default() -> CostOptions {
        CostOptions {
            partition_ms: 2 * 3_600_000,
            // An id, as in the paper; FirnDB's entries are compressed and smaller.
            posting_bytes: 8.0,
            // 250 MB/s is typical of a block store, 30 ms per request of an object store.
            fast_seconds_per_byte: 4e-9,
            slow_seconds_per_block: 0.03,
            block_bytes: TreeOptions::default().slow_block_bytes() as f64,
        }
    }
}

/// A cost without and with the group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// With every series on its own.
    pub alone: f64,
    /// As a group.
    pub grouped: f64,
}

impl Cost {
    /// The additional cost of the group; negative if the group saves.
    pub fn net(self) -> f64 {
        self.grouped - self.alone
    }

    fn add(&mut self, other: Cost) {
        self.alone += other.alone;
        self.grouped += other.grouped;
    }
}

/// The cost of one group, or of all groups together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupCost {
    /// `N`: the number of series.
    pub series_count: u64,
    /// The number of labels of all series; divided by `N` it is `T`.
    pub pair_count: u64,
    /// `T_g`: the number of labels of the group itself.
    pub group_pair_count: u64,
    /// `T_u`: the number of distinct labels.
    pub unique_pair_count: u64,
    /// Bytes of all these labels; divided by their number it is `S_t`.
    pub pair_bytes: u64,
    /// Equations 1 and 2: bytes of posting list entries and labels.
    pub index_bytes: Cost,
    /// The number of samples in the partition.
    pub sample_count: u64,
    /// The number of stored timestamps: one per sample without groups, one per row in a group.
    pub timestamp_count: Cost,
    /// Bytes of the samples in chunks: `16 * samples` divided by them are `R_1` and `R_2`.
    pub data_bytes: Cost,
    /// Equations 3 and 5 for a query of one member: seconds on the fast tier.
    pub fast_seconds_one: Cost,
    /// The same for a query of all members.
    pub fast_seconds_all: Cost,
    /// Equations 4 and 6 for a query of one member: seconds on the slow tier.
    pub slow_seconds_one: Cost,
    /// The same for a query of all members.
    pub slow_seconds_all: Cost,
}

/// [`GroupCost`] of each group and of all.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupCosts {
    /// The partition.
    pub range: TimeRange,
    /// The most expensive groups, the first one most of all.
    pub groups: Vec<(GroupId, Labels, GroupCost)>,
    /// The number of all groups.
    pub group_count: u64,
    /// Their sum.
    pub total: GroupCost,
}

impl GroupCost {
    /// The additional bytes of the group; negative if the group saves.
    pub fn net_bytes(&self) -> f64 {
        self.index_bytes.net() + self.data_bytes.net()
    }

    fn add(&mut self, other: &GroupCost) {
        self.series_count += other.series_count;
        self.pair_count += other.pair_count;
        self.group_pair_count += other.group_pair_count;
        self.unique_pair_count += other.unique_pair_count;
        self.pair_bytes += other.pair_bytes;
        self.sample_count += other.sample_count;
        for (sum, cost) in [
            (&mut self.index_bytes, other.index_bytes),
            (&mut self.timestamp_count, other.timestamp_count),
            (&mut self.data_bytes, other.data_bytes),
            (&mut self.fast_seconds_one, other.fast_seconds_one),
            (&mut self.fast_seconds_all, other.fast_seconds_all),
            (&mut self.slow_seconds_one, other.slow_seconds_one),
            (&mut self.slow_seconds_all, other.slow_seconds_all),
        ] {
            sum.add(cost);
        }
    }
}

// The memory of a pair of a group in the set of its distinct pairs, beside its texts.
const PAIR_BYTES: usize = 160;
// The number of groups per read.
const GROUPS_PER_READ: usize = 64;

impl Db {
    /// The costs of the `top` most expensive groups with a member that matches one of `selectors`
    /// (of all groups without selectors), the sum of all of them, and the reservation of their
    /// memory. Lone series are no groups. Reads the newest partition of their data.
    ///
    /// # Errors
    /// `Canceled`, `Timeout`, `Busy` or `TooLarge` without memory, and errors of storage.
    pub fn group_costs(
        &self,
        selectors: &[Vec<Matcher>],
        options: &CostOptions,
        top: usize,
        context: &QueryContext,
    ) -> Result<(GroupCosts, Reservation)> {
        let snapshot = self.snapshot();
        let newest = snapshot.time_range().end;
        let range = match snapshot.time_range().is_empty() {
            true => TimeRange::EMPTY,
            false => TimeRange::new(newest.saturating_sub(options.partition_ms - 1), newest),
        };
        let mut list = CostList::new(top, context);
        let (mut some, mut some_held) = (Vec::new(), context.budget.empty(Pool::Query));
        let mut read = |some: &mut Vec<GroupSummary>| -> Result<()> {
            let ids: Vec<GroupId> = some.iter().map(|summary| summary.group).collect();
            let (mut batches, mut batches_held) = match range.is_empty() {
                true => (Vec::new(), context.budget.empty(Pool::Query)),
                false => snapshot.read_groups(&ids, range, context)?,
            };
            // Each is copied and encoded, member by member and as a whole.
            batches_held.grow(2 * batches_held.bytes())?;
            batches.resize_with(ids.len(), ColumnBatch::default);
            for (summary, batch) in some.drain(..).zip(batches) {
                context.cancel.check()?;
                let cost = cost_of(&snapshot, &summary, batch, options, context)?;
                list.add(summary, cost)?;
            }
            Ok(())
        };
        self.each_group(selectors, false, context, &mut |summary| {
            some_held.grow(summary.bytes())?;
            some.push(summary);
            if some.len() == GROUPS_PER_READ {
                read(&mut some)?;
                some_held.shrink(some_held.bytes());
            }
            Ok(ControlFlow::Continue(()))
        })?;
        read(&mut some)?;
        Ok(list.finish(range))
    }
}

/// The most expensive groups so far, and the sum of all.
struct CostList {
    top: usize,
    /// The least expensive first.
    groups: BinaryHeap<Reverse<RankedGroup>>,
    group_count: u64,
    total: GroupCost,
    held: Reservation,
    /// The memory of `groups`.
    bytes: u64,
}

/// In order of cost; among equal ones the older is larger.
struct RankedGroup {
    summary: GroupSummary,
    cost: GroupCost,
}

impl CostList {
    fn new(top: usize, context: &QueryContext) -> CostList {
        CostList {
            top,
            groups: BinaryHeap::new(),
            group_count: 0,
            total: GroupCost::default(),
            held: context.budget.empty(Pool::Query),
            bytes: 0,
        }
    }

    fn add(&mut self, summary: GroupSummary, cost: GroupCost) -> Result<()> {
        self.group_count += 1;
        self.total.add(&cost);
        let group = Reverse(RankedGroup { summary, cost });
        if self.groups.len() >= self.top {
            let least = self.groups.peek();
            if least.is_none_or(|least| *least <= group) {
                return Ok(());
            }
            self.bytes -= self.groups.pop().map_or(0, |least| least.0.bytes());
        }
        self.bytes += group.0.bytes();
        self.held.cover(self.bytes)?;
        self.groups.push(group);
        Ok(())
    }

    fn finish(self, range: TimeRange) -> (GroupCosts, Reservation) {
        let CostList { groups, group_count, total, held, .. } = self;
        let groups = groups.into_sorted_vec().into_iter();
        let groups = groups
            .map(|Reverse(RankedGroup { summary, cost })| (summary.group, summary.labels, cost));
        (GroupCosts { range, groups: groups.collect(), group_count, total }, held)
    }
}

impl RankedGroup {
    /// In the heap and in the list that is made of it.
    fn bytes(&self) -> u64 {
        self.summary.bytes() + 3 * size_of::<RankedGroup>() as u64
    }
}

impl Ord for RankedGroup {
    fn cmp(&self, other: &RankedGroup) -> Ordering {
        let by_cost = self.cost.net_bytes().total_cmp(&other.cost.net_bytes());
        by_cost.then(other.summary.group.cmp(&self.summary.group))
    }
}

impl PartialOrd for RankedGroup {
    fn partial_cmp(&self, other: &RankedGroup) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for RankedGroup {
    fn eq(&self, other: &RankedGroup) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for RankedGroup {}

fn cost_of(
    snapshot: &Snapshot,
    summary: &GroupSummary,
    batch: ColumnBatch,
    options: &CostOptions,
    context: &QueryContext,
) -> Result<GroupCost> {
    let mut cost = index_cost(snapshot, summary, options.posting_bytes, context)?;
    add_data_cost(summary.group, batch, &mut cost);
    add_query_costs(options, &mut cost);
    Ok(cost)
}

/// Equations 1 and 2.
fn index_cost(
    snapshot: &Snapshot,
    summary: &GroupSummary,
    posting_bytes: f64,
    context: &QueryContext,
) -> Result<GroupCost> {
    let mut cost = GroupCost::default();
    let (mut unique_held, mut unique_bytes) = (context.budget.empty(Pool::Query), 0);
    let mut unique: HashSet<(Vec<u8>, Vec<u8>)> = HashSet::new();
    let bytes_of = |labels: &Labels| -> u64 {
        labels.iter_bytes().map(|(name, value)| (name.len() + value.len()) as u64).sum()
    };
    for slot in (0..summary.slot_count).map(Slot) {
        let series = SeriesRef { group: summary.group, slot };
        context.cancel.check()?;
        let Some(labels) = snapshot.index().labels(series)? else { continue };
        cost.series_count += 1;
        cost.pair_count += labels.count() as u64;
        cost.pair_bytes += bytes_of(&labels);
        for (name, value) in labels.iter_bytes() {
            if unique.insert((name.to_vec(), value.to_vec())) {
                unique_bytes += (name.len() + value.len() + PAIR_BYTES) as u64;
            }
        }
        unique_held.cover(unique_bytes)?;
    }
    cost.group_pair_count = summary.labels.count() as u64;
    cost.unique_pair_count = unique.len() as u64;
    // (T - T_g) * N labels stay with the members; T_g labels are stored once instead of N times.
    let shared_count = cost.group_pair_count * cost.series_count;
    let shared_bytes = bytes_of(&summary.labels) * cost.series_count;
    let own_count = cost.pair_count.saturating_sub(shared_count);
    let own_bytes = cost.pair_bytes.saturating_sub(shared_bytes);
    cost.index_bytes = Cost {
        alone: cost.pair_count as f64 * posting_bytes + cost.pair_bytes as f64,
        grouped: (cost.unique_pair_count + own_count) as f64 * posting_bytes
            + (bytes_of(&summary.labels) + own_bytes) as f64,
    };
    Ok(cost)
}

/// Encodes the samples as one chunk, and as one chunk per member.
fn add_data_cost(group: GroupId, mut batch: ColumnBatch, cost: &mut GroupCost) {
    batch.columns.iter_mut().for_each(|column| column.key = 0);
    let value_count: usize = batch.columns.iter().map(|column| column.values.len()).sum();
    let fits = batch.times.iter().all(|times| times.len() <= ENTRIES_MAX);
    // The codec would write several chunks; in that case only the labels are compared.
    if batch.columns.is_empty() || !fits || value_count > VALUES_MAX {
        return;
    }
    cost.sample_count = value_count as u64;
    cost.timestamp_count = Cost {
        alone: value_count as f64,
        grouped: batch.times.iter().map(|times| times.len()).sum::<usize>() as f64,
    };
    let seq = SeqRange::at(CommitSeq(1));
    let encoded_bytes = |batch: ColumnBatch| {
        let mut out = Vec::new();
        encode_chunk(group, &GroupColumns { batch, seq }, Effort::Small, &mut out);
        out.len() as f64
    };
    cost.data_bytes.alone = batch.columns.iter().map(|c| encoded_bytes(alone(&batch, c))).sum();
    cost.data_bytes.grouped = encoded_bytes(batch);
}

/// One member as a lone series.
fn alone(batch: &ColumnBatch, column: &Column) -> ColumnBatch {
    let times = batch.times.get(column.time_idx as usize).map_or(&[][..], |times| &times[..]);
    let own = match &column.presence {
        None => times.to_vec(),
        Some(presence) => presence.iter().filter_map(|idx| times.get(idx).copied()).collect(),
    };
    let values = match &column.values {
        ColumnValues::F64(values) => values.clone(),
        // No format stores another type yet.
        _ => Vec::new(),
    };
    let column = Column {
        slot: Slot(0),
        key: 0,
        time_idx: 0,
        presence: None,
        values: ColumnValues::F64(values),
    };
    ColumnBatch { times: vec![own.into()], columns: vec![column] }
}

/// Equations 3 to 6 for `P` = 1 and `G` = 1, with `L` = 1 and with `L` = `N`.
fn add_query_costs(options: &CostOptions, cost: &mut GroupCost) {
    if cost.sample_count == 0 {
        return;
    }
    let series_count = cost.series_count as f64;
    // S_data / R_1, and S_data * S_g / R_2.
    let (one_bytes, group_bytes) = (cost.data_bytes.alone / series_count, cost.data_bytes.grouped);
    let fast = |bytes: f64| bytes * options.fast_seconds_per_byte;
    let slow = |bytes: f64| (bytes / options.block_bytes).ceil() * options.slow_seconds_per_block;
    cost.fast_seconds_one = Cost { alone: fast(one_bytes), grouped: fast(group_bytes) };
    cost.fast_seconds_all =
        Cost { alone: series_count * fast(one_bytes), grouped: fast(group_bytes) };
    cost.slow_seconds_one = Cost { alone: slow(one_bytes), grouped: slow(group_bytes) };
    cost.slow_seconds_all =
        Cost { alone: series_count * slow(one_bytes), grouped: slow(group_bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ForeignMember, Options, RowBatch, local_env};

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        Labels::from_pairs(pairs.iter().copied()).unwrap()
    }

    /// Bytes and counts calculated by hand, so that each term of the equations occurs once.
    #[test]
    fn costs_follow_the_equations_of_the_paper() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(local_env(folder.path()).unwrap(), Options::default()).unwrap();
        let group = labels(&[("device", "p7")]); // 8 bytes
        // 8 + 4 = 12 and 8 + 3 + 4 + 1 = 16 bytes of their own; "core" has two values.
        let members = [
            labels(&[("__name__", "flow")]),
            labels(&[("__name__", "hot"), ("core", "0")]),
            labels(&[("__name__", "hot"), ("core", "1")]),
        ];
        let refs = db.resolve_group(&group, &members, ForeignMember::Refuse).unwrap();
        let sparse = labels(&[("device", "p8"), ("site", "a-site-with-a-long-name")]);
        let lone = db.resolve_group(&sparse, &[members[0].clone()], ForeignMember::Refuse).unwrap();
        let mut batch = RowBatch::default();
        for minute in 0..60 {
            let ts = 1_700_000_000_000 + minute * 60_000 + minute % 7;
            let value = Some(minute as f64);
            refs.push_row(&mut batch, ts, &[value, value, Some(1.0)]);
        }
        lone.push_row(&mut batch, 1_700_000_000_000, &[Some(1.0)]);
        db.write(&mut batch).unwrap();
        let options = CostOptions { block_bytes: 64.0, ..CostOptions::default() };
        let (costs, _) = db.group_costs(&[], &options, usize::MAX, &db.context()).unwrap();
        assert_eq!(costs.groups.len(), 2);
        // A group of one member saves nothing: it has its postings twice. The most expensive comes
        // first.
        let (_, first, worst) = &costs.groups[0];
        assert_eq!(first, &sparse);
        assert!(worst.net_bytes() > 0.0, "{worst:?}");
        let (_, second, cost) = &costs.groups[1];
        assert_eq!(second, &group);
        assert_eq!((cost.series_count, cost.pair_count, cost.group_pair_count), (3, 8, 1));
        // device, two names, two cores.
        assert_eq!((cost.unique_pair_count, cost.pair_bytes), (5, 3 * 8 + 12 + 16 + 16));
        // Equation 1: N T (S_p + S_t).
        assert_eq!(cost.index_bytes.alone, 8.0 * 8.0 + 68.0);
        // Equation 2: T_u S_p + (T - T_g) N S_p + T_g S_t + (T - T_g) N S_t.
        assert_eq!(cost.index_bytes.grouped, 5.0 * 8.0 + 5.0 * 8.0 + 8.0 + 44.0);
        assert_eq!(cost.sample_count, 180);
        assert_eq!(cost.timestamp_count, Cost { alone: 180.0, grouped: 60.0 });
        assert!(cost.data_bytes.grouped < cost.data_bytes.alone, "one time column, not three");
        assert!(cost.net_bytes() < 0.0);
        // Equations 3 and 5, 4 and 6.
        let one = cost.data_bytes.alone / 3.0;
        assert_eq!(cost.fast_seconds_one.alone, one * 4e-9);
        assert_eq!(cost.fast_seconds_all.grouped, cost.data_bytes.grouped * 4e-9);
        assert_eq!(cost.slow_seconds_all.alone, 3.0 * (one / 64.0).ceil() * 0.03);
        assert_eq!(cost.slow_seconds_one.grouped, (cost.data_bytes.grouped / 64.0).ceil() * 0.03);
        assert_eq!(costs.total.series_count, 4);
        assert_eq!(costs.total.net_bytes(), worst.net_bytes() + cost.net_bytes());
        // Tables have the same cost as memory, and a selector selects groups.
        db.flush().unwrap();
        let only = firn_promql::parse_matchers("{device=\"p7\"}").unwrap();
        let (flushed, _) = db.group_costs(&[only], &options, usize::MAX, &db.context()).unwrap();
        assert_eq!(flushed.groups, costs.groups[1..]);
    }

    #[test]
    fn groups_without_samples_cost_only_their_labels() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(local_env(folder.path()).unwrap(), Options::default()).unwrap();
        let (none, _) =
            db.group_costs(&[], &CostOptions::default(), usize::MAX, &db.context()).unwrap();
        assert_eq!((none.groups.len(), none.total), (0, GroupCost::default()));
        let members = [labels(&[("__name__", "flow")])];
        db.resolve_group(&labels(&[("a", "1")]), &members, ForeignMember::Refuse).unwrap();
        let (costs, held) =
            db.group_costs(&[], &CostOptions::default(), usize::MAX, &db.context()).unwrap();
        assert_eq!(costs.total.index_bytes, Cost { alone: 30.0, grouped: 38.0 });
        assert_eq!(costs.total.data_bytes, Cost::default());
        assert!(held.bytes() > 0, "the list is not reserved");
    }

    /// After a churn of odd labels, the list of all groups and lone series took more memory than a
    /// query may have, whatever number of them was shown.
    #[test]
    fn groups_that_are_not_shown_take_little_memory() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(local_env(folder.path()).unwrap(), Options::default()).unwrap();
        let text = |n: usize| format!("{n}{}", "x".repeat(300));
        let lone: Vec<Labels> = (0..5_000).map(|n| labels(&[("odd", &text(n))])).collect();
        assert!(db.resolve(&lone).iter().all(Result::is_ok));
        let members = [labels(&[("__name__", "a")]), labels(&[("__name__", "b")])];
        for n in 0..2_000 {
            let own = labels(&[("device", &text(n))]);
            db.resolve_group(&own, &members[..1 + n % 2], ForeignMember::Refuse).unwrap();
        }
        let context = || QueryContext { budget: db.budget().part(1 << 20), ..db.context() };
        let cost = |top| db.group_costs(&[], &CostOptions::default(), top, &context());
        let (costs, held) = cost(5).unwrap();
        assert_eq!((costs.groups.len(), costs.group_count), (5, 2_000));
        assert_eq!(costs.total.series_count, 3_000);
        assert!(held.bytes() < 16 << 10, "{}", held.bytes());
        let all = db.group_costs(&[], &CostOptions::default(), 2_000, &db.context()).unwrap().0;
        assert_eq!((&all.groups[..5], &all.total), (&costs.groups[..], &costs.total));
        assert!(all.groups.is_sorted_by(|a, b| a.2.net_bytes() >= b.2.net_bytes()));
        let mut first = Vec::new();
        let mut add = |group| {
            first.push(group);
            Ok(if first.len() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        };
        db.each_group(&[], false, &context(), &mut add).unwrap();
        assert_eq!(first, db.groups(&[], false, &db.context()).unwrap().0[..3]);
        // All texts together do not fit, and the error names the setting.
        let error = cost(2_000).unwrap_err().to_string();
        assert!(error.contains("raise --memory"), "{error}");
    }
}
