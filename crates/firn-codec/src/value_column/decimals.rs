//! A column as integers of one scale, with a few exceptions.

#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::indexing_slicing
    )
)]

use crate::decimal::Scale;

/// A column of decimals.
pub(super) struct Decimals {
    pub(super) scale: Scale,
    /// One per value; an exception repeats the previous integer.
    pub(super) integers: Vec<i64>,
    /// Entry and bits of values that are not decimals of this scale, by entry.
    pub(super) exceptions: Vec<(usize, u64)>,
}

impl Decimals {
    /// The smallest scale that represents all but at most an eighth of the values.
    pub(super) fn of(values: &[f64]) -> Option<Decimals> {
        let exceptions_max = values.len() / 8;
        let scale = common_scale(values, exceptions_max)?;
        let mut integers = Vec::with_capacity(values.len());
        let mut exceptions = Vec::new();
        let mut last = None;
        for (idx, value) in values.iter().enumerate() {
            match scale.exact(*value) {
                Some(d) => {
                    // Exceptions at the front take the first integer that follows.
                    if last.is_none() {
                        integers.fill(d);
                    }
                    last = Some(d);
                    integers.push(d);
                }
                None => {
                    exceptions.push((idx, value.to_bits()));
                    if exceptions.len() > exceptions_max {
                        return None;
                    }
                    integers.push(last.unwrap_or(0));
                }
            }
        }
        Some(Decimals { scale, integers, exceptions })
    }
}

/// A column of values near decimals of few digits, such as sums of decimals.
pub(super) struct NearDecimals {
    pub(super) scale: Scale,
    pub(super) integers: Vec<i64>,
    /// Units in the last place from the decimal to the value.
    pub(super) errors: Vec<i64>,
}

impl NearDecimals {
    /// The smallest scale with all but at most an eighth of the values near its decimals.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "encodes values of the caller, not stored bytes"
    )]
    pub(super) fn of(values: &[f64]) -> Option<NearDecimals> {
        let mut scale = Scale::ONE;
        let mut far = 0;
        for value in values {
            match Scale::find_near(*value) {
                Some((near, ..)) => scale = scale.union(near),
                None if *value == 0.0 => {}
                None => far += 1,
            }
            if far > values.len() / 8 {
                return None;
            }
        }
        let mut last = 0;
        let (mut integers, mut errors) = (Vec::new(), Vec::new());
        for value in values {
            // A staleness marker takes the previous integer and has a large error.
            last = if value.is_finite() { scale.nearest(*value) } else { last };
            integers.push(last);
            errors.push(scale.error(*value, last));
        }
        Some(NearDecimals { scale, integers, errors })
    }
}

/// The doubles of integers.
pub(super) fn values(scale: Scale, integers: &[u64]) -> Vec<f64> {
    let mut values = Vec::with_capacity(integers.len());
    extend(scale, integers, &mut values);
    values
}

/// Appends the doubles of integers to `out`.
pub(super) fn extend(scale: Scale, integers: &[u64], out: &mut Vec<f64>) {
    // Separate loops, so that the scale is not tested for each value.
    if scale == Scale::ONE {
        out.extend(integers.iter().map(|&d| Scale::ONE.value(d as i64)));
    } else {
        out.extend(integers.iter().map(|&d| scale.value(d as i64)));
    }
}

/// The largest of the values' own scales; `None` if more than `exceptions_max` have none.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "encodes values of the caller, not stored bytes"
)]
fn common_scale(values: &[f64], exceptions_max: usize) -> Option<Scale> {
    let mut common = Scale::ONE;
    let mut exceptions = 0;
    for value in values {
        if common.exact(*value).is_some() {
            continue;
        }
        match Scale::find(*value) {
            Some((scale, _)) => common = common.union(scale),
            None => {
                exceptions += 1;
                if exceptions > exceptions_max {
                    return None;
                }
            }
        }
    }
    Some(common)
}
