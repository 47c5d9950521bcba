//! Codec: here are rows and columns, make few bytes of them; here are bytes, give them back bit for
//! bit.
//!
//! **Owns** the row encoding (the log's payload and the head's active rows), chunks (one group, one
//! time span) and their column codecs, merging and transposing of columns, tombstones, posting lists,
//! and the checksummed frame of every file.
//!
//! **Never** does I/O, never allocates per sample, never knows a file, a table or a label. Pure
//! functions over bytes.
//!
//! **Invariants**: every `f64` survives bit for bit and every `i64` timestamp (invariant 7);
//! timestamps of a time column strictly rise (invariant 4); decoding any bytes whatever ends in a
//! value or an `Error` of kind `Corrupt`, never in a panic, and with memory bounded by the input and
//! by [`SLOTS_MAX`] and [`ENTRIES_MAX`].
//!
//! Reading order: `varint`, `bits`, `decimal`, `row`, `columns`, `transpose`, `merge`,
//! `tombstone`, `integers`, `value_column`, `time_column`, `chunk`, `postings`, `frame`. Byte by byte:
//! docs/formats/row.md, docs/formats/chunk.md and docs/formats/tombstone.md.

#![forbid(unsafe_code)]

pub mod bits;
pub mod frame;
pub mod postings;
pub mod varint;

mod chunk;
mod columns;
mod decimal;
mod integers;
mod merge;
mod row;
mod time_column;
mod tombstone;
mod transpose;
mod value_column;

pub use chunk::{
    Chunk, ColumnOutline, ColumnsOutline, ENTRIES_MAX, Effort, VALUES_MAX, encode_chunk, encode_run,
};
pub use columns::{GroupColumns, MemberColumn, SeqRange, SlotWalk, Slots};
pub use merge::{merge_columns, merge_into_one};
pub use row::{RowState, SLOTS_MAX, decode_row, decode_row_slots, encode_row, row_bytes_max};
pub use tombstone::{
    HiddenMembers, HiddenSamples, HiddenSlots, Tombstone, TombstoneWalk, Tombstones,
};
pub use transpose::RowsToColumns;
