//! Detection of requests that come back to the proxy that forwarded them, by the header `Via`
//! (RFC 9110, 7.6.3), as content delivery networks do it by `CDN-Loop` (RFC 8586).

use std::hash::{BuildHasher, Hasher, RandomState};

use axum::http::Version;
use axum::http::header::{HeaderMap, HeaderValue, VIA};

/// The start of the name of a proxy in `Via`.
const PREFIX: &str = "firn-";

/// The name of this process in `Via`. It is random: two proxies on one host differ.
#[derive(Debug)]
pub(super) struct HopName(String);

impl HopName {
    pub(super) fn new() -> HopName {
        // The system seeds it.
        HopName(format!("{PREFIX}{:016x}", RandomState::new().build_hasher().finish()))
    }

    /// Whether this proxy has forwarded the request before.
    pub(super) fn is_in(&self, headers: &HeaderMap) -> bool {
        names(headers).any(|name| name == self.0.as_bytes())
    }

    /// Appends this proxy to the proxies of a request that came in `version`.
    pub(super) fn append_to(&self, headers: &mut HeaderMap, version: Version) {
        let version = match version {
            Version::HTTP_10 => "1.0",
            Version::HTTP_2 => "2",
            _ => "1.1",
        };
        if let Ok(value) = HeaderValue::try_from(format!("{version} {}", self.0)) {
            headers.append(VIA, value);
        }
    }
}

/// The `Via` of a request whose response may be shared: only the proxies of FirnDB that the request
/// has passed. A server may refuse requests because of other names.
pub(super) fn own_kind(headers: &HeaderMap) -> Vec<HeaderValue> {
    let is_own = |name: &[u8]| {
        let digits = name.strip_prefix(PREFIX.as_bytes());
        digits.is_some_and(|digits| digits.len() == 16 && digits.iter().all(u8::is_ascii_hexdigit))
    };
    let names = names(headers).filter(|name| is_own(name));
    let values = names.map(|name| HeaderValue::from_bytes(&[b"1.1 ", name].concat()));
    values.flatten().collect()
}

/// The names between the protocols and the comments.
fn names(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let lines = headers.get_all(VIA).into_iter();
    let hops = lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b','));
    hops.filter_map(|hop| {
        let mut words =
            hop.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
        words.nth(1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_every_form_of_via() {
        let own = HopName("firn-0123456789abcdef".to_owned());
        let f = |lines: &[&str], is_in: bool, kept: usize| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(VIA, HeaderValue::from_bytes(line.as_bytes()).unwrap());
            }
            assert_eq!(own.is_in(&headers), is_in, "{lines:?}");
            assert_eq!(own_kind(&headers).len(), kept, "{lines:?}");
        };
        f(&[], false, 0);
        f(&["1.1 firn-0123456789abcdef"], true, 1);
        f(&["HTTP/1.1\tfirn-0123456789abcdef  (a comment)"], true, 1);
        f(&["1.0 fred, 1.1 nginx (café)", "2 a,1.1 firn-0123456789abcdef , 1.1 b"], true, 1);
        f(&["1.1 firn-0123456789abcde0,1.1 firn-0123456789abcde1"], false, 2);
        f(&["firn-0123456789abcdef", "1.1 firn-0123456789abcdef0", ",, ", "1.1"], false, 0);
    }

    #[test]
    fn a_request_that_was_forwarded_is_known_again() {
        let (own, other) = (HopName::new(), HopName::new());
        let mut headers = HeaderMap::new();
        headers.append(VIA, HeaderValue::from_static("1.1 fred"));
        own.append_to(&mut headers, Version::HTTP_10);
        assert!(own.is_in(&headers) && !other.is_in(&headers), "{headers:?}");
        other.append_to(&mut headers, Version::HTTP_11);
        assert!(own.is_in(&headers) && other.is_in(&headers), "{headers:?}");
        assert_eq!(headers.get_all(VIA).iter().count(), 3);
    }
}
