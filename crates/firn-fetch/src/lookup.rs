//! Addresses of names, from the resolver of the system.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Lookups at the same time. One cannot be interrupted, and a name whose server is silent takes
/// about ten seconds. A runtime has at least sixteen threads for work that waits: the others stay
/// free for files, reloads and lists of targets.
static LOOKUPS: Semaphore = Semaphore::const_new(8);

/// The addresses of `host`, a name or an address. Waits while many other names are looked up.
///
/// # Errors
/// Those of the resolver.
pub(crate) async fn lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let host = host.to_owned();
    limited(&LOOKUPS, move || Ok((host.as_str(), port).to_socket_addrs()?.collect())).await
}

/// Runs `work` on a thread that may wait, once `permits` has a permit for it. Its end returns the
/// permit, also if the caller does not wait for it any more.
async fn limited<T: Send + 'static>(
    permits: &'static Semaphore,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let permit = permits.acquire().await.map_err(io::Error::other)?;
    let running = spawn_blocking(move || {
        let _permit = permit;
        work()
    });
    running.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn addresses_and_names_are_found() {
        for host in ["127.0.0.1", "::1"] {
            let found = lookup(host, 80).await.unwrap();
            assert_eq!(found, [SocketAddr::new(host.parse().unwrap(), 80)]);
        }
        let found = lookup("localhost", 80).await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback()), "{found:?}");
        assert!(lookup("a b", 80).await.is_err());
    }

    // Lookups whose callers had stopped waiting kept all threads of the runtime: no file was read
    // and no list was applied.
    #[test]
    fn lookups_that_hang_leave_threads_to_others() {
        static PERMITS: Semaphore = Semaphore::const_new(2);
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().max_blocking_threads(3).build().unwrap();
        let (end, ended) = channel::<()>();
        let ended = std::sync::Arc::new(std::sync::Mutex::new(ended));
        runtime.block_on(async {
            for _ in 0..5 {
                let ended = std::sync::Arc::clone(&ended);
                let hanging = limited(&PERMITS, move || {
                    let _ = ended.lock().map(|ended| ended.recv());
                    Ok(())
                });
                let waited = tokio::time::timeout(Duration::from_millis(1), hanging).await;
                assert!(waited.is_err());
            }
            assert_eq!(PERMITS.available_permits(), 0);
            assert_eq!(spawn_blocking(|| 7).await.unwrap(), 7);
            drop(end);
            limited(&PERMITS, || Ok(())).await.unwrap();
        });
    }
}
