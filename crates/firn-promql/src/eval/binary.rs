//! Binary operators: between numbers, between a vector and a number, between two vectors.
//!
//! Vectors are matched once for all steps. Series are grouped by their signature (the labels that
//! `on` or `ignoring` selects), then each group is computed column by column. Errors of a single
//! step (two candidates on a "one" side, two results with one label set) are detected step by step
//! inside the group.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use firn_model::{Error, Histogram, Labels, METRIC_NAME, PointValue, ResetHint, Result};

use super::meter::{Meter, POINTS_PER_CHECK};
use super::series::{OutputSeries, drop_empty};
use super::vector::{ABSENT, VectorSeries, is_absent, is_metadata_label, labels_text};
use crate::histogram::{self, Operation, Remark, RunningHistogram};
use crate::syntax::{BinaryOp, Cardinality, Matching};

/// `lhs op rhs` for an arithmetic or comparison operator; the bool is the result of a comparison.
fn compute(op: BinaryOp, lhs: f64, rhs: f64) -> (f64, bool) {
    match op {
        BinaryOp::Add => (lhs + rhs, true),
        BinaryOp::Sub => (lhs - rhs, true),
        BinaryOp::Mul => (lhs * rhs, true),
        BinaryOp::Div => (lhs / rhs, true),
        BinaryOp::Mod => (lhs % rhs, true),
        BinaryOp::Pow => (lhs.powf(rhs), true),
        BinaryOp::Atan2 => (lhs.atan2(rhs), true),
        BinaryOp::Equal => (lhs, lhs == rhs),
        BinaryOp::NotEqual => (lhs, lhs != rhs),
        BinaryOp::Less => (lhs, lhs < rhs),
        BinaryOp::LessEqual => (lhs, lhs <= rhs),
        BinaryOp::Greater => (lhs, lhs > rhs),
        BinaryOp::GreaterEqual => (lhs, lhs >= rhs),
        // Trimming applies to histograms; set operators compute nothing.
        BinaryOp::TrimUpper
        | BinaryOp::TrimLower
        | BinaryOp::And
        | BinaryOp::Or
        | BinaryOp::Unless => (lhs, false),
    }
}

/// Whether the operator works on histograms only, so that floats have no result.
pub(crate) fn wants_histograms(op: BinaryOp) -> bool {
    matches!(op, BinaryOp::TrimUpper | BinaryOp::TrimLower)
}

/// `op` between two scalars per step. Comparisons return 0 or 1.
///
/// # Errors
/// `Invalid` for an operator that is not defined for scalars.
pub(crate) fn scalars(op: BinaryOp, lhs: &[f64], rhs: &[f64]) -> Result<Vec<f64>> {
    if wants_histograms(op) || op.is_set() {
        let what = format!("operator {:?} not allowed for Scalar operations", op.text());
        return Err(Error::invalid(what));
    }
    let one = |(lhs, rhs): (&f64, &f64)| {
        let (value, holds) = compute(op, *lhs, *rhs);
        if op.is_comparison() { f64::from(u8::from(holds)) } else { value }
    };
    Ok(lhs.iter().zip(rhs).map(one).collect())
}

/// The remarks of an operator on its points.
pub(crate) type PointNotes = BTreeSet<PointNote>;

/// A remark of an operator on its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PointNote {
    /// The operator does not support these two kinds of operands.
    Types(&'static str, &'static str),
    /// One operand has exponential buckets, the other custom buckets.
    Layout,
    /// A remark of histogram arithmetic.
    Remark(Remark),
}

/// One side of an operator.
#[derive(Clone, Copy)]
enum Operand<'a> {
    Float(f64),
    Histogram(&'a Histogram),
}

impl Operand<'_> {
    fn kind(self) -> &'static str {
        match self {
            Operand::Float(_) => "float",
            Operand::Histogram(_) => "histogram",
        }
    }
}

/// The point of a series at a step that has one.
fn operand(series: &VectorSeries, step: usize) -> Operand<'_> {
    let value = series.values[step];
    if !is_absent(value) {
        return Operand::Float(value);
    }
    series.histogram(step).map_or(Operand::Float(value), |h| Operand::Histogram(h))
}

/// `lhs op rhs` if a histogram is involved or required; the bool is the result of a comparison.
/// `None` if the operation is not defined.
fn compute_points(
    op: BinaryOp,
    lhs: Operand<'_>,
    rhs: Operand<'_>,
    notes: &mut PointNotes,
) -> Option<(PointValue, bool)> {
    let histogram = |histogram: Histogram| Some((PointValue::Histogram(Arc::new(histogram)), true));
    match (op, lhs, rhs) {
        (BinaryOp::Mul, Operand::Float(factor), Operand::Histogram(h))
        | (BinaryOp::Mul, Operand::Histogram(h), Operand::Float(factor)) => {
            histogram(histogram::scaled(h, factor))
        }
        (BinaryOp::Div, Operand::Histogram(h), Operand::Float(divisor)) => {
            let mut running: RunningHistogram<f64> = RunningHistogram::new(h);
            running.divide(divisor);
            histogram(running.finish())
        }
        (BinaryOp::TrimUpper, Operand::Histogram(h), Operand::Float(limit)) => {
            histogram(histogram::trim(h, limit, false))
        }
        (BinaryOp::TrimLower, Operand::Histogram(h), Operand::Float(limit)) => {
            histogram(histogram::trim(h, limit, true))
        }
        (BinaryOp::Add | BinaryOp::Sub, Operand::Histogram(a), Operand::Histogram(b)) => {
            let sum = added(op == BinaryOp::Sub, a, b, notes)?;
            histogram(sum)
        }
        (BinaryOp::Equal | BinaryOp::NotEqual, Operand::Histogram(a), Operand::Histogram(b)) => {
            let holds = histogram::same_content(a, b) == (op == BinaryOp::Equal);
            Some((PointValue::Histogram(Arc::new(a.clone())), holds))
        }
        _ => {
            notes.insert(PointNote::Types(lhs.kind(), rhs.kind()));
            None
        }
    }
}

fn added(
    subtracts: bool,
    a: &Histogram,
    b: &Histogram,
    notes: &mut PointNotes,
) -> Option<Histogram> {
    let mut running: RunningHistogram<f64> = RunningHistogram::new(a);
    let merged = if subtracts { running.subtract(b) } else { running.add(b) };
    let Ok(merged) = merged else {
        notes.insert(PointNote::Layout);
        return None;
    };
    let operation = if subtracts { Operation::Subtraction } else { Operation::Addition };
    if merged.resets_conflict {
        notes.insert(PointNote::Remark(Remark::ResetsConflict(operation)));
    }
    if merged.bounds_differed {
        notes.insert(PointNote::Remark(Remark::BoundsDiffered(operation)));
    }
    if subtracts {
        running.reset_hint = ResetHint::Gauge;
    }
    Some(running.finish())
}

/// Computes `op` between each point of `series` and the scalar of its step. With `swapped` the
/// scalar is the left operand.
///
/// # Errors
/// As [`Meter::check_canceled`].
pub(crate) fn with_scalar(
    op: BinaryOp,
    series: &mut Vec<VectorSeries>,
    scalar: &[f64],
    swapped: bool,
    return_bool: bool,
    notes: &mut PointNotes,
    meter: &Meter,
) -> Result<()> {
    for one in series.iter_mut() {
        if wants_histograms(op) || !one.histograms.is_empty() {
            points_with_scalar(op, one, scalar, swapped, return_bool, notes, meter)?;
            continue;
        }
        let points = one.values.iter_mut().zip(scalar);
        for (step, (value, &scalar)) in points.enumerate() {
            if step % POINTS_PER_CHECK == 0 {
                meter.check_canceled()?;
            }
            if is_absent(*value) {
                continue;
            }
            let point = *value;
            let (lhs, rhs) = if swapped { (scalar, point) } else { (point, scalar) };
            let (result, holds) = compute(op, lhs, rhs);
            *value = if return_bool {
                f64::from(u8::from(holds))
            } else if !holds {
                ABSENT
            } else if op.is_comparison() {
                // A filter keeps the vector's value, whichever side the vector is on.
                point
            } else {
                result
            };
        }
    }
    drop_empty(series, meter)
}

/// The same for a series that may contain histograms.
fn points_with_scalar(
    op: BinaryOp,
    series: &mut VectorSeries,
    scalar: &[f64],
    swapped: bool,
    return_bool: bool,
    notes: &mut PointNotes,
    meter: &Meter,
) -> Result<()> {
    for (step, &scalar) in scalar.iter().enumerate() {
        meter.check_canceled()?;
        let Some(point) = series.point(step) else { continue };
        let number = Operand::Float(scalar);
        let (lhs, rhs) = match swapped {
            true => (number, operand(series, step)),
            false => (operand(series, step), number),
        };
        let result = match (lhs, rhs) {
            (Operand::Float(lhs), Operand::Float(rhs)) if !wants_histograms(op) => {
                let (value, holds) = compute(op, lhs, rhs);
                Some((PointValue::Float(value), holds))
            }
            _ => compute_points(op, lhs, rhs, notes),
        };
        series.remove(step);
        let Some((value, holds)) = result else { continue };
        let value = if return_bool {
            PointValue::Float(f64::from(u8::from(holds)))
        } else if !holds {
            continue;
        } else if op.is_comparison() {
            point
        } else {
            value
        };
        series.set(step, value);
    }
    Ok(())
}

/// `and`, `or`, `unless`.
///
/// # Errors
/// `Invalid` if two resulting series have one label set at one step, and as [`Meter::reserve`].
pub(crate) fn sets(
    op: BinaryOp,
    lhs: Vec<VectorSeries>,
    rhs: Vec<VectorSeries>,
    matching: &Matching,
    step_count: usize,
    meter: &mut Meter,
) -> Result<Vec<VectorSeries>> {
    let signature = Signature { matching };
    // The deciding side: a point present there keeps or drops the points of the other side.
    let deciding = if op == BinaryOp::Or { &lhs } else { &rhs };
    let mut present: HashMap<Labels, Vec<bool>> = HashMap::new();
    for series in deciding {
        meter.check_canceled()?;
        let key = signature.of(&series.labels);
        if !present.contains_key(&key) {
            meter.reserve_labels(key.as_encoded().len())?;
            meter.reserve_entries(1)?;
            meter.reserve(step_count as u64)?;
        }
        let steps = present.entry(key).or_insert_with(|| vec![false; step_count]);
        for (step, present) in steps.iter_mut().enumerate() {
            *present |= series.has_point(step);
        }
    }
    let keep_present = op == BinaryOp::And;
    let filter = |series: &mut VectorSeries| {
        let steps = present.get(&signature.of(&series.labels));
        for step in 0..step_count {
            if steps.is_some_and(|steps| steps[step]) != keep_present {
                series.remove(step);
            }
        }
        !series.is_empty()
    };
    let (mut kept, mut filtered) = if op == BinaryOp::Or { (lhs, rhs) } else { (Vec::new(), lhs) };
    meter.retain(&mut filtered, filter)?;
    if kept.is_empty() {
        return Ok(filtered);
    }
    kept.append(&mut filtered);
    super::series::merge_same_labels(kept, meter)
}

/// The labels by which series match.
struct Signature<'a> {
    matching: &'a Matching,
}

impl Signature<'_> {
    fn of(&self, labels: &Labels) -> Labels {
        let named = |name: &str| self.matching.labels.iter().any(|label| label == name);
        if self.matching.on {
            labels.filter(named)
        } else {
            labels.filter(|name| name != METRIC_NAME && !named(name))
        }
    }
}

/// Both sides of one group.
#[derive(Clone, Copy)]
struct Sides<'a> {
    many: &'a [VectorSeries],
    one: &'a [VectorSeries],
    /// The index of the selected series of the "one" side at each step.
    candidates: &'a [u32],
    active: &'a [bool],
}

/// Series with one signature.
#[derive(Default)]
struct Group {
    many: Vec<usize>,
    one: Vec<usize>,
}

/// No series on the "one" side at a step.
const NONE: u32 = u32::MAX;

/// An arithmetic or comparison operator between two vectors.
pub(crate) struct VectorOperation<'a> {
    pub(crate) op: BinaryOp,
    pub(crate) matching: &'a Matching,
    pub(crate) return_bool: bool,
    pub(crate) step_count: usize,
    /// Whether names are dropped only at the end.
    pub(crate) delayed_names: bool,
}

impl VectorOperation<'_> {
    /// Evaluates the operator.
    ///
    /// # Errors
    /// `Invalid` when series match many-to-many, or many-to-one without `group_left` or
    /// `group_right`, and as [`Meter::reserve`].
    pub(crate) fn run(
        &self,
        lhs: Vec<VectorSeries>,
        rhs: Vec<VectorSeries>,
        notes: &mut PointNotes,
        meter: &mut Meter,
    ) -> Result<Vec<VectorSeries>> {
        let (many, one) = if self.swapped() { (rhs, lhs) } else { (lhs, rhs) };
        // Candidates and flags of each step, for one group at a time.
        meter.reserve_items(self.step_count, 8)?;
        let active = self.active_steps(&many, &one, meter)?;
        let mut output = OutputSeries::default();
        for (signature, group) in &self.groups(&many, &one, meter)? {
            meter.check_canceled()?;
            let candidates = self.one_side(signature, group, &one, &active, meter)?;
            let sides = Sides { many: &many, one: &one, candidates: &candidates, active: &active };
            self.group(signature, group, &sides, &mut output, notes, meter)?;
        }
        output.finish(meter)
    }

    fn swapped(&self) -> bool {
        self.matching.cardinality == Cardinality::OneToMany
    }

    /// The fill values of the "many" side and of the "one" side. With `group_right` the sides are
    /// swapped but the fill values are not: Prometheus does the same, and its tests require it.
    fn fills(&self) -> (Option<f64>, Option<f64>) {
        (self.matching.fill_left, self.matching.fill_right)
    }

    /// Steps without a point on one side have no result and no error, unless values are filled in.
    fn active_steps(
        &self,
        many: &[VectorSeries],
        one: &[VectorSeries],
        meter: &Meter,
    ) -> Result<Vec<bool>> {
        let any = |series: &[VectorSeries]| -> Result<Vec<bool>> {
            let mut steps = vec![false; self.step_count];
            for series in series {
                meter.check_canceled()?;
                for (step, any) in steps.iter_mut().enumerate() {
                    *any |= series.has_point(step);
                }
            }
            Ok(steps)
        };
        if self.fills() != (None, None) {
            return Ok(vec![true; self.step_count]);
        }
        Ok(any(many)?.into_iter().zip(any(one)?).map(|(many, one)| many && one).collect())
    }

    /// The groups, ordered by the first series with their signature.
    fn groups(
        &self,
        many: &[VectorSeries],
        one: &[VectorSeries],
        meter: &mut Meter,
    ) -> Result<Vec<(Labels, Group)>> {
        let signature = Signature { matching: self.matching };
        let mut groups: Vec<(Labels, Group)> = Vec::new();
        let mut by_signature: HashMap<Labels, usize> = HashMap::new();
        let all = many.iter().map(|s| (s, true)).enumerate();
        for (idx, (series, is_many)) in all.chain(one.iter().map(|s| (s, false)).enumerate()) {
            meter.check_canceled()?;
            let labels = signature.of(&series.labels);
            // An index in a list of its own, at least four long.
            meter.reserve_items(4, size_of::<usize>())?;
            if !by_signature.contains_key(&labels) {
                meter.reserve_labels(labels.as_encoded().len())?;
                meter.reserve_items(2, size_of::<(Labels, Group)>())?;
                meter.reserve_entries(1)?;
            }
            let group_idx = *by_signature.entry(labels.clone()).or_insert_with(|| {
                groups.push((labels, Group::default()));
                groups.len() - 1
            });
            let group = &mut groups[group_idx].1;
            if is_many { group.many.push(idx) } else { group.one.push(idx) }
        }
        Ok(groups)
    }

    /// The index of the selected series of the "one" side at each step.
    fn one_side(
        &self,
        signature: &Labels,
        group: &Group,
        one: &[VectorSeries],
        active: &[bool],
        meter: &Meter,
    ) -> Result<Vec<u32>> {
        let mut candidates = vec![NONE; self.step_count];
        for &idx in &group.one {
            meter.check_canceled()?;
            for step in 0..self.step_count {
                if !active[step] || !one[idx].has_point(step) {
                    continue;
                }
                if candidates[step] != NONE {
                    let other = &one[candidates[step] as usize];
                    return Err(self.duplicates(signature, &one[idx].labels, &other.labels));
                }
                candidates[step] = idx as u32;
            }
        }
        Ok(candidates)
    }

    fn duplicates(&self, signature: &Labels, a: &Labels, b: &Labels) -> Error {
        let side = if self.swapped() { "left" } else { "right" };
        let (a, b) = (labels_text(a), labels_text(b));
        let (first, second) = if a < b { (a, b) } else { (b, a) };
        Error::invalid(format!(
            "found duplicate series for the match group {} on the {side} hand-side of the \
             operation: [{first}, {second}];many-to-many matching not allowed: matching labels \
             must be unique on one side",
            labels_text(signature)
        ))
    }

    fn group(
        &self,
        signature: &Labels,
        group: &Group,
        sides: &Sides<'_>,
        output: &mut OutputSeries,
        notes: &mut PointNotes,
        meter: &mut Meter,
    ) -> Result<()> {
        let Sides { many, one, candidates, active } = *sides;
        let (fill_many, fill_one) = self.fills();
        let has_histograms = |series: &VectorSeries| !series.histograms.is_empty();
        let is_plain = !wants_histograms(self.op)
            && !group.many.iter().any(|&idx| has_histograms(&many[idx]))
            && !group.one.iter().any(|&idx| has_histograms(&one[idx]));
        let mut seen = MatchedSteps::new(self.matching.cardinality, self.step_count);
        for &idx in &group.many {
            let series = &many[idx];
            let mut pair = PairResult::default();
            for step in 0..self.step_count {
                if !is_plain || step % POINTS_PER_CHECK == 0 {
                    meter.check_canceled()?;
                }
                if !active[step] || !series.has_point(step) {
                    continue;
                }
                let (other, labels) = match (candidates[step], fill_one) {
                    (NONE, None) => continue,
                    (NONE, Some(fill)) => (Operand::Float(fill), signature),
                    (candidate, _) => {
                        let other = &one[candidate as usize];
                        (operand(other, step), &other.labels)
                    }
                };
                let sides = (&series.labels, labels);
                let target = pair.target(self, candidates[step], sides, &mut seen, meter)?;
                seen.mark(target, step)?;
                if is_plain && let Operand::Float(other) = other {
                    if let Some(result) = self.float_result(series.values[step], other) {
                        let slot = pair.slot(self, series.drop_name, output, meter)?;
                        output.put(slot, step, result)?;
                    }
                    continue;
                }
                if let Some(result) = self.result(operand(series, step), other, notes) {
                    let slot = pair.slot(self, series.drop_name, output, meter)?;
                    output.put_point(slot, step, result)?;
                }
            }
        }
        let Some(fill) = fill_many else { return Ok(()) };
        let mut pair = PairResult::default();
        for (step, &candidate) in candidates.iter().enumerate() {
            if candidate == NONE || seen.matched[step] {
                continue;
            }
            let other = &one[candidate as usize];
            pair.target(self, candidate, (signature, &other.labels), &mut seen, meter)?;
            let filled = Operand::Float(fill);
            if let Some(result) = self.result(filled, operand(other, step), notes) {
                let slot = pair.slot(self, false, output, meter)?;
                output.put_point(slot, step, result)?;
            }
        }
        Ok(())
    }

    /// The value of one pair of points; `None` if a comparison drops it.
    fn result(
        &self,
        many: Operand<'_>,
        one: Operand<'_>,
        notes: &mut PointNotes,
    ) -> Option<PointValue> {
        if let (Operand::Float(many), Operand::Float(one)) = (many, one)
            && !wants_histograms(self.op)
        {
            return self.float_result(many, one).map(PointValue::Float);
        }
        let (lhs, rhs) = if self.swapped() { (one, many) } else { (many, one) };
        let (value, holds) = compute_points(self.op, lhs, rhs, notes)?;
        if self.return_bool {
            return Some(PointValue::Float(f64::from(u8::from(holds))));
        }
        holds.then_some(value)
    }

    /// The same for floats.
    fn float_result(&self, many: f64, one: f64) -> Option<f64> {
        let (lhs, rhs) = if self.swapped() { (one, many) } else { (many, one) };
        let (value, holds) = compute(self.op, lhs, rhs);
        if self.return_bool {
            return Some(f64::from(u8::from(holds)));
        }
        holds.then_some(value)
    }

    /// The labels of the result of a series of the "many" side with a series of the "one" side.
    fn result_labels(&self, many: &Labels, one: &Labels) -> Labels {
        let matching = self.matching;
        let drops_name = self.op.is_arithmetic() || (self.return_bool && !self.delayed_names);
        let one_to_one = matching.cardinality == Cardinality::OneToOne;
        let mut labels = many.filter(|name| {
            let named = || matching.labels.iter().any(|label| label == name);
            !(drops_name && is_metadata_label(name)) && (!one_to_one || named() == matching.on)
        });
        for name in &matching.include {
            labels = labels.with(name, one.get(name).unwrap_or(""));
        }
        labels
    }
}

/// The result series of one "many" series and its matching "one" series, which is usually the same
/// at every step.
struct PairResult {
    candidate: Option<u32>,
    labels: Labels,
    slot: Option<usize>,
    target: usize,
}

impl Default for PairResult {
    fn default() -> PairResult {
        PairResult { candidate: None, labels: Labels::empty(), slot: None, target: 0 }
    }
}

impl PairResult {
    fn target(
        &mut self,
        operation: &VectorOperation<'_>,
        candidate: u32,
        (many, one): (&Labels, &Labels),
        seen: &mut MatchedSteps,
        meter: &mut Meter,
    ) -> Result<usize> {
        if self.candidate != Some(candidate) {
            self.labels = operation.result_labels(many, one);
            self.target = seen.target(&self.labels, meter)?;
            self.candidate = Some(candidate);
            self.slot = None;
        }
        Ok(self.target)
    }

    /// The output slot of the result; created when the first point is stored.
    fn slot(
        &mut self,
        operation: &VectorOperation<'_>,
        drop_name: bool,
        output: &mut OutputSeries,
        meter: &mut Meter,
    ) -> Result<usize> {
        if let Some(slot) = self.slot {
            return Ok(slot);
        }
        let drop_name = operation.return_bool || drop_name;
        let slot = output.slot(&self.labels, drop_name, operation.step_count, meter)?;
        self.slot = Some(slot);
        Ok(slot)
    }
}

/// The steps at which a group produced results, including results that a comparison dropped.
struct MatchedSteps {
    cardinality: Cardinality,
    /// Steps with a match.
    matched: Vec<bool>,
    /// With grouping: the same for each label set of the result.
    targets: Vec<Vec<bool>>,
    by_labels: HashMap<Labels, usize>,
}

impl MatchedSteps {
    fn new(cardinality: Cardinality, step_count: usize) -> MatchedSteps {
        let matched = vec![false; step_count];
        MatchedSteps { cardinality, matched, targets: Vec::new(), by_labels: HashMap::new() }
    }

    fn target(&mut self, labels: &Labels, meter: &mut Meter) -> Result<usize> {
        if self.cardinality == Cardinality::OneToOne {
            return Ok(0);
        }
        if let Some(&idx) = self.by_labels.get(labels) {
            return Ok(idx);
        }
        meter.reserve_labels(labels.as_encoded().len())?;
        meter.reserve_entries(2)?;
        meter.reserve(self.matched.len() as u64)?;
        self.targets.push(vec![false; self.matched.len()]);
        self.by_labels.insert(labels.clone(), self.targets.len() - 1);
        Ok(self.targets.len() - 1)
    }

    fn mark(&mut self, target: usize, step: usize) -> Result<()> {
        let seen_before = match self.targets.get_mut(target) {
            Some(steps) => std::mem::replace(&mut steps[step], true),
            None => self.matched[step],
        };
        self.matched[step] = true;
        if !seen_before {
            return Ok(());
        }
        Err(Error::invalid(if self.cardinality == Cardinality::OneToOne {
            "multiple matches for labels: many-to-one matching must be explicit \
             (group_left/group_right)"
        } else {
            "multiple matches for labels: grouping labels must ensure unique matches"
        }))
    }
}
