//! Tests of the index against a map, and of its edge cases.

mod concurrent;
mod limits;
mod model;
mod segments;

use std::sync::Arc;

use firn_model::{
    Budget, CancelToken, ErrorKind, GroupId, Grouping, Labels, MatchOp, Matcher, QueryContext,
    Result, SeriesRef, ShardBits, ShardId, Slot,
};
use firn_sim::{Faults, SimDisk};

use crate::{GroupInfo, Index, IndexOptions, IndexView};

const SHARDS: usize = 4;

fn disk() -> SimDisk {
    SimDisk::new(Faults::new(1))
}

fn open(disk: &SimDisk, options: IndexOptions, parts: &[&[u8]]) -> Result<Index> {
    Index::open(Arc::new(disk.clone()), bits(), options, parts)
}

fn options() -> IndexOptions {
    IndexOptions { slots_per_group_max: 3, ..IndexOptions::default() }
}

fn bits() -> ShardBits {
    ShardBits::for_count(SHARDS)
}

fn index() -> Index {
    open(&disk(), options(), &[]).unwrap()
}

/// `a=1,b=2` as labels.
fn labels(text: &str) -> Labels {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    Labels::from_pairs(pairs).unwrap()
}

fn resolve(index: &Index, text: &str) -> SeriesRef {
    let mut out = Vec::new();
    index.resolve(&[labels(text)], &mut out);
    out.remove(0).unwrap()
}

fn take_all(index: &Index) -> Vec<Vec<u8>> {
    (0..SHARDS as u16)
        .map(|shard| {
            let mut out = Vec::new();
            index.take_pending(ShardId(shard), &mut out);
            out
        })
        .collect()
}

/// The matching label sets with their keys, sorted.
fn select(
    view: &IndexView,
    matchers: &[(&str, MatchOp, &str)],
    grouping: &Grouping,
) -> Vec<String> {
    let matchers: Vec<Matcher> =
        matchers.iter().map(|m| Matcher::new(m.0, m.1, m.2).unwrap()).collect();
    let matches = view.matches(&matchers, grouping, &QueryContext::unbounded()).unwrap();
    let mut found = Vec::new();
    for group in &matches.groups {
        for member in &group.members {
            let series = SeriesRef { group: group.group, slot: member.slot };
            let key = &matches.keys[member.key as usize];
            found.push(format!("{} -> {key}", view.labels(series).unwrap().unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn series_with_the_grouping_labels_share_a_group_and_others_are_lone() {
    let index = index();
    let first = resolve(&index, "__name__=up,job=a,instance=1");
    let second = resolve(&index, "__name__=down,job=a,instance=1");
    let alone = resolve(&index, "__name__=up,job=a");
    assert_eq!((first.slot, second.slot, alone.slot), (Slot(0), Slot(1), Slot(0)));
    assert_eq!(first.group, second.group);
    assert_ne!(first.group, alone.group);
    assert_eq!(resolve(&index, "instance=1,job=a,__name__=up"), first);
    assert_eq!(index.lookup(&labels("__name__=up")).unwrap(), None);
}

#[test]
fn a_sibling_opens_when_a_group_is_full() {
    let index = index();
    let refs: Vec<SeriesRef> =
        (0..7).map(|n| resolve(&index, &format!("m={n},job=a,instance=1"))).collect();
    let slots: Vec<u32> = refs.iter().map(|series| series.slot.0).collect();
    assert_eq!(slots, [0, 1, 2, 0, 1, 2, 0]);
    let view = index.view();
    assert_eq!(view.group_count(), 3);
    assert_eq!(select(&view, &[("job", MatchOp::Equal, "a")], &Grouping::Series).len(), 7);
    // One group key for three groups.
    let matches =
        view.matches(&[], &Grouping::By(vec!["job".into()]), &QueryContext::unbounded()).unwrap();
    assert_eq!(matches.keys, [labels("job=a")]);
}

#[test]
fn a_label_set_has_one_reference_however_it_is_split() {
    let index = index();
    let lone = resolve(&index, "a=1,b=2");
    let (groups, members) =
        index.resolve_group(&labels("a=1"), &[labels("b=2"), labels("b=3")]).unwrap();
    assert_eq!(members[0], lone);
    assert_ne!(members[1].group, lone.group);
    assert_eq!(groups, [lone.group, members[1].group]);
    assert_eq!(resolve(&index, "a=1,b=3"), members[1]);
    // A lone series has no labels left for a member, but a group with all its labels and an empty
    // member finds it.
    let (_, whole) = index.resolve_group(&labels("a=1,b=2"), &[Labels::empty()]).unwrap();
    assert_eq!(whole, [lone]);
}

#[test]
fn a_view_describes_groups() {
    let index = index();
    let (_, first) = index.resolve_group(&labels("a=1"), &[labels("b=2")]).unwrap();
    let lone = resolve(&index, "a=1,b=3");
    let view = index.view();
    let (_, second) = index.resolve_group(&labels("a=1"), &[labels("b=4")]).unwrap();
    assert_eq!(second[0].group, first[0].group);
    let group = view.group(first[0].group).unwrap().unwrap();
    assert_eq!(group, GroupInfo { labels: labels("a=1"), is_lone: false, slot_count: 1 });
    let group = view.group(lone.group).unwrap().unwrap();
    assert_eq!(group, GroupInfo { labels: labels("a=1,b=3"), is_lone: true, slot_count: 1 });
    assert_eq!(index.view().group(first[0].group).unwrap().unwrap().slot_count, 2);
    let (_, later) = index.resolve_group(&labels("a=2"), &[labels("b=4")]).unwrap();
    assert_eq!(view.group(later[0].group).unwrap(), None, "it came after the view");
    assert_eq!(view.group(GroupId(u64::MAX)).unwrap(), None);
}

#[test]
fn malformed_groups_are_refused() {
    let index = index();
    let refused = index.resolve_group(&labels("a=1"), &[labels("a=2,b=2")]).unwrap_err();
    assert!(refused.to_string().contains("repeats label \"a\""), "{refused}");
    assert!(index.resolve_group(&Labels::empty(), &[Labels::empty()]).is_err());
    let mut out = Vec::new();
    index.resolve(&[Labels::empty()], &mut out);
    assert!(out[0].is_err());
    assert_eq!(index.view().series_count(), 0);
}

/// Groups have three slots: six members are two siblings, in two segments and in memory.
#[test]
fn large_groups_are_counted_over_siblings_and_segments() {
    let disk = disk();
    let index = open(&disk, options(), &[]).unwrap();
    let add = |names: &[&str], instance: u32| {
        for name in names {
            resolve(&index, &format!("__name__={name},job=a,instance={instance}"));
        }
    };
    let seal = || {
        while let Some(job) = index.plan_seal() {
            let part = job.run(&disk).unwrap();
            index.apply(&part).unwrap();
        }
    };
    add(&["a", "b"], 1);
    add(&["a", "b", "c"], 2);
    seal();
    add(&["c", "d"], 1);
    seal();
    add(&["e", "f"], 1);
    resolve(&index, "__name__=alone");
    let found = index.view().cardinality(5, &QueryContext::unbounded()).unwrap().0.series_by_group;
    let group = |instance: u32| format!("{{instance=\"{instance}\",job=\"a\"}}");
    assert_eq!(found, [(group(1), 6), (group(2), 3)]);
    let one = index.view().cardinality(1, &QueryContext::unbounded()).unwrap().0.series_by_group;
    assert_eq!(one, [(group(1), 6)]);
}

#[test]
fn matchers_follow_prometheus() {
    let index = index();
    for series in [
        "__name__=up,job=a,instance=1",
        "__name__=up,job=a,instance=2",
        "__name__=cpu,job=a,instance=1,mode=idle",
        "__name__=cpu,job=a,instance=1,mode=user",
        "__name__=cpu,mode=idle",
        "__name__=up",
    ] {
        resolve(&index, series);
    }
    let view = index.view();
    let f = |matchers: &[(&str, MatchOp, &str)]| select(&view, matchers, &Grouping::By(vec![]));
    let count = |matchers: &[(&str, MatchOp, &str)]| f(matchers).len();
    use MatchOp::{Equal, NotEqual, NotRegex, Regex};
    assert_eq!(f(&[("mode", Equal, "idle"), ("job", Equal, "")]), [r#"cpu{mode="idle"} -> {}"#]);
    assert_eq!(count(&[]), 6);
    assert_eq!(count(&[("job", Equal, "")]), 2);
    assert_eq!(count(&[("job", NotEqual, "")]), 4);
    assert_eq!(count(&[("mode", NotEqual, "idle")]), 4);
    assert_eq!(count(&[("mode", Regex, "")]), 3);
    assert_eq!(count(&[("mode", Regex, ".*")]), 6);
    assert_eq!(count(&[("mode", Regex, ".+")]), 3);
    assert_eq!(count(&[("mode", Regex, "idle|")]), 5);
    assert_eq!(count(&[("mode", NotRegex, "idle|user")]), 3);
    assert_eq!(count(&[("mode", NotRegex, ".*")]), 0);
    assert_eq!(count(&[("nothing", Equal, "")]), 6);
    assert_eq!(count(&[("nothing", NotEqual, "")]), 0);
    assert_eq!(count(&[("instance", Equal, "1"), ("instance", Equal, "2")]), 0);
    assert_eq!(count(&[("__name__", Regex, "c.u"), ("instance", Regex, "1|3")]), 2);
}

#[test]
fn keys_are_shared_over_groups_and_members() {
    let index = index();
    resolve(&index, "__name__=cpu,job=a,instance=1,mode=idle");
    resolve(&index, "__name__=cpu,job=a,instance=2,mode=idle");
    resolve(&index, "__name__=cpu,job=a,instance=2,mode=user");
    resolve(&index, "__name__=cpu,mode=idle");
    let view = index.view();
    let keys = |grouping: Grouping| {
        let mut keys = view.matches(&[], &grouping, &QueryContext::unbounded()).unwrap().keys;
        keys.sort();
        keys.iter().map(Labels::to_string).collect::<Vec<_>>()
    };
    let by = |names: &[&str]| Grouping::By(names.iter().map(|&name| name.to_owned()).collect());
    assert_eq!(keys(by(&["mode"])), [r#"{mode="idle"}"#, r#"{mode="user"}"#]);
    assert_eq!(keys(by(&["job", "no"])), ["{}", r#"{job="a"}"#]);
    assert_eq!(
        keys(Grouping::Without(vec!["instance".into(), "mode".into()])),
        ["{}", r#"{job="a"}"#]
    );
    assert_eq!(keys(Grouping::Series).len(), 4);
}

#[test]
fn references_that_were_never_issued_are_unknown() {
    let index = index();
    let series = resolve(&index, "a=1");
    let other_slot = SeriesRef { slot: Slot(1), ..series };
    let other_group = SeriesRef { group: GroupId(u64::MAX), ..series };
    assert!(index.contains(series).unwrap());
    assert_eq!(index.find_unknown([series, series]).unwrap(), None);
    assert_eq!(index.find_unknown([series, other_slot]).unwrap(), Some(other_slot));
    assert!(!index.contains(other_group).unwrap());
    assert_eq!(index.view().labels(other_group).unwrap(), None);
}

#[test]
fn a_cancelled_query_stops() {
    let index = index();
    resolve(&index, "a=1");
    let context = QueryContext::unbounded();
    context.cancel.cancel();
    let matchers = [Matcher::equal("a", "1")];
    assert!(index.view().matches(&matchers, &Grouping::Series, &context).is_err());
}

#[test]
fn cardinality_lists_the_largest_entries() {
    let index = index();
    for series in ["__name__=up,x=1", "__name__=up,x=2", "__name__=cpu,job=a,instance=1"] {
        resolve(&index, series);
    }
    let seen = index.view();
    resolve(&index, "__name__=late,x=3");
    let (cardinality, held) = seen.cardinality(2, &QueryContext::unbounded()).unwrap();
    assert!(held.bytes() > 0);
    assert_eq!((cardinality.series_count, cardinality.group_count), (3, 3));
    assert_eq!((cardinality.name_count, cardinality.pair_count), (4, 6));
    assert_eq!(cardinality.series_by_metric, [("up".to_owned(), 2), ("cpu".to_owned(), 1)]);
    assert_eq!(cardinality.values_by_name, [("__name__".to_owned(), 2), ("x".to_owned(), 2)]);
    // up and cpu; 1 and 2.
    assert_eq!(cardinality.bytes_by_name, [("__name__".to_owned(), 5), ("x".to_owned(), 2)]);
    let pairs = [("__name__=up".to_owned(), 2), ("__name__=cpu".to_owned(), 1)];
    assert_eq!(cardinality.series_by_pair, pairs);
    let group = "{instance=\"1\",job=\"a\"}".to_owned();
    assert_eq!(cardinality.series_by_group, [(group, 1)]);
    let (all, _) = seen.cardinality(10, &QueryContext::unbounded()).unwrap();
    assert_eq!(all.series_by_pair.len(), 6);
    assert_eq!(all.series_by_pair[5], ("x=2".to_owned(), 1));
    let (none, _) = seen.cardinality(0, &QueryContext::unbounded()).unwrap();
    assert_eq!((none.series_count, none.pair_count, none.series_by_pair.len()), (3, 6, 0));
    let canceled = QueryContext::unbounded();
    canceled.cancel.cancel();
    assert!(seen.cardinality(1, &canceled).is_err());
    // Without room for the lists they are refused; nothing stays reserved.
    let small = Budget::new(2_000);
    let context = QueryContext::new(CancelToken::new(), small.clone());
    assert!(matches!(seen.cardinality(10, &context).unwrap_err().kind(), ErrorKind::Busy { .. }));
    assert_eq!(small.usage().used_bytes, 0);
}
