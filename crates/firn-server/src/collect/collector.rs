//! The scrapes of a server. One thread starts them, reads the answers of all targets and turns
//! those of usual size into rows; [`Commits`] writes these. Workers do the rest, so that a long
//! body or new series delay no other scrape.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fmt, io};

use axum::http::HeaderName;
use firn_collect::config::{ScrapeConfig, Url};
use firn_collect::discovery::Provider;
use firn_collect::pool::{Due, ScrapePool, ScrapePools, TargetId, Work};
use firn_collect::scrape::{
    Answer, FetchFailure, ScrapeContext, ScrapeScratch, Store as _, TargetScraper, TargetStatus,
    phase_seed,
};
use firn_fetch::{
    Bodies, Client, ClientId, Connections, FairPlaces, FetchError, PlacePermit, Purpose, Request,
    Response,
};
use firn_model::{Budget, Error, Pool, Result, Timestamp};
use firndb::WriteReport;
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Builder;
use tokio::sync::{Notify, watch};

use super::commits::Commits;
use super::config_file::{Apply, ConfigPart, LoadedFile};
use super::discovery::{DiscoveryTasks, TargetList, USER_AGENT};
use super::failure_log::FailureLogs;
use super::families::{Families, TargetFamilies};
use super::files::LocalFiles;
use super::metrics::ScrapeTotals;
use super::store::{ScrapeStore, copy_of};
use crate::app::App;
use crate::http::hostname;
use crate::metrics_text::MetricsText;
use crate::net::{Stopping, stopped};
use crate::tally::{Protocol, Tally};
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
    budget: Budget,
    /// For scrapes of targets whose last scrape has failed, shared by jobs.
    doubtful: FairPlaces,
    bodies: Bodies,
    /// The rows that the scraping thread reads.
    scratch: Mutex<ScrapeScratch>,
    commits: Commits<Scraped>,
    workers: Workers<ScrapeScratch>,
    /// The thread that scrapes and the one that commits.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Wakes the timer.
    wake: Notify,
    totals: ScrapeTotals,
    failures: FailureLogs,
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

impl ScrapeState {
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
struct TargetOutcome {
    scraper: Box<TargetScraper>,
    families: TargetFamilies,
    written: Result<()>,
}

/// A scrape whose rows wait for their commit.
struct Scraped {
    id: TargetId,
    scraper: Box<TargetScraper>,
    /// Whether a series of its report was refused.
    reported: Result<()>,
}

/// The answer of a target, or why there is none.
type ScrapeAnswer = std::result::Result<Response, FetchFailure>;

// A worker waits for the device most of its time, and all waiting workers share one sync.
const WORKERS_PER_CORE: usize = 2;
// A longer body takes over a millisecond, in which other scrapes would be late.
const BODY_BYTES_HERE_MAX: usize = 256 << 10;
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

// Most of them wait: for names, files and lists of targets.
const BLOCKING_THREADS_MAX: usize = 16;
// The scraping thread releases freed memory this often. It is never idle for long.
const RELEASE_INTERVAL: Duration = Duration::from_secs(5);
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
    if let Err(error) = collector.start(&app, &stopping) {
        tracing::error!(%error, "targets are not scraped");
        return;
    }
    follow(app, collector, stopping).await;
}

/// Sets jobs and targets whenever the file or a list changes.
async fn follow(app: Arc<App>, collector: Arc<Collector>, mut stopping: Stopping) {
    let mut wanted = collector.wanted.subscribe();
    let Some(mut lists) = collector.state().map(|state| state.tasks.changes()) else { return };
    loop {
        let (app, shared) = (Arc::clone(&app), Arc::clone(&collector));
        let setting = tokio::task::spawn_blocking(move || shared.set_targets(&app));
        if setting.await.is_err() {
            tracing::error!("a list of targets panicked, which is a bug");
        }
        // Other work may have released memory for a list that was refused.
        let is_refused = |(_, pool): (&str, &ScrapePool)| pool.refused().is_some();
        let retries = collector.state().is_some_and(|state| state.pools.pools().any(is_refused));
        tokio::select! {
            () = stopped(&mut stopping) => return,
            _ = wanted.changed() => {}
            _ = lists.changed() => {}
            () = tokio::time::sleep(REFUSED_RETRY), if retries => {}
        }
    }
}

// Reading a list of 100,000 targets again delays scrapes by up to a second.
const REFUSED_RETRY: Duration = Duration::from_secs(60);

/// Starts the work that is due, at its time.
async fn pace(app: Arc<App>, collector: Arc<Collector>, mut stopping: Stopping) {
    let Some(running) = collector.running.get() else { return };
    let mut released = Instant::now();
    loop {
        let (due, sleep_ms) = running.take_due(now(&app));
        for due in due {
            tokio::spawn(work(Arc::clone(&app), Arc::clone(&collector), due));
        }
        if released.elapsed() >= RELEASE_INTERVAL {
            released = Instant::now();
            (app.on_idle)();
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
    let Due { id, mut scraper, work } = due;
    let begun = Instant::now();
    let is_scrape = matches!(work, Work::Scrape { .. });
    if is_scrape {
        running.totals.begun(&mut scraper, begun);
    }
    let fetched = match &work {
        Work::Scrape { refused: Some(refused), .. } => {
            Some(Err(FetchFailure::Other(refused.to_string())))
        }
        Work::Scrape { refused: None, .. } => Some(running.scrape(id, &scraper, begun).await),
        Work::End { .. } => None,
    };
    if let (Work::Scrape { ts, .. }, Some(fetched)) = (&work, &fetched)
        && is_usual(&scraper, fetched)
    {
        let reading = || running.read(&app, id, scraper, (*ts, fetched), begun);
        if catch_unwind(AssertUnwindSafe(reading)).is_err() {
            running.lost(id, "reading an answer panicked, which is a bug", now(&app));
        }
        return;
    }
    let shared = Arc::clone(&app);
    let done = running.workers.run(move |scratch| {
        let ready = shared.opened()?;
        let mut store = ScrapeStore::new(&ready.db, shared.config.label_limits());
        Some(write(&shared, scraper, (&work, fetched), begun, &mut store, scratch))
    });
    match done.await {
        Ok(Some(outcome)) => {
            if is_scrape {
                running.failures.add(&outcome.scraper);
            }
            running.done(id, outcome, now(&app));
        }
        // The server stops.
        Ok(None) => {}
        Err(_) if app.ready().is_none() => {}
        Err(error) => running.lost(id, &error.to_string(), now(&app)),
    }
}

/// Whether turning an answer into rows takes a fraction of a millisecond: it fails, or most of its
/// lines are known.
fn is_usual(scraper: &TargetScraper, fetched: &ScrapeAnswer) -> bool {
    match fetched {
        Ok(response) => scraper.is_steady() && response.body.len() <= BODY_BYTES_HERE_MAX,
        Err(_) => true,
    }
}

/// The answer as a scraper reads it. `status` is the text of its status.
fn answer_of<'a>(
    fetched: &'a ScrapeAnswer,
    status: &'a str,
) -> std::result::Result<Answer<'a>, FetchFailure> {
    match fetched {
        Ok(response) => {
            Ok(Answer { status, content_type: response.content_type(), body: &response.body })
        }
        Err(failure) => Err(failure.clone()),
    }
}

fn status_of(fetched: &ScrapeAnswer) -> String {
    fetched.as_ref().map(Response::status_text).unwrap_or_default()
}

/// Hides the credentials that a target repeats in its body from the error that quotes it.
fn hide_secrets(scraper: &mut TargetScraper, fetched: &ScrapeAnswer) {
    if let Ok(response) = fetched {
        scraper.hide_in_error(|error| response.without_secrets(error));
    }
}

/// Counts the refused and stored samples of a scrape, and keeps its metadata.
fn account(app: &App, scraper: &TargetScraper, store: &mut ScrapeStore<'_>) -> TargetFamilies {
    let target = scraper.public_labels();
    let why = store.refusal.as_ref().map_or_else(String::new, |why| format!("{target}: {why}"));
    app.telemetry.tally(Protocol::Scrape, &store.tally, &why);
    let families = TargetFamilies::of(store.metadata.entries());
    app.metadata.put(&mut store.metadata);
    families
}

/// The reason why samples of a commit were left out, if any were.
fn why_refused(app: &App, report: &WriteReport) -> String {
    let refused = report.refused_ts.zip(app.ready()).and_then(|(ts, ready)| {
        let times = ready.db.accepted_times();
        times.refusal(ts).map(|refusal| times.explain(ts, refusal).to_string())
    });
    refused.unwrap_or_default()
}

/// Turns the answer into rows and writes them.
fn write(
    app: &App,
    mut scraper: Box<TargetScraper>,
    (work, fetched): (&Work, Option<ScrapeAnswer>),
    begun: Instant,
    store: &mut ScrapeStore<'_>,
    scratch: &mut ScrapeScratch,
) -> TargetOutcome {
    let written = match work {
        Work::Scrape { ts, .. } => {
            let none = || Err(FetchFailure::Other(String::new()));
            let fetched = fetched.unwrap_or_else(none);
            let status = status_of(&fetched);
            let answer = answer_of(&fetched, &status);
            let written = scraper.finish(*ts, answer, &|| begun.elapsed(), store, scratch);
            hide_secrets(&mut scraper, &fetched);
            written
        }
        Work::End { ts, alive } => {
            scraper.end(*ts, &|series| alive.contains(&series), store, scratch)
        }
    };
    let families = account(app, &scraper, store);
    TargetOutcome { scraper, families, written }
}

impl Collector {
    /// Starts the threads for the open database.
    fn start(self: &Arc<Self>, app: &Arc<App>, stopping: &Stopping) -> Result<()> {
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
            doubtful: FairPlaces::new(doubtful_max(
                budget.usage().limit_bytes,
                Purpose::Scrapes.connections_max(),
            )),
            budget: budget.clone(),
            bodies: Bodies::new(&budget),
            scratch: Mutex::new(ScrapeScratch::new(&budget)),
            commits: Commits::new(&budget),
            workers,
            threads: Mutex::default(),
            wake: Notify::new(),
            totals: ScrapeTotals::default(),
            failures: FailureLogs::default(),
            state: Mutex::new(state),
        };
        // A second call is a bug; the first state stays.
        let running = self.running.get_or_init(|| running);
        let threads = [self.start_scraping(app, stopping.clone())?, self.start_committing(app)?];
        running.threads.lock().extend(threads);
        Ok(())
    }

    /// One thread for all targets: the parts of an answer wake no other thread.
    fn start_scraping(
        self: &Arc<Self>,
        app: &Arc<App>,
        stopping: Stopping,
    ) -> Result<JoinHandle<()>> {
        let cannot =
            |e: io::Error| Error::unavailable("cannot start the scraping thread").because(e);
        let mut builder = Builder::new_current_thread();
        builder.enable_all().max_blocking_threads(BLOCKING_THREADS_MAX);
        let runtime = builder.thread_name("firn-scrape-wait").build().map_err(cannot)?;
        let (app, collector) = (Arc::clone(app), Arc::clone(self));
        std::thread::Builder::new()
            .name("firn-scrape".to_owned())
            .spawn(move || {
                runtime.block_on(pace(app, collector, stopping));
                // A lookup that hangs is not waited for.
                runtime.shutdown_background();
            })
            .map_err(cannot)
    }

    fn start_committing(self: &Arc<Self>, app: &Arc<App>) -> Result<JoinHandle<()>> {
        let (app, collector) = (Arc::clone(app), Arc::clone(self));
        let commit = move || {
            let (Some(running), Some(ready)) = (collector.running.get(), app.opened()) else {
                return;
            };
            running.commits.run(
                |rows, generation| ready.db.write_known(rows, generation),
                |row_count, written, scrapes| {
                    running.committed(&app, row_count, written, scrapes);
                },
                app.on_idle,
            );
        };
        let thread = std::thread::Builder::new().name("firn-commit".to_owned()).spawn(commit);
        thread.map_err(|e| Error::unavailable("cannot start the committing thread").because(e))
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

    pub(crate) fn write_text(&self, notify: &DiscoveryTasks, text: &mut MetricsText) {
        if let Some(running) = self.running.get() {
            let state = running.state.lock();
            running.totals.write_text(&state.pools, &state.families, text);
            DiscoveryTasks::write_all(&[&state.tasks, notify], text);
            drop(state);
            running.failures.write_text(text);
        }
    }

    /// Sets the jobs of the file and the targets of each job whose lists have changed. Needs the
    /// context of the runtime.
    fn set_targets(&self, app: &App) {
        let now = now(app);
        let Some(running) = self.running.get() else { return };
        let Some(file) = self.wanted.borrow().clone() else { return };
        let is_known = |known: &Arc<LoadedFile>| Arc::ptr_eq(known, &file);
        if !running.state.lock().file.as_ref().is_some_and(is_known) {
            running.failures.set(&file.jobs, &app.forbidden_files());
        }
        let mut state = running.state.lock();
        let ScrapeState {
            pools, families, tasks, clients, connections, synced, file: current, ..
        } = &mut *state;
        if !current.as_ref().is_some_and(is_known) {
            for name in pools.set_jobs(&file.jobs, now) {
                synced.remove(&name);
            }
            let is_job = |name: &String| file.jobs.iter().any(|job| job.job_name == *name);
            synced.retain(|name, _| is_job(name));
            clients.retain(|name, _| is_job(name));
            running.totals.retain_jobs(is_job);
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
            let begun = Instant::now();
            let report = pools.sync(name, groups, now);
            running.totals.synced(name, &report, begun.elapsed());
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

    /// Turns an answer into rows, which wait for the next commit.
    fn read(
        &self,
        app: &App,
        id: TargetId,
        mut scraper: Box<TargetScraper>,
        (ts, fetched): (Timestamp, &ScrapeAnswer),
        begun: Instant,
    ) {
        let Some(ready) = app.opened() else { return };
        let mut store = ScrapeStore::new(&ready.db, app.config.label_limits());
        let mut scratch = self.scratch.lock();
        let status = status_of(fetched);
        let answer = answer_of(fetched, &status);
        let elapsed = || begun.elapsed();
        let reported = scraper.read(ts, answer, &elapsed, &mut store, &mut scratch);
        hide_secrets(&mut scraper, fetched);
        self.failures.add(&scraper);
        let families = account(app, &scraper, &mut store);
        self.state.lock().families.put(id, families);
        let scraped = Scraped { id, scraper, reported };
        if let Err((scraped, error)) = self.commits.add(scraped, scratch.rows(), store.generation())
        {
            self.committed(app, scratch.rows().len(), &Err(error), &mut vec![scraped]);
        }
        scratch.clear();
    }

    /// Scrapes with `row_count` samples in all were written, or are lost.
    fn committed(
        &self,
        app: &App,
        row_count: usize,
        written: &Result<WriteReport>,
        scrapes: &mut Vec<Scraped>,
    ) {
        let mut tally = Tally::of(row_count as u64);
        self.totals.out_of_bounds(tally.add_outcome(written));
        let why =
            written.as_ref().map_or_else(ToString::to_string, |report| why_refused(app, report));
        app.telemetry.tally(Protocol::Scrape, &tally, &why);
        let scrapers: Vec<(TargetId, Box<TargetScraper>)> = scrapes
            .drain(..)
            .map(|Scraped { id, mut scraper, reported }| {
                let written = written.as_ref().map(|_| 0).map_err(copy_of);
                scraper.written(&written);
                self.totals.finished(&scraper, &reported.and(written.map(|_| ())));
                (id, scraper)
            })
            .collect();
        self.bring_back(scrapers, now(app));
    }

    /// A target's scraper was lost in a panic: it gets another.
    fn lost(&self, id: TargetId, error: &str, now: Timestamp) {
        tracing::error!(error, "a scrape was lost");
        self.state.lock().pools.lost(id, now);
        self.wake.notify_one();
    }

    /// A worker is done with a target.
    fn done(&self, id: TargetId, outcome: TargetOutcome, now: Timestamp) {
        let TargetOutcome { scraper, families, written } = outcome;
        self.totals.finished(&scraper, &written);
        self.state.lock().families.put(id, families);
        self.bring_back([(id, scraper)], now);
    }

    /// Brings scrapers back.
    fn bring_back(
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
    async fn scrape(&self, id: TargetId, scraper: &TargetScraper, begun: Instant) -> ScrapeAnswer {
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
            error => FetchFailure::Other(format!("Get {:?}: {error}", Url::shown(&outgoing.url))),
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
