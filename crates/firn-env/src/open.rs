//! Opens a bucket from a URL or a path.

use std::sync::Arc;

use firn_model::{Error, Result, redacted};

use crate::{Bucket, FolderBucket, RemoteBucket, RemoteOptions};

/// Opens the bucket at `url_or_path`: an object store for `s3://`, `gs://` and `az://`; a folder
/// for `file:///path` and for a path without a scheme. Creates a missing folder; sends no request
/// to an object store.
///
/// # Errors
/// `Invalid` for another scheme or wrong settings, `Unavailable` if the folder cannot be created.
pub fn open_bucket(url_or_path: &str) -> Result<Arc<dyn Bucket>> {
    open_bucket_with(url_or_path, &RemoteOptions::default())
}

/// As [`open_bucket`], with options for an object store.
///
/// # Errors
/// As [`open_bucket`].
pub fn open_bucket_with(url_or_path: &str, options: &RemoteOptions) -> Result<Arc<dyn Bucket>> {
    match url_or_path.split_once("://") {
        Some(("file", path)) if path.starts_with('/') => Ok(Arc::new(FolderBucket::open(path)?)),
        Some(("file", _)) => {
            let shown = redacted(url_or_path);
            Err(Error::invalid(format!("{shown}: expected file:///path, three slashes")))
        }
        Some(_) => Ok(Arc::new(RemoteBucket::from_url(url_or_path, options)?)),
        None if url_or_path.is_empty() => {
            Err(Error::invalid("the bucket's path is empty: use a folder or a URL"))
        }
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
