//! The classes of the index's locks. All are brief: writers of new series wait for them while they
//! hold a shard of the head, which other threads wait for. So nothing is reserved under them except
//! free memory.

use firn_model::LockClass;

pub(crate) static JOBS: LockClass = LockClass::brief("index jobs");
pub(crate) static VERSION: LockClass = LockClass::brief("index version");
/// One thread may hold those of several segments.
pub(crate) static MEMORY: LockClass = LockClass::brief_many("index memory");
pub(crate) static LIMITS: LockClass = LockClass::brief("index limits");
pub(crate) static RETIRED: LockClass = LockClass::brief("index retired");
pub(crate) static WRITTEN: LockClass = LockClass::brief("index written");
pub(crate) static RULES: LockClass = LockClass::brief("index rules");
pub(crate) static PENDING: LockClass = LockClass::brief("index pending");
pub(crate) static KNOWN: LockClass = LockClass::brief("index known");
