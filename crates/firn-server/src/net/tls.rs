//! The TLS handshake of an accepted connection, on the connection's own task.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::transport::Transport;
use crate::access::Gate;

/// Time for a handshake; the connection counts against the limits meanwhile.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Encrypted bytes that a connection holds while its client does not read: those of one record.
const UNSENT_BYTES_MAX: usize = 16 << 10;
/// First byte of every handshake (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;
const NO_TLS: &[u8] = b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\n\
                        Connection: close\r\n\r\nthis port speaks TLS: use https://\n";

/// Encrypts an accepted connection as the gate's current configuration demands; `None` if the
/// client cannot do that.
pub(super) async fn secured(stream: TcpStream, gate: &Gate) -> Option<Transport> {
    let Some(config) = gate.tls() else { return Some(Transport::plain(stream)) };
    let shaking = async {
        let mut first = [0];
        if stream.peek(&mut first).await.ok()? == 0 {
            return None;
        }
        if first != [HANDSHAKE] {
            // A browser with an http:// address shows the sentence.
            let mut stream = stream;
            let _ = stream.write_all(NO_TLS).await;
            let _ = stream.shutdown().await;
            return None;
        }
        let _ = stream.set_nodelay(true);
        TlsAcceptor::from(config).accept(stream).await.ok().map(bounded)
    };
    let done = tokio::time::timeout(HANDSHAKE_TIMEOUT, shaking).await.ok().flatten();
    gate.shook_hands(done.is_some());
    done.map(|stream| Transport::Tls(Box::new(stream)))
}

/// Bounds the encrypted bytes that wait for a client.
fn bounded<S>(mut stream: TlsStream<S>) -> TlsStream<S> {
    stream.get_mut().1.set_buffer_limit(Some(UNSENT_BYTES_MAX));
    stream
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use rcgen::generate_simple_self_signed;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore, ServerConfig};
    use tokio::io::{AsyncReadExt, AsyncWrite, DuplexStream, duplex};
    use tokio_rustls::{TlsConnector, client};

    use super::*;

    const PIPE_BYTES: usize = 4 << 10;

    async fn pair() -> (TlsStream<DuplexStream>, client::TlsStream<DuplexStream>) {
        let name = "localhost";
        let made = generate_simple_self_signed([name.to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let certificate = made.cert.der().clone();
        let provider = || Arc::new(rustls::crypto::ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (near, far) = duplex(PIPE_BYTES);
        let (acceptor, connector) =
            (TlsAcceptor::from(Arc::new(server)), TlsConnector::from(Arc::new(client)));
        let connect = connector.connect(ServerName::try_from(name).unwrap(), far);
        let (served, client) = tokio::join!(acceptor.accept(near), connect);
        (bounded(served.unwrap()), client.unwrap())
    }

    /// Each such connection held 64 KiB, beside its response.
    #[tokio::test]
    async fn a_connection_whose_client_does_not_read_holds_one_record() {
        let (mut served, mut client) = pair().await;
        let bytes = vec![7_u8; 1 << 20];
        let mut context = Context::from_waker(Waker::noop());
        let mut accepted = 0;
        while let Poll::Ready(written) =
            Pin::new(&mut served).poll_write(&mut context, &bytes[accepted..])
        {
            accepted += written.unwrap();
        }
        assert!(accepted > 0 && accepted <= UNSENT_BYTES_MAX + PIPE_BYTES, "{accepted}");
        // Once the client reads, all of the response arrives.
        let mut received = Vec::new();
        let send = async {
            served.write_all(&bytes[accepted..]).await.unwrap();
            served.shutdown().await.unwrap();
        };
        let (_, read) = tokio::join!(send, client.read_to_end(&mut received));
        read.unwrap();
        assert!(received == bytes, "{} bytes", received.len());
    }
}
