//! The file of the metrics' types and help texts. Its payload is opaque to the engine.
//!
//! One small file, replaced as a whole: a crash leaves the old one or the new one. Nothing depends
//! on it, so a damaged file is the same as none.

use firn_codec::frame::{FileFormat, HEADER_BYTES, open_block, seal_block};
use firn_env::{Disk, Env, OpenMode, copy_file};
use firn_model::{Error, ErrorKind, Result};

use crate::Engine;

const FORMAT: FileFormat = FileFormat { kind: *b"META", version: 1, oldest: 1 };
const FILE: &str = "metadata";
const NEW_FILE: &str = "metadata.new";
// Far above the limit of the server.
const FILE_BYTES_MAX: u64 = 128 << 20;

impl Engine {
    /// Replaces the stored metadata; durable on return.
    ///
    /// # Errors
    /// `Invalid` for a read-only database, `Unavailable` if the disk fails or is full; the old
    /// metadata is then kept.
    pub fn save_metadata(&self, payload: &[u8]) -> Result<()> {
        self.rooms.wakeup.check_open()?;
        save(&*self.rooms.env.disk, payload)
    }

    /// The stored metadata; `None` if none was stored.
    ///
    /// # Errors
    /// `Corrupt` if the file is damaged, `Invalid` for a newer version, `Unavailable`.
    pub fn load_metadata(&self) -> Result<Option<Vec<u8>>> {
        load(&*self.rooms.env.disk)
    }
}

/// Copies the file, if there is one.
pub(crate) fn copy(from: &Env, to: &Env) -> Result<()> {
    match copy_file(&*from.disk, &*to.disk, FILE) {
        Err(error) if *error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn save(disk: &dyn Disk, payload: &[u8]) -> Result<()> {
    let mut bytes = FORMAT.header().to_vec();
    bytes.reserve_exact(payload.len() + size_of::<u32>());
    bytes.extend_from_slice(payload);
    seal_block(HEADER_BYTES, &mut bytes);
    // A crash may have left one.
    match disk.remove(NEW_FILE) {
        Err(error) if *error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.open(NEW_FILE, OpenMode::Create)?;
    file.write_at(0, &bytes)?;
    file.sync()?;
    disk.rename(NEW_FILE, FILE)?;
    disk.sync_dir("")
}

fn load(disk: &dyn Disk) -> Result<Option<Vec<u8>>> {
    let file = match disk.open(FILE, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if *error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let len = file.len()?;
    let Some(len) = usize::try_from(len).ok().filter(|_| len <= FILE_BYTES_MAX) else {
        return Err(Error::corrupt(FILE, 0, format!("{len} bytes are too many for metadata")));
    };
    let mut bytes = vec![0; len];
    file.read_at(0, &mut bytes)?;
    FORMAT.check(FILE, &bytes)?;
    let block = bytes.get(HEADER_BYTES..).unwrap_or_default();
    Ok(Some(open_block(FILE, HEADER_BYTES as u64, block)?.to_vec()))
}

#[cfg(test)]
mod tests {
    use firn_sim::{Faults, SimDisk};

    use super::*;

    #[test]
    fn metadata_comes_back_and_damage_is_found() {
        let disk = SimDisk::new(Faults::new(1));
        assert_eq!(load(&disk).unwrap(), None);
        save(&disk, b"first").unwrap();
        // As a crash leaves it.
        disk.open(NEW_FILE, OpenMode::Create).unwrap();
        save(&disk, b"second").unwrap();
        disk.crash();
        disk.restart();
        assert_eq!(load(&disk).unwrap().as_deref(), Some(&b"second"[..]));
        let file = disk.open(FILE, OpenMode::Write).unwrap();
        file.write_at(HEADER_BYTES as u64, b"S").unwrap();
        let error = load(&disk).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
    }
}
