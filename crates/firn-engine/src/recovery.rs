//! The progress of a recovery while it runs, and its findings: plain data. `open` and `replay`
//! contain the recovery itself.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_index::LostSeries;
use parking_lot::RwLock;

use crate::history::History;

/// Progress of a recovery, for a page that users watch.
#[derive(Debug, Default)]
pub struct RecoveryProgress {
    /// Log bytes to read. Those of the stream with the transactions count twice, because it is read
    /// twice.
    pub bytes_total: AtomicU64,
    /// Log bytes read.
    pub bytes_done: AtomicU64,
    /// Monotonic time at which the recovery started; 0 before that.
    pub started_ns: AtomicU64,
    /// Monotonic time of the last read.
    pub read_at_ns: AtomicU64,
    /// The part of the database that is complete without the log.
    history: RwLock<Option<Arc<History>>>,
}

impl RecoveryProgress {
    /// Estimated milliseconds for the remaining bytes, at the speed so far; `None` before the first
    /// bytes are read.
    pub fn left_ms(&self) -> Option<u64> {
        let [total, done, started, at] =
            [&self.bytes_total, &self.bytes_done, &self.started_ns, &self.read_at_ns]
                .map(|number| number.load(Ordering::Relaxed));
        let spent_ms = at.checked_sub(started)? as f64 / 1e6;
        (done > 0).then(|| (spent_ms * total.saturating_sub(done) as f64 / done as f64) as u64)
    }

    /// The part of the database that is complete without the log, from the time on at which the log
    /// was read once. It is valid until the first write after the recovery.
    pub fn history(&self) -> Option<Arc<History>> {
        self.history.read().clone()
    }

    /// Sets or drops the history.
    pub(crate) fn set_history(&self, history: Option<History>) {
        *self.history.write() = history.map(Arc::new);
    }

    /// Drops the history: the database is open, or closed.
    pub fn end(&self) {
        self.set_history(None);
    }
}

/// A damaged location that a recovery has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDamage {
    /// One sentence, with the path.
    pub what: String,
    /// Whether it is in the log: its rows that are in no table are lost.
    pub is_in_log: bool,
}

impl fmt::Display for FoundDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// Findings of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Log entries read.
    pub entries: u64,
    /// Rows replayed into the head.
    pub rows: u64,
    /// Transactions replayed.
    pub transactions: u64,
    /// The maximum number of bytes of their rows that were in memory at one time, beside the head.
    pub transaction_bytes_max: u64,
    /// Deletes replayed, all of them in transactions.
    pub deletes: u64,
    /// Rows that could not be decoded because the log is damaged before them. The rows inside the
    /// damaged places are not countable.
    pub rows_lost: u64,
    /// Samples that were decoded, but the definitions of their series are in damaged places of the
    /// log.
    pub samples_lost: u64,
    /// One sentence for each stream whose end was torn by a crash: unacknowledged writes.
    pub torn_tails: Vec<String>,
    /// Damaged locations in log and manifest, and forgotten index files.
    pub damage: Vec<FoundDamage>,
    /// Index files that were rewritten ([`crate::EngineOptions::repair_index`]) or downloaded from
    /// the slow tier, and the series lost by that.
    pub index_repairs: Vec<(String, Option<LostSeries>)>,
}

impl RecoveryReport {
    /// Adds the findings of one stream.
    pub(crate) fn add(&mut self, other: RecoveryReport) {
        self.entries += other.entries;
        self.rows += other.rows;
        self.deletes += other.deletes;
        self.rows_lost += other.rows_lost;
        self.torn_tails.extend(other.torn_tails);
        self.damage.extend(other.damage);
    }
}
