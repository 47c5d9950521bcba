//! Memory of an active series, everything included, and CPU per sample: in groups, alone, and as
//! irregular events; by the library (one process each) and by remote write with 1, 8 and 50 sender
//! shards.
//!
//! `bench-head [part of a row's name]`. Memory is anonymous and resident file pages above the idle
//! process, after all writes and deferred work, and again after a flush that keeps nothing in
//! memory. The memory budget's count is printed beside it: the difference is buffers, stacks and
//! allocator slack. Samples per second are those of one writing thread, or of sender and server
//! side by side.

use std::io;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use firn_bench::client::Connection;
use firn_bench::fleet::{Fleet, Kind};
use firn_bench::report::{Aim, finish};
use firn_bench::server::{Program, Server};
use firn_bench::{flush_latency, static_form};
use firndb::{
    Db, GroupId, HeadOptions, Labels, Lane, Options, Pool, QueryTime, RowBatch, SeriesRef, Slot,
    local_env,
};
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Samples of a library batch.
const BATCH: usize = 10_000;
/// Rows that would begin later are left out.
const ALL_S_MAX: u64 = 11 * 60;

/// One row of the table.
struct Row {
    kind: Kind,
    series_count: usize,
    rounds: usize,
    /// `None`: by the library.
    shards: Option<usize>,
    bytes_max: Option<f64>,
    cpu_max: Option<f64>,
}

/// Results per series or per million samples.
#[derive(Debug, Default)]
struct Figures {
    bytes: f64,
    /// Bytes that the budget counts: for the head, for the index, for everything else.
    counted: [f64; 3],
    bytes_flushed: f64,
    cpu_s: f64,
    /// CPU of the first round, in which most samples start their series (a full row, an encoder
    /// state, a place in an arena), and of the later rounds.
    cpu_s_first_later: [f64; 2],
    samples_per_s: f64,
    new_us: f64,
    /// Milliseconds of an instant query for one series of each host.
    query_ms: f64,
}

fn rows() -> Vec<Row> {
    let row = |kind, series_count, rounds, shards, bytes_max, cpu_max| Row {
        kind,
        series_count,
        rounds,
        shards,
        bytes_max,
        cpu_max,
    };
    let (grouped, lone, events) = (Kind::Grouped, Kind::Lone, Kind::Events);
    let mut rows = vec![
        row(grouped, 100_000, 80, None, Some(100.0), Some(0.15)),
        row(lone, 100_000, 80, None, Some(180.0), Some(0.4)),
        row(events, 100_000, 120, None, Some(200.0), None),
        row(grouped, 1_000_000, 20, None, Some(100.0), Some(0.15)),
        row(lone, 1_000_000, 20, None, Some(180.0), Some(0.4)),
        row(events, 1_000_000, 120, None, Some(200.0), None),
    ];
    for shards in [1, 8, 50] {
        rows.push(row(grouped, 100_000, 20, Some(shards), Some(100.0), None));
        rows.push(row(lone, 100_000, 20, Some(shards), Some(180.0), None));
        rows.push(row(events, 100_000, 120, Some(shards), Some(200.0), None));
    }
    for shards in [1, 8, 50] {
        rows.push(row(grouped, 1_000_000, 8, Some(shards), Some(100.0), None));
        rows.push(row(lone, 1_000_000, 8, Some(shards), Some(180.0), None));
    }
    rows.push(row(grouped, 4_000_000, 8, None, Some(100.0), Some(0.15)));
    rows.push(row(lone, 4_000_000, 8, None, Some(180.0), Some(0.4)));
    // 1.2 GiB in all.
    rows.push(row(grouped, 10_000_000, 4, None, Some(1.2 * 1_073_741_824.0 / 1e7), Some(0.15)));
    rows.push(row(lone, 10_000_000, 4, None, Some(180.0), Some(0.4)));
    rows.push(row(grouped, 4_000_000, 3, Some(8), Some(100.0), None));
    rows.push(row(lone, 4_000_000, 3, Some(8), Some(180.0), None));
    rows.push(row(grouped, 10_000_000, 2, Some(8), Some(1.2 * 1_073_741_824.0 / 1e7), None));
    rows
}

impl Row {
    fn name(&self) -> String {
        let way =
            self.shards.map_or("library".into(), |shards| format!("remote write, {shards} shards"));
        format!("{} {}k, {way}", self.kind.name(), self.series_count / 1_000)
    }
}

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [word, kind, series_count, rounds] = args.as_slice()
        && word == "--child"
    {
        let kind = Kind::of(kind).ok_or(io::ErrorKind::InvalidInput)?;
        let number = |text: &String| text.parse::<usize>().map_err(io::Error::other);
        // A small run first, so that the program's own pages and buffers exist before the
        // measurement.
        by_library(kind, 1_000, 20)?;
        let figures = by_library(kind, number(series_count)?, number(rounds)?)?;
        println!("{}", figures.to_json());
        return Ok(());
    }
    if let [word, arm] = args.as_slice()
        && word == flush_latency::CHILD
    {
        return flush_latency::child(arm);
    }
    let wanted = args.first().cloned().unwrap_or_default();
    let (start, mut aims) = (Instant::now(), Vec::new());
    println!(
        "{:36} {:>8} {:>5} {:>5} {:>5} {:>14} {:>8} {:>13} {:>10} {:>7} {:>9}",
        "series",
        "B/series",
        "head",
        "index",
        "other",
        "B after flush",
        "CPU s/M",
        "first, later",
        "samples/s",
        "us/new",
        "query ms"
    );
    for row in rows().iter().filter(|row| row.name().contains(&wanted)) {
        if start.elapsed() > Duration::from_secs(ALL_S_MAX) {
            println!("{:36} left out: the time is up", row.name());
            continue;
        }
        let figures = match row.shards {
            None => in_child(row)?,
            Some(shards) => by_remote_write(row, shards)?,
        };
        println!(
            "{:36} {:>8.0} {:>5.0} {:>5.0} {:>5.0} {:>14.0} {:>8.3} {:>6.3} {:>6.3} {:>10.0} {:>7.2} {:>9.2}",
            row.name(),
            figures.bytes,
            figures.counted[0],
            figures.counted[1],
            figures.counted[2],
            figures.bytes_flushed,
            figures.cpu_s,
            figures.cpu_s_first_later[0],
            figures.cpu_s_first_later[1],
            figures.samples_per_s,
            figures.new_us,
            figures.query_ms
        );
        let mut aim = |what: &str, figure: f64, at_most: Option<f64>| {
            let name = format!("{what}, {}", row.name());
            aims.extend(at_most.map(|at_most| Aim { name, figure, at_most }));
        };
        aim("bytes a series", figures.bytes, row.bytes_max);
        aim("CPU s per million samples", figures.cpu_s, row.cpu_max);
    }
    if static_form::NAME.contains(&wanted) {
        static_form::run()?;
    }
    if flush_latency::NAME.contains(&wanted) {
        aims.extend(flush_latency::run()?);
    }
    println!("all of it took {} s", start.elapsed().as_secs());
    finish("head", &aims)
}

impl Figures {
    fn to_json(&self) -> Value {
        let Figures { bytes, counted, bytes_flushed, cpu_s, cpu_s_first_later, .. } = self;
        let Figures { samples_per_s, new_us, query_ms, .. } = self;
        json!([
            bytes,
            counted,
            bytes_flushed,
            cpu_s,
            cpu_s_first_later,
            samples_per_s,
            new_us,
            query_ms
        ])
    }

    fn of_json(text: &str) -> io::Result<Figures> {
        let (
            bytes,
            counted,
            bytes_flushed,
            cpu_s,
            cpu_s_first_later,
            samples_per_s,
            new_us,
            query_ms,
        ) = serde_json::from_str(text).map_err(io::Error::other)?;
        Ok(Figures {
            bytes,
            counted,
            bytes_flushed,
            cpu_s,
            cpu_s_first_later,
            samples_per_s,
            new_us,
            query_ms,
        })
    }
}

fn in_child(row: &Row) -> io::Result<Figures> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--child", row.kind.name()]);
    command.args([row.series_count.to_string(), row.rounds.to_string()]);
    // As in the program: freed pages return to the system at once.
    command.env("MIMALLOC_PURGE_DELAY", "0");
    let output = command.stderr(std::process::Stdio::inherit()).output()?;
    Figures::of_json(String::from_utf8_lossy(&output.stdout).trim())
}

fn by_library(kind: Kind, series_count: usize, rounds: usize) -> io::Result<Figures> {
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let env = local_env(folder.path()).map_err(io::Error::other)?;
    // Flushed memory is released, and only this program starts flushes.
    let options = Options {
        flush_age_ms_max: i64::MAX,
        restart_ms_max: i64::MAX,
        head: HeadOptions { hot_bytes_max: 0, ..Default::default() },
        ..Options::default()
    };
    let db = Db::open(env, options).map_err(io::Error::other)?;
    let mut fleet = Fleet::new(kind, series_count);
    let mut batch = RowBatch::default();
    // Not zero: pages of zeros are allocated at their first write, and would count for the library.
    let mut refs = vec![SeriesRef { group: GroupId(1), slot: Slot(1) }; series_count];
    let idle = resident_bytes();
    let (cpu_start, mut own_s) = (process_cpu_s(), 0.0);
    for first in (0..series_count).step_by(BATCH) {
        let made = thread_cpu_s();
        let labels: Vec<Labels> = (first..series_count.min(first + BATCH))
            .map(|series| {
                Labels::from_pairs(fleet.labels(series).iter().map(|(n, v)| (*n, v.as_str())))
            })
            .collect::<firndb::Result<_>>()
            .map_err(io::Error::other)?;
        own_s += thread_cpu_s() - made;
        for (place, series) in refs[first..].iter_mut().zip(db.resolve(&labels)) {
            *place = series.map_err(io::Error::other)?;
        }
    }
    // Index files of new series are written and merged later; samples do not pay for that.
    for lane in [Lane::Head, Lane::Tree] {
        db.settle(lane).map_err(io::Error::other)?;
    }
    let cpu_defined = process_cpu_s();
    let new_us = (cpu_defined - cpu_start - own_s) / series_count as f64 * 1e6;
    let start = now_ms() - rounds as i64 * kind.round_ms();
    let (mut sample_count, mut write_s, mut wall_s) = (0usize, 0.0, 0.0);
    let before = thread_cpu_s();
    let (mut first_s, mut first_count) = (0.0, 0);
    for round in 0..rounds {
        fleet.next_round(start + round as i64 * kind.round_ms(), |series, ts, value| {
            batch.push(refs[series], ts, value);
            sample_count += 1;
            if batch.len() == BATCH {
                let (start, start_wall) = (thread_cpu_s(), Instant::now());
                write(&db, &mut batch);
                write_s += thread_cpu_s() - start;
                wall_s += start_wall.elapsed().as_secs_f64();
            }
        });
        let (start, start_wall) = (thread_cpu_s(), Instant::now());
        write(&db, &mut batch);
        wall_s += start_wall.elapsed().as_secs_f64();
        // The next round comes a quarter of a minute later.
        db.settle(Lane::Head).map_err(io::Error::other)?;
        write_s += thread_cpu_s() - start;
        if round == 0 {
            first_count = sample_count;
            first_s = process_cpu_s() - cpu_defined - (thread_cpu_s() - before - write_s);
        }
    }
    // The CPU of making the samples is not counted for the library.
    let own_s = thread_cpu_s() - before - write_s;
    db.settle(Lane::Head).map_err(io::Error::other)?;
    let all_s = process_cpu_s() - cpu_defined - own_s;
    let cpu_s = all_s / sample_count as f64 * 1e6;
    let later_count = sample_count.saturating_sub(first_count);
    let cpu_s_first_later =
        [first_s / first_count as f64 * 1e6, (all_s - first_s) / later_count as f64 * 1e6];
    let bytes = (resident_bytes().saturating_sub(idle)) as f64 / series_count as f64;
    let by_pool = db.budget().usage().by_pool;
    let counted = counted(|pool| by_pool[pool as usize] as f64, series_count);
    let query_start = Instant::now();
    let time = QueryTime::Instant(start + (rounds as i64 + 1) * kind.round_ms());
    db.query_now("count(last_over_time(cpu_usage_of_kind_07_total[5m]))", time)
        .map_err(io::Error::other)?;
    let query_ms = query_start.elapsed().as_secs_f64() * 1e3;
    db.flush().map_err(io::Error::other)?;
    db.settle(Lane::Head).map_err(io::Error::other)?;
    db.settle(Lane::Tree).map_err(io::Error::other)?;
    // The allocator returns freed pages after a delay.
    std::thread::sleep(Duration::from_secs(1));
    let bytes_flushed = (resident_bytes().saturating_sub(idle)) as f64 / series_count as f64;
    db.close().map_err(io::Error::other)?;
    let samples_per_s = sample_count as f64 / wall_s;
    Ok(Figures {
        bytes,
        counted,
        bytes_flushed,
        cpu_s,
        cpu_s_first_later,
        samples_per_s,
        new_us,
        query_ms,
    })
}

fn write(db: &Db, batch: &mut RowBatch) {
    let report = loop {
        match db.write(batch) {
            Ok(report) => break report,
            Err(error) => assert!(error.is_retriable(), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(report.too_far_ahead, 0, "rows that are refused cost nothing");
    batch.clear();
}

fn by_remote_write(row: &Row, shards: usize) -> io::Result<Figures> {
    let server = Program::Firn.start()?;
    let idle = server.memory().total();
    let mut fleet = Fleet::new(row.kind, row.series_count);
    let round_ms = row.kind.round_ms();
    let start = now_ms() - row.rounds as i64 * round_ms;
    let path = Program::Firn.write_path();
    let cpu_start = server.cpu_s();
    fleet.send_round(server.address, path, start, shards);
    let (cpu_first, start_wall) = (server.cpu_s(), Instant::now());
    let mut sample_count = 0;
    for round in 1..row.rounds as i64 {
        sample_count += fleet.send_round(server.address, path, start + round * round_ms, shards);
    }
    let samples_per_s = sample_count as f64 / start_wall.elapsed().as_secs_f64();
    // Deferred work counts too.
    std::thread::sleep(Duration::from_secs(3));
    let bytes = server.memory().total().saturating_sub(idle) as f64 / row.series_count as f64;
    Ok(Figures {
        bytes,
        counted: counted_bytes(&server, row.series_count),
        bytes_flushed: f64::NAN,
        cpu_s: (server.cpu_s() - cpu_first) / sample_count as f64 * 1e6,
        cpu_s_first_later: [f64::NAN; 2],
        samples_per_s,
        new_us: (cpu_first - cpu_start) / row.series_count as f64 * 1e6,
        query_ms: f64::NAN,
    })
}

/// Bytes reserved in the server's memory budget.
fn counted_bytes(server: &Server, series_count: usize) -> [f64; 3] {
    let mut connection = Connection::open(server.address);
    let metrics = String::from_utf8_lossy(connection.get("/metrics")).into_owned();
    let of = |pool: Pool| {
        let start = format!("firn_memory_reserved_bytes{{pool=\"{}\"}} ", pool.name());
        let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
        line.and_then(|number| number.parse::<f64>().ok()).unwrap_or(f64::NAN)
    };
    counted(of, series_count)
}

/// Bytes per series of the head, the index, and all other pools except measured memory.
fn counted(bytes_of: impl Fn(Pool) -> f64, series_count: usize) -> [f64; 3] {
    let mut counted = [0.0; 3];
    for pool in Pool::ALL.into_iter().filter(|&pool| pool != Pool::Process) {
        let place = match pool {
            Pool::Head => 0,
            Pool::Index => 1,
            _ => 2,
        };
        counted[place] += bytes_of(pool) / series_count as f64;
    }
    counted
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}

/// Anonymous and file pages of this process.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    (of("RssAnon:") + of("RssFile:") + of("RssShmem:")) << 10
}

fn process_cpu_s() -> f64 {
    cpu_s(rustix::time::ClockId::ProcessCPUTime)
}

fn thread_cpu_s() -> f64 {
    cpu_s(rustix::time::ClockId::ThreadCPUTime)
}

fn cpu_s(clock: rustix::time::ClockId) -> f64 {
    let time = rustix::time::clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
