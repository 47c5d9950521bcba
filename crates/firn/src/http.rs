//! One GET request to a running server, with TLS and a login if it has them.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use firn_cache_client::{Connection, Tls, TlsOptions};
use firn_server::given_file::read_text_once;
use firn_server::{Error, Result, Secret, redacted};

use crate::output;

const TIMEOUT: Duration = Duration::from_secs(150);
/// Longest response: a report of 10,000 groups has some megabytes.
const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// Bytes of a response that is no HTTP, in the error.
const START_BYTES: usize = 200;
/// Time for all parts of a response, each of which has [`TIMEOUT`].
const RESPONSE_TIME_MAX: Duration = Duration::from_secs(300);

/// How a command reaches a running server: the same flags for all commands.
#[derive(Debug, Args)]
pub(crate) struct ServerAccess {
    /// File with the credentials in its first line: a token, or a user and a password as
    /// USER:PASSWORD
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    credentials_file: Option<PathBuf>,

    /// Token; other users of the machine see it in the list of processes, unlike that of
    /// --credentials-file or of the variable FIRN_TOKEN
    #[arg(long, value_name = "TOKEN")]
    token: Option<Secret>,

    /// File with the certificates of the authorities that may sign the server's certificate,
    /// instead of those of the system
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,

    /// File with a certificate and its key, both in PEM form, that the server demands from clients
    #[arg(long, value_name = "FILE")]
    identity_file: Option<PathBuf>,
}

/// A server that commands send requests to.
#[derive(Debug)]
pub(crate) struct RemoteServer {
    /// `host:port`.
    address: String,
    tls: Option<Tls>,
    /// The value of the header `Authorization`.
    authorization: Option<Secret>,
}

impl ServerAccess {
    /// The server at `server`: `HOST:PORT`, or a URL. `variables` may contain its token.
    ///
    /// # Errors
    /// `Invalid` for an address of another form and for files that cannot be used.
    pub(crate) fn server(&self, server: &str, variables: &[&str]) -> Result<RemoteServer> {
        let wrong = |what: &str| {
            let got = redacted(server);
            Err(Error::invalid(format!("--server: expected {what}, got {got:?}")))
        };
        let needs_tls = self.ca_file.is_some() || self.identity_file.is_some();
        let (has_tls, address) = match server.split_once("://") {
            Some(("https", address)) => (true, address),
            Some(("http", _)) if needs_tls => return wrong("https:// with the files of TLS"),
            Some(("http", address)) => (false, address),
            Some(_) => return wrong("HOST:PORT, http://HOST:PORT or https://HOST:PORT"),
            None => (needs_tls, server),
        };
        let address = address.trim_end_matches('/');
        if address.contains('@') {
            return wrong("no user and password (use --credentials-file)");
        }
        if address.rsplit_once(':').is_none_or(|(host, _)| host.is_empty()) {
            return wrong("HOST:PORT such as 127.0.0.1:9420");
        }
        let options =
            TlsOptions { ca_file: self.ca_file.clone(), identity_file: self.identity_file.clone() };
        let tls = has_tls.then(|| Tls::open(&options)).transpose();
        let tls = tls.map_err(|e| Error::invalid(format!("TLS of --server: {e}")))?;
        let credentials = self.credentials(variables)?;
        let authorization = credentials.as_ref().map(|one| authorization(one.expose()));
        let authorization = authorization.transpose()?.map(Secret::new);
        Ok(RemoteServer { address: address.to_owned(), tls, authorization })
    }

    fn credentials(&self, variables: &[&str]) -> Result<Option<Secret>> {
        if let Some(path) = &self.credentials_file {
            return read_credentials(path).map(Some);
        }
        if let Some(token) = &self.token {
            output::report_warnings(&[
                "--token: the list of processes shows it to other users; use --credentials-file or \
                 the variable FIRN_TOKEN"
                    .to_owned(),
            ]);
            return Ok(Some(Secret::new(token.expose().to_owned())));
        }
        let found = variables.iter().find_map(|name| std::env::var(name).ok());
        Ok(found.filter(|text| !text.is_empty()).map(Secret::new))
    }
}

impl RemoteServer {
    /// Body of the response to `GET target`, whatever its status.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached, does not respond in time, or responds with
    /// no HTTP.
    pub(crate) fn get(&self, target: &str) -> Result<Vec<u8>> {
        let address = &self.address;
        let shown = redacted(address);
        let mut connection =
            Connection::open(address, self.tls.as_ref(), TIMEOUT).map_err(|e| {
                let remark = match self.tls {
                    None => "is it running?",
                    Some(_) => "is it running with TLS, with a certificate for this name?",
                };
                let what = format!("cannot reach the server at {shown}; {remark}");
                Error::unavailable(what).because(e)
            })?;
        // It runs.
        let failed = |e: io::Error| {
            Error::unavailable(format!("the request to the server at {shown} failed")).because(e)
        };
        let authorization = self.authorization.as_ref();
        let authorization = authorization
            .map(|value| format!("Authorization: {}\r\n", value.expose()))
            .unwrap_or_default();
        // Version 1.0: the response ends with the connection and has no chunks.
        let request = format!("GET {target} HTTP/1.0\r\nHost: {address}\r\n{authorization}\r\n");
        connection.write_all(request.as_bytes()).map_err(failed)?;
        connection.flush().map_err(failed)?;
        let response = read_response(&mut connection, RESPONSE_TIME_MAX).map_err(failed)?;
        body(response).map_err(|error| error.context(format!("the server at {shown}")))
    }
}

/// The body of a response, whatever its status.
fn body(mut response: Vec<u8>) -> Result<Vec<u8>> {
    let body_start = response.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
    match body_start.filter(|_| response.starts_with(b"HTTP/")) {
        Some(start) => Ok(response.split_off(start)),
        None => {
            let start = String::from_utf8_lossy(response.get(..START_BYTES).unwrap_or(&response));
            let what = format!("expected a response of HTTP, got {:?}", start.trim());
            Err(Error::unavailable(what))
        }
    }
}

/// All bytes until the end of the connection.
fn read_response(connection: &mut impl Read, time_max: Duration) -> io::Result<Vec<u8>> {
    let (mut response, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    let begun = Instant::now();
    loop {
        let read = match connection.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        response.extend_from_slice(&buffer[..read]);
        if read == 0 {
            return Ok(response);
        }
        let endless = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        if response.len() > RESPONSE_BYTES_MAX {
            return endless(format!("its response has more than {RESPONSE_BYTES_MAX} bytes"));
        }
        if begun.elapsed() > time_max {
            return endless(format!("its response takes more than {} s", time_max.as_secs()));
        }
    }
}

fn read_credentials(path: &Path) -> Result<Secret> {
    let shown = path.display();
    let text = read_text_once(path, "--credentials-file")?;
    let line = text.lines().next().unwrap_or_default().trim();
    if line.is_empty() {
        let what = format!(
            "--credentials-file {shown}: expected a token or USER:PASSWORD in its first line"
        );
        return Err(Error::invalid(what));
    }
    Ok(Secret::new(line.to_owned()))
}

/// The header of a token, or of `user:password`.
fn authorization(credentials: &str) -> Result<String> {
    if credentials.contains(':') {
        return Ok(format!("Basic {}", firn_server::wire::base64::base64(credentials.as_bytes())));
    }
    if !credentials.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::invalid("a token has characters from ! to ~ only"));
    }
    Ok(format!("Bearer {credentials}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The remark sent the operator of a running server to look for one that does not run.
    #[test]
    fn only_an_unreachable_server_may_not_be_running() {
        use std::net::{Shutdown, TcpListener};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = RemoteServer { address, tls: None, authorization: None };
        for (response, wanted) in [
            (&b"SSH-2.0-x\r\n"[..], "expected a response of HTTP, got \"SSH-2.0-x\""),
            (b"", "expected a response of HTTP, got \"\""),
            (b"HTTP/1.1 200 OK\r\n", "expected a response of HTTP, got \"HTTP/1.1 200 OK\""),
            (b"x\r\n\r\n{}", "expected a response of HTTP, got \"x\\r\\n\\r\\n{}\""),
        ] {
            let error = std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut stream, _) = listener.accept().unwrap();
                    let _ = stream.read(&mut [0; 4_096]).unwrap();
                    stream.write_all(response).unwrap();
                    stream.shutdown(Shutdown::Write).unwrap();
                });
                server.get("/").unwrap_err().to_string()
            });
            assert_eq!(error, format!("the server at {}: {wanted}", server.address));
        }
        drop(listener);
        let error = server.get("/").unwrap_err().to_string();
        assert!(error.contains("is it running?"), "{error}");
    }

    /// Before, the memory of the command grew until the system ended it.
    #[test]
    fn an_endless_response_ends() {
        let error = read_response(&mut io::repeat(b'x'), TIMEOUT).unwrap_err();
        assert!(error.to_string().contains("more than 67108864 bytes"), "{error}");
        let error = read_response(&mut io::repeat(b'x'), Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("more than 0 s"), "{error}");
        assert_eq!(read_response(&mut &b"short"[..], TIMEOUT).unwrap(), b"short");
    }
}
