//! Options of the index.

use firn_model::{Error, Result};

/// The choice of the group that a new series joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// `job` and `instance` where a series has both and their groups are of a sensible size;
    /// otherwise the labels that are learned from the series that arrive.
    Auto,
    /// The label names that identify a group. A series with all of them joins the group of their
    /// values when it is first seen; any other is a lone series. Empty: every series is a lone
    /// series.
    Labels(Vec<String>),
}

/// Options of the index.
#[derive(Clone, Debug)]
pub struct IndexOptions {
    /// The choice of the group that a new series joins.
    pub group_by: GroupBy,
    /// Slots of a group, at least 1. If a group is full, a sibling group with the same labels
    /// opens.
    pub slots_per_group_max: u32,
    /// Limits on new series.
    pub limits: SeriesLimits,
}

/// Limits on new series; `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeriesLimits {
    /// All series.
    pub series_max: Option<u64>,
    /// Series of one metric name; series without a name do not count.
    pub series_per_metric_max: Option<u64>,
    /// Members of all groups with the same labels. Lone series do not count.
    pub series_per_group_max: Option<u64>,
    /// New series per second; ten seconds' worth may arrive at once.
    pub new_series_per_second_max: Option<u64>,
}

/// Series numbers are `u32` and the last one is reserved.
pub(crate) const SERIES_LIMIT: u64 = u32::MAX as u64 - 1;

impl Default for IndexOptions {
    fn default() -> IndexOptions {
        IndexOptions {
            group_by: GroupBy::Auto,
            slots_per_group_max: 4_096,
            limits: SeriesLimits { series_max: Some(50_000_000), ..SeriesLimits::default() },
        }
    }
}

impl GroupBy {
    /// Groups by these labels.
    pub fn labels<'a>(names: impl IntoIterator<Item = &'a str>) -> GroupBy {
        GroupBy::Labels(names.into_iter().map(str::to_owned).collect())
    }
}

impl IndexOptions {
    /// The options with `group_by` sorted and without duplicates.
    ///
    /// # Errors
    /// `Invalid` for zero slots or an empty name.
    pub(crate) fn checked(mut self) -> Result<IndexOptions> {
        if self.slots_per_group_max == 0 {
            return Err(Error::invalid(
                "slots_per_group_max is 0: a group needs at least one slot",
            ));
        }
        if let GroupBy::Labels(names) = &mut self.group_by {
            if names.iter().any(String::is_empty) {
                return Err(Error::invalid("group_by contains an empty label name: remove it"));
            }
            names.sort();
            names.dedup();
        }
        Ok(self)
    }
}
