//! Log: makes entries durable and replays them after a restart.
//!
//! **Owns** the log's parallel streams: their buffers, their segment files, group commit and
//! replay.
//!
//! **Never** interprets a payload, decides which segments may be purged, starts a thread, or
//! retries a failed write.
//!
//! **Path through.** [`Log::open`] lists the segments on disk. [`Log::replay`] yields the entries
//! of one stream in order. [`Log::start`] opens a new segment in each stream. From then on any
//! thread may call [`Log::append`], which copies entries into a stream's buffer and returns their
//! position; [`Log::commit`], which returns when positions are durable; and [`Log::purge`], which
//! drops the segments below a floor. [`Log::follow`] reads committed entries by position while the
//! log is written; [`Log::hold`] keeps the segments that such a reader still needs.
//!
//! Each shard maps to one stream, so the order of a shard is the order of positions in that stream.
//! Streams are not ordered against each other. Source: DecLog (PVLDB), section 4.2 (relaxed
//! ordering) and section 4.3.1 (key-based partitioning).
//!
//! **Invariants**
//! - A committed entry is replayed after every crash that its [`SyncPolicy`] covers: in order,
//!   once, bit for bit.
//! - An append is replayed whole or not at all.
//! - A byte that differs from the written one is reported or harmless, never an entry.
//! - A segment is written once, from front to back. After a failed write or sync it is abandoned,
//!   and its unacknowledged entries are not replayed once a later segment exists.
//! - A full disk fails `append` before anything is buffered, because segments are made ahead.
//!
//! **Gotchas**
//! - A payload may be encoded against earlier payloads of the same segment only. Every append
//!   therefore names the segment that it was encoded for, and [`Append::Rotated`] means "encode
//!   again".
//! - A caller that depends on earlier entries must compare [`Tip::failures`]: other threads may
//!   learn of a failure first.
//! - After a failed commit, [`Log::durable_before`] returns the durable position. Positions keep
//!   rising past the failed range.
//!
//! Reading order: `append`, `options`, `log`, `stream`, `commit`, `queue`, `block`, `entry`,
//! `segment`, `recover`, `recover/files`, `recover/replay`, `read`, `follow`.
//!
//! **When you change** the bytes: change `docs/formats/log.md` in the same commit.
//!
//! Terms: `docs/glossary.md`.

#![forbid(unsafe_code)]

mod append;
mod block;
mod commit;
mod entry;
mod follow;
mod log;
mod options;
mod queue;
mod read;
mod recover;
mod segment;
mod stream;
mod sync;

#[cfg(test)]
mod commit_model;

pub use append::{Append, StreamId, Tip};
pub use entry::{EntryKind, EntryRef};
pub use follow::{FollowReport, FollowedEntry, Follower};
pub use log::{Log, LogStats};
pub use options::{LogOptions, LogSetup, SyncPolicy};
pub use recover::{PayloadRange, ReplayEntry, ReplayReport};
pub use segment::SegmentNo;
