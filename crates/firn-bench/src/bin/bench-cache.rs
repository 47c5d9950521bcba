//! Savings of the cache: the evaluation of TSCache (PVLDB 2021), sections 5.2 to 5.6, scaled down,
//! and a dashboard on FirnDB itself.
//!
//! The paper draws 100,000 queries. It states neither the number of keys nor the resolution of the
//! drawn times. So each hit ratio is printed beside that of an unlimited cache for the same
//! queries; the rest are first requests.
//!
//! `bench-cache [--only words]` runs the parts with names that begin with one of the words:
//! `chunks`, `policies`, `sizes`, `compaction`, `markers`, `index`, `parallel`, `prometheus`,
//! `influxdb`, `dashboard`.

use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use firn_bench::cache::bounds::{PointLru, unbounded_percent};
use firn_bench::cache::dashboard::{self, ServerRun};
use firn_bench::cache::policies::{ComparedPolicy, PolicyKind};
use firn_bench::cache::server::CacheServer;
use firn_bench::cache::{ChunkCache, INTERVAL_S, Mix, Query, Workload};
use firn_bench::client::{Connection, percent_encoded, post_all};
use firn_bench::index::process_cpu_ns;
use firn_bench::report::{Aim, finish};
use firn_bench::server::{Program, Server};
use firn_bench::tree::sets::{Series, Set};
use firn_cache::{Fill, Lookup, OwnerHistory, Point, SharedCache, Store, StoreOptions, StoreStats};
use firn_cache_client::{BreakEven, Client, Format, GetRequest};
use firn_codec::frame::crc32;
use firn_env::LocalDisk;
use firn_model::{Budget, CommitSeq, TimeRange};
use firn_sim::Rng;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Keys and points of the runs without a database: five months, as the paper's Trajectory has them.
const KEYS: usize = 100;
const POINTS: usize = 150 * 86_400 / INTERVAL_S as usize;
/// Bytes around a value in a JSON answer, `[1700000000,` and `],`: the paper's data and cache sizes
/// include them.
const JSON_POINT_BYTES: usize = 14;
const QUERIES: usize = 100_000;
/// The first of them fill the cache.
const WARM: usize = QUERIES / 5;
/// Small, so that a scaled cache has as many slabs as a large one: one of 1 MiB over 16 times the
/// data.
const SLAB_BYTES: u32 = 64 << 10;

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = match args.as_slice() {
        [flag, words] if flag == "--only" => words.split_whitespace().collect(),
        _ => Vec::new(),
    };
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.starts_with(word));
    let (start, mut aims) = (Instant::now(), Vec::new());
    let values = Values::read()?;
    if wanted("chunks") {
        chunks(&values)?;
    }
    if wanted("policies") {
        policies(&values, &mut aims)?;
    }
    if wanted("sizes") {
        sizes(&values, &mut aims)?;
    }
    if wanted("compaction") {
        compaction(&values)?;
    }
    if wanted("markers") {
        markers()?;
    }
    if wanted("index") {
        index()?;
    }
    if wanted("parallel") {
        parallel()?;
    }
    if wanted("prometheus") {
        database(Program::Prometheus, &values, &mut aims)?;
    }
    if wanted("influxdb") {
        database(Program::InfluxDb, &values, &mut aims)?;
    }
    if wanted("dashboard") {
        on_dashboard(&mut aims)?;
    }
    println!("all of it took {} s", start.elapsed().as_secs());
    finish("cache", &aims)
}

fn workload(seed: u64, mix: Mix, old_of_nine: u64) -> Workload {
    Workload::new(seed, KEYS, (POINTS, INTERVAL_S), mix, old_of_nine)
}

fn queries(workload: Workload) -> impl Iterator<Item = Query> {
    let mut workload = workload;
    (0..QUERIES).map(move |_| workload.draw())
}

/// The values of a public data set, repeated, as the texts that a JSON answer of Prometheus has.
struct Values {
    texts: Vec<String>,
}

impl Values {
    fn read() -> io::Result<Values> {
        let values: Vec<f64> = match Set::public("beijing_air") {
            Ok(set) => {
                set.series.iter().flat_map(|series| series.samples.iter().map(|s| s.1)).collect()
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                println!("the public data is absent: values are random");
                (0..10_000).map(|idx| f64::from(idx * 7_919 % 1_000) / 10.0).collect()
            }
            Err(e) => return Err(e),
        };
        Ok(Values { texts: values.iter().map(|value| format!("\"{value}\"")).collect() })
    }

    /// The value of a key's point.
    fn text(&self, key: usize, point: i64) -> &str {
        &self.texts[(point as usize * 31 + key * 977) % self.texts.len()]
    }

    /// Bytes of the points of `keys` keys in a JSON answer.
    fn json_bytes(&self, keys: usize, points: usize) -> usize {
        let text: usize = self.texts.iter().map(|text| text.len() + JSON_POINT_BYTES).sum();
        (text as f64 / self.texts.len() as f64 * (keys * points) as f64) as usize
    }
}

/// The paper's break-even (3.3): smaller parts are misses, so nearly all parts here are.
const BREAK_EVEN_BYTES: u64 = 512 << 10;

/// The result of `QUERIES` queries to a cache of `percent` of the data.
struct Run {
    /// Queries that were answered from the cache alone, percent.
    hit_percent: f64,
    /// Cached points as a share of all requested points.
    found_percent: f64,
    stats: StoreStats,
    cpu_ms: f64,
}

impl Run {
    fn new(
        values: &Values,
        percent: usize,
        options: StoreOptions,
        workload: Workload,
    ) -> io::Result<Run> {
        Run::with_policy(values, percent, options, None, workload)
    }

    /// Like [`Run::new`] with a policy for comparison; `None` is the policy of the product.
    fn with_policy(
        values: &Values,
        percent: usize,
        options: StoreOptions,
        policy: Option<PolicyKind>,
        workload: Workload,
    ) -> io::Result<Run> {
        let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
        let disk = Arc::new(LocalDisk::open(folder.path().to_owned()).map_err(io::Error::other)?);
        let options = StoreOptions {
            slab_bytes: SLAB_BYTES,
            flash_bytes_max: (values.json_bytes(KEYS, POINTS) / 100 * percent) as u64,
            waiting_slabs_max: 64,
            ..options
        };
        let budget = Budget::new(1 << 30);
        let slab_count_max = options.flash_bytes_max / u64::from(options.slab_bytes);
        let cache = match policy {
            None => SharedCache::open(disk, "keys", &budget, options, 1),
            Some(kind) => {
                let policy = Box::new(ComparedPolicy::new(kind, slab_count_max as usize));
                SharedCache::open_with_policy(disk, "keys", &budget, options, 1, policy)
            }
        };
        let cache = cache.map_err(io::Error::other)?;
        let cpu_ns = process_cpu_ns();
        let (mut hits, mut asked, mut absent) = (0, 0, 0);
        for (number, query) in queries(workload).enumerate() {
            let Query { key, first, last } = query;
            let text = format!("SELECT%20v%20FROM%20series{key}");
            let ask = Lookup {
                key: text.as_bytes(),
                field: 0,
                range: TimeRange::new(first, last),
                number: CommitSeq(0),
                partial_bytes_min: BREAK_EVEN_BYTES,
                bytes_max: u64::MAX,
            };
            let got = cache.get(&ask);
            let range = got.absent;
            if number >= WARM {
                hits += u64::from(range.is_empty());
                asked += query.point_count();
                absent += if range.is_empty() { 0 } else { range.end - range.start + 1 };
            }
            if !range.is_empty() {
                let point = |ts| Point { ts, head: None, payload: values.text(key, ts).as_bytes() };
                let points: Vec<Point<'_>> = (range.start..=range.end).map(point).collect();
                cache.set(text.as_bytes(), 0, range, &points).map_err(io::Error::other)?;
                while cache.work() {}
            }
        }
        Ok(Run {
            hit_percent: 100.0 * hits as f64 / (QUERIES - WARM) as f64,
            found_percent: 100.0 * (asked as f64 - absent as f64) / asked as f64,
            stats: cache.stats(),
            cpu_ms: (process_cpu_ns() - cpu_ns) as f64 / 1e6,
        })
    }

    fn written_per_set(&self) -> f64 {
        self.stats.written_bytes as f64 / self.stats.set_bytes as f64
    }
}

/// Percent of the queries after the warm-up for which `is_hit` holds.
fn percent_of(workload: Workload, mut is_hit: impl FnMut(Query) -> bool) -> f64 {
    let hits =
        queries(workload).enumerate().filter(|&(number, query)| is_hit(query) && number >= WARM);
    100.0 * hits.count() as f64 / (QUERIES - WARM) as f64
}

/// Hit ratios of an unlimited cache, and of one that keeps the most recently used points, `percent`
/// of all.
fn bounds(percent: usize, workload: impl Fn() -> Workload) -> (f64, f64) {
    let mut lru = PointLru::new(KEYS, POINTS, KEYS * POINTS / 100 * percent);
    let of_lru = percent_of(workload(), |query| lru.ask(query));
    (unbounded_percent(queries(workload()), WARM), of_lru)
}

/// The paper's 5.2: fixed chunks of 0.5 to 4 h, with the cache's room, for four mixes of lengths.
fn chunks(values: &Values) -> io::Result<()> {
    println!("hit ratio in percent, cache 10 % of the data; then objects requested per query");
    println!(
        "{:<22}{:>8}{:>12}{:>16}{:>16}{:>16}{:>16}",
        "", "firn", "no limit", "0.5 h", "1 h", "2 h", "4 h"
    );
    let hour = 3_600 / INTERVAL_S as usize;
    for (name, mix) in [
        ("full: 1 min to 7 d", Mix::Full),
        ("small: 1 min to 1 h", Mix::Small),
        ("medium: 1 h to 1 d", Mix::Medium),
        ("large: 1 d to 7 d", Mix::Large),
    ] {
        let run = Run::new(values, 10, StoreOptions::default(), workload(1, mix, 0))?;
        let unbounded = unbounded_percent(queries(workload(1, mix, 0)), WARM);
        print!("{name:<22}{:>8.1}{unbounded:>12.1}", run.hit_percent);
        for chunk_points in [hour / 2, hour, 2 * hour, 4 * hour] {
            let mut cache = ChunkCache::new(chunk_points as i64, KEYS * POINTS / 10);
            let percent = percent_of(workload(1, mix, 0), |query| cache.ask(query));
            print!("{percent:>8.1}{:>8.1}", cache.requests as f64 / QUERIES as f64);
        }
        println!();
    }
    Ok(())
}

/// The paper's 5.5: queries to the newest data against queries to an old month.
fn policies(values: &Values, aims: &mut Vec<Aim>) -> io::Result<()> {
    const PERCENT: usize = 4;
    println!(
        "\nhit ratio in percent by policy, bytes written per byte set; new : old, cache {PERCENT} % of the data"
    );
    println!(
        "{:<8}{:>16}{:>16}{:>14}{:>14}{:>20}{:>14}{:>14}{:>10}{:>12}",
        "",
        "FIFO, arrival",
        "FIFO, by time",
        "LRU",
        "S3-FIFO",
        "paper's partitions",
        "ranges",
        "LRU partition",
        "point LRU",
        "no limit"
    );
    for (name, old_of_nine) in
        [("8:1", 1), ("6:3", 3), ("5:4", 4), ("4:5", 5), ("3:6", 6), ("1:8", 8)]
    {
        print!("{name:<8}");
        let mut percents = Vec::new();
        for (policy, merges, width) in [
            (Some(PolicyKind::Fifo), false, 16),
            (Some(PolicyKind::Fifo), true, 16),
            (Some(PolicyKind::Lru), true, 14),
            (Some(PolicyKind::S3Fifo), true, 14),
            (Some(PolicyKind::TwoPartitions), true, 20),
            (None, true, 14),
        ] {
            let usual = StoreOptions::default();
            // Without merging, slabs are evicted in order of arrival; with it, in order of time.
            let compaction_trigger = if merges { usual.compaction_trigger } else { usize::MAX };
            let options = StoreOptions { compaction_trigger, ..usual };
            let run = Run::with_policy(
                values,
                PERCENT,
                options,
                policy,
                workload(2, Mix::Full, old_of_nine),
            )?;
            print!("{:>width$}", format!("{:.1} {:.1}", run.hit_percent, run.written_per_set()));
            percents.push(run.hit_percent);
            if policy.is_none() {
                let policy = run.stats.policy;
                let slabs = (policy.fifo_slabs + policy.lru_slabs).max(1);
                print!("{:>12.0} %", 100.0 * policy.lru_slabs_max as f64 / slabs as f64);
            }
        }
        let (unbounded, of_lru) = bounds(PERCENT, || workload(2, Mix::Full, old_of_nine));
        println!("{of_lru:>10.1}{unbounded:>12.1}");
        if old_of_nine == 8 {
            for (fifo, order) in [(percents[1], "time, as in the paper"), (percents[0], "arrival")]
            {
                aims.push(Aim {
                    name: format!("1:8: points missing to 17.4 above FIFO by {order}"),
                    figure: 17.4 - (percents[5] - fifo),
                    at_most: 0.0,
                });
            }
        }
    }
    Ok(())
}

/// The paper's figure 11.
fn sizes(values: &Values, aims: &mut Vec<Aim>) -> io::Result<()> {
    println!(
        "\n{:<16}{:>8}{:>14}{:>12}{:>16}{:>12}{:>12}",
        "cache, percent",
        "hits",
        "points found",
        "read, MB",
        "written / set",
        "point LRU",
        "no limit"
    );
    for percent in [4, 6, 8, 10] {
        let run = Run::new(values, percent, StoreOptions::default(), workload(3, Mix::Full, 0))?;
        let (unbounded, of_lru) = bounds(percent, || workload(3, Mix::Full, 0));
        println!(
            "{percent:<16}{:>7.1}%{:>13.1}%{:>12.0}{:>16.2}{of_lru:>11.1}%{unbounded:>11.1}%",
            run.hit_percent,
            run.found_percent,
            run.stats.read_bytes as f64 / 1e6,
            run.written_per_set()
        );
        if percent == 10 {
            aims.push(Aim {
                name: "10 % of the data: queries that miss, %".into(),
                figure: 100.0 - run.hit_percent,
                at_most: 8.0,
            });
        }
    }
    Ok(())
}

/// TSCache's figure 13: the bytes of markers in a slab's header, and the extra bytes that readers
/// read. The marker size is a constant of the format, so the reads are simulated here: ranges in
/// slabs of 1 MiB, with points as large as the paper's.
fn markers() -> io::Result<()> {
    const SLABS: usize = 64;
    const SLAB: usize = 1 << 20;
    const POINT_BYTES: usize = 54;
    const MARKER_BYTES: usize = 18;
    const ASKED: usize = 20_000;
    let mut file = tempfile::tempfile()?;
    let piece: Vec<u8> = (0..SLAB).map(|at| ((at * 7_919) >> 5) as u8).collect();
    for _ in 0..SLABS {
        file.write_all(&piece)?;
    }
    println!(
        "\n{:<16}{:>16}{:>18}{:>14}",
        "a marker for", "header, bytes", "read / wanted", "us a read"
    );
    for block in [256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, SLAB] {
        let (mut rng, mut lengths) = (Rng::new(7), workload(7, Mix::Full, 0));
        let (mut wanted, mut read, mut sum) = (0, 0, 0_u32);
        let mut bytes = vec![0; SLAB];
        let begun = Instant::now();
        for _ in 0..ASKED {
            let len = (lengths.draw().point_count() as usize * POINT_BYTES).min(SLAB);
            let start = rng.below((SLAB - len + 1) as u64) as usize;
            let first = start / block * block;
            let end = (start + len).next_multiple_of(block).min(SLAB);
            let slab = rng.below(SLABS as u64) as usize * SLAB;
            file.read_exact_at(&mut bytes[..end - first], (slab + first) as u64)?;
            for block in bytes[..end - first].chunks(block) {
                sum ^= crc32(block);
            }
            (wanted, read) = (wanted + len, read + end - first);
        }
        let us = begun.elapsed().as_secs_f64() * 1e6 / ASKED as f64;
        std::hint::black_box(sum);
        let name = if block == SLAB { "a slab".into() } else { format!("{block} B") };
        println!(
            "{name:<16}{:>16}{:>18.2}{us:>14.1}",
            SLAB / block * MARKER_BYTES,
            read as f64 / wanted as f64
        );
    }
    Ok(())
}

/// The structures that replace the paper's skip list and filters (section 3.4): an ordered map of a
/// key's ranges, and the exact keys of a slab.
fn index() -> io::Result<()> {
    const ASKED: u64 = 200_000;
    println!("\n{:<24}{:>14}{:>14}", "ranges of a key", "us to set", "ns to find");
    for ranges in [10, 1_000, 100_000] {
        let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
        let disk = Arc::new(LocalDisk::open(folder.path().to_owned()).map_err(io::Error::other)?);
        let (budget, options) = (Budget::new(1 << 30), StoreOptions::default());
        let store = Store::open(disk, "index", &budget, options, OwnerHistory::IMMUTABLE);
        let store = store.map_err(io::Error::other)?;
        // The time between two ranges is unknown, so they stay separate.
        let range = |number: i64| TimeRange::new(number * 10, number * 10 + 4);
        let begun = Instant::now();
        for number in 0..ranges {
            let points = [Point { ts: number * 10, head: None, payload: b"12.5" }];
            let (range, note) = (range(number * 7_919 % ranges), &b""[..]);
            let points = points.map(|point| Point { ts: range.start, ..point });
            let number = CommitSeq(0);
            store.set(&Fill { key: b"k", field: 0, range, number, note, points: &points });
        }
        let set_us = begun.elapsed().as_secs_f64() * 1e6 / ranges as f64;
        let (mut rng, mut missing) = (Rng::new(9), 0);
        let begun = Instant::now();
        for _ in 0..ASKED {
            let ask = Lookup {
                key: b"k",
                field: 0,
                range: range(rng.below(ranges as u64) as i64),
                number: CommitSeq(0),
                partial_bytes_min: 0,
                bytes_max: u64::MAX,
            };
            missing += u64::from(!store.missing(&ask).is_empty());
        }
        let find_ns = begun.elapsed().as_secs_f64() * 1e9 / ASKED as f64;
        assert_eq!(missing, 0, "all of them were set");
        println!("{ranges:<24}{set_us:>14.2}{find_ns:>14.0}");
    }
    println!("\n{:<24}{:>34}", "keys of a slab", "a filter of 64 bits passes others, %");
    for keys in [8, 32, 128, 512] {
        let mut rng = Rng::new(11);
        let mut passed = 0;
        for _ in 0..1_000 {
            let filter = (0..keys).fold(0_u64, |bits, _| bits | 1 << rng.below(64));
            passed += filter.count_ones();
        }
        println!("{keys:<24}{:>34.1}", f64::from(passed) / 640.0);
    }
    Ok(())
}

/// The paper's figure 17.
fn compaction(values: &Values) -> io::Result<()> {
    println!(
        "\n{:<16}{:>8}{:>14}{:>14}{:>12}",
        "merged beyond", "hits", "slabs merged", "written, MB", "CPU, s"
    );
    for trigger in [2, 4, 8, 16, 32, 64, usize::MAX] {
        let options = StoreOptions { compaction_trigger: trigger, ..StoreOptions::default() };
        let run = Run::new(values, 10, options, workload(4, Mix::Full, 0))?;
        let name = if trigger == usize::MAX { "never".into() } else { format!("{trigger} slabs") };
        println!(
            "{name:<16}{:>7.1}%{:>14}{:>14.0}{:>12.2}",
            run.hit_percent,
            run.stats.slabs_compacted,
            run.stats.written_bytes as f64 / 1e6,
            run.cpu_ms / 1e3
        );
    }
    Ok(())
}

/// The paper's 5.4.2: eight fields of a key, one after the other and in parallel.
fn parallel() -> io::Result<()> {
    const FIELDS: u8 = 8;
    const ROUNDS: i64 = 400;
    let server = CacheServer::start(&["--size=256MiB"])?;
    let mut client = server.client();
    // More than the cache buffers in memory, so that reads come from the file.
    let value = vec![b'7'; 1_000];
    for part in 0..24 {
        let range = (part * 1_000, part * 1_000 + 999);
        let points = (range.0..=range.1).map(|ts| (ts, &*value));
        let points = firn_cache_client::encode_points(points);
        for field in 0..FIELDS {
            while client
                .set("k", field, range, Format::Binary, &points)
                .map_err(io::Error::other)?
                != Some(range)
            {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    let question = |field, round: i64| {
        let start = round * 53 % 20_000;
        let range = (start, start + 199);
        GetRequest { key: "k", field, range, format: Format::Binary, part_bytes_min: None }
    };
    let begun = Instant::now();
    for round in 0..ROUNDS {
        for field in 0..FIELDS {
            for found in client.get_many(&[question(field, round)]) {
                assert!(found.map_err(io::Error::other)?.missing.is_none());
            }
        }
    }
    let alone_ms = begun.elapsed().as_secs_f64() * 1e3 / ROUNDS as f64;
    let begun = Instant::now();
    for round in 0..ROUNDS {
        let questions: Vec<GetRequest<'_>> =
            (0..FIELDS).map(|field| question(field, round)).collect();
        for found in client.get_many(&questions) {
            assert!(found.map_err(io::Error::other)?.missing.is_none());
        }
    }
    let together_ms = begun.elapsed().as_secs_f64() * 1e3 / ROUNDS as f64;
    println!(
        "\neight fields of 200 kB each: {alone_ms:.2} ms one after the other, {together_ms:.2} ms in parallel ({:+.0} %)",
        100.0 * (together_ms / alone_ms - 1.0)
    );
    Ok(())
}

/// Keys and points in a database; a point is one of a public data set, repeated. Prometheus returns
/// at most 11,000 points of a series: a week of minutes.
const DB_KEYS: usize = 100;
const DB_INTERVAL_S: i64 = 60;
const DB_POINTS: usize = 120 * 86_400 / DB_INTERVAL_S as usize;
/// The last point in seconds, a multiple of the interval.
const DB_END_S: i64 = 1_700_000_100 / DB_INTERVAL_S * DB_INTERVAL_S;
const DB_MEMORY_BYTES_MAX: u64 = 2 << 30;

/// The paper's sections 5.2 and 5.3: the same queries to a real database alone, and through the
/// cache.
fn database(program: Program, values: &Values, aims: &mut Vec<Aim>) -> io::Result<()> {
    let name = program.name();
    if program.path().is_none() {
        println!("\nskipped: {name} is not installed; `make deps` installs it");
        return Ok(());
    }
    let database = program.start_within(DB_MEMORY_BYTES_MAX)?;
    if program == Program::InfluxDb {
        Connection::open(database.address).post("/query?q=CREATE%20DATABASE%20d", b"");
    }
    let begun = Instant::now();
    load(program, &database, values)?;
    let loaded_s = begun.elapsed().as_secs();
    database.wait_until_quiet();
    let flash_bytes = (values.json_bytes(DB_KEYS, DB_POINTS) / 10).max(8 << 20);
    println!(
        "\n{name} alone and behind the cache (10 % of the data), full workload; {DB_POINTS} points of {DB_KEYS} keys, {} MB as JSON, \
         {} MB as {name} keeps them, loaded in {loaded_s} s",
        values.json_bytes(DB_KEYS, DB_POINTS) / 1_000_000,
        database.data_bytes() / 1_000_000,
    );
    println!(
        "{:<10}{:>12}{:>12}{:>12}{:>12}{:>10}{:>10}{:>12}{:>12}",
        "clients",
        "alone, ms",
        "cached, ms",
        "alone, MB/s",
        "cached",
        "hits",
        "parts",
        "CPU alone",
        "cached"
    );
    for clients in [1, 8, 64] {
        let server = CacheServer::start(&[&format!("--size={flash_bytes}")])?;
        let all = QUERIES / 5;
        let arm = |cache, seed, count| run_queries(program, &database, cache, clients, seed, count);
        arm(Some(&server), 5, 2 * all)?;
        let cpu_s = database.cpu_s() + server.cpu_s();
        let cached = arm(Some(&server), 6, all)?;
        let cached_cpu_s = database.cpu_s() + server.cpu_s() - cpu_s;
        let cpu_s = database.cpu_s();
        let alone = arm(None, 6, all / 4)?;
        let alone_cpu_s = (database.cpu_s() - cpu_s) * 4.0;
        let (bandwidth, alone_bandwidth) = (cached.bandwidth(), alone.bandwidth());
        println!(
            "{clients:<10}{:>12.3}{:>12.3}{:>12.1}{bandwidth:>12.1}{:>9.1}%{:>9.1}%{alone_cpu_s:>10.1} s{cached_cpu_s:>10.1} s",
            alone.latency_ms,
            cached.latency_ms,
            alone_bandwidth,
            cached.hit_percent,
            cached.part_percent
        );
        // The paper's figures are those of 64 clients.
        if clients == 64 {
            aims.push(Aim {
                name: format!("{name}, 64 clients: latency, % of no cache"),
                figure: 100.0 * cached.latency_ms / alone.latency_ms,
                at_most: 15.8,
            });
            aims.push(Aim {
                name: format!("{name}, 64 clients: time per byte, 1 / 6.7 of no cache"),
                figure: alone_bandwidth / bandwidth,
                at_most: 1.0 / 6.7,
            });
            aims.push(Aim {
                name: format!("{name}, 64 clients: queries that miss, %"),
                figure: 100.0 - cached.hit_percent,
                at_most: 8.0,
            });
        }
    }
    println!(
        "{name} held {} MB of memory at most, of {} MB that it may have",
        database.peak() >> 20,
        DB_MEMORY_BYTES_MAX >> 20
    );
    Ok(())
}

/// Writes the series in the order of time, as databases want them.
fn load(program: Program, database: &Server, values: &Values) -> io::Result<()> {
    // Two hours at a time: a block of Prometheus' head.
    let part = 7_200 / DB_INTERVAL_S as usize;
    for first in (0..DB_POINTS).step_by(part) {
        let series = (0..DB_KEYS).map(|key| Series {
            pairs: vec![("__name__".into(), "air".into()), ("station".into(), format!("s{key}"))],
            samples: (first..(first + part).min(DB_POINTS))
                .map(|idx| {
                    let value = values.text(key, idx as i64).trim_matches('"').parse();
                    (time_s(idx as i64) * 1_000, value.unwrap_or(f64::NAN))
                })
                .collect(),
        });
        let set = Set { series: series.collect() };
        post_all(database.address, program.write_path(), &set.requests(), 1);
    }
    Ok(())
}

fn time_s(point: i64) -> i64 {
    DB_END_S - (DB_POINTS as i64 - 1 - point) * DB_INTERVAL_S
}

struct QueryOutcome {
    latency_ms: f64,
    seconds: f64,
    bytes: usize,
    hit_percent: f64,
    /// Queries of which a part came from the cache.
    part_percent: f64,
}

impl QueryOutcome {
    fn bandwidth(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }
}

/// Runs `count` queries from `clients` clients, through the cache if there is one.
fn run_queries(
    program: Program,
    database: &Server,
    cache: Option<&CacheServer>,
    clients: usize,
    seed: u64,
    count: usize,
) -> io::Result<QueryOutcome> {
    let points = (DB_POINTS, DB_INTERVAL_S);
    let mut workload = Workload::new(seed, DB_KEYS, points, Mix::Full, 0);
    let queries: Vec<Query> = (0..count).map(|_| workload.draw()).collect();
    let (next, hits, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let (parts, even) = (AtomicUsize::new(0), Mutex::new(BreakEven::default()));
    let begun = Instant::now();
    let took: Vec<Duration> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..clients)
            .map(|_| {
                scope.spawn(|| {
                    let mut database = Connection::open(database.address);
                    let mut client = cache.map(CacheServer::client);
                    let mut took = Duration::ZERO;
                    while let Some(query) = queries.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let asked = Instant::now();
                        let cache = client.as_mut().map(|client| (client, &even));
                        let (answer, found) = run_query(program, &mut database, cache, query);
                        took += asked.elapsed();
                        let all = found == answer;
                        hits.fetch_add(usize::from(all), Ordering::Relaxed);
                        parts.fetch_add(usize::from(!all && found > 0), Ordering::Relaxed);
                        bytes.fetch_add(answer, Ordering::Relaxed);
                    }
                    took
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a client panicked")).collect()
    });
    Ok(QueryOutcome {
        latency_ms: took.iter().sum::<Duration>().as_secs_f64() * 1e3 / count as f64,
        seconds: begun.elapsed().as_secs_f64(),
        bytes: bytes.into_inner(),
        hit_percent: 100.0 * hits.into_inner() as f64 / count as f64,
        part_percent: 100.0 * parts.into_inner() as f64 / count as f64,
    })
}

/// The sequence of the paper's figure 1: look up the cache, query the database for the missing
/// part, store it in the cache. Partial hits are used from a size that is measured at run time.
/// Returns the bytes of the answer and how many of them were cached.
fn run_query(
    program: Program,
    database: &mut Connection,
    cache: Option<(&mut Client, &Mutex<BreakEven>)>,
    query: &Query,
) -> (usize, usize) {
    let key = query.key;
    let statement = match program {
        Program::InfluxDb => format!("SELECT value FROM air WHERE station='s{key}'"),
        _ => format!("air{{station=\"s{key}\"}}"),
    };
    let range = (time_s(query.first), time_s(query.last));
    let ask = |database: &mut Connection, (start, end): (i64, i64)| {
        let target = match program {
            Program::InfluxDb => {
                let statement = format!("{statement} AND time>={start}s AND time<={end}s");
                format!("/query?db=d&epoch=s&q={}", percent_encoded(&statement))
            }
            _ => format!(
                "/api/v1/query_range?query={}&start={start}&end={end}&step={DB_INTERVAL_S}",
                percent_encoded(&statement)
            ),
        };
        values(database.get(&target)).to_vec()
    };
    let Some((cache, even)) = cache else { return (ask(database, range).len(), 0) };
    let even = || even.lock().expect("no client panicked");
    let key = firn_cache_client::key_of(&statement).expect("a short statement");
    let least = Some(even().next_bytes_min());
    let question =
        GetRequest { key: &key, field: 0, range, format: Format::Json, part_bytes_min: least };
    let begun = Instant::now();
    let found = cache.get_many(&[question]).pop().expect("an answer");
    let found = found.expect("the cache answers");
    // `[]` is a miss.
    let found_bytes = if found.value.len() > 2 { found.value.len() } else { 0 };
    if found_bytes > 0 {
        even().record_lookup(value_bytes(&found.value), begun.elapsed());
    }
    let Some((missing, absent)) = found.missing.zip(found.absent) else {
        return (found_bytes, found_bytes);
    };
    let begun = Instant::now();
    let new = ask(database, missing);
    even().record_computed(value_bytes(&new), begun.elapsed());
    let told = if absent == missing { new.clone() } else { within(&new, absent) };
    cache.set(&key, 0, absent, Format::Json, &told).expect("the cache answers");
    (found_bytes + new.len(), found_bytes)
}

/// Bytes of the values alone in a list of points, as the cache counts them.
fn value_bytes(points: &[u8]) -> u64 {
    let count = points.iter().filter(|&&byte| byte == b'[').count().saturating_sub(1);
    points.len().saturating_sub(count * JSON_POINT_BYTES) as u64
}

/// The points of a list inside a range.
fn within(points: &[u8], (start, end): (i64, i64)) -> Vec<u8> {
    let text = String::from_utf8_lossy(points);
    let time = |point: &str| point.split(',').next().and_then(|ts| ts.parse::<i64>().ok());
    let points = text.trim_matches(['[', ']']).split("],[");
    let points = points.filter(|point| time(point).is_some_and(|ts| start <= ts && ts <= end));
    let points: Vec<String> = points.map(|point| format!("[{point}]")).collect();
    format!("[{}]", points.join(",")).into_bytes()
}

/// The list of points in the answer, which has one series: `[[time,"value"],...]`.
fn values(answer: &[u8]) -> &[u8] {
    let find = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).position(|w| w == text);
    let Some(start) = find(answer, b"\"values\":").map(|at| at + 9) else { return b"[]" };
    // The only series' list ends last.
    let len = answer[start..].windows(2).rposition(|w| w == b"]]").map_or(0, |at| at + 2);
    &answer[start..start + len]
}

/// Twenty panels over windows that slide, in FirnDB itself.
fn on_dashboard(aims: &mut Vec<Aim>) -> io::Result<()> {
    let figures = dashboard::measure().map_err(io::Error::other)?;
    println!(
        "\ndashboard: {:.2} ms of CPU per refresh computed, {:.2} ms with the cache ({:.1} times less), first {:.0} ms; steps hit \
         {:.2} %",
        figures.computed_ms,
        figures.cached_ms,
        figures.computed_ms / figures.cached_ms,
        figures.first_ms,
        figures.step_percent
    );
    let (shared_ms, alone_ms) = dashboard::measure_sharing().map_err(io::Error::other)?;
    println!(
        "three quantiles of one histogram of 500 series: {shared_ms:.2} ms of CPU per refresh with the cache, of three histograms \
         {alone_ms:.2} ms ({:.1} times as much)",
        alone_ms / shared_ms
    );
    for encoding in ["", "gzip"] {
        let run = ServerRun { result_cache: "0", encoding, has_proxy: false };
        let [computed_ms, _] = dashboard::measure_server(run)?;
        let [cached_ms, _] = dashboard::measure_server(ServerRun { result_cache: "1GiB", ..run })?;
        let [origin_ms, proxy_ms] =
            dashboard::measure_server(ServerRun { has_proxy: true, ..run })?;
        let name = if encoding.is_empty() { "plain" } else { encoding };
        println!(
            "the same dashboard through a server, with HTTP and JSON, {name}: {computed_ms:.1} ms \
             of CPU per refresh computed, {cached_ms:.1} ms with the cache (ratio {:.2}), {:.1} ms \
             with a proxy in front ({proxy_ms:.1} ms of it the proxy)",
            cached_ms / computed_ms,
            origin_ms + proxy_ms,
        );
        aims.push(Aim {
            name: format!("dashboard through a server, {name}: CPU with the cache / computed"),
            figure: cached_ms / computed_ms,
            at_most: 0.2,
        });
    }
    aims.push(Aim {
        name: "dashboard: CPU with the cache / computed".into(),
        figure: figures.cached_ms / figures.computed_ms,
        at_most: 0.2,
    });
    aims.push(Aim {
        name: "dashboard: lookups that miss, %".into(),
        figure: 100.0 - figures.hit_percent,
        at_most: 10.0,
    });
    Ok(())
}
