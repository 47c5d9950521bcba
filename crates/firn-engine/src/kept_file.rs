//! Small files that are replaced as a whole. Their payloads are opaque to the engine.
//!
//! A crash leaves the old file or the new one. Nothing depends on these files, so a damaged one is
//! the same as none.

use firn_codec::frame::{FileFormat, HEADER_BYTES, open_block, seal_block};
use firn_env::{Disk, OpenMode};
use firn_model::{Error, ErrorKind, Result};

/// A kind of file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptFile {
    pub(crate) format: FileFormat,
    /// A longer file is damaged.
    pub(crate) bytes_max: u64,
}

impl KeptFile {
    /// Replaces the file `name` in `folder`, which exists; `""` is the root. Durable on return.
    pub(crate) fn save(
        &self,
        disk: &dyn Disk,
        folder: &str,
        name: &str,
        payload: &[u8],
    ) -> Result<()> {
        let mut bytes = self.format.header().to_vec();
        bytes.reserve_exact(payload.len() + size_of::<u32>());
        bytes.extend_from_slice(payload);
        seal_block(HEADER_BYTES, &mut bytes);
        let (path, new_path) = (path(folder, name), path(folder, &format!("{name}.new")));
        // A crash may have left one.
        remove_if_present(disk, &new_path)?;
        let file = disk.open(&new_path, OpenMode::Create)?;
        file.write_at(0, &bytes)?;
        file.sync()?;
        disk.rename(&new_path, &path)?;
        disk.sync_dir(folder)
    }

    /// The payload of the file `name` in `folder`, `None` without one. `reserve` reserves the
    /// memory of that many bytes first.
    pub(crate) fn load(
        &self,
        disk: &dyn Disk,
        folder: &str,
        name: &str,
        reserve: impl FnOnce(u64) -> Result<()>,
    ) -> Result<Option<Vec<u8>>> {
        let path = path(folder, name);
        let file = match disk.open(&path, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if *error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let len = file.len()?;
        let Some(count) = usize::try_from(len).ok().filter(|_| len <= self.bytes_max) else {
            let most = self.bytes_max;
            return Err(Error::corrupt(path, 0, format!("{len} bytes, expected at most {most}")));
        };
        reserve(len)?;
        let mut bytes = vec![0; count];
        file.read_at(0, &mut bytes)?;
        self.format.check(&path, &bytes)?;
        let block = bytes.get(HEADER_BYTES..).unwrap_or_default();
        let payload_len = open_block(&path, HEADER_BYTES as u64, block)?.len();
        bytes.drain(..HEADER_BYTES);
        bytes.truncate(payload_len);
        Ok(Some(bytes))
    }
}

/// Removes a file, if there is one.
pub(crate) fn remove_if_present(disk: &dyn Disk, path: &str) -> Result<()> {
    match disk.remove(path) {
        Err(error) if *error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn path(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

#[cfg(test)]
mod tests {
    use firn_sim::{Faults, SimDisk};

    use super::*;

    const FILE: KeptFile = KeptFile {
        format: FileFormat { kind: *b"TEST", version: 1, oldest: 1 },
        bytes_max: 1 << 10,
    };

    fn load(disk: &dyn Disk) -> Result<Option<Vec<u8>>> {
        FILE.load(disk, "", "kept", |_| Ok(()))
    }

    #[test]
    fn a_payload_comes_back_and_damage_is_found() {
        let disk = SimDisk::new(Faults::new(1));
        assert_eq!(load(&disk).unwrap(), None);
        FILE.save(&disk, "", "kept", b"first").unwrap();
        // As a crash leaves it.
        disk.open("kept.new", OpenMode::Create).unwrap();
        FILE.save(&disk, "", "kept", b"second").unwrap();
        disk.crash();
        disk.restart();
        assert_eq!(load(&disk).unwrap().as_deref(), Some(&b"second"[..]));
        let file = disk.open("kept", OpenMode::Write).unwrap();
        file.write_at(HEADER_BYTES as u64, b"S").unwrap();
        let error = load(&disk).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
    }

    #[test]
    fn a_long_file_is_refused_before_its_memory_is_reserved() {
        let disk = SimDisk::new(Faults::new(1));
        FILE.save(&disk, "", "kept", &[0; 1 << 10]).unwrap();
        let error = FILE.load(&disk, "", "kept", |_| panic!("reserved")).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt { .. }), "{error}");
        FILE.save(&disk, "", "kept", b"short").unwrap();
        let refused = FILE.load(&disk, "", "kept", |_| Err(Error::busy(1, "no memory")));
        assert!(matches!(refused.unwrap_err().kind(), ErrorKind::Busy { .. }));
    }
}
