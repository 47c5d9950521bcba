//! Upkeep of the index: many files become few, and series whose data has gone leave it.
//!
//! A series may leave when no table and no memory has a sample of it: retention took them, or a delete that
//! was applied. Tables are asked by their directories, which know the members of every group. A writer may still hold its
//! reference, so leaving has three steps. First the index is written anew without the series. Then they are announced as *leaving*: who writes one from now on says so. Then,
//! with no write on its way, and if nobody wrote one and nothing is found on a second look, the manifest
//! names the new file and references are of another generation. So no acknowledged row loses its labels.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use firn_head::HeadReader;
use firn_index::{Liveness, MergeJob};
use firn_model::{Cell, Error, GroupId, Pool, Result, RowBatch, SeriesRef, Slot, TimeRange};
use firn_tree::Version;

use crate::manifest::{Edit, Room};
use crate::planted::Planted;
use crate::{Engine, Moment, Step};

// All files are read and all series looked for: seconds for millions of series.
const REMOVAL_INTERVAL_MS: i64 = 60 * 60_000;
// A damaged or unwritable file is tried again after this long.
const RETRY_MS: i64 = 10 * 60_000;

/// Series that leave the index when the next step succeeds.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    series: HashSet<SeriesRef>,
    /// One of them was written.
    is_disturbed: AtomicBool,
    /// The part whose commit failed: after a crash they may have left. Until the manifest says otherwise
    /// nobody may write them.
    uncertain: Option<Vec<u8>>,
}

/// When series may leave a database that was opened at `now_ms`.
pub(crate) fn first_removal_ms(now_ms: i64) -> i64 {
    now_ms.saturating_add(REMOVAL_INTERVAL_MS)
}

impl Leaving {
    /// Tells of a batch that is about to be written.
    ///
    /// # Errors
    /// `Unavailable` if nobody knows whether one of its series has left.
    pub(crate) fn note(&self, batch: &RowBatch) -> Result<()> {
        if self.series.is_empty() {
            return Ok(());
        }
        let is_leaving =
            |cell: &Cell| self.series.contains(&SeriesRef { group: cell.group, slot: cell.slot });
        if batch.cells().iter().any(is_leaving) {
            if self.uncertain.is_some() {
                return Err(Error::unavailable(
                    "the manifest could not be written when series were about to leave the index; retry",
                ));
            }
            self.is_disturbed.store(true, Relaxed);
        }
        Ok(())
    }
}

/// What became of a removal.
enum Outcome {
    Removed,
    /// Every series has samples.
    Nothing,
    /// One that was about to leave was written.
    Disturbed,
}

/// Where samples are, at one moment.
struct Presence<'a> {
    head: RefCell<HeadReader<'a>>,
    version: &'a Version,
    forgets_memory: bool,
}

impl Presence<'_> {
    /// What of `slots` has no sample. What cannot be told, and what a delete hides that was not applied yet, stays.
    fn absent(&self, group: GroupId, slots: &[u32]) -> Vec<Slot> {
        let all = TimeRange::ALL;
        let mut absent: Vec<Slot> = slots.iter().map(|&slot| Slot(slot)).collect();
        let mut is_told = self.version.take_present(group, all, &[], &mut absent);
        if !self.forgets_memory {
            is_told &= self.head.borrow_mut().take_present(group, all, &mut absent).is_ok();
        }
        if !is_told {
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

impl Engine {
    /// Makes one index file of several, if there are many; otherwise, from time to time after data has
    /// gone, lets series leave.
    pub(crate) fn tend_index(&self) -> Result<Option<Step>> {
        self.end_uncertainty()?;
        let now = self.env.clock.now_ms();
        if now < self.index_retry_at_ms.load(Relaxed) {
            return Ok(None);
        }
        let done = match self.index.plan_merge() {
            Some(job) => self.merge_index(&job).map(|()| Some(Step::Merge)),
            None => self.remove_series(now),
        };
        done.inspect_err(|_| {
            self.index_retry_at_ms.store(now.saturating_add(RETRY_MS), Relaxed);
        })
    }

    fn merge_index(&self, job: &MergeJob) -> Result<()> {
        let _memory = self.reserve(Pool::Jobs, job.memory_bytes())?;
        let part = job.run(&*self.env.disk)?;
        if self.planted(Planted::IndexFilesDroppedEarly) {
            for (path, _) in self.index.segment_files() {
                self.env.disk.remove(&path)?;
            }
        }
        self.apply_index(part)
    }

    /// Data has left tables: series may leave the index.
    pub(crate) fn note_data_gone(&self) {
        self.data_gone.store(true, Relaxed);
    }

    fn remove_series(&self, now: i64) -> Result<Option<Step>> {
        if !self.data_gone.load(Relaxed) || now < self.removal_at_ms.load(Relaxed) {
            return Ok(None);
        }
        let Some(job) = self.index.plan_removal() else { return Ok(None) };
        self.removal_at_ms.store(now.saturating_add(REMOVAL_INTERVAL_MS), Relaxed);
        self.data_gone.store(false, Relaxed);
        let outcome = self.run_removal(&job);
        if !matches!(outcome, Ok(Outcome::Removed | Outcome::Nothing)) {
            self.data_gone.store(true, Relaxed);
        }
        Ok(matches!(outcome?, Outcome::Removed).then_some(Step::RemoveSeries))
    }

    fn run_removal(&self, job: &MergeJob) -> Result<Outcome> {
        let _memory = self.reserve(Pool::Jobs, job.memory_bytes())?;
        let removal = self.with_presence(|presence| job.run_removal(&*self.env.disk, presence))?;
        let Some(removal) = removal else { return Ok(Outcome::Nothing) };
        let series = removal.dropped.iter().flat_map(|(group, slots)| {
            slots.iter().map(|&slot| SeriesRef { group: *group, slot: Slot(slot) })
        });
        let leaving = Leaving { series: series.collect(), ..Leaving::default() };
        let count = leaving.series.len() as u64;
        self.probe(Moment::SeriesLeave);
        if self.planted(Planted::SeriesRemovedUnchecked) {
            self.apply_index(removal.part)?;
            return Ok(Outcome::Removed);
        }
        // Waits for the writes that are on their way: what they wrote is found below.
        *self.leaving.write() = leaving;
        let found = self.is_any_back(&removal.dropped);
        self.probe(Moment::SeriesLeave);
        let mut leaving = self.leaving.write();
        let is_disturbed = leaving.is_disturbed.load(Relaxed);
        let leaving_series = std::mem::take(&mut *leaving).series;
        if is_disturbed || !matches!(found, Ok(false)) {
            self.index.abandon(&removal.part)?;
            return found.map(|_| Outcome::Disturbed);
        }
        // Nobody writes until the references are of another generation.
        if let Err(e) = self.apply_index(removal.part.clone()) {
            *leaving = Leaving {
                series: leaving_series,
                uncertain: Some(removal.part),
                ..Leaving::default()
            };
            return Err(e);
        }
        self.counters.series_removed.add(count);
        Ok(Outcome::Removed)
    }

    /// After a removal whose commit failed: a new manifest says that the series are there.
    fn end_uncertainty(&self) -> Result<()> {
        if self.leaving.read().uncertain.is_none() {
            return Ok(());
        }
        self.commit_edit(Edit::default(), || Ok(()))?;
        match std::mem::take(&mut *self.leaving.write()).uncertain {
            Some(part) => self.index.abandon(&part),
            None => Ok(()),
        }
    }

    /// Whether one of `dropped` has a sample now.
    fn is_any_back(&self, dropped: &[(GroupId, Vec<u32>)]) -> Result<bool> {
        self.with_presence(|presence| {
            let is_back = |(group, slots): &(GroupId, Vec<u32>)| {
                presence.absent(*group, slots).len() < slots.len()
            };
            Ok(dropped.iter().any(is_back))
        })
    }

    /// Asks where samples are now.
    ///
    /// # Errors
    /// Of the slow tier: then nobody knows what is there. Those of `ask`.
    fn with_presence<T>(&self, ask: impl FnOnce(&Presence<'_>) -> Result<T>) -> Result<T> {
        let (head, version) = {
            let _view = self.view.read();
            (self.head.snapshot(), self.tree.version())
        };
        let _directories = version.load_directories(TimeRange::ALL, &|_, _| true, &self.budget)?;
        ask(&Presence {
            head: RefCell::new(head.reader(TimeRange::ALL)),
            version: &version,
            forgets_memory: self.planted(Planted::MembersOfMemoryRemoved),
        })
    }

    pub(crate) fn apply_index(&self, part: Vec<u8>) -> Result<()> {
        let edit = Edit::default().with(Room::Index, part.clone());
        self.commit_edit(edit, || self.index.apply(&part))?;
        self.hold_index_memory();
        Ok(())
    }

    /// What the index holds is reserved: it gets smaller when series go to a file, and remembers what writers ask it for.
    pub(crate) fn hold_index_memory(&self) {
        let mut memory = self.index_memory.lock();
        let heap_bytes = self.index.stats().heap_bytes;
        let held_bytes = memory.bytes();
        memory.take(heap_bytes.saturating_sub(held_bytes));
        memory.shrink(held_bytes.saturating_sub(heap_bytes));
    }
}
