//! Serialisability, checked on what happened: transactions of several threads on few samples, and afterwards the
//! question whether there is an order in which one after the other would have read the same.
//!
//! Small histories are tried in every order, which believes nothing that the database says. Large ones are looked through
//! for cycles of dependencies (as Elle does): who read from whom, who overwrote whom, who was finished
//! before whom began. The order of writes of one sample is then that of their numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firn_engine::{
    ConvertOptions, Engine, EngineOptions, Lane, Planted, RecoveryProgress, Transaction,
};
use firn_model::{CommitSeq, ErrorKind, Labels, Matcher, SeriesRef, TimeRange};
use firn_sim::{Rng, Sim, for_places};
use parking_lot::Mutex;

/// Samples that are read and written: one of each series at each time.
const SERIES: usize = 3;
const TIMES: [i64; 2] = [1_000, 3_600_000];
type Place = (usize, i64);

/// What one transaction did. Every value is written once; `None` is absent.
#[derive(Debug)]
struct Done {
    reads: BTreeMap<Place, Option<u64>>,
    writes: BTreeMap<Place, Option<u64>>,
    /// `None` of one that changed nothing.
    seq: Option<CommitSeq>,
    /// Of a clock that ticks with each call.
    begun: u64,
    finished: u64,
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
    fn open(sim: &Sim, planted: Option<Planted>) -> Registers {
        let options = EngineOptions {
            shard_count: 4,
            convert: ConvertOptions { arena_bytes_max: 256, ..ConvertOptions::default() },
            log_segment_bytes: 64 << 10,
            planted,
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
        let mut reads = BTreeMap::new();
        let mut writes = BTreeMap::new();
        if rng.chance(0.3) {
            // All of some series, also what is not there.
            let series = rng.below(SERIES as u64 + 1) as usize;
            self.read_range(&mut transaction, series, &mut reads);
        }
        for _ in 0..rng.below(3) {
            let place = some_place(rng);
            let value = transaction.read_point(self.refs[place.0], place.1).expect("a read");
            reads.insert(place, value.map(f64::to_bits));
        }
        if rng.chance(0.5) {
            std::thread::yield_now();
        }
        for _ in 0..rng.below(3) {
            let (series, ts) = some_place(rng);
            if rng.chance(0.2) {
                // Looks before it deletes.
                let old = match writes.get(&(series, ts)) {
                    Some(_) => continue,
                    None => transaction.read_point(self.refs[series], ts).expect("a read"),
                };
                reads.entry((series, ts)).or_insert(old.map(f64::to_bits));
                if transaction.delete(self.refs[series], ts).expect("a delete") {
                    writes.insert((series, ts), None);
                }
            } else if writes.get(&(series, ts)) != Some(&None) {
                let value = self.next_value.fetch_add(1, Ordering::Relaxed) as f64;
                transaction.insert(self.refs[series], ts, value).expect("an insert");
                writes.insert((series, ts), Some(value.to_bits()));
            }
        }
        match transaction.commit() {
            Ok(report) => {
                Some(Done { reads, writes, seq: report.seq, begun, finished: self.tick() })
            }
            Err(e) if *e.kind() == ErrorKind::Conflict => {
                self.refused.lock().extend(writes.into_values().flatten());
                None
            }
            Err(e) => panic!("an error that nobody caused: {e:?}"),
        }
    }

    fn read_range(
        &self,
        transaction: &mut Transaction<'_>,
        series: usize,
        reads: &mut BTreeMap<Place, Option<u64>>,
    ) {
        let (all, one) = (Matcher::equal("kind", "register"), format!("r{series}"));
        let matchers =
            if series < SERIES { vec![Matcher::equal("__name__", one)] } else { vec![all] };
        let found = transaction.read(&matchers, TimeRange::ALL).expect("a read");
        let asked = if series < SERIES { series..series + 1 } else { 0..SERIES };
        for place in asked.flat_map(|series| TIMES.map(|ts| (series, ts))) {
            let of_series = found.iter().find(|one| one.series == self.refs[place.0]);
            let sample = of_series.and_then(|one| one.samples.iter().find(|s| s.ts == place.1));
            reads.insert(place, sample.map(|sample| sample.value.to_bits()));
        }
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
        let (begun, mut reads) = (self.tick(), BTreeMap::new());
        let mut last = self.engine.begin().expect("begins");
        self.read_range(&mut last, SERIES, &mut reads);
        let finished = self.tick();
        done.push(Done { reads, writes: BTreeMap::new(), seq: None, begun, finished });
        done
    }
}

fn some_place(rng: &mut Rng) -> Place {
    (rng.below(SERIES as u64) as usize, *rng.pick(&TIMES))
}

/// Whether some order explains everything: each reads what those before it left, and nobody comes before one that was
/// finished when it began.
fn has_serial_order(done: &[Done]) -> bool {
    fn go(done: &[Done], left: u32, state: &mut BTreeMap<Place, Option<u64>>) -> bool {
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

fn small_history(seed: u64, planted: Option<Planted>) -> Option<String> {
    let sim = Sim::new(seed);
    let registers = Registers::open(&sim, planted);
    let done = registers.play(seed, 3, 3);
    (!has_serial_order(&done)).then(|| format!("no serial order of {done:#?}"))
}

fn large_history(seed: u64, planted: Option<Planted>) -> Option<String> {
    let sim = Sim::new(seed);
    let registers = Registers::open(&sim, planted);
    let done = registers.play(seed, 4, 60);
    let refused = registers.refused.lock();
    find_anomaly(&done, &refused)
}

#[test]
fn transactions_are_as_if_one_came_after_the_other() {
    let fail = |why: String| panic!("{why}");
    for_places(150, |seed| small_history(seed, None).map_or((), fail));
    for_places(15, |seed| large_history(seed, None).map_or((), fail));
}

#[test]
fn both_checks_find_planted_mistakes() {
    let mistakes = [Planted::TransactionNotValidated, Planted::TransactionLockDropped];
    for mistake in mistakes {
        let small = (0..3_000).find(|&seed| small_history(seed, Some(mistake)).is_some());
        let large = (0..300).find(|&seed| large_history(seed, Some(mistake)).is_some());
        assert!(small.is_some() && large.is_some(), "{mistake:?}: {small:?}, {large:?}");
        println!("{mistake:?}: small history {small:?}, large history {large:?}");
    }
}

#[test]
fn the_checks_know_what_is_serialisable() {
    let one = |reads: &[(Place, Option<u64>)], writes: &[(Place, Option<u64>)], number: u64| Done {
        reads: reads.iter().copied().collect(),
        writes: writes.iter().copied().collect(),
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
