//! Threads that define series, write, query and do the background work, with so little memory that
//! each of them reclaims it from the others. Debug builds check the order of all locks on the way,
//! so a wait for each other is found even if it does not happen in this run.

use std::sync::atomic::{AtomicUsize, Ordering};

use firn_engine::{Engine, EngineOptions, Lane, RecoveryProgress};
use firn_model::{
    Grouping, Labels, MatchOp, Matcher, Pool, QueryContext, Result, RowBatch, Select, Selection,
    TimeRange,
};
use firn_sim::Sim;

const LIMIT_BYTES: u64 = 24 << 20;
const WRITERS: usize = 2;
const READERS: usize = 2;
const ROUNDS: usize = 60;
const BATCH: usize = 200;
// Refused work is tried again this often, with background work in between.
const TRIES: usize = 1_000;

/// Counts a thread as ended, also if it panics: the others then end too.
struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn labels(writer: usize, idx: usize) -> Labels {
    let (id, text) = (format!("{writer}-{idx}"), "x".repeat(200));
    let pairs = [("__name__", "m"), ("job", "j"), ("id", id.as_str()), ("text", text.as_str())];
    Labels::from_pairs(pairs).expect("valid")
}

fn define_and_write(engine: &Engine, writer: usize, round: usize) -> Result<()> {
    let first = round * BATCH;
    let all: Vec<Labels> = (first..first + BATCH).map(|idx| labels(writer, idx)).collect();
    let mut batch = RowBatch::default();
    for series in engine.resolve(&all) {
        let series = series?;
        (0..20).for_each(|step| batch.push(series, 1_000 * step, 1.0));
    }
    engine.write(&mut batch).map(drop)
}

/// Reads the first hundred series of each writer after it has taken all memory but `free_bytes`.
/// Returns the number of keys.
fn query(engine: &Engine, grouping: &Grouping, free_bytes: u64) -> Result<usize> {
    let budget = engine.budget();
    let free = LIMIT_BYTES * Pool::Query.threshold_percent() / 100;
    let taken = free.saturating_sub(budget.usage().used_bytes + free_bytes);
    let _taken = budget.reserve(Pool::Query, taken)?;
    let context = QueryContext { budget: budget.part(8 << 20), ..QueryContext::unbounded() };
    let matchers = vec![Matcher::new("id", MatchOp::Regex, "[0-9]-[0-9]{1,2}")?];
    let range = TimeRange::new(0, 20_000);
    let selection = Selection { matchers, range, grouping: grouping.clone() };
    Ok(engine.snapshot().select(&selection, &context)?.keys().len())
}

#[test]
fn threads_that_reclaim_memory_do_not_wait_for_each_other() {
    let sim = Sim::new(16);
    let options = EngineOptions {
        memory_bytes_max: LIMIT_BYTES,
        head_bytes_max: LIMIT_BYTES / 8,
        shard_count: 4,
        ..EngineOptions::default()
    };
    let engine = Engine::open(sim.env(), options, &RecoveryProgress::default()).expect("opens");
    let running = AtomicUsize::new(WRITERS + READERS);
    let retry = |work: &dyn Fn() -> Result<()>| {
        for _ in 0..TRIES {
            match work() {
                Ok(()) => return true,
                Err(error) => assert!(error.is_retriable(), "{error}"),
            }
            engine.step(Lane::Head).expect("a step");
            std::thread::yield_now();
        }
        false
    };
    let (written, read) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (engine, running, retry, written) = (&engine, &running, &retry, &written);
            scope.spawn(move || {
                let _running = Running(running);
                for round in 0..ROUNDS {
                    let is_done = retry(&|| define_and_write(engine, writer, round));
                    written.fetch_add(usize::from(is_done), Ordering::SeqCst);
                }
            });
        }
        for reader in 0..READERS {
            let (engine, running, read) = (&engine, &running, &read);
            scope.spawn(move || {
                let _running = Running(running);
                let groupings = [Grouping::Series, Grouping::By(vec!["id".to_owned()])];
                for round in 0..ROUNDS {
                    let grouping = &groupings[(reader + round) % 2];
                    match query(engine, grouping, 16 << 10) {
                        Ok(count) => drop(read.fetch_add(count, Ordering::SeqCst)),
                        // Nothing is left to be reclaimed at this moment.
                        Err(error) => assert!(error.is_retriable(), "{error}"),
                    }
                }
            });
        }
        for lane in [Lane::Head, Lane::Tree] {
            let (engine, running) = (&engine, &running);
            scope.spawn(move || {
                while running.load(Ordering::SeqCst) > 0 {
                    if engine.step(lane).expect("a step").is_none() {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    let usage = engine.budget().usage();
    println!("{written:?} batches, {read:?} keys, {usage:?}");
    assert!(written.into_inner() > ROUNDS, "hardly anything was written: {usage:?}");
    // Queries still leave room for the last refused write.
    engine.budget().forget_owed(u64::MAX);
    let found = query(&engine, &Grouping::Series, 1 << 20).expect("memory for a small query");
    assert_eq!(found, 100 * WRITERS);
}
