//! Responses that cost as much as a query: parameters are checked immediately, the rest runs on a
//! query thread within a query's limits.

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use firn_model::QueryContext;
use firndb::Db;

use crate::answer::{ApiError, JSON, Packing, Payload};
use crate::http::auth::Caller;
use crate::http::params::Params;
use crate::http::{Shared, ready};

/// A response's payload, or the API's error.
type PayloadResult = Result<Payload, ApiError>;

/// Responds with the JSON that `compute` makes of the parameters that `check` has parsed.
pub(crate) async fn computed<T: Send + 'static>(
    app: Shared,
    request: Request<Body>,
    check: fn(&Params) -> Result<T, ApiError>,
    compute: impl FnOnce(&Db, T, &QueryContext, Packing) -> PayloadResult + Send + 'static,
) -> Response<Body> {
    let ready = match ready(&app) {
        Ok(ready) => ready,
        Err(response) => return response,
    };
    let packing = Packing::of(request.headers());
    let user = Caller::of(&request).user;
    let params = Params::read(request, ready.db.budget()).await;
    let asked = match params.and_then(|params| check(&params)) {
        Ok(asked) => asked,
        Err(error) => return error.into_response(),
    };
    let answered = ready.query(&user, app.config.query_timeout.duration(), move |db, context| {
        compute(db, asked, context, packing)
    });
    match answered.await {
        Ok(payload) => payload.answer(StatusCode::OK, JSON),
        Err(error) => error.into_response(),
    }
}
