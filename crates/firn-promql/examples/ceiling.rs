//! Measures the cost of `sum by (x) (rate(m[5m]))`: 10,000 series x 480 samples (15 s), 60 steps of
//! 2 min, 10 groups, as groups of 100 members with shared timestamps and as lone series. Also the
//! parse of a dashboard query.
//!
//! `cargo run --release -p firn-promql --example ceiling`

#![allow(clippy::disallowed_methods, reason = "measures real time")]

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use firn_model::{
    Column, ColumnBatch, ColumnValues, Labels, QueryContext, Result, Select, Selected, Selection,
    Slot,
};
use firn_promql::{EvalOptions, eval, parse};

const SERIES: usize = 10_000;
const SAMPLES: usize = 480;

/// Decoded columns, cloned for each read.
struct Decoded {
    keys: Vec<Labels>,
    batches: Arc<Vec<ColumnBatch>>,
}

impl Selected for Decoded {
    fn keys(&self) -> &[Labels] {
        &self.keys
    }

    fn group_count(&self) -> usize {
        self.batches.len()
    }

    fn read(&self, groups: Range<usize>) -> Result<Vec<ColumnBatch>> {
        Ok(self.batches[groups].to_vec())
    }
}

struct DecodedStore {
    batches: Arc<Vec<ColumnBatch>>,
}

impl Select for DecodedStore {
    fn select(&self, _: &Selection, _: &QueryContext) -> Result<Box<dyn Selected>> {
        let key = |idx: usize| Labels::from_pairs([("x", idx.to_string().as_str())]);
        let keys = (0..10).map(key).collect::<Result<Vec<_>>>()?;
        Ok(Box::new(Decoded { keys, batches: Arc::clone(&self.batches) }))
    }
}

/// A counter with small increments, and one reset in some series.
fn column(idx: usize, slot: usize) -> Column {
    let mut value = (idx % 97) as f64;
    let values = (0..SAMPLES).map(|sample| {
        value += ((idx * 31 + sample * 7) % 11) as f64;
        if idx.is_multiple_of(50) && sample == 200 {
            value = 0.0;
        }
        value
    });
    Column {
        slot: Slot(slot as u32),
        key: (idx % 10) as u32,
        time_idx: 0,
        presence: None,
        values: ColumnValues::F64(values.collect()),
    }
}

fn store(members: usize) -> DecodedStore {
    let batches = (0..SERIES / members)
        .map(|group| {
            let jitter = if members == 1 { group as i64 % 15_000 } else { 0 };
            let times: Arc<[i64]> = (0..SAMPLES).map(|idx| idx as i64 * 15_000 + jitter).collect();
            let columns = (0..members).map(|slot| column(group * members + slot, slot)).collect();
            ColumnBatch { times: vec![times], columns }
        })
        .collect();
    DecodedStore { batches: Arc::new(batches) }
}

/// Milliseconds of the fastest of 20 runs.
fn fastest(mut run: impl FnMut()) -> f64 {
    (0..20)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64() * 1e3
        })
        .fold(f64::INFINITY, f64::min)
}

fn main() {
    let expr = parse("sum by (x) (rate(m_total[5m]))").expect("it is PromQL");
    let options = EvalOptions::range(60_000, 60_000 + 59 * 120_000, 120_000);
    for (name, members) in [("groups of 100", 100), ("lone series", 1)] {
        let store = store(members);
        let clone_ms = fastest(|| drop(store.batches.to_vec()));
        let all_ms = fastest(|| {
            eval(&expr, &store, &options, &QueryContext::unbounded()).expect("it evaluates");
        });
        println!("{name}: {all_ms:.1} ms, {clone_ms:.1} ms of it for copying columns");
    }
    let plain = "sum by (instance, mode) \
                 (rate(node_cpu_seconds_total{job=\"node\",mode!=\"idle\"}[5m])) \
                 / on (instance) group_left count by (instance) (node_cpu_seconds_total)";
    let with_regex = plain.replace("mode!=\"idle\"", "mode=~\"user|system\"");
    for text in [plain, &with_regex] {
        let parse_us = fastest(|| {
            for _ in 0..1_000 {
                parse(text).expect("it is PromQL");
            }
        });
        println!("parse of {} bytes: {parse_us:.2} us", text.len());
    }
}
