//! Expressions drawn from a seed, or from a fuzzer's bytes: typed, about series that exist, and mostly with an answer.
//!
//! The generator knows the [`World`] that its expressions are about, label set by label set, and keeps track of the
//! series that each piece of an expression may give. So matchers match, groupings group, and the clause between two
//! vectors is one under which they find each other.
//!
//! Reading order: `choices`, `world`, `traits`, `vector`, `select`, `call`, `combine`, `mistake`, `features`.

mod call;
mod choices;
mod combine;
mod features;
mod mistake;
mod select;
mod traits;
mod tree;
mod vector;
mod world;

use std::collections::BTreeMap;

use firn_model::Timestamp;

pub use choices::Choices;
pub use features::{Features, features};
pub use tree::tree;
pub use world::{Grid, Kind, World, WorldSeries};

use call::Since;
use select::Wanted;
use traits::Traits;
use vector::Vector;

/// Whose language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// What Prometheus 2.42 has too, under today's names: its `holt_winters` is our `double_exponential_smoothing`.
    V2,
    /// Today's.
    V3,
}

/// Writes expressions. What it has used seldom comes more often, so that a few hundred expressions use everything.
#[derive(Clone, Debug)]
pub struct Generator<'a> {
    world: &'a World,
    dialect: Dialect,
    choices: Choices,
    metrics: BTreeMap<String, Kind>,
    used: BTreeMap<&'static str, u32>,
}

/// How deep calls and operators nest: more, and answers get empty.
const DEPTH_MAX: u32 = 4;

impl<'a> Generator<'a> {
    /// A generator of expressions about `world`.
    pub fn new(world: &'a World, dialect: Dialect, choices: Choices) -> Generator<'a> {
        let metrics =
            world.series.iter().map(|s| (s.labels.metric_name().to_owned(), s.kind)).collect();
        Generator { world, dialect, choices, metrics, used: BTreeMap::new() }
    }

    /// An expression: an instant vector mostly, sometimes a scalar.
    pub fn expression(&mut self) -> String {
        let depth = 2 + self.choices.below(DEPTH_MAX as usize - 1) as u32;
        match self.choices.below(16) {
            0 => self.scalar(depth).text,
            _ => self.vector(depth).text,
        }
    }

    /// An expression with a mistake in it.
    pub fn mistake(&mut self) -> String {
        mistake::mistake(self)
    }

    /// Evaluation times, milliseconds: whole seconds that end in 3. With windows and steps of whole tens and
    /// subquery ranges that end in 7, no evaluation of a subquery is on the edge of its window.
    pub fn times(&self) -> Vec<Timestamp> {
        let (first, last) = (self.world.start + 603_000, self.world.end);
        (first..last).step_by(470_000).collect()
    }

    /// What every run of a few hundred expressions must have used; the names are those of [`features()`].
    pub fn wanted(dialect: Dialect) -> Vec<&'static str> {
        let tables: [&[(&'static str, Since)]; 6] = [
            &call::RANGE,
            &call::MATH,
            &call::CLOCK,
            &call::SPECIAL,
            &call::SCALARS,
            &combine::AGGREGATIONS,
        ];
        let mut wanted: Vec<&'static str> = tables
            .into_iter()
            .flatten()
            .filter(|(_, since)| since.is_in(dialect))
            .map(|(name, _)| *name)
            .collect();
        wanted.extend(combine::ARITHMETIC.iter().chain(&combine::COMPARISONS));
        wanted.extend([
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
            wanted.extend(["anchored", "smoothed", "fill", "fill_left", "fill_right"]);
            wanted.push("duration expression");
        }
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }

    /// An instant vector, at most `depth` levels high.
    fn vector(&mut self, depth: u32) -> Vector {
        if depth == 0 {
            return self.selector(Wanted::Any);
        }
        match self.choices.below(34) {
            0 => self.selector(Wanted::Any),
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

    /// A vector that `fits`; a plain selector if none is found soon.
    fn vector_with(&mut self, depth: u32, fits: impl Fn(&Vector) -> bool) -> Vector {
        for _ in 0..4 {
            let vector = self.vector(depth);
            if fits(&vector) {
                return vector;
            }
        }
        for _ in 0..8 {
            let vector = self.selector(Wanted::Tame);
            if fits(&vector) {
                return vector;
            }
        }
        self.gauge()
    }

    /// The first metric of gauges as a whole: fits nearly everything.
    fn gauge(&self) -> Vector {
        let (name, _) = self.metrics.iter().find(|m| *m.1 == Kind::Gauge).expect("a gauge");
        let series = self.world.series.iter().map(|s| &s.labels);
        let series = series.filter(|labels| labels.metric_name() == name).cloned().collect();
        Vector::atom(name.clone(), series, Traits::of_kind(Kind::Gauge))
    }

    /// A vector whose series differ even without their names.
    fn unnamed_vector(&mut self, depth: u32) -> Vector {
        self.vector_with(depth, |vector| vector.nameless().is_some())
    }

    /// Of three drawn items the one that was used least.
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

    /// The same over a table, without what the dialect lacks.
    fn steer_since(&mut self, table: &[(&'static str, Since)]) -> &'static str {
        let names: Vec<&'static str> =
            table.iter().filter(|row| row.1.is_in(self.dialect)).map(|row| row.0).collect();
        self.steer(&names)
    }
}

#[cfg(test)]
mod tests;
