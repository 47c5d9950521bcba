//! A running server: start, readiness, and the order in which it stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use firn_model::{Error, Result};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::app::App;
use crate::config::Config;
use crate::database;
use crate::http;
use crate::http::serve::stopped;
use crate::machine;
use crate::self_scrape;

/// A server and its database. Dropping it without [`Server::stop`] is like a crash: nothing that was
/// acknowledged is lost, and the next start replays the log.
#[derive(Debug)]
pub struct Server {
    app: Arc<App>,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    opened: Option<oneshot::Receiver<Result<()>>>,
    runtime: Runtime,
}

impl Server {
    /// Listens at once, so that people see how far the start is, and opens the database on a thread
    /// of its own.
    ///
    /// # Errors
    /// `Unavailable` when the address is taken.
    pub fn start(config: Config) -> Result<Server> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_name("firn-http")
            .on_thread_park(config.on_idle)
            .enable_all()
            .build()
            .map_err(|e| Error::unavailable("cannot start the network threads").because(e))?;
        let wanted = config.listen;
        let bound = runtime.block_on(TcpListener::bind(wanted));
        let (listener, listen) = bound
            .and_then(|listener| listener.local_addr().map(|listen| (listener, listen)))
            .map_err(|e| {
                let what = format!(
                    "cannot listen on {wanted}; stop who does, or choose another address with --listen"
                );
                Error::unavailable(what).because(e)
            })?;

        let app = Arc::new(App::new(config, listen));
        let (stop, stopping) = watch::channel(false);
        let router = http::router(Arc::clone(&app));
        let connections_max = app.config.connections_max;
        let serving =
            runtime.spawn(http::serve::serve(listener, router, connections_max, stopping));
        let opened = open(&app, &runtime, stop.subscribe())?;
        Ok(Server { app, stop, serving, opened: Some(opened), runtime })
    }

    /// Where it listens.
    pub fn listen(&self) -> SocketAddr {
        self.app.listen
    }

    /// Waits until the database is open, for `at_most`; whether it is.
    ///
    /// # Errors
    /// What opening said: `Busy` when another process has the folder, `Corrupt`, `Invalid` for a newer
    /// format, `Unavailable`.
    pub fn wait_until_ready(&mut self, at_most: Duration) -> Result<bool> {
        let Some(opened) = &mut self.opened else { return Ok(true) };
        let waited =
            self.runtime.block_on(async { tokio::time::timeout(at_most, finished(opened)).await });
        let Ok(opened) = waited else { return Ok(false) };
        self.opened = None;
        opened.map(|()| true)
    }

    /// Waits until the process is asked to stop by SIGTERM, SIGINT or `/-/quit`, or opening fails.
    ///
    /// # Errors
    /// What opening said, as [`Server::wait_until_ready`].
    pub fn wait_for_signal(&mut self) -> Result<()> {
        let mut opened = self.opened.take();
        self.runtime.block_on(async {
            let opening = async {
                if let Some(opened) = &mut opened {
                    finished(opened).await?;
                }
                std::future::pending().await
            };
            tokio::select! {
                failed = opening => failed,
                asked = terminated() => asked,
                () = self.app.quit.notified() => Ok(()),
            }
        })
    }

    /// Stops in order: no new requests, those under way are finished, then the threads, then the
    /// database is flushed and closed. Before the database is open there is nothing to finish.
    ///
    /// # Errors
    /// Those of the last flush; everything is closed all the same and the log has what it missed.
    pub fn stop(self) -> Result<()> {
        // Nobody listens any more only when serving failed already.
        let _ = self.stop.send(true);
        let served = self.runtime.block_on(self.serving);
        if served.is_err() {
            tracing::error!("the network task panicked, which is a bug");
        }
        self.app.stop_being_ready();
        let closed = match self.app.opened() {
            Some(ready) => {
                ready.stop();
                ready.db.close()
            }
            None => Ok(()),
        };
        self.runtime.shutdown_background();
        closed
    }
}

/// Waits for SIGTERM or SIGINT.
///
/// # Errors
/// `Unavailable` when they cannot be waited for.
pub(crate) async fn terminated() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let cannot = |e| Error::unavailable("cannot wait for signals").because(e);
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

/// Opens the database on a thread; requests come through as soon as it is open.
fn open(
    app: &Arc<App>,
    runtime: &Runtime,
    stop: watch::Receiver<bool>,
) -> Result<oneshot::Receiver<Result<()>>> {
    let (sender, receiver) = oneshot::channel();
    let (app, runtime) = (Arc::clone(app), runtime.handle().clone());
    std::thread::Builder::new()
        .name("firn-open".to_owned())
        .spawn(move || {
            let opened =
                database::open(&app.config, &app.progress).and_then(|db| app.become_ready(db));
            if opened.is_ok() {
                if let Some(ready) = app.ready() {
                    ready.db.budget().set_meter(machine::anonymous_bytes);
                }
                runtime.spawn(watch_memory(Arc::clone(&app), stop.clone()));
                runtime.spawn(self_scrape::run(app, stop));
            }
            // Nobody waits for it after an early stop.
            let _ = sender.send(opened);
        })
        .map_err(|e| Error::unavailable("cannot start a thread").because(e))?;
    Ok(receiver)
}

const MEMORY_INTERVAL: Duration = Duration::from_millis(100);

/// Has the budget compared with what the process really holds, until `stop` says true: also while nobody asks for memory.
async fn watch_memory(app: Arc<App>, mut stop: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(MEMORY_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stopped(&mut stop) => return,
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
