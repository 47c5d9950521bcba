//! Tombstones decoded from the manifest and from the log when a database opens, and their memory.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use firn_codec::{MemberLists, Tombstone, Tombstones};
use firn_model::{CommitSeq, Reservation, Result, decode_varint, encode_varint};

/// Stored tombstones, equal members once.
///
/// Their memory is counted before they are decoded, but never refused: an acknowledged delete is
/// kept, also in a database whose limit was lowered. Writes and deletes that follow are refused
/// until the pool has room again.
#[derive(Debug)]
pub(crate) struct StoredTombstones {
    list: BTreeMap<CommitSeq, Arc<Tombstone>>,
    members: MemberLists,
    /// The memory of the tombstones and of `members`.
    memory: Reservation,
}

impl StoredTombstones {
    /// None yet; `memory` grows with them.
    pub(crate) fn new(memory: Reservation) -> StoredTombstones {
        StoredTombstones { list: BTreeMap::new(), members: MemberLists::default(), memory }
    }

    /// Adds the tombstones of [`encode`]; `None` if the list around them ends early.
    ///
    /// # Errors
    /// Those of [`Tombstone::decode`].
    pub(crate) fn add_list(&mut self, mut list: &[u8]) -> Result<Option<()>> {
        let mut earlier = Vec::new();
        while !list.is_empty() {
            let Some((seq, bytes)) = take_entry(&mut list) else { return Ok(None) };
            let tombstone = self.add(seq, bytes, &earlier)?;
            earlier.push(tombstone);
        }
        Ok(Some(()))
    }

    /// Decodes and adds one tombstone, which may share the members of `earlier` ones in its list. A
    /// repeated number changes nothing.
    ///
    /// # Errors
    /// Those of [`Tombstone::decode`].
    pub(crate) fn add(
        &mut self,
        seq: CommitSeq,
        bytes: &[u8],
        earlier: &[Arc<Tombstone>],
    ) -> Result<Arc<Tombstone>> {
        let decoding_bytes = Tombstone::decoding_bytes_max(bytes.len());
        self.memory.take(decoding_bytes);
        let decoded = Tombstone::decode(bytes, earlier);
        let added = decoded.map(|mut tombstone| {
            // Saves a hash of all members.
            let is_known = earlier.last().is_some_and(|last| last.shares_members(&tombstone));
            if !is_known {
                self.memory.take(self.members.add(&mut tombstone));
            }
            let (list, memory) = (&mut self.list, &mut self.memory);
            let stored = list.entry(seq).or_insert_with(|| {
                memory.take(Tombstone::OWN_BYTES);
                Arc::new(tombstone)
            });
            Arc::clone(stored)
        });
        self.memory.shrink(decoding_bytes);
        added
    }

    /// Removes a tombstone, if it is here.
    pub(crate) fn remove(&mut self, seq: CommitSeq) {
        if self.list.remove(&seq).is_some() {
            self.memory.shrink(Tombstone::OWN_BYTES);
        }
    }

    /// Drops the members of removed tombstones.
    pub(crate) fn release_unused(&mut self) {
        self.memory.shrink(self.members.release_unused());
    }

    /// Moves all to another budget, that of `memory`.
    pub(crate) fn move_to(&mut self, mut memory: Reservation) -> StoredTombstones {
        memory.take(self.memory.bytes());
        self.memory.shrink(u64::MAX);
        let (list, members) = (std::mem::take(&mut self.list), std::mem::take(&mut self.members));
        StoredTombstones { list, members, memory }
    }

    /// The number of the newest; 0 if there is none.
    pub(crate) fn through(&self) -> CommitSeq {
        self.list.keys().next_back().copied().unwrap_or_default()
    }

    /// All as a set.
    pub(crate) fn to_set(&self) -> Tombstones {
        Tombstones::new(self.list.iter().map(|(&seq, one)| (seq, Arc::clone(one))).collect())
    }

    /// The members, their memory, and that of the tombstones themselves.
    pub(crate) fn into_memory(mut self) -> (MemberLists, Reservation, Reservation) {
        let of_members = self.memory.split(self.members.heap_bytes());
        (self.members, of_members, self.memory)
    }
}

/// Appends `tombstones` to `out`. Members that several share are written once, so that thousands of
/// deletes of one selector take about 30 bytes each in every manifest.
pub(crate) fn encode(tombstones: &Tombstones, out: &mut Vec<u8>) {
    let mut bytes = Vec::new();
    let mut idx_of_members = HashMap::new();
    for (idx, (seq, tombstone)) in tombstones.iter().enumerate() {
        bytes.clear();
        // Equal addresses: both lists are alive.
        match idx_of_members.insert(tombstone.members().as_ptr(), idx) {
            Some(earlier) => tombstone.encode_like(idx.saturating_sub(earlier), &mut bytes),
            None => tombstone.encode(&mut bytes),
        }
        encode_varint(seq.0, out);
        encode_varint(bytes.len() as u64, out);
        out.extend_from_slice(&bytes);
    }
}

fn take_entry<'a>(list: &mut &'a [u8]) -> Option<(CommitSeq, &'a [u8])> {
    let seq = CommitSeq(decode_varint(list)?);
    let len = usize::try_from(decode_varint(list)?).ok()?;
    let (bytes, rest) = list.split_at_checked(len)?;
    *list = rest;
    Some((seq, bytes))
}

#[cfg(test)]
mod tests {
    use firn_codec::{HiddenMembers, HiddenSlots};
    use firn_model::{Budget, GroupId, Pool, TimeRange};

    use super::*;

    fn tombstone(ts: i64, groups: u64) -> Arc<Tombstone> {
        let hidden = |group| HiddenMembers { group: GroupId(group), slots: HiddenSlots::Below(3) };
        Arc::new(Tombstone::new(0, TimeRange::at(ts), (0..groups).map(hidden).collect()))
    }

    /// Of 5,000 deletes each hides one of two lists of 1,000 groups. The list of each is stored
    /// once, in memory and in the manifest, and so are equal ones of the log.
    #[test]
    fn equal_members_are_stored_once() {
        let mut members = MemberLists::default();
        let all = (1..=5_000).map(|seq| {
            let mut one = tombstone(seq, 1_000 - seq as u64 % 2);
            members.add(Arc::make_mut(&mut one));
            (CommitSeq(seq as u64), one)
        });
        let all = Tombstones::new(all.collect());
        let mut encoded = Vec::new();
        encode(&all, &mut encoded);
        assert!(encoded.len() < 5_000 * 16 + 2 * 4_000, "{} bytes", encoded.len());

        let budget = Budget::new(1);
        let mut stored = StoredTombstones::new(budget.empty(Pool::Index));
        let bytes = || budget.usage().by_pool[Pool::Index as usize];
        assert_eq!(stored.add_list(&encoded).unwrap(), Some(()));
        let want = 5_000 * Tombstone::OWN_BYTES + members.heap_bytes();
        assert_eq!((bytes(), stored.through()), (want, CommitSeq(5_000)));
        assert!(stored.to_set().iter().eq(all.iter()));
        // Those of the log contain their members. A repeated one changes nothing.
        for seq in [5_001, 5_002, 5_002] {
            let mut bytes = Vec::new();
            tombstone(seq, 999).encode(&mut bytes);
            stored.add(CommitSeq(seq as u64), &bytes, &[]).unwrap();
        }
        assert_eq!(bytes(), want + 2 * Tombstone::OWN_BYTES);
        for seq in 1..=5_002 {
            stored.remove(CommitSeq(seq));
        }
        stored.release_unused();
        assert_eq!(bytes(), 0);
    }
}
