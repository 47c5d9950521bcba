//! What the server says about itself.

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use firn_model::Budget;

use crate::http::answer::{ApiError, JSON, Packing, Payload, text};
use crate::http::params::Params;
use crate::http::{Shared, starting};
use crate::wire::json;
use crate::wire::number::push_u64;

/// Grafana chooses what it asks by this: the Prometheus whose features are here (left-open windows,
/// UTF-8 names, `match[]` and `limit` of the label endpoints).
const PROMETHEUS_VERSION: &str = "3.0.0";

/// The routes of this file.
pub(crate) fn routes() -> Router<Shared> {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/-/healthy", get(healthy))
        .route("/-/ready", get(ready))
        .route("/api/v1/metadata", get(metadata))
        .route("/api/v1/status/buildinfo", get(build_info))
        .route("/api/v1/status/walreplay", get(recovery))
}

/// `/metrics`.
pub(crate) async fn metrics(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let packing = Packing::of(request.headers());
    Payload::new(app.metrics().into_bytes(), packing, None)
        .answer(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8")
}

/// `/-/healthy`: the process answers.
pub(crate) async fn healthy() -> Response<Body> {
    text(StatusCode::OK, "FirnDB is healthy.\n")
}

/// `/-/ready`: the database is open.
pub(crate) async fn ready(State(app): State<Shared>) -> Response<Body> {
    match app.ready() {
        Some(_) => text(StatusCode::OK, "FirnDB is ready.\n"),
        None => text(StatusCode::SERVICE_UNAVAILABLE, starting(&app)),
    }
}

/// `/api/v1/metadata`.
pub(crate) async fn metadata(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let packing = Packing::of(request.headers());
    // GET only, so no body is read and no budget needed.
    let params = match Params::read(request, &Budget::new(0)).await {
        Ok(params) => params,
        Err(error) => return error.into_response(),
    };
    let mut limits = ["limit", "limit_per_metric"].iter().filter_map(|name| params.get(name));
    if limits.any(|text| text.parse::<i64>().is_err()) {
        return ApiError::bad_data("limit must be a number").into_response();
    }
    let limit = params.get("limit").and_then(|text| text.parse::<i64>().ok()).unwrap_or(-1);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let known = app.metadata.list(params.get("metric"), limit);
    let body = json::success(&[], &[], |out| json::push_metadata(&known, out));
    Payload::new(body, packing, None).answer(StatusCode::OK, JSON)
}

/// `/api/v1/status/buildinfo`.
pub(crate) async fn build_info() -> Response<Body> {
    let fields = [
        ("version", PROMETHEUS_VERSION),
        ("revision", concat!("firndb-", env!("CARGO_PKG_VERSION"))),
        ("branch", "firndb"),
        ("buildUser", ""),
        ("buildDate", ""),
        ("goVersion", ""),
    ];
    let body = json::success(&[], &[], |out| json::push_object(fields, out, json::push_string));
    Payload::new(body, Packing::Plain, None).answer(StatusCode::OK, JSON)
}

/// `/api/v1/status/walreplay`: answers before the database is ready. Bytes of log.
pub(crate) async fn recovery(State(app): State<Shared>) -> Response<Body> {
    let (done, total) = app.recovery();
    let fields = [("min", 0), ("max", total), ("current", done)];
    let body = json::success(&[], &[], |out| json::push_object(fields, out, push_u64));
    Payload::new(body, Packing::Plain, None).answer(StatusCode::OK, JSON)
}
