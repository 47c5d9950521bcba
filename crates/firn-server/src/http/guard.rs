//! Guard: checks requests that a web page may have made a browser send, and restricts by headers
//! how a browser uses responses. The outermost layer of `firn serve` and of the proxy; the cache
//! server checks requests for its metrics with it.
//!
//! Programs (Prometheus, Grafana's backend, curl) send none of the headers that are checked except
//! `Host`. A browser always sends `Host`, sends `Origin` with every request that is not a plain
//! read, and sends `Sec-Fetch-Site` to loopback and over TLS. The rules, for users: section "Web
//! pages" of docs/operations.md.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, CONTENT_SECURITY_POLICY, HOST,
    HeaderMap, HeaderName, HeaderValue, ORIGIN, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{Method, Request, Response, StatusCode, Uri};
use axum::middleware::Next;
use firn_model::{excerpt, redacted};

use crate::answer::{JSON, Packing, Payload, text};
use crate::config::{HostNames, Or, OriginPattern, Unset};
use crate::metrics_text::{Kind, MetricsText};
use crate::net::ListenAddress;
use crate::telemetry::Counter;
use crate::wire::json;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The policy of a response that is not a page: nothing in it runs, loads or is framed.
const DATA_POLICY: &str = "default-src 'none'; frame-ancestors 'none'";
/// The policy of pages of the proxy's origin: they are its own, but no other page frames them.
const FOREIGN_POLICY: &str = "frame-ancestors 'none'";

/// The rules of the listeners of a process.
#[derive(Debug)]
pub(crate) struct Guard {
    hosts: HostNames,
    origins: Or<Unset, OriginPattern>,
    /// `Content-Security-Policy` of responses without one.
    policy: &'static str,
    refused: [Counter; GuardRule::ALL.len()],
}

/// A rule that refuses requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardRule {
    /// It names a host that is not this server's: DNS rebinding.
    Host,
    /// A page of another origin sent it.
    Origin,
}

impl GuardRule {
    const ALL: [GuardRule; 2] = [GuardRule::Host, GuardRule::Origin];

    fn name(self) -> &'static str {
        match self {
            GuardRule::Host => "host",
            GuardRule::Origin => "origin",
        }
    }

    /// The status of the response.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            GuardRule::Host => StatusCode::MISDIRECTED_REQUEST,
            GuardRule::Origin => StatusCode::FORBIDDEN,
        }
    }
}

impl Guard {
    /// The guard of a database or cache.
    pub(crate) fn new(hosts: &HostNames, origins: &Or<Unset, OriginPattern>) -> Guard {
        Guard {
            hosts: hosts.clone(),
            origins: origins.clone(),
            policy: DATA_POLICY,
            refused: Default::default(),
        }
    }

    /// The same in front of another server, whose pages may be anything.
    pub(crate) fn for_proxy(self) -> Guard {
        Guard { policy: FOREIGN_POLICY, ..self }
    }

    /// Checks the head of a request to the listener at `listen`. Returns the origin whose pages may
    /// read the response, if the request names an allowed one.
    ///
    /// # Errors
    /// The rule that refuses it, with one sentence that names the setting.
    pub(crate) fn admit(
        &self,
        listen: IpAddr,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Option<HeaderValue>, (GuardRule, String)> {
        let listen = listen.to_canonical();
        let admitted =
            self.check_host(listen, uri, headers).and_then(|()| self.check_origin(method, headers));
        if let Err((refusal, _)) = &admitted
            && let Some(counter) = self.refused.get(*refusal as usize)
        {
            counter.add(1);
        }
        admitted
    }

    /// Adds the headers that restrict a browser, and those that let pages of `origin` read the
    /// response. Other headers that permit reading are removed.
    pub(crate) fn protect(&self, origin: Option<HeaderValue>, headers: &mut HeaderMap) {
        let fixed = HeaderValue::from_static;
        headers.insert(X_CONTENT_TYPE_OPTIONS, fixed("nosniff"));
        headers.entry(X_FRAME_OPTIONS).or_insert(fixed("DENY"));
        headers.entry(CONTENT_SECURITY_POLICY).or_insert(fixed(self.policy));
        headers.entry(REFERRER_POLICY).or_insert(fixed("no-referrer"));
        // Requests by CORS, such as Grafana's in browser mode, are not subject to it.
        headers.insert(RESOURCE_POLICY, fixed("same-origin"));
        headers.append(VARY, fixed("Origin"));
        let foreign: Vec<HeaderName> = headers
            .keys()
            .filter(|name| name.as_str().starts_with("access-control-"))
            .cloned()
            .collect();
        for name in foreign {
            headers.remove(name);
        }
        let Some(origin) = origin else { return };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, fixed("GET, POST, OPTIONS"));
        headers.insert(
            ACCESS_CONTROL_ALLOW_HEADERS,
            fixed("Accept, Authorization, Content-Type, Origin"),
        );
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, fixed("Date"));
    }

    /// Its counters.
    pub(crate) fn write_text(&self, out: &mut MetricsText) {
        let name = "firn_http_guard_refused_requests_total";
        out.family(
            name,
            Kind::Counter,
            "Requests refused because a web page may have sent them, by rule.",
        );
        for (rule, counter) in GuardRule::ALL.iter().zip(&self.refused) {
            out.sample(name, &[("rule", rule.name())], counter.get() as f64);
        }
    }

    /// Whether names are restricted: on loopback always, elsewhere only with a list.
    fn checks_hosts(&self, listen: IpAddr) -> bool {
        listen.is_loopback() || !self.hosts.is_empty()
    }

    fn check_host(
        &self,
        listen: IpAddr,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), (GuardRule, String)> {
        let mut named = headers.get_all(HOST).iter();
        let host = named.next();
        let more = named.next();
        if more.is_some() {
            return Err((GuardRule::Host, "the request has more than one Host header".to_owned()));
        }
        if !self.checks_hosts(listen) {
            return Ok(());
        }
        let refuse = |host: &str| {
            let shown = redacted(host);
            let host = excerpt(&shown);
            let what = format!(
                "the host {host:?} is not allowed: this server is reached as localhost, at its \
                 address, and under the names in --allowed-hosts; add the name there"
            );
            Err((GuardRule::Host, what))
        };
        // An absolute target replaces the header.
        if let Some(authority) = uri.authority()
            && !self.is_own(listen, authority.as_str())
        {
            return refuse(authority.as_str());
        }
        // Version 1.0 may leave the header out; no browser does.
        let Some(host) = host else { return Ok(()) };
        match host.to_str() {
            Ok(text) if self.is_own(listen, text) => Ok(()),
            Ok(text) => refuse(text),
            Err(_) => refuse("?"),
        }
    }

    /// Whether `authority`, a host with or without a port, names this server.
    fn is_own(&self, listen: IpAddr, authority: &str) -> bool {
        let Ok(parsed) = authority.parse::<Authority>() else { return false };
        let host = parsed.host();
        // The parser ends an address at its bracket, whatever follows.
        let is_port = |rest: &str| {
            let port = if rest.is_empty() { Some("") } else { rest.strip_prefix(':') };
            port.is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
        };
        if !authority.strip_prefix(host).is_some_and(is_port) {
            return false;
        }
        let host = host.strip_suffix('.').unwrap_or(host);
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if let Ok(ip) = address.unwrap_or(host).parse::<IpAddr>() {
            let ip = ip.to_canonical();
            return ip.is_loopback() || ip == listen || self.hosts.has(&ip.to_string());
        }
        host.eq_ignore_ascii_case("localhost") || self.hosts.has(host)
    }

    fn check_origin(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<Option<HeaderValue>, (GuardRule, String)> {
        let origin_text = only_value(headers, &ORIGIN);
        let is_allowed = origin_text
            .filter(|text| *text != SEVERAL)
            .is_some_and(|text| self.origins.get().is_some_and(|origins| origins.0.matches(text)));
        if is_allowed {
            return Ok(headers.get(ORIGIN).cloned());
        }
        let site = FetchSite::of(headers);
        let is_read = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        let is_foreign = match (is_read, origin_text, site) {
            // A preflight requests permission.
            (true, Some(text), _) if headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) => {
                !is_same_origin(text, headers)
            }
            // A foreign page cannot read the response, but can measure it. Links to this server
            // work; frames and images do not.
            (true, _, FetchSite::Foreign) => {
                let has = |name: &HeaderName, words: &[&str]| {
                    let value = only_value(headers, name).unwrap_or_default();
                    words.iter().any(|word| value.eq_ignore_ascii_case(word))
                };
                let is_inside = ["iframe", "frame", "embed", "object", SEVERAL];
                !has(&FETCH_MODE, &["navigate"]) || has(&FETCH_DEST, &is_inside)
            }
            (true, ..) => false,
            // Pages of one site are of different origins: another port of localhost is another
            // program.
            (false, _, FetchSite::Foreign | FetchSite::Neighbor) => true,
            (false, Some(text), _) => !is_same_origin(text, headers),
            (false, None, _) => false,
        };
        match is_foreign {
            true => {
                let from = origin_text.map_or_else(
                    || "a web page of another site".to_owned(),
                    |text| format!("web pages of the origin {:?}", excerpt(text)),
                );
                let what = format!(
                    "requests of {from} are refused; to allow an origin, add it to --cors-origin"
                );
                Err((GuardRule::Origin, what))
            }
            false => Ok(None),
        }
    }
}

/// The layer: refuses, or passes the request on and adds the headers to the response.
pub(crate) async fn guard(
    State(guard): State<Arc<Guard>>,
    request: Request<Body>,
    next: Next,
) -> Response<Body> {
    // Every connection has one; loopback has the strictest rules.
    let listen = request.extensions().get::<ListenAddress>();
    let listen = listen.map_or(Ipv4Addr::LOCALHOST.into(), |listen| listen.0.ip());
    let admitted = guard.admit(listen, request.method(), request.uri(), request.headers());
    let (mut response, origin) = match admitted {
        Ok(origin) => (next.run(request).await, origin),
        Err((refusal, what)) => (refused(refusal.status(), &what, request.uri().path()), None),
    };
    guard.protect(origin, response.headers_mut());
    response
}

/// A refusal in the form of the path: JSON below `/api/`, else a line of text.
pub(crate) fn refused(status: StatusCode, what: &str, path: &str) -> Response<Body> {
    if path.contains("/api/") {
        let body = json::failure("forbidden", what);
        return Payload::new(body, Packing::Plain, None).answer(status, JSON);
    }
    text(status, format!("{what}\n"))
}

/// The page that sent a request, according to its browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FetchSite {
    /// This server, the user, or a program that is no browser.
    Own,
    /// Another origin of the same site.
    Neighbor,
    /// Another site, or a value that browsers do not send.
    Foreign,
}

impl FetchSite {
    fn of(headers: &HeaderMap) -> FetchSite {
        match only_value(headers, &FETCH_SITE).map(str::to_ascii_lowercase).as_deref() {
            None | Some("same-origin" | "none") => FetchSite::Own,
            Some("same-site") => FetchSite::Neighbor,
            Some(_) => FetchSite::Foreign,
        }
    }
}

/// The value of a header that is sent several times, or that is no text: equal to no valid one.
const SEVERAL: &str = "?";

/// The value of a header.
fn only_value<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    let is_only = values.next().is_none();
    Some(value.to_str().ok().filter(|_| is_only).map_or(SEVERAL, str::trim))
}

/// Whether `origin` is the origin under which the client reached this server. The scheme does not
/// count, because a proxy in front may have removed TLS.
fn is_same_origin(origin: &str, headers: &HeaderMap) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else { return false };
    let default_port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let plain = |text: &str| text.strip_suffix(default_port).unwrap_or(text).to_ascii_lowercase();
    plain(authority) == plain(host)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn guard_on(listen: &str, hosts: &str, origins: &str) -> (Guard, SocketAddr) {
        let guard = Guard::new(&hosts.parse().unwrap(), &origins.parse().unwrap());
        (guard, listen.parse().unwrap())
    }

    /// The rule of `guard` that refuses a request; `None` if it is admitted.
    fn refusal(
        (guard, listen): &(Guard, SocketAddr),
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
    ) -> Option<GuardRule> {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let admitted = guard.admit(listen.ip(), &parts.method, &parts.uri, &parts.headers);
        admitted.err().map(|(refusal, what)| {
            let setting = match refusal {
                GuardRule::Host => "--allowed-hosts",
                GuardRule::Origin => "--cors-origin",
            };
            assert!(what.contains(setting) || what.contains("more than one Host"), "{what}");
            refusal
        })
    }

    /// Before, the password was in the error, which clients log.
    #[test]
    fn a_refusal_repeats_no_credentials() {
        let guard = guard_on("127.0.0.1:9420", "db.example", "none").0;
        let request = Request::builder().uri("http://user:secret@evil.example/").body(()).unwrap();
        let (parts, ()) = request.into_parts();
        let listen = Ipv4Addr::LOCALHOST.into();
        let refused = guard.admit(listen, &parts.method, &parts.uri, &parts.headers);
        let (_, what) = refused.unwrap_err();
        assert!(what.contains("evil.example") && !what.contains("secret"), "{what}");
    }

    #[test]
    fn on_loopback_only_own_names_are_hosts() {
        let guard = guard_on("127.0.0.1:9420", "db.example,10.0.0.7", "none");
        for own in [
            "localhost",
            "LOCALHOST:9420",
            "localhost.:1",
            "127.0.0.1",
            "127.0.0.1:9420",
            "127.9.9.9",
            "[::1]:9420",
            "[::ffff:127.0.0.1]",
            "db.example:443",
            "DB.example.",
            "10.0.0.7:80",
        ] {
            assert_eq!(refusal(&guard, "GET", "/", &[("host", own)]), None, "{own}");
        }
        for foreign in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "0.0.0.0:9420",
            "10.0.0.8",
            "",
            "localhost@evil.example",
            "evil.example@localhost",
            "db.example.evil",
            "x",
            "[::]:9420",
            "[::1].evil.example",
            "[::1]x:9420",
            "[::1]80",
            "localhost:x",
            "[::1]80.evil.example:80",
            "2130706433",
            "127.1",
        ] {
            let found = refusal(&guard, "GET", "/", &[("host", foreign)]);
            assert_eq!(found, Some(GuardRule::Host), "{foreign:?}");
        }
        assert_eq!(refusal(&guard, "GET", "/", &[]), None, "HTTP/1.0 has none");
        let absolute = [("host", "localhost")];
        assert_eq!(
            refusal(&guard, "GET", "http://evil.example/", &absolute),
            Some(GuardRule::Host)
        );
        assert_eq!(refusal(&guard, "GET", "http://127.0.0.1:9420/", &absolute), None);
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(refusal(&guard, "GET", "/", &two), Some(GuardRule::Host));
        assert_eq!(
            refusal(&guard_on("[::1]:9420", "", "none"), "GET", "/", &[("host", "x.y")]),
            Some(GuardRule::Host)
        );
        assert_eq!(
            refusal(&guard_on("127.0.0.1:9420", "*", "none"), "GET", "/", &[("host", "x.y")]),
            None
        );
    }

    #[test]
    fn elsewhere_every_name_is_a_host_unless_they_are_listed() {
        for listen in ["0.0.0.0:9420", "192.0.2.1:9420", "[::]:9420"] {
            let name = [("host", "db.example")];
            assert_eq!(refusal(&guard_on(listen, "", "none"), "GET", "/", &name), None);
            assert_eq!(refusal(&guard_on(listen, "db.example", "none"), "GET", "/", &name), None);
            let other = guard_on(listen, "other.example", "none");
            assert_eq!(refusal(&other, "GET", "/", &name), Some(GuardRule::Host));
        }
        let listed = guard_on("192.0.2.1:9420", "db.example", "none");
        assert_eq!(refusal(&listed, "GET", "/", &[("host", "192.0.2.1:9420")]), None);
    }

    #[test]
    fn pages_of_other_origins_may_not_write() {
        let guard = guard_on("127.0.0.1:9420", "db.example", "https://grafana\\.example");
        let host = ("host", "localhost:9420");
        let f = |method: &str, headers: &[(&str, &str)], is_refused: bool| {
            let headers: Vec<(&str, &str)> = [&[host][..], headers].concat();
            let wanted = is_refused.then_some(GuardRule::Origin);
            assert_eq!(
                refusal(&guard, method, "/api/v1/write", &headers),
                wanted,
                "{method} {headers:?}"
            );
        };
        for method in ["POST", "PUT", "DELETE", "PATCH", "post"] {
            // Programs.
            f(method, &[], false);
            // The page of this server.
            f(
                method,
                &[("origin", "http://localhost:9420"), ("sec-fetch-site", "same-origin")],
                false,
            );
            f(method, &[("origin", "http://LOCALHOST:9420")], false);
            f(method, &[("sec-fetch-site", "none")], false);
            // Other pages.
            f(method, &[("origin", "http://evil.example")], true);
            f(method, &[("origin", "http://localhost:3000")], true);
            f(method, &[("origin", "http://localhost")], true);
            f(method, &[("origin", "null")], true);
            f(method, &[("origin", "")], true);
            f(method, &[("origin", "file://localhost:9420")], true);
            f(method, &[("sec-fetch-site", "cross-site")], true);
            f(method, &[("sec-fetch-site", "same-site")], true);
            // Values that browsers do not send.
            for site in ["CROSS-SITE", "Same-Site", "cross-site, same-origin", "same-origin,none"]
                .into_iter()
                .chain(["", "?", "x", "same-origin; x", "none none"])
            {
                f(method, &[("sec-fetch-site", site)], true);
            }
            for site in ["same-origin", "none", "cross-site"] {
                let two = [("sec-fetch-site", "same-origin"), ("sec-fetch-site", site)];
                f(method, &two, true);
            }
            f(method, &[("sec-fetch-site", "Same-Origin")], false);
            f(
                method,
                &[("origin", "http://localhost:9420"), ("origin", "http://evil.example")],
                true,
            );
            let two = [("origin", "https://grafana.example"), ("origin", "http://evil.example")];
            f(method, &two, true);
            f(method, &[("origin", "http://localhost:9420, http://evil.example")], true);
            f(method, &[("origin", "http://localhost:9420/")], true);
            f(method, &[("origin", "http://localhost.:9420")], true);
            f(
                method,
                &[("origin", "http://localhost:9420"), ("sec-fetch-site", "cross-site")],
                true,
            );
            f(method, &[("origin", "https://grafana.example.evil")], true);
            // Allowed by name.
            f(
                method,
                &[("origin", "https://grafana.example"), ("sec-fetch-site", "cross-site")],
                false,
            );
        }
        for method in ["GET", "HEAD"] {
            f(method, &[("origin", "http://evil.example")], false);
            f(method, &[("sec-fetch-site", "same-site")], false);
            f(method, &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")], true);
            f(method, &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "cors")], true);
            let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
            f(method, &[&link[..], &[("sec-fetch-dest", "document")]].concat(), false);
            f(method, &[&link[..], &[("sec-fetch-dest", "iframe")]].concat(), true);
            f(method, &[&link[..], &[("sec-fetch-dest", "IFrame")]].concat(), true);
            let dests = [("sec-fetch-dest", "document"), ("sec-fetch-dest", "iframe")];
            f(method, &[&link[..], &dests].concat(), true);
            f(method, &[("sec-fetch-site", "Cross-Site"), ("sec-fetch-mode", "cors")], true);
            f(method, &[("sec-fetch-site", "x"), ("sec-fetch-mode", "no-cors")], true);
        }
        let preflight = |origin| [("origin", origin), ("access-control-request-method", "POST")];
        f("OPTIONS", &preflight("http://evil.example"), true);
        f("OPTIONS", &preflight("https://grafana.example"), false);
        f("OPTIONS", &[], false);
        // TLS ends in front of this server.
        let behind = [("host", "db.example"), ("origin", "https://db.example:443")];
        assert_eq!(refusal(&guard, "POST", "/", &behind), None);
    }

    #[test]
    fn only_allowed_origins_read_responses() {
        let (guard, _) = guard_on("127.0.0.1:9420", "", "http://a");
        let mut headers = HeaderMap::new();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        headers.insert("access-control-allow-credentials", HeaderValue::from_static("true"));
        guard.protect(None, &mut headers);
        assert!(headers.keys().all(|name| !name.as_str().starts_with("access-control-")));
        assert_eq!(headers[X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert_eq!(headers[CONTENT_SECURITY_POLICY], DATA_POLICY);
        guard.protect(Some(HeaderValue::from_static("http://a")), &mut headers);
        assert_eq!(headers[ACCESS_CONTROL_ALLOW_ORIGIN], "http://a");
    }
}
