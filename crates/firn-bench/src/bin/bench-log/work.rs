//! A log to measure, and a database that a child process fills until it is killed.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use firn_bench::fleet::{Fleet, Kind as FleetKind};
use firn_env::{Clock, Disk, SystemClock};
use firn_log::{Log, LogOptions, LogSetup, StreamId, SyncPolicy};
use firn_model::{LogPosition, RowBatch, SeriesRef};
use firndb::{Db, Labels, Options, local_env};

use crate::{BATCH, FILE_STREAM_COUNT, Outcome, SERIES_COUNT};

/// Between two samples of a series.
pub(crate) const ROUND_MS: i64 = 15_000;

pub(crate) fn start_log(disk: Arc<dyn Disk>, options: LogSetup) -> Outcome<Log> {
    let stream_count = options.stream_count;
    let log = Log::open(disk, Arc::new(SystemClock::new()) as Arc<dyn Clock>, options, false)?;
    for stream in 0..stream_count {
        log.replay(StreamId(stream as u16), LogPosition(0), &mut |_| Ok(()))?;
    }
    log.start()?;
    log.prepare()?;
    Ok(log)
}

/// Starts a writing process and kills it with `rounds` in its log, or with `more` after a flush if
/// `more` is not 0.
pub(crate) fn fill_and_kill(folder: &Path, rounds: usize, more: usize) -> Outcome<u64> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--child").arg(folder).arg(rounds.to_string()).arg(more.to_string());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut told = [0; 8];
    let read = child.stdout.take().ok_or("no output")?.read_exact(&mut told);
    child.kill()?;
    child.wait()?;
    read?;
    Ok(u64::from_le_bytes(told))
}

pub(crate) fn write_and_wait(folder: &Path, rounds: usize, more: usize) -> Outcome<()> {
    let options = Options {
        flush_age_ms_max: i64::MAX,
        restart_ms_max: i64::MAX,
        head_bytes_max: u64::MAX >> 1,
        stream_count: Some(FILE_STREAM_COUNT),
        // A kill loses nothing with this policy, and durable marks are as close as with a sync per
        // request.
        log: LogOptions { sync: SyncPolicy::IntervalMs(10), ..Default::default() },
        ..Options::default()
    };
    let db = Db::open(local_env(folder)?, options)?;
    let refs = define(&db)?;
    let mut fleet = Fleet::new(FleetKind::Grouped, SERIES_COUNT);
    let start_ms = now_ms() - (rounds + more) as i64 * ROUND_MS;
    let mut samples = write_rounds(&db, &refs, &mut fleet, start_ms, rounds)?;
    if more > 0 {
        db.flush()?;
        samples += write_rounds(&db, &refs, &mut fleet, start_ms + rounds as i64 * ROUND_MS, more)?;
    }
    io::stdout().write_all(&samples.to_le_bytes())?;
    io::stdout().flush()?;
    // Until it is killed.
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Writes `rounds` samples of each series in requests of [`BATCH`].
fn write_rounds(
    db: &Db,
    refs: &[SeriesRef],
    fleet: &mut Fleet,
    start_ms: i64,
    rounds: usize,
) -> Outcome<u64> {
    let (mut count, mut batch) = (0, RowBatch::default());
    for round in 0..rounds {
        let mut outcome = Ok(());
        fleet.next_round(start_ms + round as i64 * ROUND_MS, |series, ts, value| {
            batch.push(refs[series], ts, value);
            count += 1;
            if batch.len() == BATCH {
                outcome =
                    std::mem::replace(&mut outcome, Ok(())).and(db.write(&mut batch).map(|_| ()));
                batch.clear();
            }
        });
        outcome?;
    }
    Ok(count)
}

pub(crate) fn define(db: &Db) -> Outcome<Vec<SeriesRef>> {
    let fleet = Fleet::new(FleetKind::Grouped, SERIES_COUNT);
    let mut refs = Vec::with_capacity(SERIES_COUNT);
    for first in (0..SERIES_COUNT).step_by(10_000) {
        let labels = (first..first + 10_000).map(|series| {
            let labels = fleet.labels(series);
            Labels::from_pairs(labels.iter().map(|(name, value)| (*name, value.as_str())))
        });
        let labels = labels.collect::<firndb::Result<Vec<Labels>>>()?;
        for series in db.resolve(&labels) {
            refs.push(series?);
        }
    }
    Ok(refs)
}

pub(crate) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}
