//! Reading columns of many groups from one version: directories, then blocks, each in one batch.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use firn_codec::{Chunk, GroupColumns, Slots};
use firn_model::{
    CommitSeq, Error, GroupId, Pool, QueryContext, QueryStats, Reservation, Result, Slot, TimeRange,
};

use parking_lot::Mutex;

use crate::block::{Block, Walk, unpack};
use crate::record::{Level, TableId, TableRecord};
use crate::slow_cache::PieceKey;
use crate::store::Read;
use crate::suffix::{BlockEntry, Suffix, block_range};
use crate::table::Table;
use crate::table_map::{BlockBytes, TableMap};
use crate::version::Version;

// Neighbouring blocks are read together up to these sizes; larger reads gain nothing. On the fast
// tier, small buffers stay in the CPU's caches, and the allocator need not return them.
const FAST_RUN_BYTES_MAX: u64 = 256 << 10;
const SLOW_RUN_BYTES_MAX: u64 = 4 << 20;
const BLOCKS_PER_CANCEL_CHECK: usize = 64;
// Upper bound of one read-ahead. A request alone takes 30 ms, in which 8 MiB arrive at 250 MB/s.
const AHEAD_BYTES_MAX: u64 = 8 << 20;
// How often the read-ahead doubles: 31 pieces are then read ahead.
const TRIPS_MAX: u32 = 5;

/// The columns to read of one group.
#[derive(Clone, Copy, Debug)]
pub struct ColumnRequest<'a> {
    /// The group.
    pub group: GroupId,
    /// The members, sorted and distinct.
    pub slots: &'a [Slot],
    /// Returns only samples committed before this: later ones are known from elsewhere (the head's
    /// hot memory), and tables without older ones are not read. `None` reads all.
    pub before: Option<CommitSeq>,
}

impl ColumnRequest<'_> {
    fn wants_table(&self, record: &TableRecord) -> bool {
        record.may_hold(self.group) && self.before.is_none_or(|before| record.seq.min < before)
    }

    fn wants_any(&self, min: Slot, max: Slot) -> bool {
        let at = self.slots.partition_point(|slot| *slot < min);
        self.slots.get(at).is_some_and(|slot| *slot <= max)
    }

    /// Whether a wanted member has samples in a block, by its presence set.
    fn wants_some_of(&self, suffix: &Suffix, block_idx: usize, range: TimeRange) -> bool {
        let mut parts = suffix.parts_in(block_idx, self.group, range);
        parts.any(|(_, members)| members.common(self.slots).next().is_some())
    }
}

/// A block that some requests need. Sorted by table, then block, then the request's group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct WantedBlock {
    table_idx: usize,
    block_idx: usize,
    group: GroupId,
    ask_idx: usize,
}

struct Source<'a> {
    table: &'a Arc<Table>,
    suffix: Arc<Suffix>,
    /// The table's file at the start of the scan.
    map: Option<Arc<TableMap>>,
}

/// A block of a table.
#[derive(Clone, Copy)]
struct BlockLocation<'a> {
    table: &'a Arc<Table>,
    block_idx: u32,
    entry: &'a BlockEntry,
    map: Option<&'a Arc<TableMap>>,
}

/// A block's bytes in a run of neighbours; after the check its payload, there, alone (unpacked,
/// cached) or in the mapped file.
struct Fetched {
    bytes: BlockBytes,
    range: Range<usize>,
}

/// Counts of the chunks that were read in a block.
#[derive(Default)]
struct BlockRead {
    values: u64,
    bytes: usize,
}

/// How far one selection, which is scanned piece by piece, reads ahead: nothing at first, then
/// twice as far for each request to the slow tier. So a short query reads nothing in vain, and a
/// long one does not wait for each of its pieces.
#[derive(Debug, Default)]
pub struct ReadAhead {
    /// Requests to the slow tier. Locked during one: a waiting thread then finds its blocks read
    /// ahead.
    trips: Mutex<u32>,
}

/// The columns that a selection will read later.
#[derive(Clone, Debug)]
pub struct UpcomingScan {
    /// The range of time.
    pub range: TimeRange,
    /// The groups, rising.
    pub groups: Vec<UpcomingGroup>,
}

/// The members of a group that a selection will read later.
#[derive(Clone, Debug)]
pub struct UpcomingGroup {
    /// The group.
    pub group: GroupId,
    /// Like [`ColumnRequest::slots`].
    pub slots: Vec<Slot>,
    /// Like [`ColumnRequest::before`].
    pub before: Option<CommitSeq>,
}

/// The read-ahead of one piece of a selection.
pub struct Prefetch<'a> {
    /// The state of the selection.
    pub read_ahead: &'a ReadAhead,
    /// Returns the requests of the next pieces; the argument is the number of pieces.
    pub next: &'a mut dyn FnMut(usize) -> UpcomingScan,
}

impl std::fmt::Debug for Prefetch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.read_ahead.fmt(f)
    }
}

impl Version {
    /// Whether some table may contain samples in `range` of commits before `before`; if not, no
    /// scan is needed. Reads no directory.
    pub fn may_hold(&self, range: TimeRange, before: CommitSeq) -> bool {
        let mut tables = Level::ALL.into_iter().flat_map(|level| self.overlapping(level, range));
        tables.any(|table| table.record.time_range.overlaps(range) && table.record.seq.min < before)
    }

    /// Reads the columns of each request in `range`: one entry per chunk that has some, oldest
    /// first by commit (`merge_columns` merges them). Two round trips at most: directories that are
    /// not in memory, then blocks. With `ahead`, a request to the slow tier also reads blocks of
    /// later pieces, as far as the cache has room for them.
    ///
    /// # Errors
    /// `Corrupt` with file and offset if a needed block is damaged (others stay readable);
    /// `Unavailable` if the slow tier is needed and down; `Busy` without memory; `Canceled`,
    /// `Timeout`.
    pub fn scan(
        &self,
        asks: &[ColumnRequest<'_>],
        range: TimeRange,
        ahead: Option<Prefetch<'_>>,
        context: &QueryContext,
    ) -> Result<Vec<Vec<GroupColumns>>> {
        let found = self.scan_once(asks, range, ahead, context, true)?;
        // Another program changed a file meanwhile: nothing that was read from a map is valid.
        let found = match found {
            None => self.scan_once(asks, range, None, context, false)?,
            found => found,
        };
        found.ok_or_else(|| Error::internal("a scan without maps depends on a map"))
    }

    /// As [`Version::scan`]; without `uses_maps` by transfers only. `None` if a mapped file was
    /// changed during the scan.
    fn scan_once(
        &self,
        asks: &[ColumnRequest<'_>],
        range: TimeRange,
        ahead: Option<Prefetch<'_>>,
        context: &QueryContext,
        uses_maps: bool,
    ) -> Result<Option<Vec<Vec<GroupColumns>>>> {
        context.cancel.check()?;
        let mut found: Vec<Vec<GroupColumns>> = vec![Vec::new(); asks.len()];
        let mut sources = self.sources(asks, range)?;
        let wants = wanted_blocks(&sources, asks, range);
        if uses_maps {
            // Before the first transfer: blocks verified after it belong to the stamp of the map.
            for wants in wants.chunk_by(|a, b| a.table_idx == b.table_idx) {
                if let Some(source) = wants.first().and_then(|w| sources.get_mut(w.table_idx)) {
                    source.map = self.store().map(source.table);
                }
            }
        }
        let mut memory = context.budget.empty(Pool::Query);
        let blocks: Vec<&[WantedBlock]> = by_block(&wants).collect();
        let places: Vec<BlockLocation<'_>> =
            blocks.iter().filter_map(|wants| place(&sources, wants)).collect();
        let mapped: Vec<Option<Fetched>> = mapped(&places);
        let transferred = places.iter().zip(&mapped).filter(|(_, mapped)| mapped.is_none());
        memory.grow(bytes_of(transferred.map(|(place, _)| place)))?;
        let fetched = self.fetch(&places, mapped, ahead, &mut memory, &context.stats)?;
        for (idx, (wants, fetched)) in blocks.iter().zip(&fetched).enumerate() {
            if idx % BLOCKS_PER_CANCEL_CHECK == 0 {
                context.cancel.check()?;
            }
            let place = &places[idx];
            let read = decode_block(place, wants, fetched, (asks, range), &mut memory, &mut found)?;
            self.store().traffic.answered(place.is_slow(), read.values);
            if let BlockBytes::Mapped(_) = fetched.bytes {
                context.stats.fast_bytes.add(read.bytes as u64);
                self.store().traffic.read_for_query(false, read.bytes as u64);
            }
        }
        for sources in &mut found {
            // Stable: with equal commits the older level stays first.
            sources.sort_by_key(|columns| (columns.seq.max, columns.seq.min));
        }
        let mut maps = sources.iter().filter_map(|source| source.map.as_ref());
        Ok(maps.all(|map| map.is_unchanged()).then_some(found))
    }

    /// The tables that may contain the columns, oldest level first, with their directories.
    fn sources(&self, asks: &[ColumnRequest<'_>], range: TimeRange) -> Result<Vec<Source<'_>>> {
        let Some(group_min) = asks.iter().map(|ask| ask.group).min() else {
            return Ok(Vec::new());
        };
        let group_max = asks.iter().map(|ask| ask.group).max().unwrap_or(group_min);
        let tables: Vec<&Arc<Table>> = [Level::Two, Level::One, Level::Zero]
            .into_iter()
            .flat_map(|level| self.overlapping(level, range))
            .filter(|table| table.record.time_range.overlaps(range))
            .filter(|table| {
                table.record.group_min <= group_max && group_min <= table.record.group_max
            })
            .filter(|table| asks.iter().any(|ask| ask.wants_table(&table.record)))
            .collect();
        let suffixes = self.store().suffixes(&tables);
        tables
            .into_iter()
            .zip(suffixes)
            .map(|(table, suffix)| suffix.map(|suffix| Source { table, suffix, map: None }))
            .collect()
    }

    /// The blocks' bytes in the order of `places`: those of `mapped`, cached ones, and the others
    /// by one batch of reads.
    fn fetch(
        &self,
        places: &[BlockLocation<'_>],
        mapped: Vec<Option<Fetched>>,
        ahead: Option<Prefetch<'_>>,
        memory: &mut Reservation,
        stats: &QueryStats,
    ) -> Result<Vec<Fetched>> {
        let mut fetched = mapped;
        self.add_kept(places, &mut fetched, memory, stats)?;
        let asks_slow = |fetched: &[Option<Fetched>]| {
            places.iter().zip(fetched).any(|(place, found)| place.is_slow() && found.is_none())
        };
        match ahead.filter(|_| asks_slow(&fetched) && self.store().cache.has_room(AHEAD_BYTES_MAX))
        {
            None => self.read_missing(places, &mut fetched, &[], memory, stats)?,
            Some(Prefetch { read_ahead, next }) => {
                let mut trips = read_ahead.trips.lock();
                if *trips > 0 {
                    self.look_again(places, &mut fetched);
                }
                if asks_slow(&fetched) {
                    let mut pieces = (1 << (*trips).min(TRIPS_MAX)) - 1;
                    *trips += 1;
                    loop {
                        let later = next(pieces);
                        let asks: Vec<ColumnRequest<'_>> =
                            later.groups.iter().map(UpcomingGroup::ask).collect();
                        // A read that fails here is repeated when its blocks are needed.
                        let sources = self.sources(&asks, later.range).unwrap_or_default();
                        let along = self.along(&sources, &asks, later.range, places);
                        let bytes = bytes_of(along.iter());
                        if pieces > 0 && (bytes > AHEAD_BYTES_MAX || memory.grow(bytes).is_err()) {
                            pieces /= 2;
                            continue;
                        }
                        self.read_missing(places, &mut fetched, &along, memory, stats)?;
                        break;
                    }
                } else {
                    drop(trips);
                    self.read_missing(places, &mut fetched, &[], memory, stats)?;
                }
            }
        }
        let missing = || Error::internal("a block was not read");
        fetched.into_iter().map(|fetched| fetched.ok_or_else(missing)).collect()
    }

    /// The slow-tier blocks of later `asks`, without cached blocks and without `needed`.
    fn along<'a>(
        &self,
        sources: &'a [Source<'a>],
        asks: &[ColumnRequest<'_>],
        range: TimeRange,
        needed: &[BlockLocation<'_>],
    ) -> Vec<BlockLocation<'a>> {
        let needed: HashSet<(TableId, u32)> = needed.iter().map(BlockLocation::id).collect();
        let wants = wanted_blocks(sources, asks, range);
        let places = by_block(&wants).filter_map(|wants| place(sources, wants));
        let is_new = |place: &BlockLocation<'_>| {
            let (table, block_idx) = place.id();
            place.is_slow()
                && !needed.contains(&place.id())
                && self.store().cache.block(table, block_idx).is_none()
        };
        places.filter(is_new).collect()
    }

    /// Fills in slow-tier blocks that are in memory or on this machine's disk.
    fn add_kept(
        &self,
        places: &[BlockLocation<'_>],
        fetched: &mut [Option<Fetched>],
        memory: &mut Reservation,
        stats: &QueryStats,
    ) -> Result<()> {
        let store = self.store();
        self.look_again(places, fetched);
        let mut missing = Vec::new();
        for idx in (0..places.len()).filter(|&idx| places[idx].is_slow()) {
            store.traffic.cache_look(fetched[idx].is_some());
            if fetched[idx].is_none() {
                missing.push(idx);
            }
        }
        let keys: Vec<PieceKey> = missing.iter().map(|&idx| places[idx].key()).collect();
        for (&idx, bytes) in missing.iter().zip(store.slow_cache.get(&keys)) {
            if let Some(bytes) = bytes {
                stats.fast_bytes.add(bytes.len() as u64);
                fetched[idx] =
                    Some(self.unpack_and_keep(&places[idx], Fetched::all(bytes), memory)?);
            }
        }
        for (_, found) in places.iter().zip(fetched).filter(|(place, _)| place.is_slow()) {
            let looks = if found.is_some() { &stats.cache_hits } else { &stats.cache_misses };
            looks.add(1);
        }
        Ok(())
    }

    /// Fills in blocks that are in memory.
    fn look_again(&self, places: &[BlockLocation<'_>], fetched: &mut [Option<Fetched>]) {
        for (place, found) in places.iter().zip(fetched) {
            if place.is_slow() && found.is_none() {
                let (table, block_idx) = place.id();
                *found = self.store().cache.block(table, block_idx).map(Fetched::all);
            }
        }
    }

    /// Reads the blocks missing in `fetched` and, in the same batch, the blocks of `along`.
    fn read_missing(
        &self,
        places: &[BlockLocation<'_>],
        fetched: &mut [Option<Fetched>],
        along: &[BlockLocation<'_>],
        memory: &mut Reservation,
        stats: &QueryStats,
    ) -> Result<()> {
        let missing = (0..places.len()).filter(|&idx| fetched[idx].is_none());
        let mut wanted: Vec<(BlockLocation<'_>, Option<usize>)> =
            missing.map(|idx| (places[idx], Some(idx))).collect();
        wanted.extend(along.iter().map(|place| (*place, None)));
        wanted.sort_by_key(|(place, _)| (place.table.record.id, place.entry.offset));
        let mut runs: Vec<(Read<'_>, Range<usize>)> = Vec::new();
        for (idx, (BlockLocation { table, entry, .. }, _)) in wanted.iter().enumerate() {
            let bytes = u64::from(entry.bytes);
            let is_slow = table.record.level.is_slow();
            let run_bytes_max = if is_slow { SLOW_RUN_BYTES_MAX } else { FAST_RUN_BYTES_MAX };
            match runs.last_mut() {
                Some((run, members))
                    if std::ptr::eq(run.table, &***table)
                        && run.offset + run.bytes == entry.offset
                        && run.bytes + bytes <= run_bytes_max =>
                {
                    run.bytes += bytes;
                    members.end += 1;
                }
                _ => runs.push((Read { table, offset: entry.offset, bytes }, idx..idx + 1)),
            }
        }
        let reads: Vec<Read<'_>> = runs.iter().map(|(read, _)| *read).collect();
        for read in &reads {
            let is_slow = read.table.record.level.is_slow();
            let tier = if is_slow { &stats.slow_bytes } else { &stats.fast_bytes };
            tier.add(read.bytes);
            self.store().traffic.read_for_query(is_slow, read.bytes);
        }
        for ((run, members), bytes) in runs.iter().zip(self.store().read(&reads)) {
            let members = &wanted[members.clone()];
            let is_needed = members.iter().any(|(_, idx)| idx.is_some());
            let bytes = match bytes {
                Ok(bytes) => bytes,
                Err(_) if !is_needed => continue,
                Err(e) => return Err(e),
            };
            for (place, idx) in members {
                let start = (place.entry.offset - run.offset) as usize;
                let range = start..start + place.entry.bytes as usize;
                if range.end > bytes.len() {
                    return Err(Error::internal("a read returned fewer bytes than requested"));
                }
                let block =
                    Fetched { bytes: BlockBytes::Read(Arc::clone(&bytes)), range: range.clone() };
                let unpacked = self.unpack_and_keep(place, block, memory);
                if place.is_slow() && unpacked.is_ok() {
                    self.store().slow_cache.put(place.key(), &bytes[range]);
                }
                match (unpacked, idx) {
                    (Ok(unpacked), Some(idx)) => fetched[*idx] = Some(unpacked),
                    (Err(e), Some(_)) => return Err(e),
                    (_, None) => {}
                }
            }
        }
        Ok(())
    }

    /// Unpacks the payload of a stored block; that of a slow-tier block is kept in memory.
    fn unpack_and_keep(
        &self,
        place: &BlockLocation<'_>,
        stored: Fetched,
        memory: &mut Reservation,
    ) -> Result<Fetched> {
        let (table, entry) = (place.table, place.entry);
        let bytes = &stored.bytes[stored.range.clone()];
        let payload = unpack(table.path(), entry.offset, table.record.salt, bytes)
            .map_err(|e| table.note(e))?;
        let payload = match payload {
            Cow::Borrowed(payload) => {
                let start = stored.range.end - payload.len();
                if let Some(map) = place.map {
                    map.set_sound(place.block_idx);
                }
                Fetched { bytes: stored.bytes.clone(), range: start..stored.range.end }
            }
            Cow::Owned(payload) => {
                memory.grow(payload.len() as u64)?;
                Fetched::all(payload.into())
            }
        };
        if place.is_slow() {
            // A slice of the run would keep the whole run in memory.
            let kept = match &payload.bytes {
                BlockBytes::Read(bytes) if payload.range.len() == bytes.len() => Arc::clone(bytes),
                bytes => bytes[payload.range.clone()].into(),
            };
            self.store().cache.keep_block(table.record.id, place.block_idx, kept);
        }
        Ok(payload)
    }
}

impl BlockLocation<'_> {
    fn is_slow(&self) -> bool {
        self.table.record.level.is_slow()
    }

    fn id(&self) -> (TableId, u32) {
        (self.table.record.id, self.block_idx)
    }

    fn key(&self) -> PieceKey {
        PieceKey::block(&self.table.record, self.block_idx)
    }
}

impl Fetched {
    fn all(bytes: Arc<[u8]>) -> Fetched {
        Fetched { range: 0..bytes.len(), bytes: BlockBytes::Read(bytes) }
    }
}

impl UpcomingGroup {
    fn ask(&self) -> ColumnRequest<'_> {
        ColumnRequest { group: self.group, slots: &self.slots, before: self.before }
    }
}

/// Splits sorted wanted blocks by block.
fn by_block(wants: &[WantedBlock]) -> impl Iterator<Item = &[WantedBlock]> {
    wants.chunk_by(|a, b| (a.table_idx, a.block_idx) == (b.table_idx, b.block_idx))
}

/// The block that some requests share.
fn place<'a>(sources: &'a [Source<'a>], wants: &[WantedBlock]) -> Option<BlockLocation<'a>> {
    let want = wants.first()?;
    let source = sources.get(want.table_idx)?;
    let entry = source.suffix.blocks.get(want.block_idx)?;
    let (table, map) = (source.table, source.map.as_ref());
    Some(BlockLocation { table, block_idx: want.block_idx as u32, entry, map })
}

/// For each block its payload in the mapped file, if it was verified before.
fn mapped(places: &[BlockLocation<'_>]) -> Vec<Option<Fetched>> {
    let mapped = places.iter().map(|place| {
        let map = place.map?;
        let range = map.payload(place.block_idx, block_range(place.entry))?;
        Some(Fetched { bytes: BlockBytes::Mapped(Arc::clone(map)), range })
    });
    mapped.collect()
}

fn bytes_of<'a>(places: impl Iterator<Item = &'a BlockLocation<'a>>) -> u64 {
    places.map(|place| u64::from(place.entry.bytes)).sum()
}

fn wanted_blocks(
    sources: &[Source<'_>],
    asks: &[ColumnRequest<'_>],
    range: TimeRange,
) -> Vec<WantedBlock> {
    let mut wants = Vec::new();
    for (table_idx, source) in sources.iter().enumerate() {
        for (ask_idx, ask) in asks.iter().enumerate() {
            if !ask.wants_table(&source.table.record) {
                continue;
            }
            for block_idx in source.suffix.blocks_of(ask.group) {
                let block = &source.suffix.blocks[block_idx];
                if block.time_range.overlaps(range)
                    && ask.wants_any(block.slot_min, block.slot_max)
                    && (block.slot_min == block.slot_max
                        || ask.wants_some_of(&source.suffix, block_idx, range))
                {
                    wants.push(WantedBlock { table_idx, block_idx, group: ask.group, ask_idx });
                }
            }
        }
    }
    wants.sort_unstable();
    wants
}

/// Decodes the wanted chunks of one block into `found`; memory is reserved first. Returns
/// counts.
fn decode_block(
    BlockLocation { table, entry, .. }: &BlockLocation<'_>,
    wants: &[WantedBlock],
    fetched: &Fetched,
    (asks, range): (&[ColumnRequest<'_>], TimeRange),
    memory: &mut Reservation,
    found: &mut [Vec<GroupColumns>],
) -> Result<BlockRead> {
    let bytes = &fetched.bytes[fetched.range.clone()];
    let mut read = BlockRead::default();
    let block = Block::open(table.path(), entry.offset, bytes)?;
    let mut refused = None;
    let mut left = wants;
    let walked = block.for_chunks(|group, bytes| {
        left = &left[left.partition_point(|want| want.group < group)..];
        if left.is_empty() {
            return Ok(Walk::Stop);
        }
        let here = &left[..left.partition_point(|want| want.group == group)];
        if here.is_empty() {
            return Ok(Walk::On);
        }
        let chunk = Chunk::open(bytes)?;
        for want in here {
            let ask = &asks[want.ask_idx];
            let is_known = ask.before.is_some_and(|before| chunk.seq().min >= before);
            if is_known || !chunk.time_range().overlaps(range) {
                continue;
            }
            let bytes_max = chunk.decoded_bytes_of(Slots::Some(ask.slots), range) as u64;
            if let Err(error) = memory.grow(bytes_max) {
                refused = Some(error);
                return Ok(Walk::Stop);
            }
            let slots = Slots::Some(ask.slots);
            let columns = chunk.read_touching(slots, range, &mut read.bytes)?;
            let bytes = if columns.is_empty() { 0 } else { columns.heap_bytes() as u64 };
            memory.shrink(bytes_max.saturating_sub(bytes));
            if let Some(more) = bytes.checked_sub(bytes_max).filter(|&more| more > 0)
                && let Err(error) = memory.grow(more)
            {
                refused = Some(error);
                return Ok(Walk::Stop);
            }
            if !columns.is_empty() {
                let values = columns.batch.columns.iter().map(|column| column.values.len() as u64);
                read.values += values.sum::<u64>();
                found[want.ask_idx].push(columns);
            }
        }
        Ok(Walk::On)
    });
    walked.map_err(|e| table.note(Error::corrupt(table.path(), entry.offset, e.what())))?;
    refused.map_or(Ok(read), Err)
}
