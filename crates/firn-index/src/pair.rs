//! Label pairs as bytes and as ids, for segments in memory and in files.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use firn_model::{Labels, decode_varint};

/// One encoded pair of a [`Labels`]; the UTF-8 is not validated again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawPair<'a> {
    /// Name and value, each with its length.
    pub(crate) encoded: &'a [u8],
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
}

/// The pairs of `labels` in order of names.
pub(crate) fn raw_pairs(labels: &Labels) -> impl Iterator<Item = RawPair<'_>> {
    let mut rest = labels.as_encoded();
    std::iter::from_fn(move || {
        let start = rest;
        let (name, value) = (take_text(&mut rest)?, take_text(&mut rest)?);
        Some(RawPair { encoded: &start[..start.len() - rest.len()], name, value })
    })
}

pub(crate) fn take_text<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let text_bytes = match **rest {
        // Nearly all texts are short.
        [len, ref after @ ..] if len < 0x80 => {
            *rest = after;
            usize::from(len)
        }
        _ => decode_varint(rest)? as usize,
    };
    let (text, after) = rest.split_at_checked(text_bytes)?;
    *rest = after;
    Some(text)
}

static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));

/// A bit for each name: those of a part of a list are among those of the list.
pub(crate) fn name_mask(names: impl IntoIterator<Item = u32>) -> u64 {
    let seed = *SEED;
    names.into_iter().fold(0, |mask, name| mask | 1 << (mix(seed ^ u64::from(name)) & 63))
}

/// The hash of a label set: a sum over its pairs, so that it does not depend on the split into
/// group and member labels.
///
/// It differs from process to process: ids are numbers from 0 on, so a sender could choose label
/// sets with equal sums.
pub(crate) fn hash_ids(ids: impl IntoIterator<Item = u32>) -> u64 {
    let seed = *SEED;
    ids.into_iter().fold(0, |sum: u64, id| sum.wrapping_add(mix(seed ^ u64::from(id))))
}

// The finalizer of splitmix64: every bit of the id reaches every bit of the sum.
fn mix(id: u64) -> u64 {
    let mut x = id.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
