//! `firn query analyze`: how many buckets of histograms are populated over a time.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use clap::Args;
use firn_server::one_line;

use super::result::{
    Bucket, Histogram, QueryResult, Sample, Series, Time, labels_text, metric_text,
};
use super::{api, now_ms, seconds, time_or_text};
use crate::client::{ClientFile, ServerAddress, ServerClient};
use crate::go_text::GoDuration;
use crate::output;

#[derive(Debug, Args)]
pub(super) struct Analyze {
    /// The address of the server, such as http://localhost:9420
    #[arg(long, value_name = "URL")]
    server: ServerAddress,

    /// Type of the metrics: histogram
    #[arg(long = "type", value_name = "TYPE")]
    kind: String,

    /// Length of the time
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    duration: GoDuration,

    /// End of the time, as RFC 3339 or in seconds since 1970; by default now
    #[arg(long, allow_negative_numbers = true)]
    time: Option<String>,

    /// Selector of native histograms, or of the _bucket series of classic ones; may be repeated
    #[arg(long = "match", value_name = "SELECTOR", required = true)]
    selectors: Vec<String>,
}

const HEADER: &str = "\
Bucket stats for each histogram series over time
------------------------------------------------
First the min, avg, and max number of populated buckets, followed by the total
number of buckets (only if different from the max number of populated buckets
which is typical for classic but not native histograms).

";
const FOOTER: &str = "
Aggregated bucket stats
-----------------------
Each line shows min/avg/max over the series above.
";

/// The populated buckets of one histogram over its samples.
#[derive(Clone, Copy, Debug)]
struct BucketStats {
    min: i64,
    sum: i64,
    max: i64,
    sample_count: i64,
    /// The buckets of all samples, populated or not.
    bucket_count: i64,
}

/// A distribution of one figure over all histograms.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Distribution {
    min: i64,
    max: i64,
    count: i64,
    mean: f64,
}

/// The distributions of the figures of [`BucketStats`].
#[derive(Debug)]
struct Totals {
    min: Distribution,
    mean: Distribution,
    max: Distribution,
    bucket_count: Distribution,
}

/// Prints the statistics, as far as the first error.
///
/// # Errors
/// promtool's text.
pub(super) fn run(request: &Analyze, client: &ClientFile) -> Result<(), String> {
    if request.kind != "histogram" {
        return Err(format!("analyze type is {}, must be 'histogram'", request.kind));
    }
    let mut server = client.client(&request.server, &[])?;
    let time = time_or_text(request.time.as_deref(), now_ms())
        .map_err(|(text, error)| format!("error parsing time '{text}': {error}"))?;
    let print = |text: &str| output::print(text).map_err(|error| error.to_string());
    print(HEADER)?;
    let (mut native, mut classic) = (Totals::new(), Totals::new());
    for selector in &request.selectors {
        let all = matrix(&mut server, format!("{selector}[{}]", request.duration), time)?;
        let mut buckets_of = BTreeMap::<String, Vec<Series>>::new();
        for series in all {
            if !series.samples.is_empty() {
                if let Some(name) = classic_name(&series) {
                    buckets_of.entry(name).or_default().push(series);
                }
            } else if let Some(stats) = native_stats(&series.histograms) {
                print(&format!("- {} (native): {stats}\n", metric_text(&series.metric)))?;
                native.add(&stats);
            }
        }
        for (name, mut buckets) in buckets_of {
            if let Some(stats) = classic_stats(&mut buckets)? {
                print(&format!("- {name} (classic): {stats}\n"))?;
                classic.add(&stats);
            }
        }
    }
    print(FOOTER)?;
    for (kind, totals) in [("Native", native), ("Classic", classic)] {
        if totals.min.count > 0 {
            print(&format!("\n{kind} {totals}\n"))?;
        }
    }
    Ok(())
}

fn matrix(server: &mut ServerClient, query: String, time: i64) -> Result<Vec<Series>, String> {
    let params = vec![("query", query), ("time", seconds(time))];
    match api::query(server, "/api/v1/query", &params) {
        Ok(QueryResult::Matrix(found)) => Ok(found),
        Ok(_) => Err("query of buckets resulted in non-Matrix".to_owned()),
        // Unlike other queries, promtool prints no body here.
        Err(error)
            if error.starts_with("client_error: ") || error.starts_with("server_error: ") =>
        {
            Err(error.split(" (detail: ").next().unwrap_or_default().to_owned())
        }
        Err(error) => Err(error),
    }
}

/// The name and the labels of a classic histogram, if `series` is one of its buckets.
fn classic_name(series: &Series) -> Option<String> {
    let mut labels = series.metric.clone();
    labels.remove("le")?;
    let name = labels.remove("__name__").filter(|name| name.ends_with("_bucket"))?;
    Some(format!("{}{}", one_line(&name), labels_text(&labels)))
}

/// `None` for fewer than two samples. The samples of all buckets must have the same times.
fn classic_stats(buckets: &mut [Series]) -> Result<Option<BucketStats>, String> {
    let sample_count = buckets.first().map_or(0, |bucket| bucket.samples.len());
    if sample_count < 2 {
        return Ok(None);
    }
    // As in promtool, a bound that is no number is 0.
    let bound = |series: &Series| -> f64 {
        series.metric.get("le").and_then(|le| le.parse::<f64>().ok()).unwrap_or(0.0) + 0.0
    };
    buckets.sort_by(|a, b| bound(a).total_cmp(&bound(b)));
    let mut stats = BucketStats::new();
    for idx in 0..sample_count {
        stats.add(populated_at(buckets, idx)?);
    }
    stats.bucket_count = buckets.len() as i64;
    Ok(Some(stats))
}

/// The number of populated buckets at a time: those whose cumulative count is not that of the
/// previous one. Buckets from the first one without the sample are empty.
fn populated_at(buckets: &[Series], idx: usize) -> Result<usize, String> {
    let mut populated = 0;
    let mut previous: Option<Sample> = None;
    for bucket in buckets {
        let Some(sample) = bucket.samples.get(idx) else { break };
        if previous.is_some_and(|previous| previous.time != sample.time) {
            return Err("matrix result is not time aligned".to_owned());
        }
        let delta = sample.value - previous.map_or(0.0, |previous| previous.value);
        // A count that is NaN or infinite is not 0.
        populated += usize::from(delta.is_nan() || delta.abs() >= 1.0);
        previous = Some(*sample);
    }
    Ok(populated)
}

/// `None` for fewer than two histograms.
fn native_stats(histograms: &[(Time, Histogram)]) -> Option<BucketStats> {
    if histograms.len() < 2 {
        return None;
    }
    let key = |bucket: &Bucket| {
        (bucket.boundaries, (bucket.lower + 0.0).to_bits(), (bucket.upper + 0.0).to_bits())
    };
    let mut stats = BucketStats::new();
    let mut all = HashSet::new();
    for (_, histogram) in histograms {
        let buckets = histogram.buckets.as_deref().unwrap_or_default();
        all.extend(buckets.iter().map(key));
        stats.add(buckets.len());
    }
    stats.bucket_count = all.len() as i64;
    Some(stats)
}

impl BucketStats {
    fn new() -> BucketStats {
        BucketStats { min: i64::MAX, sum: 0, max: 0, sample_count: 0, bucket_count: 0 }
    }

    /// A sample with this number of populated buckets.
    fn add(&mut self, populated: usize) {
        let populated = populated as i64;
        self.min = self.min.min(populated);
        self.sum = self.sum.saturating_add(populated);
        self.max = self.max.max(populated);
        self.sample_count += 1;
    }

    fn mean(&self) -> f64 {
        self.sum as f64 / self.sample_count as f64
    }
}

impl fmt::Display for BucketStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:.3}/{}", self.min, self.mean(), self.max)?;
        match self.max == self.bucket_count {
            true => Ok(()),
            false => write!(f, "/{}", self.bucket_count),
        }
    }
}

impl Totals {
    fn new() -> Totals {
        let none = Distribution { min: i64::MAX, max: 0, count: 0, mean: 0.0 };
        Totals { min: none, mean: none, max: none, bucket_count: none }
    }

    fn add(&mut self, stats: &BucketStats) {
        self.min.add(stats.min);
        self.mean.add(stats.mean() as i64);
        self.max.add(stats.max);
        self.bucket_count.add(stats.bucket_count);
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

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:.3}/{}", self.min, self.mean, self.max)
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "histogram series ({} in total):\n- min populated: {}\n- avg populated: {}\n\
             - max populated: {}",
            self.min.count, self.min, self.mean, self.max
        )?;
        match self.max == self.bucket_count {
            true => Ok(()),
            false => write!(f, "\n- total: {}", self.bucket_count),
        }
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
    fn buckets_of_a_histogram_have_its_name() {
        let all = series(
            r#"{"resultType":"matrix","result":[
            {"metric":{"__name__":"a_bucket","le":"1","b":"x\"y","B":""},"values":[]},
            {"metric":{"__name__":"a_bucket","le":"1"},"values":[]},
            {"metric":{"__name__":"a_bucket"},"values":[]},
            {"metric":{"__name__":"a_count","le":"1"},"values":[]},
            {"metric":{"le":"1"},"values":[]}]}"#,
        );
        let names: Vec<_> = all.iter().map(classic_name).collect();
        let some = |text: &str| Some(text.to_owned());
        let want = [some(r#"a_bucket{B="", b="x\"y"}"#), some("a_bucket{}"), None, None, None];
        assert_eq!(names, want);
    }

    // Counts of the single buckets: 1 1 1, then 1 0 4, then 1 0 0.
    #[test]
    fn populated_classic_buckets_are_counted_time_by_time() {
        let mut buckets = series(
            r#"{"resultType":"matrix","result":[
            {"metric":{"le":"+Inf"},"values":[[1,"3"],[2,"5"],[3,"1"]]},
            {"metric":{"le":"1"},"values":[[1,"2"],[2,"1"],[3,"1"]]},
            {"metric":{"le":"0.5"},"values":[[1,"1"],[2,"1"],[3,"1"]]}]}"#,
        );
        let stats = classic_stats(&mut buckets).expect("aligned").expect("enough");
        assert_eq!(stats.to_string(), "1/2.000/3");
        let stats = classic_stats(&mut buckets[..1]).expect("aligned").expect("enough");
        assert_eq!(stats.to_string(), "1/1.000/1");
        buckets.iter_mut().for_each(|bucket| bucket.samples.truncate(1));
        assert!(classic_stats(&mut buckets).expect("aligned").is_none());
        assert!(classic_stats(&mut []).expect("aligned").is_none());
    }

    #[test]
    fn buckets_may_lack_samples_but_not_have_others() {
        for (values, want) in [
            (r#"[[1,"5"],[2,"7"]]"#, Ok("1/1.500/2".to_owned())),
            // The second sample of the second bucket does not exist.
            (r#"[[1,"5"]]"#, Ok("1/1.500/2".to_owned())),
            ("[]", Ok("1/1.000/1/2".to_owned())),
            (r#"[[1,"NaN"],[2,"+Inf"]]"#, Ok("2/2.000/2".to_owned())),
            (r#"[[1,"3.5"],[2,"7.9"]]"#, Ok("1/1.000/1/2".to_owned())),
            (r#"[[1,"3"],[2.5,"7"]]"#, Err("matrix result is not time aligned".to_owned())),
        ] {
            let mut buckets = series(&format!(
                r#"{{"resultType":"matrix","result":[
                {{"metric":{{"le":"1"}},"values":[[1,"3"],[2,"7"]]}},
                {{"metric":{{"le":"2"}},"values":{values}}}]}}"#
            ));
            let stats = classic_stats(&mut buckets).map(|stats| stats.expect("enough").to_string());
            assert_eq!(stats, want, "{values}");
        }
    }

    #[test]
    fn native_buckets_may_come_and_go() {
        let all = series(
            r#"{"resultType":"matrix","result":[{"metric":{"a":"b"},"histograms":[
            [1,{"count":"3","sum":"1","buckets":[[0,"0","1","2"],[0,"1","2","1"]]}],
            [2,{"count":"4","sum":"1","buckets":[[0,"0","1","2"],[0,"2","4","2"]]}],
            [3,{"count":"0","sum":"0"}]]}]}"#,
        );
        let stats = native_stats(&all[0].histograms).expect("enough");
        assert_eq!(stats.to_string(), "0/1.333/2/3");
        assert!(native_stats(&all[0].histograms[..1]).is_none());
    }

    #[test]
    fn totals_have_the_number_of_buckets_if_it_differs() {
        let mut totals = Totals::new();
        totals.add(&BucketStats { min: 1, sum: 7, max: 4, sample_count: 2, bucket_count: 4 });
        let same = "histogram series (1 in total):\n- min populated: 1/1.000/1\n\
                    - avg populated: 3/3.000/3\n- max populated: 4/4.000/4";
        assert_eq!(totals.to_string(), same);
        totals.add(&BucketStats { min: 0, sum: 2, max: 1, sample_count: 2, bucket_count: 6 });
        let other = "histogram series (2 in total):\n- min populated: 0/0.500/1\n\
                     - avg populated: 1/2.000/3\n- max populated: 1/2.500/4\n- total: 4/5.000/6";
        assert_eq!(totals.to_string(), other);
    }
}
