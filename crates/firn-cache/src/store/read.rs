//! Lookups: which parts of a range are cached, and their points.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use firn_model::{CommitSeq, Error, Reservation, Result, TimeRange, Timestamp};

use super::state::{Body, FlashSlab, Store, StoreState, hash};
use crate::device::Device;
use crate::key_index::Segment;
use crate::mutant::mutant;
use crate::policy::SlabId;
use crate::slab::{Header, OpenPoint, OpenSlab, Preamble};

/// Up to this many unneeded blocks between two needed ones are read with them: 16 KiB more take
/// less time than another read.
const GAP_BLOCKS_MAX: usize = 4;

/// A get starts over at most this many times because a slab turned out to be damaged.
const TRIES_MAX: usize = 16;

/// A lookup.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The field of the key.
    pub field: u64,
    /// The range of time.
    pub range: TimeRange,
    /// The caller's snapshot: points computed from a later one are not returned.
    pub number: CommitSeq,
    /// A partial answer is returned only if it has about this many bytes, because computing the
    /// rest has a fixed price. The paper uses 512 KiB; 0 returns every part.
    pub partial_bytes_min: u64,
    /// Nothing is returned if more than about this many bytes, in whole blocks, would have to be
    /// read.
    pub bytes_max: u64,
}

/// Why cached points were not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeclineReason {
    /// A partial answer is smaller than [`Lookup::partial_bytes_min`].
    TooSmall,
    /// More than [`Lookup::bytes_max`] would have to be read.
    TooLarge,
    /// The memory for the points could not be reserved.
    NoMemory,
}

/// The cached part of a looked-up range.
#[derive(Debug)]
pub struct CachedRange {
    /// The missing range, empty for a hit. Everything before and after it is here.
    pub missing: TimeRange,
    /// The part of `missing` that is not in the cache: smaller than `missing` if cached points were
    /// not returned. A caller that computes all of `missing` need set only this.
    pub absent: TimeRange,
    /// Why everything is missing although something is cached.
    pub declined: Option<DeclineReason>,
    device: Option<String>,
    parts: Vec<CachedPart>,
}

#[derive(Debug)]
enum CachedPart {
    Memory(Copied),
    Flash(FlashPart),
}

struct FlashPart {
    header: Arc<Header>,
    range: TimeRange,
    /// The bit arrays that have the key.
    sets: Vec<u32>,
    /// The runs of blocks with their points, and their bytes once they are read.
    runs: Vec<(Range<usize>, Vec<u8>)>,
}

/// Points of a slab in memory.
#[derive(Debug, Default)]
struct Copied {
    bytes: Vec<u8>,
    /// Time, head, and the end of the payload in `bytes`.
    points: Vec<(Timestamp, Option<u32>, usize)>,
    /// All heads of the slab.
    heads: Vec<Arc<[u8]>>,
}

const COPIED_POINT_BYTES: usize = size_of::<(Timestamp, Option<u32>, usize)>();

/// The result of a lookup in the index, before anything is read.
struct ReadPlan {
    missing: TimeRange,
    absent: TimeRange,
    is_too_small: bool,
    sources: Vec<PointSource>,
}

/// The result of reading.
enum ReadOutcome {
    Done(Vec<CachedPart>),
    /// More than the caller allows.
    Declined(DeclineReason),
    /// The read would have to wait for the device.
    WouldWait,
}

/// The source of the points of a range.
enum PointSource {
    Sealed(Arc<OpenSlab>, TimeRange),
    Flash(SlabId, Arc<FlashSlab>, TimeRange),
    Copied(Copied),
}

/// A point that is returned.
#[derive(Clone, Copy, Debug)]
pub struct PointRef<'a> {
    /// Its time.
    pub ts: Timestamp,
    /// Bytes that it shares with neighbouring points: one `Arc` for neighbours of one slab.
    pub head: Option<&'a Arc<[u8]>>,
    /// Its value.
    pub payload: &'a [u8],
}

impl Store {
    /// Returns the cached part of a range, and records a use of the slabs that have it.
    ///
    /// Never fails: ranges that cannot be read are missing.
    pub fn get(&self, ask: &Lookup<'_>) -> CachedRange {
        self.try_get(ask, true, None).unwrap_or_else(|| CachedRange::nothing(ask))
    }

    /// Like [`Store::get`], but reserves the bytes of the points in `held` before they are read. If
    /// that is refused, the range is declined.
    pub fn get_reserved(&self, ask: &Lookup<'_>, held: &mut Reservation) -> CachedRange {
        self.try_get(ask, true, Some(held)).unwrap_or_else(|| CachedRange::nothing(ask))
    }

    /// Like [`Store::get_reserved`], but `None`, and nothing is counted, if it would wait for the
    /// device or memory is refused.
    pub fn get_now(&self, ask: &Lookup<'_>, held: &mut Reservation) -> Option<CachedRange> {
        self.try_get(ask, false, Some(held))
    }

    /// `None` if it would have to wait, or has no memory, and `may_wait` is false.
    fn try_get(
        &self,
        ask: &Lookup<'_>,
        may_wait: bool,
        mut held: Option<&mut Reservation>,
    ) -> Option<CachedRange> {
        for _ in 0..TRIES_MAX {
            let ReadPlan { missing, absent, is_too_small, sources } = self.state.lock().find(ask);
            match self.read(ask, sources, may_wait, held.as_deref_mut()) {
                Ok(ReadOutcome::Done(parts)) => {
                    self.count_get(ask, missing, parts.iter().map(CachedPart::bytes).sum());
                    let device = Some(self.device.path().to_owned());
                    let declined = is_too_small.then_some(DeclineReason::TooSmall);
                    return Some(CachedRange { missing, absent, declined, device, parts });
                }
                // The caller looks it up again, which counts it.
                Ok(ReadOutcome::Declined(DeclineReason::NoMemory)) if !may_wait => return None,
                Ok(ReadOutcome::Declined(reason)) => {
                    self.count_get(ask, ask.range, 0);
                    let declined = Some(reason);
                    return Some(CachedRange { absent, declined, ..CachedRange::nothing(ask) });
                }
                Ok(ReadOutcome::WouldWait) => return None,
                Err((slab, error)) => self.state.lock().lose(slab, &error),
            }
        }
        self.count_get(ask, ask.range, 0);
        Some(CachedRange::nothing(ask))
    }

    /// Approximate cached bytes of a range, by its density (TSCache 3.3). Reads nothing and records
    /// no use.
    pub fn estimate_bytes(&self, ask: &Lookup<'_>) -> u64 {
        let state = self.state.lock();
        let entry = state.fields.get(&ask.field).and_then(|field| field.keys.get(ask.key));
        let parts = entry.into_iter().flat_map(|entry| entry.within(ask.range));
        parts.map(|(part, segment)| segment.bytes_of(part)).sum::<f64>() as u64
    }

    /// Whether the range has more than `parts_max` separate parts in the cache: a lookup takes time
    /// for each, however few bytes it has. Takes time for `parts_max` at most.
    pub fn is_scattered(&self, ask: &Lookup<'_>, parts_max: usize) -> bool {
        let state = self.state.lock();
        let entry = state.fields.get(&ask.field).and_then(|field| field.keys.get(ask.key));
        entry.is_some_and(|entry| entry.within(ask.range).nth(parts_max).is_some())
    }

    /// Whether the cache turned itself off because its device fails.
    pub(crate) fn is_off(&self) -> bool {
        self.state.lock().is_off
    }

    /// The missing part of a range, as [`CachedRange::missing`] if everything can be read. Reads
    /// nothing and records no use.
    pub fn missing(&self, ask: &Lookup<'_>) -> TimeRange {
        let state = self.state.lock();
        let entry = state.fields.get(&ask.field).and_then(|field| field.keys.get(ask.key));
        let parts = entry.into_iter().flat_map(|entry| entry.within(ask.range));
        let usable = parts.filter(|one| one.1.number <= ask.number && !state.is_off);
        hull_of_gaps(ask.range, usable.map(|one| one.0))
    }

    /// Records a lookup that was answered from a copy in memory, as a use of the stored points.
    pub(crate) fn count_use(&self, ask: &Lookup<'_>, missing: TimeRange, bytes: u64) {
        {
            let mut state = self.state.lock();
            let StoreState { fields, policy, .. } = &mut *state;
            let entry = fields.get_mut(&ask.field).and_then(|field| field.keys.get_mut(ask.key));
            if let Some(entry) = entry {
                entry.touch(ask.range);
                entry.within(ask.range).for_each(|(_, segment)| policy.touch(segment.slab));
            }
        }
        self.count_get(ask, missing, bytes);
    }

    fn count_get(&self, ask: &Lookup<'_>, missing: TimeRange, bytes: u64) {
        let mut state = self.state.lock();
        let stats = &mut state.stats;
        match () {
            () if missing.is_empty() => {
                stats.hits += 1;
                stats.hit_bytes += bytes;
            }
            () if missing == ask.range => stats.misses += 1,
            () => {
                stats.partial_hits += 1;
                stats.partial_bytes += bytes;
            }
        }
        if !missing.is_empty() {
            state.policy.missed(hash(ask.key), missing);
        }
    }

    fn read(
        &self,
        ask: &Lookup<'_>,
        sources: Vec<PointSource>,
        may_wait: bool,
        mut held: Option<&mut Reservation>,
    ) -> Result<ReadOutcome, (SlabId, Error)> {
        let (mut parts, mut read_bytes, mut held_bytes) = (Vec::new(), 0, 0);
        // Held until they are read: only then may their slots be reused.
        let mut slabs = Vec::new();
        for source in sources {
            let part = match source {
                PointSource::Copied(points) => CachedPart::Memory(points),
                PointSource::Sealed(slab, range) => {
                    CachedPart::Memory(copied(&slab, ask.key, range))
                }
                PointSource::Flash(id, slab, range) => {
                    let part = self.plan_read(&slab, ask.key, range, may_wait);
                    let Some(part) = part.map_err(|e| (id, e))? else {
                        return Ok(ReadOutcome::WouldWait);
                    };
                    slabs.push((id, slab));
                    CachedPart::Flash(part)
                }
            };
            read_bytes += part.bytes();
            held_bytes += part.heap_bytes();
            if read_bytes > ask.bytes_max {
                return Ok(ReadOutcome::Declined(DeclineReason::TooLarge));
            }
            if held.as_deref_mut().is_some_and(|held| held.cover(held_bytes).is_err()) {
                return Ok(ReadOutcome::Declined(DeclineReason::NoMemory));
            }
            parts.push(part);
        }
        let planned: Vec<&mut FlashPart> =
            parts.iter_mut().filter_map(CachedPart::as_flash).collect();
        if may_wait && planned.iter().map(|part| part.runs.len()).sum::<usize>() > 1 {
            planned.iter().for_each(|part| part.announce(&self.device));
        }
        for (part, (id, _slab)) in planned.into_iter().zip(&slabs) {
            if !self.fetch(part, may_wait).map_err(|e| (*id, e))? {
                return Ok(ReadOutcome::WouldWait);
            }
        }
        self.count_reads(&parts);
        Ok(ReadOutcome::Done(parts))
    }

    fn count_reads(&self, parts: &[CachedPart]) {
        let of_file = |part: &CachedPart| match part {
            CachedPart::Flash(part) => Some((part.runs.len() as u64, part.bytes())),
            CachedPart::Memory(_) => None,
        };
        let mut state = self.state.lock();
        for (reads, bytes) in parts.iter().filter_map(of_file).filter(|one| one.0 > 0) {
            state.stats.reads += reads;
            state.stats.read_bytes += bytes;
            state.read_failures = 0;
        }
    }

    /// The blocks of a slab that have the points; `None` if its header would have to be read.
    fn plan_read(
        &self,
        slab: &Arc<FlashSlab>,
        key: &[u8],
        range: TimeRange,
        may_wait: bool,
    ) -> Result<Option<FlashPart>> {
        let Some(header) = self.header(slab, may_wait)? else { return Ok(None) };
        let slot = slab.preamble.slot;
        let Some(position) = header.position(key) else {
            let what = format!("slab {slot}: the key is not in its key array");
            return Err(Error::corrupt(self.device.path(), self.device.offset(slot), what));
        };
        // The points of a bit array are stored together: neighbouring arrays are read in one read.
        let mut part = FlashPart { header, range, sets: Vec::new(), runs: Vec::new() };
        for set in part.header.sets_of(position) {
            let blocks = part.header.blocks(set, range);
            if blocks.is_empty() {
                continue;
            }
            part.sets.push(set);
            match part.runs.last_mut() {
                Some((run, _)) if blocks.start <= run.end + GAP_BLOCKS_MAX => {
                    *run = run.start.min(blocks.start)..run.end.max(blocks.end);
                }
                _ => part.runs.push((blocks, Vec::new())),
            }
        }
        Ok(Some(part))
    }

    /// Reads the blocks; `false` if that would have to wait.
    fn fetch(&self, part: &mut FlashPart, may_wait: bool) -> Result<bool> {
        let slot = part.header.preamble.slot;
        for (run, bytes) in &mut part.runs {
            let place = part.header.bytes_of(run);
            bytes.resize((place.end - place.start) as usize, 0);
            if may_wait {
                self.device.read(slot, place.start, bytes)?;
            } else if !self.device.read_cached(slot, place.start, bytes) {
                return Ok(false);
            }
            if !mutant!(self.options, BlocksNotChecked) {
                part.header.check(self.device.path(), run, bytes)?;
            }
        }
        Ok(true)
    }

    /// The slab's header, from memory or from the file; `None` if it would have to be read.
    fn header(&self, slab: &Arc<FlashSlab>, may_wait: bool) -> Result<Option<Arc<Header>>> {
        if let Some(header) = &*slab.header.lock() {
            return Ok(Some(Arc::clone(header)));
        }
        if !may_wait {
            return Ok(None);
        }
        let header = Arc::new(self.read_header(slab.preamble)?);
        self.state.lock().keep_header(slab, &header, self.options.header_bytes_max);
        Ok(Some(header))
    }

    pub(super) fn read_header(&self, preamble: Preamble) -> Result<Header> {
        let mut bytes = vec![0; preamble.header_bytes as usize];
        self.device.read(preamble.slot, crate::slab::PREAMBLE_BYTES as u64, &mut bytes)?;
        let offset = self.device.offset(preamble.slot);
        Header::decode(self.device.path(), offset, preamble, &bytes)
    }
}

impl CachedRange {
    fn nothing(ask: &Lookup<'_>) -> CachedRange {
        let range = ask.range;
        CachedRange {
            missing: range,
            absent: range,
            declined: None,
            device: None,
            parts: Vec::new(),
        }
    }

    /// Approximate bytes: whole blocks, or payloads of points in memory.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(CachedPart::bytes).sum()
    }

    /// Calls `take` with all points, ordered by time.
    ///
    /// # Errors
    /// `Corrupt` if a block cannot be decoded: the caller must discard all points.
    pub fn for_each(&self, take: &mut dyn FnMut(PointRef<'_>)) -> Result<()> {
        let file = self.device.as_deref().unwrap_or_default();
        for part in &self.parts {
            match part {
                CachedPart::Memory(copied) => {
                    let mut start = 0;
                    for &(ts, head, end) in &copied.points {
                        let head = head.and_then(|head| copied.heads.get(head as usize));
                        take(PointRef { ts, head, payload: &copied.bytes[start..end] });
                        start = end;
                    }
                }
                CachedPart::Flash(part) => part.for_each(file, take)?,
            }
        }
        Ok(())
    }
}

impl CachedPart {
    fn as_flash(&mut self) -> Option<&mut FlashPart> {
        match self {
            CachedPart::Flash(part) => Some(part),
            CachedPart::Memory(_) => None,
        }
    }

    /// Approximate bytes.
    fn bytes(&self) -> u64 {
        match self {
            CachedPart::Memory(copied) => copied.bytes.len() as u64,
            CachedPart::Flash(part) => part.bytes(),
        }
    }

    /// The bytes with the list of points in memory: their payloads may be empty.
    fn heap_bytes(&self) -> u64 {
        match self {
            CachedPart::Memory(copied) => {
                (copied.bytes.capacity() + copied.points.capacity() * COPIED_POINT_BYTES) as u64
            }
            CachedPart::Flash(part) => part.bytes(),
        }
    }
}

impl FlashPart {
    fn for_each(&self, file: &str, take: &mut dyn FnMut(PointRef<'_>)) -> Result<()> {
        let header = &self.header;
        let head = |head: Option<u32>| head.and_then(|head| header.head(head));
        if let [set] = &*self.sets {
            let bytes = self.bytes_of(*set);
            return header.walk_set(file, *set, self.range, bytes, &mut |point| {
                take(PointRef { ts: point.ts, head: head(point.head), payload: point.payload });
            });
        }
        // Keys share some points: each set is ordered by time, the union is not.
        let mut points = Vec::new();
        for &set in &self.sets {
            let bytes = self.bytes_of(set);
            header.walk_set(file, set, self.range, bytes, &mut |point| points.push(point))?;
        }
        points.sort_by_key(|point| point.ts);
        for point in points {
            take(PointRef { ts: point.ts, head: head(point.head), payload: point.payload });
        }
        Ok(())
    }

    /// The bytes of the blocks of a bit array.
    fn bytes_of(&self, set: u32) -> &[u8] {
        let blocks = self.header.blocks(set, self.range);
        let run =
            self.runs.iter().find(|(run, _)| run.start <= blocks.start && blocks.end <= run.end);
        let (run, bytes) =
            run.expect("each set's blocks are in one of the runs that were made of them");
        let (whole, place) = (self.header.bytes_of(run), self.header.bytes_of(&blocks));
        &bytes[(place.start - whole.start) as usize..(place.end - whole.start) as usize]
    }

    /// Announces all reads to the device, so that they overlap.
    fn announce(&self, device: &Device) {
        let slot = self.header.preamble.slot;
        self.runs.iter().for_each(|(run, _)| device.will_read(slot, &self.header.bytes_of(run)));
    }

    fn bytes(&self) -> u64 {
        let places = self.runs.iter().map(|(run, _)| self.header.bytes_of(run));
        places.map(|place| place.end - place.start).sum()
    }
}

impl StoreState {
    /// Finds the sources of the cached parts and the one range that is missing.
    fn find(&mut self, ask: &Lookup<'_>) -> ReadPlan {
        let nothing = |absent| ReadPlan {
            missing: ask.range,
            absent,
            is_too_small: false,
            sources: Vec::new(),
        };
        let Some(field) = self.fields.get_mut(&ask.field).filter(|_| !self.is_off) else {
            return nothing(ask.range);
        };
        let Some(entry) = field.keys.get_mut(ask.key) else { return nothing(ask.range) };
        let usable: Vec<(TimeRange, Segment)> =
            entry.within(ask.range).filter(|one| one.1.number <= ask.number).collect();
        let missing = hull_of_gaps(ask.range, usable.iter().map(|one| one.0));
        // Parts that are too small to be returned count as used as well.
        entry.touch(ask.range);
        let given = usable.iter().filter(|one| !missing.covers(one.0));
        let bytes: f64 = given.map(|(part, segment)| segment.bytes_of(*part)).sum();
        if !missing.is_empty() && missing != ask.range && bytes < ask.partial_bytes_min as f64 {
            self.stats.partial_declined += 1;
            return ReadPlan { is_too_small: true, ..nothing(missing) };
        }
        let before = TimeRange::new(ask.range.start, missing.start.saturating_sub(1));
        let behind = TimeRange::new(missing.end.saturating_add(1), ask.range.end);
        let wanted = if missing.is_empty() { vec![ask.range] } else { vec![before, behind] };
        let mut sources = Vec::new();
        for (range, segment) in usable {
            for part in wanted.iter().map(|wanted| wanted.intersect(range)) {
                // At the ends of time, "before" and "behind" may overlap the gap.
                if part.is_empty() || missing.covers(part) {
                    continue;
                }
                let Some(node) = self.nodes.get(&segment.slab) else { continue };
                self.policy.touch(segment.slab);
                sources.push(match &node.body {
                    Body::Open(slab) => PointSource::Copied(copied(slab, ask.key, part)),
                    Body::Sealed(slab) => PointSource::Sealed(Arc::clone(slab), part),
                    Body::Flash(slab) => PointSource::Flash(segment.slab, Arc::clone(slab), part),
                });
            }
        }
        ReadPlan { missing, absent: missing, is_too_small: false, sources }
    }

    /// Keeps a decoded header, and drops the oldest ones above `bytes_max`.
    fn keep_header(&mut self, slab: &Arc<FlashSlab>, header: &Arc<Header>, bytes_max: u64) {
        let bytes = header.heap_bytes();
        // A reference to an evicted slab would keep its slot from being reused.
        if !self.nodes.contains_key(&slab.preamble.generation) {
            return;
        }
        if slab.header.lock().replace(Arc::clone(header)).is_none() {
            self.headers.push_back((Arc::clone(slab), bytes));
            self.header_bytes += bytes;
        }
        while self.header_bytes > bytes_max {
            let Some((oldest, bytes)) = self.headers.pop_front() else { break };
            oldest.header.lock().take();
            self.header_bytes -= bytes;
        }
    }
}

fn copied(slab: &OpenSlab, key: &[u8], range: TimeRange) -> Copied {
    let mut copied = Copied::default();
    let Some(position) = slab.position(key) else { return copied };
    let mut take = |(ts, point): (Timestamp, &OpenPoint)| {
        copied.bytes.extend_from_slice(&point.payload);
        copied.points.push((ts, point.head, copied.bytes.len()));
    };
    if slab.set_count(position) == 1 {
        slab.points_of(position, range).for_each(take);
    } else {
        // Keys share some points: each set is ordered by time, the union is not.
        let mut points: Vec<_> = slab.points_of(position, range).collect();
        points.sort_by_key(|point| point.0);
        points.into_iter().for_each(&mut take);
    }
    copied.heads.extend(slab.heads().iter().cloned());
    copied
}

/// The smallest range that covers all of `range` that no part covers. `parts` are ordered.
fn hull_of_gaps(range: TimeRange, parts: impl Iterator<Item = TimeRange>) -> TimeRange {
    let mut gaps = TimeRange::EMPTY;
    // The first timestamp that is not covered yet; `None` after the end of time.
    let mut next = Some(range.start);
    for part in parts {
        let Some(start) = next else { break };
        if part.start > start {
            gaps = gaps.union(TimeRange::new(start, part.start - 1));
        }
        next = part.end.checked_add(1);
    }
    match next {
        Some(start) if start <= range.end => gaps.union(TimeRange::new(start, range.end)),
        _ => gaps,
    }
}

impl fmt::Debug for FlashPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlashPart({:?}, {} sets)", self.range, self.sets.len())
    }
}
