//! Addresses, by the rules of Go's `url.Parse`.

use std::fmt;

use firn_yaml::quoted;

/// An address. Printing hides its password, and all that may be one: a text such as
/// `user:password@host` is a scheme and a path by the rules of Go, and a password with `/`, `?` or
/// `#` ends the host.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Url {
    text: String,
    /// The password in `text`.
    password: Option<std::ops::Range<usize>>,
    scheme: String,
    host: String,
}

impl Url {
    /// Parses `text`, which may be relative.
    ///
    /// # Errors
    /// Go's text.
    pub fn parse(text: &str) -> Result<Url, String> {
        parse(text).map_err(|error| {
            // A part of the text is in some errors. It may be one of a password.
            let is_shown = !text.contains('@') || !error.starts_with(INVALID_PORT);
            let error = if is_shown { error.as_str() } else { INVALID_PORT };
            format!("parse {}: {error}", quoted(hidden(text).as_bytes()))
        })
    }

    /// `text` as it may be shown: an address without its password, and any other text without the
    /// parts that may be secret.
    pub fn shown(text: &str) -> String {
        Url::parse(text).map_or_else(|_| hidden(text), |url| url.to_string())
    }

    /// The address with its password.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The scheme in lower case; empty in a relative address.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Whether the host may be the beginning of `user:password@host`.
    fn may_hide_password(&self) -> bool {
        let has_port = self.host.contains(':') && !self.host.ends_with(']');
        (self.host.is_empty() || has_port) && self.text.contains('@')
    }

    /// Host and port; empty if there are none.
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.password.as_ref().and_then(|password| {
            Some((self.text.get(..password.start)?, self.text.get(password.end..)?))
        });
        match parts {
            Some((before, behind)) => write!(f, "{before}xxxxx{behind}"),
            None if self.may_hide_password() => f.write_str(&hidden(&self.text)),
            None => f.write_str(&self.text),
        }
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

/// Go's text, with the port behind it.
const INVALID_PORT: &str = "invalid port";

/// `text`, which is no address, without the parts that may be secret.
fn hidden(text: &str) -> String {
    firn_model::redacted(text).into_owned()
}

fn parse(text: &str) -> Result<Url, String> {
    if text.bytes().any(|c| c < 0x20 || c == 0x7f) {
        return Err("net/url: invalid control character in URL".to_owned());
    }
    let mut url = Url { text: text.to_owned(), ..Url::default() };
    let without_fragment = text.split('#').next().unwrap_or_default();
    if without_fragment == "*" {
        return Ok(url);
    }
    let (scheme, rest) = split_scheme(without_fragment)?;
    url.scheme = scheme.to_ascii_lowercase();
    let rest = rest.split('?').next().unwrap_or_default();
    if !rest.starts_with('/') {
        if !scheme.is_empty() {
            return Ok(url);
        }
        if rest.split('/').next().is_some_and(|segment| segment.contains(':')) {
            return Err("first path segment in URL cannot contain colon".to_owned());
        }
    }
    let path = match rest.strip_prefix("//") {
        Some(behind) if !scheme.is_empty() || !rest.starts_with("///") => {
            let authority = behind.split('/').next().unwrap_or_default();
            let (user, host) = match authority.rsplit_once('@') {
                Some((user, host)) => (Some(user), host),
                None => (None, authority),
            };
            if let Some(user) = user {
                let is_valid =
                    |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
                if !user.chars().all(is_valid) {
                    return Err("net/url: invalid userinfo".to_owned());
                }
                check_escapes(user)?;
                if let Some((name, password)) = user.split_once(':') {
                    // The authority is behind the scheme and three characters.
                    let user_start = text
                        .len()
                        .min(scheme.len().saturating_add(if scheme.is_empty() { 2 } else { 3 }));
                    let start = user_start.saturating_add(name.len()).saturating_add(1);
                    url.password = Some(start..start.saturating_add(password.len()));
                }
            }
            check_host(host)?;
            host.clone_into(&mut url.host);
            behind.get(authority.len()..).unwrap_or_default()
        }
        _ => rest,
    };
    check_escapes(path)?;
    Ok(url)
}

/// The scheme, and the text behind its colon.
fn split_scheme(text: &str) -> Result<(&str, &str), String> {
    for (idx, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if idx > 0 => {}
            ':' if idx == 0 => return Err("missing protocol scheme".to_owned()),
            ':' => {
                let (scheme, rest) = text.split_at(idx);
                return Ok((scheme, rest.strip_prefix(':').unwrap_or(rest)));
            }
            _ => break,
        }
    }
    Ok(("", text))
}

fn check_host(host: &str) -> Result<(), String> {
    let after_host = match host.strip_prefix('[') {
        Some(inside) => match inside.split_once(']') {
            Some((_, behind)) => behind,
            None => return Err("missing ']' in host".to_owned()),
        },
        None => host.rfind(':').and_then(|at| host.get(at..)).unwrap_or(""),
    };
    let is_port = match after_host.strip_prefix(':') {
        Some(port) => port.bytes().all(|c| c.is_ascii_digit()),
        None => after_host.is_empty(),
    };
    if !is_port {
        return Err(format!("{INVALID_PORT} {} after host", quoted(after_host.as_bytes())));
    }
    let invalid = |c: &char| c.is_ascii() && (*c <= ' ' || "\"<>\\^`{|}".contains(*c));
    if let Some(c) = host.chars().find(invalid) {
        return Err(format!("invalid character {} in host name", quoted(c.to_string().as_bytes())));
    }
    check_escapes(host)
}

fn check_escapes(text: &str) -> Result<(), String> {
    for (at, _) in text.match_indices('%') {
        let escape: String = text.get(at..).unwrap_or_default().chars().take(3).collect();
        let digits = escape.strip_prefix('%').unwrap_or_default();
        if digits.len() != 2 || !digits.bytes().all(|c| c.is_ascii_hexdigit()) {
            return Err(format!("invalid URL escape {}", quoted(escape.as_bytes())));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_as_in_go() {
        for (text, scheme, host) in [
            ("http://a:1/b?c#d", "http", "a:1"),
            ("HTTPS://[::1]:9090", "https", "[::1]:9090"),
            ("unix:///var/run/docker.sock", "unix", ""),
            ("localhost:9090", "localhost", ""),
            ("/path", "", ""),
            ("host/path:1", "", ""),
            ("//host/path", "", "host"),
            ("", "", ""),
            ("http://user:pass@host/", "http", "host"),
        ] {
            let url = Url::parse(text).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((url.scheme(), url.host()), (scheme, host), "{text}");
        }
        for (text, want) in [
            ("://a", "parse \"://a\": missing protocol scheme"),
            ("http://a:b", "invalid port \":b\" after host"),
            ("http://[::1", "missing ']' in host"),
            ("http://a b/", "invalid character \" \" in host name"),
            ("http://a/%zz", "invalid URL escape \"%zz\""),
            ("1.2.3.4:80", "first path segment in URL cannot contain colon"),
            ("http://a\n", "invalid control character in URL"),
            ("http://a<b@c/", "invalid userinfo"),
        ] {
            let error = Url::parse(text).unwrap_err();
            assert!(error.contains(want), "{text}: {error}");
        }
    }

    #[test]
    fn passwords_are_hidden() {
        let url = Url::parse("https://user:hunter2@host:1/p?q").unwrap();
        assert_eq!(url.to_string(), "https://user:xxxxx@host:1/p?q");
        assert_eq!(format!("{url:?}"), "\"https://user:xxxxx@host:1/p?q\"");
        assert!(url.as_str().contains("hunter2"));
        assert_eq!(Url::parse("//u:p@h/").unwrap().to_string(), "//u:xxxxx@h/");
        for (text, want) in [
            ("http://u:hunter2@h/p?q", "http://u:xxxxx@h/p?q"),
            ("u:hunter2@h:1", "xxxxx@h:1"),
            ("http://u:hunter2@h:b/", "http://xxxxx@xxxxx/"),
            ("mail@example.org", "mail@example.org"),
            ("h:1", "h:1"),
            ("unix:///var/run/a@b.sock", "unix:///var/run/a@b.sock"),
            ("https://token@h/a@b", "https://token@h/a@b"),
            ("http://h/a@b?c=d@e", "http://h/a@b?c=d@e"),
        ] {
            assert_eq!(Url::shown(text), want);
        }
    }

    /// Before, an address without a scheme, and one with a password that is not escaped, were in
    /// errors with the password or a part of it.
    #[test]
    fn passwords_in_wrong_places_are_hidden() {
        for text in [
            "user:hunter2@host",
            "user:hunter2@host:2375",
            "user:hunter2@host/path?query#fragment",
            "tcp:user:hunter2@host",
            "tcp:/user:hunter2@host",
            "tcp:///user:hunter2@host",
            "/user:hunter2@host",
            "http:user:hunter2@host:1",
            "http://user:hunter2@host:b/",
            "http://user:hunter2/x@host/",
            "http://user:hunter2?x@host/",
            "http://user:hunter2#x@host/",
            "http://user:12/hunter2@host/",
            "http://user:12?hunter2@host/",
            "http://user:12#hunter2@host:1/",
        ] {
            let shown = match Url::parse(text) {
                Ok(url) => format!("{url} {url:?}"),
                Err(error) => error,
            };
            let shown = format!("{shown} {}", Url::shown(text));
            assert!(!shown.contains("hunter2"), "{text}: {shown}");
        }
    }
}
