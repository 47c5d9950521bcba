//! Chunks: one group, one time span, columns that are decoded independently.
//!
//! ```text
//! chunk     = head lone-body | head body
//! head      = version and flags:u8 varint(group) varint(seq.min) varint(seq.max - seq.min)
//!             zigzag(first timestamp) varint(last - first timestamp)
//! lone-body = varint(entries) [times] values        (slot 0 only, every entry present; no times if
//!             they are regular)
//! body      = postings(slots) varint(bases) varint(subsets) base* subset* shapes directory values*
//! ```
//! A *base* is a time column. A *subset* is a selection of a base's entries, so that members with
//! missing samples share the base's timestamps. A member's *shape* is its base or subset. The
//! directory contains each member's byte count; 0 means the bytes of the previous member. The bytes
//! are specified in docs/formats/chunk.md.
//!
//! Source: Heracles, section 3.1 (shared time column, aligned value columns). The column codecs are
//! FirnDB's own.
//!
//! ```
//! use std::sync::Arc;
//!
//! use firn_codec::{Chunk, Effort, GroupColumns, SeqRange, Slots, encode_chunk};
//! use firn_model::{ColumnBatch, CommitSeq, GroupId, Slot, TimeRange};
//!
//! let times = Arc::from([1_000, 2_000, 3_000]);
//! let batch = ColumnBatch::of_one(Slot(0), times, vec![1.5, 1.6, 1.7]);
//! let columns = GroupColumns { batch, seq: SeqRange::at(CommitSeq(9)) };
//! let mut bytes = Vec::new();
//! encode_chunk(GroupId(7), &columns, Effort::Small, &mut bytes);
//!
//! let chunk = Chunk::open(&bytes).unwrap();
//! assert_eq!(chunk.time_range(), TimeRange::new(1_000, 3_000));
//! let part = chunk.read(Slots::All, TimeRange::new(2_000, 9_000)).unwrap();
//! assert_eq!(part.value_count(), 2);
//! ```

mod directory;
mod encode;
mod head;
mod lone;
mod members;
mod outline;
mod reader;
mod shape;
mod walk;

pub use encode::{encode_chunk, encode_lone_run, encode_run};
pub use outline::{ColumnOutline, ColumnsOutline};
pub use reader::Chunk;
