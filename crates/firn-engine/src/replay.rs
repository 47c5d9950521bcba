//! Replaying the log into index and head when a database opens: everything above the floors that
//! the last flush recorded.
//!
//! There are two passes. The stream with transactions is searched for them first, because they
//! concern rows of all streams. Then the streams are replayed in parallel, and each transaction is
//! applied to a shard between the rows with smaller and larger numbers.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use firn_codec::Tombstone;
use firn_env::Clock;
use firn_head::Head;
use firn_index::Index;
use firn_log::{EntryKind, Log, PayloadRange, ReplayEntry, StreamId};
use firn_model::{CommitSeq, Error, GroupId, LogPosition, Result, ShardBits, ShardId, TimeRange};
use parking_lot::Mutex;

use crate::logged::LoggedTransaction;
use crate::options::EngineOptions;
use crate::parts::LogCut;
use crate::recovery::{RecoveryProgress, RecoveryReport};
use crate::replayed::ChangeTimes;
use crate::sequence;
use crate::tombstones::touched_shards;

/// Divisor of the head size that forces a flush: replayed rows that are not columns yet may take
/// 1/4 of it.
const ROWS_FRACTION: u64 = 4;
/// Bytes of one stream between two checks of memory: at most this many, which may take five times
/// as much in memory, and at least this many, because a check visits every shard.
const STEP_BYTES_MAX: u64 = 1 << 20;
const STEP_BYTES_MIN: u64 = 16 << 10;
/// Maximum number of threads that replay a long log with fewer streams.
const THREADS_MAX: usize = 8;
/// Pause of a thread that found too few rows to convert.
const HELPER_WAIT: Duration = Duration::from_millis(1);
/// Capacity of the buffer for a transaction's rows that is kept for the next one.
const ROWS_BYTES_KEPT: usize = 1 << 20;

/// The rooms that all streams are replayed into.
pub(crate) struct Replay<'a> {
    log: &'a Log,
    index: &'a Index,
    head: &'a Head,
    bits: ShardBits,
    options: &'a EngineOptions,
    floors: &'a [LogPosition],
    clock: &'a dyn Clock,
    progress: &'a RecoveryProgress,
    /// Bytes of rows in memory beyond which they are converted to columns at once.
    rows_bytes_max: u64,
    /// Bytes of transactions' rows that were read and are not in the head yet.
    held: PeakBytes,
    /// Threads that convert rows to columns.
    converting: AtomicUsize,
}

/// A number of bytes and its maximum so far.
#[derive(Debug, Default)]
struct PeakBytes {
    bytes: AtomicU64,
    bytes_max: AtomicU64,
}

/// The result of a replay, beside the contents of index and head.
#[derive(Default)]
pub(crate) struct ReplayedState {
    /// Those of the manifest and of the log.
    pub(crate) tombstones: BTreeMap<CommitSeq, Arc<Tombstone>>,
    pub(crate) last: CommitSeq,
    pub(crate) report: RecoveryReport,
    pub(crate) changes: ChangeTimes,
}

/// Transactions, which concern other streams than their own.
#[derive(Default)]
struct FoundTransactions {
    tombstones: BTreeMap<CommitSeq, Arc<Tombstone>>,
    /// Per shard the transactions that touch it, for the thread that replays the shard.
    by_shard: Mutex<BTreeMap<ShardId, ShardTransactions>>,
    /// Number of transactions and deletes from the log.
    transaction_count: u64,
    delete_count: u64,
    /// Of the deletes from the log.
    changes: ChangeTimes,
}

/// Transactions that touch a shard, each with its rows there, if any. The rows stay in the log
/// until the replay of the shard reaches them. An entry takes about 50 bytes, less than the
/// transaction's arena took when it was written.
type ShardTransactions = BTreeMap<CommitSeq, Option<PayloadRange>>;

/// Read position in a stream.
#[derive(Default)]
struct ReadPosition {
    /// Of the last entry.
    position: Option<LogPosition>,
    /// Bytes read since the last progress report.
    unreported_bytes: u64,
}

/// Outcome of a check whether rows take too much memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConvertOutcome {
    NotNeeded,
    /// No arena waits for a conversion; other threads may be converting some.
    InProgress,
    Converted,
}

/// Counts down when it is dropped, also after a failure, so that no thread waits forever.
struct CountDown<'a>(&'a AtomicUsize);

impl Drop for CountDown<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The replay of one stream.
struct StreamReplay<'a> {
    all: &'a Replay<'a>,
    stream: StreamId,
    /// Per shard the transactions that its replay has not reached yet.
    pending: BTreeMap<ShardId, ShardTransactions>,
    /// Per shard the largest group with rows behind a hole.
    seen_behind_hole: BTreeMap<ShardId, GroupId>,
    is_behind_hole: bool,
    position: ReadPosition,
    /// Bytes of transactions since the last check of the head's size.
    unchecked_transaction_bytes: u64,
    /// Rows of one transaction.
    rows: Vec<u8>,
    last: CommitSeq,
    report: RecoveryReport,
    changes: ChangeTimes,
}

impl<'a> Replay<'a> {
    /// A replay of `log` from the floors of `cut` on into `index` and `head`.
    pub(crate) fn new(
        (log, index, head): (&'a Log, &'a Index, &'a Head),
        (clock, bits, options): (&'a dyn Clock, ShardBits, &'a EngineOptions),
        cut: &'a LogCut,
        progress: &'a RecoveryProgress,
    ) -> Replay<'a> {
        Replay {
            log,
            index,
            head,
            bits,
            options,
            floors: &cut.floors,
            clock,
            progress,
            rows_bytes_max: options.head_bytes_max / ROWS_FRACTION,
            held: PeakBytes::default(),
            converting: AtomicUsize::new(0),
        }
    }

    /// Replays all streams on up to `thread_count` threads, including the caller's. Threads without
    /// a stream convert rows to columns meanwhile, which is most of the work of a long log (DecLog,
    /// section 4.6: inserts are recovered while the log is parsed).
    ///
    /// # Errors
    /// `Corrupt` with the path of an index file if a definition needs one of its damaged blocks;
    /// `Invalid` for a log of a newer version; `Unavailable` if the disk fails.
    pub(crate) fn run(
        &self,
        tombstones: BTreeMap<CommitSeq, Arc<Tombstone>>,
        last: CommitSeq,
        thread_count: usize,
    ) -> Result<ReplayedState> {
        let bytes_total = self.log.replay_bytes(self.floors);
        // The stream with transactions is read twice.
        let searched = usize::from(self.log.stream_of(ShardId(0)).0);
        let others = |(idx, floor)| if idx == searched { floor } else { LogPosition(u64::MAX) };
        let floors: Vec<LogPosition> =
            self.floors.iter().copied().enumerate().map(others).collect();
        let searched_bytes = self.log.replay_bytes(&floors);
        let read_bytes = bytes_total.saturating_add(searched_bytes);
        self.progress.bytes_total.store(read_bytes, Ordering::Relaxed);
        let transactions = self.find_transactions(tombstones)?;
        let streams: Vec<StreamId> = (0..).map(StreamId).take(self.floors.len()).collect();
        // Rows of a short log always fit into memory.
        let is_long = bytes_total > self.rows_bytes_max;
        let useful = if is_long { streams.len().max(THREADS_MAX) } else { streams.len() };
        let thread_count = thread_count.clamp(1, useful);
        let (next, unread) = (AtomicUsize::new(0), AtomicUsize::new(streams.len()));
        let work = || {
            let mut done = Vec::new();
            while let Some(&stream) = streams.get(next.fetch_add(1, Ordering::Relaxed)) {
                let _reading = CountDown(&unread);
                done.push(self.stream(stream, &transactions)?);
            }
            while unread.load(Ordering::Relaxed) > 0 {
                if self.convert(self.rows_bytes_max / 2)? != ConvertOutcome::Converted {
                    thread::park_timeout(HELPER_WAIT);
                }
            }
            Ok(done)
        };
        let replayed: Vec<Result<Vec<StreamReplay<'_>>>> = thread::scope(|scope| {
            let helpers: Vec<_> = (1..thread_count).map(|_| scope.spawn(work)).collect();
            let panicked = |_| Err(Error::internal("a thread that replayed the log panicked"));
            let mine = work();
            let theirs = helpers.into_iter().map(|helper| helper.join().unwrap_or_else(panicked));
            theirs.chain([mine]).collect()
        });
        let mut streams: Vec<StreamReplay<'_>> =
            replayed.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        streams.sort_unstable_by_key(|stream| stream.stream);
        let mut recovered =
            ReplayedState { tombstones: transactions.tombstones, last, ..ReplayedState::default() };
        recovered.changes = transactions.changes;
        recovered.report.deletes = transactions.delete_count;
        recovered.report.transactions = transactions.transaction_count;
        recovered.report.transaction_bytes_max = self.held.bytes_max.load(Ordering::Relaxed);
        for stream in streams {
            recovered.last = recovered.last.max(stream.last);
            recovered.report.add(stream.report);
            recovered.changes.add(&stream.changes);
        }
        let total = self.progress.bytes_total.load(Ordering::Relaxed);
        self.progress.bytes_done.store(total, Ordering::Relaxed);
        Ok(recovered)
    }

    /// Finds all transactions, which are logged as of shard 0, and adds the deletes of the
    /// manifest.
    fn find_transactions(
        &self,
        tombstones: BTreeMap<CommitSeq, Arc<Tombstone>>,
    ) -> Result<FoundTransactions> {
        let mut transactions = FoundTransactions::default();
        for (seq, tombstone) in tombstones {
            transactions.add(self.bits, seq, tombstone);
        }
        let stream = self.log.stream_of(ShardId(0));
        let floor = self.floor(stream);
        let mut position = ReadPosition::default();
        self.log.replay(stream, floor, &mut |entry| {
            self.advance(&mut position, entry.position);
            // Tables and the manifest contain those below the floor.
            if entry.kind != EntryKind::Transaction || entry.below_floor {
                return Ok(());
            }
            let logged = LoggedTransaction::decode(entry.seq, self.bits, entry.payload)?;
            transactions.transaction_count = transactions.transaction_count.saturating_add(1);
            for (shard, rows) in logged.rows {
                let rows = Some(entry.payload_range(rows));
                transactions.by_shard.get_mut().entry(shard).or_default().insert(entry.seq, rows);
            }
            if !mutant!(self.options, DeletesNotReplayed) {
                let delete_count = logged.deletes.len() as u64;
                transactions.delete_count = transactions.delete_count.saturating_add(delete_count);
                for (seq, one) in logged.deletes {
                    transactions.changes.note(one.range(), seq);
                    transactions.add(self.bits, seq, one);
                }
            }
            Ok(())
        })?;
        Ok(transactions)
    }

    fn stream(
        &self,
        stream: StreamId,
        transactions: &FoundTransactions,
    ) -> Result<StreamReplay<'_>> {
        let shards = self.shards_of(stream);
        let mut all = transactions.by_shard.lock();
        let pending = shards.iter().filter_map(|shard| all.remove_entry(shard)).collect();
        drop(all);
        let mut replay = StreamReplay {
            all: self,
            stream,
            pending,
            seen_behind_hole: BTreeMap::new(),
            is_behind_hole: false,
            position: ReadPosition::default(),
            unchecked_transaction_bytes: 0,
            rows: Vec::new(),
            last: CommitSeq(0),
            report: RecoveryReport::default(),
            changes: ChangeTimes::default(),
        };
        let floor = self.floor(stream);
        let found = self.log.replay(stream, floor, &mut |entry| replay.entry(entry))?;
        // New writes are younger than all transactions.
        for &shard in &shards {
            replay.apply_transactions(shard, CommitSeq(u64::MAX))?;
        }
        if found.damage_count > 0 {
            for shard in shards {
                self.index.distrust(shard, replay.seen_behind_hole.get(&shard).copied())?;
            }
        }
        replay.report.damage.extend(found.damage);
        replay.report.torn_tails.extend(found.torn_tail);
        Ok(replay)
    }

    fn floor(&self, stream: StreamId) -> LogPosition {
        self.floors.get(usize::from(stream.0)).copied().unwrap_or_default()
    }

    fn shards_of(&self, stream: StreamId) -> Vec<ShardId> {
        let shards = (0..).map(ShardId).take(self.bits.shard_count());
        shards.filter(|&shard| self.log.stream_of(shard) == stream).collect()
    }

    /// Converts rows until memory is within its bound, as while the rows were written. Waits for
    /// conversions of other threads.
    fn relieve(&self) -> Result<()> {
        loop {
            match self.convert(self.rows_bytes_max)? {
                ConvertOutcome::Converted => {}
                ConvertOutcome::InProgress if self.converting.load(Ordering::SeqCst) > 0 => {
                    thread::park_timeout(HELPER_WAIT);
                }
                ConvertOutcome::InProgress | ConvertOutcome::NotNeeded => return Ok(()),
            }
        }
    }

    /// Records the read position. Returns whether it is time to check memory.
    fn advance(&self, read: &mut ReadPosition, position: LogPosition) -> bool {
        let previous = read.position.replace(position).unwrap_or(position);
        let read_bytes = position.0.saturating_sub(previous.0);
        read.unreported_bytes = read.unreported_bytes.saturating_add(read_bytes);
        if read.unreported_bytes < self.step_bytes() {
            return false;
        }
        let reported_bytes = std::mem::take(&mut read.unreported_bytes);
        self.progress.bytes_done.fetch_add(reported_bytes, Ordering::Relaxed);
        self.progress.read_at_ns.store(self.clock.monotonic_ns(), Ordering::Relaxed);
        true
    }

    fn step_bytes(&self) -> u64 {
        (self.rows_bytes_max / 16).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX)
    }

    /// Converts some rows to columns if they take more than `bytes_max`. Other threads do so for
    /// other shards.
    fn convert(&self, bytes_max: u64) -> Result<ConvertOutcome> {
        if self.head.stats().arena_bytes <= bytes_max {
            return Ok(ConvertOutcome::NotNeeded);
        }
        self.converting.fetch_add(1, Ordering::SeqCst);
        let _converting = CountDown(&self.converting);
        let Some(job) = self.head.plan_convert() else { return Ok(ConvertOutcome::InProgress) };
        self.head.apply_convert(job.run()?);
        Ok(ConvertOutcome::Converted)
    }
}

impl FoundTransactions {
    fn add(&mut self, bits: ShardBits, seq: CommitSeq, tombstone: Arc<Tombstone>) {
        for shard in touched_shards(bits, &tombstone) {
            self.by_shard.get_mut().entry(shard).or_default().entry(seq).or_default();
        }
        self.tombstones.insert(seq, tombstone);
    }
}

impl StreamReplay<'_> {
    fn entry(&mut self, entry: ReplayEntry<'_>) -> Result<()> {
        self.note(&entry)?;
        let Replay { index, head, .. } = *self.all;
        if entry.after_hole {
            // Rows are deltas of previous rows: each group of this stream continues only at its
            // next whole row.
            self.all.shards_of(self.stream).into_iter().for_each(|shard| head.replay_gap(shard));
            self.is_behind_hole = true;
        }
        match entry.kind {
            // An index file contains those below the floor, unless their series were removed.
            EntryKind::Definition
                if entry.below_floor && !mutant!(self.all.options, RemovedSeriesReplayed) =>
            {
                Ok(())
            }
            EntryKind::Definition => index.replay(entry.payload),
            EntryKind::Rows => {
                if self.is_behind_hole {
                    self.remember_groups(entry.shard, entry.payload)?;
                }
                if !mutant!(self.all.options, TransactionReplayedLast) {
                    self.apply_transactions(entry.shard, entry.seq)?;
                }
                let apply = !entry.below_floor;
                let rows = head.replay(
                    entry.shard,
                    entry.seq,
                    entry.payload,
                    entry.position,
                    entry.segment.0,
                    apply,
                )?;
                if apply {
                    self.report.rows = self.report.rows.saturating_add(rows.row_count);
                    self.changes.note(rows.range, entry.seq);
                }
                self.report.rows_lost = self.report.rows_lost.saturating_add(rows.refused_count);
                Ok(())
            }
            // Found before.
            EntryKind::Transaction => Ok(()),
        }
    }

    /// Counts an entry, records the position, and bounds memory.
    fn note(&mut self, entry: &ReplayEntry<'_>) -> Result<()> {
        self.report.entries = self.report.entries.saturating_add(1);
        sequence::check_stored(entry.seq, "log")?;
        self.last = self.last.max(entry.seq);
        if self.all.advance(&mut self.position, entry.position) {
            self.all.relieve()
        } else {
            Ok(())
        }
    }

    /// Applies the transactions before `seq` to a shard. As at their commit, each ends the runs of
    /// rows: the rows that follow in the log are whole.
    fn apply_transactions(&mut self, shard: ShardId, seq: CommitSeq) -> Result<()> {
        while let Some(next) = self.pending.get_mut(&shard).and_then(BTreeMap::first_entry)
            && *next.key() < seq
        {
            let (seq, rows) = next.remove_entry();
            self.all.head.split_parts(shard);
            if let Some(stored) = rows {
                self.take_rows(shard, seq, &stored)?;
            }
        }
        Ok(())
    }

    /// Reads a transaction's rows of one shard again and replays them into the head.
    fn take_rows(&mut self, shard: ShardId, seq: CommitSeq, stored: &PayloadRange) -> Result<()> {
        let (held, bytes) = (&self.all.held, stored.bytes() as u64);
        let now = held.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        held.bytes_max.fetch_max(now, Ordering::Relaxed);
        let mut rows = std::mem::take(&mut self.rows);
        stored.read(&mut rows)?;
        let range = self.remember_groups(shard, &rows)?;
        self.changes.note(range, seq);
        let row_count = self.all.head.replay_transaction(shard, seq, &rows)?;
        self.report.rows = self.report.rows.saturating_add(row_count);
        rows.clear();
        rows.shrink_to(ROWS_BYTES_KEPT);
        self.rows = rows;
        held.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.unchecked_transaction_bytes = self.unchecked_transaction_bytes.saturating_add(bytes);
        if self.unchecked_transaction_bytes < self.all.step_bytes() {
            return Ok(());
        }
        self.unchecked_transaction_bytes = 0;
        self.all.relieve()
    }

    /// Remembers the groups of rows, the definitions of which may be in a hole. Returns the times
    /// of the rows.
    fn remember_groups(&mut self, shard: ShardId, payload: &[u8]) -> Result<TimeRange> {
        let mut groups = Vec::new();
        let range = firn_head::payload_groups(self.all.bits, shard, payload, &mut groups)?;
        if let Some(&last) = groups.iter().max() {
            let seen = self.seen_behind_hole.entry(shard).or_insert(last);
            *seen = last.max(*seen);
        }
        Ok(range)
    }
}
