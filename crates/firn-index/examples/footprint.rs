//! The cost of a series in the index.
//!
//! Run `cargo run --release -p firn-index --example footprint [hosts]`.
//!
//! TSBS-like label sets: 101 series per host with 10 host tags and a name; grouped by all tags, by
//! the host's name alone (nine constant tags are then on the members), or not at all. Prints heap
//! bytes per series (from a counting allocator, without the allocator's own overhead) and the times
//! of resolving, querying, sealing and reopening, in memory and sealed.

#![allow(clippy::disallowed_methods, reason = "measures real time and memory")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use firn_index::{GroupBy, Index, IndexOptions};
use firn_model::{Grouping, Labels, MatchOp, Matcher, QueryContext, ShardBits, ShardId};
use firn_sim::{Faults, SimDisk};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed to the system's allocator unchanged; only sizes are counted.
#[expect(unsafe_code, reason = "counting allocations needs a global allocator")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// CPU time of this thread on Linux, otherwise wall time. For long operations, since other
/// processes may run. Exact to a tick.
fn cpu_ns() -> f64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let cpu_ns = stat.and_then(|stat| stat.split(' ').next()?.parse().ok());
    cpu_ns.unwrap_or_else(|| START.get_or_init(Instant::now).elapsed().as_nanos() as f64)
}

const METRICS: usize = 101;
const HOST_TAGS: [&str; 10] = [
    "arch",
    "datacenter",
    "hostname",
    "os",
    "rack",
    "region",
    "service",
    "service_environment",
    "service_version",
    "team",
];

fn main() {
    let hosts = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(9_901);
    println!("{} series: {hosts} hosts of {METRICS}, 10 host tags and a name", hosts * METRICS);
    baseline(hosts);
    measure("grouped by all host tags", &HOST_TAGS, hosts);
    measure("lone", &[], hosts);
    measure("grouped by hostname, other tags on the members", &["hostname"], hosts);
}

fn measure(what: &str, group_by: &[&str], hosts: usize) {
    let disk = SimDisk::new(Faults::new(1));
    let options = IndexOptions {
        group_by: GroupBy::labels(group_by.iter().copied()),
        ..IndexOptions::default()
    };
    let before = LIVE.load(Ordering::Relaxed);
    let index = Index::open(Arc::new(disk.clone()), ShardBits::for_count(64), options.clone(), &[])
        .expect("open");
    let series = (hosts * METRICS) as f64;
    let new_ns = resolve_all(&index, hosts, false);
    let mut log_bytes = 0;
    for shard in 0..64 {
        let mut payload = Vec::new();
        index.take_pending(ShardId(shard), &mut payload);
        log_bytes += payload.len();
    }
    let live = LIVE.load(Ordering::Relaxed) - before;
    let stats = index.stats();
    let known_ns = resolve_all(&index, hosts, false);
    let mixed_ns = resolve_all(&index, hosts, true);
    println!("\n{what}");
    println!(
        "  memory     {:6.1} B per series counted, {:.1} by its own sum; {} groups, {} member \
         sets, {} pairs",
        live as f64 / series,
        stats.heap_bytes as f64 / series,
        stats.group_count,
        stats.member_set_count,
        stats.pair_count
    );
    println!(
        "  resolve    {new_ns:6.0} ns new, {known_ns:.0} known host by host, {mixed_ns:.0} known \
         metric by metric"
    );
    println!("  log        {:6.1} B per series", log_bytes as f64 / series);
    queries(&index);

    let start = cpu_ns();
    let job = index.plan_seal().expect("something to seal");
    let part = job.run(&disk).expect("seal");
    index.apply(&part).expect("apply");
    drop(job);
    println!(
        "  segment    {:6.2} B per series, sealed in {:.0} ns of CPU per series",
        index.stats().segment_bytes as f64 / series,
        (cpu_ns() - start) / series
    );
    println!(
        "  sealed     {:6.2} B per series in memory by its own sum, known again in {:.0} ns",
        index.stats().heap_bytes as f64 / series,
        resolve_all(&index, hosts, false)
    );
    queries(&index);
    drop(index);
    let start = cpu_ns();
    let again =
        Index::open(Arc::new(disk), ShardBits::for_count(64), options, &[&part]).expect("open");
    println!("  open       {:6.2} ms of CPU", (cpu_ns() - start) / 1e6);
    black_box(again);
}

/// The simplest alternative: a hash map of whole label sets, without queries.
fn baseline(hosts: usize) {
    let before = LIVE.load(Ordering::Relaxed);
    let mut map: HashMap<Labels, u64> = HashMap::new();
    let new_ns = each_batch(hosts, false, |batch| {
        for labels in batch {
            let next = map.len() as u64;
            map.entry(labels.clone()).or_insert(next);
        }
    });
    let live = LIVE.load(Ordering::Relaxed) - before;
    let get = |by_metric| {
        each_batch(hosts, by_metric, |batch| {
            assert!(batch.iter().all(|labels| map.contains_key(labels)));
        })
    };
    let (known_ns, mixed_ns) = (get(false), get(true));
    println!("\nbaseline: std HashMap<Labels, u64>, which answers no query");
    println!("  memory     {:6.1} B per series counted", live as f64 / (hosts * METRICS) as f64);
    println!(
        "  resolve    {new_ns:6.0} ns new, {known_ns:.0} known host by host, {mixed_ns:.0} known \
         metric by metric"
    );
}

fn queries(index: &Index) {
    let regex = |name: &str, op, value: &str| Matcher::new(name, op, value).expect("matcher");
    let view = index.view();
    let cases: [(&str, Vec<Matcher>, Grouping); 6] = [
        (
            "one series",
            vec![
                Matcher::equal("__name__", "metric_7_usage"),
                Matcher::equal("hostname", "host_77"),
            ],
            Grouping::Series,
        ),
        (
            "one metric by region",
            vec![Matcher::equal("__name__", "metric_7_usage")],
            Grouping::By(vec!["region".to_owned()]),
        ),
        (
            "one metric, all labels",
            vec![Matcher::equal("__name__", "metric_7_usage")],
            Grouping::Series,
        ),
        (
            "prefix, 10 hosts",
            vec![
                regex("hostname", MatchOp::Regex, "host_77.*"),
                Matcher::equal("__name__", "metric_7_usage"),
            ],
            Grouping::Series,
        ),
        (
            "infix regex",
            vec![
                regex("hostname", MatchOp::Regex, "h.*_[67]77.?"),
                regex("__name__", MatchOp::Regex, "metric_[12].*"),
            ],
            Grouping::Series,
        ),
        (
            "everything but one region",
            vec![regex("region", MatchOp::NotEqual, "region_3")],
            Grouping::By(vec!["region".to_owned()]),
        ),
    ];
    for (name, matchers, grouping) in cases {
        // The best of five, to exclude interference.
        let mut best_ms = f64::MAX;
        let mut counts = (0, 0);
        for _ in 0..5 {
            let start = Instant::now();
            let found =
                view.matches(&matchers, &grouping, &QueryContext::unbounded()).expect("matches");
            best_ms = best_ms.min(start.elapsed().as_secs_f64() * 1e3);
            counts = (found.series_count(), found.keys.len());
        }
        println!("  {name:26} {best_ms:8.3} ms, {} series, {} keys", counts.0, counts.1);
    }
}

fn resolve_all(index: &Index, hosts: usize, by_metric: bool) -> f64 {
    let mut out = Vec::new();
    each_batch(hosts, by_metric, |batch| {
        index.resolve(batch, &mut out);
        assert!(out.iter().all(Result::is_ok));
    })
}

/// Passes every series to `take` in batches of 1,000, by host or by metric. Returns the median
/// batch's nanoseconds per series, which other processes hardly affect.
fn each_batch(hosts: usize, by_metric: bool, mut take: impl FnMut(&[Labels])) -> f64 {
    let numbers: Vec<usize> = (0..hosts * METRICS).collect();
    let mut batch_ns: Vec<f64> = Vec::new();
    let mut batch = Vec::with_capacity(1_000);
    for numbers in numbers.chunks(1_000) {
        batch.clear();
        batch.extend(numbers.iter().map(|&n| match by_metric {
            true => labels(n % hosts, n / hosts),
            false => labels(n / METRICS, n % METRICS),
        }));
        let start = Instant::now();
        take(&batch);
        batch_ns.push(start.elapsed().as_nanos() as f64 / batch.len() as f64);
    }
    batch_ns.sort_by(f64::total_cmp);
    batch_ns[batch_ns.len() / 2]
}

fn labels(host: usize, metric: usize) -> Labels {
    // The cardinalities of TSBS' DevOps generator.
    let scattered = |salt: usize, count: usize| (host * 2_654_435_761 + salt * 40_503) / 64 % count;
    let values = [
        format!("x{}", scattered(1, 2)),
        format!("region_{}_{}", scattered(2, 9), scattered(3, 3)),
        format!("host_{host}"),
        format!("Ubuntu{}", scattered(4, 3)),
        format!("{}", scattered(5, 100)),
        format!("region_{}", scattered(2, 9)),
        format!("{}", scattered(6, 20)),
        ["production", "staging", "test"][scattered(7, 3)].to_owned(),
        format!("{}", scattered(8, 2)),
        ["SF", "NYC", "LON", "CHI"][scattered(9, 4)].to_owned(),
    ];
    let name = format!("metric_{metric}_usage");
    let tags = HOST_TAGS.into_iter().zip(values.iter().map(String::as_str));
    Labels::from_pairs(tags.chain([("__name__", name.as_str())])).expect("labels")
}
