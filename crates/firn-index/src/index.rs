//! The index as the engine uses it: finds series, returns definitions for the log, creates views.
//! `resolve` defines series, and `segments` manages the files.

mod resolve;
mod segments;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use firn_env::Disk;
use firn_model::{
    Error, GroupId, Labels, Mutex, Result, RwLock, SeriesRef, ShardBits, ShardId, Slot, Timestamp,
};

use crate::catalog::Catalog;
use crate::definition::{self, DefinedSlots, Definition};
use crate::group_rules::{GroupRule, GroupRules};
use crate::jobs::{self, JobCatalog, WrittenSegments};
use crate::known_refs::KnownRefs;
use crate::limits::LimitCounters;
use crate::lock;
use crate::memory::index::{MemberRun, MemoryIndex, SeriesPosition};
use crate::memory::lookup::Lookup;
use crate::options::{GroupBy, IndexOptions};
use crate::version::{IndexVersion, MemorySegment, RetiredSegments};
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

    pub(crate) fn version(&self) -> Arc<IndexVersion> {
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
