//! What is there: which series have samples in a time range, which tables, how much is in memory.

use std::iter::successors;

use firn_index::{GroupMatch, Matches};
use firn_model::{QueryContext, Result, Selected, Selection, TimeRange};
use firn_tree::TableRecord;

use crate::Snapshot;

// Series that are scraped have a sample in this time before any moment, so that one look finds nearly
// all of them; the others are looked for further back.
const FIRST_LOOK_MS: i64 = 5 * 60_000;
// How much longer than the one before each look is.
const LOOK_GROWTH: i64 = 8;
// Groups that are looked at together.
const GROUPS_PER_LOOK: usize = 256;

impl Snapshot {
    /// The series that match and have a sample in the selection's range, exactly. A range that holds
    /// all that there is costs no reading, but for groups that deletes touch; then a member of a group
    /// that has samples may be listed although retention took its own.
    ///
    /// # Errors
    /// As [`firn_model::Selected::read`].
    pub fn present(&self, selection: &Selection, context: &QueryContext) -> Result<Matches> {
        let mut matches = self.matches(selection, context)?;
        let reach = self.time_range();
        let is_everything = selection.range.covers(reach);
        if is_everything && self.tombstones().is_empty() {
            return Ok(matches);
        }
        let range = selection.range.intersect(reach);
        let mut deletes = self.tombstones().walk(range);
        for groups in matches.groups.chunks_mut(GROUPS_PER_LOOK) {
            let mut looked_at = groups.to_vec();
            looked_at.retain(|found| !is_everything || deletes.touches(found.group));
            if looked_at.is_empty() {
                continue;
            }
            let absent = self.absent(looked_at, range, context)?;
            let mut absent = absent.iter().peekable();
            for found in groups {
                if let Some(gone) = absent.next_if(|gone| gone.group == found.group) {
                    let is_gone =
                        |slot| gone.members.binary_search_by_key(&slot, |m| m.slot).is_ok();
                    found.members.retain(|member| !is_gone(member.slot));
                }
            }
        }
        matches.groups.retain(|found| !found.members.is_empty());
        Ok(matches)
    }

    /// Those of `wanted` that have no sample in `range`. Looks at the end first, then further and
    /// further back, each time only for those that were not found yet.
    fn absent(
        &self,
        mut wanted: Vec<GroupMatch>,
        range: TimeRange,
        context: &QueryContext,
    ) -> Result<Vec<GroupMatch>> {
        for look in looks(range) {
            let group_count = wanted.len();
            let selected = self.selected(Vec::new(), wanted, look, context);
            let batches = selected.read(0..group_count)?;
            wanted = selected.groups;
            for (found, batch) in wanted.iter_mut().zip(&batches) {
                let is_here = |slot| batch.columns.iter().any(|column| column.slot == slot);
                found.members.retain(|member| !is_here(member.slot));
            }
            wanted.retain(|found| !found.members.is_empty());
            if wanted.is_empty() {
                break;
            }
        }
        Ok(wanted)
    }

    /// From the first to the last timestamp that there is.
    pub fn time_range(&self) -> TimeRange {
        self.tables().fold(self.memory_range(), |range, table| range.union(table.time_range))
    }

    /// From the first to the last timestamp in memory.
    pub fn memory_range(&self) -> TimeRange {
        self.head().time_range()
    }

    /// How many pieces of memory hold rows.
    pub fn memory_part_count(&self) -> usize {
        self.head().part_count()
    }

    /// Every table: level 0 first, within a level by time.
    pub fn tables(&self) -> impl Iterator<Item = &TableRecord> {
        self.version().tables()
    }
}

/// Cuts `range` into pieces, the last first, each longer than the one behind it.
fn looks(range: TimeRange) -> impl Iterator<Item = TimeRange> {
    let piece = move |end: i64, len_ms: i64| {
        (end >= range.start).then(|| {
            let start = end.saturating_sub(len_ms - 1).max(range.start);
            (TimeRange::new(start, end), len_ms)
        })
    };
    let first = piece(range.end, FIRST_LOOK_MS);
    let pieces = successors(first, move |(last, len_ms)| {
        piece(last.start.checked_sub(1)?, len_ms.saturating_mul(LOOK_GROWTH))
    });
    pieces.map(|(range, _)| range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_cover_the_range_once_from_its_end() {
        for range in [
            TimeRange::new(0, 0),
            TimeRange::new(-7, FIRST_LOOK_MS),
            TimeRange::new(0, 10_000_000_000),
            TimeRange::new(i64::MIN, 5),
            TimeRange::ALL,
        ] {
            let looks: Vec<TimeRange> = looks(range).collect();
            assert_eq!((looks[0].end, looks[looks.len() - 1].start), (range.end, range.start));
            assert!(looks.windows(2).all(|pair| pair[1].end + 1 == pair[0].start), "{looks:?}");
            assert!(looks.iter().all(|look| !look.is_empty()));
        }
        assert_eq!(looks(TimeRange::EMPTY).count(), 0);
    }
}
