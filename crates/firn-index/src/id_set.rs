//! Sets of ids as sorted runs, the operands of matching.
//!
//! Ids are assigned in order of creation, so the series of a host, of a job, or all except a few
//! are few runs. A matcher may still make millions of them, so the memory of every set is reserved.

use std::fmt;
use std::sync::Arc;

use firn_model::{Budget, Error, Pool, Reservation, Result};
use smallvec::{SmallVec, smallvec};

/// A set of `u32`: disjoint, ascending, half-open runs that do not touch. A clone shares the
/// runs of a large set.
#[derive(Clone, Default)]
pub(crate) struct IdSet {
    runs: Runs,
}

#[derive(Clone)]
enum Runs {
    /// At most [`RUNS_UNRESERVED`].
    Few(SmallVec<[(u32, u32); 2]>),
    Many(Arc<HeldRuns>),
}

struct HeldRuns {
    runs: Vec<(u32, u32)>,
    /// The memory of `runs`.
    _held: Reservation,
}

/// Runs on their way to an [`IdSet`]. Their memory is reserved as the list grows. A list whose
/// reservation is refused takes no more runs, and [`RunList::finish`] returns the error.
#[derive(Debug)]
pub(crate) struct RunList<'b> {
    runs: Vec<(u32, u32)>,
    budget: &'b Budget,
    held: Option<Reservation>,
    refusal: Option<Error>,
    /// Whether the caller holds a lock, so that nothing may be reclaimed.
    is_locked: bool,
    /// Under the lock: free memory did not suffice.
    is_full: bool,
}

// Sets of up to this many runs are not reserved: most are that small, and each caller has few.
const RUNS_UNRESERVED: usize = 64;
// The capacity of a new list.
const RUNS_AT_FIRST: usize = 8;
const RUN_BYTES: usize = size_of::<(u32, u32)>();

impl IdSet {
    /// The empty set.
    pub(crate) fn empty() -> IdSet {
        IdSet::default()
    }

    /// `0..end`.
    pub(crate) fn below(end: u32) -> IdSet {
        let runs = if end == 0 { SmallVec::new() } else { smallvec![(0, end)] };
        IdSet { runs: Runs::Few(runs) }
    }

    /// The union of runs in any order.
    ///
    /// # Errors
    /// `Busy` or `TooLarge` without memory; so do all methods that return a result.
    pub(crate) fn from_runs(
        runs: impl IntoIterator<Item = (u32, u32)>,
        budget: &Budget,
    ) -> Result<IdSet> {
        let mut list = RunList::new(budget);
        runs.into_iter().for_each(|run| list.push(run));
        list.finish()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs().is_empty()
    }

    /// Number of ids.
    pub(crate) fn count(&self) -> u64 {
        self.runs().iter().map(|run| u64::from(run.1 - run.0)).sum()
    }

    pub(crate) fn has(&self, id: u32) -> bool {
        let runs = self.runs();
        let after = runs.partition_point(|run| run.0 <= id);
        after.checked_sub(1).and_then(|at| runs.get(at)).is_some_and(|run| id < run.1)
    }

    /// The runs, ascending.
    pub(crate) fn runs(&self) -> &[(u32, u32)] {
        match &self.runs {
            Runs::Few(runs) => runs,
            Runs::Many(held) => &held.runs,
        }
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.runs().iter().flat_map(|run| run.0..run.1)
    }

    pub(crate) fn union(&self, other: &IdSet, budget: &Budget) -> Result<IdSet> {
        if self.is_empty() || other.is_empty() {
            return Ok(if self.is_empty() { other.clone() } else { self.clone() });
        }
        IdSet::from_runs(self.runs().iter().chain(other.runs()).copied(), budget)
    }

    pub(crate) fn intersect(&self, other: &IdSet, budget: &Budget) -> Result<IdSet> {
        if covers(self.runs(), other.runs()) {
            return Ok(other.clone());
        }
        self.intersect_runs(other.runs(), budget)
    }

    /// The ids of `self` in `runs`, which are those of a set.
    pub(crate) fn intersect_runs(&self, runs: &[(u32, u32)], budget: &Budget) -> Result<IdSet> {
        if covers(runs, self.runs()) {
            return Ok(self.clone());
        }
        let mut found = RunList::new(budget);
        common_runs(self.runs(), runs).for_each(|run| found.push(run));
        found.finish_sorted()
    }

    /// The ids of `self` that are not in `other`.
    pub(crate) fn minus(&self, other: &IdSet, budget: &Budget) -> Result<IdSet> {
        if other.is_empty() {
            return Ok(self.clone());
        }
        let mut runs = RunList::new(budget);
        let mut rest = other.runs();
        for &(mut start, end) in self.runs() {
            rest = skip_to(rest, start);
            for &run in rest.iter().take_while(|run| run.0 < end) {
                if start < run.0 {
                    runs.push((start, run.0));
                }
                start = start.max(run.1);
            }
            if start < end {
                runs.push((start, end));
            }
        }
        runs.finish_sorted()
    }
}

impl Default for Runs {
    fn default() -> Runs {
        Runs::Few(SmallVec::new())
    }
}

impl PartialEq for IdSet {
    fn eq(&self, other: &IdSet) -> bool {
        self.runs() == other.runs()
    }
}

impl fmt::Debug for IdSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.runs()).finish()
    }
}

impl<'b> RunList<'b> {
    /// An empty list; its memory counts for pool `query` of `budget`.
    pub(crate) fn new(budget: &'b Budget) -> RunList<'b> {
        let (held, refusal, is_locked, is_full) = Default::default();
        RunList { runs: Vec::new(), budget, held, refusal, is_locked, is_full }
    }

    /// Appends a run in any order.
    #[inline]
    pub(crate) fn push(&mut self, run: (u32, u32)) {
        if self.runs.len() < self.runs.capacity() || self.make_room() {
            self.runs.push(run);
        }
    }

    /// Appends a run of ids, joined with the last run if they touch. Skips a run with ids over 32
    /// bits: no row, shape or member set has such an id.
    pub(crate) fn push_ids(&mut self, first: u64, last: u64) {
        let (Ok(first), Ok(end)) = (u32::try_from(first), u32::try_from(last.saturating_add(1)))
        else {
            return;
        };
        self.push_joined(first, end);
    }

    /// Appends the ids `start..end`, joined with the last run if they touch.
    #[inline]
    pub(crate) fn push_joined(&mut self, start: u32, end: u32) {
        match self.runs.last_mut() {
            Some(run) if run.1 == start => run.1 = end,
            _ => self.push((start, end)),
        }
    }

    /// The runs so far.
    pub(crate) fn runs(&self) -> &[(u32, u32)] {
        &self.runs
    }

    /// Removes all runs.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
    }

    /// Calls `add`, which takes a lock and pushes runs. If the free memory does not suffice, calls
    /// it again with more memory: nothing is reclaimed under the lock.
    pub(crate) fn fill_locked(&mut self, mut add: impl FnMut(&mut RunList<'b>)) -> Result<()> {
        loop {
            let before = self.runs.len();
            self.is_locked = true;
            add(self);
            self.is_locked = false;
            if !std::mem::take(&mut self.is_full) {
                return Ok(());
            }
            self.make_room();
            if let Some(refusal) = self.refusal.take() {
                return Err(refusal);
            }
            self.runs.truncate(before);
        }
    }

    /// Whether further runs are dropped.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full || self.refusal.is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    /// The union of the runs.
    pub(crate) fn finish(mut self) -> Result<IdSet> {
        self.runs.retain(|run| run.0 < run.1);
        if !self.runs.is_sorted() {
            self.runs.sort_unstable();
        }
        self.runs.dedup_by(|later, kept| {
            let joins = later.0 <= kept.1;
            if joins {
                kept.1 = kept.1.max(later.1);
            }
            joins
        });
        self.finish_sorted()
    }

    /// As [`RunList::finish`], if the runs are those of a set already.
    fn finish_sorted(self) -> Result<IdSet> {
        let RunList { mut runs, held, refusal, .. } = self;
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        let runs = match held {
            Some(mut held) if runs.len() > RUNS_UNRESERVED => {
                runs.shrink_to_fit();
                held.shrink_to((runs.capacity() * RUN_BYTES) as u64);
                Runs::Many(Arc::new(HeldRuns { runs, _held: held }))
            }
            _ => Runs::Few(SmallVec::from_slice(&runs)),
        };
        Ok(IdSet { runs })
    }

    /// Doubles the capacity. While the list is moved, both copies exist.
    #[cold]
    fn make_room(&mut self) -> bool {
        if self.is_full() {
            return false;
        }
        let (before, after) = (self.runs.len(), (2 * self.runs.len()).max(RUNS_AT_FIRST));
        if after > RUNS_UNRESERVED {
            let held = self.held.get_or_insert_with(|| self.budget.empty(Pool::Query));
            let bytes = ((before + after) * RUN_BYTES) as u64;
            if self.is_locked {
                self.is_full = !held.cover_of_free(bytes);
            } else {
                self.refusal = held.cover(bytes).err();
            }
            if self.is_full() {
                return false;
            }
        }
        self.runs.reserve_exact(after - before);
        if let Some(held) = &mut self.held {
            held.shrink_to((after * RUN_BYTES) as u64);
        }
        true
    }
}

/// Whether `outer` is one run that contains all of `inner`.
fn covers(outer: &[(u32, u32)], inner: &[(u32, u32)]) -> bool {
    let &[(start, end)] = outer else { return false };
    inner.first().is_some_and(|run| start <= run.0) && inner.last().is_some_and(|run| run.1 <= end)
}

/// The runs of the ids in both sets. Costs a step per run of the set with fewer runs, and per
/// result.
pub(crate) fn common_runs<'a>(
    a: &'a [(u32, u32)],
    b: &'a [(u32, u32)],
) -> impl Iterator<Item = (u32, u32)> + 'a {
    let (short, mut rest) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    short.iter().flat_map(move |&(start, end)| {
        rest = skip_to(rest, start);
        let overlapping = rest.iter().take_while(move |run| run.0 < end);
        overlapping.map(move |run| (run.0.max(start), run.1.min(end)))
    })
}

/// The runs from the first that ends after `id`. Gallops, so a near run is cheap.
pub(crate) fn skip_to(runs: &[(u32, u32)], id: u32) -> &[(u32, u32)] {
    let mut step = 1;
    while step < runs.len() && runs[step].1 <= id {
        step *= 2;
    }
    let window = &runs[..runs.len().min(step + 1)];
    &runs[window.partition_point(|run| run.1 <= id)..]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn arb_set() -> impl Strategy<Value = BTreeSet<u32>> {
        prop_oneof![
            prop::collection::btree_set(0u32..60, 0..40),
            prop::collection::btree_set(0u32..300, 100..250),
        ]
    }

    fn of(set: &BTreeSet<u32>) -> IdSet {
        IdSet::from_runs(set.iter().rev().map(|&id| (id, id + 1)), &Budget::unlimited()).unwrap()
    }

    fn back(set: &IdSet) -> BTreeSet<u32> {
        assert!(set.runs().iter().all(|run| run.0 < run.1), "{set:?}");
        assert!(set.runs().is_sorted_by(|a, b| a.1 < b.0), "{set:?}");
        set.iter().collect()
    }

    proptest! {
        #[test]
        fn operations_agree_with_sets(a in arb_set(), b in arb_set()) {
            let (x, y, budget) = (of(&a), of(&b), Budget::unlimited());
            prop_assert_eq!(back(&x), a.clone());
            prop_assert_eq!(x.count(), a.len() as u64);
            prop_assert!((0..301).all(|id| x.has(id) == a.contains(&id)));
            prop_assert_eq!(back(&x.intersect(&y, &budget).unwrap()), &a & &b);
            prop_assert_eq!(back(&x.minus(&y, &budget).unwrap()), &a - &b);
            prop_assert_eq!(back(&x.union(&y, &budget).unwrap()), &a | &b);
        }
    }

    fn every_second(end: u32) -> impl Iterator<Item = (u32, u32)> {
        (0..end).step_by(2).map(|id| (id, id + 1))
    }

    #[test]
    fn large_sets_hold_their_memory_until_the_last_clone_goes() {
        let budget = Budget::new(1 << 20);
        let set = IdSet::from_runs(every_second(10_000), &budget).unwrap();
        let clone = set.clone();
        assert_eq!(budget.usage().used_bytes, 5_000 * 8, "a clone shares the runs");
        let odd = IdSet::below(10_000).minus(&set, &budget).unwrap();
        assert_eq!(budget.usage().used_bytes, 2 * 5_000 * 8);
        drop((set, odd));
        assert_eq!(budget.usage().used_bytes, 5_000 * 8);
        drop(clone);
        assert_eq!(budget.usage().used_bytes, 0);
    }

    #[test]
    fn sets_beyond_the_budget_are_refused() {
        let budget = Budget::new(64 << 10);
        assert!(IdSet::from_runs(every_second(100_000), &budget).is_err());
        let mut list = RunList::new(&budget);
        let mut calls = 0;
        let filled = list.fill_locked(|list| {
            calls += 1;
            every_second(100_000).for_each(|run| list.push(run));
        });
        assert!(filled.is_err());
        assert!(calls > 0 && list.len() < 10_000);
        drop(list);
        assert_eq!(budget.usage().used_bytes, 0);
    }

    #[test]
    fn a_list_filled_under_a_lock_has_each_run_once() {
        // The first call leaves no free memory; the reclaimer then releases some.
        #[derive(Debug)]
        struct Cache(std::sync::Mutex<Option<Reservation>>);
        impl firn_model::Reclaim for Cache {
            fn reclaim(&self, _: u64) -> u64 {
                self.0.lock().unwrap().take().map_or(0, |held| held.bytes())
            }
        }
        let budget = Budget::new(1 << 20);
        let held = budget.reserve(Pool::Query, 900 << 10).unwrap();
        let cache = Arc::new(Cache(std::sync::Mutex::new(Some(held))));
        let as_reclaim: std::sync::Weak<dyn firn_model::Reclaim> =
            Arc::downgrade(&(Arc::clone(&cache) as Arc<dyn firn_model::Reclaim>));
        budget.set_reclaimer(as_reclaim);
        let mut list = RunList::new(&budget);
        list.push((200_000, 200_001));
        list.fill_locked(|list| every_second(40_000).for_each(|run| list.push(run))).unwrap();
        assert!(cache.0.lock().unwrap().is_none(), "memory was reclaimed");
        assert_eq!(list.len(), 20_001);
        assert_eq!(list.finish().unwrap().count(), 20_001);
    }
}
