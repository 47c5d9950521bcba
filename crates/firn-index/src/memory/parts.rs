//! Parts: consecutive slots of a group, with the labels that all their members share.
//!
//! A group has one part in a segment, or a few. A new part begins when the group continues from
//! another segment (its first slot is then not 0), when a member lacks a label that the others
//! share, and after lost definitions. Parts have a *number*, dense in order of creation, because
//! posting lists need ascending ids; a [`GroupId`] contains its shard and would not ascend. Series
//! have a number too, dense in order of definition: it decides which series a view contains.

use firn_model::{Error, GroupId, Result, ShardBits, ShardId};
use hashbrown::{HashMap, HashTable};

use crate::memory::arena::{Arena, Chunked, Ids, decode_ids, encode_ids};
use crate::memory::sets::EMPTY_SET;
use crate::pair::hash_ids;

/// All parts of one segment.
#[derive(Debug)]
pub(crate) struct Parts {
    bits: ShardBits,
    parts: Chunked<MemoryPart>,
    members: Vec<MemberList>,
    /// Heap of all member lists.
    member_bytes: usize,
    /// Per part its identity labels (of a lone series: all labels), then, unless it is lone, its
    /// common labels.
    lists: Arena,
    /// The identity and common labels of all parts.
    label_count: u64,
    /// The labels of all members of the part that has the most, without the identity.
    part_label_count_max: u32,
    /// By identity labels the newest part of the newest group that takes members.
    open: HashTable<u32>,
    locals: Vec<ShardGroups>,
    /// Groups that were created here, without those continued from another segment.
    group_count: u32,
}

/// One part.
#[derive(Debug)]
struct MemoryPart {
    local: u32,
    labels_at: u32,
    first_series: u32,
    /// Index in `Parts::members`, or [`LONE`].
    members: u32,
    shard: u16,
}

/// The members of a part, unless it is lone.
#[derive(Debug)]
struct MemberList {
    first_slot: u32,
    /// The part of the same group with the preceding slots, or [`NO_PART`].
    before: u32,
    /// The kind of the group, see `GroupKinds`.
    kind: u32,
    /// Whether it has one member and its common labels are not known yet.
    is_open: bool,
    /// The labels of all members, without the identity.
    label_count: u32,
    /// The member set of each slot.
    sets: Vec<u32>,
    /// The discontinuities of series numbers: `(index, series number)`, both ascending. Index 0 has
    /// `MemoryPart::first_series`.
    jumps: Vec<(u32, u32)>,
}

/// The groups of one shard, each with the part of its last slots.
#[derive(Debug, Default)]
struct ShardGroups {
    /// Smaller local ids were issued before this segment began.
    base: u64,
    /// By local id less `base`; [`NO_PART`] without a known definition.
    parts: Vec<u32>,
    /// Groups below `base` that continue here.
    older: HashMap<u32, u32>,
}

/// The content of a new part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewPart<'a> {
    pub(crate) group: GroupId,
    /// In order of names, as all lists of pairs here.
    pub(crate) identity: &'a [u32],
    /// The pairs that all members share besides the identity.
    pub(crate) common: &'a [u32],
    /// A lone series: `identity` is all its labels, and it has slot 0 at once.
    pub(crate) lone: bool,
    pub(crate) first_slot: u32,
    pub(crate) kind: u32,
    pub(crate) is_open: bool,
    /// The number of its first series.
    pub(crate) first_series: u32,
}

const LONE: u32 = u32::MAX;
/// No part: the group is unknown here, or this is its first part.
const NO_PART: u32 = u32::MAX;
// Lost definitions leave holes; a larger one indicates an invalid definition.
const HOLE_MAX: u64 = 1 << 24;

impl Parts {
    /// Without parts; ids below `next_ids` (per shard) are issued already.
    pub(crate) fn new(bits: ShardBits, next_ids: &[u64]) -> Parts {
        let base = |shard: usize| next_ids.get(shard).copied().unwrap_or(0);
        let locals = (0..bits.shard_count())
            .map(|shard| ShardGroups { base: base(shard), ..ShardGroups::default() })
            .collect();
        Parts {
            bits,
            parts: Chunked::default(),
            members: Vec::new(),
            member_bytes: 0,
            lists: Arena::default(),
            label_count: 0,
            part_label_count_max: 0,
            open: HashTable::new(),
            locals,
            group_count: 0,
        }
    }

    /// The next id of a shard.
    pub(crate) fn next_id(&self, shard: ShardId) -> GroupId {
        self.bits.group(shard, self.locals[usize::from(shard.0)].next())
    }

    /// Adds a part.
    ///
    /// # Errors
    /// `TooLarge` when lists or ids are exhausted; `Invalid` for an id that leaves an implausible
    /// hole.
    pub(crate) fn add(&mut self, new: NewPart<'_>) -> Result<u32> {
        let shard = self.bits.shard(new.group);
        let is_given = self.bits.local(new.group) < self.locals[usize::from(shard.0)].next();
        self.reserve_ids(shard, self.bits.local(new.group).saturating_add(1))?;
        let local = self.bits.local(new.group) as u32;
        let newest = self.newest(new.group);
        let labels_at = self.push_labels(&new)?;
        self.label_count += (new.identity.len() + new.common.len()) as u64;
        let part_no = self.parts.len();
        let members = if new.lone { LONE } else { self.members.len() as u32 };
        let first_series = new.first_series;
        self.parts.push(MemoryPart { local, labels_at, first_series, members, shard: shard.0 });
        let mut is_newest = true;
        if !new.lone {
            let after = newest.and_then(|newest| self.part_after(newest, new.first_slot));
            let before = match after {
                None => newest.unwrap_or(NO_PART),
                Some(after) => {
                    is_newest = false;
                    let after = &mut self.members[self.parts[after].members as usize];
                    std::mem::replace(&mut after.before, part_no)
                }
            };
            self.members.push(MemberList {
                first_slot: new.first_slot,
                before,
                kind: new.kind,
                is_open: new.is_open,
                label_count: 0,
                sets: Vec::new(),
                jumps: Vec::new(),
            });
        }
        if is_newest {
            self.locals[usize::from(shard.0)].set(local, part_no);
            if !new.lone {
                self.open_for(new.identity, part_no);
            }
        }
        // A group that continues from another segment has an id that was issued before.
        self.group_count += u32::from(newest.is_none() && (!is_given || new.first_slot == 0));
        Ok(part_no)
    }

    fn push_labels(&mut self, new: &NewPart<'_>) -> Result<u32> {
        let mut list = Vec::with_capacity(3 * (new.identity.len() + 2 * new.common.len()) + 2);
        encode_ids(new.identity, &mut list);
        if !new.lone {
            encode_ids(new.common, &mut list);
        }
        self.lists.push(&list)
    }

    /// The oldest part that begins after `slot`, among the parts of a group from `newest` back.
    fn part_after(&self, newest: u32, slot: u32) -> Option<u32> {
        let chain = std::iter::successors(Some(newest), |&part_no| self.before(part_no));
        chain.take_while(|&part_no| self.first_slot(part_no) > slot).last()
    }

    fn before(&self, part_no: u32) -> Option<u32> {
        let before = self.members_of(part_no)?.before;
        (before != NO_PART).then_some(before)
    }

    /// Marks the ids of a shard below `next` as issued.
    ///
    /// # Errors
    /// `Invalid` for an implausible hole, `TooLarge` when ids are exhausted.
    pub(crate) fn reserve_ids(&mut self, shard: ShardId, next: u64) -> Result<()> {
        let locals = &mut self.locals[usize::from(shard.0)];
        if next > u64::from(u32::MAX) {
            return Err(Error::too_large("a shard has no free group id"));
        }
        if next > locals.next() + HOLE_MAX {
            return Err(Error::invalid(format!(
                "group {} of shard {} is implausibly far after {}",
                next - 1,
                shard.0,
                locals.next()
            )));
        }
        if next > locals.next() {
            locals.parts.resize((next - locals.base) as usize, NO_PART);
        }
        Ok(())
    }

    /// Closes the groups of `shard`: a new member opens another group.
    pub(crate) fn close_all(&mut self, shard: ShardId) {
        let parts = &self.parts;
        self.open.retain(|&mut part_no| parts[part_no].shard != shard.0);
    }

    /// Appends a member with `label_count` labels besides the identity to a part; returns its
    /// index.
    ///
    /// # Errors
    /// `Invalid` for a lone part.
    pub(crate) fn push(
        &mut self,
        part_no: u32,
        set: u32,
        label_count: usize,
        series_no: u32,
    ) -> Result<u32> {
        let first_series = self.parts[part_no].first_series;
        let id = self.id(part_no);
        let Some(members) = self.members.get_mut(self.parts[part_no].members as usize) else {
            return Err(Error::invalid(format!("{id} is a lone series and takes no member")));
        };
        let before = members.heap_bytes();
        let at = members.sets.len() as u32;
        let last = members.jumps.last().copied().unwrap_or((0, first_series));
        if last.1 + (at - last.0) != series_no {
            members.jumps.push((at, series_no));
        }
        members.sets.push(set);
        members.label_count = members.label_count.saturating_add(label_count as u32);
        self.part_label_count_max = self.part_label_count_max.max(members.label_count);
        self.member_bytes += members.heap_bytes() - before;
        Ok(at)
    }

    /// Fixes the common labels of the part.
    pub(crate) fn decide(&mut self, part_no: u32) {
        if let Some(members) = self.members.get_mut(self.parts[part_no].members as usize) {
            members.is_open = false;
        }
    }

    /// Whether the second member will determine the common labels.
    pub(crate) fn is_open(&self, part_no: u32) -> bool {
        self.members_of(part_no).is_some_and(|members| members.is_open)
    }

    pub(crate) fn kind(&self, part_no: u32) -> u32 {
        self.members_of(part_no).map_or(u32::MAX, |members| members.kind)
    }

    /// The newest part of the newest group, not lone, with exactly these identity labels.
    pub(crate) fn find_open(&self, identity: &[u32]) -> Option<u32> {
        let is_it = |&part_no: &u32| self.identity(part_no).eq(identity.iter().copied());
        self.open.find(hash_ids(identity.iter().copied()), is_it).copied()
    }

    fn open_for(&mut self, identity: &[u32], part_no: u32) {
        let (parts, lists) = (&self.parts, &self.lists);
        let hash = hash_ids(identity.iter().copied());
        let list_of = |part_no: u32| decode_ids(lists.from(parts[part_no].labels_at));
        let known = self.open.find_mut(hash, |&known| list_of(known).eq(identity.iter().copied()));
        match known {
            // Replay may come in any order; the newest group stays open.
            Some(known) if parts[*known].local > parts[part_no].local => {}
            Some(known) => *known = part_no,
            None => {
                self.open.insert_unique(hash, part_no, |&known| hash_ids(list_of(known)));
            }
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.parts.len()
    }

    /// The identity and common labels of all parts.
    pub(crate) fn label_count(&self) -> u64 {
        self.label_count
    }

    /// The labels of all members of the part that has the most, without the identity.
    pub(crate) fn part_label_count_max(&self) -> u64 {
        u64::from(self.part_label_count_max)
    }

    /// Groups that were created in this segment.
    pub(crate) fn group_count(&self) -> u32 {
        self.group_count
    }

    /// The identity pairs, in order of names; of a lone part all pairs.
    pub(crate) fn identity(&self, part_no: u32) -> Ids<'_> {
        decode_ids(self.lists.from(self.parts[part_no].labels_at))
    }

    /// The pairs that all members share besides the identity, in order of names.
    pub(crate) fn common(&self, part_no: u32) -> Ids<'_> {
        if self.is_lone(part_no) {
            return decode_ids(&[]);
        }
        decode_ids(self.identity(part_no).after())
    }

    pub(crate) fn is_lone(&self, part_no: u32) -> bool {
        self.parts[part_no].members == LONE
    }

    /// The member set of each index.
    pub(crate) fn sets(&self, part_no: u32) -> &[u32] {
        self.members_of(part_no).map_or(&[EMPTY_SET], |members| &members.sets)
    }

    /// The slot of index 0.
    pub(crate) fn first_slot(&self, part_no: u32) -> u32 {
        self.members_of(part_no).map_or(0, |members| members.first_slot)
    }

    /// The slot after the last.
    pub(crate) fn end_slot(&self, part_no: u32) -> u32 {
        self.first_slot(part_no) + self.sets(part_no).len() as u32
    }

    /// Number of members with series numbers below `series_end`; they are the first ones.
    pub(crate) fn count_below(&self, part_no: u32, series_end: u32) -> u32 {
        let part = &self.parts[part_no];
        let (count, jumps) = match self.members_of(part_no) {
            Some(members) => (members.sets.len() as u32, &members.jumps[..]),
            None => (1, &[][..]),
        };
        let known = jumps.partition_point(|jump| jump.1 < series_end);
        let run_start = if known == 0 { (0, part.first_series) } else { jumps[known - 1] };
        let run_end = jumps.get(known).map_or(count, |jump| jump.0);
        let visible = u64::from(run_start.0) + u64::from(series_end.saturating_sub(run_start.1));
        visible.min(u64::from(run_end)) as u32
    }

    /// The group of a part.
    pub(crate) fn id(&self, part_no: u32) -> GroupId {
        let part = &self.parts[part_no];
        self.bits.group(ShardId(part.shard), u64::from(part.local))
    }

    pub(crate) fn shard(&self, part_no: u32) -> ShardId {
        ShardId(self.parts[part_no].shard)
    }

    /// The part with the last slots of a group; `None` if the group is not in this segment.
    pub(crate) fn newest(&self, group: GroupId) -> Option<u32> {
        self.locals[usize::from(self.bits.shard(group).0)].get(self.bits.local(group))
    }

    /// The parts of a group, last slots first.
    pub(crate) fn of_group(&self, group: GroupId) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.newest(group), |&part_no| self.before(part_no))
    }

    /// The part of a slot, and the index in it.
    pub(crate) fn find(&self, group: GroupId, slot: u32) -> Option<(u32, u32)> {
        let part_no = self.of_group(group).find(|&part_no| self.first_slot(part_no) <= slot)?;
        (slot < self.end_slot(part_no)).then(|| (part_no, slot - self.first_slot(part_no)))
    }

    /// The next local id of each shard.
    pub(crate) fn next_ids(&self) -> Vec<u64> {
        self.locals.iter().map(ShardGroups::next).collect()
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let local_bytes: usize = self.locals.iter().map(ShardGroups::heap_bytes).sum();
        self.member_bytes
            + local_bytes
            + self.members.capacity() * size_of::<MemberList>()
            + self.parts.heap_bytes()
            + self.lists.heap_bytes()
            + self.open.allocation_size()
    }

    fn members_of(&self, part_no: u32) -> Option<&MemberList> {
        self.members.get(self.parts[part_no].members as usize)
    }
}

impl MemberList {
    fn heap_bytes(&self) -> usize {
        self.sets.capacity() * 4 + self.jumps.capacity() * 8
    }
}

impl ShardGroups {
    fn next(&self) -> u64 {
        self.base + self.parts.len() as u64
    }

    fn get(&self, local: u64) -> Option<u32> {
        let part_no = match local.checked_sub(self.base) {
            Some(idx) => *self.parts.get(usize::try_from(idx).ok()?)?,
            None => *self.older.get(&(local as u32))?,
        };
        (part_no != NO_PART).then_some(part_no)
    }

    fn set(&mut self, local: u32, part_no: u32) {
        match u64::from(local).checked_sub(self.base) {
            Some(idx) => self.parts[idx as usize] = part_no,
            None => {
                self.older.insert(local, part_no);
            }
        }
    }

    fn heap_bytes(&self) -> usize {
        self.parts.capacity() * 4 + self.older.allocation_size() + size_of::<ShardGroups>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Parts {
        Parts::new(ShardBits::for_count(4), &[0, 0, 0, 7])
    }

    fn new_part(
        group: GroupId,
        identity: &[u32],
        first_slot: u32,
        first_series: u32,
    ) -> NewPart<'_> {
        let (common, lone, kind, is_open) = (&[][..], false, 0, false);
        NewPart { group, identity, common, lone, first_slot, kind, is_open, first_series }
    }

    #[test]
    fn members_below_a_series_number_are_counted_over_jumps() {
        let mut parts = parts();
        let part_no = parts.add(new_part(GroupId(3), &[1], 5, 10)).unwrap();
        for (at, series_no) in [10, 11, 12, 20, 21, 30].into_iter().enumerate() {
            assert_eq!(parts.push(part_no, 7, 1, series_no).unwrap(), at as u32);
        }
        let f = |end| parts.count_below(part_no, end);
        assert_eq!(
            [0, 10, 11, 13, 20, 21, 22, 25, 30, 31, 99].map(f),
            [0, 0, 1, 3, 3, 4, 5, 5, 5, 6, 6]
        );
        assert_eq!((parts.first_slot(part_no), parts.end_slot(part_no)), (5, 11));
        assert_eq!(parts.find(GroupId(3), 7), Some((part_no, 2)));
        assert_eq!([4, 11].map(|slot| parts.find(GroupId(3), slot)), [None, None]);
        assert_eq!(parts.group_count(), 0, "its id was issued before and it continues at slot 5");
    }

    #[test]
    fn ids_are_dense_per_shard_and_the_newest_group_is_open() {
        let mut parts = parts();
        let add = |parts: &mut Parts, lone| {
            let group = parts.next_id(ShardId(1));
            let first_series = parts.count();
            parts.add(NewPart { lone, ..new_part(group, &[5], 0, first_series) }).unwrap()
        };
        let first = add(&mut parts, false);
        let lone = add(&mut parts, true);
        assert_eq!(parts.find_open(&[5]), Some(first));
        let sibling = add(&mut parts, false);
        assert_eq!(parts.find_open(&[5]), Some(sibling));
        assert_eq!([first, lone, sibling].map(|no| parts.id(no).0), [1, 5, 9]);
        assert!(parts.push(lone, 1, 1, 3).unwrap_err().to_string().contains("lone series"));
        assert_eq!(parts.sets(lone), [EMPTY_SET]);
        assert_eq!((parts.group_count(), parts.next_ids()), (3, vec![0, 3, 0, 7]));
        let absurd = |id| parts.add(new_part(GroupId(id), &[], 0, 3)).map(|_| ());
        assert!([u64::MAX, 1 << 30].map(absurd).iter().all(Result::is_err), "a hole of 2^28");
    }

    #[test]
    fn parts_of_a_group_are_found_by_slot_in_any_order_of_creation() {
        let mut parts = parts();
        let group = GroupId(2);
        let mut part_nos = Vec::new();
        for (series_no, first_slot) in [4, 0, 9, 2].into_iter().enumerate() {
            let new = new_part(group, &[5], first_slot, series_no as u32);
            let part_no = parts.add(new).unwrap();
            parts.push(part_no, 1, 1, series_no as u32).unwrap();
            part_nos.push(part_no);
        }
        assert_eq!(parts.of_group(group).collect::<Vec<_>>(), [2, 0, 3, 1]);
        let f = |slot| parts.find(group, slot).map(|found| found.0);
        assert_eq!(
            [0, 1, 2, 3, 4, 9, 10].map(f),
            [Some(1), None, Some(3), None, Some(0), Some(2), None]
        );
        assert_eq!(parts.find_open(&[5]), Some(2), "it continues after its last slot");
        assert_eq!(parts.group_count(), 1);
    }

    #[test]
    fn identity_and_common_labels_are_read_back() {
        let mut parts = parts();
        let common = &[9, 300][..];
        let part_no =
            parts.add(NewPart { common, ..new_part(GroupId(0), &[1, 70_000], 0, 0) }).unwrap();
        assert_eq!(parts.identity(part_no).collect::<Vec<_>>(), [1, 70_000]);
        assert_eq!(parts.common(part_no).collect::<Vec<_>>(), common);
        let lone = parts.add(NewPart { lone: true, ..new_part(GroupId(4), &[1], 0, 0) }).unwrap();
        assert_eq!(parts.common(lone).count(), 0);
    }
}
