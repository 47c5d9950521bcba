//! A prefix code for the letters of one name's values. Unique ids consist of hexadecimal digits and
//! addresses of decimal digits, so a whole byte per letter takes about twice the space needed.
//!
//! ```text
//! code  = numbers of letters with codes of 1, 2 ... 8 bits:u8 * 8
//!         the letters: by length, then value
//!         varint(fewest bytes of an entry that does not begin a block)
//! coded = the codes of the letters, most significant bit first, then ones up to a whole byte
//! ```
//!
//! Codes are canonical: they are assigned in the order of the letters and count up. No letter has
//! the code of all ones, which marks the end. Codes have at most 8 bits, so that one table lookup
//! yields letter and length. Source: Huffman's code, limited to 8 bits.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use firn_codec::varint::take_bytes;
use firn_model::encode_varint;

use crate::sealed::format::varint::take_varint;

/// A decoder: letter and code length by the next 8 bits; length 0 is the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Letters {
    table: Box<[(u8, u8); 256]>,
    /// The least length of an entry of the name, except for the first of a block.
    pub(crate) bytes_min: usize,
}

/// An encoder: the shortest code for given letter counts.
#[derive(Clone, Debug)]
pub(crate) struct LetterCode {
    /// The code length of each letter; 0: no code.
    bits: [u8; 256],
    /// The codes, in their lowest bits.
    codes: [u8; 256],
}

const BITS_MAX: usize = 8;
/// The symbol for the end of a text.
const END: usize = 256;

impl Letters {
    /// Decodes a code from the front of `input`.
    pub(crate) fn take(input: &mut &[u8]) -> Option<Letters> {
        let counts: [u8; BITS_MAX] =
            take_bytes(input, BITS_MAX, "letters").ok()?.try_into().ok()?;
        let letter_count = counts.iter().map(|&count| usize::from(count)).sum();
        let mut letters = take_bytes(input, letter_count, "letters").ok()?.iter();
        let mut table = Box::new([(0u8, 0u8); 256]);
        let mut next = 0usize;
        for (bits, &count) in (1u8..).zip(&counts) {
            for &letter in letters.by_ref().take(usize::from(count)) {
                // The last table entry is the end's.
                let entries = 256usize.checked_shr(u32::from(bits))?;
                let end = next.checked_add(entries).filter(|end| *end < 256)?;
                table.get_mut(next..end)?.fill((letter, bits));
                next = end;
            }
        }
        let bytes_min = usize::try_from(take_varint(input)?).ok()?;
        Some(Letters { table, bytes_min })
    }

    /// Appends the letters of `coded`.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "hot; have is at most 64, codes have at most 8 bits, the index is a byte"
    )]
    pub(crate) fn decode(&self, coded: &[u8], out: &mut Vec<u8>) {
        // The next bits, followed by ones.
        let (mut window, mut have) = (u64::MAX, 0u32);
        let mut coded = coded.iter();
        loop {
            while have <= 56
                && let Some(&byte) = coded.next()
            {
                window &= !(u64::from(!byte) << (56 - have));
                have += 8;
            }
            // The loaded bits suffice for all but the last letters.
            loop {
                let (letter, bits) = self.table[(window >> 56) as usize];
                let bits = u32::from(bits);
                if bits == 0 || bits > have {
                    return;
                }
                out.push(letter);
                window = window << bits | ((1 << bits) - 1);
                have -= bits;
                if have < 8 && !coded.as_slice().is_empty() {
                    break;
                }
            }
        }
    }
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "encodes data of this process"
)]
impl LetterCode {
    /// `None` if there are no letters, or all 256.
    pub(crate) fn new(counts: &[u64; 256]) -> Option<LetterCode> {
        let mut weights: Vec<(u64, usize)> =
            counts.iter().copied().zip(0..).filter(|weight| weight.0 > 0).collect();
        if weights.is_empty() || weights.len() == END {
            return None;
        }
        // The end is the rarest symbol. It gets the code space that the letters leave, independent
        // of its length.
        weights.push((0, END));
        let bits = loop {
            let bits = lengths(&weights);
            if bits.iter().all(|bits| usize::from(*bits) <= BITS_MAX) {
                break bits;
            }
            // Equalize the weights until the longest code fits. In the limit all are 1, and 256
            // symbols have 8 bits each.
            weights.iter_mut().for_each(|weight| weight.0 = (weight.0 / 2).max(1));
        };
        let mut code = LetterCode { bits: [0; 256], codes: [0; 256] };
        for (&(_, letter), &bits) in weights.iter().zip(&bits).filter(|weight| weight.0.1 != END) {
            code.bits[letter] = bits;
        }
        let mut next = 0usize;
        for letter in code.letters() {
            let bits = usize::from(code.bits[usize::from(letter)]);
            code.codes[usize::from(letter)] = (next >> (BITS_MAX - bits)) as u8;
            next += 1 << (BITS_MAX - bits);
        }
        Some(code)
    }

    /// Encoded size of letters with these counts, without the padding of each text.
    pub(crate) fn coded_bytes(&self, counts: &[u64; 256]) -> u64 {
        let bits = counts.iter().zip(&self.bits).map(|(count, &bits)| count * u64::from(bits));
        bits.sum::<u64>() / 8
    }

    /// The number of bytes that [`LetterCode::encode_text`] appends for `text`.
    pub(crate) fn text_bytes(&self, text: &[u8]) -> usize {
        let bits = text.iter().map(|&letter| usize::from(self.bits[usize::from(letter)]));
        bits.sum::<usize>().div_ceil(8)
    }

    /// Appends the code itself and [`Letters::bytes_min`].
    pub(crate) fn encode(&self, bytes_min: usize, out: &mut Vec<u8>) {
        let with = |bits: u8| self.bits.iter().filter(|other| **other == bits).count() as u8;
        out.extend((1..=BITS_MAX as u8).map(with));
        out.extend(self.letters());
        encode_varint(bytes_min as u64, out);
    }

    /// Appends `text`. All its letters must have codes.
    pub(crate) fn encode_text(&self, text: &[u8], out: &mut Vec<u8>) {
        let (mut window, mut have) = (0u32, 0);
        for &letter in text {
            let bits = u32::from(self.bits[usize::from(letter)]);
            window = window << bits | u32::from(self.codes[usize::from(letter)]);
            have += bits;
            while have >= 8 {
                have -= 8;
                out.push((window >> have) as u8);
            }
        }
        if have > 0 {
            let ones = 8 - have;
            out.push((window << ones) as u8 | ((1u16 << ones) - 1) as u8);
        }
    }

    /// Letters by code length, then value.
    fn letters(&self) -> Vec<u8> {
        let mut letters: Vec<u8> =
            (0..=u8::MAX).filter(|&l| self.bits[usize::from(l)] > 0).collect();
        letters.sort_by_key(|&letter| self.bits[usize::from(letter)]);
        letters
    }
}

/// The depth of each symbol in the Huffman tree.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "encodes data of this process"
)]
fn lengths(weights: &[(u64, usize)]) -> Vec<u8> {
    let mut parents = vec![0usize; 2 * weights.len() - 1];
    let mut rarest: BinaryHeap<Reverse<(u64, usize)>> =
        (0..).zip(weights).map(|(node, weight)| Reverse((weight.0, node))).collect();
    let mut next = weights.len();
    while let Some(Reverse(first)) = rarest.pop()
        && let Some(Reverse(second)) = rarest.pop()
    {
        (parents[first.1], parents[second.1]) = (next, next);
        rarest.push(Reverse((first.0 + second.0, next)));
        next += 1;
    }
    let mut depths = vec![0u8; parents.len()];
    for node in (0..parents.len() - 1).rev() {
        depths[node] = depths[parents[node]].saturating_add(1);
    }
    depths.truncate(weights.len());
    depths
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counts(texts: &[Vec<u8>]) -> [u64; 256] {
        let mut counts = [0; 256];
        texts.iter().flatten().for_each(|&letter| counts[usize::from(letter)] += 1);
        counts
    }

    fn letters(code: &LetterCode) -> Letters {
        let mut bytes = Vec::new();
        code.encode(7, &mut bytes);
        let mut input = bytes.as_slice();
        let letters = Letters::take(&mut input).unwrap();
        assert!(input.is_empty() && letters.bytes_min == 7);
        letters
    }

    proptest! {
        #[test]
        fn texts_are_decoded(
            texts in prop::collection::vec(prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40),
                prop::collection::vec(b'a'..b'e', 0..40),
            ], 1..20),
            skew in prop::collection::vec((any::<u8>(), 0u32..50), 0..20),
        ) {
            let mut counts = counts(&texts);
            skew.iter().for_each(|&(letter, bits)| counts[usize::from(letter)] += 1 << bits);
            let Some(code) = LetterCode::new(&counts) else {
                prop_assert!(counts.iter().all(|c| *c > 0) || counts.iter().all(|c| *c == 0));
                return Ok(());
            };
            let letters = letters(&code);
            for text in &texts {
                let (mut coded, mut again) = (Vec::new(), Vec::new());
                code.encode_text(text, &mut coded);
                letters.decode(&coded, &mut again);
                prop_assert_eq!(&again, text);
            }
        }

        #[test]
        fn any_bytes_decode_or_fail(
            bytes in prop::collection::vec(0u8..60, 0..200),
            coded in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            if let Some(letters) = Letters::take(&mut bytes.as_slice()) {
                let mut out = Vec::new();
                letters.decode(&coded, &mut out);
                prop_assert!(out.len() <= coded.len() * 8);
            }
        }
    }

    #[test]
    fn hexadecimal_takes_little_more_than_half() {
        let text: Vec<u8> = (0..3_200).map(|at| b"0123456789abcdef"[at % 16]).collect();
        let counts = counts(std::slice::from_ref(&text));
        let code = LetterCode::new(&counts).unwrap();
        assert!(
            (1_600..1_750).contains(&code.coded_bytes(&counts)),
            "{}",
            code.coded_bytes(&counts)
        );
    }
}
