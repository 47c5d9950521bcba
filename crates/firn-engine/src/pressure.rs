//! Pressure: what happens when memory or the log runs full, in the design's order: shrink caches, recycle hot blocks,
//! flush early, refuse new series, refuse writes, refuse queries last.
//!
//! The order of the refusals is that of the pools' lines ([`Pool::threshold_percent`]). Before anything is refused the
//! budget asks here for what can be had ([`Reclaim`]); over the first line the maintenance does so by itself, so that
//! those who come next rarely have to.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use firn_model::{Error, Pool, Reclaim, Reservation, Result};
use parking_lot::RwLock;

use crate::Engine;
use crate::planted::Planted;

/// A flush is made early for at least this part of the limit: smaller ones would make many small tables and help
/// nobody, because something else holds the memory.
const EARLY_FLUSH_PART: u64 = 32;
/// New series may hold this part of the limit until they are in an index file.
const NEW_SERIES_PART: u64 = 4;

impl Engine {
    /// Who gives memory back before hot blocks go: a cache of answers.
    pub fn add_cache(&self, cache: Arc<dyn Reclaim>) {
        self.caches.write().push(cache);
    }

    /// Who gives memory back at last, before anything is refused: a cache that writing would be slow without.
    pub fn add_reclaimer(&self, giver: Arc<dyn Reclaim>) {
        self.givers.write().push(giver);
    }

    /// Reserves memory for a write or a job, after giving back what others can do without.
    ///
    /// # Errors
    /// `Busy` when even that is not enough; a flush is on its way if it helps.
    pub(crate) fn reserve(&self, pool: Pool, bytes: u64) -> Result<Reservation> {
        let mut reservation = self.budget.empty(pool);
        self.grow(&mut reservation, pool, bytes)?;
        Ok(reservation)
    }

    /// As [`Engine::reserve`] for a reservation of `pool`.
    ///
    /// # Errors
    /// As [`Engine::reserve`].
    pub(crate) fn grow(&self, held: &mut Reservation, pool: Pool, bytes: u64) -> Result<()> {
        let missing = self.budget.missing_bytes(pool, bytes);
        if missing > 0 {
            self.reclaim(missing);
        }
        held.grow(bytes)
    }

    /// Makes room before anybody has to ask for it: called by the maintenance.
    pub(crate) fn keep_room(&self) {
        let missing = self.budget.missing_bytes(Pool::Cache, 0);
        if missing > 0 {
            self.give_back_first(missing);
        }
    }

    /// What a flush leaves in memory: what index files need, the states of encoders. More than this can be flushed away.
    pub(crate) fn note_kept_by_flush(&self) {
        self.kept_by_flush.store(self.flushable_bytes(), Relaxed);
    }

    /// Bytes of series that are in no index file yet.
    pub(crate) fn new_series_bytes(&self) -> u64 {
        self.index.stats().unsealed_bytes
    }

    /// Refuses new series when index files are not written as fast as they come.
    ///
    /// # Errors
    /// `Busy` when those that wait hold their part of the limit; a file is on its way.
    pub(crate) fn admit_series(&self) -> Result<()> {
        let (waiting, limit) =
            (self.new_series_bytes(), self.options.memory_bytes_max / NEW_SERIES_PART);
        if waiting < limit {
            return Ok(());
        }
        self.ask_for_flush();
        self.budget.note_refusal(Pool::Index);
        Err(Error::busy(
            1_000,
            format!(
                "memory budget: {waiting} bytes of new series wait for an index file, the limit is {limit}; known series are \
                 written all the same; send again later, or raise --memory"
            ),
        ))
    }

    /// Gives back `bytes` of table blocks, then of caches of answers, then of hot blocks; asks for a flush if they are not
    /// enough.
    fn give_back_first(&self, bytes: u64) -> u64 {
        let mut freed = self.tree.shrink_cache(bytes);
        freed += ask_each(&self.caches, bytes.saturating_sub(freed));
        if self.planted(Planted::PressureDropsRows)
            && let Some(job) = self.head.plan_flush()
        {
            self.head.flushed(&job);
        }
        if freed < bytes {
            freed += self.recycle(bytes - freed);
        }
        if freed < bytes {
            let more = self.flushable_bytes().saturating_sub(self.kept_by_flush.load(Relaxed));
            if more >= self.options.memory_bytes_max / EARLY_FLUSH_PART {
                self.ask_for_flush();
            }
        }
        freed
    }

    fn flushable_bytes(&self) -> u64 {
        let by_pool = self.budget.usage().by_pool;
        by_pool[Pool::Head as usize] + by_pool[Pool::Index as usize]
    }

    /// Refuses a write early when maintenance does not keep up with the log, or the slow tier with
    /// the fast one.
    ///
    /// # Errors
    /// `Busy` when twice the log waits for a flush that a flush is forced at, or when the fast tier is
    /// a quarter over its limit.
    pub(crate) fn admit(&self) -> Result<()> {
        if let (bytes, Some(limit)) = self.tree.fast_bytes()
            && bytes > limit.saturating_add(limit / 4)
            && !self.planted(Planted::FastTierUnbounded)
        {
            return Err(Error::busy(
                1_000,
                format!(
                    "fast tier: {bytes} bytes of tables wait for the slow tier, the limit is {limit} (--fast-bytes-max); \
                     retry later, writes are taken again when the slow tier has caught up"
                ),
            ));
        }
        let log_bytes = self.log.stats().bytes;
        let limit = self.options.log_bytes_max.saturating_mul(2);
        if log_bytes > limit {
            self.ask_for_flush();
            return Err(Error::busy(
                1_000,
                format!(
                    "log: {log_bytes} bytes wait for a flush, the limit is {limit}; retry later"
                ),
            ));
        }
        Ok(())
    }
}

impl Reclaim for Engine {
    fn reclaim(&self, bytes: u64) -> u64 {
        let freed = self.give_back_first(bytes);
        freed + ask_each(&self.givers, bytes.saturating_sub(freed))
    }
}

fn ask_each(givers: &RwLock<Vec<Arc<dyn Reclaim>>>, bytes: u64) -> u64 {
    let mut freed = 0;
    for giver in givers.read().iter() {
        if freed >= bytes {
            break;
        }
        freed += giver.reclaim(bytes - freed);
    }
    freed
}
