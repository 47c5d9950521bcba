//! Packed numbers of one width, and bit streams. Least significant bit first.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use firn_model::Result;

use crate::varint::cut;

/// A mask of the low `width` bits.
#[inline]
#[expect(
    clippy::arithmetic_side_effects,
    reason = "`width` is below 64 where it shifts, and a power of two is at least 1"
)]
pub fn low_bits(width: u32) -> u64 {
    if width >= 64 { u64::MAX } else { (1 << width) - 1 }
}

/// Number of bits that `value` needs.
#[inline]
#[expect(clippy::arithmetic_side_effects, reason = "a number has at most 64 leading zeros")]
pub fn bit_width(value: u64) -> u32 {
    64 - value.leading_zeros()
}

/// Number of bytes that `count` numbers of `width` bits take.
#[inline]
pub fn packed_bytes(count: usize, width: u32) -> usize {
    count.saturating_mul(width as usize).div_ceil(8)
}

/// Appends bits to a byte vector.
#[derive(Debug)]
pub struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    pending: u64,
    pending_bits: u32,
}

impl<'a> BitWriter<'a> {
    /// A writer that starts at the next byte of `out`.
    pub fn new(out: &'a mut Vec<u8>) -> BitWriter<'a> {
        BitWriter { out, pending: 0, pending_bits: 0 }
    }

    /// Appends the low `width` (at most 64) bits of `value`; higher ones are ignored.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`pending_bits` is below 64 and `width` at most 64"
    )]
    pub fn write(&mut self, value: u64, width: u32) {
        debug_assert!(width <= 64, "width {width}");
        let value = value & low_bits(width);
        self.pending |= value << self.pending_bits;
        let total = self.pending_bits + width;
        if total < 64 {
            self.pending_bits = total;
            return;
        }
        self.out.extend_from_slice(&self.pending.to_le_bytes());
        // Keep the bits that did not fit. With nothing pending they all fitted, and a shift by 64
        // would overflow.
        let written = 64 - self.pending_bits;
        self.pending = if written >= 64 { 0 } else { value >> written };
        self.pending_bits = total - 64;
    }

    /// Appends `count` zero bits and a one bit.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "`count` is below 32 after the loop"
    )]
    pub fn write_unary(&mut self, mut count: u64) {
        while count >= 32 {
            self.write(0, 32);
            count -= 32;
        }
        self.write(1 << count, count as u32 + 1);
    }

    /// Fills the last byte with zero bits.
    #[expect(clippy::indexing_slicing, reason = "encodes values of the caller, not stored bytes")]
    pub fn finish(self) {
        let bytes = self.pending_bits.div_ceil(8) as usize;
        self.out.extend_from_slice(&self.pending.to_le_bytes()[..bytes]);
    }
}

/// Reads bits from the front of bytes.
#[derive(Clone, Debug)]
pub struct BitReader<'a> {
    bytes: &'a [u8],
    bit_idx: usize,
}

impl<'a> BitReader<'a> {
    /// A reader that starts at the first bit of `bytes`.
    pub fn new(bytes: &'a [u8]) -> BitReader<'a> {
        BitReader { bytes, bit_idx: 0 }
    }

    /// Reads the next `width` (at most 64) bits.
    ///
    /// # Errors
    /// `Corrupt` if fewer bits are left.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`bit_idx` is at most the number of bits, and no input has 2^61 bytes"
    )]
    pub fn read(&mut self, width: u32) -> Result<u64> {
        if width as usize > self.bytes.len() * 8 - self.bit_idx {
            return Err(cut("bit stream"));
        }
        let value = get_bits(self.bytes, self.bit_idx, width);
        self.bit_idx += width as usize;
        Ok(value)
    }

    /// The bytes after the byte that contains the last bit read.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.bit_idx.div_ceil(8)..).unwrap_or_default()
    }

    /// Counts zero bits up to the next one bit, and consumes both.
    ///
    /// # Errors
    /// `Corrupt` if no one bit follows.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "`bit_idx` is at most the number of bits, and no input has 2^61 bytes"
    )]
    pub fn read_unary(&mut self) -> Result<u64> {
        let mut zeros = 0;
        loop {
            let left = self.bytes.len() * 8 - self.bit_idx;
            if left == 0 {
                return Err(cut("bit stream"));
            }
            let width = left.min(56) as u32;
            let window = get_bits(self.bytes, self.bit_idx, width);
            if window != 0 {
                let count = window.trailing_zeros();
                self.bit_idx += count as usize + 1;
                return Ok(zeros + u64::from(count));
            }
            zeros += u64::from(width);
            self.bit_idx += width as usize;
        }
    }
}

/// Appends the low `width` bits of each value back to back; pads the last byte with zero bits.
pub fn pack(values: impl IntoIterator<Item = u64>, width: u32, out: &mut Vec<u8>) {
    let mut writer = BitWriter::new(out);
    if width > 0 {
        values.into_iter().for_each(|value| writer.write(value, width));
    }
    writer.finish();
}

/// Takes `count` numbers of `width` bits from the front of `input` and appends them to `out`.
///
/// # Errors
/// `Corrupt` if `width` is over 64 or bytes are missing; nothing is appended then.
pub fn unpack(input: &mut &[u8], count: usize, width: u32, out: &mut Vec<u64>) -> Result<()> {
    let bytes = take_packed(input, count, width)?;
    unpack_some(bytes, 0, count, width, out);
    Ok(())
}

/// Takes the bytes of `count` numbers of `width` bits from the front of `input`.
pub(crate) fn take_packed<'a>(input: &mut &'a [u8], count: usize, width: u32) -> Result<&'a [u8]> {
    if width > 64 {
        return Err(crate::varint::corrupt(format!("packed width {width} is over 64")));
    }
    crate::varint::take_bytes(input, packed_bytes(count, width), "packed numbers")
}

/// Calls `each` with the numbers `from..to` of `width` bits; `bytes` must contain them.
#[inline]
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "hot loop; the callers check that `bytes` contain the numbers"
)]
pub(crate) fn for_each_packed(
    bytes: &[u8],
    from: usize,
    to: usize,
    width: u32,
    mut each: impl FnMut(u64),
) {
    let width_bits = width as usize;
    if width == 0 {
        (from..to).for_each(|_| each(0));
        return;
    }
    let mask = low_bits(width);
    // An eight-byte window from the number's first byte contains numbers of up to 57 bits.
    let windowed = if width <= 57 && bytes.len() >= 8 {
        (((bytes.len() - 8) * 8 + 7) / width_bits + 1).clamp(from, to)
    } else {
        from
    };
    for idx in from..windowed {
        let bit_idx = idx * width_bits;
        let window = bytes[bit_idx / 8..].first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b));
        each((window >> (bit_idx % 8)) & mask);
    }
    (windowed..to).for_each(|idx| each(get_bits(bytes, idx * width_bits, width)));
}

/// Appends the numbers `from..to` of `width` bits to `out`; `bytes` must contain them.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "the callers check `from <= to` and the length; the buffer was just resized"
)]
pub(crate) fn unpack_some(bytes: &[u8], from: usize, to: usize, width: u32, out: &mut Vec<u64>) {
    let start = out.len();
    out.resize(start + (to - from), 0);
    let mut targets = out[start..].iter_mut();
    for_each_packed(bytes, from, to, width, |value| {
        if let Some(target) = targets.next() {
            *target = value;
        }
    });
}

/// Number `idx` of `width` bits in `bytes`.
pub(crate) fn get_packed(bytes: &[u8], idx: usize, width: u32) -> u64 {
    get_bits(bytes, idx.saturating_mul(width as usize), width)
}

/// Reads `width` bits from `bit_idx` on; bits past the end of `bytes` are zero.
#[inline]
#[expect(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "hot; `shift` is below 8, `taken` is at most either length, and the upper half is dropped"
)]
pub fn get_bits(bytes: &[u8], bit_idx: usize, width: u32) -> u64 {
    let rest = bytes.get(bit_idx / 8..).unwrap_or_default();
    let shift = bit_idx % 8;
    if let Some(window) = rest.first_chunk::<8>()
        && width as usize + shift <= 64
    {
        return (u64::from_le_bytes(*window) >> shift) & low_bits(width);
    }
    let mut window = [0; 16];
    let taken = rest.len().min(16);
    window[..taken].copy_from_slice(&rest[..taken]);
    (u128::from_le_bytes(window) >> shift) as u64 & low_bits(width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_round_trips() {
        for width in 0..=64 {
            for count in [0, 1, 7, 8, 9, 65] {
                let values: Vec<u64> = (0..count)
                    .map(|idx: u64| idx.wrapping_mul(0x9e37_79b9_7f4a_7c15) & low_bits(width))
                    .collect();
                let mut out = vec![0xaa];
                pack(values.iter().copied(), width, &mut out);
                out.push(0xbb);
                let mut input = &out[1..];
                let mut again = Vec::new();
                unpack(&mut input, values.len(), width, &mut again).unwrap();
                assert_eq!(again, values, "width {width}");
                assert_eq!(input, [0xbb]);
                if packed_bytes(values.len(), width) > 0 {
                    let cut = packed_bytes(values.len(), width) - 1;
                    assert!(
                        unpack(&mut &out[1..1 + cut], values.len(), width, &mut again).is_err()
                    );
                }
            }
        }
    }

    #[test]
    fn streams_round_trip() {
        let mut out = Vec::new();
        let mut writer = BitWriter::new(&mut out);
        for idx in 0..200u64 {
            writer.write_unary(idx);
            writer.write(idx, (idx % 65) as u32);
        }
        writer.finish();
        let mut reader = BitReader::new(&out);
        for idx in 0..200u64 {
            assert_eq!(reader.read_unary().unwrap(), idx);
            assert_eq!(reader.read((idx % 65) as u32).unwrap(), idx & low_bits((idx % 65) as u32));
        }
        assert!(reader.read(8).is_err());
        assert!(reader.read_unary().is_err());
    }
}
