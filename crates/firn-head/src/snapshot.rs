//! A frozen view of every shard: what a query reads while writing, converting and flushing go on.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_codec::{GroupColumns, MemberColumn, Slots};
use firn_model::{
    CommitSeq, Error, GroupId, Result, SeriesRef, ShardBits, ShardId, Slot, TimeRange, Timestamp,
};

use crate::arena::ReadBuffers;
use crate::complete::Complete;
use crate::epoch::{Lease, Reader};
use crate::part::{Form, Listed, Part};
use crate::payload::Local;
use crate::segment::SegmentCursor;

/// All rows that were visible when [`crate::Head::snapshot`] was called, and no other.
///
/// Holds no lock. What was not flushed then stays in memory (and in the budget) until the last clone is dropped, whatever is
/// converted, flushed or given back meanwhile (invariant 3), unless more than
/// [`crate::HeadOptions::cooling_bytes_max`] would have to stay. What was flushed may go: a reader tells up to where,
/// and tables have it. Taken together with the tree's version, under the lock that a flush swaps both under.
#[derive(Clone)]
pub struct HeadSnapshot {
    bits: ShardBits,
    shards: Arc<[Arc<ShardView>]>,
    reader: Arc<Reader<Form>>,
    counts: Arc<ReadCounts>,
}

/// One shard's part of a snapshot.
pub(crate) struct ShardView {
    /// Of the shard, when this was taken.
    pub(crate) version: u64,
    /// Parts, oldest first.
    pub(crate) parts: Arc<Vec<Listed>>,
    /// What is visible of arenas that are no parts yet, oldest first.
    pub(crate) open: Vec<Part>,
    pub(crate) complete: Complete,
}

/// What readers met, once per reader and shard.
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
        reader: Reader<Form>,
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
    /// [`firn_codec::merge_columns`] unites them. No lock is taken but for a moment. Costs a step per row of the group
    /// in the active arena, and decoding the wanted columns elsewhere.
    ///
    /// # Errors
    /// `Busy` if memory that this snapshot needs was taken, because too much would have had to stay for it; `Corrupt` if
    /// memory is not what was written: a bug.
    pub fn read(
        &self,
        group: GroupId,
        slots: Slots<'_>,
        range: TimeRange,
    ) -> Result<Vec<GroupColumns>> {
        self.reader(range).read(group, slots, range)
    }

    /// For asking about one group after the other: keeps its buffers and its place in each part, so
    /// that groups that rise are found by a step each, and keeps what it has touched in memory while it lives. It looks at
    /// nothing outside of `range`.
    pub fn reader(&self, range: TimeRange) -> HeadReader<'_> {
        HeadReader { snapshot: self, range, buffers: ReadBuffers::default(), shards: Vec::new() }
    }

    /// Whether the group may have values in `range`, in memory. Never wrongly `false`, but for flushed rows, which
    /// tables have; `true` for active rows means only that the group has some and that rows of its shard reach into
    /// `range`.
    pub fn has_data(&self, group: GroupId, range: TimeRange) -> bool {
        self.reader(range).has_data(group, range)
    }

    /// The first moment in `range` at which the group may have values: never too late, and as exact as
    /// [`HeadSnapshot::has_data`].
    pub fn first_data(&self, group: GroupId, range: TimeRange) -> Option<Timestamp> {
        self.reader(range).first_data(group, range)
    }

    /// The smallest range that holds the timestamps of all rows.
    pub fn time_range(&self) -> TimeRange {
        let parts = self.shards.iter().flat_map(|shard| shard.all());
        parts.fold(TimeRange::EMPTY, |range, part| range.union(part.range))
    }

    /// How many pieces of memory hold rows.
    pub fn part_count(&self) -> usize {
        let parts = self.shards.iter().flat_map(|shard| shard.all());
        parts.filter(|part| part.row_count > 0).count()
    }

    fn local(&self, group: GroupId) -> Option<Local> {
        Local::try_from(self.bits.local(group)).ok()
    }
}

/// Asks a snapshot about its groups. Cheapest when they rise; asking about a group again costs no
/// search.
pub struct HeadReader<'a> {
    snapshot: &'a HeadSnapshot,
    range: TimeRange,
    buffers: ReadBuffers,
    /// Of the shards that were touched.
    shards: Vec<Option<LeasedShard>>,
}

/// The memory of a shard's parts, as this reader found it.
struct LeasedShard {
    /// Of the parts that reach into the reader's range.
    places: Vec<Place>,
    complete: Complete,
    is_taken: bool,
}

/// A part's memory, which has not gone, and where the group was found in it that was asked for last.
struct Place {
    part_idx: usize,
    form: Form,
    cursor: Option<SegmentCursor>,
}

/// A part with the memory that this reader has of it.
struct Leased<'l> {
    part: &'l Part,
    form: &'l Form,
    cursor: &'l mut Option<SegmentCursor>,
    buffers: &'l mut ReadBuffers,
}

impl HeadReader<'_> {
    /// As [`HeadSnapshot::read`].
    ///
    /// # Errors
    /// As [`HeadSnapshot::read`].
    pub fn read(
        &mut self,
        group: GroupId,
        slots: Slots<'_>,
        range: TimeRange,
    ) -> Result<Vec<GroupColumns>> {
        debug_assert!(self.reaches(range), "{range:?} is not the reader's");
        let mut sources = Vec::new();
        self.check_shard(group)?;
        self.each(group, |local, leased| {
            let Leased { part, form, cursor, buffers } = leased;
            part.read(form, local, (slots, range), cursor, buffers, &mut sources)?;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(sources)
    }

    /// As [`HeadReader::read`] for one member, whose samples `out` then has alone; nothing is allocated once its memory
    /// is large enough. `false` if they did not come in order of time, which only [`HeadReader::read`] can put right.
    ///
    /// # Errors
    /// As [`HeadSnapshot::read`].
    pub fn read_one(
        &mut self,
        series: SeriesRef,
        range: TimeRange,
        out: &mut MemberColumn,
    ) -> Result<bool> {
        debug_assert!(self.reaches(range), "{range:?} is not the reader's");
        out.clear();
        self.check_shard(series.group)?;
        let mut rises = true;
        self.each(series.group, |local, leased| {
            let Leased { part, form, cursor, buffers } = leased;
            rises = part.append_one(form, local, (series.slot, range), cursor, buffers, out)?;
            Ok(if rises { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(rises)
    }

    /// Takes out of `left`, which rises, the members of `group` that have samples in `range`, in memory: exactly where they
    /// are rows, to a chunk's range of time where they are columns. Those are asked first, the newest first, and never
    /// decoded; rows only for who is left then.
    ///
    /// # Errors
    /// As [`HeadSnapshot::read`].
    pub fn take_present(
        &mut self,
        group: GroupId,
        range: TimeRange,
        left: &mut Vec<Slot>,
    ) -> Result<()> {
        debug_assert!(self.reaches(range), "{range:?} is not the reader's");
        self.check_shard(group)?;
        let Some(local) = self.snapshot.local(group) else { return Ok(()) };
        let (view, shard, buffers) = self.shard(self.snapshot.bits.shard(group));
        for wants_rows in [false, true] {
            for Place { part_idx, form, cursor } in shard.places.iter_mut().rev() {
                let part = view.part(*part_idx);
                if left.is_empty() {
                    return Ok(());
                }
                if part.is_rows() == wants_rows {
                    part.take_present(form, local, range, cursor, buffers, left)
                        .map_err(|error| error.context(format!("memory of {group}")))?;
                }
            }
        }
        Ok(())
    }

    /// Every row of `shard` in `range` that was committed at this or later is in memory for this reader, flushed ones
    /// included: a table all of whose rows are as young need not be read. `CommitSeq(u64::MAX)` if there
    /// is no row since the start. `range` lies in the reader's. Holds for as long as the reader lives.
    pub fn complete_since(&mut self, shard: ShardId, range: TimeRange) -> CommitSeq {
        debug_assert!(self.reaches(range), "{range:?} is not the reader's");
        self.shard(shard).1.complete.since(range)
    }

    fn reaches(&self, range: TimeRange) -> bool {
        range.is_empty() || self.range.intersect(range) == range
    }

    /// How many bytes of rows and chunks this reader has looked at so far.
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

    /// Calls `each` with the part of `range` in which a part may have values of the group, unless that is empty.
    fn each_reach(
        &mut self,
        group: GroupId,
        range: TimeRange,
        mut each: impl FnMut(TimeRange) -> ControlFlow<()>,
    ) {
        debug_assert!(self.reaches(range), "{range:?} is not the reader's");
        if self.check_shard(group).is_err() {
            // It had something; reading it says what became of that.
            let _ = each(range);
            return;
        }
        let outcome = self.each(group, |local, Leased { part, form, cursor, .. }| {
            // What cannot be told is read, and reported there.
            let reach = part.reach(form, local, range, cursor).unwrap_or(range);
            Ok(if reach.is_empty() { ControlFlow::Continue(()) } else { each(reach) })
        });
        debug_assert!(outcome.is_ok(), "nothing here fails");
    }

    /// Calls `each` with the parts of the group's shard whose memory is there, oldest first.
    #[inline]
    fn each(
        &mut self,
        group: GroupId,
        mut each: impl FnMut(Local, Leased<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let Some(local) = self.snapshot.local(group) else { return Ok(()) };
        let (view, shard, buffers) = self.shard(self.snapshot.bits.shard(group));
        for Place { part_idx, form, cursor } in &mut shard.places {
            let flow = each(local, Leased { part: view.part(*part_idx), form, cursor, buffers });
            if flow.map_err(|error| error.context(format!("memory of {group}")))?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// # Errors
    /// `Busy` if memory of the group's shard was taken from this reader.
    fn check_shard(&mut self, group: GroupId) -> Result<()> {
        if !self.shard(self.snapshot.bits.shard(group)).1.is_taken {
            return Ok(());
        }
        Err(Error::busy(
            1_000,
            format!(
                "memory of {group}: the query began before it was flushed or converted, and too much would have to stay \
                 for it; ask again, for fewer series or a shorter range, or raise --memory"
            ),
        ))
    }

    /// A shard's view and its memory, leased at the first touch.
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
            LeasedShard { places: Vec::new(), complete: view.complete.clone(), is_taken: false };
        let (mut hot_count, mut gone_count) = (0, 0);
        for (part_idx, part) in view.overlapping(range) {
            match part.memory.lease(&self.reader) {
                Lease::Held(form) => {
                    hot_count += u64::from(self.reader.has_other_source(&part.memory));
                    shard.places.push(Place { part_idx, form, cursor: None });
                }
                Lease::Gone => {
                    gone_count += 1;
                    shard.complete.lose(part.range, part.seq.max);
                }
                Lease::Taken => shard.is_taken = true,
            }
        }
        self.counts.hits.fetch_add(u64::from(hot_count > 0), Ordering::Relaxed);
        self.counts.misses.fetch_add(u64::from(gone_count > 0), Ordering::Relaxed);
        self.counts.revoked.fetch_add(u64::from(shard.is_taken), Ordering::Relaxed);
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

    /// The parts that reach into `range`, oldest first, with their places in the list of all.
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
