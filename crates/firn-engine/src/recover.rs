//! Opening: lock, manifest, index, tree, then the log is replayed into index and head.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use firn_codec::{Tombstone, Tombstones};
use firn_env::{Bucket, Env};
use firn_head::{Head, HeadOptions};
use firn_index::{Index, IndexOptions};
use firn_log::{EntryKind, Log, LogOptions, ReplayEntry, StreamId};
use firn_model::{
    Budget, CommitSeq, Error, ErrorKind, GroupId, LogPosition, Pool, Result, ShardBits, ShardId,
    decode_varint, encode_varint,
};
use firn_tree::Tree;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::counted::Counted;
use crate::delete::{self, DeleteState, TAG_FORGOTTEN, TAG_TOMBSTONES};
use crate::manifest::{Edit, Found, Manifest, Room};
use crate::planted::Planted;
use crate::sequence::Sequence;
use crate::stats::Counters;
use crate::tier::{self, TAG_SLOW, TAG_WRITER, Tier};
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
    /// Log bytes to read.
    pub bytes_total: AtomicU64,
    /// Log bytes read.
    pub bytes_done: AtomicU64,
}

/// What recovery met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Log entries read.
    pub entries: u64,
    /// Rows put into the head.
    pub rows: u64,
    /// Deletes that were taken from the log.
    pub deletes: u64,
    /// Rows that could not be decoded because the log is damaged before them.
    pub rows_lost: u64,
    /// One sentence for each stream whose end a crash tore: writes that were not acknowledged.
    pub torn_tails: Vec<String>,
    /// One sentence for each damaged place in log or manifest.
    pub damage: Vec<String>,
}

impl Engine {
    /// Opens the database of `env`, or makes one in an empty folder.
    ///
    /// # Errors
    /// `Busy` when another process has it open; `Corrupt` for a manifest that no copy can mend, an
    /// index segment that is damaged; `Invalid` for a format of a newer version; `Unavailable`.
    pub fn open(
        env: Env,
        options: EngineOptions,
        progress: &RecoveryProgress,
    ) -> Result<Arc<Engine>> {
        let lock = env.disk.lock()?;
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
        let index = Index::open(
            Arc::clone(&env.disk),
            IndexOptions {
                shard_bits: bits,
                group_by: options.group_by.clone(),
                slots_per_group_max: 4_096,
                limits: options.series_limits,
            },
            &parts(&found, Room::Index),
        )?;
        let tree_options =
            firn_tree::TreeOptions { retention_ms: options.retention_ms, ..options.tree.clone() };
        let tree = Tree::open(&env, tree_options, &parts(&found, Room::Tree), budget.clone())?;
        let head = Head::new(
            HeadOptions {
                arena_bytes_max: options.arena_bytes_max,
                hot_bytes_max: options.hot_bytes_max,
                recycle_percents: options.hot_recycle_percents,
                cooling_bytes_max: options.pinned_bytes_max,
                ..HeadOptions::new(bits)
            },
            budget.clone(),
        );
        let log = Log::open(
            Arc::clone(&env.disk),
            Arc::clone(&env.clock),
            LogOptions {
                stream_count: state.identity.stream_count as usize,
                shard_count: bits.shard_count(),
                segment_bytes: options.log_segment_bytes,
                sync: options.log_sync,
            },
        )?;
        let mut replay = Replay {
            index: &index,
            head: &head,
            bits,
            seen_behind_hole: BTreeMap::new(),
            is_behind_hole: false,
            deletes_forgotten: options.planted == Some(Planted::DeletesNotReplayed),
            takes_removed: options.planted == Some(Planted::RemovedSeriesReplayed),
            tombstones: BTreeMap::new(),
            borders: BTreeMap::new(),
            last: state.last,
            report: RecoveryReport::default(),
        };
        replay.report.damage.extend(found.repaired.iter().cloned());
        for (seq, tombstone) in state.tombstones {
            replay.take_delete(seq, tombstone);
        }
        replay.run(&log, &state.floors, progress)?;
        let Replay { last, report, tombstones, .. } = replay;
        for damage in &report.damage {
            tracing::error!("recovery: {damage}");
        }
        for tail in &report.torn_tails {
            tracing::warn!("recovery: {tail}");
        }
        let deletes_memory = budget.empty(Pool::Index);
        let mut index_memory = budget.empty(Pool::Index);
        index_memory.grow(index.stats().heap_bytes)?;
        let forgets = options.planted == Some(Planted::SequenceForgotten);
        let last = if forgets { CommitSeq(0) } else { last };
        let engine = Engine {
            bits,
            index_memory: Mutex::new(index_memory),
            budget,
            index,
            head,
            tree,
            log,
            manifest: Mutex::new(manifest),
            identity: state.identity,
            tier: Tier::new(state.mark),
            counted,
            replica: Mutex::new(replica::Followed::default()),
            floors: Mutex::new(state.floors),
            sequence: Sequence::after(last),
            deletes: DeleteState::new(
                Tombstones::new(tombstones.into_iter().collect()),
                deletes_memory,
            )?,
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
            _lock: lock,
        };
        match followed {
            Some(described) => engine.note_followed(&described),
            None => engine.begin(is_new)?,
        }
        Ok(Arc::new(engine))
    }
}

impl Engine {
    /// The first writes of an opened database: a manifest of our own, because the old one may be a
    /// copy short and a new database must remember its shard count, and a new segment per stream.
    ///
    /// A disk that is full does not keep an existing database from answering: then this is tried
    /// again by the next write or flush.
    fn begin(&self, is_new: bool) -> Result<()> {
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
    last: CommitSeq,
    floors: Vec<LogPosition>,
    tombstones: BTreeMap<CommitSeq, Arc<Tombstone>>,
}

impl State {
    fn read(found: &Found, options: &EngineOptions) -> Result<State> {
        let mut identity = None;
        let mut mark = None;
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
                TAG_SLOW => {}
                TAG_SEQUENCE => last = CommitSeq(decode_varint(&mut rest).ok_or_else(bad)?),
                _ => return Err(bad()),
            }
        }
        let identity = identity.unwrap_or(Identity {
            shard_count: options.shard_count as u64,
            stream_count: options.stream_count as u64,
        });
        let mut floors = vec![LogPosition(0); identity.stream_count as usize];
        for part in parts(found, Room::Log) {
            let mut rest = part;
            for floor in &mut floors {
                floor.0 = decode_varint(&mut rest)
                    .ok_or_else(|| Error::corrupt("manifest", 0, "the log's part is damaged"))?;
            }
        }
        let mark = mark.unwrap_or_else(tier::new_mark);
        Ok(State { identity, mark, last, floors, tombstones })
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

pub(crate) fn encode_floors(floors: &[LogPosition]) -> Vec<u8> {
    let mut out = Vec::new();
    floors.iter().for_each(|floor| encode_varint(floor.0, &mut out));
    out
}

fn parts(found: &Found, room: Room) -> Vec<&[u8]> {
    found.edits.iter().flat_map(|edit| edit.parts(room)).collect()
}

struct Replay<'a> {
    index: &'a Index,
    head: &'a Head,
    bits: ShardBits,
    /// The largest group that rows behind a hole were seen of, per shard.
    seen_behind_hole: BTreeMap<ShardId, GroupId>,
    is_behind_hole: bool,
    deletes_forgotten: bool,
    takes_removed: bool,
    /// Those of the manifest, and those of the log: the stream that has them is read first.
    tombstones: BTreeMap<CommitSeq, Arc<Tombstone>>,
    /// Per shard the deletes that touch it and that its rows have not reached yet.
    borders: BTreeMap<ShardId, BTreeSet<CommitSeq>>,
    last: CommitSeq,
    report: RecoveryReport,
}

impl Replay<'_> {
    fn run(
        &mut self,
        log: &Log,
        floors: &[LogPosition],
        progress: &RecoveryProgress,
    ) -> Result<()> {
        progress.bytes_total.store(log.stats().bytes, Ordering::Relaxed);
        for (stream, &floor) in floors.iter().enumerate() {
            let stream = StreamId(stream as u16);
            let mut last_position = None;
            let found = log.replay(stream, floor, &mut |entry| {
                let position: u64 = entry.position.0;
                let read = position - last_position.replace(position).unwrap_or(position);
                progress.bytes_done.fetch_add(read, Ordering::Relaxed);
                self.entry(log, stream, entry)
            })?;
            if found.damage_count > 0 {
                for shard in self.shards_of(log, stream) {
                    self.index.distrust(shard, self.seen_behind_hole.get(&shard).copied())?;
                }
            }
            self.is_behind_hole = false;
            self.report.damage.extend(found.damage);
            self.report.torn_tails.extend(found.torn_tail);
        }
        // What is written from here on is younger than all of them.
        for shard in std::mem::take(&mut self.borders).into_keys() {
            self.head.close_run(shard);
        }
        Ok(())
    }

    fn entry(&mut self, log: &Log, stream: StreamId, entry: ReplayEntry<'_>) -> Result<()> {
        self.report.entries += 1;
        self.last = self.last.max(entry.seq);
        if entry.after_hole {
            // Rows are deltas against rows before them: none of this stream's groups may go on
            // before its next whole row.
            self.shards_of(log, stream).for_each(|shard| self.head.lost(shard));
            self.is_behind_hole = true;
        }
        match entry.kind {
            // A segment has those below the floor, or had them: what left the index must not come back.
            EntryKind::Definition if entry.below_floor && !self.takes_removed => Ok(()),
            EntryKind::Definition => self.index.replay(entry.payload),
            EntryKind::Rows => {
                if self.is_behind_hole {
                    self.remember_groups(&entry)?;
                }
                self.close_run_at_delete(entry.shard, entry.seq);
                let apply = !entry.below_floor;
                let rows = self.head.replay(
                    entry.shard,
                    entry.seq,
                    entry.payload,
                    entry.position,
                    entry.segment.0,
                    apply,
                )?;
                self.report.rows += if apply { rows.row_count } else { 0 };
                self.report.rows_lost += rows.refused_count;
                Ok(())
            }
            // The manifest has those below the floor, or they hide nothing any more.
            EntryKind::Delete if entry.below_floor || self.deletes_forgotten => Ok(()),
            EntryKind::Delete => {
                let tombstone = Tombstone::decode(entry.payload)?;
                self.take_delete(entry.seq, Arc::new(tombstone));
                self.report.deletes += 1;
                Ok(())
            }
        }
    }

    fn take_delete(&mut self, seq: CommitSeq, tombstone: Arc<Tombstone>) {
        for shard in delete::touched_shards(self.bits, &tombstone) {
            self.borders.entry(shard).or_default().insert(seq);
        }
        self.tombstones.insert(seq, tombstone);
    }

    /// As when it was committed, a delete ends the runs of rows that it touches: what follows in the
    /// log is whole there.
    fn close_run_at_delete(&mut self, shard: ShardId, seq: CommitSeq) {
        let Some(borders) = self.borders.get_mut(&shard) else { return };
        let left = borders.split_off(&seq);
        if !borders.is_empty() {
            self.head.close_run(shard);
        }
        *borders = left;
    }

    /// Their definitions may have been in the hole.
    fn remember_groups(&mut self, entry: &ReplayEntry<'_>) -> Result<()> {
        let mut groups = Vec::new();
        firn_head::payload_groups(self.bits, entry.shard, entry.payload, &mut groups)?;
        if let Some(&last) = groups.iter().max() {
            let seen = self.seen_behind_hole.entry(entry.shard).or_insert(last);
            *seen = last.max(*seen);
        }
        Ok(())
    }

    fn shards_of(&self, log: &Log, stream: StreamId) -> impl Iterator<Item = ShardId> + use<> {
        let shards = (0..self.bits.shard_count() as u16).map(ShardId);
        let owned: Vec<ShardId> = shards.filter(|&shard| log.stream_of(shard) == stream).collect();
        owned.into_iter()
    }
}
