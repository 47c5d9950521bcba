//! Inbox: changes that writers have announced and the cache has not yet applied.
//!
//! A writer takes one lane's lock for the time of one push, so writers of different groups rarely
//! meet. A reader of the cache takes all waiting changes first and applies them under the lock of
//! the cache.

use firn_model::{Change, Timestamp};

use super::sync::Mutex;
use crate::lock;

/// Two in tests: each lane is one more step that a model may interleave.
const LANES: usize = if cfg!(test) { 2 } else { 16 };

/// A lane with more is emptied by the writer that filled it.
const LANE_BYTES_MAX: usize = 8 << 10;

/// The most memory that waiting changes take, apart from one large change in each lane.
pub(crate) const INBOX_BYTES_MAX: usize = LANES * LANE_BYTES_MAX;

/// Announced changes, in no order.
pub(crate) struct Inbox([InboxLane; LANES]);

/// Two lanes never share a cache line.
#[repr(align(64))]
struct InboxLane(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    changes: Vec<Change>,
    bytes: usize,
}

impl Inbox {
    pub(crate) fn new() -> Inbox {
        Inbox(std::array::from_fn(|_| InboxLane(Mutex::new(&lock::INBOX, Waiting::default()))))
    }

    /// Adds a change. Returns whether its lane is full; the caller then applies all changes.
    #[must_use]
    pub(crate) fn push(&self, change: Change) -> bool {
        // Ids are dense; the upper half of the product spreads them.
        let group = change.groups.first().map_or(0, |group| group.0);
        let hash = group.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let mut waiting = self.0[hash as usize % LANES].0.lock();
        waiting.bytes += size_of::<Change>() + size_of_val(&*change.groups);
        waiting.changes.push(change);
        waiting.bytes > LANE_BYTES_MAX
    }

    /// The time of the earliest sample that a waiting change touches.
    pub(crate) fn earliest(&self) -> Option<Timestamp> {
        let earliest = |lane: &InboxLane| {
            let waiting = lane.0.lock();
            waiting.changes.iter().map(|change| change.range.start).min()
        };
        self.0.iter().filter_map(earliest).min()
    }

    /// Moves all waiting changes to `taken`.
    pub(crate) fn take(&self, taken: &mut Vec<Change>) {
        for lane in &self.0 {
            let mut waiting = lane.0.lock();
            taken.append(&mut waiting.changes);
            waiting.bytes = 0;
        }
    }
}
