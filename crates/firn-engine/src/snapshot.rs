//! A frozen view of index, head, tree and tombstones, and reads of samples from it.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use firn_codec::{GroupColumns, MemberColumn, Slots, Tombstones, merge_bytes, merge_into_one};
use firn_head::{HeadReader, HeadSnapshot};
use firn_index::{GroupMatch, IndexView, Matches, Member};
use firn_model::{
    Budget, Column, ColumnBatch, ColumnValues, CommitSeq, GroupId, Labels, Pool, QueryContext,
    Reservation, Result, Select, Selected, Selection, SeriesRef, ShardBits, Slot, TimeRange,
    Timestamp,
};
use firn_tree::{
    BlockOutline, ColumnRequest, Directories, Prefetch, ReadAhead, TableId, UpcomingGroup,
    UpcomingScan, Version,
};
use parking_lot::Mutex;

use crate::Engine;
use crate::stats::ReadCounters;

/// Index, head and tree at one moment. Cheap to clone; never changes (invariant 3).
#[derive(Clone, Debug)]
pub struct Snapshot(Arc<FrozenState>);

#[derive(Clone, Debug)]
struct FrozenState {
    /// Every change up to here is visible in this snapshot.
    number: CommitSeq,
    /// Transactions up to here are visible in this snapshot, later ones are not.
    transactions: CommitSeq,
    bits: ShardBits,
    head: HeadSnapshot,
    version: Arc<Version>,
    tombstones: Arc<Tombstones>,
    index: IndexView,
    merged_by_level: bool,
    lists_deleted: bool,
    reads: Arc<ReadCounters>,
}

impl Engine {
    /// The number of a snapshot that is taken now, at least.
    pub fn visible(&self) -> CommitSeq {
        self.ledger.sequence.visible()
    }

    /// Freezes the current state. O(shards), no I/O.
    pub fn snapshot(&self) -> Snapshot {
        // The number first: everything visible by then is in the views below.
        let number = self.ledger.sequence.visible();
        // A flush moves rows from the head to the tree under the write side of this lock, so the
        // two views never both miss them. A transaction becomes visible as a whole under it.
        let (head, version, tombstones, transactions) = {
            let _view = self.rooms.view.read();
            let tombstones = self.ledger.tombstones.all();
            (
                self.rooms.head.snapshot(),
                self.rooms.tree.version(),
                tombstones,
                self.transactions.decided(),
            )
        };
        let tombstones = match mutant!(self, DeleteHidesLater) {
            true => Arc::new(hiding_all(&tombstones)),
            false => tombstones,
        };
        // The index last: it contains every series with rows in the head.
        let index = self.rooms.index.view();
        let merged_by_level = mutant!(self, MergedByLevel);
        let lists_deleted = mutant!(self, DeletedListed);
        Snapshot(Arc::new(FrozenState {
            number,
            transactions,
            bits: self.rooms.bits,
            head,
            version,
            tombstones,
            index,
            merged_by_level,
            lists_deleted,
            reads: Arc::clone(&self.counters.reads),
        }))
    }
}

impl Snapshot {
    /// Tables without the rows of a log, while that is replayed. `head` is empty.
    pub(crate) fn of_tables(
        bits: ShardBits,
        head: HeadSnapshot,
        version: Arc<Version>,
        tombstones: Arc<Tombstones>,
        index: IndexView,
    ) -> Snapshot {
        let (number, transactions) = (CommitSeq(0), CommitSeq(0));
        Snapshot(Arc::new(FrozenState {
            number,
            transactions,
            bits,
            head,
            version,
            tombstones,
            index,
            merged_by_level: false,
            lists_deleted: false,
            reads: Arc::default(),
        }))
    }

    /// Every change up to this number is visible here; see [`firn_model::Change`].
    pub fn number(&self) -> CommitSeq {
        self.0.number
    }

    /// Transactions up to this number are visible here, later ones are not.
    pub(crate) fn transactions(&self) -> CommitSeq {
        self.0.transactions
    }

    /// The same samples, with the series of `index`.
    pub(crate) fn with_index(&self, index: IndexView) -> Snapshot {
        Snapshot(Arc::new(FrozenState { index, ..(*self.0).clone() }))
    }

    /// The frozen index.
    pub fn index(&self) -> &IndexView {
        &self.0.index
    }

    /// Whether a group has samples in `range`, exact to the partition.
    pub fn has_data(&self, group: GroupId, range: TimeRange) -> bool {
        self.0.head.has_data(group, range) || self.0.version.has_data(group, range)
    }

    /// Reads the samples of all members of some groups, one batch per group, in order: for callers
    /// that process groups instead of series, and the reservation of their memory. Keys of the
    /// columns are 0.
    ///
    /// # Errors
    /// As [`Select::select`].
    pub fn read_groups(
        &self,
        groups: &[GroupId],
        range: TimeRange,
        context: &QueryContext,
    ) -> Result<(Vec<ColumnBatch>, Reservation)> {
        let whole = |&group: &GroupId| {
            let slot_count = self.index().group(group)?.map_or(0, |info| info.slot_count);
            let members = (0..slot_count).map(|slot| Member { slot: Slot(slot), key: 0 }).collect();
            Ok(GroupMatch { group, members })
        };
        let groups = groups.iter().map(whole).collect::<Result<Vec<_>>>()?;
        let _directories = self.load_directories(&groups, range, &context.budget)?;
        let group_count = groups.len();
        let mut batches = Vec::with_capacity(group_count);
        let mut held = context.budget.empty(Pool::Query);
        self.selected(of_groups(groups, context), range, context).lend(
            0..group_count,
            &mut |batch, bytes| {
                held.grow(bytes)?;
                batches.push(mem::take(batch));
                Ok(())
            },
        )?;
        Ok((batches, held))
    }

    /// Describes a table block by block; only the contents of `group`, if one is named.
    ///
    /// # Errors
    /// `NotFound` for an unknown table, `Unavailable` if its tier fails, those of `each`.
    pub fn inspect_table(
        &self,
        table: TableId,
        group: Option<GroupId>,
        each: &mut dyn FnMut(&BlockOutline) -> Result<()>,
    ) -> Result<()> {
        self.0.version.inspect(table, group, each)
    }

    /// Loads the directories that [`Snapshot::has_data`] of these groups, in ascending order,
    /// needs, in one round trip, and keeps them in memory.
    pub(crate) fn load_directories(
        &self,
        groups: &[GroupMatch],
        range: TimeRange,
        budget: &Budget,
    ) -> Result<Directories> {
        let is_between = |min: GroupId, max: GroupId| {
            let next = groups.partition_point(|found| found.group < min);
            groups.get(next).is_some_and(|found| found.group <= max)
        };
        self.0.version.load_directories(range, &is_between, budget)
    }

    /// The series that match, in groups that have samples in the range, exact to the partition,
    /// with the directories that decide.
    pub(crate) fn matches_held(
        &self,
        selection: &Selection,
        context: &QueryContext,
    ) -> Result<(Matches, Directories)> {
        let mut matches = self.find(selection, context)?;
        // One round trip for all, instead of one each below.
        let directories =
            self.load_directories(&matches.groups, selection.range, &context.budget)?;
        let mut head = self.0.head.reader(selection.range);
        matches.groups.retain(|found| {
            head.has_data(found.group, selection.range)
                || self.0.version.has_data(found.group, selection.range)
        });
        drop(head);
        Ok((matches, directories))
    }

    /// The matching series, with or without samples.
    pub(crate) fn find(&self, selection: &Selection, context: &QueryContext) -> Result<Matches> {
        let stats = &context.stats;
        stats.timed(&stats.select_ns, || {
            let matches =
                self.0.index.matches(&selection.matchers, &selection.grouping, context)?;
            stats.groups_scanned.add(matches.groups.len() as u64);
            Ok(matches)
        })
    }

    pub(crate) fn selected(
        &self,
        found: Matches,
        range: TimeRange,
        context: &QueryContext,
    ) -> SelectedGroups {
        SelectedGroups {
            snapshot: self.clone(),
            found,
            range,
            context: context.clone(),
            holds_directories: false,
            directories: Mutex::default(),
            read_ahead: Arc::default(),
            until: None,
        }
    }

    pub(crate) fn head(&self) -> &HeadSnapshot {
        &self.0.head
    }

    pub(crate) fn tombstones(&self) -> &Tombstones {
        &self.0.tombstones
    }

    pub(crate) fn lists_deleted(&self) -> bool {
        self.0.lists_deleted
    }

    pub(crate) fn version(&self) -> &Version {
        &self.0.version
    }
}

impl Select for Snapshot {
    fn select(&self, selection: &Selection, context: &QueryContext) -> Result<Box<dyn Selected>> {
        // Groups without samples are detected when they are read, which costs no more than a check
        // here.
        let found = self.find(selection, context)?;
        let selected = self.selected(found, selection.range, context);
        Ok(Box::new(SelectedGroups { holds_directories: true, ..selected }))
    }
}

pub(crate) struct SelectedGroups {
    snapshot: Snapshot,
    pub(crate) found: Matches,
    range: TimeRange,
    context: QueryContext,
    /// Whether to hold directories here: false if the caller does.
    holds_directories: bool,
    /// Directories of all groups, from the first piece that is not entirely in memory, regardless
    /// of the cache's size. Locked while they are read, so that waiters find them.
    directories: Mutex<Option<Directories>>,
    read_ahead: Arc<ReadAhead>,
    /// The caller will read the same groups up to here, in ranges of the same length.
    until: Option<Timestamp>,
}

impl Selected for SelectedGroups {
    fn keys(&self) -> &[Labels] {
        &self.found.keys
    }

    fn group_count(&self) -> usize {
        self.found.groups.len()
    }

    fn member_count(&self, group: usize) -> usize {
        self.found.groups.get(group).map_or(0, |found| found.members.len())
    }

    fn read(&self, groups: Range<usize>) -> Result<Vec<ColumnBatch>> {
        let mut batches = Vec::with_capacity(groups.len());
        // Counts until the batches are returned; then the caller counts them.
        let mut held = self.context.budget.empty(Pool::Query);
        self.lend(groups, &mut |batch, bytes| {
            held.grow(bytes)?;
            batches.push(mem::take(batch));
            Ok(())
        })?;
        Ok(batches)
    }

    fn each(
        &self,
        groups: Range<usize>,
        each: &mut dyn FnMut(&ColumnBatch) -> Result<()>,
    ) -> Result<()> {
        self.lend(groups, &mut |batch, _| each(batch))
    }
}

impl SelectedGroups {
    /// The groups of the selection, in the order in which they are read.
    pub(crate) fn groups(&self) -> &[GroupMatch] {
        &self.found.groups
    }

    /// A window of a walk in time up to `until`, whose windows read ahead together.
    pub(crate) fn in_walk(self, read_ahead: &Arc<ReadAhead>, until: Timestamp) -> SelectedGroups {
        SelectedGroups { read_ahead: Arc::clone(read_ahead), until: Some(until), ..self }
    }

    /// Passes the batch of each group, and its bytes, to `each`, which may take it. Decoded data is
    /// reserved.
    fn lend(
        &self,
        groups: Range<usize>,
        each: &mut dyn FnMut(&mut ColumnBatch, u64) -> Result<()>,
    ) -> Result<()> {
        self.context.cancel.check()?;
        let frozen = &*self.snapshot.0;
        let later = &self.found.groups[groups.end..];
        let groups = &self.found.groups[groups];
        let mut held = self.context.budget.empty(Pool::Query);
        // Blocks found in memory stay while this lives, so that no sample is missed on both sides.
        let head = frozen.head.reader(self.range);
        let mut head = head.reserving(self.context.budget.empty(Pool::Query));
        let mut tables = self.read_tables(groups, later, &mut head)?.into_iter();
        let table_bytes = tables.as_slice().iter().map(|sources| bytes_of(sources)).sum();
        hold(&mut held, table_bytes)?;
        let mut hidden = frozen.tombstones.walk(self.range);
        let mut slots = Vec::new();
        let mut one = SingleMember::default();
        let (mut group_count, mut memory_bytes) = (0, 0);
        for found in groups {
            let mut sources = tables.next().unwrap_or_default();
            if let [member] = found.members[..]
                && sources.is_empty()
                && !hidden.touches(found.group)
                && let Some(batch) = one.read(&mut head, (found.group, member), self.range)?
            {
                let bytes = batch.columns.first().map_or(0, one_bytes);
                memory_bytes += bytes;
                group_count += u64::from(!batch.columns.is_empty());
                each(batch, bytes)?;
                continue;
            }
            slots.clear();
            slots.extend(found.members.iter().map(|member| member.slot));
            // A merge makes a copy; that of samples in memory is reserved with them.
            let copied_bytes = bytes_of(&sources);
            hold(&mut held, table_bytes + copied_bytes)?;
            let in_memory = head.read(found.group, Slots::Some(&slots), self.range)?;
            memory_bytes += bytes_of(&in_memory);
            sources.extend(in_memory);
            hidden.hide(found.group, &mut sources);
            hold(&mut held, table_bytes + copied_bytes + merge_bytes(&sources))?;
            let mut merged = frozen.merge(sources, self.range);
            let merged_bytes = merged.heap_bytes() as u64;
            set_keys(&mut merged.batch, found);
            group_count += u64::from(!merged.is_empty());
            each(&mut merged.batch, merged_bytes)?;
        }
        self.context.stats.groups_matched.add(group_count);
        self.context.stats.memory_bytes.add(memory_bytes);
        Ok(())
    }

    /// Reads each group's columns from tables; returns nothing if the head has everything. Requests
    /// to the slow tier may include some of `later`.
    fn read_tables(
        &self,
        groups: &[GroupMatch],
        later: &[GroupMatch],
        head: &mut HeadReader<'_>,
    ) -> Result<Vec<Vec<GroupColumns>>> {
        let frozen = &*self.snapshot.0;
        // Tables are not read for rows that the head still contains.
        let mut before = |group| head.complete_since(frozen.bits.shard(group), self.range);
        let youngest = groups.iter().map(|found| before(found.group)).max();
        if !youngest.is_some_and(|before| frozen.version.may_hold(self.range, before)) {
            frozen.reads.from_memory.add(1);
            return Ok(Vec::new());
        }
        frozen.reads.from_tables.add(1);
        if self.holds_directories {
            let mut directories = self.directories.lock();
            if directories.is_none() {
                let (found, budget) = (&self.found.groups, &self.context.budget);
                // One round trip, instead of one for each piece.
                *directories = Some(self.snapshot.load_directories(found, self.range, budget)?);
            }
        }
        let members = || groups.iter().flat_map(|found| &found.members);
        let slots: Vec<Slot> = members().map(|member| member.slot).collect();
        let mut rest = &slots[..];
        let asks: Vec<ColumnRequest<'_>> = groups
            .iter()
            .map(|found| {
                let (slots, left) = rest.split_at(found.members.len());
                rest = left;
                ColumnRequest { group: found.group, slots, before: Some(before(found.group)) }
            })
            .collect();
        let mut next = |piece_count: usize| {
            let (range, later) = match self.until {
                None => {
                    let count = groups.len().saturating_mul(piece_count).min(later.len());
                    (self.range, &later[..count])
                }
                Some(until) => (following(self.range, piece_count, until), groups),
            };
            let ask = |found: &GroupMatch| UpcomingGroup {
                group: found.group,
                slots: found.members.iter().map(|member| member.slot).collect(),
                before: Some(before(found.group)),
            };
            // An empty range requests nothing.
            let later = if range.is_empty() { &[] } else { later };
            UpcomingScan { range, groups: later.iter().map(ask).collect() }
        };
        let ahead = Prefetch { read_ahead: &self.read_ahead, next: &mut next };
        frozen.version.scan(&asks, self.range, Some(ahead), &self.context)
    }
}

/// The `count` ranges of the same length behind `range`, up to `until`; empty if there are none.
fn following(range: TimeRange, count: usize, until: Timestamp) -> TimeRange {
    let start = range.end.saturating_add(1);
    let len_ms = start.saturating_sub(range.start).saturating_mul(count as i64);
    TimeRange::new(start, range.end.saturating_add(len_ms).min(until))
}

/// Groups known to the caller, without keys.
pub(crate) fn of_groups(groups: Vec<GroupMatch>, context: &QueryContext) -> Matches {
    Matches { keys: Vec::new(), groups, held: context.budget.empty(Pool::Query) }
}

/// One member that only the head contains, read into reused buffers.
#[derive(Default)]
struct SingleMember {
    column: MemberColumn,
    /// The last one with samples.
    batch: ColumnBatch,
    none: ColumnBatch,
}

impl SingleMember {
    /// The batch of a member; `None` if its pieces are not in order of time. A caller that takes
    /// the batch costs the next member an allocation.
    fn read(
        &mut self,
        head: &mut HeadReader<'_>,
        (group, member): (GroupId, Member),
        range: TimeRange,
    ) -> Result<Option<&mut ColumnBatch>> {
        // The buffer of the values is used again.
        if let Some(ColumnValues::F64(values)) = self.batch.columns.pop().map(|last| last.values) {
            self.column.values = values;
        }
        if !head.read_one(SeriesRef { group, slot: member.slot }, range, &mut self.column)? {
            // They are read again, with another reservation.
            self.column = MemberColumn::default();
            return Ok(None);
        }
        let MemberColumn { times, values, .. } = &mut self.column;
        if times.is_empty() {
            return Ok(Some(&mut self.none));
        }
        // Series that are scraped or sent together share their timestamps.
        if self.batch.times.first().is_none_or(|last| **last != times[..]) {
            self.batch.times.clear();
            self.batch.times.push(times[..].into());
        }
        self.batch.columns.push(Column {
            slot: member.slot,
            key: member.key,
            time_idx: 0,
            presence: None,
            values: ColumnValues::F64(mem::take(values)),
        });
        Ok(Some(&mut self.batch))
    }
}

/// Bytes of a column and its times.
fn one_bytes(column: &Column) -> u64 {
    let sample_bytes = size_of::<Timestamp>() + size_of::<f64>();
    (size_of::<Column>() + column.values.len() * sample_bytes) as u64
}

fn bytes_of(sources: &[GroupColumns]) -> u64 {
    sources.iter().map(|source| source.heap_bytes() as u64).sum()
}

/// Grows `held` to at least `bytes`. It does not shrink: the next group needs as much.
fn hold(held: &mut Reservation, bytes: u64) -> Result<()> {
    held.grow(bytes.saturating_sub(held.bytes()))
}

impl FrozenState {
    /// The newest write wins by commit order, whatever its level: a patch of level 2 is newer than
    /// the level-1 table of the same partition.
    fn merge(&self, mut sources: Vec<GroupColumns>, range: TimeRange) -> GroupColumns {
        sources.sort_by_key(|columns| columns.seq.max);
        if self.merged_by_level {
            sources.reverse();
        }
        merge_into_one(sources, range)
    }
}

/// The same deletes, as if they were younger than everything.
fn hiding_all(tombstones: &Tombstones) -> Tombstones {
    let list = tombstones.iter().rev().zip(0..);
    let list = list.map(|((_, tombstone), idx)| (CommitSeq(u64::MAX - idx), Arc::clone(tombstone)));
    Tombstones::new(list.collect())
}

/// Both sides are sorted by slot.
fn set_keys(batch: &mut ColumnBatch, found: &GroupMatch) {
    let mut members = found.members.iter();
    for column in &mut batch.columns {
        let slot: Slot = column.slot;
        column.key = members
            .find(|member| member.slot == slot)
            .map_or_else(|| unreachable!("slot {slot:?} was not requested"), |member| member.key);
    }
}
