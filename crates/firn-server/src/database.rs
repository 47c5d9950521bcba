//! From settings to an open database.

use std::sync::Arc;

use firn_model::{Error, ErrorKind, Result};
use firndb::{
    ConvertOptions, Db, Env, HeadOptions, IndexOptions, LogOptions, Options, RecoveryProgress,
    ResultOptions, SyncPolicy, TreeOptions,
};

use crate::config::{LogSync, ServeConfig, Span};
use crate::{machine, snapshots};

/// Opens the database of `config`. `progress` shows how much of the log has been read. Idle threads
/// call `on_idle`.
///
/// # Errors
/// `Busy` when another process has the folder, `Corrupt`, `Invalid` for a newer format or a slow
/// tier that is not understood, `Unavailable`.
pub(crate) fn open(
    config: &ServeConfig,
    on_idle: fn(),
    progress: &RecoveryProgress,
) -> Result<Arc<Db>> {
    let folder = &config.data;
    let device = &config.log_device.0;
    machine::warn_if_readable(folder, "fast");
    let db = device
        .choose(&config.data)
        .and_then(|()| {
            let slow_tier = config.slow_tier.location();
            match config.read_only.is_on() {
                true => firndb::replica_env(&config.data, slow_tier),
                false => firndb::local_env_with_slow_tier(&config.data, slow_tier),
            }
        })
        .and_then(|env| {
            if env.log.as_ref().is_some_and(|log| log.unit_bytes() == 8) {
                tracing::warn!(
                    "{device}: the file system does not map memory (DAX); the log is synced as \
                     a file"
                );
            }
            if config.restore.is_on() {
                restore(&env)?;
            }
            Db::open_with_progress(env, options(config, on_idle), progress)
        })
        .map_err(|error| match error.kind() {
            ErrorKind::Busy { .. } => error.context(format!(
                "the database in {folder} is open in another process; stop that process or \
                 choose another folder with --data"
            )),
            _ => error.context(format!("cannot open the database in {folder}")),
        })?;
    snapshots::remove_unfinished(folder);
    let recovery = db.stats().recovery;
    for damage in &recovery.damage {
        tracing::error!("found damage while opening: {damage}");
    }
    for tail in &recovery.torn_tails {
        tracing::info!("{tail}");
    }
    if let Some(memory) = config.memory_for_shards(db.shard_count()) {
        return Err(Error::invalid(format!(
            "the database in {folder} has {} shards and keeps them: it needs --memory {memory} or \
             more",
            db.shard_count()
        )));
    }
    if db.shard_count() != config.shards.get() && !config.read_only.is_on() {
        tracing::warn!(
            "--shards: {} has no effect: the database was created with {} shards and keeps them; \
             set --shards={1}",
            config.shards,
            db.shard_count()
        );
    }
    if let Some(bytes) = config.result_cache_bytes() {
        if let Err(error) = db.enable_result_cache(results(config.memory_bytes(), bytes)) {
            // Queries work without the cache, so its failure does not stop the database.
            tracing::warn!("results are not cached: {error}");
        }
    } else if config.drops_result_cache() {
        tracing::warn!(
            "results are not cached: --slow-bytes-max drops data at times that cached results \
             cannot know; limit the history by --retention instead, or set --result-cache=0"
        );
    }
    tracing::info!(
        entries = recovery.entries,
        rows = recovery.rows,
        rows_lost = recovery.rows_lost,
        samples_lost = recovery.samples_lost,
        damaged_places = recovery.damage.len(),
        "database is open"
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
            "restored the database from the slow tier and took the slow tier over"
        ),
        None => tracing::info!("the folder has a database; nothing is restored"),
    }
    Ok(())
}

/// A result cache of `flash_bytes_max`, with small slabs where memory or disk space is small.
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

/// The options of the database. Idle threads call `on_idle`.
pub(crate) fn options(config: &ServeConfig, on_idle: fn()) -> Options {
    let mut convert = ConvertOptions::default();
    // Active rows of all shards take at most half of the bytes that start a flush, except where
    // memory is very small.
    let arena_bytes = config.head_flush_bytes.0 / 2 / config.shards.get() as u64;
    let times = arena_bytes as usize / convert.arena_bytes_max;
    convert.sparse_arena_times = times.clamp(4, convert.sparse_arena_times);
    Options {
        memory_bytes_max: config.memory_bytes(),
        shard_count: config.shards.get(),
        stream_count: Some(config.log_streams.to_usize()),
        head_bytes_max: config.head_flush_bytes.0,
        log_bytes_max: config.log_bytes_max.0,
        reader_log_bytes_max: config.remote_write_log_max.0,
        restart_ms_max: config.restart_time_max.ms(),
        flush_age_ms_max: config.flush_age_max.ms(),
        future_ms_max: config.future_max.ms(),
        read_only: config.read_only.is_on(),
        forget_lost_index: config.forget_lost_index.is_on(),
        forget_lost_log: config.forget_lost_log.is_on(),
        on_idle,
        log: LogOptions {
            sync: match config.log_sync {
                LogSync::Always => SyncPolicy::Always,
                LogSync::IntervalMs(ms) => SyncPolicy::IntervalMs(ms),
                LogSync::Never => SyncPolicy::Never,
            },
            ..LogOptions::default()
        },
        index: IndexOptions {
            group_by: config.group_by.0.clone(),
            limits: config.series_limits(),
            ..IndexOptions::default()
        },
        head: HeadOptions {
            convert,
            hot_bytes_max: config.memory_bytes() / 8,
            cooling_bytes_max: config.memory_bytes() / 8,
            ..HeadOptions::default()
        },
        tree: TreeOptions {
            retention_ms: config.retention.get().map(Span::ms),
            upload_age_ms_max: config.upload_age_max.ms(),
            patches_max: config.patches_max.to_usize(),
            fast_bytes_max: config.fast_bytes_max.get().map(|size| size.0),
            slow_bytes_max: config.slow_bytes_max.get().map(|size| size.0),
            slow_cache_bytes_max: config.slow_cache_bytes_max.get().map_or(0, |size| size.0),
            ..TreeOptions::default()
        },
        // The other options are not for users to choose.
        ..Options::default()
    }
}
