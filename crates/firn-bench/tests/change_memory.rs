//! The memory of changes of many series is reserved: a transaction or a delete allocates no more
//! bytes than it reserves.

use std::path::Path;

use firn_bench::index::counting::{Counting, live_bytes, peak_bytes, reset_peak};
use firn_model::{Labels, MatchOp, Matcher, Result, RowBatch, TimeRange};
use firndb::{Db, Options, RecoveryProgress, local_env};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SERIES_COUNT: usize = 40_000;
const BATCH: usize = 4_000;
const LIMIT_BYTES: u64 = 256 << 20;
// Error texts, entries of small lists, and buffers of files.
const SLACK_BYTES: u64 = 64 << 10;

/// Half of the series share groups of 20 members, the others are alone.
fn labels(idx: usize) -> Labels {
    let (id, instance, job) = (idx.to_string(), (idx / 20).to_string(), (idx % 2).to_string());
    let group: &[(&str, &str)] = &[("instance", &instance), ("job", "x")];
    let own = [("__name__", "m"), ("id", id.as_str()), ("job", job.as_str())];
    match idx < SERIES_COUNT / 2 {
        true => Labels::from_pairs(group.iter().copied().chain([("__name__", id.as_str())])),
        false => Labels::from_pairs(own),
    }
    .expect("valid")
}

fn open(folder: &Path) -> Db {
    let options = Options { memory_bytes_max: LIMIT_BYTES, ..Options::default() };
    let env = local_env(folder).expect("an environment");
    Db::open_idle(env, options, &RecoveryProgress::default()).expect("opens")
}

/// A folder with two samples of each series in tables.
fn filled() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let db = open(folder.path());
    for first in (0..SERIES_COUNT).step_by(BATCH) {
        let all: Vec<Labels> = (first..first + BATCH).map(labels).collect();
        let mut batch = RowBatch::default();
        for series in db.resolve(&all) {
            let series = series.expect("resolved");
            batch.push(series, 1_000, 1.0);
            batch.push(series, 16_000, 2.0);
        }
        db.write(&mut batch).expect("written");
    }
    db.flush().expect("flushed");
    db.close().expect("closed");
    folder
}

/// Runs `work` in a fresh database, and compares the most bytes that are allocated with the most
/// that are reserved, both above those before.
fn check(what: &str, work: impl FnOnce(&Db) -> Result<()>) {
    let folder = filled();
    let db = open(folder.path());
    // Opening may have reserved more for a while: then the peak is not that of the change.
    let (allocated, usage) = (live_bytes(), db.budget().usage());
    reset_peak();
    work(&db).expect("done");
    let peak = (peak_bytes() - allocated) as u64;
    let after = (live_bytes().saturating_sub(allocated)) as u64;
    let then = db.budget().usage();
    let reserved = then.peak_bytes.saturating_sub(usage.used_bytes);
    let opened = usage.peak_bytes.saturating_sub(usage.used_bytes);
    let left = then.used_bytes - usage.used_bytes;
    let text = format!(
        "{what}: {peak} allocated, {reserved} reserved, {opened} by the start; then {after} and \
         {left}"
    );
    println!("{text}");
    assert!(opened < reserved, "the change reserved less than the start: {text}");
    assert!(peak <= reserved + SLACK_BYTES, "{text}");
}

fn all() -> Vec<Matcher> {
    vec![Matcher::new("job", MatchOp::Regex, ".+").expect("a pattern")]
}

#[test]
fn changes_of_many_series_reserve_what_they_allocate() {
    let range = TimeRange::new(0, 20_000);
    check("delete by matchers", |db| db.delete(&[all()], range).map(drop));
    check("update of a range", |db| {
        let mut transaction = db.begin()?;
        transaction.update_range(&all(), range, |_, sample| sample.value + 1.0)?;
        transaction.commit().map(drop)
    });
    check("inserts", |db| {
        let found = db.begin()?.read(&all(), range)?;
        let mut transaction = db.begin()?;
        for one in &found {
            transaction.insert(one.series, 30_000, 1.0)?;
        }
        transaction.commit().map(drop)
    });
    check("deletes and updates", |db| {
        let mut transaction = db.begin()?;
        transaction.delete_range(&all(), TimeRange::new(0, 5_000))?;
        transaction.update_range(&all(), range, |_, sample| sample.value + 1.0)?;
        transaction.delete_range(&all(), TimeRange::new(15_000, 20_000))?;
        transaction.commit().map(drop)
    });
}
