//! From the operating system's errors to the boundary error: what the caller can do about it.

use std::io;
use std::path::Path;

use firn_model::{Error, ErrorKind};

/// `verb` is what was tried, as in "cannot {verb} /data/log/0/1.log".
pub(crate) fn io_error(verb: &str, path: &Path, error: io::Error) -> Error {
    let what = format!("cannot {verb} {}", path.display());
    let boundary = match error.kind() {
        io::ErrorKind::NotFound => Error::not_found(what),
        io::ErrorKind::AlreadyExists => Error::new(ErrorKind::Conflict, what),
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => Error::invalid(what),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Error::unavailable(format!("{what}: the disk is full, make room or move the folder"))
        }
        io::ErrorKind::PermissionDenied => Error::unavailable(format!(
            "{what}: not allowed, give this user the right to read and write there"
        )),
        _ => Error::unavailable(what),
    };
    boundary.because(error)
}
