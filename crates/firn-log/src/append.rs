//! The types of an append: its stream, its segment and its outcome.

use firn_model::{LogPosition, ShardId};

use crate::segment::SegmentNo;

/// One of the log's parallel streams. Dense from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u16);

impl StreamId {
    /// Whether the entries of `shard` belong to this stream in a log with these numbers of streams
    /// and shards. Asserted before an entry is written, checked after it is read.
    pub(crate) fn owns(self, (stream_count, shard_count): (usize, usize), shard: ShardId) -> bool {
        let shard = usize::from(shard.0);
        shard < shard_count && shard.checked_rem(stream_count) == Some(usize::from(self.0))
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_has_one_stream() {
        let streams_of =
            |shard| (0..4).filter(move |&id| StreamId(id).owns((3, 8), ShardId(shard)));
        assert!(streams_of(7).eq([1]));
        assert_eq!(streams_of(8).count() + streams_of(u16::MAX).count(), 0);
    }
}
