//! Runs one planned job: reads tables group by group, merges, writes new tables.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use firn_codec::{
    GroupColumns, RowSizes, SliceBy, TombstoneWalk, Tombstones, cut_slices, merge_columns,
};
use firn_env::Env;
use firn_model::{
    Budget, CancelToken, CommitSeq, GroupId, Pool, Reservation, Result, TimeRange, Timestamp,
};

use crate::cursor::{EncodedGroup, TableCursor};
use crate::edit::Edit;
use crate::job_kind::JobKind;
use crate::layout::SlowLayout;
use crate::options::TreeOptions;
use crate::output::{Made, Outputs, Target};
use crate::partition::{Partition, PartitionLen};
use crate::record::{Level, TableId, TableRecord};
use crate::scrub;
use crate::slow_cache::PieceKey;
use crate::store::Store;
use crate::suffix::Suffix;
use crate::table::Table;

// Shared by all tables of one merge; each has at least one block in memory. Less where memory is
// short: a merge frees memory, and must not wait until there is more.
const READ_AHEAD_BYTES: u64 = 8 << 20;
const READ_AHEAD_PART: u64 = 32;
const READ_AHEAD_BYTES_MAX: u64 = 1 << 20;
const GROUPS_PER_CANCEL_CHECK: usize = 64;
/// Sources, merged columns, and the pieces in which they are written.
const COPIES: u64 = 4;

/// A planned task and its inputs.
pub(crate) struct Work {
    pub(crate) task: Task,
    pub(crate) inputs: Vec<Arc<Table>>,
}

/// The task of a job.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    Drop,
    /// Level 1, partitions of this length.
    Compact(PartitionLen),
    /// Level 2, beside the existing partitions.
    Upload(SlowLayout),
    /// Level 2, this partition.
    MergePatches(Partition),
    /// Level 2, this partition, which contains the inputs.
    MergePartitions(Partition),
    /// The same if that makes chunks longer; else the inputs are marked as not worth it.
    Lengthen(Partition),
    /// Rewrites the first table that deletes touch, in its partition; the tables before it are
    /// marked as clean.
    Clean,
    /// Rewrites the one input in its partition.
    Repair,
}

/// A planned job; holds its inputs like a reader.
pub struct Job {
    pub(crate) work: Work,
    pub(crate) store: Arc<Store>,
    pub(crate) ids: Arc<AtomicU64>,
    pub(crate) options: TreeOptions,
    pub(crate) tombstones: Arc<Tombstones>,
}

impl Job {
    /// The kind of the job.
    pub fn kind(&self) -> JobKind {
        match self.work.task {
            Task::Drop => JobKind::Drop,
            Task::Compact(_) => JobKind::Compact,
            Task::Upload(_) => JobKind::Upload,
            Task::MergePatches(_) => JobKind::MergePatches,
            Task::MergePartitions(_) | Task::Lengthen(_) => JobKind::MergePartitions,
            Task::Clean => JobKind::Clean,
            Task::Repair => JobKind::Repair,
        }
    }

    /// Whether it reads or writes objects of the slow tier.
    pub fn is_slow(&self) -> bool {
        match self.kind() {
            JobKind::Upload | JobKind::MergePatches | JobKind::MergePartitions => true,
            JobKind::Clean | JobKind::Repair => {
                self.work.inputs.iter().any(|table| table.record.level.is_slow())
            }
            JobKind::Drop | JobKind::Compact => false,
        }
    }

    /// Bytes of the tables that it reads (or drops).
    pub fn input_bytes(&self) -> u64 {
        self.work.inputs.iter().map(|table| table.record.bytes).sum()
    }

    /// Values in the tables that it reads (or drops).
    pub fn input_values(&self) -> u64 {
        self.work.inputs.iter().map(|table| table.record.value_count).sum()
    }

    /// From the first to the last timestamp of the tables that it reads (or drops).
    pub fn input_range(&self) -> TimeRange {
        let ranges = self.work.inputs.iter().map(|table| table.record.time_range);
        ranges.reduce(|all, one| all.union(one)).unwrap_or(TimeRange::EMPTY)
    }

    /// The newest commit of the tables that it reads (or drops).
    pub fn newest_seq(&self) -> CommitSeq {
        let seqs = self.work.inputs.iter().map(|table| table.record.seq.max);
        seqs.max().unwrap_or(CommitSeq(0))
    }

    /// The tables that it replaces.
    pub fn inputs(&self) -> impl Iterator<Item = TableId> {
        self.work.inputs.iter().map(|table| table.record.id)
    }

    /// Runs the job. On return the new tables are durable, but orphans until the edit is applied; a
    /// killed job leaves only files that no manifest names. Memory: read-ahead of 8 MiB (at least a
    /// block per input), the encoded chunks of one group and a decoded slice of it, and for an
    /// upload the table that is being written (`table_bytes_max`, twice while it is sent).
    ///
    /// # Errors
    /// `Unavailable` when a tier is down or full, `Busy` without memory, `Canceled`, `Corrupt` when
    /// an input is damaged (later plans leave it out). Nothing has changed then.
    pub fn run(&self, env: &Env, budget: &Budget, cancel: &CancelToken) -> Result<Edit> {
        let made_ms = env.clock.now_ms();
        let mut edit = Edit { made_ms, removed: self.inputs().collect(), ..Edit::default() };
        let level = match self.kind() {
            JobKind::Drop => return Ok(edit),
            JobKind::Clean => return self.clean(env, budget, cancel).map_err(|e| e.context(self)),
            JobKind::Repair => return self.repair(env, edit).map_err(|e| e.context(self)),
            JobKind::Compact => Level::One,
            JobKind::Upload | JobKind::MergePatches | JobKind::MergePartitions => Level::Two,
        };
        if matches!(self.work.task, Task::Lengthen(_)) && !self.makes_longer_chunks(budget)? {
            self.work.inputs.iter().for_each(|table| table.set_grown());
            return Ok(Edit { made_ms, ..Edit::default() });
        }
        let target = |ts| self.work.task.target(ts);
        let written = self.write(&self.work.inputs, level, &target, (env, budget, cancel));
        edit.add(written.map_err(|e| e.context(self))?);
        self.store.traffic.job(self.kind(), self.input_bytes(), edit.added_bytes());
        Ok(edit)
    }

    /// Whether the directories contain each group in two tables on average: short-lived series have
    /// few samples per chunk, however long their partition is.
    fn makes_longer_chunks(&self, budget: &Budget) -> Result<bool> {
        let mut memory = budget.empty(Pool::Jobs);
        let mut groups: Vec<GroupId> = Vec::new();
        for table in &self.work.inputs {
            let suffix = self.store.suffix(table)?;
            let before = groups.len();
            suffix.for_each_group(|group| groups.push(group));
            memory.grow((size_of::<GroupId>() * (groups.len() - before)) as u64)?;
        }
        let all = groups.len();
        groups.sort_unstable();
        groups.dedup();
        Ok(all >= 2 * groups.len())
    }

    /// See [`Task::Clean`].
    fn clean(&self, env: &Env, budget: &Budget, cancel: &CancelToken) -> Result<Edit> {
        let mut edit = Edit { made_ms: env.clock.now_ms(), ..Edit::default() };
        let inputs: Vec<&Arc<Table>> = self.work.inputs.iter().collect();
        for (table, suffix) in inputs.iter().zip(self.store.suffixes(&inputs)) {
            let record = &table.record;
            if !self.hides_in(table, &*suffix?) {
                edit.cleaned.push((record.id, self.tombstones.through()));
                continue;
            }
            let target = same_place(record);
            let input = std::slice::from_ref(*table);
            edit.add(self.write(input, record.level, &target, (env, budget, cancel))?);
            edit.removed.push(record.id);
            let is_slow = record.level.is_slow();
            self.store.traffic.cleaned(is_slow, record.bytes, edit.added_bytes());
            break;
        }
        Ok(edit)
    }

    /// See [`Task::Repair`]. Samples that deletes hide are kept, and stay hidden.
    fn repair(&self, env: &Env, mut edit: Edit) -> Result<Edit> {
        for table in &self.work.inputs {
            let record = table.present_record();
            let made = Made {
                level: record.level,
                written_ms: record.written_ms,
                deletes_through: record.deletes_through,
            };
            let mut outputs = Outputs::new(env, &self.ids, &self.options, made, None);
            let target = same_place(&record);
            let written = scrub::write_sound(&self.store, table, &mut outputs, &target)
                .and_then(|()| outputs.finish());
            if written.is_err() {
                self.store.abandoned.lock().extend(outputs.discard());
                return written.map(|_| edit);
            }
            edit.add(written?);
        }
        Ok(edit)
    }

    /// Whether a delete that was not applied to `table` touches a group that has samples in the
    /// delete's time range.
    fn hides_in(&self, table: &Table, suffix: &Suffix) -> bool {
        let record = &table.record;
        let needed = self.tombstones.iter().filter(|(seq, one)| table.needs(*seq, one));
        needed.into_iter().any(|(_, tombstone)| {
            let start = tombstone.members().partition_point(|m| m.group < record.group_min);
            let members = tombstone.members().iter().skip(start);
            let mut here = members.take_while(|members| members.group <= record.group_max);
            here.any(|members| suffix.may_hold(members.group, tombstone.range()))
        })
    }

    /// Merges `inputs` into new tables.
    fn write(
        &self,
        inputs: &[Arc<Table>],
        level: Level,
        target: &dyn Fn(Timestamp) -> Target,
        (env, budget, cancel): (&Env, &Budget, &CancelToken),
    ) -> Result<Vec<(TableRecord, Suffix)>> {
        let written_ms = inputs.iter().map(|table| table.record.written_ms).min();
        let made = Made {
            level,
            written_ms: written_ms.unwrap_or(env.clock.now_ms()),
            deletes_through: self.tombstones.through(),
        };
        let memory = Some(budget.empty(Pool::Jobs));
        let mut outputs = Outputs::new(env, &self.ids, &self.options, made, memory);
        let memory = budget.empty(Pool::Jobs);
        let merged = self.merge_into(inputs, &mut outputs, target, (memory, cancel));
        let written = merged.and_then(|()| outputs.finish());
        if written.is_err() {
            self.store.abandoned.lock().extend(outputs.discard());
            return written;
        }
        // The first query after an upload then reads only blocks, also after a restart.
        for (record, directory) in outputs.take_directories() {
            self.store.slow_cache.put(PieceKey::suffix(&record), &directory);
        }
        written
    }

    /// Streams all inputs side by side, one group at a time.
    fn merge_into(
        &self,
        inputs: &[Arc<Table>],
        outputs: &mut Outputs<'_>,
        target: &dyn Fn(Timestamp) -> Target,
        (mut memory, cancel): (Reservation, &CancelToken),
    ) -> Result<()> {
        let all = READ_AHEAD_BYTES.min(memory.limit_bytes() / READ_AHEAD_PART);
        let share = all / inputs.len().max(1) as u64;
        let read_ahead_bytes = share.clamp(self.options.block_bytes as u64, READ_AHEAD_BYTES_MAX);
        memory.grow(read_ahead_bytes * inputs.len() as u64)?;
        cancel.check()?;
        let mut cursors = inputs
            .iter()
            .map(|table| TableCursor::open(&self.store, table, read_ahead_bytes))
            .collect::<Result<Vec<_>>>()?;
        let range =
            inputs.iter().fold(TimeRange::EMPTY, |all, table| all.union(table.record.time_range));
        let mut hidden = self.tombstones.walk(range);
        let mut sources: Vec<GroupColumns> = Vec::new();
        let mut encoded = EncodedGroup::new(memory.split(0));
        let no_rows = RowSizes::new(self.options.slice_bytes);
        let mut group_count = 0;
        while let Some(group) = cursors.iter().filter_map(TableCursor::group).min() {
            if group_count % GROUPS_PER_CANCEL_CHECK == 0 {
                cancel.check()?;
            }
            group_count += 1;
            encoded.clear();
            for (idx, cursor) in cursors.iter_mut().enumerate() {
                cursor.take_group(group, idx, &mut encoded)?;
            }
            let chunks = encoded.open(&cursors)?;
            for slice in cut_slices(&chunks, &no_rows, self.options.slice_bytes, SliceBy::Members)?
            {
                cancel.check()?;
                sources.clear();
                for chunk in chunks.iter().enumerate() {
                    let columns = encoded.read(group, chunk, &slice, &cursors)?;
                    sources.extend((!columns.is_empty()).then_some(columns));
                }
                let of = |columns: &GroupColumns| columns.heap_bytes() as u64;
                let bytes = COPIES * sources.iter().map(of).sum::<u64>();
                memory.grow(bytes)?;
                outputs.push(group, &merge(group, &mut sources, &mut hidden), target)?;
                memory.shrink(bytes);
            }
        }
        Ok(())
    }
}

/// The target of a table that is rewritten by itself: its own partition.
fn same_place(record: &TableRecord) -> impl Fn(Timestamp) -> Target + use<> {
    let bounds: &[GroupId] = if record.patch { &[record.group_min] } else { &[] };
    let bounds: Arc<[GroupId]> = Arc::from(bounds);
    let partition = record.partition;
    move |_| Target { partition, bounds: Arc::clone(&bounds) }
}

/// Hides deleted samples first, because a newer source may contain samples written again. Then the
/// newest commit wins, independent of the age of the files.
fn merge(
    group: GroupId,
    sources: &mut Vec<GroupColumns>,
    hidden: &mut TombstoneWalk<'_>,
) -> GroupColumns {
    hidden.hide(group, sources);
    sources.sort_by_key(|columns| (columns.seq.max, columns.seq.min));
    merge_columns(sources, TimeRange::ALL)
}

impl Task {
    fn target(&self, ts: Timestamp) -> Target {
        let partition = match self {
            Task::Upload(layout) => return layout.target(ts),
            Task::Compact(len) => Partition::of(ts, *len),
            Task::MergePatches(partition)
            | Task::MergePartitions(partition)
            | Task::Lengthen(partition) => *partition,
            Task::Drop | Task::Clean | Task::Repair => Partition::of(ts, PartitionLen::MIN),
        };
        Target { partition, bounds: Arc::from([]) }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} tables", self.kind().name(), self.work.inputs.len())
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("task", &self.work.task)
            .field("inputs", &self.work.inputs)
            .finish()
    }
}
