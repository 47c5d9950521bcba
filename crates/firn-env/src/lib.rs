//! Env: the outside world behind traits.
//!
//! **Owns** the seams [`Disk`], [`Bucket`] and [`Clock`] and their real forms: [`LocalDisk`], [`MemoryDisk`],
//! [`FolderBucket`], `RemoteBucket` (S3, Google, Azure; feature `remote`, as it alone needs an HTTP
//! client) and [`SystemClock`]. `open_bucket` chooses by URL. The simulated forms live in `firn-sim`
//! (a development room); both kinds pass [`conformance`].
//!
//! **Never** knows what is in a file or an object, never retries a failed write of a local file,
//! never decides. Everything else in the core reaches the world only through [`Env`].
//!
//! **Invariants**: what [`DiskFile::sync`] covered survives a crash; a rename or a new name survives
//! one after [`Disk::sync_dir`]; a bucket's `put` is atomic and durable when it returns; a `put` with
//! a condition reaches a store at most once; every call to a store ends within a set time.
//!
//! Reading order: `disk`, `local`, `syncers`, `mapped`, `lines`, `memory`, `bucket`, `folder`, `remote` (`store`, `fetch`), `open`, `copy`,
//! `clock`, `conformance`.

mod bucket;
mod clock;
pub mod conformance;
mod copy;
mod disk;
mod folder;
mod io_error;
mod lines;
mod local;
mod mapped;
mod memory;
#[cfg(feature = "remote")]
mod open;
#[cfg(feature = "remote")]
mod remote;
mod syncers;

use std::sync::Arc;

pub use bucket::{Bucket, ObjectInfo, PutMode, RangeRequest, check_key, corrupt_range};
pub use clock::{Clock, SystemClock};
pub use copy::{copy_file, copy_object};
pub use disk::{Disk, DiskFile, DiskPath, FolderLock, Memory, OpenMode, check_path};
pub use folder::FolderBucket;
pub use lines::{LINE_BYTES, LineFlusher, Mapping};
pub use local::{LOCK_FILE, LocalDisk};
pub use mapped::Mapped;
pub use memory::MemoryDisk;
#[cfg(feature = "remote")]
pub use open::{open_bucket, open_bucket_with};
#[cfg(feature = "remote")]
pub use remote::{RemoteBucket, RemoteOptions, planned_fetch_bytes};

/// The world of one database.
#[derive(Clone, Debug)]
pub struct Env {
    /// The fast tier's files: log, manifest, index segments, tables of level 0 and 1.
    pub disk: Arc<dyn Disk>,
    /// Where the log is, if not on `disk`.
    pub log: Option<Arc<dyn Disk>>,
    /// The slow tier's objects.
    pub bucket: Arc<dyn Bucket>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
}

impl Env {
    /// Where the log is.
    pub fn log_disk(&self) -> &Arc<dyn Disk> {
        self.log.as_ref().unwrap_or(&self.disk)
    }
}
