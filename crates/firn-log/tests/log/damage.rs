//! Damage to stored bytes: reported or harmless, never a wrong entry.
//!
//! - Before: every entry is committed and the process has ended.
//! - Damage: flipped bits, garbage, zeros; truncated, exchanged or missing files and folders.
//! - Afterwards: each replayed entry is one that was appended, in order. Every missing entry is
//!   reported, and the entry behind each gap has `after_hole` set. The log continues.
//!
//! Two kinds of damage are excluded, because they look like a write that never happened: zeros up
//! to the end of the last segment, and its absence. Both are included if a file was made ahead of
//! it: that records the segment, and once entries were durable, a position among them.

use firn_env::Disk;
use firn_log::{LogSetup, SyncPolicy};
use firn_model::ErrorKind;

use crate::world::{Fate, StreamReplay, World, seeds, setup};

#[test]
fn invariant_5_damage_is_reported_or_harmless() {
    let mut reported = 0;
    let mut harmless = 0;
    for seed in seeds(0, 1500) {
        let mut world = World::new(seed);
        let segment_bytes = *world.rng.pick(&[4 << 10, 8 << 10, 64 << 10]);
        let unit_bytes = *world.rng.pick(&[8, 8, 512]);
        let setup = LogSetup { unit_bytes, ..setup(segment_bytes, SyncPolicy::Always) };
        for _ in 0..1 + world.rng.below(3) {
            let steps = 1 + world.rng.below(60);
            work(&mut world, &setup, steps);
        }
        for _ in 0..1 + world.rng.below(3) {
            damage(&mut world);
        }
        let log = match world.open(setup.clone()) {
            Ok(log) => log,
            Err(error) => {
                assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
                reported += 1;
                continue;
            }
        };
        let replayed = world.replay(&log).unwrap();
        let is_reported = check(&world, &replayed);
        reported += u32::from(is_reported);
        harmless += u32::from(!is_reported);
        log.start().unwrap();
        world.settle(&replayed);
        drop(log);
        // The remaining entries and new ones survive a crash.
        work(&mut world, &setup, 10);
        world.sim.restart();
        let log = world.open(setup).unwrap();
        let replayed = world.replay(&log).unwrap();
        world.check(&replayed);
    }
    assert!(reported > 500 && harmless > 100, "{reported} reported, {harmless} harmless");
}

/// Opens, appends and commits some entries, and closes.
fn work(world: &mut World, setup: &LogSetup, steps: u64) {
    let log = world.open(setup.clone()).unwrap();
    let replayed = world.replay(&log).unwrap();
    world.check(&replayed);
    log.start().unwrap();
    world.is_started = true;
    for _ in 0..steps {
        if world.rng.chance(0.1) {
            log.prepare().unwrap();
        }
        let position = world.append(&log, setup.options.segment_bytes / 8).unwrap();
        world.commit(&log, &[position]).unwrap();
        if world.rng.chance(0.03) {
            world.purge(&log).unwrap();
        }
    }
}

/// Whether any damage is reported. Fails if an entry is missing without a report.
fn check(world: &World, replayed: &[StreamReplay]) -> bool {
    let mut is_reported = false;
    for (stream, (model, replayed)) in world.streams.iter().zip(replayed).enumerate() {
        let report = &replayed.report;
        is_reported |= report.damage_count > 0 || report.torn_tail.is_some();
        let is_needed = |idx: usize| {
            let record = &model.records[idx];
            record.fate == Fate::Safe && record.position > model.floor
        };
        let mut next = 0;
        for (at, &idx) in replayed.found.iter().enumerate() {
            if (next..idx).any(is_needed) {
                assert!(report.damage_count > 0, "stream {stream}: a gap before {idx}");
                assert!(replayed.after_holes.contains(&at), "stream {stream}: gap before {idx}");
            }
            next = idx + 1;
        }
        if (next..model.records.len()).any(is_needed) {
            let is_listed = report.damage_count > 0 || report.torn_tail.is_some();
            assert!(
                is_listed,
                "stream {stream}: entries from {next} on are missing without a report"
            );
        }
    }
    is_reported
}

fn damage(world: &mut World) {
    let disk = world.sim.disk.clone();
    let rng = &mut world.rng;
    let stream = rng.below(crate::world::STREAM_COUNT as u64);
    let mut numbers: Vec<u64> = disk
        .files()
        .iter()
        .filter_map(|path| path.strip_prefix(&format!("log/{stream}/"))?.strip_suffix(".log"))
        .map(|number| number.parse().unwrap())
        .filter(|number| {
            // Unused files contain no entries.
            let bytes = disk.bytes(&format!("log/{stream}/{number}.log")).unwrap();
            !bytes.starts_with(b"FIRNBLNK") && bytes.iter().any(|&byte| byte != 0)
        })
        .collect();
    numbers.sort_unstable();
    let Some(&last) = numbers.last() else { return };
    let number = *rng.pick(&numbers);
    let path = format!("log/{stream}/{number}.log");
    let is_last = number == last;
    let bytes = disk.bytes(&path).unwrap();
    let used = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    let at = rng.below(used as u64) as usize;
    let len = (1 + rng.below(2_000) as usize).min(bytes.len() - at);
    // The durable position of the last segment that a file made ahead of it records.
    let durable_of_last = |path: &String| {
        let bytes = disk.bytes(path).unwrap();
        let is_ahead = path.starts_with(&format!("log/{stream}/"))
            && bytes.starts_with(b"FIRNBLNK")
            && bytes.get(8..16) == Some(&last.to_le_bytes()[..]);
        is_ahead.then(|| u64::from_le_bytes(*bytes[16..].first_chunk().unwrap()))
    };
    let durable = disk.files().iter().find_map(durable_of_last);
    let is_proven = is_last && durable.is_some_and(|durable| durable > 0);
    match rng.below(15) {
        0..4 => disk.damage(&path, |bytes| bytes[at] ^= 1 << (at % 8)).unwrap(),
        4 => {
            let bits = rng.next_u64();
            disk.damage(&path, |bytes| bytes[at / 8 * 8] ^= (bits as u8).max(1)).unwrap();
        }
        5 | 6 => {
            let garbage: Vec<u8> = (0..len).map(|_| (rng.next_u64() as u8).max(1)).collect();
            disk.damage(&path, |bytes| bytes[at..at + len].copy_from_slice(&garbage)).unwrap();
        }
        7 if !is_last => {
            disk.damage(&path, |bytes| bytes[at..at + len].fill(0)).unwrap();
        }
        8 => {
            let len = if is_last { at.max(1024) } else { at };
            disk.damage(&path, |bytes| bytes.truncate(len)).unwrap();
        }
        9 if !is_last && rng.chance(0.5) => disk.remove(&path).unwrap(),
        9 if !is_last => {
            let other = disk.bytes(&format!("log/{stream}/{last}.log")).unwrap();
            disk.damage(&path, |bytes| *bytes = other).unwrap();
        }
        9 if durable.is_some() => disk.remove(&path).unwrap(),
        10 if rng.chance(0.3) => {
            let files = disk.files();
            let of_stream = files.iter().filter(|f| f.starts_with(&format!("log/{stream}/")));
            of_stream.for_each(|path| disk.remove(path).unwrap());
        }
        // The header of any segment.
        11 => disk.damage(&path, |bytes| bytes[..1_024].fill(0)).unwrap(),
        12 if is_proven => disk.damage(&path, |bytes| bytes.fill(0)).unwrap(),
        13 if is_proven => disk.damage(&path, Vec::clear).unwrap(),
        14 if is_proven => disk.damage(&path, |bytes| bytes[1_024..].fill(0)).unwrap(),
        _ => {}
    }
}
