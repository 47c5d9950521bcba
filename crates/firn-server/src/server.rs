//! A running server: start, readiness, and the order in which it stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use firn_model::{Budget, Error, Result, Timestamp};
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

use crate::access::Gate;
use crate::app::App;
use crate::clock::clock_ms;
use crate::collect::{Collect, ConfigPart, scrape_loop};
use crate::config::ServeConfig;
use crate::database;
use crate::http;
use crate::http::{Face, HTTP};
use crate::machine;
use crate::metadata_file;
use crate::net::{
    self, BoundService, ConnectionLimits, ConnectionTable, Service, Stopping, stopped, terminated,
};
use crate::query_log::QueryLog;
use crate::remote_write::{self, RemoteWriter};
use crate::rules::RuleManager;
use crate::self_scrape;
use firn_env::given_file::check_authorities;

/// A server and its database. Dropping it without [`Server::stop`] is like a crash: no acknowledged
/// data is lost, and the next start replays the log.
#[derive(Debug)]
pub struct Server {
    app: Arc<App>,
    opened: Option<oneshot::Receiver<Result<()>>>,
    service: Service,
    /// The listener of `--admin-listen`.
    admin: Option<Service>,
}

/// The process that a server runs in.
#[derive(Clone, Copy, Debug)]
pub struct HostProcess {
    /// Returns the memory that the calling thread has freed to the system. A thread without work
    /// calls it, and a busy one while memory is short.
    pub release_memory: fn(),
    /// Whether the process runs this server and nothing else. Then all of its memory counts against
    /// `--memory`; in a process with other users of memory, only reservations count.
    pub is_dedicated: bool,
}

// Connections of the listener of `--admin-listen`: monitoring, and an administrator.
const ADMIN_CONNECTIONS_MAX: usize = 64;

impl Server {
    /// Listens at once, so that clients can follow the progress of the start, and opens the
    /// database on a thread of its own.
    ///
    /// # Errors
    /// `Unavailable` when the address is taken.
    pub fn start(config: ServeConfig, process: HostProcess) -> Result<Server> {
        check_authorities()?;
        let on_idle = process.release_memory;
        let rules = Arc::new(RuleManager::new(config.rule_options(on_idle)));
        let remote_write = Arc::new(RemoteWriter::new(config.memory_bytes()));
        let query_log = Arc::new(QueryLog::new(config.query_log.get().map(|path| path.0)));
        rules.log_queries(&query_log);
        let collect = match config.prometheus_config.get() {
            Some(path) => {
                let parts: Vec<Arc<dyn ConfigPart>> = vec![
                    Arc::<RuleManager>::clone(&rules),
                    Arc::<RemoteWriter>::clone(&remote_write),
                    Arc::<QueryLog>::clone(&query_log),
                ];
                Some(Collect::open(path.0, parts)?)
            }
            None => None,
        };
        // Until the database is open, nothing else uses much.
        let start_budget = Budget::new(config.memory_bytes());
        let inputs = collect.as_ref().map(|collect| collect.file.current().inputs());
        let inputs = inputs.transpose()?.unwrap_or_default();
        let mut options = config.gate_options();
        options.forbidden.inputs.extend(inputs);
        let gate = Arc::new(Gate::open(options, start_budget, on_idle)?);
        query_log.start(&gate, collect.as_ref())?;
        let bound = BoundService::bind("firn-http", config.listen.all(), on_idle)?;
        let bound = bound.with_gate(&gate)?;
        let admin_bound = match config.admin_listen.get() {
            Some(addresses) => {
                let bound = BoundService::bind_small("firn-admin", addresses.all(), on_idle)
                    .map_err(|e| e.context("--admin-listen"))?;
                Some(bound.with_gate(&gate)?)
            }
            None => None,
        };
        let app = Arc::new(App::new(
            config,
            on_idle,
            bound.listens(),
            (gate, query_log),
            (collect, rules, remote_write),
        ));
        let face = if admin_bound.is_some() { Face::Public } else { Face::Whole };
        let router = http::router(Arc::clone(&app), face);
        let reloaded = Arc::clone(&app);
        bound.keep_current(&app.gate, move || reloaded.reload())?;
        let interval = app.config.prometheus_config_reload.get();
        if let (Some(interval), Some(collect)) = (interval, &app.collect) {
            let (polled, mut loaded) =
                (Arc::clone(&app), collect.file.digest().unwrap_or_default());
            let mut seen = loaded.clone();
            let poll = move || polled.reload_if_changed(&mut loaded, &mut seen);
            bound.poll(interval.duration(), poll);
        }
        let service = net::serve(bound, Arc::clone(&app.connections), router, HTTP);
        let admin = admin_bound.map(|bound| {
            let table = ConnectionTable::new(ConnectionLimits::within_open_files(
                ADMIN_CONNECTIONS_MAX,
                None,
            ));
            net::serve(bound, table, http::router(Arc::clone(&app), Face::Admin), HTTP)
        });
        let opened = open(&app, &service, process.is_dedicated)?;
        Ok(Server { app, opened: Some(opened), service, admin })
    }

    /// The first address of the server, with the port that the system chose.
    pub fn listen(&self) -> SocketAddr {
        // A service has at least one.
        self.listens()[0]
    }

    /// The addresses of the server.
    pub fn listens(&self) -> &[SocketAddr] {
        self.service.listens()
    }

    /// Whether the addresses speak TLS.
    pub fn has_tls(&self) -> bool {
        self.app.gate.tls().is_some()
    }

    /// The memory budget of the database, once it is open.
    pub fn budget(&self) -> Option<Budget> {
        self.app.ready().map(|ready| ready.db.budget().clone())
    }

    /// Waits until the database is open, for `at_most`. Returns whether it is.
    ///
    /// # Errors
    /// Those of opening: `Busy` when another process has the folder, `Corrupt`, `Invalid` for a
    /// newer format, `Unavailable`.
    pub fn wait_until_ready(&mut self, at_most: Duration) -> Result<bool> {
        let Some(opened) = &mut self.opened else { return Ok(true) };
        let runtime = self.service.runtime();
        let waited =
            runtime.block_on(async { tokio::time::timeout(at_most, finished(opened)).await });
        let Ok(opened) = waited else { return Ok(false) };
        self.opened = None;
        opened.map(|()| true)
    }

    /// Waits until the process receives SIGTERM, SIGINT or a request of `/-/quit`, or until opening
    /// fails. Calls `greet` once the database is open, or after `start_max`: a start that fails
    /// mostly fails before.
    ///
    /// # Errors
    /// Those of opening, as [`Server::wait_until_ready`]; `Unavailable` when another program has
    /// removed or replaced the data folder.
    pub fn run(&mut self, start_max: Duration, greet: impl FnOnce(&Server)) -> Result<()> {
        // First: a client may have seen that the server is ready, and a stop is clean from then on.
        let terminated = {
            let _entered = self.service.runtime().enter();
            terminated()?
        };
        self.wait_until_ready(start_max)?;
        greet(self);
        let mut opened = self.opened.take();
        self.service.runtime().block_on(async {
            let opening = async {
                if let Some(opened) = &mut opened {
                    finished(opened).await?;
                }
                std::future::pending().await
            };
            tokio::select! {
                failed = opening => failed,
                () = terminated => Ok(()),
                () = self.app.quit.notified() => {
                    self.app.lost_folder.get().map_or(Ok(()), |what| Err(Error::unavailable(what)))
                }
            }
        })
    }

    /// Stops in order: no new requests, running ones finish, then the threads stop, then the
    /// database is flushed and closed.
    ///
    /// # Errors
    /// Those of the last flush. Everything is closed nevertheless, and the log contains the rows
    /// that were not flushed.
    pub fn stop(self) -> Result<()> {
        let app = self.app;
        let closed = self.service.stop(|| {
            app.stop_being_ready();
            app.gate.stop();
            app.rules.stop();
            match app.opened() {
                // A flush could write into a folder of another database.
                _ if app.lost_folder.get().is_some() => Ok(()),
                Some(ready) => {
                    if let Some(collect) = &app.collect {
                        collect.stop();
                    }
                    app.remote_write.stop();
                    ready.stop();
                    if !app.config.read_only.is_on() {
                        metadata_file::save_or_log(&app.metadata, &ready.db);
                    }
                    ready.db.close()
                }
                None => {
                    app.stop_queries();
                    Ok(())
                }
            }
        });
        // Last, so that it answers until the end.
        if let Some(admin) = self.admin {
            admin.stop(|| ());
        }
        closed
    }
}

/// Opens the database on a thread; requests are let through as soon as it is open.
fn open(
    app: &Arc<App>,
    service: &Service,
    is_dedicated: bool,
) -> Result<oneshot::Receiver<Result<()>>> {
    let (sender, receiver) = oneshot::channel();
    let (app, runtime) = (Arc::clone(app), service.runtime().handle().clone());
    let stopping = service.stopping();
    std::thread::Builder::new()
        .name("firn-open".to_owned())
        .spawn(move || {
            let opened = app
                .open_desk()
                .and_then(|_| database::open(&app.config, app.on_idle, &app.progress))
                .and_then(|db| {
                    let external_url = app.config.external_url(&app.listens);
                    app.gate.limit_memory(db.budget());
                    app.rules.open(&db, &external_url, runtime.clone())?;
                    metadata_file::load(&app.metadata, &db);
                    app.become_ready(db)
                });
            if opened.is_ok() {
                let (rules, stop) = (Arc::clone(&app.rules), stopping.clone());
                runtime.spawn(async move { rules.expire_queries(stop).await });
                runtime.spawn(watch_folder(Arc::clone(&app), stopping.clone()));
                if let Some(ready) = app.ready().filter(|_| is_dedicated) {
                    let (limit_bytes, release) = (app.config.memory_bytes(), app.on_idle);
                    ready.db.budget().set_meter(move || held_bytes(limit_bytes, release));
                    runtime.spawn(watch_memory(Arc::clone(&app), stopping.clone()));
                }
                runtime.spawn(watch_clock(stopping.clone()));
                runtime.spawn(metadata_file::keep(Arc::clone(&app), stopping.clone()));
                runtime.spawn(scrape_loop::run(Arc::clone(&app), stopping.clone()));
                runtime.spawn(remote_write::run(Arc::clone(&app), stopping.clone()));
                runtime.spawn(self_scrape::run(app, stopping));
            }
            // After an early stop there is no receiver.
            let _ = sender.send(opened);
        })
        .map_err(|e| Error::unavailable("cannot start a thread").because(e))?;
    Ok(receiver)
}

/// The anonymous memory of the process. Above half of the limit, `release` first returns the pages
/// that the calling thread has freed: the allocator keeps some MiB for each thread that is busy.
fn held_bytes(limit_bytes: u64, release: fn()) -> Option<u64> {
    let held = machine::anonymous_bytes()?;
    if held <= limit_bytes / 2 {
        return Some(held);
    }
    release();
    machine::anonymous_bytes()
}

const MEMORY_INTERVAL: Duration = Duration::from_millis(100);

/// Compares the budget with the memory that the process really holds, until the server stops. It
/// does so also while no memory is requested.
async fn watch_memory(app: Arc<App>, mut stopping: Stopping) {
    let mut ticks = tokio::time::interval(MEMORY_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stopped(&mut stopping) => return,
            _ = ticks.tick() => {
                if let Some(ready) = app.ready() {
                    ready.db.budget().measure();
                }
            }
        }
    }
}

const CLOCK_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time between two lines about the clock.
const CLOCK_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Logs steps of the system's clock, until the server stops. Samples without a time, scrapes and
/// rules follow the clock.
async fn watch_clock(mut stopping: Stopping) {
    let mut last = (Instant::now(), clock_ms());
    let mut logged: Option<Instant> = None;
    loop {
        tokio::select! {
            () = stopped(&mut stopping) => return,
            () = tokio::time::sleep(CLOCK_INTERVAL) => {}
        }
        let now = (Instant::now(), clock_ms());
        let may_log = logged.is_none_or(|logged| logged.elapsed() >= CLOCK_LOG_INTERVAL);
        if let Some(step) = clock_step(last, now).filter(|_| may_log) {
            tracing::warn!("{step}: samples without a time, scrapes and rules follow it");
            logged = Some(now.0);
        }
        last = now;
    }
}

/// Describes a step of the clock between two readings: back by a second or more, or forward by a
/// minute or more, which a machine that was suspended sees too.
fn clock_step(last: (Instant, Timestamp), now: (Instant, Timestamp)) -> Option<String> {
    let elapsed_ms = now.0.duration_since(last.0).as_millis() as i64;
    let step_ms = now.1.saturating_sub(last.1).saturating_sub(elapsed_ms);
    let direction = match step_ms {
        ..=-1_000 => "back",
        60_000.. => "forward",
        _ => return None,
    };
    let step_s = step_ms.unsigned_abs().div_ceil(1_000);
    Some(format!("the system's clock was set {direction} by {step_s} s"))
}

const FOLDER_INTERVAL: Duration = Duration::from_secs(1);

/// Ends the process once its folder was removed, moved or replaced. Files that are open stay in the
/// folder that was moved, and new ones would get into the other one.
async fn watch_folder(app: Arc<App>, mut stopping: Stopping) {
    loop {
        tokio::select! {
            () = stopped(&mut stopping) => return,
            () = tokio::time::sleep(FOLDER_INTERVAL) => {}
        }
        let Some(db) = app.ready().map(|ready| Arc::clone(&ready.db)) else { continue };
        let looked = tokio::task::spawn_blocking(move || db.is_folder_in_place()).await;
        if looked.unwrap_or(true) {
            continue;
        }
        let what = format!(
            "the data folder {} was removed or replaced by another program while the server ran: \
             put it back and start the server again; acknowledged data is in the folder that the \
             server had opened",
            app.config.data
        );
        app.stop_being_ready();
        // Only this task sets it.
        let _ = app.lost_folder.set(what);
        app.quit.notify_one();
        return;
    }
}

async fn finished(opened: &mut oneshot::Receiver<Result<()>>) -> Result<()> {
    opened.await.unwrap_or_else(|_| Err(Error::internal("opening the database panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_the_clock_are_described() {
        let begun = Instant::now();
        let later = begun + Duration::from_secs(1);
        let f = |now_ms: Timestamp, want: Option<&str>| {
            let found = clock_step((begun, 1_000_000), (later, now_ms));
            assert_eq!(found.as_deref(), want, "{now_ms}");
        };
        f(1_001_000, None);
        f(1_000_500, None);
        f(1_060_000, None);
        f(1_000_000, Some("the system's clock was set back by 1 s"));
        f(0, Some("the system's clock was set back by 1001 s"));
        f(1_061_000, Some("the system's clock was set forward by 60 s"));
        f(i64::MAX, Some("the system's clock was set forward by 9223372036853775 s"));
    }
}
