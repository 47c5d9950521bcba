//! Serialisability, checked on what happened: transactions of several threads on few samples, and afterwards the
//! question whether there is an order in which one after the other would have read the same.
//!
//! Small histories are tried in every order, which believes nothing that the database says. Large ones are looked through
//! for cycles of dependencies (as Elle does): who read from whom, who overwrote whom, who was finished
//! before whom began. The order of writes of one sample is then that of their numbers.
//!
//! Threads run differently each time. `FIRN_HISTORIES=n` plays n small histories in place of 150, and a tenth as many large
//! ones; `FIRN_SEED=s` plays seed s that often.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_engine::{
    ConvertOptions, Engine, EngineOptions, HeadOptions, Lane, LogOptions, Mutant, RecoveryProgress,
    Transaction,
};
use firn_model::{CommitSeq, ErrorKind, Labels, Matcher, SeriesRef, TimeRange};
use firn_sim::{Rng, Sim};
use parking_lot::Mutex;

/// Samples that are read and written: one of each series at each time.
const SERIES: usize = 3;
const TIMES: [i64; 2] = [1_000, 3_600_000];
type Place = (usize, i64);
/// What was there; `None` is absent.
type Values = BTreeMap<Place, Option<u64>>;

/// What transactions change, by one sample or by all that a selector finds.
const CHANGES: [&str; 5] = ["insert", "update", "delete", "update of a range", "delete of a range"];

/// What one transaction did. Every value is written once; `None` is absent.
#[derive(Debug)]
struct Done {
    reads: Values,
    writes: Values,
    /// Which of [`CHANGES`].
    did: BTreeSet<&'static str>,
    /// `None` of one that changed nothing.
    seq: Option<CommitSeq>,
    /// Of a clock that ticks with each call.
    begun: u64,
    finished: u64,
}

/// What one transaction has read and written so far.
#[derive(Default)]
struct ObservedSamples {
    reads: Values,
    writes: Values,
}

/// One series or all, at one time or at all.
#[derive(Clone, Copy)]
struct Selection {
    series: Option<usize>,
    ts: Option<i64>,
}

struct Registers {
    engine: Arc<Engine>,
    refs: Vec<SeriesRef>,
    clock: AtomicU64,
    next_value: AtomicU64,
    /// Values of transactions that were refused: nobody may read them.
    refused: Mutex<BTreeSet<u64>>,
}

impl Registers {
    fn open(sim: &Sim, seed: u64, mutant: Option<Mutant>) -> Registers {
        let options = EngineOptions {
            shard_count: 4,
            stream_count: Some(1 + seed as usize % 3),
            mutant,
            head: HeadOptions {
                convert: ConvertOptions {
                    arena_bytes_max: 256,
                    sparse_arena_times: 4,
                    ..ConvertOptions::default()
                },
                ..Default::default()
            },
            log: LogOptions { segment_bytes: 64 << 10, ..Default::default() },
            ..EngineOptions::default()
        };
        let engine = Engine::open(sim.env(), options, &RecoveryProgress::default());
        let engine = engine.expect("opens");
        // Where a mistake opens a window, let another thread through it.
        engine.set_probe(Box::new(|_| (0..20).for_each(|_| std::thread::yield_now())));
        let labels = |idx: usize| {
            let name = format!("r{idx}");
            Labels::from_pairs([("__name__", name.as_str()), ("kind", "register")])
                .expect("valid labels")
        };
        let labels: Vec<Labels> = (0..SERIES).map(labels).collect();
        let refs = engine.resolve(&labels).into_iter().map(|found| found.expect("resolves"));
        Registers {
            refs: refs.collect(),
            engine,
            clock: AtomicU64::new(0),
            next_value: AtomicU64::new(1),
            refused: Mutex::default(),
        }
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// One random transaction; `None` if it was refused.
    fn run(&self, rng: &mut Rng) -> Option<Done> {
        let begun = self.tick();
        let mut transaction = self.engine.begin().expect("begins");
        let mut seen = ObservedSamples::default();
        if rng.chance(0.3) {
            // Also what is not there.
            self.read_range(&mut transaction, some_selection(rng), &mut seen);
        }
        for _ in 0..rng.below(3) {
            self.look(&mut transaction, some_place(rng), &mut seen);
        }
        if rng.chance(0.5) {
            std::thread::yield_now();
        }
        let mut did = BTreeSet::new();
        for _ in 0..rng.below(3) {
            // What was deleted looks like what never was: less often, so that reads tell more.
            let kind = CHANGES[[0, 0, 0, 0, 1, 1, 2, 3, 3, 4][rng.below(10) as usize]];
            self.change(kind, rng, &mut transaction, &mut seen);
            did.insert(kind);
        }
        let ObservedSamples { mut reads, mut writes } = seen;
        match transaction.commit() {
            Ok(report) => {
                let seq = report.seq;
                if seq.is_none() {
                    // Deletes of what was not there: it saw that, and that is all.
                    for (place, value) in std::mem::take(&mut writes) {
                        assert_eq!(value, None, "a write without a number");
                        reads.entry(place).or_insert(None);
                    }
                }
                Some(Done { reads, writes, did, seq, begun, finished: self.tick() })
            }
            Err(e) if *e.kind() == ErrorKind::Conflict => {
                self.refused.lock().extend(writes.into_values().flatten());
                None
            }
            Err(e) => panic!("an error that nobody caused: {e:?}"),
        }
    }

    fn change(
        &self,
        kind: &str,
        rng: &mut Rng,
        transaction: &mut Transaction<'_>,
        seen: &mut ObservedSamples,
    ) {
        let place = some_place(rng);
        let (series, ts, value) = (self.refs[place.0], place.1, self.new_value());
        match kind {
            "insert" => {
                transaction.insert(series, ts, value).expect("an insert");
                seen.writes.insert(place, Some(value.to_bits()));
            }
            "update" => {
                match (self.look(transaction, place, seen), transaction.update(series, ts, value)) {
                    (Some(_), Ok(())) => {
                        seen.writes.insert(place, Some(value.to_bits()));
                    }
                    (None, Err(e)) if *e.kind() == ErrorKind::NotFound => {}
                    (old, updated) => panic!("an update of {old:?}: {updated:?}"),
                }
            }
            "delete" => {
                let old = self.look(transaction, place, seen);
                let was_there = transaction.delete(series, ts).expect("a delete");
                assert_eq!(was_there, old.is_some(), "a delete of {old:?}");
                if was_there {
                    seen.writes.insert(place, None);
                }
            }
            "update of a range" => {
                let selection = some_selection(rng);
                let mut left = self.read_range(transaction, selection, seen);
                let (matchers, range) = selection.matchers();
                let updated = transaction.update_range(&matchers, range, |labels, sample| {
                    let name = labels.get("__name__").expect("a name");
                    let place = (name[1..].parse().expect("a number"), sample.ts);
                    let old = left.insert(place, None).flatten();
                    assert_eq!(old, Some(sample.value.to_bits()), "a range that changes");
                    let value = self.new_value();
                    seen.writes.insert(place, Some(value.to_bits()));
                    value
                });
                updated.expect("an update");
                assert!(left.values().all(Option::is_none), "{left:?} was left out");
            }
            _ => {
                let selection = some_selection(rng);
                let (matchers, range) = selection.matchers();
                transaction.delete_range(&matchers, range).expect("a delete");
                seen.writes.extend(selection.places().map(|place| (place, None)));
            }
        }
    }

    fn new_value(&self) -> f64 {
        self.next_value.fetch_add(1, Ordering::Relaxed) as f64
    }

    fn look(
        &self,
        transaction: &mut Transaction<'_>,
        place: Place,
        seen: &mut ObservedSamples,
    ) -> Option<u64> {
        let value = transaction.read_point(self.refs[place.0], place.1).expect("a read");
        seen.note(place, value.map(f64::to_bits))
    }

    fn read_range(
        &self,
        transaction: &mut Transaction<'_>,
        selection: Selection,
        seen: &mut ObservedSamples,
    ) -> Values {
        let (matchers, range) = selection.matchers();
        let found = transaction.read(&matchers, range).expect("a read");
        let value = |place: Place| {
            let of_series = found.iter().find(|one| one.series == self.refs[place.0]);
            let sample = of_series.and_then(|one| one.samples.iter().find(|s| s.ts == place.1));
            (place, seen.note(place, sample.map(|sample| sample.value.to_bits())))
        };
        selection.places().map(value).collect()
    }

    /// `thread_count` threads, each as many transactions; a last one that reads everything.
    fn play(&self, seed: u64, thread_count: u64, count: usize) -> Vec<Done> {
        let done = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..thread_count {
                let done = &done;
                scope.spawn(move || {
                    let mut rng = Rng::new(seed ^ (thread + 1) << 32);
                    for _ in 0..count {
                        if let Some(one) = self.run(&mut rng) {
                            done.lock().push(one);
                        }
                        if rng.chance(0.05) {
                            self.engine.step(Lane::Head).expect("a step");
                        }
                        if rng.chance(0.02) {
                            self.engine.flush().expect("a flush");
                        }
                    }
                });
            }
        });
        let mut done = done.into_inner();
        let (begun, mut seen) = (self.tick(), ObservedSamples::default());
        let mut last = self.engine.begin().expect("begins");
        self.read_range(&mut last, Selection { series: None, ts: None }, &mut seen);
        let ObservedSamples { reads, writes } = seen;
        let (did, finished) = (BTreeSet::new(), self.tick());
        done.push(Done { reads, writes, did, seq: None, begun, finished });
        done
    }
}

impl ObservedSamples {
    /// A transaction reads what it wrote, and else the same each time.
    fn note(&mut self, place: Place, value: Option<u64>) -> Option<u64> {
        let known = match self.writes.get(&place) {
            Some(own) => *own,
            None => *self.reads.entry(place).or_insert(value),
        };
        assert_eq!(value, known, "{place:?} in one transaction");
        value
    }
}

impl Selection {
    fn matchers(self) -> (Vec<Matcher>, TimeRange) {
        let matcher = match self.series {
            Some(series) => Matcher::equal("__name__", format!("r{series}")),
            None => Matcher::equal("kind", "register"),
        };
        let range = |ts: i64| TimeRange::new(ts - 500, ts + 500);
        (vec![matcher], self.ts.map_or(TimeRange::ALL, range))
    }

    fn places(self) -> impl Iterator<Item = Place> {
        let is_in = move |place: &Place| {
            self.series.is_none_or(|series| series == place.0)
                && self.ts.is_none_or(|ts| ts == place.1)
        };
        (0..SERIES).flat_map(|series| TIMES.map(|ts| (series, ts))).filter(is_in)
    }
}

fn some_selection(rng: &mut Rng) -> Selection {
    Selection {
        series: rng.chance(0.7).then(|| rng.below(SERIES as u64) as usize),
        ts: rng.chance(0.5).then(|| *rng.pick(&TIMES)),
    }
}

fn some_place(rng: &mut Rng) -> Place {
    (rng.below(SERIES as u64) as usize, *rng.pick(&TIMES))
}

/// Whether some order explains everything: each reads what those before it left, and nobody comes before one that was
/// finished when it began.
fn has_serial_order(done: &[Done]) -> bool {
    fn go(done: &[Done], left: u32, state: &mut Values) -> bool {
        if left == 0 {
            return true;
        }
        let is_left = |idx: usize| left & (1 << idx) != 0;
        (0..done.len()).filter(|&idx| is_left(idx)).any(|idx| {
            let one = &done[idx];
            let is_first =
                (0..done.len()).all(|other| !is_left(other) || done[other].finished >= one.begun);
            let reads = |(place, value): (&Place, &Option<u64>)| {
                state.get(place).copied().unwrap_or(None) == *value
            };
            if !is_first || !one.reads.iter().all(reads) {
                return false;
            }
            let before = state.clone();
            state.extend(one.writes.iter().map(|(place, value)| (*place, *value)));
            let found = go(done, left & !(1 << idx), state);
            *state = before;
            found
        })
    }
    assert!(done.len() <= 16, "every order of {} transactions takes too long", done.len());
    go(done, (1 << done.len()) - 1, &mut BTreeMap::new())
}

/// A cycle of dependencies, or something read that nobody wrote, in words.
fn find_anomaly(done: &[Done], refused: &BTreeSet<u64>) -> Option<String> {
    let mut writers: BTreeMap<u64, usize> = BTreeMap::new();
    let mut versions: BTreeMap<Place, Vec<(CommitSeq, usize)>> = BTreeMap::new();
    for (idx, one) in done.iter().enumerate() {
        for (place, value) in &one.writes {
            let seq = one.seq.expect("one that wrote has a number");
            versions.entry(*place).or_default().push((seq, idx));
            writers.extend(value.map(|value| (value, idx)));
        }
    }
    versions.values_mut().for_each(|list| list.sort_unstable());
    let mut edges: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); done.len()];
    for list in versions.values() {
        for pair in list.windows(2) {
            edges[pair[0].1].insert(pair[1].1);
        }
    }
    for (idx, one) in done.iter().enumerate() {
        for (place, value) in &one.reads {
            let list = versions.get(place).map_or(&[][..], Vec::as_slice);
            let next = match value {
                Some(value) if refused.contains(value) => {
                    return Some(format!("{place:?}: a refused transaction's {value} was read"));
                }
                Some(value) => {
                    let Some(&writer) = writers.get(value) else {
                        return Some(format!("{place:?}: nobody wrote {value}"));
                    };
                    if writer != idx {
                        edges[writer].insert(idx);
                    }
                    let at = list.iter().position(|version| version.1 == writer);
                    at.map_or(0, |at| at + 1)
                }
                // Before the first write, or after some delete: then the cycle is not looked for here.
                None if list.iter().any(|version| done[version.1].writes[place].is_none()) => {
                    continue;
                }
                None => 0,
            };
            if let Some(&(_, overwriter)) = list.get(next)
                && overwriter != idx
            {
                edges[idx].insert(overwriter);
            }
        }
        let later = done.iter().enumerate().filter(|(_, other)| other.begun > one.finished);
        edges[idx].extend(later.map(|other| other.0));
    }
    find_cycle(&edges).map(|cycle| {
        let steps: Vec<String> =
            cycle.iter().map(|&idx| format!("{idx}: {:?}", done[idx])).collect();
        format!("a cycle of {} transactions\n{}", cycle.len(), steps.join("\n"))
    })
}

fn find_cycle(edges: &[BTreeSet<usize>]) -> Option<Vec<usize>> {
    // Takes away whoever nothing left depends on; what remains is on or behind a cycle.
    let mut incoming = vec![0; edges.len()];
    edges.iter().flatten().for_each(|&to| incoming[to] += 1);
    let mut free: Vec<usize> = (0..edges.len()).filter(|&idx| incoming[idx] == 0).collect();
    let mut taken = vec![false; edges.len()];
    while let Some(idx) = free.pop() {
        taken[idx] = true;
        for &to in &edges[idx] {
            incoming[to] -= 1;
            if incoming[to] == 0 {
                free.push(to);
            }
        }
    }
    // Each that is left has a predecessor that is left: going back must come round.
    let mut path = vec![taken.iter().position(|taken| !taken)?];
    loop {
        let last = path[path.len() - 1];
        let before = (0..edges.len()).find(|&idx| !taken[idx] && edges[idx].contains(&last))?;
        if let Some(start) = path.iter().position(|&idx| idx == before) {
            let mut cycle = path.split_off(start);
            cycle.reverse();
            return Some(cycle);
        }
        path.push(before);
    }
}

/// What happened, and what is wrong with it.
type Verdict = (Vec<Done>, Option<String>);

fn small_history(seed: u64, mutant: Option<Mutant>) -> Verdict {
    let sim = Sim::new(seed);
    let done = Registers::open(&sim, seed, mutant).play(seed, 3, 3);
    let why = (!has_serial_order(&done)).then(|| format!("no serial order of {done:#?}"));
    (done, why)
}

fn large_history(seed: u64, mutant: Option<Mutant>) -> Verdict {
    let sim = Sim::new(seed);
    let registers = Registers::open(&sim, seed, mutant);
    let done = registers.play(seed, 4, 60);
    let why = find_anomaly(&done, &registers.refused.lock());
    (done, why)
}

/// Plays `count` histories, and says how to play one again that is wrong. Returns how often each change was committed.
fn play_all(
    count: u64,
    history: fn(u64, Option<Mutant>) -> Verdict,
) -> BTreeMap<&'static str, u64> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let mut changes = BTreeMap::new();
    for idx in 0..count {
        let seed = number("FIRN_SEED").unwrap_or(idx);
        let played = catch_unwind(|| history(seed, None));
        if !played.as_ref().is_ok_and(|(_, why)| why.is_none()) {
            eprintln!(
                "seed {seed} failed; again: FIRN_SEED={seed} FIRN_HISTORIES=10000 \
                 cargo test --package firn-engine --test simulation histories"
            );
        }
        let (done, why) = played.unwrap_or_else(|panic| resume_unwind(panic));
        assert!(why.is_none(), "seed {seed}: {}", why.unwrap_or_default());
        for kind in done.iter().flat_map(|one| &one.did) {
            *changes.entry(*kind).or_default() += 1;
        }
    }
    changes
}

#[test]
fn transactions_are_as_if_one_came_after_the_other() {
    let count = std::env::var("FIRN_HISTORIES").ok().and_then(|count| count.parse().ok());
    let count: u64 = count.unwrap_or(150);
    let small = play_all(count, small_history);
    let large = play_all(count.div_ceil(10), large_history);
    println!("{count} small histories: {small:?}; a tenth as many large ones: {large:?}");
    for kind in CHANGES {
        assert!(small.contains_key(kind) && large.contains_key(kind), "no {kind} was committed");
    }
}

#[test]
fn both_checks_find_planted_mistakes() {
    let mistakes = [Mutant::TransactionNotValidated, Mutant::TransactionLockDropped];
    for mistake in mistakes {
        let small = (0..3_000).find(|&seed| small_history(seed, Some(mistake)).1.is_some());
        let large = (0..300).find(|&seed| large_history(seed, Some(mistake)).1.is_some());
        assert!(small.is_some() && large.is_some(), "{mistake:?}: {small:?}, {large:?}");
        println!("{mistake:?}: small history {small:?}, large history {large:?}");
    }
}

#[test]
fn the_checks_know_what_is_serialisable() {
    let one = |reads: &[(Place, Option<u64>)], writes: &[(Place, Option<u64>)], number: u64| Done {
        reads: reads.iter().copied().collect(),
        writes: writes.iter().copied().collect(),
        did: BTreeSet::new(),
        seq: (!writes.is_empty()).then_some(CommitSeq(number)),
        begun: 0,
        finished: 100,
    };
    let (a, b) = ((0, 1), (1, 1));
    let cases: [(&str, Vec<Done>, bool); 5] = [
        (
            "one after the other",
            vec![one(&[(a, None)], &[(b, Some(1))], 1), one(&[(b, Some(1))], &[(a, Some(2))], 2)],
            true,
        ),
        (
            "write skew",
            vec![one(&[(a, None)], &[(b, Some(1))], 1), one(&[(b, None)], &[(a, Some(2))], 2)],
            false,
        ),
        (
            "a lost update",
            vec![one(&[(a, None)], &[(a, Some(1))], 1), one(&[(a, None)], &[(a, Some(2))], 2)],
            false,
        ),
        (
            "half of a transaction",
            vec![
                one(&[], &[(a, Some(1)), (b, Some(2))], 1),
                one(&[(a, Some(1)), (b, None)], &[], 2),
            ],
            false,
        ),
        (
            "a long fork",
            vec![
                one(&[], &[(a, Some(1))], 1),
                one(&[], &[(b, Some(2))], 2),
                one(&[(a, Some(1)), (b, None)], &[], 3),
                one(&[(a, None), (b, Some(2))], &[], 4),
            ],
            false,
        ),
    ];
    for (name, done, want) in cases {
        assert_eq!(has_serial_order(&done), want, "{name}");
        assert_eq!(find_anomaly(&done, &BTreeSet::new()).is_none(), want, "{name}");
    }
    let stale = Done { begun: 200, finished: 300, ..one(&[(a, None)], &[], 0) };
    let done = [one(&[], &[(a, Some(1))], 1), stale];
    assert!(!has_serial_order(&done), "what was finished before must be seen");
    assert!(find_anomaly(&done, &BTreeSet::new()).is_some());
}
