//! A version: the tables of one moment. Immutable; readers hold it by `Arc` for as long as they like.

use std::sync::Arc;

use firn_codec::{HiddenSamples, Tombstone};
use firn_model::{
    Budget, CommitSeq, Error, GroupId, Pool, Reservation, Result, Slot, TimeRange, Timestamp,
};

use crate::record::{Level, TableId, TableRecord};
use crate::stats::LevelStats;
use crate::store::Store;
use crate::suffix::Suffix;
use crate::table::Table;

// Directories that are read in one batch; a year has some hundred, of some 100 KB each.
const DIRECTORY_BYTES_MAX: u64 = 16 << 20;

/// Directories that stay in memory while this is held, whatever the cache has room for.
pub struct Directories {
    held: Vec<Arc<Suffix>>,
    memory: Reservation,
}

/// All tables of one moment (invariant 3: nothing that it names is removed while it is held).
pub struct Version {
    store: Arc<Store>,
    /// By level; each sorted by start of partition, then by group. Partitions of level 1 and those
    /// of level 2 are equal or disjoint, so they are sorted by end too.
    levels: [Vec<Arc<Table>>; 3],
    fast_bytes: u64,
}

impl Version {
    /// # Errors
    /// `Internal` if partitions or groups overlap that must not: then a merge was planned on another
    /// version.
    pub(crate) fn new(store: Arc<Store>, tables: Vec<Arc<Table>>) -> Result<Version> {
        let mut levels: [Vec<Arc<Table>>; 3] = Default::default();
        for table in tables {
            levels[table.record.level as usize].push(table);
        }
        for tables in &mut levels {
            tables.sort_by_key(|table| {
                let record = &table.record;
                (record.partition.range().start, record.patch, record.group_min, record.id)
            });
        }
        check_disjoint(&levels[1])?;
        check_disjoint(&levels[2])?;
        let fast = levels.iter().flatten().filter(|table| !table.record.level.is_slow());
        let fast_bytes = fast.map(|table| table.record.bytes).sum();
        Ok(Version { store, levels, fast_bytes })
    }

    /// The records of all tables: level 0 first, within a level by time, then by group.
    pub fn tables(&self) -> impl Iterator<Item = &TableRecord> {
        self.levels.iter().flatten().map(|table| &table.record)
    }

    /// Whether a group has samples in `range`, as directories tell: exact to 1/32 of a table's partition.
    /// Reads the directories of tables that are not in memory yet: call [`Version::load_directories`]
    /// before asking for many groups. `true` where a directory cannot be read.
    pub fn has_data(&self, group: GroupId, range: TimeRange) -> bool {
        self.directories(group, range)
            .any(|(_, suffix)| suffix.is_none_or(|suffix| suffix.may_hold(group, range)))
    }

    /// The first moment in `range` at which a member of a group may have samples: never too late, exact
    /// as [`Version::has_data`].
    pub fn first_data(&self, group: GroupId, slot: Slot, range: TimeRange) -> Option<Timestamp> {
        let starts = self.directories(group, range).filter_map(|(table, suffix)| {
            // What cannot be told is read, and reported there.
            let Some(suffix) = suffix else {
                return Some(table.record.time_range.intersect(range).start);
            };
            let parts = suffix.parts_of(group, range);
            let parts = parts.filter(|(_, slots)| slots.common(&[slot]).next().is_some());
            parts.map(|(span, _)| span.intersect(range).start).min()
        });
        starts.min()
    }

    /// Takes out of `left`, which rises, the members of `group` that have samples in `range`, as
    /// directories tell: exact as [`Version::has_data`], and only if no delete of `hidden`, which is what
    /// deletes hide of the group at any time, touches what is there. No block is read. `false` if only
    /// blocks can tell about some of those that are left.
    pub fn take_present(
        &self,
        group: GroupId,
        range: TimeRange,
        hidden: &[HiddenSamples<'_>],
        left: &mut Vec<Slot>,
    ) -> bool {
        let mut is_told = true;
        for (table, suffix) in self.directories(group, range) {
            if left.is_empty() {
                break;
            }
            let Some(suffix) = suffix else {
                is_told = false;
                continue;
            };
            for (span, slots) in suffix.parts_of(group, range) {
                let reach = span.intersect(range);
                let touches =
                    |one: &&HiddenSamples<'_>| one.range.overlaps(span) && table.may_hide(one.seq);
                let hidden: Vec<&HiddenSamples<'_>> = hidden.iter().filter(touches).collect();
                let mut here: Vec<Slot> = slots.common(left).collect();
                here.retain(|slot| {
                    let of_slot = hidden.iter().filter(|one| one.slots.contains(*slot));
                    let mut of_slot = of_slot.peekable();
                    let is_touched = of_slot.peek().is_some();
                    let newest = table.record.seq.max;
                    let is_gone = of_slot.any(|one| one.range.covers(reach) && newest < one.seq);
                    is_told &= is_gone || !is_touched;
                    !is_touched
                });
                match here.len() == left.len() {
                    true => left.clear(),
                    false => left.retain(|slot| here.binary_search(slot).is_err()),
                }
            }
        }
        is_told
    }

    /// The tables that can hold samples of `group` in `range`, with their directories; `None` for one that
    /// cannot be read.
    fn directories(
        &self,
        group: GroupId,
        range: TimeRange,
    ) -> impl Iterator<Item = (&Arc<Table>, Option<Arc<Suffix>>)> {
        let tables = Level::ALL.into_iter().flat_map(move |level| self.overlapping(level, range));
        tables
            .filter(move |table| {
                table.record.may_hold(group) && table.record.time_range.overlaps(range)
            })
            .map(|table| (table, self.store.suffix(table).ok()))
    }

    /// Brings the directories of the tables with samples in `range` whose groups, from the first to the last, are
    /// `wanted` into memory, those of the slow tier in one round trip (of at most 16 MiB). They stay there for as long as
    /// what is returned is held.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`: of the first that could not be read; `Busy` without memory in `budget`.
    pub fn load_directories(
        &self,
        range: TimeRange,
        wanted: &dyn Fn(GroupId, GroupId) -> bool,
        budget: &Budget,
    ) -> Result<Directories> {
        let tables = Level::ALL.into_iter().flat_map(|level| self.overlapping(level, range));
        let mut tables = tables
            .filter(|table| table.record.time_range.overlaps(range))
            .filter(|table| wanted(table.record.group_min, table.record.group_max))
            .peekable();
        let mut held = Directories { held: Vec::new(), memory: budget.empty(Pool::Query) };
        while tables.peek().is_some() {
            let mut bytes = 0;
            let batch: Vec<&Arc<Table>> = std::iter::from_fn(|| {
                let is_next = |table: &&Arc<Table>| {
                    bytes == 0
                        || bytes + u64::from(table.record.suffix_bytes) <= DIRECTORY_BYTES_MAX
                };
                let table = tables.next_if(is_next)?;
                bytes += u64::from(table.record.suffix_bytes);
                Some(table)
            })
            .collect();
            for (table, suffix) in batch.iter().zip(self.store.suffixes(&batch)) {
                let suffix = suffix?;
                // What the cache holds is counted there.
                if self.store.cache.suffix(table.record.id).is_none() {
                    held.memory.grow(suffix.heap_bytes() as u64)?;
                }
                held.held.push(suffix);
            }
        }
        Ok(held)
    }

    /// Whether some table may have samples that delete `seq` hides; as far as the manifest's records
    /// tell, and as cleaning has found out.
    pub fn needs(&self, seq: CommitSeq, tombstone: &Tombstone) -> bool {
        self.all().any(|table| table.needs(seq, tombstone))
    }

    /// Tables of a level whose partition overlaps `range`.
    pub(crate) fn overlapping(
        &self,
        level: Level,
        range: TimeRange,
    ) -> impl Iterator<Item = &Arc<Table>> {
        let tables = self.level(level);
        let range_of = |table: &Arc<Table>| table.record.partition.range();
        let start = match level {
            // Of different lengths, and few.
            Level::Zero => 0,
            _ => tables.partition_point(|table| range_of(table).end < range.start),
        };
        let end = tables.partition_point(|table| range_of(table).start <= range.end).max(start);
        tables[start..end].iter().filter(move |table| range_of(table).overlaps(range))
    }

    pub(crate) fn level(&self, level: Level) -> &[Arc<Table>] {
        &self.levels[level as usize]
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.levels.iter().flatten()
    }

    pub(crate) fn get(&self, id: TableId) -> Option<&Arc<Table>> {
        self.all().find(|table| table.record.id == id)
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Bytes of all tables of the fast tier.
    pub(crate) fn fast_bytes(&self) -> u64 {
        self.fast_bytes
    }

    /// Numbers about one level.
    pub fn level_stats(&self, level: Level) -> LevelStats {
        let mut stats = LevelStats::default();
        let mut partition_before = None;
        for table in self.level(level) {
            let record = &table.record;
            stats.table_count += 1;
            stats.patch_count += u64::from(record.patch);
            stats.damaged_count += u64::from(table.is_damaged());
            stats.partition_count += u64::from(partition_before != Some(record.partition));
            stats.bytes += record.bytes;
            stats.suffix_bytes += u64::from(record.suffix_bytes);
            stats.chunk_count += record.chunk_count;
            stats.entry_count += record.entry_count;
            stats.value_count += record.value_count;
            stats.time_range = stats.time_range.union(record.time_range);
            partition_before = Some(record.partition);
        }
        stats
    }

    /// Since when what is on the fast tier waits for its upload: the wall time at which the oldest of it was flushed.
    pub fn waiting_since_ms(&self) -> Option<Timestamp> {
        let fast = self.all().filter(|table| !table.record.level.is_slow());
        fast.map(|table| table.record.written_ms).min()
    }

    /// The newest timestamp on the slow tier: what losing this machine cannot lose.
    pub fn newest_slow_ts(&self) -> Option<Timestamp> {
        self.level(Level::Two).iter().map(|table| table.record.time_range.end).max()
    }
}

impl std::fmt::Debug for Directories {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.memory.bytes();
        write!(f, "Directories({}, {bytes} bytes beside the cache)", self.held.len())
    }
}

impl std::fmt::Debug for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.tables()).finish()
    }
}

/// Partitions are equal or disjoint; tables of one partition, patches apart, have disjoint groups.
fn check_disjoint(sorted: &[Arc<Table>]) -> Result<()> {
    for pair in sorted.windows(2) {
        let [one, two] = pair else { continue };
        let (one, two) = (&one.record, &two.record);
        let partitions_overlap =
            one.partition != two.partition && one.partition.range().overlaps(two.partition.range());
        let groups_overlap = one.partition == two.partition
            && !one.patch
            && !two.patch
            && one.group_max >= two.group_min;
        if partitions_overlap || groups_overlap {
            return Err(Error::internal(format!(
                "{} and {} overlap, which tables of level {} must not: {one:?}, {two:?}",
                one.id, two.id, one.level as u8
            )));
        }
    }
    Ok(())
}
