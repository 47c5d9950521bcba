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

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use firn_model::{QueryContext, Result};

use super::account::{Account, DIGEST_BYTES, PasswordHash, Roles, UserLimits};
use super::yaml::{self, NodeValue, Section};
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

impl WebConfig {
    /// Parses `text`, the contents of `path`. Relative paths in it are relative to its folder.
    ///
    /// # Errors
    /// `Invalid` with file and line: unknown keys, values without a meaning.
    pub fn parse(path: &Path, text: &str) -> Result<WebConfig> {
        let file = path.display().to_string();
        let mut config = WebConfig::default();
        let Some(root) = yaml::parse(&file, text)? else { return Ok(config) };
        let mut top = Section::new(&file, "", root)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let tls = top.section("tls_server_config")?;
        config.tls = config.tls(tls, folder)?;
        let http = top.section("http_server_config")?;
        config.http(http)?;
        config.rate = rate(top.section("rate_limit")?)?;
        let passwords = top.section("basic_auth_users")?;
        let users = top.take("users");
        config.users(&file, passwords, users)?;
        top.finish()?;
        Ok(config)
    }

    /// Keys that are accepted although they have no effect, with the reason.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn tls(&mut self, mut tls: Section<'_>, folder: &Path) -> Result<Option<TlsSettings>> {
        let certificate = pem(&mut tls, folder, "cert", "cert_file")?;
        let key = pem(&mut tls, folder, "key", "key_file")?;
        let client_ca = pem(&mut tls, folder, "client_ca", "client_ca_file")?;
        let client_auth = tls.text("client_auth_type")?;
        let allowed_sans = tls.texts("client_allowed_sans")?;
        let versions = self.versions(&mut tls)?;
        let cipher_suites = tls.texts("cipher_suites")?;
        let curves = tls.texts("curve_preferences")?;
        let prefers_server_order = tls.switch("prefer_server_cipher_suites")?.unwrap_or(true);
        let is_used =
            certificate.is_some() || key.is_some() || client_ca.is_some() || client_auth.is_some();
        let missing = |what: &str| tls.error(what, 1, "missing, while others of TLS are set");
        let auth = match client_auth.as_ref().map(|(name, _)| name.as_str()) {
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
                let line = client_auth.as_ref().map_or(1, |(_, line)| *line);
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
        let first = |list: Vec<(String, usize)>| list.into_iter().map(|(text, _)| text).collect();
        let settings = match (certificate, key) {
            (None, None) if !is_used => None,
            (Some(certificate), Some(key)) => Some(TlsSettings {
                certificate,
                key,
                client_ca,
                client_auth: auth,
                allowed_sans: first(allowed_sans),
                versions,
                cipher_suites: first(cipher_suites),
                curves: first(curves),
                prefers_server_order,
            }),
            (None, _) => return Err(missing("cert_file")),
            (_, None) => return Err(missing("key_file")),
        };
        tls.finish()?;
        Ok(settings)
    }

    fn versions(&mut self, tls: &mut Section<'_>) -> Result<TlsVersions> {
        let min = tls.text("min_version")?;
        let max = tls.text("max_version")?;
        let number = |name: &str| match name {
            "TLS10" => Some(0),
            "TLS11" => Some(1),
            "TLS12" => Some(2),
            "TLS13" => Some(3),
            _ => None,
        };
        let read = |key: &str, given: &Option<(String, usize)>, default: u8| match given {
            None => Ok(default),
            Some((name, line)) => {
                number(name).ok_or_else(|| tls.error(key, *line, "expected TLS12 or TLS13"))
            }
        };
        let least = read("min_version", &min, 2)?;
        let most = read("max_version", &max, 3)?;
        if least < 2 {
            self.warnings
                .push("min_version: TLS 1.0 and 1.1 are not spoken; the least is TLS12".into());
        }
        if most < 2 || most < least {
            let line = max.as_ref().map_or(1, |(_, line)| *line);
            let what = "expected TLS12 or TLS13, and at least min_version";
            return Err(tls.error("max_version", line, what));
        }
        Ok(TlsVersions { has_12: least <= 2, has_13: most >= 3 })
    }

    fn http(&mut self, mut http: Section<'_>) -> Result<()> {
        if http.switch("http2")? == Some(true) {
            self.warnings.push("http_server_config.http2: this server speaks HTTP/1.1 only".into());
        }
        let mut headers = http.section("headers")?;
        for name in HEADERS {
            let Some((value, line)) = headers.text(name)? else { continue };
            if value.is_empty() {
                continue;
            }
            let (Ok(header), Ok(value)) =
                (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(&value))
            else {
                return Err(headers.error(name, line, "expected a header value of one line"));
            };
            self.headers.push((header, value));
        }
        headers.finish()?;
        http.finish()
    }

    fn users(
        &mut self,
        file: &str,
        passwords: Section<'_>,
        users: Option<yaml::KeyValue>,
    ) -> Result<()> {
        let mut basic = Vec::new();
        for entry in passwords.into_entries() {
            let hash = match entry.value.value {
                NodeValue::Scalar(Some(hash)) => password(file, entry.line, hash)?,
                _ => return Err(yaml::error(file, entry.line, "expected NAME: BCRYPT_HASH")),
            };
            check_name(file, entry.line, &entry.key)?;
            basic.push((entry.key, hash));
        }
        let items = match users.map(|entry| (entry.line, entry.value.value)) {
            None => Vec::new(),
            Some((_, NodeValue::List(items))) => items,
            Some((line, _)) => return Err(yaml::error(file, line, "users: expected a list")),
        };
        let mut accounts: Vec<Account> = Vec::new();
        // The bounds of one request for the matchers of all users together. They stay compiled, and
        // all queries share them.
        let context = QueryContext::unbounded();
        for item in items {
            let line = item.line;
            let mut account = user(file, Section::new(file, "users", item)?, &context)?;
            if accounts.iter().any(|other| other.name == account.name) {
                let what = format!("users: {:?} is listed twice", account.name);
                return Err(yaml::error(file, line, what));
            }
            if let Some(idx) = basic.iter().position(|(name, _)| *name == account.name) {
                let (_, hash) = basic.remove(idx);
                if account.password.replace(hash).is_some() {
                    let what = format!(
                        "users: {:?} has a password here and in basic_auth_users; remove one",
                        account.name
                    );
                    return Err(yaml::error(file, line, what));
                }
            }
            if account.password.is_none() && account.tokens.is_empty() {
                self.warnings.push(format!(
                    "user {:?} has neither password nor token and cannot log in",
                    account.name
                ));
            }
            accounts.push(account);
        }
        // As in Prometheus, these have full access.
        accounts.extend(basic.into_iter().map(|(name, hash)| {
            let mut account = Account::new(name, Roles::ALL, UserLimits::default());
            account.password = Some(hash);
            account
        }));
        self.accounts = accounts.into_iter().map(Arc::new).collect();
        Ok(())
    }
}

fn pem(
    tls: &mut Section<'_>,
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
        (Some((text, _)), None) => Ok(Some(PemSource { path: None, text })),
        (None, Some((path, _))) => {
            Ok(Some(PemSource { path: Some(folder.join(path)), text: String::new() }))
        }
        (None, None) => Ok(None),
    }
}

fn rate(mut section: Section<'_>) -> Result<Option<RateLimit>> {
    let interval = section.text("interval")?;
    let burst = section.text("burst")?;
    let interval = match interval {
        None => None,
        Some((text, line)) => {
            let ms = match text.as_str() {
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
    section.finish()?;
    let Some(interval) = interval else { return Ok(None) };
    let per_second = interval.as_secs_f64().recip();
    Ok(Some(RateLimit { per_second, burst: u64::from(burst) }))
}

fn user(file: &str, mut section: Section<'_>, context: &QueryContext) -> Result<Account> {
    let (name, line) = section
        .text("name")?
        .ok_or_else(|| yaml::error(file, 1, "users: an element has no name"))?;
    check_name(file, line, &name)?;
    let hash = section.text("password")?;
    let tokens = section.texts("tokens")?;
    let mut roles = Roles::default();
    for (role, line) in section.texts("roles")? {
        match role.as_str() {
            "read" => roles.read = true,
            "write" => roles.write = true,
            "admin" => roles = Roles::ALL,
            _ => return Err(section.error("roles", line, "expected read, write or admin")),
        }
    }
    if roles == Roles::default() {
        return Err(section.error("roles", line, format!("missing; user {name:?} needs one")));
    }
    let matchers = section.text("matchers")?;
    let mut limits = section.section("limits")?;
    let user_limits = UserLimits {
        queries_max: limits.number("queries_at_once")?,
        query_samples_max: limits.number("samples_per_query")?,
        new_series_per_second_max: limits.number("new_series_per_second")?,
        requests_per_second_max: limits.number("requests_per_second")?,
    };
    limits.finish()?;
    let mut account = Account::new(name, roles, user_limits);
    account.password = hash.map(|(hash, line)| password(file, line, hash)).transpose()?;
    for (token, line) in tokens {
        account.tokens.push(token_digest(&token).ok_or_else(|| {
            section.error("tokens", line, "expected sha256: and 64 digits of hexadecimal")
        })?);
    }
    if let Some((text, line)) = matchers {
        let scope = firn_promql::parse_selector(&text, context).map_err(|e| {
            section.error(
                "matchers",
                line,
                format!("expected a selector such as {{team=\"a\"}}: {e}"),
            )
        })?;
        if scope.is_empty() {
            return Err(section.error("matchers", line, "expected at least one matcher"));
        }
        if roles.write || roles.admin {
            let what =
                "are for users with role read only; write and admin need a user without matchers";
            return Err(section.error("matchers", line, what));
        }
        account.scope = scope.into();
    }
    section.finish()?;
    Ok(account)
}

/// Names are shown in logs, and a colon ends a name in basic authentication.
fn check_name(file: &str, line: usize, name: &str) -> Result<()> {
    let is_valid =
        !name.is_empty() && name.len() <= 100 && name.chars().all(|c| !c.is_control() && c != ':');
    match is_valid {
        true => Ok(()),
        false => {
            let what = "a user's name has 1 to 100 characters, without control characters and `:`";
            Err(yaml::error(file, line, what))
        }
    }
}

fn password(file: &str, line: usize, hash: String) -> Result<PasswordHash> {
    let refuse = |what: &str| Err(yaml::error(file, line, what));
    match bcrypt_cost(&hash) {
        None => refuse("expected a bcrypt hash such as $2y$10$..., see `firn user add`"),
        Some(cost) if !(4..=BCRYPT_COST_MAX).contains(&cost) => {
            refuse("expected a bcrypt hash of cost 4 to 15; a check would take seconds")
        }
        Some(_) => Ok(PasswordHash(hash)),
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
mod tests {
    use super::*;

    const HASH: &str = "$2y$10$mDwo.lAisC94iLAyP81MCesa29IzH37oigHC/42V2pdJlUprsJPze";

    fn parse(text: &str) -> Result<WebConfig> {
        WebConfig::parse(Path::new("/etc/firn/web.yml"), text)
    }

    #[test]
    fn the_matchers_of_all_users_share_one_bound() {
        let user = |name: usize, count: usize| {
            let list: Vec<String> = (0..count).map(|idx| format!("a=~\"x.*{idx}\"")).collect();
            let list = list.join(",");
            format!("- name: u{name}\n  roles: [read]\n  matchers: '{{{list}}}'\n")
        };
        let users = |count: usize| format!("users:\n{}{}", user(0, count), user(1, count));
        let scopes = parse(&users(3)).unwrap();
        let scopes = scopes.accounts.iter().flat_map(|account| account.scope.iter());
        assert_eq!(scopes.filter(|one| one.regex().is_some()).count(), 6, "compiled at load");
        refusal(&users(600), "over 1000 regular expressions");
        let states = "users:\n- name: u\n  roles: [read]\n  matchers: '{a=~\"(a{1000}){1000}\"}'\n";
        refusal(states, "it compiles to over 8388608 bytes");
    }

    fn refusal(text: &str, wanted: &str) {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(wanted), "{text}\n{error}");
    }

    #[test]
    fn prometheus_files_are_read_as_they_are() {
        let config = parse(&format!(
            "tls_server_config:\n  cert_file: server.crt\n  key_file: /keys/server.key\n  \
             client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n  \
             client_allowed_sans: [prom.example]\n  min_version: TLS13\n  cipher_suites:\n  \
             - TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256\n  prefer_server_cipher_suites: false\n  \
             curve_preferences: [X25519]\nhttp_server_config:\n  http2: true\n  headers:\n    \
             X-Frame-Options: deny\nbasic_auth_users:\n  alice: {HASH}\nrate_limit:\n  \
             interval: \"1s\"\n  burst: 20\n"
        ))
        .unwrap();
        let tls = config.tls.unwrap();
        assert!(tls.certificate.path.as_deref() == Some(Path::new("/etc/firn/server.crt")));
        assert_eq!(tls.key.path.as_deref(), Some(Path::new("/keys/server.key")));
        assert_eq!((tls.client_auth, tls.prefers_server_order), (ClientAuth::Required, false));
        assert_eq!(tls.versions, TlsVersions { has_12: false, has_13: true });
        assert_eq!(config.headers.len(), 1);
        assert_eq!(config.rate, Some(RateLimit { per_second: 1.0, burst: 20 }));
        assert_eq!(config.warnings, ["http_server_config.http2: this server speaks HTTP/1.1 only"]);
        let [alice] = &config.accounts[..] else { panic!("one user") };
        assert_eq!((alice.name.as_str(), alice.roles), ("alice", Roles::ALL));
        let empty = parse("").unwrap();
        assert!(empty.tls.is_none() && empty.accounts.is_empty());
        assert!(parse("tls_server_config:\nbasic_auth_users:\n").unwrap().tls.is_none());
    }

    #[test]
    fn users_have_roles_tokens_matchers_and_limits() {
        let digest = "ab".repeat(32);
        let config = parse(&format!(
            "basic_auth_users: {{grafana: {HASH}}}\nusers:\n- name: grafana\n  roles: [read]\n  \
             matchers: '{{team=\"a\"}}'\n  limits:\n    queries_at_once: 3\n    \
             samples_per_query: 10\n    new_series_per_second: 5\n    requests_per_second: 7\n\
             - name: agent\n  roles: write\n  tokens:\n  - sha256:{digest}\n"
        ))
        .unwrap();
        let [grafana, agent] = &config.accounts[..] else { panic!("two users") };
        assert!(grafana.password.is_some() && grafana.scope.len() == 1);
        assert_eq!(grafana.roles.names(), ["read"]);
        assert_eq!(grafana.limits.queries_max, Some(3));
        assert_eq!(grafana.limits.requests_per_second_max, Some(7));
        assert_eq!((agent.roles.names(), agent.tokens[0]), (vec!["write"], [0xab; 32]));
    }

    #[test]
    fn mistakes_are_refused_by_name() {
        refusal("tls_config: {}\n", "web.yml:1: tls_config: unknown key");
        refusal("tls_server_config: {cert: x, key_fil: y}\n", "key_fil");
        refusal("tls_server_config: {cert: x}\n", "tls_server_config.key_file: missing");
        refusal("tls_server_config: {cert: x, cert_file: y, key: z}\n", "remove one");
        let tls = "tls_server_config: {cert: x, key: y, ";
        refusal(&format!("{tls}client_auth_type: RequireAnyClientCert}}\n"), "no authority");
        refusal(&format!("{tls}client_ca_file: z}}\n"), "needs client_auth_type");
        refusal(&format!("{tls}client_auth_type: VerifyClientCertIfGiven}}\n"), "client_ca_file");
        refusal(&format!("{tls}client_allowed_sans: [a]}}\n"), "needs client_auth_type");
        refusal(&format!("{tls}max_version: TLS11}}\n"), "max_version");
        refusal(&format!("{tls}min_version: SSL3}}\n"), "expected TLS12 or TLS13");
        refusal("http_server_config: {headers: {X-Other: y}}\n", "X-Other: unknown key");
        refusal("basic_auth_users: {a: secret}\n", "expected a bcrypt hash");
        refusal("basic_auth_users: {a: [x]}\n", "expected NAME: BCRYPT_HASH");
        refusal(&format!("basic_auth_users: {{'a:b': {HASH}}}\n"), "1 to 100 characters");
        let costly = HASH.replace("$10$", "$31$");
        refusal(&format!("basic_auth_users: {{a: {costly}}}\n"), "cost 4 to 15");
        refusal("users: {a: b}\n", "users: expected a list");
        refusal("users: [{roles: [read]}]\n", "no name");
        refusal("users: [{name: a}]\n", "needs one");
        refusal("users: [{name: a, roles: [king]}]\n", "expected read, write or admin");
        refusal("users: [{name: a, roles: [read], colour: x}]\n", "users.colour: unknown key");
        refusal("users: [{name: a, roles: [read], tokens: [abc]}]\n", "expected sha256:");
        refusal("users: [{name: a, roles: [read], matchers: 'team='}]\n", "expected a selector");
        let both = "users: [{name: a, roles: [read, write], matchers: '{t=\"a\"}'}]\n";
        refusal(both, "without matchers");
        refusal("users: [{name: a, roles: [read]}, {name: a, roles: [read]}]\n", "listed twice");
        let twice = format!(
            "basic_auth_users: {{a: {HASH}}}\nusers: [{{name: a, roles: [read], password: {HASH}}}]\n"
        );
        refusal(&twice, "remove one");
        let zero = "users: [{name: a, roles: [read], limits: {queries_at_once: 0}}]\n";
        refusal(zero, "expected a whole number above 0");
        refusal("rate_limit: {interval: soon}\n", "expected a duration");
    }

    #[test]
    fn errors_do_not_show_secrets() {
        for text in [
            "basic_auth_users: {a: hunter2}\n",
            "users: [{name: a, roles: [read], tokens: [hunter2]}]\n",
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
