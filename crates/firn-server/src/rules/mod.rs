//! Rules: evaluates the rule files of the configuration and sends alerts.
//!
//! **Owns** the groups that run, their threads and their share of memory; the series that rules
//! write; and the state of rules for the API. **Never** decides when an alert fires: that is
//! `firn-rules`. Delivery is `notify`.
//!
//! **Path through**: [`RuleManager`] is a part of the configuration. [`load::load`] reads rule
//! files, [`table::GroupTable`] knows which group is due, a thread evaluates it over
//! [`storage::RuleStorage`] and publishes a [`view::LastEvaluation`].
//!
//! **Invariants**: an evaluation waits for no dashboard: threads and memory are reserved for rules;
//! a group is evaluated by at most one thread at a time, and others only run its queries; all
//! queries of an evaluation have the time of its slot; a reload is all or nothing and waits for no
//! evaluation; memory of results, series and texts of alerts is reserved first; alerts are saved
//! before they are sent.
//!
//! Reading order: `options`, `view`, `load`, `table`, `watch`, `stage`, `storage`, `templates`,
//! `saved`, `evaluator`, `manager`, `metrics`.

mod evaluator;
mod load;
mod manager;
mod metrics;
mod options;
mod saved;
mod stage;
mod storage;
mod table;
mod templates;
mod view;
mod watch;

#[cfg(test)]
mod tests;

pub(crate) use self::manager::RuleManager;
pub(crate) use self::options::RuleOptions;
pub(crate) use self::view::{LastEvaluation, RuleOutcome, ShownGroup};
