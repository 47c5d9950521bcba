//! The result of a selection in compact form: the parts and member sets of each segment that match,
//! instead of one entry per group.
//!
//! Counting the matched series needs no more than this. Reading samples needs the groups, which
//! take about 50 ns each to collect.

use std::sync::Arc;

use firn_model::{Grouping, Pool, QueryContext, Result};

use crate::key_table::KeyTable;
use crate::matches::{self, MatchClasses, Matches};
use crate::memory::index::Watermark;
use crate::memory::matching;
use crate::sealed::MatchedRows;
use crate::version::IndexVersion;

/// The series for which all matchers of a selection hold. Immutable: it holds the segments and runs
/// of row numbers, whose memory counts for the query.
#[derive(Debug)]
pub struct MatchedSeries {
    pub(crate) version: Arc<IndexVersion>,
    pub(crate) mark: Watermark,
    /// By sealed segment.
    pub(crate) sealed: Vec<MatchedRows>,
    /// By segment in memory.
    pub(crate) in_memory: Vec<MatchClasses>,
}

impl MatchedSeries {
    pub(crate) fn new(
        version: Arc<IndexVersion>,
        mark: Watermark,
        sealed: Vec<MatchedRows>,
        in_memory: Vec<MatchClasses>,
    ) -> MatchedSeries {
        MatchedSeries { version, mark, sealed, in_memory }
    }

    /// The exact number of series. Does not read sealed groups that have all members of their
    /// shape.
    ///
    /// # Errors
    /// As [`crate::IndexView::select`].
    pub fn series_count(&self, context: &QueryContext) -> Result<u64> {
        let mut count = 0;
        for (segment, found) in self.version.sealed.iter().zip(&self.sealed) {
            count += segment.sealed.count(found, context)?;
        }
        for ((layer, mark), classes) in self.version.layers(self.mark).zip(&self.in_memory) {
            count += matching::count(&layer.memory, mark, classes, context)?;
        }
        Ok(count)
    }

    /// Every group and slot, with a key under `grouping` for each series. Reserves memory as
    /// needed.
    ///
    /// # Errors
    /// As [`crate::IndexView::select`]; `Busy` without memory, `TooLarge` beyond the query's share
    /// of memory.
    pub fn collect_groups(&self, grouping: &Grouping, context: &QueryContext) -> Result<Matches> {
        let mut keys = KeyTable::new(grouping.clone(), context.budget.empty(Pool::Query));
        let mut groups = Vec::new();
        for (segment, found) in self.version.sealed.iter().zip(&self.sealed) {
            segment.sealed.collect_groups(found, &mut keys, context, &mut groups)?;
        }
        for ((layer, mark), classes) in self.version.layers(self.mark).zip(&self.in_memory) {
            let (memory, keys) = (&layer.memory, &mut keys);
            matching::collect_groups(memory, mark, classes, keys, context, &mut groups)?;
        }
        // The sort needs an id and an index per group, twice.
        keys.hold_others(matches::groups_bytes(&groups) + 32 * groups.len() as u64)?;
        matches::unite(&mut groups);
        let (keys, held) = keys.finish(matches::groups_bytes(&groups))?;
        Ok(Matches { keys, groups, held })
    }
}
