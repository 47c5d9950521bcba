//! The head: the interface to all shards.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_model::{
    Budget, CommitSeq, LogPosition, Mutex, MutexGuard, Reservation, Result, RowBatch, ShardBits,
    ShardId, ShardRows, Timestamp,
};

use crate::convert::{ConvertEdit, ConvertJob};
use crate::epoch::Epochs;
use crate::flush::{FlushJob, HotPart, SealMarks, choose};
use crate::lock;
use crate::options::HeadOptions;
use crate::part::PartForm;
use crate::pool::BlockPool;
use crate::replay::ReplayedRows;
use crate::shard::Shard;
use crate::snapshot::{HeadSnapshot, ReadCounts, ShardView};
use crate::{arena, payload, words};

/// Recent rows of all groups, in memory.
///
/// Lock order: the lock of the shared snapshot, then the locks of shards, then the lock of the
/// epochs. No thread holds two shard locks, or a shard lock during I/O or decoding. A writer holds
/// its shard's lock through [`Head::shard`]; everything else holds one only briefly.
pub struct Head {
    bits: ShardBits,
    options: HeadOptions,
    shards: Box<[SharedShard]>,
    epochs: Arc<Epochs<PartForm>>,
    blocks: Arc<BlockPool>,
    counts: Arc<ReadCounts>,
    /// The last snapshot, shared until a shard changes. Dropped when memory is replaced or
    /// released, so that it pins none.
    last: Mutex<Option<HeadSnapshot>>,
}

/// A shard and its change counter, on cache lines of its own (processors fetch them in pairs), so
/// that writers of its neighbours do not slow it down.
#[repr(align(128))]
struct SharedShard {
    /// Incremented under the lock, read without it.
    version: AtomicU64,
    shard: Mutex<Shard>,
}

/// A locked shard. A mutable borrow counts as a change.
struct LockedShard<'a> {
    version: &'a AtomicU64,
    shard: MutexGuard<'a, Shard>,
    is_changed: bool,
}

/// The single writer of a shard. Dropping it without [`ShardWriter::stage`] abandons the encoded
/// rows.
pub struct ShardWriter<'a> {
    shard: LockedShard<'a>,
}

/// Contents of the head at one time; shards are read one after the other.
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
    /// Bytes of flushed parts that still serve queries.
    pub hot_bytes: u64,
    /// How many such parts there are.
    pub hot_count: u64,
    /// Bytes of column blocks that were used and are free. Not part of the other fields, except
    /// `block_bytes`.
    pub free_bytes: u64,
    /// Bytes of column blocks, used and free.
    pub block_bytes: u64,
    /// Bytes of column blocks that were recycled, since the start.
    pub recycled_bytes: u64,
    /// Bytes that left the head and are pinned by older readers.
    pub cooling_bytes: u64,
    /// Bytes that left the head since the start and were released: flushed memory and inputs of
    /// conversions.
    pub released_bytes: u64,
    /// Of these, bytes that were revoked from readers over [`HeadOptions::cooling_bytes_max`].
    pub revoked_bytes: u64,
    /// Leases of a shard that found flushed rows in memory.
    pub hot_hits: u64,
    /// Leases of a shard that missed released rows and used tables.
    pub hot_misses: u64,
    /// Leases of a shard that failed because its memory was revoked.
    pub revoked_reads: u64,
}

/// The most bytes that writing `rows` may add to the head. Reserve them in
/// [`firn_model::Pool::Head`] before the log append; staging returns the unused rest.
pub fn bound_bytes_of(rows: ShardRows<'_>) -> u64 {
    // A payload buffer and the arena.
    const PIECE: usize = payload::ROW_HEADER_BYTES_MAX + arena::ROW_HEADER_BYTES_MAX;
    // A state. A group of many members has 10 bytes per slot, and its vectors may grow to twice
    // that.
    const GROUP: usize = 160;
    const CELL: usize = 20;
    let mut last = None;
    let pieces = rows.pieces().map(|piece| {
        let is_next = last.replace(piece.group) == Some(piece.group);
        let of_group = if is_next { 0 } else { GROUP };
        let cell_count = piece.cells.len();
        2 * firn_codec::row_bytes_max(cell_count) + PIECE + of_group + CELL * cell_count
    });
    (arena::ARENA_BYTES_MIN + words::BLOCK_BYTES + pieces.sum::<usize>()) as u64
}

/// [`bound_bytes_of`] for all parts of a batch.
///
/// # Panics
/// If the batch is not sorted.
pub fn bound_bytes(batch: &RowBatch) -> u64 {
    parts_of(batch).map(bound_bytes_of).sum()
}

/// The parts of a batch that are encoded one by one, shards ascending: a reader of the log decodes
/// the rows of an entry at once, and an arena has whole parts.
///
/// # Panics
/// If the batch is not sorted.
pub fn parts_of(batch: &RowBatch) -> impl Iterator<Item = ShardRows<'_>> {
    const PART_CELLS_MAX: usize = 1 << 13;
    batch.by_part(PART_CELLS_MAX)
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
            SharedShard { version: AtomicU64::new(0), shard: Mutex::new(&lock::SHARD, shard) }
        };
        let shards = (0..shard_count).map(shard).collect();
        Head {
            shards,
            epochs,
            blocks,
            counts: Arc::default(),
            last: Mutex::new(&lock::SNAPSHOT, None),
            bits,
            options,
        }
    }

    /// The options of the head.
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

    /// Makes the rows staged at `through` visible, and earlier staged rows of the same log segment.
    /// Call it once the log is durable up to there. Does nothing if another writer has already
    /// published them. Rows of older log segments are left to their own writers, because the log
    /// may have lost them.
    pub fn publish(&self, shard: ShardId, through: LogPosition) {
        self.lock(shard).publish(through);
    }

    /// Drops staged rows of `shard` after a log failure: those of log segment `segment` or an older
    /// one that are behind `durable`, the end of the durable log. They never become visible, and
    /// every group's next row is whole. Rows up to `durable` still wait for their writers to
    /// publish them, and rows of later segments are not affected. Each writer of failed rows may
    /// call this, in any order.
    pub fn rollback(&self, shard: ShardId, segment: u64, durable: LogPosition) {
        self.lock(shard).rollback(segment, durable);
    }

    /// Replays a payload of the log. If `apply`, its rows are visible at once; otherwise they are
    /// only the base of later rows. Payloads of a shard must come in order of position, from the
    /// start of a log segment on, and before any row is encoded. Rows are copied, not decoded:
    /// about 15 ns each.
    ///
    /// # Errors
    /// `Corrupt` or `Invalid` if it is no payload. None of it is visible then, and the shard
    /// continues as after [`Head::replay_gap`].
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

    /// Decides the rows that transaction `seq` staged in `shard`
    /// ([`ShardWriter::stage_transaction`]): they become visible, or are dropped for ever. Later
    /// rows of the shard do not wait for this, but a flush does not take rows behind undecided
    /// ones.
    pub fn decide_transaction(&self, shard: ShardId, seq: CommitSeq, is_shown: bool) {
        self.lock(shard).decide_transaction(seq, is_shown);
    }

    /// Replays the rows of transaction `seq` in `shard`, visible at once. They follow rows with
    /// smaller numbers and precede rows with larger ones. Returns their count.
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

    /// The log has a hole here: the next row of each group of `shard` is accepted only if it is
    /// whole. [`ReplayedRows::refused_count`] counts the others.
    pub fn replay_gap(&self, shard: ShardId) {
        self.lock(shard).seal();
    }

    /// As [`ShardWriter::split_parts`], during replay: the next rows are younger than a delete that
    /// touches the shard.
    pub fn split_parts(&self, shard: ShardId) {
        self.lock(shard).split_parts();
    }

    /// The oldest commit of a visible row, hot rows included; `None` without rows.
    pub fn oldest_commit(&self) -> Option<CommitSeq> {
        self.shards.iter().filter_map(|shard| shard.lock().oldest()).min()
    }

    /// A frozen view of all visible rows. Costs a check of each shard's version, and a short lock
    /// and a few pointers for each shard that has changed since the last snapshot. Inserts into
    /// several shards are not atomic with it, but each row piece is.
    pub fn snapshot(&self) -> HeadSnapshot {
        let mut last = self.last.lock();
        // Debug builds note the order also if no shard is locked: it rarely is.
        drop(lock::SHARD.wait_for(0));
        let known = |idx: usize| last.as_ref().map(|last| last.shard_view(idx));
        let is_known = |(idx, shard): (usize, &SharedShard)| {
            known(idx).is_some_and(|view| shard.is_at(view.version))
        };
        if let Some(last) = &*last
            && self.shards.iter().enumerate().all(is_known)
        {
            return last.clone();
        }
        // Registered before the lists are read: memory in them is not released from here on.
        let reader = Epochs::register(&self.epochs);
        // Shards that are locked now come last, so a writer that locks all shards in turn is not
        // followed from lock to lock.
        let seen = self.shards.iter().enumerate().map(|(idx, shard)| match known(idx) {
            Some(view) if shard.is_at(view.version) => Some(Arc::clone(view)),
            _ => shard.view_if_free(),
        });
        let seen: Vec<Option<Arc<ShardView>>> = seen.collect();
        let views = seen.into_iter().zip(&self.shards);
        let views = views.map(|(seen, shard)| seen.unwrap_or_else(|| shard.view()));
        let snapshot = HeadSnapshot::new(self.bits, views, reader, Arc::clone(&self.counts));
        let old = last.replace(snapshot.clone());
        // Memory that only the old snapshot held is freed without the lock.
        drop(last);
        drop(old);
        snapshot
    }

    /// Plans a conversion of waiting arenas, in the shard where most wait, together with the
    /// segments that are merged with them next. One job per shard at a time; `None` if no arena
    /// waits. Full arenas are sealed first: queries may have made them full since the last write.
    pub fn plan_convert(&self) -> Option<ConvertJob> {
        let options = Some(&self.options.convert);
        let jobs = self.shards.iter().filter_map(|shard| {
            let mut shard = shard.lock();
            shard.seal_if_full();
            shard.plan_convert(options)
        });
        jobs.max_by_key(ConvertJob::row_bytes)
    }

    /// As [`Head::plan_convert`], but leaves segments alone, and shards where fewer than
    /// `waiting_min` arenas wait: the least work that makes columns of rows, for replay.
    pub fn plan_convert_rows(&self, waiting_min: usize) -> Option<ConvertJob> {
        let shards = (0..self.shards.len()).map(|id| ShardId(id as u16));
        let jobs = shards.filter_map(|shard| self.plan_convert_rows_of(shard, waiting_min));
        jobs.max_by_key(ConvertJob::row_bytes)
    }

    /// As [`Head::plan_convert_rows`] in `shard`: before a flush and after a delete.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn plan_convert_rows_of(&self, shard: ShardId, waiting_min: usize) -> Option<ConvertJob> {
        let shard = self.shards[usize::from(shard.0)].lock();
        (shard.parts.waiting_count() >= waiting_min).then(|| shard.plan_convert(None))?
    }

    /// Plans a merge of small segments, which packs them harder: of hot ones if no unflushed ones
    /// are due.
    pub fn plan_compress(&self) -> Option<ConvertJob> {
        let options = &self.options;
        let largest = |plan: &dyn Fn(&Shard) -> Option<ConvertJob>| {
            let jobs = self.shards.iter().filter_map(|shard| plan(&shard.lock()));
            jobs.max_by_key(ConvertJob::input_bytes)
        };
        largest(&|shard| shard.plan_compress(&options.convert))
            .or_else(|| largest(&|shard| shard.plan_compress_hot(options)))
    }

    /// Applies the outcome of a conversion. Returns `false`, and changes nothing, if its inputs
    /// have been released or flushed apart meanwhile.
    pub fn apply_convert(&self, edit: ConvertEdit) -> bool {
        let mut shard = self.lock(edit.shard);
        // Incremented before the epoch in which readers get the output: a reader that registers in
        // that epoch and has an older view of the shard must not take it for current, because its
        // inputs are released for that reader.
        shard.count_up();
        let is_applied = shard.apply_convert(edit);
        drop(shard);
        self.forget_snapshot();
        self.epochs.settle();
        is_applied
    }

    /// Seals every arena, including staged rows: the first step of a flush. Then make
    /// [`SealMarks::marks`] durable and publish them, and call [`Head::plan_flush`].
    ///
    /// If the job covers the marks ([`FlushJob::covers`]), it has every row that was appended to
    /// the log before this call. The end of each log stream before the call is then its floor after
    /// the flush.
    pub fn seal_all(&self) -> SealMarks {
        let marks = self.shards.iter().filter_map(|shard| {
            let mut shard = shard.lock();
            shard.seal_for_flush().map(|position| (shard.id, position))
        });
        SealMarks { marks: marks.collect() }
    }

    /// Plans a flush of all rows that are sealed, published and not flushed; `None` if there are
    /// none. One flush at a time: a new plan replaces the previous one.
    pub fn plan_flush(&self) -> Option<FlushJob> {
        let shards = self.shards.iter().map(|shard| shard.lock().plan_flush()).collect();
        FlushJob::new(self.bits, self.options.slice_bytes, shards)
    }

    /// Marks the memory of `job` as hot: the tree's version has its tables now. It still serves
    /// queries. The caller holds its view lock over both changes, so no snapshot combines one with
    /// the other's previous state. Cheap: frees nothing, see [`Head::recycle_surplus`].
    pub fn flushed(&self, job: &FlushJob) {
        let epoch = self.epochs.advance();
        for flush in &job.shards {
            self.lock(flush.shard).flushed(flush, epoch);
        }
    }

    /// Releases hot memory above [`HeadOptions::hot_bytes_max`], and all hot memory older than
    /// `hard_line`. Returns the number of bytes.
    pub fn recycle_surplus(&self, hard_line: Timestamp) -> u64 {
        let hot = self.hot_parts();
        let is_old = |part: &&HotPart| part.range_end < hard_line;
        let old_bytes = self.recycle_parts(hot.iter().filter(is_old));
        let hot_bytes: u64 = hot.iter().map(|part| part.bytes).sum();
        // Old parts may have been merged with others meanwhile, and were larger then.
        let surplus =
            hot_bytes.saturating_sub(old_bytes.saturating_add(self.options.hot_bytes_max));
        old_bytes + self.recycle(surplus)
    }

    /// Releases at least `bytes` of hot memory, or all there is, older time ranges first. Returns
    /// the number of bytes. Readers with tables use those from now on; for other readers the memory
    /// cools until they end.
    ///
    /// Waits for no lock but that of the epochs, so that the caller may hold any other: a query
    /// that needs memory may read the index, and a writer that has locked a shard may wait for the
    /// index. Skips shards that are locked, and a shared snapshot that is being taken: that may
    /// wait for such a shard.
    pub fn recycle(&self, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let mut hot = Vec::new();
        let free = self.shards.iter().filter_map(SharedShard::try_lock);
        free.for_each(|shard| hot.extend(shard.hot_parts()));
        hot.sort_unstable();
        let chosen = choose(&hot, bytes, &self.options);
        let locked = |shard: ShardId| self.shards[usize::from(shard.0)].try_lock();
        let recycled_bytes = release(chosen.iter(), locked);
        if recycled_bytes > 0 {
            let last = self.last.try_lock().and_then(|mut last| last.take());
            drop(last);
            self.epochs.settle();
        }
        // Other pools need the memory.
        self.blocks.trim();
        recycled_bytes
    }

    /// Releases all hot memory with rows from before `seq`, so that only tables have them.
    pub fn recycle_before(&self, seq: CommitSeq) {
        let hot = self.hot_parts();
        let parts = hot.iter().filter(|part| part.seq_min < seq);
        self.recycle_parts(parts);
    }

    /// Releases `parts`.
    fn recycle_parts<'p>(&self, parts: impl Iterator<Item = &'p HotPart>) -> u64 {
        let bytes = release(parts, |shard| Some(self.lock(shard)));
        if bytes > 0 {
            self.forget_snapshot();
            self.epochs.settle();
        }
        bytes
    }

    /// Breaks invariant 3: releases cooling memory as if every reader had tables for it. A mutant
    /// that simulation must catch.
    #[cfg(feature = "test-util")]
    pub fn release_under_readers(&self) {
        self.epochs.release_under_readers();
    }

    /// Visible unflushed rows (pieces as they came in), and the bytes of these and of rows that are
    /// not visible yet. Cheaper than [`Head::stats`], because it ignores flushed rows.
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

    /// Totals of the head. Visits every part.
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
            stats.hot_count += shard.parts.hot().len() as u64;
            for part in shard.parts.unflushed() {
                stats.row_count += part.row_count;
                let (bytes, count) = match part.is_rows {
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

    /// Memory was replaced or released: an unused snapshot must not pin it.
    fn forget_snapshot(&self) {
        let last = self.last.lock().take();
        drop(last);
    }
}

/// Releases `parts` of the shards that `lock` returns. Returns the bytes.
fn release<'h, 'p>(
    parts: impl Iterator<Item = &'p HotPart>,
    lock: impl Fn(ShardId) -> Option<LockedShard<'h>>,
) -> u64 {
    parts.filter_map(|part| Some(lock(part.shard)?.recycle(part.first))).sum()
}

impl SharedShard {
    fn lock(&self) -> LockedShard<'_> {
        LockedShard { version: &self.version, shard: self.shard.lock(), is_changed: false }
    }

    /// `None` if another thread has locked it.
    fn try_lock(&self) -> Option<LockedShard<'_>> {
        let shard = self.shard.try_lock()?;
        Some(LockedShard { version: &self.version, shard, is_changed: false })
    }

    /// Whether the shard still has `version`. A thread that knows of a change (a row was published)
    /// sees it counted.
    fn is_at(&self, version: u64) -> bool {
        self.version.load(Ordering::Acquire) == version
    }

    fn view(&self) -> Arc<ShardView> {
        self.view_of(&self.shard.lock())
    }

    /// `None` if the shard is locked.
    fn view_if_free(&self) -> Option<Arc<ShardView>> {
        self.shard.try_lock().map(|shard| self.view_of(&shard))
    }

    fn view_of(&self, locked: &Shard) -> Arc<ShardView> {
        Arc::new(locked.view(self.version.load(Ordering::Relaxed)))
    }
}

impl LockedShard<'_> {
    /// A thread that reads the version from now on waits for the lock.
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
            // Before the lock is released.
            self.count_up();
        }
    }
}

impl ShardWriter<'_> {
    /// Encodes `rows`, all of this shard, as commit `seq`, and returns the log entry's payload.
    /// `segment` is its log segment: each group's first row there is whole, so a log segment is
    /// self-contained. Call it again if the log has rotated meanwhile.
    pub fn encode(&mut self, seq: CommitSeq, rows: ShardRows<'_>, segment: u64) -> &[u8] {
        debug_assert!(rows.shard == self.shard.id, "rows of another shard");
        self.shard.encode(seq, rows, segment)
    }

    /// The rows that were encoded last are in the log at `position`: copies them into the arena,
    /// not visible before [`Head::publish`]. Takes their memory out of `reserved`
    /// ([`bound_bytes`]). After its last write the caller releases the rest.
    ///
    /// # Panics
    /// If no rows were encoded since the last call.
    pub fn stage(&mut self, position: LogPosition, reserved: &mut Reservation) {
        self.shard.stage(position, reserved);
    }

    /// Stages rows of transaction `seq`, of this shard and encoded by [`crate::encode_standalone`]:
    /// between earlier and later staged rows, in an arena of their own, not visible before
    /// [`Head::decide_transaction`]. Takes their memory out of `reserved` ([`bound_bytes_of`]).
    ///
    /// # Panics
    /// If `payload` is no payload.
    pub fn stage_transaction(
        &mut self,
        seq: CommitSeq,
        payload: &[u8],
        reserved: &mut Reservation,
    ) {
        self.shard.stage_transaction(seq, payload, reserved);
    }

    /// A delete that touches this shard commits here. Earlier and later rows never share a part, so
    /// each part is older or younger than the delete as a whole.
    pub fn split_parts(&mut self) {
        self.shard.split_parts();
    }

    /// The rows that were encoded last did not reach the log.
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
