//! A frozen view of the index: what a query sees.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use firn_model::{
    CancelToken, GroupId, Grouping, Labels, METRIC_NAME, Matcher, Result, SeriesLimit, SeriesRef,
};
use hashbrown::HashSet;

use crate::idset::IdSet;
use crate::index::Shared;
use crate::matching::{self, Matches};
use crate::state::{Place, State, Watermark};

/// The series that were known when it was taken; later ones are not seen. Cheap to clone and to
/// keep: it holds marks, no copy. Calls take the index's lock for bounded pieces only.
#[derive(Clone, Debug)]
pub struct IndexView {
    shared: Arc<Shared>,
    mark: Watermark,
}

/// What a view knows of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// The labels that decide which new series join it; of a group of one all labels of its member.
    pub labels: Labels,
    /// A group of one: it never gets another member.
    pub is_lone: bool,
    /// Slots that were given out: members are in `0..slot_count`. Some of them may be gone.
    pub slot_count: u32,
}

/// Sizes of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexStats {
    /// Series that are known.
    pub series_count: u64,
    /// Groups, those of one member included.
    pub group_count: u64,
    /// Distinct label sets of members.
    pub member_set_count: u64,
    /// Distinct label names.
    pub name_count: u64,
    /// Distinct label pairs.
    pub pair_count: u64,
    /// Memory held.
    pub heap_bytes: u64,
    /// Sealed segment files.
    pub segment_count: u64,
    /// Their length together.
    pub segment_bytes: u64,
    /// New series that were refused since the open, by limit in the order of [`SeriesLimit::ALL`].
    pub refused: [u64; SeriesLimit::ALL.len()],
}

/// What makes the index large.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cardinality {
    /// Series in the view.
    pub series_count: u64,
    /// Groups in the view.
    pub group_count: u64,
    /// Label names in the view.
    pub name_count: u64,
    /// Label pairs in the view.
    pub pair_count: u64,
    /// The metric names with most series, most first.
    pub series_by_metric: Vec<(String, u64)>,
    /// The label names with most values, most first.
    pub values_by_name: Vec<(String, u64)>,
    /// The label names whose values take most bytes, each value counted once, most first.
    pub bytes_by_name: Vec<(String, u64)>,
    /// The label pairs (`name=value`) with most series, most first.
    pub series_by_pair: Vec<(String, u64)>,
}

// Pairs or groups looked at under one lock.
const PAIRS_PER_LOCK: usize = 1_024;

impl IndexView {
    pub(crate) fn new(shared: Arc<Shared>, mark: Watermark) -> IndexView {
        IndexView { shared, mark }
    }

    /// The groups and slots for which all matchers hold, with a key under `grouping` for each. An
    /// absent label has the value `""`. No matcher: every series.
    ///
    /// # Errors
    /// `Canceled` or `Timeout` when the token says so; asked about once per millisecond.
    pub fn matches(
        &self,
        matchers: &[Matcher],
        grouping: &Grouping,
        cancel: &CancelToken,
    ) -> Result<Matches> {
        matching::matches(&self.shared, self.mark, matchers, grouping, cancel)
    }

    /// The labels of a series; `None` if the view does not know it.
    pub fn labels(&self, series: SeriesRef) -> Option<Labels> {
        let state = self.shared.state.read();
        let place = state.place(series)?;
        let visible = state.groups.slot_count_below(place.group_no, self.mark.series);
        (place.slot < visible).then(|| state.labels_at(place))
    }

    /// A group; `None` if the view does not know it. Its members are what [`IndexView::labels`] says of
    /// its slots.
    ///
    /// # Errors
    /// `Corrupt` for a damaged segment.
    pub fn group(&self, group: GroupId) -> Result<Option<GroupInfo>> {
        let state = self.shared.state.read();
        let known = state.groups.find(group).filter(|&group_no| group_no < self.mark.groups);
        Ok(known.map(|group_no| GroupInfo {
            labels: state.labels_of(state.groups.labels(group_no), std::iter::empty()),
            is_lone: state.groups.is_lone(group_no),
            slot_count: state.groups.slot_count_below(group_no, self.mark.series),
        }))
    }

    /// How many series the view knows.
    pub fn series_count(&self) -> u64 {
        u64::from(self.mark.series - self.mark.lost)
    }

    /// How many groups the view knows, groups of one included.
    pub fn group_count(&self) -> u64 {
        u64::from(self.mark.groups)
    }

    /// The label names of `matches`, or of all series, sorted.
    pub fn label_names(&self, matches: Option<&Matches>) -> Vec<String> {
        let mut names: Vec<String> = match matches {
            Some(matches) => {
                let pairs = self.pairs_of(matches);
                let state = self.shared.state.read();
                let ids: HashSet<u32> =
                    pairs.into_iter().map(|pair| state.pairs.pair(pair).name).collect();
                ids.into_iter().map(|id| state.pairs.name_text(id).to_owned()).collect()
            }
            None => {
                let state = self.shared.state.read();
                let ids = 0..state.pairs.name_count();
                let seen = ids.filter(|&id| self.sees_name(&state, id));
                seen.map(|id| state.pairs.name_text(id).to_owned()).collect()
            }
        };
        names.sort_unstable();
        names
    }

    /// The values that `name` has in `matches`, or in all series, sorted.
    pub fn label_values(&self, name: &str, matches: Option<&Matches>) -> Vec<String> {
        let Some(name) = self.shared.state.read().pairs.find_name(name.as_bytes()) else {
            return Vec::new();
        };
        let mut values: Vec<String> = match matches {
            Some(matches) => {
                let pairs = self.pairs_of(matches);
                let state = self.shared.state.read();
                let of_name = pairs.into_iter().filter(|&pair| state.pairs.pair(pair).name == name);
                of_name.map(|pair| state.pairs.value_text(pair).to_owned()).collect()
            }
            None => {
                let mut values = Vec::new();
                self.each_pair(name, |state, pair| {
                    values.push(state.pairs.value_text(pair).to_owned());
                });
                values
            }
        };
        values.sort_unstable();
        values
    }

    /// What makes the index large; at most `top` entries per list. Looks at every pair and at every
    /// series once per label.
    ///
    /// # Errors
    /// `Canceled` or `Timeout` when the token says so.
    pub fn cardinality(&self, top: usize, cancel: &CancelToken) -> Result<Cardinality> {
        let mut by_metric = Largest::new(top);
        let (mut values_by_name, mut bytes_by_name) = (Largest::new(top), Largest::new(top));
        let mut by_pair = Largest::new(top);
        let (mut name_count, mut pair_count) = (0, 0);
        for name in 0..self.shared.state.read().pairs.name_count() {
            let text = self.shared.state.read().pairs.name_text(name).to_owned();
            let (mut value_count, mut value_bytes) = (0, 0);
            for pair in self.pairs_of_name(name) {
                let series_count = self.count_series(pair, cancel)?;
                let state = self.shared.state.read();
                let value = state.pairs.value_text(pair);
                value_count += 1;
                value_bytes += value.len() as u64;
                by_pair.offer(series_count, || format!("{text}={value}"));
                if text == METRIC_NAME {
                    by_metric.offer(series_count, || value.to_owned());
                }
            }
            if value_count > 0 {
                name_count += 1;
                pair_count += value_count;
                values_by_name.offer(value_count, || text.clone());
                bytes_by_name.offer(value_bytes, || text.clone());
            }
        }
        Ok(Cardinality {
            series_count: self.series_count(),
            group_count: self.group_count(),
            name_count,
            pair_count,
            series_by_metric: by_metric.into_sorted(),
            values_by_name: values_by_name.into_sorted(),
            bytes_by_name: bytes_by_name.into_sorted(),
            series_by_pair: by_pair.into_sorted(),
        })
    }

    /// Every pair of a name that the view sees.
    fn pairs_of_name(&self, name: u32) -> Vec<u32> {
        let mut pairs = Vec::new();
        self.each_pair(name, |_, pair| pairs.push(pair));
        pairs
    }

    /// Hands on every pair of a name that the view sees, a bounded number under each lock.
    fn each_pair(&self, name: u32, mut take: impl FnMut(&State, u32)) {
        let mut next = 0;
        loop {
            let state = self.shared.state.read();
            let rest = state.pairs.name(name).pairs.get(next..).unwrap_or_default();
            if rest.is_empty() {
                return;
            }
            let batch = rest.iter().take(PAIRS_PER_LOCK);
            batch.filter(|&&pair| self.sees_pair(&state, pair)).for_each(|&p| take(&state, p));
            next += PAIRS_PER_LOCK.min(rest.len());
        }
    }

    /// The pairs on the series of `matches`, each once.
    fn pairs_of(&self, matches: &Matches) -> HashSet<u32> {
        let (mut pairs, mut sets) = (HashSet::new(), HashSet::new());
        for batch in matches.groups.chunks(PAIRS_PER_LOCK) {
            let state = self.shared.state.read();
            for group in batch {
                let Some(group_no) = state.groups.find(group.group) else { continue };
                pairs.extend(state.groups.labels(group_no));
                for member in &group.members {
                    let set = state.set_of(Place { group_no, slot: member.slot.0 });
                    if sets.insert(set) {
                        pairs.extend(state.sets.pairs(set));
                    }
                }
            }
        }
        pairs
    }

    fn sees_name(&self, state: &State, name: u32) -> bool {
        let name = state.pairs.name(name);
        self.sees_any(state, name.groups.first(), name.sets.first())
    }

    fn sees_pair(&self, state: &State, pair: u32) -> bool {
        let pair = state.pairs.pair(pair);
        self.sees_any(state, pair.groups.first(), pair.sets.first())
    }

    /// Both lists rise, so their first entries are the oldest.
    fn sees_any(&self, state: &State, group: Option<u32>, set: Option<u32>) -> bool {
        group.is_some_and(|group_no| group_no < self.mark.groups)
            || set.is_some_and(|set| state.sets.set(set).first_series < self.mark.series)
    }

    /// How many series have `pair`.
    fn count_series(&self, pair: u32, cancel: &CancelToken) -> Result<u64> {
        let (groups, sets) = {
            let state = self.shared.state.read();
            let pair = state.pairs.pair(pair);
            (pair.groups.below(self.mark.groups), pair.sets.below(self.mark.sets))
        };
        let in_group =
            |state: &State, no| u64::from(state.groups.slot_count_below(no, self.mark.series));
        let with_set =
            |state: &State, set| state.sets.set(set).groups.below(self.mark.groups).count();
        Ok(self.sum(&groups, in_group, cancel)? + self.sum(&sets, with_set, cancel)?)
    }

    /// Adds up what `count` says of each id, a bounded number under each lock.
    fn sum(
        &self,
        ids: &IdSet,
        count: impl Fn(&State, u32) -> u64,
        cancel: &CancelToken,
    ) -> Result<u64> {
        let mut ids = ids.iter().peekable();
        let mut sum = 0;
        while ids.peek().is_some() {
            cancel.check()?;
            let state = self.shared.state.read();
            sum += ids.by_ref().take(PAIRS_PER_LOCK).map(|id| count(&state, id)).sum::<u64>();
        }
        Ok(sum)
    }
}

/// The largest of what is offered, at most so many; of equal ones the first by name.
struct Largest {
    count_max: usize,
    /// The smallest on top, to be replaced.
    kept: BinaryHeap<Reverse<(u64, Reverse<String>)>>,
}

impl Largest {
    fn new(count_max: usize) -> Largest {
        Largest { count_max, kept: BinaryHeap::new() }
    }

    /// `name` is asked for only if it may be kept: there are millions of pairs.
    fn offer(&mut self, count: u64, name: impl FnOnce() -> String) {
        let is_full = self.kept.len() >= self.count_max;
        if is_full && self.kept.peek().is_none_or(|Reverse(least)| count < least.0) {
            return;
        }
        self.kept.push(Reverse((count, Reverse(name()))));
        if self.kept.len() > self.count_max {
            self.kept.pop();
        }
    }

    /// Largest first.
    fn into_sorted(self) -> Vec<(String, u64)> {
        let sorted = self.kept.into_sorted_vec().into_iter();
        sorted.map(|Reverse((count, Reverse(name)))| (name, count)).collect()
    }
}
