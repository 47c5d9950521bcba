//! What can be chosen when a database is opened: plain data, units in names.

use firn_head::HeadOptions;
use firn_index::IndexOptions;
use firn_log::LogOptions;
use firn_tree::TreeOptions;

/// How an [`crate::Engine`] behaves.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// One hard limit for everything that is kept in memory.
    pub memory_bytes_max: u64,
    /// Shards of a new database, a power of two. Fixed when it is created.
    pub shard_count: usize,
    /// Log streams; where the log is in files one is cheapest, on byte-addressable memory several do not wait for each
    /// other. Another number than before takes effect when the database opens, after a flush. `None`: as many as it has, one if it is new.
    pub stream_count: Option<usize>,
    /// Threads that read the log when the database opens; those that have no stream to read make columns of the rows.
    pub recovery_threads: usize,
    /// Log bytes that force a flush, so that a restart stays quick.
    pub log_bytes_max: u64,
    /// Bytes of memory that series in no index file may hold before they are put into one without waiting for a flush; at
    /// least half as much as all index files have, so that few are made of many series.
    pub new_series_bytes_max: u64,
    /// Bytes of unflushed head beyond which it is flushed.
    pub head_bytes_max: u64,
    /// Age beyond which unflushed rows are flushed.
    pub flush_age_ms_max: i64,
    /// How far after the clock a timestamp may lie.
    pub future_ms_max: i64,
    /// Age of its newest row beyond which a flushed block is given back although nobody needs its memory.
    pub hot_age_ms_max: i64,
    /// Shows the history that another server writes to the slow tier, and takes nothing. Opened in a folder
    /// of its own.
    pub read_only: bool,
    /// Whether the database opens without index files that are damaged or missing and that the slow tier does not
    /// have. Their series are forgotten for good.
    pub forget_lost_index: bool,
    /// An index file that is damaged where opening needs it is written anew without what is lost.
    pub repair_index: bool,
    /// A slow tier without a manifest and without a single table of the history is taken all the same, and a repair gives
    /// that history up. Otherwise it counts as the wrong place.
    pub forget_lost_history: bool,
    /// What a thread that works for the database does before it waits for more work: the program may have its allocator give
    /// back what the thread has freed.
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
            // Some 70,000 lone series.
            new_series_bytes_max: 4 << 20,
            head_bytes_max: 512 << 20,
            flush_age_ms_max: 20 * 60_000,
            future_ms_max: 10 * 60_000,
            hot_age_ms_max: i64::MAX,
            read_only: false,
            forget_lost_index: false,
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
