//! Dynamic size control: the lengths of new partitions follow the limit of the fast tier.
//!
//! Short partitions leave level 0 sooner and are complete for the slow tier sooner, so the fast
//! tier covers less time. Both lengths are halved and doubled together, so that they stay aligned;
//! existing partitions keep theirs. Source: TimeUnion 3.3, Algorithm 1 and figure 19. Two things
//! differ. A step is taken only when no job is due at the present lengths: the data freed by one
//! halving is uploaded before the next. And at the shortest lengths the surplus is uploaded before
//! its partition is complete, a case that the paper leaves open.

use firn_model::Timestamp;

use crate::options::TreeOptions;
use crate::partition::{PartitionLen, PartitionLengths};
use crate::record::Level;
use crate::version::Version;

/// How often both configured lengths are doubled, or halved if negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shift(pub(crate) i8);

impl Shift {
    /// The shift after opening: new partitions are as long as that of the newest table of the fast
    /// tier.
    pub(crate) fn at_open(version: &Version, options: &TreeOptions) -> Shift {
        let newest = fast_tables(version).max_by_key(|table| table.record.time_range.end);
        let (Some(newest), Some(_)) = (newest, options.fast_bytes_max) else { return Shift(0) };
        let fast = newest.record.partition.len();
        Shift(fast.doublings() - options.fast_len().doublings()).clamped(options)
    }

    pub(crate) fn lengths(self, options: &TreeOptions) -> PartitionLengths {
        PartitionLengths {
            fast: options.fast_len().shifted(self.0),
            slow: options.slow_len().shifted(self.0),
        }
    }

    /// One step towards the limit, or none. Call it when no job is due.
    pub(crate) fn next(self, version: &Version, options: &TreeOptions) -> Shift {
        let Some(limit) = options.fast_bytes_max else { return Shift(0) };
        if version.fast_bytes() > soft_limit(limit) {
            return Shift(self.0 - 1).clamped(options);
        }
        let lengths = self.lengths(options);
        match peak_bytes(version, lengths) {
            // Doubled lengths double the peak; a fifth is left for changes in the meantime.
            Some(peak) if peak.saturating_mul(2) <= limit / 5 * 4 => {
                Shift(self.0 + 1).clamped(options)
            }
            _ => self,
        }
    }

    fn clamped(self, options: &TreeOptions) -> Shift {
        let slow = options.slow_len().doublings();
        // Data that waits longer than the upload age is uploaded anyway: a longer partition would
        // be uploaded in pieces, all but the first as patches.
        let patient = PartitionLen::at_most(options.upload_age_ms_max / 2);
        let longest = patient.min(options.old_len()).doublings();
        Shift(self.0.clamp(-slow, (longest - slow).max(0)))
    }
}

/// Whether even the shortest partitions exceed the fast tier's limit: then data is uploaded before
/// its partition is complete.
pub(crate) fn is_pressed(
    version: &Version,
    options: &TreeOptions,
    lengths: PartitionLengths,
) -> bool {
    lengths.slow == PartitionLen::MIN
        && options.fast_bytes_max.is_some_and(|limit| version.fast_bytes() > soft_limit(limit))
}

/// Room for one more flush below the limit.
fn soft_limit(limit: u64) -> u64 {
    limit - limit / 8
}

/// The expected bytes of the fast tier just before the next upload, at the data rate of the last
/// `lengths.slow`. `None` if the data covers less time.
fn peak_bytes(version: &Version, lengths: PartitionLengths) -> Option<u64> {
    let newest = fast_tables(version).map(|table| table.record.time_range.end).max()?;
    let since = newest.saturating_sub(lengths.slow.as_ms());
    let recent = fast_tables(version).filter(|table| table.record.partition.range().end >= since);
    let (mut start, mut bytes) = (Timestamp::MAX, 0u64);
    for table in recent {
        start = start.min(table.record.time_range.start);
        bytes += table.record.bytes;
    }
    let span_ms = newest.checked_sub(start)?;
    if span_ms < lengths.slow.as_ms() {
        return None;
    }
    // Level 1 has one whole level-2 partition, level 0 two partitions and the one being written.
    let peak_ms = lengths.slow.as_ms() + 3 * lengths.fast.as_ms();
    u64::try_from(
        u128::from(bytes) * peak_ms.unsigned_abs() as u128 / u128::from(span_ms.unsigned_abs()),
    )
    .ok()
}

fn fast_tables(version: &Version) -> impl Iterator<Item = &std::sync::Arc<crate::table::Table>> {
    version.level(Level::Zero).iter().chain(version.level(Level::One))
}
