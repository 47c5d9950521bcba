//! Reads every byte against its checksum, and rewrites a damaged table without the lost blocks.
//!
//! A block's checksum covers its table and its offset, so blocks are found even where both the
//! directory and a block's length are damaged: only the damaged blocks are lost. Damaged blocks of
//! the slow tier are restored from the slow cache if it has them.

use std::ops::Range;
use std::sync::Arc;

use firn_codec::{Chunk, Slots};
use firn_model::{CancelToken, Error, ErrorKind, GroupId, Result, TimeRange, Timestamp};

use crate::block::{BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, Block, Walk, unpack};
use crate::header::{FORMAT, TABLE_HEADER_BYTES, header};
use crate::output::{Outputs, Target};
use crate::record::{TableId, TableRecord};
use crate::store::{Read, Store, walk_blocks};
use crate::suffix::{Suffix, block_range};
use crate::table::Table;
use crate::version::Version;

/// A damaged part of a table.
#[derive(Debug)]
pub struct Damage {
    /// The table.
    pub table: TableId,
    /// File, offset and cause.
    pub error: Error,
    /// The samples that are lost because of it; `None` if the rest of the table, or the slow cache,
    /// replaces it.
    pub lost: Option<LostSamples>,
}

/// Bounds of lost samples: other samples inside them may be intact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostSamples {
    /// First group.
    pub group_min: GroupId,
    /// Last group.
    pub group_max: GroupId,
    /// Timestamps.
    pub range: TimeRange,
    /// Chunks.
    pub chunk_count: u64,
}

/// The range of an intact block; its bytes if only the slow cache has it intact.
type SoundBlock = (Range<usize>, Option<Arc<[u8]>>);

/// The state of a table on disk.
struct Survey {
    bytes: Arc<[u8]>,
    blocks: Vec<SoundBlock>,
    damage: Vec<Damage>,
}

impl Version {
    /// Reads and decodes every byte of every table, and returns each damaged part. `each` is called
    /// with every table after it was read.
    ///
    /// # Errors
    /// `Unavailable` when a tier fails: the damage is then unknown; `Canceled`.
    pub fn check(
        &self,
        cancel: &CancelToken,
        each: &mut dyn FnMut(&TableRecord),
    ) -> Result<Vec<Damage>> {
        let mut damage = Vec::new();
        for table in self.all() {
            cancel.check()?;
            damage.extend(survey(self.store(), table)?.damage);
            each(&table.record);
        }
        Ok(damage)
    }
}

/// Pushes every intact chunk of a table to `outputs`. Those of one group do not overlap: a table
/// has merged samples.
pub(crate) fn write_sound(
    store: &Store,
    table: &Arc<Table>,
    outputs: &mut Outputs<'_>,
    target: &dyn Fn(Timestamp) -> Target,
) -> Result<()> {
    let survey = survey(store, table)?;
    let mut last = None;
    for (place, kept) in survey.blocks {
        let offset = place.start as u64;
        let bytes = match &kept {
            Some(kept) => kept,
            None => survey.bytes.get(place).unwrap_or_default(),
        };
        let payload = unpack(table.path(), offset, table.record.salt, bytes)?;
        Block::open(table.path(), offset, &payload)?.for_chunks(|group, bytes| {
            if last.replace(group).is_some_and(|last| last > group) {
                return Err(Error::corrupt(table.path(), offset, "groups of a table fall"));
            }
            let columns = Chunk::open(bytes)?.read(Slots::All, TimeRange::ALL)?;
            outputs.push(group, &columns, target)?;
            Ok(Walk::On)
        })?;
    }
    Ok(())
}

fn survey(store: &Store, table: &Arc<Table>) -> Result<Survey> {
    let record = &table.record;
    let mut damage = Vec::new();
    let mut note = |error: Error, lost: Option<LostSamples>| {
        damage.push(Damage { table: record.id, error: table.note(error), lost });
    };
    let (bytes, shortened) = read_all(store, table)?;
    let file = table.path();
    let is_cut = shortened.is_some();
    if let Some(error) = shortened {
        note(error, bytes.is_empty().then(|| all_of(record, record.chunk_count)));
    } else if bytes.get(..TABLE_HEADER_BYTES) != Some(header(record.salt).as_slice()) {
        let what = FORMAT.check(file, &bytes).err();
        note(what.unwrap_or_else(|| Error::corrupt(file, 0, "header is damaged")), None);
    }
    if !is_cut {
        let len = store.len(table)?;
        if len > record.bytes {
            let what = format!("the table has {len} bytes, the manifest expects {}", record.bytes);
            note(Error::corrupt(file, record.bytes, what), None);
        }
    }
    let suffix_at = usize::try_from(record.suffix_offset()).unwrap_or(usize::MAX);
    let suffix = Suffix::decode(record, bytes.get(suffix_at..).unwrap_or_default());
    let suffix = suffix.map(Arc::new).or_else(|e| {
        if !is_cut {
            note(e, None);
        }
        let kept = store.kept_suffix(table);
        kept.map_or_else(
            || {
                let blocks = bytes.get(TABLE_HEADER_BYTES..suffix_at).unwrap_or_default();
                walk_blocks(record, blocks).map(Arc::new)
            },
            Ok,
        )
    });
    let mut blocks = Vec::new();
    match suffix {
        Ok(suffix) => {
            for (idx, entry) in suffix.blocks.iter().enumerate() {
                let place = block_range(entry);
                let is_sound = |bytes: &[u8]| is_sound(record, file, entry.offset, bytes);
                match is_sound(bytes.get(place.clone()).unwrap_or_default()) {
                    Ok(_) => blocks.push((place, None)),
                    Err(e) => {
                        let kept = store.kept_block(table, idx as u32);
                        let kept = kept.filter(|kept| is_sound(kept).is_ok());
                        let lost = kept.is_none().then(|| LostSamples {
                            group_min: entry.group_first,
                            group_max: entry.group_last,
                            range: entry.time_range,
                            chunk_count: entry.chunk_count.into(),
                        });
                        note(Error::corrupt(file, entry.offset, e.what()), lost);
                        blocks.extend(kept.map(|kept| (place, Some(kept))));
                    }
                }
            }
        }
        Err(_) if bytes.is_empty() => {}
        Err(e) => {
            let mut chunk_count = 0;
            let found;
            (found, chunk_count) = salvage(record, file, &bytes, suffix_at, chunk_count);
            blocks.extend(found.into_iter().map(|place| (place, None)));
            note(e, Some(all_of(record, record.chunk_count.saturating_sub(chunk_count))));
        }
    }
    Ok(Survey { bytes, blocks, damage })
}

/// All bytes that are there, and an error if some are missing.
fn read_all(store: &Store, table: &Arc<Table>) -> Result<(Arc<[u8]>, Option<Error>)> {
    let whole = Read { table, offset: 0, bytes: table.record.bytes };
    let read = |read| store.read(&[read]).pop().unwrap_or_else(|| Ok(Arc::from([])));
    match read(whole) {
        Ok(bytes) => Ok((bytes, None)),
        Err(e) if matches!(e.kind(), ErrorKind::Corrupt { .. }) => {
            let there = store.len(table)?.min(table.record.bytes);
            let bytes =
                if there == 0 { Arc::from([]) } else { read(Read { bytes: there, ..whole })? };
            Ok((bytes, Some(e)))
        }
        // A shorter file fails in another way.
        Err(e) if store.len(table).is_ok_and(|len| len < table.record.bytes) => {
            let there = store.len(table)?;
            let bytes =
                if there == 0 { Arc::from([]) } else { read(Read { bytes: there, ..whole })? };
            Ok((bytes, Some(Error::corrupt(table.path(), there, e.what()))))
        }
        Err(e) => Err(e),
    }
}

/// The number of chunks of an intact block.
fn is_sound(record: &TableRecord, file: &str, offset: u64, bytes: &[u8]) -> Result<u64> {
    let payload = unpack(file, offset, record.salt, bytes)?;
    let mut chunk_count = 0;
    Block::open(file, offset, &payload)?.for_chunks(|group, bytes| {
        let chunk = Chunk::open(bytes)?;
        let columns = chunk.read(Slots::All, TimeRange::ALL)?;
        record.check_chunk(group, columns.time_range())?;
        if chunk.group() != group {
            return Err(Error::corrupt(
                "",
                0,
                "chunk of another group than in its block's directory",
            ));
        }
        chunk_count += 1;
        Ok(Walk::On)
    })?;
    Ok(chunk_count)
}

/// Finds intact blocks between header and suffix without a directory: from each block to the next,
/// and where that fails, at the first later offset with a valid block.
fn salvage(
    record: &TableRecord,
    file: &str,
    bytes: &[u8],
    end: usize,
    mut chunk_count: u64,
) -> (Vec<Range<usize>>, u64) {
    let end = end.min(bytes.len());
    let (mut blocks, mut at) = (Vec::new(), TABLE_HEADER_BYTES);
    while at + BLOCK_HEADER_BYTES < end {
        let len = Block::bytes_of(&bytes[at..end]).and_then(|len| usize::try_from(len).ok());
        let place = len
            .filter(|len| (BLOCK_HEADER_BYTES + 1..=BLOCK_BYTES_MAX.min(end - at)).contains(len))
            .map(|len| at..at + len);
        let sound = |place: Range<usize>| {
            let here = bytes.get(place.clone()).unwrap_or_default();
            (is_sound(record, file, place.start as u64, here), place)
        };
        match place.map(sound) {
            Some((Ok(count), place)) => {
                chunk_count += count;
                at = place.end;
                blocks.push(place);
            }
            _ => at += 1,
        }
    }
    (blocks, chunk_count)
}

fn all_of(record: &TableRecord, chunk_count: u64) -> LostSamples {
    LostSamples {
        group_min: record.group_min,
        group_max: record.group_max,
        range: record.time_range,
        chunk_count,
    }
}
