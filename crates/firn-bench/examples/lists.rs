//! CPU of lists of label names, values and series over a time range, on hosts with the labels of
//! TSBS DevOps: from rows, columns and tables, and after churn.
//!
//! `cargo run --release -p firn-bench --example lists -- [hosts] [metrics]`; 1,000 hosts with 101
//! metrics each unless stated. Prints the median of 5 in microseconds, and the number of items.

use std::hint::black_box;
use std::time::{SystemTime, UNIX_EPOCH};

use firn_bench::index::thread_cpu_ns;
use firndb::{
    Db, Labels, Lane, MatchOp, Matcher, Options, RecoveryProgress, RowBatch, SeriesRef, SyncPolicy,
    TimeRange, local_env,
};

const ROUNDS: usize = 5;
const ROUND_NS: f64 = 1e7;
const INTERVAL_MS: i64 = 15_000;
const SCRAPES: i64 = 30;
const GENERATIONS: usize = 10;
const CHURNED_METRICS: usize = 20;
const HOUR_MS: i64 = 3_600_000;

fn labels(host: usize, metric: usize, is_grouped: bool) -> Labels {
    let pick = |count: usize, salt: usize| (host * 31 + salt * 17 + host / 7) % count;
    let region = pick(9, 1);
    let host_name = format!("host_{host}");
    let mut pairs = vec![
        ("__name__", format!("cpu_usage_{metric}")),
        ("region", format!("region-{region}")),
        ("datacenter", format!("region-{region}-{}", pick(3, 2))),
        ("rack", pick(100, 3).to_string()),
        ("os", format!("Ubuntu{}", pick(3, 4))),
        ("arch", ["x86", "x64"][pick(2, 5)].to_owned()),
        ("team", ["SF", "NYC", "LON", "CHI"][pick(4, 6)].to_owned()),
        ("service", pick(20, 7).to_string()),
        ("service_version", pick(2, 8).to_string()),
        ("service_environment", ["test", "staging", "production"][pick(3, 9)].to_owned()),
    ];
    match is_grouped {
        true => pairs.extend([("job", "tsbs".to_owned()), ("instance", host_name.clone())]),
        false => pairs.push(("hostname", host_name)),
    }
    Labels::from_pairs(pairs.iter().map(|(name, value)| (*name, value.as_str())))
        .expect("valid labels")
}

fn write(db: &Db, series: &[SeriesRef], times: impl Iterator<Item = i64>) {
    for ts in times {
        for part in series.chunks(20_000) {
            let mut batch = RowBatch::default();
            part.iter().enumerate().for_each(|(idx, &one)| {
                batch.push(one, ts, (idx % 97) as f64);
            });
            assert_eq!(db.write(&mut batch).expect("a write").written, part.len() as u64);
        }
    }
}

fn resolve(
    db: &Db,
    hosts: std::ops::Range<usize>,
    metrics: usize,
    grouped: bool,
) -> Vec<SeriesRef> {
    let mut found = Vec::new();
    for host in hosts {
        let sets: Vec<Labels> = (0..metrics).map(|metric| labels(host, metric, grouped)).collect();
        found.extend(db.resolve(&sets).into_iter().map(|one| one.expect("resolves")));
    }
    found
}

fn open(folder: &std::path::Path) -> Db {
    let mut options = Options::default();
    options.log.sync = SyncPolicy::IntervalMs(10_000);
    Db::open_idle(local_env(folder).expect("a folder"), options, &RecoveryProgress::default())
        .expect("opens")
}

fn settle(db: &Db) {
    db.flush().expect("a flush");
    db.settle(Lane::Tree).expect("a step");
}

fn measure(mut work: impl FnMut() -> usize) -> (f64, usize) {
    let count = work();
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let (start, mut calls) = (thread_cpu_ns(), 0u32);
            while calls < 1 || thread_cpu_ns() - start < ROUND_NS {
                black_box(work());
                calls += 1;
            }
            (thread_cpu_ns() - start) / f64::from(calls) / 1_000.0
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    (rounds[ROUNDS / 2], count)
}

fn all(db: &Db, what: &str, host: &str, range: TimeRange) {
    let context = db.context();
    let is =
        |name: &str, value: &str| Matcher::new(name, MatchOp::Equal, value).expect("a matcher");
    let like =
        |name: &str, value: &str| Matcher::new(name, MatchOp::Regex, value).expect("a matcher");
    let values = |name: &str, selector: Vec<Matcher>, limit: usize| {
        let selectors = if selector.is_empty() { vec![] } else { vec![selector] };
        measure(|| {
            db.label_values(name, &selectors, range, limit, &context).expect("a list").0.len()
        })
    };
    let names = |selector: Vec<Matcher>| {
        let selectors = if selector.is_empty() { vec![] } else { vec![selector] };
        measure(|| db.label_names(&selectors, range, 0, &context).expect("a list").0.len())
    };
    let series = |selector: Vec<Matcher>, limit: usize| {
        let selectors = [selector];
        measure(|| db.series(&selectors, range, limit, &context).expect("a list").0.len())
    };
    let metric = || vec![is("__name__", "cpu_usage_7")];
    let wide = || vec![like("__name__", "cpu_usage_.+")];
    let some = || vec![like("__name__", "cpu_usage_[12]"), like(host, "host_1..|host_2.?")];
    for (name, (us, count)) in [
        ("values of host", values(host, vec![], 0)),
        ("values of host, limit 10", values(host, vec![], 10)),
        ("values of host of a metric", values(host, metric(), 0)),
        ("values of host of a wide regex", values(host, wide(), 0)),
        ("values of host of a region", values(host, vec![is("region", "region-3")], 0)),
        ("values of region", values("region", vec![], 0)),
        ("values of region of a metric", values("region", metric(), 0)),
        ("values of metric", values("__name__", vec![], 0)),
        ("values of metric of a host", values("__name__", vec![is(host, "host_7")], 0)),
        ("values of metric of a region", values("__name__", vec![is("region", "region-3")], 0)),
        ("names", names(vec![])),
        ("names of a metric", names(metric())),
        ("series of a regex", series(some(), 0)),
        ("series of a metric, limit 10", series(metric(), 10)),
    ] {
        println!("{what:24} {name:32} {us:>10.1} us {count:>8}");
    }
}

fn main() {
    let mut arguments =
        std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let (hosts, metrics) =
        (arguments.next().unwrap_or(1_000), arguments.next().unwrap_or(101usize));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_millis()
        as i64;
    let now = now / 1_000 * 1_000;
    let recent = TimeRange::new(now - SCRAPES * INTERVAL_MS, now);
    for (form, host, is_grouped) in [("grouped", "instance", true), ("lone", "hostname", false)] {
        let folder = tempfile::tempdir().expect("a folder");
        let db = open(folder.path());
        let series = resolve(&db, 0..hosts, metrics, is_grouped);
        write(&db, &series, (0..SCRAPES).map(|idx| now - (SCRAPES - idx) * INTERVAL_MS));
        all(&db, &format!("{form}, rows"), host, recent);
        all(&db, &format!("{form}, rows, 1 min"), host, TimeRange::new(now - 60_000, now));
        db.settle(Lane::Head).expect("a step");
        all(&db, &format!("{form}, columns"), host, recent);
        settle(&db);
        drop(db);
        let db = open(folder.path());
        all(&db, &format!("{form}, tables"), host, recent);
        all(&db, &format!("{form}, nothing"), host, TimeRange::new(now - 9_000, now - 8_000));
        drop(db);

        let folder = tempfile::tempdir().expect("a folder");
        let db = open(folder.path());
        for generation in 0..=GENERATIONS {
            let first = generation * hosts;
            let series = resolve(&db, first..first + hosts, CHURNED_METRICS, is_grouped);
            let start = now - (GENERATIONS - generation) as i64 * HOUR_MS - HOUR_MS / 2;
            write(&db, &series, (0..4).map(|idx| start + idx * INTERVAL_MS));
            if generation < GENERATIONS {
                settle(&db);
            }
        }
        let last = TimeRange::new(now - HOUR_MS / 2, now);
        all(&db, &format!("{form}, churned, memory"), host, last);
        settle(&db);
        drop(db);
        let db = open(folder.path());
        all(&db, &format!("{form}, churned, tables"), host, last);
        all(&db, &format!("{form}, churned, all"), host, TimeRange::ALL);
    }
}
