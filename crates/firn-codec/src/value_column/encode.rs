//! Encodes value columns: tries the forms that fit and keeps the smallest.

#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "encodes values of the caller, not stored bytes"
)]

use super::decimals::{Decimals, NearDecimals};
use super::{
    CONSTANT_BITS, CONSTANT_DECIMAL, CONSTANT_INTEGER, DICTIONARY, EXCEPTIONS, NEAR, RAW, REPEATS,
    SHIFTED_BITS, XOR, xor,
};
use crate::decimal::Scale;
use crate::effort::Effort;
use crate::integers::{ColumnKind, encode_integers};
use crate::postings::encode_postings;
use crate::varint::{encode_varint, encode_zigzag};

/// Columns with more bits per value are candidates for a dictionary.
const DICTIONARY_BITS_MIN: usize = 7;

/// Appends `values` (at least one).
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

/// Number of values that differ from the previous one.
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
