//! Epochs: when memory that has left the head may be used again, and what its late readers do.
//!
//! Memory leaves the head's lists when something else has its rows: a table after a flush, larger columns
//! after a conversion. From that swap on, an **epoch**, new readers know the other source. So a reader that
//! registered before the epoch of the swap keeps the memory; a younger one only *leases* it for as long as it
//! decodes, and when it finds it gone, reads the other source. A long query thus pins what it alone can
//! see, and never what is hot.
//!
//! What nobody may need any more is released at once, the rest **cools**: it is invisible for new readers and
//! waits for the old ones. Cooling memory has a hard limit; beyond it the oldest is taken from its readers,
//! which are told at their next lease.
//!
//! Source: Heracles 3.2 (two levels: a version per flush, epochs of readers for what cools). There one reader
//! stops all reclamation behind it. Here memory knows the epoch that it was made in too, and only readers
//! between its two epochs can have seen it: a query of a minute keeps what was there when it began, not
//! every arena that was converted since. Versions count up in 64 bits: none comes round again.
//!
//! `epoch_model.rs` tries the interleavings.

use std::fmt;
use std::sync::Arc;

use super::sync::{AtomicU64, Mutex, Ordering, RwLock};

/// The readers, and what cools for them.
pub(crate) struct Epochs<C> {
    now: AtomicU64,
    state: Mutex<State<C>>,
    /// Cooling memory over this is taken from its readers.
    cooling_bytes_max: u64,
}

struct State<C> {
    readers: Vec<Span>,
    next_reader: u64,
    /// In the order in which it left the head.
    cooling: Vec<Cooling<C>>,
    usage: CoolingUsage,
}

/// What a reader may have seen: memory that was made up to epoch `until` and replaced after epoch `from`.
#[derive(Clone, Copy)]
struct Span {
    reader: u64,
    from: u64,
    until: u64,
}

struct Cooling<C> {
    memory: Arc<Memory<C>>,
    bytes: u64,
}

/// Memory on its way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CoolingUsage {
    /// Bytes that wait for readers.
    pub(crate) bytes: u64,
    /// Bytes that were released so far.
    pub(crate) released_bytes: u64,
    /// Bytes of these that were taken from readers over the limit.
    pub(crate) revoked_bytes: u64,
}

/// Something that readers lease, until it is released.
pub(crate) struct Memory<C> {
    /// `None` once it was released.
    content: RwLock<Option<C>>,
    /// The epoch that it was made in, or an earlier one.
    made: u64,
    /// Readers that registered in this epoch or later have another source for its rows; `u64::MAX` while
    /// there is none.
    replaced: AtomicU64,
}

/// What a reader gets of a piece of memory.
pub(crate) enum Lease<C> {
    /// Its content, for as long as this is held.
    Held(C),
    /// Nothing: another source that the reader has holds the same rows.
    Gone,
    /// Nothing, and the reader has no other source: the limit was passed.
    Taken,
}

/// A registered reader; dropping it lets go of what it pinned.
pub(crate) struct Reader<C: Clone> {
    epochs: Arc<Epochs<C>>,
    number: u64,
    from: u64,
}

impl<C: Clone> Epochs<C> {
    pub(crate) fn new(cooling_bytes_max: u64) -> Epochs<C> {
        let state = State {
            readers: Vec::new(),
            next_reader: 0,
            cooling: Vec::new(),
            usage: CoolingUsage::default(),
        };
        Epochs { now: AtomicU64::new(0), state: Mutex::new(state), cooling_bytes_max }
    }

    /// Registers a reader. It comes before the reader looks at any list; [`Reader::seen_all`] comes after.
    pub(crate) fn register(epochs: &Arc<Epochs<C>>) -> Reader<C> {
        let mut state = epochs.state.lock();
        let number = state.next_reader;
        state.next_reader += 1;
        let from = epochs.now();
        state.readers.push(Span { reader: number, from, until: u64::MAX });
        Reader { epochs: Arc::clone(epochs), number, from }
    }

    /// The present epoch.
    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::Acquire)
    }

    /// Begins an epoch and returns it: whoever registers from now on finds the swap that came before this call.
    pub(crate) fn advance(&self) -> u64 {
        self.now.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// `memory` of `bytes` is in no list any more and [`Memory::replaced_at`] says since when. It is released at the next
    /// [`Epochs::settle`] that finds it unneeded.
    pub(crate) fn cool(&self, memory: Arc<Memory<C>>, bytes: u64) {
        let mut state = self.state.lock();
        state.usage.bytes += bytes;
        state.cooling.push(Cooling { memory, bytes });
    }

    /// Releases what no reader needs, and over the limit what has cooled longest.
    pub(crate) fn settle(&self) {
        let released = self.state.lock().take_released(self.cooling_bytes_max);
        // Freed here, without the lock.
        released.iter().for_each(|cooling| cooling.memory.release());
    }

    /// As if no reader needed what cools: a mistake for tests to find.
    pub(crate) fn release_under_readers(&self) {
        for cooling in std::mem::take(&mut self.state.lock().cooling) {
            cooling.memory.replaced_at(0);
            cooling.memory.release();
        }
    }

    /// What cools, and what has.
    pub(crate) fn usage(&self) -> CoolingUsage {
        self.state.lock().usage
    }
}

impl<C: Clone> State<C> {
    fn take_released(&mut self, cooling_bytes_max: u64) -> Vec<Cooling<C>> {
        if self.cooling.is_empty() {
            return Vec::new();
        }
        let readers = &self.readers;
        let is_needed =
            |cooling: &Cooling<C>| readers.iter().any(|span| cooling.memory.is_in(span));
        let mut released: Vec<_> =
            self.cooling.extract_if(.., |cooling| !is_needed(cooling)).collect();
        let bytes_of = |list: &[Cooling<C>]| list.iter().map(|cooling| cooling.bytes).sum::<u64>();
        let mut needed_bytes = bytes_of(&self.cooling);
        let mut taken_count = 0;
        while needed_bytes > cooling_bytes_max {
            needed_bytes -= self.cooling[taken_count].bytes;
            taken_count += 1;
        }
        let taken = self.cooling.drain(..taken_count);
        let taken_first = released.len();
        released.extend(taken);
        self.usage.bytes = needed_bytes;
        self.usage.released_bytes += bytes_of(&released);
        self.usage.revoked_bytes += bytes_of(&released[taken_first..]);
        released
    }
}

impl<C: Clone> Memory<C> {
    /// Memory that comes into a list after `made`, an epoch that has begun.
    pub(crate) fn new(content: C, made: u64) -> Memory<C> {
        let content = RwLock::new(Some(content));
        Memory { content, made, replaced: AtomicU64::new(u64::MAX) }
    }

    /// Readers that register in `epoch` or later have its rows from elsewhere; the first call counts.
    pub(crate) fn replaced_at(&self, epoch: u64) {
        self.replaced.fetch_min(epoch, Ordering::AcqRel);
    }

    /// See [`Memory::replaced_at`]; `u64::MAX` before that.
    pub(crate) fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::Acquire)
    }

    /// The content, while it is in a list.
    ///
    /// # Panics
    /// If it was released.
    pub(crate) fn content(&self) -> C {
        self.content.read().clone().expect("what is in a list is not released")
    }

    /// The content for `reader`.
    pub(crate) fn lease(&self, reader: &Reader<C>) -> Lease<C> {
        match self.content.read().clone() {
            Some(content) => Lease::Held(content),
            None if reader.from >= self.replaced() => Lease::Gone,
            None => Lease::Taken,
        }
    }

    fn is_in(&self, span: &Span) -> bool {
        span.from < self.replaced() && self.made <= span.until
    }

    fn release(&self) {
        let content = self.content.write().take();
        drop(content);
    }
}

impl<C: Clone> Reader<C> {
    /// The reader has looked at all lists: it can reach nothing that is made later, in the epoch that begins here.
    pub(crate) fn seen_all(&self) {
        let until = self.epochs.advance() - 1;
        let mut state = self.epochs.state.lock();
        if let Some(span) = state.readers.iter_mut().find(|span| span.reader == self.number) {
            span.until = until;
        }
    }

    /// Whether it registered when the rows of `memory` were elsewhere too.
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
