//! The groups that run: the due one, those that threads evaluate, and the changes of a reload.
//!
//! The table reads no clock and starts no thread. A group that a thread evaluates has left the
//! table ([`DueGroup`]) and comes back by [`GroupTable::finish`]; a reload meanwhile leaves a note
//! at its place.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use firn_model::{Labels, Reservation, Timestamp};
use firn_rules::group::{Group, Schedule};

use super::storage::SeriesCache;
use super::view::{GroupCounters, ShownGroup};

/// All groups of the current configuration.
#[derive(Debug, Default)]
pub(super) struct GroupTable {
    groups: BTreeMap<u64, RunningGroup>,
    /// The next slot of each group that no thread evaluates.
    due: BTreeSet<(Timestamp, u64)>,
    next_id: u64,
    ended: Vec<EndedSeries>,
    /// The time of the last call of [`GroupTable::take_due`].
    latest: Timestamp,
}

#[derive(Debug)]
struct RunningGroup {
    schedule: Schedule,
    shown: Arc<ShownGroup>,
    /// The last slot that was evaluated or skipped.
    last: Timestamp,
    /// `None` while a thread evaluates the group.
    work: Option<Box<GroupWork>>,
    change: Option<Change>,
}

/// The change of a group by a reload, once its evaluation has ended.
#[derive(Debug)]
enum Change {
    Replace(Box<GroupWork>, Arc<ShownGroup>),
    /// At the time of the reload.
    End(Timestamp),
}

/// A group with the memory that it keeps between evaluations.
#[derive(Debug)]
pub(super) struct GroupWork {
    pub(super) group: Group,
    pub(super) cache: SeriesCache,
    /// The memory of series and of alerts. An evaluation takes it and leaves that of the next one.
    pub(super) held: Option<(Reservation, Reservation)>,
    /// Evaluations until the alerts are restored; 0 afterwards.
    pub(super) until_restored: u32,
}

/// A group to evaluate.
#[derive(Debug)]
pub(super) struct DueGroup {
    pub(super) id: u64,
    pub(super) slot: Timestamp,
    pub(super) work: Box<GroupWork>,
    pub(super) shown: Arc<ShownGroup>,
}

/// The series of a group that a reload removed. Groups that continue them remove them from here.
#[derive(Debug)]
pub(super) struct EndedSeries {
    /// The time of their stale markers: that of the reload.
    pub(super) ts: Timestamp,
    /// When the markers are written.
    write_at: Timestamp,
    pub(super) series: BTreeSet<Labels>,
}

// A smaller step of the clock delays groups by as much.
const SET_BACK_MS_MIN: i64 = 1_000;

// Alerts are restored after this many evaluations: before, rules that an alert reads may lack
// results.
const RESTORED_AFTER: u32 = 2;

impl GroupWork {
    pub(super) fn new(group: Group, is_restored: bool) -> GroupWork {
        let until_restored = if is_restored { 0 } else { RESTORED_AFTER };
        GroupWork { group, cache: SeriesCache::default(), held: None, until_restored }
    }

    /// Whether the process has not evaluated the group yet, and may continue alerts of the process
    /// before.
    pub(super) fn is_first(&self) -> bool {
        self.until_restored == RESTORED_AFTER
    }

    /// Takes over the state of `old`. References to series stay valid.
    fn take_over(&mut self, old: GroupWork) {
        self.cache = old.cache;
        self.held = old.held;
        self.until_restored = old.until_restored;
        self.group.take_over(old.group);
    }
}

impl GroupTable {
    /// Makes `groups` the groups that run from `now` on. Unchanged groups continue; others take
    /// over the state of the group of the same file and name. Returns immediately: a group that a
    /// thread evaluates changes at [`GroupTable::finish`].
    pub(super) fn replace(&mut self, groups: Vec<Group>, is_restored: bool, now: Timestamp) {
        let mut previous: HashMap<(String, String), u64> = HashMap::new();
        for (id, entry) in &self.groups {
            previous.insert((entry.shown.file.clone(), entry.shown.name.clone()), *id);
        }
        for group in groups {
            let key = (group.options().file.clone(), group.options().name.clone());
            let known = previous.remove(&key);
            let entry = known.and_then(|id| self.groups.get_mut(&id).map(|entry| (id, entry)));
            let counters = entry
                .as_ref()
                .map_or_else(Arc::default, |(_, entry)| Arc::clone(&entry.shown.counters));
            let shown = Arc::new(ShownGroup::new(&group, counters));
            let Some((id, entry)) = entry else {
                self.add(Box::new(GroupWork::new(group, is_restored)), shown, now);
                continue;
            };
            if entry.shown.is_same(&shown) {
                entry.change = None;
                continue;
            }
            let work = Box::new(GroupWork::new(group, is_restored));
            match entry.work.take() {
                Some(old) => {
                    self.remove(id);
                    self.succeed(*old, work, shown, now);
                }
                None => entry.change = Some(Change::Replace(work, shown)),
            }
        }
        for id in previous.into_values() {
            let Some(entry) = self.groups.get_mut(&id) else { continue };
            match entry.work.take() {
                Some(work) => {
                    let interval_ms = entry.shown.interval_ms;
                    self.remove(id);
                    self.end(*work, interval_ms, now);
                }
                None => entry.change = Some(Change::End(now)),
            }
        }
    }

    /// Starts at `now`: slots before it do not count as missed.
    pub(super) fn start_at(&mut self, now: Timestamp) {
        self.due.clear();
        for (id, entry) in &mut self.groups {
            entry.last = entry.schedule.at_or_before(now);
            if entry.work.is_some() {
                self.due.insert((next_slot(entry), *id));
            }
        }
    }

    /// The group whose slot passed first, for the caller to evaluate. If the clock was set back,
    /// groups continue at the slots after `now`.
    pub(super) fn take_due(&mut self, now: Timestamp) -> Option<DueGroup> {
        if now.saturating_add(SET_BACK_MS_MIN) < self.latest {
            self.follow_clock(now);
        }
        self.latest = now;
        let (_, id) = *self.due.first().filter(|(at, _)| *at <= now)?;
        self.due.pop_first();
        let entry = self.groups.get_mut(&id)?;
        let slot = entry.schedule.due(entry.last, now)?;
        entry.last = slot.slot;
        let counters = &entry.shown.counters;
        counters.missed.fetch_add(slot.missed_count, Ordering::Relaxed);
        counters.iterations.fetch_add(slot.missed_count.saturating_add(1), Ordering::Relaxed);
        let work = entry.work.take()?;
        Some(DueGroup { id, slot: slot.slot, work, shown: Arc::clone(&entry.shown) })
    }

    fn follow_clock(&mut self, now: Timestamp) {
        self.due.clear();
        for (id, entry) in &mut self.groups {
            entry.last = entry.last.min(entry.schedule.at_or_before(now));
            if entry.work.is_some() {
                self.due.insert((next_slot(entry), *id));
            }
        }
        for ended in &mut self.ended {
            let wait_ms = ended.write_at.saturating_sub(ended.ts);
            ended.write_at = ended.write_at.min(now.saturating_add(wait_ms));
        }
    }

    /// The time at which the next group is due, or the next markers are written.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        let ended = self.ended.iter().map(|ended| ended.write_at);
        ended.chain(self.due.first().map(|(at, _)| *at)).min()
    }

    /// Takes a group back after its evaluation.
    pub(super) fn finish(&mut self, id: u64, work: Box<GroupWork>, now: Timestamp) {
        for ended in &mut self.ended {
            for labels in work.group.series() {
                ended.series.remove(labels);
            }
        }
        let Some(entry) = self.groups.get_mut(&id) else { return };
        match entry.change.take() {
            None => {
                entry.work = Some(work);
                let next = next_slot(entry);
                self.due.insert((next, id));
            }
            Some(Change::Replace(new, shown)) => {
                self.remove(id);
                self.succeed(*work, new, shown, now);
            }
            Some(Change::End(ended_at)) => {
                let interval_ms = entry.shown.interval_ms;
                self.remove(id);
                self.end(*work, interval_ms, ended_at);
            }
        }
    }

    /// Series whose stale markers are due.
    pub(super) fn take_ended(&mut self, now: Timestamp) -> Vec<EndedSeries> {
        self.ended.extract_if(.., |ended| ended.write_at <= now).collect()
    }

    /// The keys of the files with the alerts of all groups.
    pub(super) fn alerts_keys(&self) -> BTreeSet<u64> {
        self.groups.values().map(|entry| entry.shown.alerts_key).collect()
    }

    /// Whether no group runs and no marker waits.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.ended.is_empty()
    }

    /// The groups in order of files and names. A group that a reload changes while it is evaluated
    /// is shown as it will be.
    pub(super) fn shown(&self) -> Vec<Arc<ShownGroup>> {
        let shown = |entry: &RunningGroup| match &entry.change {
            None => Some(Arc::clone(&entry.shown)),
            Some(Change::Replace(_, shown)) => Some(Arc::clone(shown)),
            Some(Change::End(_)) => None,
        };
        let mut groups: Vec<Arc<ShownGroup>> = self.groups.values().filter_map(shown).collect();
        groups.sort_by(|a, b| (&a.file, &a.name).cmp(&(&b.file, &b.name)));
        groups
    }

    /// `new` runs from `now` on with the state of `old`.
    fn succeed(
        &mut self,
        old: GroupWork,
        mut new: Box<GroupWork>,
        shown: Arc<ShownGroup>,
        now: Timestamp,
    ) {
        new.take_over(old);
        self.add(new, shown, now);
    }

    fn add(&mut self, work: Box<GroupWork>, shown: Arc<ShownGroup>, now: Timestamp) {
        let schedule = work.group.schedule();
        let last = schedule.at_or_before(now);
        let entry = RunningGroup { schedule, shown, last, work: Some(work), change: None };
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.due.insert((next_slot(&entry), id));
        self.groups.insert(id, entry);
    }

    fn remove(&mut self, id: u64) {
        if let Some(entry) = self.groups.remove(&id) {
            self.due.remove(&(next_slot(&entry), id));
        }
    }

    /// The series of a removed group get markers two intervals later: a rule that was moved to
    /// another group has continued them by then.
    fn end(&mut self, work: GroupWork, interval_ms: i64, ts: Timestamp) {
        let series = work.group.into_series();
        let write_at = ts.saturating_add(interval_ms.saturating_mul(2));
        if !series.is_empty() {
            self.ended.push(EndedSeries { ts, write_at, series });
        }
    }
}

fn next_slot(entry: &RunningGroup) -> Timestamp {
    entry.last.saturating_add(entry.schedule.interval_ms())
}

impl GroupCounters {
    /// Counts an evaluation of `rule_count` rules, `failure_count` of which failed.
    pub(super) fn evaluated(&self, rule_count: usize, failure_count: usize) {
        GroupCounters::add(&self.evaluations, rule_count);
        GroupCounters::add(&self.failures, failure_count);
    }
}

#[cfg(test)]
mod tests {
    use firn_model::QueryContext;
    use firn_promql::prepare;
    use firn_rules::group::{GroupOptions, RecordingRule, Rule};
    use proptest::prelude::*;

    use super::*;

    const INTERVAL_MS: i64 = 1_000;

    fn group(name: u8, version: u8) -> Group {
        group_with(name, version, INTERVAL_MS)
    }

    fn group_with(name: u8, version: u8, interval_ms: i64) -> Group {
        let options = GroupOptions {
            file: "f".to_owned(),
            name: name.to_string(),
            interval_ms,
            query_offset_ms: None,
            limit: 0,
        };
        let expr = prepare(&format!("vector({version})"), &QueryContext::unbounded()).unwrap();
        let rule =
            RecordingRule { name: "r".to_owned(), expr: expr.into(), labels: BTreeMap::new() };
        Group::new(options, vec![Rule::Recording(rule)], true)
    }

    #[derive(Clone, Debug)]
    enum TableStep {
        /// Names and versions.
        Reload(BTreeMap<u8, u8>),
        Wait(i64),
        Take,
        /// One of the groups that are evaluated.
        Finish(usize),
    }

    fn step() -> impl Strategy<Value = TableStep> {
        let versions = proptest::collection::btree_map(0..4_u8, 0..3_u8, 0..4);
        prop_oneof![
            2 => versions.prop_map(TableStep::Reload),
            3 => (1..3 * INTERVAL_MS).prop_map(TableStep::Wait),
            4 => Just(TableStep::Take),
            3 => (0..4_usize).prop_map(TableStep::Finish),
        ]
    }

    /// Names and versions of the groups that are shown.
    fn shown(table: &GroupTable) -> BTreeMap<u8, u8> {
        let version = |group: &Arc<ShownGroup>| {
            let query = group.rules[0].expr().to_string();
            let digits: String = query.chars().filter(char::is_ascii_digit).collect();
            (group.name.parse().unwrap(), digits.parse().unwrap())
        };
        table.shown().iter().map(version).collect()
    }

    proptest! {
        /// Evaluations that take longer than the intervals: a due group waits at most until each
        /// other one was evaluated once.
        #[test]
        fn slow_groups_do_not_starve_others(
            groups in proptest::collection::vec((1..40_i64, 1..400_i64), 2..12),
            thread_count in 1..3_usize,
        ) {
            let (mut table, mut now) = (GroupTable::default(), 1_000_000);
            let all = groups.iter().zip(0..);
            let all = all.map(|(&(interval, _), name)| group_with(name, 0, interval * 100));
            table.replace(all.collect(), true, now);
            table.start_at(now);
            // With the time of their ends.
            let mut evaluated: Vec<(Timestamp, DueGroup)> = Vec::new();
            let mut waits: HashMap<u64, usize> = HashMap::new();
            for _ in 0..500 {
                while evaluated.len() < thread_count && let Some(due) = table.take_due(now) {
                    waits.remove(&due.id);
                    for (_, id) in table.due.iter().take_while(|(at, _)| *at <= now) {
                        let wait = waits.entry(*id).or_default();
                        *wait += 1;
                        prop_assert!(*wait < groups.len(), "group {} waits", id);
                    }
                    let name: usize = due.shown.name.parse().unwrap();
                    evaluated.push((now + groups[name].1 * 100, due));
                }
                let ended = (0..evaluated.len()).min_by_key(|&idx| evaluated[idx].0);
                match ended.map(|idx| evaluated.swap_remove(idx)) {
                    Some((end, due)) => {
                        now = now.max(end);
                        table.finish(due.id, due.work, now);
                    }
                    None => now = now.max(table.next_at().unwrap()),
                }
            }
        }

        #[test]
        fn a_table_runs_the_last_configuration(steps in proptest::collection::vec(step(), 0..60)) {
            let mut table = GroupTable::default();
            let mut now = 1_000_000;
            table.start_at(now);
            let mut wanted = BTreeMap::new();
            let mut evaluated: Vec<DueGroup> = Vec::new();
            let mut last_slots: HashMap<String, Timestamp> = HashMap::new();
            for step in steps {
                match step {
                    TableStep::Reload(groups) => {
                        let all = groups.iter().map(|(&name, &version)| group(name, version));
                        table.replace(all.collect(), true, now);
                        wanted = groups;
                    }
                    TableStep::Wait(ms) => now += ms,
                    TableStep::Take => {
                        let is_due = table.due.first().is_some_and(|(at, _)| *at <= now);
                        let taken = table.take_due(now);
                        prop_assert_eq!(taken.is_some(), is_due);
                        if let Some(due) = taken {
                            prop_assert!(due.slot <= now && now - due.slot < INTERVAL_MS);
                            let is_busy = evaluated.iter().any(|other| other.id == due.id);
                            prop_assert!(!is_busy, "two threads evaluate a group");
                            let last = last_slots.insert(due.shown.name.clone(), due.slot);
                            prop_assert!(last.is_none_or(|last| last < due.slot));
                            evaluated.push(due);
                        }
                    }
                    TableStep::Finish(idx) if idx < evaluated.len() => {
                        let due = evaluated.swap_remove(idx);
                        table.finish(due.id, due.work, now);
                    }
                    TableStep::Finish(_) => {}
                }
                prop_assert_eq!(shown(&table), wanted.clone());
                let ready = table.groups.values().filter(|entry| entry.work.is_some()).count();
                prop_assert_eq!(ready, table.due.len());
                prop_assert_eq!(table.groups.len() - ready, evaluated.len());
            }
            for due in evaluated {
                table.finish(due.id, due.work, now);
            }
            prop_assert_eq!(shown(&table), wanted.clone());
            prop_assert_eq!(table.due.len(), wanted.len());
        }
    }
}
