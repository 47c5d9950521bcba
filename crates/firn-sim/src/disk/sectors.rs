//! The bytes of one file, sector by sector, with every version that a crash may leave.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::Rng;

/// The unit that a disk writes atomically. 512 is the smallest unit that disks guarantee: the worst
/// case.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// The unit that byte-addressable memory writes atomically.
pub(crate) const LINE_BYTES: u64 = firn_env::LINE_BYTES;

/// Maximum number of versions of one sector between two syncs. Without it a log that is written in
/// small pieces without a sync would grow without bound; 8 include old, middle and new ones.
const VERSION_COUNT_MAX: usize = 8;

type Sector = Box<[u8]>;

/// The bytes of one file. Sectors that were never written are zeros and take no memory.
#[derive(Debug)]
pub(crate) struct FileBytes {
    /// [`SECTOR_BYTES`] or [`LINE_BYTES`].
    sector_bytes: u64,
    len: u64,
    /// The minimum length after a crash.
    durable_len: u64,
    sectors: BTreeMap<u64, Versions>,
    /// Sectors with several versions, which the next sync makes durable.
    dirty: BTreeSet<u64>,
    /// Sectors of a failed sync: a later sync does not cover them (Linux marks the pages clean).
    limbo: BTreeSet<u64>,
    /// Writes by this process and others, for the stamp.
    change_count: u64,
}

/// The versions that one sector may have after a crash.
#[derive(Debug)]
struct Versions {
    /// Whether it was zeros at the last sync, as in a new file; zeros take no memory.
    from_zeros: bool,
    /// Oldest first: the durable version unless `from_zeros`, then those since. Never empty.
    written: Vec<Sector>,
}

/// The share of unsynced data that survives a crash.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Survival {
    /// Nothing.
    None,
    /// All of it.
    All,
    /// Each part independently: its newest version with this probability, otherwise any older one.
    Some(f64),
}

impl FileBytes {
    /// No bytes yet, in sectors of `sector_bytes`.
    pub(crate) fn new(sector_bytes: u64) -> FileBytes {
        FileBytes {
            sector_bytes,
            len: 0,
            durable_len: 0,
            sectors: BTreeMap::new(),
            dirty: BTreeSet::new(),
            limbo: BTreeSet::new(),
            change_count: 0,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn change_count(&self) -> u64 {
        self.change_count
    }

    pub(crate) fn note_change(&mut self) {
        self.change_count += 1;
    }

    /// `false` if the file ends before `buf` is full.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> bool {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len) {
            return false;
        }
        for piece in pieces(offset, buf.len(), self.sector_bytes) {
            let target = &mut buf[piece.start..piece.start + piece.len];
            match self.sectors.get(&piece.sector).and_then(|versions| versions.written.last()) {
                Some(newest) => target.copy_from_slice(&newest[piece.at..piece.at + piece.len]),
                None => target.fill(0),
            }
        }
        true
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.write_sectors(offset, bytes, |_| true);
    }

    /// A failed write: the file has its new length, and each sector was written or not.
    pub(crate) fn write_torn(&mut self, offset: u64, bytes: &[u8], rng: &mut Rng) {
        self.write_sectors(offset, bytes, |_| rng.chance(0.5));
    }

    /// Extends the file to `len` with zeros, which take no memory.
    pub(crate) fn grow(&mut self, len: u64) {
        self.note_change();
        self.len = self.len.max(len);
    }

    pub(crate) fn sync(&mut self) {
        for sector in std::mem::take(&mut self.dirty) {
            if let Some(versions) = self.sectors.get_mut(&sector) {
                versions.keep(usize::MAX);
            }
        }
        self.durable_len = self.len;
    }

    /// Makes the newest version of the sectors in `range` durable.
    pub(crate) fn sync_range(&mut self, range: Range<u64>) {
        let sectors = range.start / self.sector_bytes..range.end.div_ceil(self.sector_bytes);
        let rest = self.dirty.split_off(&sectors.end);
        let covered = self.dirty.split_off(&sectors.start);
        self.dirty.extend(rest);
        for sector in covered {
            if let Some(versions) = self.sectors.get_mut(&sector) {
                versions.keep(usize::MAX);
            }
        }
    }

    /// A failed sync: the sectors it covered stay uncertain until they are written again.
    pub(crate) fn sync_failed(&mut self) {
        self.limbo.append(&mut self.dirty);
    }

    /// Applies a power loss: one version of each sector survives.
    pub(crate) fn crash(&mut self, survival: Survival, rng: &mut Rng) {
        self.limbo.append(&mut self.dirty);
        for sector in std::mem::take(&mut self.limbo) {
            let Some(versions) = self.sectors.get_mut(&sector) else { continue };
            let kept = survival.choose(versions.count() - 1, rng);
            if versions.keep(kept).is_none() {
                self.sectors.remove(&sector);
            }
        }
        let unsynced_sectors = (self.len - self.durable_len).div_ceil(self.sector_bytes) as usize;
        let kept_sectors = survival.choose(unsynced_sectors, rng) as u64;
        self.len = self.len.min(self.durable_len + kept_sectors * self.sector_bytes);
        self.cut_to_len();
        self.durable_len = self.len;
    }

    /// Changes the stored bytes durably, for tests that damage files.
    pub(crate) fn set_durable(&mut self, bytes: &[u8]) {
        let change_count = self.change_count;
        *self = FileBytes::new(self.sector_bytes);
        self.write(0, bytes);
        self.sync();
        self.change_count = change_count;
    }

    fn write_sectors(&mut self, offset: u64, bytes: &[u8], mut keep: impl FnMut(u64) -> bool) {
        if bytes.is_empty() {
            return;
        }
        self.note_change();
        for piece in pieces(offset, bytes.len(), self.sector_bytes) {
            if !keep(piece.sector) {
                continue;
            }
            let source = &bytes[piece.start..piece.start + piece.len];
            let range = piece.at..piece.at + piece.len;
            match self.sectors.entry(piece.sector) {
                Entry::Occupied(present) => {
                    present.into_mut().push(|newest| newest[range].copy_from_slice(source));
                }
                Entry::Vacant(place) => {
                    let mut sector = vec![0; self.sector_bytes as usize].into_boxed_slice();
                    sector[range].copy_from_slice(source);
                    place.insert(Versions { from_zeros: true, written: vec![sector] });
                }
            }
            self.limbo.remove(&piece.sector);
            self.dirty.insert(piece.sector);
        }
        self.len = self.len.max(offset.saturating_add(bytes.len() as u64));
    }

    /// Truncated bytes must not reappear when the file grows again.
    fn cut_to_len(&mut self) {
        self.sectors.split_off(&self.len.div_ceil(self.sector_bytes));
        let tail = (self.len % self.sector_bytes) as usize;
        if tail > 0
            && let Some(versions) = self.sectors.get_mut(&(self.len / self.sector_bytes))
        {
            versions.written.iter_mut().for_each(|version| version[tail..].fill(0));
        }
    }
}

impl Versions {
    fn count(&self) -> usize {
        usize::from(self.from_zeros) + self.written.len()
    }

    /// Adds a version: the newest with `change`.
    fn push(&mut self, change: impl FnOnce(&mut Sector)) {
        let mut newest = self.written[self.written.len() - 1].clone();
        change(&mut newest);
        if self.written.len() == VERSION_COUNT_MAX {
            self.written.pop();
        }
        self.written.push(newest);
    }

    /// Keeps only version `idx` (at most the newest) and makes it durable. `None` if that is zeros.
    fn keep(&mut self, idx: usize) -> Option<()> {
        let idx = match (self.from_zeros, idx) {
            (true, 0) => return None,
            (true, idx) => idx - 1,
            (false, idx) => idx,
        };
        let last = self.written.len() - 1;
        self.written.swap(0, idx.min(last));
        self.written.truncate(1);
        self.written.shrink_to_fit();
        self.from_zeros = false;
        Some(())
    }
}

impl Survival {
    /// Drawn once per crash, so that the extremes are as likely as everything in between.
    pub(crate) fn draw(rng: &mut Rng) -> Survival {
        match rng.below(6) {
            0 => Survival::None,
            1 => Survival::All,
            2 => Survival::Some(0.1),
            3 => Survival::Some(0.9),
            _ => Survival::Some(0.5),
        }
    }

    pub(crate) fn keeps(self, rng: &mut Rng) -> bool {
        match self {
            Survival::None => false,
            Survival::All => true,
            Survival::Some(probability) => rng.chance(probability),
        }
    }

    /// The surviving version of 0 (durable) to `newest`.
    fn choose(self, newest: usize, rng: &mut Rng) -> usize {
        if self.keeps(rng) {
            return newest;
        }
        match self {
            Survival::None => 0,
            _ => rng.below(newest as u64 + 1) as usize,
        }
    }
}

/// The part of a read or write in one sector.
struct SectorSpan {
    sector: u64,
    /// Offset in the sector.
    at: usize,
    /// Offset in the caller's bytes.
    start: usize,
    len: usize,
}

fn pieces(offset: u64, len: usize, sector_bytes: u64) -> impl Iterator<Item = SectorSpan> {
    let mut start = 0;
    std::iter::from_fn(move || {
        (start < len).then(|| {
            let position = offset + start as u64;
            let at = (position % sector_bytes) as usize;
            let piece_len = (sector_bytes as usize - at).min(len - start);
            let piece = SectorSpan { sector: position / sector_bytes, at, start, len: piece_len };
            start += piece_len;
            piece
        })
    })
}
