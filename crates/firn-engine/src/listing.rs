//! Metadata lookups: series with samples in a time range, tables, memory. Columns are read only
//! where a delete hides a part of them.

use std::iter::{Peekable, successors};
use std::mem;

use firn_codec::HiddenSamples;
use firn_index::{GroupMatch, Matches, Member, Members};
use firn_model::{
    Grouping, Labels, MatchOp, Matcher, QueryContext, Reservation, Result, Selected, Selection,
    TimeRange,
};
use firn_tree::TableRecord;

use crate::Snapshot;
use crate::snapshot::of_groups;

// The first pass reads this much of the end of a range: a living scraped series has a sample there.
// The others are searched further back.
const FIRST_LOOK_MS: i64 = 5 * 60_000;
// Growth of the range from one pass to the next.
const LOOK_GROWTH: i64 = 8;
// Members per pass: some megabytes of columns.
const MEMBERS_PER_LOOK: usize = 16_384;
// Groups mostly have the same label names: this many show nearly all of them.
const NAMING_GROUPS_MAX: usize = 1_024;

impl Snapshot {
    /// The matching series with samples in the selection's range, according to the chunk headers in
    /// memory and the directories of tables: no column is read. Deleted samples never count: where
    /// a delete hides only a part of a series, its columns are read.
    ///
    /// A series without a sample in the range may be included if it has samples around it. Memory
    /// is exact to a chunk. A table records of each series only the time from its first to its last
    /// sample in a block, rounded to 1/32 of a partition.
    ///
    /// # Errors
    /// As [`firn_model::Selected::read`].
    pub fn present(&self, selection: &Selection, context: &QueryContext) -> Result<Matches> {
        let Matches { keys, groups, held } = self.find(selection, context)?;
        Ok(Matches { keys, groups: self.present_of(groups, selection.range, context)?, held })
    }

    /// The distinct keys, under the selection's grouping, of [`Snapshot::present`], and their
    /// memory. Costs a lookup of one series of each key, and of further series only for keys
    /// without a sample so far.
    ///
    /// # Errors
    /// As [`Snapshot::present`].
    pub fn keys(
        &self,
        selection: &Selection,
        context: &QueryContext,
    ) -> Result<(Vec<Labels>, Reservation)> {
        let Matches { keys, mut groups, held } = self.matches(selection, context)?;
        let mut is_here = vec![false; keys.len()];
        let ones = one_of_each_key(&groups, keys.len());
        mark(&self.present_of(ones, selection.range, context)?, &mut is_here);
        groups.retain_mut(|found| {
            found.members.retain(|member| !is_here[member.key as usize]);
            !found.members.is_empty()
        });
        mark(&self.present_of(groups, selection.range, context)?, &mut is_here);
        let keys = keys.into_iter().zip(is_here).filter(|(_, is_here)| *is_here);
        Ok((keys.map(|(key, _)| key).collect(), held))
    }

    /// The label names of the series that match `matchers` and have a sample in `range`, sorted.
    /// Costs a lookup of one series in each of some groups, and of further series only for names
    /// that none of these has.
    ///
    /// # Errors
    /// As [`Snapshot::present`].
    pub fn label_names(
        &self,
        matchers: &[Matcher],
        range: TimeRange,
        context: &QueryContext,
    ) -> Result<Vec<String>> {
        let one_key = |matchers| Selection { matchers, range, grouping: Grouping::By(Vec::new()) };
        let found = self.matches(&one_key(matchers.to_vec()), context)?;
        let candidates = self.index().label_names(Some(&found), &context.cancel)?;
        let last = |found: &GroupMatch| GroupMatch {
            group: found.group,
            members: found.members.last().copied().into_iter().collect(),
        };
        let stride = found.groups.len().div_ceil(NAMING_GROUPS_MAX).max(1);
        let some = found.groups.iter().step_by(stride).map(last).collect();
        let groups = self.present_of(some, range, context)?;
        let shown = of_groups(groups, context);
        let shown = self.index().label_names(Some(&shown), &context.cancel)?;
        let mut names = Vec::with_capacity(candidates.len());
        for name in candidates {
            context.cancel.check()?;
            let mut matchers = matchers.to_vec();
            matchers.push(Matcher::new(name.as_str(), MatchOp::NotEqual, "")?);
            if shown.binary_search(&name).is_ok()
                || self.is_any_present(&one_key(matchers), context)?
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn is_any_present(&self, selection: &Selection, context: &QueryContext) -> Result<bool> {
        let mut groups = self.matches(selection, context)?.groups.into_iter().peekable();
        while groups.peek().is_some() {
            let some = next_look(&mut groups);
            if !self.present_of(some, selection.range, context)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes members without a sample in `range` from `groups`. Columns are read only where a
    /// delete that is not applied yet hides some but not all of a member's samples.
    fn present_of(
        &self,
        groups: Vec<GroupMatch>,
        range: TimeRange,
        context: &QueryContext,
    ) -> Result<Vec<GroupMatch>> {
        let memory_range = self.memory_range();
        let range = range.intersect(self.time_range());
        let mut deletes = self.tombstones().walk(TimeRange::ALL);
        let mut head = self.head().reader(range);
        let mut left = Vec::new();
        let mut present = Vec::with_capacity(groups.len());
        let mut groups = groups.into_iter().peekable();
        while groups.peek().is_some() {
            context.cancel.check()?;
            let first = present.len();
            let mut unknown = Vec::new();
            for mut found in next_look(&mut groups) {
                let group = found.group;
                left.clear();
                left.extend(found.members.iter().map(|member| member.slot));
                let hidden = deletes.of(group).filter(|_| !self.lists_deleted());
                let hidden: Vec<HiddenSamples<'_>> = hidden.collect();
                let is_touched = hidden.iter().any(|one| one.range.overlaps(memory_range));
                // Parts in memory do not show which of their samples are hidden.
                let mut is_decided = !is_touched || !head.has_data(group, range);
                if !is_touched {
                    head.take_present(group, range, &mut left)?;
                }
                if !left.is_empty() {
                    is_decided &= self.version().take_present(group, range, &hidden, &mut left);
                }
                if !is_decided && !left.is_empty() {
                    let members =
                        found.members.iter().filter(|m| left.binary_search(&m.slot).is_ok());
                    unknown.push(GroupMatch { group, members: members.copied().collect() });
                } else {
                    found.members.retain(|member| left.binary_search(&member.slot).is_err());
                }
                present.push(found);
            }
            let absent = self.absent(unknown, range, context)?;
            let mut absent = absent.iter().peekable();
            for found in &mut present[first..] {
                if let Some(gone) = absent.next_if(|gone| gone.group == found.group) {
                    let is_gone =
                        |slot| gone.members.binary_search_by_key(&slot, |m| m.slot).is_ok();
                    found.members.retain(|member| !is_gone(member.slot));
                }
            }
        }
        present.retain(|found| !found.members.is_empty());
        Ok(present)
    }

    /// Those of `wanted` without a sample in `range`. Searches the end first, then further back,
    /// each time only for members that are still missing.
    fn absent(
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
            let batches = selected.read(0..group_count)?;
            wanted = selected.found.groups;
            for (found, batch) in wanted.iter_mut().zip(&batches) {
                let mut columns = batch.columns.iter().peekable();
                found.members.retain(|member| {
                    // Both are sorted by slot.
                    while columns.next_if(|column| column.slot < member.slot).is_some() {}
                    columns.peek().is_none_or(|column| column.slot != member.slot)
                });
            }
            wanted.retain(|found| !found.members.is_empty());
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

/// Marks the keys of `present`.
fn mark(present: &[GroupMatch], is_here: &mut [bool]) {
    let members = present.iter().flat_map(|found| &found.members);
    members.for_each(|member| is_here[member.key as usize] = true);
}

/// The last member of each key: the youngest series, which is most probably alive.
fn one_of_each_key(groups: &[GroupMatch], key_count: usize) -> Vec<GroupMatch> {
    let mut is_taken = vec![false; key_count];
    let mut taken: Vec<GroupMatch> = Vec::new();
    for found in groups.iter().rev() {
        let is_first = |member: &&Member| !mem::replace(&mut is_taken[member.key as usize], true);
        let mut members: Members = found.members.iter().rev().filter(is_first).copied().collect();
        if !members.is_empty() {
            members.reverse();
            taken.push(GroupMatch { group: found.group, members });
        }
    }
    taken.reverse();
    taken
}

/// The next groups, with [`MEMBERS_PER_LOOK`] members in total, or one larger group.
fn next_look(groups: &mut Peekable<impl Iterator<Item = GroupMatch>>) -> Vec<GroupMatch> {
    let mut look: Vec<GroupMatch> = groups.next().into_iter().collect();
    let mut member_count = look.iter().map(|found| found.members.len()).sum::<usize>();
    while let Some(found) =
        groups.next_if(|found| member_count + found.members.len() <= MEMBERS_PER_LOOK)
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
    use firn_model::{GroupId, Slot};

    use super::*;

    fn group(id: u64, members: &[(u32, u32)]) -> GroupMatch {
        let members = members.iter().map(|&(slot, key)| Member { slot: Slot(slot), key });
        GroupMatch { group: GroupId(id), members: members.collect() }
    }

    #[test]
    fn the_last_member_of_each_key_is_looked_at_first() {
        let groups = [group(1, &[(0, 0), (3, 1)]), group(2, &[(1, 1), (2, 2), (5, 1)])];
        let ones = one_of_each_key(&groups, 4);
        assert_eq!(ones, [group(1, &[(0, 0)]), group(2, &[(2, 2), (5, 1)])]);
        assert!(one_of_each_key(&[], 0).is_empty());
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
        let counts: Vec<usize> = std::iter::from_fn(|| Some(next_look(&mut groups).len()))
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
