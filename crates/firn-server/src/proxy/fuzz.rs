//! The fuzzers of the proxy; see `crate::fuzz`.

use axum::http::header::HeaderMap;
use firn_cache::{Grid, PointRef};
use firn_model::{TimeRange, Timestamp};

use super::matrix::{Envelope, Heads, Matrix};
use super::{influx, range};

pub use influx::fuzz::influx_answer;

const NOW: Timestamp = 1_700_000_000_000;
const SETTLE_MS: i64 = 60_000;

/// Parameters of range queries and of statements: the part that is requested from the origin is the
/// same query.
pub fn proxy_query(data: &[u8]) {
    let pairs: Vec<(String, String)> = form_urlencoded::parse(data).into_owned().collect();
    let parts = influx::fuzz::parts("/api/v1/query_range");
    if let Some(query) = range::RangeRequest::new(&parts, pairs.clone(), NOW, SETTLE_MS) {
        let (key, steps) = query.flight();
        let part = range::RangeRequest::new(&parts, query.pairs_of(steps), NOW, SETTLE_MS);
        let again = part.expect("a part of a query is a query").flight();
        assert_eq!((key, steps), again);
    }
    influx::fuzz::query(pairs);
}

/// An answer of Prometheus: written again, it parses to the same; so do its steps from the cache.
pub fn prometheus_answer(data: &[u8]) {
    let grid = Grid::new(0, 60_000, 1_000).expect("a grid of one second");
    let steps = TimeRange::new(0, 60_000);
    let Some((matrix, envelope)) = Matrix::parse(data, grid, steps) else { return };
    let written = matrix.write(envelope);
    let again = Matrix::parse(&written, grid, steps).expect("a written answer is an answer");
    assert_eq!((again.0.write(again.1), again.1), (written.clone(), envelope));
    let stored = matrix.encode(grid, steps, envelope, None);
    let (mut restored, mut heads) = (Matrix::default(), Heads::default());
    for point in stored.points() {
        let point = PointRef { ts: point.ts, head: point.head.as_ref(), payload: point.payload };
        restored.add(point, &mut heads).expect("a stored step is a step");
    }
    let envelope = if heads.is_empty() { Envelope::default() } else { heads.envelope() };
    if !heads.is_empty() {
        restored.stats.clone_from(&matrix.stats);
        assert_eq!(restored.write(envelope), written);
    }
}

/// Headers that select an answer.
pub(crate) fn headers(headers: &HeaderMap) {
    let _ = range::wants_fresh(headers);
    assert_eq!(range::digest(headers, &[]), range::digest(headers, &[]));
}
