//! The runtime, the listener, the accept loop with its limit, signals, and the stop.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use firn_model::{Error, Result};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::Transport;
use super::table::{ConnectionHandle, ConnectionTable};
use super::tls::secured;
use crate::access::{Gate, POLL_INTERVAL};

// Connections that are still open this long after a stop are cut off.
const GRACE: Duration = Duration::from_secs(30);
// Without a free file descriptor others must be closed first.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);
// A thread for blocking calls ends after this time without work and releases its memory.
const BLOCKING_IDLE: Duration = Duration::from_secs(2);

/// Becomes `true` when the service stops.
pub(crate) type Stopping = watch::Receiver<bool>;

/// A connection that a client has opened.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) transport: Transport,
    pub(crate) client: SocketAddr,
    pub(crate) handle: Arc<ConnectionHandle>,
}

/// A listener whose connections wait to be accepted.
#[derive(Debug)]
pub(crate) struct BoundService {
    runtime: Runtime,
    listener: TcpListener,
    listen: SocketAddr,
    gate: Arc<Gate>,
}

/// A running service.
#[derive(Debug)]
pub(crate) struct Service {
    runtime: Runtime,
    listen: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl BoundService {
    /// Starts the network threads, called `thread_name`, and listens on `listen`. A thread without
    /// work calls `on_idle`.
    ///
    /// # Errors
    /// `Unavailable` when the address is taken or threads cannot be started.
    pub(crate) fn bind(
        thread_name: &str,
        listen: SocketAddr,
        on_idle: fn(),
    ) -> Result<BoundService> {
        BoundService::bind_with(Builder::new_multi_thread(), thread_name, listen, on_idle)
    }

    /// The same with one thread.
    ///
    /// # Errors
    /// As [`BoundService::bind`].
    pub(crate) fn bind_small(
        thread_name: &str,
        listen: SocketAddr,
        on_idle: fn(),
    ) -> Result<BoundService> {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1);
        BoundService::bind_with(builder, thread_name, listen, on_idle)
    }

    fn bind_with(
        mut builder: Builder,
        thread_name: &str,
        listen: SocketAddr,
        on_idle: fn(),
    ) -> Result<BoundService> {
        let runtime = builder
            .thread_name(thread_name)
            .thread_keep_alive(BLOCKING_IDLE)
            .on_thread_park(on_idle)
            .enable_all()
            .build()
            .map_err(|e| Error::unavailable("cannot start the network threads").because(e))?;
        let bound = runtime.block_on(TcpListener::bind(listen));
        let (listener, listen) = bound
            .and_then(|listener| listener.local_addr().map(|listen| (listener, listen)))
            .map_err(|e| Error::unavailable(cannot_listen(listen, e.kind())).because(e))?;
        Ok(BoundService { runtime, listener, listen, gate: Arc::default() })
    }

    /// Connections are encrypted as `gate` demands.
    pub(crate) fn with_gate(self, gate: &Arc<Gate>) -> BoundService {
        BoundService { gate: Arc::clone(gate), ..self }
    }

    /// The address of the socket, with the port that the system chose.
    pub(crate) fn listen(&self) -> SocketAddr {
        self.listen
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
        let BoundService { runtime, listener, listen, gate } = self;
        let (stop, stopping) = watch::channel(false);
        let accepting = runtime.spawn(accept((listener, gate), table, stopping, serve));
        Service { runtime, listen, stop, accepting }
    }
}

impl Service {
    /// The address of the socket.
    pub(crate) fn listen(&self) -> SocketAddr {
        self.listen
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
        self.runtime.block_on(terminated())
    }

    /// Runs `reload` on a thread that may block, once for each SIGHUP, until the service stops.
    /// After this call SIGHUP does not end the process.
    ///
    /// # Errors
    /// `Unavailable` when the signal cannot be received.
    pub(crate) fn on_hangup(&self, reload: impl Fn() + Send + Sync + 'static) -> Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let _entered = self.runtime.enter();
        let mut hangups = signal(SignalKind::hangup())
            .map_err(|e| Error::unavailable("cannot wait for signals").because(e))?;
        let (reload, mut stopping) = (Arc::new(reload), self.stopping());
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

    /// Calls `reload` after SIGHUP, and reloads the web configuration of `gate` when its files
    /// change.
    ///
    /// # Errors
    /// As [`Service::on_hangup`].
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
        let (gate, mut stopping) = (Arc::clone(gate), self.stopping());
        self.runtime.spawn(async move {
            let mut previous = Vec::new();
            loop {
                tokio::select! {
                    () = stopped(&mut stopping) => return,
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                }
                let (polled, mut seen) = (Arc::clone(&gate), previous);
                let polling = tokio::task::spawn_blocking(move || {
                    polled.poll(&mut seen);
                    seen
                });
                previous = polling.await.unwrap_or_default();
            }
        });
        Ok(())
    }

    /// Stops in order: no new connections, open ones finish their requests, then `close`, then the
    /// threads. Returns the result of `close`.
    pub(crate) fn stop<T>(self, close: impl FnOnce() -> T) -> T {
        // Without a receiver the accept loop has ended already.
        let _ = self.stop.send(true);
        if self.runtime.block_on(self.accepting).is_err() {
            tracing::error!("the network task panicked, which is a bug");
        }
        let closed = close();
        self.runtime.shutdown_background();
        closed
    }
}

/// Waits for SIGTERM or SIGINT.
///
/// # Errors
/// `Unavailable` when they cannot be received.
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

/// Waits until the service stops; one that was dropped has stopped.
pub(crate) async fn stopped(stopping: &mut Stopping) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

fn cannot_listen(listen: SocketAddr, why: io::ErrorKind) -> String {
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

async fn accept<F>(
    (listener, gate): (TcpListener, Arc<Gate>),
    table: Arc<ConnectionTable>,
    mut stopping: Stopping,
    serve: impl Fn(Accepted, Stopping) -> F + Clone + Send + Sync + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let accepting = async {
            let (stream, client) = listener.accept().await?;
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
                let (serve, gate, stopping) = (serve.clone(), Arc::clone(&gate), stopping.clone());
                connections.spawn(async move {
                    let handle = Arc::new(handle);
                    // The handshake is a part of the connection, so that it delays no other one.
                    let serving = async {
                        let Some(transport) = secured(stream, &gate).await else { return };
                        let handle = Arc::clone(&handle);
                        serve(Accepted { transport, client, handle }, stopping).await;
                    };
                    tokio::select! {
                        () = serving => {}
                        () = handle.evicted() => {}
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    table.close();
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, finished).await.is_err() {
        tracing::warn!("cut off connections that were open {} s after the stop", GRACE.as_secs());
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream as Client;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
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
        let bound = BoundService::bind("test", "127.0.0.1:0".parse().unwrap(), || ()).unwrap();
        let table = ConnectionLimits::new(1, None);
        let service = bound.start(ConnectionTable::new(table), echo);
        let exchange = |client: &mut Client| {
            let mut received = [0; 1];
            client.write_all(b"x").and_then(|()| client.read_exact(&mut received)).unwrap();
        };
        let mut first = Client::connect(service.listen()).unwrap();
        exchange(&mut first);
        let mut second = Client::connect(service.listen()).unwrap();
        second.write_all(b"y").unwrap();
        drop(first);
        let mut received = [0; 1];
        second.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"y");
        assert_eq!(service.stop(|| 7), 7);
        assert!(matches!(second.read(&mut received), Ok(0) | Err(_)));
    }

    #[test]
    fn an_address_in_use_is_named_with_the_way_out() {
        let bound = BoundService::bind("test", "127.0.0.1:0".parse().unwrap(), || ()).unwrap();
        let error = BoundService::bind("test", bound.listen(), || ()).unwrap_err().to_string();
        assert!(
            error.contains(&bound.listen().to_string()) && error.contains("stop the program"),
            "{error}"
        );
        let f = |listen: &str, kind: io::ErrorKind, what: &str| {
            let told = cannot_listen(listen.parse().unwrap(), kind);
            assert!(told.contains(listen) && told.contains(what), "{told}");
        };
        f("0.0.0.0:80", io::ErrorKind::PermissionDenied, "CAP_NET_BIND_SERVICE");
        f("192.0.2.1:9420", io::ErrorKind::AddrNotAvailable, "no such address");
    }
}
