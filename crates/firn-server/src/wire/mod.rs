//! Wire formats: pure functions between bytes and the server's types. No I/O, no state.

pub mod base64;
pub mod crc32c;
pub mod decoded;
pub mod exposition;
pub mod federation;
pub mod groups;
pub mod json;
mod json_reader;
pub mod number;
pub mod query_stats;
pub mod relabel;
pub mod remote_read;
pub mod remote_write;
pub mod snappy;
pub(crate) mod transaction;
pub mod tree;
pub mod xor_chunk;

use firn_model::{Error, Result};

/// Why the labels of a series could not be parsed.
#[derive(Debug)]
pub enum LabelFault {
    /// The bytes violate the protocol: the whole request is refused.
    Malformed(Error),
    /// This series breaks a rule: it is skipped and named in the response.
    Refused(Error),
}

impl From<Error> for LabelFault {
    fn from(error: Error) -> LabelFault {
        LabelFault::Malformed(error)
    }
}

/// `bytes` as text, or a fault that shows its readable part.
pub(crate) fn utf8<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a str, LabelFault> {
    std::str::from_utf8(bytes).map_err(|e| {
        let shown = String::from_utf8_lossy(bytes.get(..bytes.len().min(64)).unwrap_or(bytes));
        LabelFault::Refused(Error::invalid(format!("{what} {shown:?} is not UTF-8")).because(e))
    })
}
