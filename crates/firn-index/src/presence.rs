//! The series to list, as a caller defines them.

use firn_model::{Error, GroupId, Result, Slot};

/// The caller's definition of the series to list, such as "has samples in a range". Called without
/// locks.
pub trait Presence {
    /// Looks for a present member among some of a group, slots ascending.
    ///
    /// # Errors
    /// Those of the caller; the list fails with them.
    fn look(&mut self, group: GroupId, slots: &[Slot]) -> Result<LookupOutcome>;

    /// All groups with a present member, perhaps others too, in any order. Called once, after
    /// [`LookupOutcome::TooManyAbsent`].
    ///
    /// # Errors
    /// As [`Presence::look`].
    fn groups(&mut self) -> Result<Vec<GroupId>>;
}

/// The result of a lookup of some members of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupOutcome {
    /// One of them is present.
    Present,
    /// None of them is.
    Absent,
    /// Too many lookups failed: the list is to be narrowed to [`Presence::groups`] first.
    TooManyAbsent,
}

impl<F: FnMut(GroupId, &[Slot]) -> Result<bool>> Presence for F {
    fn look(&mut self, group: GroupId, slots: &[Slot]) -> Result<LookupOutcome> {
        Ok(if self(group, slots)? { LookupOutcome::Present } else { LookupOutcome::Absent })
    }

    fn groups(&mut self) -> Result<Vec<GroupId>> {
        Err(Error::internal("a list was narrowed without need"))
    }
}
