//! Running one piece of planned work: read tables group by group, merge, write new ones.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use firn_codec::{GroupColumns, merge_columns};
use firn_env::Env;
use firn_model::{Budget, CancelToken, GroupId, Pool, Reservation, Result, TimeRange, Timestamp};

use crate::cursor::TableCursor;
use crate::edit::Edit;
use crate::layout::SlowLayout;
use crate::options::TreeOptions;
use crate::output::{Outputs, Target};
use crate::partition::{Partition, PartitionLen};
use crate::record::{Level, TableId};
use crate::store::Store;
use crate::table::Table;

// Shared by all tables of one merge; each has at least one block in memory.
const READ_AHEAD_BYTES: u64 = 8 << 20;
const READ_AHEAD_BYTES_MAX: u64 = 1 << 20;
const GROUPS_PER_CANCEL_CHECK: usize = 64;

/// What kind of work a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobKind {
    /// Retention: whole partitions go.
    Drop,
    /// Level 0, and what it overlaps of level 1, to level 1.
    Compact,
    /// The fast tier's tables of some level-2 partitions to the slow tier.
    Upload,
    /// Tables of level 2 with their patches to tables of level 2.
    MergePatches,
}

impl JobKind {
    /// The kind's name in metrics and messages.
    pub fn name(self) -> &'static str {
        match self {
            JobKind::Drop => "drop",
            JobKind::Compact => "compact",
            JobKind::Upload => "upload",
            JobKind::MergePatches => "merge_patches",
        }
    }
}

/// What a plan decides.
pub(crate) struct Work {
    pub(crate) task: Task,
    pub(crate) inputs: Vec<Arc<Table>>,
}

/// What becomes of the inputs.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    Drop,
    /// Level 1, partitions of this length.
    Compact(PartitionLen),
    /// Level 2, beside what stands there.
    Upload(SlowLayout),
    /// Level 2, this partition.
    MergePatches(Partition),
}

/// Planned work that can be run; holds its inputs as a reader does.
pub struct Job {
    pub(crate) work: Work,
    pub(crate) store: Arc<Store>,
    pub(crate) ids: Arc<AtomicU64>,
    pub(crate) options: TreeOptions,
}

impl Job {
    /// What it does.
    pub fn kind(&self) -> JobKind {
        match self.work.task {
            Task::Drop => JobKind::Drop,
            Task::Compact(_) => JobKind::Compact,
            Task::Upload(_) => JobKind::Upload,
            Task::MergePatches(_) => JobKind::MergePatches,
        }
    }

    /// Bytes of the tables that it reads (or drops).
    pub fn input_bytes(&self) -> u64 {
        self.work.inputs.iter().map(|table| table.record.bytes).sum()
    }

    /// The tables that it replaces.
    pub fn inputs(&self) -> impl Iterator<Item = TableId> {
        self.work.inputs.iter().map(|table| table.record.id)
    }

    /// Does it: new tables are durable when this returns, but nobody's until the edit is applied.
    /// Killed anywhere it leaves only files that no manifest names. Memory: read-ahead of 8 MiB (at
    /// least a block for each input), one group with its sources, and for an upload the table that
    /// is being made (`table_bytes_max`, twice while it is sent).
    ///
    /// # Errors
    /// `Unavailable` when a tier is down or full, `Busy` without memory, `Canceled`, `Corrupt` when an
    /// input is damaged (it is left out of later plans). Nothing has changed then.
    pub fn run(&self, env: &Env, budget: &Budget, cancel: &CancelToken) -> Result<Edit> {
        let made_ms = env.clock.now_ms();
        let mut edit = Edit { made_ms, removed: self.inputs().collect(), ..Edit::default() };
        let level = match self.kind() {
            JobKind::Drop => return Ok(edit),
            JobKind::Compact => Level::One,
            JobKind::Upload | JobKind::MergePatches => Level::Two,
        };
        let written_ms =
            self.work.inputs.iter().map(|table| table.record.written_ms).min().unwrap_or(made_ms);
        let memory = Some(budget.empty(Pool::Jobs));
        let mut outputs = Outputs::new(env, &self.ids, &self.options, level, written_ms, memory);
        let merged = self.merge_into(&mut outputs, budget.empty(Pool::Jobs), cancel);
        match merged.and_then(|()| outputs.finish()) {
            Ok(written) => {
                edit.add(written);
                self.store.traffic.job(self.kind(), self.input_bytes(), edit.added_bytes());
                Ok(edit)
            }
            Err(e) => {
                outputs.discard();
                Err(e.context(self))
            }
        }
    }

    /// Streams all inputs side by side, one group at a time.
    fn merge_into(
        &self,
        outputs: &mut Outputs<'_>,
        mut memory: Reservation,
        cancel: &CancelToken,
    ) -> Result<()> {
        let inputs = &self.work.inputs;
        let share = READ_AHEAD_BYTES / inputs.len().max(1) as u64;
        let read_ahead_bytes = share.clamp(self.options.block_bytes as u64, READ_AHEAD_BYTES_MAX);
        memory.grow(read_ahead_bytes * inputs.len() as u64)?;
        cancel.check()?;
        let mut cursors = inputs
            .iter()
            .map(|table| TableCursor::open(&self.store, table, read_ahead_bytes))
            .collect::<Result<Vec<_>>>()?;
        let target = |ts| self.work.task.target(ts);
        let mut sources: Vec<GroupColumns> = Vec::new();
        let mut group_count = 0;
        while let Some(group) = cursors.iter().filter_map(TableCursor::group).min() {
            if group_count % GROUPS_PER_CANCEL_CHECK == 0 {
                cancel.check()?;
            }
            group_count += 1;
            sources.clear();
            for cursor in &mut cursors {
                cursor.take_group(group, &mut sources)?;
            }
            self.merge_group(group, &mut sources, outputs, &mut memory, &target)?;
        }
        Ok(())
    }

    fn merge_group(
        &self,
        group: GroupId,
        sources: &mut [GroupColumns],
        outputs: &mut Outputs<'_>,
        memory: &mut Reservation,
        target: &dyn Fn(Timestamp) -> Target,
    ) -> Result<()> {
        // Twice: the sources and what is made of them.
        let bytes = 2 * sources.iter().map(|columns| columns.heap_bytes() as u64).sum::<u64>();
        memory.grow(bytes)?;
        // By commit, whatever the age of the files.
        sources.sort_by_key(|columns| (columns.seq.max, columns.seq.min));
        let merged = merge_columns(sources, TimeRange::ALL);
        outputs.push(group, &merged, target)?;
        memory.shrink(bytes);
        Ok(())
    }
}

impl Task {
    fn target(&self, ts: Timestamp) -> Target {
        let partition = match self {
            Task::Upload(layout) => return layout.target(ts),
            Task::Compact(len) => Partition::of(ts, *len),
            Task::MergePatches(partition) => *partition,
            Task::Drop => Partition::of(ts, PartitionLen::MIN),
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
