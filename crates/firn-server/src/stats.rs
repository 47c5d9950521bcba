//! The database's statistics as metrics in the text format.

use firn_cache::StoreStats;
use firn_model::{Pool, SeriesLimit};
use firndb::{ObjectKind, Request, ResultStats, SlowCacheStats, SlowTierStats, Stats};

use crate::metrics_text::{Kind, MetricsText};

/// Writes all of `stats`.
pub(crate) fn write_text(stats: &Stats, text: &mut MetricsText) {
    write_memory(stats, text);
    write_refused(stats, text);
    write_rows(stats, text);
    write_tables(stats, text);
    write_recovery(stats, text);
}

/// Writes the metrics of the result cache: its slabs and its answers.
pub(crate) fn write_results(stats: &ResultStats, text: &mut MetricsText) {
    write_store(&stats.store, text);
    for (name, help, value) in [
        ("firn_result_cache_selectors", "Distinct selectors of cached answers.", stats.selectors),
        (
            "firn_result_cache_selector_bytes",
            "Memory of the selectors of cached answers.",
            stats.selector_bytes,
        ),
        (
            "firn_result_cache_hot_bytes",
            "Memory of answers that are kept decoded, and of their texts.",
            stats.hot_bytes,
        ),
    ] {
        text.gauge(name, help, value as f64);
    }
    for (name, help, value) in [
        (
            "firn_result_cache_hit_steps_total",
            "Steps of range queries that were answered from the cache.",
            stats.steps_hit,
        ),
        (
            "firn_result_cache_missed_steps_total",
            "Steps of range queries that were computed.",
            stats.steps_missed,
        ),
        (
            "firn_result_cache_memory_hits_total",
            "Lookups that decoded answers in memory satisfied.",
            stats.hot_hits,
        ),
        (
            "firn_result_cache_text_hits_total",
            "Responses that were sent as the text of an equal earlier one.",
            stats.text_hits,
        ),
        (
            "firn_result_cache_fills_total",
            "Computed answers that were stored, completely or in part.",
            stats.fills,
        ),
        (
            "firn_result_cache_rejected_fills_total",
            "Computed answers that were not stored.",
            stats.fills_refused,
        ),
        (
            "firn_result_cache_trimmed_ranges_total",
            "Ranges removed from stored answers because their samples changed.",
            stats.trims,
        ),
        (
            "firn_result_cache_trimmed_fills_total",
            "Ranges removed from answers that were being stored because their samples changed.",
            stats.fill_trims,
        ),
    ] {
        text.counter(name, help, value as f64);
    }
}

/// Writes the metrics of a cache's slabs and policy.
pub(crate) fn write_store(store: &StoreStats, text: &mut MetricsText) {
    let partitions = &store.policy;
    for (name, help, value) in [
        ("firn_cache_keys", "Keys with at least one cached range.", store.keys),
        ("firn_cache_extents", "Cached ranges.", store.extents),
        ("firn_cache_slabs", "Slabs in the cache file.", store.slabs),
        ("firn_cache_memory_bytes", "Memory of the cache.", store.memory_bytes),
        (
            "firn_cache_disabled",
            "1 if the cache is off until the next start because its device failed.",
            u64::from(store.is_off),
        ),
        (
            "firn_cache_lru_slabs_max",
            "Upper bound of the slabs in the LRU partition.",
            partitions.lru_slabs_max,
        ),
    ] {
        text.gauge(name, help, value as f64);
    }
    let slabs = [partitions.fifo_slabs, partitions.lru_slabs];
    for (name, kind, help, counts) in [
        (
            "firn_cache_partition_slabs",
            Kind::Gauge,
            "Slabs by partition of the eviction policy.",
            slabs,
        ),
        (
            "firn_cache_evictions_total",
            Kind::Counter,
            "Evicted slabs by partition of the eviction policy.",
            partitions.evictions,
        ),
        (
            "firn_cache_ghost_hits_total",
            Kind::Counter,
            "Lookups that a recently evicted slab would have answered, by partition.",
            partitions.ghost_hits,
        ),
    ] {
        text.family(name, kind, help);
        for (partition, count) in ["fifo", "lru"].into_iter().zip(counts) {
            text.sample(name, &[("partition", partition)], count as f64);
        }
    }
    let name = "firn_cache_lookups_total";
    text.family(
        name,
        Kind::Counter,
        "Lookups by result: hit (all of the range was cached), partial, or miss.",
    );
    for (result, count) in
        [("hit", store.hits), ("partial", store.partial_hits), ("miss", store.misses)]
    {
        text.sample(name, &[("result", result)], count as f64);
    }
    let name = "firn_cache_returned_bytes_total";
    text.family(
        name,
        Kind::Counter,
        "Bytes returned from the cache by result of the lookup: hit or partial.",
    );
    for (result, bytes) in [("hit", store.hit_bytes), ("partial", store.partial_bytes)] {
        text.sample(name, &[("result", result)], bytes as f64);
    }
    text.gauge(
        "firn_cache_write_amplification_ratio",
        "Bytes written to the cache file per byte of the values that were set.",
        store.written_bytes as f64 / (store.set_bytes as f64).max(1.0),
    );
    for (name, help, value) in [
        (
            "firn_cache_declined_partial_hits_total",
            "Partial hits that were too small to be worth returning.",
            store.partial_declined,
        ),
        ("firn_cache_reads_total", "Reads of the cache file.", store.reads),
        ("firn_cache_read_bytes_total", "Bytes read from the cache file.", store.read_bytes),
        ("firn_cache_stored_bytes_total", "Bytes of the values that were set.", store.set_bytes),
        ("firn_cache_written_bytes_total", "Bytes written to the cache file.", store.written_bytes),
        (
            "firn_cache_rejected_sets_total",
            "Values that were not stored, or only in part.",
            store.refused,
        ),
        ("firn_cache_written_slabs_total", "Slabs written to the cache file.", store.slabs_written),
        (
            "firn_cache_compacted_slabs_total",
            "Slabs merged into other slabs.",
            store.slabs_compacted,
        ),
        (
            "firn_cache_rescued_slabs_total",
            "Evicted slabs of which requested ranges were kept.",
            store.slabs_rescued,
        ),
        ("firn_cache_corrupt_slabs_total", "Damaged slabs that were dropped.", store.slabs_corrupt),
        (
            "firn_cache_device_errors_total",
            "Failed reads and writes of the cache file.",
            store.device_failures,
        ),
    ] {
        text.counter(name, help, value as f64);
    }
}

fn write_memory(stats: &Stats, text: &mut MetricsText) {
    let memory = &stats.memory;
    text.gauge(
        "firn_memory_limit_bytes",
        "The memory limit (--memory).",
        memory.limit_bytes as f64,
    );
    text.family("firn_memory_reserved_bytes", Kind::Gauge, "Reserved memory by pool.");
    for (pool, bytes) in Pool::ALL.iter().zip(memory.by_pool) {
        text.sample("firn_memory_reserved_bytes", &[("pool", pool.name())], bytes as f64);
    }
    let name = "firn_memory_rejected_reservations_total";
    text.family(name, Kind::Counter, "Refused memory reservations by pool.");
    for (pool, count) in Pool::ALL.iter().zip(memory.refused) {
        text.sample(name, &[("pool", pool.name())], count as f64);
    }
    let name = "firn_memory_line_bytes";
    let help = "Total memory use above which reservations of the pool are refused.";
    text.family(name, Kind::Gauge, help);
    for pool in Pool::ALL {
        let line = memory.limit_bytes as f64 / 100.0 * pool.threshold_percent() as f64;
        text.sample(name, &[("pool", pool.name())], line);
    }
    text.gauge(
        "firn_memory_owed_bytes",
        "Memory that queries leave free after a write or a job was refused.",
        memory.owed_bytes as f64,
    );
    text.gauge(
        "firn_memory_peak_bytes",
        "The highest memory use since the start.",
        memory.peak_bytes as f64,
    );
    let index = &stats.index;
    for (name, help, value) in [
        ("firn_index_series", "Series in the index.", index.series_count),
        ("firn_index_groups", "Groups in the index, lone series included.", index.group_count),
        ("firn_index_label_names", "Distinct label names.", index.name_count),
        ("firn_index_label_pairs", "Distinct label pairs.", index.pair_count),
        ("firn_index_memory_bytes", "Memory of the index, without mapped files.", index.heap_bytes),
        ("firn_index_segments", "Sealed index segments.", index.segment_count),
        (
            "firn_index_segment_bytes",
            "Size of the sealed index segments on disk.",
            index.segment_bytes,
        ),
        ("firn_tombstones", "Deletes that may still hide samples.", stats.tombstones),
        (
            "firn_tombstone_bytes",
            "Memory of the deletes that may still hide samples.",
            stats.tombstone_bytes,
        ),
        ("firn_head_rows", "Unflushed rows.", stats.head.row_count),
        ("firn_head_arena_bytes", "Memory of active rows.", stats.head.arena_bytes),
        (
            "firn_head_waiting_arenas",
            "Full arenas that wait for conversion.",
            stats.head.arena_count_waiting,
        ),
        (
            "firn_head_segment_bytes",
            "Memory of static runs and compressed chunks.",
            stats.head.segment_bytes,
        ),
        ("firn_head_encoder_bytes", "Memory of the row encoders.", stats.head.state_bytes),
        ("firn_head_hot_bytes", "Flushed memory that still answers queries.", stats.head.hot_bytes),
        (
            "firn_head_hot_parts",
            "Parts of the flushed memory, in each of which a query seeks.",
            stats.head.hot_count,
        ),
        (
            "firn_head_block_bytes",
            "Memory of column blocks, used and free.",
            stats.head.block_bytes,
        ),
        ("firn_head_free_block_bytes", "Memory of free column blocks.", stats.head.free_bytes),
        (
            "firn_head_cooling_bytes",
            "Flushed, converted or released memory that older queries still use.",
            stats.head.cooling_bytes,
        ),
    ] {
        text.gauge(name, help, value as f64);
    }
}

fn write_refused(stats: &Stats, text: &mut MetricsText) {
    let name = "firn_index_rejected_series_total";
    text.family(name, Kind::Counter, "Refused attempts to create a series by limit.");
    for (limit, count) in SeriesLimit::ALL.iter().zip(stats.index.refused) {
        text.sample(name, &[("limit", limit.name())], count as f64);
    }
}

fn write_requests(slow: &SlowTierStats, text: &mut MetricsText) {
    for (name, help, value) in [
        (
            "firn_slow_tier_epoch",
            "Epoch of the slow tier; rises with each claim, 0 until this server has claimed it.",
            slow.epoch as f64,
        ),
        (
            "firn_slow_tier_fenced",
            "1 if another server has claimed the slow tier.",
            f64::from(u8::from(slow.is_fenced)),
        ),
    ] {
        text.gauge(name, help, value);
    }
    let (requests, bytes) = ("firn_slow_tier_requests_total", "firn_slow_tier_bytes_total");
    for (name, help) in [
        (requests, "Requests to the slow tier by kind of request and object."),
        (bytes, "Bytes read from and written to the slow tier by kind of request and object."),
    ] {
        text.family(name, Kind::Counter, help);
        for (request, kinds) in Request::ALL.iter().zip(slow.requests) {
            for (kind, count) in ObjectKind::ALL.iter().zip(kinds) {
                let labels = [("request", request.name()), ("object", kind.name())];
                let value = if name == requests { count.requests } else { count.bytes };
                text.sample(name, &labels, value as f64);
            }
        }
    }
}

fn write_rows(stats: &Stats, text: &mut MetricsText) {
    let log = &stats.log;
    text.gauge(
        "firn_commit_sequence",
        "Sequence number of the newest commit.",
        stats.last_seq.0 as f64,
    );
    for (name, help, value) in [
        (
            "firn_engine_written_samples_total",
            "Samples written by all protocols.",
            stats.samples_written,
        ),
        ("firn_deletes_total", "Committed deletes.", stats.deletes),
        ("firn_transactions_total", "Committed transactions with changes.", stats.transactions),
        (
            "firn_transaction_conflicts_total",
            "Transactions that were refused because of a conflict.",
            stats.conflicts,
        ),
        (
            "firn_expired_tables_total",
            "Tables dropped by --retention or --slow-bytes-max.",
            stats.expired_tables,
        ),
        (
            "firn_expired_samples_total",
            "Samples dropped by --retention or --slow-bytes-max.",
            stats.expired_samples,
        ),
        (
            "firn_expired_bytes_total",
            "Bytes of the tables dropped by --retention or --slow-bytes-max.",
            stats.expired_bytes,
        ),
        ("firn_flushes_total", "Flushes of the head to tables.", stats.flushes),
        (
            "firn_head_recycled_bytes_total",
            "Bytes of column blocks that were reused.",
            stats.head.recycled_bytes,
        ),
        (
            "firn_head_released_bytes_total",
            "Memory released after conversion or flush.",
            stats.head.released_bytes,
        ),
        (
            "firn_head_revoked_bytes_total",
            "Released memory that was revoked from queries that held too much.",
            stats.head.revoked_bytes,
        ),
        (
            "firn_head_hot_reads_total",
            "Reads of a shard that found flushed rows in memory.",
            stats.head.hot_hits,
        ),
        (
            "firn_head_fallback_reads_total",
            "Reads of a shard that used tables because memory was released after the query began.",
            stats.head.hot_misses,
        ),
        (
            "firn_head_revoked_reads_total",
            "Reads of a shard that failed because its memory was revoked.",
            stats.head.revoked_reads,
        ),
        (
            "firn_query_memory_reads_total",
            "Reads of queries that memory answered without tables.",
            stats.reads_from_memory,
        ),
        (
            "firn_query_table_reads_total",
            "Reads of queries that used tables.",
            stats.reads_from_tables,
        ),
        (
            "firn_index_removed_series_total",
            "Series removed from the index because they had no sample left.",
            stats.series_removed,
        ),
        (
            "firn_maintenance_errors_total",
            "Failed background jobs; each is retried.",
            stats.maintenance_errors,
        ),
        ("firn_log_entries_total", "Entries appended to the log.", log.entries),
        ("firn_log_written_bytes_total", "Bytes written to the log.", log.written_bytes),
        ("firn_log_writes_total", "Group commits, one write each.", log.writes),
        ("firn_log_syncs_total", "Group commits that were synced.", log.syncs),
        ("firn_log_errors_total", "Group commits that failed.", log.failures),
        (
            "firn_remote_write_log_dropped_bytes_total",
            "Bytes of log that were dropped before a destination of remote_write received them.",
            stats.reader_dropped_bytes,
        ),
    ] {
        text.counter(name, help, value as f64);
    }
    for (name, help, value) in [
        ("firn_log_replay_bytes", "Bytes of the log that a restart would replay.", log.bytes),
        ("firn_log_segments", "Segment files of the log.", log.segments),
        ("firn_log_disk_bytes", "Size of the log on disk.", log.disk_bytes),
        (
            "firn_remote_write_log_held_bytes",
            "Size of the log that is kept for destinations of remote_write only.",
            stats.reader_held_bytes,
        ),
    ] {
        text.gauge(name, help, value as f64);
    }
    text.gauge(
        "firn_log_replay_seconds",
        "Estimated time that a restart would replay the log; --restart-time-max bounds it.",
        stats.replay_ms as f64 / 1e3,
    );
}

fn write_tables(stats: &Stats, text: &mut MetricsText) {
    let tree = &stats.tree;
    for (name, help, value) in [
        (
            "firn_tree_tables",
            "Tables by level, patches included.",
            tree.levels.each_ref().map(|level| level.table_count),
        ),
        (
            "firn_tree_patches",
            "Patches (tables of late data) by level.",
            tree.levels.each_ref().map(|level| level.patch_count),
        ),
        (
            "firn_tree_corrupt_tables",
            "Tables found damaged by level.",
            tree.levels.each_ref().map(|level| level.damaged_count),
        ),
        (
            "firn_tree_partitions",
            "Time partitions by level.",
            tree.levels.each_ref().map(|level| level.partition_count),
        ),
        (
            "firn_tree_bytes",
            "Size of the tables by level.",
            tree.levels.each_ref().map(|level| level.bytes),
        ),
        (
            "firn_tree_samples",
            "Samples in the tables by level.",
            tree.levels.each_ref().map(|level| level.value_count),
        ),
    ] {
        text.family(name, Kind::Gauge, help);
        for (level, value) in ["0", "1", "2"].iter().zip(value) {
            text.sample(name, &[("level", level)], value as f64);
        }
    }
    if let Some(ts) = stats.slow_tier.newest_ts {
        text.gauge(
            "firn_slow_tier_newest_timestamp_seconds",
            "Timestamp of the newest sample on the slow tier.",
            ts as f64 / 1_000.0,
        );
    }
    if let Some(ms) = tree.waiting_since_ms {
        text.gauge(
            "firn_upload_waiting_since_timestamp_seconds",
            "Flush time of the oldest data that is not on the slow tier yet.",
            ms as f64 / 1_000.0,
        );
    }
    write_requests(&stats.slow_tier, text);
    text.family(
        "firn_partition_length_seconds",
        Kind::Gauge,
        "Length of new time partitions by tier.",
    );
    for (tier, length) in [("fast", tree.lengths.fast), ("slow", tree.lengths.slow)] {
        text.sample(
            "firn_partition_length_seconds",
            &[("tier", tier)],
            length.as_ms() as f64 / 1_000.0,
        );
    }
    text.gauge(
        "firn_block_cache_bytes",
        "Memory of table directories and slow-tier blocks.",
        tree.cache_bytes as f64,
    );
    write_slow_cache(&tree.slow_cache, text);
    let traffic = &tree.traffic;
    let name = "firn_write_amplification_ratio";
    text.family(name, Kind::Gauge, "Bytes written per byte that arrived since the start by tier.");
    for (tier, amplification) in
        [("fast", traffic.fast_write_amplification()), ("slow", traffic.slow_write_amplification())]
    {
        text.sample(name, &[("tier", tier)], amplification);
    }
    let name = "firn_read_amplification_ratio";
    text.family(
        name,
        Kind::Gauge,
        "Bytes read by queries per stored byte of returned samples since the start by tier.",
    );
    for (tier, amplification) in
        [("fast", tree.fast_read_amplification()), ("slow", tree.slow_read_amplification())]
    {
        text.sample(name, &[("tier", tier)], amplification);
    }
    for (name, help, of_tiers) in [
        (
            "firn_query_read_bytes_total",
            "Bytes of blocks and directories read by queries by tier, without cache hits.",
            [traffic.fast_query_bytes, traffic.slow_query_bytes],
        ),
        (
            "firn_query_table_samples_total",
            "Samples from tables returned to queries by tier, cached blocks included.",
            [traffic.fast_query_values, traffic.slow_query_values],
        ),
    ] {
        text.family(name, Kind::Counter, help);
        for (tier, value) in ["fast", "slow"].into_iter().zip(of_tiers) {
            text.sample(name, &[("tier", tier)], value as f64);
        }
    }
    for (name, help, value) in [
        ("firn_table_reads_total", "Reads of local tables.", traffic.fast_reads),
        ("firn_table_read_bytes_total", "Bytes read from local tables.", traffic.fast_read_bytes),
        ("firn_slow_tier_gets_total", "Ranges read from the slow tier.", traffic.slow_gets),
        (
            "firn_slow_tier_get_bytes_total",
            "Bytes read from the slow tier.",
            traffic.slow_get_bytes,
        ),
        (
            "firn_slow_tier_round_trips_total",
            "Waits for the slow tier; each reads one or more ranges.",
            traffic.slow_round_trips,
        ),
        (
            "firn_block_cache_hits_total",
            "Lookups of slow-tier blocks that were in memory.",
            traffic.cache_hits,
        ),
        (
            "firn_block_cache_misses_total",
            "Lookups of slow-tier blocks that were not in memory.",
            traffic.cache_misses,
        ),
        ("firn_flush_written_bytes_total", "Bytes written by flushes.", traffic.flush_bytes),
        ("firn_compactions_total", "Merges of local tables.", traffic.compactions),
        (
            "firn_compaction_read_bytes_total",
            "Bytes read by merges of local tables.",
            traffic.compaction_read_bytes,
        ),
        (
            "firn_compaction_written_bytes_total",
            "Bytes written by merges of local tables.",
            traffic.compaction_write_bytes,
        ),
        ("firn_uploads_total", "Uploads to the slow tier.", traffic.uploads),
        (
            "firn_upload_written_bytes_total",
            "Bytes uploaded to the slow tier.",
            traffic.upload_bytes,
        ),
        ("firn_patch_merges_total", "Merges of late data on the slow tier.", traffic.patch_merges),
        (
            "firn_patch_merge_read_bytes_total",
            "Bytes read by merges of late data on the slow tier.",
            traffic.patch_merge_read_bytes,
        ),
        (
            "firn_patch_merge_written_bytes_total",
            "Bytes written by merges of late data on the slow tier.",
            traffic.patch_merge_write_bytes,
        ),
        (
            "firn_partition_merges_total",
            "Merges of old partitions on the slow tier.",
            traffic.partition_merges,
        ),
        (
            "firn_partition_merge_read_bytes_total",
            "Bytes read by merges of old partitions on the slow tier.",
            traffic.partition_merge_read_bytes,
        ),
        (
            "firn_partition_merge_written_bytes_total",
            "Bytes written by merges of old partitions on the slow tier.",
            traffic.partition_merge_write_bytes,
        ),
        ("firn_cleanings_total", "Tables rewritten without deleted samples.", traffic.cleanings),
        (
            "firn_cleaning_read_bytes_total",
            "Bytes read to rewrite tables without deleted samples.",
            traffic.cleaning_read_bytes,
        ),
        (
            "firn_cleaning_written_bytes_total",
            "Bytes written to rewrite tables without deleted samples.",
            traffic.cleaning_write_bytes,
        ),
    ] {
        text.counter(name, help, value as f64);
    }
}

fn write_slow_cache(cache: &SlowCacheStats, text: &mut MetricsText) {
    for (name, help, value) in [
        ("firn_slow_cache_bytes", "Size of the local disk cache of the slow tier.", cache.bytes),
        (
            "firn_slow_cache_bytes_max",
            "Upper bound of the local disk cache of the slow tier.",
            cache.bytes_max,
        ),
        ("firn_slow_cache_pieces", "Blocks and directories in the disk cache.", cache.pieces),
        (
            "firn_slow_cache_disabled",
            "1 if the disk cache is off until the next start because its device failed.",
            cache.is_off.into(),
        ),
    ] {
        text.gauge(name, help, value as f64);
    }
    for (name, help, value) in [
        (
            "firn_slow_cache_hits_total",
            "Blocks and directories found in the disk cache.",
            cache.hits,
        ),
        ("firn_slow_cache_hit_bytes_total", "Bytes found in the disk cache.", cache.hit_bytes),
        (
            "firn_slow_cache_misses_total",
            "Blocks and directories read from the slow tier.",
            cache.misses,
        ),
        (
            "firn_slow_cache_evictions_total",
            "Blocks and directories evicted from the disk cache.",
            cache.evictions,
        ),
        (
            "firn_slow_cache_written_bytes_total",
            "Bytes written to the disk cache.",
            cache.written_bytes,
        ),
        (
            "firn_slow_cache_corrupt_pieces_total",
            "Blocks and directories that failed their checksum and were read from the slow tier.",
            cache.damaged,
        ),
        (
            "firn_slow_cache_device_errors_total",
            "Failed reads and writes of the disk cache.",
            cache.device_failures,
        ),
        (
            "firn_slow_cache_disk_pressure_shrinks_total",
            "Times that the disk cache shrank because the disk was nearly full.",
            cache.disk_pressure_shrinks,
        ),
    ] {
        text.counter(name, help, value as f64);
    }
}

fn write_recovery(stats: &Stats, text: &mut MetricsText) {
    let recovery = &stats.recovery;
    for (name, help, value) in [
        ("firn_recovery_entries", "Log entries replayed at the start.", recovery.entries),
        ("firn_recovery_rows", "Rows replayed at the start.", recovery.rows),
        (
            "firn_recovery_lost_rows",
            "Rows behind damage of the log that cannot be decoded; those inside are not countable.",
            recovery.rows_lost,
        ),
        (
            "firn_recovery_lost_samples",
            "Samples of series whose definitions are lost with damaged parts of the log.",
            recovery.samples_lost,
        ),
        (
            "firn_recovery_corrupt_places",
            "Damaged places found at the start; the server's log names them.",
            recovery.damage.len() as u64,
        ),
    ] {
        text.gauge(name, help, value as f64);
    }
}
