//! A query that the cache supports: PromQL or InfluxQL.
//!
//! Its key is made of the headers that the origin receives.

use axum::http::request::Parts;
use firn_cache::Store;
use firn_model::{TimeRange, Timestamp};

use super::{influx, range};

/// Cached paths end with this; a prefix or tenant may precede it.
const RANGE_PATH: &str = "/api/v1/query_range";
const INFLUX_PATH: &str = "/query";
/// Path of Prometheus' instant queries, whose answers are not cached.
const INSTANT_PATH: &str = "/api/v1/query";

/// Memory of a point of a matrix: two slices as parsed, in a vector that grows, and its place.
const POINT_BYTES: u64 = 96;
/// Memory of a row of a table: its list of slices, or its entry and its text.
const ROW_BYTES: u64 = 160;
/// Memory of a series beside its labels: as parsed, in two maps, and its points.
const OBJECT_BYTES: u64 = 256;
/// Memory of a label, as parsed and joined: two strings with their blocks.
const LABEL_BYTES: u64 = 160;
/// Copies of an answer's text: as received, parsed, joined, and written.
const TEXT_WEIGHT: u64 = 4;

#[derive(Debug)]
pub(super) enum Question {
    Range(range::RangeRequest),
    Influx(influx::StatementRequest),
}

/// The cached part of its answer.
#[derive(Debug)]
pub(super) enum CachedAnswer {
    Range(Box<range::CachedSteps>),
    Influx(influx::CachedBuckets),
}

/// Whether requests to this path may be queries that the cache supports.
pub(super) fn is_asked_at(path: &str) -> bool {
    path.ends_with(RANGE_PATH) || (path.ends_with(INFLUX_PATH) && !path.ends_with(INSTANT_PATH))
}

impl Question {
    /// `None` if the request must be forwarded unchanged.
    pub(super) fn new(
        parts: &Parts,
        pairs: Vec<(String, String)>,
        now: Timestamp,
        settle_ms: i64,
    ) -> Option<Question> {
        if parts.uri.path().ends_with(RANGE_PATH) {
            range::RangeRequest::new(parts, pairs, now, settle_ms).map(Question::Range)
        } else {
            influx::StatementRequest::new(parts, pairs, now, settle_ms).map(Question::Influx)
        }
    }

    /// Identifies equal requests: everything that the answer depends on.
    pub(super) fn flight(&self) -> (Vec<u8>, TimeRange) {
        match self {
            Question::Range(request) => request.flight(),
            Question::Influx(request) => request.flight(),
        }
    }

    /// Estimated bytes of the cached part.
    pub(super) fn estimate_bytes(&self, store: &Store) -> u64 {
        match self {
            Question::Range(request) => store.estimate_bytes(&request.ask(u64::MAX, 0)),
            Question::Influx(request) => store.estimate_bytes(&request.ask(u64::MAX, 0)),
        }
    }

    /// Reads the cached part if it is at most `bytes_max`, and a partial hit only from `least`
    /// bytes on. Reads the cache file.
    pub(super) fn look_up(&self, store: &Store, bytes_max: u64, least: u64) -> CachedAnswer {
        match self {
            Question::Range(request) => {
                CachedAnswer::Range(Box::new(request.look_up(store, bytes_max, least)))
            }
            Question::Influx(request) => {
                CachedAnswer::Influx(request.look_up(store, bytes_max, least))
            }
        }
    }

    /// `hit`, `partial` or `miss`.
    pub(super) fn found(&self, cached: &CachedAnswer) -> &'static str {
        match (self, cached) {
            (Question::Range(request), CachedAnswer::Range(cached)) => match cached.missing {
                None => "hit",
                Some(missing) if request.is_all(missing) => "miss",
                Some(_) => "partial",
            },
            (_, CachedAnswer::Influx(cached)) => cached.found(),
            // A lookup returns the kind of its query.
            (Question::Influx(_), CachedAnswer::Range(_)) => "miss",
        }
    }

    /// All parameters, unchanged.
    pub(super) fn pairs(&self) -> &[(String, String)] {
        match self {
            Question::Range(request) => &request.pairs,
            Question::Influx(request) => &request.pairs,
        }
    }

    /// The parameters that request the missing part from the origin.
    pub(super) fn pairs_of_missing(&self, cached: &CachedAnswer) -> Vec<(String, String)> {
        match (self, cached) {
            (Question::Range(request), CachedAnswer::Range(cached)) => {
                cached.missing.map_or_else(|| request.pairs.clone(), |part| request.pairs_of(part))
            }
            (Question::Influx(request), CachedAnswer::Influx(cached)) => {
                request.pairs_of(&cached.missing)
            }
            _ => self.pairs().to_vec(),
        }
    }

    /// The answer, if nothing is missing.
    pub(super) fn write(&self, cached: &CachedAnswer) -> Vec<u8> {
        match (self, cached) {
            (Question::Influx(request), CachedAnswer::Influx(cached)) => request.write(cached),
            (_, CachedAnswer::Range(cached)) => cached.write(),
            (Question::Range(_), CachedAnswer::Influx(_)) => Vec::new(),
        }
    }

    /// Estimated memory of [`Question::join`], never much too small. Costs a scan of the answer.
    pub(super) fn join_bytes(&self, answer: &[u8]) -> u64 {
        let list_bytes = match self {
            Question::Range(_) => POINT_BYTES,
            Question::Influx(_) => ROW_BYTES,
        };
        let count = |wanted: u8| answer.iter().filter(|&&byte| byte == wanted).count() as u64;
        [
            (answer.len() as u64).saturating_mul(TEXT_WEIGHT),
            count(b'[').saturating_mul(list_bytes),
            count(b'{').saturating_mul(OBJECT_BYTES),
            count(b':').saturating_mul(LABEL_BYTES),
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    /// Estimated bytes of empty buckets that are written although they are stored nowhere: those of
    /// the cached series, and of the series in an answer for the missing part.
    pub(super) fn filled_bytes(&self, cached: &CachedAnswer, answer: &[u8]) -> u64 {
        match (self, cached) {
            (Question::Influx(request), CachedAnswer::Influx(cached)) => {
                let in_answer = answer.iter().filter(|&&byte| byte == b'{').count() as u64;
                request.filled_bytes(in_answer.saturating_add(cached.series_count()))
            }
            _ => 0,
        }
    }

    /// Stores the origin's answer for the missing part, as far as it is settled, and joins it with
    /// the cached part. `None` if the answer has an unexpected form.
    pub(super) fn join(
        &self,
        store: &Store,
        cached: CachedAnswer,
        answer: &[u8],
    ) -> Option<Vec<u8>> {
        match (self, cached) {
            (Question::Range(request), CachedAnswer::Range(cached)) => {
                let missing = cached.missing?;
                request.join(store, *cached, missing, answer)
            }
            (Question::Influx(request), CachedAnswer::Influx(cached)) => {
                request.join(store, cached, answer)
            }
            _ => None,
        }
    }
}
