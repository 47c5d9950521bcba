//! Decides the next job: a pure function of a version, the options and the time.
//!
//! Most urgent first: drop expired tables (frees space at once), level 0 to 1 (keeps reads short),
//! 1 to 2 (frees the fast tier), patches (keeps old reads short), old partitions (keeps objects
//! few), then cleaning of deleted samples. Merges with a damaged table are left out: its good
//! blocks stay readable, and other work continues.

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_codec::Tombstones;
use firn_model::{CommitSeq, GroupId, TimeRange, Timestamp};

use crate::job::{Task, Work};
use crate::layout::{SlowLayout, SlowLengths, region, regions, shortest_len, tables_in};
use crate::mutant::mutant;
use crate::options::TreeOptions;
use crate::output::territory;
use crate::partition::{Partition, PartitionLen, PartitionLengths};
use crate::record::{Level, TableRecord};
use crate::size::is_pressed;
use crate::table::Table;
use crate::version::Version;

const FAST: [Level; 2] = [Level::Zero, Level::One];
// Tables that one cleaning job considers: their directories are read in one round trip.
const CLEAN_TABLES_MAX: usize = 64;
// Full tables that one merge of old partitions may write: bounds the bytes that it reads and puts.
const MERGED_TABLES_MAX: u64 = 8;
// Chunks with fewer entries are mostly head and directory: an hourly series has 16 in 16 h, which
// take 3 B a sample.
const CHUNK_ENTRIES_FEW: u64 = 128;

/// The present deletes, for plans.
#[derive(Clone, Debug, Default)]
pub struct Deletes {
    /// Deletes that may hide something.
    pub tombstones: Arc<Tombstones>,
    /// Tables are rewritten to remove samples hidden by deletes up to this one. Later deletes are
    /// applied when tables are merged anyway.
    pub clean_through: CommitSeq,
}

/// The times of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanTimes {
    /// Wall time.
    pub now: Timestamp,
    /// The time by which retention drops data: at most the wall time, which may have jumped ahead.
    pub retention_now: Timestamp,
}

impl From<Timestamp> for PlanTimes {
    /// With a clock that has not jumped.
    fn from(now: Timestamp) -> PlanTimes {
        PlanTimes { now, retention_now: now }
    }
}

/// The tiers that a job may use now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierScope {
    /// Both tiers.
    Both,
    /// The slow tier is down, or belongs to another writer: only jobs without objects.
    Fast,
}

/// The most urgent job, if there is one.
pub(crate) fn plan(
    version: &Version,
    options: &TreeOptions,
    lengths: PartitionLengths,
    deletes: &Deletes,
    PlanTimes { now, retention_now }: PlanTimes,
    reach: TierScope,
) -> Option<Work> {
    let fast = plan_drop(version, options, retention_now)
        .or_else(|| plan_compact(version, options, lengths, now));
    if reach == TierScope::Fast {
        return fast.or_else(|| plan_clean(version, deletes, &FAST));
    }
    fast.or_else(|| plan_upload(version, options, lengths, now))
        .or_else(|| plan_patches(version, options))
        .or_else(|| plan_partitions(version, options, now))
        .or_else(|| plan_clean(version, deletes, &Level::ALL))
}

/// Drops regions that have expired as a whole: if only the newer of two overlapping partitions were
/// dropped, the samples that it had overwritten in the older one would become visible again.
fn plan_drop(version: &Version, options: &TreeOptions, now: Timestamp) -> Option<Work> {
    let cutoff = options.retention_ms.map_or(Timestamp::MIN, |ms| now.saturating_sub(ms));
    let slow_bytes = |tables: &[Arc<Table>]| -> u64 {
        tables.iter().filter(|t| t.record.level.is_slow()).map(|t| t.record.bytes).sum()
    };
    let mut surplus = options
        .slow_bytes_max
        .map_or(0, |limit| slow_bytes(version.level(Level::Two)).saturating_sub(limit));
    if options.retention_ms.is_none() && surplus == 0 {
        return None;
    }
    let inputs: Vec<Arc<Table>> = regions(version, &Level::ALL)
        .into_iter()
        .filter(|(region, tables)| {
            let bytes = slow_bytes(tables);
            let end = if mutant!(options, DroppedTooEarly) { region.start } else { region.end };
            let is_over = end < cutoff || (surplus > 0 && bytes > 0);
            surplus = if is_over { surplus.saturating_sub(bytes) } else { surplus };
            is_over
        })
        .flat_map(|(_, tables)| tables)
        .collect();
    (!inputs.is_empty()).then_some(Work { task: Task::Drop, inputs })
}

/// Level 0 to 1: the oldest partition when too many wait, one with too many tables, one with much
/// late data, or one that is due for its upload. Slightly late data is batched; otherwise every
/// flush would rewrite each partition it touches.
fn plan_compact(
    version: &Version,
    options: &TreeOptions,
    lengths: PartitionLengths,
    now: Timestamp,
) -> Option<Work> {
    // Half of the time that an upload may take is left for the second step.
    let written_before = now.saturating_sub(options.upload_age_ms_max / 2);
    let waiting: Vec<Vec<Arc<Table>>> = regions(version, &FAST)
        .into_iter()
        .map(|(_, tables)| tables)
        .filter(|tables| level0_count(tables) > 0 && is_sound(tables))
        .collect();
    let is_late = |tables: &&Vec<Arc<Table>>| {
        level0_count(tables) < tables.len() || tables.iter().any(|t| is_uploaded(version, t))
    };
    let is_due = |tables: &&Vec<Arc<Table>>| {
        level0_count(tables) > options.level0_tables_max
            || is_much_late(tables)
            || tables.iter().any(|table| {
                table.record.level == Level::Zero && table.record.written_ms <= written_before
            })
    };
    let in_order = || waiting.iter().filter(|tables| !is_late(tables));
    let is_crowded = in_order().count() > options.level0_partitions_max;
    let oldest = if is_pressed(version, options, lengths) { waiting.first() } else { None };
    let oldest = oldest.or_else(|| in_order().next().filter(|_| is_crowded));
    let inputs = oldest.or_else(|| waiting.iter().find(is_due))?;
    let len = shortest_len(inputs.iter().map(|table| &table.record));
    Some(Work { task: Task::Compact(len), inputs: inputs.clone() })
}

/// Whether level 0 has a quarter of the values of level 1, so that a partition that doubles by late
/// data is rewritten three times.
fn is_much_late(tables: &[Arc<Table>]) -> bool {
    let count = |level| -> u64 {
        let of_level = tables.iter().filter(|table| table.record.level == level);
        of_level.map(|table| table.record.value_count).sum()
    };
    let merged = count(Level::One);
    merged > 0 && count(Level::Zero) >= merged.div_ceil(4)
}

/// Level 1 to 2: the oldest level-2 partition that is complete, or has waited long enough.
fn plan_upload(
    version: &Version,
    options: &TreeOptions,
    lengths: PartitionLengths,
    now: Timestamp,
) -> Option<Work> {
    // One wrong clock must not age all data: the newest sample counts up to the wall clock.
    let newest = version.all().map(|table| table.record.time_range.end).max()?.min(now);
    let delay_ms = options.upload_delay_ms.min(lengths.fast.as_ms());
    let complete_before = newest.saturating_sub(delay_ms);
    let written_before = now.saturating_sub(options.upload_age_ms_max);
    let is_pressed = is_pressed(version, options, lengths);
    let new = slow_lengths(options, lengths, now);
    let mut looked_at = TimeRange::EMPTY;
    for table in version.level(Level::One) {
        let partition = table.record.partition;
        if looked_at.covers(partition.range()) && !looked_at.is_empty() {
            continue;
        }
        // A flush of many old partitions has made it longer.
        let new = SlowLengths { old: new.old.max(partition.len()), ..new };
        // Data beside existing level-2 partitions is not late, and need not wait for late data.
        let layout = SlowLayout::of(version, partition.range(), new);
        let target = layout.target(partition.range().start).partition;
        let region = region(version, target.range().union(partition.range()), &Level::ALL);
        looked_at = region;
        let inputs = tables_in(version, region, &FAST);
        let is_late = inputs.iter().any(|table| is_uploaded(version, table));
        let is_complete = !is_late && region.end < complete_before;
        let is_old = inputs.iter().any(|table| table.record.written_ms <= written_before);
        // Late data is batched, so that uploads do not leave tiny patches.
        let bytes: u64 = inputs.iter().map(|table| table.record.bytes).sum();
        let is_much = is_late && bytes >= options.table_bytes_max / 4;
        if (is_complete || is_old || is_much || is_pressed) && is_sound(&inputs) {
            let layout = SlowLayout::of(version, region, new);
            return Some(Work { task: Task::Upload(layout), inputs });
        }
    }
    None
}

/// Merges tables of level 2 that have too many patches into tables with disjoint groups (TimeUnion,
/// figure 11).
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

/// The tables of one partition that must be merged together because some have too many patches.
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
        // A patch that extends into a neighbour's groups adds the neighbour to the merge.
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

/// Merges old partitions of one longer partition, where that makes at most half as many objects: a
/// year of a small database is some hundred objects. Full tables are not merged, because that would
/// save no object. Much older partitions are merged once more where chunks have few entries and the
/// same groups recur, so that slow series have longer chunks. Tables of the fast tier in the window
/// are merged too, so that the remaining ones are newer than all inputs.
fn plan_partitions(version: &Version, options: &TreeOptions, now: Timestamp) -> Option<Work> {
    let (old, oldest) = (options.old_len(), options.oldest_len());
    plan_windows(version, options, old, now, &|_| true).or_else(|| {
        let longer = match oldest > old {
            true => plan_windows(version, options, oldest, now, &has_short_chunks)?,
            false => return None,
        };
        let Task::MergePartitions(partition) = longer.task else { return Some(longer) };
        Some(Work { task: Task::Lengthen(partition), ..longer })
    })
}

/// The first window of `len`, at least as old as it is long, whose level-2 tables are worth
/// merging.
fn plan_windows(
    version: &Version,
    options: &TreeOptions,
    len: PartitionLen,
    now: Timestamp,
    is_worth: &dyn Fn(&[Arc<Table>]) -> bool,
) -> Option<Work> {
    let old_before = now.saturating_sub(len.as_ms());
    let window_of = |table: &Table| Partition::of(table.record.partition.range().start, len);
    version
        .level(Level::Two)
        .chunk_by(|a, b| window_of(a) == window_of(b))
        .map(|tables| (window_of(&tables[0]), tables))
        .take_while(|(window, _)| window.range().end < old_before)
        .find_map(|(window, tables)| plan_window(version, options, window, tables, is_worth))
}

fn has_short_chunks(tables: &[Arc<Table>]) -> bool {
    if tables.iter().all(|table| table.is_grown()) {
        return false;
    }
    let sum =
        |of: fn(&TableRecord) -> u64| tables.iter().map(|table| of(&table.record)).sum::<u64>();
    sum(|record| record.entry_count) < CHUNK_ENTRIES_FEW * sum(|record| record.chunk_count)
}

/// Merges `tables`, all of level 2 that begin in `window`, or those of a half if they are too much
/// for one job.
fn plan_window(
    version: &Version,
    options: &TreeOptions,
    window: Partition,
    tables: &[Arc<Table>],
    is_worth: &dyn Fn(&[Arc<Table>]) -> bool,
) -> Option<Work> {
    let first = tables.first()?.record.partition;
    let is_one = tables.iter().all(|table| table.record.partition == first);
    if is_one || !is_sound(tables) {
        return None;
    }
    let bytes: u64 = tables.iter().map(|table| table.record.bytes).sum();
    let made = bytes.div_ceil(options.table_bytes_max);
    if made > MERGED_TABLES_MAX {
        let [_, late] = window.halves()?;
        let middle = late.range().start;
        let cut = tables.partition_point(|table| table.record.partition.range().start < middle);
        return window
            .halves()?
            .into_iter()
            .zip([&tables[..cut], &tables[cut..]])
            .find_map(|(half, tables)| plan_window(version, options, half, tables, is_worth));
    }
    if (tables.len() as u64) < 2 * made || !is_worth(tables) {
        return None;
    }
    // A longer partition that extends beyond the window stays as it is.
    let region = region(version, window.range(), &Level::ALL);
    if region != window.range() {
        return None;
    }
    let inputs = tables_in(version, region, &Level::ALL);
    is_sound(&inputs).then_some(Work { task: Task::MergePartitions(window), inputs })
}

/// Tables that may contain deleted samples. Each is rewritten by itself, so the tree's shape does
/// not change.
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

/// Whether the slow tier has a part of a table's partition, so that the table would become a patch.
fn is_uploaded(version: &Version, table: &Table) -> bool {
    version.overlapping(Level::Two, table.record.partition.range()).next().is_some()
}

/// Lengths of new level-2 partitions.
pub(crate) fn slow_lengths(
    options: &TreeOptions,
    lengths: PartitionLengths,
    now: Timestamp,
) -> SlowLengths {
    SlowLengths {
        recent: lengths.slow,
        old: options.old_len(),
        old_before: options.old_before(now),
    }
}

/// Lengths of level 2 for a flush that touches too many old partitions.
pub(crate) fn longest_lengths(options: &TreeOptions, now: Timestamp) -> SlowLengths {
    let oldest = options.oldest_len().max(options.old_len());
    SlowLengths {
        recent: options.old_len(),
        old: oldest,
        old_before: now.saturating_sub(oldest.as_ms()),
    }
}

/// The partition of a flushed sample: its level-2 partition if that exists, else a short one or,
/// far from now, one of level 2's length, so that an import of years makes few tables. Of several
/// layouts, the first by which the partition is far from now.
pub(crate) fn flush_partition(
    layouts: &[SlowLayout],
    ts: Timestamp,
    now: Timestamp,
    fast: PartitionLen,
) -> Partition {
    let mut shortest = fast;
    for layout in layouts {
        let target = layout.target(ts);
        let far_ms = target.partition.len().as_ms().saturating_mul(2);
        let is_far = target.partition.range().end < now.saturating_sub(far_ms);
        if is_far || !target.bounds.is_empty() {
            return target.partition;
        }
        shortest = shortest.min(target.partition.len());
    }
    Partition::of(ts, shortest)
}
