//! The queries: TSBS DevOps patterns as PromQL, and wide ones, drawn again for every request so
//! that no answer can come from a cache.
//!
//! Evaluation times are between samples, so that open and closed windows are equal. The patterns
//! over five metrics use one sample per minute (`max by (__name__)` over an instant selector),
//! because Prometheus refuses a range function over several names.

use crate::client::percent_encoded;
use crate::devops::{GAUGES, HOSTS};

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

/// The share of the data that a pattern reads; selects its aim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// Reads no data: the fixed cost of a query.
    Nothing,
    /// Up to eight hosts.
    Narrow,
    /// All hosts, few points each.
    Middle,
    /// Ten thousand series and more.
    Wide,
}

/// The rule for comparing the answers of two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// Each series and each value.
    Exact,
    /// Each series and each value between FirnDB and Prometheus. VictoriaMetrics computes a rate
    /// from other samples: series by series within a few percent.
    Rate,
    /// As [`Agreement::Rate`], for the values at each time only: their series may differ.
    TopOfRates,
    /// The same label sets.
    Labels,
    /// FirnDB's label sets are among the others'. Their lists contain series without a sample in
    /// the range: those of the memory of Prometheus, those of the day in VictoriaMetrics.
    LabelsWithin,
}

/// One kind of query.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// TSBS' name, or the computation.
    pub name: &'static str,
    /// The share of the data that it reads.
    pub width: Width,
    /// The rule for comparing its answers.
    pub agreement: Agreement,
    target: fn(&mut Draw) -> String,
}

impl Pattern {
    /// Request number `number`: path and query, the same for every program. `end_ms` is the end of
    /// the data.
    pub fn target(&self, end_ms: i64, number: u64) -> String {
        (self.target)(&mut Draw::new(end_ms, number))
    }
}

/// All patterns; the first one measures the fixed cost of a query.
pub const PATTERNS: [Pattern; 15] = [
    pattern("vector(1)", Width::Nothing, Agreement::Exact, |draw| draw.instant("vector(1)")),
    pattern("single-groupby-1-1-1", Width::Narrow, Agreement::Exact, |draw| draw.one_metric(1, 1)),
    pattern("single-groupby-1-1-24", Width::Narrow, Agreement::Exact, |d| d.one_metric(1, 24)),
    pattern("single-groupby-1-8-1", Width::Narrow, Agreement::Exact, |draw| draw.one_metric(8, 1)),
    pattern("single-groupby-5-1-1", Width::Narrow, Agreement::Exact, |d| d.five_metrics(1, 1)),
    pattern("single-groupby-5-1-24", Width::Narrow, Agreement::Exact, |d| d.five_metrics(1, 24)),
    pattern("single-groupby-5-8-1", Width::Narrow, Agreement::Exact, |d| d.five_metrics(8, 1)),
    pattern("double-groupby-1", Width::Middle, Agreement::Exact, |draw| {
        let gauge = draw.pick(&GAUGES);
        draw.range(&format!("avg by (hostname) (avg_over_time(cpu_usage_{gauge}[1h]))"), 12, 60)
    }),
    pattern("lastpoint", Width::Middle, Agreement::Exact, |draw| {
        draw.instant("{__name__=~\"cpu_usage_.+\"}")
    }),
    pattern("sum rate, 10k lone, 6 h", Width::Wide, Agreement::Rate, |draw| {
        draw.range("sum by (region) (rate(host_requests_total[5m]))", 6, 1)
    }),
    pattern("sum rate, 100k, 1 h", Width::Wide, Agreement::Rate, |draw| {
        draw.range("sum by (region) (rate(http_requests_total[5m]))", 1, 1)
    }),
    pattern("topk rate, 10k lone, 1 h", Width::Wide, Agreement::TopOfRates, |draw| {
        draw.range("topk(10, rate(host_requests_total[5m]))", 1, 1)
    }),
    pattern("count by, 10k lone, 1 h", Width::Wide, Agreement::Exact, |draw| {
        draw.range("count by (region, os) (host_requests_total)", 1, 1)
    }),
    pattern("count by, 100k, instant", Width::Wide, Agreement::Exact, |draw| {
        draw.instant("count by (job, code) (http_requests_total)")
    }),
    pattern("series, 10k lone", Width::Wide, Agreement::Labels, |draw| {
        let end_ms = draw.end_ms();
        let matcher = percent_encoded("host_requests_total");
        let (start, end) = (seconds(end_ms - HOUR_MS), seconds(end_ms));
        format!("/api/v1/series?match%5B%5D={matcher}&start={start}&end={end}")
    }),
];

const fn pattern(
    name: &'static str,
    width: Width,
    agreement: Agreement,
    target: fn(&mut Draw) -> String,
) -> Pattern {
    Pattern { name, width, agreement, target }
}

/// The draws of one request.
struct Draw {
    data_end_ms: i64,
    random: u64,
}

impl Draw {
    fn new(data_end_ms: i64, number: u64) -> Draw {
        // Whitened twice, so that neighbours differ.
        let mut draw =
            Draw { data_end_ms, random: (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) };
        draw.below(1);
        draw.below(1);
        draw
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 16) % bound as u64) as usize
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    /// A time 2 to 12 min before the end of the data, 1 to 14 s after a sample.
    fn end_ms(&mut self) -> i64 {
        let samples_back = 8 + self.below(40) as i64;
        self.data_end_ms - samples_back * 15_000 + 1_000 + self.below(13_000) as i64
    }

    fn instant(&mut self, query: &str) -> String {
        let time = seconds(self.end_ms());
        format!("/api/v1/query?query={}&time={time}", percent_encoded(query))
    }

    fn range(&mut self, query: &str, hours: i64, step_minutes: i64) -> String {
        let end_ms = self.end_ms();
        let start = seconds(end_ms - hours * HOUR_MS);
        let query = percent_encoded(query);
        let step_s = step_minutes * 60;
        format!(
            "/api/v1/query_range?query={query}&start={start}&end={}&step={step_s}",
            seconds(end_ms)
        )
    }

    /// The maximum of one metric over some hosts, minute by minute.
    fn one_metric(&mut self, host_count: usize, hours: i64) -> String {
        let (gauge, hosts) = (self.pick(&GAUGES), self.hosts(host_count));
        let metric = format!("cpu_usage_{gauge}{{hostname=~\"{hosts}\"}}");
        self.range(&format!("max(max_over_time({metric}[1m]))"), hours, 1)
    }

    /// The maxima of five metrics over some hosts, minute by minute.
    fn five_metrics(&mut self, host_count: usize, hours: i64) -> String {
        let hosts = self.hosts(host_count);
        let first = self.below(GAUGES.len());
        let names: Vec<String> = (0..5)
            .map(|idx| format!("cpu_usage_{}", GAUGES[(first + idx) % GAUGES.len()]))
            .collect();
        let names = names.join("|");
        let selector = format!("{{__name__=~\"{names}\",hostname=~\"{hosts}\"}}");
        self.range(&format!("max by (__name__) ({selector})"), hours, 1)
    }

    fn hosts(&mut self, count: usize) -> String {
        let first = self.below(HOSTS);
        let step = 1 + self.below(HOSTS / 8 - 1);
        let hosts: Vec<String> =
            (0..count).map(|idx| format!("host_{}", (first + idx * step) % HOSTS)).collect();
        hosts.join("|")
    }
}

fn seconds(ms: i64) -> String {
    format!("{}.{:03}", ms.div_euclid(1_000), ms.rem_euclid(1_000))
}
