//! Tombstones: the samples that deletes hide, their encoding, and their removal from columns.
//!
//! A delete is resolved to slots when it commits, and hides samples that were committed before it.
//! No run of rows continues across a delete that touches it (the head ends its arenas there), and a
//! merge first applies the tombstones *between* its inputs ([`TombstoneWalk::hide`]). So for each
//! source and delete, either the whole source is older (`seq.max` is below the delete's number), or
//! the delete has already been applied to it; one comparison decides. The bytes are specified in
//! docs/formats/tombstone.md.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;

use firn_model::{
    Column, ColumnBatch, CommitSeq, Error, GroupId, Result, SeriesRef, Slot, TimeRange, Timestamp,
    encode_varint,
};

use crate::columns::{GroupColumns, entries_in};
use crate::merge::merge_columns;
use crate::varint::{encode_zigzag, take_count, take_u8, take_varint, take_zigzag};

/// The members follow. The oldest version that is read.
const WITH_MEMBERS: u8 = 1;
/// The members are those of an earlier tombstone in the same list.
const LIKE_EARLIER: u8 = 2;
/// The two counts of an `Arc`.
const ARC_BYTES: usize = 16;
/// Encoded bytes of a group, at least: the distance to the previous group, and its members.
const GROUP_BYTES_MIN: usize = 2;

/// The samples that one delete hides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// Wall time of the delete.
    pub made_ms: Timestamp,
    range: TimeRange,
    /// Groups ascending, unique. Shared by tombstones with equal members ([`crate::MemberLists`]).
    pub(crate) members: Arc<[HiddenMembers]>,
}

/// The members of one group that a delete hides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HiddenMembers {
    /// The group.
    pub group: GroupId,
    /// Its members.
    pub slots: HiddenSlots,
}

/// Members of one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HiddenSlots {
    /// All slots below this one: mostly the whole group at the time of the delete.
    Below(u32),
    /// These slots; ascending, unique.
    Some(Box<[Slot]>),
}

/// The samples of one group that one delete hides, if they were committed before it.
#[derive(Clone, Copy, Debug)]
pub struct HiddenSamples<'a> {
    /// The delete's number.
    pub seq: CommitSeq,
    /// The timestamps.
    pub range: TimeRange,
    /// The members.
    pub slots: &'a HiddenSlots,
}

/// The deletes that may still have to hide samples, oldest first. Immutable: a delete creates a new
/// set, and readers keep theirs.
#[derive(Clone, Debug, Default)]
pub struct Tombstones {
    list: Vec<(CommitSeq, Arc<Tombstone>)>,
}

/// Removes hidden samples from groups in ascending order. Costs nothing for groups that no
/// tombstone touches, or without tombstones.
#[derive(Debug)]
pub struct TombstoneWalk<'a> {
    list: &'a [(CommitSeq, Arc<Tombstone>)],
    /// For each tombstone in the time range, the next group that it touches.
    next: BinaryHeap<Reverse<(GroupId, usize)>>,
    /// The tombstones that touch `group`, if it is known.
    group: Option<GroupId>,
    here: Vec<usize>,
}

impl HiddenSlots {
    /// Builds the set from ascending, unique slots.
    pub fn new(slots: Vec<Slot>) -> HiddenSlots {
        match slots.last() {
            Some(last) if last.0 as usize == slots.len().saturating_sub(1) => {
                HiddenSlots::Below(last.0.saturating_add(1))
            }
            _ => HiddenSlots::Some(slots.into()),
        }
    }

    /// Number of members.
    pub fn count(&self) -> u64 {
        match self {
            HiddenSlots::Below(end) => u64::from(*end),
            HiddenSlots::Some(slots) => slots.len() as u64,
        }
    }

    /// Whether `slot` is in the set. O(log slots).
    pub fn contains(&self, slot: Slot) -> bool {
        match self {
            HiddenSlots::Below(end) => slot.0 < *end,
            HiddenSlots::Some(slots) => slots.binary_search(&slot).is_ok(),
        }
    }

    fn union(&self, other: &HiddenSlots) -> HiddenSlots {
        let list = |slots: &HiddenSlots| match slots {
            HiddenSlots::Below(end) => (0..*end).map(Slot).collect(),
            HiddenSlots::Some(slots) => slots.to_vec(),
        };
        let mut slots = [list(self), list(other)].concat();
        slots.sort_unstable();
        slots.dedup();
        HiddenSlots::new(slots)
    }
}

impl Tombstone {
    /// Bytes of memory without the list of members: itself, and its entries in the list of all
    /// deletes, in that of the flushed ones and in the next version of each.
    pub const OWN_BYTES: u64 =
        (ARC_BYTES + size_of::<Tombstone>() + 4 * size_of::<(CommitSeq, Arc<Tombstone>)>()) as u64;

    /// A tombstone for `members` in `range`. Sorts the members and unites those of one group.
    pub fn new(made_ms: Timestamp, range: TimeRange, mut members: Vec<HiddenMembers>) -> Tombstone {
        // Nothing is allocated; the order within a group does not matter.
        members.sort_unstable_by_key(|members| members.group);
        members.dedup_by(|next, kept| {
            let same = next.group == kept.group;
            if same {
                kept.slots = kept.slots.union(&next.slots);
            }
            same
        });
        Tombstone { made_ms, range, members: members.into() }
    }

    /// The timestamps.
    pub fn range(&self) -> TimeRange {
        self.range
    }

    /// The hidden members, groups ascending.
    pub fn members(&self) -> &[HiddenMembers] {
        &self.members
    }

    /// Number of series that it touches.
    pub fn series_count(&self) -> u64 {
        self.members.iter().map(|members| members.slots.count()).sum()
    }

    /// Whether it hides a sample that was committed before it.
    pub fn hides(&self, series: SeriesRef, ts: Timestamp) -> bool {
        self.range.contains(ts)
            && self.slots_of(series.group).is_some_and(|slots| slots.contains(series.slot))
    }

    /// Whether it touches a group from `min` to `max`, both inclusive.
    pub fn touches_groups(&self, min: GroupId, max: GroupId) -> bool {
        self.next_group(min).is_some_and(|group| group <= max)
    }

    /// Bytes of memory, if no other tombstone shares its members.
    pub fn heap_bytes(&self) -> u64 {
        Tombstone::OWN_BYTES.saturating_add(list_bytes(&self.members))
    }

    /// Whether both share one list of members, which are then equal.
    pub fn shares_members(&self, other: &Tombstone) -> bool {
        Arc::ptr_eq(&self.members, &other.members)
    }

    /// The most memory that [`Tombstone::decode`] takes for `len` bytes: twice the list of members,
    /// and slots of one byte each.
    pub fn decoding_bytes_max(len: usize) -> u64 {
        let groups = (len / GROUP_BYTES_MIN).saturating_mul(size_of::<[HiddenMembers; 2]>());
        let slots = len.saturating_mul(size_of::<[Slot; 2]>());
        let lists = groups.saturating_add(slots).saturating_add(ARC_BYTES);
        Tombstone::OWN_BYTES.saturating_add(lists as u64)
    }

    /// Appends the encoding to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_head(WITH_MEMBERS, out);
        encode_varint(self.members.len() as u64, out);
        let mut group_before = 0;
        for members in self.members.iter() {
            encode_varint(members.group.0.wrapping_sub(group_before), out);
            group_before = members.group.0;
            encode_slots(&members.slots, out);
        }
    }

    /// Appends the encoding to `out` for a list in which the tombstone `distance` entries before
    /// this one has the same members: the previous one has distance 1.
    pub fn encode_like(&self, distance: usize, out: &mut Vec<u8>) {
        self.encode_head(LIKE_EARLIER, out);
        encode_varint(distance as u64, out);
    }

    fn encode_head(&self, version: u8, out: &mut Vec<u8>) {
        out.push(version);
        encode_zigzag(self.made_ms, out);
        encode_zigzag(self.range.start, out);
        encode_zigzag(self.range.end, out);
    }

    /// Decodes the tombstone that consists of all of `bytes`. `earlier` are those before it in the
    /// list; it shares the members of the one that it refers to.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not a tombstone, `Invalid` if a newer version wrote them.
    pub fn decode(bytes: &[u8], earlier: &[Arc<Tombstone>]) -> Result<Tombstone> {
        let mut input = bytes;
        let version = take_u8(&mut input, "tombstone version")?;
        if version != WITH_MEMBERS && version != LIKE_EARLIER {
            return Err(Error::invalid(format!(
                "tombstone of version {version}, this program reads {WITH_MEMBERS} and \
                 {LIKE_EARLIER}: open the database with the version that wrote it"
            )));
        }
        let made_ms = take_zigzag(&mut input, "tombstone time")?;
        let range = TimeRange::new(
            take_zigzag(&mut input, "tombstone start")?,
            take_zigzag(&mut input, "tombstone end")?,
        );
        let members = match version {
            LIKE_EARLIER => take_reference(&mut input, earlier)?,
            _ => take_members(&mut input)?.into(),
        };
        if range.is_empty() || !input.is_empty() {
            return Err(corrupt("tombstone has an empty time range or surplus bytes"));
        }
        Ok(Tombstone { made_ms, range, members })
    }

    /// The first touched group from `from` on. O(log groups).
    fn next_group(&self, from: GroupId) -> Option<GroupId> {
        let idx = self.members.partition_point(|members| members.group < from);
        self.members.get(idx).map(|members| members.group)
    }

    fn slots_of(&self, group: GroupId) -> Option<&HiddenSlots> {
        let idx = self.members.binary_search_by_key(&group, |members| members.group).ok()?;
        self.members.get(idx).map(|members| &members.slots)
    }
}

/// Bytes of memory of a list of members.
pub(crate) fn list_bytes(list: &[HiddenMembers]) -> u64 {
    let slots = list.iter().map(|members| match &members.slots {
        HiddenSlots::Below(_) => 0,
        HiddenSlots::Some(slots) => size_of_val(&**slots),
    });
    let slots: usize = slots.sum();
    ARC_BYTES.saturating_add(size_of_val(list)).saturating_add(slots) as u64
}

impl Tombstones {
    /// Builds the set from deletes with their numbers, in any order. Of equal numbers the first
    /// counts.
    pub fn new(mut list: Vec<(CommitSeq, Arc<Tombstone>)>) -> Tombstones {
        list.sort_by_key(|entry| entry.0);
        list.dedup_by_key(|entry| entry.0);
        Tombstones { list }
    }

    /// This set with one more delete.
    pub fn with(&self, seq: CommitSeq, tombstone: Arc<Tombstone>) -> Tombstones {
        let mut list = self.list.clone();
        list.push((seq, tombstone));
        Tombstones::new(list)
    }

    /// This set without the deletes with these numbers, which ascend.
    pub fn without(&self, seqs: &[CommitSeq]) -> Tombstones {
        let kept = self.list.iter().filter(|entry| seqs.binary_search(&entry.0).is_err());
        Tombstones { list: kept.cloned().collect() }
    }

    /// The deletes that are newer than `seq`.
    pub fn after(&self, seq: CommitSeq) -> Tombstones {
        let start = self.list.partition_point(|entry| entry.0 <= seq);
        Tombstones { list: self.list.get(start..).unwrap_or_default().to_vec() }
    }

    /// The deletes that are not newer than `seq`.
    pub fn up_to(&self, seq: CommitSeq) -> Tombstones {
        let end = self.list.partition_point(|entry| entry.0 <= seq);
        Tombstones { list: self.list.get(..end).unwrap_or_default().to_vec() }
    }

    /// The deletes with numbers above `after` and below `before`, oldest first.
    pub fn between(&self, after: CommitSeq, before: CommitSeq) -> impl Iterator<Item = &Tombstone> {
        let start = self.list.partition_point(|entry| entry.0 <= after);
        let later = self.list.get(start..).unwrap_or_default().iter();
        later.take_while(move |entry| entry.0 < before).map(|entry| &*entry.1)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Number of deletes.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// All deletes, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (CommitSeq, &Arc<Tombstone>)> {
        self.list.iter().map(|(seq, tombstone)| (*seq, tombstone))
    }

    /// The number of the newest delete; 0 if there is none. A merge with this set has applied all
    /// deletes up to that number.
    pub fn through(&self) -> CommitSeq {
        self.list.last().map_or(CommitSeq(0), |entry| entry.0)
    }

    /// Bytes of memory; members that several share count once.
    pub fn heap_bytes(&self) -> u64 {
        let mut counted = HashSet::new();
        let bytes = self.list.iter().map(|(_, tombstone)| {
            let is_new = counted.insert(tombstone.members.as_ptr());
            if is_new { tombstone.heap_bytes() } else { Tombstone::OWN_BYTES }
        });
        bytes.sum()
    }

    /// A walk over groups with sources that may have timestamps in `range`.
    pub fn walk(&self, range: TimeRange) -> TombstoneWalk<'_> {
        let in_range = |entry: &&(CommitSeq, Arc<Tombstone>)| entry.1.range.overlaps(range);
        let mut walk = TombstoneWalk {
            list: &self.list,
            next: BinaryHeap::new(),
            group: None,
            here: Vec::new(),
        };
        if self.list.iter().any(|entry| in_range(&entry)) {
            let entries = self.list.iter().enumerate().filter(|(_, entry)| in_range(entry));
            let firsts = entries.filter_map(|(idx, (_, tombstone))| {
                tombstone.next_group(GroupId(0)).map(|group| Reverse((group, idx)))
            });
            walk.next = firsts.collect();
        }
        walk
    }
}

impl<'a> TombstoneWalk<'a> {
    /// Whether a tombstone touches `group`. Groups must not descend from call to call.
    pub fn touches(&mut self, group: GroupId) -> bool {
        if self.group == Some(group) {
            return !self.here.is_empty();
        }
        while let Some(&Reverse((at, idx))) = self.next.peek()
            && at < group
        {
            self.next.pop();
            self.push_from(idx, group);
        }
        self.next.peek().is_some_and(|next| next.0.0 == group)
    }

    /// Removes the hidden samples of `group` from its `sources`: from each source those of the
    /// tombstones that are newer than all of it. Removes sources without remaining values. Groups
    /// must not descend from call to call.
    pub fn hide(&mut self, group: GroupId, sources: &mut Vec<GroupColumns>) {
        if !self.touches(group) {
            return;
        }
        for HiddenSamples { seq, range, slots } in self.of(group) {
            for source in sources.iter_mut().filter(|source| source.seq.max < seq) {
                take_out(source, slots, range);
            }
        }
        sources.retain(|source| !source.is_empty());
    }

    /// The hidden samples of `group`, for callers that read no columns. Groups must not descend
    /// from call to call, also between this method and [`TombstoneWalk::hide`].
    pub fn of(&mut self, group: GroupId) -> impl Iterator<Item = HiddenSamples<'a>> {
        if self.group != Some(group) {
            self.group = None;
            self.here.clear();
            while self.touches(group)
                && let Some(Reverse((_, idx))) = self.next.pop()
            {
                self.here.push(idx);
                // The largest possible group has no successor.
                if let Some(after) = group.0.checked_add(1) {
                    self.push_from(idx, GroupId(after));
                }
            }
            self.group = Some(group);
        }
        let here = self.here.iter().filter_map(|&idx| self.list.get(idx));
        here.filter_map(move |(seq, tombstone)| {
            let slots = tombstone.slots_of(group)?;
            Some(HiddenSamples { seq: *seq, range: tombstone.range, slots })
        })
    }

    fn push_from(&mut self, idx: usize, from: GroupId) {
        let next = self.list.get(idx).and_then(|(_, tombstone)| tombstone.next_group(from));
        self.next.extend(next.map(|group| Reverse((group, idx))));
    }
}

/// Removes the values of `slots` in `range`.
fn take_out(columns: &mut GroupColumns, slots: &HiddenSlots, range: TimeRange) {
    let batch = &columns.batch;
    let is_hit = |column: &Column| {
        slots.contains(column.slot)
            && batch
                .times
                .get(column.time_idx as usize)
                .is_some_and(|times| !entries_in(times, range).is_empty())
    };
    if !batch.columns.iter().any(is_hit) {
        return;
    }
    let hit = some_columns(columns, is_hit);
    let kept = some_columns(columns, |column| !is_hit(column));
    let mut parts = vec![kept];
    parts.extend(range.start.checked_sub(1).map(|end| hit.slice(TimeRange::new(i64::MIN, end))));
    parts.extend(range.end.checked_add(1).map(|start| hit.slice(TimeRange::new(start, i64::MAX))));
    let left = merge_columns(&parts, TimeRange::ALL);
    *columns = GroupColumns { seq: columns.seq, ..left };
}

/// The columns that `wanted` selects, with their time columns.
#[expect(
    clippy::indexing_slicing,
    reason = "an invariant of GroupColumns: each column has a time column"
)]
fn some_columns(columns: &GroupColumns, wanted: impl Fn(&Column) -> bool) -> GroupColumns {
    let mut batch = ColumnBatch::default();
    let mut new_idx: Vec<Option<u32>> = vec![None; columns.batch.times.len()];
    for column in columns.batch.columns.iter().filter(|column| wanted(column)) {
        let known = &mut new_idx[column.time_idx as usize];
        let time_idx = *known.get_or_insert_with(|| {
            batch.times.push(Arc::clone(&columns.batch.times[column.time_idx as usize]));
            u32::try_from(batch.times.len()).unwrap_or(u32::MAX).saturating_sub(1)
        });
        batch.columns.push(Column { time_idx, ..column.clone() });
    }
    GroupColumns { batch, seq: columns.seq }
}

fn take_members(input: &mut &[u8]) -> Result<Vec<HiddenMembers>> {
    let group_count_max = input.len() / GROUP_BYTES_MIN;
    let group_count = take_count(input, group_count_max, "tombstone groups")?;
    let mut members = Vec::with_capacity(group_count);
    let mut group = 0u64;
    for idx in 0..group_count {
        let step = take_varint(input, "tombstone group")?;
        group = group
            .checked_add(step)
            .filter(|_| idx == 0 || step > 0)
            .ok_or_else(|| corrupt("groups of a tombstone do not rise"))?;
        let slots = take_slots(input)?;
        members.push(HiddenMembers { group: GroupId(group), slots });
    }
    Ok(members)
}

fn take_reference(input: &mut &[u8], earlier: &[Arc<Tombstone>]) -> Result<Arc<[HiddenMembers]>> {
    let distance = take_count(input, earlier.len(), "tombstones before one with equal members")?;
    let idx = earlier.len().checked_sub(distance);
    let tombstone = idx.and_then(|idx| earlier.get(idx));
    let tombstone = tombstone.ok_or_else(|| corrupt("tombstone refers to itself"))?;
    Ok(Arc::clone(&tombstone.members))
}

/// An even number is twice the count of leading slots. An odd number is twice the number of members
/// plus one; the distances between their slots follow.
fn encode_slots(slots: &HiddenSlots, out: &mut Vec<u8>) {
    match slots {
        HiddenSlots::Below(end) => encode_varint(u64::from(*end) << 1, out),
        HiddenSlots::Some(slots) => {
            encode_varint((slots.len() as u64) << 1 | 1, out);
            let mut before = 0;
            for slot in slots {
                encode_varint(u64::from(slot.0.saturating_sub(before)), out);
                before = slot.0;
            }
        }
    }
}

fn take_slots(input: &mut &[u8]) -> Result<HiddenSlots> {
    let tag = take_varint(input, "tombstone members")?;
    if tag & 1 == 0 {
        let end = u32::try_from(tag >> 1);
        return end.map(HiddenSlots::Below).map_err(|_| corrupt("tombstone slots exceed 32 bits"));
    }
    let slot_count = usize::try_from(tag >> 1).unwrap_or(usize::MAX);
    if slot_count > input.len() {
        return Err(corrupt("tombstone has fewer members than its header states"));
    }
    let mut slots = Vec::with_capacity(slot_count);
    let mut slot = 0u64;
    for idx in 0..slot_count {
        let step = take_varint(input, "tombstone member")?;
        slot = slot.saturating_add(step);
        let fits = u32::try_from(slot).ok().filter(|_| idx == 0 || step > 0);
        let member = fits.ok_or_else(|| corrupt("tombstone members do not ascend within 32 bits"));
        slots.push(Slot(member?));
    }
    Ok(HiddenSlots::Some(slots.into()))
}

fn corrupt(what: &str) -> Error {
    Error::corrupt("encoded bytes", 0, what)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use firn_model::{ColumnValues, ErrorKind, Presence};

    use super::*;
    use crate::columns::SeqRange;

    fn members(group: u64, slots: &[u32]) -> HiddenMembers {
        let slots: Vec<Slot> = slots.iter().map(|&slot| Slot(slot)).collect();
        let all = slots.is_empty();
        let slots = if all { HiddenSlots::Below(3) } else { HiddenSlots::new(slots) };
        HiddenMembers { group: GroupId(group), slots }
    }

    fn tombstone(range: (i64, i64), hidden: &[HiddenMembers]) -> Arc<Tombstone> {
        Arc::new(Tombstone::new(7, TimeRange::new(range.0, range.1), hidden.to_vec()))
    }

    /// Slot 0 at 0, 10, .. 50; slot 1 at 10 and 30 of them; slot 2 at 5 and 25.
    fn columns(seq: u64) -> GroupColumns {
        let times: Arc<[i64]> = (0..6).map(|idx| idx * 10).collect();
        let own: Arc<[i64]> = Arc::from([5, 25]);
        let mut some = Presence::filled(6, false);
        some.set(1);
        some.set(3);
        let column = |slot, time_idx, presence, values: &[f64]| Column {
            slot: Slot(slot),
            key: 0,
            time_idx,
            presence,
            values: ColumnValues::F64(values.to_vec()),
        };
        let columns = vec![
            column(0, 0, None, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
            column(1, 0, Some(some), &[1.5, 3.5]),
            column(2, 1, None, &[0.25, 2.25]),
        ];
        let batch = ColumnBatch { times: vec![times, own], columns };
        GroupColumns { batch, seq: SeqRange::at(CommitSeq(seq)) }
    }

    fn samples(columns: &GroupColumns) -> BTreeMap<(u32, i64), u64> {
        columns.check();
        let mut samples = BTreeMap::new();
        for column in &columns.batch.columns {
            let times = &columns.batch.times[column.time_idx as usize];
            let all = Presence::filled(times.len(), true);
            let present = column.presence.as_ref().unwrap_or(&all);
            let ColumnValues::F64(values) = &column.values else { unreachable!() };
            for (idx, value) in present.iter().zip(values) {
                samples.insert((column.slot.0, times[idx]), value.to_bits());
            }
        }
        samples
    }

    #[test]
    fn hidden_samples_are_removed_and_others_stay_bit_for_bit() {
        let f = |range: (i64, i64), slots: &[u32]| {
            let set =
                Tombstones::default().with(CommitSeq(9), tombstone(range, &[members(4, slots)]));
            let mut sources = vec![columns(8)];
            set.walk(TimeRange::ALL).hide(GroupId(4), &mut sources);
            let got = sources.first().map(samples).unwrap_or_default();
            let is_left = |slot: u32, ts: i64| {
                ts < range.0 || ts > range.1 || !(slots.is_empty() || slots.contains(&slot))
            };
            let want: BTreeMap<_, _> =
                samples(&columns(8)).into_iter().filter(|((s, ts), _)| is_left(*s, *ts)).collect();
            assert_eq!(got, want, "{range:?} of {slots:?}");
        };
        for range in [(0, 50), (i64::MIN, i64::MAX), (10, 30), (26, 29), (50, 60), (i64::MIN, 5)] {
            for slots in [&[][..], &[0], &[1, 2], &[2], &[9]] {
                f(range, slots);
            }
        }
    }

    #[test]
    fn tombstones_apply_only_to_older_sources_of_touched_groups() {
        let set = Tombstones::default()
            .with(CommitSeq(9), tombstone((0, 20), &[members(4, &[]), members(u64::MAX, &[])]))
            .with(CommitSeq(12), tombstone((30, 99), &[members(2, &[0]), members(4, &[0])]));
        let mut walk = set.walk(TimeRange::ALL);
        let mut f = |group: u64, want: [usize; 3]| {
            let mut sources = vec![columns(8), columns(10), columns(13)];
            walk.hide(GroupId(group), &mut sources);
            let counts: Vec<usize> = sources.iter().map(GroupColumns::value_count).collect();
            assert_eq!(counts, want, "group {group}");
        };
        f(1, [10, 10, 10]);
        f(2, [7, 7, 10]);
        f(3, [10, 10, 10]);
        f(4, [2, 7, 10]);
        f(5, [10, 10, 10]);
        f(u64::MAX, [5, 10, 10]);
        assert!(!set.walk(TimeRange::new(-9, -1)).touches(GroupId(4)));
        assert_eq!(set.through(), CommitSeq(12));
        assert_eq!(set.without(&[CommitSeq(12)]).through(), CommitSeq(9));
    }

    /// Version 1 as stored in logs and manifests: never change this; add the next version beside
    /// it.
    #[test]
    fn version_1_is_read_for_ever_and_cut_bytes_are_errors() {
        let bytes = [1, 14, 19, 40, 3, 5, 6, 2, 5, 1, 3, 200, 1, 2];
        let want =
            tombstone((-10, 20), &[members(207, &[0]), members(5, &[]), members(7, &[1, 4])]);
        assert_eq!(Tombstone::decode(&bytes, &[]).unwrap(), *want);
        let mut again = Vec::new();
        want.encode(&mut again);
        assert_eq!(again, bytes);
        for cut in 0..bytes.len() {
            let error = Tombstone::decode(&bytes[..cut], &[]).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "cut at {cut}: {error}");
        }
        assert_eq!(*Tombstone::decode(&[3], &[]).unwrap_err().kind(), ErrorKind::Invalid);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes;
                flipped[at] ^= 1 << bit;
                if let Ok(read) = Tombstone::decode(&flipped, &[]) {
                    assert!(read.members().is_sorted_by_key(|members| members.group));
                }
            }
        }
    }

    /// Version 2 as stored in manifests: never change this; add the next version beside it.
    #[test]
    fn version_2_shares_the_members_of_an_earlier_tombstone() {
        let bytes = [2, 14, 19, 40, 2];
        let earlier =
            [tombstone((0, 1), &[members(5, &[])]), tombstone((0, 1), &[members(6, &[])])];
        let read = Tombstone::decode(&bytes, &earlier).unwrap();
        assert_eq!(read, *tombstone((-10, 20), &[members(5, &[])]));
        assert!(read.shares_members(&earlier[0]));
        let mut again = Vec::new();
        read.encode_like(2, &mut again);
        assert_eq!(again, bytes);
        for cut in 0..bytes.len() {
            assert!(Tombstone::decode(&bytes[..cut], &earlier).is_err(), "cut at {cut}");
        }
        for distance in [0, 3, 0x7f] {
            let error = Tombstone::decode(&[2, 14, 19, 40, distance], &earlier).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{distance}: {error}");
        }
        assert!(Tombstone::decode(&bytes, &[]).is_err());
    }

    /// Decoding takes at most the memory that recovery counts before it.
    #[test]
    fn decoded_tombstones_take_no_more_than_their_bound() {
        let every_other: Vec<u32> = (0..1_000).map(|slot| 2 * slot).collect();
        let groups: Vec<_> = (0..1_000).map(|group| members(group, &[])).collect();
        for hidden in [&groups[..], &[members(1, &every_other)], &[]] {
            let mut bytes = Vec::new();
            tombstone((0, 1), hidden).encode(&mut bytes);
            let read = Tombstone::decode(&bytes, &[]).unwrap();
            assert!(read.heap_bytes() <= Tombstone::decoding_bytes_max(bytes.len()));
        }
    }

    #[test]
    fn members_of_one_group_unite() {
        let f = |hidden: &[HiddenMembers], want: &[HiddenMembers]| {
            assert_eq!(tombstone((0, 1), hidden).members(), want);
        };
        f(
            &[members(4, &[2]), members(1, &[]), members(4, &[1, 2])],
            &[members(1, &[]), members(4, &[1, 2])],
        );
        f(&[members(4, &[2]), members(4, &[])], &[members(4, &[])]);
    }
}
