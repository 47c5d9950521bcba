//! Connections to servers, encrypted or not.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use firn_env::given_file::{check_authorities, read_once};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::{Error, Result};

/// Files of a client that speaks TLS. By default it trusts the authorities of the system and has no
/// certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Certificates of the authorities that may sign a server's certificate, in PEM form. They
    /// replace those of the system.
    pub ca_file: Option<PathBuf>,
    /// A certificate with its chain and its key, in PEM form, for servers that demand one.
    pub identity_file: Option<PathBuf>,
}

/// TLS of a client. Clones share it. The files are read once.
#[derive(Clone)]
pub struct Tls(Arc<ClientConfig>);

/// A connection to one server. Reads and writes have the timeout of [`Connection::open`].
pub struct Connection(Stream);

enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// `Invalid` for a file that cannot be used, and if the system has no authorities.
    pub fn open(options: &TlsOptions) -> Result<Tls> {
        let invalid = |what: String| move |e: rustls::Error| Error::Invalid(format!("{what}: {e}"));
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(invalid("cannot set up TLS".to_owned()))?
            .with_root_certificates(authorities(options.ca_file.as_deref())?);
        let Some(path) = &options.identity_file else {
            return Ok(Tls(Arc::new(builder.with_no_client_auth())));
        };
        let text = read(path)?;
        let shown = path.display();
        let chain = certificates(path, &text)?;
        let key = PrivateKeyDer::from_pem_slice(&text).map_err(|_| {
            Error::Invalid(format!("{shown}: expected an unencrypted private key in PEM form"))
        })?;
        let unusable = format!("{shown}: the certificate and the key cannot be used together");
        let config = builder.with_client_auth_cert(chain, key).map_err(invalid(unusable))?;
        Ok(Tls(Arc::new(config)))
    }
}

/// Without the key of the client.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects to `host:port`, with a handshake if `tls` is given. The server's certificate must
    /// name `host`.
    ///
    /// # Errors
    /// Those of the system, of the handshake, and `InvalidInput` for an address of another form.
    pub fn open(address: &str, tls: Option<&Tls>, timeout: Duration) -> io::Result<Connection> {
        let stream = connect(address, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        // Each request is one write; delaying it to collect more gains nothing.
        stream.set_nodelay(true)?;
        let Some(Tls(config)) = tls else { return Ok(Connection(Stream::Plain(stream))) };
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let connection =
            ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, stream);
        // Its failure belongs to this call and not to the first request.
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Connection(Stream::Tls(Box::new(stream))))
    }
}

/// A name may have several addresses, of which the server listens on one.
fn connect(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut failed =
        io::Error::new(io::ErrorKind::InvalidInput, "the name has no address: expected host:port");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Stream::Plain(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Stream::Plain(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (stream, has_tls) = match &self.0 {
            Stream::Plain(stream) => (stream, false),
            Stream::Tls(stream) => (&stream.sock, true),
        };
        f.debug_struct("Connection").field("stream", stream).field("has_tls", &has_tls).finish()
    }
}

fn authorities(ca_file: Option<&Path>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            for certificate in certificates(path, &read(path)?)? {
                roots.add(certificate).map_err(|e| {
                    Error::Invalid(format!("{}: not a certificate: {e}", path.display()))
                })?;
            }
        }
        None => {
            check_authorities().map_err(|e| Error::Invalid(e.to_string()))?;
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let why = found.errors.first().map_or_else(String::new, |e| format!(": {e}"));
                return Err(Error::Invalid(format!(
                    "the system has no certificates of authorities{why}; name a file with them"
                )));
            }
        }
    }
    Ok(roots)
}

fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(Error::Invalid(format!("{}: expected certificates in PEM form", path.display()))),
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    read_once(path, "the file").map_err(|e| Error::Invalid(e.to_string()))
}
