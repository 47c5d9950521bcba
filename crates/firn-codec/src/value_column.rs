//! Value columns: the doubles of one member, bit for bit, in the smallest of several forms.
//!
//! ```text
//! column    = tag:u8 then
//!   0..63     scale of decimals          integers
//!   64        constant bits              bits:u64
//!   65        constant decimal           scale:u8 zigzag(d)
//!   66        constant integer           zigzag(d)
//!   67        decimals with exceptions   scale:u8 varint(exceptions)
//!                                        (varint(skip) bits:u64)* integers
//!   68        repeats                    postings(entries that differ) column
//!   69        shifted bits               zero bits at the end:u8 integers
//!   70        XOR                        bit stream
//!   71        raw                        bits:u64 each
//!   72        dictionary                 varint(distinct) varint(bytes) column integers
//!   73        near decimals              scale:u8 integers errors
//! ```
//! Monitoring values are decimals and mostly constant: measured over nine scrape targets these
//! forms take 2.3 bits per value, Gorilla takes 5.6 (table in docs/formats/chunk.md). XOR streams
//! remain for full mantissas.
//!
//! Sources: ALP (SIGMOD 2024; decimals with exceptions), Chimp 128 (PVLDB 2022; XOR).

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

mod decimals;
mod encode;
mod xor;

use std::ops::{ControlFlow, Range};

use firn_model::Result;

pub(crate) use self::encode::encode_values;
use crate::decimal::Scale;
use crate::integers::{self, decode_integers, decode_integers_of};
use crate::postings::Postings;
use crate::varint::{corrupt, cut, take_bytes, take_count, take_u8, take_u64, take_zigzag};

const CONSTANT_BITS: u8 = 64;
const CONSTANT_DECIMAL: u8 = 65;
const CONSTANT_INTEGER: u8 = 66;
const EXCEPTIONS: u8 = 67;
const REPEATS: u8 = 68;
const SHIFTED_BITS: u8 = 69;
const XOR: u8 = 70;
const RAW: u8 = 71;
const DICTIONARY: u8 = 72;
const NEAR: u8 = 73;

/// Depth of nesting: repeats of a dictionary of numbers.
const DEPTH_MAX: u32 = 2;

/// Describes the form of the column in `bytes`.
pub(crate) fn codec_of(bytes: &[u8]) -> String {
    let (tag, rest) = bytes.split_first().map_or((0, bytes), |(tag, rest)| (*tag, rest));
    let name = match tag {
        0..=22 => return format!("decimals / 10^{tag}: {}", integers::codec_of(rest)),
        32..=54 => {
            let digits = tag.saturating_sub(32);
            return format!("decimals * 10^-{digits}: {}", integers::codec_of(rest));
        }
        CONSTANT_BITS => "constant bits",
        CONSTANT_DECIMAL => "constant decimal",
        CONSTANT_INTEGER => "constant integer",
        EXCEPTIONS => "decimals with exceptions",
        REPEATS => "repeats",
        SHIFTED_BITS => "shifted bits",
        XOR => "XOR",
        RAW => "raw",
        DICTIONARY => "dictionary",
        NEAR => "near decimals",
        _ => "unknown",
    };
    name.to_owned()
}

/// Decodes a column of `count` values and appends those in `kept` to `out`. Costs little for values
/// outside of `kept`. `scratch` is any buffer.
pub(crate) fn decode_values(
    bytes: &[u8],
    count: usize,
    kept: Range<usize>,
    scratch: &mut Vec<u64>,
    out: &mut Vec<f64>,
) -> Result<()> {
    let mut input = bytes;
    match bytes.first().copied().and_then(Scale::from_u8) {
        Some(scale) => {
            input = input.get(1..).unwrap_or_default();
            decode_integers_of(&mut input, count, kept, scratch)?;
            decimals::extend(scale, scratch, out);
        }
        None if bytes.first() == Some(&REPEATS) => {
            let rest = input.get(1..).unwrap_or_default();
            return decode_repeats_of(rest, count, kept, scratch, out);
        }
        None => {
            let values = decode_column(&mut input, count, DEPTH_MAX)?;
            out.extend_from_slice(values.get(kept).unwrap_or_default());
        }
    }
    if !input.is_empty() {
        return Err(corrupt(format!("value column has {} bytes too many", input.len())));
    }
    Ok(())
}

fn decode_column(input: &mut &[u8], count: usize, depth: u32) -> Result<Vec<f64>> {
    let tag = take_u8(input, "value column")?;
    if let Some(scale) = Scale::from_u8(tag) {
        return Ok(decimals::values(scale, &decode_integers(input, count)?));
    }
    match tag {
        CONSTANT_BITS => Ok(vec![f64::from_bits(take_u64(input, "constant")?); count]),
        CONSTANT_DECIMAL => {
            let scale = take_scale(input)?;
            Ok(vec![scale.value(take_zigzag(input, "constant")?); count])
        }
        CONSTANT_INTEGER => Ok(vec![Scale::ONE.value(take_zigzag(input, "constant")?); count]),
        EXCEPTIONS => decode_exceptions(input, count),
        REPEATS if depth > 0 => decode_repeats(input, count, depth),
        DICTIONARY if depth > 0 => decode_dictionary(input, count, depth),
        SHIFTED_BITS => {
            let shift = take_count(input, 63, "zero bits")?;
            let shifted = decode_integers(input, count)?;
            Ok(shifted.into_iter().map(|bits| f64::from_bits(bits << shift)).collect())
        }
        XOR => xor::decode(input, count),
        NEAR => {
            let scale = take_scale(input)?;
            let integers = decode_integers(input, count)?;
            let errors = decode_integers(input, count)?;
            let pairs = integers.into_iter().zip(errors);
            Ok(pairs.map(|(d, error)| scale.value_with_error(d as i64, error as i64)).collect())
        }
        RAW => {
            if count > input.len() / 8 {
                return Err(cut("raw values"));
            }
            (0..count).map(|_| take_u64(input, "raw value").map(f64::from_bits)).collect()
        }
        _ => Err(corrupt(format!("value column has unknown tag {tag}"))),
    }
}

/// As [`decode_values`] for repeats; `bytes` start after the tag. Counts the changes before `kept`,
/// ignores those after it, and decodes only the values inside.
#[expect(clippy::arithmetic_side_effects, reason = "a list yields at most `run_count - 1` changes")]
fn decode_repeats_of(
    bytes: &[u8],
    count: usize,
    kept: Range<usize>,
    scratch: &mut Vec<u64>,
    out: &mut Vec<f64>,
) -> Result<()> {
    let mut input = bytes;
    let (changes, run_count) = take_changes(&mut input, count)?;
    if input.first() == Some(&REPEATS) {
        return Err(corrupt("repeats of repeats"));
    }
    let (mut first, mut borders) = (0, Vec::new());
    changes.for_each_until(|end| {
        let end = usize::try_from(end).unwrap_or(usize::MAX);
        if end >= kept.end {
            return ControlFlow::Break(());
        }
        match end <= kept.start {
            true => first += 1,
            false => borders.push(end),
        }
        ControlFlow::Continue(())
    })?;
    let runs = first..first + borders.len() + 1;
    let mut distinct = Vec::with_capacity(runs.len());
    decode_values(input, run_count, runs, scratch, &mut distinct)?;
    let mut start = kept.start;
    for (&value, end) in distinct.iter().zip(borders.into_iter().chain([kept.end])) {
        let length = end.checked_sub(start).filter(|&length| length > 0);
        let length = length.ok_or_else(|| corrupt("repeat exceeds its column"))?;
        out.extend(std::iter::repeat_n(value, length));
        start = end;
    }
    Ok(())
}

fn decode_repeats(input: &mut &[u8], count: usize, depth: u32) -> Result<Vec<f64>> {
    let (changes, run_count) = take_changes(input, count)?;
    let distinct = decode_column(input, run_count, depth.saturating_sub(1))?;
    let mut ends = changes.iter().map(usize::try_from).chain([Ok(count)]);
    let mut values = Vec::with_capacity(count);
    for &value in &distinct {
        let end = ends.next().and_then(|end| end.ok());
        let end = end.filter(|&end| values.len() < end && end <= count);
        values.resize(end.ok_or_else(|| corrupt("repeat exceeds its column"))?, value);
    }
    Ok(values)
}

/// Takes the entries at which values change; returns them with the number of runs of equal values.
#[expect(clippy::arithmetic_side_effects, reason = "the sum is at most `count`")]
fn take_changes<'a>(input: &mut &'a [u8], count: usize) -> Result<(Postings<'a>, usize)> {
    let changes = Postings::take(input)?;
    match usize::try_from(changes.len()) {
        Ok(change_count) if change_count < count => Ok((changes, change_count + 1)),
        _ => Err(corrupt(format!("{} changes of {count} values", changes.len()))),
    }
}

fn decode_dictionary(input: &mut &[u8], count: usize, depth: u32) -> Result<Vec<f64>> {
    let distinct_count = take_count(input, count, "distinct values")?;
    let byte_count = take_count(input, input.len(), "dictionary bytes")?;
    let mut column = take_bytes(input, byte_count, "dictionary")?;
    let distinct = decode_column(&mut column, distinct_count, depth.saturating_sub(1))?;
    let indexes = decode_integers(input, count)?;
    let value = |idx: u64| usize::try_from(idx).ok().and_then(|idx| distinct.get(idx)).copied();
    let values = indexes.into_iter().map(value).collect::<Option<Vec<f64>>>();
    values.ok_or_else(|| corrupt("index exceeds its dictionary"))
}

fn decode_exceptions(input: &mut &[u8], count: usize) -> Result<Vec<f64>> {
    let scale = take_scale(input)?;
    let exception_count = take_count(input, count.min(input.len()), "exceptions")?;
    let mut exceptions = Vec::with_capacity(exception_count);
    let mut next = 0usize;
    for _ in 0..exception_count {
        let idx = next.saturating_add(take_count(input, count, "exception position")?);
        exceptions.push((idx, take_u64(input, "exception")?));
        next = idx.saturating_add(1);
    }
    let mut values = decimals::values(scale, &decode_integers(input, count)?);
    for (idx, bits) in exceptions {
        let target = values.get_mut(idx);
        *target.ok_or_else(|| corrupt(format!("exception {idx} of {count} values")))? =
            f64::from_bits(bits);
    }
    Ok(values)
}

fn take_scale(input: &mut &[u8]) -> Result<Scale> {
    let number = take_u8(input, "scale")?;
    Scale::from_u8(number).ok_or_else(|| corrupt(format!("unknown scale {number}")))
}

#[cfg(test)]
mod tests {
    use firn_model::STALE_NAN;
    use proptest::prelude::*;

    use super::*;
    use crate::effort::Effort;
    use crate::integers::{ColumnKind, encode_integers};
    use crate::postings::encode_postings;
    use crate::varint::encode_varint;

    fn decode(bytes: &[u8], count: usize, kept: Range<usize>) -> Result<Vec<f64>> {
        let mut values = Vec::new();
        decode_values(bytes, count, kept, &mut Vec::new(), &mut values).map(|()| values)
    }

    /// Encodes, decodes, truncates and extends a column; returns the tag of its form.
    fn tag_of(values: &[f64], effort: Effort) -> u8 {
        let mut out = Vec::new();
        encode_values(values, effort, &mut out);
        let again = decode(&out, values.len(), 0..values.len()).unwrap();
        for kept in [0..1, values.len() / 3..values.len() / 2, values.len() - 1..values.len()] {
            let part = decode(&out, values.len(), kept.clone()).unwrap();
            assert!(part.iter().map(|v| v.to_bits()).eq(again[kept].iter().map(|v| v.to_bits())));
        }
        let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&again), bits(values));
        for cut in 0..out.len() {
            assert!(
                decode(&out[..cut], values.len(), 0..values.len()).is_err(),
                "{cut} of {out:?}"
            );
        }
        out.push(0);
        assert!(decode(&out, values.len(), 0..values.len()).is_err());
        out[0]
    }

    fn scatter(idx: u64) -> u64 {
        let mixed = (idx + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    /// A full mantissa between 1 and 2.
    fn wild(idx: u64) -> f64 {
        f64::from_bits(scatter(idx) >> 12 | 0x3ff0_0000_0000_0000)
    }

    #[test]
    fn each_form_has_its_data() {
        let column = |f: &dyn Fn(u64) -> f64| (0..300).map(f).collect::<Vec<f64>>();
        let mut sum = 0.0;
        let sums: Vec<f64> = (0..300)
            .map(|idx| {
                sum += (idx % 7) as f64 * 0.01 + 0.01;
                sum
            })
            .collect();
        let check = |values: &[f64], tag| {
            assert_eq!(tag_of(values, Effort::Small), tag);
            tag_of(values, Effort::Fast);
        };
        check(&column(&|_| 3.0), CONSTANT_INTEGER);
        check(&column(&|_| 0.25), CONSTANT_DECIMAL);
        check(&column(&|_| STALE_NAN), CONSTANT_BITS);
        check(&column(&|idx| idx as f64 * 7.0), 0);
        check(&column(&|idx| (idx * idx % 1009) as f64 / 100.0), 2);
        check(&column(&|idx| if idx == 30 { STALE_NAN } else { (idx * 3) as f64 }), EXCEPTIONS);
        check(&column(&|idx| wild(idx / 50)), REPEATS);
        check(&column(&|idx| f64::from(wild(idx) as f32)), SHIFTED_BITS);
        check(&column(&|idx| wild(idx * idx % 13)), DICTIONARY);
        check(&sums, NEAR);
        check(&column(&|idx| f64::from_bits(scatter(idx))), RAW);
        assert_eq!(tag_of(&column(&|idx| wild(idx * idx % 100)), Effort::Fast), XOR);
    }

    /// Each level of repeats takes three bytes. Repeats once ignored the depth around them, and a
    /// damaged column of 300 KB overflowed the stack.
    #[test]
    fn repeats_in_a_dictionary_nest_to_a_bounded_depth() {
        let repeats = |levels: usize| {
            let mut change = vec![REPEATS];
            encode_postings(&[1], &mut change);
            let mut column = change.repeat(levels);
            encode_values(&[1.0, 2.0], Effort::Fast, &mut column);
            let mut out = vec![DICTIONARY];
            encode_varint(2, &mut out);
            encode_varint(column.len() as u64, &mut out);
            out.append(&mut column);
            encode_integers(&[0, 1], ColumnKind::Values, Effort::Fast, &mut out);
            decode(&out, 2, 0..2)
        };
        assert_eq!(repeats(1).unwrap(), [1.0, 2.0]);
        assert!(repeats(2).is_err());
        assert!(repeats(100_000).is_err());
    }

    #[test]
    fn repeats_whose_list_of_changes_is_cut_are_refused() {
        // The header states three changes, at entry 1 and after two gaps; only one gap follows.
        let column = [REPEATS, 3 << 2, 1, 1, 0, CONSTANT_INTEGER, 2];
        for kept in [0..1, 0..10, 2..3] {
            assert_eq!(decode(&column, 10, kept.clone()).is_err(), kept.end > 2, "{kept:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(
            tag in prop_oneof![0u8..80, Just(REPEATS), Just(EXCEPTIONS), Just(DICTIONARY)],
            bytes in prop::collection::vec(any::<u8>(), 0..80),
            count in 0usize..500,
        ) {
            let _ = decode(&[&[tag], bytes.as_slice()].concat(), count, count / 3..count);
        }
    }
}
