//! Opens a bucket from a URL or a path.

use std::sync::Arc;

use firn_model::{Error, Result, redacted};

use crate::{Bucket, FolderBucket, RemoteBucket, RemoteOptions};

/// Opens the bucket at `url_or_path`: an object store for `s3://`, `gs://` and `az://`; a folder
/// for `file:///path` and for a path without a scheme. Creates a missing folder; sends no request
/// to an object store.
///
/// # Errors
/// `Invalid` for another scheme, a path that looks like a mistyped URL ([`scheme_of`]) or wrong
/// settings, `Unavailable` if the folder cannot be created.
pub fn open_bucket(url_or_path: &str) -> Result<Arc<dyn Bucket>> {
    open_bucket_with(url_or_path, &RemoteOptions::default())
}

/// As [`open_bucket`], with options for an object store.
///
/// # Errors
/// As [`open_bucket`].
pub fn open_bucket_with(url_or_path: &str, options: &RemoteOptions) -> Result<Arc<dyn Bucket>> {
    open(url_or_path, options, &|path| FolderBucket::open(path))
}

/// As [`open_bucket`], for a caller that writes nothing: a folder must exist.
///
/// # Errors
/// As [`open_bucket`]; `NotFound` if the folder is missing.
pub fn open_bucket_to_read(url_or_path: &str) -> Result<Arc<dyn Bucket>> {
    let options = RemoteOptions::default();
    open(url_or_path, &options, &|path| FolderBucket::open_to_read(path))
}

fn open(
    url_or_path: &str,
    options: &RemoteOptions,
    open_folder: &dyn Fn(&str) -> Result<FolderBucket>,
) -> Result<Arc<dyn Bucket>> {
    match url_or_path.split_once("://") {
        Some(("file", path)) if path.starts_with('/') => Ok(Arc::new(open_folder(path)?)),
        Some(("file", _)) => {
            let shown = redacted(url_or_path);
            Err(Error::invalid(format!("{shown}: expected file:///path, three slashes")))
        }
        Some(_) => Ok(Arc::new(RemoteBucket::from_url(url_or_path, options)?)),
        None if url_or_path.is_empty() => {
            Err(Error::invalid("the bucket's path is empty: use a folder or a URL"))
        }
        None => match scheme_of(url_or_path) {
            Some(scheme) => Err(Error::invalid(format!(
                "{url_or_path} looks like a URL without \"//\": expected {scheme}://bucket/prefix, \
                 or ./{url_or_path} for a folder of this name"
            ))),
            None => Ok(Arc::new(open_folder(url_or_path)?)),
        },
    }
}

/// The scheme of a location that is a URL or looks like one: `s3` of `s3://bucket` and of
/// `s3:/bucket`. A folder whose name contains a colon is written as `./a:b`.
pub fn scheme_of(location: &str) -> Option<&str> {
    let (scheme, _) = location.split_once(':')?;
    let is_scheme_char = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let is_scheme =
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(is_scheme_char);
    is_scheme.then_some(scheme)
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
        for bad in ["", "file://relative", "http://bucket", "s3:/bucket", "s3:bucket", "foo:bar"] {
            let error = open_bucket(bad).unwrap_err();
            assert_eq!(error.kind(), &firn_model::ErrorKind::Invalid, "{bad}: {error}");
        }
        let missing = folder.path().join("missing");
        let error = open_bucket_to_read(missing.to_str().unwrap()).unwrap_err();
        assert_eq!(error.kind(), &firn_model::ErrorKind::NotFound, "{error}");
        assert!(!missing.exists());
        assert_eq!(open_bucket_to_read(&path).unwrap().list("").unwrap().len(), 2);
        let plain = folder.path().to_str().unwrap();
        open_bucket_to_read(plain).unwrap();
        assert!(!crate::is_bucket_folder(folder.path()), "nothing was written");
        assert!(crate::is_bucket_folder(std::path::Path::new(&path)));
        assert!(!std::path::Path::new("s3:").exists() && !std::path::Path::new("foo:bar").exists());
    }

    #[test]
    fn a_scheme_is_a_word_before_the_first_colon() {
        let f = |location: &str, scheme: Option<&str>| assert_eq!(scheme_of(location), scheme);
        f("s3://bucket/prefix", Some("s3"));
        f("s3:/bucket", Some("s3"));
        f("foo:bar", Some("foo"));
        f("./foo:bar", None);
        f("/mnt/a:b", None);
        f("folder/s3:x", None);
        f(":x", None);
        f("9:x", None);
        f("folder", None);
    }
}
