//! The runtime, the listener, the accept loop with its limit, signals, and the stop.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use firn_model::{Error, Result};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::Transport;
use super::table::{ConnectionHandle, ConnectionTable, YOUNG_FOR};
use super::tls::secured;
use crate::access::{Gate, POLL_INTERVAL};
use crate::throttle::Throttle;

// Connections that wait to be accepted. Without room the kernel drops further ones, and their
// clients try again after a second: many come at once after a restart, or from a flood. The system
// has a limit of its own, 4,096 on Linux.
const BACKLOG: u32 = 4_096;
// Connections that are still open this long after a stop are cut off.
const GRACE: Duration = Duration::from_secs(30);
// Without a free file descriptor others must be closed first.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);
// An evicted connection is closed by now.
const ACCEPT_RETRY_SOON: Duration = Duration::from_millis(5);
static ACCEPT_ERRORS: Throttle = Throttle::new();
// A thread for blocking calls ends after this time without work and releases its memory.
const BLOCKING_IDLE: Duration = Duration::from_secs(2);
// Enough for a device's queue. The allocator maps 32 MiB of addresses for each thread that
// allocates: with the runtime's 512 threads, clients that do not read would exhaust 1 GiB.
const BLOCKING_THREADS_MIN: usize = 16;

/// Becomes `true` when the service stops.
pub(crate) type Stopping = watch::Receiver<bool>;

/// A connection that a client has opened.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) transport: Transport,
    pub(crate) client: SocketAddr,
    /// The address of the listener that accepted it.
    pub(crate) listen: SocketAddr,
    pub(crate) handle: Arc<ConnectionHandle>,
}

/// Listeners whose connections wait to be accepted.
#[derive(Debug)]
pub(crate) struct BoundService {
    runtime: Runtime,
    listeners: Vec<TcpListener>,
    listens: Vec<SocketAddr>,
    gate: Arc<Gate>,
    stop: watch::Sender<bool>,
}

/// A running service.
#[derive(Debug)]
pub(crate) struct Service {
    runtime: Runtime,
    listens: Vec<SocketAddr>,
    stop: watch::Sender<bool>,
    accepting: Vec<JoinHandle<()>>,
}

impl BoundService {
    /// Starts the network threads, called `thread_name`, and listens on each of `listens`. A thread
    /// without work calls `on_idle`.
    ///
    /// # Errors
    /// `Unavailable` when an address is taken or threads cannot be started.
    pub(crate) fn bind(
        thread_name: &str,
        listens: &[SocketAddr],
        on_idle: fn(),
    ) -> Result<BoundService> {
        BoundService::bind_with(Builder::new_multi_thread(), thread_name, listens, on_idle)
    }

    /// The same with one thread.
    ///
    /// # Errors
    /// As [`BoundService::bind`].
    pub(crate) fn bind_small(
        thread_name: &str,
        listens: &[SocketAddr],
        on_idle: fn(),
    ) -> Result<BoundService> {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1);
        BoundService::bind_with(builder, thread_name, listens, on_idle)
    }

    fn bind_with(
        mut builder: Builder,
        thread_name: &str,
        listens: &[SocketAddr],
        on_idle: fn(),
    ) -> Result<BoundService> {
        check_threads(network_threads())?;
        let runtime = builder
            .thread_name(thread_name)
            .thread_keep_alive(BLOCKING_IDLE)
            .max_blocking_threads(network_threads().max(BLOCKING_THREADS_MIN))
            .on_thread_park(on_idle)
            .enable_all()
            .build()
            .map_err(|e| Error::unavailable("cannot start the network threads").because(e))?;
        let (mut listeners, mut bound) = (Vec::new(), Vec::new());
        for listen in listens {
            let listener = runtime.block_on(async { open_listener(*listen) });
            let (listener, address) = listener
                .and_then(|listener| listener.local_addr().map(|address| (listener, address)))
                .map_err(|e| {
                    Error::unavailable(cannot_listen(*listen, &bound, e.kind())).because(e)
                })?;
            listeners.push(listener);
            bound.push(address);
        }
        let (gate, stop) = (Arc::default(), watch::Sender::new(false));
        Ok(BoundService { runtime, listeners, listens: bound, gate, stop })
    }

    /// Connections are encrypted as `gate` demands.
    ///
    /// # Errors
    /// `Invalid` if `--require-auth` refuses one of the addresses.
    pub(crate) fn with_gate(self, gate: &Arc<Gate>) -> Result<BoundService> {
        self.listens.iter().try_for_each(|listen| gate.check_listener(*listen))?;
        Ok(BoundService { gate: Arc::clone(gate), ..self })
    }

    /// The addresses of the sockets, with the ports that the system chose.
    pub(crate) fn listens(&self) -> &[SocketAddr] {
        &self.listens
    }

    /// Calls `reload` after SIGHUP, and reloads the web configuration of `gate` when its files
    /// change. Call it before the start: a service that answers may receive SIGHUP.
    ///
    /// # Errors
    /// `Unavailable` when the signal cannot be received.
    pub(crate) fn keep_current(
        &self,
        gate: &Arc<Gate>,
        reload: impl Fn() -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        self.on_hangup(move || {
            tracing::info!("SIGHUP: reloading");
            // The gate has logged the error.
            let _ = reload();
        })?;
        let (gate, mut seen) = (Arc::clone(gate), Vec::new());
        self.poll(POLL_INTERVAL, move || gate.poll(&mut seen));
        Ok(())
    }

    /// Calls `poll` on a thread that may block, every `interval`, until the service stops.
    pub(crate) fn poll(&self, interval: Duration, poll: impl FnMut() + Send + 'static) {
        let (poll, mut stopping) = (Arc::new(Mutex::new(poll)), self.stop.subscribe());
        self.runtime.spawn(async move {
            loop {
                tokio::select! {
                    () = stopped(&mut stopping) => return,
                    () = tokio::time::sleep(interval) => {}
                }
                let poll = Arc::clone(&poll);
                if tokio::task::spawn_blocking(move || (*poll.lock())()).await.is_err() {
                    tracing::error!("a look for changed files panicked, which is a bug");
                }
            }
        });
    }

    /// Runs `reload` on a thread that may block, once for each SIGHUP, until the service stops.
    /// After this call SIGHUP does not end the process.
    ///
    /// # Errors
    /// `Unavailable` when the signal cannot be received.
    fn on_hangup(&self, reload: impl Fn() + Send + Sync + 'static) -> Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let _entered = self.runtime.enter();
        let mut hangups = signal(SignalKind::hangup())
            .map_err(|e| Error::unavailable("cannot wait for signals").because(e))?;
        let (reload, mut stopping) = (Arc::new(reload), self.stop.subscribe());
        self.runtime.spawn(async move {
            loop {
                tokio::select! {
                    () = stopped(&mut stopping) => return,
                    received = hangups.recv() => match received {
                        // One at a time; signals that arrive meanwhile are one.
                        Some(()) => {
                            let reload = Arc::clone(&reload);
                            if tokio::task::spawn_blocking(move || reload()).await.is_err() {
                                tracing::error!("a reload panicked, which is a bug");
                            }
                        }
                        None => return,
                    },
                }
            }
        });
        Ok(())
    }

    /// Accepts connections within the limits of `table`, and runs `serve` for each until it ends.
    /// `serve` must end soon after the stop.
    pub(crate) fn start<F>(
        self,
        table: Arc<ConnectionTable>,
        serve: impl Fn(Accepted, Stopping) -> F + Clone + Send + Sync + 'static,
    ) -> Service
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let BoundService { runtime, listeners, listens, gate, stop } = self;
        let stopping = stop.subscribe();
        let accepting = listeners.into_iter().zip(&listens).map(|(socket, &address)| {
            let listener = Listener { socket, address, gate: Arc::clone(&gate) };
            runtime.spawn(accept(listener, Arc::clone(&table), stopping.clone(), serve.clone()))
        });
        let accepting = accepting.collect();
        Service { runtime, listens, stop, accepting }
    }
}

impl Service {
    /// The addresses of the sockets.
    pub(crate) fn listens(&self) -> &[SocketAddr] {
        &self.listens
    }

    /// For tasks beside the connections.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// For tasks that end when the service stops.
    pub(crate) fn stopping(&self) -> Stopping {
        self.stop.subscribe()
    }

    /// Waits until the process receives SIGTERM or SIGINT.
    ///
    /// # Errors
    /// `Unavailable` when signals cannot be received.
    pub(crate) fn wait_for_signal(&self) -> Result<()> {
        let terminated = {
            let _entered = self.runtime.enter();
            terminated()?
        };
        self.runtime.block_on(terminated);
        Ok(())
    }

    /// Stops in order: no new connections, open ones finish their requests, then `close`, then the
    /// threads. Returns the result of `close`.
    pub(crate) fn stop<T>(self, close: impl FnOnce() -> T) -> T {
        // Without a receiver the accept loops have ended already.
        let _ = self.stop.send(true);
        for accepting in self.accepting {
            if self.runtime.block_on(accepting).is_err() {
                tracing::error!("the network task panicked, which is a bug");
            }
        }
        let closed = close();
        self.runtime.shutdown_background();
        closed
    }
}

/// From now on SIGTERM and SIGINT do not end the process; the future waits for one of them. Needs
/// the context of a runtime.
///
/// # Errors
/// `Unavailable` when they cannot be received.
pub(crate) fn terminated() -> Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let cannot = |e| Error::unavailable("cannot wait for signals").because(e);
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Waits until the service stops; one that was dropped has stopped.
pub(crate) async fn stopped(stopping: &mut Stopping) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// Threads of a runtime, and two for calls that block.
fn network_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).saturating_add(2)
}

/// Checks that `count` further threads can be started at once: the runtime panics where it cannot
/// start one.
fn check_threads(count: usize) -> Result<()> {
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let ended = Arc::new(Mutex::new(ended));
    let wait_for_end = |_| {
        let ended = Arc::clone(&ended);
        // It returns an error once the sender is dropped.
        std::thread::Builder::new().spawn(move || {
            let _ = ended.lock().recv();
        })
    };
    let threads: io::Result<Vec<_>> = (0..count).map(wait_for_end).collect();
    drop(end);
    for thread in threads.map_err(|e| {
        let what = "cannot start the network threads; raise the limits on processes (ulimit -u, \
                    TasksMax) and address space (ulimit -v)";
        Error::unavailable(what).because(e)
    })? {
        // It does nothing that could panic.
        let _ = thread.join();
    }
    Ok(())
}

/// A listener, which can take the address of connections that were closed a moment ago.
fn open_listener(listen: SocketAddr) -> io::Result<TcpListener> {
    let socket = if listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(listen)?;
    socket.listen(BACKLOG)
}

fn cannot_listen(listen: SocketAddr, bound: &[SocketAddr], why: io::ErrorKind) -> String {
    if why == io::ErrorKind::AddrInUse
        && let Some(other) = bound.iter().find(|other| other.port() == listen.port())
    {
        return format!(
            "cannot listen on {listen} beside {other}, which may include it; remove one of them \
             from the list"
        );
    }
    let way_out = match why {
        io::ErrorKind::AddrInUse => {
            "stop the program that uses this address, or choose another one with --listen"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need rights: choose a higher one with --listen, or grant the program \
             the capability CAP_NET_BIND_SERVICE"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address: choose one of its own with --listen, or \
             127.0.0.1 for clients on this machine only"
        }
        _ => "choose another address with --listen",
    };
    format!("cannot listen on {listen}; {way_out}")
}

/// One socket and its protection.
struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    gate: Arc<Gate>,
}

async fn accept<F>(
    Listener { socket, address: listen, gate }: Listener,
    table: Arc<ConnectionTable>,
    mut stopping: Stopping,
    serve: impl Fn(Accepted, Stopping) -> F + Clone + Send + Sync + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let accepting = async {
            let (stream, client) = socket.accept().await?;
            // A listener of both families reports IPv4 addresses as IPv6 ones.
            let client = SocketAddr::new(client.ip().to_canonical(), client.port());
            // At the limit of pending connections, further clients wait in the system's queue.
            Ok::<_, io::Error>((stream, client, table.enter(client).await))
        };
        let accepted = tokio::select! {
            () = stopped(&mut stopping) => break,
            accepted = accepting => accepted,
        };
        match accepted {
            Ok((stream, client, handle)) => {
                let (serve, gate) = (serve.clone(), Arc::clone(&gate));
                let mut stopping = stopping.clone();
                connections.spawn(async move {
                    let handle = Arc::new(handle);
                    // The handshake is a part of the connection, so that it delays no other one.
                    let serving = async {
                        // Before the handshake, whose rules are at least as new.
                        let rules = gate.client_rules();
                        let secured = tokio::select! {
                            secured = secured(stream, &gate) => secured,
                            // It has no request.
                            () = stopped(&mut stopping) => None,
                        };
                        let Some(transport) = secured else { return };
                        let is_tls = matches!(transport, Transport::Tls(_));
                        let handle = Arc::clone(&handle);
                        let accepted = Accepted { transport, client, listen, handle };
                        match is_tls {
                            true => serve_under_rules(accepted, rules, stopping, serve).await,
                            false => serve(accepted, stopping).await,
                        }
                    };
                    let growing = async {
                        tokio::time::sleep(YOUNG_FOR).await;
                        handle.set_grown();
                        std::future::pending().await
                    };
                    tokio::select! {
                        // In this order: bytes that arrived before the timer are read first.
                        biased;
                        () = serving => {}
                        () = growing => {}
                        () = handle.evicted() => {}
                    }
                });
            }
            Err(error) if is_of_client(&error) => {}
            // Mostly the limit on open files: a connection between two requests makes room.
            Err(error) => {
                let has_room = table.evict_one();
                if let Some(count) = ACCEPT_ERRORS.note(1, std::time::Instant::now()) {
                    let advice = advice_for(&error);
                    tracing::warn!(%error, "cannot accept {count} connections{advice}");
                }
                let wait = if has_room { ACCEPT_RETRY_SOON } else { ACCEPT_RETRY };
                tokio::time::sleep(wait).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop(socket);
    table.close();
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, finished).await.is_err() {
        tracing::warn!("cut off connections that were open {} s after the stop", GRACE.as_secs());
    }
}

/// Serves a connection until its end, the stop, or a change of the rules under which its client's
/// certificate was accepted. The running request is finished.
async fn serve_under_rules<F: Future<Output = ()>>(
    accepted: Accepted,
    mut rules: watch::Receiver<u64>,
    mut stopping: Stopping,
    serve: impl Fn(Accepted, Stopping) -> F,
) {
    let (end, ending) = watch::channel(false);
    let mut serving = std::pin::pin!(serve(accepted, ending));
    tokio::select! {
        () = serving.as_mut() => return,
        () = stopped(&mut stopping) => {}
        // The gate lives as long as its listeners.
        _ = rules.changed() => {}
    }
    let _ = end.send(true);
    serving.await;
}

/// Whether the client closed before it was accepted: the next one may be accepted.
fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, TimedOut};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | TimedOut)
}

fn advice_for(error: &io::Error) -> &'static str {
    use rustix::io::Errno;
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => ": raise the limit on open files (ulimit -n, LimitNOFILE)",
        Some(Errno::NFILE) => ": raise the machine's limit on open files (fs.file-max)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream as Client;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use firn_model::Budget;

    use super::*;
    use crate::access::GateOptions;
    use crate::metrics_text::MetricsText;
    use crate::net::ConnectionLimits;

    /// Echoes bytes until the client is done, or until the stop.
    async fn echo(accepted: Accepted, mut stopping: Stopping) {
        let mut stream = accepted.transport;
        accepted.handle.set_busy();
        accepted.handle.admit().await.unwrap();
        let mut buffer = [0; 16];
        loop {
            tokio::select! {
                read = stream.read(&mut buffer) => match read {
                    Ok(len @ 1..) => { let _ = stream.write_all(&buffer[..len]).await; }
                    _ => return,
                },
                () = stopped(&mut stopping) => return,
            }
        }
    }

    #[test]
    fn a_client_beyond_the_limit_waits_and_a_stop_closes_all() {
        let bound = BoundService::bind("test", &["127.0.0.1:0".parse().unwrap()], || ()).unwrap();
        let table = ConnectionLimits::new(1, None);
        let service = bound.start(ConnectionTable::new(table), echo);
        let exchange = |client: &mut Client| {
            let mut received = [0; 1];
            client.write_all(b"x").and_then(|()| client.read_exact(&mut received)).unwrap();
        };
        let mut first = Client::connect(service.listens()[0]).unwrap();
        exchange(&mut first);
        let mut second = Client::connect(service.listens()[0]).unwrap();
        second.write_all(b"y").unwrap();
        drop(first);
        let mut received = [0; 1];
        second.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"y");
        assert_eq!(service.stop(|| 7), 7);
        assert!(matches!(second.read(&mut received), Ok(0) | Err(_)));
    }

    /// Before, there was room for 128; each further one waited for a second or longer.
    #[test]
    fn a_burst_of_clients_waits_to_be_accepted() {
        let bound = BoundService::bind("test", &["127.0.0.1:0".parse().unwrap()], || ()).unwrap();
        let limit = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let count = limit.trim().parse::<usize>().unwrap().min(400);
        let connect =
            |_| Client::connect_timeout(&bound.listens[0], Duration::from_millis(500)).unwrap();
        assert_eq!((0..count).map(connect).collect::<Vec<_>>().len(), count);
    }

    /// Before, a stop waited ten seconds for a client that begins no handshake.
    #[test]
    fn a_stop_does_not_wait_for_a_handshake() {
        let folder = tempfile::tempdir().unwrap();
        let signed = rcgen::generate_simple_self_signed(["h".to_owned()]).unwrap();
        let files = [
            ("cert.pem", signed.cert.pem()),
            ("key.pem", signed.signing_key.serialize_pem()),
            ("web.yml", "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n".to_owned()),
        ];
        files
            .iter()
            .for_each(|(name, text)| std::fs::write(folder.path().join(name), text).unwrap());
        let file = Some(folder.path().join("web.yml"));
        let options = GateOptions { file, ..GateOptions::default() };
        let gate = Arc::new(Gate::open(options, Budget::unlimited(), || ()).unwrap());
        let bound = BoundService::bind("test", &["127.0.0.1:0".parse().unwrap()], || ()).unwrap();
        let bound = bound.with_gate(&gate).unwrap();
        let table = ConnectionTable::new(ConnectionLimits::new(1, None));
        let service = bound.start(Arc::clone(&table), echo);
        let mut client = Client::connect(service.listens()[0]).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
        let is_pending = || {
            let mut text = MetricsText::default();
            table.write_text(&mut text);
            text.finish().contains("{state=\"pending\"} 1")
        };
        while !is_pending() {
            std::thread::yield_now();
        }
        let stopping = std::thread::spawn(|| service.stop(|| ()));
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        stopping.join().unwrap();
        gate.stop();
    }

    /// Each knows the address that its client reached, and all share one table.
    #[test]
    fn several_listeners_are_one_service() {
        let any = "127.0.0.1:0".parse().unwrap();
        let bound = BoundService::bind("test", &[any, any], || ()).unwrap();
        let table = ConnectionTable::new(ConnectionLimits::new(1, None));
        let service = bound.start(table, async |mut accepted: Accepted, _| {
            accepted.handle.set_busy();
            accepted.handle.admit().await.unwrap();
            let address = accepted.listen.to_string();
            let _ = accepted.transport.write_all(address.as_bytes()).await;
        });
        let &[first, second] = service.listens() else { panic!("two listeners") };
        assert_ne!(first, second);
        for address in [first, second, first] {
            let mut received = String::new();
            Client::connect(address).unwrap().read_to_string(&mut received).unwrap();
            assert_eq!(received, address.to_string());
        }
        service.stop(|| ());
        for address in [first, second] {
            assert!(Client::connect(address).is_err(), "{address}");
        }
    }

    #[test]
    fn an_address_in_use_is_named_with_the_way_out() {
        let bound = BoundService::bind("test", &["127.0.0.1:0".parse().unwrap()], || ()).unwrap();
        let taken = bound.listens()[0];
        let error = BoundService::bind("test", &[taken], || ()).unwrap_err().to_string();
        assert!(
            error.contains(&taken.to_string()) && error.contains("stop the program"),
            "{error}"
        );
        drop(bound);
        let twice = [taken, (std::net::Ipv4Addr::UNSPECIFIED, taken.port()).into()];
        let error = BoundService::bind("test", &twice, || ()).unwrap_err().to_string();
        assert!(error.contains("remove one of them") && error.contains("0.0.0.0"), "{error}");
        let f = |listen: &str, kind: io::ErrorKind, what: &str| {
            let told = cannot_listen(listen.parse().unwrap(), &[], kind);
            assert!(told.contains(listen) && told.contains(what), "{told}");
        };
        f("0.0.0.0:80", io::ErrorKind::PermissionDenied, "CAP_NET_BIND_SERVICE");
        f("192.0.2.1:9420", io::ErrorKind::AddrNotAvailable, "no such address");
    }
}
