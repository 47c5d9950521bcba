//! Costs of the log alone: bytes of the recordings, and CPU per sample.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use firn_bench::index::process_cpu_ns;
use firn_bench::log::recordings;
use firn_bench::report::{Aim, median};
use firn_env::{Clock, LocalDisk, SystemClock};
use firn_log::{Append, EntryKind, EntryRef, Log, LogSetup, StreamId, SyncPolicy};
use firn_model::{CommitSeq, LogPosition, RowBatch, SeriesRef, ShardId};
use firndb::{Db, Labels, LogOptions, Options, RecoveryProgress, local_env};

use crate::work::{fill_and_kill, start_log};
use crate::{BATCH, FILE_STREAM_COUNT, Outcome, SHARD_COUNT, aim};

pub(crate) fn bytes(aims: &mut Vec<Aim>) -> Outcome<()> {
    println!("\n{:14} {:>10} {:>10} {:>14}", "recording", "samples", "log bytes", "bytes/sample");
    let (mut all_samples, mut all_bytes) = (0, 0);
    for target in recordings::TARGETS {
        let Some((keys, scrapes)) = recordings::read(target) else {
            println!("{target:14} absent");
            continue;
        };
        let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
        let options = Options {
            log: LogOptions { sync: SyncPolicy::Never, ..Default::default() },
            ..Options::default()
        };
        let db = Db::open_idle(local_env(folder.path())?, options, &RecoveryProgress::default())?;
        // The whole text of a series as one label: as many bytes as its labels have.
        let labels = keys.iter().map(|key| {
            let name = key.split('{').next().unwrap_or_default();
            let pairs = [("__name__", name), ("instance", "i"), ("job", target), ("series", key)];
            Labels::from_pairs(pairs)
        });
        let labels = labels.collect::<firndb::Result<Vec<Labels>>>()?;
        let refs = db.resolve(&labels).into_iter().collect::<firndb::Result<Vec<SeriesRef>>>()?;
        let (mut batch, mut samples) = (RowBatch::default(), 0u64);
        for (ts, values) in scrapes {
            values.iter().for_each(|&(series, value)| batch.push(refs[series], ts, value));
            samples += values.len() as u64;
            db.write(&mut batch)?;
            batch.clear();
        }
        let bytes = db.stats().log.written_bytes;
        println!("{target:14} {samples:>10} {bytes:>10} {:>14.3}", bytes as f64 / samples as f64);
        all_samples += samples;
        all_bytes += bytes;
    }
    if all_samples > 0 {
        let figure = all_bytes as f64 / all_samples as f64;
        aim(aims, "log bytes a sample, recordings, a commit for each scrape", figure, 1.0);
    }
    Ok(())
}

/// The log of a database after some writes.
struct Logged {
    entries: Vec<LoggedEntry>,
    payload_bytes: u64,
    sample_count: u64,
}

/// Shard, kind, payload.
type LoggedEntry = (ShardId, EntryKind, Vec<u8>);

/// The shards that a request's twenty groups touch, of 64.
const ENTRIES_PER_REQUEST: usize = 17;

/// The options of the log in a measurement.
#[derive(Clone, Copy)]
struct Setting {
    name: &'static str,
    sync: SyncPolicy,
    unit_bytes: u64,
    stream_count: usize,
}

const ALWAYS: Setting = Setting {
    name: "always",
    sync: SyncPolicy::Always,
    unit_bytes: 8,
    stream_count: FILE_STREAM_COUNT,
};

const SETTINGS: [Setting; 5] = [
    Setting { name: "never", sync: SyncPolicy::Never, ..ALWAYS },
    ALWAYS,
    Setting { name: "always, units of 512 B", unit_bytes: 512, ..ALWAYS },
    Setting { name: "always, units of 4 KiB", unit_bytes: 4_096, ..ALWAYS },
    Setting { name: "always, 2 streams", stream_count: 2, ..ALWAYS },
];

/// Rounds of all series that are logged: twenty million samples.
const ROUNDS: usize = 200;
/// Rounds of each setting; settings take turns.
const TURNS: usize = 5;

pub(crate) fn cpu(aims: &mut Vec<Aim>) -> Outcome<()> {
    let logged = logged()?;
    let samples = logged.sample_count as f64;
    println!(
        "\nlog alone, entries of requests of {BATCH} samples, 100k grouped series, {:.1} M samples, \
         medians of {TURNS}:",
        samples / 1e6
    );
    let mut turns = SETTINGS.map(|_| Vec::new());
    for _ in 0..TURNS {
        for (setting, into) in SETTINGS.into_iter().zip(&mut turns) {
            into.push(write_all(&logged, setting)?);
        }
    }
    for (setting, turns) in SETTINGS.iter().zip(turns) {
        let middle = |f: fn(&Written) -> f64| median(turns.iter().map(f).collect());
        let cpu_ns = middle(|turn| turn.cpu_ns) / samples;
        let all: Vec<String> =
            turns.iter().map(|turn| format!("{:.1}", turn.cpu_ns / samples)).collect();
        println!(
            "  {:22} {cpu_ns:>6.1} ns CPU a sample ({}), {:.3} bytes a sample, {:.1} M samples/s",
            setting.name,
            all.join(" "),
            middle(|turn| turn.bytes) / samples,
            samples / middle(|turn| turn.seconds) / 1e6
        );
        if setting.name == ALWAYS.name {
            aim(aims, "log's CPU a sample, always, ns", cpu_ns, 30.0);
        }
    }
    Ok(())
}

/// Measurements of writing everything once.
struct Written {
    cpu_ns: f64,
    seconds: f64,
    bytes: f64,
}

fn write_all(logged: &Logged, setting: Setting) -> Outcome<Written> {
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let Setting { sync, unit_bytes, stream_count, .. } = setting;
    let (shard_count, segment_bytes) = (SHARD_COUNT, 32 << 20);
    let options = LogSetup {
        stream_count,
        shard_count,
        unit_bytes,
        options: LogOptions { segment_bytes, sync },
    };
    let log = start_log(Arc::new(LocalDisk::open(folder.path())?), options)?;
    let (start, cpu) = (Instant::now(), process_cpu_ns());
    for commit in logged.entries.chunks(ENTRIES_PER_REQUEST) {
        append_all(&log, commit)?;
    }
    let (seconds, cpu_ns) = (start.elapsed().as_secs_f64(), process_cpu_ns() - cpu);
    let written_bytes = log.stats().written_bytes;
    if written_bytes < logged.payload_bytes {
        let bytes = logged.payload_bytes;
        return Err(format!("{written_bytes} bytes were written of {bytes}").into());
    }
    Ok(Written { cpu_ns, seconds, bytes: written_bytes as f64 })
}

fn append_all(log: &Log, commit: &[LoggedEntry]) -> Outcome<()> {
    let mut ends: BTreeMap<StreamId, LogPosition> = BTreeMap::new();
    for (shard, kind, payload) in commit {
        let stream = log.stream_of(*shard);
        let entry = EntryRef { kind: *kind, shard: *shard, seq: CommitSeq(1), payload };
        loop {
            if let Append::At(end) = log.append(stream, log.tip(stream).segment, &[entry])? {
                ends.insert(stream, end);
                break;
            }
        }
    }
    Ok(log.commit(&ends.into_iter().collect::<Vec<_>>())?)
}

/// Rounds of the series through a database, taken from its log.
fn logged() -> Outcome<Logged> {
    let folder = tempfile::Builder::new().prefix("firn-bench-").tempdir()?;
    let sample_count = fill_and_kill(folder.path(), ROUNDS, 0)?;
    let options = LogSetup {
        stream_count: FILE_STREAM_COUNT,
        shard_count: SHARD_COUNT,
        unit_bytes: 8,
        options: LogOptions { segment_bytes: 32 << 20, sync: SyncPolicy::Never },
    };
    let disk = local_env(folder.path())?.disk;
    let log = Log::open(disk, Arc::new(SystemClock::new()) as Arc<dyn Clock>, options, false)?;
    let mut streams = Vec::new();
    for stream in 0..FILE_STREAM_COUNT as u16 {
        let (stream, mut entries) = (StreamId(stream), Vec::new());
        log.replay(stream, LogPosition(0), &mut |entry| {
            entries.push((entry.shard, entry.kind, entry.payload.to_vec()));
            Ok(())
        })?;
        streams.push(entries.into_iter());
    }
    // In turn from each stream, as they were written.
    let mut entries = Vec::new();
    loop {
        let before = entries.len();
        streams.iter_mut().for_each(|stream| entries.extend(stream.next()));
        if entries.len() == before {
            break;
        }
    }
    let payload_bytes = entries.iter().map(|entry| entry.2.len() as u64).sum();
    // A sample of this kind takes about a byte.
    if payload_bytes < sample_count / 4 {
        let count = entries.len();
        return Err(format!("{sample_count} samples left {count} entries in the log").into());
    }
    Ok(Logged { entries, payload_bytes, sample_count })
}
