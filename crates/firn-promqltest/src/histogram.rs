//! Native histograms in scripts: `{{schema:0 sum:5 count:4 buckets:[1 2 1]}}`, and conversion of
//! classic histograms to native ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_model::{
    Histogram, HistogramBucket, Labels, METRIC_NAME, ResetHint, Timestamp, is_stale_nan,
};

use super::compare::almost_equal;
use super::line::{ScriptHistogram, SeriesItem, SeriesLine};

/// The maximum number of buckets in a list.
const BUCKETS_MAX: usize = 10_000;

/// Parses the text between `{{` and `}}`.
pub(super) fn parse(text: &str) -> Result<ScriptHistogram, String> {
    let mut histogram = Histogram::empty();
    let mut has_hint = false;
    let (mut offset, mut n_offset) = (0, 0);
    let (mut buckets, mut n_buckets): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (key, after) =
            rest.split_once(':').ok_or_else(|| format!("no key in histogram {rest:?}"))?;
        let (value, after) = match after.strip_prefix('[') {
            Some(list) => list.split_once(']').ok_or("a list without ]")?,
            None => after.split_once(char::is_whitespace).unwrap_or((after, "")),
        };
        match key.to_ascii_lowercase().as_str() {
            "schema" => histogram.schema = whole(value)?,
            "sum" => histogram.sum = number(value)?,
            "count" => histogram.count = number(value)?,
            "z_bucket" => histogram.zero_count = number(value)?,
            "z_bucket_w" => histogram.zero_threshold = number(value)?,
            "offset" => offset = whole(value)?,
            "n_offset" => n_offset = whole(value)?,
            "buckets" => buckets = numbers(value)?,
            "n_buckets" => n_buckets = numbers(value)?,
            "custom_values" => histogram.custom_bounds = numbers(value)?.into(),
            "counter_reset_hint" => {
                has_hint = true;
                histogram.reset_hint = match value {
                    "unknown" => ResetHint::Unknown,
                    "reset" => ResetHint::Reset,
                    "not_reset" => ResetHint::NoReset,
                    "gauge" => ResetHint::Gauge,
                    other => return Err(format!("unknown counter reset hint {other:?}")),
                };
            }
            other => return Err(format!("unknown histogram key {other:?}")),
        }
        rest = after.trim_start();
    }
    if !matches!(histogram.schema, -4..=8 | Histogram::CUSTOM_SCHEMA) {
        return Err(format!("unknown histogram schema {}", histogram.schema));
    }
    let placed = |offset: i32, counts: Vec<f64>| {
        let indexes = offset..;
        indexes.zip(counts).map(|(index, count)| HistogramBucket { index, count }).collect()
    };
    histogram.positive = placed(offset, buckets);
    histogram.negative = placed(n_offset, n_buckets);
    Ok(ScriptHistogram { histogram: Arc::new(histogram), has_hint })
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("no number: {text:?}"))
}

fn whole(text: &str) -> Result<i32, String> {
    let bound = 1 << 20;
    let value: i32 = text.parse().map_err(|_| format!("no whole number: {text:?}"))?;
    if (-bound..=bound).contains(&value) { Ok(value) } else { Err(format!("{text} is too far")) }
}

fn numbers(text: &str) -> Result<Vec<f64>, String> {
    let all: Vec<f64> = text.split_whitespace().map(number).collect::<Result<_, _>>()?;
    if all.len() > BUCKETS_MAX { Err("too many buckets".to_owned()) } else { Ok(all) }
}

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
    fn histograms_are_read_with_all_their_parts() {
        let written = parse(
            "SCHEMA:1 sum:-Inf count:3 z_bucket:1 z_bucket_w:0.5 buckets:[1 2] offset:-2 \
             n_buckets:[4]",
        );
        let histogram = written.unwrap().histogram;
        assert_eq!(histogram.positive[1], HistogramBucket { index: -1, count: 2.0 });
        assert_eq!(histogram.negative[0], HistogramBucket { index: 0, count: 4.0 });
        assert_eq!((histogram.schema, histogram.sum), (1, f64::NEG_INFINITY));
        assert!(
            parse("schema:9").is_err() && parse("bucket:[1]").is_err() && parse("sum").is_err()
        );
        assert!(parse("counter_reset_hint:gauge").unwrap().has_hint);
    }

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
        let wanted = parse("schema:-53 sum:9 count:5 custom_values:[1 5] buckets:[2 0 3]").unwrap();
        assert!(same(&wanted, &folded[0].2), "{:?}", folded[0].2);
        assert_eq!(folded[0].0.to_string(), "h");
        assert!(fold(&[line(r#"h_bucket{le="1"} 2"#), line(r#"h_bucket{le="2"} 1"#)], 1).is_err());
    }
}
