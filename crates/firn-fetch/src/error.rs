//! Why a request has no usable answer.

use std::fmt;

use firn_model::Error;

use crate::outgoing::Purpose;
use crate::sent_secrets::SentSecrets;

/// The failure of a request. Shown texts are those of Prometheus where it has one.
#[derive(Debug)]
pub enum FetchError {
    /// The unpacked body reached its limit.
    BodyLimit,
    /// The time limit passed.
    Timeout,
    /// The time limit passed while all connections for the purpose were in use.
    NoConnection(Purpose),
    /// There is no memory for the body.
    Memory(Error),
    /// A secret, certificate or key cannot be used.
    Credentials(String),
    /// No answer, or a malformed one.
    Transport(String),
}

impl FetchError {
    pub(crate) fn transport(what: &str, error: impl fmt::Display) -> FetchError {
        FetchError::Transport(format!("{what}: {error}"))
    }

    /// The same error without credentials, which a server may have repeated.
    pub(crate) fn without(self, secrets: &SentSecrets) -> FetchError {
        match self {
            FetchError::Transport(text) => FetchError::Transport(secrets.hide_text(&text)),
            error => error,
        }
    }
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchError::BodyLimit => f.write_str("body size limit exceeded"),
            FetchError::Timeout => f.write_str("context deadline exceeded"),
            FetchError::NoConnection(purpose) => write!(
                f,
                "context deadline exceeded: no connection was free (at most {} for {purpose}); \
                 raise the limit of open files (ulimit -n)",
                purpose.connections_max()
            ),
            FetchError::Memory(error) => error.fmt(f),
            FetchError::Credentials(text) | FetchError::Transport(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for FetchError {}

impl From<Error> for FetchError {
    /// Errors of files that the configuration names.
    fn from(error: Error) -> FetchError {
        FetchError::Credentials(error.to_string())
    }
}

/// An error with those behind it: hyper shows only the outermost.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
