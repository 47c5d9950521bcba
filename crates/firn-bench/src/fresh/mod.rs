//! Fresh data: label shapes of many senders, queries to each, and the figures of `bench-fresh`.
//!
//! **Owns** the series of a source ([`shape`], with its metrics and their values), the requests of
//! a sender ([`data`]), the queries ([`query`]), the selection of runs by words ([`plan`]), and the
//! ratios, aims and tables ([`figures`]). **Never** starts a program: the binary does.

pub mod data;
pub mod figures;
mod metrics;
pub mod plan;
pub mod query;
pub mod shape;
pub mod walk;
