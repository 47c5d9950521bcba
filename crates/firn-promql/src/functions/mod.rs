//! The computations of the functions: straight loops over slices, one file per kind. Independent of
//! storage, labels and trees.

pub(crate) mod calendar;
pub(crate) mod classic;
pub(crate) mod extended;
pub(crate) mod extrapolation;
pub(crate) mod kahan;
pub(crate) mod math;
pub(crate) mod natural;
pub(crate) mod over_time;
pub(crate) mod partial;
pub(crate) mod quantile;
pub(crate) mod range;
pub(crate) mod range_call;
pub(crate) mod rate;
pub(crate) mod regression;
