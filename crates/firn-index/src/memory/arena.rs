//! Append-only storage in chunks. Growing never copies existing entries, so adding a million series
//! causes no pause and no second copy.

use firn_model::{Error, Result, decode_varint, encode_varint};

// 256 KiB: bounds the unused space at the end of each chunk; allocating a chunk is cheap.
const CHUNK_BITS: u32 = 18;
const CHUNK_BYTES: usize = 1 << CHUNK_BITS;
const CHUNK_ITEMS: usize = 4_096;

/// Byte strings at `u32` addresses (chunk number and offset). An entry never crosses a chunk.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    chunks: Vec<Vec<u8>>,
}

impl Arena {
    /// Stores `entry` (not empty) and returns its address.
    ///
    /// # Errors
    /// `TooLarge` once all addresses are used (4 GiB).
    pub(crate) fn push(&mut self, entry: &[u8]) -> Result<u32> {
        let fits = self.chunks.last().is_some_and(|c| c.len() + entry.len() <= CHUNK_BYTES);
        if !fits {
            if self.chunks.len() > (u32::MAX >> CHUNK_BITS) as usize {
                return Err(Error::too_large(
                    "labels of new series take 4 GiB of memory: retry after the next flush",
                ));
            }
            // The first chunk grows by doubling to keep a small index small. An entry larger than a
            // chunk gets its own chunk.
            let whole = if self.chunks.is_empty() { 0 } else { CHUNK_BYTES };
            self.chunks.push(Vec::with_capacity(whole.max(entry.len())));
        }
        let chunk_idx = self.chunks.len() - 1;
        let chunk = &mut self.chunks[chunk_idx];
        let at = (chunk_idx as u32) << CHUNK_BITS | chunk.len() as u32;
        chunk.extend_from_slice(entry);
        Ok(at)
    }

    /// The bytes from `at` to the end of its chunk.
    pub(crate) fn from(&self, at: u32) -> &[u8] {
        &self.chunks[(at >> CHUNK_BITS) as usize][at as usize % CHUNK_BYTES..]
    }

    /// Heap bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.capacity() + size_of::<Vec<u8>>()).sum()
    }
}

/// A vector that never moves its items.
#[derive(Debug)]
pub(crate) struct Chunked<T> {
    chunks: Vec<Vec<T>>,
    len: u32,
}

impl<T> Default for Chunked<T> {
    fn default() -> Chunked<T> {
        Chunked { chunks: Vec::new(), len: 0 }
    }
}

impl<T> Chunked<T> {
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn push(&mut self, item: T) {
        if (self.len as usize).is_multiple_of(CHUNK_ITEMS) {
            // Only the first chunk grows by doubling, to keep a small index small.
            let capacity = if self.chunks.is_empty() { 0 } else { CHUNK_ITEMS };
            self.chunks.push(Vec::with_capacity(capacity));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(item);
            self.len += 1;
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.capacity() * size_of::<T>() + 24).sum()
    }
}

impl<T> std::ops::Index<u32> for Chunked<T> {
    type Output = T;

    fn index(&self, idx: u32) -> &T {
        &self.chunks[idx as usize / CHUNK_ITEMS][idx as usize % CHUNK_ITEMS]
    }
}

impl<T> std::ops::IndexMut<u32> for Chunked<T> {
    fn index_mut(&mut self, idx: u32) -> &mut T {
        &mut self.chunks[idx as usize / CHUNK_ITEMS][idx as usize % CHUNK_ITEMS]
    }
}

/// Encodes a list of pair ids: `varint(count)` and a varint each.
pub(crate) fn encode_ids(ids: &[u32], out: &mut Vec<u8>) {
    encode_varint(ids.len() as u64, out);
    ids.iter().for_each(|&id| encode_varint(u64::from(id), out));
}

/// The list of ids at the front of `bytes`, as [`encode_ids`] stored it.
pub(crate) fn decode_ids(mut bytes: &[u8]) -> Ids<'_> {
    let count = decode_varint(&mut bytes).unwrap_or(0) as usize;
    Ids { bytes, count }
}

/// A decoder of a list of ids.
#[derive(Clone, Debug)]
pub(crate) struct Ids<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> Ids<'a> {
    /// The bytes after the list.
    pub(crate) fn after(mut self) -> &'a [u8] {
        self.by_ref().for_each(drop);
        self.bytes
    }
}

impl Iterator for Ids<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.count = self.count.checked_sub(1)?;
        // `encode_ids` wrote the list in this process, so it is complete. Most ids are short.
        match *self.bytes {
            [a, ref rest @ ..] if a < 0x80 => {
                self.bytes = rest;
                Some(u32::from(a))
            }
            [a, b, ref rest @ ..] if b < 0x80 => {
                self.bytes = rest;
                Some(u32::from(a & 0x7f) | u32::from(b) << 7)
            }
            _ => Some(decode_varint(&mut self.bytes)? as u32),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for Ids<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_back_from_many_chunks() {
        let mut arena = Arena::default();
        let entry = |n: usize| vec![n as u8; n % 5_000 + 1];
        let places: Vec<_> = (0..3_000).map(|n| arena.push(&entry(n)).unwrap()).collect();
        let huge = arena.push(&vec![7; CHUNK_BYTES * 2]).unwrap();
        let after = arena.push(b"x").unwrap();
        for (n, &at) in places.iter().enumerate() {
            assert!(arena.from(at).starts_with(&entry(n)));
        }
        assert_eq!(arena.from(huge)[CHUNK_BYTES * 2 - 1], 7);
        assert_eq!(arena.from(after), b"x");
    }

    #[test]
    fn chunked_items_and_ids_are_read_back() {
        let mut items = Chunked::default();
        (0..10_000u32).for_each(|n| items.push(n));
        assert!((0..10_000).all(|n| items[n] == n));
        assert_eq!(items.len(), 10_000);
        let mut bytes = Vec::new();
        encode_ids(&[0, 300, u32::MAX], &mut bytes);
        assert_eq!(decode_ids(&bytes).collect::<Vec<_>>(), [0, 300, u32::MAX]);
    }
}
