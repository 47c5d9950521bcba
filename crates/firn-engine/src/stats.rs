//! Statistics of the engine: plain data of one moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_model::{BudgetUsage, CommitSeq, Timestamp};

use crate::{Engine, RecoveryReport, RequestCounts};

/// A monotonic counter; incremented per batch, never per sample.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) samples_written: Counter,
    pub(crate) deletes: Counter,
    pub(crate) transactions: Counter,
    pub(crate) expired_tables: Counter,
    pub(crate) expired_samples: Counter,
    pub(crate) expired_bytes: Counter,
    pub(crate) reads: Arc<ReadCounters>,
}

/// Pieces of queries (some groups in one range), by the location of their samples.
#[derive(Debug, Default)]
pub(crate) struct ReadCounters {
    pub(crate) from_memory: Counter,
    pub(crate) from_tables: Counter,
}

/// The slow tier as known to this process.
#[derive(Clone, Copy, Debug)]
pub struct SlowTierStats {
    /// Incremented by every claim of the slow tier; 0 before this process's claim.
    pub epoch: u64,
    /// Whether another server has taken the slow tier over: this one refuses writes.
    pub is_fenced: bool,
    /// The newest timestamp that its manifest names: newer samples do not survive the loss of this
    /// machine.
    pub newest_ts: Option<Timestamp>,
    /// Requests since the start.
    pub requests: RequestCounts,
}

/// Statistics of the engine and its rooms.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Values written since the start.
    pub samples_written: u64,
    /// Deletes since the start.
    pub deletes: u64,
    /// Transactions committed since the start, including deletes, without those that changed
    /// nothing.
    pub transactions: u64,
    /// Transactions refused since the start because another transaction touched their reads.
    pub conflicts: u64,
    /// Tables dropped since the start by retention or by the limit of the slow tier.
    pub expired_tables: u64,
    /// Samples in those tables.
    pub expired_samples: u64,
    /// Bytes of those tables.
    pub expired_bytes: u64,
    /// Deletes that may still hide something.
    pub tombstones: u64,
    /// Memory of those deletes.
    pub tombstone_bytes: u64,
    /// Flushes since the start.
    pub flushes: u64,
    /// Pieces of queries (some groups in one range) answered from memory alone, since the start.
    pub reads_from_memory: u64,
    /// Pieces of queries that read tables.
    pub reads_from_tables: u64,
    /// Series removed from the index since the start, because they have no samples.
    pub series_removed: u64,
    /// Failed steps of background work since the start.
    pub maintenance_errors: u64,
    /// The newest commit.
    pub last_seq: CommitSeq,
    /// Memory by pool.
    pub memory: BudgetUsage,
    /// Estimated milliseconds that a restart now would replay the log.
    pub replay_ms: u64,
    /// Bytes of log that were dropped before a reader had read them, since the start.
    pub reader_dropped_bytes: u64,
    /// Bytes of log files that only readers need.
    pub reader_held_bytes: u64,
    /// The log's numbers.
    pub log: firn_log::LogStats,
    /// The index's numbers.
    pub index: firn_index::IndexStats,
    /// The head's numbers.
    pub head: firn_head::HeadStats,
    /// The tree's numbers.
    pub tree: firn_tree::TreeStats,
    /// The slow tier.
    pub slow_tier: SlowTierStats,
    /// Findings of the recovery of this process.
    pub recovery: RecoveryReport,
}

impl Engine {
    /// The current statistics.
    pub fn stats(&self) -> Stats {
        let tombstones = self.ledger.tombstones.all();
        Stats {
            samples_written: self.counters.samples_written.get(),
            deletes: self.counters.deletes.get(),
            transactions: self.counters.transactions.get(),
            conflicts: self.transactions.conflict_count(),
            expired_tables: self.counters.expired_tables.get(),
            expired_samples: self.counters.expired_samples.get(),
            expired_bytes: self.counters.expired_bytes.get(),
            tombstones: tombstones.len() as u64,
            tombstone_bytes: tombstones.heap_bytes(),
            flushes: self.flusher.flush_count(),
            reads_from_memory: self.counters.reads.from_memory.get(),
            reads_from_tables: self.counters.reads.from_tables.get(),
            series_removed: self.upkeep.removed_count(),
            maintenance_errors: self.lanes.error_count(),
            last_seq: self.ledger.sequence.last(),
            memory: self.rooms.budget.usage(),
            replay_ms: self.replay_ms() as u64,
            reader_dropped_bytes: self.reader_dropped_bytes(),
            reader_held_bytes: self.reader_held_bytes(),
            log: self.rooms.log.stats(),
            index: self.rooms.index.stats(),
            head: self.rooms.head.stats(),
            tree: self.rooms.tree.stats(),
            slow_tier: SlowTierStats {
                epoch: self.slow.epoch(),
                is_fenced: self.slow.is_fenced(),
                newest_ts: self.slow.newest_ts(),
                requests: self.slow.requests().counts(),
            },
            recovery: self.recovery.report.clone(),
        }
    }
}
