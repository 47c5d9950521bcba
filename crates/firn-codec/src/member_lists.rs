//! The member lists of tombstones: equal ones are stored once.

use std::collections::HashSet;
use std::sync::Arc;

use crate::tombstone::{HiddenMembers, Tombstone, list_bytes};

/// A table that is at least three eighths full after it grew, at 17 bytes a slot.
const ENTRY_BYTES: u64 = 46;

/// Lists of members that tombstones hide. Deletes in a row mostly hide the same members at other
/// times, so that thousands of them take little more memory than one. A list stays until no
/// tombstone has it ([`MemberLists::release_unused`]).
#[derive(Debug, Default)]
pub struct MemberLists {
    lists: HashSet<Arc<[HiddenMembers]>>,
    bytes: u64,
}

impl MemberLists {
    /// Makes `tombstone` share an equal list, if there is one. Returns whether it did.
    /// O(members).
    pub fn share(&self, tombstone: &mut Tombstone) -> bool {
        let equal = self.lists.get(&*tombstone.members);
        equal.map(|equal| tombstone.members = Arc::clone(equal)).is_some()
    }

    /// As [`MemberLists::share`]; without an equal list, adds that of `tombstone`. Returns the
    /// bytes added.
    pub fn add(&mut self, tombstone: &mut Tombstone) -> u64 {
        if self.share(tombstone) {
            return 0;
        }
        let bytes = bytes_of(&tombstone.members);
        self.lists.insert(Arc::clone(&tombstone.members));
        self.bytes = self.bytes.saturating_add(bytes);
        bytes
    }

    /// Drops the lists that no tombstone has any more. Returns their bytes. O(lists).
    pub fn release_unused(&mut self) -> u64 {
        let before = self.bytes;
        self.lists.retain(|members| {
            let is_used = Arc::strong_count(members) > 1;
            if !is_used {
                self.bytes = self.bytes.saturating_sub(bytes_of(members));
            }
            is_used
        });
        before.saturating_sub(self.bytes)
    }

    /// Bytes of memory.
    pub fn heap_bytes(&self) -> u64 {
        self.bytes
    }
}

fn bytes_of(members: &[HiddenMembers]) -> u64 {
    list_bytes(members).saturating_add(ENTRY_BYTES)
}

#[cfg(test)]
mod tests {
    use firn_model::{GroupId, TimeRange};

    use super::*;
    use crate::tombstone::HiddenSlots;

    fn tombstone(ts: i64, groups: u64) -> Tombstone {
        let hidden = |group| HiddenMembers { group: GroupId(group), slots: HiddenSlots::Below(3) };
        Tombstone::new(0, TimeRange::at(ts), (0..groups).map(hidden).collect())
    }

    #[test]
    fn equal_lists_are_stored_and_counted_once_until_the_last_tombstone_is_dropped() {
        let mut lists = MemberLists::default();
        let mut first = tombstone(0, 1_000);
        assert!(!lists.share(&mut first));
        let bytes = lists.add(&mut first);
        assert!(bytes > 1_000 * size_of::<HiddenMembers>() as u64);
        let mut second = tombstone(1, 1_000);
        assert_eq!((lists.add(&mut second), lists.heap_bytes()), (0, bytes));
        assert!(second.shares_members(&first) && second == tombstone(1, 1_000));
        let mut other = tombstone(1, 999);
        let other_bytes = lists.add(&mut other);
        assert!(!other.shares_members(&first) && other_bytes > 0);
        drop(first);
        assert_eq!(lists.release_unused(), 0);
        drop(second);
        assert_eq!((lists.release_unused(), lists.heap_bytes()), (bytes, other_bytes));
        assert!(!lists.share(&mut tombstone(2, 1_000)) && lists.share(&mut tombstone(2, 999)));
    }
}
