//! Growing posting lists: ids in order of arrival, stored as varint runs with the last run inline.
//!
//! A list of one run, the usual case for a pair, takes 16 bytes and no heap.

use firn_model::{Budget, Result, decode_varint, encode_varint};

use crate::id_set::{IdSet, RunList, skip_to};

/// Ids in order of arrival, usually but not always ascending.
#[derive(Debug, Default)]
pub(crate) struct PostingList {
    /// The open, last run: `start..start + len`. Empty list if `len` is 0.
    start: u32,
    len: u32,
    /// The earlier runs.
    closed: Option<Box<ClosedRuns>>,
}

#[derive(Debug, Default)]
struct ClosedRuns {
    /// Per run `varint(zigzag(start - previous end) << 1 | longer)`, then `varint(len - 2)` if
    /// longer.
    bytes: Vec<u8>,
    /// End of the last closed run.
    end: u32,
}

impl PostingList {
    /// Adds an id unless it is in the open run. Returns the growth of the heap in bytes.
    pub(crate) fn push(&mut self, id: u32) -> usize {
        if self.len == 0 {
            (self.start, self.len) = (id, 1);
        } else if id == self.start + self.len {
            self.len += 1;
        } else if !(self.start..self.start + self.len).contains(&id) {
            let before = self.heap_bytes();
            let closed = self.closed.get_or_insert_default();
            let gap = i64::from(self.start) - i64::from(closed.end);
            let zigzag = ((gap << 1) ^ (gap >> 63)) as u64;
            encode_varint(zigzag << 1 | u64::from(self.len > 1), &mut closed.bytes);
            if self.len > 1 {
                encode_varint(u64::from(self.len - 2), &mut closed.bytes);
            }
            closed.end = self.start + self.len;
            (self.start, self.len) = (id, 1);
            return self.heap_bytes() - before;
        }
        0
    }

    /// The first id that was added.
    pub(crate) fn first(&self) -> Option<u32> {
        self.runs().next().map(|run| run.0)
    }

    /// The last id below `end` of the open run. O(1).
    pub(crate) fn last_below(&self, end: u32) -> Option<u32> {
        let run_end = (self.start + self.len).min(end);
        (self.start < run_end).then(|| run_end - 1)
    }

    /// Appends the runs, cut to ids below `end`, to `out` in order of arrival.
    pub(crate) fn extend_runs(&self, end: u32, out: &mut RunList<'_>) {
        let runs = self.runs().filter(|run| run.0 < end);
        runs.for_each(|run| out.push((run.0, run.1.min(end))));
    }

    /// As [`PostingList::extend_runs`], also cut to `within` if there is one.
    pub(crate) fn extend_runs_within(
        &self,
        end: u32,
        within: Option<&IdSet>,
        out: &mut RunList<'_>,
    ) {
        let Some(within) = within else { return self.extend_runs(end, out) };
        let (mut rest, mut last) = (within.runs(), 0);
        for run in self.runs().filter(|run| run.0 < end) {
            if run.0 < last {
                rest = within.runs();
            }
            last = run.0;
            rest = skip_to(rest, run.0);
            let met = rest.iter().take_while(|met| met.0 < run.1.min(end));
            met.for_each(|met| out.push((met.0.max(run.0), met.1.min(run.1).min(end))));
        }
    }

    /// The approximate cost of reading the list: its bytes. O(1).
    pub(crate) fn length(&self) -> usize {
        1 + self.closed.as_ref().map_or(0, |closed| closed.bytes.len())
    }

    /// The ids below `end`.
    ///
    /// # Errors
    /// As [`RunList::finish`].
    pub(crate) fn below(&self, end: u32, budget: &Budget) -> Result<IdSet> {
        let mut runs = RunList::new(budget);
        self.extend_runs(end, &mut runs);
        runs.finish()
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.closed.as_ref().map_or(0, |closed| size_of::<ClosedRuns>() + closed.bytes.capacity())
    }

    fn runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut rest = self.closed.as_ref().map_or(&[][..], |closed| &closed.bytes[..]);
        let mut end = 0i64;
        let closed = std::iter::from_fn(move || {
            let token = decode_varint(&mut rest)?;
            let zigzag = token >> 1;
            let start = end + ((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64));
            let len = if token & 1 == 0 { 1 } else { decode_varint(&mut rest)? as i64 + 2 };
            end = start + len;
            Some((start as u32, end as u32))
        });
        let open = (self.len > 0).then_some((self.start, self.start + self.len));
        closed.chain(open)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ids_are_read_back_in_any_order(
            ids in prop::collection::vec(0u32..80, 0..60),
            end in 0u32..90,
        ) {
            let budget = Budget::unlimited();
            let mut list = PostingList::default();
            let heap_bytes: usize = ids.iter().map(|&id| list.push(id)).sum();
            prop_assert_eq!(list.heap_bytes(), heap_bytes);
            let want: BTreeSet<u32> = ids.iter().copied().filter(|&id| id < end).collect();
            let below = list.below(end, &budget).unwrap();
            prop_assert_eq!(below.iter().collect::<BTreeSet<_>>(), want);
            prop_assert_eq!(list.first(), ids.first().copied());
            let last = ids.last().filter(|&&id| id < end);
            prop_assert!(last.is_none_or(|&last| list.last_below(end) >= Some(last)));
            prop_assert!(list.last_below(end).is_none_or(|last| ids.contains(&last) && last < end));
            let within = ids.iter().rev().step_by(3).map(|&id| (id, id + 3));
            let within = IdSet::from_runs(within, &budget).unwrap();
            let (mut cut, mut all) = (RunList::new(&budget), RunList::new(&budget));
            list.extend_runs_within(end, Some(&within), &mut cut);
            list.extend_runs_within(end, None, &mut all);
            let want = all.finish().unwrap().intersect(&within, &budget).unwrap();
            prop_assert_eq!(cut.finish().unwrap(), want);
        }
    }

    #[test]
    fn the_largest_and_smallest_ids_are_valid() {
        let mut list = PostingList::default();
        for id in [u32::MAX - 1, 0, 5, 6, 7, u32::MAX - 2] {
            list.push(id);
        }
        assert_eq!(
            list.below(u32::MAX, &Budget::unlimited()).unwrap().iter().collect::<Vec<_>>(),
            [0, 5, 6, 7, u32::MAX - 2, u32::MAX - 1]
        );
    }

    #[test]
    fn a_list_of_one_run_has_no_heap() {
        let mut list = PostingList::default();
        for id in 7..1_000 {
            list.push(id);
        }
        assert_eq!((size_of::<PostingList>(), list.heap_bytes()), (16, 0));
    }
}
