//! Readers beside a writer, a converter, and a thread that flushes and releases memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use firn_codec::{GroupColumns, Slots, Tombstones, merge_columns};
use firn_head::{Head, HeadOptions, HeadSnapshot};
use firn_model::{
    Budget, CommitSeq, GroupId, RowBatch, SeriesRef, ShardBits, ShardId, Slot, TimeRange,
};

use crate::world::{StopOnDrop, points, put};

/// A head of one shard that converts early.
fn head(budget: &Budget) -> Head {
    let mut options = HeadOptions::default();
    options.convert.rows_per_group_max = 16;
    options.convert.segment_fan_in = 2;
    Head::new(ShardBits::for_count(1), options, budget.clone())
}

/// Writes groups, slots and values at time `row`.
fn write(head: &Head, budget: &Budget, row: u64, cells: impl IntoIterator<Item = (u64, u32, f64)>) {
    let mut batch = RowBatch::default();
    for (group, slot, value) in cells {
        batch.push(SeriesRef { group: GroupId(group), slot: Slot(slot) }, row as i64, value);
    }
    put(head, budget, &mut batch, row + 1);
}

/// Row `n` of group `g` is at time `n` with value `n * 10 + g`, in two pieces of one commit. A
/// reader must see rows 0..k of every group without a gap. k is at least the number that was
/// published before the read, and stays the same for the same snapshot.
#[test]
fn invariant_3_concurrent_readers_see_whole_prefixes() {
    const ROWS: u64 = 3_000;
    const GROUPS: u64 = 3;
    let budget = Budget::unlimited();
    let head = head(&budget);
    let published = AtomicU64::new(0);
    let done = AtomicBool::new(false);

    let look = |snapshot: &HeadSnapshot, group: u64| -> u64 {
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
            for row in 0..ROWS {
                let cells = |group| [0, 1].map(|slot| (group, slot, (row * 10 + group) as f64));
                write(&head, &budget, row, (0..GROUPS).flat_map(cells));
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

type Tables = Arc<Vec<(GroupId, GroupColumns)>>;

/// Rows are flushed and released repeatedly, while readers use old and new views. Memory and, only
/// where it is incomplete, the tables of the view must yield rows 0..k without a gap. k is at least
/// the number that was published before the read, and stays the same for the same view.
#[test]
fn invariant_3_reads_are_monotone_while_memory_is_flushed_and_released() {
    const ROWS: u64 = 5_000;
    let budget = Budget::unlimited();
    let head = head(&budget);
    // The lock stands for the engine's view lock.
    let tables: RwLock<Tables> = RwLock::default();
    let published = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    // The writer is slow enough that the other threads make progress.
    let (look_count, flush_count) = (AtomicU64::new(0), AtomicU64::new(0));
    let all = (Slots::All, TimeRange::ALL);

    let view = || {
        let tables = tables.read().unwrap();
        (head.snapshot(), Arc::clone(&*tables))
    };
    let look = |(snapshot, tables): &(HeadSnapshot, Tables)| -> u64 {
        let mut reader = snapshot.reader(TimeRange::ALL);
        let is_complete = reader.complete_since(ShardId(0), all.1) <= CommitSeq(1);
        let in_tables = tables.iter().filter(|_| !is_complete).map(|(_, columns)| columns.clone());
        let mut sources: Vec<GroupColumns> = in_tables.collect();
        sources.extend(reader.read(GroupId(0), all.0, all.1).unwrap());
        let points = points(&merge_columns(&sources, all.1), all.0);
        for (n, &(_, ts, bits)) in points.iter().enumerate() {
            assert_eq!((ts, f64::from_bits(bits)), (n as i64, n as f64));
        }
        points.len() as u64
    };
    let flush = || {
        let marks = head.seal_all();
        marks.marks.iter().for_each(|&(shard, position)| head.publish(shard, position));
        let Some(job) = head.plan_flush().filter(|job| job.covers(&marks)) else { return };
        let none = Tombstones::default();
        let chunks: Vec<_> = job.chunks(&none).collect::<Result<_, _>>().unwrap();
        let mut tables = tables.write().unwrap();
        *tables = Arc::new(tables.iter().cloned().chain(chunks).collect());
        head.flushed(&job);
    };
    let write = |row: u64| write(&head, &budget, row, [(0, 0, row as f64)]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ends = StopOnDrop(&done);
            for row in 0..ROWS {
                let waits = || {
                    look_count.load(Ordering::Relaxed) < row / 50
                        || flush_count.load(Ordering::Relaxed) < row / 250
                };
                while waits() && !done.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                write(row);
                published.store(row + 1, Ordering::Release);
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                match head.plan_convert().or_else(|| head.plan_compress()) {
                    Some(job) => drop(head.apply_convert(job.run().unwrap())),
                    None => std::thread::yield_now(),
                }
            }
        });
        scope.spawn(|| {
            let _ends = StopOnDrop(&done);
            let mut turn = 0;
            while !done.load(Ordering::Acquire) {
                if head.stats().row_count < 100 {
                    std::thread::yield_now();
                    continue;
                }
                flush();
                turn += 1;
                head.recycle([0, 5_000, 0, u64::MAX][turn % 4]);
                flush_count.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let _ends = StopOnDrop(&done);
                let (mut held, mut least) = (Vec::new(), 0);
                while !done.load(Ordering::Acquire) {
                    least = least.max(published.load(Ordering::Acquire));
                    let view = view();
                    let seen = look(&view);
                    assert!(seen >= least, "{seen} rows, at least {least} were published");
                    least = seen;
                    look_count.fetch_add(1, Ordering::Relaxed);
                    // Some views live long, some briefly.
                    if held.len() < 20 {
                        held.push((view, seen));
                    } else {
                        let (view, seen) = held.swap_remove(least as usize % 20);
                        assert_eq!(look(&view), seen);
                    }
                }
                held.iter().for_each(|(view, seen)| assert_eq!(look(view), *seen));
            });
        }
    });
    // The threads may have missed each other: a hit and a miss for sure.
    write(ROWS);
    flush();
    let before = view();
    assert_eq!(look(&before), ROWS + 1);
    head.recycle(u64::MAX);
    assert_eq!(look(&before), ROWS + 1);
    drop(before);
    drop(tables);
    let stats = head.stats();
    assert_eq!((stats.cooling_bytes, stats.revoked_bytes), (0, 0), "{stats:?}");
    assert!(stats.hot_hits > 0 && stats.hot_misses > 0, "no hit or no miss: {stats:?}");
    let used_bytes = budget.usage().used_bytes;
    assert_eq!(used_bytes, stats.arena_bytes + stats.state_bytes + stats.free_bytes, "{stats:?}");
}
