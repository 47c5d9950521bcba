//! Health, and requests that concern the process itself.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};

use firn_model::{Error, ErrorKind};
use serde_json::Value;

use crate::answer::{Packing, Payload, text};
use crate::app::App;
use crate::http::admin::result_text;
use crate::http::auth::{Access, Caller};
use crate::http::roles::{Methods, Routes};
use crate::http::{Shared, unready};

/// Paths that are answered at every limit of connections.
pub(crate) const HEALTH_PATHS: &[&str] = &["/-/healthy", "/-/ready", "/metrics"];

/// The routes of [`HEALTH_PATHS`].
pub(crate) fn health_routes() -> Routes {
    Routes::new()
        .route(Access::ReadServer, Methods::Get, "/metrics", metrics)
        .route(Access::Open, Methods::Get, "/-/healthy", healthy)
        .route(Access::Open, Methods::Get, "/-/ready", ready)
}

/// The other routes of this file.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .route(Access::Admin, Methods::PostPut, "/-/reload", reload)
        .route(Access::Admin, Methods::Get, "/-/reload", not_by_get)
        .route(Access::Admin, Methods::PostPut, "/-/quit", quit)
        .route(Access::Admin, Methods::Get, "/-/quit", not_by_get)
}

// A longer text is made on another thread: it takes milliseconds. So is one with metrics of
// targets, whose lock a new list of targets holds for longer.
const METRICS_BYTES_HERE_MAX: u64 = 256 << 10;

/// `/metrics`.
async fn metrics(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let packing = Packing::of(request.headers());
    let last_bytes = app.metrics_memory.last_bytes();
    let answer = move |app: &App| {
        let reserve = |bytes| {
            let budget = app.ready().map(|ready| ready.db.budget());
            app.metrics_memory.reserve(budget, bytes)
        };
        let mut held = reserve(last_bytes)?;
        let text = app.metrics().into_bytes();
        if held.bytes() < text.capacity() as u64 {
            held = reserve(text.len() as u64)?;
        }
        held.shrink_to(text.capacity() as u64);
        Ok(Payload::new(text, packing, Some(held)))
    };
    let payload = match app.collect.is_some() || last_bytes > METRICS_BYTES_HERE_MAX {
        false => answer(&app),
        true => tokio::task::spawn_blocking(move || answer(&app))
            .await
            .unwrap_or_else(|_| Err(Error::internal("a task panicked"))),
    };
    match payload {
        Ok(payload) => payload.answer(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8"),
        Err(error) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

/// `/-/healthy`: the process answers.
async fn healthy() -> Response<Body> {
    text(StatusCode::OK, "FirnDB is healthy.\n")
}

const FENCED: &str = "Another server has taken over the slow tier: this one refuses writes. Stop it, \
                      or see docs/tiers.md.\n";

/// `/-/ready`: the database is open, and no other server has replaced this one.
async fn ready(State(app): State<Shared>) -> Response<Body> {
    match app.ready() {
        Some(ready) if ready.db.is_fenced() => text(StatusCode::SERVICE_UNAVAILABLE, FENCED),
        Some(_) => text(StatusCode::OK, "FirnDB is ready.\n"),
        None => unready(&app),
    }
}

/// `/-/reload`: reads the web configuration and the configuration of Prometheus again, as SIGHUP
/// does. Other settings cannot change while the process runs.
async fn reload(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    if !app.config.enable_lifecycle.is_on() {
        return not_enabled();
    }
    let (caller, shared) = (Caller::of(&request), Arc::clone(&app));
    let reloaded = tokio::task::spawn_blocking(move || {
        let reloaded = shared.reload();
        caller.audit(&shared.gate, "server.reload", &result_text(&reloaded), Value::Null);
        reloaded
    });
    match reloaded.await.unwrap_or_else(|_| Err(Error::internal("the reload panicked"))) {
        Ok(()) => text(StatusCode::OK, "The configuration was read again.\n"),
        Err(error) => {
            // A file with mistakes is 500, as in Prometheus.
            let status = match error.kind() {
                ErrorKind::Busy { .. } => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            text(status, format!("failed to reload config: {error}\n"))
        }
    }
}

/// `/-/quit`: stops as after SIGTERM, this answer included.
async fn quit(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    if !app.config.enable_lifecycle.is_on() {
        return not_enabled();
    }
    let caller = Caller::of(&request);
    tracing::info!(user = caller.user.name(), address = ?caller.address, "stopping: a client requested it");
    caller.audit(&app.gate, "server.quit", "ok", Value::Null);
    app.quit.notify_one();
    text(StatusCode::OK, "Requesting termination... Goodbye!")
}

fn not_enabled() -> Response<Body> {
    text(StatusCode::FORBIDDEN, "Lifecycle API is not enabled (--enable-lifecycle).\n")
}

async fn not_by_get() -> Response<Body> {
    text(StatusCode::METHOD_NOT_ALLOWED, "Only POST or PUT requests allowed\n")
}
