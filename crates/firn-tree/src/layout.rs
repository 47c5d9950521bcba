//! Which tables must be merged together, and the target partitions of their samples: pure
//! functions.
//!
//! Partitions are nested or disjoint, so the tables that overlap something, and those that overlap
//! them, and so on, fill one range of time: the *region*. A merge takes all tables of the fast tier
//! in its region. Then every other table is newer (flushed later) or older (level 2) than all
//! inputs, and newest wins by comparing ranges of commits. If one were left out, the range of
//! commits of the output would include its own.

use std::sync::Arc;

use firn_model::{GroupId, TimeRange, Timestamp};

use crate::output::Target;
use crate::partition::{Partition, PartitionLen};
use crate::record::{Level, TableRecord};
use crate::table::Table;
use crate::version::Version;

/// The smallest range around `seed` whose ends cut no partition of `levels`.
pub(crate) fn region(version: &Version, seed: TimeRange, levels: &[Level]) -> TimeRange {
    let mut region = seed;
    loop {
        let grown = levels
            .iter()
            .flat_map(|level| version.overlapping(*level, region))
            .fold(region, |all, table| all.union(table.record.partition.range()));
        if grown == region {
            return region;
        }
        region = grown;
    }
}

/// The tables of `levels` in a region.
pub(crate) fn tables_in(version: &Version, region: TimeRange, levels: &[Level]) -> Vec<Arc<Table>> {
    levels.iter().flat_map(|level| version.overlapping(*level, region)).cloned().collect()
}

/// The regions of `levels`, by time, each with its tables.
pub(crate) fn regions(version: &Version, levels: &[Level]) -> Vec<(TimeRange, Vec<Arc<Table>>)> {
    let mut tables: Vec<&Arc<Table>> =
        levels.iter().flat_map(|level| version.level(*level)).collect();
    tables.sort_by_key(|table| table.record.partition.range().start);
    let mut regions: Vec<(TimeRange, Vec<Arc<Table>>)> = Vec::new();
    for table in tables {
        let range = table.record.partition.range();
        match regions.last_mut() {
            Some((region, members)) if region.overlaps(range) => {
                *region = region.union(range);
                members.push(Arc::clone(table));
            }
            _ => regions.push((range, vec![Arc::clone(table)])),
        }
    }
    regions
}

/// Lengths of new partitions of level 2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlowLengths {
    pub(crate) recent: PartitionLen,
    /// The length of partitions that end before `old_before`.
    pub(crate) old: PartitionLen,
    pub(crate) old_before: Timestamp,
}

impl SlowLengths {
    fn partition_of(&self, ts: Timestamp) -> Partition {
        let old = Partition::of(ts, self.old);
        if old.range().end < self.old_before { old } else { Partition::of(ts, self.recent) }
    }
}

/// The existing level-2 partitions: they stay, and data for them becomes patches.
#[derive(Clone, Debug)]
pub(crate) struct SlowLayout {
    /// By time: the partitions, and the first groups of their tables.
    standing: Vec<(Partition, Arc<[GroupId]>)>,
    lengths: SlowLengths,
}

impl SlowLayout {
    /// For samples in `range`.
    pub(crate) fn of(version: &Version, range: TimeRange, lengths: SlowLengths) -> SlowLayout {
        // New partitions may extend beyond the samples, and must not overlap existing ones.
        let reach = |ts| Partition::of(ts, PartitionLen::MAX).range();
        let region = reach(range.start).union(reach(range.end));
        let mut standing: Vec<(Partition, Vec<GroupId>)> = Vec::new();
        for table in version.overlapping(Level::Two, region) {
            let record = &table.record;
            if standing.last().is_none_or(|(partition, _)| *partition != record.partition) {
                standing.push((record.partition, Vec::new()));
            }
            if let Some((_, bounds)) = standing.last_mut()
                && (!record.patch || bounds.is_empty())
            {
                bounds.push(record.group_min);
            }
        }
        let standing =
            standing.into_iter().map(|(partition, bounds)| (partition, bounds.into())).collect();
        SlowLayout { standing, lengths }
    }

    /// The target of a sample at `ts`: the existing partition, else a new one of the usual length,
    /// halved until it overlaps none (TimeUnion 3.3, rule 2).
    pub(crate) fn target(&self, ts: Timestamp) -> Target {
        let next = self.standing.partition_point(|(partition, _)| partition.range().end < ts);
        if let Some((partition, bounds)) = self.standing.get(next)
            && partition.range().contains(ts)
        {
            return Target { partition: *partition, bounds: Arc::clone(bounds) };
        }
        let mut partition = self.lengths.partition_of(ts);
        while self.is_taken(partition)
            && let Some(half) = partition.len().half()
        {
            partition = Partition::of(ts, half);
        }
        Target { partition, bounds: Arc::from([]) }
    }

    /// Whether some data of `partition` would become patches.
    fn is_taken(&self, partition: Partition) -> bool {
        let range = partition.range();
        let next = self.standing.partition_point(|(other, _)| other.range().end < range.start);
        self.standing.get(next).is_some_and(|(other, _)| other.range().overlaps(range))
    }
}

/// The shortest length among tables that are merged: the length of the outputs (rule 1).
pub(crate) fn shortest_len<'a>(records: impl Iterator<Item = &'a TableRecord>) -> PartitionLen {
    records.map(|record| record.partition.len()).min().unwrap_or(PartitionLen::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_MS: i64 = 450_000;

    fn layout(standing: &[(i64, i64)]) -> SlowLayout {
        let standing = standing.iter().map(|&(ts, ms)| {
            let bounds: Arc<[GroupId]> = Arc::from([GroupId(1)]);
            (Partition::of(ts, PartitionLen::from_ms(ms).unwrap()), bounds)
        });
        let lengths = SlowLengths {
            recent: PartitionLen::at_most(8 * MIN_MS),
            old: PartitionLen::at_most(32 * MIN_MS),
            old_before: -100 * MIN_MS,
        };
        SlowLayout { standing: standing.collect(), lengths }
    }

    #[test]
    fn figure_12_new_partitions_fill_the_gaps_and_standing_ones_stay() {
        let layout = layout(&[(2 * MIN_MS, 2 * MIN_MS), (8 * MIN_MS, 8 * MIN_MS)]);
        let f = |ts, want: (i64, i64), patch: bool| {
            let target = layout.target(ts);
            let range = target.partition.range();
            assert_eq!((range.start, range.end + 1), (want.0 * MIN_MS, want.1 * MIN_MS), "{ts}");
            assert_eq!(!target.bounds.is_empty(), patch, "{ts}");
        };
        f(0, (0, 2), false);
        f(2 * MIN_MS - 1, (0, 2), false);
        f(2 * MIN_MS, (2, 4), true);
        f(4 * MIN_MS, (4, 8), false);
        f(8 * MIN_MS, (8, 16), true);
        f(16 * MIN_MS, (16, 24), false);
        f(-1, (-8, 0), false);
        f(-97 * MIN_MS, (-104, -96), false);
        f(-129 * MIN_MS, (-160, -128), false);
    }
}
