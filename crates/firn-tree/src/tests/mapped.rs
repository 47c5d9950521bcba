//! Verified blocks are read from the mapped file: once transferred, never unverified, and not after
//! another program has changed the file.

use firn_sim::Operation;

use super::*;
use crate::{Level, Prefetch, ReadAhead, TableRecord, UpcomingScan};

/// A world with one local table of several blocks; a group of three members in each.
fn world_with_table() -> (World, TableRecord) {
    let mut world = World::new(1, TreeOptions { block_bytes: 512, ..TreeOptions::default() });
    let start = world.now().div_euclid(2 * HOUR_MS) * 2 * HOUR_MS;
    let mut rng = Rng::new(3);
    let mut samples = regular(0..20, 0..3, start..start + HOUR_MS / 2, MINUTE_MS, 0.0);
    samples.values_mut().for_each(|bits| *bits = rng.next_u64() >> 12);
    world.flush(&samples).unwrap();
    let record = world.tree.version().tables().next().unwrap().clone();
    assert!(record.block_count > 8, "{record:?}");
    (world, record)
}

fn read_group(world: &World, group: u64) -> Result<()> {
    let members = world.members().into_iter().filter(|member| member.0 == GroupId(group));
    let got = read(&world.tree.version(), &members.collect(), TimeRange::ALL)?;
    let want = world.samples.iter().filter(|(key, _)| key.0 == GroupId(group));
    assert_same(&got, &want.map(|(key, bits)| (*key, *bits)).collect());
    Ok(())
}

/// The offset of the last byte of the group's first block: a byte of its last chunk.
fn byte_of_group(world: &World, record: &TableRecord, group: u64) -> usize {
    let version = world.tree.version();
    let suffix = version.store().suffix(version.get(record.id).unwrap()).unwrap();
    let block = &suffix.blocks[suffix.blocks_of(GroupId(group)).start];
    (block.offset + u64::from(block.bytes)) as usize - 1
}

/// Flips a bit without a change of the file's stamp.
fn rot(world: &World, record: &TableRecord, at: usize) {
    world.sim.disk.rot(&record.path(), |bytes| bytes[at] ^= 1).unwrap();
}

#[test]
fn a_block_is_transferred_once() {
    let (world, record) = world_with_table();
    let traffic = || world.tree.stats().traffic;
    world.check();
    let cold = traffic();
    assert!(cold.fast_query_bytes >= record.bytes - u64::from(record.suffix_bytes) - 24);
    world.check();
    let warm = traffic();
    assert_eq!((warm.fast_reads, warm.fast_read_bytes), (cold.fast_reads, cold.fast_read_bytes));
    // Only the chunks are read, of one member only its columns.
    let all = warm.fast_query_bytes - cold.fast_query_bytes;
    assert!(all > 0 && all < cold.fast_query_bytes, "{all} of {cold:?}");
    let asks = [ColumnRequest { group: GroupId(7), slots: &[Slot(1)], before: None }];
    let (version, context) = (world.tree.version(), QueryContext::unbounded());
    version.scan(&asks, TimeRange::ALL, None, &context).unwrap();
    let one = traffic().fast_query_bytes - warm.fast_query_bytes;
    assert!(one > 0 && one < all / 40, "{one} of {all}");
    assert_eq!(context.stats.fast_bytes.get(), one);
}

#[test]
fn an_unverified_block_of_a_mapped_table_is_verified() {
    let (mut world, record) = world_with_table();
    read_group(&world, 0).unwrap();
    let at = byte_of_group(&world, &record, 15);
    rot(&world, &record, at);
    for _ in 0..3 {
        read_group(&world, 0).unwrap();
        let error = read_group(&world, 15).unwrap_err();
        assert!(is_corrupt(error.kind()), "{error}");
    }
    rot(&world, &record, at);
    world.reopen();
    read_group(&world, 15).unwrap();
}

/// A block may become unreadable after a query has verified it. Checks and merges never use the
/// map, and once damage is known, queries do not either.
#[test]
fn damage_of_a_verified_block_is_found_by_checks_and_merges() {
    let (mut world, record) = world_with_table();
    world.check();
    let at = byte_of_group(&world, &record, 15);
    rot(&world, &record, at);
    read_group(&world, 15).unwrap();
    assert_eq!(world.damage().len(), 1);
    for _ in 0..2 {
        assert!(is_corrupt(read_group(&world, 15).unwrap_err().kind()));
        read_group(&world, 0).unwrap();
    }
    world.advance(5 * HOUR_MS);
    world.reopen();
    assert!(is_corrupt(read_group(&world, 15).unwrap_err().kind()));
    rot(&world, &record, at);
    world.reopen();
    world.check();
    rot(&world, &record, at);
    let job = world.plan().unwrap();
    let error = world.run(&job).unwrap_err();
    assert!(is_corrupt(error.kind()), "{error}");
}

/// A change of one byte keeps the length. The pages beyond the end of a file that was cut cannot be
/// read (SIGBUS).
#[test]
fn a_mapped_table_that_another_program_changed_is_read_and_verified() {
    let changes: [fn(&mut Vec<u8>, usize); 4] = [
        |bytes, at| bytes[at] ^= 1,
        |bytes, at| bytes.truncate(at),
        |bytes, at| {
            bytes[at] ^= 1;
            bytes.push(0);
        },
        |bytes, _| bytes.fill(0),
    ];
    for (change, others_are_good) in changes.into_iter().zip([true, true, true, false]) {
        let (mut world, record) = world_with_table();
        let at = byte_of_group(&world, &record, 15);
        world.check();
        let mut whole = Vec::new();
        let alter = |change: &mut dyn FnMut(&mut Vec<u8>)| {
            world.sim.disk.damage(&record.path(), |bytes| change(bytes)).unwrap();
        };
        alter(&mut |bytes| {
            whole = bytes.clone();
            change(bytes, at);
        });
        for _ in 0..2 {
            let error = read_group(&world, 15).unwrap_err();
            assert!(is_corrupt(error.kind()), "{error}");
            assert!(error.to_string().contains(&record.path()), "{error}");
            assert_eq!(read_group(&world, 0).is_ok(), others_are_good);
        }
        alter(&mut |bytes| bytes.clone_from(&whole));
        world.reopen();
        world.check();
    }
}

/// Verified bits belong to one stamp: after a change every block is verified again, also if its
/// bytes are the same.
#[test]
fn a_table_that_was_written_again_is_verified_again_and_then_mapped() {
    let (world, record) = world_with_table();
    let read_bytes = || world.tree.stats().traffic.fast_read_bytes;
    let cold = read_bytes();
    world.check();
    let all = read_bytes() - cold;
    world.sim.disk.damage(&record.path(), |_| ()).unwrap();
    let before = read_bytes();
    world.check();
    assert_eq!(read_bytes() - before, all - suffix_bytes(&record, all));
    let before = read_bytes();
    world.check();
    assert_eq!(read_bytes(), before, "it is not mapped again");
}

/// The directory was read with the first check only.
fn suffix_bytes(record: &TableRecord, all: u64) -> u64 {
    let suffix = u64::from(record.suffix_bytes);
    if all >= record.bytes - 24 { suffix } else { 0 }
}

/// The read-ahead of the slow tier runs between the look at the maps and the reads from them.
#[test]
fn a_change_during_a_scan_is_found() {
    let mut world = World::new(1, TreeOptions { block_bytes: 512, ..TreeOptions::default() });
    let hour = |world: &World| {
        let start = world.now().div_euclid(2 * HOUR_MS) * 2 * HOUR_MS;
        regular(0..20, 0..3, start..start + HOUR_MS, MINUTE_MS, 0.0)
    };
    world.flush(&hour(&world)).unwrap();
    world.advance(20 * HOUR_MS);
    world.settle();
    let start = world.now() - 2 * HOUR_MS;
    world.flush(&hour(&world)).unwrap();
    world.reopen();
    let version = world.tree.version();
    let records: Vec<TableRecord> = version.tables().cloned().collect();
    let local = records.iter().find(|record| !record.level.is_slow()).unwrap();
    assert!(records.iter().any(|record| record.level == Level::Two), "{records:?}");
    world.check_range(TimeRange::new(start, i64::MAX));
    let at = byte_of_group(&world, local, 15);
    let asks = [ColumnRequest { group: GroupId(15), slots: &[Slot(1)], before: None }];
    let mut changes = 0;
    let mut next = |_: usize| {
        changes += 1;
        world.sim.disk.damage(&local.path(), |bytes| bytes[at] ^= 1).unwrap();
        UpcomingScan { range: TimeRange::ALL, groups: Vec::new() }
    };
    let read_ahead = ReadAhead::default();
    let ahead = Some(Prefetch { read_ahead: &read_ahead, next: &mut next });
    let error = version.scan(&asks, TimeRange::ALL, ahead, &QueryContext::unbounded()).unwrap_err();
    assert!(is_corrupt(error.kind()) && error.to_string().contains(&local.path()), "{error}");
    assert_eq!(changes, 1);
}

/// The system may refuse to map a file: then each read is a transfer, and it is tried again.
#[test]
fn a_table_that_cannot_be_mapped_is_read() {
    let reads = |world: &World| world.tree.stats().traffic.fast_reads;
    let (mut world, record) = world_with_table();
    world.reopen();
    // So that the next read of the disk reads the bytes to map.
    world.tree.version().store().suffix(world.tree.version().get(record.id).unwrap()).unwrap();
    world.sim.faults.fail_nth(Operation::Read, 1);
    read_group(&world, 3).unwrap();
    let cold = reads(&world);
    read_group(&world, 3).unwrap();
    assert!(reads(&world) > cold, "it was not mapped");
    let cold = reads(&world);
    read_group(&world, 3).unwrap();
    assert_eq!(reads(&world), cold, "mapping is tried again");
    world.reopen();
    world.check();
}
