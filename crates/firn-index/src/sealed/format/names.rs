//! Label names, sorted. An open segment keeps them in memory, since there are few.
//!
//! ```text
//! names   = (varint(bytes) bytes varint(values) letters)*
//! letters = 0:u8 | 1:u8 code           the code of the letters of the name's values (`letters`)
//! ```

use std::ops::Range;

use firn_codec::varint::take_bytes;
use firn_model::decode_varint;

use crate::sealed::format::strings::{NameLetters, take_letters};

/// Names by rank with their pairs. Pairs are numbered by name, then by value.
#[derive(Debug, Default)]
pub(crate) struct Names {
    text: Vec<u8>,
    /// The end of each name in `text`.
    ends: Vec<u32>,
    /// The first pair of each name, and the end.
    first_pairs: Vec<u32>,
}

impl Names {
    /// Decodes the names; also returns the first pair and the letter code of each name.
    pub(crate) fn parse(
        mut bytes: &[u8],
        name_count: u64,
        pair_count: u64,
    ) -> Option<(Names, Vec<NameLetters>)> {
        let input = &mut bytes;
        let mut letters = Vec::new();
        let mut names = Names { first_pairs: vec![0], ..Names::default() };
        let mut next_pair = 0u32;
        for rank in 0..u32::try_from(name_count).ok()? {
            let len = usize::try_from(decode_varint(input)?).ok()?;
            let text = take_bytes(input, len, "name").ok()?;
            if rank > 0 && names.text(rank - 1) >= text {
                return None;
            }
            names.text.extend_from_slice(text);
            names.ends.push(u32::try_from(names.text.len()).ok()?);
            next_pair = next_pair.checked_add(u32::try_from(decode_varint(input)?).ok()?)?;
            let first_pair = names.first_pairs.last().copied().unwrap_or_default();
            letters.push((u64::from(first_pair), take_letters(input)?));
            names.first_pairs.push(next_pair);
        }
        (bytes.is_empty() && u64::from(next_pair) == pair_count).then_some((names, letters))
    }

    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<u32> {
        let (mut low, mut high) = (0, self.ends.len() as u32);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.text(middle) < name { low = middle + 1 } else { high = middle }
        }
        ((low as usize) < self.ends.len() && self.text(low) == name).then_some(low)
    }

    /// The name of a rank below [`Names::count`].
    #[inline]
    pub(crate) fn text(&self, rank: u32) -> &[u8] {
        let start = rank.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        &self.text[start as usize..self.ends[rank as usize] as usize]
    }

    /// The pairs of a name.
    #[inline]
    pub(crate) fn pairs(&self, rank: u32) -> Range<u32> {
        self.first_pairs[rank as usize]..self.first_pairs[rank as usize + 1]
    }

    /// The name of a pair.
    pub(crate) fn of_pair(&self, pair: u32) -> u32 {
        (self.first_pairs.partition_point(|&first| first <= pair) as u32).saturating_sub(1)
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * 4 + self.first_pairs.capacity() * 4
    }
}
