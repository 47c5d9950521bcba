//! What a selection found, as small as what selects it: which parts and member sets of each segment match, not one entry
//! for each group.
//!
//! Most of what is asked of a selection (how many series, whether there are any) needs no more. Who reads samples has the
//! groups laid out, which takes about 50 ns for each.

use std::sync::Arc;

use firn_model::{CancelToken, Grouping, Pool, QueryContext, Result};

use crate::key_table::KeyTable;
use crate::matches::{self, MatchClass, Matches};
use crate::memory::index::Watermark;
use crate::memory::matching;
use crate::sealed::MatchedRows;
use crate::version::IndexVersion;

/// The series for which all matchers of a selection hold. Never changes; cheap to keep: it holds the segments and a few
/// runs of numbers.
#[derive(Clone, Debug)]
pub struct MatchedSeries {
    version: Arc<IndexVersion>,
    mark: Watermark,
    /// By sealed segment.
    sealed: Vec<MatchedRows>,
    /// By segment in memory.
    in_memory: Vec<Vec<MatchClass>>,
}

impl MatchedSeries {
    pub(crate) fn new(
        version: Arc<IndexVersion>,
        mark: Watermark,
        sealed: Vec<MatchedRows>,
        in_memory: Vec<Vec<MatchClass>>,
    ) -> MatchedSeries {
        MatchedSeries { version, mark, sealed, in_memory }
    }

    /// How many series, exactly. Does not look at sealed groups that have what those like them have.
    ///
    /// # Errors
    /// As [`crate::IndexView::select`].
    pub fn series_count(&self, cancel: &CancelToken) -> Result<u64> {
        let mut count = 0;
        for (segment, found) in self.version.sealed.iter().zip(&self.sealed) {
            count += segment.sealed.count(found, cancel)?;
        }
        for ((layer, mark), classes) in self.version.layers(self.mark).zip(&self.in_memory) {
            count += matching::count(&layer.memory, mark, classes, cancel)?;
        }
        Ok(count)
    }

    /// Every group and slot, with a key under `grouping` for each. Memory is reserved as it is needed.
    ///
    /// # Errors
    /// As [`crate::IndexView::select`]; `Busy` without memory, `TooLarge` over the query's part of it.
    pub fn collect_groups(&self, grouping: &Grouping, context: &QueryContext) -> Result<Matches> {
        let cancel = &context.cancel;
        let mut keys = KeyTable::new(grouping.clone(), context.budget.empty(Pool::Query));
        let mut groups = Vec::new();
        for (segment, found) in self.version.sealed.iter().zip(&self.sealed) {
            segment.sealed.collect_groups(found, &mut keys, cancel, &mut groups)?;
        }
        for ((layer, mark), classes) in self.version.layers(self.mark).zip(&self.in_memory) {
            matching::collect_groups(&layer.memory, mark, classes, &mut keys, cancel, &mut groups)?;
        }
        // Sorting takes a number and a place for each, twice.
        keys.hold_others(matches::groups_bytes(&groups) + 32 * groups.len() as u64)?;
        matches::unite(&mut groups);
        let (keys, held) = keys.finish(matches::groups_bytes(&groups))?;
        Ok(Matches { keys, groups, held })
    }
}
