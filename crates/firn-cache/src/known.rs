//! Queries with kept texts, by their own text: a repeated query is answered without being parsed.

use std::collections::HashMap;
use std::sync::Arc;

use firn_model::Timestamp;

use crate::dependency::{Dependency, Span};

/// With more queries all are forgotten; those that are repeated are soon here again.
const QUERIES_MAX: usize = 1_024;
/// Longer queries are parsed each time.
const QUERY_BYTES_MAX: usize = 4 << 10;
/// Approximate memory of a query besides its texts.
const QUERY_BYTES: usize = 160;

/// The queries whose answers were kept as text.
#[derive(Debug, Default)]
pub(crate) struct KnownQueries {
    queries: HashMap<Box<str>, KnownQuery>,
    bytes: u64,
}

/// The properties of a parsed query that a lookup needs.
#[derive(Clone, Debug)]
pub(crate) struct KnownQuery {
    /// As normalised text.
    pub(crate) expression: Arc<str>,
    pub(crate) lookback_ms: i64,
    /// From a step to the first sample that it reads.
    first_ms: i64,
    /// The first sample that all steps read.
    fixed_start: Timestamp,
}

impl KnownQueries {
    /// The query with this text.
    pub(crate) fn get(&self, query: &str) -> Option<KnownQuery> {
        self.queries.get(query).cloned()
    }

    /// Adds a query with its normalised text, its lookback and its dependencies.
    pub(crate) fn add(
        &mut self,
        query: &str,
        (expression, lookback_ms, dependencies): (&str, i64, &[Dependency]),
    ) {
        let is_here = self.queries.get(query).is_some_and(|known| known.lookback_ms == lookback_ms);
        if is_here || query.len().max(expression.len()) > QUERY_BYTES_MAX {
            return;
        }
        if self.queries.len() == QUERIES_MAX {
            self.clear();
        }
        let (mut first_ms, mut fixed_start) = (i64::MAX, Timestamp::MAX);
        for dependency in dependencies {
            match dependency.span {
                Span::Relative { first_ms: first, .. } => first_ms = first_ms.min(first),
                Span::Fixed(range) => fixed_start = fixed_start.min(range.start),
            }
        }
        let known =
            KnownQuery { expression: expression.into(), lookback_ms, first_ms, fixed_start };
        if self.queries.insert(query.into(), known).is_none() {
            self.bytes += (query.len() + expression.len() + QUERY_BYTES) as u64;
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        *self = KnownQueries::default();
    }

    /// Approximate memory.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.bytes
    }
}

impl KnownQuery {
    /// The time of the first sample that steps from `start` on may read.
    pub(crate) fn needed_from(&self, start: Timestamp) -> Timestamp {
        start.saturating_add(self.first_ms).min(self.fixed_start)
    }
}
