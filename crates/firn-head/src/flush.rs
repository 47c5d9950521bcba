//! Flushes, and the release of flushed memory.
//!
//! A flush turns its memory hot: younger readers also have tables for the rows. Hot memory is
//! released in order of time, oldest first: above its limit, when other pools need the memory, or
//! if it is older than the hard line. `epoch` decides for which readers it stays, and for how long.
//!
//! Source: Heracles, section 3.2 (soft line, which is the flush here, and hard line; hot areas by
//! time range; shares of the oldest ones).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use firn_codec::{GroupColumns, SliceBy, Tombstones};
use firn_model::{
    CommitSeq, GroupId, LogPosition, Pool, Result, ShardBits, ShardId, TimeRange, Timestamp,
};

use crate::arena::ReadBuffers;
use crate::options::HeadOptions;
use crate::part::{ListedPart, Part, PartWalk, PinnedPart};
use crate::payload::LocalGroup;
use crate::shard::Shard;

/// The staged rows at [`crate::Head::seal_all`]. Before a flush is planned, the log must be durable
/// up to these positions, and the rows published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SealMarks {
    /// Shards with staged rows, and the position of the last of them.
    pub marks: Vec<(ShardId, LogPosition)>,
}

/// All unflushed parts. Nothing changes until [`crate::Head::flushed`].
pub struct FlushJob {
    bits: ShardBits,
    slice_bytes: usize,
    pub(crate) shards: Vec<ShardFlush>,
}

/// One shard's share of a flush.
pub(crate) struct ShardFlush {
    pub(crate) shard: ShardId,
    parts: Vec<PinnedPart>,
    /// The last generation that is flushed after this.
    last: u64,
    through: LogPosition,
    /// The log position of the oldest staged row when the flush was planned.
    undecided: Option<LogPosition>,
}

impl FlushJob {
    pub(crate) fn new(
        bits: ShardBits,
        slice_bytes: usize,
        shards: Vec<ShardFlush>,
    ) -> Option<FlushJob> {
        let any = shards.iter().any(|shard| !shard.parts.is_empty());
        any.then_some(FlushJob { bits, slice_bytes, shards })
    }

    /// Every group with all its values that `tombstones` do not hide, groups rising over all
    /// shards, for a table writer. A large group comes in several slices that do not overlap.
    /// Decodes one slice at a time.
    ///
    /// # Errors
    /// An item is `Corrupt` if the memory is malformed: a bug.
    pub fn chunks<'a>(
        &'a self,
        tombstones: &'a Tombstones,
    ) -> impl Iterator<Item = Result<(GroupId, GroupColumns)>> + 'a {
        let mut hidden = tombstones.walk(self.time_range());
        let (mut walks, mut buffers) = (Vec::new(), ReadBuffers::default());
        let mut failed = None;
        for (idx, shard) in self.shards.iter().enumerate() {
            match PartWalk::new(shard.parts.iter(), SliceBy::Members, self.slice_bytes) {
                Ok(walk) => walks.push((shard.shard, walk)),
                Err(error) => {
                    failed = Some(error);
                    walks.truncate(idx);
                    break;
                }
            }
        }
        let mut next: BinaryHeap<Reverse<(LocalGroup, usize)>> = walks
            .iter()
            .enumerate()
            .filter_map(|(idx, (_, walk))| walk.peek().map(|local| Reverse((local, idx))))
            .collect();
        std::iter::from_fn(move || {
            if let Some(error) = failed.take() {
                next.clear();
                return Some(Err(error));
            }
            // The shard is in the low bits of a group, so (local, shard) is the order of groups.
            while let Some(Reverse((_, idx))) = next.pop() {
                let (shard, walk) = &mut walks[idx];
                let shard = *shard;
                // Between the parts: a younger part has rows that were written after the delete.
                let taken = walk.take(&mut buffers, |local, sources| {
                    hidden.hide(self.bits.group(shard, u64::from(local)), sources);
                });
                next.extend(walk.peek().map(|local| Reverse((local, idx))));
                match taken {
                    Ok(Some((local, columns))) if !columns.is_empty() => {
                        return Some(Ok((self.bits.group(shard, u64::from(local)), columns)));
                    }
                    Ok(_) => {}
                    Err(error) => {
                        next.clear();
                        return Some(Err(error));
                    }
                }
            }
            None
        })
    }

    /// Whether the job has every row that was staged at `marks` and not rolled back. If not, a
    /// writer has yet to publish or roll back: keep the log's floor and plan again.
    pub fn covers(&self, marks: &SealMarks) -> bool {
        let undecided = |shard: ShardId| {
            self.shards.iter().find(|flush| flush.shard == shard).and_then(|flush| flush.undecided)
        };
        marks.marks.iter().all(|&(shard, mark)| undecided(shard).is_none_or(|at| at > mark))
    }

    /// For every shard the log position up to which its rows are flushed once this job is done, by
    /// it or by earlier ones.
    pub fn through(&self) -> impl Iterator<Item = (ShardId, LogPosition)> + '_ {
        self.shards.iter().map(|shard| (shard.shard, shard.through))
    }

    /// The smallest range of all timestamps.
    pub fn time_range(&self) -> TimeRange {
        self.parts().fold(TimeRange::EMPTY, |range, pinned| range.union(pinned.part.range))
    }

    /// Rows (pieces as they came in).
    pub fn row_count(&self) -> u64 {
        self.parts().map(|pinned| pinned.part.row_count).sum()
    }

    /// Bytes of memory that turn hot.
    pub fn memory_bytes(&self) -> u64 {
        self.parts().map(|pinned| pinned.form.heap_bytes()).sum()
    }

    fn parts(&self) -> impl Iterator<Item = &PinnedPart> {
        self.shards.iter().flat_map(|shard| &shard.parts)
    }
}

/// A flushed part as a candidate for release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HotPart {
    pub(crate) range_end: Timestamp,
    pub(crate) shard: ShardId,
    pub(crate) first: u64,
    pub(crate) bytes: u64,
    pub(crate) seq_min: CommitSeq,
}

/// The parts to release to free at least `bytes`: a share of each of the oldest areas, then the
/// oldest parts. `hot` is sorted.
pub(crate) fn choose(hot: &[HotPart], bytes: u64, options: &HeadOptions) -> Vec<HotPart> {
    let area_of = |part: &HotPart| part.range_end.div_euclid(options.hot_area_ms);
    let (mut chosen, mut rest) = (Vec::new(), Vec::new());
    let mut percents = options.recycle_percents.iter();
    let mut missing = bytes;
    for area in hot.chunk_by(|a, b| area_of(a) == area_of(b)) {
        let percent = percents.next().copied().unwrap_or(0);
        let mut share = (u128::from(bytes) * u128::from(percent) / 100) as u64;
        for &part in area {
            if share == 0 || missing == 0 {
                rest.push(part);
                continue;
            }
            share = share.saturating_sub(part.bytes);
            missing = missing.saturating_sub(part.bytes);
            chosen.push(part);
        }
    }
    for part in rest {
        if missing == 0 {
            break;
        }
        missing = missing.saturating_sub(part.bytes);
        chosen.push(part);
    }
    chosen
}

impl Shard {
    /// Plans a flush of all unflushed parts.
    pub(crate) fn plan_flush(&mut self) -> ShardFlush {
        let parts: Vec<PinnedPart> = self.parts.unflushed().iter().map(ListedPart::pin).collect();
        let (last, through) = match parts.last() {
            Some(PinnedPart { part, .. }) => (part.last, part.through),
            None => (0, self.parts.flushed_through),
        };
        self.parts.flush_last = last;
        ShardFlush { shard: self.id, parts, last, through, undecided: self.undecided() }
    }

    /// The parts of `flush` turn hot in their present form. Readers that register in `epoch` or
    /// later also have tables for them.
    pub(crate) fn flushed(&mut self, flush: &ShardFlush, epoch: u64) {
        let count = self.parts.list.partition_point(|part| part.last <= flush.last);
        for part in self.parts.list.iter().take(count).skip(self.parts.hot_count) {
            part.memory.content().move_to(Pool::Hot, self.budget.empty(Pool::Hot));
            part.memory.replaced_at(epoch);
        }
        self.parts.hot_count = self.parts.hot_count.max(count);
        self.parts.flushed_through = self.parts.flushed_through.max(flush.through);
    }

    /// The flushed parts.
    pub(crate) fn hot_parts(&self) -> impl Iterator<Item = HotPart> + '_ {
        self.parts.hot().iter().map(|part| HotPart {
            range_end: part.range.end,
            shard: self.id,
            first: part.first,
            bytes: part.heap_bytes(),
            seq_min: part.seq.min,
        })
    }

    /// Releases a flushed part; it cools for readers without a table for it. Returns its bytes, 0
    /// if it is not in the list.
    pub(crate) fn recycle(&mut self, first: u64) -> u64 {
        let Some(idx) = self.parts.hot().iter().position(|part| part.first == first) else {
            return 0;
        };
        let part = Arc::make_mut(&mut self.parts.list).remove(idx);
        self.parts.hot_count -= 1;
        self.complete.lose(part.range, part.seq.max);
        let bytes = part.heap_bytes();
        // Its epoch is that of its flush.
        self.retire(&part, u64::MAX);
        bytes
    }

    /// `part` left the list. Readers that register in `epoch` or later see its replacement.
    pub(crate) fn retire(&self, part: &Part, epoch: u64) {
        let bytes = part.heap_bytes();
        part.memory.replaced_at(epoch);
        self.epochs.cool(Arc::clone(&part.memory), bytes);
    }
}

impl std::fmt::Debug for FlushJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlushJob")
            .field("rows", &self.row_count())
            .field("range", &self.time_range())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four areas of ten parts of 10 bytes each.
    #[test]
    fn recycling_takes_its_shares_then_the_oldest_parts() {
        let hour = 3_600_000;
        let part = |area: i64, idx: u64| HotPart {
            range_end: area * hour + idx as i64,
            shard: ShardId(0),
            first: area as u64 * 10 + idx,
            bytes: 10,
            seq_min: CommitSeq(0),
        };
        let hot: Vec<HotPart> =
            (0..4).flat_map(|area| (0..10).map(move |i| part(area, i))).collect();
        let counts = |bytes: u64, recycle_percents: [u8; 3]| {
            let options =
                HeadOptions { hot_area_ms: hour, recycle_percents, ..HeadOptions::default() };
            let chosen = choose(&hot, bytes, &options);
            let of_area = |area: i64| {
                let is_there = |part: &&HotPart| part.range_end.div_euclid(hour) == area;
                chosen.iter().filter(is_there).count()
            };
            [0, 1, 2, 3].map(of_area)
        };
        assert_eq!(counts(100, [45, 35, 20]), [5, 4, 1, 0], "whole parts, no more than requested");
        assert_eq!(counts(100, [100, 0, 0]), [10, 0, 0, 0]);
        assert_eq!(counts(1, [45, 35, 20]), [1, 0, 0, 0]);
        assert_eq!(counts(350, [45, 35, 20]), [10, 10, 10, 5]);
        assert_eq!(counts(u64::MAX, [45, 35, 20]), [10, 10, 10, 10]);
        assert_eq!(counts(200, [0, 0, 50]), [10, 0, 10, 0]);
    }
}
