//! Samples that are hard to encode, and comparison by bits.

pub(crate) mod recordings;

use std::collections::BTreeMap;

use firn_codec::{GroupColumns, RowsToColumns, SeqRange};
use firn_model::{ColumnValues, CommitSeq, STALE_NAN_BITS, Slot, Timestamp};
use proptest::prelude::*;

/// The samples of a group: value bits by slot and timestamp.
pub(crate) type Cells = BTreeMap<(u32, Timestamp), u64>;

/// The cells of decoded columns; checks the columns' invariants on the way.
pub(crate) fn cells_of(columns: &GroupColumns) -> Cells {
    columns.check();
    let mut cells = Cells::new();
    for column in &columns.batch.columns {
        let times = &columns.batch.times[column.time_idx as usize];
        let ColumnValues::F64(values) = &column.values else { unreachable!() };
        let entries: Vec<usize> = match &column.presence {
            None => (0..times.len()).collect(),
            Some(presence) => presence.iter().collect(),
        };
        for (&entry, value) in entries.iter().zip(values) {
            cells.insert((column.slot.0, times[entry]), value.to_bits());
        }
    }
    cells
}

/// Columns of `cells`.
pub(crate) fn columns_of(cells: &Cells, seq: u64) -> GroupColumns {
    let mut rows = RowsToColumns::new();
    for (&(slot, ts), &bits) in cells {
        rows.push(ts, Slot(slot), f64::from_bits(bits));
    }
    rows.finish(SeqRange::at(CommitSeq(seq)))
}

/// Any bits, often those that break codecs.
pub(crate) fn value_bits() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => any::<u64>(),
        4 => prop::sample::select(vec![
            0.0f64.to_bits(), (-0.0f64).to_bits(), f64::NAN.to_bits(), STALE_NAN_BITS,
            f64::INFINITY.to_bits(), f64::NEG_INFINITY.to_bits(), 1, f64::MIN_POSITIVE.to_bits(),
            f64::MAX.to_bits(), 9_007_199_254_740_991f64.to_bits(),
            9_007_199_254_740_992f64.to_bits(), 9_007_199_254_740_994f64.to_bits(),
            (-9_007_199_254_740_992f64).to_bits(), 9.223372036854775e18f64.to_bits(),
            (-9.3e18f64).to_bits(), 1e15f64.to_bits(), 999_999_999_999_999.9f64.to_bits(),
            u64::MAX, 0xfff8_0000_0000_0001,
        ]),
        6 => (-1000i64..1000, 0i32..9).prop_map(|(d, k)| (d as f64 / 10f64.powi(k)).to_bits()),
        2 => (any::<i64>(), 0i32..20).prop_map(|(d, k)| (d as f64 * 0.1f64.powi(k)).to_bits()),
        2 => any::<f32>().prop_map(|value| f64::from(value).to_bits()),
    ]
}

/// Runs of values like those of series: constant, counting, walking, decimal, arbitrary.
pub(crate) fn value_run(
    len: impl Into<prop::collection::SizeRange>,
) -> impl Strategy<Value = Vec<u64>> {
    let steps = prop::collection::vec((0u8..10, -50i64..50, value_bits()), len);
    (steps, 0u8..6, any::<i32>(), 0u32..10).prop_map(|(steps, kind, start, k)| {
        let (mut d, mut bits) = (i64::from(start), f64::from(start).to_bits());
        let power = 10f64.powi(k as i32);
        let run = steps.into_iter().map(|(dice, step, wild)| {
            match kind {
                0 => bits = if dice == 0 { wild } else { bits },
                1 => d += step.abs(),
                2 => d += step * i64::from(dice),
                3 => d += if dice < 8 { 0 } else { step },
                4 => d += if dice == 0 { i64::from(start) } else { 1000 },
                _ => bits = wild,
            }
            match (kind, dice, step) {
                (0 | 5, ..) => bits,
                // An exception among decimals.
                (_, 9, -3) => wild,
                _ => (d as f64 / power).to_bits(),
            }
        });
        run.collect()
    })
}

/// Strictly rising timestamps: regular, jittered, or anywhere in `i64`.
pub(crate) fn times(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Timestamp>> {
    let len_above = len.end.max(2);
    prop_oneof![
        (any::<i32>(), 1i64..100_000, len.clone()).prop_map(|(start, step, len)| {
            (0..len as i64).map(|idx| i64::from(start) + idx * step).collect::<Vec<_>>()
        }),
        (any::<i32>(), prop::collection::vec(0i64..40, len)).prop_map(|(start, jitter)| {
            let at = |idx: usize, jitter: i64| i64::from(start) + idx as i64 * 5000 + jitter;
            jitter.iter().enumerate().map(|(idx, &jitter)| at(idx, jitter)).collect()
        }),
        prop::collection::btree_set(
            prop_oneof![any::<i64>(), Just(i64::MIN), Just(i64::MAX), -3i64..3],
            1..len_above
        )
        .prop_map(|times| times.into_iter().collect()),
    ]
}
