//! The seam between language and storage: the selection of a query and access to its result.
//!
//! PromQL sees storage only through [`Select`], so it can be tested on a plain vector of samples.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{
    Budget, ColumnBatch, Error, ErrorKind, Labels, Matcher, QueryStats, RegexAllowance,
    Reservation, Result, TimeRange,
};

/// The selection of one selector of a query.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// Matchers; a series must match all.
    pub matchers: Vec<Matcher>,
    /// The exact range of the needed samples, both ends inclusive.
    pub range: TimeRange,
    /// The labels that the result must distinguish.
    pub grouping: Grouping,
}

/// The labels that the query uses after the selection. With `By` and `Without`, storage returns a
/// group key per series and need not build label sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// Every label: one key per series.
    Series,
    /// Only these names, as in `sum by (...)`.
    By(Vec<String>),
    /// All except these names and the metric name, as in `sum without (...)`.
    Without(Vec<String>),
}

impl Grouping {
    /// The key of a series with `labels`.
    pub fn key(&self, labels: &Labels) -> Labels {
        match self {
            Grouping::Series => labels.clone(),
            Grouping::By(names) => labels.filter(|name| names.iter().any(|n| n == name)),
            Grouping::Without(names) => {
                labels.filter(|name| name != crate::METRIC_NAME && names.iter().all(|n| n != name))
            }
        }
    }
}

/// The context of a query: cancellation, memory, helper threads and statistics.
#[derive(Clone, Debug)]
pub struct QueryContext {
    /// Set when the client disconnects or the time limit expires.
    pub cancel: CancelToken,
    /// The budget of decoded columns; a [`Budget::part`] limits this query alone.
    pub budget: Budget,
    /// Helper threads that the query may borrow.
    pub helpers: Helpers,
    /// Memory that is released with the last clone of the context.
    pub kept: KeptMemory,
    /// The regular expressions that its request may still compile.
    pub regexes: RegexAllowance,
    /// Statistics of the query.
    pub stats: Arc<QueryStats>,
    /// Matchers of the user on whose behalf the query runs: other series do not exist for it. The
    /// index adds them to every selection.
    pub scope: Arc<[Matcher]>,
}

impl QueryContext {
    /// Never cancelled and without a memory limit, for tests and tools.
    pub fn unbounded() -> QueryContext {
        QueryContext::new(CancelToken::new(), Budget::unlimited())
    }

    /// A context without helpers.
    pub fn new(cancel: CancelToken, budget: Budget) -> QueryContext {
        QueryContext {
            cancel,
            budget,
            helpers: Helpers::new(0),
            kept: KeptMemory::default(),
            regexes: RegexAllowance::default(),
            stats: Arc::default(),
            scope: Arc::default(),
        }
    }
}

/// The reservations of memory that a request needs until it ends, such as its parsed selectors.
/// Clones share them.
#[derive(Clone, Debug, Default)]
pub struct KeptMemory(Arc<Mutex<Option<Reservation>>>);

impl KeptMemory {
    /// Keeps `held`.
    pub fn add(&self, held: Reservation) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *kept {
            Some(kept) => kept.merge(held),
            None => *kept = Some(held),
        }
    }
}

/// A count of threads that may help queries, besides the one that each query runs on. Clones share
/// the count: it bounds the helpers of all concurrent queries together.
#[derive(Clone, Debug)]
pub struct Helpers(Arc<AtomicUsize>);

/// A permit to start some threads; returned on drop.
#[derive(Debug)]
pub struct HelperPermit {
    helpers: Helpers,
    count: usize,
}

impl Helpers {
    /// `count` threads in total.
    pub fn new(count: usize) -> Helpers {
        Helpers(Arc::new(AtomicUsize::new(count)))
    }

    /// Takes up to `wanted` of the free threads; possibly none.
    pub fn take(&self, wanted: usize) -> HelperPermit {
        let mut count = 0;
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
            count = wanted.min(free);
            Some(free - count)
        });
        HelperPermit { helpers: self.clone(), count }
    }
}

impl HelperPermit {
    /// Number of threads.
    pub fn count(&self) -> usize {
        self.count
    }
}

impl Drop for HelperPermit {
    fn drop(&mut self) {
        self.helpers.0.fetch_add(self.count, Ordering::Relaxed);
    }
}

/// Cancels a query; clones share one flag.
#[derive(Clone, Default)]
pub struct CancelToken(Arc<CancelFlags>);

#[derive(Default)]
struct CancelFlags {
    canceled: AtomicBool,
    timed_out: AtomicBool,
}

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Records that the client disconnected.
    pub fn cancel(&self) {
        self.0.canceled.store(true, Ordering::Relaxed);
    }

    /// Records that the time limit expired.
    pub fn time_out(&self) {
        self.0.timed_out.store(true, Ordering::Relaxed);
    }

    /// Fails once the query was cancelled. Called between batches, not per sample.
    ///
    /// # Errors
    /// `Timeout` or `Canceled`.
    pub fn check(&self) -> Result<()> {
        if self.0.timed_out.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Timeout, "query timed out in expression evaluation"));
        }
        if self.0.canceled.load(Ordering::Relaxed) {
            return Err(Error::new(
                ErrorKind::Canceled,
                "query was canceled in expression evaluation",
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelToken").field(&self.0.canceled.load(Ordering::Relaxed)).finish()
    }
}

/// Storage as a query sees it: one immutable, consistent view.
pub trait Select: Send + Sync {
    /// Finds the matching series; reads no sample yet.
    ///
    /// # Errors
    /// `Busy` without memory, `Canceled`, `Timeout`, and `Unavailable` or `Corrupt` from storage.
    fn select(&self, selection: &Selection, context: &QueryContext) -> Result<Box<dyn Selected>>;
}

/// The groups that a [`Selection`] matches. Groups can be read in any order and from many threads.
pub trait Selected: Send + Sync {
    /// The distinct keys under the selection's [`Grouping`]; [`crate::Column::key`] indexes them.
    /// With [`Grouping::Series`] no two series share one.
    fn keys(&self) -> &[Labels];

    /// Number of matching groups.
    fn group_count(&self) -> usize;

    /// Approximate number of matching members of a group, used to size reads.
    fn member_count(&self, _group: usize) -> usize {
        1
    }

    /// Reads some groups: one batch each, in order; a group without samples yields an empty batch.
    /// Read many groups per call, so that cold blocks are fetched together.
    ///
    /// # Errors
    /// As [`Select::select`].
    fn read(&self, groups: Range<usize>) -> Result<Vec<ColumnBatch>>;

    /// As [`Selected::read`], but lends one batch after the other to `each`, so that storage can
    /// reuse the memory. Storage reserves memory for the batches it lends. An error of `each` ends
    /// the call.
    ///
    /// # Errors
    /// As [`Selected::read`], and the errors of `each`.
    fn each(
        &self,
        groups: Range<usize>,
        each: &mut dyn FnMut(&ColumnBatch) -> Result<()>,
    ) -> Result<()> {
        self.read(groups)?.iter().try_for_each(each)
    }
}
