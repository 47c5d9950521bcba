//! The effort of an encoder.

/// The encoder's trade-off between time and size. One decoder reads the results of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// For static runs of the head, which live for minutes.
    Fast,
    /// For tables.
    Small,
}
