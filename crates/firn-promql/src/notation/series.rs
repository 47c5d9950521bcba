//! Lines like `name{a="b"} 1+2x3 _ stale`: a series and its values.

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_model::{Histogram, HistogramBucket, Labels, METRIC_NAME, STALE_NAN, excerpt};

use super::histogram;
use super::line::{ScriptHistogram, SeriesItem, SeriesLine};
use crate::histogram::RunningHistogram;
use crate::syntax::{
    check_metric, check_series, go_quote, parse_duration_ms, parse_number, unquote,
};

/// The maximum number of items after expansion of repeats.
const ITEMS_MAX: usize = 1_000_000;
/// The maximum memory of the buckets of added histograms in one line.
const BUCKETS_BYTES_MAX: usize = 64 << 20;

impl SeriesLine {
    /// Whether some value is a native histogram.
    pub fn has_histogram(&self) -> bool {
        self.items.iter().any(|item| matches!(item, SeriesItem::Histogram(_)))
    }

    /// Parses a line of a unit test of rules, as strictly as promtool.
    ///
    /// # Errors
    /// The first mistake, with promtool's text and position.
    pub fn parse_strictly(line: &str) -> Result<SeriesLine, String> {
        let repeated = check_series(line).map_err(|error| error.to_string())?;
        let series = SeriesLine::parse(line)?;
        if series.items.iter().all(|item| *item == SeriesItem::Gap) {
            return Ok(series);
        }
        match repeated {
            Some(name) => Err(format!("{}: invalid sample", not_unique(&name))),
            None if series.labels.is_empty() => Err("empty labelset: invalid sample".to_owned()),
            None => Ok(series),
        }
    }

    /// Parses the labels of an expected sample, as strictly as promtool.
    ///
    /// # Errors
    /// As [`SeriesLine::parse_strictly`].
    pub fn parse_labels(text: &str) -> Result<Labels, String> {
        let repeated = check_metric(text).map_err(|error| error.to_string())?;
        match repeated {
            Some(name) => Err(not_unique(&name)),
            None => Cursor { rest: text.trim_start() }.labels(true),
        }
    }

    /// Parses a line.
    ///
    /// # Errors
    /// The first mistake.
    pub fn parse(line: &str) -> Result<SeriesLine, String> {
        let mut cursor = Cursor { rest: line };
        let labels = cursor.labels(false)?;
        let has_starts = cursor.accept("@st");
        let (mut items, mut starts) = (Vec::new(), Vec::new());
        let mut bucket_bytes = 0;
        while let Some(token) = cursor.value_token()? {
            match has_starts {
                true => parse_start(token, &mut starts)?,
                false => parse_item(token, &mut items, &mut bucket_bytes)?,
            }
            if items.len().max(starts.len()) > ITEMS_MAX {
                return Err(too_many_items());
            }
        }
        Ok(SeriesLine { labels, items, starts: has_starts.then_some(starts) })
    }
}

fn not_unique(name: &str) -> String {
    format!("label name {} is not unique", go_quote(name.as_bytes()))
}

fn too_many_items() -> String {
    format!("more than {ITEMS_MAX} values in one line")
}

struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn accept(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn take_while(&mut self, test: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !test(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    /// `has_blanks`: whether the labels may follow the name after blanks.
    fn labels(&mut self, has_blanks: bool) -> Result<Labels, String> {
        let name = self.take_while(|c| c == '_' || c == ':' || c.is_ascii_alphanumeric());
        if has_blanks {
            self.skip_blanks();
        }
        // The last value of a label counts.
        let mut pairs = BTreeMap::from([(METRIC_NAME.to_owned(), name.to_owned())]);
        if self.accept("{") {
            loop {
                self.skip_blanks();
                if self.accept("}") {
                    break;
                }
                let label = self.name_or_string()?;
                self.skip_blanks();
                if self.accept("=") {
                    self.skip_blanks();
                    let value = self.string()?;
                    // The name before the braces wins.
                    if name.is_empty() || label != METRIC_NAME {
                        pairs.insert(label, value);
                    }
                } else {
                    pairs.insert(METRIC_NAME.to_owned(), label);
                }
                self.skip_blanks();
                if !self.accept(",") && !self.rest.starts_with('}') {
                    return Err(format!("expected , or }} before {:?}", excerpt(self.rest)));
                }
            }
        } else if name.is_empty() {
            return Err(format!("no series in {:?}", excerpt(self.rest)));
        }
        Labels::from_pairs(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())))
            .map_err(|error| error.to_string())
    }

    fn name_or_string(&mut self) -> Result<String, String> {
        if self.rest.starts_with(['"', '\'', '`']) {
            return self.string();
        }
        let name = self.take_while(|c| c == '_' || c.is_ascii_alphanumeric());
        if name.is_empty() {
            Err(format!("no label in {:?}", excerpt(self.rest)))
        } else {
            Ok(name.to_owned())
        }
    }

    fn string(&mut self) -> Result<String, String> {
        let bad = || format!("bad string in {:?}", excerpt(self.rest));
        let quote = self.rest.chars().next().filter(|c| ['"', '\'', '`'].contains(c));
        let quote = quote.ok_or_else(bad)?;
        let mut escaped = false;
        let inside = self.rest.char_indices().skip(1);
        let end = inside
            .map(|(at, c)| {
                let ends = c == quote && !escaped;
                escaped = c == '\\' && !escaped && quote != '`';
                (at, ends)
            })
            .find(|found| found.1)
            .ok_or_else(bad)?
            .0;
        let bytes = unquote(&self.rest[..=end]).ok_or_else(bad)?;
        self.rest = &self.rest[end + 1..];
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The next value with its repeats; a histogram may contain blanks.
    fn value_token(&mut self) -> Result<Option<&'a str>, String> {
        self.skip_blanks();
        if self.rest.is_empty() {
            return Ok(None);
        }
        let mut depth = 0usize;
        let mut end = self.rest.len();
        for (at, c) in self.rest.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => {
                    depth = depth.checked_sub(1).ok_or_else(|| "unbalanced }".to_owned())?;
                }
                c if c.is_whitespace() && depth == 0 => {
                    end = at;
                    break;
                }
                _ => {}
            }
        }
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest;
        Ok(Some(token))
    }
}

/// Adds the values of `token`, and the memory of their buckets to `bucket_bytes`.
fn parse_item(
    token: &str,
    items: &mut Vec<SeriesItem>,
    bucket_bytes: &mut usize,
) -> Result<(), String> {
    let bad = || format!("bad value {:?}", excerpt(token));
    let repeats = |text: &str| -> Result<usize, String> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad());
        }
        let count = text.parse::<usize>().ok().filter(|count| *count <= ITEMS_MAX);
        count.ok_or_else(too_many_items)
    };
    if token.starts_with("{{") {
        let (first, rest) = histogram(token).ok_or_else(bad)??;
        let (step, rest) = match rest.split_at_checked(1) {
            Some((sign @ ("+" | "-"), rest)) => {
                let (step, rest) = histogram(rest).ok_or_else(bad)??;
                (Some((sign == "-", step)), rest)
            }
            _ => (None, rest),
        };
        let count = match rest.strip_prefix('x') {
            Some(count) => repeats(count)? + 1,
            None if rest.is_empty() && step.is_none() => 1,
            None => return Err(bad()),
        };
        return ramp(first, step, count, items, bucket_bytes);
    }
    if let Some(rest) = token.strip_prefix('_') {
        let count = match rest.strip_prefix('x') {
            Some(count) => repeats(count)?,
            None if rest.is_empty() => 1,
            None => return Err(bad()),
        };
        items.extend(std::iter::repeat_n(SeriesItem::Gap, count));
        return Ok(());
    }
    let (mut value, mut rest) = match token.strip_prefix("stale") {
        Some(rest) => (STALE_NAN, rest),
        None => number(token).ok_or_else(bad)?,
    };
    let mut delta = None;
    if rest.starts_with(['+', '-']) {
        let (number, after) = number(rest).ok_or_else(bad)?;
        delta = Some(number);
        rest = after;
    }
    let count = match rest.strip_prefix('x') {
        Some(count) => repeats(count)? + 1,
        None if rest.is_empty() && delta.is_none() => 1,
        None => return Err(bad()),
    };
    for idx in 0..count {
        if idx > 0
            && let Some(delta) = delta
        {
            value += delta;
        }
        items.push(SeriesItem::Float(value));
    }
    Ok(())
}

/// The histogram at the start of `text`, and the text after it.
fn histogram(text: &str) -> Option<Result<(ScriptHistogram, &str), String>> {
    let (inside, rest) = text.strip_prefix("{{")?.split_once("}}")?;
    Some(histogram::parse(inside).map(|written| (written, rest)))
}

/// `count` histograms, each the previous one plus `step`, or minus `step` if the bool is true.
fn ramp(
    first: ScriptHistogram,
    step: Option<(bool, ScriptHistogram)>,
    count: usize,
    items: &mut Vec<SeriesItem>,
    bucket_bytes: &mut usize,
) -> Result<(), String> {
    let Some((subtracts, step)) = step else {
        items.extend(std::iter::repeat_n(SeriesItem::Histogram(first), count));
        return Ok(());
    };
    if step.histogram.schema < first.histogram.schema {
        return Err("the schema of an added histogram must not be lower".to_owned());
    }
    let buckets = |one: &Histogram| one.positive.len().saturating_add(one.negative.len());
    let buckets = buckets(&first.histogram).saturating_add(buckets(&step.histogram));
    let bytes = buckets.saturating_mul(count).saturating_mul(size_of::<HistogramBucket>());
    *bucket_bytes = bucket_bytes.saturating_add(bytes);
    if *bucket_bytes > BUCKETS_BYTES_MAX {
        return Err(format!("buckets of more than {BUCKETS_BYTES_MAX} bytes in one line"));
    }
    let histograms = histogram_ramp(&first.histogram, &step.histogram, subtracts, count)
        .ok_or_else(|| "these histograms cannot be added".to_owned())?;
    items.extend(histograms.into_iter().map(|histogram| {
        SeriesItem::Histogram(ScriptHistogram {
            histogram: Arc::new(histogram),
            has_hint: first.has_hint,
        })
    }));
    Ok(())
}

/// `count` histograms: `first`, then each the previous one plus `step`, or minus `step` with
/// `subtracts`. `None` if their bucket layouts are incompatible.
fn histogram_ramp(
    first: &Histogram,
    step: &Histogram,
    subtracts: bool,
    count: usize,
) -> Option<Vec<Histogram>> {
    let mut running: RunningHistogram<f64> = RunningHistogram::new(first);
    let mut histograms = Vec::new();
    for idx in 0..count {
        if idx > 0 {
            let merged = if subtracts { running.subtract(step) } else { running.add(step) };
            merged.ok()?;
        }
        histograms.push(running.clone().finish());
    }
    Some(histograms)
}

/// Start timestamps: `_`, `_x3`, `-1m`, `-1mx3`, `-1m-30sx3`.
fn parse_start(token: &str, starts: &mut Vec<Option<i64>>) -> Result<(), String> {
    let bad = || format!("bad start timestamp {:?}", excerpt(token));
    let (offsets, count) = match token.split_once('x') {
        Some((offsets, count)) => (offsets, Some(count.parse::<usize>().map_err(|_| bad())?)),
        None => (token, None),
    };
    if count.is_some_and(|count| count > ITEMS_MAX) {
        return Err(bad());
    }
    if offsets == "_" {
        starts.extend(std::iter::repeat_n(None, count.unwrap_or(1)));
        return Ok(());
    }
    let sign = offsets.char_indices().skip(1).find(|(_, c)| matches!(c, '+' | '-'));
    let (first, step) = offsets.split_at(sign.map_or(offsets.len(), |(at, _)| at));
    let (mut offset, step) = (signed(first)?, if step.is_empty() { 0 } else { signed(step)? });
    for _ in 0..=count.unwrap_or(0) {
        starts.push(Some(offset));
        offset = offset.saturating_add(step);
    }
    Ok(())
}

/// A duration with an optional sign, in milliseconds.
fn signed(text: &str) -> Result<i64, String> {
    let ms = parse_duration_ms(text.trim_start_matches(['+', '-']))?;
    Ok(if text.starts_with('-') { -ms } else { ms })
}

/// The number at the start of `text`, and the text after it.
fn number(text: &str) -> Option<(f64, &str)> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let mut after_exponent = false;
    let end = unsigned.find(|c| {
        let is_end = c == 'x' || matches!(c, '+' | '-') && !after_exponent;
        after_exponent = matches!(c, 'e' | 'E');
        is_end
    });
    let (number, rest) = unsigned.split_at(end.unwrap_or(unsigned.len()));
    let value = parse_number(number).ok()?;
    Some((if text.starts_with('-') { -value } else { value }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(line: &str) -> Vec<SeriesItem> {
        SeriesLine::parse(line).unwrap().items
    }

    /// Before, `010` was ten, and `1_000` a mistake.
    #[test]
    fn values_are_go_numbers() {
        let floats = |line: &str| -> Vec<f64> {
            let items = SeriesLine::parse_strictly(line).unwrap().items.into_iter();
            items
                .map(|item| if let SeriesItem::Float(value) = item { value } else { -1.0 })
                .collect()
        };
        assert_eq!(floats("m 010 1_000 1_0+1x1 _ 08"), [8.0, 1_000.0, 10.0, 11.0, -1.0, 8.0]);
    }

    #[test]
    fn repeats_and_ramps_expand() {
        use SeriesItem::{Float, Gap};
        let floats = |values: &[f64]| values.iter().map(|v| Float(*v)).collect::<Vec<_>>();
        assert_eq!(items("a 1+2x3"), floats(&[1.0, 3.0, 5.0, 7.0]));
        assert_eq!(items("a{} 7x3"), floats(&[7.0; 4]));
        assert_eq!(items("a 1-2x1 -2.5e3 .5"), floats(&[1.0, -1.0, -2500.0, 0.5]));
        assert_eq!(items("a _ _x2 +Inf"), [Gap, Gap, Gap, Float(f64::INFINITY)]);
        let histograms = items("a {{sum:1}}x1 {{count:5}}+{{count:2 buckets:[2]}}x2 {{}}");
        let counts: Vec<f64> = histograms
            .iter()
            .map(|item| match item {
                SeriesItem::Histogram(written) => written.histogram.count,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(counts, [0.0, 0.0, 5.0, 7.0, 9.0, 0.0]);
        let starts = SeriesLine::parse("a@st _ -1m-30sx1 _x2 -0ms").unwrap().starts.unwrap();
        assert_eq!(starts, [None, Some(-60_000), Some(-90_000), None, None, Some(0)]);
    }

    /// A short line could need any amount of memory.
    #[test]
    fn expansions_have_limits() {
        let items = "more than 1000000 values in one line";
        let histogram = format!("{{{{schema:0 buckets:[{}]}}}}", "1 ".repeat(1_000));
        let ramp = format!("a {histogram}+{histogram}x900000");
        let buckets = "buckets of more than 67108864 bytes in one line";
        let ramps = format!("a{}", format!(" {histogram}+{histogram}x1000").repeat(3));
        for (line, want) in [
            ("a 0x1000000000", items),
            ("a 0x99999999999999999999999", items),
            ("a 1+1x1000000000", items),
            ("a _x1000000000", items),
            ("a 0x999999 0x999999", items),
            ("a {{}}x1000000000", items),
            (ramp.as_str(), buckets),
            (ramps.as_str(), buckets),
        ] {
            assert_eq!(SeriesLine::parse(line).unwrap_err(), want, "{line:.60}");
        }
        for line in ["a 0x", "a 0x+1", "a 0x-1", "a 0xa"] {
            assert!(SeriesLine::parse(line).unwrap_err().starts_with("bad value"), "{line}");
        }
        let long = SeriesLine::parse(&format!("a {}", "y".repeat(1 << 20))).unwrap_err();
        assert!(long.len() < 2_000, "{long:.60}");
        // Took hours.
        let labels: String = (0..200_000).map(|idx| format!("a{idx}=\"\",")).collect();
        assert_eq!(SeriesLine::parse(&format!("m{{{labels}}} 1")).unwrap().labels.to_string(), "m");
    }

    #[test]
    fn series_have_quoted_names_too() {
        let labels = |line| SeriesLine::parse(line).unwrap().labels.to_string();
        assert_eq!(labels(r#"{"my.name", "a b"='x'}"#), r#"{"my.name","a b"="x"}"#);
        assert_eq!(labels(r#"a{b="c,}",d="e"} 1"#), r#"a{b="c,}",d="e"}"#);
        assert!(SeriesLine::parse("{a=1} 2").is_err());
    }

    /// The texts are those of promtool.
    #[test]
    fn mistakes_are_those_of_promtool() {
        let f = |line: &str, want: &str| {
            assert_eq!(SeriesLine::parse_strictly(line).unwrap_err(), want, "{line}");
        };
        let at = |line: &str, column: u32, want: &str| {
            f(line, &format!("1:{column}: parse error: unexpected {want}"));
        };
        f(r#"a{b="1",b="2"} 1"#, r#"label name "b" is not unique: invalid sample"#);
        f("{} 1", "empty labelset: invalid sample");
        assert!(SeriesLine::parse_strictly("z1 1z").is_err());
        let word = |word: &str| {
            format!("identifier \"{word}\" in series values, expected number or \"stale\"")
        };
        at("a stalex2", 3, &word("stalex2"));
        at("a 1 STALE", 5, &word("STALE"));
        at("a -", 4, "end of input in series values");
        at("a 1+1", 6, "end of input in series values");
        at("a 1x", 5, "end of input in series values");
        at("a 1x-1", 5, "<op:-> in series values");
        at("a --1", 4, "<op:-> in series values");
        at("a 1x2+3", 6, "<op:+>");
        at("a _x3x2", 6, "\"x\"");
        at("a x", 3, "\"x\"");
        at("a _1", 4, "number \"1\"");
        at("a 1.2.3", 6, "number \".3\"");
        at("a 1 + 1x2", 6, "\" \" in series values");
        at("a 1+stalex2", 5, "identifier \"stalex2\" in series values");
        at("a 1,2", 4, "character in series sequence: ','");
        at("a {b=\"1\"} 1", 3, "character in series sequence: '{'");
        at("a offset 5m", 3, "<offset>");
        at("a-b 1", 2, "<op:-> in series values");
        at("5 1", 1, "number \"5\" in series values");
        at("é 1", 1, "character: 'é'");
        at("on{on=\"x\"} 1", 1, "<on> in series values");
        at("z{1a=\"b\"} 1", 3, "character inside braces: '1'");
        at("a{ 1", 4, "character inside braces: '1'");
        at("a{b} 1", 4, "\"}\" in label set, expected \"=\"");
        at("a{,} 1", 3, "\",\" in label set, expected identifier or \"}\"");
        at("a{b!=\"1\"} 1", 4, "<op:!=> in label set, expected \"=\"");
        at("a{b==\"1\"} 1", 5, "\"=\" in label set, expected string");
        at("a{b=\"1\" c=\"2\"} 1", 9, "identifier \"c\" in label set, expected \",\" or \"}\"");
        f("a 1_", "1:3: parse error: bad number syntax: \"1\"");
        let float = "strconv.ParseFloat: parsing \"1.5e\": invalid syntax";
        f("a 1.5e", &format!("1:3: parse error: error parsing number: {float}"));
        let repeats = "invalid repetition in series values: strconv.ParseUint: parsing";
        f("a 1x2.5", &format!("1:5: parse error: {repeats} \"2.5\": invalid syntax"));
        // It was infinite.
        let float = "strconv.ParseFloat: parsing \"1e400\": value out of range";
        f("a 1e400", &format!("1:3: parse error: error parsing number: {float}"));
        // The last name won.
        f(r#"{"m",__name__="x"} 1"#, r#"label name "__name__" is not unique: invalid sample"#);
        let series = SeriesLine::parse_strictly(r#"m{__name__="x"} 1"#).unwrap();
        assert_eq!(series.labels.to_string(), "m");
    }

    /// Before, `m{a}` was the series `a`, and other mistakes had texts of their own.
    #[test]
    fn labels_of_expected_samples_are_checked() {
        let f = |text: &str| SeriesLine::parse_labels(text).map(|labels| labels.to_string());
        for (text, want) in [
            ("m", "m"),
            (" m {a=\"1\"} # c", "m{a=\"1\"}"),
            ("m # c", "m"),
            ("{}", "{}"),
            ("by{a='1',}", "by{a=\"1\"}"),
            ("{\"a b\", c=\"d\"}", "{\"a b\",c=\"d\"}"),
            ("m{__name__=\"x\"}", "m"),
        ] {
            assert_eq!(f(text).as_deref(), Ok(want), "{text}");
        }
        for (text, want) in [
            ("m{a}", "1:4: parse error: unexpected \"}\" in label set, expected \"=\""),
            ("m{a=\"1\"", "1:8: parse error: unexpected end of input inside braces"),
            ("m m", "1:3: parse error: unexpected identifier \"m\""),
            ("m 1", "1:3: parse error: unexpected number \"1\""),
            ("m[5m]", "1:2: parse error: unexpected \"[\""),
            ("m offset 1m", "1:3: parse error: unexpected <offset>"),
            ("1m", "1:1: parse error: unexpected duration \"1m\""),
            ("m{a=~\"1\"}", "1:4: parse error: unexpected <op:=~> in label set, expected \"=\""),
            ("\u{e9}", "1:1: parse error: unexpected character: '\u{e9}'"),
            ("m{\u{e9}=\"1\"}", "1:3: parse error: unexpected character inside braces: '\u{e9}'"),
            ("m @ 5", "1:3: parse error: unexpected <op:@>"),
            ("sum(m)", "1:4: parse error: unexpected \"(\""),
            ("\"m\"", "1:1: parse error: unexpected string \"\\\"m\\\"\""),
            ("NaN", "1:1: parse error: unexpected number \"NaN\""),
            ("on{a=\"1\"}", "1:1: parse error: unexpected <on>"),
            ("m{a=\"1\",a=\"2\"}", "label name \"a\" is not unique"),
        ] {
            assert_eq!(f(text).unwrap_err(), want, "{text}");
        }
    }

    #[test]
    fn lines_that_promtool_accepts_are_accepted() {
        for line in [
            "a",
            "a 1 2x3 -4 +5 .5 5. 1e+3 ",
            "a 1+1x2 _x3 stale\t_ stale",
            "a Inf -NaN +inf nan",
            "by{by='x', sum=`1`,} 1",
            "{__name__=\"a\"} 1",
            "a{b=\"\",b=\"1\"} 1",
            // It was taken for a quoted `b`.
            "a{aba=\"1\",b=\"1\"} 1",
            "a{b=\"1\",b=\"2\"} _",
            "stale 1",
            "_x2 1x2",
            "{\"a b\", \"c d\"=\"e\"} 1",
            "a {{sum:1}}x1 {{count:5}}+{{count:2 buckets:[2]}}x2 {{}}",
        ] {
            let parsed = SeriesLine::parse_strictly(line);
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
    }
}
