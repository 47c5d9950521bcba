//! `--admin-listen` of both kinds of `firn cache`: health, readiness and metrics on an address and
//! a thread of their own.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::routing::get;
use firn_model::Result;

use crate::access::Gate;
use crate::answer::text;
use crate::config::{CacheConfig, Or};
use crate::http::auth;
use crate::http::auth::Access;
use crate::http::guard::{self, Guard};
use crate::net::{
    BUFFER_BYTES_MAX, BoundService, ConnectionLimits, ConnectionTable, HttpOptions, Service, serve,
};

/// Monitoring only.
const CONNECTIONS_MAX: usize = 64;
const METRICS_PATHS: [&str; 2] = ["/metrics", "/-/cache/metrics"];
const HTTP: HttpOptions = HttpOptions {
    open_paths: &["/-/healthy", "/-/ready", METRICS_PATHS[0], METRICS_PATHS[1]],
    explains_errors: true,
    buffer_bytes_max: BUFFER_BYTES_MAX,
};

/// The listener before it accepts connections.
#[derive(Debug)]
pub(crate) struct AdminListener {
    bound: BoundService,
    gate: Arc<Gate>,
    guard: Guard,
}

impl AdminListener {
    /// Listens if the settings name an address, with the users and TLS of `gate`.
    ///
    /// # Errors
    /// `Unavailable` when the address is taken, `Invalid` if `--require-auth` refuses it.
    pub(crate) fn bind(
        config: &CacheConfig,
        gate: &Arc<Gate>,
        on_idle: fn(),
    ) -> Result<Option<AdminListener>> {
        let Some(addresses) = config.admin_listen.get() else { return Ok(None) };
        let bound = BoundService::bind_small("firn-admin", addresses.all(), on_idle)
            .map_err(|e| e.context("--admin-listen"))?
            .with_gate(gate)?;
        let guard = Guard::new(&config.allowed_hosts, &Or::default());
        Ok(Some(AdminListener { bound, gate: Arc::clone(gate), guard }))
    }

    /// Serves the text of `metrics`.
    pub(crate) fn start(
        self,
        metrics: impl Fn() -> String + Clone + Send + Sync + 'static,
    ) -> Service {
        let mut router = Router::new()
            .route("/-/healthy", get(async || text(StatusCode::OK, "The cache is healthy.\n")))
            .route("/-/ready", get(async || text(StatusCode::OK, "The cache is ready.\n")));
        for path in METRICS_PATHS {
            let metrics = metrics.clone();
            router = router.route(path, get(async move || text(StatusCode::OK, metrics())));
        }
        let router = router
            .fallback(async || text(StatusCode::NOT_FOUND, "404 page not found\n"))
            .method_not_allowed_fallback(async || {
                text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n")
            })
            .layer(from_fn_with_state(self.gate, permit))
            .layer(from_fn_with_state(Arc::new(self.guard), guard::guard));
        let table =
            ConnectionTable::new(ConnectionLimits::within_open_files(CONNECTIONS_MAX, None));
        serve(self.bound, table, router, HTTP)
    }
}

/// Probes need no login, everything else role `read`.
async fn permit(
    State(gate): State<Arc<Gate>>,
    mut request: Request<Body>,
    next: Next,
) -> Response<Body> {
    let access = match request.uri().path() {
        "/-/healthy" | "/-/ready" => Access::Open,
        _ => Access::Read,
    };
    request.extensions_mut().insert(Arc::clone(&gate));
    let mut response = match auth::check(access, &mut request).await {
        Ok(()) => next.run(request).await,
        Err(refusal) => *refusal,
    };
    for (name, value) in &gate.policy().headers {
        response.headers_mut().insert(name, value.clone());
    }
    response
}
