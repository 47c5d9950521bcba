//! The memory of a destination: its share of the database's, and the parts of the share.
//!
//! A receiver that does not answer keeps the memory of its requests until their time limit, and
//! then again. Each destination therefore has its own share, and all of it together is a part of
//! the database's memory.

use firn_model::{Error, Result};

// The memory of a destination, as a part of the database's.
const MEMORY_FRACTION: u64 = 16;
const MEMORY_BYTES_MIN: u64 = 16 << 20;
const MEMORY_BYTES_MAX: u64 = 256 << 20;
// The memory of all destinations, in the same way.
const MEMORY_FRACTION_OF_ALL: u64 = 4;
// The smallest share, among very many: some hundred samples, and one request. More destinations are
// refused.
const MEMORY_BYTES_LEAST: u64 = 4 * REQUEST_BYTES_LEAST;
// A share has as many requests at the same time as it has room for requests of this size: some
// thousand samples.
const REQUEST_BYTES_WANTED: u64 = 1 << 20;
// Requests of an earlier process with more memory had more shards.
const REQUEST_BYTES_LEAST: u64 = 32 << 10;
// Samples of a window. More shards than these fill are of no use.
pub(super) const WINDOW_LEN_MAX: usize = 50_000;
// A sample from the log, in the window, and in tables.
const SAMPLE_BYTES: u64 = 192;

/// The memory of a destination, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryShare {
    bytes: u64,
}

impl MemoryShare {
    /// Checks that a database with `limit_bytes` has memory for `count` destinations.
    ///
    /// # Errors
    /// `Invalid` with the memory that they need.
    pub(super) fn check(limit_bytes: u64, count: usize) -> Result<()> {
        let each = MEMORY_BYTES_LEAST.saturating_mul(MEMORY_FRACTION_OF_ALL);
        let needed = each.saturating_mul(count as u64);
        if needed <= limit_bytes {
            return Ok(());
        }
        let (needed, limit) = (needed.div_ceil(1 << 20), limit_bytes >> 20);
        Err(Error::invalid(format!(
            "remote_write: {count} destinations need --memory={needed}MiB or more, got {limit}MiB: \
             together they use at most a quarter of it"
        )))
    }

    /// The share of each of `count` destinations, if the database has `limit_bytes`: with one
    /// limit for all, the first ones would leave none. Together they leave most of it to writes
    /// and queries.
    pub(super) fn of_one(limit_bytes: u64, count: usize) -> MemoryShare {
        let bytes = (limit_bytes / MEMORY_FRACTION).clamp(MEMORY_BYTES_MIN, MEMORY_BYTES_MAX);
        let share = limit_bytes / MEMORY_FRACTION_OF_ALL / (count as u64).max(1);
        MemoryShare { bytes: bytes.min(share) }
    }

    /// The part for requests that wait for an answer.
    pub(super) fn requests_bytes(self) -> u64 {
        self.bytes / 4
    }

    /// The part for metadata that is sent on its own.
    pub(super) fn metadata_bytes(self) -> u64 {
        self.bytes / 8
    }

    /// The part for the labels of a part of a window, which ends where they are used up.
    pub(super) fn part_labels_bytes(self) -> u64 {
        self.bytes / 8
    }

    /// The part for the samples that were sent last.
    pub(super) fn sent_bytes(self) -> u64 {
        self.bytes / 32
    }

    /// The part for the labels that are kept.
    pub(super) fn labels_bytes(self) -> u64 {
        let others = self
            .requests_bytes()
            .saturating_add(self.metadata_bytes())
            .saturating_add(self.part_labels_bytes())
            .saturating_add(self.sent_bytes())
            .saturating_add(samples_bytes(self.window_len_max(0)));
        self.bytes.saturating_sub(others)
    }

    /// The most bytes of the labels of a series, before and after rules: a request of it fits into
    /// [`MemoryShare::requests_bytes`], and so do, before that, the copies that are made of them.
    pub(super) fn series_bytes_max(self) -> u64 {
        self.bytes / 32
    }

    /// The most bytes of the names and values that rules make for a series.
    pub(super) fn rules_bytes_max(self) -> u64 {
        self.bytes / 80
    }

    /// The most samples of a window, if the labels of one take `labels_bytes`.
    pub(super) fn window_len_max(self, labels_bytes: u64) -> usize {
        let fitting = self.bytes / 4 / SAMPLE_BYTES.saturating_add(labels_bytes);
        usize::try_from(fitting).unwrap_or(usize::MAX).clamp(1, WINDOW_LEN_MAX)
    }

    /// The most requests at the same time.
    pub(super) fn shard_count_max(self) -> usize {
        let fitting = self.requests_bytes() / REQUEST_BYTES_WANTED;
        usize::try_from(fitting).unwrap_or(usize::MAX).max(1)
    }

    /// The memory of each request, if there are `shard_count` at the same time.
    pub(super) fn request_bytes(self, shard_count: usize) -> u64 {
        (self.requests_bytes() / (shard_count as u64).max(1)).max(REQUEST_BYTES_LEAST)
    }
}

/// The memory for making the labels of a series from labels of `base_bytes`, while rules make texts
/// of `rules_bytes_max`: three buffers of an editor, each of up to twice the texts, and the new
/// labels in three forms.
pub(super) fn labels_scratch_bytes(base_bytes: u64, rules_bytes_max: u64) -> u64 {
    let made = rules_bytes_max.saturating_mul(10);
    base_bytes.saturating_mul(4).saturating_add(made)
}

/// The memory of `count` samples of a window, without their labels.
pub(super) fn samples_bytes(count: usize) -> u64 {
    SAMPLE_BYTES.saturating_mul(count as u64)
}

#[cfg(test)]
mod tests {
    use super::super::message::request_bytes_max;
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Before, each took 16 MiB: eight of them, which no receiver has to answer, left nothing of
    /// 128 MiB.
    #[test]
    fn all_destinations_take_a_quarter_of_the_memory() {
        for (limit, count, each) in [
            (128 * MIB, 1, 16 * MIB),
            (128 * MIB, 2, 16 * MIB),
            (128 * MIB, 8, 4 * MIB),
            (16 << 30, 4, 256 * MIB),
            (16 << 30, 64, 64 * MIB),
            (128 * MIB, 32, MIB),
            (128 * MIB, 256, MIB / 8),
            (64 * MIB, 0, 16 * MIB),
        ] {
            assert_eq!(MemoryShare::of_one(limit, count).bytes, each, "{limit} {count}");
            MemoryShare::check(limit, count).unwrap();
        }
    }

    /// Before, each had at least 1 MiB: 100 of them took all of 128 MiB, and scrapes were refused.
    #[test]
    fn many_destinations_stay_within_the_quarter_or_are_refused() {
        for count in 1..=300 {
            let (limit, count_u64) = (128 * MIB, count as u64);
            match MemoryShare::check(limit, count) {
                Ok(()) => {
                    let share = MemoryShare::of_one(limit, count);
                    assert!(share.bytes * count_u64 <= limit / 4, "{count}");
                    let requests = share.request_bytes(share.shard_count_max());
                    assert!(requests <= share.requests_bytes(), "{count}");
                }
                Err(error) => {
                    assert!(count > 256, "{count}");
                    assert!(error.to_string().contains("destinations need --memory="), "{error}");
                }
            }
        }
        let error = MemoryShare::check(128 * MIB, 257).unwrap_err().to_string();
        assert!(error.contains("257 destinations need --memory=129MiB or more, got 128MiB"));
    }

    /// No series waits for memory that is never there.
    #[test]
    fn the_longest_series_fits_into_a_request() {
        for count in [1, 2, 20, 100, 256] {
            let share = MemoryShare::of_one(128 * MIB, count);
            let request = request_bytes_max(share.series_bytes_max(), 1, 1);
            assert!(request + share.requests_bytes() / 4 <= share.requests_bytes(), "{count}");
            assert!(share.series_bytes_max() <= share.part_labels_bytes());
            let copies = labels_scratch_bytes(share.series_bytes_max(), share.rules_bytes_max());
            assert!(copies <= share.requests_bytes());
        }
    }

    /// Before, requests were no part of the share: those of twenty receivers that did not answer
    /// held 89 MB of 128 MiB.
    #[test]
    fn the_parts_of_a_share_are_not_more_than_the_share() {
        for (limit, count) in [(128 * MIB, 1), (128 * MIB, 20), (64 * MIB, 100), (16 << 30, 3)] {
            let share = MemoryShare::of_one(limit, count);
            let parts = share.requests_bytes()
                + share.metadata_bytes()
                + share.part_labels_bytes()
                + share.sent_bytes()
                + share.labels_bytes()
                + samples_bytes(share.window_len_max(0));
            assert!(parts <= share.bytes && share.labels_bytes() >= share.bytes / 5);
            let shards = share.shard_count_max();
            assert!(share.request_bytes(shards) * shards as u64 <= share.requests_bytes());
        }
        let share = MemoryShare::of_one(128 * MIB, 20);
        assert_eq!((share.shard_count_max(), share.request_bytes(1)), (1, share.bytes / 4));
        // Long labels: fewer samples.
        assert!(share.window_len_max(10_000) < share.window_len_max(0) / 40);
        assert_eq!(share.window_len_max(u64::MAX), 1);
    }
}
