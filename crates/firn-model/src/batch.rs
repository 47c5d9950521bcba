//! Column batches on their way out: one group's members with their shared timestamps.

use std::sync::Arc;

use crate::{MixedEntry, Slot, Timestamp};

/// What a column's values are. The number is what formats store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ColumnType {
    /// IEEE 754 doubles, bit exact.
    F64 = 1,
    /// [`MixedEntry`]: histograms, and floats with what doubles cannot say. The language knows them; no format
    /// stores them yet, so readers refuse the number.
    Mixed = 2,
}

impl ColumnType {
    /// The type for a stored number, `None` if this version does not store it.
    pub fn from_u8(number: u8) -> Option<ColumnType> {
        (number == ColumnType::F64 as u8).then_some(ColumnType::F64)
    }
}

/// The values of a column: as many as entries that are present.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ColumnValues {
    /// Doubles.
    F64(Vec<f64>),
    /// Native histograms; also the floats of a series that has both, that carries start timestamps, or whose
    /// histograms a stale marker ends.
    Mixed(Vec<MixedEntry>),
}

impl ColumnValues {
    /// What they are.
    pub fn column_type(&self) -> ColumnType {
        match self {
            ColumnValues::F64(_) => ColumnType::F64,
            ColumnValues::Mixed(_) => ColumnType::Mixed,
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        match self {
            ColumnValues::F64(values) => values.len(),
            ColumnValues::Mixed(values) => values.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Which of a time column's entries a member has: bit `i` of word `i / 64`. Absent is NULL.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Presence {
    words: Vec<u64>,
    len: usize,
    ones: usize,
}

impl Presence {
    /// No entries yet.
    pub fn new() -> Presence {
        Presence::default()
    }

    /// `len` entries, all present or all absent.
    pub fn filled(len: usize, present: bool) -> Presence {
        let mut words = vec![if present { u64::MAX } else { 0 }; len.div_ceil(64)];
        if present
            && !len.is_multiple_of(64)
            && let Some(last) = words.last_mut()
        {
            *last = (1 << (len % 64)) - 1;
        }
        Presence { words, len, ones: if present { len } else { 0 } }
    }

    /// Adds an entry at the end.
    pub fn push(&mut self, present: bool) {
        if self.len.is_multiple_of(64) {
            self.words.push(0);
        }
        if present {
            self.words[self.len / 64] |= 1 << (self.len % 64);
            self.ones += 1;
        }
        self.len += 1;
    }

    /// Marks entry `idx` present.
    pub fn set(&mut self, idx: usize) {
        assert!(idx < self.len, "entry {idx} of {}", self.len);
        let word = &mut self.words[idx / 64];
        self.ones += usize::from(*word & (1 << (idx % 64)) == 0);
        *word |= 1 << (idx % 64);
    }

    /// Whether entry `idx` is present.
    pub fn get(&self, idx: usize) -> bool {
        self.words.get(idx / 64).is_some_and(|word| word & (1 << (idx % 64)) != 0)
    }

    /// Number of entries, present or not.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of present entries.
    pub fn count_present(&self) -> usize {
        self.ones
    }

    /// Whether no entry is NULL.
    pub fn is_full(&self) -> bool {
        self.ones == self.len
    }

    /// The indexes of present entries, rising.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(word_idx, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                (left != 0).then(|| {
                    let bit = left.trailing_zeros() as usize;
                    left &= left - 1;
                    word_idx * 64 + bit
                })
            })
        })
    }

    /// The bits as words, for codecs; bits from `len` on are 0.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// From words as [`Presence::words`] gives them; surplus bits are cleared.
    pub fn from_words(mut words: Vec<u64>, len: usize) -> Presence {
        words.resize(len.div_ceil(64), 0);
        if !len.is_multiple_of(64)
            && let Some(last) = words.last_mut()
        {
            *last &= (1 << (len % 64)) - 1;
        }
        let ones = words.iter().map(|word| word.count_ones() as usize).sum();
        Presence { words, len, ones }
    }
}

/// One member's values.
#[derive(Clone, Debug)]
pub struct Column {
    /// The member.
    pub slot: Slot,
    /// Which of [`crate::Selected::keys`] its series belongs to.
    pub key: u32,
    /// Which of the batch's time columns its entries have.
    pub time_idx: u32,
    /// Which entries are there; `None` when all are.
    pub presence: Option<Presence>,
    /// The values of the present entries, in order.
    pub values: ColumnValues,
}

/// The members of one group that a selection asks for, newest writes only, in time order.
///
/// A group has one time column unless members had timestamps of their own. Timestamps of a time
/// column strictly rise (invariant 4). Members without a value in the range are left out.
#[derive(Clone, Debug, Default)]
pub struct ColumnBatch {
    /// The time columns.
    pub times: Vec<Arc<[Timestamp]>>,
    /// The members' columns, slots rising.
    pub columns: Vec<Column>,
}

impl ColumnBatch {
    /// One member with a value at each of `times`, key 0.
    pub fn of_one(slot: Slot, times: Arc<[Timestamp]>, values: Vec<f64>) -> ColumnBatch {
        debug_assert!(times.len() == values.len(), "a value for each timestamp");
        let values = ColumnValues::F64(values);
        let column = Column { slot, key: 0, time_idx: 0, presence: None, values };
        ColumnBatch { times: vec![times], columns: vec![column] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presence_counts_and_walks() {
        let mut presence = Presence::new();
        (0..130).for_each(|idx| presence.push(idx % 3 == 0));
        assert_eq!(presence.iter().collect::<Vec<_>>(), (0..130).step_by(3).collect::<Vec<_>>());
        assert_eq!(presence.count_present(), 44);
        assert!(!presence.get(130) && !presence.is_full());
        let again = Presence::from_words(presence.words().to_vec(), presence.len());
        assert_eq!(again, presence);
        assert!(Presence::filled(70, true).is_full());
        assert_eq!(Presence::filled(70, true).words()[1], 0b11_1111);
        presence.set(1);
        presence.set(1);
        assert_eq!(presence.count_present(), 45);
    }
}
