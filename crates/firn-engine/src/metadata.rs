//! The file of the metrics' types and help texts.

use firn_codec::frame::FileFormat;
use firn_env::{Env, copy_file};
use firn_model::{ErrorKind, Result};

use crate::Engine;
use crate::kept_file::KeptFile;

const NAME: &str = "metadata";
const FILE: KeptFile = KeptFile {
    format: FileFormat { kind: *b"META", version: 1, oldest: 1 },
    // Far above the limit of the server.
    bytes_max: 128 << 20,
};

impl Engine {
    /// Replaces the stored metadata; durable on return.
    ///
    /// # Errors
    /// `Invalid` for a read-only database, `Unavailable` if the disk fails or is full; the old
    /// metadata is then kept.
    pub fn save_metadata(&self, payload: &[u8]) -> Result<()> {
        self.rooms.wakeup.check_open()?;
        FILE.save(&*self.rooms.env.disk, "", NAME, payload)
    }

    /// The stored metadata; `None` if none was stored.
    ///
    /// # Errors
    /// `Corrupt` if the file is damaged, `Invalid` for a newer version, `Unavailable`.
    pub fn load_metadata(&self) -> Result<Option<Vec<u8>>> {
        FILE.load(&*self.rooms.env.disk, "", NAME, |_| Ok(()))
    }
}

/// Copies the file, if there is one.
pub(crate) fn copy(from: &Env, to: &Env) -> Result<()> {
    match copy_file(&*from.disk, &*to.disk, NAME) {
        Err(error) if *error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
