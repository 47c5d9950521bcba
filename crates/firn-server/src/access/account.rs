//! Users: their roles, the series that they may see, and their limits.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use firn_model::Matcher;
use parking_lot::Mutex;

/// The bytes of a token's digest.
pub(crate) const DIGEST_BYTES: usize = 32;

/// The roles of a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) admin: bool,
}

/// Limits of one user; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UserLimits {
    /// Queries that run or wait at the same time.
    pub(crate) queries_max: Option<u64>,
    /// Samples that one query may hold in memory.
    pub(crate) query_samples_max: Option<u64>,
    pub(crate) new_series_per_second_max: Option<u64>,
    pub(crate) requests_per_second_max: Option<u64>,
}

/// A bcrypt hash. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PasswordHash(pub(super) String);

/// A user of the web configuration, and the state of its limits.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(super) password: Option<PasswordHash>,
    /// SHA-256 of each token.
    pub(super) tokens: Vec<[u8; DIGEST_BYTES]>,
    pub(crate) roles: Roles,
    /// Matchers that are added to every selection of this user.
    pub(crate) scope: Arc<[Matcher]>,
    pub(crate) limits: UserLimits,
    pub(super) requests: Option<TokenBucket>,
    new_series: Option<Arc<TokenBucket>>,
    queries: Arc<AtomicU64>,
    /// Lines of refused requests, and those that were left out since the last one.
    refusals: TokenBucket,
    refusals_left_out: AtomicU64,
}

// Lines in the audit log for refused requests of one user.
const REFUSALS_PER_SECOND: f64 = 1.0;
const REFUSALS_AT_ONCE: f64 = 60.0;

/// The user of a request. Clones are the same user.
#[derive(Clone, Debug)]
pub(crate) struct User(Arc<Account>);

/// A running query of a user; its end is counted on drop.
#[derive(Debug)]
pub(crate) struct UserQuery(Arc<AtomicU64>);

/// Permits that are refilled at a rate.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    per_second: f64,
    size: f64,
    state: Mutex<(f64, Instant)>,
}

impl Roles {
    pub(crate) const ALL: Roles = Roles { read: true, write: true, admin: true };

    /// The roles as words.
    pub(crate) fn names(self) -> Vec<&'static str> {
        let all = [("read", self.read), ("write", self.write), ("admin", self.admin)];
        all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash")
    }
}

impl Account {
    /// A user without password, tokens and matchers.
    pub(super) fn new(name: String, roles: Roles, limits: UserLimits) -> Account {
        let bucket = |per_second: u64| TokenBucket::new(per_second as f64, per_second as f64);
        Account {
            name,
            password: None,
            tokens: Vec::new(),
            roles,
            scope: Arc::default(),
            limits,
            requests: limits.requests_per_second_max.map(bucket),
            // Ten seconds' worth may arrive at once, as with the server's own limit.
            new_series: limits.new_series_per_second_max.map(|per_second| {
                Arc::new(TokenBucket::new(per_second as f64, 10.0 * per_second as f64))
            }),
            queries: Arc::default(),
            refusals: TokenBucket::new(REFUSALS_PER_SECOND, REFUSALS_AT_ONCE),
            refusals_left_out: AtomicU64::new(0),
        }
    }
}

impl User {
    pub(super) fn new(account: Arc<Account>) -> User {
        User(account)
    }

    /// The user of a server without users: may do everything.
    pub(crate) fn anyone() -> User {
        static ANYONE: OnceLock<User> = OnceLock::new();
        let make =
            || User(Arc::new(Account::new(String::new(), Roles::ALL, UserLimits::default())));
        ANYONE.get_or_init(make).clone()
    }

    /// A user without roles that sees no series: of a request without authentication.
    pub(crate) fn nobody() -> User {
        static NOBODY: OnceLock<User> = OnceLock::new();
        let make = || {
            let mut account =
                Account::new("nobody".to_owned(), Roles::default(), UserLimits::default());
            // No series has a label without a name.
            account.scope = Arc::new([Matcher::equal("", "nobody")]);
            User(Arc::new(account))
        };
        NOBODY.get_or_init(make).clone()
    }

    /// Empty on a server without users.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn roles(&self) -> Roles {
        self.0.roles
    }

    /// Matchers that are added to every selection of this user.
    pub(crate) fn scope(&self) -> &Arc<[Matcher]> {
        &self.0.scope
    }

    /// The least of the user's limit and `samples_max`.
    pub(crate) fn query_samples_max(&self, samples_max: u64) -> u64 {
        self.0.limits.query_samples_max.map_or(samples_max, |most| most.min(samples_max))
    }

    /// Counts a query until the result is dropped; `None` if the user has too many.
    pub(crate) fn begin_query(&self) -> Option<UserQuery> {
        let running = UserQuery(Arc::clone(&self.0.queries));
        let before = running.0.fetch_add(1, Ordering::Relaxed);
        // A refused query is uncounted by its drop.
        self.0.limits.queries_max.is_none_or(|most| before < most).then_some(running)
    }

    /// Takes a request from the user's rate.
    ///
    /// # Errors
    /// The time until the next request is admitted.
    pub(super) fn begin_request(&self) -> Result<(), Duration> {
        self.0.requests.as_ref().map_or(Ok(()), |bucket| bucket.take(1.0))
    }

    /// A request of the user is refused. Returns the number of refusals that were left out since
    /// the last line of the audit log if the next line is due.
    pub(crate) fn begin_refusal(&self) -> Option<u64> {
        if self.0.refusals.take(1.0).is_err() {
            self.0.refusals_left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.0.refusals_left_out.swap(0, Ordering::Relaxed))
    }

    /// The bucket that new series are taken from, if the user has a limit.
    pub(crate) fn new_series(&self) -> Option<Arc<TokenBucket>> {
        self.0.new_series.clone()
    }
}

impl Drop for UserQuery {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TokenBucket {
    /// A full bucket of `size` permits, at least one.
    pub(super) fn new(per_second: f64, size: f64) -> TokenBucket {
        let size = size.max(1.0);
        TokenBucket { per_second, size, state: Mutex::new((size, Instant::now())) }
    }

    /// Takes `count` permits, or none.
    ///
    /// # Errors
    /// The time after which they will be there.
    pub(crate) fn take(&self, count: f64) -> Result<(), Duration> {
        let mut state = self.state.lock();
        let permits = self.refill(&mut state);
        if permits >= count {
            state.0 -= count;
            return Ok(());
        }
        Err(Duration::from_secs_f64(((count - permits) / self.per_second).clamp(0.0, 3_600.0)))
    }

    /// Takes as many whole permits as there are, at most `count`.
    pub(crate) fn take_up_to(&self, count: usize) -> usize {
        let mut state = self.state.lock();
        let taken = self.refill(&mut state).floor().min(count as f64).max(0.0);
        state.0 -= taken;
        taken as usize
    }

    fn refill(&self, (permits, at): &mut (f64, Instant)) -> f64 {
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(*at).as_secs_f64();
        *permits = (*permits + elapsed * self.per_second).min(self.size);
        *at = now;
        *permits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_of_a_user_are_counted_until_they_end() {
        let limits = UserLimits { queries_max: Some(2), ..UserLimits::default() };
        let user = User::new(Arc::new(Account::new("a".to_owned(), Roles::ALL, limits)));
        let first = user.begin_query().unwrap();
        let _second = user.begin_query().unwrap();
        for _ in 0..3 {
            assert!(user.begin_query().is_none());
        }
        drop(first);
        assert!(user.clone().begin_query().is_some());
        assert!(User::anyone().begin_query().is_some());
    }

    #[test]
    fn a_bucket_is_empty_after_its_size() {
        let bucket = TokenBucket::new(0.001, 3.0);
        assert_eq!(bucket.take_up_to(2), 2);
        assert_eq!(bucket.take(1.0), Ok(()));
        assert!(bucket.take(1.0).unwrap_err() > Duration::from_secs(900));
        assert_eq!(bucket.take_up_to(5), 0);
    }

    #[test]
    fn refusals_of_a_user_are_bounded_and_counted() {
        let account = Account::new("a".to_owned(), Roles::ALL, UserLimits::default());
        let user = User::new(Arc::new(account));
        let lines = (0..10_000).filter_map(|_| user.begin_refusal()).count();
        assert!((60..100).contains(&lines), "{lines}");
        assert!(user.0.refusals_left_out.load(Ordering::Relaxed) > 9_000);
    }

    #[test]
    fn a_hash_is_not_printed() {
        let mut account = Account::new("a".to_owned(), Roles::ALL, UserLimits::default());
        account.password = Some(PasswordHash("$2b$10$abc".to_owned()));
        assert!(!format!("{account:?}").contains("abc"));
    }
}
