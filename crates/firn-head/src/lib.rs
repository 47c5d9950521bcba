//! Head: keeps the newest rows in little memory and answers queries from it.
//!
//! **Owns** recent data: per shard the encoder states, the arena of active rows and the static
//! segments; and the *hot* memory of flushed rows.
//!
//! **Never** knows labels, files or the log; never does I/O, starts a thread or reads a clock.
//!
//! **Write path**: [`ShardWriter::encode`] makes the log's payload. [`ShardWriter::stage`] copies
//! the same row bytes into the shard's arena. [`Head::publish`] makes them visible in the order of
//! the log. A full arena is sealed. A [`ConvertJob`] turns it into columns; another one packs
//! several segments into one. Columns are stored in blocks of a pool. A [`FlushJob`] hands all rows
//! to the tree. Their memory then stays hot until [`Head::recycle`].
//!
//! **Read path**: [`Head::snapshot`], then [`HeadSnapshot::read`] per group. Locks are held only
//! briefly.
//!
//! **Invariants**
//! - Unpublished rows are never visible. Rows become visible in the order of the log.
//! - A group's first row in a log segment and in an arena is whole, so both are self-contained:
//!   replay can start anywhere, and a hole in the log costs the rows of a group up to its next
//!   whole row.
//! - Replaying the payloads restores the visible rows.
//! - A snapshot, together with the tables of its version, sees the same rows for its whole life
//!   (invariant 3).
//! - Every part is older or younger as a whole than a delete that touches its shard. Conversions
//!   never merge parts across a delete, and a flush hides deleted values before it merges.
//! - Held memory is reserved (invariant 8). Each arena, segment and state table has a reservation
//!   that lives as long as its memory.
//! - Flushed memory is released only when no reader that began before the flush is left. Younger
//!   readers miss it and read tables ([`HeadReader::complete_since`]). Memory that cools for old
//!   readers is bounded; beyond the bound those readers fail.
//! - No object, lock or allocation per sample or per series. A lone series takes 28 bytes of state,
//!   4 bytes of chain, and its data.
//!
//! **When you change** the payload: `docs/formats/rows.md`, `VERSION` in `payload`, a new fixture.
//!
//! Reading order: `options`, `lock`, `head`, `shard`, `encoder`, `states`, `payload`, `decoder`,
//! `arena`, `words`, `growing`, `part`, `pool`, `segment`, `epoch`, `complete`, `snapshot`,
//! `convert`, `flush`, `replay`.
//!
//! Terms: `docs/glossary.md`.

#![forbid(unsafe_code)]

mod arena;
mod complete;
mod convert;
mod decoder;
mod encoder;
mod epoch;
mod flush;
mod growing;
mod head;
mod lock;
mod options;
mod part;
mod payload;
mod pool;
mod replay;
mod segment;
mod shard;
mod snapshot;
mod states;
mod sync;
mod words;

#[cfg(test)]
mod epoch_model;

pub use convert::{ConvertEdit, ConvertJob};
pub use decoder::{LogDecoder, decode_standalone};
pub use encoder::encode_standalone;
pub use flush::{FlushJob, SealMarks};
pub use head::{Head, HeadStats, ShardWriter, bound_bytes, bound_bytes_of, parts_of};
pub use options::{ConvertOptions, HeadOptions};
pub use replay::{ReplayedRows, is_fresh, payload_groups, payload_range};
pub use snapshot::{HeadReader, HeadSnapshot};
