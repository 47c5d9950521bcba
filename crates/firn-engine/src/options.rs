//! What can be chosen when a database is opened: plain data, units in names.

use firn_head::ConvertOptions;
use firn_index::SeriesLimits;
use firn_log::SyncPolicy;

use crate::planted::Planted;

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
    /// Size of one log segment; one entry must fit.
    pub log_segment_bytes: u64,
    /// When a write is acknowledged.
    pub log_sync: SyncPolicy,
    /// Threads that read the log when the database opens; those that have no stream to read make columns of the rows.
    pub recovery_threads: usize,
    /// Log bytes that force a flush, so that a restart stays quick.
    pub log_bytes_max: u64,
    /// Labels that make a group when a series is first seen.
    pub group_by: Vec<String>,
    /// What new series are refused by.
    pub series_limits: SeriesLimits,
    /// Bytes of memory that series in no index file may hold before they are put into one without waiting for a flush; at
    /// least half as much as all index files have, so that few are made of many series.
    pub new_series_bytes_max: u64,
    /// When active rows become columns, and columns are packed harder.
    pub convert: ConvertOptions,
    /// Bytes of unflushed head beyond which it is flushed.
    pub head_bytes_max: u64,
    /// Age beyond which unflushed rows are flushed.
    pub flush_age_ms_max: i64,
    /// How far after the clock a timestamp may lie.
    pub future_ms_max: i64,
    /// Age beyond which data is dropped, whole partitions at a time. `None` keeps all.
    pub retention_ms: Option<i64>,
    /// Bytes of flushed blocks that go on serving queries from memory.
    pub hot_bytes_max: u64,
    /// Age of its newest row beyond which a flushed block is given back although nobody needs its memory.
    pub hot_age_ms_max: i64,
    /// Flushed memory is given back by areas: blocks whose newest rows are of one span of so many milliseconds.
    pub hot_area_ms: i64,
    /// Which percentage of the flushed memory that is given back comes from the oldest area, the next one and the one
    /// after it (Heracles: 45, 35, 20). What is missing comes from the oldest.
    pub hot_recycle_percents: [u8; 3],
    /// Bytes that queries may keep in memory after they were flushed or converted. Beyond it, those that would keep
    /// them longest fail, so that a forgotten query cannot fill memory.
    pub pinned_bytes_max: u64,
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
    /// How the tree cuts and merges.
    pub tree: firn_tree::TreeOptions,
    /// A mistake made on purpose, to see that the simulation finds it. Tests only.
    #[doc(hidden)]
    pub planted: Option<Planted>,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            memory_bytes_max: 4 << 30,
            shard_count: 64,
            stream_count: None,
            log_segment_bytes: 32 << 20,
            log_sync: SyncPolicy::Always,
            recovery_threads: std::thread::available_parallelism().map_or(1, usize::from),
            log_bytes_max: 1 << 30,
            group_by: vec!["job".into(), "instance".into()],
            series_limits: SeriesLimits { series_max: Some(50_000_000), ..SeriesLimits::default() },
            // Some 70,000 lone series.
            new_series_bytes_max: 4 << 20,
            convert: ConvertOptions::default(),
            head_bytes_max: 512 << 20,
            flush_age_ms_max: 20 * 60_000,
            future_ms_max: 10 * 60_000,
            retention_ms: None,
            hot_bytes_max: 128 << 20,
            hot_age_ms_max: i64::MAX,
            hot_area_ms: 30 * 60_000,
            hot_recycle_percents: [100, 0, 0],
            pinned_bytes_max: 512 << 20,
            read_only: false,
            forget_lost_index: false,
            repair_index: false,
            forget_lost_history: false,
            on_idle: || (),
            tree: firn_tree::TreeOptions::default(),
            planted: None,
        }
    }
}
