//! The φ-quantile of plain values.

/// The `q`-quantile of `values`, which are sorted here, NaN first. Between two values it is their weighted
/// mean; outside [0, 1] infinite.
pub(crate) fn quantile(q: f64, values: &mut [f64]) -> f64 {
    if values.is_empty() || q.is_nan() {
        return f64::NAN;
    }
    if q < 0.0 {
        return f64::NEG_INFINITY;
    }
    if q > 1.0 {
        return f64::INFINITY;
    }
    values.sort_unstable_by(|a, b| b.is_nan().cmp(&a.is_nan()).then(a.total_cmp(b)));
    let rank = q * (values.len() - 1) as f64;
    let lower = rank.floor() as usize;
    let upper = (lower + 1).min(values.len() - 1);
    let weight = rank - rank.floor();
    values[lower] * (1.0 - weight) + values[upper] * weight
}

/// The median of the distances to the median; NaN if any value is.
pub(crate) fn median_deviation(values: &mut [f64]) -> f64 {
    if values.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    let median = quantile(0.5, values);
    for value in values.iter_mut() {
        *value = (*value - median).abs();
    }
    quantile(0.5, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(0.75, &mut [4.0, 0.0, 1.0]), 2.5);
        assert_eq!(quantile(1.0, &mut [0.0]), 0.0);
        assert!(quantile(0.2, &mut [0.0, f64::NAN, 1.0]).is_nan());
        assert_eq!(median_deviation(&mut [4.0, 6.0, 2.0, 1.0, 999.0, 1.0, 2.0]), 1.0);
    }
}
