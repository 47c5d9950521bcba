//! A frozen view of every shard: what a query reads while writing, converting and flushing go on.

use std::ops::ControlFlow;
use std::sync::Arc;

use firn_codec::{GroupColumns, OneColumn, Slots};
use firn_model::{CommitSeq, GroupId, Result, SeriesRef, ShardBits, ShardId, TimeRange, Timestamp};

use crate::arena::ReadBuffers;
use crate::part::Part;
use crate::payload::Local;
use crate::segment::SegmentCursor;

/// All rows that were visible when [`crate::Head::snapshot`] was called, and no other.
///
/// Holds no lock. What it reaches stays in memory (and in the budget) until the last clone is
/// dropped, whatever is converted, flushed or given back meanwhile (invariant 3). Take it before the
/// tree's version: rows that a flush moves in between are then in both, never in neither.
#[derive(Clone)]
pub struct HeadSnapshot {
    bits: ShardBits,
    shards: Arc<[Arc<ShardView>]>,
}

/// One shard's part of a snapshot.
pub(crate) struct ShardView {
    /// Of the shard, when this was taken.
    pub(crate) version: u64,
    /// Parts, oldest first.
    pub(crate) parts: Arc<Vec<Arc<Part>>>,
    /// What is visible of arenas that are no parts yet, oldest first.
    pub(crate) open: Vec<Part>,
    pub(crate) complete_since: CommitSeq,
}

impl HeadSnapshot {
    pub(crate) fn new(
        bits: ShardBits,
        shards: impl Iterator<Item = Arc<ShardView>>,
    ) -> HeadSnapshot {
        HeadSnapshot { bits, shards: shards.collect() }
    }

    pub(crate) fn shard_view(&self, idx: usize) -> &Arc<ShardView> {
        &self.shards[idx]
    }

    /// The group's values of `slots` in `range`, oldest source first. Sources may overlap in time:
    /// [`firn_codec::merge_columns`] unites them. No lock is taken. Costs a step per row of the group
    /// in the active arena, and decoding the wanted columns elsewhere.
    ///
    /// # Errors
    /// `Corrupt` if memory is not what was written: a bug.
    pub fn read(
        &self,
        group: GroupId,
        slots: Slots<'_>,
        range: TimeRange,
    ) -> Result<Vec<GroupColumns>> {
        let mut sources = Vec::new();
        let Some(local) = self.local(group) else { return Ok(sources) };
        let mut buffers = ReadBuffers::default();
        for part in self.shard(group).1.all() {
            part.read(local, (slots, range), &mut None, &mut buffers, &mut sources)
                .map_err(|error| error.context(format!("memory of {group}")))?;
        }
        Ok(sources)
    }

    /// For asking about one group after the other: keeps its buffers and its place in each part, so
    /// that groups that rise are found by a step each.
    pub fn reader(&self) -> HeadReader<'_> {
        HeadReader { snapshot: self, buffers: ReadBuffers::default(), places: Vec::new() }
    }

    /// Whether the group may have values in `range`. Never wrongly `false`; `true` for active rows
    /// means only that the group has some and that rows of its shard reach into `range`.
    pub fn has_data(&self, group: GroupId, range: TimeRange) -> bool {
        self.reaches(group, range).next().is_some()
    }

    /// The first moment in `range` at which the group may have values: never too late, and as exact as
    /// [`HeadSnapshot::has_data`].
    pub fn first_data(&self, group: GroupId, range: TimeRange) -> Option<Timestamp> {
        self.reaches(group, range).map(|reach| reach.start).min()
    }

    /// Every row of `shard` that was committed at this or later is in the snapshot, flushed ones
    /// included: a table all of whose rows are as young need not be read.
    /// `CommitSeq(u64::MAX)` if there is no row since the start.
    pub fn complete_since(&self, shard: ShardId) -> CommitSeq {
        let shard = self.shards.get(usize::from(shard.0));
        shard.map_or(CommitSeq(u64::MAX), |shard| shard.complete_since)
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

    fn reaches(&self, group: GroupId, range: TimeRange) -> impl Iterator<Item = TimeRange> {
        let local = self.local(group);
        let parts = local.into_iter().flat_map(move |_| self.shard(group).1.all());
        let reach = move |part: &Part| reach(part, local?, range, &mut None);
        parts.filter_map(reach)
    }

    fn shard(&self, group: GroupId) -> (usize, &ShardView) {
        let shard_idx = usize::from(self.bits.shard(group).0);
        (shard_idx, &self.shards[shard_idx])
    }
}

/// Asks a snapshot about its groups. Cheapest when they rise; asking about a group again costs no
/// search.
pub struct HeadReader<'a> {
    snapshot: &'a HeadSnapshot,
    buffers: ReadBuffers,
    /// Per shard and part the place of the group that was asked for last; none before a shard's first.
    places: Vec<Vec<Option<SegmentCursor>>>,
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
        let mut sources = Vec::new();
        let Some(local) = self.snapshot.local(group) else { return Ok(sources) };
        let (shard_idx, shard) = self.snapshot.shard(group);
        let places = places(&mut self.places, shard_idx, shard);
        for (part, place) in shard.all().zip(places) {
            part.read(local, (slots, range), place, &mut self.buffers, &mut sources)
                .map_err(|error| error.context(format!("memory of {group}")))?;
        }
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
        out: &mut OneColumn,
    ) -> Result<bool> {
        out.clear();
        let SeriesRef { group, slot } = series;
        let Some(local) = self.snapshot.local(group) else { return Ok(true) };
        let (shard_idx, shard) = self.snapshot.shard(group);
        let places = places(&mut self.places, shard_idx, shard);
        for (part, place) in shard.all().zip(places) {
            let appended = part.append_one(local, (slot, range), place, &mut self.buffers, out);
            if !appended.map_err(|error| error.context(format!("memory of {group}")))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a member has a sample in `range`, exactly. Columns are asked before rows, the newest first, and decoded only
    /// where a chunk's head does not tell: mostly it costs a step in one part. `buffer` is any column.
    ///
    /// # Errors
    /// As [`HeadSnapshot::read`].
    pub fn has_one(
        &mut self,
        series: SeriesRef,
        range: TimeRange,
        buffer: &mut OneColumn,
    ) -> Result<bool> {
        let SeriesRef { group, slot } = series;
        let Some(local) = self.snapshot.local(group) else { return Ok(false) };
        let (shard_idx, shard) = self.snapshot.shard(group);
        let places = places(&mut self.places, shard_idx, shard);
        for wants_rows in [false, true] {
            for (idx, place) in places.iter_mut().enumerate().rev() {
                let part = match idx.checked_sub(shard.parts.len()) {
                    None => &*shard.parts[idx],
                    Some(idx) => &shard.open[idx],
                };
                if part.is_rows() != wants_rows {
                    continue;
                }
                let has_one = part.has_one(local, (slot, range), place, &mut self.buffers, buffer);
                if has_one.map_err(|error| error.context(format!("memory of {group}")))? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
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
        let Some(local) = self.snapshot.local(group) else { return };
        let (shard_idx, shard) = self.snapshot.shard(group);
        for (part, place) in shard.all().zip(places(&mut self.places, shard_idx, shard)) {
            if let Some(reach) = reach(part, local, range, place)
                && each(reach).is_break()
            {
                return;
            }
        }
    }
}

/// The part of `range` in which `part` may have values of the group; what cannot be told is read, and reported there.
fn reach(
    part: &Part,
    local: Local,
    range: TimeRange,
    near: &mut Option<SegmentCursor>,
) -> Option<TimeRange> {
    Some(part.reach(local, range, near).unwrap_or(range)).filter(|reach| !reach.is_empty())
}

fn places<'a>(
    places: &'a mut Vec<Vec<Option<SegmentCursor>>>,
    shard_idx: usize,
    shard: &ShardView,
) -> &'a mut [Option<SegmentCursor>] {
    if places.len() <= shard_idx {
        places.resize_with(shard_idx + 1, Vec::new);
    }
    let of_shard = &mut places[shard_idx];
    if of_shard.is_empty() {
        of_shard.resize(shard.parts.len() + shard.open.len(), None);
    }
    of_shard
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
