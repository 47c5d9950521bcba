//! The file of `--web-config`: Prometheus' `--web.config.file`, read as it is, and below `users`
//! our own keys. Parsing reads no other file.

#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use firn_model::{
    Budget, CancelToken, Error, ErrorKind, KeptMemory, Matcher, Pool, QueryContext, Reservation,
    Result, excerpt,
};
use firn_yaml::{Node, NodeValue};

use super::account::{Account, DIGEST_BYTES, PasswordHash, Roles, UserLimits};
use super::section::{self, KeyValue, Section};
use crate::wire::number::parse_unit_duration_ms;

/// A parsed web configuration.
#[derive(Debug, Default)]
pub struct WebConfig {
    pub(super) tls: Option<TlsSettings>,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) accounts: Vec<Arc<Account>>,
    pub(super) rate: Option<RateLimit>,
    /// Keys that are accepted and have no effect or another one, with the reason.
    pub(super) warnings: Vec<String>,
    pub(super) memory: ConfigMemory,
}

/// `tls_server_config`.
#[derive(Debug)]
pub(super) struct TlsSettings {
    pub(super) certificate: PemSource,
    pub(super) key: PemSource,
    pub(super) client_ca: Option<PemSource>,
    pub(super) client_auth: ClientAuth,
    pub(super) allowed_sans: Vec<String>,
    pub(super) versions: TlsVersions,
    pub(super) cipher_suites: Vec<String>,
    pub(super) curves: Vec<String>,
    pub(super) prefers_server_order: bool,
}

/// How certificates of clients are checked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClientRules {
    auth: ClientAuth,
    authorities: String,
    allowed_sans: Vec<String>,
}

impl TlsSettings {
    pub(super) fn client_rules(&self) -> ClientRules {
        ClientRules {
            auth: self.client_auth,
            authorities: self.client_ca.as_ref().map_or_else(String::new, |ca| ca.text.clone()),
            allowed_sans: self.allowed_sans.clone(),
        }
    }
}

/// A certificate or key: its text, or the file that contains it, or both once that was read.
#[derive(Default)]
pub(super) struct PemSource {
    pub(super) path: Option<PathBuf>,
    pub(super) text: String,
}

impl std::fmt::Debug for PemSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{path:?}"),
            None => f.write_str("inline"),
        }
    }
}

/// `client_auth_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientAuth {
    None,
    IfGiven,
    Required,
}

/// The range of protocol versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TlsVersions {
    pub(super) has_12: bool,
    pub(super) has_13: bool,
}

/// `rate_limit`: of all requests together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RateLimit {
    pub(super) per_second: f64,
    pub(super) burst: u64,
}

/// A check with cost 14 takes a second; each step doubles it.
const BCRYPT_COST_MAX: u32 = 15;
/// As in Prometheus; other headers are the server's own.
const HEADERS: [&str; 5] = [
    "Content-Security-Policy",
    "Strict-Transport-Security",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-XSS-Protection",
];

/// Longest file. A user with a password and a token has some 200 bytes.
pub(super) const FILE_BYTES_MAX: usize = 1 << 20;
/// Users of `users` and `basic_auth_users` together.
const USERS_MAX: usize = 10_000;
/// Tokens of all users. A login compares all.
const TOKENS_MAX: usize = 10_000;
/// Users without credentials that a warning names.
const NAMED_USERS_MAX: usize = 10;

const KEYS: &[&str] =
    &["tls_server_config", "http_server_config", "rate_limit", "basic_auth_users", "users"];
const TLS_KEYS: &[&str] = &[
    "cert",
    "cert_file",
    "key",
    "key_file",
    "client_ca",
    "client_ca_file",
    "client_auth_type",
    "client_allowed_sans",
    "min_version",
    "max_version",
    "cipher_suites",
    "curve_preferences",
    "prefer_server_cipher_suites",
];
/// Go's secure cipher suites, as Prometheus names them.
const CIPHERS: &[&str] = &[
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];
const CURVES: &[&str] = &["CurveP256", "CurveP384", "CurveP521", "X25519"];
const HTTP_KEYS: &[&str] = &["http2", "headers"];
const RATE_KEYS: &[&str] = &["interval", "burst"];
const USER_KEYS: &[&str] = &["name", "password", "tokens", "roles", "matchers", "limits"];
const LIMIT_KEYS: &[&str] =
    &["queries_at_once", "samples_per_query", "new_series_per_second", "requests_per_second"];

/// The memory of a configuration, released on drop.
#[derive(Debug, Default)]
pub(super) struct ConfigMemory {
    /// The text and the users.
    held: Option<Reservation>,
    bytes: u64,
    /// Matchers of users.
    _matchers: KeptMemory,
}

impl ConfigMemory {
    /// Reserves `bytes` more.
    fn add(&mut self, bytes: usize) -> Result<()> {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self.held.as_mut().map_or(Ok(()), |held| held.cover(self.bytes))
    }
}

impl WebConfig {
    /// Parses `text`, the contents of `path`. Relative paths in it are relative to its folder.
    ///
    /// # Errors
    /// `Invalid` with file and line: unknown keys, values without a meaning, too many users.
    pub fn parse(path: &Path, text: &str) -> Result<WebConfig> {
        WebConfig::parse_within(path, text, &Budget::unlimited())
    }

    /// As [`WebConfig::parse`], within the memory of `budget`. The result holds the memory of its
    /// users and of `text`, of which the caller may keep a copy.
    ///
    /// # Errors
    /// As [`WebConfig::parse`]; `Busy` and `TooLarge` without memory.
    pub(super) fn parse_within(path: &Path, text: &str, budget: &Budget) -> Result<WebConfig> {
        let file = path.display().to_string();
        if text.len() > FILE_BYTES_MAX {
            let what = format!("{file}: it is longer than {FILE_BYTES_MAX} bytes");
            return Err(Error::invalid(what));
        }
        // The bounds of one request for the matchers of all users together. They stay compiled, and
        // all queries share them.
        let context = QueryContext::new(CancelToken::new(), budget.clone());
        let mut config = WebConfig::default();
        config.memory._matchers = context.kept.clone();
        config.memory.held = Some(budget.empty(Pool::Requests));
        config.memory.add(text.len())?;
        let document = section::parse(&file, text, budget)?;
        let top = Section::new(&file, "", document.root.as_deref(), KEYS)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        config.tls = config.tls(&top.section("tls_server_config", TLS_KEYS)?, folder)?;
        config.http(&top.section("http_server_config", HTTP_KEYS)?)?;
        config.rate = rate(&top.section("rate_limit", RATE_KEYS)?)?;
        config.users(&file, &top, &context)?;
        Ok(config)
    }

    /// Keys that are accepted although they have no effect, with the reason.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn tls(&mut self, tls: &Section<'_>, folder: &Path) -> Result<Option<TlsSettings>> {
        let certificate = pem(tls, folder, "cert", "cert_file")?;
        let key = pem(tls, folder, "key", "key_file")?;
        let client_ca = pem(tls, folder, "client_ca", "client_ca_file")?;
        let client_auth = tls.text("client_auth_type")?;
        let allowed_sans = tls.texts("client_allowed_sans")?;
        let versions = self.versions(tls)?;
        let cipher_suites = known_names(tls, "cipher_suites", "cipher", CIPHERS)?;
        let curves = known_names(tls, "curve_preferences", "curve", CURVES)?;
        let prefers_server_order = tls.switch("prefer_server_cipher_suites")?.unwrap_or(true);
        let is_used =
            certificate.is_some() || key.is_some() || client_ca.is_some() || client_auth.is_some();
        let missing = |what: &str| tls.error(what, 1, "missing, while others of TLS are set");
        let auth = match client_auth.map(|(name, _)| name) {
            None | Some("NoClientCert") => ClientAuth::None,
            Some("RequestClientCert") => {
                self.warnings.push(
                    "client_auth_type RequestClientCert: no certificate is requested, because it \
                     would not be checked"
                        .to_owned(),
                );
                ClientAuth::None
            }
            Some("VerifyClientCertIfGiven") => ClientAuth::IfGiven,
            Some("RequireAndVerifyClientCert") => ClientAuth::Required,
            Some(other) => {
                let what = match other {
                    "RequireAnyClientCert" | "RequireClientCert" => {
                        "accepts certificates that no authority has signed; use RequireAndVerifyClientCert"
                    }
                    _ => {
                        "expected NoClientCert, VerifyClientCertIfGiven or \
                         RequireAndVerifyClientCert"
                    }
                };
                let line = client_auth.map_or(1, |(_, line)| line);
                return Err(tls.error("client_auth_type", line, what));
            }
        };
        if auth == ClientAuth::None && client_ca.is_some() {
            let what = "needs client_auth_type: RequireAndVerifyClientCert";
            return Err(tls.error("client_ca_file", 1, what));
        }
        if auth != ClientAuth::None && client_ca.is_none() {
            return Err(missing("client_ca_file"));
        }
        if let Some((_, line)) = allowed_sans.first().filter(|_| auth != ClientAuth::Required) {
            let what = "needs client_auth_type: RequireAndVerifyClientCert";
            return Err(tls.error("client_allowed_sans", *line, what));
        }
        if let Some((_, line)) = allowed_sans.iter().find(|(san, _)| san.contains('@')) {
            let what = "e-mail addresses in certificates are not read; use a DNS name, URI or IP";
            return Err(tls.error("client_allowed_sans", *line, what));
        }
        let settings = match (certificate, key) {
            (None, None) if !is_used => None,
            (Some(certificate), Some(key)) => Some(TlsSettings {
                certificate,
                key,
                client_ca,
                client_auth: auth,
                allowed_sans: allowed_sans.into_iter().map(|(san, _)| san.to_owned()).collect(),
                versions,
                cipher_suites,
                curves,
                prefers_server_order,
            }),
            (None, _) => return Err(missing("cert_file")),
            (_, None) => return Err(missing("key_file")),
        };
        Ok(settings)
    }

    fn versions(&mut self, tls: &Section<'_>) -> Result<TlsVersions> {
        let min = tls.text("min_version")?;
        let max = tls.text("max_version")?;
        let number = |name: &str| match name {
            "TLS10" => Some(0),
            "TLS11" => Some(1),
            "TLS12" => Some(2),
            "TLS13" => Some(3),
            _ => None,
        };
        let read = |key: &str, given: Option<(&str, usize)>, default: u8| match given {
            None => Ok(default),
            Some((name, line)) => {
                number(name).ok_or_else(|| tls.error(key, line, "expected TLS12 or TLS13"))
            }
        };
        let least = read("min_version", min, 2)?;
        let most = read("max_version", max, 3)?;
        if least < 2 {
            self.warnings
                .push("min_version: TLS 1.0 and 1.1 are not spoken; the least is TLS12".into());
        }
        if most < 2 || most < least {
            let line = max.map_or(1, |(_, line)| line);
            let what = "expected TLS12 or TLS13, and at least min_version";
            return Err(tls.error("max_version", line, what));
        }
        Ok(TlsVersions { has_12: least <= 2, has_13: most >= 3 })
    }

    fn http(&mut self, http: &Section<'_>) -> Result<()> {
        if http.switch("http2")? == Some(true) {
            self.warnings.push("http_server_config.http2: this server speaks HTTP/1.1 only".into());
        }
        let headers = http.section("headers", &HEADERS)?;
        for name in HEADERS {
            let Some((value, line)) = headers.text(name)? else { continue };
            let expected: &[&str] = match name {
                "X-Content-Type-Options" => &["nosniff"],
                "X-Frame-Options" => &["deny", "sameorigin"],
                _ => &[],
            };
            if !expected.is_empty() && !expected.contains(&value) {
                let what = format!("invalid value; expected one of {}", expected.join(", "));
                return Err(headers.error(name, line, what));
            }
            if value.is_empty() {
                continue;
            }
            let (Ok(header), Ok(value)) =
                (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value))
            else {
                return Err(headers.error(name, line, "expected a header value of one line"));
            };
            self.headers.push((header, value));
        }
        Ok(())
    }

    fn users(&mut self, file: &str, top: &Section<'_>, context: &QueryContext) -> Result<()> {
        let items = match top.entry("users").map(|entry| (entry.line, &entry.value.value)) {
            None => [].as_slice(),
            Some((_, NodeValue::List(items))) => items,
            Some((line, _)) => return Err(section::error(file, line, "users: expected a list")),
        };
        let basic_entry = top.entry("basic_auth_users");
        let basic_count = basic_entry.map_or(0, |entry| section::pairs(entry.value).len());
        let user_count = items.len().saturating_add(basic_count);
        if user_count > USERS_MAX {
            let what =
                format!("{file}: it has {user_count} users, at most {USERS_MAX} are accepted");
            return Err(Error::invalid(what));
        }
        self.memory.add(user_count.saturating_mul(USER_BYTES))?;
        let mut basic = basic_entry.map_or(Ok(HashMap::new()), |entry| basic_users(file, entry))?;
        let mut names = HashSet::new();
        let mut without_credentials = Vec::new();
        let mut token_count = 0_usize;
        let mut tokens = HashSet::new();
        for item in items {
            let mut account = self.user(file, item, context)?;
            let refuse = |what: String| {
                Err(section::error(file, item.line, format!("users: {:?} {what}", account.name)))
            };
            if !names.insert(account.name.clone()) {
                return refuse("is listed twice".to_owned());
            }
            token_count = token_count.saturating_add(account.tokens.len());
            if token_count > TOKENS_MAX {
                return refuse(format!("has too many tokens: all users may have {TOKENS_MAX}"));
            }
            if !account.tokens.iter().all(|token| tokens.insert(*token)) {
                return refuse(
                    "has a token that is listed already: each names one user".to_owned(),
                );
            }
            if let Some(basic) = basic.remove(account.name.as_str()) {
                if account.password.is_some() {
                    return refuse(
                        "has a password here and in basic_auth_users; remove one".to_owned(),
                    );
                }
                account.password = Some(basic.hash);
            }
            if account.password.is_none() && account.tokens.is_empty() {
                without_credentials.push(self.accounts.len());
            }
            self.accounts.push(Arc::new(account));
        }
        self.warn_of(&without_credentials);
        // As in Prometheus, these have full access.
        let mut rest: Vec<(&str, BasicUser)> = basic.into_iter().collect();
        rest.sort_unstable_by_key(|(_, user)| user.line);
        for (name, BasicUser { hash, .. }) in rest {
            let mut account = Account::new(name.to_owned(), Roles::ALL, UserLimits::default());
            account.password = Some(hash);
            self.accounts.push(Arc::new(account));
        }
        Ok(())
    }

    /// Warns of accounts that cannot log in.
    fn warn_of(&mut self, accounts: &[usize]) {
        let named = accounts.iter().take(NAMED_USERS_MAX).filter_map(|idx| self.accounts.get(*idx));
        self.warnings.extend(named.map(|account| {
            let name = &account.name;
            format!("user {name:?} has neither password nor token and cannot log in")
        }));
        let others = accounts.len().saturating_sub(NAMED_USERS_MAX);
        if others > 0 {
            self.warnings.push(format!("{others} further users have neither password nor token"));
        }
    }

    fn user(&mut self, file: &str, item: &Node, context: &QueryContext) -> Result<Account> {
        let section = Section::new(file, "users", Some(item), USER_KEYS)?;
        section.refuse_nulls(&["matchers", "limits"])?;
        let (name, line) = section
            .text("name")?
            .ok_or_else(|| section::error(file, item.line, "users: an element has no name"))?;
        check_name(name).map_err(|what| section::error(file, line, what))?;
        let hash = section.text("password")?;
        let tokens = section.texts("tokens")?;
        let roles = roles(&section, name)?;
        let limits = section.section("limits", LIMIT_KEYS)?;
        limits.refuse_nulls(LIMIT_KEYS)?;
        let limits = UserLimits {
            queries_max: limits.number("queries_at_once")?,
            query_samples_max: limits.number("samples_per_query")?,
            new_series_per_second_max: limits.number("new_series_per_second")?,
            requests_per_second_max: limits.number("requests_per_second")?,
        };
        self.memory.add(tokens.len().saturating_mul(TOKEN_BYTES))?;
        let mut account = Account::new(name.to_owned(), roles, limits);
        account.password = hash.map(|(hash, line)| password(file, line, hash)).transpose()?;
        account.tokens.reserve_exact(tokens.len());
        for (token, line) in tokens {
            account.tokens.push(token_digest(token).ok_or_else(|| {
                section.error("tokens", line, "expected sha256: and 64 digits of hexadecimal")
            })?);
        }
        account.scope = scope(&section, roles, context)?;
        Ok(account)
    }
}

/// A user with its name, its password and their copies in the tables of logins.
const USER_BYTES: usize = 2 * size_of::<Account>() + 1_024;
/// A token, and its entry in the table of tokens.
const TOKEN_BYTES: usize = 128;

/// An entry of `basic_auth_users`.
struct BasicUser {
    hash: PasswordHash,
    line: usize,
}

fn basic_users<'a>(file: &str, entry: KeyValue<'a>) -> Result<HashMap<&'a str, BasicUser>> {
    let refuse = |line: usize, what: &str| Err(section::error(file, line, what));
    if !matches!(entry.value.value, NodeValue::Map(_)) {
        return refuse(entry.line, "basic_auth_users: expected KEY: VALUE lines");
    }
    let mut users = HashMap::new();
    for (key, value) in section::pairs(entry.value) {
        let line = key.line;
        let Some(hash) = section::scalar(value) else {
            return refuse(line, "expected NAME: BCRYPT_HASH");
        };
        let Some(name) = section::key_of(key) else { return refuse(line, "expected a key") };
        let hash = password(file, line, hash)?;
        check_name(name).map_err(|what| section::error(file, line, what))?;
        if let Some(BasicUser { line: first, .. }) = users.insert(name, BasicUser { hash, line }) {
            return refuse(line, &format!("{name}: set twice, first in line {first}"));
        }
    }
    Ok(users)
}

fn pem(
    tls: &Section<'_>,
    folder: &Path,
    inline: &'static str,
    file: &'static str,
) -> Result<Option<PemSource>> {
    let text = tls.text(inline)?.filter(|(text, _)| !text.is_empty());
    let path = tls.text(file)?.filter(|(path, _)| !path.is_empty());
    match (text, path) {
        (Some((_, line)), Some(_)) => {
            Err(tls.error(inline, line, format!("set together with {file}; remove one")))
        }
        (Some((text, _)), None) => Ok(Some(PemSource { path: None, text: text.to_owned() })),
        (None, Some((path, _))) => {
            Ok(Some(PemSource { path: Some(folder.join(path)), text: String::new() }))
        }
        (None, None) => Ok(None),
    }
}

/// The list of `key`, whose names must be `known`: without a certificate, too, as in Prometheus.
fn known_names(tls: &Section<'_>, key: &str, kind: &str, known: &[&str]) -> Result<Vec<String>> {
    let check = |(name, line): (&str, usize)| match known.contains(&name) {
        true => Ok(name.to_owned()),
        false => Err(tls.error(key, line, format!("unknown {kind}: {}", excerpt(name)))),
    };
    tls.texts(key)?.into_iter().map(check).collect()
}

fn rate(section: &Section<'_>) -> Result<Option<RateLimit>> {
    let interval = section.text("interval")?;
    let burst = section.text("burst")?;
    let interval = match interval {
        None => None,
        Some((text, line)) => {
            let ms = match text {
                "0" => Some(0),
                text => parse_unit_duration_ms(text).filter(|ms| *ms >= 0),
            };
            let ms = ms.ok_or_else(|| {
                section.error("interval", line, "expected a duration such as 100ms or 1s")
            })?;
            (ms > 0).then(|| Duration::from_millis(ms.unsigned_abs()))
        }
    };
    let burst = match burst {
        None => 0,
        Some((text, line)) => text
            .parse::<u32>()
            .map_err(|_| section.error("burst", line, "expected a whole number"))?,
    };
    let Some(interval) = interval else { return Ok(None) };
    let per_second = interval.as_secs_f64().recip();
    Ok(Some(RateLimit { per_second, burst: u64::from(burst) }))
}

fn roles(section: &Section<'_>, name: &str) -> Result<Roles> {
    let mut roles = Roles::default();
    for (role, line) in section.texts("roles")? {
        match role {
            "read" => roles.read = true,
            "write" => roles.write = true,
            "admin" => roles = Roles::ALL,
            _ => return Err(section.error("roles", line, "expected read, write or admin")),
        }
    }
    match roles == Roles::default() {
        true => {
            let line = section.entry("name").map_or(1, |entry| entry.line);
            Err(section.error("roles", line, format!("missing; user {name:?} needs one")))
        }
        false => Ok(roles),
    }
}

/// The matchers of a user.
fn scope(section: &Section<'_>, roles: Roles, context: &QueryContext) -> Result<Arc<[Matcher]>> {
    let Some((text, line)) = section.text("matchers")? else { return Ok(Arc::default()) };
    let refuse = |what: &str| Err(section.error("matchers", line, what));
    let scope = firn_promql::parse_selector(text, context).map_err(|e| match e.kind() {
        ErrorKind::Invalid => {
            let what = format!("expected a selector such as {{team=\"a\"}}: {e}");
            section.error("matchers", line, what)
        }
        _ => e.context(section.error("matchers", line, "cannot be read")),
    })?;
    if scope.is_empty() {
        return refuse("expected at least one matcher");
    }
    if roles.write || roles.admin {
        return refuse(
            "are for users with role read only; write and admin need a user without matchers",
        );
    }
    Ok(scope.into())
}

/// The longest name of a user.
const NAME_BYTES_MAX: usize = 100;

/// Describes the rule for names if `name` breaks it.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let is_valid = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.chars().all(|c| !c.is_control() && c != ':');
    match is_valid {
        true => Ok(()),
        false => Err(format!(
            "user {:?}: expected a name of 1 to {NAME_BYTES_MAX} bytes without \":\", which ends \
             the name in a login, and without control characters, which would break lines of logs",
            excerpt(name)
        )),
    }
}

fn password(file: &str, line: usize, hash: &str) -> Result<PasswordHash> {
    let refuse = |what: &str| Err(section::error(file, line, what));
    match bcrypt_cost(hash) {
        None => refuse("expected a bcrypt hash such as $2y$10$..., see `firn user add`"),
        Some(cost) if !(4..=BCRYPT_COST_MAX).contains(&cost) => {
            refuse("expected a bcrypt hash of cost 4 to 15; a check would take seconds")
        }
        Some(_) => Ok(PasswordHash(hash.to_owned())),
    }
}

/// The cost of a bcrypt hash; `None` for other texts.
pub(super) fn bcrypt_cost(hash: &str) -> Option<u32> {
    let mut parts = hash.strip_prefix('$')?.split('$');
    let version = parts.next()?;
    let cost = parts.next()?.parse().ok()?;
    let rest = parts.next()?;
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'/');
    let is_hash = matches!(version, "2a" | "2b" | "2x" | "2y")
        && rest.len() == 53
        && rest.bytes().all(is_base64)
        && parts.next().is_none();
    is_hash.then_some(cost)
}

/// `sha256:` and 64 digits.
fn token_digest(text: &str) -> Option<[u8; DIGEST_BYTES]> {
    let digits = text.strip_prefix("sha256:")?;
    if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut digest = [0; DIGEST_BYTES];
    for (byte, pair) in digest.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests;
