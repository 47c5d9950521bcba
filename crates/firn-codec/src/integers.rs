//! Integer columns: decimals, ordered bits and timestamps before they are packed.
//!
//! ```text
//! column    = form:u8 [gcd: varint(divisor) zigzag(first)] [parameters by form] residuals
//! form      = residual form | RICE | PATCHED | DIVIDED
//! packed    = width:u8 numbers of width bits [varint(patches) (varint(skip) varint(high bits))*]
//! rice      = k:u8 bit stream of (unary quotient, k bits)
//! ```
//! Residuals are unsigned and wrap in 64 bits, so every integer round-trips. The encoder computes
//! the size of each form from a histogram of bit widths and writes the smallest.
//!
//! Sources: frame of reference and patches from PFOR (Zukowski et al., ICDE 2006); the line form
//! from the timestamps of Heracles, section 3.1.3 and algorithm 1.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

mod pack;

use std::ops::Range;

use firn_model::Result;

use self::pack::{Packing, decode_residuals, decode_some};
use crate::bits::bit_width;
use crate::effort::Effort;
use crate::varint::{
    corrupt, encode_varint, encode_zigzag, take_u8, take_varint, take_zigzag, unzigzag, zigzag,
};

const FORM_MASK: u8 = 0x07;
const RICE: u8 = 0x08;
const PATCHED: u8 = 0x10;
const DIVIDED: u8 = 0x20;

/// The residual that is packed for each value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResidualForm {
    /// The distance from the smallest value.
    Frame = 0,
    /// The delta's distance from the smallest delta.
    Delta = 1,
    /// The delta, zigzag: for columns with a few negative deltas (counter resets).
    SignedDelta = 2,
    /// The difference from the previous delta, zigzag.
    DeltaOfDelta = 3,
    /// The distance from a line, less the smallest distance: timestamps with jitter.
    Line = 4,
}

const FORMS: [ResidualForm; 5] = [
    ResidualForm::Frame,
    ResidualForm::Delta,
    ResidualForm::SignedDelta,
    ResidualForm::DeltaOfDelta,
    ResidualForm::Line,
];

/// With spans up to this, a line with 16 fraction bits fits into 64 bits.
const LINE_SPAN_MAX: u64 = 1 << 40;

/// A form with its parameters. `first` is the first value (`Frame`: the smallest).
#[derive(Clone, Copy, Debug)]
struct ResidualShape {
    form: ResidualForm,
    first: i64,
    /// `Delta`: the smallest delta; `DeltaOfDelta`: the first delta; `Line`: the smallest distance.
    low: i64,
    /// `Line`: rise per value in 1/65536.
    slope: u64,
}

/// The kind of data in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    Values,
    /// Timestamps: also tries the line form.
    Times,
}

/// Appends `values` (at least one).
pub(crate) fn encode_integers(values: &[i64], kind: ColumnKind, effort: Effort, out: &mut Vec<u8>) {
    let divided = match kind {
        // Equal deltas take no bits already; events at whole seconds are worth dividing.
        ColumnKind::Times if has_one_step(values) => None,
        _ => divide(values),
    };
    let (values, divisor) = match &divided {
        Some((divisor, values)) => (values.as_slice(), Some(*divisor)),
        None => (values, None),
    };
    let Choice { shape, packing, residuals, .. } = choose(values, kind, effort);
    let mut flags = shape.form as u8;
    flags |= match packing {
        Packing::Packed { patch_count: 0, .. } => 0,
        Packing::Packed { .. } => PATCHED,
        Packing::Rice { .. } => RICE,
    };
    out.push(flags | if divisor.is_some() { DIVIDED } else { 0 });
    if let Some((divisor, first)) = divisor {
        encode_varint(divisor, out);
        encode_zigzag(first, out);
    }
    shape.encode(out);
    packing.encode(&residuals, out);
}

/// Describes the form of the column at the front of `bytes`.
pub(crate) fn codec_of(bytes: &[u8]) -> String {
    let flags = bytes.first().copied().unwrap_or_default();
    let form = match FORMS.get(usize::from(flags & FORM_MASK)) {
        Some(ResidualForm::Frame) => "frame",
        Some(ResidualForm::Delta) => "delta",
        Some(ResidualForm::SignedDelta) => "signed delta",
        Some(ResidualForm::DeltaOfDelta) => "delta of delta",
        Some(ResidualForm::Line) => "line",
        None => "unknown",
    };
    let mut codec = form.to_owned();
    for (flag, name) in [(RICE, "Rice"), (PATCHED, "patched"), (DIVIDED, "divided")] {
        if flags & flag != 0 {
            codec = format!("{codec}, {name}");
        }
    }
    codec
}

/// Takes `count` integers from the front of `input`.
pub(crate) fn decode_integers(input: &mut &[u8], count: usize) -> Result<Vec<u64>> {
    let mut values = Vec::with_capacity(count.min(input.len().saturating_mul(8)));
    decode_integers_of(input, count, 0..count, &mut values)?;
    Ok(values)
}

/// Takes an integer column from the front of `input` if its deltas are equal and take no bits.
/// Returns the first integer and the delta. Otherwise leaves `input` unchanged.
pub(crate) fn take_equidistant(input: &mut &[u8]) -> Option<(u64, u64)> {
    let mut rest = *input;
    let flags = take_u8(&mut rest, "integer column").ok()?;
    // With a flag or in another form, equal deltas take more bytes.
    if flags != ResidualForm::Delta as u8 {
        return None;
    }
    let shape = ResidualShape::take(ResidualForm::Delta, &mut rest).ok()?;
    if take_u8(&mut rest, "residual width").ok()? != 0 {
        return None;
    }
    *input = rest;
    Some((shape.first as u64, shape.low as u64))
}

/// Takes `count` integers from the front of `input` and fills `out` with the ones in `kept`.
/// Integers before `kept` are at most summed, and those after it are not read, except with Rice
/// codes and deltas of deltas.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "`residual_count` is at most `count`, and `kept.start` at least `lead` in its branch"
)]
pub(crate) fn decode_integers_of(
    input: &mut &[u8],
    count: usize,
    kept: Range<usize>,
    out: &mut Vec<u64>,
) -> Result<()> {
    let flags = take_u8(input, "integer column")?;
    let form = FORMS.get(usize::from(flags & FORM_MASK)).copied();
    let Some(form) = form.filter(|_| flags & !(FORM_MASK | RICE | PATCHED | DIVIDED) == 0) else {
        return Err(corrupt(format!("integer column has unknown form {flags:#04x}")));
    };
    let divisor = match flags & DIVIDED != 0 {
        true => Some((take_varint(input, "divisor")?, take_zigzag(input, "divided first")?)),
        false => None,
    };
    let shape = ResidualShape::take(form, input)?;
    let (rice, patched) = (flags & RICE != 0, flags & PATCHED != 0);
    let residual_count = shape.residual_count(count);
    // Values without a residual come first.
    let lead = count - residual_count;
    out.clear();
    if rice || form == ResidualForm::DeltaOfDelta || kept.start < lead {
        out.resize(lead, 0);
        decode_residuals(input, residual_count, rice, patched, out)?;
        shape.restore(out, lead);
        out.truncate(kept.end);
        out.drain(..kept.start.min(out.len()));
    } else {
        let residuals = kept.start - lead..kept.end.saturating_sub(lead).max(kept.start - lead);
        let before = kept.start;
        let mut last = shape.first as u64;
        let (count, low) = (residual_count, shape.low as u64);
        match form {
            ResidualForm::Delta => {
                let delta = |residual: u64| residual.wrapping_add(low);
                let sum = decode_some(input, count, patched, residuals, delta, out)?;
                last = last.wrapping_add(sum);
            }
            ResidualForm::SignedDelta => {
                let delta = |residual| unzigzag(residual) as u64;
                let sum = decode_some(input, count, patched, residuals, delta, out)?;
                last = last.wrapping_add(sum);
            }
            _ => {
                decode_some(input, count, patched, residuals, |_| 0, out)?;
            }
        }
        shape.restore_from(out, before, last);
    }
    if let Some((divisor, first)) = divisor {
        for value in out.iter_mut() {
            *value = value.wrapping_mul(divisor).wrapping_add(first as u64);
        }
    }
    Ok(())
}

/// A form, its packing, and its residuals.
struct Choice {
    shape: ResidualShape,
    packing: Packing,
    residuals: Vec<u64>,
    /// Size in bits, as far as forms differ.
    bits: usize,
}

/// The smallest form and packing; of equal ones, the first form.
fn choose(values: &[i64], kind: ColumnKind, effort: Effort) -> Choice {
    let mut candidates = [None; FORMS.len()];
    for (candidate, shape) in candidates.iter_mut().zip(shapes(values, kind)) {
        *candidate = Some((shape.bits_min(values), shape));
    }
    candidates.sort_by_key(|candidate| candidate.map_or(usize::MAX, |(bits_min, _)| bits_min));
    let mut best: Option<Choice> = None;
    let mut residuals = Vec::new();
    for (bits_min, shape) in candidates.into_iter().flatten() {
        // Most forms are excluded by their bound.
        let beats = |bits: usize, best: &Option<Choice>| {
            let rank = |shape: &ResidualShape| shape.form as u8;
            best.as_ref().is_none_or(|best| (bits, rank(&shape)) < (best.bits, rank(&best.shape)))
        };
        if !beats(bits_min, &best) {
            continue;
        }
        residuals.clear();
        residuals.reserve(values.len());
        shape.for_each_residual(values, |residual| residuals.push(residual));
        let (packing, bits) = shape.pack(&residuals, values.len(), effort);
        if beats(bits, &best) {
            let unused = best.take().map_or_else(Vec::new, |best| best.residuals);
            let residuals = std::mem::replace(&mut residuals, unused);
            best = Some(Choice { shape, packing, residuals, bits });
        }
    }
    match best {
        Some(best) => best,
        None => unreachable!("the frame form always applies"),
    }
}

/// The candidate forms with their parameters.
#[expect(clippy::indexing_slicing, reason = "encodes values of the caller, not stored bytes")]
fn shapes(values: &[i64], kind: ColumnKind) -> impl Iterator<Item = ResidualShape> {
    let first = values.first().copied().unwrap_or(0);
    let min = values.iter().copied().min().unwrap_or(0);
    let deltas = || values.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
    let first_delta = deltas().next().unwrap_or(0);
    let min_delta = deltas().min().unwrap_or(0);
    let line = (kind == ColumnKind::Times).then(|| line(values)).flatten();
    let shape = |form, first, low| ResidualShape { form, first, low, slope: 0 };
    let plain = [
        shape(ResidualForm::Frame, min, 0),
        shape(ResidualForm::Delta, first, min_delta),
        shape(ResidualForm::SignedDelta, first, 0),
        shape(ResidualForm::DeltaOfDelta, first, first_delta),
    ];
    // One value has no delta, two have no delta of delta.
    let count = if values.len() > 2 { 4 } else { values.len() };
    plain.into_iter().take(count).chain(line)
}

/// The line from the first to the last value; `None` if a line does not help.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "encodes values of the caller, not stored bytes"
)]
fn line(values: &[i64]) -> Option<ResidualShape> {
    let (&first, &last) = (values.first()?, values.last()?);
    let span = u64::try_from(last.checked_sub(first)?).ok()?;
    if values.len() < 4 || span > LINE_SPAN_MAX {
        return None;
    }
    let slope = (span << 16) / (values.len() as u64 - 1);
    let mut shape = ResidualShape { form: ResidualForm::Line, first, low: 0, slope };
    let mut low = i64::MAX;
    shape.for_each_residual(values, |residual| low = low.min(residual as i64));
    shape.low = low;
    Some(shape)
}

/// For values with differences that share a divisor: the divisor, the first value, and the
/// quotients.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "encodes values of the caller, not stored bytes"
)]
fn divide(values: &[i64]) -> Option<((u64, i64), Vec<i64>)> {
    let (&first, rest) = values.split_first()?;
    let mut divisor = 0u64;
    for &value in rest {
        let difference = value.checked_sub(first)?.unsigned_abs();
        if divisor == 0 || !difference.is_multiple_of(divisor) {
            divisor = gcd(difference, divisor);
        }
        if divisor == 1 {
            return None;
        }
    }
    // A divisor of two saves one bit per value but costs bytes; equal values need no divisor.
    if divisor < 2 || divisor > i64::MAX as u64 || values.len() * bit_width(divisor) as usize <= 40
    {
        return None;
    }
    let divided = values.iter().map(|&value| (value - first) / divisor as i64).collect();
    Some(((divisor, first), divided))
}

#[expect(clippy::indexing_slicing, reason = "encodes values of the caller, not stored bytes")]
fn has_one_step(values: &[i64]) -> bool {
    let mut steps = values.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
    let first = steps.next();
    steps.all(|step| Some(step) == first)
}

#[expect(clippy::arithmetic_side_effects, reason = "`b` is not zero in the loop")]
fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl ResidualShape {
    /// The smallest packing of the form's residuals, and its size in bits with the parameters.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "encodes values of the caller, not stored bytes"
    )]
    fn pack(&self, residuals: &[u64], value_count: usize, effort: Effort) -> (Packing, usize) {
        let mut widths = [0u32; 65];
        let mut sum = 0u64;
        let mut high = 0u64;
        for &residual in residuals {
            widths[bit_width(residual) as usize] += 1;
            sum = sum.saturating_add(residual);
            high |= residual;
        }
        let (mut packing, mut bits) = Packing::cheapest(&widths);
        let is_signed = matches!(
            self.form,
            ResidualForm::SignedDelta | ResidualForm::DeltaOfDelta | ResidualForm::Frame
        );
        if effort == Effort::Small && is_signed && high != 0 {
            // Rice decodes at a third of the speed, so it must be 5 % smaller.
            let (rice, rice_bits) = Packing::cheapest_rice(sum, value_count, residuals);
            if rice_bits + rice_bits / 20 < bits {
                (packing, bits) = (rice, rice_bits + rice_bits / 20);
            }
        }
        (packing, bits + self.parameter_bytes() * 8)
    }

    /// No packing of the form is smaller: each stores the significant bits of each residual.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "encodes values of the caller, not stored bytes"
    )]
    fn bits_min(&self, values: &[i64]) -> usize {
        let mut bits = 0;
        self.for_each_residual(values, |residual| bits += bit_width(residual) as usize);
        bits + self.parameter_bytes() * 8
    }

    /// Calls `f` with each residual in order.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "encodes values of the caller, not stored bytes")]
    fn for_each_residual(&self, values: &[i64], mut f: impl FnMut(u64)) {
        let deltas = || values.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
        match self.form {
            ResidualForm::Frame => values.iter().for_each(|v| f(v.wrapping_sub(self.first) as u64)),
            ResidualForm::Delta => {
                deltas().for_each(|delta| f(delta.wrapping_sub(self.low) as u64))
            }
            ResidualForm::SignedDelta => deltas().for_each(|delta| f(zigzag(delta))),
            ResidualForm::DeltaOfDelta => {
                let mut last = self.low;
                deltas().skip(1).for_each(|delta| {
                    f(zigzag(delta.wrapping_sub(last)));
                    last = delta;
                });
            }
            ResidualForm::Line => {
                for (idx, value) in values.iter().enumerate() {
                    f(value.wrapping_sub(self.on_line(idx)).wrapping_sub(self.low) as u64);
                }
            }
        }
    }

    fn on_line(&self, idx: usize) -> i64 {
        let rise = (idx as u64).wrapping_mul(self.slope) >> 16;
        self.first.wrapping_add(rise as i64)
    }

    fn residual_count(&self, value_count: usize) -> usize {
        match self.form {
            ResidualForm::Frame | ResidualForm::Line => value_count,
            ResidualForm::Delta | ResidualForm::SignedDelta => value_count.saturating_sub(1),
            ResidualForm::DeltaOfDelta => value_count.saturating_sub(2),
        }
    }

    /// Converts all residuals to values in place. The first `lead` entries of `values` are for
    /// values without a residual.
    fn restore(&self, values: &mut [u64], lead: usize) {
        let first = self.first as u64;
        let (start, residuals) = values.split_at_mut(lead.min(values.len()));
        if self.form != ResidualForm::DeltaOfDelta {
            start.fill(first);
            self.restore_from(residuals, lead, first);
            return;
        }
        let mut delta = self.low as u64;
        let mut last = first.wrapping_add(delta);
        start.iter_mut().zip([first, last]).for_each(|(target, value)| *target = value);
        for residual in residuals {
            delta = delta.wrapping_add(unzigzag(*residual) as u64);
            last = last.wrapping_add(delta);
            *residual = last;
        }
    }

    /// Converts the residuals of values `before..` to values in place; `last` is the value before
    /// them.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`before + idx` is the index of a value of the column"
    )]
    fn restore_from(&self, residuals: &mut [u64], before: usize, mut last: u64) {
        match self.form {
            ResidualForm::Frame => {
                let first = self.first as u64;
                residuals.iter_mut().for_each(|r| *r = r.wrapping_add(first));
            }
            ResidualForm::Delta => {
                for residual in residuals {
                    last = last.wrapping_add(*residual).wrapping_add(self.low as u64);
                    *residual = last;
                }
            }
            ResidualForm::SignedDelta => {
                for residual in residuals {
                    last = last.wrapping_add(unzigzag(*residual) as u64);
                    *residual = last;
                }
            }
            ResidualForm::Line => {
                for (idx, residual) in residuals.iter_mut().enumerate() {
                    let on_line = self.on_line(before + idx) as u64;
                    *residual = residual.wrapping_add(on_line).wrapping_add(self.low as u64);
                }
            }
            ResidualForm::DeltaOfDelta => unreachable!("its residuals are restored all at once"),
        }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "encodes values of the caller, not stored bytes"
    )]
    fn parameter_bytes(&self) -> usize {
        let bytes = |value| crate::varint::varint_bytes(zigzag(value));
        let low = match self.form {
            ResidualForm::Frame | ResidualForm::SignedDelta => 0,
            ResidualForm::Delta | ResidualForm::DeltaOfDelta => bytes(self.low),
            ResidualForm::Line => bytes(self.low) + crate::varint::varint_bytes(self.slope),
        };
        bytes(self.first) + low
    }

    fn encode(&self, out: &mut Vec<u8>) {
        encode_zigzag(self.first, out);
        match self.form {
            ResidualForm::Frame | ResidualForm::SignedDelta => {}
            ResidualForm::Delta | ResidualForm::DeltaOfDelta => encode_zigzag(self.low, out),
            ResidualForm::Line => {
                encode_zigzag(self.low, out);
                encode_varint(self.slope, out);
            }
        }
    }

    fn take(form: ResidualForm, input: &mut &[u8]) -> Result<ResidualShape> {
        let first = take_zigzag(input, "first integer")?;
        let mut shape = ResidualShape { form, first, low: 0, slope: 0 };
        if !matches!(form, ResidualForm::Frame | ResidualForm::SignedDelta) {
            shape.low = take_zigzag(input, "lowest residual")?;
        }
        if form == ResidualForm::Line {
            shape.slope = take_varint(input, "slope")?;
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(values: &[i64], kind: ColumnKind, effort: Effort) -> usize {
        let mut out = Vec::new();
        encode_integers(values, kind, effort, &mut out);
        let mut input = out.as_slice();
        let Choice { shape, bits, .. } = choose(values, kind, effort);
        let all = shapes(values, kind).map(|shape| {
            let mut residuals = Vec::new();
            shape.for_each_residual(values, |residual| residuals.push(residual));
            (shape.pack(&residuals, values.len(), effort).1, shape.form as u8)
        });
        assert_eq!(Some((bits, shape.form as u8)), all.min(), "no form was skipped wrongly");
        let again = decode_integers(&mut input, values.len()).unwrap();
        assert!(input.is_empty(), "{values:?}");
        assert!(again.iter().map(|&value| value as i64).eq(values.iter().copied()), "{values:?}");
        let mut input = out.as_slice();
        if let Some((first, step)) = take_equidistant(&mut input) {
            let at = |idx: usize| first.wrapping_add(step.wrapping_mul(idx as u64));
            assert!(input.is_empty() && (0..values.len()).map(at).eq(again.iter().copied()));
        }
        let (middle, end) = (values.len() / 2, values.len());
        for kept in [0..0, 0..1, 1.min(end)..end, middle..middle + 1, middle..end, end - 1..end] {
            let (mut input, mut part) = (out.as_slice(), vec![7]);
            decode_integers_of(&mut input, values.len(), kept.clone(), &mut part).unwrap();
            assert!(input.is_empty() && part == again[kept.clone()], "{kept:?}: {values:?}");
        }
        out.len()
    }

    #[test]
    fn forms_fit_their_data() {
        let regular: Vec<i64> = (0..500).map(|idx| idx * 15_000).collect();
        assert!(check(&regular, ColumnKind::Times, Effort::Small) <= 6);
        let mut out = Vec::new();
        encode_integers(&regular, ColumnKind::Times, Effort::Fast, &mut out);
        assert_eq!(take_equidistant(&mut out.as_slice()), Some((0, 15_000)));
        let seconds: Vec<i64> =
            (0..40).map(|idx| (idx * 170 + idx * idx * 31 % 97) * 1_000).collect();
        assert!(check(&seconds, ColumnKind::Times, Effort::Small) <= 40 * 7 / 8 + 16);
        let jitter: Vec<i64> = (0..500).map(|idx| idx * 15_000 + idx * 7 % 13).collect();
        assert!(check(&jitter, ColumnKind::Times, Effort::Small) <= 500 * 4 / 8 + 16);
        let mut reset: Vec<i64> = (0..300).map(|idx| idx * 4096).collect();
        reset.iter_mut().skip(200).for_each(|value| *value -= 200 * 4096);
        assert!(check(&reset, ColumnKind::Values, Effort::Small) <= 30);
        assert!(check(&[i64::MIN, i64::MAX, 0, -1], ColumnKind::Values, Effort::Fast) <= 50);
    }

    proptest! {
        #[test]
        fn any_integers_round_trip(
            values in prop::collection::vec(
                prop_oneof![any::<i64>(), -9i64..9, Just(i64::MIN), Just(i64::MAX)], 1..70),
            times in any::<bool>(),
            small in any::<bool>(),
        ) {
            let kind = if times { ColumnKind::Times } else { ColumnKind::Values };
            check(&values, kind, if small { Effort::Small } else { Effort::Fast });
        }

        #[test]
        fn any_bytes_do_no_harm(
            form in 0u8..64,
            bytes in prop::collection::vec(any::<u8>(), 0..80),
            count in 0usize..500,
        ) {
            let bytes = [&[form], bytes.as_slice()].concat();
            let _ = decode_integers(&mut bytes.as_slice(), count);
            let mut part = Vec::new();
            let _ = decode_integers_of(&mut bytes.as_slice(), count, count / 3..count, &mut part);
        }

        #[test]
        fn close_integers_round_trip(
            start in any::<i64>(),
            steps in prop::collection::vec((-20i64..400, 0u8..40), 1..200),
            factor in 1i64..5000,
            small in any::<bool>(),
        ) {
            let mut value = start;
            let values: Vec<i64> = steps
                .iter()
                .map(|&(step, die)| {
                    value = value.wrapping_add(if die == 0 { step << 30 } else { step * factor });
                    value
                })
                .collect();
            check(&values, ColumnKind::Values, if small { Effort::Small } else { Effort::Fast });
        }
    }
}
