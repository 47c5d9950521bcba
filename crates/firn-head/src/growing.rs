//! An array of blocks that grows while it is read.
//!
//! One writer adds blocks; any number of readers look at them without a lock. Blocks never move:
//! they are stored in buckets of 16, 32, 64 ... entries. So growing copies nothing, and an arena of
//! any size needs a fixed number of bucket pointers.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Entries of the first bucket.
const BUCKET_MIN: usize = 16;
/// 16 * (2^28 - 1) entries: more blocks than `u32` offsets can reach.
const BUCKET_COUNT: usize = 28;

type BlockSlot<T> = OnceLock<Box<[T]>>;

/// Bytes of the bucket that comes with the first block.
pub(crate) const FIRST_BUCKET_BYTES: usize = BUCKET_MIN * size_of::<BlockSlot<u64>>();

/// Blocks of `block_len` default (zero) items, made at their first write.
pub(crate) struct Growing<T> {
    buckets: [OnceLock<Box<[BlockSlot<T>]>>; BUCKET_COUNT],
    block_len: usize,
    /// One past the last block that was ever made.
    block_end: AtomicUsize,
    heap_bytes: AtomicUsize,
}

impl<T: Default> Growing<T> {
    pub(crate) fn new(block_len: usize) -> Growing<T> {
        Growing {
            buckets: [const { OnceLock::new() }; BUCKET_COUNT],
            block_len,
            block_end: AtomicUsize::new(0),
            heap_bytes: AtomicUsize::new(0),
        }
    }

    /// The block, if it was made.
    #[inline]
    pub(crate) fn get(&self, block_idx: usize) -> Option<&[T]> {
        let (bucket_idx, slot_idx) = locate(block_idx);
        self.buckets.get(bucket_idx)?.get()?.get(slot_idx)?.get().map(|block| &**block)
    }

    /// The block; makes it if needed.
    #[inline]
    pub(crate) fn get_or_make(&self, block_idx: usize) -> &[T] {
        match self.get(block_idx) {
            Some(block) => block,
            None => self.make(block_idx),
        }
    }

    /// One past the last block.
    pub(crate) fn block_end(&self) -> usize {
        self.block_end.load(Ordering::Acquire)
    }

    /// Bytes of all blocks and buckets.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.heap_bytes.load(Ordering::Relaxed)
    }

    #[cold]
    fn make(&self, block_idx: usize) -> &[T] {
        let (bucket_idx, slot_idx) = locate(block_idx);
        let bucket = self.buckets[bucket_idx].get_or_init(|| {
            let slot_count = BUCKET_MIN << bucket_idx;
            self.heap_bytes.fetch_add(slot_count * size_of::<BlockSlot<T>>(), Ordering::Relaxed);
            (0..slot_count).map(|_| OnceLock::new()).collect()
        });
        let block = bucket[slot_idx].get_or_init(|| {
            self.heap_bytes.fetch_add(self.block_len * size_of::<T>(), Ordering::Relaxed);
            (0..self.block_len).map(|_| T::default()).collect()
        });
        self.block_end.fetch_max(block_idx + 1, Ordering::Release);
        block
    }
}

/// Bucket and entry of a block.
#[inline]
fn locate(block_idx: usize) -> (usize, usize) {
    let bucket_idx = (block_idx / BUCKET_MIN + 1).ilog2() as usize;
    (bucket_idx, block_idx - BUCKET_MIN * ((1 << bucket_idx) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_one_fixed_slot() {
        let mut next = (0, 0);
        for block_idx in 0..5_000 {
            let slot = locate(block_idx);
            assert_eq!(slot, next, "block {block_idx}");
            next = (slot.0, slot.1 + 1);
            if next.1 == BUCKET_MIN << next.0 {
                next = (slot.0 + 1, 0);
            }
        }
    }

    #[test]
    fn blocks_are_made_once_and_counted() {
        let blocks: Growing<u64> = Growing::new(4);
        assert!(blocks.get(100).is_none());
        assert_eq!(blocks.get_or_make(100), [0; 4]);
        assert!(blocks.get(100).is_some() && blocks.get(99).is_none());
        let bytes = blocks.heap_bytes();
        blocks.get_or_make(100);
        assert_eq!(blocks.heap_bytes(), bytes);
        assert_eq!(blocks.block_end(), 101);
    }
}
