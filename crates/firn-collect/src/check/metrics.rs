//! The lints and the statistics of exposed metrics, as `promtool check metrics`.

use std::collections::BTreeMap;
use std::fmt::Write;

use firn_model::{METRIC_NAME, Result, one_line};

use crate::scrape::{Entry, ExposedLabels, MetadataItem, MetricType, Parser};

/// A metric family of a body.
#[derive(Clone, Debug, Default)]
struct Family {
    has_help: bool,
    metric_type: MetricType,
    /// The labels of each series without its name; without `le` and `quantile` below a histogram
    /// and a summary. The value is the number of its lines.
    series: BTreeMap<Vec<(String, String)>, SeriesLines>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SeriesLines {
    count: usize,
    /// Lines with `le` or `quantile`.
    bounds: usize,
}

/// The metric families of a body.
#[derive(Clone, Debug, Default)]
pub struct MetricFamilies(BTreeMap<String, Family>);

impl MetricFamilies {
    /// Reads a body in the text format of Prometheus.
    ///
    /// # Errors
    /// `Invalid` with the line of the first mistake.
    pub fn parse(body: &[u8]) -> Result<MetricFamilies> {
        let mut families = MetricFamilies::default();
        let mut parser = Parser::new(body, false, ExposedLabels::default());
        while let Some(entry) = parser.next(|_| 0)? {
            match entry {
                Entry::Metadata(name, item) => {
                    let family = families.0.entry(name.into_owned()).or_default();
                    match item {
                        MetadataItem::Help(_) => family.has_help = true,
                        MetadataItem::Type(metric_type) => family.metric_type = metric_type,
                        MetadataItem::Unit(_) => {}
                    }
                }
                Entry::Sample(_) => families.add(parser.labels()),
            }
        }
        families.0.retain(|_, family| !family.series.is_empty());
        Ok(families)
    }

    fn add(&mut self, labels: &ExposedLabels) {
        let name = labels.iter().find(|pair| pair.0 == METRIC_NAME).map_or("", |pair| pair.1);
        let family_name = self.family_of(name);
        let family = self.0.entry(family_name).or_default();
        let bound = match family.metric_type {
            MetricType::Histogram => "le",
            MetricType::Summary => "quantile",
            _ => "",
        };
        let mut pairs = Vec::new();
        let mut has_bound = false;
        for (name, value) in labels.iter().filter(|pair| pair.0 != METRIC_NAME) {
            if name == bound {
                has_bound = true;
            } else {
                pairs.push((name.to_owned(), value.to_owned()));
            }
        }
        let lines = family.series.entry(pairs).or_default();
        lines.count = lines.count.saturating_add(1);
        lines.bounds = lines.bounds.saturating_add(usize::from(has_bound));
    }

    /// The family of a sample: that of its name, or the histogram or summary that it belongs to.
    fn family_of(&self, name: &str) -> String {
        let is = |base: &str, types: &[MetricType]| {
            self.0.get(base).is_some_and(|family| types.contains(&family.metric_type))
        };
        let suffixes: [(&str, &[MetricType]); 3] = [
            ("_count", &[MetricType::Histogram, MetricType::Summary]),
            ("_sum", &[MetricType::Histogram, MetricType::Summary]),
            ("_bucket", &[MetricType::Histogram]),
        ];
        let base = suffixes
            .iter()
            .find_map(|(suffix, types)| name.strip_suffix(suffix).filter(|base| is(base, types)));
        match base {
            Some(base) if !self.0.contains_key(name) => base.to_owned(),
            _ => name.to_owned(),
        }
    }

    /// The problems in order of metrics and texts: pairs of a metric and a text of promtool.
    pub fn problems(&self) -> Vec<(String, String)> {
        let mut problems = Vec::new();
        for (name, family) in &self.0 {
            let mut texts = family.problems(name);
            texts.sort();
            problems.extend(texts.into_iter().map(|text| (name.clone(), text)));
        }
        problems
    }

    /// The number of series of each metric family, as a table.
    pub fn cardinality(&self) -> String {
        let mut counts: Vec<(&str, usize)> =
            self.0.iter().map(|(name, family)| (name.as_str(), family.cardinality())).collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let total: usize = counts.iter().map(|(_, count)| count).sum();
        let mut rows = vec![["Metric", "Cardinality", "Percentage"].map(str::to_owned)];
        for (name, count) in counts {
            #[expect(clippy::cast_precision_loss, reason = "a percentage")]
            let share = count as f64 / total as f64 * 100.0;
            rows.push([one_line(name).into_owned(), count.to_string(), format!("{share:.2}%")]);
        }
        rows.push(["Total".to_owned(), total.to_string(), "100%".to_owned()]);
        table(&rows)
    }
}

/// Columns four blanks apart.
fn table(rows: &[[String; 3]]) -> String {
    let mut widths = [0; 3];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().saturating_add(4).max(*width);
        }
    }
    let mut out = String::new();
    for row in rows {
        for (width, cell) in widths.iter().zip(row) {
            let _ = write!(out, "{cell:<width$}");
        }
        out.push('\n');
    }
    out
}

impl Family {
    fn problems(&self, name: &str) -> Vec<String> {
        use MetricType::{Counter, Histogram, Summary, Unknown};
        let metric_type = self.metric_type;
        let is_typed = metric_type != Unknown;
        let lower = name.to_lowercase();
        let has_word = |word: &str| {
            lower.contains(&format!("_{word}_")) || lower.ends_with(&format!("_{word}"))
        };
        let mut texts = Vec::new();
        let mut check = |is_wrong: bool, text: &str| {
            if is_wrong {
                texts.push(text.to_owned());
            }
        };
        check(!self.has_help, "no help text");
        let is_total = name.ends_with("_total");
        check(metric_type == Counter && !is_total, "counter metrics should have \"_total\" suffix");
        check(
            is_typed && metric_type != Counter && is_total,
            "non-counter metrics should not have \"_total\" suffix",
        );
        let (is_histogram, is_summary) = (metric_type == Histogram, metric_type == Summary);
        check(
            is_typed && !is_histogram && name.ends_with("_bucket"),
            "non-histogram metrics should not have \"_bucket\" suffix",
        );
        for suffix in ["_count", "_sum"] {
            check(
                is_typed && !is_histogram && !is_summary && name.ends_with(suffix),
                &format!(
                    "non-histogram and non-summary metrics should not have \"{suffix}\" suffix"
                ),
            );
        }
        let type_word = type_word(metric_type);
        check(
            is_typed && has_word(type_word),
            &format!("metric name should not include type '{type_word}'"),
        );
        check(name.contains(':'), "metric names should not contain ':'");
        check(
            has_camel_case(name),
            "metric names should be written in 'snake_case' not 'camelCase'",
        );
        for abbreviation in UNIT_ABBREVIATIONS {
            check(has_word(abbreviation), "metric names should not contain abbreviated units");
        }
        if let Some((unit, base)) = unit(name).filter(|(unit, base)| unit != base) {
            check(true, &format!("use base unit \"{base}\" instead of \"{unit}\""));
        }
        for (labels, lines) in &self.series {
            // Lines of a histogram or a summary share their labels.
            let repeats = if is_histogram || is_summary { 1 } else { lines.count };
            for _ in 1..repeats {
                check(true, "metric not unique");
            }
            for (label, _) in labels.iter().flat_map(|pair| std::iter::repeat_n(pair, repeats)) {
                check(
                    is_typed && !is_histogram && label == "le",
                    "non-histogram metrics should not have \"le\" label",
                );
                check(
                    is_typed && !is_summary && label == "quantile",
                    "non-summary metrics should not have \"quantile\" label",
                );
                check(
                    has_camel_case(label),
                    "label names should be written in 'snake_case' not 'camelCase'",
                );
            }
        }
        texts
    }

    /// Series of a histogram or a summary have a sum, a count, and as many bounds as the first one.
    fn cardinality(&self) -> usize {
        match self.metric_type {
            MetricType::Histogram | MetricType::Summary => {
                let bounds = self.series.values().next().map_or(0, |lines| lines.bounds);
                self.series.len().saturating_mul(bounds.saturating_add(2))
            }
            _ => self.series.values().map(|lines| lines.count).sum(),
        }
    }
}

fn type_word(metric_type: MetricType) -> &'static str {
    match metric_type {
        MetricType::Unknown => "untyped",
        MetricType::Counter => "counter",
        MetricType::Gauge => "gauge",
        MetricType::Histogram => "histogram",
        MetricType::GaugeHistogram => "gauge_histogram",
        MetricType::Summary => "summary",
        MetricType::Info => "info",
        MetricType::StateSet => "stateset",
    }
}

/// `[a-z][A-Z]`
fn has_camel_case(name: &str) -> bool {
    let pairs = name.as_bytes().iter().zip(name.as_bytes().iter().skip(1));
    pairs.into_iter().any(|(a, b)| a.is_ascii_lowercase() && b.is_ascii_uppercase())
}

/// The first word of the name that is a unit, with or without a prefix, and its base unit.
fn unit(name: &str) -> Option<(&str, &'static str)> {
    let base = |word: &str| UNITS.iter().find(|unit| unit.0 == word).map(|unit| unit.1);
    name.split('_').find_map(|word| {
        let prefixed =
            || UNIT_PREFIXES.iter().find_map(|prefix| word.strip_prefix(prefix).and_then(base));
        base(word).or_else(prefixed).map(|base| (word, base))
    })
}

/// Units and their base units.
const UNITS: [(&str, &str); 24] = [
    ("amperes", "amperes"),
    ("bytes", "bytes"),
    ("celsius", "celsius"),
    ("grams", "grams"),
    ("joules", "joules"),
    ("kelvin", "kelvin"),
    ("meters", "meters"),
    ("metres", "metres"),
    ("seconds", "seconds"),
    ("volts", "volts"),
    ("minutes", "seconds"),
    ("hours", "seconds"),
    ("days", "seconds"),
    ("weeks", "seconds"),
    ("kelvins", "kelvin"),
    ("fahrenheit", "celsius"),
    ("rankine", "celsius"),
    ("inches", "meters"),
    ("yards", "meters"),
    ("miles", "meters"),
    ("bits", "bytes"),
    ("calories", "joules"),
    ("pounds", "grams"),
    ("ounces", "grams"),
];
const UNIT_PREFIXES: [&str; 18] = [
    "pico", "nano", "micro", "milli", "centi", "deci", "deca", "hecto", "kilo", "kibi", "mega",
    "mebi", "giga", "gibi", "tera", "tebi", "peta", "pebi",
];
const UNIT_ABBREVIATIONS: [&str; 14] =
    ["s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"];

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(body: &str) -> Vec<String> {
        let families = MetricFamilies::parse(body.as_bytes()).unwrap();
        families.problems().into_iter().map(|(name, text)| format!("{name} {text}")).collect()
    }

    /// The texts and the table are those of promtool for the same body.
    #[test]
    fn problems_and_counts_are_those_of_promtool() {
        let body = "a 1\n# HELP b x\n# TYPE b counter\nb{aB=\"1\"} 2\nb{aB=\"1\"} 3\n# TYPE \
                    h_milliseconds histogram\nh_milliseconds_bucket{le=\"1\"} \
                    1\nh_milliseconds_bucket{le=\"+Inf\"} 1\nh_milliseconds_sum \
                    1\nh_milliseconds_count 1\n";
        let want = [
            "a no help text",
            "b counter metrics should have \"_total\" suffix",
            "b label names should be written in 'snake_case' not 'camelCase'",
            "b label names should be written in 'snake_case' not 'camelCase'",
            "b metric not unique",
            "h_milliseconds no help text",
            "h_milliseconds use base unit \"seconds\" instead of \"milliseconds\"",
        ];
        assert_eq!(problems(body), want);
        let want = [
            "Metric            Cardinality    Percentage    \n",
            "h_milliseconds    4              57.14%        \n",
            "b                 2              28.57%        \n",
            "a                 1              14.29%        \n",
            "Total             7              100%          \n",
        ];
        let want = want.concat();
        assert_eq!(MetricFamilies::parse(body.as_bytes()).unwrap().cardinality(), want);
        assert!(MetricFamilies::parse(b"a{ 1\n").is_err());
        assert_eq!(problems("# TYPE x counter\n# EOF\n"), [""; 0]);
    }

    #[test]
    fn each_lint_finds_its_metrics() {
        for (name, metric_type, labels, want) in [
            ("a_total", "gauge", "", "non-counter metrics should not have \"_total\" suffix"),
            ("a_bucket", "gauge", "", "non-histogram metrics should not have \"_bucket\" suffix"),
            (
                "a_sum",
                "gauge",
                "",
                "non-histogram and non-summary metrics should not have \"_sum\" suffix",
            ),
            ("a_gauge", "gauge", "", "metric name should not include type 'gauge'"),
            ("a:b", "gauge", "", "metric names should not contain ':'"),
            ("aB", "gauge", "", "metric names should be written in 'snake_case' not 'camelCase'"),
            ("a_ms", "gauge", "", "metric names should not contain abbreviated units"),
            ("a_hours", "gauge", "", "use base unit \"seconds\" instead of \"hours\""),
            ("a", "gauge", "{le=\"1\"}", "non-histogram metrics should not have \"le\" label"),
            (
                "a",
                "gauge",
                "{quantile=\"1\"}",
                "non-summary metrics should not have \"quantile\" label",
            ),
        ] {
            let body = format!("# HELP {name} x\n# TYPE {name} {metric_type}\n{name}{labels} 1\n");
            assert_eq!(problems(&body), [format!("{name} {want}")]);
            let untyped = format!("# HELP {name} x\n{name}{labels} 1\n");
            let is_of_type = want.starts_with("non-") || want.contains("include type");
            assert_eq!(problems(&untyped).is_empty(), is_of_type, "{name}");
        }
        for good in ["a_seconds_total", "a_bytes", "a_kilobytes"] {
            let body = format!("# HELP {good} x\n{good} 1\n");
            let want = usize::from(good.contains("kilo"));
            assert_eq!(problems(&body).len(), want, "{good}");
        }
    }
}
