//! The manifest over a simulated disk: edits, full files, damage of one or both copies.

use firn_sim::{Faults, Operation, SimDisk, ZeroFile};

use super::*;
use crate::manifest_format::{decode_object, encode_object};

fn edit(number: u8) -> Edit {
    Edit::default().with(Room::Tree, vec![number; 5]).with(Room::Index, vec![])
}

fn state() -> Edit {
    Edit::default().with(Room::Engine, vec![7])
}

fn opened(disk: &Arc<dyn Disk>) -> (Manifest, ManifestContents) {
    Manifest::open(Arc::clone(disk)).unwrap()
}

fn flip(disk: &Arc<dyn Disk>, path: &str, at: u64) {
    let file = disk.open(path, OpenMode::Write).unwrap();
    let mut byte = [0];
    file.read_at(at, &mut byte).unwrap();
    file.write_at(at, &[byte[0] ^ 4]).unwrap();
}

#[test]
fn edits_come_back_in_order_and_a_new_file_begins_with_the_state() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(Faults::new(1)));
    let (mut manifest, found) = opened(&disk);
    assert!(found.edits.is_empty());
    manifest.commit(&edit(1), state).unwrap();
    manifest.commit(&edit(2), || unreachable!("there is room")).unwrap();
    let (mut manifest, found) = opened(&disk);
    assert_eq!(found.edits, [state(), edit(1), edit(2)]);
    assert_eq!(found.edits[1].parts(Room::Tree).collect::<Vec<_>>(), [&[1u8; 5][..]]);
    manifest.commit(&edit(3), || edit(9)).unwrap();
    assert_eq!(opened(&disk).1.edits, [edit(9), edit(3)]);
    assert_eq!(disk.list(FOLDER).unwrap(), ["00000002.a", "00000002.b"]);
}

#[test]
fn a_full_file_is_followed_by_the_next() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(Faults::new(1)));
    let (mut manifest, _) = opened(&disk);
    for _ in 0..10 {
        let large = Edit::default().with(Room::Tree, vec![1; 60_000]);
        manifest.commit(&large, state).unwrap();
    }
    assert!(manifest.file_no > 2);
    assert_eq!(opened(&disk).1.edits[0], state());
}

#[test]
fn a_state_larger_than_a_file_is_not_written_with_each_edit() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(Faults::new(1)));
    let (mut manifest, _) = opened(&disk);
    let large = || Edit::default().with(Room::Tree, vec![1; 2 * FILE_BYTES as usize]);
    for number in 0..100 {
        manifest.commit(&edit(number), large).unwrap();
    }
    assert_eq!(manifest.file_no, 1);
    assert_eq!(opened(&disk).1.edits.len(), 101);
}

#[test]
fn every_flipped_bit_in_one_copy_is_repaired_from_the_other() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(Faults::new(1)));
    let (mut manifest, _) = opened(&disk);
    (1..4).for_each(|number| manifest.commit(&edit(number), state).unwrap());
    let end = manifest.current.as_ref().unwrap().end;
    for at in 0..end {
        let copy = format!("{FOLDER}/00000001.{}", COPIES[(at % 2) as usize]);
        flip(&disk, &copy, at);
        let found = opened(&disk).1;
        assert_eq!(found.edits, [state(), edit(1), edit(2), edit(3)], "byte {at}");
        flip(&disk, &copy, at);
    }
}

#[test]
fn damage_of_an_object_is_reported_by_copy_and_offset() {
    let whole = encode_object(7, &state()).unwrap();
    let half = whole.len() / 2;
    let f = |bytes: &[u8]| {
        let object = decode_object("manifest", bytes).unwrap();
        assert_eq!((object.epoch, object.state), (7, state()));
        object.damaged_at.map(|at| at as usize)
    };
    assert_eq!(f(&whole), None);
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        assert_eq!(f(&bytes), Some(at));
    }
    assert_eq!(f(&whole[..half]), Some(half));
    assert_eq!(f(&whole[..half + 30]), Some(half + 30));
    assert_eq!(f(&[&whole[..], b"more"].concat()), Some(whole.len()));
    for bytes in [&whole[..half - 1], &[], &vec![0; whole.len()]] {
        assert!(decode_object("manifest", bytes).is_err());
    }
}

#[test]
fn both_copies_damaged_in_the_middle_is_corrupt_and_named() {
    // The record of 256 bytes begins with a zero byte.
    let long = Edit::default().with(Room::Tree, vec![3; 253]);
    assert_eq!(long.encode().len(), 256);
    for last in [edit(3), long] {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(Faults::new(1)));
        let (mut manifest, _) = opened(&disk);
        for edit in [edit(1), edit(2), last] {
            manifest.commit(&edit, state).unwrap();
        }
        for copy in COPIES {
            flip(&disk, &format!("{FOLDER}/00000001.{copy}"), HEADER_BYTES as u64 + 60);
        }
        let error = Manifest::open(Arc::clone(&disk)).map(|_| ()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains("00000001.a at byte"), "{error}");
    }
}

/// A sparse file of another program, or one with a damaged length: before, memory of its length was
/// allocated, and a start with a file of 1 TiB ended the process.
#[test]
fn a_sparse_manifest_is_refused_or_read_without_its_zeros() {
    let disk = disk();
    let (mut manifest, _) = opened(&disk);
    manifest.commit(&edit(1), state).unwrap();
    for copy in COPIES {
        let file = disk.open(&path(1, copy), OpenMode::Write).unwrap();
        file.write_at(64 << 20, &[0]).unwrap();
        assert!(read_whole(&*file, copy).unwrap().len() <= STEP_BYTES + ZEROS_KEPT);
    }
    assert_eq!(opened(&disk).1.edits, [state(), edit(1)]);
    let file = ZeroFile(1 << 40);
    let error = read_whole(&file, "a").unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
}

/// A cut file ends like a torn write. Before, a cut of both copies dropped acknowledged edits
/// without a report.
#[test]
fn a_cut_of_both_copies_is_corrupt_and_of_one_is_repaired() {
    for end in [0, HEADER_BYTES, 100, FILE_BYTES as usize - 1] {
        let disk = Arc::new(SimDisk::new(Faults::new(1)));
        let seam: Arc<dyn Disk> = Arc::<SimDisk>::clone(&disk);
        let (mut manifest, _) = opened(&seam);
        for number in 1..4 {
            manifest.commit(&edit(number), state).unwrap();
        }
        let cut = |copy| disk.damage(&path(1, copy), |bytes| bytes.truncate(end)).unwrap();
        cut("a");
        let found = opened(&seam).1;
        assert_eq!(found.edits, [state(), edit(1), edit(2), edit(3)], "{end}");
        assert!(!found.repaired.is_empty(), "{end}");
        let whole = disk.bytes(&path(1, "b")).unwrap();
        for way in 0..2 {
            match way {
                0 if end <= HEADER_BYTES => continue,
                0 => disk.damage(&path(1, "b"), |bytes| bytes[0] ^= 1).unwrap(),
                _ => cut("b"),
            }
            let error = Manifest::open(Arc::clone(&seam)).map(|_| ()).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{end}: {error}");
            assert!(error.to_string().contains("restore a backup"), "{end}: {error}");
            disk.damage(&path(1, "b"), |bytes| bytes.clone_from(&whole)).unwrap();
        }
    }
    let disk = disk();
    let (mut manifest, _) = opened(&disk);
    let large = || Edit::default().with(Room::Tree, vec![1; 2 * FILE_BYTES as usize]);
    manifest.commit(&edit(1), large).unwrap();
    assert_eq!(opened(&disk).1.repaired, [""; 0]);
}

/// One copy cannot be opened or read. The other is read and the damage reported; the next file
/// replaces both. Before, the start was refused. If an old file cannot be removed, the
/// next one counts anyway.
#[test]
fn an_unreadable_copy_is_read_from_the_other() {
    for operation in [Operation::Open, Operation::Read] {
        let faults = Faults::new(1);
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(faults.clone()));
        let (mut manifest, _) = opened(&disk);
        manifest.commit(&edit(1), state).unwrap();
        faults.fail_nth(operation, 1);
        let (mut manifest, found) = opened(&disk);
        assert_eq!(found.edits, [state(), edit(1)]);
        assert_eq!(found.repaired.len(), 1, "{:?}", found.repaired);
        // After the removals of two files that are not there.
        faults.fail_nth(Operation::Remove, 3);
        manifest.commit(&edit(2), || edit(9)).unwrap();
        faults.clear();
        let found = opened(&disk).1;
        assert_eq!((found.edits, found.repaired), (vec![edit(9), edit(2)], vec![]));
        faults.set_rate(operation, 1.0);
        let error = Manifest::open(Arc::clone(&disk)).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("restore a backup"), "{error}");
    }
}

/// Only files with names of this program are removed.
#[test]
fn foreign_files_beside_the_manifest_stay() {
    let disk = disk();
    let (mut manifest, _) = opened(&disk);
    manifest.commit(&edit(1), state).unwrap();
    let foreign = ["00000001.a.bak", "1.a", "0.txt", "00000000.c"];
    for name in foreign {
        disk.open(&format!("{FOLDER}/{name}"), OpenMode::Create).unwrap();
    }
    let (mut manifest, _) = opened(&disk);
    manifest.commit(&edit(2), state).unwrap();
    let left = disk.list(FOLDER).unwrap();
    assert!(foreign.iter().all(|name| left.contains(&(*name).to_owned())), "{left:?}");
    assert!(!left.contains(&"00000001.a".to_owned()), "{left:?}");
}

/// The first try to replace a lost file fails. Before, no other followed until the next edit.
#[test]
fn a_lost_file_is_replaced_until_that_succeeds() {
    let faults = Faults::new(1);
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(faults.clone()));
    let (mut manifest, _) = opened(&disk);
    assert!(manifest.is_in_place().unwrap());
    manifest.commit(&edit(1), state).unwrap();
    assert!(manifest.is_in_place().unwrap());
    for name in disk.list(FOLDER).unwrap() {
        disk.remove(&format!("{FOLDER}/{name}")).unwrap();
    }
    faults.fail_nth(Operation::Sync, 1);
    manifest.replace_lost(&edit(9)).unwrap_err();
    assert!(!manifest.is_in_place().unwrap());
    manifest.replace_lost(&edit(9)).unwrap();
    assert!(manifest.is_in_place().unwrap());
    assert_eq!(opened(&disk).1.edits, [edit(9)]);
}

fn disk() -> Arc<dyn Disk> {
    Arc::new(SimDisk::new(Faults::new(1)))
}
