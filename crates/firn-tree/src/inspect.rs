//! Describes a table for people: its blocks, their chunks, and the columns with their codecs.

use std::sync::Arc;

use firn_codec::{Chunk, ColumnsOutline, SeqRange};
use firn_model::{Error, ErrorKind, GroupId, Result, TimeRange};

use crate::block::{Block, Walk, unpack};
use crate::record::TableId;
use crate::store::Read;
use crate::suffix::BlockEntry;
use crate::table::Table;
use crate::version::Version;

/// A block of a table.
#[derive(Debug)]
pub struct BlockOutline {
    /// Its offset in the table.
    pub offset: u64,
    /// Its stored bytes.
    pub bytes: u64,
    /// Bytes of its chunks and their directory; more than `bytes` if it is packed. 0 if it is
    /// damaged.
    pub payload_bytes: u64,
    /// First group.
    pub group_min: GroupId,
    /// Last group.
    pub group_max: GroupId,
    /// Bounds of its timestamps.
    pub time_range: TimeRange,
    /// Its chunks, or the damage.
    pub chunks: Result<Vec<ChunkOutline>>,
}

/// A chunk of a block.
#[derive(Clone, Debug)]
pub struct ChunkOutline {
    /// Its group.
    pub group: GroupId,
    /// Its bytes in the payload.
    pub bytes: u64,
    /// The commits that its samples are from.
    pub seq: SeqRange,
    /// From its first to its last timestamp.
    pub time_range: TimeRange,
    /// Its columns.
    pub columns: ColumnsOutline,
}

impl Version {
    /// Calls `each` with every block of a table in order; with a group, only with the blocks and
    /// chunks of that group. Reads one block at a time, bypassing the cache.
    ///
    /// # Errors
    /// `NotFound` if there is no such table; `Unavailable` when its tier fails; those of `each`. A
    /// damaged block is no error: its outline contains the damage.
    pub fn inspect(
        &self,
        id: TableId,
        group: Option<GroupId>,
        each: &mut dyn FnMut(&BlockOutline) -> Result<()>,
    ) -> Result<()> {
        let missing = || {
            Error::not_found(format!(
                "there is no table {}: run the command without --table to list all tables",
                id.0
            ))
        };
        let table = self.all().find(|table| table.record.id == id).ok_or_else(missing)?;
        let suffix = self.store().suffix(table)?;
        let blocks = match group {
            Some(group) => suffix.blocks_of(group),
            None => 0..suffix.blocks.len(),
        };
        for entry in suffix.blocks.get(blocks).unwrap_or_default() {
            each(&self.outline_block(table, entry, group)?)?;
        }
        Ok(())
    }

    fn outline_block(
        &self,
        table: &Arc<Table>,
        entry: &BlockEntry,
        group: Option<GroupId>,
    ) -> Result<BlockOutline> {
        let read = Read { table, offset: entry.offset, bytes: entry.bytes.into() };
        let bytes = self.store().read(&[read]).pop();
        let bytes = bytes.unwrap_or_else(|| Err(Error::internal("a read returned nothing")));
        let opened = bytes.and_then(|bytes| {
            let payload = unpack(table.path(), entry.offset, table.record.salt, &bytes)?;
            let mut chunks = Vec::new();
            Block::open(table.path(), entry.offset, &payload)?.for_chunks(|of, bytes| {
                if group.is_none_or(|group| group == of) {
                    let chunk = Chunk::open(bytes)?;
                    chunks.push(ChunkOutline {
                        group: of,
                        bytes: bytes.len() as u64,
                        seq: chunk.seq(),
                        time_range: chunk.time_range(),
                        columns: chunk.outline()?,
                    });
                }
                Ok(Walk::On)
            })?;
            Ok((payload.len() as u64, chunks))
        });
        let (payload_bytes, chunks) = match opened {
            Ok((payload_bytes, chunks)) => (payload_bytes, Ok(chunks)),
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt { .. }) => (0, Err(table.note(e))),
            Err(e) => return Err(e),
        };
        Ok(BlockOutline {
            offset: entry.offset,
            bytes: entry.bytes.into(),
            payload_bytes,
            group_min: entry.group_first,
            group_max: entry.group_last,
            time_range: entry.time_range,
            chunks,
        })
    }
}
