//! Counters and sizes of the tree: plain data.

use std::sync::atomic::{AtomicU64, Ordering};

use firn_model::{TimeRange, Timestamp};

use crate::job_kind::JobKind;
use crate::partition::PartitionLengths;
use crate::slow_cache::SlowCacheStats;

/// The present size of one level.
#[derive(Clone, Debug)]
pub struct LevelStats {
    /// Tables, including patches.
    pub table_count: u64,
    /// Patches among them.
    pub patch_count: u64,
    /// Tables in which damage was found since the start; they are left out of merges.
    pub damaged_count: u64,
    /// Partitions.
    pub partition_count: u64,
    /// Bytes of the tables.
    pub bytes: u64,
    /// Bytes of their directories, in `bytes`.
    pub suffix_bytes: u64,
    /// Chunks.
    pub chunk_count: u64,
    /// Rows.
    pub entry_count: u64,
    /// Values.
    pub value_count: u64,
    /// The timestamps of all samples; empty without any.
    pub time_range: TimeRange,
}

impl Default for LevelStats {
    fn default() -> LevelStats {
        LevelStats {
            table_count: 0,
            patch_count: 0,
            damaged_count: 0,
            partition_count: 0,
            bytes: 0,
            suffix_bytes: 0,
            chunk_count: 0,
            entry_count: 0,
            value_count: 0,
            time_range: TimeRange::EMPTY,
        }
    }
}

/// Reads, writes and jobs since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficStats {
    /// Reads of files.
    pub fast_reads: u64,
    /// Bytes of them.
    pub fast_read_bytes: u64,
    /// Ranges requested from the slow tier.
    pub slow_gets: u64,
    /// Bytes of them.
    pub slow_get_bytes: u64,
    /// Calls that requested ranges: round trips.
    pub slow_round_trips: u64,
    /// Bytes of local tables that queries read: blocks and directories.
    pub fast_query_bytes: u64,
    /// Values of local tables returned to queries.
    pub fast_query_values: u64,
    /// Bytes that queries read from the slow tier, not from a cache: blocks and directories.
    pub slow_query_bytes: u64,
    /// Values of slow-tier tables returned to queries, also from caches.
    pub slow_query_values: u64,
    /// Lookups of slow-tier blocks that were in memory.
    pub cache_hits: u64,
    /// Lookups of slow-tier blocks that were not.
    pub cache_misses: u64,
    /// Bytes written as level-0 tables.
    pub flush_bytes: u64,
    /// Merges on the fast tier.
    pub compactions: u64,
    /// Bytes that they read.
    pub compaction_read_bytes: u64,
    /// Bytes that they wrote.
    pub compaction_write_bytes: u64,
    /// Uploads.
    pub uploads: u64,
    /// Bytes put by them.
    pub upload_bytes: u64,
    /// Merges of patches.
    pub patch_merges: u64,
    /// Slow-tier bytes that they read.
    pub patch_merge_read_bytes: u64,
    /// Slow-tier bytes that they put.
    pub patch_merge_write_bytes: u64,
    /// Merges of old partitions of level 2.
    pub partition_merges: u64,
    /// Bytes that they read, of both tiers.
    pub partition_merge_read_bytes: u64,
    /// Slow-tier bytes that they put.
    pub partition_merge_write_bytes: u64,
    /// Tables rewritten without deleted samples.
    pub cleanings: u64,
    /// Bytes of them before.
    pub cleaning_read_bytes: u64,
    /// Bytes of them after.
    pub cleaning_write_bytes: u64,
    /// The part of them that was put on the slow tier.
    pub slow_cleaning_write_bytes: u64,
}

impl TrafficStats {
    /// Bytes of local tables written by flushes, merges and cleaning, per flushed byte; 1 before
    /// the first flush.
    pub fn fast_write_amplification(&self) -> f64 {
        let cleaned = self.cleaning_write_bytes.saturating_sub(self.slow_cleaning_write_bytes);
        amplification(self.flush_bytes, self.compaction_write_bytes + cleaned)
    }

    /// Bytes put by uploads, merges and cleaning, per uploaded byte; 1 before the first upload.
    pub fn slow_write_amplification(&self) -> f64 {
        let merged = self.patch_merge_write_bytes + self.partition_merge_write_bytes;
        amplification(self.upload_bytes, merged + self.slow_cleaning_write_bytes)
    }
}

impl TreeStats {
    /// Bytes of local tables that queries read, per stored byte of the values returned; 0 before
    /// the first query.
    pub fn fast_read_amplification(&self) -> f64 {
        let traffic = &self.traffic;
        read_amplification(&self.levels[..2], (traffic.fast_query_bytes, traffic.fast_query_values))
    }

    /// The same for the slow tier. Cached blocks are not read, so it may be less than 1.
    pub fn slow_read_amplification(&self) -> f64 {
        let traffic = &self.traffic;
        read_amplification(&self.levels[2..], (traffic.slow_query_bytes, traffic.slow_query_values))
    }
}

/// Bytes read, divided by the bytes of the values at the average of the present tables.
fn read_amplification(levels: &[LevelStats], (read_bytes, values): (u64, u64)) -> f64 {
    let sum = |of: fn(&LevelStats) -> u64| levels.iter().map(of).sum::<u64>() as f64;
    let value_bytes = sum(|level| level.bytes) / sum(|level| level.value_count).max(1.0);
    let wanted_bytes = values as f64 * value_bytes;
    if wanted_bytes == 0.0 { 0.0 } else { read_bytes as f64 / wanted_bytes }
}

fn amplification(first: u64, again: u64) -> f64 {
    if first == 0 { 1.0 } else { (first + again) as f64 / first as f64 }
}

/// The present size of the tree, and its counters.
#[derive(Clone, Debug)]
pub struct TreeStats {
    /// Levels 0, 1 and 2.
    pub levels: [LevelStats; 3],
    /// The newest timestamp on the slow tier: samples up to it survive the loss of this machine.
    pub newest_slow_ts: Option<Timestamp>,
    /// Wall time at which the oldest data was flushed that is on the fast tier and not on the slow
    /// one.
    pub waiting_since_ms: Option<Timestamp>,
    /// Lengths of new partitions.
    pub lengths: PartitionLengths,
    /// Removed tables that a reader or the slow tier's grace time keeps.
    pub garbage_count: u64,
    /// Bytes of directories and slow-tier blocks in memory.
    pub cache_bytes: u64,
    /// The slow cache.
    pub slow_cache: SlowCacheStats,
    /// Since the start.
    pub traffic: TrafficStats,
}

/// The counters of [`TrafficStats`].
#[derive(Default)]
pub(crate) struct Traffic {
    fast_reads: AtomicU64,
    fast_read_bytes: AtomicU64,
    slow_gets: AtomicU64,
    slow_get_bytes: AtomicU64,
    slow_round_trips: AtomicU64,
    fast_query_bytes: AtomicU64,
    fast_query_values: AtomicU64,
    slow_query_bytes: AtomicU64,
    slow_query_values: AtomicU64,
    cache_hits: AtomicU64,
    cache_misses: AtomicU64,
    flush_bytes: AtomicU64,
    compactions: AtomicU64,
    compaction_read_bytes: AtomicU64,
    compaction_write_bytes: AtomicU64,
    uploads: AtomicU64,
    upload_bytes: AtomicU64,
    patch_merges: AtomicU64,
    patch_merge_read_bytes: AtomicU64,
    patch_merge_write_bytes: AtomicU64,
    partition_merges: AtomicU64,
    partition_merge_read_bytes: AtomicU64,
    partition_merge_write_bytes: AtomicU64,
    cleanings: AtomicU64,
    cleaning_read_bytes: AtomicU64,
    cleaning_write_bytes: AtomicU64,
    slow_cleaning_write_bytes: AtomicU64,
}

impl Traffic {
    pub(crate) fn fast_read(&self, bytes: u64) {
        add(&self.fast_reads, 1);
        add(&self.fast_read_bytes, bytes);
    }

    pub(crate) fn slow_read(&self, gets: u64, bytes: u64) {
        add(&self.slow_round_trips, 1);
        add(&self.slow_gets, gets);
        add(&self.slow_get_bytes, bytes);
    }

    /// Counts bytes that a query or a listing read from a tier.
    pub(crate) fn read_for_query(&self, is_slow: bool, bytes: u64) {
        add(if is_slow { &self.slow_query_bytes } else { &self.fast_query_bytes }, bytes);
    }

    /// Counts values of a tier's tables returned to a query.
    pub(crate) fn answered(&self, is_slow: bool, values: u64) {
        add(if is_slow { &self.slow_query_values } else { &self.fast_query_values }, values);
    }

    pub(crate) fn cache_look(&self, hit: bool) {
        add(if hit { &self.cache_hits } else { &self.cache_misses }, 1);
    }

    pub(crate) fn flush(&self, bytes: u64) {
        add(&self.flush_bytes, bytes);
    }

    /// Counts a table that was rewritten without deleted samples.
    pub(crate) fn cleaned(&self, is_slow: bool, read_bytes: u64, written_bytes: u64) {
        add(&self.cleanings, 1);
        add(&self.cleaning_read_bytes, read_bytes);
        add(&self.cleaning_write_bytes, written_bytes);
        add(&self.slow_cleaning_write_bytes, if is_slow { written_bytes } else { 0 });
    }

    pub(crate) fn job(&self, kind: JobKind, read_bytes: u64, written_bytes: u64) {
        match kind {
            JobKind::Drop | JobKind::Clean | JobKind::Repair => {}
            JobKind::Compact => {
                add(&self.compactions, 1);
                add(&self.compaction_read_bytes, read_bytes);
                add(&self.compaction_write_bytes, written_bytes);
            }
            JobKind::Upload => {
                add(&self.uploads, 1);
                add(&self.upload_bytes, written_bytes);
            }
            JobKind::MergePatches => {
                add(&self.patch_merges, 1);
                add(&self.patch_merge_read_bytes, read_bytes);
                add(&self.patch_merge_write_bytes, written_bytes);
            }
            JobKind::MergePartitions => {
                add(&self.partition_merges, 1);
                add(&self.partition_merge_read_bytes, read_bytes);
                add(&self.partition_merge_write_bytes, written_bytes);
            }
        }
    }

    pub(crate) fn stats(&self) -> TrafficStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TrafficStats {
            fast_reads: get(&self.fast_reads),
            fast_read_bytes: get(&self.fast_read_bytes),
            slow_gets: get(&self.slow_gets),
            slow_get_bytes: get(&self.slow_get_bytes),
            slow_round_trips: get(&self.slow_round_trips),
            fast_query_bytes: get(&self.fast_query_bytes),
            fast_query_values: get(&self.fast_query_values),
            slow_query_bytes: get(&self.slow_query_bytes),
            slow_query_values: get(&self.slow_query_values),
            cache_hits: get(&self.cache_hits),
            cache_misses: get(&self.cache_misses),
            flush_bytes: get(&self.flush_bytes),
            compactions: get(&self.compactions),
            compaction_read_bytes: get(&self.compaction_read_bytes),
            compaction_write_bytes: get(&self.compaction_write_bytes),
            uploads: get(&self.uploads),
            upload_bytes: get(&self.upload_bytes),
            patch_merges: get(&self.patch_merges),
            patch_merge_read_bytes: get(&self.patch_merge_read_bytes),
            patch_merge_write_bytes: get(&self.patch_merge_write_bytes),
            partition_merges: get(&self.partition_merges),
            partition_merge_read_bytes: get(&self.partition_merge_read_bytes),
            partition_merge_write_bytes: get(&self.partition_merge_write_bytes),
            cleanings: get(&self.cleanings),
            cleaning_read_bytes: get(&self.cleaning_read_bytes),
            cleaning_write_bytes: get(&self.cleaning_write_bytes),
            slow_cleaning_write_bytes: get(&self.slow_cleaning_write_bytes),
        }
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
