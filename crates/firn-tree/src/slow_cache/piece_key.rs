//! The key of a piece in the slow cache.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_codec::frame::crc32_parts;

use crate::record::{TableId, TableRecord};

/// A piece of a table of the slow tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PieceKey {
    pub(super) table: TableId,
    /// The print of the table's record: another database's table of the same id has another one.
    pub(super) print: u32,
    /// The block's index, or [`PieceKey::SUFFIX`].
    pub(super) piece: u32,
}

impl PieceKey {
    const SUFFIX: u32 = u32::MAX;

    pub(crate) fn suffix(record: &TableRecord) -> PieceKey {
        PieceKey::block(record, PieceKey::SUFFIX)
    }

    pub(crate) fn block(record: &TableRecord, block_idx: u32) -> PieceKey {
        let print = crc32_parts(&[
            &record.bytes.to_le_bytes(),
            &record.suffix_bytes.to_le_bytes(),
            &record.salt.to_le_bytes(),
            &record.written_ms.to_le_bytes(),
            &record.seq.min.0.to_le_bytes(),
            &record.seq.max.0.to_le_bytes(),
        ]);
        PieceKey { table: record.id, print, piece: block_idx }
    }

    pub(super) fn crc(&self, bytes: &[u8]) -> u32 {
        let (table, print, piece) =
            (self.table.0.to_le_bytes(), self.print.to_le_bytes(), self.piece.to_le_bytes());
        crc32_parts(&[&table, &print, &piece, bytes])
    }
}
