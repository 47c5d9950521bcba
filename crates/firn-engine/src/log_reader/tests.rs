//! A reader beside a database that writes, flushes, restarts and crashes: every acknowledged sample
//! in the order of its series, as long as the log is kept for it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use firn_index::GroupRule;
use firn_log::LogOptions;
use firn_model::{RowBatch, STALE_NAN_BITS};
use firn_sim::{Rng, Sim, for_seeds};

use super::*;
use crate::{EngineOptions, Lane, RecoveryProgress};

const START_MS: Timestamp = 1_760_000_000_000;

/// Per series the samples in the order in which they were written.
type Written = BTreeMap<Labels, Vec<(Timestamp, u64)>>;

fn open(sim: &Sim, reader_log_bytes_max: u64) -> Arc<Engine> {
    open_with(sim, reader_log_bytes_max, 8 << 10)
}

fn open_with(sim: &Sim, reader_log_bytes_max: u64, segment_bytes: u64) -> Arc<Engine> {
    let options = EngineOptions {
        memory_bytes_max: 256 << 20,
        shard_count: 4,
        stream_count: Some(2),
        reader_log_bytes_max,
        log: LogOptions { segment_bytes, ..LogOptions::default() },
        ..EngineOptions::default()
    };
    Engine::open(sim.env(), options, &RecoveryProgress::default()).unwrap()
}

/// Most instances have no job: the first of their series are lone, then the index has
/// learned their groups.
fn labels(idx: u64) -> Labels {
    let (metric, instance) = (format!("m{}", idx % 8), format!("i{}", idx / 8));
    let mut pairs = vec![("__name__", metric.as_str()), ("instance", &instance)];
    if (idx / 8).is_multiple_of(4) {
        pairs.push(("job", "j"));
    }
    Labels::from_pairs(pairs).unwrap()
}

fn write(engine: &Engine, rng: &mut Rng, world: &mut Written, ts: Timestamp) {
    let sets: Vec<Labels> = (0..1 + rng.below(20))
        .map(|_| labels(rng.below(40)))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let mut batch = RowBatch::default();
    let mut transaction = rng.chance(0.1).then(|| engine.begin().unwrap());
    for (labels, series) in sets.iter().zip(engine.resolve(&sets)) {
        let bits = if rng.chance(0.1) { STALE_NAN_BITS } else { rng.next_u64() >> 12 };
        let series = series.unwrap();
        match &mut transaction {
            Some(transaction) => transaction.insert(series, ts, f64::from_bits(bits)).unwrap(),
            None => batch.push(series, ts, f64::from_bits(bits)),
        }
        world.entry(labels.clone()).or_default().push((ts, bits));
    }
    match transaction {
        Some(transaction) => drop(transaction.commit().unwrap()),
        None => drop(engine.write(&mut batch).unwrap()),
    }
}

/// Reads on; the samples are added to `found` and the position is stored.
fn read(reader: &mut LogReader, found: &mut Written, count_max: usize) {
    let mut samples = Vec::new();
    let reading = reader.read(&mut samples, count_max, None).unwrap();
    assert_eq!((reading.lost_rows, reading.damaged_bytes), (0, 0));
    let series: Vec<SeriesRef> = samples.iter().map(|sample| sample.series).collect();
    let labels = reader.engine().labels_of(&series).unwrap();
    for (sample, labels) in samples.iter().zip(labels) {
        let written = (sample.ts, sample.value.to_bits());
        found.entry(labels.unwrap()).or_default().push(written);
    }
    let done = reader.positions();
    reader.save(&ReaderProgress { tried: done.clone(), done, note: 7 }).unwrap();
}

/// Before, a reader kept the memory for the largest entry, in steps of 1 MiB: forty of them took
/// most of 128 MiB.
#[test]
fn a_reader_keeps_only_the_memory_of_its_state() {
    let sim = Sim::new(1);
    let engine = open_with(&sim, u64::MAX, 8 << 20);
    let (mut reader, _) = engine.log_reader("a").unwrap();
    let sets: Vec<Labels> = (0..5_000).map(labels).collect();
    let all: Vec<SeriesRef> = engine.resolve(&sets).into_iter().map(Result::unwrap).collect();
    for ts in START_MS..START_MS + 3 {
        let mut batch = RowBatch::default();
        all.iter().for_each(|&series| batch.push(series, ts, 0.1 * ts as f64));
        engine.write(&mut batch).unwrap();
        let mut samples = Vec::new();
        reader.read(&mut samples, usize::MAX, None).unwrap();
        assert_eq!(samples.len(), all.len());
        let (used, held) = (reader.decoder.heap_bytes(), reader.memory.bytes());
        assert!((used..used + MEMORY_STEP_BYTES).contains(&held), "{held} bytes for {used}");
        assert!(held <= 512 << 10, "{held}");
    }
}

fn open_within(sim: &Sim, memory_bytes_max: u64) -> Arc<Engine> {
    let options = EngineOptions { memory_bytes_max, shard_count: 1, ..EngineOptions::default() };
    Engine::open(sim.env(), options, &RecoveryProgress::default()).unwrap()
}

/// Before, a reader reserved 16 times the labels of a commit, which it does not even decode: 7 MB
/// of them stopped it for ever.
#[test]
fn definitions_need_no_memory_of_a_reader() {
    let sim = Sim::new(1);
    let engine = open_within(&sim, 64 << 20);
    let (mut reader, _) = engine.log_reader("a").unwrap();
    let long = |idx: usize| idx.to_string() + &"x".repeat(60_000);
    let set = |idx| Labels::from_pairs([("idx", long(idx).as_str())]).unwrap();
    let sets: Vec<Labels> = (0..120).map(set).collect();
    let mut batch = RowBatch::default();
    for series in engine.resolve(&sets) {
        batch.push(series.unwrap(), START_MS, 1.0);
    }
    engine.write(&mut batch).unwrap();
    let mut samples = Vec::new();
    let reading = reader.read(&mut samples, usize::MAX, None).unwrap();
    assert_eq!((samples.len(), reading.is_at_end), (120, true));
    assert!(reader.memory.bytes() <= 512 << 10, "{}", reader.memory.bytes());
}

fn write_transaction(engine: &Engine, count: i64) {
    let series = engine.resolve(&[labels(0)]).pop().unwrap().unwrap();
    let mut transaction = engine.begin().unwrap();
    (0..count).for_each(|at| transaction.insert(series, START_MS + at, 1.0).unwrap());
    transaction.commit().unwrap();
}

/// Before, an entry that found no memory was skipped by the next call, and the samples of a
/// transaction were not reserved.
#[test]
fn an_entry_without_memory_is_read_later() {
    let sim = Sim::new(1);
    let engine = open_within(&sim, 64 << 20);
    let (mut reader, _) = engine.log_reader("a").unwrap();
    write_transaction(&engine, 50_000);
    let mut taken = engine.rooms.budget.empty(Pool::Requests);
    taken.take(64 << 20);
    let mut samples = Vec::new();
    for _ in 0..3 {
        assert!(reader.read(&mut samples, 10, None).is_err());
        assert_eq!(samples.len(), 0);
    }
    drop(taken);
    reader.read(&mut samples, 10, None).unwrap();
    assert_eq!((samples.len(), samples.capacity()), (50_000, 50_000));
}

/// A server with more memory may have written it.
#[test]
fn a_transaction_that_never_fits_is_counted_as_lost() {
    let sim = Sim::new(1);
    let engine = open_within(&sim, 1 << 30);
    drop(engine.log_reader("a").unwrap());
    write_transaction(&engine, 700_000);
    drop(engine);
    let engine = open_within(&sim, 40 << 20);
    write_transaction(&engine, 7);
    let (mut reader, _) = engine.log_reader("a").unwrap();
    let mut samples = Vec::new();
    let reading = reader.read(&mut samples, usize::MAX, None).unwrap();
    assert_eq!((samples.len(), reading.lost_rows), (7, 700_000));
}

#[test]
fn a_reader_sees_every_sample_across_flushes_restarts_and_crashes() {
    let learned_count = Cell::new(0);
    for_seeds(40, |seed| {
        let (sim, mut rng) = (Sim::new(seed), Rng::new(seed));
        let (mut world, mut found) = (Written::new(), Written::new());
        let mut ts = START_MS;
        let mut engine = open(&sim, u64::MAX);
        let (mut reader, _) = engine.log_reader("a").unwrap();
        for _ in 0..120 {
            match rng.below(20) {
                0 => engine.flush().unwrap(),
                1 => drop(engine.step(Lane::Head).unwrap()),
                2 => {
                    drop((reader, engine));
                    if rng.chance(0.5) {
                        sim.restart();
                    }
                    engine = open(&sim, u64::MAX);
                    let progress;
                    (reader, progress) = engine.log_reader("a").unwrap();
                    assert!(progress.done == reader.positions());
                }
                3..7 => read(&mut reader, &mut found, 1 + rng.below(50) as usize),
                _ => {
                    ts += 1_000;
                    write(&engine, &mut rng, &mut world, ts);
                }
            }
        }
        while reader.behind_bytes() > 0 {
            let before = reader.positions();
            read(&mut reader, &mut found, 1_000);
            if reader.positions() == before {
                break;
            }
        }
        assert_eq!(engine.reader_dropped_bytes(), 0);
        let identity = labels(8).filter(|name| name == "instance");
        let is_learned = engine.group_rule(&identity) != GroupRule::Other;
        learned_count.set(learned_count.get() + u64::from(is_learned));
        // Transactions are in the first stream, and their order with rows of others is open.
        let sorted = |world: &Written| {
            let mut world = world.clone();
            world.values_mut().for_each(|samples| samples.sort_unstable());
            world
        };
        for (labels, samples) in sorted(&world) {
            let found = sorted(&found).remove(&labels).unwrap_or_default();
            let missing: Vec<_> = samples.iter().filter(|one| !found.contains(one)).collect();
            assert!(missing.is_empty(), "{labels}: {missing:?}");
            assert_eq!(found, samples, "{labels}");
        }
        world.values().map(|samples| samples.len() as u64).sum()
    });
    assert!(learned_count.get() > 0 || std::env::var_os("FIRN_SEED").is_some());
}

#[test]
fn the_log_is_kept_for_a_reader_up_to_the_limit_and_the_rest_is_counted() {
    let (sim, mut rng) = (Sim::new(1), Rng::new(1));
    let (mut world, mut found) = (Written::new(), Written::new());
    let limit = 64 << 10;
    let engine = open(&sim, limit);
    let (mut reader, _) = engine.log_reader("a").unwrap();
    let mut held_max = 0;
    for round in 0..3_000 {
        write(&engine, &mut rng, &mut world, START_MS + round * 1_000);
        if round % 100 == 0 {
            engine.flush().unwrap();
            held_max = held_max.max(engine.reader_held_bytes());
        }
    }
    engine.flush().unwrap();
    assert!(engine.reader_dropped_bytes() > 0);
    // A segment that is partly needed is kept whole, in each of two streams.
    assert!(held_max > limit / 4 && held_max <= limit + 4 * (8 << 10), "{held_max}");
    let dropped_bytes = engine.reader_dropped_bytes();
    let mut missing_bytes = 0;
    loop {
        let mut samples = Vec::new();
        let reading = reader.read(&mut samples, 1_000, None).unwrap();
        missing_bytes += reading.missing_bytes;
        let series: Vec<SeriesRef> = samples.iter().map(|sample| sample.series).collect();
        let labels = engine.labels_of(&series).unwrap();
        for (sample, labels) in samples.iter().zip(labels) {
            found.entry(labels.unwrap()).or_default().push((sample.ts, sample.value.to_bits()));
        }
        if reading.is_at_end {
            break;
        }
    }
    assert_eq!(missing_bytes, dropped_bytes);
    for (labels, samples) in &mut found {
        // Transactions are in the first stream, which is read first.
        samples.sort_unstable();
        let newest: Vec<_> = samples.iter().rev().take(5).collect();
        let written: Vec<_> = world[labels].iter().rev().take(5).collect();
        assert_eq!(newest, written, "the newest samples are there");
    }
    // Once it is forgotten, nothing is kept.
    engine.keep_log_readers(&[]).unwrap();
    while engine.step(Lane::Head).unwrap().is_some() {}
    assert_eq!(engine.reader_held_bytes(), 0);
    assert!(reader.save(&ReaderProgress::default()).is_err());
}

/// The limit holds for files, and without a write: each restart closes a file with few entries.
/// Entries that were read are dropped without a write, too.
#[test]
fn held_files_are_bounded_and_released_while_nobody_writes() {
    let (sim, mut rng, mut world) = (Sim::new(7), Rng::new(7), Written::new());
    let limit = 64 << 10;
    let open = |sim: &Sim| open(sim, limit);
    drop(open(&sim).log_reader("a").unwrap());
    for round in 0..30 {
        let engine = open(&sim);
        write(&engine, &mut rng, &mut world, START_MS + round * 1_000);
        engine.flush().unwrap();
    }
    let idle = |engine: &Engine| while engine.step(Lane::Head).unwrap().is_some() {};
    let engine = open(&sim);
    idle(&engine);
    let held = engine.reader_held_bytes();
    assert!((limit / 2..=limit).contains(&held), "{held}");
    assert!(engine.reader_dropped_bytes() > 0);
    let (mut reader, progress) = engine.log_reader("a").unwrap();
    assert!(reader.bytes_after(&progress.done) > 0);
    let mut found = Written::new();
    read(&mut reader, &mut found, usize::MAX);
    assert!(reader.bytes_after(&progress.done) > 0, "as long as they are not done");
    idle(&engine);
    // A file of each of the two streams stays, as the proof that the log was not lost.
    assert_eq!(engine.reader_held_bytes(), 2 * (8 << 10));
}

#[test]
fn a_range_is_read_again_exactly() {
    let (sim, mut rng, mut world) = (Sim::new(3), Rng::new(3), Written::new());
    let engine = open(&sim, u64::MAX);
    let (mut reader, began) = engine.log_reader("a").unwrap();
    for round in 0..200 {
        write(&engine, &mut rng, &mut world, START_MS + round * 1_000);
    }
    let mut first = Vec::new();
    reader.read(&mut first, 700, None).unwrap();
    let until = reader.positions();
    reader.read(&mut Vec::new(), 500, None).unwrap();
    reader.seek(&began.done);
    let mut again = Vec::new();
    reader.read(&mut again, usize::MAX, Some(&until)).unwrap();
    assert_eq!(reader.positions(), until);
    let bits = |samples: &[LoggedSample]| {
        samples.iter().map(|s| (s.series, s.ts, s.value.to_bits())).collect::<Vec<_>>()
    };
    assert_eq!(bits(&again), bits(&first));
    // A range that ends with its segment, behind the last entry, has none of the next segment.
    reader.read(&mut Vec::new(), usize::MAX, None).unwrap();
    drop(reader);
    drop(engine);
    let engine = open(&sim, u64::MAX);
    let (mut reader, _) = engine.log_reader("a").unwrap();
    let mut first = Vec::new();
    reader.read(&mut first, usize::MAX, None).unwrap();
    let until = reader.positions();
    write(&engine, &mut rng, &mut world, START_MS + 300_000);
    reader.seek(&began.done);
    let mut again = Vec::new();
    reader.read(&mut again, usize::MAX, Some(&until)).unwrap();
    assert_eq!(bits(&again), bits(&first));
    assert!(engine.log_reader("No").is_err() && engine.log_reader("").is_err());
}

/// Writing comes first: a full disk costs a reader its log, never a writer.
#[test]
fn a_full_disk_drops_the_log_that_is_kept_for_readers() {
    let (sim, mut rng, mut world) = (Sim::new(5), Rng::new(5), Written::new());
    let engine = open(&sim, u64::MAX);
    let (_reader, _) = engine.log_reader("a").unwrap();
    let mut ts = START_MS;
    while engine.reader_held_bytes() < 256 << 10 {
        for _ in 0..100 {
            ts += 1_000;
            write(&engine, &mut rng, &mut world, ts);
        }
        engine.flush().unwrap();
    }
    let files = sim.disk.files();
    let used = files.iter().map(|name| sim.disk.bytes(name).unwrap().len() as u64);
    sim.disk.set_capacity_bytes(used.sum::<u64>());
    let labels = labels(0);
    let series = engine.resolve(&[labels]).remove(0).unwrap();
    let mut steps = 0;
    while engine.reader_dropped_bytes() == 0 {
        ts += 1_000;
        let mut batch = RowBatch::default();
        batch.push(series, ts, 1.0);
        if engine.write(&mut batch).is_err() {
            // As the thread of the lane does.
            let _ = engine.step(Lane::Head);
        }
        steps += 1;
        assert!(steps < 100_000, "the log is still kept: {}", engine.reader_held_bytes());
    }
    assert_eq!(engine.reader_held_bytes(), 0);
    let mut batch = RowBatch::default();
    batch.push(series, ts + 1_000, 1.0);
    engine.write(&mut batch).unwrap();
}

/// A request may have over a million samples of one series, which take a few bytes each in the log.
#[test]
fn a_large_batch_is_read_in_parts() {
    const COUNT: i64 = 400_000;
    let sim = Sim::new(1);
    let engine =
        Engine::open(sim.env(), EngineOptions::default(), &RecoveryProgress::default()).unwrap();
    let (mut reader, _) = engine.log_reader("a").unwrap();
    let series = engine.resolve(&[labels(0)]).pop().unwrap().unwrap();
    let mut batch = RowBatch::default();
    (0..COUNT).for_each(|at| batch.push(series, START_MS + at, 1.0));
    assert_eq!(engine.write(&mut batch).unwrap().written, COUNT as u64);
    let mut next = START_MS;
    while next < START_MS + COUNT {
        let mut samples = Vec::new();
        reader.read(&mut samples, 1_000, None).unwrap();
        assert!((1..10_000).contains(&samples.len()), "{} samples at once", samples.len());
        for sample in samples {
            assert_eq!(sample, LoggedSample { series, ts: next, value: 1.0 });
            next += 1;
        }
    }
}
