//! Function calls.

use firn_model::{Labels, METRIC_NAME};
use firn_promql::test_util::go_quote;
use regex::Regex;

use super::dialect::{Availability, Dialect};
use super::generator::Generator;
use super::select::{ValueNeed, WindowText};
use super::traits::{Digits, SMALL, Traits};
use super::vector::{ATOM, ScalarText, VectorText, distinct, unique};
use super::world::MetricKind;

use Availability::{Always, V3};

/// Functions from a window to a number.
pub(super) const RANGE: [(&str, Availability); 27] = [
    ("absent_over_time", Always),
    ("avg_over_time", Always),
    ("changes", Always),
    ("count_over_time", Always),
    ("delta", Always),
    ("deriv", Always),
    ("double_exponential_smoothing", Always),
    ("first_over_time", V3),
    ("idelta", Always),
    ("increase", Always),
    ("irate", Always),
    ("last_over_time", Always),
    ("mad_over_time", V3),
    ("max_over_time", Always),
    ("min_over_time", Always),
    ("predict_linear", Always),
    ("present_over_time", Always),
    ("quantile_over_time", Always),
    ("rate", Always),
    ("resets", Always),
    ("stddev_over_time", Always),
    ("stdvar_over_time", Always),
    ("sum_over_time", Always),
    ("ts_of_first_over_time", V3),
    ("ts_of_last_over_time", V3),
    ("ts_of_max_over_time", V3),
    ("ts_of_min_over_time", V3),
];

/// Functions from a number to a number.
pub(super) const MATH: [(&str, Availability); 28] = [
    ("abs", Always),
    ("acos", Always),
    ("acosh", Always),
    ("asin", Always),
    ("asinh", Always),
    ("atan", Always),
    ("atanh", Always),
    ("ceil", Always),
    ("clamp", Always),
    ("clamp_max", Always),
    ("clamp_min", Always),
    ("cos", Always),
    ("cosh", Always),
    ("deg", Always),
    ("exp", Always),
    ("floor", Always),
    ("ln", Always),
    ("log10", Always),
    ("log2", Always),
    ("rad", Always),
    ("round", Always),
    ("sgn", Always),
    ("sin", Always),
    ("sinh", Always),
    ("sqrt", Always),
    ("tan", Always),
    ("tanh", Always),
    ("timestamp", Always),
];

pub(super) const CLOCK: [(&str, Availability); 8] = [
    ("day_of_month", Always),
    ("day_of_week", Always),
    ("day_of_year", Always),
    ("days_in_month", Always),
    ("hour", Always),
    ("minute", Always),
    ("month", Always),
    ("year", Always),
];

/// Functions with a form of their own.
pub(super) const SPECIAL: [(&str, Availability); 14] = [
    ("absent", Always),
    ("histogram_fraction", V3),
    ("histogram_quantile", Always),
    ("histogram_quantiles", V3),
    ("info", V3),
    ("label_join", Always),
    ("label_replace", Always),
    ("sort", Always),
    ("sort_by_label", V3),
    ("sort_by_label_desc", V3),
    ("sort_desc", Always),
    ("vector", Always),
    // Twice as often as the others, because it has many forms.
    ("label_replace", Always),
    ("histogram_quantile", Always),
];

/// Scalars that are calls.
pub(super) const SCALARS: [(&str, Availability); 9] = [
    ("end", V3),
    ("max_of", V3),
    ("min_of", V3),
    ("pi", Always),
    ("range", V3),
    ("scalar", Always),
    ("start", V3),
    ("step", V3),
    ("time", Always),
];

impl Generator<'_> {
    pub(super) fn range_call(&mut self, depth: u32) -> VectorText {
        let name = self.steer_available(&RANGE);
        if name == "absent_over_time" {
            let absent = self.nothing();
            let window = match self.choices.one_in(4) {
                true => self.window(0, ValueNeed::Any).text,
                false => format!("{absent}[5m]"),
            };
            return VectorText::atom(format!("{name}({window})"), self.absent_labels(), SMALL);
        }
        let mut window = self.window(depth, ValueNeed::Any);
        if !window.traits.fit_window(name) {
            window = self.window(0, ValueNeed::Tame);
        }
        // Prometheus 2 and 3 extrapolate towards zero differently if the first sample is small and
        // far from the window's start. Counters of the world are never like that.
        if ["rate", "increase"].contains(&name) && self.dialect == Dialect::V2 {
            let kind = *self.choices.pick(&[MetricKind::Counter, MetricKind::Bucket]);
            window = self.window(0, ValueNeed::Of(kind));
        }
        // Prometheus moves the window of this function in spite of `@` (its issue 11708).
        if name == "predict_linear" && window.text.contains('@') {
            window = self.plain_window();
        }
        let mut traits = window.traits.of_window(name, window.is_plain);
        let text = match name {
            "quantile_over_time" => {
                let quantile = self.quantile();
                // Outside 0 to 1 every series has the same infinite value.
                let is_finite = !["-1", "2"].contains(&quantile);
                traits.is_tame &= is_finite;
                traits.is_distinct &= is_finite;
                format!("{name}({quantile}, {})", window.text)
            }
            "predict_linear" => {
                let ahead = self.scalar(depth.saturating_sub(1)).text;
                format!("{name}({}, {ahead})", window.text)
            }
            "double_exponential_smoothing" => {
                let smoothing = *self.choices.pick(&["0.1", "0.5", "0.9"]);
                let trend = *self.choices.pick(&["0.1", "0.3", "0.8"]);
                format!("{name}({}, {smoothing}, {trend})", window.text)
            }
            _ => {
                let borders = self.borders(name, &window);
                format!("{name}({}{borders})", window.text)
            }
        };
        let series = match name {
            // These return the samples themselves, with their name.
            "last_over_time" | "first_over_time" => window.series,
            _ => distinct(window.series.iter().map(super::vector::nameless)),
        };
        VectorText::atom(text, series, traits)
    }

    /// `anchored` or `smoothed`, if the function supports it.
    fn borders(&mut self, name: &str, window: &WindowText) -> &'static str {
        let takes = match name {
            "rate" | "increase" | "delta" => 2,
            "changes" | "resets" => 1,
            _ => 0,
        };
        let is_free = !window.text.contains(['@', ' ']);
        if self.dialect == Dialect::V2 || takes == 0 || !window.is_plain || !is_free {
            return "";
        }
        match *self.steer(&["plain borders", "anchored", "smoothed"]) {
            "anchored" => " anchored",
            "smoothed" if takes == 2 => " smoothed",
            _ => "",
        }
    }

    pub(super) fn math_call(&mut self, depth: u32) -> VectorText {
        let name = self.steer_available(&MATH);
        let inner = self.vector_with(depth - 1, |inner| {
            let fits = inner.nameless().is_some() && inner.traits.fit_math(name);
            fits && (name != "timestamp" || !forgets_offset(&inner.text))
        });
        let more = match name {
            "clamp" => {
                let (low, high) = (self.scalar(depth - 1), self.scalar(depth - 1));
                format!(", {}, {}", low.text, high.text)
            }
            "clamp_min" | "clamp_max" => format!(", {}", self.scalar(depth - 1).text),
            "round" => self.choices.pick(&["", ", 5", ", 0.1", ", 1e3"]).to_string(),
            _ => String::new(),
        };
        let traits = inner.traits.of_math(name);
        let series = inner.nameless().unwrap_or_default();
        VectorText::atom(format!("{name}({}{more})", inner.text), series, traits)
    }

    pub(super) fn clock_call(&mut self, depth: u32) -> VectorText {
        let name = self.steer_available(&CLOCK);
        match self.choices.below(3) {
            0 => VectorText::atom(format!("{name}()"), vec![Labels::empty()], SMALL),
            1 => {
                // Times that overflow have no correct result.
                let text = format!("{name}(vector({} * time()))", self.scalar(0).text);
                VectorText::atom(text, vec![Labels::empty()], SMALL)
            }
            _ => {
                let inner = self.vector_with(depth - 1, |inner| {
                    // Infinities, NaN and numbers out of range have a date too.
                    inner.nameless().is_some() && inner.traits.digits == Digits::Exact
                });
                let series = inner.nameless().unwrap_or_default();
                let text = match self.choices.one_in(2) && !forgets_offset(&inner.text) {
                    true => format!("{name}(timestamp({}))", inner.text),
                    false => format!("{name}({})", inner.text),
                };
                VectorText::atom(text, series, SMALL)
            }
        }
    }

    pub(super) fn special_call(&mut self, depth: u32) -> VectorText {
        let name = self.steer_available(&SPECIAL);
        match name {
            "absent" => {
                let inner = match self.choices.one_in(4) {
                    true => self.vector(depth - 1).text,
                    false => self.nothing() + &self.when(),
                };
                VectorText::atom(format!("absent({inner})"), self.absent_labels(), SMALL)
            }
            "histogram_quantile" | "histogram_quantiles" | "histogram_fraction" => {
                self.histogram_call(name)
            }
            "info" => {
                let inner = self.vector_with(0, |inner| inner.label_names().len() > 1);
                let labels = *self.choices.pick(&["", ", {region=~\".+\"}", ", {region!=\"eu\"}"]);
                // The added labels are unknown, so no other expression is built on it.
                VectorText::atom(format!("info({}{labels})", inner.text), Vec::new(), inner.traits)
            }
            "label_join" | "label_replace" => self.label_call(name, depth),
            "vector" => {
                let text = format!("vector({})", self.scalar(depth - 1).text);
                let traits =
                    Traits { digits: Digits::Close, is_positive: false, is_tame: false, ..SMALL };
                VectorText::atom(text, vec![Labels::empty()], traits)
            }
            _ => {
                let inner = self.vector(depth - 1);
                let by = if name.starts_with("sort_by") { ", \"job\", \"code\"" } else { "" };
                let text = format!("{name}({}{by})", inner.text);
                VectorText::atom(text, inner.series, inner.traits)
            }
        }
    }

    /// Quantiles of the classic histogram: plain, as rates, or summed first.
    fn histogram_call(&mut self, name: &str) -> VectorText {
        let buckets = self.window(0, ValueNeed::Of(MetricKind::Bucket));
        let inner = match self.choices.below(4) {
            0 => self.selector(ValueNeed::Of(MetricKind::Bucket)).text,
            1 => format!("rate({})", buckets.text),
            2 => format!("sum by (le) (increase({}))", buckets.text),
            _ => format!("sum by (job, le) (rate({}))", buckets.text),
        };
        let text = match name {
            "histogram_quantile" => format!("{name}({}, {inner})", self.quantile()),
            "histogram_quantiles" => format!("{name}({inner}, \"q\", 0.5, 0.9)"),
            _ => format!("{name}(0, {}, {inner})", self.choices.pick(&["0.3", "2", "+Inf"])),
        };
        // The remaining labels depend on the form; a sum over all of them is always correct.
        let series = vec![Labels::empty()];
        let traits = Traits { digits: Digits::Close, is_tame: false, ..SMALL };
        VectorText::atom(format!("max({text})"), series, traits)
    }

    fn label_call(&mut self, name: &str, depth: u32) -> VectorText {
        for _ in 0..4 {
            let inner = self.vector(depth - 1);
            let names = inner.label_names();
            if names.is_empty() {
                continue;
            }
            let source = self.choices.pick(&names).clone();
            let target = match self.choices.below(3) {
                0 => self.choices.pick(&names).clone(),
                1 => METRIC_NAME.to_owned(),
                _ => "fresh".to_owned(),
            };
            let found = match name {
                "label_join" => self.label_join(&inner, &target, &source, &names),
                _ => self.label_replace(&inner, &target, &source),
            };
            if let Some(found) = found {
                return found;
            }
        }
        self.selector(ValueNeed::Any)
    }

    /// `None` if two series would become equal.
    fn label_join(
        &mut self,
        inner: &VectorText,
        target: &str,
        source: &str,
        names: &[String],
    ) -> Option<VectorText> {
        let other = self.choices.pick(names);
        let text =
            format!("label_join({}, \"{target}\", \"-\", \"{source}\", \"{other}\")", inner.text);
        let joined = inner.series.iter().map(|labels| {
            let value = |name: &str| labels.get(name).unwrap_or("").to_owned();
            labels.with(target, &format!("{}-{}", value(source), value(other)))
        });
        Some(VectorText::atom(text, unique(joined)?, inner.traits))
    }

    /// `None` if two series would become equal.
    fn label_replace(
        &mut self,
        inner: &VectorText,
        target: &str,
        source: &str,
    ) -> Option<VectorText> {
        let patterns = ["(.*)", "(.)(.*)", "([^:]+):?.*", "api", "(?P<n>.+)"];
        let pattern = *self.choices.pick(&patterns);
        let replacement = *self.choices.pick(&["$1", "a$1b", "${1}", "fix", "$1-$2", "$n"]);
        let [new, wanted] = [replacement, pattern].map(|text| go_quote(text.as_bytes()));
        let text =
            format!("label_replace({}, \"{target}\", {new}, \"{source}\", {wanted})", inner.text);
        let regex = Regex::new(&format!("^(?:{pattern})$")).ok()?;
        let replaced = inner.series.iter().map(|labels| {
            let Some(captures) = regex.captures(labels.get(source).unwrap_or("")) else {
                return labels.clone();
            };
            let mut value = String::new();
            captures.expand(replacement, &mut value);
            labels.with(target, &value)
        });
        Some(VectorText::atom(text, unique(replaced)?, inner.traits))
    }

    /// A scalar.
    pub(super) fn scalar(&mut self, depth: u32) -> ScalarText {
        match self.choices.below(if depth == 0 { 5 } else { 11 }) {
            0..=4 => ScalarText::atom(
                *self
                    .choices
                    .pick(&["1", "2", "0.5", "10", "1e3", "0x1f", "100", "3.25", "0", "1e-3"]),
            ),
            5 => {
                let op = *self.steer(&super::operators::ARITHMETIC);
                let level = super::operators::level(op);
                let (a, b) = (self.scalar(depth - 1), self.scalar(depth - 1));
                let text = format!("{} {op} {}", a.operand(level), b.operand(level));
                ScalarText { text, level }
            }
            6 => {
                let op = *self.steer(&super::operators::COMPARISONS);
                let level = super::operators::level(op);
                // Comparing computed values would require exact bits.
                let (a, b) = (self.scalar(0), self.scalar(0));
                let text = format!("{} {op} bool {}", a.operand(level), b.operand(level));
                ScalarText { text, level }
            }
            7 => {
                let inner = self.scalar(depth - 1);
                let sign =
                    if *self.steer(&["unary -", "unary +"]) == "unary -" { "-" } else { "+" };
                let text = format!("{sign}{}", inner.operand(super::vector::UNARY));
                ScalarText { text, level: super::vector::UNARY }
            }
            _ => match self.steer_available(&SCALARS) {
                "scalar" => {
                    let inner = self.vector_with(depth - 1, |inner| {
                        inner.traits.is_tame && inner.traits.digits == Digits::Exact
                    });
                    let text = match inner.series.len() {
                        1 => format!("scalar({})", inner.text),
                        _ => format!("scalar(max({}))", inner.text),
                    };
                    ScalarText { text, level: ATOM }
                }
                name @ ("max_of" | "min_of") => {
                    let (a, b) = (self.scalar(depth - 1), self.scalar(depth - 1));
                    ScalarText::atom(format!("{name}({}, {})", a.text, b.text))
                }
                name => ScalarText::atom(format!("{name}()")),
            },
        }
    }

    pub(super) fn quantile(&mut self) -> &'static str {
        const QUANTILES: [&str; 9] = ["0.5", "0.9", "0.99", "0", "1", "0.25", "0.123", "-1", "2"];
        self.choices.pick::<&'static str>(&QUANTILES)
    }

    /// A selector without series.
    fn nothing(&mut self) -> String {
        let forms = [
            "nothing{job=\"x\",a=~\"b\"}",
            "up{job=\"nowhere\"}",
            "{job=\"x\",none=\"y\"}",
            "nothing",
            "nothing{job!=\"y\",job=\"x\",a=\"1\",a=\"1\",b=\"2\",b!=\"3\"}",
        ];
        self.choices.pick(&forms).to_string()
    }

    /// The result of `absent`: labels that its argument equates. Only their number is used by other
    /// expressions.
    fn absent_labels(&self) -> Vec<Labels> {
        vec![Labels::empty()]
    }
}

/// Whether Prometheus computes a different `timestamp`: it ignores an `offset` beside `@` there.
fn forgets_offset(text: &str) -> bool {
    text.contains(" @ ") && text.contains(" offset ")
}
