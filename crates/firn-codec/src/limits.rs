//! Limits that bound the allocations of decoders, whatever damaged bytes claim.

/// Exclusive upper bound of the slots of a group.
pub const SLOTS_MAX: usize = 1 << 16;

/// Maximum number of entries of a chunk's time column.
pub const ENTRIES_MAX: usize = 1 << 20;

/// Maximum number of values of a chunk.
pub const VALUES_MAX: usize = 1 << 26;
