//! The HTTP client of scrapes, discoveries, Alertmanagers and remote storage.

use std::collections::BTreeMap;
use std::path::Path;

use firn_model::{Budget, Result as ModelResult, Secret};

use super::{AnyValue, FilePath, HiddenText, Url, UrlText, join_folder};
use firn_yaml::{Checked, Failure, Field, from_document_within, quoted, section, words};

words! {
    /// A version of TLS.
    pub enum TlsVersion: "config.TLSVersion" {
        Tls10 = "TLS10",
        Tls11 = "TLS11",
        Tls12 = "TLS12",
        Tls13 = "TLS13",
    }
    fold |text| text.to_owned();
    unknown |text| format!("unknown TLS version: {text}");
}

section! {
    /// Credentials of basic authentication. At most one of a value, its file and its reference.
    pub struct BasicAuth: "config.plain" {
        username: String = "username" omit,
        username_file: FilePath = "username_file" omit,
        username_ref: String = "username_ref" omit,
        password: Secret = "password" omit,
        password_file: FilePath = "password_file" omit,
        password_ref: String = "password_ref" omit,
    }
}

section! {
    /// The header `Authorization`.
    pub struct Authorization: "config.Authorization" {
        /// `Bearer` if the key is absent.
        kind: String = "type" omit,
        credentials: Secret = "credentials" omit,
        credentials_file: FilePath = "credentials_file" omit,
        credentials_ref: String = "credentials_ref" omit,
    }
}

section! {
    /// Certificates and the versions of TLS.
    pub struct TlsConfig: "config.plain" {
        ca: String = "ca" omit,
        cert: String = "cert" omit,
        key: Secret = "key" omit,
        ca_file: FilePath = "ca_file" omit,
        cert_file: FilePath = "cert_file" omit,
        key_file: FilePath = "key_file" omit,
        ca_ref: String = "ca_ref" omit,
        cert_ref: String = "cert_ref" omit,
        key_ref: String = "key_ref" omit,
        server_name: String = "server_name" omit,
        insecure_skip_verify: bool = "insecure_skip_verify",
        min_version: TlsVersion = "min_version" omit,
        max_version: TlsVersion = "max_version" omit,
    }
}

section! {
    /// The proxy of a client.
    pub struct ProxyConfig: "config.ProxyConfig" {
        proxy_url: Option<Url> = "proxy_url" omit,
        no_proxy: String = "no_proxy" omit,
        proxy_from_environment: bool = "proxy_from_environment" omit,
        proxy_connect_header: BTreeMap<String, Vec<Secret>> = "proxy_connect_header" omit,
    }
}

section! {
    /// Tokens of OAuth 2.0.
    pub struct OAuth2: "config.plain" {
        client_id: String = "client_id" omit,
        client_secret: Secret = "client_secret" omit,
        client_secret_file: FilePath = "client_secret_file" omit,
        client_secret_ref: String = "client_secret_ref" omit,
        client_certificate_key_id: String = "client_certificate_key_id" omit,
        client_certificate_key: Secret = "client_certificate_key" omit,
        client_certificate_key_file: FilePath = "client_certificate_key_file" omit,
        client_certificate_key_ref: String = "client_certificate_key_ref" omit,
        grant_type: String = "grant_type" omit,
        signature_algorithm: String = "signature_algorithm" omit,
        iss: String = "iss" omit,
        audience: String = "audience" omit,
        claims: BTreeMap<String, AnyValue> = "claims" omit,
        scopes: Vec<String> = "scopes" omit,
        token_url: UrlText = "token_url" omit,
        endpoint_params: BTreeMap<String, HiddenText> = "endpoint_params" omit,
        tls_config: TlsConfig = "tls_config" omit,
    }
    inline { proxy: ProxyConfig, }
}

section! {
    /// The values of a header. Only `secrets` are hidden: `values` are the ones to be shown.
    pub struct Header: "config.Header" {
        values: Vec<String> = "values" omit,
        secrets: Vec<Secret> = "secrets" omit,
        files: Vec<FilePath> = "files" omit,
    }
}

section! {
    /// A client. At most one kind of authentication is set; `bearer_token` of a file is in
    /// `authorization`.
    pub struct HttpClient: "config.plain" {
        basic_auth: Option<BasicAuth> = "basic_auth" omit,
        authorization: Option<Authorization> = "authorization" omit,
        oauth2: Option<OAuth2> = "oauth2" omit,
        bearer_token: Secret = "bearer_token" omit,
        bearer_token_file: FilePath = "bearer_token_file" omit,
        tls_config: TlsConfig = "tls_config" omit,
        follow_redirects: bool = "follow_redirects",
        enable_http2: bool = "enable_http2",
        http_headers: Option<BTreeMap<String, Header>> = "http_headers" omit,
    }
    inline { proxy: ProxyConfig, }
}

impl Default for HttpClient {
    fn default() -> HttpClient {
        HttpClient { follow_redirects: true, enable_http2: true, ..HttpClient::zero() }
    }
}

impl HttpClient {
    /// Reads `text`, the file `path` of promtool's `--http.config.file`. As there, relative paths
    /// in it begin in the folder above the one of the file.
    ///
    /// # Errors
    /// `Invalid` with Prometheus' text; `Busy` if reading it takes more memory than `budget` has.
    pub fn parse_file(text: &str, path: &Path, budget: &Budget) -> ModelResult<HttpClient> {
        let mut client = HttpClient::default();
        from_document_within(text, &mut client, budget).map_err(Failure::into_error)?;
        let folder = path.parent().and_then(Path::parent).unwrap_or(Path::new(""));
        join_folder(&mut client, folder);
        Ok(client)
    }

    /// Sets basic authentication.
    pub fn set_basic_auth(&mut self, username: String, password: Secret) {
        self.basic_auth = Some(BasicAuth { username, password, ..BasicAuth::zero() });
    }

    /// Adds a header to each request; its value may be secret.
    pub fn add_header(&mut self, name: String, value: Secret) {
        let headers = self.http_headers.get_or_insert_default();
        headers.entry(name).or_insert_with(Header::zero).secrets.push(value);
    }
}

impl Checked for BasicAuth {}
impl Checked for Authorization {}
impl Checked for Header {}

impl Checked for ProxyConfig {
    fn check(&mut self) -> Result<(), String> {
        let has_url = self.proxy_url.as_ref().is_some_and(|url| !url.as_str().is_empty());
        let text = if !self.proxy_connect_header.is_empty()
            && !self.proxy_from_environment
            && !has_url
        {
            "if proxy_connect_header is configured, proxy_url or proxy_from_environment must also \
             be configured"
        } else if self.proxy_from_environment && has_url {
            "if proxy_from_environment is configured, proxy_url must not be configured"
        } else if self.proxy_from_environment && !self.no_proxy.is_empty() {
            "if proxy_from_environment is configured, no_proxy must not be configured"
        } else if self.proxy_url.is_none() && !self.no_proxy.is_empty() {
            "if no_proxy is configured, proxy_url must also be configured"
        } else {
            return Ok(());
        };
        Err(text.to_owned())
    }
}

impl Checked for OAuth2 {
    fn check(&mut self) -> Result<(), String> {
        self.proxy.check()
    }
}

impl Checked for TlsConfig {
    fn check(&mut self) -> Result<(), String> {
        let cas = [!self.ca.is_empty(), !self.ca_file.is_empty(), !self.ca_ref.is_empty()];
        let certs = [!self.cert.is_empty(), !self.cert_file.is_empty(), !self.cert_ref.is_empty()];
        let keys = [!self.key.is_zero(), !self.key_file.is_empty(), !self.key_ref.is_empty()];
        at_most_one(cas, "at most one of ca, ca_file & ca_ref must be configured")?;
        at_most_one(certs, "at most one of cert, cert_file & cert_ref must be configured")?;
        at_most_one(keys, "at most one of key and key_file must be configured")?;
        match (certs.contains(&true), keys.contains(&true)) {
            (true, false) => Err("exactly one of key or key_file must be configured when a \
                                  client certificate is configured"
                .to_owned()),
            (false, true) => Err("exactly one of cert or cert_file must be configured when a \
                                  client key is configured"
                .to_owned()),
            _ => Ok(()),
        }
    }
}

impl Checked for HttpClient {
    fn start(&mut self) {
        *self = HttpClient::default();
    }

    /// In Prometheus' order. Moves a bearer token into `authorization`.
    fn check(&mut self) -> Result<(), String> {
        let (has_token, has_token_file) =
            (!self.bearer_token.is_zero(), !self.bearer_token_file.is_empty());
        let err = |text: &str| Err(text.to_owned());
        if has_token && has_token_file {
            return err("at most one of bearer_token & bearer_token_file must be configured");
        }
        let has_bearer = has_token || has_token_file;
        if (self.basic_auth.is_some() || self.oauth2.is_some()) && has_bearer {
            return err(
                "at most one of basic_auth, oauth2, bearer_token & bearer_token_file must be \
                 configured",
            );
        }
        if let Some(auth) = &self.basic_auth {
            at_most_one(
                [
                    !auth.username.is_empty(),
                    !auth.username_file.is_empty(),
                    !auth.username_ref.is_empty(),
                ],
                "at most one of basic_auth username, username_file & username_ref must be \
                 configured",
            )?;
            at_most_one(
                [
                    !auth.password.is_zero(),
                    !auth.password_file.is_empty(),
                    !auth.password_ref.is_empty(),
                ],
                "at most one of basic_auth password, password_file & password_ref must be \
                 configured",
            )?;
        }
        if let Some(auth) = &mut self.authorization {
            if has_bearer {
                return err(
                    "authorization is not compatible with bearer_token & bearer_token_file",
                );
            }
            at_most_one(
                [
                    !auth.credentials.is_zero(),
                    !auth.credentials_file.is_empty(),
                    !auth.credentials_ref.is_empty(),
                ],
                "at most one of authorization credentials & credentials_file must be configured",
            )?;
            auth.kind = match auth.kind.trim() {
                "" => "Bearer".to_owned(),
                kind => kind.to_owned(),
            };
            if auth.kind.eq_ignore_ascii_case("basic") {
                return err(
                    "authorization type cannot be set to \"basic\", use \"basic_auth\" instead",
                );
            }
            if self.basic_auth.is_some() || self.oauth2.is_some() {
                return err("at most one of basic_auth, oauth2 & authorization must be configured");
            }
        } else if has_bearer {
            self.authorization = Some(Authorization {
                kind: "Bearer".to_owned(),
                credentials: std::mem::replace(&mut self.bearer_token, Secret::zero()),
                credentials_file: std::mem::take(&mut self.bearer_token_file),
                credentials_ref: String::new(),
            });
        }
        if let Some(oauth2) = &self.oauth2 {
            check_oauth2(oauth2, self.basic_auth.is_some())?;
        }
        self.proxy.check()?;
        self.http_headers.iter().flat_map(BTreeMap::keys).try_for_each(|name| check_header(name))
    }
}

fn check_oauth2(oauth2: &OAuth2, has_basic_auth: bool) -> Result<(), String> {
    let err = |text: &str| Err(text.to_owned());
    if has_basic_auth {
        return err("at most one of basic_auth, oauth2 & authorization must be configured");
    }
    if oauth2.client_id.is_empty() {
        return err("oauth2 client_id must be configured");
    }
    if oauth2.token_url.as_str().is_empty() {
        return err("oauth2 token_url must be configured");
    }
    if oauth2.grant_type == "urn:ietf:params:oauth:grant-type:jwt-bearer" {
        at_most_one(
            [
                !oauth2.client_certificate_key.is_zero(),
                !oauth2.client_certificate_key_file.is_empty(),
                !oauth2.client_certificate_key_ref.is_empty(),
            ],
            "at most one of oauth2 client_certificate_key, client_certificate_key_file & \
             client_certificate_key_ref must be configured using \
             grant-type=urn:ietf:params:oauth:grant-type:jwt-bearer",
        )?;
        if !matches!(oauth2.signature_algorithm.as_str(), "" | "RS256" | "RS384" | "RS512") {
            return err("valid signature algorithms are RS256, RS384 and RS512");
        }
        return Ok(());
    }
    at_most_one(
        [
            !oauth2.client_secret.is_zero(),
            !oauth2.client_secret_file.is_empty(),
            !oauth2.client_secret_ref.is_empty(),
        ],
        "at most one of oauth2 client_secret, client_secret_file & client_secret_ref must be \
         configured using grant-type=client_credentials",
    )
}

pub(super) fn at_most_one<const N: usize>(set: [bool; N], text: &str) -> Result<(), String> {
    match set.iter().filter(|is_set| **is_set).count() {
        0 | 1 => Ok(()),
        _ => Err(text.to_owned()),
    }
}

/// Headers that requests set themselves, in lower case.
const RESERVED_HEADERS: [&str; 18] = [
    "authorization",
    "host",
    "content-encoding",
    "content-length",
    "content-type",
    "user-agent",
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "www-authenticate",
    "accept-encoding",
    "x-prometheus-remote-write-version",
    "x-prometheus-remote-read-version",
    "x-prometheus-scrape-timeout-seconds",
    "x-amz-date",
    "x-amz-security-token",
    "x-amz-content-sha256",
];

fn check_header(name: &str) -> Result<(), String> {
    if RESERVED_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
        let name = quoted(canonical_header(name).as_bytes());
        return Err(format!("setting header {name} is not allowed"));
    }
    Ok(())
}

/// Whether a remote storage or a tracing endpoint may not be sent the header `name`.
pub(super) fn is_reserved_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // Only scrapes send their timeout.
    RESERVED_HEADERS.contains(&name.as_str()) && name != "x-prometheus-scrape-timeout-seconds"
}

/// `x-foo` as `X-Foo`.
fn canonical_header(name: &str) -> String {
    let mut upper = true;
    let canonical = |c: char| {
        let c = if upper { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() };
        upper = c == '-';
        c
    };
    name.chars().map(canonical).collect()
}
