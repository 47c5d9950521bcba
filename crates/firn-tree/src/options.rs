//! The options of the tree: plain data, checked once.

use firn_model::{Error, Result, Timestamp};

use crate::partition::PartitionLen;

// A request takes 30 ms, transferring 64 KiB less than 1 ms. docs/decisions/0013 has measurements.
const SLOW_BLOCKS: usize = 4;
const OLDEST_DOUBLINGS: i8 = 3;

/// How the tree cuts, merges and keeps.
#[derive(Clone, Debug)]
pub struct TreeOptions {
    /// Length of partitions of level 0 and 1: 7.5 minutes times a power of two, at most 128 h.
    pub fast_partition_ms: i64,
    /// Length of new partitions of level 2; not below `fast_partition_ms`.
    pub slow_partition_ms: i64,
    /// Length of level-2 partitions that are older than this length: partitions of
    /// `slow_partition_ms` are merged into them where that makes fewer objects, and imports are cut
    /// into them. Not below `slow_partition_ms`. Where series have few samples in one, they later
    /// become eight times as long.
    pub old_partition_ms: i64,
    /// Bytes of tables that level 0 and 1 may have. Near it new partitions become shorter, so that
    /// data is uploaded sooner; far from it longer. `None` keeps the configured lengths.
    pub fast_bytes_max: Option<u64>,
    /// Bytes of tables that level 2 may have; beyond it the oldest partitions are dropped. `None`
    /// sets no limit.
    pub slow_bytes_max: Option<u64>,
    /// Partitions that may wait in level 0; with one more, the oldest is merged into level 1.
    pub level0_partitions_max: usize,
    /// Tables that may wait in one partition of level 0: each is one more directory lookup per
    /// query.
    pub level0_tables_max: usize,
    /// Patches that a part of a level-2 partition may have; with one more, they are merged with it.
    pub patches_max: usize,
    /// How far the newest data must be past the end of a level-2 partition before it is uploaded,
    /// so that slightly late data is still merged on the fast tier.
    pub upload_delay_ms: i64,
    /// Age beyond which data is uploaded even if its partition is still being written: bounds the
    /// data that the loss of the machine loses.
    pub upload_age_ms_max: i64,
    /// Age beyond which data is dropped, whole partitions at a time. `None` keeps all.
    pub retention_ms: Option<i64>,
    /// A table is closed at the first group that begins beyond this size. An upload holds one table
    /// in memory.
    pub table_bytes_max: u64,
    /// Payload at which a block of the fast tier is closed. It fits one member's column of a large
    /// group, or some hundred lone series. On the slow tier it is four times as much
    /// ([`TreeOptions::slow_block_bytes`]).
    pub block_bytes: usize,
    /// A merge decodes a group as one up to this size, otherwise in slices.
    pub slice_bytes: usize,
    /// Bytes of slow-tier blocks and of table directories that are kept in memory, if the memory
    /// budget allows.
    pub cache_bytes_max: u64,
    /// Bytes of slow-tier data that are cached on the fast tier, across restarts. 0 turns the cache
    /// off. Without effect where the slow tier is a folder.
    pub slow_cache_bytes_max: u64,
    /// How long an object that no version names stays on the slow tier, for readers on
    /// other machines that have an older manifest.
    pub bucket_grace_ms: i64,
    /// A deliberate bug that simulation must catch.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub mutant: Option<crate::mutant::Mutant>,
}

impl Default for TreeOptions {
    fn default() -> TreeOptions {
        const MINUTE_MS: i64 = 60_000;
        TreeOptions {
            fast_partition_ms: 30 * MINUTE_MS,
            slow_partition_ms: 120 * MINUTE_MS,
            old_partition_ms: 16 * 60 * MINUTE_MS,
            fast_bytes_max: None,
            slow_bytes_max: None,
            level0_partitions_max: 2,
            level0_tables_max: 8,
            patches_max: 3,
            upload_delay_ms: 30 * MINUTE_MS,
            upload_age_ms_max: 240 * MINUTE_MS,
            retention_ms: None,
            table_bytes_max: 32 << 20,
            block_bytes: 16 << 10,
            slice_bytes: 512 << 10,
            cache_bytes_max: 256 << 20,
            slow_cache_bytes_max: 1 << 30,
            bucket_grace_ms: 60 * MINUTE_MS,
            #[cfg(feature = "test-util")]
            mutant: None,
        }
    }
}

impl TreeOptions {
    /// Checks the options against each other.
    ///
    /// # Errors
    /// `Invalid`, naming the option and its permitted values.
    pub fn check(&self) -> Result<()> {
        let fast = partition_len("fast_partition_ms", self.fast_partition_ms)?;
        let slow = partition_len("slow_partition_ms", self.slow_partition_ms)?;
        if slow < fast {
            return Err(Error::invalid(format!(
                "slow_partition_ms {} is below fast_partition_ms {}: level 2 merges partitions of \
                 level 1",
                self.slow_partition_ms, self.fast_partition_ms
            )));
        }
        let old = partition_len("old_partition_ms", self.old_partition_ms)?;
        if old < slow {
            return Err(Error::invalid(format!(
                "old_partition_ms {} is below slow_partition_ms {}: partitions grow with age",
                self.old_partition_ms, self.slow_partition_ms
            )));
        }
        let non_negative = [
            ("upload_delay_ms", self.upload_delay_ms),
            ("upload_age_ms_max", self.upload_age_ms_max),
            ("retention_ms", self.retention_ms.unwrap_or(0)),
            ("bucket_grace_ms", self.bucket_grace_ms),
        ];
        for (name, value) in non_negative {
            if value < 0 {
                return Err(Error::invalid(format!("{name} {value} is negative")));
            }
        }
        if !(256..=1 << 24).contains(&self.block_bytes) {
            return Err(Error::invalid(format!(
                "block_bytes {} is not between 256 B and 16 MiB",
                self.block_bytes
            )));
        }
        if !(self.block_bytes as u64..=1 << 30).contains(&self.table_bytes_max) {
            return Err(Error::invalid(format!(
                "table_bytes_max {} is not between block_bytes and 1 GiB",
                self.table_bytes_max
            )));
        }
        if self.level0_partitions_max == 0 || self.level0_tables_max == 0 || self.patches_max == 0 {
            return Err(Error::invalid(
                "level0_partitions_max, level0_tables_max and patches_max must be at least 1",
            ));
        }
        Ok(())
    }

    /// Payload at which a block of the slow tier is closed and packed.
    pub fn slow_block_bytes(&self) -> usize {
        SLOW_BLOCKS * self.block_bytes
    }

    pub(crate) fn fast_len(&self) -> PartitionLen {
        PartitionLen::at_most(self.fast_partition_ms)
    }

    pub(crate) fn slow_len(&self) -> PartitionLen {
        PartitionLen::at_most(self.slow_partition_ms)
    }

    pub(crate) fn old_len(&self) -> PartitionLen {
        PartitionLen::at_most(self.old_partition_ms)
    }

    /// Length of much older partitions of series with few samples: eight times that of old ones,
    /// but at most an eighth of the retention, because whole partitions are dropped.
    pub(crate) fn oldest_len(&self) -> PartitionLen {
        let len = self.old_len().shifted(OLDEST_DOUBLINGS);
        len.min(self.retention_ms.map_or(len, |ms| PartitionLen::at_most(ms / 8)))
    }

    /// Partitions of level 2 that end before this are old at `now`.
    pub(crate) fn old_before(&self, now: Timestamp) -> Timestamp {
        now.saturating_sub(self.old_len().as_ms())
    }
}

fn partition_len(name: &str, ms: i64) -> Result<PartitionLen> {
    PartitionLen::from_ms(ms).ok_or_else(|| {
        Error::invalid(format!(
            "{name} {ms} is not 7.5 minutes (450000) times a power of two, at most 128 h"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_options_are_named() {
        TreeOptions::default().check().unwrap();
        let check = |options: TreeOptions, want: &str| {
            let error = options.check().unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        };
        let default = TreeOptions::default;
        check(TreeOptions { fast_partition_ms: 60_000, ..default() }, "fast_partition_ms 60000");
        check(TreeOptions { slow_partition_ms: 450_000, ..default() }, "below fast_partition_ms");
        check(TreeOptions { old_partition_ms: 3_600_000, ..default() }, "below slow_partition_ms");
        check(TreeOptions { retention_ms: Some(-1), ..default() }, "retention_ms -1");
        check(TreeOptions { patches_max: 0, ..default() }, "patches_max");
        check(TreeOptions { block_bytes: 1, ..default() }, "block_bytes 1");
        check(TreeOptions { table_bytes_max: 1, ..default() }, "table_bytes_max 1");
    }
}
