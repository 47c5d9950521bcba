//! A transaction on the wire (docs/transactions.md): its operations in JSON, and their results.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::hash::{DefaultHasher, Hash, Hasher};

use firn_model::{
    Error, LabelLimits, Labels, LabelsBuilder, METRIC_NAME, Matcher, QueryContext, Reservation,
    Result, Sample, SeriesRef, TimeRange, Timestamp, excerpt, is_stale_nan,
};
use firndb::SeriesSamples;

use crate::wire::groups::{once, unknown, value};
use crate::wire::json::{push_array, push_labels, push_string};
use crate::wire::json_reader::{JsonReader, Read, read_json};
use crate::wire::number::{push_float, push_i64, push_u64};

/// Operations of one request.
const OPERATION_COUNT_MAX: usize = 10_000;
/// An operation in a list that grows, with its reference and its result.
const OPERATION_BYTES: u64 =
    (3 * size_of::<Operation>() + size_of::<OperationResult>() + size_of::<SeriesRef>() + 32)
        as u64;
/// A label set beside its bytes.
const LABELS_BYTES: u64 = 64;
const NO_MATCHER: &str = "match must contain at least one non-empty matcher";

/// The effect of an operation.
#[derive(Debug, PartialEq)]
pub(crate) enum Operation {
    /// Returns samples; with a digest, only if they are unchanged since the digest was computed.
    Read { what: Selection, digest: Option<String> },
    /// Writes a sample, whether there is one or not.
    Insert { point: Point, value: f64 },
    /// Assigns another value to an existing sample.
    Update { point: Point, change: Linear },
    /// The same for all that are selected.
    UpdateRange { what: Selection, change: Linear },
    /// Deletes a sample if it is there.
    Delete { point: Point },
    /// Deletes all that are selected.
    DeleteRange { what: Selection },
}

/// Some series' samples in a range of time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Selection {
    pub(crate) matchers: Vec<Matcher>,
    pub(crate) range: TimeRange,
}

/// The series and time of one sample.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) labels: Labels,
    pub(crate) ts: Timestamp,
}

/// `old * multiply + add`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Linear {
    multiply: f64,
    add: f64,
    /// In place of that.
    value: Option<f64>,
}

/// The result of one operation.
#[derive(Debug)]
pub(crate) enum OperationResult {
    /// Series rising by labels.
    Samples(Vec<SeriesSamples>),
    /// Samples written or deleted.
    SampleCount(u64),
    /// Series with something deleted.
    SeriesCount(u64),
}

impl Linear {
    /// The new value of a sample. A stale marker is no number: it stays one.
    pub(crate) fn of(self, old: f64) -> f64 {
        match self.value {
            Some(value) => value,
            None if is_stale_nan(old) => old,
            None => old * self.multiply + self.add,
        }
    }
}

/// The fields of an operation before they are checked.
#[derive(Default)]
struct Fields {
    op: Option<String>,
    series: Option<Labels>,
    matchers: Option<Vec<Matcher>>,
    timestamp: Option<Timestamp>,
    start: Option<Timestamp>,
    end: Option<Timestamp>,
    value: Option<f64>,
    multiply: Option<f64>,
    add: Option<f64>,
    digest: Option<String>,
}

/// Reads a body. `held` grows by the memory of the operations, before it is taken. Selectors are
/// not compiled yet, see [`Operation::compile`].
///
/// # Errors
/// `Invalid` with byte and path of the mistake; `Busy` without memory.
pub(crate) fn decode(
    body: &[u8],
    limits: &LabelLimits,
    held: &mut Reservation,
) -> Result<Vec<Operation>> {
    let mut operations = Vec::new();
    let copies = held.split(0);
    read_json(body, copies, |reader| {
        let mut has_operations = false;
        reader.object(|reader, key| match key {
            "operations" => {
                once(reader, !has_operations, key)?;
                has_operations = true;
                reader.array(|reader, idx| {
                    if idx >= OPERATION_COUNT_MAX {
                        let what = format!("over {OPERATION_COUNT_MAX} operations: send fewer");
                        return Err(reader.fault(what));
                    }
                    operations.push(operation(reader, limits, held)?);
                    Ok(())
                })
            }
            _ => Err(unknown(reader)),
        })?;
        if has_operations { Ok(()) } else { Err(reader.fault("operations is missing")) }
    })?;
    Ok(operations)
}

fn operation(
    reader: &mut JsonReader<'_>,
    limits: &LabelLimits,
    held: &mut Reservation,
) -> Read<Operation> {
    let start = reader.at();
    let mut fields = Fields::default();
    reader.object(|reader, key| field(reader, key, &mut fields, (limits, held)))?;
    held.grow(OPERATION_BYTES).map_err(|e| reader.refuse_at(start, e))?;
    fields.into_operation().map_err(|what| reader.fault_at(start, what))
}

fn field(
    reader: &mut JsonReader<'_>,
    key: &str,
    fields: &mut Fields,
    (limits, held): (&LabelLimits, &mut Reservation),
) -> Read<()> {
    fn set<T>(
        reader: &mut JsonReader<'_>,
        key: &str,
        field: &mut Option<T>,
        read: impl FnOnce(&mut JsonReader<'_>) -> Read<T>,
    ) -> Read<()> {
        once(reader, field.is_none(), key)?;
        *field = Some(read(reader)?);
        Ok(())
    }
    fn ms(reader: &mut JsonReader<'_>) -> Read<Timestamp> {
        reader.integer("a time in milliseconds")
    }
    fn number(reader: &mut JsonReader<'_>) -> Read<f64> {
        let at = reader.at();
        value(reader)?.ok_or_else(|| reader.fault_at(at, "a value is missing"))
    }
    fn text(reader: &mut JsonReader<'_>, held: &mut Reservation) -> Read<String> {
        let (at, text) = (reader.at(), reader.string()?);
        held.grow(text.len() as u64).map_err(|e| reader.refuse_at(at, e))?;
        Ok(text.into_owned())
    }
    match key {
        "op" => set(reader, key, &mut fields.op, |reader| text(reader, held)),
        "series" => set(reader, key, &mut fields.series, |reader| labels(reader, limits, held)),
        "match" => set(reader, key, &mut fields.matchers, |reader| selector(reader, held)),
        "timestamp" => set(reader, key, &mut fields.timestamp, ms),
        "start" => set(reader, key, &mut fields.start, ms),
        "end" => set(reader, key, &mut fields.end, ms),
        "value" => set(reader, key, &mut fields.value, number),
        "multiply" => set(reader, key, &mut fields.multiply, number),
        "add" => set(reader, key, &mut fields.add, number),
        "digest" => set(reader, key, &mut fields.digest, |reader| text(reader, held)),
        _ => Err(unknown(reader)),
    }
}

fn labels(
    reader: &mut JsonReader<'_>,
    limits: &LabelLimits,
    held: &mut Reservation,
) -> Read<Labels> {
    let start = reader.at();
    let mut builder = LabelsBuilder::default();
    reader.object(|reader, name| {
        let pushed = builder.push_within(name, &reader.string()?, limits);
        pushed.map_err(|e| reader.refuse_at(start, e))
    })?;
    let labels = builder.build(limits).map_err(|e| reader.refuse_at(start, e))?;
    let bytes = labels.as_encoded().len() as u64;
    held.grow(bytes.saturating_add(LABELS_BYTES)).map_err(|e| reader.refuse_at(start, e))?;
    match labels.get(METRIC_NAME) {
        Some(_) => Ok(labels),
        None => Err(reader.fault_at(start, "a series needs a metric name: __name__")),
    }
}

/// The matchers, not compiled yet.
fn selector(reader: &mut JsonReader<'_>, held: &mut Reservation) -> Read<Vec<Matcher>> {
    let start = reader.at();
    let text = reader.string()?;
    held.grow(firn_promql::tree_bytes(&text)).map_err(|e| reader.refuse_at(start, e))?;
    let matchers =
        firn_promql::parse_matchers(&text).map_err(|e| reader.fault_at(start, e.to_string()))?;
    if matchers.iter().all(|one| !one.needs_compiling() && one.matches_absent()) {
        return Err(reader.fault_at(start, NO_MATCHER));
    }
    Ok(matchers)
}

impl Operation {
    /// Compiles the patterns of the selector within the limits of `context`.
    ///
    /// # Errors
    /// As [`Matcher::compile`], and `Invalid` for a selector that selects every series.
    pub(crate) fn compile(&self, context: &QueryContext) -> Result<()> {
        let matchers = self.matchers();
        matchers.iter().try_for_each(|matcher| matcher.compile(context))?;
        if !matchers.is_empty() && matchers.iter().all(Matcher::matches_absent) {
            return Err(Error::invalid(NO_MATCHER));
        }
        Ok(())
    }

    /// Whether [`Operation::compile`] has work to do.
    pub(crate) fn needs_compiling(&self) -> bool {
        self.matchers().iter().any(Matcher::needs_compiling)
    }

    /// Whether it names its series by a selector.
    pub(crate) fn has_selector(&self) -> bool {
        !self.matchers().is_empty()
    }

    /// The matchers of its selector; none if it names a series.
    fn matchers(&self) -> &[Matcher] {
        match self {
            Operation::Read { what, .. }
            | Operation::UpdateRange { what, .. }
            | Operation::DeleteRange { what } => &what.matchers,
            Operation::Insert { .. } | Operation::Update { .. } | Operation::Delete { .. } => &[],
        }
    }
}

impl Fields {
    fn into_operation(mut self) -> Result<Operation, String> {
        let op = self.op.take().ok_or("op is missing")?;
        let operation = match op.as_str() {
            "read" => {
                let digest = self.digest.take();
                if let Some(digest) = digest.as_deref().filter(|text| !is_digest(text)) {
                    let got = excerpt(digest);
                    return Err(format!(
                        "digest: expected {DIGEST_LEN} hexadecimal digits as a read returns, got \
                         {got:?}"
                    ));
                }
                Operation::Read { what: self.selection(&op)?, digest }
            }
            "insert" => {
                let value = self.value.take().ok_or("insert needs value")?;
                Operation::Insert { point: self.point(&op)?, value }
            }
            "update" => {
                let change = self.linear()?;
                if self.series.is_some() {
                    Operation::Update { point: self.point(&op)?, change }
                } else {
                    Operation::UpdateRange { what: self.selection(&op)?, change }
                }
            }
            "delete" if self.series.is_some() => Operation::Delete { point: self.point(&op)? },
            "delete" => Operation::DeleteRange { what: self.selection(&op)? },
            other => {
                let other = excerpt(other);
                return Err(format!("op {other:?} is none of read, insert, update and delete"));
            }
        };
        match self.left() {
            None => Ok(operation),
            Some(name) => Err(format!("{op} of this form does not accept {name}")),
        }
    }

    fn point(&mut self, op: &str) -> Result<Point, String> {
        let labels = self.series.take().ok_or_else(|| format!("{op} needs series"))?;
        let ts = self.timestamp.take();
        let ts = ts.ok_or_else(|| format!("{op} of a series needs timestamp"))?;
        Ok(Point { labels, ts })
    }

    fn selection(&mut self, op: &str) -> Result<Selection, String> {
        let matchers = self.matchers.take();
        let matchers = matchers.ok_or_else(|| match op {
            "read" => "read needs match".to_owned(),
            _ => format!("{op} needs series and timestamp, or match"),
        })?;
        let start = self.start.take().unwrap_or(Timestamp::MIN);
        let end = self.end.take().unwrap_or(Timestamp::MAX);
        if start > end {
            return Err(format!("the range ends at {end}, before its start {start}"));
        }
        Ok(Selection { matchers, range: TimeRange::new(start, end) })
    }

    fn linear(&mut self) -> Result<Linear, String> {
        let (value, multiply, add) = (self.value.take(), self.multiply.take(), self.add.take());
        let is_linear = multiply.is_some() || add.is_some();
        if value.is_some() == is_linear {
            return Err("update needs either value, or multiply, add or both".to_owned());
        }
        if [multiply, add].into_iter().flatten().any(is_stale_nan) {
            return Err("multiply and add need numbers, and stale is none".to_owned());
        }
        Ok(Linear { multiply: multiply.unwrap_or(1.0), add: add.unwrap_or(0.0), value })
    }

    /// A field that the operation did not use.
    fn left(&self) -> Option<&'static str> {
        let given = [
            ("series", self.series.is_some()),
            ("match", self.matchers.is_some()),
            ("timestamp", self.timestamp.is_some()),
            ("start", self.start.is_some()),
            ("end", self.end.is_some()),
            ("value", self.value.is_some()),
            ("multiply", self.multiply.is_some()),
            ("add", self.add.is_some()),
            ("digest", self.digest.is_some()),
        ];
        given.into_iter().find(|field| field.1).map(|field| field.0)
    }
}

/// Digits of a digest.
const DIGEST_LEN: usize = 16;

/// Whether [`digest`] may return `text`. Another text would be a conflict for ever.
fn is_digest(text: &str) -> bool {
    text.len() == DIGEST_LEN && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// A hash of labels, times and the bits of values, by which a client detects changes. Stale markers
/// are part of it: a series that has ended since is a change.
pub(crate) fn digest(series: &[SeriesSamples]) -> String {
    let mut hasher = DefaultHasher::new();
    for one in series {
        one.labels.as_encoded().hash(&mut hasher);
        hasher.write_usize(one.samples.len());
        for sample in &one.samples {
            hasher.write_i64(sample.ts);
            hasher.write_u64(sample.value.to_bits());
        }
    }
    format!("{:0DIGEST_LEN$x}", hasher.finish())
}

/// The whole body of an answer.
pub(crate) fn encode(sequence: Option<u64>, given: &[OperationResult]) -> Vec<u8> {
    let mut out = br#"{"status":"success","data":{"sequence":"#.to_vec();
    match sequence {
        Some(number) => push_u64(number, &mut out),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(br#","results":"#);
    push_array(given, &mut out, |given, out| match given {
        OperationResult::Samples(series) => {
            out.extend_from_slice(br#"{"digest":"#);
            push_string(&digest(series), out);
            out.extend_from_slice(br#","series":"#);
            push_array(series.iter().filter(|one| has_sample(one)), out, |one, out| {
                out.extend_from_slice(br#"{"labels":"#);
                push_labels(&one.labels, out);
                out.extend_from_slice(br#","samples":"#);
                push_array(one.samples.iter().filter(is_sample), out, push_sample);
                out.push(b'}');
            });
            out.push(b'}');
        }
        OperationResult::SampleCount(count) => push_count(br#"{"samples":"#, *count, out),
        OperationResult::SeriesCount(count) => push_count(br#"{"series":"#, *count, out),
    });
    out.extend_from_slice(b"}}");
    out
}

/// Whether a result contains it: a stale marker ends a series and is no sample of it.
fn is_sample(stored: &&Sample) -> bool {
    !is_stale_nan(stored.value)
}

fn has_sample(series: &SeriesSamples) -> bool {
    series.samples.iter().any(|stored| is_sample(&stored))
}

fn push_sample(sample: &Sample, out: &mut Vec<u8>) {
    out.push(b'[');
    push_i64(sample.ts, out);
    out.extend_from_slice(b",\"");
    push_float(sample.value, out);
    out.extend_from_slice(b"\"]");
}

fn push_count(name: &[u8], count: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    push_u64(count, out);
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use firn_model::{Budget, Pool};

    use super::*;

    const LONG: usize = 1 << 20;

    fn read(body: &str, budget: &Budget) -> (Result<Vec<Operation>>, u64) {
        let mut held = budget.empty(Pool::Requests);
        let operations = decode(body.as_bytes(), &LabelLimits::default(), &mut held);
        (operations, held.bytes())
    }

    #[test]
    fn a_body_reserves_what_it_decodes_to() {
        let budget = Budget::new(LONG as u64 / 4);
        let text = "n".repeat(LONG);
        let insert = |series: &str, value: &str| {
            format!(
                r#"{{"operations":[{{"op":"insert","series":{series},"timestamp":1,"value":{value}}}]}}"#
            )
        };
        let name = r#"{"__name__":"m"}"#;
        // These need no copy of their long text.
        let refused = [
            format!("{{\"{text}\":1}}"),
            insert(&format!(r#"{{"__name__":"{text}"}}"#), "1"),
            insert(name, &format!("\"{text}\"")),
            insert(name, &"-".repeat(LONG)),
        ];
        for body in refused {
            let (operations, held_bytes) = read(&body, &budget);
            let error = operations.unwrap_err();
            assert!(!error.is_retriable(), "{error}");
            assert!(held_bytes < 4_096, "{held_bytes}");
        }
        // The memory of parsing is reserved before a selector is parsed.
        let selector = format!(r#"{{"operations":[{{"op":"read","match":"{text}"}}]}}"#);
        assert!(read(&selector, &budget).0.unwrap_err().is_retriable());
        let digest = format!(r#"{{"operations":[{{"op":"read","match":"a","digest":"{text}"}}]}}"#);
        assert!(read(&digest, &budget).0.unwrap_err().is_retriable());
        let (refused, held_bytes) = read(&digest, &Budget::unlimited());
        assert!(refused.unwrap_err().to_string().contains("digest"));
        assert!(held_bytes > LONG as u64 && held_bytes < LONG as u64 + 4_096, "{held_bytes}");
        let one = r#"{"op":"read","match":"a"}"#;
        let many = format!(r#"{{"operations":[{}]}}"#, [one; 5_000].join(","));
        assert!(read(&many, &budget).0.unwrap_err().is_retriable(), "5,000 operations");
    }

    /// It was a conflict, after which a client reads again and repeats the text.
    #[test]
    fn a_text_that_is_no_digest_is_invalid() {
        let read = |digest: &str| {
            let body =
                format!(r#"{{"operations":[{{"op":"read","match":"a","digest":"{digest}"}}]}}"#);
            read(&body, &Budget::unlimited()).0
        };
        assert_eq!(read(&digest(&[])).unwrap().len(), 1);
        assert!(read("0123456789abcdef").is_ok());
        for text in ["", "zz", "0123456789ABCDEF", "0123456789abcde", "0123456789abcdef0", "é"] {
            let error = read(text).unwrap_err();
            assert_eq!(error.kind(), &firn_model::ErrorKind::Invalid, "{text}");
            let wanted = format!("expected 16 hexadecimal digits as a read returns, got {text:?}");
            assert!(error.to_string().contains(&wanted), "{error}");
        }
    }

    #[test]
    fn a_value_has_the_texts_of_the_documentation() {
        let insert = |value: &str| {
            let body = format!(
                r#"{{"operations":[{{"op":"insert","series":{{"__name__":"a"}},"timestamp":1,"value":{value}}}]}}"#
            );
            read(&body, &Budget::unlimited()).0
        };
        for value in ["1", "-1.5e3", r#""1.5""#, r#""NaN""#, r#""+Inf""#, r#""-Inf""#, r#""stale""#]
        {
            assert!(insert(value).is_ok(), "{value}");
        }
        for value in ["Infinity", "+Infinity", "-infinity", "Inf", "inf", "nan", "-INF", ""] {
            let error = insert(&format!("{value:?}")).unwrap_err().to_string();
            assert!(error.contains(r#"expected a number, "NaN", "+Inf", "-Inf""#), "{error}");
        }
    }
}
