//! The destinations of the configuration: checked, started, replaced and stopped.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use firn_collect::config::{RemoteWrite, WriteMessage};
use firn_fetch::{Bodies, Client};
use firn_model::{Budget, Error, Labels, Result};
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use super::destination::{self, SenderContext, WriteDestination};
use super::metrics::{self, SenderTotals};
use super::share::MemoryShare;
use crate::app::App;
use crate::clock::clock_ms;
use crate::collect::{Apply, ConfigPart, LoadedFile, LocalFiles, check_remote_write};
use crate::metrics_text::MetricsText;
use crate::net::{Stopping, stopped};
use crate::throttle::Throttle;

/// The part of the server that sends samples to the destinations of the file.
pub(crate) struct RemoteWriter {
    /// The memory of the database.
    limit_bytes: u64,
    bodies: OnceLock<Bodies>,
    wanted: watch::Sender<Vec<RemoteWrite>>,
    /// Those that run, for the metrics.
    current: Mutex<Vec<Arc<WriteDestination>>>,
    is_running: Mutex<bool>,
    ended: Condvar,
    stop: watch::Sender<bool>,
}

impl fmt::Debug for RemoteWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteWriter").field("current", &self.current).finish_non_exhaustive()
    }
}

impl RemoteWriter {
    /// A part of a server whose database has `limit_bytes` of memory.
    pub(crate) fn new(limit_bytes: u64) -> RemoteWriter {
        RemoteWriter {
            limit_bytes,
            bodies: OnceLock::new(),
            wanted: watch::Sender::default(),
            current: Mutex::default(),
            is_running: Mutex::default(),
            ended: Condvar::new(),
            stop: watch::Sender::default(),
        }
    }
}

/// A destination with its tasks.
struct RunningSender {
    destination: Arc<WriteDestination>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

// All destinations notice a new entry at the same time, and reading one takes a multiple of it.
const READING_MAX: usize = 2;

// A stop waits this long for the tasks.
const STOP_MAX: Duration = Duration::from_secs(5);

impl ConfigPart for RemoteWriter {
    fn prepare<'p>(&'p self, file: &Arc<LoadedFile>, _: &LocalFiles) -> Result<Apply<'p>> {
        let sections: Vec<RemoteWrite> = file.config.remote_write.iter().cloned().collect();
        MemoryShare::check(self.limit_bytes, sections.len())?;
        let bodies = Bodies::new(&Budget::unlimited());
        for section in &sections {
            check_remote_write(section)?;
            Client::new(&section.http, &bodies)
                .map_err(|error| Error::invalid(format!("remote_write: {error}")))?;
        }
        Ok(Box::new(move || drop(self.wanted.send_replace(sections))))
    }
}

impl RemoteWriter {
    /// The metrics, under `prefix`.
    pub(crate) fn write_text(&self, prefix: &str, text: &mut MetricsText) {
        let current = self.current.lock().clone();
        let named: Vec<_> = current.iter().map(|one| one.named()).collect();
        metrics::write_text(prefix, &named, clock_ms(), text);
    }

    /// Whether there is a destination.
    pub(crate) fn is_configured(&self) -> bool {
        !self.current.lock().is_empty()
    }

    /// Ends all tasks, before the database is closed. Not to be called on a thread of the runtime.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
        let mut is_running = self.is_running.lock();
        if *is_running {
            // Tasks that do not end in time end with the runtime; their positions are stored.
            let _ = self.ended.wait_for(&mut is_running, STOP_MAX);
        }
    }

    /// The destinations of `sections`.
    fn destinations(
        &self,
        sections: &[RemoteWrite],
        external: &Labels,
        limit_bytes: u64,
    ) -> Vec<WriteDestination> {
        let share = MemoryShare::of_one(limit_bytes, sections.len());
        let mut seen: BTreeMap<String, u64> = BTreeMap::new();
        let mut all = Vec::new();
        let Some(bodies) = self.bodies.get() else { return all };
        for settings in sections {
            let url = settings.url.as_ref().map(ToString::to_string).unwrap_or_default();
            let key = if settings.name.is_empty() { url.clone() } else { settings.name.clone() };
            // Sections for one address have positions of their own.
            let count = seen.entry(key.clone()).or_default();
            *count += 1;
            let hash = hash(format!("{key} {count}").as_bytes());
            let name = match settings.name.as_str() {
                "" => format!("{:06x}", hash & 0xff_ffff),
                name => name.to_owned(),
            };
            match Client::new(&settings.http, bodies) {
                Ok(client) => all.push(WriteDestination {
                    settings: settings.clone(),
                    external: external.clone(),
                    url,
                    share,
                    name,
                    reader: format!("remote-write-{hash:016x}"),
                    client,
                    totals: SenderTotals::default(),
                    failures: Throttle::default(),
                }),
                Err(error) => tracing::error!(name, %error, "remote write: nothing is sent"),
            }
        }
        all
    }
}

/// Sends to the destinations of the configuration until the service stops.
pub(crate) async fn run(app: Arc<App>, mut stopping: Stopping) {
    let writer = Arc::clone(&app.remote_write);
    let Some(db) = app.ready().map(|ready| Arc::clone(&ready.db)) else { return };
    if app.config.read_only.is_on() {
        return;
    }
    *writer.is_running.lock() = true;
    // A second call is a bug; the first stays.
    let _ = writer.bodies.set(Bodies::new(db.budget()));
    let reading = Arc::new(Semaphore::new(READING_MAX));
    let shared = SenderContext { app: Arc::clone(&app), db, reading };
    let (mut wanted, mut stop) = (writer.wanted.subscribe(), writer.stop.subscribe());
    let mut running: Vec<RunningSender> = Vec::new();
    while !*stop.borrow() {
        let sections = wanted.borrow_and_update().clone();
        reconcile(&app, &shared, &sections, &mut running).await;
        tokio::select! {
            () = stopped(&mut stopping) => break,
            _ = stop.wait_for(|is_stopping| *is_stopping) => break,
            changed = wanted.changed() => if changed.is_err() { break },
        }
    }
    end(running).await;
    *writer.is_running.lock() = false;
    writer.ended.notify_all();
}

/// Makes the destinations of `sections` those that run. One without a change continues.
async fn reconcile(
    app: &Arc<App>,
    shared: &SenderContext,
    sections: &[RemoteWrite],
    running: &mut Vec<RunningSender>,
) {
    let writer = &app.remote_write;
    let mut next = Vec::new();
    let mut fresh = Vec::new();
    let limit_bytes = shared.db.budget().usage().limit_bytes;
    for destination in writer.destinations(sections, &app.external_labels(), limit_bytes) {
        let is_same = |one: &RunningSender| {
            let old = &one.destination;
            (&old.reader, &old.external, &old.settings, old.share)
                == (
                    &destination.reader,
                    &destination.external,
                    &destination.settings,
                    destination.share,
                )
        };
        match running.iter().position(is_same) {
            Some(idx) => next.push(running.swap_remove(idx)),
            None => fresh.push(Arc::new(destination)),
        }
    }
    // Before their successors: a position has one reader.
    end(std::mem::take(running)).await;
    let current = next.iter().map(|one| &one.destination).chain(&fresh);
    let names: Vec<String> = current.clone().map(|one| one.reader.clone()).collect();
    let current: Vec<Arc<WriteDestination>> = current.cloned().collect();
    let db = Arc::clone(&shared.db);
    let stored = tokio::task::spawn_blocking(move || {
        // New destinations begin here, whenever their tasks start.
        names.iter().try_for_each(|name| db.log_reader(name).map(drop))?;
        db.keep_log_readers(&names)
    });
    if let Ok(Err(error)) = stored.await {
        tracing::error!(%error, "positions of remote write are not stored yet");
    }
    *writer.current.lock() = current;
    next.extend(fresh.into_iter().map(|destination| start(destination, shared)));
    *running = next;
}

fn start(destination: Arc<WriteDestination>, shared: &SenderContext) -> RunningSender {
    let (stop, stopping) = watch::channel(false);
    let settings = &destination.settings;
    let mut tasks = vec![tokio::spawn(destination::run(
        Arc::clone(&destination),
        shared.clone(),
        stopping.clone(),
    ))];
    let has_metadata = settings.protobuf_message != WriteMessage::V2;
    if has_metadata && settings.metadata_config.send {
        let (to, shared) = (Arc::clone(&destination), shared.clone());
        tasks.push(tokio::spawn(destination::run_metadata(to, shared, stopping)));
    }
    RunningSender { destination, stop, tasks }
}

/// Ends tasks and waits for them.
async fn end(running: Vec<RunningSender>) {
    for one in &running {
        one.stop.send_replace(true);
    }
    for task in running.into_iter().flat_map(|one| one.tasks) {
        // A task that panicked has logged it.
        let _ = task.await;
    }
}

/// FNV-1a: the same in every version of the program.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
