//! Native histograms: what the language computes with them.

mod over_time;
mod remark;

pub(crate) use over_time::range_call;
pub(crate) use remark::{Remark, Remarks};
