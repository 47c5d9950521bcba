//! Savings of the result cache for a dashboard: 20 panels over sliding windows of 1 h to 7 d,
//! refreshed every 15 s of data time while samples arrive; CPU per refresh with and without it.
//!
//! The first refresh fills the cache and is reported separately. Each answer is compared with the
//! computed one.

use firn_promql::{EvalOptions, parse};
use firndb::{
    CancelToken, Db, Labels, LogOptions, Options, QueryContext, QueryOptions, QueryTime,
    ResultOptions, RowBatch, SeriesRef, SyncPolicy, Timestamp, local_env,
};
use rustix::time::{ClockId, clock_gettime};

use crate::cache::server::CacheServer;
use crate::client::{Connection, percent_encoded};
use crate::server::Program;
use crate::tree;

const HOUR_MS: i64 = 3_600_000;
const SCRAPE_MS: i64 = 15_000;
const HOSTS: usize = 5;
const METRICS: usize = 10;
const REFRESHES: usize = 40;
const END: Timestamp = 1_700_000_040_000;
/// Window and step of four panels each.
const WINDOWS: [(i64, i64); 4] =
    [(HOUR_MS, 15_000), (6 * HOUR_MS, 60_000), (24 * HOUR_MS, 120_000), (168 * HOUR_MS, 600_000)];
const EXPRESSIONS: [&str; 5] = [
    "metric_0_total",
    "sum by (host) (rate(metric_1_total[5m]))",
    "avg(metric_2_total) / avg(metric_3_total)",
    "max_over_time(metric_4_total{host=~\"h[0-2]\"}[10m])",
    "topk(3, metric_5_total)",
];

/// The measurements.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// CPU of a refresh that computes everything, ms.
    pub computed_ms: f64,
    /// CPU of a refresh with the cache, ms.
    pub cached_ms: f64,
    /// CPU of the first refresh, which fills the cache, ms.
    pub first_ms: f64,
    /// Lookups with a hit or a partial hit, percent.
    pub hit_percent: f64,
    /// Steps that were hits, percent.
    pub step_percent: f64,
}

/// Refreshes the dashboard.
///
/// # Errors
/// Those of the database.
///
/// # Panics
/// If a cached answer differs from the computed one.
pub fn measure() -> firndb::Result<Figures> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options {
        log: LogOptions { sync: SyncPolicy::Never, ..Default::default() },
        ..Options::default()
    };
    let db = Db::open(local_env(folder.path())?, options)?;
    db.enable_result_cache(ResultOptions::default())?;
    let series = resolve(&db)?;
    write(&db, &series, END - 169 * HOUR_MS, END)?;
    db.flush()?;
    let (mut now, mut first, mut cached_ns, mut computed_ns) = (END, 0, 0, 0);
    for refresh in 0..=REFRESHES {
        for (window_ms, step_ms) in WINDOWS {
            let end = now.div_euclid(step_ms) * step_ms;
            for text in EXPRESSIONS {
                let (with, without) = query_both(&db, text, end - window_ms, end, step_ms)?;
                match refresh {
                    0 => first += with,
                    _ => (cached_ns, computed_ns) = (cached_ns + with, computed_ns + without),
                }
            }
        }
        write(&db, &series, now + SCRAPE_MS, now + SCRAPE_MS)?;
        now += SCRAPE_MS;
    }
    let stats = db.result_stats().unwrap_or_default();
    let ms = |ns: u64| ns as f64 / 1e6 / REFRESHES as f64;
    let steps = stats.steps_hit + stats.steps_missed;
    let answered = stats.store.hits + stats.store.partial_hits;
    let asked = answered + stats.store.misses;
    Ok(Figures {
        computed_ms: ms(computed_ns),
        cached_ms: ms(cached_ns),
        first_ms: first as f64 / 1e6,
        hit_percent: 100.0 * answered as f64 / asked as f64,
        step_percent: 100.0 * stats.steps_hit as f64 / steps as f64,
    })
}

/// CPU per refresh of three panels, ms: quantiles of one histogram, and of three histograms of 500
/// series each. The first three panels share the sum of rates.
///
/// # Errors
/// Those of the database.
///
/// # Panics
/// If a cached answer differs from the computed one.
pub fn measure_sharing() -> firndb::Result<(f64, f64)> {
    const HISTOGRAMS: usize = 4;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = Options {
        log: LogOptions { sync: SyncPolicy::Never, ..Default::default() },
        ..Options::default()
    };
    let db = Db::open(local_env(folder.path())?, options)?;
    db.enable_result_cache(ResultOptions::default())?;
    let mut labels = Vec::new();
    for histogram in 0..HISTOGRAMS {
        for host in 0..50 {
            for bound in 0..10 {
                let (name, host) = (format!("latency_{histogram}_bucket"), format!("h{host}"));
                let bound = if bound == 9 { "+Inf".to_owned() } else { format!("0.{bound}") };
                let pairs = [("__name__", &*name), ("le", &bound), ("instance", &host)];
                labels.push(Labels::from_pairs(pairs)?);
            }
        }
    }
    let series: Vec<SeriesRef> = db.resolve(&labels).into_iter().collect::<firndb::Result<_>>()?;
    write(&db, &series, END - 2 * HOUR_MS, END)?;
    let panel = |quantile: f64, histogram: usize| {
        format!(
            "histogram_quantile({quantile}, sum by (le) (rate(latency_{histogram}_bucket[5m])))"
        )
    };
    let quantiles = [0.5, 0.9, 0.99];
    let shared = quantiles.map(|quantile| panel(quantile, 0));
    let alone = [1, 2, 3].map(|histogram| panel(quantiles[histogram - 1], histogram));
    let (mut now, mut cpu) = (END, [0, 0]);
    for refresh in 0..=REFRESHES {
        for (panels, cpu) in [&shared, &alone].into_iter().zip(&mut cpu) {
            for text in panels {
                let (with, _) = query_both(&db, text, now - HOUR_MS, now, SCRAPE_MS)?;
                *cpu += if refresh > 0 { with } else { 0 };
            }
        }
        now += SCRAPE_MS;
        write(&db, &series, now, now)?;
    }
    let ms = |ns: u64| ns as f64 / 1e6 / REFRESHES as f64;
    Ok((ms(cpu[0]), ms(cpu[1])))
}

/// How the dashboard is requested from a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerRun<'a> {
    /// `--result-cache`.
    pub result_cache: &'a str,
    /// The encoding that the client accepts; empty for none.
    pub encoding: &'a str,
    /// Whether `firn cache --proxy` is in front of the server.
    pub has_proxy: bool,
}

/// CPU per refresh of the same dashboard through a server, ms, with HTTP and JSON of all points:
/// that of the server, and that of the proxy.
///
/// # Errors
/// If the server does not start.
///
/// # Panics
/// If the server refuses a request.
pub fn measure_server(run: ServerRun<'_>) -> std::io::Result<[f64; 2]> {
    const PART_MS: i64 = 2 * HOUR_MS;
    let result_cache = format!("--result-cache={}", run.result_cache);
    let server = Program::Firn.start_with(&[&result_cache])?;
    let origin = format!("--proxy=http://{}", server.address);
    let proxy = run.has_proxy.then(|| CacheServer::start(&[&origin])).transpose()?;
    let mut connection = Connection::open(server.address);
    let mut write = |start: Timestamp, end: Timestamp| {
        let first = start.div_euclid(SCRAPE_MS) * SCRAPE_MS;
        let times = || (0..).map(|n| first + n * SCRAPE_MS).take_while(|&ts| ts <= end);
        let series = (0..HOSTS * METRICS).map(|idx| tree::sets::Series {
            pairs: pairs(idx / METRICS, idx % METRICS),
            samples: times().map(|ts| (ts, value(idx, ts))).collect(),
        });
        let set = tree::sets::Set { series: series.collect() };
        set.requests().iter().for_each(|body| connection.post("/api/v1/write", body));
    };
    let mut start = END - 169 * HOUR_MS;
    while start < END {
        write(start, (start + PART_MS).min(END) - 1);
        start += PART_MS;
    }
    server.wait_until_quiet();
    let mut asker = Connection::open(proxy.as_ref().map_or(server.address, |proxy| proxy.address));
    if !run.encoding.is_empty() {
        asker.accept_encoding(run.encoding);
    }
    let proxy_cpu_s = || proxy.as_ref().map_or(0.0, CacheServer::threads_cpu_s);
    let cpu_now_s = || [server.threads_cpu_s(), proxy_cpu_s()];
    let (mut now, mut cpu_s) = (END, [0.0; 2]);
    for refresh in 0..=REFRESHES {
        write(now, now);
        let before_s = cpu_now_s();
        for (window_ms, step_ms) in WINDOWS {
            let end = now.div_euclid(step_ms) * step_ms;
            for text in EXPRESSIONS {
                let (query, start) = (percent_encoded(text), end - window_ms);
                let (start, end, step) = (start / 1_000, end / 1_000, step_ms / 1_000);
                asker.get(&format!(
                    "/api/v1/query_range?query={query}&start={start}&end={end}&step={step}"
                ));
            }
        }
        if refresh > 0 {
            let after_s = cpu_now_s();
            cpu_s = std::array::from_fn(|idx| cpu_s[idx] + after_s[idx] - before_s[idx]);
        }
        now += SCRAPE_MS;
    }
    Ok(cpu_s.map(|cpu_s| cpu_s * 1e3 / REFRESHES as f64))
}

fn resolve(db: &Db) -> firndb::Result<Vec<SeriesRef>> {
    let mut labels = Vec::new();
    for host in 0..HOSTS {
        for metric in 0..METRICS {
            let pairs = pairs(host, metric);
            labels.push(Labels::from_pairs(pairs.iter().map(|(name, text)| (&**name, &**text)))?);
        }
    }
    db.resolve(&labels).into_iter().collect()
}

fn pairs(host: usize, metric: usize) -> Vec<(String, String)> {
    let (host, name) = (format!("h{host}"), format!("metric_{metric}_total"));
    let pairs = [("__name__", name), ("host", host.clone()), ("instance", host)];
    pairs.map(|(name, text)| (name.to_owned(), text)).to_vec()
}

/// Counters with some noise; buckets of a histogram rise.
fn value(idx: usize, ts: Timestamp) -> f64 {
    let noise = (ts / SCRAPE_MS).wrapping_mul(2_654_435_761 + idx as i64) >> 7 & 63;
    let rise = (ts - END) as f64 / 1_000.0 * (1 + idx % 10) as f64;
    1e7 + rise + noise as f64
}

fn write(db: &Db, series: &[SeriesRef], start: Timestamp, end: Timestamp) -> firndb::Result<()> {
    let mut ts = start.div_euclid(SCRAPE_MS) * SCRAPE_MS;
    while ts <= end {
        let mut batch = RowBatch::default();
        let batch_end = (ts + 100 * SCRAPE_MS).min(end);
        while ts <= batch_end {
            for (idx, &one) in series.iter().enumerate() {
                batch.push(one, ts, value(idx, ts));
            }
            ts += SCRAPE_MS;
        }
        db.write(&mut batch)?;
    }
    Ok(())
}

/// Nanoseconds of this thread's CPU for the answer with the cache and for computing it.
fn query_both(
    db: &Db,
    text: &str,
    start: Timestamp,
    end: Timestamp,
    step_ms: i64,
) -> firndb::Result<(u64, u64)> {
    // No helpers: all CPU is this thread's.
    let context = QueryContext::new(CancelToken::new(), db.budget().clone());
    let begun = cpu_ns();
    let time = QueryTime::Range { start, end, step_ms };
    let with = db.query(text, time, &QueryOptions::default(), &context)?;
    let asked = cpu_ns();
    let expr = parse(text).map_err(|e| firndb::Error::invalid(e.to_string()))?;
    let options = EvalOptions::range(start, end, step_ms);
    let without = firn_promql::eval(&expr, &db.snapshot(), &options, &context)?;
    let computed = cpu_ns();
    assert_eq!(with.value, without.value, "{text}");
    Ok((asked - begun, computed - asked))
}

/// CPU time of this thread in nanoseconds; `/proc` is only as recent as the last tick.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
