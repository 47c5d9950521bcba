//! The options of a database: plain data, units in names.

use firn_head::HeadOptions;
use firn_index::IndexOptions;
use firn_log::LogOptions;
use firn_tree::TreeOptions;

/// Options of an [`crate::Engine`].
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Hard limit of all memory of the database.
    pub memory_bytes_max: u64,
    /// Shards of a new database, a power of two. Fixed when it is created.
    pub shard_count: usize,
    /// Log streams. With a log in files one is cheapest; on byte-addressable memory, several avoid
    /// waits. Another number takes effect when the database opens, after a flush. `None` keeps the
    /// number, 1 in a new database.
    pub stream_count: Option<usize>,
    /// Threads that replay the log when the database opens. Threads without a stream convert rows
    /// to columns.
    pub recovery_threads: usize,
    /// Log bytes that force a flush. At twice this size writes are refused.
    pub log_bytes_max: u64,
    /// Log bytes that are kept for readers ([`crate::LogReader`]) beyond those of a restart.
    pub reader_log_bytes_max: u64,
    /// Estimated time of a replay of the log that forces a flush, to keep restarts short.
    pub restart_ms_max: i64,
    /// Bytes of memory of new series that force an index file without a flush. New series may
    /// always take half of the bytes of all index files, so that millions of series make few files.
    pub new_series_bytes_max: u64,
    /// Bytes of unflushed head that force a flush.
    pub head_bytes_max: u64,
    /// Age beyond which unflushed rows are flushed.
    pub flush_age_ms_max: i64,
    /// Maximum distance of a timestamp after the clock.
    pub future_ms_max: i64,
    /// Age of its newest row beyond which a flushed block is recycled even if memory suffices.
    pub hot_age_ms_max: i64,
    /// Opens a read-only replica of the history that another server writes to the slow tier, in a
    /// separate folder.
    pub read_only: bool,
    /// Opens the database without index files that are damaged or missing and that the slow tier
    /// does not have. Their series are forgotten for good.
    pub forget_lost_index: bool,
    /// Opens the database although all segments of a log stream are missing. Their rows that are in
    /// no table are lost for good.
    pub forget_lost_log: bool,
    /// Rewrites a damaged index file that opening needs, without its lost series.
    pub repair_index: bool,
    /// Accepts a slow tier without a manifest and without any table of the history; a repair drops
    /// that history. Otherwise such a location is refused as the wrong one.
    pub forget_lost_history: bool,
    /// Called by a maintenance thread before it waits: the program may return freed memory to the
    /// system.
    pub on_idle: fn(),
    /// The log's segments, and when a write is acknowledged.
    pub log: LogOptions,
    /// How series form groups, and the limits that refuse new series.
    pub index: IndexOptions,
    /// When rows in memory become columns, and how much flushed memory keeps serving queries.
    pub head: HeadOptions,
    /// How the tree cuts, merges, uploads and drops.
    pub tree: TreeOptions,
    /// The deliberate bug to run with.
    #[cfg(feature = "test-util")]
    pub mutant: Option<crate::mutants::Mutant>,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            memory_bytes_max: 4 << 30,
            shard_count: 64,
            stream_count: None,
            recovery_threads: std::thread::available_parallelism().map_or(1, usize::from),
            log_bytes_max: 1 << 30,
            reader_log_bytes_max: 4 << 30,
            restart_ms_max: 2_000,
            // About 70,000 lone series.
            new_series_bytes_max: 4 << 20,
            head_bytes_max: 512 << 20,
            flush_age_ms_max: 20 * 60_000,
            future_ms_max: 10 * 60_000,
            hot_age_ms_max: i64::MAX,
            read_only: false,
            forget_lost_index: false,
            forget_lost_log: false,
            repair_index: false,
            forget_lost_history: false,
            on_idle: || (),
            log: LogOptions::default(),
            index: IndexOptions::default(),
            head: HeadOptions::default(),
            tree: TreeOptions::default(),
            #[cfg(feature = "test-util")]
            mutant: None,
        }
    }
}

#[cfg(feature = "test-util")]
impl EngineOptions {
    pub(crate) fn is_mutant(&self, mutant: crate::mutants::Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}
