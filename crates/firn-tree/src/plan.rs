//! What to do next: a pure function of a version, the options and the time.
//!
//! Most urgent first: drop what is over (frees at once), level 0 to 1 (keeps reads short), 1 to 2
//! (frees the fast tier), patches (keeps old reads short), then what deletes hide. Merges with a damaged table are left out:
//! its good blocks stay readable, and the rest goes on.

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_codec::Tombstones;
use firn_model::{CommitSeq, GroupId, TimeRange, Timestamp};

use crate::job::{Task, Work};
use crate::layout::{SlowLayout, region, regions, shortest_len, tables_in};
use crate::options::TreeOptions;
use crate::output::territory;
use crate::partition::{Partition, PartitionLen};
use crate::record::Level;
use crate::table::Table;
use crate::version::Version;

const FAST: [Level; 2] = [Level::Zero, Level::One];
// Tables that one job of cleaning looks at: their directories are read in one round trip.
const CLEAN_TABLES_MAX: usize = 64;

/// The deletes that there are, for plans.
#[derive(Clone, Debug, Default)]
pub struct Deletes {
    /// What hides something, perhaps.
    pub tombstones: Arc<Tombstones>,
    /// Tables are written anew to be rid of what deletes up to this one hide. Later deletes are
    /// applied when tables are merged anyway.
    pub clean_through: CommitSeq,
}

/// Where work may be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// On both tiers.
    Both,
    /// The slow tier is down, or another's to write: only what needs no object.
    Fast,
}

/// The most urgent work, if there is any.
pub(crate) fn plan(
    version: &Version,
    options: &TreeOptions,
    deletes: &Deletes,
    now: Timestamp,
    reach: Reach,
) -> Option<Work> {
    let fast = plan_drop(version, options, now).or_else(|| plan_compact(version, options, now));
    if reach == Reach::Fast {
        return fast.or_else(|| plan_clean(version, deletes, &FAST));
    }
    fast.or_else(|| plan_upload(version, options, now))
        .or_else(|| plan_patches(version, options))
        .or_else(|| plan_clean(version, deletes, &Level::ALL))
}

/// Tables of regions that are over as a whole: were only the younger of two overlapping partitions
/// dropped, what it had overwritten in the older one would show again.
fn plan_drop(version: &Version, options: &TreeOptions, now: Timestamp) -> Option<Work> {
    let cutoff = now.saturating_sub(options.retention_ms?);
    let inputs: Vec<Arc<Table>> = regions(version, &Level::ALL)
        .into_iter()
        .filter(|(region, _)| region.end < cutoff)
        .flat_map(|(_, tables)| tables)
        .collect();
    (!inputs.is_empty()).then_some(Work { task: Task::Drop, inputs })
}

/// Level 0 to 1: the oldest partition when too many wait, one with too many tables, or one whose
/// data must get on its way to the slow tier.
fn plan_compact(version: &Version, options: &TreeOptions, now: Timestamp) -> Option<Work> {
    // Half of what an upload may take in all is left for the second step.
    let written_before = now.saturating_sub(options.upload_age_ms_max / 2);
    let waiting: Vec<Vec<Arc<Table>>> = regions(version, &FAST)
        .into_iter()
        .map(|(_, tables)| tables)
        .filter(|tables| level0_count(tables) > 0 && is_sound(tables))
        .collect();
    let is_old = |tables: &&Vec<Arc<Table>>| {
        tables.iter().any(|table| {
            table.record.level == Level::Zero && table.record.written_ms <= written_before
        })
    };
    let oldest = (waiting.len() > options.level0_partitions_max).then(|| waiting.first());
    let inputs = oldest
        .flatten()
        .or_else(|| waiting.iter().find(|tables| level0_count(tables) > options.level0_tables_max))
        .or_else(|| waiting.iter().find(is_old))?;
    let len = shortest_len(inputs.iter().map(|table| &table.record));
    Some(Work { task: Task::Compact(len), inputs: inputs.clone() })
}

/// Level 1 to 2: the oldest level-2 partition that is complete, or has waited long enough.
fn plan_upload(version: &Version, options: &TreeOptions, now: Timestamp) -> Option<Work> {
    // One bad clock must not age everybody's data: the newest sample counts up to the wall clock.
    let newest = version.all().map(|table| table.record.time_range.end).max()?.min(now);
    let complete_before = newest.saturating_sub(options.upload_delay_ms);
    let written_before = now.saturating_sub(options.upload_age_ms_max);
    let mut looked_at = TimeRange::EMPTY;
    for table in version.level(Level::One) {
        let partition = table.record.partition;
        if looked_at.covers(partition.range()) && !looked_at.is_empty() {
            continue;
        }
        let len = partition.len().max(options.slow_len());
        let seed = Partition::of(partition.range().start, len).range();
        let region = region(version, seed, &Level::ALL);
        looked_at = region;
        let inputs = tables_in(version, region, &FAST);
        let is_late = version.overlapping(Level::Two, region).next().is_some();
        let is_complete = !is_late && level0_count(&inputs) == 0 && region.end < complete_before;
        let is_old = inputs.iter().any(|table| table.record.written_ms <= written_before);
        // Late data waits for more of it, so that each upload does not leave a tiny patch.
        let bytes: u64 = inputs.iter().map(|table| table.record.bytes).sum();
        let is_much = is_late && bytes >= options.table_bytes_max / 4;
        if (is_complete || is_old || is_much) && is_sound(&inputs) {
            let layout = SlowLayout::of(version, region, options.slow_len());
            return Some(Work { task: Task::Upload(layout), inputs });
        }
    }
    None
}

/// Tables of level 2 with too many patches: merged into tables with disjoint groups (figure 11).
fn plan_patches(version: &Version, options: &TreeOptions) -> Option<Work> {
    let tables = version.level(Level::Two);
    tables
        .chunk_by(|a, b| a.record.partition == b.record.partition)
        .find_map(|tables| crowded(tables, options.patches_max))
        .map(|inputs| {
            let partition = inputs[0].record.partition;
            Work { task: Task::MergePatches(partition), inputs }
        })
}

/// The tables of one partition that must be merged together, if some have too many patches.
fn crowded(tables: &[Arc<Table>], patches_max: usize) -> Option<Vec<Arc<Table>>> {
    let bounds: Vec<GroupId> = tables
        .iter()
        .filter(|table| !table.record.patch)
        .map(|table| table.record.group_min)
        .collect();
    let span = |table: &Arc<Table>| {
        let record = &table.record;
        territory(&bounds, record.group_min)..=territory(&bounds, record.group_max)
    };
    let mut patches_of: BTreeMap<usize, usize> = BTreeMap::new();
    for patch in tables.iter().filter(|table| table.record.patch) {
        span(patch).for_each(|territory| *patches_of.entry(territory).or_default() += 1);
    }
    patches_of.into_iter().filter(|(_, count)| *count > patches_max).find_map(|(start, _)| {
        let (mut first, mut last) = (start, start);
        // A patch that reaches into a neighbour's groups takes the neighbour along.
        loop {
            let reach = tables.iter().map(span).filter(|s| *s.start() <= last && *s.end() >= first);
            let (grown_first, grown_last) = reach
                .fold((first, last), |(a, b), span| (a.min(*span.start()), b.max(*span.end())));
            if (grown_first, grown_last) == (first, last) {
                break;
            }
            (first, last) = (grown_first, grown_last);
        }
        let inputs: Vec<Arc<Table>> = tables
            .iter()
            .filter(|table| *span(table).start() <= last && *span(table).end() >= first)
            .cloned()
            .collect();
        is_sound(&inputs).then_some(inputs)
    })
}

/// Tables that may have something that deletes hide. Each is written anew by itself, so nothing else
/// about the tree changes.
fn plan_clean(version: &Version, deletes: &Deletes, levels: &[Level]) -> Option<Work> {
    let due = || deletes.tombstones.iter().take_while(|(seq, _)| *seq <= deletes.clean_through);
    due().next()?;
    let inputs: Vec<Arc<Table>> = version
        .all()
        .filter(|table| !table.is_damaged() && levels.contains(&table.record.level))
        .filter(|table| due().any(|(seq, tombstone)| table.needs(seq, tombstone)))
        .take(CLEAN_TABLES_MAX)
        .cloned()
        .collect();
    (!inputs.is_empty()).then_some(Work { task: Task::Clean, inputs })
}

fn level0_count(tables: &[Arc<Table>]) -> usize {
    tables.iter().filter(|table| table.record.level == Level::Zero).count()
}

fn is_sound(tables: &[Arc<Table>]) -> bool {
    tables.iter().all(|table| !table.is_damaged())
}

/// The partition of a sample that is flushed: the level-2 partition that it falls into, else a short
/// one, or, far from now, one of level 2's length, so that an import of years stays few tables.
pub(crate) fn flush_partition(
    layout: &SlowLayout,
    ts: Timestamp,
    now: Timestamp,
    fast: PartitionLen,
) -> Partition {
    let target = layout.target(ts);
    if !target.bounds.is_empty() {
        return target.partition;
    }
    let far_ms = target.partition.len().as_ms().saturating_mul(2);
    if target.partition.range().end < now.saturating_sub(far_ms) {
        return target.partition;
    }
    Partition::of(ts, fast.min(target.partition.len()))
}
