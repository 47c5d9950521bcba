//! From settings to an open database.

use std::sync::Arc;

use firn_model::{ErrorKind, Result};
use firndb::{
    ConvertOptions, Db, Env, HeadOptions, IndexOptions, LogOptions, Options, RecoveryProgress,
    ResultOptions, SyncPolicy, TreeOptions,
};

use crate::config::{Config, LogSync};

/// Opens the database that `config` names; `progress` tells how far the log is read.
///
/// # Errors
/// `Busy` when another process has the folder, `Corrupt`, `Invalid` for a newer format or a slow tier
/// that is not understood, `Unavailable`.
pub(crate) fn open(config: &Config, progress: &RecoveryProgress) -> Result<Arc<Db>> {
    let folder = config.data.display();
    let db = config
        .log_device
        .choose(&config.data)
        .and_then(|()| firndb::local_env_with_slow_tier(&config.data, &config.slow_tier))
        .and_then(|env| {
            if env.log.as_ref().is_some_and(|log| log.unit_bytes() == 8) {
                tracing::warn!(
                    "{}: no file system that maps memory (DAX), the log waits for the system as with files",
                    config.log_device
                );
            }
            if config.restore {
                restore(&env)?;
            }
            Db::open_with_progress(env, options(config), progress)
        })
        .map_err(|error| match error.kind() {
            ErrorKind::Busy { .. } => error.context(format!(
                "the database in {folder} is open in another process; stop that one or choose another \
                 folder with --data"
            )),
            _ => error.context(format!("cannot open the database in {folder}")),
        })?;
    let recovery = db.stats().recovery;
    for place in &recovery.damage {
        tracing::error!("damage met at the start: {place}");
    }
    for tail in &recovery.torn_tails {
        tracing::info!("{tail}");
    }
    // A replica is not told what its writer changes.
    if let Some(bytes) = config.result_cache_bytes.filter(|_| !config.read_only)
        && let Err(error) = db.enable_result_cache(results(config.memory_bytes_max, bytes))
    {
        // Queries go on without it; nobody should be without a database for want of a cache.
        tracing::warn!("answers are not cached: {error}");
    }
    tracing::info!(
        entries = recovery.entries,
        rows = recovery.rows,
        rows_lost = recovery.rows_lost,
        "the database is open"
    );
    Ok(Arc::new(db))
}

/// Fills an empty folder from the slow tier.
fn restore(env: &Env) -> Result<()> {
    match firndb::restore(env)? {
        Some(report) => tracing::info!(
            index_files = report.files,
            bytes = report.bytes,
            written_ms = report.written_ms,
            "restored from the slow tier, and took it over"
        ),
        None => tracing::info!("the folder has a database: nothing is restored"),
    }
    Ok(())
}

/// A result cache of `flash_bytes_max`, with slabs that fit into little memory.
fn results(memory_bytes_max: u64, flash_bytes_max: u64) -> ResultOptions {
    let mut options = ResultOptions::default();
    let store = &mut options.store;
    store.flash_bytes_max = flash_bytes_max;
    if memory_bytes_max < 1 << 30 || flash_bytes_max < 64 << 20 {
        store.slab_bytes = 128 << 10;
        store.header_bytes_max = 2 << 20;
    }
    options
}

/// What the database is opened with.
pub(crate) fn options(config: &Config) -> Options {
    let mut convert = ConvertOptions::default();
    // Active rows of all shards are at most half of what starts a flush, but where memory is very little.
    let arena_bytes = config.head_flush_bytes / 2 / config.shard_count as u64;
    let times = arena_bytes as usize / convert.arena_bytes_max;
    convert.sparse_arena_times = times.clamp(4, convert.sparse_arena_times);
    Options {
        memory_bytes_max: config.memory_bytes_max,
        shard_count: config.shard_count,
        stream_count: Some(config.stream_count),
        head_bytes_max: config.head_flush_bytes,
        log_bytes_max: config.log_bytes_max,
        flush_age_ms_max: config.flush_age_ms_max,
        future_ms_max: config.future_ms_max,
        read_only: config.read_only,
        forget_lost_index: config.forget_lost_index,
        on_idle: config.on_idle,
        log: LogOptions {
            sync: match config.log_sync {
                LogSync::Always => SyncPolicy::Always,
                LogSync::IntervalMs(ms) => SyncPolicy::IntervalMs(ms),
                LogSync::Never => SyncPolicy::Never,
            },
            ..LogOptions::default()
        },
        index: IndexOptions {
            group_by: config.group_by.clone(),
            limits: config.series,
            ..IndexOptions::default()
        },
        head: HeadOptions {
            convert,
            hot_bytes_max: config.memory_bytes_max / 8,
            cooling_bytes_max: config.memory_bytes_max / 8,
            ..HeadOptions::default()
        },
        tree: TreeOptions {
            retention_ms: config.retention_ms,
            upload_age_ms_max: config.upload_age_ms_max,
            patches_max: config.patches_max,
            fast_bytes_max: config.fast_bytes_max,
            slow_bytes_max: config.slow_bytes_max,
            slow_cache_bytes_max: config.slow_cache_bytes_max,
            ..TreeOptions::default()
        },
        // The rest is not for users to choose.
        ..Options::default()
    }
}
