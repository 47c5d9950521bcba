//! The memory budget: one limit, many pools, reservations that give back by themselves.
//!
//! Memory is reserved before it is used and before anything becomes durable, so that a write that
//! was logged cannot fail for want of memory (design: "Memory is reserved before the log").
//!
//! Each pool may take more only while all pools together are under its own *line*, a share of the limit. The lines
//! are the order of overload: what costs least to refuse is refused first, and what is refused last still has room.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

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
    /// What the process holds beside all that is reserved: the allocator's slack, stacks, buffers of connections. Only
    /// [`Budget::measure`] fills it.
    Process,
}

impl Pool {
    /// Every pool, in the order of [`BudgetUsage::by_pool`].
    pub const ALL: [Pool; 8] = [
        Pool::Head,
        Pool::Hot,
        Pool::Index,
        Pool::Cache,
        Pool::Jobs,
        Pool::Query,
        Pool::Requests,
        Pool::Process,
    ];

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
            Pool::Process => "process",
        }
    }

    /// The pool's line: how many percent of the limit may be in use, by all pools together, after this one took more.
    ///
    /// In the order of overload of the design: caches and hot blocks, new series, writes, queries. Jobs stand above
    /// all of them: a flush or a merge is what frees memory.
    pub fn line_percent(self) -> u64 {
        match self {
            Pool::Cache | Pool::Hot => 70,
            Pool::Index => 80,
            // Below the line of rows: a body that was let in shall become rows.
            Pool::Requests => 85,
            Pool::Head => 90,
            Pool::Query => 95,
            Pool::Jobs | Pool::Process => 100,
        }
    }

    /// Whether somebody is asked to give back before this pool is refused. Not for those that are reserved under locks
    /// which giving back takes; what writes and new series need is asked for before those locks.
    fn asks_others(self) -> bool {
        matches!(self, Pool::Query | Pool::Requests | Pool::Jobs)
    }

    /// What to do when this pool is refused.
    fn advice(self) -> &'static str {
        match self {
            Pool::Index => {
                "known series are written all the same; keep fewer series or raise --memory"
            }
            Pool::Query => "ask for fewer series or a shorter range, or raise --memory",
            _ => "send again later, send less, or raise --memory",
        }
    }
}

/// Who can do without memory when others need it: caches first, then what else is there twice.
pub trait GiveBack: Send + Sync {
    /// Gives about `bytes` back, or all there is; returns how many. Takes no lock that is held while memory is
    /// reserved for queries, requests or jobs.
    fn give_back(&self, bytes: u64) -> u64;
}

/// A hard limit in bytes, shared by clones.
#[derive(Clone)]
pub struct Budget(Arc<State>);

struct State {
    limit_bytes: u64,
    used_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    pools: [AtomicU64; Pool::ALL.len()],
    refused: [AtomicU64; Pool::ALL.len()],
    /// What this is a part of.
    whole: Option<Budget>,
    giver: OnceLock<Weak<dyn GiveBack>>,
    meter: OnceLock<Meter>,
}

/// Tells what the process really holds, and how much was set aside since it was asked.
struct Meter {
    resident_bytes: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    granted_bytes: AtomicU64,
    /// Held by who measures.
    is_busy: AtomicBool,
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
    /// How often each pool was refused, in the same order.
    pub refused: [u64; Pool::ALL.len()],
}

/// Bytes that are set aside for a pool; dropping it gives them back.
pub struct Reservation {
    budget: Budget,
    pool: Pool,
    bytes: u64,
}

// What the process holds beside is measured after so much of the limit was granted: that takes some microseconds.
const MEASURED_PART: u64 = 64;
// By so much it may fall from one measurement to the next.
const FALL_PART: u64 = 8;
// What is set aside ahead of its need.
const AHEAD_BYTES_MAX: u64 = 64 << 10;

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
            refused: Default::default(),
            whole,
            giver: OnceLock::new(),
            meter: OnceLock::new(),
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
            refused: Pool::ALL.map(|pool| self.0.refused[pool as usize].load(Ordering::Relaxed)),
        }
    }

    /// Counts a refusal of `pool` for a reason that its owner knows.
    pub fn note_refusal(&self, pool: Pool) {
        self.0.refused[pool as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many bytes have to be given back before `pool` may take `bytes` more.
    pub fn missing_bytes(&self, pool: Pool, bytes: u64) -> u64 {
        let used = self.0.used_bytes.load(Ordering::Relaxed);
        used.saturating_add(bytes).saturating_sub(self.0.line_bytes(pool))
    }

    /// Whether `pool` may take `bytes` more here and in all that this is a part of.
    fn has_room(&self, pool: Pool, bytes: u64) -> bool {
        let whole = self.0.whole.as_ref();
        self.missing_bytes(pool, bytes) == 0
            && whole.is_none_or(|whole| whole.has_room(pool, bytes))
    }

    /// Who is asked before queries, requests and jobs are refused. The first one stays.
    pub fn set_giver(&self, giver: Weak<dyn GiveBack>) {
        let _ = self.0.giver.set(giver);
    }

    /// Who tells what the process really holds in anonymous memory, bytes; `None` if that cannot be told. What of it is not
    /// reserved counts as [`Pool::Process`], so that all refusals go by what the machine sees. It is asked by
    /// [`Budget::measure`], and before anything is granted once a part of the limit was since. The first one stays.
    pub fn set_meter(&self, resident_bytes: impl Fn() -> Option<u64> + Send + Sync + 'static) {
        let resident_bytes = Box::new(resident_bytes);
        let (granted_bytes, is_busy) = Default::default();
        let _ = self.0.meter.set(Meter { resident_bytes, granted_bytes, is_busy });
    }

    /// Compares what is reserved with what the process holds, if there is a meter.
    ///
    /// What is not reserved counts up to half of the limit: an allocator that keeps what was freed will use it again, and
    /// that must not refuse everything for ever. It falls slowly: what is reserved and not used yet hides as much that is
    /// used and not reserved.
    pub fn measure(&self) {
        self.0.measure();
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

    /// Makes it at least `bytes`, and up to an eighth more: counting many small things takes few calls then.
    ///
    /// # Errors
    /// As [`Reservation::grow`].
    pub fn cover(&mut self, bytes: u64) -> Result<()> {
        let missing = bytes.saturating_sub(self.bytes);
        if missing == 0 {
            return Ok(());
        }
        let ahead = (self.bytes / 8).min(AHEAD_BYTES_MAX);
        // Nobody is asked to give back for what is not needed yet.
        let has_room = self.budget.has_room(self.pool, missing + ahead);
        self.grow(if has_room { missing + ahead } else { missing })
    }

    /// Counts `bytes` more that are in use already, or that must be: what was read back at the start, what a shard
    /// needs whose rows are durable. The limit may be passed by it; everybody else is refused then.
    pub fn take(&mut self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut state = Some(&self.budget);
        while let Some(Budget(budget)) = state {
            let used = budget.used_bytes.fetch_add(bytes, Ordering::Relaxed);
            budget.note_peak(used + bytes);
            budget.pools[self.pool as usize].fetch_add(bytes, Ordering::Relaxed);
            state = budget.whole.as_ref();
        }
        self.bytes += bytes;
    }

    /// Gives `bytes` back, at most all.
    pub fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        if bytes > 0 {
            self.bytes -= bytes;
            self.budget.0.give_back(self.pool, bytes);
        }
    }

    /// Takes `bytes` (at most all) out into a reservation of their own.
    pub fn split(&mut self, bytes: u64) -> Reservation {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Reservation { budget: self.budget.clone(), pool: self.pool, bytes }
    }

    /// Puts `other` into this one; its bytes now count for this pool.
    pub fn merge(&mut self, mut other: Reservation) {
        let bytes = other.bytes;
        self.move_from(&mut other, bytes);
    }

    /// Takes `bytes` (at most all) out of `other`; they now count for this pool. Within a pool nothing is touched
    /// that threads share.
    pub fn move_from(&mut self, other: &mut Reservation, bytes: u64) {
        debug_assert!(Arc::ptr_eq(&self.budget.0, &other.budget.0), "reservations of two budgets");
        let bytes = bytes.min(other.bytes);
        other.bytes -= bytes;
        self.bytes += bytes;
        if self.pool == other.pool {
            return;
        }
        let mut state = Some(&self.budget);
        while let Some(Budget(budget)) = state {
            budget.pools[other.pool as usize].fetch_sub(bytes, Ordering::Relaxed);
            budget.pools[self.pool as usize].fetch_add(bytes, Ordering::Relaxed);
            state = budget.whole.as_ref();
        }
    }

    /// The limit of the budget that it is of.
    pub fn limit_bytes(&self) -> u64 {
        self.budget.0.limit_bytes
    }

    /// How many bytes are set aside.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl State {
    /// Lines are of the whole; a part has nothing but its limit.
    fn line_bytes(&self, pool: Pool) -> u64 {
        match self.whole {
            None if self.limit_bytes < u64::MAX => {
                (u128::from(self.limit_bytes) * u128::from(pool.line_percent()) / 100) as u64
            }
            _ => self.limit_bytes,
        }
    }

    fn measure(&self) {
        let Some(meter) = self.meter.get() else { return };
        if meter.is_busy.swap(true, Ordering::Acquire) {
            return;
        }
        meter.granted_bytes.store(0, Ordering::Relaxed);
        if let Some(resident) = (meter.resident_bytes)() {
            let before = self.pools[Pool::Process as usize].load(Ordering::Relaxed);
            let reserved = self.used_bytes.load(Ordering::Relaxed).saturating_sub(before);
            let beside = resident.saturating_sub(reserved).min(self.limit_bytes / 2);
            let beside = beside.max(before - before / FALL_PART);
            self.pools[Pool::Process as usize].store(beside, Ordering::Relaxed);
            if beside > before {
                self.used_bytes.fetch_add(beside - before, Ordering::Relaxed);
            } else {
                self.used_bytes.fetch_sub(before - beside, Ordering::Relaxed);
            }
        }
        meter.is_busy.store(false, Ordering::Release);
    }

    fn take(&self, pool: Pool, bytes: u64) -> Result<()> {
        if let Some(meter) = self.meter.get() {
            let granted = meter.granted_bytes.fetch_add(bytes, Ordering::Relaxed);
            if granted.saturating_add(bytes) > self.limit_bytes / MEASURED_PART {
                self.measure();
            }
        }
        if self.try_take(pool, bytes)? {
            return Ok(());
        }
        if pool.asks_others()
            && let Some(giver) = self.giver.get().and_then(Weak::upgrade)
        {
            let used = self.used_bytes.load(Ordering::Relaxed);
            giver.give_back(used.saturating_add(bytes).saturating_sub(self.line_bytes(pool)));
            if self.try_take(pool, bytes)? {
                return Ok(());
            }
        }
        self.refused[pool as usize].fetch_add(1, Ordering::Relaxed);
        Err(self.refusal(pool, bytes))
    }

    /// `false` if there is no room here.
    ///
    /// # Errors
    /// If there is none in the whole.
    fn try_take(&self, pool: Pool, bytes: u64) -> Result<bool> {
        let line = self.line_bytes(pool);
        let granted = self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&sum| sum <= line)
        });
        let Ok(used) = granted else { return Ok(false) };
        if let Some(whole) = &self.whole
            && let Err(error) = whole.0.take(pool, bytes)
        {
            self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(error);
        }
        self.note_peak(used + bytes);
        self.pools[pool as usize].fetch_add(bytes, Ordering::Relaxed);
        Ok(true)
    }

    /// Looks first: writing what all threads share costs each of them.
    fn note_peak(&self, used_bytes: u64) {
        if used_bytes > self.peak_bytes.load(Ordering::Relaxed) {
            self.peak_bytes.fetch_max(used_bytes, Ordering::Relaxed);
        }
    }

    fn give_back(&self, pool: Pool, bytes: u64) {
        self.pools[pool as usize].fetch_sub(bytes, Ordering::Relaxed);
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.0.give_back(pool, bytes);
        }
    }

    fn refusal(&self, pool: Pool, bytes: u64) -> Error {
        let (name, used) = (pool.name(), self.used_bytes.load(Ordering::Relaxed));
        let limit = self.limit_bytes;
        if self.whole.is_some() {
            return Error::too_large(format!(
                "the query wants {bytes} bytes more, {used} of its {limit} are in use; ask for fewer series or a \
                 shorter range, or raise --query-memory"
            ));
        }
        let of = |pool: &Pool| self.pools[*pool as usize].load(Ordering::Relaxed);
        let most = Pool::ALL.into_iter().max_by_key(of).unwrap_or(pool);
        Error::busy(
            1_000,
            format!(
                "memory budget: {name} wants {bytes} bytes more, {used} of {limit} are in use, most of it for {} \
                 ({}), and {name} is refused over {} percent; {}",
                most.name(),
                of(&most),
                pool.line_percent(),
                pool.advice()
            ),
        )
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
    fn what_is_covered_is_reserved_in_steps_up_to_the_last_byte() {
        let budget = Budget::new(10_000);
        let mut held = budget.empty(Pool::Query);
        let mut steps = 0;
        for bytes in 1..=9_500 {
            let before = held.bytes();
            held.cover(bytes).unwrap();
            assert!((bytes..=bytes + bytes / 8).contains(&held.bytes()), "{held:?} for {bytes}");
            steps += u64::from(held.bytes() > before && bytes < 8_000);
        }
        assert!(steps < 100, "{steps} steps");
        assert_eq!(budget.usage().refused[Pool::Query as usize], 0);
        held.cover(5).unwrap();
        assert_eq!(held.bytes(), 9_500, "the line of queries, and nothing given back");
        assert!(held.cover(9_501).unwrap_err().is_retriable());
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

    #[test]
    fn overload_refuses_in_the_order_of_the_design() {
        let budget = Budget::new(1_000);
        let order = [
            Pool::Hot,
            Pool::Cache,
            Pool::Index,
            Pool::Requests,
            Pool::Head,
            Pool::Query,
            Pool::Jobs,
        ];
        assert!(order.is_sorted_by_key(|pool| pool.line_percent()));
        for pool in order {
            let (line, mut filled) = (10 * pool.line_percent(), budget.empty(Pool::Process));
            filled.take(line);
            assert!(budget.reserve(pool, 1).is_err(), "{pool:?} over its line");
            filled.shrink(1);
            drop(budget.reserve(pool, 1).unwrap());
            assert_eq!(budget.missing_bytes(pool, 11), 10);
            assert_eq!(budget.usage().refused[pool as usize], 1);
        }
    }

    #[test]
    fn what_the_process_holds_beside_counts() {
        let budget = Budget::new(6_400);
        let resident = Arc::new(AtomicU64::new(2_000));
        let seen = Arc::clone(&resident);
        budget.set_meter(move || Some(seen.load(Ordering::Relaxed)));
        let beside = || budget.usage().by_pool[Pool::Process as usize];
        let head = budget.reserve(Pool::Head, 3_000).unwrap();
        assert_eq!(beside(), 2_000, "measured before so much is granted");
        budget.measure();
        assert_eq!(beside(), 1_750, "all of it is reserved by now; it falls slowly");
        (0..50).for_each(|_| budget.measure());
        assert!(beside() < 8, "{}", beside());
        resident.store(5_000, Ordering::Relaxed);
        // One grant is small, a hundred are not.
        let small: Vec<_> = (0..101).map(|_| budget.reserve(Pool::Head, 1).unwrap()).collect();
        assert!((1_890..=2_000).contains(&beside()), "{}", beside());
        let refused = budget.reserve(Pool::Head, 1_000).unwrap_err();
        assert!(refused.to_string().contains("most of it for head"), "{refused}");
        resident.store(50_000, Ordering::Relaxed);
        budget.measure();
        assert_eq!(beside(), 3_200, "half of the limit stays for what is reserved");
        drop((head, small));
        resident.store(0, Ordering::Relaxed);
        (0..100).for_each(|_| budget.measure());
        assert!(budget.usage().used_bytes < 8);
    }

    struct Cache(std::sync::Mutex<Reservation>);

    impl GiveBack for Cache {
        fn give_back(&self, bytes: u64) -> u64 {
            let mut held = self.0.lock().unwrap();
            let before = held.bytes();
            held.shrink(bytes);
            before - held.bytes()
        }
    }

    #[test]
    fn queries_are_refused_only_after_others_gave_back() {
        let budget = Budget::new(1_000);
        let cache =
            Arc::new(Cache(std::sync::Mutex::new(budget.reserve(Pool::Cache, 700).unwrap())));
        let giver: Weak<Cache> = Arc::downgrade(&cache);
        budget.set_giver(giver);
        let query = budget.part(900).reserve(Pool::Query, 800).unwrap();
        assert_eq!((query.bytes(), cache.0.lock().unwrap().bytes()), (800, 150));
        assert!(budget.reserve(Pool::Head, 200).is_err(), "writes ask before they take locks");
        assert!(budget.reserve(Pool::Query, 151).is_err());
        assert_eq!(cache.0.lock().unwrap().bytes(), 0);
    }

    #[test]
    fn what_is_there_already_counts_over_the_limit() {
        let budget = Budget::new(100);
        let mut index = budget.empty(Pool::Index);
        index.take(150);
        assert_eq!(budget.usage().used_bytes, 150);
        assert!(budget.reserve(Pool::Jobs, 1).is_err());
        index.shrink(100);
        assert!(budget.reserve(Pool::Jobs, 1).is_ok());
    }
}
