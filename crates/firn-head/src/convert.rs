//! Conversion of rows to columns and of small columns to large ones: plan, run, apply.
//!
//! A conversion replaces adjacent parts of a shard by one, while writers and readers continue. If
//! its parts were flushed apart, released or replaced meanwhile, apply drops it.
//!
//! Source: ByteSeries, section 3.3 with Algorithm 1 (data conversion scheduler). The engine's
//! scheduler runs the jobs.

use std::ops::Range;
use std::sync::Arc;

use firn_codec::{Effort, SliceBy};
use firn_model::{Budget, Pool, Result, ShardId, TimeRange};

use crate::arena::ReadBuffers;
use crate::options::{ConvertOptions, HeadOptions};
use crate::part::{ListedPart, Part, PartForm, PartMemory, PartWalk, PinnedPart, WalkedGroup};
use crate::pool::BlockPool;
use crate::segment::{Segment, SegmentBuilder};
use crate::shard::{PartList, Shard, hold};

/// Waiting arenas of a shard are converted together up to this size, which bounds a job's time.
const JOB_BYTES_MAX: u64 = 32 << 20;
/// As [`JOB_BYTES_MAX`], for rows without changes: a job of few bytes may take long.
const JOB_ARENAS_MAX: usize = 16;
/// Arenas are united up to as many rows. A large group is cut into slices, and each decodes all
/// rows of the arenas that overlap it in time: late rows of many arenas would be decoded as often
/// as there are arenas.
const JOB_ROWS_MAX: u64 = 1 << 15;
/// A merged hot segment takes at most one part in this many of its shard's hot memory.
const HOT_SHARE: u64 = 8;

/// Adjacent parts of one shard to be replaced by one. Dropping it cancels the plan.
pub struct ConvertJob {
    shard: ShardId,
    inputs: Vec<PinnedPart>,
    effort: Effort,
    slice_bytes: usize,
    budget: Budget,
    blocks: Arc<BlockPool>,
    /// An epoch that had begun when it was planned.
    made: u64,
    /// While this is held, the shard plans no other conversion.
    claim: Arc<()>,
}

/// The outcome of a [`ConvertJob`], for [`crate::Head::apply_convert`].
pub struct ConvertEdit {
    pub(crate) shard: ShardId,
    inputs: Vec<PinnedPart>,
    output: Part,
    _claim: Arc<()>,
}

impl ConvertJob {
    /// Reads and packs the parts. Pure: no lock, no I/O. About 40 to 100 ns per sample.
    ///
    /// # Errors
    /// `Corrupt` if the memory is malformed: a bug. The parts stay unchanged.
    pub fn run(self) -> Result<ConvertEdit> {
        let base = self.inputs.iter().map(|input| input.part.range.start).min().unwrap_or(0);
        let held = self.budget.empty(Pool::Head);
        let mut builder = SegmentBuilder::new(base, Arc::clone(&self.blocks), held);
        let mut walk = PartWalk::new(self.inputs.iter(), SliceBy::Time, self.slice_bytes)?;
        let mut buffers = ReadBuffers::default();
        // No tombstones: parts on both sides of a delete are never merged.
        while let Some((local, group)) = walk.take_lent(&mut buffers)? {
            match group {
                WalkedGroup::Lone(column) => {
                    builder.add_lone(local, &column.times, &column.values, self.effort);
                }
                WalkedGroup::Columns(columns) => builder.add(local, columns, self.effort),
            }
        }
        let range = builder.range;
        debug_assert!(
            self.inputs
                .iter()
                .fold(TimeRange::EMPTY, |all, input| all.union(input.part.range))
                .intersect(range)
                == range,
            "a conversion made samples outside the range of its inputs"
        );
        let output = output(&self.inputs, range, builder.finish(), self.made);
        Ok(ConvertEdit { shard: self.shard, inputs: self.inputs, output, _claim: self.claim })
    }

    /// Bytes of its rows.
    pub(crate) fn row_bytes(&self) -> u64 {
        let rows = self.inputs.iter().filter(|input| input.part.is_rows);
        rows.map(|input| input.form.heap_bytes()).sum()
    }

    /// Rows of its parts, as they came in.
    pub fn input_rows(&self) -> u64 {
        self.inputs.iter().map(|input| input.part.row_count).sum()
    }

    /// Bytes of memory of its parts.
    pub fn input_bytes(&self) -> u64 {
        self.inputs.iter().map(|input| input.form.heap_bytes()).sum()
    }
}

/// How many of the youngest segments to merge; 0 if too few of one size exist. `sizes` is youngest
/// first, in generations. Sizes with the same power of `fan_in` count as one size.
fn mergeable_count(sizes: impl Iterator<Item = u64>, fan_in: usize) -> usize {
    let fan_in = fan_in.max(2);
    let tiers: Vec<u32> = sizes.map(|size| size.max(1).ilog(fan_in as u64)).collect();
    let (mut taken, mut merged) = (0, 0);
    for tier in 0..=tiers.iter().copied().max().unwrap_or(0) {
        let here = tiers[taken..].iter().take_while(|&&other| other <= tier).count();
        // The merge of the smaller sizes counts as one more of this size.
        if here + usize::from(merged > 0) >= fan_in {
            merged = taken + here;
        } else if merged > 0 {
            break;
        }
        taken += here;
    }
    merged
}

/// Whether no generation is missing between two parts. Parts must not merge over a gap. If memory
/// was released there, the result would claim to be newer than the tables with the missing rows. If
/// a delete split the parts, the result would be neither older nor younger than the delete.
fn follows(pair: &[ListedPart]) -> bool {
    pair[0].last + 1 == pair[1].first
}

/// The part that replaces adjacent `inputs`.
fn output(inputs: &[PinnedPart], range: TimeRange, segment: Segment, made: u64) -> Part {
    let (first, last) = (&inputs[0].part, &inputs[inputs.len() - 1].part);
    Part {
        first: first.first,
        last: last.last,
        through: last.through,
        seq: inputs.iter().fold(first.seq, |seq, input| seq.union(input.part.seq)),
        range,
        row_count: inputs.iter().map(|input| input.part.row_count).sum(),
        visible: 0,
        chunk_count: segment.chunk_count(),
        is_rows: false,
        memory: Arc::new(PartMemory::new(PartForm::Columns(Arc::new(segment)), made)),
    }
}

impl Shard {
    /// The oldest waiting arena and its neighbours. With `options`, also the segments before them
    /// that [`Shard::plan_compress`] would merge with the outcome: their values are then packed
    /// once less.
    pub(crate) fn plan_convert(&self, options: Option<&ConvertOptions>) -> Option<ConvertJob> {
        let list = &self.parts.list;
        let start = list.iter().position(|part| part.is_rows)?;
        let run = &list[start..self.parts.border_after(start)];
        let (mut bytes, mut row_count) = (run[0].heap_bytes(), run[0].row_count);
        let more = run.windows(2).take(JOB_ARENAS_MAX - 1).take_while(|pair| {
            bytes += pair[1].heap_bytes();
            row_count += pair[1].row_count;
            let is_small = bytes <= JOB_BYTES_MAX && row_count <= JOB_ROWS_MAX;
            pair[1].is_rows && follows(pair) && is_small
        });
        let end = start + 1 + more.count();
        let (older_count, effort) = match options {
            Some(options) => self.mergeable_before(start..end, options),
            None => (0, Effort::Fast),
        };
        self.job(&list[start - older_count..end], effort)
    }

    /// The number of unflushed segments to merge with the waiting arenas `rows` behind them, and
    /// the effort.
    fn mergeable_before(&self, rows: Range<usize>, options: &ConvertOptions) -> (usize, Effort) {
        let list = &self.parts.list;
        let first = self.parts.border_before(rows.start + 1).max(self.parts.hot_count);
        if first > rows.start {
            return (0, Effort::Fast);
        }
        let gap = list[first..=rows.start].windows(2).rposition(|pair| !follows(pair));
        let older = &list[first + gap.map_or(0, |idx| idx + 1)..rows.start];
        let rows = &list[rows];
        let row_count: u64 = rows.iter().map(|part| part.row_count).sum();
        let chunk_count = rows.iter().map(|part| part.chunk_count).max().unwrap_or(0);
        let rows_min = options.rows_per_chunk_min;
        let is_small = row_count < u64::from(rows_min) * chunk_count as u64;
        let generations =
            |parts: &[ListedPart]| parts.iter().map(|part| part.generation_count()).sum::<u64>();
        let (mut size, mut count, mut effort) = (generations(rows), 0, Effort::Fast);
        // A merge may make a segment of the next size, of which there may be enough then.
        loop {
            let left = &older[..older.len() - count];
            let sizes = left.iter().rev().map(|part| part.generation_count());
            let sizes = std::iter::once(size).chain(sizes);
            let more = match mergeable_count(sizes, options.segment_fan_in) {
                0 if count > 0 || !is_small => break,
                0 if left.last().is_some_and(|last| last.has_fewer_rows(rows_min)) => 1,
                0 => break,
                merged => {
                    effort = Effort::Small;
                    merged - 1
                }
            };
            size += generations(&left[left.len() - more..]);
            count += more;
        }
        let merged = &older[older.len() - count..];
        let bytes: u64 = merged.iter().map(|part| part.heap_bytes()).sum();
        if bytes <= JOB_BYTES_MAX { (count, effort) } else { (0, Effort::Fast) }
    }

    /// The youngest unflushed segments, once `segment_fan_in` of about one size exist. Each value
    /// is packed again about log(arenas per flush) to the base `segment_fan_in` times. Two segments
    /// suffice if their chunks have under `rows_per_chunk_min` rows, because most of their bytes
    /// are headers.
    ///
    /// Source: ByteSeries, sections 3.3 and 4.3 (points per series of a static segment).
    pub(crate) fn plan_compress(&self, options: &ConvertOptions) -> Option<ConvertJob> {
        let end = self.parts.list.iter().rposition(|part| !part.is_rows)? + 1;
        let start = self.parts.border_before(end).max(self.parts.hot_count);
        self.plan_merge(self.parts.list.get(start..end)?, u64::MAX, options)
    }

    /// As [`Shard::plan_compress`] for hot segments, up to a share of the hot memory, because a
    /// merged segment is released as one. A flush leaves the sizes that it finds, up to two of
    /// each, and many more under heavy load; a query of the last hours seeks in all of them.
    pub(crate) fn plan_compress_hot(&self, options: &HeadOptions) -> Option<ConvertJob> {
        let hot = self.parts.hot();
        let end = hot.iter().rposition(|part| !part.is_rows)? + 1;
        let bytes_max = options.hot_bytes_max / self.bits.shard_count() as u64 / HOT_SHARE;
        self.plan_merge(&hot[..end], bytes_max.min(JOB_BYTES_MAX), &options.convert)
    }

    /// A merge of the last of `run` that are segments of together at most `bytes_max`.
    fn plan_merge(
        &self,
        run: &[ListedPart],
        bytes_max: u64,
        options: &ConvertOptions,
    ) -> Option<ConvertJob> {
        let mut bytes = run.last()?.heap_bytes();
        let more = run.windows(2).rev().take_while(|pair| {
            bytes += pair[0].heap_bytes();
            !pair[0].is_rows && follows(pair) && bytes <= bytes_max
        });
        let run = &run[run.len() - 1 - more.count()..];
        let count = mergeable_count(
            run.iter().rev().map(|part| part.generation_count()),
            options.segment_fan_in,
        );
        if count >= 2 {
            return self.job(&run[run.len() - count..], Effort::Small);
        }
        let is_small = |part: &ListedPart| part.has_fewer_rows(options.rows_per_chunk_min);
        let small = run.get(run.len().saturating_sub(2)..).filter(|last| last.iter().all(is_small));
        small.filter(|last| last.len() == 2).and_then(|last| self.job(last, Effort::Fast))
    }

    /// Replaces the inputs by the output if they are still in the list, side by side and on one
    /// side of every flush. Returns whether it did. The inputs cool for their readers.
    pub(crate) fn apply_convert(&mut self, edit: ConvertEdit) -> bool {
        let ConvertEdit { inputs, output, .. } = edit;
        let Some(start) = self.parts.list.iter().position(|part| part.is(&inputs[0].part)) else {
            return false;
        };
        let end = start + inputs.len();
        let same = |(here, input): (&ListedPart, &PinnedPart)| here.is(&input.part);
        let are_adjacent = self.parts.list[start..].len() >= inputs.len()
            && self.parts.list[start..].iter().zip(&inputs).all(same);
        if !are_adjacent || end > self.parts.border_after(start) {
            return false;
        }
        let is_hot = end <= self.parts.hot_count;
        let pool = if is_hot { Pool::Hot } else { Pool::Head };
        self.account(&inputs, &output, pool);
        if is_hot {
            // A reader with tables for the inputs has them for the output too.
            let since = inputs.iter().map(|input| input.part.memory.replaced()).max();
            output.memory.replaced_at(since.unwrap_or(u64::MAX));
        }
        let keeps = !output.range.is_empty();
        let outputs = keeps.then(|| ListedPart::new(output));
        let list = Arc::make_mut(&mut self.parts.list);
        list.splice(start..end, outputs);
        if is_hot {
            self.parts.hot_count -= inputs.len() - usize::from(keeps);
        }
        let epoch = self.epochs.advance();
        inputs.iter().for_each(|input| self.retire(&input.part, epoch));
        true
    }

    /// Reserves the output's memory in `pool`; takes over the inputs' reservations if the budget is
    /// used up.
    fn account(&self, inputs: &[PinnedPart], output: &Part, pool: Pool) {
        let output = output.memory.content();
        output.move_to(pool, self.budget.empty(pool));
        let need = output.heap_bytes();
        let mut held = output.held().lock();
        for input in inputs {
            let missing = need.saturating_sub(held.bytes());
            if missing == 0 {
                break;
            }
            let part = input.form.held().lock().split(missing);
            held.merge(part);
        }
        hold(&mut held, need, None);
    }

    fn job(&self, inputs: &[ListedPart], effort: Effort) -> Option<ConvertJob> {
        let is_idle = Arc::strong_count(&self.parts.converting) == 1;
        is_idle.then(|| ConvertJob {
            shard: self.id,
            inputs: inputs.iter().map(ListedPart::pin).collect(),
            made: self.epochs.now(),
            effort,
            slice_bytes: self.options.slice_bytes,
            budget: self.budget.clone(),
            blocks: Arc::clone(&self.blocks),
            claim: Arc::clone(&self.parts.converting),
        })
    }
}

impl PartList {
    /// How many of the oldest parts belong to the flush that was planned last.
    fn planned_count(&self) -> usize {
        self.list.partition_point(|part| part.last <= self.flush_last)
    }

    /// The end of the parts that may be merged with the one at `idx`.
    fn border_after(&self, idx: usize) -> usize {
        let borders = [self.hot_count, self.planned_count()];
        borders.into_iter().filter(|&border| border > idx).min().unwrap_or(self.list.len())
    }

    /// The start of the parts that may be merged with the one before `end`.
    fn border_before(&self, end: usize) -> usize {
        let borders = [self.hot_count, self.planned_count()];
        borders.into_iter().filter(|&border| border < end).max().unwrap_or(0)
    }
}

impl std::fmt::Debug for ConvertJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConvertJob")
            .field("shard", &self.shard.0)
            .field("parts", &self.inputs.len())
            .field("effort", &self.effort)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ConvertEdit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConvertEdit")
            .field("shard", &self.shard.0)
            .field("parts", &self.inputs.len())
            .field("bytes", &self.output.heap_bytes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_one_size_are_merged_with_larger_ones_when_they_add_up() {
        let count = |sizes: &[u64]| mergeable_count(sizes.iter().copied(), 4);
        assert_eq!(count(&[]), 0);
        assert_eq!(count(&[1, 1, 1]), 0);
        assert_eq!(count(&[1, 1, 1, 1]), 4);
        assert_eq!(count(&[1, 1, 1, 4, 4]), 0);
        assert_eq!(count(&[1, 1, 1, 1, 4, 4]), 4);
        assert_eq!(count(&[1, 1, 1, 1, 4, 4, 4]), 7);
        assert_eq!(count(&[4, 4, 4, 4]), 4);
        assert_eq!(count(&[1, 4, 4, 4, 4, 16]), 5);
        // Each value is packed twice before all 64 arenas are in one segment, and once into that
        // one.
        let (mut sizes, mut work) = (Vec::new(), 0);
        for _ in 0..64 {
            sizes.insert(0, 1);
            let merged = count(&sizes);
            if merged > 0 {
                let sum: u64 = sizes.drain(..merged).sum();
                sizes.insert(0, sum);
                work += sum;
            }
            assert!(sizes.len() <= 9);
        }
        assert_eq!(sizes, [64]);
        assert!(work <= 64 * 3, "{work}");
    }
}
