//! Chunks: one group, one time span, columns that are decoded one by one.
//!
//! ```text
//! chunk     = head lone-body | head body
//! head      = version and flags:u8 varint(group) varint(seq.min) varint(seq.max - seq.min)
//!             zigzag(first timestamp) varint(last - first timestamp)
//! lone-body = varint(entries) [times] values        (slot 0 only, every entry present; no times if
//!             they are regular)
//! body      = postings(slots) varint(bases) varint(subsets) base* subset* shapes directory values*
//! ```
//! A *base* is a time column; a *subset* is some entries of one, so that members that come and go
//! share the base's timestamps. A member's *shape* is its base or subset. The directory has each
//! member's bytes, 0 for "the same bytes as the member before". Byte by byte: docs/formats/chunk.md.
//!
//! Source: Heracles 3.2 (shared time column, aligned value columns); the column codecs are ours.

mod directory;
mod outline;
mod read;
mod shape;

pub use outline::{ColumnOutline, ColumnsOutline};

use std::sync::Arc;

use firn_model::{ColumnBatch, CommitSeq, GroupId, Presence, Result, Slot, TimeRange, Timestamp};

use self::directory::DirectoryBuilder;
use self::shape::Shapes;
use crate::columns::{GroupColumns, MemberColumn, SeqRange, Slots, doubles, span};
use crate::postings::{Postings, encode_postings};
use crate::row::SLOTS_MAX;
use crate::time_column::encode_times;
use crate::value_column::encode_values;
use crate::varint::{
    corrupt, encode_varint, encode_zigzag, take_count, take_u8, take_varint, take_zigzag,
};

/// A time column of a chunk has at most this many entries: bounds what a decoder allocates for
/// damaged bytes.
pub const ENTRIES_MAX: usize = 1 << 20;
/// All members together; also such a bound.
pub const VALUES_MAX: usize = 1 << 26;

const VERSION: u8 = 1;
/// Only slot 0, one time column, no NULL.
const LONE: u8 = 0x10;
/// With `LONE`: the timestamps have equal distances.
const REGULAR: u8 = 0x20;

/// How much work the encoder spends on fewer bytes. Both are read by the same decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// For the head's static runs, which live for minutes.
    Fast,
    /// For tables.
    Small,
}

/// Appends one chunk of all of `columns`.
///
/// # Panics
/// If `columns` is empty, breaks the invariants of [`GroupColumns`], or is over [`SLOTS_MAX`],
/// [`ENTRIES_MAX`] or [`VALUES_MAX`]: wrong data must not become durable.
pub fn encode_chunk(group: GroupId, columns: &GroupColumns, effort: Effort, out: &mut Vec<u8>) {
    columns.check();
    let members = &columns.batch.columns;
    let last = members.last().expect("a chunk has at least one member");
    assert!((last.slot.0 as usize) < SLOTS_MAX, "slot {} is over {SLOTS_MAX}", last.slot.0);
    assert!(columns.value_count() <= VALUES_MAX, "a chunk of over {VALUES_MAX} values");
    let shapes = match lone_times(&columns.batch) {
        Some(times) => {
            let flags = LONE | if is_regular(times) { REGULAR } else { 0 };
            encode_head(flags, group, columns.seq, span(times), out);
            encode_varint(times.len() as u64, out);
            return encode_lone(times, doubles(&last.values), effort, out);
        }
        None => Shapes::of(&columns.batch),
    };
    encode_head(0, group, columns.seq, shapes.time_range(), out);
    encode_members(&shapes, columns, effort, out);
}

/// Appends a *run*: a chunk in the memory of somebody who knows its group and its commits, and that no
/// timestamp is before `base`. A third smaller where there are few entries.
///
/// # Panics
/// As [`encode_chunk`].
pub fn encode_run(base: Timestamp, columns: &GroupColumns, effort: Effort, out: &mut Vec<u8>) {
    columns.check();
    let values = columns.value_count();
    assert!(values > 0 && values <= VALUES_MAX, "a run of {values} values");
    let start = |ts: Timestamp, out: &mut Vec<u8>| {
        debug_assert!(ts >= base, "a run from {ts} on is before {base}");
        encode_varint(ts.wrapping_sub(base) as u64, out);
    };
    if let (Some(times), [column]) = (lone_times(&columns.batch), columns.batch.columns.as_slice())
    {
        let (first, last) = (times[0], times[times.len() - 1]);
        let regular = is_regular(times);
        out.push(VERSION | LONE | if regular { REGULAR } else { 0 });
        start(first, out);
        encode_varint(times.len() as u64, out);
        let steps = if regular { (times.len() as u64 - 1).max(1) } else { 1 };
        encode_varint(last.wrapping_sub(first) as u64 / steps, out);
        return encode_lone(times, doubles(&column.values), effort, out);
    }
    let shapes = Shapes::of(&columns.batch);
    let range = shapes.time_range();
    out.push(VERSION);
    start(range.start, out);
    encode_varint(range.end.wrapping_sub(range.start) as u64, out);
    encode_members(&shapes, columns, effort, out);
}

fn encode_lone(times: &[Timestamp], values: &[f64], effort: Effort, out: &mut Vec<u8>) {
    if !is_regular(times) {
        encode_times(times[0], times, out);
    }
    encode_values(values, effort, out);
}

fn encode_head(flags: u8, group: GroupId, seq: SeqRange, range: TimeRange, out: &mut Vec<u8>) {
    out.push(VERSION | flags);
    encode_varint(group.0, out);
    encode_varint(seq.min.0, out);
    encode_varint(seq.max.0.wrapping_sub(seq.min.0), out);
    encode_zigzag(range.start, out);
    encode_varint(range.end.wrapping_sub(range.start) as u64, out);
}

/// The timestamps if this is slot 0 alone, with a value at each.
fn lone_times(batch: &ColumnBatch) -> Option<&[Timestamp]> {
    match (batch.times.as_slice(), batch.columns.as_slice()) {
        ([times], [column])
            if column.slot == Slot(0) && column.presence.as_ref().is_none_or(Presence::is_full) =>
        {
            Some(times)
        }
        _ => None,
    }
}

/// Whether timestamps have equal distances.
fn is_regular(times: &[Timestamp]) -> bool {
    let mut steps = times.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
    steps.next().is_none_or(|first| steps.all(|step| step == first))
}

/// All that follows a head of members.
fn encode_members(shapes: &Shapes, columns: &GroupColumns, effort: Effort, out: &mut Vec<u8>) {
    let members = &columns.batch.columns;
    let slots: Vec<u64> = members.iter().map(|column| u64::from(column.slot.0)).collect();
    encode_postings(&slots, out);
    shapes.encode(shapes.time_range().start, out);
    let mut directory = DirectoryBuilder::new(members.len());
    let mut values: Vec<u8> = Vec::new();
    let mut previous = 0..0;
    for column in members {
        let start = values.len();
        encode_values(doubles(&column.values), effort, &mut values);
        if values[previous.clone()] == values[start..] {
            values.truncate(start);
            directory.add(start, 0);
        } else {
            directory.add(start, values.len() - start);
            previous = start..values.len();
        }
    }
    directory.encode(out);
    out.append(&mut values);
}

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
    Lone(read::Lone<'a>),
    Members(read::Members<'a>),
}

impl<'a> Chunk<'a> {
    /// Reads the chunk that is all of `bytes`, up to its directory; no column is decoded.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are no chunk of a version that this build reads.
    pub fn open(bytes: &'a [u8]) -> Result<Chunk<'a>> {
        let mut input = bytes;
        let head = Head::take(&mut input)?;
        Chunk::with_head(head, input)
    }

    /// Reads the run that is all of `bytes`, as [`encode_run`] made it with this `base`: a chunk of group
    /// 0 and no commits.
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
                Body::Lone(read::Lone { entry_count, regular: tag & REGULAR != 0, bytes: input })
            }
            None => Body::Members(read::Members::open(input)?),
        };
        Ok(Chunk { group, seq, range, body })
    }

    /// [`Chunk::time_range`] of the chunk that is all of `bytes`, without looking at more of it.
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

    /// Whose chunk it is.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// The commits that its values are from.
    pub fn seq(&self) -> SeqRange {
        self.seq
    }

    /// From its first to its last timestamp.
    pub fn time_range(&self) -> TimeRange {
        self.range
    }

    /// How many entries its time columns have.
    pub fn entry_count(&self) -> usize {
        match &self.body {
            Body::Lone(lone) => lone.entry_count,
            Body::Members(members) => members.entry_count(),
        }
    }

    /// The members, rising.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + use<'a> {
        let (lone, listed) = match &self.body {
            Body::Lone(_) => (Some(Slot(0)), None),
            Body::Members(members) => (None, Some(members.slots())),
        };
        lone.into_iter().chain(listed.into_iter().flatten())
    }

    /// Decodes the wanted members, cut to `range`. Members without a value there are left out. Costs
    /// the wanted columns, and a step per member before them.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are damaged.
    pub fn read(&self, slots: Slots<'_>, range: TimeRange) -> Result<GroupColumns> {
        self.read_touching(slots, range, &mut 0)
    }

    /// As [`Chunk::read`]; adds to `touched` how many of the chunk's bytes had to be looked at.
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

    /// Takes the chunk's members out of `slots`, which rise. No column is decoded.
    pub fn take_members(&self, slots: &mut Vec<Slot>) {
        match &self.body {
            Body::Lone(_) => slots.retain(|slot| *slot != Slot(0)),
            Body::Members(members) => {
                let here: Vec<Slot> = members.slots.common(slots).collect();
                slots.retain(|slot| here.binary_search(slot).is_err());
            }
        }
    }

    /// As [`Chunk::read`] for one member, whose samples are appended to `out`. `false` if they do not come after what
    /// is there already: `out` is what it was then.
    ///
    /// # Errors
    /// As [`Chunk::read`]; `out` is then of no use.
    pub fn append_one(&self, slot: Slot, range: TimeRange, out: &mut MemberColumn) -> Result<bool> {
        if !range.overlaps(self.range) {
            return Ok(true);
        }
        match &self.body {
            Body::Lone(lone) => lone.append(self.range, slot, range, out),
            Body::Members(members) => {
                let wanted = [slot];
                let wanted = Slots::Some(&wanted);
                let batch = members.read(self.range.start, wanted, range, &mut 0)?;
                Ok(batch
                    .columns
                    .iter()
                    .all(|column| out.append(&batch.times[column.time_idx as usize], column)))
            }
        }
    }
}

/// What stands before a chunk's body.
struct Head {
    tag: u8,
    group: GroupId,
    seq: SeqRange,
    range: TimeRange,
    /// Of a lone series.
    entry_count: Option<usize>,
}

impl Head {
    fn take(input: &mut &[u8]) -> Result<Head> {
        let tag = Head::take_tag(input)?;
        let group = GroupId(take_varint(input, "chunk group")?);
        let min = take_varint(input, "chunk seq")?;
        let max = min.checked_add(take_varint(input, "chunk seq")?);
        let max = max.ok_or_else(|| corrupt("chunk seq is over 64 bits"))?;
        let start = take_zigzag(input, "chunk start")?;
        let span = take_varint(input, "chunk end")?;
        let range = range_of(start, span)?;
        let entry_count = Head::take_entry_count(tag, input)?;
        let seq = SeqRange { min: CommitSeq(min), max: CommitSeq(max) };
        Ok(Head { tag, group, seq, range, entry_count })
    }

    fn take_run(input: &mut &[u8], base: Timestamp) -> Result<Head> {
        let tag = Head::take_tag(input)?;
        let start = base.wrapping_add(take_varint(input, "run start")? as i64);
        let entry_count = Head::take_entry_count(tag, input)?;
        let distance = take_varint(input, "run end")?;
        let steps = match entry_count {
            Some(count) if tag & REGULAR != 0 => count as u64 - 1,
            _ => 1,
        };
        let span = distance.checked_mul(steps).ok_or_else(|| corrupt("run end is over 64 bits"))?;
        let range = range_of(start, span)?;
        Ok(Head { tag, group: GroupId(0), seq: SeqRange::default(), range, entry_count })
    }

    fn take_tag(input: &mut &[u8]) -> Result<u8> {
        let tag = take_u8(input, "chunk version")?;
        if ![VERSION, VERSION | LONE, VERSION | LONE | REGULAR].contains(&tag) {
            return Err(corrupt(format!(
                "chunk version {tag:#04x}, this build reads {VERSION:#04x}"
            )));
        }
        Ok(tag)
    }

    fn take_entry_count(tag: u8, input: &mut &[u8]) -> Result<Option<usize>> {
        if tag & LONE == 0 {
            return Ok(None);
        }
        let entry_count = take_count(input, ENTRIES_MAX, "chunk entries")?;
        if entry_count == 0 {
            return Err(corrupt("chunk without entries"));
        }
        Ok(Some(entry_count))
    }
}

fn range_of(start: Timestamp, span: u64) -> Result<TimeRange> {
    let end = start.checked_add_unsigned(span);
    let end = end.ok_or_else(|| corrupt("chunk end is over 64 bits"))?;
    Ok(TimeRange::new(start, end))
}

/// Slots as a posting list of a chunk has them.
fn slots_of(list: Postings<'_>) -> impl Iterator<Item = Slot> + use<'_> {
    list.iter().map_while(|id| u32::try_from(id).ok().map(Slot))
}

/// Shared timestamps.
type Times = Arc<[Timestamp]>;
