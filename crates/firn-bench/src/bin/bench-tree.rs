//! Costs of history: bytes per sample by level, bytes uploaded to the slow tier, and the effect of
//! late data and compaction on writers and queries.
//!
//! `bench-tree [--only words]` runs the parts with names that begin with one of the words: `bytes`,
//! `blocks`, `puts`, `size`, `late`, `compact`, `cold`. Time is simulated, so that hours of samples
//! pass in seconds; disk and slow tier are folders.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use firn_bench::client::{Connection, post_all};
use firn_bench::fleet::{Fleet, Kind, SERIES_PER_HOST};
use firn_bench::index::{process_cpu_ns, thread_cpu_ns};
use firn_bench::report::{Aim, finish, median};
use firn_bench::server::{Program, bytes_below};
use firn_bench::tree::lsm::TreeShape;
use firn_bench::tree::sets::{PUBLIC, SCRAPES, Set};
use firn_bench::tree::{cold, quantiles};
use firn_env::{Env, FolderBucket, LocalDisk};
use firn_sim::SimClock;
use firndb::{
    Db, HeadOptions, Labels, Lane, LogOptions, Options, QueryTime, RecoveryProgress, RowBatch,
    SeriesRef, SyncPolicy, TreeOptions,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const BATCH: usize = 10_000;
// 20 days: the largest of its steps (2 h times a power of three) below a month.
const PROMETHEUS_BLOCKS: &str = "--max-block-duration=486h";

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = match args.as_slice() {
        [flag, words] if flag == "--only" => words.split_whitespace().collect(),
        _ => Vec::new(),
    };
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.starts_with(word));
    let (start, mut aims) = (Instant::now(), Vec::new());
    if wanted("bytes") {
        bytes(&mut aims)?;
    }
    if wanted("blocks") {
        blocks()?;
    }
    if wanted("puts") {
        puts(&mut aims)?;
    }
    if wanted("size") {
        size_control(&mut aims)?;
    }
    if wanted("late") {
        late(&mut aims)?;
    }
    if wanted("compact") {
        compacting(&mut aims)?;
    }
    if wanted("cold") {
        cold::run(&mut aims)?;
    }
    println!("all of it took {} s", start.elapsed().as_secs());
    finish("tree", &aims)
}

/// A database with a simulated clock.
struct World {
    db: Db,
    clock: SimClock,
    folder: tempfile::TempDir,
}

impl World {
    fn options() -> Options {
        // The device is not measured, and flushed memory is released.
        Options {
            log: LogOptions { sync: SyncPolicy::Never, ..Default::default() },
            head: HeadOptions { hot_bytes_max: 0, ..Default::default() },
            ..Options::default()
        }
    }

    fn idle(options: Options) -> io::Result<World> {
        World::open(|env| Db::open_idle(env, options, &RecoveryProgress::default()))
    }

    fn open(open: impl FnOnce(Env) -> firndb::Result<Db>) -> io::Result<World> {
        let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
        let clock = SimClock::new();
        let env = Env {
            disk: Arc::new(LocalDisk::open(folder.path().join("fast")).map_err(io::Error::other)?),
            log: None,
            bucket: Arc::new(
                FolderBucket::open(folder.path().join("slow")).map_err(io::Error::other)?,
            ),
            clock: Arc::new(clock.clone()),
        };
        Ok(World { db: open(env).map_err(io::Error::other)?, clock, folder })
    }

    fn resolve(&self, labels: &[Labels]) -> io::Result<Vec<SeriesRef>> {
        self.db.resolve(labels).into_iter().map(|series| series.map_err(io::Error::other)).collect()
    }

    fn settle(&self) -> io::Result<()> {
        self.db.settle(Lane::Head).map_err(io::Error::other)?;
        self.db.settle(Lane::Tree).map_err(io::Error::other)
    }

    fn advance(&self, ms: i64) {
        self.clock.set_now_ms(self.db.now_ms() + ms);
    }

    /// Bytes below a folder of the database.
    fn disk_bytes(&self, folder: &str) -> u64 {
        bytes_below(&self.folder.path().join(folder))
    }
}

/// Bytes per sample of one set.
struct Sizes {
    level0: f64,
    level1: f64,
    level2: f64,
    /// Tables and index after all merges.
    all: f64,
}

fn bytes(aims: &mut Vec<Aim>) -> io::Result<()> {
    println!("\nbytes per sample, every byte of tables and index (logs left out for all)");
    println!(
        "{:16} {:>9} {:>8} {:>8} {:>8} {:>8} {:>11} {:>11} {:>9}",
        "set",
        "samples",
        "level 0",
        "level 1",
        "level 2",
        "all",
        "Prometheus",
        "Victoria",
        "Heracles"
    );
    let mut sets: Vec<(String, Set)> = Vec::new();
    for target in SCRAPES {
        sets.push((target.to_owned(), Set::scraped(&[target])?));
    }
    sets.push(("all recordings".to_owned(), Set::scraped(&SCRAPES)?));
    sets.push(("TSBS 2,000, 6 h".to_owned(), Set::tsbs(2_000, 1_440, SimClock::START_MS)));
    for name in PUBLIC {
        sets.push((name.to_owned(), Set::public(name)?));
    }
    for (name, set) in sets {
        let count = set.sample_count() as f64;
        let (ours, _) = sizes(&set, World::options())?;
        let prometheus = prometheus_bytes(&set)? / count;
        let victoria = victoria_bytes(&set)? / count;
        let heracles: usize = set
            .series
            .iter()
            .map(|series| {
                let values: Vec<f64> = series.samples.iter().map(|sample| sample.1).collect();
                values.chunks(480).map(quantiles::encoded_bytes).sum::<usize>()
            })
            .sum();
        println!(
            "{name:16} {count:>9} {:>8.3} {:>8.3} {:>8.3} {:>8.3} {prometheus:>11.3} {victoria:>11.3} {:>9.3}",
            ours.level0,
            ours.level1,
            ours.level2,
            ours.all,
            heracles as f64 / count
        );
        if name == "all recordings" {
            let aim = |name: &str, figure, at_most| Aim { name: name.to_owned(), figure, at_most };
            aims.push(aim("bytes per sample, recordings, after compaction", ours.all, 0.32));
            if prometheus.is_finite() {
                let share = ours.all / prometheus;
                aims.push(aim("bytes as a share of Prometheus', recordings", share, 1.0 / 8.0));
            }
            if victoria.is_finite() {
                let share = ours.all / victoria;
                aims.push(aim(
                    "bytes as a share of VictoriaMetrics', recordings",
                    share,
                    1.0 / 3.0,
                ));
            }
        }
    }
    Ok(())
}

/// Writes the set in time order, ages it, and measures its size.
fn sizes(set: &Set, options: Options) -> io::Result<(Sizes, World)> {
    let world = World::idle(options)?;
    let labels = set.labels().map_err(io::Error::other)?;
    // Series without samples leave the index in time, so each is defined when it is first written.
    let mut refs: Vec<Option<SeriesRef>> = vec![None; labels.len()];
    let mut batch = RowBatch::default();
    let mut looked_at = i64::MIN;
    for (ts, samples) in set.by_time() {
        if ts >= looked_at + MINUTE_MS {
            write(&world.db, &mut batch);
            world.clock.set_now_ms(ts);
            world.settle()?;
            looked_at = ts;
        }
        let is_new = |series: &u32| refs[*series as usize].is_none();
        let new: Vec<u32> = samples.iter().map(|sample| sample.0).filter(is_new).collect();
        let new_labels: Vec<Labels> = new.iter().map(|&at| labels[at as usize].clone()).collect();
        for (series, resolved) in new.into_iter().zip(world.resolve(&new_labels)?) {
            refs[series as usize] = Some(resolved);
        }
        for &(series, value) in &samples {
            batch.push(refs[series as usize].expect("resolved above"), ts, value);
        }
        if batch.len() >= BATCH {
            write(&world.db, &mut batch);
        }
    }
    write(&world.db, &mut batch);
    world.db.flush().map_err(io::Error::other)?;
    // Compact, upload and age everything, and remove replaced files.
    for _ in 0..10 {
        world.advance(12 * HOUR_MS);
        world.settle()?;
    }
    let stats = world.db.stats();
    let traffic = &stats.tree.traffic;
    let kept = stats.tree.levels.iter().map(|level| level.value_count).sum::<u64>();
    let given = set.sample_count() as u64;
    assert!(kept == given, "{kept} of {given} are kept");
    let count = kept as f64;
    let all =
        world.disk_bytes("fast/tables") + world.disk_bytes("fast/index") + world.disk_bytes("slow");
    let sizes = Sizes {
        level0: traffic.flush_bytes as f64 / count,
        level1: traffic.compaction_write_bytes as f64 / count,
        level2: traffic.upload_bytes as f64 / count,
        all: all as f64 / count,
    };
    Ok((sizes, world))
}

/// Savings of larger blocks on the slow tier, against the bytes that reading one series costs.
fn blocks() -> io::Result<()> {
    const QUERIES: usize = 50;
    println!(
        "\npayload of a slow-tier block: bytes per sample of all tables, and the bytes that a cold query of one series reads"
    );
    println!(
        "{:18} {:>8} {:>13} {:>12} {:>10} {:>10}",
        "set", "payload", "bytes/sample", "table bytes", "gets", "KiB got"
    );
    let recordings = Set::scraped(&SCRAPES)?;
    let hosts = Set::tsbs(2_000, 1_440, SimClock::START_MS);
    for (name, set) in [("all recordings", recordings), ("TSBS 2,000, 6 h", hosts)] {
        for payload_bytes in [8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10] {
            let block_bytes = payload_bytes / 4;
            // Nothing stays in memory: directories are fetched again as well.
            let tree = TreeOptions { block_bytes, cache_bytes_max: 0, ..TreeOptions::default() };
            assert!(tree.slow_block_bytes() == payload_bytes, "four times");
            let (_, world) = sizes(&set, Options { tree, ..World::options() })?;
            let before = world.db.stats().tree;
            let now = world.db.now_ms();
            for series in set.series.iter().step_by(set.series.len() / QUERIES).take(QUERIES) {
                let matcher = |(name, value): &(String, String)| format!("{name}={value:?}");
                let matchers: Vec<String> = series.pairs.iter().map(matcher).collect();
                let query = format!("count_over_time({{{}}}[20d])", matchers.join(","));
                world.db.query_now(&query, QueryTime::Instant(now)).map_err(io::Error::other)?;
            }
            let after = world.db.stats().tree;
            let per_query = |after: u64, before: u64| (after - before) as f64 / QUERIES as f64;
            println!(
                "{name:18} {:>5} KiB {:>13.4} {:>12} {:>10.1} {:>10.1}",
                payload_bytes >> 10,
                after.levels[2].bytes as f64 / set.sample_count() as f64,
                after.levels[2].bytes,
                per_query(after.traffic.slow_gets, before.traffic.slow_gets),
                per_query(after.traffic.slow_get_bytes, before.traffic.slow_get_bytes) / 1024.0
            );
        }
    }
    Ok(())
}

/// Writes the whole batch, retries while the database is busy, and clears the batch. Panics if the
/// report shows a lost sample.
fn write(db: &Db, batch: &mut RowBatch) {
    let given = batch.len() as u64;
    let report = loop {
        match db.write(batch) {
            Ok(report) => break report,
            Err(error) => assert!(error.is_retriable(), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(report.written == given, "of {given} samples: {report:?}");
    batch.clear();
}

/// Blocks from Prometheus' own tool, as long as a server merges them to; `NaN` without the tool.
fn prometheus_bytes(set: &Set) -> io::Result<f64> {
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let text = folder.path().join("samples.txt");
    let mut out = BufWriter::new(fs::File::create(&text)?);
    set.write_open_metrics(&mut out)?;
    out.flush()?;
    let blocks = folder.path().join("blocks");
    let mut command = Command::new("promtool");
    command.args(["tsdb", "create-blocks-from", "openmetrics", "-q", PROMETHEUS_BLOCKS]);
    command.arg(&text).arg(&blocks);
    match command.stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(bytes_below(&blocks) as f64),
        Ok(status) => Err(io::Error::other(format!("promtool: {status}"))),
        Err(_) => Ok(f64::NAN),
    }
}

fn victoria_bytes(set: &Set) -> io::Result<f64> {
    if Program::VictoriaMetrics.path().is_none() {
        return Ok(f64::NAN);
    }
    let server = Program::VictoriaMetrics.start()?;
    post_all(server.address, Program::VictoriaMetrics.write_path(), &set.requests(), 1);
    let mut connection = Connection::open(server.address);
    connection.get("/internal/force_flush");
    connection.get("/internal/force_merge");
    // The merge continues after the response.
    let mut bytes = server.data_bytes();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(500));
        let now = server.data_bytes();
        if now == bytes {
            break;
        }
        bytes = now;
    }
    Ok(bytes as f64)
}

/// Two days of hosts, a sample per minute, in order: uploads to the slow tier, against a model of
/// multi-level trees over equal chunks; both figures are multiples of the first upload.
fn puts(aims: &mut Vec<Aim>) -> io::Result<()> {
    println!("\nbytes put to the slow tier as a multiple of the first upload");
    println!("{:24} {:>9} {:>9} {:>8} {:>9}", "", "put MB", "multiple", "objects", "a year");
    // Tables small enough to be full, as in a large database; then tables of the default size.
    let full = put_run(
        "tables are full",
        TreeOptions { table_bytes_max: 64 << 10, ..TreeOptions::default() },
    )?;
    put_run("a small database", TreeOptions::default())?;
    // TimeUnion's example: 64 MiB first, 1 GiB fast, 100 GiB in all; a table has 2 MiB.
    let (groups, flushes, chunk_bytes) = (1_000, 1_600, 1.0);
    let data = f64::from(groups) * f64::from(flushes) * chunk_bytes;
    println!(
        "{:>12} {:>8} {:>18} {:>18}",
        "level ratio", "levels", "equation 8 / 9", "with trivial moves"
    );
    for multiplier in [4.0, 8.0, 10.0] {
        let base_bytes = data / 1_600.0;
        let shape = TreeShape {
            base_bytes,
            multiplier,
            fast_bytes: 16.0 * base_bytes,
            table_bytes: base_bytes / 32.0,
        };
        let (many, one) = shape.computed_puts(data);
        let simulated = shape.simulated_puts(groups, flushes, chunk_bytes) / data;
        println!(
            "{multiplier:>12} {:>8.1} {:>18.2} {simulated:>18.2}",
            shape.levels(data),
            many / one
        );
        if multiplier == 10.0 {
            aims.push(Aim {
                name: "times a byte is put, as a share of a modelled multi-level tree's (ratio 10)"
                    .into(),
                figure: full / simulated,
                at_most: one / many,
            });
        }
    }
    Ok(())
}

/// Writes two days of hosts; returns how often each uploaded byte was put.
fn put_run(name: &str, tree: TreeOptions) -> io::Result<f64> {
    const HOURS: i64 = 48;
    let world = World::idle(Options { tree, ..World::options() })?;
    let mut feed = Feed::new(&world, 2_000)?;
    for _ in 0..HOURS * 6 {
        feed.run(&world, 10 * MINUTE_MS, MINUTE_MS, 0.0)?;
        world.settle()?;
    }
    let stats = world.db.stats().tree;
    let first = stats.traffic.upload_bytes;
    let again = stats.traffic.patch_merge_write_bytes + stats.traffic.partition_merge_write_bytes;
    let multiple = stats.traffic.slow_write_amplification();
    let slow = &stats.levels[2];
    let span_ms = (slow.time_range.end - slow.time_range.start) as f64;
    println!(
        "{name:24} {:>9.2} {multiple:>9.2} {:>8} {:>9.0}",
        (first + again) as f64 / 1e6,
        slow.table_count,
        slow.table_count as f64 * (365 * 24 * HOUR_MS) as f64 / span_ms
    );
    Ok(multiple)
}

/// Hosts that are written round after round.
struct Feed {
    fleet: Fleet,
    refs: Vec<SeriesRef>,
    /// Late rows by their time of arrival.
    held: BTreeMap<i64, Vec<(SeriesRef, i64, f64)>>,
    batch: RowBatch,
    sample_count: usize,
    random: u64,
    write_ns: Vec<f64>,
}

impl Feed {
    fn new(world: &World, series_count: usize) -> io::Result<Feed> {
        let fleet = Fleet::new(Kind::Grouped, series_count);
        let labels =
            |series| Labels::from_pairs(fleet.labels(series).iter().map(|(n, v)| (*n, v.as_str())));
        let labels: firndb::Result<Vec<Labels>> = (0..series_count).map(labels).collect();
        let refs = world.resolve(&labels.map_err(io::Error::other)?)?;
        Ok(Feed {
            fleet,
            refs,
            held: BTreeMap::new(),
            batch: RowBatch::default(),
            sample_count: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            write_ns: Vec::new(),
        })
    }

    /// Writes samples every `interval_ms` for `span_ms` and advances the clock. `late_share` of the
    /// hosts send nothing in this span and catch up 20 minutes to 3 hours later, as senders that
    /// were cut off. The first span is on time, so that every series exists: without samples it
    /// would leave the index.
    fn run(
        &mut self,
        world: &World,
        span_ms: i64,
        interval_ms: i64,
        late_share: f64,
    ) -> io::Result<()> {
        let start = world.db.now_ms();
        let late_share = if self.sample_count == 0 { 0.0 } else { late_share };
        let late: Vec<Option<i64>> = (0..self.refs.len() / SERIES_PER_HOST)
            .map(|_| {
                let is_late = (self.next_random() % 1_000) as f64 / 1_000.0 < late_share;
                let delay = 20 * MINUTE_MS + (self.next_random() % 160) as i64 * MINUTE_MS;
                is_late.then_some(start + span_ms + delay)
            })
            .collect();
        let mut round = Vec::new();
        for ts in (start..start + span_ms).step_by(interval_ms as usize) {
            world.clock.set_now_ms(ts);
            let due = self.held.split_off(&(ts + 1));
            round.clear();
            for rows in std::mem::replace(&mut self.held, due).into_values() {
                round.extend(rows);
            }
            let (refs, held) = (&self.refs, &mut self.held);
            self.fleet.next_round(ts, |series, _, value| {
                let row = (refs[series], ts, value);
                match late[series / SERIES_PER_HOST] {
                    Some(at) => held.entry(at).or_default().push(row),
                    None => round.push(row),
                }
            });
            for rows in round.chunks(BATCH) {
                rows.iter().for_each(|&(series, ts, value)| self.batch.push(series, ts, value));
                let (began, cpu) = (Instant::now(), thread_cpu_ns());
                write(&world.db, &mut self.batch);
                let waited = began.elapsed().as_nanos() as f64;
                self.write_ns.push(waited.max(thread_cpu_ns() - cpu));
                self.sample_count += rows.len();
            }
        }
        world.clock.set_now_ms(start + span_ms);
        Ok(())
    }

    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 8
    }
}

/// Figure 19 of TimeUnion (SIGMOD 2022): 5,000 series instead of a million, a sample every 10 s, 60
/// s, 10 s. 1/200 of 512 MB, halved because a sample takes half of the paper's bytes.
fn size_control(aims: &mut Vec<Aim>) -> io::Result<()> {
    const SERIES: usize = 5_000;
    let limit = (512 << 20) / 400;
    let tree = TreeOptions {
        fast_bytes_max: Some(limit),
        // The paper's has no such bound.
        upload_age_ms_max: 32 * HOUR_MS,
        ..TreeOptions::default()
    };
    let options = Options { tree, flush_age_ms_max: 7 * MINUTE_MS, ..World::options() };
    let world = World::idle(options)?;
    let mut feed = Feed::new(&world, SERIES)?;
    println!("\nfast tier under a limit of {limit} bytes ({SERIES} series)");
    println!(
        "{:>6} {:>9} {:>10} {:>9} {:>14} {:>14}",
        "hour", "interval", "highest", "of limit", "level 0, 1 min", "level 2 min"
    );
    let mut highest = 0u64;
    let mut hour = 0;
    for (hours, interval_s) in [(8, 10), (24, 60), (8, 10)] {
        for _ in 0..hours {
            let mut highest_now = 0;
            for _ in 0..12 {
                feed.run(&world, 5 * MINUTE_MS, interval_s * 1_000, 0.0)?;
                // The peak is after a flush, before tables move.
                world.db.settle(Lane::Head).map_err(io::Error::other)?;
                let levels = world.db.stats().tree.levels;
                highest_now = highest_now.max(levels[0].bytes + levels[1].bytes);
                world.settle()?;
            }
            hour += 1;
            highest = highest.max(highest_now);
            let lengths = world.db.stats().tree.lengths;
            println!(
                "{hour:>6} {:>8}s {highest_now:>10} {:>9.2} {:>14.1} {:>14.1}",
                interval_s,
                highest_now as f64 / limit as f64,
                lengths.fast.as_ms() as f64 / MINUTE_MS as f64,
                lengths.slow.as_ms() as f64 / MINUTE_MS as f64
            );
        }
    }
    aims.push(Aim {
        name: "fast tier, highest as a share of its limit".into(),
        figure: highest as f64 / limit as f64,
        at_most: 1.0,
    });
    Ok(())
}

/// 5,000 series, a sample every 15 s, six hours; a share of the hosts' spans of ten minutes arrives
/// late. All shares take turns five times, and each is compared with the run without late data of
/// its turn, so that noise affects all alike.
fn late(aims: &mut Vec<Aim>) -> io::Result<()> {
    const PERCENTS: [u32; 5] = [0, 5, 10, 20, 50];
    const ROUNDS: usize = 5;
    println!(
        "\nlate data: CPU of insertion with all that follows, a query of one series over the last hour"
    );
    println!(
        "{:>6} {:>12} {:>9} {:>12} {:>9} {:>12} {:>9} {:>8}",
        "late %", "CPU us/row", "ratio", "query us", "ratio", "table reads", "patches", "put MB"
    );
    let mut rounds: Vec<Vec<LateRun>> = Vec::new();
    for round in 0..ROUNDS {
        // Start with another share each time: later ones meet more memory in use.
        let turns = (0..PERCENTS.len()).map(|turn| (round + turn) % PERCENTS.len());
        let filled = turns.map(|idx| Ok((idx, LateRun::fill(f64::from(PERCENTS[idx]) / 100.0)?)));
        let mut filled: Vec<(usize, LateRun)> = filled.collect::<io::Result<_>>()?;
        filled.sort_by_key(|run| run.0);
        rounds.push(LateRun::query_in_turns(filled.into_iter().map(|run| run.1).collect())?);
    }
    for (idx, percent) in PERCENTS.iter().enumerate() {
        let middle =
            |of: &dyn Fn(&[LateRun]) -> f64| median(rounds.iter().map(|round| of(round)).collect());
        let cpu_us = middle(&|round| round[idx].cpu_us);
        let query_us = middle(&|round| round[idx].query_us);
        let cpu_ratio = middle(&|round| round[idx].cpu_us / round[0].cpu_us);
        let query_ratio = middle(&|round| round[idx].query_us / round[0].query_us);
        let run = &rounds[0][idx];
        println!(
            "{percent:>6} {cpu_us:>12.4} {cpu_ratio:>9.3} {query_us:>12.1} {query_ratio:>9.3} {:>12.2} {:>9} {:>8.2}",
            run.table_reads,
            run.patches,
            run.put_bytes as f64 / 1e6
        );
        if *percent == 20 {
            let aim = |name: &str, figure, at_most| Aim { name: name.into(), figure, at_most };
            aims.push(aim("CPU of insertion, 20% late, against none", cpu_ratio, 1.10));
            aims.push(aim("short query, 20% late, against none", query_ratio, 1.05));
        }
    }
    Ok(())
}

/// A database with some late data, and its costs.
struct LateRun {
    world: Option<World>,
    /// CPU per sample.
    cpu_us: f64,
    query_us: f64,
    /// Reads of local tables for a query.
    table_reads: f64,
    patches: u64,
    put_bytes: u64,
}

impl LateRun {
    fn fill(share: f64) -> io::Result<LateRun> {
        const SERIES: usize = 5_000;
        let world = World::idle(World::options())?;
        let mut feed = Feed::new(&world, SERIES)?;
        let start = process_cpu_ns();
        for _ in 0..36 {
            feed.run(&world, 10 * MINUTE_MS, 15_000, share)?;
            world.settle()?;
        }
        let cpu_us = (process_cpu_ns() - start) / 1e3 / feed.sample_count as f64;
        let stats = world.db.stats().tree;
        let put_bytes = stats.traffic.upload_bytes
            + stats.traffic.patch_merge_write_bytes
            + stats.traffic.partition_merge_write_bytes;
        let patches = stats.levels[2].patch_count;
        let (query_us, table_reads) = (f64::NAN, f64::NAN);
        Ok(LateRun { world: Some(world), cpu_us, query_us, table_reads, patches, put_bytes })
    }

    /// Queries fifty hosts of each database in turns, many times, then drops the databases.
    fn query_in_turns(mut runs: Vec<LateRun>) -> io::Result<Vec<LateRun>> {
        const TURNS: usize = 41;
        const HOSTS: u32 = 50;
        let mut query_us: Vec<Vec<f64>> = vec![Vec::new(); runs.len()];
        for turn in 0..TURNS {
            for (run, query_us) in runs.iter_mut().zip(&mut query_us) {
                let world = run.world.as_ref().expect("filled");
                let now = world.db.now_ms();
                let reads_before = world.db.stats().tree.traffic.fast_reads;
                let start = thread_cpu_ns();
                for host in 0..HOSTS {
                    let query = format!(
                        "max_over_time(cpu_usage_of_kind_07_total{{instance=\"host-{host}:9100\"}}[1h])"
                    );
                    let answer = world.db.query_now(&query, QueryTime::Instant(now));
                    answer.map_err(io::Error::other)?;
                }
                let spent_us = (thread_cpu_ns() - start) / 1e3 / f64::from(HOSTS);
                let reads = world.db.stats().tree.traffic.fast_reads - reads_before;
                run.table_reads = reads as f64 / f64::from(HOSTS);
                // The first turn fills caches.
                if turn > 0 {
                    query_us.push(spent_us);
                }
            }
        }
        for (run, query_us) in runs.iter_mut().zip(query_us) {
            run.query_us = median(query_us);
            run.world = None;
        }
        Ok(runs)
    }
}

/// A writer beside the maintenance threads: latency of its batches until enough merges and uploads
/// are done, and without flushes. It writes as fast as possible, so that hours pass in seconds and
/// merges never end.
fn compacting(aims: &mut Vec<Aim>) -> io::Result<()> {
    const SERIES: usize = 20_000;
    const COMPACTIONS: u64 = 30;
    const UPLOADS: u64 = 3;
    // The minimum for a p99.9, and the limit of the attempt.
    const SPANS: Range<usize> = 36..1_000;
    println!("\na batch of {BATCH} samples, ms (the wall's, or its CPU time where that is more)");
    println!(
        "{:24} {:>8} {:>8} {:>8} {:>8} {:>12} {:>9}",
        "", "median", "p99", "p99.9", "most", "compactions", "uploads"
    );
    for (name, merges) in [("nothing is flushed", false), ("flushed and merged", true)] {
        let head_bytes_max = if merges { 1 << 20 } else { 1 << 40 };
        let options = Options {
            head_bytes_max,
            log_bytes_max: 1 << 34,
            flush_age_ms_max: i64::MAX,
            restart_ms_max: i64::MAX,
            ..World::options()
        };
        let world = World::open(|env| Db::open(env, options))?;
        let mut feed = Feed::new(&world, SERIES)?;
        let is_over = || {
            let traffic = world.db.stats().tree.traffic;
            !merges || traffic.compactions >= COMPACTIONS && traffic.uploads >= UPLOADS
        };
        let mut span_count = 0;
        while span_count < SPANS.start || !is_over() {
            assert!(span_count < SPANS.end, "merges make no progress: {:?}", world.db.stats().tree);
            feed.run(&world, 10 * MINUTE_MS, 15_000, 0.05)?;
            span_count += 1;
        }
        let mut waits = std::mem::take(&mut feed.write_ns);
        waits.sort_by(f64::total_cmp);
        let of = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize] / 1e6;
        let traffic = world.db.stats().tree.traffic;
        println!(
            "{name:24} {:>8.2} {:>8.2} {:>8.2} {:>8.2} {:>12} {:>9}",
            of(0.5),
            of(0.99),
            of(0.999),
            of(1.0),
            traffic.compactions,
            traffic.uploads
        );
        if merges {
            aims.push(Aim {
                name: "p99.9 of a batch while merging, ms".into(),
                figure: of(0.999),
                at_most: 100.0,
            });
        }
    }
    Ok(())
}
