//! The classes of the engine's locks. Debug builds check their order: see [`LockClass`].

use firn_model::LockClass;

pub(crate) static TREE_LANE: LockClass = LockClass::new("tree lane");
pub(crate) static LEAVING: LockClass = LockClass::new("leaving series");
pub(crate) static FLUSH_LANE: LockClass = LockClass::new("flush lane");
pub(crate) static COMMIT_LANE: LockClass = LockClass::new("commit lane");
pub(crate) static MANIFEST: LockClass = LockClass::new("manifest");
pub(crate) static LOG_CUT: LockClass = LockClass::new("log cut");
pub(crate) static INDEX_MEMORY: LockClass = LockClass::new("reservation of the index");
pub(crate) static RESTORING: LockClass = LockClass::new("restoring series");
pub(crate) static COMMIT_ORDER: LockClass = LockClass::new("commit order");
pub(crate) static COMMITS_WAITING: LockClass = LockClass::new("waiting commits");
pub(crate) static COMMITS_OPEN: LockClass = LockClass::new("open commits");
pub(crate) static VIEW: LockClass = LockClass::new("view");
pub(crate) static TOMBSTONES: LockClass = LockClass::new("tombstones");
pub(crate) static TOMBSTONE_MEMORY: LockClass = LockClass::new("reservation of tombstones");
pub(crate) static TOMBSTONE_MEMBERS: LockClass = LockClass::new("members of tombstones");
pub(crate) static STORED_TOMBSTONES: LockClass = LockClass::new("stored tombstones");
pub(crate) static FLUSHED_TOMBSTONES: LockClass = LockClass::new("flushed tombstones");
pub(crate) static CACHES: LockClass = LockClass::new("caches that release memory");
pub(crate) static LAST_RESORTS: LockClass = LockClass::new("last caches that release memory");
