//! Serialisability, checked on histories. Several threads run transactions on few samples.
//! Afterwards the test searches for a serial order in which every transaction reads the same
//! values.
//!
//! Small histories are checked against every order, without trust in any number from the database.
//! Large ones are searched for cycles of dependencies, as Elle does: read from, overwritten by, and
//! finished before. The order of the writes of one sample is then that of their commit numbers.
//!
//! Threads interleave differently each time. `FIRN_HISTORIES=n` runs n small histories instead of
//! 150, and a tenth as many large ones. `FIRN_SEED=s` uses seed s for all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_engine::{
    Engine, EngineOptions, HeadOptions, Lane, LogOptions, Mutant, RecoveryProgress, Transaction,
};
use firn_model::{CommitSeq, ErrorKind, Labels, Matcher, SeriesRef, TimeRange};
use firn_sim::{Rng, Sim};
use parking_lot::Mutex;

use crate::world::small_arenas;

/// The samples that transactions use: one of each series at each time.
const SERIES: usize = 3;
const TIMES: [i64; 2] = [1_000, 3_600_000];
type Point = (usize, i64);
/// Values of samples; `None` is absent.
type PointValues = BTreeMap<Point, Option<u64>>;

/// Kinds of changes: of one sample, or of all samples that a selector matches.
const CHANGES: [&str; 5] = ["insert", "update", "delete", "update of a range", "delete of a range"];

/// A committed transaction. Every value is written only once; `None` is absent.
#[derive(Debug)]
struct CommittedTransaction {
    reads: PointValues,
    writes: PointValues,
    /// The kinds of its changes, from [`CHANGES`].
    changes_made: BTreeSet<&'static str>,
    /// `None` if it changed nothing.
    seq: Option<CommitSeq>,
    /// Time by a logical clock that ticks with each call.
    begun: u64,
    finished: u64,
}

/// The values that one transaction has read and written so far.
#[derive(Default)]
struct ReadWriteSets {
    reads: PointValues,
    writes: PointValues,
}

/// One series or all, at one time or at all times.
#[derive(Clone, Copy)]
struct RegisterSelection {
    series: Option<usize>,
    ts: Option<i64>,
}

struct Registers {
    engine: Arc<Engine>,
    refs: Vec<SeriesRef>,
    clock: AtomicU64,
    next_value: AtomicU64,
    /// Values of refused transactions, which no transaction may read.
    refused: Mutex<BTreeSet<u64>>,
}

impl Registers {
    fn open(sim: &Sim, seed: u64, mutant: Option<Mutant>) -> Registers {
        let options = EngineOptions {
            shard_count: 4,
            stream_count: Some(1 + seed as usize % 3),
            mutant,
            head: HeadOptions { convert: small_arenas(256), ..Default::default() },
            log: LogOptions { segment_bytes: 64 << 10, ..Default::default() },
            ..EngineOptions::default()
        };
        let engine = Engine::open(sim.env(), options, &RecoveryProgress::default());
        let engine = engine.expect("opens");
        // If a mutant opens a window for a race, other threads run in it.
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

    /// Runs one random transaction; `None` if it was refused.
    fn run(&self, rng: &mut Rng) -> Option<CommittedTransaction> {
        let begun = self.tick();
        let mut transaction = self.engine.begin().expect("begins");
        let mut seen = ReadWriteSets::default();
        if rng.chance(0.3) {
            // Absent samples are recorded too.
            self.read_range(&mut transaction, random_selection(rng), &mut seen);
        }
        for _ in 0..rng.below(3) {
            self.read_point(&mut transaction, random_point(rng), &mut seen);
        }
        if rng.chance(0.5) {
            std::thread::yield_now();
        }
        let mut changes_made = BTreeSet::new();
        for _ in 0..rng.below(3) {
            // A deleted sample reads like one that was never written, so deletes are rarer: values
            // show more.
            let kind = CHANGES[[0, 0, 0, 0, 1, 1, 2, 3, 3, 4][rng.below(10) as usize]];
            self.change(kind, rng, &mut transaction, &mut seen);
            changes_made.insert(kind);
        }
        let ReadWriteSets { mut reads, mut writes } = seen;
        match transaction.commit() {
            Ok(report) => {
                let seq = report.seq;
                if seq.is_none() {
                    // A delete of absent samples is a read of their absence.
                    for (point, value) in std::mem::take(&mut writes) {
                        assert_eq!(value, None, "a write without a number");
                        reads.entry(point).or_insert(None);
                    }
                }
                Some(CommittedTransaction {
                    reads,
                    writes,
                    changes_made,
                    seq,
                    begun,
                    finished: self.tick(),
                })
            }
            Err(e) if *e.kind() == ErrorKind::Conflict => {
                self.refused.lock().extend(writes.into_values().flatten());
                None
            }
            Err(e) => panic!("an error without a cause: {e:?}"),
        }
    }

    fn change(
        &self,
        kind: &str,
        rng: &mut Rng,
        transaction: &mut Transaction<'_>,
        seen: &mut ReadWriteSets,
    ) {
        let point = random_point(rng);
        let (series, ts, value) = (self.refs[point.0], point.1, self.new_value());
        match kind {
            "insert" => {
                transaction.insert(series, ts, value).expect("an insert");
                seen.writes.insert(point, Some(value.to_bits()));
            }
            "update" => {
                match (
                    self.read_point(transaction, point, seen),
                    transaction.update(series, ts, value),
                ) {
                    (Some(_), Ok(())) => {
                        seen.writes.insert(point, Some(value.to_bits()));
                    }
                    (None, Err(e)) if *e.kind() == ErrorKind::NotFound => {}
                    (old, updated) => panic!("an update of {old:?}: {updated:?}"),
                }
            }
            "delete" => {
                let old = self.read_point(transaction, point, seen);
                let was_there = transaction.delete(series, ts).expect("a delete");
                assert_eq!(was_there, old.is_some(), "a delete of {old:?}");
                if was_there {
                    seen.writes.insert(point, None);
                }
            }
            "update of a range" => {
                let selection = random_selection(rng);
                let mut left = self.read_range(transaction, selection, seen);
                let (matchers, range) = selection.matchers();
                let updated = transaction.update_range(&matchers, range, |labels, sample| {
                    let name = labels.get("__name__").expect("a name");
                    let point = (name[1..].parse().expect("a number"), sample.ts);
                    let old = left.insert(point, None).flatten();
                    assert_eq!(old, Some(sample.value.to_bits()), "a range that changes");
                    let value = self.new_value();
                    seen.writes.insert(point, Some(value.to_bits()));
                    value
                });
                updated.expect("an update");
                assert!(left.values().all(Option::is_none), "{left:?} was left out");
            }
            _ => {
                let selection = random_selection(rng);
                let (matchers, range) = selection.matchers();
                transaction.delete_range(&matchers, range).expect("a delete");
                seen.writes.extend(selection.points().map(|point| (point, None)));
            }
        }
    }

    fn new_value(&self) -> f64 {
        self.next_value.fetch_add(1, Ordering::Relaxed) as f64
    }

    fn read_point(
        &self,
        transaction: &mut Transaction<'_>,
        point: Point,
        seen: &mut ReadWriteSets,
    ) -> Option<u64> {
        let value = transaction.read_point(self.refs[point.0], point.1).expect("a read");
        seen.note(point, value.map(f64::to_bits))
    }

    fn read_range(
        &self,
        transaction: &mut Transaction<'_>,
        selection: RegisterSelection,
        seen: &mut ReadWriteSets,
    ) -> PointValues {
        let (matchers, range) = selection.matchers();
        let found = transaction.read(&matchers, range).expect("a read");
        let value = |point: Point| {
            let of_series = found.iter().find(|one| one.series == self.refs[point.0]);
            let sample = of_series.and_then(|one| one.samples.iter().find(|s| s.ts == point.1));
            (point, seen.note(point, sample.map(|sample| sample.value.to_bits())))
        };
        selection.points().map(value).collect()
    }

    /// Runs `thread_count` threads with `count` transactions each, then one transaction that reads
    /// all samples.
    fn play(&self, seed: u64, thread_count: u64, count: usize) -> Vec<CommittedTransaction> {
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
        let (begun, mut seen) = (self.tick(), ReadWriteSets::default());
        let mut last = self.engine.begin().expect("begins");
        self.read_range(&mut last, RegisterSelection { series: None, ts: None }, &mut seen);
        let ReadWriteSets { reads, writes } = seen;
        let (changes_made, finished) = (BTreeSet::new(), self.tick());
        done.push(CommittedTransaction { reads, writes, changes_made, seq: None, begun, finished });
        done
    }
}

impl ReadWriteSets {
    /// Records a read. A transaction reads its own writes, and otherwise the same value each time.
    fn note(&mut self, point: Point, value: Option<u64>) -> Option<u64> {
        let known = match self.writes.get(&point) {
            Some(own) => *own,
            None => *self.reads.entry(point).or_insert(value),
        };
        assert_eq!(value, known, "{point:?} in one transaction");
        value
    }
}

impl RegisterSelection {
    fn matchers(self) -> (Vec<Matcher>, TimeRange) {
        let matcher = match self.series {
            Some(series) => Matcher::equal("__name__", format!("r{series}")),
            None => Matcher::equal("kind", "register"),
        };
        let range = |ts: i64| TimeRange::new(ts - 500, ts + 500);
        (vec![matcher], self.ts.map_or(TimeRange::ALL, range))
    }

    fn points(self) -> impl Iterator<Item = Point> {
        let is_in = move |point: &Point| {
            self.series.is_none_or(|series| series == point.0)
                && self.ts.is_none_or(|ts| ts == point.1)
        };
        (0..SERIES).flat_map(|series| TIMES.map(|ts| (series, ts))).filter(is_in)
    }
}

fn random_selection(rng: &mut Rng) -> RegisterSelection {
    RegisterSelection {
        series: rng.chance(0.7).then(|| rng.below(SERIES as u64) as usize),
        ts: rng.chance(0.5).then(|| *rng.pick(&TIMES)),
    }
}

fn random_point(rng: &mut Rng) -> Point {
    (rng.below(SERIES as u64) as usize, *rng.pick(&TIMES))
}

/// Whether some serial order explains all reads: each transaction reads the values that the
/// transactions before it left, and none precedes one that had finished when it began.
fn has_serial_order(done: &[CommittedTransaction]) -> bool {
    fn go(done: &[CommittedTransaction], left: u32, state: &mut PointValues) -> bool {
        if left == 0 {
            return true;
        }
        let is_left = |idx: usize| left & (1 << idx) != 0;
        (0..done.len()).filter(|&idx| is_left(idx)).any(|idx| {
            let one = &done[idx];
            let is_first =
                (0..done.len()).all(|other| !is_left(other) || done[other].finished >= one.begun);
            let reads = |(point, value): (&Point, &Option<u64>)| {
                state.get(point).copied().unwrap_or(None) == *value
            };
            if !is_first || !one.reads.iter().all(reads) {
                return false;
            }
            let before = state.clone();
            state.extend(one.writes.iter().map(|(point, value)| (*point, *value)));
            let found = go(done, left & !(1 << idx), state);
            *state = before;
            found
        })
    }
    assert!(done.len() <= 16, "every order of {} transactions takes too long", done.len());
    go(done, (1 << done.len()) - 1, &mut BTreeMap::new())
}

/// Describes a cycle of dependencies, or a read of a value that no committed transaction wrote.
fn find_anomaly(done: &[CommittedTransaction], refused: &BTreeSet<u64>) -> Option<String> {
    let mut writers: BTreeMap<u64, usize> = BTreeMap::new();
    let mut versions: BTreeMap<Point, Vec<(CommitSeq, usize)>> = BTreeMap::new();
    for (idx, one) in done.iter().enumerate() {
        for (point, value) in &one.writes {
            let seq = one.seq.expect("one that wrote has a number");
            versions.entry(*point).or_default().push((seq, idx));
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
        for (point, value) in &one.reads {
            let list = versions.get(point).map_or(&[][..], Vec::as_slice);
            let next = match value {
                Some(value) if refused.contains(value) => {
                    return Some(format!("{point:?}: a refused transaction's {value} was read"));
                }
                Some(value) => {
                    let Some(&writer) = writers.get(value) else {
                        return Some(format!("{point:?}: no transaction wrote {value}"));
                    };
                    if writer != idx {
                        edges[writer].insert(idx);
                    }
                    let at = list.iter().position(|version| version.1 == writer);
                    at.map_or(0, |at| at + 1)
                }
                // The read was before the first write or after some delete. That is ambiguous, so
                // no edge is added.
                None if list.iter().any(|version| done[version.1].writes[point].is_none()) => {
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
    // Removes nodes without incoming edges until none is left. The remaining nodes are on a cycle
    // or reachable from one.
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
    // Each remaining node has a remaining predecessor, so a backward walk returns to a visited
    // node.
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

/// A history, and its anomaly if it has one.
type CheckedHistory = (Vec<CommittedTransaction>, Option<String>);

fn small_history(seed: u64, mutant: Option<Mutant>) -> CheckedHistory {
    let sim = Sim::new(seed);
    let done = Registers::open(&sim, seed, mutant).play(seed, 3, 3);
    let why = (!has_serial_order(&done)).then(|| format!("no serial order of {done:#?}"));
    (done, why)
}

fn large_history(seed: u64, mutant: Option<Mutant>) -> CheckedHistory {
    let sim = Sim::new(seed);
    let registers = Registers::open(&sim, seed, mutant);
    let done = registers.play(seed, 4, 60);
    let why = find_anomaly(&done, &registers.refused.lock());
    (done, why)
}

/// Runs `count` histories and prints the command that repeats a failed one. Returns the number of
/// commits by kind of change.
fn play_all(
    count: u64,
    history: fn(u64, Option<Mutant>) -> CheckedHistory,
) -> BTreeMap<&'static str, u64> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let mut changes = BTreeMap::new();
    for idx in 0..count {
        let seed = number("FIRN_SEED").unwrap_or(idx);
        let played = catch_unwind(|| history(seed, None));
        if !played.as_ref().is_ok_and(|(_, why)| why.is_none()) {
            eprintln!(
                "seed {seed} failed; to repeat: FIRN_SEED={seed} FIRN_HISTORIES=10000 \
                 cargo test --package firn-engine --test simulation histories"
            );
        }
        let (done, why) = played.unwrap_or_else(|panic| resume_unwind(panic));
        assert!(why.is_none(), "seed {seed}: {}", why.unwrap_or_default());
        for kind in done.iter().flat_map(|one| &one.changes_made) {
            *changes.entry(*kind).or_default() += 1;
        }
    }
    changes
}

#[test]
fn transactions_are_serialisable() {
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
fn both_checks_catch_mutants() {
    let mutants = [Mutant::TransactionNotValidated, Mutant::TransactionLockDropped];
    for mutant in mutants {
        let small = (0..3_000).find(|&seed| small_history(seed, Some(mutant)).1.is_some());
        let large = (0..300).find(|&seed| large_history(seed, Some(mutant)).1.is_some());
        assert!(small.is_some() && large.is_some(), "{mutant:?}: {small:?}, {large:?}");
        println!("{mutant:?}: small history {small:?}, large history {large:?}");
    }
}

#[test]
fn the_checks_accept_only_serialisable_histories() {
    let one = |reads: &[(Point, Option<u64>)], writes: &[(Point, Option<u64>)], number: u64| {
        CommittedTransaction {
            reads: reads.iter().copied().collect(),
            writes: writes.iter().copied().collect(),
            changes_made: BTreeSet::new(),
            seq: (!writes.is_empty()).then_some(CommitSeq(number)),
            begun: 0,
            finished: 100,
        }
    };
    let (a, b) = ((0, 1), (1, 1));
    let cases: [(&str, Vec<CommittedTransaction>, bool); 5] = [
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
    let stale = CommittedTransaction { begun: 200, finished: 300, ..one(&[(a, None)], &[], 0) };
    let done = [one(&[], &[(a, Some(1))], 1), stale];
    assert!(!has_serial_order(&done), "the writes of a finished transaction must be visible");
    assert!(find_anomaly(&done, &BTreeSet::new()).is_some());
}
