//! The index as the engine uses it: resolves label sets, returns definitions for the log, creates
//! views, plans seals and merges.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use firn_env::Disk;
use firn_model::{
    CancelToken, Error, GroupId, Labels, Mutex, Result, RwLock, SeriesRef, ShardBits, ShardId,
    Slot, Timestamp,
};
use hashbrown::HashMap;

use crate::catalog::{Catalog, CatalogEdit, SegmentInfo};
use crate::definition::{self, DefinedSlots, Definition};
use crate::group_rules::{GROUP_SLOTS_GOOD, GroupRule, GroupRules};
use crate::jobs::{
    self, JobCatalog, MergeJob, ReadCopy, Repaired, SealJob, WrittenSegment, WrittenSegments,
};
use crate::known_refs::KnownRefs;
use crate::limits::{Admission, LimitCounters, NewSeries, SegmentCensus};
use crate::lock;
use crate::memory::index::{GrowingGroup, MemberRun, MemoryIndex, SeriesPosition};
use crate::memory::lookup::Lookup;
use crate::options::{GroupBy, IndexOptions};
use crate::pair::raw_pairs;
use crate::version::{FileSegment, IndexVersion, MemorySegment, RetiredSegments};
use crate::view::{IndexStats, IndexView};

/// All series of a database, shared by writers and queries. Every call takes `&self`.
#[derive(Clone, Debug)]
pub struct Index {
    shared: Arc<Shared>,
}

/// Lock order: `jobs`, `version`, the memory of the active segment, the memory of a frozen segment,
/// then `limits`, `retired`, `written`, `rules` or one of `shards`.
#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    bits: ShardBits,
    options: IndexOptions,
    jobs: Mutex<JobCatalog>,
    written: Arc<WrittenSegments>,
    version: RwLock<Arc<IndexVersion>>,
    /// Segments that left the version; views may still hold them.
    retired: Mutex<RetiredSegments>,
    limits: Mutex<LimitCounters>,
    /// Used with [`GroupBy::Auto`].
    rules: Mutex<GroupRules>,
    shards: Vec<Shard>,
    generation: AtomicU32,
    known: RwLock<KnownRefs>,
}

/// State of a shard other than its groups.
#[derive(Debug)]
struct Shard {
    /// Definitions that the log does not have yet, each with the number of its memory segment.
    pending: Mutex<Vec<(u64, MemberRun)>>,
    any_pending: AtomicBool,
    /// Groups of older segments take no new member, because definitions were lost.
    is_distrusted: AtomicBool,
    /// Groups with smaller local ids take no new member, see [`Index::part_without`].
    closed_below: AtomicU64,
}

/// The choice of the group of new series.
#[derive(Clone, Copy)]
enum Placement<'a> {
    /// By the options; with a timestamp of each series.
    ByOptions(&'a [Timestamp]),
    /// The group of these labels.
    Group(&'a Labels),
}

/// An unknown label set that is to be defined.
struct NewLabelSet<'l> {
    whole: &'l Labels,
    /// The identity labels of the group that it joins; `None`: a lone series.
    identity: Option<Labels>,
    is_by_options: bool,
    admission: Admission,
}

// A lookup of a known series takes about 0.5 us, a definition 1 us (examples/footprint.rs), so a
// batch holds the lock for at most half a millisecond.
const BATCH_KNOWN: usize = 1_024;
const BATCH_NEW: usize = 256;

impl Index {
    /// Opens the index from the `parts` of the manifest, in order. Maps all segment files but reads
    /// only their footers, names and schemas. Removes files in `index/` that no part names: they
    /// are left over from interrupted jobs.
    ///
    /// # Errors
    /// `Corrupt` with the file if a segment is missing or its footer is damaged, `Invalid` for bad
    /// options, parts or formats, `Unavailable` if the disk fails.
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
        let memory =
            RwLock::new(&lock::MEMORY, MemoryIndex::new(bits, &options, &catalog.next_ids));
        let active = Arc::new(MemorySegment { number: 0, memory });
        let shard = |idx: usize| Shard {
            closed_below: AtomicU64::new(catalog.closed_ids.get(idx).copied().unwrap_or(0)),
            pending: Mutex::new(&lock::PENDING, Vec::new()),
            any_pending: AtomicBool::new(false),
            is_distrusted: AtomicBool::new(false),
        };
        let shards = (0..bits.shard_count()).map(shard).collect();
        let shared = Shared {
            disk,
            limits: Mutex::new(&lock::LIMITS, LimitCounters::new(options.limits)),
            rules: Mutex::new(&lock::RULES, GroupRules::load(&catalog.rules)?),
            shards,
            bits,
            options,
            jobs: Mutex::new(&lock::JOBS, JobCatalog { catalog, next_number, settled: 0 }),
            written: Arc::new(Mutex::new(&lock::WRITTEN, Vec::new())),
            version: RwLock::new(
                &lock::VERSION,
                Arc::new(IndexVersion { sealed, frozen: Vec::new(), active }),
            ),
            retired: Mutex::new(&lock::RETIRED, RetiredSegments::default()),
            generation: AtomicU32::new(0),
            known: RwLock::new(&lock::KNOWN, KnownRefs::default()),
        };
        Ok(Index { shared: Arc::new(shared) })
    }

    /// Finds or defines each label set: the slow path of a write. Clears `out` and adds one result
    /// per label set, in order. A new series joins the group that `group_by` chooses or is a lone
    /// series. Takes about 0.5 us for a known label set and 1 us for a new one.
    ///
    /// # Errors
    /// Per label set: `SeriesLimit` if a new series exceeds a limit, `Invalid` for an empty label
    /// set, `TooLarge` if the index has no space for more text, `Corrupt` if a damaged segment may
    /// contain the label set.
    pub fn resolve(&self, labels: &[Labels], out: &mut Vec<Result<SeriesRef>>) {
        self.resolve_admitted(labels, &[], Admission::Limited, out);
    }

    /// As [`Index::resolve`], with a timestamp of each label set: series of one group come with
    /// equal ones, which [`GroupBy::Auto`] considers.
    pub fn resolve_at(
        &self,
        labels: &[Labels],
        times: &[Timestamp],
        out: &mut Vec<Result<SeriesRef>>,
    ) {
        self.resolve_admitted(labels, times, Admission::Limited, out);
    }

    /// As [`Index::resolve`], for series of the program itself: no limit on new series refuses
    /// them, though they count.
    pub fn resolve_exempt(&self, labels: &[Labels], out: &mut Vec<Result<SeriesRef>>) {
        self.resolve_admitted(labels, &[], Admission::Exempt, out);
    }

    fn resolve_admitted(
        &self,
        labels: &[Labels],
        times: &[Timestamp],
        admission: Admission,
        out: &mut Vec<Result<SeriesRef>>,
    ) {
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
                        out.push(Err(Error::invalid("a series has no labels: add at least one")));
                    }
                }
            }
        }
        missing.retain(|&idx| !labels[idx].is_empty());
        let whole: Vec<&Labels> = missing.iter().map(|&idx| &labels[idx]).collect();
        let times: Vec<Timestamp> =
            missing.iter().map(|&idx| times.get(idx).copied().unwrap_or(0)).collect();
        let found = self.find_or_define(&whole, admission, Placement::ByOptions(&times));
        for (&idx, found) in missing.iter().zip(found) {
            out[idx] = found;
        }
        // Rows of these series follow, so remember the references to save lookups in files.
        let found = out.iter().filter_map(|found| found.as_ref().ok().copied());
        self.shared.known.write().note(generation, found);
    }

    /// Finds or defines the members of a group that the caller names. Returns the groups, each
    /// once, and the references in order of `members`. There is usually one group; there are more
    /// if the group is full or if a label set was defined in another group before.
    ///
    /// # Errors
    /// `Invalid` if a member repeats a label name of the group or has no label at all;
    /// `SeriesLimit` if a new series exceeds a limit; `TooLarge` if the index has no space for more
    /// text; `Corrupt` if a damaged segment may contain a member. Members before the failed one
    /// stay defined.
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
            let placement = Placement::Group(group_labels);
            for found in self.find_or_define(&whole, Admission::Limited, placement) {
                series.push(found?);
            }
        }
        let mut groups: Vec<GroupId> = series.iter().map(|series| series.group).collect();
        groups.sort_unstable();
        groups.dedup();
        Ok((groups, series))
    }

    /// The labels that identify the group of a series; `None` for a lone series.
    fn identity(&self, labels: &Labels, placement: Placement<'_>) -> Option<Labels> {
        let names = match (placement, &self.shared.options.group_by) {
            (Placement::Group(group), _) => return Some(group.clone()),
            (_, GroupBy::Auto) => return self.shared.rules.lock().identity(labels),
            (_, GroupBy::Labels(names)) => names,
        };
        let is_group = |name: &[u8]| names.iter().any(|by| by.as_bytes() == name);
        let count = raw_pairs(labels).filter(|pair| is_group(pair.name)).count();
        let is_lone = names.is_empty() || count < names.len();
        (!is_lone).then(|| labels.filter(|name| is_group(name.as_bytes())))
    }

    /// Returns one result per label set of `whole`. Label sets that are in no older segment are
    /// found or defined in the active one, in the group that `placement` chooses.
    fn find_or_define(
        &self,
        whole: &[&Labels],
        admission: Admission,
        placement: Placement<'_>,
    ) -> Vec<Result<SeriesRef>> {
        let mut version = self.version();
        let mut finder = version.finder();
        let mut found: Vec<Option<Result<SeriesRef>>> =
            whole.iter().map(|labels| finder.find(labels).transpose()).collect();
        let is_auto = self.shared.options.group_by == GroupBy::Auto;
        if let (Placement::ByOptions(times), true) = (placement, is_auto) {
            // Before any is defined: the first series of a sender are enough for most rules.
            let new = whole.iter().zip(times).zip(&found).filter(|new| new.1.is_none());
            self.shared.rules.lock().observe(new.map(|new| (*new.0.0, *new.0.1)));
        }
        for (whole, found) in whole.chunks(BATCH_NEW).zip(found.chunks_mut(BATCH_NEW)) {
            if found.iter().any(Option::is_none) {
                self.define_missing(&mut version, whole, (admission, placement), found);
            }
        }
        found.into_iter().flatten().collect()
    }

    /// Defines the label sets that have no result yet.
    fn define_missing(
        &self,
        version: &mut Arc<IndexVersion>,
        whole: &[&Labels],
        (admission, placement): (Admission, Placement<'_>),
        found: &mut [Option<Result<SeriesRef>>],
    ) {
        let mut wanted: Vec<NewLabelSet<'_>> = Vec::with_capacity(whole.len());
        for (&whole, found) in whole.iter().zip(&*found) {
            let identity = if found.is_none() { self.identity(whole, placement) } else { None };
            let is_by_options = matches!(placement, Placement::ByOptions(_));
            wanted.push(NewLabelSet { whole, identity, is_by_options, admission });
        }
        // Groups of older segments that take more members, by identity labels.
        let mut growing: HashMap<&Labels, Option<GrowingGroup>> = HashMap::new();
        while found.iter().any(Option::is_none) {
            // Lookups in files run without a lock.
            let deferred = {
                let mut memory = version.active.memory.write();
                (!memory.is_frozen)
                    .then(|| self.define_some(version, &mut memory, &wanted, &growing, found))
            };
            let Some(deferred) = deferred else {
                // The segment was frozen meanwhile.
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

    /// Defines all label sets that need no lookup of their group in older segments. Returns the
    /// indexes in `wanted` of the others, one or more per group.
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
            // Another writer or an earlier entry of this batch may have defined it.
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

    /// Checks the limits before any text is stored, so that refused label sets cost no memory.
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
        let census = SegmentCensus::new(version, memory);
        let mut limits = self.shared.limits.lock();
        match wanted.admission {
            Admission::Limited => limits.admit(&new, &census)?,
            Admission::Exempt => limits.admit_exempt(&new),
        }
        drop((limits, census));
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
        if wanted.is_by_options && memory.series_ref(position).slot.0 >= GROUP_SLOTS_GOOD {
            self.shared.rules.lock().note_overgrown(whole);
        }
        let shard = &self.shared.shards[usize::from(memory.parts.shard(position.part_no).0)];
        shard.push_pending(version.active.number, position);
        Ok(position)
    }

    /// The group of an older segment that takes a new member of `identity`.
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

    /// The reference of a label set; `None` if it is unknown.
    ///
    /// # Errors
    /// `Corrupt` if a damaged segment may contain the label set.
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

    /// Whether a reference is known. Takes a lock; use [`Index::find_unknown`] for a batch.
    ///
    /// # Errors
    /// `Corrupt` if a damaged segment may contain the reference.
    pub fn contains(&self, series: SeriesRef) -> Result<bool> {
        let version = self.version();
        Ok(version.is_in_memory(series) || version.is_sealed(series)?)
    }

    /// The first unknown reference of `series`; `None` if all are known.
    ///
    /// # Errors
    /// `Corrupt` if a damaged segment may contain a reference.
    pub fn find_unknown(
        &self,
        series: impl IntoIterator<Item = SeriesRef>,
    ) -> Result<Option<SeriesRef>> {
        let mut series = series.into_iter().peekable();
        while series.peek().is_some() {
            let unknown = self.find_unknown_of_few(series.by_ref().take(BATCH_KNOWN))?;
            if unknown.is_some() {
                return Ok(unknown);
            }
        }
        Ok(None)
    }

    /// As [`Index::find_unknown`] with lists of all `series`, the memory of which is not reserved.
    fn find_unknown_of_few(
        &self,
        series: impl Iterator<Item = SeriesRef>,
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

    /// A number that changes when issued references become invalid. Callers that keep references
    /// store the generation with them, read before the references were requested.
    pub fn generation(&self) -> u32 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// Appends to `out` the definitions of `shard` that the log does not have yet, in order, and
    /// marks them as logged. Costs one atomic load if there are none. The caller holds the shard's
    /// lock until the bytes are in the log; this keeps definitions in order.
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
            // If its segment is no longer in memory, the definition is in a file that the manifest
            // names.
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

    /// Makes every definition of `shard` that is not in a file pending again. For a log that
    /// refused the bytes of [`Index::take_pending`]. Replaying a definition twice is harmless.
    pub fn requeue(&self, shard: ShardId) {
        // This lock prevents freezing and sealing meanwhile.
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
        // The active segment is still locked, so no series is defined that this list lacks.
        let shard = &self.shared.shards[usize::from(shard.0)];
        let mut pending = shard.pending.lock();
        shard.any_pending.store(!runs.is_empty(), Ordering::Release);
        *pending = runs;
    }

    /// Restores definitions from the log; skips known ones.
    ///
    /// # Errors
    /// `Corrupt` with the offset in the payload if the bytes are no definition or contradict a
    /// known one, or if a damaged segment may contain the series.
    pub fn replay(&self, payload: &[u8]) -> Result<()> {
        let version = self.version();
        let mut rest = payload;
        let mut is_sealed = Vec::new();
        while !rest.is_empty() {
            let offset = (payload.len() - rest.len()) as u64;
            let bad =
                |e: Error| Error::corrupt("log entry with definitions", offset, e.to_string());
            let mut whole = rest;
            let DefinedSlots { group, first_slot, count } =
                definition::skip(&mut rest).map_err(bad)?;
            is_sealed.clear();
            for slot in (first_slot..).take(count as usize).map(Slot) {
                let series = SeriesRef { group, slot };
                is_sealed.push(version.is_frozen(series) || version.is_sealed(series)?);
            }
            // Index files are written between flushes too, so this is the usual case. Decoding the
            // labels would be most of the work. The rules of its group were saved with the file.
            if !is_sealed.is_empty() && is_sealed.iter().all(|&is_sealed| is_sealed) {
                continue;
            }
            let definition = definition::decode(&mut whole).map_err(bad)?;
            version.active.memory.write().restore(&definition, &is_sealed).map_err(bad)?;
            self.recall_rules(&definition);
        }
        Ok(())
    }

    /// Learns the keys of groups that were defined since the last seal.
    fn recall_rules(&self, definition: &Definition) {
        if definition.lone || self.shared.options.group_by != GroupBy::Auto {
            return;
        }
        let mut rules = self.shared.rules.lock();
        for member in &definition.members {
            if !rules.is_recalled(&definition.labels, [&definition.common, member]) {
                let group = definition.labels.iter().chain(definition.common.iter());
                if let Ok(whole) = Labels::from_pairs(group.chain(member.iter())) {
                    rules.recall(&whole, &definition.labels);
                }
            }
        }
    }

    /// The rule by which series join the group of `identity`.
    pub fn group_rule(&self, identity: &Labels) -> GroupRule {
        if let GroupBy::Labels(names) = &self.shared.options.group_by {
            let is_it = names.iter().eq(identity.iter().map(|pair| pair.0));
            return if is_it { GroupRule::Setting } else { GroupRule::Other };
        }
        self.shared.rules.lock().rule_of(identity).unwrap_or(GroupRule::Other)
    }

    /// Records that definitions of `shard` may be lost with a damaged part of the log. `seen` is
    /// the largest group id found in rows: ids up to it are never issued again. No group of the
    /// shard takes a new member, because a lost member may have had the next slot.
    ///
    /// # Errors
    /// `Invalid` if the id leaves an implausible hole.
    pub fn distrust(&self, shard: ShardId, seen: Option<GroupId>) -> Result<()> {
        let version = self.version();
        let mut memory = version.active.memory.write();
        self.shared.shards[usize::from(shard.0)].is_distrusted.store(true, Ordering::Relaxed);
        memory.parts.close_all(shard);
        let next = seen.map_or(0, |group| self.shared.bits.local(group) + 1);
        memory.parts.reserve_ids(shard, next)
    }

    /// Sets the time for the limit of new series per second; the index has no clock of its own.
    pub fn tick(&self, now_ms: Timestamp) {
        self.shared.limits.lock().tick(now_ms);
    }

    /// A view of all series that are known now, for queries. Costs two locks and an `Arc`.
    pub fn view(&self) -> IndexView {
        let version = self.version();
        let mark = version.active.memory.read().watermark();
        IndexView::new(version, mark)
    }

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

    /// Sizes for metrics and the memory budget. Cheap: adds up maintained sums.
    pub fn stats(&self) -> IndexStats {
        let version = self.version();
        let mut stats = IndexStats::default();
        for layer in version.frozen.iter().chain([&version.active]) {
            stats.add_memory(&layer.memory.read());
        }
        for segment in &version.sealed {
            stats.add_segment(segment);
        }
        // Views that still hold segments of earlier versions keep their memory.
        stats.heap_bytes += self.shared.retired.lock().heap_bytes();
        stats.heap_bytes += self.shared.rules.lock().heap_bytes() as u64;
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

/// Both label sets as one.
///
/// # Errors
/// `Invalid` if they share a name or both are empty.
fn join(group: &Labels, member: &Labels) -> Result<Labels> {
    if let Some(pair) = member.iter().find(|pair| group.get(pair.0).is_some()) {
        return Err(Error::invalid(format!(
            "member {member} repeats label {:?} of its group {group}; leave it out",
            pair.0
        )));
    }
    if group.is_empty() && member.is_empty() {
        return Err(Error::invalid("a series has no labels: add at least one"));
    }
    Labels::from_pairs(group.iter().chain(member.iter()))
}
