//! Opening: lock, manifest, index, tree, then the log is replayed into index and head.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use firn_codec::{Tombstone, Tombstones};
use firn_env::{Bucket, Clock, Env};
use firn_head::Head;
use firn_index::{Index, LostSeries};
use firn_log::{EntryKind, Log, LogSetup, PayloadRange, ReplayEntry, StreamId};
use firn_model::{
    Budget, CommitSeq, Error, ErrorKind, GroupId, LogPosition, Pool, Result, ShardBits, ShardId,
    TimeRange, decode_varint, encode_varint,
};
use firn_tree::Tree;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::commit::{Logged, Transactions};
use crate::counted::Counted;
use crate::definitions::Definitions;
use crate::delete::{self, DeleteState, TAG_FORGOTTEN, TAG_TOMBSTONES};
use crate::lost_index::LostFiles;
use crate::manifest::{Edit, Found, Manifest, Room};
use crate::planted::Planted;
use crate::replayed::{ChangeTimes, ReplayedLog};
use crate::sequence::Sequence;
use crate::stats::Counters;
use crate::tier::{self, TAG_CLAIM, TAG_SLOW, TAG_WRITER, Tier};
use crate::{Engine, EngineOptions, replica, upkeep};

const TAG_IDENTITY: u8 = 1;
const TAG_SEQUENCE: u8 = 2;

/// What is decided when a database is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    shard_count: u64,
    stream_count: u64,
}

/// How far a recovery is; for a page that people watch while they wait.
#[derive(Debug, Default)]
pub struct RecoveryProgress {
    /// Log bytes to read; those of the stream with the deletes count twice, because they are looked for first.
    pub bytes_total: AtomicU64,
    /// Log bytes read.
    pub bytes_done: AtomicU64,
    /// Since when, by the clock's monotonic time; 0 before that.
    pub started_ns: AtomicU64,
    /// When bytes were read last, by the same clock.
    pub read_at_ns: AtomicU64,
}

impl RecoveryProgress {
    /// Milliseconds that the rest takes if it is read as quickly as what was read; `None` before the first
    /// bytes are.
    pub fn left_ms(&self) -> Option<u64> {
        let [total, done, started, at] =
            [&self.bytes_total, &self.bytes_done, &self.started_ns, &self.read_at_ns]
                .map(|number| number.load(Ordering::Relaxed));
        let spent_ms = at.checked_sub(started)? as f64 / 1e6;
        (done > 0).then(|| (spent_ms * total.saturating_sub(done) as f64 / done as f64) as u64)
    }
}

/// What recovery met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Log entries read.
    pub entries: u64,
    /// Rows put into the head.
    pub rows: u64,
    /// Transactions that were taken from the log.
    pub transactions: u64,
    /// The most bytes of their rows that were in memory at one time, beside the head.
    pub transaction_bytes_max: u64,
    /// Deletes that were taken from the log, in transactions.
    pub deletes: u64,
    /// Rows that could not be decoded because the log is damaged before them.
    pub rows_lost: u64,
    /// One sentence for each stream whose end a crash tore: writes that were not acknowledged.
    pub torn_tails: Vec<String>,
    /// One sentence for each damaged place in log or manifest.
    pub damage: Vec<String>,
    /// Index files that were written anew ([`EngineOptions::repair_index`]) or fetched from the slow tier, and what is lost
    /// by that.
    pub index_repairs: Vec<(String, Option<LostSeries>)>,
}

impl Engine {
    /// See [`Engine::open`].
    pub(crate) fn open_without(
        lost: &LostFiles,
        env: Env,
        options: EngineOptions,
        progress: &RecoveryProgress,
    ) -> Result<Arc<Engine>> {
        let (wanted, read_only) = (options.stream_count, options.read_only);
        let engine = Engine::open_as_made(lost, env.clone(), options.clone(), progress)?;
        let found = engine.identity.stream_count;
        let Some(stream_count) = wanted.filter(|&wanted| wanted as u64 != found && !read_only)
        else {
            return Ok(engine.share());
        };
        // Full, or failing: it answers as it is, and the next start tries again.
        let keeps = |why: Error| tracing::error!("the log keeps its number of streams: {why}");
        if !engine.planted(Planted::StreamsChangedUnflushed)
            && let Err(e) = engine.flush()
        {
            keeps(e);
            return Ok(engine.share());
        }
        if let Err(e) = engine.change_stream_count(stream_count as u64) {
            // The record may be whole in one copy, and then the next start passes over all that is logged from here on. A
            // new manifest file, which follows a failed record, says that nothing has changed.
            engine.commit_edit(Edit::default(), || Ok(())).map_err(|e| {
                e.context("it is not known how many streams the log has; start again")
            })?;
            keeps(e);
            return Ok(engine.share());
        }
        let recovery = engine.recovery.clone();
        drop(engine);
        let lost = &LostFiles::default();
        let engine = Engine::open_as_made(lost, env, options, progress)?;
        Ok(Engine { recovery, ..engine }.share())
    }

    /// Opens it with the number of streams that it has.
    fn open_as_made(
        lost: &LostFiles,
        env: Env,
        options: EngineOptions,
        progress: &RecoveryProgress,
    ) -> Result<Engine> {
        let lock = env.disk.lock()?;
        let log_lock = env.log.as_ref().map(|disk| disk.lock()).transpose()?;
        let counted = Arc::new(Counted::new(env.bucket));
        let bucket: Arc<dyn Bucket> = Arc::<Counted>::clone(&counted);
        let env = Env { bucket, ..env };
        let (manifest, mut found) = Manifest::open(Arc::clone(&env.disk))?;
        let is_new = found.edits.is_empty();
        let mut followed = None;
        if options.read_only {
            let described = replica::begin(&env, is_new)?;
            found.edits = vec![described.state.clone()];
            followed = Some(described);
        } else if is_new {
            tier::check_unclaimed(&*env.bucket)?;
        }
        let state = State::read(&found, &options)?;
        let budget = Budget::new(options.memory_bytes_max);
        let bits = ShardBits::for_count(state.identity.shard_count as usize);
        options.head.check()?;
        let tree_options = firn_tree::TreeOptions {
            #[cfg(feature = "test-util")]
            mutant: options.planted.and_then(Planted::of_tree),
            ..options.tree.clone()
        };
        let tree = Tree::open(&env, tree_options, &parts(&found, Room::Tree), budget.clone())?;
        let tier = Tier::new(state.mark, state.claims, options.forget_lost_history);
        let mut damage = Vec::new();
        let (index_parts, index_repairs) =
            lost.leave_out(&env, &found, (&tier, &tree), &mut damage)?;
        let index = Index::open(
            Arc::clone(&env.disk),
            bits,
            options.index.clone(),
            &index_parts.iter().map(Vec::as_slice).collect::<Vec<_>>(),
        )?;
        let head = Head::new(bits, options.head.clone(), budget.clone());
        let log = Log::open(
            Arc::clone(env.log_disk()),
            Arc::clone(&env.clock),
            LogSetup {
                stream_count: state.identity.stream_count as usize,
                shard_count: bits.shard_count(),
                unit_bytes: env.log_disk().unit_bytes(),
                options: options.log,
            },
        )?;
        log.discard_other_streams(state.cut.floors.iter().min().copied().unwrap_or_default())?;
        progress.started_ns.store(env.clock.monotonic_ns(), Ordering::Relaxed);
        let replay = Replay {
            log: &log,
            clock: &*env.clock,
            index: &index,
            head: &head,
            bits,
            floors: &state.cut.floors,
            progress,
            rows_bytes_max: options.head_bytes_max / ROWS_SHARE,
            deletes_forgotten: options.planted == Some(Planted::DeletesNotReplayed),
            takes_transactions_last: options.planted == Some(Planted::TransactionReplayedLast),
            takes_removed: options.planted == Some(Planted::RemovedSeriesReplayed),
            held: Held::default(),
            converting: AtomicUsize::new(0),
        };
        let flushed_deletes = state.tombstones.keys().next_back().copied().unwrap_or_default();
        let Recovered { tombstones, last, mut report, changes: times } =
            replay.run(state.tombstones, state.last, options.recovery_threads)?;
        report.index_repairs = index_repairs;
        report.damage.splice(0..0, found.repaired.iter().cloned().chain(damage));
        for damage in &report.damage {
            tracing::error!("recovery: {damage}");
        }
        for tail in &report.torn_tails {
            tracing::warn!("recovery: {tail}");
        }
        let deletes_memory = budget.empty(Pool::Index);
        // A database that is larger than its memory opens all the same; what comes next is refused until it fits.
        let mut index_memory = budget.empty(Pool::Index);
        index_memory.take(index.stats().heap_bytes);
        let forgets = options.planted == Some(Planted::SequenceForgotten);
        let last = if forgets { CommitSeq(0) } else { last };
        let untold = options.planted == Some(Planted::ChangesNotToldAgain);
        let times = if untold { ChangeTimes::default() } else { times };
        let replayed = ReplayedLog { after: state.cut.told, through: last, times };
        let engine = Engine {
            bits,
            index_memory: Mutex::new(index_memory),
            transactions: Transactions::new(last, &budget),
            budget,
            caches: RwLock::default(),
            givers: RwLock::default(),
            kept_by_flush: AtomicU64::new(0),
            index,
            head,
            tree,
            log,
            manifest: Mutex::new(manifest),
            identity: state.identity,
            tier,
            counted,
            replica: Mutex::new(replica::Followed::default()),
            cut: Mutex::new(state.cut),
            replayed,
            sequence: Sequence::after(last),
            definitions: Definitions::new(bits.shard_count()),
            deletes: DeleteState::new(
                Tombstones::new(tombstones.into_iter().collect()),
                flushed_deletes,
                deletes_memory,
            ),
            view: RwLock::new(()),
            flush_lane: Mutex::new(()),
            tree_lane: Mutex::new(()),
            log_started: AtomicBool::new(false),
            flush_asked: AtomicBool::new(false),
            flushed_at_ms: AtomicI64::new(env.clock.now_ms()),
            leaving: RwLock::default(),
            // Nobody knows what went before the start; there is no hurry.
            data_gone: AtomicBool::new(true),
            removal_at_ms: AtomicI64::new(upkeep::first_removal_ms(env.clock.now_ms())),
            index_retry_at_ms: AtomicI64::new(i64::MIN),
            asleep: Mutex::new(()),
            wake: Condvar::new(),
            closed: AtomicBool::new(false),
            sink: std::sync::OnceLock::new(),
            counters: Counters::default(),
            recovery: report,
            probe: std::sync::OnceLock::new(),
            env,
            options,
            _locks: (lock, log_lock),
        };
        match followed {
            Some(described) => engine.note_followed(&described),
            None => engine.begin_writing(is_new)?,
        }
        Ok(engine)
    }
}

impl Engine {
    /// From now on the budget asks it for memory.
    fn share(self) -> Arc<Engine> {
        let engine = Arc::new(self);
        let giver: Weak<Engine> = Arc::downgrade(&engine);
        engine.budget.set_reclaimer(giver);
        engine
    }

    /// The first writes of an opened database: a manifest of our own, because the old one may be a
    /// copy short and a new database must remember its shard count, and a new segment per stream.
    ///
    /// A disk that is full does not keep an existing database from answering: then this is tried
    /// again by the next write or flush.
    fn begin_writing(&self, is_new: bool) -> Result<()> {
        let begun =
            self.commit_edit(Edit::default(), || Ok(())).and_then(|()| self.ensure_log_started());
        match begun {
            Err(e) if !is_new && *e.kind() == ErrorKind::Unavailable => {
                tracing::error!("opened for queries, writes wait: {e}");
                Ok(())
            }
            begun => begun,
        }
    }

    /// The checkpoint at which another number of streams takes effect: all that the log has is in tables, and
    /// one manifest record names the new number and floors that no segment of before reaches. Nobody writes
    /// meanwhile; afterwards the database is opened anew.
    ///
    /// # Errors
    /// Then it is not known which number a start will find.
    fn change_stream_count(&self, stream_count: u64) -> Result<()> {
        let identity = Identity { stream_count, ..self.identity };
        let floors = vec![self.log.ceiling()?; stream_count as usize];
        let cut = LogCut { floors, told: self.sequence.last() };
        let edit =
            Edit::default().with(Room::Engine, identity.encode()).with(Room::Log, cut.encode());
        self.commit_edit(edit, || Ok(()))?;
        self.closed.store(true, Ordering::Release);
        Ok(())
    }

    /// Starts the log if opening could not.
    pub(crate) fn ensure_log_started(&self) -> Result<()> {
        if self.log_started.load(Ordering::Acquire) {
            return Ok(());
        }
        let _one_at_a_time = self.flush_lane.lock();
        if !self.log_started.load(Ordering::Acquire) {
            self.log.start()?;
            self.log_started.store(true, Ordering::Release);
        }
        Ok(())
    }
}

/// The engine's own parts of the manifest.
struct State {
    identity: Identity,
    /// Of this folder, on the slow tier.
    mark: u64,
    /// Of its processes, on the slow tier; `None` in a folder of before they were remembered.
    claims: Option<Vec<u64>>,
    last: CommitSeq,
    cut: LogCut,
    tombstones: BTreeMap<CommitSeq, Arc<Tombstone>>,
}

/// What the log need not have any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogCut {
    /// Rows below are in tables, their definitions in index files; per stream.
    pub(crate) floors: Vec<LogPosition>,
    /// Every change with a larger number stands above the floors; all up to it were told before the log was cut.
    pub(crate) told: CommitSeq,
}

impl State {
    fn read(found: &Found, options: &EngineOptions) -> Result<State> {
        let mut identity = None;
        let mut mark = None;
        let mut claims = found.edits.is_empty().then(Vec::new);
        let mut last = CommitSeq(0);
        let mut tombstones = BTreeMap::new();
        for part in parts(found, Room::Engine) {
            let bad = || Error::corrupt("manifest", 0, "the engine's part is damaged");
            let (&tag, mut rest) = part.split_first().ok_or_else(bad)?;
            match tag {
                TAG_IDENTITY => {
                    let shard_count = decode_varint(&mut rest).ok_or_else(bad)?;
                    let stream_count = decode_varint(&mut rest).ok_or_else(bad)?;
                    identity = Some(Identity { shard_count, stream_count });
                }
                TAG_TOMBSTONES | TAG_FORGOTTEN => {
                    delete::read_part(tag, rest, &mut tombstones).ok_or_else(bad)??;
                }
                TAG_WRITER => mark = Some(tier::decode_writer(rest)?),
                TAG_CLAIM => claims = Some(tier::decode_claims(rest)?),
                TAG_SLOW => {}
                TAG_SEQUENCE => last = CommitSeq(decode_varint(&mut rest).ok_or_else(bad)?),
                _ => return Err(bad()),
            }
        }
        let identity = identity.unwrap_or(Identity {
            shard_count: options.shard_count as u64,
            stream_count: options.stream_count.unwrap_or(1) as u64,
        });
        let stream_count = identity.stream_count as usize;
        let cut = match parts(found, Room::Log).last() {
            Some(part) => LogCut::decode(part, stream_count)
                .ok_or_else(|| Error::corrupt("manifest", 0, "the log's part is damaged"))?,
            None => LogCut { floors: vec![LogPosition(0); stream_count], told: CommitSeq(0) },
        };
        let mark = mark.unwrap_or_else(tier::new_mark);
        Ok(State { identity, mark, claims, last, cut, tombstones })
    }
}

/// The last commit and the deletes that a state on the slow tier knows.
pub(crate) fn read_engine_parts(
    state: &Edit,
) -> Result<(CommitSeq, BTreeMap<CommitSeq, Arc<Tombstone>>)> {
    let found = Found { edits: vec![state.clone()], ..Found::default() };
    let state = State::read(&found, &EngineOptions::default())?;
    Ok((state.last, state.tombstones))
}

impl Identity {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = vec![TAG_IDENTITY];
        encode_varint(self.shard_count, &mut out);
        encode_varint(self.stream_count, &mut out);
        out
    }
}

pub(crate) fn encode_sequence(last: CommitSeq) -> Vec<u8> {
    let mut out = vec![TAG_SEQUENCE];
    encode_varint(last.0, &mut out);
    out
}

impl LogCut {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.floors.iter().for_each(|floor| encode_varint(floor.0, &mut out));
        encode_varint(self.told.0, &mut out);
        out
    }

    fn decode(mut part: &[u8], stream_count: usize) -> Option<LogCut> {
        let floor = |_| decode_varint(&mut part).map(LogPosition);
        let floors = (0..stream_count).map(floor).collect::<Option<Vec<_>>>()?;
        Some(LogCut { floors, told: CommitSeq(decode_varint(&mut part)?) })
    }
}

pub(crate) fn parts(found: &Found, room: Room) -> Vec<&[u8]> {
    found.edits.iter().flat_map(|edit| edit.parts(room)).collect()
}

/// Rows that came in faster than they became columns may take this share of what starts a flush.
const ROWS_SHARE: u64 = 4;
/// So many bytes of log are read before anybody looks at that, of a stream; in memory they may take five times as much. And at least
/// so many, because it is a look at every shard.
const STEP_BYTES_MAX: u64 = 1 << 20;
const STEP_BYTES_MIN: u64 = 16 << 10;
/// So many threads recover a long log at most, if it has no more streams.
const THREADS_MAX: usize = 8;
/// Who finds too few rows to help with looks again.
const HELPER_WAIT: Duration = Duration::from_millis(1);
/// Room for a transaction's rows that is kept for the next one.
const ROWS_BYTES_KEPT: usize = 1 << 20;

/// What all streams are replayed into. Two passes: the stream that has the deletes is searched for them, because
/// they concern rows of all others; then the streams are replayed side by side.
struct Replay<'a> {
    log: &'a Log,
    index: &'a Index,
    head: &'a Head,
    bits: ShardBits,
    floors: &'a [LogPosition],
    clock: &'a dyn Clock,
    progress: &'a RecoveryProgress,
    /// Bytes of rows in memory beyond which they become columns at once.
    rows_bytes_max: u64,
    deletes_forgotten: bool,
    takes_transactions_last: bool,
    takes_removed: bool,
    /// Bytes of transactions' rows that were read and are not in the head yet.
    held: Held,
    /// Threads that make columns of rows.
    converting: AtomicUsize,
}

/// How much there is of something, and the most there was.
#[derive(Debug, Default)]
struct Held {
    bytes: AtomicU64,
    bytes_max: AtomicU64,
}

/// What a replay ends with.
#[derive(Default)]
struct Recovered {
    tombstones: BTreeMap<CommitSeq, Arc<Tombstone>>,
    last: CommitSeq,
    report: RecoveryReport,
    changes: ChangeTimes,
}

/// Entries that concern other streams than their own.
#[derive(Default)]
struct Controls {
    tombstones: BTreeMap<CommitSeq, Arc<Tombstone>>,
    /// Per shard the transactions that touch it. Each goes to who replays the shard.
    borders: Mutex<BTreeMap<ShardId, Borders>>,
    /// How many came from the log.
    transaction_count: u64,
    delete_count: u64,
    /// Of the deletes that came from the log.
    changes: ChangeTimes,
}

/// Transactions that touch a shard, each with the rows that it has there, if any. They stay in the log until the shard's
/// rows have come to them: some 50 bytes here, less than what a transaction's arena took when it was written.
type Borders = BTreeMap<CommitSeq, Option<PayloadRange>>;

/// Where the reading of a stream is.
#[derive(Default)]
struct Pace {
    /// Of the last entry.
    position: Option<LogPosition>,
    /// What was read since it was told how far it is.
    untold_bytes: u64,
}

/// What became of looking whether rows take too much memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relief {
    NotNeeded,
    /// All that could be made columns of is in work.
    Nothing,
    Done,
}

/// Counts down when it is dropped, also by a failure: nobody waits then for what will not come.
struct Left<'a>(&'a AtomicUsize);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The replay of one stream.
struct StreamReplay<'a> {
    all: &'a Replay<'a>,
    stream: StreamId,
    /// Per shard the transactions that its rows have not reached yet.
    borders: BTreeMap<ShardId, Borders>,
    /// The largest group that rows behind a hole were seen of, per shard.
    seen_behind_hole: BTreeMap<ShardId, GroupId>,
    is_behind_hole: bool,
    pace: Pace,
    /// Bytes of transactions since anybody looked at the head's size.
    unlooked_transaction_bytes: u64,
    /// Rows of one transaction.
    rows: Vec<u8>,
    last: CommitSeq,
    report: RecoveryReport,
    changes: ChangeTimes,
}

impl Replay<'_> {
    /// Replays all streams on up to `thread_count` threads, this one among them. Those that have no stream to read make
    /// columns of rows meanwhile, which takes most of the time of a long log (DecLog 4.6: inserts are recovered while the log
    /// is parsed).
    fn run(
        &self,
        tombstones: BTreeMap<CommitSeq, Arc<Tombstone>>,
        last: CommitSeq,
        thread_count: usize,
    ) -> Result<Recovered> {
        let bytes_total = self.log.replay_bytes(self.floors);
        // The stream with the deletes is read twice.
        let searched = usize::from(self.log.stream_of(ShardId(0)).0);
        let others = |(idx, floor)| if idx == searched { floor } else { LogPosition(u64::MAX) };
        let floors: Vec<LogPosition> =
            self.floors.iter().copied().enumerate().map(others).collect();
        let searched_bytes = self.log.replay_bytes(&floors);
        self.progress.bytes_total.store(bytes_total + searched_bytes, Ordering::Relaxed);
        let controls = self.controls(tombstones)?;
        let streams: Vec<StreamId> =
            (0..self.floors.len()).map(|stream| StreamId(stream as u16)).collect();
        // A short log never has too many rows in memory.
        let is_long = bytes_total > self.rows_bytes_max;
        let useful = if is_long { streams.len().max(THREADS_MAX) } else { streams.len() };
        let thread_count = thread_count.clamp(1, useful);
        let (next, unread) = (AtomicUsize::new(0), AtomicUsize::new(streams.len()));
        let work = || {
            let mut done = Vec::new();
            while let Some(&stream) = streams.get(next.fetch_add(1, Ordering::Relaxed)) {
                let _reading = Left(&unread);
                done.push(self.stream(stream, &controls)?);
            }
            while unread.load(Ordering::Relaxed) > 0 {
                if self.convert(self.rows_bytes_max / 2)? != Relief::Done {
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
            Recovered { tombstones: controls.tombstones, last, ..Recovered::default() };
        recovered.changes = controls.changes;
        recovered.report.deletes = controls.delete_count;
        recovered.report.transactions = controls.transaction_count;
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

    /// Those of the manifest, and those of the log, which are all of shard 0.
    fn controls(&self, tombstones: BTreeMap<CommitSeq, Arc<Tombstone>>) -> Result<Controls> {
        let mut controls = Controls::default();
        for (seq, tombstone) in tombstones {
            controls.add(self.bits, seq, tombstone);
        }
        let stream = self.log.stream_of(ShardId(0));
        let floor = self.floors.get(usize::from(stream.0)).copied().unwrap_or_default();
        let mut pace = Pace::default();
        self.log.replay(stream, floor, &mut |entry| {
            self.tell(&mut pace, entry.position);
            // Tables and the manifest have those below the floor.
            if entry.kind != EntryKind::Transaction || entry.below_floor {
                return Ok(());
            }
            let logged = Logged::decode(entry.seq, entry.payload)?;
            controls.transaction_count += 1;
            for (shard, rows) in logged.rows {
                let rows = Some(entry.payload_range(rows));
                controls.borders.get_mut().entry(shard).or_default().insert(entry.seq, rows);
            }
            if !self.deletes_forgotten {
                controls.delete_count += logged.deletes.len() as u64;
                for (seq, one) in logged.deletes {
                    controls.changes.note(one.range(), seq);
                    controls.add(self.bits, seq, one);
                }
            }
            Ok(())
        })?;
        Ok(controls)
    }

    fn stream(&self, stream: StreamId, controls: &Controls) -> Result<StreamReplay<'_>> {
        let shards = self.shards_of(stream);
        let mut all = controls.borders.lock();
        let borders = shards.iter().filter_map(|shard| all.remove_entry(shard)).collect();
        drop(all);
        let mut replay = StreamReplay {
            all: self,
            stream,
            borders,
            seen_behind_hole: BTreeMap::new(),
            is_behind_hole: false,
            pace: Pace::default(),
            unlooked_transaction_bytes: 0,
            rows: Vec::new(),
            last: CommitSeq(0),
            report: RecoveryReport::default(),
            changes: ChangeTimes::default(),
        };
        let floor = self.floors[usize::from(stream.0)];
        let found = self.log.replay(stream, floor, &mut |entry| replay.entry(entry))?;
        // What is written from here on is younger than all of them.
        for &shard in &shards {
            replay.take_borders(shard, CommitSeq(u64::MAX))?;
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

    fn shards_of(&self, stream: StreamId) -> Vec<ShardId> {
        let shards = (0..self.bits.shard_count() as u16).map(ShardId);
        shards.filter(|&shard| self.log.stream_of(shard) == stream).collect()
    }

    /// Keeps memory where it was while the rows were written: then, too, they became columns. What others make of them is
    /// waited for.
    fn relieve(&self) -> Result<()> {
        loop {
            match self.convert(self.rows_bytes_max)? {
                Relief::Done => {}
                Relief::Nothing if self.converting.load(Ordering::SeqCst) > 0 => {
                    thread::park_timeout(HELPER_WAIT);
                }
                Relief::Nothing | Relief::NotNeeded => return Ok(()),
            }
        }
    }

    /// Tells how far the reading is. Returns whether it is time to look at memory.
    fn tell(&self, pace: &mut Pace, position: LogPosition) -> bool {
        let before = pace.position.replace(position).unwrap_or(position);
        pace.untold_bytes += position.0.saturating_sub(before.0);
        if pace.untold_bytes < self.step_bytes() {
            return false;
        }
        let told_bytes = std::mem::take(&mut pace.untold_bytes);
        self.progress.bytes_done.fetch_add(told_bytes, Ordering::Relaxed);
        self.progress.read_at_ns.store(self.clock.monotonic_ns(), Ordering::Relaxed);
        true
    }

    fn step_bytes(&self) -> u64 {
        (self.rows_bytes_max / 16).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX)
    }

    /// Makes columns of some rows if they take more than `bytes_max`; others do the same of other shards.
    fn convert(&self, bytes_max: u64) -> Result<Relief> {
        if self.head.stats().arena_bytes <= bytes_max {
            return Ok(Relief::NotNeeded);
        }
        self.converting.fetch_add(1, Ordering::SeqCst);
        let _converting = Left(&self.converting);
        let Some(job) = self.head.plan_convert() else { return Ok(Relief::Nothing) };
        self.head.apply_convert(job.run()?);
        Ok(Relief::Done)
    }
}

impl Controls {
    fn add(&mut self, bits: ShardBits, seq: CommitSeq, tombstone: Arc<Tombstone>) {
        for shard in delete::touched_shards(bits, &tombstone) {
            self.borders.get_mut().entry(shard).or_default().entry(seq).or_default();
        }
        self.tombstones.insert(seq, tombstone);
    }
}

impl StreamReplay<'_> {
    fn entry(&mut self, entry: ReplayEntry<'_>) -> Result<()> {
        self.note(&entry)?;
        let Replay { index, head, .. } = *self.all;
        if entry.after_hole {
            // Rows are deltas against rows before them: none of this stream's groups may go on
            // before its next whole row.
            self.all.shards_of(self.stream).into_iter().for_each(|shard| head.replay_gap(shard));
            self.is_behind_hole = true;
        }
        match entry.kind {
            // A segment has those below the floor, or had them: what left the index must not come back.
            EntryKind::Definition if entry.below_floor && !self.all.takes_removed => Ok(()),
            EntryKind::Definition => index.replay(entry.payload),
            EntryKind::Rows => {
                if self.is_behind_hole {
                    self.remember_groups(entry.shard, entry.payload)?;
                }
                if !self.all.takes_transactions_last {
                    self.take_borders(entry.shard, entry.seq)?;
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
                    self.report.rows += rows.row_count;
                    self.changes.note(rows.range, entry.seq);
                }
                self.report.rows_lost += rows.refused_count;
                Ok(())
            }
            // Read before.
            EntryKind::Transaction => Ok(()),
        }
    }

    /// Counts an entry, tells how far it is, and sees to it that memory does not grow with the log.
    fn note(&mut self, entry: &ReplayEntry<'_>) -> Result<()> {
        self.report.entries += 1;
        self.last = self.last.max(entry.seq);
        if self.all.tell(&mut self.pace, entry.position) { self.all.relieve() } else { Ok(()) }
    }

    /// The shard's rows have come to `seq`: transactions with smaller numbers stand before it. As when they were
    /// committed, they end the run of rows: what follows in the log is whole there.
    fn take_borders(&mut self, shard: ShardId, seq: CommitSeq) -> Result<()> {
        while let Some(next) = self.borders.get_mut(&shard).and_then(BTreeMap::first_entry)
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

    /// Reads a transaction's rows of one shard again and puts them into the head.
    fn take_rows(&mut self, shard: ShardId, seq: CommitSeq, stored: &PayloadRange) -> Result<()> {
        let (held, bytes) = (&self.all.held, stored.bytes() as u64);
        let now = held.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        held.bytes_max.fetch_max(now, Ordering::Relaxed);
        let mut rows = std::mem::take(&mut self.rows);
        stored.read(&mut rows)?;
        let range = self.remember_groups(shard, &rows)?;
        self.changes.note(range, seq);
        self.report.rows += self.all.head.replay_transaction(shard, seq, &rows)?;
        rows.shrink_to(ROWS_BYTES_KEPT);
        self.rows = rows;
        held.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.unlooked_transaction_bytes += bytes;
        if self.unlooked_transaction_bytes < self.all.step_bytes() {
            return Ok(());
        }
        self.unlooked_transaction_bytes = 0;
        self.all.relieve()
    }

    /// Their definitions may be in a hole. Returns the times of the rows.
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

impl RecoveryReport {
    fn add(&mut self, other: RecoveryReport) {
        self.entries += other.entries;
        self.rows += other.rows;
        self.deletes += other.deletes;
        self.rows_lost += other.rows_lost;
        self.torn_tails.extend(other.torn_tails);
        self.damage.extend(other.damage);
    }
}
