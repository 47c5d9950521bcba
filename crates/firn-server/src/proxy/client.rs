//! The HTTP client of the proxy's origin: connections with bounded buffers, TLS, time-outs.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use firn_env::given_file::read_once;
use firn_model::{Error, Result};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as PooledClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;

use super::origin::causes;
use crate::config::{CacheConfig, FilePath, Or, Unset};

// An unreachable host must not block a dashboard for minutes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The buffer of a connection, into which the head of an answer must fit. Heads of Prometheus have
/// less than 1 KiB; an origin may send the longest one to each of hundreds of clients.
const BUFFER_BYTES_MAX: usize = 32 << 10;

/// A client of one server. It speaks HTTP/1.1, follows no redirects and uses no other proxy.
#[derive(Debug)]
pub(super) struct OriginClient {
    pool: PooledClient<HttpsConnector<HttpConnector>, Body>,
    /// For the head of an answer, and the connection before it.
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

    /// Sends a request; the answer's body follows as a stream.
    ///
    /// # Errors
    /// The reason in one line.
    pub(super) async fn send(
        &self,
        request: Request<Body>,
    ) -> std::result::Result<Response<Incoming>, String> {
        match timeout(self.patience, self.pool.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(causes(error.to_string(), &error)),
            Err(_) => Err("no progress within --origin-timeout".to_owned()),
        }
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
