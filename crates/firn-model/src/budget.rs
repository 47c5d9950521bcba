//! The memory budget: one limit, many pools, reservations that give back by themselves.
//!
//! Memory is reserved before it is used and before anything becomes durable, so that a write that
//! was logged cannot fail for want of memory (design: "Memory is reserved before the log").

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, Result};

/// Who uses memory. Pools share one limit; they are counted apart for metrics and for pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Active rows, static runs and unflushed chunks.
    Head,
    /// Flushed blocks that go on serving queries; given back first.
    Hot,
    /// Symbols, label sets, posting lists.
    Index,
    /// Block caches and table metadata.
    Cache,
    /// Flush, compaction, upload.
    Jobs,
    /// Queries.
    Query,
    /// Request bodies and decoded requests.
    Requests,
}

impl Pool {
    /// Every pool, in the order of [`BudgetUsage::by_pool`].
    pub const ALL: [Pool; 7] =
        [Pool::Head, Pool::Hot, Pool::Index, Pool::Cache, Pool::Jobs, Pool::Query, Pool::Requests];

    /// The pool's name in metrics and messages.
    pub fn name(self) -> &'static str {
        match self {
            Pool::Head => "head",
            Pool::Hot => "hot",
            Pool::Index => "index",
            Pool::Cache => "cache",
            Pool::Jobs => "jobs",
            Pool::Query => "query",
            Pool::Requests => "requests",
        }
    }
}

/// A hard limit in bytes, shared by clones.
#[derive(Clone)]
pub struct Budget(Arc<State>);

struct State {
    limit_bytes: u64,
    used_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    pools: [AtomicU64; Pool::ALL.len()],
    /// What this is a part of.
    whole: Option<Budget>,
}

/// A moment's use of a [`Budget`].
#[derive(Clone, Copy, Debug)]
pub struct BudgetUsage {
    /// The limit.
    pub limit_bytes: u64,
    /// Reserved by all pools together.
    pub used_bytes: u64,
    /// The most that was reserved at one time.
    pub peak_bytes: u64,
    /// Reserved by each pool, in the order of [`Pool::ALL`].
    pub by_pool: [u64; Pool::ALL.len()],
}

/// Bytes that are set aside for a pool; dropping it gives them back.
pub struct Reservation {
    budget: Budget,
    pool: Pool,
    bytes: u64,
}

impl Budget {
    /// A budget of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Budget {
        Budget::make(limit_bytes, None)
    }

    /// A part of this budget that may use up to `limit_bytes` of it: what one query may take. A reservation there
    /// counts in both.
    pub fn part(&self, limit_bytes: u64) -> Budget {
        Budget::make(limit_bytes, Some(self.clone()))
    }

    fn make(limit_bytes: u64, whole: Option<Budget>) -> Budget {
        Budget(Arc::new(State {
            limit_bytes,
            used_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            pools: Default::default(),
            whole,
        }))
    }

    /// No limit: for tests and tools.
    pub fn unlimited() -> Budget {
        Budget::new(u64::MAX)
    }

    /// Sets `bytes` aside.
    ///
    /// # Errors
    /// `Busy` when the limit would be passed; the message names pool, size and limit.
    pub fn reserve(&self, pool: Pool, bytes: u64) -> Result<Reservation> {
        let mut reservation = self.empty(pool);
        reservation.grow(bytes)?;
        Ok(reservation)
    }

    /// A reservation of nothing that can grow.
    pub fn empty(&self, pool: Pool) -> Reservation {
        Reservation { budget: self.clone(), pool, bytes: 0 }
    }

    /// The use at this moment; pools are read one after the other.
    pub fn usage(&self) -> BudgetUsage {
        BudgetUsage {
            limit_bytes: self.0.limit_bytes,
            used_bytes: self.0.used_bytes.load(Ordering::Relaxed),
            peak_bytes: self.0.peak_bytes.load(Ordering::Relaxed),
            by_pool: Pool::ALL.map(|pool| self.0.pools[pool as usize].load(Ordering::Relaxed)),
        }
    }
}

impl Reservation {
    /// Sets `bytes` more aside.
    ///
    /// # Errors
    /// `Busy` when the limit would be passed, `TooLarge` when it is that of a part; the reservation stays as it was.
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        self.budget.0.take(self.pool, bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives `bytes` back, at most all.
    pub fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.budget.0.give_back(self.pool, bytes);
    }

    /// Takes `bytes` (at most all) out into a reservation of their own.
    pub fn split(&mut self, bytes: u64) -> Reservation {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Reservation { budget: self.budget.clone(), pool: self.pool, bytes }
    }

    /// Puts `other` into this one; its bytes now count for this pool.
    pub fn merge(&mut self, mut other: Reservation) {
        let bytes = std::mem::take(&mut other.bytes);
        debug_assert!(Arc::ptr_eq(&self.budget.0, &other.budget.0), "reservations of two budgets");
        self.bytes += bytes;
        let mut state = Some(&self.budget);
        while let Some(Budget(budget)) = state {
            budget.pools[other.pool as usize].fetch_sub(bytes, Ordering::Relaxed);
            budget.pools[self.pool as usize].fetch_add(bytes, Ordering::Relaxed);
            state = budget.whole.as_ref();
        }
    }

    /// How many bytes are set aside.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl State {
    fn take(&self, pool: Pool, bytes: u64) -> Result<()> {
        let granted = self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&sum| sum <= self.limit_bytes)
        });
        let Ok(used) = granted else { return Err(self.refusal(pool, bytes)) };
        if let Some(whole) = &self.whole
            && let Err(error) = whole.0.take(pool, bytes)
        {
            self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(error);
        }
        self.peak_bytes.fetch_max(used + bytes, Ordering::Relaxed);
        self.pools[pool as usize].fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn give_back(&self, pool: Pool, bytes: u64) {
        self.pools[pool as usize].fetch_sub(bytes, Ordering::Relaxed);
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.0.give_back(pool, bytes);
        }
    }

    fn refusal(&self, pool: Pool, bytes: u64) -> Error {
        let (pool, used) = (pool.name(), self.used_bytes.load(Ordering::Relaxed));
        let limit = self.limit_bytes;
        match self.whole {
            Some(_) => Error::too_large(format!(
                "the query wants {bytes} bytes more, {used} of its {limit} are in use; ask for fewer series or a \
                 shorter range, or raise --query-memory"
            )),
            None => Error::busy(
                1_000,
                format!(
                    "memory budget: {pool} wants {bytes} bytes more, {used} of {limit} are in use; \
                     raise --memory or send less"
                ),
            ),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.usage().fmt(f)
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes for {}", self.bytes, self.pool.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invariant_8_reservations_never_pass_the_limit_and_give_back() {
        let budget = Budget::new(100);
        let mut head = budget.reserve(Pool::Head, 60).unwrap();
        let refused = budget.reserve(Pool::Query, 41).unwrap_err();
        assert!(refused.is_retriable());
        assert!(refused.to_string().contains("query wants 41 bytes more, 60 of 100"));
        let part = head.split(20);
        let mut hot = budget.empty(Pool::Hot);
        hot.merge(part);
        assert_eq!(budget.usage().by_pool[Pool::Hot as usize], 20);
        assert_eq!(budget.usage().used_bytes, 60);
        drop(head);
        assert_eq!(budget.usage().used_bytes, 20);
        drop(hot);
        assert_eq!(budget.usage().used_bytes, 0);
        assert_eq!(budget.usage().peak_bytes, 60);
    }

    #[test]
    fn a_part_counts_in_the_whole() {
        let budget = Budget::new(100);
        let part = budget.part(50);
        let mut first = part.reserve(Pool::Query, 30).unwrap();
        assert_eq!(budget.usage().by_pool[Pool::Query as usize], 30);
        let refused = first.grow(21).unwrap_err();
        assert_eq!(refused.kind(), &crate::ErrorKind::TooLarge);
        let _rest = budget.reserve(Pool::Head, 60).unwrap();
        assert!(first.grow(15).unwrap_err().is_retriable(), "the whole is used up");
        assert_eq!((part.usage().used_bytes, part.usage().peak_bytes), (30, 30));
        drop(first);
        assert_eq!((part.usage().used_bytes, budget.usage().used_bytes), (0, 60));
    }
}
