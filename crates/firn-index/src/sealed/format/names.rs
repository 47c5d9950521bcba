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
        // The text is nearly all of the section.
        let text = Vec::with_capacity(bytes.len());
        let input = &mut bytes;
        let mut letters = Vec::new();
        let mut names = Names { text, first_pairs: vec![0], ..Names::default() };
        let mut next_pair = 0u32;
        for rank in 0..u32::try_from(name_count).ok()? {
            let len = usize::try_from(decode_varint(input)?).ok()?;
            let text = take_bytes(input, len, "name").ok()?;
            if rank.checked_sub(1).is_some_and(|before| names.text(before) >= text) {
                return None;
            }
            names.text.extend_from_slice(text);
            names.ends.push(u32::try_from(names.text.len()).ok()?);
            next_pair = next_pair.checked_add(u32::try_from(decode_varint(input)?).ok()?)?;
            let first_pair = names.first_pairs.last().copied().unwrap_or_default();
            letters.push((u64::from(first_pair), take_letters(input)?));
            names.first_pairs.push(next_pair);
        }
        for list in [&mut names.ends, &mut names.first_pairs] {
            list.shrink_to_fit();
        }
        letters.shrink_to_fit();
        (bytes.is_empty() && u64::from(next_pair) == pair_count).then_some((names, letters))
    }

    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// Length of the text of all names.
    pub(crate) fn text_bytes(&self) -> u64 {
        self.text.len() as u64
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<u32> {
        let (mut low, mut high) = (0, u32::try_from(self.ends.len()).unwrap_or(u32::MAX));
        while low < high {
            let middle = low.midpoint(high);
            match self.text(middle) < name {
                true => low = middle.saturating_add(1),
                false => high = middle,
            }
        }
        ((low as usize) < self.ends.len() && self.text(low) == name).then_some(low)
    }

    /// The name of a rank below [`Names::count`].
    #[inline]
    pub(crate) fn text(&self, rank: u32) -> &[u8] {
        let end_of = |rank: u32| self.ends.get(rank as usize).copied().unwrap_or_default();
        let start = rank.checked_sub(1).map_or(0, end_of);
        self.text.get(start as usize..end_of(rank) as usize).unwrap_or_default()
    }

    /// The pairs of a name.
    #[inline]
    pub(crate) fn pairs(&self, rank: u32) -> Range<u32> {
        match self.first_pairs.get(rank as usize..) {
            Some(&[start, end, ..]) => start..end,
            _ => 0..0,
        }
    }

    /// The name of a pair.
    pub(crate) fn of_pair(&self, pair: u32) -> u32 {
        let after = self.first_pairs.partition_point(|&first| first <= pair);
        u32::try_from(after).unwrap_or(u32::MAX).saturating_sub(1)
    }

    #[expect(clippy::arithmetic_side_effects, reason = "sizes in memory")]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * 4 + self.first_pairs.capacity() * 4
    }
}
