//! The keys of a query's answer, shared by all segments that it asks.

use firn_model::{Grouping, Labels};
use hashbrown::HashMap;

/// The distinct keys under a grouping, each a number.
#[derive(Debug)]
pub(crate) struct KeyTable {
    grouping: Grouping,
    /// Made once keys may come twice: those of one segment are distinct.
    of_labels: HashMap<Labels, u32>,
    keys: Vec<Labels>,
}

impl KeyTable {
    pub(crate) fn new(grouping: Grouping) -> KeyTable {
        KeyTable { grouping, of_labels: HashMap::new(), keys: Vec::new() }
    }

    pub(crate) fn grouping(&self) -> &Grouping {
        &self.grouping
    }

    /// The number of `key`: what [`Grouping::key`] makes of a series' labels.
    pub(crate) fn intern(&mut self, key: Labels) -> u32 {
        let next = self.keys.len() as u32;
        if matches!(self.grouping, Grouping::Series) {
            // No two series have the same labels, and no series is in two segments.
            self.keys.push(key);
            return next;
        }
        if self.of_labels.len() < self.keys.len() {
            self.of_labels.extend(self.keys.iter().cloned().zip(0..));
        }
        let number = *self.of_labels.entry(key.clone()).or_insert(next);
        if number == next {
            self.keys.push(key);
        }
        number
    }

    /// The numbers of keys that differ from each other; `None`: 0, 1, 2...
    pub(crate) fn extend(&mut self, keys: impl Iterator<Item = Labels>) -> Option<Vec<u32>> {
        if self.keys.is_empty() {
            self.keys.extend(keys);
            return None;
        }
        Some(keys.map(|key| self.intern(key)).collect())
    }

    /// All keys, by number.
    pub(crate) fn into_labels(self) -> Vec<Labels> {
        self.keys
    }
}
