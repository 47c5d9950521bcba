//! The cache for other programs: what they set is there until they set or delete it again, or until room is wanted.
//!
//! The [`Store`] alone forgets in a crash what was said since a slab was written: what was replaced or deleted meanwhile
//! would be back. So every set and delete is a change with a number, noted in a file before it is seen
//! (docs/formats/cache.md, "Changes"), and told again at open to the slabs that do not know of it. Nothing is synced
//! for that: a process that is killed leaves its writes to the system. When the machine itself went down, nothing
//! that was not closed is trusted, and the cache begins empty.

mod journal;

use std::sync::Arc;

use firn_env::Disk;
use firn_model::{Budget, CommitSeq, Result, TimeRange};
use parking_lot::Mutex;

use self::journal::{Change, Journal, JournalHead};
use crate::background::Wake;
use crate::device::forget_slabs;
use crate::planted::Planted;
use crate::store::{
    CachedRange, Fill, Lookup, OwnerHistory, Point, Store, StoreOptions, StoreStats,
};

/// Longer ones are made anew, from a checkpoint: about 40,000 changes.
const JOURNAL_BYTES_MAX: u64 = 4 << 20;

/// A cache whose sets and deletes hold over a crash of the process. Share it; every call may come from any thread.
///
/// Lock order: `journal`, then those of the store. `journal` is held while a change is noted and made, so that the
/// order of numbers is that in the file and that of what is seen; a get never takes it.
#[derive(Debug)]
pub struct SharedCache {
    store: Store,
    disk: Arc<dyn Disk>,
    folder: String,
    /// Whether the machine ran without a break since; 0 if that is not known.
    machine_run: u64,
    journal: Mutex<Journal>,
    planted: Option<Planted>,
}

impl SharedCache {
    /// Opens the cache in `folder` of `disk`, with what is left of it. `machine_run` is a number that this run of
    /// the machine has and no other, 0 if there is none: then only what was [closed](SharedCache::close) is kept.
    ///
    /// # Errors
    /// `Invalid` for options that make no sense, `Unavailable` when the disk fails.
    pub fn open(
        disk: Arc<dyn Disk>,
        folder: &str,
        budget: &Budget,
        options: StoreOptions,
        machine_run: u64,
    ) -> Result<SharedCache> {
        disk.create_dir(folder)?;
        let known = Journal::read(&*disk, folder).filter(|(head, _)| {
            let is_same_run = head.machine_run == machine_run && machine_run != 0;
            head.is_closed || is_same_run || options.planted == Some(Planted::RunNotCompared)
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
        let planted = options.planted;
        let store = Store::open(Arc::clone(&disk), folder, budget, options, recovered)?;
        for Change { number, key, field, range } in changes {
            store.replay(number, &key, field, range);
        }
        store.heard(through);
        store.checkpoint()?;
        let head = JournalHead { machine_run, floor: through, is_closed: false };
        let journal = Mutex::new(Journal::create(&*disk, folder, head)?);
        Ok(SharedCache { store, disk, folder: folder.to_owned(), machine_run, journal, planted })
    }

    /// What of a range is there; the number in `ask` does not matter.
    pub fn get(&self, ask: &Lookup<'_>) -> CachedRange {
        self.store.get(&Lookup { number: CommitSeq(u64::MAX), ..*ask })
    }

    /// As [`SharedCache::get`], if nobody has to wait for the device; `None` if not.
    pub fn get_now(&self, ask: &Lookup<'_>) -> Option<CachedRange> {
        self.store.get_now(&Lookup { number: CommitSeq(u64::MAX), ..*ask })
    }

    /// What is there of a range in bytes, about.
    pub fn estimate_bytes(&self, ask: &Lookup<'_>) -> u64 {
        self.store.estimate_bytes(ask)
    }

    /// Keeps the points of a range, or as many of the first of them as there is room for, in place of what was
    /// known of it. Returns the part that is kept.
    ///
    /// # Errors
    /// `Unavailable` when the change cannot be noted: nothing is kept, and a crash may bring back what was known.
    ///
    /// # Panics
    /// If the points are not in order or not inside the range.
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

    /// Forgets a range of a key. Returns whether anything of the key was there.
    ///
    /// # Errors
    /// `Unavailable` when the change cannot be noted: it is forgotten, but a crash may bring it back.
    pub fn delete(&self, key: &[u8], field: u64, range: TimeRange) -> Result<bool> {
        let mut journal = self.journal.lock();
        let was_there = self.store.has_key(key, field);
        let number = self.change(&mut journal, key, field, range)?;
        self.store.heard(number);
        Ok(was_there)
    }

    /// Whom a slab wakes that is to be written.
    pub fn wake(&self) -> Arc<Wake> {
        self.store.wake()
    }

    /// Does a piece of background work; returns whether there was any. One thread at a time.
    ///
    /// # Errors
    /// None: a device that fails is given up in the end, and the cache is then off.
    pub fn work(&self) -> bool {
        let is_long = self.journal.lock().bytes() > JOURNAL_BYTES_MAX;
        // One that cannot be made anew grows on; the next change that cannot be noted says so.
        self.store.work() || (is_long && self.renew(&mut self.journal.lock(), false).is_ok())
    }

    /// Writes all that is in memory, so that the next open finds it. Nothing may be set or deleted after it. Slabs are not
    /// synced: of a machine that loses power right after it some may be gone, which their checksums say.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails: the next open finds less then.
    pub fn close(&self) -> Result<()> {
        self.store.flush();
        self.renew(&mut self.journal.lock(), true)
    }

    /// Numbers at this moment.
    pub fn stats(&self) -> StoreStats {
        self.store.stats()
    }

    /// Notes a change, then makes it.
    fn change(
        &self,
        journal: &mut Journal,
        key: &[u8],
        field: u64,
        range: TimeRange,
    ) -> Result<CommitSeq> {
        let number = CommitSeq(journal.last.0 + 1);
        let is_forgotten = self.planted == Some(Planted::ChangeNotNoted);
        let noted = match is_forgotten {
            true => Ok(()),
            false => journal.append(&Change { number, key: key.to_vec(), field, range }),
        };
        journal.last = number;
        self.store.trim(key, field, range);
        if let Err(error) = noted {
            // A checkpoint with the change is as good; one full disk ends with the first slabs that go.
            self.store.heard(number);
            self.renew(journal, false).map_err(|_| error)?;
        }
        Ok(number)
    }

    /// Makes what is known durable and begins a new file of changes.
    fn renew(&self, journal: &mut Journal, is_closed: bool) -> Result<()> {
        let floor = self.store.checkpoint()?;
        let head = JournalHead { machine_run: self.machine_run, floor, is_closed };
        *journal = Journal::create(&*self.disk, &self.folder, head)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
