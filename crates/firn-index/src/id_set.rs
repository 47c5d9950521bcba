//! Sets of ids as sorted runs, the operands of matching.
//!
//! Ids are assigned in order of creation, so the series of a host, of a job, or all except a few
//! are few runs.

/// A set of `u32`: disjoint, ascending, half-open runs that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IdSet {
    runs: Vec<(u32, u32)>,
}

impl IdSet {
    /// The empty set.
    pub(crate) fn empty() -> IdSet {
        IdSet::default()
    }

    /// `0..end`.
    pub(crate) fn below(end: u32) -> IdSet {
        IdSet { runs: if end == 0 { Vec::new() } else { vec![(0, end)] } }
    }

    /// The union of runs in any order.
    pub(crate) fn from_runs(mut runs: Vec<(u32, u32)>) -> IdSet {
        runs.retain(|run| run.0 < run.1);
        if !runs.is_sorted() {
            runs.sort_unstable();
        }
        runs.dedup_by(|later, kept| {
            let joins = later.0 <= kept.1;
            if joins {
                kept.1 = kept.1.max(later.1);
            }
            joins
        });
        IdSet { runs }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Number of ids.
    pub(crate) fn count(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.1 - run.0)).sum()
    }

    pub(crate) fn has(&self, id: u32) -> bool {
        let after = self.runs.partition_point(|run| run.0 <= id);
        after.checked_sub(1).and_then(|at| self.runs.get(at)).is_some_and(|run| id < run.1)
    }

    /// The runs, ascending.
    pub(crate) fn runs(&self) -> &[(u32, u32)] {
        &self.runs
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs.iter().flat_map(|run| run.0..run.1)
    }

    pub(crate) fn union(self, mut other: IdSet) -> IdSet {
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        let mut runs = self.runs;
        runs.append(&mut other.runs);
        IdSet::from_runs(runs)
    }

    pub(crate) fn intersect(&self, other: &IdSet) -> IdSet {
        let (short, long) =
            if self.runs.len() <= other.runs.len() { (self, other) } else { (other, self) };
        let mut runs = Vec::with_capacity(short.runs.len());
        let mut rest = &long.runs[..];
        for &(start, end) in &short.runs {
            rest = skip_to(rest, start);
            for &run in rest.iter().take_while(|run| run.0 < end) {
                runs.push((run.0.max(start), run.1.min(end)));
            }
        }
        IdSet { runs }
    }

    /// The ids of `self` that are not in `other`.
    pub(crate) fn minus(&self, other: &IdSet) -> IdSet {
        let mut runs = Vec::with_capacity(self.runs.len());
        let mut rest = &other.runs[..];
        for &(mut start, end) in &self.runs {
            rest = skip_to(rest, start);
            for &run in rest.iter().take_while(|run| run.0 < end) {
                if start < run.0 {
                    runs.push((start, run.0));
                }
                start = start.max(run.1);
            }
            if start < end {
                runs.push((start, end));
            }
        }
        IdSet { runs }
    }
}

/// The runs from the first that ends after `id`. Gallops, so a near run is cheap.
pub(crate) fn skip_to(runs: &[(u32, u32)], id: u32) -> &[(u32, u32)] {
    let mut step = 1;
    while step < runs.len() && runs[step].1 <= id {
        step *= 2;
    }
    let window = &runs[..runs.len().min(step + 1)];
    &runs[window.partition_point(|run| run.1 <= id)..]
}

/// Appends a run of ids, joined with the last run if they touch. Skips a run with ids over 32 bits:
/// no row, shape or member set has such an id.
pub(crate) fn push_run(first: u64, last: u64, runs: &mut Vec<(u32, u32)>) {
    let (Ok(first), Ok(end)) = (u32::try_from(first), u32::try_from(last.saturating_add(1))) else {
        return;
    };
    match runs.last_mut() {
        Some(run) if run.1 == first => run.1 = end,
        _ => runs.push((first, end)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn arb_set() -> impl Strategy<Value = BTreeSet<u32>> {
        prop::collection::btree_set(0u32..60, 0..40)
    }

    fn of(set: &BTreeSet<u32>) -> IdSet {
        IdSet::from_runs(set.iter().rev().map(|&id| (id, id + 1)).collect())
    }

    fn back(set: &IdSet) -> BTreeSet<u32> {
        assert!(set.runs.iter().all(|run| run.0 < run.1), "{set:?}");
        assert!(set.runs.is_sorted_by(|a, b| a.1 < b.0), "{set:?}");
        set.iter().collect()
    }

    proptest! {
        #[test]
        fn operations_agree_with_sets(a in arb_set(), b in arb_set()) {
            let (x, y) = (of(&a), of(&b));
            prop_assert_eq!(back(&x), a.clone());
            prop_assert_eq!(x.count(), a.len() as u64);
            prop_assert!((0..61).all(|id| x.has(id) == a.contains(&id)));
            prop_assert_eq!(back(&x.intersect(&y)), &a & &b);
            prop_assert_eq!(back(&x.minus(&y)), &a - &b);
            prop_assert_eq!(back(&x.clone().union(y)), &a | &b);
        }
    }
}
