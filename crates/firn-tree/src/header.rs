//! The header of a table.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use firn_codec::frame::{FileFormat, HEADER_BYTES, crc32};

/// The kind and versions in a table's header.
pub(crate) const FORMAT: FileFormat = FileFormat { kind: *b"TABL", version: 1, oldest: 1 };

/// The frame's header, the salt and a checksum of both.
pub(crate) const TABLE_HEADER_BYTES: usize = HEADER_BYTES + 8;

/// The first bytes of a table.
pub(crate) fn header(salt: u32) -> Vec<u8> {
    let mut out = FORMAT.header().to_vec();
    out.extend_from_slice(&salt.to_le_bytes());
    out.extend_from_slice(&crc32(&out).to_le_bytes());
    out
}
