//! Sorted lists of ids in the smallest of three forms: gaps, runs, bitmap.
//!
//! ```text
//! list    = varint(count << 2 | form) [first:varint [bytes:varint payload]]
//!           first only if count > 0, the payload only if count > 1
//! gaps    = varint(id - previous - 1) for each id after the first
//! runs    = (varint(run length - 1) varint(ids skipped - 1))*, no skip after the last run
//! bitmap  = bit i of byte i / 8 is id `first + i`; bit 0 is set
//! ```
//! Source: measured over TSBS and Kubernetes label sets (docs/formats), the best form per list takes
//! half of what the best single form takes.

use firn_model::Result;

use crate::varint::{
    corrupt, cut, encode_varint, take_bytes, take_count, take_varint, varint_bytes,
};

const GAPS: u64 = 0;
const RUNS: u64 = 1;
const BITMAP: u64 = 2;

/// Appends `ids`, which strictly rise.
///
/// # Panics
/// In debug builds if they do not.
pub fn encode_postings(ids: &[u64], out: &mut Vec<u8>) {
    debug_assert!(ids.is_sorted_by(|a, b| a < b), "ids of a posting list must rise");
    let count = ids.len() as u64;
    let (Some(&first), Some(&last)) = (ids.first(), ids.last()) else {
        return encode_varint(0, out);
    };
    if count == 1 {
        encode_varint(count << 2 | GAPS, out);
        return encode_varint(first, out);
    }
    let (gap_bytes, run_bytes) = sizes(ids);
    // Over 2^40 bits a bitmap is never the smallest form of a list that fits in memory.
    let bitmap_bytes = ((last - first) / 8).min(1 << 40) + 1;
    let (form, payload_bytes) = [(RUNS, run_bytes), (BITMAP, bitmap_bytes), (GAPS, gap_bytes)]
        .into_iter()
        .min_by_key(|&(_, bytes)| bytes)
        .unwrap_or((GAPS, gap_bytes));
    encode_varint(count << 2 | form, out);
    encode_varint(first, out);
    encode_varint(payload_bytes, out);
    let start = out.len();
    match form {
        GAPS => ids.windows(2).for_each(|pair| encode_varint(pair[1] - pair[0] - 1, out)),
        RUNS => {
            for_runs(ids, |run_len, skipped| {
                encode_varint(run_len - 1, out);
                if let Some(skipped) = skipped {
                    encode_varint(skipped - 1, out);
                }
            });
        }
        _ => {
            out.resize(start + payload_bytes as usize, 0);
            for id in ids {
                let bit = id - first;
                out[start + (bit / 8) as usize] |= 1 << (bit % 8);
            }
        }
    }
    debug_assert_eq!(out.len() - start, payload_bytes as usize, "size of form {form}");
}

/// An encoded list; borrows its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Postings<'a> {
    form: u64,
    count: u64,
    first: u64,
    payload: &'a [u8],
}

impl<'a> Postings<'a> {
    /// Takes a list from the front of `input`. Looks at its header only: O(1).
    ///
    /// # Errors
    /// `Corrupt` if it is cut short or its form is unknown.
    pub fn take(input: &mut &'a [u8]) -> Result<Postings<'a>> {
        let header = take_varint(input, "posting list header")?;
        let (form, count) = (header & 3, header >> 2);
        if form > BITMAP {
            return Err(corrupt(format!("posting list has unknown form {form}")));
        }
        let first = if count > 0 { take_varint(input, "first id")? } else { 0 };
        let payload = match count {
            0 | 1 => &[],
            _ => {
                let bytes = take_count(input, input.len(), "posting list bytes")?;
                take_bytes(input, bytes, "posting list")?
            }
        };
        Ok(Postings { form, count, first, payload })
    }

    /// Number of ids.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there is no id.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Walks the ids, rising. Damaged bytes make it end early, never panic; [`Postings::decode`]
    /// tells. No allocation.
    pub fn iter(&self) -> PostingsIter<'a> {
        PostingsIter { list: *self, left: self.count, next: self.first, run_left: None, bit_idx: 0 }
    }

    /// Appends all ids to `out`.
    ///
    /// # Errors
    /// `Corrupt` if the bytes hold fewer or more ids than the header says; `out` has the ones before.
    pub fn decode(&self, out: &mut Vec<u64>) -> Result<()> {
        let before = out.len();
        let mut ids = self.iter();
        out.extend(&mut ids);
        if (out.len() - before) as u64 != self.count {
            return Err(cut("posting list"));
        }
        if !ids.is_spent() {
            return Err(corrupt("posting list holds more ids than its header says"));
        }
        Ok(())
    }
}

/// Walks the ids of a [`Postings`].
#[derive(Clone, Debug)]
pub struct PostingsIter<'a> {
    list: Postings<'a>,
    left: u64,
    /// The next id (gaps, runs), meaningful while `left > 0`.
    next: u64,
    /// Ids left in the present run after `next`; `None` before the first run was read.
    run_left: Option<u64>,
    /// The next bit to look at (bitmap).
    bit_idx: u64,
}

impl PostingsIter<'_> {
    /// The first id that is at least `id` among those not walked yet; ids before it are skipped. Skips
    /// over runs and inside a bitmap at once, over gaps one by one.
    pub fn seek(&mut self, id: u64) -> Option<u64> {
        if self.list.count > 1 && self.list.form == BITMAP {
            self.bit_idx = self.bit_idx.max(id.saturating_sub(self.list.first));
        }
        if self.list.count > 1 && self.list.form == RUNS {
            return self.seek_runs(id);
        }
        self.find(|&next| next >= id)
    }

    fn seek_runs(&mut self, id: u64) -> Option<u64> {
        while self.left > 0 {
            let Some(run_left) = self.run_left.or_else(|| self.varint()) else {
                self.left = 0;
                break;
            };
            let skipped = id.saturating_sub(self.next).min(run_left);
            self.next = self.next.saturating_add(skipped);
            self.left = self.left.saturating_sub(skipped);
            self.run_left = Some(run_left - skipped);
            // The run's last id may still be too small: then it is stepped over.
            let found = self.next()?;
            if found >= id {
                return Some(found);
            }
        }
        None
    }

    fn is_spent(&self) -> bool {
        match self.list.form {
            BITMAP => {
                let mut probe = self.clone();
                probe.left = 1;
                probe.list.count < 2 || probe.next_bit().is_none()
            }
            _ => self.list.payload.is_empty() && self.run_left.unwrap_or(0) == 0,
        }
    }

    fn next_bit(&mut self) -> Option<u64> {
        loop {
            let byte_idx = usize::try_from(self.bit_idx / 8).ok()?;
            let byte = *self.list.payload.get(byte_idx)?;
            let rest = byte >> (self.bit_idx % 8);
            if rest != 0 {
                let bit = self.bit_idx + u64::from(rest.trailing_zeros());
                self.bit_idx = bit + 1;
                return self.list.first.checked_add(bit);
            }
            self.bit_idx = (self.bit_idx / 8 + 1) * 8;
        }
    }

    fn varint(&mut self) -> Option<u64> {
        take_varint(&mut self.list.payload, "id").ok()
    }

    /// The id after `next` in the gap form.
    fn after_gap(&mut self, id: u64) -> Option<u64> {
        let gap = self.varint()?;
        id.checked_add(gap)?.checked_add(1)
    }
}

impl Iterator for PostingsIter<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.left == 0 {
            return None;
        }
        let id = match (self.list.form, self.list.count) {
            (_, 1) => self.next,
            (BITMAP, _) => match self.next_bit() {
                Some(id) => id,
                None => {
                    self.left = 0;
                    return None;
                }
            },
            (RUNS, _) => {
                let run_left = match self.run_left {
                    Some(left) => left,
                    None => match self.varint() {
                        Some(left) => left,
                        None => {
                            self.left = 0;
                            return None;
                        }
                    },
                };
                let id = self.next;
                if self.left > 1 {
                    let following = match run_left {
                        0 => self.after_gap(id).and_then(|next| {
                            self.run_left = None;
                            // The skip counts ids between the runs, at least one.
                            next.checked_add(1)
                        }),
                        _ => {
                            self.run_left = Some(run_left - 1);
                            id.checked_add(1)
                        }
                    };
                    match following {
                        Some(next) => self.next = next,
                        None => self.left = 1,
                    }
                } else {
                    self.run_left = Some(run_left);
                }
                id
            }
            _ => {
                let id = self.next;
                if self.left > 1 {
                    match self.after_gap(id) {
                        Some(next) => self.next = next,
                        None => self.left = 1,
                    }
                }
                id
            }
        };
        self.left -= 1;
        Some(id)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, usize::try_from(self.left).ok())
    }
}

/// Payload bytes of the gap form and of the run form.
fn sizes(ids: &[u64]) -> (u64, u64) {
    let gaps = ids.windows(2).map(|pair| varint_bytes(pair[1] - pair[0] - 1) as u64).sum();
    let mut runs = 0;
    for_runs(ids, |run_len, skipped| {
        runs += varint_bytes(run_len - 1) as u64;
        runs += skipped.map_or(0, |skipped| varint_bytes(skipped - 1) as u64);
    });
    (gaps, runs)
}

/// Calls `f` with each run's length and the number of ids skipped after it (`None` after the last).
fn for_runs(ids: &[u64], mut f: impl FnMut(u64, Option<u64>)) {
    let mut rest = ids;
    while let Some(&start) = rest.first() {
        let run_len =
            rest.iter().zip(start..=u64::MAX).take_while(|(id, want)| **id == *want).count();
        let (run, after) = rest.split_at(run_len);
        let last = run[run_len - 1];
        f(run_len as u64, after.first().map(|next| next - last - 1));
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(ids: &[u64], form: u64) {
        let mut out = Vec::new();
        encode_postings(ids, &mut out);
        let mut input = out.as_slice();
        let list = Postings::take(&mut input).unwrap();
        assert!(input.is_empty());
        assert_eq!((list.form, list.len()), (form, ids.len() as u64), "{ids:?}");
        let mut again = Vec::new();
        list.decode(&mut again).unwrap();
        assert_eq!(again, ids);
        for seek in [0, 1, 5, 64, 100, 1 << 40, u64::MAX] {
            let mut iter = list.iter();
            let at = ids.partition_point(|&id| id < seek);
            assert_eq!(iter.seek(seek), ids.get(at).copied(), "seek {seek} in {ids:?}");
            let rest = ids.get(at + 1..).unwrap_or_default();
            assert_eq!(iter.collect::<Vec<_>>(), rest, "after seek {seek} in {ids:?}");
            let mut iter = list.iter();
            iter.next();
            let at = at.max(1.min(ids.len()));
            assert_eq!(iter.seek(seek), ids.get(at).copied(), "late seek {seek} in {ids:?}");
        }
    }

    #[test]
    fn the_smallest_form_is_taken() {
        check(&[], GAPS);
        check(&[u64::MAX], GAPS);
        check(&[0, u64::MAX], GAPS);
        check(&[5, 900, 70_000], GAPS);
        check(&(10..5000).collect::<Vec<_>>(), RUNS);
        check(&(0..50).chain(100..200).collect::<Vec<_>>(), RUNS);
        check(&(0..400).filter(|id| id % 3 != 1).collect::<Vec<_>>(), BITMAP);
        check(&(u64::MAX - 9..=u64::MAX).collect::<Vec<_>>(), RUNS);
    }

    fn ids() -> impl Strategy<Value = Vec<u64>> {
        let runs = prop::collection::vec((1u64..200, 1u64..60), 0..12);
        let runs = (any::<u32>(), runs).prop_map(|(start, runs)| {
            let mut next = u64::from(start);
            let mut ids = Vec::new();
            for (skipped, len) in runs {
                ids.extend(next + skipped..next + skipped + len);
                next += skipped + len;
            }
            ids
        });
        let scattered = |below: u64| {
            prop::collection::btree_set(0..below, 0..80).prop_map(|ids| ids.into_iter().collect())
        };
        prop_oneof![runs, scattered(150), scattered(4000), scattered(u64::MAX)]
    }

    proptest! {
        #[test]
        fn any_list_comes_back(ids in ids(), seeks in prop::collection::vec(any::<u64>(), 1..8)) {
            let mut out = Vec::new();
            encode_postings(&ids, &mut out);
            let list = Postings::take(&mut out.as_slice()).unwrap();
            let mut again = Vec::new();
            list.decode(&mut again).unwrap();
            prop_assert_eq!(&again, &ids);
            let span = ids.last().map_or(1, |last| last - ids[0]).saturating_add(2);
            let mut seeks: Vec<u64> =
                seeks.iter().map(|seek| ids.first().map_or(0, |id| id + seek % span)).collect();
            seeks.sort_unstable();
            let (mut iter, mut left) = (list.iter(), ids.as_slice());
            for seek in seeks {
                left = &left[left.partition_point(|&id| id < seek)..];
                prop_assert_eq!(iter.seek(seek), left.first().copied());
                left = left.get(1..).unwrap_or_default();
            }
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..60), seek in any::<u64>()) {
            if let Ok(list) = Postings::take(&mut bytes.as_slice()) {
                let seen: Vec<u64> = list.iter().take(300).collect();
                prop_assert!(seen.is_sorted_by(|a, b| a < b));
                list.iter().seek(seek);
            }
        }
    }

    #[test]
    fn damage_is_told_or_harmless() {
        let ids: Vec<u64> = (0..40).chain(60..90).chain([1000, 5000]).collect();
        let mut out = Vec::new();
        encode_postings(&ids, &mut out);
        for bit in 0..out.len() * 8 {
            let mut flipped = out.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(list) = Postings::take(&mut flipped.as_slice()) {
                let seen: Vec<u64> = list.iter().take(200).collect();
                assert!(seen.is_sorted_by(|a, b| a < b));
            }
        }
    }
}
