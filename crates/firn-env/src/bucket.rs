//! The bucket seam: immutable objects under keys. Calls block and take batches; concurrency,
//! retries and time-outs are inside.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use firn_model::{Error, ErrorKind, Result};

use crate::check_path;

/// A byte range of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRequest {
    /// The object's key, such as `tables/17.fst`.
    pub key: String,
    /// First byte.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

/// Whether [`Bucket::put`] may replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutMode {
    /// Whatever was there is replaced.
    Overwrite,
    /// Fails with `Conflict` if the key exists.
    Create,
    /// Fails with `Conflict` unless the object still has this version ([`ObjectInfo::version`]).
    IfVersion(String),
}

impl PutMode {
    /// Whether this put may go on when the key holds `present` (a version): for implementations.
    ///
    /// # Errors
    /// `Conflict` with the key and what is there.
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

/// What a listing tells about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The key.
    pub key: String,
    /// Length.
    pub bytes: u64,
    /// Changes with every put (an entity tag).
    pub version: String,
}

/// Objects under keys below one prefix.
///
/// # Errors
/// `NotFound`, `Conflict` (see [`PutMode`]), `Unavailable` after retries, always with the key.
pub trait Bucket: fmt::Debug + Send + Sync {
    /// Reads many ranges, in parallel; the answers are in the order of the requests. A range that
    /// reaches past the object's end is `Corrupt`.
    fn get_ranges(&self, requests: &[RangeRequest]) -> Vec<Result<Arc<[u8]>>>;

    /// Writes an object: all of it or nothing, durable when this returns. After `Unavailable` it
    /// is unknown whether the object is there, or will come; if it was to be created and is large, something else
    /// may lie under its name, which nobody names.
    fn put(&self, key: &str, bytes: Arc<[u8]>, mode: PutMode) -> Result<ObjectInfo>;

    /// What is there under `key`.
    fn head(&self, key: &str) -> Result<ObjectInfo>;

    /// Every object whose key starts with `prefix`, sorted by key.
    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>>;

    /// Removes objects; a missing one is no error.
    fn delete(&self, keys: &[String]) -> Result<()>;

    /// The folder of the file system that it is, if it is one, keys being paths below it: for
    /// [`crate::copy_object`].
    fn folder(&self) -> Option<&Path> {
        None
    }
}

/// Refuses a key that is empty or no [`crate::DiskPath`]: what every kind of bucket can store.
///
/// # Errors
/// `Invalid` with the key.
pub fn check_key(key: &str) -> Result<()> {
    if key.is_empty() {
        return Err(Error::invalid("an object needs a key"));
    }
    check_path(key)
}

/// The error for a range that reaches past the end of an object of `bytes`: for implementations.
pub fn corrupt_range(request: &RangeRequest, bytes: u64) -> Error {
    let what = format!("the object has {bytes} bytes, {} were wanted from there", request.len);
    Error::corrupt(&*request.key, request.offset, what)
}
