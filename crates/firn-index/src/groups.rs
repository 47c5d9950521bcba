//! Groups and their members: a label list and one `u32` per slot.
//!
//! Groups have a *number* here, dense in order of creation, because posting lists want rising ids;
//! a [`GroupId`] carries its shard and would not rise. Series have a *number* too, dense in order of
//! definition: it tells what a view knows and what is sealed.

use firn_model::{Error, GroupId, Result, ShardBits, ShardId};
use hashbrown::HashTable;

use crate::arena::{Arena, Chunked, decode_ids, encode_ids};
use crate::sets::{EMPTY_SET, hash_ids};

/// All groups.
#[derive(Debug)]
pub(crate) struct Groups {
    bits: ShardBits,
    groups: Chunked<Group>,
    members: Vec<Members>,
    /// Heap of all members.
    member_bytes: usize,
    lists: Arena,
    /// The newest group of its labels that takes members.
    open: HashTable<u32>,
    /// Group numbers by shard and local id.
    locals: Vec<Vec<u32>>,
}

/// One group.
#[derive(Debug)]
struct Group {
    local: u32,
    labels_at: u32,
    first_series: u32,
    /// Where in `Groups::members`, or [`LONE`].
    members: u32,
    shard: u16,
}

/// The slots of a group that may have more than one.
#[derive(Debug)]
struct Members {
    /// The group they are of.
    group_no: u32,
    /// The member set of each slot.
    sets: Vec<u32>,
    /// Where series numbers jump: `(slot, series number)`, both rising. The first slot's is
    /// `Group::first_series`.
    jumps: Vec<(u32, u32)>,
}

const LONE: u32 = u32::MAX;
/// A group that was never seen: its definition is still to be replayed, or lost.
const NO_GROUP: u32 = u32::MAX;
// Lost definitions leave holes; one that claims more than this is no definition of ours.
const HOLE_MAX: usize = 1 << 24;

impl Groups {
    pub(crate) fn new(bits: ShardBits) -> Groups {
        Groups {
            bits,
            groups: Chunked::default(),
            members: Vec::new(),
            member_bytes: 0,
            lists: Arena::default(),
            open: HashTable::new(),
            locals: vec![Vec::new(); bits.shard_count()],
        }
    }

    /// A group with these label pairs (in order of names) at the next id of `shard`. `lone`: a group
    /// of one, whose only member has no labels of its own; its slot is there at once.
    ///
    /// # Errors
    /// `TooLarge` when lists or ids are used up.
    pub(crate) fn create(
        &mut self,
        shard: ShardId,
        labels: &[u32],
        lone: bool,
        first_series: u32,
    ) -> Result<u32> {
        let local = self.locals[usize::from(shard.0)].len() as u64;
        self.create_at(self.bits.group(shard, local), labels, lone, first_series)
    }

    /// A group at an id that has none yet.
    ///
    /// # Errors
    /// `TooLarge` as above; `Invalid` for an id that leaves an absurd hole.
    pub(crate) fn create_at(
        &mut self,
        id: GroupId,
        labels: &[u32],
        lone: bool,
        first_series: u32,
    ) -> Result<u32> {
        let shard = self.bits.shard(id).0;
        self.reserve_ids(ShardId(shard), self.bits.local(id).saturating_add(1))?;
        let local = self.bits.local(id) as u32;
        let group_no = self.groups.len();
        let mut list = Vec::with_capacity(4 * labels.len() + 1);
        encode_ids(labels, &mut list);
        let labels_at = self.lists.push(&list)?;
        let members = if lone { LONE } else { self.members.len() as u32 };
        self.groups.push(Group { local, labels_at, first_series, members, shard });
        if !lone {
            self.members.push(Members { group_no, sets: Vec::new(), jumps: Vec::new() });
            self.open_for(labels, group_no);
        }
        self.locals[usize::from(shard)][local as usize] = group_no;
        Ok(group_no)
    }

    /// Makes ids below `next` of a shard taken, so that none is given twice.
    ///
    /// # Errors
    /// `Invalid` for an absurd hole, `TooLarge` when ids are used up.
    pub(crate) fn reserve_ids(&mut self, shard: ShardId, next: u64) -> Result<()> {
        let locals = &mut self.locals[usize::from(shard.0)];
        if next > u64::from(u32::MAX) {
            return Err(Error::too_large("the group ids of a shard are used up"));
        }
        let next = next as usize;
        if next > locals.len() + HOLE_MAX {
            return Err(Error::invalid(format!(
                "group {} of shard {} leaves a hole after {}",
                next - 1,
                shard.0,
                locals.len()
            )));
        }
        if next > locals.len() {
            locals.resize(next, NO_GROUP);
        }
        Ok(())
    }

    /// The groups of `shard` take no new member until the next open: a member opens another group.
    pub(crate) fn close_all(&mut self, shard: ShardId) {
        let groups = &self.groups;
        self.open.retain(|&mut group_no| groups[group_no].shard != shard.0);
    }

    /// Adds a slot at the end. Not for a lone group.
    ///
    /// # Errors
    /// `Invalid` for a lone group.
    pub(crate) fn push_slot(&mut self, group_no: u32, set: u32, series_no: u32) -> Result<u32> {
        let group = &self.groups[group_no];
        let id = self.bits.group(ShardId(group.shard), u64::from(group.local));
        let first_series = group.first_series;
        let Some(members) = self.members.get_mut(group.members as usize) else {
            return Err(Error::invalid(format!("{id} is a group of one and takes no member")));
        };
        let before = members.heap_bytes();
        let slot = members.sets.len() as u32;
        let last = members.jumps.last().copied().unwrap_or((0, first_series));
        if last.1 + (slot - last.0) != series_no {
            members.jumps.push((slot, series_no));
        }
        members.sets.push(set);
        self.member_bytes += members.heap_bytes() - before;
        Ok(slot)
    }

    /// Fills a slot that was lost.
    pub(crate) fn fill_slot(&mut self, group_no: u32, slot: u32, set: u32) {
        let group = &self.groups[group_no];
        if let Some(members) = self.members.get_mut(group.members as usize) {
            members.sets[slot as usize] = set;
        }
    }

    /// The newest group with exactly these labels that is not a group of one.
    pub(crate) fn find_open(&self, labels: &[u32]) -> Option<u32> {
        let is_it = |&group_no: &u32| self.labels(group_no).eq(labels.iter().copied());
        self.open.find(hash_ids(labels.iter().copied()), is_it).copied()
    }

    fn open_for(&mut self, labels: &[u32], group_no: u32) {
        let (groups, lists) = (&self.groups, &self.lists);
        let hash = hash_ids(labels.iter().copied());
        let list_of = |group_no: u32| decode_ids(lists.from(groups[group_no].labels_at));
        let known = self.open.find_mut(hash, |&known| list_of(known).eq(labels.iter().copied()));
        match known {
            Some(known) => *known = group_no,
            None => {
                self.open.insert_unique(hash, group_no, |&known| hash_ids(list_of(known)));
            }
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.groups.len()
    }

    /// The group's label pairs in order of names.
    pub(crate) fn labels(&self, group_no: u32) -> impl ExactSizeIterator<Item = u32> + Clone + '_ {
        decode_ids(self.lists.from(self.groups[group_no].labels_at))
    }

    pub(crate) fn is_lone(&self, group_no: u32) -> bool {
        self.groups[group_no].members == LONE
    }

    /// The member set of each slot, all slots.
    pub(crate) fn slots(&self, group_no: u32) -> &[u32] {
        let group = &self.groups[group_no];
        self.members.get(group.members as usize).map_or(&[EMPTY_SET], |m| &m.sets)
    }

    /// How many slots hold series with numbers below `series_end`: these come first.
    pub(crate) fn slot_count_below(&self, group_no: u32, series_end: u32) -> u32 {
        let group = &self.groups[group_no];
        let (slot_count, jumps) = match self.members.get(group.members as usize) {
            Some(members) => (members.sets.len() as u32, &members.jumps[..]),
            None => (1, &[][..]),
        };
        let known = jumps.partition_point(|jump| jump.1 < series_end);
        let run_start = if known == 0 { (0, group.first_series) } else { jumps[known - 1] };
        let run_end = jumps.get(known).map_or(slot_count, |jump| jump.0);
        let visible = u64::from(run_start.0) + u64::from(series_end.saturating_sub(run_start.1));
        visible.min(u64::from(run_end)) as u32
    }

    pub(crate) fn id(&self, group_no: u32) -> GroupId {
        let group = &self.groups[group_no];
        self.bits.group(ShardId(group.shard), u64::from(group.local))
    }

    pub(crate) fn shard(&self, group_no: u32) -> ShardId {
        ShardId(self.groups[group_no].shard)
    }

    /// The number of a group, `None` if no definition of it was seen.
    pub(crate) fn find(&self, id: GroupId) -> Option<u32> {
        let local = usize::try_from(self.bits.local(id)).ok()?;
        let group_no = *self.locals[usize::from(self.bits.shard(id).0)].get(local)?;
        (group_no != NO_GROUP).then_some(group_no)
    }

    /// The next local id of each shard.
    pub(crate) fn next_ids(&self) -> Vec<u64> {
        self.locals.iter().map(|locals| locals.len() as u64).collect()
    }

    /// Groups that may have slots from series `start` on, numbers rising: what was created since, and
    /// older ones that may have grown.
    pub(crate) fn touched_since(&self, start: u32) -> Vec<u32> {
        // First series rise with the number.
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.groups[middle].first_series < start { low = middle + 1 } else { high = middle }
        }
        let old = self.members.iter().take_while(|members| members.group_no < low);
        let grown = old.filter(|members| {
            members.sets.len() as u32 > self.slot_count_below(members.group_no, start)
        });
        grown.map(|members| members.group_no).chain(low..self.count()).collect()
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let local_bytes: usize = self.locals.iter().map(|locals| locals.capacity() * 4 + 24).sum();
        self.member_bytes
            + local_bytes
            + self.members.capacity() * size_of::<Members>()
            + self.groups.heap_bytes()
            + self.lists.heap_bytes()
            + self.open.allocation_size()
    }
}

impl Members {
    fn heap_bytes(&self) -> usize {
        self.sets.capacity() * 4 + self.jumps.capacity() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups() -> Groups {
        Groups::new(ShardBits::for_count(4))
    }

    #[test]
    fn slots_below_a_series_number_are_counted_over_jumps() {
        let mut groups = groups();
        let group_no = groups.create(ShardId(3), &[1], false, 10).unwrap();
        for (slot, series_no) in [10, 11, 12, 20, 21, 30].into_iter().enumerate() {
            assert_eq!(groups.push_slot(group_no, 7, series_no).unwrap(), slot as u32);
        }
        let f = |end| groups.slot_count_below(group_no, end);
        assert_eq!(
            [0, 10, 11, 13, 20, 21, 22, 25, 30, 31, 99].map(f),
            [0, 0, 1, 3, 3, 4, 5, 5, 5, 6, 6]
        );
        assert_eq!(groups.touched_since(31), Vec::<u32>::new());
        assert_eq!(groups.touched_since(30), [group_no]);
    }

    #[test]
    fn ids_are_dense_per_shard_and_the_newest_group_is_open() {
        let mut groups = groups();
        let first = groups.create(ShardId(1), &[5], false, 0).unwrap();
        let lone = groups.create(ShardId(1), &[5], true, 1).unwrap();
        assert_eq!(groups.find_open(&[5]), Some(first));
        let sibling = groups.create(ShardId(1), &[5], false, 2).unwrap();
        assert_eq!(groups.find_open(&[5]), Some(sibling));
        assert_eq!([first, lone, sibling].map(|no| groups.id(no).0), [1, 5, 9]);
        assert!(groups.push_slot(lone, 1, 3).unwrap_err().to_string().contains("group of one"));
        assert_eq!(groups.slots(lone), [EMPTY_SET]);
        assert!(groups.create_at(GroupId(u64::MAX), &[], true, 3).is_err());
        assert!(groups.create_at(GroupId(1 << 30), &[], true, 3).is_err(), "a hole of 2^28");
    }
}
