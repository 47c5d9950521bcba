//! The list of segments at one moment.
//!
//! ```text
//! sealed (files, oldest first)  <-  frozen (in memory, being written to a file)  <-  active
//! ```
//!
//! A label set is in exactly one of them. Only the active segment takes new series.

use std::sync::{Arc, Weak};

use firn_model::{GroupId, Labels, Result, RwLock, SeriesRef};

use crate::catalog::SegmentInfo;
use crate::memory::index::{GrowingGroup, MemoryIndex, Watermark};
use crate::memory::lookup::Lookup;
use crate::sealed::{HashedLabels, PartHint, Sealed};

/// A segment in memory.
#[derive(Debug)]
pub(crate) struct MemorySegment {
    /// Increases from segment to segment.
    pub(crate) number: u64,
    /// Queries hold the read lock for pieces of bounded size. Only a seal holds it over I/O: the
    /// memory of a frozen segment does not change any more.
    pub(crate) memory: RwLock<MemoryIndex>,
}

/// A segment in a file.
#[derive(Debug)]
pub(crate) struct FileSegment {
    pub(crate) info: SegmentInfo,
    pub(crate) sealed: Sealed,
    /// The number of the newest seal that it contains.
    pub(crate) born: u64,
}

/// All segments. Replaced as a whole: a holder keeps seeing its version.
#[derive(Clone, Debug)]
pub(crate) struct IndexVersion {
    /// Oldest first.
    pub(crate) sealed: Vec<Arc<FileSegment>>,
    /// Oldest first. Usually one while a seal runs, otherwise none. Each failed seal leaves one to
    /// the next seal.
    pub(crate) frozen: Vec<Arc<MemorySegment>>,
    pub(crate) active: Arc<MemorySegment>,
}

/// Segments that are in no version any more. Views may still hold them.
#[derive(Debug, Default)]
pub(crate) struct RetiredSegments {
    layers: Vec<Weak<MemorySegment>>,
    files: Vec<Weak<FileSegment>>,
}

/// Finds label sets in the segments before the active one. Remembers the part of the last hit.
#[derive(Debug)]
pub(crate) struct Finder<'t, 'l> {
    version: &'t IndexVersion,
    labels: HashedLabels<'l>,
    /// The index of a file in the list, and a hint to a part in it.
    last: Option<(usize, PartHint<'t, 'l>)>,
}

// Retiring a smaller group is not worth it: its dead slots cost little.
const SLOTS_TO_RETIRE_MIN: u32 = 64;

impl MemorySegment {
    fn contains(&self, series: SeriesRef) -> bool {
        self.memory.read().position(series).is_some()
    }
}

impl RetiredSegments {
    /// Adds the segments of `old` that `next` does not have.
    pub(crate) fn add(&mut self, old: &IndexVersion, next: &IndexVersion) {
        let is_gone = |layer: &&Arc<MemorySegment>| {
            next.frozen.iter().chain([&next.active]).all(|kept| !Arc::ptr_eq(kept, layer))
        };
        self.layers.extend(old.frozen.iter().filter(is_gone).map(Arc::downgrade));
        let is_gone =
            |file: &&Arc<FileSegment>| next.sealed.iter().all(|kept| !Arc::ptr_eq(kept, file));
        self.files.extend(old.sealed.iter().filter(is_gone).map(Arc::downgrade));
    }

    /// The memory of those that are still held. No writer locks them.
    pub(crate) fn heap_bytes(&mut self) -> u64 {
        self.layers.retain(|layer| layer.strong_count() > 0);
        self.files.retain(|file| file.strong_count() > 0);
        let layers = self.layers.iter().filter_map(Weak::upgrade);
        let files = self.files.iter().filter_map(Weak::upgrade);
        layers.map(|layer| layer.memory.read().heap_bytes() as u64).sum::<u64>()
            + files.map(|file| file.sealed.heap_bytes()).sum::<u64>()
    }
}

impl IndexVersion {
    /// The segments in memory, newest first, each with its visible part. `mark` is the watermark of
    /// the active one.
    pub(crate) fn layers(
        &self,
        mark: Watermark,
    ) -> impl Iterator<Item = (&MemorySegment, Watermark)> {
        let frozen = self.frozen.iter().rev();
        let whole = |layer: &MemorySegment| layer.memory.read().watermark();
        std::iter::once((&*self.active, mark))
            .chain(frozen.map(move |layer| (&**layer, whole(layer))))
            .filter(|layer| layer.1.series > 0)
    }

    /// A finder for label sets in the segments before the active one; fastest if the members of a
    /// group are adjacent.
    pub(crate) fn finder<'l>(&self) -> Finder<'_, 'l> {
        Finder { version: self, labels: HashedLabels::default(), last: None }
    }

    /// Whether a segment in memory contains a reference.
    pub(crate) fn is_in_memory(&self, series: SeriesRef) -> bool {
        self.active.contains(series) || self.is_frozen(series)
    }

    /// Whether a segment that waits for its file contains a reference.
    pub(crate) fn is_frozen(&self, series: SeriesRef) -> bool {
        self.frozen.iter().any(|layer| layer.contains(series))
    }

    /// Whether a file contains a reference.
    ///
    /// # Errors
    /// `Corrupt` for a damaged segment that may contain it.
    pub(crate) fn is_sealed(&self, series: SeriesRef) -> Result<bool> {
        for segment in self.sealed.iter().rev() {
            if segment.sealed.contains(series)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The group of these identity labels that began before the active segment and takes more
    /// members. Full groups and groups with more than half of their slots dead take none.
    ///
    /// # Errors
    /// `Corrupt` for a damaged segment.
    pub(crate) fn growing(
        &self,
        identity: &Labels,
        slots_max: u32,
    ) -> Result<Option<GrowingGroup>> {
        let hashed = HashedLabels::new(identity);
        // Per segment the newest group of these labels, with its number of live members there.
        let mut found: Vec<(GroupId, u32)> = Vec::new();
        for layer in &self.frozen {
            let memory = layer.memory.read();
            found.extend(memory.growing(identity).map(|growing| {
                let parts = memory.parts.of_group(growing.group);
                let count = parts.map(|part_no| memory.parts.sets(part_no).len() as u32).sum();
                (growing.group, count)
            }));
        }
        for segment in &self.sealed {
            let open = segment.sealed.find_open_group(&hashed)?;
            found.extend(open.map(|open| (open.group, open.live_count)));
        }
        // All of them are in one shard, and ids of a shard increase.
        let Some(group) = found.iter().map(|found| found.0).max() else { return Ok(None) };
        let live: u32 = found.iter().filter(|found| found.0 == group).map(|found| found.1).sum();
        let next_slot = self.next_slot(group)?;
        let is_retired = next_slot >= SLOTS_TO_RETIRE_MIN && live < next_slot / 2;
        let growing = GrowingGroup { group, next_slot };
        Ok((next_slot < slots_max && !is_retired).then_some(growing))
    }

    /// The first slot of a group that the segments before the active one never issued.
    fn next_slot(&self, group: GroupId) -> Result<u32> {
        let mut next_slot = 0;
        for layer in &self.frozen {
            let memory = layer.memory.read();
            let end = memory.parts.newest(group).map(|part_no| memory.parts.end_slot(part_no));
            next_slot = next_slot.max(end.unwrap_or(0));
        }
        for segment in &self.sealed {
            next_slot = next_slot.max(segment.sealed.next_slot(group)?.unwrap_or(0));
        }
        Ok(next_slot)
    }
}

impl<'l> Finder<'_, 'l> {
    /// The series with exactly these labels.
    ///
    /// # Errors
    /// `Corrupt` for a damaged segment that may have it.
    pub(crate) fn find(&mut self, labels: &'l Labels) -> Result<Option<SeriesRef>> {
        for layer in self.version.frozen.iter().rev() {
            let memory = layer.memory.read();
            if let Some(position) = Lookup::default().find(&memory, labels) {
                return Ok(Some(memory.series_ref(position)));
            }
        }
        if self.version.sealed.is_empty() {
            return Ok(None);
        }
        self.labels.set(labels);
        if let Some((idx, neighbour)) = &mut self.last {
            if let Some(series) = neighbour.find(&self.labels) {
                return Ok(Some(series));
            }
            if let Some(segment) = self.version.sealed.get(*idx)
                && let Some(found) = segment.sealed.find_beside(neighbour, &self.labels)?
            {
                neighbour.learn(&self.labels, found);
                return Ok(Some(found.series));
            }
        }
        for (idx, segment) in self.version.sealed.iter().enumerate().rev() {
            if let Some(found) = segment.sealed.find(&self.labels)? {
                let before = self.last.take().filter(|last| last.0 == idx).map(|last| last.1);
                let neighbour = segment.sealed.neighbour(&self.labels, found, before)?;
                self.last = neighbour.map(|neighbour| (idx, neighbour));
                return Ok(Some(found.series));
            }
        }
        Ok(None)
    }
}
