//! Random lives against a plain map: flushes of new, late and overwriting rows, jobs, garbage,
//! readers that stay, restarts, power cuts at any operation, tiers that fail. A failure
//! prints its seed.

use std::cell::RefCell;

use firn_sim::{Operation, for_cases};

use super::*;

const SEEDS: u64 = 100;
const STEPS: usize = 60;

struct Reader {
    version: Arc<Version>,
    members: BTreeSet<(GroupId, Slot)>,
    want: Samples,
}

/// How often each kind of event happened.
type Tally = BTreeMap<String, u64>;

#[test]
fn a_random_life_equals_a_plain_map() {
    let tally = RefCell::new(Tally::new());
    for_cases(SEEDS, |seed| {
        for (what, count) in live(seed) {
            *tally.borrow_mut().entry(what).or_default() += count;
        }
    });
    let tally = tally.into_inner();
    println!("{tally:#?}");
    if std::env::var_os("FIRN_SEED").is_some() {
        return;
    }
    // A test that never meets its events proves nothing.
    // Those that fail are in `jobs_that_are_killed_anywhere_lose_nothing_and_are_done_again`.
    assert!(tally.contains_key("merge_patches: done"), "{tally:#?}");
    assert!(tally.contains_key("merge_partitions: done"), "{tally:#?}");
    for work in ["flush", "compact", "upload", "garbage"] {
        for outcome in ["done", "Closed", "Unavailable"] {
            let what = format!("{work}: {outcome}");
            assert!(tally.contains_key(&what), "{what} never happened: {tally:#?}");
        }
    }
}

fn live(seed: u64) -> Tally {
    let mut tally = Tally::new();
    let mut rng = Rng::new(seed);
    let options = TreeOptions {
        block_bytes: *rng.pick(&[256, 700, 4_000]),
        slice_bytes: *rng.pick(&[100, 1_000, 512 << 10]),
        table_bytes_max: *rng.pick(&[4_000, 20_000, 1 << 20]),
        patches_max: *rng.pick(&[1, 1, 3]),
        level0_tables_max: rng.between(1, 6) as usize,
        cache_bytes_max: *rng.pick(&[0, 2_000, 1 << 20]),
        upload_age_ms_max: *rng.pick(&[20 * MINUTE_MS, HOUR_MS, 4 * HOUR_MS]),
        bucket_grace_ms: *rng.pick(&[0, HOUR_MS]),
        slow_partition_ms: *rng.pick(&[30 * MINUTE_MS, 2 * HOUR_MS]),
        old_partition_ms: *rng.pick(&[4 * HOUR_MS, 16 * HOUR_MS]),
        fast_bytes_max: *rng.pick(&[None, None, Some(10_000), Some(60_000)]),
        ..TreeOptions::default()
    };
    let faulty = rng.chance(0.7);
    let mut world = World::new(seed, options);
    let mut readers: Vec<Reader> = Vec::new();
    for _ in 0..STEPS {
        world.advance(rng.between(0, 20 * MINUTE_MS));
        step(&mut world, &mut rng, &mut readers, &mut tally, faulty);
        if world.sim.faults.is_off() {
            readers.clear();
            world.sim.restart();
            world.reopen();
        }
        world.sim.faults.clear();
        world.sim.bucket.set_down(false);
        if rng.chance(0.3) {
            let start = world.now() + rng.between(-30 * HOUR_MS, 2 * HOUR_MS);
            world.check_range(TimeRange::new(start, start + rng.between(0, 9 * HOUR_MS)));
        }
        for reader in &readers {
            let got = read(&reader.version, &reader.members, TimeRange::ALL).unwrap();
            assert_same(&got, &reader.want);
        }
    }
    world.check();
    readers.clear();
    world.advance(6 * HOUR_MS);
    world.settle();
    world.check();
    world.collect_garbage().unwrap();
    world.advance(2 * HOUR_MS);
    world.settle();
    world.collect_garbage().unwrap();
    world.reopen();
    world.check();
    assert_eq!(world.damage().len(), 0);
    for record in world.tree.version().tables() {
        assert!(record.level.is_slow(), "all is uploaded in the end: {record:?}");
    }
    assert!(world.sim.disk.files().is_empty(), "{:?}", world.sim.disk.files());
    tally
}

/// The failure during the next job.
fn plan_faults(world: &World, rng: &mut Rng) {
    let faults = &world.sim.faults;
    faults.clear();
    world.sim.bucket.set_down(false);
    match rng.below(16) {
        0 | 1 => faults.crash_at(faults.change_count() + rng.below(6)),
        5 => faults.fail_at(faults.change_count() + rng.below(6)),
        2 => world.sim.bucket.set_down(true),
        3 => faults.set_lost_acknowledgement_rate(0.5),
        4 => faults.set_rate(*rng.pick(&Operation::ALL), 0.3),
        _ => {}
    }
}

/// Counts an outcome; only the world outside may be the reason for a failure.
fn count<T>(tally: &mut Tally, work: &str, outcome: &Result<T>) {
    let outcome = match outcome {
        Ok(_) => "done".to_owned(),
        Err(e) => {
            let is_outside = matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Closed);
            assert!(is_outside, "{work}: {e}");
            format!("{:?}", e.kind())
        }
    };
    *tally.entry(format!("{work}: {outcome}")).or_default() += 1;
}

fn step(
    world: &mut World,
    rng: &mut Rng,
    readers: &mut Vec<Reader>,
    tally: &mut Tally,
    faulty: bool,
) {
    if faulty {
        plan_faults(world, rng);
    }
    match rng.below(10) {
        0..=3 => {
            let samples = random_samples(world, rng);
            let before = world.parts.len();
            let outcome = world.flush(&samples);
            count(tally, "flush", &outcome);
            assert_eq!(world.parts.len() > before, outcome.is_ok());
        }
        4..=6 => {
            for _ in 0..rng.below(12) {
                let Some(job) = world.plan() else {
                    match world.tree.adapt(&world.tree.version()) {
                        true => continue,
                        false => break,
                    }
                };
                let outcome = world.run(&job);
                count(tally, job.kind().name(), &outcome);
                if world.sim.faults.is_off() {
                    break;
                }
                if faulty {
                    plan_faults(world, rng);
                }
            }
        }
        7 => {
            let ms_max = *rng.pick(&[HOUR_MS, HOUR_MS, 20 * HOUR_MS]);
            world.advance(rng.between(0, ms_max));
            if rng.chance(0.5) && !readers.is_empty() {
                readers.swap_remove(rng.below(readers.len() as u64) as usize);
            }
        }
        8 => {
            let outcome = world.collect_garbage();
            count(tally, "garbage", &outcome);
        }
        _ => match rng.below(3) {
            0 => world.parts = vec![world.tree.snapshot_part()],
            1 => {
                world.sim.faults.clear();
                readers.clear();
                world.reopen();
            }
            _ => readers.push(Reader {
                version: world.tree.version(),
                members: world.members(),
                want: world.samples.clone(),
            }),
        },
    }
}

/// Rows of some groups: mostly of now, sometimes late, long ago, before 1970, or overwriting.
fn random_samples(world: &World, rng: &mut Rng) -> Samples {
    let mut samples = Samples::new();
    let known: Vec<_> = world.samples.keys().copied().collect();
    for _ in 0..1 + rng.below(6) {
        let group = GroupId(rng.below(12) * rng.pick(&[1, 1, 1 << 40]));
        let end = world.now()
            + match rng.below(12) {
                0 => -rng.between(0, 9 * HOUR_MS),
                1 | 2 => -365 * 24 * HOUR_MS - rng.between(0, HOUR_MS),
                3 => -world.now() - rng.between(-HOUR_MS, HOUR_MS),
                4 => rng.between(0, 10 * MINUTE_MS),
                _ => 0,
            };
        let step_ms = *rng.pick(&[1_000, 15_000, 15_000, 61_234]);
        let row_count = rng.between(1, 90);
        let slot_count = *rng.pick(&[1, 1, 3, 20]);
        for row in 0..row_count {
            let jitter = if rng.chance(0.1) { rng.between(-20, 20) } else { 0 };
            let ts = end - row * step_ms + jitter;
            for slot in 0..slot_count {
                if rng.chance(0.95) {
                    samples.insert((group, Slot(slot * 3), ts), random_bits(rng));
                }
            }
        }
    }
    for _ in 0..rng.below(20) {
        if !known.is_empty() {
            samples.insert(*rng.pick(&known), random_bits(rng));
        }
    }
    if rng.chance(0.03) {
        samples.insert((GroupId(1), Slot(0), *rng.pick(&[i64::MIN, i64::MAX])), 0);
    }
    samples
}

fn random_bits(rng: &mut Rng) -> u64 {
    match rng.below(8) {
        0 => rng.next_u64(),
        1 => firn_model::STALE_NAN_BITS,
        2 => (-0.0f64).to_bits(),
        _ => (rng.below(1_000) as f64 / 8.0).to_bits(),
    }
}
