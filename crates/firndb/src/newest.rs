//! The newest sample of each series, for federation.

use firn_model::{
    Column, ColumnBatch, ColumnValues, Grouping, Labels, Matcher, Pool, QueryContext, Result,
    Sample, Select, Selection, TimeRange, is_stale_nan,
};

use crate::Db;

// Few enough that their columns fit into memory together, enough that a read of cold storage
// requests many blocks at once.
const GROUPS_PER_READ: usize = 1_024;

impl Db {
    /// The newest sample in `range` of each series that matches one of `selectors`, sorted by
    /// labels. Series with a stale marker or a native histogram as newest sample are omitted.
    ///
    /// # Errors
    /// `Canceled`, `Timeout`, `Busy` or `TooLarge` without memory, and errors of storage.
    pub fn newest(
        &self,
        selectors: &[Vec<Matcher>],
        range: TimeRange,
        context: &QueryContext,
    ) -> Result<Vec<(Labels, Sample)>> {
        let snapshot = self.snapshot();
        let mut held = context.budget.empty(Pool::Query);
        let mut found: Vec<(Labels, Sample)> = Vec::new();
        for matchers in selectors {
            let selection =
                Selection { matchers: matchers.clone(), range, grouping: Grouping::Series };
            let selected = snapshot.select(&selection, context)?;
            for start in (0..selected.group_count()).step_by(GROUPS_PER_READ) {
                let end = (start + GROUPS_PER_READ).min(selected.group_count());
                let first = found.len();
                for batch in selected.read(start..end)? {
                    found.extend(batch.columns.iter().filter_map(|column| {
                        let labels = selected.keys().get(column.key as usize)?;
                        Some((labels.clone(), newest(&batch, column)?))
                    }));
                }
                let bytes = |(labels, _): &(Labels, Sample)| {
                    (labels.as_encoded().len() + size_of::<(Labels, Sample)>()) as u64
                };
                held.grow(found.iter().skip(first).map(bytes).sum())?;
            }
        }
        found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        found.dedup_by(|a, b| a.0 == b.0);
        Ok(found)
    }
}

fn newest(batch: &ColumnBatch, column: &Column) -> Option<Sample> {
    let ColumnValues::F64(values) = &column.values else { return None };
    let value = *values.last()?;
    let times = batch.times.get(column.time_idx as usize)?;
    let ts = match &column.presence {
        Some(presence) => *times.get(presence.iter().last()?)?,
        None => *times.last()?,
    };
    (!is_stale_nan(value)).then_some(Sample { ts, value })
}
