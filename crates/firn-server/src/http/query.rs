//! `query` and `query_range`.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use firn_model::{Pool, QueryContext};
use firn_promql::{Expr, QueryOutput, Value, ValueType};

use crate::answer::{ApiError, JSON, Packing, Payload};
use crate::app::{App, Ready, monotonic_ns};
use crate::http::auth::Caller;
use crate::http::params::Params;
use crate::http::query_log::QuerySender;
use crate::http::roles::{Access, Methods, Routes};
use crate::http::{Shared, ready};
use crate::wire::json;
use crate::wire::query_stats::{StatsLevel, Timings};
use firndb::{QueryOptions, QueryTime};

/// The routes of this file.
pub(crate) fn routes() -> Routes {
    Routes::new().route(Access::Read, Methods::GetPost, "/api/v1/query", instant).route(
        Access::Read,
        Methods::GetPost,
        "/api/v1/query_range",
        range,
    )
}

/// A query whose parameters are checked, except for its text.
struct QueryRequest {
    time: QueryTime,
    options: QueryOptions,
    timeout: Duration,
    limit: usize,
    stats: StatsLevel,
    packing: Packing,
}

// Points per series, as in Prometheus.
const POINTS_MAX: i128 = 11_000;

/// `/api/v1/query`.
pub(crate) async fn instant(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    answer(app, request, |app, ready, params, packing| {
        // In Prometheus' order, so that the same one of several mistakes is reported.
        let limit = params.limit()?;
        let ts = params.time("time")?.unwrap_or_else(|| ready.db.now_ms());
        let timeout = timeout(app, params)?;
        let stats = stats_level(params);
        let options = options(app, params, &stats)?;
        let time = QueryTime::Instant(ts);
        Ok(QueryRequest { time, options, timeout, limit, stats, packing })
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
        let timeout = timeout(app, params)?;
        let stats = stats_level(params);
        let options = options(app, params, &stats)?;
        let time = QueryTime::Range { start, end, step_ms: step_ns / 1_000_000 };
        Ok(QueryRequest { time, options, timeout, limit, stats, packing })
    })
    .await
}

async fn answer(
    app: Shared,
    request: Request<Body>,
    check: impl FnOnce(&App, &Ready, &Params, Packing) -> Result<QueryRequest, ApiError>,
) -> Response<Body> {
    let ready = match ready(&app) {
        Ok(ready) => ready,
        Err(response) => return response,
    };
    let packing = Packing::of(request.headers());
    let user = Caller::of(&request).user;
    let sender = QuerySender::of(&request);
    let asked = match Params::read(request, ready.db.budget()).await {
        Ok(params) => check(&app, ready, &params, packing).map(|asked| (params, asked)),
        Err(error) => Err(error),
    };
    let (params, mut asked) = match asked {
        Ok(asked) => asked,
        Err(error) => return error.into_response(),
    };
    asked.options.samples_max = user.query_samples_max(asked.options.samples_max);
    let shared = Shared::clone(&app);
    let answered = ready.query(&user, asked.timeout, move |db, context| {
        let expr = expr(&params, asked.time, context)?;
        drop(params);
        let start_ns = monotonic_ns();
        let output = db.evaluate(&expr, asked.time, &asked.options, context);
        let output = output.map_err(ApiError::from);
        let timings = Timings { eval_ns: monotonic_ns().saturating_sub(start_ns) };
        if let Some(log) = &shared.query_log {
            let read = output.as_ref().map_or(0, |output| output.samples_read);
            let peak = output.as_ref().map(|output| output.samples_peak);
            let text = expr.text();
            log.push(sender.line(text, asked.time, (read, peak), (timings, context)));
        }
        let output = output?;
        shared.telemetry.samples_read.add(output.samples_read);
        encode(&output, &asked, timings, context)
    });
    match answered.await {
        Ok(payload) => payload.answer(StatusCode::OK, JSON),
        Err(error) => error.into_response(),
    }
}

/// The query, the last parameter that Prometheus checks.
fn expr(params: &Params, time: QueryTime, context: &QueryContext) -> Result<Expr, ApiError> {
    let expr = params.expr(context)?;
    let is_range = matches!(time, QueryTime::Range { .. });
    if is_range && !matches!(expr.value_type(), ValueType::Scalar | ValueType::Vector) {
        let found = expr.value_type().documented();
        let why = format!(
            "invalid expression type \"{found}\" for range query, must be Scalar or instant Vector"
        );
        return Err(ApiError::parameter("query", why));
    }
    Ok(expr)
}

/// Writes and packs the answer, on the query's thread and on its budget.
fn encode(
    output: &QueryOutput,
    asked: &QueryRequest,
    timings: Timings,
    context: &QueryContext,
) -> Result<Payload, ApiError> {
    // The evaluation has released its memory, but its output exists until it is written.
    let _output = context.budget.reserve(Pool::Query, value_bytes(&output.value))?;
    let bytes_max = json::query_answer_bytes(output) as u64;
    let mut held = context.budget.reserve(Pool::Query, bytes_max)?;
    let body = json::query_answer(output, asked.limit, asked.stats.warning(), |out| {
        asked.stats.push(output, asked.time, timings, context, out);
    });
    held.grow((body.capacity() as u64).saturating_sub(bytes_max))?;
    held.shrink(bytes_max.saturating_sub(body.capacity() as u64));
    Ok(Payload::new(body, asked.packing, Some(held)))
}

fn value_bytes(value: &Value) -> u64 {
    let bytes = match value {
        Value::Scalar { .. } => 0,
        Value::String { value, .. } => value.len(),
        Value::Vector(points) => {
            let labels = points.iter().map(|point| point.labels.as_encoded().len());
            size_of_val(points.as_slice()) + labels.sum::<usize>()
        }
        Value::Matrix(series) => {
            let points = series.iter().map(|series| {
                let histograms = series.histograms.iter().map(|point| point.histogram.heap_bytes());
                let labels = series.labels.as_encoded().len();
                size_of_val(series.floats.as_slice()) + histograms.sum::<usize>() + labels
            });
            size_of_val(series.as_slice()) + points.sum::<usize>()
        }
    };
    bytes as u64
}

fn timeout(app: &App, params: &Params) -> Result<Duration, ApiError> {
    let most = app.config.query_timeout.duration();
    let wanted = params.duration_ns("timeout")?;
    Ok(wanted.map_or(most, |ns| most.min(Duration::from_nanos(ns.max(0).unsigned_abs()))))
}

fn options(app: &App, params: &Params, stats: &StatsLevel) -> Result<QueryOptions, ApiError> {
    let lookback_ns = params.duration_ns_or_why("lookback_delta").map_err(|why| {
        ApiError::bad_data(format!("error parsing lookback delta duration: {why}"))
    })?;
    let lookback_ms = lookback_ns
        .map(|ns| ns / 1_000_000)
        .filter(|&ms| ms > 0)
        .unwrap_or(app.config.lookback.ms());
    Ok(QueryOptions {
        lookback_ms,
        samples_max: app.config.query_samples_max.0,
        counts_samples: *stats != StatsLevel::None,
        labels_max: app.config.label_limits(),
    })
}

fn stats_level(params: &Params) -> StatsLevel {
    StatsLevel::named(params.get("stats").unwrap_or_default())
}
