//! Flushes, hot memory and its release.

use std::sync::Arc;

use firn_codec::{HiddenMembers, HiddenSlots, Slots, Tombstone, Tombstones};
use firn_model::{CommitSeq, GroupId, LogPosition, Pool, ShardId, TimeRange};

use crate::world::World;

#[test]
fn a_flush_yields_every_row_once_and_keeps_it_readable() {
    let mut world = World::new(2, |_| {});
    for ts in 0..100 {
        world.put(&vec![(0, 0, ts, 1.0), (1, 0, ts, 2.0), (1, 3, ts, ts as f64)]);
    }
    assert!(world.flush());
    assert!(!world.flush(), "there are no new rows");
    let stats = world.head.stats();
    assert_eq!(stats.row_count, 0);
    assert!(stats.hot_bytes > 0);
    world.check();
    world.check_budget();
    let flushed: usize = world.tables[0].iter().map(|(_, columns)| columns.value_count()).sum();
    assert_eq!(flushed, 300);
    // All rows are in memory too, so no table need be read.
    assert_eq!(
        world.head.snapshot().reader(TimeRange::ALL).complete_since(ShardId(1), TimeRange::ALL),
        CommitSeq(2)
    );
}

/// After a flush is planned, rows arrive, arenas are converted and segments merged. The planned
/// rows are flushed, and none of the later ones.
#[test]
fn a_planned_flush_does_not_change() {
    let mut world = World::new(1, |options| {
        options.convert.rows_per_group_max = 4;
        options.convert.segment_fan_in = 2;
    });
    let put = |world: &mut World, from: i64| {
        for ts in from..from + 20 {
            world.put(&vec![(1, 0, ts, ts as f64)]);
        }
    };
    put(&mut world, 0);
    world.convert();
    let marks = world.head.seal_all();
    let job = world.head.plan_flush().unwrap();
    assert!(job.covers(&marks));
    let count = |job: &firn_head::FlushJob| -> usize {
        job.chunks(&Tombstones::default()).map(|chunk| chunk.unwrap().1.value_count()).sum()
    };
    assert_eq!(count(&job), 20);
    put(&mut world, 10);
    while world.convert() || world.compress() {}
    assert_eq!(count(&job), 20, "a planned flush is frozen");
    world.check();
    world.head.flushed(&job);
    world.check();
    let last_position = job.through().next().unwrap().1;
    assert!(last_position < world.log.last().unwrap().position);
    world.head.seal_all();
    let next = world.head.plan_flush().unwrap();
    assert_eq!(count(&next), 20);
    drop((job, next));
    world.check_budget();
}

/// Two writers have staged, and only the second one's log segment is durable. The job does not
/// cover the first, so the floor must stay.
#[test]
fn a_flush_reports_undecided_rows() {
    let mut world = World::new(1, |_| {});
    world.write(&vec![(1, 0, 10, 1.0)]);
    world.segment += 1;
    world.write(&vec![(1, 0, 20, 2.0)]);
    let marks = world.head.seal_all();
    assert_eq!(marks.marks, [(ShardId(0), world.log[1].position)]);
    world.publish(1);
    world.check();
    assert!(world.head.plan_flush().is_none(), "rows are flushed in the order of the log");
    world.publish(0);
    let job = world.head.plan_flush().unwrap();
    assert!(job.covers(&marks));
    assert_eq!(job.row_count(), 2);
}

#[test]
fn hot_memory_is_released_oldest_time_first() {
    let mut world = World::new(1, |options| {
        options.convert.rows_per_group_max = 1_000;
        options.convert.bytes_per_series_max = 100_000;
    });
    // The younger commit has the older times.
    for start in [1_000, 2_000, 0] {
        for ts in 0..50 {
            world.put(&vec![(1, 0, start + ts, ts as f64)]);
        }
        assert!(world.flush());
    }
    let in_memory = |world: &World| world.head.snapshot().time_range();
    assert_eq!(in_memory(&world).start, 0);
    assert!(world.head.recycle(1) > 0);
    assert_eq!(in_memory(&world).start, 1_000);
    world.check();
    // Only the released range needs tables; later times do not.
    let since =
        |range| world.head.snapshot().reader(TimeRange::ALL).complete_since(ShardId(0), range);
    assert_eq!(since(TimeRange::new(1_000, 3_000)), CommitSeq(2));
    assert!(since(TimeRange::ALL) > CommitSeq(101), "the third flush had the oldest times");
    assert!(world.head.recycle(u64::MAX) > 0);
    assert!(in_memory(&world).is_empty());
    assert_eq!(world.head.recycle(u64::MAX), 0);
    // All rows are in tables. Memory is complete from the next row on.
    let last = world.log.last().unwrap().seq;
    assert_eq!(
        world.head.snapshot().reader(TimeRange::ALL).complete_since(ShardId(0), TimeRange::ALL),
        CommitSeq(last.0 + 1)
    );
    world.check();
    world.check_budget();
}

/// Regression test. The middle one of three flushes was released, and a conversion merged the two
/// around it into one part that was newer than the middle one's table and had older values.
#[test]
fn parts_do_not_merge_over_released_memory() {
    let mut world = World::new(1, |_| {});
    world.put(&vec![(1, 0, 540, 0.0), (1, 0, 9_000, 0.0)]);
    assert!(world.flush());
    world.put(&vec![(1, 0, 540, 0.1)]);
    assert!(world.flush());
    assert!(world.head.recycle(1) > 0);
    world.put(&vec![(1, 0, 0, 0.0)]);
    assert!(world.flush());
    while world.convert() || world.compress() {}
    world.check();
}

/// A query that needs memory holds locks of the index, for which a writer may wait that has locked
/// a shard. Waiting for the shard would stop both for ever.
#[test]
fn recycling_does_not_wait_for_a_locked_shard() {
    let mut world = World::new(2, |_| {});
    for ts in 0..100 {
        world.put(&vec![(0, 0, ts, 1.0), (1, 0, ts, 2.0)]);
    }
    assert!(world.flush());
    let all = world.head.stats().hot_bytes;
    let writer = world.head.shard(ShardId(0));
    let first = world.head.recycle(u64::MAX);
    assert!(first > 0 && first < all, "{first} of {all}: those of the other shards");
    drop(writer);
    assert_eq!(first + world.head.recycle(u64::MAX), all);
    world.check();
}

/// A block of a flush stays for readers that registered before the flush, and for no others:
/// younger readers miss it and have tables.
#[test]
fn invariant_3_old_readers_keep_blocks_and_young_ones_pin_none() {
    let mut world = World::new(1, |_| {});
    let hot_bytes = |world: &World| world.budget.usage().by_pool[Pool::Hot as usize];
    for ts in 0..50 {
        world.put(&vec![(1, 0, ts, ts as f64)]);
    }
    let old = world.hold();
    assert!(world.flush());
    let young = world.hold();
    let before = hot_bytes(&world);
    assert!(before > 0);
    assert_eq!(world.head.recycle(u64::MAX), before);
    assert_eq!((hot_bytes(&world), world.head.stats().cooling_bytes), (before, before));
    assert!(young.check() && old.check(), "all memory is still pinned");
    drop(old);
    assert_eq!((hot_bytes(&world), world.head.stats().cooling_bytes), (0, 0));
    let misses = world.head.stats().hot_misses;
    assert!(young.check(), "its tables have the rows");
    let stats = world.head.stats();
    assert!(stats.hot_misses > misses && stats.revoked_bytes == 0, "{stats:?}");
    assert!(stats.hot_hits > 0 && stats.released_bytes >= before, "{stats:?}");
    drop(young);
    // A reader that has touched memory pins it while it decodes, no longer.
    for ts in 100..150 {
        world.put(&vec![(1, 0, ts, ts as f64)]);
    }
    assert!(world.flush());
    let snapshot = world.head.snapshot();
    let mut reader = snapshot.reader(TimeRange::ALL);
    let mut read = || reader.read(GroupId(1), Slots::All, TimeRange::ALL).unwrap().len();
    let part_count = read();
    assert!(part_count > 0 && world.head.recycle(u64::MAX) > 0);
    assert_eq!(read(), part_count);
    assert!(hot_bytes(&world) > 0);
    assert_eq!(
        snapshot.reader(TimeRange::ALL).read(GroupId(1), Slots::All, TimeRange::ALL).unwrap().len(),
        0
    );
    drop(reader);
    assert_eq!(hot_bytes(&world), 0);
}

/// A reader lives long while rows arrive and are converted, flushed and released. The memory that
/// it could see stays; later memory does not stay because of it.
#[test]
fn a_long_reader_pins_only_memory_that_it_saw() {
    let mut world = World::new(1, |options| options.convert.rows_per_group_max = 8);
    let round = |world: &mut World, start: i64| {
        for ts in start..start + 100 {
            world.put(&vec![(1, 0, ts, ts as f64)]);
        }
        while world.convert() || world.compress() {}
    };
    round(&mut world, 0);
    let reader = world.hold();
    let before = world.budget.usage().used_bytes;
    for start in 1..20 {
        round(&mut world, start * 100);
        assert!(world.flush());
        world.head.recycle(u64::MAX);
    }
    let cooling = world.head.stats().cooling_bytes;
    assert!(cooling > 0 && cooling <= before, "{cooling} bytes cool, {before} were used");
    assert!(reader.check());
    drop(reader);
    world.check_budget();
}

/// Above the limit the oldest cooling memory is revoked. Its reader fails, and no other.
#[test]
fn readers_that_pin_more_than_the_limit_fail() {
    let mut world = World::new(1, |options| options.cooling_bytes_max = 6_000);
    world.put(&vec![(1, 0, 0, 1.0)]);
    let reader = world.hold();
    for ts in 1..400 {
        world.put(&vec![(1, 0, ts, (ts * ts) as f64 / 7.0)]);
    }
    let other = world.hold();
    assert!(world.flush());
    world.head.recycle(u64::MAX);
    assert!(!reader.check() && !other.check());
    world.check();
    let stats = world.head.stats();
    assert!(stats.cooling_bytes <= 6_000 && stats.revoked_bytes > 0, "{stats:?}");
    assert!(stats.revoked_reads > 0, "{stats:?}");
    let snapshot = world.head.snapshot();
    assert!(snapshot.read(GroupId(1), Slots::All, TimeRange::ALL).unwrap().is_empty());
}

#[test]
fn no_hot_memory_is_behind_the_hard_line() {
    let mut world = World::new(1, |_| {});
    for start in [0, 1_000, 2_000] {
        for ts in 0..50 {
            world.put(&vec![(1, 0, start + ts, ts as f64)]);
        }
        assert!(world.flush());
    }
    world.hard_line = 1_500;
    assert!(world.head.recycle_surplus(world.hard_line) > 0);
    assert_eq!(world.head.snapshot().time_range(), TimeRange::new(2_000, 2_049));
    assert_eq!(world.head.recycle_surplus(world.hard_line), 0);
    world.check();
}

#[test]
fn hot_memory_has_a_limit_of_its_own() {
    let mut world = World::new(1, |options| options.hot_bytes_max = 10_000);
    for round in 0..10 {
        for ts in 0..200 {
            world.put(&vec![(1, 0, round * 200 + ts, (ts * ts) as f64 / 7.0)]);
        }
        assert!(world.flush());
        assert!(world.head.stats().hot_bytes <= 10_000);
        world.check();
    }
    assert!(world.flushed[&ShardId(0)] > LogPosition(0));
}

/// A delete splits the parts of a shard. However rows are converted, packed or flushed, each source
/// in memory is older or younger than the delete as a whole, and a flush hides between the two.
#[test]
fn invariant_2_no_part_spans_a_delete() {
    let mut world = World::new(2, |options| options.convert.segment_fan_in = 2);
    let seq_spans = |world: &World| {
        let snapshot = world.head.snapshot();
        let sources = snapshot.read(GroupId(0), Slots::All, TimeRange::ALL).unwrap();
        let spans: Vec<(u64, u64)> = sources.iter().map(|s| (s.seq.min.0, s.seq.max.0)).collect();
        spans
    };
    for ts in 0..20 {
        world.put(&vec![(0, 0, ts, 1.0), (1, 0, ts, 1.0)]);
    }
    let delete = CommitSeq(seq_spans(&world).last().map_or(0, |span| span.1) + 1);
    world.head.split_parts(ShardId(0));
    world.head.split_parts(ShardId(0));
    for ts in 10..30 {
        // No row has the delete's own number.
        world.put(&vec![(0, 0, ts, 2.0), (1, 0, ts, 2.0)]);
    }
    let check = |world: &World| {
        let spans = seq_spans(world);
        let is_clear = |span: &(u64, u64)| span.1 < delete.0 || span.0 >= delete.0;
        assert!(spans.len() >= 2 && spans.iter().all(is_clear), "{spans:?} around {delete}");
    };
    check(&world);
    let marks = world.head.seal_all();
    assert!(marks.marks.is_empty(), "all rows are published");
    while world.convert() || world.compress() {}
    check(&world);
    world.check();
    let members = vec![HiddenMembers { group: GroupId(0), slots: HiddenSlots::Below(1) }];
    let tombstone = Tombstone::new(0, TimeRange::new(5, 24), members);
    let tombstones = Tombstones::new(vec![(delete, Arc::new(tombstone))]);
    let job = world.head.plan_flush().unwrap();
    let counts: Vec<(u64, usize)> = job
        .chunks(&tombstones)
        .map(|chunk| chunk.map(|(group, columns)| (group.0, columns.value_count())).unwrap())
        .collect();
    // Of 0 to 19 the first 5 stay, and all of 10 to 29; the other group is unchanged.
    assert_eq!(counts, [(0, 25), (1, 30)]);
}

/// A group that is flushed in slices has members in chunks, in rows, and in both.
#[test]
fn a_large_group_loses_no_member_that_only_rows_have() {
    let mut world = World::new(1, |_| {});
    let all = |ts: i64| (0..1_000).map(|slot| (1, slot, ts, ts as f64)).collect::<Vec<_>>();
    for ts in 0..200 {
        world.put(&all(ts));
    }
    while world.convert() || world.compress() {}
    world.put(&vec![(1, 7, 200, 1.0), (1, 1_001, 50, 2.0), (1, 2_000, 300, 3.0)]);
    assert!(world.flush());
    let flushed: Vec<usize> =
        world.tables[0].iter().map(|(_, columns)| columns.value_count()).collect();
    assert!(flushed.len() > 1, "the group is not cut: {flushed:?}");
    assert_eq!(flushed.iter().sum::<usize>(), 200_003);
    world.check();
}

/// As rows that were never converted, in order or late.
#[test]
fn a_large_group_of_rows_is_flushed_in_slices() {
    for is_late in [false, true] {
        let mut world = World::new(1, |_| {});
        for row in 0..300 {
            let ts = if is_late { 1_000 - row } else { row };
            world.put(&(0..1_000).map(|slot| (1, slot, ts, 1.0)).collect::<Vec<_>>());
        }
        assert!(world.flush());
        let flushed: Vec<usize> =
            world.tables[0].iter().map(|(_, columns)| columns.value_count()).collect();
        assert!(flushed.len() > 2, "the group is not cut: {flushed:?}");
        assert_eq!(flushed.iter().sum::<usize>(), 300_000);
        world.check();
    }
}
