//! A bitmap of references that were recently found valid, so that a client which sends the same
//! series repeatedly causes no lookups in files.

use firn_model::SeriesRef;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

/// Valid references of one [`crate::Index::generation`]: within a generation no reference becomes
/// invalid.
#[derive(Debug, Default)]
pub(crate) struct KnownRefs {
    generation: u32,
    /// 64 references each.
    words: HashMap<WordKey, u64>,
}

/// The references that share a word: slot 0 of 64 groups, many of which are lone series, or 64
/// slots of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct WordKey {
    group: u64,
    slot: u32,
}

// 7 MiB: enough for 14 million lone series, or 11 million series in groups of 100. References that
// do not fit are looked up each time.
const WORD_COUNT_MAX: usize = 7 << 15;

impl KnownRefs {
    /// Returns the references of `series` that are not known to be valid in `generation`, without
    /// adjacent duplicates.
    pub(crate) fn unsure(
        &self,
        generation: u32,
        series: impl IntoIterator<Item = SeriesRef>,
    ) -> Vec<SeriesRef> {
        let is_other = generation != self.generation;
        let mut unsure = Vec::new();
        let mut last_series = None;
        // Adjacent references usually share a word.
        let mut last_word = None;
        for series in series {
            if last_series.replace(series) == Some(series) {
                continue;
            }
            let (neighbours, bit) = word_and_bit(series);
            let word = match last_word {
                Some((of, word)) if of == neighbours => word,
                _ => self.words.get(&neighbours).copied().unwrap_or(0),
            };
            last_word = Some((neighbours, word));
            if is_other || word & bit == 0 {
                unsure.push(series);
            }
        }
        unsure
    }

    /// Adds references that were found valid after `generation` was read.
    pub(crate) fn note(&mut self, generation: u32, series: impl IntoIterator<Item = SeriesRef>) {
        if generation != self.generation {
            // Another writer may have noted references of a later generation. They are looked up
            // again, which is harmless.
            *self = KnownRefs { generation, ..KnownRefs::default() };
        }
        let mut bits_of_words = series.into_iter().map(word_and_bit).peekable();
        while let Some((neighbours, mut bits)) = bits_of_words.next() {
            while let Some((_, bit)) = bits_of_words.next_if(|(next, _)| *next == neighbours) {
                bits |= bit;
            }
            let is_full = self.words.len() >= WORD_COUNT_MAX;
            match self.words.entry(neighbours) {
                Entry::Occupied(mut word) => *word.get_mut() |= bits,
                Entry::Vacant(place) if !is_full => drop(place.insert(bits)),
                Entry::Vacant(_) => {}
            }
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.words.allocation_size()
    }
}

fn word_and_bit(series: SeriesRef) -> (WordKey, u64) {
    let (group, slot) = (series.group.0, series.slot.0);
    match slot {
        // Slot 0 belongs to the other kind of word, so the kinds differ in their slot.
        0 => (WordKey { group: group / 64, slot: u32::MAX }, 1 << (group % 64)),
        _ => (WordKey { group, slot: slot / 64 }, 1 << (slot % 64)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use firn_model::{GroupId, Slot};
    use proptest::prelude::*;

    use super::*;

    fn series(group: u64, slot: u32) -> SeriesRef {
        SeriesRef { group: GroupId(group), slot: Slot(slot) }
    }

    proptest! {
        #[test]
        fn it_is_a_set_of_one_generation(
            noted in prop::collection::vec((0u64..200, 0u32..130), 0..300),
            asked in prop::collection::vec((0u64..200, 0u32..130), 0..300),
        ) {
            let of = |pairs: &[(u64, u32)]| -> Vec<SeriesRef> {
                pairs.iter().map(|&(group, slot)| series(group, slot)).collect()
            };
            let (noted, asked) = (of(&noted), of(&asked));
            let mut known = KnownRefs::default();
            known.note(3, noted.iter().copied());
            let set: HashSet<SeriesRef> = noted.into_iter().collect();
            let mut want: Vec<SeriesRef> = asked.clone();
            want.dedup();
            prop_assert_eq!(known.unsure(4, asked.iter().copied()), want.clone());
            want.retain(|series| !set.contains(series));
            prop_assert_eq!(known.unsure(3, asked), want);
            known.note(4, []);
            prop_assert_eq!(known.unsure(4, set.iter().copied()).len(), set.len());
        }
    }

    #[test]
    fn it_respects_its_bound() {
        let mut known = KnownRefs::default();
        let many: Vec<SeriesRef> =
            (0..400_000).map(|number| series(number * 64, number as u32 % 2)).collect();
        known.note(0, many.iter().copied());
        assert!(known.heap_bytes() <= 7 << 20, "{}", known.heap_bytes());
        let unsure = known.unsure(0, many.iter().copied());
        assert_eq!(unsure.len(), many.len() - WORD_COUNT_MAX);
        assert_eq!(known.unsure(0, unsure.iter().copied()), unsure, "the others are looked up");
    }
}
