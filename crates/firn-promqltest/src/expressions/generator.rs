//! The generator. Its methods are in `mod.rs` and beside the expressions that they write.

use std::collections::BTreeMap;

use super::choices::DecisionSource;
use super::dialect::Dialect;
use super::world::{MetricKind, World};

/// Writes expressions. Rarely used features are preferred, so that a few hundred expressions use
/// all of them.
#[derive(Clone, Debug)]
pub struct Generator<'a> {
    pub(super) world: &'a World,
    pub(super) dialect: Dialect,
    pub(super) choices: DecisionSource,
    pub(super) metrics: BTreeMap<String, MetricKind>,
    pub(super) used: BTreeMap<&'static str, u32>,
}
