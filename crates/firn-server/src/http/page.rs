//! The page at `/`: a query box, a table, a graph. One file, no build, no other server.

use std::sync::OnceLock;

use axum::body::Body;
use axum::extract::RawQuery;
use axum::http::header::{CONTENT_SECURITY_POLICY, HeaderValue};
use axum::http::{Request, Response, StatusCode};
use axum::response::Redirect;

use crate::answer::{Packing, Payload};
use crate::http::params::check_count;
use crate::wire::base64::base64;

const PAGE: &str = include_str!("page.html");

/// `/`.
pub(crate) async fn page(request: Request<Body>) -> Response<Body> {
    let packing = Packing::of(request.headers());
    let page = PAGE.replace("{{version}}", env!("CARGO_PKG_VERSION"));
    let mut response = Payload::new(page.into_bytes(), packing, None)
        .answer(StatusCode::OK, "text/html; charset=utf-8");
    if let Ok(policy) = HeaderValue::from_str(policy()) {
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// `/graph`: the path of Prometheus' page in links, `/graph?g0.expr=up`.
pub(crate) async fn graph(RawQuery(parameters): RawQuery) -> Redirect {
    let parameters = parameters.unwrap_or_default();
    let is_read = check_count(parameters.as_bytes()).is_ok();
    let pairs = is_read.then(|| form_urlencoded::parse(parameters.as_bytes()));
    // Relative, for a proxy in front that adds a prefix.
    match pairs.into_iter().flatten().find(|(name, _)| name == "g0.expr") {
        Some((_, query)) => {
            let mut fragment = form_urlencoded::Serializer::new(String::new());
            Redirect::to(&format!("./#{}", fragment.append_pair("query", &query).finish()))
        }
        None => Redirect::to("./"),
    }
}

/// Allows the page its own script and style, named by their digests, and requests to this server.
fn policy() -> &'static str {
    static POLICY: OnceLock<String> = OnceLock::new();
    POLICY.get_or_init(|| {
        let (script, style) = (source_of("script"), source_of("style"));
        format!(
            "default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; \
             img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
    })
}

/// The digest of the page's only element `tag`, as a policy names it.
fn source_of(tag: &str) -> String {
    let inside = PAGE.split_once(&format!("<{tag}>")).map_or("", |(_, behind)| behind);
    let inside = inside.split_once(&format!("</{tag}>")).map_or("", |(inside, _)| inside);
    let digest = ring::digest::digest(&ring::digest::SHA256, inside.as_bytes());
    format!("'sha256-{}'", base64(digest.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A browser runs nothing that the policy does not name.
    #[test]
    fn the_policy_names_all_that_the_page_runs() {
        assert_eq!(PAGE.matches("<script").count(), 1);
        assert_eq!(PAGE.matches("<style").count(), 1);
        for attribute in
            [" style=", " onclick=", " onload=", " onerror=", "javascript:", "innerHTML"]
        {
            assert!(!PAGE.contains(attribute), "{attribute}");
        }
        let inside = PAGE.split_once("<script>").unwrap().1.split_once("</script>").unwrap().0;
        assert!(!inside.contains("{{"), "the digest is of the text that is sent");
        assert!(policy().contains("script-src 'sha256-"), "{}", policy());
    }
}
