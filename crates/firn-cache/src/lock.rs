//! The classes of the caches' locks. Debug builds check their order: see [`LockClass`].

use firn_model::LockClass;

pub(crate) static RESULTS: LockClass = LockClass::brief("result cache");
pub(crate) static INBOX: LockClass = LockClass::brief("result cache inbox");
pub(crate) static STORE_LANE: LockClass = LockClass::new("cache store lane");
pub(crate) static STORE: LockClass = LockClass::brief("cache store");
pub(crate) static HEADER: LockClass = LockClass::brief("cache slab header");
