//! Readers beside a writer and a converter.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use firn_codec::{Slots, merge_columns};
use firn_head::{Head, HeadOptions};
use firn_model::{
    Budget, CommitSeq, GroupId, LogPosition, Pool, RowBatch, SeriesRef, ShardBits, Slot, TimeRange,
};

use crate::world::points;

/// Row `n` of group `g` is at time `n` with value `n * 10 + g`, in two pieces of one commit. A reader
/// must see rows 0..k of every group without a gap, k at least what was published before it looked,
/// and the same again from the same snapshot later.
#[test]
fn invariant_3_readers_see_whole_prefixes_while_all_goes_on() {
    const ROWS: u64 = 3_000;
    const GROUPS: u64 = 3;
    let mut options = HeadOptions::new(ShardBits::for_count(1));
    options.rows_per_group_max = 16;
    options.segment_fan_in = 2;
    let budget = Budget::unlimited();
    let head = Head::new(options, budget.clone());
    let published = AtomicU64::new(0);
    let done = AtomicBool::new(false);

    let look = |snapshot: &firn_head::HeadSnapshot, group: u64| -> u64 {
        let sources = snapshot.read(GroupId(group), Slots::All, TimeRange::ALL).unwrap();
        let merged = merge_columns(&sources, TimeRange::ALL);
        let points = points(&merged, Slots::All);
        let half = points.len() / 2;
        assert_eq!(half * 2, points.len(), "a row has both its members");
        for (n, &(slot, ts, bits)) in points[..half].iter().enumerate() {
            assert_eq!((slot, ts), (0, n as i64));
            assert_eq!(f64::from_bits(bits), (n as u64 * 10 + group) as f64);
        }
        half as u64
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut batch = RowBatch::default();
            for row in 0..ROWS {
                batch.clear();
                for group in 0..GROUPS {
                    for slot in 0..2 {
                        let series = SeriesRef { group: GroupId(group), slot: Slot(slot) };
                        batch.push(series, row as i64, (row * 10 + group) as f64);
                    }
                }
                batch.sort(head.options().shard_bits);
                for rows in batch.by_shard() {
                    let mut writer = head.shard(rows.shard);
                    writer.encode(CommitSeq(row + 1), rows, row / 500);
                    writer.stage(LogPosition(row + 1), budget.empty(Pool::Head));
                    drop(writer);
                    head.publish(rows.shard, LogPosition(row + 1));
                }
                published.store(row + 1, Ordering::Release);
            }
            done.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                match head.plan_convert().or_else(|| head.plan_compress()) {
                    Some(job) => assert!(head.apply_convert(job.run().unwrap())),
                    None => std::thread::yield_now(),
                }
            }
        });
        scope.spawn(|| {
            let mut held = Vec::new();
            while !done.load(Ordering::Acquire) {
                let least = published.load(Ordering::Acquire);
                let snapshot = head.snapshot();
                let seen: Vec<u64> = (0..GROUPS).map(|group| look(&snapshot, group)).collect();
                assert!(seen[0] >= least, "{} rows of {least} published", seen[0]);
                assert!(seen.iter().all(|&count| count == seen[0]));
                if held.len() < 20 {
                    held.push((snapshot, seen));
                }
            }
            for (snapshot, seen) in &held {
                let again: Vec<u64> = (0..GROUPS).map(|group| look(snapshot, group)).collect();
                assert_eq!(again, *seen);
            }
        });
    });
    assert_eq!(look(&head.snapshot(), 0), ROWS);
}
