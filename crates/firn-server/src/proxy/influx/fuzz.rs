//! The fuzzers of InfluxDB's statements and answers; see `crate::fuzz`.

use axum::http::Request;
use axum::http::request::Parts;
use firn_model::TimeRange;

use super::table::{Buckets, Table};
use super::{MS_NS, StatementRequest};

/// The head of a request without headers.
pub(in crate::proxy) fn parts(path: &str) -> Parts {
    Request::get(path).body(()).expect("a path is a URI").into_parts().0
}

/// Statements: the part that is requested from the origin is the same statement.
pub(in crate::proxy) fn query(pairs: Vec<(String, String)>) {
    let new = |pairs| StatementRequest::new(&parts("/query"), pairs, 1_700_000_000_000, 60_000);
    let Some(request) = new(pairs) else { return };
    let (key, range) = request.flight();
    assert!(0 <= range.start && range.start <= range.end);
    let part = new(request.pairs_of(&[(range.start, range.end)]));
    assert_eq!(part.expect("a part of a statement is a statement").flight(), (key, range));
}

/// An answer of InfluxDB: written again, it parses to the same.
pub fn influx_answer(data: &[u8]) {
    let range = TimeRange::new(0, 60_000);
    let buckets = |fills| Buckets { range, interval_ms: 1_000, unit_ns: MS_NS, fills };
    for fills in [None, Some(&["null"][..])] {
        let buckets = buckets(fills);
        let Some(table) = Table::parse(data, &[buckets]) else { continue };
        let written = table.write(buckets);
        let again = Table::parse(&written, &[buckets]).expect("a written answer is an answer");
        assert_eq!(again.write(buckets), written);
    }
}
