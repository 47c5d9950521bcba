//! `query` and `query_range` (specs/http-api.md 17-29).

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::on;
use firn_model::{Pool, QueryContext};
use firn_promql::{Expr, QueryOutput, ValueType};

use crate::app::{App, Ready};
use crate::http::answer::{ApiError, JSON, Packing, Payload};
use crate::http::params::Params;
use crate::http::{GET_POST, Shared, ready};
use crate::wire::json;
use firndb::{QueryOptions, QueryTime};

/// The routes of this file.
pub(crate) fn routes() -> Router<Shared> {
    Router::new()
        .route("/api/v1/query", on(GET_POST, instant))
        .route("/api/v1/query_range", on(GET_POST, range))
}

/// A query whose parameters are checked.
struct Asked {
    expr: Expr,
    time: QueryTime,
    options: QueryOptions,
    timeout: Duration,
    limit: usize,
    wants_stats: bool,
    packing: Packing,
}

/// Said to who asks for `stats`: a parameter is never ignored in silence.
const NO_STATS: &str = "the parameter stats has no effect in this version";

// Points of one series; so many fit on no screen.
const POINTS_MAX: i128 = 11_000;

/// `/api/v1/query`.
pub(crate) async fn instant(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    answer(app, request, |app, ready, params, packing| {
        let limit = params.limit()?;
        let ts = params.time("time")?.unwrap_or_else(|| ready.db.now_ms());
        let (timeout, options) = limits(app, params)?;
        let expr = parse(params)?;
        let wants_stats = wants_stats(params);
        Ok(Asked {
            expr,
            time: QueryTime::Instant(ts),
            options,
            timeout,
            limit,
            wants_stats,
            packing,
        })
    })
    .await
}

/// `/api/v1/query_range`.
pub(crate) async fn range(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    answer(app, request, |app, _, params, packing| {
        let limit = params.limit()?;
        let start = params.required_time("start")?;
        let end = params.required_time("end")?;
        if end < start {
            let why = "end timestamp must not be before start timestamp";
            return Err(ApiError::parameter("end", why));
        }
        let step_ns = match params.duration_ns("step")? {
            Some(step_ns) => step_ns,
            None => {
                return Err(ApiError::parameter("step", "cannot parse \"\" to a valid duration"));
            }
        };
        // Evaluation times are milliseconds: a shorter step would never move.
        if step_ns < 1_000_000 {
            return Err(ApiError::parameter(
                "step",
                "zero or negative query resolution step widths are not accepted. Try a positive \
                 integer",
            ));
        }
        if (i128::from(end) - i128::from(start)) * 1_000_000 / i128::from(step_ns) > POINTS_MAX {
            return Err(ApiError::bad_data(
                "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the \
                 query resolution (?step=XX)",
            ));
        }
        let (timeout, options) = limits(app, params)?;
        let expr = parse(params)?;
        if !matches!(expr.value_type(), ValueType::Scalar | ValueType::Vector) {
            let found = expr.value_type().documented();
            let why = format!(
                "invalid expression type \"{found}\" for range query, must be Scalar or instant \
                 Vector"
            );
            return Err(ApiError::parameter("query", why));
        }
        let time = QueryTime::Range { start, end, step_ms: step_ns / 1_000_000 };
        let wants_stats = wants_stats(params);
        Ok(Asked { expr, time, options, timeout, limit, wants_stats, packing })
    })
    .await
}

async fn answer(
    app: Shared,
    request: Request<Body>,
    check: impl FnOnce(&App, &Ready, &Params, Packing) -> Result<Asked, ApiError>,
) -> Response<Body> {
    let ready = match ready(&app) {
        Ok(ready) => ready,
        Err(response) => return response,
    };
    let packing = Packing::of(request.headers());
    let asked = match Params::read(request, ready.db.budget()).await {
        Ok(params) => check(&app, ready, &params, packing),
        Err(error) => Err(error),
    };
    let asked = match asked {
        Ok(asked) => asked,
        Err(error) => return error.into_response(),
    };
    let shared = Shared::clone(&app);
    let answered = ready.query(asked.timeout, move |db, context| {
        let output = db.evaluate(&asked.expr, asked.time, &asked.options, context)?;
        shared.telemetry.samples_read.add(output.samples_read);
        encode(&output, &asked, context)
    });
    match answered.await {
        Ok(payload) => payload.answer(StatusCode::OK, JSON),
        Err(error) => error.into_response(),
    }
}

/// Writes and packs the answer, on the query's thread and on the budget.
fn encode(
    output: &QueryOutput,
    asked: &Asked,
    context: &QueryContext,
) -> Result<Payload, ApiError> {
    let bytes_max = json::query_answer_bytes(output) as u64;
    let mut held = context.budget.reserve(Pool::Query, bytes_max)?;
    let notes = if asked.wants_stats { &[NO_STATS][..] } else { &[] };
    let body = json::query_answer(output, asked.limit, notes);
    held.shrink(bytes_max.saturating_sub(body.capacity() as u64));
    Ok(Payload::new(body, asked.packing, Some(held)))
}

fn limits(app: &App, params: &Params) -> Result<(Duration, QueryOptions), ApiError> {
    let config = &app.config;
    let timeout = match params.duration_ns("timeout")? {
        Some(ns) => config.query_timeout.min(Duration::from_nanos(ns.max(0).unsigned_abs())),
        None => config.query_timeout,
    };
    let lookback = params.duration_ns("lookback_delta").map_err(|e| {
        ApiError::bad_data(format!("error parsing lookback delta duration: {}", e.text))
    })?;
    let lookback_ms =
        lookback.map(|ns| ns / 1_000_000).filter(|&ms| ms > 0).unwrap_or(config.lookback_ms);
    let options = QueryOptions {
        lookback_ms,
        samples_max: config.query_samples_max,
        counts_samples: wants_stats(params),
    };
    Ok((timeout, options))
}

fn wants_stats(params: &Params) -> bool {
    params.get("stats").is_some_and(|stats| !stats.is_empty())
}

fn parse(params: &Params) -> Result<Expr, ApiError> {
    firn_promql::parse(params.get("query").unwrap_or_default())
        .map_err(|e| ApiError::parameter("query", e))
}
