//! Upkeep of the index: many files become few, and series without samples are removed.
//!
//! A series may be removed when no table and no memory contains a sample of it, because retention
//! or an applied delete dropped them all. Directories of tables list the members of every group.
//!
//! A writer may still hold a reference, so a removal has three steps:
//!
//! 1. The index is rewritten without the series.
//! 2. They are announced as *leaving*: a write to one of them records a disturbance.
//! 3. With no write in flight, the manifest names the new file and references get a new generation,
//!    if there was no disturbance and a second search finds no sample.
//!
//! So no acknowledged row loses its labels.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

use firn_env::Clock;
use firn_head::HeadReader;
use firn_index::{IndexStats, Liveness, MergeJob, WRITE_BUFFER_BYTES};
use firn_model::{
    Cell, Error, ErrorKind, GroupId, Mutex, Pool, Reservation, Result, RowBatch, RwLock, SeriesRef,
    Slot, TimeRange,
};
use firn_tree::PresenceReader;

use crate::edit::{Edit, Room};
use crate::ledger::Ledger;
use crate::lock;
use crate::pressure::Pressure;
use crate::rooms::Rooms;
use crate::stats::Counter;

// A removal reads all files and looks for samples of all series: seconds for millions of series.
const REMOVAL_INTERVAL_MS: i64 = 60 * 60_000;
const REMOVAL_RETRY_MS: i64 = 5 * 60_000;
// Pause of upkeep after damage or a failed write.
const RETRY_MS: i64 = 10 * 60_000;
// Divisor of the limit: a merge of index files takes at most 1/4 of it. A larger one would be
// refused again and again.
const MERGE_FRACTION: u64 = 4;
// Pause of upkeep that only lacked memory: many files slow down every query.
const BUSY_RETRY_MS: i64 = 10_000;

/// Series that leave the index if the removal in progress succeeds.
#[derive(Debug, Default)]
pub(crate) struct LeavingSeries {
    series: HashSet<SeriesRef>,
    /// Whether one of them was written.
    is_disturbed: AtomicBool,
    /// The index part whose commit failed: after a crash the series may be removed. They are not
    /// written until a new manifest settles it.
    uncertain: Option<Vec<u8>>,
}

/// The index's memory, the series that are leaving it, and when upkeep is due.
///
/// Lock order: `leaving` before the flush lane and the manifest's lock. `memory` comes after the
/// flush lane; only the locks of the index, of the change sink and those that reclaiming memory
/// takes follow it.
#[derive(Debug)]
pub(crate) struct IndexUpkeep {
    /// Reservation of the index's memory. Held while series are defined.
    pub(crate) memory: Mutex<Reservation>,
    /// The part of it that a running seal uses.
    sealing_bytes: AtomicU64,
    /// Read by every write until its rows are visible.
    pub(crate) leaving: RwLock<LeavingSeries>,
    /// Whether data was dropped since the last removal.
    is_data_gone: AtomicBool,
    removal_at_ms: AtomicI64,
    retry_at_ms: AtomicI64,
    removed_count: Counter,
}

/// The work that a call of [`IndexUpkeep::tend`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpkeepWork {
    /// Index files were merged.
    Merged,
    /// Series without samples were removed.
    SeriesRemoved,
}

impl LeavingSeries {
    /// Records a batch that is about to be written.
    ///
    /// # Errors
    /// `Unavailable` if it is unknown whether one of its series was removed.
    pub(crate) fn note(&self, batch: &RowBatch) -> Result<()> {
        if self.series.is_empty() {
            return Ok(());
        }
        let is_leaving =
            |cell: &Cell| self.series.contains(&SeriesRef { group: cell.group, slot: cell.slot });
        if batch.cells().iter().any(is_leaving) {
            if self.uncertain.is_some() {
                return Err(Error::unavailable(
                    "write refused: removing series from the index failed with an unknown \
                     outcome; retry",
                ));
            }
            self.is_disturbed.store(true, Relaxed);
        }
        Ok(())
    }
}

/// The outcome of a removal.
enum RemovalOutcome {
    Removed,
    /// Every series has samples.
    NothingToRemove,
    /// A leaving series was written.
    Disturbed,
}

/// Locates samples in a frozen view of head and tree.
struct Presence<'a> {
    head: RefCell<HeadReader<'a>>,
    tables: RefCell<PresenceReader<'a>>,
    forgets_memory: bool,
}

impl Presence<'_> {
    /// The members in `slots` without a sample. A member counts as present if it cannot be decided,
    /// or if a delete that is not applied yet hides its samples.
    fn absent(&self, group: GroupId, slots: &[u32]) -> Vec<Slot> {
        let all = TimeRange::ALL;
        let mut absent: Vec<Slot> = slots.iter().map(|&slot| Slot(slot)).collect();
        let in_tables = self.tables.borrow_mut().take_present(group, &[], &mut absent);
        let mut is_decided = in_tables.unwrap_or(false);
        if !self.forgets_memory {
            is_decided &= self.head.borrow_mut().take_present(group, all, &mut absent).is_ok();
        }
        if !is_decided {
            absent.clear();
        }
        absent
    }
}

impl Liveness for Presence<'_> {
    fn retain(&self, group: GroupId, slots: &mut Vec<u32>) {
        let absent = self.absent(group, slots);
        if !absent.is_empty() {
            slots.retain(|&slot| absent.binary_search(&Slot(slot)).is_err());
        }
    }
}

impl IndexUpkeep {
    /// `memory` is reserved for the index as it was opened.
    pub(crate) fn new(memory: Reservation, clock: &dyn Clock) -> IndexUpkeep {
        IndexUpkeep {
            memory: Mutex::new(&lock::INDEX_MEMORY, memory),
            sealing_bytes: AtomicU64::new(0),
            leaving: RwLock::new(&lock::LEAVING, LeavingSeries::default()),
            // Data may have been dropped before the start. There is no hurry.
            is_data_gone: AtomicBool::new(true),
            removal_at_ms: AtomicI64::new(clock.now_ms().saturating_add(REMOVAL_INTERVAL_MS)),
            retry_at_ms: AtomicI64::new(i64::MIN),
            removed_count: Counter::default(),
        }
    }

    /// Series removed since the start.
    pub(crate) fn removed_count(&self) -> u64 {
        self.removed_count.get()
    }

    /// Records that tables have lost data, so that series may have to be removed.
    pub(crate) fn note_data_gone(&self) {
        self.is_data_gone.store(true, Relaxed);
    }

    /// Whether series may have to be removed.
    pub(crate) fn is_data_gone(&self) -> bool {
        self.is_data_gone.load(Relaxed)
    }

    /// Makes the removal of series without samples due now.
    pub(crate) fn hasten_removal(&self, clock: &dyn Clock) {
        self.removal_at_ms.store(clock.now_ms(), Relaxed);
    }

    /// Merges index files if there are many; else removes series, now and then after data was
    /// dropped.
    ///
    /// # Errors
    /// Those of both tiers; upkeep is then paused for a while.
    pub(crate) fn tend(
        &self,
        rooms: &Rooms,
        ledger: &Ledger,
        pressure: &Pressure,
    ) -> Result<Option<UpkeepWork>> {
        self.end_uncertainty(rooms, ledger)?;
        let now = rooms.env.clock.now_ms();
        if now < self.retry_at_ms.load(Relaxed) {
            return Ok(None);
        }
        let done = match rooms.index.plan_merge(rooms.options.memory_bytes_max / MERGE_FRACTION) {
            Some(job) => {
                let job = job.canceled_by(rooms.wakeup.closing());
                self.merge(rooms, ledger, pressure, &job).map(|()| Some(UpkeepWork::Merged))
            }
            None => self.remove_series(rooms, ledger, pressure, now),
        };
        done.inspect_err(|e| {
            let is_busy = matches!(e.kind(), ErrorKind::Busy { .. });
            let pause_ms = if is_busy { BUSY_RETRY_MS } else { RETRY_MS };
            self.retry_at_ms.store(now.saturating_add(pause_ms), Relaxed);
        })
    }

    fn merge(
        &self,
        rooms: &Rooms,
        ledger: &Ledger,
        pressure: &Pressure,
        job: &MergeJob,
    ) -> Result<()> {
        let _memory = pressure.reserve(rooms, Pool::Jobs, job.memory_bytes())?;
        let part = job.run(&*rooms.env.disk)?;
        if mutant!(rooms, IndexFilesDroppedEarly) {
            for (path, _) in rooms.index.segment_files() {
                rooms.env.disk.remove(&path)?;
            }
        }
        self.apply(rooms, ledger, part)
    }

    fn remove_series(
        &self,
        rooms: &Rooms,
        ledger: &Ledger,
        pressure: &Pressure,
        now: i64,
    ) -> Result<Option<UpkeepWork>> {
        if !self.is_data_gone.load(Relaxed) || now < self.removal_at_ms.load(Relaxed) {
            return Ok(None);
        }
        let Some(job) = rooms.index.plan_removal() else { return Ok(None) };
        let job = job.canceled_by(rooms.wakeup.closing());
        self.removal_at_ms.store(now.saturating_add(REMOVAL_INTERVAL_MS), Relaxed);
        self.is_data_gone.store(false, Relaxed);
        let outcome = self.run_removal(rooms, ledger, pressure, &job);
        if !matches!(outcome, Ok(RemovalOutcome::Removed | RemovalOutcome::NothingToRemove)) {
            self.is_data_gone.store(true, Relaxed);
        }
        if outcome.is_err() {
            // Without memory, for example.
            self.removal_at_ms.store(now.saturating_add(REMOVAL_RETRY_MS), Relaxed);
        }
        Ok(matches!(outcome?, RemovalOutcome::Removed).then_some(UpkeepWork::SeriesRemoved))
    }

    fn run_removal(
        &self,
        rooms: &Rooms,
        ledger: &Ledger,
        pressure: &Pressure,
        job: &MergeJob,
    ) -> Result<RemovalOutcome> {
        let _memory = pressure.reserve(rooms, Pool::Jobs, job.memory_bytes())?;
        let removal = with_presence(rooms, |presence| job.run_removal(&*rooms.env.disk, presence))?;
        let Some(removal) = removal else { return Ok(RemovalOutcome::NothingToRemove) };
        let series = removal.dropped.iter().flat_map(|(group, slots)| {
            slots.iter().map(|&slot| SeriesRef { group: *group, slot: Slot(slot) })
        });
        let leaving = LeavingSeries { series: series.collect(), ..LeavingSeries::default() };
        let count = leaving.series.len() as u64;
        probe!(rooms, SeriesLeave);
        if mutant!(rooms, SeriesRemovedUnchecked) {
            self.apply(rooms, ledger, removal.part)?;
            return Ok(RemovalOutcome::Removed);
        }
        // Waits for writes in flight: the search below finds their rows.
        *self.leaving.write() = leaving;
        let is_back = is_any_present(rooms, &removal.dropped);
        probe!(rooms, SeriesLeave);
        let mut leaving = self.leaving.write();
        let is_disturbed = leaving.is_disturbed.load(Relaxed);
        let leaving_series = std::mem::take(&mut *leaving).series;
        if is_disturbed || !matches!(is_back, Ok(false)) {
            rooms.index.abandon(&removal.part)?;
            return is_back.map(|_| RemovalOutcome::Disturbed);
        }
        // Writes wait until references have a new generation.
        if let Err(e) = self.apply(rooms, ledger, removal.part.clone()) {
            *leaving = LeavingSeries {
                series: leaving_series,
                uncertain: Some(removal.part),
                ..LeavingSeries::default()
            };
            return Err(e);
        }
        self.removed_count.add(count);
        Ok(RemovalOutcome::Removed)
    }

    /// After a removal whose commit failed: writes a new manifest in which the series exist.
    fn end_uncertainty(&self, rooms: &Rooms, ledger: &Ledger) -> Result<()> {
        if self.leaving.read().uncertain.is_none() {
            return Ok(());
        }
        ledger.commit(rooms, Edit::default(), || Ok(()))?;
        match std::mem::take(&mut *self.leaving.write()).uncertain {
            Some(part) => rooms.index.abandon(&part),
            None => Ok(()),
        }
    }

    /// Commits a part of the index and applies it.
    ///
    /// # Errors
    /// Those of [`Ledger::commit`].
    pub(crate) fn apply(&self, rooms: &Rooms, ledger: &Ledger, part: Vec<u8>) -> Result<()> {
        let edit = Edit::default().with(Room::Index, part.clone());
        ledger.commit(rooms, edit, || rooms.index.apply(&part))?;
        self.hold_memory(rooms);
        Ok(())
    }

    /// Writes the series that no index file contains to a file that nothing refers to yet. Returns
    /// its manifest part; `None` if there are none.
    pub(crate) fn write_new_series(&self, rooms: &Rooms) -> Result<Option<Vec<u8>>> {
        let Some(seal) = rooms.index.plan_seal().filter(|_| !mutant!(rooms, IndexNotSealed)) else {
            return Ok(None);
        };
        // The buffer is taken without a limit, because the seal frees memory. The rest was reserved
        // when the series were defined.
        let mut buffer = rooms.budget.empty(Pool::Jobs);
        buffer.take(WRITE_BUFFER_BYTES);
        self.sealing_bytes.store(rooms.index.stats().seal_bytes, Relaxed);
        self.hold_memory(rooms);
        let written = seal.run(&*rooms.env.disk);
        self.sealing_bytes.store(0, Relaxed);
        written.map(Some)
    }

    /// Adjusts the reservation to the index's size: it shrinks when series move to a file and grows
    /// with remembered lookups.
    pub(crate) fn hold_memory(&self, rooms: &Rooms) {
        self.settle(rooms, &mut self.memory.lock());
    }

    /// As [`IndexUpkeep::hold_memory`] for the reservation of [`IndexUpkeep::memory`]. It covers
    /// the memory that writing the new series to a file will take: a seal is never refused.
    pub(crate) fn settle(&self, rooms: &Rooms, memory: &mut Reservation) {
        let index = rooms.index.stats();
        hold(&index, memory);
        let standby = index.seal_bytes.saturating_sub(self.sealing_bytes.load(Relaxed));
        rooms.budget.set_standby(standby);
    }
}

/// Sets `memory` to that of the index and of writing its new series to a file.
pub(crate) fn hold(index: &IndexStats, memory: &mut Reservation) {
    memory.take_exactly(index.heap_bytes + index.seal_bytes);
}

/// Whether one of `dropped` has a sample now.
fn is_any_present(rooms: &Rooms, dropped: &[(GroupId, Vec<u32>)]) -> Result<bool> {
    with_presence(rooms, |presence| {
        let is_back = |(group, slots): &(GroupId, Vec<u32>)| {
            presence.absent(*group, slots).len() < slots.len()
        };
        Ok(dropped.iter().any(is_back))
    })
}

/// Calls `f` with a frozen view of head and tree.
///
/// # Errors
/// Those of the slow tier, without which presence is unknown, and those of `f`.
fn with_presence<T>(rooms: &Rooms, f: impl FnOnce(&Presence<'_>) -> Result<T>) -> Result<T> {
    let (head, version) = {
        let _view = rooms.view.read();
        (rooms.head.snapshot(), rooms.tree.version())
    };
    let _directories = version.load_directories(TimeRange::ALL, &|_, _| true, &rooms.budget)?;
    f(&Presence {
        head: RefCell::new(head.reader(TimeRange::ALL)),
        tables: RefCell::new(version.presence(TimeRange::ALL, &rooms.budget)),
        forgets_memory: mutant!(rooms, MembersOfMemoryRemoved),
    })
}
