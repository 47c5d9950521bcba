//! Opening a database, stage by stage: lock, manifest, identity, tree, index mended, rooms, log
//! replayed, first manifest written.

use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;

use firn_env::{Bucket, Env, FolderLock};
use firn_head::Head;
use firn_index::Index;
use firn_log::{Log, LogSetup};
use firn_model::{
    Budget, CommitSeq, Error, ErrorKind, LogPosition, Mutex, Pool, Reclaim, Reservation, Result,
    RwLock, ShardBits,
};
use firn_tree::{Tree, TreeOptions};

use crate::Engine;
use crate::changes::ChangeFeed;
use crate::commit::Transactions;
use crate::definitions::Definitions;
use crate::edit::{Edit, Room};
use crate::flush::Flusher;
use crate::folder::{Folder, new_mark};
use crate::history::History;
use crate::ledger::Ledger;
use crate::lock;
use crate::manifest::{Manifest, ManifestContents};
use crate::mend::IndexMender;
use crate::options::EngineOptions;
use crate::parts::{self, EngineParts, Identity, LogCut};
use crate::pressure::Pressure;
use crate::readers::Readers;
use crate::recovery::{FoundDamage, RecoveryProgress, RecoveryReport};
use crate::replay::{Replay, ReplayedState};
use crate::replay_time;
use crate::replayed::{ChangeTimes, ReplayedLog};
use crate::rooms::Rooms;
use crate::scheduler::Lanes;
use crate::sequence::Sequence;
use crate::slow::description::{self, Description};
use crate::slow::requests::CountedBucket;
use crate::slow::state::SlowTier;
use crate::slow::{claim, follow};
use crate::stats::Counters;
use crate::stored_tombstones::StoredTombstones;
use crate::tombstones::TombstoneSet;
use crate::unnamed::UnnamedFiles;
use crate::upkeep::IndexUpkeep;
use crate::wakeup::Wakeup;

/// The locks of an open database, held until it is dropped.
pub(crate) struct FolderLocks {
    data: Box<dyn FolderLock>,
    log: Option<Box<dyn FolderLock>>,
}

impl FolderLocks {
    /// Whether the paths of the folders still lead to those that were opened.
    pub(crate) fn are_in_place(&self) -> bool {
        self.data.is_in_place() && self.log.as_ref().is_none_or(|log| log.is_in_place())
    }
}

/// The engine's state in the manifest.
struct RecordedState {
    identity: Identity,
    cut: LogCut,
    /// See [`EngineParts`].
    last: CommitSeq,
    mark: Option<u64>,
    claims: Option<Vec<u64>>,
}

/// The rooms after the replay of the log, and the other results of the replay.
struct ReplayedRooms {
    index: Index,
    head: Head,
    log: Log,
    state: ReplayedState,
    tombstones: StoredTombstones,
    index_memory: Reservation,
}

impl Engine {
    /// Opens the database of `env`, or creates one in an empty folder.
    ///
    /// # Errors
    /// `Busy` if another process has it open. `Corrupt` if both copies of the manifest are damaged,
    /// or, without `forget_lost_index`, if an index file is damaged or missing and the slow tier
    /// has no copy. `Conflict` if the slow tier has a database and the folder is empty or has
    /// another one, or if a replica's folder has one; `NotFound` if a replica's slow tier has none.
    /// `Invalid` for a format of a newer version or for options out of range; `Unavailable`.
    pub fn open(
        env: Env,
        options: EngineOptions,
        progress: &RecoveryProgress,
    ) -> Result<Arc<Engine>> {
        let requested = options.stream_count.filter(|_| !options.read_only);
        if let Some(count) = requested.filter(|&count| !parts::is_count(count)) {
            return Err(Error::invalid(format!(
                "stream_count: expected 1 to 65,535 log streams, got {count}"
            )));
        }
        let engine = open_as_recorded(env.clone(), options.clone(), progress)?;
        let recorded = engine.ledger.identity().stream_count;
        let Some(stream_count) = requested.filter(|&count| count != recorded) else {
            return Ok(share(engine));
        };
        if let Err(why) = prepare_stream_change(&engine) {
            tracing::error!("opening: the log keeps {recorded} streams: {why}");
            return Ok(share(engine));
        }
        if let Err(why) = record_stream_count(&engine, stream_count) {
            // The record may be whole in one copy; then the next start would ignore everything that
            // is logged from now on. A new manifest file, which follows a failed record, records
            // that nothing has changed.
            engine.ledger.commit(&engine.rooms, Edit::default(), || Ok(())).map_err(|e| {
                e.context("opening: the recorded number of log streams is unknown; start again")
            })?;
            tracing::error!("opening: the log keeps {recorded} streams: {why}");
            return Ok(share(engine));
        }
        let recovery = engine.recovery.clone();
        drop(engine);
        let engine = open_as_recorded(env, options, progress)?;
        Ok(share(Engine { recovery, ..engine }))
    }
}

/// Flushes everything, so that the log may be abandoned. If it fails, the database keeps its
/// streams and the next start tries again.
fn prepare_stream_change(engine: &Engine) -> Result<()> {
    if mutant!(engine, StreamsChangedUnflushed) { Ok(()) } else { engine.flush() }
}

/// Records another number of streams, and floors that no existing segment reaches, in one manifest
/// record. Tables contain everything in the log. The database is opened again afterwards.
///
/// # Errors
/// Then the number that the next start finds is unknown.
fn record_stream_count(engine: &Engine, stream_count: usize) -> Result<()> {
    let Engine { rooms, ledger, .. } = engine;
    let identity = Identity { stream_count, ..ledger.identity() };
    let floors = vec![rooms.log.ceiling()?; stream_count];
    // The next start creates their folders.
    let cut = LogCut { floors, announced: ledger.sequence.last(), is_started: false };
    let edit = Edit::default().with(Room::Engine, identity.encode()).with(Room::Log, cut.encode());
    ledger.commit(rooms, edit, || Ok(()))?;
    rooms.wakeup.close();
    Ok(())
}

/// From now on the budget requests memory from the engine.
fn share(engine: Engine) -> Arc<Engine> {
    let engine = Arc::new(engine);
    let weak: Weak<Engine> = Arc::downgrade(&engine);
    let reclaimer: Weak<dyn Reclaim> = weak;
    engine.rooms.budget.set_reclaimer(reclaimer);
    engine
}

/// Opens the database with the number of streams that its manifest records.
fn open_as_recorded(
    env: Env,
    options: EngineOptions,
    progress: &RecoveryProgress,
) -> Result<Engine> {
    let locks = lock(&env)?;
    check_access(&*env.bucket)?;
    let requests = Arc::new(CountedBucket::new(env.bucket));
    let bucket: Arc<dyn Bucket> = Arc::<CountedBucket>::clone(&requests);
    let env = Env { bucket, ..env };
    let (manifest, mut contents) = Manifest::open(Arc::clone(&env.disk))?;
    let is_new = contents.edits.is_empty();
    let budget = Budget::new(options.memory_bytes_max);
    let followed = begin_following(&env, &options, &budget, &mut contents)?;
    let is_empty = is_new && followed.is_none();
    let (recorded, tombstones) = RecordedState::read(&contents, is_empty, &options, &budget)?;
    let flushed_deletes = tombstones.through();
    let mark = recorded.mark.unwrap_or_else(new_mark);
    let folder = Folder::new(mark, recorded.claims.clone());
    options.head.check()?;
    let tree =
        Tree::open(&env, tree_options(&options), &contents.parts(Room::Tree), budget.clone())?;
    if followed.is_none() && !is_new {
        claim::check_not_foreign(&folder, &*env.bucket, &tree.version(), &budget)?;
    }
    let index_parts = contents.parts(Room::Index);
    let mut mender = IndexMender::new((&env, &options, &budget), (&folder, &tree), &index_parts);
    let replayed = open_replayed_rooms(
        (&env, &options, &tree),
        (&recorded, tombstones),
        &budget,
        &mut mender,
        progress,
    )?;
    let (index_repairs, forgotten) = (mender.repairs, mender.damage);
    let ReplayedRooms { index, head, log, state, tombstones, index_memory } = replayed;
    let report =
        finish_report(state.report, index_repairs, [contents.repaired, forgotten].concat());
    let last = if mutant!(options, SequenceForgotten) { CommitSeq(0) } else { state.last };
    let is_silent = mutant!(options, ChangesNotReplayed);
    let times = if is_silent { ChangeTimes::default() } else { state.changes };
    let announced = recorded.cut.announced;
    let recovery = ReplayedLog { report, after: announced, through: last, times };
    let tombstones = TombstoneSet::new(tombstones, flushed_deletes);
    let bits = ShardBits::for_count(recorded.identity.shard_count);
    let upkeep = IndexUpkeep::new(index_memory, &*env.clock);
    let flusher = Flusher::new(&*env.clock, state.speed);
    let stream_count = recorded.identity.stream_count;
    let readers = Readers::open(&*env.disk, stream_count)?;
    log.hold(&readers.holds(stream_count), options.reader_log_bytes_max);
    let facts = (recorded.identity, recorded.cut);
    let engine = Engine {
        transactions: Transactions::new(last, &budget),
        ledger: Ledger::new(
            manifest,
            facts,
            folder,
            Sequence::after(last, bits.shard_count()),
            tombstones,
        ),
        rooms: Rooms {
            env,
            options,
            bits,
            budget,
            index,
            head,
            tree,
            log,
            view: RwLock::new(&lock::VIEW, ()),
            wakeup: Wakeup::default(),
            #[cfg(feature = "test-util")]
            probe: std::sync::OnceLock::new(),
        },
        pressure: Pressure::default(),
        changes: ChangeFeed::default(),
        definitions: Definitions::new(bits.shard_count(), state.definition_bytes),
        upkeep,
        flusher,
        lanes: Lanes::default(),
        slow: SlowTier::new(requests),
        counters: Counters::default(),
        recovery,
        readers,
        locks,
    };
    // A database larger than its memory limit still opens; new writes are refused until it fits.
    engine.upkeep.hold_memory(&engine.rooms);
    match followed {
        Some(described) => engine.slow.note_followed(&engine.rooms, &described),
        None => begin_writing(&engine, is_new)?,
    }
    Ok(engine)
}

fn lock(env: &Env) -> Result<FolderLocks> {
    let data = env.disk.lock()?;
    let log = env.log.as_ref().map(|disk| disk.lock()).transpose()?;
    Ok(FolderLocks { data, log })
}

/// Refuses a slow tier whose bucket does not exist or whose credentials are wrong: without a person
/// it would never work. A store that is down is no reason not to start.
fn check_access(bucket: &dyn Bucket) -> Result<()> {
    match bucket.check_access(description::KEY) {
        Err(error) if *error.kind() == ErrorKind::Invalid => {
            Err(error.context("the slow tier cannot be used"))
        }
        Err(error) => {
            tracing::warn!("the slow tier is not reachable; uploads wait and are retried: {error}");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Puts the slow tier's state in place of the folder's, for a replica. Refuses a new database where
/// the slow tier has one.
fn begin_following(
    env: &Env,
    options: &EngineOptions,
    budget: &Budget,
    contents: &mut ManifestContents,
) -> Result<Option<Description>> {
    let is_new = contents.edits.is_empty();
    if options.read_only {
        let described = follow::begin(env, is_new, budget)?;
        contents.edits = vec![described.state.clone()];
        return Ok(Some(described));
    }
    if is_new {
        let files = UnnamedFiles::count(env)?;
        files.check_copies_only()?;
        claim::check_unclaimed(&*env.bucket, budget)?;
        files.check_no_copies()?;
    }
    Ok(None)
}

#[cfg(feature = "test-util")]
fn tree_options(options: &EngineOptions) -> TreeOptions {
    let mutant = options.mutant.and_then(crate::mutants::Mutant::of_tree);
    TreeOptions { mutant, ..options.tree.clone() }
}

#[cfg(not(feature = "test-util"))]
fn tree_options(options: &EngineOptions) -> TreeOptions {
    options.tree.clone()
}

impl RecordedState {
    fn read(
        contents: &ManifestContents,
        is_new: bool,
        options: &EngineOptions,
        budget: &Budget,
    ) -> Result<(RecordedState, StoredTombstones)> {
        let memory = budget.empty(Pool::Index);
        let parts = EngineParts::decode(contents.parts(Room::Engine).into_iter(), memory)?;
        let EngineParts { identity, last, tombstones, mark, claims, .. } = parts;
        let claims = if is_new { Some(Vec::new()) } else { claims };
        let identity = identity.unwrap_or(Identity {
            shard_count: options.shard_count,
            stream_count: options.stream_count.unwrap_or(1),
        });
        let stream_count = identity.stream_count;
        let cut = match contents.parts(Room::Log).last() {
            Some(part) => LogCut::decode(part, stream_count)?,
            None => LogCut { floors: vec![LogPosition(0); stream_count], ..LogCut::default() },
        };
        Ok((RecordedState { identity, cut, last, mark, claims }, tombstones))
    }
}

/// Opens index, head and log, and replays the log into them. A damaged block of an index file shows
/// only when the replay looks up a definition in it: then the file is mended and the replay starts
/// again, at most once for each way of mending a file.
fn open_replayed_rooms(
    (env, options, tree): (&Env, &EngineOptions, &Tree),
    (recorded, tombstones): (&RecordedState, StoredTombstones),
    budget: &Budget,
    mender: &mut IndexMender<'_>,
    progress: &RecoveryProgress,
) -> Result<ReplayedRooms> {
    let bits = ShardBits::for_count(recorded.identity.shard_count);
    // A further attempt finds those of the log again, which changes nothing.
    let tombstones = Mutex::new(&lock::STORED_TOMBSTONES, tombstones);
    loop {
        progress.bytes_done.store(0, Relaxed);
        let index = mender.open_index(bits)?;
        let head = Head::new(bits, options.head.clone(), budget.clone());
        let log = open_log(env, options, recorded)?;
        progress.started_ns.store(env.clock.monotonic_ns(), Relaxed);
        let index_memory = Mutex::new(&lock::INDEX_MEMORY, budget.empty(Pool::Index));
        let replay = Replay::new(
            (&log, &index, &head),
            (env, bits, options),
            &recorded.cut,
            (&index_memory, &tombstones),
            progress,
        );
        let thread_count = replay_time::threads_max(options);
        let surveyed = replay.survey(thread_count);
        let replayed = surveyed.and_then(|survey| {
            let rooms = (&index, tree);
            let log = (survey.deletes(), survey.oldest());
            let history = History::new(rooms, (bits, options), budget, log);
            progress.set_history(Some(history));
            replay.run(survey, recorded.last, thread_count)
        });
        match replayed {
            Ok(state) => {
                let tombstones = tombstones.into_inner();
                let index_memory = index_memory.into_inner();
                return Ok(ReplayedRooms { index, head, log, state, tombstones, index_memory });
            }
            Err(error) => {
                progress.set_history(None);
                drop((index, head, log));
                mender.mend(error)?;
            }
        }
    }
}

fn open_log(env: &Env, options: &EngineOptions, recorded: &RecordedState) -> Result<Log> {
    let Identity { shard_count, stream_count } = recorded.identity;
    let disk = env.log_disk();
    let unit_bytes = disk.unit_bytes();
    let setup = LogSetup { stream_count, shard_count, unit_bytes, options: options.log };
    let is_started = recorded.cut.is_started;
    let log = Log::open(Arc::clone(disk), Arc::clone(&env.clock), setup, is_started)?;
    if let Some(folder) = log.missing_stream().filter(|_| !options.forget_lost_log) {
        return Err(Error::unavailable(format!(
            "the log is missing: {folder} contains no segment. Mount its disk or put its files \
             back; or start `firn serve` with --forget-lost-log: then the samples that are in no \
             table yet are lost"
        )));
    }
    let floor = recorded.cut.floors.iter().min().copied().unwrap_or_default();
    log.discard_other_streams(floor)?;
    Ok(log)
}

/// Adds the findings outside of the log to a report, and logs all.
fn finish_report(
    mut report: RecoveryReport,
    index_repairs: Vec<crate::mend::RepairedFile>,
    damage: Vec<String>,
) -> RecoveryReport {
    report.index_repairs = index_repairs;
    let outside = damage.into_iter().map(|what| FoundDamage { what, is_in_log: false });
    report.damage.splice(0..0, outside);
    for damage in &report.damage {
        tracing::error!("recovery: {damage}");
    }
    for tail in &report.torn_tails {
        tracing::warn!("recovery: {tail}");
    }
    report
}

/// From now on a start without the log is refused.
fn record_log_started(engine: &Engine) -> Result<()> {
    let Engine { rooms, ledger, .. } = engine;
    let cut = LogCut { is_started: true, ..ledger.cut() };
    if cut == ledger.cut() {
        return Ok(());
    }
    ledger.commit(rooms, Edit::default().with(Room::Log, cut.encode()), || {
        ledger.set_cut(cut);
        Ok(())
    })
}

/// Writes a manifest of our own, because the old one may lack a copy and a new database must record
/// its shard count, and starts a new segment of each log stream.
///
/// An existing database on a full disk still answers queries: then the next write or flush tries
/// this again.
fn begin_writing(engine: &Engine, is_new: bool) -> Result<()> {
    let Engine { rooms, ledger, flusher, .. } = engine;
    let recorded = ledger.commit(rooms, Edit::default(), || Ok(()));
    let begun = recorded.and_then(|()| flusher.ensure_log_started(&rooms.log));
    match begun.and_then(|()| record_log_started(engine)) {
        Err(e) if !is_new && *e.kind() == ErrorKind::Unavailable => {
            tracing::error!("opened for queries only; writes are retried: {e}");
            Ok(())
        }
        begun => begun,
    }
}
