//! Requests to a server as promtool makes them: an address with or without a login, and the client
//! of `--http.config.file`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use firn_collect::config::{Files, HttpClient, Url};
use firn_fetch::{Bodies, Client, Connections, Content, FetchError, Request, Response};
use firn_model::Budget;
use firn_server::Secret;
use tokio::runtime::{Builder, Runtime};

use crate::local_files::{LocalFiles, read_file};

/// The flag of commands that send requests.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ClientFile {
    /// The settings of the HTTP client: basic_auth, authorization, tls_config and the other keys
    /// of a client in prometheus.yml
    #[arg(long = "http.config.file", value_name = "FILE", global = true)]
    http_config_file: Option<PathBuf>,
}

/// The address of a server; without a scheme it is `http`.
#[derive(Clone)]
pub(crate) struct ServerAddress {
    /// Without user, query and slash at the end.
    base: String,
    /// The slash and the query that `base` lacks.
    rest: String,
    login: Option<(String, Secret)>,
}

/// A header that `--header` adds: `NAME=VALUE` or `NAME:VALUE`. It is parsed when it is used: an
/// error of the parser of arguments would repeat the value.
#[derive(Clone, Debug)]
pub(crate) struct ExtraHeader(Secret);

/// A client of one server.
pub(crate) struct ServerClient {
    base: String,
    client: Client,
    connections: Connections,
    runtime: Runtime,
}

/// A longer body is refused. It is some 10 million samples.
const BODY_BYTES_MAX: u64 = 256 << 20;
// A text of a server in an error or a warning. Each step of a message copies it, and the escape of
// a character takes six bytes.
const ERROR_BYTES_MAX: usize = 16 << 10;

/// The beginning of a text of a server, for an error or a warning.
pub(crate) fn error_text(text: &[u8]) -> String {
    let head = text.get(..ERROR_BYTES_MAX).unwrap_or(text);
    let shown = String::from_utf8_lossy(head).trim_end().to_owned();
    match text.len() > head.len() {
        true => format!("{shown}... ({} bytes)", text.len()),
        false => shown,
    }
}

impl FromStr for ServerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ServerAddress, String> {
        let text = match text.contains("://") {
            true => text.to_owned(),
            false => format!("http://{}", text.trim_start_matches('/')),
        };
        let url = Url::parse(&text)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err("expected an address that begins with http:// or https://".to_owned());
        }
        if url.host().is_empty() {
            return Err("expected the name of a host".to_owned());
        }
        let behind = text.split_once("://").map_or("", |(_, behind)| behind);
        let authority_len = behind.find(['/', '?', '#']).unwrap_or(behind.len());
        let (authority, path) = behind.split_at(authority_len);
        let path = path.split('#').next().unwrap_or_default();
        let path_len = path.find('?').unwrap_or(path.len());
        let trimmed_len = path.get(..path_len).unwrap_or_default().trim_end_matches('/').len();
        let (path, rest) = path.split_at(trimmed_len);
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let login = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            (unescaped(name), Secret::new(unescaped(password)))
        });
        let base = format!("{}://{host}{path}", url.scheme());
        Ok(ServerAddress { base, rest: rest.to_owned(), login })
    }
}

impl fmt::Display for ServerAddress {
    /// Without a login, which is secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)
    }
}

impl fmt::Debug for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.base)
    }
}

impl ServerAddress {
    /// The slash and the query at the end, for a request to the very address.
    pub(crate) fn rest(&self) -> &str {
        &self.rest
    }

    /// Whether its path ends with `path`, except for slashes at the end.
    pub(crate) fn ends_with(&self, path: &str) -> bool {
        self.base.ends_with(path)
    }

    /// The address with `path` behind its own one. Empty parts, `.` and `..` are resolved.
    pub(crate) fn with_path(&self, path: &str) -> ServerAddress {
        let (scheme, behind) = self.base.split_once("://").unwrap_or(("http", &self.base));
        let (host, own) = behind.split_at(behind.find('/').unwrap_or(behind.len()));
        let parts = path_parts(path_parts(Vec::new(), own), path);
        let mut base = format!("{scheme}://{host}");
        for part in &parts {
            base.push('/');
            base.push_str(part);
        }
        let slash = if parts.is_empty() { "/" } else { "" };
        let rest = format!("{slash}{}", self.rest.trim_start_matches('/'));
        ServerAddress { base, rest, login: self.login.clone() }
    }
}

/// `parts`, then those of `path`.
fn path_parts<'p>(mut parts: Vec<&'p str>, path: &'p str) -> Vec<&'p str> {
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts
}

/// Escapes of a URL replaced. These characters have a meaning in forms only.
fn unescaped(text: &str) -> String {
    let text = text.replace('+', "%2B").replace('&', "%26").replace('=', "%3D");
    let mut pairs = form_urlencoded::parse(text.as_bytes());
    pairs.next().map_or_else(String::new, |(name, _)| name.into_owned())
}

impl From<String> for ExtraHeader {
    fn from(text: String) -> ExtraHeader {
        ExtraHeader(Secret::new(text))
    }
}

impl ExtraHeader {
    fn name_and_value(&self) -> Result<(&str, &str), String> {
        let split = self.0.expose().split_once([':', '=']);
        let (name, value) = split.ok_or("--header: expected NAME=VALUE")?;
        let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        match !name.is_empty() && name.chars().all(is_token) {
            true => Ok((name, value)),
            false => {
                Err("--header: expected the name of a header before the first = or colon"
                    .to_owned())
            }
        }
    }
}

impl ClientFile {
    /// A client of the server at `address`, whose requests have `headers`.
    ///
    /// # Errors
    /// promtool's text for a file that cannot be used.
    pub(crate) fn client(
        &self,
        address: &ServerAddress,
        headers: &[ExtraHeader],
    ) -> Result<ServerClient, String> {
        let mut config = self.config(address)?;
        if let Some((user, password)) = &address.login {
            config.set_basic_auth(user.clone(), password.clone());
        }
        // As in promtool, the last one of a name counts.
        let mut by_name = BTreeMap::new();
        for header in headers {
            let (name, value) = header.name_and_value()?;
            by_name.insert(name, value);
        }
        for (name, value) in by_name {
            config.add_header(name.to_owned(), Secret::new(value.to_owned()));
        }
        // A body that grows has up to twice its length.
        let bodies = Bodies::new(&Budget::unlimited().part(4 * BODY_BYTES_MAX));
        let client = Client::new(&config, &bodies)
            .map_err(|error| format!("Failed to create a new HTTP round tripper: {error}"))?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start the HTTP client: {error}"))?;
        let (base, connections) = (address.base.clone(), Connections::default());
        Ok(ServerClient { base, client, connections, runtime })
    }

    fn config(&self, address: &ServerAddress) -> Result<HttpClient, String> {
        let Some(path) = &self.http_config_file else { return Ok(HttpClient::default()) };
        if address.login.as_ref().is_some_and(|(user, _)| !user.is_empty()) {
            return Err(
                "Cannot set base auth in the server URL and use a http.config.file at the \
                        same time"
                    .to_owned(),
            );
        }
        let read = read_file(path)
            .map_err(|error| format!("open {}: {error}", path.display()))
            .and_then(|text| {
                let client = HttpClient::parse_file(&text, path, &LocalFiles.budget());
                client.map_err(|error| error.to_string())
            });
        read.map_err(|error| format!("Failed to load HTTP config file: {error}"))
    }
}

impl ServerClient {
    /// The address of `path`, for messages.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// The response to `GET path`.
    ///
    /// # Errors
    /// Without a whole response within `timeout`.
    pub(crate) fn get(&mut self, path: &str, timeout: Duration) -> Result<Response, FetchError> {
        self.send(path, None, timeout)
    }

    /// The response to `POST path` with a form.
    ///
    /// # Errors
    /// As [`ServerClient::get`].
    pub(crate) fn post(
        &mut self,
        path: &str,
        form: String,
        timeout: Duration,
    ) -> Result<Response, FetchError> {
        let media_type = "application/x-www-form-urlencoded".to_owned();
        let bytes = form.into();
        let content = Content { is_put: false, is_secret: false, media_type, bytes };
        self.send(path, Some(content), timeout)
    }

    /// The response to `GET path`, or to `POST path` with `content`.
    ///
    /// # Errors
    /// As [`ServerClient::get`].
    pub(crate) fn send(
        &mut self,
        path: &str,
        content: Option<Content>,
        timeout: Duration,
    ) -> Result<Response, FetchError> {
        let request = Request {
            url: self.url(path),
            unix_socket: None,
            headers: Vec::new(),
            authorization: None,
            secrets: Vec::new(),
            content,
            body_bytes_max: BODY_BYTES_MAX,
            timeout,
        };
        self.runtime.block_on(self.client.send(&request, &mut self.connections))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Result<(String, Option<(String, String)>), String> {
        let parsed: ServerAddress = text.parse()?;
        let login = parsed.login.map(|(user, password)| (user, password.expose().to_owned()));
        Ok((parsed.base, login))
    }

    #[test]
    fn an_address_is_split_into_base_and_login() {
        let base = |text: &str| address(text).map(|(base, _)| base);
        assert_eq!(base("http://localhost:9090/"), Ok("http://localhost:9090".to_owned()));
        assert_eq!(base("localhost:9090"), Ok("http://localhost:9090".to_owned()));
        assert_eq!(base("//localhost"), Ok("http://localhost".to_owned()));
        assert_eq!(base("HTTPS://[::1]:1/a/b/?x=1#f"), Ok("https://[::1]:1/a/b".to_owned()));
        let rest = |text: &str| text.parse::<ServerAddress>().map(|parsed| parsed.rest);
        assert_eq!(rest("http://h:1/a/b"), Ok(String::new()));
        assert_eq!(rest("http://h:1/a/b/?x=1#f"), Ok("/?x=1".to_owned()));
        assert_eq!(rest("http://u:p@h:1?x=a/"), Ok("?x=a/".to_owned()));
        for (text, user, password) in [
            ("http://u:p%40+q%3dr=s&t@h:1", "u", "p@+q=r=s&t"),
            ("http://u@h:1", "u", ""),
            ("http://u:p@h:1/path", "u", "p"),
        ] {
            let login = address(text).map(|(_, login)| login);
            assert_eq!(login, Ok(Some((user.to_owned(), password.to_owned()))), "{text}");
        }
    }

    /// Before, a body of 256 MiB was repeated as a whole, in several copies and with escapes.
    #[test]
    fn long_texts_of_a_server_are_cut_in_errors() {
        assert_eq!(error_text(b" no such path\n"), " no such path");
        assert_eq!(error_text(b"\xff"), "\u{fffd}");
        let text = error_text(&vec![0x7f; 1 << 20]);
        assert!(text.len() < ERROR_BYTES_MAX + 50 && text.ends_with("... (1048576 bytes)"));
    }

    #[test]
    fn a_path_is_added_as_promtool_does_it() {
        for (text, path, want) in [
            ("http://h:1", "/api/v1/write", "http://h:1/api/v1/write"),
            ("http://h:1/", "api/v1/write/", "http://h:1/api/v1/write"),
            ("http://h:1/x//y/", "/api/v1/write", "http://h:1/x/y/api/v1/write"),
            ("http://h:1/x/../y", "../z", "http://h:1/z"),
            ("http://h:1/x/", "", "http://h:1/x"),
            ("http://h:1/x/", "/x", "http://h:1/x/x"),
            ("http://h:1/x/?a=b/", "/y", "http://h:1/x/y?a=b/"),
            ("http://h:1?a=b", "/y", "http://h:1/y?a=b"),
            ("http://h:1?a=b", "", "http://h:1/?a=b"),
        ] {
            let address: ServerAddress = text.parse().expect(text);
            let joined = address.with_path(path);
            assert_eq!(format!("{}{}", joined.base, joined.rest()), want, "{text} {path}");
        }
        let address: ServerAddress = "http://u:p@h:1/x/?a=b".parse().expect("an address");
        assert!(address.with_path("/x").login.is_some());
        assert!(address.ends_with("/x") && !address.ends_with("/y"));
    }

    #[test]
    fn no_error_and_no_text_shows_a_password() {
        for text in
            ["ftp://u:secret@h", "http://u:secret@", "http://u:secret@h:x\u{1}", "://secret"]
        {
            let error = address(text).expect_err(text);
            assert!(!error.contains("secret") || text == "://secret", "{error}");
        }
        let parsed: ServerAddress = "http://u:secret@h:1".parse().expect("an address");
        assert_eq!(format!("{parsed} {parsed:?}"), "http://h:1 \"http://h:1\"");
        let header = ExtraHeader::from("Authorization=Bearer secret".to_owned());
        assert!(!format!("{header:?}").contains("secret"));
        assert_eq!(header.name_and_value(), Ok(("Authorization", "Bearer secret")));
        for text in ["secret", "a secret: x", "=secret"] {
            let header = ExtraHeader::from(text.to_owned());
            assert!(!header.name_and_value().expect_err(text).contains("secret"));
        }
    }
}
