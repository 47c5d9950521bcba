//! The types of an append: its stream, its segment and its outcome.

use firn_model::LogPosition;

use crate::segment::SegmentNo;

/// One of the log's parallel streams. Dense from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u16);

/// The current segment of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tip {
    /// Payloads must be encoded for this segment.
    pub segment: SegmentNo,
    /// Number of failures of the stream so far. A crash may lose entries that were appended before
    /// a failure although it keeps later ones.
    pub failures: u64,
}

/// The outcome of [`crate::Log::append`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Append {
    /// Buffered; this is the end of the last entry, for [`crate::Log::commit`].
    At(LogPosition),
    /// Refused: the stream continues in another segment. Call [`crate::Log::tip`] and encode again.
    Rotated,
}
