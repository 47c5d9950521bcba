//! Responses that cost as much as a query: parameters are read, then all runs on a query thread
//! within a query's limits. Checking the parameters does too, because it compiles selectors.

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
pub(crate) async fn computed<T: 'static>(
    app: Shared,
    request: Request<Body>,
    check: fn(&Params, &QueryContext) -> Result<T, ApiError>,
    compute: impl FnOnce(&Db, T, &QueryContext, Packing) -> PayloadResult + Send + 'static,
) -> Response<Body> {
    let ready = match ready(&app) {
        Ok(ready) => ready,
        Err(response) => return response,
    };
    let packing = Packing::of(request.headers());
    let user = Caller::of(&request).user;
    let params = match Params::read(request, ready.db.budget()).await {
        Ok(params) => params,
        Err(error) => return error.into_response(),
    };
    let answered = ready.query(&user, app.config.query_timeout.duration(), move |db, context| {
        let asked = check(&params, context)?;
        drop(params);
        compute(db, asked, context, packing)
    });
    match answered.await {
        Ok(payload) => payload.answer(StatusCode::OK, JSON),
        Err(error) => error.into_response(),
    }
}
