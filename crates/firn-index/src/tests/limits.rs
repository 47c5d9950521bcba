//! Limits on new series: refused series, known series, and counts after a restart.

use firn_model::{ErrorKind, Labels, SeriesLimit, SeriesRef};

use super::{disk, labels, open, options, take_all};
use crate::{GroupBy, Index, IndexOptions, SeriesLimits};

fn limited(limits: SeriesLimits) -> IndexOptions {
    let group_by = GroupBy::labels(["job", "instance"]);
    IndexOptions { limits, group_by, ..options() }
}

/// The outcome of each label set: its reference, or the limit that refused it.
fn resolve_all(index: &Index, texts: &[&str]) -> Vec<Result<SeriesRef, SeriesLimit>> {
    let sets: Vec<Labels> = texts.iter().map(|text| labels(text)).collect();
    let mut out = Vec::new();
    index.resolve(&sets, &mut out);
    let limit_of = |e: firn_model::Error| match *e.kind() {
        ErrorKind::SeriesLimit { limit, .. } => limit,
        _ => panic!("{e}"),
    };
    out.into_iter().map(|found| found.map_err(limit_of)).collect()
}

fn refusals(index: &Index, texts: &[&str]) -> Vec<Option<SeriesLimit>> {
    resolve_all(index, texts).into_iter().map(Result::err).collect()
}

#[test]
fn new_series_over_the_limit_are_refused_and_known_ones_resolve() {
    let limits = SeriesLimits { series_max: Some(2), ..SeriesLimits::default() };
    let index = open(&disk(), limited(limits), &[]).unwrap();
    let known = resolve_all(&index, &["a=1"])[0];
    let found = resolve_all(&index, &["a=2", "a=3", "a=1", "a=2"]);
    assert!(found[0].is_ok() && found[3] == found[0]);
    assert_eq!((found[1], found[2]), (Err(SeriesLimit::Total), known));
    // A refused label set stores nothing, but is counted.
    assert_eq!(index.stats().pair_count, 2);
    assert_eq!(index.stats().refused, [1, 0, 0, 0]);
    let mut out = Vec::new();
    index.resolve(&[labels("a=9")], &mut out);
    let refused = out[0].as_ref().unwrap_err();
    assert!(refused.is_retriable() && refused.to_string().contains("series_max"), "{refused}");
}

/// Before, each refused metric and group left a count: a sender that was over its rate filled the
/// memory with names that no series has.
#[test]
fn refused_series_take_no_memory() {
    let limits = SeriesLimits {
        series_per_metric_max: Some(9),
        series_per_group_max: Some(9),
        new_series_per_second_max: Some(0),
        ..SeriesLimits::default()
    };
    let index = open(&disk(), limited(limits), &[]).unwrap();
    let mut out = Vec::new();
    index.resolve_exempt(&[labels("__name__=own,job=j,instance=1")], &mut out);
    let refuse = |count: usize| {
        for idx in 0..count {
            let text = format!("__name__=m{idx},job=j,instance={idx}");
            assert_eq!(refusals(&index, &[&text]), [Some(SeriesLimit::PerSecond)]);
        }
        index.stats().heap_bytes
    };
    let few = refuse(100);
    assert_eq!(refuse(20_000), few);
    assert_eq!(index.stats().refused.iter().sum::<u64>(), 20_100);
}

/// Series of the program itself are never refused, and count for the others.
#[test]
fn exempt_series_are_defined_beyond_every_limit() {
    let limits = SeriesLimits {
        series_max: Some(4),
        series_per_metric_max: Some(2),
        series_per_group_max: Some(2),
        new_series_per_second_max: Some(0),
    };
    let index = open(&disk(), limited(limits), &[]).unwrap();
    let own: Vec<Labels> =
        (0..5).map(|idx| labels(&format!("__name__=m,job=j,instance=1,idx={idx}"))).collect();
    let mut out = Vec::new();
    for _ in 0..2 {
        index.resolve_exempt(&own, &mut out);
        assert!(out.iter().all(Result::is_ok), "{out:?}");
    }
    assert_eq!(refusals(&index, &["a=1"]), [Some(SeriesLimit::Total)]);
    let loose = SeriesLimits { series_max: None, ..limits };
    let index = open(&disk(), limited(loose), &[]).unwrap();
    index.resolve_exempt(&own[..1], &mut out);
    let texts = ["__name__=m,x=1", "__name__=other,job=j,instance=1"];
    assert_eq!(refusals(&index, &texts), [Some(SeriesLimit::PerSecond); 2]);
    // The counts of metric and group exist now.
    index.resolve_exempt(&own[1..], &mut out);
    let expected = [Some(SeriesLimit::PerMetric), Some(SeriesLimit::PerGroup)];
    assert_eq!(refusals(&index, &texts), expected);
}

/// Counts start from the content of the index: in a sealed segment, in the log, in a sibling.
#[test]
fn metrics_and_groups_are_counted_over_seals_replay_and_siblings() {
    let limits = SeriesLimits {
        series_per_metric_max: Some(5),
        series_per_group_max: Some(7),
        ..SeriesLimits::default()
    };
    let disk = disk();
    let index = open(&disk, limited(limits), &[]).unwrap();
    let up = ["__name__=up,job=j,instance=1", "__name__=up,job=j,instance=2", "__name__=up"];
    assert_eq!(refusals(&index, &up), [None; 3]);
    // Groups have three slots here, so these six members fill two siblings.
    let names = ["a", "b", "c", "d", "e"].map(|name| format!("__name__={name},job=j,instance=1"));
    assert_eq!(refusals(&index, &names.each_ref().map(String::as_str)), [None; 5]);
    let logged = take_all(&index);
    let part = index.plan_seal().unwrap().run(&disk).unwrap();
    index.apply(&part).unwrap();

    let check = |index: &Index| {
        let f = |text: &str| refusals(index, &[text])[0];
        assert_eq!(f("__name__=up,mode=x"), None, "the fourth");
        assert_eq!(f("__name__=up,job=j,instance=3"), None, "the fifth");
        assert_eq!(f("__name__=up,mode=y"), Some(SeriesLimit::PerMetric));
        assert_eq!(f("__name__=f,job=j,instance=1"), None, "the seventh");
        assert_eq!(f("__name__=g,job=j,instance=1"), Some(SeriesLimit::PerGroup));
        // Other groups and known series are unaffected.
        assert_eq!(f("__name__=g,job=j,instance=2"), None);
        assert_eq!(f("__name__=g,mode=x"), None);
        assert_eq!(f("__name__=up"), None);
        assert_eq!(index.stats().refused, [0, 1, 1, 0]);
    };
    check(&open(&disk, limited(limits), &[&part]).unwrap());
    let replayed = open(&super::disk(), limited(limits), &[]).unwrap();
    logged.iter().for_each(|payload| replayed.replay(payload).unwrap());
    check(&replayed);
    check(&index);
}

#[test]
fn explicit_groups_are_counted_by_their_labels() {
    let limits = SeriesLimits { series_per_group_max: Some(2), ..SeriesLimits::default() };
    let index = open(&disk(), limited(limits), &[]).unwrap();
    let member = |name: &str| labels(&format!("__name__={name}"));
    let pump = labels("device=pump");
    index.resolve_group(&pump, &[member("a"), member("b")]).unwrap();
    let refused = index.resolve_group(&pump, &[member("a"), member("c")]).unwrap_err();
    assert!(refused.to_string().contains("group {device=\"pump\"} has 2 series"), "{refused}");
    index.resolve_group(&labels("device=valve"), &[member("c")]).unwrap();
    // The group without labels counts too.
    index.resolve_group(&Labels::empty(), &[member("a"), member("b")]).unwrap();
    assert!(index.resolve_group(&Labels::empty(), &[member("c")]).is_err());
}

#[test]
fn new_series_are_admitted_by_the_clock_even_if_it_is_set_back() {
    let limits = SeriesLimits { new_series_per_second_max: Some(2), ..SeriesLimits::default() };
    let index = open(&disk(), limited(limits), &[]).unwrap();
    let mut next = 0;
    // Number of admitted series of 100 new ones.
    let mut admitted = |now_ms| {
        index.tick(now_ms);
        let texts: Vec<String> = (next..next + 100).map(|n| format!("n={n}")).collect();
        next += 100;
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        refusals(&index, &texts).iter().filter(|refused| refused.is_none()).count()
    };
    assert_eq!(admitted(1_000), 20, "ten seconds' worth at once");
    assert_eq!(admitted(1_499), 0);
    assert_eq!(admitted(1_500), 1);
    assert_eq!(admitted(500), 0, "a clock that is set back");
    assert_eq!(admitted(1_500), 2, "continues from there");
    assert_eq!(admitted(i64::MAX), 20);
    assert_eq!(refusals(&index, &["n=0"]), [None], "known ones resolve");
    assert_eq!(index.stats().refused, [0, 0, 0, 600 - 43]);
}
