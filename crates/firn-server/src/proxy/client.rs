//! The HTTP client of the proxy's origin: connections with bounded buffers, TLS, time-outs.

use std::error::Error as _;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Method, Request, Response};
use firn_env::given_file::read_once;
use firn_fetch::with_causes;
use firn_model::{Error, Result};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as PooledClient, Error as PoolError};
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::time::{Instant, timeout_at};

use super::BUFFER_BYTES_MAX;
use crate::config::{CacheConfig, FilePath, Or, Unset};

// An unreachable host must not block a dashboard for minutes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A client of one server. It speaks HTTP/1.1, follows no redirects and uses no other proxy.
#[derive(Debug)]
pub(super) struct OriginClient {
    pool: PooledClient<HttpsConnector<HttpConnector>, Body>,
    /// For the head of an answer, after the connection or a part of the request's body.
    patience: Duration,
}

impl OriginClient {
    /// # Errors
    /// `Invalid` for certificates that cannot be used, `Unavailable` when TLS cannot be set up.
    pub(super) fn new(config: &CacheConfig) -> Result<OriginClient> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls_config(config)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let pool = PooledClient::builder(TokioExecutor::new())
            .http1_max_buf_size(BUFFER_BYTES_MAX)
            .build(connector);
        Ok(OriginClient { pool, patience: config.origin_timeout.duration() })
    }

    /// Sends a request; the answer's body follows as a stream. A request without a body that only
    /// reads is repeated if the origin closed the connection meanwhile.
    ///
    /// # Errors
    /// The reason in one line.
    pub(super) async fn send(
        &self,
        request: Request<Body>,
    ) -> std::result::Result<Response<Incoming>, String> {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let again = (is_read && request.body().is_end_stream()).then(|| {
            let mut again = Request::new(Body::empty());
            *again.method_mut() = request.method().clone();
            *again.uri_mut() = request.uri().clone();
            *again.headers_mut() = request.headers().clone();
            again
        });
        match (self.send_once(request).await, again) {
            (Err(SendError::Failed(error)), Some(again)) if is_closed(&error) => {
                self.send_once(again).await
            }
            (sent, _) => sent,
        }
        .map_err(|error| match error {
            SendError::Failed(error) => with_causes(&error),
            SendError::Stalled => "no progress within --origin-timeout".to_owned(),
        })
    }

    async fn send_once(
        &self,
        request: Request<Body>,
    ) -> std::result::Result<Response<Incoming>, SendError> {
        let moved = Arc::new(Mutex::new(Instant::now()));
        let request =
            request.map(|body| Body::new(WatchedBody { body, moved: Arc::clone(&moved) }));
        let answer = self.pool.request(request);
        match while_moving(answer, &moved, self.patience).await {
            Some(sent) => sent.map_err(SendError::Failed),
            None => Err(SendError::Stalled),
        }
    }
}

/// Waits for `work` until `patience` after the latest time in `moved`.
async fn while_moving<T>(
    work: impl Future<Output = T>,
    moved: &Mutex<Instant>,
    patience: Duration,
) -> Option<T> {
    let mut work = pin!(work);
    loop {
        let latest = *moved.lock() + patience;
        match timeout_at(latest, &mut work).await {
            Ok(done) => return Some(done),
            Err(_) if *moved.lock() + patience > latest => {}
            Err(_) => return None,
        }
    }
}

enum SendError {
    Failed(PoolError),
    Stalled,
}

/// Whether the origin closed the connection before its answer began.
fn is_closed(error: &PoolError) -> bool {
    let hyper = error.source().and_then(|source| source.downcast_ref::<hyper::Error>());
    let io = hyper.and_then(|error| error.source()?.downcast_ref::<io::Error>());
    let is_reset = io.is_some_and(|io| io.kind() == io::ErrorKind::ConnectionReset);
    is_reset || hyper.is_some_and(|error| error.is_incomplete_message() || error.is_canceled())
}

/// The body of a request, and the time at which its last part was taken.
struct WatchedBody {
    body: Body,
    moved: Arc<Mutex<Instant>>,
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        *self.moved.lock() = Instant::now();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The authorities and the identity of the settings.
fn tls_config(config: &CacheConfig) -> Result<ClientConfig> {
    let read = |setting: &Or<Unset, FilePath>, name: &str| {
        setting.get().map(|path| read_once(&path.0, name)).transpose()
    };
    let unusable = |name: &str, expected: &str| {
        Error::invalid(format!("{name}: expected {expected} in PEM form"))
    };
    let cannot =
        |e: rustls::Error| Error::unavailable("cannot set up the proxy's connections").because(e);
    let mut roots = RootCertStore::empty();
    match read(&config.origin_ca_file, "--origin-ca-file")? {
        Some(pem) => {
            let unusable = || unusable("--origin-ca-file", "certificates");
            for authority in certificates(&pem).ok_or_else(unusable)? {
                roots.add(authority).map_err(|e| unusable().because(e))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(cannot)?
        .with_root_certificates(roots);
    let Some(pem) = read(&config.origin_identity_file, "--origin-identity-file")? else {
        return Ok(builder.with_no_client_auth());
    };
    let unusable = || unusable("--origin-identity-file", "a certificate and its key");
    let chain = certificates(&pem).ok_or_else(unusable)?;
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| unusable())?;
    builder.with_client_auth_cert(chain, key).map_err(|e| unusable().because(e))
}

/// `None` without a certificate, or with a broken one.
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    found.ok().filter(|found| !found.is_empty())
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::time::sleep;

    use super::*;

    /// Before, a body that took longer than the time limit was refused, although it arrived.
    #[tokio::test(start_paused = true)]
    async fn each_part_of_a_request_has_the_time_limit() {
        let upload = |pause: Duration| async move {
            let parts = futures_util::stream::unfold(0, move |sent| async move {
                sleep(pause).await;
                (sent < 10).then(|| (io::Result::Ok("part"), sent + 1))
            });
            let moved = Arc::new(Mutex::new(Instant::now()));
            let body = WatchedBody { body: Body::from_stream(parts), moved: Arc::clone(&moved) };
            while_moving(body.collect(), &moved, Duration::from_secs(3)).await
        };
        let start = Instant::now();
        let whole = upload(Duration::from_secs(2)).await.unwrap().unwrap();
        assert_eq!(whole.to_bytes().len(), 40);
        assert!(start.elapsed() >= Duration::from_secs(20));
        let start = Instant::now();
        assert!(upload(Duration::from_secs(4)).await.is_none());
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    }
}
