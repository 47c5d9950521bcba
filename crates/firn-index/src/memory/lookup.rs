//! From label sets to pair ids and places, for one batch.
//!
//! Senders send a target's series one after the other, so most pairs of a label set stand at the same
//! position in the one before; comparing bytes is cheaper than hashing them.

use firn_model::{Labels, Result};

use crate::memory::index::{MemoryIndex, SeriesPosition};
use crate::pair::raw_pairs;

/// Remembers the last label set: its pairs are looked up once for all neighbours that share them.
#[derive(Debug, Default)]
pub(crate) struct Lookup<'l> {
    /// Encoded pairs of the last label set with their ids, by position.
    last: Vec<(&'l [u8], u32)>,
    /// The pairs of the label set that was asked for last, in order of names.
    pub(crate) ids: Vec<u32>,
}

impl<'l> Lookup<'l> {
    /// The place of a label set that is known.
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

    /// Fills `ids` with the pairs of a label set, made if they are new.
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
