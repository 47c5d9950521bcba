//! The labels of targets and of their samples.
//!
//! [`Target::populate`] makes a target of the labels that a discovery found;
//! [`sample_labels`] unites the labels of an exposed sample with those of its target;
//! [`alertmanager_labels`] does the same for an Alertmanager as for a target.

mod alertmanager;
mod conflict;
mod populate;

pub use alertmanager::alertmanager_labels;
pub use conflict::sample_labels;
pub use populate::{ADDRESS, Target};
