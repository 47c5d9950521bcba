//! The lints and the statistics of exposed metrics, as `promtool check metrics`.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::io::{BufRead, BufReader, Read};

use firn_model::{Error, MetricType, Result, one_line};

/// The longest line. Long lines are help texts; the labels of a series have at most 1 MiB.
const LINE_BYTES_MAX: usize = 16 << 20;
/// Bytes that are read at a time.
const PART_BYTES: usize = 1 << 20;
/// The memory of all families. It is enough for 13 million series.
const MEMORY_BYTES_MAX: usize = 512 << 20;
/// The memory of a series: its hash in a table that is at least 7/16 full.
const SERIES_BYTES: usize = 40;
/// The memory of a family without its name.
const FAMILY_BYTES: usize = 2 * size_of::<Family>();

/// A line of a sample.
pub(super) struct ExposedSample {
    pub(super) family: String,
    /// Its labels in order of the line, without the bound of a histogram or a summary.
    pub(super) labels: Vec<(String, String)>,
    /// Whether it is a bucket or a quantile: its bound is a number.
    pub(super) has_bound: bool,
}

/// A metric family of a body.
#[derive(Clone, Debug, Default)]
pub(super) struct Family {
    pub(super) has_help: bool,
    /// It has a line of its type, or samples.
    pub(super) has_type: bool,
    pub(super) metric_type: MetricType,
    line_count: u64,
    series_count: u64,
    line_labels: LabelCounts,
    series_labels: LabelCounts,
    /// The first series, and the number of its lines with `le` or `quantile`.
    first: Option<SeriesHash>,
    bound_count: u64,
}

/// Numbers of labels by the lint that finds them.
#[derive(Clone, Copy, Debug, Default)]
struct LabelCounts {
    le: u64,
    quantile: u64,
    camel_case: u64,
}

/// A hash of 128 bits of a series: its family and its labels in the order of the line. Those of a
/// histogram or a summary are sorted and without `le` or `quantile`. Equal hashes count as equal
/// series: among 13 million series they are less likely than 1e-24.
type SeriesHash = (u64, u64);

/// The metric families of a body. The memory of a series is that of its hash.
#[derive(Debug, Default)]
pub struct MetricFamilies {
    families: BTreeMap<String, Family>,
    series: HashSet<SeriesHash>,
    hashers: (RandomState, RandomState),
    memory_bytes: usize,
}

/// A problem of a metric family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricProblem<'a> {
    /// The name of the family.
    pub metric: &'a str,
    /// The text of promtool.
    pub text: String,
    /// How often the problem is found.
    pub count: u64,
}

impl MetricFamilies {
    /// Reads a body in the text format of Prometheus, line by line.
    ///
    /// # Errors
    /// `Invalid` with the line of the first mistake, and promtool's text; `TooLarge` for a line or
    /// a number of metrics beyond the limits; `Unavailable` when the body cannot be read.
    pub fn read(body: impl Read) -> Result<MetricFamilies> {
        let mut families = MetricFamilies::default();
        let mut body = BufReader::with_capacity(PART_BYTES, body);
        let mut line = Vec::new();
        for number in 1_u64.. {
            line.clear();
            let max = LINE_BYTES_MAX as u64;
            let read = body.by_ref().take(max.saturating_add(1)).read_until(b'\n', &mut line);
            read.map_err(|e| Error::unavailable("cannot read").because(e))?;
            if line.len() > LINE_BYTES_MAX {
                return Err(Error::too_large(format!(
                    "line {number} has more than {LINE_BYTES_MAX} bytes"
                )));
            }
            if line.is_empty() {
                break;
            }
            families.add_line(&line, number)?;
        }
        families.families.retain(|_, family| family.line_count > 0);
        Ok(families)
    }

    /// The type of a family that is known.
    pub(super) fn type_of(&self, name: &str) -> Option<MetricType> {
        self.families.get(name).map(|family| family.metric_type)
    }

    pub(super) fn family(&mut self, name: &str) -> Result<&mut Family> {
        if !self.families.contains_key(name) {
            self.reserve(name.len().saturating_add(FAMILY_BYTES))?;
        }
        Ok(self.families.entry(name.to_owned()).or_default())
    }

    fn reserve(&mut self, bytes: usize) -> Result<()> {
        self.memory_bytes = self.memory_bytes.saturating_add(bytes);
        match self.memory_bytes > MEMORY_BYTES_MAX {
            true => Err(Error::too_large(format!(
                "the metrics need more than {MEMORY_BYTES_MAX} bytes of memory: check a part of \
                 them at a time"
            ))),
            false => Ok(()),
        }
    }

    pub(super) fn add_sample(&mut self, mut sample: ExposedSample) -> Result<()> {
        let mut hashers = (self.hashers.0.build_hasher(), self.hashers.1.build_hasher());
        let mut hash = |text: &str| {
            text.hash(&mut hashers.0);
            text.hash(&mut hashers.1);
        };
        hash(&sample.family);
        if self.family(&sample.family)?.has_shared_labels() {
            sample.labels.sort_unstable();
        }
        let mut counts = LabelCounts::default();
        for (name, value) in &sample.labels {
            hash(name);
            hash(value);
            counts.add(LabelCounts {
                le: u64::from(name == "le"),
                quantile: u64::from(name == "quantile"),
                camel_case: u64::from(has_camel_case(name)),
            });
        }
        let series = (hashers.0.finish(), hashers.1.finish());
        let is_new = self.series.insert(series);
        if is_new {
            self.reserve(SERIES_BYTES)?;
        }
        let family = self.family(&sample.family)?;
        family.line_count = family.line_count.saturating_add(1);
        family.line_labels.add(counts);
        if is_new {
            family.series_count = family.series_count.saturating_add(1);
            family.series_labels.add(counts);
        }
        if *family.first.get_or_insert(series) == series {
            family.bound_count = family.bound_count.saturating_add(u64::from(sample.has_bound));
        }
        Ok(())
    }

    /// The problems in order of metrics and texts.
    pub fn problems(&self) -> impl Iterator<Item = MetricProblem<'_>> {
        self.families.iter().flat_map(|(metric, family)| {
            let mut problems = family.problems(metric);
            problems.sort();
            let problem = |(text, count)| MetricProblem { metric, text, count };
            problems.into_iter().map(problem)
        })
    }

    /// The number of series of each metric family, as the parts of a table.
    pub fn cardinality(&self, print: &mut dyn FnMut(&str)) {
        let counts = self.families.iter().map(|(name, family)| (name, family.cardinality()));
        let mut counts: Vec<(&String, u64)> = counts.collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let total: u64 = counts.iter().map(|(_, count)| count).sum();
        let head = ["Metric", "Cardinality", "Percentage"].map(str::to_owned);
        let end = ["Total".to_owned(), total.to_string(), "100%".to_owned()];
        let rows = || {
            let rows = counts.iter().map(|(name, count)| {
                #[expect(clippy::cast_precision_loss, reason = "a percentage")]
                let share = *count as f64 / total as f64 * 100.0;
                [one_line(name).into_owned(), count.to_string(), format!("{share:.2}%")]
            });
            std::iter::once(head.clone()).chain(rows).chain([end.clone()])
        };
        print_table(&rows, print);
    }
}

/// Bytes of a table that are printed at a time.
const TABLE_PART_BYTES: usize = 64 << 10;

/// Columns four blanks apart. The rows are made twice instead of kept.
fn print_table<R: Iterator<Item = [String; 3]>>(rows: &dyn Fn() -> R, print: &mut dyn FnMut(&str)) {
    let mut widths = [0; 3];
    for row in rows() {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().saturating_add(4).max(*width);
        }
    }
    let mut part = String::new();
    for row in rows() {
        for (width, cell) in widths.iter().zip(row) {
            let _ = write!(part, "{cell:<width$}");
        }
        part.push('\n');
        if part.len() >= TABLE_PART_BYTES {
            print(&part);
            part.clear();
        }
    }
    print(&part);
}

impl LabelCounts {
    fn add(&mut self, other: LabelCounts) {
        self.le = self.le.saturating_add(other.le);
        self.quantile = self.quantile.saturating_add(other.quantile);
        self.camel_case = self.camel_case.saturating_add(other.camel_case);
    }
}

impl Family {
    /// The family has samples: its type is final. Returns the label of its bounds, or an empty
    /// text.
    pub(super) fn start_samples(&mut self) -> &'static str {
        self.has_type = true;
        match self.metric_type {
            MetricType::Histogram => "le",
            MetricType::Summary => "quantile",
            _ => "",
        }
    }

    /// Whether several lines are one series.
    fn has_shared_labels(&self) -> bool {
        matches!(self.metric_type, MetricType::Histogram | MetricType::Summary)
    }

    /// The texts and how often each is found.
    fn problems(&self, name: &str) -> Vec<(String, u64)> {
        use MetricType::{Counter, Histogram, Summary, Unknown};
        let metric_type = self.metric_type;
        let is_typed = metric_type != Unknown;
        let lower = name.to_lowercase();
        let has_word = |word: &str| {
            lower.contains(&format!("_{word}_")) || lower.ends_with(&format!("_{word}"))
        };
        let mut texts = Vec::new();
        let mut check_count = |count: u64, text: &str| {
            if count > 0 {
                texts.push((text.to_owned(), count));
            }
        };
        let mut check = |is_wrong: bool, text: &str| check_count(u64::from(is_wrong), text);
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
        let shares = self.has_shared_labels();
        if !shares {
            check_count(self.line_count.saturating_sub(self.series_count), "metric not unique");
        }
        let labels = if shares { self.series_labels } else { self.line_labels };
        if is_typed && !is_histogram {
            check_count(labels.le, "non-histogram metrics should not have \"le\" label");
        }
        if is_typed && !is_summary {
            check_count(labels.quantile, "non-summary metrics should not have \"quantile\" label");
        }
        check_count(
            labels.camel_case,
            "label names should be written in 'snake_case' not 'camelCase'",
        );
        texts
    }

    /// Series of a histogram or a summary have a sum, a count, and as many bounds as the first one.
    fn cardinality(&self) -> u64 {
        match self.metric_type {
            MetricType::Histogram | MetricType::Summary => {
                self.series_count.saturating_mul(self.bound_count.saturating_add(2))
            }
            _ => self.line_count,
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

    fn texts(families: &MetricFamilies) -> Vec<String> {
        let texts = families.problems().flat_map(|problem| {
            let text = format!("{} {}", problem.metric, problem.text);
            (0..problem.count).map(move |_| text.clone())
        });
        texts.collect()
    }

    fn problems(body: &str) -> Vec<String> {
        texts(&MetricFamilies::read(body.as_bytes()).unwrap())
    }

    fn table(families: &MetricFamilies) -> String {
        let mut table = String::new();
        families.cardinality(&mut |part| table.push_str(part));
        table
    }

    fn cardinality(body: &str) -> String {
        table(&MetricFamilies::read(body.as_bytes()).unwrap())
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
        assert_eq!(cardinality(body), want);
        assert!(MetricFamilies::read(&b"a{ 1\n"[..]).is_err());
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

    /// promtool has the buckets of the first series in the text, and repeats a problem of labels
    /// for each line.
    #[test]
    fn counts_are_those_of_the_first_series_and_of_all_lines() {
        let body = "# TYPE h histogram\nh_bucket{z=\"1\",le=\"1\"} 1\nh_bucket{z=\"1\",le=\"2\"} \
                    1\nh_bucket{a=\"1\",le=\"1\"} 1\n";
        assert!(cardinality(body).contains("h         8              100.00%"), "{body}");
        let body = "# HELP a x\n# TYPE a gauge\na{le=\"1\",aB=\"1\"} 1\na{le=\"1\",aB=\"1\"} \
                    1\na{le=\"2\"} 1\n";
        let le = "a non-histogram metrics should not have \"le\" label";
        let camel = "a label names should be written in 'snake_case' not 'camelCase'";
        assert_eq!(problems(body), [camel, camel, "a metric not unique", le, le, le]);
    }

    /// The texts are those of promtool 2.42.
    #[test]
    fn mistakes_are_those_of_promtool() {
        let f = |body: &str, line: u64, want: &str| {
            let error = MetricFamilies::read(body.as_bytes()).unwrap_err().to_string();
            let want = format!("text format parsing error in line {line}: {want}");
            assert_eq!(error, want, "{body:?}");
        };
        let second = "second TYPE line for metric name \"a\", or TYPE reported after samples";
        f("# TYPE a gauge\n# TYPE a gauge\na 1\n", 2, second);
        f("a 1\n# TYPE a gauge\n", 2, second);
        let second = "second TYPE line for metric name \"h\", or TYPE reported after samples";
        f("# TYPE h histogram\n# TYPE h_sum gauge\n", 2, second);
        f("# HELP a x\n\n# HELP a y\n", 3, "second HELP line for metric name \"a\"");
        f("# TYPE a foo\n", 1, "unknown metric type \"foo\"");
        f("# HELP 1 x\n", 1, "invalid metric name in comment");
        f("# HELP a \\x\n", 1, "invalid escape sequence '\\x'");
        let twice = "duplicate label names for metric \"a\"";
        f("a{b=\"1\",b=\"1\"} 1\n", 1, twice);
        f("a{__name__=\"x\"} 1\n", 1, "label name \"__name__\" is reserved");
        f("a{b=\"\\x\"} 1\n", 1, "invalid escape sequence '\\x'");
        f("a{b=\"x\ny\"} 1\n", 1, "label value \"x\" contains unescaped new-line");
        f("a{b=\"x\" 1\n", 1, "unexpected end of label value \"x\"");
        f("a{b} 1\n", 1, "expected '=' after label name, found '}'");
        f("a{b='x'} 1\n", 1, "expected '\"' at start of label value, found '\\''");
        f("a{,} 1\n", 1, "invalid label name for metric \"a\"");
        let number =
            |label: &str| format!("expected float as value for '{label}' label, got \"x\"");
        f("# TYPE h histogram\nh_bucket{le=\"x\" 1\n", 2, &number("le"));
        f("# TYPE h summary\nh{quantile=\"x\"} 1\n", 2, &number("quantile"));
        f("a 1\r\n", 1, "expected float as value, got \"1\\r\"");
        f("a 1 1.5\n", 1, "expected integer as timestamp, got \"1.5\"");
        f("a 1 2 \n", 1, "spurious string after timestamp: \" \"");
        for unfinished in ["a 1", "a", "a{", "a{b", "a{b=\"", "#", "# HELP a x", "# TYPE a gauge"] {
            f(unfinished, 1, "unexpected end of input stream");
            f(&format!("c 1\n {unfinished}"), 2, "unexpected end of input stream");
        }
        for name in ["1a", "\"a\"", "{}", "{b=\"1\"}", "{__name__=\"a\"}", "é"] {
            f(&format!("{name} 1\n"), 1, "invalid metric name");
        }
    }

    #[test]
    fn texts_that_promtool_accepts_are_accepted() {
        for text in ["", "\n", "a 1\n ", "# a", "# TYPE a\n", "# TYPE a gau\\ge\n", "#\n"] {
            let text = if text == "# a" { "# a b\n" } else { text };
            assert!(MetricFamilies::read(text.as_bytes()).is_ok(), "{text:?}");
        }
        assert_eq!(problems("# HELP a\n# HELP a \na 1\n"), ["a no help text"]);
        assert_eq!(problems("# HELP  a  b\n\ta{ b = \"c\" , }1  +5\n"), [""; 0]);
        assert_eq!(problems("# TYPE h histogram\nh_sum 1\n# HELP h_sum x\n"), [""; 0]);
        // Names of Prometheus 3.
        assert_eq!(problems("# HELP \"a b\" x\n{\"a b\", \"c d\"=\"e\"} 1\n"), [""; 0]);
    }

    /// Before, all of a text was kept, and all labels of its series.
    #[test]
    fn an_endless_text_ends_with_a_sentence() {
        let read = |body: &mut dyn Read| MetricFamilies::read(body).unwrap_err().to_string();
        let error = read(&mut std::io::repeat(b' '));
        assert_eq!(error, "line 1 has more than 16777216 bytes");
        let error = read(&mut b"a 1\nb{c=\"".chain(std::io::repeat(b'x')));
        assert_eq!(error, "line 2 has more than 16777216 bytes");
        let error = read(&mut std::io::repeat(0));
        assert!(error.contains("line 1"), "{error}");
    }
}
