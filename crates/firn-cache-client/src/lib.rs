//! Cache client: keeps points by key and time range on one or several `firn cache` servers.
//!
//! **Owns** connections to the servers, also with TLS, the choice of a server for a key, the key of
//! a query's statement, and the measurement of the size from which a cached part pays
//! ([`BreakEven`]). The client in Python is `clients/python/firn_cache.py`; `clients/vectors.txt`
//! tests both. The protocol: docs/cache-protocol.md.
//!
//! **Never** knows a database, keeps a point, or uses another server when one is down: the caller
//! computes missing points.
//!
//! **Path through**: [`Client::get`] sends a lookup to the key's server and returns the cached part
//! and the one missing range; the caller computes that range and keeps it with [`Client::set`].
//!
//! **Invariants**: every client chooses the same server for a key; a broken connection is replaced
//! once per request; a response of unexpected length is an error, never a wrong value.
//!
//! ```
//! use firn_cache_client::{Client, Format, Options, key_of};
//! # use std::io::{BufRead, BufReader, Read, Write};
//! # let server = std::net::TcpListener::bind("127.0.0.1:0")?;
//! # let address = server.local_addr()?.to_string();
//! # std::thread::spawn(move || {
//! #     let mut stream = BufReader::new(server.accept().unwrap().0);
//! #     let mut line = String::new();
//! #     stream.read_line(&mut line).unwrap();
//! #     stream.get_mut().write_all(b"NOT_FOUND\r\n").unwrap();
//! #     line.clear();
//! #     stream.read_line(&mut line).unwrap();
//! #     let bytes: usize = line.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
//! #     stream.read_exact(&mut vec![0; bytes + 2]).unwrap();
//! #     stream.get_mut().write_all(b"STORED 1000 9000\r\n").unwrap();
//! # });
//! # let servers = [address.as_str()];
//!
//! let mut cache = Client::new(&servers, Options::default())?;
//! let key = key_of("SELECT mean(load) FROM cpu WHERE time >= {start} AND time <= {end}")?;
//! let reply = cache.get(&key, 0, (1_000, 9_000), Format::Json)?;
//! assert_eq!(reply.missing, Some((1_000, 9_000)));
//! // Query the database for the missing range, then keep its points.
//! let kept = cache.set(&key, 0, (1_000, 9_000), Format::Json, b"[[1000,0.5],[5000,0.7]]")?;
//! assert_eq!(kept, Some((1_000, 9_000)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Reading order: `key`, `break_even`, `error`, `tls`, then this page. Terms: `docs/glossary.md`.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation
    )
)]

mod break_even;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod key;
mod tls;

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::time::Duration;

use error::{refusal, unexpected};

pub use break_even::BreakEven;
pub use error::{Error, Result};
pub use key::{KEY_BYTES_MAX, key_of, server_of};
pub use tls::{Connection, Tls, TlsOptions};

/// Gets that are sent before the first response is read. A server answers this many in parallel.
const GETS_MAX: usize = 16;
/// A response line is never longer, except for the text of `CLIENT_ERROR`.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// A response with a longer value is an error.
const VALUE_BYTES_MAX: usize = 1 << 30;
/// Allocated for a value before its first byte; longer values grow with the bytes that arrive.
const VALUE_BYTES_START: usize = 64 << 10;
/// The end of a line and of a value.
const LINE_END: &[u8] = b"\r\n";

/// First and last time of a range, inclusive.
pub type Range = (i64, i64);

/// How points are encoded. Points that were set in one format are missing in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `[[time,value],...]` with any JSON as value.
    Json,
    /// The encoding of [`encode_points`]: any bytes as value.
    Binary,
}

/// Options of a client.
#[derive(Clone)]
pub struct Options {
    /// The token that the servers require, if any.
    pub token: Option<String>,
    /// TLS to all servers; `None` for connections without encryption.
    pub tls: Option<Tls>,
    /// Timeout of connecting, and of each response.
    pub timeout: Duration,
}

/// Without the token.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.as_ref().map(|_| "xxxxx");
        f.debug_struct("Options")
            .field("token", &token)
            .field("tls", &self.tls)
            .field("timeout", &self.timeout)
            .finish()
    }
}

/// The cached part of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetReply {
    /// The missing range: everything before and after it is cached. `None` for a hit.
    pub missing: Option<Range>,
    /// The part of `missing` that is not in the cache: smaller than `missing` if the server
    /// withheld a part because it is small. A caller that computes all of `missing` need set only
    /// this.
    pub absent: Option<Range>,
    /// The cached points in the requested format; empty if there are none.
    pub value: Vec<u8>,
}

/// A lookup.
#[derive(Clone, Copy, Debug)]
pub struct GetRequest<'a> {
    /// The key of the points.
    pub key: &'a str,
    /// The field of the key, from 0 to 15.
    pub field: u8,
    /// The range of time.
    pub range: Range,
    /// The format of the response.
    pub format: Format,
    /// A part with fewer bytes of values is not returned ([`BreakEven::next_bytes_min`]). `None`
    /// uses the server's setting.
    pub part_bytes_min: Option<u64>,
}

/// Connections to the servers, one each, opened on first use and after a failure. Use it from one
/// thread.
#[derive(Debug)]
pub struct Client {
    names: Vec<String>,
    connections: Vec<Option<BufReader<Connection>>>,
    options: Options,
}

impl Default for Options {
    fn default() -> Options {
        Options { token: None, tls: None, timeout: Duration::from_secs(5) }
    }
}

impl Client {
    /// Creates a client. Servers are `host:port`; use the same text in every client, because it
    /// selects the server of a key.
    ///
    /// # Errors
    /// `Invalid` without servers, and for a token with other characters than `!` to `~`.
    pub fn new(servers: &[&str], options: Options) -> Result<Client> {
        if servers.is_empty() {
            return Err(Error::Invalid(
                "cannot create a cache client: expected at least one server as host:port, got none"
                    .into(),
            ));
        }
        let is_word = |token: &String| token.bytes().all(|byte| byte.is_ascii_graphic());
        if options.token.as_ref().is_some_and(|token| token.is_empty() || !is_word(token)) {
            return Err(Error::Invalid(
                "cannot create a cache client: expected a token of characters from ! to ~".into(),
            ));
        }
        let names: Vec<String> = servers.iter().map(|&name| name.to_owned()).collect();
        let connections = names.iter().map(|_| None).collect();
        Ok(Client { names, connections, options })
    }

    /// Returns the cached part of a range.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn get(&mut self, key: &str, field: u8, range: Range, format: Format) -> Result<GetReply> {
        let request = GetRequest { key, field, range, format, part_bytes_min: None };
        self.get_many(&[request]).pop().unwrap_or_else(|| Err(unexpected("no response")))
    }

    /// Answers several lookups, sending up to 16 to a server before reading its responses. The
    /// results are in the order of the requests.
    pub fn get_many(&mut self, requests: &[GetRequest<'_>]) -> Vec<Result<GetReply>> {
        let mut answers: Vec<Option<Result<GetReply>>> = requests.iter().map(|_| None).collect();
        for server in 0..self.names.len() {
            let own = requests.iter().enumerate().filter(|(_, request)| {
                self.names.len() == 1 || server_of(request.key, &self.names) == server
            });
            let own: Vec<(usize, &GetRequest<'_>)> = own.collect();
            for some in own.chunks(GETS_MAX) {
                let request: String = some.iter().map(|(_, request)| request.line()).collect();
                let got = self.exchange(server, request.as_bytes(), |connection| {
                    some.iter().map(|(_, request)| read_reply(connection, request.range)).collect()
                });
                match got {
                    Ok(got) => {
                        let got: Vec<Result<GetReply>> = got;
                        for ((idx, _), one) in some.iter().zip(got) {
                            if let Some(answer) = answers.get_mut(*idx) {
                                *answer = Some(one);
                            }
                        }
                    }
                    Err(error) => {
                        for (idx, _) in some {
                            if let Some(answer) = answers.get_mut(*idx) {
                                let error = Error::Unavailable(error.to_string(), None);
                                *answer = Some(Err(error));
                            }
                        }
                    }
                }
            }
        }
        let unanswered = || Err(unexpected("no response"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    /// Keeps all points of a range, replacing older points of it. Returns the part that is kept:
    /// the first part if the rest does not fit, `None` if nothing fits.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn set(
        &mut self,
        key: &str,
        field: u8,
        (start, end): Range,
        format: Format,
        value: &[u8],
    ) -> Result<Option<Range>> {
        let bytes = value.len();
        let line = format!("set {key} {field} {start} {end} {} {bytes}\r\n", format.name());
        let mut request = checked(key, line)?;
        request.extend_from_slice(value);
        request.extend_from_slice(b"\r\n");
        let answer = self.exchange(self.server_of(key), &request, read_line)??;
        let words: Vec<&str> = answer.split(' ').collect();
        match words.as_slice() {
            ["STORED", start, end] => {
                let kept = start.parse().ok().zip(end.parse().ok());
                kept.map(Some).ok_or_else(|| unexpected(&answer))
            }
            ["NOT_STORED", ..] => Ok(None),
            _ => Err(refusal(&answer)),
        }
    }

    /// Deletes a range. Returns whether the key was in the cache.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn delete(&mut self, key: &str, field: u8, (start, end): Range) -> Result<bool> {
        let request = checked(key, format!("delete {key} {field} {start} {end}\r\n"))?;
        let answer = self.exchange(self.server_of(key), &request, read_line)??;
        match answer.as_str() {
            "DELETED" => Ok(true),
            "NOT_FOUND" => Ok(false),
            _ => Err(refusal(&answer)),
        }
    }

    fn server_of(&self, key: &str) -> usize {
        server_of(key, &self.names)
    }

    /// Sends a request and reads the response. A connection that broke since its last use is
    /// replaced once: every request can safely be repeated.
    fn exchange<T>(
        &mut self,
        server: usize,
        request: &[u8],
        read: impl Fn(&mut BufReader<Connection>) -> T,
    ) -> Result<T>
    where
        T: Outcome,
    {
        loop {
            let kept = self.connections.get_mut(server).and_then(Option::take);
            let is_fresh = kept.is_none();
            let mut connection = match kept {
                Some(connection) => connection,
                None => self.connect(server)?,
            };
            let sent = send(&mut connection, request);
            let outcome = match sent {
                Ok(()) => Ok(read(&mut connection)),
                Err(e) => {
                    Err(Error::Unavailable("cannot send a request to the cache".into(), Some(e)))
                }
            };
            match outcome {
                Ok(outcome) if !outcome.is_broken() => {
                    if let Some(slot) = self.connections.get_mut(server) {
                        *slot = Some(connection);
                    }
                    return Ok(outcome);
                }
                outcome if is_fresh => return outcome,
                _ => {}
            }
        }
    }

    fn connect(&self, server: usize) -> Result<BufReader<Connection>> {
        let name = self.names.get(server);
        let name = name.ok_or_else(|| Error::Invalid(format!("no cache server {server}")))?;
        let failed =
            |e: io::Error| Error::Unavailable(format!("cannot reach the cache at {name}"), Some(e));
        let tls = self.options.tls.as_ref();
        let connection = Connection::open(name, tls, self.options.timeout).map_err(failed)?;
        let mut connection = BufReader::new(connection);
        if let Some(token) = &self.options.token {
            send(&mut connection, format!("auth {token}\r\n").as_bytes()).map_err(failed)?;
            let answer = read_line(&mut connection)?;
            if answer != "OK" {
                return Err(refusal(&answer));
            }
        }
        Ok(connection)
    }
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Format::Json => "json",
            Format::Binary => "binary",
        }
    }
}

impl GetRequest<'_> {
    fn line(&self) -> String {
        let GetRequest { key, field, range: (start, end), format, part_bytes_min } = self;
        let part_bytes_min =
            part_bytes_min.map_or_else(String::new, |part_bytes_min| format!(" {part_bytes_min}"));
        let line = format!("get {key} {field} {start} {end} {}{part_bytes_min}\r\n", format.name());
        // An invalid key becomes an invalid command, so that the server's error has its position.
        if checked(key, String::new()).is_ok() { line } else { "get\r\n".to_owned() }
    }
}

/// Points in [`Format::Binary`]; times must rise.
///
/// # Panics
/// For a value of 4 GiB or more.
pub fn encode_points<'a>(points: impl IntoIterator<Item = (i64, &'a [u8])>) -> Vec<u8> {
    let mut out = Vec::new();
    for (time, value) in points {
        out.extend_from_slice(&time.to_le_bytes());
        let bytes = u32::try_from(value.len()).expect("the value of a point is under 4 GiB");
        out.extend_from_slice(&bytes.to_le_bytes());
        out.extend_from_slice(value);
    }
    out
}

/// The points in a value of [`Format::Binary`].
///
/// # Errors
/// `Unavailable` if the value is cut short: the server does not follow the protocol.
pub fn decode_points(mut value: &[u8]) -> Result<Vec<(i64, &[u8])>> {
    let mut points = Vec::new();
    while !value.is_empty() {
        let cut = || unexpected("a value whose last point is cut short");
        let (time, rest) = value.split_first_chunk().ok_or_else(cut)?;
        let (len, rest) = rest.split_first_chunk().ok_or_else(cut)?;
        let len = u32::from_le_bytes(*len) as usize;
        let (bytes, rest) = rest.split_at_checked(len).ok_or_else(cut)?;
        points.push((i64::from_le_bytes(*time), bytes));
        value = rest;
    }
    Ok(points)
}

/// A result that shows whether the connection is still usable.
trait Outcome {
    fn is_broken(&self) -> bool;
}

impl<T> Outcome for Result<T> {
    fn is_broken(&self) -> bool {
        matches!(self, Err(Error::Unavailable(..)))
    }
}

impl<T> Outcome for Vec<Result<T>> {
    fn is_broken(&self) -> bool {
        self.iter().any(Outcome::is_broken)
    }
}

fn send(connection: &mut BufReader<Connection>, bytes: &[u8]) -> io::Result<()> {
    connection.get_mut().write_all(bytes)?;
    connection.get_mut().flush()
}

fn read_line(connection: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    let read = connection.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
    let read =
        read.map_err(|e| Error::Unavailable("no response from the cache".into(), Some(e)))?;
    if read == 0 || !line.ends_with('\n') {
        return Err(Error::Unavailable("the cache closed the connection".into(), None));
    }
    line.truncate(line.trim_end_matches(['\r', '\n']).len());
    Ok(line)
}

fn read_reply(connection: &mut impl BufRead, requested: Range) -> Result<GetReply> {
    let line = read_line(connection)?;
    let words: Vec<&str> = line.split(' ').collect();
    let (missing, absent, bytes) = match words.as_slice() {
        ["NOT_FOUND"] => {
            return Ok(GetReply {
                missing: Some(requested),
                absent: Some(requested),
                value: Vec::new(),
            });
        }
        ["VALUE", _, _, bytes] => (None, None, bytes),
        ["INCOMPLETE", start, end, bytes] => {
            let missing = Some(range_of(start, end).ok_or_else(|| unexpected(&line))?);
            (missing, missing, bytes)
        }
        ["INCOMPLETE", start, end, bytes, first, last] => {
            let missing = range_of(start, end).ok_or_else(|| unexpected(&line))?;
            let absent = range_of(first, last).ok_or_else(|| unexpected(&line))?;
            (Some(missing), Some(absent), bytes)
        }
        _ => return Err(refusal(&line)),
    };
    let bytes = bytes.parse::<usize>().ok().filter(|&bytes| bytes <= VALUE_BYTES_MAX);
    let bytes = bytes.ok_or_else(|| unexpected(&line))?;
    let value_bytes = bytes.saturating_add(LINE_END.len());
    // Grows with the bytes that arrive: the announced length may be any number.
    let mut value = Vec::with_capacity(value_bytes.min(VALUE_BYTES_START));
    let read = connection.by_ref().take(value_bytes as u64).read_to_end(&mut value);
    let cut = |e| Error::Unavailable("the response of the cache was cut short".into(), e);
    read.map_err(|e| cut(Some(e)))?;
    if value.len() < value_bytes {
        return Err(cut(None));
    }
    if !value.ends_with(LINE_END) {
        return Err(unexpected("a value that is longer than its response line states"));
    }
    value.truncate(bytes);
    Ok(GetReply { missing, absent, value })
}

fn range_of(start: &str, end: &str) -> Option<Range> {
    Some((start.parse().ok()?, end.parse().ok()?))
}

fn checked(key: &str, line: String) -> Result<Vec<u8>> {
    let is_key =
        (1..=KEY_BYTES_MAX).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_key {
        let bytes = key.len();
        return Err(Error::Invalid(format!(
            "invalid key: expected 1 to {KEY_BYTES_MAX} bytes of 0x21 to 0x7e, got {bytes} bytes; \
             make keys with key_of"
        )));
    }
    Ok(line.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_word_and_not_shown() {
        let options = |token: &str| Options { token: Some(token.to_owned()), ..Options::default() };
        let client = Client::new(&["localhost:9421"], options("hunter2")).unwrap();
        assert!(!format!("{client:?}").contains("hunter2"), "{client:?}");
        // The rest would be a command.
        for token in ["", "a b", "hunter2\r\nset k 0 0 9 json 2\r\n[]"] {
            let error = Client::new(&["localhost:9421"], options(token)).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
