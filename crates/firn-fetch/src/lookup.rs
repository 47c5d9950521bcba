//! Addresses of names, from the resolver of the system.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::LazyLock;

use tokio::task::spawn_blocking;

use crate::fair::{ClientId, FairPlaces};

/// Lookups at the same time. One cannot be interrupted, and a name whose server is silent takes
/// about ten seconds. A runtime has at least sixteen threads for work that waits: the others stay
/// free for files, reloads and lists of targets.
static LOOKUPS: LazyLock<FairPlaces> = LazyLock::new(|| FairPlaces::new(8));

/// The addresses of `host`, a name or an address, for `client`. Waits while many other names are
/// looked up; names of one client leave lookups to others.
///
/// # Errors
/// Those of the resolver.
pub(crate) async fn lookup(host: &str, port: u16, client: ClientId) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let host = host.to_owned();
    let addresses = move || Ok((host.as_str(), port).to_socket_addrs()?.collect());
    limited(&LOOKUPS, client, addresses).await
}

/// Runs `work` on a thread that may wait, once `places` has a place for it. Its end returns the
/// place, also if the caller does not wait for it any more.
async fn limited<T: Send + 'static>(
    places: &FairPlaces,
    client: ClientId,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let permit = places.take(client).await.map_err(io::Error::other)?;
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
        let client = ClientId::unique();
        for host in ["127.0.0.1", "::1"] {
            let found = lookup(host, 80, client).await.unwrap();
            assert_eq!(found, [SocketAddr::new(host.parse().unwrap(), 80)]);
        }
        let found = lookup("localhost", 80, client).await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback()), "{found:?}");
        assert!(lookup("a b", 80, client).await.is_err());
    }

    // Lookups whose callers had stopped waiting kept all threads of the runtime: no file was read
    // and no list was applied. And the names of one job that hang kept all lookups: targets of
    // other jobs were down.
    #[test]
    fn lookups_that_hang_leave_threads_and_lookups_to_others() {
        let places = FairPlaces::new(4);
        let [hanging, other] = [(); 2].map(|()| ClientId::unique());
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().max_blocking_threads(5).build().unwrap();
        let (end, ended) = channel::<()>();
        let ended = std::sync::Arc::new(std::sync::Mutex::new(ended));
        runtime.block_on(async {
            for _ in 0..5 {
                let ended = std::sync::Arc::clone(&ended);
                let looking_up = limited(&places, hanging, move || {
                    let _ = ended.lock().map(|ended| ended.recv());
                    Ok(())
                });
                let waited = tokio::time::timeout(Duration::from_millis(1), looking_up).await;
                assert!(waited.is_err());
            }
            assert_eq!(places.taken(), 3);
            let looking_up = limited(&places, other, || Ok(()));
            let found = tokio::time::timeout(Duration::from_secs(10), looking_up).await;
            found.unwrap().unwrap();
            assert_eq!(spawn_blocking(|| 7).await.unwrap(), 7);
            drop(end);
            limited(&places, hanging, || Ok(())).await.unwrap();
        });
    }
}
