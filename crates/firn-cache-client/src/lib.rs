//! A client of `firn cache`: points by key and time range, kept on one server or several.
//!
//! **Owns** connections to the servers, the choice of a server for a key, and the key of a query's statement. The same
//! in Python is `clients/python/firn_cache.py`; `clients/vectors.txt` holds both to one choice. The protocol:
//! docs/cache-protocol.md.
//!
//! **Never** knows a database, keeps a point itself, or asks another server when one is gone: what is not
//! there is computed.
//!
//! ```no_run
//! use firn_cache_client::{Client, Format, Options, key_of};
//!
//! # fn main() -> firn_cache_client::Result<()> {
//! let mut cache = Client::new(&["10.0.0.1:9421", "10.0.0.2:9421"], Options::default())?;
//! let statement = "SELECT mean(load) FROM cpu WHERE time >= {start} AND time <= {end} GROUP BY time(1m)";
//! let key = key_of(statement)?;
//! let found = cache.get(&key, 0, (1_000, 9_000), Format::Json)?;
//! if let Some((start, end)) = found.missing {
//!     // Ask the database for this range, with the statement's times filled in, and tell the cache.
//!     cache.set(&key, 0, (start, end), Format::Json, br#"[[1000,0.5],[61000,0.7]]"#)?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Reading order: `key`, `break_even`, then this page.

#![forbid(unsafe_code)]

mod break_even;
mod key;

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

pub use break_even::BreakEven;
pub use key::{KEY_BYTES_MAX, key_of, server_of};

/// Gets that are sent before the first answer is read: what a server answers side by side.
const GETS_MAX: usize = 16;
/// An answer's line is never longer, but for what `CLIENT_ERROR` says.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// A value that is longer is none: the server has gone mad.
const VALUE_BYTES_MAX: usize = 1 << 30;

/// First and last time of a range; both belong to it.
pub type Range = (i64, i64);

/// How points are written. What was set in one is not got in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `[[time,value],...]` with any JSON as value.
    Json,
    /// What [`encode_points`] makes: any bytes as value.
    Binary,
}

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the servers want to be shown, if anything.
    pub token: Option<String>,
    /// For connecting, and for each answer.
    pub timeout: Duration,
}

/// What was found of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetReply {
    /// The one range that is not there; before it and behind it all is. `None`: nothing is missing.
    pub missing: Option<Range>,
    /// What of `missing` is really unknown: less than it if the server did not give a part because it is small. Who then has
    /// all of `missing` from the database need set no more than this.
    pub absent: Option<Range>,
    /// The points that are there, in the format that was asked for; empty if there are none at all.
    pub value: Vec<u8>,
}

/// One of several gets.
#[derive(Clone, Copy, Debug)]
pub struct GetRequest<'a> {
    /// Whose points.
    pub key: &'a str,
    /// Which of them, from 0 to 15.
    pub field: u8,
    /// When.
    pub range: Range,
    /// In which form.
    pub format: Format,
    /// Parts of fewer bytes of values are not wanted ([`BreakEven::next_bytes_min`]); the server's setting if it is left out.
    pub part_bytes_min: Option<u64>,
}

/// What went wrong. A program that has a database asks it then.
#[derive(Debug)]
pub enum Error {
    /// The request is wrong, as the server or this client says.
    Invalid(String),
    /// The server cannot do it now, as it says.
    Server(String),
    /// The server cannot be reached, or says what it should not.
    Unavailable(String, Option<io::Error>),
}

/// Of this client.
pub type Result<T> = std::result::Result<T, Error>;

/// Connections to some servers, one each, opened when they are first needed and after one broke. For one thread.
#[derive(Debug)]
pub struct Client {
    names: Vec<String>,
    connections: Vec<Option<BufReader<TcpStream>>>,
    options: Options,
}

impl Default for Options {
    fn default() -> Options {
        Options { token: None, timeout: Duration::from_secs(5) }
    }
}

impl Client {
    /// Servers are `host:port`, the same text in every client: a key's server is chosen by it.
    ///
    /// # Errors
    /// `Invalid` without servers.
    pub fn new(servers: &[&str], options: Options) -> Result<Client> {
        if servers.is_empty() {
            return Err(Error::Invalid(
                "no servers; wanted is at part_bytes_min one host:port".into(),
            ));
        }
        let names: Vec<String> = servers.iter().map(|&name| name.to_owned()).collect();
        let connections = names.iter().map(|_| None).collect();
        Ok(Client { names, connections, options })
    }

    /// What is there of a range.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn get(&mut self, key: &str, field: u8, range: Range, format: Format) -> Result<GetReply> {
        let question = GetRequest { key, field, range, format, part_bytes_min: None };
        self.get_many(&[question]).pop().unwrap_or_else(|| Err(unexpected("no answer")))
    }

    /// Answers to several questions, each server asked for some at a time; in the order of the questions.
    pub fn get_many(&mut self, questions: &[GetRequest<'_>]) -> Vec<Result<GetReply>> {
        let mut answers: Vec<Option<Result<GetReply>>> = questions.iter().map(|_| None).collect();
        for server in 0..self.names.len() {
            let own = questions.iter().enumerate().filter(|(_, question)| {
                self.names.len() == 1 || server_of(question.key, &self.names) == server
            });
            let own: Vec<(usize, &GetRequest<'_>)> = own.collect();
            for some in own.chunks(GETS_MAX) {
                let request: String = some.iter().map(|(_, question)| question.line()).collect();
                let got = self.exchange(server, request.as_bytes(), |connection| {
                    some.iter()
                        .map(|(_, question)| read_found(connection, question.range))
                        .collect()
                });
                match got {
                    Ok(got) => {
                        let got: Vec<Result<GetReply>> = got;
                        some.iter().zip(got).for_each(|((idx, _), one)| answers[*idx] = Some(one));
                    }
                    Err(error) => {
                        let again = |idx: &usize| answers[*idx].is_none();
                        let left: Vec<usize> = some.iter().map(|one| one.0).filter(again).collect();
                        for idx in left {
                            answers[idx] = Some(Err(Error::Unavailable(error.to_string(), None)));
                        }
                    }
                }
            }
        }
        let unasked = || Err(unexpected("no answer"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unasked)).collect()
    }

    /// Keeps all points of a range, in place of what was known of it. Says of which part they are kept: of the first
    /// of them, if there is not room for all, of none if there is none at all.
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

    /// Forgets a range. Says whether anything of the key was there.
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

    /// Sends a request and reads what comes back. A connection that broke since it was used last is opened anew once:
    /// nothing that is asked of a cache does harm when it is asked twice.
    fn exchange<T>(
        &mut self,
        server: usize,
        request: &[u8],
        read: impl Fn(&mut BufReader<TcpStream>) -> T,
    ) -> Result<T>
    where
        T: Outcome,
    {
        loop {
            let kept = self.connections[server].take();
            let is_fresh = kept.is_none();
            let mut connection = match kept {
                Some(connection) => connection,
                None => self.connect(server)?,
            };
            let sent = connection.get_mut().write_all(request);
            let outcome = match sent {
                Ok(()) => Ok(read(&mut connection)),
                Err(e) => Err(Error::Unavailable("cannot send a request".into(), Some(e))),
            };
            match outcome {
                Ok(outcome) if !outcome.is_broken() => {
                    self.connections[server] = Some(connection);
                    return Ok(outcome);
                }
                outcome if is_fresh => return outcome,
                _ => {}
            }
        }
    }

    fn connect(&self, server: usize) -> Result<BufReader<TcpStream>> {
        let (name, timeout) = (&self.names[server], self.options.timeout);
        let failed =
            |e: io::Error| Error::Unavailable(format!("cannot reach the cache at {name}"), Some(e));
        let address = name.to_socket_addrs().map_err(failed)?.next();
        let address = address.ok_or_else(|| Error::Invalid(format!("{name} is no host:port")))?;
        let stream = TcpStream::connect_timeout(&address, timeout).map_err(failed)?;
        stream.set_read_timeout(Some(timeout)).map_err(failed)?;
        stream.set_write_timeout(Some(timeout)).map_err(failed)?;
        // Requests are written whole; waiting for more would only delay them.
        stream.set_nodelay(true).map_err(failed)?;
        let mut connection = BufReader::new(stream);
        if let Some(token) = &self.options.token {
            connection
                .get_mut()
                .write_all(format!("auth {token}\r\n").as_bytes())
                .map_err(failed)?;
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
        // A key that is none is answered as such, in its turn.
        if checked(key, String::new()).is_ok() { line } else { "get\r\n".to_owned() }
    }
}

/// Points in [`Format::Binary`]; times must rise.
pub fn encode_points<'a>(points: impl IntoIterator<Item = (i64, &'a [u8])>) -> Vec<u8> {
    let mut out = Vec::new();
    for (time, value) in points {
        out.extend_from_slice(&time.to_le_bytes());
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(value);
    }
    out
}

/// The points in a value of [`Format::Binary`].
///
/// # Errors
/// `Unavailable` if it is none: the server has gone mad.
pub fn decode_points(mut value: &[u8]) -> Result<Vec<(i64, &[u8])>> {
    let mut points = Vec::new();
    while !value.is_empty() {
        let cut = || unexpected("a point that is cut short");
        let (time, rest) = value.split_first_chunk().ok_or_else(cut)?;
        let (len, rest) = rest.split_first_chunk().ok_or_else(cut)?;
        let len = u32::from_le_bytes(*len) as usize;
        let (bytes, rest) = rest.split_at_checked(len).ok_or_else(cut)?;
        points.push((i64::from_le_bytes(*time), bytes));
        value = rest;
    }
    Ok(points)
}

/// Whether the connection can be used after it.
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

fn read_line(connection: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    let read = connection.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
    let read = read.map_err(|e| Error::Unavailable("no answer".into(), Some(e)))?;
    if read == 0 || !line.ends_with('\n') {
        return Err(Error::Unavailable("the server closed the connection".into(), None));
    }
    line.truncate(line.trim_end_matches(['\r', '\n']).len());
    Ok(line)
}

fn read_found(connection: &mut BufReader<TcpStream>, asked: Range) -> Result<GetReply> {
    let line = read_line(connection)?;
    let words: Vec<&str> = line.split(' ').collect();
    let (missing, absent, bytes) = match words.as_slice() {
        ["NOT_FOUND"] => {
            return Ok(GetReply { missing: Some(asked), absent: Some(asked), value: Vec::new() });
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
    let mut value = vec![0; bytes.ok_or_else(|| unexpected(&line))? + 2];
    let read = connection.read_exact(&mut value);
    read.map_err(|e| Error::Unavailable("the answer broke off".into(), Some(e)))?;
    if !value.ends_with(b"\r\n") {
        return Err(unexpected("a value that is longer than its line says"));
    }
    value.truncate(value.len() - 2);
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
            "a key of {bytes} bytes; wanted are 1 to {KEY_BYTES_MAX} of 0x21 to 0x7e, as key_of makes them"
        )));
    }
    Ok(line.into_bytes())
}

fn refusal(answer: &str) -> Error {
    match answer.split_once(' ') {
        Some(("CLIENT_ERROR", what)) => Error::Invalid(what.to_owned()),
        Some(("SERVER_ERROR", what)) => Error::Server(what.to_owned()),
        _ => unexpected(answer),
    }
}

fn unexpected(what: &str) -> Error {
    Error::Unavailable(format!("the server says {what:?}, which is no answer"), None)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Invalid(what) | Error::Server(what) | Error::Unavailable(what, None) => {
                f.write_str(what)
            }
            Error::Unavailable(what, Some(source)) => write!(f, "{what}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Unavailable(_, Some(source)) => Some(source),
            _ => None,
        }
    }
}
