//! Index files that are damaged or missing when the database opens. A copy on the slow tier
//! replaces them. Without a copy the database names the file and refuses to open; on request it
//! opens without the series of that file, and loses nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use firn_engine::{Engine, EngineOptions, Lane, LogOptions, Loss, RecoveryProgress, Step};
use firn_env::Env;
use firn_model::{CancelToken, ErrorKind, Labels, Result, RowBatch, SeriesRef, TimeRange};
use firn_sim::{ObservedSamples, Sim, SimDisk};

fn open(sim: &Sim, forget_lost_index: bool) -> Result<Arc<Engine>> {
    open_with(sim, forget_lost_index, false)
}

fn open_with(sim: &Sim, forget_lost_index: bool, repair_index: bool) -> Result<Arc<Engine>> {
    let options = EngineOptions {
        shard_count: 4,
        forget_lost_index,
        repair_index,
        new_series_bytes_max: 256 << 10,
        tree: firn_tree::TreeOptions { block_bytes: 512, ..Default::default() },
        log: LogOptions { segment_bytes: 64 << 10, ..Default::default() },
        ..EngineOptions::default()
    };
    Engine::open(sim.env(), options, &RecoveryProgress::default())
}

/// Members of one group; every third is a lone series.
fn labels(idx: usize) -> Labels {
    let name = format!("m{idx}");
    let grouped = [("__name__", name.as_str()), ("job", "a"), ("instance", "1")];
    let alone = [("__name__", name.as_str()), ("only", "here")];
    let pairs = if idx.is_multiple_of(3) { &alone[..] } else { &grouped[..] };
    Labels::from_pairs(pairs.iter().copied()).expect("valid labels")
}

/// Writes a sample of each series at `ts`. Returns their references.
fn write(engine: &Engine, series: std::ops::Range<usize>, ts: i64) -> Vec<SeriesRef> {
    let labels: Vec<Labels> = series.map(labels).collect();
    let refs = engine.resolve(&labels).into_iter().map(|found| found.expect("resolves"));
    let refs: Vec<SeriesRef> = refs.collect();
    let mut batch = RowBatch::default();
    refs.iter().for_each(|&series| batch.push(series, ts, ts as f64));
    engine.write(&mut batch).expect("a write");
    refs
}

/// The number of samples of each series.
fn counts(engine: &Engine) -> BTreeMap<Labels, usize> {
    let seen = ObservedSamples::read(&engine.snapshot(), &[], TimeRange::ALL).expect("a read");
    seen.series.into_iter().map(|(labels, samples)| (labels, samples.len())).collect()
}

fn index_files(sim: &Sim) -> Vec<String> {
    let names = sim.env().disk.list("index").expect("a list");
    let mut files: Vec<String> = names.iter().map(|name| format!("index/{name}")).collect();
    files.sort();
    files
}

/// A database with two index files, a group with members in both, and rows of both in the log.
fn filled(sim: &Sim) -> Arc<Engine> {
    let engine = open(sim, false).expect("opens");
    write(&engine, 0..12, 1_000);
    engine.flush().expect("a flush");
    write(&engine, 0..24, 2_000);
    engine.flush().expect("a flush");
    write(&engine, 0..24, 3_000);
    engine
}

/// A new machine restores, or a replica opens, and the index files on the slow tier leave less than
/// 64 MiB on its disk. Nothing is downloaded, the error has both figures, and the writer is not
/// fenced. With a larger disk they fit.
#[test]
fn an_index_that_does_not_fit_on_the_disk_is_not_downloaded() {
    let sim = Sim::new(39);
    let engine = filled(&sim);
    engine.flush().expect("a flush");
    sim.clock.advance(Duration::from_secs(6 * 3_600));
    while engine.step(Lane::Tree).expect("a step").is_some() {}
    let bytes_of = |file: &String| sim.disk.bytes(file).expect("a file").len() as u64;
    let index_bytes: u64 = index_files(&sim).iter().map(bytes_of).sum();
    let manifest = sim.bucket.bytes("manifest").expect("a manifest");
    for is_replica in [true, false] {
        let disk = Arc::new(SimDisk::new(sim.faults.clone()));
        let elsewhere = Env { disk: Arc::clone(&disk) as Arc<_>, ..sim.env() };
        let begin = || match is_replica {
            false => Engine::restore(&elsewhere).map(|report| {
                assert_eq!(report.expect("an empty folder").bytes, index_bytes);
            }),
            true => {
                let options = EngineOptions { read_only: true, ..EngineOptions::default() };
                let progress = RecoveryProgress::default();
                Engine::open(elsewhere.clone(), options, &progress).map(|_| ())
            }
        };
        // The disk also has the files of an empty folder.
        disk.set_capacity_bytes(index_bytes + (64 << 20) - 1);
        let error = begin().expect_err("no room");
        assert_eq!(error.kind(), &ErrorKind::Unavailable, "{error}");
        let text = error.to_string();
        let free_bytes = elsewhere.disk.free_bytes().expect("known");
        for words in [format!("have {index_bytes} bytes"), format!("{free_bytes} bytes free")] {
            assert!(text.contains(&words), "{text}");
        }
        assert!(!disk.files().iter().any(|file| file.starts_with("index/")), "{:?}", disk.files());
        assert_eq!(sim.bucket.bytes("manifest").as_ref(), Some(&manifest), "it was claimed");
        disk.set_capacity_bytes(index_bytes + (65 << 20));
        begin().expect("room");
    }
}

/// All index files are missing, or the last byte of each is damaged, when the database opens; the
/// slow tier has a copy of each. The files are restored, no sample is lost, no damage is reported,
/// and new writes are accepted.
#[test]
fn a_lost_index_file_is_restored_from_the_slow_tier() {
    for damage in [0, 1] {
        let sim = Sim::new(31);
        let engine = filled(&sim);
        engine.flush().expect("a flush");
        for _ in 0..3 {
            sim.clock.advance(Duration::from_secs(6 * 3_600));
            while engine.step(Lane::Tree).expect("a step").is_some() {}
        }
        write(&engine, 0..24, 4_000);
        let want = counts(&engine);
        drop(engine);
        let files = index_files(&sim);
        for file in &files {
            match damage {
                0 => sim.env().disk.remove(file).expect("removed"),
                _ => sim
                    .disk
                    .damage(file, |bytes| {
                        let end = bytes.len() - 1;
                        bytes[end] ^= 1;
                    })
                    .expect("damaged"),
            }
        }
        let engine = open(&sim, false).expect("opens with the copies on the slow tier");
        assert_eq!(index_files(&sim), files);
        assert_eq!(counts(&engine), want);
        assert!(engine.stats().recovery.damage.is_empty(), "nothing is lost");
        write(&engine, 0..24, 5_000);
        assert!(
            counts(&engine).values().zip(want.values()).all(|(now, before)| *now == before + 1)
        );
    }
}

/// Bytes are appended to the object of an index file. Before, a check did not see them, although
/// the object is then no copy for a lost file.
#[test]
fn bytes_behind_the_end_of_an_index_object_are_found_and_removed() {
    let sim = Sim::new(34);
    let engine = filled(&sim);
    engine.flush().expect("a flush");
    sim.clock.advance(Duration::from_secs(6 * 3_600));
    while engine.step(Lane::Tree).expect("a step").is_some() {}
    let key = sim.bucket.keys().into_iter().find(|key| key.starts_with("index/")).expect("one");
    let whole = sim.bucket.bytes(&key).expect("an object");
    sim.bucket.damage(&key, |bytes| bytes.push(0)).expect("damaged");
    let check = |repairs| engine.check(repairs, &CancelToken::new(), &mut |_| ()).expect("a check");
    for repairs in [false, true] {
        let report = check(repairs);
        assert_eq!(report.findings.len(), 1, "{report:?}");
        let text = report.findings[0].error.to_string();
        assert!(text.contains(&key) && text.contains("the manifest expects"), "{text}");
        assert_eq!(report.findings[0].is_repaired, repairs);
    }
    assert!(check(false).findings.is_empty());
    assert_eq!(sim.bucket.bytes(&key).expect("an object"), whole);
}

/// The index file of the first or of the last members is missing when the database opens, and no
/// copy exists; all other files are intact. The database names the file and refuses to open. With
/// `forget_lost_index` it opens, all other series have all samples, and no new series receives a
/// reference of a lost one.
#[test]
fn a_lost_index_file_is_named_and_forgotten_only_on_request() {
    for (lost, is_lost) in [(0, 0..12), (1, 12..24)] {
        let sim = Sim::new(32);
        let engine = filled(&sim);
        let before = engine.resolve(&(0..24).map(labels).collect::<Vec<_>>());
        let before: Vec<SeriesRef> =
            before.into_iter().map(|found| found.expect("known")).collect();
        drop(engine);
        let file = index_files(&sim)[lost].clone();
        sim.env().disk.remove(&file).expect("removed");
        for _ in 0..2 {
            let error = open(&sim, false).expect_err("a file is missing");
            assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(&file) && text.contains("--forget-lost-index"), "{text}");
            assert!(text.contains("Put the file back") && !text.contains("--repair"), "{text}");
        }
        let engine = open(&sim, true).expect("opens without it");
        let damage = &engine.stats().recovery.damage;
        assert!(
            damage.len() == 1 && damage[0].what.contains("12 series are forgotten"),
            "{damage:?}"
        );
        let is_left = |idx: &usize| !is_lost.contains(idx);
        let want: BTreeMap<Labels, usize> = (0..24)
            .filter(is_left)
            .map(|idx| (labels(idx), if idx < 12 { 3 } else { 2 }))
            .collect();
        assert_eq!(counts(&engine), want, "all others have all their samples");
        // From here on the database is normal: lost series are new series, and a restart needs no
        // option.
        let again = write(&engine, 0..30, 4_000);
        for (idx, (now, old)) in again.iter().zip(&before).enumerate() {
            assert_eq!(now == old, is_left(&idx), "m{idx}: {old:?}, then {now:?}");
            assert!(is_left(&idx) || !before.contains(now), "m{idx} has an old reference: {now:?}");
        }
        assert!(
            again[24..].iter().all(|series| before.iter().all(|old| old.group != series.group))
        );
        let want = counts(&engine);
        assert_eq!(want.len(), 30);
        assert_eq!(want[&labels(is_lost.start)], 1);
        engine.flush().expect("a flush");
        assert_eq!(counts(&engine), want);
        sim.crash();
        drop(engine);
        sim.restart();
        let engine = open(&sim, false).expect("opens");
        assert_eq!(counts(&engine), want);
        assert!(engine.stats().recovery.damage.is_empty());
        assert_eq!(write(&engine, 0..30, 5_000), again);
    }
}

/// One byte of an index file is damaged, at its end or in a block that replay of the log may need,
/// or the file is cut in half; no copy exists. The database opens, or it names the file and
/// refuses. With `forget_lost_index` it keeps the damaged file under another name.
#[test]
fn a_damaged_index_file_is_kept_under_another_name() {
    let sim = Sim::new(33);
    drop(filled(&sim));
    let file = index_files(&sim)[0].clone();
    let whole = sim.disk.bytes(&file).expect("a file");
    let mut refused = 0;
    for at in (0..whole.len()).step_by(7) {
        sim.disk.damage(&file, |bytes| bytes[at] ^= 0x10).expect("damaged");
        match open(&sim, false) {
            Ok(engine) => drop(engine),
            Err(e) => {
                assert!(
                    matches!(e.kind(), ErrorKind::Corrupt { .. }) && e.to_string().contains(&file),
                    "{e}"
                );
                refused += 1;
            }
        }
        sim.disk.damage(&file, |bytes| bytes[at] ^= 0x10).expect("mended");
    }
    assert!(refused > 0);
    let damaged = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() / 2);
    sim.disk.damage(&file, damaged).expect("damaged");
    let engine = open(&sim, true).expect("opens without it");
    assert_eq!(counts(&engine).len(), 12);
    let kept_name = file.replace(".seg", ".lost");
    assert_eq!(sim.disk.bytes(&kept_name).expect("the damaged file"), whole[..whole.len() / 2]);
}

/// The state of six thousand series whose texts fill several blocks of one index file.
#[derive(Clone, Copy, PartialEq)]
enum IndexStage {
    /// The index file contains the series; the log contains their definitions and samples.
    Sealed,
    /// A table contains a sample of each, and the log contains another sample of some.
    Flushed,
    /// As `Flushed`, and the slow tier contains the index file.
    Published,
}

/// As [`fill_large`]; closes the database. Returns the number of samples of each series.
fn filled_large(sim: &Sim, stage: IndexStage) -> BTreeMap<Labels, usize> {
    counts(&fill_large(sim, stage).0)
}

/// Fills a database up to `stage`. Returns it with the label sets of its series.
fn fill_large(sim: &Sim, stage: IndexStage) -> (Arc<Engine>, Vec<Labels>) {
    let engine = open(sim, false).expect("opens");
    let text = |n: u64| format!("{:016x}", (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let labels: Vec<Labels> = (0..6_000)
        .map(|n| {
            let trace = [n, n << 20, n << 30, n << 40].map(text).concat();
            Labels::from_pairs([("__name__", "m"), ("trace", &trace)]).expect("valid labels")
        })
        .collect();
    let write = |refs: &[SeriesRef], ts: i64| {
        let mut batch = RowBatch::default();
        refs.iter().for_each(|&series| batch.push(series, ts, ts as f64));
        engine.write(&mut batch).expect("a write");
    };
    let mut refs = Vec::new();
    for labels in labels.chunks(500) {
        let found = engine.resolve(labels).into_iter().map(|found| found.expect("resolves"));
        let found: Vec<SeriesRef> = found.collect();
        write(&found, 1_000);
        refs.extend(found);
    }
    while stage == IndexStage::Sealed
        && engine.step(Lane::Head).expect("a step") != Some(Step::Seal)
    {}
    if stage != IndexStage::Sealed {
        engine.flush().expect("a flush");
    }
    if stage == IndexStage::Published {
        sim.clock.advance(Duration::from_secs(6 * 3_600));
        while engine.step(Lane::Tree).expect("a step").is_some() {}
    }
    refs.iter().step_by(7).for_each(|&series| write(&[series], 2_000));
    (engine, labels)
}

/// In the folder of a machine that was replaced, a block of the index file is damaged, and opening
/// needs that block. A repair is refused and leaves the file unchanged. The object of the same name
/// that the other server has uploaded is not used as a copy.
#[test]
fn a_replaced_machines_index_file_is_not_rewritten() {
    let sim = Sim::new(35);
    drop(filled_large(&sim, IndexStage::Sealed));
    let engine = open(&sim, false).expect("opens");
    while engine.step(Lane::Tree).expect("a step").is_some() {}
    drop(engine);
    let elsewhere = Env { disk: Arc::new(SimDisk::new(sim.faults.clone())), ..sim.env() };
    Engine::restore(&elsewhere).expect("restores");
    let files = index_files(&sim);
    let whole = sim.disk.bytes(&files[0]).expect("a file");
    let mut refused = 0;
    for at in (999..whole.len() - 3_000).step_by(64 << 10) {
        let flip = |bytes: &mut Vec<u8>| bytes[at] ^= 4;
        sim.disk.damage(&files[0], flip).expect("damaged");
        if let Err(error) = open(&sim, false) {
            assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
            let error = open_with(&sim, false, true).expect_err("another server's");
            assert_eq!(error.kind(), &ErrorKind::Conflict, "{error}");
            assert_eq!(index_files(&sim), files);
            refused += 1;
        }
        sim.disk.damage(&files[0], flip).expect("mended");
        assert!(sim.disk.bytes(&files[0]).expect("a file") == whole, "it was changed");
    }
    assert!(refused > 0, "opening needs no block");
}

/// A block of the index file is damaged, and opening does not need that block. A copy is refused
/// with the name of the file, and contains no file of the index. Before, the copy was made, with
/// the damage.
#[test]
fn a_copy_of_a_damaged_index_is_refused() {
    let sim = Sim::new(37);
    drop(filled_large(&sim, IndexStage::Sealed));
    let file = index_files(&sim)[0].clone();
    let len = sim.disk.bytes(&file).expect("a file").len();
    let mut refused = 0;
    for at in (999..len - 3_000).step_by(64 << 10) {
        let flip = |bytes: &mut Vec<u8>| bytes[at] ^= 4;
        sim.disk.damage(&file, flip).expect("damaged");
        if let Ok(engine) = open(&sim, false) {
            let other = Sim::new(38);
            let error = engine.copy_to(&other.env(), true).expect_err("a damaged index");
            assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
            assert!(error.to_string().contains(&*file), "{error}");
            assert!(!other.disk.files().iter().any(|path| path.starts_with("index/")));
            refused += 1;
        }
        sim.disk.damage(&file, flip).expect("mended");
    }
    assert!(refused > 0, "opening needs each block");
    let engine = open(&sim, false).expect("opens");
    engine.copy_to(&Sim::new(39).env(), true).expect("a copy");
}

/// One block of an index file is damaged, and the log still contains the definitions of its series.
/// The file is repaired while the database runs, and the series that it lost are written again, as
/// new series. After a power failure each label set is defined once, and all samples are there.
#[test]
fn series_lost_by_a_running_repair_are_defined_once() {
    let mut lost_in_all = 0;
    for block in 0.. {
        let sim = Sim::new(36);
        let (engine, labels) = fill_large(&sim, IndexStage::Sealed);
        drop(engine);
        sim.restart();
        let file = index_files(&sim)[0].clone();
        let at = 999 + block * (64 << 10);
        if at >= sim.disk.bytes(&file).expect("a file").len() - 3_000 {
            break;
        }
        sim.disk.damage(&file, |bytes| bytes[at] ^= 4).expect("damaged");
        // Replay of the log does not need every block.
        let Ok(engine) = open(&sim, false) else { continue };
        let report = engine.check(true, &CancelToken::new(), &mut |_| ()).expect("a check");
        assert!(report.findings.iter().all(|finding| finding.is_repaired), "{report:?}");
        let lost = report.findings.iter().find_map(|finding| match &finding.loss {
            Some(Loss::Series(lost)) => Some(lost.count as usize),
            _ => None,
        });
        for labels in labels.chunks(500) {
            let mut batch = RowBatch::default();
            let refs = engine.resolve(labels).into_iter().map(|found| found.expect("resolves"));
            refs.for_each(|series| batch.push(series, 3_000, 3.0));
            engine.write(&mut batch).expect("a write");
        }
        let want = counts(&engine);
        assert_eq!(want.len(), labels.len());
        assert_eq!(want.values().filter(|&&count| count == 1).count(), lost.unwrap_or(0));
        lost_in_all += lost.unwrap_or(0);
        sim.crash();
        drop(engine);
        sim.restart();
        let engine = open(&sim, false).expect("opens");
        assert_eq!(counts(&engine), want, "block {block}");
    }
    assert!(lost_in_all > 0, "nothing was lost");
}

/// One block of a large index file is damaged, each block in turn. A repair restores the block from
/// the slow tier. Without a copy there it loses the series in the block and reports their number.
/// All other series have all samples, also after a power failure.
#[test]
fn a_broken_block_of_an_index_file_costs_its_series_and_nothing_else() {
    const BLOCK: usize = 64 << 10;
    for stage in [IndexStage::Sealed, IndexStage::Flushed, IndexStage::Published] {
        let sim = Sim::new(34);
        let before = filled_large(&sim, stage);
        let file = index_files(&sim)[0].clone();
        let whole = sim.disk.bytes(&file).expect("a file");
        assert!(whole.len() > 3 * BLOCK, "{}", whole.len());
        let (mut repaired_at_open, mut lost_in_all) = (0, 0);
        // The footer follows the blocks.
        for at in (999..whole.len() - 3_000).step_by(BLOCK) {
            let sim = Sim::new(34);
            assert_eq!(filled_large(&sim, stage), before);
            sim.restart();
            sim.disk.damage(&file, |bytes| bytes[at] ^= 4).expect("damaged");
            let engine = match open(&sim, false) {
                // The next start would restore from the log the series that a repair loses.
                Ok(_) if stage == IndexStage::Sealed => continue,
                Ok(engine) => engine,
                Err(e) => {
                    assert!(
                        stage == IndexStage::Sealed && e.to_string().contains("--repair"),
                        "{e}"
                    );
                    repaired_at_open += 1;
                    open_with(&sim, false, true).expect("opens with the remaining series")
                }
            };
            let check = |repairs| engine.check(repairs, &CancelToken::new(), &mut |_| ());
            let report = check(true).expect("a check");
            assert!(report.findings.iter().all(|finding| finding.is_repaired), "{report:?}");
            let lost = report.findings.iter().find_map(|finding| match &finding.loss {
                Some(Loss::Series(lost)) => Some(lost.count as usize),
                _ => None,
            });
            let lost = lost.unwrap_or(0);
            assert!(stage != IndexStage::Published || lost == 0, "{report:?}");
            lost_in_all += lost;
            let left = counts(&engine);
            // Replay of the log restores the series that the log defines.
            let lost = if stage == IndexStage::Sealed { 0 } else { lost };
            assert_eq!(left.len() + lost, before.len(), "byte {at}: {report:?}");
            assert!(left.iter().all(|(labels, count)| before[labels] == *count));
            if repaired_at_open == 0 {
                assert!(check(false).expect("a check").findings.is_empty());
            }
            sim.crash();
            drop(engine);
            sim.restart();
            let engine = open(&sim, false).expect("opens");
            assert_eq!(counts(&engine), left);
            let report = engine.check(false, &CancelToken::new(), &mut |_| ()).expect("a check");
            assert!(report.findings.is_empty(), "{report:?}");
        }
        match stage {
            IndexStage::Sealed => {
                assert!(repaired_at_open > 0, "replay of the log needed no block")
            }
            IndexStage::Flushed => {
                assert!((1..=4 * before.len()).contains(&lost_in_all), "{lost_in_all}");
            }
            IndexStage::Published => assert_eq!(lost_in_all, 0),
        }
    }
}
