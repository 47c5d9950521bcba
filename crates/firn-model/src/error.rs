//! The one error type that crosses room boundaries. Its kind is the action that the caller can
//! take.

use std::fmt;

/// `std::result::Result` with the boundary [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The action that the caller can take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The input is wrong and will stay wrong: fix it.
    Invalid,
    /// The input is over a limit: make it smaller or raise the limit.
    TooLarge,
    /// The named object does not exist.
    NotFound,
    /// A transaction conflicted with another one: retry it.
    Conflict,
    /// Over capacity for now: retry after a while.
    Busy {
        /// Estimated time after which a retry can succeed.
        retry_after_ms: u64,
    },
    /// A limit refuses new series; known series are still written. Raise the limit or send fewer
    /// label sets.
    SeriesLimit {
        /// The limit that was reached.
        limit: SeriesLimit,
        /// Estimated time after which there may be room.
        retry_after_ms: u64,
    },
    /// An external service is down or full: retry later.
    Unavailable,
    /// Stored bytes do not match their checksum or their format.
    Corrupt {
        /// File or object.
        file: String,
        /// Byte offset in the file.
        offset: u64,
    },
    /// The caller cancelled the request.
    Canceled,
    /// The request's time limit expired.
    Timeout,
    /// The database is shutting down, or a writer is poisoned until the database is reopened.
    Closed,
    /// A bug.
    Internal,
}

/// The limits on new series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesLimit {
    /// Number of all series.
    Total,
    /// Series of one metric name.
    PerMetric,
    /// Members of groups with the same labels.
    PerGroup,
    /// New series per second.
    PerSecond,
}

impl SeriesLimit {
    /// Every limit, in declaration order.
    pub const ALL: [SeriesLimit; 4] =
        [SeriesLimit::Total, SeriesLimit::PerMetric, SeriesLimit::PerGroup, SeriesLimit::PerSecond];

    /// The limit's name in counters and messages.
    pub fn name(self) -> &'static str {
        match self {
            SeriesLimit::Total => "series_max",
            SeriesLimit::PerMetric => "series_per_metric_max",
            SeriesLimit::PerGroup => "series_per_group_max",
            SeriesLimit::PerSecond => "new_series_per_second_max",
        }
    }
}

/// A kind, one sentence that names the object and its position, and the cause.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    what: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of `kind`. `what` is one sentence that names the failure, its place, and the fix.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, what: what.into(), source: None }))
    }

    /// The input is wrong.
    pub fn invalid(what: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, what)
    }

    /// The input is over a limit.
    pub fn too_large(what: impl Into<String>) -> Error {
        Error::new(ErrorKind::TooLarge, what)
    }

    /// The named object does not exist.
    pub fn not_found(what: impl Into<String>) -> Error {
        Error::new(ErrorKind::NotFound, what)
    }

    /// Over capacity; retry after `retry_after_ms`.
    pub fn busy(retry_after_ms: u64, what: impl Into<String>) -> Error {
        Error::new(ErrorKind::Busy { retry_after_ms }, what)
    }

    /// An external service is down or full.
    pub fn unavailable(what: impl Into<String>) -> Error {
        Error::new(ErrorKind::Unavailable, what)
    }

    /// The bytes of `file` at `offset` do not have the expected format or checksum.
    pub fn corrupt(file: impl Into<String>, offset: u64, what: impl Into<String>) -> Error {
        Error::new(ErrorKind::Corrupt { file: file.into(), offset }, what)
    }

    /// The database is closed or a writer is poisoned.
    pub fn closed(what: impl Into<String>) -> Error {
        Error::new(ErrorKind::Closed, what)
    }

    /// A bug.
    pub fn internal(what: impl Into<String>) -> Error {
        Error::new(ErrorKind::Internal, what)
    }

    /// The same error with its cause.
    pub fn because(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.0.source = Some(Box::new(source));
        self
    }

    /// The same error with `context` before its sentence: `context: sentence`.
    pub fn context(mut self, context: impl fmt::Display) -> Error {
        self.0.what = format!("{context}: {}", self.0.what);
        self
    }

    /// The action that the caller can take.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The sentence, without position and cause.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Whether a later retry of the same call can succeed.
    pub fn is_retriable(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::Busy { .. }
                | ErrorKind::SeriesLimit { .. }
                | ErrorKind::Unavailable
                | ErrorKind::Conflict
        )
    }
}

/// The text of `error` in messages that are those of Prometheus: an error of the system begins with
/// a small letter and has no number, as in `connection refused`.
pub fn system_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    let Some(number) = error.raw_os_error() else { return text };
    let text = text.strip_suffix(&format!(" (os error {number})")).unwrap_or(&text);
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |c| c.to_lowercase().chain(chars).collect())
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let ErrorKind::Corrupt { file, offset } = &self.0.kind {
            write!(f, "{file} at byte {offset}: ")?;
        }
        f.write_str(&self.0.what)?;
        if let Some(source) = &self.0.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
