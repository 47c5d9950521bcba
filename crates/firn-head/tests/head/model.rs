//! Random operations against a plain map, with long-lived snapshots: sequential and concurrent.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use firn_head::{Head, HeadOptions};
use firn_model::{Budget, STALE_NAN, ShardId, Slot, TimeRange, Timestamp};
use proptest::prelude::*;

use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::world::{Cells, Entry, GROUP_COUNT, HeldView, Map, Mutant, StopOnDrop, World, show};

#[derive(Clone, Debug)]
enum Op {
    Write(Cells),
    WriteRefused(Cells, bool),
    Publish(usize),
    PublishAll,
    RotateLog,
    Poison(usize),
    RollBack,
    Convert,
    Compress,
    /// A conversion that is planned now and applied some operations later.
    PlanConvert,
    ApplyConvert,
    Flush,
    /// A flush that is planned now, with undecided rows, and finished some operations later.
    PlanFlush,
    FinishFlush,
    Recycle(u64),
    /// Releases hot rows from before this, now and at every flush.
    HardLine(Timestamp),
    Delete(u64, Vec<u32>, Timestamp, Timestamp),
    Hold,
    ReleaseViews,
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn invariant_2_and_3_reads_match_the_map(
        ops in prop::collection::vec(op(), 1..80),
        floors in prop::collection::vec(0..3_000u64, 2),
        cooling_bytes_max in prop::sample::select(vec![u64::MAX, u64::MAX, 20_000, 0]),
        slice_bytes in prop::sample::select(vec![16, 100, 512 << 10]),
    ) {
        let mut world = World::new(2, |options| {
            small(options);
            options.cooling_bytes_max = cooling_bytes_max;
            options.slice_bytes = slice_bytes;
        });
        let mut held: Vec<HeldView> = Vec::new();
        let (mut planned, mut flush) = (None, None);
        for op in ops {
            match op {
                Op::Write(cells) => world.write(&cells),
                Op::WriteRefused(cells, abandons) => world.write_refused(&cells, abandons),
                Op::Publish(idx) => world.publish(idx % world.log.len().max(1)),
                Op::PublishAll => world.publish_all(),
                Op::RotateLog => world.segment += 1,
                Op::Poison(kept) => world.poison(kept),
                Op::RollBack => world.roll_back(),
                Op::Convert => drop(world.convert()),
                Op::Compress => drop(world.compress()),
                Op::PlanConvert => {
                    planned = world.head.plan_compress().or_else(|| world.head.plan_convert());
                }
                Op::ApplyConvert => if let Some(job) = planned.take() {
                    world.head.apply_convert(job.run().unwrap());
                },
                Op::Flush => {
                    flush = None;
                    world.flush();
                }
                Op::PlanFlush => {
                    world.head.seal_all();
                    flush = world.head.plan_flush();
                }
                Op::FinishFlush => if let Some(job) = flush.take() {
                    world.finish_flush(&job);
                },
                Op::Recycle(bytes) => drop(world.head.recycle(bytes)),
                Op::HardLine(ts) => {
                    world.hard_line = ts;
                    world.head.recycle_surplus(ts);
                }
                Op::Delete(group, slots, start, end) => {
                    let slots = slots.into_iter().map(Slot).collect();
                    world.delete(group, slots, TimeRange::new(start, end));
                }
                Op::Hold => held.push(world.hold()),
                Op::ReleaseViews => held.clear(),
            }
            world.check();
            let stats = world.head.stats();
            prop_assert!(stats.cooling_bytes <= cooling_bytes_max, "{stats:?}");
        }
        for held in &held {
            // A reader reads correctly unless its memory was revoked, which happens only above the
            // limit.
            prop_assert!(held.check() || world.head.stats().revoked_bytes > 0);
        }
        drop((held, planned, flush));
        world.roll_back();
        world.check();
        // The next stage adjusts the reservations of a refused or abandoned encoding.
        world.put(&vec![(0, 0, 1, 1.0), (1, 0, 1, 1.0)]);
        world.check_budget();
        check_replay(&world, &floors);
        let budget = world.budget.clone();
        drop(world);
        prop_assert_eq!(budget.usage().used_bytes, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn invariant_2_and_3_concurrent_reads_match_the_map(ops in changes()) {
        run_at_once(ops, None);
    }
}

#[test]
fn mutants_are_detected_while_threads_run_at_once() {
    let mut runner = TestRunner::deterministic();
    for mutant in Mutant::ALL {
        let is_detected = (0..100).any(|_| {
            let ops = changes().new_tree(&mut runner).unwrap().current();
            catch_unwind(AssertUnwindSafe(|| run_at_once(ops, Some(mutant)))).is_err()
        });
        assert!(is_detected, "{mutant:?} is not detected");
    }
}

fn changes() -> impl Strategy<Value = Vec<Op>> {
    let change = prop_oneof![
        12 => cells().prop_map(Op::Write),
        2 => delete(),
        1 => Just(Op::Flush),
        1 => Just(Op::RotateLog),
    ];
    prop::collection::vec(change, 40..80)
}

/// One thread makes rows, pieces of rows, late rows, deletes and flushes. Beside it, one thread
/// converts, one releases memory, and two read views of any age, which must always show the content
/// of the map when they were taken. A lock is held only for steps that the engine does under its
/// view lock.
fn run_at_once(ops: Vec<Op>, mutant: Option<Mutant>) {
    let mut world = World::new(2, |options| {
        small(options);
        let is_kept = mutant != Some(Mutant::PinsSkipped);
        options.cooling_bytes_max = if is_kept { u64::MAX } else { 0 };
    });
    world.mutant = mutant;
    let head = Arc::clone(&world.head);
    let world = RwLock::new(world);
    let (is_over, look_count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let goes_on = || !is_over.load(Ordering::Acquire);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while goes_on() {
                match head.plan_convert().or_else(|| head.plan_compress()) {
                    Some(job) => drop(head.apply_convert(job.run().unwrap())),
                    None => std::thread::yield_now(),
                }
            }
        });
        scope.spawn(|| {
            for turn in (0..4).cycle().take_while(|_| goes_on()) {
                head.recycle([0, 500, 5_000, u64::MAX][turn]);
                std::thread::yield_now();
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let _ends = StopOnDrop(&is_over);
                let mut held: Vec<HeldView> = Vec::new();
                while goes_on() {
                    held.push(world.read().unwrap().hold());
                    let oldest = held.len().saturating_sub(12);
                    let looked_at =
                        [held.len() - 1, look_count.load(Ordering::Relaxed) % held.len()];
                    looked_at.iter().for_each(|&idx| {
                        assert!(held[idx].check(), "memory of a view was revoked")
                    });
                    held.drain(1..1 + oldest);
                    look_count.fetch_add(1, Ordering::Relaxed);
                }
                held.iter().for_each(|held| assert!(held.check(), "memory of a view was revoked"));
            });
        }
        let _ends = StopOnDrop(&is_over);
        for (idx, op) in ops.into_iter().enumerate() {
            // Slow enough that the other threads make progress.
            while look_count.load(Ordering::Relaxed) < idx / 2 && goes_on() {
                std::thread::yield_now();
            }
            let mut world = world.write().unwrap();
            match op {
                Op::Write(cells) => world.put(&cells),
                Op::Delete(group, slots, start, end) => {
                    let slots = slots.into_iter().map(Slot).collect();
                    world.delete(group, slots, TimeRange::new(start, end));
                }
                Op::Flush => drop(world.flush()),
                Op::RotateLog => world.segment += 1,
                _ => unreachable!("not a change"),
            }
        }
    });
    let mut world = world.into_inner().unwrap();
    world.check();
    world.put(&vec![(0, 0, 1, 1.0), (1, 0, 1, 1.0)]);
    world.check_budget();
}

/// Replays the log of `world` into a new head: first everything, then only the entries above the
/// floors.
fn check_replay(world: &World, floors: &[u64]) {
    for floors in [&[0, 0], floors] {
        let mut options = HeadOptions::default();
        small(&mut options);
        let again = Head::new(world.bits, options, Budget::unlimited());
        let mut expected = Map::new();
        let mut deletes = world.deletes.iter().peekable();
        for entry in &world.log {
            while deletes.next_if(|deleted| deleted.seq < entry.seq).is_some() {
                (0..world.bits.shard_count())
                    .for_each(|shard| again.split_parts(ShardId(shard as u16)));
            }
            let apply = entry.position.0 > floors[usize::from(entry.shard.0)];
            let Entry { shard, seq, position, segment, payload, .. } = entry;
            let report = again.replay(*shard, *seq, payload, *position, *segment, apply).unwrap();
            assert_eq!(report.refused_count, 0);
            if apply {
                show(&mut expected, entry, &world.deletes);
            }
        }
        assert!(HeldView::new(again.snapshot(), expected.clone(), &world.deletes).check());
        while let Some(job) = again.plan_convert() {
            assert!(again.apply_convert(job.run().unwrap()));
        }
        assert!(HeldView::new(again.snapshot(), expected, &world.deletes).check());
    }
}

/// Limits so low that every path runs often.
fn small(options: &mut HeadOptions) {
    options.convert.arena_bytes_max = 60;
    options.convert.sparse_arena_times = 4;
    options.convert.rows_per_group_min = 2;
    options.convert.rows_per_group_max = 5;
    options.convert.query_reads_max = 3;
    options.convert.bytes_per_series_max = 24;
    options.convert.arena_bytes_min = 30;
    options.convert.segment_fan_in = 2;
    options.convert.rows_per_chunk_min = 3;
    options.hot_bytes_max = 20_000;
    options.hot_area_ms = 100;
    options.recycle_percents = [45, 35, 20];
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => cells().prop_map(Op::Write),
        1 => (cells(), any::<bool>())
            .prop_map(|(cells, abandons)| Op::WriteRefused(cells, abandons)),
        4 => (0..200usize).prop_map(Op::Publish),
        6 => Just(Op::PublishAll),
        1 => Just(Op::RotateLog),
        1 => (0..3usize).prop_map(Op::Poison),
        1 => Just(Op::RollBack),
        3 => Just(Op::Convert),
        3 => Just(Op::Compress),
        1 => Just(Op::PlanConvert),
        1 => Just(Op::ApplyConvert),
        1 => Just(Op::Flush),
        1 => Just(Op::PlanFlush),
        2 => Just(Op::FinishFlush),
        1 => (0..5_000u64).prop_map(Op::Recycle),
        1 => (0..400i64).prop_map(Op::HardLine),
        1 => delete(),
        2 => Just(Op::Hold),
        1 => Just(Op::ReleaseViews),
    ]
}

fn delete() -> impl Strategy<Value = Op> {
    let slots = prop::collection::btree_set(0..5u32, 1..5);
    let ends = (0..600i64, 0..400i64, prop::bool::weighted(0.2));
    (0..GROUP_COUNT, slots, ends).prop_map(|(group, slots, (start, len, is_all))| {
        let (start, end) = if is_all { (i64::MIN, i64::MAX) } else { (start, start + len) };
        Op::Delete(group, slots.into_iter().collect(), start, end)
    })
}

fn cells() -> impl Strategy<Value = Cells> {
    let ts = prop_oneof![
        8 => (0..40i64).prop_map(|step| step * 15),
        2 => -30..30i64,
        1 => prop::sample::select(vec![i64::MIN, -1, 0, i64::MAX]),
    ];
    let value = prop_oneof![
        6 => (0..50i32).prop_map(|n| f64::from(n) / 10.0),
        1 => any::<u64>().prop_map(f64::from_bits),
        1 => prop::sample::select(vec![STALE_NAN, -0.0, 0.0, f64::INFINITY, f64::MIN_POSITIVE]),
    ];
    // A few rows of a few members each; groups 4 and 5 are lone series.
    let row = (0..GROUP_COUNT, ts, prop::collection::vec((0..5u32, value), 1..6));
    prop::collection::vec(row, 1..5).prop_map(|rows| {
        let cell = |group: u64, slot: u32| if group >= 4 { 0 } else { slot };
        rows.into_iter()
            .flat_map(|(group, ts, members)| {
                members.into_iter().map(move |(slot, value)| (group, cell(group, slot), ts, value))
            })
            .collect()
    })
}
