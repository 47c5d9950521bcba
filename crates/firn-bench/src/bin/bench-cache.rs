//! What the cache saves: TSCache's evaluation (sections 5.2 to 5.6), scaled, and a dashboard on FirnDB itself.
//!
//! `bench-cache [--only words]` runs the parts whose names begin with one of the words: `chunks`, `policies`, `sizes`,
//! `compaction`, `parallel`, `prometheus`, `dashboard`.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use firn_bench::cache::{ChunkCache, INTERVAL_S, Query, WEEK_POINTS, Workload, dashboard};
use firn_bench::client::{Connection, percent_encoded, post_all};
use firn_bench::index::process_cpu_ns;
use firn_bench::report::{Aim, finish};
use firn_bench::server::{Program, Server};
use firn_bench::tree::sets::{Series, Set};
use firn_cache::{Ask, Point, PolicyKind, SharedCache, StoreOptions, StoreStats};
use firn_cache_client::{Client, Format, Options, Question};
use firn_env::LocalDisk;
use firn_model::{Budget, CommitSeq, TimeRange};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Keys and points of the runs without a database: five months, as the paper's Trajectory has them.
const KEYS: usize = 200;
const POINTS: usize = 150 * 86_400 / INTERVAL_S as usize;
/// A point in a JSON answer, `[1700000000,"123.456"],`: what the paper's sizes of data count.
const POINT_BYTES: usize = 24;
const QUERIES: usize = 40_000;
/// Small, so that a scaled cache has as many slabs as a large one.
const SLAB_BYTES: u32 = 64 << 10;

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = match args.as_slice() {
        [flag, words] if flag == "--only" => words.split_whitespace().collect(),
        _ => Vec::new(),
    };
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.starts_with(word));
    let (start, mut aims) = (Instant::now(), Vec::new());
    if wanted("chunks") {
        chunks()?;
    }
    if wanted("policies") {
        policies(&mut aims)?;
    }
    if wanted("sizes") {
        sizes(&mut aims)?;
    }
    if wanted("compaction") {
        compaction()?;
    }
    if wanted("parallel") {
        parallel()?;
    }
    if wanted("prometheus") {
        prometheus(&mut aims)?;
    }
    if wanted("dashboard") {
        on_dashboard(&mut aims)?;
    }
    println!("all of it took {} s", start.elapsed().as_secs());
    finish("cache", &aims)
}

fn full(seed: u64, old_of_nine: u64) -> Workload {
    Workload::new(seed, KEYS, POINTS, (1, WEEK_POINTS), old_of_nine)
}

/// The paper's break-even (3.3): smaller parts are misses, so all parts here are.
const BREAK_EVEN_BYTES: u64 = 512 << 10;

/// A cache of `percent` of the data, asked `QUERIES` times.
struct Run {
    /// Queries that were answered from the cache alone.
    hit_percent: f64,
    /// Points that the cache gave, of all that were asked for.
    found_percent: f64,
    stats: StoreStats,
    cpu_ms: f64,
}

impl Run {
    fn new(percent: usize, options: StoreOptions, workload: Workload) -> io::Result<Run> {
        Run::with_parts(percent, options, workload, BREAK_EVEN_BYTES)
    }

    fn with_parts(
        percent: usize,
        options: StoreOptions,
        mut workload: Workload,
        partial_bytes_min: u64,
    ) -> io::Result<Run> {
        let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
        let disk = Arc::new(LocalDisk::open(folder.path().to_owned()).map_err(io::Error::other)?);
        let options = StoreOptions {
            slab_bytes: SLAB_BYTES,
            flash_bytes_max: (KEYS * POINTS * POINT_BYTES / 100 * percent) as u64,
            waiting_slabs_max: 64,
            ..options
        };
        let budget = Budget::new(1 << 30);
        let cache =
            SharedCache::open(disk, "keys", &budget, options, 1).map_err(io::Error::other)?;
        let cpu_ns = process_cpu_ns();
        let (mut hits, mut asked, mut missed) = (0, 0, 0);
        // The first fifth fills the cache.
        let warm = QUERIES / 5;
        for number in 0..QUERIES {
            let Query { key, first, last } = workload.draw();
            // Unlike those of other keys: equal points of several keys are stored once.
            let payload = format!("{key:0POINT_BYTES$}");
            let key = format!("SELECT%20v%20FROM%20series{key}");
            let range = TimeRange::new(first, last);
            let ask = Ask {
                key: key.as_bytes(),
                field: 0,
                range,
                number: CommitSeq(0),
                partial_bytes_min,
                bytes_max: u64::MAX,
            };
            let got = cache.get(&ask);
            let is_hit = got.missing.is_empty();
            if number >= warm {
                hits += u64::from(is_hit);
                asked += last - first + 1;
                missed += if is_hit { 0 } else { got.missing.end - got.missing.start + 1 };
            }
            if !is_hit {
                let payload = payload.as_bytes();
                let times = got.missing.start..=got.missing.end;
                let points: Vec<Point<'_>> =
                    times.map(|ts| Point { ts, head: None, payload }).collect();
                cache.set(key.as_bytes(), 0, got.missing, &points).map_err(io::Error::other)?;
                while cache.work() {}
            }
        }
        Ok(Run {
            hit_percent: 100.0 * hits as f64 / (QUERIES - warm) as f64,
            found_percent: 100.0 * (asked - missed) as f64 / asked as f64,
            stats: cache.stats(),
            cpu_ms: (process_cpu_ns() - cpu_ns) as f64 / 1e6,
        })
    }
}

/// The paper's 5.2: fixed chunks of 0.5 to 4 h, with the cache's room, for four mixes of lengths.
fn chunks() -> io::Result<()> {
    println!(
        "hit ratio in percent, cache 10 % of the data; behind it objects asked for by each query"
    );
    println!("{:<22}{:>8}{:>16}{:>16}{:>16}{:>16}", "", "firn", "0.5 h", "1 h", "2 h", "4 h");
    let hour = 3_600 / INTERVAL_S as usize;
    for (name, lengths) in [
        ("full: 5 min to 7 d", (1, WEEK_POINTS)),
        ("small: 5 min to 2 h", (1, 2 * hour)),
        ("medium: 2 h to 1 d", (2 * hour, 24 * hour)),
        ("large: 1 d to 7 d", (24 * hour, WEEK_POINTS)),
    ] {
        let workload = || Workload::new(1, KEYS, POINTS, lengths, 0);
        let run = Run::new(10, StoreOptions::default(), workload())?;
        print!("{name:<22}{:>8.1}", run.hit_percent);
        for chunk_points in [hour / 2, hour, 2 * hour, 4 * hour] {
            let (mut cache, mut workload) =
                (ChunkCache::new(chunk_points as i64, KEYS * POINTS / 10), workload());
            let warm = QUERIES / 5;
            let hits = (0..QUERIES).filter(|&number| {
                let is_hit = cache.ask(workload.draw());
                is_hit && number >= warm
            });
            let percent = 100.0 * hits.count() as f64 / (QUERIES - warm) as f64;
            print!("{percent:>8.1}{:>8.1}", cache.requests as f64 / QUERIES as f64);
        }
        println!();
    }
    Ok(())
}

/// The paper's 5.5: queries to the newest data against queries to an old month.
fn policies(aims: &mut Vec<Aim>) -> io::Result<()> {
    println!("\nhit ratio in percent by policy; new : old, cache 4 % of the data");
    println!(
        "{:<8}{:>8}{:>8}{:>9}{:>10}{:>14}",
        "", "FIFO", "LRU", "S3-FIFO", "this one", "LRU partition"
    );
    for (name, old_of_nine) in
        [("8:1", 1), ("6:3", 3), ("5:4", 4), ("4:5", 5), ("3:6", 6), ("1:8", 8)]
    {
        let run = |policy| {
            let options = StoreOptions { policy, ..StoreOptions::default() };
            Run::new(4, options, full(2, old_of_nine))
        };
        let fifo = run(PolicyKind::Fifo)?.hit_percent;
        let lru = run(PolicyKind::Lru)?.hit_percent;
        let s3_fifo = run(PolicyKind::S3Fifo)?.hit_percent;
        let own = run(PolicyKind::TwoPartitions)?;
        let policy = own.stats.policy;
        let share = 100.0 * policy.lru_slabs_max as f64
            / (policy.fifo_slabs + policy.lru_slabs).max(1) as f64;
        let own = own.hit_percent;
        println!("{name:<8}{fifo:>8.1}{lru:>8.1}{s3_fifo:>9.1}{own:>10.1}{share:>12.0} %");
        if old_of_nine == 8 {
            aims.push(Aim {
                name: "1:8: points missing to 17.4 above FIFO".into(),
                figure: 17.4 - (own - fifo),
                at_most: 0.0,
            });
        }
    }
    Ok(())
}

/// The paper's figure 11.
fn sizes(aims: &mut Vec<Aim>) -> io::Result<()> {
    println!(
        "\n{:<16}{:>8}{:>14}{:>12}{:>16}{:>22}{:>14}",
        "cache, percent",
        "hits",
        "points found",
        "read, MB",
        "written / set",
        "parts used too: hits",
        "points found"
    );
    for percent in [4, 6, 8, 10] {
        let run = Run::new(percent, StoreOptions::default(), full(3, 0))?;
        let parts = Run::with_parts(percent, StoreOptions::default(), full(3, 0), 0)?;
        let stats = run.stats;
        println!(
            "{percent:<16}{:>7.1}%{:>13.1}%{:>12.0}{:>16.2}{:>21.1}%{:>13.1}%",
            run.hit_percent,
            run.found_percent,
            stats.read_bytes as f64 / 1e6,
            stats.written_bytes as f64 / stats.set_bytes as f64,
            parts.hit_percent,
            parts.found_percent
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

/// The paper's figure 17.
fn compaction() -> io::Result<()> {
    println!(
        "\n{:<16}{:>8}{:>14}{:>14}{:>12}",
        "merged beyond", "hits", "slabs merged", "written, MB", "CPU, s"
    );
    for trigger in [2, 4, 8, 16, 32, 64, usize::MAX] {
        let options = StoreOptions { compaction_trigger: trigger, ..StoreOptions::default() };
        let run = Run::new(10, options, full(4, 0))?;
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

/// A running `firn cache`; killed when dropped.
struct CacheServer {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl CacheServer {
    fn start(flash_bytes: usize) -> io::Result<CacheServer> {
        let path = Program::Firn.path().ok_or(io::ErrorKind::NotFound)?;
        let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let child = Command::new(path)
            .args(["cache", "--listen", &address.to_string(), "--size", &flash_bytes.to_string()])
            .arg("--data")
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let server = CacheServer { child, address, _folder: folder };
        let begun = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            if begun.elapsed() > Duration::from_secs(30) {
                return Err(io::Error::other("firn cache does not listen within 30 s"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    fn client(&self) -> Client {
        Client::new(&[&self.address.to_string()], Options::default()).expect("a server")
    }

    fn cpu_s(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let stat = stat.unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split(' ').collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
        (ticks(12).unwrap_or(0.0) + ticks(13).unwrap_or(0.0)) / 100.0
    }
}

impl Drop for CacheServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The paper's 5.4.2: eight fields of a key, one behind the other and side by side.
fn parallel() -> io::Result<()> {
    const FIELDS: u8 = 8;
    const ROUNDS: i64 = 400;
    let server = CacheServer::start(256 << 20)?;
    let mut client = server.client();
    // More than waits in memory, so that reads come from the file.
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
        Question { key: "k", field, range: (start, start + 199), format: Format::Binary }
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
        let questions: Vec<Question<'_>> =
            (0..FIELDS).map(|field| question(field, round)).collect();
        for found in client.get_many(&questions) {
            assert!(found.map_err(io::Error::other)?.missing.is_none());
        }
    }
    let together_ms = begun.elapsed().as_secs_f64() * 1e3 / ROUNDS as f64;
    println!(
        "\neight fields of 200 kB each: {alone_ms:.2} ms one behind the other, {together_ms:.2} ms side by side ({:+.0} %)",
        100.0 * (together_ms / alone_ms - 1.0)
    );
    Ok(())
}

/// Keys and points in Prometheus; a point is one of a public data set, repeated.
const DB_KEYS: usize = 100;
const DB_POINTS: usize = 120 * 86_400 / INTERVAL_S as usize;
/// The last point in seconds, a multiple of the interval.
const DB_END_S: i64 = 1_700_000_100 / INTERVAL_S * INTERVAL_S;

/// The paper's 5.2 and 5.3: the same queries asked of a real Prometheus alone, and through the cache.
fn prometheus(aims: &mut Vec<Aim>) -> io::Result<()> {
    if Program::Prometheus.path().is_none() {
        println!("\nskipped: prometheus is not installed; `make deps` installs it");
        return Ok(());
    }
    let database = Program::Prometheus.start()?;
    load(&database)?;
    let flash_bytes = (DB_KEYS * DB_POINTS * POINT_BYTES / 10).max(8 << 20);
    println!("\nPrometheus alone and behind the cache (10 % of the data), full workload");
    println!(
        "{:<10}{:>12}{:>12}{:>12}{:>12}{:>10}{:>12}{:>12}",
        "clients",
        "alone, ms",
        "cached, ms",
        "alone, MB/s",
        "cached",
        "hits",
        "CPU alone",
        "cached"
    );
    for clients in [1, 8, 64] {
        let server = CacheServer::start(flash_bytes)?;
        let all = QUERIES / 4;
        ask_all(&database, Some(&server), clients, 5, all)?;
        let cpu_s = database.cpu_s() + server.cpu_s();
        let cached = ask_all(&database, Some(&server), clients, 6, all)?;
        let cached_cpu_s = database.cpu_s() + server.cpu_s() - cpu_s;
        let cpu_s = database.cpu_s();
        let alone = ask_all(&database, None, clients, 6, all / 4)?;
        let alone_cpu_s = (database.cpu_s() - cpu_s) * 4.0;
        let (bandwidth, alone_bandwidth) = (cached.bandwidth(), alone.bandwidth());
        println!(
            "{clients:<10}{:>12.3}{:>12.3}{:>12.1}{bandwidth:>12.1}{:>9.1}%{alone_cpu_s:>10.1} s{cached_cpu_s:>10.1} s",
            alone.latency_ms, cached.latency_ms, alone_bandwidth, cached.hit_percent
        );
        // The paper's figures are those of 64 clients.
        if clients == 64 {
            aims.push(Aim {
                name: "64 clients: latency, % of no cache".into(),
                figure: 100.0 * cached.latency_ms / alone.latency_ms,
                at_most: 15.8,
            });
            aims.push(Aim {
                name: "64 clients: time per byte, 1 / 6.7 of no cache".into(),
                figure: alone_bandwidth / bandwidth,
                at_most: 1.0 / 6.7,
            });
            aims.push(Aim {
                name: "64 clients: queries that miss, %".into(),
                figure: 100.0 - cached.hit_percent,
                at_most: 8.0,
            });
        }
    }
    Ok(())
}

/// Writes the series in the order of time, as Prometheus wants them.
fn load(database: &Server) -> io::Result<()> {
    let values: Vec<f64> = match Set::public("beijing_air") {
        Ok(set) => {
            set.series.iter().flat_map(|series| series.samples.iter().map(|s| s.1)).collect()
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            println!("the public data is not there; values are drawn");
            (0..10_000).map(|idx| f64::from(idx * 7_919 % 1_000) / 10.0).collect()
        }
        Err(e) => return Err(e),
    };
    // Two hours at a time: a block of Prometheus' head.
    let part = 7_200 / INTERVAL_S as usize;
    for first in (0..DB_POINTS).step_by(part) {
        let series = (0..DB_KEYS).map(|key| Series {
            pairs: vec![("__name__".into(), "air".into()), ("station".into(), format!("s{key}"))],
            samples: (first..(first + part).min(DB_POINTS))
                .map(|idx| {
                    (time_s(idx as i64) * 1_000, values[(idx * 31 + key * 977) % values.len()])
                })
                .collect(),
        });
        let set = Set { series: series.collect() };
        post_all(database.address, Program::Prometheus.write_path(), &set.requests(), 1);
    }
    Ok(())
}

fn time_s(point: i64) -> i64 {
    DB_END_S - (DB_POINTS as i64 - 1 - point) * INTERVAL_S
}

struct Asked {
    latency_ms: f64,
    seconds: f64,
    bytes: usize,
    hit_percent: f64,
}

impl Asked {
    fn bandwidth(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }
}

/// Asks `count` queries from so many clients, through the cache if there is one.
fn ask_all(
    database: &Server,
    cache: Option<&CacheServer>,
    clients: usize,
    seed: u64,
    count: usize,
) -> io::Result<Asked> {
    let lengths = (1, WEEK_POINTS);
    let mut workload = Workload::new(seed, DB_KEYS, DB_POINTS, lengths, 0);
    let queries: Vec<Query> = (0..count).map(|_| workload.draw()).collect();
    let (next, hits, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
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
                        let (answer, is_hit) = ask_one(&mut database, client.as_mut(), query);
                        took += asked.elapsed();
                        hits.fetch_add(usize::from(is_hit), Ordering::Relaxed);
                        bytes.fetch_add(answer, Ordering::Relaxed);
                    }
                    took
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a client panicked")).collect()
    });
    Ok(Asked {
        latency_ms: took.iter().sum::<Duration>().as_secs_f64() * 1e3 / count as f64,
        seconds: begun.elapsed().as_secs_f64(),
        bytes: bytes.into_inner(),
        hit_percent: 100.0 * hits.into_inner() as f64 / count as f64,
    })
}

/// The way of the paper's figure 1: the cache first, then the database for what is missing, then the cache is told. The
/// bytes of the answer, and whether all of it was there.
fn ask_one(database: &mut Connection, cache: Option<&mut Client>, query: &Query) -> (usize, bool) {
    let statement = format!("air{{station=\"s{}\"}}", query.key);
    let range = (time_s(query.first), time_s(query.last));
    let ask = |database: &mut Connection, (start, end): (i64, i64)| {
        let target = format!(
            "/api/v1/query_range?query={}&start={start}&end={end}&step={INTERVAL_S}",
            percent_encoded(&statement)
        );
        values(database.get(&target)).to_vec()
    };
    let Some(cache) = cache else { return (ask(database, range).len(), false) };
    let key = firn_cache_client::key_of(&statement).expect("a short statement");
    let found = cache.get(&key, 0, range, Format::Json).expect("the cache answers");
    let Some(missing) = found.missing else { return (found.value.len(), true) };
    let new = ask(database, missing);
    cache.set(&key, 0, missing, Format::Json, &new).expect("the cache answers");
    (found.value.len() + new.len(), false)
}

/// The list of points in the answer, which has one series: `[[time,"value"],...]`.
fn values(answer: &[u8]) -> &[u8] {
    let find = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).position(|w| w == text);
    let Some(start) = find(answer, b"\"values\":").map(|at| at + 9) else { return b"[]" };
    let len = find(&answer[start..], b"]]").map_or(0, |at| at + 2);
    &answer[start..start + len]
}

/// Twenty panels over windows that slide, in FirnDB itself.
fn on_dashboard(aims: &mut Vec<Aim>) -> io::Result<()> {
    let figures = dashboard::measure().map_err(io::Error::other)?;
    println!(
        "\ndashboard: {:.2} ms of CPU per refresh computed, {:.2} ms with the cache ({:.1} times less), first {:.0} ms; steps found \
         {:.2} %",
        figures.computed_ms,
        figures.cached_ms,
        figures.computed_ms / figures.cached_ms,
        figures.first_ms,
        figures.step_percent
    );
    aims.push(Aim {
        name: "dashboard: CPU with the cache / computed".into(),
        figure: figures.cached_ms / figures.computed_ms,
        at_most: 0.2,
    });
    aims.push(Aim {
        name: "dashboard: questions that find nothing, %".into(),
        figure: 100.0 - figures.hit_percent,
        at_most: 10.0,
    });
    Ok(())
}
