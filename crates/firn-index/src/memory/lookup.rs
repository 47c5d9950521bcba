//! From label sets to pair ids and positions, for one batch.
//!
//! Clients send the series of a target together, so most pairs of a label set are at the same index
//! in the previous one. Comparing their bytes is cheaper than hashing them.

use firn_model::{Labels, Result};

use crate::memory::index::{MemoryIndex, SeriesPosition};
use crate::pair::raw_pairs;

/// Remembers the pairs of the last label set, so that shared pairs are looked up once.
#[derive(Debug, Default)]
pub(crate) struct Lookup<'l> {
    /// Encoded pairs of the last label set with their ids, by index.
    last: Vec<(&'l [u8], u32)>,
    /// The pairs of the last label set, in order of names.
    pub(crate) ids: Vec<u32>,
}

impl<'l> Lookup<'l> {
    /// The position of a known label set.
    pub(crate) fn find(
        &mut self,
        memory: &MemoryIndex,
        labels: &'l Labels,
    ) -> Option<SeriesPosition> {
        self.ids.clear();
        for (idx, pair) in raw_pairs(labels).enumerate() {
            let id = match self.remembered(idx, pair.encoded) {
                Some(id) => id,
                None => memory.pairs.find(pair.name, pair.value)?,
            };
            self.remember(idx, pair.encoded, id);
        }
        if self.ids.is_empty() { None } else { memory.find(&self.ids) }
    }

    /// Fills `ids` with the pairs of a label set; adds new pairs.
    pub(crate) fn intern(&mut self, memory: &mut MemoryIndex, labels: &'l Labels) -> Result<()> {
        self.ids.clear();
        for (idx, pair) in raw_pairs(labels).enumerate() {
            let id = match self.remembered(idx, pair.encoded) {
                Some(id) => id,
                None => memory.pairs.intern(pair.name, pair.value)?,
            };
            self.remember(idx, pair.encoded, id);
        }
        Ok(())
    }

    fn remembered(&self, idx: usize, encoded: &[u8]) -> Option<u32> {
        self.last.get(idx).filter(|last| last.0 == encoded).map(|last| last.1)
    }

    fn remember(&mut self, idx: usize, encoded: &'l [u8], id: u32) {
        match self.last.get_mut(idx) {
            Some(last) => *last = (encoded, id),
            None => self.last.push((encoded, id)),
        }
        self.ids.push(id);
    }
}
