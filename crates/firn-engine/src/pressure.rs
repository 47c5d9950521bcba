//! Memory and backlog pressure: reclaim memory, flush early, refuse new series, refuse writes,
//! refuse queries last.
//!
//! Refusals come in the order of the pools' limits ([`Pool::threshold_percent`]). Before it refuses
//! anything, the budget makes the engine reclaim memory. Maintenance does the same once the first
//! limit is exceeded, so that writers rarely have to wait for it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use firn_index::IndexStats;
use firn_model::{Error, LockClass, Pool, Reclaim, Reservation, Result, RwLock, reclaiming};

use crate::lock;
use crate::options::EngineOptions;
use crate::rooms::Rooms;

/// Divisor of the limit: an early flush must release at least 1/32 of it. A smaller one would make
/// small tables and help little, because something else holds the memory.
const EARLY_FLUSH_FRACTION: u64 = 32;
/// Eighths of the limit: new series, and the memory that writing them to a file takes, may hold 3/8
/// of it. At half of that a file is written, so that series still come meanwhile.
const NEW_SERIES_EIGHTHS: u64 = 3;

type Reclaimers = RwLock<Vec<Arc<dyn Reclaim>>>;

/// The caches that release memory for the engine, and the size that flushes leave.
///
/// Each list is read-locked while its caches release memory, so a cache must not add another. The
/// two lists are never locked together.
pub(crate) struct Pressure {
    /// Release memory before hot blocks do: caches of answers.
    caches: Reclaimers,
    /// Release memory last: caches without which writing is slow.
    last_resorts: Reclaimers,
    /// Bytes of head and index after the last flush.
    kept_by_flush: AtomicU64,
    /// The time of the last [`Pressure::forget_owed`].
    forgot_ms: AtomicU64,
}

impl Default for Pressure {
    fn default() -> Pressure {
        let none = |class: &'static LockClass| RwLock::new(class, Vec::new());
        Pressure {
            caches: none(&lock::CACHES),
            last_resorts: none(&lock::LAST_RESORTS),
            kept_by_flush: AtomicU64::new(0),
            forgot_ms: AtomicU64::new(0),
        }
    }
}

impl Pressure {
    pub(crate) fn add_cache(&self, cache: Arc<dyn Reclaim>) {
        self.caches.write().push(cache);
    }

    pub(crate) fn add_last_resort(&self, cache: Arc<dyn Reclaim>) {
        self.last_resorts.write().push(cache);
    }

    /// Reserves memory for a write or a job, after reclaiming the missing bytes.
    ///
    /// # Errors
    /// `Busy` if too little can be reclaimed; a flush is requested if it helps.
    pub(crate) fn reserve(&self, rooms: &Rooms, pool: Pool, bytes: u64) -> Result<Reservation> {
        let mut reservation = rooms.budget.empty(pool);
        self.grow(rooms, &mut reservation, pool, bytes)?;
        Ok(reservation)
    }

    /// As [`Pressure::reserve`] for an existing reservation of `pool`.
    ///
    /// # Errors
    /// As [`Pressure::reserve`].
    pub(crate) fn grow(
        &self,
        rooms: &Rooms,
        held: &mut Reservation,
        pool: Pool,
        bytes: u64,
    ) -> Result<()> {
        {
            // Also if enough is free: a debug build then checks this thread's locks each time.
            let _reclaiming = reclaiming();
            let missing = rooms.budget.missing_bytes(pool, bytes);
            if missing > 0 {
                self.reclaim(rooms, missing);
            }
        }
        held.grow(bytes)
    }

    /// Reclaims memory before a writer needs it. Called by maintenance.
    pub(crate) fn keep_room(&self, rooms: &Rooms) {
        let _reclaiming = reclaiming();
        let missing = rooms.budget.missing_bytes(Pool::Cache, 0);
        if missing > 0 {
            self.reclaim_first(rooms, missing);
        }
    }

    /// Reduces the room that queries leave for refused work, in proportion to the time since the
    /// last call.
    pub(crate) fn forget_owed(&self, rooms: &Rooms) {
        let now_ms = rooms.env.clock.monotonic_ns() / 1_000_000;
        let elapsed_ms = now_ms.saturating_sub(self.forgot_ms.swap(now_ms, Relaxed));
        rooms.budget.forget_owed(elapsed_ms);
    }

    /// Records the size that a flush leaves in memory: data of index files, states of encoders. A
    /// further flush releases only the memory beyond this.
    pub(crate) fn note_kept_by_flush(&self, rooms: &Rooms) {
        self.kept_by_flush.store(flushable_bytes(rooms), Relaxed);
    }

    /// Refuses new series if index files are not written as fast as series come.
    ///
    /// # Errors
    /// `Busy` if new series hold their fraction of the limit; a flush is requested.
    pub(crate) fn admit_series(&self, rooms: &Rooms) -> Result<()> {
        let waiting = waiting_bytes(&rooms.index.stats());
        let limit = new_series_limit(&rooms.options);
        if waiting < limit {
            return Ok(());
        }
        rooms.wakeup.request_flush();
        rooms.budget.note_refusal(Pool::Index);
        Err(Error::busy(
            1_000,
            format!(
                "new series are refused: {waiting} bytes of them wait for an index file, the limit \
                 is {limit}; known series are still written. Retry later, or raise --memory"
            ),
        ))
    }

    /// Refuses a write early if maintenance does not keep up with the log, or the slow tier with
    /// the fast one.
    ///
    /// # Errors
    /// `Busy` if the log has twice the size that forces a flush, or the fast tier is 25% over its
    /// limit.
    pub(crate) fn admit_write(&self, rooms: &Rooms) -> Result<()> {
        if let (bytes, Some(limit)) = rooms.tree.fast_bytes()
            && bytes > limit.saturating_add(limit / 4)
            && !mutant!(rooms, FastTierUnbounded)
        {
            return Err(Error::busy(
                1_000,
                format!(
                    "write refused: {bytes} bytes of tables wait for the slow tier, the limit is \
                     {limit} (--fast-bytes-max); retry when the slow tier has caught up"
                ),
            ));
        }
        let log_bytes = rooms.log.live_bytes();
        let limit = rooms.options.log_bytes_max.saturating_mul(2);
        if log_bytes > limit {
            rooms.wakeup.request_flush();
            return Err(Error::busy(
                1_000,
                format!(
                    "write refused: {log_bytes} bytes of log wait for a flush, the limit is \
                     {limit} (twice --log-bytes-max); retry later"
                ),
            ));
        }
        Ok(())
    }

    /// Reclaims `bytes` from all sources, the last resorts included. Returns the bytes released.
    /// The caller is [`reclaiming`].
    pub(crate) fn reclaim(&self, rooms: &Rooms, bytes: u64) -> u64 {
        let freed = self.reclaim_first(rooms, bytes);
        freed + reclaim_from(&self.last_resorts, bytes.saturating_sub(freed))
    }

    /// Reclaims `bytes` from table blocks, then caches of answers, then hot blocks. Requests a
    /// flush if they are not enough. Returns the bytes released.
    fn reclaim_first(&self, rooms: &Rooms, bytes: u64) -> u64 {
        let mut freed = rooms.tree.shrink_cache(bytes);
        freed += reclaim_from(&self.caches, bytes.saturating_sub(freed));
        if mutant!(rooms, PressureDropsRows)
            && let Some(job) = rooms.head.plan_flush()
        {
            rooms.head.flushed(&job);
        }
        if freed < bytes {
            freed += rooms.recycle(bytes - freed);
        }
        if freed < bytes {
            let more = flushable_bytes(rooms).saturating_sub(self.kept_by_flush.load(Relaxed));
            if more >= rooms.options.memory_bytes_max / EARLY_FLUSH_FRACTION {
                rooms.wakeup.request_flush();
            }
        }
        freed
    }
}

/// Whether new series take more memory than they may between flushes.
pub(crate) fn is_seal_due(rooms: &Rooms) -> bool {
    let index = rooms.index.stats();
    index.unsealed_bytes > rooms.options.new_series_bytes_max.max(index.segment_bytes / 2)
        || are_new_series_large(&index, &rooms.options)
}

/// Whether new series take half of the memory that they may. Then a flush is better than a seal: it
/// also truncates the log of their definitions, which a restart would read.
pub(crate) fn are_new_series_large(index: &IndexStats, options: &EngineOptions) -> bool {
    waiting_bytes(index) > new_series_limit(options) / 2
}

/// The memory of the series that no index file contains, until a file contains them.
fn waiting_bytes(index: &IndexStats) -> u64 {
    index.unsealed_bytes + index.seal_bytes
}

/// The memory that new series may hold until an index file contains them.
pub(crate) fn new_series_limit(options: &EngineOptions) -> u64 {
    options.memory_bytes_max / 8 * NEW_SERIES_EIGHTHS
}

fn flushable_bytes(rooms: &Rooms) -> u64 {
    let by_pool = rooms.budget.usage().by_pool;
    by_pool[Pool::Head as usize] + by_pool[Pool::Index as usize]
}

fn reclaim_from(caches: &Reclaimers, bytes: u64) -> u64 {
    let mut freed = 0;
    for cache in caches.read().iter() {
        if freed >= bytes {
            break;
        }
        freed += cache.reclaim(bytes - freed);
    }
    freed
}

impl fmt::Debug for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pressure")
            .field("kept_by_flush", &self.kept_by_flush)
            .finish_non_exhaustive()
    }
}
