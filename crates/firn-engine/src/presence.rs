//! Presence: which series have samples in a range, by chunk headers in memory and the directories
//! of tables. Columns are read only where a delete hides a part of them, and in a scope.

use firn_codec::{HiddenSamples, TombstoneWalk};
use firn_head::HeadReader;
use firn_index::{GroupMatch, LookupOutcome, Member, Presence};
use firn_model::{GroupId, Pool, QueryContext, Reservation, Result, Slot, TimeRange};
use firn_tree::PresenceReader;

use crate::Snapshot;

/// Lookups of many series in one range. Keeps its position in memory and the directories that it
/// has loaded.
pub(crate) struct PresenceLookup<'a> {
    snapshot: &'a Snapshot,
    context: &'a QueryContext,
    range: TimeRange,
    /// Whether columns decide: chunk headers have the times of members that are not in the scope.
    reads_columns: bool,
    memory_range: TimeRange,
    head: HeadReader<'a>,
    tables: PresenceReader<'a>,
    deletes: TombstoneWalk<'a>,
    /// The group to which `deletes` has advanced.
    last_group: Option<GroupId>,
    left: Vec<Slot>,
    /// The groups of [`PresenceLookup::expect`], until tables are needed.
    expected: Option<Vec<GroupId>>,
    miss_count: u64,
    /// The number of misses from which listing all groups with data costs no more.
    miss_count_max: u64,
    /// All groups with data, perhaps some more, once they are listed.
    groups: Vec<GroupId>,
    groups_held: Reservation,
}

// A miss costs some hundred nanoseconds in memory and in each table; listing a group some ten.
const MISSES_MIN: u64 = 256;
const GROUPS_PER_MISS: u64 = 32;

impl<'a> PresenceLookup<'a> {
    pub(crate) fn new(
        snapshot: &'a Snapshot,
        range: TimeRange,
        context: &'a QueryContext,
    ) -> PresenceLookup<'a> {
        let memory_range = snapshot.memory_range();
        let all = snapshot.time_range();
        let range = range.intersect(all);
        PresenceLookup {
            snapshot,
            context,
            range,
            reads_columns: !context.scope.is_empty() && range != all,
            memory_range,
            head: snapshot.head().reader(range),
            tables: snapshot.version().presence(range, &context.budget),
            deletes: snapshot.tombstones().walk(TimeRange::EMPTY),
            last_group: None,
            left: Vec::new(),
            expected: None,
            miss_count: 0,
            miss_count_max: MISSES_MIN,
            groups: Vec::new(),
            groups_held: context.budget.empty(Pool::Query),
        }
    }

    /// The part of the range between the first and the last sample.
    pub(crate) fn range(&self) -> TimeRange {
        self.range
    }

    pub(crate) fn context(&self) -> &'a QueryContext {
        self.context
    }

    /// Announces the groups, in ascending order, of the next calls: if tables are needed, their
    /// directories are loaded together.
    pub(crate) fn expect(&mut self, groups: &[GroupMatch]) {
        self.expected = Some(groups.iter().map(|found| found.group).collect());
    }

    /// Whether one of `slots`, which ascend, has a sample in the range.
    ///
    /// # Errors
    /// As [`Snapshot::present`].
    fn has_any(&mut self, group: GroupId, slots: &[Slot]) -> Result<bool> {
        if self.range.is_empty() {
            return Ok(false);
        }
        let mut left = std::mem::take(&mut self.left);
        // The youngest member is most probably present.
        let last = slots.len().saturating_sub(1);
        let mut is_present = false;
        for slots in [&slots[last..], &slots[..last]] {
            left.clear();
            left.extend_from_slice(slots);
            if is_present || left.is_empty() {
                continue;
            }
            let is_decided = self.take_present(group, &mut left)?;
            is_present = left.len() < slots.len();
            if !is_decided && !is_present {
                let members = left.iter().map(|&slot| Member { slot, key: 0 }).collect();
                let unknown = vec![GroupMatch { group, members }];
                let absent = self.snapshot.absent(unknown, self.range, self.context)?;
                is_present = absent.first().is_none_or(|absent| absent.members.len() < left.len());
            }
        }
        self.left = left;
        Ok(is_present)
    }

    /// Removes from `left`, which ascends, the members with a sample in the range. Returns `false`
    /// if only columns can decide about some of the remaining ones.
    ///
    /// # Errors
    /// As [`Snapshot::present`].
    pub(crate) fn take_present(&mut self, group: GroupId, left: &mut Vec<Slot>) -> Result<bool> {
        if self.range.is_empty() {
            return Ok(true);
        }
        if self.reads_columns {
            return Ok(!self.snapshot.has_data(group, self.range));
        }
        let hidden = self.hidden(group);
        let is_touched = hidden.iter().any(|one| one.range.overlaps(self.memory_range));
        // Parts in memory do not show which of their samples are hidden.
        let mut is_decided = !is_touched || !self.head.has_data(group, self.range);
        if !is_touched {
            self.head.take_present(group, self.range, left)?;
        }
        if !left.is_empty() {
            if let Some(expected) = self.expected.take() {
                self.tables.load(&|min, max| {
                    let next = expected.partition_point(|group| *group < min);
                    expected.get(next).is_some_and(|group| *group <= max)
                })?;
            }
            is_decided &= self.tables.take_present(group, &hidden, left)?;
        }
        Ok(is_decided)
    }

    /// The deletes that touch a group: fast for ascending groups.
    fn hidden(&mut self, group: GroupId) -> Vec<HiddenSamples<'a>> {
        let tombstones = self.snapshot.tombstones();
        if tombstones.is_empty() || self.snapshot.lists_deleted() {
            return Vec::new();
        }
        if self.last_group.replace(group).is_none_or(|last| group <= last) {
            self.deletes = tombstones.walk(TimeRange::ALL);
        }
        self.deletes.of(group).collect()
    }

    /// Counts a lookup without a sample. After many of them, lists all groups with data, and
    /// returns whether they are listed: then a list needs no lookup of others.
    fn misses_too_often(&mut self) -> Result<bool> {
        self.miss_count += 1;
        if self.miss_count < self.miss_count_max {
            return Ok(false);
        }
        if self.miss_count_max == MISSES_MIN {
            let group_count = self.head.group_count_max() + self.tables.chunk_count();
            self.miss_count_max = MISSES_MIN + 1 + group_count / GROUPS_PER_MISS;
            return Ok(false);
        }
        self.miss_count_max = u64::MAX;
        let (mut groups, mut held) = (Vec::new(), self.context.budget.empty(Pool::Query));
        let mut outcome = Ok(());
        let mut add = |group| {
            if groups.len() == groups.capacity() {
                // Both allocations exist while the ids move.
                let bytes = (3 * groups.capacity() + 1) * size_of::<GroupId>();
                outcome = std::mem::replace(&mut outcome, Ok(())).and(held.cover(bytes as u64));
            }
            if outcome.is_ok() {
                groups.push(group);
            }
        };
        // Without memory, or with a part that cannot be listed, lookups continue one by one.
        let is_whole =
            self.head.each_group(&mut add).is_ok() && self.tables.each_group(&mut add)?;
        if !is_whole || outcome.is_err() {
            return Ok(false);
        }
        groups.sort_unstable();
        groups.dedup();
        (self.groups, self.groups_held) = (groups, held);
        Ok(true)
    }
}

impl Presence for PresenceLookup<'_> {
    fn look(&mut self, group: GroupId, slots: &[Slot]) -> Result<LookupOutcome> {
        Ok(match self.has_any(group, slots)? {
            true => LookupOutcome::Present,
            false if self.misses_too_often()? => LookupOutcome::TooManyAbsent,
            false => LookupOutcome::Absent,
        })
    }

    fn groups(&mut self) -> Result<Vec<GroupId>> {
        Ok(std::mem::take(&mut self.groups))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use firn_model::{Labels, Matcher, QueryContext, RowBatch, TimeRange};
    use firn_sim::Sim;

    use crate::{Engine, EngineOptions, RecoveryProgress};

    /// The header of a chunk in memory has the times of all members: before, a hidden one made
    /// others appear.
    #[test]
    fn in_a_scope_a_series_is_present_by_its_own_samples() {
        let sim = Sim::new(1);
        let engine =
            Engine::open(sim.env(), EngineOptions::default(), &RecoveryProgress::default())
                .expect("opens");
        let labels =
            |pairs: &[(&str, &str)]| Labels::from_pairs(pairs.iter().copied()).expect("labels");
        let members = ["a", "hidden"].map(|team| labels(&[("__name__", "m"), ("team", team)]));
        let (_, refs) = engine.resolve_group(&labels(&[("job", "j")]), &members).expect("resolves");
        let late = sim.env().clock.now_ms();
        let early = late - 3_600_000;
        for times in [[early, early], [early + 100_000, late]] {
            let mut batch = RowBatch::default();
            refs.iter().zip(times).for_each(|(member, ts)| batch.push(*member, ts, 1.0));
            engine.write(&mut batch).expect("a write");
        }
        engine.rooms.head.seal_all();
        while let Some(job) = engine.rooms.head.plan_convert_rows(1) {
            engine.convert(job).expect("converts");
        }
        let scope = Arc::new([Matcher::equal("team", "a")]);
        let context = QueryContext { scope, ..QueryContext::unbounded() };
        let count = |range: TimeRange| {
            let (matchers, mut count) = ([Matcher::equal("job", "j")], 0);
            let mut each = |_| {
                count += 1;
                Ok(())
            };
            let view = engine.snapshot();
            view.present_series(&matchers, range, 0, &context, &mut each).expect("a list");
            count
        };
        assert_eq!(count(TimeRange::new(late - 50_000, late)), 0);
        assert_eq!(count(TimeRange::new(early, early + 50_000)), 1);
        assert_eq!(count(TimeRange::ALL), 1);
    }
}
