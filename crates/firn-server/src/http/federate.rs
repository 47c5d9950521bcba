//! `/federate`: the newest samples for another Prometheus.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{ACCEPT, RETRY_AFTER};
use axum::http::{Request, Response, StatusCode};
use firn_model::{Error, Matcher, QueryContext, Result, TimeRange};

use crate::answer::{ApiError, ApiErrorKind, Packing, text};
use crate::app::App;
use crate::held_body::HeldBody;
use crate::http::auth::{Access, Caller};
use crate::http::params::{Params, refused};
use crate::http::roles::{Methods, Routes};
use crate::http::{Shared, ready};
use crate::wire::federation::{FederationFormat, push_samples, samples_bytes_max};
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
    let params = match Params::read(request, ready.db.budget()).await {
        Ok(params) => params,
        Err(error) => return failed(&error),
    };
    let shared = Shared::clone(&app);
    let samples_max = user.query_samples_max(app.config.query_samples_max());
    let answered = ready.query(&user, app.config.query_timeout.duration(), move |db, context| {
        let selectors = selectors(&params, context)?;
        let limited = (&*selectors, samples_max);
        Ok(write(db, &shared, limited, format, context)?.into_payload(packing))
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
    (selectors, samples_max): (&[Vec<Matcher>], u64),
    format: FederationFormat,
    context: &QueryContext,
) -> Result<HeldBody> {
    let now = db.now_ms();
    let range = TimeRange::new(now.saturating_sub(app.config.lookback.ms()).saturating_add(1), now);
    let (newest, _held) = db.newest(selectors, range, context)?;
    if newest.len() as u64 > samples_max {
        let what = format!("exceeded sample limit ({samples_max}); select fewer series");
        return Err(Error::too_large(what));
    }
    let external = &app.external_labels();
    let mut body = HeldBody::new(context);
    // Families one by one, so that the reservation keeps up with the text.
    let name = |entry: &(firn_model::Labels, firn_model::Sample)| entry.0.metric_name().to_owned();
    for family in newest.chunk_by(|a, b| name(a) == name(b)) {
        let out = body.room(samples_bytes_max(family, external, format))?;
        push_samples(family, external, format, out);
    }
    body.push(format.end())?;
    Ok(body)
}

/// Plain text, unlike the API.
fn failed(error: &ApiError) -> Response<Body> {
    let status = match error.kind {
        ApiErrorKind::BadData => StatusCode::BAD_REQUEST,
        ApiErrorKind::Execution => StatusCode::UNPROCESSABLE_ENTITY,
        ApiErrorKind::TooMany => StatusCode::TOO_MANY_REQUESTS,
        ApiErrorKind::Timeout | ApiErrorKind::Unavailable | ApiErrorKind::Busy { .. } => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut response = text(status, format!("{}\n", error.text));
    if let Some(seconds) = error.retry_after_seconds() {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}
