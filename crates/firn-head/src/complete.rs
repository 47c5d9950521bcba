//! Since when a shard's memory has everything, by time range: which tables need not be read.

use std::sync::Arc;

use firn_model::{CommitSeq, TimeRange};

/// So many losses are remembered apart; the oldest two become one beyond.
const LOSSES_MAX: usize = 16;

/// What of the rows since the start is still in memory. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Complete {
    /// Where the first row that came into memory is from.
    since: Option<CommitSeq>,
    losses: Arc<Vec<Loss>>,
}

/// Rows that were given back: none of them is outside of `range` or from `next` or later.
#[derive(Clone, Copy, Debug)]
struct Loss {
    range: TimeRange,
    next: CommitSeq,
}

impl Complete {
    /// A row of commit `seq` comes into memory.
    pub(crate) fn begin(&mut self, seq: CommitSeq) {
        self.since.get_or_insert(seq);
    }

    /// Rows in `range`, of commits up to `last`, are no longer there.
    pub(crate) fn lose(&mut self, range: TimeRange, last: CommitSeq) {
        let losses = Arc::make_mut(&mut self.losses);
        losses.push(Loss { range, next: CommitSeq(last.0.saturating_add(1)) });
        if losses.len() > LOSSES_MAX {
            let oldest = losses.remove(0);
            losses[0].range = losses[0].range.union(oldest.range);
            losses[0].next = losses[0].next.max(oldest.next);
        }
    }

    /// Every row in `range` that was committed at this or later is in memory; `CommitSeq(u64::MAX)` if there was
    /// none since the start.
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
    fn a_loss_counts_where_it_was_and_many_are_few() {
        let mut complete = Complete::default();
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
        assert!(complete.since(TimeRange::at(150)) >= CommitSeq(31), "never too early");
        assert_eq!(complete.since(TimeRange::at(20_000)), CommitSeq(10));
    }
}
