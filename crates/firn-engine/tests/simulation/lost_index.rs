//! Index files that are damaged or missing when the database opens: they come back from the slow tier, or the
//! database says which and does not open, or, if that is asked for, goes on without their series and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use firn_engine::{Engine, EngineOptions, Lane, RecoveryProgress};
use firn_model::{ErrorKind, Labels, Result, RowBatch, SeriesRef, TimeRange};
use firn_sim::{Seen, Sim};

fn open(sim: &Sim, forget_lost_index: bool) -> Result<Arc<Engine>> {
    let options = EngineOptions {
        shard_count: 4,
        log_segment_bytes: 64 << 10,
        forget_lost_index,
        tree: firn_tree::TreeOptions { block_bytes: 512, ..Default::default() },
        ..EngineOptions::default()
    };
    Engine::open(sim.env(), options, &RecoveryProgress::default())
}

/// Members of one group, and every third alone.
fn labels(idx: usize) -> Labels {
    let name = format!("m{idx}");
    let grouped = [("__name__", name.as_str()), ("job", "a"), ("instance", "1")];
    let alone = [("__name__", name.as_str()), ("only", "here")];
    let pairs = if idx.is_multiple_of(3) { &alone[..] } else { &grouped[..] };
    Labels::from_pairs(pairs.iter().copied()).expect("valid labels")
}

/// A sample of each at `ts`; their references.
fn write(engine: &Engine, series: std::ops::Range<usize>, ts: i64) -> Vec<SeriesRef> {
    let labels: Vec<Labels> = series.map(labels).collect();
    let refs = engine.resolve(&labels).into_iter().map(|found| found.expect("resolves"));
    let refs: Vec<SeriesRef> = refs.collect();
    let mut batch = RowBatch::default();
    refs.iter().for_each(|&series| batch.push(series, ts, ts as f64));
    engine.write(&mut batch).expect("a write");
    refs
}

/// How many samples of each series there are.
fn counts(engine: &Engine) -> BTreeMap<Labels, usize> {
    let seen = Seen::read(&engine.snapshot(), &[], TimeRange::ALL).expect("a read");
    seen.series.into_iter().map(|(labels, samples)| (labels, samples.len())).collect()
}

fn index_files(sim: &Sim) -> Vec<String> {
    let names = sim.env().disk.list("index").expect("a list");
    let mut files: Vec<String> = names.iter().map(|name| format!("index/{name}")).collect();
    files.sort();
    files
}

/// Two index files, a group with members in both, and rows of both in the log.
fn filled(sim: &Sim) -> Arc<Engine> {
    let engine = open(sim, false).expect("opens");
    write(&engine, 0..12, 1_000);
    engine.flush().expect("a flush");
    write(&engine, 0..24, 2_000);
    engine.flush().expect("a flush");
    write(&engine, 0..24, 3_000);
    engine
}

#[test]
fn a_lost_index_file_comes_back_from_the_slow_tier() {
    for damage in [0, 1] {
        let sim = Sim::new(31);
        let engine = filled(&sim);
        engine.flush().expect("a flush");
        for _ in 0..3 {
            sim.clock.advance(Duration::from_secs(6 * 3_600));
            while engine.step(Lane::Tree).expect("a step").is_some() {}
        }
        write(&engine, 0..24, 4_000);
        let want = counts(&engine);
        drop(engine);
        let files = index_files(&sim);
        for file in &files {
            match damage {
                0 => sim.env().disk.remove(file).expect("removed"),
                _ => sim
                    .disk
                    .damage(file, |bytes| {
                        let end = bytes.len() - 1;
                        bytes[end] ^= 1;
                    })
                    .expect("damaged"),
            }
        }
        let engine = open(&sim, false).expect("opens with what the slow tier has");
        assert_eq!(index_files(&sim), files);
        assert_eq!(counts(&engine), want);
        assert!(engine.stats().recovery.damage.is_empty(), "nothing is lost");
        write(&engine, 0..24, 5_000);
        assert!(
            counts(&engine).values().zip(want.values()).all(|(now, before)| *now == before + 1)
        );
    }
}

/// The file of the first members is lost, then that of the last: the database names it and stays closed; asked to, it
/// goes on with the others, and nothing that is written from then on meets what was lost.
#[test]
fn a_lost_index_file_is_named_and_forgotten_only_when_asked() {
    for (lost, is_lost) in [(0, 0..12), (1, 12..24)] {
        let sim = Sim::new(32);
        let engine = filled(&sim);
        let before = engine.resolve(&(0..24).map(labels).collect::<Vec<_>>());
        let before: Vec<SeriesRef> =
            before.into_iter().map(|found| found.expect("known")).collect();
        drop(engine);
        let file = index_files(&sim)[lost].clone();
        sim.env().disk.remove(&file).expect("removed");
        for _ in 0..2 {
            let error = open(&sim, false).expect_err("a file is missing");
            assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(&file) && text.contains("--forget-lost-index"), "{text}");
        }
        let engine = open(&sim, true).expect("opens without it");
        let damage = &engine.stats().recovery.damage;
        assert!(damage.len() == 1 && damage[0].contains("12 series are forgotten"), "{damage:?}");
        let is_left = |idx: &usize| !is_lost.contains(idx);
        let want: BTreeMap<Labels, usize> = (0..24)
            .filter(is_left)
            .map(|idx| (labels(idx), if idx < 12 { 3 } else { 2 }))
            .collect();
        assert_eq!(counts(&engine), want, "all others have all their samples");
        // From here on as ever: what is written is new, and a restart needs no option.
        let again = write(&engine, 0..30, 4_000);
        for (idx, (now, old)) in again.iter().zip(&before).enumerate() {
            assert_eq!(now == old, is_left(&idx), "m{idx}: {old:?}, then {now:?}");
            assert!(
                is_left(&idx) || !before.contains(now),
                "m{idx} has a reference of before: {now:?}"
            );
        }
        assert!(
            again[24..].iter().all(|series| before.iter().all(|old| old.group != series.group))
        );
        let want = counts(&engine);
        assert_eq!(want.len(), 30);
        assert_eq!(want[&labels(is_lost.start)], 1);
        engine.flush().expect("a flush");
        assert_eq!(counts(&engine), want);
        sim.crash();
        drop(engine);
        sim.restart();
        let engine = open(&sim, false).expect("opens");
        assert_eq!(counts(&engine), want);
        assert!(engine.stats().recovery.damage.is_empty());
        assert_eq!(write(&engine, 0..30, 5_000), again);
    }
}

/// What is damaged is put aside, not thrown away, whether its end is damaged or a block that the log's replay asks.
#[test]
fn a_damaged_index_file_is_put_aside() {
    let sim = Sim::new(33);
    drop(filled(&sim));
    let file = index_files(&sim)[0].clone();
    let whole = sim.disk.bytes(&file).expect("a file");
    let mut refused = 0;
    for at in (0..whole.len()).step_by(7) {
        sim.disk.damage(&file, |bytes| bytes[at] ^= 0x10).expect("damaged");
        match open(&sim, false) {
            Ok(engine) => drop(engine),
            Err(e) => {
                assert!(
                    matches!(e.kind(), ErrorKind::Corrupt { .. }) && e.to_string().contains(&file),
                    "{e}"
                );
                refused += 1;
            }
        }
        sim.disk.damage(&file, |bytes| bytes[at] ^= 0x10).expect("mended");
    }
    assert!(refused > 0);
    let damaged = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() / 2);
    sim.disk.damage(&file, damaged).expect("damaged");
    let engine = open(&sim, true).expect("opens without it");
    assert_eq!(counts(&engine).len(), 12);
    let aside = file.replace(".seg", ".lost");
    assert_eq!(sim.disk.bytes(&aside).expect("what is left"), whole[..whole.len() / 2]);
}
