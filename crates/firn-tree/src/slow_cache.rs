//! The slow cache: slow-tier data that was read, kept in a file of the fast tier across restarts.
//!
//! ```text
//! file     = slab*                         each at a multiple of the slab's size
//! slab     = preamble piece* entry*        written in one write when it is full
//! preamble = "FIRN" "SLOC" version zero crc  generation:u64 slot:u32 slab bytes:u32 entries at:u32
//!            entry count:u32 crc32(entries):u32 crc32(all before):u32
//! entry    = table:u64 print:u32 piece:u32 offset:u32 bytes:u32
//!            crc32(table, print, piece, bytes):u32
//! ```
//! Byte by byte: docs/formats/slow-cache.md. Nothing is synced: a piece that a crash lost or tore
//! does not match its checksum and is read from the slow tier again. Slabs are overwritten in the
//! order of writing. A piece that is read while its slab is among the next to be overwritten is
//! written again, so that a long scan does not evict pieces that are used again and again. Source:
//! TSCache 3.4 (slabs on flash), with whole immutable blocks instead of points, so that no piece is
//! ever invalidated.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

mod piece_key;
mod slab;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use firn_env::{Disk, DiskFile, OpenMode};
use firn_model::{Budget, Error, ErrorKind, Pool, Reservation, Result};
use parking_lot::Mutex;

use crate::mutant::mutant;
use crate::record::TableId;
pub(crate) use piece_key::PieceKey;
use slab::{OpenSlab, PREAMBLE_BYTES, Preamble, SlabEntry};

const FOLDER: &str = "slow-cache";
const FILE: &str = "slow-cache/slabs";
/// A slab is a 64th of the cache, so that little is evicted at once; at most 2 MiB, which a crash
/// loses.
const SLABS_PER_CACHE: u64 = 64;
const SLAB_BYTES_MIN: u64 = 4 << 10;
const SLAB_BYTES_MAX: u64 = 2 << 20;
/// The file does not grow when the disk has less free space: logs and flushes need it. Eight log
/// segments.
const FREE_BYTES_MIN: u64 = 256 << 20;
/// Below this free space the file is removed, before writes are refused. Two log segments.
const FREE_BYTES_LOW: u64 = 64 << 20;
/// Failures in a row after which the cache turns itself off.
const FAILURES_MAX: u32 = 8;
/// Memory of a piece: the map's entry and the slot's.
const PLACE_BYTES: u64 = 120;
/// The slot of pieces that are not written yet.
const OPEN_SLOT: u32 = u32::MAX;

/// Counters of the slow cache since the start, and its present size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowCacheStats {
    /// Pieces that were cached.
    pub hits: u64,
    /// Bytes of them.
    pub hit_bytes: u64,
    /// Pieces that were not cached.
    pub misses: u64,
    /// Pieces that did not match their checksum; counted as misses too.
    pub damaged: u64,
    /// Bytes written to the file.
    pub written_bytes: u64,
    /// Pieces that were evicted for lack of space.
    pub evictions: u64,
    /// Reads and writes that failed.
    pub device_failures: u64,
    /// Slabs not written because the disk is nearly full, and times that the file was removed for
    /// that.
    pub disk_pressure_shrinks: u64,
    /// Cached pieces.
    pub pieces: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Upper bound of the file's size; 0 without a cache.
    pub bytes_max: u64,
    /// Whether the cache turned itself off because its device fails.
    pub is_off: bool,
}

/// A cache of pieces in one file. All methods may be called from several threads and never fail:
/// pieces that cannot be read are missing.
///
/// Lock order: `lane`, then `state`. `lane` is held over writes; `state` over no I/O.
pub(crate) struct SlowCache {
    disk: Arc<dyn Disk>,
    bytes_max: u64,
    slab_bytes: u32,
    slot_count: u32,
    #[cfg(feature = "test-util")]
    mutant: Option<crate::mutant::Mutant>,
    lane: Mutex<()>,
    state: Mutex<SlowCacheState>,
}

struct SlowCacheState {
    file: Option<Arc<dyn DiskFile>>,
    places: HashMap<PieceKey, PieceLocation>,
    open: Option<OpenSlab>,
    /// By slot, up to the last one ever used.
    slots: Vec<Slot>,
    /// Written slots in the order of writing.
    written: VecDeque<u32>,
    /// Used slots that are empty.
    free: Vec<u32>,
    next_generation: u64,
    budget: Budget,
    /// Memory of `places`.
    memory: Reservation,
    failures: u32,
    stats: SlowCacheStats,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PieceLocation {
    slot: u32,
    offset: u32,
    bytes: u32,
    crc: u32,
}

#[derive(Default)]
struct Slot {
    generation: u64,
    keys: Vec<PieceKey>,
    /// How many of the keys are still in it.
    live: u32,
}

impl SlowCache {
    /// Opens the file, or starts an empty cache if none fits. With 0 bytes there is no cache, and
    /// an existing file is removed. Drops pieces of unknown tables.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        bytes_max: u64,
        budget: &Budget,
        is_known: &dyn Fn(TableId) -> bool,
    ) -> SlowCache {
        let slab_bytes = (bytes_max / SLABS_PER_CACHE).clamp(SLAB_BYTES_MIN, SLAB_BYTES_MAX);
        let slab_bytes = (slab_bytes / SLAB_BYTES_MIN).saturating_mul(SLAB_BYTES_MIN);
        let slab_bytes = u32::try_from(slab_bytes).expect("a slab is at most 2 MiB");
        let slot_count = bytes_max.checked_div(slab_bytes.into()).unwrap_or(0);
        let slot_count = u32::try_from(slot_count).unwrap_or(OPEN_SLOT - 1);
        let cache = SlowCache {
            disk: Arc::clone(disk),
            bytes_max: u64::from(slot_count).saturating_mul(slab_bytes.into()),
            slab_bytes,
            slot_count,
            #[cfg(feature = "test-util")]
            mutant: None,
            lane: Mutex::default(),
            state: Mutex::new(SlowCacheState {
                file: None,
                places: HashMap::new(),
                open: None,
                slots: Vec::new(),
                written: VecDeque::new(),
                free: Vec::new(),
                next_generation: 1,
                budget: budget.clone(),
                memory: budget.empty(Pool::Cache),
                failures: 0,
                stats: SlowCacheStats::default(),
            }),
        };
        if let Err(e) = cache.recover(is_known) {
            let mut state = cache.state.lock();
            add(&mut state.stats.device_failures, 1);
            state.turn_off(&e);
        }
        cache
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn with_mutant(self, mutant: Option<crate::mutant::Mutant>) -> SlowCache {
        SlowCache { mutant, ..self }
    }

    fn recover(&self, is_known: &dyn Fn(TableId) -> bool) -> Result<()> {
        let file = match self.disk.open(FILE, OpenMode::Write) {
            Err(e) if *e.kind() == ErrorKind::NotFound => return Ok(()),
            // A pipe in its place.
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt { .. }) => {
                return self.disk.remove(FILE);
            }
            file => file?,
        };
        let file_bytes = file.len()?;
        if file_bytes > self.bytes_max {
            drop(file);
            return self.disk.remove(FILE);
        }
        let used = u32::try_from(file_bytes.div_ceil(u64::from(self.slab_bytes)));
        let used = used.unwrap_or(self.slot_count).min(self.slot_count);
        let (mut found, mut free) = (Vec::new(), Vec::new());
        for slot in 0..used {
            match self.read_entries(&*file, slot) {
                Ok((generation, mut entries)) => {
                    entries.retain(|entry| is_known(entry.key.table));
                    found.push((generation, slot, entries));
                }
                // Torn, lost, or of another size: the slot is free.
                Err(e) if matches!(e.kind(), ErrorKind::Corrupt { .. } | ErrorKind::Invalid) => {
                    free.push(slot);
                }
                Err(e) => return Err(e),
            }
        }
        found.sort_unstable_by_key(|&(generation, ..)| generation);
        let mut state = self.state.lock();
        state.file = Some(file);
        state.slots.resize_with(used as usize, Slot::default);
        state.free = free;
        for (generation, slot, entries) in found {
            state.next_generation = generation.saturating_add(1);
            state.install(slot, generation, &entries);
        }
        Ok(())
    }

    fn read_entries(&self, file: &dyn DiskFile, slot: u32) -> Result<(u64, Vec<SlabEntry>)> {
        let at = self.offset(slot);
        let mut bytes = [0; PREAMBLE_BYTES];
        file.read_at(at, &mut bytes)?;
        let preamble = Preamble::decode(FILE, at, &bytes, slot, self.slab_bytes)?;
        let mut bytes = vec![0; preamble.entries_bytes()];
        file.read_at(at.saturating_add(preamble.entries_at.into()), &mut bytes)?;
        Ok((preamble.generation, preamble.entries(FILE, at, &bytes)?))
    }

    /// The bytes of the cached pieces, as they were put. Neighbours are read in one read.
    pub(crate) fn get(&self, keys: &[PieceKey]) -> Vec<Option<Arc<[u8]>>> {
        let mut found: Vec<Option<Arc<[u8]>>> = vec![None; keys.len()];
        if self.slot_count == 0 || keys.is_empty() {
            return found;
        }
        let mut reads: Vec<(PieceLocation, usize)> = Vec::new();
        let file = {
            let state = self.state.lock();
            for (idx, key) in keys.iter().enumerate() {
                match state.places.get(key) {
                    Some(place) if place.slot == OPEN_SLOT => {
                        let piece = state
                            .open
                            .as_ref()
                            .and_then(|open| open.piece(place.offset, place.bytes));
                        if let Some(found) = found.get_mut(idx) {
                            *found = piece.map(Arc::from);
                        }
                    }
                    Some(&place) => reads.push((place, idx)),
                    None => {}
                }
            }
            state.file.clone()
        };
        let (mut damaged, mut failed) = (Vec::new(), None);
        if let Some(file) = file {
            reads.sort_unstable_by_key(|(place, _)| (place.slot, place.offset));
            for run in reads.chunk_by(|(a, _), (b, _)| {
                a.slot == b.slot && a.offset.checked_add(a.bytes) == Some(b.offset)
            }) {
                match self.read_run(&*file, run, keys, &mut found) {
                    Ok(bad) => damaged.extend(bad),
                    // The file became shorter: a part of it is lost.
                    Err(e) if matches!(e.kind(), ErrorKind::Corrupt { .. }) => damaged.extend(run),
                    Err(e) => failed = Some(e),
                }
            }
        }
        self.note_get(keys, &found, &damaged, failed);
        self.keep_old_again(keys, &reads, &found);
        found
    }

    /// Reads neighbouring pieces; returns those that do not match their checksum.
    fn read_run(
        &self,
        file: &dyn DiskFile,
        run: &[(PieceLocation, usize)],
        keys: &[PieceKey],
        found: &mut [Option<Arc<[u8]>>],
    ) -> Result<Vec<(PieceLocation, usize)>> {
        let Some((first, _)) = run.first() else { return Ok(Vec::new()) };
        let len = run.iter().map(|(place, _)| place.bytes as usize).sum();
        let mut bytes = vec![0; len];
        let at = self.offset(first.slot).saturating_add(first.offset.into());
        file.read_at(at, &mut bytes)?;
        let mut rest = &bytes[..];
        let mut damaged = Vec::new();
        for &(place, idx) in run {
            let (piece, behind) = rest.split_at(place.bytes as usize);
            rest = behind;
            let (Some(key), Some(found)) = (keys.get(idx), found.get_mut(idx)) else { continue };
            match key.crc(piece) == place.crc || mutant!(self, FlippedBlockServed) {
                true => *found = Some(Arc::from(piece)),
                false => damaged.push((place, idx)),
            }
        }
        Ok(damaged)
    }

    fn note_get(
        &self,
        keys: &[PieceKey],
        found: &[Option<Arc<[u8]>>],
        damaged: &[(PieceLocation, usize)],
        failed: Option<Error>,
    ) {
        let mut state = self.state.lock();
        for &(place, idx) in damaged {
            let Some(key) = keys.get(idx) else { continue };
            // Unless its slab was overwritten in the meantime.
            if state.places.get(key) == Some(&place) {
                state.remove(key);
                add(&mut state.stats.damaged, 1);
            }
        }
        for piece in found {
            match piece {
                Some(bytes) => {
                    add(&mut state.stats.hits, 1);
                    add(&mut state.stats.hit_bytes, bytes.len() as u64);
                }
                None => add(&mut state.stats.misses, 1),
            }
        }
        if let Some(e) = failed {
            state.failed(&e);
        }
    }

    /// Writes pieces again that were read while their slab is about to be overwritten.
    fn keep_old_again(
        &self,
        keys: &[PieceKey],
        reads: &[(PieceLocation, usize)],
        found: &[Option<Arc<[u8]>>],
    ) {
        let old: Vec<usize> = {
            let state = self.state.lock();
            let is_old =
                |(place, _): &&(PieceLocation, usize)| state.is_old(place.slot, self.slot_count);
            reads.iter().filter(is_old).map(|&(_, idx)| idx).collect()
        };
        for idx in old {
            if let (Some(key), Some(Some(bytes))) = (keys.get(idx), found.get(idx)) {
                self.put(*key, bytes);
            }
        }
    }

    /// Keeps a piece, unless it is larger than a slab, or memory or disk space is short.
    pub(crate) fn put(&self, key: PieceKey, bytes: &[u8]) {
        let full = {
            let mut state = self.state.lock();
            let is_kept = state.places.get(&key).is_some_and(|place| {
                place.slot == OPEN_SLOT || !state.is_old(place.slot, self.slot_count)
            });
            let may_be = self.slot_count > 0 && slab::fits(bytes.len(), self.slab_bytes);
            if is_kept || state.stats.is_off || !may_be {
                return;
            }
            let is_full = state.open.as_ref().is_some_and(|open| !open.has_room(bytes.len()));
            let full = if is_full { state.seal() } else { None };
            state.push(key, bytes, self.slab_bytes);
            full
        };
        full.into_iter().for_each(|slab| self.write(slab));
    }

    /// Writes pending pieces for the next start.
    pub(crate) fn flush(&self) {
        let slab = self.state.lock().seal();
        slab.into_iter().for_each(|slab| self.write(slab));
    }

    fn write(&self, slab: OpenSlab) {
        let _one_at_a_time = self.lane.lock();
        // Where the free space is unknown, failing writes reveal a full disk.
        let free_bytes = self.disk.free_bytes().unwrap_or(u64::MAX);
        let may_grow = free_bytes >= FREE_BYTES_MIN + u64::from(self.slab_bytes);
        let taken = {
            let mut state = self.state.lock();
            if state.stats.is_off {
                return;
            }
            let slot = state.take_slot(if may_grow { self.slot_count } else { 0 });
            let generation = state.next_generation;
            add(&mut state.next_generation, 1);
            slot.map(|slot| (slot, generation, state.file.clone()))
        };
        let Some((slot, generation, file)) = taken else {
            add(&mut self.state.lock().stats.disk_pressure_shrinks, 1);
            return;
        };
        let (bytes, entries) = slab.encode(slot, generation);
        let written = file.map_or_else(|| self.create(), Ok).and_then(|file| {
            file.write_at(self.offset(slot), &bytes)?;
            Ok(file)
        });
        let mut state = self.state.lock();
        if state.stats.is_off {
            // Failed reads turned the cache off during the write: its slots are cleared.
            return;
        }
        match written {
            Ok(file) => {
                state.file = Some(file);
                state.failures = 0;
                add(&mut state.stats.written_bytes, bytes.len() as u64);
                state.install(slot, generation, &entries);
            }
            Err(e) => {
                state.free.push(slot);
                let is_full = free_bytes < u64::from(self.slab_bytes);
                if is_full {
                    add(&mut state.stats.disk_pressure_shrinks, 1);
                } else {
                    state.failed(&e);
                }
            }
        }
    }

    fn create(&self) -> Result<Arc<dyn DiskFile>> {
        self.disk.create_dir(FOLDER)?;
        match self.disk.open(FILE, OpenMode::Create) {
            // Created by an earlier call whose write failed.
            Err(_) => self.disk.open(FILE, OpenMode::Write),
            file => file,
        }
    }

    /// Drops all pieces of removed tables; slabs without other pieces are overwritten next.
    pub(crate) fn forget(&self, is_gone: impl Fn(TableId) -> bool) {
        let mut state = self.state.lock();
        let gone: Vec<PieceKey> =
            state.places.keys().filter(|key| is_gone(key.table)).copied().collect();
        gone.iter().for_each(|key| state.remove(key));
        state.free_empty();
    }

    /// Removes the file when the disk is nearly full: its pieces are also on the slow tier.
    pub(crate) fn shrink_if_disk_is_full(&self) {
        let is_low = || self.disk.free_bytes().is_ok_and(|bytes| bytes < FREE_BYTES_LOW);
        if self.state.lock().file.is_none() || !is_low() {
            return;
        }
        let _one_at_a_time = self.lane.lock();
        {
            let mut state = self.state.lock();
            state.clear();
            add(&mut state.stats.disk_pressure_shrinks, 1);
        }
        if let Err(e) = self.disk.remove(FILE) {
            self.state.lock().failed(&e);
        }
    }

    pub(crate) fn stats(&self) -> SlowCacheStats {
        let state = self.state.lock();
        SlowCacheStats {
            pieces: state.places.len() as u64,
            bytes: (state.slots.len() as u64).saturating_mul(self.slab_bytes.into()),
            bytes_max: self.bytes_max,
            ..state.stats
        }
    }

    fn offset(&self, slot: u32) -> u64 {
        u64::from(slot).saturating_mul(self.slab_bytes.into())
    }
}

impl SlowCacheState {
    /// Adds a piece to the open slab, if memory is available.
    fn push(&mut self, key: PieceKey, bytes: &[u8], slab_bytes: u32) {
        if self.open.is_none() {
            let memory = self.budget.reserve(Pool::Cache, slab_bytes.into());
            self.open = memory.ok().map(|memory| OpenSlab::new(slab_bytes, memory));
        }
        if self.open.is_none() || self.memory.grow(PLACE_BYTES).is_err() {
            return;
        }
        self.remove(&key);
        if let Some(open) = &mut self.open {
            let SlabEntry { offset, bytes, crc, .. } = open.push(key, key.crc(bytes), bytes);
            self.places.insert(key, PieceLocation { slot: OPEN_SLOT, offset, bytes, crc });
        }
    }

    /// Takes the open slab, without pieces dropped meanwhile. Until it is written its pieces are
    /// missing.
    fn seal(&mut self) -> Option<OpenSlab> {
        let mut slab = self.open.take()?;
        slab.entries.retain(|entry| {
            let place = self.places.get(&entry.key);
            place.is_some_and(|place| place.slot == OPEN_SLOT && place.offset == entry.offset)
        });
        slab.entries.iter().for_each(|entry| self.remove(&entry.key));
        Some(slab)
    }

    /// A slot for a slab: a free one, a new one below `slot_count`, or the oldest one.
    fn take_slot(&mut self, slot_count: u32) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let next = self.slots.len();
        if next < slot_count as usize {
            self.slots.push(Slot::default());
            return u32::try_from(next).ok();
        }
        let slot = self.written.pop_front()?;
        let keys = std::mem::take(&mut self.slots.get_mut(slot as usize)?.keys);
        for key in &keys {
            if self.places.get(key).is_some_and(|place| place.slot == slot) {
                self.remove(key);
                add(&mut self.stats.evictions, 1);
            }
        }
        Some(slot)
    }

    /// Adds the pieces of a written slot to the map.
    fn install(&mut self, slot: u32, generation: u64, entries: &[SlabEntry]) {
        let mut keys = Vec::with_capacity(entries.len());
        for entry in entries {
            if self.memory.grow(PLACE_BYTES).is_err() {
                break;
            }
            // Of two equal pieces the later stays: the other is overwritten sooner.
            self.remove(&entry.key);
            let SlabEntry { key, offset, bytes, crc } = *entry;
            self.places.insert(key, PieceLocation { slot, offset, bytes, crc });
            keys.push(key);
        }
        let live = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        if let Some(written) = self.slots.get_mut(slot as usize) {
            *written = Slot { generation, keys, live };
        }
        self.written.push_back(slot);
        self.free_empty();
    }

    fn remove(&mut self, key: &PieceKey) {
        if let Some(place) = self.places.remove(key) {
            self.memory.shrink(PLACE_BYTES);
            if let Some(slot) = self.slots.get_mut(place.slot as usize) {
                slot.live = slot.live.saturating_sub(1);
            }
        }
    }

    fn free_empty(&mut self) {
        let (slots, free) = (&mut self.slots, &mut self.free);
        self.written.retain(|&slot| {
            let Some(written) = slots.get_mut(slot as usize) else { return false };
            let is_empty = written.live == 0;
            if is_empty {
                *written = Slot::default();
                free.push(slot);
            }
            !is_empty
        });
    }

    /// Whether a slot is in the quarter that is overwritten next.
    fn is_old(&self, slot: u32, slot_count: u32) -> bool {
        let is_full = self.slots.len() == slot_count as usize && self.free.is_empty();
        let generation = |slot: u32| self.slots.get(slot as usize).map(|slot| slot.generation);
        let youngest_old = (self.written.len() / 4).checked_sub(1);
        let youngest_old = youngest_old.and_then(|idx| self.written.get(idx)).copied();
        is_full && youngest_old.is_some_and(|old| generation(slot) <= generation(old))
    }

    fn failed(&mut self, error: &Error) {
        add(&mut self.stats.device_failures, 1);
        self.failures = self.failures.saturating_add(1);
        if self.failures >= FAILURES_MAX {
            self.turn_off(error);
        }
    }

    fn turn_off(&mut self, error: &Error) {
        if !self.stats.is_off {
            tracing::warn!(
                "{FILE}: the cache of the slow tier is off until the next start: its device fails; \
                 queries read old data from the slow tier each time: {error}"
            );
        }
        self.clear();
        self.stats.is_off = true;
    }

    fn clear(&mut self) {
        self.places = HashMap::new();
        self.open = None;
        self.slots.clear();
        self.written.clear();
        self.free.clear();
        self.file = None;
        self.memory.shrink(self.memory.bytes());
    }
}

fn add(counter: &mut u64, count: u64) {
    *counter = counter.saturating_add(count);
}
