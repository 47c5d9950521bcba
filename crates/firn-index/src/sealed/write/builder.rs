//! Collects the content of a segment from label sets and other segments.
//!
//! It keeps ids only: four bytes per label of a lone series, eight bytes per member. Texts stay in
//! the sources (`pair_union`). Only the members of the current group are stored with all their
//! pairs.

use std::hash::BuildHasher;

use firn_model::{CancelToken, GroupId, Result};
use hashbrown::HashTable;

use crate::sealed::write::factor::{LabeledMember, factor};
use crate::sealed::write::pair_union::{PairSource, PairUnion};

/// Collects groups in any order as pair ids, some tens of bytes per series, and writes one file.
#[derive(Debug)]
pub(crate) struct Builder<'a> {
    pub(crate) pairs: PairUnion<'a>,
    pub(crate) sets: SetTable,
    /// Lone series with their label sets.
    pub(crate) lone: Vec<(GroupId, u32)>,
    pub(crate) parts: Vec<BuiltPart>,
    /// Slot and member set; the members of a part are adjacent.
    pub(crate) members: Vec<(u32, u32)>,
    pub(crate) origin: u32,
    open: Option<OpenPart>,
}

/// A group or some of its members. Duplicates are ignored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartInput<'a> {
    pub(crate) group: GroupId,
    /// A lone series: `identity` is all its labels, it has slot 0, and no [`Builder::member`]
    /// follows.
    pub(crate) lone: bool,
    /// The identity labels, as ids of [`Builder::pair`], in any order.
    pub(crate) identity: &'a [u32],
    /// The first slot that was never issued; 0: the one after the highest here.
    pub(crate) next_slot: u32,
}

/// Sizes of the written segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentTotals {
    pub(crate) file_bytes: u64,
    pub(crate) series_count: u64,
    pub(crate) group_count: u64,
}

/// Decides which series stay when segments merge.
pub(crate) trait MergeFilter {
    /// Removes the slots of `group` that are to be dropped; `slots` ascend. A lone series has slot
    /// 0.
    fn retain(&self, group: GroupId, slots: &mut Vec<u32>);

    /// Whether to keep the labels and the next slot of a `group` that has no members left in a
    /// segment, because it has members elsewhere.
    fn keeps_group(&self, group: GroupId) -> bool {
        let _ = group;
        true
    }
}

/// Some members of a group with the labels `common`.
#[derive(Clone, Debug)]
pub(crate) struct BuiltPart {
    pub(crate) group: GroupId,
    pub(crate) identity: u32,
    pub(crate) common: u32,
    pub(crate) members: std::ops::Range<usize>,
    pub(crate) next_slot: u32,
    /// Parts of one origin were factored together; parts of different origins are factored again.
    pub(crate) origin: u32,
}

/// The part that receives members.
#[derive(Debug)]
struct OpenPart {
    group: GroupId,
    identity: u32,
    next_slot: u32,
    /// Slot, and its range in `pairs`.
    members: Vec<(u32, std::ops::Range<usize>)>,
    pairs: Vec<u32>,
}

/// Sets of pairs, by number.
#[derive(Debug, Default)]
pub(crate) struct SetTable {
    pub(crate) pairs: Vec<u32>,
    /// The end of each set in `pairs`.
    ends: Vec<usize>,
    table: HashTable<u32>,
    hasher: foldhash::fast::RandomState,
}

impl<'a> Builder<'a> {
    /// A builder for label sets of the pairs of `sources`.
    ///
    /// # Errors
    /// `Corrupt` if a segment is damaged, `TooLarge` when ids are exhausted.
    pub(crate) fn new(sources: &[PairSource<'a>]) -> Result<Builder<'a>> {
        Builder::canceled_by(sources, &CancelToken::new())
    }

    /// As [`Builder::new`]; `cancel` ends the work, [`Builder::finish`] included.
    ///
    /// # Errors
    /// As [`Builder::new`], `Canceled`.
    pub(crate) fn canceled_by(
        sources: &[PairSource<'a>],
        cancel: &CancelToken,
    ) -> Result<Builder<'a>> {
        let pairs = PairUnion::new(sources, cancel)?;
        let (sets, lone, parts, members) = Default::default();
        Ok(Builder { pairs, sets, lone, parts, members, origin: 0, open: None })
    }

    /// The builder's id of a pair of a source.
    pub(crate) fn pair(&self, source: usize, pair: u32) -> u32 {
        self.pairs.number(source, pair)
    }

    /// Begins a part; its members follow, unless it is lone.
    pub(crate) fn part(&mut self, part: PartInput<'_>) {
        self.close_part();
        let mut identity = part.identity.to_vec();
        identity.sort_unstable();
        if part.lone {
            let labels = self.sets.push(&identity);
            self.lone.push((part.group, labels));
            return;
        }
        let identity = self.sets.intern(&identity);
        let (group, next_slot) = (part.group, part.next_slot);
        let (members, pairs) = Default::default();
        self.open = Some(OpenPart { group, identity, next_slot, members, pairs });
    }

    /// Adds a member to the last part: its slot, and all labels besides the identity.
    pub(crate) fn member(&mut self, slot: u32, pairs: &[u32]) {
        debug_assert!(self.open.is_some(), "a member without a part");
        if let Some(open) = &mut self.open {
            let start = open.pairs.len();
            open.pairs.extend_from_slice(pairs);
            open.pairs[start..].sort_unstable();
            open.members.push((slot, start..open.pairs.len()));
        }
    }

    pub(crate) fn close_part(&mut self) {
        let Some(open) = self.open.take() else { return };
        let members: Vec<LabeledMember<'_>> = open
            .members
            .iter()
            .map(|(slot, pairs)| LabeledMember { slot: *slot, pairs: &open.pairs[pairs.clone()] })
            .collect();
        self.push_factored(open.group, open.identity, open.next_slot, &members);
    }

    /// Adds members of a group as one part, or as several if some lack common labels.
    pub(crate) fn push_factored(
        &mut self,
        group: GroupId,
        identity: u32,
        next_slot: u32,
        members: &[LabeledMember<'_>],
    ) {
        self.origin += 1;
        let (mut rest, origin) = (Vec::new(), self.origin);
        for (common, members) in factor(members) {
            let start = self.members.len();
            for member in members {
                rest.clear();
                rest.extend(member.pairs.iter().filter(|pair| common.binary_search(pair).is_err()));
                let set = self.sets.intern(&rest);
                self.members.push((member.slot, set));
            }
            let common = self.sets.intern(&common);
            let members = start..self.members.len();
            self.parts.push(BuiltPart { group, identity, common, members, next_slot, origin });
        }
    }
}

impl SetTable {
    /// The id of a set of sorted pairs.
    pub(crate) fn intern(&mut self, pairs: &[u32]) -> u32 {
        let hash = self.hasher.hash_one(pairs);
        let (all, ends) = (&self.pairs, &self.ends);
        if let Some(&id) = self.table.find(hash, |&id| span(all, ends, id) == pairs) {
            return id;
        }
        let id = self.push(pairs);
        let (all, ends, hasher) = (&self.pairs, &self.ends, &self.hasher);
        self.table.insert_unique(hash, id, |&id| hasher.hash_one(span(all, ends, id)));
        id
    }

    /// Adds a set that [`SetTable::intern`] never finds, for label sets that are known to be new.
    pub(crate) fn push(&mut self, pairs: &[u32]) -> u32 {
        self.pairs.extend_from_slice(pairs);
        self.ends.push(self.pairs.len());
        self.ends.len() as u32 - 1
    }

    pub(crate) fn get(&self, set: u32) -> &[u32] {
        span(&self.pairs, &self.ends, set)
    }

    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// Replaces every pair and sorts each set again. Disables [`SetTable::intern`] for existing
    /// sets.
    pub(crate) fn renumber(&mut self, to: &[u32]) {
        self.table.clear();
        let mut start = 0;
        for &end in &self.ends {
            let set = &mut self.pairs[start..end];
            set.iter_mut().for_each(|pair| *pair = to[*pair as usize]);
            set.sort_unstable();
            start = end;
        }
    }
}

fn span<'a>(pairs: &'a [u32], ends: &[usize], set: u32) -> &'a [u32] {
    let start = set.checked_sub(1).map_or(0, |before| ends[before as usize]);
    &pairs[start..ends[set as usize]]
}
