//! Head: here are rows that the log has, keep them in little memory and answer from it.
//!
//! **Owns** recent data: per shard the encoder's states, the arena of active rows, static segments,
//! and the *hot* memory of what was flushed.
//!
//! **Never** knows labels, files or the log; never does I/O, starts a thread or reads a clock.
//!
//! **The way of a row**: [`ShardWriter::encode`] makes the log's payload, [`ShardWriter::stage`] puts
//! the same row bytes into the shard's arena, [`Head::publish`] makes them visible in the order of
//! the log. A full arena is sealed; a [`ConvertJob`] makes columns of it, another one packs several
//! segments into one; their memory are blocks of a pool. A [`FlushJob`] hands all of it to the tree; then it is hot until
//! [`Head::recycle`].
//!
//! **The way of a query**: [`Head::snapshot`], then [`HeadSnapshot::read`] per group; no lock but for moments.
//!
//! **Invariants**
//! - Unpublished rows are never visible; rows become visible in the order of the log.
//! - A group's first row in a log segment and in an arena is whole: both explain themselves, replay
//!   starts anywhere, and a hole in the log costs a group's rows up to its next whole one.
//! - Replaying the payloads gives the visible rows again.
//! - A snapshot, with the tables of its time, sees the same rows for as long as it lives (invariant 3 of the design).
//! - A part is older or younger than a delete that touches its shard as a whole: conversions unite no
//!   parts over a delete, a flush hides between them first.
//! - What is held is reserved (invariant 8): each arena, segment and state table carries its own
//!   reservation, which lives as long as the memory does.
//! - Flushed memory goes only when no reader is left that began before the flush; younger ones find it gone and read
//!   tables ([`HeadReader::complete_since`]). What cools for old readers is bounded; beyond that they fail.
//! - No object, lock or allocation per sample or per series: a lone series is 28 bytes of state and 4
//!   bytes of chain, and its bytes.
//!
//! **When you change** the payload: docs/formats/rows.md, `VERSION` in `payload`, a new fixture.
//!
//! Reading order: `options`, `head`, `shard`, `encoder`, `states`, `payload`, `arena`, `words`, `growing`,
//! `part`, `pool`, `segment`, `epoch`, `complete`, `snapshot`, `convert`, `flush`, `replay`.

#![forbid(unsafe_code)]

mod arena;
mod complete;
mod convert;
mod encoder;
mod epoch;
mod flush;
mod growing;
mod head;
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
pub use encoder::encode_standalone;
pub use flush::{FlushJob, SealMarks};
pub use head::{Head, HeadStats, ShardWriter, bound_bytes, bound_bytes_of};
pub use options::{ConvertOptions, HeadOptions};
pub use replay::{ReplayedRows, payload_groups};
pub use snapshot::{HeadReader, HeadSnapshot};
