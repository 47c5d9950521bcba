//! A part: rows of some generations of a shard that no longer change, as rows or as columns.

use std::ops::Deref;
use std::sync::Arc;

use firn_codec::{GroupColumns, MemberColumn, SeqRange, Slots, merge_columns};
use firn_model::{Error, LogPosition, Pool, Reservation, Result, Slot, TimeRange};
use parking_lot::Mutex;

use crate::arena::{Arena, ReadBuffers};
use crate::epoch;
use crate::payload::Local;
use crate::segment::{Segment, SegmentCursor};

/// All visible rows of the generations `first..=last` of one shard.
///
/// A part says what its rows are, its [`Memory`] has them; readers lease that.
pub(crate) struct Part {
    /// The generations of arenas that it is made of.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Where its last row stands in the log.
    pub(crate) through: LogPosition,
    pub(crate) seq: SeqRange,
    pub(crate) range: TimeRange,
    pub(crate) row_count: u64,
    /// Of an arena: rows that start before this count.
    pub(crate) visible: u32,
    /// Of columns; 0 for rows.
    pub(crate) chunk_count: usize,
    pub(crate) memory: Arc<Memory>,
}

/// A part in a shard's list, beside what readers ask first: going through the list touches no part that is not wanted.
#[derive(Clone)]
pub(crate) struct Listed {
    range: TimeRange,
    part: Arc<Part>,
}

/// Where the rows of a part lie. Until it is released its size is in the budget, see [`Form::held`].
pub(crate) type Memory = epoch::Memory<Form>;

/// How rows lie in memory.
#[derive(Clone)]
pub(crate) enum Form {
    /// As they came in.
    Rows(Arc<Arena>),
    /// As chunks.
    Columns(Arc<Segment>),
}

/// A part whose memory stays: what jobs work on.
#[derive(Clone)]
pub(crate) struct Pinned {
    pub(crate) part: Arc<Part>,
    pub(crate) form: Form,
}

impl Form {
    /// Bytes that it holds.
    pub(crate) fn heap_bytes(&self) -> u64 {
        match self {
            Form::Rows(arena) => arena.heap_bytes(),
            Form::Columns(segment) => segment.heap_bytes(),
        }
    }

    /// What is reserved for it.
    pub(crate) fn held(&self) -> &Mutex<Reservation> {
        match self {
            Form::Rows(arena) => &arena.held,
            Form::Columns(segment) => segment.held(),
        }
    }

    /// Its memory counts for `pool` from now on.
    pub(crate) fn move_to(&self, pool: Pool, empty: Reservation) {
        debug_assert!(empty.bytes() == 0, "a new reservation for {}", pool.name());
        let mut held = self.held().lock();
        let old = std::mem::replace(&mut *held, empty);
        held.merge(old);
    }
}

impl Part {
    pub(crate) fn is_rows(&self) -> bool {
        self.chunk_count == 0
    }

    /// How many arenas it was made of, about.
    pub(crate) fn generation_count(&self) -> u64 {
        self.last - self.first + 1
    }

    /// Whether it has chunks, with fewer rows than this on average.
    pub(crate) fn has_fewer_rows(&self, rows_per_chunk: u32) -> bool {
        self.row_count < u64::from(rows_per_chunk) * self.chunk_count as u64
    }

    /// Bytes that it holds; only for a part that is in a shard's list.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.memory.content().heap_bytes()
    }

    /// Appends the group's values of `slots` in `range` from `form`, its memory. `near` is where the search before ended, for a part of
    /// columns.
    pub(crate) fn read(
        &self,
        form: &Form,
        local: Local,
        (slots, range): (Slots<'_>, TimeRange),
        near: &mut Option<SegmentCursor>,
        buffers: &mut ReadBuffers,
        out: &mut Vec<GroupColumns>,
    ) -> Result<()> {
        if !range.overlaps(self.range) {
            return Ok(());
        }
        match form {
            Form::Columns(segment) => {
                let cursor = *near.insert(segment.seek(local, *near)?);
                segment.read(local, cursor, (slots, range), self.seq, out, &mut buffers.touched)
            }
            Form::Rows(arena) => {
                let columns = arena.read(local, self.visible, (slots, range), self.seq, buffers)?;
                if !columns.is_empty() {
                    out.push(columns);
                }
                Ok(())
            }
        }
    }

    /// As [`Part::read`] for one member, appended to `out`; `false` if it does not come after what is there.
    pub(crate) fn append_one(
        &self,
        form: &Form,
        local: Local,
        (slot, range): (Slot, TimeRange),
        near: &mut Option<SegmentCursor>,
        buffers: &mut ReadBuffers,
        out: &mut MemberColumn,
    ) -> Result<bool> {
        if !range.overlaps(self.range) {
            return Ok(true);
        }
        match form {
            Form::Columns(segment) => {
                let cursor = *near.insert(segment.seek(local, *near)?);
                segment.append_one(local, cursor, (slot, range), out)
            }
            Form::Rows(arena) => arena.append_one(local, self.visible, (slot, range), buffers, out),
        }
    }

    /// Takes out of `left` the members that have samples in `range`: exactly for rows, to the chunk for columns.
    pub(crate) fn take_present(
        &self,
        form: &Form,
        local: Local,
        range: TimeRange,
        near: &mut Option<SegmentCursor>,
        buffers: &mut ReadBuffers,
        left: &mut Vec<Slot>,
    ) -> Result<()> {
        if !range.overlaps(self.range) {
            return Ok(());
        }
        match form {
            Form::Columns(segment) => {
                let cursor = *near.insert(segment.seek(local, *near)?);
                segment.take_present(local, cursor, range, left)
            }
            Form::Rows(arena) => arena.take_present(local, self.visible, range, buffers, left),
        }
    }

    /// The part of `range` in which the group may have values, maybe empty; rows are told apart by group only.
    pub(crate) fn reach(
        &self,
        form: &Form,
        local: Local,
        range: TimeRange,
        near: &mut Option<SegmentCursor>,
    ) -> Result<TimeRange> {
        let range = range.intersect(self.range);
        if range.is_empty() {
            return Ok(TimeRange::EMPTY);
        }
        match form {
            Form::Columns(segment) => {
                let cursor = *near.insert(segment.seek(local, *near)?);
                Ok(range.intersect(segment.time_range(local, cursor)?))
            }
            Form::Rows(arena) if arena.has_row(local, self.visible)? => Ok(range),
            Form::Rows(_) => Ok(TimeRange::EMPTY),
        }
    }
}

impl Listed {
    pub(crate) fn new(part: Part) -> Listed {
        Listed { range: part.range, part: Arc::new(part) }
    }

    pub(crate) fn range(&self) -> TimeRange {
        self.range
    }

    pub(crate) fn is(&self, part: &Arc<Part>) -> bool {
        Arc::ptr_eq(&self.part, part)
    }

    /// Its memory, which stays; only while it is in a shard's list.
    pub(crate) fn pin(&self) -> Pinned {
        Pinned { part: Arc::clone(&self.part), form: self.memory.content() }
    }
}

impl Deref for Listed {
    type Target = Part;

    fn deref(&self) -> &Part {
        &self.part
    }
}

/// Walks the groups of adjacent parts of one shard, rising, and unites what they have.
pub(crate) struct PartWalk<'a> {
    cursors: Vec<PartCursor<'a>>,
    buffers: ReadBuffers,
    sources: Vec<GroupColumns>,
}

impl<'a> PartWalk<'a> {
    /// `parts` oldest first.
    pub(crate) fn new(parts: impl Iterator<Item = &'a Pinned>) -> Result<PartWalk<'a>> {
        let cursors = parts.map(PartCursor::new).collect::<Result<_>>()?;
        Ok(PartWalk { cursors, buffers: ReadBuffers::default(), sources: Vec::new() })
    }

    /// The group that [`PartWalk::take`] gives next.
    pub(crate) fn peek(&self) -> Option<Local> {
        self.cursors.iter().filter_map(PartCursor::peek).min()
    }

    /// The group of [`PartWalk::peek`] with all its values; they may be none. What the parts have is
    /// given to `hide` before it is united.
    pub(crate) fn take(
        &mut self,
        hide: impl FnOnce(Local, &mut Vec<GroupColumns>),
    ) -> Result<Option<(Local, GroupColumns)>> {
        let Some(local) = self.peek() else { return Ok(None) };
        self.sources.clear();
        for cursor in &mut self.cursors {
            while cursor.peek() == Some(local) {
                let columns = cursor.take(local, &mut self.buffers)?;
                if !columns.is_empty() {
                    self.sources.push(columns);
                }
            }
        }
        hide(local, &mut self.sources);
        let merged = match self.sources.len() {
            1 => self.sources.pop().unwrap_or_default(),
            _ => merge_columns(&self.sources, TimeRange::ALL),
        };
        Ok(Some((local, merged)))
    }
}

struct PartCursor<'a> {
    part: &'a Part,
    at: At<'a>,
}

enum At<'a> {
    Rows { arena: &'a Arena, visible: u32, next: Option<Local> },
    Columns { segment: &'a Segment, cursor: SegmentCursor },
}

impl<'a> PartCursor<'a> {
    fn new(pinned: &'a Pinned) -> Result<PartCursor<'a>> {
        let part = &*pinned.part;
        let at = match &pinned.form {
            Form::Rows(arena) => {
                At::Rows { arena, visible: part.visible, next: arena.next_group(0) }
            }
            Form::Columns(segment) => At::Columns { segment, cursor: segment.first()? },
        };
        Ok(PartCursor { part, at })
    }

    fn peek(&self) -> Option<Local> {
        match &self.at {
            At::Rows { next, .. } => *next,
            At::Columns { segment, cursor } => segment.get(cursor).map(|(local, _)| local),
        }
    }

    /// The columns at `local`, which [`PartCursor::peek`] gave.
    fn take(&mut self, local: Local, buffers: &mut ReadBuffers) -> Result<GroupColumns> {
        let all = (Slots::All, TimeRange::ALL);
        match &mut self.at {
            At::Rows { arena, visible, next } => {
                *next = local.checked_add(1).and_then(|from| arena.next_group(from));
                arena.read(local, *visible, all, self.part.seq, buffers)
            }
            At::Columns { segment, cursor } => {
                let Some((_, chunk)) = segment.get(cursor) else {
                    return Err(Error::internal("a segment's cursor is behind its last group"));
                };
                segment.advance(cursor)?;
                let columns = segment.open(chunk)?.read(all.0, all.1)?;
                Ok(GroupColumns { seq: self.part.seq, ..columns })
            }
        }
    }
}
