//! The precision of an expression's values. Two correct implementations may add in different
//! orders, and a difference in the last bit must not change the result.

use super::world::MetricKind;

/// The known properties of a vector's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traits {
    pub(super) digits: Digits,
    /// No value is negative.
    pub(super) is_positive: bool,
    /// No two series have the same value at a time.
    pub(super) is_distinct: bool,
    /// No NaN, no infinity, no value so large that other terms of a sum vanish.
    pub(super) is_tame: bool,
}

/// The number of digits on which all correct implementations agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Digits {
    /// Some, unless the value is near zero: such a value consists of rounding errors.
    Noise,
    /// All but the last few.
    Close,
    /// Every bit.
    Exact,
}

use Digits::{Close, Exact, Noise};

/// Small integers, some of them equal.
pub(super) const SMALL: Traits =
    Traits { digits: Exact, is_positive: true, is_distinct: false, is_tame: true };

/// Functions that return or count samples, and so accept any value.
const SELECTING: [&str; 9] = [
    "changes",
    "count_over_time",
    "first_over_time",
    "idelta",
    "last_over_time",
    "max_over_time",
    "min_over_time",
    "present_over_time",
    "resets",
];

impl Traits {
    pub(super) fn of_kind(kind: MetricKind) -> Traits {
        Traits {
            digits: Exact,
            is_positive: !matches!(kind, MetricKind::Gauge | MetricKind::Wild),
            is_distinct: kind == MetricKind::Gauge,
            is_tame: kind != MetricKind::Wild,
        }
    }

    /// The traits of a value that has one or the other.
    pub(super) fn or(self, other: Traits) -> Traits {
        Traits {
            digits: self.digits.min(other.digits),
            is_positive: self.is_positive && other.is_positive,
            is_distinct: false,
            is_tame: self.is_tame && other.is_tame,
        }
    }

    /// The traits of a sum: terms of both signs cancel.
    fn sum(self) -> Traits {
        let digits = if self.is_positive { self.digits.min(Close) } else { Noise };
        Traits { digits, is_distinct: false, ..self }
    }

    /// Whether the window function accepts such values.
    pub(super) fn fit_window(self, name: &str) -> bool {
        match name {
            // The last bit decides whether values are equal or greater.
            "changes" | "resets" | "rate" | "increase" | "irate" => {
                self.is_tame && self.digits == Exact
            }
            _ if name.starts_with("ts_of") => self.digits == Exact,
            // A sum of numbers that cancel depends on the order of its additions, which is that of
            // the samples.
            "sum_over_time" => self.is_tame || self.digits == Exact,
            _ => self.is_tame || SELECTING.contains(&name),
        }
    }

    /// The traits of the window function's result. `is_plain` for a selector's window, not a
    /// subquery's.
    pub(super) fn of_window(self, name: &str, is_plain: bool) -> Traits {
        let kept = Traits { is_distinct: self.is_distinct && is_plain, ..self };
        match name {
            "count_over_time" | "present_over_time" | "changes" | "resets" => SMALL,
            "first_over_time" | "last_over_time" | "max_over_time" | "min_over_time" => kept,
            "idelta" => Traits { is_positive: false, ..self.sum_unless_exact() },
            "avg_over_time" | "sum_over_time" | "quantile_over_time" => {
                Traits { is_distinct: kept.is_distinct, ..self.sum() }
            }
            "rate" | "increase" | "irate" => self.sum(),
            "delta" => Traits {
                digits: self.sum_unless_exact().digits.min(Close),
                is_positive: false,
                is_distinct: kept.is_distinct,
                ..self
            },
            // Times: large numbers with small differences.
            _ if name.starts_with("ts_of") => Traits { is_tame: false, ..SMALL },
            _ => Traits { digits: Noise, is_positive: false, is_distinct: false, ..self },
        }
    }

    /// A single difference of two exact numbers is rounded exactly; a difference of other numbers
    /// may have no correct digit.
    fn sum_unless_exact(self) -> Traits {
        let digits = if self.digits == Exact { Exact } else { Noise };
        Traits { digits, is_distinct: false, ..self }
    }

    /// Whether the mathematical function accepts such values.
    pub(super) fn fit_math(self, name: &str) -> bool {
        match name {
            // These have a step or an end between two neighbouring numbers.
            "ceil" | "floor" | "round" | "sgn" | "acos" | "asin" | "acosh" | "atanh" => {
                self.digits == Exact
            }
            // The poles are between neighbouring numbers, and large arguments have no fractional
            // digits.
            "tan" => self.is_tame && self.digits == Exact,
            // These end at zero, and Go's logarithm is wrong for subnormal numbers.
            "ln" | "log2" | "log10" => self.is_tame && self.digits >= Close,
            "sqrt" => self.digits >= Close,
            // Large arguments have no fractional digits.
            "sin" | "cos" => self.is_tame && self.digits >= Close,
            _ => true,
        }
    }

    /// The traits of the mathematical function's result.
    pub(super) fn of_math(self, name: &str) -> Traits {
        let keeps_digits = ["abs", "ceil", "clamp", "clamp_max", "clamp_min", "floor", "round"];
        // Linear through zero, or never near zero.
        let keeps_closeness =
            ["asinh", "atan", "cosh", "deg", "exp", "rad", "sinh", "sqrt", "tanh"];
        let digits = match name {
            "sgn" | "timestamp" => Exact,
            _ if keeps_digits.contains(&name) => self.digits,
            _ if self.digits == Exact || keeps_closeness.contains(&name) => self.digits.min(Close),
            _ => Noise,
        };
        let keeps_sign = ["asinh", "atan", "ceil", "deg", "floor", "rad", "round", "sgn", "sinh"];
        let is_positive = ["abs", "cosh", "exp", "sqrt"].contains(&name)
            || name == "timestamp"
            || (self.is_positive && keeps_sign.contains(&name));
        let stays_small =
            ["abs", "asinh", "atan", "ceil", "cos", "floor", "round", "sgn", "sin", "tanh"];
        let is_tame = self.is_tame && stays_small.contains(&name);
        Traits { digits, is_positive, is_distinct: false, is_tame }
    }

    /// Whether the aggregation accepts such values.
    pub(super) fn fit_aggregation(self, name: &str) -> bool {
        match name {
            "count_values" => self.digits == Exact,
            "sum" | "avg" | "stddev" | "stdvar" | "quantile" => self.is_tame,
            _ => true,
        }
    }

    /// The traits of the aggregation's result.
    pub(super) fn of_aggregation(self, name: &str) -> Traits {
        match name {
            "count" | "group" | "count_values" | "limitk" => SMALL,
            "max" | "min" => Traits { is_distinct: false, ..self },
            "topk" | "bottomk" | "limit_ratio" => self,
            "stddev" | "stdvar" => Traits { digits: Noise, is_distinct: false, ..self },
            _ => self.sum(),
        }
    }

    /// Whether the operator accepts such operands.
    pub(super) fn fit_operator(self, op: &str, rhs: Traits) -> bool {
        match op {
            "*" => true,
            "/" => rhs.digits >= Close,
            "+" | "-" => self.is_tame && rhs.is_tame,
            // These have steps: at equality, at whole multiples, at zero.
            _ => self.digits == Exact && rhs.digits == Exact,
        }
    }

    /// The traits of the operator's result.
    pub(super) fn of_operator(self, op: &str, rhs: Traits) -> Traits {
        let both = self.or(rhs);
        match op {
            "+" if both.is_positive => both,
            "+" | "-" => Traits { is_positive: false, ..both.sum_unless_exact() },
            "*" | "/" => Traits { is_tame: false, ..both },
            "%" => Traits { is_tame: false, is_positive: self.is_positive, ..both },
            "^" => Traits { digits: Close, is_tame: false, ..both },
            "atan2" => Traits { digits: Close, is_positive: false, is_tame: true, ..both },
            _ => Traits { is_distinct: false, ..self },
        }
    }
}
