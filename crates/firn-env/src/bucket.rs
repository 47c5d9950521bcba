//! The bucket seam: immutable objects under keys. Calls block and take batches; implementations
//! handle concurrency, retries and time-outs.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use firn_model::{Error, ErrorKind, Result};

use crate::{Mapped, check_path};

/// A byte range of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRequest {
    /// The object's key, such as `tables/17.fst`.
    pub key: String,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// The condition of a [`Bucket::put`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutMode {
    /// Replaces an existing object.
    Overwrite,
    /// Fails with `Conflict` if the key exists.
    Create,
    /// Fails with `Conflict` unless the object still has this version ([`ObjectInfo::version`]).
    IfVersion(String),
}

impl PutMode {
    /// Checks this mode against the version that the key holds now, for implementations.
    ///
    /// # Errors
    /// `Conflict` with the key and the version found.
    pub fn check(&self, key: &str, present: Option<&str>) -> Result<()> {
        let conflict = match (self, present) {
            (PutMode::Create, Some(version)) => format!("exists already, version {version}"),
            (PutMode::IfVersion(expected), found) if found != Some(expected) => {
                format!("expected version {expected}, found {}", found.unwrap_or("no object"))
            }
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::Conflict, format!("{key}: {conflict}")))
    }
}

/// Metadata of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The key.
    pub key: String,
    /// Length in bytes.
    pub bytes: u64,
    /// Changes with every put (an entity tag).
    pub version: String,
}

/// Objects under keys below one prefix.
///
/// # Errors
/// `NotFound`, `Conflict` (see [`PutMode`]), `Unavailable` after retries; each names the key.
pub trait Bucket: fmt::Debug + Send + Sync {
    /// Reads many ranges in parallel; the results are in the order of the requests. A range that
    /// reaches past the end of the object is `Corrupt`.
    fn get_ranges(&self, requests: &[RangeRequest]) -> Vec<Result<Arc<[u8]>>>;

    /// Writes an object atomically; it is durable on return. After `Unavailable` it is unknown
    /// whether the object exists or will appear later. A large object that was to be created may
    /// then leave other content under its key, to which nothing refers.
    fn put(&self, key: &str, bytes: Arc<[u8]>, mode: PutMode) -> Result<ObjectInfo>;

    /// As [`Bucket::put`] with [`PutMode::Overwrite`], for a file that may be larger than memory.
    fn put_file(&self, key: &str, file: Mapped) -> Result<ObjectInfo> {
        self.put(key, Arc::from(&*file), PutMode::Overwrite)
    }

    /// Metadata of the object under `key`.
    fn head(&self, key: &str) -> Result<ObjectInfo>;

    /// All objects with keys that start with `prefix`, sorted by key.
    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>>;

    /// One object with a key that starts with `prefix`; `None` if there is none.
    fn first(&self, prefix: &str) -> Result<Option<ObjectInfo>> {
        Ok(self.list(prefix)?.into_iter().next())
    }

    /// Removes objects. A missing object is not an error.
    fn delete(&self, keys: &[String]) -> Result<()>;

    /// Checks at a start that the store can be used, with one small read of `key`, which may be
    /// missing, and without long retries.
    ///
    /// # Errors
    /// `Invalid` if the store refuses it for good: the bucket does not exist, or the credentials
    /// are wrong. `Unavailable` if the store does not answer in time.
    fn check_access(&self, key: &str) -> Result<()> {
        check_key(key)
    }

    /// The file system folder that the bucket consists of, if it is one; keys are paths below it.
    /// For [`crate::copy_object`].
    fn folder(&self) -> Option<&Path> {
        None
    }
}

/// Rejects an empty key and keys that are not a [`crate::DiskPath`], so that every kind of bucket
/// can store the accepted ones.
///
/// # Errors
/// `Invalid` with the key.
pub fn check_key(key: &str) -> Result<()> {
    if key.is_empty() {
        return Err(Error::invalid("an object needs a key"));
    }
    check_path(key)
}

/// The error for a range that reaches past the end of an object of `bytes`, for implementations.
pub fn corrupt_range(request: &RangeRequest, bytes: u64) -> Error {
    let what = format!("a range of {} bytes ends past the object's {bytes} bytes", request.len);
    Error::corrupt(&*request.key, request.offset, what)
}
