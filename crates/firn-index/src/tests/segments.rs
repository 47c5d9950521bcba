//! Segment files, the manifest's parts, and definitions that come from the log.

use firn_env::Disk;
use firn_model::{ErrorKind, SeriesRef, ShardId, Slot};
use firn_sim::SimDisk;

use super::{disk, index, labels, open, options, resolve, take_all};
use crate::Index;
use crate::part::Part;

fn seal(index: &Index, disk: &SimDisk) -> Vec<u8> {
    let part = index.plan_seal().expect("something to seal").run(disk).unwrap();
    index.apply(&part).unwrap();
    part
}

/// An index with lone series, a group, a sibling and a grown older group, sealed once.
fn sealed() -> (SimDisk, Index, Vec<u8>) {
    let disk = disk();
    let index = open(&disk, options(), &[]).unwrap();
    for n in 0..5 {
        resolve(&index, &format!("__name__=m{n},job=a,instance=1"));
        resolve(&index, &format!("__name__=m{n},job=a,instance=2"));
        resolve(&index, &format!("__name__=m{n},host=x"));
    }
    let part = seal(&index, &disk);
    (disk, index, part)
}

#[test]
fn a_sealed_index_opens_again_and_ids_go_on() {
    let (disk, index, part) = sealed();
    let reopen = |parts: &[&[u8]]| open(&disk, options(), parts).unwrap();
    let again = reopen(&[&part]);
    for n in 0..5 {
        for rest in ["job=a,instance=1", "job=a,instance=2", "host=x"] {
            let text = format!("__name__=m{n},{rest}");
            assert_eq!(resolve(&again, &text), resolve(&index, &text), "{text}");
        }
    }
    assert_eq!(again.snapshot_part(), index.snapshot_part());
    assert!(again.plan_seal().is_none(), "all of it is sealed");
    assert!(take_all(&again).iter().all(Vec::is_empty), "and logged");
    // The group that was open is open still.
    let next = resolve(&again, "__name__=m5,job=a,instance=1");
    assert_eq!(next.slot, Slot(2));
    let second = seal(&again, &disk);
    let third = reopen(&[&part, &second]);
    assert_eq!(resolve(&third, "__name__=m5,job=a,instance=1"), next);
    let from_snapshot = reopen(&[&third.snapshot_part()]);
    assert_eq!(from_snapshot.view().series_count(), 16);
}

#[test]
fn ids_that_the_manifest_counts_as_given_are_not_given_again() {
    let (disk, _, part) = sealed();
    let mut part = Part::decode(&part).unwrap();
    part.next_ids.iter_mut().for_each(|next| *next += 10);
    let again = open(&disk, options(), &[&part.encode()]).unwrap();
    let bits = options().shard_bits;
    for n in 0..20 {
        let group = resolve(&again, &format!("new={n}")).group;
        let next = part.next_ids[usize::from(bits.shard(group).0)];
        assert!(bits.local(group) >= next, "{group} is below {next}");
    }
    assert_eq!(again.view().series_count(), 35);
}

#[test]
fn small_segments_are_merged_and_their_files_go() {
    let (disk, index, first) = sealed();
    let mut parts = vec![first];
    for n in 0..40 {
        resolve(&index, &format!("late={n}"));
        parts.push(seal(&index, &disk));
    }
    let stats = index.stats();
    assert!(stats.segment_count <= 6, "{stats:?}");
    let files = disk.list("index").unwrap();
    assert_eq!(files.len() as u64, stats.segment_count);
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let again = open(&disk, options(), &parts).unwrap();
    assert_eq!(again.view().series_count(), 55);
    assert_eq!(again.lookup(&labels("late=39")), index.lookup(&labels("late=39")));
}

#[test]
fn a_seal_that_was_interrupted_leaves_nothing() {
    let (disk, index, part) = sealed();
    resolve(&index, "late=1");
    index.plan_seal().unwrap().run(&disk).unwrap();
    assert_eq!(disk.list("index").unwrap().len(), 2);
    let again = open(&disk, options(), &[&part]).unwrap();
    assert_eq!(disk.list("index").unwrap().len(), 1);
    assert_eq!(again.lookup(&labels("late=1")), None);
    // The number of the interrupted one is not used again in this process either.
    let job = index.plan_seal().unwrap().run(&disk).unwrap();
    assert!(again.apply(&job).unwrap_err().to_string().contains("not planned"));
}

#[test]
fn invariant_5_every_flipped_bit_of_a_segment_is_found_and_named() {
    let (disk, index, part) = sealed();
    let path = index.segment_paths().remove(0);
    let whole = disk.bytes(&path).unwrap();
    let refused = |what: &str| {
        let error = open(&disk, options(), &[&part]).expect_err(what);
        let ErrorKind::Corrupt { file, offset } = error.kind() else {
            panic!("{what}: {error:?}");
        };
        assert_eq!(file, &path, "{what}");
        assert!(*offset <= whole.len() as u64, "{what}: {offset}");
    };
    for bit in 0..whole.len() * 8 {
        disk.damage(&path, |bytes| bytes[bit / 8] ^= 1 << (bit % 8)).unwrap();
        refused(&format!("bit {bit}"));
        disk.damage(&path, |bytes| bytes[bit / 8] ^= 1 << (bit % 8)).unwrap();
    }
    for len in 0..whole.len() {
        disk.damage(&path, |bytes| bytes.truncate(len)).unwrap();
        refused(&format!("cut to {len}"));
        disk.damage(&path, |bytes| *bytes = whole.clone()).unwrap();
    }
    disk.remove(&path).unwrap();
    refused("missing");
}

#[test]
fn definitions_are_taken_in_twice_and_in_any_order_between_shards() {
    let index = index();
    for n in 0..9 {
        resolve(&index, &format!("m={n},job=a,instance={}", n % 4));
        resolve(&index, &format!("lone={n}"));
    }
    let payloads = take_all(&index);
    assert!(take_all(&index).iter().all(Vec::is_empty));
    let again = super::index();
    for payload in payloads.iter().rev().chain(&payloads) {
        again.replay(payload).unwrap();
    }
    for n in 0..9 {
        for text in [format!("m={n},job=a,instance={}", n % 4), format!("lone={n}")] {
            assert_eq!(again.lookup(&labels(&text)), index.lookup(&labels(&text)), "{text}");
        }
    }
    assert_eq!(again.view().series_count(), 18);
    assert!(take_all(&again).iter().all(Vec::is_empty), "they are in the log");
    assert!(again.plan_seal().is_some(), "but not sealed");
    // Nothing is given twice: the next group of each shard is a new one.
    let new = resolve(&again, "lone=new");
    assert!(!index.contains(new));
}

#[test]
fn a_log_that_refuses_gets_all_unsealed_definitions_again() {
    let (_, index, _) = sealed();
    take_all(&index);
    let series = resolve(&index, "late=1");
    resolve(&index, "__name__=m9,job=a,instance=1");
    let first = take_all(&index);
    (0..super::SHARDS as u16).for_each(|shard| index.requeue(ShardId(shard)));
    assert_eq!(take_all(&index), first);
    let again = super::index();
    first.iter().for_each(|payload| again.replay(payload).unwrap());
    assert_eq!(again.lookup(&labels("late=1")), Some(series));
}

#[test]
fn lost_definitions_leave_holes_that_match_nothing_and_can_be_filled() {
    let index = index();
    let first = resolve(&index, "m=0,job=a,instance=1");
    let lost = take_all(&index);
    let second = resolve(&index, "m=1,job=a,instance=1");
    let kept = take_all(&index);
    let disk = disk();
    let again = open(&disk, options(), &[]).unwrap();
    kept.iter().for_each(|payload| again.replay(payload).unwrap());
    assert_eq!(again.lookup(&labels("m=1,job=a,instance=1")), Some(second));
    assert_eq!(again.view().labels(first), None);
    assert_eq!(again.view().series_count(), 1);
    let part = seal(&again, &disk);
    let with_hole = open(&disk, options(), &[&part]).unwrap();
    assert!(!with_hole.contains(first) && with_hole.contains(second));
    lost.iter().for_each(|payload| with_hole.replay(payload).unwrap());
    assert_eq!(with_hole.lookup(&labels("m=0,job=a,instance=1")), Some(first));
    // What filled the hole is only in the log so far: the next seal must take it.
    let part = seal(&with_hole, &disk);
    let filled = open(&disk, options(), &[&part]).unwrap();
    assert!(filled.contains_all([first, second]));
    assert!(with_hole.plan_seal().is_none());
}

#[test]
fn bad_definitions_are_refused_with_their_offset() {
    let index = index();
    let series = resolve(&index, "a=1");
    let payload = take_all(&index).concat();
    for end in 1..payload.len() {
        let error = super::index().replay(&payload[..end]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt { offset: 0, .. }), "{error:?}");
    }
    let other = super::index();
    let mut label = 2;
    let taken = loop {
        let taken = resolve(&other, &format!("a={label}"));
        if taken == series {
            break taken;
        }
        label += 1;
    };
    assert_eq!(taken, series);
    let error = other.replay(&payload).unwrap_err();
    assert!(error.to_string().contains("contradicts"), "{error}");
    assert!(super::index().replay(&[0xff; 40]).is_err());
}

#[test]
fn a_disk_that_fails_while_sealing_costs_nothing() {
    let (disk, index, part) = sealed();
    let series: SeriesRef = resolve(&index, "late=1");
    disk.set_capacity_bytes(1);
    assert!(index.plan_seal().unwrap().run(&disk).is_err());
    disk.set_capacity_bytes(u64::MAX);
    let second = seal(&index, &disk);
    let again = open(&disk, options(), &[&part, &second]).unwrap();
    assert_eq!(again.lookup(&labels("late=1")), Some(series));
}

#[test]
fn a_segment_has_the_bytes_that_the_format_page_shows() {
    let disk = disk();
    let index = open(&disk, options(), &[]).unwrap();
    resolve(&index, "__name__=up,job=a,instance=1");
    resolve(&index, "__name__=x,job=a,instance=1");
    resolve(&index, "__name__=up");
    let part = seal(&index, &disk);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(
        hex(&disk.bytes("index/1.seg").unwrap()),
        concat!(
            "4649524e494e4458010000000201cfa4",
            "4600000001",
            "0708696e7374616e63650131036a6f620161085f5f6e616d655f5f0275700178",
            "040001020304050406",
            "0302000101020103",
            "020200000100020200060101",
            "d6a96f93",
            "0b000000020103113ffd1c",
        )
    );
    assert_eq!(hex(&part), "01000101610304000002 00".replace(' ', ""));
}
