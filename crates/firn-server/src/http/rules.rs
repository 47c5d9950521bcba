//! Rules and alerts: parameters are checked; the lists are empty.

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use firn_model::excerpt;
use serde_json::json;

use crate::answer::{ApiError, JSON, Packing, Payload};
use crate::http::auth::Caller;
use crate::http::params::{Params, url_budget};
use crate::http::roles::{Access, Methods, Routes};
use crate::http::status::{answer, success};
use crate::http::{Shared, ready};

/// The routes of this file.
pub(crate) fn routes() -> Routes {
    Routes::new().route(Access::Read, Methods::Get, "/api/v1/rules", rules).route(
        Access::Read,
        Methods::Get,
        "/api/v1/alerts",
        alerts,
    )
}

/// `/api/v1/rules`.
async fn rules(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let user = Caller::of(&request).user;
    let params = match Params::read(request, &url_budget()).await {
        Ok(params) => params,
        Err(error) => return error.into_response(),
    };
    let checked = if params.all("match[]").next().is_none() {
        check(&params)
    } else {
        let ready = match ready(&app) {
            Ok(ready) => ready,
            Err(response) => return response,
        };
        let timeout = app.config.query_timeout.duration();
        let checked = ready.query(&user, timeout, move |_, context| {
            params.selectors(context)?;
            check(&params)
        });
        checked.await
    };
    match checked {
        Ok(()) => {
            let body = success(&json!({ "groups": [] }));
            Payload::new(body, Packing::Plain, None).answer(StatusCode::OK, JSON)
        }
        Err(error) => error.into_response(),
    }
}

/// `/api/v1/alerts`.
async fn alerts(request: Request<Body>) -> Response<Body> {
    answer(request, |_| Ok(json!({ "alerts": [] }))).await
}

/// Checks the other parameters. Any text is a valid `rule_name[]`, `rule_group[]` and `file[]`.
fn check(params: &Params) -> Result<(), ApiError> {
    let kind = params.get("type").unwrap_or_default().to_lowercase();
    if !["", "alert", "record"].contains(&kind.as_str()) {
        return Err(ApiError::parameter(
            "type",
            format!("not supported value {:?}", excerpt(&kind)),
        ));
    }
    if params.get("exclude_alerts").is_some_and(|text| parse_bool(text).is_none()) {
        let why = "error converting exclude_alerts: it is neither true nor false";
        return Err(ApiError::parameter("exclude_alerts", why));
    }
    let limit = params.get("group_limit");
    match limit.map(str::parse::<i32>) {
        Some(Err(_)) => {
            let why = "group_limit needs to be a valid number";
            return Err(ApiError::parameter("group_limit", why));
        }
        Some(Ok(limit)) if limit <= 0 => {
            let why = "group_limit needs to be greater than 0";
            return Err(ApiError::parameter("group_limit", why));
        }
        _ => {}
    }
    match params.get("group_next_token") {
        None => Ok(()),
        Some(_) if limit.is_none() => {
            let why = "group_limit needs to be present in order to paginate over the groups";
            Err(ApiError::parameter("group_next_token", why))
        }
        // A token names the group that comes next, and there is none.
        Some(token) => {
            let token = excerpt(token);
            let why = format!("invalid group_next_token {token:?}. were rule groups changed?");
            Err(ApiError::parameter("group_next_token", why))
        }
    }
}

/// As Go's `ParseBool`.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
