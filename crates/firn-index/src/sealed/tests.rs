//! Tests of sealed segments: random series against a map, merges, removed series, damaged files.

use std::collections::{BTreeMap, BTreeSet};

use firn_env::Mapped;
use firn_model::{
    Budget, CancelToken, ErrorKind, GroupId, Grouping, Labels, MatchOp, Matcher, Pool,
    QueryContext, Result, SeriesRef, Slot,
};
use proptest::prelude::*;

use crate::key_table::KeyTable;
use crate::matches::{GroupMatch, unite};
use crate::memory::pairs::Pairs;
use crate::presence::LookupOutcome;
use crate::sealed::format::lists::TableKind;
use crate::sealed::testing::file;
use crate::sealed::{
    Builder, HashedLabels, MergeFilter, OpenGroup, PairSource, PartHint, PartInput, Sealed,
    SealedNames, SealedValues,
};

mod damage;
mod fixture;
mod patterns;

const NAMES: [&str; 7] = ["__name__", "a", "b", "instance", "job", "rack", "zone"];
const VALUES: [&str; 6] = ["", "v0", "v1", "v2", "w", "wide"];
const PATTERNS: [&str; 18] = [
    "", "v0", "v1", "no", ".*", ".+", "v.*", "v.+", ".*1.*", "v0|v2", "v0|", "(v1|w)", "[v]0",
    "v?w?", "v", "w.*", "(?i)V0", "v0|v.",
];

/// A series to create.
#[derive(Clone, Debug)]
struct SeriesSpec {
    labels: Labels,
    lone: bool,
    /// Unused slots before it.
    gap: u32,
    /// The segment that contains it.
    segment: usize,
    dead: bool,
}

/// The expected content of a segment.
#[derive(Clone, Debug, Default)]
struct ModelSegment {
    series: BTreeMap<Labels, SeriesRef>,
    /// Identity labels, and whether the group is lone.
    groups: BTreeMap<GroupId, (Labels, bool)>,
    next_slot: BTreeMap<GroupId, u32>,
}

struct DeadSet(BTreeSet<SeriesRef>);

impl MergeFilter for DeadSet {
    fn retain(&self, group: GroupId, slots: &mut Vec<u32>) {
        slots.retain(|&slot| !self.0.contains(&SeriesRef { group, slot: Slot(slot) }));
    }

    fn keeps_group(&self, _: GroupId) -> bool {
        false
    }
}

struct KeepAllSeries;

impl MergeFilter for KeepAllSeries {
    fn retain(&self, _: GroupId, _: &mut Vec<u32>) {}
}

fn arb_labels() -> impl Strategy<Value = Labels> + Clone {
    prop::collection::vec(prop::sample::select(&VALUES[..]), NAMES.len())
        .prop_map(|values| Labels::from_pairs(NAMES.into_iter().zip(values)).unwrap())
        .prop_filter("a series has a label", |labels| !labels.is_empty())
}

fn arb_wish() -> impl Strategy<Value = SeriesSpec> {
    let gap = prop_oneof![9 => Just(0), 1 => 1u32..40];
    (arb_labels(), prop::bool::weighted(0.3), gap, 0usize..3, prop::bool::weighted(0.2)).prop_map(
        |(labels, lone, gap, segment, dead)| SeriesSpec { labels, lone, gap, segment, dead },
    )
}

fn arb_matcher() -> impl Strategy<Value = Matcher> {
    let ops = vec![MatchOp::Equal, MatchOp::NotEqual, MatchOp::Regex, MatchOp::NotRegex];
    let name = prop::sample::select(vec!["__name__", "a", "b", "instance", "job", "nothing"]);
    (name, prop::sample::select(ops), prop::sample::select(&PATTERNS[..]))
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

fn is_identity(name: &str) -> bool {
    ["a", "job"].contains(&name)
}

impl ModelSegment {
    /// Assigns a reference to each spec, as the index would. A group with six slots opens a
    /// sibling.
    fn settle(wishes: &[SeriesSpec], spread: u64) -> (ModelSegment, Vec<(SeriesSpec, SeriesRef)>) {
        let mut world = ModelSegment::default();
        let (mut open, mut settled) = (BTreeMap::new(), Vec::new());
        for wish in wishes {
            if world.series.contains_key(&wish.labels) {
                continue;
            }
            let made = world.groups.len() as u64;
            let fresh = || GroupId(made.wrapping_mul(spread.max(1)) ^ (spread >> 60));
            let series = if wish.lone {
                let group = fresh();
                world.groups.insert(group, (wish.labels.clone(), true));
                SeriesRef { group, slot: Slot(0) }
            } else {
                let identity = wish.labels.filter(is_identity);
                let known = open.get(&identity).copied();
                let group = match known.filter(|group| world.next_slot[group] < 6) {
                    Some(group) => group,
                    None => fresh(),
                };
                open.insert(identity.clone(), group);
                world.groups.insert(group, (identity, false));
                let next = world.next_slot.entry(group).or_default();
                let slot = Slot(*next + wish.gap);
                *next = slot.0 + 1;
                SeriesRef { group, slot }
            };
            world.series.insert(wish.labels.clone(), series);
            settled.push((wish.clone(), series));
        }
        (world, settled)
    }

    fn keep(&mut self, keep: impl Fn(&Labels, SeriesRef) -> bool) {
        self.series.retain(|labels, series| keep(labels, *series));
        let left: BTreeSet<GroupId> = self.series.values().map(|series| series.group).collect();
        self.groups.retain(|group, _| left.contains(group));
        self.next_slot.retain(|group, _| left.contains(group));
    }

    /// Sets the next slots to those of a segment with only these series.
    fn forget_next_slots(&mut self) {
        self.next_slot.clear();
        for series in self.series.values().filter(|series| !self.groups[&series.group].1) {
            let next = self.next_slot.entry(series.group).or_default();
            *next = (*next).max(series.slot.0 + 1);
        }
    }
}

/// All pairs of a world, unsorted.
fn pairs_of(world: &ModelSegment) -> Pairs {
    let mut pairs = Pairs::default();
    for (name, value) in world.series.keys().rev().flat_map(Labels::iter) {
        pairs.intern(name.as_bytes(), value.as_bytes()).unwrap();
    }
    pairs
}

/// Adds a world to the builder; its pairs are source `source`.
fn add(builder: &mut Builder<'_>, (source, pairs): (usize, &Pairs), world: &ModelSegment) {
    fn pair_ids<'p>(
        builder: &Builder<'_>,
        (source, pairs): (usize, &Pairs),
        of: impl Iterator<Item = (&'p str, &'p str)>,
    ) -> Vec<u32> {
        let id = |(name, value): (&str, &str)| pairs.find(name.as_bytes(), value.as_bytes());
        of.map(|pair| builder.pair(source, id(pair).unwrap())).collect()
    }
    let source = (source, pairs);
    let mut groups: BTreeMap<GroupId, Vec<(Slot, &Labels)>> = BTreeMap::new();
    for (labels, series) in &world.series {
        groups.entry(series.group).or_default().push((series.slot, labels));
    }
    // Neither in order of ids nor of slots.
    for (group, members) in groups.into_iter().rev() {
        let (identity, lone) = &world.groups[&group];
        let identity = pair_ids(builder, source, identity.iter());
        let next_slot = world.next_slot.get(&group).copied().unwrap_or(0);
        builder.part(PartInput { group, lone: *lone, identity: &identity, next_slot });
        for (slot, labels) in members.into_iter().filter(|_| !lone) {
            let rest = labels.iter().filter(|pair| !is_identity(pair.0));
            let rest = pair_ids(builder, source, rest);
            builder.member(slot.0, &rest);
        }
    }
}

fn built(builder: Builder<'_>) -> Sealed {
    let file = file();
    let totals = builder.finish(&*file).unwrap();
    let sealed = Sealed::open(file.map().unwrap(), "test.seg").unwrap();
    assert_eq!(totals.file_bytes, sealed.file_bytes());
    assert_eq!(totals.series_count, sealed.series_count());
    assert_eq!(totals.group_count, sealed.group_count());
    sealed
}

fn segment(world: &ModelSegment) -> Sealed {
    let pairs = pairs_of(world);
    let mut builder = Builder::new(&[PairSource::Memory(&pairs)]).unwrap();
    add(&mut builder, (0, &pairs), world);
    built(builder)
}

fn find(sealed: &Sealed, labels: &Labels) -> Result<Option<SeriesRef>> {
    Ok(sealed.find(&HashedLabels::new(labels))?.map(|found| found.series))
}

/// The rows of lone series that a lookup of these labels tries.
fn tried_count(sealed: &Sealed, labels: &Labels) -> usize {
    let hashed = HashedLabels::new(labels);
    let pairs = hashed.pairs().iter().map(|pair| &pair.0);
    let mut rows = sealed.candidates(TableKind::Lone, hashed.hash(), pairs).unwrap();
    std::iter::from_fn(|| rows.next(&sealed.blocks).unwrap()).count()
}

/// Before, each new series was compared with all series whose hashes a sender had chosen to be in
/// its bucket: new series took time in the square of their number.
#[test]
fn label_sets_with_chosen_hashes_are_found_at_once() {
    const VALUES: usize = 4_096;
    let hash = |name: &str, value: &str| {
        HashedLabels::new(&Labels::from_pairs([(name, value)]).unwrap()).hash()
    };
    let hashes =
        |name: &str| -> Vec<u64> { (0..VALUES).map(|idx| hash(name, &idx.to_string())).collect() };
    let (of_a, of_b, metric) = (hashes("a"), hashes("b"), hash("__name__", "m"));
    let mut chosen = Vec::new();
    for (a, hash_a) in of_a.iter().enumerate() {
        for (b, hash_b) in of_b.iter().enumerate() {
            let sum = metric.wrapping_add(*hash_a).wrapping_add(*hash_b);
            if sum >> 56 == 0x55 && sum & 0xff == 0xaa {
                let (a, b) = (a.to_string(), b.to_string());
                let pairs = [("__name__", "m"), ("a", &*a), ("b", &*b)];
                chosen.push(Labels::from_pairs(pairs).unwrap());
            }
        }
    }
    assert!(chosen.len() > 150, "{} label sets", chosen.len());
    let new = chosen.split_off(chosen.len() - 50);
    let wishes = chosen.iter().map(|labels| SeriesSpec {
        labels: labels.clone(),
        lone: true,
        gap: 0,
        segment: 0,
        dead: false,
    });
    let (world, _) = ModelSegment::settle(&wishes.collect::<Vec<_>>(), 1);
    let sealed = segment(&world);
    check(&sealed, &world);
    for labels in &chosen {
        assert_eq!(tried_count(&sealed, labels), 1, "{labels}");
    }
    for labels in &new {
        assert_eq!(find(&sealed, labels).unwrap(), None);
        assert_eq!(tried_count(&sealed, labels), 0, "{labels}");
    }
}

/// Compares the results of all lookups with the map.
fn check(sealed: &Sealed, world: &ModelSegment) {
    assert_eq!(sealed.series_count(), world.series.len() as u64);
    assert_eq!(sealed.group_count(), world.groups.len() as u64);
    for (labels, &series) in &world.series {
        assert_eq!(find(sealed, labels).unwrap(), Some(series), "{labels}");
        assert_eq!(sealed.labels(series).unwrap().as_ref(), Some(labels));
        assert!(sealed.contains(series).unwrap());
        let beside = SeriesRef { slot: Slot(series.slot.0 + 1), ..series };
        let is_known = world.series.values().any(|series| *series == beside);
        assert_eq!(sealed.contains(beside).unwrap(), is_known, "{beside}");
        assert_eq!(sealed.labels(beside).unwrap().is_some(), is_known);
    }
    for (group, (identity, lone)) in &world.groups {
        assert_eq!(sealed.group_labels(*group).unwrap(), Some((identity.clone(), *lone)));
        let next = if *lone { 1 } else { world.next_slot[group] };
        assert_eq!(sealed.next_slot(*group).unwrap(), Some(next), "{group}");
    }
    let unknown = GroupId(u64::MAX - 77);
    assert_eq!(sealed.next_slot(unknown).unwrap(), None);
    assert_eq!(sealed.group_labels(unknown).unwrap(), None);
    check_neighbours(sealed, world);
    check_open_groups(sealed, world);
    check_pairs(sealed, world);
    check_lists(sealed, &[], &world.series.iter().map(|(labels, &s)| (s, labels)).collect());
}

/// A lookup by hint returns the same reference or none.
fn check_neighbours(sealed: &Sealed, world: &ModelSegment) {
    let mut last = None;
    let unknown = Labels::from_pairs([("a", "v0"), ("zz", "v0")]).unwrap();
    // First by group, then by labels.
    let mut by_group: Vec<&Labels> = world.series.keys().collect();
    by_group.sort_by_key(|labels| world.series[*labels]);
    for labels in by_group.into_iter().chain(world.series.keys()) {
        let hashed = HashedLabels::new(labels);
        let series = world.series[labels];
        if let Some(neighbour) = &last {
            let neighbour: &PartHint<'_, '_> = neighbour;
            assert!(neighbour.find(&hashed).is_none_or(|found| found == series), "{labels}");
            assert_eq!(neighbour.find(&HashedLabels::new(&unknown)), None);
            let beside = sealed.find_beside(neighbour, &hashed).unwrap();
            assert!(beside.is_none_or(|found| found.series == series), "{labels}");
        }
        let found = sealed.find(&hashed).unwrap().unwrap();
        last = sealed.neighbour(&hashed, found, last).unwrap();
        if let Some(neighbour) = &last
            && !world.groups[&series.group].1
        {
            assert_eq!(neighbour.find(&hashed), Some(series), "{labels}");
        }
    }
}

fn check_open_groups(sealed: &Sealed, world: &ModelSegment) {
    let identities: BTreeSet<Labels> =
        world.series.keys().map(|labels| labels.filter(is_identity)).collect();
    for identity in identities {
        let groups: Vec<GroupId> =
            world.groups.iter().filter(|g| g.1.0 == identity && !g.1.1).map(|g| *g.0).collect();
        let members = |group: GroupId| world.series.values().filter(|s| s.group == group).count();
        let want = groups.last().map(|&group| OpenGroup {
            group,
            next_slot: world.next_slot[&group],
            live_count: members(group) as u32,
        });
        let hashed = HashedLabels::new(&identity);
        assert_eq!(sealed.find_open_group(&hashed).unwrap(), want, "{identity}");
        let count: usize = groups.iter().map(|&group| members(group)).sum();
        assert_eq!(sealed.group_series_count(&hashed).unwrap(), count as u64);
    }
}

fn check_pairs(sealed: &Sealed, world: &ModelSegment) {
    let mut want: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for pair in world.series.keys().flat_map(|labels| labels.iter()) {
        *want.entry(pair).or_default() += 1;
    }
    let mut counts = sealed.pair_counts(&CancelToken::new()).unwrap();
    let mut got = Vec::new();
    while counts.advance().unwrap() {
        got.push(((counts.name().to_owned(), counts.value().to_owned()), counts.series_count()));
    }
    let names: BTreeSet<&str> = want.keys().map(|pair| pair.0).collect();
    assert_eq!(sealed.pair_count(), want.len() as u64);
    assert_eq!(sealed.name_count(), names.len() as u64);
    assert_eq!(got.len(), want.len());
    for (((name, value), count), (pair, want)) in got.iter().zip(&want) {
        assert_eq!(((name.as_str(), value.as_str()), count), (*pair, want));
        assert_eq!(sealed.pair_series_count(name, value).unwrap(), *want);
    }
    assert_eq!(sealed.pair_series_count("a", "nothing").unwrap(), 0);
    assert_eq!(sealed.pair_series_count("nothing", "a").unwrap(), 0);
}

/// Names and values of all matching series, and of those that are present.
fn check_lists(sealed: &Sealed, matchers: &[Matcher], want: &BTreeMap<SeriesRef, &Labels>) {
    let context = QueryContext::unbounded();
    let found = sealed.select(matchers, &context).unwrap();
    for modulus in [1, 3] {
        let is_present = |series: &SeriesRef| {
            assert!(want.contains_key(series), "{series:?} does not match {matchers:?}");
            (series.group.0 + u64::from(series.slot.0)).is_multiple_of(modulus)
        };
        let mut present = |group, slots: &[Slot]| {
            assert!(slots.is_sorted_by(|a, b| a < b) && !slots.is_empty(), "{slots:?}");
            Ok(slots.iter().any(|&slot| is_present(&SeriesRef { group, slot })))
        };
        let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let here = want.iter().filter(|(series, _)| is_present(series));
        for (name, value) in here.flat_map(|(_, labels)| labels.iter()) {
            names.entry(name.to_owned()).or_default().insert(value.to_owned());
        }
        let mut listed = Vec::new();
        let mut all = SealedNames::open(sealed, &found, &context).unwrap();
        while let Some(name) = all.text().map(str::to_owned) {
            if all.find_present(&context, &mut present).unwrap() == LookupOutcome::Present {
                listed.push(name);
            }
            all.advance().unwrap();
        }
        assert_eq!(listed, names.keys().cloned().collect::<Vec<_>>());
        for name in NAMES {
            let mut listed = Vec::new();
            let mut values = SealedValues::open(sealed, &found, name, &context).unwrap();
            while let Some(values) = &mut values
                && let Some(value) = values.text().map(str::to_owned)
            {
                if values.find_present(&context, &mut present).unwrap() == LookupOutcome::Present {
                    listed.push(value);
                }
                values.advance().unwrap();
            }
            let want: Vec<String> = names.get(name).into_iter().flatten().cloned().collect();
            assert_eq!(listed, want, "{name} {matchers:?}");
        }
    }
}

fn matches(
    sealed: &Sealed,
    matchers: &[Matcher],
    grouping: &Grouping,
) -> Result<(Vec<GroupMatch>, Vec<Labels>)> {
    let (held, context) = (Budget::unlimited().empty(Pool::Query), QueryContext::unbounded());
    let mut keys = KeyTable::new(grouping.clone(), held);
    let mut out = Vec::new();
    let found = sealed.select(matchers, &context)?;
    sealed.collect_groups(&found, &mut keys, &context, &mut out)?;
    unite(&mut out);
    sealed.count(&found, &context)?;
    Ok((out, keys.finish(0)?.0))
}

fn check_query(sealed: &Sealed, world: &ModelSegment, matchers: &[Matcher], grouping: &Grouping) {
    let passes =
        |labels: &Labels| matchers.iter().all(|m| m.matches(labels.get(m.name()).unwrap_or("")));
    let want: BTreeMap<SeriesRef, &Labels> =
        world.series.iter().filter(|s| passes(s.0)).map(|(labels, &s)| (s, labels)).collect();
    let (groups, keys) = matches(sealed, matchers, grouping).unwrap();
    let found = sealed.select(matchers, &QueryContext::unbounded()).unwrap();
    assert_eq!(
        sealed.count(&found, &QueryContext::unbounded()).unwrap(),
        want.len() as u64,
        "{matchers:?}"
    );
    let mut got = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for group in &groups {
        assert!(seen.insert(group.group), "{} comes twice", group.group);
        assert!(!group.members.is_empty());
        assert!(group.members.is_sorted_by(|a, b| a.slot < b.slot));
        for member in &group.members {
            got.insert(SeriesRef { group: group.group, slot: member.slot }, member.key);
        }
    }
    assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>(), "{matchers:?}");
    for (series, labels) in &want {
        assert_eq!(keys[got[series] as usize], grouping.key(labels), "{labels} {grouping:?}");
    }
    assert_eq!(got.values().collect::<BTreeSet<_>>().len(), keys.len(), "an unused key");
    check_lists(sealed, matchers, &want);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn a_segment_agrees_with_a_map(
        wishes in prop::collection::vec(arb_wish(), 0..120),
        spread in prop_oneof![Just(1u64), Just(64), any::<u64>()],
        queries in prop::collection::vec(
            (prop::collection::vec(arb_matcher(), 0..4), arb_grouping()),
            6,
        ),
        unknown in prop::collection::vec(arb_labels(), 10),
    ) {
        let (world, _) = ModelSegment::settle(&wishes, spread);
        let sealed = segment(&world);
        check(&sealed, &world);
        for labels in &unknown {
            let want = world.series.get(labels).copied();
            prop_assert_eq!(find(&sealed, labels).unwrap(), want);
        }
        for (matchers, grouping) in &queries {
            check_query(&sealed, &world, matchers, grouping);
        }
    }

    /// Groups with similar members: shapes with lists of missing members.
    #[test]
    fn similar_groups_are_counted_with_lists_of_missing_members(
        group_count in 10usize..70,
        lacks in prop::collection::vec(0u8..64, 70),
        (matchers, grouping) in (prop::collection::vec(arb_matcher(), 0..4), arb_grouping()),
    ) {
        let mut wishes = Vec::new();
        for group in 0..group_count {
            for member in 0..6u8 {
                let many = group.to_string();
                let (name, b) = (VALUES[1 + member as usize % 5], VALUES[1 + member as usize / 3]);
                let a = VALUES[group % 6];
                let pairs = [("job", &*many), ("a", a), ("__name__", name), ("b", b)];
                let labels = Labels::from_pairs(pairs).unwrap();
                if lacks[group] & 1 << member == 0 || group % 3 == 0 {
                    let (lone, gap, segment, dead) = (false, 0, 0, false);
                    wishes.push(SeriesSpec { labels, lone, gap, segment, dead });
                }
            }
        }
        let (world, _) = ModelSegment::settle(&wishes, 64);
        let sealed = segment(&world);
        check(&sealed, &world);
        check_query(&sealed, &world, &matchers, &grouping);
        for (name, op, value) in [
            ("__name__", MatchOp::Equal, "v1"),
            ("__name__", MatchOp::NotEqual, "v1"),
            ("a", MatchOp::Equal, "v2"),
            ("b", MatchOp::Equal, "v0"), ("job", MatchOp::Regex, "[1-4].*"),
        ] {
            let matcher = Matcher::new(name, op, value).unwrap();
            let mut with = matchers.clone();
            with.push(matcher.clone());
            check_query(&sealed, &world, &[matcher], &grouping);
            check_query(&sealed, &world, &with, &grouping);
        }
    }

    /// Values that the letter code compresses, each on one series or group: every bunch of lists
    /// has one row per pair.
    #[test]
    fn unique_values_are_found_with_any_letter_code(
        seed in any::<u64>(),
        (count, lone) in (100u64..160, any::<bool>()),
        name in prop::sample::select(vec!["a", "instance"]),
        (matchers, grouping) in (prop::collection::vec(arb_matcher(), 0..3), arb_grouping()),
    ) {
        let text = |number: u64| {
            format!("{:016x}", (number ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        };
        let wish = |number: u64| {
            let text = text(number);
            let pairs = [(name, &*text), ("__name__", VALUES[1 + number as usize % 4])];
            let labels = Labels::from_pairs(pairs).unwrap();
            SeriesSpec { labels, lone, gap: 0, segment: 0, dead: false }
        };
        let (world, _) = ModelSegment::settle(&(0..count).map(wish).collect::<Vec<_>>(), 64);
        let sealed = segment(&world);
        let bytes = sealed.bytes_by_use()[0].1;
        prop_assert!(bytes < count * 12, "{} texts of 16 letters take {} bytes", count, bytes);
        check(&sealed, &world);
        check_query(&sealed, &world, &matchers, &grouping);
        let prefix = format!("{}.*", &text(9)[..1]);
        for pattern in [text(7), prefix, ".*[0-7]".to_owned(), ".*a.*".to_owned()] {
            let mut with = matchers.clone();
            with.push(Matcher::new(name, MatchOp::Regex, pattern).unwrap());
            check_query(&sealed, &world, &with, &grouping);
        }
        prop_assert_eq!(find(&sealed, &wish(count + 1).labels).unwrap(), None);
    }

    #[test]
    fn a_merge_equals_a_segment_of_all_live_series(
        wishes in prop::collection::vec(arb_wish(), 0..120),
        queries in prop::collection::vec(
            (prop::collection::vec(arb_matcher(), 0..4), arb_grouping()),
            4,
        ),
    ) {
        let (world, settled) = ModelSegment::settle(&wishes, 64);
        let dead = settled.iter().filter(|s| s.0.dead).map(|s| s.1).collect();
        let dead = DeadSet(dead);
        let parts = [0, 1, 2].map(|number| {
            let mut part = world.clone();
            let here: BTreeSet<&Labels> =
                settled.iter().filter(|s| s.0.segment == number).map(|s| &s.0.labels).collect();
            part.keep(|labels, _| here.contains(labels));
            part.forget_next_slots();
            part
        });
        let [first, second, mut third] = parts;
        let sealed = [&first, &second].map(segment);
        check(&sealed[0], &first);
        check(&sealed[1], &second);
        // The live series of the third come from memory, some of them twice.
        third.keep(|_, series| !dead.0.contains(&series));
        let pairs = pairs_of(&third);
        let files = sealed.each_ref().map(PairSource::File);
        let sources = [files[0], PairSource::Memory(&pairs), files[1]];
        let mut builder = Builder::new(&sources).unwrap();
        builder.merge(0, &sealed[0], &dead).unwrap();
        builder.merge(2, &sealed[1], &dead).unwrap();
        add(&mut builder, (1, &pairs), &third);
        third.keep(|_, series| series.slot.0 % 2 == 0);
        add(&mut builder, (1, &pairs), &third);
        let merged = built(builder);
        let mut left = world.clone();
        left.keep(|_, series| !dead.0.contains(&series));
        // A slot that a segment has seen is not issued again while its group has members there.
        for (group, next) in &mut left.next_slot {
            let of_group = |s: &&(SeriesSpec, SeriesRef)| s.1.group == *group;
            let known = settled.iter().filter(of_group);
            let alive_in = |segment: usize| {
                settled.iter().filter(of_group).any(|s| s.0.segment == segment && !s.0.dead)
            };
            *next = known.filter(|s| alive_in(s.0.segment)).map(|s| s.1.slot.0 + 1).max().unwrap();
        }
        check(&merged, &left);
        for (matchers, grouping) in &queries {
            check_query(&merged, &left, matchers, grouping);
        }
    }
}

#[test]
fn a_group_without_members_keeps_its_next_slot_if_it_has_members_elsewhere() {
    let labels = |text: &str| Labels::from_pairs([("a", "v"), ("b", text)]).unwrap();
    let wishes: Vec<SeriesSpec> = ["1", "2", "3"]
        .map(|text| SeriesSpec {
            labels: labels(text),
            lone: false,
            gap: 0,
            segment: 0,
            dead: true,
        })
        .into();
    let (world, settled) = ModelSegment::settle(&wishes, 1);
    let group = settled[0].1.group;
    let sealed = segment(&world);
    struct DropAll;
    impl MergeFilter for DropAll {
        fn retain(&self, _: GroupId, slots: &mut Vec<u32>) {
            slots.clear();
        }
    }
    let mut builder = Builder::new(&[PairSource::File(&sealed)]).unwrap();
    builder.merge(0, &sealed, &DropAll).unwrap();
    let merged = built(builder);
    assert_eq!((merged.series_count(), merged.group_count()), (0, 1));
    assert_eq!(merged.next_slot(group).unwrap(), Some(3));
    let (found, _) = matches(&merged, &[], &Grouping::Series).unwrap();
    assert!(found.is_empty());
    check_lists(&merged, &[], &BTreeMap::new());
    assert!(!merged.pair_counts(&CancelToken::new()).unwrap().advance().unwrap());
    let mut builder = Builder::new(&[PairSource::File(&merged)]).unwrap();
    builder.merge(0, &merged, &DeadSet(BTreeSet::new())).unwrap();
    assert_eq!(built(builder).group_count(), 0);
}

#[test]
fn contradictory_input_is_refused() {
    let f = |give: &dyn Fn(&mut Builder<'_>, &[u32])| {
        let mut texts = Pairs::default();
        let pairs = ["1", "2", "3"].map(|value| texts.intern(b"a", value.as_bytes()).unwrap());
        let mut builder = Builder::new(&[PairSource::Memory(&texts)]).unwrap();
        let pairs = pairs.map(|pair| builder.pair(0, pair));
        give(&mut builder, &pairs);
        builder.finish(&*file()).unwrap_err().to_string()
    };
    let part = |lone: bool, identity: &[u32], builder: &mut Builder<'_>| {
        builder.part(PartInput { group: GroupId(7), lone, identity, next_slot: 0 });
    };
    let text = f(&|builder, pairs| {
        part(true, &pairs[..1], builder);
        part(true, &pairs[1..2], builder);
    });
    assert!(text.contains("two label sets for g7"), "{text}");
    let text = f(&|builder, pairs| {
        part(true, &pairs[..1], builder);
        part(false, &[], builder);
    });
    assert!(text.contains("both as a lone series and as a group"), "{text}");
    let text = f(&|builder, pairs| {
        part(false, &pairs[..1], builder);
        part(false, &pairs[1..2], builder);
    });
    assert!(text.contains("two identities for g7"), "{text}");
    let text = f(&|builder, pairs| {
        for pair in 0..2 {
            part(false, &[], builder);
            builder.member(3, &pairs[pair..=pair]);
        }
    });
    assert!(text.contains("two label sets for slot 3 of g7"), "{text}");
    let text = f(&|builder, pairs| part(true, &pairs[..2], builder));
    assert!(text.contains("a repeated name"), "{text}");
}

#[test]
fn a_cancelled_selection_ends() {
    let (world, _) = ModelSegment::settle(
        &[SeriesSpec {
            labels: Labels::from_pairs([("a", "v")]).unwrap(),
            lone: true,
            gap: 0,
            segment: 0,
            dead: false,
        }],
        1,
    );
    let (sealed, context) = (segment(&world), QueryContext::unbounded());
    context.cancel.cancel();
    let error = sealed.select(&[], &context).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Canceled);
}
