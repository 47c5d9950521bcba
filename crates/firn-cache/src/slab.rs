//! The slab: points with everything that is needed to read them, written in one write.
//!
//! ```text
//! slab     = preamble header zeros data
//! preamble = "FIRN" "SLAB" version zero crc  generation:u64 slot:u32 field:u64 heard:u64 flags:u32
//!            header bytes:u32 data bytes:u32 crc32(header):u32 crc32(all before):u32
//! header   = keys bit arrays heads markers
//! data     = points, cut into blocks of 4 KiB; a marker per block has the time and offset of its
//!            first point
//! ```
//! Byte by byte: docs/formats/cache.md. Source: TSCache 3.4. Four things differ:
//! - Distinct bit arrays are stored once, and points have their index (1 byte instead of 16).
//! - Heads (bytes that points share, such as the label sets of a vector) are stored once as well.
//! - Points are sorted by set of keys, then by time, so a reader of one key does not read the
//!   points of 127 others at the same times.
//! - Each part has a checksum that the part before it contains: the preamble that of the header,
//!   the header those of the blocks. So a part of an older slab in the same slot is never taken for
//!   one of this slab.

mod encode;
mod format;
mod open;
#[cfg(test)]
mod tests;

pub(crate) use encode::{Identity, encode, put_extent};
pub(crate) use format::{
    BLOCK_BYTES, Extent, Header, PREAMBLE_BYTES, Preamble, SlabKey, take_extent,
};
pub(crate) use open::{OpenPoint, OpenSlab, SLAB_POINT_BYTES};
