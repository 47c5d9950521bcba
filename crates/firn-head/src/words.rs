//! Bytes that one writer appends and many readers read without a lock, in safe Rust.
//!
//! They are stored in atomic words. A reader learns an offset only after the bytes below it are
//! complete (through the shard's lock, or through a chain's release store), so relaxed word
//! accesses are enough. A word is written again only to add bytes behind those that a reader knows.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::growing::Growing;

/// 4 KiB: small enough that an idle shard costs little, large enough that block lookups are rare.
const BLOCK_WORDS: usize = 512;
/// Bytes of a block; an arena grows by this.
pub(crate) const BLOCK_BYTES: usize = BLOCK_WORDS * 8;

/// An append-only byte store.
pub(crate) struct Words(Growing<AtomicU64>);

impl Words {
    pub(crate) fn new() -> Words {
        Words(Growing::new(BLOCK_WORDS))
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }

    /// Writes `bytes` at `at`. Only the single writer calls this, with `at` at or behind the end of
    /// all earlier writes: the bytes there are still zero.
    #[inline]
    pub(crate) fn write(&self, mut at: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let block = self.0.get_or_make(at / BLOCK_BYTES);
            let room = BLOCK_BYTES - at % BLOCK_BYTES;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            write_block(block, at % BLOCK_BYTES, now);
            at += now.len();
            bytes = later;
        }
    }

    /// The 16 bytes at `at`, as a little-endian number. Unwritten bytes are zero.
    #[inline]
    pub(crate) fn peek(&self, at: usize) -> u128 {
        let (word_idx, skip) = (at / 8, 8 * (at % 8));
        let block = self.0.get(word_idx / BLOCK_WORDS);
        let here = block.and_then(|block| block.get(word_idx % BLOCK_WORDS..)?.first_chunk::<3>());
        let words = match here {
            Some(words) => words.each_ref().map(load),
            None => [0, 1, 2].map(|next| self.word(word_idx + next)),
        };
        let [first, second, third] = words.map(u128::from);
        let low = (first | second << 64) >> skip;
        if skip == 0 { low } else { low | third << (128 - skip) }
    }

    fn word(&self, word_idx: usize) -> u64 {
        self.0.get(word_idx / BLOCK_WORDS).map_or(0, |block| load(&block[word_idx % BLOCK_WORDS]))
    }

    /// The `len` bytes at `at`, in `buf`. Unwritten bytes are zero. Whole words are copied, so the
    /// bytes may start inside `buf`.
    #[inline]
    pub(crate) fn read<'a>(&self, at: usize, len: usize, buf: &'a mut Vec<u8>) -> &'a [u8] {
        buf.clear();
        let end = (at + len).div_ceil(8);
        let mut word_idx = at / 8;
        while word_idx < end {
            let in_block = word_idx % BLOCK_WORDS;
            let count = (BLOCK_WORDS - in_block).min(end - word_idx);
            match self.0.get(word_idx / BLOCK_WORDS) {
                Some(block) => {
                    let start = buf.len();
                    buf.resize(start + 8 * count, 0);
                    let targets = buf[start..].as_chunks_mut::<8>().0.iter_mut();
                    for (target, word) in targets.zip(&block[in_block..in_block + count]) {
                        *target = load(word).to_le_bytes();
                    }
                }
                None => buf.resize(buf.len() + 8 * count, 0),
            }
            word_idx += count;
        }
        &buf[at % 8..at % 8 + len]
    }
}

#[inline]
fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

/// `bytes` fit into the block. Bytes behind `at` are zero; earlier bytes of its word are preserved.
fn write_block(block: &[AtomicU64], at: usize, mut bytes: &[u8]) {
    let mut word_idx = at / 8;
    let shift = 8 * (at % 8);
    let end = (at + bytes.len()).div_ceil(8);
    let mut word = if shift == 0 { 0 } else { block[word_idx].load(Ordering::Relaxed) };
    while word_idx < end {
        let next = take_word(&mut bytes);
        block[word_idx].store(word | next << shift, Ordering::Relaxed);
        word = if shift == 0 { 0 } else { next >> (64 - shift) };
        word_idx += 1;
    }
}

/// The first eight bytes, or the remaining ones and zeros.
#[inline]
fn take_word(bytes: &mut &[u8]) -> u64 {
    if let Some((word, rest)) = bytes.split_first_chunk::<8>() {
        *bytes = rest;
        return u64::from_le_bytes(*word);
    }
    let last = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    *bytes = &[];
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_length_come_back_from_any_place() {
        let words = Words::new();
        let bytes: Vec<u8> = (0..3 * BLOCK_BYTES + 5).map(|i| (i * 7 % 251) as u8 | 1).collect();
        let mut at = 0;
        for len in (1..40).cycle() {
            let end = (at + len).min(bytes.len());
            words.write(at, &bytes[at..end]);
            at = end;
            if at == bytes.len() {
                break;
            }
        }
        let mut buf = Vec::new();
        let step = if cfg!(miri) { 401 } else { 13 };
        for start in (0..bytes.len()).step_by(step) {
            for len in [0, 1, 7, 8, 9, 31, 600] {
                let len = len.min(bytes.len() - start);
                let out = words.read(start, len, &mut buf);
                assert_eq!(out, &bytes[start..start + len], "{len} bytes at {start}");
            }
            let mut want = [0; 16];
            let rest = &bytes[start..bytes.len().min(start + 16)];
            want[..rest.len()].copy_from_slice(rest);
            assert_eq!(words.peek(start).to_le_bytes(), want, "at {start}");
        }
        assert_eq!(words.read(10 * BLOCK_BYTES, 4, &mut buf), [0; 4]);
    }
}
