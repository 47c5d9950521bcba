//! Dynamic size control: the lengths of new partitions follow what the fast tier may hold.
//!
//! Short partitions leave level 0 sooner and are complete for the slow tier sooner, so the fast tier
//! holds less time. Both lengths are halved and doubled together, so that they stay aligned; standing
//! partitions keep theirs. Source: TimeUnion 3.3, Algorithm 1 and figure 19. Two things differ. A step
//! is taken only when no work is left at the present lengths: what a halving has set free is uploaded
//! before the next. And with the shortest lengths what is too much is uploaded before its partition
//! is complete; the paper has no answer there.

use firn_model::Timestamp;

use crate::options::TreeOptions;
use crate::partition::PartitionLen;
use crate::record::Level;
use crate::version::Version;

/// PartitionLengths of new partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionLengths {
    /// Of level 0 and 1.
    pub fast: PartitionLen,
    /// Of level 2.
    pub slow: PartitionLen,
}

/// How often both lengths that are set were doubled, or halved if negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shift(pub(crate) i8);

impl Shift {
    /// After opening: as the newest table of the fast tier was cut.
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

    /// One step towards the limit, or none. Asked when nothing else is to be done.
    pub(crate) fn next(self, version: &Version, options: &TreeOptions) -> Shift {
        let Some(limit) = options.fast_bytes_max else { return Shift(0) };
        if version.fast_bytes() > soft_limit(limit) {
            return Shift(self.0 - 1).clamped(options);
        }
        let lengths = self.lengths(options);
        match peak_bytes(version, lengths) {
            // Doubled lengths double the peak; a fifth is left for what changes meanwhile.
            Some(peak) if peak.saturating_mul(2) <= limit / 5 * 4 => {
                Shift(self.0 + 1).clamped(options)
            }
            _ => self,
        }
    }

    fn clamped(self, options: &TreeOptions) -> Shift {
        let slow = options.slow_len().doublings();
        // Data that waits longer than the upload age is uploaded whatever its partition: a longer
        // one would be uploaded in pieces, all but the first as patches.
        let patient = PartitionLen::at_most(options.upload_age_ms_max / 2);
        let longest = patient.min(options.old_len()).doublings();
        Shift(self.0.clamp(-slow, (longest - slow).max(0)))
    }
}

/// Whether even the shortest partitions leave too much on the fast tier: then data is uploaded before
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

/// What the fast tier will hold just before the next upload, if it goes on as it went for the length
/// of a level-2 partition. `None` when it has not gone on for so long.
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
    // Level 1 has a whole partition of level 2, level 0 two and the one that is being written.
    let peak_ms = lengths.slow.as_ms() + 3 * lengths.fast.as_ms();
    u64::try_from(
        u128::from(bytes) * peak_ms.unsigned_abs() as u128 / u128::from(span_ms.unsigned_abs()),
    )
    .ok()
}

fn fast_tables(version: &Version) -> impl Iterator<Item = &std::sync::Arc<crate::table::Table>> {
    version.level(Level::Zero).iter().chain(version.level(Level::One))
}
