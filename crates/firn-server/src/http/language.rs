//! Endpoints that need no data: `format_query`, `parse_query`, and `query_exemplars` while
//! exemplars are not stored.

use std::fmt::{self, Write as _};

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use firn_model::{Error, Pool, QueryContext, Reservation, Result, Timestamp};
use firn_promql::{EvalOptions, Expr};

use crate::answer::{ApiError, JSON, Packing, Payload, no_content};
use crate::http::auth::{Access, Caller};
use crate::http::computed::computed;
use crate::http::params::{Params, refused};
use crate::http::roles::{Methods, Routes};
use crate::http::{Shared, ready};
use crate::wire::json;
use crate::wire::tree::push_tree;

/// The routes of this file.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .route(Access::Read, Methods::GetPost, "/api/v1/format_query", format_query)
        .route(Access::Read, Methods::GetPost, "/api/v1/parse_query", parse_query)
        .route(Access::Read, Methods::GetPost, "/api/v1/query_exemplars", query_exemplars)
}

// Upper bound of the output per byte of a query: a node of a tree. Lines are counted while they are
// written.
const BYTES_PER_BYTE: u64 = 256;

/// `/api/v1/format_query`: the query on as many lines as it needs.
pub(crate) async fn format_query(state: State<Shared>, request: Request<Body>) -> Response<Body> {
    let push = |expr: &Expr, context: &QueryContext, out: &mut Vec<u8>| {
        let held = context.budget.empty(Pool::Query);
        let mut lines = HeldText { text: String::new(), held, refused: None };
        match (write!(lines, "{}", expr.pretty()), lines.refused) {
            (Err(_), Some(error)) => return Err(too_long(error, expr, context)),
            _ => json::push_string(&lines.text, out),
        }
        Ok(())
    };
    answer(state, request, push).await
}

/// A text whose memory is reserved while it grows: deep queries become mostly indentation.
struct HeldText {
    text: String,
    held: Reservation,
    refused: Option<Error>,
}

impl fmt::Write for HeldText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let wanted = (self.text.len() + text.len()) as u64;
        // Twice, as the JSON text is made of it.
        if 2 * wanted > self.held.bytes()
            && let Err(error) = self.held.grow(4 * wanted - self.held.bytes())
        {
            self.refused = Some(error);
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

/// `/api/v1/parse_query`: the query's tree.
pub(crate) async fn parse_query(state: State<Shared>, request: Request<Body>) -> Response<Body> {
    let push = |expr: &Expr, _: &QueryContext, out: &mut Vec<u8>| {
        push_tree(&expr.root, out);
        Ok(())
    };
    answer(state, request, push).await
}

async fn answer(
    State(app): State<Shared>,
    request: Request<Body>,
    push: impl FnOnce(&Expr, &QueryContext, &mut Vec<u8>) -> Result<()> + Send + 'static,
) -> Response<Body> {
    computed(app, request, Params::expr, move |_, expr, context, packing| {
        let bytes_max = expr.text().len() as u64 * BYTES_PER_BYTE;
        let held = context.budget.reserve(Pool::Query, bytes_max);
        let mut held = held.map_err(|error| too_long(error, &expr, context))?;
        let mut pushed = Ok(());
        let body = json::success(&[], &[], |out| pushed = push(&expr, context, out));
        pushed?;
        held.shrink(bytes_max.saturating_sub(body.capacity() as u64));
        Ok(Payload::new(body, packing, Some(held)))
    })
    .await
}

/// Neither fewer series nor a shorter range makes the text of a query shorter.
fn too_long(error: Error, expr: &Expr, context: &QueryContext) -> Error {
    context.budget.error_of_text(error, "the text of a query", expr.text().len())
}

/// `/api/v1/query_exemplars`: always empty, but all parameters are checked.
pub(crate) async fn query_exemplars(
    State(app): State<Shared>,
    request: Request<Body>,
) -> Response<Body> {
    let ready = match ready(&app) {
        Ok(ready) => ready,
        Err(response) => return response,
    };
    let user = Caller::of(&request).user;
    let checked = match Params::read(request, ready.db.budget()).await {
        Ok(params) => {
            let timeout = app.config.query_timeout.duration();
            ready.query(&user, timeout, move |_, context| has_selectors(&params, context)).await
        }
        Err(error) => Err(error),
    };
    match checked {
        Ok(true) => {
            let body = json::success(&[], &[], |out| out.extend_from_slice(b"[]"));
            Payload::new(body, Packing::Plain, None).answer(StatusCode::OK, JSON)
        }
        Ok(false) => no_content(),
        Err(error) => error.into_response(),
    }
}

/// Whether the checked query selects anything.
fn has_selectors(params: &Params, context: &QueryContext) -> Result<bool, ApiError> {
    let start = params.time("start")?.unwrap_or(Timestamp::MIN);
    let end = params.time("end")?.unwrap_or(Timestamp::MAX);
    if end < start {
        return Err(ApiError::bad_data("end timestamp must not be before start timestamp"));
    }
    // Without the parameter's name before it, unlike everywhere else.
    let text = params.get("query").unwrap_or_default();
    let expr = firn_promql::prepare(text, context)
        .map_err(|why| refused(why, |why| ApiError::bad_data(why.to_string())))?;
    let selections = firn_promql::selections(&expr, &EvalOptions::instant(0));
    Ok(selections.map_or(true, |selections| !selections.is_empty()))
}
