//! A run with a tenth of the memory that it needs. Writes are refused, no acknowledged change is
//! lost, and writes are accepted again once there is memory.

use std::cell::RefCell;

use firn_engine::{Engine, EngineOptions, Lane, RecoveryProgress, Step};
use firn_model::{Labels, Pool, Result, RowBatch};
use firn_sim::{Sim, for_seeds};

use crate::world::{EventCounts, Failure, World};

const SEEDS: u64 = 600;
const STEPS: u64 = 150;

/// Memory is scarce, and the power fails at random. Memory stays within its configured limit under
/// any load, and acknowledged changes are durable.
#[test]
fn invariant_8_short_of_memory_writes_are_refused_and_nothing_is_lost() {
    let tally = RefCell::new(EventCounts::default());
    let is_alone = std::env::var_os("FIRN_SEED").is_some();
    for_seeds(SEEDS, |seed| {
        let mut world = World::short_of_memory(seed, None);
        if is_alone {
            world.trace_to_stdout();
        }
        let digest = run(&mut world).unwrap_or_else(|failure| panic!("{failure}"));
        tally.borrow_mut().add(&world.tally);
        digest
    });
    println!("{:?}", tally.borrow());
    if !is_alone {
        tally.borrow().assert_happened(&[
            "write acknowledged",
            "write refused for memory",
            "series refused for memory",
            "Flush",
            "Convert",
            "compact",
            "crash",
            "held snapshot read",
            "process holds more",
        ]);
    }
}

/// A run under memory pressure. Returns the digest of all reads.
pub(crate) fn run(world: &mut World) -> Result<u64, Failure> {
    world.open()?;
    for _ in 0..STEPS {
        step(world)?;
        world.check_memory()?;
    }
    world.end_faults()?;
    world.verify_held()?;
    world.resume_writes()?;
    world.verify()?;
    world.crash()?;
    world.verify()?;
    Ok(world.digest())
}

fn step(world: &mut World) -> Result<(), Failure> {
    match world.rng.below(100) {
        0..=64 => world.write(),
        65..=66 => world.delete(),
        67..=74 => world.step(Lane::Head),
        75..=79 => world.step(Lane::Tree),
        80 => world.flush(),
        81..=85 => world.verify(),
        86..=87 => world.hold_snapshot(),
        88..=89 => world.verify_held(),
        90..=95 => {
            world.hold_unreserved();
            Ok(())
        }
        96 => world.restart_cleanly(),
        97 => world.crash(),
        _ => world.write_with_old_reference(),
    }
}

/// Queries take all memory that they may whenever new series were refused. The memory that writing
/// a series to an index file takes is reserved when the series is defined, so the file is written
/// at once and within the limit, and all series are defined in the end.
#[test]
fn queries_never_delay_the_file_of_new_series() {
    const LIMIT_BYTES: u64 = 64 << 20;
    const SERIES: usize = 40_000;
    let sim = Sim::new(0);
    let options =
        EngineOptions { memory_bytes_max: LIMIT_BYTES, shard_count: 4, ..EngineOptions::default() };
    let engine = Engine::open(sim.env(), options, &RecoveryProgress::default()).expect("opens");
    let budget = engine.budget();
    let (mut defined, mut refusals, mut seals) = (0, 0, 0);
    while defined < SERIES {
        let batch: Vec<Labels> = (defined..defined + 100).map(wide_labels).collect();
        let refs = engine.resolve(&batch);
        if refs.iter().all(Result::is_ok) {
            defined += 100;
            continue;
        }
        refusals += 1;
        let free = (budget.usage().used_bytes..=LIMIT_BYTES).rev().step_by(1 << 10);
        let queries = free.map(|end| end - budget.usage().used_bytes);
        let queries = queries.map(|bytes| budget.reserve(Pool::Query, bytes));
        let _queries = queries.flatten().next();
        let mut sealed = 0;
        while let Some(step) = engine.step(Lane::Head).expect("a step") {
            sealed += u64::from(step == Step::Seal);
        }
        assert!(sealed > 0, "new series are refused and no file is written: {budget:?}");
        seals += sealed;
    }
    let usage = budget.usage();
    assert!(usage.peak_bytes <= LIMIT_BYTES, "{usage:?}");
    println!("{refusals} refusals, {seals} seals, {usage:?}");
    assert!(refusals > 1, "a load that fits shows nothing");
}

/// The log of a crash defines more series than may be in memory: a start writes them to files while
/// it reads the log. Each start ends in a crash. On a full disk the series stay in memory.
#[test]
fn a_start_bounds_the_memory_of_the_series_that_the_log_defines() {
    const LIMIT_BYTES: u64 = 16 << 20;
    const SERIES: usize = 20_000;
    let sim = Sim::new(0);
    let open = |memory_bytes_max| {
        let options = EngineOptions {
            memory_bytes_max,
            shard_count: 4,
            recovery_threads: 2,
            new_series_bytes_max: u64::MAX,
            head_bytes_max: LIMIT_BYTES / 8,
            ..EngineOptions::default()
        };
        Engine::open(sim.env(), options, &RecoveryProgress::default()).expect("opens")
    };
    let labels: Vec<Labels> = (0..SERIES).map(wide_labels).collect();
    let engine = open(1 << 30);
    let mut refs = Vec::new();
    for batch in labels.chunks(500) {
        let mut rows = RowBatch::default();
        for series in engine.resolve(batch) {
            let series = series.expect("defines");
            rows.push(series, 1_000, 1.0);
            refs.push(Some(series));
        }
        engine.write(&mut rows).expect("writes");
    }
    let index = engine.stats().index;
    let waiting = index.unsealed_bytes + index.seal_bytes;
    assert!(waiting > 2 * LIMIT_BYTES && index.segment_count == 0, "{index:?}");
    drop(engine);

    sim.disk.set_capacity_bytes(0);
    let engine = open(LIMIT_BYTES);
    assert_eq!(engine.find(&labels).expect("finds"), refs, "on a full disk");
    assert_eq!(engine.stats().index.segment_count, 0);
    drop(engine);
    sim.disk.set_capacity_bytes(u64::MAX);
    let mut segment_count = 0;
    for start in 0..3 {
        let engine = open(LIMIT_BYTES);
        let stats = engine.stats();
        let index = &stats.index;
        println!("start {start}: {index:?} {:?}", stats.memory);
        let waiting = index.unsealed_bytes + index.seal_bytes;
        assert!(waiting <= LIMIT_BYTES / 8 * 3, "start {start}: {index:?}");
        assert!(stats.memory.peak_bytes <= LIMIT_BYTES, "start {start}: {:?}", stats.memory);
        assert!(index.segment_count >= 3, "start {start}: {index:?}");
        assert!(start == 0 || index.segment_count == segment_count, "files are kept: {index:?}");
        segment_count = index.segment_count;
        assert_eq!(engine.find(&labels).expect("finds"), refs, "start {start}");
        drop(engine);
    }
}

/// 61 labels; the list of names is its own.
fn wide_labels(idx: usize) -> Labels {
    let mut names: Vec<String> =
        (0..60).map(|at| format!("n{at:02}_{}", idx >> (at % 14) & 1)).collect();
    names.push(format!("z{idx}"));
    Labels::from_pairs(names.iter().map(|name| (name.as_str(), "1"))).expect("valid labels")
}
