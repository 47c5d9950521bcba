//! A model of writers, new series, queries and fills at once: `result.rs` compiled against a
//! scheduler that tries many interleavings of its lock and of the steps around it.
//!
//! Around it is a database that behaves like the engine: a change has a number, is announced,
//! becomes visible, and is then complete; a snapshot takes its number first. Every query must
//! return the answer of its snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use firn_model::{
    Budget, Change, ChangeKind, ChangeSink, CommitSeq, GroupId, Labels, Matcher, Sample, SeriesRef,
    Slot, TimeRange, Timestamp,
};
use firn_sim::Sim;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::{spawn, yield_now};

use crate::answer::{Answer, AnswerSeries};
use crate::dependency::{Dependency, Span};
use crate::mutant::Mutant;
use crate::store::{OwnerHistory, StoreOptions};

#[expect(clippy::duplicate_mod, reason = "this copy names the model's lock")]
#[expect(unreachable_pub, reason = "items that are public there are private to the model here")]
#[expect(dead_code, reason = "the model does not use every item")]
#[path = "result.rs"]
mod result;

#[expect(clippy::duplicate_mod, reason = "this copy names the model's lock")]
#[path = "inbox.rs"]
mod inbox;

use result::{ResultCache, ResultOptions, ResultQuery};

/// The lock of the model, with the interface that `result.rs` uses.
mod sync {
    use std::ops::DerefMut;

    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(_: &'static firn_model::LockClass, value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> impl DerefMut<Target = T> {
            self.0.lock().unwrap()
        }

        pub(crate) fn try_lock(&self) -> Option<impl DerefMut<Target = T>> {
            self.0.try_lock().ok()
        }
    }
}

const STEPS: i64 = 8;
const WINDOW_MS: i64 = 2;

/// The most steps that a writer waits before a change.
const PAUSE_MAX: usize = 60;

/// A mistake of the cache or of the database around it; the model must catch each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// In the cache.
    Mutant(Mutant),
    /// A change is visible before it is announced.
    AnnouncedAfterVisible,
    /// A number counts as visible before its change is.
    ArrivedBeforeVisible,
    /// A snapshot takes its number when it has its samples.
    NumberAfterSamples,
    /// A query begins after its snapshot was taken.
    BegunAfterSnapshot,
    /// A series is announced after it was written.
    DefinedAfterWrite,
}

/// A database with a cache beside it.
struct ThreadedWorld {
    cache: ResultCache,
    state: shuttle::sync::Mutex<ModelState>,
    mistake: Mistake,
    is_wrong: AtomicBool,
    /// Whether the cache answered any step.
    has_found: AtomicBool,
}

#[derive(Default)]
struct ModelState {
    samples: Samples,
    groups: BTreeSet<GroupId>,
    last: u64,
    on_their_way: BTreeSet<u64>,
    repair: Repair,
}

/// A repair removes samples that cached answers may contain, without announcing a change, and then
/// clears the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Repair {
    #[default]
    NotYet,
    Begun,
    Done,
}

type Samples = BTreeMap<(GroupId, Timestamp), f64>;

struct Snapshot {
    number: CommitSeq,
    samples: Samples,
    groups: Vec<GroupId>,
    repair: Repair,
}

impl ThreadedWorld {
    fn new(mistake: Mistake, life: Life) -> Arc<ThreadedWorld> {
        let mutant = match mistake {
            Mistake::Mutant(mutant) => Some(mutant),
            _ => None,
        };
        let slab_bytes = 16 << 10;
        let store =
            StoreOptions { slab_bytes, flash_bytes_max: 2 << 14, mutant, ..Default::default() };
        let options = ResultOptions { store, ..ResultOptions::default() };
        let (disk, budget) = (Sim::new(0).env().disk, Budget::new(4 << 20));
        let open = |through| {
            let recovered =
                OwnerHistory { replays_after: CommitSeq(through), through: CommitSeq(through) };
            let disk = Arc::clone(&disk);
            ResultCache::open(disk, "cache", &budget, options, Some(recovered)).unwrap()
        };
        let mut world = ThreadedWorld {
            cache: open(0),
            state: shuttle::sync::Mutex::default(),
            mistake,
            is_wrong: AtomicBool::new(false),
            has_found: AtomicBool::new(false),
        };
        world.define(GroupId(0));
        world.write(GroupId(0), 1, 0.5);
        if life != Life::Cold {
            world.query();
        }
        if life == Life::Reopened {
            let last = world.state.lock().unwrap().last;
            world.cache.close(CommitSeq(last)).unwrap();
            world.cache = open(last);
        }
        Arc::new(world)
    }

    fn define(&self, group: GroupId) {
        self.state.lock().unwrap().groups.insert(group);
        self.cache.defined(SeriesRef { group, slot: Slot(0) }, &labels(group));
    }

    fn write(&self, group: GroupId, ts: Timestamp, value: f64) {
        // A write takes few steps, a query many: without a pause most writes end before a fill.
        (0..thread_rng().gen_range(0..PAUSE_MAX)).for_each(|_| yield_now());
        let number = {
            let mut state = self.state.lock().unwrap();
            state.last += 1;
            let last = state.last;
            state.on_their_way.insert(last);
            last
        };
        let tell = || {
            let (number, range) = (CommitSeq(number), TimeRange::at(ts));
            let kind = ChangeKind::Write;
            self.cache.changed(Change { number, groups: vec![group], range, kind });
        };
        let show = || self.state.lock().unwrap().samples.insert((group, ts), value);
        let arrive = || self.state.lock().unwrap().on_their_way.remove(&number);
        match self.mistake {
            Mistake::AnnouncedAfterVisible => {
                show();
                tell();
                arrive();
            }
            Mistake::ArrivedBeforeVisible => {
                tell();
                arrive();
                yield_now();
                show();
            }
            _ => {
                tell();
                show();
                arrive();
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        let number = || {
            let state = self.state.lock().unwrap();
            CommitSeq(state.on_their_way.first().map_or(state.last, |first| first - 1))
        };
        let early = number();
        yield_now();
        let (samples, groups, repair) = {
            let state = self.state.lock().unwrap();
            (state.samples.clone(), state.groups.iter().copied().collect(), state.repair)
        };
        let is_late = self.mistake == Mistake::NumberAfterSamples;
        let number = if is_late { number() } else { early };
        Snapshot { number, samples, groups, repair }
    }

    fn repair(&self) {
        {
            let mut state = self.state.lock().unwrap();
            state.repair = Repair::Begun;
            state.samples.remove(&(GroupId(0), 1));
        }
        self.cache.clear();
        self.state.lock().unwrap().repair = Repair::Done;
    }

    /// Whether the repair was over before the snapshot was taken. During a repair either answer is
    /// right.
    fn is_clear(&self, snapshot: &Snapshot) -> bool {
        snapshot.repair != Repair::Begun && snapshot.repair == self.state.lock().unwrap().repair
    }

    fn query(&self) {
        let matchers = vec![Matcher::equal("__name__", "a")];
        let span = Span::Relative { first_ms: -WINDOW_MS, last_ms: 0 };
        let dependencies = [Dependency { matchers, span }];
        let question = |(start, end)| ResultQuery {
            expression: "a",
            start,
            end,
            step_ms: 1,
            lookback_ms: WINDOW_MS,
            dependencies: &dependencies,
        };
        let mut session = self.cache.begin(&Budget::unlimited());
        let snapshot = self.snapshot();
        if self.mistake == Mistake::BegunAfterSnapshot {
            session = self.cache.begin(&Budget::unlimited());
        }
        let all = (0, STEPS - 1);
        let mut missing = None;
        // A snapshot may be used for a long time.
        for _ in 0..3 {
            yield_now();
            let kept = (self.mistake == Mistake::None)
                .then(|| self.cache.recall_text(&question(all), snapshot.number, 0))
                .flatten();
            let found = self.cache.lookup(&session, &question(all), snapshot.number);
            let computed = found.missing.map(|missing| (missing, snapshot.compute(missing)));
            let parts = [Some(&found.answer), computed.as_ref().map(|one| &one.1)];
            let want = bits([&snapshot.compute(all)].into_iter());
            let is_wrong = bits(parts.into_iter().flatten()) != want
                || kept.is_some_and(|kept| *kept.text != *format!("{want:?}").as_bytes());
            if is_wrong && self.is_clear(&snapshot) {
                self.is_wrong.store(true, Relaxed);
            }
            if found.missing != Some(all) {
                self.has_found.store(true, Relaxed);
            }
            missing = missing.or(computed);
        }
        if let Some((missing, answer)) = missing {
            let is_known = self.cache.knows_groups(&dependencies[0]);
            let groups = [(!is_known).then(|| snapshot.groups.clone())];
            self.cache.fill(&session, &question(missing), snapshot.number, &groups, &answer);
        }
        // Mistakes with texts have tests of their own, and more steps would hide the others.
        if self.mistake != Mistake::None {
            return;
        }
        if let Some(ticket) =
            self.cache.expect_text(&session, &question(all), snapshot.number, (0, 0), &"a".into())
        {
            let text = format!("{:?}", bits([&snapshot.compute(all)].into_iter()));
            yield_now();
            self.cache.keep_text(ticket, text.as_bytes());
        }
    }
}

impl Snapshot {
    /// The sum over the window of each series.
    fn compute(&self, (start, end): (Timestamp, Timestamp)) -> Answer {
        let series = self.groups.iter().map(|&group| {
            let at = |ts| {
                let window = (group, ts - WINDOW_MS)..=(group, ts);
                let values: Vec<f64> = self.samples.range(window).map(|one| *one.1).collect();
                (!values.is_empty()).then(|| Sample { ts, value: values.iter().sum() })
            };
            let floats = (start..=end).filter_map(at).collect();
            AnswerSeries { labels: labels(group), floats, histograms: Vec::new() }
        });
        Answer { series: series.filter(|one| !one.floats.is_empty()).collect() }
    }
}

fn labels(group: GroupId) -> Labels {
    Labels::from_pairs([("__name__", "a"), ("host", &*group.0.to_string())]).unwrap()
}

fn bits<'a>(parts: impl Iterator<Item = &'a Answer>) -> BTreeMap<(Labels, Timestamp), u64> {
    let series = parts.flat_map(|part| &part.series);
    let floats = series.flat_map(|one| one.floats.iter().map(|sample| (&one.labels, sample)));
    floats.map(|(labels, one)| ((labels.clone(), one.ts), one.value.to_bits())).collect()
}

/// The scenario around the writers and readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Cold,
    /// The cache contains an answer.
    Warm,
    /// The same, on the device only; a repair clears the cache during the run.
    Reopened,
}

const LIVES: [Life; 3] = [Life::Cold, Life::Warm, Life::Reopened];

/// Two writers, one of them with a new series, and two readers. Whether an answer was wrong, and
/// whether one came from the cache.
fn run(mistake: Mistake, life: Life) -> (bool, bool) {
    let world = ThreadedWorld::new(mistake, life);
    let asker = || {
        let world = Arc::clone(&world);
        move || (0..3).for_each(|_| world.query())
    };
    let (first, second, third) = (Arc::clone(&world), Arc::clone(&world), Arc::clone(&world));
    let given_up = (life == Life::Reopened).then(|| spawn(move || third.repair()));
    let threads = [
        spawn(asker()),
        spawn(asker()),
        spawn(move || {
            first.write(GroupId(0), 3, 1.5);
            first.write(GroupId(0), 3, 2.5);
        }),
        spawn(move || {
            let group = GroupId(1);
            let is_late = mistake == Mistake::DefinedAfterWrite;
            if is_late {
                second.state.lock().unwrap().groups.insert(group);
                second.write(group, 5, 4.5);
            }
            second.define(group);
            second.write(group, 6, 8.5);
        }),
    ];
    threads.into_iter().chain(given_up).for_each(|thread| thread.join().unwrap());
    world.query();
    world.query();
    (world.is_wrong.load(Relaxed), world.has_found.load(Relaxed))
}

#[test]
fn invariant_9_a_query_returns_the_answer_of_its_snapshot_in_every_interleaving() {
    for life in LIVES {
        check(move || assert_eq!(run(Mistake::None, life), (false, true)));
    }
}

#[test]
fn mutants_are_caught() {
    for mistake in [
        Mistake::Mutant(Mutant::ChangesNotTaken),
        Mistake::Mutant(Mutant::FillNotTrimmed),
        Mistake::Mutant(Mutant::FillKeptLater),
        Mistake::Mutant(Mutant::NewSeriesIgnored),
        Mistake::Mutant(Mutant::LaterAnswerReturned),
        Mistake::Mutant(Mutant::HotNotTrimmed),
        Mistake::Mutant(Mutant::FillOutlivesClear),
        Mistake::Mutant(Mutant::TicketsReused),
        Mistake::AnnouncedAfterVisible,
        Mistake::ArrivedBeforeVisible,
        Mistake::NumberAfterSamples,
        Mistake::BegunAfterSnapshot,
        Mistake::DefinedAfterWrite,
    ] {
        let found = Arc::new(AtomicBool::new(false));
        let model = |life| {
            let found = Arc::clone(&found);
            move || {
                if run(mistake, life).0 {
                    found.store(true, Relaxed);
                }
            }
        };
        // Few schedules at a time: most mistakes show soon, the others need ten thousands.
        for turn in 0..300 {
            // Some changes trim answers that are cached already.
            let life = LIVES[turn % LIVES.len()];
            shuttle::check_random(model(life), 300);
            shuttle::check_pct(model(life), 150, 3);
            if found.load(Relaxed) {
                break;
            }
        }
        assert!(found.load(Relaxed), "the model does not find {mistake:?}");
    }
}

/// Runs many random schedules, and many with few switches at chosen points.
fn check(model: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(model.clone(), 2_000);
    shuttle::check_pct(model, 2_000, 3);
}
