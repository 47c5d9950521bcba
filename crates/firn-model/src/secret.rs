//! Secrets: values that no message, log line or debug output shows.

use std::borrow::Cow;
use std::fmt;

/// Stands for a hidden text.
const HIDDEN: &str = "xxxxx";

/// A text that is never shown: `Debug` and `Display` write `xxxxx`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides `text`.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Secret {
        Secret(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// `text` without the credentials of the URLs in it: user and password, a key in place of a port,
/// and the query. Also hides `user:password@` without a scheme. It hides too much rather than too
/// little: a secret may contain a slash.
pub fn redacted(text: &str) -> Cow<'_, str> {
    if !text.contains(['@', '?', ':']) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let word_len = rest.find(is_blank).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(word_len);
        push_word(word, &mut shown);
        let blanks_len = behind.find(|c| !is_blank(c)).unwrap_or(behind.len());
        let (blanks, next) = behind.split_at(blanks_len);
        shown.push_str(blanks);
        rest = next;
    }
    if shown == text { Cow::Borrowed(text) } else { Cow::Owned(shown) }
}

/// Whether `c` ends a URL in a sentence.
fn is_blank(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>' | '(' | ')')
}

fn push_word(word: &str, shown: &mut String) {
    let (scheme, rest) = match word.split_once("://") {
        Some((scheme, rest)) => (Some(scheme), rest),
        None => (None, word),
    };
    if let Some(scheme) = scheme {
        shown.push_str(scheme);
        shown.push_str("://");
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let before_at = rest.rsplit_once('@').map_or("", |(before, _)| before);
    let has_user = match scheme {
        Some(_) => authority.contains('@') || before_at.contains(':'),
        None => before_at.contains(':'),
    };
    let rest = match rest.rsplit_once('@').filter(|_| has_user) {
        Some((_, behind)) => {
            shown.push_str(HIDDEN);
            shown.push('@');
            behind
        }
        None => rest,
    };
    if scheme.is_none() {
        shown.push_str(rest);
        return;
    }
    let (place, query) = match rest.split_once('?') {
        Some((place, _)) => (place, true),
        None => (rest, false),
    };
    let (authority, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    match authority.rsplit_once(':') {
        Some((_, port)) if !is_port(port) && !authority.ends_with(']') => shown.push_str(HIDDEN),
        _ => shown.push_str(authority),
    }
    shown.push_str(path);
    if query {
        shown.push('?');
        shown.push_str(HIDDEN);
    }
}

/// A port, maybe with the punctuation of the sentence around the URL.
fn is_port(text: &str) -> bool {
    let digits = text.trim_end_matches([',', ';', ':', '.', '}', ']']);
    digits.len() <= 5 && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_urls_are_hidden() {
        for (text, shown) in [
            ("s3://key:secret@bucket/a", "s3://xxxxx@bucket/a"),
            ("s3://key:se/cr+et=@bucket", "s3://xxxxx@bucket"),
            ("s3://key:secret/bucket", "s3://xxxxx/bucket"),
            ("s3://bucket?secret=x&y", "s3://bucket?xxxxx"),
            ("https://token@host:9090/p", "https://xxxxx@host:9090/p"),
            (
                "cannot read \"http://u:p@h/x?p=1\", retry",
                "cannot read \"http://xxxxx@h/x?xxxxx\", retry",
            ),
            ("(http://u:p@h:1): refused", "(http://xxxxx@h:1): refused"),
            ("key:secret@bucket", "xxxxx@bucket"),
            ("ftp://u:a@b@host", "ftp://xxxxx@host"),
        ] {
            assert_eq!(redacted(text), shown);
        }
        for plain in [
            "",
            "./folder",
            "http://127.0.0.1:9090/a:b?".trim_end_matches('?'),
            "http://[::1]:9090: connection refused",
            "at http://host:80, then",
            "mail@example.org",
            "s3://bucket/pre@fix",
            "sum(rate(a:b[5m] @ 7))",
        ] {
            assert_eq!(redacted(plain), plain);
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret} {secret:?} {:?}", Some(&secret)), "xxxxx xxxxx Some(xxxxx)");
        assert_eq!(secret.expose(), "hunter2");
    }
}
