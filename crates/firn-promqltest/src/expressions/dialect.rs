//! The versions of the language, and the versions that have a function.

/// A version of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// The subset that Prometheus 2.42 supports, with current names: its `holt_winters` is our
    /// `double_exponential_smoothing`.
    V2,
    /// The current language.
    V3,
}

/// The Prometheus versions that have a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Availability {
    Always,
    V3,
}

impl Availability {
    pub(super) fn is_in(self, dialect: Dialect) -> bool {
        match self {
            Self::Always => true,
            Self::V3 => dialect == Dialect::V3,
        }
    }
}
