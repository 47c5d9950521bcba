//! Sorted texts, front coded in blocks of 16.
//!
//! ```text
//! block = varint(bytes) bytes entry*
//! entry = byte(min(same, 15) << 4 | min(new, 15)) [varint(same - 15)] [varint(new - 15)] new bytes
//! ```
//!
//! The first `same` letters are those of the previous text. With coded letters, *new* is reduced by
//! the fewest bytes that an entry of the name has. A block begins at every 16th text, regardless of
//! its name. The new bytes are plain letters, or in the letter code of their name (`letters`).

use std::cmp::Ordering;
use std::ops::Range;

use firn_model::{Result, encode_varint};

use crate::sealed::format::blocks::{Blocks, Records};
use crate::sealed::format::letters::{LetterCode, Letters};
use crate::sealed::format::varint::take_varint;

pub(crate) const BLOCK_TEXTS: u64 = 16;
// The memory of a letter code's table; a code must save more.
const SAVED_BYTES_MIN: usize = 512;
/// The longest encoded [`LetterCode`]: counts by length, letters, a varint.
const LETTERS_BYTES_MAX: usize = 8 + 256 + 10;
/// The memory of a letter code while a file is written: its table, and its encoding in both copies.
pub(crate) const CODE_BYTES: u64 = 512 + 2 * LETTERS_BYTES_MAX as u64;

/// The first text of a name, and its letter code if it has one.
pub(crate) type NameLetters = (u64, Option<Letters>);

/// The values of all pairs, by pair.
#[derive(Clone, Debug)]
pub(crate) struct Strings {
    /// One block per start.
    pub(crate) text: Records,
    pub(crate) count: u64,
    /// By name.
    names: Vec<NameLetters>,
}

/// The encoding of the texts of one name.
#[derive(Clone, Debug)]
pub(crate) struct NameCode {
    /// Few names have one, and it has 512 bytes.
    letters: Option<Box<LetterCode>>,
    /// The least length of an entry, except for the first of a block.
    bytes_min: usize,
}

/// Chooses encodings, name by name.
#[derive(Debug)]
pub(crate) struct StringsPlanner {
    along: PrefixTracker,
    /// A code must save more than this.
    saved_bytes_min: usize,
}

/// Writes texts with the encodings of a [`StringsPlanner`] that saw the same texts.
#[derive(Debug, Default)]
pub(crate) struct StringsWriter {
    along: PrefixTracker,
    /// The start of each block.
    pub(crate) starts: Vec<u64>,
    written_bytes: u64,
    coded: Vec<u8>,
}

/// Tracks the shared prefix of consecutive texts.
#[derive(Clone, Debug, Default)]
struct PrefixTracker {
    last: Vec<u8>,
    count: u64,
}

/// Iterates over texts and holds the current one.
#[derive(Clone, Debug)]
pub(crate) struct StringWalk<'a> {
    entries: TextEntries<'a>,
    key: Vec<u8>,
    same: usize,
}

/// Iterates over the entries of blocks.
#[derive(Clone, Debug)]
struct TextEntries<'a> {
    strings: &'a Strings,
    blocks: &'a Blocks,
    rest: &'a [u8],
    /// The id of the next entry.
    next: u64,
    /// The index of its name, and the end of the name's texts.
    name_idx: usize,
    name_end: u64,
}

/// The entry of a text: its suffix after the prefix shared with the previous text.
#[derive(Clone, Copy, Debug)]
struct TextEntry<'a> {
    same: usize,
    new: &'a [u8],
    letters: Option<&'a Letters>,
}

impl Default for StringsPlanner {
    fn default() -> StringsPlanner {
        StringsPlanner { along: PrefixTracker::default(), saved_bytes_min: SAVED_BYTES_MIN }
    }
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "encodes data of this process"
)]
impl StringsPlanner {
    /// Chooses the encoding of the texts of the next name. `each` passes all of them, sorted; it is
    /// called twice for coded texts, because texts are not kept.
    ///
    /// # Errors
    /// Those of `each`.
    pub(crate) fn plan(
        &mut self,
        each: impl Fn(&mut dyn FnMut(&[u8])) -> Result<()>,
    ) -> Result<NameCode> {
        let before = self.along.clone();
        let (mut counts, mut text_count) = ([0u64; 256], 0);
        each(&mut |text| {
            let same = self.along.step(text).0;
            text[same..].iter().for_each(|&letter| counts[usize::from(letter)] += 1);
            text_count += 1;
        })?;
        let plain_bytes: u64 = counts.iter().sum();
        let letters = LetterCode::new(&counts).filter(|made| {
            // The padding of the last byte costs half a byte per text on average.
            let coded_bytes = made.coded_bytes(&counts) + text_count / 2 + 32;
            plain_bytes > coded_bytes.saturating_add(self.saved_bytes_min as u64)
        });
        let letters = letters.map(Box::new);
        let Some(code) = &letters else { return Ok(NameCode { letters, bytes_min: 0 }) };
        let (mut along, mut bytes_min) = (before, usize::MAX);
        each(&mut |text| {
            let (same, is_first) = along.step(text);
            if !is_first {
                bytes_min = bytes_min.min(code.text_bytes(&text[same..]));
            }
        })?;
        bytes_min = if bytes_min == usize::MAX { 0 } else { bytes_min };
        Ok(NameCode { letters, bytes_min })
    }
}

impl NameCode {
    /// An upper limit on the length of [`NameCode::encode`].
    pub(crate) fn encoded_bytes_max(&self) -> usize {
        self.letters.as_ref().map_or(0, |_| LETTERS_BYTES_MAX).saturating_add(1)
    }

    /// Appends the letter encoding.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.letters.is_some()));
        if let Some(letters) = &self.letters {
            letters.encode(self.bytes_min, out);
        }
    }
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "encodes data of this process"
)]
impl StringsWriter {
    /// Appends the next text, encoded with `code`, to `out`.
    pub(crate) fn push(&mut self, text: &[u8], code: &NameCode, out: &mut Vec<u8>) {
        let start = out.len();
        let (same, is_first) = self.along.step(text);
        let mut new = &text[same..];
        if let Some(letters) = &code.letters {
            self.coded.clear();
            letters.encode_text(new, &mut self.coded);
            new = &self.coded;
        }
        if is_first {
            self.starts.push(self.written_bytes);
            encode_varint(new.len() as u64, out);
        } else {
            let more = new.len() - code.bytes_min;
            out.push((same.min(15) << 4 | more.min(15)) as u8);
            for len in [same, more] {
                if len >= 15 {
                    encode_varint(len as u64 - 15, out);
                }
            }
        }
        out.extend_from_slice(new);
        self.written_bytes += (out.len() - start) as u64;
    }
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "encodes data of this process"
)]
impl PrefixTracker {
    /// Advances to `text`. Returns the length of the prefix that it shares with the previous text
    /// (0 at the start of a block), and whether it begins a block.
    fn step(&mut self, text: &[u8]) -> (usize, bool) {
        let is_first = self.count.is_multiple_of(BLOCK_TEXTS);
        let same = common(&self.last, text);
        self.last.truncate(same);
        self.last.extend_from_slice(&text[same..]);
        self.count += 1;
        (if is_first { 0 } else { same }, is_first)
    }
}

/// The most of `name_count` names that have a letter code, if their texts have `text_bytes`.
pub(crate) fn code_count_max(name_count: u64, text_bytes: u64) -> u64 {
    name_count.min(text_bytes.div_euclid(SAVED_BYTES_MIN as u64))
}

fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Decodes the letter encoding of a name; `None` if malformed.
pub(crate) fn take_letters(input: &mut &[u8]) -> Option<Option<Letters>> {
    let (&is_coded, after) = input.split_first()?;
    *input = after;
    match is_coded {
        0 => Some(None),
        1 => Letters::take(input).map(Some),
        _ => None,
    }
}

impl Strings {
    /// The first texts in `names` ascend from 0.
    pub(crate) fn new(text: Records, count: u64, names: Vec<NameLetters>) -> Strings {
        Strings { text, count, names }
    }

    #[expect(clippy::arithmetic_side_effects, reason = "sizes in memory")]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.names.capacity() * size_of::<NameLetters>() + self.code_count() * 512
    }

    fn code_count(&self) -> usize {
        self.names.iter().filter(|name| name.1.is_some()).count()
    }

    /// The most names that have a letter code once these texts are in a file with others.
    pub(crate) fn code_count_max(&self) -> u64 {
        let plain = code_count_max(self.names.len() as u64, self.text.bytes.len as u64);
        (self.names.len() as u64).min(plain.saturating_add(self.code_count() as u64))
    }

    /// Writes the text of `id` to `key`.
    pub(crate) fn get(&self, blocks: &Blocks, id: u64, key: &mut Vec<u8>) -> Result<()> {
        key.clear();
        let mut entries = self.entries(blocks, id);
        while entries.next <= id {
            let entry = entries.take()?;
            if entry.same > key.len() {
                return Err(self.bad(blocks));
            }
            key.truncate(entry.same);
            entry.append(key);
        }
        Ok(())
    }

    /// Whether text `id` is `wanted`. Skips the letters that an earlier text of the block decides.
    pub(crate) fn is(&self, blocks: &Blocks, id: u64, wanted: &[u8]) -> Result<bool> {
        let mut entries = self.entries(blocks, id);
        // The current text agrees with `wanted` up to `agreed`; there they differ, or one of them
        // ends.
        let (mut agreed, mut is_it, mut decoded) = (0, false, Vec::new());
        while entries.next <= id {
            let entry = entries.take()?;
            is_it = false;
            if entry.same <= agreed {
                let new = entry.text(&mut decoded);
                let agreed_new = common(new, wanted.get(entry.same..).unwrap_or_default());
                agreed = entry.same.saturating_add(agreed_new);
                is_it = agreed_new == new.len() && agreed == wanted.len();
            }
        }
        Ok(is_it)
    }

    /// Binary search among the sorted texts `ids`: `Ok` with the index of `wanted`, or `Err` with
    /// its insertion point.
    pub(crate) fn find(
        &self,
        blocks: &Blocks,
        ids: Range<u64>,
        wanted: &[u8],
    ) -> Result<Result<u64, u64>> {
        let mut walk = self.seek(blocks, ids.clone(), wanted)?;
        while walk.next_id() < ids.end {
            walk.advance()?;
            match walk.key.as_slice().cmp(wanted) {
                Ordering::Less => {}
                Ordering::Equal => return Ok(Ok(walk.next_id().saturating_sub(1))),
                Ordering::Greater => return Ok(Err(walk.next_id().saturating_sub(1))),
            }
        }
        Ok(Err(ids.end))
    }

    /// An iterator over `ids` that begins at most a block before the first text that is not less
    /// than `wanted`.
    fn seek<'a>(
        &'a self,
        blocks: &'a Blocks,
        ids: Range<u64>,
        wanted: &[u8],
    ) -> Result<StringWalk<'a>> {
        // Blocks with a first text in `ids`.
        let (mut low, mut high) = (ids.start.div_ceil(BLOCK_TEXTS), ids.end.div_ceil(BLOCK_TEXTS));
        let mut decoded = Vec::new();
        while low < high {
            let middle = low.midpoint(high);
            let first = self.entries(blocks, middle.saturating_mul(BLOCK_TEXTS)).take()?;
            match first.text(&mut decoded) <= wanted {
                true => low = middle.saturating_add(1),
                false => high = middle,
            }
        }
        let start = low.checked_sub(1).map_or(0, |block| block.saturating_mul(BLOCK_TEXTS));
        self.walk(blocks, start.max(ids.start))
    }

    /// An iterator that begins with text `id`.
    pub(crate) fn walk<'a>(&'a self, blocks: &'a Blocks, id: u64) -> Result<StringWalk<'a>> {
        let (key, same) = Default::default();
        let mut walk = StringWalk { entries: self.entries(blocks, id), key, same };
        walk.go_to(id)?;
        Ok(walk)
    }

    /// Decodes the texts of block `idx` from `rest`, and advances `rest` past it.
    pub(crate) fn take_block<'a>(
        &'a self,
        blocks: &'a Blocks,
        idx: u64,
        rest: &mut &'a [u8],
    ) -> Option<Vec<Vec<u8>>> {
        let mut entries = self.entries(blocks, idx.saturating_mul(BLOCK_TEXTS));
        entries.rest = rest;
        let (mut texts, mut text) = (Vec::new(), Vec::new());
        for _ in 0..self.count.saturating_sub(entries.next).min(BLOCK_TEXTS) {
            let entry = entries.take_here().ok()?;
            if entry.same > text.len() {
                return None;
            }
            text.truncate(entry.same);
            entry.append(&mut text);
            texts.push(text.clone());
        }
        *rest = entries.rest;
        Some(texts)
    }

    /// The entries from the start of the block of `id`.
    fn entries<'a>(&'a self, blocks: &'a Blocks, id: u64) -> TextEntries<'a> {
        let next = (id / BLOCK_TEXTS).saturating_mul(BLOCK_TEXTS);
        TextEntries { strings: self, blocks, rest: &[], next, name_idx: 0, name_end: 0 }
    }

    #[cold]
    fn bad(&self, blocks: &Blocks) -> firn_model::Error {
        blocks.corrupt(
            self.text.bytes.start,
            "a block of label values is malformed: run `firn check --repair`",
        )
    }
}

impl<'a> TextEntries<'a> {
    #[inline]
    fn take(&mut self) -> Result<TextEntry<'a>> {
        if self.next.is_multiple_of(BLOCK_TEXTS) {
            self.rest = self.strings.text.get(self.blocks, self.next / BLOCK_TEXTS)?;
        }
        self.take_here()
    }

    /// Decodes the next entry from `rest`.
    #[inline]
    fn take_here(&mut self) -> Result<TextEntry<'a>> {
        let is_first = self.next.is_multiple_of(BLOCK_TEXTS);
        if is_first || self.next >= self.name_end {
            let names = &self.strings.names;
            let after = names.partition_point(|name| name.0 <= self.next);
            self.name_idx = after.saturating_sub(1);
            self.name_end = names.get(after).map_or(u64::MAX, |name| name.0);
        }
        let letters = self.strings.names.get(self.name_idx).and_then(|name| name.1.as_ref());
        let bytes_min = letters.map_or(0, |letters| letters.bytes_min);
        let taken = take_entry(&mut self.rest, is_first, bytes_min);
        let (same, new) = taken.ok_or_else(|| self.strings.bad(self.blocks))?;
        self.next = self.next.saturating_add(1);
        Ok(TextEntry { same, new, letters })
    }
}

impl<'a> TextEntry<'a> {
    /// Appends its letters.
    #[inline]
    fn append(&self, out: &mut Vec<u8>) {
        match self.letters {
            Some(letters) => letters.decode(self.new, out),
            None => out.extend_from_slice(self.new),
        }
    }

    /// Its letters, borrowed from the file or from `decoded`.
    #[inline]
    fn text<'d>(&self, decoded: &'d mut Vec<u8>) -> &'d [u8]
    where
        'a: 'd,
    {
        if self.letters.is_none() {
            return self.new;
        }
        decoded.clear();
        self.append(decoded);
        decoded
    }
}

#[inline]
fn take_entry<'a>(rest: &mut &'a [u8], first: bool, bytes_min: usize) -> Option<(usize, &'a [u8])> {
    let (same, new) = if first {
        (0, take_varint(rest)?)
    } else {
        let (&head, after) = rest.split_first()?;
        *rest = after;
        let mut len = |nibble: u8| match nibble {
            15 => take_varint(rest)?.checked_add(15),
            short => Some(u64::from(short)),
        };
        (len(head >> 4)?, len(head & 15)?.checked_add(bytes_min as u64)?)
    };
    let (new, after) = rest.split_at_checked(usize::try_from(new).ok()?)?;
    *rest = after;
    Some((usize::try_from(same).ok()?, new))
}

impl StringWalk<'_> {
    /// Advances to the next text, which must exist.
    pub(crate) fn advance(&mut self) -> Result<()> {
        let is_first = self.entries.next.is_multiple_of(BLOCK_TEXTS);
        let entry = self.entries.take()?;
        if entry.same > self.key.len() {
            return Err(self.entries.strings.bad(self.entries.blocks));
        }
        if is_first {
            // The first text of a block is stored whole; compute its shared prefix.
            let before = std::mem::take(&mut self.key);
            entry.append(&mut self.key);
            self.same = common(&before, &self.key);
            return Ok(());
        }
        self.same = entry.same;
        self.key.truncate(entry.same);
        entry.append(&mut self.key);
        Ok(())
    }

    /// Makes `id` the next text. Cheap if it is the following one, otherwise at most a block is
    /// read.
    pub(crate) fn go_to(&mut self, id: u64) -> Result<()> {
        let next = self.entries.next;
        if id < next || id / BLOCK_TEXTS != next / BLOCK_TEXTS {
            self.entries.next = (id / BLOCK_TEXTS).saturating_mul(BLOCK_TEXTS);
        }
        while self.entries.next < id {
            self.advance()?;
        }
        Ok(())
    }

    /// The id of the next text.
    pub(crate) fn next_id(&self) -> u64 {
        self.entries.next
    }

    /// The current text.
    pub(crate) fn text(&self) -> &[u8] {
        &self.key
    }

    /// Length of the prefix that the current text shares with the previous id's text.
    pub(crate) fn same(&self) -> usize {
        self.same
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sealed::testing::written;

    fn strings(names: &[&[String]], is_coded: bool) -> (Blocks, Strings) {
        let saved_bytes_min = if is_coded { 0 } else { usize::MAX };
        let mut planner = StringsPlanner { saved_bytes_min, ..StringsPlanner::default() };
        let (mut writer, mut text) = (StringsWriter::default(), Vec::new());
        let (mut letters, mut first) = (Vec::new(), 0);
        for texts in names {
            let texts = || texts.iter().map(|text| text.as_bytes());
            let code = planner.plan(|each| {
                texts().for_each(each);
                Ok(())
            });
            let (code, mut encoded) = (code.unwrap(), Vec::new());
            texts().for_each(|one| writer.push(one, &code, &mut text));
            code.encode(&mut encoded);
            letters.push((first, take_letters(&mut encoded.as_slice()).unwrap()));
            first += texts().count() as u64;
        }
        let (blocks, contents) = written(&[&text], &[&writer.starts]);
        let text = Records { bytes: contents.sections[0], starts: contents.arrays[0] };
        (blocks, Strings::new(text, first, letters))
    }

    proptest! {
        #[test]
        fn texts_are_found_and_returned(
            before in prop::collection::vec("[ab]{1,20}", 0..20),
            texts in prop::collection::btree_set("(aaaaaaaaaaaaaaaaaaa)?[abc]{0,18}", 1..60),
            wanted in prop::collection::vec("(aaaaaaaaaaaaaaaaaaa)?[abc]{0,18}", 8),
            steps in prop::collection::vec(any::<prop::sample::Index>(), 12),
            is_coded in any::<bool>(),
        ) {
            let texts: Vec<String> = texts.into_iter().collect();
            let from = before.len() as u64;
            let all: Vec<String> = before.iter().cloned().chain(texts.clone()).collect();
            let (blocks, strings) = strings(&[&before, &texts], is_coded);
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
                let id = |at: usize| at as u64 + from;
                prop_assert_eq!(found, want.map(id).map_err(id));
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
