//! Env: the outside world behind traits.
//!
//! **Owns** the seams [`Disk`], [`Bucket`] and [`Clock`] and their real implementations:
//! [`LocalDisk`], [`MemoryDisk`], [`OverlayDisk`], [`FolderBucket`], [`EmptyBucket`],
//! `RemoteBucket` (S3, Google, Azure; feature `remote`, because only it needs an HTTP client) and
//! [`SystemClock`]. `open_bucket` selects one by URL. Also the one way to read or write a file that
//! a user names, [`given_file`]. The simulated implementations are in `firn-sim` (a development
//! room). One suite of tests, `firn_sim::conformance`, runs against both.
//!
//! **Never** interprets the bytes of a file or an object, retries a failed write of a local file,
//! or makes decisions. All other rooms of the core reach the outside world only through [`Env`].
//!
//! **Paths**: log, manifest, index and local tables use [`Env::disk`]; the slow tier uses
//! [`Env::bucket`].
//!
//! **Invariants**: data covered by [`DiskFile::sync`] survives a crash; a rename or a new name
//! survives one after [`Disk::sync_dir`]; a bucket's `put` is atomic, and durable on return; a
//! conditional `put` takes effect in a store at most once; every call to a store returns within a
//! set time.
//!
//! Terms: `docs/glossary.md`.
//!
//! Reading order: `disk`, `io_error`, `stamp`, `place`, `local`, `syncers`, `mapped`, `lines`,
//! `memory`, `overlay`, `bucket`, `folder`, `no_objects`, `remote` (`store`, `fetch`, `condition`),
//! `open`, `copy`, `clock`, `given_file`, `process`.

#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod bucket;
mod clock;
mod copy;
mod disk;
mod folder;
pub mod given_file;
mod io_error;
mod lines;
mod local;
mod mapped;
mod memory;
mod no_objects;
#[cfg(feature = "remote")]
mod open;
mod overlay;
mod place;
mod process;
#[cfg(feature = "remote")]
mod remote;
mod stamp;
mod syncers;

use std::sync::Arc;

pub use bucket::{Bucket, ObjectInfo, PutMode, RangeRequest, check_key, corrupt_range};
pub use clock::{Clock, SystemClock};
pub use copy::{copy_file, copy_object};
pub use disk::{Disk, DiskFile, DiskPath, FolderLock, Memory, OpenMode, check_path};
pub use folder::{FolderBucket, is_bucket_folder};
pub use lines::{LINE_BYTES, LineFlusher, Mapping};
pub use local::{LOCK_FILE, LocalDisk};
pub use mapped::Mapped;
pub use memory::MemoryDisk;
pub use no_objects::EmptyBucket;
#[cfg(feature = "remote")]
pub use open::{open_bucket, open_bucket_to_read, open_bucket_with, scheme_of};
pub use overlay::OverlayDisk;
pub use place::{is_same_file, real_path};
pub use process::open_files_max;
#[cfg(feature = "remote")]
pub use remote::{Fetch, RemoteBucket, RemoteOptions, plan_fetches};
pub use stamp::FileStamp;

/// The outside world of one database.
#[derive(Clone, Debug)]
pub struct Env {
    /// Files of the fast tier: log, manifest, index segments, tables of levels 0 and 1.
    pub disk: Arc<dyn Disk>,
    /// The disk of the log, if it is not `disk`.
    pub log: Option<Arc<dyn Disk>>,
    /// Objects of the slow tier.
    pub bucket: Arc<dyn Bucket>,
    /// Wall time and monotonic time.
    pub clock: Arc<dyn Clock>,
}

impl Env {
    /// The disk of the log.
    pub fn log_disk(&self) -> &Arc<dyn Disk> {
        self.log.as_ref().unwrap_or(&self.disk)
    }
}
