//! Layout and durability of a log.

use firn_model::{Error, Result};

/// When a commit is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SyncPolicy {
    /// When it is on disk. No acknowledged entry is ever lost.
    #[default]
    Always,
    /// When the operating system has it. A commit that finds the last sync older than this many
    /// milliseconds syncs; the caller also calls [`crate::Log::sync`] at this interval. A power
    /// loss costs the entries of one interval and of the sync after it.
    IntervalMs(u64),
    /// When the operating system has it. A killed process loses nothing, a power loss up to a
    /// segment's size.
    Never,
}

/// The longest segment.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 1 << 31;

/// Layout and durability of a log.
#[derive(Clone, Debug)]
pub struct LogSetup {
    /// Parallel streams, 1 to 65,535. The count may change once all segments are below the floor.
    pub stream_count: usize,
    /// Shards, 1 to 65,535. Fixed when a database is created.
    pub shard_count: usize,
    /// The unit that the device writes as a whole: a power of two from 8 bytes to 64 KiB. Each
    /// group commit ends at a multiple of it, so that no unit with committed bytes is written
    /// again. 8 packs tightly and relies on the device to keep the bytes of a sector that a write
    /// does not cover.
    pub unit_bytes: u64,
    /// Settings that may differ from one start to the next.
    pub options: LogOptions,
}

/// Settings of a log that may differ from one start to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Length of a segment file, at least 4 KiB. Disk space is used in steps of this, and one
    /// append must fit.
    pub segment_bytes: u64,
    /// When a commit is acknowledged.
    pub sync: SyncPolicy,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions { segment_bytes: 32 << 20, sync: SyncPolicy::Always }
    }
}

impl LogSetup {
    /// Returns the setup if every option is in its range.
    ///
    /// # Errors
    /// `Invalid`, with the option and its range.
    pub(crate) fn checked(self) -> Result<LogSetup> {
        let is_count = |count: usize| (1..=usize::from(u16::MAX)).contains(&count);
        if !is_count(self.stream_count) || !is_count(self.shard_count) {
            return Err(Error::invalid(format!(
                "log: expected 1 to 65,535 streams and shards, got {} and {}",
                self.stream_count, self.shard_count
            )));
        }
        let unit_bytes = self.unit_bytes;
        if !unit_bytes.is_power_of_two() || !(8..=64 << 10).contains(&unit_bytes) {
            return Err(Error::invalid(format!(
                "log: expected a write unit of a power of two from 8 to 65,536 bytes, \
                 got {unit_bytes}"
            )));
        }
        if self.options.segment_bytes < 2 * unit_bytes {
            return Err(Error::invalid(format!(
                "log: a segment must hold two write units of {unit_bytes} bytes, got {} bytes; \
                 raise the segment size",
                self.options.segment_bytes
            )));
        }
        if !(4 << 10..=SEGMENT_BYTES_MAX).contains(&self.options.segment_bytes) {
            return Err(Error::invalid(format!(
                "log: expected segments of 4 KiB to 2 GiB, got {} bytes",
                self.options.segment_bytes
            )));
        }
        Ok(self)
    }
}
