//! Copies immutable files and objects: by a hard link if both sides are folders of one file system,
//! otherwise byte by byte.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use firn_model::{Error, Result};

use crate::io_error::io_error;
use crate::local::{make_dirs, sync_dir};
use crate::{Bucket, Disk, DiskPath, OpenMode, PutMode, RangeRequest, check_key};

// Large enough that the system call costs little compared with the copy.
const PIECE_BYTES: usize = 1 << 20;

/// Copies a file that is not written again. Its folder must exist in `target`, its name must not.
/// On return the bytes are durable; the name is durable after [`Disk::sync_dir`]. A hard link
/// shares the bytes on the device; each name can be removed without the other.
///
/// # Errors
/// `NotFound` without the file, `Unavailable` when a disk fails or is full, with the path.
pub fn copy_file(source: &dyn Disk, target: &dyn Disk, path: &DiskPath) -> Result<()> {
    if let (Some(source), Some(target)) = (source.folder(), target.folder())
        && link(&source.join(path), &target.join(path))?
    {
        return Ok(());
    }
    let from = source.open(path, OpenMode::Read)?;
    let to = target.open(path, OpenMode::Create)?;
    let bytes = from.len()?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let len = (bytes - offset).min(PIECE_BYTES as u64) as usize;
        from.read_at(offset, &mut piece[..len])?;
        to.write_at(offset, &piece[..len])?;
        offset += len as u64;
    }
    to.sync()
}

/// Copies an object of `bytes` that is never replaced; durable on return. Holds the object in
/// memory unless both buckets are folders of one file system.
///
/// # Errors
/// `NotFound` without the object, `Conflict` if `target` has the key, `Unavailable`; with the key.
pub fn copy_object(source: &dyn Bucket, target: &dyn Bucket, key: &str, bytes: u64) -> Result<()> {
    check_key(key)?;
    if let (Some(source), Some(target)) = (source.folder(), target.folder()) {
        let target = target.join(key);
        let folder = target.parent().unwrap_or(&target);
        make_dirs(folder)?;
        if link(&source.join(key), &target)? {
            return sync_dir(folder);
        }
    }
    let request = RangeRequest { key: key.to_owned(), offset: 0, len: bytes };
    let read = source.get_ranges(&[request]).pop();
    let body: Arc<[u8]> = read.unwrap_or_else(|| Err(Error::internal("a range has no result")))?;
    target.put(key, body, PutMode::Create).map(|_| ())
}

/// Creates a hard link; `false` if the file system cannot, for example across file systems.
fn link(source: &Path, target: &Path) -> Result<bool> {
    match fs::hard_link(source, target) {
        Ok(()) => Ok(true),
        Err(error) => match error.kind() {
            io::ErrorKind::CrossesDevices
            | io::ErrorKind::Unsupported
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::TooManyLinks => Ok(false),
            _ => Err(io_error("link", source, error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FolderBucket, LocalDisk};

    /// Hides the folder of a bucket, so that copies are made byte by byte.
    #[derive(Debug)]
    struct Unlinkable<T>(T);

    impl Bucket for Unlinkable<FolderBucket> {
        fn get_ranges(&self, requests: &[RangeRequest]) -> Vec<Result<Arc<[u8]>>> {
            self.0.get_ranges(requests)
        }
        fn put(&self, key: &str, bytes: Arc<[u8]>, mode: PutMode) -> Result<crate::ObjectInfo> {
            self.0.put(key, bytes, mode)
        }
        fn head(&self, key: &str) -> Result<crate::ObjectInfo> {
            self.0.head(key)
        }
        fn list(&self, prefix: &str) -> Result<Vec<crate::ObjectInfo>> {
            self.0.list(prefix)
        }
        fn delete(&self, keys: &[String]) -> Result<()> {
            self.0.delete(keys)
        }
    }

    #[test]
    fn a_copied_file_outlives_its_source() {
        let folder = tempfile::tempdir().unwrap();
        let source = LocalDisk::open(folder.path().join("a")).unwrap();
        let target = LocalDisk::open(folder.path().join("b")).unwrap();
        let bytes: Vec<u8> = (0..PIECE_BYTES + 7).map(|idx| idx as u8).collect();
        source.create_dir("x").unwrap();
        target.create_dir("x").unwrap();
        source.open("x/1", OpenMode::Create).unwrap().write_at(0, &bytes).unwrap();
        copy_file(&source, &target, "x/1").unwrap();
        source.remove("x/1").unwrap();
        let mut copied = vec![0; bytes.len()];
        target.open("x/1", OpenMode::Read).unwrap().read_at(0, &mut copied).unwrap();
        assert_eq!(copied, bytes);
        assert!(copy_file(&source, &target, "x/2").is_err());
    }

    #[test]
    fn a_copied_object_outlives_its_source() {
        let folder = tempfile::tempdir().unwrap();
        let bucket = |name: &str| FolderBucket::open(folder.path().join(name)).unwrap();
        let source = bucket("a");
        let targets: [Box<dyn Bucket>; 2] =
            [Box::new(bucket("b")), Box::new(Unlinkable(bucket("c")))];
        source.put("t/1", Arc::from(*b"object"), PutMode::Create).unwrap();
        for target in &targets {
            copy_object(&source, &**target, "t/1", 6).unwrap();
            assert!(copy_object(&source, &**target, "t/1", 6).is_err(), "it is there");
        }
        source.delete(&["t/1".to_owned()]).unwrap();
        for target in &targets {
            let request = RangeRequest { key: "t/1".to_owned(), offset: 0, len: 6 };
            assert_eq!(&**target.get_ranges(&[request])[0].as_ref().unwrap(), b"object");
        }
    }
}
