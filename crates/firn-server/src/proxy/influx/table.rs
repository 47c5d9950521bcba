//! The answer to a statement as its origin wrote it: numbers and names keep their text.
//!
//! In the cache a bucket is one point. Its head has the series, `varint(length) JSON` each, without
//! their values. Its payload has for each of them `varint(0)` if it is empty there, else
//! `varint(length + 1)` and the JSON list of its values without the time.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_cache::{Point, PointRef};
use firn_codec::varint::{encode_varint, take_bytes, take_count};
use firn_collect::json::from_json;
use firn_model::{Error, Result, TimeRange, Timestamp};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Longer than any series or row.
const TEXT_BYTES_MAX: usize = 64 << 20;

/// A series by its meaning. Sorts as InfluxDB sorts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    measurement: String,
    tags: Vec<(String, String)>,
}

/// Series with their rows at buckets; empty rows are omitted.
#[derive(Debug, Default)]
pub(super) struct Table {
    series: BTreeMap<Name, TableSeries>,
}

#[derive(Debug)]
struct TableSeries {
    /// `"name":...,"tags":{...},"columns":[...]`, the origin's text before the values.
    head: String,
    /// By the start of the bucket in milliseconds: `1.5,null`, the values behind the time.
    rows: BTreeMap<Timestamp, String>,
}

/// How buckets are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buckets<'a> {
    /// The starts of the first and the last one, ms.
    pub(super) range: TimeRange,
    pub(super) interval_ms: i64,
    /// The unit of the times in an answer.
    pub(super) unit_ns: i64,
    /// The row of an empty bucket, if it is returned: the value in each column.
    pub(super) fills: Option<&'a [&'static str]>,
}

/// Some buckets in the form of the cache.
#[derive(Debug)]
pub(super) struct Kept {
    head: Arc<[u8]>,
    rows: Vec<(Timestamp, Vec<u8>)>,
}

// An answer with other fields, such as an error or a message, is not stored.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TableReplyText<'a> {
    #[serde(borrow)]
    results: Vec<ResultText<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResultText<'a> {
    statement_id: usize,
    #[serde(borrow, default)]
    series: Vec<TableSeriesText<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TableSeriesText<'a> {
    #[serde(borrow)]
    name: &'a RawValue,
    #[serde(borrow)]
    tags: Option<&'a RawValue>,
    #[serde(borrow)]
    columns: &'a RawValue,
    #[serde(borrow)]
    values: Vec<Vec<&'a RawValue>>,
}

impl Table {
    /// Parses an answer to as many statements as there are `parts`, each with the buckets that it
    /// may have rows at. `None` for errors, messages, or JSON in another form than this proxy's.
    pub(super) fn parse(answer: &[u8], parts: &[Buckets<'_>]) -> Option<Table> {
        let reply: TableReplyText<'_> = from_json(answer).ok()?;
        (reply.results.len() == parts.len()).then_some(())?;
        let mut table = Table::default();
        for (idx, (result, buckets)) in reply.results.into_iter().zip(parts).enumerate() {
            (result.statement_id == idx).then_some(())?;
            let mut before: Option<Name> = None;
            for series in result.series {
                let head = head_text(&series);
                let name = name_of(&head)?;
                // In another order an answer from parts would differ from the origin's.
                before.as_ref().is_none_or(|before| *before < name).then_some(())?;
                let kept = table.series(&name, &head)?;
                for row in series.values {
                    let (ts, row) = buckets.row(&row)?;
                    if let Some(row) = row {
                        kept.rows.insert(ts, row).is_none().then_some(())?;
                    }
                }
                before = Some(name);
            }
        }
        Some(table)
    }

    /// How many series there are.
    pub(super) fn series_count(&self) -> u64 {
        self.series.len() as u64
    }

    /// Adds a point from the cache.
    ///
    /// # Errors
    /// `Corrupt` if it was not written by [`Table::encode`].
    pub(super) fn add(&mut self, point: PointRef<'_>) -> Result<()> {
        let bad = |what: &str| Error::corrupt("cached answer", 0, what.to_owned());
        let mut head =
            point.head.map(|head| &**head).ok_or_else(|| bad("a bucket without series"))?;
        let mut input = point.payload;
        while !head.is_empty() {
            let len = take_count(&mut head, TEXT_BYTES_MAX, "series")?;
            let series = text(take_bytes(&mut head, len, "series")?)?;
            let Some(len) = take_count(&mut input, TEXT_BYTES_MAX, "row")?.checked_sub(1) else {
                continue;
            };
            let row = text(take_bytes(&mut input, len, "row")?)?;
            let name = name_of(series).ok_or_else(|| bad("no series"))?;
            let series = self.series(&name, series).ok_or_else(|| bad("two kinds of columns"))?;
            series.rows.insert(point.ts, row.to_owned());
        }
        Ok(())
    }

    /// Adds all of `other`; `None` if the two do not fit together.
    pub(super) fn append(&mut self, other: Table) -> Option<()> {
        for (name, other) in other.series {
            self.series(&name, &other.head)?.rows.extend(other.rows);
        }
        Some(())
    }

    /// Encodes the buckets of `kept` (their starts, ms) as points. The last head of the key is
    /// reused if it is equal.
    #[expect(clippy::arithmetic_side_effects, reason = "the length of a row in memory")]
    pub(super) fn encode(&self, kept: TimeRange, last_head: Option<Arc<[u8]>>) -> Kept {
        let mut head = Vec::new();
        for series in self.series.values() {
            encode_varint(series.head.len() as u64, &mut head);
            head.extend_from_slice(series.head.as_bytes());
        }
        let head = last_head.filter(|last| **last == *head).unwrap_or_else(|| head.into());
        let inside = self.series.values().flat_map(|one| one.rows.range(kept.start..=kept.end));
        let mut times: Vec<Timestamp> = inside.map(|(&ts, _)| ts).collect();
        times.sort_unstable();
        times.dedup();
        let row = |ts: Timestamp| {
            let mut payload = Vec::new();
            for series in self.series.values() {
                let row = series.rows.get(&ts);
                encode_varint(row.map_or(0, |row| row.len() as u64 + 1), &mut payload);
                payload.extend_from_slice(row.map_or(&[], |row| row.as_bytes()));
            }
            (ts, payload)
        };
        Kept { head, rows: times.into_iter().map(row).collect() }
    }

    /// The answer to one statement, as the origin would write it.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        reason = "the request has checked the units: at least 1 ns, and 1 ms for a bucket"
    )]
    pub(super) fn write(&self, buckets: Buckets<'_>) -> Vec<u8> {
        let fill = buckets.fills.map(|fills| fills.join(","));
        let mut out = String::from("{\"results\":[{\"statement_id\":0");
        let mut is_first = true;
        for series in self.series.values().filter(|series| !series.rows.is_empty()) {
            out += if std::mem::take(&mut is_first) { ",\"series\":[{" } else { ",{" };
            out += &series.head;
            out += ",\"values\":[";
            let mut push = |ts: Timestamp, row: &str| {
                let time = i128::from(ts) * 1_000_000 / i128::from(buckets.unit_ns);
                out += if out.ends_with('[') { "[" } else { ",[" };
                out += &format!("{time},{row}]");
            };
            match &fill {
                None => series.rows.iter().for_each(|(&ts, row)| push(ts, row)),
                Some(fill) => {
                    let TimeRange { start, end } = buckets.range;
                    for ts in (start..=end).step_by(buckets.interval_ms as usize) {
                        push(ts, series.rows.get(&ts).unwrap_or(fill));
                    }
                }
            }
            out += "]}";
        }
        out += if is_first { "}]}\n" } else { "]}]}\n" };
        out.into_bytes()
    }

    /// The series; `None` if it is known with other columns.
    fn series(&mut self, name: &Name, head: &str) -> Option<&mut TableSeries> {
        let new = || TableSeries { head: head.to_owned(), rows: BTreeMap::new() };
        let series = self.series.entry(name.clone()).or_insert_with(new);
        (series.head == head).then_some(series)
    }
}

impl Kept {
    /// The points to store.
    pub(super) fn points(&self) -> Vec<Point<'_>> {
        let head = || Some(Arc::clone(&self.head));
        self.rows.iter().map(|(ts, payload)| Point { ts: *ts, head: head(), payload }).collect()
    }
}

impl Buckets<'_> {
    /// The bucket of a row and its text, if the row is not empty; `None` if it is outside these
    /// buckets.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the product of two `i64` fits into `i128`; buckets have at least 1 ms, and `ts` is in \
                  their range"
    )]
    fn row(&self, row: &[&RawValue]) -> Option<(Timestamp, Option<String>)> {
        let (time, values) = row.split_first()?;
        let time: i64 = time.get().parse().ok()?;
        let ns = i128::from(time) * i128::from(self.unit_ns);
        let ts = i64::try_from(ns / 1_000_000).ok()?;
        let is_bucket = ns % 1_000_000 == 0
            && self.range.contains(ts)
            && (ts - self.range.start) % self.interval_ms == 0;
        is_bucket.then_some(())?;
        // A row of a time alone has no text to store.
        (!values.is_empty()).then_some(())?;
        let values: Vec<&str> = values.iter().map(|value| value.get()).collect();
        let is_nothing = self.fills.is_some_and(|fills| values == fills);
        Some((ts, (!is_nothing).then(|| values.join(","))))
    }
}

fn head_text(series: &TableSeriesText<'_>) -> String {
    let tags = series.tags.map(|tags| format!(",\"tags\":{}", tags.get())).unwrap_or_default();
    format!("\"name\":{}{tags},\"columns\":{}", series.name.get(), series.columns.get())
}

fn name_of(head: &str) -> Option<Name> {
    #[derive(Deserialize)]
    struct HeadParts {
        name: String,
        #[serde(default)]
        tags: BTreeMap<String, String>,
    }
    let parts: HeadParts = serde_json::from_str(&format!("{{{head}}}")).ok()?;
    Some(Name { measurement: parts.name, tags: parts.tags.into_iter().collect() })
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|e| Error::corrupt("cached answer", 0, "no text").because(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILLS: &[&str] = &["null", "0"];

    fn buckets(fills: Option<&'static [&'static str]>) -> Buckets<'static> {
        let range = TimeRange::new(1_000, 4_000);
        Buckets { range, interval_ms: 1_000, unit_ns: 1_000_000, fills }
    }

    /// Found by fuzzing: such a row was written as `[1000,]`.
    #[test]
    fn rows_without_values_are_not_parsed() {
        let answer = |row: &str| {
            format!(
                "{{\"results\":[{{\"statement_id\":0,\"series\":[{{\"name\":\"m\",\
                 \"columns\":[\"time\",\"a\"],\"values\":[{row}]}}]}}]}}"
            )
        };
        let parse = |row| Table::parse(answer(row).as_bytes(), &[buckets(None)]);
        assert!(parse("[1000,1]").is_some());
        assert!(parse("[1000]").is_none() && parse("[]").is_none());
    }

    #[test]
    fn an_answer_in_parts_is_the_answer() {
        let part = |rows: [&str; 2]| {
            let series = |host: &str, rows: &str| {
                let head = format!("\"name\":\"m\",\"tags\":{{\"host\":\"{host}\"}}");
                format!("{{{head},\"columns\":[\"time\",\"a\",\"n\"],\"values\":[{rows}]}}")
            };
            let all = rows.iter().zip(["x", "y"]).filter(|(rows, _)| !rows.is_empty());
            let all: Vec<String> = all.map(|(rows, host)| series(host, rows)).collect();
            format!("{{\"results\":[{{\"statement_id\":0,\"series\":[{}]}}]}}\n", all.join(","))
        };
        let whole = part([
            "[1000,1.50,2],[2000,null,0],[3000,null,0],[4000,null,0]",
            "[1000,null,0],[2000,null,0],[3000,7,1],[4000,null,1]",
        ]);
        let first = part(["[1000,1.50,2],[2000,null,0]", ""]);
        let second = part(["", "[3000,7,1],[4000,null,1]"]);
        let parse = |text: &str| Table::parse(text.as_bytes(), &[buckets(Some(FILLS))]).unwrap();
        let mut joined = Table::default();
        let kept = parse(&first).encode(TimeRange::new(1_000, 2_000), None);
        for point in kept.points() {
            let (ts, head, payload) = (point.ts, point.head.as_ref(), point.payload);
            joined.add(PointRef { ts, head, payload }).unwrap();
        }
        joined.append(parse(&second)).unwrap();
        let written = String::from_utf8(joined.write(buckets(Some(FILLS)))).unwrap();
        assert_eq!(written, whole);
        assert_eq!(parse(&whole).write(buckets(Some(FILLS))), whole.as_bytes());
        let nothing = "{\"results\":[{\"statement_id\":0}]}\n";
        assert_eq!(parse(nothing).write(buckets(Some(FILLS))), nothing.as_bytes());
        // Without fills every row is one.
        let written = Table::parse(whole.as_bytes(), &[buckets(None)]).unwrap();
        assert_eq!(written.write(buckets(None)), whole.as_bytes());
    }

    #[test]
    fn unusual_answers_are_not_stored() {
        let series = |name: &str, values: &str| {
            format!(
                "{{\"name\":\"{name}\",\"columns\":[\"time\",\"a\",\"n\"],\"values\":[{values}]}}"
            )
        };
        let answer = |body: &str| format!("{{\"results\":[{{\"statement_id\":0{body}}}]}}");
        let of = |series: &str| answer(&format!(",\"series\":[{series}]"));
        assert!(
            Table::parse(of(&series("m", "[1000,1,1]")).as_bytes(), &[buckets(None)]).is_some()
        );
        for text in [
            "{\"error\":\"timeout\"}".to_owned(),
            answer(",\"error\":\"partial write\""),
            answer(",\"messages\":[]"),
            of(&series("m", "[5000,1,1]")),
            of(&series("m", "[1500,1,1]")),
            of(&series("m", "[\"1970-01-01T00:00:01Z\",1,1]")),
            of(&series("m", "[1000,1,1],[1000,1,1]")),
            of(&format!("{},{}", series("m", "[1000,1,1]"), series("a", "[1000,1,1]"))),
            of(&series("m", "[1000,1,1]").replace("}", ",\"partial\":true}")),
        ] {
            assert!(Table::parse(text.as_bytes(), &[buckets(None)]).is_none(), "{text}");
        }
    }
}
