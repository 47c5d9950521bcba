//! A part: rows of some generations of a shard that no longer change, as rows or as columns.

use std::sync::Arc;

use firn_codec::{GroupColumns, OneColumn, SeqRange, Slots, merge_columns};
use firn_model::{Error, LogPosition, Pool, Reservation, Result, Slot, TimeRange};
use parking_lot::MutexGuard;

use crate::arena::{Arena, ReadBuffers};
use crate::payload::Local;
use crate::segment::{Segment, SegmentCursor};

/// All visible rows of the generations `first..=last` of one shard.
pub(crate) struct Part {
    /// The generations of arenas that it is made of.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Where its last row stands in the log.
    pub(crate) through: LogPosition,
    pub(crate) seq: SeqRange,
    pub(crate) range: TimeRange,
    pub(crate) row_count: u64,
    pub(crate) form: Form,
}

/// How the rows lie in memory.
pub(crate) enum Form {
    /// As they came in; those before `visible` count.
    Rows { arena: Arc<Arena>, visible: u32 },
    /// As chunks.
    Columns(Segment),
}

impl Part {
    pub(crate) fn is_rows(&self) -> bool {
        matches!(self.form, Form::Rows { .. })
    }

    /// How many arenas it was made of, about.
    pub(crate) fn generation_count(&self) -> u64 {
        self.last - self.first + 1
    }

    /// Whether its chunks have fewer rows than this on average.
    pub(crate) fn has_fewer_rows(&self, rows_per_chunk: u32) -> bool {
        match &self.form {
            Form::Rows { .. } => false,
            Form::Columns(segment) => {
                self.row_count < u64::from(rows_per_chunk) * segment.chunk_count() as u64
            }
        }
    }

    /// Bytes that it holds.
    pub(crate) fn heap_bytes(&self) -> u64 {
        match &self.form {
            Form::Rows { arena, .. } => arena.heap_bytes(),
            Form::Columns(segment) => segment.heap_bytes(),
        }
    }

    /// What is reserved for it.
    pub(crate) fn held(&self) -> MutexGuard<'_, Reservation> {
        match &self.form {
            Form::Rows { arena, .. } => arena.held.lock(),
            Form::Columns(segment) => segment.held.lock(),
        }
    }

    /// Its memory counts for `pool` from now on.
    pub(crate) fn move_to(&self, pool: Pool, empty: Reservation) {
        debug_assert!(empty.bytes() == 0, "a new reservation for {}", pool.name());
        let mut held = self.held();
        let old = std::mem::replace(&mut *held, empty);
        held.merge(old);
    }

    /// Appends the group's values of `slots` in `range`. `near` is where the search before ended, for a part of
    /// columns.
    pub(crate) fn read(
        &self,
        local: Local,
        (slots, range): (Slots<'_>, TimeRange),
        near: &mut Option<SegmentCursor>,
        buffers: &mut ReadBuffers,
        out: &mut Vec<GroupColumns>,
    ) -> Result<()> {
        if !range.overlaps(self.range) {
            return Ok(());
        }
        match &self.form {
            Form::Columns(segment) => {
                let cursor = *near.insert(segment.seek(local, *near)?);
                segment.read(local, cursor, (slots, range), self.seq, out, &mut buffers.touched)
            }
            Form::Rows { arena, visible } => {
                let columns = arena.read(local, *visible, (slots, range), self.seq, buffers)?;
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
        local: Local,
        (slot, range): (Slot, TimeRange),
        near: &mut Option<SegmentCursor>,
        buffers: &mut ReadBuffers,
        out: &mut OneColumn,
    ) -> Result<bool> {
        if !range.overlaps(self.range) {
            return Ok(true);
        }
        match &self.form {
            Form::Columns(segment) => {
                let cursor = *near.insert(segment.seek(local, *near)?);
                segment.append_one(local, cursor, (slot, range), out)
            }
            Form::Rows { arena, visible } => {
                arena.append_one(local, *visible, (slot, range), buffers, out)
            }
        }
    }

    /// Whether a member has a sample in `range`. `buffer` is any column.
    pub(crate) fn has_one(
        &self,
        local: Local,
        (slot, range): (Slot, TimeRange),
        near: &mut Option<SegmentCursor>,
        buffers: &mut ReadBuffers,
        buffer: &mut OneColumn,
    ) -> Result<bool> {
        if !range.overlaps(self.range) {
            return Ok(false);
        }
        match &self.form {
            Form::Columns(segment) => {
                let cursor = *near.insert(segment.seek(local, *near)?);
                segment.has_one(local, cursor, (slot, range), buffer)
            }
            Form::Rows { arena, visible } => {
                buffer.clear();
                arena.append_one(local, *visible, (slot, range), buffers, buffer)?;
                Ok(!buffer.times.is_empty())
            }
        }
    }

    /// The part of `range` in which the group may have values, maybe empty; rows are told apart by group only.
    pub(crate) fn reach(
        &self,
        local: Local,
        range: TimeRange,
        near: &mut Option<SegmentCursor>,
    ) -> Result<TimeRange> {
        let range = range.intersect(self.range);
        if range.is_empty() {
            return Ok(TimeRange::EMPTY);
        }
        match &self.form {
            Form::Columns(segment) => {
                let cursor = *near.insert(segment.seek(local, *near)?);
                Ok(range.intersect(segment.time_range(local, cursor)?))
            }
            Form::Rows { arena, visible } if arena.has_row(local, *visible)? => Ok(range),
            Form::Rows { .. } => Ok(TimeRange::EMPTY),
        }
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
    pub(crate) fn new(parts: impl Iterator<Item = &'a Part>) -> Result<PartWalk<'a>> {
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
    fn new(part: &'a Part) -> Result<PartCursor<'a>> {
        let at = match &part.form {
            Form::Rows { arena, visible } => {
                At::Rows { arena, visible: *visible, next: arena.next_group(0) }
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
