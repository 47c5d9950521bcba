//! The index as the engine holds it: resolve, definitions for the log, views, seals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use firn_env::Disk;
use firn_model::{Error, GroupId, Labels, Result, SeriesRef, ShardId, Timestamp};
use parking_lot::{Mutex, RwLock};

use crate::definition::{self, Run, encode_run};
use crate::limits::{Limits, NewSeries};
use crate::lookup::Lookup;
use crate::options::IndexOptions;
use crate::pairs::raw_pairs;
use crate::part::Part;
use crate::seal::{SealJob, SealState};
use crate::sets::LOST_SET;
use crate::state::{Place, State};
use crate::view::{IndexStats, IndexView};

/// Which series are there. Shared by writers and queries; every call takes `&self`.
#[derive(Clone, Debug)]
pub struct Index {
    shared: Arc<Shared>,
}

/// Lock order: `seal`, then `state`, then `limits` or one of `pending`.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) options: IndexOptions,
    pub(crate) seal: Mutex<SealState>,
    /// Held for reading while a bounded piece of a query or seal looks at it, never over I/O.
    pub(crate) state: RwLock<State>,
    limits: Mutex<Limits>,
    pending: Vec<Pending>,
    generation: AtomicU32,
}

/// Definitions of one shard that the log has not been given.
#[derive(Debug, Default)]
struct Pending {
    any: AtomicBool,
    runs: Mutex<Vec<Run>>,
}

// Known series take about 0.5 us each and new ones 1 (examples/footprint.rs): nobody waits for more
// than half a millisecond.
const BATCH_KNOWN: usize = 1_024;
const BATCH_NEW: usize = 256;

impl Index {
    /// The index as the manifest describes it: `parts` are its parts in order. Reads all segments;
    /// files in `index/` that no part names are what is left of an interrupted seal and go.
    ///
    /// # Errors
    /// `Corrupt` with file and offset for a segment that is missing or damaged, `Invalid` for bad
    /// options, parts or formats, `Unavailable` if the disk fails.
    pub fn open(disk: Arc<dyn Disk>, options: IndexOptions, parts: &[&[u8]]) -> Result<Index> {
        let options = options.checked()?;
        let parts = parts.iter().map(|part| Part::decode(part)).collect::<Result<Vec<_>>>()?;
        let mut state = State::new(&options);
        let seal = SealState::open(&*disk, &parts, &mut state)?;
        let pending = (0..options.shard_bits.shard_count()).map(|_| Pending::default()).collect();
        let shared = Shared {
            disk,
            limits: Mutex::new(Limits::new(options.limits)),
            options,
            seal: Mutex::new(seal),
            state: RwLock::new(state),
            pending,
            generation: AtomicU32::new(0),
        };
        Ok(Index { shared: Arc::new(shared) })
    }

    /// Finds or defines each label set, the slow path: `out` is cleared and gets one answer per label
    /// set, in order. A series that has all `group_by` labels joins the group of their values, any
    /// other is a group of one. About 0.5 us for a known one, 1 us for a new one.
    ///
    /// # Errors
    /// Per label set: `SeriesLimit` over a limit (known ones go on), `Invalid` without any label,
    /// `TooLarge` when the index cannot hold more text.
    pub fn resolve(&self, labels: &[Labels], out: &mut Vec<Result<SeriesRef>>) {
        out.clear();
        out.reserve(labels.len());
        let mut lookup = Lookup::default();
        let mut missing: Vec<usize> = Vec::new();
        for batch in labels.chunks(BATCH_KNOWN) {
            let state = self.shared.state.read();
            for labels in batch {
                match lookup.find(&state, labels) {
                    Some(place) => out.push(Ok(state.series_ref(place))),
                    None => {
                        missing.push(out.len());
                        out.push(Err(Error::invalid("a series needs at least one label")));
                    }
                }
            }
        }
        for batch in missing.chunks(BATCH_NEW) {
            let mut state = self.shared.state.write();
            for &idx in batch.iter().filter(|&&idx| !labels[idx].is_empty()) {
                // Another writer, or this batch itself, may have defined it meanwhile.
                let place = match lookup.find(&state, &labels[idx]) {
                    Some(place) => Ok(place),
                    None => self.define_by_options(&mut state, &mut lookup, &labels[idx]),
                };
                out[idx] = place.map(|place| state.series_ref(place));
            }
        }
    }

    /// Finds or defines the members of a group that the caller names. Their references come in order
    /// of `members`, before them the groups that they are in, each once: mostly one, more if the
    /// group is full or if a member's label set was defined elsewhere before.
    ///
    /// # Errors
    /// `Invalid` if a member repeats a name of the group or has no label in all; `SeriesLimit` over
    /// a limit; `TooLarge` when the index cannot hold more text. Members before the one that
    /// failed are defined.
    pub fn resolve_group(
        &self,
        group_labels: &Labels,
        members: &[Labels],
    ) -> Result<(Vec<GroupId>, Vec<SeriesRef>)> {
        let mut series = Vec::with_capacity(members.len());
        for batch in members.chunks(BATCH_NEW) {
            let whole =
                batch.iter().map(|m| join(group_labels, m)).collect::<Result<Vec<Labels>>>()?;
            let mut lookup = Lookup::default();
            let known: Option<Vec<SeriesRef>> = {
                let state = self.shared.state.read();
                let mut find = |labels| lookup.find(&state, labels).map(|p| state.series_ref(p));
                whole.iter().map(&mut find).collect()
            };
            if let Some(known) = known {
                series.extend(known);
                continue;
            }
            let mut state = self.shared.state.write();
            for (whole, member) in whole.iter().zip(batch) {
                let place = match lookup.find(&state, whole) {
                    Some(place) => place,
                    None => self.define_member(&mut state, group_labels, member)?,
                };
                series.push(state.series_ref(place));
            }
        }
        let mut groups: Vec<GroupId> = series.iter().map(|series| series.group).collect();
        groups.sort_unstable();
        groups.dedup();
        Ok((groups, series))
    }

    /// The reference of a label set, if it has one.
    pub fn lookup(&self, labels: &Labels) -> Option<SeriesRef> {
        let state = self.shared.state.read();
        Lookup::default().find(&state, labels).map(|place| state.series_ref(place))
    }

    /// Whether a reference was given by this index. Takes the lock: ask [`Index::contains_all`] for
    /// a batch.
    pub fn contains(&self, series: SeriesRef) -> bool {
        self.shared.state.read().place(series).is_some()
    }

    /// The first of `series` that this index never gave, if there is one. One lock for all; a group
    /// is looked up once for neighbours, so sorted ones cost a few nanoseconds each.
    pub fn find_unknown(&self, series: impl IntoIterator<Item = SeriesRef>) -> Option<SeriesRef> {
        let state = self.shared.state.read();
        let mut last: Option<(GroupId, &[u32])> = None;
        series.into_iter().find(|series| {
            let slots = match last {
                Some((group, slots)) if group == series.group => slots,
                _ => state.groups.find(series.group).map_or(&[][..], |no| state.groups.slots(no)),
            };
            last = Some((series.group, slots));
            slots.get(series.slot.0 as usize).is_none_or(|&set| set == LOST_SET)
        })
    }

    /// Whether all references were given by this index. One lock for all.
    pub fn contains_all(&self, series: impl IntoIterator<Item = SeriesRef>) -> bool {
        self.find_unknown(series).is_none()
    }

    /// Changes when a reference that was given out stops being valid; whoever keeps references keeps
    /// this beside them. Nothing is taken back in this version, so it stays.
    pub fn generation(&self) -> u32 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// Appends the definitions of `shard` that the log was not given yet, in order, to `out`; they
    /// count as logged from here on. Costs one load if there is none. The caller holds the shard's
    /// lock from here until the log has the bytes, so that definitions stay in order.
    pub fn take_pending(&self, shard: ShardId, out: &mut Vec<u8>) {
        let pending = &self.shared.pending[usize::from(shard.0)];
        if !pending.any.load(Ordering::Acquire) {
            return;
        }
        let runs = {
            let mut runs = pending.runs.lock();
            pending.any.store(false, Ordering::Release);
            std::mem::take(&mut *runs)
        };
        for batch in runs.chunks(BATCH_NEW) {
            let state = self.shared.state.read();
            batch.iter().for_each(|&run| encode_run(&state, run, out));
        }
    }

    /// The log refused what [`Index::take_pending`] gave: every definition of `shard` that is not in
    /// a segment is pending again. Replaying one twice does no harm.
    pub fn requeue(&self, shard: ShardId) {
        let sealed = self.shared.seal.lock().sealed_series();
        let state = self.shared.state.read();
        let touched = state.groups.touched_since(sealed);
        let of_shard = touched.into_iter().filter(|&no| state.groups.shard(no) == shard);
        let runs: Vec<Run> = of_shard.filter_map(|no| unsealed_run(&state, no, sealed)).collect();
        // The state is still locked: nobody can define a series that this list lacks.
        let pending = &self.shared.pending[usize::from(shard.0)];
        let mut pending_runs = pending.runs.lock();
        pending.any.store(!runs.is_empty(), Ordering::Release);
        *pending_runs = runs;
    }

    /// Takes in definitions that the log gives back; what is known is skipped.
    ///
    /// # Errors
    /// `Corrupt` with the offset in the payload if it is no definition, or if it contradicts one.
    pub fn replay(&self, payload: &[u8]) -> Result<()> {
        let mut rest = payload;
        while !rest.is_empty() {
            let offset = (payload.len() - rest.len()) as u64;
            let taken = definition::decode(&mut rest)
                .and_then(|definition| self.shared.state.write().restore(&definition));
            taken
                .map_err(|e| Error::corrupt("log entry with definitions", offset, e.to_string()))?;
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
        let mut state = self.shared.state.write();
        state.groups.close_all(shard);
        let next = seen.map_or(0, |group| self.shared.options.shard_bits.local(group) + 1);
        state.groups.reserve_ids(shard, next)
    }

    /// The time by which new series per second are counted; the index has no clock of its own.
    pub fn tick(&self, now_ms: Timestamp) {
        self.shared.limits.lock().tick(now_ms);
    }

    /// What is known now, for queries. Costs a lock and an `Arc`.
    pub fn view(&self) -> IndexView {
        let watermark = self.shared.state.read().watermark();
        IndexView::new(Arc::clone(&self.shared), watermark)
    }

    /// A job that seals all definitions since the last one, or nothing to do. Small segments are
    /// rewritten with it, so that there are at most logarithmically many.
    pub fn plan_seal(&self) -> Option<SealJob> {
        SealJob::plan(&self.shared)
    }

    /// The manifest has the part that [`SealJob::run`] gave: its segment counts from here on, and
    /// the files that it replaces are removed.
    ///
    /// # Errors
    /// `Invalid` if the part is not from the last planned job.
    pub fn apply(&self, part: &[u8]) -> Result<()> {
        let part = Part::decode(part)?;
        let obsolete = self.shared.seal.lock().apply(&part)?;
        if part.kept == 0 {
            self.shared.state.write().filled = false;
        }
        for segment in obsolete {
            // One that stays is removed by the next open.
            let _ = self.shared.disk.remove(&segment.path());
        }
        Ok(())
    }

    /// The whole sealed state as one manifest part.
    pub fn snapshot_part(&self) -> Vec<u8> {
        self.shared.seal.lock().snapshot().encode()
    }

    /// The files of the sealed state with their lengths. The next [`Index::apply`] may remove some.
    pub fn segment_files(&self) -> Vec<(String, u64)> {
        let part = self.shared.seal.lock().snapshot();
        part.added.iter().map(|segment| (segment.path(), segment.file_bytes)).collect()
    }

    /// Sizes, for metrics and the memory budget. Cheap: sums that are kept, not a walk.
    pub fn stats(&self) -> IndexStats {
        let (segment_count, segment_bytes) = self.shared.seal.lock().sizes();
        let state = self.shared.state.read();
        let limits = self.shared.limits.lock();
        IndexStats {
            series_count: state.live_count(),
            group_count: u64::from(state.groups.count()),
            member_set_count: u64::from(state.sets.count()),
            name_count: u64::from(state.pairs.name_count()),
            pair_count: u64::from(state.pairs.pair_count()),
            heap_bytes: (state.heap_bytes() + limits.heap_bytes()) as u64,
            segment_count,
            segment_bytes,
            refused: limits.refused(),
        }
    }

    #[cfg(test)]
    pub(crate) fn segment_paths(&self) -> Vec<String> {
        let part = self.shared.seal.lock().snapshot();
        part.added.iter().map(|segment| segment.path()).collect()
    }

    fn define_by_options<'l>(
        &self,
        state: &mut State,
        lookup: &mut Lookup<'l>,
        labels: &'l Labels,
    ) -> Result<Place> {
        let group_by = &self.shared.options.group_by;
        let is_group = |name: &[u8]| group_by.iter().any(|by| by.as_bytes() == name);
        let is_lone = group_by.is_empty()
            || raw_pairs(labels).filter(|pair| is_group(pair.name)).count() < group_by.len();
        let group_labels = || labels.filter(|name| is_group(name.as_bytes()));
        let group: Option<&dyn Fn() -> Labels> = (!is_lone).then_some(&group_labels);
        self.define_admitted(state, labels.metric_name(), group, |state| {
            lookup.intern(state, labels)?;
            if is_lone {
                return state.define(&lookup.ids, &[], true, || labels.hash64());
            }
            let (mut group, mut member) = (Vec::new(), Vec::new());
            for (pair, &id) in raw_pairs(labels).zip(&lookup.ids) {
                if is_group(pair.name) { group.push(id) } else { member.push(id) }
            }
            state.define(&group, &member, false, || group_labels().hash64())
        })
    }

    fn define_member(&self, state: &mut State, group: &Labels, member: &Labels) -> Result<Place> {
        let metric = if member.metric_name().is_empty() { group } else { member }.metric_name();
        self.define_admitted(state, metric, Some(&|| group.clone()), |state| {
            let group_ids = state.intern_all(group)?;
            let member_ids = state.intern_all(member)?;
            state.define(&group_ids, &member_ids, false, || group.hash64())
        })
    }

    /// Asks the limits before any text is stored: refused label sets must not cost memory.
    fn define_admitted(
        &self,
        state: &mut State,
        metric: &str,
        group: Option<&dyn Fn() -> Labels>,
        define: impl FnOnce(&mut State) -> Result<Place>,
    ) -> Result<Place> {
        state.check_number()?;
        self.shared.limits.lock().admit(&NewSeries { metric, group }, state)?;
        let place = define(state).inspect_err(|_| self.shared.limits.lock().recount())?;
        self.push_pending(state, place);
        Ok(place)
    }

    fn push_pending(&self, state: &State, place: Place) {
        let shard = state.groups.shard(place.group_no);
        self.shared.pending[usize::from(shard.0)].push(place);
    }
}

impl Pending {
    fn push(&self, place: Place) {
        let mut runs = self.runs.lock();
        match runs.last_mut() {
            Some(last)
                if last.group_no == place.group_no
                    && last.first_slot + last.count == place.slot =>
            {
                last.count += 1;
            }
            _ => runs.push(Run { group_no: place.group_no, first_slot: place.slot, count: 1 }),
        }
        self.any.store(true, Ordering::Release);
    }
}

/// The slots of a group from series `sealed` on.
pub(crate) fn unsealed_run(state: &State, group_no: u32, sealed: u32) -> Option<Run> {
    let first_slot = state.groups.slot_count_below(group_no, sealed);
    let slots = state.groups.slots(group_no);
    let count = (slots.len() as u32).saturating_sub(first_slot);
    let known = slots.iter().skip(first_slot as usize).any(|&set| set != LOST_SET);
    known.then_some(Run { group_no, first_slot, count })
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
