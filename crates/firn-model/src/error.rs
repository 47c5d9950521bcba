//! The one error that crosses a boundary. Its kind is what the caller can do about it.

use std::fmt;

/// `std::result::Result` with the boundary [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do about an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The input is wrong and will stay wrong: fix it.
    Invalid,
    /// The input is over a limit: make it smaller or raise the limit.
    TooLarge,
    /// What was named does not exist.
    NotFound,
    /// A transaction lost a race: retry it.
    Conflict,
    /// Over capacity for now: retry after a while.
    Busy {
        /// A guess at when it makes sense to come back.
        retry_after_ms: u64,
    },
    /// New series are refused by a limit; known ones go on: raise the limit or send fewer label sets.
    SeriesLimit {
        /// Which one.
        limit: SeriesLimit,
        /// A guess at when there may be room.
        retry_after_ms: u64,
    },
    /// Something outside is down or full: retry later.
    Unavailable,
    /// Stored bytes do not match their checksum or their format.
    Corrupt {
        /// Which file or object.
        file: String,
        /// Where in it.
        offset: u64,
    },
    /// The caller gave up.
    Canceled,
    /// The time given for it was over.
    Timeout,
    /// The database is shutting down or a writer is poisoned until it is reopened.
    Closed,
    /// A bug.
    Internal,
}

/// The limits on new series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesLimit {
    /// Series in all.
    Total,
    /// Series of one metric name.
    PerMetric,
    /// Members of groups with the same labels.
    PerGroup,
    /// New series per second.
    PerSecond,
}

impl SeriesLimit {
    /// Every limit, in the order of their numbers.
    pub const ALL: [SeriesLimit; 4] =
        [SeriesLimit::Total, SeriesLimit::PerMetric, SeriesLimit::PerGroup, SeriesLimit::PerSecond];

    /// A word for it, as counters and messages use it.
    pub fn name(self) -> &'static str {
        match self {
            SeriesLimit::Total => "series_max",
            SeriesLimit::PerMetric => "series_per_metric_max",
            SeriesLimit::PerGroup => "series_per_group_max",
            SeriesLimit::PerSecond => "new_series_per_second_max",
        }
    }
}

/// A kind, one sentence of what and where, and the cause below.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    what: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; `what` is one sentence that names what, where, and what to do.
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

    /// What was named does not exist.
    pub fn not_found(what: impl Into<String>) -> Error {
        Error::new(ErrorKind::NotFound, what)
    }

    /// Over capacity; come back after `retry_after_ms`.
    pub fn busy(retry_after_ms: u64, what: impl Into<String>) -> Error {
        Error::new(ErrorKind::Busy { retry_after_ms }, what)
    }

    /// Something outside is down or full.
    pub fn unavailable(what: impl Into<String>) -> Error {
        Error::new(ErrorKind::Unavailable, what)
    }

    /// Bytes of `file` at `offset` are not what they should be.
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

    /// The same error with `context` put before its sentence: `context: sentence`.
    pub fn context(mut self, context: impl fmt::Display) -> Error {
        self.0.what = format!("{context}: {}", self.0.what);
        self
    }

    /// What the caller can do.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The sentence without position and cause.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// Whether trying the same again later can help.
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
