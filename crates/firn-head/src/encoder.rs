//! Encodes the rows of one commit as a payload: a whole row where a group has no row under the
//! present stamp, otherwise a difference from the group's last row.

use firn_codec::{RowState, encode_row};
use firn_model::{CommitSeq, Reservation, ShardBits, ShardRows, TimeRange};

use crate::payload::{LocalGroup, encode_header, encode_payload_row};
use crate::states::GroupStates;

/// Buffers above this are released when an arena is sealed.
const BUFFER_BYTES_KEPT: usize = 64 << 10;

/// Encodes rows that need no earlier rows: each group's first row is whole. So the payload can be
/// encoded before the shard is locked, and decoded without the rest of the log.
pub fn encode_standalone(rows: ShardRows<'_>, bits: ShardBits) -> Vec<u8> {
    let range = rows.cells().iter().fold(TimeRange::EMPTY, |range, cell| range.extend(cell.ts));
    let (mut payload, mut row) = (Vec::new(), Vec::new());
    encode_header(range, true, &mut payload);
    let mut state = RowState::default();
    let mut before: Option<LocalGroup> = None;
    for piece in rows.pieces() {
        let local = LocalGroup::try_from(bits.local(piece.group)).expect("groups are dense");
        let is_first = before != Some(local);
        if is_first {
            state = RowState::default();
        }
        row.clear();
        encode_row(&mut state, is_first, piece.ts, piece.cells, &mut row);
        encode_payload_row(local - before.unwrap_or(0), is_first, &row, &mut payload);
        before = Some(local);
    }
    payload
}

/// One shard's encoder.
///
/// Every event that rules out differences (a new log segment, a new arena, an abandoned payload)
/// changes the stamp. That makes every group's next row whole without touching a group.
pub(crate) struct Encoder {
    states: GroupStates,
    /// The reservation of states and buffers.
    pub(crate) held: Reservation,
    /// Never 0: stamp 0 marks a group that was never written.
    stamp: u32,
    /// The stamp when the present arena was opened.
    arena_stamp: u32,
    /// The stamp of the last payload in the log.
    logged_stamp: u32,
    /// The log segment of the payloads.
    segment: Option<u64>,
    payload: Vec<u8>,
    row: Vec<u8>,
    pending: Option<PendingPayload>,
}

/// A payload that is encoded and neither staged nor abandoned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingPayload {
    pub(crate) seq: CommitSeq,
    pub(crate) segment: u64,
    /// Members that the arena did not have yet: those of new groups, and new members of other
    /// groups.
    pub(crate) series_count: u64,
    /// Number of values.
    pub(crate) value_count: u64,
}

impl Encoder {
    pub(crate) fn new(held: Reservation) -> Encoder {
        Encoder {
            states: GroupStates::default(),
            held,
            stamp: 1,
            arena_stamp: 1,
            logged_stamp: 0,
            segment: None,
            payload: Vec::new(),
            row: Vec::new(),
            pending: None,
        }
    }

    /// Whether payloads are encoded for `segment` now.
    pub(crate) fn is_in(&self, segment: u64) -> bool {
        self.segment == Some(segment)
    }

    /// Encodes payloads for `segment` from now on. Each group's first row there is whole.
    pub(crate) fn enter(&mut self, segment: u64) {
        self.segment = Some(segment);
        self.restart();
    }

    /// Makes each group's next row whole.
    pub(crate) fn restart(&mut self) {
        self.pending = None;
        self.stamp += 1;
    }

    /// A new arena was opened: each group's next row is whole, and groups without a row in the
    /// previous arena are forgotten.
    pub(crate) fn enter_arena(&mut self) {
        self.restart();
        self.states.forget_before(self.arena_stamp);
        self.arena_stamp = self.stamp;
        self.payload.shrink_to(BUFFER_BYTES_KEPT);
    }

    /// Encodes `rows` of commit `seq`. A payload that is still pending counts as abandoned.
    pub(crate) fn encode(&mut self, seq: CommitSeq, rows: ShardRows<'_>, bits: ShardBits) -> &[u8] {
        if self.pending.is_some() {
            self.restart();
        }
        let segment = self.segment.expect("a log segment was entered before rows are encoded");
        let is_fresh = self.stamp != self.logged_stamp;
        let Encoder { states, stamp, arena_stamp, payload, row, .. } = self;
        let cells = rows.cells();
        payload.clear();
        let range = cells.iter().fold(TimeRange::EMPTY, |range, cell| range.extend(cell.ts));
        encode_header(range, is_fresh, payload);
        let mut before: LocalGroup = 0;
        let mut series_count = 0;
        for piece in rows.pieces() {
            let local = LocalGroup::try_from(bits.local(piece.group)).expect("groups are dense");
            row.clear();
            // A row may come in pieces: the group's members are those of its state, not of this
            // piece.
            let known = states.with(local, *stamp, |state, last| {
                let known = last == *stamp;
                let before = if last >= *arena_stamp { state.slot_count() } else { 0 };
                encode_row(state, !known, piece.ts, piece.cells, row);
                series_count += (state.slot_count() - before) as u64;
                known
            });
            encode_payload_row(local - before, !known, row, payload);
            before = local;
        }
        self.pending =
            Some(PendingPayload { seq, segment, series_count, value_count: cells.len() as u64 });
        &self.payload
    }

    /// Takes the pending payload out. Return its buffer with [`Encoder::put_buffer`].
    pub(crate) fn take_pending(&mut self) -> Option<(PendingPayload, Vec<u8>)> {
        let pending = self.pending.take()?;
        self.logged_stamp = self.stamp;
        Some((pending, std::mem::take(&mut self.payload)))
    }

    /// Keeps a payload's buffer for the next one.
    pub(crate) fn put_buffer(&mut self, payload: Vec<u8>) {
        self.payload = payload;
    }

    /// Bytes held.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.states.heap_bytes() + (self.payload.capacity() + self.row.capacity()) as u64
    }
}
