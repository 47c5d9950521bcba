//! Measures the cost of queries inside one process: hosts with 100 metrics each, 10,000 counters
//! over 6 h and 100,000 over 1 h, one sample every 15 s, from tables and from memory. Prints the
//! fastest of several runs and the largest memory reservation of the query.
//!
//! `cargo run --release -p firndb --example queries -- [hosts] [part of a query's name]`

#![allow(clippy::disallowed_methods, reason = "measures real time with threads of its own")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use firndb::{
    Db, ForeignMember, Labels, MatchOp, Matcher, Options, Pool, QueryTime, Result, RowBatch, Slot,
    TimeRange, local_env,
};

const SCRAPE_MS: i64 = 15_000;
const HOUR_MS: i64 = 3_600_000;
const REGIONS: usize = 10;

/// Groups with members that are scraped together.
struct Fleet {
    job: &'static str,
    group_count: usize,
    /// Name and one label value of each member.
    members: Vec<(String, String)>,
    hours: i64,
    is_counter: bool,
}

impl Fleet {
    fn group_labels(&self, idx: usize) -> Result<Labels> {
        let (instance, region) = (format!("host_{idx}"), format!("region_{}", idx % REGIONS));
        Labels::from_pairs([
            ("job", self.job),
            ("instance", instance.as_str()),
            ("region", region.as_str()),
        ])
    }

    fn write(&self, db: &Db, end: i64) -> Result<()> {
        let members: Vec<Labels> = self
            .members
            .iter()
            .map(|(name, path)| {
                Labels::from_pairs([("__name__", name.as_str()), ("path", path.as_str())])
            })
            .collect::<Result<_>>()?;
        let mut groups = Vec::new();
        for idx in 0..self.group_count {
            let labels = self.group_labels(idx)?;
            let refs = db.resolve_group(&labels, &members, ForeignMember::Refuse)?.members;
            let slots: Vec<Slot> = refs.iter().map(|series| series.slot).collect();
            groups.push((refs[0].group, slots, vec![50.0; members.len()]));
        }
        let mut random = 88_172_645_463_325_252u64;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut batch = RowBatch::default();
        let start = end - self.hours * HOUR_MS;
        for scrape in 0..self.hours * HOUR_MS / SCRAPE_MS {
            for (idx, (group, slots, values)) in groups.iter_mut().enumerate() {
                for value in values.iter_mut() {
                    *value = match self.is_counter {
                        true => *value + next(20) as f64,
                        false => (*value + next(3) as f64 - 1.0).clamp(0.0, 100.0),
                    };
                }
                let row: Vec<(Slot, f64)> =
                    slots.iter().copied().zip(values.iter().copied()).collect();
                let ts = start + scrape * SCRAPE_MS + (idx as i64 * 37) % SCRAPE_MS;
                batch.push_row(*group, ts, &row);
            }
            if batch.len() > 200_000 {
                write(db, &mut batch)?;
            }
        }
        write(db, &mut batch)
    }
}

fn write(db: &Db, batch: &mut RowBatch) -> Result<()> {
    while let Err(error) = db.write(batch) {
        if !error.is_retriable() {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    batch.clear();
    Ok(())
}

/// A query over the last `hours` with this step; without a step an instant query.
struct Case {
    name: &'static str,
    text: String,
    hours: i64,
    step_ms: Option<i64>,
}

fn cases() -> Vec<Case> {
    let host = |count: usize| {
        let names: Vec<String> = (0..count).map(|idx| format!("host_{}", idx * 7 + 3)).collect();
        names.join("|")
    };
    let range = |name, text: String, hours, step_s: i64| Case {
        name,
        text,
        hours,
        step_ms: Some(step_s * 1_000),
    };
    let at_once = |name, text: &str| Case { name, text: text.into(), hours: 0, step_ms: None };
    let max = |metrics: &str, hosts: usize| {
        format!(
            "max by (__name__) (last_over_time({{__name__=~\"{metrics}\",instance=~\"{}\"}}[1m]))",
            host(hosts)
        )
    };
    let one = format!("max(max_over_time(cpu_usage_user{{instance=\"{}\"}}[1m]))", host(1));
    let five = "cpu_usage_user|cpu_metric_1|cpu_metric_2|cpu_metric_3|cpu_metric_4";
    vec![
        at_once("vector(1)", "vector(1)"),
        range("1-1-1", one.clone(), 1, 60),
        range("1-1-6", one, 6, 60),
        range("1-8-1", max("cpu_usage_user", 8), 1, 60),
        range("5-1-1", max(five, 1), 1, 60),
        range("5-8-1", max(five, 8), 1, 60),
        range(
            "double-groupby-1",
            "avg by (instance) (avg_over_time(cpu_usage_user[1h]))".into(),
            6,
            3_600,
        ),
        at_once("lastpoint", "last_over_time(cpu_usage_user[10m])"),
        at_once("lastpoint-max", "max by (instance) (cpu_usage_user)"),
        range("wide-6h", "sum by (region) (rate(requests_total[5m]))".into(), 6, 60),
        range("wide-1h", "sum by (region) (rate(calls_total[5m]))".into(), 1, 60),
        range("sum-of-rates", "sum(rate(requests_total[5m]))".into(), 6, 60),
        range("plain-rate", "rate(requests_total[5m])".into(), 1, 60),
        range("avg-over-1h", "avg by (region) (avg_over_time(requests_total[1h]))".into(), 6, 60),
        range("stddev-1h", "max(stddev_over_time(requests_total[1h]))".into(), 6, 60),
        range("quantile-1h", "max(quantile_over_time(0.9, requests_total[1h]))".into(), 6, 60),
        at_once("topk", "topk(10, requests_total)"),
        at_once("topk-rate", "topk by (region) (5, rate(requests_total[5m]))"),
        range("topk-range", "topk(10, rate(requests_total[5m]))".into(), 1, 60),
        at_once("count-by", "count by (__name__) ({job=\"devops\"})"),
        at_once("count-by-wide", "count by (region) (calls_total)"),
        at_once("count-all", "count(calls_total)"),
    ]
}

/// Milliseconds of the fastest of at least two runs.
fn fastest(mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    let mut count = 0;
    while count < 2 || (count < 30 && begin.elapsed() < Duration::from_secs(2)) {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_secs_f64() * 1e3);
        count += 1;
    }
    Ok(best)
}

/// The largest reservation of queries in the budget while `run` runs, in bytes.
fn peak_bytes(db: &Db, run: impl FnOnce() -> Result<()>) -> Result<u64> {
    let (peak, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let budget = db.budget().clone();
    let watcher = {
        let (peak, done) = (Arc::clone(&peak), Arc::clone(&done));
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let bytes = budget.usage().by_pool[Pool::Query as usize];
                peak.fetch_max(bytes, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(50));
            }
        })
    };
    let result = run();
    done.store(true, Ordering::Relaxed);
    let _ = watcher.join();
    result.map(|()| peak.load(Ordering::Relaxed))
}

fn measure(db: &Db, end: i64, wanted: &str) -> Result<()> {
    for case in cases().iter().filter(|case| case.name.contains(wanted)) {
        let time = match case.step_ms {
            None => QueryTime::Instant(end),
            Some(step_ms) => QueryTime::Range { start: end - case.hours * HOUR_MS, end, step_ms },
        };
        let run = || db.query_now(&case.text, time).map(drop);
        let best_ms = fastest(run)?;
        let peak = peak_bytes(db, run)?;
        println!("  {:<18} {best_ms:>9.3} ms  {:>7} KiB", case.name, peak >> 10);
    }
    if "series".contains(wanted) {
        let matchers = vec![Matcher::new("__name__", MatchOp::Equal, "requests_total")?];
        let range = TimeRange::new(end - HOUR_MS, end);
        let best_ms = fastest(|| {
            db.series(std::slice::from_ref(&matchers), range, 0, &db.context()).map(drop)
        })?;
        println!("  {:<18} {best_ms:>9.3} ms", "series");
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let host_count = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(1_000);
    let wanted = args.next().unwrap_or_default();
    let folder = tempfile::tempdir().map_err(|e| {
        firndb::Error::unavailable("no temporary folder for the database").because(e)
    })?;
    let db = Db::open(local_env(folder.path())?, Options::default())?;
    let end = db.now_ms() / 60_000 * 60_000;
    let metric = |idx: usize| match idx {
        0 => ("cpu_usage_user".to_owned(), String::new()),
        idx => (format!("cpu_metric_{idx}"), String::new()),
    };
    let paths = |name: &str| (0..100).map(|idx| (name.to_owned(), format!("/p{idx}"))).collect();
    let hosts = Fleet {
        job: "devops",
        group_count: host_count,
        members: (0..100).map(metric).collect(),
        hours: 1,
        is_counter: false,
    };
    let wide = Fleet {
        job: "web",
        group_count: host_count.min(100),
        members: paths("requests_total"),
        hours: 6,
        is_counter: true,
    };
    let many = Fleet {
        job: "rpc",
        group_count: host_count,
        members: paths("calls_total"),
        hours: 1,
        is_counter: true,
    };
    let start = Instant::now();
    for fleet in [&hosts, &wide, &many] {
        fleet.write(&db, end)?;
    }
    println!("written in {:.1} s", start.elapsed().as_secs_f64());
    println!("half in memory:");
    measure(&db, end, &wanted)?;
    db.flush()?;
    db.settle(firndb::Lane::Tree)?;
    drop(db);
    let db = Db::open(local_env(folder.path())?, Options::default())?;
    println!("from tables:");
    measure(&db, end, &wanted)?;
    db.close()
}
