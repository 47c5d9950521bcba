//! The block pool: the memory of columns, recycled.
//!
//! A **page** is 1 MiB from the allocator, a **block** 4 KiB of a page. Columns are stored in
//! **stretches**: neighbouring blocks of one page, as many as the writer needs. Blocks that
//! conversions and recycling free are reused by the next conversion. No buffer grows by copying or
//! has a size of its own, and the resident memory of a head under constant load stays flat.
//!
//! A stretch has exactly one owner, so no code can use a block that belongs to another owner.
//! Heracles keeps a version per block for this; here the compiler proves it. `epoch` decides which
//! readers an owner waits for. [`BytesMut`] splits and joins pages, so this module needs no unsafe
//! code.
//!
//! Free blocks are taken from the first page with enough neighbouring ones, so the last pages
//! become entirely free. A few free pages are kept, the others are returned to the allocator. A
//! block counts in the budget from its first use until then; an unused block costs nothing yet.
//!
//! Source: Heracles, section 3.2 (pages of 1 MB, blocks of 256 bytes with one chunk each). Here a
//! block holds the chunks of many groups, because a lone series' chunk has about 50 bytes.

use std::fmt;

use bytes::BytesMut;
use firn_model::{Budget, Pool, Reservation};
use parking_lot::Mutex;

/// The unit of a stretch. On average a segment leaves half a block unused.
pub(crate) const BLOCK_BYTES: usize = 4 << 10;
/// Blocks of a page.
pub(crate) const PAGE_BLOCKS: usize = 256;
/// Free pages are kept while at most one in this many blocks is free: the next conversion takes the
/// blocks that the previous one freed.
const FREE_SHARE: u64 = 32;

/// A stretch in an earlier page is accepted if it has at least a quarter of the wanted blocks. A
/// segment then has a few more stretches, and later pages become free.
const SHORT: usize = 4;

/// All pages of a head.
pub(crate) struct BlockPool(Mutex<PoolState>);

struct PoolState {
    /// `None` is a free slot for a page.
    pages: Vec<Option<Page>>,
    /// The reservation of free blocks that were used before.
    held: Reservation,
    usage: PoolUsage,
}

/// Totals of the pool. A block counts from its first use on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolUsage {
    /// Bytes of blocks in use, and of free blocks that were used.
    pub(crate) allocated_bytes: u64,
    /// Bytes of free blocks that were used.
    pub(crate) free_bytes: u64,
    /// Bytes of used blocks that were handed out again, since the start.
    pub(crate) recycled_bytes: u64,
}

struct Page {
    /// Rising, with used blocks in between.
    free: Vec<FreeStretch>,
    free_count: usize,
    /// Blocks from here on were never used.
    used_end: usize,
}

struct FreeStretch {
    first: usize,
    bytes: BytesMut,
}

/// Neighbouring blocks with one owner. Dropping a stretch instead of releasing it loses its page
/// for the pool.
pub(crate) struct Stretch {
    /// `None` for a stretch longer than a page or far smaller than a block, which has memory of its
    /// own.
    page_idx: Option<usize>,
    first: usize,
    bytes: BytesMut,
}

impl BlockPool {
    pub(crate) fn new(budget: &Budget) -> BlockPool {
        let held = budget.empty(Pool::Head);
        BlockPool(Mutex::new(PoolState { pages: Vec::new(), held, usage: PoolUsage::default() }))
    }

    /// Returns at least `bytes_min` bytes, or `bytes_wanted` if that many are side by side. Their
    /// content is undefined. Their reservation is added to `held`, from the budget as far as it
    /// lasts: conversions are allowed to exceed it, because they free memory.
    pub(crate) fn take(
        &self,
        bytes_min: usize,
        bytes_wanted: usize,
        held: &mut Reservation,
    ) -> Stretch {
        let count_min = bytes_min.div_ceil(BLOCK_BYTES).max(1);
        let count_wanted =
            bytes_wanted.div_ceil(BLOCK_BYTES).clamp(count_min, PAGE_BLOCKS.max(count_min));
        let mut state = self.0.lock();
        let (stretch, fresh_count) = match count_min > PAGE_BLOCKS {
            true => {
                let bytes = BytesMut::zeroed(count_min * BLOCK_BYTES);
                (Stretch { page_idx: None, first: 0, bytes }, count_min)
            }
            false => state.take(count_min, count_wanted),
        };
        let fresh_bytes = (fresh_count * BLOCK_BYTES) as u64;
        let used_bytes = stretch.bytes.len() as u64 - fresh_bytes;
        state.usage.allocated_bytes += fresh_bytes;
        state.usage.free_bytes -= used_bytes;
        state.usage.recycled_bytes += used_bytes;
        held.merge(state.held.split(used_bytes));
        drop(state);
        // Exceeds the limit if needed, as everywhere in the head: writers are refused then.
        held.take(fresh_bytes);
        stretch
    }

    /// A stretch with a copy of `bytes` in memory of its own, of exactly that size. Its reservation
    /// is added to `held`, as by [`BlockPool::take`].
    pub(crate) fn take_copy(&self, bytes: &[u8], held: &mut Reservation) -> Stretch {
        self.0.lock().usage.allocated_bytes += bytes.len() as u64;
        held.take(bytes.len() as u64);
        Stretch { page_idx: None, first: 0, bytes: BytesMut::from(bytes) }
    }

    /// Releases a stretch with its reservation `held`.
    pub(crate) fn release(&self, stretch: Stretch, held: Reservation) {
        let mut state = self.0.lock();
        let Stretch { page_idx, first, bytes } = stretch;
        let Some(page_idx) = page_idx else {
            state.usage.allocated_bytes -= bytes.len() as u64;
            return;
        };
        state.usage.free_bytes += bytes.len() as u64;
        state.held.merge(held);
        state.page(page_idx).put(FreeStretch { first, bytes });
        if state.page(page_idx).is_free() {
            let kept_bytes = state.usage.allocated_bytes / FREE_SHARE;
            state.drop_free_pages(kept_bytes);
        }
    }

    /// Returns all free pages to the allocator. Free blocks between used ones stay.
    pub(crate) fn trim(&self) {
        self.0.lock().drop_free_pages(0);
    }

    pub(crate) fn usage(&self) -> PoolUsage {
        self.0.lock().usage
    }
}

impl PoolState {
    /// The best stretch of the first page with one that is not much too short, cut to size; and the
    /// number of its blocks that were never used.
    fn take(&mut self, count_min: usize, count_wanted: usize) -> (Stretch, usize) {
        let count_min = count_min.max(count_wanted / SHORT);
        let mut places = self.pages.iter().enumerate();
        let found = places.find_map(|(page_idx, page)| {
            let free = page.iter().flat_map(|page| page.free.iter().enumerate());
            let fits = free.map(|(idx, free)| (free.count(), idx));
            let fits = fits.filter(|&(count, _)| count >= count_min);
            // The smallest that fits, else the largest.
            let best = fits.min_by_key(|&(count, _)| match count.checked_sub(count_wanted) {
                Some(surplus) => (0, surplus),
                None => (1, count_wanted - count),
            });
            best.map(|(_, idx)| (page_idx, idx))
        });
        let (page_idx, idx) = found.unwrap_or_else(|| (self.add_page(), 0));
        let (first, bytes, fresh_count) = self.page(page_idx).cut(idx, count_wanted);
        (Stretch { page_idx: Some(page_idx), first, bytes }, fresh_count)
    }

    #[cold]
    fn add_page(&mut self) -> usize {
        let bytes = BytesMut::zeroed(PAGE_BLOCKS * BLOCK_BYTES);
        let free = vec![FreeStretch { first: 0, bytes }];
        let page = Some(Page { free, free_count: PAGE_BLOCKS, used_end: 0 });
        match self.pages.iter().position(Option::is_none) {
            Some(page_idx) => {
                self.pages[page_idx] = page;
                page_idx
            }
            None => {
                self.pages.push(page);
                self.pages.len() - 1
            }
        }
    }

    fn page(&mut self, page_idx: usize) -> &mut Page {
        self.pages[page_idx].as_mut().expect("the page of a used stretch exists")
    }

    /// Returns free pages to the allocator, the last ones first, until at most `kept_bytes` are
    /// free.
    fn drop_free_pages(&mut self, kept_bytes: u64) {
        let is_free = |page: &&mut Option<Page>| page.as_ref().is_some_and(Page::is_free);
        for place in self.pages.iter_mut().rev().filter(is_free) {
            if self.usage.free_bytes <= kept_bytes {
                break;
            }
            let page_bytes = place.take().map_or(0, |page| (page.used_end * BLOCK_BYTES) as u64);
            self.usage.free_bytes -= page_bytes;
            self.usage.allocated_bytes -= page_bytes;
        }
        self.held.shrink_to(self.usage.free_bytes);
    }
}

impl Page {
    fn is_free(&self) -> bool {
        self.free_count == PAGE_BLOCKS
    }

    /// The first `count` blocks of a free stretch, or all of it: their start, and the number of
    /// unused ones.
    fn cut(&mut self, idx: usize, count: usize) -> (usize, BytesMut, usize) {
        let free = &mut self.free[idx];
        let count = count.min(free.count());
        let first = free.first;
        let bytes = free.bytes.split_to(count * BLOCK_BYTES);
        free.first += count;
        if free.bytes.is_empty() {
            self.free.remove(idx);
        }
        let end = first + count;
        let fresh_count = end.saturating_sub(first.max(self.used_end));
        self.used_end = self.used_end.max(end);
        self.free_count -= count;
        (first, bytes, fresh_count)
    }

    /// Adds freed blocks and joins them with their neighbours.
    fn put(&mut self, free: FreeStretch) {
        self.free_count += free.count();
        let idx = self.free.partition_point(|other| other.first < free.first);
        self.free.insert(idx, free);
        self.join(idx);
        if let Some(before) = idx.checked_sub(1) {
            self.join(before);
        }
    }

    /// Joins the free stretch at `idx` with the next one, if they touch.
    fn join(&mut self, idx: usize) {
        let Some(next) = self.free.get(idx + 1) else { return };
        debug_assert!(self.free[idx].end() <= next.first, "a block is free twice");
        if self.free[idx].end() == next.first {
            let next = self.free.remove(idx + 1);
            let address = self.free[idx].bytes.as_ptr();
            self.free[idx].bytes.unsplit(next.bytes);
            debug_assert!(self.free[idx].bytes.as_ptr() == address, "joined without a copy");
        }
    }
}

impl FreeStretch {
    fn count(&self) -> usize {
        self.bytes.len() / BLOCK_BYTES
    }

    fn end(&self) -> usize {
        self.first + self.count()
    }
}

impl Stretch {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Keeps the blocks of the first `bytes` bytes and returns the others, if there are any.
    pub(crate) fn cut_behind(&mut self, bytes: usize) -> Option<Stretch> {
        let count = bytes.div_ceil(BLOCK_BYTES);
        let is_cut = self.page_idx.is_some() && count * BLOCK_BYTES < self.bytes.len();
        is_cut.then(|| Stretch {
            page_idx: self.page_idx,
            first: self.first + count,
            bytes: self.bytes.split_off(count * BLOCK_BYTES),
        })
    }
}

impl fmt::Debug for BlockPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.usage().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct UsedStretch {
        stretch: Stretch,
        held: Reservation,
        mark: u8,
    }

    proptest! {
        /// Stretches never overlap, every used block is reserved, and after all are released few
        /// pages are left.
        #[test]
        fn invariant_8_blocks_have_one_owner_and_are_in_the_budget(
            steps in prop::collection::vec(
                (any::<u8>(), 1..40usize, any::<prop::sample::Index>()), 1..200,
            ),
        ) {
            let budget = Budget::unlimited();
            let pool = BlockPool::new(&budget);
            let mut out: Vec<UsedStretch> = Vec::new();
            for (step, (mark, count, which)) in steps.into_iter().enumerate() {
                if step % 3 < 2 {
                    let count = if mark == 0 { PAGE_BLOCKS + count } else { count };
                    let mut held = budget.empty(Pool::Head);
                    let wanted = count * BLOCK_BYTES * (1 + usize::from(mark % 3));
                    let mut stretch = pool.take(count * BLOCK_BYTES - 7, wanted, &mut held);
                    prop_assert!(stretch.bytes().len() >= count * BLOCK_BYTES - 7);
                    if let Some(rest) = stretch.cut_behind(count * BLOCK_BYTES - 5) {
                        let rest_held = held.split(rest.bytes().len() as u64);
                        pool.release(rest, rest_held);
                    }
                    prop_assert_eq!(held.bytes(), stretch.bytes().len() as u64);
                    stretch.bytes_mut().fill(mark);
                    out.push(UsedStretch { stretch, held, mark });
                } else if !out.is_empty() {
                    let used = out.swap_remove(which.index(out.len()));
                    let UsedStretch { stretch, held, mark } = used;
                    prop_assert!(stretch.bytes().iter().all(|&byte| byte == mark));
                    pool.release(stretch, held);
                }
                let out_bytes: u64 = out.iter().map(|out| out.stretch.bytes().len() as u64).sum();
                let usage = pool.usage();
                prop_assert_eq!(usage.allocated_bytes, out_bytes + usage.free_bytes);
                prop_assert_eq!(budget.usage().used_bytes, usage.allocated_bytes);
            }
            for UsedStretch { stretch, held, mark } in out {
                prop_assert!(stretch.bytes().iter().all(|&byte| byte == mark));
                pool.release(stretch, held);
            }
            let usage = pool.usage();
            let left = (usage.allocated_bytes, usage.free_bytes);
            prop_assert_eq!(left, (0, 0), "all pages are free");
            prop_assert_eq!(budget.usage().used_bytes, 0);
        }
    }

    #[test]
    fn freed_stretches_join_and_are_reused_by_best_fit() {
        let budget = Budget::unlimited();
        let pool = BlockPool::new(&budget);
        let mut held = budget.empty(Pool::Head);
        let mut take =
            |count: usize| pool.take(count * BLOCK_BYTES, count * BLOCK_BYTES, &mut held);
        let address = |stretch: &Stretch| (stretch.page_idx, stretch.first);
        let stretches: Vec<Stretch> = (0..6).map(|_| take(10)).collect();
        assert!(
            stretches
                .iter()
                .enumerate()
                .all(|(idx, stretch)| address(stretch) == (Some(0), 10 * idx))
        );
        assert_eq!(
            pool.usage().allocated_bytes,
            60 * BLOCK_BYTES as u64,
            "unused blocks cost nothing"
        );
        let mut stretches: Vec<Option<Stretch>> = stretches.into_iter().map(Some).collect();
        let mut release =
            |idx: usize| pool.release(stretches[idx].take().unwrap(), budget.empty(Pool::Head));
        for idx in [3, 0, 2] {
            release(idx);
        }
        assert_eq!(address(&take(7)), (Some(0), 0), "the hole of 10, not that of 20");
        assert_eq!(address(&take(20)), (Some(0), 20), "two of 10 are one of 20");
        assert_eq!(address(&take(200)).0, Some(1), "the end of the first page is too short");
        assert_eq!(pool.usage().recycled_bytes, 27 * BLOCK_BYTES as u64);
    }
}
