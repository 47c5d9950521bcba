//! `/federate`: the newest samples for another Prometheus.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::ACCEPT;
use axum::http::{Request, Response, StatusCode};
use firn_model::{Error, Matcher, Pool, QueryContext, TimeRange};

use crate::answer::{ApiError, ApiErrorKind, Packing, Payload, text};
use crate::app::App;
use crate::http::auth::Caller;
use crate::http::params::{Params, refused, url_budget};
use crate::http::roles::{Access, Methods, Routes};
use crate::http::{Shared, ready};
use crate::wire::federation::{FederationFormat, push_samples};
use firndb::Db;

/// The routes of this file.
pub(crate) fn routes() -> Routes {
    Routes::new().route(Access::Read, Methods::Get, "/federate", federate)
}

/// `/federate`.
pub(crate) async fn federate(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let ready = match ready(&app) {
        Ok(ready) => ready,
        Err(response) => return response,
    };
    let packing = Packing::of(request.headers());
    let user = Caller::of(&request).user;
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = FederationFormat::accepted(accept.unwrap_or_default());
    // GET only, so no body is read and no budget needed.
    let params = match Params::read(request, &url_budget()).await {
        Ok(params) => params,
        Err(error) => return failed(&error),
    };
    let shared = Shared::clone(&app);
    let answered = ready.query(&user, app.config.query_timeout.duration(), move |db, context| {
        let selectors = selectors(&params, context)?;
        let samples = write(db, &shared, &selectors, format, context)?;
        Ok(Payload::new(samples.0, packing, Some(samples.1)))
    });
    match answered.await {
        Ok(payload) => payload.answer(StatusCode::OK, format.content_type()),
        Err(error) => failed(&error),
    }
}

/// The selectors. Unlike elsewhere, one may select every series.
fn selectors(params: &Params, context: &QueryContext) -> Result<Vec<Vec<Matcher>>, ApiError> {
    let parse = |text| {
        firn_promql::parse_selector(text, context)
            .map_err(|why| refused(why, |why| ApiError::bad_data(why.to_string())))
    };
    params.selector_texts()?.into_iter().map(parse).collect()
}

fn write(
    db: &Db,
    app: &App,
    selectors: &[Vec<Matcher>],
    format: FederationFormat,
    context: &QueryContext,
) -> Result<(Vec<u8>, firn_model::Reservation), Error> {
    let now = db.now_ms();
    let range = TimeRange::new(now.saturating_sub(app.config.lookback.ms()).saturating_add(1), now);
    let newest = db.newest(selectors, range, context)?;
    let mut held = context.budget.empty(Pool::Query);
    let mut body = Vec::new();
    // Families one by one, so that the reservation keeps up with the text.
    let name = |entry: &(firn_model::Labels, firn_model::Sample)| entry.0.metric_name().to_owned();
    for family in newest.chunk_by(|a, b| name(a) == name(b)) {
        push_samples(family, &app.config.external_labels.0, format, &mut body);
        held.grow((body.capacity() as u64).saturating_sub(held.bytes()))?;
    }
    body.extend_from_slice(format.end());
    Ok((body, held))
}

/// Plain text, unlike the API.
fn failed(error: &ApiError) -> Response<Body> {
    let status = match error.kind {
        ApiErrorKind::BadData => StatusCode::BAD_REQUEST,
        ApiErrorKind::TooMany => StatusCode::TOO_MANY_REQUESTS,
        ApiErrorKind::Timeout | ApiErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    text(status, format!("{}\n", error.text))
}
