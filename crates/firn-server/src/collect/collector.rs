//! The scrapes of a server: one timer, requests on the network threads, and a few threads that turn
//! answers into rows.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::http::HeaderName;
use firn_collect::config::ScrapeConfig;
use firn_collect::discovery::Provider;
use firn_collect::pool::{Due, ScrapePools, TargetId, Work};
use firn_collect::scrape::{
    Answer, FetchFailure, ScrapeContext, ScrapeScratch, TargetScraper, phase_seed,
};
use firn_fetch::{Bodies, Client, Connections, FetchError, Request, Response};
use firn_model::{Result, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

use super::config_file::{Apply, ConfigPart, LoadedFile};
use super::discovery::{DiscoveryTasks, TargetList, USER_AGENT};
use super::families::{Families, TargetFamilies};
use super::files::LocalFiles;
use super::metrics::ScrapeTotals;
use super::store::ScrapeStore;
use crate::app::App;
use crate::http::hostname;
use crate::metrics_text::MetricsText;
use crate::net::{Stopping, stopped};
use crate::tally::Protocol;
use crate::threads::{WorkerOptions, Workers};

/// The part of the server that scrapes the jobs of the file.
#[derive(Default)]
pub(crate) struct Collector {
    wanted: watch::Sender<Option<Arc<LoadedFile>>>,
    /// Once the database is open.
    running: OnceLock<Scraping>,
}

/// The state while the database is open.
struct Scraping {
    bodies: Bodies,
    workers: Workers<ScrapeScratch>,
    /// Wakes the timer.
    wake: Notify,
    totals: ScrapeTotals,
    /// While it is held, only the locks of the budget, of lists and of counts are taken.
    state: Mutex<ScrapeState>,
}

/// Targets, and the state beside them.
pub(crate) struct ScrapeState {
    pub(crate) pools: ScrapePools,
    pub(crate) families: Families,
    tasks: DiscoveryTasks,
    clients: HashMap<String, JobClient>,
    connections: HashMap<TargetId, Connections>,
    /// The lists that each job was set to last.
    synced: HashMap<String, Vec<Arc<TargetList>>>,
    file: Option<Arc<LoadedFile>>,
    /// The timer looks for work then at the latest.
    sleeps_until: Timestamp,
}

/// The client of a job.
struct JobClient {
    job: Arc<ScrapeConfig>,
    made: std::result::Result<Arc<Client>, String>,
    made_at: Instant,
}

/// The outcome of the work on a target.
struct TargetOutcome {
    scraper: Box<TargetScraper>,
    families: TargetFamilies,
    written: Result<()>,
}

// A worker waits for the device most of its time, and all waiting workers share one sync.
const WORKERS_PER_CORE: usize = 2;
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

/// Scrapes the jobs of the file, until the service stops.
pub(crate) async fn run(app: Arc<App>, stopping: Stopping) {
    let Some(collector) = app.collect.as_ref().map(|collect| Arc::clone(&collect.collector)) else {
        return;
    };
    if let Err(error) = collector.start(&app) {
        tracing::error!(%error, "targets are not scraped");
        return;
    }
    let following = follow(Arc::clone(&app), Arc::clone(&collector), stopping.clone());
    tokio::join!(following, pace(app, collector, stopping));
}

/// Sets jobs and targets whenever the file or a list changes.
async fn follow(app: Arc<App>, collector: Arc<Collector>, mut stopping: Stopping) {
    let mut wanted = collector.wanted.subscribe();
    let Some(mut lists) = collector.state().map(|state| state.tasks.changes()) else { return };
    loop {
        let (app, shared) = (Arc::clone(&app), Arc::clone(&collector));
        let setting = tokio::task::spawn_blocking(move || shared.set_targets(now(&app)));
        if setting.await.is_err() {
            tracing::error!("a list of targets panicked, which is a bug");
        }
        tokio::select! {
            () = stopped(&mut stopping) => return,
            _ = wanted.changed() => {}
            _ = lists.changed() => {}
        }
    }
}

/// Starts the work that is due, at its time.
async fn pace(app: Arc<App>, collector: Arc<Collector>, mut stopping: Stopping) {
    let Some(running) = collector.running.get() else { return };
    loop {
        let (due, sleep_ms) = running.take_due(now(&app));
        for due in due {
            tokio::spawn(work(Arc::clone(&app), Arc::clone(&collector), due));
        }
        let sleep = tokio::time::sleep(Duration::from_millis(sleep_ms));
        tokio::select! {
            () = stopped(&mut stopping) => return,
            () = running.wake.notified() => {}
            () = sleep => {}
        }
    }
}

/// The database's clock, which stamps samples.
fn now(app: &App) -> Timestamp {
    app.opened().map_or(0, |ready| ready.db.now_ms())
}

/// One scrape, or the end of a target.
async fn work(app: Arc<App>, collector: Arc<Collector>, due: Due) {
    let Some(running) = collector.running.get() else { return };
    let Due { id, scraper, work } = due;
    let begun = Instant::now();
    let mut connections = running.state.lock().connections.remove(&id).unwrap_or_default();
    let fetched = match &work {
        Work::Scrape { refused: Some(refused), .. } => {
            Some(Err(FetchFailure::Other(refused.to_string())))
        }
        Work::Scrape { refused: None, .. } => Some(running.fetch(&scraper, &mut connections).await),
        Work::End { .. } => None,
    };
    let shared = Arc::clone(&app);
    let done = running.workers.run(move |scratch| {
        let ready = shared.opened()?;
        let mut store = ScrapeStore::new(&ready.db, shared.config.label_limits());
        Some(write(&shared, scraper, (&work, fetched), begun, &mut store, scratch))
    });
    match done.await {
        Ok(Some(outcome)) => running.done(id, outcome, connections, now(&app)),
        // The server stops.
        Ok(None) => {}
        Err(_) if app.ready().is_none() => {}
        Err(error) => {
            tracing::error!(%error, "a scrape was lost");
            running.state.lock().pools.lost(id, now(&app));
            running.wake.notify_one();
        }
    }
}

/// Turns the answer into rows and writes them.
fn write(
    app: &App,
    mut scraper: Box<TargetScraper>,
    (work, fetched): (&Work, Option<std::result::Result<Response, FetchFailure>>),
    begun: Instant,
    store: &mut ScrapeStore<'_>,
    scratch: &mut ScrapeScratch,
) -> TargetOutcome {
    let written = match work {
        Work::Scrape { ts, .. } => {
            let status = fetched.as_ref().and_then(|fetched| fetched.as_ref().ok());
            let status = status.map(Response::status_text).unwrap_or_default();
            let answer = match &fetched {
                Some(Ok(response)) => Ok(Answer {
                    status: &status,
                    content_type: response.content_type(),
                    body: &response.body,
                }),
                Some(Err(failure)) => Err(failure.clone()),
                None => Err(FetchFailure::Other(String::new())),
            };
            scraper.finish(*ts, answer, &|| begun.elapsed(), store, scratch)
        }
        Work::End { ts, alive } => {
            scraper.end(*ts, &|series| alive.contains(&series), store, scratch)
        }
    };
    if matches!(work, Work::Scrape { .. }) {
        store.refuse_histograms(scraper.status().counts.histograms);
    }
    let target = scraper.public_labels();
    let why = store.refusal.as_ref().map_or_else(String::new, |why| format!("{target}: {why}"));
    app.telemetry.tally(Protocol::Scrape, &store.tally, &why);
    let families = TargetFamilies::of(store.metadata.entries());
    app.metadata.put(&mut store.metadata);
    TargetOutcome { scraper, families, written }
}

impl Collector {
    /// Starts the threads for the open database.
    fn start(&self, app: &App) -> Result<()> {
        let Some(ready) = app.ready() else { return Ok(()) };
        let budget = ready.db.budget().clone();
        if let Some(collect) = &app.collect {
            collect.file.limit_memory(&budget);
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let options = WorkerOptions {
            name: "firn-scrape",
            thread_count: (WORKERS_PER_CORE * cores).clamp(4, 32),
            queue_len_max: JOBS_WAITING_MAX,
            on_idle: app.on_idle,
        };
        let scratch_budget = budget.clone();
        let workers = Workers::start(options, move || ScrapeScratch::new(&scratch_budget))?;
        let file = self.wanted.borrow().clone();
        let external = file.map(|file| file.config.global.external_labels.clone());
        let context = ScrapeContext {
            user_agent: USER_AGENT.to_owned(),
            phase_seed: phase_seed(&hostname(), &external.unwrap_or_default()),
            budget: budget.clone(),
        };
        let state = ScrapeState {
            pools: ScrapePools::new(context),
            families: Families::new(&budget),
            tasks: DiscoveryTasks::new("scrape", &budget),
            clients: HashMap::new(),
            connections: HashMap::new(),
            synced: HashMap::new(),
            file: None,
            sleeps_until: 0,
        };
        let running = Scraping {
            bodies: Bodies::new(&budget),
            workers,
            wake: Notify::new(),
            totals: ScrapeTotals::default(),
            state: Mutex::new(state),
        };
        // A second call is a bug; the first state stays.
        let _ = self.running.set(running);
        Ok(())
    }

    /// Finishes the scrapes that have their answer, and stops the threads. Series of running
    /// targets do not become stale.
    pub(crate) fn stop(&self) {
        if let Some(running) = self.running.get() {
            running.workers.stop();
        }
    }

    /// The targets; `None` before the database is open.
    pub(crate) fn state(&self) -> Option<MutexGuard<'_, ScrapeState>> {
        self.running.get().map(|running| running.state.lock())
    }

    pub(crate) fn write_text(&self, text: &mut MetricsText) {
        if let Some(running) = self.running.get() {
            let state = running.state.lock();
            running.totals.write_text(&state.pools, text);
            state.tasks.write_text(text);
        }
    }

    /// Sets the jobs of the file and the targets of each job whose lists have changed. Needs the
    /// context of the runtime.
    fn set_targets(&self, now: Timestamp) {
        let Some(running) = self.running.get() else { return };
        let Some(file) = self.wanted.borrow().clone() else { return };
        let mut state = running.state.lock();
        let ScrapeState {
            pools, families, tasks, clients, connections, synced, file: current, ..
        } = &mut *state;
        if current.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &file)) {
            for name in pools.set_jobs(&file.jobs, now) {
                synced.remove(&name);
            }
            let is_job = |name: &String| file.jobs.iter().any(|job| job.job_name == *name);
            synced.retain(|name, _| is_job(name));
            clients.retain(|name, _| is_job(name));
            // The file was checked before it was accepted.
            tasks.set(providers(&file).unwrap_or_default());
            *current = Some(Arc::clone(&file));
        }
        for job in &file.jobs {
            let name = &job.job_name;
            let Some(lists) = tasks.lists(name) else { continue };
            let is_same = |old: &Vec<Arc<TargetList>>| {
                old.len() == lists.len() && old.iter().zip(&lists).all(|(a, b)| Arc::ptr_eq(a, b))
            };
            if synced.get(name).is_some_and(is_same) {
                continue;
            }
            let groups = lists.iter().flat_map(|list| &list.groups);
            let report = pools.sync(name, groups, now);
            running.totals.synced(name, &report);
            if report.is_ok() {
                synced.insert(name.clone(), lists);
            }
        }
        connections.retain(|id, _| pools.contains(*id));
        families.retain(|id| pools.contains(id));
        drop(state);
        running.wake.notify_one();
    }
}

impl Scraping {
    /// The work that is due, and how long the timer may sleep.
    fn take_due(&self, now: Timestamp) -> (Vec<Due>, u64) {
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

    /// Brings a scraper back.
    fn done(&self, id: TargetId, outcome: TargetOutcome, connections: Connections, now: Timestamp) {
        let TargetOutcome { scraper, families, written } = outcome;
        self.totals.finished(&scraper, &written);
        let mut state = self.state.lock();
        state.pools.done(id, scraper, now);
        if state.pools.contains(id) {
            state.connections.insert(id, connections);
            state.families.put(id, families);
        } else {
            state.families.remove(id);
        }
        let next_at = state.pools.next_at().unwrap_or(Timestamp::MAX);
        if next_at < state.sleeps_until {
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Sends the request of a scrape.
    async fn fetch(
        &self,
        scraper: &TargetScraper,
        connections: &mut Connections,
    ) -> std::result::Result<Response, FetchFailure> {
        let client = self.client(scraper.job()).map_err(FetchFailure::Other)?;
        let request = scraper.request();
        let header =
            |(name, text): &(&'static str, String)| (HeaderName::from_static(name), text.clone());
        let outgoing = Request {
            url: request.url.clone(),
            unix_socket: request.unix_socket.clone(),
            headers: request.headers.iter().map(header).collect(),
            authorization: None,
            secrets: Vec::new(),
            content: None,
            body_bytes_max: request.body_bytes_max,
            timeout: request.timeout,
        };
        client.send(&outgoing, connections).await.map_err(|error| match error {
            FetchError::BodyLimit => FetchFailure::BodyLimit,
            error => FetchFailure::Other(format!("Get {:?}: {error}", request.url)),
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
        let made =
            Client::new(&job.http, &self.bodies).map(Arc::new).map_err(|error| error.to_string());
        if let Err(error) = &made {
            self.totals.client_failed(&job.job_name, error);
        }
        let client =
            JobClient { job: Arc::clone(job), made: made.clone(), made_at: Instant::now() };
        self.state.lock().clients.insert(job.job_name.clone(), client);
        made
    }
}
