//! Tests with many threads.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use firn_model::{GroupId, Grouping, Labels, MatchOp, Matcher, QueryContext, SeriesRef};

use super::{disk, labels, open};
use crate::{IndexOptions, Liveness};

/// Ends the other threads of a test, also if this one panics: they would fill the memory.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_label_set_resolved_by_many_threads_has_one_reference() {
    let options = IndexOptions { slots_per_group_max: 50, ..IndexOptions::default() };
    let disk = disk();
    let index = open(&disk, options.clone(), &[]).unwrap();
    let sets: Vec<Labels> = (0..3_000)
        .map(|n| match n % 3 {
            0 => labels(&format!("__name__=m{n},job=j,instance=i{}", n % 7)),
            1 => labels(&format!("__name__=m{},host=h{n}", n % 5)),
            _ => labels(&format!("__name__=m{},job=j,instance=i{n}", n % 5)),
        })
        .collect();
    let answers: Vec<HashMap<Labels, SeriesRef>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (index, sets) = (&index, &sets);
                scope.spawn(move || {
                    let mut answers = HashMap::new();
                    let mut out = Vec::new();
                    // Each thread starts at another offset; half of them run backwards.
                    let mut order: Vec<Labels> = sets[thread * 700..].to_vec();
                    order.extend_from_slice(&sets[..thread * 700]);
                    if thread % 2 == 1 {
                        order.reverse();
                    }
                    for batch in order.chunks(17) {
                        index.resolve(batch, &mut out);
                        for (labels, series) in batch.iter().zip(&out) {
                            answers.insert(labels.clone(), *series.as_ref().unwrap());
                        }
                    }
                    answers
                })
            })
            .collect();
        // Queries and seals run concurrently.
        for _ in 0..20 {
            let view = index.view();
            let matches = view.matches(&[], &Grouping::Series, &QueryContext::unbounded()).unwrap();
            assert_eq!(matches.series_count() as u64, view.series_count());
            if let Some(job) = index.plan_seal() {
                index.apply(&job.run(&disk).unwrap()).unwrap();
            }
        }
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for other in &answers[1..] {
        assert_eq!(other, &answers[0]);
    }
    assert_eq!(index.view().series_count(), 3_000);
    let mut refs: Vec<SeriesRef> = answers[0].values().copied().collect();
    refs.sort();
    refs.dedup();
    assert_eq!(refs.len(), 3_000);
    // Sealed and unsealed series have the returned references.
    if let Some(job) = index.plan_seal() {
        index.apply(&job.run(&disk).unwrap()).unwrap();
    }
    let again = open(&disk, options, &[&index.snapshot_part()]).unwrap();
    assert_eq!(again.view().series_count(), 3_000);
    assert!(
        answers[0].iter().all(|(labels, &series)| again.lookup(labels).unwrap() == Some(series))
    );
}

/// A query that takes a read lock twice would deadlock with a waiting writer, and this test would
/// not end.
#[test]
fn queries_end_while_series_are_defined() {
    let disk = disk();
    let index = open(&disk, IndexOptions::default(), &[]).unwrap();
    let is_over = AtomicBool::new(false);
    let matcher = |name, value| Matcher::new(name, MatchOp::Equal, value).unwrap();
    let matchers = [matcher("__name__", "m"), matcher("job", "j"), matcher("host", "h1")];
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let found = index.view().select(&matchers, &QueryContext::unbounded()).unwrap();
                    assert!(found.series_count(&QueryContext::unbounded()).unwrap() <= 1);
                }
            });
        }
        let _end = EndOnDrop(&is_over);
        let mut out = Vec::new();
        for n in 0..20_000 {
            index.resolve(&[labels(&format!("__name__=m,job=j,host=h{n}"))], &mut out);
        }
    });
}

/// Drops all slots of every third group, another third in each round.
struct EveryThirdGroup(u64);

impl Liveness for EveryThirdGroup {
    fn retain(&self, group: GroupId, slots: &mut Vec<u32>) {
        if (group.0 + self.0).is_multiple_of(3) {
            slots.clear();
        }
    }
}

/// Threads resolve while segments are sealed, merged and removed. A reference never belongs to two
/// label sets, a view is consistent, and in the end each label set has one reference.
#[test]
fn references_stay_unique_while_series_leave_and_come_back() {
    let options = IndexOptions { slots_per_group_max: 20, ..IndexOptions::default() };
    let disk = disk();
    let index = open(&disk, options.clone(), &[]).unwrap();
    let sets: Vec<Labels> = (0..600)
        .map(|n| match n % 2 {
            0 => labels(&format!("__name__=m{n},rack=r{},job=j,instance=i{}", n % 12, n % 12)),
            _ => labels(&format!("__name__=m{n},host=h{}", n % 5)),
        })
        .collect();
    let is_over = AtomicBool::new(false);
    let given: Vec<Vec<(usize, SeriesRef)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|thread| {
                let (index, sets, is_over) = (&index, &sets, &is_over);
                scope.spawn(move || {
                    let mut given = Vec::new();
                    let mut out = Vec::new();
                    for round in 0.. {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        for start in (0..sets.len()).step_by(50) {
                            // Each thread and round starts at another offset.
                            let start = (start + thread * 200 + round * 50) % sets.len();
                            let batch = &sets[start..start + 50];
                            index.resolve(batch, &mut out);
                            let refs = out.iter().map(|series| *series.as_ref().unwrap());
                            given.extend((start..).zip(refs));
                        }
                    }
                    given
                })
            })
            .collect();
        let end = EndOnDrop(&is_over);
        let (mut round, mut removed_count) = (0, 0);
        while removed_count < 8 {
            round += 1;
            let number = index.next_number();
            if let Some(job) = index.plan_seal() {
                index.apply(&job.run(&disk).unwrap()).unwrap();
            }
            index.settle(number);
            if let Some(job) = index.plan_merge(u64::MAX) {
                index.apply(&job.run(&disk).unwrap()).unwrap();
            }
            let view = index.view();
            let matches = view.matches(&[], &Grouping::Series, &QueryContext::unbounded()).unwrap();
            assert_eq!(matches.series_count() as u64, view.series_count());
            let distinct: HashSet<&Labels> = matches.keys.iter().collect();
            assert_eq!(distinct.len(), matches.keys.len(), "a label set is there twice");
            let removal = index
                .plan_removal()
                .and_then(|job| job.run_removal(&disk, &EveryThirdGroup(round)).unwrap());
            if let Some(removal) = removal {
                index.apply(&removal.part).unwrap();
                removed_count += 1;
            }
        }
        drop(end);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut owners: HashMap<SeriesRef, usize> = HashMap::new();
    for (set, series) in given.into_iter().flatten() {
        let owner = *owners.entry(series).or_insert(set);
        assert_eq!(owner, set, "{series:?} was given to {} and {}", sets[owner], sets[set]);
    }
    let mut out = Vec::new();
    index.resolve(&sets, &mut out);
    let refs: HashSet<SeriesRef> = out.iter().map(|series| *series.as_ref().unwrap()).collect();
    assert_eq!((refs.len(), index.view().series_count()), (600, 600));
    if let Some(job) = index.plan_seal() {
        index.apply(&job.run(&disk).unwrap()).unwrap();
    }
    let again = open(&disk, options, &[&index.snapshot_part()]).unwrap();
    assert!(sets.iter().zip(&out).all(|(labels, series)| {
        again.lookup(labels).unwrap() == Some(*series.as_ref().unwrap())
    }));
}
