//! The cache for other programs against a plain map: kills, power cuts and failing disks in
//! between.

use std::collections::HashMap;

use firn_model::Timestamp;
use firn_sim::{Operation, Rng, Sim, for_seeds};

use super::*;
use crate::mutant::Mutant;
use crate::store::DeclineReason;

const KEYS: [&[u8]; 3] = [b"SELECT%20a", b"SELECT%20b", b"up"];
const FIELDS: u64 = 2;
const LAST: Timestamp = 1_200;

/// The last change of a timestamp: the number of the set, `None` for a delete.
type LastChange = Option<u64>;

struct SharedWorld {
    sim: Sim,
    rng: Rng,
    cache: Option<SharedCache>,
    mutant: Option<Mutant>,
    machine_run: u64,
    last_changes: HashMap<(usize, u64), Vec<LastChange>>,
    set_count: u64,
    /// The last change could not be noted: only a crash of the machine may follow.
    is_in_doubt: bool,
    points: u64,
    kept_over_kills: u64,
}

impl SharedWorld {
    fn new(seed: u64, mutant: Option<Mutant>) -> SharedWorld {
        let nothing = vec![None; LAST as usize + 1];
        let keys = (0..KEYS.len()).flat_map(|key| (0..FIELDS).map(move |field| (key, field)));
        let mut world = SharedWorld {
            sim: Sim::new(seed),
            rng: Rng::new(seed ^ 0x5a4ed),
            cache: None,
            mutant,
            machine_run: 1,
            last_changes: keys.map(|key| (key, nothing.clone())).collect(),
            set_count: 0,
            is_in_doubt: false,
            points: 0,
            kept_over_kills: 0,
        };
        world.open();
        world
    }

    fn open(&mut self) {
        let options = StoreOptions {
            slab_bytes: 16 << 10,
            flash_bytes_max: 10 * (16 << 10),
            header_bytes_max: 4 << 10,
            waiting_slabs_max: 3,
            compaction_trigger: 3,
            mutant: self.mutant,
            ..StoreOptions::default()
        };
        for _ in 0..50 {
            let disk = self.sim.env().disk;
            let budget = Budget::new(4 << 20);
            match SharedCache::open(disk, "keys", &budget, options, self.machine_run) {
                Ok(cache) => {
                    self.cache = Some(cache);
                    self.is_in_doubt = false;
                    return;
                }
                Err(_) => {
                    self.sim.faults.clear();
                    if self.sim.faults.is_off() {
                        self.power_cut();
                    }
                }
            }
        }
        panic!("the cache does not open in 50 tries");
    }

    fn power_cut(&mut self) {
        self.cache = None;
        self.sim.restart();
        self.sim.faults.clear();
        self.machine_run += 1;
    }

    fn cache(&self) -> &SharedCache {
        self.cache.as_ref().unwrap()
    }

    fn some_place(&mut self) -> (usize, u64, TimeRange) {
        let key = self.rng.below(KEYS.len() as u64) as usize;
        let width = *self.rng.pick(&[1, 30, 200, 600]);
        let start = self.rng.between(0, LAST);
        let range = TimeRange::new(start, (start + self.rng.between(0, width)).min(LAST));
        (key, self.rng.below(FIELDS), range)
    }

    /// The points of a set: at every third time, with its number in them.
    fn points_of(
        key: usize,
        last_changes: &[LastChange],
        range: TimeRange,
    ) -> Vec<(Timestamp, Vec<u8>)> {
        let times = (range.start..=range.end).filter(|ts| ts % 3 == 0);
        let point = |ts: Timestamp| {
            let mut payload = last_changes[ts as usize]?.to_le_bytes().to_vec();
            payload.resize(8 + (ts as usize * 7 + key) % 90, key as u8);
            Some((ts, payload))
        };
        times.filter_map(point).collect()
    }

    fn get(&mut self) {
        let (key, field, range) = self.some_place();
        let partial_bytes_min = *self.rng.pick(&[0, 0, 1_000]);
        let bytes_max = *self.rng.pick(&[u64::MAX, 8_000]);
        let number = CommitSeq(0);
        let ask = Lookup { key: KEYS[key], field, range, number, partial_bytes_min, bytes_max };
        let got = self.cache().get(&ask);
        let last_changes = &self.last_changes[&(key, field)];
        for ts in range.start..=range.end {
            let is_given = !got.missing.contains(ts);
            assert!(
                !is_given || last_changes[ts as usize].is_some(),
                "{ts} of key {key}/{field} is missing"
            );
        }
        let mut found = Vec::new();
        got.for_each(&mut |point| found.push((point.ts, point.payload.to_vec()))).unwrap();
        let mut want = SharedWorld::points_of(key, last_changes, range);
        want.retain(|point| !got.missing.contains(point.0));
        assert_eq!(found, want, "key {key}/{field} in {range:?}, missing {:?}", got.missing);
        if got.declined == Some(DeclineReason::TooLarge) {
            assert!(got.missing == range && bytes_max == 8_000);
        }
        self.points += found.len() as u64;
    }

    fn set(&mut self) {
        let (key, field, range) = self.some_place();
        self.set_count += 1;
        let number = self.set_count;
        let last_changes = self.last_changes.get_mut(&(key, field)).unwrap();
        (range.start..=range.end).for_each(|ts| last_changes[ts as usize] = Some(number));
        let truth = SharedWorld::points_of(key, last_changes, range);
        let points: Vec<Point<'_>> =
            truth.iter().map(|(ts, payload)| Point { ts: *ts, head: None, payload }).collect();
        let kept = self.cache().set(KEYS[key], field, range, &points);
        self.is_in_doubt = kept.is_err();
        let kept = kept.unwrap_or(TimeRange::EMPTY);
        assert!(range.covers(kept) && (kept.is_empty() || kept.start == range.start));
        let last_changes = self.last_changes.get_mut(&(key, field)).unwrap();
        let lost = (range.start..=range.end).filter(|ts| !kept.contains(*ts));
        lost.for_each(|ts| last_changes[ts as usize] = None);
    }

    fn delete(&mut self) {
        let (key, field, range) = self.some_place();
        let last_changes = self.last_changes.get_mut(&(key, field)).unwrap();
        (range.start..=range.end).for_each(|ts| last_changes[ts as usize] = None);
        self.is_in_doubt = self.cache().delete(KEYS[key], field, range).is_err();
    }

    /// The process ends: killed, stopped, or with its machine.
    fn end(&mut self) {
        let is_closed = self.rng.chance(0.3) && self.cache().close().is_ok();
        if self.rng.chance(0.3) || (self.is_in_doubt && !is_closed) {
            self.power_cut();
        }
        let is_killed = self.cache.take().is_some();
        self.sim.faults.clear();
        self.open();
        if is_killed && !is_closed {
            self.kept_over_kills += self.cache().stats().extents;
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..40 => self.get(),
            40..62 => self.set(),
            62..70 => self.delete(),
            70..90 => {
                self.cache().work();
            }
            90 => {
                let operation = *self.rng.pick(&[Operation::Write, Operation::Read]);
                self.sim.faults.fail_nth(operation, 1 + self.rng.below(4));
            }
            91 if self.rng.chance(0.5) => {
                let soon = self.sim.faults.change_count() + self.rng.below(12);
                self.sim.faults.crash_at(soon);
            }
            92..95 => self.end(),
            95 => {
                let cache = self.cache.as_ref().unwrap();
                // A file of changes that has become long.
                let _ = cache.renew(&mut cache.journal.lock(), false);
            }
            _ => self.get(),
        }
        if self.sim.faults.is_off() {
            self.power_cut();
            self.open();
        }
    }
}

#[test]
fn invariant_9_a_get_returns_the_last_set() {
    let totals = std::cell::RefCell::new((0, 0));
    for_seeds(60, |seed| {
        let mut world = SharedWorld::new(seed, None);
        (0..400).for_each(|_| world.step());
        let mut totals = totals.borrow_mut();
        totals.0 += world.points;
        totals.1 += world.kept_over_kills;
        world.points
    });
    let (points, kept) = totals.into_inner();
    println!("{points} points given, {kept} ranges kept over kills");
    assert!(points > 20_000 && kept > 500, "{points} points, {kept} ranges kept over kills");
}

#[test]
fn mutants_are_caught() {
    for mutant in [Mutant::ChangeNotNoted, Mutant::RunNotCompared, Mutant::TrimForgotten] {
        let is_noticed = (0..400).any(|seed| {
            let run = std::panic::AssertUnwindSafe(|| {
                let mut world = SharedWorld::new(seed, Some(mutant));
                (0..400).for_each(|_| world.step());
            });
            std::panic::catch_unwind(run).is_err()
        });
        assert!(is_noticed, "{mutant:?} was not noticed");
    }
}

#[test]
fn another_run_of_the_machine_begins_empty_unless_the_cache_was_closed() {
    let sim = Sim::new(1);
    let open = |run| {
        let options = StoreOptions { flash_bytes_max: 4 << 20, ..StoreOptions::default() };
        SharedCache::open(sim.env().disk, "keys", &Budget::new(32 << 20), options, run).unwrap()
    };
    let point = [Point { ts: 5, head: None, payload: b"v" }];
    let range = TimeRange::new(0, 9);
    for (before, is_closed, after, is_kept) in
        [(1, false, 1, true), (1, false, 2, false), (2, true, 3, true), (3, false, 0, false)]
    {
        let cache = open(before);
        cache.delete(b"k", 0, TimeRange::ALL).unwrap();
        assert_eq!(cache.set(b"k", 0, range, &point).unwrap(), range);
        // A killed process leaves the written slabs.
        cache.store.flush();
        if is_closed {
            cache.close().unwrap();
        }
        drop(cache);
        let again = open(after);
        assert_eq!(again.store.has_key(b"k", 0), is_kept, "{before} {is_closed} {after}");
    }
}

#[test]
fn a_key_that_is_too_long_is_refused_and_nothing_changes() {
    let sim = Sim::new(1);
    let options = StoreOptions { flash_bytes_max: 4 << 20, ..StoreOptions::default() };
    let open = || SharedCache::open(sim.env().disk, "keys", &Budget::new(32 << 20), options, 1);
    let cache = open().unwrap();
    let (range, point) = (TimeRange::new(0, 9), [Point { ts: 5, head: None, payload: b"v" }]);
    assert_eq!(cache.set(b"k", 0, range, &point).unwrap(), range);
    let long = vec![b'x'; 1 << 20];
    let set = cache.set(&long, 0, range, &point).unwrap_err();
    let delete = cache.delete(&long, 0, range).unwrap_err();
    for error in [set, delete] {
        assert_eq!(*error.kind(), firn_model::ErrorKind::TooLarge);
        assert!(error.to_string().contains("use a shorter key"), "{error}");
    }
    assert!(!cache.store.has_key(&long, 0));
    // The changes around it have consecutive numbers in the file.
    assert_eq!(cache.set(b"after", 0, range, &point).unwrap(), range);
    cache.store.flush();
    drop(cache);
    let again = open().unwrap();
    assert!(again.store.has_key(b"k", 0) && again.store.has_key(b"after", 0));
}
