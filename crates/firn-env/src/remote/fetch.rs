//! Which ranges are fetched together: a request costs more than a few blocks that nobody asked for.

use crate::RangeRequest;

/// A gap up to this is read along. 256 KiB: at 100 MB/s it takes 3 ms, a request of its own takes 30.
const GAP_BYTES_MAX: u64 = 256 << 10;

/// So much may be read along in any request; beyond it no more than what was asked for, so that neither bytes nor memory
/// grow out of proportion.
const SURPLUS_BYTES: u64 = 64 << 10;

/// Larger reads are split at a request's border, so that they run in parallel.
const FETCH_BYTES_MAX: u64 = 8 << 20;

/// One request to the store.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fetch {
    pub(super) key: String,
    pub(super) start: u64,
    pub(super) end: u64,
    /// Bytes of it that nobody asked for.
    surplus: u64,
    /// Indexes of the ranges that lie in it, by rising offset.
    pub(super) members: Vec<usize>,
}

/// Every request is a member of exactly one fetch. A request that makes no sense (empty, or past the
/// end of all numbers) is alone.
pub(super) fn plan(requests: &[RangeRequest]) -> Vec<Fetch> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&idx| (&requests[idx].key, requests[idx].offset));
    let mut fetches: Vec<Fetch> = Vec::new();
    for idx in order {
        let request = &requests[idx];
        let end = request.offset.saturating_add(request.len);
        let is_odd = request.len == 0 || end == u64::MAX;
        match fetches.last_mut() {
            Some(last) if !is_odd && last.takes(request, end) => {
                last.surplus += request.offset.saturating_sub(last.end);
                last.end = last.end.max(end);
                last.members.push(idx);
            }
            _ => fetches.push(Fetch {
                key: request.key.clone(),
                start: request.offset,
                end,
                surplus: 0,
                members: vec![idx],
            }),
        }
    }
    fetches
}

/// The bytes of each request that [`crate::RemoteBucket`] makes of some ranges: for benchmarks without a store.
pub fn planned_fetch_bytes(requests: &[RangeRequest]) -> impl Iterator<Item = u64> {
    plan(requests).into_iter().map(|fetch| fetch.end - fetch.start)
}

impl Fetch {
    fn takes(&self, request: &RangeRequest, end: u64) -> bool {
        let gap = request.offset.saturating_sub(self.end);
        let asked = self.end.max(end) - self.start - gap - self.surplus;
        self.key == request.key
            && self.start < self.end
            && gap <= GAP_BYTES_MAX
            && gap + self.surplus <= asked.max(SURPLUS_BYTES)
            && end.max(self.end) - self.start <= FETCH_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan_of(ranges: &[(&str, u64, u64)]) -> Vec<(u64, u64, Vec<usize>)> {
        let requests: Vec<RangeRequest> = ranges
            .iter()
            .map(|&(key, offset, len)| RangeRequest { key: key.to_owned(), offset, len })
            .collect();
        plan(&requests).into_iter().map(|f| (f.start, f.end, f.members)).collect()
    }

    #[test]
    fn near_ranges_go_together_and_far_ones_do_not() {
        assert_eq!(plan_of(&[]), []);
        // Out of order, overlapping, one inside another.
        let near = [("a", 16_384, 100), ("a", 0, 16_384), ("a", 10, 5), ("a", 16_484, 1)];
        assert_eq!(plan_of(&near), [(0, 16_485, vec![1, 2, 0, 3])]);
        let len = 2 * GAP_BYTES_MAX;
        let gaps =
            [("a", 0, len), ("a", len + GAP_BYTES_MAX, 1), ("a", len + 2 * GAP_BYTES_MAX + 2, 1)];
        assert_eq!(plan_of(&gaps).len(), 2);
        assert_eq!(plan_of(&[("a", 0, 1), ("b", 1, 1)]).len(), 2);
        let large = FETCH_BYTES_MAX - 1;
        assert_eq!(plan_of(&[("a", 0, large), ("a", large, 2)]).len(), 2);
    }

    #[test]
    fn what_nobody_asked_for_stays_in_proportion() {
        // A block here and there over a whole table.
        let ranges: Vec<(&str, u64, u64)> =
            (0..200).map(|idx| ("a", idx * idx * 800, 16 << 10)).collect();
        let mut planned = plan_of(&ranges);
        planned.sort_unstable();
        assert!((20..180).contains(&planned.len()), "{}", planned.len());
        for (start, end, members) in planned {
            let mut asked = 0;
            let mut covered_to = start;
            for idx in members {
                let (_, offset, len) = ranges[idx];
                asked += (offset + len).max(covered_to) - offset.max(covered_to);
                covered_to = covered_to.max(offset + len);
            }
            let surplus = end - start - asked;
            assert!(surplus <= asked.max(SURPLUS_BYTES), "{start}..{end}: {surplus} of {asked}");
        }
    }

    #[test]
    fn odd_requests_are_alone() {
        let odd = [("a", 0, 0), ("a", 0, 5), ("a", u64::MAX, 2), ("a", 5, u64::MAX), ("a", 5, 5)];
        let planned = plan_of(&odd);
        assert_eq!(planned.len(), 5, "{planned:?}");
        let mut members: Vec<usize> = planned.into_iter().flat_map(|fetch| fetch.2).collect();
        members.sort_unstable();
        assert_eq!(members, [0, 1, 2, 3, 4]);
    }
}
