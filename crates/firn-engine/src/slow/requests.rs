//! Counting the requests to the slow tier, by kind of request and of object.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use firn_env::{Bucket, Mapped, ObjectInfo, PutMode, RangeRequest};
use firn_model::Result;

/// A kind of request to an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A range of an object.
    Get,
    /// An object's length and version.
    Head,
    /// A new object.
    Put,
    /// Names of objects.
    List,
    /// Removal of an object.
    Delete,
}

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// Tables.
    Table,
    /// Index segments.
    Index,
    /// The slow tier's own manifest.
    Manifest,
}

/// Requests and bytes since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCount {
    /// Number of requests. Neighbouring ranges of one call count separately, though one request may
    /// fetch them.
    pub requests: u64,
    /// Bytes sent or received.
    pub bytes: u64,
}

/// By [`Request`], then by [`ObjectKind`].
pub type RequestCounts = [[RequestCount; 3]; 5];

impl Request {
    /// All, in the order of their numbers.
    pub const ALL: [Request; 5] =
        [Request::Get, Request::Head, Request::Put, Request::List, Request::Delete];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Request::Get => "get",
            Request::Head => "head",
            Request::Put => "put",
            Request::List => "list",
            Request::Delete => "delete",
        }
    }
}

impl ObjectKind {
    /// All, in the order of their numbers.
    pub const ALL: [ObjectKind; 3] = [ObjectKind::Table, ObjectKind::Index, ObjectKind::Manifest];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            ObjectKind::Table => "table",
            ObjectKind::Index => "index",
            ObjectKind::Manifest => "manifest",
        }
    }

    fn of(key: &str) -> ObjectKind {
        match key {
            _ if key.starts_with("tables/") => ObjectKind::Table,
            _ if key.starts_with("index/") => ObjectKind::Index,
            _ => ObjectKind::Manifest,
        }
    }
}

/// A bucket that counts its requests, including failed ones, which cost as much.
#[derive(Debug)]
pub(crate) struct CountedBucket {
    below: Arc<dyn Bucket>,
    counts: [[(AtomicU64, AtomicU64); 3]; 5],
}

impl CountedBucket {
    pub(crate) fn new(below: Arc<dyn Bucket>) -> CountedBucket {
        CountedBucket { below, counts: Default::default() }
    }

    pub(crate) fn counts(&self) -> RequestCounts {
        self.counts.each_ref().map(|kinds| {
            kinds.each_ref().map(|(requests, bytes)| RequestCount {
                requests: requests.load(Relaxed),
                bytes: bytes.load(Relaxed),
            })
        })
    }

    fn count(&self, request: Request, key: &str, bytes: u64) {
        let (requests, moved) = &self.counts[request as usize][ObjectKind::of(key) as usize];
        requests.fetch_add(1, Relaxed);
        moved.fetch_add(bytes, Relaxed);
    }
}

impl Bucket for CountedBucket {
    fn get_ranges(&self, requests: &[RangeRequest]) -> Vec<Result<Arc<[u8]>>> {
        for request in requests {
            self.count(Request::Get, &request.key, request.len);
        }
        self.below.get_ranges(requests)
    }

    fn put(&self, key: &str, bytes: Arc<[u8]>, mode: PutMode) -> Result<ObjectInfo> {
        self.count(Request::Put, key, bytes.len() as u64);
        self.below.put(key, bytes, mode)
    }

    fn put_file(&self, key: &str, file: Mapped) -> Result<ObjectInfo> {
        self.count(Request::Put, key, file.len() as u64);
        self.below.put_file(key, file)
    }

    fn head(&self, key: &str) -> Result<ObjectInfo> {
        self.count(Request::Head, key, 0);
        self.below.head(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.count(Request::List, prefix, 0);
        self.below.list(prefix)
    }

    fn first(&self, prefix: &str) -> Result<Option<ObjectInfo>> {
        self.count(Request::List, prefix, 0);
        self.below.first(prefix)
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        keys.iter().for_each(|key| self.count(Request::Delete, key, 0));
        self.below.delete(keys)
    }

    fn check_access(&self, key: &str) -> Result<()> {
        self.count(Request::Get, key, 1);
        self.below.check_access(key)
    }

    fn folder(&self) -> Option<&Path> {
        self.below.folder()
    }
}
