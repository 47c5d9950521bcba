//! Epochs decide when memory that has left the head may be reused, and how its late readers read.
//!
//! Memory leaves the head's lists when another source has its rows: a table after a flush, larger
//! columns after a conversion. That swap begins an **epoch**, from which new readers use the other
//! source. A reader that registered before it keeps the memory. A younger reader only *leases* it
//! while it decodes; if the memory is released meanwhile, the reader uses the other source. A long
//! query thus pins the memory that only it can see, and never hot memory.
//!
//! Memory without possible readers is released at once. The rest **cools**: it is invisible to new
//! readers and waits for old ones. Cooling memory has a hard limit. Beyond it the oldest is revoked
//! from its readers, which see that at their next lease.
//!
//! Source: Heracles, section 3.2 (two levels: a version per flush, and epochs of readers for
//! cooling memory). There, one reader stops all reclamation behind it. Here memory also records the
//! epoch in which it was made, and only readers between its two epochs can have seen it. A query of
//! a minute keeps the memory that existed when it began, but not every arena that was converted
//! since. Epochs count up in 64 bits and never wrap.
//!
//! `epoch_model.rs` tries the interleavings.

use std::fmt;
use std::sync::Arc;

use super::sync::{AtomicU64, Mutex, Ordering, RwLock};

/// The registered readers, and the memory that cools for them.
pub(crate) struct Epochs<C> {
    now: AtomicU64,
    state: Mutex<EpochState<C>>,
    /// Cooling memory above this is revoked.
    cooling_bytes_max: u64,
}

struct EpochState<C> {
    readers: Vec<ReaderSpan>,
    next_reader: u64,
    /// In the order in which it left the head.
    cooling: Vec<Cooling<C>>,
    usage: CoolingUsage,
}

/// The memory that a reader may have seen: made up to epoch `until` and replaced after epoch
/// `from`.
#[derive(Clone, Copy)]
struct ReaderSpan {
    reader: u64,
    from: u64,
    until: u64,
}

struct Cooling<C> {
    memory: Arc<Memory<C>>,
    bytes: u64,
}

/// Totals of memory that left the head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CoolingUsage {
    /// Bytes that wait for readers.
    pub(crate) bytes: u64,
    /// Bytes that were released so far.
    pub(crate) released_bytes: u64,
    /// Bytes of these that were revoked from readers.
    pub(crate) revoked_bytes: u64,
}

/// A piece of memory that readers lease until it is released.
pub(crate) struct Memory<C> {
    /// `None` once it is released.
    content: RwLock<Option<C>>,
    /// The epoch in which it was made, or an earlier one.
    made: u64,
    /// Readers that registered in this epoch or later have another source for its rows. `u64::MAX`
    /// while there is none.
    replaced: AtomicU64,
}

/// The outcome of a lease.
pub(crate) enum Lease<C> {
    /// The content, valid while this is held.
    Held(C),
    /// The memory was released: another source of the reader has the same rows.
    Released,
    /// The memory was revoked over the limit, and the reader has no other source.
    Revoked,
}

/// A registered reader. Dropping it unpins its memory.
pub(crate) struct Reader<C: Clone> {
    epochs: Arc<Epochs<C>>,
    number: u64,
    from: u64,
}

impl<C: Clone> Epochs<C> {
    pub(crate) fn new(cooling_bytes_max: u64) -> Epochs<C> {
        let state = EpochState {
            readers: Vec::new(),
            next_reader: 0,
            cooling: Vec::new(),
            usage: CoolingUsage::default(),
        };
        Epochs { now: AtomicU64::new(0), state: Mutex::new(state), cooling_bytes_max }
    }

    /// Registers a reader. Call it before the reader looks at any list, and [`Reader::seen_all`]
    /// after it has seen all lists.
    pub(crate) fn register(epochs: &Arc<Epochs<C>>) -> Reader<C> {
        let mut state = epochs.state.lock();
        let number = state.next_reader;
        state.next_reader += 1;
        let from = epochs.now();
        state.readers.push(ReaderSpan { reader: number, from, until: u64::MAX });
        Reader { epochs: Arc::clone(epochs), number, from }
    }

    /// The present epoch.
    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::Acquire)
    }

    /// Begins an epoch and returns it. Readers that register from now on see the swap that preceded
    /// this call.
    pub(crate) fn advance(&self) -> u64 {
        self.now.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// `memory` of `bytes` is in no list any more, and [`Memory::replaced_at`] has its epoch. The
    /// next [`Epochs::settle`] that finds it unneeded releases it.
    pub(crate) fn cool(&self, memory: Arc<Memory<C>>, bytes: u64) {
        let mut state = self.state.lock();
        state.usage.bytes += bytes;
        state.cooling.push(Cooling { memory, bytes });
    }

    /// Releases memory that no reader needs, and revokes the oldest above the limit.
    pub(crate) fn settle(&self) {
        let released = self.state.lock().take_released(self.cooling_bytes_max);
        // The content is freed here, without the lock.
        released.iter().for_each(|cooling| cooling.memory.release());
    }

    /// Releases cooling memory under its readers: a mutant that simulation must catch.
    #[cfg(feature = "test-util")]
    pub(crate) fn release_under_readers(&self) {
        for cooling in std::mem::take(&mut self.state.lock().cooling) {
            cooling.memory.replaced_at(0);
            cooling.memory.release();
        }
    }

    /// The totals so far.
    pub(crate) fn usage(&self) -> CoolingUsage {
        self.state.lock().usage
    }
}

impl<C: Clone> EpochState<C> {
    fn take_released(&mut self, cooling_bytes_max: u64) -> Vec<Cooling<C>> {
        if self.cooling.is_empty() {
            return Vec::new();
        }
        let readers = &self.readers;
        let is_needed =
            |cooling: &Cooling<C>| readers.iter().any(|span| cooling.memory.may_be_seen_by(span));
        let mut released: Vec<_> =
            self.cooling.extract_if(.., |cooling| !is_needed(cooling)).collect();
        let bytes_of = |list: &[Cooling<C>]| list.iter().map(|cooling| cooling.bytes).sum::<u64>();
        let mut needed_bytes = bytes_of(&self.cooling);
        let mut revoked_count = 0;
        while needed_bytes > cooling_bytes_max {
            needed_bytes -= self.cooling[revoked_count].bytes;
            revoked_count += 1;
        }
        let revoked = self.cooling.drain(..revoked_count);
        let revoked_first = released.len();
        released.extend(revoked);
        self.usage.bytes = needed_bytes;
        self.usage.released_bytes += bytes_of(&released);
        self.usage.revoked_bytes += bytes_of(&released[revoked_first..]);
        released
    }
}

impl<C: Clone> Memory<C> {
    /// Memory that enters a list after `made`, an epoch that has begun.
    pub(crate) fn new(content: C, made: u64) -> Memory<C> {
        let content = RwLock::new(Some(content));
        Memory { content, made, replaced: AtomicU64::new(u64::MAX) }
    }

    /// Readers that register in `epoch` or later have another source for its rows. The first call
    /// counts.
    pub(crate) fn replaced_at(&self, epoch: u64) {
        self.replaced.fetch_min(epoch, Ordering::AcqRel);
    }

    /// See [`Memory::replaced_at`]; `u64::MAX` before that.
    pub(crate) fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::Acquire)
    }

    /// The content, while the memory is in a list.
    ///
    /// # Panics
    /// If it was released.
    pub(crate) fn content(&self) -> C {
        self.content.read().clone().expect("memory in a list is not released")
    }

    /// Leases the content to `reader`.
    pub(crate) fn lease(&self, reader: &Reader<C>) -> Lease<C> {
        match self.content.read().clone() {
            Some(content) => Lease::Held(content),
            None if reader.from >= self.replaced() => Lease::Released,
            None => Lease::Revoked,
        }
    }

    fn may_be_seen_by(&self, span: &ReaderSpan) -> bool {
        span.from < self.replaced() && self.made <= span.until
    }

    fn release(&self) {
        let content = self.content.write().take();
        drop(content);
    }
}

impl<C: Clone> Reader<C> {
    /// The reader has seen all lists. It can reach no memory that is made in the epoch that begins
    /// here, or later.
    pub(crate) fn seen_all(&self) {
        let until = self.epochs.advance() - 1;
        let mut state = self.epochs.state.lock();
        if let Some(span) = state.readers.iter_mut().find(|span| span.reader == self.number) {
            span.until = until;
        }
    }

    /// Whether the reader registered after the rows of `memory` had another source.
    pub(crate) fn has_other_source(&self, memory: &Memory<C>) -> bool {
        self.from >= memory.replaced()
    }
}

impl<C: Clone> Drop for Reader<C> {
    fn drop(&mut self) {
        let mut state = self.epochs.state.lock();
        if let Some(idx) = state.readers.iter().position(|span| span.reader == self.number) {
            state.readers.swap_remove(idx);
        }
        let is_cooling = !state.cooling.is_empty();
        drop(state);
        if is_cooling {
            self.epochs.settle();
        }
    }
}

impl<C: Clone> fmt::Debug for Reader<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("from", &self.from).finish_non_exhaustive()
    }
}
