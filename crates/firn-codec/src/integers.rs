//! Integer columns: what decimals, ordered bits and timestamps become before they are packed.
//!
//! ```text
//! column    = form:u8 [gcd: varint(divisor) zigzag(first)] [parameters by form] residuals
//! form      = residual form | RICE | PATCHED | DIVIDED
//! packed    = width:u8 numbers of width bits [varint(patches) (varint(skip) varint(high bits))*]
//! rice      = k:u8 bit stream of (unary quotient, k bits)
//! ```
//! Residuals are unsigned and wrap in 64 bits, so any integers come back. The encoder counts what each
//! form would cost from a histogram of bit widths and writes the cheapest.
//!
//! Sources: FOR and patching: Zukowski et al., PFOR; line: ByteSeries 3.3 fits values by lines too.

mod pack;

use std::ops::Range;

use firn_model::Result;

use self::pack::{Packing, decode_residuals, decode_some};
use crate::bits::bit_width;
use crate::chunk::Effort;
use crate::varint::{
    corrupt, encode_varint, encode_zigzag, take_u8, take_varint, take_zigzag, unzigzag, zigzag,
};

const FORM_MASK: u8 = 0x07;
const RICE: u8 = 0x08;
const PATCHED: u8 = 0x10;
const DIVIDED: u8 = 0x20;

/// What is packed for each value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Its distance from the smallest.
    Frame = 0,
    /// Its delta's distance from the smallest delta.
    Delta = 1,
    /// Its delta, zigzag: where single deltas go back (counter resets).
    SignedDelta = 2,
    /// How its delta differs from the one before, zigzag.
    DeltaOfDelta = 3,
    /// Its distance from a line, less the smallest: timestamps with jitter.
    Line = 4,
}

const FORMS: [Form; 5] =
    [Form::Frame, Form::Delta, Form::SignedDelta, Form::DeltaOfDelta, Form::Line];

/// Spans up to here have a line with 16 fraction bits in 64 bits.
const LINE_SPAN_MAX: u64 = 1 << 40;

/// A form with its parameters. `first` is the first value (`Frame`: the smallest).
#[derive(Clone, Copy, Debug)]
struct Shape {
    form: Form,
    first: i64,
    /// `Delta`: the smallest delta; `DeltaOfDelta`: the first delta; `Line`: the smallest distance.
    low: i64,
    /// `Line`: rise per value in 1/65536.
    slope: u64,
}

/// What the columns of a caller are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Values,
    /// Tries a line.
    Times,
}

/// Appends `values` (at least one).
pub(crate) fn encode_integers(values: &[i64], kind: Kind, effort: Effort, out: &mut Vec<u8>) {
    let divided = match kind {
        // Deltas that are all the same take no bits as they are; events at whole seconds do.
        Kind::Times if has_one_step(values) => None,
        _ => divide(values),
    };
    let (values, divisor) = match &divided {
        Some((divisor, values)) => (values.as_slice(), Some(*divisor)),
        None => (values, None),
    };
    let (shape, packing) = choose(values, kind, effort);
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
    let mut residuals = Vec::with_capacity(values.len());
    shape.for_each_residual(values, |residual| residuals.push(residual));
    packing.encode(&residuals, out);
}

/// The form of the column that `bytes` begin with, for people.
pub(crate) fn codec_of(bytes: &[u8]) -> String {
    let flags = bytes.first().copied().unwrap_or_default();
    let form = match FORMS.get(usize::from(flags & FORM_MASK)) {
        Some(Form::Frame) => "frame",
        Some(Form::Delta) => "delta",
        Some(Form::SignedDelta) => "signed delta",
        Some(Form::DeltaOfDelta) => "delta of delta",
        Some(Form::Line) => "line",
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

/// Takes `count` integers from the front of `input` and fills `out` with those of `kept`, which lies in them. What lies
/// before is summed up at most, and what lies behind is not looked at, but for Rice codes and deltas of deltas.
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
    let shape = Shape::take(form, input)?;
    let (rice, patched) = (flags & RICE != 0, flags & PATCHED != 0);
    let residual_count = shape.residual_count(count);
    // Values that have no residual come first.
    let lead = count - residual_count;
    out.clear();
    if rice || form == Form::DeltaOfDelta || kept.start < lead {
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
            Form::Delta => {
                let delta = |residual: u64| residual.wrapping_add(low);
                let sum = decode_some(input, count, patched, residuals, delta, out)?;
                last = last.wrapping_add(sum);
            }
            Form::SignedDelta => {
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

/// The cheapest form and packing.
fn choose(values: &[i64], kind: Kind, effort: Effort) -> (Shape, Packing) {
    let mut best: Option<(Shape, Packing, usize)> = None;
    let mut offer = |shape: Shape, packing: Packing, bits: usize| {
        let bits = bits + shape.parameter_bytes() * 8;
        if best.as_ref().is_none_or(|best| bits < best.2) {
            best = Some((shape, packing, bits));
        }
    };
    for shape in shapes(values, kind) {
        let mut widths = [0u32; 65];
        let mut sum = 0u64;
        let mut high = 0u64;
        shape.for_each_residual(values, |residual| {
            widths[bit_width(residual) as usize] += 1;
            sum = sum.saturating_add(residual);
            high |= residual;
        });
        let (packing, bits) = Packing::cheapest(&widths);
        offer(shape, packing, bits);
        // Rice decodes at a third of the speed: it must be 5 % smaller.
        let signed = matches!(shape.form, Form::SignedDelta | Form::DeltaOfDelta | Form::Frame);
        if effort == Effort::Small && signed && high != 0 {
            let (packing, bits) = Packing::cheapest_rice(sum, values.len(), |f| {
                shape.for_each_residual(values, f);
            });
            offer(shape, packing, bits + bits / 20);
        }
    }
    match best {
        Some((shape, packing, _)) => (shape, packing),
        None => unreachable!("the frame form always applies"),
    }
}

/// The forms worth a look, with their parameters.
fn shapes(values: &[i64], kind: Kind) -> impl Iterator<Item = Shape> {
    let first = values.first().copied().unwrap_or(0);
    let min = values.iter().copied().min().unwrap_or(0);
    let deltas = || values.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
    let first_delta = deltas().next().unwrap_or(0);
    let min_delta = deltas().min().unwrap_or(0);
    let line = (kind == Kind::Times).then(|| line(values)).flatten();
    let shape = |form, first, low| Shape { form, first, low, slope: 0 };
    let plain = [
        shape(Form::Frame, min, 0),
        shape(Form::Delta, first, min_delta),
        shape(Form::SignedDelta, first, 0),
        shape(Form::DeltaOfDelta, first, first_delta),
    ];
    // One value has no delta, two have no delta of delta.
    let count = if values.len() > 2 { 4 } else { values.len() };
    plain.into_iter().take(count).chain(line)
}

/// The line from the first to the last value; `None` where it would be no help.
fn line(values: &[i64]) -> Option<Shape> {
    let (&first, &last) = (values.first()?, values.last()?);
    let span = u64::try_from(last.checked_sub(first)?).ok()?;
    if values.len() < 4 || span > LINE_SPAN_MAX {
        return None;
    }
    let slope = (span << 16) / (values.len() as u64 - 1);
    let mut shape = Shape { form: Form::Line, first, low: 0, slope };
    let mut low = i64::MAX;
    shape.for_each_residual(values, |residual| low = low.min(residual as i64));
    shape.low = low;
    Some(shape)
}

/// Values that differ by multiples of a number only: that number, the first value, and how many times.
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
    // A divisor of two saves a bit a value but costs bytes; all equal values need none.
    if divisor < 2 || divisor > i64::MAX as u64 || values.len() * bit_width(divisor) as usize <= 40
    {
        return None;
    }
    let divided = values.iter().map(|&value| (value - first) / divisor as i64).collect();
    Some(((divisor, first), divided))
}

fn has_one_step(values: &[i64]) -> bool {
    let mut steps = values.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
    let first = steps.next();
    steps.all(|step| Some(step) == first)
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Shape {
    /// Calls `f` with each residual in order.
    #[inline]
    fn for_each_residual(&self, values: &[i64], mut f: impl FnMut(u64)) {
        let deltas = || values.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
        match self.form {
            Form::Frame => values.iter().for_each(|v| f(v.wrapping_sub(self.first) as u64)),
            Form::Delta => deltas().for_each(|delta| f(delta.wrapping_sub(self.low) as u64)),
            Form::SignedDelta => deltas().for_each(|delta| f(zigzag(delta))),
            Form::DeltaOfDelta => {
                let mut last = self.low;
                deltas().skip(1).for_each(|delta| {
                    f(zigzag(delta.wrapping_sub(last)));
                    last = delta;
                });
            }
            Form::Line => {
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
            Form::Frame | Form::Line => value_count,
            Form::Delta | Form::SignedDelta => value_count.saturating_sub(1),
            Form::DeltaOfDelta => value_count.saturating_sub(2),
        }
    }

    /// Makes values of all residuals, in place. The first `lead` places are for values that have none.
    fn restore(&self, values: &mut [u64], lead: usize) {
        let first = self.first as u64;
        let (start, residuals) = values.split_at_mut(lead.min(values.len()));
        if self.form != Form::DeltaOfDelta {
            start.fill(first);
            self.restore_from(residuals, lead, first);
            return;
        }
        let mut delta = self.low as u64;
        let mut last = first.wrapping_add(delta);
        start.iter_mut().zip([first, last]).for_each(|(place, value)| *place = value);
        for residual in residuals {
            delta = delta.wrapping_add(unzigzag(*residual) as u64);
            last = last.wrapping_add(delta);
            *residual = last;
        }
    }

    /// Makes values of the residuals of values `before..`, in place; `last` is the value before them.
    fn restore_from(&self, residuals: &mut [u64], before: usize, mut last: u64) {
        match self.form {
            Form::Frame => {
                let first = self.first as u64;
                residuals.iter_mut().for_each(|r| *r = r.wrapping_add(first));
            }
            Form::Delta => {
                for residual in residuals {
                    last = last.wrapping_add(*residual).wrapping_add(self.low as u64);
                    *residual = last;
                }
            }
            Form::SignedDelta => {
                for residual in residuals {
                    last = last.wrapping_add(unzigzag(*residual) as u64);
                    *residual = last;
                }
            }
            Form::Line => {
                for (idx, residual) in residuals.iter_mut().enumerate() {
                    let on_line = self.on_line(before + idx) as u64;
                    *residual = residual.wrapping_add(on_line).wrapping_add(self.low as u64);
                }
            }
            Form::DeltaOfDelta => unreachable!("its residuals are restored all at once"),
        }
    }

    fn parameter_bytes(&self) -> usize {
        let bytes = |value| crate::varint::varint_bytes(zigzag(value));
        let low = match self.form {
            Form::Frame | Form::SignedDelta => 0,
            Form::Delta | Form::DeltaOfDelta => bytes(self.low),
            Form::Line => bytes(self.low) + crate::varint::varint_bytes(self.slope),
        };
        bytes(self.first) + low
    }

    fn encode(&self, out: &mut Vec<u8>) {
        encode_zigzag(self.first, out);
        match self.form {
            Form::Frame | Form::SignedDelta => {}
            Form::Delta | Form::DeltaOfDelta => encode_zigzag(self.low, out),
            Form::Line => {
                encode_zigzag(self.low, out);
                encode_varint(self.slope, out);
            }
        }
    }

    fn take(form: Form, input: &mut &[u8]) -> Result<Shape> {
        let first = take_zigzag(input, "first integer")?;
        let mut shape = Shape { form, first, low: 0, slope: 0 };
        if !matches!(form, Form::Frame | Form::SignedDelta) {
            shape.low = take_zigzag(input, "lowest residual")?;
        }
        if form == Form::Line {
            shape.slope = take_varint(input, "slope")?;
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(values: &[i64], kind: Kind, effort: Effort) -> usize {
        let mut out = Vec::new();
        encode_integers(values, kind, effort, &mut out);
        let mut input = out.as_slice();
        let again = decode_integers(&mut input, values.len()).unwrap();
        assert!(input.is_empty(), "{values:?}");
        assert!(again.iter().map(|&value| value as i64).eq(values.iter().copied()), "{values:?}");
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
        assert!(check(&regular, Kind::Times, Effort::Small) <= 6);
        let seconds: Vec<i64> =
            (0..40).map(|idx| (idx * 170 + idx * idx * 31 % 97) * 1_000).collect();
        assert!(check(&seconds, Kind::Times, Effort::Small) <= 40 * 7 / 8 + 16);
        let jitter: Vec<i64> = (0..500).map(|idx| idx * 15_000 + idx * 7 % 13).collect();
        assert!(check(&jitter, Kind::Times, Effort::Small) <= 500 * 4 / 8 + 16);
        let mut reset: Vec<i64> = (0..300).map(|idx| idx * 4096).collect();
        reset.iter_mut().skip(200).for_each(|value| *value -= 200 * 4096);
        assert!(check(&reset, Kind::Values, Effort::Small) <= 30);
        assert!(check(&[i64::MIN, i64::MAX, 0, -1], Kind::Values, Effort::Fast) <= 50);
    }

    proptest! {
        #[test]
        fn any_integers_come_back(
            values in prop::collection::vec(
                prop_oneof![any::<i64>(), -9i64..9, Just(i64::MIN), Just(i64::MAX)], 1..70),
            times in any::<bool>(),
            small in any::<bool>(),
        ) {
            let kind = if times { Kind::Times } else { Kind::Values };
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
        fn close_integers_come_back(
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
            check(&values, Kind::Values, if small { Effort::Small } else { Effort::Fast });
        }
    }
}
