//! Reading columns of many groups from one version: directories, then blocks, each in one batch.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use firn_codec::{Chunk, GroupColumns, Slots};
use firn_model::{
    CommitSeq, Error, GroupId, Pool, QueryContext, QueryStats, Reservation, Result, Slot, TimeRange,
};

use crate::block::{Block, Walk, unpack};
use crate::record::{Level, TableRecord};
use crate::store::Read;
use crate::suffix::{BlockEntry, Suffix};
use crate::table::Table;
use crate::version::Version;

// Neighbouring blocks are read together up to this size; more gains nothing on either tier.
const RUN_BYTES_MAX: u64 = 4 << 20;
const BLOCKS_PER_CANCEL_CHECK: usize = 64;

/// What is wanted of one group.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The group.
    pub group: GroupId,
    /// The members; sorted, none twice.
    pub slots: &'a [Slot],
    /// Only what was committed before this: the rest is known from elsewhere (the head's hot memory),
    /// and tables that hold nothing older are not read. `None` asks for all.
    pub before: Option<CommitSeq>,
}

impl Ask<'_> {
    fn wants_table(&self, record: &TableRecord) -> bool {
        record.may_hold(self.group) && self.before.is_none_or(|before| record.seq.min < before)
    }

    fn wants_any(&self, min: Slot, max: Slot) -> bool {
        let at = self.slots.partition_point(|slot| *slot < min);
        self.slots.get(at).is_some_and(|slot| *slot <= max)
    }

    /// Whether a member that is wanted has samples in a block, as its presence set tells.
    fn wants_some_of(&self, suffix: &Suffix, block_idx: usize, range: TimeRange) -> bool {
        let mut parts = suffix.parts_in(block_idx, self.group, range);
        parts.any(|(_, members)| members.common(self.slots).next().is_some())
    }
}

/// A block that some asks need. Sorted by table, then block, then the ask's group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Want {
    table_idx: usize,
    block_idx: usize,
    group: GroupId,
    ask_idx: usize,
}

struct Source<'a> {
    table: &'a Arc<Table>,
    suffix: Arc<Suffix>,
}

/// A block's bytes inside a run of neighbours; once it is checked its payload, there or alone (unpacked, cached).
struct Fetched {
    bytes: Arc<[u8]>,
    range: Range<usize>,
}

impl Version {
    /// Whether some table may hold samples in `range` of commits before `before`: where none does, nothing need be
    /// asked for. Looks at no directory.
    pub fn may_hold(&self, range: TimeRange, before: CommitSeq) -> bool {
        let mut tables = Level::ALL.into_iter().flat_map(|level| self.overlapping(level, range));
        tables.any(|table| table.record.time_range.overlaps(range) && table.record.seq.min < before)
    }

    /// The columns of each ask in `range`, one entry per chunk that has some, oldest first by commit
    /// (`merge_columns` makes one of them). Two round trips at most: directories that are not in
    /// memory, then blocks.
    ///
    /// # Errors
    /// `Corrupt` with file and offset if a block that is needed is damaged (others stay readable);
    /// `Unavailable` if the slow tier is needed and down; `Busy` without memory; `Canceled`,
    /// `Timeout`.
    pub fn scan(
        &self,
        asks: &[Ask<'_>],
        range: TimeRange,
        context: &QueryContext,
    ) -> Result<Vec<Vec<GroupColumns>>> {
        context.cancel.check()?;
        let mut found: Vec<Vec<GroupColumns>> = vec![Vec::new(); asks.len()];
        let sources = self.sources(asks, range)?;
        let wants = wanted_blocks(&sources, asks, range);
        let mut memory = context.budget.empty(Pool::Query);
        let blocks: Vec<&[Want]> = wants
            .chunk_by(|a, b| (a.table_idx, a.block_idx) == (b.table_idx, b.block_idx))
            .collect();
        let bytes = blocks.iter().filter_map(|wants| sources.entry(wants)).map(|entry| entry.bytes);
        memory.grow(bytes.map(u64::from).sum())?;
        let fetched = self.fetch(&sources, &blocks, &context.stats, &mut memory)?;
        for (idx, (wants, fetched)) in blocks.iter().zip(&fetched).enumerate() {
            if idx % BLOCKS_PER_CANCEL_CHECK == 0 {
                context.cancel.check()?;
            }
            decode_block(&sources, wants, fetched, (asks, range), &mut memory, &mut found)?;
        }
        for sources in &mut found {
            // Stable: of equal commits the older level stays first.
            sources.sort_by_key(|columns| (columns.seq.max, columns.seq.min));
        }
        Ok(found)
    }

    /// The tables that can hold what is asked for, oldest level first, with their directories.
    fn sources(&self, asks: &[Ask<'_>], range: TimeRange) -> Result<Vec<Source<'_>>> {
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
            .map(|(table, suffix)| suffix.map(|suffix| Source { table, suffix }))
            .collect()
    }

    /// The blocks' payloads in the order of `blocks`: from the cache, else by one batch of reads.
    fn fetch(
        &self,
        sources: &[Source<'_>],
        blocks: &[&[Want]],
        stats: &QueryStats,
        memory: &mut Reservation,
    ) -> Result<Vec<Fetched>> {
        let store = self.store();
        let mut fetched: Vec<Option<Fetched>> = Vec::with_capacity(blocks.len());
        let mut runs: Vec<(Read<'_>, Vec<usize>)> = Vec::new();
        for (idx, wants) in blocks.iter().enumerate() {
            let (Some(want), Some(entry)) = (wants.first(), sources.entry(wants)) else {
                return Err(Error::internal("a wanted block is not in its table"));
            };
            let table = sources[want.table_idx].table;
            let cached = match table.record.level.is_slow() {
                true => store.cache.block(table.record.id, want.block_idx as u32),
                false => None,
            };
            let is_cached = cached.is_some();
            fetched.push(cached.map(|bytes| Fetched { range: 0..bytes.len(), bytes }));
            if table.record.level.is_slow() {
                store.traffic.cache_look(is_cached);
                let looks = if is_cached { &stats.cache_hits } else { &stats.cache_misses };
                looks.add(1);
            }
            if is_cached {
                continue;
            }
            let bytes = u64::from(entry.bytes);
            match runs.last_mut() {
                Some((run, members))
                    if std::ptr::eq(run.table, &**table)
                        && run.offset + run.bytes == entry.offset
                        && run.bytes + bytes <= RUN_BYTES_MAX =>
                {
                    run.bytes += bytes;
                    members.push(idx);
                }
                _ => runs.push((Read { table, offset: entry.offset, bytes }, vec![idx])),
            }
        }
        let reads: Vec<Read<'_>> = runs.iter().map(|(read, _)| *read).collect();
        for read in &reads {
            let is_slow = read.table.record.level.is_slow();
            let tier = if is_slow { &stats.slow_bytes } else { &stats.fast_bytes };
            tier.add(read.bytes);
        }
        for ((run, members), bytes) in runs.iter().zip(store.read(&reads)) {
            let bytes = bytes?;
            for &idx in members {
                let (Some(entry), Some(want)) = (sources.entry(blocks[idx]), blocks[idx].first())
                else {
                    continue;
                };
                let start = (entry.offset - run.offset) as usize;
                let range = start..start + entry.bytes as usize;
                if range.end > bytes.len() {
                    return Err(Error::internal("a read is shorter than what was asked for"));
                }
                let block = Fetched { bytes: Arc::clone(&bytes), range };
                fetched[idx] = Some(self.unpack_and_keep(sources, *want, entry, block, memory)?);
            }
        }
        fetched
            .into_iter()
            .map(|fetched| fetched.ok_or_else(|| Error::internal("a block was not read")))
            .collect()
    }

    /// The payload of a block that was read now; of the slow tier it is kept.
    fn unpack_and_keep(
        &self,
        sources: &[Source<'_>],
        want: Want,
        entry: &BlockEntry,
        read: Fetched,
        memory: &mut Reservation,
    ) -> Result<Fetched> {
        let table = sources[want.table_idx].table;
        let bytes = &read.bytes[read.range.clone()];
        let payload = unpack(table.path(), entry.offset, table.record.salt, bytes)
            .map_err(|e| table.note(e))?;
        let payload = match payload {
            Cow::Borrowed(payload) => {
                let start = read.range.end - payload.len();
                Fetched { bytes: Arc::clone(&read.bytes), range: start..read.range.end }
            }
            Cow::Owned(payload) => {
                memory.grow(payload.len() as u64)?;
                Fetched { range: 0..payload.len(), bytes: payload.into() }
            }
        };
        if table.record.level.is_slow() {
            // Not the whole run for the sake of one block.
            let kept = match payload.range.len() == payload.bytes.len() {
                true => Arc::clone(&payload.bytes),
                false => payload.bytes[payload.range.clone()].into(),
            };
            self.store().cache.keep_block(table.record.id, want.block_idx as u32, kept);
        }
        Ok(payload)
    }
}

/// The block of some wants that share it.
trait Entries {
    fn entry(&self, wants: &[Want]) -> Option<&BlockEntry>;
}

impl Entries for [Source<'_>] {
    fn entry(&self, wants: &[Want]) -> Option<&BlockEntry> {
        let want = wants.first()?;
        self.get(want.table_idx)?.suffix.blocks.get(want.block_idx)
    }
}

fn wanted_blocks(sources: &[Source<'_>], asks: &[Ask<'_>], range: TimeRange) -> Vec<Want> {
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
                    wants.push(Want { table_idx, block_idx, group: ask.group, ask_idx });
                }
            }
        }
    }
    wants.sort_unstable();
    wants
}

/// Decodes what `wants` need of one block; memory is set aside before.
fn decode_block(
    sources: &[Source<'_>],
    wants: &[Want],
    fetched: &Fetched,
    (asks, range): (&[Ask<'_>], TimeRange),
    memory: &mut Reservation,
    found: &mut [Vec<GroupColumns>],
) -> Result<()> {
    let (Some(want), Some(entry)) = (wants.first(), sources.entry(wants)) else { return Ok(()) };
    let table = sources[want.table_idx].table;
    let bytes = &fetched.bytes[fetched.range.clone()];
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
            let bytes_max = (ask.slots.len() * chunk.entry_count() * 8) as u64;
            if let Err(error) = memory.grow(bytes_max) {
                refused = Some(error);
                return Ok(Walk::Stop);
            }
            let columns = chunk.read(Slots::Some(ask.slots), range)?;
            let bytes = if columns.is_empty() { 0 } else { columns.heap_bytes() as u64 };
            memory.shrink(bytes_max.saturating_sub(bytes));
            if !columns.is_empty() {
                found[want.ask_idx].push(columns);
            }
        }
        Ok(Walk::On)
    });
    walked.map_err(|e| table.note(Error::corrupt(table.path(), entry.offset, e.what())))?;
    refused.map_or(Ok(()), Err)
}

/// Where a block lies in the bytes of its whole table.
pub(crate) fn block_range(entry: &BlockEntry) -> Range<usize> {
    let start = usize::try_from(entry.offset).unwrap_or(usize::MAX);
    start..start.saturating_add(entry.bytes as usize)
}
