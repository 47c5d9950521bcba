//! CommitSeq: numbers of commits, and the number up to which everything is visible.

use std::collections::BTreeSet;

use firn_model::{CommitSeq, Error, Result};
use parking_lot::Mutex;

/// A larger number was never drawn: at 10^9 commits per second, 2^62 take 146 years. Numbers from
/// here on are free for bounds, and the next number cannot wrap.
const STORED_MAX: u64 = 1 << 62;

/// Checks a number that `file` contains. New numbers continue after the largest one.
///
/// # Errors
/// `Corrupt` if it was never drawn.
pub(crate) fn check_stored(seq: CommitSeq, file: &str) -> Result<()> {
    if seq.0 > STORED_MAX {
        let what = format!("commit {} was never made; restore a backup", seq.0);
        return Err(Error::corrupt(file, 0, what));
    }
    Ok(())
}

/// Draws numbers and tracks those in flight.
pub(crate) struct Sequence(Mutex<SequenceState>);

struct SequenceState {
    next: u64,
    in_flight: BTreeSet<u64>,
}

/// A number in flight. When it is dropped, its rows are visible or will never be.
pub(crate) struct InFlight<'a> {
    sequence: &'a Sequence,
    pub(crate) seq: CommitSeq,
}

impl Sequence {
    /// Continues after `last`, which [`check_stored`] accepts.
    pub(crate) fn after(last: CommitSeq) -> Sequence {
        Sequence(Mutex::new(SequenceState { next: last.0 + 1, in_flight: BTreeSet::new() }))
    }

    /// The next number. Drawn under the shard's lock, so that per shard the order of numbers is the
    /// order of log positions.
    pub(crate) fn draw(&self) -> InFlight<'_> {
        let mut state = self.0.lock();
        let seq = state.next;
        state.next += 1;
        state.in_flight.insert(seq);
        InFlight { sequence: self, seq: CommitSeq(seq) }
    }

    /// The rows of a detached number are visible or will never be.
    pub(crate) fn arrived(&self, seq: CommitSeq) {
        self.0.lock().in_flight.remove(&seq.0);
    }

    /// The largest number at or below which nothing is in flight.
    pub(crate) fn visible(&self) -> CommitSeq {
        let state = self.0.lock();
        CommitSeq(state.in_flight.first().copied().unwrap_or(state.next) - 1)
    }

    /// In a replica: another server has committed up to `last`, which [`check_stored`] accepts.
    pub(crate) fn advance(&self, last: CommitSeq) {
        let mut state = self.0.lock();
        state.next = state.next.max(last.0 + 1);
    }

    /// The largest number drawn.
    pub(crate) fn last(&self) -> CommitSeq {
        CommitSeq(self.0.lock().next - 1)
    }
}

impl InFlight<'_> {
    /// The caller reports the arrival with [`Sequence::arrived`].
    pub(crate) fn detach(self) -> CommitSeq {
        let seq = self.seq;
        std::mem::forget(self);
        seq
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.sequence.arrived(self.seq);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_stops_below_rows_in_flight() {
        let sequence = Sequence::after(CommitSeq(9));
        assert_eq!(sequence.visible(), CommitSeq(9));
        let first = sequence.draw();
        let second = sequence.draw();
        assert_eq!((first.seq, second.seq), (CommitSeq(10), CommitSeq(11)));
        drop(second);
        assert_eq!(sequence.visible(), CommitSeq(9));
        drop(first);
        assert_eq!(sequence.visible(), CommitSeq(11));
        assert_eq!(sequence.last(), CommitSeq(11));
    }
}
