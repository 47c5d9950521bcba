//! Checks of credentials.
//!
//! Tokens have 256 random bits: their digests are compared, without delay. Passwords are checked by
//! bcrypt on threads of their own, one or two at a time, with a bounded queue. A password that was
//! right is remembered under a keyed digest while it is in use. Failed logins are slowed per
//! address and per user; an unknown user takes as long as a wrong password.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use firn_model::{ErrorKind, Result};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::Semaphore;

use super::account::{Account, DIGEST_BYTES, User};
use crate::telemetry::Counter;
use crate::threads::{WorkerOptions, Workers};

/// The credentials of a request.
#[derive(PartialEq, Eq)]
pub(crate) enum Credentials {
    Missing,
    /// No form that is known here.
    Malformed,
    Password {
        user: String,
        password: Vec<u8>,
    },
    Token(Vec<u8>),
}

/// Why a login is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginRefusal {
    Missing,
    Wrong,
    /// After failures, or while too many wait.
    Later(Duration),
}

/// The users of one version of the file.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// Distinguishes versions.
    serial: u64,
    by_name: HashMap<String, Arc<Account>>,
    tokens: Vec<([u8; DIGEST_BYTES], Arc<Account>)>,
    /// Hashes of the file, against which passwords of unknown users are checked: each unknown name
    /// has its own, so that it takes as long as some known one.
    decoys: Vec<String>,
    hasher: RandomState,
}

/// The state of logins, which outlives versions of the file.
#[derive(Debug)]
pub(crate) struct Logins {
    key: hmac::Key,
    known: Mutex<HashMap<[u8; DIGEST_BYTES], Instant>>,
    addresses: FailureTable,
    users: FailureTable,
    workers: Workers<()>,
    waiting: Arc<Semaphore>,
    pub(crate) password_checks: Counter,
    pub(crate) accepted: Counter,
    pub(crate) rejected: Counter,
    pub(crate) throttled: Counter,
}

/// Recent failures by address or user. Bounded: the entry that has waited longest is replaced.
#[derive(Debug, Default)]
struct FailureTable {
    hasher: RandomState,
    entries: Mutex<HashMap<u64, Failures>>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Instant,
}

/// How long a password stays known after its last use.
const KNOWN_TIME: Duration = Duration::from_secs(30);
const KNOWN_COUNT_MAX: usize = 1_024;
/// Failures without consequences.
const FREE_FAILURES: u32 = 5;
/// After this time without a failure an address or user is as good as new.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(300);
const ADDRESS_WAIT_MAX: Duration = Duration::from_secs(30);
const USER_DELAY_MAX: Duration = Duration::from_secs(2);
const ENTRIES_MAX: usize = 4_096;
/// Passwords that wait, delayed ones included.
const WAITING_MAX: usize = 64;

impl Credentials {
    /// Those of the header `Authorization`.
    pub(crate) fn of(header: Option<&str>) -> Credentials {
        let Some(header) = header else { return Credentials::Missing };
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header, ""));
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("bearer") && !rest.is_empty() {
            return Credentials::Token(rest.as_bytes().to_vec());
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return Credentials::Malformed;
        }
        let Some(plain) = from_base64(rest) else { return Credentials::Malformed };
        let Some(colon) = plain.iter().position(|byte| *byte == b':') else {
            return Credentials::Malformed;
        };
        let (user, password) = plain.split_at(colon);
        match String::from_utf8(user.to_vec()) {
            Ok(user) => Credentials::Password { user, password: password[1..].to_vec() },
            Err(_) => Credentials::Malformed,
        }
    }

    /// The user that is named, for logs.
    pub(crate) fn user_name(&self) -> &str {
        match self {
            Credentials::Password { user, .. } => user,
            _ => "",
        }
    }
}

impl Accounts {
    pub(super) fn new(accounts: &[Arc<Account>]) -> Accounts {
        static SERIAL: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let tokens = accounts
            .iter()
            .flat_map(|account| account.tokens.iter().map(|token| (*token, Arc::clone(account))));
        let by_name = accounts.iter().map(|one| (one.name.clone(), Arc::clone(one)));
        let hashes = accounts.iter().filter_map(|account| account.password.as_ref());
        Accounts {
            serial: SERIAL.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            tokens: tokens.collect(),
            by_name: by_name.collect(),
            decoys: hashes.map(|hash| hash.0.clone()).collect(),
            hasher: RandomState::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The hash for a name without a password of its own; `None` without passwords.
    fn decoy(&self, name: &str) -> Option<&String> {
        let count = self.decoys.len().max(1) as u64;
        self.decoys.get((self.hasher.hash_one(name) % count) as usize)
    }

    /// The user of a token.
    fn of_token(&self, token: &[u8]) -> Option<User> {
        let wanted = digest(&SHA256, token);
        let mut found = None;
        // All are compared, each in constant time.
        for (digest, account) in &self.tokens {
            if is_equal(digest, wanted.as_ref()) {
                found = Some(account);
            }
        }
        found.map(|account| User::new(Arc::clone(account)))
    }
}

impl Logins {
    /// Starts the threads.
    ///
    /// # Errors
    /// `Unavailable` without threads or random numbers.
    pub(crate) fn start(on_idle: fn()) -> Result<Logins> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let options = WorkerOptions {
            name: "firn-login",
            thread_count: (cores / 4).clamp(1, 4),
            queue_len_max: WAITING_MAX,
            on_idle,
        };
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| firn_model::Error::unavailable("the system has no random numbers"))?;
        Ok(Logins {
            key,
            known: Mutex::default(),
            addresses: FailureTable::default(),
            users: FailureTable::default(),
            workers: Workers::start(options, || ())?,
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            password_checks: Counter::default(),
            accepted: Counter::default(),
            rejected: Counter::default(),
            throttled: Counter::default(),
        })
    }

    /// The user of `credentials`, presented from `address`.
    pub(crate) async fn check(
        &self,
        accounts: &Accounts,
        credentials: &Credentials,
        address: IpAddr,
    ) -> Result<User, LoginRefusal> {
        let address = network_of(address);
        let checked = match credentials {
            Credentials::Missing => return Err(LoginRefusal::Missing),
            Credentials::Malformed => self.admit(&address).map(|()| None),
            Credentials::Token(token) => match accounts.of_token(token) {
                Some(user) => Ok(Some(user)),
                None => self.admit(&address).map(|()| None),
            },
            Credentials::Password { user, password } => {
                self.check_password(accounts, (user, password), &address).await
            }
        };
        match checked {
            Ok(Some(user)) => {
                self.accepted.add(1);
                Ok(user)
            }
            Ok(None) => {
                self.rejected.add(1);
                self.addresses.record(&address);
                if let Credentials::Password { user, .. } = credentials {
                    self.users.record(user);
                }
                Err(LoginRefusal::Wrong)
            }
            Err(after) => {
                self.throttled.add(1);
                Err(LoginRefusal::Later(after))
            }
        }
    }

    fn admit(&self, address: &IpAddr) -> Result<(), Duration> {
        let wait = self.addresses.wait(address, Duration::from_millis(500), ADDRESS_WAIT_MAX);
        if wait.is_zero() { Ok(()) } else { Err(wait) }
    }

    /// `Ok(None)` for a wrong password.
    async fn check_password(
        &self,
        accounts: &Accounts,
        (name, password): (&str, &[u8]),
        address: &IpAddr,
    ) -> Result<Option<User>, Duration> {
        let account = accounts.by_name.get(name);
        // Clients without bearer tokens send them as a password.
        if let Some(user) = accounts.of_token(password)
            && user.name() == name
        {
            return Ok(Some(user));
        }
        let known = self.known_digest(accounts.serial, name, password);
        let to_user = |account: &Arc<Account>| User::new(Arc::clone(account));
        if self.is_known(&known) {
            return Ok(account.map(to_user));
        }
        self.admit(address)?;
        let busy = Duration::from_secs(1);
        let Ok(_waiting) = self.waiting.try_acquire() else { return Err(busy) };
        let delay = self.users.wait(&name, Duration::from_millis(50), USER_DELAY_MAX);
        tokio::time::sleep(delay).await;
        // An identical request may have been faster.
        if self.is_known(&known) {
            return Ok(account.map(to_user));
        }
        let own = account.and_then(|account| account.password.as_ref());
        let Some(hash) = own.map(|hash| &hash.0).or_else(|| accounts.decoy(name)).cloned() else {
            return Ok(None);
        };
        self.password_checks.add(1);
        let password = password.to_vec();
        let checked = self.workers.run(move |()| bcrypt::verify(&password, &hash));
        let is_right = match checked.await {
            Ok(checked) => checked.unwrap_or(false) && own.is_some(),
            Err(error) => {
                if !matches!(error.kind(), ErrorKind::Busy { .. } | ErrorKind::Closed) {
                    tracing::error!(%error, "a password could not be checked");
                }
                return Err(busy);
            }
        };
        if !is_right {
            return Ok(None);
        }
        self.remember(known);
        Ok(account.map(to_user))
    }

    /// Useless without the key, which exists in this process only.
    fn known_digest(&self, serial: u64, name: &str, password: &[u8]) -> [u8; DIGEST_BYTES] {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&serial.to_le_bytes());
        context.update(&(name.len() as u64).to_le_bytes());
        context.update(name.as_bytes());
        context.update(password);
        let mut known = [0; DIGEST_BYTES];
        known.copy_from_slice(context.sign().as_ref());
        known
    }

    fn is_known(&self, known: &[u8; DIGEST_BYTES]) -> bool {
        let now = Instant::now();
        let mut all = self.known.lock();
        match all.get_mut(known) {
            Some(until) if *until > now => {
                *until = now + KNOWN_TIME;
                true
            }
            Some(_) => {
                all.remove(known);
                false
            }
            None => false,
        }
    }

    fn remember(&self, known: [u8; DIGEST_BYTES]) {
        let now = Instant::now();
        let mut all = self.known.lock();
        if all.len() >= KNOWN_COUNT_MAX {
            all.retain(|_, until| *until > now);
        }
        if all.len() < KNOWN_COUNT_MAX {
            all.insert(known, now + KNOWN_TIME);
        }
    }

    /// Stops the threads.
    pub(crate) fn stop(&self) {
        self.workers.stop();
    }
}

impl FailureTable {
    fn record(&self, key: &impl std::hash::Hash) {
        let (key, now) = (self.hasher.hash_one(key), Instant::now());
        let mut entries = self.entries.lock();
        if entries.len() >= ENTRIES_MAX && !entries.contains_key(&key) {
            entries.retain(|_, entry| now.duration_since(entry.last) < FORGOTTEN_AFTER);
            if entries.len() >= ENTRIES_MAX
                && let Some(oldest) =
                    entries.iter().min_by_key(|(_, entry)| entry.last).map(|(key, _)| *key)
            {
                entries.remove(&oldest);
            }
        }
        let entry = entries.entry(key).or_insert(Failures { count: 0, last: now });
        if now.duration_since(entry.last) >= FORGOTTEN_AFTER {
            entry.count = 0;
        }
        entry.count = entry.count.saturating_add(1);
        entry.last = now;
    }

    /// The rest of the wait after the last failure, which doubles with each failure from `first` to
    /// `most`.
    fn wait(&self, key: &impl std::hash::Hash, first: Duration, most: Duration) -> Duration {
        let (key, now) = (self.hasher.hash_one(key), Instant::now());
        let entries = self.entries.lock();
        let Some(entry) = entries.get(&key) else { return Duration::ZERO };
        let since = now.duration_since(entry.last);
        if entry.count < FREE_FAILURES || since >= FORGOTTEN_AFTER {
            return Duration::ZERO;
        }
        let doublings = (entry.count - FREE_FAILURES).min(16);
        first.saturating_mul(1 << doublings).min(most).saturating_sub(since)
    }
}

/// One client may have all addresses of a /64.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let bits = address.to_bits() & (u128::MAX << 64);
            IpAddr::V6(bits.into())
        }
        v4 => v4,
    }
}

/// Whether two texts are equal; takes the same time wherever they differ.
pub(crate) fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// Decodes base64 with or without padding.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut plain = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut bit_count) = (0_u32, 0);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        bit_count += 6;
        if bit_count >= 8 {
            bit_count -= 8;
            plain.push((bits >> bit_count) as u8);
            bits &= (1 << bit_count) - 1;
        }
    }
    (bit_count < 6).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::super::account::{PasswordHash, Roles, UserLimits};
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn account(name: &str, password: Option<&str>, token: Option<&str>) -> Arc<Account> {
        let mut account = Account::new(name.to_owned(), Roles::ALL, UserLimits::default());
        account.password =
            password.map(|password| PasswordHash(bcrypt::hash(password, 4).unwrap()));
        account.tokens = token
            .iter()
            .map(|token| digest(&SHA256, token.as_bytes()).as_ref().try_into().unwrap())
            .collect();
        Arc::new(account)
    }

    fn password(user: &str, password: &str) -> Credentials {
        Credentials::Password { user: user.to_owned(), password: password.as_bytes().to_vec() }
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    #[test]
    fn headers_are_read() {
        let f = |header: &str| Credentials::of(Some(header));
        assert!(f("Basic YWxpY2U6cGE6c3M=") == password("alice", "pa:ss"));
        assert!(f("basic  YWxpY2U6") == password("alice", ""));
        assert!(f("bEARER abc") == Credentials::Token(b"abc".to_vec()));
        for bad in [
            "Basic",
            "Basic !",
            "Basic YWxpY2U=",
            "Digest x",
            "Bearer ",
            "",
            "Basic A",
            "Basic /zo=",
        ] {
            assert!(f(bad) == Credentials::Malformed, "{bad}");
        }
        assert!(Credentials::of(None) == Credentials::Missing);
    }

    #[test]
    fn passwords_and_tokens_log_in_and_others_do_not() {
        let accounts = Accounts::new(&[
            account("alice", Some("right"), None),
            account("bob", None, Some("t0ken")),
        ]);
        let logins = Logins::start(|| ()).unwrap();
        let f = |credentials: Credentials| {
            run(logins.check(&accounts, &credentials, HERE)).map(|user| user.name().to_owned())
        };
        assert_eq!(f(password("alice", "right")), Ok("alice".to_owned()));
        assert_eq!(logins.password_checks.get(), 1);
        for _ in 0..100 {
            assert_eq!(f(password("alice", "right")), Ok("alice".to_owned()));
        }
        assert_eq!(logins.password_checks.get(), 1, "a known password costs no check");
        assert_eq!(f(Credentials::Token(b"t0ken".to_vec())), Ok("bob".to_owned()));
        assert_eq!(f(password("bob", "t0ken")), Ok("bob".to_owned()));
        assert_eq!(f(Credentials::Missing), Err(LoginRefusal::Missing));
        assert_eq!(f(password("alice", "wrong")), Err(LoginRefusal::Wrong));
        assert_eq!(f(password("alice", "t0ken")), Err(LoginRefusal::Wrong));
        // Unknown users cost a check too.
        assert_eq!(f(password("carol", "right")), Err(LoginRefusal::Wrong));
        assert_eq!(logins.password_checks.get(), 4);
        assert_eq!(f(Credentials::Token(b"t0ke".to_vec())), Err(LoginRefusal::Wrong));
        // Another version of the file knows nothing of the old one.
        let changed = Accounts::new(&[account("alice", Some("other"), None)]);
        let checked = run(logins.check(&changed, &password("alice", "right"), HERE));
        assert_eq!(checked.map(|_| ()).unwrap_err(), LoginRefusal::Wrong);
    }

    #[test]
    fn failures_are_slowed_and_known_users_are_not() {
        let accounts = Accounts::new(&[account("alice", Some("right"), Some("t0ken"))]);
        let logins = Logins::start(|| ()).unwrap();
        let f = |credentials: Credentials, address: IpAddr| {
            run(logins.check(&accounts, &credentials, address)).map(|_| ())
        };
        assert_eq!(f(password("alice", "right"), HERE), Ok(()));
        for idx in 0..FREE_FAILURES {
            let refused = f(Credentials::Token(idx.to_string().into()), HERE);
            assert_eq!(refused, Err(LoginRefusal::Wrong));
        }
        let refused = f(password("alice", "wrong"), HERE);
        assert!(matches!(refused, Err(LoginRefusal::Later(_))), "{refused:?}");
        assert_eq!(f(password("alice", "right"), HERE), Ok(()), "known");
        assert_eq!(f(Credentials::Token(b"t0ken".to_vec()), HERE), Ok(()), "a token");
        let other = IpAddr::V6("2001:db8::1".parse().unwrap());
        assert_eq!(f(password("alice", "wrong"), other), Err(LoginRefusal::Wrong));
        assert_eq!(logins.throttled.get(), 1);
    }

    #[test]
    fn waits_double_and_the_table_is_bounded() {
        let table = FailureTable::default();
        let (first, most) = (Duration::from_secs(100), Duration::from_secs(250));
        for _ in 0..FREE_FAILURES - 1 {
            table.record(&1);
        }
        assert_eq!(table.wait(&1, first, most), Duration::ZERO);
        table.record(&1);
        assert!(table.wait(&1, first, most) > Duration::from_secs(50));
        table.record(&1);
        table.record(&1);
        let wait = table.wait(&1, first, most);
        assert!(wait > Duration::from_secs(200) && wait <= most, "{wait:?}");
        for key in 2..3 * ENTRIES_MAX {
            table.record(&key);
        }
        assert_eq!(table.entries.lock().len(), ENTRIES_MAX);
        let f = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(f("2001:db8::1"), f("2001:db8::ffff:1"));
        assert_eq!(f("::ffff:10.0.0.1"), f("10.0.0.1"));
    }
}
