//! Connections to the target, with TLS or without.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned,
};

const WRITE_TIME_MAX: Duration = Duration::from_secs(15);

/// A connection to the target.
pub(crate) trait Connection: Read + Write + Send {
    /// The socket below.
    fn socket(&self) -> &TcpStream;
}

impl Connection for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

/// Makes connections to one address.
#[derive(Clone)]
pub(crate) struct Dialer {
    address: SocketAddr,
    tls: Option<Arc<ClientConfig>>,
    connect_time_max: Duration,
}

impl Dialer {
    /// To a server whose certificate is not checked: this program makes it itself.
    pub(crate) fn new(address: SocketAddr, has_tls: bool, connect_time_max: Duration) -> Dialer {
        Dialer { address, tls: has_tls.then(client_config), connect_time_max }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// A new connection; the handshake happens with the first bytes.
    pub(crate) fn connect(&self) -> io::Result<Box<dyn Connection>> {
        let stream = self.connect_plain()?;
        let Some(config) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::IpAddress(self.address.ip().into());
        let session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        stream.set_read_timeout(Some(WRITE_TIME_MAX))?;
        Ok(Box::new(StreamOwned::new(session, stream)))
    }

    /// A new connection, without TLS in any case.
    pub(crate) fn connect_plain(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&self.address, self.connect_time_max)?;
        stream.set_write_timeout(Some(WRITE_TIME_MAX))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

impl Connection for StreamOwned<ClientConnection, TcpStream> {
    fn socket(&self) -> &TcpStream {
        &self.sock
    }
}

fn client_config() -> Arc<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider has suites of both versions");
    let verifier = Arc::new(AnyCertificate(provider));
    let config = builder.dangerous().with_custom_certificate_verifier(verifier);
    Arc::new(config.with_no_client_auth())
}

/// Accepts every certificate; the signatures of the handshake are checked.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
