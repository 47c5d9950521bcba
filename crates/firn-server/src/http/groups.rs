//! Groups over HTTP (docs/groups.md): defined, written by references or labels, listed.

use std::ops::ControlFlow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use firn_model::{Error, GroupId, Labels, Matcher, QueryContext, Result, excerpt};
use firn_yaml::quoted;
use firndb::{GroupMembers, GroupSummary};

use crate::answer::{
    ApiError, JSON, Packing, Payload, text, with_retry_after, write_error_json, write_status,
};
use crate::app::App;
use crate::held_body::HeldBody;
use crate::http::auth::{Access, Caller};
use crate::http::body::Packed;
use crate::http::computed::computed;
use crate::http::params::{Params, of_path};
use crate::http::roles::{Methods, Routes};
use crate::http::write::header;
use crate::http::{Shared, body, ready};
use crate::ingest::groups::GroupsOutcome;
use crate::ingest::{Ingest, Outcome};
use crate::tally::Protocol;
use crate::wire::groups::GroupEncoding;
use crate::wire::json;
use crate::wire::number::push_u64;

/// The routes of this file.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .route(Access::Read, Methods::Get, "/api/v1/groups", list)
        .route(Access::Write, Methods::Post, "/api/v1/groups", define)
        .route(Access::Write, Methods::Post, "/api/v1/groups/write", write)
        .route(Access::Read, Methods::Get, "/api/v1/groups/{group}", show)
}

const PROTOBUF: &str = "application/x-protobuf";

/// `POST /api/v1/groups`.
async fn define(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    carried_out(&app, request, Ingest::define_groups).await
}

/// `POST /api/v1/groups/write`.
async fn write(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    carried_out(&app, request, Ingest::write_groups).await
}

/// Reads a body, runs `work` with it on a write thread, and responds in the body's encoding.
async fn carried_out(
    app: &Shared,
    request: Request<Body>,
    work: fn(&Ingest, GroupEncoding, &[u8]) -> Result<GroupsOutcome>,
) -> Response<Body> {
    let ready = match ready(app) {
        Ok(ready) => ready,
        Err(response) => return response,
    };
    if let Err(error) = Caller::of(&request).check_unlimited_series() {
        return write_error_json(&error);
    }
    let (parts, body) = request.into_parts();
    let (form, packed) = match form_of(&parts.headers) {
        Ok(form) => form,
        Err(why) => return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, why + "\n"),
    };
    let request_bytes_max = app.config.request_bytes_max.to_usize();
    let read = body::read_write(app, ready, &parts, body, packed).await;
    let outcome = match read {
        Ok((held, turn)) => {
            let shared = Arc::clone(app);
            let budget = ready.db.budget().clone();
            let done = ready.write_in_turn(turn, move |ingest, _| {
                let held = held.unpack(packed, request_bytes_max, &budget)?;
                shared.telemetry.written.bytes_unpacked.add(held.bytes.len() as u64);
                // Here, because no response is made to a client that disconnects.
                work(ingest, form, &held.bytes).inspect(|outcome| count(&shared, outcome))
            });
            done.await.and_then(|done| done)
        }
        Err(error) => Err(error),
    };
    match outcome {
        Ok(outcome) => answered(app, form, outcome),
        Err(error) => {
            app.telemetry.tallies.refuse(Protocol::Groups);
            failed(app, &error)
        }
    }
}

fn count(app: &App, outcome: &GroupsOutcome) {
    let refused = outcome.answer.as_ref().map(|answer| answer.refused.to_string());
    let why = outcome.error.as_ref().map(Error::to_string).or(refused);
    app.telemetry.tally(Protocol::Groups, &outcome.tally, &why.unwrap_or_default());
}

/// 200, or the values that were not written and the reasons. A retryable reason determines the
/// status.
fn answered(app: &App, form: GroupEncoding, outcome: GroupsOutcome) -> Response<Body> {
    let lenient = app.config.write_lenient.is_on();
    let Some(answer) = outcome.answer else {
        let none = || Error::internal("a request of groups has neither an answer nor an error");
        return failed(app, &outcome.error.unwrap_or_else(none));
    };
    let retry = outcome.error.filter(|e| !(lenient && Outcome::is_lasting_limit(e)));
    let status = match &retry {
        Some(error) => write_status(error),
        None if answer.refused.value_count > 0 && !lenient => StatusCode::BAD_REQUEST,
        None => StatusCode::OK,
    };
    let error = (status != StatusCode::OK).then(|| match &retry {
        Some(error) => format!("{}: {error}", answer.refused),
        None => answer.refused.to_string(),
    });
    let body = answer.encode(form, error.as_deref());
    let content_type = if form == GroupEncoding::Json { JSON } else { PROTOBUF };
    let response =
        Payload::new(body, Packing::Plain, Some(outcome.held)).answer(status, content_type);
    match retry {
        Some(error) => with_retry_after(&error, response),
        None => response,
    }
}

fn failed(app: &App, error: &Error) -> Response<Body> {
    let response = write_error_json(error);
    if response.status().is_server_error() {
        app.telemetry.log_failure("a write of groups", error);
    }
    response
}

/// The encoding and compression that the headers announce, or why they are not supported.
fn form_of(headers: &HeaderMap) -> Result<(GroupEncoding, Packed), String> {
    let packed = match header(headers, CONTENT_ENCODING).to_ascii_lowercase().as_str() {
        "" | "identity" => Packed::Plain,
        "gzip" => Packed::Gzip,
        "snappy" => Packed::Snappy,
        other => {
            let other = excerpt(other);
            return Err(format!(
                "Content-Encoding {other:?} is not supported, send gzip, snappy or none"
            ));
        }
    };
    let content_type = header(headers, CONTENT_TYPE);
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    match media_type.to_ascii_lowercase().as_str() {
        // curl's default content type.
        "" | "application/json" | "application/x-www-form-urlencoded" => {
            Ok((GroupEncoding::Json, packed))
        }
        "application/x-protobuf" | "application/protobuf" => Ok((GroupEncoding::Protobuf, packed)),
        _ => Err(format!(
            "Content-Type {:?} is not supported, send application/json or {PROTOBUF}",
            excerpt(content_type)
        )),
    }
}

/// The parameters of a list.
struct GroupListRequest {
    selectors: Vec<Vec<Matcher>>,
    with_lone: bool,
    limit: usize,
}

fn check(params: &Params, context: &QueryContext) -> Result<GroupListRequest, ApiError> {
    let with_lone = match params.get("lone") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(ApiError::parameter("lone", "expected true or false")),
    };
    let limit = params.limit()?;
    Ok(GroupListRequest { selectors: params.required_selectors(context)?, with_lone, limit })
}

/// `GET /api/v1/groups`.
async fn list(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    computed(app, request, check, |db, asked, context, packing| {
        let (mut count, mut warnings) = (0, Vec::new());
        let mut body = HeldBody::success(context)?;
        body.push("[")?;
        db.each_group(&asked.selectors, asked.with_lone, context, &mut |group| {
            if asked.limit > 0 && count == asked.limit {
                warnings.push(json::TRUNCATED.to_owned());
                return Ok(ControlFlow::Break(()));
            }
            let out = body.room(HEAD_BYTES + json::labels_bytes(&group.labels))?;
            if count > 0 {
                out.push(b',');
            }
            push_group(&group, out);
            count += 1;
            Ok(ControlFlow::Continue(()))
        })?;
        body.push("]")?;
        Ok(body.end(&warnings, packing)?)
    })
    .await
}

// The bytes of a group's fields beside its labels, with a comma, and of a member's.
const HEAD_BYTES: usize = 160;

fn push_group(group: &GroupSummary, out: &mut Vec<u8>) {
    push_head(group.group, &group.labels, group.is_lone, out);
    out.extend_from_slice(br#","members":"#);
    push_u64(group.member_count, out);
    out.extend_from_slice(br#","slots":"#);
    push_u64(u64::from(group.slot_count), out);
    out.push(b'}');
}

/// `GET /api/v1/groups/<group>`.
async fn show(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let group = match of_path(request.uri().path(), 0).and_then(|text| group_id(&text)) {
        Ok(group) => group,
        Err(error) => return error.into_response(),
    };
    computed(
        app,
        request,
        |_, _| Ok(()),
        move |db, (), context, packing| {
            let (found, _members_held) = db.group(group, context)?.unzip();
            let found = found.and_then(|found| within(&context.scope, found));
            let found = found
                .ok_or_else(|| Error::not_found(format!("group {} does not exist", group.0)))?;
            let mut body = HeldBody::success(context)?;
            let out = body.room(HEAD_BYTES + json::labels_bytes(&found.labels))?;
            push_head(group, &found.labels, found.is_lone, out);
            body.push(r#","members":"#)?;
            let bytes_max = |(_, labels): &&(_, Labels)| HEAD_BYTES + json::labels_bytes(labels);
            body.push_array(&found.members, bytes_max, |(slot, labels), out| {
                out.extend_from_slice(br#"{"slot":"#);
                push_u64(u64::from(slot.0), out);
                out.extend_from_slice(br#","labels":"#);
                json::push_labels(labels, out);
                out.push(b'}');
            })?;
            body.push("}")?;
            Ok(body.end(&[], packing)?)
        },
    )
    .await
}

/// The id of a group in a path.
fn group_id(text: &[u8]) -> Result<GroupId, ApiError> {
    let id = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    let invalid = || format!("invalid group id: expected a number, got {}", excerpt(&quoted(text)));
    id.map(GroupId).ok_or_else(|| ApiError::bad_data(invalid()))
}

/// The members in the scope of a user; `None` without any.
fn within(scope: &[Matcher], mut found: GroupMembers) -> Option<GroupMembers> {
    if scope.is_empty() {
        return Some(found);
    }
    let GroupMembers { labels: shared, members, .. } = &mut found;
    members.retain(|(_, own)| {
        let value = |name: &str| own.get(name).or_else(|| shared.get(name)).unwrap_or_default();
        scope.iter().all(|matcher| matcher.matches(value(matcher.name())))
    });
    (!found.members.is_empty()).then_some(found)
}

fn push_head(group: GroupId, labels: &Labels, is_lone: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"group":"#);
    push_u64(group.0, out);
    out.extend_from_slice(br#","labels":"#);
    json::push_labels(labels, out);
    out.extend_from_slice(if is_lone { br#","lone":true"# } else { br#","lone":false"# });
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn headers_choose_form_and_packing() {
        let f = |content_type: &'static str, encoding: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
            form_of(&headers)
        };
        assert_eq!(form_of(&HeaderMap::new()), Ok((GroupEncoding::Json, Packed::Plain)));
        assert_eq!(
            f("application/json; charset=utf-8", "gzip"),
            Ok((GroupEncoding::Json, Packed::Gzip))
        );
        assert_eq!(
            f("application/x-protobuf", "Snappy"),
            Ok((GroupEncoding::Protobuf, Packed::Snappy))
        );
        assert!(f("text/csv", "").unwrap_err().contains("text/csv"));
        assert!(f("", "br").unwrap_err().contains("\"br\""));
    }
}
