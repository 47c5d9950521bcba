//! Operators between expressions, and aggregations.

use firn_model::{Labels, METRIC_NAME};
use firn_promql::test_util::go_quote;

use super::dialect::{Availability, Dialect};
use super::generator::Generator;
use super::operators::{ARITHMETIC, COMPARISONS, level};
use super::select::ValueNeed;
use super::traits::{SMALL, Traits};
use super::vector::{UNARY, VectorText, by_key, distinct, nameless, unique};
use super::world::MetricKind;

const SETS: [&str; 3] = ["and", "or", "unless"];
const GROUPINGS: [&str; 3] = ["by", "without", ""];
pub(super) const AGGREGATIONS: [(&str, Availability); 14] = [
    ("avg", Availability::Always),
    ("bottomk", Availability::Always),
    ("count", Availability::Always),
    ("count_values", Availability::Always),
    ("group", Availability::Always),
    ("limit_ratio", Availability::V3),
    ("limitk", Availability::V3),
    ("max", Availability::Always),
    ("min", Availability::Always),
    ("quantile", Availability::Always),
    ("stddev", Availability::Always),
    ("stdvar", Availability::Always),
    ("sum", Availability::Always),
    ("topk", Availability::Always),
];

/// A matching rule between two vectors.
struct MatchRule {
    /// `on (a) group_left (b) `, with the trailing space.
    clause: String,
    /// The indexes of the matching series, left and right.
    pairs: Vec<(usize, usize)>,
    key_of_result: ResultKey,
}

enum ResultKey {
    /// One to one: the labels named by `on`, or all except the ignored ones.
    Named { on: bool, labels: Vec<String> },
    /// Many to one: the labels of the many side, and some of the one side.
    Many { is_left: bool, include: Vec<String> },
}

impl Generator<'_> {
    pub(super) fn unary(&mut self, depth: u32) -> VectorText {
        let inner = self.vector_with(depth - 1, |inner| inner.nameless().is_some());
        let negates = *self.steer(&["unary -", "unary +"]) == "unary -";
        let series = match negates {
            true => inner.nameless().unwrap_or_default(),
            false => inner.series.clone(),
        };
        let text = format!("{}{}", if negates { "-" } else { "+" }, inner.operand(UNARY));
        VectorText { text, level: UNARY, series, traits: inner.traits }
    }

    pub(super) fn aggregation(&mut self, depth: u32) -> VectorText {
        let name = self.steer_available(&AGGREGATIONS);
        let is_top = ["topk", "bottomk"].contains(&name);
        let inner = if is_top {
            self.distinct_vector()
        } else {
            self.vector_with(depth - 1, |inner| inner.traits.fit_aggregation(name))
        };
        let param = match name {
            "topk" | "bottomk" => self.choices.pick(&["1", "2", "3", "5", "0", "100"]).to_string(),
            "limitk" => self.choices.pick(&["1", "2", "4"]).to_string(),
            "limit_ratio" => self.choices.pick(&["0.5", "-0.5", "0.2", "1"]).to_string(),
            "quantile" => self.quantile().to_owned(),
            // Prometheus 2.42 drops labels of `by` that sort after this one.
            "count_values" if self.dialect == Dialect::V2 => "\"z_value\"".to_owned(),
            "count_values" => go_quote(self.choices.pick(&["value", "code", "job"]).as_bytes()),
            _ => String::new(),
        };
        let grouping = *self.steer(&GROUPINGS);
        let mut labels = self.some_labels(&inner);
        if self.choices.one_in(10) {
            labels.push("absent_label".to_owned());
        }
        let argument = match param.is_empty() {
            true => inner.text.clone(),
            false => format!("{param}, {}", inner.text),
        };
        let clause = format!("{grouping} ({})", labels.join(", "));
        let text = match (grouping, self.choices.below(3)) {
            ("", _) => format!("{name}({argument})"),
            (_, 0) => format!("{name}({argument}) {clause}"),
            _ => format!("{name} {clause} ({argument})"),
        };
        // Storage decides which series limitk selects; only their number is defined.
        if name == "limitk" {
            let series = vec![Labels::empty()];
            return VectorText::atom(format!("count({text})"), series, SMALL);
        }
        let key = |series: &Labels| match grouping {
            "by" => series.filter(|name| labels.iter().any(|label| label == name)),
            "without" => series
                .filter(|name| name != METRIC_NAME && !labels.iter().any(|label| label == name)),
            _ => Labels::empty(),
        };
        let series = match name {
            "topk" | "bottomk" | "limit_ratio" => inner.series.clone(),
            _ => distinct(inner.series.iter().map(key)),
        };
        let mut traits = inner.traits.of_aggregation(name);
        traits.is_tame &= !(name == "quantile" && ["-1", "2"].contains(&param.as_str()));
        let vector = VectorText::atom(text, series, traits);
        // One series per value and group, which the generator cannot predict.
        if name == "count_values" {
            let text = format!("sum without ({}) ({})", param.trim_matches('"'), vector.text);
            return match self.choices.one_in(2) {
                true => VectorText { series: Vec::new(), ..vector },
                false => VectorText::atom(text, Vec::new(), traits),
            };
        }
        vector
    }

    /// Series without equal values, so that the greatest are well defined.
    fn distinct_vector(&mut self) -> VectorText {
        for _ in 0..8 {
            let vector = match self.choices.one_in(3) {
                true => self.range_call(0),
                false => self.selector(ValueNeed::Of(MetricKind::Gauge)),
            };
            if vector.traits.is_distinct {
                return vector;
            }
        }
        VectorText::atom("bare".to_owned(), Vec::new(), SMALL)
    }

    /// A vector and a scalar.
    pub(super) fn scalar_binary(&mut self, depth: u32) -> VectorText {
        let compares = self.choices.one_in(2);
        let op = if compares { *self.steer(&COMPARISONS) } else { *self.steer(&ARITHMETIC) };
        let bool_text =
            if compares && *self.steer(&["bool", "filter"]) == "bool" { " bool" } else { "" };
        let filters = compares && bool_text.is_empty();
        let turned = self.choices.one_in(3);
        let inner = self.vector_with(depth - 1, |inner| {
            let fits = match turned {
                true => SMALL.fit_operator(op, inner.traits),
                false => inner.traits.fit_operator(op, SMALL),
            };
            fits && (filters || inner.nameless().is_some())
        });
        // Operators that require exact bits get no computed scalar.
        let scalar_depth = if ["+", "-", "*", "/"].contains(&op) { depth - 1 } else { 0 };
        let scalar = self.scalar(scalar_depth);
        let inner = self.without_name(op, inner);
        let level = level(op);
        let (lhs, rhs) = (inner.operand(level), scalar.operand(level));
        let (lhs, rhs) = if turned { (rhs, lhs) } else { (lhs, rhs) };
        let series =
            if filters { inner.series.clone() } else { inner.nameless().unwrap_or_default() };
        let traits = inner.traits.of_operator(op, Traits { is_positive: false, ..SMALL });
        // `scalar` of an empty vector is NaN.
        let is_tame = traits.is_tame && !scalar.text.contains("scalar(");
        let traits = Traits { is_distinct: inner.traits.is_distinct && filters, is_tame, ..traits };
        VectorText { text: format!("{lhs} {op}{bool_text} {rhs}"), level, series, traits }
    }

    /// Two vectors that match.
    pub(super) fn vector_binary(&mut self, depth: u32) -> VectorText {
        for _ in 0..6 {
            let (lhs, rhs) = self.partners(depth);
            let compares = self.choices.one_in(3);
            let op = if compares { *self.steer(&COMPARISONS) } else { *self.steer(&ARITHMETIC) };
            if !lhs.traits.fit_operator(op, rhs.traits) {
                continue;
            }
            let (lhs, rhs) = (self.without_name(op, lhs), self.without_name(op, rhs));
            let bool_text =
                if compares && *self.steer(&["bool", "filter"]) == "bool" { "bool " } else { "" };
            let drops_name = !compares || !bool_text.is_empty();
            let Some((clause, series)) = self.matching(&lhs, &rhs, drops_name) else { continue };
            let level = level(op);
            let fill = self.fill(&clause);
            let right = rhs.operand(level);
            // A parenthesis after `group_left` would be parsed as its list of labels.
            let list = if clause.ends_with("t ") && right.starts_with('(') { "() " } else { "" };
            let left = lhs.operand(level);
            let text = format!("{left} {op} {bool_text}{clause}{list}{fill}{right}");
            // Filled series cannot be predicted.
            let series = if fill.is_empty() { series } else { Vec::new() };
            return VectorText {
                text,
                level,
                series,
                traits: lhs.traits.of_operator(op, rhs.traits),
            };
        }
        self.scalar_binary(depth)
    }

    /// Prometheus 2.42 keeps the name after `atan2`, later versions drop it: the operand must have
    /// none.
    fn without_name(&self, op: &str, operand: VectorText) -> VectorText {
        if op != "atan2" || self.dialect == Dialect::V3 {
            return operand;
        }
        let text = format!("max without () ({})", operand.text);
        let series = distinct(operand.series.iter().map(nameless));
        VectorText::atom(text, series, operand.traits.of_aggregation("max"))
    }

    fn fill(&mut self, clause: &str) -> &'static str {
        if self.dialect == Dialect::V2 || clause.contains("group_") {
            return "";
        }
        match *self.steer(&["no filling", "fill", "fill_left", "fill_right"]) {
            "fill" => "fill (0) ",
            "fill_left" => "fill_left (-1) ",
            "fill_right" => "fill_right (2.5) ",
            _ => "",
        }
    }

    pub(super) fn set_binary(&mut self, depth: u32) -> VectorText {
        let op = *self.steer(&SETS);
        let (lhs, rhs) = self.partners(depth);
        let labels = self.some_labels(&lhs);
        let clause = match *self.steer(&["on", "ignoring", "plain matching"]) {
            "plain matching" => String::new(),
            // `unless on ()` drops everything.
            "on" if !(op == "unless" && labels.is_empty()) => {
                format!("on ({}) ", labels.join(", "))
            }
            _ => format!("ignoring ({}) ", labels.join(", ")),
        };
        let level = level(op);
        let text = format!("{} {op} {clause}{}", lhs.operand(level), rhs.operand(level));
        let series = match op {
            "or" => distinct(lhs.series.iter().chain(&rhs.series).cloned()),
            _ => lhs.series.clone(),
        };
        let traits = match op {
            "or" => lhs.traits.or(rhs.traits),
            _ => lhs.traits,
        };
        VectorText { text, level, series, traits }
    }

    /// Two vectors with related series.
    fn partners(&mut self, depth: u32) -> (VectorText, VectorText) {
        let lhs = self.vector_with(depth - 1, |lhs| !lhs.series.is_empty());
        let rhs = match self.choices.below(4) {
            // A part of the whole: `x / on (job) group_left sum by (job) (x)`.
            0 => {
                let labels = self.some_labels(&lhs);
                let name = *self.choices.pick(&["max", "min", "count"]);
                let keep = |name: &str| labels.iter().any(|label| label == name);
                let series = distinct(lhs.series.iter().map(|series| series.filter(keep)));
                let text = format!("{name} by ({}) ({})", labels.join(", "), lhs.text);
                VectorText::atom(text, series, Traits { is_distinct: false, ..lhs.traits })
            }
            _ => self.vector_with(depth - 1, |rhs| !rhs.series.is_empty()),
        };
        if self.choices.one_in(2) { (lhs, rhs) } else { (rhs, lhs) }
    }

    /// Up to three labels of the vector.
    pub(super) fn some_labels(&mut self, vector: &VectorText) -> Vec<String> {
        let mut names = vector.label_names();
        let count = self.choices.below(4).min(names.len());
        (0..count).map(|_| names.swap_remove(self.choices.below(names.len()))).collect()
    }

    /// A clause under which the two vectors match without an error and with a result, and the
    /// result's series.
    fn matching(
        &mut self,
        lhs: &VectorText,
        rhs: &VectorText,
        drops_name: bool,
    ) -> Option<(String, Vec<Labels>)> {
        let mut ways = Vec::new();
        for _ in 0..12 {
            let mut names = self.some_labels(lhs);
            names.extend(self.some_labels(rhs));
            names.sort();
            names.dedup();
            let form = *self.choices.pick(&["on", "ignoring", "plain matching"]);
            ways.extend(self.way(lhs, rhs, form, names));
        }
        // Rarer kinds first, because they rarely match.
        let mut found: Vec<(&'static str, String, Vec<Labels>)> = Vec::new();
        for way in ways {
            let series = way.pairs.iter().map(|&(l, r)| {
                let labels = match &way.key_of_result {
                    ResultKey::Named { on, labels } => {
                        lhs.series[l].filter(|name| labels.iter().any(|label| label == name) == *on)
                    }
                    ResultKey::Many { is_left, include } => {
                        let (many, one) = match is_left {
                            true => (&lhs.series[l], &rhs.series[r]),
                            false => (&rhs.series[r], &lhs.series[l]),
                        };
                        include.iter().fold(many.clone(), |labels, name| {
                            labels.with(name, one.get(name).unwrap_or(""))
                        })
                    }
                };
                if drops_name { nameless(&labels) } else { labels }
            });
            let kind = match &way.key_of_result {
                ResultKey::Named { on: true, .. } => "on",
                ResultKey::Named { .. } if way.clause.is_empty() => "plain matching",
                ResultKey::Named { .. } => "ignoring",
                ResultKey::Many { is_left: true, .. } => "group_left",
                ResultKey::Many { .. } => "group_right",
            };
            if let Some(series) = unique(series) {
                found.push((kind, way.clause, series));
            }
        }
        let kinds: Vec<&'static str> = found.iter().map(|way| way.0).collect();
        if kinds.is_empty() {
            return None;
        }
        let kind = *self.steer(&kinds);
        found.into_iter().find(|way| way.0 == kind).map(|way| (way.1, way.2))
    }

    /// One clause, if it has a result.
    fn way(
        &mut self,
        lhs: &VectorText,
        rhs: &VectorText,
        form: &'static str,
        names: Vec<String>,
    ) -> Option<MatchRule> {
        let names = if form == "plain matching" { Vec::new() } else { names };
        let on = form == "on";
        let key = |labels: &Labels| {
            labels.filter(|name| {
                let is_named = names.iter().any(|label| label == name);
                if on { is_named } else { !is_named && name != METRIC_NAME }
            })
        };
        let (left, right) = (by_key(&lhs.series, key), by_key(&rhs.series, key));
        let shared: Vec<&Labels> = left.keys().filter(|key| right.contains_key(key)).collect();
        if shared.is_empty() {
            return None;
        }
        let is_single = |side: &std::collections::BTreeMap<Labels, Vec<usize>>| {
            side.values().all(|members| members.len() == 1)
        };
        let pairs = shared
            .iter()
            .flat_map(|key| {
                let rights = &right[*key];
                left[*key].iter().flat_map(move |l| rights.iter().map(move |r| (*l, *r)))
            })
            .collect();
        let clause = match form {
            "plain matching" => String::new(),
            _ => format!("{form} ({}) ", names.join(", ")),
        };
        let (is_left, one) = match (is_single(&left), is_single(&right)) {
            (true, true) if clause.is_empty() || !self.choices.one_in(5) => {
                let labels = names;
                return Some(MatchRule {
                    clause,
                    pairs,
                    key_of_result: ResultKey::Named { on, labels },
                });
            }
            (_, true) => (true, rhs),
            (true, false) => (false, lhs),
            (false, false) => return None,
        };
        if clause.is_empty() {
            return None;
        }
        let mut include = self.some_labels(one);
        include.retain(|name| !(on && names.contains(name)));
        let group = if is_left { "group_left" } else { "group_right" };
        let list = match (include.is_empty(), self.choices.one_in(2)) {
            (true, true) => String::new(),
            _ => format!("({}) ", include.join(", ")),
        };
        let clause = format!("{clause}{group} {list}");
        Some(MatchRule { clause, pairs, key_of_result: ResultKey::Many { is_left, include } })
    }
}
