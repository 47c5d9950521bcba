//! A histogram as text, in Prometheus' form: `{count:4, sum:5, [-1,-0.5):1, (0.5,1]:3}`.

use std::fmt::Write as _;

use firn_model::Histogram;

use super::buckets::all_buckets;
use crate::syntax::format_g;

/// A histogram in Prometheus' form. Buckets without observations are left out.
pub fn text(histogram: &Histogram) -> String {
    let (count, sum) = (format_g(histogram.count), format_g(histogram.sum));
    let mut text = format!("{{count:{count}, sum:{sum}");
    for bucket in all_buckets(histogram).iter().filter(|bucket| bucket.count != 0.0) {
        let open = if bucket.lower_inclusive { '[' } else { '(' };
        let close = if bucket.upper_inclusive { ']' } else { ')' };
        let (lower, upper) = (format_g(bucket.lower), format_g(bucket.upper));
        let count = format_g(bucket.count);
        // Writing to a string cannot fail.
        let _ = write!(text, ", {open}{lower},{upper}{close}:{count}");
    }
    text.push('}');
    text
}
