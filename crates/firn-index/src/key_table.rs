//! The keys of a query's answer, shared by all segments that it asks.

use firn_model::{Grouping, Labels};
use hashbrown::HashMap;

/// The distinct keys under a grouping, each a number.
#[derive(Debug)]
pub(crate) struct KeyTable {
    grouping: Grouping,
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
        if matches!(self.grouping, Grouping::Series) {
            // No two series have the same labels, and no series is in two segments.
            self.keys.push(key);
            return self.keys.len() as u32 - 1;
        }
        let next = self.keys.len() as u32;
        let number = *self.of_labels.entry(key.clone()).or_insert(next);
        if number == next {
            self.keys.push(key);
        }
        number
    }

    /// All keys, by number.
    pub(crate) fn into_labels(self) -> Vec<Labels> {
        self.keys
    }
}
