//! Seals, merges, removals and repairs of segment files.
//!
//! A **seal** freezes the active segment, writes it to a file together with everything that earlier
//! seals failed to write, and drops it from memory once the manifest names the file. A **merge**
//! makes one file of neighbours of similar size, so that the number of files is logarithmic and
//! each definition is rewritten a logarithmic number of times. A **removal** is a merge of all
//! settled files that drops series without data; it needs all of them because only together they
//! contain all issued slots of a group.

use std::sync::Arc;

use firn_env::{Disk, Mapped, OpenMode};
use firn_model::{
    Budget, CancelToken, Error, ErrorKind, GroupId, Grouping, Mutex, Pool, QueryContext, Result,
};
use hashbrown::{HashMap, HashSet};

use crate::catalog::{Catalog, CatalogEdit, SegmentInfo, segment_path};
use crate::key_table::KeyTable;
use crate::matches::{GroupMatch, unite};
use crate::memory::arena::Ids;
use crate::memory::index::MemoryIndex;
use crate::sealed::{
    Builder, CODE_BYTES, MergeFilter, PairSource, PartInput, Sealed, code_count_max,
};
use crate::version::{FileSegment, MemorySegment};

/// The list of files, and the numbers of jobs.
#[derive(Debug)]
pub(crate) struct JobCatalog {
    pub(crate) catalog: Catalog,
    pub(crate) next_number: u64,
    /// Segments with seals below this number contain only definitions below the log's floor.
    pub(crate) settled: u64,
}

/// The result of a job that the manifest does not have yet.
#[derive(Debug)]
pub(crate) struct WrittenSegment {
    pub(crate) part: CatalogEdit,
    pub(crate) segment: Option<Arc<FileSegment>>,
    /// The memory segments that the file contains.
    pub(crate) layers: Vec<u64>,
    pub(crate) is_removal: bool,
}

/// Results of finished jobs that were not applied yet.
pub(crate) type WrittenSegments = Mutex<Vec<WrittenSegment>>;

/// Writes frozen segments to a file; planned by [`Index::plan_seal`](crate::Index::plan_seal).
#[derive(Debug)]
pub struct SealJob {
    pub(crate) number: u64,
    pub(crate) layers: Vec<Arc<MemorySegment>>,
    pub(crate) next_ids: Vec<u64>,
    /// The learned rules of groups, if they changed since the last seal.
    pub(crate) rules: Vec<u8>,
    pub(crate) written: Arc<WrittenSegments>,
}

/// Makes one segment of several; planned by [`Index::plan_merge`](crate::Index::plan_merge) and
/// [`Index::plan_removal`](crate::Index::plan_removal).
#[derive(Debug)]
pub struct MergeJob {
    pub(crate) number: u64,
    pub(crate) inputs: Vec<Arc<FileSegment>>,
    pub(crate) written: Arc<WrittenSegments>,
    pub(crate) cancel: CancelToken,
}

/// Decides which series stay in the index when segments merge.
pub trait Liveness {
    /// Removes the slots without data from `slots` (ascending, all slots of `group` in the job's
    /// files). Called once per group. A lone series has slot 0.
    fn retain(&self, group: GroupId, slots: &mut Vec<u32>);
}

/// The series that a removal drops, with the manifest part that drops them.
#[derive(Debug)]
pub struct Removal {
    /// For [`Index::apply`](crate::Index::apply), once the caller has verified that nothing of
    /// `dropped` was written again.
    pub part: Vec<u8>,
    /// Groups with their dropped slots (ascending); groups are in no order.
    pub dropped: Vec<(GroupId, Vec<u32>)>,
}

/// A rewritten file, and the manifest part that replaces the damaged one.
#[derive(Debug)]
pub struct Repaired {
    /// For [`Index::apply`](crate::Index::apply).
    pub part: Vec<u8>,
    /// The lost series; `None` if nothing is lost.
    pub lost: Option<LostSeries>,
}

/// Series of which a damaged file has lost the labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostSeries {
    /// Their number.
    pub count: u64,
    /// The first and the last of their groups, as far as ids could be read.
    pub groups: Option<(GroupId, GroupId)>,
}

/// Reads a range (offset, length) of a file's copy; `None` if the copy lacks it.
pub type ReadCopy<'a> = &'a dyn Fn(u64, u64) -> Option<Arc<[u8]>>;

/// The buffer of every job that writes a file, twice because it may be growing.
pub const WRITE_BUFFER_BYTES: u64 = 4 << 20;
/// Per pair: its numbers in the input and in the file, its name, its hash, and whether it is used.
const PAIR_BYTES: u64 = 28;
/// Per label set: its ends, sort key, hash and id entries, and its schema if no other set has it.
const SET_BYTES: u64 = 144;
/// Per label of a label set: twice in a list that grows, in its sorted row, and in its schema if no
/// other set has it.
const LABEL_BYTES: u64 = 24;
/// Per series: slot and member set, in the builder, in its group's list, and in lists of rows.
const SERIES_BYTES: u64 = 32;
/// Per label of a member of the open part: in two lists that grow.
const MEMBER_LABEL_BYTES: u64 = 16;
/// Per name: its text's place in the input and in the file, its first pair, and its letter code.
const NAME_BYTES: u64 = 96;
/// Copies of a name's text: encoded, and in the second copy of the file's heads. When the file is
/// open, one of them is in memory.
const NAME_COPIES: u64 = 2;

/// The sizes that determine the memory of a written segment.
#[derive(Clone, Copy, Debug, Default)]
struct WriteSizes {
    pair_count: u64,
    name_count: u64,
    name_text_bytes: u64,
    /// Names with a letter code for their values, at most.
    code_count: u64,
    /// Label sets: of lone series, of parts twice, of members.
    set_count: u64,
    /// The labels of all these sets.
    label_count: u64,
    series_count: u64,
    /// The labels of all members of the largest part.
    part_label_count: u64,
}

impl WriteSizes {
    fn of_memory(memory: &MemoryIndex) -> WriteSizes {
        WriteSizes {
            pair_count: u64::from(memory.pairs.pair_count()),
            name_count: u64::from(memory.pairs.name_count()),
            name_text_bytes: memory.pairs.name_text_bytes(),
            code_count: code_count_max(
                memory.pairs.name_count().into(),
                memory.pairs.value_text_bytes_max(),
            ),
            set_count: u64::from(memory.parts.count()) + u64::from(memory.sets.count()),
            label_count: memory.sets.label_count() + memory.parts.label_count(),
            series_count: memory.series_count(),
            part_label_count: memory.parts.part_label_count_max(),
        }
    }

    /// Files are merged without the lists of a part's labels.
    fn of_file(sealed: &Sealed) -> WriteSizes {
        WriteSizes {
            pair_count: sealed.pair_count(),
            name_count: sealed.name_count(),
            name_text_bytes: sealed.names.text_bytes(),
            code_count: sealed.strings.code_count_max(),
            set_count: sealed.set_count(),
            label_count: sealed.label_count(),
            series_count: sealed.series_count(),
            part_label_count: 0,
        }
    }

    fn bytes(self) -> u64 {
        self.pair_count * PAIR_BYTES
            + self.name_count * NAME_BYTES
            + self.name_text_bytes * NAME_COPIES
            + self.code_count * CODE_BYTES
            + self.set_count * SET_BYTES
            + self.label_count * LABEL_BYTES
            + self.series_count * SERIES_BYTES
            + self.part_label_count * MEMBER_LABEL_BYTES
    }
}

// This many neighbours of similar size are merged, so each definition is written about log4(n)
// times.
const MERGE_COUNT_MIN: usize = 4;

/// The approximate memory that a seal of `memory` takes besides the writer's buffer: numbers of
/// pairs, labels, series and sets, and texts of names only.
pub(crate) fn seal_bytes(memory: &MemoryIndex) -> u64 {
    if memory.series_count() == 0 { 0 } else { WriteSizes::of_memory(memory).bytes() }
}

impl JobCatalog {
    pub(crate) fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }
}

impl SealJob {
    /// Writes `index/<n>.seg`, makes it durable and returns the manifest part. The job may fail or
    /// be killed at any point: nothing refers to the file before the manifest has the part, and the
    /// next seal writes the same series again.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails or is full.
    pub fn run(&self, disk: &dyn Disk) -> Result<Vec<u8>> {
        // Frozen segments do not change; queries read them concurrently.
        let memories: Vec<_> = self.layers.iter().map(|layer| layer.memory.read()).collect();
        let sources: Vec<_> =
            memories.iter().map(|memory| PairSource::Memory(&memory.pairs)).collect();
        let mut builder = Builder::new(&sources)?;
        let mut group_count = 0;
        for (source, memory) in memories.iter().enumerate() {
            add_memory((source, memory), &mut builder);
            group_count += u64::from(memory.parts.group_count());
        }
        let segment = write(disk, self.number, self.number, builder, |_| group_count)?;
        let layers = self.layers.iter().map(|layer| layer.number).collect();
        let added = vec![segment.info];
        let (next_ids, rules) = (self.next_ids.clone(), self.rules.clone());
        let part = CatalogEdit { added, next_ids, rules, ..CatalogEdit::default() };
        let bytes = part.encode();
        let segment = Some(segment);
        self.written.lock().push(WrittenSegment { part, segment, layers, is_removal: false });
        Ok(bytes)
    }
}

impl MergeJob {
    /// The newest neighbours of similar size whose merge takes at most `bytes_max`, oldest first;
    /// `None` if there are too few.
    pub(crate) fn choose(
        segments: &[Arc<FileSegment>],
        bytes_max: u64,
    ) -> Option<&[Arc<FileSegment>]> {
        let mut start = segments.len().checked_sub(1)?;
        let bytes_of = |at: usize| WriteSizes::of_file(&segments[at].sealed).bytes();
        let mut series_count = segments[start].info.series_count;
        let mut bytes = WRITE_BUFFER_BYTES + bytes_of(start);
        while let Some(before) = start.checked_sub(1)
            && segments[before].info.series_count <= 2 * series_count
        {
            bytes += bytes_of(before);
            if bytes > bytes_max {
                break;
            }
            series_count += segments[before].info.series_count;
            start = before;
        }
        Some(&segments[start..]).filter(|chosen| chosen.len() >= MERGE_COUNT_MIN)
    }

    /// The approximate peak memory of [`MergeJob::run`]: numbers of pairs, labels, series and sets.
    /// Values are copied from file to file.
    pub fn memory_bytes(&self) -> u64 {
        let of = |segment: &Arc<FileSegment>| WriteSizes::of_file(&segment.sealed).bytes();
        WRITE_BUFFER_BYTES + self.inputs.iter().map(of).sum::<u64>()
    }

    /// Lets `cancel` end the job: a merge of tens of thousands of label names takes seconds.
    pub fn canceled_by(self, cancel: &CancelToken) -> MergeJob {
        MergeJob { cancel: cancel.clone(), ..self }
    }

    /// As [`SealJob::run`], for a merge that keeps all series.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails or is full; `Corrupt` for a damaged input, which stays in
    /// use; `Canceled`.
    pub fn run(&self, disk: &dyn Disk) -> Result<Vec<u8>> {
        let group_count = self.inputs.iter().map(|segment| segment.info.group_count).sum();
        let everything = KeepAll;
        let segment = self.write(disk, &everything, |_| group_count)?;
        Ok(self.finish(Some(segment), false))
    }

    /// As [`MergeJob::run`], without the series that `live` removes. `None` if it removes none:
    /// then nothing is written.
    ///
    /// # Errors
    /// As [`MergeJob::run`].
    pub fn run_removal(&self, disk: &dyn Disk, live: &dyn Liveness) -> Result<Option<Removal>> {
        let absent = self.absent(live)?;
        if absent.slots.is_empty() {
            return Ok(None);
        }
        let segment = self.write(disk, &absent, |groups| groups)?;
        let segment = if segment.info.series_count > 0 {
            Some(segment)
        } else {
            disk.remove(&segment.info.path())?;
            None
        };
        let part = self.finish(segment, true);
        Ok(Some(Removal { part, dropped: absent.slots.into_iter().collect() }))
    }

    fn absent(&self, live: &dyn Liveness) -> Result<RemovedSlots> {
        // The caller has reserved the job's memory.
        let held = Budget::unlimited().empty(Pool::Jobs);
        let mut keys = KeyTable::new(Grouping::By(Vec::new()), held);
        let context = QueryContext::unbounded();
        let mut groups = Vec::new();
        for segment in &self.inputs {
            let all = segment.sealed.select(&[], &context)?;
            segment.sealed.collect_groups(&all, &mut keys, &context, &mut groups)?;
        }
        unite(&mut groups);
        let mut absent = RemovedSlots::default();
        let mut left = Vec::new();
        for GroupMatch { group, members } in groups {
            left.clear();
            left.extend(members.iter().map(|member| member.slot.0));
            live.retain(group, &mut left);
            if left.len() < members.len() {
                let slots = members.iter().map(|member| member.slot.0);
                let is_absent = |slot: &u32| left.binary_search(slot).is_err();
                absent.slots.insert(group, slots.filter(is_absent).collect());
            }
            if left.is_empty() {
                absent.groups.insert(group);
            }
        }
        Ok(absent)
    }

    fn write(
        &self,
        disk: &dyn Disk,
        live: &dyn MergeFilter,
        group_count: impl FnOnce(u64) -> u64,
    ) -> Result<Arc<FileSegment>> {
        let sources = self.inputs.iter().map(|segment| PairSource::File(&segment.sealed));
        let sources: Vec<_> = sources.collect();
        let mut builder = Builder::canceled_by(&sources, &self.cancel)?;
        for (source, segment) in self.inputs.iter().enumerate() {
            self.cancel.check()?;
            builder.merge(source, &segment.sealed, live)?;
        }
        let born = self.inputs.iter().map(|segment| segment.born).max().unwrap_or(0);
        write(disk, self.number, born, builder, group_count)
    }

    fn finish(&self, segment: Option<Arc<FileSegment>>, is_removal: bool) -> Vec<u8> {
        let removed = self.inputs.iter().map(|segment| segment.info.number).collect();
        let added = segment.iter().map(|segment| segment.info).collect();
        let part = CatalogEdit { removed, added, ..CatalogEdit::default() };
        let bytes = part.encode();
        self.written.lock().push(WrittenSegment { part, segment, layers: Vec::new(), is_removal });
        bytes
    }
}

/// Adds all series of a memory segment to a builder.
fn add_memory((source, memory): (usize, &MemoryIndex), builder: &mut Builder<'_>) {
    let (mut identity, mut common, mut member) = (Vec::new(), Vec::new(), Vec::new());
    for part_no in 0..memory.parts.count() {
        let translate = |pairs: Ids<'_>, out: &mut Vec<u32>| {
            out.extend(pairs.map(|pair| builder.pair(source, pair)));
        };
        identity.clear();
        translate(memory.parts.identity(part_no), &mut identity);
        common.clear();
        translate(memory.parts.common(part_no), &mut common);
        let (group, lone) = (memory.parts.id(part_no), memory.parts.is_lone(part_no));
        // Collect the pairs of all members first: `translate` borrows the builder.
        let mut members: Vec<(u32, usize)> = Vec::new();
        member.clear();
        if !lone {
            for (slot, &set) in (memory.parts.first_slot(part_no)..).zip(memory.parts.sets(part_no))
            {
                member.extend_from_slice(&common);
                translate(memory.sets.pairs(set), &mut member);
                members.push((slot, member.len()));
            }
        }
        let next_slot = memory.parts.end_slot(part_no);
        builder.part(PartInput { group, lone, identity: &identity, next_slot });
        let mut start = 0;
        for (slot, end) in members {
            builder.member(slot, &member[start..end]);
            start = end;
        }
    }
}

/// Writes a segment and opens it, so that nothing can fail after the manifest names it.
fn write(
    disk: &dyn Disk,
    number: u64,
    born: u64,
    builder: Builder<'_>,
    group_count: impl FnOnce(u64) -> u64,
) -> Result<Arc<FileSegment>> {
    let path = segment_path(number);
    let written = || -> Result<Arc<FileSegment>> {
        let file = disk.open(&path, OpenMode::Create)?;
        let totals = builder.finish(&*file)?;
        drop(file);
        disk.sync_dir("index")?;
        let info = SegmentInfo {
            number,
            file_bytes: totals.file_bytes,
            series_count: totals.series_count,
            group_count: group_count(totals.group_count),
        };
        open(disk, info, born)
    };
    written().inspect_err(|_| {
        // Nothing refers to the file, and the next attempt uses another number: a full disk must
        // not fill further.
        let _ = disk.remove(&path);
    })
}

/// Rewrites a damaged segment. Takes each damaged block from `copy`, or drops the series that need
/// it. If series are lost, groups below `next_ids` take no new members: their next slot may have
/// been issued in the lost blocks.
pub(crate) fn repair(
    disk: &dyn Disk,
    damaged: &FileSegment,
    number: u64,
    next_ids: &[u64],
    copy: ReadCopy<'_>,
) -> Result<(CatalogEdit, Arc<FileSegment>, Option<LostSeries>)> {
    let mended = damaged.sealed.mended(copy)?;
    let info = damaged.info;
    let mut part = CatalogEdit { removed: vec![info.number], ..CatalogEdit::default() };
    let (segment, lost) = if mended.check().is_empty() {
        (write_contents(disk, number, damaged, mended.file_contents())?, None)
    } else {
        let salvaged = mended.salvage_pairs()?;
        let mut builder = Builder::new(&[PairSource::Memory(&salvaged.pairs)])?;
        let groups = builder.salvage(&mended, &salvaged);
        let group_count = |found: u64| found.min(info.group_count);
        let segment = write(disk, number, damaged.born, builder, group_count)?;
        let count = info.series_count.saturating_sub(segment.info.series_count);
        let is_lost = count > 0 || groups.is_some();
        (segment, is_lost.then_some(LostSeries { count, groups }))
    };
    if lost.is_some() {
        part.closed_ids = next_ids.to_vec();
    }
    part.added.push(segment.info);
    Ok((part, segment, lost))
}

/// Writes the contents of a segment under another number.
fn write_contents(
    disk: &dyn Disk,
    number: u64,
    like: &FileSegment,
    contents: &[u8],
) -> Result<Arc<FileSegment>> {
    let path = segment_path(number);
    let written = || -> Result<Arc<FileSegment>> {
        let file = disk.open(&path, OpenMode::Create)?;
        file.write_at(0, contents)?;
        file.sync()?;
        disk.sync_dir("index")?;
        open(disk, SegmentInfo { number, ..like.info }, like.born)
    };
    written().inspect_err(|_| {
        let _ = disk.remove(&path);
    })
}

/// Maps a segment file. Errors about the file as a whole contain no advice: the engine knows which
/// copies exist and adds the ways to restore it.
///
/// # Errors
/// `Corrupt` with the path if it is missing, has another length, or its footer is damaged.
pub(crate) fn open(disk: &dyn Disk, info: SegmentInfo, born: u64) -> Result<Arc<FileSegment>> {
    open_as(disk, info, born, &|bytes, path| Sealed::open(bytes, path))
}

/// As [`open`], with damaged blocks taken from `copy`.
pub(crate) fn open_mended(
    disk: &dyn Disk,
    info: SegmentInfo,
    copy: ReadCopy<'_>,
) -> Result<Arc<FileSegment>> {
    open_as(disk, info, info.number, &|bytes, path| Sealed::open_mended(bytes, path, copy))
}

fn open_as(
    disk: &dyn Disk,
    info: SegmentInfo,
    born: u64,
    open: &dyn Fn(Mapped, &str) -> Result<Sealed>,
) -> Result<Arc<FileSegment>> {
    let path = info.path();
    let missing = |e: Error| match e.kind() {
        ErrorKind::NotFound => {
            Error::corrupt(&path, 0, "the manifest names this index file but it is missing")
        }
        // A folder or a pipe in its place; the caller knows the file by this path.
        ErrorKind::Corrupt { .. } => Error::corrupt(&path, 0, e.what()),
        _ => e,
    };
    let file = disk.open(&path, OpenMode::Read).map_err(missing)?;
    let file_bytes = file.len()?;
    if file_bytes != info.file_bytes {
        let what = format!(
            "the index file has {file_bytes} bytes, the manifest expects {}",
            info.file_bytes
        );
        return Err(Error::corrupt(&path, file_bytes.min(info.file_bytes), what));
    }
    let sealed = open(file.map()?, &path)?;
    let counts = (sealed.series_count(), sealed.group_count());
    if counts.0 != info.series_count || counts.1 < info.group_count {
        let what = format!(
            "the index file has {} series in {} groups, the manifest expects {} in at least {}",
            counts.0, counts.1, info.series_count, info.group_count
        );
        return Err(Error::corrupt(&path, 0, what));
    }
    Ok(Arc::new(FileSegment { info, sealed, born }))
}

/// A number above those of all files, named by a part or not.
pub(crate) fn next_number(disk: &dyn Disk, catalog: &Catalog) -> Result<u64> {
    let named = catalog.segments.iter().map(|info| info.number);
    let last = numbers_in_folder(disk)?.into_iter().chain(named).max();
    Ok(last.map_or(1, |last| last.saturating_add(1)))
}

/// Removes files that no part names; returns a number above all of them.
pub(crate) fn remove_orphans(disk: &dyn Disk, catalog: &Catalog) -> Result<u64> {
    let next_number = next_number(disk, catalog)?;
    for number in numbers_in_folder(disk)? {
        if catalog.segments.iter().all(|info| info.number != number) {
            disk.remove(&segment_path(number))?;
        }
    }
    Ok(next_number)
}

fn numbers_in_folder(disk: &dyn Disk) -> Result<Vec<u64>> {
    let number = |name: String| {
        let digits = name.strip_suffix(".seg")?;
        // Other forms of a number, such as `07.seg`, are no names of ours.
        digits.parse::<u64>().ok().filter(|number| number.to_string() == digits)
    };
    Ok(disk.list("index")?.into_iter().filter_map(number).collect())
}

struct KeepAll;

impl MergeFilter for KeepAll {
    fn retain(&self, _: GroupId, _: &mut Vec<u32>) {}
}

/// The series that a removal drops.
#[derive(Debug, Default)]
struct RemovedSlots {
    /// Ascending.
    slots: HashMap<GroupId, Vec<u32>>,
    /// Groups without any remaining member.
    groups: HashSet<GroupId>,
}

impl MergeFilter for RemovedSlots {
    fn retain(&self, group: GroupId, slots: &mut Vec<u32>) {
        if let Some(absent) = self.slots.get(&group) {
            slots.retain(|slot| absent.binary_search(slot).is_err());
        }
    }

    fn keeps_group(&self, group: GroupId) -> bool {
        !self.groups.contains(&group)
    }
}
