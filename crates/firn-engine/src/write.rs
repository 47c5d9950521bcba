//! The way of a write: resolve, log, head, on one page.

use firn_head::ShardWriter;
use firn_log::{Append, EntryKind, EntryRef, SegmentNo, StreamId};
use firn_model::{
    Cell, LogPosition, Pool, Reservation, Result, RowBatch, SeriesRef, ShardId, ShardRows,
    Timestamp,
};

use crate::Engine;
use crate::sequence::InFlight;

/// What became of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteReport {
    /// Values that are durable and visible; of several for one series and time each counts, though only the
    /// last can be seen.
    pub written: u64,
    /// Values refused because they lie too far after the clock, and the first of them.
    pub too_far_ahead: u64,
    /// The largest refused timestamp.
    pub too_far_ahead_max: Option<Timestamp>,
    /// Values refused because their series does not exist.
    pub unknown: u64,
}

/// Rows of one shard on their way: in the log's buffer, not yet durable.
struct Staged<'a> {
    shard: ShardId,
    stream: StreamId,
    segment: SegmentNo,
    position: LogPosition,
    _in_flight: InFlight<'a>,
}

impl Engine {
    /// Writes a batch. When this returns, all that the report calls written is durable (by
    /// `log.sync`) and visible. Cells that are refused do not hinder the others.
    ///
    /// # Errors
    /// `Busy` without memory or with too long a log, `Unavailable` when the log device is full or
    /// fails, `Corrupt` when a damaged index segment may have a series, `Closed`. Then nothing is acknowledged, though parts may turn out to be durable.
    pub fn write(&self, batch: &mut RowBatch) -> Result<WriteReport> {
        self.write_as_of(batch, None)
    }

    /// As [`Engine::write`], for references that this engine gave out since [`Engine::generation`] said
    /// `generation`: as long as that holds nobody looks whether they exist.
    ///
    /// # Errors
    /// As [`Engine::write`].
    pub fn write_known(&self, batch: &mut RowBatch, generation: u32) -> Result<WriteReport> {
        self.write_as_of(batch, Some(generation))
    }

    fn write_as_of(&self, batch: &mut RowBatch, generation: Option<u32>) -> Result<WriteReport> {
        self.rooms.wakeup.check_open()?;
        self.slow.check_writable(&self.rooms)?;
        // Until the rows are visible no series leaves the index.
        let leaving = self.upkeep.leaving.read();
        let is_known = generation == Some(self.rooms.index.generation());
        let mut report = self.refuse(batch, is_known)?;
        if batch.is_empty() {
            return Ok(report);
        }
        leaving.note(batch)?;
        // Before the sort drops what the batch itself overwrites: who sent it wants it counted.
        let value_count = batch.len() as u64;
        batch.sort(self.rooms.bits);
        self.flusher.ensure_log_started(&self.rooms.log)?;
        self.pressure.admit_write(&self.rooms)?;
        // Memory first: after the log has the rows nothing may fail.
        let mut memory = match mutant!(self, MemoryNotReserved) {
            true => self.rooms.budget.empty(Pool::Head),
            false => {
                self.pressure.reserve(&self.rooms, Pool::Head, firn_head::bound_bytes(batch))?
            }
        };
        let mut staged = Vec::new();
        let logged = batch
            .by_shard()
            .try_for_each(|rows| self.log_and_stage(rows, &mut memory, &mut staged));
        // Also when a later shard failed: what is staged may have rows of others behind it.
        self.make_durable(&staged).inspect_err(|_| self.give_up(&staged))?;
        self.publish(&staged);
        logged?;
        report.written = value_count;
        self.counters.samples_written.add(report.written);
        Ok(report)
    }

    /// Takes out what may not be written and says so.
    fn refuse(&self, batch: &mut RowBatch, is_known: bool) -> Result<WriteReport> {
        let mut report = WriteReport::default();
        let latest = self.rooms.env.clock.now_ms().saturating_add(self.rooms.options.future_ms_max);
        let series = |cell: &Cell| SeriesRef { group: cell.group, slot: cell.slot };
        if batch.cells().iter().all(|cell| cell.ts <= latest)
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
            if cell.ts > latest {
                report.too_far_ahead += 1;
                report.too_far_ahead_max = report.too_far_ahead_max.max(Some(cell.ts));
            } else if !known {
                report.unknown += 1;
            }
            known && cell.ts <= latest
        });
        failed.map_or(Ok(report), Err)
    }

    /// One shard's rows: encoded once, into the log's buffer and the head's arena, under the
    /// shard's lock so that both have the same order.
    fn log_and_stage<'a>(
        &'a self,
        rows: ShardRows<'_>,
        memory: &mut Reservation,
        staged: &mut Vec<Staged<'a>>,
    ) -> Result<()> {
        let stream = self.rooms.log.stream_of(rows.shard);
        let mut shard = self.rooms.head.shard(rows.shard);
        let in_flight = self.ledger.sequence.draw();
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
            // New series first: replay must know them before their rows.
            let entries =
                [entry(EntryKind::Definition, &definitions), entry(EntryKind::Rows, payload)];
            let entries = if definitions.is_empty() { &entries[1..] } else { &entries[..] };
            match self.rooms.log.append(stream, tip.segment, entries)? {
                Append::At(position) => {
                    if !definitions.is_empty() {
                        self.definitions.note_logged(rows.shard, position);
                    }
                    return Ok((tip.segment, position));
                }
                // The next segment begins: it must hold whole rows first, so encode again.
                Append::Rotated => {}
            }
        }
    }

    /// Announces to the cache that a change may or may not survive a crash. Called before its number
    /// counts as arrived.
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

    /// A commit failed: what of it is durable becomes visible, the rest is dropped, and the next
    /// rows do not lean on it.
    fn give_up(&self, staged: &[Staged<'_>]) {
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
