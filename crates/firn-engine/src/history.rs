//! The part of a database that the log does not change, for queries while the log is replayed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use firn_codec::Tombstones;
use firn_head::Head;
use firn_index::Index;
use firn_model::{
    Budget, Error, QueryContext, Result, Select, Selected, Selection, ShardBits, TimeRange,
    Timestamp,
};
use firn_tree::Tree;

use crate::options::EngineOptions;
use crate::snapshot::Snapshot;

/// Tables and index as the replay found them: complete for every time before the oldest row of the
/// log. Valid until the database accepts writes.
#[derive(Clone, Debug)]
pub struct History {
    snapshot: Snapshot,
    budget: Budget,
    before: Timestamp,
}

/// A view of [`History`] for one query. A selection that needs rows of the log fails.
#[derive(Debug)]
pub struct HistoryView<'a> {
    history: &'a History,
    needs_log: AtomicBool,
}

impl History {
    /// The state of `tree` and `index` before the log's rows, the oldest of which is at `before`.
    /// `deletes` are those of the manifest and of the log.
    pub(crate) fn new(
        (index, tree): (&Index, &Tree),
        (bits, options): (ShardBits, &EngineOptions),
        budget: &Budget,
        (deletes, before): (&Arc<Tombstones>, Timestamp),
    ) -> History {
        let head = Head::new(bits, options.head.clone(), budget.clone()).snapshot();
        let deletes = Arc::clone(deletes);
        let snapshot = Snapshot::of_tables(bits, head, tree.version(), deletes, index.view());
        History { snapshot, budget: budget.clone(), before }
    }

    /// The memory budget of the database.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// All samples with an earlier timestamp are here.
    pub fn before(&self) -> Timestamp {
        self.before
    }

    /// The tables, which have all samples of `range`; `None` if some may be in the log.
    pub fn tables(&self, range: TimeRange) -> Option<&Snapshot> {
        let is_complete = range.is_empty() || range.end < self.before;
        is_complete.then_some(&self.snapshot)
    }

    /// A view for one query.
    pub fn view(&self) -> HistoryView<'_> {
        HistoryView { history: self, needs_log: AtomicBool::new(false) }
    }
}

impl HistoryView<'_> {
    /// Whether a selection has failed because it needs rows of the log.
    pub fn needs_log(&self) -> bool {
        self.needs_log.load(Ordering::Relaxed)
    }
}

impl Select for HistoryView<'_> {
    fn select(&self, selection: &Selection, context: &QueryContext) -> Result<Box<dyn Selected>> {
        let Some(tables) = self.history.tables(selection.range) else {
            self.needs_log.store(true, Ordering::Relaxed);
            return Err(Error::unavailable(
                "the log is being replayed and contains samples of this time range; retry later",
            ));
        };
        tables.select(selection, context)
    }
}
