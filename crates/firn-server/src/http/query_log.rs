//! The query log: one JSON line for each evaluated query, in Prometheus' form (`query_log_file`),
//! with the user and the cost of the query beside it, or with the group of the rule.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use firn_model::{QueryContext, Timestamp, excerpt_within};
use firndb::QueryTime;
use serde_json::{Map, Value, json};

use crate::answer::ApiError;
use crate::clock::clock_ms;
use crate::http::auth::Caller;
use crate::wire::number::rfc3339;
use crate::wire::query_stats::{Timings, cost_fields, timing_fields};

/// Longer texts of queries are cut: a client may send one of megabytes again and again.
const QUERY_BYTES_MAX: usize = 16 << 10;
/// As in responses.
const ERROR_BYTES_MAX: usize = 4_096;

/// The sender of a query, for its line.
#[derive(Debug)]
pub(crate) struct QuerySender {
    caller: Caller,
    method: String,
    path: String,
}

impl QuerySender {
    pub(crate) fn of(request: &Request<Body>) -> QuerySender {
        QuerySender {
            caller: Caller::of(request),
            method: request.method().as_str().to_owned(),
            path: request.uri().path().to_owned(),
        }
    }

    /// The line of a query that has ended, with its peak of samples or its error.
    pub(crate) fn line(
        &self,
        query: &str,
        time: QueryTime,
        (samples_read, outcome): (u64, Result<u64, &ApiError>),
        (timings, context): (Timings, &QueryContext),
    ) -> Vec<u8> {
        let (start, end, step_ms) = match time {
            QueryTime::Instant(ts) => (ts, ts, 0),
            QueryTime::Range { start, end, step_ms } => (start, end, step_ms),
        };
        let at = |ts: Timestamp| Value::from(rfc3339(ts));
        let seconds = |ns: u64| Value::from(ns as f64 / 1e9);
        let timings: Map<String, Value> = timing_fields(timings, context)
            .into_iter()
            .map(|(name, ns)| (name.to_owned(), seconds(ns)))
            .collect();
        let cost: Map<String, Value> = cost_fields(samples_read, context)
            .into_iter()
            .map(|(name, count)| (name.to_owned(), Value::from(count)))
            .collect();
        let mut line = json!({
            "params": {
                "query": excerpt_within(query, QUERY_BYTES_MAX),
                "start": at(start),
                "end": at(end),
                "step": step_ms / 1_000,
            },
            "stats": { "timings": timings, "samples": { "samplesRead": samples_read } },
            "cost": cost,
            "httpRequest": {
                "clientIP": self.caller.address.map(|address| address.ip().to_string()),
                "method": self.method,
                "path": self.path,
            },
            "user": self.caller.user.name(),
            "ts": at(clock_ms()),
        });
        match outcome {
            Ok(peak) => line["stats"]["samples"]["peakSamples"] = peak.into(),
            Err(error) => line["error"] = excerpt_within(&error.text, ERROR_BYTES_MAX).into(),
        }
        line.to_string().into_bytes()
    }
}

/// The line of the query of a rule, which ran at `ts` and took `took` with the use of its result.
pub(crate) fn rule_line(
    query: &str,
    (file, group): (&str, &str),
    (ts, took): (Timestamp, Duration),
    error: Option<&str>,
) -> Vec<u8> {
    let (at, seconds) = (Value::from(rfc3339(ts)), took.as_secs_f64());
    let mut line = json!({
        "params": {
            "query": excerpt_within(query, QUERY_BYTES_MAX),
            "start": at,
            "end": at,
            "step": 0,
        },
        "stats": { "timings": { "evalTotalTime": seconds, "execTotalTime": seconds } },
        "ruleGroup": { "file": file, "name": group },
        "ts": Value::from(rfc3339(clock_ms())),
    });
    if let Some(error) = error {
        line["error"] = excerpt_within(error, ERROR_BYTES_MAX).into();
    }
    line.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use firn_model::QueryContext;

    use super::*;

    /// Before, 600 queries of 400 kB made 229 MB of log.
    #[test]
    fn long_texts_are_cut_and_marked() {
        let request = Request::get("/api/v1/query").body(Body::empty()).expect("a request");
        let (sender, context) = (QuerySender::of(&request), QueryContext::unbounded());
        let check = |text: &str, cut: bool| {
            let error = ApiError::bad_data(text.to_owned());
            let costs = (Timings { eval_ns: 1 }, &context);
            let line = sender.line(text, QueryTime::Instant(0), (0, Err(&error)), costs);
            let line: Value = serde_json::from_slice(&line).expect("JSON");
            for (found, most) in [(&line["params"]["query"], 16_500), (&line["error"], 4_200)] {
                let found = found.as_str().expect("a text");
                let is_cut = found.len() < most && found.ends_with("é... (400000 bytes)");
                assert!(if cut { is_cut } else { found == text }, "{}", found.len());
            }
        };
        check("up", false);
        check(&"é".repeat(200_000), true);
    }
}
