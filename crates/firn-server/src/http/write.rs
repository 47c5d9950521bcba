//! Endpoints for writes: remote write 1.0 and the text exposition format.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName};
use axum::http::request::Parts;
use axum::http::{Request, Response, StatusCode};
use firn_model::{Error, Result, excerpt};

use crate::answer::{text, write_error};
use crate::app::App;
use crate::http::auth::{Access, Caller};
use crate::http::body::Packed;
use crate::http::params::check_count;
use crate::http::roles::{Methods, Routes};
use crate::http::{Shared, body, ready};
use crate::ingest::Outcome;
use crate::tally::Protocol;
use crate::wire::exposition::ExtraLabels;
use crate::wire::number::parse_time;

/// The routes of this file.
pub(crate) fn routes() -> Routes {
    Routes::new().route(Access::Write, Methods::Post, "/api/v1/write", remote_write).route(
        Access::Write,
        Methods::Post,
        "/api/v1/import/prometheus",
        import_exposition,
    )
}

/// `POST /api/v1/write`: Prometheus remote write 1.0.
pub(crate) async fn remote_write(
    State(app): State<Shared>,
    request: Request<Body>,
) -> Response<Body> {
    let ready = match ready(&app) {
        Ok(ready) => ready,
        Err(response) => return response,
    };
    let new_series = Caller::of(&request).user.new_series();
    let (parts, body) = request.into_parts();
    // Checked before the body is read: a corrupt body must not turn 415 into 400.
    if let Err(why) = is_remote_write_1(&parts.headers) {
        return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, why + "\n");
    }
    let read = body::read_write(&app, ready, &parts, body, Packed::Snappy).await;
    let outcome = match read {
        Ok((held, turn)) => {
            let shared = Arc::clone(&app);
            let written = ready.write_in_turn(turn, move |ingest, scratch| {
                scratch.new_series = new_series;
                let done = ingest.remote_write(&held.bytes, scratch, &shared.metadata);
                done.inspect(|outcome| count(&shared, Protocol::RemoteWrite, outcome))
            });
            written.await.and_then(|written| written)
        }
        Err(error) => Err(error),
    };
    answer(&app, Protocol::RemoteWrite, outcome)
}

/// `POST /api/v1/import/prometheus`: text with or without timestamps, plain or gzip. In the URL:
/// `extra_label=name=value` adds a label, `timestamp` is the time of samples without one.
pub(crate) async fn import_exposition(
    State(app): State<Shared>,
    request: Request<Body>,
) -> Response<Body> {
    let ready = match ready(&app) {
        Ok(ready) => ready,
        Err(response) => return response,
    };
    let new_series = Caller::of(&request).user.new_series();
    let (parts, body) = request.into_parts();
    let packed = match header(&parts.headers, CONTENT_ENCODING).to_ascii_lowercase().as_str() {
        "" | "identity" => Packed::Plain,
        "gzip" => Packed::Gzip,
        other => {
            let other = excerpt(other);
            let why = format!("Content-Encoding {other:?} is not supported, send gzip or none\n");
            return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, why);
        }
    };
    let (extra, default_ts) = match import_options(&parts, ready.db.now_ms()) {
        Ok(options) => options,
        Err(error) => return write_error(&error),
    };
    let request_bytes_max = app.config.request_bytes_max.to_usize();
    let read = body::read_write(&app, ready, &parts, body, packed).await;
    let outcome = match read {
        Ok((held, turn)) => {
            let shared = Arc::clone(&app);
            let budget = ready.db.budget().clone();
            let written = ready.write_in_turn(turn, move |ingest, scratch| {
                let held = held.unpack(packed, request_bytes_max, &budget)?;
                scratch.new_series = new_series;
                let (text, metadata) = (&held.bytes, &shared.metadata);
                let done = ingest.exposition(text, default_ts, &extra, scratch, metadata);
                done.inspect(|outcome| count(&shared, Protocol::Import, outcome))
            });
            written.await.and_then(|written| written)
        }
        Err(error) => Err(error),
    };
    answer(&app, Protocol::Import, outcome)
}

fn import_options(parts: &Parts, now_ms: i64) -> Result<(ExtraLabels, i64)> {
    let (mut extra, mut default_ts) = (ExtraLabels::default(), now_ms);
    let query = parts.uri.query().unwrap_or_default();
    check_count(query.as_bytes())?;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match name.as_ref() {
            "extra_label" => match value.split_once('=') {
                Some((label, value)) if !label.is_empty() => {
                    extra.0.push((label.to_owned(), value.to_owned()));
                }
                _ => {
                    return Err(Error::invalid(format!(
                        "parameter extra_label is {:?}, expected name=value",
                        excerpt(&value)
                    )));
                }
            },
            // Milliseconds as in the format itself; a time of the query API is accepted too.
            "timestamp" => {
                default_ts = match value.parse() {
                    Ok(ms) => ms,
                    Err(_) => parse_time(&value).map_err(|e| e.context("parameter timestamp"))?,
                };
            }
            _ => {}
        }
    }
    Ok((extra, default_ts))
}

/// Checks that the headers announce remote write 1.0; the error is the reason.
fn is_remote_write_1(headers: &HeaderMap) -> Result<(), String> {
    let encoding = header(headers, CONTENT_ENCODING);
    if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("snappy") {
        let encoding = excerpt(encoding);
        return Err(format!("Content-Encoding {encoding:?} is not supported, send snappy"));
    }
    let content_type = header(headers, CONTENT_TYPE);
    let mut parts = content_type.split(';').map(str::trim);
    let media_type = parts.next().unwrap_or_default();
    if !media_type.is_empty() && !media_type.eq_ignore_ascii_case("application/x-protobuf") {
        let content_type = excerpt(content_type);
        return Err(format!("Content-Type {content_type:?} is not application/x-protobuf"));
    }
    // Names of parameters have no case (RFC 9110, section 5.6.6).
    let message = parts.find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.trim().eq_ignore_ascii_case("proto").then(|| value.trim().trim_matches('"'))
    });
    if let Some(other) = message.filter(|name| *name != "prometheus.WriteRequest") {
        let other = excerpt(other);
        return Err(format!("message {other:?} is not supported, send remote write 1.0"));
    }
    // A message of 2.0 has no series in the fields of 1.0: it would be stored as nothing.
    let version = header(headers, REMOTE_WRITE_VERSION);
    if version.is_empty() || version.starts_with("0.") || version.starts_with("1.") {
        return Ok(());
    }
    Err(format!("remote write {:?} is not supported, send 0.1.0 or 1.0", excerpt(version)))
}

const REMOTE_WRITE_VERSION: HeaderName =
    HeaderName::from_static("x-prometheus-remote-write-version");

pub(crate) fn header(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().trim()
}

/// Counts the samples of a request on the thread that has carried it out: a client that disconnects
/// gets no response, but its samples may be stored.
fn count(app: &App, protocol: Protocol, outcome: &Outcome) {
    match &outcome.error {
        Some(error) => app.telemetry.tally(protocol, &outcome.tally, error),
        None => app.telemetry.tally(protocol, &outcome.tally, &outcome.refused),
    }
    let written = &app.telemetry.written;
    written.bytes_unpacked.add(outcome.unpacked_bytes);
    written.exemplars_ignored.add(outcome.exemplars_ignored);
}

/// 204, or the samples that were not written and the reasons. Retryable reasons come first.
fn answer(app: &App, protocol: Protocol, outcome: Result<Outcome>) -> Response<Body> {
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            app.telemetry.tallies.refuse(protocol);
            return failed(app, &error);
        }
    };
    let lenient = app.config.write_lenient.is_on();
    if let Some(error) = outcome.error.filter(|e| !(lenient && Outcome::is_lasting_limit(e))) {
        return failed(app, &error);
    }
    if outcome.refused.is_failure() && !lenient {
        return text(StatusCode::BAD_REQUEST, format!("{}\n", outcome.refused));
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

fn failed(app: &App, error: &Error) -> Response<Body> {
    let response = write_error(error);
    if response.status().is_server_error() {
        app.telemetry.log_failure("a write", error);
    }
    response
}
