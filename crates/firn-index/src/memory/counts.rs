//! Series counts of one segment in memory.

use firn_model::{Budget, Labels};

use crate::id_set::IdSet;
use crate::memory::index::MemoryIndex;
use crate::memory::posting::PostingList;

impl MemoryIndex {
    /// Number of series with the pair.
    pub(crate) fn pair_series_count(&self, name: &str, value: &str) -> u64 {
        let pair = self.pairs.find(name.as_bytes(), value.as_bytes());
        let Some(pair) = pair.map(|pair| self.pairs.pair(pair)) else { return 0 };
        let in_parts = all_of(&pair.parts);
        let in_parts = in_parts.iter().map(|part_no| self.parts.sets(part_no).len() as u64);
        let in_sets = all_of(&pair.sets);
        let in_sets = in_sets.iter().map(|set| all_of(&self.sets.set(set).parts).count());
        in_parts.sum::<u64>() + in_sets.sum::<u64>()
    }

    /// Members of all groups with exactly these identity labels, without lone series.
    pub(crate) fn group_series_count(&self, labels: &Labels) -> u64 {
        let ids = labels.iter_bytes().map(|(name, value)| self.pairs.find(name, value));
        let Some(ids) = ids.collect::<Option<Vec<u32>>>() else { return 0 };
        let lists = ids.iter().map(|&pair| all_of(&self.pairs.pair(pair).parts));
        let shortest = lists.min_by_key(IdSet::count);
        let candidates = shortest.unwrap_or_else(|| IdSet::below(self.parts.count()));
        let is_it = |&part_no: &u32| {
            !self.parts.is_lone(part_no) && self.parts.identity(part_no).eq(ids.iter().copied())
        };
        let count = |part_no| self.parts.sets(part_no).len() as u64;
        candidates.iter().filter(is_it).map(count).sum()
    }
}

/// The writer's limits are counted once per metric or group, and one list at a time is in memory.
fn all_of(list: &PostingList) -> IdSet {
    list.below(u32::MAX, &Budget::unlimited()).unwrap_or_default()
}
