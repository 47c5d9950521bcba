//! Packs residuals: one bit width with patches for wider values, or a Rice code.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use std::ops::Range;

use firn_model::Result;

use crate::bits::{
    BitReader, BitWriter, bit_width, for_each_packed, get_packed, low_bits, pack, take_packed,
    unpack_some,
};
use crate::varint::{corrupt, encode_varint, take_count, take_u8, take_varint};

/// Larger quotients are escaped: this many zeros, a one, and all 64 bits.
const QUOTIENT_MAX: u64 = 24;

/// The packing of residuals.
#[derive(Clone, Copy, Debug)]
pub(super) enum Packing {
    /// The low `width` bits of each; the high bits of `patch_count` of them follow separately.
    Packed { width: u32, patch_count: usize },
    /// Quotients by `2^k` in unary, remainders in `k` bits.
    Rice { k: u32 },
}

impl Packing {
    /// The smallest packing for a histogram of bit widths, and its size in bits.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing,
        reason = "encodes values of the caller, not stored bytes"
    )]
    pub(super) fn cheapest(widths: &[u32; 65]) -> (Packing, usize) {
        let count: u32 = widths.iter().sum();
        let mut best = (Packing::Packed { width: 64, patch_count: 0 }, usize::MAX);
        // The best width occurs in the histogram. Going down from the widest, wider values become
        // patches.
        let mut wider = [(0u32, 0u32); 65];
        let (mut wider_len, mut patch_count) = (0, 0);
        let widest = widths.iter().rposition(|&count| count > 0).unwrap_or(0);
        for width in (0..=widest as u32).rev() {
            let here = widths[width as usize];
            if here == 0 {
                continue;
            }
            let patch_bits: u32 = wider[..wider_len]
                .iter()
                .map(|&(wide, count)| count * (8 + (wide - width).div_ceil(7) * 8))
                .sum();
            let bits = count as usize * width as usize + patch_bits as usize;
            if bits < best.1 {
                best = (Packing::Packed { width, patch_count: patch_count as usize }, bits);
            }
            // More patches than an eighth never pay.
            wider[wider_len] = (width, here);
            wider_len += 1;
            patch_count += here;
            if patch_count * 8 > count + 64 {
                break;
            }
        }
        best
    }

    /// The smallest Rice packing near the mean of `count` values, and its size in bits. The sum of
    /// the residuals is `sum`.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "encodes values of the caller, not stored bytes"
    )]
    pub(super) fn cheapest_rice(sum: u64, count: usize, residuals: &[u64]) -> (Packing, usize) {
        let mean = sum / count.max(1) as u64;
        let near = bit_width(mean).min(40);
        let ks = [near.saturating_sub(1), near, near + 1];
        let costs = ks.map(|k| {
            let cost = |residual: &u64| match residual >> k {
                quotient @ 0..QUOTIENT_MAX => quotient as usize + 1 + k as usize,
                _ => QUOTIENT_MAX as usize + 1 + 64,
            };
            residuals.iter().map(cost).sum::<usize>()
        });
        let best = costs.iter().zip(ks).min().map_or((0, 0), |(&cost, k)| (cost, k));
        (Packing::Rice { k: best.1 }, best.0)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "encodes values of the caller, not stored bytes"
    )]
    pub(super) fn encode(&self, residuals: &[u64], out: &mut Vec<u8>) {
        match *self {
            Packing::Packed { width, patch_count } => {
                out.push(width as u8);
                pack(residuals.iter().copied(), width, out);
                if patch_count > 0 {
                    encode_patches(residuals, width, patch_count, out);
                }
            }
            Packing::Rice { k } => {
                out.push(k as u8);
                let mut writer = BitWriter::new(out);
                for &residual in residuals {
                    let quotient = residual >> k;
                    if quotient < QUOTIENT_MAX {
                        writer.write_unary(quotient);
                        writer.write(residual, k);
                    } else {
                        writer.write_unary(QUOTIENT_MAX);
                        writer.write(residual, 64);
                    }
                }
                writer.finish();
            }
        }
    }
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "encodes values of the caller, not stored bytes"
)]
fn encode_patches(residuals: &[u64], width: u32, patch_count: usize, out: &mut Vec<u8>) {
    encode_varint(patch_count as u64, out);
    let mut next = 0;
    for (idx, &residual) in residuals.iter().enumerate() {
        if bit_width(residual) > width {
            encode_varint((idx - next) as u64, out);
            encode_varint(residual >> width, out);
            next = idx + 1;
        }
    }
}

/// Takes `count` residuals from the front of `input` and appends them to `out`. A Rice stream must
/// be the end of the input.
pub(super) fn decode_residuals(
    input: &mut &[u8],
    count: usize,
    rice: bool,
    patched: bool,
    out: &mut Vec<u64>,
) -> Result<()> {
    if rice {
        let k = u32::from(take_u8(input, "residual width")?);
        return decode_rice(input, count, k, out);
    }
    let packed = PackedResiduals::take(input, count)?;
    let start = out.len();
    unpack_some(packed.bytes, 0, count, packed.width, out);
    if patched {
        let residuals = out.get_mut(start..).unwrap_or_default();
        packed.for_each_patch(input, |idx, high| {
            if let Some(residual) = residuals.get_mut(idx) {
                *residual |= high;
            }
        })?;
    }
    Ok(())
}

/// Takes `count` packed residuals from the front of `input`, appends those in `kept` to `out`, and
/// returns the sum of `delta` over those before.
pub(super) fn decode_some(
    input: &mut &[u8],
    count: usize,
    patched: bool,
    kept: Range<usize>,
    delta: impl Fn(u64) -> u64,
    out: &mut Vec<u64>,
) -> Result<u64> {
    let packed = PackedResiduals::take(input, count)?;
    let PackedResiduals { bytes, width, .. } = packed;
    let mut sum = 0u64;
    for_each_packed(bytes, 0, kept.start, width, |low| sum = sum.wrapping_add(delta(low)));
    let start = out.len();
    unpack_some(bytes, kept.start, kept.end, width, out);
    if patched {
        let residuals = out.get_mut(start..).unwrap_or_default();
        packed.for_each_patch(input, |idx, high| match idx.checked_sub(kept.start) {
            Some(kept_idx) => {
                if let Some(residual) = residuals.get_mut(kept_idx) {
                    *residual |= high;
                }
            }
            None => {
                let low = get_packed(bytes, idx, width);
                sum = sum.wrapping_add(delta(low | high).wrapping_sub(delta(low)));
            }
        })?;
    }
    Ok(sum)
}

/// Residuals of one width; patches may add high bits.
struct PackedResiduals<'a> {
    bytes: &'a [u8],
    width: u32,
    count: usize,
}

impl<'a> PackedResiduals<'a> {
    fn take(input: &mut &'a [u8], count: usize) -> Result<PackedResiduals<'a>> {
        let width = u32::from(take_u8(input, "residual width")?);
        Ok(PackedResiduals { bytes: take_packed(input, count, width)?, width, count })
    }

    /// Takes the patches and calls `each` with the index and the shifted high bits of each.
    #[expect(clippy::arithmetic_side_effects, reason = "`idx` is below `count`")]
    fn for_each_patch(&self, input: &mut &[u8], mut each: impl FnMut(usize, u64)) -> Result<()> {
        let patch_count = take_count(input, self.count, "patches")?;
        let mut next = 0usize;
        for _ in 0..patch_count {
            let idx = next.saturating_add(take_count(input, self.count, "patch position")?);
            let high = take_varint(input, "patch")?;
            if idx >= self.count {
                return Err(corrupt(format!("patch of value {idx} of {}", self.count)));
            }
            each(idx, if self.width < 64 { high << self.width } else { 0 });
            next = idx + 1;
        }
        Ok(())
    }
}

fn decode_rice(input: &mut &[u8], count: usize, k: u32, residuals: &mut Vec<u64>) -> Result<()> {
    // Each value takes at least one bit.
    if k > 64 || count > input.len().saturating_mul(8) {
        return Err(corrupt(format!("Rice stream of {count} values with parameter {k}")));
    }
    residuals.reserve(count);
    let mut reader = BitReader::new(input);
    for _ in 0..count {
        let quotient = reader.read_unary()?;
        residuals.push(if quotient < QUOTIENT_MAX {
            (if k < 64 { quotient << k } else { 0 }) | (reader.read(k)? & low_bits(k))
        } else {
            reader.read(64)?
        });
    }
    *input = reader.rest();
    Ok(())
}
