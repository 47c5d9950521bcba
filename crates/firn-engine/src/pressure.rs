//! Pressure: what happens when memory or the log runs full, in the design's order: shrink caches,
//! recycle hot blocks, flush early, refuse writes.

use firn_model::{Error, Pool, Reservation, Result};

use crate::Engine;

impl Engine {
    /// Reserves memory for a write, after giving back what others can do without.
    ///
    /// # Errors
    /// `Busy` when even that is not enough; a flush is on its way then.
    pub(crate) fn reserve(&self, pool: Pool, bytes: u64) -> Result<Reservation> {
        if let Ok(reservation) = self.budget.reserve(pool, bytes) {
            return Ok(reservation);
        }
        self.give_back(bytes);
        self.budget.reserve(pool, bytes).inspect_err(|_| self.ask_for_flush())
    }

    /// Gives back `bytes` of caches, then of hot blocks, as far as there are any.
    pub(crate) fn give_back(&self, bytes: u64) {
        let freed = self.tree.shrink_cache(bytes);
        if freed < bytes {
            self.head.recycle(bytes - freed);
        }
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
        {
            return Err(Error::busy(
                1_000,
                format!(
                    "fast tier: {bytes} bytes of tables wait for the slow tier, the limit is {limit}; retry later"
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
