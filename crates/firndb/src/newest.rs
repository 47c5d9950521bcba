//! The newest sample of each series, for federation.

use firn_model::{
    Column, ColumnBatch, ColumnValues, Grouping, Labels, Matcher, Pool, QueryContext, Reservation,
    Result, Sample, Select, Selection, TimeRange, is_stale_nan,
};

use crate::Db;

// Few enough that their blocks fit into memory together, enough that a read of cold storage
// requests many at once.
const GROUPS_PER_READ: usize = 1_024;
// An entry of a list that doubles; the old one exists until it is copied.
const ENTRY_BYTES: usize = 3 * size_of::<(Labels, Sample)>();

impl Db {
    /// The newest sample in `range` of each series that matches one of `selectors`, sorted by
    /// labels, and the reservation of their memory. Series with a stale marker or a native
    /// histogram as newest sample are omitted.
    ///
    /// # Errors
    /// `Canceled`, `Timeout`, `Busy` or `TooLarge` without memory, and errors of storage.
    pub fn newest(
        &self,
        selectors: &[Vec<Matcher>],
        range: TimeRange,
        context: &QueryContext,
    ) -> Result<(Vec<(Labels, Sample)>, Reservation)> {
        let snapshot = self.snapshot();
        let mut held = context.budget.empty(Pool::Query);
        let (mut found, mut held_bytes) = (Vec::<(Labels, Sample)>::new(), 0);
        for matchers in selectors {
            let selection =
                Selection { matchers: matchers.clone(), range, grouping: Grouping::Series };
            let selected = snapshot.select(&selection, context)?;
            for start in (0..selected.group_count()).step_by(GROUPS_PER_READ) {
                let end = (start + GROUPS_PER_READ).min(selected.group_count());
                selected.each(start..end, &mut |batch| {
                    let labels = |column: &Column| selected.keys().get(column.key as usize);
                    let text_bytes = |column: &Column| labels(column).map(|l| l.as_encoded().len());
                    let texts: usize = batch.columns.iter().filter_map(text_bytes).sum();
                    held_bytes += texts + batch.columns.len() * ENTRY_BYTES;
                    held.cover(held_bytes as u64)?;
                    found.extend(batch.columns.iter().filter_map(|column| {
                        Some((labels(column)?.clone(), newest(batch, column)?))
                    }));
                    Ok(())
                })?;
            }
        }
        found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        found.dedup_by(|a, b| a.0 == b.0);
        Ok((found, held))
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
