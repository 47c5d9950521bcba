//! Tests of the store: against a plain map, over a simulated disk that fails and loses.

use std::collections::HashMap;
use std::sync::Arc;

use firn_model::{Budget, CommitSeq, Pool, Reclaim, Reservation, TimeRange, Timestamp};
use firn_sim::{Operation, Rng, Sim, for_seeds};

use super::state::{Fill, Point, Store, StoreOptions, StoreStats};
use super::{Lookup, OwnerHistory};
use crate::mutant::Mutant;
use crate::policy::SlabId;

const FIELD: u64 = 1;
const KEYS: [&str; 5] = ["cpu", "memory", "disk", "net", "a key with a rather long text"];
const LAST: Timestamp = 4_000;

/// A point as it must come back.
type TruePoint = (Timestamp, Option<Arc<[u8]>>, Vec<u8>);

/// Points whose truth changes: a version for each time.
struct StoreWorld {
    sim: Sim,
    rng: Rng,
    store: Option<Store>,
    mutant: Option<Mutant>,
    /// The number of the last change of each time, per key.
    versions: HashMap<usize, Vec<u64>>,
    changes: Vec<(u64, usize, TimeRange)>,
    /// The owner can announce changes after this number again.
    floor: u64,
    number: u64,
    hits: u64,
    gets: u64,
    digest: u64,
}

fn options(mutant: Option<Mutant>) -> StoreOptions {
    StoreOptions {
        slab_bytes: 16 << 10,
        flash_bytes_max: 12 * (16 << 10),
        header_bytes_max: 4 << 10,
        waiting_slabs_max: 3,
        compaction_trigger: 3,
        mutant,
        ..StoreOptions::default()
    }
}

impl StoreWorld {
    fn new(seed: u64, mutant: Option<Mutant>) -> StoreWorld {
        let mut world = StoreWorld {
            sim: Sim::new(seed),
            rng: Rng::new(seed ^ 0xcac4e),
            store: None,
            mutant,
            versions: (0..KEYS.len()).map(|key| (key, vec![0; LAST as usize + 1])).collect(),
            changes: Vec::new(),
            floor: 0,
            number: 0,
            hits: 0,
            gets: 0,
            digest: 0,
        };
        world.open();
        world
    }

    fn open(&mut self) {
        let recovered =
            OwnerHistory { replays_after: CommitSeq(self.floor), through: CommitSeq(self.number) };
        for _ in 0..50 {
            let disk = self.sim.env().disk;
            let budget = Budget::new(4 << 20);
            match Store::open(disk, "cache/points", &budget, options(self.mutant), recovered) {
                Ok(store) => {
                    let again = self.changes.iter().filter(|change| change.0 > self.floor);
                    for (_, key, range) in again {
                        store.trim(KEYS[*key].as_bytes(), FIELD, *range);
                    }
                    self.store = Some(store);
                    return;
                }
                Err(_) => {
                    self.sim.faults.clear();
                    if self.sim.faults.is_off() {
                        self.sim.restart();
                    }
                }
            }
        }
        panic!("the cache does not open in 50 tries");
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    /// The true points: a third of all times have a point, some of them the same for all keys, some
    /// large.
    fn truth(&self, key: usize, range: TimeRange) -> Vec<TruePoint> {
        let point = |ts: Timestamp| {
            let version = self.versions[&key][ts as usize];
            let mut rng = Rng::new(ts as u64 * 31 + version);
            let is_shared = version == 0 && ts % 2 == 0;
            let mut text = if is_shared { "all" } else { KEYS[key] }.as_bytes().to_vec();
            text.extend_from_slice(&version.to_le_bytes());
            text.resize(text.len() + rng.below(60) as usize, 1);
            if rng.chance(0.01) {
                text.resize(5_000, 2);
            }
            let head = (ts % 4 != 0).then(|| Arc::from(format!("head {}", ts % 3).as_bytes()));
            (ts, head, text)
        };
        (range.start..=range.end).filter(|ts| ts % 3 == 0).map(point).collect()
    }

    fn some_range(&mut self) -> TimeRange {
        // Mostly the newest data, as dashboards query it.
        let width = *self.rng.pick(&[3, 30, 300, 300, 1_500]);
        let oldest = if self.rng.chance(0.8) { LAST - 600 } else { 0 };
        let start = self.rng.between(oldest, LAST);
        TimeRange::new(start, (start + self.rng.between(0, width)).min(LAST))
    }

    fn query(&mut self) {
        let key = self.rng.below(KEYS.len() as u64) as usize;
        let range = self.some_range();
        let number = CommitSeq(self.number);
        let text = KEYS[key].as_bytes();
        let partial_bytes_min = *self.rng.pick(&[0, 0, 500]);
        let ask = Lookup {
            key: text,
            field: FIELD,
            range,
            number,
            partial_bytes_min,
            bytes_max: u64::MAX,
        };
        let got = self.store().get(&ask);
        let mut found = Vec::new();
        got.for_each(&mut |point| {
            found.push((point.ts, point.head.cloned(), point.payload.to_vec()));
        })
        .unwrap();
        let is_there = |ts: &Timestamp| !got.missing.contains(*ts);
        let mut want = self.truth(key, range);
        want.retain(|point| is_there(&point.0));
        assert_eq!(found, want, "{} in {range:?}, missing {:?}", KEYS[key], got.missing);
        self.gets += 1;
        self.hits += u64::from(got.missing != range);
        self.digest = self.digest.wrapping_mul(31).wrapping_add(got.missing.start as u64);
        assert!(got.missing.covers(got.absent) && got.missing.is_empty() == got.absent.is_empty());
        if !got.missing.is_empty() {
            // Points that were too small a part to be returned need not be set again.
            let range = if self.rng.chance(0.5) { got.absent } else { got.missing };
            self.fill(key, range);
        }
    }

    fn fill(&mut self, key: usize, range: TimeRange) {
        let truth = self.truth(key, range);
        let points: Vec<Point<'_>> = truth
            .iter()
            .map(|(ts, head, payload)| Point { ts: *ts, head: head.clone(), payload })
            .collect();
        let number = CommitSeq(self.number);
        let text = KEYS[key].as_bytes();
        let fill = Fill { key: text, field: FIELD, range, number, note: b"n", points: &points };
        let kept = self.store().set(&fill);
        assert!(range.covers(kept));
    }

    fn change(&mut self) {
        let key = self.rng.below(KEYS.len() as u64) as usize;
        let oldest = if self.rng.chance(0.5) { LAST - 600 } else { 0 };
        let start = self.rng.between(oldest, LAST);
        let range = TimeRange::new(start, (start + self.rng.between(0, 20)).min(LAST));
        self.number += 1;
        let number = self.number;
        let versions = self.versions.get_mut(&key).unwrap();
        (range.start..=range.end).for_each(|ts| versions[ts as usize] = number);
        self.changes.push((number, key, range));
        self.store().trim(KEYS[key].as_bytes(), FIELD, range);
    }

    fn restart(&mut self) {
        if self.rng.chance(0.4) {
            self.store().flush();
            let _ = self.store().checkpoint();
        }
        self.store = None;
        if self.rng.chance(0.7) {
            self.sim.restart();
        }
        self.sim.faults.clear();
        if self.rng.chance(0.3) {
            // The owner's log was truncated: it cannot announce the older changes again.
            let floor = self.number - self.rng.below(self.number.min(6) + 1);
            self.floor = self.floor.max(floor);
        }
        self.open();
    }

    fn damage(&mut self) {
        let path = "cache/points/slabs";
        let Ok(len) = self.sim.disk.bytes(path).map(|bytes| bytes.len() as u64) else { return };
        let at = self.rng.below(len.max(1)) as usize;
        let bit = self.rng.below(8);
        // The superblock's damage costs all, which would leave little to see.
        if at >= 4096 {
            let _ = self.sim.disk.damage(path, |bytes| bytes[at] ^= 1 << bit);
        }
    }

    /// Both layers of the index agree, and all counters are right.
    fn check(&self) {
        let state = self.store().state.lock();
        let mut counts: HashMap<(SlabId, Arc<[u8]>), u32> = HashMap::new();
        let mut segment_count = 0;
        for (text, entry) in state.fields.values().flat_map(|field| &field.keys) {
            for (_, segment) in entry.segments() {
                *counts.entry((segment.slab, Arc::clone(text))).or_default() += 1;
                segment_count += 1;
            }
        }
        assert_eq!(state.memory.segment_count, segment_count);
        for (id, node) in &state.nodes {
            for (text, count) in &node.keys {
                assert_eq!(counts.remove(&(*id, Arc::clone(text))), Some(*count), "slab {id}");
            }
        }
        assert!(counts.is_empty(), "segments of slabs that are not there: {counts:?}");
        let keys: usize = state.fields.values().map(|field| field.keys.len()).sum();
        assert_eq!(state.memory.key_count, keys as u64);
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..60 => self.query(),
            60..68 => self.change(),
            68..92 => {
                self.store().work();
            }
            92..94 => {
                let _ = self.store().checkpoint();
            }
            94 => self.damage(),
            95 if self.rng.chance(0.3) => {
                let held = self.store().stats().memory_bytes;
                let wanted = self.rng.below(64 << 10);
                let freed = Reclaim::reclaim(self.store(), wanted);
                assert!(
                    freed >= wanted.min(held) && self.store().stats().memory_bytes == held - freed
                );
            }
            95 => self.damage(),
            96 => {
                let operation = *self.rng.pick(&[Operation::Write, Operation::Read]);
                self.sim.faults.fail_nth(operation, 1 + self.rng.below(4));
            }
            97 if self.rng.chance(0.5) => {
                let soon = self.sim.faults.change_count() + self.rng.below(12);
                self.sim.faults.crash_at(soon);
            }
            98 => self.restart(),
            _ => self.query(),
        }
        self.check();
        if self.sim.faults.is_off() {
            self.restart();
        }
    }
}

#[test]
fn invariant_9_cached_points_are_the_true_ones() {
    let (mut hits, mut gets) = (0, 0);
    let mut seen = StoreStats::default();
    let totals = std::cell::RefCell::new((&mut hits, &mut gets, &mut seen));
    for_seeds(60, |seed| {
        let mut world = StoreWorld::new(seed, None);
        for _ in 0..400 {
            world.step();
            let stats = world.store().stats();
            assert!(stats.slabs <= 12 && stats.memory_bytes <= 4 << 20, "{stats:?}");
        }
        let mut totals = totals.borrow_mut();
        *totals.0 += world.hits;
        *totals.1 += world.gets;
        let stats = world.store().stats();
        totals.2.slabs_compacted += stats.slabs_compacted;
        totals.2.slabs_rescued += stats.slabs_rescued;
        totals.2.slabs_corrupt += stats.slabs_corrupt;
        totals.2.policy.evictions[0] += stats.policy.evictions[0];
        totals.2.policy.evictions[1] += stats.policy.evictions[1];
        totals.2.device_failures += stats.device_failures;
        totals.2.partial_declined += stats.partial_declined;
        world.digest
    });
    println!("{hits} of {gets} had something; {seen:?}");
    assert!(hits * 100 > gets * 40, "{hits} of {gets} questions found something");
    assert!(seen.slabs_compacted > 0 && seen.slabs_corrupt > 0 && seen.device_failures > 0);
    assert!(seen.slabs_rescued > 0, "{seen:?}");
    assert!(seen.policy.evictions.iter().sum::<u64>() > 0 && seen.partial_declined > 0, "{seen:?}");
}

/// Every mutant is caught within some seeds.
#[test]
fn mutants_are_caught() {
    for mutant in [
        Mutant::TrimForgotten,
        Mutant::RescuedWhole,
        Mutant::OldPointsKept,
        Mutant::CheckpointAhead,
        Mutant::MissedChangesTrusted,
        Mutant::BlocksNotChecked,
    ] {
        let is_noticed = (0..400).any(|seed| {
            let run = std::panic::AssertUnwindSafe(|| {
                let mut world = StoreWorld::new(seed, Some(mutant));
                (0..400).for_each(|_| world.step());
            });
            std::panic::catch_unwind(run).is_err()
        });
        assert!(is_noticed, "{mutant:?} was not noticed");
    }
}

/// Evicting slabs does not free memory of other rooms: a set that is refused anyway evicts none.
#[test]
fn a_set_that_is_refused_for_memory_evicts_no_slab() {
    let mut world = StoreWorld::new(3, None);
    let budget = Budget::new(4 << 20);
    let options = StoreOptions { slab_bytes: 16 << 10, flash_bytes_max: 1 << 20, ..options(None) };
    world.store = None;
    let disk = world.sim.env().disk;
    let recovered = OwnerHistory::IMMUTABLE;
    world.store = Some(Store::open(disk, "short", &budget, options, recovered).unwrap());
    for start in (0..LAST).step_by(100) {
        for key in 0..KEYS.len() {
            world.fill(key, TimeRange::new(start, start + 99));
        }
        world.store().flush();
    }
    let set = |world: &StoreWorld, ts| {
        let (key, payload) = (b"new", [7; 100]);
        let points = [Point { ts, head: None, payload: &payload }];
        let (range, number) = (TimeRange::at(ts), CommitSeq(0));
        let fill = Fill { key, field: FIELD, range, number, note: b"", points: &points };
        !world.store().set(&fill).is_empty()
    };
    let line = budget.usage().limit_bytes / 100 * Pool::Cache.threshold_percent();
    let mut others = budget.empty(Pool::Head);
    let free_bytes =
        |others: &Reservation| line - others.bytes() - world.store().stats().memory_bytes;
    others.take(free_bytes(&others) + 10_000);
    let before = world.store().stats();
    assert!(before.slabs > 30, "{before:?}");
    for ts in 0..50 {
        assert!(!set(&world, ts), "there is no room");
    }
    let after = world.store().stats();
    assert_eq!((after.slabs, after.refused - before.refused), (before.slabs, 50));
    // Evicting a slab or two frees enough.
    others.shrink(13_500);
    assert!(set(&world, 50), "{:?}", world.store().stats());
    let slabs = world.store().stats().slabs;
    assert!(slabs < before.slabs && slabs + 4 >= before.slabs, "{slabs} of {}", before.slabs);
}

#[test]
fn a_range_trimmed_during_a_merge_stays_trimmed() {
    let mut world = StoreWorld::new(1, None);
    let store = world.store.take().unwrap();
    store.state.lock().slot_count = 1_000;
    for start in 0..6 {
        for (key, text) in KEYS.iter().enumerate().take(2) {
            let range = TimeRange::new(start * 100, 1_000);
            let truth = world.truth(key, range);
            let points: Vec<Point<'_>> = truth
                .iter()
                .map(|(ts, head, payload)| Point { ts: *ts, head: head.clone(), payload })
                .collect();
            let (text, number) = (text.as_bytes(), CommitSeq(0));
            store.set(&Fill { key: text, field: FIELD, range, number, note: b"", points: &points });
        }
        store.state.lock().seal(FIELD);
        while store.work() && store.state.lock().waiting() > 0 {}
    }
    let merge = {
        let options = StoreOptions { compaction_trigger: 1, ..options(None) };
        store.state.lock().plan_merge(&options).unwrap()
    };
    let gone = TimeRange::new(900, 940);
    store.trim(KEYS[0].as_bytes(), FIELD, gone);
    store.merge(merge);
    let ask = |range| Lookup {
        key: KEYS[0].as_bytes(),
        field: FIELD,
        range,
        number: CommitSeq(0),
        partial_bytes_min: 0,
        bytes_max: u64::MAX,
    };
    assert_eq!(store.get(&ask(TimeRange::new(800, 1_000))).missing, gone);
    assert!(store.stats().slabs_compacted > 1);
}

/// 30,000 keys with one point each, all of them equal, took 2 GiB in a merge, whose result was then
/// too large for a slab and dropped.
#[test]
fn equal_points_of_more_keys_than_a_slab_holds_stay_cached() {
    const KEY_COUNT: usize = 6_000;
    const SLAB_BYTES: u32 = 64 << 10;
    let (disk, budget) = (Sim::new(1).env().disk, Budget::new(16 << 20));
    let options = StoreOptions {
        slab_bytes: SLAB_BYTES,
        flash_bytes_max: 64 * u64::from(SLAB_BYTES),
        header_bytes_max: 64 << 10,
        ..options(None)
    };
    let store = Store::open(disk, "points", &budget, options, OwnerHistory::IMMUTABLE).unwrap();
    let range = TimeRange::new(0, 1);
    let points = [Point { ts: 1, head: None, payload: b"2" }];
    for number in 0..KEY_COUNT {
        let key = format!("key-{number}").into_bytes();
        let fill = Fill {
            key: &key,
            field: FIELD,
            range,
            number: CommitSeq(0),
            note: b"",
            points: &points,
        };
        assert_eq!(store.set(&fill), range);
        while store.work() {}
    }
    store.flush();
    assert!(store.stats().slabs_written > 4, "a crowd");
    let is_cached = |number: &usize| {
        let key = format!("key-{number}").into_bytes();
        let ask = Lookup {
            key: &key,
            field: FIELD,
            range,
            number: CommitSeq(0),
            partial_bytes_min: 0,
            bytes_max: u64::MAX,
        };
        store.get(&ask).missing.is_empty()
    };
    let cached_count = (0..KEY_COUNT).filter(is_cached).count();
    // Some keys of a slab are dropped if its header grows by a block when it is written.
    assert!(cached_count >= KEY_COUNT / 100 * 99, "{cached_count}, {:?}", store.stats());
}

/// Sets a key of which every point is equal to a point of another key: each makes a set of two
/// keys, which takes more memory than the point that it replaces.
#[test]
fn memory_of_equal_points_counts_or_is_released() {
    const POINT_COUNT: i64 = 1_000;
    let (disk, budget) = (Sim::new(1).env().disk, Budget::new(8 << 20));
    let slab_bytes = 1 << 20;
    let options =
        StoreOptions { slab_bytes, flash_bytes_max: 4 * u64::from(slab_bytes), ..options(None) };
    let store = Store::open(disk, "points", &budget, options, OwnerHistory::IMMUTABLE).unwrap();
    let range = TimeRange::new(0, POINT_COUNT);
    let point = |ts| Point { ts, head: None, payload: b"2" };
    let set = |key: &str, points: &[Point<'_>]| {
        let (key, number) = (key.as_bytes(), CommitSeq(0));
        store.set(&Fill { key, field: FIELD, range, number, note: b"", points })
    };
    for ts in 0..POINT_COUNT {
        assert_eq!(set(&format!("key-{ts}"), &[point(ts)]), range);
    }
    let all: Vec<Point<'_>> = (0..POINT_COUNT).map(point).collect();
    // Exactly the memory that the set is expected to take.
    let wanted_bytes = all.len() as u64 * 129 + 3 + 4_096;
    let line = budget.usage().limit_bytes * Pool::Cache.threshold_percent() / 100;
    let mut others = budget.empty(Pool::Head);
    others.take(line - wanted_bytes - store.stats().memory_bytes);
    let refused_before = store.stats().refused;
    assert!(set("all", &all).is_empty());
    let mut state = store.state.lock();
    assert!(state.held_bytes() <= state.memory.reservation.bytes(), "all memory counts");
    assert!(budget.usage().used_bytes <= line, "{:?}", budget.usage());
    assert_eq!(state.stats.refused, refused_before + 1);
    drop(state);
    // With memory it is kept.
    others.shrink(1 << 20);
    assert_eq!(set("all", &all), range);
}

/// Before, parts of such a set stayed in slabs that were not removed. Heads of points do not count
/// in the memory that a set is expected to take.
#[test]
fn nothing_of_a_set_that_exceeds_its_memory_is_cached() {
    let (disk, budget) = (Sim::new(1).env().disk, Budget::new(8 << 20));
    let slab_bytes = 16 << 10;
    let (flash_bytes_max, waiting_slabs_max) = (1 << 20, 8);
    let options = StoreOptions { slab_bytes, flash_bytes_max, waiting_slabs_max, ..options(None) };
    let store = Store::open(disk, "parts", &budget, options, OwnerHistory::IMMUTABLE).unwrap();
    let range = TimeRange::new(0, 12);
    let point = |ts: i64| {
        let head = format!("{ts:02000}").into_bytes();
        Point { ts, head: Some(Arc::from(head)), payload: &[b'2'; 2_000] }
    };
    let points: Vec<Point<'_>> = (0..12).map(point).collect();
    let set = || {
        let (key, number) = (b"all", CommitSeq(0));
        let points = &points;
        store.set(&Fill { key, field: FIELD, range, number, note: b"", points })
    };
    let line = budget.usage().limit_bytes * Pool::Cache.threshold_percent() / 100;
    let mut others = budget.empty(Pool::Head);
    others.take(line - (36 << 10) - store.stats().memory_bytes);
    assert!(set().is_empty());
    let stats = store.stats();
    assert_eq!((stats.set_bytes, stats.refused), (24_000, 1), "the points were written");
    assert_eq!((stats.keys, stats.extents), (0, 0));
    // With memory it is kept.
    others.shrink(1 << 20);
    assert_eq!(set(), range);
}

/// A merge took the memory of three slabs for each source, whatever their points decode to: those
/// of each key are points of their own.
#[test]
fn a_merge_reserves_the_points_that_keys_share() {
    const KEY_COUNT: i64 = 30;
    const POINT_COUNT: i64 = 1_000;
    let (disk, budget) = (Sim::new(1).env().disk, Budget::new(64 << 20));
    let options = StoreOptions { flash_bytes_max: 1 << 20, ..options(None) };
    let store = Store::open(disk, "points", &budget, options, OwnerHistory::IMMUTABLE).unwrap();
    let fill = |start: i64| {
        let range = TimeRange::new(start, POINT_COUNT);
        let point = |ts| Point { ts, head: None, payload: b"2" };
        let points: Vec<Point<'_>> = (start..POINT_COUNT).map(point).collect();
        for key in 0..KEY_COUNT {
            let (key, number) = (format!("key-{key}").into_bytes(), CommitSeq(0));
            let fill = Fill { key: &key, field: FIELD, range, number, note: b"", points: &points };
            store.set(&fill);
        }
        store.state.lock().seal(FIELD);
        while store.state.lock().waiting() > 0 && store.work() {}
    };
    let plan = |store: &Store| {
        let options = StoreOptions { compaction_trigger: 1, ..options };
        store.state.lock().plan_merge(&options)
    };
    (0..3).for_each(|number| fill(number * 50));
    let decoded_bytes = (KEY_COUNT * POINT_COUNT) as u64 * 56;
    let line = budget.usage().limit_bytes * Pool::Cache.threshold_percent() / 100;
    let mut others = budget.empty(Pool::Head);
    others.take(line - store.stats().memory_bytes - decoded_bytes);
    store.merge(plan(&store).expect("a crowd"));
    let stats = store.stats();
    assert_eq!((stats.slabs_compacted, stats.slabs_corrupt, stats.device_failures), (0, 0, 0));
    assert!(budget.usage().peak_bytes <= line && stats.slabs >= 3, "{stats:?}");
    assert!(plan(&store).is_none(), "it is postponed");
    drop(others);
    store.state.lock().crowds_at = 0;
    store.merge(plan(&store).expect("a crowd"));
    assert!(store.stats().slabs_compacted >= 2, "{:?}", store.stats());
}

/// The cache server counts on it: one thread serves all of its clients.
#[test]
fn a_range_with_many_parts_is_scattered() {
    let sim = Sim::new(1);
    let history = OwnerHistory { replays_after: CommitSeq(0), through: CommitSeq(0) };
    let budget = Budget::new(4 << 20);
    let store = Store::open(sim.env().disk, "cache/points", &budget, options(None), history);
    let store = store.unwrap();
    for at in 0..10 {
        let range = TimeRange::at(2 * at);
        let (number, key) = (CommitSeq(1), KEYS[0].as_bytes());
        store.set(&Fill { key, field: FIELD, range, number, note: b"", points: &[] });
    }
    let is_scattered = |key: &str, range: TimeRange, parts_max: usize| {
        let (number, key) = (CommitSeq(1), key.as_bytes());
        let ask =
            Lookup { key, field: FIELD, range, number, partial_bytes_min: 0, bytes_max: u64::MAX };
        store.is_scattered(&ask, parts_max)
    };
    assert!(is_scattered(KEYS[0], TimeRange::ALL, 9));
    assert!(!is_scattered(KEYS[0], TimeRange::ALL, 10));
    assert!(!is_scattered(KEYS[0], TimeRange::new(0, 9), 5));
    assert!(!is_scattered(KEYS[1], TimeRange::ALL, 0));
}
