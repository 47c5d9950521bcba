//! A running server: start, readiness, and the order in which it stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use firn_model::{Error, Result};
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

use crate::access::Gate;
use crate::access::line_log::LineLog;
use crate::app::App;
use crate::config::ServeConfig;
use crate::database;
use crate::http;
use crate::http::{Face, HTTP};
use crate::machine;
use crate::metadata_file;
use crate::net::{
    self, BoundService, ConnectionLimits, ConnectionTable, Service, Stopping, stopped, terminated,
};
use crate::self_scrape;

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

// Of the listener of `--admin-listen`: monitoring, and an administrator.
const ADMIN_CONNECTIONS_MAX: usize = 64;

impl Server {
    /// Listens at once, so that clients can follow the progress of the start, and opens the
    /// database on a thread of its own. A thread without work calls `on_idle`: the program may have
    /// its allocator release memory there.
    ///
    /// # Errors
    /// `Unavailable` when the address is taken.
    pub fn start(config: ServeConfig, on_idle: fn()) -> Result<Server> {
        let gate = Arc::new(Gate::open(config.gate_options(), on_idle)?);
        let query_log = config.query_log.get().map(|path| LineLog::open(&path.0, "--query-log"));
        let bound = BoundService::bind("firn-http", config.listen.0, on_idle)?.with_gate(&gate);
        gate.check_listener(bound.listen())?;
        let admin_bound = match config.admin_listen.get() {
            Some(address) => {
                let bound = BoundService::bind_small("firn-admin", address.0, on_idle)
                    .map_err(|e| e.context("--admin-listen"))?
                    .with_gate(&gate);
                gate.check_listener(bound.listen())?;
                Some(bound)
            }
            None => None,
        };
        let logs = (gate, query_log.transpose()?);
        let app = Arc::new(App::new(config, on_idle, bound.listen(), logs));
        let face = if admin_bound.is_some() { Face::Public } else { Face::Whole };
        let router = http::router(Arc::clone(&app), face);
        let service = net::serve(bound, Arc::clone(&app.connections), router, HTTP);
        let admin = admin_bound.map(|bound| {
            let table = ConnectionTable::new(ConnectionLimits::new(ADMIN_CONNECTIONS_MAX, None));
            net::serve(bound, table, http::router(Arc::clone(&app), Face::Admin), HTTP)
        });
        let reloaded = Arc::clone(&app);
        service.keep_current(&app.gate, move || reloaded.reload())?;
        let opened = open(&app, &service)?;
        Ok(Server { app, opened: Some(opened), service, admin })
    }

    /// The address of the socket, with the port that the system chose.
    pub fn listen(&self) -> SocketAddr {
        self.service.listen()
    }

    /// The address of the listener of `--admin-listen`.
    pub fn admin_listen(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(Service::listen)
    }

    /// Whether the address speaks TLS.
    pub fn has_tls(&self) -> bool {
        self.app.gate.tls().is_some()
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
    /// fails.
    ///
    /// # Errors
    /// Those of opening, as [`Server::wait_until_ready`].
    pub fn wait_for_signal(&mut self) -> Result<()> {
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
                signalled = terminated() => signalled,
                () = self.app.quit.notified() => Ok(()),
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
            match app.opened() {
                Some(ready) => {
                    ready.stop();
                    if !app.config.read_only.is_on() {
                        metadata_file::save_or_log(&app.metadata, &ready.db);
                    }
                    ready.db.close()
                }
                None => Ok(()),
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
fn open(app: &Arc<App>, service: &Service) -> Result<oneshot::Receiver<Result<()>>> {
    let (sender, receiver) = oneshot::channel();
    let (app, runtime) = (Arc::clone(app), service.runtime().handle().clone());
    let stopping = service.stopping();
    std::thread::Builder::new()
        .name("firn-open".to_owned())
        .spawn(move || {
            let opened = database::open(&app.config, app.on_idle, &app.progress)
                .and_then(|db| app.become_ready(db));
            if opened.is_ok() {
                if let Some(ready) = app.ready() {
                    ready.db.budget().set_meter(machine::anonymous_bytes);
                }
                runtime.spawn(watch_memory(Arc::clone(&app), stopping.clone()));
                runtime.spawn(metadata_file::keep(Arc::clone(&app), stopping.clone()));
                runtime.spawn(self_scrape::run(app, stopping));
            }
            // After an early stop there is no receiver.
            let _ = sender.send(opened);
        })
        .map_err(|e| Error::unavailable("cannot start a thread").because(e))?;
    Ok(receiver)
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

async fn finished(opened: &mut oneshot::Receiver<Result<()>>) -> Result<()> {
    opened.await.unwrap_or_else(|_| Err(Error::internal("opening the database panicked")))
}
