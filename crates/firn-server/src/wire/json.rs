//! Prometheus' JSON, written by hand: a query's answer is millions of numbers and nothing else.

use firn_model::{Histogram, Labels, Sample, excerpt_within, is_control};
use firn_promql::{
    BoundedBucket, PointValue, QueryOutput, Series, Value, VectorPoint, all_buckets,
};

use crate::wire::number::{TimeWriter, push_float, push_time};

/// The API's warning when `limit` truncated a response.
pub const TRUNCATED: &str = "results truncated due to limit";

// Further warnings are only counted.
const NOTE_COUNT_MAX: usize = 10;

/// Appends a JSON string.
pub fn push_string(text: &str, out: &mut Vec<u8>) {
    push_text(text.as_bytes(), out);
}

/// The length of `text` as a JSON string.
pub fn string_bytes(text: &str) -> usize {
    text_bytes(text.as_bytes())
}

/// The length of a label set as a JSON object, at most.
pub fn labels_bytes(labels: &Labels) -> usize {
    let pairs = labels.iter_bytes().map(|(name, value)| text_bytes(name) + text_bytes(value) + 2);
    2 + pairs.sum::<usize>()
}

fn text_bytes(bytes: &[u8]) -> usize {
    let escaped = |&byte: &u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
        0..0x20 => 6,
        _ => 1,
    };
    2 + bytes.iter().map(escaped).sum::<usize>()
}

/// Appends a JSON string of bytes that are UTF-8.
fn push_text(bytes: &[u8], out: &mut Vec<u8>) {
    // No branch per byte, so that several bytes are tested at once.
    let is_special = |byte: u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    if !bytes.iter().fold(false, |found, &byte| found | is_special(byte)) {
        out.reserve(bytes.len() + 2);
        out.push(b'"');
        out.extend_from_slice(bytes);
        out.push(b'"');
        return;
    }
    out.push(b'"');
    let mut clean_start = 0;
    for (idx, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(bytes.get(clean_start..idx).unwrap_or(&[]));
        clean_start = idx + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => {
                let hex = |nibble: u8| b"0123456789abcdef"[usize::from(nibble & 15)];
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[hex(control >> 4), hex(control)]);
            }
        }
    }
    out.extend_from_slice(bytes.get(clean_start..).unwrap_or(&[]));
    out.push(b'"');
}

/// Appends `[item,item,...]`.
pub fn push_array<T>(
    items: impl IntoIterator<Item = T>,
    out: &mut Vec<u8>,
    mut push: impl FnMut(T, &mut Vec<u8>),
) {
    out.push(b'[');
    for (idx, item) in items.into_iter().enumerate() {
        if idx > 0 {
            out.push(b',');
        }
        push(item, out);
    }
    out.push(b']');
}

/// Appends `{"key":value,...}`.
pub fn push_object<'k, T>(
    fields: impl IntoIterator<Item = (&'k str, T)>,
    out: &mut Vec<u8>,
    mut push: impl FnMut(T, &mut Vec<u8>),
) {
    out.push(b'{');
    for (idx, (key, value)) in fields.into_iter().enumerate() {
        if idx > 0 {
            out.push(b',');
        }
        push_string(key, out);
        out.push(b':');
        push(value, out);
    }
    out.push(b'}');
}

/// Appends a label set.
pub fn push_labels(labels: &Labels, out: &mut Vec<u8>) {
    let mut separator = b'{';
    for (name, value) in labels.iter_bytes() {
        out.push(separator);
        push_text(name, out);
        out.push(b':');
        push_text(value, out);
        separator = b',';
    }
    if labels.is_empty() {
        out.push(b'{');
    }
    out.push(b'}');
}

/// The beginning of a successful answer; the value of `data` and `}` follow.
pub const SUCCESS_HEAD: &[u8] = br#"{"status":"success","data":"#;

/// Bytes of an error's text. A text that repeats a client's input is shortened where it is made;
/// this is for those that repeat much of it.
const ERROR_BYTES_MAX: usize = 4_096;

/// A whole successful answer; `push_data` writes the value of `data`.
pub fn success(
    warnings: &[String],
    infos: &[String],
    push_data: impl FnOnce(&mut Vec<u8>),
) -> Vec<u8> {
    let mut out = SUCCESS_HEAD.to_vec();
    push_data(&mut out);
    push_end(warnings, infos, &mut out);
    out
}

/// Appends the end of a successful answer, after the value of `data`.
pub fn push_end(warnings: &[String], infos: &[String], out: &mut Vec<u8>) {
    push_notes("warnings", warnings, out);
    push_notes("infos", infos, out);
    out.push(b'}');
}

/// A whole failed answer. Its texts may repeat a client's input.
pub fn failure(error_type: &str, text: &str) -> Vec<u8> {
    let mut out = br#"{"status":"error","errorType":"#.to_vec();
    push_string(error_type, &mut out);
    out.extend_from_slice(br#","error":"#);
    push_string(&excerpt_within(text, ERROR_BYTES_MAX), &mut out);
    out.push(b'}');
    printable(out)
}

/// A JSON document of one line with an escape in place of every character of
/// [`firn_model::is_control`]: JSON itself demands it of the first 32 only.
pub fn printable(document: Vec<u8>) -> Vec<u8> {
    // The others begin with one of these bytes.
    if !document.iter().any(|byte| matches!(byte, 0x7f | 0xc2 | 0xe2)) {
        return document;
    }
    let mut out = Vec::with_capacity(document.len());
    for character in String::from_utf8_lossy(&document).chars() {
        match is_control(character) {
            // Outside of its texts the document has none of them.
            true => out.extend_from_slice(format!("\\u{:04x}", u32::from(character)).as_bytes()),
            false => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out
}

/// The bytes of [`push_query_answer`] at most, without the text of its `push_more`.
pub fn query_answer_bytes(output: &QueryOutput) -> usize {
    // `[time,"value"],` with at most 21 and 24 digits.
    const FLOAT_BYTES: usize = 52;
    const SERIES_BYTES: usize = 64;
    let value_bytes = match &output.value {
        Value::Scalar { .. } => FLOAT_BYTES,
        Value::String { value, .. } => 64 + text_bytes(String::from_utf8_lossy(value).as_bytes()),
        Value::Vector(points) => points
            .iter()
            .map(|p| {
                let value_bytes = match &p.value {
                    PointValue::Float(_) => FLOAT_BYTES,
                    PointValue::Histogram(histogram) => histogram_bytes(histogram),
                };
                SERIES_BYTES + labels_bytes(&p.labels) + value_bytes
            })
            .sum(),
        Value::Matrix(series) => series
            .iter()
            .map(|s| {
                let histograms = s.histograms.iter().map(|point| histogram_bytes(&point.histogram));
                let float_bytes = s.floats.len() * FLOAT_BYTES;
                SERIES_BYTES + labels_bytes(&s.labels) + float_bytes + histograms.sum::<usize>()
            })
            .sum(),
    };
    let notes = output.annotations.warnings().chain(output.annotations.infos());
    512 + value_bytes + notes.map(|note| string_bytes(&note) + 1).sum::<usize>()
}

/// Appends a complete response to `query` or `query_range`, with at most `limit` series of a vector
/// or matrix (0: all). `warning` is added to those of the query; `push_more` appends to the data.
pub fn push_query_answer(
    output: &QueryOutput,
    limit: usize,
    warning: Option<String>,
    push_more: impl FnOnce(&mut Vec<u8>),
    out: &mut Vec<u8>,
) {
    let series_count = match &output.value {
        Value::Vector(points) => points.len(),
        Value::Matrix(series) => series.len(),
        Value::Scalar { .. } | Value::String { .. } => 0,
    };
    let shown_count = if limit == 0 { series_count } else { limit.min(series_count) };
    let mut warnings: Vec<String> = output.annotations.warnings().collect();
    if shown_count < series_count {
        warnings.push(TRUNCATED.to_owned());
    }
    warnings.extend(warning);
    let infos: Vec<String> = output.annotations.infos().collect();
    out.extend_from_slice(SUCCESS_HEAD);
    out.extend_from_slice(br#"{"resultType":""#);
    out.extend_from_slice(output.value.value_type().api_name().as_bytes());
    out.extend_from_slice(br#"","result":"#);
    push_value(&output.value, shown_count, out);
    push_more(out);
    out.push(b'}');
    push_end(&warnings, &infos, out);
}

/// The bytes of a histogram point at most: three numbers of a bucket have up to 24 digits each.
fn histogram_bytes(histogram: &Histogram) -> usize {
    128 + (histogram.positive.len() + histogram.negative.len() + 1) * 88
}

fn push_value(value: &Value, shown_count: usize, out: &mut Vec<u8>) {
    match value {
        Value::Scalar { ts, value } => push_point(*ts, *value, out),
        Value::String { ts, value } => {
            out.push(b'[');
            push_time(*ts, out);
            out.push(b',');
            push_string(&String::from_utf8_lossy(value), out);
            out.push(b']');
        }
        Value::Vector(points) => {
            push_array(points.iter().take(shown_count), out, push_vector_point);
        }
        Value::Matrix(series) => push_array(series.iter().take(shown_count), out, push_series),
    }
}

fn push_vector_point(point: &VectorPoint, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"metric":"#);
    push_labels(&point.labels, out);
    match &point.value {
        PointValue::Float(value) => {
            out.extend_from_slice(br#","value":"#);
            push_point(point.ts, *value, out);
        }
        PointValue::Histogram(histogram) => {
            out.extend_from_slice(br#","histogram":"#);
            push_histogram_point(point.ts, histogram, out);
        }
    }
    out.push(b'}');
}

fn push_series(series: &Series, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"metric":"#);
    push_labels(&series.labels, out);
    if !series.floats.is_empty() {
        out.extend_from_slice(br#","values":"#);
        push_floats(&series.floats, out);
    }
    if !series.histograms.is_empty() {
        out.extend_from_slice(br#","histograms":"#);
        push_array(&series.histograms, out, |point, out| {
            push_histogram_point(point.ts, &point.histogram, out);
        });
    }
    out.push(b'}');
}

/// [`push_point`] of many, as an array.
fn push_floats(samples: &[Sample], out: &mut Vec<u8>) {
    let mut times = TimeWriter::new("[", ",\"");
    out.push(b'[');
    for sample in samples {
        times.push(sample.ts, out);
        push_float(sample.value, out);
        out.extend_from_slice(b"\"],");
    }
    // In place of the last comma.
    out.pop();
    out.push(b']');
}

fn push_point(ts: i64, value: f64, out: &mut Vec<u8>) {
    out.push(b'[');
    push_time(ts, out);
    out.extend_from_slice(b",\"");
    push_float(value, out);
    out.extend_from_slice(b"\"]");
}

/// `[time,{"count":"..","sum":"..","buckets":[[rule,"lower","upper","count"],..]}]`, without empty
/// buckets.
fn push_histogram_point(ts: i64, histogram: &Histogram, out: &mut Vec<u8>) {
    out.push(b'[');
    push_time(ts, out);
    out.extend_from_slice(br#",{"count":"#);
    push_quoted(histogram.count, out);
    out.extend_from_slice(br#","sum":"#);
    push_quoted(histogram.sum, out);
    let mut buckets = all_buckets(histogram);
    buckets.retain(|bucket| bucket.count != 0.0);
    if !buckets.is_empty() {
        out.extend_from_slice(br#","buckets":"#);
        push_array(&buckets, out, |bucket, out| push_bucket(histogram, bucket, out));
    }
    out.extend_from_slice(b"}]");
}

fn push_bucket(histogram: &Histogram, bucket: &BoundedBucket, out: &mut Vec<u8>) {
    // Custom buckets are all (lower,upper], though the first one starts at -Inf.
    let includes_lower = bucket.lower_inclusive && !histogram.has_custom_bounds();
    let rule = match (includes_lower, bucket.upper_inclusive) {
        (false, true) => b'0',
        (true, false) => b'1',
        (false, false) => b'2',
        (true, true) => b'3',
    };
    out.extend_from_slice(&[b'[', rule]);
    for number in [bucket.lower, bucket.upper, bucket.count] {
        out.push(b',');
        push_quoted(number, out);
    }
    out.push(b']');
}

fn push_quoted(value: f64, out: &mut Vec<u8>) {
    out.push(b'"');
    push_float(value, out);
    out.push(b'"');
}

fn push_notes(key: &str, notes: &[String], out: &mut Vec<u8>) {
    if notes.is_empty() {
        return;
    }
    out.extend_from_slice(b",\"");
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(b"\":");
    let shown_count = if notes.len() > NOTE_COUNT_MAX { NOTE_COUNT_MAX - 1 } else { notes.len() };
    let hidden_count = notes.len() - shown_count;
    let kind = key.trim_end_matches('s');
    let rest =
        (hidden_count > 0).then(|| format!("{hidden_count} more {kind} annotations omitted"));
    let shown = notes.iter().take(shown_count).chain(&rest);
    push_array(shown, out, |note, out| push_string(note, out));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use firn_model::HistogramBucket;
    use firn_promql::{Annotations, HeldMemory, HistogramPoint};

    use super::*;

    fn answer(value: Value, limit: usize) -> String {
        let output = QueryOutput {
            value,
            annotations: Annotations::default(),
            samples_read: 0,
            samples_peak: 0,
            samples: None,
            held: HeldMemory::default(),
        };
        let mut bytes = Vec::new();
        push_query_answer(&output, limit, None, |_| {}, &mut bytes);
        assert!(bytes.len() <= query_answer_bytes(&output), "the bound is too low");
        String::from_utf8(bytes).unwrap()
    }

    fn labels(value: &str) -> Labels {
        Labels::from_pairs([("__name__", "up"), ("b", value)]).unwrap()
    }

    #[test]
    fn values_have_prometheus_shapes() {
        let scalar = Value::Scalar { ts: 1_500, value: 1e21 };
        assert_eq!(
            answer(scalar, 0),
            r#"{"status":"success","data":{"resultType":"scalar","result":[1.500,"1e+21"]}}"#
        );
        let string = Value::String { ts: 0, value: b"a\"\xff".to_vec() };
        assert_eq!(
            answer(string, 0),
            "{\"status\":\"success\",\"data\":{\"resultType\":\"string\",\
             \"result\":[0,\"a\\\"\u{fffd}\"]}}"
        );
        let point =
            |value| VectorPoint { labels: labels("1"), ts: 1_000, value: PointValue::Float(value) };
        assert_eq!(
            answer(Value::Vector(vec![point(f64::NAN), point(-0.0)]), 1),
            r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{"__name__":"up","b":"1"},"value":[1,"NaN"]}]},"warnings":["results truncated due to limit"]}"#
        );
        assert_eq!(
            answer(Value::Vector(vec![]), 1),
            r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#
        );
        let floats = vec![Sample { ts: 1_000, value: 1.0 }, Sample { ts: 2_000, value: 2.5 }];
        let matrix = Value::Matrix(vec![Series::new(Labels::empty(), floats)]);
        assert_eq!(
            answer(matrix, 1),
            r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"1"],[2,"2.5"]]}]}}"#
        );
    }

    #[test]
    fn histograms_list_their_populated_buckets() {
        let bucket = |index, count| HistogramBucket { index, count };
        let histogram = Histogram {
            count: 10.0,
            sum: -2.5,
            zero_count: 1.0,
            zero_threshold: 0.001,
            positive: vec![bucket(0, 2.0), bucket(1, 0.0), bucket(2, 3.0)],
            negative: vec![bucket(0, 1.0), bucket(1, 3.0)],
            ..Histogram::empty()
        };
        let value = PointValue::Histogram(Arc::new(histogram));
        let point = VectorPoint { labels: labels("1"), ts: 1_500, value };
        assert_eq!(
            answer(Value::Vector(vec![point]), 0),
            r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{"__name__":"up","b":"1"},"histogram":[1.500,{"count":"10","sum":"-2.5","buckets":[[1,"-2","-1","3"],[1,"-1","-0.5","1"],[3,"-0.001","0.001","1"],[0,"0.5","1","2"],[0,"2","4","3"]]}]}]}}"#
        );
        let custom = Histogram {
            schema: Histogram::CUSTOM_SCHEMA,
            count: 3.0,
            custom_bounds: [5.0].into(),
            positive: vec![bucket(0, 1.0), bucket(1, 2.0)],
            ..Histogram::empty()
        };
        let mut series = Series::new(Labels::empty(), vec![Sample { ts: 0, value: 1.0 }]);
        for (ts, histogram) in [(1_000, custom), (2_000, Histogram::empty())] {
            series.histograms.push(HistogramPoint { ts, histogram: Arc::new(histogram) });
        }
        assert_eq!(
            answer(Value::Matrix(vec![series]), 0),
            r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[0,"1"]],"histograms":[[1,{"count":"3","sum":"0","buckets":[[0,"-Inf","5","1"],[0,"5","+Inf","2"]]}],[2,{"count":"0","sum":"0"}]]}]}}"#
        );
    }

    #[test]
    fn strings_are_escaped_and_read_back() {
        let text = "a\"b\\c\nd\te\rf\u{1}\u{1f}é\u{2028}😀<&>";
        let mut out = Vec::new();
        push_string(text, &mut out);
        assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        assert_eq!(out.len(), string_bytes(text));
        let labels = Labels::from_pairs([("a", text), ("b", "\u{2}")]).unwrap();
        out.clear();
        push_labels(&labels, &mut out);
        assert_eq!(out.len() + 1, labels_bytes(&labels));
        assert!(String::from_utf8(out).unwrap().contains(r"\u0001\u001f"));
    }

    #[test]
    fn notes_are_capped_and_failures_name_their_type() {
        let notes: Vec<String> = (0..12).map(|idx| format!("w{idx}")).collect();
        let text = String::from_utf8(success(&notes, &[], |out| out.push(b'1'))).unwrap();
        assert!(text.ends_with(r#""w8","3 more warning annotations omitted"]}"#), "{text}");
        assert!(!text.contains("infos"));
        assert_eq!(
            String::from_utf8(failure("bad_data", "no \"x\"")).unwrap(),
            r#"{"status":"error","errorType":"bad_data","error":"no \"x\""}"#
        );
    }
}
