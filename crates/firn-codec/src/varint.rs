//! Variable-length integers, and reading of fields from the front of bytes that may be damaged.
//!
//! ```
//! use firn_codec::varint::{encode_zigzag, take_zigzag};
//!
//! let mut bytes = Vec::new();
//! encode_zigzag(-300, &mut bytes);
//! let mut input = bytes.as_slice();
//! assert_eq!(take_zigzag(&mut input, "delta").unwrap(), -300);
//! assert!(input.is_empty());
//! ```

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use firn_model::{Error, Result};

pub use firn_model::encode_varint;

/// Maximum number of bytes of a varint.
pub const VARINT_BYTES_MAX: usize = 10;

/// Maps small magnitudes of either sign to small numbers: 0, -1, 1, -2 become 0, 1, 2, 3.
#[inline]
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
#[inline]
pub fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ ((value & 1) as i64).wrapping_neg()
}

/// Appends a signed number as the varint of its [`zigzag`].
#[inline]
pub fn encode_zigzag(value: i64, out: &mut Vec<u8>) {
    encode_varint(zigzag(value), out);
}

/// Number of bytes that [`encode_varint`] appends for `value`.
#[inline]
pub fn varint_bytes(value: u64) -> usize {
    70usize.wrapping_sub((value | 1).leading_zeros() as usize) / 7
}

/// Takes a varint from the front of `input`.
///
/// # Errors
/// `Corrupt` if it is truncated or exceeds 64 bits; `field` names it.
#[inline]
pub fn take_varint(input: &mut &[u8], field: &'static str) -> Result<u64> {
    // Most fields are below 128.
    if let [byte, rest @ ..] = *input
        && *byte < 0x80
    {
        *input = rest;
        return Ok(u64::from(*byte));
    }
    firn_model::decode_varint(input).ok_or_else(|| cut(field))
}

/// Takes a varint that must be at most `max`.
///
/// # Errors
/// `Corrupt` if it is truncated or exceeds `max`.
#[inline]
pub fn take_count(input: &mut &[u8], max: usize, field: &'static str) -> Result<usize> {
    let count = take_varint(input, field)?;
    match usize::try_from(count) {
        Ok(count) if count <= max => Ok(count),
        _ => Err(corrupt(format!("{field} {count} exceeds {max}"))),
    }
}

/// Takes a signed number.
///
/// # Errors
/// `Corrupt` if it is truncated.
#[inline]
pub fn take_zigzag(input: &mut &[u8], field: &'static str) -> Result<i64> {
    take_varint(input, field).map(unzigzag)
}

/// Takes one byte.
///
/// # Errors
/// `Corrupt` if there is none.
#[inline]
pub fn take_u8(input: &mut &[u8], field: &'static str) -> Result<u8> {
    let (&byte, rest) = input.split_first().ok_or_else(|| cut(field))?;
    *input = rest;
    Ok(byte)
}

/// Takes `count` bytes.
///
/// # Errors
/// `Corrupt` if there are fewer.
#[inline]
pub fn take_bytes<'a>(input: &mut &'a [u8], count: usize, field: &'static str) -> Result<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(count).ok_or_else(|| cut(field))?;
    *input = rest;
    Ok(taken)
}

/// Takes a little-endian number of eight bytes.
///
/// # Errors
/// `Corrupt` if there are fewer.
#[inline]
pub fn take_u64(input: &mut &[u8], field: &'static str) -> Result<u64> {
    let (taken, rest) = input.split_first_chunk::<8>().ok_or_else(|| cut(field))?;
    *input = rest;
    Ok(u64::from_le_bytes(*taken))
}

#[cold]
pub(crate) fn cut(field: &'static str) -> Error {
    corrupt(format!("{field} is truncated"))
}

/// An error in encoded bytes. The caller knows the file and adds it with the offset.
#[cold]
pub(crate) fn corrupt(what: impl Into<String>) -> Error {
    Error::corrupt("encoded bytes", 0, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for shift in 0..64 {
            for value in [1i64 << shift, -(1i64 << shift.min(62)), (1i64 << shift).wrapping_sub(1)]
            {
                let mut out = Vec::new();
                encode_zigzag(value, &mut out);
                assert_eq!(out.len(), varint_bytes(zigzag(value)));
                let mut input = out.as_slice();
                assert_eq!(take_zigzag(&mut input, "value").unwrap(), value);
                assert!(input.is_empty());
                assert!(take_zigzag(&mut &out[..out.len() - 1], "value").is_err());
            }
        }
        assert_eq!([0, -1, 1, -2].map(zigzag), [0, 1, 2, 3]);
        assert!(take_varint(&mut [0xff; 11].as_slice(), "value").is_err());
        assert!(take_count(&mut [9].as_slice(), 8, "count").is_err());
    }
}
