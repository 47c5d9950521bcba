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
    held: Reservation,
}

/// A key without its text: its entries in list and table, and the allocation's header.
const KEY_BYTES: u64 = 2 * size_of::<Labels>() as u64 + 24;

impl KeyTable {
    /// `held` is the reservation of the whole result.
    pub(crate) fn new(grouping: Grouping, held: Reservation) -> KeyTable {
        let (of_labels, keys) = Default::default();
        KeyTable { grouping, of_labels, keys, key_bytes: 0, other_bytes: 0, held }
    }

    /// Reserves `bytes` in total for everything except keys.
    ///
    /// # Errors
    /// `Busy` without memory, `TooLarge` beyond the query's share.
    pub(crate) fn hold_others(&mut self, bytes: u64) -> Result<()> {
        self.other_bytes = bytes;
        self.held.cover(self.key_bytes + bytes)
    }

    pub(crate) fn grouping(&self) -> &Grouping {
        &self.grouping
    }

    /// The number of `key`, a result of [`Grouping::key`].
    ///
    /// # Errors
    /// As [`KeyTable::hold_others`].
    pub(crate) fn intern(&mut self, key: Labels) -> Result<u32> {
        let next = self.keys.len() as u32;
        if matches!(self.grouping, Grouping::Series) {
            // Two series never have the same labels, and a series is in one segment only.
            self.push(key)?;
            return Ok(next);
        }
        if self.of_labels.len() < self.keys.len() {
            self.of_labels.extend(self.keys.iter().cloned().zip(0..));
        }
        let number = *self.of_labels.entry(key.clone()).or_insert(next);
        if number == next {
            self.push(key)?;
        }
        Ok(number)
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
        self.key_bytes += KEY_BYTES + key.as_encoded().len() as u64;
        self.held.cover(self.key_bytes + self.other_bytes)?;
        self.keys.push(key);
        Ok(())
    }

    /// All keys, by number, and the reservation of the result, of which `bytes` are for other data.
    ///
    /// # Errors
    /// As [`KeyTable::hold_others`].
    pub(crate) fn finish(mut self, bytes: u64) -> Result<(Vec<Labels>, Reservation)> {
        self.hold_others(bytes)?;
        let unused = self.held.bytes() - (self.key_bytes + bytes);
        self.held.shrink(unused);
        Ok((self.keys, self.held))
    }
}
