//! Queries of history on a slow tier 30 ms away: nothing cached, everything in memory, and
//! everything on the local disk after a restart.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use firn_env::{Env, FolderBucket, LocalDisk};
use firn_sim::SimClock;
use firndb::{
    Db, HeadOptions, Labels, Lane, Level, LogOptions, Options, QueryTime, RecoveryProgress,
    RowBatch, SyncPolicy, Timestamp,
};

use super::metered::{BucketTraffic, Metered};
use crate::fleet::{Fleet, Kind, SERIES_PER_HOST};
use crate::report::{Aim, median};

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
/// TSBS DevOps' metrics and hosts: 100 series of each of 100 hosts.
const SERIES: usize = 10_000;
const INTERVAL_MS: i64 = 30_000;
const HOURS: i64 = 26;
const DELAY_MS: u64 = 30;
/// The queried hosts, one after the other.
const HOSTS: [usize; 5] = [3, 17, 42, 61, 99];

/// A query template for the host's name.
struct ColdQuery {
    name: &'static str,
    /// With `HOST` for the host.
    text: &'static str,
    hours: i64,
    /// 0 for an instant.
    step_ms: i64,
    /// The number of columns; 0 if there are too many to count.
    columns: u64,
}

const QUERIES: [ColdQuery; 6] = [
    ColdQuery {
        name: "1-1-1",
        text: "max_over_time(cpu_usage_of_kind_07_total{instance=\"HOST\"}[1m])",
        hours: 1,
        step_ms: MINUTE_MS,
        columns: 1,
    },
    ColdQuery {
        name: "1-1-24",
        text: "max_over_time(cpu_usage_of_kind_07_total{instance=\"HOST\"}[1m])",
        hours: 24,
        step_ms: MINUTE_MS,
        columns: 1,
    },
    ColdQuery {
        name: "5-1-24",
        // Their maximum would lose the metric name.
        text: "last_over_time({__name__=~\"cpu_usage_of_kind_0[3-7]_total\",instance=\"HOST\"}[1m])",
        hours: 24,
        step_ms: MINUTE_MS,
        columns: 5,
    },
    ColdQuery {
        name: "lastpoint",
        text: "last_over_time(cpu_usage_of_kind_07_total[10m])",
        hours: 0,
        step_ms: 0,
        columns: 0,
    },
    ColdQuery {
        name: "all hosts, 24 h",
        text: "avg by (job) (avg_over_time(cpu_usage_of_kind_07_total[1h]))",
        hours: 24,
        step_ms: HOUR_MS,
        columns: 0,
    },
    ColdQuery {
        name: "all series, 24 h",
        text: "sum(last_over_time({job=~\".+\"}[1h]))",
        hours: 24,
        step_ms: HOUR_MS,
        columns: 0,
    },
];

/// Prints the table; adds the aims.
///
/// # Errors
/// Those of the disk and of the database.
pub fn run(aims: &mut Vec<Aim>) -> io::Result<()> {
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let (clock, end) = fill(folder.path())?;
    println!(
        "\n{SERIES} series of {} hosts, a sample every {} s, {HOURS} h, all on a slow tier with {DELAY_MS} ms a request: the \
         most round trips of {} hosts, GETs, bytes, median ms",
        SERIES / SERIES_PER_HOST,
        INTERVAL_MS / 1_000,
        HOSTS.len()
    );
    println!(
        "{:18} {:>26} {:>13} {:>26} {:>26}",
        "", "nothing here", "directories B", "in memory", "after a restart"
    );
    let aim = |name: &str, figure, at_most| Aim { name: name.to_owned(), figure, at_most };
    let mut lists = 0;
    for query in &QUERIES {
        let (mut cold, mut warm, mut restarted) =
            (ColdRuns::default(), ColdRuns::default(), ColdRuns::default());
        let (mut directory_bytes, mut table_count) = (0, 0);
        for host in HOSTS {
            let text = query.text.replace("HOST", &format!("host-{host}:9100"));
            let time = query.time(end);
            // Remove the previous host's cache.
            let _ = fs::remove_dir_all(folder.path().join("fast/slow-cache"));
            let far = Far::open(folder.path(), &clock)?;
            (directory_bytes, table_count) = far.directories(query, end);
            let answer = far.ask(&text, time, &mut cold)?;
            assert_eq!(answer, far.ask(&text, time, &mut warm)?, "{text}");
            drop(far);
            let far = Far::open(folder.path(), &clock)?;
            assert_eq!(answer, far.ask(&text, time, &mut restarted)?, "{text}");
        }
        println!(
            "{:18} {} {directory_bytes:>13} {} {}",
            query.name,
            cold.line(),
            warm.line(),
            restarted.line()
        );
        lists += cold.asked.lists + warm.asked.lists + restarted.asked.lists;
        if query.columns == 1 {
            let trips = cold.asked.round_trips as f64;
            aims.push(aim(&format!("round trips, {}, nothing here", query.name), trips, 2.0));
            let blocks = cold.asked.get_bytes.saturating_sub(directory_bytes) as f64;
            // The queried column, at a byte per sample, and one block, of each table.
            let samples = (query.hours * HOUR_MS / INTERVAL_MS) as f64;
            let allowed = samples + (table_count * options().tree.slow_block_bytes() as u64) as f64;
            let name =
                format!("bytes beside directories, {}, of a column and a block each", query.name);
            aims.push(aim(&name, blocks / allowed, 1.0));
        }
        if query.columns > 0 {
            let trips = (warm.asked.round_trips + restarted.asked.round_trips) as f64;
            aims.push(aim(
                &format!("round trips, {}, in memory and after a restart", query.name),
                trips,
                0.0,
            ));
        }
    }
    aims.push(aim("listings of all these queries", lists as f64, 0.0));
    Ok(())
}

impl ColdQuery {
    fn time(&self, end: Timestamp) -> QueryTime {
        match self.step_ms {
            0 => QueryTime::Instant(end),
            step_ms => QueryTime::Range { start: end - self.hours * HOUR_MS, end, step_ms },
        }
    }
}

/// The maximum requests of some runs, and their times.
#[derive(Default)]
struct ColdRuns {
    asked: BucketTraffic,
    ms: Vec<f64>,
}

impl ColdRuns {
    fn line(&self) -> String {
        let BucketTraffic { round_trips, gets, get_bytes, .. } = self.asked;
        format!("{round_trips:>3} {gets:>5} {get_bytes:>8} {:>7.1}", median(self.ms.clone()))
    }
}

/// A database with a remote slow tier.
struct Far {
    db: Db,
    bucket: Arc<Metered>,
}

impl Far {
    fn open(folder: &Path, clock: &SimClock) -> io::Result<Far> {
        let (env, bucket) = env(folder, clock)?;
        let db = Db::open_idle(env, options(), &RecoveryProgress::default());
        bucket.set_delay_ms(DELAY_MS);
        Ok(Far { db: db.map_err(io::Error::other)?, bucket })
    }

    /// The answer as text.
    fn ask(&self, text: &str, time: QueryTime, runs: &mut ColdRuns) -> io::Result<String> {
        self.bucket.take();
        let start = Instant::now();
        let answer = self.db.query_now(text, time).map_err(io::Error::other)?;
        runs.ms.push(start.elapsed().as_secs_f64() * 1e3);
        let asked = self.bucket.take();
        let most = &mut runs.asked;
        most.round_trips = most.round_trips.max(asked.round_trips);
        most.gets = most.gets.max(asked.gets);
        most.get_bytes = most.get_bytes.max(asked.get_bytes);
        most.lists += asked.lists;
        Ok(format!("{answer:?}"))
    }

    /// Bytes of the directories of the tables that a query may read, and the number of these
    /// tables.
    fn directories(&self, query: &ColdQuery, end: Timestamp) -> (u64, u64) {
        let snapshot = self.db.snapshot();
        let start = end - query.hours.max(1) * HOUR_MS;
        let tables = snapshot.tables().filter(|table| {
            table.level == Level::Two
                && table.time_range.start <= end
                && table.time_range.end >= start
        });
        tables.fold((0, 0), |(bytes, count), table| {
            (bytes + u64::from(table.suffix_bytes), count + 1)
        })
    }
}

fn options() -> Options {
    // The log is not measured, and flushed memory is released.
    Options {
        log: LogOptions { sync: SyncPolicy::Never, ..Default::default() },
        head: HeadOptions { hot_bytes_max: 0, ..Default::default() },
        ..Options::default()
    }
}

fn env(folder: &Path, clock: &SimClock) -> io::Result<(Env, Arc<Metered>)> {
    let bucket = FolderBucket::open(folder.join("slow")).map_err(io::Error::other)?;
    let bucket = Arc::new(Metered::new(Arc::new(bucket)));
    let disk = LocalDisk::open(folder.join("fast")).map_err(io::Error::other)?;
    let below: Arc<dyn firn_env::Bucket> = Arc::<Metered>::clone(&bucket);
    Ok((
        Env { disk: Arc::new(disk), log: None, bucket: below, clock: Arc::new(clock.clone()) },
        bucket,
    ))
}

/// Writes the samples and advances the clock until all of them are on the slow tier; returns the
/// clock and the end of the samples.
fn fill(folder: &Path) -> io::Result<(SimClock, Timestamp)> {
    let clock = SimClock::new();
    let (env, _) = env(folder, &clock)?;
    let db =
        Db::open_idle(env, options(), &RecoveryProgress::default()).map_err(io::Error::other)?;
    let mut fleet = Fleet::new(Kind::Grouped, SERIES);
    let labels =
        |series| Labels::from_pairs(fleet.labels(series).iter().map(|(n, v)| (*n, v.as_str())));
    let labels: Vec<Labels> =
        (0..SERIES).map(labels).collect::<firndb::Result<_>>().map_err(io::Error::other)?;
    let refs: Vec<_> =
        db.resolve(&labels).into_iter().collect::<firndb::Result<_>>().map_err(io::Error::other)?;
    let settle = || -> firndb::Result<()> {
        db.settle(Lane::Head)?;
        db.settle(Lane::Tree)
    };
    let start = db.now_ms();
    let end = start + HOURS * HOUR_MS;
    let mut batch = RowBatch::default();
    for ts in (start..end).step_by(INTERVAL_MS as usize) {
        clock.set_now_ms(ts);
        fleet.next_round(ts, |series, ts, value| batch.push(refs[series], ts, value));
        db.write(&mut batch).map_err(io::Error::other)?;
        batch.clear();
        if (ts - start) % (10 * MINUTE_MS) == 0 {
            settle().map_err(io::Error::other)?;
        }
    }
    db.flush().map_err(io::Error::other)?;
    clock.set_now_ms(end + 5 * HOUR_MS);
    settle().map_err(io::Error::other)?;
    let levels = db.stats().tree.levels;
    assert_eq!(levels[0].table_count + levels[1].table_count, 0, "all is on the slow tier");
    println!(
        "{} tables of {} partitions on the slow tier, {} bytes, {} of them directories",
        levels[2].table_count, levels[2].partition_count, levels[2].bytes, levels[2].suffix_bytes
    );
    Ok((clock, end - INTERVAL_MS))
}
