//! The errors of the client.

use std::{fmt, io};

/// Why a request failed. A caller with a database then computes the points.
#[derive(Debug)]
pub enum Error {
    /// The request is invalid, according to the server or this client.
    Invalid(String),
    /// The server cannot serve the request now; its message.
    Server(String),
    /// The server cannot be reached, or does not follow the protocol.
    Unavailable(String, Option<io::Error>),
}

/// The result of a request.
pub type Result<T> = std::result::Result<T, Error>;

/// The error of a response that refuses the request.
pub(crate) fn refusal(answer: &str) -> Error {
    match answer.split_once(' ') {
        Some(("CLIENT_ERROR", message)) => Error::Invalid(shown(message).to_owned()),
        Some(("SERVER_ERROR", message)) => Error::Server(shown(message).to_owned()),
        _ => unexpected(answer),
    }
}

/// The error of a response that the protocol does not have.
pub(crate) fn unexpected(response: &str) -> Error {
    let response = shown(response);
    Error::Unavailable(
        format!("unexpected response of the cache: {response:?}; is it a firn cache server?"),
        None,
    )
}

/// The start of a server's text: a line may have 64 KiB.
fn shown(text: &str) -> &str {
    const SHOWN_BYTES_MAX: usize = 512;
    text.get(..text.floor_char_boundary(SHOWN_BYTES_MAX)).unwrap_or(text)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Invalid(message)
            | Error::Server(message)
            | Error::Unavailable(message, None) => f.write_str(message),
            Error::Unavailable(message, Some(source)) => write!(f, "{message}: {source}"),
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
