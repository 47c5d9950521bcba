//! The memory of a start after a crash: the replay of the log stays within the limit, also when the
//! log defines more series than fit into memory.

use std::ops::Range;
use std::path::Path;

use firn_bench::index::counting::{Counting, live_bytes, peak_bytes, reset_peak};
use firn_bench::index::noise::noise;
use firn_model::{Labels, Result, RowBatch, SeriesRef};
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

/// Defines one group, writes `rows` of it (times and members), and ends as a crash does.
fn fill_rows(folder: &Path, member_count: usize, rows: impl Iterator<Item = (i64, Range<usize>)>) {
    const BATCH_VALUES: usize = 100_000;
    let env = local_env(folder).expect("an environment");
    let db = Db::open(env, options(16 * LIMIT_BYTES)).expect("opens");
    let labels = |idx: usize| {
        Labels::from_pairs([("__name__", &*format!("m{idx}")), ("instance", "i")]).expect("valid")
    };
    let all: Vec<Labels> = (0..member_count).map(labels).collect();
    let series: Vec<SeriesRef> =
        db.resolve(&all).into_iter().map(|found| found.expect("resolved")).collect();
    let mut batch = RowBatch::default();
    let mut count = 0;
    for (time, members) in rows {
        count += members.len();
        series[members].iter().for_each(|&one| batch.push(one, time, 1.0));
        if count >= BATCH_VALUES {
            db.write(&mut batch).expect("written");
            (batch, count) = (RowBatch::default(), 0);
        }
    }
    db.write(&mut batch).expect("written");
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
    check_rows();
}

/// Rows without changes take a thousandth of their size in the log and in memory.
fn check_rows() {
    const MEMBERS: usize = 4_000;
    let wide = |row_count: i64| (0..row_count).map(|row| (1 << 30 | row, 0..MEMBERS));
    let late = (0..600_000).map(|row| (row, row as usize % MEMBERS..row as usize % MEMBERS + 1));
    check_rows_of("rows of all members", MEMBERS, 6_000, wide(6_000));
    check_rows_of("late rows of one member", MEMBERS, 600_500, wide(500).chain(late));
}

/// Checks a start with rows in the log, and the flush after it.
fn check_rows_of(
    what: &str,
    member_count: usize,
    row_count: u64,
    rows: impl Iterator<Item = (i64, Range<usize>)>,
) {
    let folder = tempfile::tempdir().expect("a folder");
    fill_rows(folder.path(), member_count, rows);
    let env = local_env(folder.path()).expect("an environment");
    let before = live_bytes();
    reset_peak();
    let progress = RecoveryProgress::default();
    let db = Db::open_idle(env, options(LIMIT_BYTES), &progress).expect("opens");
    let opened = peak_bytes() - before;
    assert_eq!(db.stats().recovery.rows, row_count, "{what}");
    reset_peak();
    db.flush().expect("flushed");
    let flushed = peak_bytes() - before;
    println!("{what}: {opened} at the start, {flushed} in a flush, of {LIMIT_BYTES}");
    assert!(opened.max(flushed) as u64 <= LIMIT_BYTES, "{what}");
}
