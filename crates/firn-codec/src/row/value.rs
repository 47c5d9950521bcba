//! One changed value of a row, coded against the member's last.

use firn_model::Result;

use crate::decimal::Scale;
use crate::varint::{
    corrupt, encode_varint, encode_zigzag, take_bytes, take_u8, take_varint, take_zigzag, unzigzag,
    varint_bytes, zigzag,
};

/// In place of a delta: a control byte follows, which says how this value and those after it are coded.
const ESCAPE: u8 = 0;
/// Control bytes: a scale, and values are decimals of it; from 192 on `192 + scale`, and values are
/// near decimals of it. From 64 on one XOR, from 128 on an XOR and those after it too; the low six bits
/// of both are `zero bytes at the end * 8 + bytes - 1`.
const XOR_ONCE: u8 = 64;
const XOR_FROM_NOW: u8 = 128;
const NEAR: u8 = 192;
/// The mode of members whose values are coded as XORs.
const XOR_MODE: u8 = XOR_FROM_NOW;
/// Forms of more bytes are worth looking for a better one.
const SHORT_BYTES: usize = 3;

/// A member's last value and how its next one is coded.
pub(super) struct SlotState<'a> {
    pub(super) last: &'a mut u64,
    /// A control byte: a scale, [`NEAR`] + scale, or [`XOR_MODE`].
    pub(super) mode: &'a mut u8,
}

/// How a value can be told to who knows the last one.
#[derive(Clone, Copy)]
enum Form {
    /// A decimal by its distance from the last one.
    Decimal { scale: Scale, delta: i64 },
    /// A decimal so, and its error in steps of the last bit.
    Near { scale: Scale, delta: i64, error: i64 },
    /// The bytes of the XOR with the last one.
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

    /// How far `d` is from the last value at `scale`.
    #[inline]
    fn delta(&self, scale: Scale, d: i64) -> i64 {
        d.wrapping_sub(scale.nearest(self.last_value()))
    }

    /// The value in the member's mode.
    #[inline]
    fn kept(&self, value: f64) -> Option<Form> {
        if let Some(scale) = Scale::from_u8(*self.mode) {
            let delta = self.delta(scale, scale.exact(value)?);
            // Zero would be the escape.
            return (delta != 0).then_some(Form::Decimal { scale, delta });
        }
        let scale = near_scale(*self.mode)?;
        let d = scale.nearest(value);
        Some(Form::Near { scale, delta: self.delta(scale, d), error: scale.error(value, d) })
    }
}

/// Appends `value`, which differs from the last one.
#[inline]
pub(super) fn encode_value(slot: &mut SlotState<'_>, value: f64, out: &mut Vec<u8>) {
    match slot.kept(value) {
        Some(form) if form.bytes() <= SHORT_BYTES => form.encode(out),
        kept => encode_searched(slot, kept, value, out),
    }
    *slot.last = value.to_bits();
}

/// Tries all forms and takes the smallest.
#[inline(never)]
fn encode_searched(slot: &mut SlotState<'_>, kept: Option<Form>, value: f64, out: &mut Vec<u8>) {
    let escape_bytes = usize::from(*slot.mode != XOR_MODE);
    let decimal =
        Scale::find(value).map(|(scale, d)| Form::Decimal { scale, delta: slot.delta(scale, d) });
    let near = Scale::find_near(value).map(|(scale, d, error)| Form::Near {
        scale,
        delta: slot.delta(scale, d),
        error,
    });
    let xor = Form::Xor { xor: *slot.last ^ value.to_bits() };
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
    // A staleness marker among decimals is alone; a full mantissa is not.
    let lasting = decimal.is_none() && near.is_none() && value.is_finite();
    let control = match best.0 {
        Form::Decimal { scale, .. } => scale.as_u8(),
        Form::Near { scale, .. } => NEAR + scale.as_u8(),
        Form::Xor { xor } => {
            let (start, len) = xor_place(xor);
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
        Form::Decimal { scale, delta } => scale.value(d(scale, delta)).to_bits(),
        Form::Near { scale, delta, error } => {
            scale.value_with_error(d(scale, delta), error).to_bits()
        }
        Form::Xor { xor } => *slot.last ^ xor,
    };
    Ok(())
}

/// Takes a changed value that nobody asks for: `mode` is as after [`decode_value`], there is no last value.
#[inline]
pub(super) fn skip_value(mode: &mut u8, input: &mut &[u8]) -> Result<()> {
    take_form(mode, input).map(|_| ())
}

#[inline]
fn take_form(mode: &mut u8, input: &mut &[u8]) -> Result<Form> {
    if let Some(scale) = Scale::from_u8(*mode) {
        let delta = take_varint(input, "value delta")?;
        if delta != 0 {
            return Ok(Form::Decimal { scale, delta: unzigzag(delta) });
        }
    } else if let Some(scale) = near_scale(*mode)
        && let Some(form) = take_near(scale, input)?
    {
        return Ok(form);
    }
    take_controlled(mode, input)
}

/// A control byte, which changes the mode, and the form that it says.
fn take_controlled(mode: &mut u8, input: &mut &[u8]) -> Result<Form> {
    let control = take_u8(input, "value control")?;
    let unknown = || corrupt(format!("value control {control:#04x} is unknown"));
    let form = match control {
        0..XOR_ONCE => {
            let scale = Scale::from_u8(control).ok_or_else(unknown)?;
            // After a control byte zero is a delta like others.
            Form::Decimal { scale, delta: take_zigzag(input, "value delta")? }
        }
        NEAR.. => {
            let scale = near_scale(control).ok_or_else(unknown)?;
            take_near(scale, input)?.ok_or_else(unknown)?
        }
        _ => {
            let (start, len) = (usize::from(control >> 3 & 7), usize::from(control & 7) + 1);
            let mut bytes = [0; 8];
            let place = bytes.get_mut(start..start + len).ok_or_else(unknown)?;
            place.copy_from_slice(take_bytes(input, len, "value bytes")?);
            Form::Xor { xor: u64::from_le_bytes(bytes) }
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

/// A near decimal; `None` for the escape.
fn take_near(scale: Scale, input: &mut &[u8]) -> Result<Option<Form>> {
    let Some(delta) = take_varint(input, "value delta")?.checked_sub(1) else { return Ok(None) };
    let error = take_zigzag(input, "value error")?;
    Ok(Some(Form::Near { scale, delta: unzigzag(delta), error }))
}

impl Form {
    /// How many bytes follow the control byte, if there is one.
    #[inline]
    fn bytes(self) -> usize {
        match self {
            Form::Decimal { delta, .. } => varint_bytes(zigzag(delta)),
            Form::Near { delta, error, .. } => {
                varint_bytes(near_delta(delta)) + varint_bytes(zigzag(error))
            }
            Form::Xor { xor } => xor_place(xor).1,
        }
    }

    #[inline]
    fn encode(self, out: &mut Vec<u8>) {
        match self {
            Form::Decimal { delta, .. } => encode_zigzag(delta, out),
            Form::Near { delta, error, .. } => {
                encode_varint(near_delta(delta), out);
                encode_zigzag(error, out);
            }
            Form::Xor { xor } => {
                let (start, len) = xor_place(xor);
                out.extend_from_slice(&xor.to_le_bytes()[start..start + len]);
            }
        }
    }
}

/// Zero is the escape; the most distant delta would wrap to it, but is near nothing.
#[inline]
fn near_delta(delta: i64) -> u64 {
    zigzag(delta).saturating_add(1)
}

/// The first byte of an XOR that is not zero, and how many there are up to the last such.
fn xor_place(xor: u64) -> (usize, usize) {
    let start = (xor.trailing_zeros() / 8).min(7) as usize;
    let end = 8 - (xor.leading_zeros() / 8).min(7) as usize;
    (start, end.saturating_sub(start).max(1))
}
