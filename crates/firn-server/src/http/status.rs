//! The server's description of itself. All of it is available before the database is open.

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use firn_model::{CancelToken, Error, QueryContext};
use serde_json::{Map, Value, json};

use crate::answer::{ApiError, JSON, Packing, Payload};
use crate::app::App;
use crate::clock::clock_ms;
use crate::held_body::HeldBody;
use crate::hostname::hostname;
use crate::http::Shared;
use crate::http::auth::Access;
use crate::http::params::{Params, url_budget};
use crate::http::roles::{Methods, Routes};
use crate::wire;
use crate::wire::number::rfc3339;

/// Clients select features by this version: the Prometheus with the same language and endpoints.
const PROMETHEUS_VERSION: &str = "3.15.0";

/// The routes of this file.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .route(Access::Read, Methods::Get, "/version", version)
        .route(Access::Read, Methods::Get, "/api/v1/status/buildinfo", build_info)
        .route(Access::ReadServer, Methods::Get, "/api/v1/status/runtimeinfo", runtime_info)
        .route(Access::ReadServer, Methods::Get, "/api/v1/status/flags", flags)
        .route(Access::ReadServer, Methods::Get, "/api/v1/status/config", config)
        .route(Access::Read, Methods::Get, "/api/v1/status/walreplay", recovery)
        .route(Access::Read, Methods::Get, "/api/v1/features", features)
        .route(Access::Read, Methods::Get, "/api/v1/notifications", notifications)
}

/// Answers a GET that needs no database: parameters in, data out.
pub(crate) async fn answer(
    request: Request<Body>,
    data: impl FnOnce(&Params) -> Result<Value, ApiError>,
) -> Response<Body> {
    answer_with(request, &[], data).await
}

/// The same with warnings.
pub(crate) async fn answer_with(
    request: Request<Body>,
    warnings: &[String],
    data: impl FnOnce(&Params) -> Result<Value, ApiError>,
) -> Response<Body> {
    let packing = Packing::of(request.headers());
    // No body is read, so no budget is needed.
    let answered = match Params::read(request, &url_budget()).await {
        Ok(params) => data(&params),
        Err(error) => Err(error),
    };
    match answered {
        Ok(data) => {
            let push = |out: &mut Vec<u8>| out.extend_from_slice(data.to_string().as_bytes());
            let body = wire::json::success(warnings, &[], push);
            Payload::new(body, packing, None).answer(StatusCode::OK, JSON)
        }
        Err(error) => error.into_response(),
    }
}

/// `/version`: the build without an envelope.
async fn version(request: Request<Body>) -> Response<Body> {
    let packing = Packing::of(request.headers());
    Payload::new(build().to_string().into_bytes(), packing, None).answer(StatusCode::OK, JSON)
}

/// `/api/v1/status/buildinfo`.
async fn build_info(request: Request<Body>) -> Response<Body> {
    answer(request, |_| Ok(build())).await
}

fn build() -> Value {
    let firndb = concat!("firndb-", env!("CARGO_PKG_VERSION"));
    // Set by the build of a release. A build script that runs git would fail without a repository.
    let revision = match option_env!("FIRN_REVISION") {
        Some(commit) => format!("{firndb}-{commit}"),
        None => firndb.to_owned(),
    };
    json!({
        "version": PROMETHEUS_VERSION,
        "revision": revision,
        "branch": "firndb",
        "buildUser": "",
        "buildDate": "",
        "goVersion": "",
    })
}

/// `/api/v1/status/runtimeinfo`: threads and cores in place of Prometheus' goroutines.
async fn runtime_info(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    answer(request, |_| {
        let folder = std::env::current_dir().unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let stats = app.ready().map(|ready| ready.db.stats());
        let started = rfc3339(app.started_ms);
        let file = app.collect.as_ref().map(|collect| &collect.file);
        Ok(json!({
            "startTime": rfc3339(app.started_ms),
            "CWD": folder.to_string_lossy(),
            "hostname": hostname(),
            "serverTime": rfc3339(clock_ms()),
            "reloadConfigSuccess": file.is_none_or(|file| file.is_current()),
            "lastConfigTime": file.map_or(started, |file| rfc3339(file.current().loaded_ms)),
            "timeSeriesCount": stats.as_ref().map_or(0, |stats| stats.index.series_count),
            "corruptionCount": stats.as_ref().map_or(0, damaged_places),
            "goroutineCount": thread_count(),
            "GOMAXPROCS": cores,
            "GOMEMLIMIT": app.config.memory_bytes(),
            "GOGC": "",
            "GODEBUG": "",
            "storageRetention": app.config.storage_retention(),
        }))
    })
    .await
}

/// Damage that was found: in the log at the start, and in tables since then.
fn damaged_places(stats: &firndb::Stats) -> u64 {
    let tables: u64 = stats.tree.levels.iter().map(|level| level.damaged_count).sum();
    tables + stats.recovery.damage.len() as u64
}

fn thread_count() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// `/api/v1/status/flags`.
async fn flags(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    answer(request, |_| {
        let flags = app.config.flags(&app.listens);
        let flag = |(name, value): (&str, String)| (name.to_owned(), Value::String(value));
        Ok(Value::Object(flags.into_iter().map(flag).collect()))
    })
    .await
}

/// `/api/v1/status/config`: the configuration of Prometheus as Prometheus prints it, without
/// secrets; or the settings of this server, if there is none.
async fn config(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let packing = Packing::of(request.headers());
    if let Err(error) = Params::read(request, &url_budget()).await {
        return error.into_response();
    }
    // A configuration of megabytes takes milliseconds, and memory until its client has received it.
    let made = tokio::task::spawn_blocking(move || {
        let budget = app.ready().map_or_else(url_budget, |ready| ready.db.budget().clone());
        let file = app.collect.as_ref().map(|collect| collect.file.current());
        let yaml = file.map_or_else(|| app.config.yaml(), |file| file.config.to_yaml());
        config_payload(&yaml, &QueryContext::new(CancelToken::new(), budget), packing)
    });
    match made.await {
        Ok(Ok(payload)) => payload.answer(StatusCode::OK, JSON),
        Ok(Err(error)) => ApiError::from(error).into_response(),
        Err(_) => ApiError::from(Error::internal("writing it panicked")).into_response(),
    }
}

fn config_payload(
    yaml: &str,
    context: &QueryContext,
    packing: Packing,
) -> firn_model::Result<Payload> {
    let mut body = HeldBody::success(context)?;
    body.push(r#"{"yaml":"#)?;
    wire::json::push_string(yaml, body.room(wire::json::string_bytes(yaml))?);
    body.push("}")?;
    body.end(&[], packing)
}

/// `/api/v1/status/walreplay`: bytes of log in place of Prometheus' segments, with percent and the
/// remaining time (`null` while unknown).
async fn recovery(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let (done, total, left_ms) = app.recovery();
    let (percent, left_s) = match app.opened() {
        Some(_) => (100.0, Some(0.0)),
        None => (done as f64 * 100.0 / total.max(1) as f64, left_ms.map(|ms| ms as f64 / 1e3)),
    };
    answer(request, |_| {
        Ok(json!({
            "min": 0, "max": total, "current": done, "percent": percent, "secondsLeft": left_s,
        }))
    })
    .await
}

/// `/api/v1/notifications`: empty; Prometheus uses it for its own page.
async fn notifications(request: Request<Body>) -> Response<Body> {
    answer(request, |_| Ok(json!([]))).await
}

/// `/api/v1/features`: enabled and disabled features by category.
async fn features(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    answer(request, |_| Ok(feature_table(&app))).await
}

fn feature_table(app: &App) -> Value {
    const SYNTAX: [&str; 16] = [
        "anchored",
        "at_modifier",
        "bool",
        "by",
        "duration_expr",
        "fill",
        "group_left",
        "group_right",
        "ignoring",
        "negative_offset",
        "offset",
        "on",
        "per_query_lookback_delta",
        "smoothed",
        "subqueries",
        "without",
    ];
    // Known names of Prometheus' list that are not here.
    const NO_SYNTAX: [&str; 2] = ["delayed_name_removal", "type_and_unit_labels"];
    let on = |name: &str| (name.to_owned(), Value::Bool(true));
    let off = |name: &str| (name.to_owned(), Value::Bool(false));
    let syntax = SYNTAX.into_iter().map(on).chain(NO_SYNTAX.into_iter().map(off));
    let functions = firn_promql::Function::all().iter().map(|function| on(function.name));
    json!({
        "api": {
            "admin": app.config.enable_admin_api.is_on(),
            "exclude_alerts": true,
            "label_values_match": true,
            "lifecycle": app.config.enable_lifecycle.is_on(),
            "otlp_write_receiver": false,
            "query_warnings": true,
            "remote_write_receiver": true,
            "time_range_labels": true,
            "time_range_series": true,
        },
        "promql": syntax.collect::<Map<String, Value>>(),
        "promql_functions": functions.collect::<Map<String, Value>>(),
        "tsdb": { "exemplar_storage": false },
    })
}
