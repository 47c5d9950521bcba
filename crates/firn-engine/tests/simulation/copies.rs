//! Copies of a database: a copy is complete and independent of its original.

use std::sync::Arc;
use std::time::Duration;

use firn_engine::{Engine, EngineOptions, Lane, LogOptions, RecoveryProgress};
use firn_env::{OpenMode, PutMode};
use firn_model::{ErrorKind, Labels, Matcher, RowBatch, TimeRange};
use firn_sim::{ObservedSamples, Sim};

fn open(sim: &Sim) -> Arc<Engine> {
    let options = EngineOptions {
        shard_count: 4,
        tree: firn_tree::TreeOptions { bucket_grace_ms: 0, ..Default::default() },
        log: LogOptions { segment_bytes: 64 << 10, ..Default::default() },
        ..EngineOptions::default()
    };
    Engine::open(sim.env(), options, &RecoveryProgress::default()).expect("opens")
}

fn write(engine: &Engine, series: std::ops::Range<usize>, ts: i64) {
    let labels: Vec<Labels> = series
        .map(|idx| Labels::from_pairs([("__name__", format!("m{idx}").as_str())]).expect("labels"))
        .collect();
    let mut batch = RowBatch::default();
    for series in engine.resolve(&labels) {
        batch.push(series.expect("resolves"), ts, ts as f64);
    }
    engine.write(&mut batch).expect("a write");
}

fn read_all(engine: &Engine) -> ObservedSamples {
    ObservedSamples::read(&engine.snapshot(), &[], TimeRange::ALL).expect("a read")
}

fn settle(engine: &Engine) {
    while engine.step(Lane::Tree).expect("a step").is_some() {}
}

/// A database with data on both tiers and in memory, and with deletes that no table contains yet.
fn filled(sim: &Sim) -> Arc<Engine> {
    let engine = flushed(sim);
    let now = sim.env().clock.now_ms();
    let m3 = vec![Matcher::equal("__name__", "m3")];
    engine.delete(&[m3], TimeRange::new(10, now + 5)).expect("a delete");
    write(&engine, 0..40, now + 60);
    write(&engine, 0..5, 20);
    engine
}

/// A database with data on both tiers.
fn flushed(sim: &Sim) -> Arc<Engine> {
    let engine = open(sim);
    (0..50).for_each(|ts| write(&engine, 0..20, ts));
    engine.flush().expect("a flush");
    sim.clock.advance(Duration::from_secs(6 * 3_600));
    settle(&engine);
    let now = sim.env().clock.now_ms();
    (0..50).for_each(|ts| write(&engine, 0..30, now + ts));
    engine.flush().expect("a flush");
    engine
}

#[test]
fn a_copy_has_everything_and_does_not_change_with_the_original() {
    let (sim, other) = (Sim::new(1), Sim::new(2));
    let engine = filled(&sim);
    let before = read_all(&engine);
    let report = engine.copy_to(&other.env(), false).expect("a copy");
    assert!(report.files > 2 && report.objects > 0, "{report:?}");
    engine.delete(&[vec![]], TimeRange::ALL).expect("a delete");
    engine.clean_tombstones().expect("cleaning");
    settle(&engine);
    assert_eq!(read_all(&engine).sample_count(), 0);
    other.crash();
    other.restart();
    let copy = open(&other);
    assert_eq!(read_all(&copy), before);
    assert!(copy.stats().recovery.damage.is_empty(), "{:?}", copy.stats().recovery);
    // The copy is a normal database.
    write(&copy, 0..60, other.env().clock.now_ms());
    copy.clean_tombstones().expect("cleaning");
    settle(&copy);
    drop(copy);
    assert_eq!(read_all(&open(&other)).sample_count(), before.sample_count() + 60);
    let error = engine.copy_to(&other.env(), false).expect_err("there is one already");
    assert!(matches!(error.kind(), ErrorKind::Conflict), "{error}");
}

/// Before, files and objects at the target became a part of the copy or made it fail half way.
#[test]
fn a_target_that_is_not_empty_is_refused_and_kept() {
    let sim = Sim::new(6);
    let engine = filled(&sim);
    let objects = |sim: &Sim| sim.env().bucket.list("").expect("a list");
    let refused = |target: &Sim, wanted: &str| {
        let before = (target.disk.files(), objects(target));
        let error = engine.copy_to(&target.env(), true).expect_err(wanted);
        assert!(matches!(error.kind(), ErrorKind::Conflict), "{error}");
        assert!(error.to_string().contains(wanted), "{error}");
        assert_eq!((target.disk.files(), objects(target)), before);
    };
    refused(&sim, "copy to an empty folder");
    let [file, object, empty] = [7, 8, 9].map(Sim::new);
    file.env().disk.open("notes", OpenMode::Create).expect("a file");
    refused(&file, "the target contains notes;");
    object.env().bucket.put("a/b", (*b"c").into(), PutMode::Create).expect("a put");
    refused(&object, "the target contains a/b on its slow tier;");
    engine.copy_to(&empty.env(), true).expect("a copy");
}

#[test]
fn without_the_head_a_copy_ends_at_the_last_flush() {
    let (sim, other) = (Sim::new(3), Sim::new(4));
    let engine = filled(&sim);
    engine.copy_to(&other.env(), true).expect("a copy");
    // Rows and deletes that came after the flush are missing.
    assert_eq!(read_all(&open(&other)), read_all(&flushed(&Sim::new(3))));
}

/// The power of the target machine fails at each change while a copy is made, one change per case.
/// The target contains the part of the files that was durable by then. It is either the complete
/// database or has no manifest, so no server opens it as a smaller database.
#[test]
fn half_a_copy_is_no_database() {
    let sim = Sim::new(5);
    let engine = filled(&sim);
    let before = read_all(&engine);
    let mut failed = 0;
    for nth in 0..60 {
        let other = Sim::new(100 + nth);
        other.faults.crash_at(nth);
        let copied = engine.copy_to(&other.env(), false);
        other.restart();
        let has_manifest = other
            .disk
            .files()
            .iter()
            .any(|path| path.starts_with("manifest/") && !path.ends_with(".new"));
        match copied {
            Err(_) => failed += 1,
            Ok(_) => assert!(has_manifest),
        }
        if has_manifest {
            assert_eq!(read_all(&open(&other)), before, "change {nth}");
        }
    }
    assert!(failed > 5, "{failed} copies failed");
}
