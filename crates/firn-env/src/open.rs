//! From what a person writes to a bucket.

use std::sync::Arc;

use firn_model::{Error, Result};

use crate::{Bucket, FolderBucket, RemoteBucket, RemoteOptions};

/// The bucket that `url_or_path` means: an object store for `s3://`, `gs://` and `az://`, a folder
/// for `file:///path` and for everything without a scheme. A folder is made if it is missing; a
/// remote bucket is not asked yet.
///
/// # Errors
/// `Invalid` for another scheme or wrong settings, `Unavailable` if the folder cannot be made.
pub fn open_bucket(url_or_path: &str) -> Result<Arc<dyn Bucket>> {
    open_bucket_with(url_or_path, &RemoteOptions::default())
}

/// [`open_bucket`] with limits of one's own for an object store.
///
/// # Errors
/// As [`open_bucket`].
pub fn open_bucket_with(url_or_path: &str, options: &RemoteOptions) -> Result<Arc<dyn Bucket>> {
    match url_or_path.split_once("://") {
        Some(("file", path)) if path.starts_with('/') => Ok(Arc::new(FolderBucket::open(path)?)),
        Some(("file", _)) => {
            Err(Error::invalid(format!("{url_or_path}: write file:///path, three slashes")))
        }
        Some(_) => Ok(Arc::new(RemoteBucket::from_url(url_or_path, options)?)),
        None if url_or_path.is_empty() => Err(Error::invalid("the bucket's folder has no name")),
        None => Ok(Arc::new(FolderBucket::open(url_or_path)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PutMode;

    #[test]
    fn paths_are_folders_and_schemes_are_stores() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slow").to_str().unwrap().to_owned();
        let put = |name: &str, key| {
            let bucket = open_bucket(name).unwrap();
            bucket.put(key, Arc::from(*b"x"), PutMode::Create).unwrap();
        };
        put(&path, "a");
        put(&format!("file://{path}"), "b");
        assert_eq!(open_bucket(&path).unwrap().list("").unwrap().len(), 2);
        for bad in ["", "file://relative", "http://bucket"] {
            let error = open_bucket(bad).unwrap_err();
            assert_eq!(error.kind(), &firn_model::ErrorKind::Invalid, "{bad}: {error}");
        }
    }
}
