//! The queries of a stage: rules of one group that idle threads may evaluate at the same time.
//!
//! The thread of the group evaluates queries until none is left, and waits for those that other
//! threads have taken. So a group needs no other thread, and groups that are due have priority.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use firn_model::{CancelToken, Error, QueryContext, Result, Timestamp};
use firn_promql::{QueryOutput, SharedExprs, SharedResults};
use firndb::{Db, Snapshot};
use parking_lot::{Condvar, Mutex};

use super::options::RuleLimits;
use super::watch::QueryWatch;

/// The queries of the rules of a stage. A thread takes a batch: queries that share parts.
#[derive(Debug)]
pub(super) struct StageQueries {
    exprs: Arc<SharedExprs>,
    ts: Timestamp,
    limits: RuleLimits,
    work: SharedWork<BatchResults>,
}

/// The result of a query, and how long it took.
pub(super) type StageResult = (Result<QueryOutput>, Duration);

/// The results of a batch, by the position of their query.
type BatchResults = Vec<(usize, StageResult)>;

impl StageQueries {
    pub(super) fn new(
        exprs: &Arc<SharedExprs>,
        ts: Timestamp,
        limits: &RuleLimits,
    ) -> StageQueries {
        let work = SharedWork::new(exprs.batches().len());
        StageQueries { exprs: Arc::clone(exprs), ts, limits: limits.clone(), work }
    }

    /// Evaluates a batch that no thread has taken. Returns whether there was one.
    pub(super) fn evaluate_next(&self, db: &Db, watch: &QueryWatch) -> bool {
        let Some(batch_idx) = self.work.take() else { return false };
        let batch = self.exprs.batches().get(batch_idx).map_or(&[][..], |batch| batch);
        let mut shared = SharedResults::new(&self.exprs);
        // One for all queries, so that no rule reads one part before a write and another after it.
        let view = db.snapshot();
        let mut evaluate = |idx: usize| {
            let evaluate = || self.timed_query(&view, watch, idx, &mut shared);
            // Else the thread of the group would wait for ever.
            catch_unwind(AssertUnwindSafe(evaluate)).unwrap_or_else(|_| {
                (Err(Error::internal("a query of a rule panicked, which is a bug")), Duration::ZERO)
            })
        };
        self.work.put(batch_idx, batch.iter().map(|&idx| (idx, evaluate(idx))).collect());
        true
    }

    /// Evaluates a query and its parts, within the limits of one rule.
    fn timed_query(
        &self,
        view: &Snapshot,
        watch: &QueryWatch,
        idx: usize,
        shared: &mut SharedResults<'_>,
    ) -> StageResult {
        let began = Instant::now();
        let limits = &self.limits;
        let context = QueryContext::new(CancelToken::new(), limits.budget.clone());
        let _watched = watch.watch(&context.cancel, limits.timeout);
        let output = shared.evaluate(idx, &mut |expr, parts| {
            Db::evaluate_with_parts(view, expr, parts, self.ts, &limits.query, &context)
        });
        (output, began.elapsed())
    }

    /// Whether there is a batch that no thread has taken.
    pub(super) fn has_next(&self) -> bool {
        self.work.has_next()
    }

    /// Evaluates all batches that no other thread takes. Returns the results of all rules, once.
    pub(super) fn finish(&self, db: &Db, watch: &QueryWatch) -> Vec<StageResult> {
        while self.evaluate_next(db, watch) {}
        let mut results: BatchResults = self.work.wait().into_iter().flatten().collect();
        results.sort_unstable_by_key(|(idx, _)| *idx);
        results.into_iter().map(|(_, result)| result).collect()
    }
}

/// Items of work that threads take one by one.
#[derive(Debug)]
struct SharedWork<T> {
    len: usize,
    next: AtomicUsize,
    results: Mutex<Vec<Option<T>>>,
    /// Notified when a result arrives.
    arrived: Condvar,
}

impl<T> SharedWork<T> {
    fn new(len: usize) -> SharedWork<T> {
        let results = Mutex::new((0..len).map(|_| None).collect());
        SharedWork { len, next: AtomicUsize::new(0), results, arrived: Condvar::new() }
    }

    /// The next item.
    fn take(&self) -> Option<usize> {
        let next = |idx: usize| (idx < self.len).then(|| idx.saturating_add(1));
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }

    fn has_next(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.len
    }

    fn put(&self, idx: usize, result: T) {
        if let Some(place) = self.results.lock().get_mut(idx) {
            *place = Some(result);
        }
        self.arrived.notify_one();
    }

    /// Waits until all results have arrived, and takes them.
    fn wait(&self) -> Vec<T> {
        let mut results = self.results.lock();
        while results.iter().any(Option::is_none) {
            self.arrived.wait(&mut results);
        }
        results.drain(..).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// Two items that only end together: one thread alone would wait for ever.
    #[test]
    fn threads_share_work_and_results_are_in_order() {
        let work = SharedWork::new(20);
        let barrier = Barrier::new(2);
        let run = || {
            while let Some(idx) = work.take() {
                if idx == 7 || idx == 8 {
                    barrier.wait();
                }
                work.put(idx, idx * 10);
            }
        };
        let results = std::thread::scope(|scope| {
            scope.spawn(run);
            run();
            work.wait()
        });
        assert_eq!(results, (0..20).map(|idx| idx * 10).collect::<Vec<_>>());
        assert!(!work.has_next() && work.take().is_none());
    }

    #[test]
    fn one_thread_is_enough() {
        let work = SharedWork::new(3);
        assert!(work.has_next());
        while let Some(idx) = work.take() {
            work.put(idx, idx);
        }
        assert_eq!(work.wait(), [0, 1, 2]);
        assert_eq!(SharedWork::<usize>::new(0).wait(), [0; 0]);
    }
}
