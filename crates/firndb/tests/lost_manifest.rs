//! Folders of the file system whose manifest is missing or unreadable.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use firndb::{Db, Labels, Options, RecoveryProgress, inspection_env, local_env, restore};

fn write(folder: &Path) {
    let db = Db::open(local_env(folder).unwrap(), Options::default()).unwrap();
    let labels = Labels::from_pairs([("__name__", "up"), ("instance", "here")]).unwrap();
    db.put(&labels, db.now_ms(), 1.0).unwrap();
    db.flush().unwrap();
}

fn inspect(folder: &Path) -> firndb::Result<Db> {
    let slow_tier = folder.join("slow").to_string_lossy().into_owned();
    let env = inspection_env(folder, &slow_tier)?;
    Db::open_idle(env, Options::default(), &RecoveryProgress::default())
}

/// The files of a folder, with their lengths.
fn files(folder: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let bytes = fs::metadata(&path).unwrap().len();
                    // The file of the lock has the number of a process.
                    found.insert(path.to_string_lossy().into_owned(), bytes);
                }
            }
        }
    }
    found.retain(|path, _| !path.ends_with("LOCK"));
    found
}

/// A start, a restore, an inspection and a repair refuse the folder and change nothing. The
/// manifest can be put back.
#[test]
fn a_folder_without_its_manifest_is_refused_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let (manifest, aside) = (folder.path().join("fast/manifest"), folder.path().join("aside"));
    fs::rename(&manifest, &aside).unwrap();
    let before = files(folder.path());
    assert!(before.keys().any(|path| path.ends_with(".fst")), "{before:?}");
    let env = || local_env(folder.path()).unwrap();
    let repairs = Options { repair_index: true, ..Options::default() };
    for error in [
        inspect(folder.path()).map(drop).unwrap_err(),
        Db::open(env(), Options::default()).map(drop).unwrap_err(),
        Db::open(env(), repairs).map(drop).unwrap_err(),
        restore(&env()).map(drop).unwrap_err(),
    ] {
        assert!(error.to_string().contains("the manifest is missing"), "{error}");
        assert!(error.to_string().contains("1 tables, 1 index files"), "{error}");
    }
    assert_eq!(files(folder.path()), before);
    fs::rename(&aside, &manifest).unwrap();
    Db::open(env(), Options::default()).unwrap();
}

/// One copy is a folder, a socket, a link to itself or too large. The other is read and the damage
/// reported, and the next start finds two copies again. Before, each of them refused the start.
#[test]
fn an_unreadable_copy_of_the_manifest_is_read_from_the_other() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let manifest = folder.path().join("fast/manifest");
    for (way, copy) in [(0, "a"), (1, "b"), (2, "a"), (3, "b"), (3, "a"), (0, "b")] {
        let names = fs::read_dir(&manifest).unwrap();
        let paths: Vec<_> = names.map(|entry| entry.unwrap().path()).collect();
        let newest = paths.iter().filter(|path| path.extension().unwrap() == copy).max();
        let newest = newest.unwrap();
        fs::remove_file(newest).unwrap();
        match way {
            0 => fs::create_dir(newest).unwrap(),
            1 => drop(UnixListener::bind(newest).unwrap()),
            2 => symlink(newest, newest).unwrap(),
            _ => File::create(newest).unwrap().set_len((1 << 30) + 1).unwrap(),
        }
        inspect(folder.path()).unwrap();
        let opened = || Db::open(local_env(folder.path()).unwrap(), Options::default()).unwrap();
        let recovery = opened().stats().recovery;
        assert_eq!(recovery.damage.len(), 1, "way {way}: {recovery:?}");
        let recovery = opened().stats().recovery;
        assert_eq!(recovery.damage, [], "way {way}");
    }
}
