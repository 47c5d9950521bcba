//! The distinct keys of a query result over all segments, and the memory of the result. Memory is
//! reserved before it is allocated: the texts of many series may exceed it.

use firn_model::{Grouping, Labels, Reservation, Result};
use hashbrown::HashMap;

/// The distinct keys under a grouping, by number.
#[derive(Debug)]
pub(crate) struct KeyTable {
    grouping: Grouping,
    /// Filled once keys may repeat: the keys of one segment are distinct.
    of_labels: HashMap<Labels, u32>,
    keys: Vec<Labels>,
    /// Bytes of all keys.
    key_bytes: u64,
    /// Bytes that callers hold for the result besides keys.
    other_bytes: u64,
    /// Bytes in total that the last refused try would have needed.
    wanted_bytes: u64,
    held: Reservation,
}

/// The most free memory that is reserved ahead of need.
const AHEAD_BYTES_MAX: u64 = 64 << 10;
/// A key without its text: its entries in list and table, and the allocation's header.
const KEY_BYTES: u64 = 2 * size_of::<Labels>() as u64 + 24;

impl KeyTable {
    /// `held` is the reservation of the whole result.
    pub(crate) fn new(grouping: Grouping, held: Reservation) -> KeyTable {
        let (of_labels, keys) = Default::default();
        let (key_bytes, other_bytes, wanted_bytes) = Default::default();
        KeyTable { grouping, of_labels, keys, key_bytes, other_bytes, wanted_bytes, held }
    }

    /// Reserves `bytes` in total for everything except keys.
    ///
    /// # Errors
    /// `Busy` without memory, `TooLarge` beyond the query's share.
    pub(crate) fn hold_others(&mut self, bytes: u64) -> Result<()> {
        self.other_bytes = bytes;
        self.held.cover(self.key_bytes + bytes)
    }

    /// As [`KeyTable::hold_others`] of free memory, so that the caller may hold a lock of the
    /// index. Returns `false` without; [`KeyTable::make_room`] is then due.
    pub(crate) fn try_hold_others(&mut self, bytes: u64) -> bool {
        let is_held = self.try_cover(self.key_bytes + bytes);
        if is_held {
            self.other_bytes = bytes;
        }
        is_held
    }

    /// Reserves the memory of the last refused try, and reclaims it. The caller holds no
    /// lock of the index.
    ///
    /// # Errors
    /// As [`KeyTable::hold_others`].
    pub(crate) fn make_room(&mut self) -> Result<()> {
        self.held.cover(self.wanted_bytes)
    }

    pub(crate) fn grouping(&self) -> &Grouping {
        &self.grouping
    }

    /// The number of `key`, a result of [`Grouping::key`].
    ///
    /// # Errors
    /// As [`KeyTable::hold_others`].
    pub(crate) fn intern(&mut self, key: Labels) -> Result<u32> {
        loop {
            if let Some(number) = self.try_intern(&key) {
                return Ok(number);
            }
            self.make_room()?;
        }
    }

    /// As [`KeyTable::intern`] with free memory, so that the caller may hold a lock of the index.
    /// Returns `None` without; [`KeyTable::make_room`] is then due.
    pub(crate) fn try_intern(&mut self, key: &Labels) -> Option<u32> {
        let next = self.keys.len() as u32;
        // Two series never have the same labels, and a series is in one segment only.
        let may_repeat = !matches!(self.grouping, Grouping::Series);
        if may_repeat {
            if self.of_labels.len() < self.keys.len() {
                self.of_labels.extend(self.keys.iter().cloned().zip(0..));
            }
            if let Some(&number) = self.of_labels.get(key) {
                return Some(number);
            }
        }
        let bytes = self.key_bytes + bytes_of(key);
        if !self.try_cover(bytes + self.other_bytes) {
            return None;
        }
        self.key_bytes = bytes;
        self.keys.push(key.clone());
        if may_repeat {
            self.of_labels.insert(key.clone(), next);
        }
        Some(next)
    }

    /// Adds keys that differ from each other. Returns their numbers; `None`: 0, 1, 2...
    ///
    /// # Errors
    /// As [`KeyTable::hold_others`].
    pub(crate) fn extend(
        &mut self,
        mut keys: impl Iterator<Item = Labels>,
    ) -> Result<Option<Vec<u32>>> {
        if self.keys.is_empty() {
            keys.try_for_each(|key| self.push(key))?;
            return Ok(None);
        }
        keys.map(|key| self.intern(key)).collect::<Result<_>>().map(Some)
    }

    fn push(&mut self, key: Labels) -> Result<()> {
        self.key_bytes += bytes_of(&key);
        self.held.cover(self.key_bytes + self.other_bytes)?;
        self.keys.push(key);
        Ok(())
    }

    /// Covers `bytes` with free memory, or notes that they are wanted.
    fn try_cover(&mut self, bytes: u64) -> bool {
        // Ahead of need, so that counting many small keys takes few calls.
        let is_covered = bytes <= self.held.bytes()
            || self.held.cover_of_free(bytes + (bytes / 8).min(AHEAD_BYTES_MAX))
            || self.held.cover_of_free(bytes);
        if !is_covered {
            self.wanted_bytes = bytes;
        }
        is_covered
    }

    /// All keys, by number, and the reservation of the result, of which `bytes` are for other data.
    ///
    /// # Errors
    /// As [`KeyTable::hold_others`].
    pub(crate) fn finish(mut self, bytes: u64) -> Result<(Vec<Labels>, Reservation)> {
        self.hold_others(bytes)?;
        self.held.shrink_to(self.key_bytes + bytes);
        Ok((self.keys, self.held))
    }
}

fn bytes_of(key: &Labels) -> u64 {
    KEY_BYTES + key.as_encoded().len() as u64
}
