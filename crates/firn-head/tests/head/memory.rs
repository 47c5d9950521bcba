//! The cost of series and samples, and their reservation in the budget.

use std::ops::Range;

use firn_codec::{GroupColumns, Slots};
use firn_head::{Head, HeadOptions, bound_bytes};
use firn_model::{Budget, GroupId, Pool, RowBatch, SeriesRef, ShardBits, ShardId, Slot, TimeRange};

use crate::world::{World, put};

/// One row each of groups of `members`.
fn round(groups: Range<u64>, members: u32, ts: i64, batch: &mut RowBatch) {
    batch.clear();
    for group in groups {
        for slot in 0..members {
            let series = SeriesRef { group: GroupId(group), slot: Slot(slot) };
            batch.push(series, ts + (group % 100) as i64, (group + u64::from(slot)) as f64);
        }
    }
}

#[test]
fn invariant_8_a_series_costs_bytes_not_objects() {
    for (group_count, members, state_max) in [(20_000, 1, 40), (200, 100, 16)] {
        let budget = Budget::unlimited();
        let head = Head::new(ShardBits::for_count(4), HeadOptions::default(), budget.clone());
        let mut batch = RowBatch::default();
        for step in 0..20u64 {
            for first in (0..group_count).step_by(100) {
                round(first..first + 100, members, step as i64 * 15_000, &mut batch);
                put(&head, &budget, &mut batch, step * group_count + first + 1);
            }
            while let Some(job) = head.plan_convert().or_else(|| head.plan_compress()) {
                assert!(head.apply_convert(job.run().unwrap()));
            }
        }
        let stats = head.stats();
        let series_count = group_count * u64::from(members);
        let state_bytes = stats.state_bytes / series_count;
        assert!(state_bytes <= state_max, "{state_bytes} bytes of state per series");
        let all = budget.usage().used_bytes / series_count;
        assert!(all <= 40 + state_max + 100, "{all} bytes per series, {stats:?}");
    }
}

/// An arena is united with the segments before it as it becomes columns. Otherwise its values would
/// be packed once for a segment of their own and again for the next merge.
#[test]
fn a_conversion_leaves_hardly_a_merge_to_do() {
    for members in [1, 20] {
        let budget = Budget::unlimited();
        let head = Head::new(ShardBits::for_count(1), HeadOptions::default(), budget.clone());
        let mut batch = RowBatch::default();
        let (mut job_count, mut merge_count, mut left_count) = (0, 0, 0);
        for step in 0..400u64 {
            round(0..40, members, step as i64 * 15_000, &mut batch);
            put(&head, &budget, &mut batch, step + 1);
            if step % 10 == 9 {
                head.seal_all();
            }
            while let Some(job) = head.plan_convert() {
                let segment_count = head.stats().segment_count;
                assert!(head.apply_convert(job.run().unwrap()));
                job_count += 1;
                merge_count += u64::from(head.stats().segment_count <= segment_count);
            }
            while let Some(job) = head.plan_compress() {
                assert!(head.apply_convert(job.run().unwrap()));
                left_count += 1;
            }
        }
        assert!(job_count >= 40 && merge_count * 3 > job_count, "{merge_count} of {job_count}");
        assert!(left_count * 10 < job_count, "{left_count} beside {job_count}");
        let all = head.snapshot().read(GroupId(7), Slots::All, TimeRange::ALL).unwrap();
        let value_count: usize = all.iter().map(|columns| columns.value_count()).sum();
        assert_eq!(value_count, 400 * members as usize);
    }
}

/// Rows of many members that queries read again and again become columns before there are 32 of
/// them, and then a query reads a fraction of the bytes. Before, it passed all rows each time.
#[test]
fn rows_that_queries_read_often_become_columns() {
    let budget = Budget::unlimited();
    let head = Head::new(ShardBits::for_count(1), HeadOptions::default(), budget.clone());
    let (mut batch, mut seq) = (RowBatch::default(), 0);
    let mut write = |steps: Range<i64>| {
        for step in steps {
            batch.clear();
            for (group, slot) in (0..10).flat_map(|group| (0..100).map(move |slot| (group, slot))) {
                let series = SeriesRef { group: GroupId(group), slot: Slot(slot) };
                batch.push(series, step * 15_000, (step * i64::from(slot)) as f64);
            }
            seq += 1;
            put(&head, &budget, &mut batch, seq);
        }
    };
    let query_bytes = || {
        let snapshot = head.snapshot();
        let mut reader = snapshot.reader(TimeRange::ALL);
        for group in 0..10 {
            let slots = Slots::Some(&[Slot(50)]);
            reader.read(GroupId(group), slots, TimeRange::ALL).unwrap();
        }
        reader.bytes_touched()
    };
    // The first arena of the first shard is full early.
    write(0..5);
    let first = head.plan_convert().expect("the first arena is full");
    assert!(head.apply_convert(first.run().unwrap()));
    write(5..11);
    (0..20).for_each(|_| assert!(query_bytes() > 0));
    write(11..20);
    assert!(head.plan_convert().is_none(), "before they were read often");
    let before = query_bytes();
    let mut query_count = 0;
    let job = loop {
        query_bytes();
        query_count += 1;
        if let Some(job) = head.plan_convert() {
            break job;
        }
    };
    assert!((10..100).contains(&query_count), "after {query_count} queries");
    assert!(head.apply_convert(job.run().unwrap()));
    let after = query_bytes();
    assert!(after * 2 < before, "{before} bytes in rows, {after} in columns");
    write(20..25);
    (0..1_000).for_each(|_| assert!(query_bytes() > 0));
    assert!(head.plan_convert().is_none(), "too few rows for columns");
}

/// Deletes between writes keep the few rows of each write in parts of their own. Each took a block
/// of 4 KiB, 50 times the plain size of its samples.
#[test]
fn rows_between_deletes_take_a_few_times_their_plain_size() {
    let budget = Budget::unlimited();
    let head = Head::new(ShardBits::for_count(8), HeadOptions::default(), budget.clone());
    let mut batch = RowBatch::default();
    for step in 0..50u64 {
        round(0..40, 1, step as i64 * 15_000, &mut batch);
        put(&head, &budget, &mut batch, step + 1);
        (0..8).for_each(|id| head.split_parts(ShardId(id)));
        while let Some(job) = head.plan_convert() {
            assert!(head.apply_convert(job.run().unwrap()));
        }
    }
    let stats = head.stats();
    assert_eq!((stats.arena_count_waiting, stats.row_count), (0, 50 * 40));
    let bytes = budget.usage().used_bytes - stats.state_bytes - stats.arena_bytes;
    assert!(bytes >= stats.segment_bytes && bytes <= 4 * 50 * 40 * 16, "{bytes}, {stats:?}");
}

/// Small counts at whole seconds, one every three minutes on average. In two hours such a series
/// never takes more than 190 bytes, and under 140 on average. ByteSeries, section 5.1, has 310 to
/// 375 bytes, including labels.
#[test]
fn irregular_series_stay_cheap() {
    const SERIES: u64 = 8_000;
    let budget = Budget::unlimited();
    let head = Head::new(ShardBits::for_count(4), HeadOptions::default(), budget.clone());
    let mut batch = RowBatch::default();
    let (mut seq, mut point_count, mut most, mut sum) = (0, 0, 0, 0);
    for minute in 0..120u64 {
        for first in (0..SERIES).step_by(1_000) {
            batch.clear();
            for group in first..first + 1_000 {
                let dice = (group * 120 + minute).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let dice = (dice ^ dice >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20;
                if dice.is_multiple_of(3) {
                    let series = SeriesRef { group: GroupId(group), slot: Slot(0) };
                    let second = 1_700_000_000 + minute * 60 + (dice >> 8) % 60;
                    batch.push(series, second as i64 * 1_000, ((dice >> 16) % 20) as f64);
                    point_count += 1;
                }
            }
            seq += 1;
            put(&head, &budget, &mut batch, seq);
        }
        while let Some(job) = head.plan_convert().or_else(|| head.plan_compress()) {
            assert!(head.apply_convert(job.run().unwrap()));
        }
        // With so few shards, the blocks that one conversion has freed are a quarter of all.
        let used_bytes = budget.usage().used_bytes - head.stats().free_bytes;
        most = most.max(used_bytes);
        sum += used_bytes;
    }
    assert!((39 * SERIES..41 * SERIES).contains(&point_count), "{point_count} points");
    let (most, mean) = (most / SERIES, sum / 120 / SERIES);
    assert!(most <= 190 && mean <= 140, "{most}, {mean} bytes per series, {:?}", head.stats());
}

/// Two hours of a server with 600 members, in static runs and compressed chunks: a read of five
/// minutes of one member.
#[test]
fn a_reader_of_one_member_touches_little() {
    let budget = Budget::unlimited();
    let mut options = HeadOptions::default();
    options.convert.bytes_per_series_max = 1_000;
    let head = Head::new(ShardBits::for_count(1), options, budget.clone());
    let mut batch = RowBatch::default();
    for scrape in 0..480u64 {
        batch.clear();
        for slot in 0..600u32 {
            let series = SeriesRef { group: GroupId(0), slot: Slot(slot) };
            let noise = (u64::from(slot) * 480 + scrape).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
            let value = [f64::from(slot), (scrape * 300 + noise) as f64][slot as usize % 2];
            batch.push(series, scrape as i64 * 15_000, value);
        }
        put(&head, &budget, &mut batch, scrape + 1);
        while let Some(job) = head.plan_convert().or_else(|| head.plan_compress()) {
            assert!(head.apply_convert(job.run().unwrap()));
        }
    }
    head.seal_all();
    while let Some(job) = head.plan_convert().or_else(|| head.plan_compress()) {
        assert!(head.apply_convert(job.run().unwrap()));
    }
    let stats = head.stats();
    assert!(stats.segment_count >= 1 && stats.arena_count_waiting == 0, "{stats:?}");
    let snapshot = head.snapshot();
    for start in [0, 100, 300, 459] {
        for slot in [0, 1, 299, 598, 599] {
            let range = TimeRange::new(start * 15_000, start * 15_000 + 299_999);
            let mut reader = snapshot.reader(range);
            let sources = reader.read(GroupId(0), Slots::Some(&[Slot(slot)]), range).unwrap();
            assert_eq!(sources.iter().map(GroupColumns::value_count).sum::<usize>(), 20);
            let (touched, all) = (reader.bytes_touched() as u64, stats.segment_bytes);
            assert!(touched > 0 && touched * 50 <= all, "{touched} of {all} bytes, slot {slot}");
        }
    }
}

/// Conversion lags for long. Every arena is sealed at its size, waiting rows cost only their bytes
/// and are in the budget, a job has bounded work, and afterwards memory is as without the lag.
#[test]
fn conversion_that_lags_is_bounded_and_catches_up() {
    const GROUPS: u64 = 300;
    let budget = Budget::unlimited();
    let mut options = HeadOptions::default();
    options.convert.arena_bytes_max = 4 << 10;
    options.convert.sparse_arena_times = 4;
    options.convert.arena_bytes_min = 4 << 10;
    let head = Head::new(ShardBits::for_count(1), options.clone(), budget.clone());
    let mut batch = RowBatch::default();
    for step in 0..200u64 {
        round(0..GROUPS, 1, step as i64 * 15_000, &mut batch);
        put(&head, &budget, &mut batch, step + 1);
    }
    let lagging = head.stats();
    assert!(lagging.arena_count_waiting > 3, "{lagging:?}");
    // An arena's last request may exceed the limit, and its blocks and pages are whole.
    let arena_bytes_max = 4 * options.convert.arena_bytes_max as u64 + GROUPS * 20 + (16 << 10);
    let per_arena = lagging.arena_bytes / (lagging.arena_count_waiting + 1);
    assert!(per_arena <= arena_bytes_max, "{lagging:?}");
    assert!(lagging.arena_bytes <= lagging.row_count * 12, "{lagging:?}");
    assert_eq!(budget.usage().used_bytes, lagging.arena_bytes + lagging.state_bytes);
    let before = head.snapshot();
    while let Some(job) = head.plan_convert().or_else(|| head.plan_compress()) {
        assert!(head.apply_convert(job.run().unwrap()));
    }
    drop(before);
    let after = head.stats();
    assert_eq!((after.row_count, after.arena_count_waiting), (lagging.row_count, 0));
    let held = after.arena_bytes + after.segment_bytes;
    assert!(held * 3 < lagging.arena_bytes, "{after:?} of {lagging:?}");
    assert_eq!(budget.usage().used_bytes, held + after.state_bytes + after.free_bytes);
}

/// A sender with fifty connections sends a row in fifty pieces, which count as one row. Regression
/// test: arenas were full before the first scrape was over, and every value was written whole
/// again.
#[test]
fn pieces_of_a_row_count_as_one_row() {
    let held = |piece_count: u32| {
        let budget = Budget::unlimited();
        let head = Head::new(ShardBits::for_count(1), HeadOptions::default(), budget.clone());
        let mut batch = RowBatch::default();
        let mut seq = 0;
        let mut arena_count = 0;
        for scrape in 0..64u64 {
            for piece in 0..piece_count {
                batch.clear();
                for group in 0..20 {
                    for slot in (0..100).filter(|slot| slot % piece_count == piece) {
                        let series = SeriesRef { group: GroupId(group), slot: Slot(slot) };
                        batch.push(series, scrape as i64 * 15_000, f64::from(slot % 7));
                    }
                }
                seq += 1;
                put(&head, &budget, &mut batch, seq);
            }
            while let Some(job) = head.plan_convert() {
                arena_count += 1;
                assert!(head.apply_convert(job.run().unwrap()));
            }
        }
        (arena_count, budget.usage().used_bytes / 2_000)
    };
    let (whole, pieces) = (held(1), held(50));
    // In such small pieces a value costs three bytes, so the limit of bytes per series is reached
    // at 20 rows instead of 32.
    assert!(whole.0 <= 4 && pieces.0 <= 8, "{whole:?}, {pieces:?}");
    assert!(whole.1 <= 60 && pieces.1 <= 130, "{whole:?}, {pieces:?}");
}

/// This also holds after a flush has sealed an arena with few rows.
#[test]
fn a_few_busy_series_do_not_cut_short_the_runs_of_others() {
    let budget = Budget::unlimited();
    let mut options = HeadOptions::default();
    options.convert.rows_per_group_max = 4;
    let head = Head::new(ShardBits::for_count(1), options, budget.clone());
    let (mut batch, mut seq) = (RowBatch::default(), 0);
    let mut write = |groups: u64, rounds: usize| {
        for _ in 0..rounds {
            seq += 1;
            round(0..groups, 1, seq as i64, &mut batch);
            put(&head, &budget, &mut batch, seq);
        }
        head.stats().arena_count_waiting
    };
    assert_eq!(write(500, 5), 1, "four rows per series make a run");
    head.seal_all();
    write(2, 1);
    head.seal_all();
    let before = write(2, 1);
    assert_eq!(write(2, 50), before, "two of 500 series are under a fifth");
    assert_eq!(write(500, 5), before + 1);
}

#[test]
fn idle_groups_are_forgotten() {
    let budget = Budget::unlimited();
    let mut options = HeadOptions::default();
    options.convert.rows_per_group_max = 4;
    let head = Head::new(ShardBits::for_count(1), options, budget.clone());
    let mut batch = RowBatch::default();
    round(0..2_000, 10, 0, &mut batch);
    put(&head, &budget, &mut batch, 1);
    let busy = head.stats().state_bytes;
    for step in 1..60u64 {
        round(0..3, 10, step as i64, &mut batch);
        put(&head, &budget, &mut batch, step + 1);
    }
    // Rows per group are an average, so the test seals the arena as a flush does.
    head.seal_all();
    for step in 60..70u64 {
        round(0..3, 10, step as i64, &mut batch);
        put(&head, &budget, &mut batch, step + 1);
    }
    head.seal_all();
    let idle = head.stats().state_bytes;
    assert!(idle * 2 < busy, "{idle} bytes for 3 groups, {busy} for 2,000");
}

/// The budget is so small that it runs out repeatedly. Writers are refused before any row is
/// encoded, staged rows are kept, and held memory never exceeds the limit unseen.
#[test]
fn invariant_8_a_full_budget_refuses_only_writers() {
    let budget = Budget::new(120_000);
    let head = Head::new(ShardBits::for_count(1), HeadOptions::default(), budget.clone());
    let mut batch = RowBatch::default();
    let mut refused = 0;
    for step in 0..3_000u64 {
        round(0..20, 5, step as i64 * 1_000, &mut batch);
        batch.sort(head.shard_bits());
        match budget.reserve(Pool::Head, bound_bytes(&batch)) {
            Err(error) => {
                assert!(error.is_retriable());
                refused += 1;
                let marks = head.seal_all();
                let job = head.plan_flush().unwrap();
                assert!(job.covers(&marks));
                head.flushed(&job);
                drop(job);
                head.recycle(u64::MAX);
            }
            Ok(reserved) => {
                drop(reserved);
                put(&head, &budget, &mut batch, step + 1);
            }
        }
        let usage = budget.usage();
        let stats = head.stats();
        let held = stats.arena_bytes + stats.segment_bytes + stats.state_bytes + stats.free_bytes;
        assert_eq!(usage.by_pool[Pool::Head as usize], held, "{stats:?}");
        assert!(usage.used_bytes <= usage.limit_bytes);
    }
    assert!(refused > 2, "the budget never ran out");
}

/// Two thousand series for eight hours, flushed every half hour, with room for two flushes. After
/// the first hours no conversion needs unused memory.
#[test]
fn invariant_8_conversions_reuse_freed_blocks() {
    let budget = Budget::unlimited();
    let options = HeadOptions { hot_bytes_max: 150 << 10, ..HeadOptions::default() };
    let head = Head::new(ShardBits::for_count(4), options, budget.clone());
    let mut batch = RowBatch::default();
    let (mut most, mut recycled) = (Vec::new(), 0);
    for hour in 0..8u64 {
        let mut most_bytes = 0;
        for step in 0..240 {
            let seq = hour * 240 + step + 1;
            round(0..20, 100, seq as i64 * 15_000, &mut batch);
            put(&head, &budget, &mut batch, seq);
            while let Some(job) = head.plan_convert().or_else(|| head.plan_compress()) {
                assert!(head.apply_convert(job.run().unwrap()));
            }
            if step % 120 == 119 {
                head.seal_all();
                let job = head.plan_flush().unwrap();
                head.flushed(&job);
                drop(job);
                head.recycle_surplus(i64::MIN);
            }
            most_bytes = most_bytes.max(head.stats().block_bytes);
        }
        most.push(most_bytes);
        let stats = head.stats();
        assert!(stats.hot_bytes <= 150 << 10 && stats.free_bytes <= stats.block_bytes, "{stats:?}");
        assert!(stats.recycled_bytes > recycled, "{stats:?}");
        recycled = stats.recycled_bytes;
    }
    let (early, late) = (most[2], most[3..].iter().max().unwrap());
    assert!(*late <= early + early / 8, "{most:?}");
}

#[test]
fn a_replaced_arena_stays_in_the_budget_while_a_reader_has_it() {
    let mut world = World::new(1, |options| options.convert.rows_per_group_max = 8);
    for ts in 0..9 {
        world.put(&vec![(1, 0, ts, 1.0)]);
    }
    let reader = world.hold();
    let before = world.budget.usage().used_bytes;
    assert!(world.convert());
    assert!(world.budget.usage().used_bytes > before);
    drop(reader);
    assert!(world.budget.usage().used_bytes < before);
    world.check_budget();
}

/// Snapshots are shared until a shard changes. The one that is kept for the next query must not pin
/// replaced, flushed or released memory.
#[test]
fn an_unused_snapshot_pins_no_memory() {
    let mut world = World::new(2, |options| options.convert.rows_per_group_max = 8);
    for ts in 0..9 {
        world.put(&vec![(0, 0, ts, 1.0), (1, 0, ts, 1.0)]);
    }
    drop(world.head.snapshot());
    assert!(world.convert());
    world.check_budget();
    drop(world.head.snapshot());
    assert!(world.flush());
    world.check_budget();
    drop(world.head.snapshot());
    assert!(world.head.recycle(u64::MAX) > 0);
    world.check_budget();
    assert_eq!(world.budget.usage().by_pool[Pool::Hot as usize], 0);
}

/// A flush leaves segments of several sizes. Without merges, a database with little to flush each
/// time collected them, and a query of the last hours sought in each.
#[test]
fn hot_segments_are_merged_up_to_a_share_of_their_memory() {
    for (hot_bytes_max, counts) in [(4 << 20, 1..4), (200 << 10, 4..9)] {
        let mut world = World::new(1, |options| options.hot_bytes_max = hot_bytes_max);
        for step in 0..60 {
            for row in 0..10 {
                let ts = i64::from(step * 10 + row) * 15_000;
                world.put(&(0..20).map(|group| (group, 0, ts, (ts as f64).sin())).collect());
            }
            assert!(world.flush());
            while world.convert() || world.compress() {}
        }
        let hot_count = world.head.stats().hot_count;
        assert!(counts.contains(&hot_count), "{hot_count} of {hot_bytes_max} bytes");
        world.check();
    }
}
