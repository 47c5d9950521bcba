//! What can be set.

use firn_model::ShardBits;

/// Sizes of the head. Plain data, checked by whoever reads the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadOptions {
    /// How many shards there are: fixed when a database is created.
    pub shard_bits: ShardBits,
    /// An arena of this many bytes is converted, once it has [`HeadOptions::rows_per_group_min`]
    /// rows a group on average, or at four times this size. Per shard, so all active rows together
    /// hold about `shard_count` times this.
    pub arena_bytes_max: usize,
    /// Fewer rows than these make poor columns: a chunk's header is some 20 bytes, and each arena
    /// starts with whole rows.
    pub rows_per_group_min: u32,
    /// An arena with this many rows a group on average is converted whatever its size: a reader
    /// walks all of them.
    pub rows_per_group_max: u32,
    /// This many unflushed static segments of a shard, of about one size, are merged and packed
    /// harder: fewer are more work, more are more memory.
    pub segment_fan_in: usize,
    /// Flushed memory over this is given back at once, oldest time first; below it is kept for
    /// queries until [`crate::Head::recycle`] wants it.
    pub hot_bytes_max: u64,
}

impl HeadOptions {
    /// The defaults for `shard_bits`.
    pub fn new(shard_bits: ShardBits) -> HeadOptions {
        HeadOptions {
            shard_bits,
            // 64 shards: 32 MiB of active rows, at most 128 MiB where series are written rarely.
            arena_bytes_max: 512 << 10,
            // Measured, 500,000 lone series: 8 rows cost 130 ns a sample more for converting and
            // merging and 0.8 B more in the log; 16 rows cost 20 B a series more.
            rows_per_group_min: 16,
            rows_per_group_max: 32,
            segment_fan_in: 4,
            hot_bytes_max: u64::MAX,
        }
    }
}
