//! `series`, `labels` and label values.

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use axum::response::IntoResponse;
use firn_model::{Matcher, QueryContext, Reservation, Result, TimeRange, excerpt};
use firn_yaml::quoted;

use crate::answer::{ApiError, Packing, Payload};
use crate::held_body::HeldBody;
use crate::http::Shared;
use crate::http::auth::Access;
use crate::http::computed::computed_of;
use crate::http::params::{Params, of_path};
use crate::http::roles::{Methods, Routes};
use crate::wire::json;
use firndb::Snapshot;

/// The routes of this file.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .route(Access::Read, Methods::GetPost, "/api/v1/series", series)
        .route(Access::Read, Methods::GetPost, "/api/v1/labels", label_names)
        .route(Access::Read, Methods::Get, "/api/v1/label/{name}/values", label_values)
}

/// The parameters of every listing.
struct ListingRequest {
    selectors: Vec<Vec<Matcher>>,
    range: TimeRange,
    limit: usize,
}

impl ListingRequest {
    /// One more than the limit, to detect truncation; 0 is all.
    fn limit_plus_one(&self) -> usize {
        if self.limit == 0 { 0 } else { self.limit.saturating_add(1) }
    }
}

/// `/api/v1/series`.
pub(crate) async fn series(State(app): State<Shared>, request: Request<Body>) -> Response<Body> {
    let list = |view: &Snapshot, asked: &ListingRequest, context: &QueryContext| {
        let limit = asked.limit_plus_one();
        Ok(firndb::list_series(view, &asked.selectors, asked.range, limit, context)?)
    };
    answer(app, request, check_series, list, json::push_labels, json::labels_bytes).await
}

/// `/api/v1/labels`.
pub(crate) async fn label_names(
    State(app): State<Shared>,
    request: Request<Body>,
) -> Response<Body> {
    let list = |view: &Snapshot, asked: &ListingRequest, context: &QueryContext| {
        let limit = asked.limit_plus_one();
        Ok(firndb::list_label_names(view, &asked.selectors, asked.range, limit, context)?)
    };
    let push = |name: &String, out: &mut Vec<u8>| json::push_string(name, out);
    answer(app, request, check_list, list, push, |name| json::string_bytes(name)).await
}

/// `/api/v1/label/<name>/values`.
pub(crate) async fn label_values(
    State(app): State<Shared>,
    request: Request<Body>,
) -> Response<Body> {
    let name = match of_path(request.uri().path(), 1).and_then(label_name) {
        Ok(name) => name,
        Err(error) => return error.into_response(),
    };
    // Each value is written as it is found.
    listed(app, request, check_list, move |view, asked, context, packing| {
        let mut body = HeldBody::success(context)?;
        body.push("[")?;
        let (mut count, limit) = (0, asked.limit_plus_one());
        let which = (&*asked.selectors, asked.range, limit);
        firndb::list_label_values(view, &name, which, context, &mut |value| {
            count += 1;
            if count == limit {
                return Ok(());
            }
            let out = body.room(json::string_bytes(value) + 1)?;
            if count > 1 {
                out.push(b',');
            }
            json::push_string(value, out);
            Ok(())
        })?;
        body.push("]")?;
        let warnings = match limit > 0 && count == limit {
            true => vec![json::TRUNCATED.to_owned()],
            false => Vec::new(),
        };
        Ok(body.end(&warnings, packing)?)
    })
    .await
}

/// The name of a label in a path.
fn label_name(name: Vec<u8>) -> Result<String, ApiError> {
    let invalid =
        |name: &[u8]| ApiError::bad_data(format!("invalid label name: {}", excerpt(&quoted(name))));
    let name = String::from_utf8(name).map_err(|e| invalid(e.as_bytes()))?;
    match unescape_name(&name) {
        name if name.is_empty() => Err(invalid(b"")),
        name => Ok(name),
    }
}

/// The payload of a list, or the API's error.
type ListPayload = Result<Payload, ApiError>;

/// Checks the parameters of a list.
type CheckParameters = fn(&Params, &QueryContext) -> Result<ListingRequest, ApiError>;

/// The items of a list with the reservation of their memory, or the API's error.
type ListResult<T> = Result<(Vec<T>, Reservation), ApiError>;

/// `bytes_max` bounds the size of an item in the answer.
async fn answer<T: 'static>(
    app: Shared,
    request: Request<Body>,
    check: CheckParameters,
    list: impl FnOnce(&Snapshot, &ListingRequest, &QueryContext) -> ListResult<T> + Send + 'static,
    push: fn(&T, &mut Vec<u8>),
    bytes_max: fn(&T) -> usize,
) -> Response<Body> {
    listed(app, request, check, move |view, asked, context, packing| {
        let (mut found, _held) = list(view, &asked, context)?;
        let mut warnings = Vec::new();
        if asked.limit > 0 && found.len() > asked.limit {
            found.truncate(asked.limit);
            warnings.push(json::TRUNCATED.to_owned());
        }
        let mut body = HeldBody::success(context)?;
        body.push_array(&found, |item| bytes_max(item), push)?;
        Ok(body.end(&warnings, packing)?)
    })
    .await
}

/// Responds with the list that `compute` makes of a view, on a query thread within the limits of a
/// query. While the log is replayed, the view is that of the tables, if they have the whole range.
async fn listed(
    app: Shared,
    request: Request<Body>,
    check: CheckParameters,
    compute: impl FnOnce(&Snapshot, ListingRequest, &QueryContext, Packing) -> ListPayload
    + Send
    + 'static,
) -> Response<Body> {
    computed_of(app, request, check, |source, asked: ListingRequest, context, packing| {
        let Some(view) = source.view(asked.range) else { return Ok(None) };
        compute(&view, asked, context, packing).map(Some)
    })
    .await
}

/// The parameters of the list of series.
fn check_series(params: &Params, context: &QueryContext) -> Result<ListingRequest, ApiError> {
    params.require_selector()?;
    let (limit, range) = (params.limit()?, params.range()?);
    Ok(ListingRequest { selectors: params.required_selectors(context)?, range, limit })
}

/// The parameters of lists of names and values.
fn check_list(params: &Params, context: &QueryContext) -> Result<ListingRequest, ApiError> {
    let (limit, range) = (params.limit()?, params.range()?);
    Ok(ListingRequest { selectors: params.selectors(context)?, range, limit })
}

/// Decodes `U__` escaping of names in a path: `_2e_` is `.`, `__` is `_`. Other names are returned
/// unchanged.
fn unescape_name(name: &str) -> String {
    fn unescaped(mut rest: &str) -> Option<String> {
        let mut plain = String::new();
        while let Some(at) = rest.find('_') {
            plain.push_str(rest.get(..at)?);
            let (code, after) = rest.get(at + 1..)?.split_once('_')?;
            match code {
                "" => plain.push('_'),
                // `from_str_radix` would take a sign too.
                code if code.len() <= 6 && !code.starts_with('+') => {
                    plain.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
                }
                _ => return None,
            }
            rest = after;
        }
        plain.push_str(rest);
        Some(plain)
    }
    name.strip_prefix("U__").and_then(unescaped).unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_names_are_undone() {
        let f = |name: &str, want: &str| assert_eq!(unescape_name(name), want);
        f("job", "job");
        f("U__http_2e_status", "http.status");
        f("U__a__b", "a_b");
        f("U___1f600_", "😀");
        f("U__bad_", "U__bad_");
        f("U__bad_zz_", "U__bad_zz_");
        f("U___+41_", "U___+41_");
        f("U___d800_", "U___d800_");
        f("U__", "");
    }
}
