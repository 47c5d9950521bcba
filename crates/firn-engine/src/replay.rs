//! Replaying the log into index and head when a database opens: everything above the floors that
//! the last flush recorded.
//!
//! There are two passes. The first one surveys all streams: it finds the transactions, because they
//! concern rows of all streams, the oldest time of a row, and for each shard the first row that is
//! needed, because segments also contain rows below the floor. It decodes no row. The second one
//! applies the entries. Several threads read one stream, each for some of its shards: reading takes
//! about 1 ns a byte, and applying an entry many times that. Each transaction is applied to a shard
//! between the rows with smaller and larger numbers.
//!
//! Memory is bounded as while the log was written: rows become columns, and series are
//! written to index files once they take the memory that new series may take.

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
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use firn_codec::{Tombstone, Tombstones};
use firn_env::{Clock, Env};
use firn_head::Head;
use firn_index::{Index, IndexStats};
use firn_log::{EntryKind, Log, PayloadRange, ReplayEntry, ReplayReport, StreamId};
use firn_model::{
    CommitSeq, Error, ErrorKind, GroupId, LogPosition, Mutex, Reservation, Result, RwLock,
    SeriesRef, ShardBits, ShardId, TimeRange, Timestamp,
};

use crate::lock;
use crate::logged::LoggedTransaction;
use crate::options::EngineOptions;
use crate::parts::LogCut;
use crate::pressure;
use crate::recovery::{FoundDamage, RecoveryProgress, RecoveryReport};
use crate::replay_time::{self, ReplaySpeed};
use crate::replayed::ChangeTimes;
use crate::sequence;
use crate::stored_tombstones::StoredTombstones;
use crate::upkeep;

/// Bytes of one stream between two checks of memory: at most this many, which may take five times
/// as much in memory, and at least this many, because a check visits every shard.
const STEP_BYTES_MAX: u64 = 1 << 20;
const STEP_BYTES_MIN: u64 = 16 << 10;
/// One of this many entries is timed.
const TIMED_FRACTION: u64 = 8;
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
    env: &'a Env,
    /// The memory of the index, with that of writing its new series to a file.
    index_memory: &'a Mutex<Reservation>,
    /// Those of the manifest, to which the replay adds those of the log.
    tombstones: &'a Mutex<StoredTombstones>,
    /// Read while a definition is restored. Written while the restored series are written to a
    /// file, so that none is defined meanwhile.
    restoring: RwLock<()>,
    /// Whether a file of restored series could not be written.
    is_disk_full: AtomicBool,
    progress: &'a RecoveryProgress,
    /// Bytes of rows in memory beyond which they are converted to columns at once.
    rows_bytes_max: u64,
    /// Bytes of transactions' rows that were read and are not in the head yet.
    held: PeakBytes,
    /// Threads that convert rows to columns.
    converting: AtomicUsize,
    /// The costs of this replay.
    speed: ReplaySpeed,
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
    pub(crate) last: CommitSeq,
    pub(crate) report: RecoveryReport,
    pub(crate) changes: ChangeTimes,
    pub(crate) speed: ReplaySpeed,
    /// Bytes of definitions above the floors.
    pub(crate) definition_bytes: u64,
}

/// The findings of the first pass.
pub(crate) struct Survey {
    transactions: FoundTransactions,
    /// The deletes of the manifest and of the log.
    deletes: Arc<Tombstones>,
    /// Per stream, its damage and its end.
    streams: Vec<ReplayReport>,
    /// Bytes above the floors.
    bytes: u64,
    /// Rows above the floors, those of transactions included, have no older timestamp.
    oldest: Timestamp,
    definition_bytes: u64,
    /// By shard. Rows at earlier positions are not needed.
    needed_from: Vec<LogPosition>,
}

/// Transactions, which concern other streams than their own.
#[derive(Default)]
struct FoundTransactions {
    /// Per shard the transactions with rows there, for the thread that replays the shard.
    by_shard: parking_lot::Mutex<BTreeMap<ShardId, ShardTransactions>>,
    /// Number of transactions and deletes from the log.
    transaction_count: u64,
    delete_count: u64,
    /// The times of the deletes from the log.
    changes: ChangeTimes,
}

/// Transactions with rows in a shard. The rows stay in the log until the replay of the shard
/// reaches them. An entry takes about 50 bytes, less than the transaction's arena took when it was
/// written.
type ShardTransactions = BTreeMap<CommitSeq, PayloadRange>;

/// Read position in a stream.
#[derive(Default)]
struct ReadPosition {
    /// The position of the last entry.
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

/// Some shards of a stream, which one thread replays.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct StreamPart {
    stream: StreamId,
    idx: usize,
    /// The number of parts of each stream.
    count: usize,
}

/// The replay of one part of a stream.
struct StreamReplay<'a> {
    all: &'a Replay<'a>,
    part: StreamPart,
    /// By shard: whether this part has it.
    owns: Vec<bool>,
    /// See [`Survey::needed_from`].
    needed_from: &'a [LogPosition],
    /// Per shard the transactions that its replay has not reached yet.
    pending: BTreeMap<ShardId, ShardTransactions>,
    deletes: &'a Tombstones,
    /// Per shard the last delete that its replay has passed.
    passed: BTreeMap<ShardId, CommitSeq>,
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
        (env, bits, options): (&'a Env, ShardBits, &'a EngineOptions),
        cut: &'a LogCut,
        (index_memory, tombstones): (&'a Mutex<Reservation>, &'a Mutex<StoredTombstones>),
        progress: &'a RecoveryProgress,
    ) -> Replay<'a> {
        Replay {
            log,
            index,
            head,
            bits,
            options,
            floors: &cut.floors,
            env,
            index_memory,
            tombstones,
            restoring: RwLock::new(&lock::RESTORING, ()),
            is_disk_full: AtomicBool::new(false),
            progress,
            rows_bytes_max: replay_time::rows_bytes_max(options),
            held: PeakBytes::default(),
            converting: AtomicUsize::new(0),
            speed: ReplaySpeed::default(),
        }
    }

    /// Reads all streams once, on up to `thread_count` threads: finds the transactions, which are
    /// logged as of shard 0, adds their deletes to those of the manifest, and measures the log.
    ///
    /// # Errors
    /// `Invalid` for a log of a newer version; `Corrupt`; `Unavailable` if the disk fails.
    pub(crate) fn survey(&self, thread_count: usize) -> Result<Survey> {
        let read_bytes = self.log.replay_bytes(self.floors).saturating_mul(2);
        self.progress.bytes_total.store(read_bytes, Ordering::Relaxed);
        let streams: Vec<StreamId> = (0..).map(StreamId).take(self.floors.len()).collect();
        let thread_count = thread_count.min(streams.len());
        let mut surveyed =
            run_all(&streams, thread_count, |&stream| self.survey_stream(stream), || Ok(()))?;
        surveyed.sort_unstable_by_key(|surveyed| surveyed.0);
        let mut survey = Survey {
            transactions: FoundTransactions::default(),
            deletes: Arc::new(self.tombstones.lock().to_set()),
            streams: Vec::new(),
            bytes: 0,
            oldest: Timestamp::MAX,
            definition_bytes: 0,
            needed_from: vec![LogPosition(u64::MAX); self.bits.shard_count()],
        };
        for (stream, found, report) in surveyed {
            if stream == self.log.stream_of(ShardId(0)) {
                survey.transactions = found.transactions;
            }
            survey.oldest = survey.oldest.min(found.oldest);
            for (shard, base) in found.bases {
                let needed_from = survey.needed_from.get_mut(usize::from(shard.0));
                if let Some(needed_from) = needed_from.filter(|_| base.is_used) {
                    *needed_from = base.position;
                }
            }
            survey.definition_bytes =
                survey.definition_bytes.saturating_add(found.definition_bytes);
            survey.streams.push(report);
        }
        // The end of each stream is known now, so its unused space is not read again.
        survey.bytes = survey.streams.iter().map(|report| report.bytes).sum();
        let done_bytes = self.progress.bytes_done.load(Ordering::Relaxed);
        let total_bytes = done_bytes.saturating_add(survey.bytes);
        self.progress.bytes_total.store(total_bytes, Ordering::Relaxed);
        Ok(survey)
    }

    fn survey_stream(&self, stream: StreamId) -> Result<(StreamId, StreamSurvey, ReplayReport)> {
        let has_transactions = stream == self.log.stream_of(ShardId(0));
        let mut found = StreamSurvey { has_transactions, ..StreamSurvey::default() };
        let mut position = ReadPosition::default();
        let (mut from_ns, mut read_bytes) = (self.clock().monotonic_ns(), 0u64);
        let report = self.log.replay(stream, self.floor(stream), &mut |entry| {
            read_bytes = read_bytes.saturating_add(entry.payload.len() as u64);
            // Step by step: the search for the end of the log is no cost of its bytes.
            if self.advance(&mut position, entry.position, 1) {
                let now_ns = self.clock().monotonic_ns();
                let spent_ns = now_ns.saturating_sub(std::mem::replace(&mut from_ns, now_ns));
                self.speed.read.add(spent_ns, std::mem::take(&mut read_bytes));
            }
            found.note_base(&entry);
            // Tables and the manifest contain those below the floor.
            if !entry.below_floor {
                found.note(&entry, self)?;
            }
            Ok(())
        })?;
        Ok((stream, found, report))
    }

    /// Replays all streams on up to `thread_count` threads, including the caller's. Threads without
    /// work convert rows to columns meanwhile, which is most of the work of a long log (DecLog,
    /// section 4.6: inserts are recovered while the log is parsed).
    ///
    /// # Errors
    /// `Corrupt` with the path of an index file if a definition needs one of its damaged blocks;
    /// `Unavailable` if the disk fails.
    pub(crate) fn run(
        self,
        survey: Survey,
        last: CommitSeq,
        thread_count: usize,
    ) -> Result<ReplayedState> {
        let Survey { bytes, definition_bytes, ref needed_from, ref deletes, .. } = survey;
        let (transactions, reports) = (&survey.transactions, &survey.streams);
        // Rows of a short log are applied before a second thread has started.
        let part_bytes_min = (self.rows_bytes_max / 16).clamp(1, STEP_BYTES_MIN);
        let part_count = bytes.checked_div(part_bytes_min).unwrap_or(0);
        let useful = usize::try_from(part_count).unwrap_or(usize::MAX);
        let count = thread_count.clamp(1, useful.max(1)).div_ceil(reports.len().max(1));
        let parts: Vec<StreamPart> = (0..)
            .map(StreamId)
            .take(reports.len())
            .flat_map(|stream| (0..count).map(move |idx| StreamPart { stream, idx, count }))
            .collect();
        let unread = AtomicUsize::new(parts.len());
        let read = |&part: &StreamPart| {
            let _reading = CountDown(&unread);
            let report = reports.get(usize::from(part.stream.0));
            let is_damaged = report.is_some_and(|report| report.damage_count > 0);
            self.replay_part(part, (transactions, &**deletes), needed_from, is_damaged)
        };
        let convert = || {
            while unread.load(Ordering::Relaxed) > 0 {
                if self.convert(self.rows_bytes_max / 2)? != ConvertOutcome::Converted {
                    thread::park_timeout(HELPER_WAIT);
                }
            }
            Ok(())
        };
        // Rows of other logs fit into memory.
        let is_long = bytes > self.rows_bytes_max;
        let thread_count = if is_long { thread_count } else { thread_count.min(parts.len()) };
        let mut replayed = run_all(&parts, thread_count, read, convert)?;
        replayed.sort_unstable_by_key(|replayed| replayed.part);
        let mut recovered = ReplayedState { last, definition_bytes, ..ReplayedState::default() };
        recovered.report.transaction_bytes_max = self.held.bytes_max.load(Ordering::Relaxed);
        for part in replayed {
            recovered.last = recovered.last.max(part.last);
            recovered.report.add(part.report);
            recovered.changes.add(&part.changes);
        }
        recovered.changes.add(&transactions.changes);
        recovered.report.deletes = transactions.delete_count;
        recovered.report.transactions = transactions.transaction_count;
        for report in survey.streams {
            let found = report.damage.into_iter();
            let in_log = found.map(|what| FoundDamage { what, is_in_log: true });
            recovered.report.damage.extend(in_log);
            recovered.report.torn_tails.extend(report.torn_tail);
        }
        if !recovered.report.damage.is_empty() {
            recovered.report.samples_lost = self.count_unknown()?;
        }
        recovered.speed = self.speed;
        let total = self.progress.bytes_total.load(Ordering::Relaxed);
        self.progress.bytes_done.store(total, Ordering::Relaxed);
        Ok(recovered)
    }

    fn replay_part<'s>(
        &'s self,
        part: StreamPart,
        (transactions, deletes): (&FoundTransactions, &'s Tombstones),
        needed_from: &'s [LogPosition],
        is_damaged: bool,
    ) -> Result<StreamReplay<'s>> {
        let shards = self.shards_of(part);
        let mut all = transactions.by_shard.lock();
        let pending = shards.iter().filter_map(|shard| all.remove_entry(shard)).collect();
        drop(all);
        let mut owns = vec![false; self.bits.shard_count()];
        for &shard in &shards {
            if let Some(owns) = owns.get_mut(usize::from(shard.0)) {
                *owns = true;
            }
        }
        let mut replay = StreamReplay {
            all: self,
            part,
            owns,
            needed_from,
            pending,
            deletes,
            passed: BTreeMap::new(),
            seen_behind_hole: BTreeMap::new(),
            is_behind_hole: false,
            position: ReadPosition::default(),
            unchecked_transaction_bytes: 0,
            rows: Vec::new(),
            last: CommitSeq(0),
            report: RecoveryReport::default(),
            changes: ChangeTimes::default(),
        };
        let floor = self.floor(part.stream);
        self.log.replay(part.stream, floor, &mut |entry| replay.entry(entry))?;
        // New writes are younger than all transactions.
        for &shard in &shards {
            replay.apply_transactions(shard, CommitSeq(u64::MAX))?;
        }
        if is_damaged {
            for shard in shards {
                self.index.distrust(shard, replay.seen_behind_hole.get(&shard).copied())?;
            }
        }
        Ok(replay)
    }

    /// The samples in the head whose series have no definition. The next flush drops them.
    fn count_unknown(&self) -> Result<u64> {
        self.head.seal_all();
        let Some(job) = self.head.plan_flush() else { return Ok(0) };
        let mut count = 0u64;
        for chunk in job.chunks(&Tombstones::default()) {
            let (group, columns) = chunk?;
            for column in &columns.batch.columns {
                if !self.index.contains(SeriesRef { group, slot: column.slot })? {
                    count = count.saturating_add(column.values.len() as u64);
                }
            }
        }
        Ok(count)
    }

    fn floor(&self, stream: StreamId) -> LogPosition {
        self.floors.get(usize::from(stream.0)).copied().unwrap_or_default()
    }

    fn shards_of(&self, part: StreamPart) -> Vec<ShardId> {
        let shards = (0..).map(ShardId).take(self.bits.shard_count());
        let of_stream = shards.filter(|&shard| self.log.stream_of(shard) == part.stream);
        of_stream.skip(part.idx).step_by(part.count).collect()
    }

    fn clock(&self) -> &dyn Clock {
        &*self.env.clock
    }

    /// Writes series to files and converts rows until memory is within its bound, as while they
    /// were written. Waits for conversions of other threads.
    fn relieve(&self) -> Result<()> {
        self.relieve_index()?;
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

    /// Counts the memory of the index. If the restored series take too much of it, writes them to a
    /// file, to which the first manifest record of this start refers. After a crash before that
    /// record, the next start removes the file and restores the series again.
    fn relieve_index(&self) -> Result<()> {
        let is_large = |index: IndexStats| pressure::are_new_series_large(&index, self.options);
        if !is_large(self.count_index_memory()) || self.is_disk_full.load(Ordering::Relaxed) {
            return Ok(());
        }
        let _no_definitions = self.restoring.write();
        // Another thread may have done it meanwhile.
        let is_due = is_large(self.count_index_memory()) && !mutant!(self.options, IndexNotSealed);
        let Some(seal) = is_due.then(|| self.index.plan_seal()).flatten() else { return Ok(()) };
        match seal.run(&*self.env.disk) {
            Ok(part) => self.index.apply(&part)?,
            // The series stay in memory: queries are answered from a full disk too.
            Err(e) if *e.kind() == ErrorKind::Unavailable => {
                self.is_disk_full.store(true, Ordering::Relaxed);
                tracing::warn!("recovery: new series stay in memory: {e}");
            }
            Err(e) => return Err(e),
        }
        self.count_index_memory();
        Ok(())
    }

    /// Reserves the memory of the index as it is now. Returns its sizes.
    fn count_index_memory(&self) -> IndexStats {
        let index = self.index.stats();
        upkeep::hold(&index, &mut self.index_memory.lock());
        index
    }

    /// Records the read position of one of `reader_count` readers of a stream. Returns whether it
    /// is time to check memory.
    fn advance(&self, read: &mut ReadPosition, position: LogPosition, reader_count: usize) -> bool {
        let previous = read.position.replace(position).unwrap_or(position);
        let read_bytes = position.0.saturating_sub(previous.0);
        read.unreported_bytes = read.unreported_bytes.saturating_add(read_bytes);
        if read.unreported_bytes < self.step_bytes() {
            return false;
        }
        let reported_bytes = std::mem::take(&mut read.unreported_bytes);
        let done_bytes = reported_bytes.checked_div(reader_count as u64).unwrap_or_default();
        self.progress.bytes_done.fetch_add(done_bytes, Ordering::Relaxed);
        self.progress.read_at_ns.store(self.clock().monotonic_ns(), Ordering::Relaxed);
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
        let Some(job) = self.head.plan_convert_rows(1) else {
            return Ok(ConvertOutcome::InProgress);
        };
        let (row_count, started_ns) = (job.input_rows(), self.clock().monotonic_ns());
        let converted = job.run()?;
        let spent_ns = self.clock().monotonic_ns().saturating_sub(started_ns);
        self.speed.conversion.add(spent_ns, row_count);
        self.head.apply_convert(converted);
        Ok(ConvertOutcome::Converted)
    }
}

/// The findings of the first pass in one stream.
struct StreamSurvey {
    /// Whether it is the stream of the transactions.
    has_transactions: bool,
    transactions: FoundTransactions,
    oldest: Timestamp,
    definition_bytes: u64,
    bases: BTreeMap<ShardId, RowsBase>,
}

/// The base of a shard's rows above the floor.
#[derive(Clone, Copy, Default)]
struct RowsBase {
    /// The position of the last payload that needs no earlier one, at or before the first row above
    /// the floor.
    position: LogPosition,
    /// Whether there is a row above the floor.
    is_used: bool,
}

impl Default for StreamSurvey {
    fn default() -> StreamSurvey {
        let transactions = FoundTransactions::default();
        let (oldest, bases) = (Timestamp::MAX, BTreeMap::new());
        let (has_transactions, definition_bytes) = (false, 0);
        StreamSurvey { has_transactions, transactions, oldest, definition_bytes, bases }
    }
}

impl StreamSurvey {
    fn note(&mut self, entry: &ReplayEntry<'_>, all: &Replay<'_>) -> Result<()> {
        match entry.kind {
            EntryKind::Definition => {
                let bytes = entry.payload.len() as u64;
                self.definition_bytes = self.definition_bytes.saturating_add(bytes);
            }
            EntryKind::Rows => self.note_rows(entry.payload),
            EntryKind::Transaction => {
                let logged = LoggedTransaction::decode(entry.seq, all.bits, entry.payload)?;
                for (_, rows) in &logged.rows {
                    self.note_rows(entry.payload.get(rows.clone()).unwrap_or_default());
                }
                if self.has_transactions {
                    self.transactions.note(entry, logged, all)?;
                }
            }
        }
        Ok(())
    }

    fn note_base(&mut self, entry: &ReplayEntry<'_>) {
        if entry.kind != EntryKind::Rows {
            return;
        }
        let base = self.bases.entry(entry.shard).or_default();
        if base.is_used {
            return;
        }
        if firn_head::is_fresh(entry.payload) {
            base.position = entry.position;
        }
        base.is_used = !entry.below_floor;
    }

    fn note_rows(&mut self, payload: &[u8]) {
        // The second pass reports a payload that is none.
        let range = firn_head::payload_range(payload).unwrap_or(TimeRange::ALL);
        self.oldest = self.oldest.min(range.start);
    }
}

impl Survey {
    /// The oldest timestamp of a row that only the log has; the greatest of all without rows.
    pub(crate) fn oldest(&self) -> Timestamp {
        self.oldest
    }

    /// The deletes of the manifest and of the log.
    pub(crate) fn deletes(&self) -> &Arc<Tombstones> {
        &self.deletes
    }
}

impl FoundTransactions {
    fn note(
        &mut self,
        entry: &ReplayEntry<'_>,
        logged: LoggedTransaction<'_>,
        all: &Replay<'_>,
    ) -> Result<()> {
        self.transaction_count = self.transaction_count.saturating_add(1);
        for (shard, rows) in logged.rows {
            let rows = entry.payload_range(rows);
            self.by_shard.get_mut().entry(shard).or_default().insert(entry.seq, rows);
        }
        if !mutant!(all.options, DeletesNotReplayed) {
            self.delete_count = self.delete_count.saturating_add(logged.deletes.len() as u64);
            for (seq, bytes) in logged.deletes {
                let tombstone = all.tombstones.lock().add(seq, bytes, &[])?;
                self.changes.note(tombstone.range(), seq);
            }
        }
        Ok(())
    }
}

impl StreamReplay<'_> {
    fn entry(&mut self, entry: ReplayEntry<'_>) -> Result<()> {
        if self.all.advance(&mut self.position, entry.position, self.part.count) {
            self.all.relieve()?;
        }
        if entry.after_hole {
            // Rows are deltas of previous rows: each group of this stream continues only at its
            // next whole row.
            let shards = self.all.shards_of(self.part);
            shards.into_iter().for_each(|shard| self.all.head.replay_gap(shard));
            self.is_behind_hole = true;
        }
        if !self.owns.get(usize::from(entry.shard.0)).copied().unwrap_or_default() {
            return Ok(());
        }
        self.note(&entry)?;
        let (speed, clock) = (&self.all.speed, self.all.clock());
        let cost = match entry.kind {
            EntryKind::Definition => &speed.definitions,
            EntryKind::Rows => &speed.rows,
            EntryKind::Transaction => return Ok(()),
        };
        // Most entries below the floor are skipped.
        if entry.below_floor || !self.report.entries.is_multiple_of(TIMED_FRACTION) {
            return self.apply(entry);
        }
        let (started_ns, bytes) = (clock.monotonic_ns(), entry.payload.len() as u64);
        self.apply(entry)?;
        cost.add(clock.monotonic_ns().saturating_sub(started_ns), bytes);
        Ok(())
    }

    fn apply(&mut self, entry: ReplayEntry<'_>) -> Result<()> {
        let Replay { index, head, .. } = *self.all;
        match entry.kind {
            // An index file contains those below the floor, unless their series were removed.
            EntryKind::Definition
                if entry.below_floor && !mutant!(self.all.options, RemovedSeriesReplayed) =>
            {
                Ok(())
            }
            EntryKind::Definition => {
                let _restoring = self.all.restoring.read();
                index.replay(entry.payload)
            }
            EntryKind::Rows => {
                if self.is_behind_hole {
                    self.remember_groups(entry.shard, entry.payload)?;
                }
                if !mutant!(self.all.options, TransactionReplayedLast) {
                    self.apply_transactions(entry.shard, entry.seq)?;
                }
                let needed_from = self.needed_from.get(usize::from(entry.shard.0));
                if needed_from.is_some_and(|&needed_from| entry.position < needed_from) {
                    return Ok(());
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

    /// Counts an entry.
    fn note(&mut self, entry: &ReplayEntry<'_>) -> Result<()> {
        self.report.entries = self.report.entries.saturating_add(1);
        sequence::check_stored(entry.seq, "log")?;
        self.last = self.last.max(entry.seq);
        Ok(())
    }

    /// Applies the transactions before `seq` to a shard. As at their commit, each ends the runs of
    /// rows: the rows that follow in the log are whole.
    fn apply_transactions(&mut self, shard: ShardId, seq: CommitSeq) -> Result<()> {
        while let Some(next) = self.pending.get_mut(&shard).and_then(BTreeMap::first_entry)
            && *next.key() < seq
        {
            let (seq, rows) = next.remove_entry();
            self.all.head.split_parts(shard);
            self.passed.insert(shard, seq);
            self.take_rows(shard, seq, &rows)?;
        }
        let passed = self.passed.entry(shard).or_default();
        let mut deletes = self.deletes.between(*passed, seq);
        let bits = self.all.bits;
        // One end is enough for all of them.
        if deletes.any(|deleted| touches(bits, shard, deleted)) {
            self.all.head.split_parts(shard);
        }
        *passed = CommitSeq(seq.0.saturating_sub(1)).max(*passed);
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

fn touches(bits: ShardBits, shard: ShardId, deleted: &Tombstone) -> bool {
    deleted.members().iter().any(|members| bits.shard(members.group) == shard)
}

/// Calls `run` for each of `jobs` on up to `thread_count` threads, the caller's included. A thread
/// that finds no further job calls `rest`. Returns the results in no order.
fn run_all<J: Sync, T: Send>(
    jobs: &[J],
    thread_count: usize,
    run: impl Fn(&J) -> Result<T> + Sync,
    rest: impl Fn() -> Result<()> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            done.push(run(job)?);
        }
        rest().map(|()| done)
    };
    let all: Vec<Result<Vec<T>>> = thread::scope(|scope| {
        // The caller does the jobs of helpers that cannot be started.
        let start = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
        let helpers: Vec<_> = (1..thread_count).map_while(start).collect();
        let panicked = |_| Err(Error::internal("a thread that replayed the log panicked"));
        let mine = work();
        let theirs = helpers.into_iter().map(|helper| helper.join().unwrap_or_else(panicked));
        theirs.chain([mine]).collect()
    });
    Ok(all.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use firn_model::{Labels, RowBatch};
    use firn_sim::Sim;

    use super::*;
    use crate::Engine;

    const START_MS: Timestamp = 1_760_000_000_000;

    fn open(sim: &Sim) -> Arc<Engine> {
        let options =
            EngineOptions { shard_count: 4, stream_count: Some(1), ..EngineOptions::default() };
        Engine::open(sim.env(), options, &RecoveryProgress::default()).unwrap()
    }

    /// Writes samples of one series, a request each.
    fn write(engine: &Engine, entries: std::ops::Range<i64>) {
        let labels = Labels::from_pairs([("__name__", "m"), ("instance", "i")]).unwrap();
        let series = engine.resolve(&[labels]).remove(0).unwrap();
        let mut batch = RowBatch::default();
        for entry in entries {
            batch.push(series, START_MS + entry * 15_000, entry as f64);
            engine.write(&mut batch).unwrap();
            batch.clear();
        }
    }

    fn arena_bytes(engine: &Engine) -> u64 {
        engine.rooms.head.stats().arena_bytes
    }

    /// A segment is removed once all of its rows are flushed. Until then, each start read its
    /// flushed rows into arenas again: up to 0.4 s with 1M series.
    #[test]
    fn flushed_rows_stay_in_the_log_and_are_not_replayed() {
        let sim = Sim::new(1);
        let engine = open(&sim);
        let empty_bytes = arena_bytes(&engine);
        write(&engine, 0..1_000);
        engine.flush().unwrap();
        drop(engine);

        let engine = open(&sim);
        let recovery = engine.stats().recovery;
        assert!(recovery.entries >= 1_000 && recovery.rows == 0, "{recovery:?}");
        assert_eq!(arena_bytes(&engine), empty_bytes);
        drop(engine);

        // Rows after a flush in the same segment.
        let sim = Sim::new(2);
        let engine = open(&sim);
        write(&engine, 0..1_000);
        engine.flush().unwrap();
        write(&engine, 1_000..1_005);
        drop(engine);
        let engine = open(&sim);
        let recovery = engine.stats().recovery;
        assert!(recovery.entries >= 1_005 && recovery.rows == 5, "{recovery:?}");
    }
}
