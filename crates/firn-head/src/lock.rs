//! The classes of the head's watched locks. All are brief: see [`LockClass::brief`].

use firn_model::LockClass;

/// One thread may hold those of several shards, by id.
pub(crate) static SHARD: LockClass = LockClass::brief_many("head shard");
pub(crate) static SNAPSHOT: LockClass = LockClass::brief("head snapshot");
