//! Model: the vocabulary that every room of FirnDB shares.
//!
//! **Owns** labels and matchers, ids, time ranges, rows of the write path, column batches of the
//! read path, the seams [`Select`] (the selection of a query) and [`Change`] (the change feed from
//! the engine to a cache), the memory [`Budget`], the watched [`Mutex`] and [`RwLock`], the
//! boundary [`Error`], and [`Secret`]s.
//!
//! **Never** does I/O, reads a clock, starts a thread or uses another room.
//!
//! **Paths**: on the write path labels become [`SeriesRef`]s and samples a [`RowBatch`]; on the
//! read path a [`Selection`] returns [`ColumnBatch`]es.
//!
//! **Invariants**: a [`Labels`] is sorted by name, has no repeated name and no empty value; ids are
//! never reused; a [`TimeRange`] includes both ends and may be empty; values are bit patterns (NaN
//! payloads are preserved).
//!
//! Terms: `docs/glossary.md`.
//!
//! Reading order: `id`, `time`, `sample`, `label`, `matcher`, `pattern`, `compiled_regex`,
//! `pattern_syntax`, `go_pattern`, `go_classes`, `metric_type`, `row`, `histogram`, `batch`,
//! `select`, `query_stats`, `change`, `lock`, `lock_order`, `budget`, `secret`, `error`, `excerpt`,
//! `network_thread`, `protobuf`.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod batch;
mod budget;
mod change;
mod compiled_regex;
mod error;
mod excerpt;
mod go_classes;
mod go_pattern;
mod histogram;
mod id;
mod label;
mod lock;
mod lock_order;
mod matcher;
mod metric_type;
mod network_thread;
mod pattern;
mod pattern_syntax;
pub mod protobuf;
mod query_stats;
mod row;
mod sample;
mod secret;
mod select;
mod time;

pub use batch::{Column, ColumnBatch, ColumnType, ColumnValues, Presence};
pub use budget::{Budget, BudgetUsage, HEAP_BLOCK_BYTES, Pool, RaisedLimit, Reclaim, Reservation};
pub use change::{Change, ChangeKind, ChangeSink};
pub use compiled_regex::{CompiledRegex, RegexAllowance, RegexSearch, pattern_tree_bytes};
pub use error::{Error, ErrorKind, Result, SeriesLimit, system_text};
pub use excerpt::{excerpt, excerpt_within, is_control, one_line};
pub use go_pattern::rust_group_name;
pub use histogram::{Histogram, HistogramBucket, MixedEntry, PointValue, ResetHint};
pub use id::{CommitSeq, GroupId, LogPosition, SeriesRef, ShardBits, ShardId, Slot};
pub use label::{
    LabelBytesIter, LabelLimits, Labels, LabelsBuilder, LabelsIter, METRIC_NAME, decode_varint,
    encode_varint,
};
pub use lock::{Guard, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use lock_order::{HeldLock, LockClass, as_another_thread, assert_may_reclaim, reclaiming};
pub use matcher::{MatchOp, Matcher};
pub use metric_type::MetricType;
pub use network_thread::{as_network_thread, assert_not_network_thread};
pub use pattern::Pattern;
pub use pattern_syntax::{PATTERN_DEPTH_MAX, rust_pattern, rust_pattern_anywhere};
pub use query_stats::{Counter, QueryStats};
pub use row::{Cell, RowBatch, RowPiece, ShardRows};
pub use sample::{STALE_NAN, STALE_NAN_BITS, Sample, is_stale_nan};
pub use secret::{Secret, redacted};
pub use select::{
    CancelToken, Grouping, HelperPermit, Helpers, KeptMemory, QueryContext, Select, Selected,
    Selection,
};
pub use time::{TimeRange, Timestamp};
