//! Native histograms: the computations of the language.
//!
//! A [`firn_model::Histogram`] is plain data. This module contains its arithmetic.
//! [`RunningHistogram`] adds and scales histograms with different layouts, [`reset`] compares
//! counters, [`estimate`] computes quantiles, fractions and variances, [`trim`] cuts at a value,
//! [`buckets`] computes bounds. [`over_time`] evaluates window functions of samples that are not
//! all floats; it reports problems as [`Remarks`].
//!
//! Reading order: `buckets`, `running`, `reset`, `estimate`, `trim`, `text`, `remark`,
//! `mixed_window`, `over_time`, `extended`.

mod buckets;
mod estimate;
mod extended;
mod mixed_window;
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
pub(crate) use running::{MeanHistogram, RunningHistogram, SumHistogram, scaled};
pub use text::text;
pub(crate) use trim::trim;
