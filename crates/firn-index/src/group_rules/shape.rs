//! A shape, which is a list of label names: its sample of series, its key, and the choice of a key.

use std::collections::VecDeque;

use super::key::{Key, KeyStats, Row, bits, distinct, mix, whole_key, work};
use super::{
    FORMER_MAX, GROUP_SLOTS_GOOD, GroupRule, MEMBERS_GOOD, MEMBERS_MIN, MEMBERS_OF_A_TARGET,
    NAMES_TRIED_MAX, REPEATS_MIN, ROWS_PER_SHAPE,
};

#[derive(Debug, Default)]
pub(super) struct LabelShape {
    pub(super) names: Vec<u32>,
    /// One bit per name; 0: lone series.
    pub(super) key: Key,
    pub(super) rule: Option<GroupRule>,
    /// Keys that were replaced, and whether their groups had become too large.
    pub(super) former: Vec<(Key, GroupRule, bool)>,
    pub(super) seen: u64,
    /// Series seen, halved whenever shapes are dropped.
    pub(super) weight: u64,
    pub(super) evaluate_at: u64,
    /// The newest series.
    pub(super) window: VecDeque<Row>,
    /// Older series, thinned by the hash of their labels, so that the metrics of a label set stay
    /// together.
    pub(super) kept: Vec<Row>,
    pub(super) kept_below: u32,
}

pub(super) struct Candidate {
    pub(super) key: Key,
    pub(super) rule: GroupRule,
    pub(super) own: KeyStats,
    /// Over all shapes with these names.
    pub(super) family: KeyStats,
}

impl LabelShape {
    pub(super) fn rows(&self) -> Vec<&Row> {
        self.window.iter().chain(&self.kept).collect()
    }

    /// Whether groups of `key` would be at least as large as ones that were too large.
    pub(super) fn is_overgrown(&self, key: Key) -> bool {
        self.former.iter().any(|&(former, _, is_overgrown)| is_overgrown && key & !former == 0)
    }

    /// Whether another key is no reason for a change: it makes nearly the same groups, or larger
    /// ones although the present ones are good.
    pub(super) fn keeps_key(&self, key: Key, candidates: &[Candidate]) -> bool {
        if self.key == 0 || self.is_overgrown(self.key) {
            return false;
        }
        let rows = self.rows();
        let groups = |key: Key| distinct(rows.iter().map(|row| row.hash(key)));
        let (present, other) = (groups(self.key), groups(key));
        let is_good = |one: &Candidate| {
            let family = &one.family;
            let is_large = family.members >= MEMBERS_GOOD
                && family.series >= MEMBERS_MIN * family.groups.max(1);
            one.key == self.key && one.is_acceptable() && is_large
        };
        present.abs_diff(other) * 10 <= present
            || key & !self.key == 0 && candidates.iter().any(is_good)
    }

    pub(super) fn set(&mut self, key: Key, rule: GroupRule) {
        if self.key == key && self.rule.is_some() {
            return;
        }
        self.clear();
        (self.key, self.rule) = (key, Some(rule));
    }

    pub(super) fn clear(&mut self) {
        if let (true, Some(former)) = (self.key != 0, self.rule) {
            self.retire(self.key, former, false);
        }
        (self.key, self.rule) = (0, None);
    }

    pub(super) fn retire(&mut self, key: Key, rule: GroupRule, is_overgrown: bool) {
        if let Some(known) = self.former.iter_mut().find(|former| former.0 == key) {
            known.2 |= is_overgrown;
            return;
        }
        if self.former.len() == FORMER_MAX {
            self.former.remove(0);
        }
        self.former.push((key, rule, is_overgrown));
    }

    pub(super) fn keep(&mut self, row: Row) {
        if (mix(row.hash(Key::MAX)) as u32) < self.kept_below {
            self.kept.push(row);
        }
        if self.kept.len() > ROWS_PER_SHAPE / 2 {
            self.thin();
        }
    }

    pub(super) fn thin(&mut self) {
        self.kept_below /= 2;
        let below = self.kept_below;
        self.kept.retain(|row| (mix(row.hash(Key::MAX)) as u32) < below);
    }
}

impl Candidate {
    pub(super) fn is_acceptable(&self) -> bool {
        let family = &self.family;
        // Documented and used everywhere, so it needs no evidence, but much can be held against it.
        if self.rule == GroupRule::Target {
            return family.series - family.per_request < MEMBERS_OF_A_TARGET
                || family.has_one_time();
        }
        let is_structured =
            family.groups < 4 || family.series < 64 || family.members * 100 <= family.series * 93;
        family.repeats() >= REPEATS_MIN.max(family.series / 64)
            && is_structured
            && family.has_one_time()
    }
}

/// The first acceptable candidate, or one with fewer labels.
pub(super) fn choose(
    shape: &LabelShape,
    candidates: &[Candidate],
    credit: &mut i64,
) -> Option<(Key, GroupRule)> {
    let is_usable = |one: &Candidate| one.is_acceptable() && !shape.is_overgrown(one.key);
    let is_good = |one: &Candidate| {
        let repeats_min = REPEATS_MIN.max(one.own.series / 8);
        is_usable(one)
            && one.family.is_dense()
            && one.own.members >= MEMBERS_GOOD
            && one.own.repeats() >= repeats_min
    };
    let chosen = candidates.iter().enumerate().position(|(at, one)| {
        let is_small = one.own.members <= GROUP_SLOTS_GOOD as usize;
        let is_fit = is_small && one.family.is_dense();
        is_usable(one) && (is_fit || !candidates[at + 1..].iter().any(is_good))
    });
    let chosen = chosen.map(|at| &candidates[at]);
    if chosen.is_none_or(|one| one.rule == GroupRule::AllLabels)
        && let Some(key) = fewer_labels(shape, credit)
    {
        return Some((key, GroupRule::FewerLabels));
    }
    // Tiny groups are no better than large ones.
    let is_tiny = chosen.is_none_or(|one| one.family.members < MEMBERS_MIN);
    let overgrown = candidates.iter().rev().find(|one| {
        one.is_acceptable() && shape.former.iter().any(|former| former.0 == one.key && former.2)
    });
    let chosen = overgrown.filter(|_| is_tiny).or(chosen)?;
    Some((chosen.key, chosen.rule))
}

/// Leaves out the labels of a shape that take the same values in every group, one after another,
/// while that clearly lowers the number of groups and distinct members.
pub(super) fn fewer_labels(shape: &LabelShape, credit: &mut i64) -> Option<Key> {
    let rows = shape.rows();
    let count = shape.names.len();
    if rows.len() < 32 || count > NAMES_TRIED_MAX {
        return None;
    }
    let cost = |stats: &KeyStats| stats.groups + stats.members;
    let mut best = whole_key(count);
    let mut lowest = cost(&KeyStats::of(&rows, best, count));
    let clearly = 16.max(rows.len() / 40);
    loop {
        *credit -= count as i64 * work(rows.len(), count);
        let without = bits(best).map(|at| best & !(1 << at)).filter(|&key| key != 0);
        let next = without.filter(|&key| !shape.is_overgrown(key)).filter_map(|key| {
            let stats = KeyStats::of(&rows, key, count);
            let is_good = cost(&stats) + clearly <= lowest
                && stats.members <= GROUP_SLOTS_GOOD as usize
                && stats.repeats() >= REPEATS_MIN
                && stats.has_one_time();
            // Among equal candidates, leave out the label with fewer values.
            is_good.then(|| {
                (cost(&stats), distinct(rows.iter().map(|row| row.hash(best & !key))), key)
            })
        });
        match next.min() {
            Some((cost, _, key)) => (lowest, best) = (cost, key),
            None => break,
        }
    }
    (best != whole_key(count)).then_some(best)
}
