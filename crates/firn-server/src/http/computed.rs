//! Responses that cost as much as a query: parameters are read, then all runs on a query thread
//! within a query's limits. Checking the parameters does too, because it compiles selectors.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use firn_model::QueryContext;
use firndb::Db;

use crate::answer::{ApiError, JSON, Packing, Payload};
use crate::http::auth::Caller;
use crate::http::params::Params;
use crate::http::query::{Evaluator, QuerySource};
use crate::http::{Shared, unready};

/// A response's payload, or the API's error.
type PayloadResult = Result<Payload, ApiError>;

/// Responds with the JSON that `compute` makes of the parameters that `check` has parsed.
pub(crate) async fn computed<T: 'static>(
    app: Shared,
    request: Request<Body>,
    check: fn(&Params, &QueryContext) -> Result<T, ApiError>,
    compute: impl FnOnce(&Db, T, &QueryContext, Packing) -> PayloadResult + Send + 'static,
) -> Response<Body> {
    computed_of(app, request, check, |source, asked, context, packing| match source {
        Evaluator::Open(db) => compute(db, asked, context, packing).map(Some),
        Evaluator::Opening(_) => Ok(None),
    })
    .await
}

/// As [`computed`], also while the log is replayed, if `compute` returns a payload then.
pub(super) async fn computed_of<T: 'static>(
    app: Shared,
    request: Request<Body>,
    check: fn(&Params, &QueryContext) -> Result<T, ApiError>,
    compute: impl FnOnce(&Evaluator, T, &QueryContext, Packing) -> Result<Option<Payload>, ApiError>
    + Send
    + 'static,
) -> Response<Body> {
    let Some(source) = QuerySource::of(&app) else { return unready(&app) };
    let packing = Packing::of(request.headers());
    let user = Caller::of(&request).user;
    let params = match Params::read(request, source.budget()).await {
        Ok(params) => params,
        Err(error) => return error.into_response(),
    };
    let (desk, context) = source.begin(&user);
    let (desk, evaluator) = (Arc::clone(desk), source.evaluator());
    let answered = desk.run(&user, app.config.query_timeout.duration(), context, move |context| {
        let asked = check(&params, context)?;
        drop(params);
        compute(&evaluator, asked, context, packing)
    });
    match answered.await {
        Ok(Some(payload)) => payload.answer(StatusCode::OK, JSON),
        Ok(None) => unready(&app),
        Err(error) => error.into_response(),
    }
}
