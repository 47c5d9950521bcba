//! Tables' directories and slow-tier blocks in memory.
//!
//! Keyed by (table, block): tables never change and ids are never reused, so an entry is never
//! stale. First in, first out, with a second chance for entries that were used since: a long scan
//! does not evict entries that are used again and again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use firn_model::{Budget, LockClass, Mutex, Pool, Reservation};

use crate::record::TableId;
use crate::suffix::Suffix;

// The map's entry and the queue's.
const ENTRY_BYTES: usize = 96;

static STATE: LockClass = LockClass::brief("table cache");

/// A piece of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Piece {
    Suffix,
    Block(u32),
}

#[derive(Clone)]
enum Content {
    Suffix(Arc<Suffix>),
    Block(Arc<[u8]>),
}

type Key = (TableId, Piece);

struct CacheEntry {
    content: Content,
    bytes: u64,
    used: bool,
}

/// Bounded by `bytes_max` and by the rest of the memory budget.
pub(crate) struct Cache {
    bytes_max: u64,
    state: Mutex<CacheState>,
}

struct CacheState {
    entries: HashMap<Key, CacheEntry>,
    queue: VecDeque<Key>,
    memory: Reservation,
    budget: Budget,
}

impl Cache {
    pub(crate) fn new(bytes_max: u64, budget: &Budget) -> Cache {
        let state = CacheState {
            entries: HashMap::new(),
            queue: VecDeque::new(),
            memory: budget.empty(Pool::Cache),
            budget: budget.clone(),
        };
        Cache { bytes_max, state: Mutex::new(&STATE, state) }
    }

    pub(crate) fn suffix(&self, table: TableId) -> Option<Arc<Suffix>> {
        match self.get((table, Piece::Suffix))? {
            Content::Suffix(suffix) => Some(suffix),
            Content::Block(_) => None,
        }
    }

    pub(crate) fn block(&self, table: TableId, block_idx: u32) -> Option<Arc<[u8]>> {
        match self.get((table, Piece::Block(block_idx)))? {
            Content::Block(block) => Some(block),
            Content::Suffix(_) => None,
        }
    }

    /// Keeps a directory; returns whether it was kept.
    pub(crate) fn keep_suffix(&self, table: TableId, suffix: Arc<Suffix>) -> bool {
        let bytes = suffix.heap_bytes();
        self.keep((table, Piece::Suffix), Content::Suffix(suffix), bytes)
    }

    pub(crate) fn keep_block(&self, table: TableId, block_idx: u32, block: Arc<[u8]>) {
        let bytes = block.len();
        self.keep((table, Piece::Block(block_idx)), Content::Block(block), bytes);
    }

    /// Whether `bytes` more would stay for a while.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let state = self.state.lock();
        let is_free = state.budget.missing_bytes(Pool::Cache, bytes) == 0;
        bytes <= self.bytes_max / 4 && (is_free || bytes <= state.memory.bytes() / 4)
    }

    /// Evicts at least `bytes`, or everything; returns the evicted bytes.
    pub(crate) fn shrink(&self, bytes: u64) -> u64 {
        let mut state = self.state.lock();
        let before = state.memory.bytes();
        while before - state.memory.bytes() < bytes && state.evict() {}
        before - state.memory.bytes()
    }

    /// Removes all entries of removed tables.
    pub(crate) fn forget(&self, is_gone: impl Fn(TableId) -> bool) {
        let mut state = self.state.lock();
        let mut freed = 0;
        state.entries.retain(|(table, _), entry| {
            let gone = is_gone(*table);
            freed += if gone { entry.bytes } else { 0 };
            !gone
        });
        state.queue.retain(|(table, _)| !is_gone(*table));
        state.memory.shrink(freed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().memory.bytes()
    }

    fn get(&self, key: Key) -> Option<Content> {
        let mut state = self.state.lock();
        let entry = state.entries.get_mut(&key)?;
        entry.used = true;
        Some(entry.content.clone())
    }

    fn keep(&self, key: Key, content: Content, bytes: usize) -> bool {
        let bytes = (bytes + ENTRY_BYTES) as u64;
        let mut state = self.state.lock();
        if state.entries.contains_key(&key) {
            return true;
        }
        if bytes > self.bytes_max {
            return false;
        }
        while state.memory.bytes() + bytes > self.bytes_max {
            if !state.evict() {
                return false;
            }
        }
        // Other rooms may have the memory; then the cache evicts its own entries or keeps nothing.
        while state.memory.grow(bytes).is_err() {
            if !state.evict() {
                return false;
            }
        }
        state.entries.insert(key, CacheEntry { content, bytes, used: false });
        state.queue.push_back(key);
        true
    }
}

impl CacheState {
    /// Evicts the oldest entry that was not used since its last inspection.
    fn evict(&mut self) -> bool {
        while let Some(key) = self.queue.pop_front() {
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            if std::mem::take(&mut entry.used) {
                self.queue.push_back(key);
                continue;
            }
            let bytes = entry.bytes;
            self.entries.remove(&key);
            self.memory.shrink(bytes);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(len: usize) -> Arc<[u8]> {
        vec![0; len].into()
    }

    #[test]
    fn used_entries_stay_and_memory_is_bounded() {
        let budget = Budget::unlimited();
        let cache = Cache::new(4 * (1_000 + ENTRY_BYTES as u64), &budget);
        for block_idx in 0..4 {
            cache.keep_block(TableId(1), block_idx, block(1_000));
        }
        cache.block(TableId(1), 0).unwrap();
        for block_idx in 4..7 {
            cache.keep_block(TableId(1), block_idx, block(1_000));
        }
        assert!(cache.block(TableId(1), 0).is_some(), "used since");
        assert!(cache.block(TableId(1), 1).is_none());
        assert_eq!(budget.usage().by_pool[Pool::Cache as usize], cache.bytes());
        assert!(cache.bytes() <= 4 * (1_000 + ENTRY_BYTES as u64));
        cache.keep_block(TableId(2), 0, block(10_000));
        assert!(cache.block(TableId(2), 0).is_none(), "larger than the cache");
        cache.forget(|table| table == TableId(1));
        assert_eq!((cache.bytes(), budget.usage().used_bytes), (0, 0));
    }

    #[test]
    fn invariant_8_others_have_the_memory_first() {
        // A cache may use seventy percent of it.
        let budget = Budget::new(4_000);
        let cache = Cache::new(1 << 20, &budget);
        cache.keep_block(TableId(1), 0, block(1_000));
        let others = budget.reserve(Pool::Head, 1_500).unwrap();
        cache.keep_block(TableId(1), 1, block(1_000));
        assert!(cache.block(TableId(1), 0).is_none() && cache.block(TableId(1), 1).is_some());
        assert_eq!(cache.shrink(1), 1_000 + ENTRY_BYTES as u64);
        drop(others);
        assert_eq!(budget.usage().used_bytes, 0);
    }
}
