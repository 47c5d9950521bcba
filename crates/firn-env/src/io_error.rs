//! Conversion of operating system errors to the boundary error.

use std::io;
use std::path::Path;

use firn_model::{Error, ErrorKind};

/// Builds "cannot {verb} {path}" with the kind for the system's error.
pub(crate) fn io_error(verb: &str, path: &Path, error: io::Error) -> Error {
    let action = format!("cannot {verb} {}", path.display());
    let boundary = match error.kind() {
        io::ErrorKind::NotFound => Error::not_found(action),
        io::ErrorKind::AlreadyExists => Error::new(ErrorKind::Conflict, action),
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => Error::invalid(action),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Error::unavailable(format!("{action}: the disk is full; free space or move the folder"))
        }
        io::ErrorKind::FileTooLarge => Error::unavailable(format!(
            "{action}: the file is at the limit of its size; raise the limit (ulimit -f, \
             LimitFSIZE) or move the folder to another file system"
        )),
        io::ErrorKind::PermissionDenied => Error::unavailable(format!(
            "{action}: permission denied; allow this user to read and write there"
        )),
        io::ErrorKind::NotADirectory => Error::unavailable(format!(
            "{action}: it, or a folder of its path, is a file, expected a folder; move it away"
        )),
        io::ErrorKind::IsADirectory => {
            Error::unavailable(format!("{action}: it is a folder, expected a file; move it away"))
        }
        _ if error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => {
            Error::unavailable(format!("{action}: raise the limit on open files (ulimit -n)"))
        }
        _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            Error::unavailable(format!("{action}: it is a symbolic link, or links form a loop"))
        }
        _ => Error::unavailable(action),
    };
    boundary.because(error)
}
