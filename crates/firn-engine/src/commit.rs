//! The commit of a transaction: validate, log, stage, then visible in all shards at once.
//!
//! **Log entry.** A transaction is one log entry, in the first stream, with its deletes and its
//! rows of all shards. A crash leaves all of it or nothing, however many shards and streams it
//! touches (decision 11). Its rows are whole, so that they are decoded without other entries, and
//! are in arenas of their own, so that later plain rows wait for nothing.
//!
//! **Number.** Its order among the plain rows of a shard is its [`CommitSeq`], which is drawn while
//! all the shards that it writes to are locked: a row with a smaller number precedes it in the
//! shard's stream.
//!
//! **Order.** One transaction at a time validates, draws its number and is appended to the log, so
//! two transactions cannot deadlock. The wait for the device is outside of that, so that one sync
//! serves all waiting transactions. They become visible in the order of their numbers, each under
//! the lock that excludes snapshots.
//!
//! Source: DecLog, sections 4.1.2 (compute, lock, validate, modify) and 4.2 (relaxed ordering).
//! DecLog has one entry per logging thread, and therefore needs thread snapshots (section 4.3.2).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_codec::Tombstone;
use firn_head::ShardWriter;
use firn_log::{Append, EntryKind, EntryRef, StreamId};
use firn_model::{
    Budget, CommitSeq, Error, ErrorKind, LogPosition, Mutex, Pool, Reservation, Result, RowBatch,
    RwLock, SeriesRef, ShardId,
};

use crate::Engine;
use crate::lock;
use crate::logged;
use crate::sequence::InFlight;
use crate::stats::Counter;
use crate::tombstones::touched_shards;
use crate::versions::{OpenSet, Reads, Versions};

/// All transactions are logged as of this shard, hence in one stream, which recovery reads first.
const TRANSACTION_SHARD: ShardId = ShardId(0);
/// Maximum number of open transactions: each keeps a snapshot.
const OPEN_COUNT_MAX: usize = 10_000;

/// Open, waiting and decided transactions.
///
/// Lock order: `lane`, then the manifest's lock, then `order`, then `waiting`, then `Rooms::view`,
/// then shards by id. `waiting` is never taken while a shard is locked. `open` is innermost.
#[derive(Debug)]
pub(crate) struct Transactions {
    /// Read by each commit until it is decided; written to exclude commits in flight.
    lane: RwLock<()>,
    /// Held while a transaction is validated and appended.
    order: Mutex<Versions>,
    open: Mutex<OpenSet>,
    /// Logged but not decided, oldest first.
    waiting: Mutex<VecDeque<WaitingTransaction>>,
    /// Every transaction up to this one is visible or will never be. Written under `Rooms::view`.
    decided: AtomicU64,
    conflict_count: Counter,
}

/// A logged transaction that waits for the device.
#[derive(Debug)]
struct WaitingTransaction {
    seq: CommitSeq,
    stream: StreamId,
    position: LogPosition,
    shards: Vec<ShardId>,
    deletes: Vec<(CommitSeq, Arc<Tombstone>)>,
    deletes_memory: Reservation,
}

/// The changes of a transaction, and the reads to validate.
pub(crate) struct CommitRequest<'a> {
    /// Validated against transactions since `begun`.
    pub(crate) reads: &'a Reads,
    pub(crate) begun: CommitSeq,
    pub(crate) rows: RowBatch,
    /// They hide none of `rows`.
    pub(crate) deletes: Vec<Arc<Tombstone>>,
}

/// Keeps a transaction open until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenTransaction<'a> {
    transactions: &'a Transactions,
    begun: CommitSeq,
}

impl Transactions {
    /// All transactions up to `last` are decided.
    pub(crate) fn new(last: CommitSeq, budget: &Budget) -> Transactions {
        Transactions {
            lane: RwLock::new(&lock::COMMIT_LANE, ()),
            order: Mutex::new(&lock::COMMIT_ORDER, Versions::new(budget.empty(Pool::Index))),
            open: Mutex::new(&lock::COMMITS_OPEN, OpenSet::default()),
            waiting: Mutex::new(&lock::COMMITS_WAITING, VecDeque::new()),
            decided: AtomicU64::new(last.0),
            conflict_count: Counter::default(),
        }
    }

    /// Waits for commits in flight and holds back others until the guard is dropped. The tombstones
    /// are then complete: every later one is younger than every row sealed so far.
    pub(crate) fn pause(&self) -> impl Sized + '_ {
        self.lane.write()
    }

    /// Commits refused because another transaction touched their reads.
    pub(crate) fn conflict_count(&self) -> u64 {
        self.conflict_count.get()
    }

    /// The last transaction that a new snapshot contains, with all earlier ones and no later one.
    /// It does not change while `Rooms::view` is held.
    pub(crate) fn decided(&self) -> CommitSeq {
        CommitSeq(self.decided.load(Ordering::Acquire))
    }

    /// Starts recording the changes of other transactions.
    ///
    /// # Errors
    /// `Busy` with too many open ones.
    pub(crate) fn open(&self) -> Result<OpenTransaction<'_>> {
        let mut open = self.open.lock();
        if open.count() >= OPEN_COUNT_MAX {
            return Err(Error::busy(
                1_000,
                format!(
                    "begin failed: {OPEN_COUNT_MAX} transactions are open; commit or drop some, \
                     then retry"
                ),
            ));
        }
        let begun = self.decided();
        open.enter(begun);
        Ok(OpenTransaction { transactions: self, begun })
    }

    /// Forgets the deletes that only ended transactions needed. Called by maintenance.
    pub(crate) fn prune(&self) {
        self.order.lock().prune(self.oldest_begun());
    }

    fn oldest_begun(&self) -> CommitSeq {
        let open = self.open.lock();
        let decided = self.decided();
        open.oldest().map_or(decided, |oldest| oldest.min(decided))
    }
}

impl Drop for OpenTransaction<'_> {
    fn drop(&mut self) {
        self.transactions.open.lock().leave(self.begun);
    }
}

impl Engine {
    /// Commits all of `work` or nothing. On return it is durable (by `log.sync`) and visible in all
    /// shards.
    ///
    /// # Errors
    /// `Conflict` if another transaction touched its reads, `NotFound` for an unknown series,
    /// `TooLarge` for more changes than fit into a log segment, `Busy`, `Unavailable`, `Corrupt`,
    /// `Closed`. Then nothing is changed, except that after a failure of the device and a crash it
    /// may be.
    pub(crate) fn commit(&self, mut work: CommitRequest<'_>) -> Result<CommitSeq> {
        self.rooms.wakeup.check_open()?;
        self.slow.check_writable(&self.rooms)?;
        // No series is removed from the index until the rows are visible.
        let leaving = self.upkeep.leaving.read();
        self.check_known(&work.rows)?;
        leaving.note(&work.rows)?;
        self.flusher.ensure_log_started(&self.rooms.log)?;
        self.pressure.admit_write(&self.rooms)?;
        work.rows.sort(self.rooms.bits);
        // Memory first: nothing may fail once the entry is logged.
        let mut rows = Vec::new();
        for of_shard in work.rows.by_shard() {
            let memory = self.pressure.reserve(
                &self.rooms,
                Pool::Head,
                firn_head::bound_bytes_of(of_shard),
            )?;
            rows.push((
                of_shard.shard,
                firn_head::encode_standalone(of_shard, self.rooms.bits),
                memory,
            ));
        }
        let tombstones = &self.ledger.tombstones;
        let deletes_memory = tombstones.admit(&self.rooms, &self.pressure, &mut work.deletes)?;
        let delete_bytes: u64 = work.deletes.iter().map(|deleted| deleted.heap_bytes()).sum();
        // The entry of the log has both once more; twice, because it grows.
        let row_bytes: usize = rows.iter().map(|row| row.1.len()).sum();
        let entry_bytes = 2 * (row_bytes as u64 + delete_bytes);
        let _entry_memory = self.pressure.reserve(&self.rooms, Pool::Head, entry_bytes)?;
        let _not_while_paused = self.transactions.lane.read();
        tombstones.check_count(&self.rooms, work.deletes.len())?;
        self.settle_definitions(&rows).inspect_err(|_| probe!(self, CommitFailed))?;
        let (seq, stream, position) =
            self.log_and_stage_transaction(&work, rows, deletes_memory)?;
        if mutant!(self, TransactionPublishedBeforeDurable) {
            self.decide(seq, true);
        }
        let committed = self.rooms.log.commit(&[(stream, position)]);
        if committed.is_err() {
            probe!(self, CommitFailed);
        }
        self.decide(seq, false);
        committed.map(|()| seq)
    }

    fn check_known(&self, rows: &RowBatch) -> Result<()> {
        let series = |cell: &firn_model::Cell| SeriesRef { group: cell.group, slot: cell.slot };
        match self.rooms.index.find_unknown(rows.cells().iter().map(series))? {
            Some(unknown) => Err(Error::not_found(format!(
                "commit failed: the series reference {unknown:?} is stale, its series left the \
                 index; resolve the labels again"
            ))),
            None => Ok(()),
        }
    }

    /// Makes the definitions of the shards durable: no row may be durable before its series.
    /// Usually they are, and there is no wait.
    fn settle_definitions(&self, rows: &[(ShardId, Vec<u8>, Reservation)]) -> Result<()> {
        let mut ends: BTreeMap<StreamId, LogPosition> = BTreeMap::new();
        for &(shard, ..) in rows {
            let stream = self.rooms.log.stream_of(shard);
            let end = self.log_definitions(shard, stream)?;
            let last = ends.entry(stream).or_default();
            *last = end.max(*last);
        }
        if mutant!(self, DefinitionsOnlyWritten) {
            return Ok(());
        }
        self.rooms.log.harden(&ends.into_iter().collect::<Vec<_>>())
    }

    fn append_entry(&self, stream: StreamId, entry: EntryRef<'_>) -> Result<LogPosition> {
        loop {
            match self.rooms.log.append(stream, self.rooms.log.tip(stream).segment, &[entry])? {
                Append::At(position) => return Ok(position),
                // The entry does not depend on its segment.
                Append::Rotated => {}
            }
        }
    }

    /// Validates the transaction, draws its numbers and puts it into the log's buffer and the head,
    /// while all shards that it writes to are locked.
    fn log_and_stage_transaction(
        &self,
        work: &CommitRequest<'_>,
        rows: Vec<(ShardId, Vec<u8>, Reservation)>,
        deletes_memory: Reservation,
    ) -> Result<(CommitSeq, StreamId, LogPosition)> {
        let mut versions = self.transactions.order.lock();
        self.validate(work, &versions)?;
        if mutant!(self, TransactionLockDropped) {
            drop(versions);
            probe!(self, Mutant);
            versions = self.transactions.order.lock();
        }
        let mut payload = Vec::new();
        logged::encode(&work.deletes, &rows, &mut payload);
        let deleted: BTreeSet<ShardId> =
            work.deletes.iter().flat_map(|one| touched_shards(self.rooms.bits, one)).collect();
        let written: BTreeSet<ShardId> = rows.iter().map(|row| row.0).collect();
        // In the order of their ids, so that two holders of several locks cannot deadlock.
        let mut writers: BTreeMap<ShardId, ShardWriter<'_>> =
            deleted.union(&written).map(|&shard| (shard, self.rooms.head.shard(shard))).collect();
        // Each delete has its own number; a delete hides only rows with smaller numbers.
        let draw = |_| self.ledger.sequence.draw(TRANSACTION_SHARD);
        let numbers: Vec<InFlight<'_>> = (0..work.deletes.len().max(1)).map(draw).collect();
        let seq = numbers[numbers.len() - 1].seq;
        for shard in deleted {
            if let Some(writer) = writers.get_mut(&shard)
                && !mutant!(self, RunsNotClosed)
            {
                writer.split_parts();
            }
        }
        let stream = self.rooms.log.stream_of(TRANSACTION_SHARD);
        if mutant!(self, TransactionLoggedByShard) {
            for row in rows.chunks(1) {
                let mut payload = Vec::new();
                logged::encode(&[], row, &mut payload);
                let position = self.log_transaction(stream, seq, &payload, work)?;
                self.rooms.log.commit(&[(stream, position)])?;
            }
        }
        let position = self.log_transaction(stream, seq, &payload, work)?;
        let deletes: Vec<_> =
            numbers.iter().map(|one| one.seq).zip(work.deletes.iter().cloned()).collect();
        self.announce_transaction(seq, work, &deletes);
        for (shard, payload, mut memory) in rows {
            if let Some(writer) = writers.get_mut(&shard) {
                writer.stage_transaction(seq, &payload, &mut memory);
            }
        }
        drop(writers);
        versions.prune(self.transactions.oldest_begun());
        versions.touch(seq, &work.rows, &work.deletes);
        let shards = written.into_iter().collect();
        let waiting = WaitingTransaction { seq, stream, position, shards, deletes, deletes_memory };
        self.transactions.waiting.lock().push_back(waiting);
        numbers.into_iter().for_each(|one| {
            one.detach();
        });
        Ok((seq, stream, position))
    }

    fn validate(&self, work: &CommitRequest<'_>, versions: &Versions) -> Result<()> {
        if mutant!(self, TransactionNotValidated) {
            return Ok(());
        }
        match versions.find_conflict(work.reads, work.begun, &self.rooms.index.view())? {
            None => Ok(()),
            Some(what) => {
                self.transactions.conflict_count.add(1);
                Err(Error::new(
                    ErrorKind::Conflict,
                    format!(
                        "commit failed: another transaction changed {what} since this one began; \
                         retry"
                    ),
                ))
            }
        }
    }

    fn log_transaction(
        &self,
        stream: StreamId,
        seq: CommitSeq,
        payload: &[u8],
        work: &CommitRequest<'_>,
    ) -> Result<LogPosition> {
        let (kind, shard) = (EntryKind::Transaction, TRANSACTION_SHARD);
        let size = || {
            let series: u64 = work.deletes.iter().map(|one| one.series_count()).sum();
            format!("a transaction of {} samples and deletes of {series} series", work.rows.len())
        };
        self.append_entry(stream, EntryRef { kind, shard, seq, payload })
            .map_err(|e| e.context(size()))
    }

    /// Announces the changes to the cache before they are visible.
    fn announce_transaction(
        &self,
        seq: CommitSeq,
        work: &CommitRequest<'_>,
        deletes: &[(CommitSeq, Arc<Tombstone>)],
    ) {
        if self.changes.is_set() {
            work.rows.by_shard().for_each(|rows| self.changes.announce_rows(seq, rows));
            deletes.iter().for_each(|(number, one)| self.changes.announce_delete(*number, one));
        }
    }

    /// Makes transactions up to `through` visible if they are durable, and drops them if not.
    /// Called when the outcome of `through` is known, which follows the others in the log.
    fn decide(&self, through: CommitSeq, is_early: bool) {
        let mut waiting = self.transactions.waiting.lock();
        while waiting.front().is_some_and(|one| one.seq <= through) {
            let Some(one) = waiting.pop_front() else { return };
            let durable = self.rooms.log.durable_before(one.stream, one.position);
            let is_shown = durable == one.position || is_early;
            if !is_shown {
                self.announce_doubt();
            }
            if mutant!(self, TransactionShownByShard) {
                for shard in &one.shards {
                    self.rooms.head.decide_transaction(*shard, one.seq, is_shown);
                    probe!(self, Mutant);
                }
            }
            let mut tombstones = (*self.ledger.tombstones.all()).clone();
            for (seq, deleted) in &one.deletes {
                tombstones = tombstones.with(*seq, Arc::clone(deleted));
            }
            // The previous tombstones are dropped without the lock.
            let _previous = {
                let _view = self.rooms.view.write();
                for shard in one.shards {
                    self.rooms.head.decide_transaction(shard, one.seq, is_shown);
                }
                self.transactions.decided.store(one.seq.0, Ordering::Release);
                let is_changed = is_shown && !one.deletes.is_empty();
                is_changed.then(|| self.ledger.tombstones.install(tombstones, one.deletes_memory))
            };
            let first = one.seq.0 + 1 - one.deletes.len().max(1) as u64;
            let arrived = |seq| self.ledger.sequence.arrived(TRANSACTION_SHARD, CommitSeq(seq));
            (first..=one.seq.0).for_each(arrived);
        }
    }
}
