//! A question that the cache can help with, in either of the languages that it knows.

use axum::http::request::Parts;
use firn_cache::Store;
use firn_model::{TimeRange, Timestamp};

use super::{influx, range};

/// Cached paths end with this; a prefix or tenant may precede it.
const RANGE_PATH: &str = "/api/v1/query_range";
const INFLUX_PATH: &str = "/query";
/// Prometheus' instant queries: the same end, nothing to keep.
const INSTANT_PATH: &str = "/api/v1/query";

#[derive(Debug)]
pub(super) enum Question {
    Range(range::Asked),
    Influx(influx::Asked),
}

/// The cached part of its answer.
#[derive(Debug)]
pub(super) enum Known {
    Range(range::Known),
    Influx(influx::Known),
}

/// Whether requests to this path may be questions.
pub(super) fn is_asked_at(path: &str) -> bool {
    path.ends_with(RANGE_PATH) || (path.ends_with(INFLUX_PATH) && !path.ends_with(INSTANT_PATH))
}

impl Question {
    /// `None` if the request must be passed on as it is.
    pub(super) fn new(
        parts: &Parts,
        pairs: Vec<(String, String)>,
        now: Timestamp,
        settle_ms: i64,
    ) -> Option<Question> {
        if parts.uri.path().ends_with(RANGE_PATH) {
            range::Asked::new(parts, pairs, now, settle_ms).map(Question::Range)
        } else {
            influx::Asked::new(parts, pairs, now, settle_ms).map(Question::Influx)
        }
    }

    /// Identifies equal requests: everything that the answer depends on.
    pub(super) fn flight(&self) -> (Vec<u8>, TimeRange) {
        match self {
            Question::Range(asked) => asked.flight(),
            Question::Influx(asked) => asked.flight(),
        }
    }

    /// Estimated bytes of the cached part.
    pub(super) fn estimate_bytes(&self, store: &Store) -> u64 {
        match self {
            Question::Range(asked) => store.estimate_bytes(&asked.ask(u64::MAX, 0)),
            Question::Influx(asked) => store.estimate_bytes(&asked.ask(u64::MAX, 0)),
        }
    }

    /// Reads the cached part if it is at most `bytes_max`, and a partial hit only from `least`
    /// bytes on. Reads the cache file.
    pub(super) fn look_up(&self, store: &Store, bytes_max: u64, least: u64) -> Known {
        match self {
            Question::Range(asked) => Known::Range(asked.look_up(store, bytes_max, least)),
            Question::Influx(asked) => Known::Influx(asked.look_up(store, bytes_max, least)),
        }
    }

    /// `hit`, `partial` or `miss`.
    pub(super) fn found(&self, known: &Known) -> &'static str {
        match (self, known) {
            (Question::Range(asked), Known::Range(known)) => match known.missing {
                None => "hit",
                Some(missing) if asked.is_all(missing) => "miss",
                Some(_) => "partial",
            },
            (_, Known::Influx(known)) => known.found(),
            // Each kind of question looks up its own kind.
            (Question::Influx(_), Known::Range(_)) => "miss",
        }
    }

    /// All parameters as they came.
    pub(super) fn pairs(&self) -> &[(String, String)] {
        match self {
            Question::Range(asked) => &asked.pairs,
            Question::Influx(asked) => &asked.pairs,
        }
    }

    /// The parameters that request the missing part from the origin.
    pub(super) fn pairs_of_missing(&self, known: &Known) -> Vec<(String, String)> {
        match (self, known) {
            (Question::Range(asked), Known::Range(known)) => {
                known.missing.map_or_else(|| asked.pairs.clone(), |part| asked.pairs_of(part))
            }
            (Question::Influx(asked), Known::Influx(known)) => asked.pairs_of(&known.missing),
            _ => self.pairs().to_vec(),
        }
    }

    /// The answer, if nothing is missing.
    pub(super) fn write(&self, known: &Known) -> Vec<u8> {
        match (self, known) {
            (Question::Influx(asked), Known::Influx(known)) => asked.write(known),
            (_, Known::Range(known)) => known.write(),
            (Question::Range(_), Known::Influx(_)) => Vec::new(),
        }
    }

    /// Stores the origin's answer for the missing part, as far as it is settled, and joins it with
    /// the cached part. `None` if the answer has an unexpected form.
    pub(super) fn join(&self, store: &Store, known: Known, answer: &[u8]) -> Option<Vec<u8>> {
        match (self, known) {
            (Question::Range(asked), Known::Range(known)) => {
                let missing = known.missing?;
                asked.join(store, known, missing, answer)
            }
            (Question::Influx(asked), Known::Influx(known)) => asked.join(store, known, answer),
            _ => None,
        }
    }
}
