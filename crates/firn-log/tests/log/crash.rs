//! Power loss at any operation, with and without failing operations before it.
//!
//! - Crashed: the machine, at an operation drawn from the seed, or at each operation in turn.
//! - On the disk: everything synced, and any subset of the other sectors.
//! - Afterwards: every committed entry is replayed in order, once, bit for bit. Every append is
//!   replayed whole or not at all. An entry that was missing after one start stays missing. No
//!   damage is reported, because there was none.

use firn_log::{LogSetup, SyncPolicy};
use firn_model::{Error, ErrorKind, LogPosition, Result};
use firn_sim::Operation;

use crate::world::{Fate, STREAM_COUNT, World, seeds, setup};

const SEGMENT_BYTES: [u64; 4] = [4 << 10, 8 << 10, 32 << 10, 128 << 10];
/// Tightly packed, byte-addressable memory, a sector.
const UNIT_BYTES: [u64; 3] = [8, 256, 512];

#[test]
fn invariant_1_committed_entries_survive_every_crash() {
    for seed in seeds(0, 400) {
        many_lives(&mut World::new(seed), DiskFaults::None);
    }
}

#[test]
fn invariant_1_committed_entries_survive_failing_disks() {
    for seed in seeds(100_000_000, 400) {
        many_lives(&mut World::new(seed), DiskFaults::Failures);
    }
}

#[test]
fn invariant_1_committed_entries_survive_full_disks() {
    for seed in seeds(200_000_000, 200) {
        many_lives(&mut World::new(seed), DiskFaults::FullDisk);
    }
}

/// One short life, with the power cut at each of its operations in turn.
#[test]
fn a_crash_at_every_operation() {
    for seed in seeds(0, 4) {
        let mut whole = World::new(seed);
        live(&mut whole, setup(4 << 10, SyncPolicy::Always), 40).unwrap();
        let operations = whole.sim.faults.change_count();
        assert!(operations > 40, "only {operations} operations");
        for at in 0..operations {
            eprintln!("seed {seed} crash at {at}");
            let mut world = World::new(seed);
            world.sim.faults.crash_at(at);
            let crashed = live(&mut world, setup(4 << 10, SyncPolicy::Always), 40);
            assert_eq!(*crashed.unwrap_err().kind(), ErrorKind::Closed);
            world.sim.restart();
            live(&mut world, setup(4 << 10, SyncPolicy::Always), 3).unwrap();
            world.sim.restart();
            live(&mut world, setup(4 << 10, SyncPolicy::Always), 0).unwrap();
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum DiskFaults {
    None,
    Failures,
    FullDisk,
}

fn many_lives(world: &mut World, disk_faults: DiskFaults) {
    for _ in 0..6 {
        let segment_bytes = *world.rng.pick(&SEGMENT_BYTES);
        let faults = world.sim.faults.clone();
        faults.clear();
        if world.rng.chance(0.8) {
            let operations = world.rng.below(120);
            faults.crash_at(faults.change_count() + operations);
        }
        if disk_faults == DiskFaults::Failures {
            let kinds = [Operation::Write, Operation::Sync, Operation::Create];
            let more = [Operation::Preallocate, Operation::Remove, Operation::SyncDir];
            for kind in kinds.into_iter().chain(more) {
                let rate = [0.0, 0.02, 0.3][world.rng.below(3) as usize];
                faults.set_rate(kind, rate);
            }
        }
        if disk_faults == DiskFaults::FullDisk {
            world.sim.disk.set_capacity_bytes(world.rng.below(1 << 20));
        }
        let steps = world.rng.below(80);
        let unit_bytes = *world.rng.pick(&UNIT_BYTES);
        let setup = LogSetup { unit_bytes, ..setup(segment_bytes, SyncPolicy::Always) };
        let outcome = live(world, setup, steps);
        if let Err(error) = outcome {
            let expected = matches!(error.kind(), ErrorKind::Closed | ErrorKind::Unavailable);
            assert!(expected, "{error}");
        }
        // Half the time only the process dies, and the page cache survives.
        if world.sim.faults.is_off() || world.rng.chance(0.5) {
            world.sim.restart();
        }
    }
    world.sim.faults.clear();
    world.sim.disk.set_capacity_bytes(u64::MAX);
    live(world, setup(8 << 10, SyncPolicy::Always), 5).unwrap();
    world.sim.restart();
    live(world, setup(8 << 10, SyncPolicy::Always), 0).unwrap();
}

/// Opens, checks, works for some steps, dies.
fn live(world: &mut World, setup: LogSetup, steps: u64) -> Result<()> {
    let payload_bytes_max = setup.options.segment_bytes / 8;
    let log = world.open(setup)?;
    let replayed = world.replay(&log)?;
    world.check(&replayed);
    for replayed in &replayed {
        assert_eq!(replayed.report.damage, Vec::<String>::new());
        assert_eq!(replayed.after_holes, Vec::<usize>::new());
    }
    log.start()?;
    world.settle(&replayed);
    let mut ends = [None; STREAM_COUNT];
    for _ in 0..steps {
        let outcome = match world.rng.below(20) {
            0 => log.prepare(),
            1 => world.purge(&log),
            2 => log.sync().inspect(|()| record_all_commits(world, &log)),
            3..9 => {
                let positions: Vec<_> = ends.iter_mut().filter_map(Option::take).collect();
                world.commit(&log, &positions)
            }
            _ => world.append(&log, payload_bytes_max).map(|(stream, position)| {
                ends[usize::from(stream.0)] = Some((stream, position));
            }),
        };
        match outcome {
            Err(error) if *error.kind() == ErrorKind::Closed => return Err(error),
            // The disk failed or is full: the log continues.
            Err(error) if error.is_retriable() => {}
            outcome => outcome?,
        }
        // A commit that the power loss interrupted counts as failed.
        if world.sim.faults.is_off() {
            reopen_failures(world);
            return Err(Error::closed("the power is off"));
        }
        check_stats(world, &log);
    }
    Ok(())
}

fn record_all_commits(world: &mut World, log: &firn_log::Log) {
    for stream in 0..STREAM_COUNT as u16 {
        world.record_commit(log, firn_log::StreamId(stream), LogPosition(u64::MAX));
    }
}

/// With the power off the log cannot continue in another segment, so a "failed" entry may survive.
fn reopen_failures(world: &mut World) {
    for record in world.streams.iter_mut().flat_map(|stream| &mut stream.records) {
        if record.fate == Fate::Failed {
            record.fate = Fate::Maybe;
        }
    }
}

fn check_stats(world: &World, log: &firn_log::Log) {
    let stats = log.stats();
    assert!(stats.disk_bytes >= stats.bytes.min(1), "{stats:?}");
    let safe = world
        .streams
        .iter()
        .flat_map(|stream| stream.records.iter().filter(|record| record.position > stream.floor));
    let payload_bytes: usize =
        safe.filter(|record| record.fate == Fate::Safe).map(|record| record.payload.len()).sum();
    assert!(stats.bytes >= payload_bytes as u64, "{stats:?} for {payload_bytes} payload bytes");
}
