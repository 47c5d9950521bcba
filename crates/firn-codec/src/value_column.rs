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

#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

mod decimals;
mod xor;

use std::ops::Range;

use firn_model::Result;

use self::decimals::{Decimals, NearDecimals};
use crate::decimal::Scale;
use crate::effort::Effort;
use crate::integers::{self, ColumnKind, decode_integers, decode_integers_of, encode_integers};
use crate::postings::{Postings, encode_postings};
use crate::varint::{
    corrupt, cut, encode_varint, encode_zigzag, take_bytes, take_count, take_u8, take_u64,
    take_zigzag,
};

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

/// Columns with more bits per value are candidates for a dictionary.
const DICTIONARY_BITS_MIN: usize = 7;

/// Depth of nesting: repeats of a dictionary of numbers.
const DEPTH_MAX: u32 = 2;

/// Appends `values` (at least one).
#[expect(clippy::indexing_slicing, reason = "encodes values of the caller, not stored bytes")]
pub(crate) fn encode_values(values: &[f64], effort: Effort, out: &mut Vec<u8>) {
    let changes = count_changes(values);
    if changes == 0 {
        return encode_constant(values[0], out);
    }
    // A repeat costs at most one bit, therefore frequent repeats pay for any values.
    let repeats = values.len() - 1 - changes;
    match effort {
        Effort::Fast if repeats * 3 >= values.len() * 2 => encode_repeats(values, effort, out),
        Effort::Small if repeats * 6 >= values.len() => {
            let start = out.len();
            encode_each(values, effort, out);
            let middle = out.len();
            encode_repeats(values, effort, out);
            keep_smaller(start, middle, out);
        }
        _ => encode_each(values, effort, out),
    }
}

/// Describes the form of the column in `bytes`.
pub(crate) fn codec_of(bytes: &[u8]) -> String {
    let (tag, rest) = bytes.split_first().map_or((0, bytes), |(tag, rest)| (*tag, rest));
    let name = match tag {
        0..=22 => return format!("decimals / 10^{tag}: {}", integers::codec_of(rest)),
        32..=54 => return format!("decimals * 10^-{}: {}", tag - 32, integers::codec_of(rest)),
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
        REPEATS if depth > 0 => decode_repeats(input, count),
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

/// Number of values that differ from the previous one.
#[expect(clippy::indexing_slicing, reason = "encodes values of the caller, not stored bytes")]
fn count_changes(values: &[f64]) -> usize {
    values.windows(2).filter(|pair| pair[0].to_bits() != pair[1].to_bits()).count()
}

fn encode_constant(value: f64, out: &mut Vec<u8>) {
    match Scale::find(value) {
        Some((Scale::ONE, d)) => {
            out.push(CONSTANT_INTEGER);
            encode_zigzag(d, out);
        }
        Some((scale, d)) => {
            out.push(CONSTANT_DECIMAL);
            out.push(scale.as_u8());
            encode_zigzag(d, out);
        }
        None => {
            out.push(CONSTANT_BITS);
            out.extend_from_slice(&value.to_bits().to_le_bytes());
        }
    }
}

/// Encodes the entries at which values change, and the values there.
#[expect(clippy::indexing_slicing, reason = "encodes values of the caller, not stored bytes")]
fn encode_repeats(values: &[f64], effort: Effort, out: &mut Vec<u8>) {
    let mut kept = vec![values[0]];
    let mut entries = Vec::new();
    for (idx, pair) in values.windows(2).enumerate() {
        if pair[0].to_bits() != pair[1].to_bits() {
            kept.push(pair[1]);
            entries.push(idx as u64 + 1);
        }
    }
    out.push(REPEATS);
    encode_postings(&entries, out);
    encode_each(&kept, effort, out);
}

/// As [`decode_values`] for repeats; `bytes` start after the tag. Counts the changes before `kept`,
/// ignores those after it, and decodes only the values inside.
fn decode_repeats_of(
    bytes: &[u8],
    count: usize,
    kept: Range<usize>,
    scratch: &mut Vec<u64>,
    out: &mut Vec<f64>,
) -> Result<()> {
    let mut input = bytes;
    let changes = Postings::take(&mut input)?;
    if changes.len() >= count as u64 || input.first() == Some(&REPEATS) {
        return Err(corrupt(format!("{} changes of {count} values", changes.len())));
    }
    let mut ends = changes.iter().map(|end| usize::try_from(end).unwrap_or(usize::MAX));
    let mut first = 0;
    let mut next = ends.next();
    while next.is_some_and(|end| end <= kept.start) {
        first += 1;
        next = ends.next();
    }
    let mut borders = Vec::new();
    while let Some(end) = next.filter(|&end| end < kept.end) {
        borders.push(end);
        next = ends.next();
    }
    let mut distinct = Vec::with_capacity(borders.len() + 1);
    let runs = first..first + borders.len() + 1;
    decode_values(input, changes.len() as usize + 1, runs, scratch, &mut distinct)?;
    let mut start = kept.start;
    for (&value, end) in distinct.iter().zip(borders.into_iter().chain([kept.end])) {
        let length = end.checked_sub(start).filter(|&length| length > 0);
        let length = length.ok_or_else(|| corrupt("repeat exceeds its column"))?;
        out.extend(std::iter::repeat_n(value, length));
        start = end;
    }
    Ok(())
}

fn decode_repeats(input: &mut &[u8], count: usize) -> Result<Vec<f64>> {
    let changes = Postings::take(input)?;
    if changes.len() >= count as u64 {
        return Err(corrupt(format!("{} changes of {count} values", changes.len())));
    }
    let distinct = decode_column(input, changes.len() as usize + 1, DEPTH_MAX - 1)?;
    let mut ends = changes.iter().map(usize::try_from).chain([Ok(count)]);
    let mut values = Vec::with_capacity(count);
    for &value in &distinct {
        let end = ends.next().and_then(|end| end.ok());
        let end = end.filter(|end| (values.len() + 1..=count).contains(end));
        values.resize(end.ok_or_else(|| corrupt("repeat exceeds its column"))?, value);
    }
    Ok(values)
}

/// Writes the smallest form without repeats.
fn encode_each(values: &[f64], effort: Effort, out: &mut Vec<u8>) {
    let start = out.len();
    encode_numbers(values, effort, out);
    let middle = out.len();
    if effort == Effort::Small
        && (middle - start) * 8 > values.len() * DICTIONARY_BITS_MIN
        && encode_dictionary(values, effort, out)
    {
        keep_smaller(start, middle, out);
    }
}

/// Writes the distinct values and the index of each value; `false` if most values are distinct.
fn encode_dictionary(values: &[f64], effort: Effort, out: &mut Vec<u8>) -> bool {
    let mut distinct: Vec<i64> = values.iter().map(|value| value.to_bits() as i64).collect();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() * 3 > values.len() * 2 {
        return false;
    }
    let idx_of = |value: &f64| distinct.partition_point(|&bits| bits < value.to_bits() as i64);
    let indexes: Vec<i64> = values.iter().map(|value| idx_of(value) as i64).collect();
    let distinct: Vec<f64> = distinct.iter().map(|&bits| f64::from_bits(bits as u64)).collect();
    let mut column = Vec::new();
    encode_numbers(&distinct, effort, &mut column);
    out.push(DICTIONARY);
    encode_varint(distinct.len() as u64, out);
    encode_varint(column.len() as u64, out);
    out.append(&mut column);
    encode_integers(&indexes, ColumnKind::Values, effort, out);
    true
}

fn decode_dictionary(input: &mut &[u8], count: usize, depth: u32) -> Result<Vec<f64>> {
    let distinct_count = take_count(input, count, "distinct values")?;
    let byte_count = take_count(input, input.len(), "dictionary bytes")?;
    let mut column = take_bytes(input, byte_count, "dictionary")?;
    let distinct = decode_column(&mut column, distinct_count, depth - 1)?;
    let indexes = decode_integers(input, count)?;
    let value = |idx: u64| usize::try_from(idx).ok().and_then(|idx| distinct.get(idx)).copied();
    let values = indexes.into_iter().map(value).collect::<Option<Vec<f64>>>();
    values.ok_or_else(|| corrupt("index exceeds its dictionary"))
}

/// Writes the smallest form that encodes each value independently.
fn encode_numbers(values: &[f64], effort: Effort, out: &mut Vec<u8>) {
    let start = out.len();
    if let Some(decimals) = Decimals::of(values) {
        encode_decimals(&decimals, effort, out);
        // Decimals of few digits are the smallest form; long ones may not be decimals at all.
        let bits = if decimals.exceptions.is_empty() { 24 } else { 4 };
        if (out.len() - start) * 8 < values.len() * bits + 64 {
            return;
        }
    }
    let mut best_end = out.len();
    if let Some(near) = NearDecimals::of(values) {
        out.extend_from_slice(&[NEAR, near.scale.as_u8()]);
        encode_integers(&near.integers, ColumnKind::Values, effort, out);
        encode_integers(&near.errors, ColumnKind::Values, effort, out);
        best_end = keep_smaller(start, best_end, out);
        if (best_end - start) * 8 < values.len() * 24 + 64 {
            return;
        }
    }
    encode_full(values, out);
    keep_smaller(start, best_end, out);
}

/// Keeps the smaller of the two columns in `out[start..]`; the first one ends at `middle` and is
/// ignored if empty. Returns the end of the kept one.
fn keep_smaller(start: usize, middle: usize, out: &mut Vec<u8>) -> usize {
    if middle == start || out.len() - middle < middle - start {
        out.drain(start..middle);
    } else {
        out.truncate(middle);
    }
    out.len()
}

fn encode_decimals(decimals: &Decimals, effort: Effort, out: &mut Vec<u8>) {
    if decimals.exceptions.is_empty() {
        out.push(decimals.scale.as_u8());
    } else {
        out.push(EXCEPTIONS);
        out.push(decimals.scale.as_u8());
        encode_varint(decimals.exceptions.len() as u64, out);
        let mut next = 0;
        for &(idx, bits) in &decimals.exceptions {
            encode_varint((idx - next) as u64, out);
            out.extend_from_slice(&bits.to_le_bytes());
            next = idx + 1;
        }
    }
    encode_integers(&decimals.integers, ColumnKind::Values, effort, out);
}

fn decode_exceptions(input: &mut &[u8], count: usize) -> Result<Vec<f64>> {
    let scale = take_scale(input)?;
    let exception_count = take_count(input, count.min(input.len()), "exceptions")?;
    let mut exceptions = Vec::with_capacity(exception_count);
    let mut next = 0usize;
    for _ in 0..exception_count {
        let idx = next.saturating_add(take_count(input, count, "exception position")?);
        exceptions.push((idx, take_u64(input, "exception")?));
        next = idx + 1;
    }
    let mut values = decimals::values(scale, &decode_integers(input, count)?);
    for (idx, bits) in exceptions {
        let target = values.get_mut(idx);
        *target.ok_or_else(|| corrupt(format!("exception {idx} of {count} values")))? =
            f64::from_bits(bits);
    }
    Ok(values)
}

/// Writes the smallest of the forms for full mantissas.
fn encode_full(values: &[f64], out: &mut Vec<u8>) {
    let start = out.len();
    let all = values.iter().fold(0, |all, value| all | value.to_bits());
    let shift = all.trailing_zeros().min(63);
    let shifted: Vec<i64> = values.iter().map(|value| (value.to_bits() as i64) >> shift).collect();
    out.extend_from_slice(&[SHIFTED_BITS, shift as u8]);
    // Rice codes pay only for small residuals.
    encode_integers(&shifted, ColumnKind::Values, Effort::Fast, out);
    let middle = out.len();
    out.push(XOR);
    xor::encode(values, out);
    let xor_bytes = out.len() - middle;
    let raw_bytes = 1 + values.len() * 8;
    if raw_bytes <= xor_bytes.min(middle - start) {
        out.truncate(start);
        out.push(RAW);
        values.iter().for_each(|value| out.extend_from_slice(&value.to_bits().to_le_bytes()));
    } else if xor_bytes < middle - start {
        out.drain(start..middle);
    } else {
        out.truncate(middle);
    }
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
