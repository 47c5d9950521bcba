//! Codec: encodes rows and columns in few bytes, and decodes them bit for bit.
//!
//! **Owns** the row encoding (the log's payload and the head's active rows), chunks (one group, one
//! time span) and their column codecs, merging and transposing of columns, tombstones, posting
//! lists, and the checksummed frame of every file.
//!
//! **Never** does I/O, allocates per sample, or uses a file, a table or a label. Pure functions
//! over bytes.
//!
//! **Paths**: the write path encodes rows with [`encode_row`]; the head transposes them with
//! [`RowsToColumns`]; flushes and merges write chunks with [`encode_chunk`]; queries read them with
//! [`Chunk::read`] and unite sources with [`merge_columns`].
//!
//! **Invariants**: every `f64` is preserved bit for bit, and every `i64` timestamp (invariant 7);
//! timestamps of a time column strictly rise (invariant 4); decoding arbitrary bytes returns a
//! value or an error of kind `Corrupt`, never panics, and its memory is bounded by the input and by
//! [`SLOTS_MAX`], [`ENTRIES_MAX`] and [`VALUES_MAX`].
//!
//! Terms: `docs/glossary.md`.
//!
//! Reading order: `limits`, `varint`, `bits`, `decimal`, `columns`, `transpose`, `merge`,
//! `tombstone`, `member_lists`, `postings`, `row`, `effort`, `integers`, `value_column`,
//! `time_column`, `chunk`, `slices`, `frame`. The bytes are specified in docs/formats/row.md,
//! docs/formats/chunk.md and docs/formats/tombstone.md.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod bits;
pub mod frame;
pub mod postings;
pub mod varint;

mod chunk;
mod columns;
mod decimal;
mod effort;
mod integers;
mod limits;
mod member_lists;
mod merge;
mod row;
mod slices;
mod time_column;
mod tombstone;
mod transpose;
mod value_column;

pub use chunk::{Chunk, ColumnOutline, ColumnsOutline, encode_chunk, encode_lone_run, encode_run};
pub use columns::{GroupColumns, MemberColumn, SeqRange, SlotWalk, Slots};
pub use effort::Effort;
pub use limits::{ENTRIES_MAX, SLOTS_MAX, VALUES_MAX};
pub use member_lists::MemberLists;
pub use merge::{merge_bytes, merge_columns, merge_into_one};
pub use row::{
    RowState, decode_row, decode_row_members, decode_row_slots, encode_row, row_bytes_max,
    row_is_restart, row_keeps_members,
};
pub use slices::{RowSizes, Slice, SliceBy, cut_slices};
pub use tombstone::{
    HiddenMembers, HiddenSamples, HiddenSlots, Tombstone, TombstoneWalk, Tombstones,
};
pub use transpose::RowsToColumns;
