//! Reads tables of both tiers through the cache: batches of ranges, suffixes, whole tables.

use std::sync::Arc;

use firn_codec::{Chunk, Slots};
use firn_env::{Bucket, Disk, Env, RangeRequest};
use firn_model::{Budget, Error, ErrorKind, Reservation, Result, TimeRange};
use parking_lot::Mutex;

use crate::block::{BLOCK_HEADER_BYTES, Block, Walk, unpack};
use crate::cache::Cache;
use crate::header::TABLE_HEADER_BYTES;
use crate::record::{TableId, TableRecord};
use crate::slow_cache::{PieceKey, SlowCache};
use crate::stats::Traffic;
use crate::suffix::{Suffix, SuffixBuilder};
use crate::table::Table;
use crate::table_map::{OpenTables, TableMap};

// Directories read in one batch: a year has some hundred directories of about 100 KB.
const DIRECTORY_BYTES_MAX: u64 = 16 << 20;

/// The readers and caches that all versions of a tree share.
pub(crate) struct Store {
    disk: Arc<dyn Disk>,
    bucket: Arc<dyn Bucket>,
    open_tables: Arc<OpenTables>,
    pub(crate) cache: Cache,
    pub(crate) slow_cache: SlowCache,
    pub(crate) traffic: Traffic,
    /// Objects of failed uploads: they may or may not exist.
    pub(crate) abandoned: Mutex<Vec<TableId>>,
}

/// A range of a table.
#[derive(Clone, Copy)]
pub(crate) struct Read<'a> {
    pub(crate) table: &'a Table,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Store {
    pub(crate) fn new(
        env: &Env,
        cache_bytes_max: u64,
        slow_cache: SlowCache,
        budget: &Budget,
    ) -> Store {
        Store {
            disk: Arc::clone(&env.disk),
            bucket: Arc::clone(&env.bucket),
            open_tables: Arc::new(OpenTables::new(&*env.disk)),
            cache: Cache::new(cache_bytes_max, budget),
            slow_cache,
            traffic: Traffic::default(),
            abandoned: Mutex::default(),
        }
    }

    /// Reads ranges; those of the slow tier in one call. Results are in the order of `reads`.
    /// Damage, also a missing file, is recorded at the table.
    pub(crate) fn read(&self, reads: &[Read<'_>]) -> Vec<Result<Arc<[u8]>>> {
        let mut answers: Vec<Option<Result<Arc<[u8]>>>> = Vec::new();
        let mut slow = Vec::new();
        for (idx, read) in reads.iter().enumerate() {
            if read.table.record.level.is_slow() {
                slow.push(idx);
                answers.push(None);
            } else {
                answers.push(Some(self.read_fast(read)));
            }
        }
        let requests: Vec<RangeRequest> = slow
            .iter()
            .filter_map(|&idx| reads.get(idx))
            .map(|read| RangeRequest {
                key: read.table.path().to_owned(),
                offset: read.offset,
                len: read.bytes,
            })
            .collect();
        if !requests.is_empty() {
            let bytes = requests.iter().map(|request| request.len).sum();
            self.traffic.slow_read(requests.len() as u64, bytes);
            for ((idx, answer), request) in
                slow.into_iter().zip(self.bucket.get_ranges(&requests)).zip(&requests)
            {
                answers[idx] = Some(answer.and_then(|bytes| whole(request, bytes)));
            }
        }
        let missing = || Err(Error::internal("bucket: a range has no answer"));
        answers
            .into_iter()
            .zip(reads)
            .map(|(answer, read)| answer.unwrap_or_else(missing).map_err(|e| damage(read, e)))
            .collect()
    }

    fn read_fast(&self, read: &Read<'_>) -> Result<Arc<[u8]>> {
        let file = read.table.open(&*self.disk, &self.open_tables)?;
        let len = usize::try_from(read.bytes).map_err(|_| {
            Error::too_large(format!("{}: a read of {}", read.table.path(), read.bytes))
        })?;
        // The bytes of a vector would be copied into the shared allocation.
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, len).collect();
        let filled = Arc::get_mut(&mut bytes).ok_or_else(|| Error::internal("shared bytes"))?;
        file.read_at(read.offset, filled)?;
        self.traffic.fast_read(read.bytes);
        Ok(bytes)
    }

    /// A local table's file as memory; `None` if its blocks must be read and verified.
    pub(crate) fn map(&self, table: &Table) -> Option<Arc<TableMap>> {
        let is_local = !table.record.level.is_slow();
        is_local.then(|| table.map(&*self.disk, &self.open_tables))?
    }

    /// Drops all cached data of removed tables.
    pub(crate) fn forget(&self, is_gone: impl Fn(TableId) -> bool) {
        self.cache.forget(&is_gone);
        self.slow_cache.forget(&is_gone);
    }

    /// Length of a table's file or object; 0 if it is missing, or no file.
    pub(crate) fn len(&self, table: &Table) -> Result<u64> {
        let len = match table.record.level.is_slow() {
            true => self.bucket.head(table.path()).map(|info| info.bytes),
            false => table.open(&*self.disk, &self.open_tables).and_then(|file| file.len()),
        };
        match len {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt { .. }) => Ok(0),
            len => len,
        }
    }

    /// The directories of `tables`; those not on this machine in one batch of reads. A damaged one
    /// is rebuilt from the blocks, which contain their members and times.
    pub(crate) fn suffixes(&self, tables: &[&Arc<Table>]) -> Vec<Result<Arc<Suffix>>> {
        let mut answers: Vec<Option<Result<Arc<Suffix>>>> =
            tables.iter().map(|table| self.suffix_in_memory(table).map(Ok)).collect();
        let mut missing: Vec<usize> =
            (0..tables.len()).filter(|&idx| answers[idx].is_none()).collect();
        let is_slow = |idx: usize| tables[idx].record.level.is_slow();
        let slow: Vec<usize> = missing.iter().copied().filter(|&idx| is_slow(idx)).collect();
        let keys: Vec<PieceKey> =
            slow.iter().map(|&idx| PieceKey::suffix(&tables[idx].record)).collect();
        for (idx, bytes) in slow.into_iter().zip(self.slow_cache.get(&keys)) {
            let decoded = bytes.map(|bytes| Suffix::decode(&tables[idx].record, &bytes));
            answers[idx] =
                decoded.and_then(Result::ok).map(|suffix| Ok(self.keep(tables[idx], suffix)));
        }
        missing.retain(|&idx| answers[idx].is_none());
        let reads: Vec<Read<'_>> = missing
            .iter()
            .map(|&idx| Read {
                table: tables[idx],
                offset: tables[idx].record.suffix_offset(),
                bytes: tables[idx].record.suffix_bytes.into(),
            })
            .collect();
        for read in &reads {
            self.traffic.read_for_query(read.table.record.level.is_slow(), read.bytes);
        }
        for (&idx, answer) in missing.iter().zip(self.read(&reads)) {
            let table = tables[idx];
            let decoded = answer.and_then(|bytes| {
                let suffix = Suffix::decode(&table.record, &bytes)?;
                if is_slow(idx) {
                    self.slow_cache.put(PieceKey::suffix(&table.record), &bytes);
                }
                Ok(suffix)
            });
            let suffix = decoded.or_else(|e| self.rebuild_suffix(table, e));
            answers[idx] = Some(suffix.map(|suffix| self.keep(table, suffix)));
        }
        answers.into_iter().flatten().collect()
    }

    /// A slow-tier table's directory, if this machine has cached it.
    pub(crate) fn kept_suffix(&self, table: &Table) -> Option<Arc<Suffix>> {
        let is_slow = table.record.level.is_slow();
        self.suffix_in_memory(table).or_else(|| {
            let key = is_slow.then(|| PieceKey::suffix(&table.record))?;
            let bytes = self.slow_cache.get(&[key]).pop().flatten()?;
            Suffix::decode(&table.record, &bytes).ok().map(Arc::new)
        })
    }

    /// A slow-tier table's block as stored, if this machine has cached it.
    pub(crate) fn kept_block(&self, table: &Table, block_idx: u32) -> Option<Arc<[u8]>> {
        let is_slow = table.record.level.is_slow();
        let key = is_slow.then(|| PieceKey::block(&table.record, block_idx))?;
        self.slow_cache.get(&[key]).pop().flatten()
    }

    fn suffix_in_memory(&self, table: &Table) -> Option<Arc<Suffix>> {
        self.cache.suffix(table.record.id).or_else(|| table.held_suffix())
    }

    fn keep(&self, table: &Table, suffix: Suffix) -> Arc<Suffix> {
        let suffix = Arc::new(suffix);
        table.share_suffix(&suffix);
        self.cache.keep_suffix(table.record.id, Arc::clone(&suffix));
        suffix
    }

    pub(crate) fn suffix(&self, table: &Arc<Table>) -> Result<Arc<Suffix>> {
        self.suffixes(&[table])
            .pop()
            .unwrap_or_else(|| Err(Error::internal("the read of a suffix returned nothing")))
    }

    /// Calls `each` with the index and the suffix of each table, read some MiB at a time. Those
    /// that are not in the cache are counted in `memory`.
    ///
    /// # Errors
    /// `Busy` without memory; those of `each`.
    pub(crate) fn each_suffix(
        &self,
        tables: &[&Arc<Table>],
        memory: &mut Reservation,
        mut each: impl FnMut(usize, Result<Arc<Suffix>>) -> Result<()>,
    ) -> Result<()> {
        let (mut rest, mut idx) = (tables, 0);
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |table: &&&Arc<Table>| {
                let is_first = bytes == 0;
                bytes += u64::from(table.record.suffix_bytes);
                is_first || bytes <= DIRECTORY_BYTES_MAX
            };
            let count = rest.iter().take_while(fits).count();
            let (batch, after) = rest.split_at(count.max(1));
            rest = after;
            for (table, suffix) in batch.iter().zip(self.suffixes(batch)) {
                if let Ok(suffix) = &suffix
                    && self.cache.suffix(table.record.id).is_none()
                {
                    memory.grow(suffix.heap_bytes() as u64)?;
                }
                each(idx, suffix)?;
                idx += 1;
            }
        }
        Ok(())
    }

    /// Walks all blocks of a table whose suffix cannot be read.
    fn rebuild_suffix(&self, table: &Table, reason: Error) -> Result<Suffix> {
        if !matches!(reason.kind(), ErrorKind::Corrupt { .. }) {
            return Err(reason);
        }
        let offset = TABLE_HEADER_BYTES as u64;
        let bytes = table.record.suffix_offset().saturating_sub(offset);
        let read = Read { table, offset, bytes };
        let blocks = self
            .read(&[read])
            .pop()
            .unwrap_or_else(|| Err(Error::internal("a read returned nothing")));
        let suffix = blocks.and_then(|bytes| walk_blocks(&table.record, &bytes));
        // On success the table is not marked damaged: the next merge writes a good suffix.
        suffix.map_err(|e| table.note(reason.because(e)))
    }
}

/// A short response is no damage of the object: a later request may return all of it.
fn whole(request: &RangeRequest, bytes: Arc<[u8]>) -> Result<Arc<[u8]>> {
    if bytes.len() as u64 == request.len {
        return Ok(bytes);
    }
    Err(Error::unavailable(format!(
        "{}: the slow tier sent {} bytes of {} from byte {}; retry",
        request.key,
        bytes.len(),
        request.len,
        request.offset
    )))
}

/// Names the missing or short file, and records damage at the table.
fn damage(read: &Read<'_>, error: Error) -> Error {
    let error = match error.kind() {
        ErrorKind::NotFound => Error::corrupt(
            read.table.path(),
            read.offset,
            "the table is missing although the manifest names it: run `firn check --repair` to \
             continue without it",
        )
        .because(error),
        _ => error,
    };
    read.table.note(error)
}

/// The directory of a table from its blocks, which are `bytes`.
pub(crate) fn walk_blocks(record: &TableRecord, bytes: &[u8]) -> Result<Suffix> {
    let file = record.path();
    let mut suffix = SuffixBuilder::new(record.partition);
    let mut rest = bytes;
    while !rest.is_empty() {
        let offset = suffix.suffix().blocks_end();
        let block_bytes = Block::bytes_of(rest)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .filter(|&bytes| bytes > BLOCK_HEADER_BYTES && bytes <= rest.len())
            .ok_or_else(|| Error::corrupt(file.as_str(), offset, "block length is damaged"))?;
        let (block_bytes, after) = rest.split_at(block_bytes);
        let payload = unpack(&file, offset, record.salt, block_bytes)?;
        let walked = Block::open(&file, offset, &payload)?.for_chunks(|group, bytes| {
            suffix.add(group, &Chunk::open(bytes)?.read(Slots::All, TimeRange::ALL)?);
            Ok(Walk::On)
        });
        walked.map_err(|e| Error::corrupt(&*file, offset, e.what()))?;
        suffix.seal_block(block_bytes.len() as u32);
        rest = after;
    }
    let suffix = suffix.finish();
    suffix.check(record).map_err(|what| Error::corrupt(file.as_str(), 0, what))?;
    Ok(suffix)
}
