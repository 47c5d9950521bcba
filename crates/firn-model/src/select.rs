//! The seam between language and storage: what a query asks, and how it reads the answer.
//!
//! PromQL sees storage only through [`Select`]; it is tested on a plain vector of samples.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::{
    Budget, ColumnBatch, Error, ErrorKind, Labels, Matcher, QueryStats, Result, TimeRange,
};

/// What one selector of a query needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// All must hold.
    pub matchers: Vec<Matcher>,
    /// The exact range whose samples are needed, both ends inside.
    pub range: TimeRange,
    /// Which labels the answer must tell apart.
    pub grouping: Grouping,
}

/// The labels that the query looks at after the selection. With `By` and `Without` the storage
/// answers with a group key per series and need not build label sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// Every label: one key per series.
    Series,
    /// Only these names: as `sum by (...)`.
    By(Vec<String>),
    /// All but these names and the metric's name: as `sum without (...)`.
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

/// What runs beside a query: who may stop it and what memory it may use.
#[derive(Clone, Debug)]
pub struct QueryContext {
    /// Set when the client has gone or time is over.
    pub cancel: CancelToken,
    /// Where decoded columns are accounted; a [`Budget::part`] limits the query by itself.
    pub budget: Budget,
    /// Threads that it may borrow.
    pub helpers: Helpers,
    /// What the query does.
    pub stats: Arc<QueryStats>,
}

impl QueryContext {
    /// Never cancelled, no memory limit: for tests and tools.
    pub fn unbounded() -> QueryContext {
        QueryContext::new(CancelToken::new(), Budget::unlimited())
    }

    /// Without helpers.
    pub fn new(cancel: CancelToken, budget: Budget) -> QueryContext {
        QueryContext { cancel, budget, helpers: Helpers::new(0), stats: Arc::default() }
    }
}

/// How many threads may help queries besides the one that each runs on: clones share the count, so that many queries
/// at once do not make many times the cores' threads.
#[derive(Clone, Debug)]
pub struct Helpers(Arc<AtomicUsize>);

/// Leave to start some threads; dropping it gives them back.
#[derive(Debug)]
pub struct HelperPermit {
    helpers: Helpers,
    count: usize,
}

impl Helpers {
    /// `count` threads in all.
    pub fn new(count: usize) -> Helpers {
        Helpers(Arc::new(AtomicUsize::new(count)))
    }

    /// As many of `wanted` as are free now, maybe none.
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
    /// How many threads.
    pub fn count(&self) -> usize {
        self.count
    }
}

impl Drop for HelperPermit {
    fn drop(&mut self) {
        self.helpers.0.fetch_add(self.count, Ordering::Relaxed);
    }
}

/// Tells a query to stop; clones share one flag.
#[derive(Clone, Default)]
pub struct CancelToken(Arc<Flags>);

#[derive(Default)]
struct Flags {
    canceled: AtomicBool,
    timed_out: AtomicBool,
}

impl CancelToken {
    /// Not cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// The client has gone.
    pub fn cancel(&self) {
        self.0.canceled.store(true, Ordering::Relaxed);
    }

    /// The time is over.
    pub fn time_out(&self) {
        self.0.timed_out.store(true, Ordering::Relaxed);
    }

    /// An error once somebody asked to stop. Asked between batches, not per sample.
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

/// Storage as a query sees it: one frozen, consistent view.
pub trait Select: Send + Sync {
    /// Finds what matches; reads no sample yet.
    ///
    /// # Errors
    /// `Busy` without memory, `Canceled`, `Timeout`, `Unavailable` or `Corrupt` from below.
    fn select(&self, selection: &Selection, context: &QueryContext) -> Result<Box<dyn Selected>>;
}

/// The groups that a [`Selection`] matches. Groups can be read in any order and from many threads.
pub trait Selected: Send + Sync {
    /// The distinct keys under the selection's [`Grouping`]; [`crate::Column::key`] indexes them.
    /// With [`Grouping::Series`] no two series share one.
    fn keys(&self) -> &[Labels];

    /// How many groups match.
    fn group_count(&self) -> usize;

    /// How many members of a group match, about: what reads are sized by.
    fn member_count(&self, _group: usize) -> usize {
        1
    }

    /// Reads some groups: one batch each, in order; a group without samples gives an empty batch.
    /// Ask for many at once: cold blocks are then fetched together.
    ///
    /// # Errors
    /// As [`Select::select`].
    fn read(&self, groups: Range<usize>) -> Result<Vec<ColumnBatch>>;

    /// As [`Selected::read`], but lends one batch after the other to `each`, so that storage may use its memory for
    /// the next one. Storage sets memory aside for what it lends; an error of `each` ends it.
    ///
    /// # Errors
    /// As [`Selected::read`], and those of `each`.
    fn each(
        &self,
        groups: Range<usize>,
        each: &mut dyn FnMut(&ColumnBatch) -> Result<()>,
    ) -> Result<()> {
        self.read(groups)?.iter().try_for_each(each)
    }
}
