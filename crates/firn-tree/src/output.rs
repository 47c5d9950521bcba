//! The tables that a flush or merge writes: one writer per partition, cut between groups.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_codec::GroupColumns;
use firn_env::{DiskFile, Env, PutMode};
use firn_model::{
    CancelToken, CommitSeq, Error, ErrorKind, GroupId, Reservation, Result, TimeRange, Timestamp,
};

use crate::options::TreeOptions;
use crate::partition::Partition;
use crate::record::{Level, TABLE_FOLDER, TableId, TableRecord, table_path};
use crate::suffix::Suffix;
use crate::writer::{TableShape, TableWriter, Written};

// A flush with late data of a year writes thousands of tables; it does not need as many files open.
const OPEN_FILES_MAX: usize = 64;
// Files that are synced in parallel: a journal writes their names at once. Syncs of the log find
// other threads.
const SYNCED_FILES: usize = 4;
// A canceled flush is completed if it writes at most as many tables. Each costs a sync, and the
// flush saves the next start a replay.
const CANCELED_TABLES_MAX: usize = 256;
// Objects of killed uploads may have the next names. They are skipped in growing steps (1, 2, 4,
// ..): a few tries skip any number of them.
const NAME_TRIES_MAX: u32 = 32;

/// The target of the samples of one time.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) partition: Partition,
    /// The first groups of the existing level-2 tables of the partition. If there are any, a patch
    /// is written, and cut where the next table's groups begin.
    pub(crate) bounds: Arc<[GroupId]>,
}

/// The properties that all tables of one flush or merge share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) level: Level,
    pub(crate) written_ms: Timestamp,
    /// The last delete that was applied.
    pub(crate) deletes_through: CommitSeq,
}

/// Tables that are being written; they are orphans until an edit names them.
pub(crate) struct Outputs<'a> {
    env: &'a Env,
    ids: &'a AtomicU64,
    options: &'a TreeOptions,
    made: Made,
    /// By start of the partition.
    writers: BTreeMap<Timestamp, (TableWriter, Target)>,
    open_files: usize,
    done: Vec<(TableRecord, Suffix)>,
    /// Directories of tables of the slow tier, as they are stored.
    directories: Vec<(TableRecord, Vec<u8>)>,
    /// Ids whose files or objects may exist.
    begun: Vec<TableId>,
    /// Accounts for buffers; `None` for a flush, which must work when memory is short because it
    /// frees memory. It holds one block per partition.
    memory: Option<Reservation>,
    /// Cancels a flush of more than [`CANCELED_TABLES_MAX`] tables.
    cancel: Option<&'a CancelToken>,
    /// Tables that may be begun, and whether one more was needed.
    tables_max: usize,
    are_too_many: bool,
    /// Written files that are not synced yet, and their bytes.
    unsynced: Vec<Arc<dyn DiskFile>>,
    unsynced_bytes: u64,
    scratch: Vec<u8>,
}

impl<'a> Outputs<'a> {
    pub(crate) fn new(
        env: &'a Env,
        ids: &'a AtomicU64,
        options: &'a TreeOptions,
        made: Made,
        memory: Option<Reservation>,
    ) -> Outputs<'a> {
        Outputs {
            env,
            ids,
            options,
            made,
            writers: BTreeMap::new(),
            open_files: 0,
            done: Vec::new(),
            directories: Vec::new(),
            begun: Vec::new(),
            memory,
            cancel: None,
            tables_max: usize::MAX,
            are_too_many: false,
            unsynced: Vec::new(),
            unsynced_bytes: 0,
            scratch: Vec::new(),
        }
    }

    /// Lets `cancel` end a flush of many tables; a flush of few is completed.
    pub(crate) fn canceled_by(self, cancel: &'a CancelToken) -> Outputs<'a> {
        Outputs { cancel: Some(cancel), ..self }
    }

    /// One more table than `tables_max` makes [`Outputs::push`] fail.
    pub(crate) fn of_at_most(self, tables_max: usize) -> Outputs<'a> {
        Outputs { tables_max, ..self }
    }

    /// Whether more tables than permitted were needed.
    pub(crate) fn are_too_many(&self) -> bool {
        self.are_too_many
    }

    /// Adds a group or a slice of it; groups must not descend, and slices of a group must not
    /// overlap. `target` maps a timestamp to its partition.
    ///
    /// # Errors
    /// `Unavailable` when the tier fails or is full, `Busy` without memory, `Canceled`.
    pub(crate) fn push(
        &mut self,
        group: GroupId,
        columns: &GroupColumns,
        target: &dyn Fn(Timestamp) -> Target,
    ) -> Result<()> {
        let mut next = first_ts_from(columns, i64::MIN);
        while let Some(ts) = next {
            let target = target(ts);
            let range = target.partition.range();
            let piece = columns.slice(TimeRange::new(ts, range.end));
            self.push_piece(group, &piece, target)?;
            next = range.end.checked_add(1).and_then(|after| first_ts_from(columns, after));
        }
        Ok(())
    }

    fn push_piece(&mut self, group: GroupId, piece: &GroupColumns, target: Target) -> Result<()> {
        // A row may exist for members that were cut off.
        if piece.is_empty() {
            return Ok(());
        }
        let start = target.partition.range().start;
        let is_full = self.writers.get(&start).is_some_and(|(writer, target)| {
            // All slices of a group are in one table.
            writer.group_max().is_some_and(|last| {
                last < group
                    && (writer.bytes() >= self.options.table_bytes_max
                        || territory(&target.bounds, last) != territory(&target.bounds, group))
            })
        });
        if is_full && let Some((writer, _)) = self.writers.remove(&start) {
            self.finish_table(writer)?;
        }
        let shape = TableShape {
            level: self.made.level,
            patch: !target.bounds.is_empty(),
            partition: target.partition,
            written_ms: self.made.written_ms,
            deletes_through: self.made.deletes_through,
        };
        if !self.writers.contains_key(&start) {
            self.check_canceled()?;
            if self.begun.len() >= self.tables_max {
                self.are_too_many = true;
                return Err(Error::internal("a flush writes more tables than it may"));
            }
        }
        let (writer, _) = self.writers.entry(start).or_insert_with(|| {
            let id = TableId(self.ids.fetch_add(1, Ordering::Relaxed));
            self.begun.push(id);
            let block_bytes = match shape.level.is_slow() {
                true => self.options.slow_block_bytes(),
                false => self.options.block_bytes,
            };
            (TableWriter::new(id, shape, block_bytes), target)
        });
        let held_before = writer.memory_bytes();
        let was_open = writer.is_open();
        writer.push(group, piece, &mut self.scratch);
        if !self.made.level.is_slow() {
            writer.flush(&*self.env.disk)?;
        }
        if writer.is_open() && !was_open {
            self.open_files += 1;
        }
        if let Some(memory) = &mut self.memory {
            let held = writer.memory_bytes();
            if held > held_before {
                memory.grow(held - held_before)?;
            } else {
                memory.shrink(held_before - held);
            }
        }
        if self.open_files > OPEN_FILES_MAX {
            self.writers.values_mut().for_each(|(writer, _)| writer.close());
            self.open_files = 0;
        }
        Ok(())
    }

    /// Completes all tables and makes them durable, names included.
    ///
    /// # Errors
    /// As [`Outputs::push`]; then call [`Outputs::discard`].
    pub(crate) fn finish(&mut self) -> Result<Vec<(TableRecord, Suffix)>> {
        while let Some((_, (writer, _))) = self.writers.pop_first() {
            self.check_canceled()?;
            self.finish_table(writer)?;
        }
        self.sync_files()?;
        if !self.made.level.is_slow() && !self.done.is_empty() {
            self.env.disk.sync_dir(TABLE_FOLDER)?;
        }
        Ok(std::mem::take(&mut self.done))
    }

    /// The directories of tables that were put on the slow tier, for a cache.
    pub(crate) fn take_directories(&mut self) -> Vec<(TableRecord, Vec<u8>)> {
        std::mem::take(&mut self.directories)
    }

    fn check_canceled(&self) -> Result<()> {
        match self.cancel {
            Some(cancel) if self.begun.len() > CANCELED_TABLES_MAX => cancel.check(),
            _ => Ok(()),
        }
    }

    fn finish_table(&mut self, writer: TableWriter) -> Result<()> {
        let held = writer.memory_bytes();
        let was_open = writer.is_open();
        let written = if self.made.level.is_slow() {
            self.upload(writer.finish_bytes())?
        } else {
            let (written, file) = writer.finish_file(&*self.env.disk)?;
            self.unsynced_bytes += written.record.bytes;
            self.unsynced.push(file);
            if self.unsynced.len() >= SYNCED_FILES
                || self.unsynced_bytes >= self.options.table_bytes_max
            {
                self.sync_files()?;
            }
            written
        };
        self.open_files -= usize::from(was_open);
        if let Some(memory) = &mut self.memory {
            memory.shrink(held);
        }
        self.done.push((written.record, written.suffix));
        Ok(())
    }

    /// Makes the written files durable.
    fn sync_files(&mut self) -> Result<()> {
        self.unsynced_bytes = 0;
        let files = std::mem::take(&mut self.unsynced);
        self.env.disk.sync_files(&files).into_iter().collect()
    }

    /// Puts a table under an unused name: never over an object that a manifest may name, including
    /// that of an older writer.
    fn upload(&mut self, mut written: Written) -> Result<Written> {
        let bytes: Arc<[u8]> = std::mem::take(&mut written.bytes).into();
        for tries in 0..NAME_TRIES_MAX {
            let path = written.record.path();
            match self.env.bucket.put(&path, Arc::clone(&bytes), PutMode::Create) {
                Ok(_) => {
                    let at = usize::try_from(written.record.suffix_offset()).unwrap_or(usize::MAX);
                    let directory = bytes.get(at..).unwrap_or_default().to_vec();
                    self.directories.push((written.record.clone(), directory));
                    return Ok(written);
                }
                Err(e) if *e.kind() == ErrorKind::Conflict => {
                    // The object belongs to another upload: do not remove it.
                    self.begun.retain(|id| *id != written.record.id);
                    let step = 1 << tries;
                    written.record.id =
                        TableId(self.ids.fetch_add(step, Ordering::Relaxed) + step - 1);
                    self.begun.push(written.record.id);
                }
                Err(e) => return Err(e.context(format!("uploading {path}"))),
            }
        }
        Err(Error::unavailable(format!(
            "uploading {}: {NAME_TRIES_MAX} names are taken; does another database use this \
             bucket and prefix?",
            written.record.path()
        )))
    }

    /// Removes the written files; files that cannot be removed are orphans. Returns the ids of
    /// objects that may exist or may still appear.
    pub(crate) fn discard(mut self) -> Vec<TableId> {
        self.writers.clear();
        if self.made.level.is_slow() {
            return self.begun;
        }
        for id in self.begun {
            let _unreferenced = self.env.disk.remove(&table_path(id));
        }
        Vec::new()
    }
}

/// Which of the tables that begin at `bounds` (rising) contains `group`; groups before the first
/// belong to it too.
pub(crate) fn territory(bounds: &[GroupId], group: GroupId) -> usize {
    bounds.partition_point(|first| *first <= group).saturating_sub(1)
}

/// The first timestamp of any member that is at least `ts`.
fn first_ts_from(columns: &GroupColumns, ts: Timestamp) -> Option<Timestamp> {
    columns
        .batch
        .times
        .iter()
        .filter_map(|times| times.get(times.partition_point(|&at| at < ts)).copied())
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_territory_reaches_to_the_next_table() {
        let bounds = [GroupId(10), GroupId(20)];
        let f = |group| territory(&bounds, GroupId(group));
        assert_eq!([f(0), f(10), f(19), f(20), f(u64::MAX)], [0, 0, 0, 1, 1]);
        assert_eq!(territory(&[], GroupId(3)), 0);
    }
}
