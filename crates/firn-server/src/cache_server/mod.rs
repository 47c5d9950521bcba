//! `firn cache`: a cache of points by key and time range for any program, similar to memcached,
//! over TCP.
//!
//! **Request path**: `protocol` parses the line, the value is read after it, `points` decodes its
//! points, and a blocking thread looks them up in the cache (`firn_cache::SharedCache`). Responses
//! are in the order of requests; pipelined gets run in parallel. The protocol byte by byte, with
//! its limits: docs/cache-protocol.md. Source: TSCache (PVLDB 2021), sections 3.2 (commands,
//! completeness) and 3.3 (partial hits).
//!
//! Reading order: `protocol`, `points`, `connection`.

mod connection;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod points;
mod protocol;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use firn_cache::{Background, SharedCache, StoreOptions};
use firn_env::{Disk, FolderLock, LocalDisk};
use firn_model::{Budget, Error, Result};
use tokio::sync::Semaphore;

use self::connection::Connection;
use crate::access::{Gate, GateOptions};
use crate::admin_listener::AdminListener;
use crate::config::{CacheConfig, Or};
use crate::http::guard::Guard;
use crate::machine::warn_if_readable;
use crate::metrics_text::{Kind, MetricsText};
use crate::net::{Accepted, BoundService, ConnectionLimits, ConnectionTable, Service, Stopping};
use crate::telemetry::{Counter, Gauge, write_process};

/// The folder of the points below the cache's folder.
const FOLDER: &str = "keys";
/// Sealed slabs that may wait for the disk.
const WAITING_BYTES_MAX: u32 = 8 << 20;
/// TSCache's break-even for its own database. The database behind a client is not known here.
const PARTIAL_BYTES_MIN: u64 = 512 << 10;
/// Owner of all points in the file: rejects the file of another program.
const OWNER: u64 = u64::from_le_bytes(*b"firnkeys");

/// A running cache server.
#[derive(Debug)]
pub struct CacheServer {
    service: Service,
    /// The listener of `--admin-listen`.
    admin: Option<Service>,
    shared: Arc<ServerState>,
}

#[derive(Debug)]
struct ServerState {
    config: CacheConfig,
    /// Users and TLS, and the token that clients must send first, if there is one.
    gate: Arc<Gate>,
    /// Refuses requests for metrics that a web page may have sent.
    guard: Guard,
    /// Smaller parts are not returned, unless a get names another size.
    partial_bytes_min: u64,
    cache: Arc<SharedCache>,
    /// Bytes that a get may read: the longest value plus one slab, so that every point is readable
    /// regardless of its neighbours.
    read_bytes_max: u64,
    /// The longest value of one set or get.
    value_bytes_max: usize,
    /// KiB of memory for values that arrive. Their clients may take their time; `room` does not
    /// wait for them.
    arriving: Arc<Semaphore>,
    /// KiB of memory for decoded values and responses.
    room: Arc<Semaphore>,
    room_kib: u32,
    /// The same for short ones, which do not wait behind long ones.
    short_room: Arc<Semaphore>,
    /// The memory of both. A get takes room by an estimate, and here by the size of its points.
    flights: Budget,
    /// Requests that wait for memory of `flights`.
    flight_waiters: AtomicUsize,
    numbers: CommandCounters,
    _writer: Background,
    _lock: Box<dyn FolderLock>,
}

#[derive(Debug, Default)]
struct CommandCounters {
    connections: Gauge,
    gets: Counter,
    sets: Counter,
    deletes: Counter,
    client_errors: Counter,
    server_errors: Counter,
}

impl CacheServer {
    /// Opens the cache and listens. A thread without work calls `on_idle`: the program may have its
    /// allocator release memory there.
    ///
    /// # Errors
    /// `Invalid` for a file without a token, `Unavailable` when the address is taken or the disk
    /// fails, `Busy` when another process has the folder.
    pub fn start(config: CacheConfig, on_idle: fn()) -> Result<CacheServer> {
        let token = config.read_token()?;
        let options = GateOptions { is_http: false, ..config.gate_options(token) };
        let budget = Budget::new(config.memory_bytes());
        let gate = Arc::new(Gate::open(options, budget.clone(), on_idle)?);
        let folder_error =
            |e: Error| e.context(format!("cannot open the cache in {}", config.data));
        config.check_folder()?;
        warn_if_readable(&config.data, FOLDER);
        let disk = Arc::new(LocalDisk::open(config.data.to_path_buf())?);
        let lock = disk.lock().map_err(folder_error)?;
        let slab_bytes = slab_bytes(config.size.0);
        let value_bytes_max = config.value_bytes_max();
        let read_bytes_max = value_bytes_max + u64::from(slab_bytes);
        // The memory is divided between values in flight, values that arrive, and the store. The
        // largest value must fit.
        let memory_bytes = config.memory_bytes();
        let room_bytes = (memory_bytes / 4).max(read_bytes_max * connection::VALUE_WEIGHT);
        let short_bytes = u64::from(connection::SHORT_ROOM_KIB) << 10;
        let flight_bytes = room_bytes + room_bytes / connection::VALUE_WEIGHT + short_bytes;
        let budget = Budget::new(memory_bytes.saturating_sub(flight_bytes).max(memory_bytes / 4));
        let options = StoreOptions {
            slab_bytes,
            flash_bytes_max: config.size.0,
            waiting_slabs_max: (WAITING_BYTES_MAX / slab_bytes) as usize,
            owner: OWNER,
            ..StoreOptions::default()
        };
        let cache = SharedCache::open(disk, FOLDER, &budget, options, machine_run())
            .map_err(folder_error)?;
        let cache = Arc::new(cache);
        let written = Arc::clone(&cache);
        let writer = Background::start("firn-cache", cache.wake(), move || written.work())?;
        let bound = BoundService::bind("firn-cache-net", config.listen.all(), on_idle)?;
        let bound = bound.with_gate(&gate)?;
        let room_kib = u32::try_from(room_bytes >> 10).unwrap_or(u32::MAX >> 4).min(u32::MAX >> 4);
        let partial_bytes_min = config.partial_bytes_min.get();
        let table = ConnectionTable::new(ConnectionLimits::within_open_files(
            config.connections_max.to_usize(),
            config.connections_per_client_max.get().map(|max| max.to_usize()),
        ));
        let guard = Guard::new(&config.allowed_hosts, &Or::default());
        let admin = AdminListener::bind(&config, &gate, on_idle)?;
        let shared = Arc::new(ServerState {
            config,
            gate,
            guard,
            partial_bytes_min: partial_bytes_min.map_or(PARTIAL_BYTES_MIN, |size| size.0),
            cache,
            read_bytes_max,
            value_bytes_max: value_bytes_max as usize,
            arriving: Arc::new(Semaphore::new(
                room_kib as usize / connection::VALUE_WEIGHT as usize,
            )),
            room: Arc::new(Semaphore::new(room_kib as usize)),
            short_room: Arc::new(Semaphore::new(connection::SHORT_ROOM_KIB as usize)),
            flights: Budget::new(room_bytes.saturating_add(short_bytes)),
            flight_waiters: AtomicUsize::new(0),
            room_kib,
            numbers: CommandCounters::default(),
            _writer: writer,
            _lock: lock,
        });
        let served = Arc::clone(&shared);
        let reloaded = Arc::clone(&shared.gate);
        bound.keep_current(&shared.gate, move || reloaded.reload())?;
        let service = bound
            .start(table, move |accepted, stopping| serve(accepted, Arc::clone(&served), stopping));
        let metered = Arc::clone(&shared);
        let admin = admin.map(|admin| admin.start(move || metered.metrics()));
        Ok(CacheServer { service, admin, shared })
    }

    /// The addresses of the sockets, with the ports that the system chose.
    pub fn listens(&self) -> &[SocketAddr] {
        self.service.listens()
    }

    /// Whether the addresses speak TLS.
    pub fn has_tls(&self) -> bool {
        self.shared.gate.tls().is_some()
    }

    /// Waits until the process receives SIGTERM or SIGINT.
    ///
    /// # Errors
    /// `Unavailable` when signals cannot be received.
    pub fn wait_for_signal(&self) -> Result<()> {
        self.service.wait_for_signal()
    }

    /// Finishes the running requests and writes the points that are in memory.
    ///
    /// # Errors
    /// `Unavailable` when the disk fails: the cache contains less after the next start.
    pub fn stop(self) -> Result<()> {
        let shared = self.shared;
        let closed = self.service.stop(|| {
            shared.gate.stop();
            shared.cache.close()
        });
        // Last, so that it answers until the end.
        if let Some(admin) = self.admin {
            admin.stop(|| ());
        }
        closed
    }
}

/// Serves one client until it disconnects or the server stops.
async fn serve(accepted: Accepted, shared: Arc<ServerState>, stopping: Stopping) {
    shared.numbers.connections.rise();
    Connection::new(accepted, &shared, stopping).run().await;
    shared.numbers.connections.fall();
}

impl ServerState {
    /// Its numbers in Prometheus' text format.
    fn metrics(&self) -> String {
        let mut out = MetricsText::default();
        write_process(&mut out);
        self.gate.write_text(&mut out);
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
        self.guard.write_text(&mut out);
        crate::stats::write_store(&self.cache.stats(), &mut out);
        out.finish()
    }
}

/// A number unique to this boot of the machine: unsynced writes survive until the next boot. 0 if
/// the system has none.
fn machine_run() -> u64 {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if id.trim().is_empty() { 0 } else { xxhash_rust::xxh3::xxh3_64(id.trim().as_bytes()) }
}

/// Slab size for a cache of `flash_bytes`: at least a hundred slabs, so that eviction is gradual,
/// but large enough for large points.
fn slab_bytes(flash_bytes: u64) -> u32 {
    let part = (flash_bytes / 128).clamp(64 << 10, 1 << 20) as u32;
    1 << part.ilog2()
}

#[cfg(test)]
mod tests;
