//! Grouping of ranges into requests: reading a few unneeded blocks costs less than another request.

use crate::RangeRequest;

/// Ranges with a gap of up to this size share a request. 256 KiB take 3 ms at 100 MB/s; a request
/// of its own takes 30 ms.
const GAP_BYTES_MAX: u64 = 256 << 10;

/// Surplus bytes that any request may read. Beyond that, a request reads at most as many surplus
/// bytes as requested bytes, so that traffic and memory stay in proportion.
const SURPLUS_BYTES: u64 = 64 << 10;

/// Larger reads are split between ranges, so that the parts run in parallel.
const FETCH_BYTES_MAX: u64 = 8 << 20;

/// One request to the store, for one or more ranges of an object.
#[derive(Debug, PartialEq, Eq)]
pub struct Fetch {
    pub(super) key: String,
    pub(super) start: u64,
    pub(super) end: u64,
    /// Bytes of it that no range requested.
    surplus: u64,
    /// Indexes of the ranges inside, by ascending offset.
    pub(super) members: Vec<usize>,
}

/// Plans the requests that [`crate::RemoteBucket`] makes for some ranges. Each range is in exactly
/// one fetch. An invalid range (empty, or past the largest offset) has a fetch of its own.
pub fn plan_fetches(requests: &[RangeRequest]) -> Vec<Fetch> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&idx| (&requests[idx].key, requests[idx].offset));
    let mut fetches: Vec<Fetch> = Vec::new();
    for idx in order {
        let request = &requests[idx];
        let end = request.offset.saturating_add(request.len);
        let is_invalid = request.len == 0 || end == u64::MAX;
        match fetches.last_mut() {
            Some(last) if !is_invalid && last.accepts(request, end) => {
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

impl Fetch {
    /// Bytes that the request reads.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    fn accepts(&self, request: &RangeRequest, end: u64) -> bool {
        let gap = request.offset.saturating_sub(self.end);
        let requested = self.end.max(end) - self.start - gap - self.surplus;
        self.key == request.key
            && self.start < self.end
            && gap <= GAP_BYTES_MAX
            && gap + self.surplus <= requested.max(SURPLUS_BYTES)
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
        plan_fetches(&requests).into_iter().map(|f| (f.start, f.end, f.members)).collect()
    }

    #[test]
    fn near_ranges_share_a_request_and_distant_ones_do_not() {
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
    fn surplus_bytes_stay_in_proportion() {
        // A block here and there over a whole table.
        let ranges: Vec<(&str, u64, u64)> =
            (0..200).map(|idx| ("a", idx * idx * 800, 16 << 10)).collect();
        let mut planned = plan_of(&ranges);
        planned.sort_unstable();
        assert!((20..180).contains(&planned.len()), "{}", planned.len());
        for (start, end, members) in planned {
            let mut requested = 0;
            let mut covered_to = start;
            for idx in members {
                let (_, offset, len) = ranges[idx];
                requested += (offset + len).max(covered_to) - offset.max(covered_to);
                covered_to = covered_to.max(offset + len);
            }
            let surplus = end - start - requested;
            assert!(
                surplus <= requested.max(SURPLUS_BYTES),
                "{start}..{end}: {surplus} of {requested}"
            );
        }
    }

    #[test]
    fn invalid_ranges_have_their_own_fetch() {
        let invalid =
            [("a", 0, 0), ("a", 0, 5), ("a", u64::MAX, 2), ("a", 5, u64::MAX), ("a", 5, 5)];
        let planned = plan_of(&invalid);
        assert_eq!(planned.len(), 5, "{planned:?}");
        let mut members: Vec<usize> = planned.into_iter().flat_map(|fetch| fetch.2).collect();
        members.sort_unstable();
        assert_eq!(members, [0, 1, 2, 3, 4]);
    }
}
