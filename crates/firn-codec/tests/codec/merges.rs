//! Merging: the newest write of each (slot, timestamp), for any sources.

use firn_codec::merge_columns;
use firn_model::TimeRange;
use proptest::prelude::*;

use crate::chunks::cells;
use crate::support::{Cells, cells_of, columns_of};

proptest! {
    #[test]
    fn invariant_2_newest_write_wins(
        sources in prop::collection::vec((cells(), any::<bool>()), 1..7),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
    ) {
        // Some sources repeat timestamps of the first one with other values.
        let first = sources[0].0.clone();
        let sources: Vec<Cells> = sources
            .into_iter()
            .map(|(mut cells, repeats)| {
                if repeats {
                    cells.extend(first.iter().step_by(2).map(|(key, bits)| (*key, bits ^ 1)));
                }
                cells
            })
            .collect();
        let all: Vec<i64> = sources.iter().flatten().map(|(key, _)| key.1).collect();
        let mut range = TimeRange::new(all[from.index(all.len())], all[to.index(all.len())]);
        if range.is_empty() {
            range = TimeRange::ALL;
        }
        let mut want = Cells::new();
        sources.iter().for_each(|source| want.extend(source));
        want.retain(|key, _| range.contains(key.1));
        let columns: Vec<_> =
            sources.iter().enumerate().map(|(idx, cells)| columns_of(cells, idx as u64)).collect();
        let merged = merge_columns(&columns, range);
        prop_assert_eq!(cells_of(&merged), want);
        for source in &columns {
            let mut want = cells_of(source);
            want.retain(|key, _| range.contains(key.1));
            prop_assert_eq!(cells_of(&source.slice(range)), want);
        }
    }

    #[test]
    fn sources_without_overlap_are_concatenated(
        cells in cells(),
        at in any::<prop::sample::Index>(),
    ) {
        let all: Vec<i64> = cells.keys().map(|key| key.1).collect();
        let border = all[at.index(all.len())];
        let (early, late): (Cells, Cells) = cells.iter().partition(|(key, _)| key.1 < border);
        // The later half was written first.
        let sources = [columns_of(&late, 1), columns_of(&early, 2)];
        prop_assert_eq!(cells_of(&merge_columns(&sources, TimeRange::ALL)), cells);
    }
}

/// More members with time columns of their own than a merge keeps plans.
#[test]
fn members_with_many_time_columns_are_merged() {
    let mut want = Cells::new();
    let mut columns = Vec::new();
    for source in 0..3i64 {
        let mut cells = Cells::new();
        for slot in 0..50u32 {
            let times = (0..40).map(|row| row * (1_000 + i64::from(slot % 23)) + source);
            cells.extend(times.map(|ts| ((slot, ts), (source as u64) << 32 | ts as u64)));
        }
        want.extend(&cells);
        columns.push(columns_of(&cells, source as u64));
    }
    let merged = merge_columns(&columns, TimeRange::ALL);
    merged.check();
    assert_eq!(cells_of(&merged), want);
    // The 23 sets of timestamps are shared by members.
    assert_eq!(merged.batch.times.len(), 23);
}
