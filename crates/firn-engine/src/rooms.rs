//! Log, index, head and tree, with the environment, options and budget that they share.

use std::fmt;
#[cfg(feature = "test-util")]
use std::sync::OnceLock;

use firn_env::Env;
use firn_head::Head;
use firn_index::Index;
use firn_log::{Log, StreamId};
use firn_model::{Budget, LogPosition, RwLock, ShardBits};
use firn_tree::Tree;

use crate::accepted::AcceptedTimes;
use crate::options::EngineOptions;
use crate::wakeup::Wakeup;

/// The four rooms of one database. The parts of the engine take it as an argument.
pub(crate) struct Rooms {
    pub(crate) env: Env,
    pub(crate) options: EngineOptions,
    pub(crate) bits: ShardBits,
    pub(crate) budget: Budget,
    pub(crate) index: Index,
    pub(crate) head: Head,
    pub(crate) tree: Tree,
    pub(crate) log: Log,
    /// Written while rows move from the head to the tree or a transaction becomes visible; read
    /// while a snapshot is taken. Taken after the manifest's lock, before one shard's.
    pub(crate) view: RwLock<()>,
    pub(crate) wakeup: Wakeup,
    #[cfg(feature = "test-util")]
    pub(crate) probe: OnceLock<crate::mutants::Probe>,
}

impl Rooms {
    /// The timestamps that a write accepts now.
    pub(crate) fn accepted_times(&self) -> AcceptedTimes {
        let (now, options) = (self.env.clock.now_ms(), &self.options);
        AcceptedTimes::new(now, options.tree.retention_ms, options.future_ms_max)
    }

    /// All streams of the log.
    pub(crate) fn streams(&self) -> impl Iterator<Item = StreamId> + use<> {
        (0..self.log.stream_count()).map(|stream| StreamId(stream as u16))
    }

    /// The current end of each stream of the log.
    pub(crate) fn log_ends(&self) -> Vec<(StreamId, LogPosition)> {
        self.streams().map(|stream| (stream, self.log.end(stream))).collect()
    }

    /// Releases `bytes` of flushed memory, or all that there is, oldest rows first: tables contain
    /// them. Returns the bytes released.
    pub(crate) fn recycle(&self, bytes: u64) -> u64 {
        let recycled_bytes = self.head.recycle(bytes);
        self.break_readers();
        recycled_bytes
    }

    /// Releases hot memory over its limit, older than its limit, or past retention. Returns the
    /// bytes released.
    pub(crate) fn recycle_surplus(&self) -> u64 {
        let age_ms_max = self.options.tree.retention_ms.unwrap_or(i64::MAX);
        let age_ms_max = age_ms_max.min(self.options.hot_age_ms_max);
        let hard_line = self.env.clock.now_ms().saturating_sub(age_ms_max);
        let recycled_bytes = self.head.recycle_surplus(hard_line);
        self.break_readers();
        recycled_bytes
    }

    fn break_readers(&self) {
        #[cfg(feature = "test-util")]
        if mutant!(self, RecycledUnderReaders) {
            self.head.release_under_readers();
        }
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn is_mutant(&self, mutant: crate::mutants::Mutant) -> bool {
        self.options.is_mutant(mutant)
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn reach(&self, point: crate::mutants::ProbePoint) {
        if let Some(probe) = self.probe.get() {
            // A probe does the steps of other threads.
            firn_model::as_another_thread(|| probe(point));
        }
    }
}

impl fmt::Debug for Rooms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rooms").field("options", &self.options).finish_non_exhaustive()
    }
}
