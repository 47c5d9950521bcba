//! The state of the scrapes: jobs, targets, their clients and connections. [`super::scrape_loop`]
//! is the work.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::http::HeaderName;
use firn_collect::config::{ScrapeConfig, Url};
use firn_collect::discovery::Provider;
use firn_collect::pool::{Due, PreparedList, ScrapePools, TargetId};
use firn_collect::scrape::{
    FetchFailure, ScrapeContext, ScrapeScratch, TargetScraper, TargetStatus, phase_seed,
};
use firn_fetch::{
    Bodies, Client, ClientId, Connections, FairPlaces, FetchError, PlacePermit, Purpose, Request,
    Response,
};
use firn_model::{
    Budget, Labels, Pool, Result, Timestamp, assert_not_network_thread, excerpt_within,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

use super::commits::Commits;
use super::config_file::{Apply, ConfigPart, LoadedFile};
use super::discovery::{DiscoveryTasks, TargetList, USER_AGENT};
use super::failure_log::FailureLogs;
use super::families::{Families, TargetFamilies};
use super::files::LocalFiles;
use super::metrics::ScrapeTotals;
use crate::hostname::hostname;
use crate::metrics_text::MetricsText;
use crate::threads::{WorkerOptions, Workers};

/// The part of the server that scrapes the jobs of the file.
#[derive(Default)]
pub(crate) struct Collector {
    pub(super) wanted: watch::Sender<Option<Arc<LoadedFile>>>,
    /// Once the database is open.
    pub(super) running: OnceLock<Scraping>,
}

/// The state while the database is open.
pub(super) struct Scraping {
    budget: Budget,
    /// Of a series.
    label_count_max: usize,
    /// For scrapes of targets whose last scrape has failed, shared by jobs.
    doubtful: FairPlaces,
    bodies: Bodies,
    /// The rows that the scraping thread reads.
    pub(super) scratch: Mutex<ScrapeScratch>,
    pub(super) commits: Commits<Scraped>,
    pub(super) workers: Workers<ScrapeScratch>,
    /// The thread that scrapes and the one that commits.
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
    /// Wakes the timer.
    pub(super) wake: Notify,
    pub(super) totals: ScrapeTotals,
    pub(super) failures: FailureLogs,
    /// While it is held, only the locks of the budget, of lists and of counts are taken.
    pub(super) state: Mutex<ScrapeState>,
}

/// Targets, and the state beside them.
pub(crate) struct ScrapeState {
    pub(crate) pools: ScrapePools,
    pub(crate) families: Families,
    pub(super) tasks: DiscoveryTasks,
    clients: HashMap<String, JobClient>,
    connections: HashMap<TargetId, Connections>,
    /// The lists that each job was set to last.
    synced: HashMap<String, Vec<Arc<TargetList>>>,
    file: Option<Arc<LoadedFile>>,
    /// The timer looks for work then at the latest.
    sleeps_until: Timestamp,
}

impl ScrapeState {
    /// Forgets the connections and families of targets that have left.
    pub(super) fn forget_gone(&mut self) {
        let ScrapeState { pools, connections, families, .. } = self;
        connections.retain(|id, _| pools.contains(*id));
        families.retain(|id| pools.contains(id));
    }

    /// A sentence for each discovery of `job` whose last refresh failed.
    pub(crate) fn discovery_failures(&self, job: &str) -> Vec<String> {
        self.tasks.failures(job)
    }
}

/// The client of a job.
struct JobClient {
    job: Arc<ScrapeConfig>,
    made: std::result::Result<Arc<Client>, String>,
    made_at: Instant,
}

/// The outcome of the work on a target.
pub(super) struct TargetOutcome {
    pub(super) scraper: Box<TargetScraper>,
    pub(super) families: TargetFamilies,
    pub(super) written: Result<()>,
}

/// A scrape whose rows wait for their commit.
pub(super) struct Scraped {
    pub(super) id: TargetId,
    pub(super) scraper: Box<TargetScraper>,
    /// Whether a series of its report was refused.
    pub(super) reported: Result<()>,
}

/// The answer of a target, or why there is none.
pub(super) type ScrapeAnswer = std::result::Result<Response, FetchFailure>;

// A worker waits for the device most of its time, and all waiting workers share one sync.
const WORKERS_PER_CORE: usize = 2;
// A part of the error of a scrape, of which each target keeps the last one.
const SHOWN_URL_BYTES_MAX: usize = 2 << 10;
// The texts of a request, its task and its timer, beside the state of its fetch.
const FETCH_BYTES: usize = 2 << 10;
// Scrapes of targets that have not answered may take an eighth of the memory: each about the memory
// of a fetch and of its connection. They may take half of the connections for scrapes.
const DOUBTFUL_BYTES: u64 = 24 << 10;
const DOUBTFUL_PART: u64 = 8;
const DOUBTFUL_MIN: usize = 64;

fn doubtful_max(memory_bytes: u64, connections_max: usize) -> usize {
    let count = usize::try_from(memory_bytes / DOUBTFUL_PART / DOUBTFUL_BYTES);
    count.unwrap_or(usize::MAX).max(DOUBTFUL_MIN).min(connections_max / 2)
}

// Each target has at most one job, so targets bound the queue.
const JOBS_WAITING_MAX: usize = usize::MAX;
// The timer looks at the clock this often, because the clock may jump.
const SLEEP_MS_MAX: i64 = 1_000;
// Scrapes that start before the timer yields to other tasks.
const STARTS_MAX: usize = 256;
// A certificate that is missing is looked for this often.
const CLIENT_RETRY: Duration = Duration::from_secs(10);

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").finish_non_exhaustive()
    }
}

impl ConfigPart for Collector {
    fn prepare<'p>(&'p self, file: &Arc<LoadedFile>, _: &LocalFiles) -> Result<Apply<'p>> {
        providers(file)?;
        let file = Arc::clone(file);
        Ok(Box::new(move || {
            self.wanted.send_replace(Some(file));
        }))
    }
}

/// The discoveries of each job.
fn providers(file: &LoadedFile) -> Result<Vec<(String, Vec<Provider>)>> {
    let of_job = |job: &Arc<ScrapeConfig>| {
        let place = format!("job {:?}", job.job_name);
        Ok((job.job_name.clone(), Provider::all_of(&job.discoveries, &place)?))
    };
    file.jobs.iter().map(of_job).collect()
}

impl Collector {
    /// The state for a database with `budget`, whose series have at most `label_count_max` labels,
    /// with its workers.
    ///
    /// # Errors
    /// `Unavailable` if a thread cannot start.
    pub(super) fn open(
        &self,
        budget: &Budget,
        label_count_max: usize,
        on_idle: fn(),
    ) -> Result<&Scraping> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let options = WorkerOptions {
            name: "firn-scrape",
            thread_count: (WORKERS_PER_CORE * cores).clamp(4, 32),
            queue_len_max: JOBS_WAITING_MAX,
            on_idle,
        };
        let scratch_budget = budget.clone();
        let workers = Workers::start(options, move || ScrapeScratch::new(&scratch_budget))?;
        let file = self.wanted.borrow().clone();
        let external = file.map(|file| file.config.global.external_labels.clone());
        let context = ScrapeContext {
            phase_seed: phase_seed(&hostname(), &external.unwrap_or_default()),
            budget: budget.clone(),
        };
        let state = ScrapeState {
            pools: ScrapePools::new(context),
            families: Families::new(budget),
            tasks: DiscoveryTasks::new("scrape", budget),
            clients: HashMap::new(),
            connections: HashMap::new(),
            synced: HashMap::new(),
            file: None,
            sleeps_until: 0,
        };
        let running = Scraping {
            doubtful: FairPlaces::new(doubtful_max(
                budget.usage().limit_bytes,
                Purpose::Scrapes.connections_max(),
            )),
            budget: budget.clone(),
            label_count_max,
            bodies: Bodies::new(budget),
            scratch: Mutex::new(ScrapeScratch::new(budget)),
            commits: Commits::new(budget),
            workers,
            threads: Mutex::default(),
            wake: Notify::new(),
            totals: ScrapeTotals::default(),
            failures: FailureLogs::default(),
            state: Mutex::new(state),
        };
        // A second call is a bug; the first state stays.
        Ok(self.running.get_or_init(|| running))
    }

    /// Finishes the scrapes that have their answer, and stops the threads. Series of running
    /// targets do not become stale.
    pub(crate) fn stop(&self) {
        let Some(running) = self.running.get() else { return };
        running.workers.stop();
        running.commits.close();
        for thread in running.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of scrapes panicked, which is a bug");
            }
        }
    }

    /// The targets; `None` before the database is open.
    pub(crate) fn state(&self) -> Option<MutexGuard<'_, ScrapeState>> {
        self.running.get().map(|running| running.state.lock())
    }

    /// Writes the metrics of targets. A new list of many targets holds the lock of the state, which
    /// no network thread may wait for.
    pub(crate) fn write_text(&self, notify: &DiscoveryTasks, text: &mut MetricsText) {
        assert_not_network_thread();
        if let Some(running) = self.running.get() {
            let state = running.state.lock();
            running.totals.write_text(&state.pools, &state.families, text);
            DiscoveryTasks::write_all(&[&state.tasks, notify], text);
            drop(state);
            running.failures.write_text(text);
        }
    }
}

impl Scraping {
    /// Whether its jobs are those of `file`.
    pub(super) fn has_jobs_of(&self, file: &Arc<LoadedFile>) -> bool {
        self.state.lock().file.as_ref().is_some_and(|known| Arc::ptr_eq(known, file))
    }

    /// Sets the jobs of `file`, and starts their discoveries. Needs the context of the runtime.
    pub(super) fn set_jobs(&self, file: &Arc<LoadedFile>, now: Timestamp) {
        let mut state = self.state.lock();
        let ScrapeState { pools, tasks, clients, synced, file: current, .. } = &mut *state;
        for name in pools.set_jobs(&file.jobs, now) {
            synced.remove(&name);
        }
        let is_job = |name: &String| file.jobs.iter().any(|job| job.job_name == *name);
        synced.retain(|name, _| is_job(name));
        clients.retain(|name, _| is_job(name));
        self.totals.retain_jobs(is_job);
        // The file was checked before it was accepted.
        tasks.set(providers(file).unwrap_or_default());
        *current = Some(Arc::clone(file));
    }

    /// The lists of a job, once all of its discoveries have one, unless its targets are those of
    /// these lists.
    pub(super) fn new_lists(&self, job_name: &str) -> Option<Vec<Arc<TargetList>>> {
        let state = self.state.lock();
        let lists = state.tasks.lists(job_name)?;
        let is_same = |old: &Vec<Arc<TargetList>>| {
            old.len() == lists.len() && old.iter().zip(&lists).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        (!state.synced.get(job_name).is_some_and(is_same)).then_some(lists)
    }

    /// Sets the targets of a job to those of `lists`. Jobs and targets are set by one thread.
    pub(super) fn set_targets(
        &self,
        job: &Arc<ScrapeConfig>,
        lists: Vec<Arc<TargetList>>,
        now: &dyn Fn() -> Timestamp,
    ) {
        let begun = Instant::now();
        let groups = lists.iter().flat_map(|list| &list.groups);
        // Without the lock: scrapes would wait for the relabelling of all targets.
        let known = |labels: &Labels| self.state.lock().pools.known(job, labels);
        let list = PreparedList::read(job, groups, &self.budget, self.label_count_max, known);
        let mut state = self.state.lock();
        let report = state.pools.sync(&job.job_name, list, now());
        self.totals.synced(&job.job_name, &report, begun.elapsed());
        if report.is_ok() {
            state.synced.insert(job.job_name.clone(), lists);
        }
    }

    /// The work that is due, and how long the timer may sleep.
    pub(super) fn take_due(&self, now: Timestamp) -> (Vec<Due>, u64) {
        let mut state = self.state.lock();
        let mut due = Vec::new();
        while due.len() < STARTS_MAX
            && let Some(one) = state.pools.take_due(now)
        {
            due.push(one);
        }
        let next_at = state.pools.next_at().unwrap_or(Timestamp::MAX);
        let sleep_ms = next_at.saturating_sub(now).clamp(0, SLEEP_MS_MAX);
        state.sleeps_until = now.saturating_add(sleep_ms);
        (due, sleep_ms.unsigned_abs())
    }

    /// A target's scraper was lost in a panic: it gets another.
    pub(super) fn lost(&self, id: TargetId, error: &str, now: Timestamp) {
        tracing::error!(error, "a scrape was lost");
        self.state.lock().pools.lost(id, now);
        self.wake.notify_one();
    }

    /// A worker is done with a target.
    pub(super) fn done(&self, id: TargetId, outcome: TargetOutcome, now: Timestamp) {
        let TargetOutcome { scraper, families, written } = outcome;
        self.totals.finished(&scraper, &written);
        self.state.lock().families.put(id, families);
        self.bring_back([(id, scraper)], now);
    }

    /// Brings scrapers back.
    pub(super) fn bring_back(
        &self,
        scrapers: impl IntoIterator<Item = (TargetId, Box<TargetScraper>)>,
        now: Timestamp,
    ) {
        let mut state = self.state.lock();
        for (id, scraper) in scrapers {
            state.pools.done(id, scraper, now);
            if !state.pools.contains(id) {
                state.connections.remove(&id);
                state.families.remove(id);
            }
        }
        let next_at = state.pools.next_at().unwrap_or(Timestamp::MAX);
        if next_at < state.sleeps_until {
            drop(state);
            self.wake.notify_one();
        }
    }

    /// The answer of a target.
    pub(super) async fn scrape(
        &self,
        id: TargetId,
        scraper: &TargetScraper,
        begun: Instant,
    ) -> ScrapeAnswer {
        let client = self.client(scraper.job()).map_err(FetchFailure::Other)?;
        let _permit = self.admit(scraper, client.id()).await?;
        match self.fetch(id, scraper, &client, begun) {
            Ok(fetching) => fetching.await,
            Err(error) => Err(FetchFailure::Other(error.to_string())),
        }
    }

    /// Waits until the target may be scraped. All targets of a job may hang at the same time: those
    /// whose last scrape has failed, and new ones, leave memory and connections to the others, and
    /// those of one job leave some to those of other jobs.
    async fn admit(
        &self,
        scraper: &TargetScraper,
        job: ClientId,
    ) -> std::result::Result<Option<PlacePermit>, FetchFailure> {
        let TargetStatus { duration, error, .. } = scraper.status();
        if error.is_none() && !duration.is_zero() {
            return Ok(None);
        }
        let timeout = Duration::from_millis(scraper.target().timeout.as_ms());
        match tokio::time::timeout(timeout, self.doubtful.take(job)).await {
            Ok(Ok(permit)) => Ok(Some(permit)),
            _ => Err(FetchFailure::Other(
                "context deadline exceeded: too many other targets do not answer".to_owned(),
            )),
        }
    }

    /// Sends the request of a scrape over the connections that the target's last one has left open.
    /// Its memory is reserved apart from that of its connection, because all targets may wait for
    /// one at the same time.
    ///
    /// # Errors
    /// `Busy` without memory.
    fn fetch<'a>(
        &'a self,
        id: TargetId,
        scraper: &'a TargetScraper,
        client: &'a Client,
        begun: Instant,
    ) -> Result<Pin<Box<impl Future<Output = ScrapeAnswer> + 'a>>> {
        let fetching = async move {
            let mut connections = self.state.lock().connections.remove(&id).unwrap_or_default();
            let fetched = self.send(scraper, client, begun, &mut connections).await;
            self.state.lock().connections.insert(id, connections);
            fetched
        };
        let bytes = size_of_val(&fetching).saturating_add(FETCH_BYTES) as u64;
        let held = self.budget.reserve(Pool::Requests, bytes)?;
        Ok(Box::pin(async move {
            let _held = held;
            fetching.await
        }))
    }

    async fn send(
        &self,
        scraper: &TargetScraper,
        client: &Client,
        begun: Instant,
        connections: &mut Connections,
    ) -> ScrapeAnswer {
        let request = scraper.request(USER_AGENT);
        let headers = request.headers.into_iter();
        let outgoing = Request {
            url: request.url,
            unix_socket: request.unix_socket,
            headers: headers.map(|(name, text)| (HeaderName::from_static(name), text)).collect(),
            authorization: None,
            secrets: Vec::new(),
            content: None,
            body_bytes_max: request.body_bytes_max,
            // The scrape may have waited to be admitted.
            timeout: request.timeout.saturating_sub(begun.elapsed()),
        };
        client.send(&outgoing, connections).await.map_err(|error| match error {
            FetchError::BodyLimit => FetchFailure::BodyLimit,
            error => {
                let shown = Url::shown(&outgoing.url);
                let shown = excerpt_within(&shown, SHOWN_URL_BYTES_MAX);
                FetchFailure::Other(format!("Get {shown:?}: {error}"))
            }
        })
    }

    /// The client of a job. One whose certificates are missing is made again later.
    fn client(&self, job: &Arc<ScrapeConfig>) -> std::result::Result<Arc<Client>, String> {
        if let Some(known) = self.state.lock().clients.get(&job.job_name)
            && Arc::ptr_eq(&known.job, job)
            && (known.made.is_ok() || known.made_at.elapsed() < CLIENT_RETRY)
        {
            return known.made.clone();
        }
        let made = Client::new(&job.http, &self.bodies).map_err(|error| error.to_string());
        let made = made.map(|client| Arc::new(client.with_purpose(Purpose::Scrapes)));
        if let Err(error) = &made {
            self.totals.client_failed(&job.job_name, error);
        }
        let client =
            JobClient { job: Arc::clone(job), made: made.clone(), made_at: Instant::now() };
        self.state.lock().clients.insert(job.job_name.clone(), client);
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before, their number depended on the memory only: they took all connections.
    #[test]
    fn targets_that_do_not_answer_leave_memory_and_connections_to_others() {
        for (memory_bytes, connections_max, expected) in [
            (128 << 20, 1 << 18, 682),
            (128 << 20, 160, 80),
            (1 << 20, 160, 64),
            (1 << 20, 10, 5),
            (u64::MAX, 1 << 20, 1 << 19),
        ] {
            assert_eq!(doubtful_max(memory_bytes, connections_max), expected);
        }
    }
}
