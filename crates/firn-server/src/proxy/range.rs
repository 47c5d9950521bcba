//! A range query through the cache: its cacheable steps, its cached steps, and its missing steps.

use axum::http::header::{self, HeaderMap};
use axum::http::request::Parts;
use firn_cache::{Fill, Grid, Lookup, Store};
use firn_model::{CommitSeq, Result, TimeRange, Timestamp};
use firn_promql::Reach;

use super::matrix::{Envelope, Heads, Matrix};
use crate::wire::number::{parse_duration_ns, parse_time, push_time};
use crate::wire::query_stats::StatsLevel;

/// The only field, which stores the answers.
const FIELD: u64 = 0;
/// Stored answers never change: one commit number for all.
const NUMBER: CommitSeq = CommitSeq(0);
/// Prometheus refuses more; its error is forwarded.
const STEPS_MAX: u64 = 11_000;
/// Prometheus' default. The origin's may differ without harm: only the newest sample that a step
/// reads determines whether the step is settled.
const LOOKBACK_MS: i64 = 5 * 60_000;
/// The longest query that is parsed, which takes some milliseconds. Longer ones are forwarded
/// unchanged.
const QUERY_BYTES_MAX: usize = 128 << 10;

/// Requests with more parameters are forwarded.
const PARAMETERS_MAX: usize = 64;
/// Parameters that the key or the lookup contains in parsed form, or on which no step depends.
const NEUTRAL_PARAMETERS: [&str; 5] = ["query", "start", "end", "step", "stats"];
/// Parameters with which an answer is more than its steps, or less.
const WHOLE_ANSWER_PARAMETERS: [&str; 3] = ["limit", "trace", "debug"];
/// Statistics of a cached answer: nothing was computed.
const NO_STATS: &[u8] = br#"{"timings":{"evalTotalTime":0,"resultSortTime":0,"queryPreparationTime":0,"innerEvalTime":0,"execQueueTime":0,"execTotalTime":0},"samples":{"totalQueryableSamples":0,"peakSamples":0}}"#;
/// Headers that an answer must not depend on: the origin does not receive them with a request whose
/// answer may be shared, except a part of `Via` (`hop`). All others are part of its key, because
/// they may name a tenant or a user.
const NEUTRAL_HEADERS: [&str; 22] = [
    "accept-encoding",
    "accept-language",
    "cache-control",
    "content-length",
    "content-type",
    "dnt",
    "expect",
    "host",
    "origin",
    "pragma",
    "priority",
    "referer",
    "traceparent",
    "tracestate",
    "uber-trace-id",
    "user-agent",
    "via",
    "x-dashboard-uid",
    "x-datasource-uid",
    "x-panel-id",
    "x-query-group-id",
    "x-request-id",
];
// Narrow on purpose: `x-forwarded-user` and `x-grafana-user` identify a user, and databases behind
// another proxy may decide by `x-forwarded-for` and `x-forwarded-host`.
const NEUTRAL_HEADER_PREFIXES: [&str; 4] = ["sec-ch-", "sec-fetch-", "sec-gpc", "x-b3-"];

/// A range query that the cache supports.
#[derive(Debug)]
pub(super) struct RangeRequest {
    /// All parameters, unchanged.
    pub(super) pairs: Vec<(String, String)>,
    grid: Grid,
    /// From its first to its last step.
    steps: TimeRange,
    key: Vec<u8>,
    /// The origin's statistics of its computation, which is that of the missing steps.
    stats: StatsLevel,
    /// The last step that the origin will not change any more.
    settled: Timestamp,
}

/// The cached part of an answer.
#[derive(Debug)]
pub(super) struct CachedSteps {
    before: Matrix,
    behind: Matrix,
    envelope: Envelope,
    /// The first and last step to fetch from the origin.
    pub(super) missing: Option<TimeRange>,
}

impl RangeRequest {
    /// `None` if the query must be forwarded unchanged: its syntax is unsupported, its steps depend
    /// on more than their own samples, or its client forbids caches.
    pub(super) fn new(
        parts: &Parts,
        pairs: Vec<(String, String)>,
        now: Timestamp,
        settle_ms: i64,
    ) -> Option<RangeRequest> {
        let get = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.as_str());
        let is_whole = WHOLE_ANSWER_PARAMETERS.iter().any(|name| get(name).is_some());
        // Servers disagree on which of two values counts, except where the name is that of a list.
        let is_repeated = |(idx, (name, _)): (usize, &(String, String))| {
            !name.ends_with("[]") && pairs.iter().skip(idx + 1).any(|other| other.0 == *name)
        };
        if pairs.len() > PARAMETERS_MAX || pairs.iter().enumerate().any(is_repeated) {
            return None;
        }
        let stats = StatsLevel::named(get("stats").unwrap_or_default());
        // The origin answers with a warning.
        if matches!(stats, StatsLevel::Deprecated(_)) {
            return None;
        }
        let query = get("query").filter(|query| query.len() <= QUERY_BYTES_MAX)?;
        let (start, end) = (parse_time(get("start")?).ok()?, parse_time(get("end")?).ok()?);
        let step_ns = parse_duration_ns(get("step")?).ok()?;
        if is_whole || wants_fresh(&parts.headers) || end < start || step_ns % 1_000_000 != 0 {
            return None;
        }
        let grid = Grid::new(start, end, step_ns / 1_000_000)?;
        let steps = grid.steps_in(TimeRange::new(start, end));
        if grid.count(steps) > STEPS_MAX {
            return None;
        }
        let expr = firn_promql::parse(query).ok()?;
        let mut settled = now.saturating_sub(settle_ms);
        for dependency in firn_promql::dependencies(&expr, LOOKBACK_MS)? {
            let newest = now.saturating_sub(settle_ms);
            settled = match dependency.reach {
                Reach::Relative { last_ms, .. } => settled.min(newest.saturating_sub(last_ms)),
                Reach::Fixed(range) if range.end <= newest => settled,
                Reach::Fixed(_) => return None,
            };
        }
        let key = key(parts, &pairs, &expr.to_string(), start, step_ns / 1_000_000);
        Some(RangeRequest { pairs, grid, steps, key, stats, settled })
    }

    /// Identifies equal requests: everything that the answer depends on.
    pub(super) fn flight(&self) -> (Vec<u8>, TimeRange) {
        let mut key = self.key.clone();
        key.push(match self.stats {
            StatsLevel::All => 2,
            StatsLevel::Sums => 1,
            StatsLevel::None | StatsLevel::Deprecated(_) => 0,
        });
        (key, self.steps)
    }

    /// The cache lookup.
    pub(super) fn ask(&self, bytes_max: u64, partial_bytes_min: u64) -> Lookup<'_> {
        let (key, range) = (&*self.key, self.grid.cells(self.steps));
        Lookup { key, field: FIELD, range, number: NUMBER, partial_bytes_min, bytes_max }
    }

    /// Reads the cached part if it is at most `bytes_max`, and a partial hit only from `least`
    /// bytes on. Reads the cache file.
    pub(super) fn look_up(&self, store: &Store, bytes_max: u64, least: u64) -> CachedSteps {
        self.try_look_up(store, bytes_max, least).unwrap_or_else(|_| {
            // It differs from the stored data: drop it.
            store.trim(&self.key, FIELD, self.grid.cells(self.steps));
            CachedSteps::nothing(self.steps)
        })
    }

    fn try_look_up(&self, store: &Store, bytes_max: u64, least: u64) -> Result<CachedSteps> {
        let got = store.get(&self.ask(bytes_max, least));
        let missing = (!got.missing.is_empty()).then(|| {
            TimeRange::new(self.grid.floor(got.missing.start), self.grid.floor(got.missing.end))
        });
        let mut known = CachedSteps::nothing(self.steps);
        known.missing = missing;
        let mut heads = [Heads::default(), Heads::default()];
        let mut failed = Ok(());
        got.for_each(&mut |point| {
            let (matrix, heads) = match missing {
                Some(missing) if missing.contains(point.ts) => return,
                Some(missing) if point.ts > missing.end => (&mut known.behind, &mut heads[1]),
                _ => (&mut known.before, &mut heads[0]),
            };
            if failed.is_ok() {
                failed = matrix.add(point, heads);
            }
        })?;
        failed?;
        known.envelope = match heads {
            [before, behind] if before.is_empty() => behind.envelope(),
            [before, _] => before.envelope(),
        };
        // VictoriaMetrics has none there.
        if missing.is_none() && self.has_stats() && !known.envelope.tells_partial {
            known.before.stats = NO_STATS.to_vec();
        }
        Ok(known)
    }

    fn has_stats(&self) -> bool {
        self.stats != StatsLevel::None
    }

    /// The parameters that request `part` of the steps.
    pub(super) fn pairs_of(&self, part: TimeRange) -> Vec<(String, String)> {
        let seconds = |ts| {
            let mut text = Vec::new();
            push_time(ts, &mut text);
            String::from_utf8_lossy(&text).into_owned()
        };
        let mut pairs = self.pairs.clone();
        for (name, value) in &mut pairs {
            match name.as_str() {
                "start" => *value = seconds(part.start),
                "end" => *value = seconds(part.end),
                _ => {}
            }
        }
        pairs
    }

    /// Whether `part` has all steps.
    pub(super) fn is_all(&self, part: TimeRange) -> bool {
        part == self.steps
    }

    /// Stores the origin's answer for `part`, as far as it is settled, and joins it with the cached
    /// part. `None` if the answer has an unexpected form.
    pub(super) fn join(
        &self,
        store: &Store,
        known: CachedSteps,
        part: TimeRange,
        answer: &[u8],
    ) -> Option<Vec<u8>> {
        let (mut computed, envelope) = Matrix::parse(answer, self.grid, part)?;
        (self.has_stats() || computed.stats.is_empty()).then_some(())?;
        let kept = TimeRange { end: part.end.min(self.settled), ..part };
        let kept = if kept.start > kept.end { TimeRange::EMPTY } else { self.grid.steps_in(kept) };
        if !kept.is_empty() {
            let last_head = store.last_head(&self.key, FIELD);
            let steps = computed.encode(self.grid, kept, envelope, last_head.as_ref());
            store.set(&Fill {
                key: &self.key,
                field: FIELD,
                range: self.grid.cells(kept),
                number: NUMBER,
                note: &[],
                points: &steps.points(),
            });
        }
        let mut joined = known.before;
        joined.append(&computed).and_then(|()| joined.append(&known.behind)).ok()?;
        joined.stats = std::mem::take(&mut computed.stats);
        Some(joined.write(envelope))
    }
}

impl CachedSteps {
    fn nothing(steps: TimeRange) -> CachedSteps {
        CachedSteps {
            before: Matrix::default(),
            behind: Matrix::default(),
            envelope: Envelope { tells_partial: false },
            missing: Some(steps),
        }
    }

    /// The answer, if nothing is missing.
    pub(super) fn write(&self) -> Vec<u8> {
        self.before.write(self.envelope)
    }
}

/// The key of a request: its normalised expression and grid, and everything that may select another
/// answer. Headers and other parameters are digested: they may be passwords, which must not be
/// written to the cache file.
fn key(
    parts: &Parts,
    pairs: &[(String, String)],
    expression: &str,
    start: Timestamp,
    step_ms: i64,
) -> Vec<u8> {
    let phase_ms = start.rem_euclid(step_ms);
    let mut others: Vec<&(String, String)> =
        pairs.iter().filter(|(name, _)| !NEUTRAL_PARAMETERS.contains(&name.as_str())).collect();
    // Stable: values of one name keep their order.
    others.sort_by(|a, b| a.0.cmp(&b.0));
    let others = others.into_iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let others: Vec<(&str, &[u8])> = others.collect();
    let mut key = format!("{step_ms} {phase_ms} {}\n", parts.uri.path());
    key += expression;
    let mut key = key.into_bytes();
    key.push(b'\n');
    key.extend_from_slice(&digest(&parts.headers, &others));
    key
}

/// Whether the client forbids cached responses.
pub(super) fn wants_fresh(headers: &HeaderMap) -> bool {
    headers.get_all(header::CACHE_CONTROL).iter().any(|value| {
        value.to_str().is_ok_and(|text| text.contains("no-cache") || text.contains("no-store"))
    })
}

/// Headers that only name a request in the logs of the origin.
const NAMING_HEADERS: [&str; 12] = [
    "traceparent",
    "tracestate",
    "uber-trace-id",
    "x-b3-flags",
    "x-b3-parentspanid",
    "x-b3-sampled",
    "x-b3-spanid",
    "x-b3-traceid",
    "x-dashboard-uid",
    "x-panel-id",
    "x-query-group-id",
    "x-request-id",
];
const NAMING_BYTES_MAX: usize = 256;

/// The headers of a request whose answer other clients may receive: those of its key, and short
/// names for the origin's logs. An origin may refuse a request because of any other header.
pub(super) fn shared_headers(headers: &HeaderMap) -> HeaderMap {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_:=,".contains(byte);
    let mut shared = HeaderMap::new();
    for (name, value) in headers {
        let is_name = NAMING_HEADERS.contains(&name.as_str())
            && !shared.contains_key(name)
            && value.len() <= NAMING_BYTES_MAX
            && value.as_bytes().iter().all(is_plain);
        if is_name || is_in_key(name.as_str()) {
            shared.append(name, value.clone());
        }
    }
    shared
}

/// Whether the key of a request contains the header `name`, in lower case.
pub(super) fn is_in_key(name: &str) -> bool {
    let has_prefix = NEUTRAL_HEADER_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    !has_prefix && !NEUTRAL_HEADERS.contains(&name)
}

/// A digest of all headers that may select another answer, and of `others`. `headers` are those
/// that the origin receives.
pub(super) fn digest(headers: &HeaderMap, others: &[(&str, &[u8])]) -> [u8; 32] {
    let mut named: Vec<(&str, &[u8])> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .filter(|(name, _)| is_in_key(name))
        .collect();
    // Stable: a server may use the first or the last of several values.
    named.sort_by_key(|(name, _)| *name);
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    // Without their number, `others` with the name of a header would count as that header.
    context.update(&(named.len() as u64).to_le_bytes());
    for (name, value) in named.into_iter().chain(others.iter().copied()) {
        for text in [name.as_bytes(), value] {
            context.update(&(text.len() as u64).to_le_bytes());
            context.update(text);
        }
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    const NOW: Timestamp = 10_000_000;
    const SETTLE_MS: i64 = 600_000;

    fn asked(query: &str, more: &[(&str, &str)], headers: &[(&str, &str)]) -> Option<RangeRequest> {
        let mut request = Request::get("http://proxy/api/v1/query_range");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let parts = request.body(()).unwrap().into_parts().0;
        let given = [("query", query), ("start", "1000"), ("end", "9999.5"), ("step", "15s")];
        let pairs = given.iter().chain(more);
        let pairs = pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        RangeRequest::new(&parts, pairs, NOW, SETTLE_MS)
    }

    #[test]
    fn only_settled_steps_are_stored() {
        for (query, settled) in [
            ("a", NOW - SETTLE_MS),
            ("rate(a[5m])", NOW - SETTLE_MS),
            ("a offset 1h", NOW - SETTLE_MS),
            ("a offset -1h", NOW - SETTLE_MS - 3_600_000),
            ("sum(a) + a @ 9000", NOW - SETTLE_MS),
        ] {
            assert_eq!(asked(query, &[], &[]).unwrap().settled, settled, "{query}");
        }
        assert_eq!(asked("a", &[], &[]).unwrap().steps, TimeRange::new(1_000_000, 9_985_000));
    }

    #[test]
    fn unsupported_queries_are_forwarded() {
        for query in
            ["a @ 9900", "a @ end()", "limitk(1, a)", "range_first(a)", "sum(", "{b=\"1\"}"]
        {
            assert!(asked(query, &[], &[]).is_none(), "{query}");
        }
        for more in [("stats", "yes"), ("limit", "3"), ("query", "b"), ("step", "15s")] {
            assert!(asked("a", &[more], &[]).is_none(), "{more:?}");
        }
        assert!(asked("a", &[], &[("cache-control", "no-cache")]).is_none());
    }

    #[test]
    fn a_key_covers_the_meaning_of_a_request_and_its_client() {
        let key = |query, more: &[_], headers: &[_]| asked(query, more, headers).unwrap().key;
        let plain = key("sum by (x) (a)", &[], &[]);
        assert_eq!(plain, key("sum(a) by(x)", &[], &[("user-agent", "g"), ("x-panel-id", "1")]));
        for other in [
            key("sum by (y) (a)", &[], &[]),
            key("sum by (x) (a)", &[("lookback_delta", "1m")], &[]),
            key("sum by (x) (a)", &[], &[("authorization", "Basic eDp5")]),
            key("sum by (x) (a)", &[], &[("x-scope-orgid", "1")]),
            key("sum by (x) (a)", &[], &[("x-forwarded-user", "u")]),
            key("sum by (x) (a)", &[], &[("x-grafana-user", "u")]),
            key("sum by (x) (a)", &[], &[("x-forwarded-for", "10.0.0.1")]),
            key("sum by (x) (a)", &[], &[("x-forwarded-host", "tenant")]),
            key("sum by (x) (a)", &[], &[("sec-user", "u")]),
            key("sum by (x) (a)", &[], &[("cookie", "session=1")]),
            key("sum by (x) (a)", &[], &[("range", "bytes=0-1")]),
            key("sum by (x) (a)", &[], &[("accept", "text/csv")]),
        ] {
            assert_ne!(plain, other);
        }
        let with_stats = asked("sum by (x) (a)", &[("stats", "all")], &[]).unwrap();
        assert_eq!(plain, with_stats.key, "the steps are the same");
        assert_ne!(plain, with_stats.flight().0, "the answer is not");
        let tenant = ("x-scope-orgid", "1");
        assert_ne!(key("a", &[tenant], &[]), key("a", &[], &[tenant]));
        let tenants = |order: [&'static str; 2]| {
            key("a", &[], &order.map(|tenant| ("x-scope-orgid", tenant)))
        };
        assert_ne!(tenants(["1", "2"]), tenants(["2", "1"]), "the first or the last may count");
        let secret = key("a", &[], &[("authorization", "Bearer hidden")]);
        assert!(!String::from_utf8_lossy(&secret).contains("hidden"));
        let secret = key("a", &[("authKey", "hidden")], &[]);
        assert!(!String::from_utf8_lossy(&secret).contains("hidden"), "was in the cache file");
        assert_ne!(secret, key("a", &[("authKey", "other")], &[]));
        assert_ne!(secret, key("a", &[("hidden", "authKey")], &[]));
    }

    #[test]
    fn a_part_is_requested_with_its_own_times() {
        let asked = asked("a", &[("timeout", "5s")], &[]).unwrap();
        let pairs = asked.pairs_of(TimeRange::new(1_015_000, 1_030_500));
        let get = |name| &pairs.iter().find(|pair| pair.0 == name).unwrap().1;
        assert_eq!((get("start").as_str(), get("end").as_str()), ("1015", "1030.500"));
        assert_eq!((get("timeout").as_str(), get("query").as_str()), ("5s", "a"));
    }
}
