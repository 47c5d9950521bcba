//! The head: all shards behind one small surface.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_model::{
    Budget, CommitSeq, LogPosition, Reservation, Result, RowBatch, ShardBits, ShardId, ShardRows,
    Timestamp,
};
use parking_lot::{Mutex, MutexGuard};

use crate::convert::{ConvertEdit, ConvertJob};
use crate::epoch::Epochs;
use crate::flush::{FlushJob, HotPart, SealMarks, choose};
use crate::options::HeadOptions;
use crate::part::Form;
use crate::pool::BlockPool;
use crate::replay::ReplayedRows;
use crate::shard::Shard;
use crate::snapshot::{HeadSnapshot, ReadCounts, ShardView};
use crate::{arena, payload, words};

/// Recent rows of all groups, in memory.
///
/// Locks: one per shard, never two at once, never held over I/O or while decoding. A writer takes
/// its shard's through [`Head::shard`]; everything else takes it for a moment. The lock of the shared
/// snapshot comes before those of shards, that of the epochs after them.
pub struct Head {
    bits: ShardBits,
    options: HeadOptions,
    shards: Box<[SharedShard]>,
    epochs: Arc<Epochs<Form>>,
    blocks: Arc<BlockPool>,
    counts: Arc<ReadCounts>,
    /// The last snapshot, which serves until a shard changes. Forgotten when memory is replaced or given
    /// back, so that nothing lives longer because of it.
    last: Mutex<Option<HeadSnapshot>>,
}

/// A shard, and how often it may have changed. On cache lines of its own (processors fetch them in pairs), so that
/// who writes to its neighbour is not slowed down.
#[repr(align(128))]
struct SharedShard {
    /// Counted up under the lock, read without.
    version: AtomicU64,
    shard: Mutex<Shard>,
}

/// A locked shard. Whoever looked at it as mutable has changed it.
struct LockedShard<'a> {
    version: &'a AtomicU64,
    shard: MutexGuard<'a, Shard>,
    is_changed: bool,
}

/// The one writer of a shard. Dropping it without [`ShardWriter::stage`] abandons what was encoded.
pub struct ShardWriter<'a> {
    shard: LockedShard<'a>,
}

/// What the head holds at a moment; shards are asked one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadStats {
    /// Visible unflushed rows (pieces as they came in).
    pub row_count: u64,
    /// Bytes of arenas, growing ones and those that wait for conversion.
    pub arena_bytes: u64,
    /// How many sealed arenas wait for conversion.
    pub arena_count_waiting: u64,
    /// Bytes of unflushed segments.
    pub segment_bytes: u64,
    /// How many unflushed segments there are.
    pub segment_count: u64,
    /// Bytes of encoder states and buffers.
    pub state_bytes: u64,
    /// Bytes of flushed parts that go on serving queries.
    pub hot_bytes: u64,
    /// Bytes of blocks for columns that were used and are free, beside all others here.
    pub free_bytes: u64,
    /// Bytes of blocks, used and free.
    pub block_bytes: u64,
    /// Bytes of blocks that were used again, since the start.
    pub recycled_bytes: u64,
    /// Bytes that have left the head and stay for readers that began before.
    pub cooling_bytes: u64,
    /// Bytes that left the head since the start, and are free: flushed ones that were given back, and inputs of conversions.
    pub released_bytes: u64,
    /// Of these, bytes that were taken from readers over [`HeadOptions::cooling_bytes_max`].
    pub revoked_bytes: u64,
    /// How often a reader got flushed rows of a shard from memory.
    pub hot_hits: u64,
    /// How often a reader found flushed rows of a shard gone, and had to turn to tables.
    pub hot_misses: u64,
    /// How often a reader was told that its memory was taken.
    pub revoked_reads: u64,
}

/// The most bytes that writing `rows` may add to the head: what to reserve in
/// [`firn_model::Pool::Head`] before anything is logged. What is not needed is given back when the
/// rows are staged.
pub fn bound_bytes_of(rows: ShardRows<'_>) -> u64 {
    // A payload buffer, the arena, a state; a group of many members has 10 bytes a slot and its
    // vectors may grow to twice that.
    const PIECE: usize = payload::ROW_HEADER_BYTES_MAX + arena::ROW_HEADER_BYTES_MAX + 160;
    const CELL: usize = 20;
    let pieces = rows.pieces().map(|piece| {
        2 * firn_codec::row_bytes_max(piece.cells.len()) + PIECE + CELL * piece.cells.len()
    });
    (arena::ARENA_BYTES_MIN + words::BLOCK_BYTES + pieces.sum::<usize>()) as u64
}

/// [`bound_bytes_of`] for all shards of a batch.
///
/// # Panics
/// If the batch is not sorted.
pub fn bound_bytes(batch: &RowBatch) -> u64 {
    batch.by_shard().map(bound_bytes_of).sum()
}

impl Head {
    /// An empty head.
    pub fn new(bits: ShardBits, options: HeadOptions, budget: Budget) -> Head {
        let shard_count = bits.shard_count();
        let epochs = Arc::new(Epochs::new(options.cooling_bytes_max));
        let blocks = Arc::new(BlockPool::new(&budget));
        let shard = |id| {
            let id = ShardId(id as u16);
            let (epochs, blocks) = (Arc::clone(&epochs), Arc::clone(&blocks));
            let shard = Shard::new(id, bits, options.clone(), budget.clone(), epochs, blocks);
            SharedShard { version: AtomicU64::new(0), shard: Mutex::new(shard) }
        };
        let shards = (0..shard_count).map(shard).collect();
        Head {
            shards,
            epochs,
            blocks,
            counts: Arc::default(),
            last: Mutex::default(),
            bits,
            options,
        }
    }

    /// What it was made with.
    pub fn options(&self) -> &HeadOptions {
        &self.options
    }

    /// How groups are spread over its shards.
    pub fn shard_bits(&self) -> ShardBits {
        self.bits
    }

    /// Locks a shard for writing.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn shard(&self, shard: ShardId) -> ShardWriter<'_> {
        ShardWriter { shard: self.lock(shard) }
    }

    /// The rows that were staged at `through`, and those staged before them for the same log segment,
    /// become visible. Called once the log is durable up to there. If another writer has published
    /// them already, nothing happens. Rows of older log segments are left to their own writers: the
    /// log may have lost them.
    pub fn publish(&self, shard: ShardId, through: LogPosition) {
        self.lock(shard).publish(through);
    }

    /// Drops staged rows of `shard` after the log failed: those in log segment `segment` or an older
    /// one that are behind `durable`, up to where the log is durable. They never become visible, and
    /// every group's next row is whole. Rows up to `durable` go on waiting for their writers to
    /// publish them, rows that were staged for a later segment are not touched: each of the writers
    /// that failed may call this, in any order.
    pub fn rollback(&self, shard: ShardId, segment: u64, durable: LogPosition) {
        self.lock(shard).rollback(segment, durable);
    }

    /// Takes in a payload that the log gives back; its rows are visible at once if `apply`, else only
    /// the base of later ones. Payloads of a shard come in order of position, from the start of a log
    /// segment on, and before any row is encoded. Rows are moved, not decoded: some 15 ns each.
    ///
    /// # Errors
    /// `Corrupt` or `Invalid` if it is no payload. None of it is visible then, and the shard goes on
    /// as after [`Head::replay_gap`].
    pub fn replay(
        &self,
        shard: ShardId,
        seq: CommitSeq,
        payload: &[u8],
        position: LogPosition,
        segment: u64,
        apply: bool,
    ) -> Result<ReplayedRows> {
        self.lock(shard).replay(seq, payload, position, segment, apply)
    }

    /// The rows that transaction `seq` staged in `shard` ([`ShardWriter::stage_transaction`]) become visible, or are
    /// dropped and never will be. Later rows of the shard do not wait for this, but a flush does not
    /// take what lies behind undecided rows.
    pub fn decide_transaction(&self, shard: ShardId, seq: CommitSeq, is_shown: bool) {
        self.lock(shard).decide_transaction(seq, is_shown);
    }

    /// Takes in the rows that transaction `seq` has in `shard`, visible at once. They come after rows with
    /// smaller numbers and before rows with larger ones. Returns how many.
    ///
    /// # Errors
    /// `Corrupt` or `Invalid` if `payload` is no payload. None of it is visible then.
    pub fn replay_transaction(
        &self,
        shard: ShardId,
        seq: CommitSeq,
        payload: &[u8],
    ) -> Result<u64> {
        self.lock(shard).replay_transaction(seq, payload)
    }

    /// The log has a hole here: of each group of `shard` only a whole row is accepted next.
    /// [`ReplayedRows::refused_count`] counts what is refused.
    pub fn replay_gap(&self, shard: ShardId) {
        self.lock(shard).seal();
    }

    /// As [`ShardWriter::split_parts`], while the log is replayed: what comes next is younger than a
    /// delete that touches the shard.
    pub fn split_parts(&self, shard: ShardId) {
        self.lock(shard).split_parts();
    }

    /// The oldest commit that a visible row is from, hot ones included; `None` without rows.
    pub fn oldest_commit(&self) -> Option<CommitSeq> {
        self.shards.iter().filter_map(|shard| shard.lock().oldest()).min()
    }

    /// A frozen view of all visible rows. Costs a look at each shard's version, and a short lock and a
    /// few pointers for each shard that has changed since the last one. Plain inserts into several
    /// shards are not atomic with it: each row piece is.
    pub fn snapshot(&self) -> HeadSnapshot {
        let mut last = self.last.lock();
        let known = |idx: usize| last.as_ref().map(|last| last.shard_view(idx));
        let is_known = |(idx, shard): (usize, &SharedShard)| {
            known(idx).is_some_and(|view| shard.is_at(view.version))
        };
        if let Some(last) = &*last
            && self.shards.iter().enumerate().all(is_known)
        {
            return last.clone();
        }
        // Before the lists: what is in them now is not released from here on.
        let reader = Epochs::register(&self.epochs);
        // Whoever goes through all shards with their locks, as a writer does, is not followed from lock to lock: shards that
        // are locked now come last.
        let seen = self.shards.iter().enumerate().map(|(idx, shard)| match known(idx) {
            Some(view) if shard.is_at(view.version) => Some(Arc::clone(view)),
            _ => shard.view_if_free(),
        });
        let seen: Vec<Option<Arc<ShardView>>> = seen.collect();
        let views = seen.into_iter().zip(&self.shards);
        let views = views.map(|(seen, shard)| seen.unwrap_or_else(|| shard.view()));
        let snapshot = HeadSnapshot::new(self.bits, views, reader, Arc::clone(&self.counts));
        let old = last.replace(snapshot.clone());
        // What only the old one held goes without the lock.
        drop(last);
        drop(old);
        snapshot
    }

    /// Arenas that wait to become columns, from the shard where most wait. One job a shard at a time;
    /// `None` if nothing is to be done.
    pub fn plan_convert(&self) -> Option<ConvertJob> {
        let jobs = self.shards.iter().filter_map(|shard| shard.lock().plan_convert());
        jobs.max_by_key(ConvertJob::input_bytes)
    }

    /// Small segments that want to be merged and packed harder.
    pub fn plan_compress(&self) -> Option<ConvertJob> {
        let plan = |shard: &SharedShard| {
            shard.lock().plan_compress(
                self.options.convert.segment_fan_in,
                self.options.convert.rows_per_chunk_min,
            )
        };
        self.shards.iter().filter_map(plan).max_by_key(ConvertJob::input_bytes)
    }

    /// Swaps the outcome of a conversion in. Returns `false` if its inputs have gone or were flushed
    /// apart meanwhile: nothing has changed then, and nothing is lost.
    pub fn apply_convert(&self, edit: ConvertEdit) -> bool {
        let mut shard = self.lock(edit.shard);
        // Before the epoch in which readers have the output: who registers in that and finds an older view of the shard must not
        // take it for the present one, whose inputs are gone for it.
        shard.count_up();
        let is_applied = shard.apply_convert(edit);
        drop(shard);
        self.forget_snapshot();
        self.epochs.settle();
        is_applied
    }

    /// Seals every arena, staged rows included: the first step of a flush. The second is to make
    /// [`SealMarks::marks`] durable and to publish them, the third [`Head::plan_flush`].
    ///
    /// Whatever was appended to a stream of the log before this call is in the job if that covers the
    /// marks ([`FlushJob::covers`]), so the stream's end from before the call is then its floor after
    /// the flush.
    pub fn seal_all(&self) -> SealMarks {
        let marks = self.shards.iter().filter_map(|shard| {
            let mut shard = shard.lock();
            shard.seal_for_flush().map(|position| (shard.id, position))
        });
        SealMarks { marks: marks.collect() }
    }

    /// Everything that is sealed, published and not flushed; `None` if there is nothing. One flush at
    /// a time: planning another gives the one before up.
    pub fn plan_flush(&self) -> Option<FlushJob> {
        let shards = self.shards.iter().map(|shard| shard.lock().plan_flush()).collect();
        FlushJob::new(self.bits, shards)
    }

    /// The tables of `job` are in the tree's version: its memory turns hot and goes on serving queries. No snapshot
    /// is taken with an older version after this, nor one with the new version before it: the caller's lock on views
    /// is held over both. Cheap: nothing is freed, see [`Head::recycle_surplus`].
    pub fn flushed(&self, job: &FlushJob) {
        let epoch = self.epochs.advance();
        for flush in &job.shards {
            self.lock(flush.shard).flushed(flush, epoch);
        }
    }

    /// Gives back what is hot over [`HeadOptions::hot_bytes_max`], and all of it that is older than `hard_line`. Returns how
    /// many bytes.
    pub fn recycle_surplus(&self, hard_line: Timestamp) -> u64 {
        let hot = self.hot_parts();
        let is_old = |part: &&HotPart| part.range_end < hard_line;
        let old_bytes = self.recycle_parts(hot.iter().filter(is_old));
        let hot_bytes: u64 = hot.iter().map(|part| part.bytes).sum();
        // Old parts may have been united with others meanwhile, and then were larger.
        let surplus =
            hot_bytes.saturating_sub(old_bytes.saturating_add(self.options.hot_bytes_max));
        old_bytes + self.recycle(surplus)
    }

    /// Gives at least `bytes` of hot memory back, or all there is, older time ranges first. Returns how much. Readers that
    /// have tables for it do without from now on; for others it cools, and follows when they end.
    pub fn recycle(&self, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let mut hot = self.hot_parts();
        hot.sort_unstable();
        let chosen = choose(&hot, bytes, &self.options);
        let recycled_bytes = self.recycle_parts(chosen.iter());
        // Others want the memory.
        self.blocks.trim();
        recycled_bytes
    }

    /// Gives all hot memory back that has rows from before `seq`, so that nothing but tables has them.
    pub fn recycle_before(&self, seq: CommitSeq) {
        self.recycle_parts(self.hot_parts().iter().filter(|part| part.seq_min < seq));
    }

    fn recycle_parts<'p>(&self, parts: impl Iterator<Item = &'p HotPart>) -> u64 {
        let bytes = parts.map(|part| self.lock(part.shard).recycle(part.first)).sum();
        if bytes > 0 {
            self.forget_snapshot();
            self.epochs.settle();
        }
        bytes
    }

    /// Breaks invariant 3: what cools is released as if every reader had tables for it. For the simulation, which must
    /// find that.
    #[doc(hidden)]
    pub fn release_under_readers(&self) {
        self.epochs.release_under_readers();
    }

    /// Visible unflushed rows (pieces as they came in), and the bytes of these and of rows that are not visible yet. Cheaper than
    /// [`Head::stats`]: what is flushed is not looked at.
    pub fn unflushed(&self) -> (u64, u64) {
        self.shards.iter().fold((0, 0), |(row_count, bytes), shard| {
            let shard = shard.lock();
            let (open_bytes, open_rows) = shard.open_usage();
            let parts = shard.parts.unflushed();
            let part_rows: u64 = parts.iter().map(|part| part.row_count).sum();
            let part_bytes: u64 = parts.iter().map(|part| part.heap_bytes()).sum();
            (row_count + open_rows + part_rows, bytes + open_bytes + part_bytes)
        })
    }

    /// What it holds. Looks at every part.
    pub fn stats(&self) -> HeadStats {
        let (cooling, blocks) = (self.epochs.usage(), self.blocks.usage());
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = HeadStats {
            free_bytes: blocks.free_bytes,
            block_bytes: blocks.allocated_bytes,
            recycled_bytes: blocks.recycled_bytes,
            cooling_bytes: cooling.bytes,
            released_bytes: cooling.released_bytes,
            revoked_bytes: cooling.revoked_bytes,
            hot_hits: count(&self.counts.hits),
            hot_misses: count(&self.counts.misses),
            revoked_reads: count(&self.counts.revoked),
            ..HeadStats::default()
        };
        for shard in &self.shards {
            let shard = shard.lock();
            let (open_bytes, open_rows) = shard.open_usage();
            stats.arena_bytes += open_bytes;
            stats.row_count += open_rows;
            stats.state_bytes += shard.state_bytes();
            stats.hot_bytes += shard.parts.hot().iter().map(|part| part.heap_bytes()).sum::<u64>();
            for part in shard.parts.unflushed() {
                stats.row_count += part.row_count;
                let (bytes, count) = match part.is_rows() {
                    true => (&mut stats.arena_bytes, &mut stats.arena_count_waiting),
                    false => (&mut stats.segment_bytes, &mut stats.segment_count),
                };
                *bytes += part.heap_bytes();
                *count += 1;
            }
        }
        stats
    }

    fn hot_parts(&self) -> Vec<HotPart> {
        let mut hot = Vec::new();
        self.shards.iter().for_each(|shard| hot.extend(shard.lock().hot_parts()));
        hot
    }

    fn lock(&self, shard: ShardId) -> LockedShard<'_> {
        self.shards[usize::from(shard.0)].lock()
    }

    /// Memory was replaced or given back: no snapshot that nobody uses keeps it.
    fn forget_snapshot(&self) {
        let last = self.last.lock().take();
        drop(last);
    }
}

impl SharedShard {
    fn lock(&self) -> LockedShard<'_> {
        LockedShard { version: &self.version, shard: self.shard.lock(), is_changed: false }
    }

    /// Whether nothing has changed since the shard had `version`. Whoever was told of a change (a row
    /// was published) finds it counted.
    fn is_at(&self, version: u64) -> bool {
        self.version.load(Ordering::Acquire) == version
    }

    fn view(&self) -> Arc<ShardView> {
        self.view_of(&self.shard.lock())
    }

    /// `None` if somebody has the lock.
    fn view_if_free(&self) -> Option<Arc<ShardView>> {
        self.shard.try_lock().map(|shard| self.view_of(&shard))
    }

    fn view_of(&self, locked: &Shard) -> Arc<ShardView> {
        Arc::new(locked.view(self.version.load(Ordering::Relaxed)))
    }
}

impl LockedShard<'_> {
    /// Who looks at the version from now on waits for the lock.
    fn count_up(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl Deref for LockedShard<'_> {
    type Target = Shard;

    fn deref(&self) -> &Shard {
        &self.shard
    }
}

impl DerefMut for LockedShard<'_> {
    fn deref_mut(&mut self) -> &mut Shard {
        self.is_changed = true;
        &mut self.shard
    }
}

impl Drop for LockedShard<'_> {
    fn drop(&mut self) {
        if self.is_changed {
            // Before the lock goes.
            self.count_up();
        }
    }
}

impl ShardWriter<'_> {
    /// Encodes `rows`, all of this shard, as commit `seq`; the bytes are the log entry's payload.
    /// `segment` is the log segment that they go to: each group's first row in one is whole, so that a
    /// log segment explains itself. Call it again if the log has rotated meanwhile.
    pub fn encode(&mut self, seq: CommitSeq, rows: ShardRows<'_>, segment: u64) -> &[u8] {
        debug_assert!(rows.shard == self.shard.id, "rows of another shard");
        self.shard.encode(seq, rows, segment)
    }

    /// What was encoded last is in the log at `position`: its rows go into the arena, not visible
    /// before [`Head::publish`]. What they take is taken out of `reserved` ([`bound_bytes`]); who has written all
    /// that it is for gives the rest back.
    ///
    /// # Panics
    /// If nothing was encoded since the last call.
    pub fn stage(&mut self, position: LogPosition, reserved: &mut Reservation) {
        self.shard.stage(position, reserved);
    }

    /// Takes in rows of transaction `seq`, of this shard and encoded by [`crate::encode_standalone`]: between what is
    /// staged and what will be, in an arena of their own, not visible before [`Head::decide_transaction`]. What
    /// they take is taken out of `reserved` ([`bound_bytes_of`]).
    ///
    /// # Panics
    /// If `payload` is none.
    pub fn stage_transaction(
        &mut self,
        seq: CommitSeq,
        payload: &[u8],
        reserved: &mut Reservation,
    ) {
        self.shard.stage_transaction(seq, payload, reserved);
    }

    /// A delete that touches this shard commits here: rows before and rows after it never come into
    /// one part, so that each part is older or younger than the delete as a whole.
    pub fn split_parts(&mut self) {
        self.shard.split_parts();
    }

    /// What was encoded last did not get into the log.
    pub fn abandon(&mut self) {
        self.shard.abandon();
    }
}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Head").field("shards", &self.shards.len()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ShardWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardWriter").field("shard", &self.shard.id.0).finish_non_exhaustive()
    }
}
