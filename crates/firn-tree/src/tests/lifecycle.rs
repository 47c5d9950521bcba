//! Named scenes: one rule each.

use firn_sim::Operation;

use super::*;
use crate::{JobKind, Level, Prefetch, ReadAhead, TableRecord, UpcomingGroup, UpcomingScan};

fn start_of_window(world: &World) -> i64 {
    world.now().div_euclid(2 * HOUR_MS) * 2 * HOUR_MS
}

/// Flushes regular data in steps of 15 minutes, with the clock, and lets the tree work.
fn live(world: &mut World, ms: i64) -> Vec<&'static str> {
    let mut kinds = Vec::new();
    for _ in 0..ms / (15 * MINUTE_MS) {
        let start = world.now();
        world.advance(15 * MINUTE_MS);
        let samples = regular(1..5, 0..3, start..world.now(), MINUTE_MS, 0.5);
        world.flush(&samples).unwrap();
        kinds.extend(world.settle());
    }
    kinds
}

#[test]
fn data_moves_down_the_levels_and_is_never_read_short() {
    let mut world = World::new(1, small_options());
    let kinds = live(&mut world, 10 * HOUR_MS);
    world.check();
    assert!(kinds.contains(&"compact") && kinds.contains(&"upload"), "{kinds:?}");
    assert!(!kinds.contains(&"merge_patches"), "in-order data never touches level 2 again");
    let stats = world.tree.stats();
    let [zero, one, two] = &stats.levels;
    assert!(zero.partition_count <= 2 && two.partition_count >= 3, "{stats:?}");
    assert_eq!(two.patch_count, 0);
    let total: u64 = [zero, one, two].map(|level| level.value_count).iter().sum();
    assert_eq!(total, world.samples.len() as u64, "nothing is stored twice");
    assert!(stats.newest_slow_ts.unwrap() < world.now());
    assert!(world.damage().is_empty());
}

#[test]
fn slow_reads_take_two_round_trips_cold_and_none_warm() {
    let mut world = World::new(1, small_options());
    live(&mut world, 24 * HOUR_MS);
    world.reopen();
    let version = world.tree.version();
    let asks = [ColumnRequest { group: GroupId(2), slots: &[Slot(1)], before: None }];
    let range = TimeRange::new(world.now() - 24 * HOUR_MS, world.now() - 6 * HOUR_MS);
    let cold = version.scan(&asks, range, None, &QueryContext::unbounded()).unwrap();
    let traffic = world.tree.stats().traffic;
    assert_eq!(traffic.slow_round_trips, 2, "{traffic:?}");
    // Reads the directories of the tables that may have the group, and the blocks of its columns.
    let overlaps = |record: &&TableRecord| {
        record.level == Level::Two
            && record.time_range.overlaps(range)
            && record.may_hold(GroupId(2))
    };
    let records: Vec<&TableRecord> = version.tables().filter(overlaps).collect();
    let directories: u64 = records.iter().map(|record| u64::from(record.suffix_bytes)).sum();
    let columns: u64 = cold[0].iter().map(|columns| columns.entry_count() as u64).sum();
    let chunks = cold[0].len() as u64;
    // A slow-tier block, and one chunk more.
    let block_bytes = 5 * world.options.block_bytes as u64;
    assert!(traffic.slow_gets <= records.len() as u64 + chunks, "{traffic:?}");
    assert!(
        traffic.slow_get_bytes <= directories + columns + chunks * block_bytes,
        "{traffic:?}, {directories} of directories, {chunks} chunks of {columns} entries"
    );
    // All requests to the slow tier were for this query.
    assert_eq!(traffic.slow_query_bytes, traffic.slow_get_bytes);
    let values = |found: &[Vec<GroupColumns>]| -> u64 {
        let columns = found.iter().flatten().flat_map(|columns| &columns.batch.columns);
        columns.map(|column| column.values.len() as u64).sum()
    };
    assert_eq!(traffic.slow_query_values, values(&cold));
    assert_eq!((traffic.fast_query_bytes, traffic.fast_query_values), (0, 0));
    let amplification = world.tree.stats().slow_read_amplification();
    assert!(amplification > 1.0, "one member of four groups of three: {amplification}");
    let warm = version.scan(&asks, range, None, &QueryContext::unbounded()).unwrap();
    assert_eq!(world.tree.stats().slow_read_amplification(), amplification / 2.0);
    assert_eq!(world.tree.stats().traffic.slow_round_trips, 2);
    assert_eq!(cold[0].len(), warm[0].len());
    // After a restart the data read before is on this machine.
    world.tree.close();
    world.reopen();
    let restarted = world.tree.version().scan(&asks, range, None, &QueryContext::unbounded());
    assert_eq!(restarted.unwrap()[0].len(), warm[0].len());
    let stats = world.tree.stats();
    assert_eq!(stats.traffic.slow_round_trips, 0, "{stats:?}");
    assert_eq!(stats.slow_cache.hits, records.len() as u64 + chunks, "{stats:?}");
}

/// The first query of tables uploaded by this machine requests only blocks, also after a restart.
#[test]
fn directories_of_uploads_are_kept_on_this_machine() {
    let mut world = World::new(1, small_options());
    live(&mut world, 24 * HOUR_MS);
    world.tree.close();
    world.reopen();
    let asks = [ColumnRequest { group: GroupId(2), slots: &[Slot(1)], before: None }];
    let range = TimeRange::new(world.now() - 24 * HOUR_MS, world.now() - 6 * HOUR_MS);
    let version = world.tree.version();
    let found = version.scan(&asks, range, None, &QueryContext::unbounded()).unwrap();
    assert!(found[0].len() > 5);
    let stats = world.tree.stats();
    assert_eq!(stats.traffic.slow_round_trips, 1, "{stats:?}");
    assert!(stats.slow_cache.hits > 5 && stats.slow_cache.damaged == 0, "{stats:?}");
}

/// A selection that is scanned piece by piece makes a few requests to the slow tier, not one per
/// piece, and reads nothing twice.
#[test]
fn a_long_scan_reads_ahead() {
    const GROUPS: u64 = 800;
    const PIECE: u64 = 4;
    let mut world =
        World::new(1, TreeOptions { block_bytes: 256, slow_cache_bytes_max: 0, ..small_options() });
    let start = start_of_window(&world) - 8 * HOUR_MS;
    world.flush(&regular(0..GROUPS, 0..2, start..start + 2 * HOUR_MS, 180_000, 0.0)).unwrap();
    world.advance(5 * HOUR_MS);
    world.settle();
    let mut traffic = Vec::new();
    for reads_ahead in [false, true] {
        world.reopen();
        let version = world.tree.version();
        let all = |_, _| true;
        let _held = version.load_directories(TimeRange::ALL, &all, &Budget::unlimited()).unwrap();
        let state = ReadAhead::default();
        let ask = |group| ColumnRequest { group: GroupId(group), slots: &[Slot(1)], before: None };
        let later =
            |group| UpcomingGroup { group: GroupId(group), slots: vec![Slot(1)], before: None };
        for first in (0..GROUPS).step_by(PIECE as usize) {
            let asks: Vec<ColumnRequest<'_>> = (first..first + PIECE).map(ask).collect();
            let mut next = |pieces: usize| {
                let groups = (first + PIECE..GROUPS).take(pieces * PIECE as usize);
                UpcomingScan { range: TimeRange::ALL, groups: groups.map(later).collect() }
            };
            let ahead = reads_ahead.then_some(Prefetch { read_ahead: &state, next: &mut next });
            let context = QueryContext::unbounded();
            let found = version.scan(&asks, TimeRange::ALL, ahead, &context).unwrap();
            assert!(found.iter().all(|chunks| chunks.len() == 1));
        }
        traffic.push(world.tree.stats().traffic);
    }
    let [plain, ahead] = &traffic[..] else { unreachable!() };
    assert_eq!(plain.slow_get_bytes, ahead.slow_get_bytes);
    assert!(plain.slow_round_trips > 40, "{plain:?}");
    assert!(ahead.slow_round_trips < 16, "{ahead:?}");
}

#[test]
fn late_data_of_any_age_reaches_its_partition_and_wins() {
    let mut world = World::new(1, small_options());
    live(&mut world, 10 * HOUR_MS);
    let window = start_of_window(&world);
    for age_ms in [HOUR_MS, 5 * HOUR_MS, 365 * 24 * HOUR_MS] {
        let start = window - age_ms;
        world.flush(&regular(0..7, 1..4, start..start + HOUR_MS, 90_000, 1e6)).unwrap();
        world.check();
    }
    world.flush(&regular(3..4, 0..1, -HOUR_MS..HOUR_MS, 90_000, 1e6)).unwrap();
    let ends = [i64::MIN, i64::MIN + 1, i64::MAX - 1, i64::MAX]
        .map(|ts| ((GroupId(3), Slot(0), ts), f64::NAN.to_bits()));
    world.flush(&Samples::from(ends)).unwrap();
    world.check();
    world.advance(5 * HOUR_MS);
    let kinds = world.settle();
    assert!(kinds.contains(&"upload"), "{kinds:?}");
    world.check();
    let stats = world.tree.stats();
    assert!(stats.levels[2].patch_count > 0, "{stats:?}");
    assert_eq!(stats.levels[0].table_count + stats.levels[1].table_count, 0, "{stats:?}");
    world.reopen();
    world.check();
}

#[test]
fn patches_over_the_threshold_are_merged_with_their_table_only() {
    let mut world = World::new(1, TreeOptions { table_bytes_max: 1_024, ..small_options() });
    let window = start_of_window(&world) - 48 * HOUR_MS;
    world.flush(&regular(0..200, 0..2, window..window + HOUR_MS, 30_000, 0.0)).unwrap();
    world.advance(5 * HOUR_MS);
    world.settle();
    let ids = |world: &World| -> BTreeSet<u64> {
        world.tree.version().tables().map(|record| record.id.0).collect()
    };
    let bases = ids(&world);
    assert!(bases.len() > 3, "{bases:?}");
    for round in 0..4 {
        let late = regular(0..1, 0..2, window + round..window + HOUR_MS, 45_000, 1e3);
        world.flush(&late).unwrap();
        world.advance(5 * HOUR_MS);
        let kinds = world.settle();
        assert_eq!(kinds.contains(&"merge_patches"), round == 3, "{kinds:?}");
        world.check();
    }
    let version = world.tree.version();
    assert!(version.tables().all(|record| !record.patch));
    let untouched = ids(&world).intersection(&bases).count();
    assert_eq!(untouched, bases.len() - 1, "only the first territory was rewritten");
}

#[test]
fn a_quiet_tree_uploads_by_age() {
    let mut world = World::new(1, small_options());
    let start = world.now();
    world.flush(&regular(0..2, 0..1, start - MINUTE_MS..start, 10_000, 0.0)).unwrap();
    assert_eq!(world.settle(), Vec::<&str>::new());
    world.advance(2 * HOUR_MS);
    assert_eq!(world.settle(), ["compact"]);
    world.advance(2 * HOUR_MS);
    assert_eq!(world.settle(), ["upload"]);
    assert_eq!(world.settle(), Vec::<&str>::new());
    world.check();
}

#[test]
fn one_far_future_sample_does_not_age_the_others() {
    let mut world = World::new(1, small_options());
    let start = start_of_window(&world);
    world.flush(&regular(0..2, 0..1, start..start + MINUTE_MS, 10_000, 0.0)).unwrap();
    world.flush(&regular(0..1, 0..1, i64::MAX - 10..i64::MAX - 5, 5, 0.0)).unwrap();
    assert!(world.plan().is_none());
    world.check();
}

#[test]
fn a_slow_tier_that_is_down_costs_nothing_but_the_upload() {
    let mut world = World::new(1, small_options());
    live(&mut world, 3 * HOUR_MS);
    world.sim.bucket.set_down(true);
    let start = world.now();
    for step in 0..16 {
        let ts = start + step * 15 * MINUTE_MS;
        world.flush(&regular(1..3, 0..1, ts..ts + 15 * MINUTE_MS, MINUTE_MS, 0.0)).unwrap();
        world.advance(15 * MINUTE_MS);
        while let Some(job) = world.plan() {
            if let Err(e) = world.run(&job) {
                assert_eq!(job.kind(), JobKind::Upload);
                assert_eq!(*e.kind(), ErrorKind::Unavailable, "{e}");
                assert!(e.to_string().contains("upload of "), "{e}");
                break;
            }
        }
    }
    let fast = TimeRange::new(start, i64::MAX);
    world.check_range(fast);
    world.sim.bucket.set_down(false);
    assert!(world.settle().contains(&"upload"));
    world.check();
    assert_eq!(world.tree.orphans(&world.sim.env()).unwrap(), Vec::<String>::new());
}

#[test]
fn invariant_3_files_live_until_their_last_reader_has_left() {
    let mut world = World::new(1, small_options());
    let start = world.now() - HOUR_MS;
    for round in 0..9 {
        world
            .flush(&regular(0..3, 0..2, start..start + HOUR_MS, 60_000, f64::from(round)))
            .unwrap();
    }
    let held = world.tree.version();
    let (members, want) = (world.members(), world.samples.clone());
    assert_eq!(world.settle(), ["compact", "compact"]);
    assert_eq!(world.collect_garbage().unwrap(), 0);
    assert_same(&read(&held, &members, TimeRange::ALL).unwrap(), &want);
    drop(held);
    assert!(world.collect_garbage().unwrap() >= 18);
    assert_eq!(world.sim.disk.files().len(), world.tree.version().tables().count());
    world.check();
}

#[test]
fn objects_outlive_their_grace_time_even_over_a_restart() {
    let mut world = World::new(1, TreeOptions { patches_max: 1, ..small_options() });
    let start = start_of_window(&world) - 24 * HOUR_MS;
    for round in 0..3 {
        world
            .flush(&regular(0..3, 0..2, start..start + HOUR_MS, 60_000, f64::from(round)))
            .unwrap();
        world.advance(5 * HOUR_MS);
        world.settle();
    }
    world.collect_garbage().unwrap();
    let kept = world.sim.bucket.keys().len();
    assert!(kept > world.tree.version().tables().count());
    world.parts = vec![world.tree.snapshot_part()];
    world.reopen();
    assert_eq!(world.collect_garbage().unwrap(), 0);
    world.advance(HOUR_MS);
    assert!(world.collect_garbage().unwrap() > 0);
    assert_eq!(world.sim.bucket.keys().len(), world.tree.version().tables().count());
    world.check();
}

#[test]
fn retention_drops_whole_partitions_of_every_level() {
    let options = TreeOptions { retention_ms: Some(6 * HOUR_MS), ..small_options() };
    let mut world = World::new(1, options);
    let kinds = live(&mut world, 16 * HOUR_MS);
    assert!(kinds.contains(&"drop"));
    let version = world.tree.version();
    let oldest = version.tables().map(|record| record.time_range.start).min().unwrap();
    let cutoff = world.now() - 6 * HOUR_MS;
    assert!(oldest <= cutoff && oldest > cutoff - 2 * HOUR_MS - 1, "{}", cutoff - oldest);
    world.check_range(TimeRange::new(cutoff, i64::MAX));
    drop(version);
    world.advance(2 * HOUR_MS);
    world.settle();
    world.collect_garbage().unwrap();
    world.advance(2 * HOUR_MS);
    world.collect_garbage().unwrap();
    let named = world.tree.version().tables().count();
    assert_eq!(world.sim.disk.files().len() + world.sim.bucket.keys().len(), named);
}

/// A small database's year is some hundred objects. Each byte is put a second time at most, and
/// full tables never.
#[test]
fn old_partitions_become_one_where_that_makes_fewer_objects() {
    let mut world = World::new(1, TreeOptions::default());
    let kinds = live(&mut world, 50 * HOUR_MS);
    world.check();
    let merges = kinds.iter().filter(|kind| **kind == "merge_partitions").count();
    assert_eq!(merges, 2, "one for each 16 h that are 16 h old: {kinds:?}");
    let version = world.tree.version();
    let old: Vec<_> =
        version.tables().filter(|r| r.partition.len().as_ms() == 16 * HOUR_MS).collect();
    assert_eq!(old.len(), 2, "{old:?}");
    let traffic = world.tree.stats().traffic;
    assert!(traffic.partition_merge_write_bytes < traffic.upload_bytes, "{traffic:?}");
    // Late data of an old partition becomes a patch of it, and wins.
    let start = old[0].partition.range().start;
    drop(version);
    world.flush(&regular(1..3, 0..2, start..start + HOUR_MS, MINUTE_MS, 7.5)).unwrap();
    world.advance(5 * HOUR_MS);
    world.settle();
    world.check();
    let patches = world.tree.version().level_stats(Level::Two).patch_count;
    assert_eq!(patches, 1);

    let full = TreeOptions { table_bytes_max: 8 << 10, ..small_options() };
    let mut world = World::new(1, full);
    let mut start = start_of_window(&world);
    let mut rng = Rng::new(1);
    for _ in 0..10 {
        let mut hours = regular(0..20, 0..3, start..start + 2 * HOUR_MS, 10_000, 0.3);
        hours.values_mut().for_each(|bits| *bits = (rng.below(4_000) as f64).to_bits());
        start += 2 * HOUR_MS;
        world.advance(2 * HOUR_MS);
        world.flush(&hours).unwrap();
        world.settle();
    }
    world.advance(40 * HOUR_MS);
    assert!(!world.settle().contains(&"merge_partitions"), "full tables are put once");
    world.check();
}

/// An hourly series has 16 samples in an old partition. Eight such partitions are merged when they
/// are much older (fewer if the retention is short), and the series then has one chunk of all.
#[test]
fn partitions_of_slow_series_grow_once_more() {
    let longest_of = |step_ms: i64, retention_ms: Option<i64>| {
        let mut world = World::new(1, TreeOptions { retention_ms, ..TreeOptions::default() });
        for _ in 0..25 {
            let start = world.now();
            world.advance(16 * HOUR_MS);
            world.flush(&regular(1..3, 0..1, start..world.now(), step_ms, 0.5)).unwrap();
            world.settle();
        }
        world.check_range(TimeRange::new(
            retention_ms.map_or(i64::MIN, |ms| world.now() - ms),
            i64::MAX,
        ));
        let traffic = world.tree.stats().traffic;
        let again = traffic.partition_merge_write_bytes;
        assert!(again < 2 * traffic.upload_bytes, "put three times at most: {traffic:?}");
        let version = world.tree.version();
        let entries = |record: &TableRecord| record.entry_count / record.chunk_count;
        let tables = version.tables().map(|r| (r.partition.len().as_ms() / HOUR_MS, entries(r)));
        tables.max().unwrap()
    };
    assert_eq!(longest_of(HOUR_MS, None), (128, 128));
    assert_eq!(longest_of(5 * MINUTE_MS, None), (16, 192), "long enough");
    assert_eq!(longest_of(HOUR_MS, Some(300 * HOUR_MS)), (32, 32));
}

/// Series that live for an hour have 40 samples in any partition: merging partitions would gain
/// nothing, so they are not put again, and the tree checks that only once.
#[test]
fn partitions_of_series_that_come_and_go_do_not_grow_once_more() {
    let mut world = World::new(1, TreeOptions::default());
    let mut longer = 0;
    for round in 0..25 {
        let start = world.now();
        world.advance(16 * HOUR_MS);
        let groups = 1 + 10 * round..11 + 10 * round;
        let hour = start..start + HOUR_MS;
        world.flush(&regular(groups, 0..1, hour, 90_000, 0.5)).unwrap();
        longer += world.settle().iter().filter(|kind| **kind == "merge_partitions").count();
    }
    world.check();
    assert!(longer > 0, "some were looked at");
    assert_eq!(world.tree.stats().traffic.partition_merge_write_bytes, 0);
    let version = world.tree.version();
    assert!(version.tables().all(|record| record.partition.len().as_ms() <= 16 * HOUR_MS));
    drop(version);
    assert!(world.settle().is_empty());
}

/// An overwrite that waits on the fast tier in one part of a window is older than a patch in
/// another part.
#[test]
fn invariant_2_an_overwrite_that_waits_is_not_overtaken_by_a_merge_of_partitions() {
    let mut world = World::new(1, TreeOptions { patches_max: 9, ..small_options() });
    let start = world.now().div_euclid(16 * HOUR_MS) * 16 * HOUR_MS;
    let (first, second) = (start..start + HOUR_MS, start + 2 * HOUR_MS..start + 3 * HOUR_MS);
    world.advance(3 * HOUR_MS);
    for part in [&first, &second] {
        world.flush(&regular(1..2, 0..1, part.clone(), MINUTE_MS, 1.0)).unwrap();
    }
    world.advance(5 * HOUR_MS);
    assert!(world.settle().contains(&"upload"));
    world.advance(24 * HOUR_MS - MINUTE_MS);
    world.flush(&regular(1..2, 0..1, first, MINUTE_MS, 2.0)).unwrap();
    world.flush(&regular(1..2, 0..1, second, MINUTE_MS, 3.0)).unwrap();
    let late = world.tree.version().tables().filter(|r| r.level == Level::Zero).count();
    assert_eq!(late, 2, "they wait");
    world.advance(2 * MINUTE_MS);
    assert_eq!(world.settle(), ["merge_partitions"]);
    assert_eq!(world.tree.version().tables().count(), 1, "waiting data was merged too");
    world.check();
}

/// Figure 19: dense samples, sparse ones, dense ones. The fast tier keeps its limit after every
/// flush.
#[test]
fn partition_lengths_follow_the_limit_of_the_fast_tier() {
    let options = TreeOptions {
        fast_bytes_max: Some(16_000),
        upload_age_ms_max: 64 * HOUR_MS,
        block_bytes: 4_096,
        ..TreeOptions::default()
    };
    let mut world = World::new(1, options);
    let mut lengths = Vec::new();
    let mut phase = |world: &mut World, hours: i64, step_ms: i64| {
        for _ in 0..hours * 8 {
            let start = world.now();
            world.advance(450_000);
            let mut samples = regular(1..5, 0..3, start..world.now(), step_ms, 0.5);
            let mut rng = Rng::new(start as u64);
            samples.values_mut().for_each(|bits| *bits = (rng.below(4_000) as f64).to_bits());
            world.flush(&samples).unwrap();
            let (bytes, limit) = world.tree.fast_bytes();
            assert!(bytes <= limit.unwrap(), "{bytes} after a flush");
            world.settle();
            lengths.push(world.tree.stats().lengths.fast.as_ms() / MINUTE_MS);
        }
        (lengths.iter().copied().min().unwrap(), *lengths.last().unwrap())
    };
    let (_, dense) = phase(&mut world, 12, 10_000);
    assert!(dense <= 15, "shorter: {dense}");
    let (_, sparse) = phase(&mut world, 48, 120_000);
    assert!(sparse >= 60, "longer: {sparse}");
    let (_, dense) = phase(&mut world, 16, 10_000);
    assert!(dense <= 15, "shorter again: {dense}");
    let before = world.tree.stats().lengths;
    world.reopen();
    assert_eq!(world.tree.stats().lengths, before, "known again after a restart");
    world.check();
}

/// A limit that even the shortest partitions break: data is uploaded before its partition is
/// complete.
#[test]
fn a_fast_tier_that_is_far_too_small_is_kept_small_by_early_uploads() {
    let mut world = World::new(1, TreeOptions { fast_bytes_max: Some(20_000), ..small_options() });
    for _ in 0..24 {
        let start = world.now();
        world.advance(5 * MINUTE_MS);
        let samples = regular(1..20, 0..6, start..world.now(), 30_000, 0.5);
        world.flush(&samples).unwrap();
        world.settle();
        let (bytes, limit) = world.tree.fast_bytes();
        assert!(bytes <= limit.unwrap(), "{bytes}");
    }
    assert_eq!(world.tree.stats().lengths.slow, crate::partition::PartitionLen::MIN);
    world.check();
}

#[test]
fn retention_by_size_drops_the_oldest_of_the_slow_tier() {
    let mut world = World::new(1, TreeOptions { slow_bytes_max: Some(3_000), ..small_options() });
    let kinds = live(&mut world, 30 * HOUR_MS);
    assert!(kinds.contains(&"drop"));
    let version = world.tree.version();
    let two = version.level_stats(Level::Two);
    assert!(two.bytes <= 3_000 && two.bytes > 1_500, "{two:?}");
    let oldest = version.tables().map(|record| record.time_range.start).min().unwrap();
    world.check_range(TimeRange::new(oldest, i64::MAX));
    assert!(oldest > world.samples.keys().map(|key| key.2).min().unwrap());
}

#[test]
fn one_member_of_a_large_group_is_read_without_the_others() {
    let mut world = World::new(1, TreeOptions::default());
    let start = start_of_window(&world);
    let mut rng = Rng::new(5);
    let mut samples = regular(7..8, 0..600, start..start + 20 * MINUTE_MS, 10_000, 0.0);
    samples.values_mut().for_each(|bits| *bits = (rng.next_u64() as f64).to_bits());
    world.flush(&samples).unwrap();
    world.check();
    let before = world.tree.stats().traffic.fast_read_bytes;
    let version = world.tree.version();
    let asks = [ColumnRequest { group: GroupId(7), slots: &[Slot(300)], before: None }];
    version.scan(&asks, TimeRange::ALL, None, &QueryContext::unbounded()).unwrap();
    let read = world.tree.stats().traffic.fast_read_bytes - before;
    let bytes = version.tables().next().unwrap().bytes;
    assert!(bytes > 500_000 && read < 2 * 16_384 + 8_192, "{read} of {bytes}");
}

#[test]
fn a_scan_is_bounded_by_its_budget_and_stops_when_canceled() {
    let mut world = World::new(1, small_options());
    let start = world.now();
    world.flush(&regular(0..50, 0..4, start..start + HOUR_MS, 30_000, 0.0)).unwrap();
    let version = world.tree.version();
    let asks: Vec<ColumnRequest<'_>> = (0..50)
        .map(|group| ColumnRequest {
            group: GroupId(group),
            slots: &[Slot(0), Slot(3)],
            before: None,
        })
        .collect();
    let mut context = QueryContext::unbounded();
    context.budget = Budget::new(1_000);
    let error = version.scan(&asks, TimeRange::ALL, None, &context).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Busy { .. }), "{error}");
    assert_eq!(context.budget.usage().used_bytes, 0);
    context.cancel.cancel();
    let error = version.scan(&asks, TimeRange::ALL, None, &context).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Canceled);
}

#[test]
fn a_job_is_bounded_by_its_budget_and_stops_when_canceled() {
    let mut world = World::new(1, small_options());
    let start = world.now() - 20 * HOUR_MS;
    world.flush(&regular(0..9, 0..4, start..start + 9 * HOUR_MS, 30_000, 0.0)).unwrap();
    let job = world.plan().unwrap();
    let env = world.sim.env();
    let files = world.sim.disk.files();
    let error = job.run(&env, &Budget::new(1_000), &CancelToken::new()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Busy { .. }), "{error}");
    let cancel = CancelToken::new();
    cancel.cancel();
    let error = job.run(&env, &Budget::unlimited(), &cancel).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Canceled);
    assert_eq!(world.sim.disk.files(), files, "nothing is left behind");
    world.run(&job).unwrap();
    world.check();
}

#[test]
fn an_edit_that_does_not_fit_changes_nothing() {
    let mut world = World::new(1, small_options());
    let start = world.now() - 20 * HOUR_MS;
    world.flush(&regular(0..2, 0..1, start..start + 9 * HOUR_MS, 30_000, 0.0)).unwrap();
    let job = world.plan().unwrap();
    world.run(&job).unwrap();
    let error = world.run(&job).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Conflict, "{error}");
    world.check();
}

#[test]
fn a_flush_out_of_order_is_refused_and_leaves_nothing() {
    let world = World::new(1, small_options());
    let samples = regular(0..2, 0..1, 0..HOUR_MS, 1_000, 0.0);
    let seq = SeqRange::at(CommitSeq(1));
    let chunks = || {
        let groups = [1, 0].into_iter().map(GroupId);
        let chunks = groups.map(|group| Ok((group, columns_of(&samples, group, seq))));
        Box::new(chunks) as FlushChunks<'_>
    };
    let cancel = CancelToken::new();
    let error = world.tree.write_level0(&chunks, CommitSeq(0), &cancel).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Internal, "{error}");
    assert!(world.sim.disk.files().is_empty());
}

/// Before, each 16 hours with a sample were a file to sync: a flush of 28 requests took 90 s.
#[test]
fn a_flush_of_samples_decades_apart_makes_few_tables() {
    let mut world = World::new(1, small_options());
    world.flush_far_apart(0);
    let stats = world.tree.stats();
    let most = 5 * 366 * 24 / 128 + 30;
    assert!(stats.levels[0].table_count < most, "{stats:?}");
    world.check();
    // An overwrite of a part, and late samples beside it.
    let start = world.now() - 2 * 365 * 24 * HOUR_MS;
    world.flush(&regular(1..3, 0..1, start..start + 600 * HOUR_MS, 16 * HOUR_MS, 9.0)).unwrap();
    world.settle();
    world.check();
    world.flush_far_apart(5 * HOUR_MS);
    world.settle();
    // The late samples wait.
    let stats = world.tree.stats();
    assert!(stats.levels.iter().all(|level| level.table_count < most), "{stats:?}");
    world.check();
}

/// An import of two months at a time is cut as before.
#[test]
fn a_flush_of_few_old_partitions_keeps_their_length() {
    let mut world = World::new(1, TreeOptions::default());
    let start = world.now() - 1_000 * 24 * HOUR_MS;
    world.flush(&regular(1..3, 0..1, start..start + 960 * HOUR_MS, HOUR_MS, 0.5)).unwrap();
    let version = world.tree.version();
    assert!(version.tables().all(|record| record.partition.len().as_ms() == 16 * HOUR_MS));
    assert!((60..=61).contains(&version.tables().count()));
}

#[test]
fn partitions_of_other_lengths_are_aligned_when_options_change() {
    let mut world = World::new(1, small_options());
    let lengths = [(450_000, 900_000), (1_800_000, 7_200_000), (3_600_000, 3_600_000)];
    for round in 0..12 {
        let (fast, slow) = lengths[round % 3];
        world.options.fast_partition_ms = fast;
        world.options.slow_partition_ms = slow;
        world.reopen();
        live(&mut world, 2 * HOUR_MS);
        let start = world.now() - 7 * HOUR_MS;
        world
            .flush(&regular(2..4, 0..2, start..start + 5 * HOUR_MS, 77_000, round as f64))
            .unwrap();
        world.settle();
        world.check();
    }
    world.advance(10 * HOUR_MS);
    world.settle();
    world.check();
    assert_eq!(world.tree.version().level_stats(Level::One).table_count, 0);
}

/// Power is lost, or one operation fails, at each operation of each kind of job in turn. The disk
/// then has all synced bytes and some others. Afterwards all samples must be readable, no orphan
/// may remain, and the same job must be planned again and succeed.
#[test]
fn jobs_that_are_killed_anywhere_lose_nothing_and_are_done_again() {
    for kind in [JobKind::Compact, JobKind::Upload, JobKind::MergePatches, JobKind::MergePartitions]
    {
        for power_cut in [true, false] {
            // Full tables are not merged with age.
            let is_by_age = kind == JobKind::MergePartitions;
            let table_bytes_max = if is_by_age { 16_384 } else { 1_024 };
            let options = TreeOptions { patches_max: 1, table_bytes_max, ..small_options() };
            let mut world = World::new(7, options);
            let mut window = start_of_window(&world) - 48 * HOUR_MS;
            let mut operations = 0;
            let mut done = false;
            for round in 0..6 {
                if is_by_age {
                    // Young enough to be uploaded in short partitions, which the advance below
                    // makes old.
                    window = start_of_window(&world);
                    let next = window + 2 * HOUR_MS..window + 2 * HOUR_MS + 1_000;
                    world.flush(&regular(0..24, 0..2, next, 97_000, 0.5)).unwrap();
                }
                let late = regular(0..24, 0..2, window..window + HOUR_MS, 97_000, f64::from(round));
                world.flush(&late).unwrap();
                world.advance(5 * HOUR_MS);
                if is_by_age {
                    world.settle();
                    world.advance(40 * HOUR_MS);
                }
                while let Some(job) = world.plan() {
                    if job.kind() != kind {
                        world.run(&job).unwrap();
                        continue;
                    }
                    let next = world.sim.faults.change_count() + operations;
                    match power_cut {
                        true => world.sim.faults.crash_at(next),
                        false => world.sim.faults.fail_at(next),
                    }
                    let outcome = world.run(&job);
                    done = outcome.is_ok();
                    if done {
                        break;
                    }
                    operations += 1;
                    if power_cut {
                        world.sim.restart();
                        world.reopen();
                    }
                    world.sim.faults.clear();
                    world.check();
                    let named =
                        world.tree.version().tables().filter(|r| !r.level.is_slow()).count();
                    world.collect_garbage().unwrap();
                    assert_eq!(world.sim.disk.files().len(), named);
                }
                world.sim.faults.clear();
                if done {
                    break;
                }
            }
            assert!(done && operations > 0, "{kind:?}: {operations} operations");
            world.settle();
            world.check();
        }
    }
}

/// An upload makes one chunk of a group's samples of a whole window, with one range of commits. A
/// late overwrite that waited in level 0 meanwhile would look older than that chunk, though it is
/// newer than the samples it overwrites: so it must be merged too.
#[test]
fn invariant_2_an_overwrite_that_waits_in_level_0_is_not_overtaken_by_an_upload() {
    let options = TreeOptions {
        level0_partitions_max: 1,
        level0_tables_max: 1,
        upload_age_ms_max: HOUR_MS,
        ..small_options()
    };
    let mut world = World::new(1, options);
    let window = start_of_window(&world);
    let second = window + 30 * MINUTE_MS..window + HOUR_MS;
    world.flush(&regular(1..2, 0..1, second.clone(), MINUTE_MS, 1.0)).unwrap();
    world.flush(&regular(1..2, 0..1, second.clone(), MINUTE_MS, 2.0)).unwrap();
    assert_eq!(world.settle(), ["compact"]);
    world.advance(55 * MINUTE_MS);
    let few = second.start..second.start + 3 * MINUTE_MS;
    world.flush(&regular(1..2, 0..1, few, MINUTE_MS, 3.0)).unwrap();
    for value in [4.0, 5.0] {
        let first = window..window + 30 * MINUTE_MS;
        world.flush(&regular(1..2, 0..1, first, MINUTE_MS, value)).unwrap();
    }
    assert_eq!(world.settle(), ["compact"], "of the first half hour; the few wait");
    assert_eq!(world.tree.version().level_stats(Level::Zero).table_count, 1);
    world.advance(10 * MINUTE_MS);
    assert_eq!(world.settle(), ["upload"]);
    world.check();
    assert_eq!(world.tree.version().level_stats(Level::Zero).table_count, 0);
}

#[test]
fn an_object_that_another_put_there_is_never_overwritten() {
    let mut world = World::new(1, small_options());
    let start = world.now() - 12 * HOUR_MS;
    let env = world.sim.env();
    for id in [3, 4, 6] {
        let bytes: Arc<[u8]> = Arc::from(&b"another's"[..]);
        env.bucket.put(&format!("tables/{id}.fst"), bytes, firn_env::PutMode::Create).unwrap();
    }
    world.flush(&regular(0..2, 0..1, start..start + HOUR_MS, MINUTE_MS, 0.0)).unwrap();
    world.advance(5 * HOUR_MS);
    assert!(world.settle().contains(&"upload"));
    world.check();
    for id in [3, 4, 6] {
        let bytes = world.sim.bucket.bytes(&format!("tables/{id}.fst")).unwrap();
        assert_eq!(*bytes, *b"another's");
    }
    let orphans = world.tree.orphans(&env).unwrap();
    assert_eq!(orphans, ["tables/3.fst", "tables/4.fst", "tables/6.fst"]);
}

#[test]
fn garbage_that_could_not_be_removed_is_tried_again() {
    let mut world = World::new(1, TreeOptions { bucket_grace_ms: 0, ..small_options() });
    live(&mut world, 5 * HOUR_MS);
    let env = world.sim.env();
    world.sim.faults.set_rate(Operation::Remove, 1.0);
    assert_eq!(*world.collect_garbage().unwrap_err().kind(), ErrorKind::Unavailable);
    world.sim.faults.clear();
    assert!(world.collect_garbage().unwrap() > 0);
    assert_eq!(world.tree.orphans(&env).unwrap(), Vec::<String>::new());
    assert_eq!(world.tree.stats().garbage_count, 0);
}
