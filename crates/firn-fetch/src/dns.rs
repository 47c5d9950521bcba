//! Records of names, from the name servers of the system.
//!
//! The resolver of the C library returns addresses only. This one sends its queries itself, to the
//! servers of `resolv.conf`, and distinguishes a name that does not exist from servers that fail.

#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod message;
mod settings;

use std::fmt::Display;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use firn_collect::discovery::{DnsKind, DnsRecord};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::FetchError;
use message::{Answer, NO_ERROR, NO_SUCH_NAME, Query};
pub use settings::DnsSettings;

/// All queries of a lookup: names of the search list, servers and attempts.
const LOOKUP_TIME_MAX: Duration = Duration::from_secs(60);

/// The records of `name`; none if it does not exist, or has no record of this kind.
///
/// # Errors
/// `Timeout`, and `Transport` if no server has a usable answer.
pub async fn records(
    name: &str,
    kind: DnsKind,
    settings: &DnsSettings,
) -> Result<Vec<DnsRecord>, FetchError> {
    timeout(LOOKUP_TIME_MAX, search(name, kind, settings)).await.unwrap_or(Err(FetchError::Timeout))
}

/// The records of the first name of the search list that exists.
async fn search(
    name: &str,
    kind: DnsKind,
    settings: &DnsSettings,
) -> Result<Vec<DnsRecord>, FetchError> {
    let mut failed = None;
    for candidate in settings.candidates(name) {
        match any_server(&candidate, kind, settings).await {
            Ok(answer) if answer.code == NO_ERROR => return Ok(answer.records),
            Ok(_) => {}
            // A later name may exist. If none does, this one is not known to be missing.
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        None => Ok(Vec::new()),
        Some(error) => Err(error),
    }
}

/// The answer of the first server that knows whether `name` exists.
async fn any_server(
    name: &str,
    kind: DnsKind,
    settings: &DnsSettings,
) -> Result<Answer, FetchError> {
    let failed = |text: String| FetchError::Transport(format!("lookup {name}: {text}"));
    let mut last = "resolv.conf has no servers".to_owned();
    for attempt in 0..settings.attempts {
        for server in &settings.servers {
            // Some old servers refuse queries with an extension.
            let query = Query::new(random_id(), name, kind, attempt == 0).map_err(&failed)?;
            match exchange(*server, &query, settings.timeout).await {
                Ok(answer) if matches!(answer.code, NO_ERROR | NO_SUCH_NAME) => return Ok(answer),
                Ok(answer) => last = format!("server {}: code {}", server.ip(), answer.code),
                Err(error) => last = format!("server {}: {error}", server.ip()),
            }
        }
    }
    Err(failed(last))
}

/// A server that forges answers has to guess this and the port of the query.
fn random_id() -> u16 {
    // `RandomState` is seeded by the operating system.
    let [low, high, ..] = RandomState::new().hash_one(()).to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// Sends a query, and again over TCP if the answer does not fit into a datagram.
async fn exchange(server: SocketAddr, query: &Query, limit: Duration) -> Result<Answer, String> {
    let answer = limited(limit, over_udp(server, query)).await?;
    if !answer.is_truncated {
        return Ok(answer);
    }
    let answer = limited(limit, over_tcp(server, query)).await?;
    match answer.is_truncated {
        true => Err("the answer is truncated over TCP".to_owned()),
        false => Ok(answer),
    }
}

async fn limited<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    timeout(limit, work).await.unwrap_or_else(|_| Err("i/o timeout".to_owned()))
}

async fn over_udp(server: SocketAddr, query: &Query) -> Result<Answer, String> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await.map_err(failed)?;
    // Datagrams of other addresses are dropped by the kernel.
    socket.connect(server).await.map_err(failed)?;
    socket.send(query.bytes()).await.map_err(failed)?;
    let mut datagram = [0; message::DATAGRAM_BYTES_MAX as usize];
    loop {
        let len = socket.recv(&mut datagram).await.map_err(failed)?;
        // Late answers to other queries, and forged ones, are ignored until the time limit.
        if let Some(answer) = query.answer(datagram.get(..len).unwrap_or_default()) {
            return answer;
        }
    }
}

async fn over_tcp(server: SocketAddr, query: &Query) -> Result<Answer, String> {
    let mut stream = TcpStream::connect(server).await.map_err(failed)?;
    let len = u16::try_from(query.bytes().len()).map_err(failed)?;
    let framed = [&len.to_be_bytes(), query.bytes()].concat();
    stream.write_all(&framed).await.map_err(failed)?;
    let len = stream.read_u16().await.map_err(failed)?;
    let mut bytes = vec![0; usize::from(len)];
    stream.read_exact(&mut bytes).await.map_err(failed)?;
    query.answer(&bytes).unwrap_or_else(|| Err("the answer is one to another query".to_owned()))
}

fn failed(error: impl Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests;
