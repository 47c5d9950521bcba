//! Files that no one reads are removed while jobs wait.

use std::sync::Arc;

use firn_engine::{Engine, EngineOptions, Lane, RecoveryProgress, Step};
use firn_model::{Labels, RowBatch};
use firn_sim::{Operation, Sim};

const PARTITIONS: i64 = 5;
const PARTITION_MS: i64 = 30 * 24 * 3_600_000;
const FLUSHES: i64 = 8;

/// An engine with level-0 tables of several partitions.
fn filled(sim: &Sim) -> Arc<Engine> {
    let options = EngineOptions { shard_count: 4, ..EngineOptions::default() };
    let engine = Engine::open(sim.env(), options, &RecoveryProgress::default()).expect("opens");
    let labels = Labels::from_pairs([("__name__", "m")]).expect("labels");
    let series = engine.resolve(&[labels]).remove(0).expect("resolves");
    for flush in 0..FLUSHES {
        let mut batch = RowBatch::default();
        for partition in 0..PARTITIONS {
            batch.push(series, partition * PARTITION_MS + flush, 1.0);
        }
        engine.write(&mut batch).expect("a write");
        engine.flush().expect("a flush");
    }
    engine
}

/// They stayed until all merges and uploads had ended, also while a job failed because the disk was
/// full.
#[test]
fn files_of_merged_tables_are_removed_before_the_next_merge() {
    let engine = filled(&Sim::new(1));
    let mut steps = Vec::new();
    while let Some(step) = engine.step(Lane::Tree).expect("a step") {
        steps.push(step);
    }
    let jobs = steps.iter().filter(|step| matches!(step, Step::Tree(_))).count();
    assert!(jobs > 1, "{steps:?}");
    for two in steps.windows(2) {
        assert!(!matches!(two, [Step::Tree(_), Step::Tree(_)]), "{steps:?}");
    }
}

#[test]
fn a_file_that_cannot_be_removed_does_not_hold_up_merges() {
    let sim = Sim::new(1);
    let engine = filled(&sim);
    while !matches!(engine.step(Lane::Tree), Ok(Some(Step::Tree(_)))) {}
    sim.faults.fail_nth(Operation::Remove, 1);
    engine.step(Lane::Tree).expect_err("the file stays");
    let next = [0; 2].map(|_| engine.step(Lane::Tree).expect("a step"));
    assert!(matches!(next, [Some(Step::Tree(_)), Some(Step::Garbage)]), "{next:?}");
}
