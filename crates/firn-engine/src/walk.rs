//! A walk over series: all samples of all matching series, in order of labels, in bounded memory.
//!
//! Storage is ordered by group and time, the result by labels: neighbouring series in the result
//! are in different groups, and all samples of one may not fit into memory. So the walk sorts the
//! label sets first and then processes *batches* of neighbouring series, as many as fit into its
//! buffers.
//!
//! It reads each batch in *windows* of time: short at first, longer while they contain little.
//! Requests to the slow tier include the next windows. A batch that turns out too large is cut, and
//! its remainder comes with the next. A series that alone is too large is returned in runs. A
//! window that does not fit into the memory of the query is read again, shorter or with fewer
//! series.

use std::sync::Arc;

use firn_index::{GroupMatch, Member};
use firn_model::{
    ColumnBatch, ColumnValues, Error, ErrorKind, Grouping, Labels, Matcher, Pool, QueryContext,
    Reservation, Result, Selected, Selection, SeriesRef, TimeRange, Timestamp,
};

use firn_tree::{Directories, ReadAhead};

use crate::Snapshot;
use crate::snapshot::of_groups;

/// The selection of a walk, and its limits.
#[derive(Clone, Debug)]
pub struct WalkOptions {
    /// All must match.
    pub matchers: Vec<Matcher>,
    /// Both ends inclusive.
    pub range: TimeRange,
    /// Labels added to every series that lacks the name. The order is that of the resulting labels.
    pub extra: Labels,
    /// Approximate maximum number of samples in memory, 16 bytes each; at least 1.
    pub samples_max: usize,
}

/// See [`Snapshot::walk`].
#[derive(Debug)]
pub struct SeriesWalk {
    snapshot: Snapshot,
    context: QueryContext,
    range: TimeRange,
    samples_max: usize,
    /// Sorted by labels.
    series: Vec<WalkedSeries>,
    /// Start of the batch in `series`, and its samples.
    first: usize,
    batch: Vec<SeriesBuffer>,
    /// Number of series of the batch that were returned.
    given_count: usize,
    /// Rest of a batch of one series that is too large to be read at once.
    rest: Option<WalkPosition>,
    /// Series to try in the next batch.
    batch_len: usize,
    /// Shared by all windows.
    read_ahead: Arc<ReadAhead>,
    /// Directories of all tables that are read, loaded at once.
    _directories: Directories,
    /// For label sets and buffers.
    held: Reservation,
    list_bytes: u64,
}

/// Some samples of one series, in ascending order of time.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Position of the series in the walk; the same for consecutive runs of one series.
    pub series_idx: usize,
    /// Its labels.
    pub labels: &'a Labels,
    /// At least one.
    pub times: &'a [Timestamp],
    /// As many as `times`.
    pub values: &'a [f64],
}

#[derive(Debug)]
struct WalkedSeries {
    labels: Labels,
    series: SeriesRef,
}

#[derive(Debug, Default)]
struct SeriesBuffer {
    times: Vec<Timestamp>,
    values: Vec<f64>,
}

#[derive(Clone, Copy, Debug)]
struct WalkPosition {
    from: Timestamp,
    window_ms: i64,
}

// The first window of a batch: 60 samples a series at 15 s, and few even at 1 s.
const WINDOW_MS_MIN: i64 = 15 * 60_000;
const WINDOW_GROWTH: i64 = 4;
// Series of the first batch and of the largest: their blocks are read together, 16 KiB each.
const BATCH_LEN_FIRST: usize = 32;
const BATCH_LEN_MAX: usize = 256;
// In buffers that double; the old one exists until it is copied.
const SAMPLE_BYTES: usize = 3 * (size_of::<Timestamp>() + size_of::<f64>());
// An entry of the list, which is moved while it grows.
const SERIES_BYTES: usize = 3 * size_of::<WalkedSeries>();

impl Snapshot {
    /// A walk over all matching series in order of their labels, and over the samples of each in
    /// order of time. Holds the label sets and about [`WalkOptions::samples_max`] samples, reserved
    /// in the context's budget.
    ///
    /// # Errors
    /// As [`firn_model::Select::select`].
    pub fn walk(&self, options: WalkOptions, context: &QueryContext) -> Result<SeriesWalk> {
        let range = options.range.intersect(self.time_range());
        let grouping = Grouping::Series;
        let selection = Selection { matchers: options.matchers, range, grouping };
        let (found, directories) = self.matches_held(&selection, context)?;
        let mut series = Vec::new();
        let mut held = context.budget.empty(Pool::Query);
        let extra_bytes = options.extra.as_encoded().len();
        let mut list_bytes = 0;
        for group in &found.groups {
            context.cancel.check()?;
            for member in &group.members {
                let Some(labels) = found.keys.get(member.key as usize) else { continue };
                let text_bytes = labels.as_encoded().len() + extra_bytes;
                list_bytes += (text_bytes + SERIES_BYTES) as u64;
                held.cover(list_bytes)?;
                let labels = with_extra(labels, &options.extra);
                let series_ref = SeriesRef { group: group.group, slot: member.slot };
                series.push(WalkedSeries { labels, series: series_ref });
            }
        }
        series.sort_unstable_by(|a, b| a.labels.cmp(&b.labels));
        Ok(SeriesWalk {
            snapshot: self.clone(),
            context: context.clone(),
            range,
            samples_max: options.samples_max.max(1),
            series,
            first: 0,
            batch: Vec::new(),
            given_count: 0,
            rest: None,
            batch_len: BATCH_LEN_FIRST,
            read_ahead: Arc::default(),
            _directories: directories,
            held,
            list_bytes,
        })
    }
}

impl SeriesWalk {
    /// The next samples; `None` at the end. Series without samples in the range are skipped.
    ///
    /// # Errors
    /// As [`firn_model::Selected::read`]. The walk cannot continue afterwards.
    pub fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        loop {
            let rest = self.batch.get(self.given_count..).unwrap_or_default();
            if let Some(skipped) = rest.iter().position(|samples| !samples.times.is_empty()) {
                self.given_count += skipped + 1;
                break;
            }
            if !self.read_batch()? {
                return Ok(None);
            }
        }
        let idx = self.given_count - 1;
        let (samples, series_idx) = (&self.batch[idx], self.first + idx);
        let labels = &self.series[series_idx].labels;
        Ok(Some(Run { series_idx, labels, times: &samples.times, values: &samples.values }))
    }

    /// Replaces the batch, which was returned completely, by the next or by more of its only
    /// series. Returns whether there was one.
    fn read_batch(&mut self) -> Result<bool> {
        let rest = self.rest.take();
        if rest.is_none() {
            self.first += self.batch.len();
            let len = self.batch_len.min(self.series.len() - self.first);
            self.batch.resize_with(len, SeriesBuffer::default);
        }
        self.batch.iter_mut().for_each(SeriesBuffer::clear);
        self.given_count = 0;
        if self.batch.is_empty() {
            return Ok(false);
        }
        let start = match rest {
            Some(rest) => Some(rest),
            None => self
                .first_data(self.range)
                .map(|from| WalkPosition { from, window_ms: WINDOW_MS_MIN }),
        };
        self.read_windows(start)?;
        if self.batch.len() == self.batch_len && self.sample_count() < self.samples_max / 2 {
            self.batch_len = (2 * self.batch_len).min(BATCH_LEN_MAX);
        } else {
            self.batch_len = self.batch_len.min(self.batch.len().max(1));
        }
        Ok(true)
    }

    /// Reads windows from `next` to the end of the range, or until a batch of one series is large
    /// enough.
    fn read_windows(&mut self, mut next: Option<WalkPosition>) -> Result<()> {
        while let Some(WalkPosition { from, mut window_ms }) = next {
            let to = from.saturating_add(window_ms - 1).min(self.range.end);
            let count = match self.read_window(TimeRange::new(from, to)) {
                Ok(count) => count,
                Err(error) => {
                    let window_ms = self.after_refusal(error, from, window_ms)?;
                    next = Some(WalkPosition { from, window_ms });
                    continue;
                }
            };
            if count > self.samples_max / 2 {
                window_ms = (window_ms / 2).max(1);
            } else if count < self.samples_max / 8 {
                window_ms = window_ms.saturating_mul(WINDOW_GROWTH);
            }
            next = (to < self.range.end).then(|| WalkPosition { from: to + 1, window_ms });
            if self.batch.len() == 1 && self.sample_count() >= self.samples_max / 2 {
                self.rest = next;
                return Ok(());
            }
            if count == 0 {
                next = next.and_then(|rest| self.skip_gap(rest));
            }
        }
        Ok(())
    }

    /// After the window from `from` did not fit into the memory of the query: drops its samples and
    /// half of the series, which the next batch reads. For one series returns a shorter window.
    fn after_refusal(&mut self, error: Error, from: Timestamp, window_ms: i64) -> Result<i64> {
        let is_one = self.batch.len() == 1;
        if *error.kind() != ErrorKind::TooLarge || (is_one && window_ms == 1) {
            return Err(error);
        }
        self.batch.truncate(self.batch.len().div_ceil(2));
        self.batch.iter_mut().for_each(|samples| samples.cut(from));
        let needed = self.list_bytes + (self.sample_count() * SAMPLE_BYTES) as u64;
        self.held.shrink_to(needed);
        Ok(if is_one { (window_ms / WINDOW_GROWTH).max(1) } else { window_ms })
    }

    /// Moves from an empty window to the next samples of the batch.
    fn skip_gap(&self, rest: WalkPosition) -> Option<WalkPosition> {
        let from = self.first_data(TimeRange::new(rest.from, self.range.end))?;
        // If nothing was skipped, the next window may be empty too: continue with longer windows.
        let window_ms = if from > rest.from { WINDOW_MS_MIN } else { rest.window_ms };
        Some(WalkPosition { from, window_ms })
    }

    /// The first time in `range` at which a series of the batch may have samples.
    fn first_data(&self, range: TimeRange) -> Option<Timestamp> {
        let (head, version) = (self.snapshot.head(), self.snapshot.version());
        let batch = self.series.iter().skip(self.first).take(self.batch.len());
        let first = batch.filter_map(|walked| {
            let SeriesRef { group, slot } = walked.series;
            let tables = version.first_data(group, slot, range);
            tables.into_iter().chain(head.first_data(group, range)).min()
        });
        first.min()
    }

    /// Appends the samples of the batch in `window`, and cuts the batch if there are too many.
    /// Returns the number of samples read.
    fn read_window(&mut self, window: TimeRange) -> Result<usize> {
        self.context.cancel.check()?;
        let groups = self.batch_groups();
        let group_count = groups.len();
        let groups = of_groups(groups, &self.context);
        let selected = self.snapshot.selected(groups, window, &self.context);
        let selected = selected.in_walk(&self.read_ahead, self.range.end);
        let (mut count, mut sum) = (0, self.sample_count());
        let SeriesWalk { batch, held, list_bytes, .. } = self;
        selected.each(0..group_count, &mut |columns| {
            let more: usize = columns.columns.iter().map(|column| column.values.len()).sum();
            (count, sum) = (count + more, sum + more);
            held.cover(*list_bytes + (sum * SAMPLE_BYTES) as u64)?;
            take_columns(columns, batch)
        })?;
        while sum > self.samples_max && self.batch.len() > 1 {
            self.batch.truncate(self.batch.len() / 2);
            sum = self.sample_count();
        }
        Ok(count)
    }

    /// The batch as groups for a read; keys are positions in the batch.
    fn batch_groups(&self) -> Vec<GroupMatch> {
        let batch = self.series.iter().skip(self.first).take(self.batch.len());
        let mut refs: Vec<(SeriesRef, u32)> =
            batch.zip(0..).map(|(walked, key)| (walked.series, key)).collect();
        refs.sort_unstable();
        let groups = refs.chunk_by(|a, b| a.0.group == b.0.group);
        let member = |&(series, key): &(SeriesRef, u32)| Member { slot: series.slot, key };
        groups
            .map(|refs| GroupMatch {
                group: refs[0].0.group,
                members: refs.iter().map(member).collect(),
            })
            .collect()
    }

    fn sample_count(&self) -> usize {
        self.batch.iter().map(|samples| samples.times.len()).sum()
    }
}

impl SeriesBuffer {
    fn clear(&mut self) {
        self.times.clear();
        self.values.clear();
    }

    /// Removes the samples from `from` on and releases their memory.
    fn cut(&mut self, from: Timestamp) {
        let len = self.times.partition_point(|&ts| ts < from);
        self.times.truncate(len);
        self.values.truncate(len);
        self.times.shrink_to_fit();
        self.values.shrink_to_fit();
    }
}

/// Appends columns to the samples that their keys name.
fn take_columns(columns: &ColumnBatch, batch: &mut [SeriesBuffer]) -> Result<()> {
    for column in &columns.columns {
        let times = &columns.times[column.time_idx as usize];
        let ColumnValues::F64(values) = &column.values else {
            return Err(Error::internal("a walk can read columns of doubles only"));
        };
        let samples = &mut batch[column.key as usize];
        match &column.presence {
            None => samples.times.extend_from_slice(times),
            Some(presence) => samples.times.extend(presence.iter().map(|idx| times[idx])),
        }
        samples.values.extend_from_slice(values);
    }
    Ok(())
}

fn with_extra(labels: &Labels, extra: &Labels) -> Labels {
    let missing = extra.iter().filter(|(name, _)| labels.get(name).is_none());
    missing.fold(labels.clone(), |labels, (name, value)| labels.with(name, value))
}

#[cfg(test)]
mod tests;
