//! The keys of a query's answer, shared by all segments that it asks, and the memory of the answer: it is set aside before it
//! is taken, since the texts of many series may be more than there is.

use firn_model::{Grouping, Labels, Reservation, Result};
use hashbrown::HashMap;

/// The distinct keys under a grouping, each a number.
#[derive(Debug)]
pub(crate) struct KeyTable {
    grouping: Grouping,
    /// Made once keys may come twice: those of one segment are distinct.
    of_labels: HashMap<Labels, u32>,
    keys: Vec<Labels>,
    /// Of all keys.
    key_bytes: u64,
    /// What others said that they hold for the answer.
    other_bytes: u64,
    held: Reservation,
}

/// A key beside its text: its place in the list and in the table, and the head of its text.
const KEY_BYTES: u64 = 2 * size_of::<Labels>() as u64 + 24;

impl KeyTable {
    /// `held` is for the whole answer.
    pub(crate) fn new(grouping: Grouping, held: Reservation) -> KeyTable {
        let (of_labels, keys) = Default::default();
        KeyTable { grouping, of_labels, keys, key_bytes: 0, other_bytes: 0, held }
    }

    /// Sets aside `bytes` in all for what is not keys.
    ///
    /// # Errors
    /// `Busy` without memory, `TooLarge` over the query's part.
    pub(crate) fn hold_others(&mut self, bytes: u64) -> Result<()> {
        self.other_bytes = bytes;
        self.held.cover(self.key_bytes + bytes)
    }

    pub(crate) fn grouping(&self) -> &Grouping {
        &self.grouping
    }

    /// The number of `key`: what [`Grouping::key`] makes of a series' labels.
    ///
    /// # Errors
    /// As [`KeyTable::hold_others`].
    pub(crate) fn intern(&mut self, key: Labels) -> Result<u32> {
        let next = self.keys.len() as u32;
        if matches!(self.grouping, Grouping::Series) {
            // No two series have the same labels, and no series is in two segments.
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

    /// The numbers of keys that differ from each other; `None`: 0, 1, 2...
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

    /// All keys, by number, and the memory of the answer, of which `bytes` are not keys.
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
