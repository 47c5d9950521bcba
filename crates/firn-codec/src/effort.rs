//! The effort of an encoder.

/// The encoder's trade of time for size. One decoder reads the result of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// For static runs of the head, which live for minutes.
    Fast,
    /// For tables.
    Small,
}
