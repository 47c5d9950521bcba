//! Hashes of label sets and of their subsets.

use firn_model::Labels;
use xxhash_rust::xxh3::xxh3_64;

use crate::pair::{RawPair, raw_pairs};

/// A label set with a hash per pair. The hash of a subset is the sum of its pairs' hashes, so one
/// pass over the text serves every segment and every split into group and member.
#[derive(Clone, Debug, Default)]
pub(crate) struct HashedLabels<'a> {
    pairs: Vec<(RawPair<'a>, u64)>,
    hash: u64,
}

impl<'a> HashedLabels<'a> {
    pub(crate) fn new(labels: &'a Labels) -> HashedLabels<'a> {
        let mut hashed = HashedLabels { pairs: Vec::with_capacity(16), hash: 0 };
        hashed.set(labels);
        hashed
    }

    /// Replaces the labels; reuses the memory.
    pub(crate) fn set(&mut self, labels: &'a Labels) {
        self.pairs.clear();
        self.hash = 0;
        for pair in raw_pairs(labels) {
            let hash = xxh3_64(pair.encoded);
            self.hash = self.hash.wrapping_add(hash);
            self.pairs.push((pair, hash));
        }
    }

    /// Pairs with their hashes, in order of names.
    pub(crate) fn pairs(&self) -> &[(RawPair<'a>, u64)] {
        &self.pairs
    }

    /// The hash of all pairs; 0 for none.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }
}

/// The hash of one encoded pair, a summand of [`HashedLabels::hash`].
pub(crate) fn pair_hash(encoded: &[u8]) -> u64 {
    xxh3_64(encoded)
}
