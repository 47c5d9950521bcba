//! The tree: the present version, the removed tables whose files still exist, and the next table
//! id.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI8, AtomicU64, Ordering};

use firn_codec::GroupColumns;
use firn_env::Env;
use firn_model::{
    Budget, CancelToken, CommitSeq, Error, ErrorKind, GroupId, Result, TimeRange, Timestamp,
};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::edit::{Edit, ManifestTables};
use crate::job::{Job, Task, Work};
use crate::layout::SlowLayout;
use crate::mutant::mutant;
use crate::options::TreeOptions;
use crate::output::{Made, Outputs, Target};
use crate::partition::PartitionLengths;
use crate::plan::{self, Deletes, PlanTimes, TierScope};
use crate::record::{Level, TABLE_FOLDER, TableId, TableRecord, table_of_name, table_path};
use crate::size::Shift;
use crate::slow_cache::SlowCache;
use crate::stats::TreeStats;
use crate::store::Store;
use crate::table::Table;
use crate::version::Version;

// Each opening skips this many ids. A killed process may have put objects under ids that no
// manifest names; skipping them means that uploads do not meet them one by one.
const IDS_PER_OPENING: u64 = 1_000;
// With more tables, a flush of at most 512 MiB makes partitions so small that longer ones are still
// far below `table_bytes_max`.
const FLUSH_TABLES_MAX: usize = 1_024;

/// The groups of a flush with their columns, see [`Tree::write_level0`].
pub type FlushChunks<'c> = Box<dyn Iterator<Item = Result<(GroupId, GroupColumns)>> + 'c>;

/// Tables of all levels. All methods may be called from several threads. Two jobs may run at once
/// only if the second was planned after the first was applied; a flush may run at any time.
///
/// Lock order: `version`, then `garbage`; neither is held over I/O.
pub struct Tree {
    env: Env,
    options: TreeOptions,
    store: Arc<Store>,
    version: RwLock<Arc<Version>>,
    /// The next free id.
    ids: Arc<AtomicU64>,
    /// The next free id in the parts that were opened.
    first_unknown: TableId,
    garbage: Mutex<Vec<Garbage>>,
    /// How much longer or shorter new partitions are than the options state: a [`Shift`].
    shift: AtomicI8,
    fast_bytes: AtomicU64,
}

/// A table that the present version does not name.
struct Garbage {
    id: TableId,
    is_slow: bool,
    since_ms: Timestamp,
    /// For objects: since when the slow tier's own manifest does not name the table. Before that it
    /// stays, because readers of that manifest need it.
    told_ms: Option<Timestamp>,
    /// `None` if it was removed before this process started.
    table: Option<Arc<Table>>,
}

/// The tables for the slow tier's own manifest.
#[derive(Debug)]
pub struct SlowTables {
    /// The tree's part: tables of level 2 only.
    pub part: Vec<u8>,
    /// The part without fields that have no meaning there: equal if the same tables are named.
    pub named: Vec<u8>,
    /// Objects that it does not name and that still exist: for [`Tree::note_published`].
    pub dead: Vec<TableId>,
    /// The newest timestamp of these tables.
    pub newest_ts: Option<Timestamp>,
}

impl Tree {
    /// Opens the tree that the manifest's `parts` (snapshots and edits, oldest first) describe; no
    /// parts make an empty one. Files that they do not name are removed; objects are not touched,
    /// and the slow tier is not accessed. Make [`Tree::snapshot_part`] durable before the first
    /// job: it reserves the ids that this process will use.
    ///
    /// # Errors
    /// `Invalid` for wrong options or a newer format, `Corrupt` for parts that contradict each
    /// other, `Unavailable` when the disk fails. A missing or damaged table is no error here, but
    /// when it is read; [`Version::check`] finds it.
    pub fn open(env: &Env, options: TreeOptions, parts: &[&[u8]], budget: Budget) -> Result<Tree> {
        options.check()?;
        let state = ManifestTables::read(parts)?;
        env.disk.create_dir(TABLE_FOLDER)?;
        env.disk.sync_dir("")?;
        remove_unnamed(env, &state)?;
        let slow_cache = SlowCache::open(
            &env.disk,
            // A bucket that is a folder of this machine needs no copy.
            if env.bucket.folder().is_none() { options.slow_cache_bytes_max } else { 0 },
            &budget,
            &|id| state.tables.get(&id).is_some_and(|record| record.level.is_slow()),
        );
        #[cfg(feature = "test-util")]
        let slow_cache = slow_cache.with_mutant(options.mutant);
        let store = Arc::new(Store::new(env, options.cache_bytes_max, slow_cache, &budget));
        let tables = state.tables.into_values().map(|record| Arc::new(Table::new(record)));
        let version = Version::new(Arc::clone(&store), tables.collect())?;
        let shift = Shift::at_open(&version, &options);
        let garbage = state.dead.into_iter().map(|(id, since_ms)| Garbage {
            id,
            is_slow: true,
            since_ms,
            told_ms: None,
            table: None,
        });
        Ok(Tree {
            env: env.clone(),
            options,
            store,
            shift: AtomicI8::new(shift.0),
            fast_bytes: AtomicU64::new(version.fast_bytes()),
            version: RwLock::new(Arc::new(version)),
            first_unknown: TableId(state.next_id),
            ids: Arc::new(AtomicU64::new(match parts.is_empty() {
                true => 1,
                false => state.next_id.saturating_add(IDS_PER_OPENING),
            })),
            garbage: Mutex::new(garbage.collect()),
        })
    }

    /// The present version.
    pub fn version(&self) -> Arc<Version> {
        Arc::clone(&self.version.read())
    }

    /// Whether the opened parts named, now or earlier, every table of `part`, the state of an
    /// earlier process. If not, the opened parts are older than `part`.
    ///
    /// # Errors
    /// As [`Tree::open`] for `part`.
    pub fn has_named(&self, part: &[u8]) -> Result<bool> {
        Ok(ManifestTables::read(&[part])?.tables.keys().all(|&id| id < self.first_unknown))
    }

    /// Writes a flush as level-0 tables, one per partition that it touches (more if they exceed
    /// `table_bytes_max`). Groups must not descend; slices of one group must not overlap. On
    /// return, files and names are durable; they are orphans until the edit is applied.
    /// `deletes_through` is the last delete that was applied to the chunks. `cancel` ends a flush
    /// of more than 256 tables; a smaller one is completed.
    ///
    /// A flush that would begin more than 1,024 tables calls `chunks` a second time, and cuts old
    /// samples into partitions of the longest length: one sample in each of thousands of partitions
    /// is a file to sync for each.
    ///
    /// # Errors
    /// Those of `chunks`; `Unavailable` when the disk is full or fails; `Canceled`; `Internal` if
    /// groups descend. The files of a failed flush are removed.
    pub fn write_level0<'c>(
        &self,
        chunks: &dyn Fn() -> FlushChunks<'c>,
        deletes_through: CommitSeq,
        cancel: &CancelToken,
    ) -> Result<Edit> {
        let now = self.env.clock.now_ms();
        let version = self.version();
        let lengths = self.lengths();
        let layout = |slow| SlowLayout::of(&version, TimeRange::ALL, slow);
        let mut layouts = vec![layout(plan::slow_lengths(&self.options, lengths, now))];
        let made = Made { level: Level::Zero, written_ms: now, deletes_through };
        let new_outputs =
            || Outputs::new(&self.env, &self.ids, &self.options, made, None).canceled_by(cancel);
        let write = |layouts: &[SlowLayout], outputs: &mut Outputs<'_>| {
            let target = |ts| Target {
                partition: plan::flush_partition(layouts, ts, now, lengths.fast),
                bounds: Arc::from([]),
            };
            push_all(&mut chunks(), outputs, &target)
        };
        let mut outputs = new_outputs().of_at_most(FLUSH_TABLES_MAX);
        let mut pushed = write(&layouts, &mut outputs);
        if outputs.are_too_many() {
            let _no_objects = outputs.discard();
            layouts.insert(0, layout(plan::longest_lengths(&self.options, now)));
            outputs = new_outputs();
            pushed = write(&layouts, &mut outputs);
        }
        let written = pushed.and_then(|()| outputs.finish());
        match written {
            Ok(written) => {
                let mut edit = Edit { made_ms: now, ..Edit::default() };
                edit.add(written);
                self.store.traffic.flush(edit.added_bytes());
                Ok(edit)
            }
            Err(e) => {
                let _no_objects = outputs.discard();
                Err(e.context("writing level 0"))
            }
        }
    }

    /// The most urgent job on `version` at `times`, if there is one. Pure: reads and changes
    /// nothing. Do not run two jobs that were planned on the same version.
    pub fn plan(
        &self,
        version: &Version,
        deletes: &Deletes,
        times: impl Into<PlanTimes>,
        reach: TierScope,
    ) -> Option<Job> {
        let times = times.into();
        Some(Job {
            work: plan::plan(version, &self.options, self.lengths(), deletes, times, reach)?,
            store: Arc::clone(&self.store),
            ids: Arc::clone(&self.ids),
            options: self.options.clone(),
            tombstones: Arc::clone(&deletes.tombstones),
        })
    }

    /// Makes new partitions longer or shorter by one step, towards the fast tier's limit; `false`
    /// if they are right. Call it when no job is planned, and plan again afterwards.
    pub fn adapt(&self, version: &Version) -> bool {
        let shift = Shift(self.shift.load(Ordering::Relaxed));
        let next = shift.next(version, &self.options);
        self.shift.store(next.0, Ordering::Relaxed);
        next != shift
    }

    /// Bytes of tables on the fast tier, and the limit.
    pub fn fast_bytes(&self) -> (u64, Option<u64>) {
        (self.fast_bytes.load(Ordering::Relaxed), self.options.fast_bytes_max)
    }

    fn lengths(&self) -> PartitionLengths {
        Shift(self.shift.load(Ordering::Relaxed)).lengths(&self.options)
    }

    /// Plans to rewrite a damaged table without the lost samples ([`Version::check`] lists them).
    /// Older samples that the lost ones had overwritten become visible again.
    pub fn plan_repair(&self, version: &Version, id: TableId) -> Option<Job> {
        let work = Work { task: Task::Repair, inputs: vec![Arc::clone(version.get(id)?)] };
        Some(Job {
            work,
            store: Arc::clone(&self.store),
            ids: Arc::clone(&self.ids),
            options: self.options.clone(),
            tombstones: Arc::default(),
        })
    }

    /// Whether `edit` fits the present version: call it before the edit is made durable.
    ///
    /// # Errors
    /// `Conflict` if a table that it removes or cleans is no longer there.
    pub fn check(&self, edit: &Edit) -> Result<()> {
        self.after(&self.version(), edit).map(|_| ())
    }

    /// Installs the next version. The edit must be durable, because removed tables may be deleted
    /// from here on.
    ///
    /// # Errors
    /// Those of [`Tree::check`]; the version is unchanged then.
    pub fn apply(&self, edit: &Edit) -> Result<()> {
        let mut version = self.version.write();
        let (next, gone) = self.after(&version, edit)?;
        for (record, suffix) in edit.added.iter().zip(&edit.suffixes) {
            self.store.cache.keep_suffix(record.id, Arc::clone(suffix));
        }
        *version = Arc::new(next);
        self.fast_bytes.store(version.fast_bytes(), Ordering::Relaxed);
        for (id, deletes_through) in &edit.cleaned {
            if let Some(table) = version.get(*id) {
                table.set_cleaned(*deletes_through);
            }
        }
        self.garbage.lock().extend(gone.into_iter().map(|table| Garbage {
            id: table.record.id,
            is_slow: table.record.level.is_slow(),
            since_ms: edit.made_ms,
            told_ms: None,
            table: Some(table),
        }));
        Ok(())
    }

    /// For a reader of tables that another process writes: plans the edit to the state `part`, for
    /// [`Tree::follow`].
    ///
    /// # Errors
    /// Those of [`Tree::open`] for `part`.
    pub fn plan_follow(&self, part: &[u8]) -> Result<Edit> {
        let next = ManifestTables::read(&[part])?.tables;
        let version = self.version();
        let gone = version.tables().filter(|record| !next.contains_key(&record.id));
        let removed = gone.map(|record| record.id).collect();
        let is_cleaned = |table: &&Arc<Table>| {
            let next = next.get(&table.record.id);
            next.is_some_and(|next| *next != table.present_record())
        };
        let cleaned = version.all().filter(is_cleaned).filter_map(|table| {
            let next = next.get(&table.record.id)?;
            Some((next.id, next.deletes_through))
        });
        let cleaned = cleaned.collect();
        let is_new = |record: &TableRecord| version.get(record.id).is_none();
        let added = next.into_values().filter(is_new).collect();
        Ok(Edit { made_ms: self.env.clock.now_ms(), added, removed, cleaned, ..Edit::default() })
    }

    /// Like [`Tree::apply`] for a reader: removed tables belong to the writer.
    ///
    /// # Errors
    /// Those of [`Tree::apply`].
    pub fn follow(&self, edit: &Edit) -> Result<()> {
        self.apply(edit)?;
        self.garbage.lock().clear();
        self.store.forget(|id| edit.removed.contains(&id));
        Ok(())
    }

    /// The version after `edit`, and the tables that it removes.
    fn after(&self, version: &Version, edit: &Edit) -> Result<(Version, Vec<Arc<Table>>)> {
        let mut named = edit.removed.iter().chain(edit.cleaned.iter().map(|cleaned| &cleaned.0));
        if let Some(id) = named.find(|id| version.get(**id).is_none()) {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("{id} is no longer in the tree: another job replaced it; plan again"),
            ));
        }
        let removed: BTreeSet<TableId> = edit.removed.iter().copied().collect();
        let (gone, mut tables): (Vec<Arc<Table>>, Vec<Arc<Table>>) =
            version.all().cloned().partition(|table| removed.contains(&table.record.id));
        if mutant!(self.options, FlushDuringJobLost)
            && !edit.removed.is_empty()
            && let Some(written) = edit.added.iter().map(|record| record.id).max()
        {
            tables.retain(|table| table.record.id < written);
        }
        tables.extend(edit.added.iter().cloned().map(|record| Arc::new(Table::new(record))));
        Ok((Version::new(Arc::clone(&self.store), tables)?, gone))
    }

    /// Removes tables that no version names and no reader holds; objects only once the slow tier's
    /// own manifest has not named them ([`Tree::note_published`]) for the grace time, when no
    /// reader of an older manifest needs them. Returns the number of removed tables. Cheap when
    /// there are none.
    ///
    /// # Errors
    /// `Unavailable` when a tier fails; the next call tries the remaining ones again.
    pub fn collect_garbage(&self, env: &Env, reach: TierScope) -> Result<usize> {
        let now = env.clock.now_ms();
        let grace_ms = self.options.bucket_grace_ms;
        let is_over = |told_ms: Timestamp| now.saturating_sub(told_ms) >= grace_ms;
        let is_due = |garbage: &Garbage| {
            // This is the last reference: the present version has none, and only a held version
            // could make one.
            garbage.table.as_ref().is_none_or(|table| Arc::strong_count(table) == 1)
                && (!garbage.is_slow
                    || (reach == TierScope::Both && garbage.told_ms.is_some_and(is_over)))
        };
        let due: Vec<Garbage> = {
            let mut garbage = self.garbage.lock();
            let (due, left) = std::mem::take(&mut *garbage).into_iter().partition(is_due);
            *garbage = left;
            due
        };
        if due.is_empty() {
            return Ok(0);
        }
        let due_ids: BTreeSet<TableId> = due.iter().map(|garbage| garbage.id).collect();
        self.store.forget(|id| due_ids.contains(&id));
        let (slow, fast): (Vec<Garbage>, Vec<Garbage>) =
            due.into_iter().partition(|garbage| garbage.is_slow);
        let mut removed = 0;
        let mut failed = None;
        for garbage in fast {
            match env.disk.remove(&table_path(garbage.id)) {
                Err(e) if *e.kind() != ErrorKind::NotFound => {
                    failed = Some(e);
                    self.garbage.lock().push(garbage);
                }
                _ => removed += 1,
            }
        }
        let keys: Vec<String> = slow.iter().map(|garbage| table_path(garbage.id)).collect();
        if !keys.is_empty() {
            match env.bucket.delete(&keys) {
                Ok(()) => removed += keys.len(),
                Err(e) => {
                    failed = Some(e);
                    self.garbage.lock().extend(slow);
                }
            }
        }
        failed.map_or(Ok(removed), Err)
    }

    /// The tables that the slow tier's own manifest should name now.
    pub fn slow_tables(&self) -> SlowTables {
        let version = self.version.read();
        let garbage = self.take_abandoned();
        let dead = garbage.iter().filter(|garbage| garbage.is_slow).map(|one| one.id).collect();
        let records: Vec<_> =
            version.level(Level::Two).iter().map(|table| table.present_record()).collect();
        let part = ManifestTables::encode(self.ids.load(Ordering::Relaxed), records.iter(), &[]);
        let named = ManifestTables::encode(0, records.iter(), &[]);
        SlowTables { part, named, dead, newest_ts: version.newest_slow_ts() }
    }

    /// Whether an object waits for [`Tree::note_published`].
    pub fn has_unpublished_garbage(&self) -> bool {
        self.take_abandoned().iter().any(|garbage| garbage.is_slow && garbage.told_ms.is_none())
    }

    /// Records that the slow tier's own manifest has not named `dead` since `now`. From then on no
    /// reader opens an older manifest.
    pub fn note_published(&self, dead: &[TableId], now: Timestamp) {
        for garbage in self.garbage.lock().iter_mut().filter(|one| dead.contains(&one.id)) {
            garbage.told_ms.get_or_insert(now);
        }
    }

    /// Records the objects found on the slow tier. Tables that no version names were left by a
    /// killed upload or an earlier writer: they become garbage, and their ids are not used again.
    pub fn note_listed(&self, keys: impl Iterator<Item = String>) {
        let version = self.version();
        let now = self.env.clock.now_ms();
        let mut garbage = self.take_abandoned();
        for id in keys.filter_map(|key| table_of_name(key.strip_prefix("tables/")?)) {
            let is_dead = garbage.iter().any(|one| one.is_slow && one.id == id);
            let named = version.get(id).is_some_and(|table| table.record.level.is_slow());
            if !is_dead && !named {
                garbage.push(Garbage::object(id, now));
            }
            self.ids.fetch_max(id.0.saturating_add(1), Ordering::Relaxed);
        }
    }

    /// The garbage, including the objects of failed uploads.
    fn take_abandoned(&self) -> MutexGuard<'_, Vec<Garbage>> {
        let now = self.env.clock.now_ms();
        let abandoned = std::mem::take(&mut *self.store.abandoned.lock());
        let mut garbage = self.garbage.lock();
        garbage.extend(abandoned.into_iter().map(|id| Garbage::object(id, now)));
        garbage
    }

    /// The whole state as one part for a new manifest.
    pub fn snapshot_part(&self) -> Vec<u8> {
        // Both locks are held so that an edit cannot move a table between the two.
        let version = self.version.read();
        let dead: Vec<(TableId, Timestamp)> = self
            .garbage
            .lock()
            .iter()
            .filter(|garbage| garbage.is_slow)
            .map(|garbage| (garbage.id, garbage.since_ms))
            .collect();
        let records: Vec<_> = version.all().map(|table| table.present_record()).collect();
        ManifestTables::encode(self.ids.load(Ordering::Relaxed), records.iter(), &dead)
    }

    /// Files and objects named like tables that neither the present version nor a reader nor the
    /// grace time needs: left by killed jobs. Call it only while no job runs. Lists the slow tier.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn orphans(&self, env: &Env) -> Result<Vec<String>> {
        let version = self.version();
        let mut named: BTreeSet<String> = version.tables().map(|record| record.path()).collect();
        named.extend(self.garbage.lock().iter().map(|garbage| table_path(garbage.id)));
        let files = env.disk.list(TABLE_FOLDER)?;
        let files = files.into_iter().map(|name| format!("{TABLE_FOLDER}/{name}"));
        let objects = env.bucket.list(&format!("{TABLE_FOLDER}/"))?;
        let objects = objects.into_iter().map(|object| object.key);
        let slow: BTreeSet<String> = objects.filter(|key| !named.contains(key)).collect();
        Ok(files.filter(|path| !named.contains(path)).chain(slow).collect())
    }

    /// Removes the slow cache's file if the disk is nearly full. Cheap otherwise.
    pub fn relieve_slow_cache(&self) {
        self.store.slow_cache.shrink_if_disk_is_full();
    }

    /// Writes the pending part of the slow cache for the next start. Optional.
    pub fn close(&self) {
        self.store.slow_cache.flush();
    }

    /// Evicts at least `bytes` of cached blocks and directories, or all; returns the evicted bytes.
    pub fn shrink_cache(&self, bytes: u64) -> u64 {
        self.store.cache.shrink(bytes)
    }

    /// Current counters and sizes.
    pub fn stats(&self) -> TreeStats {
        let version = self.version();
        TreeStats {
            levels: Level::ALL.map(|level| version.level_stats(level)),
            newest_slow_ts: version.newest_slow_ts(),
            waiting_since_ms: version.waiting_since_ms(),
            lengths: self.lengths(),
            garbage_count: self.garbage.lock().len() as u64,
            cache_bytes: self.store.cache.bytes(),
            slow_cache: self.store.slow_cache.stats(),
            traffic: self.store.traffic.stats(),
        }
    }
}

impl Garbage {
    fn object(id: TableId, since_ms: Timestamp) -> Garbage {
        Garbage { id, is_slow: true, since_ms, told_ms: None, table: None }
    }
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("version", &self.version()).finish_non_exhaustive()
    }
}

fn push_all(
    chunks: &mut dyn Iterator<Item = Result<(GroupId, GroupColumns)>>,
    outputs: &mut Outputs<'_>,
    target: &dyn Fn(Timestamp) -> Target,
) -> Result<()> {
    let mut last = None;
    for chunk in chunks {
        let (group, columns) = chunk?;
        if last.replace(group).is_some_and(|last| last > group) {
            return Err(Error::internal(format!(
                "flush: {group} is out of order: groups must not descend"
            )));
        }
        outputs.push(group, &columns, target)?;
    }
    Ok(())
}

/// Removes files of killed jobs, and of edits whose garbage was not collected. Files with names
/// that no table has are those of other programs and stay.
fn remove_unnamed(env: &Env, state: &ManifestTables) -> Result<()> {
    let mut foreign = Vec::new();
    for name in env.disk.list(TABLE_FOLDER)? {
        let Some(id) = table_of_name(&name) else {
            foreign.push(name);
            continue;
        };
        let is_named = state.tables.get(&id).is_some_and(|record| !record.level.is_slow());
        if is_named {
            continue;
        }
        // No table gets this number again ([`IDS_PER_OPENING`]): the file only takes space.
        if let Err(error) = env.disk.remove(&format!("{TABLE_FOLDER}/{name}")) {
            tracing::warn!("a file that the manifest does not name stays: {error}");
        }
    }
    if let Some(first) = foreign.first() {
        let count = foreign.len();
        tracing::warn!(
            "{count} files in {TABLE_FOLDER} are not tables and stay, such as {first:?}"
        );
    }
    Ok(())
}
