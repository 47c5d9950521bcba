//! XOR with an earlier value: the last resort, for full mantissas.
//!
//! ```text
//! stream = first:64 then for each value 2 bits:
//!   00 back:n                                   the value `back + 1` before
//!   01 back:n leading:3 length:6 bits:length    XOR with it, zero bits at both ends left out
//!   10 bits:64 - leading                        XOR with the previous value, previous leading
//!   11 leading:3 bits:64 - leading              XOR with the previous value
//! ```
//! `n` is the number of bits of the count of values, at most 7. `leading` selects 0, 8, 12, 16, 18,
//! 20, 22 or 24 zero bits; `length` 0 means 64. Source: Chimp 128 (Liakos et al., PVLDB 2022).

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use firn_model::Result;

use crate::bits::{BitReader, BitWriter, bit_width, low_bits};
use crate::varint::{corrupt, take_u64};

const LEADING: [u32; 8] = [0, 8, 12, 16, 18, 20, 22, 24];
const BACK_BITS_MAX: u32 = 7;

/// Appends the stream of `values` (at least one).
#[expect(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "encodes values of the caller, not stored bytes"
)]
pub(super) fn encode(values: &[f64], out: &mut Vec<u8>) {
    out.extend_from_slice(&values[0].to_bits().to_le_bytes());
    let back_bits = back_bits(values.len());
    // An earlier value is found by its low bits: entry + 1 of the last value with the same bits.
    let key_bits = back_bits + 4;
    let mut seen = vec![0u32; 1 << key_bits];
    let key = |bits: u64| (bits & low_bits(key_bits)) as usize;
    seen[key(values[0].to_bits())] = 1;
    let mut writer = BitWriter::new(out);
    let mut last_leading = usize::MAX;
    for idx in 1..values.len() {
        let bits = values[idx].to_bits();
        let candidate = seen[key(bits)] as usize;
        seen[key(bits)] = idx as u32 + 1;
        let candidate = (candidate > 0 && idx - (candidate - 1) <= 1 << back_bits)
            .then(|| (idx - candidate, bits ^ values[candidate - 1].to_bits()));
        if let Some((back, 0)) = candidate {
            writer.write(0, 2);
            writer.write(back as u64, back_bits);
            last_leading = usize::MAX;
            continue;
        }
        let previous = bits ^ values[idx - 1].to_bits();
        let leading = leading_class(previous);
        let again = last_leading <= leading && LEADING[leading] - LEADING[last_leading] < 4;
        let plain_leading = if again { last_leading } else { leading };
        let plain_bits = 64 - LEADING[plain_leading] + if again { 0 } else { 3 };
        if let Some((back, xor)) = candidate {
            let class = leading_class(xor);
            let zeros = xor.trailing_zeros();
            let length = 64 - LEADING[class] - zeros;
            if back_bits + 9 + length < plain_bits {
                writer.write(1, 2);
                writer.write(back as u64, back_bits);
                writer.write(class as u64, 3);
                writer.write(u64::from(length), 6);
                writer.write(xor >> zeros, length);
                last_leading = usize::MAX;
                continue;
            }
        }
        if again {
            writer.write(2, 2);
        } else {
            writer.write(3, 2);
            writer.write(leading as u64, 3);
        }
        writer.write(previous, 64 - LEADING[plain_leading]);
        last_leading = plain_leading;
    }
    writer.finish();
}

/// Takes a stream of `count` values; it must be all of `input`.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "hot; offsets and lengths have at most 7 bits, LEADING eight entries of at most 24"
)]
pub(super) fn decode(input: &mut &[u8], count: usize) -> Result<Vec<f64>> {
    let mut last = take_u64(input, "first value")?;
    // Each value takes at least two bits.
    if count > input.len().saturating_mul(4) + 1 {
        return Err(corrupt(format!("XOR stream of {count} values in {} bytes", input.len())));
    }
    let back_bits = back_bits(count);
    let mut reader = BitReader::new(input);
    let mut values = Vec::with_capacity(count);
    values.push(f64::from_bits(last));
    let mut leading = 0;
    for idx in 1..count {
        let form = reader.read(2)?;
        let mut base = last;
        if form < 2 {
            let back = reader.read(back_bits)? as usize;
            let earlier = idx.checked_sub(back + 1).and_then(|idx| values.get(idx));
            base = earlier.ok_or_else(|| corrupt("XOR with a value before the first"))?.to_bits();
        }
        let xor = match form {
            0 => 0,
            1 => {
                let zeros = LEADING[reader.read(3)? as usize & 7];
                let length = match reader.read(6)? as u32 {
                    0 => 64,
                    length => length,
                };
                let shift = 64u32.checked_sub(zeros + length);
                let shift = shift.ok_or_else(|| corrupt("XOR of more than 64 bits"))?;
                reader.read(length)? << shift
            }
            2 => reader.read(64 - leading)?,
            _ => {
                leading = LEADING[reader.read(3)? as usize & 7];
                reader.read(64 - leading)?
            }
        };
        last = base ^ xor;
        values.push(f64::from_bits(last));
    }
    *input = reader.rest();
    Ok(values)
}

fn back_bits(count: usize) -> u32 {
    bit_width(count.saturating_sub(1) as u64).min(BACK_BITS_MAX)
}

/// The largest class of [`LEADING`] that does not exceed the leading zeros of `xor`.
fn leading_class(xor: u64) -> usize {
    let zeros = xor.leading_zeros();
    LEADING.iter().rposition(|&class| class <= zeros).unwrap_or(0)
}
