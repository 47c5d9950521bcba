//! Damaged bytes are reported with file and offset, never returned, and only they are lost.

use super::*;
use crate::TableRecord;

/// A world with one table on the given tier, of several blocks.
fn world_with_table(slow: bool) -> (World, TableRecord) {
    let options = TreeOptions { block_bytes: 512, ..TreeOptions::default() };
    let mut world = World::new(1, options);
    let start = world.now().div_euclid(2 * HOUR_MS) * 2 * HOUR_MS - 24 * HOUR_MS;
    let mut rng = Rng::new(3);
    let mut samples = regular(0..40, 0..2, start..start + HOUR_MS / 2, 60_000, 0.0);
    samples.values_mut().for_each(|bits| *bits = rng.next_u64() >> 12);
    world.flush(&samples).unwrap();
    if slow {
        world.advance(5 * HOUR_MS);
        world.settle();
    }
    let records: Vec<TableRecord> = world.tree.version().tables().cloned().collect();
    assert_eq!(records.len(), 1, "{records:?}");
    assert!(records[0].block_count > 8, "{records:?}");
    (world, records[0].clone())
}

fn change(world: &World, record: &TableRecord, change: impl FnOnce(&mut Vec<u8>)) {
    match record.level.is_slow() {
        true => world.sim.bucket.damage(&record.path(), change).unwrap(),
        false => world.sim.disk.damage(&record.path(), change).unwrap(),
    }
}

/// Each member either reads right or is `Corrupt`; returns how many groups are lost. Samples that
/// are merely missing would be served silently wrong.
fn lost_groups(world: &World, record: &TableRecord) -> usize {
    let members = world.members();
    let groups: BTreeSet<GroupId> = members.iter().map(|member| member.0).collect();
    let version = world.tree.version();
    let mut lost = 0;
    for group in groups {
        let members = members.iter().filter(|member| member.0 == group).copied().collect();
        match read(&version, &members, TimeRange::ALL) {
            Ok(got) => {
                let want = world.samples.iter().filter(|(key, _)| key.0 == group);
                assert_same(&got, &want.map(|(key, bits)| (*key, *bits)).collect());
            }
            Err(e) => {
                assert!(is_corrupt(e.kind()), "{e}");
                assert!(e.to_string().starts_with(&record.path()), "{e}");
                lost += 1;
            }
        }
    }
    lost
}

#[test]
fn invariant_5_a_flipped_bit_anywhere_costs_its_block_at_most() {
    for slow in [false, true] {
        let (mut world, record) = world_with_table(slow);
        let mut rng = Rng::new(11);
        let groups_per_block = 40usize.div_ceil(record.block_count as usize) + 2;
        for round in 0..300 {
            // Every region: header, first block, suffix, then anywhere.
            let at = match round % 4 {
                0 => rng.below(24),
                1 => 24 + rng.below(64),
                2 => record.bytes - 1 - rng.below(record.suffix_bytes.into()),
                _ => rng.below(record.bytes),
            } as usize;
            let bit = 1 << rng.below(8);
            change(&world, &record, |bytes| bytes[at] ^= bit);
            world.reopen();
            let lost = lost_groups(&world, &record);
            assert!(lost <= groups_per_block, "byte {at} of {record:?} costs {lost} groups");
            let in_blocks =
                (24..record.bytes - u64::from(record.suffix_bytes)).contains(&(at as u64));
            assert_eq!(lost > 0, in_blocks, "byte {at} of {record:?}");
            let errors = world.damage();
            assert_eq!(errors.len(), 1, "byte {at}: {errors:?}");
            change(&world, &record, |bytes| bytes[at] ^= bit);
        }
        world.reopen();
        assert_eq!(lost_groups(&world, &record), 0);
    }
}

#[test]
fn invariant_5_zeroed_cut_and_swapped_stretches_are_never_served() {
    for slow in [false, true] {
        let (mut world, record) = world_with_table(slow);
        let original = match slow {
            true => world.sim.bucket.bytes(&record.path()).unwrap().to_vec(),
            false => world.sim.disk.bytes(&record.path()).unwrap(),
        };
        let mut rng = Rng::new(12);
        for round in 0..200 {
            change(&world, &record, |bytes| {
                let start = rng.below(bytes.len() as u64) as usize;
                let len = 1 + rng.below(600) as usize;
                let end = (start + len).min(bytes.len());
                match round % 4 {
                    0 => bytes[start..end].fill(0),
                    1 => bytes.truncate(start),
                    2 => {
                        let to = rng.below((bytes.len() - (end - start)) as u64 + 1) as usize;
                        bytes.copy_within(start..end, to);
                    }
                    _ => drop(bytes.drain(start..end)),
                }
            });
            world.reopen();
            lost_groups(&world, &record);
            change(&world, &record, |bytes| bytes.clone_from(&original));
        }
    }
}

/// After a repair, readable samples are right, all bytes pass the check, and no samples are lost
/// but those the check named.
#[test]
fn invariant_5_repair_loses_only_damaged_blocks() {
    for slow in [false, true] {
        let mut rng = Rng::new(13);
        for round in 0..60 {
            let (mut world, record) = world_with_table(slow);
            change(&world, &record, |bytes| {
                let start = rng.below(bytes.len() as u64) as usize;
                let end = (start + 1 + rng.below(300) as usize).min(bytes.len());
                match round % 6 {
                    0 => bytes[start] ^= 1 << rng.below(8),
                    1 => bytes[start..end].fill(0),
                    2 => bytes.truncate(start),
                    3 => {
                        let to = rng.below((bytes.len() - (end - start)) as u64 + 1) as usize;
                        bytes.copy_within(start..end, to);
                    }
                    // The directory and a block's length.
                    4 => {
                        *bytes.last_mut().unwrap() ^= 1;
                        bytes[24 + 1] ^= 1;
                    }
                    _ => bytes.clear(),
                }
            });
            world.reopen();
            let before = lost_groups(&world, &record);
            let damage = world.damage();
            let job = world.tree.plan_repair(&world.tree.version(), record.id);
            if damage.is_empty() {
                continue;
            }
            world.run(&job.unwrap()).unwrap();
            assert!(world.damage().is_empty());
            let is_named = |key: &(GroupId, Slot, Timestamp)| {
                damage.iter().filter_map(|damage| damage.lost).any(|lost| {
                    (lost.group_min..=lost.group_max).contains(&key.0) && lost.range.contains(key.2)
                })
            };
            let members = world.members();
            let all = std::mem::take(&mut world.samples);
            world.samples = read(&world.tree.version(), &members, TimeRange::ALL).unwrap();
            let lost: Vec<_> =
                all.iter().filter(|(key, _)| !world.samples.contains_key(key)).collect();
            assert!(lost.iter().all(|(key, _)| is_named(key)), "{damage:?}");
            assert!(world.samples.iter().all(|(key, bits)| all.get(key) == Some(bits)));
            let lost_groups: BTreeSet<GroupId> = lost.iter().map(|(key, _)| key.0).collect();
            assert!(lost_groups.len() <= before, "{} groups of {before}", lost_groups.len());
            if round % 6 == 4 {
                assert!(!lost.is_empty() && lost_groups.len() < 12, "{} groups", lost_groups.len());
            }
            assert_eq!(lost.len() == all.len(), round % 6 == 5 || world.samples.is_empty());
        }
    }
}

/// Before, a check did not see them.
#[test]
fn bytes_behind_the_end_of_a_table_are_damage_without_a_loss() {
    for slow in [false, true] {
        let (mut world, record) = world_with_table(slow);
        change(&world, &record, |bytes| bytes.push(0));
        world.reopen();
        assert_eq!(lost_groups(&world, &record), 0);
        let damage = world.damage();
        assert_eq!(damage.len(), 1, "{damage:?}");
        assert_eq!(damage[0].lost, None);
        let text = damage[0].error.to_string();
        let bytes = record.bytes;
        let words = format!("has {} bytes, the manifest expects {bytes}", bytes + 1);
        assert!(text.contains(&words), "{text}");
        let job = world.tree.plan_repair(&world.tree.version(), record.id).unwrap();
        world.run(&job).unwrap();
        assert!(world.damage().is_empty());
        world.check();
    }
}

#[test]
fn a_directory_that_is_made_anew_from_the_blocks_is_the_same() {
    for slow in [false, true] {
        let (mut world, _) = world_with_table(slow);
        // Members that start, end and miss rows, in large groups and alone.
        let start = world.now().div_euclid(2 * HOUR_MS) * 2 * HOUR_MS - 48 * HOUR_MS;
        let mut samples = regular(0..9, 0..200, start..start + HOUR_MS / 4, 15_000, 0.0);
        samples.extend(regular(9..300, 0..1, start..start + HOUR_MS / 4, 60_000, 0.0));
        let mut rng = Rng::new(4);
        samples.retain(|(group, slot, ts), _| {
            let is_late = slot.0 % 7 == 1 && *ts < start + i64::from(slot.0) * 5_000;
            let has_ended = group.0 % 5 == 3 && *ts > start + 100_000;
            !is_late && !has_ended && !rng.chance(0.1)
        });
        world.flush(&samples).unwrap();
        if slow {
            world.advance(5 * HOUR_MS);
            world.settle();
        }
        let records: Vec<TableRecord> = world.tree.version().tables().cloned().collect();
        assert!(records.len() > 1);
        for record in records {
            let suffix = |world: &World| {
                let version = world.tree.version();
                version.store().suffix(version.get(record.id).unwrap()).unwrap()
            };
            world.reopen();
            let whole = suffix(&world);
            change(&world, &record, |bytes| *bytes.last_mut().unwrap() ^= 1);
            world.reopen();
            assert_eq!(suffix(&world), whole);
            change(&world, &record, |bytes| *bytes.last_mut().unwrap() ^= 1);
        }
        world.reopen();
        world.check();
    }
}

#[test]
fn a_missing_table_is_named_and_opening_continues() {
    let (mut world, record) = world_with_table(false);
    let env = world.sim.env();
    env.disk.remove(&record.path()).unwrap();
    world.reopen();
    assert_eq!(lost_groups(&world, &record), 40);
    let members = world.members();
    let error = read(&world.tree.version(), &members, TimeRange::ALL).unwrap_err();
    assert!(error.to_string().contains("is missing although the manifest names it"), "{error}");
}

#[test]
fn a_damaged_table_is_excluded_from_merges_and_others_continue() {
    let (mut world, record) = world_with_table(false);
    change(&world, &record, |bytes| bytes[100] ^= 1);
    assert_eq!(world.tree.stats().waiting_since_ms, Some(record.written_ms));
    world.advance(5 * HOUR_MS);
    world.reopen();
    let job = world.plan().unwrap();
    let error = world.run(&job).unwrap_err();
    assert!(is_corrupt(error.kind()), "{error}");
    assert!(world.plan().is_none(), "the same merge is not tried for ever");
    let start = world.now();
    world.flush(&regular(0..2, 0..1, start..start + HOUR_MS, 60_000, 0.0)).unwrap();
    world.advance(5 * HOUR_MS);
    assert_eq!(world.settle(), ["compact", "compact", "upload"]);
    assert!(lost_groups(&world, &record) > 0);
    assert_eq!(world.tree.stats().waiting_since_ms, Some(record.written_ms), "it is told");
    assert_eq!(world.tree.stats().levels[0].damaged_count, 1);
}
