//! Access to listeners: users, TLS, and the audit log.
//!
//! [`Gate`] holds the current version of the `--web-config` file ([`Policy`]) and replaces it when
//! the file, or a file that it names, changes. A version that cannot be used is reported once and
//! the previous one stays. Without a file every client has all roles.
//!
//! Reading order: `web_config` (the file), `section` (its mappings), `files` (its versions),
//! `account` (users), `login` (checks of credentials), `tls`, `line_log` (audit and query log),
//! `edit` (`firn user`).

pub(crate) mod account;
mod edit;
mod files;
pub(crate) mod line_log;
pub(crate) mod login;
mod section;
mod tls;
mod web_config;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::http::{HeaderName, HeaderValue};
use firn_model::{Budget, Error, ErrorKind, Pool, Reservation, Result, Secret, excerpt};
use parking_lot::{Mutex, RwLock};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use serde_json::{Map, Value};
use tokio::sync::watch;

use self::account::{Roles, TokenBucket, User};
pub(crate) use self::files::SeenFile;
use self::files::{CUT_REST, VersionFiles};
use self::line_log::{ForbiddenFiles, LineLog};
use self::login::{Accounts, Credentials, LoginRefusal, Logins, TokenDigest};
use self::web_config::{ClientAuth, ClientRules, ConfigMemory};
use crate::clock::clock_ms;
use crate::metrics_text::{Kind, MetricsText};
use crate::telemetry::Counter;
use crate::wire::number::rfc3339;

pub use self::edit::{NewUser, UserFile, UserSummary, hash_password};
pub use self::web_config::WebConfig;

/// Options of a [`Gate`].
#[derive(Clone, Debug, Default)]
pub(crate) struct GateOptions {
    /// `--web-config`.
    pub(crate) file: Option<PathBuf>,
    /// `--audit-log`.
    pub(crate) audit_log: Option<PathBuf>,
    /// `--require-auth`.
    pub(crate) requires_auth: bool,
    /// A token that is not in the file and has all roles (`--token-file`).
    pub(crate) token: Option<Secret>,
    /// Other files that the process reads, and those of its own data.
    pub(crate) forbidden: ForbiddenFiles,
    /// The protocol inside TLS speaks HTTP.
    pub(crate) is_http: bool,
    /// Users with matchers are refused: the listener cannot apply them.
    pub(crate) refuses_matchers: bool,
}

/// Users and TLS of all listeners of a process. By default every client has all roles.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    options: GateOptions,
    policy: RwLock<Arc<Policy>>,
    version: AtomicU64,
    /// Changes with the rules for certificates of clients.
    client_rules: watch::Sender<u64>,
    /// The memory of versions, until `budget` is set.
    start_budget: Option<Budget>,
    budget: OnceLock<Budget>,
    /// Only with a file or a token.
    logins: Option<Logins>,
    files: Mutex<GateFiles>,
    audit: Option<LineLog>,
    reloads: Counter,
    failed_reloads: Counter,
    handshakes: Counter,
    failed_handshakes: Counter,
    forbidden: Counter,
}

/// One version of the file.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    tls: Option<Arc<ServerConfig>>,
    /// The certificate of `tls`.
    certificate: Option<CertificateDer<'static>>,
    demands_certificate: bool,
    client_rules: Option<ClientRules>,
    /// Headers of every response.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    accounts: Accounts,
    rate: Option<TokenBucket>,
    _memory: ConfigMemory,
}

/// The files of versions.
#[derive(Debug, Default)]
struct GateFiles {
    used: VersionFiles,
    /// The files of a later version that cannot be used.
    refused: Option<VersionFiles>,
    /// The memory of a version that was read within the budget of the start.
    moved: Option<Reservation>,
}

/// A version as it was read: its files as far as they were read, and the policy.
type LoadedVersion = (VersionFiles, Result<Policy>);

/// An entry of the audit log.
#[derive(Debug)]
pub(crate) struct AuditEntry<'a> {
    pub(crate) user: &'a str,
    pub(crate) address: Option<SocketAddr>,
    /// A verb and its object: `series.delete`.
    pub(crate) action: &'static str,
    /// `ok`, or the error.
    pub(crate) result: &'a str,
    pub(crate) details: Value,
}

/// The address or network of a client, by which its logins are slowed.
pub(crate) fn ip_of(address: Option<SocketAddr>) -> IpAddr {
    address.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| network(address.ip()))
}

/// The unit of limits per client: an IPv4 address or an IPv6 network, because a host chooses its
/// address in its network freely.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
        other => other,
    }
}

/// How often the files are looked at.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Each takes half a second at most.
const REST_TRIES: usize = 10;

impl Gate {
    /// Reads the file within `budget`, and opens the audit log. Idle threads call `on_idle`.
    ///
    /// # Errors
    /// `Invalid` for a file that cannot be used.
    pub(crate) fn open(options: GateOptions, budget: Budget, on_idle: fn()) -> Result<Gate> {
        let (used, policy) = load(&options, &budget);
        let policy = policy?;
        let forbidden = forbidden(&used, &options);
        let audit = options.audit_log.as_deref();
        let audit = audit.map(|path| LineLog::open(path, "--audit-log", forbidden)).transpose()?;
        policy.warn_of_dates();
        let may_log_in = options.file.is_some() || options.token.is_some();
        let logins = may_log_in.then(|| Logins::start(on_idle)).transpose()?;
        Ok(Gate {
            options,
            policy: RwLock::new(Arc::new(policy)),
            logins,
            files: Mutex::new(GateFiles { used, refused: None, moved: None }),
            audit,
            start_budget: Some(budget),
            ..Gate::default()
        })
    }

    /// Versions count in `budget` from now on, the present one included.
    pub(crate) fn limit_memory(&self, budget: &Budget) {
        let mut files = self.files.lock();
        let used = self.start_budget.as_ref().map_or(0, |start| start.usage().used_bytes);
        if self.budget.set(budget.clone()).is_ok() {
            let mut moved = budget.empty(Pool::Requests);
            moved.take(used);
            files.moved = Some(moved);
        }
    }

    /// Checks that a listener at `listen` may be opened, and warns about one that strangers reach.
    ///
    /// # Errors
    /// `Invalid` if `--require-auth` demands more than the file has.
    pub(crate) fn check_listener(&self, listen: SocketAddr) -> Result<()> {
        let policy = self.policy();
        let has_users = self.has_users() || policy.demands_certificate;
        let (is_local, has_tls) = (listen.ip().is_loopback(), policy.tls.is_some());
        let missing = match (has_users, has_tls || is_local) {
            (true, true) => return Ok(()),
            (false, true) => "no users",
            (true, false) => "no TLS",
            (false, false) => "neither users nor TLS",
        };
        if self.options.requires_auth {
            return Err(Error::invalid(format!(
                "--require-auth: {listen} would have {missing}; name a file with them by \
                 --web-config (docs/security.md)"
            )));
        }
        if !is_local {
            tracing::warn!(
                "{listen} is reachable by others and has {missing}: see docs/security.md"
            );
        }
        Ok(())
    }

    /// The files that are no logs: those of the current version, and those of the options.
    pub(crate) fn forbidden(&self) -> ForbiddenFiles {
        forbidden(&self.files.lock().used, &self.options)
    }

    /// The current version of the file.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy.read())
    }

    /// The TLS of new connections; `None` for plain ones.
    pub(crate) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.policy.read().tls.clone()
    }

    /// Changes when the certificates of clients are checked by other rules. Connections under the
    /// previous rules end with their request.
    pub(crate) fn client_rules(&self) -> watch::Receiver<u64> {
        self.client_rules.subscribe()
    }

    /// Reads the files again, once no program writes them, and opens the audit log again.
    ///
    /// # Errors
    /// Those of the file. The previous version stays.
    pub(crate) fn reload(&self) -> Result<()> {
        if let Some(audit) = &self.audit {
            audit.reopen(self.forbidden().inputs);
        }
        if self.options.file.is_none() {
            return Ok(());
        }
        let whole = self.load_at_rest().and_then(|(files, policy)| {
            match files.cut_file(&self.files.lock().used) {
                Some(path) => Err(cut_file(path)),
                None => Ok((files, policy)),
            }
        });
        self.replace(whole)
    }

    /// Reads the files until they do not change meanwhile.
    ///
    /// # Errors
    /// `Unavailable` if they change all the time.
    fn load_at_rest(&self) -> Result<LoadedVersion> {
        for _ in 0..REST_TRIES {
            let budget = self.budget.get().or(self.start_budget.as_ref());
            let budget = budget.cloned().unwrap_or_else(Budget::unlimited);
            let (files, policy) = load(&self.options, &budget);
            if files.are_at_rest() {
                return Ok((files, policy));
            }
        }
        Err(Error::unavailable("the file, or one that it names, changes all the time"))
    }

    /// Replaces the version in use, if this one can be used.
    fn replace(&self, loaded: Result<LoadedVersion>) -> Result<()> {
        let replaced = loaded.and_then(|(files, policy)| {
            match policy.and_then(|policy| self.check_demands(policy)) {
                Ok(policy) => Ok((files, policy)),
                Err(error) => {
                    // Without memory for it, the same version is read again by the next poll.
                    let is_busy = matches!(error.kind(), ErrorKind::Busy { .. });
                    self.files.lock().refused = (!is_busy).then_some(files);
                    Err(error)
                }
            }
        });
        match replaced {
            Ok((files, policy)) => {
                policy.warn_of_dates();
                *self.files.lock() = GateFiles { used: files, refused: None, moved: None };
                let policy = Arc::new(policy);
                let previous = std::mem::replace(&mut *self.policy.write(), Arc::clone(&policy));
                // After the policy: a client that sees the number sees the policy.
                self.version.fetch_add(1, Ordering::Release);
                if previous.client_rules != policy.client_rules {
                    self.client_rules.send_modify(|version| *version = version.wrapping_add(1));
                }
                self.reloads.add(1);
                tracing::info!("--web-config was read again");
                self.audit_reload("ok");
                Ok(())
            }
            Err(error) => {
                self.failed_reloads.add(1);
                tracing::error!(%error, "--web-config cannot be used; the previous version stays");
                self.audit_reload(&error.to_string());
                Err(error)
            }
        }
    }

    /// A running server keeps its kind of protection.
    fn check_demands(&self, policy: Policy) -> Result<Policy> {
        let before = self.policy();
        let has_users = |policy: &Policy| !policy.accounts.is_empty() || policy.demands_certificate;
        if before.tls.is_some() != policy.tls.is_some() {
            return Err(Error::invalid("TLS cannot be switched on or off without a restart"));
        }
        if let Some(fault) = policy.date_fault()
            && before.date_fault().is_none()
        {
            return Err(Error::invalid(format!(
                "tls_server_config.cert_file: the certificate {fault}, unlike the previous one"
            )));
        }
        // Such as a file that an editor has truncated and not written yet.
        if has_users(&before) && !has_users(&policy) {
            return Err(Error::invalid("the last user cannot be removed without a restart"));
        }
        Ok(policy)
    }

    /// Reloads if a file has changed and is at rest. Called at [`POLL_INTERVAL`].
    pub(crate) fn poll(&self, previous: &mut Vec<SeenFile>) {
        if self.options.file.is_none() {
            return;
        }
        let (known, now) = {
            let files = self.files.lock();
            let latest = files.refused.as_ref().unwrap_or(&files.used);
            (latest.seen(), latest.seen_now())
        };
        // A certificate and its key are written one after the other.
        let is_at_rest = *previous == now;
        *previous = now;
        if *previous == known || !is_at_rest {
            return;
        }
        // A file that does not come to rest, or is cut, is looked at again.
        let Ok((files, policy)) = self.load_at_rest() else { return };
        if files.cut_file(&self.files.lock().used).is_none() {
            // The error is logged there.
            let _ = self.replace(Ok((files, policy)));
        }
    }

    /// The user of a request from `address`, after the limits of its rate.
    pub(crate) async fn log_in(
        &self,
        policy: &Policy,
        credentials: &Credentials,
        address: IpAddr,
    ) -> Result<User, LoginRefusal> {
        if let Some(rate) = &policy.rate {
            rate.take(1.0).map_err(LoginRefusal::Later)?;
        }
        let needs_login = self.options.token.is_some() || !policy.accounts.is_empty();
        let Some(logins) = self.logins.as_ref().filter(|_| needs_login) else {
            return Ok(User::anyone());
        };
        if let (Some(wanted), Credentials::Token(token)) = (&self.options.token, credentials)
            && login::is_same_token(wanted.expose().as_bytes(), &TokenDigest::of(token))
        {
            logins.accept_token(token, address)?;
            return Ok(User::anyone());
        }
        let user = logins.check(&policy.accounts, credentials, address).await?;
        user.begin_request().map_err(LoginRefusal::Later)?;
        Ok(user)
    }

    /// The roles, under the current version of the file, of a client that has logged in with a
    /// token or not at all. `None` if it must log in.
    pub(crate) fn roles_of(&self, token: Option<&TokenDigest>) -> Option<Roles> {
        let policy = self.policy();
        if self.options.token.is_none() && policy.accounts.is_empty() {
            return Some(Roles::ALL);
        }
        let (token, own) = (token?, self.options.token.as_ref());
        if own.is_some_and(|own| login::is_same_token(own.expose().as_bytes(), token)) {
            return Some(Roles::ALL);
        }
        policy.accounts.of_digest(token).map(|user| user.roles())
    }

    /// Changes with the version of the file.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether requests need a login.
    pub(crate) fn has_users(&self) -> bool {
        self.options.token.is_some() || !self.policy.read().accounts.is_empty()
    }

    /// Counts a request whose user lacks a role.
    pub(crate) fn forbade(&self) {
        self.forbidden.add(1);
    }

    /// Counts a finished TLS handshake.
    pub(crate) fn shook_hands(&self, is_done: bool) {
        if is_done { &self.handshakes } else { &self.failed_handshakes }.add(1);
    }

    /// Writes a line of the audit log.
    pub(crate) fn audit(&self, entry: &AuditEntry<'_>) {
        let Some(audit) = &self.audit else { return };
        let mut line = Map::new();
        line.insert("ts".to_owned(), rfc3339(clock_ms()).into());
        line.insert("user".to_owned(), excerpt(entry.user).into());
        let address = entry.address.map(|address| address.to_string());
        line.insert("address".to_owned(), address.into());
        line.insert("action".to_owned(), entry.action.into());
        line.insert("result".to_owned(), excerpt(entry.result).into());
        if !entry.details.is_null() {
            line.insert("details".to_owned(), entry.details.clone());
        }
        audit.push(Value::Object(line).to_string().into_bytes());
    }

    /// Logs a refused login: each one with wrong credentials, and for each address one a minute of
    /// those that are throttled, with their number.
    pub(crate) fn audit_refusal(
        &self,
        refusal: LoginRefusal,
        user: &str,
        address: Option<SocketAddr>,
        path: Option<&str>,
    ) {
        if self.audit.is_none() {
            return;
        }
        let mut details = Map::new();
        if let Some(path) = path {
            details.insert("path".to_owned(), excerpt(path).into());
        }
        let result = match refusal {
            LoginRefusal::Wrong => "rejected",
            LoginRefusal::Throttled(_) => {
                let ip = ip_of(address);
                let due =
                    self.logins.as_ref().and_then(|one| one.note_throttled(ip, Instant::now()));
                let Some(count) = due else { return };
                details.insert("count".to_owned(), count.into());
                "throttled"
            }
            LoginRefusal::Missing | LoginRefusal::Later(_) => return,
        };
        let details = if details.is_empty() { Value::Null } else { Value::Object(details) };
        self.audit(&AuditEntry { user, address, action: "login", result, details });
    }

    fn audit_reload(&self, result: &str) {
        let details = Value::Null;
        let action = "config.reload";
        self.audit(&AuditEntry { user: "", address: None, action, result, details });
    }

    /// Its metrics.
    pub(crate) fn write_text(&self, text: &mut MetricsText) {
        if let Some(logins) = &self.logins {
            let name = "firn_http_logins_total";
            text.family(name, Kind::Counter, "Logins by result.");
            for (result, counter) in [
                ("accepted", &logins.accepted),
                ("rejected", &logins.rejected),
                ("throttled", &logins.throttled),
            ] {
                text.sample(name, &[("result", result)], counter.get() as f64);
            }
            for (name, help, counter) in [
                (
                    "firn_http_password_checks_total",
                    "Passwords that were checked by bcrypt.",
                    &logins.password_checks,
                ),
                (
                    "firn_http_forbidden_requests_total",
                    "Requests whose user lacks the role.",
                    &self.forbidden,
                ),
            ] {
                text.counter(name, help, counter.get() as f64);
            }
            let name = "firn_web_config_reloads_total";
            text.family(name, Kind::Counter, "Reloads of the web configuration by result.");
            for (result, counter) in [("ok", &self.reloads), ("error", &self.failed_reloads)] {
                text.sample(name, &[("result", result)], counter.get() as f64);
            }
            let name = "firn_tls_handshakes_total";
            text.family(name, Kind::Counter, "TLS handshakes by result.");
            for (result, counter) in [("ok", &self.handshakes), ("error", &self.failed_handshakes)]
            {
                text.sample(name, &[("result", result)], counter.get() as f64);
            }
        }
        if let Some(audit) = &self.audit {
            let (written, dropped) = audit.counts();
            text.counter("firn_audit_lines_total", "Lines of the audit log.", written as f64);
            text.counter(
                "firn_audit_dropped_lines_total",
                "Lines that the audit log lost because its device was slow or failed.",
                dropped as f64,
            );
        }
    }

    /// Stops its threads.
    pub(crate) fn stop(&self) {
        if let Some(logins) = &self.logins {
            logins.stop();
        }
    }
}

impl Policy {
    /// Why clients refuse the certificate now, if they do.
    fn date_fault(&self) -> Option<&'static str> {
        self.certificate.as_ref().and_then(tls::date_fault)
    }

    fn warn_of_dates(&self) {
        if let Some(fault) = self.date_fault() {
            tracing::warn!("--web-config: the certificate {fault}; clients refuse it");
        }
    }
}

/// The files of a version and of the options, to which no line may be appended.
fn forbidden(files: &VersionFiles, options: &GateOptions) -> ForbiddenFiles {
    let mut forbidden = options.forbidden.clone();
    forbidden.inputs.extend(files.inputs());
    forbidden
}

/// Reads the file of `options` and those that it names.
fn load(options: &GateOptions, budget: &Budget) -> LoadedVersion {
    let mut files = VersionFiles::new(budget);
    let config = read(options, &mut files, budget);
    let policy = config.and_then(|config| policy(options, config));
    (files, policy)
}

fn read(options: &GateOptions, files: &mut VersionFiles, budget: &Budget) -> Result<WebConfig> {
    let Some(path) = &options.file else { return Ok(WebConfig::default()) };
    let mut config = WebConfig::parse_within(path, files.read_config(path)?, budget)?;
    config.tls.as_mut().map_or(Ok(()), |tls| files.read_pems(tls))?;
    Ok(config)
}

fn cut_file(path: &Path) -> Error {
    Error::unavailable(format!(
        "{} is only the beginning of the version in use, as while a program writes it; it is used \
         once it has not changed for {} s",
        path.display(),
        CUT_REST.as_secs()
    ))
}

fn policy(options: &GateOptions, config: WebConfig) -> Result<Policy> {
    if options.refuses_matchers
        && let Some(account) = config.accounts.iter().find(|one| !one.scope.is_empty())
    {
        return Err(Error::invalid(format!(
            "users: {:?} has matchers, which only `firn serve` applies; remove the user here",
            account.name
        )));
    }
    let protocols: &[&[u8]] = if options.is_http { &[b"http/1.1"] } else { &[] };
    let certificate = config.tls.as_ref().map(tls::leaf).transpose()?.flatten();
    let tls = config.tls.as_ref().map(|tls| tls::server_config(tls, protocols)).transpose()?;
    let (tls, warnings) = tls.map_or((None, Vec::new()), |(tls, warnings)| (Some(tls), warnings));
    for warning in config.warnings.iter().chain(&warnings) {
        tracing::warn!("--web-config: {warning}");
    }
    let demands = |tls: &web_config::TlsSettings| tls.client_auth == ClientAuth::Required;
    Ok(Policy {
        tls,
        certificate,
        demands_certificate: config.tls.as_ref().is_some_and(demands),
        client_rules: config.tls.as_ref().map(web_config::TlsSettings::client_rules),
        accounts: Accounts::new(&config.accounts),
        rate: config.rate.map(|rate| TokenBucket::new(rate.per_second, rate.burst as f64)),
        headers: config.headers,
        _memory: config.memory,
    })
}

#[cfg(test)]
mod tests {
    use super::line_log::InputFile;
    use super::*;

    #[test]
    fn certificates_and_keys_are_within_the_memory() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let signed = rcgen::generate_simple_self_signed(["h".to_owned()]).unwrap();
        let cert = signed.cert.pem();
        let key = signed.signing_key.serialize_pem();
        std::fs::write(at("cert.pem"), &cert).unwrap();
        std::fs::write(at("key.pem"), &key).unwrap();
        std::fs::write(at("ca.pem"), cert.repeat(1_000)).unwrap();
        let text = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n  \
                    client_ca_file: ca.pem\n  client_auth_type: RequireAndVerifyClientCert\n";
        std::fs::write(at("web.yml"), text).unwrap();
        let options = GateOptions { file: Some(at("web.yml")), ..GateOptions::default() };
        let bytes = 4 * (1_001 * cert.len() + key.len()) as u64;
        let budget = Budget::new(bytes * 3 / 2);
        let (files, read) = load(&options, &budget);
        let policy = read.unwrap();
        assert!((bytes..bytes + 10_000).contains(&budget.usage().used_bytes));
        drop((files, policy));
        assert_eq!(budget.usage().used_bytes, 0);
        let error = load(&options, &Budget::new(bytes)).1.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Busy { .. } | ErrorKind::TooLarge), "{error}");
        std::fs::write(at("ca.pem"), cert.repeat(10_000)).unwrap();
        let error = load(&options, &Budget::unlimited()).1.unwrap_err();
        assert!(error.to_string().contains("client_ca_file"), "{error}");
    }

    /// Before, lines were appended to the key.
    #[test]
    fn the_audit_log_is_no_file_that_the_configuration_names() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let signed = rcgen::generate_simple_self_signed(["h".to_owned()]).unwrap();
        std::fs::write(at("cert.pem"), signed.cert.pem()).unwrap();
        std::fs::write(at("key.pem"), signed.signing_key.serialize_pem()).unwrap();
        let text = "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n";
        std::fs::write(at("web.yml"), text).unwrap();
        std::fs::write(at("rules.yml"), "groups: []\n").unwrap();
        let open = |name: &str| {
            let input = InputFile { setting: "rule_files".to_owned(), path: at("rules.yml") };
            let options = GateOptions {
                file: Some(at("web.yml")),
                audit_log: Some(at(name)),
                forbidden: ForbiddenFiles { inputs: vec![input], own: None },
                ..GateOptions::default()
            };
            Gate::open(options, Budget::unlimited(), || ())
        };
        for (name, setting) in [
            ("cert.pem", "tls_server_config.cert_file"),
            ("key.pem", "tls_server_config.key_file"),
            ("web.yml", "--web-config"),
            ("rules.yml", "rule_files"),
        ] {
            let error = open(name).unwrap_err().to_string();
            assert!(error.contains(&format!("is also the file of {setting};")), "{error}");
        }
        assert_eq!(open("audit.log").unwrap().forbidden().inputs.len(), 4);
    }

    #[test]
    fn the_memory_of_users_moves_to_the_budget_of_the_database() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.yml");
        let write = |name: &str| {
            let text = format!("users:\n- {{name: {name}, roles: [read]}}\n");
            std::fs::write(&path, text).unwrap();
        };
        write("first");
        let options = GateOptions { file: Some(path.clone()), ..GateOptions::default() };
        let start_budget = Budget::new(1 << 20);
        let gate = Gate::open(options, start_budget.clone(), || ()).unwrap();
        let start_bytes = start_budget.usage().used_bytes;
        assert!(start_bytes > 0);
        let budget = Budget::new(1 << 20);
        gate.limit_memory(&budget);
        assert_eq!(budget.usage().used_bytes, start_bytes);
        write("second");
        gate.reload().unwrap();
        assert_eq!(start_budget.usage().used_bytes, 0);
        let used_bytes = budget.usage().used_bytes;
        assert!((1..=2 * start_bytes).contains(&used_bytes), "{used_bytes} {start_bytes}");
        // A version without memory is used once there is some.
        write("third");
        let others = budget.reserve(Pool::Jobs, 900_000).unwrap();
        assert!(matches!(gate.reload().unwrap_err().kind(), ErrorKind::Busy { .. }));
        drop(others);
        let version = gate.version();
        let mut seen = gate.files.lock().used.seen_now();
        gate.poll(&mut seen);
        assert_eq!(gate.version(), version + 1);
        gate.stop();
    }
}
