//! A range query's answer as its origin wrote it: every number and label set keeps its text, so
//! that cached answers equal the JSON of the origin.
//!
//! In the cache a step is one point. Its head is a byte, 1 if the origin writes `isPartial`, and
//! the label sets, `varint(length) JSON` each. Its payload has for each of them `varint(0)` if it
//! has no value there, else `varint(2 * length + 1 + (1 for a histogram)) JSON`.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use firn_cache::{Grid, Point, PointRef};
use firn_codec::varint::{encode_varint, take_bytes, take_count, take_u8, take_varint};
use firn_collect::json::from_json;
use firn_model::{Error, Result, TimeRange, Timestamp};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::wire::number::{TimeWriter, push_time};

/// Longer than any label set or value.
const TEXT_BYTES_MAX: usize = 64 << 20;

/// A label set by its meaning, sorted by name. Sorts as Prometheus sorts a matrix.
type Labels = Box<[(String, String)]>;
/// The label sets that steps share, encoded.
type Head = Arc<[u8]>;

/// The fields around the matrix in an origin's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Envelope {
    /// VictoriaMetrics writes `"isPartial":false`, Prometheus does not.
    pub(super) tells_partial: bool,
}

/// Series with the points that they have at steps.
#[derive(Debug, Default)]
pub(super) struct Matrix {
    /// The text that `place`s refer to.
    text: Vec<u8>,
    series: Vec<MatrixSeries>,
    places: HashMap<Labels, usize>,
    /// JSON of the statistics of its computation; empty if the answer has none. Not stored.
    pub(super) stats: Vec<u8>,
}

#[derive(Debug)]
struct MatrixSeries {
    metric: Range<usize>,
    /// Times rising.
    points: Vec<PointValue>,
}

#[derive(Clone, Debug)]
struct PointValue {
    ts: Timestamp,
    is_histogram: bool,
    place: Range<usize>,
}

/// Some steps of a matrix in the form of the cache.
#[derive(Debug)]
pub(super) struct Steps {
    head: Head,
    bytes: Vec<u8>,
    steps: Vec<(Timestamp, Range<usize>)>,
}

// An answer with other fields, such as a warning, is not stored.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MatrixReplyText<'a> {
    status: &'a str,
    #[serde(borrow)]
    data: DataText<'a>,
    #[serde(rename = "isPartial")]
    is_partial: Option<bool>,
    /// VictoriaMetrics' statistics; they differ every time.
    #[serde(rename = "stats")]
    _stats: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DataText<'a> {
    #[serde(rename = "resultType")]
    result_type: &'a str,
    #[serde(borrow)]
    result: Vec<MatrixSeriesText<'a>>,
    /// Prometheus' statistics, on request.
    #[serde(borrow)]
    stats: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MatrixSeriesText<'a> {
    #[serde(borrow)]
    metric: &'a RawValue,
    #[serde(borrow, default)]
    values: Vec<(&'a RawValue, &'a RawValue)>,
    #[serde(borrow, default)]
    histograms: Vec<(&'a RawValue, &'a RawValue)>,
}

#[expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "`place` and `push` make every position, in `series` and `text`, which only grow"
)]
impl Matrix {
    /// Parses an answer. `None` unless it is a successful range query without warnings, with every
    /// point at one of `steps` and with times in the form that is written here.
    pub(super) fn parse(answer: &[u8], grid: Grid, steps: TimeRange) -> Option<(Matrix, Envelope)> {
        let reply: MatrixReplyText<'_> = from_json(answer).ok()?;
        let is_whole = reply.status == "success"
            && reply.data.result_type == "matrix"
            && reply.is_partial != Some(true);
        is_whole.then_some(())?;
        let stats = reply.data.stats.map_or_else(Vec::new, |stats| stats.get().into());
        let mut matrix = Matrix { stats, ..Matrix::default() };
        for series in reply.data.result {
            let place = matrix.place(series.metric.get().as_bytes()).ok()?;
            // A matrix does not repeat labels.
            let points = &mut matrix.series[place].points;
            points.is_empty().then_some(())?;
            points.reserve_exact(series.values.len() + series.histograms.len());
            for (values, is_histogram) in [(series.values, false), (series.histograms, true)] {
                for (time, value) in values {
                    let ts = time_of(time.get())?;
                    let is_step = steps.contains(ts) && grid.floor(ts) == ts;
                    is_step.then_some(())?;
                    matrix.push(place, ts, is_histogram, value.get().as_bytes());
                }
            }
            let points = &mut matrix.series[place].points;
            points.sort_by_key(|point| point.ts);
            points.is_sorted_by(|a, b| a.ts < b.ts).then_some(())?;
        }
        Some((matrix, Envelope { tells_partial: reply.is_partial.is_some() }))
    }

    /// Adds a point from the cache. Points must come in time order, all before or all after an
    /// [appended](Matrix::append) matrix.
    ///
    /// # Errors
    /// `Corrupt` if it was not written by [`Matrix::encode`].
    pub(super) fn add(&mut self, point: PointRef<'_>, heads: &mut Heads) -> Result<()> {
        let Some(head) = point.head else {
            return Err(Error::corrupt("cached answer", 0, "a step without label sets"));
        };
        let members = heads.members(head, self)?;
        let mut input = point.payload;
        for &place in members.iter() {
            let Some(tagged) = take_varint(&mut input, "value")?.checked_sub(1) else { continue };
            let len = usize::try_from(tagged / 2).unwrap_or(usize::MAX);
            let value = take_bytes(&mut input, len, "value")?;
            self.push(place, point.ts, tagged % 2 == 1, value);
        }
        Ok(())
    }

    /// Appends `other`, with points after all points here.
    pub(super) fn append(&mut self, other: &Matrix) -> Result<()> {
        for series in &other.series {
            let place = self.place(&other.text[series.metric.clone()])?;
            self.series[place].points.reserve_exact(series.points.len());
            for point in &series.points {
                self.push(place, point.ts, point.is_histogram, &other.text[point.place.clone()]);
            }
        }
        Ok(())
    }

    /// Encodes the steps of `kept` as points. The last head of the key is reused if it has all
    /// label sets.
    pub(super) fn encode(
        &self,
        grid: Grid,
        kept: TimeRange,
        envelope: Envelope,
        last_head: Option<&Head>,
    ) -> Steps {
        let metric = |series: &MatrixSeries| self.text[series.metric.clone()].to_vec();
        let by_metric: HashMap<Vec<u8>, &MatrixSeries> =
            self.series.iter().map(|series| (metric(series), series)).collect();
        let reused = last_head.and_then(|head| {
            let (known_envelope, metrics) = decode_head(head).ok()?;
            let known = metrics.iter().filter(|metric| by_metric.contains_key(**metric)).count();
            // One with many more label sets would make every step longer.
            let is_close = known_envelope == envelope
                && known == by_metric.len()
                && metrics.len() <= 2 * known + 8;
            let members = metrics.iter().map(|metric| by_metric.get(*metric).copied()).collect();
            is_close.then(|| (Arc::clone(head), members))
        });
        let (head, members): (Head, Vec<Option<&MatrixSeries>>) = reused.unwrap_or_else(|| {
            let mut head = vec![u8::from(envelope.tells_partial)];
            for series in &self.series {
                encode_varint(series.metric.len() as u64, &mut head);
                head.extend_from_slice(&self.text[series.metric.clone()]);
            }
            (head.into(), self.series.iter().map(Some).collect())
        });
        let mut cursors: Vec<&[PointValue]> = members
            .into_iter()
            .map(|member| member.map_or(&[][..], |series| &series.points[..]))
            .collect();
        let mut encoded = Steps { head, bytes: Vec::new(), steps: Vec::new() };
        for ts in grid.iter(kept) {
            let start = encoded.bytes.len();
            let mut is_empty = true;
            for cursor in &mut cursors {
                let next = cursor.partition_point(|point| point.ts < ts);
                *cursor = &cursor[next..];
                match cursor.first().filter(|point| point.ts == ts) {
                    Some(point) => {
                        let tag = 2 * point.place.len() as u64 + 1 + u64::from(point.is_histogram);
                        encode_varint(tag, &mut encoded.bytes);
                        encoded.bytes.extend_from_slice(&self.text[point.place.clone()]);
                        is_empty = false;
                    }
                    None => encode_varint(0, &mut encoded.bytes),
                }
            }
            match is_empty {
                true => encoded.bytes.truncate(start),
                false => encoded.steps.push((ts, start..encoded.bytes.len())),
            }
        }
        encoded
    }

    /// The answer, as the origin would write it.
    pub(super) fn write(&self, envelope: Envelope) -> Vec<u8> {
        let mut order: Vec<(&Labels, usize)> =
            self.places.iter().map(|(labels, &place)| (labels, place)).collect();
        order.sort();
        let partial = if envelope.tells_partial { ",\"isPartial\":false" } else { "" };
        let mut out = Vec::with_capacity(self.text.len() * 2);
        out.extend_from_slice(b"{\"status\":\"success\"");
        out.extend_from_slice(partial.as_bytes());
        out.extend_from_slice(b",\"data\":{\"resultType\":\"matrix\",\"result\":[");
        let mut is_first = true;
        for (_, place) in order {
            let series = &self.series[place];
            if series.points.is_empty() {
                continue;
            }
            if !std::mem::take(&mut is_first) {
                out.push(b',');
            }
            out.extend_from_slice(b"{\"metric\":");
            out.extend_from_slice(&self.text[series.metric.clone()]);
            for (name, is_histogram) in [("values", false), ("histograms", true)] {
                let mut points = series
                    .points
                    .iter()
                    .filter(|point| point.is_histogram == is_histogram)
                    .peekable();
                if points.peek().is_none() {
                    continue;
                }
                out.extend_from_slice(b",\"");
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(b"\":[");
                let mut times = TimeWriter::new("[", ",");
                while let Some(point) = points.next() {
                    times.push(point.ts, &mut out);
                    out.extend_from_slice(&self.text[point.place.clone()]);
                    out.push(b']');
                    if points.peek().is_some() {
                        out.push(b',');
                    }
                }
                out.push(b']');
            }
            out.push(b'}');
        }
        out.push(b']');
        if !self.stats.is_empty() {
            out.extend_from_slice(b",\"stats\":");
            out.extend_from_slice(&self.stats);
        }
        out.extend_from_slice(b"}}");
        out
    }

    /// The series with these labels.
    fn place(&mut self, metric: &[u8]) -> Result<usize> {
        let labels: BTreeMap<String, String> = serde_json::from_slice(metric)
            .map_err(|e| Error::corrupt("cached answer", 0, "no label set").because(e))?;
        let labels: Labels = labels.into_iter().collect();
        let Matrix { text, series, places, .. } = self;
        let place = places.entry(labels).or_insert_with(|| {
            let start = text.len();
            text.extend_from_slice(metric);
            series.push(MatrixSeries { metric: start..text.len(), points: Vec::new() });
            series.len() - 1
        });
        Ok(*place)
    }

    fn push(&mut self, place: usize, ts: Timestamp, is_histogram: bool, value: &[u8]) {
        let start = self.text.len();
        self.text.extend_from_slice(value);
        let place_of_text = start..self.text.len();
        self.series[place].points.push(PointValue { ts, is_histogram, place: place_of_text });
    }
}

impl Steps {
    /// The points, in the order of time.
    #[expect(clippy::indexing_slicing, reason = "`Matrix::encode` made the positions in `bytes`")]
    pub(super) fn points(&self) -> Vec<Point<'_>> {
        let point = |(ts, place): &(Timestamp, Range<usize>)| Point {
            ts: *ts,
            head: Some(Arc::clone(&self.head)),
            payload: &self.bytes[place.clone()],
        };
        self.steps.iter().map(point).collect()
    }
}

/// Which series each label set of a head is; neighbours share their head.
#[derive(Debug, Default)]
pub(super) struct Heads {
    members: HashMap<Head, Arc<[usize]>>,
    /// The last head, which the next point has too as a rule: hashing it would cost as much as the
    /// values of a step.
    last: Option<(Head, Arc<[usize]>)>,
    envelope: Envelope,
}

impl Heads {
    /// Whether no point was added yet.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The fields around the points that were added.
    pub(super) fn envelope(&self) -> Envelope {
        self.envelope
    }

    fn members(&mut self, head: &Head, matrix: &mut Matrix) -> Result<Arc<[usize]>> {
        if let Some((last, members)) = &self.last
            && Arc::ptr_eq(last, head)
        {
            return Ok(Arc::clone(members));
        }
        let members = match self.members.get(head) {
            Some(members) => Arc::clone(members),
            None => {
                let (envelope, metrics) = decode_head(head)?;
                self.envelope = envelope;
                let members = metrics.into_iter().map(|metric| matrix.place(metric));
                let members: Arc<[usize]> = members.collect::<Result<Vec<_>>>()?.into();
                self.members.insert(Arc::clone(head), Arc::clone(&members));
                members
            }
        };
        self.last = Some((Arc::clone(head), Arc::clone(&members)));
        Ok(members)
    }
}

fn decode_head(mut input: &[u8]) -> Result<(Envelope, Vec<&[u8]>)> {
    let envelope = Envelope { tells_partial: take_u8(&mut input, "kind of origin")? == 1 };
    let mut metrics = Vec::new();
    while !input.is_empty() {
        let len = take_count(&mut input, TEXT_BYTES_MAX, "label set")?;
        metrics.push(take_bytes(&mut input, len, "label set")?);
    }
    Ok((envelope, metrics))
}

/// Parses seconds of an answer; `None` if this proxy would write them in another form.
#[expect(clippy::cast_possible_truncation, reason = "a float below 9e15 is converted")]
fn time_of(text: &str) -> Option<Timestamp> {
    let ts = (text.parse::<f64>().ok()? * 1_000.0).round();
    let ts = (ts.abs() < 9e15).then_some(ts as Timestamp)?;
    let mut written = Vec::new();
    push_time(ts, &mut written);
    (written == text.as_bytes()).then_some(ts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRID_STEPS: TimeRange = TimeRange { start: 1_000, end: 4_000 };
    const ANSWER: &str = r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"a","b":"\"x"},"values":[[1,"1e-07"],[3,"NaN"]],"histograms":[[2,{"count":"1","sum":"2"}]]},{"metric":{"__name__":"b"},"values":[[4,"-0"]]}]}}"#;

    fn grid() -> Grid {
        Grid::new(1_000, 4_000, 1_000).unwrap()
    }

    fn parse(answer: &str) -> Option<(Matrix, Envelope)> {
        Matrix::parse(answer.as_bytes(), grid(), GRID_STEPS)
    }

    fn stored(steps: &Steps, into: &mut Matrix) {
        let mut heads = Heads::default();
        for point in steps.points() {
            let point =
                PointRef { ts: point.ts, head: point.head.as_ref(), payload: point.payload };
            into.add(point, &mut heads).unwrap();
        }
    }

    #[test]
    fn an_answer_is_the_same_text_after_it_was_in_the_cache() {
        let (matrix, envelope) = parse(ANSWER).unwrap();
        assert_eq!(String::from_utf8(matrix.write(envelope)).unwrap(), ANSWER);
        let mut again = Matrix::default();
        stored(&matrix.encode(grid(), GRID_STEPS, envelope, None), &mut again);
        assert_eq!(String::from_utf8(again.write(envelope)).unwrap(), ANSWER);
    }

    #[test]
    fn parts_are_joined_in_the_order_of_labels() {
        let (matrix, envelope) = parse(ANSWER).unwrap();
        let mut joined = Matrix::default();
        stored(&matrix.encode(grid(), TimeRange::new(1_000, 2_000), envelope, None), &mut joined);
        let late = r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"A"},"values":[[4,"7"]]},{"metric":{"b":"\"x","__name__":"a"},"values":[[3,"NaN"]]},{"metric":{"__name__":"b"},"values":[[4,"-0"]]}]}}"#;
        joined.append(&parse(late).unwrap().0).unwrap();
        let wanted = ANSWER.replacen(
            r#""result":["#,
            r#""result":[{"metric":{"__name__":"A"},"values":[[4,"7"]]},"#,
            1,
        );
        assert_eq!(String::from_utf8(joined.write(envelope)).unwrap(), wanted);
    }

    #[test]
    fn a_head_is_used_again_as_long_as_it_has_all_label_sets() {
        let (matrix, envelope) = parse(ANSWER).unwrap();
        let first = matrix.encode(grid(), GRID_STEPS, envelope, None);
        let again = matrix.encode(grid(), GRID_STEPS, envelope, Some(&first.head));
        assert!(Arc::ptr_eq(&first.head, &again.head) && first.bytes == again.bytes);
        let other = parse(&ANSWER.replace("\"b\"}", "\"c\"}")).unwrap().0;
        let second = other.encode(grid(), GRID_STEPS, envelope, Some(&first.head));
        assert!(!Arc::ptr_eq(&first.head, &second.head));
    }

    #[test]
    fn answers_with_extra_fields_or_other_times_are_not_parsed() {
        for (what, instead) in [
            ("\"success\"", "\"error\""),
            ("\"matrix\"", "\"vector\""),
            ("]}}", "]},\"warnings\":[\"w\"]}"),
            ("]}}", "]},\"isPartial\":true}"),
            ("[4,", "[4.5,"),
            ("[4,", "[5,"),
            ("[4,", "[4.0,"),
            ("[3,", "[1,"),
            ("\"__name__\":\"b\"", "\"__name__\":\"a\",\"b\":\"\\\"x\""),
            ("]}}", ""),
        ] {
            let broken = ANSWER.replacen(what, instead, 1);
            assert_ne!(broken, ANSWER);
            assert!(parse(&broken).is_none(), "{broken}");
        }
        let victoria = ANSWER.replacen("success\",", "success\",\"isPartial\":false,", 1);
        let (matrix, envelope) = parse(&victoria).unwrap();
        assert_eq!(String::from_utf8(matrix.write(envelope)).unwrap(), victoria);
        let stats = r#","stats":{"samples":{"peakSamples":1}}}}"#;
        let with_stats = ANSWER.strip_suffix("}}").unwrap().to_owned() + stats;
        let (matrix, envelope) = parse(&with_stats).unwrap();
        assert_eq!(String::from_utf8(matrix.write(envelope)).unwrap(), with_stats);
    }

    #[test]
    fn damaged_input_is_an_error() {
        let mut matrix = Matrix::default();
        for (head, payload) in
            [(&b"\0\x02{}"[..], &b"\x09"[..]), (b"\0\x05{}", b""), (b"\0\x02{]", b"\0")]
        {
            let head: Head = head.into();
            let point = PointRef { ts: 1, head: Some(&head), payload };
            assert!(matrix.add(point, &mut Heads::default()).is_err());
        }
        assert!(
            matrix
                .add(PointRef { ts: 1, head: None, payload: b"" }, &mut Heads::default())
                .is_err()
        );
    }
}
