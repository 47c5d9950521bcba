//! A version: the tables of the tree at one time. Immutable; readers hold it by `Arc`.

use std::cmp::Reverse;
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

/// Directories that stay in memory while this is held, even if the cache is full.
pub struct Directories {
    held: Vec<Arc<Suffix>>,
    memory: Reservation,
}

/// The directories of the tables in one range, for lookups of members with samples. Each is loaded
/// when a lookup first needs it, and stays in memory.
pub struct PresenceReader<'v> {
    store: &'v Store,
    /// The newest first.
    tables: Vec<(&'v Arc<Table>, Directory)>,
    range: TimeRange,
    memory: Reservation,
    is_first_load: bool,
}

enum Directory {
    NotLoaded,
    Unreadable,
    Loaded(Arc<Suffix>),
}

/// The tables of the tree at one time (invariant 3: its tables are not removed while it is held).
pub struct Version {
    store: Arc<Store>,
    /// By level; each sorted by start of partition, then by group. Partitions of level 1 and those
    /// of level 2 are equal or disjoint, so they are sorted by end too.
    levels: [Vec<Arc<Table>>; 3],
    fast_bytes: u64,
}

impl Version {
    /// # Errors
    /// `Internal` if partitions or groups overlap that must not: a merge was planned on another
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

    /// Whether a group has samples in `range`, by the directories: exact to 1/32 of a table's
    /// partition. Reads directories that are not in memory: call [`Version::load_directories`]
    /// before querying many groups. `true` where a directory cannot be read.
    pub fn has_data(&self, group: GroupId, range: TimeRange) -> bool {
        self.directories(group, range)
            .any(|(_, suffix)| suffix.is_none_or(|suffix| suffix.may_hold(group, range)))
    }

    /// The first time in `range` at which a member of a group may have samples: never too late,
    /// exact as [`Version::has_data`].
    pub fn first_data(&self, group: GroupId, slot: Slot, range: TimeRange) -> Option<Timestamp> {
        let starts = self.directories(group, range).filter_map(|(table, suffix)| {
            // An unreadable directory counts as having data: reading the blocks reports the damage.
            let Some(suffix) = suffix else {
                return Some(table.record.time_range.intersect(range).start);
            };
            let parts = suffix.parts_of(group, range);
            let parts = parts.filter(|(_, slots)| slots.common(&[slot]).next().is_some());
            parts.map(|(span, _)| span.intersect(range).start).min()
        });
        starts.min()
    }

    /// A reader of the directories of the tables with samples in `range`. Loads none.
    pub fn presence(&self, range: TimeRange, budget: &Budget) -> PresenceReader<'_> {
        let tables = Level::ALL.into_iter().flat_map(|level| self.overlapping(level, range));
        let tables = tables.filter(|table| table.record.time_range.overlaps(range));
        let mut tables: Vec<_> = tables.map(|table| (table, Directory::NotLoaded)).collect();
        // A series that is present mostly has samples at the end of the range.
        tables.sort_by_key(|(table, _)| Reverse(table.record.time_range.end));
        let memory = budget.empty(Pool::Query);
        PresenceReader { store: &self.store, tables, range, memory, is_first_load: true }
    }

    /// The tables that may contain samples of `group` in `range`, with their directories; `None`
    /// for an unreadable one.
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

    /// Loads the directories of the tables with samples in `range` whose groups, from the first to
    /// the last, are `wanted`: those of the slow tier in one round trip (per 16 MiB). They stay in
    /// memory while the returned value is held.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`: of the first unreadable directory; `Busy` without memory in
    /// `budget`.
    pub fn load_directories(
        &self,
        range: TimeRange,
        wanted: &dyn Fn(GroupId, GroupId) -> bool,
        budget: &Budget,
    ) -> Result<Directories> {
        let tables = Level::ALL.into_iter().flat_map(|level| self.overlapping(level, range));
        let tables: Vec<&Arc<Table>> = tables
            .filter(|table| table.record.time_range.overlaps(range))
            .filter(|table| wanted(table.record.group_min, table.record.group_max))
            .collect();
        let mut held = Directories { held: Vec::new(), memory: budget.empty(Pool::Query) };
        self.store.each_suffix(&tables, &mut held.memory, |_, suffix| {
            held.held.push(suffix?);
            Ok(())
        })?;
        Ok(held)
    }

    /// Whether some table may contain samples that delete `seq` hides, by the manifest's records
    /// and completed cleaning.
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
            // Its partitions have different lengths, and are few.
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

    /// The wall time at which each table was written, and the timestamps in it. A merged table has
    /// the time of its oldest input.
    pub fn times_of_tables(&self) -> Vec<(Timestamp, TimeRange)> {
        let tables = Level::ALL.into_iter().flat_map(|level| self.level(level));
        tables.map(|table| (table.record.written_ms, table.record.time_range)).collect()
    }

    /// Counters of one level.
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

    /// The wall time at which the oldest data that waits for its upload was flushed.
    pub fn waiting_since_ms(&self) -> Option<Timestamp> {
        let fast = self.all().filter(|table| !table.record.level.is_slow());
        fast.map(|table| table.record.written_ms).min()
    }

    /// The newest timestamp on the slow tier: samples up to it survive the loss of this machine.
    pub fn newest_slow_ts(&self) -> Option<Timestamp> {
        self.level(Level::Two).iter().map(|table| table.record.time_range.end).max()
    }
}

impl PresenceReader<'_> {
    /// Loads the directories of the tables whose groups, from the first to the last, are `wanted`:
    /// those of the slow tier in one round trip (per 16 MiB).
    ///
    /// # Errors
    /// `Busy` without memory.
    pub fn load(&mut self, wanted: &dyn Fn(GroupId, GroupId) -> bool) -> Result<()> {
        let is_wanted = |entry: &&mut (&Arc<Table>, Directory)| {
            let record = &entry.0.record;
            matches!(entry.1, Directory::NotLoaded) && wanted(record.group_min, record.group_max)
        };
        let mut entries: Vec<_> = self.tables.iter_mut().filter(is_wanted).collect();
        let tables: Vec<&Arc<Table>> = entries.iter().map(|entry| entry.0).collect();
        self.is_first_load &= tables.is_empty();
        self.store.each_suffix(&tables, &mut self.memory, |idx, suffix| {
            if let Some(entry) = entries.get_mut(idx) {
                entry.1 = suffix.map_or(Directory::Unreadable, Directory::Loaded);
            }
            Ok(())
        })
    }

    /// Removes from `left`, which rises, the members of `group` that have samples in the range, by
    /// the directories: exact as [`Version::has_data`], and only where no delete in `hidden`
    /// touches the samples. `hidden` contains all deletes of the group. Reads no block. Loads
    /// directories that it needs: those of the group's tables at first, later all. Returns `false`
    /// if only blocks can decide about some of the remaining members.
    ///
    /// # Errors
    /// As [`PresenceReader::load`].
    pub fn take_present(
        &mut self,
        group: GroupId,
        hidden: &[HiddenSamples<'_>],
        left: &mut Vec<Slot>,
    ) -> Result<bool> {
        let mut is_decided = true;
        for idx in 0..self.tables.len() {
            if left.is_empty() {
                break;
            }
            if !self.tables[idx].0.record.may_hold(group) {
                continue;
            }
            if matches!(self.tables[idx].1, Directory::NotLoaded) {
                match self.is_first_load {
                    true => self.load(&|min, max| min <= group && group <= max)?,
                    false => self.load(&|_, _| true)?,
                }
            }
            let (table, directory) = &self.tables[idx];
            match directory {
                Directory::Loaded(suffix) => {
                    is_decided &=
                        take_present_in((table, suffix), (group, self.range), hidden, left);
                }
                _ => is_decided = false,
            }
        }
        Ok(is_decided)
    }

    /// An upper bound of the number of groups that [`PresenceReader::each_group`] visits.
    pub fn chunk_count(&self) -> u64 {
        self.tables.iter().map(|(table, _)| table.record.chunk_count).sum()
    }

    /// Calls `each` with every group of the tables, some more than once. Loads all directories.
    /// Returns `false` if one is unreadable.
    ///
    /// # Errors
    /// As [`PresenceReader::load`].
    pub fn each_group(&mut self, each: &mut dyn FnMut(GroupId)) -> Result<bool> {
        self.load(&|_, _| true)?;
        let mut is_whole = true;
        for (_, directory) in &self.tables {
            match directory {
                Directory::Loaded(suffix) => suffix.for_each_group(&mut *each),
                _ => is_whole = false,
            }
        }
        Ok(is_whole)
    }
}

/// As [`PresenceReader::take_present`] in one table.
fn take_present_in(
    (table, suffix): (&Table, &Suffix),
    (group, range): (GroupId, TimeRange),
    hidden: &[HiddenSamples<'_>],
    left: &mut Vec<Slot>,
) -> bool {
    let mut is_decided = true;
    for (span, slots) in suffix.parts_of(group, range) {
        let reach = span.intersect(range);
        let touches =
            |one: &&HiddenSamples<'_>| one.range.overlaps(span) && table.may_hide(one.seq);
        let hidden: Vec<&HiddenSamples<'_>> = hidden.iter().filter(touches).collect();
        let mut here: Vec<Slot> = slots.common(left).collect();
        if !hidden.is_empty() {
            here.retain(|slot| {
                let of_slot = hidden.iter().filter(|one| one.slots.contains(*slot));
                let mut of_slot = of_slot.peekable();
                let is_touched = of_slot.peek().is_some();
                let newest = table.record.seq.max;
                let is_gone = of_slot.any(|one| one.range.covers(reach) && newest < one.seq);
                is_decided &= is_gone || !is_touched;
                !is_touched
            });
        }
        match here.len() == left.len() {
            true => left.clear(),
            false => left.retain(|slot| here.binary_search(slot).is_err()),
        }
    }
    is_decided
}

impl std::fmt::Debug for PresenceReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PresenceReader({} tables in {:?})", self.tables.len(), self.range)
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

/// Checks that partitions are equal or disjoint, and that tables of one partition, patches apart,
/// have disjoint groups.
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
