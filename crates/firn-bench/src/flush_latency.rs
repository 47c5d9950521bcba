//! Cost of a query of recent time while memory is flushed and tables are merged: against the same
//! queries on an idle engine, and against a head that releases its memory at a flush. Also the
//! share of recent queries that read no file when hot memory is short, by order of release.
//!
//! Source: Heracles (PVLDB 2021), section 4.5 (10,000 series every 15 s, two hours in memory,
//! queries of the last 15 minutes of one series).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use firndb::{Db, HeadOptions, Labels, Lane, Options, QueryTime, RowBatch, SeriesRef, local_env};
use serde_json::{Value, json};

use crate::far_disk::FarDisk;
use crate::fleet::{Fleet, Kind, SERIES_PER_HOST};
use crate::index::thread_cpu_ns;
use crate::report::Aim;

const SERIES: usize = 10_000;
/// Half an hour, four times: three are flushed before anything is measured.
const ROUNDS: usize = 120;
const FILLS: usize = 4;
/// New rows before each flush that is measured: five minutes.
const ROUNDS_BETWEEN: usize = 20;
/// Seconds for some hundred thousand queries, and for arms that measure only shares.
const TIMED_S: [u64; 2] = [20, 4];
const SHARE_QUERIES: usize = 500;
const WINDOWS: [&str; 4] = ["5m", "15m", "1h", "2h"];
const QUANTILES: [f64; 4] = [0.5, 0.99, 0.999, 0.9999];

/// The name of this part on the command line.
pub const NAME: &str = "queries while flushing";
/// The first argument of a child process.
pub const CHILD: &str = "--child-flush";

/// A head's settings, measured in a process of its own.
struct Arm {
    name: &'static str,
    hot_bytes_max: u64,
    recycle_percents: [u8; 3],
    /// Files are on a volume behind a network, not in this machine's page cache.
    is_far: bool,
}

/// Hot memory for some of the flushed rows.
const HOT_BYTES_SHORT: u64 = 4 << 20;

const OLDEST: [u8; 3] = [100, 0, 0];

const ARMS: [Arm; 6] = [
    Arm::new("hot after a flush", 128 << 20, OLDEST, false),
    Arm::new("dropped at a flush", 0, OLDEST, false),
    Arm::new("hot, far disk", 128 << 20, OLDEST, true),
    Arm::new("dropped, far disk", 0, OLDEST, true),
    Arm::new("4 MiB hot, 45/35/20", HOT_BYTES_SHORT, [45, 35, 20], false),
    Arm::new("4 MiB hot, oldest", HOT_BYTES_SHORT, OLDEST, false),
];

impl Arm {
    const fn new(
        name: &'static str,
        hot_bytes_max: u64,
        recycle_percents: [u8; 3],
        is_far: bool,
    ) -> Arm {
        Arm { name, hot_bytes_max, recycle_percents, is_far }
    }
}

/// The load beside the queries.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Phase {
    Writing,
    Idle,
    Flushing,
}

/// Latencies in microseconds at [`QUANTILES`], and shares of queries that read no file by
/// [`WINDOWS`].
#[derive(Debug, Default)]
struct Outcome {
    idle_us: [f64; 4],
    busy_us: [f64; 4],
    count: f64,
    hot_mib: f64,
    no_file: [f64; 4],
    /// Means in microseconds of the queries around p99.9 during flushes (p99.8 to p99.95): on a
    /// core, runnable, blocked (on a lock or a file).
    slow_us: [f64; 3],
}

/// A query's latency and its parts on a core and runnable, microseconds.
#[derive(Clone, Copy)]
struct Spent {
    all_us: f64,
    core_us: f64,
    runnable_us: f64,
}

/// Runs all arms, each in a process of its own, and prints the table.
///
/// # Errors
/// When a child fails.
pub fn run() -> io::Result<Vec<Aim>> {
    println!(
        "\n{:22} {:>35} {:>35} {:>8} {:>8}  {:26} {:24}",
        "queries while flushing",
        "idle p50, 99, 99.9, 99.99 us",
        "while flushing",
        "queries",
        "hot MiB",
        "no file: 5m, 15m, 1h, 2h",
        "slow: core, runnable, blocked us"
    );
    let mut outcomes = Vec::new();
    for (idx, arm) in ARMS.iter().enumerate() {
        let mut command = Command::new(std::env::current_exe()?);
        let output = command.args([CHILD, &idx.to_string()]).stderr(Stdio::inherit()).output()?;
        let outcome = Outcome::of_json(String::from_utf8_lossy(&output.stdout).trim())?;
        let list = |figures: [f64; 4]| figures.map(|us| format!("{us:>8.0}")).join(" ");
        println!(
            "{:22} {:>35} {:>35} {:>8} {:>8.1}  {:26} {}",
            arm.name,
            list(outcome.idle_us),
            list(outcome.busy_us),
            outcome.count,
            outcome.hot_mib,
            outcome.no_file.map(|share| format!("{:>5.0}%", share * 100.0)).join(""),
            outcome.slow_us.map(|us| format!("{us:>6.0}")).join(" ")
        );
        outcomes.push(outcome);
    }
    let [hot, dropped, hot_far, dropped_far, ..] = &outcomes[..] else { return Ok(Vec::new()) };
    let aim = |name: &str, figure: f64, at_most: f64| Aim { name: name.into(), figure, at_most };
    Ok(vec![
        aim("p99.9 of a query while flushing, of idle", hot.busy_us[2] / hot.idle_us[2], 1.2),
        aim(
            "p99.9 while flushing, of a head that drops, files in the page cache",
            hot.busy_us[2] / dropped.busy_us[2],
            0.3,
        ),
        aim(
            "p99.9 while flushing, of a head that drops, 0.5 ms from the disk",
            hot_far.busy_us[2] / dropped_far.busy_us[2],
            0.3,
        ),
    ])
}

/// Runs one arm in this process and prints its outcome for [`run`].
///
/// # Errors
/// When there is no such arm or the database fails.
pub fn child(arm: &str) -> io::Result<()> {
    let idx: usize = arm.parse().map_err(io::Error::other)?;
    let arm = ARMS.get(idx).ok_or(io::ErrorKind::InvalidInput)?;
    println!("{}", measure(arm)?.to_json());
    Ok(())
}

fn measure(arm: &Arm) -> io::Result<Outcome> {
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let mut env = local_env(folder.path()).map_err(io::Error::other)?;
    if arm.is_far {
        env.disk = Arc::new(FarDisk(env.disk));
    }
    let options = Options {
        flush_age_ms_max: i64::MAX,
        restart_ms_max: i64::MAX,
        // Five minutes of rows a flush are more than a day at the end.
        future_ms_max: i64::MAX,
        head: HeadOptions {
            hot_bytes_max: arm.hot_bytes_max,
            recycle_percents: arm.recycle_percents,
            ..Default::default()
        },
        ..Options::default()
    };
    let db = Db::open(env, options).map_err(io::Error::other)?;
    let mut writer = Writer::new(&db)?;
    for fill in 0..FILLS {
        if fill > 0 {
            db.flush().map_err(io::Error::other)?;
        }
        writer.write(ROUNDS)?;
    }
    db.settle(Lane::Tree).map_err(io::Error::other)?;
    let newest = AtomicI64::new(writer.now_ms);
    let (phase, is_over) = (AtomicU8::new(Phase::Writing as u8), AtomicBool::new(false));
    let mut queries = Queries::new(&db)?;
    let measured = Duration::from_secs(TIMED_S[usize::from(arm.hot_bytes_max == HOT_BYTES_SHORT)]);
    let (idle, mut busy) = std::thread::scope(|scope| {
        let flusher = scope.spawn(|| -> io::Result<()> {
            let now = |next: Phase| phase.store(next as u8, Ordering::Release);
            let mut flush_time = measured / 100;
            while !is_over.load(Ordering::Acquire) {
                // The same rows have the same layout before and during their flush.
                now(Phase::Idle);
                std::thread::sleep(flush_time);
                now(Phase::Flushing);
                let start = Instant::now();
                db.flush().map_err(io::Error::other)?;
                db.settle(Lane::Tree).map_err(io::Error::other)?;
                flush_time = start.elapsed();
                now(Phase::Writing);
                writer.write(ROUNDS_BETWEEN)?;
                newest.store(writer.now_ms, Ordering::Release);
            }
            Ok(())
        });
        let found = queries.run_for(measured, &newest, &phase);
        is_over.store(true, Ordering::Release);
        flusher.join().map_err(|_| io::Error::other("the flushing thread panicked"))??;
        found
    })?;
    let mut outcome = Outcome {
        idle_us: quantiles(idle),
        count: busy.len() as f64,
        slow_us: slow(&mut busy),
        busy_us: quantiles(busy),
        hot_mib: db.stats().head.hot_bytes as f64 / f64::from(1 << 20),
        ..Outcome::default()
    };
    for (share, window) in outcome.no_file.iter_mut().zip(WINDOWS) {
        let before = db.stats().reads_from_tables;
        for _ in 0..SHARE_QUERIES {
            queries.ask(window, newest.load(Ordering::Acquire))?;
        }
        let with_file = db.stats().reads_from_tables - before;
        *share = 1.0 - with_file as f64 / SHARE_QUERIES as f64;
    }
    db.close().map_err(io::Error::other)?;
    Ok(outcome)
}

/// Writes rounds, a quarter of a minute each.
struct Writer<'a> {
    db: &'a Db,
    fleet: Fleet,
    refs: Vec<SeriesRef>,
    now_ms: i64,
}

impl<'a> Writer<'a> {
    fn new(db: &'a Db) -> io::Result<Writer<'a>> {
        let fleet = Fleet::new(Kind::Grouped, SERIES);
        let labels: Vec<Labels> = (0..SERIES)
            .map(|series| {
                let pairs = fleet.labels(series);
                Labels::from_pairs(pairs.iter().map(|(name, value)| (*name, value.as_str())))
            })
            .collect::<firndb::Result<_>>()
            .map_err(io::Error::other)?;
        let refs = db.resolve(&labels).into_iter().collect::<firndb::Result<Vec<SeriesRef>>>();
        let refs = refs.map_err(io::Error::other)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Starts in the past, so that most written timestamps are not in the future.
        let all_ms = 6 * 3_600_000;
        Ok(Writer { db, fleet, refs, now_ms: now.as_millis() as i64 - all_ms })
    }

    fn write(&mut self, rounds: usize) -> io::Result<()> {
        let mut batch = RowBatch::default();
        for _ in 0..rounds {
            self.now_ms += Kind::Grouped.round_ms();
            self.fleet.next_round(self.now_ms, |series, ts, value| {
                batch.push(self.refs[series], ts, value);
            });
            let report = self.db.write(&mut batch).map_err(io::Error::other)?;
            if report.too_far_ahead > 0 {
                return Err(io::Error::other("rows were refused, so nothing would be flushed"));
            }
            batch.clear();
        }
        self.db.settle(Lane::Head).map_err(io::Error::other)
    }
}

/// Queries one series after the other, in random order.
struct Queries<'a> {
    db: &'a Db,
    dice: u64,
    /// This thread's nanoseconds on a core (counted at ticks only) and runnable.
    schedstat: Option<File>,
}

impl<'a> Queries<'a> {
    fn new(db: &'a Db) -> io::Result<Queries<'a>> {
        let schedstat = File::open("/proc/thread-self/schedstat").ok();
        Ok(Queries { db, dice: 1, schedstat })
    }

    fn ask(&mut self, window: &str, now_ms: i64) -> io::Result<()> {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let series = (self.dice >> 33) as usize % SERIES;
        let (host, kind) = (series / SERIES_PER_HOST, series % SERIES_PER_HOST);
        let text = format!(
            "sum_over_time(cpu_usage_of_kind_{kind:02}_total{{instance=\"host-{host}:9100\"}}[{window}])"
        );
        self.db.query_now(&text, QueryTime::Instant(now_ms)).map_err(io::Error::other)?;
        Ok(())
    }

    /// Microseconds that this thread was runnable and did not run; 0 if the system does not report
    /// it.
    fn runnable_us(&self) -> io::Result<f64> {
        let Some(schedstat) = &self.schedstat else { return Ok(0.0) };
        let mut text = [0; 64];
        let len = schedstat.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(&text[..len]);
        let ns = text.split(' ').nth(1).and_then(|ns| ns.parse::<f64>().ok());
        Ok(ns.ok_or_else(|| io::Error::other("schedstat has no second number"))? / 1e3)
    }

    /// The queries that ran completely without a flush, and those that ran completely during
    /// flushes.
    fn run_for(
        &mut self,
        measured: Duration,
        newest: &AtomicI64,
        phase: &AtomicU8,
    ) -> io::Result<(Vec<Spent>, Vec<Spent>)> {
        let start = Instant::now();
        let (mut idle, mut flushing) = (Vec::new(), Vec::new());
        while start.elapsed() < measured {
            let before = phase.load(Ordering::Acquire);
            let now_ms = newest.load(Ordering::Acquire);
            let (core_ns, runnable_us) = (thread_cpu_ns(), self.runnable_us()?);
            let asked = Instant::now();
            self.ask("15m", now_ms)?;
            let all_us = asked.elapsed().as_secs_f64() * 1e6;
            let core_us = (thread_cpu_ns() - core_ns) / 1e3;
            let runnable_us = self.runnable_us()? - runnable_us;
            let spent = Spent { all_us, core_us, runnable_us };
            match phase.load(Ordering::Acquire) {
                after if after != before => {}
                after if after == Phase::Idle as u8 => idle.push(spent),
                after if after == Phase::Flushing as u8 => flushing.push(spent),
                _ => {}
            }
        }
        Ok((idle, flushing))
    }
}

/// See [`Outcome::slow_us`].
fn slow(queries: &mut [Spent]) -> [f64; 3] {
    queries.sort_by(|a, b| a.all_us.total_cmp(&b.all_us));
    let count = queries.len() as f64;
    let slow = &queries[(count * 0.998) as usize..(count * 0.9995) as usize];
    let mean = |of: fn(&Spent) -> f64| slow.iter().map(of).sum::<f64>() / slow.len().max(1) as f64;
    let [all, core, runnable] =
        [mean(|spent| spent.all_us), mean(|spent| spent.core_us), mean(|spent| spent.runnable_us)];
    [core, runnable, (all - core - runnable).max(0.0)]
}

fn quantiles(queries: Vec<Spent>) -> [f64; 4] {
    let mut figures: Vec<f64> = queries.iter().map(|spent| spent.all_us).collect();
    figures.sort_by(f64::total_cmp);
    QUANTILES.map(|quantile| {
        let rank = (quantile * figures.len() as f64).ceil() as usize;
        figures.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    })
}

impl Outcome {
    fn to_json(&self) -> Value {
        let Outcome { idle_us, busy_us, count, hot_mib, no_file, slow_us } = self;
        json!([idle_us, busy_us, count, hot_mib, no_file, slow_us])
    }

    fn of_json(text: &str) -> io::Result<Outcome> {
        let (idle_us, busy_us, count, hot_mib, no_file, slow_us) =
            serde_json::from_str(text).map_err(io::Error::other)?;
        Ok(Outcome { idle_us, busy_us, count, hot_mib, no_file, slow_us })
    }
}
