//! What the index is told at open.

use firn_model::{Error, Result};

/// What the index is told at open.
#[derive(Clone, Debug)]
pub struct IndexOptions {
    /// The labels that make a group. A series that has them all joins the group of their values when
    /// it is first seen; one that lacks any of them is a group of one. Empty: every series is.
    pub group_by: Vec<String>,
    /// A group with this many slots is full: a sibling with the same labels opens. At least 1.
    pub slots_per_group_max: u32,
    /// What new series are refused by; known ones go on.
    pub limits: SeriesLimits,
}

/// What new series are refused by; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeriesLimits {
    /// Series in all.
    pub series_max: Option<u64>,
    /// Series of one metric name; those without one are not counted.
    pub series_per_metric_max: Option<u64>,
    /// Members of all groups with the same labels. A group of one has no others to be counted with.
    pub series_per_group_max: Option<u64>,
    /// New series per second; ten seconds' worth may come at once.
    pub new_series_per_second_max: Option<u64>,
}

/// Series numbers are `u32` and the last is a mark, so no setting goes beyond.
pub(crate) const SERIES_LIMIT: u64 = u32::MAX as u64 - 1;

impl Default for IndexOptions {
    fn default() -> IndexOptions {
        IndexOptions {
            group_by: vec!["job".to_owned(), "instance".to_owned()],
            slots_per_group_max: 4_096,
            limits: SeriesLimits { series_max: Some(50_000_000), ..SeriesLimits::default() },
        }
    }
}

impl IndexOptions {
    /// The options with `group_by` sorted and free of repetition.
    ///
    /// # Errors
    /// `Invalid` for no slots or an empty name.
    pub(crate) fn checked(mut self) -> Result<IndexOptions> {
        if self.slots_per_group_max == 0 {
            return Err(Error::invalid(
                "slots_per_group_max is 0; a group needs at least one slot",
            ));
        }
        if self.group_by.iter().any(String::is_empty) {
            return Err(Error::invalid("group_by holds an empty label name"));
        }
        self.group_by.sort();
        self.group_by.dedup();
        Ok(self)
    }
}
