//! The selectors of all cached answers, the groups that they match, and the keys that depend on
//! them.

use std::collections::HashMap;
use std::sync::Arc;

use firn_model::{
    CompiledRegex, GroupId, Labels, METRIC_NAME, MatchOp, Matcher, TimeRange, Timestamp,
};

use crate::changes::have_common;
use crate::dependency::{Grid, Span};

/// With more selectors, all are forgotten with their answers: a change looks at each of them.
const SELECTORS_MAX: usize = 16_384;
/// Of the selectors of one metric, in the units of [`Selector::cost`]: above it they are forgotten
/// with their answers. A new series of the metric is matched against each of them, and a change may
/// cut each of their answers.
const METRIC_COST_MAX: usize = 1 << 16;
const MATCHER_COST: usize = 4;
const USE_COST: usize = 16;
const GROUPS_PER_COST: usize = 32;
/// The most work of matching one new series, in bytes of a value times states of an expression.
pub(crate) const TRIAL_WORK_MAX: usize = 1 << 18;
/// Work of a matcher without a regular expression.
const MATCHER_WORK: usize = 8;

/// All selectors, each once.
#[derive(Debug, Default)]
pub(crate) struct Selectors {
    selectors: Vec<Option<Selector>>,
    free: Vec<usize>,
    ids: HashMap<Arc<[Matcher]>, usize>,
    /// Selectors of one metric, by its name: a new series is matched against those of its own
    /// metric and against selectors without one.
    by_metric: HashMap<String, Vec<usize>>,
    of_any_metric: Vec<usize>,
    /// No selector reads a sample after this time.
    frontier: i64,
}

#[derive(Debug)]
struct Selector {
    matchers: Arc<[Matcher]>,
    groups: Groups,
    uses: Vec<Use>,
    /// The union of the samples that all uses read.
    needs: TimeRange,
}

/// The groups in which a selector matches a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Groups {
    /// Sorted. A group too many costs hits, one too few would cost correctness.
    Known(Vec<GroupId>),
    /// Too many to list, or unknown: every change may touch one of them.
    Any,
}

/// A key that depends on a selector.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub(crate) key: Arc<[u8]>,
    pub(crate) span: Span,
    pub(crate) grid: Grid,
    /// Its cached steps are within this range.
    pub(crate) filled: TimeRange,
}

impl Groups {
    /// `groups` in any order; [`Groups::Any`] above `count_max`.
    pub(crate) fn new(mut groups: Vec<GroupId>, count_max: usize) -> Groups {
        groups.sort_unstable();
        groups.dedup();
        if groups.len() > count_max { Groups::Any } else { Groups::Known(groups) }
    }

    /// The union of both.
    pub(crate) fn unite(&mut self, other: &Groups, count_max: usize) {
        *self = match (&mut *self, other) {
            (Groups::Known(own), Groups::Known(other)) if own == other => return,
            (Groups::Known(own), Groups::Known(other)) => {
                own.extend_from_slice(other);
                Groups::new(std::mem::take(own), count_max)
            }
            _ => Groups::Any,
        };
    }

    fn insert(&mut self, group: GroupId, count_max: usize) {
        if let Groups::Known(own) = self
            && let Err(idx) = own.binary_search(&group)
        {
            own.insert(idx, group);
            if own.len() > count_max {
                *self = Groups::Any;
            }
        }
    }
}

impl Selector {
    /// How long new series and changes take because of it.
    fn cost(&self) -> usize {
        let group_count = match &self.groups {
            Groups::Known(groups) => groups.len(),
            Groups::Any => 0,
        };
        self.matchers.len() * MATCHER_COST
            + self.uses.len() * USE_COST
            + group_count / GROUPS_PER_COST
    }
}

impl Selectors {
    /// Makes room for another use of a selector: forgets all selectors of its metric if they are
    /// too many, and all of every metric if those are. Calls `drop_key` for each forgotten use: its
    /// answer must leave the cache.
    pub(crate) fn make_room(&mut self, matchers: &[Matcher], mut drop_key: impl FnMut(&Use)) {
        let ids = match metric_of(matchers) {
            Some(metric) => self.by_metric.get(metric).map_or(&[][..], Vec::as_slice),
            None => &self.of_any_metric,
        };
        let cost: usize = ids.iter().filter_map(|&id| self.get(id)).map(Selector::cost).sum();
        let forgotten: Vec<usize> = match () {
            () if self.ids.len() >= SELECTORS_MAX => (0..self.selectors.len()).collect(),
            () if cost >= METRIC_COST_MAX => ids.to_vec(),
            () => return,
        };
        // The last ones first: they are found at the end of the list of their metric.
        for id in forgotten.into_iter().rev() {
            if let Some(selector) = self.remove(id) {
                selector.uses.iter().for_each(&mut drop_key);
            }
        }
    }

    /// No selector reads a sample after this time.
    pub(crate) fn frontier(&self) -> Timestamp {
        self.frontier
    }

    fn get(&self, id: usize) -> Option<&Selector> {
        self.selectors.get(id)?.as_ref()
    }

    /// Records that a key depends on a selector, and adds the groups to the known ones.
    pub(crate) fn add(
        &mut self,
        matchers: &[Matcher],
        groups: &Groups,
        group_count_max: usize,
        one: Use,
    ) {
        let id = match self.ids.get(matchers) {
            Some(&id) => id,
            None => self.insert(matchers, groups.clone()),
        };
        let Some(selector) = self.selectors.get_mut(id).and_then(Option::as_mut) else { return };
        selector.groups.unite(groups, group_count_max);
        let needed = one.span.needed_by(one.filled);
        selector.needs = selector.needs.union(needed);
        self.frontier = self.frontier.max(needed.end);
        let same = |other: &&mut Use| other.key == one.key && other.span == one.span;
        match selector.uses.iter_mut().find(same) {
            Some(known) => known.filled = known.filled.union(one.filled),
            None => selector.uses.push(one),
        }
    }

    /// Calls `trim` with every key that a change of `samples` in `groups` (sorted; `None` for any)
    /// touches, and the range of touched steps. A key for which it returns `false` has left the
    /// cache and is removed.
    pub(crate) fn touched(
        &mut self,
        samples: TimeRange,
        groups: Option<&[GroupId]>,
        touch: impl Fn(Span, TimeRange) -> TimeRange,
        mut trim: impl FnMut(&Use, TimeRange) -> bool,
    ) {
        // Nearly all changes are newer than everything cached.
        if samples.start > self.frontier {
            return;
        }
        for selector in self.selectors.iter_mut().flatten() {
            let is_touched = selector.needs.overlaps(samples)
                && match (&selector.groups, groups) {
                    (Groups::Any, _) | (_, None) => true,
                    (Groups::Known(own), Some(groups)) => have_common(own, groups),
                };
            if is_touched {
                selector.uses.retain(|one| {
                    let steps = touch(one.span, samples).intersect(one.filled);
                    steps.is_empty() || trim(one, steps)
                });
            }
        }
    }

    /// Adds a new series: the selectors that match it have one more group.
    pub(crate) fn defined(&mut self, group: GroupId, labels: &Labels, group_count_max: usize) {
        let own = self.by_metric.get(labels.metric_name()).map_or(&[][..], Vec::as_slice);
        let mut work_left = TRIAL_WORK_MAX;
        for &id in own.iter().chain(&self.of_any_metric) {
            let Some(selector) = self.selectors.get_mut(id).and_then(Option::as_mut) else {
                continue;
            };
            if may_match(&selector.matchers, labels, &mut work_left) {
                selector.groups.insert(group, group_count_max);
            }
            selector.matchers.iter().for_each(Matcher::keep);
        }
    }

    /// Removes the uses for which `keep` returns `false`, and selectors without uses.
    pub(crate) fn prune(&mut self, keep: impl Fn(&Use) -> bool) {
        self.frontier = i64::MIN;
        for id in 0..self.selectors.len() {
            let Some(Some(selector)) = self.selectors.get_mut(id) else { continue };
            selector.uses.retain(&keep);
            let needs = selector.uses.iter().map(|one| one.span.needed_by(one.filled));
            selector.needs = needs.fold(TimeRange::EMPTY, TimeRange::union);
            self.frontier = self.frontier.max(selector.needs.end);
            if selector.uses.is_empty() {
                self.remove(id);
            }
        }
    }

    /// The matchers of all selectors without known groups.
    pub(crate) fn unmatched(&self) -> Vec<Arc<[Matcher]>> {
        let all = self.selectors.iter().flatten();
        let unmatched = all.filter(|selector| selector.groups == Groups::Any);
        unmatched.map(|selector| Arc::clone(&selector.matchers)).collect()
    }

    /// Sets the groups of a selector.
    pub(crate) fn set_groups(&mut self, matchers: &[Matcher], groups: Groups) {
        if let Some(&id) = self.ids.get(matchers)
            && let Some(Some(selector)) = self.selectors.get_mut(id)
        {
            selector.groups = groups;
        }
    }

    /// The present groups of a selector, if a cached answer depends on it.
    pub(crate) fn groups_of(&self, matchers: &[Matcher]) -> Option<&Groups> {
        let id = *self.ids.get(matchers)?;
        self.selectors.get(id)?.as_ref().map(|selector| &selector.groups)
    }

    pub(crate) fn count(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn use_count(&self) -> usize {
        self.selectors.iter().flatten().map(|selector| selector.uses.len()).sum()
    }

    /// Approximate memory.
    pub(crate) fn heap_bytes(&self) -> u64 {
        const SELECTOR_BYTES: usize = 512;
        const USE_BYTES: usize = 112;
        let bytes = |selector: &Selector| {
            let groups = match &selector.groups {
                Groups::Known(groups) => groups.capacity() * size_of::<GroupId>(),
                Groups::Any => 0,
            };
            SELECTOR_BYTES + groups + selector.uses.len() * USE_BYTES
        };
        self.selectors.iter().flatten().map(bytes).sum::<usize>() as u64
    }

    fn insert(&mut self, matchers: &[Matcher], groups: Groups) -> usize {
        let matchers: Arc<[Matcher]> = Arc::from(matchers);
        matchers.iter().for_each(Matcher::keep);
        let selector = Selector {
            matchers: Arc::clone(&matchers),
            groups,
            uses: Vec::new(),
            needs: TimeRange::EMPTY,
        };
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.selectors.push(None);
                self.selectors.len() - 1
            }
        };
        self.selectors[id] = Some(selector);
        match metric_of(&matchers) {
            Some(metric) => self.by_metric.entry(metric.to_owned()).or_default().push(id),
            None => self.of_any_metric.push(id),
        }
        self.ids.insert(matchers, id);
        id
    }

    fn remove(&mut self, id: usize) -> Option<Selector> {
        let selector = self.selectors.get_mut(id).and_then(Option::take)?;
        self.ids.remove(&selector.matchers);
        self.free.push(id);
        let metric = metric_of(&selector.matchers);
        let ids = match metric {
            None => Some(&mut self.of_any_metric),
            Some(metric) => self.by_metric.get_mut(metric),
        };
        if let Some(ids) = ids
            && let Some(at) = ids.iter().rposition(|&other| other == id)
        {
            ids.swap_remove(at);
            if let Some(metric) = metric.filter(|_| ids.is_empty()) {
                self.by_metric.remove(metric);
            }
        }
        Some(selector)
    }
}

/// Whether a series with these labels may pass all matchers. A matcher that takes more work than is
/// left is not tried: a group too many costs hits, one too few would cost correctness.
pub(crate) fn may_match(matchers: &[Matcher], labels: &Labels, work_left: &mut usize) -> bool {
    matchers.iter().all(|one| {
        let value = labels.get(one.name()).unwrap_or_default();
        let state_count = one.regex().map_or(0, CompiledRegex::state_count);
        let work = MATCHER_WORK.saturating_add(state_count.saturating_mul(value.len()));
        match work_left.checked_sub(work) {
            Some(left) => {
                *work_left = left;
                one.matches(value)
            }
            None => true,
        }
    })
}

/// The metric that the matchers select, if it is exactly one.
fn metric_of(matchers: &[Matcher]) -> Option<&str> {
    let name = |one: &&Matcher| one.name() == METRIC_NAME && one.op() == MatchOp::Equal;
    matchers.iter().find(name).map(Matcher::value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before, a kept query with 4,000 states delayed each new series with a value of 4 KiB by
    /// some ten milliseconds, and every other writer with it.
    #[test]
    fn a_matcher_that_takes_too_much_work_is_not_tried() {
        let matcher = |op, name: &str, value: &str| Matcher::new(name, op, value).unwrap();
        let slow = matcher(MatchOp::Regex, "path", "(.*a.{300})?");
        let metric = matcher(MatchOp::Equal, METRIC_NAME, "m");
        let labels = |name: &str, len: usize| {
            let path = "ab".repeat(len / 2);
            Labels::from_pairs([(METRIC_NAME, name), ("path", &*path)]).unwrap()
        };
        let f = |name: &str, len: usize| {
            let mut work_left = TRIAL_WORK_MAX;
            let matchers = [metric.clone(), slow.clone()];
            (may_match(&matchers, &labels(name, len), &mut work_left), TRIAL_WORK_MAX - work_left)
        };
        let (is_match, work) = f("m", 8);
        assert!(!is_match && work > 8 * 300, "a short value is tried");
        let (is_match, work) = f("m", 4_096);
        assert!(is_match && work <= MATCHER_WORK, "a long one is not");
        assert!(!f("n", 4_096).0, "other matchers still count");
    }
}
