//! Native histograms: what the language computes with them.
//!
//! A [`firn_model::Histogram`] is plain data. Here is its arithmetic: [`Running`] adds and scales histograms of
//! unlike layouts, [`reset`] compares counters, [`estimate`] answers quantiles, fractions and variances, [`trim`]
//! cuts at a value, [`buckets`] knows where buckets lie. [`over_time`] is what functions of windows make of samples
//! that are not all floats; what it has to say goes out as [`Remarks`].
//!
//! Reading order: `buckets`, `running`, `reset`, `estimate`, `trim`, `text`, `remark`, `over_time`, `extended`.

mod buckets;
mod estimate;
mod extended;
mod over_time;
mod remark;
mod reset;
mod running;
mod text;
mod trim;

pub use buckets::{BoundedBucket, all_buckets};
pub(crate) use estimate::{NanEffect, fraction, quantile, variance};
pub(crate) use extended::smoothed_point;
pub(crate) use over_time::range_call;
pub(crate) use remark::{Operation, Remark, Remarks};
pub(crate) use reset::{detects_reset, same_content};
pub(crate) use running::{MeanHistogram, Running, SumHistogram, scaled};
pub(crate) use text::text;
pub(crate) use trim::trim;
