//! The segment files of an index: seals, merges, removals and repairs, and the parts of the
//! manifest that name the files.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use firn_env::Disk;
use firn_model::{CancelToken, Error, Result, RwLock};

use super::Index;
use crate::catalog::{Catalog, CatalogEdit, SegmentInfo};
use crate::group_rules::GroupRules;
use crate::jobs::{self, JobCatalog, MergeJob, ReadCopy, Repaired, SealJob, WrittenSegment};
use crate::lock;
use crate::memory::index::MemoryIndex;
use crate::version::{FileSegment, IndexVersion, MemorySegment};

impl Index {
    /// Plans a seal: freezes the series defined since the last seal, and the job writes them to a
    /// file while other calls continue. `None` if there is nothing to seal.
    pub fn plan_seal(&self) -> Option<SealJob> {
        let mut jobs = self.shared.jobs.lock();
        let mut version = self.shared.version.write();
        let mut memory = version.active.memory.write();
        let next_ids = memory.parts.next_ids();
        if memory.series_count() > 0 {
            memory.is_frozen = true;
            drop(memory);
            let mut next = IndexVersion::clone(&version);
            let number = next.active.number + 1;
            let memory = RwLock::new(
                &lock::MEMORY,
                MemoryIndex::new(self.shared.bits, &self.shared.options, &next_ids),
            );
            let active = Arc::new(MemorySegment { number, memory });
            next.frozen.push(std::mem::replace(&mut next.active, active));
            *version = Arc::new(next);
        } else {
            drop(memory);
        }
        if version.frozen.is_empty() {
            return None;
        }
        // One seal at a time: drop the results of earlier seals that were not applied.
        self.shared.written.lock().retain(|written| written.layers.is_empty());
        let layers = version.frozen.clone();
        let written = Arc::clone(&self.shared.written);
        let mut learned = self.shared.rules.lock();
        learned.weigh();
        let mut rules = learned.encode();
        drop(learned);
        if rules == jobs.catalog.rules {
            rules.clear();
        }
        Some(SealJob { number: jobs.take_number(), layers, next_ids, rules, written })
    }

    /// Plans a merge of neighbouring files of similar size that takes at most `bytes_max` of
    /// memory; `None` if there are too few.
    pub fn plan_merge(&self, bytes_max: u64) -> Option<MergeJob> {
        let mut jobs = self.shared.jobs.lock();
        let version = self.version();
        MergeJob::choose(&version.sealed, bytes_max).map(|inputs| self.merge_job(&mut jobs, inputs))
    }

    /// Plans a merge that removes series without data, over all files whose definitions are no
    /// longer in the log; `None` if there is no such file.
    pub fn plan_removal(&self) -> Option<MergeJob> {
        let mut jobs = self.shared.jobs.lock();
        let version = self.version();
        let settled = jobs.settled;
        let count = version.sealed.iter().take_while(|segment| segment.born < settled).count();
        (count > 0).then(|| self.merge_job(&mut jobs, &version.sealed[..count]))
    }

    fn merge_job(&self, jobs: &mut JobCatalog, inputs: &[Arc<FileSegment>]) -> MergeJob {
        // One merge at a time: drop the results of earlier merges that were not applied.
        self.shared.written.lock().retain(|written| !written.layers.is_empty());
        let written = Arc::clone(&self.shared.written);
        let (number, inputs) = (jobs.take_number(), inputs.to_vec());
        MergeJob { number, inputs, written, cancel: CancelToken::new() }
    }

    /// A number above those of all seals so far, for [`Index::settle`].
    pub fn next_number(&self) -> u64 {
        self.shared.jobs.lock().next_number
    }

    /// Declares that the log's floor is above all definitions sealed before `number`, a result of
    /// [`Index::next_number`]. No replay restores these series, so a removal may drop them for
    /// good.
    pub fn settle(&self, number: u64) {
        let mut jobs = self.shared.jobs.lock();
        jobs.settled = jobs.settled.max(number);
    }

    /// Whether a file has definitions that the log may contain too ([`Index::settle`]).
    pub fn has_unsettled(&self) -> bool {
        let settled = self.shared.jobs.lock().settled;
        self.version().sealed.iter().any(|segment| segment.born >= settled)
    }

    /// Applies the part of a finished job; the manifest has it already. Swaps the list of segments
    /// and removes the replaced files. After a removal the generation is higher.
    ///
    /// # Errors
    /// `Invalid` if the part is not from the last planned job of its kind.
    pub fn apply(&self, part: &[u8]) -> Result<()> {
        let part = CatalogEdit::decode(part)?;
        let mut jobs = self.shared.jobs.lock();
        let written = self.take_written(&part)?;
        jobs.catalog.take(&part)?;
        for (shard, &closed) in self.shared.shards.iter().zip(&part.closed_ids) {
            shard.closed_below.fetch_max(closed, Ordering::Relaxed);
        }
        let obsolete = {
            let mut version = self.shared.version.write();
            let mut next = IndexVersion::clone(&version);
            next.frozen.retain(|layer| !written.layers.contains(&layer.number));
            let is_removed =
                |segment: &Arc<FileSegment>| part.removed.contains(&segment.info.number);
            let at = next.sealed.iter().position(is_removed).unwrap_or(next.sealed.len());
            let obsolete: Vec<_> = next.sealed.extract_if(.., |one| is_removed(one)).collect();
            next.sealed.splice(at..at, written.segment);
            self.shared.retired.lock().add(&version, &next);
            *version = Arc::new(next);
            obsolete
        };
        if written.is_removal {
            // After the swap: a reader of the new generation sees the new version.
            self.shared.generation.fetch_add(1, Ordering::AcqRel);
            self.shared.limits.lock().recount();
        }
        for segment in obsolete {
            // If this fails, the next open removes the file. Views that hold it can still read it.
            let _ = self.shared.disk.remove(&segment.info.path());
        }
        Ok(())
    }

    /// Discards the part of a [`Removal`](crate::Removal) that the manifest does not take, and its
    /// file.
    ///
    /// # Errors
    /// `Invalid` if the part is not from the last planned job of its kind; `Unavailable` if the
    /// disk fails.
    pub fn abandon(&self, part: &[u8]) -> Result<()> {
        let written = self.take_written(&CatalogEdit::decode(part)?)?;
        match written.segment {
            Some(segment) => self.shared.disk.remove(&segment.info.path()),
            None => Ok(()),
        }
    }

    /// Replaces the list of segments by that of `part`, a complete state that another process
    /// wrote. The files must exist. Removes files that are no longer named. Existing views do not
    /// change.
    ///
    /// # Errors
    /// As [`Index::open`]; the index is unchanged then.
    pub fn follow(&self, part: &[u8]) -> Result<()> {
        let catalog = Catalog::read(&[part])?;
        let mut jobs = self.shared.jobs.lock();
        let known = self.version();
        let mut sealed = Vec::with_capacity(catalog.segments.len());
        for &info in &catalog.segments {
            let same = known.sealed.iter().find(|segment| segment.info == info);
            sealed.push(match same {
                Some(segment) => Arc::clone(segment),
                None => jobs::open(&*self.shared.disk, info, info.number)?,
            });
        }
        {
            let mut version = self.shared.version.write();
            let next = IndexVersion { sealed, ..IndexVersion::clone(&version) };
            self.shared.retired.lock().add(&version, &next);
            *version = Arc::new(next);
        }
        self.shared.generation.fetch_add(1, Ordering::AcqRel);
        *self.shared.rules.lock() = GroupRules::load(&catalog.rules)?;
        for info in &jobs.catalog.segments {
            if catalog.segments.iter().all(|next| next.number != info.number) {
                let _ = self.shared.disk.remove(&info.path());
            }
        }
        jobs.catalog = catalog;
        Ok(())
    }

    fn take_written(&self, part: &CatalogEdit) -> Result<WrittenSegment> {
        let mut written = self.shared.written.lock();
        let Some(idx) = written.iter().position(|written| written.part == *part) else {
            let numbers: Vec<u64> = part.added.iter().map(|segment| segment.number).collect();
            return Err(Error::invalid(format!("index segments {numbers:?} were not planned")));
        };
        Ok(written.swap_remove(idx))
    }

    /// Compares every byte of the sealed segments with its checksum and returns one error per
    /// damaged block. Blocks that were verified since the open are not read again.
    pub fn check(&self) -> Vec<Error> {
        self.version().sealed.iter().flat_map(|segment| segment.sealed.check()).collect()
    }

    /// Rewrites the damaged file at `path`, for [`Index::apply`]. Takes damaged blocks from `copy`;
    /// drops the series that need a block which the copy lacks. Holds the whole file in memory, and
    /// its texts if series are lost. `None` if the index has no such file.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails or is full; `Corrupt` if the file cannot be read at all.
    pub fn repair(&self, path: &str, copy: ReadCopy<'_>) -> Result<Option<Repaired>> {
        let (segment, number, next_ids) = {
            let mut jobs = self.shared.jobs.lock();
            let version = self.version();
            let found = version.sealed.iter().find(|segment| segment.info.path() == path);
            let Some(segment) = found.cloned() else { return Ok(None) };
            // One merge at a time: drop the results of earlier merges that were not applied.
            self.shared.written.lock().retain(|written| !written.layers.is_empty());
            (segment, jobs.take_number(), jobs.catalog.next_ids.clone())
        };
        let disk = &*self.shared.disk;
        let (part, written, lost) = jobs::repair(disk, &segment, number, &next_ids, copy)?;
        let (bytes, is_removal) = (part.encode(), lost.is_some());
        let segment = Some(written);
        self.shared.written.lock().push(WrittenSegment {
            part,
            segment,
            layers: Vec::new(),
            is_removal,
        });
        Ok(Some(Repaired { part: bytes, lost }))
    }

    /// As [`Index::repair`], before an index of `parts` is opened. The result is a part to append
    /// to `parts`.
    ///
    /// # Errors
    /// As [`Index::repair`]; `Corrupt` too if the file is missing or its footer is damaged;
    /// `Invalid` for malformed parts or a path that they do not name.
    pub fn part_repaired(
        disk: &dyn Disk,
        parts: &[&[u8]],
        path: &str,
        copy: ReadCopy<'_>,
    ) -> Result<Repaired> {
        let catalog = Catalog::read(parts)?;
        let info = catalog.segments.iter().find(|segment| segment.path() == path);
        let info =
            *info.ok_or_else(|| Error::invalid(format!("the index does not name {path}")))?;
        let damaged = jobs::open_mended(disk, info, copy)?;
        let number = jobs::next_number(disk, &catalog)?;
        let (part, _, lost) = jobs::repair(disk, &damaged, number, &catalog.next_ids, copy)?;
        Ok(Repaired { part: part.encode(), lost })
    }

    /// The complete sealed state as one manifest part.
    pub fn snapshot_part(&self) -> Vec<u8> {
        self.shared.jobs.lock().catalog.to_part().encode()
    }

    /// The sealed files with their lengths. The next [`Index::apply`] may remove some.
    pub fn segment_files(&self) -> Vec<(String, u64)> {
        let jobs = self.shared.jobs.lock();
        let files = jobs.catalog.segments.iter();
        files.map(|segment| (segment.path(), segment.file_bytes)).collect()
    }

    /// The bytes of all sealed segment files by their use; the sum is
    /// [`crate::IndexStats::segment_bytes`].
    pub fn sealed_bytes_by_use(&self) -> Vec<(&'static str, u64)> {
        let mut uses: Vec<(&'static str, u64)> = Vec::new();
        for segment in &self.version().sealed {
            for (what, bytes) in segment.sealed.bytes_by_use() {
                match uses.iter_mut().find(|used| used.0 == what) {
                    Some(used) => used.1 += bytes,
                    None => uses.push((what, bytes)),
                }
            }
        }
        uses
    }

    /// The files, with their lengths, that a manifest's `parts` name. For callers that fetch the
    /// files before [`Index::open`] or [`Index::follow`].
    ///
    /// # Errors
    /// `Invalid` for malformed parts.
    pub fn files_of(parts: &[&[u8]]) -> Result<Vec<(String, u64)>> {
        let catalog = Catalog::read(parts)?;
        let files = catalog.segments.iter();
        Ok(files.map(|segment| (segment.path(), segment.file_bytes)).collect())
    }

    /// The part of an empty index.
    pub fn empty_part() -> Vec<u8> {
        CatalogEdit::default().encode()
    }

    /// A part to append to `parts` that drops the file at `path`, and the number of its series,
    /// which are forgotten. Existing groups take no new members afterwards.
    ///
    /// # Errors
    /// `Invalid` for malformed parts or a path that they do not name.
    pub fn part_without(parts: &[&[u8]], path: &str) -> Result<(Vec<u8>, u64)> {
        let catalog = Catalog::read(parts)?;
        let info = catalog.segments.iter().find(|segment| segment.path() == path);
        let info = info.ok_or_else(|| Error::invalid(format!("the index does not name {path}")))?;
        let closed_ids = catalog.next_ids.clone();
        let part = CatalogEdit { removed: vec![info.number], closed_ids, ..CatalogEdit::default() };
        Ok((part.encode(), info.series_count))
    }

    /// Whether two lists of parts name the same file at `path`. Compares length, series count and
    /// group count.
    ///
    /// # Errors
    /// `Invalid` for malformed parts.
    pub fn name_same(parts: &[&[u8]], others: &[&[u8]], path: &str) -> Result<bool> {
        let info = |parts| -> Result<Option<SegmentInfo>> {
            Ok(Catalog::read(parts)?.segments.into_iter().find(|segment| segment.path() == path))
        };
        let (one, other) = (info(parts)?, info(others)?);
        Ok(one.is_some() && one == other)
    }
}
