//! Many threads at once.

use std::collections::HashMap;

use firn_model::{CancelToken, Grouping, Labels, SeriesRef, ShardBits};

use super::{disk, labels, open};
use crate::IndexOptions;

#[test]
fn a_label_set_resolved_by_many_threads_has_one_reference() {
    let options =
        IndexOptions { slots_per_group_max: 50, ..IndexOptions::new(ShardBits::for_count(8)) };
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
                    // Each thread walks the sets from another place, half of them backwards.
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
        // Queries and seals run beside them.
        for _ in 0..20 {
            let view = index.view();
            let matches = view.matches(&[], &Grouping::Series, &CancelToken::new()).unwrap();
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
    // What was sealed while they ran, and the rest, is what was given.
    if let Some(job) = index.plan_seal() {
        index.apply(&job.run(&disk).unwrap()).unwrap();
    }
    let again = open(&disk, options, &[&index.snapshot_part()]).unwrap();
    assert_eq!(again.view().series_count(), 3_000);
    assert!(
        answers[0].iter().all(|(labels, &series)| again.lookup(labels).unwrap() == Some(series))
    );
}
