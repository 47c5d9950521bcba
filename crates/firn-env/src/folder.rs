//! A bucket in a local folder: the slow tier without an object store.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use firn_model::{Error, Result};

use crate::bucket::{check_key, corrupt_range};
use crate::given_file::name_of;
use crate::io_error::io_error;
use crate::local::{FILE_MODE, link_error, make_dirs, no_file, open_file, open_lock, sync_dir};
use crate::{Bucket, Mapped, ObjectInfo, PutMode, RangeRequest};

/// The folder of unfinished objects and of the lock for puts; it contains no objects.
const OWN_FOLDER: &str = ".firn-bucket";

/// An unfinished object that is older than this belongs to a dead process.
const ABANDONED_AFTER: Duration = Duration::from_secs(3_600);

/// Whether a folder was opened as a bucket before: a database there would be among its objects.
pub fn is_bucket_folder(folder: &Path) -> bool {
    folder.join(OWN_FOLDER).is_dir()
}

/// A bucket in a folder. Objects are files; each `/` in a key starts a folder. A key cannot be a
/// prefix of another one at a `/` (`a` and `a/b`); no part of FirnDB needs that.
///
/// A put writes and syncs a temporary file, renames it over the key and syncs the folder, so
/// readers never see a partial object. The rename happens under a file lock, so conditions also
/// hold between processes. A version consists of the file's modification time (set by the put, to
/// the nanosecond), inode and length.
#[derive(Debug)]
pub struct FolderBucket {
    root: PathBuf,
    put_count: AtomicU64,
}

impl FolderBucket {
    /// Opens the folder `root`; creates it and its parents if missing.
    ///
    /// # Errors
    /// `Invalid` if it is a file, `Unavailable` if it cannot be created; both name the path.
    pub fn open(root: impl Into<PathBuf>) -> Result<FolderBucket> {
        let bucket = FolderBucket { root: root.into(), put_count: AtomicU64::new(0) };
        make_dirs(&bucket.root.join(OWN_FOLDER))?;
        bucket.remove_abandoned();
        Ok(bucket)
    }

    /// Opens the existing folder `root` and writes nothing to it.
    ///
    /// # Errors
    /// `NotFound` if it does not exist, `Invalid` if it is a file.
    #[cfg(feature = "remote")]
    pub(crate) fn open_to_read(root: impl Into<PathBuf>) -> Result<FolderBucket> {
        let root = root.into();
        crate::local::check_folder(&root)?;
        Ok(FolderBucket { root, put_count: AtomicU64::new(0) })
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, key: &str) -> Result<PathBuf> {
        check_key(key)?;
        if key.split('/').next() == Some(OWN_FOLDER) {
            return Err(Error::invalid(format!(
                "{key}: {OWN_FOLDER} is reserved for the bucket; use another key"
            )));
        }
        Ok(self.root.join(key))
    }

    /// Best effort: the next open retries files that could not be removed.
    fn remove_abandoned(&self) {
        let is_abandoned = |path: &Path| {
            let written = fs::metadata(path).and_then(|metadata| metadata.modified());
            written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > ABANDONED_AFTER))
        };
        for entry in fs::read_dir(self.root.join(OWN_FOLDER)).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|ext| ext == "tmp") && is_abandoned(&path) {
                let _ = fs::remove_file(path);
            }
        }
    }

    fn read_range<'a>(
        &self,
        request: &'a RangeRequest,
        files: &mut HashMap<&'a str, File>,
    ) -> Result<Arc<[u8]>> {
        let path = self.path(&request.key)?;
        let file = match files.entry(&request.key) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(vacant) => {
                vacant.insert(open_file(OpenOptions::new().read(true), "read", &path)?)
            }
        };
        // Checked before allocating: the request may come from damaged metadata.
        let bytes = file.metadata().map_err(|e| io_error("examine", &path, e))?.len();
        if request.offset.checked_add(request.len).is_none_or(|end| end > bytes) {
            return Err(corrupt_range(request, bytes));
        }
        let mut buf = vec![0; request.len as usize];
        file.read_exact_at(&mut buf, request.offset).map_err(|e| io_error("read", &path, e))?;
        Ok(Arc::from(buf))
    }

    /// Writes and syncs a temporary file.
    fn write_temporary(&self, bytes: &[u8]) -> Result<PathBuf> {
        let number = self.put_count.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now();
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let name = format!("{}-{since:x}-{number}.tmp", std::process::id());
        let path = self.root.join(OWN_FOLDER).join(name);
        let write = || {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(FILE_MODE);
            let mut file = options.open(&path)?;
            file.write_all(bytes)?;
            file.set_modified(now)?;
            file.sync_all()
        };
        match write() {
            Ok(()) => Ok(path),
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(io_error("write", &path, error))
            }
        }
    }

    fn put_bytes(&self, key: &str, bytes: &[u8], mode: &PutMode) -> Result<ObjectInfo> {
        self.path(key)?;
        let temporary = self.write_temporary(bytes)?;
        let published = self.publish(&temporary, key, mode);
        if published.is_err() {
            // There is nothing to remove if the rename succeeded and only its sync failed.
            let _ = fs::remove_file(&temporary);
        }
        published
    }

    /// Renames a temporary file to its key if `mode` allows. One process at a time.
    fn publish(&self, temporary: &Path, key: &str, mode: &PutMode) -> Result<ObjectInfo> {
        let path = self.path(key)?;
        let folder = path.parent().unwrap_or(&self.root);
        make_dirs(folder)?;
        let _lock = self.lock()?;
        let present = match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => {
                return Err(Error::invalid(format!(
                    "{} is a folder, expected an object; move it away",
                    path.display()
                )));
            }
            Ok(metadata) => Some(version(&metadata)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // A link in a loop, which is replaced as a pipe is.
            Err(_) if path.is_symlink() => fs::symlink_metadata(&path).ok().as_ref().map(version),
            Err(error) => return Err(io_error("examine", &path, error)),
        };
        mode.check(key, present.as_deref())?;
        fs::rename(temporary, &path).map_err(|e| io_error("write", &path, e))?;
        sync_dir(folder)?;
        info(key, &path)
    }

    fn lock(&self) -> Result<File> {
        let path = self.root.join(OWN_FOLDER).join("lock");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(FILE_MODE);
        let file = open_lock(&mut options, &path)?;
        file.lock().map_err(|e| io_error("lock", &path, e))?;
        Ok(file)
    }

    /// Adds the objects below `folder`, which has the key `prefix` (empty, or ending with `/`).
    fn collect(
        &self,
        folder: &Path,
        prefix: &str,
        wanted: &str,
        found: &mut Vec<ObjectInfo>,
    ) -> Result<()> {
        let failed = |e| io_error("list", folder, e);
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if is_missing(&error) => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if prefix.is_empty() && name == OWN_FOLDER {
                continue;
            }
            let key = format!("{prefix}{name}");
            // An object that is replaced or deleted during the listing may be included or not.
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                Err(error) if is_missing(&error) => continue,
                Err(error) => return Err(failed(error)),
            };
            if metadata.is_dir() {
                let below = format!("{key}/");
                if below.starts_with(wanted) || wanted.starts_with(&below) {
                    self.collect(&entry.path(), &below, wanted, found)?;
                }
            } else if key.starts_with(wanted) {
                let (bytes, version) = (metadata.len(), version(&metadata));
                found.push(ObjectInfo { key, bytes, version });
            }
        }
        Ok(())
    }
}

impl Bucket for FolderBucket {
    fn get_ranges(&self, requests: &[RangeRequest]) -> Vec<Result<Arc<[u8]>>> {
        // Sequential local reads are as fast as parallel ones; each file is opened once.
        let mut files: HashMap<&str, File> = HashMap::new();
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            answers.push(self.read_range(request, &mut files));
        }
        answers
    }

    fn put(&self, key: &str, bytes: Arc<[u8]>, mode: PutMode) -> Result<ObjectInfo> {
        self.put_bytes(key, &bytes, &mode)
    }

    fn put_file(&self, key: &str, file: Mapped) -> Result<ObjectInfo> {
        self.put_bytes(key, &file, &PutMode::Overwrite)
    }

    fn head(&self, key: &str) -> Result<ObjectInfo> {
        info(key, &self.path(key)?)
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let mut found = Vec::new();
        self.collect(&self.root, "", prefix, &mut found)?;
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        let mut folders = Vec::new();
        for key in keys {
            let path = self.path(key)?;
            match fs::remove_file(&path) {
                Ok(()) => folders.push(path.parent().unwrap_or(&self.root).to_owned()),
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(io_error("delete", &path, error)),
            }
        }
        folders.sort_unstable();
        folders.dedup();
        folders.iter().try_for_each(|folder| sync_dir(folder))
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.root)
    }
}

fn info(key: &str, path: &Path) -> Result<ObjectInfo> {
    let metadata = fs::metadata(path)
        .map_err(|e| link_error(path, &e).unwrap_or_else(|| io_error("examine", path, e)))?;
    if metadata.is_dir() {
        return Err(Error::not_found(format!("{key}: no such object, only a folder of that name")));
    }
    if !metadata.is_file() {
        return Err(no_file(name_of(metadata.file_type()), path));
    }
    Ok(ObjectInfo { key: key.to_owned(), bytes: metadata.len(), version: version(&metadata) })
}

fn version(metadata: &fs::Metadata) -> String {
    let (seconds, ns) = (metadata.mtime(), metadata.mtime_nsec());
    format!("{seconds:x}.{ns:09}-{:x}-{:x}", metadata.ino(), metadata.len())
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use firn_model::ErrorKind;

    use super::*;

    fn bucket() -> (tempfile::TempDir, FolderBucket) {
        let folder = tempfile::tempdir().unwrap();
        let bucket = FolderBucket::open(folder.path().join("slow")).unwrap();
        (folder, bucket)
    }

    #[test]
    fn a_mapped_file_is_put_as_its_bytes_are() {
        let (_folder, bucket) = bucket();
        let bytes: Vec<u8> = (0..100_000u32).map(|idx| idx as u8).collect();
        for _ in 0..2 {
            let put = bucket.put_file("index/1-1.seg", Mapped::from(bytes.clone())).unwrap();
            assert_eq!(put.bytes, bytes.len() as u64);
        }
        let len = bytes.len() as u64;
        let whole = RangeRequest { key: "index/1-1.seg".to_owned(), offset: 0, len };
        assert_eq!(**bucket.get_ranges(&[whole])[0].as_ref().unwrap(), *bytes);
    }

    #[test]
    fn two_handles_are_one_bucket_and_one_create_wins() {
        let (_folder, bucket) = bucket();
        let other = FolderBucket::open(bucket.root()).unwrap();
        let barrier = Barrier::new(8);
        let wins: usize = std::thread::scope(|scope| {
            let racers: Vec<_> = (0..8u8)
                .map(|racer| {
                    let bucket = if racer % 2 == 0 { &bucket } else { &other };
                    let barrier = &barrier;
                    scope.spawn(move || {
                        barrier.wait();
                        let put = bucket.put("m/1", Arc::from([racer]), PutMode::Create);
                        assert!(put.is_ok() || put.unwrap_err().kind() == &ErrorKind::Conflict);
                        bucket.get_ranges(&[RangeRequest {
                            key: "m/1".to_owned(),
                            offset: 0,
                            len: 1,
                        }])[0]
                            .as_ref()
                            .is_ok_and(|bytes| bytes[0] == racer)
                    })
                })
                .collect();
            racers.into_iter().map(|racer| usize::from(racer.join().unwrap())).sum()
        });
        assert_eq!(wins, 1);
    }

    #[test]
    fn reserved_files_are_not_objects_and_keys_stay_inside() {
        let (_folder, bucket) = bucket();
        assert!(bucket.list("").unwrap().is_empty());
        for key in ["", "/etc/passwd", "../x", "a//b", ".firn-bucket/lock"] {
            let error = bucket.put(key, Arc::from([]), PutMode::Overwrite).unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::Invalid, "{key}: {error}");
        }
    }

    #[test]
    fn files_of_dead_processes_are_removed_after_an_hour() {
        let (_folder, bucket) = bucket();
        let [old, young] = ["1-1-1.tmp", "1-1-2.tmp"].map(|name| {
            let path = bucket.root().join(OWN_FOLDER).join(name);
            File::create(&path).unwrap();
            path
        });
        let hours_ago = SystemTime::now() - 2 * ABANDONED_AFTER;
        OpenOptions::new().write(true).open(&old).unwrap().set_modified(hours_ago).unwrap();
        FolderBucket::open(bucket.root()).unwrap();
        assert!(!old.exists() && young.exists());
    }
}
