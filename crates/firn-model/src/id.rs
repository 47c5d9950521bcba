//! Ids as newtypes, so that a group cannot be passed where a slot is expected.

use std::fmt;

/// One of the engine's shards: the unit of ownership. Dense from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// The number of low bits of a [`GroupId`] that hold its shard. Fixed when a database is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardBits(u32);

impl ShardBits {
    /// Bits for a power-of-two number of shards, at most 2^15.
    ///
    /// # Panics
    /// If `shard_count` is not a power of two between 1 and 32,768: options are checked before.
    pub fn for_count(shard_count: usize) -> ShardBits {
        assert!(shard_count.is_power_of_two(), "shard count {shard_count} is not a power of two");
        assert!(shard_count <= 1 << 15, "shard count {shard_count} is over 32,768");
        ShardBits(shard_count.trailing_zeros())
    }

    /// The number of shards.
    pub fn shard_count(self) -> usize {
        1 << self.0
    }

    /// The shard for the hash of a group's labels. Called once per group, when it is created.
    pub fn shard_of_hash(self, hash: u64) -> ShardId {
        ShardId((hash & ((1 << self.0) - 1)) as u16)
    }

    /// The shard that owns `group`.
    pub fn shard(self, group: GroupId) -> ShardId {
        ShardId((group.0 & ((1 << self.0) - 1)) as u16)
    }

    /// The index of `group` among the groups of its shard, dense from 0.
    pub fn local(self, group: GroupId) -> u64 {
        group.0 >> self.0
    }

    /// The group with index `local` in `shard`.
    pub fn group(self, shard: ShardId, local: u64) -> GroupId {
        GroupId((local << self.0) | u64::from(shard.0))
    }
}

/// A group of series that share labels and timestamps. Ids are never reused; the low bits hold the
/// shard ([`ShardBits`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

/// A member's index in its group, dense from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// A reference to a series, used on the write path instead of labels. A label set has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeriesRef {
    /// The group that the series is a member of.
    pub group: GroupId,
    /// The series' index in the group.
    pub slot: Slot,
}

/// The order of commits. Every row piece has one; a larger number is newer. 0 precedes all commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommitSeq(pub u64);

/// A byte position in one stream of the log; rises over all its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogPosition(pub u64);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

impl fmt::Display for SeriesRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.slot.0)
    }
}

impl fmt::Display for CommitSeq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_id_holds_its_shard_and_its_index() {
        let bits = ShardBits::for_count(64);
        let group = bits.group(ShardId(63), 1_000_000);
        assert_eq!(bits.shard(group), ShardId(63));
        assert_eq!(bits.local(group), 1_000_000);
        assert_eq!(ShardBits::for_count(1).shard(GroupId(77)), ShardId(0));
    }
}
