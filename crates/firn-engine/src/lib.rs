//! Engine: the database. The only room in which log, index, head and tree meet.
//!
//! **Owns** the manifest, the order of commits, the write path, snapshots, recovery, and the
//! scheduler of background work.
//!
//! **Never** parses a protocol or a query, never starts a thread (the caller runs
//! [`Engine::run_lane`] on its own threads), never reaches the outside except through
//! [`firn_env::Env`].
//!
//! **Write path** (`write`): [`Engine::write`] takes references, encodes each shard's rows once,
//! appends these bytes to the shard's log stream and to the head's arena, waits for the group
//! commit, and makes the rows visible.
//!
//! **Transaction** (`transact`, `commit`): [`Engine::begin`] returns a frozen view to read and a
//! list of changes; [`Transaction::commit`] validates the reads and writes one log entry, visible
//! in all shards at once. **Delete** (`delete`): a transaction with a tombstone, which readers and
//! merges apply to older samples.
//!
//! **Flush** (`flush`): [`Engine::flush`] moves the head to tables of level 0 and truncates the
//! log. `scheduler` decides when, and runs all other background work.
//!
//! **Recovery** (`open`): [`Engine::open`] reads the manifest, opens tables and index files, and
//! replays the rest of the log into index and head (`replay`). `mend` repairs index files that are
//! damaged or missing.
//!
//! **Read path** (`snapshot`): [`Engine::snapshot`] freezes index, head, tree and tombstones
//! together; a [`Snapshot`] is a [`firn_model::Select`].
//!
//! **Invariants**: acknowledged rows are durable (1), the newest write wins (2), a snapshot never
//! changes (3), and the slow tier contains every object that its manifest names (6).
//! `tests/simulation` checks them by crashing the engine at every change of disk and bucket.
//!
//! **Walls**: each part of the state has one owner with private fields: `Ledger` (manifest, commit
//! numbers, tombstones), `Pressure`, `Flusher`, `IndexUpkeep`, `Transactions`, `SlowTier`. Their
//! methods take `rooms::Rooms` and each other as arguments. Only `Engine` sees all of them.
//!
//! **Reading order**: `rooms`, `ledger`; write path: `accepted`, `write`, `definitions`, `resolve`,
//! `transact`, `versions`, `commit`, `logged`, `delete`, `tombstones`, `stored_tombstones`,
//! `pressure`, `changes`; read path: `snapshot`, `presence`, `listing`, `walk`; readers of the log:
//! `readers`, `log_reader`; background: `scheduler`, `retention_clock`, `flush`, `upkeep`, `slow`,
//! `check`, `copy`; opening: `open`, `unnamed`, `mend`, `replay`, `replay_time`, `history`,
//! `replayed`, `recovery`, `manifest`, `manifest_format`, `edit`, `parts`, `folder`; files beside
//! the database: `kept_file`, `metadata`, `alerts`; then `sequence`, `sync`, `lock`, `wakeup`,
//! `options`, `stats`, `mutants`.
//!
//! Terms: `docs/glossary.md`.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

#[macro_use]
mod mutants;

mod accepted;
mod alerts;
mod changes;
mod check;
mod commit;
mod copy;
mod definitions;
mod delete;
mod edit;
mod flush;
mod folder;
mod history;
mod kept_file;
mod ledger;
mod listing;
mod lock;
mod log_reader;
mod logged;
mod manifest;
mod manifest_format;
mod mend;
mod metadata;
mod open;
mod options;
mod parts;
mod presence;
mod pressure;
mod readers;
mod recovery;
mod replay;
mod replay_time;
mod replayed;
mod resolve;
mod retention_clock;
mod rooms;
mod scheduler;
mod sequence;
#[cfg(test)]
mod sequence_model;
mod slow;
mod snapshot;
mod stats;
mod stored_tombstones;
mod sync;
mod tombstones;
mod transact;
mod unnamed;
mod upkeep;
mod versions;
mod wakeup;
mod walk;
mod write;

use std::fmt;
use std::sync::Arc;

use firn_env::Env;
use firn_model::{Budget, ChangeSink, Reclaim, Result};

pub use accepted::{AcceptedTimes, RefusedTime, TimeRefusal};
pub use check::{CheckProgress, CheckReport, Finding, Loss};
pub use copy::CopyReport;
pub use delete::DeleteReport;
pub use firn_head::{ConvertOptions, HeadOptions};
pub use firn_index::{
    Cardinality, GroupBy, GroupInfo, GroupRule, IndexOptions, LostSeries, Matches, SeriesLimits,
};
pub use firn_log::{LogOptions, SyncPolicy};
pub use firn_tree::{
    BlockOutline, ChunkOutline, JobKind, Level, LostSamples, SlowCacheStats, TableId, TableRecord,
    TreeOptions,
};
pub use history::{History, HistoryView};
pub use log_reader::{LogReader, LogReading, LoggedSample};
#[cfg(feature = "test-util")]
pub use mutants::{Mutant, Probe, ProbePoint};
pub use options::EngineOptions;
pub use readers::ReaderProgress;
pub use recovery::{FoundDamage, RecoveryProgress, RecoveryReport};
pub use replayed::Replayed;
pub use scheduler::{Lane, Step};
pub use slow::requests::{ObjectKind, Request, RequestCount, RequestCounts};
pub use slow::restore::RestoreReport;
pub use snapshot::Snapshot;
pub use stats::{SlowTierStats, Stats};
pub use transact::{CommitReport, SeriesSamples, Transaction};
pub use walk::{Run, SeriesWalk, WalkOptions};
pub use write::WriteReport;

/// An open database.
///
/// Lock order: `Lanes::tree`, the slow tier's claim, `IndexUpkeep::leaving`, the flusher's lane,
/// the lane of transactions, the ledger's manifest, the order of transactions, the list of waiting
/// transactions, `Rooms::view`, shards of the head by id. `IndexUpkeep::memory` is between the
/// flusher's lane and the shards: only the locks of the index, of the change sink and those that
/// reclaiming memory takes follow it. The lists of `Pressure` are read-locked while their caches
/// release memory. All other locks are innermost: no lock of the engine is taken under those of
/// tombstones, log cut, claims, commit numbers, open transactions and `Wakeup`, nor under the slow
/// tier's retry and followed manifest.
pub struct Engine {
    rooms: rooms::Rooms,
    ledger: ledger::Ledger,
    pressure: pressure::Pressure,
    changes: changes::ChangeFeed,
    definitions: definitions::Definitions,
    transactions: commit::Transactions,
    upkeep: upkeep::IndexUpkeep,
    flusher: flush::Flusher,
    lanes: scheduler::Lanes,
    slow: slow::state::SlowTier,
    counters: stats::Counters,
    recovery: replayed::ReplayedLog,
    readers: readers::Readers,
    locks: open::FolderLocks,
}

impl Engine {
    /// The generation of series references. When it changes, earlier references are stale.
    pub fn generation(&self) -> u32 {
        self.rooms.index.generation()
    }

    /// The memory budget of the database.
    pub fn budget(&self) -> &Budget {
        &self.rooms.budget
    }

    /// The disk, bucket and clock of this database.
    pub fn env(&self) -> &Env {
        &self.rooms.env
    }

    /// The timestamps that a write accepts now: not older than the retention, and at most
    /// [`EngineOptions::future_ms_max`] after the clock.
    pub fn accepted_times(&self) -> AcceptedTimes {
        self.rooms.accepted_times()
    }

    /// Whether another server has taken the slow tier over: this one refuses writes.
    pub fn is_fenced(&self) -> bool {
        self.slow.is_fenced()
    }

    /// The number of shards, which was fixed when the database was created.
    pub fn shard_count(&self) -> usize {
        self.rooms.bits.shard_count()
    }

    /// Sets the receiver of every change, which is called before the change is visible. Call it
    /// once, before the first write.
    ///
    /// # Errors
    /// `Invalid` the second time.
    pub fn set_change_sink(&self, sink: Arc<dyn ChangeSink>) -> Result<()> {
        self.changes.set(sink)
    }

    /// Adds a cache of answers, which releases memory before hot blocks do.
    pub fn add_cache(&self, cache: Arc<dyn Reclaim>) {
        self.pressure.add_cache(cache);
    }

    /// Adds a cache that releases memory last, before anything is refused: writing is slow without
    /// it.
    pub fn add_reclaimer(&self, reclaimer: Arc<dyn Reclaim>) {
        self.pressure.add_last_resort(reclaimer);
    }

    /// Refuses further work. With `flush`, tables then contain everything and the next start
    /// replays no log, unless the samples are spread over more than a few hundred partitions: the
    /// log keeps those, so that a close takes a bounded time.
    ///
    /// # Errors
    /// Those of [`Engine::flush`], and `Unavailable` if rows could not be synced; the engine is
    /// closed anyway. Only rows that were acknowledged under a relaxed `log.sync` may then be lost,
    /// in a power failure.
    pub fn close(&self, flush: bool) -> Result<()> {
        let flushed = if flush && self.is_open() { self.flush_at_close() } else { Ok(()) };
        let synced = match self.is_open() && self.flusher.is_log_started() {
            // With a relaxed `log.sync`, acknowledged rows may still wait for their sync.
            true => self.rooms.log.sync(),
            false => Ok(()),
        };
        self.rooms.tree.close();
        self.rooms.wakeup.close();
        flushed.and(synced)
    }

    /// Whether [`Engine::close`] was not called yet.
    pub fn is_open(&self) -> bool {
        self.rooms.wakeup.is_open()
    }

    /// Sets a function that is called at each [`ProbePoint`]; only the first call has an effect.
    #[cfg(feature = "test-util")]
    pub fn set_probe(&self, probe: Probe) {
        let _ = self.rooms.probe.set(probe);
    }

    #[cfg(feature = "test-util")]
    fn is_mutant(&self, mutant: Mutant) -> bool {
        self.rooms.is_mutant(mutant)
    }

    #[cfg(feature = "test-util")]
    fn reach(&self, point: ProbePoint) {
        self.rooms.reach(point);
    }
}

impl Reclaim for Engine {
    fn reclaim(&self, bytes: u64) -> u64 {
        self.pressure.reclaim(&self.rooms, bytes)
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
