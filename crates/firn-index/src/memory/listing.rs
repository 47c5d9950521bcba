//! Names and pairs of one segment in memory, as a view sees them.

use firn_model::SeriesRef;
use hashbrown::HashSet;
use parking_lot::RwLock;

use crate::matches::GroupMatch;
use crate::memory::state::{State, Watermark};

// Pairs or groups looked at under one lock.
const PAIRS_PER_LOCK: usize = 1_024;

impl Watermark {
    /// Whether a series has the name.
    pub(crate) fn sees_name(self, state: &State, name: u32) -> bool {
        let name = state.pairs.name(name);
        self.sees_any(state, name.parts.first(), name.sets.first())
    }

    /// Whether a series has the pair.
    fn sees_pair(self, state: &State, pair: u32) -> bool {
        let pair = state.pairs.pair(pair);
        self.sees_any(state, pair.parts.first(), pair.sets.first())
    }

    /// Both lists rise, so their first entries are the oldest.
    fn sees_any(self, state: &State, part: Option<u32>, set: Option<u32>) -> bool {
        part.is_some_and(|part_no| part_no < self.parts)
            || set.is_some_and(|set| state.sets.set(set).first_series < self.series)
    }
}

/// Hands on every pair of a name that is seen, a bounded number under each lock.
pub(crate) fn each_pair(
    state: &RwLock<State>,
    mark: Watermark,
    name: u32,
    mut take: impl FnMut(&State, u32),
) {
    let mut next = 0;
    loop {
        let state = state.read();
        let rest = state.pairs.name(name).pairs.get(next..).unwrap_or_default();
        if rest.is_empty() {
            return;
        }
        let batch = rest.iter().take(PAIRS_PER_LOCK);
        batch.filter(|&&pair| mark.sees_pair(&state, pair)).for_each(|&p| take(&state, p));
        next += PAIRS_PER_LOCK.min(rest.len());
    }
}

/// The pairs on those series of `groups` that are in this segment, each once.
pub(crate) fn pairs_of(state: &RwLock<State>, groups: &[GroupMatch]) -> HashSet<u32> {
    let (mut pairs, mut sets) = (HashSet::new(), HashSet::new());
    for batch in groups.chunks(PAIRS_PER_LOCK) {
        let state = state.read();
        for group in batch {
            let mut last = None;
            for member in &group.members {
                let series = SeriesRef { group: group.group, slot: member.slot };
                let Some(place) = state.place(series) else { continue };
                if last.replace(place.part_no) != Some(place.part_no) {
                    pairs.extend(state.parts.identity(place.part_no));
                    pairs.extend(state.parts.common(place.part_no));
                }
                let set = state.set_of(place);
                if sets.insert(set) {
                    pairs.extend(state.sets.pairs(set));
                }
            }
        }
    }
    pairs
}
