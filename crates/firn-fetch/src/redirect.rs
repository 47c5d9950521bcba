//! Redirects: which answers are one, and where they lead.

use hyper::{StatusCode, Uri};

use crate::FetchError;

/// Redirects that a request follows.
pub(crate) const REDIRECTS_MAX: usize = 10;

/// Whether `status` is that of a redirect.
pub(crate) fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// The address of `location`, which may be relative to `base`.
pub(crate) fn resolve(base: &Uri, location: &str) -> Result<Uri, FetchError> {
    let location = location.split('#').next().unwrap_or_default();
    let scheme = base.scheme_str().unwrap_or("http");
    let authority = base.authority().map_or("", |authority| authority.as_str());
    let has_scheme = location
        .split_once(':')
        .is_some_and(|(scheme, _)| !scheme.contains(['/', '?']) && !scheme.is_empty());
    let text = if has_scheme {
        location.to_owned()
    } else if let Some(place) = location.strip_prefix("//") {
        format!("{scheme}://{place}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{}", without_dots(location))
    } else if location.is_empty() || location.starts_with('?') {
        let path = base.path();
        format!("{scheme}://{authority}{path}{location}")
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{}", without_dots(&format!("{folder}/{location}")))
    };
    text.parse().map_err(|error| FetchError::transport("failed to parse Location header", error))
}

/// A path without `.` and `..`; the query is kept.
fn without_dots(path: &str) -> String {
    let (path, query) = match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    };
    let mut parts: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." => {}
            ".." => {
                parts.pop();
            }
            segment => {
                parts.push(segment);
                continue;
            }
        }
        if is_last {
            parts.push("");
        }
    }
    let mut text = format!("/{}", parts.join("/"));
    if let Some(query) = query {
        text.push('?');
        text.push_str(query);
    }
    text
}

/// Whether credentials for `first` may be sent to `next`: the same host, and not in the clear after
/// TLS.
pub(crate) fn keeps_credentials(first: &Uri, next: &Uri) -> bool {
    let same_host = match (first.host(), next.host()) {
        (Some(first), Some(next)) => first.eq_ignore_ascii_case(next),
        _ => false,
    };
    let is_tls = |uri: &Uri| uri.scheme_str() == Some("https");
    same_host && (is_tls(next) || !is_tls(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_relative_to_the_address_before() {
        let base: Uri = "http://h:1/a/b/c?x=1".parse().unwrap();
        for (location, want) in [
            ("https://g/x", "https://g/x"),
            ("//g:2/x?y", "http://g:2/x?y"),
            ("/x", "http://h:1/x"),
            ("x?y=/../z", "http://h:1/a/b/x?y=/../z"),
            ("../x/./y", "http://h:1/a/x/y"),
            ("../../../../x/..", "http://h:1/"),
            ("?y=2", "http://h:1/a/b/c?y=2"),
            ("/x#part", "http://h:1/x"),
        ] {
            let found = resolve(&base, location);
            assert_eq!(found.unwrap().to_string(), want, "{location}");
        }
        assert!(resolve(&base, "http://a b/").is_err());
        // Another scheme is not resolved against this one: its request is refused.
        assert!(resolve(&base, "x:y").is_ok_and(|uri| uri.scheme_str() != Some("http")));
    }

    // Item 44: no credentials after a redirect to another host.
    #[test]
    fn credentials_stay_with_their_host() {
        let f = |asked: &str, next: &str| {
            keeps_credentials(&asked.parse().unwrap(), &next.parse().unwrap())
        };
        assert!(f("http://h:1/a", "http://H:1/b"));
        assert!(f("http://h/a", "https://h/b"));
        assert!(!f("https://h/a", "http://h/b"));
        assert!(!f("http://h/a", "http://g/a"));
        assert!(!f("http://h/a", "http://g.h/a"));
    }
}
