//! Opens chunks and runs, and reads their columns.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use firn_model::{GroupId, Result, Slot, TimeRange, Timestamp};

use super::head::{Head, REGULAR};
use super::lone::LoneBody;
use super::members::MembersBody;
use super::outline::ColumnsOutline;
use crate::columns::{GroupColumns, MemberColumn, SeqRange, Slots};

/// An encoded chunk; borrows its bytes.
#[derive(Clone, Debug)]
pub struct Chunk<'a> {
    group: GroupId,
    seq: SeqRange,
    range: TimeRange,
    body: Body<'a>,
}

#[derive(Clone, Debug)]
enum Body<'a> {
    Lone(LoneBody<'a>),
    Members(MembersBody<'a>),
}

impl<'a> Chunk<'a> {
    /// Opens the chunk that consists of all of `bytes`: reads up to its directory, decodes no
    /// column.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not a chunk of a version that this build reads.
    pub fn open(bytes: &'a [u8]) -> Result<Chunk<'a>> {
        let mut input = bytes;
        let head = Head::take(&mut input)?;
        Chunk::with_head(head, input)
    }

    /// Opens the run that consists of all of `bytes`; `base` must be that of [`crate::encode_run`].
    /// Its group is 0 and its commits are unknown.
    ///
    /// # Errors
    /// As [`Chunk::open`].
    pub fn open_run(bytes: &'a [u8], base: Timestamp) -> Result<Chunk<'a>> {
        let mut input = bytes;
        let head = Head::take_run(&mut input, base)?;
        Chunk::with_head(head, input)
    }

    fn with_head(head: Head, input: &'a [u8]) -> Result<Chunk<'a>> {
        let Head { tag, group, seq, range, entry_count } = head;
        let body = match entry_count {
            Some(entry_count) => {
                Body::Lone(LoneBody { entry_count, regular: tag & REGULAR != 0, bytes: input })
            }
            None => Body::Members(MembersBody::open(input)?),
        };
        Ok(Chunk { group, seq, range, body })
    }

    /// The [`Chunk::time_range`] of the chunk in `bytes`; reads only its head.
    ///
    /// # Errors
    /// As [`Chunk::open`].
    pub fn time_range_of(bytes: &[u8]) -> Result<TimeRange> {
        Head::take(&mut { bytes }).map(|head| head.range)
    }

    /// As [`Chunk::time_range_of`] for a run.
    ///
    /// # Errors
    /// As [`Chunk::open_run`].
    pub fn time_range_of_run(bytes: &[u8], base: Timestamp) -> Result<TimeRange> {
        Head::take_run(&mut { bytes }, base).map(|head| head.range)
    }

    /// The chunk's group.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// The commits of its values.
    pub fn seq(&self) -> SeqRange {
        self.seq
    }

    /// From its first to its last timestamp.
    pub fn time_range(&self) -> TimeRange {
        self.range
    }

    /// Number of entries of its time columns.
    pub fn entry_count(&self) -> usize {
        match &self.body {
            Body::Lone(lone) => lone.entry_count,
            Body::Members(members) => members.entry_count(),
        }
    }

    /// Bytes of its times and values once they are decoded.
    pub fn decoded_bytes(&self) -> usize {
        let value_count = match &self.body {
            Body::Lone(lone) => lone.entry_count,
            Body::Members(members) => members.value_count,
        };
        self.entry_count().saturating_add(value_count).saturating_mul(size_of::<f64>())
    }

    /// About the bytes of the times and values of the selected members in `range`, once they are
    /// decoded: as if the samples were at equal distances.
    pub fn decoded_bytes_of(&self, slots: Slots<'_>, range: TimeRange) -> usize {
        let all = match slots {
            Slots::All => self.decoded_bytes(),
            Slots::Some(slots) => {
                let columns = slots.len().saturating_add(1).saturating_mul(size_of::<f64>());
                self.decoded_bytes().min(self.entry_count().saturating_mul(columns))
            }
        };
        if range.covers(self.range) {
            return all;
        }
        let part = self.range.intersect(range);
        if part.is_empty() {
            return 0;
        }
        let length = |range: TimeRange| u128::from(range.end.abs_diff(range.start)).max(1);
        let bytes = (all as u128).saturating_mul(length(part)).div_ceil(length(self.range));
        usize::try_from(bytes).unwrap_or(all).min(all)
    }

    /// Calls `each` with the slot and the number of values of each selected member, ascending.
    /// Decodes no column.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are damaged.
    pub(crate) fn each_value_count(
        &self,
        slots: Slots<'_>,
        mut each: impl FnMut(Slot, usize),
    ) -> Result<()> {
        match &self.body {
            Body::Lone(lone) => {
                if slots.contains(Slot(0)) {
                    each(Slot(0), lone.entry_count);
                }
                Ok(())
            }
            Body::Members(members) => {
                members.for_each_member(&mut slots.walk(), |slot, count, _, _| each(slot, count))
            }
        }
    }

    /// The members' slots, ascending.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + use<'a> {
        let (lone, listed) = match &self.body {
            Body::Lone(_) => (Some(Slot(0)), None),
            Body::Members(members) => (None, Some(members.slots())),
        };
        lone.into_iter().chain(listed.into_iter().flatten())
    }

    /// Whether slot 0 is the only member and has a value at each timestamp.
    pub fn is_lone(&self) -> bool {
        matches!(self.body, Body::Lone(_))
    }

    /// Decodes the selected members, cut to `range`. Members without a value there are left out.
    /// Costs the selected columns, and one step per member before them.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are damaged.
    pub fn read(&self, slots: Slots<'_>, range: TimeRange) -> Result<GroupColumns> {
        self.read_touching(slots, range, &mut 0)
    }

    /// As [`Chunk::read`]; adds the number of bytes that were read to `touched`.
    ///
    /// # Errors
    /// As [`Chunk::read`].
    pub fn read_touching(
        &self,
        slots: Slots<'_>,
        range: TimeRange,
        touched: &mut usize,
    ) -> Result<GroupColumns> {
        let mut columns = GroupColumns { seq: self.seq, ..GroupColumns::default() };
        if !range.overlaps(self.range) {
            return Ok(columns);
        }
        columns.batch = match &self.body {
            Body::Lone(lone) => lone.read(self.range, slots, range, touched)?,
            Body::Members(members) => members.read(self.range.start, slots, range, touched)?,
        };
        Ok(columns)
    }

    /// Outlines the columns. Decodes only the time column of a lone series with irregular
    /// timestamps.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are damaged.
    pub fn outline(&self) -> Result<ColumnsOutline> {
        match &self.body {
            Body::Lone(lone) => lone.outline(self.range),
            Body::Members(members) => members.outline(),
        }
    }

    /// Removes the chunk's members from `slots`, which ascend. Decodes no column.
    pub fn take_members(&self, slots: &mut Vec<Slot>) {
        match &self.body {
            Body::Lone(_) => slots.retain(|slot| *slot != Slot(0)),
            Body::Members(members) => {
                let here: Vec<Slot> = members.slots.common(slots).collect();
                slots.retain(|slot| here.binary_search(slot).is_err());
            }
        }
    }

    /// As [`Chunk::read`] for one member; appends its samples to `out`. Returns `false`, and leaves
    /// `out` unchanged, if the samples are not all later than those in `out`.
    ///
    /// # Errors
    /// As [`Chunk::read`]; the contents of `out` are then undefined.
    pub fn append_one(&self, slot: Slot, range: TimeRange, out: &mut MemberColumn) -> Result<bool> {
        if !range.overlaps(self.range) {
            return Ok(true);
        }
        match &self.body {
            Body::Lone(lone) => lone.append(self.range, slot, range, out),
            Body::Members(members) => members.append(self.range.start, slot, range, out),
        }
    }
}
