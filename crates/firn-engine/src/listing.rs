//! Metadata lookups: series with samples in a time range, tables, memory. Columns are read only
//! where a delete hides a part of them.

use std::iter::{Peekable, successors};
use std::ops::ControlFlow;

use firn_index::{GroupMatch, MatchedSeries, Matches, Member, Members};
use firn_model::{Grouping, Labels, Matcher, QueryContext, Result, Selected, Selection, TimeRange};
use firn_tree::TableRecord;

use crate::Snapshot;
use crate::presence::PresenceLookup;
use crate::snapshot::of_groups;

// The first pass reads this much of the end of a range: a living scraped series has a sample there.
// The others are searched further back.
const FIRST_LOOK_MS: i64 = 5 * 60_000;
// Growth of the range from one pass to the next.
const LOOK_GROWTH: i64 = 8;
// Members per pass: some megabytes of columns.
const MEMBERS_PER_LOOK: usize = 16_384;

impl Snapshot {
    /// The matching series with samples in the selection's range, according to the chunk headers in
    /// memory and the directories of tables: no column is read. Deleted samples never count: where
    /// a delete hides only a part of a series, its columns are read.
    ///
    /// A series without a sample in the range may be included if it has samples around it. Rows in
    /// memory are exact, columns in memory exact to a chunk. A table records of each series only
    /// the time from its first to its last sample in a block, rounded to 1/32 of a partition.
    ///
    /// # Errors
    /// As [`firn_model::Selected::read`].
    pub fn present(&self, selection: &Selection, context: &QueryContext) -> Result<Matches> {
        let Matches { keys, groups, held } = self.find(selection, context)?;
        let mut presence = PresenceLookup::new(self, selection.range, context);
        let mut present = Vec::with_capacity(groups.len());
        let mut groups = groups.into_iter().peekable();
        while groups.peek().is_some() {
            let look = next_look(&mut groups, MEMBERS_PER_LOOK);
            present.append(&mut self.present_among(look, &mut presence)?);
        }
        Ok(Matches { keys, groups: present, held })
    }

    /// The labels of the first `limit` (0: all) of the series of [`Snapshot::present`], in its
    /// order, which is that of groups and slots.
    ///
    /// # Errors
    /// As [`Snapshot::present`].
    pub fn present_series(
        &self,
        matchers: &[Matcher],
        range: TimeRange,
        limit: usize,
        context: &QueryContext,
        each: &mut dyn FnMut(Labels) -> Result<()>,
    ) -> Result<()> {
        let grouping = Grouping::By(Vec::new());
        let selection = Selection { matchers: matchers.to_vec(), range, grouping };
        let Matches { groups, held: _held, .. } = self.find(&selection, context)?;
        let mut left = if limit == 0 { usize::MAX } else { limit };
        let mut presence = PresenceLookup::new(self, range, context);
        let mut groups = groups.into_iter().peekable();
        let mut look = if limit == 0 { MEMBERS_PER_LOOK } else { limit };
        while groups.peek().is_some() && left > 0 {
            let mut found = self.present_among(next_look(&mut groups, look), &mut presence)?;
            look = MEMBERS_PER_LOOK.min(2 * look);
            for group in &mut found {
                group.members.truncate(left);
                left -= group.members.len();
            }
            self.index().each_labels(&found, context, each)?;
        }
        Ok(())
    }

    /// Calls `each` with the label names of the series that match `matchers` and are present in
    /// `range`, as exact as [`Snapshot::present`], ascending, until it breaks. Costs a lookup of
    /// one series for each name that is present.
    ///
    /// # Errors
    /// As [`Snapshot::present`], and those of `each`.
    pub fn each_label_name(
        &self,
        matchers: &[Matcher],
        range: TimeRange,
        context: &QueryContext,
        each: &mut dyn FnMut(&str) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let found = self.select(matchers, context)?;
        let mut presence = PresenceLookup::new(self, range, context);
        found.each_name(context, &mut presence, each)
    }

    /// Calls `each` with the values of label `name` in the series that match `matchers` and are
    /// present in `range`, as exact as [`Snapshot::present`], ascending, until it breaks. Costs a
    /// lookup of one series for each value that is present.
    ///
    /// # Errors
    /// As [`Snapshot::present`], and those of `each`.
    pub fn each_label_value(
        &self,
        name: &str,
        matchers: &[Matcher],
        range: TimeRange,
        context: &QueryContext,
        each: &mut dyn FnMut(&str) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let found = self.select(matchers, context)?;
        let mut presence = PresenceLookup::new(self, range, context);
        found.each_value(name, context, &mut presence, each)
    }

    fn select(&self, matchers: &[Matcher], context: &QueryContext) -> Result<MatchedSeries> {
        let stats = &context.stats;
        stats.timed(&stats.select_ns, || self.index().select_in_scope(matchers, context))
    }

    /// Removes members without a sample in the range of `presence` from `groups`. Columns are read
    /// only where a delete that is not applied yet hides some but not all of a member's samples.
    fn present_among(
        &self,
        mut groups: Vec<GroupMatch>,
        presence: &mut PresenceLookup<'_>,
    ) -> Result<Vec<GroupMatch>> {
        presence.expect(&groups);
        let mut unknown = Vec::new();
        let mut left = Vec::new();
        for found in &mut groups {
            let group = found.group;
            left.clear();
            left.extend(found.members.iter().map(|member| member.slot));
            if presence.take_present(group, &mut left)? {
                found.members.retain(|member| left.binary_search(&member.slot).is_err());
            } else if !left.is_empty() {
                let members = found.members.iter().filter(|m| left.binary_search(&m.slot).is_ok());
                unknown.push(GroupMatch { group, members: members.copied().collect() });
            }
        }
        let absent = self.absent(unknown, presence.range(), presence.context())?;
        let mut absent = absent.iter().peekable();
        for found in &mut groups {
            if let Some(gone) = absent.next_if(|gone| gone.group == found.group) {
                let is_gone = |slot| gone.members.binary_search_by_key(&slot, |m| m.slot).is_ok();
                found.members.retain(|member| !is_gone(member.slot));
            }
        }
        groups.retain(|found| !found.members.is_empty());
        Ok(groups)
    }

    /// Those of `wanted` without a sample in `range`. Searches the end first, then further back,
    /// each time only for members that are still missing.
    pub(crate) fn absent(
        &self,
        mut wanted: Vec<GroupMatch>,
        range: TimeRange,
        context: &QueryContext,
    ) -> Result<Vec<GroupMatch>> {
        for look in looks(range) {
            if wanted.is_empty() {
                break;
            }
            let group_count = wanted.len();
            let selected = self.selected(of_groups(wanted, context), look, context);
            let mut left = Vec::new();
            let mut groups = selected.groups().iter();
            selected.each(0..group_count, &mut |batch| {
                let Some(found) = groups.next() else { return Ok(()) };
                let mut columns = batch.columns.iter().peekable();
                // Both are sorted by slot.
                let is_absent = |member: &&Member| {
                    while columns.next_if(|column| column.slot < member.slot).is_some() {}
                    columns.peek().is_none_or(|column| column.slot != member.slot)
                };
                let members: Members = found.members.iter().filter(is_absent).copied().collect();
                if !members.is_empty() {
                    left.push(GroupMatch { group: found.group, members });
                }
                Ok(())
            })?;
            wanted = left;
        }
        Ok(wanted)
    }

    /// From the first to the last timestamp.
    pub fn time_range(&self) -> TimeRange {
        self.tables().fold(self.memory_range(), |range, table| range.union(table.time_range))
    }

    /// From the first to the last timestamp in memory.
    pub fn memory_range(&self) -> TimeRange {
        self.head().time_range()
    }

    /// Number of pieces of memory with rows.
    pub fn memory_part_count(&self) -> usize {
        self.head().part_count()
    }

    /// Every table: level 0 first, within a level by time.
    pub fn tables(&self) -> impl Iterator<Item = &TableRecord> {
        self.version().tables()
    }
}

/// The next groups, with at most `member_count_max` members in total, or one larger group.
fn next_look(
    groups: &mut Peekable<impl Iterator<Item = GroupMatch>>,
    member_count_max: usize,
) -> Vec<GroupMatch> {
    let mut look: Vec<GroupMatch> = groups.next().into_iter().collect();
    let mut member_count = look.iter().map(|found| found.members.len()).sum::<usize>();
    while let Some(found) =
        groups.next_if(|found| member_count + found.members.len() <= member_count_max)
    {
        member_count += found.members.len();
        look.push(found);
    }
    look
}

/// Cuts `range` into pieces, the last one first, each longer than the previous one.
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
    use firn_index::Member;
    use firn_model::{GroupId, Slot};

    use super::*;

    fn group(id: u64, members: &[(u32, u32)]) -> GroupMatch {
        let members = members.iter().map(|&(slot, key)| Member { slot: Slot(slot), key });
        GroupMatch { group: GroupId(id), members: members.collect() }
    }

    #[test]
    fn a_look_is_bounded_by_members() {
        let members: Vec<(u32, u32)> = (0..MEMBERS_PER_LOOK as u32).map(|slot| (slot, 0)).collect();
        let half = MEMBERS_PER_LOOK / 2;
        let all = [
            group(1, &members),
            group(2, &members[..half]),
            group(3, &members[..half]),
            group(4, &members[..1]),
        ];
        let mut groups = all.iter().cloned().peekable();
        let counts: Vec<usize> =
            std::iter::from_fn(|| Some(next_look(&mut groups, MEMBERS_PER_LOOK).len()))
                .take_while(|&count| count > 0)
                .collect();
        assert_eq!(counts, [1, 2, 1]);
    }

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
