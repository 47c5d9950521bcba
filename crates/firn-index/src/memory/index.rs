//! The content of one segment in memory. Invariant: a label set has exactly one position.

use firn_model::{Error, GroupId, Labels, METRIC_NAME, Result, SeriesRef, ShardBits, Slot};
use hashbrown::{HashMap, HashTable};

use crate::definition::Definition;
use crate::memory::pairs::Pairs;
use crate::memory::parts::{NewPart, Parts};
use crate::memory::sets::MemberSets;
use crate::options::{IndexOptions, SERIES_LIMIT};
use crate::pair::{RawPair, hash_ids, raw_pairs};

/// Pairs, member sets, parts, and the map from label sets to positions.
#[derive(Debug)]
pub(crate) struct MemoryIndex {
    pub(crate) pairs: Pairs,
    pub(crate) sets: MemberSets,
    pub(crate) parts: Parts,
    /// Positions by the hash of the whole label set. Sharded, so that growing a table is a short
    /// pause.
    series: Vec<HashTable<SeriesPosition>>,
    /// Number of series; the next series number.
    series_count: u32,
    kinds: GroupKinds,
    bits: ShardBits,
    slots_per_group_max: u32,
    /// Set once: new series are defined in another segment, and this one is written to a file.
    pub(crate) is_frozen: bool,
}

/// Consecutive members of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberRun {
    pub(crate) part_no: u32,
    /// The first index in the part.
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// The position of a series: the number of its part and the index in the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeriesPosition {
    pub(crate) part_no: u32,
    pub(crate) at: u32,
}

/// The visible part of a segment at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watermark {
    pub(crate) parts: u32,
    pub(crate) groups: u32,
    pub(crate) sets: u32,
    pub(crate) series: u32,
}

/// A group of another segment that takes more members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrowingGroup {
    pub(crate) group: GroupId,
    /// The first slot that was never issued.
    pub(crate) next_slot: u32,
}

/// Group kinds: groups whose first members have the same label names. The common names learned from
/// one group are the guess for the next.
#[derive(Debug, Default)]
struct GroupKinds {
    by_names: HashMap<Vec<u32>, u32>,
    /// The names that all members of a group share besides the identity; `None`: not known yet.
    common_names: Vec<Option<Vec<u32>>>,
}

// With 1M series in 64 tables, growing one moves 16,000 positions in about a millisecond.
const SERIES_PIECES: usize = 64;
// Groups of further kinds determine their common names themselves.
const KIND_COUNT_MAX: usize = 4_096;
const NO_KIND: u32 = u32::MAX;

impl MemoryIndex {
    /// An empty segment; ids below `next_ids` (per shard) are issued already.
    pub(crate) fn new(bits: ShardBits, options: &IndexOptions, next_ids: &[u64]) -> MemoryIndex {
        MemoryIndex {
            pairs: Pairs::default(),
            sets: MemberSets::default(),
            parts: Parts::new(bits, next_ids),
            series: (0..SERIES_PIECES).map(|_| HashTable::new()).collect(),
            series_count: 0,
            kinds: GroupKinds::default(),
            bits,
            slots_per_group_max: options.slots_per_group_max,
            is_frozen: false,
        }
    }

    /// The position of the label set with these pairs (in order of names).
    pub(crate) fn find(&self, ids: &[u32]) -> Option<SeriesPosition> {
        let hash = hash_ids(ids.iter().copied());
        self.series[piece_of(hash)].find(hash, |&position| self.is_series(position, ids)).copied()
    }

    /// Defines a lone series with these pairs (in order of names), which [`MemoryIndex::find`] does
    /// not find.
    ///
    /// # Errors
    /// `TooLarge` when numbers, ids or arenas are exhausted.
    pub(crate) fn define_lone(&mut self, ids: &[u32], shard_hash: u64) -> Result<SeriesPosition> {
        self.check_number()?;
        let group = self.parts.next_id(self.bits.shard_of_hash(shard_hash));
        self.add_lone(group, ids)
    }

    /// Defines a member that [`MemoryIndex::find`] does not find: in the newest group of
    /// `identity`, or in `growing` if this segment has no such group, or in a new group. Both lists
    /// are in order of names. `shard_hash` is called for a new group.
    ///
    /// # Errors
    /// `TooLarge` when numbers, ids or arenas are exhausted.
    pub(crate) fn define_member(
        &mut self,
        identity: &[u32],
        rest: &[u32],
        growing: Option<GrowingGroup>,
        shard_hash: impl FnOnce() -> u64,
    ) -> Result<SeriesPosition> {
        self.check_number()?;
        let open = self.parts.find_open(identity);
        if let Some(part_no) = open
            && self.parts.end_slot(part_no) < self.slots_per_group_max
        {
            return self.join(part_no, identity, rest);
        }
        let (group, first_slot) = match growing.filter(|_| open.is_none()) {
            Some(growing) => (growing.group, growing.next_slot),
            None => (self.parts.next_id(self.bits.shard_of_hash(shard_hash())), 0),
        };
        let kind = self.kind_of(identity, rest);
        let common = self.guess(kind, rest);
        let is_open = common.is_empty();
        self.begin_part(group, first_slot, identity, &common, rest, (kind, is_open))
    }

    /// Adds a member at the end of a group whose newest part is `part_no`.
    fn join(&mut self, part_no: u32, identity: &[u32], rest: &[u32]) -> Result<SeriesPosition> {
        let (common, is_decided) = if self.parts.is_open(part_no) {
            // The metric name distinguishes members, even if several share it.
            let first: Vec<u32> = self.sets.pairs(self.parts.sets(part_no)[0]).collect();
            let is_common =
                |pair: &u32| first.contains(pair) && self.name_of(*pair) != METRIC_NAME.as_bytes();
            (rest.iter().copied().filter(is_common).collect(), false)
        } else {
            let is_common = |pair: &u32| rest.contains(pair);
            (self.parts.common(part_no).filter(is_common).collect::<Vec<u32>>(), true)
        };
        if is_decided && common.len() == self.parts.common(part_no).len() {
            return self.push_member(part_no, &common, rest);
        }
        self.learn(self.parts.kind(part_no), &common);
        if !is_decided && common.is_empty() {
            self.parts.decide(part_no);
            return self.push_member(part_no, &[], rest);
        }
        // Each further part shares fewer labels than the previous one, so there are few.
        let (group, first_slot) = (self.parts.id(part_no), self.parts.end_slot(part_no));
        let kind = self.parts.kind(part_no);
        self.begin_part(group, first_slot, identity, &common, rest, (kind, false))
    }

    fn begin_part(
        &mut self,
        group: GroupId,
        first_slot: u32,
        identity: &[u32],
        common: &[u32],
        rest: &[u32],
        (kind, is_open): (u32, bool),
    ) -> Result<SeriesPosition> {
        let first_series = self.series_count;
        let lone = false;
        let new =
            NewPart { group, identity, common, lone, first_slot, kind, is_open, first_series };
        let part_no = self.add_part(new)?;
        self.push_member(part_no, common, rest)
    }

    fn push_member(
        &mut self,
        part_no: u32,
        common: &[u32],
        rest: &[u32],
    ) -> Result<SeriesPosition> {
        let set = if common.is_empty() {
            self.intern_set(rest)?
        } else {
            let own: Vec<u32> =
                rest.iter().copied().filter(|pair| !common.contains(pair)).collect();
            self.intern_set(&own)?
        };
        let at = self.parts.push(part_no, set, rest.len(), self.series_count)?;
        Ok(self.add_position(SeriesPosition { part_no, at }))
    }

    fn add_lone(&mut self, group: GroupId, ids: &[u32]) -> Result<SeriesPosition> {
        let part_no = self.add_part(NewPart {
            group,
            identity: ids,
            common: &[],
            lone: true,
            first_slot: 0,
            kind: NO_KIND,
            is_open: false,
            first_series: self.series_count,
        })?;
        Ok(self.add_position(SeriesPosition { part_no, at: 0 }))
    }

    fn add_part(&mut self, new: NewPart<'_>) -> Result<u32> {
        let part_no = self.parts.add(new)?;
        let pairs = new.identity.iter().chain(new.common);
        pairs.for_each(|&pair| self.pairs.add_part(pair, part_no));
        Ok(part_no)
    }

    fn kind_of(&mut self, identity: &[u32], rest: &[u32]) -> u32 {
        let names = identity.iter().chain(rest).map(|&pair| self.pairs.pair(pair).name).collect();
        let next = self.kinds.common_names.len();
        if next >= KIND_COUNT_MAX {
            return self.kinds.by_names.get(&names).copied().unwrap_or(NO_KIND);
        }
        let kind = *self.kinds.by_names.entry(names).or_insert(next as u32);
        if kind as usize == next {
            self.kinds.common_names.push(None);
        }
        kind
    }

    /// The pairs of a group's first member that groups of its kind usually share.
    fn guess(&self, kind: u32, rest: &[u32]) -> Vec<u32> {
        let Some(Some(names)) = self.kinds.common_names.get(kind as usize) else {
            return Vec::new();
        };
        let is_common = |pair: &u32| names.contains(&self.pairs.pair(*pair).name);
        rest.iter().copied().filter(is_common).collect()
    }

    fn learn(&mut self, kind: u32, common: &[u32]) {
        if let Some(names) = self.kinds.common_names.get_mut(kind as usize) {
            *names = Some(common.iter().map(|&pair| self.pairs.pair(pair).name).collect());
        }
    }

    /// Restores a definition from the log. Skips members that are known here, or in a file as
    /// `is_sealed` states for each.
    ///
    /// # Errors
    /// `Invalid` if it contradicts a known definition; `TooLarge` when ids or arenas are exhausted.
    pub(crate) fn restore(&mut self, definition: &Definition, is_sealed: &[bool]) -> Result<()> {
        if is_sealed.iter().all(|&is_sealed| is_sealed) {
            return Ok(());
        }
        let group = definition.group;
        let identity = self.intern_all(&definition.labels)?;
        if let Some(part_no) = self.parts.newest(group) {
            let same = self.parts.identity(part_no).eq(identity.iter().copied());
            if !same || self.parts.is_lone(part_no) != definition.lone {
                return Err(contradiction(group, "the group has different labels"));
            }
        }
        let common = self.intern_all(&definition.common)?;
        let members = (definition.first_slot..).zip(&definition.members).zip(is_sealed);
        for ((slot, member), _) in members.filter(|member| !member.1) {
            self.check_number()?;
            let own = self.intern_all(member)?;
            let mut ids: Vec<u32> = identity.iter().chain(&common).chain(&own).copied().collect();
            ids.sort_by_key(|&pair| self.name_of(pair));
            if let Some((part_no, at)) = self.parts.find(group, slot) {
                if !self.is_series(SeriesPosition { part_no, at }, &ids) {
                    return Err(contradiction(group, &format!("slot {slot} has different labels")));
                }
            } else if let Some(position) = self.find(&ids) {
                let other = self.series_ref(position);
                let what =
                    format!("slot {slot} has the labels of {}/{}", other.group, other.slot.0);
                return Err(contradiction(group, &what));
            } else if definition.lone {
                self.add_lone(group, &identity)?;
            } else {
                self.restore_member(group, slot, &identity, &common, &own)?;
            }
        }
        Ok(())
    }

    /// Restores a member with an unknown slot: in the part that ends there if the common labels are
    /// equal, otherwise in a new part.
    fn restore_member(
        &mut self,
        group: GroupId,
        slot: u32,
        identity: &[u32],
        common: &[u32],
        own: &[u32],
    ) -> Result<()> {
        let names = |pairs: &[u32]| -> Vec<u32> {
            pairs.iter().map(|&pair| self.pairs.pair(pair).name).collect()
        };
        let before = [names(identity), names(common)].concat();
        if names(own).iter().any(|name| before.contains(name)) {
            return Err(contradiction(group, "a member repeats a name of its group"));
        }
        let neighbour = self.parts.of_group(group).find(|&part_no| {
            self.parts.end_slot(part_no) == slot
                && self.parts.common(part_no).eq(common.iter().copied())
        });
        let part_no = match neighbour {
            Some(part_no) => {
                self.parts.decide(part_no);
                part_no
            }
            None => {
                let is_open = common.is_empty() && self.parts.newest(group).is_none();
                let kind = self.kind_of(identity, &[common, own].concat());
                let (lone, first_slot, first_series) = (false, slot, self.series_count);
                self.add_part(NewPart {
                    group,
                    identity,
                    common,
                    lone,
                    first_slot,
                    kind,
                    is_open,
                    first_series,
                })?
            }
        };
        let set = self.intern_set(own)?;
        let label_count = self.parts.common(part_no).len() + own.len();
        let at = self.parts.push(part_no, set, label_count, self.series_count)?;
        self.add_position(SeriesPosition { part_no, at });
        Ok(())
    }

    /// The definition of a run of members.
    pub(crate) fn definition_of(&self, run: MemberRun) -> Definition {
        let parts = &self.parts;
        let positions = parts.sets(run.part_no).iter().skip(run.first as usize);
        let none = std::iter::empty;
        let member = |&set: &u32| self.labels_of(none(), none(), self.sets.pairs(set));
        Definition {
            group: parts.id(run.part_no),
            lone: parts.is_lone(run.part_no),
            first_slot: parts.first_slot(run.part_no) + run.first,
            labels: self.labels_of(parts.identity(run.part_no), none(), none()),
            common: self.labels_of(none(), parts.common(run.part_no), none()),
            members: positions.take(run.count as usize).map(member).collect(),
        }
    }

    fn check_number(&self) -> Result<()> {
        if u64::from(self.series_count) < SERIES_LIMIT {
            return Ok(());
        }
        Err(Error::too_large("series numbers in memory are exhausted: retry after the next flush"))
    }

    /// The ids of all pairs of `labels`; new pairs are added.
    ///
    /// # Errors
    /// `TooLarge` when arenas are exhausted.
    pub(crate) fn intern_all(&mut self, labels: &Labels) -> Result<Vec<u32>> {
        raw_pairs(labels).map(|pair| self.pairs.intern(pair.name, pair.value)).collect()
    }

    fn intern_set(&mut self, member: &[u32]) -> Result<u32> {
        let (set, is_new) = self.sets.intern(member, self.series_count)?;
        if is_new {
            member.iter().for_each(|&pair| self.pairs.add_set(pair, set));
        }
        Ok(set)
    }

    /// Assigns the next series number to `position`.
    fn add_position(&mut self, position: SeriesPosition) -> SeriesPosition {
        self.sets.add_part(self.set_of(position), position.part_no);
        self.series_count += 1;
        let (parts, sets) = (&self.parts, &self.sets);
        let hash = hash_series(parts, sets, position);
        self.series[piece_of(hash)].insert_unique(hash, position, |&p| hash_series(parts, sets, p));
        position
    }

    fn is_series(&self, position: SeriesPosition, ids: &[u32]) -> bool {
        let mut lists = [
            self.parts.identity(position.part_no),
            self.parts.common(position.part_no),
            self.sets.pairs(self.set_of(position)),
        ];
        if lists.iter().map(ExactSizeIterator::len).sum::<usize>() != ids.len() {
            return false;
        }
        let mut next = lists.each_mut().map(Iterator::next);
        ids.iter().all(|&id| match next.iter().position(|&next| next == Some(id)) {
            Some(list) => {
                next[list] = lists[list].next();
                true
            }
            None => false,
        })
    }

    /// The member set at an existing position.
    pub(crate) fn set_of(&self, position: SeriesPosition) -> u32 {
        self.parts.sets(position.part_no)[position.at as usize]
    }

    pub(crate) fn series_ref(&self, position: SeriesPosition) -> SeriesRef {
        let slot = Slot(self.parts.first_slot(position.part_no) + position.at);
        SeriesRef { group: self.parts.id(position.part_no), slot }
    }

    /// The position of a reference; `None` if it is not in this segment.
    pub(crate) fn position(&self, series: SeriesRef) -> Option<SeriesPosition> {
        let (part_no, at) = self.parts.find(series.group, series.slot.0)?;
        Some(SeriesPosition { part_no, at })
    }

    /// The newest group of `identity` that takes more members, with its next slot here.
    pub(crate) fn growing(&self, identity: &Labels) -> Option<GrowingGroup> {
        let find = |pair: RawPair<'_>| self.pairs.find(pair.name, pair.value);
        let ids = raw_pairs(identity).map(find).collect::<Option<Vec<u32>>>()?;
        let part_no = self.parts.find_open(&ids)?;
        let (group, next_slot) = (self.parts.id(part_no), self.parts.end_slot(part_no));
        Some(GrowingGroup { group, next_slot })
    }

    /// The whole label set at a position.
    pub(crate) fn labels_at(&self, position: SeriesPosition) -> Labels {
        self.labels_of(
            self.parts.identity(position.part_no),
            self.parts.common(position.part_no),
            self.sets.pairs(self.set_of(position)),
        )
    }

    /// The labels of three disjoint lists of pairs, each in order of names.
    pub(crate) fn labels_of(
        &self,
        identity: impl Iterator<Item = u32>,
        common: impl Iterator<Item = u32>,
        own: impl Iterator<Item = u32>,
    ) -> Labels {
        let text = |pair: u32| self.pairs.bytes_of(pair);
        Labels::from_sorted(merge(merge(identity.map(text), common.map(text)), own.map(text)))
    }

    fn name_of(&self, pair: u32) -> &[u8] {
        self.pairs.bytes_of(pair).0
    }

    pub(crate) fn watermark(&self) -> Watermark {
        Watermark {
            parts: self.parts.count(),
            groups: self.parts.group_count(),
            sets: self.sets.count(),
            series: self.series_count,
        }
    }

    pub(crate) fn series_count(&self) -> u64 {
        u64::from(self.series_count)
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let table_bytes: usize = self.series.iter().map(HashTable::allocation_size).sum();
        table_bytes + self.pairs.heap_bytes() + self.sets.heap_bytes() + self.parts.heap_bytes()
    }
}

type NameValue<'a> = (&'a [u8], &'a [u8]);

/// Merges two lists in order of names.
fn merge<'a>(
    left: impl Iterator<Item = NameValue<'a>>,
    right: impl Iterator<Item = NameValue<'a>>,
) -> impl Iterator<Item = NameValue<'a>> {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    std::iter::from_fn(move || match (left.peek(), right.peek()) {
        (Some(from_left), Some(from_right)) if from_right.0 < from_left.0 => right.next(),
        (None, _) => right.next(),
        _ => left.next(),
    })
}

fn piece_of(hash: u64) -> usize {
    // Bits that the tables use neither for the bucket (low) nor for the tag (the top seven).
    (hash >> 50) as usize % SERIES_PIECES
}

fn hash_series(parts: &Parts, sets: &MemberSets, position: SeriesPosition) -> u64 {
    let set = parts.sets(position.part_no)[position.at as usize];
    hash_ids(parts.identity(position.part_no))
        .wrapping_add(hash_ids(parts.common(position.part_no)))
        .wrapping_add(hash_ids(sets.pairs(set)))
}

fn contradiction(id: GroupId, difference: &str) -> Error {
    Error::invalid(format!("a definition of {id} contradicts the index: {difference}"))
}
