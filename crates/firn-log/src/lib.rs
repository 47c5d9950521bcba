//! Log: here are entries, make them durable.
//!
//! **Owns** the log's parallel streams: their buffers, their segment files, group commit, and reading
//! all of it back after a restart.
//!
//! **Never** knows what a payload means, decides what may be purged, starts a thread, or retries a
//! failed write.
//!
//! **Way through.** [`Log::open`] finds what is on disk; [`Log::replay`] gives each stream's entries
//! back in order; [`Log::start`] opens a new segment in each stream. Then, from any number of
//! threads: [`Log::append`] copies entries into a stream's buffer and says their position,
//! [`Log::commit`] returns when positions are durable, [`Log::purge`] forgets what lies below a
//! floor. Shards map to streams, so the order of a shard is its position in one stream; nothing is
//! ordered between streams (DecLog's relaxed ordering and key-based partitioning, 4.2 and 4.3.1).
//!
//! **Invariants**
//! - What a commit acknowledged is replayed after every crash: in order, once, bit for bit.
//! - An append is replayed whole or not at all.
//! - A byte that is not what was written is reported or harmless, never an entry.
//! - A segment is written from front to back once. After a failed write or sync it is given up, and
//!   what was not acknowledged in it is not replayed once a later segment is there.
//! - Full disk shows in `append`, before anything is buffered: segments are made ahead.
//!
//! Gotchas: payloads may be encoded against earlier ones of the same segment only, so an append says
//! which segment it was encoded for, and [`Append::Rotated`] means "encode again". What depends on entries of before must
//! look whether the stream failed since ([`Tip::failures`]): others hear of a failure before they do. After a failed
//! commit ask [`Log::durable_before`] what is durable: positions go on rising over what failed.
//!
//! Reading order: `log`, `stream`, `commit`, `queue`, `block`, `entry`, `segment`, `recover`,
//! `recover/replay`, `read`.
//! The bytes are in `docs/formats/log.md`; when you change them, change it in the same commit.

#![forbid(unsafe_code)]

mod block;
mod commit;
mod entry;
mod log;
mod queue;
mod read;
mod recover;
mod segment;
mod stream;
mod sync;

#[cfg(test)]
mod commit_model;

pub use entry::{EntryKind, EntryRef};
pub use log::{Append, Log, LogOptions, LogSetup, LogStats, StreamId, SyncPolicy, Tip};
pub use recover::{PayloadRange, ReplayEntry, ReplayReport};
pub use segment::SegmentNo;
