//! The credentials that a request carries, and texts without them: a server that repeats the
//! request in its error must not put them into logs and status pages.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::HeaderMap;

/// Credentials as they were sent.
#[derive(Default)]
pub(crate) struct SentSecrets {
    headers: Vec<Vec<u8>>,
    forms: Vec<Bytes>,
}

/// In place of a secret.
const HIDDEN: &[u8] = b"<secret>";
/// Shorter texts may be a part of any word: they are hidden only within a longer one, such as
/// `Bearer abc`.
const SECRET_BYTES_MIN: usize = 4;
const UNSHOWN: &str =
    "the answer repeats a credential of the request: the error that quotes it is not shown";

/// Without the credentials.
impl fmt::Debug for SentSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentSecrets").finish_non_exhaustive()
    }
}

impl SentSecrets {
    /// Adds the headers that are marked as sensitive.
    pub(crate) fn add_headers(&mut self, headers: &HeaderMap) {
        let sensitive = headers.values().filter(|value| value.is_sensitive());
        sensitive.for_each(|value| self.add_header(value.as_bytes()));
    }

    /// Adds the value of a header: `TOKEN`, `Bearer TOKEN`, or `Basic` with a name and a password.
    pub(crate) fn add_header(&mut self, value: &[u8]) {
        self.headers.push(value.to_vec());
    }

    /// Adds the values of a form whose names are those of secrets.
    pub(crate) fn add_form(&mut self, form: &Bytes) {
        self.forms.push(form.clone());
    }

    /// `text` without the credentials.
    pub(crate) fn hide<'t>(&self, text: &'t [u8]) -> Cow<'t, [u8]> {
        let spellings = self.spellings();
        let mut shown = Vec::new();
        let mut rest = text;
        let mut is_changed = false;
        while let Some((first, behind)) = rest.split_first() {
            let behind_secret = spellings.iter().find_map(|secret| rest.strip_prefix(&**secret));
            is_changed |= behind_secret.is_some();
            rest = match behind_secret {
                Some(behind) => {
                    shown.extend_from_slice(HIDDEN);
                    behind
                }
                None => {
                    shown.push(*first);
                    behind
                }
            };
        }
        if is_changed { Cow::Owned(shown) } else { Cow::Borrowed(text) }
    }

    /// Each spelling of a credential that an answer may have. The longest first: it may contain
    /// others.
    fn spellings(&self) -> Vec<Vec<u8>> {
        let mut secrets = Vec::new();
        for value in &self.headers {
            secrets.push(value.clone());
            let Some(space) = value.iter().position(|byte| *byte == b' ') else { continue };
            let (scheme, rest) = value.split_at(space);
            let rest = rest.trim_ascii();
            secrets.push(rest.to_vec());
            if scheme.eq_ignore_ascii_case(b"basic")
                && let Ok(plain) = STANDARD.decode(rest)
            {
                let password = plain.splitn(2, |byte| *byte == b':').nth(1).unwrap_or_default();
                secrets.extend([password.to_vec(), plain]);
            }
        }
        for (name, value) in self.forms.iter().flat_map(|form| form_urlencoded::parse(form)) {
            let name = name.to_ascii_lowercase();
            if ["secret", "token", "password"].iter().any(|word| name.contains(word)) {
                secrets.push(value.as_bytes().to_vec());
            }
        }
        let mut spellings = Vec::new();
        for secret in secrets {
            let escaped: String = form_urlencoded::byte_serialize(&secret).collect();
            let json = serde_json::Value::from(String::from_utf8_lossy(&secret)).to_string();
            spellings.push(escaped.replace('+', "%20").into_bytes());
            spellings.push(escaped.into_bytes());
            spellings.push(json.trim_matches('"').as_bytes().to_vec());
            spellings.push(secret);
        }
        spellings.retain(|spelling| spelling.len() >= SECRET_BYTES_MIN);
        spellings.sort_unstable_by_key(|spelling| std::cmp::Reverse(spelling.len()));
        spellings
    }

    /// The text of an error that quotes `body`. A parser may quote a part of a credential, which
    /// cannot be found in the error: so the error of a body with a credential is replaced.
    /// O(length of the body).
    pub(crate) fn hide_in_error(&self, error: &str, body: &[u8]) -> String {
        // A body may have 50 MB.
        let is_in_body = |secret: &Vec<u8>| memchr::memmem::find(body, secret).is_some();
        match self.spellings().iter().any(is_in_body) {
            true => UNSHOWN.to_owned(),
            // The parser may have decoded a spelling that is not known here.
            false => self.hide_text(error),
        }
    }

    /// As [`SentSecrets::hide`].
    pub(crate) fn hide_text(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.hide(text.as_bytes())).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_credential_is_hidden() {
        let mut sent = SentSecrets::default();
        sent.add_header(b"Bearer to\"ken/1");
        sent.add_header(format!("Basic {}", STANDARD.encode("user:pass word")).as_bytes());
        sent.add_header(b"key1");
        sent.add_form(&Bytes::from("client_secret=s%2Bcret&grant_type=client_credentials&scope=a"));
        for (text, want) in [
            ("", ""),
            ("no such path", "no such path"),
            ("authorization: Bearer to\"ken/1", "authorization: <secret>"),
            ("bearer to\"ken/1, to%22ken%2F1", "bearer <secret>, <secret>"),
            (r#"{"auth": "Bearer to\"ken/1"}"#, r#"{"auth": "<secret>"}"#),
            ("Basic dXNlcjpwYXNzIHdvcmQ=", "<secret>"),
            ("dXNlcjpwYXNzIHdvcmQ= is user:pass word", "<secret> is <secret>"),
            (
                "user 'user', pass word pass+word pass%20word",
                "user 'user', <secret> <secret> <secret>",
            ),
            ("x-token: key1", "x-token: <secret>"),
            ("s+cret s%2Bcret client_credentials a", "<secret> <secret> client_credentials a"),
        ] {
            assert_eq!(sent.hide_text(text), want);
        }
        assert_eq!(&*sent.hide(b"\xffpass word"), b"\xff<secret>");
    }

    #[test]
    fn an_error_does_not_quote_a_part_of_a_credential() {
        let mut sent = SentSecrets::default();
        let f = |sent: &SentSecrets, error: &str, body: &str| {
            sent.hide_in_error(error, body.as_bytes())
        };
        assert_eq!(f(&sent, "bad", "a head.body.end b"), "bad");
        sent.add_header(b"Bearer head.body.end");
        assert_eq!(f(&sent, "\".end\" is no value", "head.body.end 1"), UNSHOWN);
        assert_eq!(f(&sent, "bad: head", "a head.body b"), "bad: head");
        assert_eq!(f(&sent, "got head.body.end", r"head\u002ebody.end"), "got <secret>");
        assert_eq!(f(&sent, "bad", ""), "bad");
    }

    #[test]
    fn short_passwords_are_hidden_with_their_header() {
        let mut sent = SentSecrets::default();
        sent.add_header(b"Basic dTpw");
        sent.add_header(b"x");
        assert_eq!(sent.hide_text("Basic dTpw: no path up"), "<secret>: no path up");
    }
}
