//! The write path on one page: refuse, log and stage, make durable, publish.
//!
//! 1. `refuse` removes cells that may not be written. Memory for the rest is reserved.
//! 2. `log_and_stage` encodes the rows of one shard under the shard's lock, and puts the same bytes
//!    into the log's buffer and into the head, where no reader sees them yet. It takes the rows of
//!    a large batch in parts.
//! 3. `make_durable` waits for the group commit of all streams that the batch touches.
//! 4. `publish` makes the rows visible. If the commit failed, `roll_back` drops those that are not
//!    durable.

use firn_head::ShardWriter;
use firn_log::{Append, EntryKind, EntryRef, SegmentNo, StreamId};
use firn_model::{
    Cell, LogPosition, Pool, Reservation, Result, RowBatch, SeriesRef, ShardId, ShardRows,
    Timestamp,
};

use crate::Engine;
use crate::accepted::TimeRefusal;
use crate::sequence::InFlight;

/// The outcome of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteReport {
    /// Values that are durable and visible. Several values of one series and time count separately,
    /// though only the last is visible.
    pub written: u64,
    /// Values refused because their timestamp is later than [`Engine::accepted_times`].
    pub too_far_ahead: u64,
    /// Values refused because they are older than the retention, or than 100 years.
    pub too_old: u64,
    /// Values refused because their timestamp is in seconds instead of milliseconds.
    pub in_seconds: u64,
    /// One of the refused timestamps.
    pub refused_ts: Option<Timestamp>,
    /// Values refused because their series does not exist.
    pub unknown: u64,
}

/// Rows of one shard in the log's buffer, not yet durable.
struct Staged<'a> {
    shard: ShardId,
    stream: StreamId,
    segment: SegmentNo,
    position: LogPosition,
    _in_flight: InFlight<'a>,
}

impl Engine {
    /// Writes a batch. On return, all values that the report counts as written are durable (by
    /// `log.sync`) and visible. Refused cells do not affect the others.
    ///
    /// # Errors
    /// `Busy` without memory, with too long a log or over the limit of the fast tier; `TooLarge`
    /// for more rows than one request may take memory for; `Unavailable` if the log device is full
    /// or fails, in a replica, or if another server has taken over the slow tier; `Corrupt` if a
    /// damaged index segment may contain a series; `Closed`. Then nothing is acknowledged, though
    /// parts may survive.
    pub fn write(&self, batch: &mut RowBatch) -> Result<WriteReport> {
        self.write_as_of(batch, None)
    }

    /// As [`Engine::write`], for references resolved at [`Engine::generation`] `generation`. While
    /// the generation is the same, their existence is not checked.
    ///
    /// # Errors
    /// As [`Engine::write`].
    pub fn write_known(&self, batch: &mut RowBatch, generation: u32) -> Result<WriteReport> {
        self.write_as_of(batch, Some(generation))
    }

    fn write_as_of(&self, batch: &mut RowBatch, generation: Option<u32>) -> Result<WriteReport> {
        self.rooms.wakeup.check_open()?;
        self.slow.check_writable(&self.rooms)?;
        // No series is removed from the index until the rows are visible.
        let leaving = self.upkeep.leaving.read();
        let is_known = generation == Some(self.rooms.index.generation());
        let mut report = self.refuse(batch, is_known)?;
        if batch.is_empty() {
            return Ok(report);
        }
        leaving.note(batch)?;
        // Counted before the sort drops values that the batch itself overwrites.
        let value_count = batch.len() as u64;
        batch.sort(self.rooms.bits);
        self.flusher.ensure_log_started(&self.rooms.log)?;
        self.pressure.admit_write(&self.rooms)?;
        // Memory first: nothing may fail once the rows are logged.
        let mut memory = match mutant!(self, MemoryNotReserved) {
            true => self.rooms.budget.empty(Pool::Head),
            false => {
                let bytes = firn_head::bound_bytes(batch);
                // A sender must not repeat a request for which there is never enough memory.
                self.rooms.budget.check_request(bytes)?;
                self.pressure.reserve(&self.rooms, Pool::Head, bytes)?
            }
        };
        let mut staged = Vec::new();
        let logged = firn_head::parts_of(batch)
            .try_for_each(|rows| self.log_and_stage(rows, &mut memory, &mut staged));
        // Also if a later shard failed: rows of other writers may follow the staged ones.
        self.make_durable(&staged).inspect_err(|_| self.roll_back(&staged))?;
        self.publish(&staged);
        logged?;
        report.written = value_count;
        self.counters.samples_written.add(report.written);
        Ok(report)
    }

    /// Removes cells that may not be written, and counts them.
    fn refuse(&self, batch: &mut RowBatch, is_known: bool) -> Result<WriteReport> {
        let mut report = WriteReport::default();
        let times = self.rooms.accepted_times();
        let series = |cell: &Cell| SeriesRef { group: cell.group, slot: cell.slot };
        if batch.cells().iter().all(|cell| times.contains(cell.ts))
            && (is_known
                || self.rooms.index.find_unknown(batch.cells().iter().map(series))?.is_none())
        {
            return Ok(report);
        }
        let mut failed = None;
        batch.retain(|cell| {
            let known = is_known
                || self.rooms.index.contains(series(cell)).unwrap_or_else(|e| {
                    failed = Some(e);
                    false
                });
            let refusal = times.refusal(cell.ts);
            match refusal {
                Some(TimeRefusal::TooFarAhead) => report.too_far_ahead += 1,
                Some(TimeRefusal::TooOld) => report.too_old += 1,
                Some(TimeRefusal::InSeconds) => report.in_seconds += 1,
                None if !known => report.unknown += 1,
                None => return true,
            }
            report.refused_ts = report.refused_ts.or(refusal.map(|_| cell.ts));
            false
        });
        failed.map_or(Ok(report), Err)
    }

    /// Encodes one shard's rows once and puts the bytes into the log's buffer and the head's arena,
    /// under the shard's lock so that both have the same order.
    fn log_and_stage<'a>(
        &'a self,
        rows: ShardRows<'_>,
        memory: &mut Reservation,
        staged: &mut Vec<Staged<'a>>,
    ) -> Result<()> {
        let stream = self.rooms.log.stream_of(rows.shard);
        let mut shard = self.rooms.head.shard(rows.shard);
        let in_flight = self.ledger.sequence.draw(rows.shard);
        let appended = self.append(stream, &mut shard, &in_flight, rows);
        let (segment, position) = appended.inspect_err(|_| {
            shard.abandon();
            self.rooms.index.requeue(rows.shard);
        })?;
        self.changes.announce_rows(in_flight.seq, rows);
        shard.stage(position, memory);
        staged.push(Staged { shard: rows.shard, stream, segment, position, _in_flight: in_flight });
        Ok(())
    }

    fn append(
        &self,
        stream: StreamId,
        shard: &mut ShardWriter<'_>,
        in_flight: &InFlight<'_>,
        rows: ShardRows<'_>,
    ) -> Result<(SegmentNo, LogPosition)> {
        let mut definitions = Vec::new();
        loop {
            let tip = self.rooms.log.tip(stream);
            self.take_definitions(rows.shard, tip, &mut definitions);
            let payload = shard.encode(in_flight.seq, rows, tip.segment.0);
            let entry =
                |kind, payload| EntryRef { kind, shard: rows.shard, seq: in_flight.seq, payload };
            // New series first: replay needs them before their rows.
            let entries =
                [entry(EntryKind::Definition, &definitions), entry(EntryKind::Rows, payload)];
            let entries = if definitions.is_empty() { &entries[1..] } else { &entries[..] };
            match self.rooms.log.append(stream, tip.segment, entries)? {
                Append::At(position) => {
                    if !definitions.is_empty() {
                        self.definitions.note_logged(rows.shard, position, definitions.len());
                    }
                    return Ok((tip.segment, position));
                }
                // A new segment begins with whole rows, so the rows are encoded again.
                Append::Rotated => {}
            }
        }
    }

    /// Announces to the cache that a change may or may not survive a crash. Called before its
    /// number counts as arrived.
    pub(crate) fn announce_doubt(&self) {
        if !mutant!(self, FailedCommitNotAnnounced) {
            self.changes.announce_doubt();
        }
    }

    fn make_durable(&self, staged: &[Staged<'_>]) -> Result<()> {
        if mutant!(self, PublishedBeforeDurable) {
            self.publish(staged);
        }
        if mutant!(self, SyncSkipped) {
            return Ok(());
        }
        let mut ends: Vec<(StreamId, LogPosition)> =
            Vec::with_capacity(self.rooms.log.stream_count());
        for one in staged {
            match ends.iter_mut().find(|end| end.0 == one.stream) {
                Some(end) => end.1 = end.1.max(one.position),
                None => ends.push((one.stream, one.position)),
            }
        }
        self.rooms.log.commit(&ends)
    }

    fn publish(&self, staged: &[Staged<'_>]) {
        if mutant!(self, AcknowledgedBeforeVisible) {
            return;
        }
        for one in staged {
            self.rooms.head.publish(one.shard, one.position);
        }
    }

    /// After a failed commit: publishes its durable rows, drops the others, and makes the next rows
    /// independent of them.
    fn roll_back(&self, staged: &[Staged<'_>]) {
        self.announce_doubt();
        probe!(self, CommitFailed);
        for one in staged {
            let durable = self.rooms.log.durable_before(one.stream, one.position);
            if durable == one.position || mutant!(self, FailedCommitPublished) {
                self.rooms.head.publish(one.shard, one.position);
            } else {
                self.rooms.head.rollback(one.shard, one.segment.0, durable);
                if mutant!(self, DefinitionsRequeuedLate) {
                    self.rooms.index.requeue(one.shard);
                }
            }
        }
    }
}
