//! The cache for other programs: a value that was set stays until it is replaced, deleted or
//! evicted.
//!
//! After a crash the [`Store`] alone has slabs that miss the latest sets and deletes: replaced or
//! deleted points would be back. So every set and delete is a numbered change, appended to a file
//! before it takes effect (docs/formats/cache.md, "Changes"), and announced again at open to the
//! slabs that miss it. This needs no sync: the operating system keeps the writes of a killed
//! process. After a crash of the machine a cache that was not closed is not trusted, and starts
//! empty.

mod journal;

use std::sync::Arc;

use firn_env::Disk;
use firn_model::{Budget, CommitSeq, Reservation, Result, TimeRange};
use parking_lot::Mutex;

use self::journal::{Change, Journal, JournalHead};
use crate::background::Wake;
use crate::device::forget_slabs;
use crate::mutant::mutant;
use crate::policy::EvictionPolicy;
use crate::store::{
    CachedRange, Fill, Lookup, OwnerHistory, Point, Store, StoreOptions, StoreStats,
};

/// A longer file is replaced by a new one and a checkpoint: about 40,000 changes.
const JOURNAL_BYTES_MAX: u64 = 4 << 20;

/// A cache whose sets and deletes survive a crash of the process. All methods may be called from
/// several threads.
///
/// Lock order: `journal`, then the locks of the store. `journal` is held from appending a change to
/// applying it, so numbers, the file and visible effects have one order. A get never takes it.
#[derive(Debug)]
pub struct SharedCache {
    store: Store,
    disk: Arc<dyn Disk>,
    folder: String,
    /// Identifies the uninterrupted run of the machine; 0 if unknown.
    machine_run: u64,
    journal: Mutex<Journal>,
}

impl SharedCache {
    /// Opens the cache in `folder` of `disk`. `machine_run` is a number that identifies this run of
    /// the machine, 0 if unknown: then only a cache that was [closed](SharedCache::close) is kept.
    ///
    /// # Errors
    /// `Invalid` for options that contradict each other, `Unavailable` when the disk fails.
    pub fn open(
        disk: Arc<dyn Disk>,
        folder: &str,
        budget: &Budget,
        options: StoreOptions,
        machine_run: u64,
    ) -> Result<SharedCache> {
        let is_trusted = mutant!(options, RunNotCompared);
        let open = |disk, history| Store::open(disk, folder, budget, options, history);
        SharedCache::open_store(disk, folder, machine_run, is_trusted, open)
    }

    /// Opens the cache with another eviction policy than that of the product, for comparisons.
    ///
    /// # Errors
    /// As [`SharedCache::open`].
    pub fn open_with_policy(
        disk: Arc<dyn Disk>,
        folder: &str,
        budget: &Budget,
        options: StoreOptions,
        machine_run: u64,
        policy: Box<dyn EvictionPolicy>,
    ) -> Result<SharedCache> {
        let is_trusted = mutant!(options, RunNotCompared);
        let open =
            |disk, history| Store::open_with_policy(disk, folder, budget, options, history, policy);
        SharedCache::open_store(disk, folder, machine_run, is_trusted, open)
    }

    fn open_store(
        disk: Arc<dyn Disk>,
        folder: &str,
        machine_run: u64,
        is_trusted: bool,
        open: impl FnOnce(Arc<dyn Disk>, OwnerHistory) -> Result<Store>,
    ) -> Result<SharedCache> {
        disk.create_dir(folder)?;
        let known = Journal::read(&*disk, folder).filter(|(head, _)| {
            let is_same_run = head.machine_run == machine_run && machine_run != 0;
            head.is_closed || is_same_run || is_trusted
        });
        let (floor, changes) = match known {
            Some((head, changes)) => (head.floor, changes),
            None => {
                forget_slabs(&*disk, folder)?;
                (CommitSeq(0), Vec::new())
            }
        };
        let through = changes.last().map_or(floor, |change| change.number);
        let recovered = OwnerHistory { replays_after: floor, through };
        let store = open(Arc::clone(&disk), recovered)?;
        for Change { number, key, field, range } in changes {
            store.replay(number, &key, field, range);
        }
        store.heard(through);
        store.checkpoint()?;
        let head = JournalHead { machine_run, floor: through, is_closed: false };
        let journal = Mutex::new(Journal::create(&*disk, folder, head)?);
        Ok(SharedCache { store, disk, folder: folder.to_owned(), machine_run, journal })
    }

    /// Returns the cached part of a range; the number in `ask` is ignored.
    pub fn get(&self, ask: &Lookup<'_>) -> CachedRange {
        self.store.get(&Lookup { number: CommitSeq(u64::MAX), ..*ask })
    }

    /// Like [`SharedCache::get`], with the memory of the points reserved in `held`.
    pub fn get_reserved(&self, ask: &Lookup<'_>, held: &mut Reservation) -> CachedRange {
        self.store.get_reserved(&Lookup { number: CommitSeq(u64::MAX), ..*ask }, held)
    }

    /// Like [`SharedCache::get_reserved`], but `None` if it would wait for the device.
    pub fn get_now(&self, ask: &Lookup<'_>, held: &mut Reservation) -> Option<CachedRange> {
        self.store.get_now(&Lookup { number: CommitSeq(u64::MAX), ..*ask }, held)
    }

    /// Approximate cached bytes of a range.
    pub fn estimate_bytes(&self, ask: &Lookup<'_>) -> u64 {
        self.store.estimate_bytes(ask)
    }

    /// As [`Store::is_scattered`].
    pub fn is_scattered(&self, ask: &Lookup<'_>, parts_max: usize) -> bool {
        self.store.is_scattered(ask, parts_max)
    }

    /// Keeps the points of a range, or its first part if the rest does not fit; replaces older
    /// points of the range. Returns the part that is kept.
    ///
    /// # Errors
    /// `Unavailable` when the change cannot be recorded: nothing is kept, and after a crash older
    /// points of the range may be back. `TooLarge` for a key of about 1 MiB: nothing changes.
    ///
    /// # Panics
    /// If the points are not ordered or not inside the range.
    pub fn set(
        &self,
        key: &[u8],
        field: u64,
        range: TimeRange,
        points: &[Point<'_>],
    ) -> Result<TimeRange> {
        let mut journal = self.journal.lock();
        let number = self.change(&mut journal, key, field, range)?;
        Ok(self.store.set(&Fill { key, field, range, number, note: b"", points }))
    }

    /// Deletes a range of a key. Returns whether the key was in the cache.
    ///
    /// # Errors
    /// `Unavailable` when the change cannot be recorded: the range is deleted, but may be back
    /// after a crash. `TooLarge` for a key of about 1 MiB: nothing changes.
    pub fn delete(&self, key: &[u8], field: u64, range: TimeRange) -> Result<bool> {
        let mut journal = self.journal.lock();
        let was_there = self.store.has_key(key, field);
        let number = self.change(&mut journal, key, field, range)?;
        self.store.heard(number);
        Ok(was_there)
    }

    /// The handle that wakes the background thread when there is a slab to write.
    pub fn wake(&self) -> Arc<Wake> {
        self.store.wake()
    }

    /// Does one unit of background work; returns whether there was any. One thread at a time.
    ///
    /// # Errors
    /// None: when its device keeps failing, the cache turns itself off.
    pub fn work(&self) -> bool {
        let is_long = self.journal.lock().bytes() > JOURNAL_BYTES_MAX;
        // A file that cannot be replaced keeps growing; the next change that fails reports it.
        self.store.work() || (is_long && self.renew(&mut self.journal.lock(), false).is_ok())
    }

    /// Writes everything in memory for the next open. No set or delete may follow. Slabs are not
    /// synced: if the machine loses power right afterwards, some may be torn, which their checksums
    /// reveal.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails: the next open has less.
    pub fn close(&self) -> Result<()> {
        self.store.flush();
        self.renew(&mut self.journal.lock(), true)
    }

    /// Current counters and sizes.
    pub fn stats(&self) -> StoreStats {
        self.store.stats()
    }

    /// Appends a change to the file, then applies it.
    fn change(
        &self,
        journal: &mut Journal,
        key: &[u8],
        field: u64,
        range: TimeRange,
    ) -> Result<CommitSeq> {
        let number = CommitSeq(journal.last.0 + 1);
        let change = Change { number, key: key.to_vec(), field, range }.encode()?;
        let is_lost = mutant!(self.store.options(), ChangeNotNoted);
        let noted = if is_lost { Ok(()) } else { journal.append(&change) };
        journal.last = number;
        self.store.trim(key, field, range);
        if let Err(error) = noted {
            // A checkpoint with the change is as good; a full disk has room again after evictions.
            self.store.heard(number);
            self.renew(journal, false).map_err(|_| error)?;
        }
        Ok(number)
    }

    /// Writes a checkpoint and starts a new file of changes.
    fn renew(&self, journal: &mut Journal, is_closed: bool) -> Result<()> {
        let floor = self.store.checkpoint()?;
        let head = JournalHead { machine_run: self.machine_run, floor, is_closed };
        *journal = Journal::create(&*self.disk, &self.folder, head)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
