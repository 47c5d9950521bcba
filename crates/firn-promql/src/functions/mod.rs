//! What the functions compute: straight loops over slices, one file per kind. Nothing here knows storage,
//! labels or trees.

pub(crate) mod calendar;
pub(crate) mod classic;
pub(crate) mod extended;
pub(crate) mod kahan;
pub(crate) mod math;
pub(crate) mod natural;
pub(crate) mod over_time;
pub(crate) mod partial;
pub(crate) mod quantile;
pub(crate) mod range;
pub(crate) mod rate;
pub(crate) mod regression;
