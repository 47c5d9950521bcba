//! A part: rows of some generations of a shard that no longer change, as rows or as columns.

use std::ops::Deref;
use std::sync::Arc;

use firn_codec::{
    Chunk, GroupColumns, MemberColumn, RowSizes, SeqRange, Slice, SliceBy, Slots, cut_slices,
    merge_columns,
};
use firn_model::{ColumnBatch, Error, LogPosition, Pool, Reservation, Result, Slot, TimeRange};
use parking_lot::Mutex;

use crate::arena::{Arena, ReadBuffers};
use crate::epoch;
use crate::payload::LocalGroup;
use crate::segment::{Segment, SegmentCursor};

/// All visible rows of the generations `first..=last` of one shard.
///
/// A part describes its rows; its [`PartMemory`], which readers lease, contains them.
pub(crate) struct Part {
    /// The generations of its arenas.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The log position of its last row.
    pub(crate) through: LogPosition,
    pub(crate) seq: SeqRange,
    pub(crate) range: TimeRange,
    pub(crate) row_count: u64,
    /// For an arena: rows that start before this are visible.
    pub(crate) visible: u32,
    /// Number of chunks, or of those that its rows will become.
    pub(crate) chunk_count: usize,
    pub(crate) is_rows: bool,
    pub(crate) memory: Arc<PartMemory>,
}

/// A part in a shard's list, with the fields that readers and maintenance check first. So a scan of
/// the list touches no part that is not needed.
#[derive(Clone)]
pub(crate) struct ListedPart {
    range: TimeRange,
    pub(crate) row_count: u64,
    heap_bytes: u64,
    pub(crate) is_rows: bool,
    part: Arc<Part>,
}

/// The memory of a part's rows. Until it is released, its size is in the budget: see
/// [`PartForm::held`].
pub(crate) type PartMemory = epoch::Memory<PartForm>;

/// The form of rows in memory.
#[derive(Clone)]
pub(crate) enum PartForm {
    /// As appended.
    Rows(Arc<Arena>),
    /// As chunks.
    Columns(Arc<Segment>),
}

/// A part with pinned memory, for jobs.
#[derive(Clone)]
pub(crate) struct PinnedPart {
    pub(crate) part: Arc<Part>,
    pub(crate) form: PartForm,
}

impl PartForm {
    /// Bytes held.
    pub(crate) fn heap_bytes(&self) -> u64 {
        match self {
            PartForm::Rows(arena) => arena.heap_bytes(),
            PartForm::Columns(segment) => segment.heap_bytes(),
        }
    }

    /// Calls `each` with every group in it, visible or not, ascending.
    pub(crate) fn each_group(&self, mut each: impl FnMut(LocalGroup)) -> Result<()> {
        match self {
            PartForm::Rows(arena) => arena.each_group(each),
            PartForm::Columns(segment) => {
                let mut cursor = segment.first()?;
                let mut last = None;
                while let Some((local, _)) = segment.get(&cursor) {
                    if last.replace(local) != Some(local) {
                        each(local);
                    }
                    segment.advance(&mut cursor)?;
                }
            }
        }
        Ok(())
    }

    /// The reservation of the memory.
    pub(crate) fn held(&self) -> &Mutex<Reservation> {
        match self {
            PartForm::Rows(arena) => &arena.held,
            PartForm::Columns(segment) => segment.held(),
        }
    }

    /// Accounts the memory to `pool` from now on.
    pub(crate) fn move_to(&self, pool: Pool, empty: Reservation) {
        debug_assert!(empty.bytes() == 0, "expected an empty reservation for {}", pool.name());
        let mut held = self.held().lock();
        let old = std::mem::replace(&mut *held, empty);
        held.merge(old);
    }
}

impl Part {
    /// The number of arenas that it was made of, about.
    pub(crate) fn generation_count(&self) -> u64 {
        self.last - self.first + 1
    }

    /// Whether its chunks have, or will have, fewer rows than this on average.
    pub(crate) fn has_fewer_rows(&self, rows_per_chunk: u32) -> bool {
        self.row_count < u64::from(rows_per_chunk) * self.chunk_count as u64
    }

    /// Bytes held; only for a part in a shard's list.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.memory.content().heap_bytes()
    }

    /// Appends the group's values of `slots` in `range` from `form`, its memory. `near` is the
    /// position of the last lookup in a part of columns.
    pub(crate) fn read(
        &self,
        form: &PartForm,
        local: LocalGroup,
        (slots, range): (Slots<'_>, TimeRange),
        near: &mut Option<SegmentCursor>,
        buffers: &mut ReadBuffers,
        out: &mut Vec<GroupColumns>,
    ) -> Result<()> {
        if !range.overlaps(self.range) {
            return Ok(());
        }
        match form {
            PartForm::Columns(segment) => {
                let cursor = *near.insert(segment.seek(local, *near)?);
                segment.read(local, cursor, (slots, range), self.seq, out, buffers)
            }
            PartForm::Rows(arena) => {
                let columns = arena.read(local, self.visible, (slots, range), self.seq, buffers)?;
                if !columns.is_empty() {
                    out.push(columns);
                }
                Ok(())
            }
        }
    }

    /// As [`Part::read`] for one member, appended to `out`; `false` if it is not later than the
    /// last sample.
    pub(crate) fn append_one(
        &self,
        form: &PartForm,
        local: LocalGroup,
        (slot, range): (Slot, TimeRange),
        near: &mut Option<SegmentCursor>,
        buffers: &mut ReadBuffers,
        out: &mut MemberColumn,
    ) -> Result<bool> {
        if !range.overlaps(self.range) {
            return Ok(true);
        }
        match form {
            PartForm::Columns(segment) => {
                let cursor = *near.insert(segment.seek(local, *near)?);
                segment.append_one(local, cursor, (slot, range), out, &mut buffers.meter)
            }
            PartForm::Rows(arena) => {
                arena.append_one(local, self.visible, (slot, range), buffers, out)
            }
        }
    }

    /// Removes from `left` the members with samples in `range`: exactly for rows, to the chunk for
    /// columns.
    pub(crate) fn take_present(
        &self,
        form: &PartForm,
        local: LocalGroup,
        range: TimeRange,
        near: &mut Option<SegmentCursor>,
        buffers: &mut ReadBuffers,
        left: &mut Vec<Slot>,
    ) -> Result<()> {
        if !range.overlaps(self.range) {
            return Ok(());
        }
        match form {
            PartForm::Columns(segment) => {
                let cursor = *near.insert(segment.seek(local, *near)?);
                segment.take_present(local, cursor, range, left)
            }
            PartForm::Rows(arena) => arena.take_present(local, self.visible, range, buffers, left),
        }
    }

    /// The part of `range` in which the group may have values, maybe empty. For rows it only
    /// distinguishes groups.
    pub(crate) fn reach(
        &self,
        form: &PartForm,
        local: LocalGroup,
        range: TimeRange,
        near: &mut Option<SegmentCursor>,
    ) -> Result<TimeRange> {
        let range = range.intersect(self.range);
        if range.is_empty() {
            return Ok(TimeRange::EMPTY);
        }
        match form {
            PartForm::Columns(segment) => {
                let cursor = *near.insert(segment.seek(local, *near)?);
                Ok(range.intersect(segment.time_range(local, cursor)?))
            }
            PartForm::Rows(arena) if arena.has_row(local, self.visible) => Ok(range),
            PartForm::Rows(_) => Ok(TimeRange::EMPTY),
        }
    }
}

impl ListedPart {
    pub(crate) fn new(part: Part) -> ListedPart {
        ListedPart {
            range: part.range,
            row_count: part.row_count,
            heap_bytes: part.heap_bytes(),
            is_rows: part.is_rows,
            part: Arc::new(part),
        }
    }

    pub(crate) fn range(&self) -> TimeRange {
        self.range
    }

    /// Bytes held.
    pub(crate) fn heap_bytes(&self) -> u64 {
        debug_assert_eq!(self.heap_bytes, self.part.heap_bytes(), "a part in a list never changes");
        self.heap_bytes
    }

    pub(crate) fn is(&self, part: &Arc<Part>) -> bool {
        Arc::ptr_eq(&self.part, part)
    }

    /// Pins its memory; only while it is in a shard's list.
    pub(crate) fn pin(&self) -> PinnedPart {
        PinnedPart { part: Arc::clone(&self.part), form: self.memory.content() }
    }
}

impl Deref for ListedPart {
    type Target = Part;

    fn deref(&self) -> &Part {
        &self.part
    }
}

/// Walks the groups of adjacent parts of one shard in rising order, and merges their columns. A
/// large group comes in slices, so that a walk needs little memory.
pub(crate) struct PartWalk<'a> {
    cursors: Vec<PartCursor<'a>>,
    by: SliceBy,
    slice_bytes: usize,
    sources: Vec<GroupColumns>,
    lone: MemberColumn,
    /// The large group that is being taken, and its slices that are left, the last one first.
    /// Its cursors are behind it.
    sliced: Option<(LocalGroup, Vec<Slice>)>,
}

/// The values of one group or of a slice of it.
pub(crate) enum WalkedGroup<'w> {
    /// Slot 0 alone, with a value at each timestamp.
    Lone(&'w MemberColumn),
    Columns(GroupColumns),
}

impl<'a> PartWalk<'a> {
    /// `parts` oldest first; for `slice_bytes` see [`crate::HeadOptions::slice_bytes`].
    pub(crate) fn new(
        parts: impl Iterator<Item = &'a PinnedPart>,
        by: SliceBy,
        slice_bytes: usize,
    ) -> Result<PartWalk<'a>> {
        let cursors = parts.map(PartCursor::new).collect::<Result<_>>()?;
        let (sources, lone) = Default::default();
        Ok(PartWalk { cursors, by, slice_bytes, sources, lone, sliced: None })
    }

    /// The group that [`PartWalk::take`] returns next.
    pub(crate) fn peek(&self) -> Option<LocalGroup> {
        match &self.sliced {
            Some((local, _)) => Some(*local),
            None => self.cursors.iter().filter_map(PartCursor::peek).min(),
        }
    }

    /// The group of [`PartWalk::peek`] with all its values or a slice of them, maybe none. Calls
    /// `hide` with the columns of each part before they are merged. `buffers` are any, shared by
    /// walks.
    pub(crate) fn take(
        &mut self,
        buffers: &mut ReadBuffers,
        hide: impl FnOnce(LocalGroup, &mut Vec<GroupColumns>),
    ) -> Result<Option<(LocalGroup, GroupColumns)>> {
        let Some(local) = self.peek() else { return Ok(None) };
        self.read(local, false, buffers)?;
        hide(local, &mut self.sources);
        Ok(Some((local, self.merge())))
    }

    /// As [`PartWalk::take`]. Nothing is allocated for a lone series whose parts follow each other.
    pub(crate) fn take_lent(
        &mut self,
        buffers: &mut ReadBuffers,
    ) -> Result<Option<(LocalGroup, WalkedGroup<'_>)>> {
        let Some(local) = self.peek() else { return Ok(None) };
        self.read(local, true, buffers)?;
        let is_lone = self.sources.is_empty() && !self.lone.times.is_empty();
        let group = match is_lone {
            true => WalkedGroup::Lone(&self.lone),
            false => WalkedGroup::Columns(self.merge()),
        };
        Ok(Some((local, group)))
    }

    /// Reads `local`, or its next slice, to `sources`. A lone series whose parts follow each other
    /// is read to `lone`, if `lends`.
    fn read(&mut self, local: LocalGroup, lends: bool, buffers: &mut ReadBuffers) -> Result<()> {
        self.sources.clear();
        self.lone.clear();
        if self.sliced.is_none() && !self.read_whole(local, lends, buffers)? {
            self.sources.clear();
            self.lone.clear();
            self.sliced = Some((local, self.cut(local, buffers)?));
        }
        let Some((_, left)) = &mut self.sliced else { return Ok(()) };
        let slice = left.pop().unwrap_or(Slice::WHOLE);
        if left.is_empty() {
            self.sliced = None;
        }
        for cursor in &self.cursors {
            cursor.read_slice(local, &slice, buffers, &mut self.sources)?;
        }
        Ok(())
    }

    /// Returns `false` if the group is too large: then its columns are undefined, and some cursors
    /// are behind it.
    fn read_whole(
        &mut self,
        local: LocalGroup,
        lends: bool,
        buffers: &mut ReadBuffers,
    ) -> Result<bool> {
        // 32 rows of 4,096 members are not worth a cut, for which rows are decoded twice more.
        let mut left = 3 * self.slice_bytes;
        for cursor in &mut self.cursors {
            while cursor.peek() == Some(local) {
                let lone = (lends && self.sources.is_empty()).then_some(&mut self.lone);
                let Some(columns) = cursor.take(local, lone, &mut left, buffers)? else {
                    return Ok(false);
                };
                if columns.is_empty() {
                    continue;
                }
                if !self.lone.times.is_empty() {
                    let times = self.lone.times.as_slice().into();
                    let batch = ColumnBatch::of_one(Slot(0), times, self.lone.values.clone());
                    self.sources.push(GroupColumns { batch, seq: cursor.part.seq });
                    self.lone.clear();
                }
                self.sources.push(columns);
            }
        }
        Ok(true)
    }

    /// The slices of `local`, the last one first. Moves all cursors behind it.
    fn cut(&mut self, local: LocalGroup, buffers: &mut ReadBuffers) -> Result<Vec<Slice>> {
        let (mut chunks, mut rows) = (Vec::new(), RowSizes::new(self.slice_bytes));
        for cursor in &mut self.cursors {
            cursor.skip(local, &mut chunks, &mut rows, buffers)?;
        }
        let mut slices = cut_slices(&chunks, &rows, self.slice_bytes, self.by)?;
        slices.reverse();
        Ok(slices)
    }

    /// The columns of `sources`, which are removed: a flush has a walk for each shard.
    fn merge(&mut self) -> GroupColumns {
        let columns = match self.sources.len() {
            1 => self.sources.pop().unwrap_or_default(),
            _ => merge_columns(&self.sources, TimeRange::ALL),
        };
        self.sources.clear();
        columns
    }
}

struct PartCursor<'a> {
    part: &'a Part,
    form: &'a PartForm,
    at: CursorForm<'a>,
}

enum CursorForm<'a> {
    Rows { arena: &'a Arena, visible: u32, next: Option<LocalGroup> },
    Columns { segment: &'a Segment, cursor: SegmentCursor },
}

impl<'a> PartCursor<'a> {
    fn new(pinned: &'a PinnedPart) -> Result<PartCursor<'a>> {
        let part = &*pinned.part;
        let at = match &pinned.form {
            PartForm::Rows(arena) => {
                CursorForm::Rows { arena, visible: part.visible, next: arena.next_group(0) }
            }
            PartForm::Columns(segment) => CursorForm::Columns { segment, cursor: segment.first()? },
        };
        Ok(PartCursor { part, form: &pinned.form, at })
    }

    fn peek(&self) -> Option<LocalGroup> {
        match &self.at {
            CursorForm::Rows { next, .. } => *next,
            CursorForm::Columns { segment, cursor } => segment.get(cursor).map(|(local, _)| local),
        }
    }

    /// The values of `local`, which is the group of [`PartCursor::peek`]. Those of a lone series
    /// are appended to `lone`, if it is passed and they are later than its samples; then the result
    /// is empty. Reduces `left`, the number of bytes that may still be decoded, by the decoded
    /// size; `None` if it is larger.
    fn take(
        &mut self,
        local: LocalGroup,
        mut lone: Option<&mut MemberColumn>,
        left: &mut usize,
        buffers: &mut ReadBuffers,
    ) -> Result<Option<GroupColumns>> {
        let before = lone.as_ref().map_or(0, |lone| lone.times.len());
        let columns = match &mut self.at {
            CursorForm::Rows { arena, visible, next } => {
                let (seq, lone) = (self.part.seq, lone.as_deref_mut());
                let read = arena.read_all(local, *visible, seq, lone, left, buffers)?;
                let Some(columns) = read else { return Ok(None) };
                *next = local.checked_add(1).and_then(|from| arena.next_group(from));
                columns
            }
            CursorForm::Columns { segment, cursor } => {
                let Some((_, chunk)) = segment.get(cursor) else {
                    return Err(Error::internal(
                        "memory: the cursor of a segment is behind its last group",
                    ));
                };
                let chunk = segment.open(chunk)?;
                let Some(rest) = left.checked_sub(chunk.decoded_bytes()) else { return Ok(None) };
                *left = rest;
                segment.advance(cursor)?;
                let is_appended = match lone.as_deref_mut() {
                    Some(lone) if chunk.is_lone() => {
                        chunk.append_one(Slot(0), TimeRange::ALL, lone)?
                    }
                    _ => false,
                };
                match is_appended {
                    true => GroupColumns::default(),
                    false => chunk.read(Slots::All, TimeRange::ALL)?,
                }
            }
        };
        let appended = lone.and_then(|lone| lone.times.get(before..)).unwrap_or_default();
        self.check_range(match appended {
            [] => columns.time_range(),
            [only] => TimeRange::at(*only),
            [first, .., last] => TimeRange::new(*first, *last),
        })?;
        Ok(Some(GroupColumns { seq: self.part.seq, ..columns }))
    }

    /// Moves behind `local`, and adds all its chunks to `chunks` and the sizes of its rows to
    /// `rows`.
    fn skip(
        &mut self,
        local: LocalGroup,
        chunks: &mut Vec<Chunk<'a>>,
        rows: &mut RowSizes,
        buffers: &mut ReadBuffers,
    ) -> Result<()> {
        match &mut self.at {
            CursorForm::Rows { arena, visible, next } => {
                // Rows of the group may be behind the cursor already.
                arena.add_sizes(local, *visible, rows, buffers)?;
                if *next == Some(local) {
                    *next = local.checked_add(1).and_then(|from| arena.next_group(from));
                }
            }
            CursorForm::Columns { segment, cursor } => {
                // A chunk of the group may be behind the cursor already.
                let segment: &'a Segment = segment;
                *cursor = segment.seek(local, None)?;
                while let Some((at, chunk)) = segment.get(cursor)
                    && at == local
                {
                    chunks.push(segment.open(chunk)?);
                    segment.advance(cursor)?;
                }
            }
        }
        Ok(())
    }

    /// Appends the values of `local` in `slice` to `out`.
    fn read_slice(
        &self,
        local: LocalGroup,
        slice: &Slice,
        buffers: &mut ReadBuffers,
        out: &mut Vec<GroupColumns>,
    ) -> Result<()> {
        let before = out.len();
        self.part.read(self.form, local, (slice.slots(), slice.range), &mut None, buffers, out)?;
        out.iter().skip(before).try_for_each(|columns| self.check_range(columns.time_range()))
    }

    /// The walk feeds tables: a row outside the range would be in no query's reach.
    fn check_range(&self, range: TimeRange) -> Result<()> {
        if self.part.range.intersect(range) == range {
            return Ok(());
        }
        let what = format!(
            "columns at {range:?} are outside the range of their part, {:?}",
            self.part.range
        );
        Err(Error::corrupt("memory", 0, what))
    }
}
