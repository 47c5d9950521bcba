//! The memory of maintenance and reads is reserved: conversions, flushes, merges, clean-ups and
//! reads of rows of many shapes allocate no more bytes than the database has reserved.

use std::sync::{Mutex, PoisonError};

use firn_bench::index::counting::{
    Counting, compare_with, reset_unreserved_peak, unreserved_bytes, unreserved_peak,
};
use firn_model::{
    Budget, CancelToken, ErrorKind, Grouping, Labels, MatchOp, Matcher, QueryContext, RowBatch,
    Select, Selection, SeriesRef, TimeRange, Timestamp,
};
use firndb::{Db, Lane, Options, RecoveryProgress, local_env};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LIMIT_BYTES: u64 = 256 << 20;
/// The copies of a slice, of which the one of 4,000 members with 64 rows is the largest, and
/// buffers of files.
const SLACK_BYTES: i64 = 10 << 20;
/// Of one read.
const READ_BYTES: u64 = 16 << 20;
const HOUR_MS: Timestamp = 3_600_000;

static BUDGET: Mutex<Option<Budget>> = Mutex::new(None);

fn with_budget(budget: Option<Budget>) {
    *BUDGET.lock().unwrap_or_else(PoisonError::into_inner) = budget;
}

/// A number that cannot be compressed.
fn noise(seed: u64) -> f64 {
    let mut bits = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    bits ^= bits >> 29;
    f64::from_bits(bits.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 2)
}

struct Shape {
    name: &'static str,
    series: usize,
    /// Series with one `instance`.
    members: usize,
    /// Times of round `n`. Rows of odd rounds are flushed as rows.
    times: fn(usize) -> Vec<Timestamp>,
    rounds: usize,
    /// The only series with a value at a time; `None` if all have one.
    only: fn(Timestamp) -> Option<usize>,
    value: fn(u64) -> f64,
}

const ALL: fn(Timestamp) -> Option<usize> = |_| None;
/// Values of a batch.
const BATCH: usize = 20_000;

fn labels(idx: usize, members: usize) -> Labels {
    let (instance, metric) = (format!("i{}", idx / members), format!("m{}", idx % members));
    Labels::from_pairs([("__name__", metric.as_str()), ("instance", &instance), ("job", "j")])
        .expect("valid")
}

fn all() -> Matcher {
    Matcher::new("job", MatchOp::Equal, "j").expect("a matcher")
}

/// Reads all series one group after another; the largest ones are refused.
fn read(db: &Db) {
    let budget = db.budget().part(READ_BYTES);
    let context = QueryContext::new(CancelToken::new(), budget);
    let (range, grouping) = (TimeRange::ALL, Grouping::Series);
    let selection = Selection { matchers: vec![all()], range, grouping };
    let selected = db.snapshot().select(&selection, &context).expect("found");
    for group in 0..selected.group_count() {
        match selected.each(group..group + 1, &mut |_| Ok(())) {
            Err(error) if *error.kind() != ErrorKind::TooLarge => panic!("{error}"),
            _ => {}
        }
    }
}

fn check(shape: &Shape) -> Option<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut options = Options { memory_bytes_max: LIMIT_BYTES, ..Options::default() };
    options.tree.level0_tables_max = 1;
    let env = local_env(folder.path()).expect("an environment");
    let db = Db::open_idle(env, options, &RecoveryProgress::default()).expect("opens");
    with_budget(Some(db.budget().clone()));
    let mut most = (0, String::new());
    let mut measure = |what: String, work: &mut dyn FnMut()| {
        let before = unreserved_bytes();
        reset_unreserved_peak();
        work();
        let peak = unreserved_peak() - before;
        if peak > most.0 {
            most = (peak, what);
        }
    };
    let mut series: Vec<SeriesRef> = Vec::with_capacity(shape.series);
    for first in (0..shape.series).step_by(4_000) {
        let all: Vec<Labels> = (first..shape.series.min(first + 4_000))
            .map(|idx| labels(idx, shape.members))
            .collect();
        series.extend(db.resolve(&all).into_iter().map(|found| found.expect("resolved")));
    }
    // Memory for writing new series to a file is reserved before it is used.
    let mut first = RowBatch::default();
    series.iter().for_each(|&one| first.push(one, 0, 0.5));
    db.write(&mut first).expect("written");
    drop(first);
    db.flush().expect("flushed");
    for round in 0..shape.rounds {
        let (mut batch, mut count) = (RowBatch::default(), 0);
        let times = (shape.times)(round);
        for (at, &time) in times.iter().enumerate() {
            let members = (shape.only)(time).map_or(0..series.len(), |only| only..only + 1);
            count += members.len();
            for idx in members {
                batch.push(series[idx], time, (shape.value)(time as u64 ^ (idx as u64) << 40));
            }
            if count < BATCH && at + 1 < times.len() {
                continue;
            }
            db.write(&mut batch).expect("written");
            (batch, count) = (RowBatch::default(), 0);
            if round % 2 == 0 {
                measure(format!("conversion {round}"), &mut || {
                    db.settle(Lane::Head).expect("settles");
                });
            }
        }
        measure(format!("read before flush {round}"), &mut || read(&db));
        measure(format!("flush {round}"), &mut || db.flush().expect("flushed"));
        measure(format!("merge {round}"), &mut || db.settle(Lane::Tree).expect("settles"));
    }
    measure("read of flushed rows".to_owned(), &mut || read(&db));
    db.delete(&[vec![all()]], TimeRange::new(1, HOUR_MS / 2)).expect("deleted");
    measure("clean-up".to_owned(), &mut || db.clean_tombstones().expect("cleaned"));
    let (peak, what) = most;
    let text = format!("{}: {what} has {peak} unreserved bytes", shape.name);
    println!("{text}");
    let merges = db.stats().tree.traffic.compactions;
    assert!(merges > 0 || shape.rounds == 1, "{}: nothing was merged", shape.name);
    with_budget(None);
    (peak > SLACK_BYTES).then_some(text)
}

#[test]
fn maintenance_reserves_the_memory_that_it_takes() {
    compare_with(|| {
        let budget = BUDGET.try_lock().ok();
        budget.and_then(|budget| budget.as_ref().map(|it| it.usage().used_bytes)).unwrap_or(0)
    });
    let shapes = [
        Shape {
            name: "many series",
            series: 40_000,
            members: 100,
            times: |round| (0..8).map(|at| (round as i64 * 8 + at) * 15_000).collect(),
            rounds: 6,
            only: ALL,
            value: noise,
        },
        Shape {
            name: "series without groups",
            series: 20_000,
            members: 1,
            times: |round| (0..8).map(|at| (round as i64 * 8 + at) * 15_000).collect(),
            rounds: 6,
            only: ALL,
            value: noise,
        },
        Shape {
            name: "many rows of few series",
            series: 10,
            members: 10,
            times: |round| (0..20_000).map(|at| (round as i64 * 20_000 + at) * 100).collect(),
            rounds: 5,
            only: ALL,
            value: noise,
        },
        Shape {
            name: "large groups",
            series: 16_000,
            members: 4_000,
            times: |round| (0..30).map(|at| (round as i64 * 30 + at) * 15_000).collect(),
            rounds: 4,
            only: ALL,
            value: noise,
        },
        Shape {
            name: "many partitions",
            series: 20,
            members: 10,
            times: |round| (0..3_000).map(|at| at * 2 * HOUR_MS + round as i64).collect(),
            rounds: 4,
            only: ALL,
            value: noise,
        },
        Shape {
            name: "late rows in old partitions",
            series: 2_000,
            members: 100,
            times: |round| (0..40).map(|at| at * HOUR_MS / 4 + round as i64).collect(),
            rounds: 6,
            only: ALL,
            value: noise,
        },
        Shape {
            name: "one value each millisecond",
            series: 1,
            members: 1,
            times: |round| (0..1_500_000).map(|at| round as i64 * 1_500_000 + at).collect(),
            rounds: 2,
            only: ALL,
            value: |_| 1.0,
        },
        Shape {
            name: "a large group of one value",
            series: 4_000,
            members: 4_000,
            times: |round| (0..1_000).map(|at| (round as i64 * 1_000 + at) * 1_000).collect(),
            rounds: 2,
            only: ALL,
            value: |_| 1.0,
        },
        Shape {
            name: "late rows of single members of a large group",
            series: 4_000,
            members: 4_000,
            times: |round| match round {
                0 => (4_000_000..4_000_200).collect(),
                _ => (0..200_000).map(|at| at * 8 + round as i64).collect(),
            },
            rounds: 4,
            only: |time| (time < 4_000_000).then_some((time / 8 % 4_000) as usize),
            value: |_| 1.0,
        },
        Shape {
            name: "late rows of a large group",
            series: 4_000,
            members: 4_000,
            times: |round| {
                (0..200).map(|at| (round as i64 * 200 + (at + 100) % 200) * 1_000).collect()
            },
            rounds: 2,
            only: ALL,
            value: |_| 1.0,
        },
        Shape {
            name: "interleaved samples of one series",
            series: 1,
            members: 1,
            times: |round| (0..40_000).map(|at| at * 6 + round as i64).collect(),
            rounds: 6,
            only: ALL,
            value: |_| 1.0,
        },
        Shape {
            name: "members with interleaved times of their own",
            series: 20,
            members: 20,
            times: |round| (0..80_000).map(|at| at * 6 + round as i64).collect(),
            rounds: 6,
            only: |time| Some((time / 6 % 20) as usize),
            value: |_| 1.0,
        },
        Shape {
            name: "members in turn, which share times in a part of the rows",
            series: 17,
            members: 17,
            times: |round| {
                let dense = (0..100_000).map(|at| at * 10);
                let sparse = (0..300).map(|at| at * 3_330 + 5);
                dense.chain(sparse).map(|time| time + round as i64).collect()
            },
            rounds: 3,
            only: |time| Some(time as usize / 10 % if time % 10 < 5 { 15 } else { 17 }),
            value: |_| 1.0,
        },
    ];
    let failed: Vec<String> = shapes.iter().filter_map(check).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}
