//! CommitSeq: numbers of commits, and the number up to which everything is visible.
//!
//! Writers of different shards share one atomic counter and no lock: each shard has a *lane* with
//! its numbers in flight, and only a reader visits all lanes. `sequence_model.rs` tries the
//! interleavings.
//!
//! Source: DecLog (PVLDB), section 4.2: a central counter under a lock limits parallel logging.

use std::collections::VecDeque;

use firn_model::{CommitSeq, Error, Result, ShardId};

use super::sync::{AtomicU64, Mutex, Ordering};

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
pub(crate) struct Sequence {
    next: AtomicU64,
    /// One for each shard.
    lanes: Box<[ShardLane]>,
}

/// The numbers in flight of one shard, ascending. Two lanes never share a cache line.
#[repr(align(64))]
struct ShardLane(Mutex<VecDeque<u64>>);

/// A number in flight. When it is dropped, its rows are visible or will never be.
pub(crate) struct InFlight<'a> {
    lane: &'a ShardLane,
    pub(crate) seq: CommitSeq,
}

impl Sequence {
    /// Continues after `last`, which [`check_stored`] accepts.
    pub(crate) fn after(last: CommitSeq, shard_count: usize) -> Sequence {
        let lanes = (0..shard_count).map(|_| ShardLane(Mutex::new(VecDeque::new()))).collect();
        Sequence { next: AtomicU64::new(last.0 + 1), lanes }
    }

    /// The next number. Drawn under the shard's lock, so that per shard the order of numbers is the
    /// order of log positions.
    pub(crate) fn draw(&self, shard: ShardId) -> InFlight<'_> {
        let lane = &self.lanes[usize::from(shard.0)];
        let mut in_flight = lane.0.lock();
        // Under the lane's lock: a reader that has read a later counter finds it in the lane.
        let seq = self.next.fetch_add(1, Ordering::Relaxed);
        in_flight.push_back(seq);
        InFlight { lane, seq: CommitSeq(seq) }
    }

    /// The rows of a detached number of `shard` are visible or will never be.
    pub(crate) fn arrived(&self, shard: ShardId, seq: CommitSeq) {
        self.lanes[usize::from(shard.0)].remove(seq);
    }

    /// The largest number at or below which nothing is in flight.
    pub(crate) fn visible(&self) -> CommitSeq {
        // The counter first: every smaller number is in its lane by the time that lane is locked,
        // or has arrived.
        let next = self.next.load(Ordering::Relaxed);
        let oldest = self.lanes.iter().filter_map(|lane| lane.0.lock().front().copied()).min();
        CommitSeq(oldest.map_or(next, |oldest| oldest.min(next)) - 1)
    }

    /// In a replica: another server has committed up to `last`, which [`check_stored`] accepts.
    pub(crate) fn advance(&self, last: CommitSeq) {
        self.next.fetch_max(last.0 + 1, Ordering::Relaxed);
    }

    /// The largest number drawn.
    pub(crate) fn last(&self) -> CommitSeq {
        CommitSeq(self.next.load(Ordering::Relaxed) - 1)
    }
}

impl ShardLane {
    fn remove(&self, seq: CommitSeq) {
        let mut in_flight = self.0.lock();
        if let Ok(at) = in_flight.binary_search(&seq.0) {
            in_flight.remove(at);
        }
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
        self.lane.remove(self.seq);
    }
}
