//! Folders, pipes and sockets in place of the files of a database, and files of another length than
//! they were written with.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use firndb::{
    CancelToken, CheckReport, Db, Labels, Options, QueryOptions, QueryTime, RecoveryProgress,
    ResultOptions, inspection_env, local_env,
};
use tempfile::TempDir;

/// The special files.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Special {
    Folder,
    Pipe,
    Socket,
    /// A symbolic link to itself.
    Loop,
    /// A symbolic link to a missing file.
    Dangling,
}

const SPECIALS: [Special; 5] =
    [Special::Folder, Special::Pipe, Special::Socket, Special::Loop, Special::Dangling];
/// Those that the database removes or replaces: a folder has contents of others.
const REPLACED: [Special; 4] = [Special::Pipe, Special::Socket, Special::Loop, Special::Dangling];

/// Puts a special file in place of the file at `path`, if there is one.
fn replace(path: &Path, special: Special) {
    let _ = fs::remove_file(path);
    match special {
        // It is not empty, so nothing removes it.
        Special::Folder => fs::create_dir_all(path.join("kept")).unwrap(),
        Special::Pipe => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        Special::Socket => drop(UnixListener::bind(path).unwrap()),
        Special::Loop => symlink(path, path).unwrap(),
        Special::Dangling => symlink(path.with_extension("none"), path).unwrap(),
    }
}

fn open(folder: &Path) -> firndb::Result<Db> {
    Db::open(local_env(folder).unwrap(), Options::default())
}

/// Without background work, which copies files to the slow tier and writes its manifest again.
fn open_idle(folder: &Path) -> Db {
    let env = local_env(folder).unwrap();
    Db::open_idle(env, Options::default(), &RecoveryProgress::default()).unwrap()
}

fn create() -> (TempDir, Db) {
    let folder = tempfile::tempdir().unwrap();
    let db = open(folder.path()).unwrap();
    (folder, db)
}

fn put(db: &Db) {
    let labels = Labels::from_pairs([("__name__", "up"), ("instance", "here")]).unwrap();
    for step in 0..100 {
        db.put(&labels, db.now_ms() - step * 1_000, 1.0).unwrap();
    }
}

fn put_and_close(db: Db) {
    put(&db);
    db.close().unwrap();
}

fn check(db: &Db, repairs: bool) -> CheckReport {
    db.check(repairs, &CancelToken::new(), &mut |_| ()).unwrap()
}

/// The only file with this ending.
fn file_in(folder: &Path, ending: &str) -> PathBuf {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.into_iter().find(|path| path.to_string_lossy().ends_with(ending)).unwrap()
}

/// Before, the check ended with an error, with and without a repair.
#[test]
fn a_table_that_is_no_file_is_damaged_and_repaired() {
    for special in SPECIALS {
        let (folder, db) = create();
        put_and_close(db);
        let table = file_in(&folder.path().join("fast/tables"), ".fst");
        replace(&table, special);
        let db = open(folder.path()).unwrap();
        for repairs in [false, true] {
            let report = check(&db, repairs);
            assert_eq!(report.findings.len(), 1, "{special:?}: {report:?}");
            let finding = &report.findings[0];
            assert!(finding.loss.is_some() && finding.is_repaired == repairs, "{finding:?}");
            assert!(finding.error.to_string().contains("expected a file"), "{}", finding.error);
        }
        put_and_close(db);
        // A folder stays: its contents are none of the database.
        assert_eq!(table.exists(), special == Special::Folder, "{special:?}");
        let db = open(folder.path()).unwrap();
        assert!(check(&db, false).findings.is_empty(), "{special:?}");
    }
}

/// Before, the start was refused with the words of the system, and a check found nothing.
#[test]
fn the_position_of_a_reader_that_is_no_file_is_replaced_or_named() {
    for special in SPECIALS {
        let (folder, db) = create();
        db.log_reader("remote-write-1").unwrap();
        put_and_close(db);
        replace(&folder.path().join("fast/readers/remote-write-1"), special);
        let slow_tier = folder.path().join("slow").to_string_lossy().into_owned();
        let env = inspection_env(folder.path(), &slow_tier).unwrap();
        let db = Db::open_idle(env, Options::default(), &RecoveryProgress::default()).unwrap();
        let findings = check(&db, false).findings;
        assert_eq!(findings.len(), 1, "{special:?}: {findings:?}");
        let text = findings[0].error.to_string();
        assert!(text.contains("expected a file; move it away"), "{special:?}: {text}");
        drop(db);
        match (open(folder.path()), special) {
            (Err(error), Special::Folder) => {
                let text = error.to_string();
                let words = "readers/remote-write-1: it is a folder, expected a file; move it away";
                assert!(text.contains(words), "{text}");
            }
            (opened, _) => drop(opened.unwrap().log_reader("remote-write-1").unwrap()),
        }
    }
}

/// Opens with a result cache, and queries.
fn open_cached(folder: &Path) -> firndb::Result<Db> {
    let db = open(folder)?;
    db.enable_result_cache(ResultOptions::default())?;
    put(&db);
    let end = db.now_ms() / 15_000 * 15_000;
    let time = QueryTime::Range { start: end - 60_000, end, step_ms: 15_000 };
    db.query("sum(up)", time, &QueryOptions::default(), &db.context())?;
    Ok(db)
}

/// Before, a stop with a folder in place of the checkpoint failed, a pipe in place of the slabs
/// refused the start, and a start read all of a long file of slabs.
#[test]
fn a_result_cache_that_cannot_be_used_costs_results_only() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("fast/cache/results");
    open_cached(folder.path()).unwrap().close().unwrap();
    for special in SPECIALS {
        replace(&cache.join("checkpoint"), special);
        open_cached(folder.path()).unwrap().close().unwrap();
        assert_eq!(cache.join("checkpoint").is_dir(), special == Special::Folder);
        if special == Special::Folder {
            fs::remove_dir_all(cache.join("checkpoint")).unwrap();
        }
    }
    for special in REPLACED {
        replace(&cache.join("slabs"), special);
        open_cached(folder.path()).unwrap().close().unwrap();
        assert!(cache.join("slabs").is_file(), "{special:?}");
    }
    let slabs = || File::options().write(true).open(cache.join("slabs")).unwrap();
    slabs().set_len(1 << 40).unwrap();
    open_cached(folder.path()).unwrap().close().unwrap();
    assert!(slabs().metadata().unwrap().len() <= 2 << 30);
    replace(&cache.join("slabs"), Special::Folder);
    let error = open_cached(folder.path()).unwrap_err().to_string();
    assert!(error.contains("slabs: it is a folder, expected a file; move it away"), "{error}");
}

/// Before, the error advised a repair, which is refused because there is nothing to repair.
#[test]
fn an_index_file_that_is_no_file_is_put_back_or_forgotten() {
    for special in SPECIALS {
        let folder = tempfile::tempdir().unwrap();
        put_and_close(open_idle(folder.path()));
        replace(&file_in(&folder.path().join("fast/index"), ".seg"), special);
        for repair_index in [false, true] {
            let options = Options { repair_index, ..Options::default() };
            let error = Db::open(local_env(folder.path()).unwrap(), options).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("expected a file; move it away"), "{special:?}: {text}");
            assert!(text.to_lowercase().contains("put the file back"), "{special:?}: {text}");
            assert!(!text.contains("check --repair"), "{special:?}: {text}");
        }
        let options = Options { forget_lost_index: true, ..Options::default() };
        Db::open(local_env(folder.path()).unwrap(), options).unwrap();
        open(folder.path()).unwrap();
    }
}

/// Before, the error of a check advised to retry, and a new database started.
#[test]
fn a_slow_tiers_manifest_that_is_no_file_is_named() {
    for special in REPLACED {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("slow")).unwrap();
        let manifest = folder.path().join("slow/manifest");
        let db = open_idle(folder.path());
        put(&db);
        replace(&manifest, special);
        let report = check(&db, false);
        db.close().unwrap();
        drop(db);
        let texts: Vec<String> = report.findings.iter().map(|f| f.error.to_string()).collect();
        assert!(texts.len() == 1 && texts[0].contains("slow/manifest"), "{special:?}: {texts:?}");
        assert!(texts[0].contains("expected a file; move it away"), "{special:?}: {texts:?}");
        let db = open_idle(folder.path());
        assert_eq!(check(&db, true).findings.len(), 1, "{special:?}");
        drop(db);
        fs::remove_dir_all(folder.path().join("fast")).unwrap();
        let error = open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("slow/manifest") && error.contains("expected a file"), "{error}");
    }
}
