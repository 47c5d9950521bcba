//! A map from numbers (hashes, group ids) to rows: entries in order of buckets, each a small tag
//! and a row.
//!
//! There are no empty or displaced entries: the entries of a bucket are between its start and the
//! next one's, sorted by tag. With about 16 entries per bucket, the starts cost about 1.5 bits per
//! entry.

use firn_model::Result;

use crate::sealed::format::blocks::{Blocks, PackedArray};

const ENTRIES_PER_BUCKET: usize = 16;
// One in 256 entries of other hashes has the same tag.
const HASH_TAG_BITS: u32 = 8;

/// The entries, by bucket and tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buckets {
    /// One per bucket, and the end.
    pub(crate) starts: PackedArray,
    pub(crate) tags: PackedArray,
    pub(crate) rows: PackedArray,
}

/// By hash: the bucket is the scaled upper part of the hash, the tag its lowest bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashBuckets(pub(crate) Buckets);

/// By id: the distance from the least id without the low bits is the bucket, the low bits are the
/// tag. A matching entry is therefore exact.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdBuckets {
    pub(crate) buckets: Buckets,
    pub(crate) base: u64,
    pub(crate) shift: u32,
}

/// Encoded entries.
#[derive(Debug)]
pub(crate) struct WrittenBuckets {
    pub(crate) starts: Vec<u64>,
    pub(crate) tags: Vec<u64>,
    pub(crate) rows: Vec<u64>,
    pub(crate) base: u64,
    pub(crate) shift: u32,
}

/// Entries of one tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidates {
    buckets: Buckets,
    next: u64,
    end: u64,
    tag: u64,
}

impl HashBuckets {
    pub(crate) fn rows(&self, blocks: &Blocks, hash: u64) -> Result<Candidates> {
        let bucket_count = self.0.starts.count.saturating_sub(1);
        self.0.candidates(blocks, hash_bucket(hash, bucket_count), hash_tag(hash))
    }
}

impl IdBuckets {
    pub(crate) fn rows(&self, blocks: &Blocks, id: u64) -> Result<Candidates> {
        // Ids below the base wrap to a bucket that does not exist.
        let distance = id.wrapping_sub(self.base);
        let (bucket, tag) = split_id(distance, self.shift);
        self.buckets.candidates(blocks, bucket, tag)
    }
}

impl IdBuckets {
    /// Calls `each` with every id and row that can be read in a damaged file.
    pub(crate) fn salvage(&self, blocks: &Blocks, mut each: impl FnMut(u64, u32)) {
        let Buckets { starts, tags, rows } = &self.buckets;
        for bucket in 0..starts.count.saturating_sub(1) {
            let (start, end) =
                (blocks.get(starts, bucket), blocks.get(starts, bucket.saturating_add(1)));
            let (Ok(start), Ok(end)) = (start, end) else { continue };
            for at in start..end.min(tags.count) {
                let (tag, row) = (blocks.get(tags, at), blocks.get(rows, at));
                let row = row.ok().and_then(|row| u32::try_from(row).ok());
                let distance = bucket.checked_shl(self.shift).unwrap_or_default();
                if let (Ok(tag), Some(row)) = (tag, row) {
                    each(self.base.wrapping_add(distance | tag), row);
                }
            }
        }
    }
}

impl Buckets {
    fn candidates(&self, blocks: &Blocks, bucket: u64, tag: u64) -> Result<Candidates> {
        if bucket >= self.starts.count.saturating_sub(1) {
            return Ok(Candidates { buckets: *self, next: 0, end: 0, tag });
        }
        let end = blocks.get(&self.starts, bucket.saturating_add(1))?;
        let (mut low, mut high) = (blocks.get(&self.starts, bucket)?, end);
        while low < high {
            let middle = low.midpoint(high);
            match blocks.get(&self.tags, middle)? < tag {
                true => low = middle.saturating_add(1),
                false => high = middle,
            }
        }
        Ok(Candidates { buckets: *self, next: low, end, tag })
    }
}

impl Candidates {
    /// Entries of the bucket from here on, those of other tags included.
    pub(crate) fn rest_len(&self) -> u64 {
        self.end.saturating_sub(self.next)
    }

    /// The next row; `None` after the last.
    pub(crate) fn next(&mut self, blocks: &Blocks) -> Result<Option<u32>> {
        if self.next >= self.end || blocks.get(&self.buckets.tags, self.next)? != self.tag {
            return Ok(None);
        }
        let row = blocks.get(&self.buckets.rows, self.next)?;
        self.next = self.next.saturating_add(1);
        let too_large = |_| {
            blocks.corrupt(
                self.buckets.rows.start,
                "a row number does not fit in 32 bits: run `firn check --repair`",
            )
        };
        u32::try_from(row).map(Some).map_err(too_large)
    }
}

/// Encodes hashes and rows, in any order.
pub(crate) fn write_hashes(mut entries: Vec<(u64, u32)>) -> WrittenBuckets {
    let bucket_count = entries.len().div_ceil(ENTRIES_PER_BUCKET) as u64;
    entries.sort_unstable_by_key(|&(hash, row)| {
        (hash_bucket(hash, bucket_count), hash_tag(hash), row)
    });
    let place = |hash| (hash_bucket(hash, bucket_count), hash_tag(hash));
    write(&entries, bucket_count, place, 0, 0)
}

/// Encodes ids and rows, in any order.
#[expect(clippy::arithmetic_side_effects, reason = "encodes data of this process")]
pub(crate) fn write_ids(mut entries: Vec<(u64, u32)>) -> WrittenBuckets {
    entries.sort_unstable();
    let base = entries.first().map_or(0, |entry| entry.0);
    let span = entries.last().map_or(0, |entry| entry.0 - base);
    let wanted = entries.len().div_ceil(ENTRIES_PER_BUCKET).max(1) as u64;
    let shift = (0..63).find(|shift| (span >> shift) < wanted).unwrap_or(63);
    let bucket_count = if entries.is_empty() { 0 } else { (span >> shift) + 1 };
    write(&entries, bucket_count, |id| split_id(id - base, shift), base, shift)
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "encodes data of this process"
)]
fn write(
    entries: &[(u64, u32)],
    bucket_count: u64,
    place: impl Fn(u64) -> (u64, u64),
    base: u64,
    shift: u32,
) -> WrittenBuckets {
    let mut starts = Vec::with_capacity(bucket_count as usize + 1);
    for (idx, &(key, _)) in entries.iter().enumerate() {
        starts.resize(starts.len().max(place(key).0 as usize + 1), idx as u64);
    }
    starts.resize(bucket_count as usize + 1, entries.len() as u64);
    WrittenBuckets {
        starts,
        tags: entries.iter().map(|entry| place(entry.0).1).collect(),
        rows: entries.iter().map(|entry| u64::from(entry.1)).collect(),
        base,
        shift,
    }
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "the product of 64-bit numbers has 128 bits, its upper half 64"
)]
fn hash_bucket(hash: u64, bucket_count: u64) -> u64 {
    ((u128::from(hash) * u128::from(bucket_count)) >> 64) as u64
}

fn hash_tag(hash: u64) -> u64 {
    hash & ((1 << HASH_TAG_BITS) - 1)
}

#[expect(clippy::arithmetic_side_effects, reason = "shift is below 64, checked at open")]
fn split_id(distance: u64, shift: u32) -> (u64, u64) {
    (distance >> shift, distance & ((1 << shift) - 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sealed::testing::written;

    fn all(mut rows: Candidates, blocks: &Blocks) -> Vec<u32> {
        std::iter::from_fn(|| rows.next(blocks).unwrap()).collect()
    }

    proptest! {
        #[test]
        fn entries_are_found(
            ids in prop::collection::vec(prop_oneof![0u64..200, any::<u64>()], 0..200),
            others in prop::collection::vec(prop_oneof![0u64..200, any::<u64>()], 10),
        ) {
            let entries: Vec<(u64, u32)> = ids.iter().copied().zip(0..).collect();
            let hashes = write_hashes(entries.clone());
            let by_id = write_ids(entries.clone());
            let (blocks, contents) = written(&[], &[
                &hashes.starts, &hashes.tags, &hashes.rows, &by_id.starts, &by_id.tags, &by_id.rows,
            ]);
            let arrays = |at: usize| Buckets {
                starts: contents.arrays[at],
                tags: contents.arrays[at + 1],
                rows: contents.arrays[at + 2],
            };
            let (base, shift) = (by_id.base, by_id.shift);
            let hashes = HashBuckets(arrays(0));
            let by_id = IdBuckets { buckets: arrays(3), base, shift };
            for id in ids.iter().chain(&others) {
                let want: Vec<u32> =
                    entries.iter().filter(|entry| entry.0 == *id).map(|entry| entry.1).collect();
                prop_assert_eq!(all(by_id.rows(&blocks, *id).unwrap(), &blocks), want.clone());
                let got = all(hashes.rows(&blocks, *id).unwrap(), &blocks);
                prop_assert!(want.iter().all(|row| got.contains(row)));
            }
        }
    }
}
