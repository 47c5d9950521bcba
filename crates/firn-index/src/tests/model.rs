//! Random histories against a map: resolve, log, seal, merge, remove, fail, crash, query.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use firn_model::{
    GroupId, Grouping, LabelLimits, Labels, LabelsBuilder, MatchOp, Matcher, QueryContext, Result,
    SeriesRef, ShardId, Slot,
};
use firn_sim::SimDisk;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::{SHARDS, disk, open, options};
use crate::{
    GroupMatch, GroupRule, Index, IndexView, Liveness, LookupOutcome, Member, Members, Presence,
};

const NAMES: [&str; 6] = ["__name__", "a", "b", "instance", "job", "zone"];
const VALUES: [&str; 5] = ["", "v0", "v1", "v2", "w"];
const PATTERNS: [&str; 18] = [
    "", "v0", "v1", "no", ".*", ".+", "v.*", "v.+", ".*1.*", "v0|v2", "v0|", "(v1|w)", "[v]0",
    "v?w?", "v", "w.*", "(?i)V0", "v0|v.",
];

#[derive(Clone, Debug)]
enum Op {
    Resolve(Vec<Labels>),
    ResolveGroup(Labels, Vec<Labels>),
    /// The log takes a shard's definitions.
    Log(u16),
    /// The log refuses a shard's definitions.
    LogFails(u16),
    Seal,
    /// A seal runs, but its part is not applied.
    SealLost,
    /// A seal after which the log is truncated.
    Flush,
    /// All due merges.
    Merge,
    /// A merge runs, but its part is not applied.
    MergeLost,
    /// A removal of every third series; the given label sets are resolved meanwhile.
    Remove(u64, Vec<Labels>),
    /// Keeps a view, which is compared at the end.
    KeepView,
    Query(Vec<Matcher>, Grouping),
    /// Drops definitions that are neither logged nor sealed. Streams are replayed in this order,
    /// twice if `twice`; the manifest is a snapshot if `snapshot`.
    Crash {
        order: u64,
        twice: bool,
        snapshot: bool,
    },
}

fn arb_labels() -> impl Strategy<Value = Labels> + Clone {
    prop::collection::vec(prop::sample::select(&VALUES[..]), NAMES.len())
        .prop_map(|values| from_pairs(NAMES.into_iter().zip(values)))
}

fn from_pairs<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Labels {
    let mut builder = LabelsBuilder::default();
    pairs.for_each(|(name, value)| builder.push(name, value));
    builder.build(&LabelLimits::default()).unwrap()
}

/// Series of hosts without `job` and `instance`, usually enough to show that a host is a group.
fn arb_agent_sets() -> impl Strategy<Value = Vec<Labels>> {
    let pair = (prop::sample::select(&VALUES[1..]), 0..10_u32);
    let labels = |(host, metric): (&str, u32)| {
        from_pairs([("__name__", &*format!("m{metric}")), ("a", host)].into_iter())
    };
    prop::collection::vec(pair.prop_map(labels), 1..40)
}

fn arb_matcher() -> impl Strategy<Value = Matcher> {
    let op = prop::sample::select(vec![
        MatchOp::Equal,
        MatchOp::NotEqual,
        MatchOp::Regex,
        MatchOp::NotRegex,
    ]);
    let name = prop::sample::select(vec!["__name__", "a", "b", "instance", "job", "nothing"]);
    (name, op, prop::sample::select(&PATTERNS[..]))
        .prop_map(|(name, op, value)| Matcher::new(name, op, value).unwrap())
}

fn arb_grouping() -> impl Strategy<Value = Grouping> {
    let names = prop::sample::subsequence(vec!["__name__", "a", "b", "job", "nothing"], 0..4);
    let names = names.prop_map(|names| names.into_iter().map(str::to_owned).collect::<Vec<_>>());
    prop_oneof![
        Just(Grouping::Series),
        names.clone().prop_map(Grouping::By),
        names.prop_map(Grouping::Without),
    ]
}

fn arb_op() -> impl Strategy<Value = Op> {
    let shard = 0..SHARDS as u16;
    let sets = prop::collection::vec(arb_labels(), 1..12);
    prop_oneof![
        6 => sets.clone().prop_map(Op::Resolve),
        2 => arb_agent_sets().prop_map(Op::Resolve),
        2 => (arb_labels(), sets).prop_map(|(labels, members)| {
            let group = labels.filter(|name| ["a", "job"].contains(&name));
            let rest = |l: &Labels| l.filter(|name| !["a", "job"].contains(&name));
            Op::ResolveGroup(group, members.iter().map(rest).collect())
        }),
        4 => shard.clone().prop_map(Op::Log),
        1 => shard.prop_map(Op::LogFails),
        2 => Just(Op::Seal),
        1 => Just(Op::SealLost),
        2 => Just(Op::Flush),
        2 => Just(Op::Merge),
        1 => Just(Op::MergeLost),
        2 => (any::<u64>(), prop::collection::vec(arb_labels(), 0..4))
            .prop_map(|(seed, meanwhile)| Op::Remove(seed, meanwhile)),
        2 => Just(Op::KeepView),
        5 => (prop::collection::vec(arb_matcher(), 0..4), arb_grouping())
            .prop_map(|(matchers, grouping)| Op::Query(matchers, grouping)),
        1 => (any::<u64>(), any::<bool>(), any::<bool>())
            .prop_map(|(order, twice, snapshot)| Op::Crash { order, twice, snapshot }),
    ]
}

/// The index and its expected content.
struct ModelIndex {
    disk: SimDisk,
    index: Index,
    known: BTreeMap<Labels, SeriesRef>,
    /// Label sets in the log or in a segment that the manifest names.
    durable: BTreeSet<Labels>,
    log: Vec<Vec<Vec<u8>>>,
    manifest: Vec<Vec<u8>>,
    views: Vec<(IndexView, BTreeMap<Labels, SeriesRef>)>,
    /// References that were removed.
    removed: BTreeSet<SeriesRef>,
}

/// Drops every third sealed series.
struct EveryThirdSeries(u64);

impl EveryThirdSeries {
    fn is_dead(&self, series: SeriesRef) -> bool {
        let mixed = (series.group.0 << 16 | u64::from(series.slot.0)) ^ self.0;
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40).is_multiple_of(3)
    }
}

impl Liveness for EveryThirdSeries {
    fn retain(&self, group: GroupId, slots: &mut Vec<u32>) {
        slots.retain(|&slot| !self.is_dead(SeriesRef { group, slot: Slot(slot) }));
    }
}

impl ModelIndex {
    fn new() -> ModelIndex {
        let disk = disk();
        ModelIndex {
            index: open(&disk, options(), &[]).unwrap(),
            disk,
            known: BTreeMap::new(),
            durable: BTreeSet::new(),
            log: vec![Vec::new(); SHARDS],
            manifest: Vec::new(),
            views: Vec::new(),
            removed: BTreeSet::new(),
        }
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Resolve(sets) => self.resolve(sets),
            Op::ResolveGroup(group, members) => self.resolve_group(group, members),
            Op::Log(shard) => self.take_log(*shard),
            Op::LogFails(shard) => {
                self.index.take_pending(ShardId(*shard), &mut Vec::new());
                self.index.requeue(ShardId(*shard));
            }
            Op::Seal => self.seal(),
            Op::SealLost => {
                if let Some(job) = self.index.plan_seal() {
                    job.run(&self.disk).unwrap();
                }
            }
            Op::Flush => {
                let logged: Vec<usize> = self.log.iter().map(Vec::len).collect();
                let number = self.index.next_number();
                self.seal();
                self.index.settle(number);
                for (log, below) in self.log.iter_mut().zip(logged) {
                    log.drain(..below);
                }
            }
            Op::Merge => {
                while let Some(job) = self.index.plan_merge(u64::MAX) {
                    let part = job.run(&self.disk).unwrap();
                    self.apply(part);
                }
            }
            Op::MergeLost => {
                if let Some(job) = self.index.plan_merge(u64::MAX) {
                    job.run(&self.disk).unwrap();
                }
            }
            Op::Remove(seed, meanwhile) => self.remove(*seed, meanwhile),
            Op::KeepView => self.views.push((self.index.view(), self.known.clone())),
            Op::Query(matchers, grouping) => {
                check_query(&self.index.view(), &self.known, matchers, grouping);
            }
            Op::Crash { order, twice, snapshot } => self.crash(*order, *twice, *snapshot),
        }
    }

    fn resolve(&mut self, sets: &[Labels]) {
        let mut out = Vec::new();
        self.index.resolve(sets, &mut out);
        assert_eq!(out.len(), sets.len());
        for (labels, series) in sets.iter().zip(out) {
            match series {
                Ok(series) => self.learn(labels.clone(), series),
                Err(_) => assert!(labels.is_empty()),
            }
        }
    }

    fn resolve_group(&mut self, group: &Labels, members: &[Labels]) {
        let Ok((groups, refs)) = self.index.resolve_group(group, members) else {
            assert!(group.is_empty() && members.iter().any(Labels::is_empty));
            // Earlier batches would be defined; here one batch holds all.
            return;
        };
        assert!(groups.is_sorted_by(|a, b| a < b));
        for (member, &series) in members.iter().zip(&refs) {
            assert!(groups.contains(&series.group));
            self.learn(from_pairs(group.iter().chain(member.iter())), series);
        }
    }

    fn learn(&mut self, labels: Labels, series: SeriesRef) {
        assert!(series.slot.0 < options().slots_per_group_max);
        if let Some(known) = self.known.insert(labels.clone(), series) {
            assert_eq!(known, series, "{labels} has two references");
        } else {
            assert!(
                !self.removed.contains(&series),
                "{labels} was given {series:?}, which was removed"
            );
            let taken = self.known.values().filter(|&&other| other == series).count();
            assert_eq!(taken, 1, "{labels} was given a reference that is taken");
        }
        assert_eq!(self.index.lookup(&labels).unwrap(), Some(series));
    }

    fn take_log(&mut self, shard: u16) {
        let mut payload = Vec::new();
        self.index.take_pending(ShardId(shard), &mut payload);
        if !payload.is_empty() {
            self.log[usize::from(shard)].push(payload);
        }
        let bits = super::bits();
        let of_shard = self.known.iter().filter(|entry| bits.shard(entry.1.group).0 == shard);
        self.durable.extend(of_shard.map(|entry| entry.0.clone()));
    }

    fn seal(&mut self) {
        if let Some(job) = self.index.plan_seal() {
            let part = job.run(&self.disk).unwrap();
            self.apply(part);
        }
        self.durable.extend(self.known.keys().cloned());
    }

    fn apply(&mut self, part: Vec<u8>) {
        self.index.apply(&part).unwrap();
        self.manifest.push(part);
    }

    fn remove(&mut self, seed: u64, meanwhile: &[Labels]) {
        self.check_references();
        let Some(job) = self.index.plan_removal() else { return };
        self.resolve(meanwhile);
        let thirds = EveryThirdSeries(seed);
        let Some(removal) = job.run_removal(&self.disk, &thirds).unwrap() else { return };
        let generation = self.index.generation();
        self.apply(removal.part);
        assert_ne!(self.index.generation(), generation);
        for (group, slots) in removal.dropped {
            for slot in slots {
                let series = SeriesRef { group, slot: Slot(slot) };
                assert!(thirds.is_dead(series) && !self.index.contains(series).unwrap());
                assert!(self.removed.insert(series), "{series:?} was removed before");
            }
        }
        let is_left = |series: &SeriesRef| !self.removed.contains(series);
        let durable = &mut self.durable;
        self.known.retain(|labels, series| {
            is_left(series) || {
                durable.remove(labels);
                false
            }
        });
        self.check_references();
    }

    /// A batch of valid references is known, and unknown with a removed one, regardless of earlier
    /// lookups.
    fn check_references(&self) {
        let known = || self.known.values().copied();
        assert_eq!(self.index.find_unknown(known()).unwrap(), None);
        for &series in &self.removed {
            let found = self.index.find_unknown(known().chain([series])).unwrap();
            assert_eq!(found, Some(series));
        }
    }

    fn crash(&mut self, order: u64, twice: bool, snapshot: bool) {
        if snapshot {
            self.manifest = vec![self.index.snapshot_part()];
        }
        self.views.clear();
        let parts: Vec<&[u8]> = self.manifest.iter().map(Vec::as_slice).collect();
        self.index = open(&self.disk, options(), &parts).unwrap();
        for _ in 0..=u8::from(twice) {
            self.replay(order);
        }
        let (index, durable) = (&self.index, &self.durable);
        self.known.retain(|labels, &mut series| match index.lookup(labels).unwrap() {
            Some(found) => {
                assert_eq!(found, series, "{labels} came back as another series");
                true
            }
            None => {
                assert!(!durable.contains(labels), "{labels} was durable and is lost");
                false
            }
        });
    }

    /// Replays all streams; `order` determines the interleaving of entries.
    fn replay(&mut self, order: u64) {
        let mut next = [0; SHARDS];
        let mut turn = order;
        while (0..SHARDS).any(|shard| next[shard] < self.log[shard].len()) {
            turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let shard = (turn >> 33) as usize % SHARDS;
            if let Some(payload) = self.log[shard].get(next[shard]) {
                self.index.replay(payload).unwrap();
                next[shard] += 1;
            }
        }
    }

    /// Seals everything; the segments of the manifest then contain all series.
    fn finish(&mut self) {
        for (view, known) in &self.views {
            check_view(view, known);
        }
        check_view(&self.index.view(), &self.known);
        self.check_references();
        self.seal();
        let snapshot = self.index.snapshot_part();
        let parts: Vec<&[u8]> = self.manifest.iter().map(Vec::as_slice).collect();
        for parts in [&parts[..], &[&snapshot[..]]] {
            let again = open(&self.disk, options(), parts).unwrap();
            check_view(&again.view(), &self.known);
        }
    }
}

fn check_view(view: &IndexView, known: &BTreeMap<Labels, SeriesRef>) {
    assert_eq!(view.series_count(), known.len() as u64);
    for (labels, &series) in known {
        assert_eq!(view.labels(series).unwrap().as_ref(), Some(labels));
    }
    check_query(view, known, &[], &Grouping::By(vec!["job".to_owned(), "b".to_owned()]));
    let all = known.iter().map(|(labels, &series)| (series, labels)).collect();
    check_lists(view, &[], &all);
    let mut groups: BTreeMap<GroupId, Members> = BTreeMap::new();
    for series in known.values() {
        groups.entry(series.group).or_default().push(Member { slot: series.slot, key: 0 });
    }
    let groups: Vec<GroupMatch> =
        groups.into_iter().map(|(group, members)| GroupMatch { group, members }).collect();
    let mut listed = BTreeSet::new();
    view.each_labels(&groups, &QueryContext::unbounded(), &mut |labels| {
        listed.insert(labels);
        Ok(())
    })
    .unwrap();
    assert!(listed.iter().eq(known.keys()));
}

fn check_query(
    view: &IndexView,
    known: &BTreeMap<Labels, SeriesRef>,
    matchers: &[Matcher],
    grouping: &Grouping,
) {
    let want: BTreeMap<SeriesRef, &Labels> = known
        .iter()
        .filter(|(labels, _)| {
            matchers.iter().all(|m| m.matches(labels.get(m.name()).unwrap_or("")))
        })
        .map(|(labels, &series)| (series, labels))
        .collect();
    let context = QueryContext::unbounded();
    let found = view.select(matchers, &context).unwrap();
    assert_eq!(found.series_count(&context).unwrap(), want.len() as u64, "{matchers:?}");
    let matches = found.collect_groups(grouping, &QueryContext::unbounded()).unwrap();
    let mut got = BTreeMap::new();
    assert!(matches.groups.is_sorted_by(|a, b| a.group < b.group));
    for group in &matches.groups {
        assert!(!group.members.is_empty());
        assert!(group.members.is_sorted_by(|a, b| a.slot < b.slot));
        for member in &group.members {
            got.insert(SeriesRef { group: group.group, slot: member.slot }, member.key);
        }
    }
    assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>(), "{matchers:?}");
    for (series, labels) in &want {
        let key = &matches.keys[got[series] as usize];
        assert_eq!(key, &grouping.key(labels), "{labels} {grouping:?}");
    }
    let distinct: BTreeSet<&Labels> = matches.keys.iter().collect();
    assert_eq!(distinct.len(), matches.keys.len(), "a key is given twice");
    assert_eq!(got.values().collect::<BTreeSet<_>>().len(), matches.keys.len(), "an unused key");
    check_lists(view, matchers, &want);
}

fn is_chosen(series: &SeriesRef, modulus: u64) -> bool {
    (series.group.0 / 7 + u64::from(series.slot.0)).is_multiple_of(modulus)
}

/// The series of `of` that are chosen. A list is narrowed once no miss is left.
struct SomePresent<'a> {
    of: &'a BTreeMap<SeriesRef, &'a Labels>,
    modulus: u64,
    misses_left: u32,
    look_count: usize,
}

impl Presence for SomePresent<'_> {
    fn look(&mut self, group: GroupId, slots: &[Slot]) -> Result<LookupOutcome> {
        assert!(slots.is_sorted_by(|a, b| a < b) && !slots.is_empty(), "{slots:?}");
        let series: Vec<SeriesRef> = slots.iter().map(|&slot| SeriesRef { group, slot }).collect();
        assert!(series.iter().all(|series| self.of.contains_key(series)), "{series:?}");
        self.look_count += 1;
        if series.iter().any(|series| is_chosen(series, self.modulus)) {
            return Ok(LookupOutcome::Present);
        }
        self.misses_left = self.misses_left.wrapping_sub(1);
        Ok(if self.misses_left == 0 { LookupOutcome::TooManyAbsent } else { LookupOutcome::Absent })
    }

    fn groups(&mut self) -> Result<Vec<GroupId>> {
        let here = self.of.keys().filter(|series| is_chosen(series, self.modulus));
        // Unknown groups do no harm.
        Ok(here.map(|series| series.group).chain([GroupId(77_777)]).collect())
    }
}

/// Lists of all matching series, and of those that are present, under limits: they have the values
/// of the present series, in order, and look up no series that does not match. If all series are
/// present, a list looks up one for each of its items, so that it ends with its limit.
fn check_lists(view: &IndexView, matchers: &[Matcher], want: &BTreeMap<SeriesRef, &Labels>) {
    let context = QueryContext::unbounded();
    let found = view.select(matchers, &context).unwrap();
    for (modulus, limit, miss_count_max) in [
        (1, usize::MAX, 1),
        (3, usize::MAX, 9),
        (3, usize::MAX, 1),
        (2, 1, 2),
        (1, 2, 1),
        (5, 9, 3),
    ] {
        let is_present = |series: &SeriesRef| is_chosen(series, modulus);
        let mut present =
            SomePresent { of: want, modulus, misses_left: miss_count_max, look_count: 0 };
        let mut names: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let here = want.iter().filter(|(series, _)| is_present(series));
        for (name, value) in here.flat_map(|(_, labels)| labels.iter()) {
            names.entry(name).or_default().insert(value);
        }
        let mut listed: Vec<String> = Vec::new();
        let mut add = |name: &str| {
            listed.push(name.to_owned());
            let is_last = listed.len() == limit;
            Ok(if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        found.each_name(&context, &mut present, &mut add).unwrap();
        assert!(listed.iter().eq(names.keys().take(limit)), "{listed:?}, want {names:?}");
        assert!(modulus > 1 || present.look_count <= listed.len(), "{} looks", present.look_count);
        for name in NAMES.into_iter().chain(["nothing"]) {
            let mut listed: Vec<String> = Vec::new();
            let mut add = |value: &str| {
                listed.push(value.to_owned());
                let is_last = listed.len() == limit;
                Ok(if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            };
            (present.misses_left, present.look_count) = (miss_count_max, 0);
            found.each_value(name, &context, &mut present, &mut add).unwrap();
            let values = names.get(name).into_iter().flatten().take(limit);
            assert!(listed.iter().eq(values), "{name}: {listed:?}, want {names:?} {matchers:?}");
            let look_count = present.look_count;
            assert!(modulus > 1 || look_count <= listed.len(), "{name}: {look_count} looks");
        }
    }
}

/// More than a tenth of the random histories learn groups.
#[test]
fn histories_learn_groups() {
    let mut runner = TestRunner::deterministic();
    let histories = prop::collection::vec(arb_op(), 1..40);
    let mut has_learned = || {
        let ops = histories.new_tree(&mut runner).unwrap().current();
        let mut world = ModelIndex::new();
        ops.iter().for_each(|op| world.step(op));
        world.index.group_rule(&super::labels("a=v0")) != GroupRule::Other
    };
    let count = (0..100).filter(|_| has_learned()).count();
    assert!(count > 10, "{count} of 100 histories learn groups");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn random_histories_agree_with_a_map(ops in prop::collection::vec(arb_op(), 1..40)) {
        let mut world = ModelIndex::new();
        ops.iter().for_each(|op| world.step(op));
        world.finish();
    }
}
