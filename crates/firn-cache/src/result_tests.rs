//! Tests of the result cache: a small database with late writes, deletes, new series, snapshots
//! that are held and changes that are announced long before they become visible; every answer
//! equals the computed one.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use firn_model::{
    Budget, Change, ChangeKind, ChangeSink, CommitSeq, GroupId, Labels, MatchOp, Matcher, Sample,
    SeriesRef, Slot, TimeRange, Timestamp,
};
use firn_sim::{Operation, Rng, Sim, for_seeds};

use crate::answer::{Answer, AnswerSeries};
use crate::dependency::{Dependency, Span};
use crate::mutant::Mutant;
use crate::result::{QueryRange, ResultCache, ResultOptions, ResultQuery, ResultStats};
use crate::store::{OwnerHistory, StoreOptions};

const HOSTS: u64 = 12;
const METRICS: [&str; 3] = ["a", "b", "c"];
const LOOKBACK_MS: i64 = 40;

/// All samples at one time, by series, then timestamp.
type SeriesMap = BTreeMap<Labels, BTreeMap<Timestamp, f64>>;

/// An expression: the sum over the window of one selector, less the count in that of another.
struct Expression {
    text: &'static str,
    dependencies: Vec<Dependency>,
    is_by_series: bool,
}

#[derive(Clone)]
struct Frozen {
    number: CommitSeq,
    samples: Rc<SeriesMap>,
}

/// A change that was announced.
#[derive(Clone)]
struct AnnouncedChange {
    change: Change,
    series: Vec<Labels>,
    /// `None` deletes.
    value: Option<f64>,
}

struct ResultWorld {
    seed: u64,
    sim: Sim,
    rng: Rng,
    mutant: Option<Mutant>,
    cache: Option<ResultCache>,
    expressions: Vec<Expression>,
    visible: SeriesMap,
    /// Announced and not yet visible.
    pending: Vec<AnnouncedChange>,
    announced: Vec<AnnouncedChange>,
    /// Announced and failed: not visible, but the log may have it.
    failed: Vec<AnnouncedChange>,
    number: u64,
    floor: u64,
    now: Timestamp,
    held: Vec<Frozen>,
    lookups: u64,
    lookups_with_something: u64,
    steps_compared: u64,
    texts_compared: u64,
    digest: u64,
    /// Expression, start, end and step of the last query.
    last_panel: Option<(usize, Timestamp, Timestamp, i64)>,
}

fn matcher(name: &str, op: MatchOp, value: &str) -> Matcher {
    Matcher::new(name, op, value).unwrap()
}

fn expressions() -> Vec<Expression> {
    let metric = |name| matcher("__name__", MatchOp::Equal, name);
    let span = |first_ms, last_ms| Span::Relative { first_ms, last_ms };
    vec![
        Expression {
            text: "a",
            dependencies: vec![Dependency {
                matchers: vec![metric("a")],
                span: span(-LOOKBACK_MS, 0),
            }],
            is_by_series: true,
        },
        Expression {
            text: "sum(sum_over_time(b{host=~\"h[0-4]\"}[60ms] offset 100ms)) \
                   - count({host!=\"h1\"})",
            dependencies: vec![
                Dependency {
                    matchers: vec![metric("b"), matcher("host", MatchOp::Regex, "h[0-4]")],
                    span: span(-160, -100),
                },
                Dependency {
                    matchers: vec![matcher("host", MatchOp::NotEqual, "h1")],
                    span: span(-LOOKBACK_MS, 0),
                },
            ],
            is_by_series: false,
        },
        Expression {
            text: "c + count(a @ 300)",
            dependencies: vec![
                Dependency { matchers: vec![metric("c")], span: span(-LOOKBACK_MS, 30) },
                Dependency {
                    matchers: vec![metric("a")],
                    span: Span::Fixed(TimeRange::new(280, 300)),
                },
            ],
            is_by_series: true,
        },
    ]
}

impl Expression {
    /// The answer as a database computes it.
    fn compute(&self, samples: &SeriesMap, steps: impl Iterator<Item = Timestamp>) -> Answer {
        let mut out: BTreeMap<Labels, Vec<Sample>> = BTreeMap::new();
        for ts in steps {
            let mut sums: BTreeMap<Labels, f64> = BTreeMap::new();
            let mut count = 0.0;
            for (idx, dependency) in self.dependencies.iter().enumerate() {
                let range = dependency.span.needed_by(TimeRange::at(ts));
                for (labels, points) in samples {
                    if !matches_all(&dependency.matchers, labels) {
                        continue;
                    }
                    for value in points.range(range.start..=range.end).map(|point| point.1) {
                        let key = if self.is_by_series { labels.clone() } else { Labels::empty() };
                        match idx {
                            0 => *sums.entry(key).or_default() += value,
                            _ => count += 1.0,
                        }
                    }
                }
            }
            for (labels, sum) in sums {
                out.entry(labels).or_default().push(Sample { ts, value: sum - count });
            }
        }
        let series = out.into_iter().map(|(labels, floats)| AnswerSeries {
            labels,
            floats,
            histograms: Vec::new(),
        });
        Answer { series: series.collect() }
    }

    fn groups(&self, samples: &SeriesMap) -> Vec<Vec<GroupId>> {
        let of = |dependency: &Dependency| groups_of(&dependency.matchers, samples);
        self.dependencies.iter().map(of).collect()
    }
}

fn matches_all(matchers: &[Matcher], labels: &Labels) -> bool {
    matchers.iter().all(|one| one.matches(labels.get(one.name()).unwrap_or_default()))
}

fn groups_of(matchers: &[Matcher], samples: &SeriesMap) -> Vec<GroupId> {
    let found = samples.keys().filter(|labels| matches_all(matchers, labels));
    found.map(group_of).collect::<BTreeSet<_>>().into_iter().collect()
}

/// One group per host.
fn group_of(labels: &Labels) -> GroupId {
    GroupId(labels.get("host").and_then(|host| host[1..].parse().ok()).unwrap())
}

fn options(mutant: Option<Mutant>) -> ResultOptions {
    ResultOptions {
        hot_bytes_max: 48 << 10,
        shared_samples_min: 0,
        answer_bytes_max: 64 << 20,
        store: StoreOptions {
            slab_bytes: 16 << 10,
            flash_bytes_max: 10 * (16 << 10),
            waiting_slabs_max: 3,
            compaction_trigger: 3,
            mutant,
            ..StoreOptions::default()
        },
        change_count_max: 40,
        defined_count_max: 6,
        group_count_max: 8,
    }
}

impl ResultWorld {
    fn new(seed: u64, mutant: Option<Mutant>) -> ResultWorld {
        let mut world = ResultWorld {
            seed,
            sim: Sim::new(seed),
            rng: Rng::new(seed ^ 0xab5),
            mutant,
            cache: None,
            expressions: expressions(),
            visible: SeriesMap::new(),
            pending: Vec::new(),
            announced: Vec::new(),
            failed: Vec::new(),
            number: 0,
            floor: 0,
            now: 500,
            held: Vec::new(),
            lookups: 0,
            lookups_with_something: 0,
            steps_compared: 0,
            texts_compared: 0,
            digest: 0,
            last_panel: None,
        };
        world.open();
        world
    }

    fn cache(&self) -> &ResultCache {
        self.cache.as_ref().unwrap()
    }

    /// Every third seed has no hot memory, so that all answers are read from slabs.
    fn options(&self) -> ResultOptions {
        let mut options = options(self.mutant);
        if self.seed.is_multiple_of(3) {
            options.hot_bytes_max = 0;
        }
        options
    }

    fn open(&mut self) {
        let recovered =
            OwnerHistory { replays_after: CommitSeq(self.floor), through: CommitSeq(self.number) };
        for _ in 0..50 {
            let disk = self.sim.env().disk;
            let budget = Budget::new(4 << 20);
            match ResultCache::open(disk, "cache/results", &budget, self.options(), Some(recovered))
            {
                Ok(cache) => {
                    if self.rng.chance(0.8) {
                        cache.rematch(|matchers| Ok(groups_of(matchers, &self.visible))).unwrap();
                    }
                    for AnnouncedChange { change, .. } in &self.announced {
                        if change.number.0 > self.floor {
                            cache.replayed(change.range, change.number);
                        }
                    }
                    self.cache = Some(cache);
                    return;
                }
                Err(_) => {
                    self.sim.faults.clear();
                    if self.sim.faults.is_off() {
                        self.sim.restart();
                    }
                }
            }
        }
        panic!("the cache does not open in 50 tries");
    }

    /// Freezes the visible samples, and the number up to which no change is missing.
    fn freeze(&self) -> Frozen {
        let oldest = self.pending.iter().map(|announced| announced.change.number.0).min();
        let number = CommitSeq(oldest.map_or(self.number, |oldest| oldest - 1));
        Frozen { number, samples: Rc::new(self.visible.clone()) }
    }

    fn some_ts(&mut self) -> Timestamp {
        if self.rng.chance(0.85) {
            self.now - self.rng.between(0, 15)
        } else {
            self.rng.between(0, self.now)
        }
    }

    fn announce(&mut self, series: Vec<Labels>, range: TimeRange, value: Option<f64>) {
        self.number += 1;
        let groups: BTreeSet<GroupId> = series.iter().map(group_of).collect();
        let change = Change {
            number: CommitSeq(self.number),
            groups: groups.into_iter().collect(),
            range,
            kind: if value.is_some() { ChangeKind::Write } else { ChangeKind::Delete },
        };
        self.cache().changed(change.clone());
        let announced = AnnouncedChange { change, series, value };
        if self.seed.is_multiple_of(4) && self.rng.chance(0.02) {
            self.cache().failed();
            return self.failed.push(announced);
        }
        self.announced.push(announced.clone());
        self.pending.push(announced);
        if self.rng.chance(0.7) {
            self.publish();
        }
    }

    /// Some of the announced changes become visible, in any order.
    fn publish(&mut self) {
        while !self.pending.is_empty() {
            let idx = self.rng.below(self.pending.len() as u64) as usize;
            let announced = self.pending.swap_remove(idx);
            self.apply(&announced);
            if self.rng.chance(0.2) {
                return;
            }
        }
    }

    fn apply(&mut self, announced: &AnnouncedChange) {
        for labels in &announced.series {
            let points = self.visible.entry(labels.clone()).or_default();
            match announced.value {
                Some(value) => {
                    points.insert(announced.change.range.start, value);
                }
                None => points.retain(|&ts, _| !announced.change.range.contains(ts)),
            }
        }
    }

    fn write(&mut self) {
        let host = self.rng.below(HOSTS.min(2 + self.number / 8));
        let metric = *self.rng.pick(&METRICS);
        let host = format!("h{host}");
        let labels = Labels::from_pairs([("__name__", metric), ("host", &host)]).unwrap();
        if !self.visible.contains_key(&labels) {
            // It is visible to snapshots, then announced to the cache, then it can be written.
            self.visible.insert(labels.clone(), BTreeMap::new());
            let series = SeriesRef { group: group_of(&labels), slot: Slot(0) };
            self.cache().defined(series, &labels);
        }
        let ts = self.some_ts();
        let value = f64::from_bits(self.rng.next_u64() >> 12 | 0x3ff0 << 48);
        self.announce(vec![labels], TimeRange::at(ts), Some(value));
    }

    fn delete(&mut self) {
        let metric = *self.rng.pick(&METRICS);
        let series: Vec<Labels> =
            self.visible.keys().filter(|labels| labels.metric_name() == metric).cloned().collect();
        let start = self.some_ts();
        let range = TimeRange::new(start, start + self.rng.between(0, 20));
        if !series.is_empty() {
            self.announce(series, range, None);
        }
    }

    fn change(&mut self) {
        match self.rng.below(40) {
            0..=1 => self.delete(),
            // A number was drawn for a change that the log had no room for.
            2 => self.number += 1,
            _ => self.write(),
        }
    }

    /// A query, with changes between its steps.
    fn query(&mut self) {
        let session = self.cache().begin(&Budget::unlimited());
        let mut frozen = self.freeze();
        if self.rng.chance(0.1) && !self.held.is_empty() {
            // A lookup may use an older snapshot; a fill may not, because this session misses the
            // series defined since that snapshot.
            frozen = self.rng.pick(&self.held).clone();
        }
        let is_present = frozen.number == self.freeze().number;
        if self.rng.chance(0.05) {
            self.held.push(frozen.clone());
        }
        if self.rng.chance(0.2) {
            self.change();
        }
        let expression = self.rng.below(self.expressions.len() as u64) as usize;
        let step_ms = *self.rng.pick(&[10, 10, 15]);
        let steps = *self.rng.pick(&[3, 20, 40]);
        // Dashboards align their windows; some people do not.
        let phase = if self.rng.chance(0.05) { 3 } else { 0 };
        let behind = *self.rng.pick(&[0, 20, 200]);
        let end = (self.now - behind).div_euclid(step_ms) * step_ms + phase;
        let start = end - steps * step_ms;
        // Equal panels are refreshed one after the other.
        let repeated = self.last_panel.filter(|_| self.rng.chance(0.4));
        let panel = repeated.unwrap_or((expression, start, end, step_ms));
        self.last_panel = Some(panel);
        let (expression, start, end, step_ms) = panel;
        let expression = &self.expressions[expression];
        let (text, dependencies) = (expression.text, expression.dependencies.clone());
        let question = ResultQuery {
            expression: text,
            start,
            end,
            step_ms,
            lookback_ms: LOOKBACK_MS,
            dependencies: &dependencies,
        };
        let grid =
            |start, end| (0..).map(move |n| start + n * step_ms).take_while(move |&t| t <= end);
        let want = expression.compute(&frozen.samples, grid(start, end));
        let want_text = format!("{want:?}");
        let range = QueryRange { start, end, step_ms, lookback_ms: LOOKBACK_MS, oldest: None };
        let kept = match self.rng.chance(0.5) {
            true => self.cache().recall_text(&question, frozen.number, 0),
            false => self.cache().recall_known(text, range, frozen.number, 0),
        };
        if let Some(kept) = kept {
            assert_eq!(*kept.text, *want_text.as_bytes(), "{text} from {start} to {end}");
            assert_eq!(kept.point_count, want.point_count() as u64);
            self.texts_compared += 1;
        }
        let found = self.cache().lookup(&session, &question, frozen.number);
        let computed = match found.missing {
            Some((start, end)) => expression.compute(&frozen.samples, grid(start, end)),
            None => Answer::default(),
        };
        let is_all = found.missing == Some((start, end));
        self.lookups += 1;
        self.lookups_with_something += u64::from(!is_all);
        self.steps_compared += grid(start, end).count() as u64;
        let both = united(found.answer, &computed);
        assert_eq!(
            both, want,
            "{} from {start} to {end}, missing {:?}",
            question.expression, found.missing
        );
        self.digest =
            self.digest.wrapping_mul(31).wrapping_add(found.missing.map_or(0, |one| one.0) as u64);
        if found.missing.is_some() && !is_present {
            return;
        }
        let groups = expression.groups(&frozen.samples).into_iter();
        let groups: Vec<_> = groups
            .zip(&expression.dependencies)
            .map(|(groups, one)| (!self.cache().knows_groups(one)).then_some(groups))
            .collect();
        for _ in 0..*self.rng.pick(&[0, 0, 0, 1, 3]) {
            self.change();
        }
        if let Some((start, end)) = found.missing {
            let question = ResultQuery { start, end, ..question };
            self.cache().fill(&session, &question, frozen.number, &groups, &computed);
        }
        let points = want.point_count() as u64;
        let ticket =
            self.cache().expect_text(&session, &question, frozen.number, (0, points), &text.into());
        if let Some(ticket) = ticket {
            for _ in 0..*self.rng.pick(&[0, 0, 1]) {
                self.change();
            }
            self.cache().keep_text(ticket, want_text.as_bytes());
        }
    }

    fn restart(&mut self) {
        let is_clean = self.rng.chance(0.6);
        if is_clean {
            self.publish();
            let _ = self.cache().close(CommitSeq(self.number));
        } else if self.rng.chance(0.3) {
            // Numbers of changes that the full log refused.
            self.number += self.rng.below(6);
            self.query();
            self.cache().flush();
        }
        self.cache = None;
        if !is_clean || self.rng.chance(0.2) {
            self.sim.restart();
        }
        self.sim.faults.clear();
        self.held.clear();
        let failed = std::mem::take(&mut self.failed);
        // An invisible change may be in the log; after a close none remains.
        let failed = failed.into_iter().filter(|_| !is_clean);
        for announced in std::mem::take(&mut self.pending).into_iter().chain(failed) {
            let number = announced.change.number;
            self.announced.retain(|other| other.change.number != number);
            if self.rng.chance(0.5) {
                self.apply(&announced);
                self.announced.push(announced);
            }
        }
        if !is_clean {
            // Unused numbers are drawn again.
            let last = self.announced.iter().map(|announced| announced.change.number.0).max();
            self.number = self.floor.max(last.unwrap_or_default());
        }
        if self.rng.chance(0.2) {
            let floor = self.number - self.rng.below(self.number / 2 + 1);
            self.floor = self.floor.max(floor);
        }
        self.open();
    }

    fn step(&mut self) {
        self.now += self.rng.between(0, 4);
        match self.rng.below(1_000) {
            0..700 => self.query(),
            700..820 => self.change(),
            820..975 => {
                self.cache().work();
            }
            975..980 => {
                let through = self.freeze().number;
                self.cache().released(through);
                self.floor = self.floor.max(through.0);
                // The log is truncated behind them.
                self.failed.clear();
            }
            980..986 => {
                let operation = *self.rng.pick(&[Operation::Write, Operation::Read]);
                self.sim.faults.fail_nth(operation, 1 + self.rng.below(4));
            }
            986..990 => {
                let soon = self.sim.faults.change_count() + self.rng.below(12);
                self.sim.faults.crash_at(soon);
            }
            990..995 => self.restart(),
            _ => self.publish(),
        }
        if self.sim.faults.is_off() {
            self.restart();
        }
    }
}

/// The first steps of an expression.
fn query_of(expression: &Expression) -> ResultQuery<'_> {
    ResultQuery {
        expression: expression.text,
        start: 0,
        end: 900,
        step_ms: 10,
        lookback_ms: LOOKBACK_MS,
        dependencies: &expression.dependencies,
    }
}

/// Both parts of an answer, sorted.
fn united(found: Answer, computed: &Answer) -> Answer {
    let mut all: BTreeMap<Labels, Vec<Sample>> = BTreeMap::new();
    for series in found.series.iter().chain(&computed.series) {
        assert!(series.histograms.is_empty());
        all.entry(series.labels.clone()).or_default().extend(&series.floats);
    }
    let series = all.into_iter().map(|(labels, mut floats)| {
        floats.sort_by_key(|sample| sample.ts);
        AnswerSeries { labels, floats, histograms: Vec::new() }
    });
    Answer { series: series.collect() }
}

#[test]
fn invariant_9_a_cached_answer_equals_the_computed_one() {
    let totals = std::cell::Cell::new((0, 0, 0, 0));
    let stats = std::cell::Cell::new(ResultStats::default());
    for_seeds(50, |seed| {
        let mut world = ResultWorld::new(seed, None);
        (0..600).for_each(|_| world.step());
        let (lookups, found, compared, texts) = totals.get();
        totals.set((
            lookups + world.lookups,
            found + world.lookups_with_something,
            compared + world.steps_compared,
            texts + world.texts_compared,
        ));
        let (mut all, own) = (stats.get(), world.cache().stats());
        all.trims += own.trims;
        all.fill_trims += own.fill_trims;
        all.fills_refused += own.fills_refused;
        all.store.slabs_written += own.store.slabs_written;
        all.store.slabs_compacted += own.store.slabs_compacted;
        stats.set(all);
        world.digest
    });
    let (lookups, found, compared, texts) = totals.get();
    println!("{texts} texts");
    println!("{found} of {lookups} answers had something, {compared} steps; {:?}", stats.get());
    assert!(found * 100 > lookups * 60, "{found} of {lookups} answers had something");
    let stats = stats.get();
    assert!(stats.trims > 0 && stats.fill_trims > 0 && stats.fills_refused > 0, "{stats:?}");
    assert!(texts > 500, "{texts} texts");
    assert!(stats.store.slabs_written > 0, "{stats:?}");
}

/// Every mutant is caught; without invalidation within a thousand steps.
#[test]
fn mutants_are_caught() {
    for (mutant, seed_count) in [
        (Mutant::InvalidationOff, 1),
        (Mutant::ChangesNotTaken, 1),
        (Mutant::FillNotTrimmed, 100),
        (Mutant::NewSeriesIgnored, 100),
        (Mutant::WindowIgnored, 100),
        (Mutant::HotNotTrimmed, 100),
        (Mutant::LaterAnswerReturned, 300),
        (Mutant::ReplayIgnored, 100),
        (Mutant::DoubtIgnored, 300),
    ] {
        // In every fourth seed changes fail too.
        let is_noticed = (0..seed_count).map(|seed| 4 * seed).find(|&seed| {
            let run = std::panic::AssertUnwindSafe(|| {
                let mut world = ResultWorld::new(seed, Some(mutant));
                (0..1_000).for_each(|_| world.step());
            });
            std::panic::catch_unwind(run).is_err()
        });
        println!("{mutant:?}: noticed by seed {is_noticed:?}");
        assert!(is_noticed.is_some(), "{mutant:?} was not noticed");
    }
}

/// Unused numbers are drawn again after a crash: a slab that reflects the old ones must not be
/// taken for one that reflects the new changes.
#[test]
fn slabs_of_a_lost_history_are_dropped() {
    for mutant in [None, Some(Mutant::LostPastTrusted)] {
        let sim = Sim::new(1);
        let expression = &expressions()[0];
        let question = query_of(expression);
        let open = |through| {
            let recovered =
                OwnerHistory { replays_after: CommitSeq(0), through: CommitSeq(through) };
            let (disk, budget) = (sim.env().disk, Budget::new(4 << 20));
            ResultCache::open(disk, "cache", &budget, options(mutant), Some(recovered)).unwrap()
        };
        let found = |cache: &ResultCache| {
            cache
                .lookup(&cache.begin(&Budget::unlimited()), &question, CommitSeq(200))
                .missing
                .is_none()
        };
        let cache = open(0);
        let (session, groups) = (cache.begin(&Budget::unlimited()), [Some(vec![GroupId(1)])]);
        assert!(cache.fill(&session, &question, CommitSeq(100), &groups, &Answer::default()));
        cache.flush();
        drop(cache);
        assert_eq!(found(&open(99)), mutant.is_some());
        assert_eq!(found(&open(150)), mutant.is_some());
    }
}

/// A repair clears the cache: an answer that was computed before it is not kept afterwards.
#[test]
fn an_answer_computed_before_a_clear_is_not_kept() {
    for mutant in [None, Some(Mutant::FillOutlivesClear)] {
        let expression = &expressions()[0];
        let question = query_of(expression);
        let recovered = OwnerHistory { replays_after: CommitSeq(0), through: CommitSeq(0) };
        let (disk, budget) = (Sim::new(1).env().disk, Budget::new(4 << 20));
        let cache = ResultCache::open(disk, "cache", &budget, options(mutant), Some(recovered));
        let cache = cache.unwrap();
        let fill = |session| {
            let groups = [Some(vec![GroupId(1)])];
            cache.fill(&session, &question, CommitSeq(1), &groups, &Answer::default())
        };
        let before = cache.begin(&Budget::unlimited());
        cache.clear();
        assert_eq!(fill(before), mutant.is_some());
        assert!(fill(cache.begin(&Budget::unlimited())));
    }
}

/// The text of an answer is kept beside the same answer only: not beside one that was computed
/// again, after a repair or because a sample changed while the text was made.
#[test]
fn a_text_is_not_kept_beside_another_answer() {
    for mutant in [None, Some(Mutant::TextOutlivesClear), Some(Mutant::EarlierTextKept)] {
        let expression = &expressions()[0];
        let question = query_of(expression);
        let recovered = OwnerHistory { replays_after: CommitSeq(0), through: CommitSeq(0) };
        let (disk, budget) = (Sim::new(1).env().disk, Budget::new(4 << 20));
        let cache = ResultCache::open(disk, "cache", &budget, options(mutant), Some(recovered));
        let cache = cache.unwrap();
        // Until its answer was requested twice without a new step. Returns a ticket for its text.
        let query = |number| {
            let (number, session) = (CommitSeq(number), cache.begin(&Budget::unlimited()));
            for _ in 0..4 {
                if let Some((start, end)) = cache.lookup(&session, &question, number).missing {
                    let part = ResultQuery { start, end, ..question };
                    let groups = [Some(vec![GroupId(1)])];
                    assert!(cache.fill(&session, &part, number, &groups, &Answer::default()));
                }
            }
            cache
                .expect_text(&session, &question, number, (0, 0), &"q".into())
                .expect("it is repeated")
        };
        let recalled = |number| cache.recall_text(&question, CommitSeq(number), 0).is_some();
        cache.keep_text(query(1), b"text");
        assert!(recalled(1) && !recalled(0), "an earlier snapshot may have another answer");

        let before_clear = query(1);
        cache.clear();
        drop(query(1));
        cache.keep_text(before_clear, b"text");
        assert_eq!(recalled(1), mutant == Some(Mutant::TextOutlivesClear));

        let before_change = query(1);
        let (number, groups, range) = (CommitSeq(2), vec![GroupId(1)], TimeRange::at(500));
        cache.changed(Change { number, groups, range, kind: ChangeKind::Write });
        drop(query(2));
        cache.keep_text(before_change, b"text");
        assert_eq!(recalled(2), mutant == Some(Mutant::EarlierTextKept));
    }
}

/// A cache of its own, whose answers are empty.
fn cache_of(options: ResultOptions, budget_bytes: u64) -> ResultCache {
    let recovered = OwnerHistory { replays_after: CommitSeq(0), through: CommitSeq(0) };
    let (disk, budget) = (Sim::new(1).env().disk, Budget::new(budget_bytes));
    ResultCache::open(disk, "cache", &budget, options, Some(recovered)).unwrap()
}

/// Keeps an empty answer of the question.
fn fill_empty(cache: &ResultCache, question: &ResultQuery<'_>, number: u64) -> bool {
    let session = cache.begin(&Budget::unlimited());
    let groups = vec![Some(vec![GroupId(1)]); question.dependencies.len()];
    cache.fill(&session, question, CommitSeq(number), &groups, &Answer::default())
}

fn change_at(number: u64, group: u64, ts: Timestamp) -> Change {
    let (number, groups, range) = (CommitSeq(number), vec![GroupId(group)], TimeRange::at(ts));
    Change { number, groups, range, kind: ChangeKind::Write }
}

/// Before, each new series of the metric was matched against the selectors of all kept queries,
/// under the lock that all writers need.
#[test]
fn the_selectors_of_one_metric_are_bounded() {
    let options = ResultOptions { hot_bytes_max: 1 << 20, ..ResultOptions::default() };
    let cache = cache_of(options, 256 << 20);
    let is_found = |question: &ResultQuery<'_>| {
        let session = cache.begin(&Budget::unlimited());
        cache.lookup(&session, question, CommitSeq(1)).missing.is_none()
    };
    let text = |idx: usize| format!("a{{idx=\"{idx}\"}}");
    let dependency = |metric: &str, idx: usize| Dependency {
        matchers: vec![
            matcher("__name__", MatchOp::Equal, metric),
            matcher("idx", MatchOp::Equal, &idx.to_string()),
        ],
        span: Span::Relative { first_ms: -LOOKBACK_MS, last_ms: 0 },
    };
    let (expressions, other) = (expressions(), [dependency("other", 0)]);
    let plain = query_of(&expressions[0]);
    let other = ResultQuery { expression: "other", dependencies: &other, ..plain };
    assert!(fill_empty(&cache, &other, 1));
    let mut most = 0;
    for idx in 0..6_000 {
        let (text, own) = (text(idx), [dependency("a", idx)]);
        let question = ResultQuery { expression: &text, dependencies: &own, ..other };
        assert!(fill_empty(&cache, &question, 1));
        assert!(is_found(&question), "the last one is kept");
        most = most.max(cache.stats().selectors);
    }
    assert!((2_000..4_000).contains(&most), "{most} selectors");
    assert!(cache.stats().store.keys < 4_000, "forgotten answers leave the cache");
    let own = [dependency("a", 0)];
    assert!(!is_found(&ResultQuery { expression: &text(0), dependencies: &own, ..other }));
    assert!(is_found(&other), "other metrics stay");
    // A change still cuts the answers that are here.
    cache.changed(change_at(2, 1, 100));
    assert!(!is_found(&other));
}

/// Of an answer that changes cut while it is computed, the newest pieces are kept.
#[test]
fn thousands_of_changes_make_few_pieces() {
    let options = ResultOptions { hot_bytes_max: 1 << 20, ..ResultOptions::default() };
    let cache = cache_of(options, 64 << 20);
    let expressions = expressions();
    let question = ResultQuery { end: 1_000_000, ..query_of(&expressions[0]) };
    let session = cache.begin(&Budget::unlimited());
    for number in 2..12_000 {
        cache.changed(change_at(number, 1, 80 * number as i64));
    }
    let groups = [Some(vec![GroupId(1)])];
    assert!(cache.fill(&session, &question, CommitSeq(1), &groups, &Answer::default()));
    let extents = cache.stats().store.extents;
    assert!((1..=16).contains(&extents), "{extents}");
}

/// Before, a thread of the network applied the waiting changes to all kept answers.
#[test]
fn a_known_query_is_not_recalled_before_a_change_that_may_touch_it() {
    let options = ResultOptions { hot_bytes_max: 1 << 20, ..ResultOptions::default() };
    let cache = cache_of(options, 64 << 20);
    let expressions = expressions();
    let question = query_of(&expressions[0]);
    let ResultQuery { start, end, step_ms, lookback_ms, .. } = question;
    let range = QueryRange { start, end, step_ms, lookback_ms, oldest: None };
    assert!(fill_empty(&cache, &question, 1));
    let session = cache.begin(&Budget::unlimited());
    for _ in 0..2 {
        assert!(cache.lookup(&session, &question, CommitSeq(1)).missing.is_none());
    }
    let ticket = cache.expect_text(&session, &question, CommitSeq(1), (0, 0), &"q".into());
    cache.keep_text(ticket.expect("it is repeated"), b"text");
    let recalled = |number| cache.recall_known("q", range, CommitSeq(number), 0).is_some();
    assert!(recalled(1));
    // Newer than all answers.
    cache.changed(change_at(2, 9, 10_000));
    assert!(recalled(2));
    // It touches another group, which takes a look at each selector to find out.
    cache.changed(change_at(3, 9, 500));
    assert!(!recalled(3));
    assert!(cache.recall_text(&question, CommitSeq(3), 0).is_some());
    assert!(recalled(3));
    cache.changed(change_at(4, 1, 500));
    assert!(cache.recall_text(&question, CommitSeq(4), 0).is_none());
    assert!(!recalled(4));
}

impl ResultWorld {
    /// Queries and changes, and the background work between them.
    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.now += self.rng.between(0, 4);
            match self.rng.below(10) {
                0..=6 => self.query(),
                7 => self.change(),
                _ => {
                    self.cache().work();
                }
            }
        }
    }
}

/// A device fails: the cache turns itself off, queries still succeed, and the next start tries
/// again.
#[test]
fn a_failed_device_turns_the_cache_off_and_fails_no_query() {
    for operation in [Operation::Write, Operation::Read] {
        let mut world = ResultWorld::new(1, None);
        world.run(2_000);
        world.cache().flush();
        assert!(world.cache().stats().store.slabs_written > 0);
        world.sim.faults.set_rate(operation, 1.0);
        world.run(3_000);
        world.cache().flush();
        let stats = world.cache().stats().store;
        assert!(stats.is_off && stats.device_failures >= 8, "{operation:?}: {stats:?}");
        let found = world.cache().stats().steps_hit;
        world.sim.faults.clear();
        world.run(500);
        assert_eq!(world.cache().stats().steps_hit, found, "it is off until the next start");
        world.restart();
        world.run(1_000);
        let stats = world.cache().stats();
        assert!(!stats.store.is_off && stats.steps_hit > 0, "{operation:?}: {stats:?}");
    }
}

/// A device is full: the cache continues with the slots that it has.
#[test]
fn a_full_device_neither_turns_the_cache_off_nor_fails_a_query() {
    let mut world = ResultWorld::new(2, None);
    while world.cache().stats().store.slabs < 3 {
        world.run(100);
    }
    world.sim.disk.set_capacity_bytes(0);
    let before = world.cache().stats();
    while world.cache().stats().store.device_failures == 0 {
        world.run(100);
    }
    world.run(4_000);
    let after = world.cache().stats();
    assert!(!after.store.is_off, "{after:?}");
    assert!(after.store.slabs_written > before.store.slabs_written + 3, "{after:?}");
    assert!(after.steps_hit > before.steps_hit, "{after:?}");
}

/// Slabs are damaged, torn or cut off between two runs: they are dropped and counted, and no lookup
/// returns their points.
#[test]
fn a_damaged_slab_is_dropped_and_counted() {
    let (mut dropped, mut found) = (0, 0);
    for seed in 0..12 {
        let mut world = ResultWorld::new(seed, None);
        world.run(1_500);
        while !world.pending.is_empty() {
            world.publish();
        }
        world.cache().close(CommitSeq(world.number)).unwrap();
        world.cache = None;
        let rng = &mut world.rng;
        let damaged = world.sim.disk.damage("cache/results/slabs", |bytes| {
            for _ in 0..4 {
                let at = 4_096 + rng.below(bytes.len() as u64 - 4_096) as usize;
                match rng.below(4) {
                    0 => bytes[at..].iter_mut().take(700).for_each(|byte| *byte = 0),
                    1 if at > 2 * 4_096 => bytes.truncate(at),
                    _ => bytes[at] ^= 1 << rng.below(8),
                }
                if bytes.len() <= 2 * 4_096 {
                    break;
                }
            }
        });
        damaged.unwrap();
        world.open();
        world.run(300);
        let stats = world.cache().stats();
        dropped += stats.store.slabs_corrupt;
        found += stats.steps_hit;
    }
    assert!(dropped > 5 && found > 1_000, "{dropped} dropped, {found} steps found");
}
