//! One changed value of a row, encoded relative to the member's last value.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use firn_model::Result;

use crate::decimal::Scale;
use crate::varint::{
    corrupt, encode_varint, encode_zigzag, take_bytes, take_u8, take_varint, take_zigzag, unzigzag,
    varint_bytes, zigzag,
};

/// Escape instead of a delta: a control byte follows, which sets the coding of this value and the
/// following ones.
const ESCAPE: u8 = 0;
/// Control bytes. 0 to 63: a scale; values are decimals of it. From 192 on: `192 + scale`; values
/// are near decimals of it. From 64 on: one XOR; from 128 on: this XOR and following ones. The low
/// six bits of the last two are `zero bytes at the end * 8 + bytes - 1`.
const XOR_ONCE: u8 = 64;
const XOR_FROM_NOW: u8 = 128;
const NEAR: u8 = 192;
/// The mode of members with XOR-coded values.
const XOR_MODE: u8 = XOR_FROM_NOW;
/// For longer forms the encoder searches for a better one.
const SHORT_BYTES: usize = 3;

/// A member's last value and the coding of the next.
pub(super) struct SlotState<'a> {
    pub(super) last: &'a mut u64,
    /// A control byte: a scale, [`NEAR`] + scale, or [`XOR_MODE`].
    pub(super) mode: &'a mut u8,
}

/// A value relative to the last one.
#[derive(Clone, Copy)]
enum ValueForm {
    /// A decimal: its distance from the last one.
    Decimal { scale: Scale, delta: i64 },
    /// A near decimal: its distance from the last one, and its error in units in the last place.
    Near { scale: Scale, delta: i64, error: i64 },
    /// The bytes of the XOR with the last value.
    Xor { xor: u64 },
}

impl SlotState<'_> {
    #[inline]
    pub(super) fn differs(&self, value: f64) -> bool {
        *self.last != value.to_bits()
    }

    #[inline]
    fn last_value(&self) -> f64 {
        f64::from_bits(*self.last)
    }

    /// The distance of `d` from the last value at `scale`.
    #[inline]
    fn delta(&self, scale: Scale, d: i64) -> i64 {
        d.wrapping_sub(scale.nearest(self.last_value()))
    }

    /// The value in the member's current mode.
    #[inline]
    fn kept(&self, value: f64) -> Option<ValueForm> {
        if let Some(scale) = Scale::from_u8(*self.mode) {
            let delta = self.delta(scale, scale.exact(value)?);
            // A delta of 0 is the escape.
            return (delta != 0).then_some(ValueForm::Decimal { scale, delta });
        }
        let scale = near_scale(*self.mode)?;
        let d = scale.nearest(value);
        Some(ValueForm::Near { scale, delta: self.delta(scale, d), error: scale.error(value, d) })
    }
}

/// Appends `value`, which must differ from the last one.
#[inline]
pub(super) fn encode_value(slot: &mut SlotState<'_>, value: f64, out: &mut Vec<u8>) {
    match slot.kept(value) {
        Some(form) if form.bytes() <= SHORT_BYTES => form.encode(out),
        kept => encode_searched(slot, kept, value, out),
    }
    *slot.last = value.to_bits();
}

/// Tries all forms and writes the smallest.
#[inline(never)]
#[expect(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "encodes values of the caller, not stored bytes"
)]
fn encode_searched(
    slot: &mut SlotState<'_>,
    kept: Option<ValueForm>,
    value: f64,
    out: &mut Vec<u8>,
) {
    let escape_bytes = usize::from(*slot.mode != XOR_MODE);
    let decimal = Scale::find(value)
        .map(|(scale, d)| ValueForm::Decimal { scale, delta: slot.delta(scale, d) });
    let near = Scale::find_near(value).map(|(scale, d, error)| ValueForm::Near {
        scale,
        delta: slot.delta(scale, d),
        error,
    });
    let xor = ValueForm::Xor { xor: *slot.last ^ value.to_bits() };
    let mut best = (xor, escape_bytes + 1 + xor.bytes());
    for form in [near, decimal].into_iter().flatten() {
        let bytes = escape_bytes + 1 + form.bytes();
        if bytes <= best.1 {
            best = (form, bytes);
        }
    }
    if let Some(kept) = kept
        && kept.bytes() <= best.1
    {
        return kept.encode(out);
    }
    if escape_bytes > 0 {
        out.push(ESCAPE);
    }
    // A staleness marker among decimals occurs alone; a full mantissa does not.
    let lasting = decimal.is_none() && near.is_none() && value.is_finite();
    let control = match best.0 {
        ValueForm::Decimal { scale, .. } => scale.as_u8(),
        ValueForm::Near { scale, .. } => NEAR + scale.as_u8(),
        ValueForm::Xor { xor } => {
            let (start, len) = xor_span(xor);
            let base = if lasting { XOR_FROM_NOW } else { XOR_ONCE };
            base | (start as u8) << 3 | (len as u8 - 1)
        }
    };
    out.push(control);
    best.0.encode(out);
    set_mode(slot.mode, control);
}

/// Takes a changed value from the front of `input` and makes it the last one.
#[inline]
pub(super) fn decode_value(slot: &mut SlotState<'_>, input: &mut &[u8]) -> Result<()> {
    let form = take_form(slot.mode, input)?;
    let d = |scale: Scale, delta| scale.nearest(slot.last_value()).wrapping_add(delta);
    *slot.last = match form {
        ValueForm::Decimal { scale, delta } => scale.value(d(scale, delta)).to_bits(),
        ValueForm::Near { scale, delta, error } => {
            scale.value_with_error(d(scale, delta), error).to_bits()
        }
        ValueForm::Xor { xor } => *slot.last ^ xor,
    };
    Ok(())
}

/// Skips a changed value: updates `mode` as [`decode_value`] does, but not the last value.
#[inline]
pub(super) fn skip_value(mode: &mut u8, input: &mut &[u8]) -> Result<()> {
    take_form(mode, input).map(|_| ())
}

/// The number of members before the first one whose values are not decimals.
#[expect(clippy::arithmetic_side_effects, reason = "the index of a mode")]
pub(super) fn decimal_count(modes: &[u8]) -> usize {
    const OTHER: u64 = u64::from_le_bytes([0xc0; 8]);
    let (words, rest) = modes.as_chunks::<8>();
    let other = |word: &[u8; 8]| u64::from_le_bytes(*word) & OTHER;
    match words.iter().position(|word| other(word) != 0) {
        Some(idx) => idx * 8 + words.get(idx).map_or(0, other).trailing_zeros() as usize / 8,
        None => words.len() * 8 + rest.iter().take_while(|mode| **mode < XOR_ONCE).count(),
    }
}

/// Skips `count` changed values of members in decimal modes, unless one of them has an escape. Then
/// returns `false`, and leaves them. Each value is a varint, so it counts last bytes, eight bytes
/// at a time. Only an escape is a zero byte.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "`left` is at least the count of a word's ends there, and a word has eight bytes"
)]
pub(super) fn skip_decimals(count: usize, input: &mut &[u8]) -> bool {
    const LOW: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    let (mut left, mut rest) = (count, *input);
    while left > 0 {
        let (word, after) = match rest.split_first_chunk::<8>() {
            Some((word, after)) => (*word, Some(after)),
            None => {
                // Bytes that end nothing and are no escape.
                let mut word = [0xff; 8];
                word.iter_mut().zip(rest).for_each(|(target, byte)| *target = *byte);
                (word, None)
            }
        };
        let word = u64::from_le_bytes(word);
        let mut ends = !word & HIGH;
        // The lowest bit marks the first zero byte. Bits above it may be wrong.
        let escapes = word.wrapping_sub(LOW) & ends;
        if left > ends.count_ones() as usize {
            let Some(after) = after.filter(|_| escapes == 0) else { return false };
            left -= ends.count_ones() as usize;
            rest = after;
            continue;
        }
        (1..left).for_each(|_| ends &= ends - 1);
        let last = ends.trailing_zeros();
        if escapes != 0 && escapes.trailing_zeros() <= last {
            return false;
        }
        rest = rest.get(last as usize / 8 + 1..).unwrap_or_default();
        left = 0;
    }
    *input = rest;
    true
}

#[inline]
fn take_form(mode: &mut u8, input: &mut &[u8]) -> Result<ValueForm> {
    if let Some(scale) = Scale::from_u8(*mode) {
        let delta = take_varint(input, "value delta")?;
        if delta != 0 {
            return Ok(ValueForm::Decimal { scale, delta: unzigzag(delta) });
        }
    } else if let Some(scale) = near_scale(*mode)
        && let Some(form) = take_near(scale, input)?
    {
        return Ok(form);
    }
    take_controlled(mode, input)
}

/// Takes a control byte, which changes the mode, and the form that it selects.
#[expect(clippy::arithmetic_side_effects, reason = "`start` is at most 7 and `len` at most 8")]
fn take_controlled(mode: &mut u8, input: &mut &[u8]) -> Result<ValueForm> {
    let control = take_u8(input, "value control")?;
    let unknown = || corrupt(format!("value control {control:#04x} is unknown"));
    let form = match control {
        0..XOR_ONCE => {
            let scale = Scale::from_u8(control).ok_or_else(unknown)?;
            // After a control byte a delta of 0 is valid.
            ValueForm::Decimal { scale, delta: take_zigzag(input, "value delta")? }
        }
        NEAR.. => {
            let scale = near_scale(control).ok_or_else(unknown)?;
            take_near(scale, input)?.ok_or_else(unknown)?
        }
        _ => {
            let (start, len) = (usize::from(control >> 3 & 7), usize::from(control & 7) + 1);
            let mut bytes = [0; 8];
            let target = bytes.get_mut(start..start + len).ok_or_else(unknown)?;
            target.copy_from_slice(take_bytes(input, len, "value bytes")?);
            ValueForm::Xor { xor: u64::from_le_bytes(bytes) }
        }
    };
    set_mode(mode, control);
    Ok(form)
}

fn set_mode(mode: &mut u8, control: u8) {
    match control {
        XOR_ONCE..XOR_FROM_NOW => {}
        XOR_FROM_NOW..NEAR => *mode = XOR_MODE,
        _ => *mode = control,
    }
}

fn near_scale(mode: u8) -> Option<Scale> {
    mode.checked_sub(NEAR).and_then(Scale::from_u8)
}

/// Takes a near decimal; `None` for the escape.
fn take_near(scale: Scale, input: &mut &[u8]) -> Result<Option<ValueForm>> {
    let Some(delta) = take_varint(input, "value delta")?.checked_sub(1) else { return Ok(None) };
    let error = take_zigzag(input, "value error")?;
    Ok(Some(ValueForm::Near { scale, delta: unzigzag(delta), error }))
}

impl ValueForm {
    /// Number of bytes after the control byte, if there is one.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "encodes values of the caller, not stored bytes"
    )]
    fn bytes(self) -> usize {
        match self {
            ValueForm::Decimal { delta, .. } => varint_bytes(zigzag(delta)),
            ValueForm::Near { delta, error, .. } => {
                varint_bytes(near_delta(delta)) + varint_bytes(zigzag(error))
            }
            ValueForm::Xor { xor } => xor_span(xor).1,
        }
    }

    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "encodes values of the caller, not stored bytes"
    )]
    fn encode(self, out: &mut Vec<u8>) {
        match self {
            ValueForm::Decimal { delta, .. } => encode_zigzag(delta, out),
            ValueForm::Near { delta, error, .. } => {
                encode_varint(near_delta(delta), out);
                encode_zigzag(error, out);
            }
            ValueForm::Xor { xor } => {
                let (start, len) = xor_span(xor);
                out.extend_from_slice(&xor.to_le_bytes()[start..start + len]);
            }
        }
    }
}

/// The stored form of a delta; 0 is the escape. The largest delta saturates instead of wrapping to
/// it, but no near decimal has that delta.
#[inline]
fn near_delta(delta: i64) -> u64 {
    zigzag(delta).saturating_add(1)
}

/// The index of the first non-zero byte of an XOR, and the number of bytes up to the last non-zero
/// one.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "at most seven zero bytes are left out at the end"
)]
fn xor_span(xor: u64) -> (usize, usize) {
    let start = (xor.trailing_zeros() / 8).min(7) as usize;
    let end = 8 - (xor.leading_zeros() / 8).min(7) as usize;
    (start, end.saturating_sub(start).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of one to ten bytes, escapes at any place, and ends at any place.
    #[test]
    fn decimals_are_skipped_as_one_by_one() {
        let mut dice = 1u64;
        let mut roll = |sides: u64| {
            dice = dice.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            (dice >> 33) % sides
        };
        let mut skipped_count = 0;
        for _ in 0..20_000 {
            let mut bytes = Vec::new();
            let value_count = roll(40) as usize;
            let width = 1 + roll(4) * 20;
            for _ in 0..value_count {
                encode_varint(1 + roll(1 << width.min(31)) * roll(1 << 31), &mut bytes);
            }
            if roll(3) == 0 && !bytes.is_empty() {
                let at = roll(bytes.len() as u64) as usize;
                bytes[at] = [0, 0x80, 0xff, 1][roll(4) as usize];
            }
            let count = (value_count + 1).saturating_sub(roll(10) as usize);
            let mut want = bytes.as_slice();
            let is_decimal = |_| take_varint(&mut want, "value").is_ok_and(|delta| delta != 0);
            let all_decimal = (0..count).all(is_decimal);
            let mut input = bytes.as_slice();
            let is_skipped = skip_decimals(count, &mut input);
            if is_skipped && all_decimal {
                assert_eq!(input, want, "{count} of {bytes:?}");
                skipped_count += 1;
            } else {
                assert!(input == bytes || is_skipped, "{count} of {bytes:?}");
                // Only a varint of over 64 bits is skipped and no value.
                assert!(!is_skipped || bytes.windows(9).any(|w| w.iter().all(|b| *b > 127)));
                assert!(!all_decimal || bytes.windows(2).any(|w| w[0] > 127 && w[1] == 0));
            }
        }
        assert!(skipped_count > 10_000);
    }

    #[test]
    fn decimal_members_are_counted_up_to_another() {
        for count in 0..40 {
            for other in [64, 128, 192, 255] {
                let mut modes = vec![54u8; count];
                assert_eq!(decimal_count(&modes), count);
                modes.extend([other, 0, 64]);
                assert_eq!(decimal_count(&modes), count);
            }
        }
    }
}
