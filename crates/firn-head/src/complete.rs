//! For each time range, the commit since which a shard's memory is complete. It decides which
//! tables a query can skip.

use std::sync::Arc;

use firn_model::{CommitSeq, TimeRange};

/// The most losses that are kept separately; beyond it, the two oldest are merged.
const LOSSES_MAX: usize = 16;

/// The rows since the start that are still in memory. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct CompleteSince {
    /// The commit of the first row in memory.
    since: Option<CommitSeq>,
    losses: Arc<Vec<ReleasedRows>>,
}

/// Released rows: all of them are in `range` and from commits before `next`.
#[derive(Clone, Copy, Debug)]
struct ReleasedRows {
    range: TimeRange,
    next: CommitSeq,
}

impl CompleteSince {
    /// A row of commit `seq` enters memory.
    pub(crate) fn begin(&mut self, seq: CommitSeq) {
        self.since.get_or_insert(seq);
    }

    /// Rows in `range`, of commits up to `last`, leave memory.
    pub(crate) fn lose(&mut self, range: TimeRange, last: CommitSeq) {
        let losses = Arc::make_mut(&mut self.losses);
        losses.push(ReleasedRows { range, next: CommitSeq(last.0.saturating_add(1)) });
        if losses.len() > LOSSES_MAX {
            let oldest = losses.remove(0);
            losses[0].range = losses[0].range.union(oldest.range);
            losses[0].next = losses[0].next.max(oldest.next);
        }
    }

    /// Every row in `range` that was committed at this or later is in memory; `CommitSeq(u64::MAX)`
    /// if no row entered memory since the start.
    pub(crate) fn since(&self, range: TimeRange) -> CommitSeq {
        let Some(since) = self.since else { return CommitSeq(u64::MAX) };
        let losses = self.losses.iter().filter(|loss| loss.range.overlaps(range));
        losses.map(|loss| loss.next).fold(since, CommitSeq::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_count_in_their_range_and_merge_when_many() {
        let mut complete = CompleteSince::default();
        assert_eq!(complete.since(TimeRange::ALL), CommitSeq(u64::MAX));
        complete.begin(CommitSeq(10));
        complete.begin(CommitSeq(11));
        complete.lose(TimeRange::new(0, 99), CommitSeq(20));
        complete.lose(TimeRange::new(100, 199), CommitSeq(30));
        assert_eq!(complete.since(TimeRange::new(0, 50)), CommitSeq(21));
        assert_eq!(complete.since(TimeRange::new(150, 250)), CommitSeq(31));
        assert_eq!(complete.since(TimeRange::new(200, 250)), CommitSeq(10));
        for step in 2..100u64 {
            let start = step as i64 * 100;
            complete.lose(TimeRange::new(start, start + 99), CommitSeq(10 + step * 10));
        }
        assert_eq!(complete.losses.len(), LOSSES_MAX);
        assert_eq!(complete.since(TimeRange::at(9_950)), CommitSeq(1_001));
        assert!(
            complete.since(TimeRange::at(150)) >= CommitSeq(31),
            "a merged loss is never too early"
        );
        assert_eq!(complete.since(TimeRange::at(20_000)), CommitSeq(10));
    }
}
