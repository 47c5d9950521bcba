//! Engine: the database. The only place where log, index, head and tree meet.
//!
//! **Owns** the manifest, the order of commits, the way of a write, snapshots, recovery, and the
//! one scheduler for background work.
//!
//! **Never** parses a protocol or a query, never starts a thread (who opens it runs
//! [`Engine::run_lane`] on threads of its own), never reaches the world but through
//! [`firn_env::Env`].
//!
//! **A write**: [`Engine::write`] resolves nothing; it takes references, encodes each shard's rows
//! once, puts these bytes on the shard's log stream and into the head's arena, waits for the group
//! commit, publishes. **A transaction**: [`Engine::begin`] gives a frozen view that is read and a list of
//! changes; [`Transaction::commit`] validates what was read and makes one entry of the log, visible in all
//! shards at once. **A delete** is one with a tombstone, which readers and merges apply to what is older. **A query**: [`Engine::snapshot`] freezes index, head,
//! tree and tombstones together; a [`Snapshot`] is a [`firn_model::Select`].
//!
//! **Invariants** 1, 2, 3 and 6 of the design are kept here; `tests/simulation` checks them by
//! crashing the engine at every write.
//!
//! Reading order: `write`, `definitions`, `transact`, `versions`, `commit`, `delete`, `pressure`, `snapshot`, `listing`, `walk`,
//! `maintain`, `upkeep`, `tier`, `counted`, `check`, `replica`, `copy`, `recover`, `replayed`, `lost_index`, `manifest`, `sequence`, `options`.

#![forbid(unsafe_code)]

mod check;
mod commit;
mod copy;
mod counted;
mod definitions;
mod delete;
mod listing;
mod lost_index;
mod maintain;
mod manifest;
mod options;
mod planted;
mod pressure;
mod recover;
mod replayed;
mod replica;
mod sequence;
mod snapshot;
mod stats;
mod tier;
mod transact;
mod upkeep;
mod versions;
mod walk;
mod write;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use firn_env::{Env, FolderLock};
use firn_head::Head;
use firn_index::Index;
use firn_log::Log;
use firn_model::{
    Budget, ChangeSink, Error, GroupId, Labels, Pool, Reclaim, Reservation, Result, SeriesRef,
    ShardBits,
};
use firn_tree::Tree;
use parking_lot::{Condvar, Mutex, RwLock};
use sequence::Sequence;

pub use check::{CheckProgress, CheckReport, Finding, Loss};
pub use copy::CopyReport;
pub use counted::{ObjectKind, Request, RequestCount, RequestCounts};
pub use delete::DeleteReport;
pub use firn_head::{ConvertOptions, HeadOptions};
pub use firn_index::{Cardinality, GroupInfo, IndexOptions, LostSeries, Matches, SeriesLimits};
pub use firn_log::{LogOptions, SyncPolicy};
pub use firn_tree::{
    BlockOutline, ChunkOutline, JobKind, Level, LostSamples, SlowCacheStats, TableId, TableRecord,
    TreeOptions,
};
pub use maintain::{Lane, Step};
pub use options::EngineOptions;
#[doc(hidden)]
pub use planted::Planted;
pub use recover::{RecoveryProgress, RecoveryReport};
pub use replayed::Replayed;
pub use snapshot::Snapshot;
pub use stats::{SlowTierStats, Stats};
pub use tier::RestoreReport;
pub use transact::{CommitReport, SeriesSamples, Transaction};
pub use walk::{Run, SeriesWalk, WalkOptions};
pub use write::WriteReport;

/// An open database.
///
/// Lock order: `tree_lane`, then the tier's claim, then `leaving`, then `flush_lane`, then the lane of `transactions`,
/// then `manifest`, then the order of `transactions` and shards of the head in the order of their ids; or the waiting
/// ones of `transactions`, then `view`, then the tombstones, then one shard.
/// `index_memory` is held alone but for what giving memory back takes: shards, the block cache, `caches`, `givers`.
pub struct Engine {
    env: Env,
    options: EngineOptions,
    bits: ShardBits,
    budget: Budget,
    /// Caches around the engine that give memory back.
    caches: RwLock<Vec<Arc<dyn Reclaim>>>,
    givers: RwLock<Vec<Arc<dyn Reclaim>>>,
    /// Bytes of head and index that the last flush left.
    kept_by_flush: AtomicU64,
    index: Index,
    index_memory: Mutex<Reservation>,
    head: Head,
    tree: Tree,
    log: Log,
    sequence: Sequence,
    definitions: definitions::Definitions,
    deletes: delete::DeleteState,
    transactions: commit::Transactions,
    manifest: Mutex<manifest::Manifest>,
    tier: tier::Tier,
    counted: Arc<counted::Counted>,
    replica: Mutex<replica::Followed>,
    identity: recover::Identity,
    /// Up to where the log's rows are in tables.
    cut: Mutex<recover::LogCut>,
    /// Written while rows move from the head to the tree; read while a snapshot is taken.
    view: RwLock<()>,
    flush_lane: Mutex<()>,
    tree_lane: Mutex<()>,
    log_started: AtomicBool,
    flush_asked: AtomicBool,
    flushed_at_ms: AtomicI64,
    /// Read by every write until its rows are visible.
    leaving: RwLock<upkeep::Leaving>,
    data_gone: AtomicBool,
    /// When series may leave the index next, and when its files may be merged next.
    removal_at_ms: AtomicI64,
    index_retry_at_ms: AtomicI64,
    asleep: Mutex<()>,
    wake: Condvar,
    closed: AtomicBool,
    sink: OnceLock<Arc<dyn ChangeSink>>,
    counters: stats::Counters,
    recovery: RecoveryReport,
    replayed: replayed::ReplayedLog,
    probe: OnceLock<Probe>,
    _locks: (Box<dyn FolderLock>, Option<Box<dyn FolderLock>>),
}

/// Does what another thread might do just then. Tests only.
#[doc(hidden)]
pub type Probe = Box<dyn Fn(Moment) + Send + Sync>;

/// Where somebody else may come in between. Tests only.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Series are about to leave the index.
    SeriesLeave,
    /// A job of the tree has written its tables, which nobody names yet.
    JobRun,
    /// A commit failed, and who waited for it has undone nothing yet.
    CommitFailed,
    /// In a mistake that is planted.
    Planted,
}

impl Engine {
    /// The references of label sets, defining those that are new (the slow path). A definition is
    /// durable with the first row of its series. Without memory for new series the known ones are
    /// found all the same.
    pub fn resolve(&self, labels: &[Labels]) -> Vec<Result<SeriesRef>> {
        let mut refs = Vec::with_capacity(labels.len());
        if let Err(e) = self.check_writable() {
            let refused = || Error::new(e.kind().clone(), e.what());
            let known = |labels: &Labels| self.index.lookup(labels)?.ok_or_else(refused);
            return labels.iter().map(known).collect();
        }
        let found = self.with_index_memory(labels.iter(), || {
            self.index.resolve(labels, &mut refs);
            let known = refs
                .iter()
                .zip(labels)
                .filter_map(|(found, labels)| Some((*found.as_ref().ok()?, labels.clone())));
            self.tell_defined(known);
        });
        if let Err(e) = found {
            let refused = || Error::new(e.kind().clone(), e.what());
            let known = |labels: &Labels| self.index.lookup(labels)?.ok_or_else(refused);
            refs.extend(labels.iter().map(known));
            self.await_definers();
        }
        refs
    }

    /// The references of label sets that have one; nothing is defined.
    ///
    /// # Errors
    /// `Corrupt` when a damaged index segment may have one.
    pub fn find(&self, labels: &[Labels]) -> Result<Vec<Option<SeriesRef>>> {
        let found = labels.iter().map(|labels| self.index.lookup(labels)).collect();
        self.await_definers();
        found
    }

    /// The first of `refs` that does not exist, if there is one.
    ///
    /// # Errors
    /// `Corrupt` when a damaged index segment may have one.
    pub fn find_unknown(&self, refs: &[SeriesRef]) -> Result<Option<SeriesRef>> {
        self.index.find_unknown(refs.iter().copied())
    }

    /// The references of the members of an explicit group, defining what is new, and the groups that
    /// they are in: mostly one. `members` are what they have beside the group's labels.
    ///
    /// # Errors
    /// `Busy` without memory, `SeriesLimit` over a limit, `Invalid` when a member repeats a label of the group.
    pub fn resolve_group(
        &self,
        group_labels: &Labels,
        members: &[Labels],
    ) -> Result<(Vec<GroupId>, Vec<SeriesRef>)> {
        self.check_writable()?;
        let labels = members.iter().chain([group_labels]);
        self.with_index_memory(labels, || {
            let (groups, refs) = self.index.resolve_group(group_labels, members)?;
            let whole =
                |member: &Labels| Labels::from_pairs(group_labels.iter().chain(member.iter()));
            let labels = members.iter().map(whole).collect::<Result<Vec<Labels>>>()?;
            self.tell_defined(refs.iter().copied().zip(labels));
            Ok((groups, refs))
        })?
    }

    /// Who defines a series that was found without the lock on the index's memory has told the cache of it after this.
    fn await_definers(&self) {
        if self.sink.get().is_some() {
            drop(self.index_memory.lock());
        }
    }

    /// Tells the cache of series before anybody can write to those that are new: the lock on the index's memory is
    /// held, and who finds a series without it waits for it once.
    fn tell_defined(&self, series: impl Iterator<Item = (SeriesRef, Labels)>) {
        if let Some(sink) = self.sink.get() {
            series.for_each(|(series, labels)| sink.defined(series, &labels));
        }
    }

    /// Reserves what defining all of `labels` may take, then keeps what the index really holds.
    fn with_index_memory<'l, T>(
        &self,
        labels: impl Iterator<Item = &'l Labels>,
        resolve: impl FnOnce() -> T,
    ) -> Result<T> {
        // Text, posting lists and hash entries of one series, generously.
        const SERIES_BYTES: u64 = 512;
        let bytes = labels.map(|labels| labels.as_encoded().len() as u64 + SERIES_BYTES).sum();
        let mut memory = self.index_memory.lock();
        self.admit_series()?;
        self.grow(&mut memory, Pool::Index, bytes)?;
        self.index.tick(self.env.clock.now_ms());
        let found = resolve();
        let unused = memory.bytes().saturating_sub(self.index.stats().heap_bytes);
        memory.shrink(unused);
        Ok(found)
    }

    /// Changes when references that were given out may no longer be used.
    pub fn generation(&self) -> u32 {
        self.index.generation()
    }

    /// The budget that everything draws on.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The world of this database.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// Who is told of every change before it is visible. Once, before the first write.
    ///
    /// # Errors
    /// `Invalid` the second time.
    pub fn set_change_sink(&self, sink: Arc<dyn ChangeSink>) -> Result<()> {
        self.sink.set(sink).map_err(|_| Error::invalid("the change sink is set already"))
    }

    /// Refuses further work. With `flush`, everything is in tables afterwards and the next start
    /// replays nothing.
    ///
    /// # Errors
    /// Those of [`Engine::flush`]; the engine is closed all the same and nothing is lost.
    pub fn close(&self, flush: bool) -> Result<()> {
        let flushed = if flush && self.is_open() { self.flush() } else { Ok(()) };
        let synced = match self.is_open() && self.log_started.load(Ordering::Acquire) {
            // With a relaxed `log.sync` something may still wait for its sync.
            true => self.log.sync(),
            false => Ok(()),
        };
        self.tree.close();
        self.closed.store(true, Ordering::Release);
        self.wake_maintenance();
        flushed.and(synced)
    }

    /// Whether [`Engine::close`] was not called yet.
    pub fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    fn check_open(&self) -> Result<()> {
        if self.is_open() { Ok(()) } else { Err(Error::closed("the database is shutting down")) }
    }

    fn planted(&self, mistake: Planted) -> bool {
        self.options.planted == Some(mistake)
    }

    /// Called at each [`Moment`]. Tests only.
    #[doc(hidden)]
    pub fn set_probe(&self, probe: Probe) {
        let _ = self.probe.set(probe);
    }

    fn probe(&self, moment: Moment) {
        if let Some(probe) = self.probe.get() {
            probe(moment);
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
