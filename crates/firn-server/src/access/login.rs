//! Checks of credentials.
//!
//! Tokens of users have 256 random bits: their digests are looked up, without delay. The token of a
//! file may be short, so guesses of it are slowed. Passwords are checked by bcrypt on threads of
//! their own, one or two at a time, with a bounded queue. A password or token that was right is
//! remembered for its address, under a keyed digest, while it is in use: from other addresses a
//! guess is as slow as any other. Identical passwords are checked once.
//! Failed logins are slowed per address and per user. An attempt counts as failed from its
//! admission, so that parallel ones gain nothing. An unknown user takes as long as a wrong
//! password.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::header::{AUTHORIZATION, HeaderMap};
use firn_model::{ErrorKind, Result};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::Semaphore;

use super::account::{Account, DIGEST_BYTES, User};
use crate::flights::Flights;
use crate::telemetry::Counter;
use crate::threads::{WorkerOptions, Workers};
use crate::throttle::{EventCount, Throttle};

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

/// The digest of a token, by which a connection keeps it.
#[derive(Clone, Copy)]
pub(crate) struct TokenDigest([u8; DIGEST_BYTES]);

impl TokenDigest {
    pub(crate) fn of(token: &[u8]) -> TokenDigest {
        let mut bytes = [0; DIGEST_BYTES];
        bytes.copy_from_slice(digest(&SHA256, token).as_ref());
        TokenDigest(bytes)
    }
}

/// Why a login is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginRefusal {
    Missing,
    Wrong,
    /// After failures, or while too many passwords wait.
    Throttled(Duration),
    /// Over a rate of requests.
    Later(Duration),
}

/// The users of one version of the file.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// Distinguishes versions.
    serial: u64,
    by_name: HashMap<String, Arc<Account>>,
    /// By digest. The table has a key of this process, so the time of a lookup reveals nothing
    /// about the digests in it.
    tokens: HashMap<[u8; DIGEST_BYTES], Arc<Account>>,
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
    /// Passwords that are being checked, by digest.
    checks: Flights<[u8; DIGEST_BYTES], Result<bool, Duration>>,
    addresses: FailureTable,
    /// The first wait of an address; it doubles with each further failure.
    address_wait_min: Duration,
    users: FailureTable,
    /// Throttled logins from addresses without failures.
    throttled_elsewhere: Throttle,
    workers: Workers<()>,
    waiting: Arc<Semaphore>,
    pub(crate) password_checks: Counter,
    pub(crate) accepted: Counter,
    pub(crate) rejected: Counter,
    pub(crate) throttled: Counter,
}

/// Recent failures by address or user, with the attempts whose result is unknown. Bounded: the
/// entry that has waited longest is replaced.
#[derive(Debug, Default)]
struct FailureTable {
    hasher: RandomState,
    entries: Mutex<HashMap<u64, Failures>>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    /// With the open attempts.
    count: u32,
    /// Attempts whose result is unknown.
    open: u32,
    last: Instant,
    /// Attempts that had to wait, for the audit log.
    throttled: EventCount,
}

/// An attempt that counts as failed until it is forgiven. Open until dropped.
#[derive(Debug)]
struct Attempt<'a> {
    table: &'a FailureTable,
    key: u64,
    has_failed: bool,
}

/// An attempt has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TooEarly {
    wait: Duration,
    /// Whether it may be admitted once an open attempt has not failed.
    is_open: bool,
}

/// How long a password stays known after its last use.
const KNOWN_TIME: Duration = Duration::from_secs(30);
const KNOWN_COUNT_MAX: usize = 1_024;
/// Failures without consequences.
const FREE_FAILURES: u32 = 5;
/// After this time without a failure an address or user is as good as new.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(300);
const ADDRESS_WAIT_MIN: Duration = Duration::from_millis(500);
const ADDRESS_WAIT_MAX: Duration = Duration::from_secs(30);
const USER_DELAY_MAX: Duration = Duration::from_secs(2);
/// An attempt waits for earlier ones this long.
const TURN_WAIT_MAX: Duration = Duration::from_secs(2);
const TURN_INTERVAL: Duration = Duration::from_millis(20);
/// While too many passwords wait.
const BUSY_WAIT: Duration = Duration::from_secs(1);
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

    /// Those of a request. Two headers could be understood differently by a proxy in front.
    pub(crate) fn of_request(headers: &HeaderMap) -> Credentials {
        let mut headers = headers.get_all(AUTHORIZATION).iter();
        match (headers.next(), headers.next()) {
            (None, _) => Credentials::Missing,
            (Some(header), None) => Credentials::of(header.to_str().ok().or(Some(""))),
            (Some(_), Some(_)) => Credentials::Malformed,
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
        let token_count = accounts.iter().map(|account| account.tokens.len()).sum();
        // With its size at once: while a table grows it is there twice.
        let mut tokens = HashMap::with_capacity(token_count);
        for account in accounts {
            tokens.extend(account.tokens.iter().map(|token| (*token, Arc::clone(account))));
        }
        let by_name = accounts.iter().map(|one| (one.name.clone(), Arc::clone(one)));
        let hashes = accounts.iter().filter_map(|account| account.password.as_ref());
        Accounts {
            serial: SERIAL.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            tokens,
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
        self.of_digest(&TokenDigest::of(token))
    }

    /// The user of a token with this digest.
    pub(super) fn of_digest(&self, wanted: &TokenDigest) -> Option<User> {
        self.tokens.get(&wanted.0).map(|account| User::new(Arc::clone(account)))
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
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map_err(|_| {
            firn_model::Error::unavailable("the random number generator of the system failed")
        })?;
        Ok(Logins {
            key,
            known: Mutex::default(),
            checks: Flights::default(),
            addresses: FailureTable::default(),
            address_wait_min: ADDRESS_WAIT_MIN,
            users: FailureTable::default(),
            throttled_elsewhere: Throttle::default(),
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
            Credentials::Malformed => self.admit(&address).map(|_| None).map_err(|e| e.wait),
            Credentials::Token(token) => match accounts.of_token(token) {
                Some(user) => Ok(Some(user)),
                None => self.admit(&address).map(|_| None).map_err(|e| e.wait),
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
                Err(LoginRefusal::Wrong)
            }
            Err(after) => {
                self.throttled.add(1);
                Err(LoginRefusal::Throttled(after))
            }
        }
    }

    /// Counts a throttled login from `address` for a log with one line a minute for each address.
    /// Returns the number since the last line if the next one is due.
    pub(super) fn note_throttled(&self, address: IpAddr, now: Instant) -> Option<u64> {
        let key = self.addresses.hasher.hash_one(network_of(address));
        match self.addresses.entries.lock().get_mut(&key) {
            Some(entry) => entry.throttled.note(1, now),
            None => self.throttled_elsewhere.note(1, now),
        }
    }

    /// Accepts a right token that people may have chosen. Guesses of it would not be slowed if the
    /// right one were accepted while wrong ones have to wait.
    pub(crate) fn accept_token(&self, token: &[u8], address: IpAddr) -> Result<(), LoginRefusal> {
        let address = network_of(address);
        let known = self.known_digest(u64::MAX, ("", token), &address);
        if !self.is_known(&known) {
            let attempt = self.admit(&address).map_err(|early| {
                self.throttled.add(1);
                LoginRefusal::Throttled(early.wait)
            })?;
            attempt.forgive();
            self.remember(known);
        }
        self.accepted.add(1);
        Ok(())
    }

    /// Counts an attempt from `address`, unless it has to wait.
    fn admit(&self, address: &IpAddr) -> Result<Attempt<'_>, TooEarly> {
        self.addresses.try_begin(address, self.address_wait_min, ADDRESS_WAIT_MAX)
    }

    /// As [`Logins::admit`], after the attempts whose result is unknown: clients behind one address
    /// log in at the same time after a start.
    async fn admit_in_turn(&self, address: &IpAddr) -> Result<Attempt<'_>, Duration> {
        let latest = Instant::now() + TURN_WAIT_MAX;
        loop {
            match self.admit(address) {
                Err(early) if early.is_open && Instant::now() < latest => {
                    tokio::time::sleep(TURN_INTERVAL).await;
                }
                admitted => return admitted.map_err(|early| early.wait),
            }
        }
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
        let known = self.known_digest(accounts.serial, (name, password), address);
        let to_user = |account: &Arc<Account>| User::new(Arc::clone(account));
        if self.is_known(&known) {
            return Ok(account.map(to_user));
        }
        let check = self.verify(accounts, (name, password), address, known);
        let (is_right, _) = self.checks.join(known, check).await;
        is_right.map(|is_right| account.filter(|_| is_right).map(to_user))
    }

    /// Whether the password is right, after the waits that earlier attempts cause.
    async fn verify(
        &self,
        accounts: &Accounts,
        (name, password): (&str, &[u8]),
        address: &IpAddr,
        known: [u8; DIGEST_BYTES],
    ) -> Result<bool, Duration> {
        // Attempts that wait for others of their address take no place of those that do not.
        let from_address = self.admit_in_turn(address).await?;
        let Ok(_waiting) = self.waiting.try_acquire() else {
            from_address.forgive();
            return Err(BUSY_WAIT);
        };
        let (of_user, delay) = self.users.begin(&name, Duration::from_millis(50), USER_DELAY_MAX);
        tokio::time::sleep(delay).await;
        let own = accounts.by_name.get(name).and_then(|account| account.password.as_ref());
        let Some(hash) = own.map(|hash| &hash.0).or_else(|| accounts.decoy(name)).cloned() else {
            return Ok(false);
        };
        let (password, is_user) = (password.to_vec(), own.is_some());
        self.password_checks.add(1);
        let checked = self.workers.run(move |()| bcrypt::verify(&password, &hash));
        let is_right = match checked.await {
            Ok(checked) => Ok(checked.unwrap_or(false) && is_user),
            Err(error) => {
                if !matches!(error.kind(), ErrorKind::Busy { .. } | ErrorKind::Closed) {
                    tracing::error!(%error, "a password could not be checked");
                }
                Err(BUSY_WAIT)
            }
        };
        if is_right != Ok(false) {
            from_address.forgive();
            of_user.forgive();
        }
        if is_right == Ok(true) {
            self.remember(known);
        }
        is_right
    }

    /// Useless without the key, which exists in this process only.
    fn known_digest(
        &self,
        serial: u64,
        (name, password): (&str, &[u8]),
        address: &IpAddr,
    ) -> [u8; DIGEST_BYTES] {
        let address = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => *address,
        };
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&serial.to_le_bytes());
        context.update(&address.octets());
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
    /// Begins an attempt, which counts as failed. `Err` if it has to wait: the wait doubles with
    /// each failure from `first` to `most`.
    fn try_begin(
        &self,
        key: &impl Hash,
        first: Duration,
        most: Duration,
    ) -> Result<Attempt<'_>, TooEarly> {
        let key = self.hasher.hash_one(key);
        self.update(key, |entry, since| match wait(*entry, since, first, most) {
            Duration::ZERO => Ok(self.attempt(key, entry)),
            wait => Err(TooEarly { wait, is_open: entry.open > 0 }),
        })
    }

    /// Begins an attempt, which counts as failed; also returns the wait before it.
    fn begin(&self, key: &impl Hash, first: Duration, most: Duration) -> (Attempt<'_>, Duration) {
        let key = self.hasher.hash_one(key);
        self.update(key, |entry, since| {
            let wait = wait(*entry, since, first, most);
            (self.attempt(key, entry), wait)
        })
    }

    fn attempt(&self, key: u64, entry: &mut Failures) -> Attempt<'_> {
        entry.count = entry.count.saturating_add(1);
        entry.open = entry.open.saturating_add(1);
        entry.last = Instant::now();
        Attempt { table: self, key, has_failed: true }
    }

    /// Changes the entry of `key`, with the time since its last attempt.
    fn update<T>(&self, key: u64, change: impl FnOnce(&mut Failures, Duration) -> T) -> T {
        let now = Instant::now();
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
        let entry = entries.entry(key).or_insert(Failures {
            count: 0,
            open: 0,
            last: now,
            throttled: EventCount::default(),
        });
        let since = now.duration_since(entry.last);
        if since >= FORGOTTEN_AFTER {
            entry.count = entry.open;
        }
        change(entry, since)
    }
}

impl Attempt<'_> {
    /// It has not failed, or was not made.
    fn forgive(mut self) {
        self.has_failed = false;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut entries = self.table.entries.lock();
        // It may have been replaced.
        let Some(entry) = entries.get_mut(&self.key) else { return };
        entry.open = entry.open.saturating_sub(1);
        entry.count = entry.count.saturating_sub(u32::from(!self.has_failed));
        if entry.count == 0 {
            entries.remove(&self.key);
        }
    }
}

/// The rest of the wait after the last failure.
fn wait(entry: Failures, since: Duration, first: Duration, most: Duration) -> Duration {
    if entry.count < FREE_FAILURES {
        return Duration::ZERO;
    }
    let doublings = (entry.count - FREE_FAILURES).min(16);
    first.saturating_mul(1 << doublings).min(most).saturating_sub(since)
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

/// Whether `token` is that of `wanted`. Digests are compared, so that the time reveals nothing.
pub(super) fn is_same_token(wanted: &[u8], token: &TokenDigest) -> bool {
    is_equal(&TokenDigest::of(wanted).0, &token.0)
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

    /// With a first wait that no test outlasts.
    fn logins() -> Logins {
        Logins { address_wait_min: ADDRESS_WAIT_MAX, ..Logins::start(|| ()).unwrap() }
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
        let logins = logins();
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
        let logins = logins();
        let f = |credentials: Credentials, address: IpAddr| {
            run(logins.check(&accounts, &credentials, address)).map(|_| ())
        };
        assert_eq!(f(password("alice", "right"), HERE), Ok(()));
        for idx in 0..FREE_FAILURES {
            let refused = f(Credentials::Token(idx.to_string().into()), HERE);
            assert_eq!(refused, Err(LoginRefusal::Wrong));
        }
        let refused = f(password("alice", "wrong"), HERE);
        assert!(matches!(refused, Err(LoginRefusal::Throttled(_))), "{refused:?}");
        assert_eq!(f(password("alice", "right"), HERE), Ok(()), "known");
        assert_eq!(f(Credentials::Token(b"t0ken".to_vec()), HERE), Ok(()), "a token");
        let other = IpAddr::V6("2001:db8::1".parse().unwrap());
        assert_eq!(f(password("alice", "wrong"), other), Err(LoginRefusal::Wrong));
        assert_eq!(logins.throttled.get(), 1);
    }

    /// Before, a password that its user had just used was accepted from any address, whatever the
    /// number of guesses before it: guesses were not slowed while the user was active.
    #[test]
    fn a_guess_gains_nothing_from_the_user_being_active() {
        let accounts = Accounts::new(&[account("alice", Some("right"), None)]);
        let logins = logins();
        let stranger = IpAddr::V6("2001:db8::1".parse().unwrap());
        let f = |text: &str, address: IpAddr| {
            run(logins.check(&accounts, &password("alice", text), address)).map(|_| ())
        };
        assert_eq!(f("right", HERE), Ok(()));
        for idx in 0..FREE_FAILURES {
            assert_eq!(f(&idx.to_string(), stranger), Err(LoginRefusal::Wrong));
        }
        let guess = f("right", stranger);
        assert!(matches!(guess, Err(LoginRefusal::Throttled(_))), "{guess:?}");
        assert_eq!(f("right", HERE), Ok(()));
    }

    #[test]
    fn guesses_of_a_token_that_people_chose_are_slowed() {
        let (accounts, logins) = (Accounts::new(&[]), logins());
        let (known, new) = (HERE, IpAddr::V6("2001:db8::1".parse().unwrap()));
        let stranger = IpAddr::V6("2001:db8:0:1::1".parse().unwrap());
        let accept = |address| logins.accept_token(b"short", address);
        assert_eq!(accept(known), Ok(()));
        for address in [known, stranger] {
            for idx in 0..FREE_FAILURES {
                let guess = Credentials::Token(idx.to_string().into());
                let refused = run(logins.check(&accounts, &guess, address)).map(|_| ());
                assert_eq!(refused, Err(LoginRefusal::Wrong));
            }
        }
        let guess = accept(stranger);
        assert!(matches!(guess, Err(LoginRefusal::Throttled(_))), "{guess:?}");
        assert_eq!(accept(known), Ok(()), "in use");
        assert_eq!(accept(new), Ok(()));
        assert!(
            !logins
                .addresses
                .entries
                .lock()
                .contains_key(&logins.addresses.hasher.hash_one(network_of(new)))
        );
    }

    #[test]
    fn throttled_logins_are_one_line_a_minute_for_each_address() {
        let (logins, start) = (logins(), Instant::now());
        let (other, new) = (IpAddr::V4([10, 0, 0, 1].into()), IpAddr::V4([10, 0, 0, 2].into()));
        for _ in 0..FREE_FAILURES {
            for address in [HERE, other] {
                logins.admit(&address).unwrap();
            }
        }
        let f =
            |address, second| logins.note_throttled(address, start + Duration::from_secs(second));
        assert_eq!((f(HERE, 0), f(other, 0), f(new, 0)), (Some(1), Some(1), Some(1)));
        for second in 1..60 {
            assert_eq!((f(HERE, second), f(new, second)), (None, None));
        }
        assert_eq!((f(HERE, 60), f(other, 60), f(new, 60)), (Some(60), Some(1), Some(60)));
        assert_eq!(logins.addresses.entries.lock().len(), 2, "none is added");
    }

    /// Before, an attempt was counted when its result was known, so all of these were checked.
    #[test]
    fn parallel_guesses_are_not_more_than_those_one_after_another() {
        let accounts = Accounts::new(&[account("alice", Some("right"), None)]);
        let logins = logins();
        run(async {
            let guesses: Vec<Credentials> =
                (0..60).map(|idx| password("alice", &format!("guess{idx}"))).collect();
            let checks = guesses.iter().map(|guess| logins.check(&accounts, guess, HERE));
            let results = futures_util::future::join_all(checks).await;
            let wrong = |one: &Result<User, LoginRefusal>| matches!(one, Err(LoginRefusal::Wrong));
            assert_eq!(results.iter().filter(|one| wrong(one)).count(), FREE_FAILURES as usize);
        });
        assert_eq!(logins.password_checks.get(), u64::from(FREE_FAILURES));
    }

    /// Before, attempts that waited for earlier ones of their address took all places: while one
    /// address tried passwords, no other user could log in.
    #[test]
    fn attempts_from_one_address_leave_places_for_others() {
        let accounts = Accounts::new(&[account("alice", Some("right"), None)]);
        let (logins, right) = (logins(), password("alice", "right"));
        let stranger = IpAddr::V6("2001:db8::1".parse().unwrap());
        run(async {
            let guesses: Vec<Credentials> =
                (0..2 * WAITING_MAX).map(|idx| password("alice", &format!("guess{idx}"))).collect();
            let checks = guesses.iter().map(|guess| logins.check(&accounts, guess, stranger));
            let all = futures_util::future::join_all(checks);
            let right = logins.check(&accounts, &right, HERE);
            let (_, checked) = futures_util::future::join(all, right).await;
            assert!(checked.is_ok(), "{checked:?}");
        });
    }

    /// Guesses from a thousand networks may take all places: see "Not promised" in the document.
    #[test]
    fn a_flood_of_guesses_delays_neither_tokens_nor_known_passwords() {
        let accounts = Accounts::new(&[account("alice", Some("right"), Some("t0ken"))]);
        let (logins, right) = (logins(), password("alice", "right"));
        let elsewhere = IpAddr::V6("2001:db8::1".parse().unwrap());
        run(async {
            assert!(logins.check(&accounts, &right, HERE).await.is_ok());
            let _all = logins.waiting.acquire_many(WAITING_MAX as u32).await.unwrap();
            assert!(logins.check(&accounts, &right, HERE).await.is_ok());
            let token = Credentials::Token(b"t0ken".to_vec());
            assert!(logins.check(&accounts, &token, elsewhere).await.is_ok());
            let refused = logins.check(&accounts, &right, elsewhere).await.map(|_| ());
            assert_eq!(refused, Err(LoginRefusal::Throttled(BUSY_WAIT)));
        });
        assert!(logins.addresses.entries.lock().is_empty(), "it is no failure");
    }

    /// After a start every client of an address is unknown.
    #[test]
    fn parallel_logins_with_right_passwords_succeed() {
        let names: Vec<String> = (0..20).map(|idx| format!("user{idx}")).collect();
        let accounts: Vec<_> = names.iter().map(|name| account(name, Some(name), None)).collect();
        let accounts = Accounts::new(&accounts);
        let logins = logins();
        run(async {
            // Each twice: identical ones are checked once.
            let all: Vec<Credentials> =
                names.iter().chain(&names).map(|name| password(name, name)).collect();
            let checks = all.iter().map(|one| logins.check(&accounts, one, HERE));
            let results = futures_util::future::join_all(checks).await;
            assert!(results.iter().all(Result::is_ok), "{results:?}");
        });
        assert_eq!(logins.password_checks.get(), names.len() as u64);
        assert!(logins.addresses.entries.lock().is_empty());
    }

    #[test]
    fn waits_double_and_the_table_is_bounded() {
        let table = FailureTable::default();
        let (first, most) = (Duration::from_secs(100), Duration::from_secs(250));
        for _ in 0..FREE_FAILURES {
            table.try_begin(&1, first, most).unwrap();
        }
        let wait = |is_open: bool| {
            let early = table.try_begin(&1, first, most).unwrap_err();
            assert_eq!(early.is_open, is_open);
            early.wait
        };
        assert!(wait(false) > Duration::from_secs(50));
        let (open, delay) = table.begin(&1, first, most);
        assert!(delay > Duration::from_secs(50) && delay <= first, "{delay:?}");
        assert!(wait(true) > Duration::from_secs(150));
        table.begin(&1, first, most).0.forgive();
        open.forgive();
        assert!(wait(false) <= first, "two attempts were right");
        drop((table.begin(&1, first, most), table.begin(&1, first, most)));
        let wait = wait(false);
        assert!(wait > Duration::from_secs(200) && wait <= most, "{wait:?}");
        for key in 2..3 * ENTRIES_MAX {
            table.begin(&key, first, most);
        }
        assert_eq!(table.entries.lock().len(), ENTRIES_MAX);
        let f = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(f("2001:db8::1"), f("2001:db8::ffff:1"));
        assert_eq!(f("::ffff:10.0.0.1"), f("10.0.0.1"));
    }
}
