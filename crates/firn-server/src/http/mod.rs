//! HTTP: routes, and the steps around every request.

mod admin;
pub(crate) mod auth;
pub(crate) mod body;
mod computed;
mod federate;
mod groups;
pub(crate) mod guard;
mod language;
pub(crate) mod lifecycle;
mod page;
pub(crate) mod params;
mod query;
pub(crate) mod query_log;
mod read;
mod relabel_steps;
pub(crate) mod roles;
mod rules;
mod series;
mod status;
mod targets;
mod transaction;
mod tsdb;
pub(crate) mod turns;
mod write;

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, State};
use axum::http::header::{ALLOW, HeaderValue, RETRY_AFTER};
use axum::http::{Extensions, Method, Request, Response, StatusCode, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};

use crate::answer::{client_gone, no_content, text};
use crate::app::{App, Ready};
use crate::http::auth::Access;
use crate::http::roles::{Methods, Routes};
use crate::net::{BUFFER_BYTES_MAX, ClientAddress, HttpOptions};
use crate::threads::on_network_thread;

pub(crate) const API: &str = "/api/v1/";

pub(crate) type Shared = Arc<App>;

/// The routes of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Face {
    /// All of them.
    Whole,
    /// Those that do not need [`Face::Admin`].
    Public,
    /// Health, metrics, the lifecycle and the admin API.
    Admin,
}

/// How requests of the database are answered.
pub(crate) const HTTP: HttpOptions = HttpOptions {
    open_paths: lifecycle::HEALTH_PATHS,
    explains_errors: true,
    buffer_bytes_max: BUFFER_BYTES_MAX,
};

/// The router of a listener: its routes, and the steps around every request.
pub(crate) fn router(app: Shared, face: Face) -> Router {
    let guard = Arc::clone(&app.guard);
    let routes = table(face)
        .into_router()
        .fallback(async move |uri: Uri| not_found(face, uri.path()))
        .method_not_allowed_fallback(async || {
            text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n")
        })
        .layer(from_fn_with_state(Arc::clone(&app), around))
        .with_state(app);
    // The router itself names the methods of a path, after all layers of its own.
    Router::new()
        .fallback_service(routes)
        .layer(from_fn(list_methods))
        .layer(from_fn_with_state(guard, guard::guard))
}

fn not_found(face: Face, path: &str) -> Response<Body> {
    let is_admin = path.starts_with("/api/v1/admin/") || matches!(path, "/-/quit" | "/-/reload");
    text(
        StatusCode::NOT_FOUND,
        match face {
            Face::Public if is_admin => "this path is served on the address of --admin-listen\n",
            _ => "404 page not found\n",
        },
    )
}

/// The routes of a listener with their access: each file names its own, one line per path.
pub(crate) fn table(face: Face) -> Routes {
    let health = lifecycle::health_routes();
    match face {
        Face::Whole => health.merge(admin_routes()).merge(public_routes()),
        Face::Public => health.merge(public_routes()),
        Face::Admin => health.merge(admin_routes()),
    }
}

fn admin_routes() -> Routes {
    admin::routes().merge(lifecycle::routes())
}

fn public_routes() -> Routes {
    Routes::new()
        .route(Access::Read, Methods::Get, "/", page::page)
        .route(Access::Read, Methods::Get, "/graph", page::graph)
        .merge(query::routes())
        .merge(read::routes())
        .merge(rules::routes())
        .merge(language::routes())
        .merge(federate::routes())
        .merge(groups::routes())
        .merge(series::routes())
        .merge(status::routes())
        .merge(targets::routes())
        .merge(transaction::routes())
        .merge(tsdb::routes())
        .merge(write::routes())
}

/// The database, or the response that reports the progress of its start.
#[expect(clippy::result_large_err, reason = "the error is the answer, and is rare")]
pub(crate) fn ready(app: &App) -> Result<&Ready, Response<Body>> {
    app.ready().ok_or_else(|| unready(app))
}

/// A client that waits for the start looks again after this long at the latest.
const RETRY_SECONDS_MAX: u64 = 60;

/// The response of a request that waits for the start: its progress, and when to retry.
pub(crate) fn unready(app: &App) -> Response<Body> {
    let (_, _, left_ms) = app.recovery();
    let mut response = text(StatusCode::SERVICE_UNAVAILABLE, starting(app));
    let seconds = left_ms.unwrap_or_default().div_ceil(1_000).clamp(1, RETRY_SECONDS_MAX);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// The address of the client, for the log.
pub(crate) fn client_of(extensions: &Extensions) -> String {
    let client = extensions.get::<ClientAddress>();
    client.map_or_else(|| "unknown".to_owned(), |client| client.0.to_string())
}

/// How far the start is.
fn starting(app: &App) -> String {
    if app.opened().is_some() {
        // The start may have ended while a query was evaluated.
        let state = if app.ready().is_some() { "has just started; retry" } else { "is stopping" };
        return format!("Service Unavailable: the server {state}\n");
    }
    let (done, total, left_ms) = app.recovery();
    let left = left_ms.map(|ms| format!(", about {}.{} s are left", ms / 1_000, ms % 1_000 / 100));
    let (left, percent) = (left.unwrap_or_default(), done.saturating_mul(100) / total.max(1));
    format!(
        "Service Unavailable: starting, {done} of {total} bytes of log are read ({percent}%){left}\n"
    )
}

/// Answers to `OPTIONS`, and counting. The guard adds the headers of a preflight.
async fn around(
    State(app): State<Shared>,
    path: Option<MatchedPath>,
    mut request: Request<Body>,
    next: Next,
) -> Response<Body> {
    request.extensions_mut().insert(Arc::clone(&app.gate));
    let unanswered = Unanswered::new(&app, path.as_ref());
    let is_api = request.uri().path().starts_with(API);
    let mut response = if is_api && request.method() == Method::OPTIONS {
        no_content()
    } else {
        on_network_thread(next.run(request)).await
    };
    for (name, value) in &app.gate.policy().headers {
        response.headers_mut().insert(name, value.clone());
    }
    unanswered.answered(response.status());
    response
}

/// A running request. If it is dropped before its response, its client has disconnected.
struct Unanswered<'a> {
    app: &'a App,
    handler: &'a str,
    started: Instant,
    status: StatusCode,
}

impl<'a> Unanswered<'a> {
    fn new(app: &'a App, path: Option<&'a MatchedPath>) -> Unanswered<'a> {
        let handler = path.map_or("other", MatchedPath::as_str);
        Unanswered { app, handler, started: Instant::now(), status: client_gone() }
    }

    fn answered(mut self, status: StatusCode) {
        self.status = status;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        self.app.telemetry.answered(self.handler, self.status.as_u16(), took);
    }
}

/// Sets `Allow` to all supported methods: the router does not list `OPTIONS`.
async fn list_methods(request: Request<Body>, next: Next) -> Response<Body> {
    let is_api = request.uri().path().starts_with(API);
    let mut response = next.run(request).await;
    if let Some(allow) = response.headers().get(ALLOW).and_then(|allow| allow.to_str().ok()) {
        let mut methods: Vec<&str> = allow.split(',').map(str::trim).collect();
        methods.extend(is_api.then_some("OPTIONS"));
        methods.sort_unstable();
        if let Ok(allow) = HeaderValue::from_str(&methods.join(", ")) {
            response.headers_mut().insert(ALLOW, allow);
        }
    }
    response
}
