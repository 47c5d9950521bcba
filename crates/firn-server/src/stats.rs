//! What the database counts, in the text format.

use firn_cache::StoreStats;
use firn_model::{Pool, SeriesLimit};
use firndb::{ObjectKind, Request, ResultStats, SlowCacheStats, SlowTierStats, Stats};

use crate::telemetry::{Kind, MetricsText};

/// Writes all of `stats`.
pub(crate) fn write_text(stats: &Stats, text: &mut MetricsText) {
    write_memory(stats, text);
    write_refused(stats, text);
    write_rows(stats, text);
    write_tables(stats, text);
    write_recovery(stats, text);
}

/// Writes what the result cache counts: the slabs below, and answers.
pub(crate) fn write_results(stats: &ResultStats, text: &mut MetricsText) {
    write_store(&stats.store, text);
    for (name, help, value) in [
        ("firn_result_cache_selectors", "Distinct selectors of cached answers.", stats.selectors),
        ("firn_result_cache_selector_bytes", "Memory that they take.", stats.selector_bytes),
        ("firn_result_cache_hot_bytes", "Answers in memory as they are given.", stats.hot_bytes),
    ] {
        text.gauge(name, help, value as f64);
    }
    for (name, help, value) in [
        ("firn_result_cache_steps_found_total", "Steps that were answered.", stats.steps_hit),
        ("firn_result_cache_steps_missing_total", "Steps that were computed.", stats.steps_missed),
        (
            "firn_result_cache_recalled_total",
            "Questions whose kept steps were in memory as they are given.",
            stats.hot_hits,
        ),
        ("firn_result_cache_fills_total", "Answers that were kept.", stats.fills),
        ("firn_result_cache_fills_refused_total", "Answers that were not.", stats.fills_refused),
        ("firn_result_cache_trims_total", "Ranges that changes cut out.", stats.trims),
        (
            "firn_result_cache_fill_trims_total",
            "Ranges that changes cut out of answers on their way.",
            stats.fill_trims,
        ),
    ] {
        text.counter(name, help, value as f64);
    }
}

/// Writes what a cache's slabs and policy count.
pub(crate) fn write_store(store: &StoreStats, text: &mut MetricsText) {
    let partitions = &store.policy;
    for (name, help, value) in [
        ("firn_cache_keys", "Keys that something is kept of.", store.keys),
        ("firn_cache_extents", "Ranges of keys that are kept.", store.extents),
        ("firn_cache_slabs", "Slabs in the cache's file.", store.slabs),
        ("firn_cache_memory_bytes", "Memory that the cache takes.", store.memory_bytes),
        ("firn_cache_off", "Whether the cache gave up on its device.", u64::from(store.is_off)),
        (
            "firn_cache_lru_slabs_max",
            "Slabs that the LRU partition may have.",
            partitions.lru_slabs_max,
        ),
    ] {
        text.gauge(name, help, value as f64);
    }
    let slabs = [partitions.fifo_slabs, partitions.lru_slabs];
    for (name, kind, help, counts) in [
        ("firn_cache_partition_slabs", Kind::Gauge, "Slabs by the policy's partition.", slabs),
        (
            "firn_cache_evictions_total",
            Kind::Counter,
            "Slabs that went, by partition.",
            partitions.evictions,
        ),
        (
            "firn_cache_ghost_hits_total",
            Kind::Counter,
            "Questions that slabs which went would have answered.",
            partitions.ghost_hits,
        ),
    ] {
        text.family(name, kind, help);
        for (partition, count) in ["fifo", "lru"].into_iter().zip(counts) {
            text.sample(name, &[("partition", partition)], count as f64);
        }
    }
    let name = "firn_cache_questions_total";
    text.family(name, Kind::Counter, "Questions by how much of the answer was there.");
    for (found, count) in
        [("all", store.hits), ("part", store.partial_hits), ("nothing", store.misses)]
    {
        text.sample(name, &[("found", found)], count as f64);
    }
    let name = "firn_cache_given_bytes_total";
    text.family(name, Kind::Counter, "Bytes that were given, by how much of the answer was there.");
    for (found, bytes) in [("all", store.hit_bytes), ("part", store.partial_bytes)] {
        text.sample(name, &[("found", found)], bytes as f64);
    }
    text.gauge(
        "firn_cache_write_amplification",
        "Bytes written to the cache's file for each byte that was given to be kept.",
        store.written_bytes as f64 / (store.set_bytes as f64).max(1.0),
    );
    for (name, help, value) in [
        (
            "firn_cache_partial_declined_total",
            "Parts that were too small to use.",
            store.partial_declined,
        ),
        ("firn_cache_reads_total", "Pieces read from the cache's file.", store.reads),
        ("firn_cache_read_bytes_total", "Bytes read from the cache's file.", store.read_bytes),
        ("firn_cache_set_bytes_total", "Bytes that were given to be kept.", store.set_bytes),
        ("firn_cache_written_bytes_total", "Bytes written to its file.", store.written_bytes),
        ("firn_cache_refused_total", "What was given and not kept.", store.refused),
        ("firn_cache_slabs_written_total", "Slabs written.", store.slabs_written),
        ("firn_cache_slabs_compacted_total", "Slabs merged into others.", store.slabs_compacted),
        (
            "firn_cache_slabs_rescued_total",
            "Slabs that had to go and of which something was kept.",
            store.slabs_rescued,
        ),
        ("firn_cache_slabs_corrupt_total", "Damaged slabs that were dropped.", store.slabs_corrupt),
        ("firn_cache_device_failures_total", "Failed writes and reads.", store.device_failures),
    ] {
        text.counter(name, help, value as f64);
    }
}

fn write_memory(stats: &Stats, text: &mut MetricsText) {
    let memory = &stats.memory;
    text.gauge(
        "firn_memory_limit_bytes",
        "The limit that everything in memory shares (--memory).",
        memory.limit_bytes as f64,
    );
    text.family("firn_memory_reserved_bytes", Kind::Gauge, "Memory set aside, by what for.");
    for (pool, bytes) in Pool::ALL.iter().zip(memory.by_pool) {
        text.sample("firn_memory_reserved_bytes", &[("pool", pool.name())], bytes as f64);
    }
    let name = "firn_memory_refused_total";
    text.family(name, Kind::Counter, "Reservations that were refused, by what for.");
    for (pool, count) in Pool::ALL.iter().zip(memory.refused) {
        text.sample(name, &[("pool", pool.name())], count as f64);
    }
    let name = "firn_memory_line_bytes";
    let help = "Over this use of all memory reservations are refused, by what for.";
    text.family(name, Kind::Gauge, help);
    for pool in Pool::ALL {
        let line = memory.limit_bytes as f64 / 100.0 * pool.threshold_percent() as f64;
        text.sample(name, &[("pool", pool.name())], line);
    }
    text.gauge(
        "firn_memory_peak_bytes",
        "The most that was in use at one time.",
        memory.peak_bytes as f64,
    );
    let index = &stats.index;
    for (name, help, value) in [
        ("firn_index_series", "Series that are known.", index.series_count),
        ("firn_index_groups", "Groups, those of one member included.", index.group_count),
        ("firn_index_label_names", "Distinct label names.", index.name_count),
        ("firn_index_label_pairs", "Distinct pairs of label name and value.", index.pair_count),
        ("firn_index_memory_bytes", "Memory of the index.", index.heap_bytes),
        ("firn_index_segments", "Sealed index segments.", index.segment_count),
        ("firn_index_segment_bytes", "Length of the sealed index segments.", index.segment_bytes),
        ("firn_tombstones", "Deletes that may still hide something.", stats.tombstones),
        ("firn_tombstone_bytes", "Memory of these deletes.", stats.tombstone_bytes),
        ("firn_head_rows", "Rows that are not flushed.", stats.head.row_count),
        ("firn_head_arena_bytes", "Rows as they came in.", stats.head.arena_bytes),
        (
            "firn_head_arenas_waiting",
            "Full arenas that wait for conversion.",
            stats.head.arena_count_waiting,
        ),
        (
            "firn_head_segment_bytes",
            "Rows in static and compressed form.",
            stats.head.segment_bytes,
        ),
        ("firn_head_state_bytes", "State of the row encoders.", stats.head.state_bytes),
        ("firn_head_hot_bytes", "Flushed rows that go on serving queries.", stats.head.hot_bytes),
        ("firn_head_block_bytes", "Blocks of columns, used and free.", stats.head.block_bytes),
        (
            "firn_head_free_bytes",
            "Of these, blocks that were used and are free for the next conversion.",
            stats.head.free_bytes,
        ),
        (
            "firn_head_cooling_bytes",
            "Memory that was flushed, converted or given back and stays for queries that began before.",
            stats.head.cooling_bytes,
        ),
    ] {
        text.gauge(name, help, value as f64);
    }
}

fn write_refused(stats: &Stats, text: &mut MetricsText) {
    let name = "firn_index_refused_series_total";
    text.family(name, Kind::Counter, "New series that a limit refused, once per attempt.");
    for (limit, count) in SeriesLimit::ALL.iter().zip(stats.index.refused) {
        text.sample(name, &[("limit", limit.name())], count as f64);
    }
}

fn write_requests(slow: &SlowTierStats, text: &mut MetricsText) {
    for (name, help, value) in [
        (
            "firn_slow_tier_epoch",
            "Rises whenever a server claims the slow tier; 0 before this one has.",
            slow.epoch as f64,
        ),
        (
            "firn_slow_tier_fenced",
            "1 if another server has taken the slow tier over.",
            f64::from(u8::from(slow.is_fenced)),
        ),
    ] {
        text.gauge(name, help, value);
    }
    let (requests, bytes) = ("firn_slow_tier_requests_total", "firn_slow_tier_bytes_total");
    for (name, help) in [
        (requests, "Requests to the slow tier, by what was asked of what kind of object."),
        (bytes, "Bytes read from and written to the slow tier."),
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
    for (name, help, value) in [
        ("firn_samples_written_total", "Values written.", stats.samples_written),
        ("firn_commit_seq", "Number of the newest commit.", stats.last_seq.0),
        ("firn_deletes_total", "Deletes of samples.", stats.deletes),
        ("firn_transactions_total", "Transactions that changed something.", stats.transactions),
        (
            "firn_transaction_conflicts_total",
            "Transactions refused because another one touched what they had read.",
            stats.conflicts,
        ),
        ("firn_flushes_total", "Flushes of memory to tables.", stats.flushes),
        (
            "firn_head_recycled_bytes_total",
            "Blocks of columns that were used again.",
            stats.head.recycled_bytes,
        ),
        (
            "firn_head_released_bytes_total",
            "Memory of rows that were converted, or flushed and given back.",
            stats.head.released_bytes,
        ),
        (
            "firn_head_taken_bytes_total",
            "Of these, memory that was taken from queries which would have kept too much.",
            stats.head.revoked_bytes,
        ),
        (
            "firn_head_hot_reads_total",
            "Reads of a shard that found flushed rows in memory.",
            stats.head.hot_hits,
        ),
        (
            "firn_head_gone_reads_total",
            "Reads of a shard that found flushed rows given back since the query began, and went to tables.",
            stats.head.hot_misses,
        ),
        (
            "firn_head_taken_reads_total",
            "Reads of a shard that failed because its memory was taken.",
            stats.head.revoked_reads,
        ),
        (
            "firn_reads_from_memory_total",
            "Pieces of queries that memory answered alone.",
            stats.reads_from_memory,
        ),
        (
            "firn_reads_from_tables_total",
            "Pieces of queries that tables were read for.",
            stats.reads_from_tables,
        ),
        (
            "firn_index_removed_series_total",
            "Series that left the index because no sample of them was left.",
            stats.series_removed,
        ),
        (
            "firn_maintenance_errors_total",
            "Failed pieces of background work; each is tried again.",
            stats.maintenance_errors,
        ),
        ("firn_log_entries_total", "Entries appended to the log.", log.entries),
        ("firn_log_written_bytes_total", "Bytes written to the log.", log.written_bytes),
        ("firn_log_writes_total", "Group commits, one write each.", log.writes),
        ("firn_log_syncs_total", "Group commits that were synced.", log.syncs),
        ("firn_log_failures_total", "Group commits that failed.", log.failures),
    ] {
        text.counter(name, help, value as f64);
    }
    for (name, help, value) in [
        ("firn_log_replay_bytes", "Log that a restart would read.", log.bytes),
        ("firn_log_segments", "Files of the log.", log.segments),
        ("firn_log_disk_bytes", "Length of the log's files.", log.disk_bytes),
    ] {
        text.gauge(name, help, value as f64);
    }
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
            "Tables of late data beside others.",
            tree.levels.each_ref().map(|level| level.patch_count),
        ),
        (
            "firn_tree_damaged_tables",
            "Tables that were found damaged.",
            tree.levels.each_ref().map(|level| level.damaged_count),
        ),
        (
            "firn_tree_partitions",
            "Time partitions.",
            tree.levels.each_ref().map(|level| level.partition_count),
        ),
        (
            "firn_tree_bytes",
            "Bytes of the tables.",
            tree.levels.each_ref().map(|level| level.bytes),
        ),
        (
            "firn_tree_samples",
            "Values in the tables.",
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
            "The newest sample on the slow tier: what losing this machine cannot lose.",
            ts as f64 / 1_000.0,
        );
    }
    if let Some(ms) = tree.waiting_since_ms {
        text.gauge(
            "firn_upload_waiting_since_timestamp_seconds",
            "When the oldest data was flushed that is in tables of this machine alone.",
            ms as f64 / 1_000.0,
        );
    }
    write_requests(&stats.slow_tier, text);
    text.family(
        "firn_partition_length_seconds",
        Kind::Gauge,
        "Length of new time partitions: of local tables and of those of the slow tier.",
    );
    for (tier, length) in [("fast", tree.lengths.fast), ("slow", tree.lengths.slow)] {
        text.sample(
            "firn_partition_length_seconds",
            &[("tier", tier)],
            length.as_ms() as f64 / 1_000.0,
        );
    }
    text.gauge(
        "firn_tree_cache_bytes",
        "Directories and slow-tier blocks in memory.",
        tree.cache_bytes as f64,
    );
    write_slow_cache(&tree.slow_cache, text);
    let traffic = &tree.traffic;
    let name = "firn_write_amplification";
    text.family(
        name,
        Kind::Gauge,
        "Bytes written for each byte that came first, since the start, by tier.",
    );
    for (tier, amplification) in
        [("fast", traffic.fast_write_amplification()), ("slow", traffic.slow_write_amplification())]
    {
        text.sample(name, &[("tier", tier)], amplification);
    }
    let name = "firn_read_amplification";
    text.family(
        name,
        Kind::Gauge,
        "Bytes that queries read for each byte that the values which they got take, since the start, by tier.",
    );
    for (tier, amplification) in
        [("fast", tree.fast_read_amplification()), ("slow", tree.slow_read_amplification())]
    {
        text.sample(name, &[("tier", tier)], amplification);
    }
    for (name, help, of_tiers) in [
        (
            "firn_query_read_bytes_total",
            "Blocks and directories of tables that queries read, by tier; caches apart.",
            [traffic.fast_query_bytes, traffic.slow_query_bytes],
        ),
        (
            "firn_query_table_values_total",
            "Values of tables that queries got, by tier, wherever their blocks were.",
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
        ("firn_table_read_bytes_total", "Read from local tables.", traffic.fast_read_bytes),
        ("firn_slow_tier_gets_total", "Ranges asked of the slow tier.", traffic.slow_gets),
        ("firn_slow_tier_get_bytes_total", "Read from the slow tier.", traffic.slow_get_bytes),
        (
            "firn_slow_tier_round_trips_total",
            "Calls that asked the slow tier for ranges.",
            traffic.slow_round_trips,
        ),
        ("firn_block_cache_hits_total", "Slow-tier blocks found in memory.", traffic.cache_hits),
        ("firn_block_cache_misses_total", "Slow-tier blocks fetched.", traffic.cache_misses),
        ("firn_flush_bytes_total", "Written as level-0 tables.", traffic.flush_bytes),
        ("firn_compactions_total", "Merges of local tables.", traffic.compactions),
        (
            "firn_compaction_read_bytes_total",
            "Read by merges of local tables.",
            traffic.compaction_read_bytes,
        ),
        (
            "firn_compaction_written_bytes_total",
            "Written by merges of local tables.",
            traffic.compaction_write_bytes,
        ),
        ("firn_uploads_total", "Uploads to the slow tier.", traffic.uploads),
        ("firn_upload_bytes_total", "Uploaded to the slow tier.", traffic.upload_bytes),
        ("firn_patch_merges_total", "Merges of late data on the slow tier.", traffic.patch_merges),
        (
            "firn_patch_merge_read_bytes_total",
            "Read by merges of late data.",
            traffic.patch_merge_read_bytes,
        ),
        (
            "firn_patch_merge_written_bytes_total",
            "Put by merges of late data.",
            traffic.patch_merge_write_bytes,
        ),
        (
            "firn_partition_merges_total",
            "Merges of old partitions on the slow tier.",
            traffic.partition_merges,
        ),
        (
            "firn_partition_merge_read_bytes_total",
            "Read by merges of old partitions.",
            traffic.partition_merge_read_bytes,
        ),
        (
            "firn_partition_merge_written_bytes_total",
            "Put by merges of old partitions.",
            traffic.partition_merge_write_bytes,
        ),
        (
            "firn_cleanings_total",
            "Tables written anew without what deletes hide.",
            traffic.cleanings,
        ),
        (
            "firn_cleaning_read_bytes_total",
            "Bytes of such tables before.",
            traffic.cleaning_read_bytes,
        ),
        (
            "firn_cleaning_write_bytes_total",
            "Bytes of such tables after.",
            traffic.cleaning_write_bytes,
        ),
    ] {
        text.counter(name, help, value as f64);
    }
}

fn write_slow_cache(cache: &SlowCacheStats, text: &mut MetricsText) {
    for (name, help, value) in [
        (
            "firn_slow_cache_bytes",
            "Of the local disk, for what was read of the slow tier.",
            cache.bytes,
        ),
        ("firn_slow_cache_bytes_max", "How many there may be.", cache.bytes_max),
        ("firn_slow_cache_pieces", "Blocks and directories in it.", cache.pieces),
        (
            "firn_slow_cache_off",
            "1: its device failed; until the next start all is read from the slow tier.",
            cache.is_off.into(),
        ),
    ] {
        text.gauge(name, help, value as f64);
    }
    for (name, help, value) in [
        ("firn_slow_cache_hits_total", "Blocks and directories found in it.", cache.hits),
        ("firn_slow_cache_hit_bytes_total", "Bytes of them.", cache.hit_bytes),
        (
            "firn_slow_cache_misses_total",
            "Blocks and directories asked of the slow tier.",
            cache.misses,
        ),
        ("firn_slow_cache_evictions_total", "Those that went for want of room.", cache.evictions),
        ("firn_slow_cache_written_bytes_total", "Bytes written to it.", cache.written_bytes),
        (
            "firn_slow_cache_damaged_total",
            "Blocks and directories that were not what had been written, and were read again.",
            cache.damaged,
        ),
        (
            "firn_slow_cache_device_failures_total",
            "Reads and writes that failed.",
            cache.device_failures,
        ),
        (
            "firn_slow_cache_given_way_total",
            "Times that it gave up room because the disk is nearly full.",
            cache.given_way,
        ),
    ] {
        text.counter(name, help, value as f64);
    }
}

fn write_recovery(stats: &Stats, text: &mut MetricsText) {
    let recovery = &stats.recovery;
    for (name, help, value) in [
        ("firn_recovery_entries", "Log entries read at the start.", recovery.entries),
        ("firn_recovery_rows", "Rows put back into memory at the start.", recovery.rows),
        ("firn_recovery_rows_lost", "Rows that damage of the log took.", recovery.rows_lost),
        (
            "firn_recovery_damaged_places",
            "Damaged places met at the start; the log file of the server names them.",
            recovery.damage.len() as u64,
        ),
    ] {
        text.gauge(name, help, value as f64);
    }
}
