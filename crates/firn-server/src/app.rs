//! State that all handlers share, and the one crossing from async to blocking calls.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use firn_model::{
    Budget, CancelToken, Error, ErrorKind, Labels, QueryContext, QueryStats, Result, Timestamp,
};
use tokio::sync::{Mutex, Notify, OwnedSemaphorePermit, Semaphore};

use crate::access::Gate;
use crate::access::account::User;
use crate::access::line_log::ForbiddenFiles;
use crate::answer::{ApiError, ApiErrorKind};
use crate::clock::{clock_ms, monotonic_ns};
use crate::collect::Collect;
use crate::config::ServeConfig;
use crate::http::guard::Guard;
use crate::http::turns::{Turn, Turns};
use crate::ingest::{Ingest, IngestLimits, Scratch};
use crate::metadata::MetadataStore;
use crate::metrics_text::{Kind, MetricsMemory, MetricsText};
use crate::net::{ConnectionLimits, ConnectionTable};
use crate::prometheus_names::{self, QueryDurations, QueryLoad};
use crate::query_log::QueryLog;
use crate::remote_write::RemoteWriter;
use crate::rules::RuleManager;
use crate::target::Target;
use crate::telemetry::{Telemetry, write_process};
use crate::threads::{WorkerOptions, Workers};
use firndb::{Db, History, RecoveryProgress};

/// The server's state; it includes the database once that is open.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) config: ServeConfig,
    /// Called by a thread without work: the program may have its allocator release memory there.
    pub(crate) on_idle: fn(),
    /// The addresses of the server, with the ports that the system chose.
    pub(crate) listens: Vec<SocketAddr>,
    /// Refuses requests that a web page may have sent.
    pub(crate) guard: Arc<Guard>,
    /// The turns of large write bodies.
    pub(crate) turns: Turns,
    /// The connections of the main listener.
    pub(crate) connections: Arc<ConnectionTable>,
    pub(crate) progress: RecoveryProgress,
    pub(crate) telemetry: Telemetry,
    /// Users and TLS.
    pub(crate) gate: Arc<Gate>,
    pub(crate) query_log: Arc<QueryLog>,
    /// `--prometheus-config`.
    pub(crate) collect: Option<Collect>,
    /// Rules and alerts.
    pub(crate) rules: Arc<RuleManager>,
    /// Outgoing remote write.
    pub(crate) remote_write: Arc<RemoteWriter>,
    pub(crate) metadata: MetadataStore,
    pub(crate) metrics_memory: MetricsMemory,
    /// The server itself, if it scrapes itself.
    pub(crate) target: Option<Target>,
    /// Start time of the server.
    pub(crate) started_ms: Timestamp,
    /// Notified when a client requests the stop of the process.
    pub(crate) quit: Notify,
    /// Set when another program has removed or replaced the data folder; the process then stops
    /// without another write.
    pub(crate) lost_folder: OnceLock<String>,
    /// Held by long administrative work, which runs one at a time.
    pub(crate) admin_work: Arc<Mutex<()>>,
    /// Before the database is open, too.
    desk: OnceLock<Arc<QueryDesk>>,
    ready: OnceLock<Ready>,
    stopping: AtomicBool,
}

/// The file of `--prometheus-config` and the parts that act on it.
pub(crate) type ConfigParts = (Option<Collect>, Arc<RuleManager>, Arc<RemoteWriter>);

/// The threads of queries and of remote reads.
#[derive(Debug)]
pub(crate) struct QueryDesk {
    threads: Workers<()>,
    permits: Arc<Semaphore>,
    readers: Workers<()>,
    read_permits: Arc<Semaphore>,
    waiting: Arc<AtomicU64>,
    running: Arc<AtomicU64>,
    pub(crate) durations: QueryDurations,
    /// Upper limit of one query, as a part of the memory budget.
    query_bytes_max: u64,
}

/// The open database and the threads that use it.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) db: Arc<Db>,
    pub(crate) ingest: Arc<Ingest>,
    writers: Workers<Scratch>,
    /// The write threads that transactions, deletes and copies may take.
    long_writes: Arc<Semaphore>,
    /// The same, and the places of those that wait.
    long_write_places: Arc<Semaphore>,
    desk: Arc<QueryDesk>,
}

// A writer waits for the device most of its time, and all waiting writers share one sync.
const WRITERS_PER_CORE: usize = 4;
// A body waits here with its memory, which the budget bounds too.
const WRITES_WAITING_MAX: usize = 256;
// A client that disconnects releases its permit at once; its job remains until a thread has noticed
// that it was cancelled.
const ABANDONED_MAX: usize = 256;
// 25 to 31 bytes each. With more active series, labels are parsed again now and then.
const CACHED_SERIES_MAX: usize = 50_000_000;

impl App {
    /// The state before the database is open.
    pub(crate) fn new(
        config: ServeConfig,
        on_idle: fn(),
        listens: &[SocketAddr],
        (gate, query_log): (Arc<Gate>, Arc<QueryLog>),
        (collect, rules, remote_write): ConfigParts,
    ) -> App {
        let interval = config.self_scrape_interval();
        let metadata = MetadataStore::within(config.memory.0);
        App {
            connections: ConnectionTable::new(ConnectionLimits::within_open_files(
                config.connections_max.to_usize(),
                config.connections_per_client_max.get().map(|max| max.to_usize()),
            )),
            target: interval.zip(listens.first()).map(|(interval, &listen)| {
                Target::new(listen, config.self_scrape_job.0.clone(), interval.duration())
            }),
            on_idle,
            started_ms: clock_ms(),
            quit: Notify::new(),
            lost_folder: OnceLock::new(),
            admin_work: Arc::default(),
            guard: Arc::new(Guard::new(&config.allowed_hosts, &config.cors_origin)),
            turns: Turns::within(config.memory.0),
            config,
            listens: listens.to_vec(),
            progress: RecoveryProgress::default(),
            telemetry: Telemetry::default(),
            gate,
            query_log,
            collect,
            rules,
            remote_write,
            metadata,
            metrics_memory: MetricsMemory::new(),
            desk: OnceLock::new(),
            ready: OnceLock::new(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Reads the web configuration and the configuration of Prometheus again and opens the logs
    /// again, as after SIGHUP.
    ///
    /// # Errors
    /// Those of the first file that is wrong; its previous version stays, and the other one is
    /// read nevertheless.
    pub(crate) fn reload(&self) -> Result<()> {
        let collect = self.collect.as_ref().map_or(Ok(()), |collect| collect.file.reload());
        self.query_log.reopen(self.forbidden_files().inputs);
        self.gate.reload().and(collect)
    }

    /// Reloads if the texts of the configuration of Prometheus are not those of `loaded`, or the
    /// last load failed. Not while they change: `seen` is the digest of the last call.
    pub(crate) fn reload_if_changed(&self, loaded: &mut Vec<u8>, seen: &mut Vec<u8>) {
        let Some(collect) = &self.collect else { return };
        let digest = match collect.file.digest() {
            Ok(digest) => digest,
            Err(error) => {
                tracing::warn!(%error, "cannot compare the configuration with the one in use");
                return;
            }
        };
        let is_at_rest = *seen == digest;
        *seen = digest;
        if !is_at_rest || (seen == loaded && collect.file.is_current()) {
            return;
        }
        tracing::info!("the configuration is not the one in use: reloading");
        // The error is in the log.
        let _ = self.reload();
        if collect.file.is_current() {
            loaded.clone_from(seen);
        }
    }

    /// The files to which no log may append.
    pub(crate) fn forbidden_files(&self) -> ForbiddenFiles {
        let mut forbidden = self.gate.forbidden();
        let file = self.collect.as_ref().map(|collect| collect.file.current());
        forbidden.inputs.extend(file.and_then(|file| file.inputs().ok()).unwrap_or_default());
        forbidden
    }

    /// Labels that distinguish this server: those of the configuration of Prometheus and of
    /// `--external-labels`, which wins.
    pub(crate) fn external_labels(&self) -> Labels {
        let own = &self.config.external_labels.0;
        let Some(collect) = &self.collect else { return own.clone() };
        let file = collect.file.current();
        let both = file.config.global.external_labels.iter().chain(own.iter());
        let both: BTreeMap<&str, &str> = both.collect();
        // Labels beyond the limits of the database cannot be added to its series.
        Labels::from_pairs(both).unwrap_or_else(|_| own.clone())
    }

    /// The database and its threads, once it is open and until the server stops.
    pub(crate) fn ready(&self) -> Option<&Ready> {
        self.ready.get().filter(|_| !self.stopping.load(Ordering::Relaxed))
    }

    /// The part of the database that is complete without the log, and the threads of its queries,
    /// while the log is replayed.
    pub(crate) fn history(&self) -> Option<(Arc<QueryDesk>, Arc<History>)> {
        let is_opening = self.ready.get().is_none() && !self.stopping.load(Ordering::Relaxed);
        let desk = self.desk.get().filter(|_| is_opening)?;
        Some((Arc::clone(desk), self.progress.history()?))
    }

    /// Finishes the queued queries and remote reads, and stops their threads.
    pub(crate) fn stop_queries(&self) {
        if let Some(desk) = self.desk.get() {
            desk.stop();
        }
    }

    /// Starts the threads of queries and remote reads, if they do not run.
    ///
    /// # Errors
    /// `Unavailable` when a thread cannot be started.
    pub(crate) fn open_desk(&self) -> Result<Arc<QueryDesk>> {
        if let Some(desk) = self.desk.get() {
            return Ok(Arc::clone(desk));
        }
        let query_count = self.config.query_concurrency_max.to_usize();
        let options = WorkerOptions {
            name: "firn-query",
            thread_count: query_count,
            // Permits bound the jobs in this queue; requests wait for a permit before they enter
            // it.
            queue_len_max: query_count + ABANDONED_MAX,
            on_idle: self.on_idle,
        };
        let read_count = self.config.remote_read_concurrency_max.to_usize();
        let readers = WorkerOptions {
            name: "firn-read",
            thread_count: read_count,
            queue_len_max: read_count + ABANDONED_MAX,
            on_idle: self.on_idle,
        };
        let desk = QueryDesk {
            threads: Workers::start(options, || ())?,
            permits: Arc::new(Semaphore::new(query_count)),
            readers: Workers::start(readers, || ())?,
            read_permits: Arc::new(Semaphore::new(read_count)),
            waiting: Arc::default(),
            running: Arc::default(),
            durations: QueryDurations::new(Instant::now()),
            query_bytes_max: self.config.query_memory.0,
        };
        Ok(Arc::clone(self.desk.get_or_init(|| Arc::new(desk))))
    }

    /// The database, whether or not the server is stopping.
    pub(crate) fn opened(&self) -> Option<&Ready> {
        self.ready.get()
    }

    /// Marks the server as stopping: [`App::ready`] returns `None` from now on.
    pub(crate) fn stop_being_ready(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Starts the threads for the open `db` and lets requests through.
    ///
    /// # Errors
    /// `Unavailable` when a thread cannot be started.
    pub(crate) fn become_ready(&self, db: Arc<Db>) -> Result<()> {
        let config = &self.config;
        if let Some(target) = &self.target {
            target.metadata.open(db.budget());
        }
        let limits = IngestLimits {
            labels: config.label_limits(),
            request_bytes_max: config.request_bytes_max.to_usize(),
            cached_series_max: CACHED_SERIES_MAX,
        };
        let ingest = Arc::new(Ingest::new(Arc::clone(&db), limits));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let writer_count = (WRITERS_PER_CORE * cores).clamp(8, 64);
        let writers = WorkerOptions {
            name: "firn-write",
            thread_count: writer_count,
            queue_len_max: WRITES_WAITING_MAX,
            on_idle: self.on_idle,
        };
        let ready = Ready {
            db,
            ingest,
            writers: Workers::start(writers, Scratch::default)?,
            long_writes: Arc::new(Semaphore::new(writer_count / 2)),
            long_write_places: Arc::new(Semaphore::new(WRITES_WAITING_MAX)),
            desk: self.open_desk()?,
        };
        // A second call is a bug; the first database stays.
        let _ = self.ready.set(ready);
        self.progress.end();
        Ok(())
    }

    /// Bytes of log that recovery has read, bytes that it has to read, and an estimate of the
    /// remaining milliseconds.
    pub(crate) fn recovery(&self) -> (u64, u64, Option<u64>) {
        let done = self.progress.bytes_done.load(Ordering::Relaxed);
        let total = self.progress.bytes_total.load(Ordering::Relaxed);
        (done.min(total), total, self.progress.left_ms())
    }

    /// All metrics, in the text format.
    pub(crate) fn metrics(&self) -> String {
        let mut text = MetricsText::default();
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        text.family(
            "firn_build_info",
            Kind::Gauge,
            "Constant 1; the label names the running version.",
        );
        text.sample("firn_build_info", &version, 1.0);
        let ready = self.ready();
        text.gauge("firn_ready", "1 if the database is open.", f64::from(ready.is_some()));
        let has_prometheus_names = self.config.prometheus_metric_names.is_on();
        if has_prometheus_names && self.collect.is_some() {
            let is_ready = f64::from(ready.is_some());
            text.gauge("prometheus_ready", "1 if the database is open.", is_ready);
            self.telemetry.write_requests("prometheus_http_requests_total", &mut text);
        }
        write_process(&mut text);
        self.connections.write_text(&mut text);
        self.telemetry.write_text(&mut text);
        self.gate.write_text(&mut text);
        self.query_log.write_text(&mut text);
        self.guard.write_text(&mut text);
        if let Some(collect) = &self.collect {
            collect.write_text(self.rules.notifier().discovery(), &mut text);
        }
        self.rules.write_text("firn", &mut text);
        if has_prometheus_names && self.rules.is_configured() {
            self.rules.write_text("prometheus", &mut text);
        }
        self.remote_write.write_text("firn_remote_write", &mut text);
        if has_prometheus_names && self.remote_write.is_configured() {
            self.remote_write.write_text("prometheus_remote_storage", &mut text);
        }
        if let Some(ready) = ready {
            let queries = [
                ("firn_queries_running", "Running queries.", &ready.desk.running),
                (
                    "firn_queries_waiting",
                    "Queries that wait for a query thread.",
                    &ready.desk.waiting,
                ),
            ];
            for (name, help, count) in queries {
                text.gauge(name, help, count.load(Ordering::Relaxed) as f64);
            }
            let usage = ready.ingest.cache().usage();
            text.gauge(
                "firn_sender_cache_series",
                "Series in the sender cache.",
                usage.series as f64,
            );
            text.gauge(
                "firn_sender_cache_bytes",
                "Memory of the sender cache.",
                usage.bytes as f64,
            );
            self.metadata.write_text(&mut text);
            let stats = ready.db.stats();
            crate::stats::write_text(&stats, &mut text);
            if has_prometheus_names && self.collect.is_some() {
                let desk = &ready.desk;
                let [running, waiting] =
                    [&desk.running, &desk.waiting].map(|count| count.load(Ordering::Relaxed));
                let queries = QueryLoad {
                    query_count: running + waiting,
                    thread_count: self.config.query_concurrency_max.0,
                    durations: &desk.durations,
                    lost_log_lines: self.query_log.lost_lines(),
                };
                let is_sending = self.remote_write.is_configured();
                prometheus_names::write_text(&queries, &stats, is_sending, &mut text);
            }
            if let Some(results) = ready.db.result_stats() {
                crate::stats::write_results(&results, &mut text);
            }
        }
        let text = text.finish();
        self.metrics_memory.note(text.len());
        text
    }
}

impl Ready {
    /// The threads of queries.
    pub(crate) fn desk(&self) -> &Arc<QueryDesk> {
        &self.desk
    }

    /// Runs `job` on a thread for writes.
    ///
    /// # Errors
    /// `Busy` when too many wait, `Closed` while stopping.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Ingest, &mut Scratch) -> T + Send + 'static,
    ) -> Result<T> {
        let ingest = Arc::clone(&self.ingest);
        self.writers
            .run(move |scratch| {
                let done = job(&ingest, scratch);
                scratch.trim();
                done
            })
            .await
    }

    /// As [`Ready::write`]. The turn of a large body ends when the memory of `job` was released,
    /// also if this future is dropped before.
    pub(crate) async fn write_in_turn<T: Send + 'static>(
        &self,
        turn: Option<Turn>,
        job: impl FnOnce(&Ingest, &mut Scratch) -> T + Send + 'static,
    ) -> Result<T> {
        // With the result, which leaves the thread after the memory of the job was released.
        let written = self.write(move |ingest, scratch| (job(ingest, scratch), turn));
        Ok(written.await?.0)
    }

    /// As [`QueryDesk::run`], with the database.
    pub(crate) async fn query<T: Send + 'static>(
        &self,
        user: &User,
        timeout: Duration,
        job: impl FnOnce(&Db, &QueryContext) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (db, context) = (Arc::clone(&self.db), self.query_context(user, CancelToken::new()));
        self.desk.run(user, timeout, context, move |context| job(&db, context)).await
    }

    /// As [`Ready::write`] for work of any length. At most half of the threads do such work, so
    /// that short writes need not wait for it. It does not begin if this future is dropped before.
    ///
    /// # Errors
    /// As [`Ready::write`].
    pub(crate) async fn write_long<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let Ok(place) = Arc::clone(&self.long_write_places).try_acquire_owned() else {
            let why = format!(
                "{WRITES_WAITING_MAX} transactions, deletes and snapshots wait; retry later"
            );
            return Err(Error::busy(1_000, why));
        };
        let permit = Arc::clone(&self.long_writes).acquire_owned().await;
        let permit = permit.map_err(|_| Error::closed("the server is stopping"))?;
        let work = move |_: &Ingest, _: &mut Scratch| {
            // Until the job ends, also if its request was dropped.
            let _held = (place, permit);
            job()
        };
        self.write(work).await
    }

    /// Runs a transaction of `user` as [`Ready::write_long`], with the time and memory of a query,
    /// and counted as one of the user's queries. A commit that has begun finishes, and the result
    /// is its outcome; everything before it ends when the time is over, and when this future is
    /// dropped.
    pub(crate) async fn transact<T: Send + 'static>(
        &self,
        user: &User,
        deadline: tokio::time::Instant,
        job: impl FnOnce(QueryContext) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let cancel = CancelToken::new();
        let _canceled_when_dropped = CancelOnDrop(cancel.clone());
        let Some(user_query) = user.begin_query() else {
            return Err(ApiError::too_many_queries().into_error());
        };
        let context = self.query_context(user, cancel.clone());
        let has_begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&has_begun);
        let mut work = std::pin::pin!(self.write_long(move || {
            let _user_query = user_query;
            // If the time was over first, the client has its answer.
            if begins.swap(true, Ordering::AcqRel) {
                return Err(Error::new(ErrorKind::Timeout, "the time is over"));
            }
            context.cancel.check()?;
            job(context)
        }));
        match tokio::time::timeout_at(deadline, work.as_mut()).await {
            Ok(done) => done?,
            Err(_) => {
                cancel.time_out();
                if !has_begun.swap(true, Ordering::AcqRel) {
                    cancel.check()?;
                }
                work.await?
            }
        }
    }

    /// The context of one query of `user`: its series, its budget, helper threads and statistics.
    pub(crate) fn query_context(&self, user: &User, cancel: CancelToken) -> QueryContext {
        let context = self.desk.query_context(user, cancel, self.db.budget());
        QueryContext { helpers: self.db.helpers().clone(), ..context }
    }

    /// Finishes the queued jobs and stops the threads.
    pub(crate) fn stop(&self) {
        self.writers.stop();
        self.desk.stop();
    }
}

impl QueryDesk {
    /// Runs `job` for `user` on a thread for queries as soon as one is free, for at most `timeout`
    /// in total.
    /// The job is cancelled when the time is over, and when this future is dropped.
    ///
    /// Texts of a client are parsed and compiled here too: that can take as long as a query.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        user: &User,
        timeout: Duration,
        context: QueryContext,
        job: impl FnOnce(&QueryContext) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let cancel = context.cancel.clone();
        let _canceled_when_dropped = CancelOnDrop(cancel.clone());
        let permits = Arc::clone(&self.permits);
        let Some(user_query) = user.begin_query() else { return Err(ApiError::too_many_queries()) };
        let started = Arc::new(AtomicBool::new(false));
        let has_started = Arc::clone(&started);
        let queued = Instant::now();
        let waiting = RaisedGauge::by_one(&self.waiting);
        let running = Arc::clone(&self.running);
        let work = async {
            let permit = permits.acquire_owned().await;
            let done = self.threads.run(move |()| {
                let (_permit, _user_query) = (permit, user_query);
                drop(waiting);
                let _running = RaisedGauge::by_one(&running);
                context.cancel.check()?;
                started.store(true, Ordering::Relaxed);
                context.stats.queue_ns.add(queued.elapsed().as_nanos() as u64);
                job(&context)
            });
            done.await?
        };
        let timed_out = |stage: &str| {
            let text = format!("query timed out in {stage}");
            Err(ApiError { kind: ApiErrorKind::Timeout, text })
        };
        // Timers tick in milliseconds.
        if timeout.as_millis() == 0 {
            return timed_out("query queue");
        }
        match tokio::time::timeout(timeout, work).await {
            Ok(done) => done,
            Err(_) => {
                cancel.time_out();
                match has_started.load(Ordering::Relaxed) {
                    true => timed_out("expression evaluation"),
                    false => timed_out("query queue"),
                }
            }
        }
    }

    /// A permit for one remote read, as soon as one is free.
    pub(crate) async fn read_permit(&self) -> Result<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.read_permits).acquire_owned().await;
        permit.map_err(|_| Error::closed("the server is stopping"))
    }

    /// Runs `job`, a part of a remote read that holds a permit, on a thread for remote reads.
    ///
    /// # Errors
    /// `Closed` while stopping.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        self.readers.run(move |()| job()).await
    }

    fn stop(&self) {
        self.threads.stop();
        self.readers.stop();
    }

    /// The context of one query of `user`, without helper threads.
    pub(crate) fn query_context(
        &self,
        user: &User,
        cancel: CancelToken,
        budget: &Budget,
    ) -> QueryContext {
        QueryContext {
            stats: Arc::new(QueryStats::with_clock(monotonic_ns)),
            scope: Arc::clone(user.scope()),
            ..QueryContext::new(
                cancel,
                budget.part_of_setting(self.query_bytes_max, "--query-memory"),
            )
        }
    }
}

/// A gauge that is one higher as long as this lives.
struct RaisedGauge(Arc<AtomicU64>);

impl RaisedGauge {
    fn by_one(number: &Arc<AtomicU64>) -> RaisedGauge {
        number.fetch_add(1, Ordering::Relaxed);
        RaisedGauge(Arc::clone(number))
    }
}

impl Drop for RaisedGauge {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Cancels a query when the future that waits for it is dropped.
#[derive(Debug)]
pub(crate) struct CancelOnDrop(pub(crate) CancelToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
