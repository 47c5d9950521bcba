//! `firn cache`: a cache of points by key and time range for any program, in the manner of memcached, over TCP.
//!
//! **The way of a request**: `protocol` reads its line; a value is read behind it; `points` makes points of it; the
//! cache (`firn_cache::SharedCache`) is asked on a thread that may block, and the answer is written in the order of
//! requests. Gets that a client sent one behind the other run side by side. The protocol byte by byte, with its limits:
//! docs/cache-protocol.md. Source: TSCache 3.2 (commands, completeness), 3.3 (partial hits).
//!
//! Reading order: `protocol`, `points`, `connection`.

mod connection;
mod points;
mod protocol;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use firn_cache::{Background, SharedCache, StoreOptions};
use firn_env::{Disk, FolderLock, LocalDisk};
use firn_model::{Budget, Error, Result};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use self::connection::Connection;
use crate::http::serve::accept;
use crate::telemetry::{Counter, Gauge, Kind, MetricsText, write_process};

/// Where the points lie below the cache's folder.
const FOLDER: &str = "keys";
/// Sealed slabs that may wait for the disk.
const WAITING_BYTES_MAX: u32 = 8 << 20;
/// A thread that read the cache's file and has nothing to do ends after this, and its memory goes back.
const BLOCKING_IDLE: Duration = Duration::from_secs(2);
/// Of all points in the file: another program's file is not taken for one of these.
const OWNER: u64 = u64::from_le_bytes(*b"firnkeys");

/// Checked settings of `firn cache`.
#[derive(Clone, Debug)]
pub struct CacheServerConfig {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Folder of the cache.
    pub data: PathBuf,
    /// Space on disk.
    pub flash_bytes_max: u64,
    /// Memory of the cache: its index, and what waits for the disk.
    pub memory_bytes_max: u64,
    /// Open connections; further ones wait.
    pub connections_max: usize,
    /// Bytes of one value, set or got.
    pub value_bytes_max: usize,
    /// Parts with fewer bytes are not given, unless a get says otherwise.
    pub partial_bytes_min: u64,
    /// What clients must show first.
    pub token: Option<String>,
    /// A connection that says nothing for so long is closed.
    pub idle: Duration,
    /// What a network thread does that has nothing to do: the program may have its allocator give back what is free.
    pub on_idle: fn(),
}

/// A running cache server.
#[derive(Debug)]
pub struct CacheServer {
    listen: SocketAddr,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    shared: Arc<Shared>,
    runtime: Runtime,
}

#[derive(Debug)]
struct Shared {
    config: CacheServerConfig,
    cache: Arc<SharedCache>,
    /// What a get may read: the longest value, and a slab more, so that a point is got whatever lies beside it.
    read_bytes_max: u64,
    /// KiB that values on their way may take.
    room: Arc<Semaphore>,
    room_kib: u32,
    numbers: Numbers,
    _writer: Background,
    _lock: Box<dyn FolderLock>,
}

#[derive(Debug, Default)]
struct Numbers {
    connections: Gauge,
    gets: Counter,
    sets: Counter,
    deletes: Counter,
    client_errors: Counter,
    server_errors: Counter,
}

impl CacheServer {
    /// Opens the cache and listens.
    ///
    /// # Errors
    /// `Unavailable` when the address is taken or the disk fails, `Busy` when another process has the folder.
    pub fn start(config: CacheServerConfig) -> Result<CacheServer> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_name("firn-cache-net")
            .thread_keep_alive(BLOCKING_IDLE)
            .on_thread_park(config.on_idle)
            .enable_all()
            .build()
            .map_err(|e| Error::unavailable("cannot start the network threads").because(e))?;
        let folder_error =
            |e: Error| e.context(format!("cannot open the cache in {}", config.data.display()));
        let disk = Arc::new(LocalDisk::open(config.data.clone())?);
        let lock = disk.lock().map_err(folder_error)?;
        let budget = Budget::new(config.memory_bytes_max);
        let slab_bytes = slab_bytes(config.flash_bytes_max);
        let options = StoreOptions {
            slab_bytes,
            flash_bytes_max: config.flash_bytes_max,
            waiting_slabs_max: (WAITING_BYTES_MAX / slab_bytes) as usize,
            owner: OWNER,
            ..StoreOptions::default()
        };
        let cache = SharedCache::open(disk, FOLDER, &budget, options, machine_run())
            .map_err(folder_error)?;
        let cache = Arc::new(cache);
        let written = Arc::clone(&cache);
        let writer = Background::start("firn-cache", cache.wake(), move || written.work())?;
        let (listener, listen) = runtime
            .block_on(TcpListener::bind(config.listen))
            .and_then(|listener| listener.local_addr().map(|listen| (listener, listen)))
            .map_err(|e| {
                let what = format!("cannot listen on {}", config.listen);
                Error::unavailable(format!("{what}; choose another address with --listen"))
                    .because(e)
            })?;
        let read_bytes_max = config.value_bytes_max as u64 + u64::from(slab_bytes);
        // Four of the largest must fit, or one client waits for another all the time.
        let room_bytes =
            (config.memory_bytes_max / 4).max(4 * read_bytes_max * connection::VALUE_WEIGHT);
        let room_kib = u32::try_from(room_bytes >> 10).unwrap_or(u32::MAX >> 4).min(u32::MAX >> 4);
        let shared = Arc::new(Shared {
            config,
            cache,
            read_bytes_max,
            room: Arc::new(Semaphore::new(room_kib as usize)),
            room_kib,
            numbers: Numbers::default(),
            _writer: writer,
            _lock: lock,
        });
        let (stop, stopping) = watch::channel(false);
        let serving = runtime.spawn(serve(listener, Arc::clone(&shared), stopping));
        Ok(CacheServer { listen, stop, serving, shared, runtime })
    }

    /// Where it listens.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// Waits until the process is asked to stop by SIGTERM or SIGINT.
    ///
    /// # Errors
    /// `Unavailable` when signals cannot be waited for.
    pub fn wait_for_signal(&self) -> Result<()> {
        self.runtime.block_on(crate::server::terminated())
    }

    /// Finishes the requests under way and writes what waits in memory.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails: the next start has less in its cache then.
    pub fn stop(self) -> Result<()> {
        // Nobody listens any more only when serving failed already.
        let _ = self.stop.send(true);
        if self.runtime.block_on(self.serving).is_err() {
            tracing::error!("the network task panicked, which is a bug");
        }
        let closed = self.shared.cache.close();
        self.runtime.shutdown_background();
        closed
    }
}

/// Talks to clients until `stop` says true, then lets them finish their requests.
async fn serve(listener: TcpListener, shared: Arc<Shared>, stop: watch::Receiver<bool>) {
    let talk = |stream| {
        let (shared, stop) = (Arc::clone(&shared), stop.clone());
        async move {
            shared.numbers.connections.rise();
            Connection::new(stream, &shared).run(stop).await;
            shared.numbers.connections.fall();
        }
    };
    accept(listener, shared.config.connections_max, stop.clone(), talk).await;
}

impl Shared {
    /// Its numbers in Prometheus' text format.
    fn metrics(&self) -> String {
        let mut out = MetricsText::default();
        write_process(&mut out);
        let numbers = &self.numbers;
        out.gauge("firn_cache_connections", "Open connections.", numbers.connections.get() as f64);
        let name = "firn_cache_requests_total";
        out.family(name, Kind::Counter, "Requests by command.");
        for (command, counter) in
            [("get", &numbers.gets), ("set", &numbers.sets), ("delete", &numbers.deletes)]
        {
            out.sample(name, &[("command", command)], counter.get() as f64);
        }
        let name = "firn_cache_errors_total";
        out.family(name, Kind::Counter, "Failed requests by responsible side: client or server.");
        for (side, counter) in
            [("client", &numbers.client_errors), ("server", &numbers.server_errors)]
        {
            out.sample(name, &[("side", side)], counter.get() as f64);
        }
        crate::stats::write_store(&self.cache.stats(), &mut out);
        out.finish()
    }
}

/// A number that this run of the machine has and no other: what was written and not synced is there as long as it
/// lasts. 0 where the system has none.
fn machine_run() -> u64 {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if id.trim().is_empty() { 0 } else { xxhash_rust::xxh3::xxh3_64(id.trim().as_bytes()) }
}

/// Slabs of a cache of so many bytes: a hundred at least, so that some may go and others stay, but with room for large points.
fn slab_bytes(flash_bytes: u64) -> u32 {
    let part = (flash_bytes / 128).clamp(64 << 10, 1 << 20) as u32;
    1 << part.ilog2()
}

#[cfg(test)]
mod tests;
