//! HTTP: routes, and what happens around every request.

pub(crate) mod answer;
mod body;
mod lifecycle;
mod page;
mod params;
mod query;
mod rules;
mod series;
pub(crate) mod serve;
mod status;
mod targets;
mod tsdb;
mod write;

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use axum::http::{Method, Request, Response, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::routing::{MethodFilter, get};

use crate::app::{App, Ready};
use crate::http::answer::text;

pub(crate) type Shared = Arc<App>;

/// Endpoints that take their parameters from the URL or from a posted form.
pub(crate) const GET_POST: MethodFilter = MethodFilter::GET.or(MethodFilter::POST);

/// Every route: each file names its own, one line per path.
pub(crate) fn router(app: Shared) -> Router {
    Router::new()
        .route("/", get(page::page))
        .merge(lifecycle::routes())
        .merge(query::routes())
        .merge(rules::routes())
        .merge(series::routes())
        .merge(status::routes())
        .merge(targets::routes())
        .merge(tsdb::routes())
        .merge(write::routes())
        .fallback(async || text(StatusCode::NOT_FOUND, "404 page not found\n"))
        .method_not_allowed_fallback(async || {
            text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n")
        })
        .layer(from_fn_with_state(Arc::clone(&app), around))
        .with_state(app)
}

/// The database, or the answer that says how far its start is.
#[expect(clippy::result_large_err, reason = "the error is the answer, and is rare")]
pub(crate) fn ready(app: &App) -> Result<&Ready, Response<Body>> {
    app.ready().ok_or_else(|| text(StatusCode::SERVICE_UNAVAILABLE, starting(app)))
}

/// How far the start is.
pub(crate) fn starting(app: &App) -> String {
    if app.opened().is_some() {
        return "Service Unavailable: the server is stopping\n".to_owned();
    }
    let (done, total) = app.recovery();
    format!("Service Unavailable: starting, {done} of {total} bytes of log are read\n")
}

/// Cross-origin headers, preflight answers, and counting.
async fn around(
    State(app): State<Shared>,
    path: Option<MatchedPath>,
    request: Request<Body>,
    next: Next,
) -> Response<Body> {
    let started = Instant::now();
    let origin = request.headers().get(ORIGIN).cloned();
    let is_preflight =
        request.method() == Method::OPTIONS && request.uri().path().starts_with("/api/v1/");
    let mut response = if is_preflight {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        response
    } else {
        next.run(request).await
    };
    allow_origin(origin, response.headers_mut());
    let handler = path.as_ref().map_or("other", MatchedPath::as_str);
    app.telemetry.answered(handler, response.status().as_u16(), started.elapsed());
    response
}

fn allow_origin(origin: Option<HeaderValue>, headers: &mut HeaderMap) {
    headers.append(VARY, HeaderValue::from_static("Origin"));
    let Some(origin) = origin else { return };
    let fixed = HeaderValue::from_static;
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, fixed("GET, POST, OPTIONS"));
    headers
        .insert(ACCESS_CONTROL_ALLOW_HEADERS, fixed("Accept, Authorization, Content-Type, Origin"));
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, fixed("Date"));
}
