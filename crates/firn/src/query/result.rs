//! Results of queries as the API answers them, and their two forms of output.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use firn_promql::go_quote;
use firn_server::one_line;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::value::RawValue;

use crate::go_text::{go_fixed_float, go_float, go_short_float, push_json_text};

/// A label set; names in byte order.
pub(super) type LabelMap = BTreeMap<String, String>;

/// The result of a query.
#[derive(Debug, PartialEq)]
pub(super) enum QueryResult {
    Scalar(Sample),
    Vector(Vec<Series>),
    Matrix(Vec<Series>),
}

/// A series with its samples. One of a vector has one.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Series {
    pub(super) metric: LabelMap,
    pub(super) samples: Vec<Sample>,
    pub(super) histograms: Vec<(Time, Histogram)>,
}

/// A time in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Time(pub(super) i64);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) time: Time,
    pub(super) value: f64,
}

/// A native histogram. One without buckets lacks their key.
#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct Histogram {
    count: Number,
    sum: Number,
    pub(super) buckets: Option<Vec<Bucket>>,
}

/// Boundaries, lower and upper bound, count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bucket {
    pub(super) boundaries: i32,
    pub(super) lower: f64,
    pub(super) upper: f64,
    pub(super) count: f64,
}

/// A number in a text.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Number(f64);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawResult<'a> {
    result_type: String,
    #[serde(borrow)]
    result: &'a RawValue,
}

#[derive(Deserialize)]
struct RawPoint {
    metric: LabelMap,
    value: Option<(Time, Number)>,
    histogram: Option<(Time, Histogram)>,
}

#[derive(Deserialize)]
struct RawSeries {
    metric: LabelMap,
    values: Option<Vec<(Time, Number)>>,
    histograms: Option<Vec<(Time, Histogram)>>,
}

impl QueryResult {
    /// Reads the `data` of a response.
    pub(super) fn parse(data: &str) -> Result<QueryResult, String> {
        let raw: RawResult<'_> = serde_json::from_str(data).map_err(|e| e.to_string())?;
        let text = raw.result.get();
        match raw.result_type.as_str() {
            "scalar" => {
                let pair: (Time, Number) = serde_json::from_str(text).map_err(|e| e.to_string())?;
                Ok(QueryResult::Scalar(Sample::from(pair)))
            }
            "vector" => all_series(text, RawPoint::into_series).map(QueryResult::Vector),
            "matrix" => all_series(text, RawSeries::into_series).map(QueryResult::Matrix),
            other => Err(format!("unexpected value type {}", go_quote(other.as_bytes()))),
        }
    }

    /// The text of `-o promql`.
    pub(super) fn text(self) -> String {
        let lines: Vec<String> = match self {
            QueryResult::Scalar(sample) => {
                vec![format!("scalar: {} @[{}]", go_float(sample.value), sample.time.text())]
            }
            QueryResult::Vector(all) => {
                let line = |series: &Series| {
                    let metric = metric_text(&series.metric);
                    format!("{metric} => {}", series.points().next().unwrap_or_default())
                };
                all.iter().map(line).collect()
            }
            QueryResult::Matrix(mut all) => {
                all.sort_by(|a, b| metric_order(&a.metric, &b.metric));
                let lines = |series: &Series| {
                    let points: Vec<String> = series.points().collect();
                    format!("{} =>\n{}", metric_text(&series.metric), points.join("\n"))
                };
                all.iter().map(lines).collect()
            }
        };
        lines.join("\n") + "\n"
    }

    /// The line of `-o json`.
    pub(super) fn json(&self) -> String {
        let mut out = String::new();
        match self {
            QueryResult::Scalar(sample) => sample.push_json(&mut out),
            QueryResult::Vector(all) => {
                push_list(all, &mut out, |series, out| series.push_json("value", "histogram", out));
            }
            QueryResult::Matrix(all) => {
                push_list(all, &mut out, |series, out| {
                    series.push_json("values", "histograms", out)
                });
            }
        }
        out.push('\n');
        out
    }
}

/// The series of a list, each from its `Raw`.
fn all_series<Raw: de::DeserializeOwned>(
    text: &str,
    series: impl Fn(Raw) -> Result<Series, String>,
) -> Result<Vec<Series>, String> {
    // A list of Go without items may be null.
    let list: Option<Vec<Raw>> = serde_json::from_str(text).map_err(|e| e.to_string())?;
    list.unwrap_or_default().into_iter().map(series).collect()
}

impl RawPoint {
    fn into_series(self) -> Result<Series, String> {
        if self.value.is_none() && self.histogram.is_none() {
            return Err("expected the key value or histogram in a series, got neither".to_owned());
        }
        let samples = self.value.map(Sample::from).into_iter().collect();
        let histograms = self.histogram.into_iter().collect();
        Ok(Series { metric: self.metric, samples, histograms })
    }
}

impl RawSeries {
    fn into_series(self) -> Result<Series, String> {
        if self.values.is_none() && self.histograms.is_none() {
            return Err("expected the key values or histograms in a series, got neither".to_owned());
        }
        let samples = self.values.into_iter().flatten().map(Sample::from).collect();
        let histograms = self.histograms.into_iter().flatten().collect();
        Ok(Series { metric: self.metric, samples, histograms })
    }
}

impl From<(Time, Number)> for Sample {
    fn from((time, Number(value)): (Time, Number)) -> Sample {
        Sample { time, value }
    }
}

impl Series {
    /// The texts of its samples, then of its histograms.
    fn points(&self) -> impl Iterator<Item = String> {
        let sample = |one: &Sample| format!("{} @[{}]", go_float(one.value), one.time.text());
        let histogram = |(time, one): &(Time, Histogram)| {
            let buckets: Vec<String> = one.buckets.iter().flatten().map(Bucket::text).collect();
            format!(
                "Count: {}, Sum: {}, Buckets: [{}] @[{}]",
                go_fixed_float(one.count.0),
                go_fixed_float(one.sum.0),
                buckets.join(" "),
                time.text()
            )
        };
        self.samples.iter().map(sample).chain(self.histograms.iter().map(histogram))
    }

    /// A list of points if the name of the key is a plural.
    fn push_json(&self, samples_key: &str, histograms_key: &str, out: &mut String) {
        let is_list = samples_key.ends_with('s');
        out.push_str("{\"metric\":");
        push_labels(&self.metric, out);
        if !self.samples.is_empty() || self.histograms.is_empty() {
            let _ = write!(out, ",\"{samples_key}\":");
            match (is_list, self.samples.first()) {
                (false, Some(sample)) => sample.push_json(out),
                _ => push_list(&self.samples, out, Sample::push_json),
            }
        }
        if !self.histograms.is_empty() {
            let _ = write!(out, ",\"{histograms_key}\":");
            match (is_list, self.histograms.first()) {
                (false, Some(histogram)) => push_histogram(histogram, out),
                _ => push_list(&self.histograms, out, push_histogram),
            }
        }
        out.push('}');
    }
}

impl Sample {
    fn push_json(&self, out: &mut String) {
        let _ = write!(out, "[{},\"{}\"]", self.time.text(), go_float(self.value));
    }
}

impl Time {
    fn text(self) -> String {
        go_float(self.0 as f64 / 1_000.0)
    }
}

impl Bucket {
    fn text(&self) -> String {
        let start = if matches!(self.boundaries, 1 | 3) { '[' } else { '(' };
        let end = if matches!(self.boundaries, 0 | 3) { ']' } else { ')' };
        let (lower, upper) = (go_short_float(self.lower), go_short_float(self.upper));
        format!("{start}{lower},{upper}{end}:{}", go_float(self.count))
    }
}

fn push_histogram((time, one): &(Time, Histogram), out: &mut String) {
    let _ = write!(
        out,
        "[{},{{\"count\":\"{}\",\"sum\":\"{}\",\"buckets\":",
        time.text(),
        go_float(one.count.0),
        go_float(one.sum.0)
    );
    match &one.buckets {
        None => out.push_str("null"),
        Some(buckets) => push_list(buckets, out, |bucket, out| {
            let _ = write!(
                out,
                "[{},\"{}\",\"{}\",\"{}\"]",
                bucket.boundaries,
                go_float(bucket.lower),
                go_float(bucket.upper),
                go_float(bucket.count)
            );
        }),
    }
    out.push_str("}]");
}

/// A JSON list.
pub(super) fn push_list<T>(items: &[T], out: &mut String, mut push: impl FnMut(&T, &mut String)) {
    out.push('[');
    for (idx, item) in items.iter().enumerate() {
        if idx > 0 {
            out.push(',');
        }
        push(item, out);
    }
    out.push(']');
}

/// A JSON object.
pub(super) fn push_labels(labels: &LabelMap, out: &mut String) {
    out.push('{');
    for (idx, (name, value)) in labels.iter().enumerate() {
        if idx > 0 {
            out.push(',');
        }
        push_json_text(name, out);
        out.push(':');
        push_json_text(value, out);
    }
    out.push('}');
}

/// A metric: its name, then its labels.
pub(super) fn metric_text(metric: &LabelMap) -> String {
    let name = one_line(metric.get("__name__").map_or("", String::as_str));
    let labels = metric.iter().filter(|(name, _)| *name != "__name__");
    let mut labels: Vec<String> = labels.map(pair_text).collect();
    match (labels.is_empty(), metric.contains_key("__name__")) {
        (true, true) => name.into_owned(),
        (true, false) => "{}".to_owned(),
        (false, _) => {
            // As promtool: by name, = and value together.
            labels.sort_unstable();
            format!("{name}{{{}}}", labels.join(", "))
        }
    }
}

/// A label set of a series: all labels between braces.
pub(super) fn labels_text(labels: &LabelMap) -> String {
    let labels: Vec<String> = labels.iter().map(pair_text).collect();
    format!("{{{}}}", labels.join(", "))
}

/// A label of a line. promtool prints the name as it is.
fn pair_text((name, value): (&String, &String)) -> String {
    format!("{}={}", one_line(name), go_quote(value.as_bytes()))
}

/// The order of promtool's matrices: fewer labels first, then by the first name that one of them
/// lacks or whose values differ.
fn metric_order(a: &LabelMap, b: &LabelMap) -> Ordering {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let mut by_name = names.into_iter().map(|name| a.get(name).cmp(&b.get(name)));
    a.len().cmp(&b.len()).then_with(|| by_name.find(|o| o.is_ne()).unwrap_or(Ordering::Equal))
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        Ok(Time((seconds * 1_000.0).round() as i64))
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let value = match &*text {
            "+Inf" | "Inf" => Some(f64::INFINITY),
            "-Inf" => Some(f64::NEG_INFINITY),
            text => text.parse().ok(),
        };
        value.map(Number).ok_or_else(|| D::Error::custom("expected a number in a text"))
    }
}

impl<'de> Deserialize<'de> for Bucket {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bucket, D::Error> {
        struct Parts;
        impl<'de> Visitor<'de> for Parts {
            type Value = Bucket;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("boundaries, two bounds and a count")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Bucket, A::Error> {
                let missing = |count| de::Error::invalid_length(count, &self);
                let boundaries = parts.next_element()?.ok_or_else(|| missing(0))?;
                let Number(lower) = parts.next_element()?.ok_or_else(|| missing(1))?;
                let Number(upper) = parts.next_element()?.ok_or_else(|| missing(2))?;
                let Number(count) = parts.next_element()?.ok_or_else(|| missing(3))?;
                Ok(Bucket { boundaries, lower, upper, count })
            }
        }
        deserializer.deserialize_seq(Parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(data: &str) -> String {
        QueryResult::parse(data).expect("a result").text()
    }

    fn json(data: &str) -> String {
        QueryResult::parse(data).expect("a result").json()
    }

    #[test]
    fn a_scalar_and_a_vector_are_lines() {
        let scalar = r#"{"resultType":"scalar","result":[1435781451.781,"1"]}"#;
        assert_eq!(text(scalar), "scalar: 1 @[1435781451.781]\n");
        assert_eq!(json(scalar), "[1435781451.781,\"1\"]\n");
        let vector = r#"{"resultType":"vector","result":[
            {"metric":{"__name__":"up","a":"x\ny","a1":"<é>"},"value":[1,"NaN"]},
            {"metric":{},"value":[2.5,"-Inf"]},
            {"metric":{"__name__":"n"},"value":[3,"1e30"]}]}"#;
        assert_eq!(
            text(vector),
            "up{a1=\"<é>\", a=\"x\\ny\"} => NaN @[1]\n{} => -Inf @[2.5]\n\
             n => 1000000000000000000000000000000 @[3]\n"
        );
        assert_eq!(
            json(vector),
            "[{\"metric\":{\"__name__\":\"up\",\"a\":\"x\\ny\",\"a1\":\"\\u003cé\\u003e\"},\
             \"value\":[1,\"NaN\"]},{\"metric\":{},\"value\":[2.5,\"-Inf\"]},\
             {\"metric\":{\"__name__\":\"n\"},\"value\":[3,\"1000000000000000000000000000000\"]}]\n"
        );
        let empty = r#"{"resultType":"vector","result":[]}"#;
        assert_eq!((text(empty), json(empty)), ("\n".to_owned(), "[]\n".to_owned()));
    }

    #[test]
    fn series_of_a_matrix_are_sorted_in_the_text_only() {
        let matrix = r#"{"resultType":"matrix","result":[
            {"metric":{"a":"1","b":"2"},"values":[[1,"1"],[2,"+Inf"]]},
            {"metric":{"a":"1","c":"0"},"values":[[1,"2"]]},
            {"metric":{"z":"1"},"values":[[1.5,"3"]]}]}"#;
        assert_eq!(
            text(matrix),
            "{z=\"1\"} =>\n3 @[1.5]\n{a=\"1\", c=\"0\"} =>\n2 @[1]\n\
             {a=\"1\", b=\"2\"} =>\n1 @[1]\n+Inf @[2]\n"
        );
        assert!(json(matrix).starts_with(
            "[{\"metric\":{\"a\":\"1\",\"b\":\"2\"},\"values\":[[1,\"1\"],[2,\"+Inf\"]]},"
        ));
    }

    #[test]
    fn native_histograms_are_printed() {
        let vector = r#"{"resultType":"vector","result":[{"metric":{"a":"b"},"histogram":[1,
            {"count":"3.5","sum":"1000000","buckets":[[3,"-1","1","2"],[0,"1","1e7","1.5"]]}]}]}"#;
        assert_eq!(
            text(vector),
            "{a=\"b\"} => Count: 3.500000, Sum: 1000000.000000, Buckets: [[-1,1]:2 (1,1e+07]:1.5] \
             @[1]\n"
        );
        assert_eq!(
            json(vector),
            "[{\"metric\":{\"a\":\"b\"},\"histogram\":[1,{\"count\":\"3.5\",\"sum\":\"1000000\",\
             \"buckets\":[[3,\"-1\",\"1\",\"2\"],[0,\"1\",\"10000000\",\"1.5\"]]}]}]\n"
        );
    }

    /// Names of labels were printed as they are.
    #[test]
    fn names_of_a_server_add_no_line() {
        let evil = "a\nerror: forged\u{1b}";
        let labels = LabelMap::from(
            [("__name__", evil), (evil, evil)]
                .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        for text in [metric_text(&labels), labels_text(&labels)] {
            assert_eq!(one_line(&text), text);
        }
    }

    #[test]
    fn results_of_other_forms_are_errors() {
        for data in [
            "",
            "null",
            r#"{"resultType":"string","result":[1,"a"]}"#,
            r#"{"resultType":"scalar","result":["1","a"]}"#,
            r#"{"resultType":"vector","result":[{"value":[1,2]}]}"#,
            r#"{"resultType":"vector","result":[{"metric":[],"value":[1,"2"]}]}"#,
            r#"{"resultType":"matrix","result":[{"histograms":[[1,{"buckets":[[1]]}]]}]}"#,
            // Each missing key was a default, and the command succeeded.
            r#"{"resultType":"vector","result":[{"value":[1,"2"]}]}"#,
            r#"{"resultType":"vector","result":[{"metric":{}}]}"#,
            r#"{"resultType":"vector","result":[{"metric":{},"values":[[1,"2"]]}]}"#,
            r#"{"resultType":"vector","result":[{"metric":{},"histogram":[1,{"count":"1"}]}]}"#,
            r#"{"resultType":"matrix","result":[{"metric":{}}]}"#,
            r#"{"resultType":"matrix","result":[{"metric":{},"value":[1,"2"]}]}"#,
        ] {
            assert!(QueryResult::parse(data).is_err(), "{data}");
        }
        // A reader of the server's stack is not exhausted.
        assert!(QueryResult::parse(&"[".repeat(1 << 20)).is_err());
    }
}
