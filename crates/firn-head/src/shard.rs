//! Shard: one lock, one growing arena, the groups that hash to it.
//!
//! Rows are encoded, appended to the log, staged and published. Staged rows are in the arena behind
//! the visible mark; publishing moves the mark. Rows that no longer change form a part. Each change
//! replaces the whole list of parts, so a reader with the old list is not disturbed.

use std::collections::VecDeque;
use std::sync::Arc;

use firn_codec::SeqRange;
use firn_model::{
    Budget, CommitSeq, Error, LogPosition, Pool, Reservation, Result, ShardBits, ShardId,
    ShardRows, TimeRange,
};

use crate::arena::{Arena, NewRow};
use crate::complete::CompleteSince;
use crate::encoder::Encoder;
use crate::epoch::Epochs;
use crate::options::{ConvertOptions, HeadOptions};
use crate::part::{ListedPart, Part, PartForm, PartMemory};
use crate::payload::Payload;
use crate::pool::BlockPool;
use crate::replay::ReplayedRows;
use crate::snapshot::ShardView;

/// Shards that start together, at the beginning or after a flush, fill up in turn: a shard's first
/// arena is full at one to eight eighths. So active rows take half of their limit on average, and
/// conversions are spread out.
const EIGHTHS: u32 = 8;
/// As [`ConvertOptions::arena_bytes_min`], for rows without changes, which take next to no bytes: a
/// job that cuts a group of an arena decodes all its rows for each slice.
const ARENA_VALUES_MIN: u64 = 1 << 18;
/// Offsets in an arena have 32 bits; a payload and its headers fit behind this.
const ARENA_BYTES_MAX: usize = 3 << 30;

/// The state of one shard, behind its lock.
pub(crate) struct Shard {
    pub(crate) id: ShardId,
    pub(crate) budget: Budget,
    pub(crate) bits: ShardBits,
    pub(crate) options: HeadOptions,
    pub(crate) parts: PartList,
    /// Arenas with rows that may still become visible, oldest first; the last one grows.
    open: VecDeque<OpenArena>,
    /// Appended to the log, not published; in order of position.
    staged: VecDeque<StagedRows>,
    /// Rows of undecided transactions, each in an arena of its own.
    apart: Vec<TransactionRows>,
    /// The log position of the last row of the shard's stream.
    appended_through: LogPosition,
    encoder: Encoder,
    /// The log segment of the replay.
    replay_segment: Option<u64>,
    pub(crate) complete: CompleteSince,
    pub(crate) epochs: Arc<Epochs<PartForm>>,
    /// The memory of columns.
    pub(crate) blocks: Arc<BlockPool>,
    scratch: Vec<u8>,
}

/// A shard's parts, oldest first; the first `hot_count` are flushed.
pub(crate) struct PartList {
    pub(crate) list: Arc<Vec<ListedPart>>,
    pub(crate) hot_count: usize,
    /// The last generation of the flush that was planned last.
    pub(crate) flush_last: u64,
    /// The log position of the last flushed row.
    pub(crate) flushed_through: LogPosition,
    /// Shared with the conversion in progress, of which there is at most one.
    pub(crate) converting: Arc<()>,
}

/// An arena and its visible range.
pub(crate) struct OpenArena {
    generation: u64,
    pub(crate) arena: Arc<Arena>,
    memory: Arc<PartMemory>,
    end: u32,
    group_count: u64,
    /// Members of the groups with a row here.
    series_count: u64,
    value_count: u64,
    /// The series of the previous arena, or of the one before it if that was sealed before it was
    /// full.
    series_count_before: u64,
    /// The arena is full at this many eighths of the usual points and bytes per series.
    full_eighths: u32,
    staged_count: usize,
    pub(crate) seen: VisibleRows,
}

/// The visible rows of an arena.
#[derive(Clone, Copy)]
pub(crate) struct VisibleRows {
    /// Rows that start before this are visible.
    pub(crate) visible: u32,
    pub(crate) seq: SeqRange,
    pub(crate) range: TimeRange,
    pub(crate) row_count: u64,
    pub(crate) through: LogPosition,
}

/// The rows of one commit before they are visible.
struct StagedRows {
    position: LogPosition,
    /// The log segment of the rows.
    segment: u64,
    generation: u64,
    end: u32,
    seq: CommitSeq,
    range: TimeRange,
    row_count: u64,
}

/// The rows of a transaction in this shard. They are not ordered against the shard's stream. They
/// have an arena of their own, so they do not delay the rows after them.
struct TransactionRows {
    seq: CommitSeq,
    generation: u64,
    range: TimeRange,
    row_count: u64,
}

impl Shard {
    pub(crate) fn new(
        id: ShardId,
        bits: ShardBits,
        options: HeadOptions,
        budget: Budget,
        epochs: Arc<Epochs<PartForm>>,
        blocks: Arc<BlockPool>,
    ) -> Shard {
        let mut shard = Shard {
            id,
            bits,
            options,
            parts: PartList::new(),
            open: VecDeque::from([OpenArena::new(1, 0, &budget, &epochs)]),
            staged: VecDeque::new(),
            apart: Vec::new(),
            appended_through: LogPosition(0),
            encoder: Encoder::new(budget.empty(Pool::Head)),
            replay_segment: None,
            complete: CompleteSince::default(),
            scratch: Vec::new(),
            epochs,
            blocks,
            budget,
        };
        shard.set_turn();
        shard.hold(None);
        shard
    }

    /// See [`EIGHTHS`].
    fn set_turn(&mut self) {
        let turn = u32::from(self.id.0) % EIGHTHS + 1;
        self.active().full_eighths = turn;
    }

    /// See [`crate::ShardWriter::encode`].
    pub(crate) fn encode(&mut self, seq: CommitSeq, rows: ShardRows<'_>, segment: u64) -> &[u8] {
        if !self.encoder.is_in(segment) {
            // An arena's staged rows are all in one log segment, so the loss of a segment cuts each
            // arena at one offset only.
            if !self.staged.is_empty() {
                self.seal();
            }
            self.encoder.enter(segment);
        }
        if self.open.back().is_some_and(|active| active.is_full(&self.options)) {
            self.seal();
        }
        self.encoder.encode(seq, rows, self.bits)
    }

    /// See [`crate::ShardWriter::stage`].
    pub(crate) fn stage(&mut self, position: LogPosition, given: &mut Reservation) {
        let (pending, bytes) = self.encoder.take_pending().expect("stage follows encode");
        debug_assert!(
            self.staged.back().is_none_or(|last| last.position < position),
            "log positions of a shard must rise"
        );
        let payload = Payload::open(&bytes).expect("the payload was encoded here");
        let rows = self.append(payload, false).expect("the payload was encoded here");
        let active = self.active();
        active.series_count += pending.series_count;
        active.value_count += pending.value_count;
        debug_assert!(rows.refused_count == 0, "a difference was encoded without its base");
        let range = payload.range;
        self.encoder.put_buffer(bytes);
        let active = self.active();
        active.staged_count += 1;
        let staged = StagedRows {
            position,
            segment: pending.segment,
            generation: active.generation,
            end: active.end,
            seq: pending.seq,
            range,
            row_count: rows.row_count,
        };
        self.staged.push_back(staged);
        self.appended_through = position;
        self.hold(Some(given));
    }

    /// See [`crate::ShardWriter::stage_transaction`].
    pub(crate) fn stage_transaction(
        &mut self,
        seq: CommitSeq,
        bytes: &[u8],
        given: &mut Reservation,
    ) {
        let apart = self.append_transaction(seq, bytes).expect("the payload was encoded here");
        self.active().staged_count += 1;
        self.apart.push(apart);
        self.hold(Some(given));
        self.seal();
    }

    /// Appends a transaction's rows to a new arena, which becomes the present one.
    fn append_transaction(&mut self, seq: CommitSeq, bytes: &[u8]) -> Result<TransactionRows> {
        self.seal();
        let payload = Payload::open(bytes)?;
        let rows = self.append(payload, false)?;
        let active = self.active();
        active.series_count = active.group_count;
        active.value_count = rows.row_count;
        let generation = active.generation;
        Ok(TransactionRows { seq, generation, range: payload.range, row_count: rows.row_count })
    }

    fn show_transaction(&mut self, apart: &TransactionRows) {
        self.complete.begin(apart.seq);
        let position = self.appended_through;
        if let Some(open) = find(&mut self.open, apart.generation) {
            open.show(open.end, apart.seq, apart.range, apart.row_count, position);
        }
    }

    /// See [`crate::Head::decide_transaction`].
    pub(crate) fn decide_transaction(&mut self, seq: CommitSeq, is_shown: bool) {
        let Some(idx) = self.apart.iter().position(|apart| apart.seq == seq) else { return };
        let apart = self.apart.remove(idx);
        if let Some(open) = find(&mut self.open, apart.generation) {
            open.staged_count -= 1;
        }
        if is_shown {
            self.show_transaction(&apart);
        }
        self.settle();
    }

    /// See [`crate::Head::replay_transaction`].
    pub(crate) fn replay_transaction(&mut self, seq: CommitSeq, bytes: &[u8]) -> Result<u64> {
        let appended = self.append_transaction(seq, bytes);
        if let Ok(apart) = &appended {
            self.show_transaction(apart);
        }
        self.hold(None);
        self.seal();
        self.settle();
        let context = || format!("rows of a transaction in shard {}", self.id.0);
        appended.map(|apart| apart.row_count).map_err(|e| e.context(context()))
    }

    /// See [`crate::ShardWriter::abandon`].
    pub(crate) fn abandon(&mut self) {
        self.encoder.restart();
        self.hold(None);
    }

    /// See [`crate::Head::publish`].
    pub(crate) fn publish(&mut self, through: LogPosition) {
        let Ok(last_idx) = self.staged.binary_search_by_key(&through, |staged| staged.position)
        else {
            return;
        };
        // Rows of an older log segment may be lost: only their own writers know. They are in other
        // arenas, so these rows can be shown without them.
        let segment = self.staged[last_idx].segment;
        let first_idx = self.staged.partition_point(|staged| staged.segment < segment);
        for staged in self.staged.drain(first_idx..=last_idx) {
            self.complete.begin(staged.seq);
            if let Some(open) = find(&mut self.open, staged.generation) {
                open.staged_count -= 1;
                open.show(staged.end, staged.seq, staged.range, staged.row_count, staged.position);
            }
        }
        self.settle();
    }

    /// Drops staged rows that are in `segment` or an older one and behind `durable`.
    pub(crate) fn rollback(&mut self, segment: u64, durable: LogPosition) {
        let active_generation = self.active().generation;
        let mut cuts_active = false;
        let open = &mut self.open;
        self.staged.retain(|staged| {
            let kept = staged.segment > segment || staged.position <= durable;
            if !kept && let Some(open) = find(open, staged.generation) {
                open.staged_count -= 1;
                cuts_active |= open.generation == active_generation;
            }
            kept
        });
        // The dropped bytes stay behind the arena's last visible row, where no reader looks. They
        // must never be overwritten: a reader may be stepping back over them.
        if cuts_active {
            self.seal();
        }
        self.settle();
    }

    /// See [`crate::Head::replay`].
    pub(crate) fn replay(
        &mut self,
        seq: CommitSeq,
        bytes: &[u8],
        position: LogPosition,
        segment: u64,
        apply: bool,
    ) -> Result<ReplayedRows> {
        let payload = match Payload::open(bytes) {
            Ok(payload) => payload,
            Err(error) => return Err(self.refuse(error, position)),
        };
        // Only there is every group's next row whole. The writer sealed arenas at the same rows: it
        // knew the number of their values.
        let is_new_segment = self.replay_segment.replace(segment) != Some(segment);
        let is_full = || self.open.back().is_some_and(|active| active.is_full(&self.options));
        if payload.is_fresh || is_new_segment && is_full() {
            self.seal();
        }
        let rows = match self.append(payload, !apply) {
            Ok(rows) => ReplayedRows { range: payload.range, ..rows },
            Err(error) => return Err(self.refuse(error, position)),
        };
        // Rows are not decoded here. They count as if each had one member.
        let active = self.active();
        active.series_count = active.series_count.max(active.group_count);
        active.value_count += rows.row_count;
        if apply && rows.row_count > 0 {
            self.complete.begin(seq);
            let active = self.active();
            let end = active.end;
            active.show(end, seq, rows.range, rows.row_count, position);
        }
        self.appended_through = position;
        self.hold(None);
        self.settle();
        Ok(rows)
    }

    /// The appended rows of a malformed payload stay behind the visible mark of a sealed arena.
    fn refuse(&mut self, error: Error, position: LogPosition) -> Error {
        self.seal();
        self.settle();
        error.context(format!("rows of shard {} at {position:?}", self.id.0))
    }

    /// Seals the present arena. Rows that are staged in it may still become visible.
    pub(crate) fn seal(&mut self) {
        if self.active().end == 0 {
            return;
        }
        let generation = self.active().generation + 1;
        self.open_arena(generation);
    }

    /// Seals the present arena if it should become columns.
    pub(crate) fn seal_if_full(&mut self) {
        if self.open.back().is_some_and(|active| active.is_full(&self.options)) {
            self.seal();
            self.settle();
        }
    }

    /// See [`crate::ShardWriter::split_parts`]. The next arena skips one generation, and parts are
    /// never merged over such a gap.
    pub(crate) fn split_parts(&mut self) {
        let generation = self.active().generation;
        if self.active().end > 0 {
            self.open_arena(generation + 2);
            self.settle();
        } else {
            self.active().generation = generation + 1;
        }
    }

    fn open_arena(&mut self, generation: u64) {
        // An arena that a flush or a transaction sealed early does not reveal the number of series.
        let series_count =
            self.open.back().map_or(0, |active| match active.is_full(&self.options) {
                true => active.series_count,
                false => active.series_count.max(active.series_count_before),
            });
        let arena = OpenArena::new(generation, series_count, &self.budget, &self.epochs);
        self.open.push_back(arena);
        self.encoder.enter_arena();
        self.hold(None);
    }

    /// Seals, for a flush. Returns the position that must be durable and published first.
    pub(crate) fn seal_for_flush(&mut self) -> Option<LogPosition> {
        self.seal();
        self.set_turn();
        self.settle();
        self.staged.back().map(|staged| staged.position)
    }

    /// The oldest commit of a visible row, flushed rows included.
    pub(crate) fn oldest(&self) -> Option<CommitSeq> {
        let parts = self.parts.list.iter().map(|part| part.seq.min);
        let open = self.open.iter().filter(|open| open.seen.visible > 0);
        parts.chain(open.map(|open| open.seen.seq.min)).min()
    }

    /// The log position of the oldest row that is neither published nor rolled back.
    pub(crate) fn undecided(&self) -> Option<LogPosition> {
        self.staged.front().map(|staged| staged.position)
    }

    /// The visible rows now, as the shard's `version`.
    pub(crate) fn view(&self, version: u64) -> ShardView {
        let shown = |open: &&OpenArena| open.seen.visible > 0;
        ShardView {
            version,
            parts: Arc::clone(&self.parts.list),
            open: self.open.iter().filter(shown).map(OpenArena::part).collect(),
            complete: self.complete.clone(),
        }
    }

    /// Bytes of arenas that grow or wait for rows to be published, and the number of their visible
    /// rows.
    pub(crate) fn open_usage(&self) -> (u64, u64) {
        self.open.iter().fold((0, 0), |(bytes, rows), open| {
            (bytes + open.arena.heap_bytes(), rows + open.seen.row_count)
        })
    }

    /// Bytes of encoder states and buffers.
    pub(crate) fn state_bytes(&self) -> u64 {
        self.encoder.heap_bytes()
    }

    fn active(&mut self) -> &mut OpenArena {
        self.open.back_mut().expect("a shard always has an arena that grows")
    }

    /// Appends a payload's rows behind all others. Refuses differences without their base.
    fn append(&mut self, payload: Payload<'_>, hidden: bool) -> Result<ReplayedRows> {
        let active = self.open.back_mut().expect("a shard always has an arena that grows");
        let mut report = ReplayedRows::default();
        let TimeRange { start, end } = payload.range;
        let ts = (start == end).then_some(start);
        for row in payload.rows() {
            let row = row?;
            let is_first = !active.arena.has_group(row.local);
            if is_first && !row.whole {
                report.refused_count += 1;
                continue;
            }
            if active.end as usize + row.bytes.len() > ARENA_BYTES_MAX {
                return Err(Error::too_large(format!(
                    "an arena exceeds {ARENA_BYTES_MAX} bytes; use smaller log segments"
                )));
            }
            let new = NewRow { local: row.local, ts, bytes: row.bytes, hidden };
            active.end = active.arena.append(active.end, new, &mut self.scratch);
            active.group_count += u64::from(is_first);
            report.row_count += 1;
        }
        Ok(report)
    }

    /// Adjusts the reservations to the held bytes: first from `given`, then from the budget, even
    /// over its limit.
    fn hold(&mut self, mut given: Option<&mut Reservation>) {
        let arena = &self.open.back().expect("a shard always has an arena that grows").arena;
        hold(&mut arena.held.lock(), arena.heap_bytes(), given.as_deref_mut());
        let state_bytes = self.encoder.heap_bytes();
        hold(&mut self.encoder.held, state_bytes, given);
    }

    /// Turns sealed arenas whose rows are all decided into parts.
    fn settle(&mut self) {
        while self.open.len() > 1 && self.open.front().is_some_and(|open| open.staged_count == 0) {
            let Some(open) = self.open.pop_front() else { break };
            if open.seen.visible > 0 {
                self.parts.push(open.part());
            }
        }
    }
}

impl PartList {
    fn new() -> PartList {
        PartList {
            list: Arc::default(),
            hot_count: 0,
            flush_last: 0,
            flushed_through: LogPosition(0),
            converting: Arc::default(),
        }
    }

    fn push(&mut self, part: Part) {
        Arc::make_mut(&mut self.list).push(ListedPart::new(part));
    }

    /// Unflushed parts, oldest first.
    pub(crate) fn unflushed(&self) -> &[ListedPart] {
        &self.list[self.hot_count..]
    }

    /// How many sealed arenas wait for conversion.
    pub(crate) fn waiting_count(&self) -> usize {
        self.unflushed().iter().filter(|part| part.is_rows).count()
    }

    /// Flushed parts, oldest first.
    pub(crate) fn hot(&self) -> &[ListedPart] {
        &self.list[..self.hot_count]
    }
}

impl OpenArena {
    fn new(
        generation: u64,
        series_count_before: u64,
        budget: &Budget,
        epochs: &Epochs<PartForm>,
    ) -> OpenArena {
        let arena = Arc::new(Arena::new(budget.empty(Pool::Head)));
        let memory = Arc::new(PartMemory::new(PartForm::Rows(Arc::clone(&arena)), epochs.now()));
        OpenArena {
            generation,
            arena,
            memory,
            end: 0,
            group_count: 0,
            series_count: 0,
            value_count: 0,
            series_count_before,
            full_eighths: EIGHTHS,
            staged_count: 0,
            seen: VisibleRows {
                visible: 0,
                seq: SeqRange::default(),
                range: TimeRange::EMPTY,
                row_count: 0,
                through: LogPosition(0),
            },
        }
    }

    /// Whether the arena should become columns.
    ///
    /// Source: ByteSeries, section 3.3 with Algorithm 1; see [`crate::ConvertOptions`].
    fn is_full(&self, options: &HeadOptions) -> bool {
        let end = self.end as usize;
        if end == 0 {
            return false;
        }
        // A row that comes in pieces is one row, so values are counted instead of pieces.
        let is_large = |bytes: usize| end >= bytes;
        let each = |of_one: u64| self.series_count.saturating_mul(of_one);
        let has_rows = |rows: u32| self.value_count >= each(rows.into());
        let part_of = |whole: u64| whole.saturating_mul(u64::from(self.full_eighths)).div_ceil(8);
        let ConvertOptions { arena_bytes_max, sparse_arena_times, .. } = options.convert;
        if is_large(arena_bytes_max.saturating_mul(sparse_arena_times).min(ARENA_BYTES_MAX / 2)) {
            return true;
        }
        if is_large(arena_bytes_max) && has_rows(options.convert.rows_per_group_min) {
            return true;
        }
        let share = 100 * self.series_count
            >= options.convert.series_share_percent_min * self.series_count_before;
        let is_heavy = end as u64 >= part_of(each(options.convert.bytes_per_series_max as u64));
        let is_long = self.value_count >= part_of(each(options.convert.rows_per_group_max.into()));
        let query_bytes_max = u64::from(self.end) * u64::from(options.convert.query_reads_max);
        let is_queried = has_rows(options.convert.rows_per_group_min)
            && self.arena.query_bytes() >= query_bytes_max;
        let has_many = self.value_count >= ARENA_VALUES_MIN;
        (share || has_many || is_large(options.convert.arena_bytes_min))
            && (is_heavy || is_long || is_queried)
    }

    /// Makes the rows before `end` visible.
    fn show(
        &mut self,
        end: u32,
        seq: CommitSeq,
        range: TimeRange,
        row_count: u64,
        position: LogPosition,
    ) {
        let seq = SeqRange::at(seq);
        let seen = &mut self.seen;
        seen.seq = if seen.visible == 0 { seq } else { seen.seq.union(seq) };
        seen.visible = end;
        seen.range = seen.range.union(range);
        seen.row_count += row_count;
        seen.through = position;
    }

    /// The rows that are visible now.
    fn part(&self) -> Part {
        Part {
            first: self.generation,
            last: self.generation,
            through: self.seen.through,
            seq: self.seen.seq,
            range: self.seen.range,
            row_count: self.seen.row_count,
            visible: self.seen.visible,
            chunk_count: self.group_count as usize,
            is_rows: true,
            memory: Arc::clone(&self.memory),
        }
    }
}

fn find(open: &mut VecDeque<OpenArena>, generation: u64) -> Option<&mut OpenArena> {
    open.iter_mut().find(|open| open.generation == generation)
}

/// Adjusts `held` to `need` bytes, from `given` as far as it lasts. Usually that suffices, and no
/// memory that threads share is touched.
pub(crate) fn hold(held: &mut Reservation, need: u64, given: Option<&mut Reservation>) {
    let have = held.bytes();
    if need <= have {
        held.shrink(have - need);
        return;
    }
    if let Some(given) = given {
        held.move_from(given, need - have);
    }
    held.take(need - held.bytes());
}
