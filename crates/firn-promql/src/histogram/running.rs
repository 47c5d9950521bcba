//! Sums of histograms with different layouts.
//!
//! The result has the coarser of both resolutions, the wider of both zero buckets, and the custom
//! bounds that both have. One implementation serves plain numbers and numbers with compensated
//! rounding errors.

use std::sync::Arc;

use firn_model::{Histogram, HistogramBucket, ResetHint};

use super::buckets::{coarser_index, exponential_bounds};
use crate::functions::kahan::Sum;

/// The number type of a histogram: doubles, or doubles with compensation.
pub(crate) trait Amount: Copy {
    fn of(value: f64) -> Self;
    fn add(&mut self, other: Self);
    fn scale(&mut self, factor: f64);
    fn divide(&mut self, divisor: f64);
    fn value(self) -> f64;
}

impl Amount for f64 {
    fn of(value: f64) -> f64 {
        value
    }

    fn add(&mut self, other: f64) {
        *self += other;
    }

    fn scale(&mut self, factor: f64) {
        *self *= factor;
    }

    fn divide(&mut self, divisor: f64) {
        *self /= divisor;
    }

    fn value(self) -> f64 {
        self
    }
}

impl Amount for Sum {
    fn of(value: f64) -> Sum {
        Sum { sum: value, rest: 0.0 }
    }

    fn add(&mut self, other: Sum) {
        Sum::add(self, other.sum);
        self.rest += other.rest;
    }

    fn scale(&mut self, factor: f64) {
        self.sum *= factor;
        self.rest *= factor;
    }

    fn divide(&mut self, divisor: f64) {
        self.sum /= divisor;
        self.rest /= divisor;
    }

    fn value(self) -> f64 {
        Sum::value(self)
    }
}

/// Exponential and custom buckets cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Incompatible;

/// The conflicts of an addition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MergeConflicts {
    /// One side has a counter reset, the other has none.
    pub(crate) resets_conflict: bool,
    /// The custom bounds differed.
    pub(crate) bounds_differed: bool,
}

/// Buckets by index, rising.
type Buckets<A> = Vec<(i32, A)>;

/// A histogram under computation.
#[derive(Clone, Debug)]
pub(crate) struct RunningHistogram<A> {
    schema: i32,
    pub(crate) reset_hint: ResetHint,
    zero_threshold: f64,
    custom_bounds: Arc<[f64]>,
    pub(crate) count: A,
    sum: A,
    zero_count: A,
    positive: Buckets<A>,
    negative: Buckets<A>,
}

impl<A: Amount> RunningHistogram<A> {
    pub(crate) fn new(histogram: &Histogram) -> RunningHistogram<A> {
        let buckets = |buckets: &[HistogramBucket]| {
            buckets.iter().map(|bucket| (bucket.index, A::of(bucket.count))).collect()
        };
        RunningHistogram {
            schema: histogram.schema,
            reset_hint: histogram.reset_hint,
            zero_threshold: histogram.zero_threshold,
            custom_bounds: Arc::clone(&histogram.custom_bounds),
            count: A::of(histogram.count),
            sum: A::of(histogram.sum),
            zero_count: A::of(histogram.zero_count),
            positive: buckets(&histogram.positive),
            negative: buckets(&histogram.negative),
        }
    }

    /// The histogram, without empty buckets.
    pub(crate) fn finish(self) -> Histogram {
        let buckets = |buckets: Buckets<A>| {
            let all =
                buckets.into_iter().map(|(index, a)| HistogramBucket { index, count: a.value() });
            all.filter(|bucket| bucket.count != 0.0).collect()
        };
        Histogram {
            schema: self.schema,
            reset_hint: self.reset_hint,
            count: self.count.value(),
            sum: self.sum.value(),
            zero_count: self.zero_count.value(),
            zero_threshold: self.zero_threshold,
            positive: buckets(self.positive),
            negative: buckets(self.negative),
            custom_bounds: self.custom_bounds,
        }
    }

    /// Adds `other`.
    pub(crate) fn add(&mut self, other: &Histogram) -> Result<MergeConflicts, Incompatible> {
        self.merge(RunningHistogram::new(other))
    }

    /// Subtracts `other`. The caller decides whether the result is a gauge.
    pub(crate) fn subtract(&mut self, other: &Histogram) -> Result<MergeConflicts, Incompatible> {
        let mut other = RunningHistogram::new(other);
        other.scale_counts(-1.0);
        self.merge(other)
    }

    /// Multiplies every count; a negative factor makes the result a gauge.
    pub(crate) fn scale(&mut self, factor: f64) {
        self.scale_counts(factor);
        if factor < 0.0 {
            self.reset_hint = ResetHint::Gauge;
        }
    }

    fn scale_counts(&mut self, factor: f64) {
        self.amounts().for_each(|amount| amount.scale(factor));
    }

    /// Divides every count; division by zero removes the buckets.
    pub(crate) fn divide(&mut self, divisor: f64) {
        self.divide_counts(divisor);
        if divisor == 0.0 {
            self.positive.clear();
            self.negative.clear();
        } else if divisor < 0.0 {
            self.reset_hint = ResetHint::Gauge;
        }
    }

    fn divide_counts(&mut self, divisor: f64) {
        self.amounts().for_each(|amount| amount.divide(divisor));
    }

    fn amounts(&mut self) -> impl Iterator<Item = &mut A> {
        let buckets = self.positive.iter_mut().chain(&mut self.negative);
        let single = [&mut self.count, &mut self.sum, &mut self.zero_count];
        single.into_iter().chain(buckets.map(|bucket| &mut bucket.1))
    }

    fn has_overflow(&mut self) -> bool {
        self.amounts().any(|amount| amount.value().is_infinite())
    }

    pub(crate) fn has_custom_bounds(&self) -> bool {
        self.schema == Histogram::CUSTOM_SCHEMA
    }

    pub(crate) fn merge(
        &mut self,
        mut other: RunningHistogram<A>,
    ) -> Result<MergeConflicts, Incompatible> {
        if self.has_custom_bounds() != other.has_custom_bounds() {
            return Err(Incompatible);
        }
        let (hint, resets_conflict) = merged_hint(self.reset_hint, other.reset_hint);
        self.reset_hint = hint;
        let bounds_differed = self.align(&mut other);
        self.count.add(other.count);
        self.sum.add(other.sum);
        self.zero_count.add(other.zero_count);
        self.positive = merged(std::mem::take(&mut self.positive), other.positive);
        self.negative = merged(std::mem::take(&mut self.negative), other.negative);
        Ok(MergeConflicts { resets_conflict, bounds_differed })
    }

    /// Converts both to the same layout. Returns whether custom bounds differed.
    pub(crate) fn align(&mut self, other: &mut RunningHistogram<A>) -> bool {
        if self.has_custom_bounds() {
            if same_bounds(&self.custom_bounds, &other.custom_bounds) {
                return false;
            }
            let both = common_bounds(&self.custom_bounds, &other.custom_bounds);
            self.rebound(&both);
            other.rebound(&both);
            return true;
        }
        // Widening one may absorb a populated bucket and make it wider than the other. Each
        // iteration absorbs at least one bucket; NaN thresholds never agree and are left unchanged.
        while self.zero_threshold < other.zero_threshold
            || other.zero_threshold < self.zero_threshold
        {
            let wider = self.zero_threshold.max(other.zero_threshold);
            self.widen_zero(wider);
            other.widen_zero(wider);
        }
        let schema = self.schema.min(other.schema);
        self.coarsen(schema);
        other.coarsen(schema);
        false
    }

    /// Lowers the resolution to `schema` if it is higher.
    pub(crate) fn coarsen(&mut self, schema: i32) {
        let levels = self.schema.saturating_sub(schema);
        if levels <= 0 {
            return;
        }
        for buckets in [&mut self.positive, &mut self.negative] {
            remap(buckets, |index| coarser_index(index, levels));
        }
        self.schema = schema;
    }

    /// Moves everything below `threshold` into the zero bucket. A populated bucket that contains
    /// the threshold moves as a whole, so the threshold may end up higher.
    pub(crate) fn widen_zero(&mut self, threshold: f64) {
        if threshold <= self.zero_threshold {
            return;
        }
        self.zero_threshold = threshold;
        loop {
            let before = self.zero_threshold;
            for buckets in [&mut self.positive, &mut self.negative] {
                let inside = buckets
                    .iter()
                    .take_while(|(index, _)| {
                        exponential_bounds(self.schema, *index).0 < self.zero_threshold
                    })
                    .count();
                for (index, amount) in buckets.drain(..inside) {
                    let upper = exponential_bounds(self.schema, index).1;
                    if amount.value() != 0.0 && upper > self.zero_threshold {
                        self.zero_threshold = upper;
                    }
                    self.zero_count.add(amount);
                }
            }
            if self.zero_threshold == before {
                return;
            }
        }
    }

    pub(crate) fn zero(&self) -> (f64, f64) {
        (self.zero_threshold, self.zero_count.value())
    }

    pub(crate) fn bucket_lists(&self) -> [&Buckets<A>; 2] {
        [&self.positive, &self.negative]
    }

    /// Replaces custom bounds by a subset of them.
    pub(crate) fn rebound(&mut self, bounds: &Arc<[f64]>) {
        let old = std::mem::replace(&mut self.custom_bounds, Arc::clone(bounds));
        remap(&mut self.positive, |index| {
            let upper = usize::try_from(index).ok().and_then(|idx| old.get(idx));
            let target = upper.map_or(bounds.len(), |upper| bounds.partition_point(|b| b < upper));
            i32::try_from(target).unwrap_or(i32::MAX)
        });
    }
}

/// The hint of a sum, and whether the two hints contradict each other.
fn merged_hint(a: ResetHint, b: ResetHint) -> (ResetHint, bool) {
    match (a, b) {
        _ if a == b => (a, false),
        (ResetHint::Gauge, _) | (_, ResetHint::Gauge) => (ResetHint::Gauge, false),
        (ResetHint::Unknown, _) | (_, ResetHint::Unknown) => (ResetHint::Unknown, false),
        _ => (ResetHint::Unknown, true),
    }
}

pub(crate) fn same_bounds(a: &[f64], b: &[f64]) -> bool {
    a.iter().map(|bound| bound.to_bits()).eq(b.iter().map(|bound| bound.to_bits()))
}

/// The bounds that are in both lists.
pub(crate) fn common_bounds(a: &[f64], b: &[f64]) -> Arc<[f64]> {
    a.iter().copied().filter(|bound| b.contains(bound)).collect()
}

/// Assigns new indexes to buckets, in the same order, and merges those with one index.
fn remap<A: Amount>(buckets: &mut Buckets<A>, index: impl Fn(i32) -> i32) {
    let mut united: Buckets<A> = Vec::with_capacity(buckets.len());
    for &(old, amount) in buckets.iter() {
        let new = index(old);
        match united.last_mut() {
            Some((last, total)) if *last == new => total.add(amount),
            _ => united.push((new, amount)),
        }
    }
    *buckets = united;
}

/// The buckets of both, merged by index.
fn merged<A: Amount>(a: Buckets<A>, b: Buckets<A>) -> Buckets<A> {
    let mut all = Vec::with_capacity(a.len().max(b.len()));
    let mut others = b.into_iter().peekable();
    for (index, mut amount) in a {
        while let Some(other) = others.next_if(|other| other.0 < index) {
            all.push(other);
        }
        if let Some((_, other)) = others.next_if(|other| other.0 == index) {
            amount.add(other);
        }
        all.push((index, amount));
    }
    all.extend(others);
    all
}

/// A copy of `histogram` with all counts multiplied.
pub(crate) fn scaled(histogram: &Histogram, factor: f64) -> Histogram {
    let mut running: RunningHistogram<f64> = RunningHistogram::new(histogram);
    running.scale(factor);
    running.finish()
}

/// A sum of any number of histograms, with their hints.
#[derive(Clone, Debug)]
pub(crate) struct SumHistogram {
    total: RunningHistogram<Sum>,
    summary: MergeSummary,
}

/// The mean of any number of histograms: the sum divided by their number unless the sum overflows,
/// incremental from then on.
#[derive(Clone, Debug)]
pub(crate) struct MeanHistogram {
    total: RunningHistogram<Sum>,
    summary: MergeSummary,
    count: f64,
    incremental: bool,
}

/// The hints and layout differences of the histograms of an aggregation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MergeSummary {
    reset: bool,
    no_reset: bool,
    pub(crate) bounds_differed: bool,
}

impl MergeSummary {
    fn observe(&mut self, histogram: &Histogram) {
        self.reset |= histogram.reset_hint == ResetHint::Reset;
        self.no_reset |= histogram.reset_hint == ResetHint::NoReset;
    }

    /// Whether some follow a counter reset and some do not.
    pub(crate) fn resets_conflict(self) -> bool {
        self.reset && self.no_reset
    }
}

impl SumHistogram {
    pub(crate) fn of(first: &Histogram) -> SumHistogram {
        let mut summary = MergeSummary::default();
        summary.observe(first);
        SumHistogram { total: RunningHistogram::new(first), summary }
    }

    pub(crate) fn add(&mut self, histogram: &Histogram) -> Result<(), Incompatible> {
        self.summary.observe(histogram);
        self.summary.bounds_differed |= self.total.add(histogram)?.bounds_differed;
        Ok(())
    }

    pub(crate) fn finish(self) -> (Histogram, MergeSummary) {
        (self.total.finish(), self.summary)
    }
}

impl MeanHistogram {
    pub(crate) fn of(first: &Histogram) -> MeanHistogram {
        let SumHistogram { total, summary } = SumHistogram::of(first);
        MeanHistogram { total, summary, count: 1.0, incremental: false }
    }

    pub(crate) fn add(&mut self, histogram: &Histogram) -> Result<(), Incompatible> {
        self.summary.observe(histogram);
        self.count += 1.0;
        if !self.incremental {
            let mut next = self.total.clone();
            let merged = next.add(histogram)?;
            if !next.has_overflow() {
                self.summary.bounds_differed |= merged.bounds_differed;
                self.total = next;
                return Ok(());
            }
            self.incremental = true;
            self.total.divide_counts(self.count - 1.0);
        }
        self.total.scale_counts((self.count - 1.0) / self.count);
        let mut share = RunningHistogram::new(histogram);
        share.divide_counts(self.count);
        self.summary.bounds_differed |= self.total.merge(share)?.bounds_differed;
        Ok(())
    }

    pub(crate) fn finish(mut self) -> (Histogram, MergeSummary) {
        if !self.incremental {
            self.total.divide(self.count);
        }
        (self.total.finish(), self.summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(schema: i32, zero: (f64, f64), buckets: &[(i32, f64)]) -> Histogram {
        let positive = buckets.iter().map(|&(index, count)| HistogramBucket { index, count });
        Histogram {
            schema,
            zero_threshold: zero.0,
            zero_count: zero.1,
            positive: positive.collect(),
            ..Histogram::empty()
        }
    }

    fn sum(a: &Histogram, b: &Histogram) -> Histogram {
        let mut running: RunningHistogram<f64> = RunningHistogram::new(a);
        running.add(b).unwrap();
        running.finish()
    }

    #[test]
    fn the_coarser_resolution_wins() {
        let fine = histogram(1, (0.0, 0.0), &[(1, 1.0), (2, 2.0), (3, 4.0)]);
        let coarse = histogram(0, (0.0, 0.0), &[(1, 10.0)]);
        for got in [sum(&fine, &coarse), sum(&coarse, &fine)] {
            assert_eq!(got, histogram(0, (0.0, 0.0), &[(1, 13.0), (2, 4.0)]));
        }
    }

    #[test]
    fn the_wider_zero_bucket_swallows_whole_buckets() {
        // 0.6 is inside (0.5, 1], which has observations, so the zero bucket grows to 1.
        let narrow = histogram(0, (0.1, 1.0), &[(-1, 2.0), (0, 3.0), (1, 4.0)]);
        let wide = histogram(0, (0.6, 10.0), &[(1, 1.0)]);
        for got in [sum(&narrow, &wide), sum(&wide, &narrow)] {
            assert_eq!(got, histogram(0, (1.0, 16.0), &[(1, 5.0)]));
        }
    }

    #[test]
    fn custom_bounds_meet_in_those_of_both() {
        let custom = |bounds: &[f64], counts: &[(i32, f64)]| Histogram {
            custom_bounds: bounds.into(),
            ..histogram(Histogram::CUSTOM_SCHEMA, (0.0, 0.0), counts)
        };
        let a = custom(&[1.0, 5.0, 10.0], &[(0, 1.0), (1, 2.0), (2, 4.0), (3, 8.0)]);
        let b = custom(&[5.0, 7.0], &[(0, 100.0), (2, 200.0)]);
        assert_eq!(sum(&a, &b), custom(&[5.0], &[(0, 103.0), (1, 212.0)]));
        let mut exponential: RunningHistogram<f64> = RunningHistogram::new(&Histogram::empty());
        assert_eq!(exponential.add(&a).unwrap_err(), Incompatible);
    }

    #[test]
    fn division_by_zero_leaves_no_bucket() {
        let mut running: RunningHistogram<f64> =
            RunningHistogram::new(&histogram(0, (0.1, 1.0), &[(1, 2.0)]));
        running.divide(0.0);
        let got = running.finish();
        assert!(got.positive.is_empty() && got.count.is_nan() && got.zero_count.is_infinite());
    }

    #[test]
    fn means_survive_sums_that_overflow() {
        let big = Histogram { count: f64::MAX, ..Histogram::empty() };
        let mut mean = MeanHistogram::of(&big);
        mean.add(&big).unwrap();
        mean.add(&big).unwrap();
        let (mean, _) = mean.finish();
        assert!((mean.count / f64::MAX - 1.0).abs() < 1e-12, "{mean:?}");
    }
}
