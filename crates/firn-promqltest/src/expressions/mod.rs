//! Expressions drawn from a seed, or from a fuzzer's bytes: well typed, about existing series, and
//! usually with a result.
//!
//! The generator knows the [`World`] of its expressions with every label set, and tracks the series
//! that each part of an expression may return. So matchers match, groupings group, and the clause
//! between two vectors lets their series match.
//!
//! Reading order: `choices`, `world`, `traits`, `vector`, `dialect`, `generator`, `select`,
//! `operators`, `call`, `combine`, `mistake`, `features`.

mod call;
mod choices;
mod combine;
mod dialect;
mod features;
mod generator;
mod mistake;
mod operators;
mod select;
mod traits;
mod tree;
mod vector;
mod world;

use std::collections::BTreeMap;

use firn_model::Timestamp;

pub use choices::DecisionSource;
pub use dialect::Dialect;
pub use features::{Features, features};
pub use generator::Generator;
pub use tree::tree;
pub use world::{MetricKind, TimeAlignment, World, WorldSeries};

use dialect::Availability;
use select::ValueNeed;
use traits::Traits;
use vector::VectorText;

/// The maximum nesting of calls and operators: deeper expressions have empty results.
const DEPTH_MAX: u32 = 4;

impl<'a> Generator<'a> {
    /// A generator of expressions about `world`.
    pub fn new(world: &'a World, dialect: Dialect, choices: DecisionSource) -> Generator<'a> {
        let metrics =
            world.series.iter().map(|s| (s.labels.metric_name().to_owned(), s.kind)).collect();
        Generator { world, dialect, choices, metrics, used: BTreeMap::new() }
    }

    /// An expression: usually an instant vector, sometimes a scalar.
    pub fn expression(&mut self) -> String {
        let depth = 2 + self.choices.below(DEPTH_MAX as usize - 1) as u32;
        match self.choices.below(16) {
            0 => self.scalar(depth).text,
            _ => self.vector(depth).text,
        }
    }

    /// An expression that every parser must refuse.
    pub fn mistake(&mut self) -> String {
        mistake::mistake(self)
    }

    /// Evaluation times, in milliseconds: whole seconds that end in 3. With windows and steps of
    /// whole tens and subquery ranges that end in 7, no evaluation of a subquery is on the boundary
    /// of its window.
    pub fn times(&self) -> Vec<Timestamp> {
        let (first, last) = (self.world.start + 603_000, self.world.end);
        (first..last).step_by(470_000).collect()
    }

    /// The features that every run of a few hundred expressions must use, with the names of
    /// [`features()`].
    pub fn required_features(dialect: Dialect) -> Vec<&'static str> {
        let tables: [&[(&'static str, Availability)]; 6] = [
            &call::RANGE,
            &call::MATH,
            &call::CLOCK,
            &call::SPECIAL,
            &call::SCALARS,
            &combine::AGGREGATIONS,
        ];
        let mut required: Vec<&'static str> = tables
            .into_iter()
            .flatten()
            .filter(|(_, since)| since.is_in(dialect))
            .map(|(name, _)| *name)
            .collect();
        required.extend(operators::ARITHMETIC.iter().chain(&operators::COMPARISONS));
        required.extend([
            "and",
            "or",
            "unless",
            "bool",
            "filter",
            "unary -",
            "unary +",
            "by",
            "without",
            "on",
            "ignoring",
            "group_left",
            "group_right",
            "group with labels",
            "offset",
            "offset negative",
            "@ time",
            "@ start()",
            "@ end()",
            "subquery",
            "subquery default step",
            "range",
            "selector without name",
            "matcher =",
            "matcher !=",
            "matcher =~",
            "matcher !~",
        ]);
        if dialect == Dialect::V3 {
            required.extend(["anchored", "smoothed", "fill", "fill_left", "fill_right"]);
            required.push("duration expression");
        }
        required.sort_unstable();
        required.dedup();
        required
    }

    /// An instant vector with at most `depth` levels.
    fn vector(&mut self, depth: u32) -> VectorText {
        if depth == 0 {
            return self.selector(ValueNeed::Any);
        }
        match self.choices.below(34) {
            0 => self.selector(ValueNeed::Any),
            1..=7 => self.range_call(depth),
            8..=17 => self.math_call(depth),
            18..=19 => self.clock_call(depth),
            20..=22 => self.special_call(depth),
            23..=26 => self.aggregation(depth),
            27..=28 => self.scalar_binary(depth),
            29..=30 => self.vector_binary(depth),
            31..=32 => self.set_binary(depth),
            _ => self.unary(depth),
        }
    }

    /// A vector for which `fits` holds; a gauge selector if none is found within a few attempts.
    fn vector_with(&mut self, depth: u32, fits: impl Fn(&VectorText) -> bool) -> VectorText {
        for _ in 0..4 {
            let vector = self.vector(depth);
            if fits(&vector) {
                return vector;
            }
        }
        for _ in 0..8 {
            let vector = self.selector(ValueNeed::Tame);
            if fits(&vector) {
                return vector;
            }
        }
        self.gauge()
    }

    /// All series of the first gauge metric: valid for nearly every operator.
    fn gauge(&self) -> VectorText {
        let (name, _) = self.metrics.iter().find(|m| *m.1 == MetricKind::Gauge).expect("a gauge");
        let series = self.world.series.iter().map(|s| &s.labels);
        let series = series.filter(|labels| labels.metric_name() == name).cloned().collect();
        VectorText::atom(name.clone(), series, Traits::of_kind(MetricKind::Gauge))
    }

    /// A vector with series that differ even without their names.
    fn unnamed_vector(&mut self, depth: u32) -> VectorText {
        self.vector_with(depth, |vector| vector.nameless().is_some())
    }

    /// The least used of three drawn items.
    fn steer<'t>(&mut self, items: &'t [&'static str]) -> &'t &'static str {
        let mut best = self.choices.pick(items);
        for _ in 0..2 {
            let other = self.choices.pick(items);
            let used = |name: &str| self.used.get(name).copied().unwrap_or(0);
            if used(other) < used(best) {
                best = other;
            }
        }
        *self.used.entry(best).or_default() += 1;
        best
    }

    /// The same over a table, without the functions that the dialect lacks.
    fn steer_available(&mut self, table: &[(&'static str, Availability)]) -> &'static str {
        let names: Vec<&'static str> =
            table.iter().filter(|row| row.1.is_in(self.dialect)).map(|row| row.0).collect();
        self.steer(&names)
    }
}

#[cfg(test)]
mod tests;
