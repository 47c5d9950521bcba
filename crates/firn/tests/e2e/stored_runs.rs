//! Stored samples of two servers that scraped the same targets at times of their own: equal sets of
//! series, equal sequences of values and gaps, and changes at about the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde_json::Value;

use crate::http::api;
use crate::scraping::labels_of;

/// Step of the queries that read sequences: shorter than an interval, so that no sample is missed.
const STEP_MS: i64 = 100;
/// Steps of one query; Prometheus allows 11,000.
const STEP_COUNT_MAX: i64 = 6_000;

/// A time range, in milliseconds, with both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) start_ms: i64,
    pub(crate) end_ms: i64,
}

impl Stretch {
    pub(crate) fn contains(self, ts: i64) -> bool {
        (self.start_ms..=self.end_ms).contains(&ts)
    }

    fn wider_by(self, ms: i64) -> Stretch {
        Stretch { start_ms: self.start_ms - ms, end_ms: self.end_ms + ms }
    }

    fn overlaps(self, run: &ValueRun) -> bool {
        run.start_ms <= self.end_ms && run.end_ms >= self.start_ms
    }

    /// As the range of a selector that is evaluated at its end.
    fn range(self) -> String {
        format!("{}ms", self.end_ms - self.start_ms)
    }
}

/// A time in which a series had one value, or no value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ValueRun {
    /// `None` before the first sample and after a stale marker.
    value: Option<String>,
    start_ms: i64,
    end_ms: i64,
}

/// The disturbances of a comparison.
#[derive(Clone, Debug)]
pub(crate) struct Tolerance {
    /// The most by which a change may be later in one server.
    pub(crate) shift_ms_max: i64,
    /// Times in which one server may have been up while the other was down.
    pub(crate) outages: Vec<Stretch>,
    /// Times at which a scrape of a living target failed in one of the servers.
    pub(crate) failures: Vec<i64>,
}

/// Runs that end sooner may be the effect of one failed scrape.
const DISTURBANCE_MS_MAX: i64 = 3_000;

/// Rules see the end of an outage some evaluations later.
const SETTLING_MS_MAX: i64 = 1_500;

/// All series with a sample in `stretch`.
pub(crate) fn stored_series(address: SocketAddr, stretch: Stretch) -> BTreeSet<String> {
    let (start, end) = (seconds(stretch.start_ms), seconds(stretch.end_ms));
    let parameters = [("match[]", "{__name__=~\".+\"}"), ("start", &start), ("end", &end)];
    let data = api(address, "/api/v1/series", &parameters).expect("the series");
    data.as_array().into_iter().flatten().map(labels_of).collect()
}

/// The result of an instant query at the end of `stretch`, whose length replaces `$range`.
pub(crate) fn values_over(
    address: SocketAddr,
    query: &str,
    stretch: Stretch,
) -> BTreeMap<String, String> {
    let query = query.replace("$range", &stretch.range());
    let parameters = [("query", query.as_str()), ("time", &seconds(stretch.end_ms))];
    let data = api(address, "/api/v1/query", &parameters).expect("a result");
    let series = data["result"].as_array().into_iter().flatten();
    series.map(|one| (labels_of(&one["metric"]), one["value"][1].to_string())).collect()
}

/// The samples of a selector as they are stored, with their times.
pub(crate) fn samples(
    address: SocketAddr,
    selector: &str,
    stretch: Stretch,
) -> BTreeMap<String, Vec<(i64, String)>> {
    let query = format!("{selector}[{}]", stretch.range());
    let parameters = [("query", query.as_str()), ("time", &seconds(stretch.end_ms))];
    let data = api(address, "/api/v1/query", &parameters).expect("samples");
    let series = data["result"].as_array().into_iter().flatten();
    series.map(|one| (labels_of(&one["metric"]), points(one))).collect()
}

/// The runs of each series of `query`.
pub(crate) fn value_runs(
    address: SocketAddr,
    query: &str,
    stretch: Stretch,
) -> BTreeMap<String, Vec<ValueRun>> {
    let mut found: BTreeMap<String, BTreeMap<i64, String>> = BTreeMap::new();
    // The last step is the end: it sees the newest samples.
    let first_ms = stretch.start_ms + (stretch.end_ms - stretch.start_ms) % STEP_MS;
    let mut start_ms = first_ms;
    while start_ms <= stretch.end_ms {
        let end_ms = stretch.end_ms.min(start_ms + STEP_MS * (STEP_COUNT_MAX - 1));
        let (start, end, step) = (seconds(start_ms), seconds(end_ms), seconds(STEP_MS));
        let parameters = [("query", query), ("start", &start), ("end", &end), ("step", &step)];
        let data = api(address, "/api/v1/query_range", &parameters).expect("a result");
        for one in data["result"].as_array().into_iter().flatten() {
            found.entry(labels_of(&one["metric"])).or_default().extend(points(one));
        }
        start_ms += STEP_MS * STEP_COUNT_MAX;
    }
    let in_runs = |points: BTreeMap<i64, String>| {
        let steps = (first_ms..=stretch.end_ms).step_by(STEP_MS as usize);
        joined(steps.map(|ts| ValueRun {
            value: points.get(&ts).cloned(),
            start_ms: ts,
            end_ms: ts + STEP_MS,
        }))
    };
    found.into_iter().map(|(labels, points)| (labels, in_runs(points))).collect()
}

fn points(series: &Value) -> Vec<(i64, String)> {
    let point = |point: &Value| {
        let ts = (point[0].as_f64().expect("a time") * 1e3).round() as i64;
        (ts, point[1].as_str().expect("a value").to_owned())
    };
    series["values"].as_array().into_iter().flatten().map(point).collect()
}

fn seconds(ms: i64) -> String {
    format!("{}.{:03}", ms / 1_000, ms % 1_000)
}

/// Runs without equal neighbours.
fn joined(runs: impl IntoIterator<Item = ValueRun>) -> Vec<ValueRun> {
    let mut joined: Vec<ValueRun> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if last.value == run.value => last.end_ms = run.end_ms,
            _ => joined.push(run),
        }
    }
    joined
}

impl Tolerance {
    /// Without short runs beside failed scrapes.
    fn undisturbed(&self, runs: &[ValueRun]) -> Vec<ValueRun> {
        let is_kept = |run: &&ValueRun| {
            let is_short = run.end_ms - run.start_ms < DISTURBANCE_MS_MAX;
            let is_disturbed = |failure: &i64| self.disturbed_by(*failure).overlaps(run);
            !is_short || !self.failures.iter().any(is_disturbed)
        };
        joined(runs.iter().filter(is_kept).cloned())
    }

    /// The time in which runs may be the effect of a failed scrape. In an outage one server may be
    /// seconds behind the other, and its runs are then that far from the failure of the other.
    fn disturbed_by(&self, failure_ms: i64) -> Stretch {
        let moment = Stretch { start_ms: failure_ms, end_ms: failure_ms };
        let outage = self.outages.iter().find(|outage| outage.contains(failure_ms));
        outage.copied().unwrap_or(moment).wider_by(DISTURBANCE_MS_MAX)
    }

    /// Whether one of the servers may have missed a change at these times, because it was down.
    fn is_outage(&self, a_ms: i64, b_ms: i64) -> bool {
        self.outages.iter().any(|outage| {
            let outage = outage.wider_by(SETTLING_MS_MAX);
            outage.contains(a_ms) && outage.contains(b_ms)
        })
    }

    /// The largest shift of a change outside of outages, if the sequences are equal.
    ///
    /// # Errors
    /// The difference.
    pub(crate) fn compare(&self, theirs: &[ValueRun], ours: &[ValueRun]) -> Result<i64, String> {
        let (theirs, ours) = (self.undisturbed(theirs), self.undisturbed(ours));
        let both = || {
            let shown = |runs: &[ValueRun]| {
                let shown = |run: &ValueRun| {
                    format!("{} at {}", run.value.as_deref().unwrap_or("-"), run.start_ms)
                };
                runs.iter().map(shown).collect::<Vec<String>>().join(", ")
            };
            format!("  Prometheus: {}\n  FirnDB:     {}", shown(&theirs), shown(&ours))
        };
        let values =
            |runs: &[ValueRun]| runs.iter().map(|run| run.value.clone()).collect::<Vec<_>>();
        if values(&theirs) != values(&ours) {
            return Err(format!("other values\n{}", both()));
        }
        let starts = theirs.iter().zip(&ours).map(|(a, b)| (a.start_ms, b.start_ms));
        let shifts = starts.filter(|(a, b)| !self.is_outage(*a, *b)).map(|(a, b)| (a - b).abs());
        let shift_ms = shifts.max().unwrap_or(0);
        if shift_ms > self.shift_ms_max {
            return Err(format!("a shift of {shift_ms} ms\n{}", both()));
        }
        Ok(shift_ms)
    }
}

/// Distances of successive samples above `limit_ms`, without those within `outages`.
pub(crate) fn gaps(
    samples: &[(i64, String)],
    limit_ms: i64,
    outages: &[Stretch],
) -> Vec<(i64, i64)> {
    let pairs = samples.windows(2).map(|two| (two[0].0, two[1].0));
    let is_gap = |(start, end): &(i64, i64)| {
        let is_outage = |outage: &Stretch| {
            *start >= outage.start_ms - limit_ms && *end <= outage.end_ms + limit_ms
        };
        end - start > limit_ms && !outages.iter().any(is_outage)
    };
    pairs.filter(is_gap).collect()
}

/// A sequence of values, as `1 - 2` with a second for each.
fn sequence(values: &str, start_ms: i64) -> Vec<ValueRun> {
    let runs = values.split(' ').enumerate().map(|(idx, value)| {
        let start_ms = start_ms + 1_000 * idx as i64;
        let value = (value != "-").then(|| value.to_owned());
        ValueRun { value, start_ms, end_ms: start_ms + 1_000 }
    });
    joined(runs)
}

#[test]
fn sequences_are_compared_with_a_shift_and_without_disturbances() {
    let mut tolerance = Tolerance { shift_ms_max: 400, outages: vec![], failures: vec![] };
    let compare = |tolerance: &Tolerance, theirs, ours, shift_ms| {
        tolerance.compare(&sequence(theirs, 0), &sequence(ours, shift_ms))
    };
    assert_eq!(compare(&tolerance, "- 1 1 - 2", "- 1 1 - 2", 300), Ok(300));
    assert!(compare(&tolerance, "- 1 1", "- 1 1", 500).is_err(), "a change is too late");
    assert!(compare(&tolerance, "- 1 2 2", "- 1 - 2", 0).is_err(), "a gap in one of them");
    assert!(compare(&tolerance, "- 1 2", "- 1 3", 0).is_err(), "another value");
    assert!(compare(&tolerance, "- 1 1", "- 1 -", 0).is_err(), "an end in one of them");
    tolerance.outages.push(Stretch { start_ms: 0, end_ms: 2_500 });
    assert_eq!(compare(&tolerance, "- 1 1", "- - 1", 0), Ok(0));
    tolerance.failures.push(6_000);
    assert_eq!(compare(&tolerance, "- 1 1 1 1 1 1 - 1", "- 1 1 1 1 1 1 1 1", 0), Ok(0));
    assert!(compare(&tolerance, "- 1 1 1 1 1 1 2 2 2", "- 1 1 1 1 1 1 1 1 1", 0).is_err());
    let late = ["0 0 0 0 0 0 9 0 0 0 0", "0 9 0 0 0 0 0 0 0 0 0"];
    tolerance.failures = vec![1_000];
    assert!(compare(&tolerance, late[0], late[1], 0).is_err(), "it is not beside the failure");
    tolerance.outages = vec![Stretch { start_ms: 0, end_ms: 7_000 }];
    assert_eq!(compare(&tolerance, late[0], late[1], 0), Ok(0));
    let times: Vec<(i64, String)> =
        [0, 500, 2_000, 2_500, 9_000].map(|ts| (ts, String::new())).into();
    assert_eq!(gaps(&times, 1_000, &tolerance.outages), [(2_500, 9_000)]);
}
