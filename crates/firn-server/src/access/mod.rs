//! Access to listeners: users, TLS, and the audit log.
//!
//! [`Gate`] holds the current version of the `--web-config` file ([`Policy`]) and replaces it when
//! the file, or a file that it names, changes. A version that cannot be used is reported once and
//! the previous one stays. Without a file every client has all roles.
//!
//! Reading order: `web_config` (the file), `account` (users), `login` (checks of credentials),
//! `tls`, `line_log` (audit and query log), `edit` (`firn user`).

pub(crate) mod account;
mod edit;
pub(crate) mod line_log;
pub(crate) mod login;
mod tls;
mod web_config;
mod yaml;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::{HeaderName, HeaderValue};
use firn_model::{Error, Result, excerpt};
use parking_lot::{Mutex, RwLock};
use rustls::ServerConfig;
use serde_json::{Map, Value};

use self::account::{TokenBucket, User};
use self::line_log::LineLog;
use self::login::{Accounts, Credentials, LoginRefusal, Logins};
use self::web_config::{ClientAuth, PemSource};
use crate::app::clock_ms;
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
    /// Clients need a token that is not in the file (`--token-file`).
    pub(crate) has_token: bool,
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
    /// Only with a file.
    logins: Option<Logins>,
    /// Of the version that was tried last.
    stamps: Mutex<Vec<FileStamp>>,
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
    demands_certificate: bool,
    /// Headers of every response.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    accounts: Accounts,
    rate: Option<TokenBucket>,
}

/// Detects changes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileStamp {
    path: PathBuf,
    seen: SeenFile,
}

/// Length, time of the change and number of a file; `None` if it does not exist.
pub(crate) type SeenFile = Option<(u64, SystemTime, u64)>;

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

/// How often the files are looked at.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(2);

impl Gate {
    /// Reads the file and opens the audit log. Idle threads call `on_idle`.
    ///
    /// # Errors
    /// `Invalid` for a file that cannot be used.
    pub(crate) fn open(options: GateOptions, on_idle: fn()) -> Result<Gate> {
        let audit = options.audit_log.as_deref().map(|path| LineLog::open(path, "--audit-log"));
        let audit = audit.transpose()?;
        let (stamps, policy) = load(&options);
        let logins = options.file.as_ref().map(|_| Logins::start(on_idle)).transpose()?;
        Ok(Gate {
            options,
            policy: RwLock::new(Arc::new(policy?)),
            logins,
            stamps: Mutex::new(stamps),
            audit,
            ..Gate::default()
        })
    }

    /// Checks that a listener at `listen` may be opened, and warns about one that strangers reach.
    ///
    /// # Errors
    /// `Invalid` if `--require-auth` demands more than the file has.
    pub(crate) fn check_listener(&self, listen: SocketAddr) -> Result<()> {
        let policy = self.policy();
        let has_users =
            self.options.has_token || !policy.accounts.is_empty() || policy.demands_certificate;
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

    /// The current version of the file.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy.read())
    }

    /// The TLS of new connections; `None` for plain ones.
    pub(crate) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.policy.read().tls.clone()
    }

    /// Reads the files again and opens the audit log again.
    ///
    /// # Errors
    /// Those of the file. The previous version stays.
    pub(crate) fn reload(&self) -> Result<()> {
        if let Some(audit) = &self.audit {
            audit.reopen();
        }
        if self.options.file.is_none() {
            return Ok(());
        }
        let (stamps, policy) = load(&self.options);
        *self.stamps.lock() = stamps;
        let policy = policy.and_then(|policy| self.check_demands(policy));
        match policy {
            Ok(policy) => {
                *self.policy.write() = Arc::new(policy);
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
        let used = self.stamps.lock().clone();
        let now: Vec<_> = used.iter().map(|stamp| seen(&stamp.path)).collect();
        // A certificate and its key are written one after the other.
        let is_at_rest = *previous == now;
        let has_changed = used.iter().zip(&now).any(|(used, now)| used.seen != *now);
        *previous = now;
        if has_changed && is_at_rest {
            // The error is logged there.
            let _ = self.reload();
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
        let Some(logins) = self.logins.as_ref().filter(|_| !policy.accounts.is_empty()) else {
            return Ok(User::anyone());
        };
        let user = logins.check(&policy.accounts, credentials, address).await?;
        user.begin_request().map_err(LoginRefusal::Later)?;
        Ok(user)
    }

    /// Whether requests need a login.
    pub(crate) fn has_users(&self) -> bool {
        !self.policy.read().accounts.is_empty()
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

/// Reads the file of `options` and those that it names. Their stamps are older than their contents.
fn load(options: &GateOptions) -> (Vec<FileStamp>, Result<Policy>) {
    let Some(path) = &options.file else {
        return (Vec::new(), policy(options, &WebConfig::default()));
    };
    let stamp = |path: &Path| FileStamp { path: path.to_owned(), seen: seen(path) };
    let mut stamps = vec![stamp(path)];
    let config =
        web_config::read_file(path, "--web-config").and_then(|text| WebConfig::parse(path, &text));
    let config = match config {
        Ok(config) => config,
        Err(error) => return (stamps, Err(error)),
    };
    if let Some(tls) = &config.tls {
        let sources = [Some(&tls.certificate), Some(&tls.key), tls.client_ca.as_ref()];
        stamps.extend(sources.into_iter().flatten().filter_map(|source| match source {
            PemSource::File(path) => Some(stamp(path)),
            PemSource::Inline(_) => None,
        }));
    }
    (stamps, policy(options, &config))
}

fn policy(options: &GateOptions, config: &WebConfig) -> Result<Policy> {
    if options.refuses_matchers
        && let Some(account) = config.accounts.iter().find(|one| !one.scope.is_empty())
    {
        return Err(Error::invalid(format!(
            "users: {:?} has matchers, which only `firn serve` applies; remove the user here",
            account.name
        )));
    }
    let protocols: &[&[u8]] = if options.is_http { &[b"http/1.1"] } else { &[] };
    let tls = config.tls.as_ref().map(|tls| tls::server_config(tls, protocols)).transpose()?;
    let (tls, warnings) = tls.map_or((None, Vec::new()), |(tls, warnings)| (Some(tls), warnings));
    for warning in config.warnings.iter().chain(&warnings) {
        tracing::warn!("--web-config: {warning}");
    }
    let demands = |tls: &web_config::TlsSettings| tls.client_auth == ClientAuth::Required;
    Ok(Policy {
        tls,
        demands_certificate: config.tls.as_ref().is_some_and(demands),
        headers: config.headers.clone(),
        accounts: Accounts::new(&config.accounts),
        rate: config.rate.map(|rate| TokenBucket::new(rate.per_second, rate.burst as f64)),
    })
}

fn seen(path: &Path) -> SeenFile {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata(path).ok()?;
    Some((found.len(), found.modified().ok()?, found.ino()))
}
