//! Selectors, windows and time modifiers.

use firn_model::{Labels, METRIC_NAME, MatchOp, Matcher};
use firn_promql::test_util::go_quote;

use super::dialect::Dialect;
use super::generator::Generator;
use super::traits::Traits;
use super::vector::{ATOM, VectorText, distinct, unique};
use super::world::MetricKind;

/// The requirement on a selector's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueNeed {
    Any,
    /// Values of one kind.
    Of(MetricKind),
    /// Without NaN and infinities.
    Tame,
}

/// A window's text and the series in it.
pub(super) struct WindowText {
    pub(super) text: String,
    pub(super) series: Vec<Labels>,
    pub(super) traits: Traits,
    /// Whether it is a selector's window and not a subquery's.
    pub(super) is_plain: bool,
}

/// Multiples of 10 s, as [`Generator::times`] requires.
const WINDOWS: [&str; 9] = ["1m", "2m", "100s", "3m20s", "5m", "10m", "30m", "1h", "20m"];
const OFFSETS: [&str; 6] = ["10s", "1m", "5m", "450s", "7m30s", "20m"];
/// A multiple of 10 s plus 7 s, so that no evaluation of a subquery is on its window's boundary.
const SUBQUERY_RANGES: [&str; 5] = ["2m7s", "307s", "10m7s", "4m47s", "17m37s"];
const SUBQUERY_STEPS: [&str; 6] = ["10s", "30s", "1m", "90s", "", ""];

impl Generator<'_> {
    /// An instant selector.
    pub(super) fn selector(&mut self, wanted: ValueNeed) -> VectorText {
        let (text, series, traits) = self.series(wanted);
        let when = self.when();
        VectorText { text: format!("{text}{when}"), level: ATOM, series, traits }
    }

    /// `selector[range]` or `(expr)[range:step]`.
    pub(super) fn window(&mut self, depth: u32, wanted: ValueNeed) -> WindowText {
        if depth > 0 && self.choices.below(10) < 3 {
            return self.subquery(depth);
        }
        for _ in 0..8 {
            let (text, series, traits) = self.series(wanted);
            // Range functions drop the name.
            if unique(series.iter().map(super::vector::nameless)).is_some() {
                let (range, when) = (self.length(&WINDOWS), self.when());
                let text = format!("{text}[{range}]{when}");
                return WindowText { text, series, traits, is_plain: true };
            }
        }
        self.plain_window()
    }

    /// A window of all series of the first gauge metric, without time modifiers.
    pub(super) fn plain_window(&mut self) -> WindowText {
        let VectorText { text, series, traits, .. } = self.gauge();
        let range = self.length(&WINDOWS);
        WindowText { text: format!("{text}[{range}]"), series, traits, is_plain: true }
    }

    fn subquery(&mut self, depth: u32) -> WindowText {
        let inner = self.unnamed_vector(depth - 1);
        let text = if inner.level == ATOM && !inner.text.contains([' ', '[']) {
            inner.text.clone()
        } else {
            format!("({})", inner.text)
        };
        let range = *self.choices.pick(&SUBQUERY_RANGES);
        let step = *self.choices.pick(&SUBQUERY_STEPS);
        let when = self.when();
        WindowText {
            text: format!("{text}[{range}:{step}]{when}"),
            series: inner.series,
            traits: inner.traits,
            is_plain: false,
        }
    }

    /// One of `lengths`; in the newer dialect sometimes written as a number or a computation.
    fn length(&mut self, lengths: &[&str]) -> String {
        let length = *self.choices.pick(lengths);
        if self.dialect == Dialect::V2 || !self.choices.one_in(6) {
            return length.to_owned();
        }
        match self.choices.below(4) {
            0 => format!("{length} * 2"),
            1 => format!("{length} + step()"),
            2 => format!("max_of({length}, step())"),
            _ => "300".to_owned(),
        }
    }

    /// A metric with some matchers, and the series that match.
    fn series(&mut self, wanted: ValueNeed) -> (String, Vec<Labels>, Traits) {
        let metrics: Vec<(&str, MetricKind)> = self
            .metrics
            .iter()
            .filter(|(_, kind)| match wanted {
                ValueNeed::Any => true,
                ValueNeed::Of(wanted) => **kind == wanted,
                ValueNeed::Tame => **kind != MetricKind::Wild,
            })
            .map(|(name, kind)| (name.as_str(), *kind))
            .collect();
        let (name, kind) = *self.choices.pick(&metrics);
        let (name, mut traits) = (name.to_owned(), Traits::of_kind(kind));
        let mut names = vec![name.clone()];
        let mut matchers: Vec<(Matcher, String)> = Vec::new();
        let mut head = name.clone();
        match self.choices.below(12) {
            0 => {
                head.clear();
                matchers.push(matcher(METRIC_NAME, MatchOp::Equal, &name));
            }
            1 => {
                let (other, kind) = *self.choices.pick(&metrics);
                traits = traits.or(Traits::of_kind(kind));
                names.push(other.to_owned());
                head.clear();
                matchers.push(matcher(METRIC_NAME, MatchOp::Regex, &names.join("|")));
            }
            _ => {}
        }
        let mut found: Vec<Labels> = self
            .world
            .series
            .iter()
            .filter(|series| names.iter().any(|name| series.labels.metric_name() == name))
            .map(|series| series.labels.clone())
            .collect();
        for _ in 0..self.choices.below(3) {
            let one = self.matcher(&found);
            let kept: Vec<Labels> = found
                .iter()
                .filter(|labels| one.0.matches(labels.get(one.0.name()).unwrap_or("")))
                .cloned()
                .collect();
            if !kept.is_empty() {
                found = kept;
                matchers.push(one);
            }
        }
        let texts: Vec<String> = matchers.into_iter().map(|matcher| matcher.1).collect();
        let braces =
            if texts.is_empty() { String::new() } else { format!("{{{}}}", texts.join(",")) };
        (format!("{head}{braces}"), distinct(found.into_iter()), traits)
    }

    /// A matcher that usually keeps some of `found`.
    fn matcher(&mut self, found: &[Labels]) -> (Matcher, String) {
        let labels = self.choices.pick(found).clone();
        let pairs: Vec<(&str, &str)> = labels.iter().filter(|p| p.0 != METRIC_NAME).collect();
        if pairs.is_empty() || self.choices.one_in(12) {
            let op = *self.choices.pick(&[MatchOp::Equal, MatchOp::Regex]);
            return matcher("absent_label", op, "");
        }
        let (name, value) = *self.choices.pick(&pairs);
        let other = self.choices.pick(found).get(name).unwrap_or("").to_owned();
        let first = value.chars().next().map(String::from).unwrap_or_default();
        let escaped = regex::escape(value);
        let pattern = match self.choices.below(7) {
            0 => ".+".to_owned(),
            1 => format!("{}.*", regex::escape(&first)),
            2 => format!(".*{}", regex::escape(&value[first.len()..])),
            3 => format!("(?i:{})", escaped.to_uppercase()),
            4 => format!("[^{}].*|{escaped}", regex::escape(&first)),
            5 => format!("({escaped}|{})?", regex::escape(&other)),
            _ => format!("{escaped}|{}", regex::escape(&other)),
        };
        match *self.steer(&["matcher =", "matcher !=", "matcher =~", "matcher !~"]) {
            "matcher =" => matcher(name, MatchOp::Equal, value),
            "matcher !=" => matcher(name, MatchOp::NotEqual, &other),
            "matcher =~" => matcher(name, MatchOp::Regex, &pattern),
            _ => matcher(name, MatchOp::NotRegex, &pattern),
        }
    }

    /// `offset` and `@` in both orders; usually empty.
    pub(super) fn when(&mut self) -> String {
        let offset = match self.choices.one_in(8) {
            true => {
                let sign = match *self.steer(&["offset", "offset negative"]) {
                    "offset" => "",
                    _ => "-",
                };
                format!(" offset {sign}{}", self.choices.pick(&OFFSETS))
            }
            false => String::new(),
        };
        let at = match self.choices.one_in(8) {
            true => match *self.steer(&["@ time", "@ start()", "@ end()"]) {
                "@ time" => {
                    let ms = *self.choices.pick(&self.times());
                    format!(" @ {}", ms / 1_000)
                }
                name => format!(" {name}"),
            },
            false => String::new(),
        };
        if self.choices.one_in(2) { format!("{offset}{at}") } else { format!("{at}{offset}") }
    }
}

fn matcher(name: &str, op: MatchOp, value: &str) -> (Matcher, String) {
    let text = match op {
        MatchOp::Equal => "=",
        MatchOp::NotEqual => "!=",
        MatchOp::Regex => "=~",
        MatchOp::NotRegex => "!~",
    };
    let text = format!("{name}{text}{}", go_quote(value.as_bytes()));
    (Matcher::new(name, op, value).expect("a pattern of our own"), text)
}
