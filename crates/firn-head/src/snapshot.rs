//! A frozen view of every shard: queries read it while writes, conversions and flushes continue.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_codec::{GroupColumns, MemberColumn, Slots};
use firn_model::{
    CommitSeq, Error, GroupId, Reservation, Result, SeriesRef, ShardBits, ShardId, Slot, TimeRange,
    Timestamp,
};

use crate::arena::{DecodeMeter, ReadBuffers};
use crate::complete::CompleteSince;
use crate::epoch::{Lease, Reader};
use crate::part::{ListedPart, Part, PartForm};
use crate::payload::LocalGroup;
use crate::segment::SegmentCursor;

/// All rows that were visible when [`crate::Head::snapshot`] was called, and no others.
///
/// Holds no lock. Rows that were not flushed then stay in memory (and in the budget) until the last
/// clone is dropped, whatever is converted, flushed or released meanwhile (invariant 3), up to
/// [`crate::HeadOptions::cooling_bytes_max`]. Flushed rows may be released: a reader then reports
/// them as missing, and tables have them. Take it together with the tree's version, under the lock
/// under which a flush swaps both.
#[derive(Clone)]
pub struct HeadSnapshot {
    bits: ShardBits,
    shards: Arc<[Arc<ShardView>]>,
    reader: Arc<Reader<PartForm>>,
    counts: Arc<ReadCounts>,
}

/// The snapshot of one shard.
pub(crate) struct ShardView {
    /// The shard's version when this was taken.
    pub(crate) version: u64,
    /// Parts, oldest first.
    pub(crate) parts: Arc<Vec<ListedPart>>,
    /// The visible rows of arenas that are no parts yet, oldest first.
    pub(crate) open: Vec<Part>,
    pub(crate) complete: CompleteSince,
}

/// Outcomes of leases, counted once per reader and shard.
#[derive(Default)]
pub(crate) struct ReadCounts {
    /// Flushed rows that were in memory.
    pub(crate) hits: AtomicU64,
    /// Flushed rows that had been released.
    pub(crate) misses: AtomicU64,
    /// Rows that were revoked.
    pub(crate) revoked: AtomicU64,
}

impl HeadSnapshot {
    pub(crate) fn new(
        bits: ShardBits,
        shards: impl Iterator<Item = Arc<ShardView>>,
        reader: Reader<PartForm>,
        counts: Arc<ReadCounts>,
    ) -> HeadSnapshot {
        let shards = shards.collect();
        reader.seen_all();
        HeadSnapshot { bits, shards, reader: Arc::new(reader), counts }
    }

    pub(crate) fn shard_view(&self, idx: usize) -> &Arc<ShardView> {
        &self.shards[idx]
    }

    /// The group's values of `slots` in `range`, oldest source first. Sources may overlap in time:
    /// [`firn_codec::merge_columns`] merges them. Locks are held only briefly. Costs a step per row
    /// of the group in the active arena, and decoding the requested columns elsewhere.
    ///
    /// # Errors
    /// `Busy` if memory that this snapshot needs was revoked because too much would have been
    /// pinned; `Corrupt` if the memory is malformed: a bug.
    pub fn read(
        &self,
        group: GroupId,
        slots: Slots<'_>,
        range: TimeRange,
    ) -> Result<Vec<GroupColumns>> {
        self.reader(range).read(group, slots, range)
    }

    /// A reader for one group after another. It keeps its buffers and its position in each part, so
    /// rising groups are found by a step each. It pins the memory that it has touched while it
    /// lives, and reads only inside `range`.
    pub fn reader(&self, range: TimeRange) -> HeadReader<'_> {
        HeadReader { snapshot: self, range, buffers: ReadBuffers::default(), shards: Vec::new() }
    }

    /// Whether the group may have values in `range`, in memory. Never wrongly `false`, except for
    /// flushed rows, which tables have. For active rows, `true` means only that the group has rows
    /// and that rows of its shard reach into `range`.
    pub fn has_data(&self, group: GroupId, range: TimeRange) -> bool {
        self.reader(range).has_data(group, range)
    }

    /// The first timestamp in `range` at which the group may have values: never too late, and as
    /// exact as [`HeadSnapshot::has_data`].
    pub fn first_data(&self, group: GroupId, range: TimeRange) -> Option<Timestamp> {
        self.reader(range).first_data(group, range)
    }

    /// The smallest range of the timestamps of all rows.
    pub fn time_range(&self) -> TimeRange {
        let parts = self.shards.iter().flat_map(|shard| shard.all());
        parts.fold(TimeRange::EMPTY, |range, part| range.union(part.range))
    }

    /// The number of parts with rows.
    pub fn part_count(&self) -> usize {
        let parts = self.shards.iter().flat_map(|shard| shard.all());
        parts.filter(|part| part.row_count > 0).count()
    }

    fn local(&self, group: GroupId) -> Option<LocalGroup> {
        LocalGroup::try_from(self.bits.local(group)).ok()
    }
}

/// Reads the groups of a snapshot. Cheapest when groups rise; reading a group again needs no
/// lookup.
pub struct HeadReader<'a> {
    snapshot: &'a HeadSnapshot,
    range: TimeRange,
    buffers: ReadBuffers,
    /// The shards that were touched.
    shards: Vec<Option<LeasedShard>>,
}

/// The memory of a shard's parts, as leased by this reader.
struct LeasedShard {
    /// The parts that overlap the reader's range.
    parts: Vec<LeasedPart>,
    complete: CompleteSince,
    is_revoked: bool,
}

/// Leased memory of a part, and the position of the last lookup in it.
struct LeasedPart {
    part_idx: usize,
    form: PartForm,
    cursor: Option<SegmentCursor>,
    /// Bytes that were read, if the part has rows.
    row_bytes: usize,
}

impl Drop for LeasedPart {
    fn drop(&mut self) {
        if let PartForm::Rows(arena) = &self.form {
            arena.count_query_bytes(self.row_bytes as u64);
        }
    }
}

/// A part with its leased memory.
struct PartView<'l> {
    part: &'l Part,
    form: &'l PartForm,
    cursor: &'l mut Option<SegmentCursor>,
    buffers: &'l mut ReadBuffers,
}

impl HeadReader<'_> {
    /// From now on, reserves twice the memory of a group's samples before it decodes them: they are
    /// in lists that grow, or also merged. `held` is empty; it keeps that of the largest group.
    pub fn reserving(mut self, held: Reservation) -> Self {
        self.buffers.meter = DecodeMeter::new(held);
        self
    }

    /// As [`HeadSnapshot::read`].
    ///
    /// # Errors
    /// As [`HeadSnapshot::read`]; `Busy` or `TooLarge` without memory, see
    /// [`HeadReader::reserving`].
    pub fn read(
        &mut self,
        group: GroupId,
        slots: Slots<'_>,
        range: TimeRange,
    ) -> Result<Vec<GroupColumns>> {
        debug_assert!(self.reaches(range), "{range:?} is outside the reader's range");
        let mut sources = Vec::new();
        self.buffers.meter.begin_group();
        self.check_shard(group)?;
        self.each(group, |local, leased| {
            let PartView { part, form, cursor, buffers } = leased;
            part.read(form, local, (slots, range), cursor, buffers, &mut sources)?;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(sources)
    }

    /// As [`HeadReader::read`] for one member. Replaces the content of `out` with its samples, and
    /// allocates only to grow it. Returns `false` if the samples did not come in time order; then
    /// only [`HeadReader::read`] has the right result.
    ///
    /// # Errors
    /// As [`HeadSnapshot::read`].
    pub fn read_one(
        &mut self,
        series: SeriesRef,
        range: TimeRange,
        out: &mut MemberColumn,
    ) -> Result<bool> {
        debug_assert!(self.reaches(range), "{range:?} is outside the reader's range");
        out.clear();
        self.buffers.meter.begin_group();
        self.check_shard(series.group)?;
        let mut rises = true;
        self.each(series.group, |local, leased| {
            let PartView { part, form, cursor, buffers } = leased;
            rises = part.append_one(form, local, (series.slot, range), cursor, buffers, out)?;
            Ok(if rises { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(rises)
    }

    /// Removes from `left`, which is sorted, the members of `group` with samples in `range`, in
    /// memory. It is exact for rows, and exact to a chunk's time range for columns. Columns are
    /// checked first, the newest first, and never decoded; rows only for the remaining members.
    ///
    /// # Errors
    /// As [`HeadSnapshot::read`].
    pub fn take_present(
        &mut self,
        group: GroupId,
        range: TimeRange,
        left: &mut Vec<Slot>,
    ) -> Result<()> {
        debug_assert!(self.reaches(range), "{range:?} is outside the reader's range");
        self.check_shard(group)?;
        let Some(local) = self.snapshot.local(group) else { return Ok(()) };
        let (view, shard, buffers) = self.shard(self.snapshot.bits.shard(group));
        for wants_rows in [false, true] {
            for LeasedPart { part_idx, form, cursor, row_bytes } in shard.parts.iter_mut().rev() {
                let part = view.part(*part_idx);
                if left.is_empty() {
                    return Ok(());
                }
                if part.is_rows == wants_rows {
                    let bytes_before = buffers.row_bytes();
                    part.take_present(form, local, range, cursor, buffers, left)
                        .map_err(|error| error.context(format!("memory of {group}")))?;
                    *row_bytes += buffers.row_bytes() - bytes_before;
                }
            }
        }
        Ok(())
    }

    /// An upper bound, about, of the calls of [`HeadReader::each_group`].
    pub fn group_count_max(&self) -> u64 {
        let parts = self.snapshot.shards.iter().flat_map(|shard| shard.overlapping(self.range));
        parts.map(|(_, part)| part.chunk_count as u64).sum()
    }

    /// Calls `each` with every group that may have samples in the reader's range, in memory; some
    /// more than once. Costs a step per row group and chunk.
    ///
    /// # Errors
    /// As [`HeadSnapshot::read`].
    pub fn each_group(&mut self, each: &mut dyn FnMut(GroupId)) -> Result<()> {
        let bits = self.snapshot.bits;
        for shard in (0..).take(self.snapshot.shards.len()).map(ShardId) {
            self.check_shard(bits.group(shard, 0))?;
            for LeasedPart { form, .. } in &self.shard(shard).1.parts {
                form.each_group(|local| each(bits.group(shard, u64::from(local))))?;
            }
        }
        Ok(())
    }

    /// Every row of `shard` in `range` that was committed at this or later is in memory for this
    /// reader, including flushed rows. A table with only such rows need not be read.
    /// `CommitSeq(u64::MAX)` if there was no row since the start. `range` is inside the reader's.
    /// Valid while the reader lives.
    pub fn complete_since(&mut self, shard: ShardId, range: TimeRange) -> CommitSeq {
        debug_assert!(self.reaches(range), "{range:?} is outside the reader's range");
        self.shard(shard).1.complete.since(range)
    }

    fn reaches(&self, range: TimeRange) -> bool {
        range.is_empty() || self.range.intersect(range) == range
    }

    /// Bytes of rows and chunks that this reader has read so far.
    #[cfg(feature = "test-util")]
    pub fn bytes_touched(&self) -> usize {
        self.buffers.bytes_touched()
    }

    /// As [`HeadSnapshot::has_data`].
    pub fn has_data(&mut self, group: GroupId, range: TimeRange) -> bool {
        let mut found = false;
        self.each_reach(group, range, |_| {
            found = true;
            ControlFlow::Break(())
        });
        found
    }

    /// As [`HeadSnapshot::first_data`].
    pub fn first_data(&mut self, group: GroupId, range: TimeRange) -> Option<Timestamp> {
        let mut first: Option<Timestamp> = None;
        self.each_reach(group, range, |reach| {
            first = Some(first.map_or(reach.start, |first| first.min(reach.start)));
            ControlFlow::Continue(())
        });
        first
    }

    /// Calls `each` with the part of `range` in which a part may have values of the group, unless
    /// it is empty.
    fn each_reach(
        &mut self,
        group: GroupId,
        range: TimeRange,
        mut each: impl FnMut(TimeRange) -> ControlFlow<()>,
    ) {
        debug_assert!(self.reaches(range), "{range:?} is outside the reader's range");
        if self.check_shard(group).is_err() {
            // Its memory was revoked: reading the group reports that.
            let _ = each(range);
            return;
        }
        let outcome = self.each(group, |local, PartView { part, form, cursor, .. }| {
            // A malformed part counts as present: reading the group reports it.
            let reach = part.reach(form, local, range, cursor).unwrap_or(range);
            Ok(if reach.is_empty() { ControlFlow::Continue(()) } else { each(reach) })
        });
        debug_assert!(outcome.is_ok(), "the callback never fails");
    }

    /// Calls `each` with the leased parts of the group's shard, oldest first.
    #[inline]
    fn each(
        &mut self,
        group: GroupId,
        mut each: impl FnMut(LocalGroup, PartView<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let Some(local) = self.snapshot.local(group) else { return Ok(()) };
        let (view, shard, buffers) = self.shard(self.snapshot.bits.shard(group));
        for LeasedPart { part_idx, form, cursor, row_bytes } in &mut shard.parts {
            let bytes_before = buffers.row_bytes();
            let flow = each(local, PartView { part: view.part(*part_idx), form, cursor, buffers });
            *row_bytes += buffers.row_bytes() - bytes_before;
            if flow.map_err(|error| error.context(format!("memory of {group}")))?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// # Errors
    /// `Busy` if memory of the group's shard was revoked from this reader.
    fn check_shard(&mut self, group: GroupId) -> Result<()> {
        if !self.shard(self.snapshot.bits.shard(group)).1.is_revoked {
            return Ok(());
        }
        Err(Error::busy(
            1_000,
            format!(
                "memory of {group} was revoked: queries pin too much memory that was flushed or \
                 converted since they began; retry with fewer series or a shorter range, or raise \
                 --memory"
            ),
        ))
    }

    /// A shard's view and its memory, leased at the first use.
    #[inline]
    fn shard(&mut self, shard: ShardId) -> (&ShardView, &mut LeasedShard, &mut ReadBuffers) {
        let idx = usize::from(shard.0);
        let view = &*self.snapshot.shards[idx];
        if self.shards.len() <= idx {
            self.shards.resize_with(idx + 1, || None);
        }
        let leased = self.shards[idx].get_or_insert_with(|| self.snapshot.lease(view, self.range));
        (view, leased, &mut self.buffers)
    }
}

impl HeadSnapshot {
    #[cold]
    fn lease(&self, view: &ShardView, range: TimeRange) -> LeasedShard {
        let mut shard =
            LeasedShard { parts: Vec::new(), complete: view.complete.clone(), is_revoked: false };
        let (mut hit_count, mut miss_count) = (0, 0);
        for (part_idx, part) in view.overlapping(range) {
            match part.memory.lease(&self.reader) {
                Lease::Held(form) => {
                    hit_count += u64::from(self.reader.has_other_source(&part.memory));
                    shard.parts.push(LeasedPart { part_idx, form, cursor: None, row_bytes: 0 });
                }
                Lease::Released => {
                    miss_count += 1;
                    shard.complete.lose(part.range, part.seq.max);
                }
                Lease::Revoked => shard.is_revoked = true,
            }
        }
        self.counts.hits.fetch_add(u64::from(hit_count > 0), Ordering::Relaxed);
        self.counts.misses.fetch_add(u64::from(miss_count > 0), Ordering::Relaxed);
        self.counts.revoked.fetch_add(u64::from(shard.is_revoked), Ordering::Relaxed);
        shard
    }
}

impl std::fmt::Debug for HeadReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeadReader").field("snapshot", self.snapshot).finish_non_exhaustive()
    }
}

impl ShardView {
    fn all(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().map(|part| &**part).chain(&self.open)
    }

    /// The parts that overlap `range`, oldest first, each with its index in the list of all.
    fn overlapping(&self, range: TimeRange) -> impl Iterator<Item = (usize, &Part)> {
        let parts = self.parts.iter().enumerate();
        let parts = parts.filter(move |(_, part)| part.range().overlaps(range));
        let open = self.open.iter().zip(self.parts.len()..);
        let open = open.filter(move |(part, _)| part.range.overlaps(range));
        parts.map(|(idx, part)| (idx, &**part)).chain(open.map(|(part, idx)| (idx, part)))
    }

    fn part(&self, idx: usize) -> &Part {
        match idx.checked_sub(self.parts.len()) {
            None => &self.parts[idx],
            Some(idx) => &self.open[idx],
        }
    }
}

impl std::fmt::Debug for HeadSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part_count: usize = self.shards.iter().map(|shard| shard.all().count()).sum();
        f.debug_struct("HeadSnapshot")
            .field("shards", &self.shards.len())
            .field("parts", &part_count)
            .finish()
    }
}
