//! `firn query analyze`: statistics of the buckets of histograms over a time.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};

use clap::Args;
use firn_promql::go_quote;
use firn_server::one_line;

use super::result::{Bucket, Histogram, LabelMap, QueryResult, Series, metric_text};
use super::{api, now_ms, seconds, time_or};
use crate::client::{ClientFile, ServerAddress, ServerClient};
use crate::go_text::GoDuration;

#[derive(Debug, Args)]
pub(super) struct Analyze {
    /// The address of the server, such as http://localhost:9420
    #[arg(long, value_name = "URL")]
    server: ServerAddress,

    /// Kind of histograms: classichistograms or nativehistograms
    #[arg(long = "type", value_name = "TYPE")]
    kind: String,

    /// Length of the time
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    duration: GoDuration,

    /// End of the time, as RFC 3339 or in seconds since 1970; by default now
    #[arg(long, allow_negative_numbers = true)]
    time: Option<String>,

    /// Selector of series, with the suffix _sum of classic histograms; may be repeated
    #[arg(long = "match", value_name = "SELECTOR", required = true)]
    selectors: Vec<String>,
}

/// The minimum, the sum and the maximum of some numbers.
#[derive(Clone, Copy, Debug)]
struct FigureRange {
    min: i64,
    sum: i64,
    max: i64,
}

/// The buckets of one histogram, over all pairs of successive samples.
#[derive(Clone, Copy, Debug)]
struct BucketStats {
    pair_count: i64,
    changed: FigureRange,
    delta: FigureRange,
    populated: FigureRange,
    bucket_count: i64,
}

/// A distribution of one figure over all histograms.
#[derive(Clone, Copy, Debug)]
struct Distribution {
    min: i64,
    max: i64,
    count: i64,
    mean: f64,
}

/// The distributions of all figures, and how often each number of buckets changed.
#[derive(Debug)]
struct Totals {
    figures: [Distribution; 10],
    changes: BTreeMap<i64, u64>,
}

const FIGURES: [&str; 10] = [
    "minChanged",
    "avgChanged",
    "maxChanged",
    "minDelta",
    "avgDelta",
    "maxDelta",
    "minPop",
    "avgPop",
    "maxPop",
    "total",
];

/// The output.
///
/// # Errors
/// promtool's text.
pub(super) fn run(request: &Analyze, client: &ClientFile) -> Result<String, String> {
    let is_native = match request.kind.as_str() {
        "nativehistograms" => true,
        "classichistograms" => false,
        kind => {
            return Err(format!(
                "analyze type is {kind}, must be 'classichistograms' or 'nativehistograms'"
            ));
        }
    };
    let mut server = client.client(&request.server, &[])?;
    let time = time_or(request.time.as_deref(), "query", now_ms())?;
    if !is_native && let Some(wrong) = request.selectors.iter().find(|one| !has_sum(one)) {
        return Err(format!(
            "every classic histogram matcher must have a '_sum' suffix in the metric name, but \
             the matcher '{wrong}' does not"
        ));
    }
    let (mut out, mut totals) = (String::new(), Totals::new());
    let duration = request.duration;
    for selector in &request.selectors {
        if is_native {
            let all = matrix(&mut server, &format!("{selector}[{duration}]"), time)?;
            for series in &all {
                let Some(stats) = native_stats(&series.histograms, &mut totals) else { continue };
                let _ = writeln!(out, "{}={stats}", metric_text(&series.metric));
                totals.add(&stats);
            }
        } else {
            let query = format!("last_over_time({selector}[{duration}])");
            let found = match send(&mut server, query, time)? {
                QueryResult::Vector(found) => found,
                _ => return Err("query for metrics resulted in non-Vector".to_owned()),
            };
            for series in found {
                let query = bucket_selector(series.metric, duration);
                let mut buckets = matrix(&mut server, &query, time)?;
                let Some(stats) = classic_stats(&mut buckets, &mut totals)? else { continue };
                let _ = writeln!(out, "{}={stats}", one_line(&query));
                totals.add(&stats);
            }
        }
    }
    let _ = write!(out, "{totals}");
    Ok(out)
}

fn send(server: &mut ServerClient, query: String, time: i64) -> Result<QueryResult, String> {
    api::query(server, "/api/v1/query", &vec![("query", query), ("time", seconds(time))])
}

fn matrix(server: &mut ServerClient, query: &str, time: i64) -> Result<Vec<Series>, String> {
    match send(server, query.to_owned(), time)? {
        QueryResult::Matrix(found) => Ok(found),
        _ => Err("query of buckets resulted in non-Matrix".to_owned()),
    }
}

/// Whether a word of `selector` ends with `_sum`.
fn has_sum(selector: &str) -> bool {
    sum_ends(selector).next().is_some()
}

/// The places of `_sum` at the end of a word.
fn sum_ends(text: &str) -> impl Iterator<Item = usize> {
    text.match_indices("_sum").map(|(at, found)| at + found.len()).filter(|end| {
        let next = text[*end..].chars().next();
        next.is_none_or(|c| c != '_' && !c.is_ascii_alphanumeric())
    })
}

/// The selector of the buckets beside a series whose name ends with `_sum`.
fn bucket_selector(mut labels: LabelMap, duration: GoDuration) -> String {
    let name = labels.remove("__name__").unwrap_or_default();
    let mut buckets = String::new();
    let mut copied = 0;
    for end in sum_ends(&name) {
        buckets.push_str(&name[copied..end - "_sum".len()]);
        buckets.push_str("_bucket");
        copied = end;
    }
    buckets.push_str(&name[copied..]);
    let pair = |(name, value): (&String, &String)| {
        let is_plain = |c: char| c == '_' || c.is_ascii_alphanumeric();
        let name =
            if name.chars().all(is_plain) { name.clone() } else { go_quote(name.as_bytes()) };
        format!("{name}={}", go_quote(value.as_bytes()))
    };
    let pairs: Vec<String> = labels.iter().map(pair).collect();
    format!("{buckets}{{{}}}[{duration}]", pairs.join(","))
}

/// `None` for fewer than two samples. The samples of all buckets must have the same times.
fn classic_stats(
    buckets: &mut [Series],
    totals: &mut Totals,
) -> Result<Option<BucketStats>, String> {
    let sample_count = buckets.first().map_or(0, |bucket| bucket.samples.len());
    if sample_count < 2 {
        return Ok(None);
    }
    let bound = |series: &Series| -> f64 {
        series.metric.get("le").and_then(|le| parsed_bound(le)).unwrap_or(0.0)
    };
    buckets.sort_by(|a, b| bound(a).total_cmp(&bound(b)));
    let mut stats = BucketStats::new(buckets.len());
    let mut previous = counts_at(buckets, 0)?;
    for idx in 1..sample_count {
        let current = counts_at(buckets, idx)?;
        let deltas = current.iter().zip(&previous).map(|(a, b)| a.saturating_sub(*b));
        let deltas: Vec<i64> = deltas.filter(|delta| *delta != 0).collect();
        let populated = current.iter().filter(|count| **count != 0).count();
        stats.add(&deltas, populated, totals);
        previous = current;
    }
    Ok(Some(stats))
}

fn parsed_bound(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        text => text.parse().ok(),
    }
}

/// The counts of the single buckets, from the cumulative ones.
fn counts_at(buckets: &[Series], idx: usize) -> Result<Vec<i64>, String> {
    let misaligned = || "matrix result is not time aligned".to_owned();
    let mut counts = Vec::with_capacity(buckets.len());
    let mut previous: Option<(i64, f64)> = None;
    for bucket in buckets {
        let sample = bucket.samples.get(idx).ok_or_else(misaligned)?;
        let below = match previous {
            Some((time, _)) if time != sample.time.0 => return Err(misaligned()),
            Some((_, value)) => value,
            None => 0.0,
        };
        counts.push((sample.value - below) as i64);
        previous = Some((sample.time.0, sample.value));
    }
    Ok(counts)
}

/// `None` for fewer than two histograms.
fn native_stats(
    histograms: &[(super::result::Time, Histogram)],
    totals: &mut Totals,
) -> Option<BucketStats> {
    let counts = |histogram: &Histogram| -> HashMap<(i32, u64, u64), f64> {
        let key = |bucket: &Bucket| {
            (bucket.boundaries, (bucket.lower + 0.0).to_bits(), (bucket.upper + 0.0).to_bits())
        };
        histogram.buckets.iter().flatten().map(|bucket| (key(bucket), bucket.count)).collect()
    };
    let (first, rest) = histograms.split_first()?;
    if rest.is_empty() {
        return None;
    }
    let mut stats = BucketStats::new(0);
    let mut previous = counts(&first.1);
    let mut all: std::collections::HashSet<_> = previous.keys().copied().collect();
    for (_, histogram) in rest {
        let current = counts(histogram);
        all.extend(current.keys());
        let mut deltas = Vec::new();
        for (key, count) in &current {
            match previous.get(key) {
                None => deltas.push(*count as i64),
                Some(before) if before != count => deltas.push((before - count).abs() as i64),
                Some(_) => {}
            }
        }
        let gone = previous.iter().filter(|(key, _)| !current.contains_key(*key));
        deltas.extend(gone.map(|(_, count)| *count as i64));
        stats.add(&deltas, histogram.buckets.as_ref().map_or(0, Vec::len), totals);
        previous = current;
    }
    stats.bucket_count = all.len() as i64;
    Some(stats)
}

impl FigureRange {
    const NONE: FigureRange = FigureRange { min: i64::MAX, sum: 0, max: 0 };

    fn add(&mut self, number: i64) {
        self.min = self.min.min(number);
        self.sum = self.sum.saturating_add(number);
        self.max = self.max.max(number);
    }
}

impl BucketStats {
    fn new(bucket_count: usize) -> BucketStats {
        BucketStats {
            pair_count: 0,
            changed: FigureRange::NONE,
            delta: FigureRange::NONE,
            populated: FigureRange::NONE,
            bucket_count: bucket_count as i64,
        }
    }

    /// A pair of samples: the changes of the changed buckets, and the buckets that are not empty.
    fn add(&mut self, deltas: &[i64], populated: usize, totals: &mut Totals) {
        let changed = deltas.len() as i64;
        *totals.changes.entry(changed).or_default() += 1;
        self.pair_count += 1;
        self.changed.add(changed);
        let sum = |sum: i64, delta: &i64| sum.saturating_add(delta.saturating_abs());
        self.delta.add(deltas.iter().fold(0, sum));
        self.populated.add(populated as i64);
    }

    fn mean(&self, spread: &FigureRange) -> f64 {
        spread.sum as f64 / self.pair_count as f64
    }
}

impl fmt::Display for BucketStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |spread: &FigureRange| {
            format!("{}/{:.3}/{}", spread.min, self.mean(spread), spread.max)
        };
        write!(
            f,
            "Bucket stats (min/avg/max) - number of buckets changed: {} total delta of changed \
             buckets: {} number of populated buckets: {}. total number of buckets: {}",
            text(&self.changed),
            text(&self.delta),
            text(&self.populated),
            self.bucket_count
        )
    }
}

impl Totals {
    fn new() -> Totals {
        let none = Distribution { min: i64::MAX, max: 0, count: 0, mean: 0.0 };
        Totals { figures: [none; 10], changes: BTreeMap::new() }
    }

    fn add(&mut self, stats: &BucketStats) {
        let spreads = [&stats.changed, &stats.delta, &stats.populated];
        let numbers = spreads
            .into_iter()
            .flat_map(|spread| [spread.min, stats.mean(spread) as i64, spread.max]);
        for (figure, number) in self.figures.iter_mut().zip(numbers.chain([stats.bucket_count])) {
            figure.add(number);
        }
    }
}

impl Distribution {
    fn add(&mut self, number: i64) {
        self.min = self.min.min(number);
        self.max = self.max.max(number);
        self.count += 1;
        let count = self.count as f64;
        self.mean += number as f64 / count - self.mean / count;
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, Distribution { min, max, mean, .. }) in FIGURES.iter().zip(&self.figures) {
            writeln!(f, "{name} - min/avg/max: {min}/{mean:.3}/{max}")?;
        }
        writeln!(f, "count - {}", self.figures[0].count)?;
        let changes: Vec<String> =
            self.changes.iter().map(|(changed, count)| format!("{changed}:{count}")).collect();
        writeln!(f, "&{{map[{}]}}", changes.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(data: &str) -> Vec<Series> {
        match QueryResult::parse(data).expect("a result") {
            QueryResult::Matrix(all) => all,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_the_suffix_of_a_word_is_the_sum() {
        for (selector, want) in [
            ("a_sum", true),
            ("a_sum{b=\"c\"}", true),
            ("a_summary", false),
            ("a_sum_b", false),
            ("a", false),
            ("a_sum:b", true),
        ] {
            assert_eq!(has_sum(selector), want, "{selector}");
        }
        let labels = [("__name__", "a_sum_sum"), ("b", "x\"y"), ("c.d", "")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let hour = GoDuration(3_600_000_000_000);
        let want = r#"a_sum_bucket{b="x\"y","c.d"=""}[1h0m0s]"#;
        assert_eq!(bucket_selector(labels.into_iter().collect(), hour), want);
    }

    // Counts of the single buckets: 1 1 1, then 1 2 4, then 1 2 6.
    #[test]
    fn classic_buckets_are_compared_time_by_time() {
        let mut buckets = series(
            r#"{"resultType":"matrix","result":[
            {"metric":{"le":"+Inf"},"values":[[1,"3"],[2,"7"],[3,"9"]]},
            {"metric":{"le":"1"},"values":[[1,"2"],[2,"3"],[3,"3"]]},
            {"metric":{"le":"0.5"},"values":[[1,"1"],[2,"1"],[3,"1"]]}]}"#,
        );
        let mut totals = Totals::new();
        let stats = classic_stats(&mut buckets, &mut totals).expect("aligned").expect("enough");
        assert_eq!(
            stats.to_string(),
            "Bucket stats (min/avg/max) - number of buckets changed: 1/1.500/2 total delta of \
             changed buckets: 2/3.000/4 number of populated buckets: 3/3.000/3. total number of \
             buckets: 3"
        );
        totals.add(&stats);
        let text = totals.to_string();
        assert!(text.starts_with("minChanged - min/avg/max: 1/1.000/1\navgChanged"), "{text}");
        assert!(text.ends_with("total - min/avg/max: 3/3.000/3\ncount - 1\n&{map[1:1 2:1]}\n"));
    }

    #[test]
    fn buckets_with_other_times_are_an_error() {
        for values in [r#"[[1,"3"],[2.5,"7"]]"#, r#"[[1,"3"]]"#, "[]"] {
            let mut buckets = series(&format!(
                r#"{{"resultType":"matrix","result":[
                {{"metric":{{"le":"1"}},"values":[[1,"3"],[2,"7"]]}},
                {{"metric":{{"le":"2"}},"values":{values}}}]}}"#
            ));
            let error = classic_stats(&mut buckets, &mut Totals::new()).expect_err(values);
            assert_eq!(error, "matrix result is not time aligned");
        }
        assert!(classic_stats(&mut [], &mut Totals::new()).expect("no error").is_none());
    }

    #[test]
    fn native_buckets_may_come_and_go() {
        let all = series(
            r#"{"resultType":"matrix","result":[{"metric":{"a":"b"},"histograms":[
            [1,{"count":"3","sum":"1","buckets":[[0,"0","1","2"],[0,"1","2","1"]]}],
            [2,{"count":"4","sum":"1","buckets":[[0,"0","1","2"],[0,"2","4","2"]]}]]}]}"#,
        );
        let mut totals = Totals::new();
        let stats = native_stats(&all[0].histograms, &mut totals).expect("enough");
        assert_eq!(
            stats.to_string(),
            "Bucket stats (min/avg/max) - number of buckets changed: 2/2.000/2 total delta of \
             changed buckets: 3/3.000/3 number of populated buckets: 2/2.000/2. total number of \
             buckets: 3"
        );
        assert!(native_stats(&all[0].histograms[..1], &mut totals).is_none());
    }
}
