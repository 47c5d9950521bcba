//! Sorted texts, front coded: 16 to a block, each but the first as what differs from the one before.
//!
//! ```text
//! block = varint(bytes) bytes entry*
//! entry = byte(min(same, 15) << 4 | min(new, 15)) [varint(same - 15)] [varint(new - 15)] new bytes
//! ```
//! `same` leading bytes are those of the text before. Blocks begin at every 16th text, whatever name it belongs to.
//! Source: research/compression-and-index.md section 3: as small as an automaton, and simpler to build and to merge.

use std::cmp::Ordering;
use std::ops::Range;

use firn_model::{Result, decode_varint, encode_varint};

use crate::sealed::blocks::{Blocks, Records};

pub(crate) const BLOCK_TEXTS: u64 = 16;

/// The values of all pairs, by pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strings {
    /// A block at each start.
    pub(crate) text: Records,
    pub(crate) count: u64,
}

/// Collects texts; sorted within a name.
#[derive(Debug, Default)]
pub(crate) struct StringsWriter {
    pub(crate) text: Vec<u8>,
    pub(crate) starts: Vec<u64>,
    last: Vec<u8>,
    count: u64,
}

/// Walks texts from one on; holds the present one.
#[derive(Clone, Debug)]
pub(crate) struct StringWalk<'a> {
    strings: Strings,
    blocks: &'a Blocks,
    rest: &'a [u8],
    /// The text that `next` gives.
    next: u64,
    key: Vec<u8>,
    same: usize,
}

impl StringsWriter {
    pub(crate) fn push(&mut self, text: &[u8]) {
        if self.count.is_multiple_of(BLOCK_TEXTS) {
            self.starts.push(self.text.len() as u64);
            encode_varint(text.len() as u64, &mut self.text);
            self.text.extend_from_slice(text);
        } else {
            let same = self.last.iter().zip(text).take_while(|(a, b)| a == b).count();
            let new = text.len() - same;
            self.text.push((same.min(15) << 4 | new.min(15)) as u8);
            for len in [same, new] {
                if len >= 15 {
                    encode_varint(len as u64 - 15, &mut self.text);
                }
            }
            self.text.extend_from_slice(&text[same..]);
        }
        self.last.clear();
        self.last.extend_from_slice(text);
        self.count += 1;
    }
}

impl Strings {
    /// The text of `id`, into `key`.
    pub(crate) fn get(&self, blocks: &Blocks, id: u64, key: &mut Vec<u8>) -> Result<()> {
        key.clear();
        let mut rest = self.block(blocks, id / BLOCK_TEXTS)?;
        for at in 0..=id % BLOCK_TEXTS {
            let (same, new) = self.entry(blocks, &mut rest, at == 0)?;
            if same > key.len() {
                return Err(self.bad(blocks));
            }
            key.truncate(same);
            key.extend_from_slice(new);
        }
        Ok(())
    }

    /// Whether text `id` is `wanted`. Looks at no byte that an earlier text of the block settles.
    pub(crate) fn is(&self, blocks: &Blocks, id: u64, wanted: &[u8]) -> Result<bool> {
        let mut rest = self.block(blocks, id / BLOCK_TEXTS)?;
        let (mut agreed, mut len) = (0, 0);
        for at in 0..=id % BLOCK_TEXTS {
            let (same, new) = self.entry(blocks, &mut rest, at == 0)?;
            if same > len {
                return Err(self.bad(blocks));
            }
            len = same + new.len();
            // Below `agreed` this text is as `wanted`; at it the one before differed, or one of both ended.
            if same <= agreed {
                let rest = wanted.get(same..).unwrap_or_default();
                agreed = same + new.iter().zip(rest).take_while(|(a, b)| a == b).count();
            }
        }
        Ok(agreed == len && len == wanted.len())
    }

    /// The place of `wanted` among the sorted texts `ids`: where it is, or where it would be.
    pub(crate) fn find(
        &self,
        blocks: &Blocks,
        ids: Range<u64>,
        wanted: &[u8],
    ) -> Result<Result<u64, u64>> {
        let mut walk = self.seek(blocks, ids.clone(), wanted)?;
        while walk.next < ids.end {
            walk.advance()?;
            match walk.key.as_slice().cmp(wanted) {
                Ordering::Less => {}
                Ordering::Equal => return Ok(Ok(walk.next - 1)),
                Ordering::Greater => return Ok(Err(walk.next - 1)),
            }
        }
        Ok(Err(ids.end))
    }

    /// A walk of `ids` that begins at most a block before the first text that is at least `wanted`.
    fn seek<'a>(
        &self,
        blocks: &'a Blocks,
        ids: Range<u64>,
        wanted: &[u8],
    ) -> Result<StringWalk<'a>> {
        // Blocks whose first text is one of `ids`.
        let (mut low, mut high) = (ids.start.div_ceil(BLOCK_TEXTS), ids.end.div_ceil(BLOCK_TEXTS));
        while low < high {
            let middle = low + (high - low) / 2;
            let mut block = self.block(blocks, middle)?;
            let (_, first) = self.entry(blocks, &mut block, true)?;
            if first <= wanted { low = middle + 1 } else { high = middle }
        }
        let start = low.checked_sub(1).map_or(0, |block| block * BLOCK_TEXTS);
        self.walk(blocks, start.max(ids.start))
    }

    /// A walk whose first text is `id`.
    pub(crate) fn walk<'a>(&self, blocks: &'a Blocks, id: u64) -> Result<StringWalk<'a>> {
        let next = id / BLOCK_TEXTS * BLOCK_TEXTS;
        let (key, same) = Default::default();
        let mut walk = StringWalk { strings: *self, blocks, rest: &[], next, key, same };
        while walk.next < id {
            walk.advance()?;
        }
        Ok(walk)
    }

    fn block<'a>(&self, blocks: &'a Blocks, block: u64) -> Result<&'a [u8]> {
        self.text.get(blocks, block)
    }

    fn entry<'a>(
        &self,
        blocks: &Blocks,
        rest: &mut &'a [u8],
        first: bool,
    ) -> Result<(usize, &'a [u8])> {
        take_entry(rest, first).ok_or_else(|| self.bad(blocks))
    }

    #[cold]
    fn bad(&self, blocks: &Blocks) -> firn_model::Error {
        blocks.corrupt(self.text.bytes.start, "a block of label values makes no sense")
    }
}

#[inline]
fn take_entry<'a>(rest: &mut &'a [u8], first: bool) -> Option<(usize, &'a [u8])> {
    let (same, new) = if first {
        (0, take_varint(rest)?)
    } else {
        let (&head, after) = rest.split_first()?;
        *rest = after;
        let mut len = |nibble: u8| match nibble {
            15 => take_varint(rest)?.checked_add(15),
            short => Some(u64::from(short)),
        };
        (len(head >> 4)?, len(head & 15)?)
    };
    let (new, after) = rest.split_at_checked(usize::try_from(new).ok()?)?;
    *rest = after;
    Some((usize::try_from(same).ok()?, new))
}

/// Nearly all numbers here take one byte.
#[inline]
pub(super) fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    match **rest {
        [byte, ref after @ ..] if byte < 0x80 => {
            *rest = after;
            Some(u64::from(byte))
        }
        _ => decode_varint(rest),
    }
}

impl StringWalk<'_> {
    /// Goes to the next text, which must be one.
    pub(crate) fn advance(&mut self) -> Result<()> {
        let first = self.next.is_multiple_of(BLOCK_TEXTS);
        if first {
            self.rest = self.strings.block(self.blocks, self.next / BLOCK_TEXTS)?;
        }
        let (same, new) = self.strings.entry(self.blocks, &mut self.rest, first)?;
        if same > self.key.len() {
            return Err(self.strings.bad(self.blocks));
        }
        // A block's first text is stored whole; how much it shares is worth knowing all the same.
        self.same = match first {
            true => self.key.iter().zip(new).take_while(|(a, b)| a == b).count(),
            false => same,
        };
        self.key.truncate(same);
        self.key.extend_from_slice(new);
        self.next += 1;
        Ok(())
    }

    /// Makes `id` the next text: a step from the one before, a walk inside of its block from anywhere.
    pub(crate) fn go_to(&mut self, id: u64) -> Result<()> {
        if id < self.next || id / BLOCK_TEXTS != self.next / BLOCK_TEXTS {
            self.next = id / BLOCK_TEXTS * BLOCK_TEXTS;
        }
        while self.next < id {
            self.advance()?;
        }
        Ok(())
    }

    /// The id of the text that [`StringWalk::advance`] goes to.
    pub(crate) fn next_id(&self) -> u64 {
        self.next
    }

    /// The present text.
    pub(crate) fn text(&self) -> &[u8] {
        &self.key
    }

    /// How many leading bytes it shares with the text before it, be that walked or not.
    pub(crate) fn same(&self) -> usize {
        self.same
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sealed::testing::written;

    fn strings(texts: &[String]) -> (Blocks, Strings) {
        let mut writer = StringsWriter::default();
        texts.iter().for_each(|text| writer.push(text.as_bytes()));
        let (blocks, contents) = written(&[&writer.text], &[&writer.starts]);
        let strings = Strings {
            text: Records { bytes: contents.sections[0], starts: contents.arrays[0] },
            count: texts.len() as u64,
        };
        (blocks, strings)
    }

    proptest! {
        #[test]
        fn texts_are_found_and_given_back(
            before in prop::collection::vec("[ab]{1,20}", 0..20),
            texts in prop::collection::btree_set("(aaaaaaaaaaaaaaaaaaa)?[abc]{0,18}", 1..60),
            wanted in prop::collection::vec("(aaaaaaaaaaaaaaaaaaa)?[abc]{0,18}", 8),
            steps in prop::collection::vec(any::<prop::sample::Index>(), 12),
        ) {
            let texts: Vec<String> = texts.into_iter().collect();
            let from = before.len() as u64;
            let all: Vec<String> = before.into_iter().chain(texts.clone()).collect();
            let (blocks, strings) = strings(&all);
            let ids = from..all.len() as u64;
            for (id, text) in all.iter().enumerate() {
                let mut key = Vec::new();
                strings.get(&blocks, id as u64, &mut key).unwrap();
                prop_assert_eq!(&key, text.as_bytes());
                for other in all.iter().chain(&wanted) {
                    let is = strings.is(&blocks, id as u64, other.as_bytes()).unwrap();
                    prop_assert_eq!(is, other == text);
                }
            }
            for wanted in wanted.iter().chain(&texts) {
                let found = strings.find(&blocks, ids.clone(), wanted.as_bytes()).unwrap();
                let want = texts.binary_search(wanted);
                prop_assert_eq!(found, want.map(|at| at as u64 + from).map_err(|at| at as u64 + from));
            }
            let mut walk = strings.walk(&blocks, from).unwrap();
            let mut last = all[..from as usize].last().cloned().unwrap_or_default();
            for text in &texts {
                walk.advance().unwrap();
                prop_assert_eq!(walk.text(), text.as_bytes());
                prop_assert!(text.as_bytes().starts_with(&last.as_bytes()[..walk.same()]));
                last.clone_from(text);
            }
            for id in steps.iter().map(|step| step.index(all.len())) {
                walk.go_to(id as u64).unwrap();
                walk.advance().unwrap();
                prop_assert_eq!(walk.text(), all[id].as_bytes());
            }
        }
    }
}
