//! Authentication and authorisation of HTTP requests: the user of a request, and its right to call
//! the endpoint.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{Extensions, Request, Response, StatusCode};
use axum::middleware::Next;
use firn_model::excerpt;
use serde_json::{Value, json};

use crate::access::account::User;
use crate::access::login::{Credentials, LoginRefusal};
use crate::access::{AuditEntry, Gate, ip_of};
use crate::answer::{JSON, Packing, Payload, text};
use crate::net::ClientAddress;
use crate::wire::json as api;

/// The sender of a request, an extension of every request that reaches a handler.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) user: User,
    pub(crate) address: Option<SocketAddr>,
}

impl Caller {
    /// The caller of a request; one without rights if it was not authenticated.
    pub(crate) fn of(request: &Request<Body>) -> Caller {
        Caller::of_extensions(request.extensions())
    }

    /// The same by the head of a request.
    pub(crate) fn of_parts(parts: &Parts) -> Caller {
        Caller::of_extensions(&parts.extensions)
    }

    fn of_extensions(extensions: &Extensions) -> Caller {
        let caller = extensions.get::<Caller>().cloned();
        caller.unwrap_or_else(|| Caller { user: User::nobody(), address: None })
    }

    /// Checks that the user may define any number of series: requests that define them all or not
    /// at all cannot be limited.
    ///
    /// # Errors
    /// `Invalid`.
    pub(crate) fn check_unlimited_series(&self) -> firn_model::Result<()> {
        match self.user.new_series() {
            None => Ok(()),
            Some(_) => Err(firn_model::Error::invalid(
                "a user with the limit new_series_per_second writes by remote write and import only",
            )),
        }
    }

    /// Writes a line of the audit log.
    pub(crate) fn audit(&self, gate: &Gate, action: &'static str, result: &str, details: Value) {
        gate.audit(&AuditEntry {
            user: self.user.name(),
            address: self.address,
            action,
            result,
            details,
        });
    }
}

/// The access that an endpoint needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    /// Everyone, also without a login: probes.
    Open,
    /// Role `read`. Users with matchers see their series only.
    Read,
    /// Role `read`, and no matchers: the response describes the whole server.
    ReadServer,
    /// Role `write`.
    Write,
    /// Both roles: the request reads and writes.
    ReadWrite,
    /// Role `admin`.
    Admin,
}

/// Whether `user` may call an endpoint.
pub(crate) fn is_permitted(access: Access, user: &User) -> bool {
    let roles = user.roles();
    match access {
        Access::Open => true,
        Access::Read => roles.read,
        Access::ReadServer => roles.read && user.scope().is_empty(),
        Access::Write => roles.write,
        Access::ReadWrite => roles.read && roles.write,
        Access::Admin => roles.admin,
    }
}

/// Passes the request on if its user has `access`. The step around all routes has put the gate into
/// the request.
pub(crate) async fn permit(
    access: Access,
    mut request: Request<Body>,
    next: Next,
) -> Response<Body> {
    match check(access, &mut request).await {
        Ok(()) => next.run(request).await,
        Err(refusal) => *refusal,
    }
}

/// Authenticates the request, and sets the extension [`Caller`].
///
/// # Errors
/// The response, if the user may not call the endpoint.
pub(crate) async fn check(
    access: Access,
    request: &mut Request<Body>,
) -> Result<(), Box<Response<Body>>> {
    let Some(gate) = request.extensions().get::<Arc<Gate>>().cloned() else {
        tracing::error!("a request has passed no gate, which is a bug");
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        return Err(Box::new(text(status, "this request cannot be authenticated\n")));
    };
    let address = request.extensions().get::<ClientAddress>().map(|client| client.0);
    if access == Access::Open {
        let caller = Caller { user: User::nobody(), address };
        request.extensions_mut().insert(caller);
        return Ok(());
    }
    let path = request.uri().path().to_owned();
    let credentials = Credentials::of_request(request.headers());
    let policy = gate.policy();
    let user = match gate.log_in(&policy, &credentials, ip_of(address)).await {
        Ok(user) => user,
        Err(refusal) => {
            gate.audit_refusal(refusal, credentials.user_name(), address, Some(&path));
            return Err(Box::new(refused(refusal, &path)));
        }
    };
    if !is_permitted(access, &user) {
        return Err(Box::new(forbid(&gate, &Caller { user, address }, access, &path)));
    }
    request.extensions_mut().insert(Caller { user, address });
    Ok(())
}

fn refused(refusal: LoginRefusal, path: &str) -> Response<Body> {
    match refusal {
        LoginRefusal::Throttled(after) | LoginRefusal::Later(after) => {
            too_many(path, "too many requests; retry later", after)
        }
        LoginRefusal::Missing | LoginRefusal::Wrong => {
            let what = match refusal {
                LoginRefusal::Missing => "this server needs a user and password, or a token",
                _ => "wrong user, password or token",
            };
            let mut response = failure(path, StatusCode::UNAUTHORIZED, "unauthorized", what);
            let challenges = response.headers_mut();
            for challenge in
                ["Basic realm=\"FirnDB\", charset=\"UTF-8\"", "Bearer realm=\"FirnDB\""]
            {
                challenges.append(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
            }
            response
        }
    }
}

/// Status 429 with the time to wait.
fn too_many(path: &str, what: &str, after: Duration) -> Response<Body> {
    let mut response = failure(path, StatusCode::TOO_MANY_REQUESTS, "too_many_requests", what);
    let seconds = after.as_millis().div_ceil(1_000).max(1) as u64;
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    response
}

/// The response to a caller without `access`, and its line in the audit log.
pub(crate) fn forbid(gate: &Gate, caller: &Caller, access: Access, path: &str) -> Response<Body> {
    gate.forbade();
    // A user may send many, each with a long path.
    if let Some(left_out) = caller.user.begin_refusal() {
        let details = json!({ "path": excerpt(path), "left_out": left_out });
        caller.audit(gate, "request", "forbidden", details);
    }
    forbidden(&caller.user, access, path)
}

fn forbidden(user: &User, access: Access, path: &str) -> Response<Body> {
    let needs = match access {
        Access::Open => "nothing",
        Access::Read => "role read",
        Access::ReadServer => "role read and a user without matchers",
        Access::Write => "role write",
        Access::ReadWrite => "roles read and write",
        Access::Admin => "role admin",
    };
    let roles = user.roles().names().join(", ");
    let what = format!("this request needs {needs}; user {:?} has {roles}", user.name());
    failure(path, StatusCode::FORBIDDEN, "forbidden", &what)
}

fn failure(path: &str, status: StatusCode, kind: &'static str, what: &str) -> Response<Body> {
    if path.starts_with(crate::http::API) {
        return Payload::new(api::failure(kind, what), Packing::Plain, None).answer(status, JSON);
    }
    text(status, format!("{what}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_nobody_has_authenticated_has_no_rights() {
        let caller = Caller::of(&Request::new(Body::empty()));
        for access in
            [Access::Read, Access::ReadServer, Access::Write, Access::ReadWrite, Access::Admin]
        {
            assert!(!is_permitted(access, &caller.user), "{access:?}");
            assert!(is_permitted(access, &User::anyone()), "{access:?}");
        }
        assert!(!caller.user.scope()[0].matches(""), "no series is in its scope");
    }
}
