//! The index as the engine holds it: resolve, definitions for the log, views, seals and merges.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use firn_env::Disk;
use firn_model::{Error, GroupId, Labels, Result, SeriesRef, ShardBits, ShardId, Slot, Timestamp};
use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};

use crate::catalog::{Catalog, CatalogEdit, SegmentInfo};
use crate::definition;
use crate::jobs::{
    self, JobCatalog, MergeJob, ReadCopy, Repaired, SealJob, WrittenSegment, WrittenSegments,
};
use crate::known_refs::KnownRefs;
use crate::limits::{LimitCounters, NewSeries, SegmentCensus};
use crate::memory::index::{GrowingGroup, MemberRun, MemoryIndex, SeriesPosition};
use crate::memory::lookup::Lookup;
use crate::options::IndexOptions;
use crate::pair::raw_pairs;
use crate::version::{FileSegment, IndexVersion, MemorySegment};
use crate::view::{IndexStats, IndexView};

/// Which series are there. Shared by writers and queries; every call takes `&self`.
#[derive(Clone, Debug)]
pub struct Index {
    shared: Arc<Shared>,
}

/// Lock order: `jobs`, then `version`, then the state of the active segment, then that of an older one, then
/// `limits`, `written` or one of `shards`.
#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    bits: ShardBits,
    options: IndexOptions,
    jobs: Mutex<JobCatalog>,
    written: Arc<WrittenSegments>,
    version: RwLock<Arc<IndexVersion>>,
    limits: Mutex<LimitCounters>,
    shards: Vec<Shard>,
    generation: AtomicU32,
    known: RwLock<KnownRefs>,
}

/// What is known of a shard beside its groups.
#[derive(Debug, Default)]
struct Shard {
    /// Definitions that the log has not been given, with the numbers of their segments.
    pending: Mutex<Vec<(u64, MemberRun)>>,
    any_pending: AtomicBool,
    /// Groups of before the start take no new member.
    is_distrusted: AtomicBool,
    /// Nor do those with smaller local ids, whenever: see [`Index::part_without`].
    closed_below: AtomicU64,
}

/// A label set that is not known, and what of it is asked when it is defined.
struct NewLabelSet<'l> {
    whole: &'l Labels,
    /// The labels of the group that it joins; `None`: it becomes a group of one.
    identity: Option<Labels>,
}

// Known series take about 0.5 us each and new ones 1 (examples/footprint.rs): nobody waits for more
// than half a millisecond.
const BATCH_KNOWN: usize = 1_024;
const BATCH_NEW: usize = 256;

impl Index {
    /// The index as the manifest describes it: `parts` are its parts in order. Maps all segments and
    /// reads nothing of them but their ends; files in `index/` that no part names are what is left of
    /// interrupted work and go.
    ///
    /// # Errors
    /// `Corrupt` with the file for a segment that is missing or whose end is damaged, `Invalid` for
    /// bad options, parts or formats, `Unavailable` if the disk fails.
    pub fn open(
        disk: Arc<dyn Disk>,
        bits: ShardBits,
        options: IndexOptions,
        parts: &[&[u8]],
    ) -> Result<Index> {
        let options = options.checked()?;
        let catalog = Catalog::read(parts)?;
        disk.create_dir("index")?;
        disk.sync_dir("")?;
        let next_number = jobs::remove_orphans(&*disk, &catalog)?;
        let mut sealed = Vec::with_capacity(catalog.segments.len());
        for &info in &catalog.segments {
            sealed.push(jobs::open(&*disk, info, info.number)?);
        }
        let memory = RwLock::new(MemoryIndex::new(bits, &options, &catalog.next_ids));
        let active = Arc::new(MemorySegment { number: 0, memory });
        let shard = |idx: usize| Shard {
            closed_below: AtomicU64::new(catalog.closed_ids.get(idx).copied().unwrap_or(0)),
            ..Shard::default()
        };
        let shards = (0..bits.shard_count()).map(shard).collect();
        let shared = Shared {
            disk,
            limits: Mutex::new(LimitCounters::new(options.limits)),
            shards,
            bits,
            options,
            jobs: Mutex::new(JobCatalog { catalog, next_number, settled: 0 }),
            written: Arc::default(),
            version: RwLock::new(Arc::new(IndexVersion { sealed, frozen: Vec::new(), active })),
            generation: AtomicU32::new(0),
            known: RwLock::default(),
        };
        Ok(Index { shared: Arc::new(shared) })
    }

    /// Finds or defines each label set, the slow path: `out` is cleared and gets one answer per label
    /// set, in order. A series that has all `group_by` labels joins the group of their values, any
    /// other is a group of one. About 0.5 us for a known one, 1 us for a new one.
    ///
    /// # Errors
    /// Per label set: `SeriesLimit` over a limit (known ones go on), `Invalid` without any label,
    /// `TooLarge` when the index cannot hold more text, `Corrupt` when a damaged segment may have it.
    pub fn resolve(&self, labels: &[Labels], out: &mut Vec<Result<SeriesRef>>) {
        out.clear();
        out.reserve(labels.len());
        let generation = self.generation();
        let version = self.version();
        let mut lookup = Lookup::default();
        let mut missing: Vec<usize> = Vec::new();
        for batch in labels.chunks(BATCH_KNOWN) {
            let memory = version.active.memory.read();
            for labels in batch {
                match lookup.find(&memory, labels) {
                    Some(position) => out.push(Ok(memory.series_ref(position))),
                    None => {
                        missing.push(out.len());
                        out.push(Err(Error::invalid("a series needs at least one label")));
                    }
                }
            }
        }
        missing.retain(|&idx| !labels[idx].is_empty());
        let whole: Vec<&Labels> = missing.iter().map(|&idx| &labels[idx]).collect();
        let found = self.find_or_define(&whole, |labels| self.identity_by_options(labels));
        for (&idx, found) in missing.iter().zip(found) {
            out[idx] = found;
        }
        // Rows of them follow: nobody has to look for the references in files then.
        let found = out.iter().filter_map(|found| found.as_ref().ok().copied());
        self.shared.known.write().note(generation, found);
    }

    /// Finds or defines the members of a group that the caller names. Their references come in order
    /// of `members`, before them the groups that they are in, each once: mostly one, more if the
    /// group is full or if a member's label set was defined elsewhere before.
    ///
    /// # Errors
    /// `Invalid` if a member repeats a name of the group or has no label in all; `SeriesLimit` over
    /// a limit; `TooLarge` when the index cannot hold more text; `Corrupt` when a damaged segment may
    /// have a member. Members before the one that failed are defined.
    pub fn resolve_group(
        &self,
        group_labels: &Labels,
        members: &[Labels],
    ) -> Result<(Vec<GroupId>, Vec<SeriesRef>)> {
        let mut series = Vec::with_capacity(members.len());
        for batch in members.chunks(BATCH_NEW) {
            let whole =
                batch.iter().map(|m| join(group_labels, m)).collect::<Result<Vec<Labels>>>()?;
            let whole: Vec<&Labels> = whole.iter().collect();
            for found in self.find_or_define(&whole, |_| Some(group_labels.clone())) {
                series.push(found?);
            }
        }
        let mut groups: Vec<GroupId> = series.iter().map(|series| series.group).collect();
        groups.sort_unstable();
        groups.dedup();
        Ok((groups, series))
    }

    /// The labels that decide which group a series joins; `None` if it stands alone.
    fn identity_by_options(&self, labels: &Labels) -> Option<Labels> {
        let group_by = &self.shared.options.group_by;
        let is_group = |name: &[u8]| group_by.iter().any(|by| by.as_bytes() == name);
        let count = raw_pairs(labels).filter(|pair| is_group(pair.name)).count();
        let is_lone = group_by.is_empty() || count < group_by.len();
        (!is_lone).then(|| labels.filter(|name| is_group(name.as_bytes())))
    }

    /// One answer for each of `whole`. What is not in an older segment is found or defined in the active
    /// one, in the group of the labels that `identity_of` gives.
    fn find_or_define(
        &self,
        whole: &[&Labels],
        identity_of: impl Fn(&Labels) -> Option<Labels>,
    ) -> Vec<Result<SeriesRef>> {
        let mut version = self.version();
        let mut finder = version.finder();
        let mut found: Vec<Option<Result<SeriesRef>>> =
            whole.iter().map(|labels| finder.find(labels).transpose()).collect();
        for (whole, found) in whole.chunks(BATCH_NEW).zip(found.chunks_mut(BATCH_NEW)) {
            if found.iter().any(Option::is_none) {
                self.define_missing(&mut version, whole, &identity_of, found);
            }
        }
        found.into_iter().flatten().collect()
    }

    /// Defines what no segment before the active one of `version` has.
    fn define_missing(
        &self,
        version: &mut Arc<IndexVersion>,
        whole: &[&Labels],
        identity_of: impl Fn(&Labels) -> Option<Labels>,
        found: &mut [Option<Result<SeriesRef>>],
    ) {
        let mut wanted: Vec<NewLabelSet<'_>> = Vec::with_capacity(whole.len());
        for (&whole, found) in whole.iter().zip(&*found) {
            let identity = if found.is_none() { identity_of(whole) } else { None };
            wanted.push(NewLabelSet { whole, identity });
        }
        // Groups of before that go on, by identity labels.
        let mut growing: HashMap<&Labels, Option<GrowingGroup>> = HashMap::new();
        while found.iter().any(Option::is_none) {
            // Sealed segments are asked without any lock.
            let deferred = {
                let mut memory = version.active.memory.write();
                (!memory.is_frozen)
                    .then(|| self.define_some(version, &mut memory, &wanted, &growing, found))
            };
            let Some(deferred) = deferred else {
                // It is an older one now.
                *version = self.version();
                growing.clear();
                let mut finder = version.finder();
                for (found, wanted) in found.iter_mut().zip(&wanted) {
                    if found.is_none() {
                        *found = finder.find(wanted.whole).transpose();
                    }
                }
                continue;
            };
            for idx in deferred {
                let Some(identity) = &wanted[idx].identity else { continue };
                match self.growing(version, identity) {
                    Ok(group) => drop(growing.insert(identity, group)),
                    Err(e) => found[idx] = Some(Err(e)),
                }
            }
        }
    }

    /// Defines what can be defined without asking older segments; gives the places in `wanted` of the
    /// first members of groups that may go on from one.
    fn define_some(
        &self,
        version: &IndexVersion,
        memory: &mut MemoryIndex,
        wanted: &[NewLabelSet<'_>],
        growing: &HashMap<&Labels, Option<GrowingGroup>>,
        found: &mut [Option<Result<SeriesRef>>],
    ) -> Vec<usize> {
        let has_older = !version.sealed.is_empty() || !version.frozen.is_empty();
        let mut lookup = Lookup::default();
        let mut deferred = Vec::new();
        for (idx, (wanted, found)) in wanted.iter().zip(found).enumerate() {
            if found.is_some() {
                continue;
            }
            // Another writer, or this batch itself, may have defined it meanwhile.
            if let Some(position) = lookup.find(memory, wanted.whole) {
                *found = Some(Ok(memory.series_ref(position)));
                continue;
            }
            let known = wanted.identity.as_ref().and_then(|identity| growing.get(identity));
            let goes_on = wanted.identity.as_ref().is_some_and(|identity| {
                has_older && known.is_none() && memory.growing(identity).is_none()
            });
            if goes_on {
                deferred.push(idx);
                continue;
            }
            let position =
                self.define(version, memory, &mut lookup, wanted, known.copied().flatten());
            *found = Some(position.map(|position| memory.series_ref(position)));
        }
        deferred
    }

    /// Asks the limits before any text is stored: refused label sets must not cost memory.
    fn define<'l>(
        &self,
        version: &IndexVersion,
        memory: &mut MemoryIndex,
        lookup: &mut Lookup<'l>,
        wanted: &NewLabelSet<'l>,
        growing: Option<GrowingGroup>,
    ) -> Result<SeriesPosition> {
        let (whole, identity) = (wanted.whole, &wanted.identity);
        let group_labels = || identity.clone().unwrap_or_else(Labels::empty);
        let group: Option<&dyn Fn() -> Labels> = identity.is_some().then_some(&group_labels);
        let new = NewSeries { metric: whole.metric_name(), group };
        self.shared.limits.lock().admit(&new, &SegmentCensus { version, active: memory })?;
        let mut define = || {
            lookup.intern(memory, whole)?;
            let Some(identity) = identity else {
                return memory.define_lone(&lookup.ids, whole.hash64());
            };
            let (mut group, mut rest) = (Vec::new(), Vec::new());
            let mut names = raw_pairs(identity).map(|pair| pair.name).peekable();
            for (pair, &id) in raw_pairs(whole).zip(&lookup.ids) {
                let is_group = names.next_if_eq(&pair.name).is_some();
                if is_group { group.push(id) } else { rest.push(id) }
            }
            memory.define_member(&group, &rest, growing, || identity.hash64())
        };
        let position = define().inspect_err(|_| self.shared.limits.lock().recount())?;
        let shard = &self.shared.shards[usize::from(memory.parts.shard(position.part_no).0)];
        shard.push_pending(version.active.number, position);
        Ok(position)
    }

    /// The group of before that goes on with a new member of `identity`.
    fn growing(&self, version: &IndexVersion, identity: &Labels) -> Result<Option<GrowingGroup>> {
        let growing = version.growing(identity, self.shared.options.slots_per_group_max)?;
        let bits = self.shared.bits;
        let is_trusted = |growing: &GrowingGroup| {
            let shard = &self.shared.shards[usize::from(bits.shard(growing.group).0)];
            !shard.is_distrusted.load(Ordering::Relaxed)
                && bits.local(growing.group) >= shard.closed_below.load(Ordering::Relaxed)
        };
        Ok(growing.filter(is_trusted))
    }

    /// The reference of a label set, if it has one.
    ///
    /// # Errors
    /// `Corrupt` when a damaged segment may have it.
    pub fn lookup(&self, labels: &Labels) -> Result<Option<SeriesRef>> {
        let version = self.version();
        {
            let memory = version.active.memory.read();
            if let Some(position) = Lookup::default().find(&memory, labels) {
                return Ok(Some(memory.series_ref(position)));
            }
        }
        if labels.is_empty() { Ok(None) } else { version.finder().find(labels) }
    }

    /// Whether a reference is known. Takes the lock: ask [`Index::find_unknown`] for a batch.
    ///
    /// # Errors
    /// `Corrupt` when a damaged segment may have it.
    pub fn contains(&self, series: SeriesRef) -> Result<bool> {
        let version = self.version();
        Ok(version.is_in_memory(series) || version.is_sealed(series)?)
    }

    /// The first of `series` that is not known, if there is one.
    ///
    /// # Errors
    /// `Corrupt` when a damaged segment may have one.
    pub fn find_unknown(
        &self,
        series: impl IntoIterator<Item = SeriesRef>,
    ) -> Result<Option<SeriesRef>> {
        let generation = self.generation();
        let unsure = self.shared.known.read().unsure(generation, series);
        if unsure.is_empty() {
            return Ok(None);
        }
        let version = self.version();
        let mut older = Vec::new();
        {
            let memory = version.active.memory.read();
            older.extend(unsure.iter().filter(|&&series| memory.position(series).is_none()));
        }
        for series in older {
            if !version.is_in_memory(series) && !version.is_sealed(series)? {
                return Ok(Some(series));
            }
        }
        self.shared.known.write().note(generation, unsure);
        Ok(None)
    }

    /// Changes when a reference that was given out stops being valid; whoever keeps references keeps
    /// this beside them, read before they were asked for.
    pub fn generation(&self) -> u32 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// Appends the definitions of `shard` that the log was not given yet, in order, to `out`; they
    /// count as logged from here on. Costs one load if there is none. The caller holds the shard's
    /// lock from here until the log has the bytes, so that definitions stay in order.
    pub fn take_pending(&self, shard: ShardId, out: &mut Vec<u8>) {
        let shard = &self.shared.shards[usize::from(shard.0)];
        if !shard.any_pending.load(Ordering::Acquire) {
            return;
        }
        let runs = {
            let mut runs = shard.pending.lock();
            shard.any_pending.store(false, Ordering::Release);
            std::mem::take(&mut *runs)
        };
        let version = self.version();
        for batch in runs.chunk_by(|a, b| a.0 == b.0) {
            // What is in memory no more is in a file that the manifest names.
            let layers = version.frozen.iter().chain([&version.active]);
            let Some(layer) = layers.into_iter().find(|layer| layer.number == batch[0].0) else {
                continue;
            };
            for runs in batch.chunks(BATCH_NEW) {
                let memory = layer.memory.read();
                runs.iter().for_each(|run| memory.definition_of(run.1).encode(out));
            }
        }
    }

    /// The log refused what [`Index::take_pending`] gave: every definition of `shard` that is not in
    /// a file is pending again. Replaying one twice does no harm.
    pub fn requeue(&self, shard: ShardId) {
        // Nothing is frozen or sealed meanwhile.
        let version = self.shared.version.read();
        let mut runs: Vec<(u64, MemberRun)> = Vec::new();
        let mut take = |layer: &MemorySegment, memory: &MemoryIndex| {
            let of_shard = (0..memory.parts.count()).filter(|&no| memory.parts.shard(no) == shard);
            runs.extend(of_shard.map(|part_no| {
                let count = memory.parts.sets(part_no).len() as u32;
                (layer.number, MemberRun { part_no, first: 0, count })
            }));
        };
        for layer in &version.frozen {
            take(layer, &layer.memory.read());
        }
        let memory = version.active.memory.read();
        take(&version.active, &memory);
        // The state is still locked: nobody can define a series that this list lacks.
        let shard = &self.shared.shards[usize::from(shard.0)];
        let mut pending = shard.pending.lock();
        shard.any_pending.store(!runs.is_empty(), Ordering::Release);
        *pending = runs;
    }

    /// Takes in definitions that the log gives back; what is known is skipped.
    ///
    /// # Errors
    /// `Corrupt` with the offset in the payload if it is no definition, or if it contradicts one; or
    /// of a damaged segment that may know it.
    pub fn replay(&self, payload: &[u8]) -> Result<()> {
        let version = self.version();
        let mut rest = payload;
        while !rest.is_empty() {
            let offset = (payload.len() - rest.len()) as u64;
            let bad =
                |e: Error| Error::corrupt("log entry with definitions", offset, e.to_string());
            let definition = definition::decode(&mut rest).map_err(bad)?;
            let mut is_sealed = Vec::with_capacity(definition.members.len());
            for slot in (definition.first_slot..).take(definition.members.len()) {
                let slot = Slot(slot);
                is_sealed.push(version.is_sealed(SeriesRef { group: definition.group, slot })?);
            }
            version.active.memory.write().restore(&definition, &is_sealed).map_err(bad)?;
        }
        Ok(())
    }

    /// Definitions of `shard` may be lost with a damaged part of the log. Rows were seen with ids up to
    /// `seen`: those are never given to another label set, and no group of the shard takes a new
    /// member, because a lost member may have had the next slot.
    ///
    /// # Errors
    /// `Invalid` if the id is absurd.
    pub fn distrust(&self, shard: ShardId, seen: Option<GroupId>) -> Result<()> {
        let version = self.version();
        let mut memory = version.active.memory.write();
        self.shared.shards[usize::from(shard.0)].is_distrusted.store(true, Ordering::Relaxed);
        memory.parts.close_all(shard);
        let next = seen.map_or(0, |group| self.shared.bits.local(group) + 1);
        memory.parts.reserve_ids(shard, next)
    }

    /// The time by which new series per second are counted; the index has no clock of its own.
    pub fn tick(&self, now_ms: Timestamp) {
        self.shared.limits.lock().tick(now_ms);
    }

    /// What is known now, for queries. Costs two locks and an `Arc`.
    pub fn view(&self) -> IndexView {
        let version = self.version();
        let mark = version.active.memory.read().watermark();
        IndexView::new(version, mark)
    }

    /// Freezes what was defined since the last seal; the job writes it to a file while others go on.
    /// `None` if there is nothing.
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
            let memory =
                RwLock::new(MemoryIndex::new(self.shared.bits, &self.shared.options, &next_ids));
            let active = Arc::new(MemorySegment { number, memory });
            next.frozen.push(std::mem::replace(&mut next.active, active));
            *version = Arc::new(next);
        } else {
            drop(memory);
        }
        if version.frozen.is_empty() {
            return None;
        }
        // One seal at a time: what another has written was not applied.
        self.shared.written.lock().retain(|written| written.layers.is_empty());
        let layers = version.frozen.clone();
        let written = Arc::clone(&self.shared.written);
        Some(SealJob { number: jobs.take_number(), layers, next_ids, written })
    }

    /// Neighbouring files of like size that should become one; `None` if there are few.
    pub fn plan_merge(&self) -> Option<MergeJob> {
        let mut jobs = self.shared.jobs.lock();
        let version = self.version();
        MergeJob::choose(&version.sealed).map(|inputs| self.merge_job(&mut jobs, inputs))
    }

    /// All files whose definitions the log does not have any more, to be made one without what has no
    /// data; `None` if there is none.
    pub fn plan_removal(&self) -> Option<MergeJob> {
        let mut jobs = self.shared.jobs.lock();
        let version = self.version();
        let settled = jobs.settled;
        let count = version.sealed.iter().take_while(|segment| segment.born < settled).count();
        (count > 0).then(|| self.merge_job(&mut jobs, &version.sealed[..count]))
    }

    fn merge_job(&self, jobs: &mut JobCatalog, inputs: &[Arc<FileSegment>]) -> MergeJob {
        // One merge at a time, as with seals.
        self.shared.written.lock().retain(|written| !written.layers.is_empty());
        let written = Arc::clone(&self.shared.written);
        MergeJob { number: jobs.take_number(), inputs: inputs.to_vec(), written }
    }

    /// A number above those of all seals so far; for [`Index::settle`].
    pub fn next_number(&self) -> u64 {
        self.shared.jobs.lock().next_number
    }

    /// Whatever was sealed when [`Index::next_number`] said `number` lies below the log's floor by now:
    /// no replay brings it back, so it may be removed for good.
    pub fn settle(&self, number: u64) {
        let mut jobs = self.shared.jobs.lock();
        jobs.settled = jobs.settled.max(number);
    }

    /// The manifest has the part that a job gave: its segment counts from here on, and the files that
    /// it replaces are removed. After a removal the generation is another.
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
            *version = Arc::new(next);
            obsolete
        };
        if written.is_removal {
            // Behind the swap: whoever reads the new one asks the new tip.
            self.shared.generation.fetch_add(1, Ordering::AcqRel);
            self.shared.limits.lock().recount();
        }
        for segment in obsolete {
            // One that stays is removed by the next open. Views that hold it go on reading it.
            let _ = self.shared.disk.remove(&segment.info.path());
        }
        Ok(())
    }

    /// The part of a [`Removal`](crate::Removal) will not be put into the manifest: its file goes.
    pub fn abandon(&self, part: &[u8]) -> Result<()> {
        let written = self.take_written(&CatalogEdit::decode(part)?)?;
        match written.segment {
            Some(segment) => self.shared.disk.remove(&segment.info.path()),
            None => Ok(()),
        }
    }

    /// For a reader of files that another process writes: the list of segments becomes that of `part`, a
    /// whole state. The files are there; those that it no longer names are removed. Views that were taken
    /// go on seeing what they saw.
    ///
    /// # Errors
    /// As [`Index::open`]; nothing has changed then.
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
            *version = Arc::new(IndexVersion { sealed, ..IndexVersion::clone(&version) });
        }
        self.shared.generation.fetch_add(1, Ordering::AcqRel);
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

    /// Reads every byte of the sealed segments against its checksum: one error for each damaged block. Blocks
    /// that were found sound since the start are not read again.
    pub fn check(&self) -> Vec<Error> {
        self.version().sealed.iter().flat_map(|segment| segment.sealed.check()).collect()
    }

    /// Writes the damaged file of `path` anew: broken blocks as `copy` has them, else without the series that need them; for
    /// [`Index::apply`]. Holds all bytes of the file, and its texts if something is lost. `None` if there is no such file.
    ///
    /// # Errors
    /// `Unavailable` if the disk fails or is full; `Corrupt` if nothing can be read.
    pub fn repair(&self, path: &str, copy: ReadCopy<'_>) -> Result<Option<Repaired>> {
        let (segment, number, next_ids) = {
            let mut jobs = self.shared.jobs.lock();
            let version = self.version();
            let found = version.sealed.iter().find(|segment| segment.info.path() == path);
            let Some(segment) = found.cloned() else { return Ok(None) };
            // One merge at a time, as with seals.
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

    /// As [`Index::repair`] before an index of `parts` is opened: a part behind them.
    ///
    /// # Errors
    /// As [`Index::repair`]; `Corrupt` too if the file is missing or its end is damaged; `Invalid` for parts that are none,
    /// or that do not name it.
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

    /// The whole sealed state as one manifest part.
    pub fn snapshot_part(&self) -> Vec<u8> {
        self.shared.jobs.lock().catalog.to_part().encode()
    }

    /// The files of the sealed state with their lengths. The next [`Index::apply`] may remove some.
    pub fn segment_files(&self) -> Vec<(String, u64)> {
        let jobs = self.shared.jobs.lock();
        let files = jobs.catalog.segments.iter();
        files.map(|segment| (segment.path(), segment.file_bytes)).collect()
    }

    /// What the bytes of all sealed segment files are spent on; together they are
    /// [`IndexStats::segment_bytes`].
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

    /// The files, with their lengths, that a manifest's `parts` name: for who brings them here before
    /// [`Index::open`] or [`Index::follow`].
    ///
    /// # Errors
    /// `Invalid` for parts that are none.
    pub fn files_of(parts: &[&[u8]]) -> Result<Vec<(String, u64)>> {
        let catalog = Catalog::read(parts)?;
        let files = catalog.segments.iter();
        Ok(files.map(|segment| (segment.path(), segment.file_bytes)).collect())
    }

    /// The part of an index without anything.
    pub fn empty_part() -> Vec<u8> {
        CatalogEdit::default().encode()
    }

    /// A part behind `parts` that leaves the file of `path` out, and how many series it has: they are forgotten. No group
    /// that there is takes a new member from then on.
    ///
    /// # Errors
    /// `Invalid` for parts that are none, or that do not name it.
    pub fn part_without(parts: &[&[u8]], path: &str) -> Result<(Vec<u8>, u64)> {
        let catalog = Catalog::read(parts)?;
        let info = catalog.segments.iter().find(|segment| segment.path() == path);
        let info = info.ok_or_else(|| Error::invalid(format!("the index does not name {path}")))?;
        let closed_ids = catalog.next_ids.clone();
        let part = CatalogEdit { removed: vec![info.number], closed_ids, ..CatalogEdit::default() };
        Ok((part.encode(), info.series_count))
    }

    /// Whether two lists of parts name the same file of `path`, as far as they tell: of the same length, with as many
    /// series and groups.
    ///
    /// # Errors
    /// `Invalid` for parts that are none.
    pub fn name_same(parts: &[&[u8]], others: &[&[u8]], path: &str) -> Result<bool> {
        let info = |parts| -> Result<Option<SegmentInfo>> {
            Ok(Catalog::read(parts)?.segments.into_iter().find(|segment| segment.path() == path))
        };
        let (one, other) = (info(parts)?, info(others)?);
        Ok(one.is_some() && one == other)
    }

    /// Sizes, for metrics and the memory budget. Cheap: sums that are kept, not a walk.
    pub fn stats(&self) -> IndexStats {
        let version = self.version();
        let mut stats = IndexStats::default();
        for layer in version.frozen.iter().chain([&version.active]) {
            stats.add_memory(&layer.memory.read());
        }
        for segment in &version.sealed {
            stats.add_segment(segment);
        }
        let limits = self.shared.limits.lock();
        stats.heap_bytes += limits.heap_bytes() as u64;
        stats.heap_bytes += self.shared.known.read().heap_bytes() as u64;
        stats.refused = limits.refused();
        stats
    }

    #[cfg(test)]
    pub(crate) fn segment_paths(&self) -> Vec<String> {
        self.segment_files().into_iter().map(|file| file.0).collect()
    }

    fn version(&self) -> Arc<IndexVersion> {
        Arc::clone(&self.shared.version.read())
    }
}

impl Shard {
    fn push_pending(&self, layer: u64, position: SeriesPosition) {
        let mut runs = self.pending.lock();
        match runs.last_mut() {
            Some((last_layer, last))
                if (*last_layer, last.part_no) == (layer, position.part_no)
                    && last.first + last.count == position.at =>
            {
                last.count += 1;
            }
            _ => runs.push((
                layer,
                MemberRun { part_no: position.part_no, first: position.at, count: 1 },
            )),
        }
        self.any_pending.store(true, Ordering::Release);
    }
}

/// Both label sets in one; they must not share a name.
fn join(group: &Labels, member: &Labels) -> Result<Labels> {
    if let Some(pair) = member.iter().find(|pair| group.get(pair.0).is_some()) {
        return Err(Error::invalid(format!(
            "member {member} repeats label {:?} of its group {group}; leave it out",
            pair.0
        )));
    }
    if group.is_empty() && member.is_empty() {
        return Err(Error::invalid("a series needs at least one label"));
    }
    Labels::from_pairs(group.iter().chain(member.iter()))
}
