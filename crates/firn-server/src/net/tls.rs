//! The TLS handshake of an accepted connection, on the connection's own task.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::transport::Transport;
use crate::access::Gate;

/// Time for a handshake; the connection counts against the limits meanwhile.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
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
        TlsAcceptor::from(config).accept(stream).await.ok()
    };
    let done = tokio::time::timeout(HANDSHAKE_TIMEOUT, shaking).await.ok().flatten();
    gate.shook_hands(done.is_some());
    done.map(|stream| Transport::Tls(Box::new(stream)))
}
