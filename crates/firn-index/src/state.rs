//! All that the index knows, and its one rule: a label set has exactly one place.

use firn_model::{Error, GroupId, Labels, Result, SeriesRef, ShardBits, ShardId, Slot};
use hashbrown::HashTable;

use crate::definition::Definition;
use crate::groups::Groups;
use crate::options::{IndexOptions, SERIES_LIMIT};
use crate::pairs::{Pairs, raw_pairs};
use crate::sets::{EMPTY_SET, LOST_SET, Sets, hash_ids};

/// Symbols, groups, and the way from a label set to its place.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) pairs: Pairs,
    pub(crate) sets: Sets,
    pub(crate) groups: Groups,
    /// Places by the hash of their whole label set; in parts, so that growing one is a short pause.
    series: Vec<HashTable<Place>>,
    /// Series numbers given so far, those of lost slots included.
    series_count: u32,
    lost_count: u32,
    /// A lost slot was filled, perhaps in a sealed range: the next seal rewrites everything.
    pub(crate) filled: bool,
    bits: ShardBits,
    slots_per_group_max: u32,
}

/// Where a series is: its group's number and its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) group_no: u32,
    pub(crate) slot: u32,
}

/// How much of the state there was at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watermark {
    pub(crate) groups: u32,
    pub(crate) sets: u32,
    pub(crate) series: u32,
    /// Of these series, how many were lost.
    pub(crate) lost: u32,
}

// 1M series in 64 parts: growing one moves 16,000 places, about a millisecond.
const SERIES_PARTS: usize = 64;

impl State {
    pub(crate) fn new(options: &IndexOptions) -> State {
        State {
            pairs: Pairs::default(),
            sets: Sets::default(),
            groups: Groups::new(options.shard_bits),
            series: (0..SERIES_PARTS).map(|_| HashTable::new()).collect(),
            series_count: 0,
            lost_count: 0,
            filled: false,
            bits: options.shard_bits,
            slots_per_group_max: options.slots_per_group_max,
        }
    }

    /// The place of the label set with these pairs (in order of names).
    pub(crate) fn find(&self, ids: &[u32]) -> Option<Place> {
        let hash = hash_ids(ids.iter().copied());
        self.series[part_of(hash)].find(hash, |&place| self.is_series(place, ids)).copied()
    }

    /// Defines a series that [`State::find`] does not know: in the open group of `group` (pairs in
    /// order of names), or as a group of one (then `member` is empty). `shard_hash` is asked when a
    /// group is made.
    ///
    /// # Errors
    /// `TooLarge` when ids or arenas are used up.
    pub(crate) fn define(
        &mut self,
        group: &[u32],
        member: &[u32],
        lone: bool,
        shard_hash: impl FnOnce() -> u64,
    ) -> Result<Place> {
        let open = if lone { None } else { self.groups.find_open(group) };
        let has_room =
            |&group_no: &u32| self.groups.slots(group_no).len() < self.slots_per_group_max as usize;
        let group_no = match open.filter(has_room) {
            Some(group_no) => group_no,
            None => {
                let shard = self.bits.shard_of_hash(shard_hash());
                let made = self.groups.create(shard, group, lone, self.series_count)?;
                self.link_group(group, made);
                made
            }
        };
        if lone {
            return Ok(self.take_place(Place { group_no, slot: 0 }));
        }
        let set = self.intern_set(member)?;
        let slot = self.groups.push_slot(group_no, set, self.series_count)?;
        Ok(self.take_place(Place { group_no, slot }))
    }

    /// Takes in a definition from the log; what is known already is skipped.
    ///
    /// # Errors
    /// `Invalid` if it contradicts what is known; `TooLarge` when ids or arenas are used up.
    pub(crate) fn restore(&mut self, definition: &Definition) -> Result<()> {
        let labels = self.intern_all(&definition.labels)?;
        let group_no = self.restore_group(definition.group, definition.lone, &labels)?;
        if definition.lone {
            return Ok(());
        }
        for (slot, member) in (definition.first_slot..).zip(&definition.members) {
            let member = self.intern_all(member)?;
            self.restore_member(group_no, slot, &member)?;
        }
        Ok(())
    }

    /// Takes in a group with these pairs (in order of names); gives its number. A group of one is
    /// whole with that.
    ///
    /// # Errors
    /// As [`State::restore`].
    pub(crate) fn restore_group(&mut self, id: GroupId, lone: bool, labels: &[u32]) -> Result<u32> {
        if let Some(group_no) = self.groups.find(id) {
            let same = self.groups.labels(group_no).eq(labels.iter().copied());
            if !same || self.groups.is_lone(group_no) != lone {
                return Err(contradiction(id, "the group has other labels"));
            }
            return Ok(group_no);
        }
        self.check_number()?;
        let group_no = self.groups.create_at(id, labels, lone, self.series_count)?;
        self.link_group(labels, group_no);
        if lone {
            self.take_place(Place { group_no, slot: 0 });
        }
        Ok(group_no)
    }

    /// Takes in a member with these pairs (in order of names) of a group that is not lone.
    ///
    /// # Errors
    /// As [`State::restore`].
    pub(crate) fn restore_member(
        &mut self,
        group_no: u32,
        slot: u32,
        member: &[u32],
    ) -> Result<()> {
        let name_of = |pair: u32| self.pairs.pair(pair).name;
        let repeats =
            |&pair: &u32| self.groups.labels(group_no).any(|other| name_of(other) == name_of(pair));
        if member.iter().any(repeats) {
            let id = self.groups.id(group_no);
            return Err(contradiction(id, "a member repeats a name of its group"));
        }
        let set = self.intern_set(member)?;
        self.restore_slot(group_no, slot, set)
    }

    fn restore_slot(&mut self, group_no: u32, slot: u32, set: u32) -> Result<()> {
        let known = self.groups.slots(group_no).get(slot as usize).copied();
        match known {
            Some(LOST_SET) => {
                self.groups.fill_slot(group_no, slot, set);
                self.sets.add_group(set, group_no);
                self.lost_count -= 1;
                self.filled = true;
                self.enter(Place { group_no, slot });
            }
            Some(known) if known == set => {}
            Some(_) => {
                let id = self.groups.id(group_no);
                return Err(contradiction(id, &format!("slot {slot} has other labels")));
            }
            None => {
                while (self.groups.slots(group_no).len() as u32) < slot {
                    self.check_number()?;
                    self.groups.push_slot(group_no, LOST_SET, self.series_count)?;
                    self.series_count += 1;
                    self.lost_count += 1;
                }
                self.check_number()?;
                self.groups.push_slot(group_no, set, self.series_count)?;
                self.take_place(Place { group_no, slot });
            }
        }
        Ok(())
    }

    /// Whether there is a number for one more series.
    ///
    /// # Errors
    /// `TooLarge` if not.
    pub(crate) fn check_number(&self) -> Result<()> {
        if u64::from(self.series_count) < SERIES_LIMIT {
            return Ok(());
        }
        Err(Error::too_large("series numbers are used up"))
    }

    /// The ids of all pairs of `labels`, made if they are new.
    ///
    /// # Errors
    /// `TooLarge` when arenas are used up.
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

    fn link_group(&mut self, labels: &[u32], group_no: u32) {
        labels.iter().for_each(|&pair| self.pairs.add_group(pair, group_no));
    }

    /// The next series number is for `place`.
    fn take_place(&mut self, place: Place) -> Place {
        let set = self.set_of(place);
        self.sets.add_group(set, place.group_no);
        self.series_count += 1;
        self.enter(place);
        place
    }

    fn enter(&mut self, place: Place) {
        let (groups, sets) = (&self.groups, &self.sets);
        let hash = hash_place(groups, sets, place);
        self.series[part_of(hash)].insert_unique(hash, place, |&p| hash_place(groups, sets, p));
    }

    fn is_series(&self, place: Place, ids: &[u32]) -> bool {
        let mut group = self.groups.labels(place.group_no);
        let mut member = self.sets.pairs(self.set_of(place));
        if group.len() + member.len() != ids.len() {
            return false;
        }
        let (mut next_group, mut next_member) = (group.next(), member.next());
        ids.iter().all(|&id| {
            if next_group == Some(id) {
                next_group = group.next();
                true
            } else if next_member == Some(id) {
                next_member = member.next();
                true
            } else {
                false
            }
        })
    }

    /// The member set at a place; `LOST_SET` if there is no such slot.
    pub(crate) fn set_of(&self, place: Place) -> u32 {
        let slots = self.groups.slots(place.group_no);
        slots.get(place.slot as usize).copied().unwrap_or(LOST_SET)
    }

    pub(crate) fn series_ref(&self, place: Place) -> SeriesRef {
        SeriesRef { group: self.groups.id(place.group_no), slot: Slot(place.slot) }
    }

    /// The place of a reference, if it was ever given and its definition is known.
    pub(crate) fn place(&self, series: SeriesRef) -> Option<Place> {
        let group_no = self.groups.find(series.group)?;
        let place = Place { group_no, slot: series.slot.0 };
        (self.set_of(place) != LOST_SET).then_some(place)
    }

    /// The whole label set at a place.
    pub(crate) fn labels_at(&self, place: Place) -> Labels {
        let group = self.groups.labels(place.group_no);
        self.labels_of(group, self.sets.pairs(self.set_of(place)))
    }

    /// The labels of two lists of pairs, each in order of names.
    pub(crate) fn labels_of(
        &self,
        group: impl Iterator<Item = u32>,
        member: impl Iterator<Item = u32>,
    ) -> Labels {
        // Both lists came from label sets, in order and without a common name.
        let mut group = group.map(|pair| self.pairs.bytes_of(pair)).peekable();
        let mut member = member.map(|pair| self.pairs.bytes_of(pair)).peekable();
        Labels::from_sorted(std::iter::from_fn(|| match (group.peek(), member.peek()) {
            (Some(from_group), Some(from_member)) if from_member.0 < from_group.0 => member.next(),
            (None, _) => member.next(),
            _ => group.next(),
        }))
    }

    pub(crate) fn watermark(&self) -> Watermark {
        Watermark {
            groups: self.groups.count(),
            sets: self.sets.count(),
            series: self.series_count,
            lost: self.lost_count,
        }
    }

    /// Series that are known, lost ones left out.
    pub(crate) fn live_count(&self) -> u64 {
        u64::from(self.series_count - self.lost_count)
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let table_bytes: usize = self.series.iter().map(HashTable::allocation_size).sum();
        table_bytes + self.pairs.heap_bytes() + self.sets.heap_bytes() + self.groups.heap_bytes()
    }

    /// Makes ids below `next` (per shard) taken.
    ///
    /// # Errors
    /// As [`Groups::reserve_ids`].
    pub(crate) fn reserve_ids(&mut self, next: &[u64]) -> Result<()> {
        for (shard, &next) in next.iter().enumerate() {
            self.groups.reserve_ids(ShardId(shard as u16), next)?;
        }
        Ok(())
    }
}

fn part_of(hash: u64) -> usize {
    // Bits that the tables use neither as bucket (low) nor as tag (the top seven).
    (hash >> 50) as usize % SERIES_PARTS
}

fn hash_place(groups: &Groups, sets: &Sets, place: Place) -> u64 {
    let set = groups.slots(place.group_no).get(place.slot as usize).copied().unwrap_or(EMPTY_SET);
    hash_ids(groups.labels(place.group_no)).wrapping_add(hash_ids(sets.pairs(set)))
}

fn contradiction(id: GroupId, what: &str) -> Error {
    Error::invalid(format!("a definition of {id} contradicts the index: {what}"))
}
