//! Integers of variable length, and taking fields from the front of bytes that may be cut or wrong.

use firn_model::{Error, Result};

pub use firn_model::encode_varint;

/// The longest varint.
pub const VARINT_BYTES_MAX: usize = 10;

/// Maps small magnitudes of either sign to small numbers: 0, -1, 1, -2 become 0, 1, 2, 3.
#[inline]
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
#[inline]
pub fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Appends a signed number as the varint of its [`zigzag`].
#[inline]
pub fn encode_zigzag(value: i64, out: &mut Vec<u8>) {
    encode_varint(zigzag(value), out);
}

/// How many bytes [`encode_varint`] appends for `value`.
#[inline]
pub fn varint_bytes(value: u64) -> usize {
    (70 - (value | 1).leading_zeros() as usize) / 7
}

/// Takes a varint from the front of `input`.
///
/// # Errors
/// `Corrupt` if it is cut short or over 64 bits; `what` names the field.
#[inline]
pub fn take_varint(input: &mut &[u8], what: &'static str) -> Result<u64> {
    // Nearly all fields are under 128.
    if let [byte, rest @ ..] = *input
        && *byte < 0x80
    {
        *input = rest;
        return Ok(u64::from(*byte));
    }
    firn_model::decode_varint(input).ok_or_else(|| cut(what))
}

/// Takes a varint that must fit `usize` and be at most `max`.
///
/// # Errors
/// `Corrupt` if it is cut short or over `max`.
#[inline]
pub fn take_count(input: &mut &[u8], max: usize, what: &'static str) -> Result<usize> {
    let count = take_varint(input, what)?;
    match usize::try_from(count) {
        Ok(count) if count <= max => Ok(count),
        _ => Err(corrupt(format!("{what} {count} is over {max}"))),
    }
}

/// Takes a signed number.
///
/// # Errors
/// `Corrupt` if it is cut short.
#[inline]
pub fn take_zigzag(input: &mut &[u8], what: &'static str) -> Result<i64> {
    take_varint(input, what).map(unzigzag)
}

/// Takes one byte.
///
/// # Errors
/// `Corrupt` if there is none.
#[inline]
pub fn take_u8(input: &mut &[u8], what: &'static str) -> Result<u8> {
    let (&byte, rest) = input.split_first().ok_or_else(|| cut(what))?;
    *input = rest;
    Ok(byte)
}

/// Takes `count` bytes.
///
/// # Errors
/// `Corrupt` if there are fewer.
#[inline]
pub fn take_bytes<'a>(input: &mut &'a [u8], count: usize, what: &'static str) -> Result<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(count).ok_or_else(|| cut(what))?;
    *input = rest;
    Ok(taken)
}

/// Takes eight bytes as a little-endian number.
///
/// # Errors
/// `Corrupt` if there are fewer.
#[inline]
pub fn take_u64(input: &mut &[u8], what: &'static str) -> Result<u64> {
    let (taken, rest) = input.split_first_chunk::<8>().ok_or_else(|| cut(what))?;
    *input = rest;
    Ok(u64::from_le_bytes(*taken))
}

#[cold]
pub(crate) fn cut(what: &'static str) -> Error {
    corrupt(format!("{what} is cut short"))
}

/// An error about encoded bytes whose file only the caller knows; it adds file and offset.
#[cold]
pub(crate) fn corrupt(what: impl Into<String>) -> Error {
    Error::corrupt("encoded bytes", 0, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
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
