//! InfluxDB's query endpoint through the cache: `SELECT` of aggregates by `GROUP BY time(...)`
//! between two fixed times.
//!
//! A bucket inside the range does not depend on the range, and is stored once it is settled. The
//! first and last bucket, which the range cuts, are fetched every time, in one request with all
//! other missing parts: one statement per part.

#[cfg(any(test, fuzzing))]
pub(in crate::proxy) mod fuzz;
mod statement;
mod table;

use axum::http::header;
use axum::http::request::Parts;
use firn_cache::{Fill, Lookup, Store};
use firn_model::{CommitSeq, Result, TimeRange, Timestamp};

use self::statement::Statement;
use self::table::{Buckets, Table};
use super::range::{digest, wants_fresh};

/// The only field, which stores the answers.
const FIELD: u64 = 0;
/// Stored answers never change: one commit number for all.
const NUMBER: CommitSeq = CommitSeq(0);
/// No dashboard has more buckets.
const BUCKETS_MAX: i64 = 50_000;
/// The longest statement that is parsed.
const STATEMENT_BYTES_MAX: usize = 64 << 10;
/// Any other parameter may change the form of an answer.
const PARAMETERS: [&str; 6] = ["q", "epoch", "db", "rp", "u", "p"];
const MS_NS: i64 = 1_000_000;

/// A statement that the cache supports.
#[derive(Debug)]
pub(in crate::proxy) struct StatementRequest {
    /// All parameters, unchanged.
    pub(in crate::proxy) pairs: Vec<(String, String)>,
    statement: Statement,
    interval_ms: i64,
    unit_ns: i64,
    /// Starts of the first and the last bucket that it has a part of, ms.
    buckets: TimeRange,
    /// Those of them that the range contains completely.
    whole: TimeRange,
    key: Vec<u8>,
    /// The start of the last bucket that the origin will not change any more.
    settled: Timestamp,
}

/// The cached part of an answer.
#[derive(Debug)]
pub(in crate::proxy) struct CachedBuckets {
    table: Table,
    /// First and last nanosecond of each part to fetch from the origin, in order.
    pub(in crate::proxy) missing: Vec<(i64, i64)>,
    is_nothing: bool,
}

impl StatementRequest {
    /// `None` if the request must be forwarded unchanged.
    pub(in crate::proxy) fn new(
        parts: &Parts,
        pairs: Vec<(String, String)>,
        now: Timestamp,
        settle_ms: i64,
    ) -> Option<StatementRequest> {
        let get = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.as_str());
        let is_known = pairs.iter().all(|(name, _)| PARAMETERS.contains(&name.as_str()));
        let is_once =
            PARAMETERS.iter().all(|name| pairs.iter().filter(|pair| pair.0 == *name).count() <= 1);
        let accept = parts.headers.get(header::ACCEPT).map(|value| value.to_str().unwrap_or("?"));
        let is_json = accept.is_none_or(|text| text.contains("json") || text.contains("*/*"));
        if !is_known || !is_once || !is_json || wants_fresh(&parts.headers) {
            return None;
        }
        let unit_ns = match get("epoch")? {
            "ns" | "n" => 1,
            "u" | "\u{b5}" => 1_000,
            "ms" => MS_NS,
            "s" => 1_000 * MS_NS,
            "m" => 60_000 * MS_NS,
            "h" => 3_600_000 * MS_NS,
            _ => return None,
        };
        let text = get("q").filter(|text| text.len() <= STATEMENT_BYTES_MAX)?;
        let statement = Statement::parse(text)?;
        let (first_ns, last_ns) = statement.range_ns;
        let interval_ns = statement.interval_ns;
        if interval_ns % MS_NS != 0 || interval_ns % unit_ns != 0 {
            return None;
        }
        let interval_ms = interval_ns / MS_NS;
        let bucket = |ns: i64| ns / interval_ns * interval_ms;
        let buckets = TimeRange::new(bucket(first_ns), bucket(last_ns));
        let whole = TimeRange::new(
            bucket(first_ns.checked_add(interval_ns - 1)?),
            bucket(last_ns.checked_add(1)?) - interval_ms,
        );
        let count = (buckets.end - buckets.start) / interval_ms + 1;
        if whole.is_empty() || whole.start > whole.end || count > BUCKETS_MAX {
            return None;
        }
        let settled = now.saturating_sub(settle_ms).saturating_sub(interval_ms);
        let key = key(parts, &pairs, &statement);
        Some(StatementRequest {
            pairs,
            statement,
            interval_ms,
            unit_ns,
            buckets,
            whole,
            key,
            settled,
        })
    }

    /// Identifies equal requests: everything that the answer depends on.
    pub(in crate::proxy) fn flight(&self) -> (Vec<u8>, TimeRange) {
        let mut key = self.key.clone();
        key.extend_from_slice(&self.unit_ns.to_le_bytes());
        let (start, end) = self.statement.range_ns;
        (key, TimeRange::new(start, end))
    }

    /// The cache lookup.
    pub(in crate::proxy) fn ask(&self, bytes_max: u64, partial_bytes_min: u64) -> Lookup<'_> {
        let (key, range) = (&*self.key, self.cells(self.whole));
        Lookup { key, field: FIELD, range, number: NUMBER, partial_bytes_min, bytes_max }
    }

    /// Reads the cached part if it is at most `bytes_max`, and a partial hit only from `least`
    /// bytes on. Reads the cache file.
    pub(in crate::proxy) fn look_up(
        &self,
        store: &Store,
        bytes_max: u64,
        least: u64,
    ) -> CachedBuckets {
        self.try_look_up(store, bytes_max, least).unwrap_or_else(|_| {
            // It differs from the stored data: drop it.
            store.trim(&self.key, FIELD, self.cells(self.whole));
            let missing = vec![self.statement.range_ns];
            CachedBuckets { table: Table::default(), missing, is_nothing: true }
        })
    }

    fn try_look_up(&self, store: &Store, bytes_max: u64, least: u64) -> Result<CachedBuckets> {
        let range = self.cells(self.whole);
        let got = store.get(&self.ask(bytes_max, least));
        let mut table = Table::default();
        let mut failed = Ok(());
        // A bucket is cached as a whole or not at all.
        let missing = match got.missing.is_empty() {
            true => TimeRange::EMPTY,
            false => self.cells(TimeRange::new(
                self.bucket(got.missing.start),
                self.bucket(got.missing.end),
            )),
        };
        got.for_each(&mut |point| {
            if failed.is_ok() && !missing.contains(point.ts) {
                failed = table.add(point);
            }
        })?;
        failed?;
        let (first_ns, last_ns) = self.statement.range_ns;
        let known = match missing.is_empty() {
            true => [range, TimeRange::EMPTY],
            false => [
                TimeRange::new(range.start, missing.start - 1),
                TimeRange::new(missing.end + 1, range.end),
            ],
        };
        let mut left = Vec::new();
        let mut next_ns = first_ns;
        for part in known.into_iter().filter(|part| !part.is_empty() && part.start <= part.end) {
            let start_ns = part.start * MS_NS;
            if next_ns < start_ns {
                left.push((next_ns, start_ns - 1));
            }
            next_ns = (part.end + 1) * MS_NS;
        }
        if next_ns <= last_ns {
            left.push((next_ns, last_ns));
        }
        let is_nothing = missing == range;
        Ok(CachedBuckets { table, missing: left, is_nothing })
    }

    /// Estimated bytes of this many series whose buckets are all empty, if such are written.
    pub(in crate::proxy) fn filled_bytes(&self, series_count: u64) -> u64 {
        // A time, brackets, and twice for a text that grows.
        const ROW_BYTES: u64 = 24;
        let Some(fills) = &self.statement.fills else { return 0 };
        let fill_bytes: usize = fills.iter().map(|fill| fill.len() + 1).sum();
        let bucket_count = ((self.buckets.end - self.buckets.start) / self.interval_ms + 1) as u64;
        let row_bytes = 2 * (ROW_BYTES + fill_bytes as u64);
        bucket_count.saturating_mul(series_count).saturating_mul(row_bytes)
    }

    /// The parameters that request the parts.
    pub(in crate::proxy) fn pairs_of(&self, parts: &[(i64, i64)]) -> Vec<(String, String)> {
        let statements: Vec<String> =
            parts.iter().map(|&part| self.statement.for_range(part)).collect();
        let mut pairs = self.pairs.clone();
        for (name, value) in &mut pairs {
            if name == "q" {
                *value = statements.join("; ");
            }
        }
        pairs
    }

    /// Stores the origin's answer for `parts`, as far as it is settled, and joins it with the
    /// cached part. `None` if the answer has an unexpected form.
    pub(in crate::proxy) fn join(
        &self,
        store: &Store,
        known: CachedBuckets,
        answer: &[u8],
    ) -> Option<Vec<u8>> {
        let parts: Vec<Buckets<'_>> = known
            .missing
            .iter()
            .map(|&(first_ns, last_ns)| {
                let (first, last) = (self.bucket(first_ns / MS_NS), self.bucket(last_ns / MS_NS));
                self.buckets(TimeRange::new(first, last))
            })
            .collect();
        let computed = Table::parse(answer, &parts)?;
        for part in &parts {
            let end = part.range.end.min(self.whole.end).min(self.bucket(self.settled));
            let kept = TimeRange::new(part.range.start.max(self.whole.start), end);
            if kept.is_empty() || kept.start > kept.end {
                continue;
            }
            let rows = computed.encode(kept, store.last_head(&self.key, FIELD));
            store.set(&Fill {
                key: &self.key,
                field: FIELD,
                range: self.cells(kept),
                number: NUMBER,
                note: &[],
                points: &rows.points(),
            });
        }
        let mut joined = known.table;
        joined.append(computed)?;
        Some(joined.write(self.buckets(self.buckets)))
    }

    /// The answer, if nothing is missing.
    pub(in crate::proxy) fn write(&self, known: &CachedBuckets) -> Vec<u8> {
        known.table.write(self.buckets(self.buckets))
    }

    fn buckets(&self, range: TimeRange) -> Buckets<'_> {
        let fills = self.statement.fills.as_deref();
        Buckets { range, interval_ms: self.interval_ms, unit_ns: self.unit_ns, fills }
    }

    /// The start of the bucket that has a time.
    fn bucket(&self, ms: Timestamp) -> Timestamp {
        ms.div_euclid(self.interval_ms) * self.interval_ms
    }

    /// All milliseconds of some buckets, so that neighbours touch.
    fn cells(&self, buckets: TimeRange) -> TimeRange {
        TimeRange::new(buckets.start, buckets.end + self.interval_ms - 1)
    }
}

impl CachedBuckets {
    /// How many series the cached part has.
    pub(in crate::proxy) fn series_count(&self) -> u64 {
        self.table.series_count()
    }

    /// The result of the lookup for the response header.
    pub(in crate::proxy) fn found(&self) -> &'static str {
        match () {
            () if self.missing.is_empty() => "hit",
            () if self.is_nothing => "miss",
            () => "partial",
        }
    }
}

/// The statement without its times, and a digest of everything else that may select another answer.
/// Parameters and headers may be passwords, which must not be written to the cache file.
fn key(parts: &Parts, pairs: &[(String, String)], statement: &Statement) -> Vec<u8> {
    let mut others: Vec<(&str, &[u8])> = pairs
        .iter()
        .filter(|(name, _)| !["q", "epoch"].contains(&name.as_str()))
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect();
    others.sort_unstable();
    others.push(("", parts.uri.path().as_bytes()));
    let mut key = format!("influxql\n{}\n", statement.key()).into_bytes();
    key.extend_from_slice(&digest(&parts.headers, &others));
    key
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::http::Request;
    use firn_cache::{OwnerHistory, StoreOptions};
    use firn_env::LocalDisk;
    use firn_model::Budget;

    use super::*;

    const NOW: Timestamp = 1_000_000_000;

    fn asked(q: &str, more: &[(&str, &str)], headers: &[(&str, &str)]) -> Option<StatementRequest> {
        let mut request = Request::get("http://proxy/query");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let parts = request.body(()).unwrap().into_parts().0;
        let pairs = [("q", q), ("db", "d")].into_iter().chain(more.iter().copied());
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        StatementRequest::new(&parts, pairs, NOW, 60_000)
    }

    fn statement(first_ms: i64, last_ms: i64) -> String {
        format!(
            "SELECT sum(v) FROM m WHERE time >= {first_ms}ms AND time <= {last_ms}ms GROUP BY time(1s)"
        )
    }

    /// Empty buckets are stored nowhere and written all: one stored row can become a megabyte.
    #[test]
    fn filled_buckets_are_counted_before_they_are_written() {
        let request = asked(&statement(0, 19_999_999), &[("epoch", "ms")], &[]).unwrap();
        let answer = "{\"results\":[{\"statement_id\":0,\"series\":[{\"name\":\"m\",\
                      \"columns\":[\"time\",\"sum\"],\"values\":[[1000,1]]}]}]}";
        let table = Table::parse(answer.as_bytes(), &[request.buckets(request.buckets)]).unwrap();
        let cached = CachedBuckets { table, missing: Vec::new(), is_nothing: false };
        let written = request.write(&cached);
        assert!(written.len() > 300_000, "{} bytes", written.len());
        let counted = request.filled_bytes(cached.series_count());
        assert!(counted >= written.capacity() as u64, "{counted}");
        let without = statement(0, 19_999_999) + " fill(none)";
        assert_eq!(asked(&without, &[("epoch", "ms")], &[]).unwrap().filled_bytes(9), 0);
    }

    #[test]
    fn buckets_cut_by_the_range_are_fetched_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(LocalDisk::open(folder.path().to_owned()).unwrap());
        let options = StoreOptions { flash_bytes_max: 8 << 20, ..StoreOptions::default() };
        let budget = Budget::new(64 << 20);
        let store = Store::open(disk, "a", &budget, options, OwnerHistory::IMMUTABLE).unwrap();
        // An origin that has one point a second of the value that its second has.
        let origin = |parts: &[(i64, i64)]| {
            let result = |(idx, (first, last)): (usize, &(i64, i64))| {
                let seconds = first / 1_000_000_000..=last / 1_000_000_000;
                let rows: Vec<String> = seconds.map(|s| format!("[{},{s}]", s * 1_000)).collect();
                format!(
                    "{{\"statement_id\":{idx},\"series\":[{{\"name\":\"m\",\"columns\":[\"time\",\"sum\"],\"values\":[{}]}}]}}",
                    rows.join(",")
                )
            };
            let results: Vec<String> = parts.iter().enumerate().map(result).collect();
            format!("{{\"results\":[{}]}}\n", results.join(","))
        };
        let ms = |parts: &[(i64, i64)]| -> Vec<(i64, i64)> {
            parts.iter().map(|part| (part.0 / MS_NS, part.1 / MS_NS)).collect()
        };
        for (first, last, missing) in [
            (500, 9_500, vec![(500, 9_500)]),
            (500, 9_500, vec![(500, 999), (9_000, 9_500)]),
            (1_000, 8_999, vec![(8_000, 8_999)]),
            (2_500, 12_500, vec![(2_500, 2_999), (9_000, 12_500)]),
            (3_000, 11_000, vec![(11_000, 11_000)]),
        ] {
            let asked = asked(&statement(first, last), &[("epoch", "ms")], &[]).unwrap();
            let known = asked.look_up(&store, u64::MAX, 0);
            let got = ms(&known.missing);
            assert_eq!(got, missing, "{first} to {last}");
            let whole = origin(&[(first * MS_NS, last * MS_NS)]);
            let answer = origin(&known.missing);
            let joined = asked.join(&store, known, answer.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(joined).unwrap(), whole, "{first} to {last}");
        }
    }

    #[test]
    fn unsettled_steps_are_fetched_again() {
        let asked = asked(&statement(NOW - 90_000, NOW), &[("epoch", "s")], &[]).unwrap();
        assert_eq!(asked.settled, NOW - 61_000);
        assert_eq!(asked.whole, TimeRange::new(NOW - 90_000, NOW - 1_000));
    }

    #[test]
    fn the_client_and_the_path_are_part_of_the_key() {
        let q = statement(0, 9_000);
        let key = |q: &str, more: &[(&str, &str)], headers: &[(&str, &str)]| {
            let more: Vec<(&str, &str)> = more.iter().copied().chain([("epoch", "ms")]).collect();
            asked(q, &more, headers).unwrap().key
        };
        let plain = key(&q, &[], &[]);
        assert_eq!(plain, key(&statement(5_000, 70_000), &[], &[("user-agent", "g")]));
        for other in [
            key(&q.replace("sum", "max"), &[], &[]),
            key(&q, &[("rp", "r")], &[]),
            key(&q, &[("u", "me"), ("p", "hidden")], &[]),
            key(&q, &[], &[("authorization", "Basic eDp5")]),
        ] {
            assert_ne!(plain, other);
            assert!(!String::from_utf8_lossy(&other).contains("hidden"));
        }
    }

    #[test]
    fn unsupported_queries_are_forwarded() {
        let q = statement(0, 9_000);
        assert!(asked(&q, &[("epoch", "ms")], &[]).is_some());
        for (more, headers) in [
            (vec![], vec![]),
            (vec![("epoch", "ms"), ("pretty", "true")], vec![]),
            (vec![("epoch", "ms"), ("chunked", "true")], vec![]),
            (vec![("epoch", "ms"), ("db", "other")], vec![]),
            (vec![("epoch", "m")], vec![]),
            (vec![("epoch", "ms")], vec![("accept", "application/csv")]),
            (vec![("epoch", "ms")], vec![("cache-control", "no-cache")]),
        ] {
            assert!(asked(&q, &more, &headers).is_none(), "{more:?} {headers:?}");
        }
        assert!(
            asked(&statement(500, 1_400), &[("epoch", "ms")], &[]).is_none(),
            "no whole bucket"
        );
    }
}
