//! The annotations of an evaluation.

use std::collections::{BTreeMap, BTreeSet};

use firn_model::excerpt;

use crate::functions::calendar::rfc3339;
use crate::histogram::{NanEffect, Remark};
use crate::syntax::{Expr, Span, format_g, go_quote};
use crate::value::{Annotation, AnnotationKind, Annotations};

/// The memory of all annotations. A response contains ten of each kind; the others are counted.
const TEXT_BYTES_MAX: usize = 256 << 10;
/// The memory of an annotation beside its text.
const NOTE_BYTES: usize = 64;

/// The annotations so far; duplicates at one position count once.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    list: BTreeSet<(AnnotationKind, String, Span)>,
    forced: BTreeMap<(String, Span), MonotonicityFix>,
    /// The memory of both.
    bytes: usize,
}

/// A correction of a classic histogram with falling counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MonotonicityFix {
    pub(crate) ts_min: i64,
    pub(crate) ts_max: i64,
    pub(crate) bucket_min: f64,
    pub(crate) bucket_max: f64,
    pub(crate) diff_max: f64,
    pub(crate) count: u64,
}

impl Notes {
    pub(crate) fn warn(&mut self, span: Span, text: impl Into<String>) {
        self.insert(AnnotationKind::Warning, span, text.into());
    }

    pub(crate) fn info(&mut self, span: Span, text: impl Into<String>) {
        self.insert(AnnotationKind::Info, span, text.into());
    }

    /// Adds an annotation. One per series is possible, so those beyond a limit are dropped.
    fn insert(&mut self, kind: AnnotationKind, span: Span, text: String) {
        let bytes = text.len() + NOTE_BYTES;
        if self.bytes + bytes <= TEXT_BYTES_MAX && self.list.insert((kind, text, span)) {
            self.bytes += bytes;
        }
    }

    pub(crate) fn invalid_quantile(&mut self, span: Span, got: f64) {
        let got = format_g(got);
        self.warn(span, format!("quantile value should be between 0 and 1, got {got}"));
    }

    pub(crate) fn invalid_ratio(&mut self, span: Span, got: f64, capped: f64) {
        let (got, capped) = (format_g(got), format_g(capped));
        let text =
            format!("ratio value should be between -1 and 1, got {got}, capping to {capped}");
        self.warn(span, text);
    }

    pub(crate) fn no_counter(&mut self, span: Span, name: &str) {
        let name = go_quote(name.as_bytes());
        let text = format!(
            "metric might not be a counter, name does not end in _total/_sum/_count/_bucket: {name}"
        );
        self.info(span, text);
    }

    /// Adds a remark on the samples of `name`.
    pub(crate) fn remark(&mut self, span: Span, name: &str, remark: Remark) {
        let metric = go_quote(name.as_bytes());
        let warning = match remark {
            Remark::MixedKinds => {
                format!("encountered a mix of histograms and floats for metric name {metric}")
            }
            Remark::MixedSchemas => format!(
                "vector contains a mix of histograms with exponential and custom buckets schemas \
                 for metric name {metric}"
            ),
            Remark::NotCounter => {
                format!("this native histogram metric is not a counter: {metric}")
            }
            Remark::NotGauge => format!("this native histogram metric is not a gauge: {metric}"),
            Remark::ResetsConflict(operation) => {
                format!("conflicting counter resets during histogram {}", operation.name())
            }
            Remark::StartOverlaps => format!(
                "sample has start time that overlaps with previous sample timestamp for metric \
                 {metric}"
            ),
            Remark::IgnoredInRange => {
                let text = "ignored histograms in a range containing both floats and histograms";
                return self.info(span, format!("{text} for metric name {metric}"));
            }
            Remark::BoundsDiffered(operation) => {
                let text = "mismatched custom buckets were reconciled during";
                return self.info(span, format!("{text} {}", operation.name()));
            }
        };
        self.warn(span, warning);
    }

    /// An aggregation of floats skipped histograms.
    pub(crate) fn ignored_histogram(&mut self, span: Span, aggregation: &str) {
        self.info(span, format!("ignored histogram in {aggregation} aggregation"));
    }

    /// The effect of NaN observations on a result.
    pub(crate) fn nan_observations(&mut self, span: Span, name: &str, effect: NanEffect) {
        let text = match effect {
            NanEffect::Result => "input to histogram_quantile has NaN observations, result is NaN",
            NanEffect::Skew => {
                "input to histogram_quantile has NaN observations, result is skewed higher"
            }
            NanEffect::Excluded => {
                "input to histogram_fraction has NaN observations, which are excluded from all \
                 fractions"
            }
        };
        self.info(span, with_name(text.to_owned(), name));
    }

    pub(crate) fn bad_bucket(&mut self, span: Span, name: &str, label: &str) {
        let label = go_quote(excerpt(label).as_bytes());
        let text = format!("bucket label \"le\" is missing or has a malformed value of {label}");
        self.warn(span, with_name(text, name));
    }

    pub(crate) fn mixed_histograms(&mut self, span: Span, name: &str) {
        let text = "vector contains a mix of classic and native histograms".to_owned();
        self.warn(span, with_name(text, name));
    }

    pub(crate) fn forced_monotonic(&mut self, span: Span, name: &str, forced: MonotonicityFix) {
        let key = (name.to_owned(), span);
        if !self.forced.contains_key(&key) {
            // Its text has some 300 bytes.
            let bytes = 2 * name.len() + 5 * NOTE_BYTES;
            if self.bytes + bytes > TEXT_BYTES_MAX {
                return;
            }
            self.bytes += bytes;
        }
        let kept = self.forced.entry(key).or_insert(MonotonicityFix { count: 0, ..forced });
        kept.ts_min = kept.ts_min.min(forced.ts_min);
        kept.ts_max = kept.ts_max.max(forced.ts_max);
        kept.bucket_min = kept.bucket_min.min(forced.bucket_min);
        kept.bucket_max = kept.bucket_max.max(forced.bucket_max);
        kept.diff_max = kept.diff_max.max(forced.diff_max);
        kept.count += forced.count;
    }

    /// All annotations with their positions in `expr`'s text.
    pub(crate) fn finish(mut self, expr: &Expr) -> Annotations {
        // The texts of `forced` are within the limit.
        self.bytes = 0;
        for ((name, span), forced) in std::mem::take(&mut self.forced) {
            let text = "input to histogram_quantile needed to be fixed for monotonicity (see \
                        https://prometheus.io/docs/prometheus/latest/querying/functions/\
                        #histogram_quantile)";
            let text = format!(
                "{}, from buckets {} to {}, with a max diff of {}, over {} samples from {} to {}",
                with_name(text.to_owned(), &name),
                format_g(forced.bucket_min),
                format_g(forced.bucket_max),
                two_digits(forced.diff_max),
                forced.count,
                rfc3339(forced.ts_min / 1000),
                rfc3339(forced.ts_max / 1000),
            );
            self.info(span, text);
        }
        let list = self
            .list
            .into_iter()
            .map(|(kind, text, span)| {
                let (line, column) = expr.position(span);
                Annotation { kind, text, span, line, column }
            })
            .collect();
        Annotations { list }
    }
}

fn with_name(text: String, name: &str) -> String {
    if name.is_empty() {
        return text;
    }
    format!("{text} for metric name {}", go_quote(name.as_bytes()))
}

/// Like Go's `%.2g`.
fn two_digits(value: f64) -> String {
    let rounded: f64 = format!("{value:.1e}").parse().unwrap_or(value);
    if rounded.abs() >= 100.0 && rounded.is_finite() {
        let scientific = format!("{rounded:e}");
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        return format!("{digits}e+{exponent:02}");
    }
    format_g(rounded)
}
