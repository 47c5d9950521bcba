//! The guarantees of the disk to the code under test, and its permitted failures.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use firn_env::{Disk, DiskFile, OpenMode};
use firn_model::ErrorKind;
use proptest::prelude::*;

use super::sectors::SECTOR_BYTES;
use crate::{Operation, Sim};

fn create(sim: &Sim, path: &str) -> Arc<dyn DiskFile> {
    sim.disk.open(path, OpenMode::Create).unwrap()
}

/// A file whose name and first bytes are durable.
fn durable_file(sim: &Sim, path: &str, bytes: &[u8]) -> Arc<dyn DiskFile> {
    let file = create(sim, path);
    file.write_at(0, bytes).unwrap();
    file.sync().unwrap();
    sim.disk.sync_dir("").unwrap();
    file
}

/// The outcomes over many seeds after `run` and a crash.
fn outcomes(run: impl Fn(&Sim)) -> BTreeSet<Option<Vec<u8>>> {
    let outcome = |seed| {
        let sim = Sim::new(seed);
        run(&sim);
        sim.restart();
        sim.disk.bytes("a").ok()
    };
    (0..200).map(outcome).collect()
}

#[test]
fn a_simulated_disk_keeps_the_rules_of_the_seam() {
    crate::conformance::check_disk(&Sim::new(1).disk);
    crate::conformance::check_disk(&Sim::with_memory(1).memory.unwrap());
}

#[test]
fn synced_bytes_survive_and_others_may_be_lost_or_torn() {
    let old = vec![1; 3 * SECTOR_BYTES as usize];
    let seen = outcomes(|sim| {
        let file = durable_file(sim, "a", &old);
        file.write_at(0, &vec![2; old.len()]).unwrap();
    });
    let patterns: BTreeSet<Vec<u8>> =
        seen.iter().flatten().map(|bytes| bytes.iter().copied().step_by(512).collect()).collect();
    // Each of the three sectors is old or new, in every combination, whole sectors only.
    assert_eq!(patterns.len(), 8);
    for bytes in seen.iter().flatten() {
        assert_eq!(bytes.len(), old.len());
        assert!(bytes.chunks(512).all(|sector| sector.iter().all(|&b| b == sector[0])));
    }
}

/// In memory each line that was not written back and fenced is old or new independently.
#[test]
fn lines_of_memory_survive_once_they_were_written_back_and_fenced() {
    let mut seen = BTreeSet::new();
    for seed in 0..300 {
        let sim = Sim::with_memory(seed);
        let memory = sim.memory.clone().unwrap();
        let file = memory.open("a", OpenMode::Create).unwrap();
        file.preallocate(256).unwrap();
        file.sync().unwrap();
        memory.sync_dir("").unwrap();
        file.write_at(0, &[1; 256]).unwrap();
        let lines = file.memory().unwrap();
        // The first line is fenced; the second one is only written back.
        lines.write_back(0, 64);
        lines.fence();
        lines.write_back(64, 64);
        sim.restart();
        let bytes = memory.bytes("a").unwrap();
        assert!(bytes.chunks(64).all(|line| line.iter().all(|&byte| byte == line[0])));
        assert_eq!(bytes[0], 1, "a fenced line is lost");
        seen.insert([bytes[64], bytes[128], bytes[192]]);
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
}

#[test]
fn an_unsynced_name_may_be_lost_and_a_synced_one_not() {
    let seen = outcomes(|sim| {
        let file = create(sim, "a");
        file.write_at(0, b"x").unwrap();
        file.sync().unwrap();
    });
    assert_eq!(seen, BTreeSet::from([None, Some(b"x".to_vec())]));
    let seen = outcomes(|sim| drop(durable_file(sim, "a", b"x")));
    assert_eq!(seen, BTreeSet::from([Some(b"x".to_vec())]));
}

#[test]
fn a_rename_is_never_half_done() {
    for seed in 0..200 {
        let sim = Sim::new(seed);
        durable_file(&sim, "a", b"old");
        durable_file(&sim, "b", b"new");
        sim.disk.rename("b", "a").unwrap();
        sim.restart();
        match sim.disk.bytes("a").unwrap().as_slice() {
            b"old" => assert_eq!(sim.disk.bytes("b").unwrap(), b"new"),
            b"new" => assert!(sim.disk.bytes("b").is_err()),
            other => panic!("{other:?}"),
        }
    }
}

/// Found by the property below: of two renames of one file only the second survived, and the file
/// had both its first and its last name.
#[test]
fn a_file_that_was_renamed_twice_has_one_name() {
    for seed in 0..200 {
        let sim = Sim::new(seed);
        durable_file(&sim, "a", b"x");
        sim.disk.rename("a", "b").unwrap();
        sim.disk.rename("b", "c").unwrap();
        sim.restart();
        assert_eq!(sim.disk.files().len(), 1, "seed {seed}: {:?}", sim.disk.files());
    }
}

#[test]
fn a_lost_folder_takes_its_files_with_it() {
    let mut lost = 0;
    for seed in 0..50 {
        let sim = Sim::new(seed);
        sim.disk.create_dir("x/y").unwrap();
        create(&sim, "x/y/a").sync().unwrap();
        sim.disk.sync_dir("x/y").unwrap();
        sim.restart();
        lost += u32::from(sim.disk.files().is_empty());
        sim.disk.create_dir("x/y").unwrap();
        assert_eq!(sim.disk.list("x/y").unwrap().len(), sim.disk.files().len());
    }
    assert!((5..45).contains(&lost), "{lost} of 50 lost");
}

#[test]
fn after_a_failed_sync_a_later_one_proves_nothing() {
    let seen = outcomes(|sim| {
        let file = durable_file(sim, "a", b"old");
        file.write_at(0, b"new").unwrap();
        sim.faults.fail_nth(Operation::Sync, 1);
        let error = file.sync().unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Unavailable);
        file.sync().unwrap();
    });
    assert_eq!(seen, BTreeSet::from([Some(b"old".to_vec()), Some(b"new".to_vec())]));
    let seen = outcomes(|sim| {
        let file = durable_file(sim, "a", b"old");
        file.write_at(0, b"new").unwrap();
        sim.faults.fail_nth(Operation::Sync, 1);
        file.sync().unwrap_err();
        file.write_at(0, b"new").unwrap();
        file.sync().unwrap();
    });
    assert_eq!(seen, BTreeSet::from([Some(b"new".to_vec())]));
}

#[test]
fn the_power_fails_at_the_planned_change_and_old_files_stay_dead() {
    let sim = Sim::new(1);
    let file = durable_file(&sim, "a", b"old");
    assert_eq!(sim.faults.change_count(), 4);
    sim.faults.crash_at(5);
    file.write_at(0, b"one").unwrap();
    for error in [file.write_at(0, b"two").unwrap_err(), file.sync().unwrap_err()] {
        assert_eq!(error.kind(), &ErrorKind::Closed);
        assert!(error.to_string().contains("a: simulated power loss"), "{error}");
    }
    assert!(sim.faults.is_off());
    assert_eq!(sim.disk.list("").unwrap_err().kind(), &ErrorKind::Closed);
    sim.restart();
    assert_eq!(file.read_at(0, &mut [0; 3]).unwrap_err().kind(), &ErrorKind::Closed);
    let file = sim.disk.open("a", OpenMode::Read).unwrap();
    file.read_at(0, &mut [0; 3]).unwrap();
    assert_eq!(
        file.read_at(1, &mut [0; 3]).unwrap_err().kind().clone(),
        ErrorKind::Corrupt { file: "a".to_owned(), offset: 1 }
    );
}

#[test]
fn a_full_disk_refuses_growth_and_changes_nothing() {
    let sim = Sim::new(1);
    sim.disk.set_capacity_bytes(100);
    let file = create(&sim, "a");
    file.preallocate(60).unwrap();
    assert_eq!(sim.disk.free_bytes().unwrap(), 40);
    assert_eq!(file.preallocate(101).unwrap_err().kind(), &ErrorKind::Unavailable);
    assert_eq!(file.write_at(60, &[1; 41]).unwrap_err().kind(), &ErrorKind::Unavailable);
    file.write_at(0, &[1; 60]).unwrap();
    assert_eq!(file.len().unwrap(), 60);
    let other = create(&sim, "b");
    other.write_at(0, &[1; 41]).unwrap_err();
    sim.disk.remove("a").unwrap();
    other.write_at(0, &[1; 41]).unwrap();
    file.read_at(0, &mut [0; 60]).unwrap();
}

#[test]
fn a_failed_write_may_be_torn_and_failures_hit_the_named_operations() {
    let sim = Sim::new(7);
    let file = durable_file(&sim, "a", &[0; 8 * 512]);
    sim.faults.fail_nth(Operation::Write, 2);
    sim.faults.fail_at(sim.faults.change_count() + 3);
    file.write_at(0, &[1]).unwrap();
    file.write_at(0, &[9; 8 * 512]).unwrap_err();
    let bytes = sim.disk.bytes("a").unwrap();
    let written = bytes.chunks(512).filter(|sector| sector[1] == 9).count();
    assert!((1..8).contains(&written), "{written} of 8 sectors");
    file.sync().unwrap();
    file.sync().unwrap_err();
    sim.faults.set_rate(Operation::Read, 1.0);
    file.read_at(0, &mut [0]).unwrap_err();
    sim.faults.clear();
    file.read_at(0, &mut [0]).unwrap();
}

#[test]
fn one_process_holds_the_lock_until_it_ends() {
    let sim = Sim::new(1);
    let lock = sim.disk.lock().unwrap();
    assert!(matches!(sim.disk.lock().unwrap_err().kind(), ErrorKind::Busy { .. }));
    drop(lock);
    let old = sim.disk.lock().unwrap();
    sim.restart();
    let _new = sim.disk.lock().unwrap();
    drop(old);
    sim.disk.lock().unwrap_err();
}

#[test]
fn damage_is_durable_and_seen() {
    let sim = Sim::new(1);
    durable_file(&sim, "a", b"abc");
    sim.disk.damage("a", |bytes| bytes[1] ^= 1).unwrap();
    sim.restart();
    assert_eq!(sim.disk.bytes("a").unwrap(), b"acc");
    let file = sim.disk.open("a", OpenMode::Read).unwrap();
    let stamp = file.stamp().unwrap();
    sim.disk.rot("a", |bytes| bytes[2] ^= 1).unwrap();
    assert_eq!(sim.disk.bytes("a").unwrap(), b"acb");
    assert_eq!(file.stamp().unwrap(), stamp, "the medium changes no stamp");
    sim.disk.damage("a", |bytes| bytes[2] ^= 1).unwrap();
    assert_ne!(file.stamp().unwrap(), stamp, "a program does");
    sim.disk.damage("a", |bytes| bytes.truncate(1)).unwrap();
    assert_eq!(sim.disk.bytes("a").unwrap(), b"a");
}

/// One step of a random program over a few files of a few sectors.
#[derive(Clone, Debug)]
enum Step {
    Write { file: usize, offset: u64, len: usize },
    Preallocate { file: usize, len: u64 },
    Sync { file: usize },
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let file = 0..3usize;
    let step = prop_oneof![
        6 => (file.clone(), 0..2_000u64, 1..1_500usize)
            .prop_map(|(file, offset, len)| Step::Write { file, offset, len }),
        1 => (file.clone(), 0..4_000u64).prop_map(|(file, len)| Step::Preallocate { file, len }),
        2 => file.prop_map(|file| Step::Sync { file }),
        1 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..60)
}

/// A byte-wise model: the values that each byte may have after a crash.
#[derive(Default)]
struct Model {
    current: Vec<u8>,
    durable_len: usize,
    /// Values since the last sync; a byte without an entry is certain.
    possible: BTreeMap<usize, BTreeSet<u8>>,
}

impl Model {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.grow(offset + bytes.len());
        for (at, &byte) in (offset..).zip(bytes) {
            let old = self.current[at];
            self.possible.entry(at).or_insert_with(|| BTreeSet::from([old])).insert(byte);
            self.current[at] = byte;
        }
    }

    fn grow(&mut self, len: usize) {
        self.current.resize(self.current.len().max(len), 0);
    }

    fn sync(&mut self) {
        self.durable_len = self.current.len();
        self.possible.clear();
    }

    fn check_crash(&mut self, found: Vec<u8>) {
        assert!(self.durable_len <= found.len() && found.len() <= self.current.len());
        for (at, byte) in found.iter().enumerate() {
            match self.possible.get(&at) {
                Some(possible) => assert!(possible.contains(byte), "byte {at} is {byte}"),
                None => assert_eq!(*byte, self.current[at], "synced byte {at}"),
            }
        }
        self.current = found;
        self.sync();
    }
}

const NAME_COUNT: usize = 4;

#[derive(Clone, Debug)]
enum NameStep {
    Create { name: usize },
    Rename { from: usize, to: usize },
    Remove { name: usize },
    SyncDir,
    Crash,
}

fn name_steps() -> impl Strategy<Value = Vec<NameStep>> {
    let name = 0..NAME_COUNT;
    let step = prop_oneof![
        3 => name.clone().prop_map(|name| NameStep::Create { name }),
        3 => (name.clone(), name.clone()).prop_map(|(from, to)| NameStep::Rename { from, to }),
        1 => name.prop_map(|name| NameStep::Remove { name }),
        1 => Just(NameStep::SyncDir),
        1 => Just(NameStep::Crash),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    /// After every crash each byte has its synced value or one that was written since.
    #[test]
    fn synced_data_survives_every_crash(seed: u64, steps in steps()) {
        let sim = Sim::new(seed);
        let names = ["a", "b", "c"];
        let open = |mode| names.map(|name| sim.disk.open(name, mode).unwrap());
        let mut files = open(OpenMode::Create);
        sim.disk.sync_dir("").unwrap();
        let mut models = [Model::default(), Model::default(), Model::default()];
        for (step_idx, step) in steps.iter().enumerate() {
            match *step {
                Step::Write { file, offset, len } => {
                    let bytes = vec![step_idx as u8 + 1; len];
                    files[file].write_at(offset, &bytes).unwrap();
                    models[file].write(offset as usize, &bytes);
                }
                Step::Preallocate { file, len } => {
                    files[file].preallocate(len).unwrap();
                    models[file].grow(len as usize);
                }
                Step::Sync { file } => {
                    files[file].sync().unwrap();
                    models[file].sync();
                }
                Step::Crash => {
                    sim.restart();
                    files = open(OpenMode::Write);
                    for (name, model) in names.iter().zip(&mut models) {
                        model.check_crash(sim.disk.bytes(name).unwrap());
                    }
                }
            }
            for (file, model) in files.iter().zip(&models) {
                let mut found = vec![0; model.current.len()];
                file.read_at(0, &mut found).unwrap();
                prop_assert_eq!(&found, &model.current);
                prop_assert_eq!(file.len().unwrap(), found.len() as u64);
            }
        }
    }

    /// After every crash a name has the meaning of its folder's last sync or a later one; a renamed
    /// file has exactly one of its names.
    #[test]
    fn names_survive_once_their_folder_was_synced(seed: u64, steps in name_steps()) {
        let sim = Sim::new(seed);
        // The meaning of each name for readers, and all its possible meanings after a crash.
        let mut current: BTreeMap<usize, u8> = BTreeMap::new();
        let mut possible: BTreeMap<usize, BTreeSet<Option<u8>>> = BTreeMap::new();
        let path = |name: usize| format!("n{name}");
        for (content, step) in (1u8..).zip(&steps) {
            match *step {
                NameStep::Create { name } if !current.contains_key(&name) => {
                    let file = create(&sim, &path(name));
                    file.write_at(0, &[content]).unwrap();
                    file.sync().unwrap();
                    possible.entry(name).or_insert_with(|| [None].into()).insert(Some(content));
                    current.insert(name, content);
                }
                NameStep::Rename { from, to } if from != to && current.contains_key(&from) => {
                    sim.disk.rename(&path(from), &path(to)).unwrap();
                    let old = current.get(&to).copied();
                    let moved = current.remove(&from).unwrap();
                    possible.entry(from).or_insert_with(|| [Some(moved)].into()).insert(None);
                    possible.entry(to).or_insert_with(|| [old].into()).insert(Some(moved));
                    current.insert(to, moved);
                }
                NameStep::Remove { name } if current.contains_key(&name) => {
                    sim.disk.remove(&path(name)).unwrap();
                    let old = current.remove(&name);
                    possible.entry(name).or_insert_with(|| [old].into()).insert(None);
                }
                NameStep::SyncDir => {
                    sim.disk.sync_dir("").unwrap();
                    possible.clear();
                }
                NameStep::Crash => {
                    sim.restart();
                    let found: BTreeMap<usize, u8> = (0..NAME_COUNT)
                        .filter_map(|name| Some((name, sim.disk.bytes(&path(name)).ok()?[0])))
                        .collect();
                    for name in 0..NAME_COUNT {
                        let meaning = found.get(&name).copied();
                        match possible.get(&name) {
                            Some(possible) => prop_assert!(possible.contains(&meaning)),
                            None => prop_assert_eq!(meaning, current.get(&name).copied()),
                        }
                    }
                    let distinct: BTreeSet<u8> = found.values().copied().collect();
                    prop_assert_eq!(distinct.len(), found.len(), "one file under two names");
                    current = found;
                    possible.clear();
                }
                _ => {}
            }
            let listed: Vec<String> = current.keys().map(|&name| path(name)).collect();
            prop_assert_eq!(sim.disk.list("").unwrap(), listed);
        }
    }

    /// The same seed and the same calls produce the same bytes.
    #[test]
    fn the_same_seed_gives_the_same_world(seed: u64, len in 1..5_000usize) {
        let run = || {
            let sim = Sim::new(seed);
            let file = create(&sim, "a");
            sim.disk.sync_dir("").unwrap();
            file.write_at(100, &vec![1; len]).unwrap();
            sim.restart();
            sim.disk.bytes("a").unwrap()
        };
        prop_assert_eq!(run(), run());
    }
}
