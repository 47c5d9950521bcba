//! Names and pairs of one segment in memory that a view contains.

use firn_model::SeriesRef;
use hashbrown::HashSet;
use parking_lot::RwLock;

use crate::matches::GroupMatch;
use crate::memory::index::{MemoryIndex, Watermark};

// Pairs or groups read under one lock.
const PAIRS_PER_LOCK: usize = 1_024;

impl Watermark {
    /// Whether a visible series has the name.
    pub(crate) fn sees_name(self, memory: &MemoryIndex, name: u32) -> bool {
        let name = memory.pairs.name(name);
        self.sees_any(memory, name.parts.first(), name.sets.first())
    }

    /// Whether a visible series has the pair.
    fn sees_pair(self, memory: &MemoryIndex, pair: u32) -> bool {
        let pair = memory.pairs.pair(pair);
        self.sees_any(memory, pair.parts.first(), pair.sets.first())
    }

    /// Both lists ascend, so their first entries are the oldest.
    fn sees_any(self, memory: &MemoryIndex, part: Option<u32>, set: Option<u32>) -> bool {
        part.is_some_and(|part_no| part_no < self.parts)
            || set.is_some_and(|set| memory.sets.set(set).first_series < self.series)
    }
}

/// Calls `take` with every visible pair of a name, a bounded number under each lock.
pub(crate) fn each_pair(
    memory: &RwLock<MemoryIndex>,
    mark: Watermark,
    name: u32,
    mut take: impl FnMut(&MemoryIndex, u32),
) {
    let mut next = 0;
    loop {
        let memory = memory.read();
        let rest = memory.pairs.name(name).pairs.get(next..).unwrap_or_default();
        if rest.is_empty() {
            return;
        }
        let batch = rest.iter().take(PAIRS_PER_LOCK);
        batch.filter(|&&pair| mark.sees_pair(&memory, pair)).for_each(|&p| take(&memory, p));
        next += PAIRS_PER_LOCK.min(rest.len());
    }
}

/// The distinct pairs of the series of `groups` that are in this segment.
pub(crate) fn pairs_of(memory: &RwLock<MemoryIndex>, groups: &[GroupMatch]) -> HashSet<u32> {
    let (mut pairs, mut sets) = (HashSet::new(), HashSet::new());
    for batch in groups.chunks(PAIRS_PER_LOCK) {
        let memory = memory.read();
        for group in batch {
            let mut last = None;
            for member in &group.members {
                let series = SeriesRef { group: group.group, slot: member.slot };
                let Some(position) = memory.position(series) else { continue };
                if last.replace(position.part_no) != Some(position.part_no) {
                    pairs.extend(memory.parts.identity(position.part_no));
                    pairs.extend(memory.parts.common(position.part_no));
                }
                let set = memory.set_of(position);
                if sets.insert(set) {
                    pairs.extend(memory.sets.pairs(set));
                }
            }
        }
    }
    pairs
}
