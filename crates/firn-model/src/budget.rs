//! The memory budget: one limit, several pools, and reservations that release their bytes on drop.
//!
//! Memory is reserved before it is used and before data becomes durable. A logged write therefore
//! cannot fail for lack of memory.
//!
//! Each pool has a *threshold*, a share of the limit. A pool is granted memory only while the use
//! of all pools together stays at or below its threshold. The thresholds define the order of
//! overload: the pool that is cheapest to refuse has the lowest threshold.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use crate::lock_order::{assert_may_reclaim, reclaiming};
use crate::{Error, ErrorKind, Result};

/// The memory of a block of the allocator, beside its contents: its header and its rounding.
pub const HEAP_BLOCK_BYTES: usize = 16;

/// A kind of memory user. Pools share one limit; metrics and thresholds are per pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Active rows, static runs and unflushed chunks.
    Head,
    /// Flushed blocks that still serve queries; reclaimed first.
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
    /// Memory of the process that no pool has reserved: allocator slack, thread stacks, connection
    /// buffers. Only [`Budget::measure`] sets it.
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

    /// The pool's threshold: the percentage of the limit that all pools together may use after this
    /// pool is granted more.
    ///
    /// From the lowest: caches and hot blocks, new series, request bodies, writes, queries. Jobs
    /// have the highest threshold, because flushes and merges free memory. Queries leave them a
    /// part of the limit: queries that follow one another without a pause would starve them. They
    /// would starve writes and large merges too, so their threshold falls after one was refused. No
    /// pool fills the limit, because some memory is used before it is measured.
    pub fn threshold_percent(self) -> u64 {
        match self {
            Pool::Cache | Pool::Hot => 70,
            Pool::Index => 80,
            // Below the threshold of rows, because an admitted body becomes rows.
            Pool::Requests => 82,
            Pool::Head => 85,
            Pool::Query => 88,
            Pool::Jobs => 96,
            Pool::Process => 100,
        }
    }

    /// Whether memory is reclaimed from other pools before this pool is refused. Pools that are
    /// reserved while locks are held that reclaiming needs are excluded; for writes and new series
    /// the engine reclaims before it takes those locks.
    fn reclaims_first(self) -> bool {
        matches!(self, Pool::Query | Pool::Requests | Pool::Jobs)
    }

    /// Whether queries leave its memory free after a refusal.
    fn is_owed(self) -> bool {
        matches!(self, Pool::Index | Pool::Requests | Pool::Head | Pool::Jobs)
    }

    /// The advice in the error when this pool is refused, beside that to raise the limit.
    fn advice(self) -> &'static str {
        match self {
            Pool::Index => "known series are still written; keep fewer series",
            Pool::Query => "query fewer series or a shorter range",
            _ => "retry later, send less",
        }
    }
}

/// An owner of memory that others may need more: caches first, then data that exists elsewhere.
pub trait Reclaim: Send + Sync {
    /// Releases about `bytes`, or as much as it can, and returns the number of bytes released. Must
    /// not take a lock that is held while memory is reserved for queries, requests or jobs; debug
    /// builds check it for watched locks ([`crate::LockClass`]).
    fn reclaim(&self, bytes: u64) -> u64;
}

/// A hard limit in bytes. Clones share it.
#[derive(Clone)]
pub struct Budget(Arc<Shared>);

struct Shared {
    limit_bytes: u64,
    /// The sum of the bytes of all [`RaisedLimit`]s.
    raised_bytes: AtomicU64,
    /// The setting that raises the limit.
    setting: Option<&'static str>,
    used_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    pools: [AtomicU64; Pool::ALL.len()],
    refused: [AtomicU64; Pool::ALL.len()],
    /// Reserved bytes that are not used yet, see [`Budget::set_standby`].
    standby_bytes: AtomicU64,
    /// Bytes that queries leave free for a recently refused write or job: queries that follow one
    /// another without a pause would starve the others.
    owed_bytes: AtomicU64,
    /// The budget that this one is a part of.
    whole: Option<Budget>,
    /// Whether a reservation may reclaim memory of others.
    reclaims: bool,
    reclaimer: OnceLock<Weak<dyn Reclaim>>,
    meter: OnceLock<Meter>,
}

/// Reports the memory that the process really holds.
struct Meter {
    resident_bytes: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    /// Bytes granted since the last measurement.
    granted_bytes: AtomicU64,
    /// True while one thread measures.
    is_busy: AtomicBool,
}

/// See [`Budget::raise`].
#[derive(Debug)]
pub struct RaisedLimit {
    budget: Budget,
    bytes: u64,
}

impl Drop for RaisedLimit {
    fn drop(&mut self) {
        self.budget.0.raised_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A reading of a [`Budget`]'s use.
#[derive(Clone, Copy, Debug)]
pub struct BudgetUsage {
    /// The limit.
    pub limit_bytes: u64,
    /// Reserved by all pools together.
    pub used_bytes: u64,
    /// The highest value of `used_bytes` so far.
    pub peak_bytes: u64,
    /// Reserved by each pool, in the order of [`Pool::ALL`].
    pub by_pool: [u64; Pool::ALL.len()],
    /// Number of refusals of each pool, in the order of [`Pool::ALL`].
    pub refused: [u64; Pool::ALL.len()],
    /// Bytes that queries leave free for a recently refused write or job.
    pub owed_bytes: u64,
}

/// Bytes that are reserved for a pool; released on drop.
pub struct Reservation {
    budget: Budget,
    pool: Pool,
    bytes: u64,
    /// For the reservation of one request: bytes that it holds beside this reservation.
    beside: Option<u64>,
}

// The process is measured once 1/64 of the limit was granted since the last measurement. That takes
// microseconds.
const MEASURED_PART: u64 = 64;
// [`Pool::Process`] falls by at most 1/8 from one measurement to the next.
const FALL_PART: u64 = 8;
// A write takes memory in several steps and pools: twice the size of the refused step is kept free.
const OWED_FACTOR: u64 = 2;
// At most 1/4 of the limit is owed.
const OWED_PART: u64 = 4;
// Owed bytes fall to a half in four seconds (6 s * ln 2): most senders retry within this time, and
// one that does not must not keep memory from queries.
const FORGET_MS: u64 = 6_000;
// Queries together may take 1/16 of the limit, whatever others are owed.
const QUERIES_PART: u64 = 16;
// Queries that together take at most 1/32 of the limit are refused above 94 percent only: a small
// one finds memory while large ones, writes and memory that is measured late fill the rest.
const SMALL_QUERIES_PART: u64 = 32;
const SMALL_QUERIES_PERCENT: u64 = 94;
// Eighths of the limit that one request may take, see [`Budget::check_request`].
const REQUEST_EIGHTHS: u64 = 5;
// The setting of whole budgets.
const MEMORY: &str = "--memory";
// The most that [`Reservation::cover`] reserves ahead of need.
const AHEAD_BYTES_MAX: u64 = 64 << 10;

impl Budget {
    /// A budget of `limit_bytes`, which `--memory` sets.
    pub fn new(limit_bytes: u64) -> Budget {
        Budget::make((limit_bytes, Some(MEMORY)), None, true)
    }

    /// A part of this budget with a limit of its own, which follows from the limit of this budget.
    /// A reservation in the part counts in both budgets.
    ///
    /// A part of [`Budget::unlimited`] has a fixed limit: its errors advise to raise no setting.
    pub fn part(&self, limit_bytes: u64) -> Budget {
        Budget::make((limit_bytes, self.0.setting), Some(self.clone()), true)
    }

    /// As [`Budget::part`], with a limit that `setting` sets, such as `--query-memory`. Errors of
    /// this part and of its own parts name the setting.
    pub fn part_of_setting(&self, limit_bytes: u64, setting: &'static str) -> Budget {
        Budget::make((limit_bytes, Some(setting)), Some(self.clone()), true)
    }

    /// A part without a limit of its own that takes only free memory: nothing is reclaimed for it,
    /// so that the caller may hold any lock.
    pub fn of_free(&self) -> Budget {
        Budget::make((u64::MAX, self.0.setting), Some(self.clone()), false)
    }

    fn make(
        (limit_bytes, setting): (u64, Option<&'static str>),
        whole: Option<Budget>,
        reclaims: bool,
    ) -> Budget {
        Budget(Arc::new(Shared {
            limit_bytes,
            raised_bytes: AtomicU64::new(0),
            setting,
            used_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            pools: Default::default(),
            refused: Default::default(),
            standby_bytes: AtomicU64::new(0),
            owed_bytes: AtomicU64::new(0),
            whole,
            reclaims,
            reclaimer: OnceLock::new(),
            meter: OnceLock::new(),
        }))
    }

    /// Raises the limit of a part by `bytes` until the result is dropped: for values that replace
    /// others, which have the memory of the part until then. The caller reserves `bytes` elsewhere.
    pub fn raise(&self, bytes: u64) -> RaisedLimit {
        self.0.raised_bytes.fetch_add(bytes, Ordering::Relaxed);
        RaisedLimit { budget: self.clone(), bytes }
    }

    /// No limit, for tests and tools.
    pub fn unlimited() -> Budget {
        Budget::make((u64::MAX, None), None, true)
    }

    /// Reserves `bytes` for `pool`.
    ///
    /// # Errors
    /// `Busy` if the pool's threshold would be exceeded, `TooLarge` if the limit of a part would
    /// be; the message names size and limit.
    #[track_caller]
    pub fn reserve(&self, pool: Pool, bytes: u64) -> Result<Reservation> {
        let mut reservation = self.empty(pool);
        reservation.grow(bytes)?;
        Ok(reservation)
    }

    /// An empty reservation that can grow.
    pub fn empty(&self, pool: Pool) -> Reservation {
        Reservation { budget: self.clone(), pool, bytes: 0, beside: None }
    }

    /// As [`Budget::empty`], for one request, which holds `beside` bytes already, such as its body.
    /// Over the memory of one request ([`Budget::check_request`]) it is refused. So are
    /// reservations that are split from it.
    pub fn of_request(&self, pool: Pool, beside: u64) -> Reservation {
        Reservation { budget: self.clone(), pool, bytes: 0, beside: Some(beside) }
    }

    /// Whether one request may take `bytes` in all: 5/8 of the limit. The rest is for its series
    /// and rows, and for the memory that the process always has; a request that takes more would
    /// find no memory however often it is repeated.
    ///
    /// # Errors
    /// `TooLarge`.
    pub fn check_request(&self, bytes: u64) -> Result<()> {
        let bytes_max = self.whole().0.limit_bytes / 8 * REQUEST_EIGHTHS;
        if bytes <= bytes_max {
            return Ok(());
        }
        Err(Error::too_large(format!(
            "the request needs {bytes} bytes of memory, one may take {bytes_max} \
             ({REQUEST_EIGHTHS}/8 of {MEMORY}): split or shorten it, or raise {MEMORY}"
        )))
    }

    /// The budget that this one is a part of, or of whose part.
    fn whole(&self) -> &Budget {
        let mut whole = self;
        while let Some(next) = &whole.0.whole {
            whole = next;
        }
        whole
    }

    /// `advice` for a shortage of this budget, and to raise the setting of its limit if there is
    /// one.
    pub fn remedy(&self, advice: &str) -> String {
        self.0.remedy(advice)
    }

    /// The error of a reservation in this budget for a text of a request: `name` of `len` bytes.
    /// `error` itself has the remedy for queries of stored samples, which does not help a text.
    pub fn error_of_text(&self, error: Error, name: &str, len: usize) -> Error {
        if *error.kind() != ErrorKind::TooLarge {
            return error;
        }
        // A request may take a part of the whole budget only.
        let whole = self.whole().0.setting.filter(|whole| self.0.setting != Some(whole));
        let bound = whole.map_or(String::new(), |whole| format!(" (at most a part of {whole})"));
        let remedy = self.remedy("shorten it");
        Error::too_large(format!(
            "{name} of {len} bytes takes more memory than the limit allows: {remedy}{bound}"
        ))
    }

    /// The current use. Pools are read one after the other, so their sum may differ from the total.
    pub fn usage(&self) -> BudgetUsage {
        BudgetUsage {
            limit_bytes: self.0.limit_bytes,
            used_bytes: self.0.used_bytes.load(Ordering::Relaxed),
            peak_bytes: self.0.peak_bytes.load(Ordering::Relaxed),
            by_pool: Pool::ALL.map(|pool| self.0.pools[pool as usize].load(Ordering::Relaxed)),
            refused: Pool::ALL.map(|pool| self.0.refused[pool as usize].load(Ordering::Relaxed)),
            owed_bytes: self.0.owed_bytes.load(Ordering::Relaxed),
        }
    }

    /// Counts a refusal of `pool` that its owner decided.
    pub fn note_refusal(&self, pool: Pool) {
        self.0.refused[pool as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Number of bytes that must be released before `pool` may be granted `bytes` more.
    pub fn missing_bytes(&self, pool: Pool, bytes: u64) -> u64 {
        let used = self.0.used_bytes.load(Ordering::Relaxed);
        used.saturating_add(bytes).saturating_sub(self.0.threshold_bytes(pool))
    }

    /// Whether `pool` may be granted `bytes` more, here and in every budget above.
    fn has_room(&self, pool: Pool, bytes: u64) -> bool {
        let whole = self.0.whole.as_ref();
        self.missing_bytes(pool, bytes) == 0
            && whole.is_none_or(|whole| whole.has_room(pool, bytes))
    }

    /// Sets the reclaimer that runs before queries, requests and jobs are refused. Only the first
    /// call has an effect.
    pub fn set_reclaimer(&self, reclaimer: Weak<dyn Reclaim>) {
        let _ = self.0.reclaimer.set(reclaimer);
    }

    /// Sets the meter: it returns the bytes of anonymous memory that the process holds, or `None`
    /// if the system does not report them. Held memory that no pool has reserved counts as
    /// [`Pool::Process`], so refusals follow the real use. [`Budget::measure`] reads the meter; so
    /// does a grant once a part of the limit has been granted since. Only the first call has an
    /// effect.
    pub fn set_meter(&self, resident_bytes: impl Fn() -> Option<u64> + Send + Sync + 'static) {
        let resident_bytes = Box::new(resident_bytes);
        let (granted_bytes, is_busy) = Default::default();
        let _ = self.0.meter.set(Meter { resident_bytes, granted_bytes, is_busy });
    }

    /// Sets the number of reserved bytes that are kept ready for a later use. [`Budget::measure`]
    /// does not expect the process to hold them, so they hide no unreserved memory.
    pub fn set_standby(&self, bytes: u64) {
        self.0.standby_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Compares the reserved bytes with those that the process holds, if there is a meter.
    ///
    /// Unreserved memory counts up to three quarters of the limit: an allocator reuses memory that
    /// was freed, and freed memory must not cause refusals for ever. The count falls slowly,
    /// because memory that is reserved but not yet used hides the same amount of used, unreserved
    /// memory.
    pub fn measure(&self) {
        self.0.measure();
    }

    /// Forgets the part of the owed bytes ([`BudgetUsage::owed_bytes`]) that `elapsed_ms` are
    /// worth. To be called a few times a second, by one thread.
    pub fn forget_owed(&self, elapsed_ms: u64) {
        let _ = self.0.owed_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |owed| {
            let forgotten = owed.saturating_mul(elapsed_ms).div_ceil(FORGET_MS);
            (owed > 0).then(|| owed.saturating_sub(forgotten))
        });
    }
}

impl Reservation {
    /// Reserves `bytes` more.
    ///
    /// # Errors
    /// As [`Budget::reserve`] and [`Budget::of_request`]; the reservation is then unchanged.
    #[track_caller]
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        // Only for the reservation of one request: any other may be that of a whole room.
        let held = self.beside.map_or(0, |beside| beside.saturating_add(self.bytes));
        if self.beside.is_some() {
            let all_bytes = held.saturating_add(bytes);
            let checked = self.budget.check_request(all_bytes);
            checked.inspect_err(|_| self.budget.note_refusal(self.pool))?;
        }
        self.budget.0.take(self.pool, (held, bytes), true)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Grows the reservation to at least `bytes`, and up to an eighth more, so that counting many
    /// small items takes few calls.
    ///
    /// # Errors
    /// As [`Reservation::grow`].
    #[track_caller]
    pub fn cover(&mut self, bytes: u64) -> Result<()> {
        self.cover_ahead(bytes, (self.bytes / 8).min(AHEAD_BYTES_MAX))
    }

    /// As [`Reservation::cover`], with at most `ahead` bytes more than needed.
    ///
    /// # Errors
    /// As [`Reservation::grow`].
    #[track_caller]
    pub fn cover_ahead(&mut self, bytes: u64, ahead: u64) -> Result<()> {
        self.budget.0.check_locks(self.pool, true);
        let missing = bytes.saturating_sub(self.bytes);
        if missing == 0 {
            return Ok(());
        }
        // Memory is not reclaimed for bytes that are not needed yet.
        let has_room = self.budget.has_room(self.pool, missing + ahead);
        self.grow(if has_room { missing + ahead } else { missing })
    }

    /// As [`Reservation::cover`] to exactly `bytes`, but only of free memory: nothing is reclaimed,
    /// so that the caller may hold any lock. Returns whether the reservation covers `bytes`.
    pub fn cover_of_free(&mut self, bytes: u64) -> bool {
        let missing = bytes.saturating_sub(self.bytes);
        let has_room = missing == 0 || self.budget.has_room(self.pool, missing);
        if has_room {
            self.take(missing);
        }
        has_room
    }

    /// Counts `bytes` that are in use already or must be: data read back at startup, memory that a
    /// shard with durable rows needs. May exceed the limit; other requests are then refused.
    pub fn take(&mut self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut next = Some(&self.budget);
        while let Some(Budget(budget)) = next {
            let used = budget.used_bytes.fetch_add(bytes, Ordering::Relaxed);
            budget.note_peak(used + bytes);
            budget.pools[self.pool as usize].fetch_add(bytes, Ordering::Relaxed);
            next = budget.whole.as_ref();
        }
        self.bytes += bytes;
    }

    /// Makes this a reservation of exactly `bytes`, which are in use already: more are counted as
    /// in [`Reservation::take`], fewer are released.
    pub fn take_exactly(&mut self, bytes: u64) {
        self.take(bytes.saturating_sub(self.bytes));
        self.shrink_to(bytes);
    }

    /// Releases all but `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        self.shrink(self.bytes.saturating_sub(bytes));
    }

    /// Releases `bytes`, at most all.
    pub fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        if bytes > 0 {
            self.bytes -= bytes;
            self.budget.0.release(self.pool, bytes);
        }
    }

    /// Moves `bytes` (at most all) into a reservation of their own.
    pub fn split(&mut self, bytes: u64) -> Reservation {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let (budget, pool) = (self.budget.clone(), self.pool);
        Reservation { budget, pool, bytes, beside: self.beside }
    }

    /// From now on the bytes count for `pool`, and no longer for the part of the budget that they
    /// were reserved in: the memory outlives its query.
    pub fn keep_for(&mut self, pool: Pool) {
        if self.pool == pool && self.budget.0.whole.is_none() {
            return;
        }
        let bytes = self.bytes;
        let mut kept = self.budget.whole().empty(pool);
        self.shrink(bytes);
        kept.take(bytes);
        *self = kept;
    }

    /// Adds `other` to this reservation; its bytes then count for this pool.
    pub fn merge(&mut self, mut other: Reservation) {
        let bytes = other.bytes;
        self.move_from(&mut other, bytes);
    }

    /// Moves `bytes` (at most all) from `other` to this reservation; they then count for this pool.
    /// Between reservations of one pool no shared counter changes.
    pub fn move_from(&mut self, other: &mut Reservation, bytes: u64) {
        debug_assert!(Arc::ptr_eq(&self.budget.0, &other.budget.0), "reservations of two budgets");
        let bytes = bytes.min(other.bytes);
        other.bytes -= bytes;
        self.bytes += bytes;
        if self.pool == other.pool {
            return;
        }
        let mut next = Some(&self.budget);
        while let Some(Budget(budget)) = next {
            budget.pools[other.pool as usize].fetch_sub(bytes, Ordering::Relaxed);
            budget.pools[self.pool as usize].fetch_add(bytes, Ordering::Relaxed);
            next = budget.whole.as_ref();
        }
    }

    /// The limit of the reservation's budget.
    pub fn limit_bytes(&self) -> u64 {
        self.budget.0.limit_bytes
    }

    /// Number of reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Shared {
    /// Thresholds apply to a whole budget; a part has only its limit.
    fn threshold_bytes(&self, pool: Pool) -> u64 {
        let threshold = self.highest_threshold_bytes(pool);
        if pool != Pool::Query || self.whole.is_some() {
            return threshold;
        }
        let of = |pool: Pool| self.pools[pool as usize].load(Ordering::Relaxed);
        let others = self.used_bytes.load(Ordering::Relaxed).saturating_sub(of(Pool::Query));
        let small = others.saturating_add(self.limit_bytes / SMALL_QUERIES_PART);
        let small = small.min(self.percent_bytes(SMALL_QUERIES_PERCENT));
        let owed = self.owed_bytes.load(Ordering::Relaxed);
        if owed == 0 {
            return threshold.max(small);
        }
        // Writes and jobs reclaim the memory of caches.
        let reclaimable = of(Pool::Cache) + of(Pool::Hot);
        let without_owed = self.highest_threshold_bytes(Pool::Index).saturating_sub(owed);
        let queries_min = others.saturating_add(self.limit_bytes / QUERIES_PART);
        (without_owed + reclaimable).max(queries_min).min(threshold).max(small)
    }

    /// The threshold while nothing is owed.
    fn highest_threshold_bytes(&self, pool: Pool) -> u64 {
        match self.whole {
            Some(_) => self.limit_bytes.saturating_add(self.raised_bytes.load(Ordering::Relaxed)),
            None => self.percent_bytes(pool.threshold_percent()),
        }
    }

    fn percent_bytes(&self, percent: u64) -> u64 {
        if self.limit_bytes == u64::MAX {
            return self.limit_bytes;
        }
        (u128::from(self.limit_bytes) * u128::from(percent) / 100) as u64
    }

    /// Keeps room for a write or a job that was refused at `bytes`.
    fn owe(&self, pool: Pool, bytes: u64) {
        let owed_max = self.limit_bytes / OWED_PART;
        // A job that needs more may never fit, however often it is tried.
        if pool != Pool::Jobs || bytes <= owed_max {
            let owed = bytes.saturating_mul(OWED_FACTOR).min(owed_max);
            self.owed_bytes.fetch_max(owed, Ordering::Relaxed);
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
            let not_held = before + self.standby_bytes.load(Ordering::Relaxed);
            let held = self.used_bytes.load(Ordering::Relaxed).saturating_sub(not_held);
            let unreserved = resident.saturating_sub(held).min(self.limit_bytes / 4 * 3);
            let unreserved = unreserved.max(before - before / FALL_PART);
            self.pools[Pool::Process as usize].store(unreserved, Ordering::Relaxed);
            if unreserved > before {
                self.used_bytes.fetch_add(unreserved - before, Ordering::Relaxed);
            } else {
                self.used_bytes.fetch_sub(before - unreserved, Ordering::Relaxed);
            }
        }
        meter.is_busy.store(false, Ordering::Release);
    }

    /// Checks, in a debug build, that a grant may reclaim memory while this thread holds its locks.
    #[track_caller]
    fn check_locks(&self, pool: Pool, reclaims: bool) {
        if reclaims && self.reclaims && pool.reclaims_first() {
            assert_may_reclaim();
        }
    }

    #[track_caller]
    fn take(&self, pool: Pool, (held, bytes): (u64, u64), reclaims: bool) -> Result<()> {
        self.check_locks(pool, reclaims);
        let reclaims = reclaims && self.reclaims;
        if let Some(meter) = self.meter.get() {
            let granted = meter.granted_bytes.fetch_add(bytes, Ordering::Relaxed);
            if granted.saturating_add(bytes) > self.limit_bytes / MEASURED_PART {
                self.measure();
            }
        }
        if self.try_take(pool, (held, bytes), reclaims)? {
            return Ok(());
        }
        if reclaims
            && pool.reclaims_first()
            && let Some(reclaimer) = self.reclaimer.get().and_then(Weak::upgrade)
        {
            let used = self.used_bytes.load(Ordering::Relaxed);
            // Not for owed bytes: a write or job that is owed some reclaims them itself.
            let threshold = self.highest_threshold_bytes(pool);
            let missing = used.saturating_add(bytes).saturating_sub(threshold);
            if missing > 0 {
                let _reclaiming = reclaiming();
                reclaimer.reclaim(missing);
            }
            if self.try_take(pool, (held, bytes), reclaims)? {
                return Ok(());
            }
        }
        self.refused[pool as usize].fetch_add(1, Ordering::Relaxed);
        if pool.is_owed() {
            self.owe(pool, held.saturating_add(bytes));
        }
        Err(self.refusal(pool, bytes))
    }

    /// `false` if this budget has no room.
    ///
    /// # Errors
    /// `Busy` or `TooLarge` if a budget above has no room.
    #[track_caller]
    fn try_take(&self, pool: Pool, (held, bytes): (u64, u64), reclaims: bool) -> Result<bool> {
        let threshold = self.threshold_bytes(pool);
        let granted = self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&sum| sum <= threshold)
        });
        let Ok(used) = granted else { return Ok(false) };
        if let Some(whole) = &self.whole
            && let Err(error) = whole.0.take(pool, (held, bytes), reclaims)
        {
            self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(error);
        }
        self.note_peak(used + bytes);
        self.pools[pool as usize].fetch_add(bytes, Ordering::Relaxed);
        Ok(true)
    }

    /// Reads before it writes: a write to a shared counter costs every thread.
    fn note_peak(&self, used_bytes: u64) {
        if used_bytes > self.peak_bytes.load(Ordering::Relaxed) {
            self.peak_bytes.fetch_max(used_bytes, Ordering::Relaxed);
        }
    }

    fn release(&self, pool: Pool, bytes: u64) {
        self.pools[pool as usize].fetch_sub(bytes, Ordering::Relaxed);
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.0.release(pool, bytes);
        }
    }

    fn remedy(&self, advice: &str) -> String {
        match self.setting {
            Some(setting) => format!("{advice}, or raise {setting}"),
            None => advice.to_owned(),
        }
    }

    fn refusal(&self, pool: Pool, bytes: u64) -> Error {
        let (name, used) = (pool.name(), self.used_bytes.load(Ordering::Relaxed));
        let (limit, advice) = (self.limit_bytes, self.remedy(pool.advice()));
        if self.whole.is_some() {
            let owner = if pool == Pool::Query { "the query" } else { name };
            return Error::too_large(match self.setting {
                Some(_) => format!(
                    "{owner} needs {bytes} more bytes, but {used} of its {limit} are in use: \
                     {advice}"
                ),
                None => format!(
                    "the input takes more than {limit} bytes of memory, a fixed limit: shorten it \
                     or split it"
                ),
            });
        }
        let of = |pool: &Pool| self.pools[*pool as usize].load(Ordering::Relaxed);
        let most = Pool::ALL.into_iter().max_by_key(of).unwrap_or(pool);
        let threshold = self.threshold_bytes(pool);
        let percent = (u128::from(threshold) * 100).div_ceil(u128::from(limit.max(1)));
        let (most, most_bytes) = (most.name(), of(&most));
        let percent_always = pool.threshold_percent();
        let lowered = match percent < u128::from(percent_always) {
            true => format!(" ({percent_always} unless others were refused lately)"),
            false => String::new(),
        };
        Error::busy(
            1_000,
            format!(
                "memory budget: {name} needs {bytes} more bytes, but {used} of {limit} are in use \
                 (most by {most}: {most_bytes}) and {name} is refused above {percent} \
                 percent{lowered}: {advice}"
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
mod tests;
