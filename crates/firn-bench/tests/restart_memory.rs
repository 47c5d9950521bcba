//! The memory of a start after a crash: the replay of the log stays within the limit, also when the
//! log defines more series than fit into memory.

use std::path::Path;

use firn_bench::index::counting::{Counting, live_bytes, peak_bytes, reset_peak};
use firn_bench::index::noise::noise;
use firn_model::{Labels, Result, RowBatch};
use firndb::{Db, Options, RecoveryProgress, local_env};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LIMIT_BYTES: u64 = 32 << 20;
const BATCH: usize = 400;

fn options(limit_bytes: u64) -> Options {
    let mut options = Options {
        memory_bytes_max: limit_bytes,
        head_bytes_max: limit_bytes / 8,
        ..Options::default()
    };
    options.head.hot_bytes_max = limit_bytes / 8;
    options.head.cooling_bytes_max = limit_bytes / 8;
    options
}

/// Defines `count` series with two samples each, as fast as the database accepts them, and ends as
/// a crash does.
fn fill(folder: &Path, limit_bytes: u64, count: usize, labels: fn(usize) -> Labels) {
    let env = local_env(folder).expect("an environment");
    let db = Db::open(env, options(limit_bytes)).expect("opens");
    for first in (0..count).step_by(BATCH) {
        let all: Vec<Labels> = (first..first + BATCH).map(labels).collect();
        let write = || -> Result<()> {
            let mut batch = RowBatch::default();
            for series in db.resolve(&all) {
                let series = series?;
                batch.push(series, 1_000, 1.0);
                batch.push(series, 16_000, 2.0);
            }
            db.write(&mut batch).map(drop)
        };
        while let Err(error) = write() {
            assert!(error.is_retriable(), "{error}");
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
    }
}

/// Opens the folder and returns the bytes that were allocated at most.
fn restart(folder: &Path, limit_bytes: u64) -> usize {
    let env = local_env(folder).expect("an environment");
    let before = live_bytes();
    reset_peak();
    let db = Db::open_idle(env, options(limit_bytes), &RecoveryProgress::default()).expect("opens");
    let peak = peak_bytes() - before;
    let stats = db.stats();
    println!("{peak} of {limit_bytes}; {:?} {:?}", stats.recovery, stats.index);
    peak
}

#[test]
fn a_start_takes_no_more_than_the_limit() {
    let wide: fn(usize) -> Labels = |idx| {
        let (id, path) = (idx.to_string(), noise(idx, 1_500));
        Labels::from_pairs([("__name__", "m"), ("id", &id), ("path", &path)]).expect("valid")
    };
    // Label names are in memory as long as their index file.
    let named: fn(usize) -> Labels = |idx| {
        let (id, name) = (idx.to_string(), noise(idx, 1_000));
        Labels::from_pairs([("__name__", "m"), ("id", &id), (&name, "1")]).expect("valid")
    };
    let narrow: fn(usize) -> Labels = |idx| {
        let id = idx.to_string();
        Labels::from_pairs([("__name__", "m"), ("id", &id)]).expect("valid")
    };
    let cases = [
        ("wide", LIMIT_BYTES, 32_000, wide),
        ("wide, written with more memory", 16 * LIMIT_BYTES, 32_000, wide),
        ("narrow, written with more memory", 16 * LIMIT_BYTES, 100_000, narrow),
        ("names", LIMIT_BYTES, 6_000, named),
        ("names, written with more memory", 16 * LIMIT_BYTES, 6_000, named),
    ];
    for (what, written_bytes, count, labels) in cases {
        let folder = tempfile::tempdir().expect("a folder");
        println!("{what}");
        fill(folder.path(), written_bytes, count, labels);
        let peak = restart(folder.path(), LIMIT_BYTES);
        assert!(peak as u64 <= LIMIT_BYTES, "{what}: {peak}");
    }
}
