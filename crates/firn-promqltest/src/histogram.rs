//! Comparison of native histograms, and conversion of classic histograms to native ones.

use std::collections::BTreeMap;

use firn_model::{Histogram, HistogramBucket, Labels, METRIC_NAME, Timestamp, is_stale_nan};
use firn_promql::notation::{ScriptHistogram, SeriesItem, SeriesLine};

use super::compare::almost_equal;

/// Whether a result equals the expected histogram; empty buckets are ignored.
pub(super) fn same(wanted: &ScriptHistogram, got: &Histogram) -> bool {
    let populated = |buckets: &[HistogramBucket]| {
        buckets.iter().copied().filter(|bucket| bucket.count != 0.0).collect::<Vec<_>>()
    };
    let same_buckets = |a: &[HistogramBucket], b: &[HistogramBucket]| {
        let (a, b) = (populated(a), populated(b));
        let same = |(a, b): (&HistogramBucket, &HistogramBucket)| {
            a.index == b.index && almost_equal(a.count, b.count)
        };
        a.len() == b.len() && a.iter().zip(&b).all(same)
    };
    let hint = wanted.has_hint.then_some(wanted.histogram.reset_hint);
    let wanted = &wanted.histogram;
    wanted.schema == got.schema
        && wanted.zero_threshold == got.zero_threshold
        && wanted.custom_bounds == got.custom_bounds
        && almost_equal(wanted.count, got.count)
        && almost_equal(wanted.sum, got.sum)
        && almost_equal(wanted.zero_count, got.zero_count)
        && same_buckets(&wanted.positive, &got.positive)
        && same_buckets(&wanted.negative, &got.negative)
        && hint.is_none_or(|hint| hint == got.reset_hint)
}

/// A classic histogram at one time.
#[derive(Default)]
struct ClassicHistogram {
    /// Upper bounds with cumulative counts.
    buckets: Vec<(f64, f64)>,
    count: Option<f64>,
    sum: Option<f64>,
}

/// The classic histograms of a load block as native ones with custom bounds.
///
/// # Errors
/// Counts that fall towards higher bounds.
pub(super) fn fold(
    lines: &[SeriesLine],
    step_ms: i64,
) -> Result<Vec<(Labels, Timestamp, Histogram)>, String> {
    let mut all: BTreeMap<(Labels, Timestamp), ClassicHistogram> = BTreeMap::new();
    for line in lines {
        let name = line.labels.metric_name();
        let found = ["_bucket", "_count", "_sum"]
            .into_iter()
            .find_map(|suffix| Some((suffix, name.strip_suffix(suffix)?)));
        let Some((suffix, base)) = found else { continue };
        let bound = line.labels.get("le").and_then(|bound| bound.parse::<f64>().ok());
        if suffix == "_bucket" && bound.is_none() {
            continue;
        }
        let labels = line.labels.filter(|name| name != "le").with(METRIC_NAME, base);
        for (idx, item) in line.items.iter().enumerate() {
            let SeriesItem::Float(value) = *item else { continue };
            if is_stale_nan(value) {
                continue;
            }
            let ts = idx as i64 * step_ms;
            let classic = all.entry((labels.clone(), ts)).or_default();
            match (suffix, bound) {
                ("_bucket", Some(bound)) => classic.buckets.push((bound, value)),
                ("_count", _) => classic.count = Some(value),
                _ => classic.sum = Some(value),
            }
        }
    }
    let native = |((labels, ts), classic): ((Labels, Timestamp), ClassicHistogram)| {
        let histogram = classic.into_native().map_err(|error| format!("{labels}: {error}"))?;
        Ok((labels, ts, histogram))
    };
    all.into_iter().map(native).collect()
}

impl ClassicHistogram {
    fn into_native(mut self) -> Result<Histogram, String> {
        self.buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let highest = self.buckets.last().map_or(0.0, |bucket| bucket.1);
        let count = self.count.unwrap_or(highest);
        if self.buckets.last().is_none_or(|bucket| bucket.0 != f64::INFINITY) {
            self.buckets.push((f64::INFINITY, count));
        }
        let mut positive = Vec::new();
        let mut before = 0.0;
        for (index, (_, cumulative)) in (0..).zip(&self.buckets) {
            let count = cumulative - before;
            if count < 0.0 {
                return Err("the counts of a classic histogram fall".to_owned());
            }
            if count != 0.0 {
                positive.push(HistogramBucket { index, count });
            }
            before = *cumulative;
        }
        let bounds = self.buckets.iter().map(|bucket| bucket.0).filter(|bound| bound.is_finite());
        Ok(Histogram {
            schema: Histogram::CUSTOM_SCHEMA,
            count,
            sum: self.sum.unwrap_or(0.0),
            custom_bounds: bounds.collect(),
            positive,
            ..Histogram::empty()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classic_buckets_fold_into_differences() {
        let line = |text| SeriesLine::parse(text).unwrap();
        let lines = [
            line(r#"h_bucket{le="1"} 2"#),
            line(r#"h_bucket{le="5"} 2"#),
            line(r#"h_bucket{le="no"} 7"#),
            line("h_count 5"),
            line("h_sum 9"),
        ];
        let folded = fold(&lines, 1_000).unwrap();
        let text = "h {{schema:-53 sum:9 count:5 custom_values:[1 5] buckets:[2 0 3]}}";
        let SeriesItem::Histogram(wanted) = &line(text).items[0] else { panic!("{text}") };
        assert!(same(wanted, &folded[0].2), "{:?}", folded[0].2);
        assert_eq!(folded[0].0.to_string(), "h");
        assert!(fold(&[line(r#"h_bucket{le="1"} 2"#), line(r#"h_bucket{le="2"} 1"#)], 1).is_err());
    }
}
