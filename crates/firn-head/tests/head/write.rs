//! Staging, publishing, rolling back, replaying.

use firn_codec::{Slots, merge_columns};
use firn_head::{Head, HeadOptions, bound_bytes_of, encode_standalone, payload_groups};
use firn_model::{
    Budget, CommitSeq, GroupId, LogPosition, Pool, RowBatch, SeriesRef, ShardId, Slot, TimeRange,
};

use crate::world::{World, points};

/// The visible rows of `group`: (slot, ts, value).
fn read(head: &Head, group: u64) -> Vec<(u32, i64, f64)> {
    let sources = head.snapshot().read(GroupId(group), Slots::All, TimeRange::ALL).unwrap();
    let merged = merge_columns(&sources, TimeRange::ALL);
    let points = points(&merged, Slots::All);
    points.into_iter().map(|(slot, ts, bits)| (slot, ts, f64::from_bits(bits))).collect()
}

#[test]
fn rows_are_visible_when_published_and_not_before() {
    let mut world = World::new(1, |_| {});
    world.write(&vec![(1, 0, 10, 1.0), (1, 1, 10, 2.0)]);
    world.write(&vec![(1, 0, 20, 3.0)]);
    assert_eq!(read(&world.head, 1), []);
    assert!(!world.head.snapshot().has_data(GroupId(1), TimeRange::ALL));
    world.publish(0);
    assert_eq!(read(&world.head, 1), [(0, 10, 1.0), (1, 10, 2.0)]);
    let before = world.hold();
    world.publish(1);
    assert_eq!(read(&world.head, 1).len(), 3);
    before.check();
}

#[test]
fn one_publish_shows_the_rows_staged_before() {
    let mut world = World::new(1, |_| {});
    world.write(&vec![(1, 0, 10, 1.0)]);
    world.write(&vec![(1, 0, 20, 2.0)]);
    world.publish(1);
    assert_eq!(read(&world.head, 1), [(0, 10, 1.0), (0, 20, 2.0)]);
    world.publish(0);
    world.check();
}

#[test]
fn pieces_merge_late_rows_sort_in_and_the_newest_wins() {
    let mut world = World::new(1, |_| {});
    world.put(&vec![(1, 0, 20, 1.0)]);
    world.put(&vec![(1, 1, 20, 2.0)]);
    world.put(&vec![(1, 0, 10, 3.0)]);
    world.put(&vec![(1, 0, 20, 4.0)]);
    assert_eq!(read(&world.head, 1), [(0, 10, 3.0), (0, 20, 4.0), (1, 20, 2.0)]);
    world.check();
}

/// The log fails after three entries, of which the first is durable. A fourth enters the next log
/// segment before any rollback. The first and the fourth must be visible, the others never, and a
/// replay without them must show the same.
#[test]
fn a_rollback_drops_only_rows_that_the_log_lost() {
    let mut world = World::new(1, |_| {});
    world.put(&vec![(1, 0, 0, 0.5)]);
    for ts in [10, 20, 30] {
        world.write(&vec![(1, 0, ts, ts as f64), (1, 1, ts, 7.0)]);
    }
    world.poison(1);
    world.write(&vec![(1, 0, 40, 40.0)]);
    world.publish(4);
    let before = world.hold();
    assert_eq!(read(&world.head, 1), [(0, 0, 0.5), (0, 40, 40.0)]);
    world.roll_back();
    world.publish_all();
    let want = [(0, 0, 0.5), (0, 10, 10.0), (0, 40, 40.0), (1, 10, 7.0)];
    assert_eq!(read(&world.head, 1), want);
    before.check();
    world.put(&vec![(1, 0, 50, 50.0), (1, 1, 50, 7.0)]);
    world.check();
    let again = replay(&world, |_| true).0;
    assert_eq!(read(&again, 1), read(&world.head, 1));
}

#[test]
fn abandoned_rows_leave_no_trace() {
    for abandons in [true, false] {
        let mut world = World::new(1, |_| {});
        world.put(&vec![(1, 0, 10, 1.0), (1, 1, 10, 1.0)]);
        world.write_refused(&vec![(1, 0, 20, 2.0), (1, 1, 20, 9.0)], abandons);
        world.put(&vec![(1, 0, 30, 3.0), (1, 1, 30, 9.0)]);
        world.check();
        assert_eq!(read(&replay(&world, |_| true).0, 1), read(&world.head, 1));
    }
}

/// Replays the payloads for which `there` is true into a new head. Reports a hole before an entry
/// that follows a missing one. Also returns the number of refused rows.
fn replay(world: &World, there: impl Fn(usize) -> bool) -> (Head, u64) {
    let head = Head::new(world.bits, HeadOptions::default(), Budget::unlimited());
    let mut refused_count = 0;
    for (idx, entry) in world.log.iter().enumerate().filter(|(idx, _)| there(*idx)) {
        if idx > 0 && !there(idx - 1) {
            head.replay_gap(entry.shard);
        }
        let (shard, position) = (entry.shard, entry.position);
        let report =
            head.replay(shard, entry.seq, &entry.payload, position, entry.segment, true).unwrap();
        refused_count += report.refused_count;
    }
    (head, refused_count)
}

/// All payloads are in one log segment, but a replay must not hold one arena as long as the
/// segment.
#[test]
fn a_replay_seals_arenas_like_the_writer() {
    let mut world = World::new(1, |_| {});
    for round in 0..500 {
        let lone = [(1, 0, round, round as f64), (2, 0, round, -1.5), (3, 0, round, 0.25)];
        // A replay does not know the number of members.
        let equal = (0..20 * (round as u32 % 2)).map(|slot| (4, slot, round, 1.0));
        world.put(&lone.into_iter().chain(equal).collect());
        if round == 250 {
            world.segment += 1;
        }
    }
    let written = world.head.stats().arena_count_waiting;
    let again = replay(&world, |_| true).0;
    let replayed = again.stats().arena_count_waiting;
    assert!(written > 3, "{written} arenas");
    // One more: the writer's arena has rows of both segments.
    assert!((written..=written + 1).contains(&replayed), "{written} arenas, {replayed} replayed");
    while let Some(job) = again.plan_convert() {
        assert!(again.apply_convert(job.run().unwrap()));
    }
    for group in 1..5 {
        assert_eq!(read(&again, group), read(&world.head, group), "group {group}");
    }
}

/// Rows of equal values take a few bytes. They do not wait until these are many.
#[test]
fn arenas_with_many_values_are_converted() {
    let mut world = World::new(1, |_| {});
    for ts in 0..40 {
        world.put(&(10..2_010).map(|group| (group, 0, ts, ts as f64)).collect());
    }
    while world.convert() || world.compress() {}
    let before = world.head.stats().row_count;
    for ts in 0..1_000 {
        world.put(&(0..300).map(|slot| (1, slot, ts, 1.0)).collect());
    }
    let stats = world.head.stats();
    assert_eq!(stats.row_count - before, 1_000);
    assert_eq!(stats.arena_count_waiting, 1, "300,000 values of 15% of the series");
}

/// A job of many arenas of few bytes would take long.
#[test]
fn a_conversion_unites_sixteen_arenas_at_most() {
    let mut world = World::new(1, |_| {});
    for ts in 0..2_000 {
        world.put(&(0..50).map(|slot| (1, slot, ts, 1.0)).collect());
    }
    let waiting = world.head.stats().arena_count_waiting;
    assert!(waiting > 32, "{waiting} arenas");
    assert!(world.head.plan_convert_rows(waiting as usize + 1).is_none());
    let mut job_count = 0;
    while let Some(job) = world.head.plan_convert_rows(1) {
        assert!(world.head.apply_convert(job.run().unwrap()));
        job_count += 1;
    }
    assert_eq!(job_count, waiting.div_ceil(16));
    world.check();
}

/// Entry 1 is lost. Group 1 is whole in entry 0 and differs since: its rows are refused until the
/// next log segment. Group 2's first row is behind the hole and whole: it is accepted.
#[test]
fn after_a_hole_differences_are_refused_until_the_next_whole_row() {
    let mut world = World::new(1, |options| options.convert.bytes_per_series_max = 1 << 10);
    world.put(&vec![(1, 0, 10, 1.0), (1, 1, 10, 5.0)]);
    world.put(&vec![(1, 0, 20, 2.0), (1, 1, 20, 6.0)]);
    world.put(&vec![(1, 0, 30, 2.0), (1, 1, 30, 6.0), (2, 0, 30, 8.0)]);
    world.put(&vec![(1, 0, 40, 2.0), (1, 1, 40, 6.0), (2, 0, 40, 9.0)]);
    world.segment += 1;
    world.put(&vec![(1, 0, 50, 2.0), (1, 1, 50, 6.0)]);
    let (head, refused_count) = replay(&world, |idx| idx != 1);
    assert_eq!(refused_count, 2);
    let want = [(0, 10, 1.0), (0, 50, 2.0), (1, 10, 5.0), (1, 50, 6.0)];
    assert_eq!(read(&head, 1), want);
    assert_eq!(read(&head, 2), [(0, 30, 8.0), (0, 40, 9.0)]);
}

/// Rows below the floor were flushed: they are only the base of later ones.
#[test]
fn rows_below_the_floor_are_decoded_but_not_shown() {
    let mut world = World::new(1, |_| {});
    for ts in [10, 20, 30] {
        world.put(&vec![(1, 0, ts, ts as f64), (1, 1, ts, 5.0)]);
    }
    let head = Head::new(world.bits, HeadOptions::default(), Budget::unlimited());
    for (idx, entry) in world.log.iter().enumerate() {
        let seq = CommitSeq(idx as u64 + 1);
        head.replay(ShardId(0), seq, &entry.payload, entry.position, 1, idx > 0).unwrap();
    }
    assert_eq!(read(&head, 1), [(0, 20, 20.0), (0, 30, 30.0), (1, 20, 5.0), (1, 30, 5.0)]);
    assert_eq!(
        head.snapshot().reader(TimeRange::ALL).complete_since(ShardId(0), TimeRange::ALL),
        CommitSeq(2)
    );
}

#[test]
fn payload_groups_lists_the_groups() {
    let mut world = World::new(2, |_| {});
    world.put(&vec![(5, 0, -7, 1.0), (1, 2, 9, 1.0), (1, 1, 8, 1.0), (3, 0, 9, 1.0)]);
    let mut groups = Vec::new();
    let payload = &world.log[0].payload;
    let range = payload_groups(world.bits, ShardId(1), payload, &mut groups).unwrap();
    assert_eq!(groups, [GroupId(1), GroupId(3), GroupId(5)]);
    assert_eq!(range, TimeRange::new(-7, 9));
}

/// With any bit of a payload flipped or any length cut off, replay and reads return rows or an
/// error. The log's checksum detects such bytes first, but only the values rely on it.
#[test]
fn damaged_payloads_are_errors_not_panics() {
    let mut world = World::new(1, |_| {});
    world.put(&vec![(1, 0, 10, 1.0), (1, 1, 10, 5.5), (2, 0, 10, 0.1 + 0.2)]);
    world.put(&vec![(1, 0, 20, 2.0), (1, 1, 20, 6.5), (2, 0, 25, 1e300)]);
    let (first, second) = (&world.log[0], &world.log[1]);
    let check = |bytes: &[u8]| {
        let head = Head::new(world.bits, HeadOptions::default(), Budget::unlimited());
        let replay = |seq, payload: &[u8], position: u64| {
            head.replay(ShardId(0), CommitSeq(seq), payload, LogPosition(position), 1, true)
        };
        replay(1, &first.payload, 1).unwrap();
        let taken = replay(2, bytes, 2);
        let groups = [GroupId(1), GroupId(2)];
        let reads = groups.map(|group| head.snapshot().read(group, Slots::All, TimeRange::ALL));
        if taken.is_err() {
            let counts = reads.map(|read| read.unwrap()[0].value_count());
            assert_eq!(counts, [2, 1], "no row of a malformed payload is visible");
        }
        if let Some(job) = head.plan_convert() {
            drop(job.run());
        }
    };
    for cut in 0..second.payload.len() {
        check(&second.payload[..cut]);
    }
    for bit in 0..second.payload.len() * 8 {
        let mut damaged = second.payload.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        check(&damaged);
    }
}

/// Rows of a transaction between two commits of the shard's stream. The later one is visible before
/// the transaction is decided. Then the newest number wins, and dropped rows are never visible.
#[test]
fn rows_of_a_transaction_are_decided_independently_of_the_stream() {
    for is_shown in [true, false] {
        let mut world = World::new(1, |_| {});
        let bits = world.head.shard_bits();
        world.put(&vec![(1, 0, 10, 1.0), (1, 0, 20, 1.0)]);
        world.write(&vec![(1, 0, 40, 1.0)]);
        let series = SeriesRef { group: GroupId(1), slot: Slot(0) };
        let mut batch = RowBatch::default();
        [10, 20, 30].iter().for_each(|&ts| batch.push(series, ts, 2.0));
        batch.sort(bits);
        let rows = batch.by_shard().next().unwrap();
        let payload = encode_standalone(rows, bits);
        // The number is between two numbers of the world.
        let seq = world.seq();
        let mut memory = world.budget.reserve(Pool::Head, bound_bytes_of(rows)).unwrap();
        world.head.shard(rows.shard).stage_transaction(seq, &payload, &mut memory);
        drop(memory);
        world.put(&vec![(1, 0, 10, 3.0)]);
        let undecided = [(0, 10, 3.0), (0, 20, 1.0), (0, 40, 1.0)];
        assert_eq!(read(&world.head, 1), undecided);
        world.head.decide_transaction(rows.shard, seq, is_shown);
        let decided = [(0, 10, 3.0), (0, 20, 2.0), (0, 30, 2.0), (0, 40, 1.0)];
        let want = if is_shown { &decided[..] } else { &undecided[..] };
        for round in ["rows", "columns"] {
            let mut sources =
                world.head.snapshot().read(GroupId(1), Slots::All, TimeRange::ALL).unwrap();
            sources.sort_by_key(|source| source.seq.max);
            let merged = merge_columns(&sources, TimeRange::ALL);
            let seen: Vec<_> = points(&merged, Slots::All)
                .into_iter()
                .map(|(slot, ts, bits)| (slot, ts, f64::from_bits(bits)))
                .collect();
            assert_eq!(seen, want, "{round}, shown: {is_shown}");
            while let Some(job) = world.head.plan_convert() {
                world.head.apply_convert(job.run().unwrap());
            }
        }
        let again = Head::new(bits, HeadOptions::default(), Budget::unlimited());
        assert_eq!(again.replay_transaction(rows.shard, seq, &payload).unwrap(), 3);
        assert_eq!(read(&again, 1), [(0, 10, 2.0), (0, 20, 2.0), (0, 30, 2.0)]);
        again.replay_transaction(rows.shard, seq, &payload[..payload.len() - 1]).unwrap_err();
        assert_eq!(read(&again, 1).len(), 3);
    }
}
