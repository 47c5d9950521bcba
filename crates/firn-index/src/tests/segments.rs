//! Segment files, manifest parts, and definitions from the log.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, Weak};

use firn_env::{Disk, OpenMode};
use firn_model::{
    Budget, CancelToken, Error, ErrorKind, GroupId, Grouping, Labels, MatchOp, Matcher, Pool,
    QueryContext, Reclaim, Reservation, Result, SeriesRef, ShardId, Slot,
};
use firn_sim::SimDisk;
use proptest::prelude::*;

use super::{SHARDS, disk, index, labels, open, options, resolve, select, take_all};
use crate::catalog::CatalogEdit;
use crate::sealed::HashedLabels;
use crate::{
    GroupBy, GroupRule, Index, IndexOptions, IndexView, Liveness, Member, WRITE_BUFFER_BYTES,
};

fn seal(index: &Index, disk: &SimDisk) -> Vec<u8> {
    let part = index.plan_seal().expect("something to seal").run(disk).unwrap();
    index.apply(&part).unwrap();
    part
}

fn lookup(index: &Index, text: &str) -> Option<SeriesRef> {
    index.lookup(&labels(text)).unwrap()
}

/// The series of [`sealed`].
fn sealed_texts() -> Vec<String> {
    let rests = ["job=a,instance=1", "job=a,instance=2", "host=x"];
    (0..5).flat_map(|n| rests.map(|rest| format!("__name__=m{n},{rest}"))).collect()
}

/// An index with lone series, a group and siblings, sealed once.
fn sealed() -> (SimDisk, Index, Vec<u8>) {
    let disk = disk();
    let index = open(&disk, options(), &[]).unwrap();
    for text in sealed_texts() {
        resolve(&index, &text);
    }
    let part = seal(&index, &disk);
    (disk, index, part)
}

/// Drops the series for which the function returns true.
struct ForgetDead<F>(F);

impl<F: Fn(SeriesRef) -> bool> Liveness for ForgetDead<F> {
    fn retain(&self, group: GroupId, slots: &mut Vec<u32>) {
        slots.retain(|&slot| !self.0(SeriesRef { group, slot: Slot(slot) }));
    }
}

/// Removes dead, settled series; returns the part if any were removed.
fn remove(index: &Index, disk: &SimDisk, is_dead: impl Fn(SeriesRef) -> bool) -> Option<Vec<u8>> {
    let removal = index.plan_removal()?.run_removal(disk, &ForgetDead(is_dead)).unwrap()?;
    index.apply(&removal.part).unwrap();
    Some(removal.part)
}

/// Before, each new series was compared with each list of names that identifies a group, of which a
/// client may define any number.
#[test]
fn groups_with_names_of_their_own_slow_no_lookup() {
    let disk = disk();
    let index = open(&disk, options(), &[]).unwrap();
    for group in 0..300 {
        let group = labels(&format!("host=h,id{group}=x"));
        index.resolve_group(&group, &[labels("__name__=m")]).unwrap();
    }
    seal(&index, &disk);
    let version = index.version();
    let tried = |text: &str| {
        let labels = labels(text);
        version.sealed[0].sealed.identities_of(&HashedLabels::new(&labels)).count()
    };
    assert!(tried("__name__=m,host=h,job=j") < 60);
    assert!((1..60).contains(&tried("__name__=m,host=h,id7=x")));
    for group in 0..300 {
        assert!(lookup(&index, &format!("__name__=m,host=h,id{group}=x")).is_some());
    }
    assert_eq!(lookup(&index, "__name__=m,host=h,id7=y"), None);
}

/// Learned keys outlive a restart, in the part of a seal, and a crash, in the definitions.
#[test]
fn a_learned_group_takes_series_after_a_restart() {
    let disk = disk();
    let open = |parts: &[&[u8]]| open(&disk, IndexOptions::default(), parts).unwrap();
    let index = open(&[]);
    let text = |host, m| format!("__name__=m{m},host=h{host},rack=r{host}");
    let all: Vec<Labels> =
        (0..5).flat_map(|host| (0..20).map(move |m| labels(&text(host, m)))).collect();
    let mut refs = Vec::new();
    index.resolve(&all, &mut refs);
    let groups: BTreeSet<GroupId> = refs.iter().map(|one| one.as_ref().unwrap().group).collect();
    assert_eq!(groups.len(), 5);
    let definitions = take_all(&index);
    let is_lone = |index: &Index| {
        let new = resolve(index, &text(9, 0));
        index.view().group(new.group).unwrap().unwrap().is_lone
    };
    assert!(is_lone(&open(&[])), "one series alone is no evidence");
    let replayed = open(&[]);
    definitions.iter().for_each(|payload| replayed.replay(payload).unwrap());
    assert!(!is_lone(&replayed));
    let part = seal(&index, &disk);
    let reopened = open(&[&part]);
    assert_eq!(reopened.snapshot_part(), index.snapshot_part());
    assert_eq!(reopened.group_rule(&labels("host=h3,rack=r3")), GroupRule::AllLabels);
    assert_eq!(reopened.group_rule(&labels("host=h3")), GroupRule::Other);
    assert!(!is_lone(&reopened));
    // The next seal has the same rules, so its part does not repeat them.
    let next = CatalogEdit::decode(&seal(&reopened, &disk)).unwrap();
    assert!(next.rules.is_empty() && !CatalogEdit::decode(&part).unwrap().rules.is_empty());
}

/// A manifest of the version without rules opens, and takes learned groups from then on.
#[test]
fn an_index_of_the_version_before_rules_opens_and_learns() {
    let disk = disk();
    let lone = IndexOptions { group_by: GroupBy::Labels(Vec::new()), ..IndexOptions::default() };
    let index = open(&disk, lone, &[]).unwrap();
    let text = |host: usize, m: usize| format!("__name__=m{m},host=h{host}");
    let known: Vec<SeriesRef> = (0..20).map(|m| resolve(&index, &text(0, m))).collect();
    let mut part = seal(&index, &disk);
    assert_eq!((part[0], part.pop()), (4, Some(0)), "no rules");
    part[0] = 3;
    let reopened = open(&disk, IndexOptions::default(), &[&part]).unwrap();
    let hosts: Vec<Labels> =
        (0..3).flat_map(|host| (0..20).map(move |m| labels(&text(host, m)))).collect();
    let mut refs = Vec::new();
    reopened.resolve(&hosts, &mut refs);
    let refs: Vec<SeriesRef> = refs.into_iter().map(Result::unwrap).collect();
    // Series that were there keep their references; later ones of the same host have a group.
    assert_eq!(refs[..20], known);
    assert!(refs[20..40].iter().all(|one| one.group == refs[20].group));
    let later = resolve(&reopened, &text(0, 20));
    let group = reopened.view().group(later.group).unwrap().unwrap();
    assert_eq!((group.is_lone, group.labels.to_string().as_str()), (false, "{host=\"h0\"}"));
    let parts = [part, seal(&reopened, &disk)];
    let again = open(&disk, IndexOptions::default(), &[&parts[0], &parts[1]]).unwrap();
    for (labels, &expected) in hosts.iter().zip(&refs) {
        let mut found = Vec::new();
        again.resolve(std::slice::from_ref(labels), &mut found);
        assert_eq!(found.pop().unwrap().unwrap(), expected);
    }
    assert_eq!(resolve(&again, &text(1, 99)).group, refs[20].group);
}

#[test]
fn a_group_without_labels_is_replayed() {
    let disk = disk();
    let index = open(&disk, IndexOptions::default(), &[]).unwrap();
    let members = [labels("zone=a"), labels("zone=b")];
    let (_, refs) = index.resolve_group(&Labels::empty(), &members).unwrap();
    let replayed = open(&disk, IndexOptions::default(), &[]).unwrap();
    take_all(&index).iter().for_each(|payload| replayed.replay(payload).unwrap());
    assert_eq!(lookup(&replayed, "zone=b"), Some(refs[1]));
}

#[test]
fn a_sealed_index_reopens_and_continues_its_ids() {
    let (disk, index, part) = sealed();
    let reopen = |parts: &[&[u8]]| open(&disk, options(), parts).unwrap();
    let again = reopen(&[&part]);
    for text in sealed_texts() {
        assert_eq!(resolve(&again, &text), resolve(&index, &text), "{text}");
    }
    assert_eq!(again.snapshot_part(), index.snapshot_part());
    assert!(again.stats().heap_bytes <= index.stats().heap_bytes, "nothing was loaded");
    assert!(again.plan_seal().is_none(), "all of it is sealed");
    assert!(take_all(&again).iter().all(Vec::is_empty), "and logged");
    // The open group is still open.
    let next = resolve(&again, "__name__=m5,job=a,instance=1");
    assert_eq!(next.slot, Slot(2));
    let second = seal(&again, &disk);
    let third = reopen(&[&part, &second]);
    assert_eq!(resolve(&third, "__name__=m5,job=a,instance=1"), next);
    let from_snapshot = reopen(&[&third.snapshot_part()]);
    assert_eq!(from_snapshot.view().series_count(), 16);
    assert_eq!(from_snapshot.view().group_count(), 9);
}

#[test]
fn a_group_that_was_sealed_grows_in_memory_and_is_one_to_queries() {
    let (disk, index, _) = sealed();
    let late = ["__name__=m5,job=a,instance=1", "__name__=m6,job=a,instance=1"];
    let series = late.map(|text| resolve(&index, text));
    let slots = series.map(|series| series.slot.0);
    assert_eq!(slots, [2, 0], "the sibling has three slots, then the next opens");
    let all = [("job", MatchOp::Equal, "a"), ("instance", MatchOp::Equal, "1")];
    let check = |index: &Index| {
        let view = index.view();
        let found = select(&view, &all, &Grouping::By(vec!["job".to_owned()]));
        assert_eq!(found.len(), 7, "{found:?}");
        let matchers = [Matcher::equal("instance", "1")];
        let by_job = Grouping::By(vec!["job".to_owned()]);
        let matches = view.matches(&matchers, &by_job, &QueryContext::unbounded()).unwrap();
        assert_eq!(matches.keys, [labels("job=a")], "one key over all segments");
        assert!(matches.groups.is_sorted_by(|a, b| a.group < b.group));
        assert_eq!(matches.groups.len(), 3);
        let group = view.group(series[0].group).unwrap().unwrap();
        assert_eq!((group.slot_count, group.labels), (3, labels("instance=1,job=a")));
    };
    check(&index);
    let job = index.plan_seal().unwrap();
    check(&index);
    assert_eq!(lookup(&index, late[1]), Some(series[1]), "while it is written");
    let part = job.run(&disk).unwrap();
    index.apply(&part).unwrap();
    check(&index);
    check(&open(&disk, options(), &[&index.snapshot_part()]).unwrap());
}

#[test]
fn ids_issued_according_to_the_manifest_are_not_issued_again() {
    let (disk, _, part) = sealed();
    let mut part = CatalogEdit::decode(&part).unwrap();
    part.next_ids.iter_mut().for_each(|next| *next += 10);
    let again = open(&disk, options(), &[&part.encode()]).unwrap();
    let bits = super::bits();
    for n in 0..20 {
        let group = resolve(&again, &format!("new={n}")).group;
        let next = part.next_ids[usize::from(bits.shard(group).0)];
        assert!(bits.local(group) >= next, "{group} is below {next}");
    }
    assert_eq!(again.view().series_count(), 35);
}

/// Wide series with lists of names of their own took 181 MiB of a server of 128 MiB: the memory of
/// seals and merges did not count labels.
#[test]
fn the_memory_of_a_job_counts_the_labels_of_its_series() {
    let job_bytes = |width: usize| {
        let disk = disk();
        let index = open(&disk, options(), &[]).unwrap();
        let (mut sealing, mut merging) = (0, None);
        for file in 0..8 {
            for n in 0..50 {
                let names =
                    (0..width).map(|name| format!("n{}=1", 2 * name + (n >> (name % 6)) % 2));
                let names: Vec<String> = names.collect();
                resolve(&index, &format!("series={file}x{n},{}", names.join(",")));
            }
            sealing = index.stats().seal_bytes;
            let job = index.plan_seal().unwrap();
            assert_eq!(index.stats().seal_bytes, sealing, "frozen series wait for their file");
            index.apply(&job.run(&disk).unwrap()).unwrap();
            merging =
                merging.or(index.plan_merge(u64::MAX).map(|job| (file + 1, job.memory_bytes())));
        }
        (sealing, merging.expect("a merge"))
    };
    let (narrow, (file_count, narrow_merge)) = job_bytes(1);
    let (wide, (_, wide_merge)) = job_bytes(60);
    let least = 50 * 59 * 22;
    assert!(wide > narrow + least, "a seal: {wide} and {narrow}");
    assert!(
        wide_merge > narrow_merge + file_count * least,
        "a merge: {wide_merge}, {narrow_merge}"
    );
}

/// A server of 128 MiB took 137 MiB when it started with many names of 1 KiB: their texts exist
/// twice while a file is written, and once in memory while it is open.
#[test]
fn the_memory_of_a_job_counts_the_texts_of_names() {
    let disk = disk();
    let index = open(&disk, options(), &[]).unwrap();
    let (mut text_bytes, mut merge) = (0, None);
    for file in 0..8 {
        let mut file_bytes = 0;
        for n in 0..50 {
            let name = format!("n{file}x{n}{}", "y".repeat(10_000));
            file_bytes += name.len() as u64;
            resolve(&index, &format!("{name}=1"));
        }
        text_bytes += file_bytes;
        let stats = index.stats();
        assert!(stats.seal_bytes > 2 * file_bytes, "{stats:?}");
        assert!(stats.heap_bytes > text_bytes, "{stats:?}");
        seal(&index, &disk);
        let stats = index.stats();
        assert!(stats.seal_bytes == 0 && stats.heap_bytes > text_bytes, "{stats:?}");
        let slack_bytes = stats.heap_bytes - text_bytes;
        assert!(slack_bytes < text_bytes / 4 + (1 << 20), "{stats:?} for {text_bytes}");
        merge = merge.or(index.plan_merge(u64::MAX).map(|job| (text_bytes, job.memory_bytes())));
    }
    let (text_bytes, bytes) = merge.expect("a merge");
    assert!(bytes > 2 * text_bytes + WRITE_BUFFER_BYTES, "{bytes} for {text_bytes}");
}

#[test]
fn small_segments_are_merged_and_their_files_removed() {
    let (disk, index, first) = sealed();
    let mut parts = vec![first];
    for n in 0..40 {
        resolve(&index, &format!("late={n}"));
        parts.push(seal(&index, &disk));
        if let Some(job) = index.plan_merge(u64::MAX) {
            let view = index.view();
            parts.push(job.run(&disk).unwrap());
            index.apply(parts.last().unwrap()).unwrap();
            // An older view still reads the removed files.
            assert_eq!(select(&view, &[], &Grouping::Series).len(), 16 + n);
        }
    }
    let stats = index.stats();
    assert!(stats.segment_count <= 8, "{stats:?}");
    let files = disk.list("index").unwrap();
    assert_eq!(files.len() as u64, stats.segment_count);
    assert_eq!(index.generation(), 0, "every reference stays");
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let again = open(&disk, options(), &parts).unwrap();
    assert_eq!(again.view().series_count(), 55);
    assert_eq!(lookup(&again, "late=39"), lookup(&index, "late=39"));
}

/// A stop waited for a merge of tens of thousands of label names.
#[test]
fn a_canceled_merge_ends_and_is_planned_again() {
    let disk = disk();
    let index = open(&disk, options(), &[]).unwrap();
    let mut merge = None;
    for n in 0..100 {
        resolve(&index, &format!("__name__=m,name{n}=x"));
        seal(&index, &disk);
        merge = index.plan_merge(u64::MAX);
        if merge.is_some() {
            break;
        }
    }
    let cancel = CancelToken::new();
    cancel.cancel();
    let canceled = merge.expect("a merge").canceled_by(&cancel).run(&disk).unwrap_err();
    assert_eq!(canceled.kind(), &ErrorKind::Canceled);
    let part = index.plan_merge(u64::MAX).expect("the same merge").run(&disk).unwrap();
    index.apply(&part).unwrap();
    assert!(lookup(&index, "__name__=m,name0=x").is_some());
}

#[test]
fn a_merge_takes_as_many_files_as_its_memory_allows() {
    let (disk, index, _) = sealed();
    for n in 0..8 {
        resolve(&index, &format!("late={n}"));
        seal(&index, &disk);
    }
    let planned = |bytes_max| index.plan_merge(bytes_max).map(|job| job.memory_bytes());
    let all = planned(u64::MAX).expect("a merge");
    let fewer = planned(all - 1).expect("a smaller merge");
    assert!(fewer < all);
    assert_eq!(planned(fewer), Some(fewer));
    assert_eq!(planned(WRITE_BUFFER_BYTES), None, "no merge rather than one that is refused");
}

#[test]
fn removed_series_get_new_references_when_they_return() {
    let (disk, index, _) = sealed();
    let texts = sealed_texts();
    let refs: Vec<SeriesRef> = texts.iter().map(|text| lookup(&index, text).unwrap()).collect();
    let (dead, live) = refs.split_at(12);
    assert!(remove(&index, &disk, |_| true).is_none(), "the log may still restore it");
    index.settle(index.next_number());
    let view = index.view();
    let bytes_before = index.stats().segment_bytes;
    assert_eq!(index.find_unknown(refs.iter().copied()).unwrap(), None);
    remove(&index, &disk, |series| dead.contains(&series)).unwrap();
    assert_eq!(index.generation(), 1);
    for round in 0..2 {
        assert_eq!(index.find_unknown(live.iter().copied()).unwrap(), None, "{round}");
        for &series in dead {
            assert_eq!(index.find_unknown([live[0], series]).unwrap(), Some(series), "{round}");
        }
    }
    assert!(index.stats().segment_bytes < bytes_before, "{bytes_before}");
    assert_eq!(disk.list("index").unwrap().len(), 1);
    assert_eq!((view.series_count(), index.view().series_count()), (15, 3));
    assert_eq!(select(&view, &[], &Grouping::Series).len(), 15, "it was there when the view was");
    for (text, &series) in texts.iter().zip(&refs) {
        let is_live = live.contains(&series);
        assert_eq!(lookup(&index, text), is_live.then_some(series), "{text}");
        assert_eq!(index.contains(series).unwrap(), is_live);
    }
    assert_eq!(values(&index.view(), "__name__").unwrap(), ["m4"]);
    let back: Vec<SeriesRef> = texts.iter().map(|text| resolve(&index, text)).collect();
    assert!(back[..12].iter().all(|series| !refs.contains(series)), "ids are for ever");
    assert_eq!(back[12..], *live);
    // The same after a restart.
    seal(&index, &disk);
    let again = open(&disk, options(), &[&index.snapshot_part()]).unwrap();
    assert!(texts.iter().zip(&back).all(|(text, &series)| lookup(&again, text) == Some(series)));
}

#[test]
fn all_series_can_be_removed() {
    let (disk, index, part) = sealed();
    index.settle(index.next_number());
    assert!(remove(&index, &disk, |_| false).is_none(), "all live: nothing changes");
    assert_eq!((index.generation(), disk.list("index").unwrap().len()), (0, 1));
    let removal = remove(&index, &disk, |_| true).unwrap();
    assert_eq!(disk.list("index").unwrap().len(), 0);
    let again = open(&disk, options(), &[&part, &removal]).unwrap();
    for index in [&index, &again] {
        assert_eq!((index.view().series_count(), index.view().group_count()), (0, 0));
        let series = resolve(index, "__name__=m0,host=x");
        let bits = super::bits();
        assert!(bits.local(series.group) > 0, "{series:?} was given before");
    }
}

#[test]
fn a_group_with_half_of_its_members_removed_opens_a_sibling() {
    let disk = disk();
    let options = IndexOptions { slots_per_group_max: 4_096, ..options() };
    let index = open(&disk, options.clone(), &[]).unwrap();
    let text = |n: u32| format!("__name__=m{n},job=a,instance=1");
    let group = resolve(&index, &text(0)).group;
    (1..100).for_each(|n| assert_eq!(resolve(&index, &text(n)).group, group));
    seal(&index, &disk);
    index.settle(index.next_number());
    remove(&index, &disk, |series| series.slot.0 < 40).unwrap();
    let next = resolve(&index, &text(100));
    assert_eq!((next.group, next.slot), (group, Slot(100)), "60 of 100 live");
    seal(&index, &disk);
    index.settle(index.next_number());
    remove(&index, &disk, |series| series.slot.0 < 60).unwrap();
    let sibling = resolve(&index, &text(101));
    assert_ne!(sibling.group, group, "41 of 101 live");
    assert_eq!(resolve(&index, &text(102)).group, sibling.group);
    assert_eq!(lookup(&index, &text(70)).unwrap().group, group);
}

#[test]
fn an_interrupted_seal_leaves_no_file() {
    let (disk, index, part) = sealed();
    resolve(&index, "late=1");
    index.plan_seal().unwrap().run(&disk).unwrap();
    assert_eq!(disk.list("index").unwrap().len(), 2);
    let again = open(&disk, options(), &[&part]).unwrap();
    assert_eq!(disk.list("index").unwrap().len(), 1);
    assert_eq!(lookup(&again, "late=1"), None);
    // An index does not accept the part of another index.
    let job = index.plan_seal().unwrap().run(&disk).unwrap();
    assert!(again.apply(&job).unwrap_err().to_string().contains("not planned"));
    // Nor a part that is older than the last plan.
    resolve(&index, "late=2");
    let newer = index.plan_seal().unwrap().run(&disk).unwrap();
    assert!(index.apply(&job).is_err());
    index.apply(&newer).unwrap();
    let all = open(&disk, options(), &[&part, &newer]).unwrap();
    assert!(lookup(&all, "late=1").is_some() && lookup(&all, "late=2").is_some());
}

/// A matcher on a name that some groups have and others leave to their members splits every class
/// in two. The classes and their member sets are reserved, in files and in memory.
#[test]
fn matching_reserves_its_sets_and_classes() {
    const NAMES: u32 = 7;
    let disk = disk();
    let wide = IndexOptions { slots_per_group_max: 10_000, ..options() };
    let index = open(&disk, wide, &[]).unwrap();
    for subset in 0..1u32 << NAMES {
        let names = (0..NAMES).filter(|name| subset >> name & 1 == 1);
        let pairs: Vec<String> = names.map(|name| format!("g{name}=1")).collect();
        let group = format!("{},group={subset}", pairs.join(","));
        index.resolve_group(&labels(&group), &[labels("__name__=c")]).unwrap();
    }
    let members: Vec<Labels> = (0..3_000u32)
        .map(|n| match n % 2 {
            0 => labels(&format!("__name__=m,u={n}")),
            _ => labels(&format!("__name__=m,u={n},g{}=x", n / 2 % NAMES)),
        })
        .collect();
    index.resolve_group(&labels("host=a"), &members).unwrap();
    let negative = |name| Matcher::new(format!("g{name}"), MatchOp::NotEqual, "x").unwrap();
    let matchers: Vec<Matcher> = (0..NAMES).map(negative).collect();
    let digits = [Matcher::new("u", MatchOp::Regex, ".*[0145]").unwrap()];
    for segment in ["memory", "file"] {
        let select = |budget: &Budget, matchers: &[Matcher]| -> Result<_> {
            let context = QueryContext::new(CancelToken::new(), budget.clone());
            let found = index.view().select_in_scope(matchers, &context)?;
            let count = found.series_count(&context)?;
            let values = |name| {
                let mut values = 0;
                found.each_value(name, &context, &mut |_, _: &[Slot]| Ok(true), &mut |_| {
                    values += 1;
                    Ok(ControlFlow::Continue(()))
                })?;
                Ok::<_, Error>(values)
            };
            Ok((count, values("u")?, values("group")?))
        };
        let budget = Budget::new(1 << 30);
        assert_eq!(select(&budget, &matchers).unwrap(), (1_500 + 128, 1_500, 128));
        assert_eq!(select(&budget, &digits).unwrap(), (1_200, 1_200, 0));
        assert_eq!(budget.usage().used_bytes, 0);
        let tiny = Budget::new(2 << 10);
        assert!(select(&tiny, &digits).unwrap_err().is_retriable());
        assert!(select(&tiny, &matchers).unwrap_err().is_retriable());
        let part = budget.part(2 << 10);
        assert_eq!(*select(&part, &matchers).unwrap_err().kind(), ErrorKind::TooLarge);
        assert_eq!((tiny.usage().used_bytes, part.usage().used_bytes), (0, 0));
        if segment == "memory" {
            // 128 classes, each with sets of its own; in files their rows are clustered.
            assert!(budget.usage().peak_bytes > 1 << 20, "{:?}", budget.usage());
            seal(&index, &disk);
        }
    }
}

/// A view that outlives a seal keeps the memory of the sealed series. It counts until the view
/// ends.
#[test]
fn memory_that_a_view_holds_after_a_seal_is_counted() {
    let disk = disk();
    let index = open(&disk, options(), &[]).unwrap();
    for n in 0..200 {
        resolve(&index, &format!("__name__=m{n},text={n}{}", "x".repeat(1_000)));
    }
    let (before, view) = (index.stats().heap_bytes, index.view());
    assert!(before >= 200_000);
    seal(&index, &disk);
    let stats = index.stats();
    assert!(stats.heap_bytes >= before, "{stats:?}");
    assert!(stats.unsealed_bytes < 100_000, "{stats:?}");
    drop(view);
    assert!(index.stats().heap_bytes < 100_000);
}

/// A list of names copies one name of each segment or batch at a time, in files and in memory.
#[test]
fn names_are_listed_without_copies_of_all() {
    let disk = disk();
    let index = open(&disk, options(), &[]).unwrap();
    let long = "x".repeat(1_000);
    let mut want: Vec<String> = (0..3_000).rev().map(|n| format!("n{n:04}{long}")).collect();
    for names in want.chunks(50) {
        let pairs = names.iter().map(|name| (name.as_str(), "1"));
        let mut out = Vec::new();
        index.resolve(&[Labels::from_pairs(pairs).unwrap()], &mut out);
        out.remove(0).unwrap();
    }
    want.sort();
    for _ in ["memory", "file"] {
        let budget = Budget::new(64 << 10);
        let context = QueryContext::new(CancelToken::new(), budget.clone());
        let found = index.view().select(&[], &context).unwrap();
        let mut names = Vec::new();
        let mut add = |name: &str| {
            names.push(name.to_owned());
            Ok(ControlFlow::Continue(()))
        };
        found.each_name(&context, &mut |_, _: &[Slot]| Ok(true), &mut add).unwrap();
        assert_eq!(names, want);
        assert!(budget.usage().peak_bytes > 0);
        drop(found);
        assert_eq!(budget.usage().used_bytes, 0);
        if index.stats().segment_count == 0 {
            seal(&index, &disk);
        }
    }
}

/// The memory of a result is reserved before it is allocated, in files and in memory, and released
/// with the result.
#[test]
fn results_are_reserved_with_their_texts() {
    let disk = disk();
    let index = open(&disk, options(), &[]).unwrap();
    let matches_of = |budget: &Budget| {
        let context = QueryContext::new(CancelToken::new(), budget.clone());
        index.view().matches(&[], &Grouping::Series, &context)
    };
    for segment in ["file", "memory"] {
        for n in 0..100 {
            let long = "x".repeat(2_000);
            resolve(&index, &format!("__name__=m{n},path={segment}{n}{long}"));
        }
        if segment == "file" {
            seal(&index, &disk);
        }
        let budget = Budget::new(10 << 20);
        let matches = matches_of(&budget).unwrap();
        let text_bytes: usize = matches.keys.iter().map(|key| key.as_encoded().len()).sum();
        assert!(text_bytes >= 200_000 && matches.held.bytes() >= text_bytes as u64);
        assert_eq!(budget.usage().used_bytes, matches.held.bytes());
        assert!(budget.usage().peak_bytes >= matches.held.bytes());
        let too_small = Budget::new(text_bytes as u64 - 1);
        assert!(matches_of(&too_small).unwrap_err().is_retriable());
        let part = budget.part(text_bytes as u64 - 1);
        assert_eq!(*matches_of(&part).unwrap_err().kind(), ErrorKind::TooLarge);
        drop(matches);
        assert_eq!((budget.usage().used_bytes, too_small.usage().used_bytes), (0, 0));
    }
}

/// Releases exactly the bytes that are missing.
struct Sparing(Mutex<(Reservation, u32)>);

impl Reclaim for Sparing {
    fn reclaim(&self, bytes: u64) -> u64 {
        let (held, count) = &mut *self.0.lock().unwrap();
        *count += 1;
        let before = held.bytes();
        held.shrink(bytes);
        before - held.bytes()
    }
}

/// The free memory ends at nearly every member. Memory is reclaimed without the lock on the series,
/// and each member is in the result once.
#[test]
fn a_result_for_which_memory_is_reclaimed_is_complete() {
    let disk = disk();
    let index = open(&disk, options(), &[]).unwrap();
    for n in 0..1_500 {
        resolve(&index, &format!("__name__=m{},job=j,instance=i{},id=n{n}", n % 10, n / 500));
    }
    let matches_of = |grouping: &Grouping, budget: &Budget| {
        let context = QueryContext::new(CancelToken::new(), budget.clone());
        let found = index.view().matches(&[], grouping, &context).unwrap();
        let keys = |member: &Member| (member.slot, found.keys[member.key as usize].clone());
        let groups = found.groups.iter().map(|group| {
            (group.group, group.members.iter().map(keys).collect::<Vec<(Slot, Labels)>>())
        });
        groups.collect::<Vec<_>>()
    };
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    for (grouping, reclaims_min) in [
        (Grouping::Series, 1_000),
        (Grouping::By(names(&["id"])), 1_000),
        (Grouping::Without(names(&["job"])), 1_000),
        (Grouping::By(names(&["__name__"])), 2),
    ] {
        let budget = Budget::new(4 << 20);
        // The part of small queries is in use too.
        let mut others = budget.empty(Pool::Query);
        others.take((4 << 20) / 32);
        let mut held = budget.empty(Pool::Cache);
        held.take((4 << 20) / 100 * Pool::Query.threshold_percent() - others.bytes());
        let cache = Arc::new(Sparing(Mutex::new((held, 0))));
        let reclaimer: Weak<Sparing> = Arc::downgrade(&cache);
        budget.set_reclaimer(reclaimer);
        let found = matches_of(&grouping, &budget);
        assert_eq!(found, matches_of(&grouping, &Budget::unlimited()), "{grouping:?}");
        let reclaims = cache.0.lock().unwrap().1;
        assert!(reclaims >= reclaims_min, "{grouping:?}: {reclaims}");
    }
}

/// The values of a label.
fn values(view: &IndexView, name: &str) -> Result<Vec<String>> {
    let (mut values, context) = (Vec::new(), QueryContext::unbounded());
    let found = view.select(&[], &context)?;
    found.each_value(name, &context, &mut |_, _: &[Slot]| Ok(true), &mut |value| {
        values.push(value.to_owned());
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(values)
}

/// Runs all kinds of calls; returns the first error.
fn query_all(index: &Index) -> Result<Vec<Option<SeriesRef>>> {
    let view = index.view();
    let found: Result<Vec<_>> =
        sealed_texts().iter().map(|text| index.lookup(&labels(text))).collect();
    let found = found?;
    for (text, series) in sealed_texts().iter().zip(&found) {
        let Some(series) = *series else { continue };
        assert_eq!(view.labels(series)?, Some(labels(text)), "wrong labels are served");
        assert!(index.contains(series)?);
    }
    let matches = view.matches(&[], &Grouping::Series, &QueryContext::unbounded())?;
    assert_eq!(matches.series_count(), 15, "series are missing without an error");
    let mut keys: Vec<Labels> = matches.keys.clone();
    keys.sort();
    let mut want: Vec<Labels> = sealed_texts().iter().map(|text| labels(text)).collect();
    want.sort();
    assert_eq!(keys, want);
    let context = QueryContext::unbounded();
    let mut names = Vec::new();
    let all = view.select(&[], &context)?;
    all.each_name(&context, &mut |_, _: &[Slot]| Ok(true), &mut |name| {
        names.push(name.to_owned());
        Ok(ControlFlow::Continue(()))
    })?;
    assert_eq!(names, ["__name__", "host", "instance", "job"]);
    assert_eq!(values(&view, "job")?, ["a"]);
    assert_eq!(view.cardinality(2, &context)?.0.pair_count, 9);
    Ok(found)
}

/// A damaged or missing segment is reported with its file, at the open or when it is needed. No
/// call returns wrong results.
#[test]
fn invariant_5_every_flipped_bit_of_a_segment_is_found_and_named() {
    let (disk, index, part) = sealed();
    let path = index.segment_paths().remove(0);
    let whole = disk.bytes(&path).unwrap();
    let want = query_all(&index).unwrap();
    let named = |what: &str, error: &Error| {
        let ErrorKind::Corrupt { file, offset } = error.kind() else {
            panic!("{what}: {error:?}");
        };
        assert_eq!(file, &path, "{what}");
        assert!(*offset <= whole.len() as u64, "{what}: {offset}");
    };
    let mut found_count = 0;
    for bit in 0..whole.len() * 8 {
        let what = format!("bit {bit}");
        disk.damage(&path, |bytes| bytes[bit / 8] ^= 1 << (bit % 8)).unwrap();
        match open(&disk, options(), &[&part]).and_then(|index| query_all(&index)) {
            Ok(found) => assert_eq!(found, want, "{what}"),
            Err(e) => {
                found_count += 1;
                named(&what, &e);
            }
        }
        disk.damage(&path, |bytes| bytes[bit / 8] ^= 1 << (bit % 8)).unwrap();
    }
    assert_eq!(found_count, whole.len() * 8, "every bit counts");
    for len in 0..whole.len() {
        disk.damage(&path, |bytes| bytes.truncate(len)).unwrap();
        named("cut", &open(&disk, options(), &[&part]).expect_err("cut"));
        disk.damage(&path, |bytes| *bytes = whole.clone()).unwrap();
    }
    disk.remove(&path).unwrap();
    named("missing", &open(&disk, options(), &[&part]).expect_err("missing"));
}

#[test]
fn definitions_replay_twice_and_in_any_order_of_shards() {
    let index = index();
    for n in 0..9 {
        resolve(&index, &format!("m={n},rack=r,job=a,instance={}", n % 4));
        resolve(&index, &format!("lone={n}"));
    }
    let payloads = take_all(&index);
    assert!(take_all(&index).iter().all(Vec::is_empty));
    let again = super::index();
    for payload in payloads.iter().rev().chain(&payloads) {
        again.replay(payload).unwrap();
    }
    for n in 0..9 {
        for text in [format!("m={n},rack=r,job=a,instance={}", n % 4), format!("lone={n}")] {
            assert_eq!(lookup(&again, &text), lookup(&index, &text), "{text}");
        }
    }
    assert_eq!(again.view().series_count(), 18);
    assert_eq!(again.view().group_count(), index.view().group_count());
    assert!(take_all(&again).iter().all(Vec::is_empty), "they are in the log");
    assert!(again.plan_seal().is_some(), "but not sealed");
    // No id is issued twice: the next group of each shard is new.
    let new = resolve(&again, "lone=new");
    assert!(!index.contains(new).unwrap());
}

#[test]
fn sealed_definitions_are_not_replayed() {
    let disk = disk();
    let index = open(&disk, options(), &[]).unwrap();
    for text in sealed_texts() {
        resolve(&index, &text);
    }
    let before = take_all(&index);
    let part = seal(&index, &disk);
    let late = resolve(&index, "__name__=m5,job=a,instance=1");
    let after = take_all(&index);
    let again = open(&disk, options(), &[&part]).unwrap();
    before.iter().chain(&after).for_each(|payload| again.replay(payload).unwrap());
    assert_eq!(again.view().series_count(), 16);
    assert_eq!(select(&again.view(), &[], &Grouping::Series).len(), 16);
    assert_eq!(lookup(&again, "__name__=m5,job=a,instance=1"), Some(late));
    let second = seal(&again, &disk);
    assert_eq!(CatalogEdit::decode(&second).unwrap().added[0].series_count, 1);
}

#[test]
fn requeued_definitions_are_all_that_are_not_sealed() {
    let (disk, index, _) = sealed();
    take_all(&index);
    let series = resolve(&index, "late=1");
    resolve(&index, "__name__=m9,job=a,instance=1");
    let first = take_all(&index);
    let requeue = || (0..SHARDS as u16).for_each(|shard| index.requeue(ShardId(shard)));
    requeue();
    assert_eq!(take_all(&index), first);
    let again = super::index();
    first.iter().for_each(|payload| again.replay(payload).unwrap());
    assert_eq!(lookup(&again, "late=1"), Some(series));
    // Also while they are being written, but not once the manifest has them.
    let job = index.plan_seal().unwrap();
    requeue();
    assert_eq!(take_all(&index), first);
    requeue();
    index.apply(&job.run(&disk).unwrap()).unwrap();
    assert!(take_all(&index).iter().all(Vec::is_empty));
    requeue();
    assert!(take_all(&index).iter().all(Vec::is_empty));
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
    assert_eq!(lookup(&again, "m=1,job=a,instance=1"), Some(second));
    assert_eq!(again.view().labels(first).unwrap(), None);
    assert_eq!(again.view().series_count(), 1);
    let part = seal(&again, &disk);
    let with_hole = open(&disk, options(), &[&part]).unwrap();
    let contains = |index: &Index, series| index.contains(series).unwrap();
    assert!(!contains(&with_hole, first) && contains(&with_hole, second));
    lost.iter().for_each(|payload| with_hole.replay(payload).unwrap());
    assert_eq!(lookup(&with_hole, "m=0,job=a,instance=1"), Some(first));
    // The restored member is only in the log so far: the next seal must write it.
    let second_part = seal(&with_hole, &disk);
    let filled = open(&disk, options(), &[&part, &second_part]).unwrap();
    assert!(contains(&filled, first) && contains(&filled, second));
    assert!(with_hole.plan_seal().is_none());
    let next = resolve(&filled, "m=2,job=a,instance=1");
    assert_eq!((next.group, next.slot), (first.group, Slot(2)));
}

#[test]
fn after_damage_of_the_log_no_id_is_issued_twice() {
    let (disk, _, part) = sealed();
    let again = open(&disk, options(), &[&part]).unwrap();
    let bits = super::bits();
    let sibling = lookup(&again, "__name__=m4,job=a,instance=1").unwrap();
    let shard = bits.shard(sibling.group);
    let seen = bits.group(shard, bits.local(sibling.group) + 5);
    again.distrust(shard, Some(seen)).unwrap();
    let next = resolve(&again, "__name__=m5,job=a,instance=1");
    assert!(
        bits.local(next.group) > bits.local(seen),
        "{next:?}: a lost member may have had slot 2"
    );
    assert!(again.distrust(shard, Some(GroupId(u64::MAX))).is_err());
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
    // One byte changes a label set to that of another reference.
    let two = super::index();
    let (first, second) = (resolve(&two, "a=1"), resolve(&two, "a=2"));
    let mut payload = take_all(&two).concat();
    let at = payload.iter().rposition(|&byte| byte == b'2').unwrap();
    payload[at] = b'1';
    let damaged = super::index();
    let error = damaged.replay(&payload).unwrap_err();
    assert!(error.to_string().contains("has the labels of"), "{error}");
    let kept = lookup(&damaged, "a=1").unwrap();
    assert!(kept == first || kept == second, "{kept:?}");
    assert_eq!(damaged.view().series_count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Damaged definitions are refused with their offset, or produce an index in which each label
    /// set has one reference, in memory and sealed.
    #[test]
    fn damaged_definitions_are_refused_or_make_a_sound_index(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..4),
    ) {
        let whole = index();
        for text in sealed_texts() {
            resolve(&whole, &text);
        }
        let mut payload = take_all(&whole).concat();
        for (at, byte, how) in damage {
            let at = at.index(payload.len());
            match how {
                0 => payload[at] = byte,
                1 => payload.insert(at, byte),
                _ => drop(payload.remove(at)),
            }
        }
        let disk = disk();
        let index = open(&disk, options(), &[]).unwrap();
        if let Err(error) = index.replay(&payload) {
            let offset = match error.kind() {
                ErrorKind::Corrupt { offset, .. } => *offset,
                kind => panic!("{kind:?}"),
            };
            prop_assert!(offset < payload.len() as u64);
        }
        let context = QueryContext::unbounded();
        let matches = index.view().matches(&[], &Grouping::Series, &context).unwrap();
        if matches.groups.is_empty() {
            return Ok(());
        }
        let part = seal(&index, &disk);
        for index in [&index, &open(&disk, options(), &[&part]).unwrap()] {
            let view = index.view();
            for group in &matches.groups {
                for member in &group.members {
                    let series = SeriesRef { group: group.group, slot: member.slot };
                    let labels = &matches.keys[member.key as usize];
                    let known = view.labels(series).unwrap();
                    prop_assert_eq!(known.as_ref(), Some(labels));
                    prop_assert_eq!(index.lookup(labels).unwrap(), Some(series));
                }
            }
            let found = view.select(&[], &context).unwrap();
            prop_assert_eq!(found.series_count(&context).unwrap(), matches.series_count() as u64);
        }
    }
}

#[test]
fn a_failed_seal_loses_nothing() {
    let (disk, index, part) = sealed();
    let series: SeriesRef = resolve(&index, "late=1");
    disk.set_capacity_bytes(1);
    assert!(index.plan_seal().unwrap().run(&disk).is_err());
    let later = resolve(&index, "later=1");
    assert!(index.plan_seal().unwrap().run(&disk).is_err());
    assert_eq!([lookup(&index, "late=1"), lookup(&index, "later=1")], [Some(series), Some(later)]);
    disk.set_capacity_bytes(u64::MAX);
    let second = seal(&index, &disk);
    let again = open(&disk, options(), &[&part, &second]).unwrap();
    assert_eq!([lookup(&again, "late=1"), lookup(&again, "later=1")], [Some(series), Some(later)]);
}

#[test]
fn labels_that_all_members_share_are_stored_once_per_group() {
    let index =
        open(&disk(), IndexOptions { slots_per_group_max: 4_096, ..options() }, &[]).unwrap();
    let text = |host: usize, n: usize| {
        format!("__name__=m{n},job=a,instance={host},region=r{},rack={host},os=linux", host % 3)
    };
    for host in 0..20 {
        for n in 0..30 {
            resolve(&index, &text(host, n));
        }
    }
    let sets = index.stats().member_set_count;
    // One for each metric, the empty one, and the first member of the first group, before common
    // labels were known.
    assert_eq!(sets, 30 + 1 + 1);
    // A member that lacks a common label still joins the group.
    let odd = resolve(&index, "__name__=odd,job=a,instance=7,rack=7");
    assert_eq!(odd.group, lookup(&index, &text(7, 0)).unwrap().group);
    assert_eq!(odd.slot, Slot(30));
    let view = index.view();
    assert_eq!(select(&view, &[("rack", MatchOp::Equal, "7")], &Grouping::Series).len(), 31);
    assert_eq!(select(&view, &[("os", MatchOp::Equal, "")], &Grouping::Series).len(), 1);
    assert_eq!(select(&view, &[("region", MatchOp::Regex, "r[01]")], &Grouping::Series).len(), 420);
}

/// Groups with equal members and lone series with texts that fill a dozen blocks.
fn many_texts() -> Vec<String> {
    let text = |n: u64| format!("{:016x}", (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let trace = |n| format!("{}{}{}", text(n), text(n << 20), text(n << 30));
    let lone = (0..20_000).map(|n| format!("__name__=lone{},trace={}", n % 50, trace(n)));
    let grouped = (0..20_000).map(|n| {
        let (host, member) = (n / 20, n % 20);
        format!("__name__=m{member},job=a,instance={},zone=z{}", text(1 << 40 | host), host % 7)
    });
    // A few hundred sets that are not shared.
    let odd = (0..3_000).map(|n| format!("__name__=odd,job=b,instance=i{},x={}", n / 200, text(n)));
    lone.chain(grouped).chain(odd).collect()
}

/// Damages each block of a large file in turn. The damage is reported with the use of the block. A
/// repair loses only series with a row, a text or a shape in the block; with a copy of the file,
/// even one that is damaged elsewhere, it loses none.
#[test]
fn invariant_5_a_repair_loses_the_broken_block_and_nothing_else() {
    const BLOCK: usize = 64 << 10;
    let texts: Vec<Labels> = many_texts().iter().map(|text| labels(text)).collect();
    let made_on = disk();
    let options = IndexOptions { slots_per_group_max: 4_096, ..options() };
    let index = open(&made_on, options.clone(), &[]).unwrap();
    let mut refs = Vec::new();
    index.resolve(&texts, &mut refs);
    let refs: Vec<SeriesRef> = refs.into_iter().map(Result::unwrap).collect();
    let part = seal(&index, &made_on);
    let path = index.segment_paths()[0].clone();
    drop(index);
    let whole = made_on.bytes(&path).unwrap();
    let blocks = whole.len() / BLOCK;
    assert!(blocks > 8, "{} bytes", whole.len());
    let (mut lost_in_all, mut harmless) = (0, 0);
    for block in 0..blocks {
        let flip = |bytes: &mut Vec<u8>| bytes[block * BLOCK + 777 * (block + 1) % BLOCK] ^= 1;
        made_on.damage(&path, flip).unwrap();
        for has_copy in [true, false] {
            // A new disk per case, since a repair changes its files.
            let disk = disk();
            disk.create_dir("index").unwrap();
            let file = disk.open(&path, OpenMode::Create).unwrap();
            file.write_at(0, &made_on.bytes(&path).unwrap()).unwrap();
            let copy = |offset: u64, len: u64| {
                let mut bytes = whole.clone();
                bytes[(block + 1) * BLOCK % whole.len()] ^= 1;
                let range = offset as usize..(offset + len) as usize;
                has_copy.then(|| bytes[range].into())
            };
            let index = open(&disk, options.clone(), &[&part]).unwrap();
            let damage = index.check();
            assert_eq!(damage.len(), 1, "{damage:?}");
            let repaired = index.repair(&path, &copy).unwrap().expect("there is such a file");
            let generation = index.generation();
            index.apply(&repaired.part).unwrap();
            assert!(index.check().is_empty(), "{damage:?}");
            let mut found = 0;
            for (labels, series) in texts.iter().zip(&refs) {
                if let Some(known) = index.lookup(labels).unwrap() {
                    assert_eq!(known, *series, "{labels}");
                    assert!(index.contains(known).unwrap());
                    found += 1;
                }
            }
            let lost = repaired.lost.map_or(0, |lost| lost.count);
            assert_eq!(found + lost, texts.len() as u64, "{damage:?}");
            assert_eq!(index.generation() == generation, lost == 0);
            if has_copy {
                assert_eq!(lost, 0, "{damage:?}");
                continue;
            }
            lost_in_all += lost;
            harmless += u64::from(lost == 0);
            // A lost series that is resolved again gets a new reference, never one that was issued
            // before.
            let mut again = Vec::new();
            index.resolve(&texts, &mut again);
            let known: BTreeSet<SeriesRef> = refs.iter().copied().collect();
            for (again, before) in again.into_iter().map(Result::unwrap).zip(&refs) {
                assert!(again == *before || !known.contains(&again), "{again:?} for {before:?}");
            }
            let reopened = open(&disk, options.clone(), &[&part, &repaired.part]).unwrap();
            assert_eq!(reopened.view().series_count(), found);
        }
        made_on.damage(&path, flip).unwrap();
    }
    // Each series needs at most four texts, a row and a shape; lists and buckets are rebuilt.
    assert!(lost_in_all > 0 && lost_in_all <= 6 * texts.len() as u64, "{lost_in_all}");
    assert!(harmless > 0);
}
