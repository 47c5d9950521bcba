//! Reads a selection: groups in reads of a bounded size, each member's column through the
//! windows of its time column and a kernel, with results in the order of the groups.
//!
//! A large selection is distributed over the threads that the query may borrow. A thread that
//! finishes a read waits until the results of all previous reads have been delivered. So a result
//! has the same bits on any number of threads, and at most one read per thread is pending.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use firn_model::{
    ColumnBatch, Error, Grouping, Labels, Matcher, Pool, QueryContext, Reservation, Result, Select,
    Selected, Selection, Timestamp,
};

use super::kernel::Kernel;
use super::meter::bytes_of;
use super::tally::SampleStats;
use super::vector::{ABSENT, VectorSeries};
use super::window::{Frame, MemberSamples, Scratch, WINDOWS_STEP_BYTES, Windows};
use crate::histogram::Remarks;

/// The approximate number of values per read: 2 MiB, so that little memory is in use and decoded
/// data is still in the CPU cache when it is evaluated. A read contains at least one group.
const READ_VALUES: u64 = 1 << 18;
/// The maximum number of groups per read.
const READ_GROUPS_MAX: usize = 4_096;
/// The assumed sample interval, until the first read returns the real number of values per member.
const SPACING_MS: i64 = 15_000;
/// The cost of finding and opening a member, in values.
const MEMBER_VALUES: u64 = 64;
/// The minimum work for which starting a thread pays off: half a millisecond.
const HELPER_VALUES_MIN: u64 = 1 << 18;
/// The maximum number of values that a pending read of a helper may hold.
const HELD_VALUES_MAX: u64 = 1 << 22;
/// The memory of the windows that a thread keeps for the next batch, unless one takes more.
const KEPT_WINDOWS_BYTES_MAX: usize = 4 << 20;

/// A matched selection.
pub(super) struct Scan<'a> {
    selected: Box<dyn Selected>,
    context: &'a QueryContext,
    frame: &'a Frame,
    /// Whether the kernel receives stale markers as samples.
    keep_stale: bool,
}

/// Receives the results of a scan, members in the order of groups and slots.
pub(super) trait Sink: Send {
    /// Counts a member: its samples, and those of its longest window as the sample limit counts
    /// them.
    fn count(&mut self, samples: u64, longest: u64) -> Result<()>;
    /// A member of floats under key `key`, one value per step; all of them may be absent.
    fn floats(&mut self, key: u32, values: &[f64]) -> Result<()>;
    /// A member with histograms or start timestamps.
    fn mixed(&mut self, key: u32, series: VectorSeries, remarks: Remarks) -> Result<()>;
}

impl<'a> Scan<'a> {
    /// Matches the series; reads no sample yet.
    pub(super) fn open(
        select: &dyn Select,
        matchers: &[Matcher],
        frame: &'a Frame,
        grouping: &Grouping,
        keep_stale: bool,
        context: &'a QueryContext,
    ) -> Result<Scan<'a>> {
        let selection = Selection {
            matchers: matchers.to_vec(),
            range: frame.range(),
            grouping: grouping.clone(),
        };
        Ok(Scan { selected: select.select(&selection, context)?, context, frame, keep_stale })
    }

    /// The keys that a [`Sink`] receives.
    pub(super) fn keys(&self) -> &[Labels] {
        self.selected.keys()
    }

    /// Passes every member's samples to `each`, on this thread.
    pub(super) fn each(
        &self,
        each: &mut dyn FnMut(u32, MemberSamples<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut reads = ReadPlan::new(&*self.selected, self.frame);
        let mut reader = Reader::new(self, None)?;
        while let Some(groups) = reads.next() {
            let values = self.read(groups.clone(), &mut reader, each)?;
            reads.learn(groups, values);
        }
        Ok(())
    }

    /// Computes a column per member. The samples of its steps are added to `stats`, if present.
    pub(super) fn run(
        &self,
        kernel: &dyn Kernel,
        sink: &mut dyn Sink,
        stats: &mut Option<SampleStats>,
    ) -> Result<()> {
        let mut reads = ReadPlan::new(&*self.selected, self.frame);
        let mut reader = Reader::new(self, stats.take())?;
        while let Some(groups) = reads.next() {
            let values = self.compute(groups.clone(), &mut reader, kernel, sink)?;
            reads.learn(groups, values);
            let permit = self.context.helpers.take(reads.helpers_wanted());
            if permit.count() > 0 {
                self.run_together(permit.count(), reads, kernel, sink, &mut reader)?;
                break;
            }
        }
        *stats = reader.stats;
        Ok(())
    }

    /// Executes the remaining `reads` with the help of `helper_count` threads.
    fn run_together(
        &self,
        helper_count: usize,
        reads: ReadPlan<'_>,
        kernel: &dyn Kernel,
        sink: &mut dyn Sink,
        reader: &mut Reader,
    ) -> Result<()> {
        let mut stats = reader.stats.take();
        let counted = || stats.as_ref().map(|_| SampleStats::new(self.frame.steps.count));
        reader.stats = counted();
        let helper_stats: Vec<_> = (0..helper_count).map(|_| counted()).collect();
        let stats = &mut stats;
        let work = ScanProgress { reads, sink, issued: 0, due: 0, failed: None, stats };
        let shared = SharedScan { work: Mutex::new(work), turn: Condvar::new() };
        std::thread::scope(|scope| {
            for stats in helper_stats {
                let thread = std::thread::Builder::new().name("firn-helper".into());
                // If the thread cannot be started or has no memory, the other threads do its part.
                let shared = &shared;
                let _ = thread.spawn_scoped(scope, move || {
                    if let Ok(mut reader) = Reader::new(self, stats) {
                        self.run_worker(shared, &mut reader, kernel);
                    }
                });
            }
            self.run_worker(&shared, reader, kernel);
        });
        let work = shared.work.into_inner().unwrap_or_else(PoisonError::into_inner);
        let failed = work.failed;
        reader.stats = work.stats.take();
        failed.map_or(Ok(()), Err)
    }

    /// The loop of each thread: take a read, compute it, wait for its turn, deliver the result.
    fn run_worker(&self, shared: &SharedScan<'_>, reader: &mut Reader, kernel: &dyn Kernel) {
        let mut done = PendingRead::new(self.context);
        let watch = StopOnPanic(shared);
        loop {
            let Some((ticket, groups)) = shared.lock().take() else { break };
            done.clear();
            let values = self.compute(groups.clone(), reader, kernel, &mut done);
            let mut work = shared.lock();
            while work.due != ticket && work.failed.is_none() {
                work = watch.0.turn.wait(work).unwrap_or_else(PoisonError::into_inner);
            }
            if work.failed.is_some() {
                return;
            }
            let handed = values.and_then(|values| {
                work.reads.learn(groups, values);
                done.hand_on(work.sink)
            });
            work.due += 1;
            work.failed = handed.err();
            shared.turn.notify_all();
        }
        if let (Some(all), Some(own)) = (&mut *shared.lock().stats, &reader.stats) {
            all.add(own);
        }
    }

    /// Reads `groups` and computes a column per member; returns the number of values read.
    fn compute(
        &self,
        groups: Range<usize>,
        reader: &mut Reader,
        kernel: &dyn Kernel,
        sink: &mut dyn Sink,
    ) -> Result<u64> {
        let step_count = self.frame.steps.count;
        let (mut out, mut stats) = (std::mem::take(&mut reader.out), reader.stats.take());
        let mut scratch = self.context.budget.empty(Pool::Query);
        let values = self.read(groups, reader, &mut |key, reading| {
            // A window function may take long for a single member.
            self.context.cancel.check()?;
            sink.count(reading.len() as u64, reading.longest() as u64)?;
            if let Some(stats) = stats.as_mut().filter(|_| kernel.looks_at_windows()) {
                stats.windows(reading);
            }
            if kernel.looks_at_windows() {
                scratch.cover(reading.scratch_bytes())?;
            }
            let points = stats.as_mut().filter(|_| !kernel.looks_at_windows());
            match reading {
                MemberSamples::Floats(samples) => {
                    out.clear();
                    out.resize(step_count, ABSENT);
                    kernel.floats(samples, &mut out)?;
                    if let Some(stats) = points {
                        stats.float_points(&out);
                    }
                    sink.floats(key, &out)
                }
                MemberSamples::Mixed(samples) => {
                    let labels = self.label(key)?.clone();
                    let mut series = VectorSeries::floats(labels, false, vec![ABSENT; step_count]);
                    let mut remarks = Remarks::default();
                    kernel.mixed(samples, &mut series, &mut remarks)?;
                    if let Some(stats) = points {
                        stats.points(&series);
                    }
                    sink.mixed(key, series, remarks)
                }
            }
        })?;
        (reader.out, reader.stats) = (out, stats);
        Ok(values)
    }

    /// Reads `groups` and passes on the samples of each member; returns the number of values.
    fn read(
        &self,
        groups: Range<usize>,
        reader: &mut Reader,
        each: &mut dyn FnMut(u32, MemberSamples<'_>) -> Result<()>,
    ) -> Result<u64> {
        self.context.cancel.check()?;
        let mut values = 0;
        self.selected.each(groups, &mut |batch| {
            self.context.cancel.check()?;
            values += batch.columns.iter().map(|column| column.values.len() as u64).sum::<u64>();
            reader.each_column(batch, self.frame, self.keep_stale, each)
        })?;
        Ok(values)
    }

    /// The labels of a key.
    pub(super) fn label(&self, key: u32) -> Result<&Labels> {
        let unknown = || Error::internal("a column names an unknown key");
        self.keys().get(key as usize).ok_or_else(unknown)
    }
}

/// Splits the groups into reads.
struct ReadPlan<'a> {
    selected: &'a dyn Selected,
    next: usize,
    end: usize,
    members_left: u64,
    members_max: u64,
    /// The approximate number of values per member.
    values_each: u64,
    step_count: u64,
}

impl<'a> ReadPlan<'a> {
    fn new(selected: &'a dyn Selected, frame: &Frame) -> ReadPlan<'a> {
        let range = frame.range();
        let span_ms = range.end.saturating_sub(range.start).max(0);
        let end = selected.group_count();
        let members = || (0..end).map(|group| selected.member_count(group) as u64);
        ReadPlan {
            selected,
            next: 0,
            end,
            members_left: members().sum(),
            members_max: members().max().unwrap_or(0),
            values_each: (span_ms / SPACING_MS) as u64 + 1,
            step_count: frame.steps.count as u64,
        }
    }

    fn next(&mut self) -> Option<Range<usize>> {
        let start = self.next;
        let members_max = READ_VALUES / self.values_each;
        let mut members = 0;
        while self.next < self.end && self.next - start < READ_GROUPS_MAX {
            let more = self.selected.member_count(self.next) as u64;
            if members > 0 && members + more > members_max {
                break;
            }
            members += more;
            self.next += 1;
        }
        self.members_left = self.members_left.saturating_sub(members);
        (start < self.next).then_some(start..self.next)
    }

    /// Updates the estimate: `groups` contained `values` values.
    fn learn(&mut self, groups: Range<usize>, values: u64) {
        let members: u64 = groups.map(|group| self.selected.member_count(group) as u64).sum();
        self.values_each = values.checked_div(members).unwrap_or(0).max(1);
    }

    /// The number of additional threads that would pay off.
    fn helpers_wanted(&self) -> usize {
        if self.members_max.saturating_mul(self.step_count) > HELD_VALUES_MAX {
            return 0;
        }
        let left = self.members_left.saturating_mul(self.values_each + MEMBER_VALUES);
        usize::try_from(left / HELPER_VALUES_MIN).unwrap_or(usize::MAX)
    }
}

/// The state shared by the threads of one scan.
struct SharedScan<'s> {
    work: Mutex<ScanProgress<'s>>,
    /// Notified when a result is delivered.
    turn: Condvar,
}

struct ScanProgress<'s> {
    reads: ReadPlan<'s>,
    sink: &'s mut dyn Sink,
    /// The number of reads issued, and of reads delivered.
    issued: usize,
    due: usize,
    failed: Option<Error>,
    stats: &'s mut Option<SampleStats>,
}

impl<'s> SharedScan<'s> {
    fn lock(&self) -> MutexGuard<'_, ScanProgress<'s>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ScanProgress<'_> {
    fn take(&mut self) -> Option<(usize, Range<usize>)> {
        if self.failed.is_some() {
            return None;
        }
        let groups = self.reads.next()?;
        self.issued += 1;
        Some((self.issued - 1, groups))
    }
}

/// Stops the other threads when a thread panics: its turn would never end.
struct StopOnPanic<'a, 's>(&'a SharedScan<'s>);

impl Drop for StopOnPanic<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().failed = Some(Error::internal("a thread of the query panicked"));
            self.0.turn.notify_all();
        }
    }
}

/// The result of a read until its turn comes.
struct PendingRead {
    held: Reservation,
    samples: u64,
    longest: u64,
    members: Vec<PendingMember>,
    /// The columns of all float members, back to back.
    values: Vec<f64>,
}

enum PendingMember {
    Floats { key: u32, end: usize },
    Mixed { key: u32, series: Box<VectorSeries>, remarks: Remarks },
}

impl PendingRead {
    fn new(context: &QueryContext) -> PendingRead {
        let held = context.budget.empty(Pool::Query);
        PendingRead { held, samples: 0, longest: 0, members: Vec::new(), values: Vec::new() }
    }

    fn clear(&mut self) {
        (self.samples, self.longest) = (0, 0);
        self.members.clear();
        self.values.clear();
    }

    fn hand_on(&mut self, sink: &mut dyn Sink) -> Result<()> {
        sink.count(self.samples, self.longest)?;
        let mut start = 0;
        for member in self.members.drain(..) {
            match member {
                PendingMember::Floats { key, end } => {
                    sink.floats(key, self.values.get(start..end).unwrap_or_default())?;
                    start = end;
                }
                PendingMember::Mixed { key, series, remarks } => {
                    sink.mixed(key, *series, remarks)?
                }
            }
        }
        Ok(())
    }
}

impl Sink for PendingRead {
    fn count(&mut self, samples: u64, longest: u64) -> Result<()> {
        self.samples += samples;
        self.longest = self.longest.max(longest);
        Ok(())
    }

    fn floats(&mut self, key: u32, values: &[f64]) -> Result<()> {
        let free = self.values.capacity() - self.values.len();
        if free < values.len() {
            let more = values.len().max(self.values.len());
            // Old and new values exist together while they are copied.
            let copied = self.values.len() as u64 * 8;
            self.held.grow(copied + more as u64 * 8)?;
            self.values.reserve_exact(more);
            self.held.shrink(copied);
        }
        self.values.extend_from_slice(values);
        self.members.push(PendingMember::Floats { key, end: self.values.len() });
        Ok(())
    }

    fn mixed(&mut self, key: u32, series: VectorSeries, remarks: Remarks) -> Result<()> {
        self.held.grow(bytes_of(&series))?;
        self.members.push(PendingMember::Mixed { key, series: Box::new(series), remarks });
        Ok(())
    }
}

/// Buffers that a thread reuses between reads.
struct Reader {
    /// Windows over the time columns of the last batch; series that were scraped together often
    /// share their time column. A batch with more columns computes the others when it meets them.
    windows: Vec<(Arc<[Timestamp]>, Windows)>,
    windows_max: usize,
    scratch: Scratch,
    out: Vec<f64>,
    /// The samples of each step, if statistics are requested.
    stats: Option<SampleStats>,
    /// The memory of everything above that has one entry per step.
    held: Reservation,
}

impl Reader {
    /// Buffers for the steps of `scan`.
    ///
    /// # Errors
    /// `TooLarge` or `Busy` without memory for them.
    fn new(scan: &Scan<'_>, stats: Option<SampleStats>) -> Result<Reader> {
        let step_count = scan.frame.steps.count;
        let windows_bytes = step_count.saturating_mul(WINDOWS_STEP_BYTES);
        let windows_max = (KEPT_WINDOWS_BYTES_MAX / windows_bytes.max(1)).max(1);
        // The windows of a time column and of a member with gaps, a column and statistics.
        let steps_bytes = step_count.saturating_mul(8 + 16);
        let bytes = windows_bytes.saturating_mul(2).saturating_add(steps_bytes);
        let held = scan.context.budget.reserve(Pool::Query, bytes as u64)?;
        let (windows, scratch, out) = Default::default();
        Ok(Reader { windows, windows_max, scratch, out, stats, held })
    }

    /// Calls `each` with the key and the samples of every member of `batch`.
    fn each_column(
        &mut self,
        batch: &ColumnBatch,
        frame: &Frame,
        keep_stale: bool,
        each: &mut dyn FnMut(u32, MemberSamples<'_>) -> Result<()>,
    ) -> Result<()> {
        let kept = self.windows_max.min(batch.times.len());
        for (idx, times) in batch.times.iter().enumerate().take(kept) {
            self.compute_windows(idx, times, frame)?;
        }
        for column in &batch.columns {
            let time_idx = column.time_idx as usize;
            let unknown = || Error::internal("a column without its times");
            let place = if time_idx < kept { time_idx } else { kept.saturating_sub(1) };
            if batch.times.len() > kept {
                let times = batch.times.get(time_idx).ok_or_else(unknown)?;
                self.compute_windows(place, times, frame)?;
            }
            let (times, windows) = self
                .windows
                .get(place)
                .filter(|_| time_idx < batch.times.len())
                .ok_or_else(unknown)?;
            if let Some(reading) = self.scratch.read(times, column, windows, keep_stale) {
                each(column.key, reading)?;
            }
        }
        Ok(())
    }
    /// Computes the windows over `times` at a place of the list, unless they are there.
    fn compute_windows(
        &mut self,
        place: usize,
        times: &Arc<[Timestamp]>,
        frame: &Frame,
    ) -> Result<()> {
        match self.windows.get_mut(place) {
            Some((known, _)) if Arc::ptr_eq(known, times) || known == times => {}
            Some((known, windows)) => {
                *known = Arc::clone(times);
                windows.compute(times, frame);
            }
            None => {
                // The first is reserved with the other buffers.
                if place > 0 {
                    let bytes = frame.steps.count.saturating_mul(WINDOWS_STEP_BYTES);
                    self.held.grow(bytes as u64)?;
                }
                let mut windows = Windows::default();
                windows.compute(times, frame);
                self.windows.push((Arc::clone(times), windows));
            }
        }
        Ok(())
    }
}
