//! The cache itself: set a range of points of a key, get the cached part of a range.
//!
//! New points gather in memory, in one open slab per field. A full slab is sealed, and
//! [`Store::work`] writes it to its slot of the file in one write. A set or get never waits for a
//! write; a get waits for its own reads. No lock is held over I/O.
//!
//! A set is refused, never failed, when memory is short or too many sealed slabs wait for the
//! device. Source: TSCache 3.1 to 3.7.

mod checkpoint;
mod compact;
mod open;
mod read;
mod reclaim;
mod rescue;
mod state;
#[cfg(test)]
mod tests;
mod work;

pub use open::OwnerHistory;
pub use read::{CachedRange, DeclineReason, Lookup, PointRef};
pub use state::{Fill, KeySummary, Point, Store, StoreOptions, StoreStats};
