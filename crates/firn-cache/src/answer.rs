//! Answers of range queries, and their encoding as points: one point per step, with the values of
//! all series at it.
//!
//! The label sets are the head of the points, stored once per slab; a step then costs eight bytes
//! per series. Byte by byte: docs/formats/cache.md.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use firn_codec::varint::{
    encode_varint, encode_zigzag, take_bytes, take_count, take_u8, take_u64, take_zigzag,
};
use firn_model::{
    Error, Histogram, HistogramBucket, Labels, Reservation, ResetHint, Result, Sample, Timestamp,
};

use crate::store::{Point, PointRef};

const FORM_ALL_FLOATS: u8 = 0;
const FORM_SOME_FLOATS: u8 = 1;
const FORM_MIXED: u8 = 2;
const ABSENT: u8 = 0;
const FLOAT: u8 = 1;
const HISTOGRAM: u8 = 2;
/// More label sets or buckets than any answer has.
const COUNT_MAX: usize = 1 << 24;
/// The first series of an answer have room for all steps from the start.
const ROOMY_SERIES_MAX: usize = 64;
/// The memory of a series beside its labels and points: in a list that doubles, in a map, and in
/// the list of a head.
const SERIES_BYTES: usize = 2 * size_of::<AnswerSeries>() + 128;

/// A matrix: series with their points at steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// In any order, no labels twice.
    pub series: Vec<AnswerSeries>,
}

/// One series of an [`Answer`].
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerSeries {
    /// Its labels.
    pub labels: Labels,
    /// The float points, times rising.
    pub floats: Vec<Sample>,
    /// The histogram points, times rising; none at the time of a float.
    pub histograms: Vec<(Timestamp, Arc<Histogram>)>,
}

impl Answer {
    /// Whether it has no histogram.
    pub fn has_only_floats(&self) -> bool {
        self.series.iter().all(|series| series.histograms.is_empty())
    }

    /// Number of points.
    pub fn point_count(&self) -> usize {
        self.series.iter().map(|series| series.floats.len() + series.histograms.len()).sum()
    }

    /// Bytes of its allocations.
    pub fn heap_bytes(&self) -> usize {
        let of_histogram =
            |(_, histogram): &(Timestamp, Arc<Histogram>)| 16 + histogram.heap_bytes();
        let bytes = |one: &AnswerSeries| {
            size_of::<AnswerSeries>()
                + one.labels.as_encoded().len()
                + one.floats.capacity() * size_of::<Sample>()
                + one.histograms.iter().map(of_histogram).sum::<usize>()
        };
        self.series.iter().map(bytes).sum()
    }
}

/// The most bytes that [`encode_steps`] allocates for `answer`, with the label sets of `last_head`.
pub(crate) fn encoding_bytes_max(answer: &Answer, last_head: Option<&Head>) -> usize {
    let head: usize = answer.series.iter().map(|one| one.labels.as_encoded().len() + 5).sum();
    // A kind, a value, and its share of a presence bit and of a list that doubles.
    let floats = answer.point_count() * 2 * (size_of::<f64>() + 2);
    let histograms = answer.series.iter().flat_map(|one| &one.histograms);
    let histograms: usize = histograms.map(|(_, histogram)| 2 * histogram.heap_bytes()).sum();
    let steps = answer.series.iter().map(|one| one.floats.len() + one.histograms.len()).max();
    // The head exists twice while it is copied. A cursor, a value and a place for each series.
    2 * head
        + last_head.map_or(0, |head| 2 * head.len())
        + answer.series.len() * 256
        + steps.unwrap_or(0) * 128
        + floats
        + histograms
}

/// The points of some steps, encoded.
#[derive(Debug)]
pub(crate) struct EncodedSteps {
    head: Head,
    bytes: Vec<u8>,
    /// Time, and offset in `bytes`, of each step that has a point.
    steps: Vec<(Timestamp, Range<usize>)>,
}

impl EncodedSteps {
    /// The points in `start..=end`.
    pub(crate) fn points(&self, start: Timestamp, end: Timestamp) -> Vec<Point<'_>> {
        let inside = self.steps.iter().filter(|(ts, _)| (start..=end).contains(ts));
        inside
            .map(|(ts, place)| Point {
                ts: *ts,
                head: Some(Arc::clone(&self.head)),
                payload: &self.bytes[place.clone()],
            })
            .collect()
    }
}

/// Encodes `answer`, all of whose points must be at `steps`. The previous head is used again if it
/// has all label sets and not many others. `None` if a point is at no step or a label set is there
/// twice: range queries have no such answers.
pub(crate) fn encode_steps(
    answer: &Answer,
    steps: impl Iterator<Item = Timestamp>,
    last_head: Option<&Head>,
) -> Option<EncodedSteps> {
    let (head, members) = head_of(answer, last_head)?;
    let mut left = answer.point_count();
    let mut cursors: Vec<Cursor<'_>> = members
        .into_iter()
        .map(|member| {
            let series = member.map(|idx| &answer.series[idx]);
            Cursor {
                floats: series.map_or(&[], |series| &series.floats),
                histograms: series.map_or(&[], |series| &series.histograms),
            }
        })
        .collect();
    let mut encoded = EncodedSteps { head, bytes: Vec::new(), steps: Vec::new() };
    let mut vector: Vec<Value<'_>> = Vec::with_capacity(cursors.len());
    for ts in steps {
        vector.clear();
        vector.extend(cursors.iter_mut().map(|cursor| cursor.take(ts)));
        let present = vector.iter().filter(|value| !matches!(value, Value::Absent)).count();
        if present > 0 {
            left -= present;
            let start = encoded.bytes.len();
            encode_vector(&vector, present, &mut encoded.bytes);
            encoded.steps.push((ts, start..encoded.bytes.len()));
        }
    }
    (left == 0).then_some(encoded)
}

/// Builds an answer from points, and reserves its memory before it grows.
#[derive(Debug)]
pub(crate) struct Collector {
    /// Capacity of each series.
    step_count: usize,
    held: Reservation,
    /// Bytes of the answer, with the room for its growth.
    bytes: usize,
    answer: Answer,
    places: HashMap<Labels, usize>,
    /// For each head seen so far, the series of its label sets.
    heads: HashMap<Head, Members>,
    last: Option<(Head, Members)>,
}

/// The label sets that steps share, encoded.
type Head = Arc<[u8]>;
/// The series of each label set of a head.
type Members = Arc<[usize]>;

impl Collector {
    /// For an answer with at most `step_count` steps, whose memory is added to `held`.
    pub(crate) fn new(step_count: u64, held: Reservation) -> Collector {
        // Short-lived series have few points each.
        const STEPS_MAX: u64 = 1_024;
        Collector {
            step_count: step_count.min(STEPS_MAX) as usize,
            held,
            bytes: 0,
            answer: Answer::default(),
            places: HashMap::new(),
            heads: HashMap::new(),
            last: None,
        }
    }

    /// Adds a point; times must rise.
    ///
    /// # Errors
    /// `Corrupt` if [`encode_steps`] cannot have written it, `Busy` or `TooLarge` without memory.
    pub(crate) fn add(&mut self, point: PointRef<'_>) -> Result<()> {
        let Some(head) = point.head else {
            return Err(Error::corrupt("cached answer", 0, "a step without label sets"));
        };
        let members = self.members(head)?;
        // A float takes twice the bytes of its payload, in lists that double.
        self.reserve(4 * point.payload.len())?;
        let mut input = point.payload;
        let series = &mut self.answer.series;
        match take_u8(&mut input, "form of a step")? {
            FORM_ALL_FLOATS => {
                for &member in members.iter() {
                    let value = f64::from_bits(take_u64(&mut input, "value")?);
                    series[member].floats.push(Sample { ts: point.ts, value });
                }
            }
            FORM_SOME_FLOATS => {
                let bits = take_bytes(&mut input, members.len().div_ceil(8), "presence")?;
                for (idx, &member) in members.iter().enumerate() {
                    if bits[idx / 8] & (1 << (idx % 8)) != 0 {
                        let value = f64::from_bits(take_u64(&mut input, "value")?);
                        series[member].floats.push(Sample { ts: point.ts, value });
                    }
                }
            }
            FORM_MIXED => {
                for &member in members.iter() {
                    match take_u8(&mut input, "kind of a value")? {
                        ABSENT => {}
                        FLOAT => {
                            let value = f64::from_bits(take_u64(&mut input, "value")?);
                            series[member].floats.push(Sample { ts: point.ts, value });
                        }
                        HISTOGRAM => {
                            let histogram = Arc::new(take_histogram(&mut input)?);
                            self.bytes += histogram.heap_bytes();
                            self.held.cover(self.bytes as u64)?;
                            series[member].histograms.push((point.ts, histogram));
                        }
                        other => return Err(unknown("kind of a value", other)),
                    }
                }
            }
            other => return Err(unknown("form of a step", other)),
        }
        Ok(())
    }

    /// The answer, without series that have no point, and the reservation of its memory.
    pub(crate) fn finish(mut self) -> (Answer, Reservation) {
        self.answer
            .series
            .retain(|series| !series.floats.is_empty() || !series.histograms.is_empty());
        self.held.shrink_to(self.answer.heap_bytes() as u64);
        (self.answer, self.held)
    }

    fn reserve(&mut self, more: usize) -> Result<()> {
        self.bytes += more;
        self.held.cover(self.bytes as u64)
    }

    fn members(&mut self, head: &Head) -> Result<Members> {
        if let Some((last, members)) = &self.last
            && Arc::ptr_eq(last, head)
        {
            return Ok(Arc::clone(members));
        }
        let members = match self.heads.get(head) {
            Some(members) => Arc::clone(members),
            None => {
                self.reserve(head.len())?;
                let labels = decode_head(head)?;
                let with_room = ROOMY_SERIES_MAX.saturating_sub(self.places.len());
                let room = labels.len().min(with_room) * self.step_count;
                self.reserve(labels.len() * SERIES_BYTES + room * size_of::<Sample>())?;
                let members: Members = labels.into_iter().map(|one| self.place(one)).collect();
                self.heads.insert(Arc::clone(head), Arc::clone(&members));
                members
            }
        };
        self.last = Some((Arc::clone(head), Arc::clone(&members)));
        Ok(members)
    }

    fn place(&mut self, labels: Labels) -> usize {
        let series = &mut self.answer.series;
        *self.places.entry(labels).or_insert_with_key(|labels| {
            let labels = labels.clone();
            let room = if series.len() < ROOMY_SERIES_MAX { self.step_count } else { 0 };
            let floats = Vec::with_capacity(room);
            series.push(AnswerSeries { labels, floats, histograms: Vec::new() });
            series.len() - 1
        })
    }
}

struct Cursor<'a> {
    floats: &'a [Sample],
    histograms: &'a [(Timestamp, Arc<Histogram>)],
}

enum Value<'a> {
    Absent,
    Float(f64),
    Histogram(&'a Histogram),
}

impl<'a> Cursor<'a> {
    fn take(&mut self, ts: Timestamp) -> Value<'a> {
        if let Some((first, rest)) = self.floats.split_first()
            && first.ts == ts
        {
            self.floats = rest;
            return Value::Float(first.value);
        }
        if let Some(((at, histogram), rest)) = self.histograms.split_first()
            && *at == ts
        {
            self.histograms = rest;
            return Value::Histogram(histogram);
        }
        Value::Absent
    }
}

/// The head, and for each of its label sets the series of the answer that has it.
fn head_of(answer: &Answer, last_head: Option<&Head>) -> Option<(Head, Vec<Option<usize>>)> {
    let mut places = HashMap::with_capacity(answer.series.len());
    for (idx, series) in answer.series.iter().enumerate() {
        if places.insert(&series.labels, idx).is_some() {
            return None;
        }
    }
    if let Some(last) = last_head
        && let Ok(labels) = decode_head(last)
        // A head with many unused label sets would make every step larger.
        && labels.len() <= 2 * places.len() + 8
    {
        let members: Vec<Option<usize>> =
            labels.iter().map(|labels| places.get(labels).copied()).collect();
        if members.iter().flatten().count() == places.len() {
            return Some((Arc::clone(last), members));
        }
    }
    let labels = answer.series.iter().map(|series| series.labels.as_encoded().len() + 5);
    let mut head = Vec::with_capacity(labels.sum::<usize>() + 5);
    encode_varint(answer.series.len() as u64, &mut head);
    for series in &answer.series {
        let text = series.labels.as_encoded();
        encode_varint(text.len() as u64, &mut head);
        head.extend_from_slice(text);
    }
    Some((head.into(), (0..answer.series.len()).map(Some).collect()))
}

fn decode_head(head: &[u8]) -> Result<Vec<Labels>> {
    let mut input = head;
    let count = take_count(&mut input, COUNT_MAX, "label sets")?;
    let mut labels = Vec::new();
    for _ in 0..count {
        let len = take_count(&mut input, COUNT_MAX, "bytes of a label set")?;
        labels.push(Labels::from_encoded(take_bytes(&mut input, len, "label set")?)?);
    }
    Ok(labels)
}

fn encode_vector(vector: &[Value<'_>], present: usize, out: &mut Vec<u8>) {
    if vector.iter().any(|value| matches!(value, Value::Histogram(_))) {
        out.push(FORM_MIXED);
        for value in vector {
            match value {
                Value::Absent => out.push(ABSENT),
                Value::Float(value) => {
                    out.push(FLOAT);
                    out.extend_from_slice(&value.to_bits().to_le_bytes());
                }
                Value::Histogram(histogram) => {
                    out.push(HISTOGRAM);
                    encode_histogram(histogram, out);
                }
            }
        }
        return;
    }
    out.push(if present == vector.len() { FORM_ALL_FLOATS } else { FORM_SOME_FLOATS });
    if present < vector.len() {
        let start = out.len();
        out.resize(start + vector.len().div_ceil(8), 0);
        for (idx, value) in vector.iter().enumerate() {
            out[start + idx / 8] |= u8::from(matches!(value, Value::Float(_))) << (idx % 8);
        }
    }
    for value in vector {
        if let Value::Float(value) = value {
            out.extend_from_slice(&value.to_bits().to_le_bytes());
        }
    }
}

fn encode_histogram(histogram: &Histogram, out: &mut Vec<u8>) {
    let put = |value: f64, out: &mut Vec<u8>| {
        out.extend_from_slice(&value.to_bits().to_le_bytes());
    };
    encode_zigzag(i64::from(histogram.schema), out);
    out.push(match histogram.reset_hint {
        ResetHint::Unknown => 0,
        ResetHint::Reset => 1,
        ResetHint::NoReset => 2,
        ResetHint::Gauge => 3,
    });
    put(histogram.count, out);
    put(histogram.sum, out);
    put(histogram.zero_count, out);
    put(histogram.zero_threshold, out);
    for buckets in [&histogram.positive, &histogram.negative] {
        encode_varint(buckets.len() as u64, out);
        for bucket in buckets {
            encode_zigzag(i64::from(bucket.index), out);
            put(bucket.count, out);
        }
    }
    encode_varint(histogram.custom_bounds.len() as u64, out);
    histogram.custom_bounds.iter().for_each(|&bound| put(bound, out));
}

fn take_histogram(input: &mut &[u8]) -> Result<Histogram> {
    let float = |input: &mut &[u8]| take_u64(input, "histogram").map(f64::from_bits);
    let small = |input: &mut &[u8]| {
        let number = take_zigzag(input, "histogram")?;
        i32::try_from(number).map_err(|_| unknown("number of a histogram", 0))
    };
    let schema = small(input)?;
    let reset_hint = match take_u8(input, "reset hint")? {
        0 => ResetHint::Unknown,
        1 => ResetHint::Reset,
        2 => ResetHint::NoReset,
        3 => ResetHint::Gauge,
        other => return Err(unknown("reset hint", other)),
    };
    let (count, sum) = (float(input)?, float(input)?);
    let (zero_count, zero_threshold) = (float(input)?, float(input)?);
    let mut buckets = || -> Result<Vec<HistogramBucket>> {
        let count = take_count(input, COUNT_MAX, "buckets")?;
        let mut buckets = Vec::new();
        for _ in 0..count {
            buckets.push(HistogramBucket { index: small(input)?, count: float(input)? });
        }
        Ok(buckets)
    };
    let (positive, negative) = (buckets()?, buckets()?);
    let bound_count = take_count(input, COUNT_MAX, "bounds")?;
    let mut bounds = Vec::new();
    for _ in 0..bound_count {
        bounds.push(float(input)?);
    }
    Ok(Histogram {
        schema,
        reset_hint,
        count,
        sum,
        zero_count,
        zero_threshold,
        positive,
        negative,
        custom_bounds: bounds.into(),
    })
}

fn unknown(what: &str, found: u8) -> Error {
    Error::corrupt("cached answer", 0, format!("unknown {what} {found}"))
}

#[cfg(test)]
mod tests {
    use firn_model::{Budget, Pool};
    use firn_sim::Rng;

    use super::*;

    fn empty() -> Collector {
        Collector::new(100, Budget::unlimited().empty(Pool::Query))
    }

    fn some_histogram(rng: &mut Rng) -> Histogram {
        let mut float = || f64::from_bits(rng.next_u64());
        Histogram {
            schema: -4,
            reset_hint: ResetHint::Gauge,
            count: float(),
            sum: float(),
            zero_count: -0.0,
            zero_threshold: f64::NAN,
            positive: vec![HistogramBucket { index: -7, count: float() }],
            negative: vec![HistogramBucket { index: i32::MAX, count: float() }; 2],
            custom_bounds: [float(), float()].into(),
        }
    }

    fn some_answer(rng: &mut Rng, steps: &[Timestamp]) -> Answer {
        let mut series = Vec::new();
        for name in 0..1 + rng.below(12) {
            let labels = Labels::from_pairs([("host", format!("h{name}").as_str())]).unwrap();
            let (present, mixed) = (*rng.pick(&[0.1, 0.9, 1.0]), *rng.pick(&[0.0, 0.0, 0.2]));
            let mut one = AnswerSeries { labels, floats: Vec::new(), histograms: Vec::new() };
            for &ts in steps {
                if rng.chance(mixed) {
                    one.histograms.push((ts, Arc::new(some_histogram(rng))));
                } else if rng.chance(present) {
                    one.floats.push(Sample { ts, value: f64::from_bits(rng.next_u64()) });
                }
            }
            series.push(one);
        }
        Answer { series }
    }

    #[test]
    fn answers_come_back_bit_for_bit() {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let steps: Vec<Timestamp> = (0..20).map(|step| step * 15 - 100).collect();
            let mut last_head = None;
            for _ in 0..4 {
                let mut answer = some_answer(&mut rng, &steps);
                let encoded =
                    encode_steps(&answer, steps.iter().copied(), last_head.as_ref()).unwrap();
                let mut collector = empty();
                for point in encoded.points(i64::MIN, i64::MAX) {
                    let head = point.head.as_ref();
                    collector.add(PointRef { ts: point.ts, head, payload: point.payload }).unwrap();
                    let cut = &point.payload[..point.payload.len() - 1];
                    let cut = PointRef { ts: point.ts, head, payload: cut };
                    assert!(empty().add(cut).is_err());
                }
                last_head = Some(Arc::clone(&encoded.head));
                let (mut found, held) = collector.finish();
                assert!(held.bytes() <= found.heap_bytes() as u64);
                answer.series.retain(|one| one.floats.len() + one.histograms.len() > 0);
                for answer in [&mut found, &mut answer] {
                    answer.series.sort_by(|a, b| a.labels.cmp(&b.labels));
                }
                assert_eq!(found, answer, "seed {seed}");
            }
        }
    }

    #[test]
    fn a_head_is_used_again_when_a_series_pauses() {
        let steps = [0, 10];
        let labels = |host| Labels::from_pairs([("host", host)]).unwrap();
        let one = |host, ts| AnswerSeries {
            labels: labels(host),
            floats: vec![Sample { ts, value: 1.0 }],
            histograms: Vec::new(),
        };
        let both = Answer { series: vec![one("a", 0), one("b", 10)] };
        let first = encode_steps(&both, steps.into_iter(), None).unwrap();
        let alone = Answer { series: vec![one("b", 10)] };
        let again = encode_steps(&alone, steps.into_iter(), Some(&first.head)).unwrap();
        assert!(Arc::ptr_eq(&first.head, &again.head));
        let other = Answer { series: vec![one("c", 10)] };
        let new = encode_steps(&other, steps.into_iter(), Some(&first.head)).unwrap();
        assert!(!Arc::ptr_eq(&first.head, &new.head));
        assert!(encode_steps(&other, [0].into_iter(), None).is_none(), "a point at no step");
        let twice = Answer { series: vec![one("c", 0), one("c", 10)] };
        assert!(encode_steps(&twice, steps.into_iter(), None).is_none());
    }
}
