//! Native histograms: one sample that is a whole distribution.

use std::sync::Arc;

use crate::Timestamp;

/// A native histogram with counts as doubles. Plain data without checks: `count` need not be the
/// sum of the buckets. The language room computes with histograms.
///
/// With schema `s` from -4 to 8, bucket `i` covers `(base^(i-1), base^i]` where `base = 2^(2^-s)`;
/// negative buckets mirror that around zero. With [`Histogram::CUSTOM_SCHEMA`], bucket `i` ends at
/// `custom_bounds[i]` and the last bucket ends at `+Inf`; there are no negative buckets and no zero
/// bucket.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// The resolution, or [`Histogram::CUSTOM_SCHEMA`].
    pub schema: i32,
    /// Whether a counter was reset between the previous sample and this one.
    pub reset_hint: ResetHint,
    /// Number of observations.
    pub count: f64,
    /// Sum of observations.
    pub sum: f64,
    /// Number of observations at a distance of at most `zero_threshold` from 0.
    pub zero_count: f64,
    /// Half the width of the zero bucket.
    pub zero_threshold: f64,
    /// Buckets of positive observations, indexes strictly ascending.
    pub positive: Vec<HistogramBucket>,
    /// Buckets of negative observations, indexes strictly ascending away from zero.
    pub negative: Vec<HistogramBucket>,
    /// Finite upper bounds, strictly ascending; empty except with [`Histogram::CUSTOM_SCHEMA`].
    pub custom_bounds: Arc<[f64]>,
}

impl Histogram {
    /// The schema of histograms that list their bounds.
    pub const CUSTOM_SCHEMA: i32 = -53;

    /// A histogram of schema 0 without observations.
    pub fn empty() -> Histogram {
        Histogram {
            schema: 0,
            reset_hint: ResetHint::Unknown,
            count: 0.0,
            sum: 0.0,
            zero_count: 0.0,
            zero_threshold: 0.0,
            positive: Vec::new(),
            negative: Vec::new(),
            custom_bounds: Arc::from([]),
        }
    }

    /// Whether the histogram lists its bounds instead of computing them from the schema.
    pub fn has_custom_bounds(&self) -> bool {
        self.schema == Histogram::CUSTOM_SCHEMA
    }

    /// Whether Prometheus stores it.
    ///
    /// Source: Prometheus, `FloatHistogram.Validate`, with its texts.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn validate(&self) -> Result<(), String> {
        const NEGATIVE: &str = "histogram has a bucket whose observation count is negative";
        let check = |side: &str, buckets: &[HistogramBucket]| {
            let counts = buckets.iter().map(|bucket| bucket.count).zip(1_usize..);
            let negative = counts.into_iter().find(|(count, _)| *count < 0.0);
            negative.map_or(Ok(()), |(count, number)| {
                let place = format!("{side} side: bucket number {number}");
                Err(format!("{place} has observation count of {count}: {NEGATIVE}"))
            })
        };
        match self.has_custom_bounds() {
            true => self.validate_custom().map_err(|why| format!("custom buckets: {why}"))?,
            false => {
                check("negative", &self.negative)?;
                if !self.custom_bounds.is_empty() {
                    let why = "histogram with exponential schema must not have custom bounds";
                    return Err(why.to_owned());
                }
            }
        }
        check("positive", &self.positive)?;
        if self.zero_count < 0.0 {
            let count = self.zero_count;
            return Err(format!("zero bucket has observation count of {count}: {NEGATIVE}"));
        }
        if self.count < 0.0 {
            let why = "histogram's observation count is negative";
            return Err(format!("observation count is  {}: {why}", self.count));
        }
        Ok(())
    }

    fn validate_custom(&self) -> Result<(), String> {
        let bounds = &self.custom_bounds;
        let mut previous = f64::NEG_INFINITY;
        for &bound in bounds.iter() {
            if bound.is_nan() {
                return Err("histogram custom bounds must not be NaN".to_owned());
            }
            if bound <= previous {
                return Err(format!(
                    "previous bound is {previous:.6} and current is {bound:.6}: histogram custom \
                     bounds must be in strictly increasing order"
                ));
            }
            previous = bound;
        }
        if previous == f64::INFINITY {
            return Err("last +Inf bound must not be explicitly defined".to_owned());
        }
        if let Some(first) = self.positive.first().filter(|first| first.index < 0) {
            let why = "histogram has a span whose offset is negative";
            return Err(format!("span number 1 with offset {}: {why}", first.index));
        }
        let span_len = self.positive.last().map_or(0, |last| i64::from(last.index) + 1);
        if span_len > bounds.len() as i64 + 1 {
            return Err(format!(
                "only {} custom bounds defined which is insufficient to cover total span length of \
                 {span_len}: histogram custom bounds are too few",
                bounds.len()
            ));
        }
        for (is_broken, why) in [
            (self.zero_count != 0.0, "must have zero count of 0"),
            (self.zero_threshold != 0.0, "must have zero threshold of 0"),
            (!self.negative.is_empty(), "must not have negative spans"),
        ] {
            if is_broken {
                return Err(why.to_owned());
            }
        }
        Ok(())
    }

    /// Bytes of the struct and its heap memory, for memory accounting.
    pub fn heap_bytes(&self) -> usize {
        let buckets = self.positive.len() + self.negative.len();
        size_of::<Histogram>()
            + buckets * size_of::<HistogramBucket>()
            + self.custom_bounds.len() * 8
    }
}

/// The observations of one bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HistogramBucket {
    /// Index of the bucket; see [`Histogram`].
    pub index: i32,
    /// Number of observations in this bucket alone; not cumulative.
    pub count: f64,
}

/// A hint about a counter reset between the previous sample and this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ResetHint {
    /// Unknown; compare the samples.
    #[default]
    Unknown,
    /// There was a reset.
    Reset,
    /// There was no reset.
    NoReset,
    /// The series is not a counter.
    Gauge,
}

/// The value of one point.
#[derive(Clone, Debug, PartialEq)]
pub enum PointValue {
    /// A double.
    Float(f64),
    /// A native histogram. Two are equal if they are the same object or equal bit for bit.
    Histogram(Arc<Histogram>),
}

/// One entry of a column that doubles cannot hold.
#[derive(Clone, Debug, PartialEq)]
pub struct MixedEntry {
    /// Start time of the counter in milliseconds; 0 if unknown.
    pub start: Timestamp,
    /// The value.
    pub value: PointValue,
}

/// Compares bits, so NaN equals itself and `-0.0` differs from `0.0`.
impl PartialEq for Histogram {
    fn eq(&self, other: &Histogram) -> bool {
        fn numbers(h: &Histogram) -> [u64; 4] {
            [h.count, h.sum, h.zero_count, h.zero_threshold].map(f64::to_bits)
        }
        fn same_buckets(a: &[HistogramBucket], b: &[HistogramBucket]) -> bool {
            let bits = |bucket: &HistogramBucket| (bucket.index, bucket.count.to_bits());
            a.iter().map(bits).eq(b.iter().map(bits))
        }
        let bounds =
            |h: &Histogram| h.custom_bounds.iter().map(|b| b.to_bits()).collect::<Vec<_>>();
        self.schema == other.schema
            && self.reset_hint == other.reset_hint
            && numbers(self) == numbers(other)
            && same_buckets(&self.positive, &other.positive)
            && same_buckets(&self.negative, &other.negative)
            && bounds(self) == bounds(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equality_is_by_bits() {
        let nan = Histogram { sum: f64::NAN, ..Histogram::empty() };
        assert_eq!(nan, nan.clone());
        let bucket = |count| vec![HistogramBucket { index: -3, count }];
        let one = Histogram { positive: bucket(0.0), ..Histogram::empty() };
        assert_ne!(one, Histogram { positive: bucket(-0.0), ..Histogram::empty() });
        assert_ne!(one, Histogram { negative: bucket(0.0), ..Histogram::empty() });
    }
}
