//! Column batches, the result of a selection: one group's members with their shared timestamps.

use std::sync::Arc;

use crate::{MixedEntry, Slot, Timestamp};

/// The type of a column's values. Formats store the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ColumnType {
    /// IEEE 754 doubles, bit exact.
    F64 = 1,
    /// [`MixedEntry`]: histograms, and floats with properties that a double cannot hold. Only the
    /// language uses it; no format stores it yet, so readers refuse the number.
    Mixed = 2,
}

impl ColumnType {
    /// The type for a stored number; `None` if this version does not store that type.
    pub fn from_u8(number: u8) -> Option<ColumnType> {
        (number == ColumnType::F64 as u8).then_some(ColumnType::F64)
    }
}

/// The values of a column: one for each entry that is present.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ColumnValues {
    /// Doubles.
    F64(Vec<f64>),
    /// Native histograms, and the floats of a series that also has histograms, that carries start
    /// timestamps, or whose histograms end with a stale marker.
    Mixed(Vec<MixedEntry>),
}

impl ColumnValues {
    /// The type of the values.
    pub fn column_type(&self) -> ColumnType {
        match self {
            ColumnValues::F64(_) => ColumnType::F64,
            ColumnValues::Mixed(_) => ColumnType::Mixed,
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            ColumnValues::F64(values) => values.len(),
            ColumnValues::Mixed(values) => values.len(),
        }
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The entries of a time column that a member has: bit `i % 64` of word `i / 64`. An absent entry
/// is NULL.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Presence {
    words: Vec<u64>,
    len: usize,
    ones: usize,
}

impl Presence {
    /// An empty presence.
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
    #[inline]
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
    #[inline]
    pub fn set(&mut self, idx: usize) {
        assert!(idx < self.len, "entry {idx} of {}", self.len);
        let word = &mut self.words[idx / 64];
        self.ones += usize::from(*word & (1 << (idx % 64)) == 0);
        *word |= 1 << (idx % 64);
    }

    /// Whether entry `idx` is present.
    #[inline]
    pub fn get(&self, idx: usize) -> bool {
        self.words.get(idx / 64).is_some_and(|word| word & (1 << (idx % 64)) != 0)
    }

    /// Number of entries, present or absent.
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

    /// The indexes of present entries, ascending.
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

    /// The bits as words, for codecs. Bits from `len` on are 0.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Builds a presence from words in the layout of [`Presence::words`]; surplus bits are cleared.
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

/// The values of one member.
#[derive(Clone, Debug)]
pub struct Column {
    /// The member.
    pub slot: Slot,
    /// The index of the series' key in [`crate::Selected::keys`].
    pub key: u32,
    /// The index of the column's timestamps in [`ColumnBatch::times`].
    pub time_idx: u32,
    /// The entries that have a value; `None` if all do.
    pub presence: Option<Presence>,
    /// The values of the present entries, in time order.
    pub values: ColumnValues,
}

/// The selected members of one group in time order; of each (slot, timestamp) only the newest
/// write.
///
/// A group has one time column unless members had timestamps of their own. The timestamps of a time
/// column strictly rise (invariant 4). Members without a value in the range are left out.
#[derive(Clone, Debug, Default)]
pub struct ColumnBatch {
    /// The time columns.
    pub times: Vec<Arc<[Timestamp]>>,
    /// The members' columns, slots ascending.
    pub columns: Vec<Column>,
}

impl ColumnBatch {
    /// One member with a value at each of `times` and key 0.
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
