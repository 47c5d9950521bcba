//! Member label sets, interned: hosts have the same members, so each set is stored once.

use firn_model::Result;
use hashbrown::HashTable;

use crate::memory::arena::{Arena, Chunked, Ids, decode_ids, encode_ids};
use crate::memory::posting::PostingList;
use crate::pair::hash_ids;

/// The set without labels, of a lone series.
pub(crate) const EMPTY_SET: u32 = 0;

/// All member label sets.
#[derive(Debug)]
pub(crate) struct MemberSets {
    sets: Chunked<MemberSet>,
    table: HashTable<u32>,
    lists: Arena,
    /// Heap of all posting lists.
    list_bytes: usize,
    /// The pairs of all sets.
    label_count: u64,
}

#[derive(Debug)]
pub(crate) struct MemberSet {
    list_at: u32,
    /// The first series with this set; decides whether a view contains the set.
    pub(crate) first_series: u32,
    /// Parts with a member of this set, in order of arrival (not always ascending).
    pub(crate) parts: PostingList,
}

impl Default for MemberSets {
    fn default() -> MemberSets {
        let mut sets = MemberSets {
            sets: Chunked::default(),
            table: HashTable::new(),
            lists: Arena::default(),
            list_bytes: 0,
            label_count: 0,
        };
        // An empty arena has space for an empty list.
        let made = sets.intern(&[], u32::MAX);
        debug_assert!(matches!(made, Ok((EMPTY_SET, true))));
        sets
    }
}

impl MemberSets {
    /// The set of these pairs (in order of names), and whether it is new. Its first series is
    /// `series_no` or older.
    ///
    /// # Errors
    /// `TooLarge` when the arena is full.
    pub(crate) fn intern(&mut self, pairs: &[u32], series_no: u32) -> Result<(u32, bool)> {
        if let Some(set) = self.find(pairs) {
            self.sets[set].first_series = self.sets[set].first_series.min(series_no);
            return Ok((set, false));
        }
        let set = self.sets.len();
        self.label_count += pairs.len() as u64;
        let mut list = Vec::with_capacity(4 * pairs.len() + 1);
        encode_ids(pairs, &mut list);
        let list_at = self.lists.push(&list)?;
        self.sets.push(MemberSet {
            list_at,
            first_series: series_no,
            parts: PostingList::default(),
        });
        let (sets, lists) = (&self.sets, &self.lists);
        self.table.insert_unique(hash_ids(pairs.iter().copied()), set, |&set| {
            hash_ids(decode_ids(lists.from(sets[set].list_at)))
        });
        Ok((set, true))
    }

    /// The set of these pairs, if it exists.
    pub(crate) fn find(&self, pairs: &[u32]) -> Option<u32> {
        let is_it = |&set: &u32| self.pairs(set).eq(pairs.iter().copied());
        self.table.find(hash_ids(pairs.iter().copied()), is_it).copied()
    }

    /// A set's pairs in order of names.
    pub(crate) fn pairs(&self, set: u32) -> Ids<'_> {
        decode_ids(self.lists.from(self.sets[set].list_at))
    }

    pub(crate) fn count(&self) -> u32 {
        self.sets.len()
    }

    /// The labels of all sets.
    pub(crate) fn label_count(&self) -> u64 {
        self.label_count
    }

    pub(crate) fn set(&self, set: u32) -> &MemberSet {
        &self.sets[set]
    }

    /// Records that `part_no` has a member of this set.
    pub(crate) fn add_part(&mut self, set: u32, part_no: u32) {
        self.list_bytes += self.sets[set].parts.push(part_no);
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.list_bytes
            + self.sets.heap_bytes()
            + self.lists.heap_bytes()
            + self.table.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sets_are_stored_once() {
        let mut sets = MemberSets::default();
        assert_eq!(sets.intern(&[3, 1], 5).unwrap(), (1, true));
        assert_eq!(sets.intern(&[1, 3], 6).unwrap(), (2, true), "order of names counts");
        assert_eq!(sets.intern(&[3, 1], 4).unwrap(), (1, false));
        assert_eq!(sets.intern(&[], 9).unwrap(), (EMPTY_SET, false));
        assert_eq!(sets.find(&[1, 3]), Some(2));
        assert_eq!(sets.pairs(1).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(sets.set(1).first_series, 4);
    }

    #[test]
    fn a_split_set_has_the_hash_of_the_whole() {
        let whole = hash_ids([1, 2, 3]);
        assert_eq!(whole, hash_ids([1, 3]).wrapping_add(hash_ids([2])));
        assert_ne!(whole, hash_ids([1, 2, 4]));
    }
}
