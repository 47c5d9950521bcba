//! Administration: deleting series, cleaning up after deletes, snapshots of the whole database. Off
//! unless `--enable-admin-api`.

use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use firn_model::{Error, ErrorKind, Result, excerpt};
use firndb::Db;
use serde_json::{Value, json};

use crate::answer::{ApiError, JSON, Packing, Payload, write_error_json};
use crate::app::App;
use crate::clock::clock_ms;
use crate::http::auth::{Access, Caller};
use crate::http::params::{Params, parse_bool};
use crate::http::roles::{Methods, Routes};
use crate::http::{Shared, client_of, ready};
use crate::wire::json as api;
use crate::{metadata_file, snapshots};

/// Operations, or selectors, of one request that the audit log names.
pub(crate) const AUDITED_COUNT_MAX: usize = 100;

/// The routes of this file.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .route(Access::Admin, Methods::PostPut, "/api/v1/admin/tsdb/delete_series", delete_series)
        .route(
            Access::Admin,
            Methods::PostPut,
            "/api/v1/admin/tsdb/clean_tombstones",
            clean_tombstones,
        )
        .route(Access::Admin, Methods::PostPut, "/api/v1/admin/tsdb/snapshot", snapshot)
}

/// `delete_series`: hides the samples of all series that match, at once and for good.
async fn delete_series(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let caller = Caller::of(&request);
    let client = client_of(request.extensions());
    let params = match params(&app, request).await {
        Ok(params) => params,
        Err(response) => return response,
    };
    let audited = params.all("match[]").take(AUDITED_COUNT_MAX);
    let audited: Vec<String> = audited.map(|text| excerpt(text).into()).collect();
    let Ok(ready) = ready(&app) else {
        return no_content(Err(Error::closed("the server is stopping")));
    };
    let timeout = app.config.query_timeout.duration();
    let deadline = tokio::time::Instant::now() + timeout;
    let asked = ready.query(&caller.user, timeout, move |_, context| {
        params.require_selector()?;
        let range = params.range()?;
        Ok((params.required_selectors(context)?, range))
    });
    let (selectors, range) = match asked.await {
        Ok(asked) => asked,
        Err(error) => return error.into_response(),
    };
    let (db, gate) = (Arc::clone(&ready.db), Arc::clone(&app.gate));
    let user = caller.user.clone();
    let deleted = ready.transact(&user, deadline, move |context| {
        let deleted = match range.is_empty() {
            true => Ok(()),
            false => db.delete_within(&selectors, range, &context).map(|report| {
                let (series, range) = (report.series, (range.start, range.end));
                tracing::info!(%client, series, ?range, ?selectors, "deleted series");
            }),
        };
        // Also after the client has disconnected.
        let (count, start, end) = (selectors.len(), range.start, range.end);
        let details = json!({ "match": audited, "match_count": count, "start": start, "end": end });
        caller.audit(&gate, "series.delete", &result_text(&deleted), details);
        deleted
    });
    no_content(deleted.await)
}

/// `clean_tombstones`: responds once no table contains deleted samples.
async fn clean_tombstones(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let caller = Caller::of(&request);
    let client = client_of(request.extensions());
    if let Err(response) = params(&app, request).await {
        return response;
    }
    tracing::info!(%client, "cleaning up after deletes");
    // Not dropped with the request: work that has begun continues after the client disconnects.
    let one_at_a_time = Arc::clone(&app.admin_work).lock_owned().await;
    let gate = Arc::clone(&app.gate);
    let cleaned = run(&app, move |db| {
        let _one_at_a_time = one_at_a_time;
        let cleaned = db.clean_tombstones();
        caller.audit(&gate, "tombstones.clean", &result_text(&cleaned), Value::Null);
        cleaned
    });
    no_content(cleaned.await)
}

/// `snapshot`: a copy below `<data>/snapshots`, which `firn serve --data` opens. It contains its
/// slow tier if ours is a folder; otherwise the copy's slow tier is the key prefix
/// `snapshots/<name>` of ours.
async fn snapshot(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let caller = Caller::of(&request);
    let client = client_of(request.extensions());
    let params = match params(&app, request).await {
        Ok(params) => params,
        Err(response) => return response,
    };
    let skip_head = match params.get("skip_head").map(parse_bool) {
        None => false,
        Some(Some(skip_head)) => skip_head,
        Some(None) => {
            let text = excerpt(params.get("skip_head").unwrap_or_default());
            let why = format!("unable to parse boolean {text:?}");
            return ApiError::parameter("skip_head", why).into_response();
        }
    };
    let one_at_a_time = Arc::clone(&app.admin_work).lock_owned().await;
    let name = snapshots::name(clock_ms());
    let folder = snapshots::folder(&app.config.data).join(&name);
    let slow_tier = remote_place(app.config.slow_tier.location(), &name);
    let shared = Shared::clone(&app);
    let made = name.clone();
    let copied = run(&app, move |db| {
        let _one_at_a_time = one_at_a_time;
        let saved = match shared.config.read_only.is_on() {
            true => Ok(()),
            false => metadata_file::save(&shared.metadata, db),
        };
        let copied =
            saved.and_then(|()| copy(db, &folder, slow_tier.as_deref(), skip_head, &client));
        let details = json!({ "name": made });
        caller.audit(&shared.gate, "snapshot.take", &result_text(&copied), details);
        copied
    });
    match copied.await {
        Ok(()) => {
            let name = [("name", name.as_str())];
            let body = api::success(&[], &[], |out| api::push_object(name, out, api::push_string));
            Payload::new(body, Packing::Plain, None).answer(StatusCode::OK, JSON)
        }
        Err(error) => ApiError::from(error).into_response(),
    }
}

/// `ok` or the error, for the audit log.
pub(super) fn result_text<T>(done: &Result<T>) -> String {
    done.as_ref().map_or_else(ToString::to_string, |_| "ok".to_owned())
}

fn copy(
    db: &Db,
    folder: &Path,
    slow_tier: Option<&str>,
    skip_head: bool,
    client: &str,
) -> Result<()> {
    let copied = db.copy_to(folder, slow_tier, skip_head);
    // The server has chosen the folder, so no request is wrong.
    let report = copied.map_err(|error| match error.kind() {
        ErrorKind::Invalid => Error::unavailable(error.to_string()),
        _ => error,
    })?;
    let (folder, slow_tier) = (folder.display(), slow_tier.unwrap_or("in the folder"));
    tracing::info!(%client, %folder, %slow_tier, ?report, "made a snapshot");
    Ok(())
}

/// The parameters, or the answer when the API is off, the database not open, or they are bad.
async fn params(app: &App, request: Request<Body>) -> Result<Params, Response<Body>> {
    if !app.config.enable_admin_api.is_on() {
        // Prometheus' clients expect status 500 and this type.
        let body = api::failure("unavailable", "admin APIs disabled");
        let payload = Payload::new(body, Packing::Plain, None);
        return Err(payload.answer(StatusCode::INTERNAL_SERVER_ERROR, JSON));
    }
    let ready = ready(app)?;
    Params::read(request, ready.db.budget()).await.map_err(ApiError::into_response)
}

/// Runs `job` on a thread for long writes.
async fn run(app: &App, job: impl FnOnce(&Db) -> Result<()> + Send + 'static) -> Result<()> {
    let Some(ready) = app.ready() else {
        return Err(Error::closed("the server is stopping"));
    };
    let db = Arc::clone(&ready.db);
    ready.write_long(move || job(&db)).await?
}

/// 204, or the error as for a write: the client may retry after a failure of the log device.
fn no_content(done: Result<()>) -> Response<Body> {
    match done {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        // A delete that selects more than a query may.
        Err(error) if *error.kind() == ErrorKind::TooLarge => ApiError::from(error).into_response(),
        Err(error) => write_error_json(&error),
    }
}

/// The object store prefix of the snapshot's slow tier; `None` for a folder.
fn remote_place(slow_tier: &str, name: &str) -> Option<String> {
    let is_remote = slow_tier.contains("://") && !slow_tier.starts_with("file://");
    is_remote.then(|| format!("{}/snapshots/{name}", slow_tier.trim_end_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_slow_tiers() {
        let f = |slow_tier: &str, want: Option<&str>| {
            assert_eq!(remote_place(slow_tier, "n").as_deref(), want);
        };
        f("./firn-data/slow", None);
        f("file:///slow", None);
        f("s3://bucket/prefix/", Some("s3://bucket/prefix/snapshots/n"));
        f("gs://bucket", Some("gs://bucket/snapshots/n"));
    }

    #[test]
    fn booleans_are_those_of_go() {
        assert_eq!(["1", "t", "True"].map(parse_bool), [Some(true); 3]);
        assert_eq!(["0", "FALSE", "f"].map(parse_bool), [Some(false); 3]);
        assert_eq!(["", "yes", "tRUE"].map(parse_bool), [None; 3]);
    }
}
