//! `info()`: adds labels of info metrics to series of the same target.
//!
//! Info series are read at the times of the base series: the `@` and the offsets of the first
//! selector inside the first argument, and of the subqueries around it, apply to them too.

use std::collections::{BTreeMap, BTreeSet};

use firn_model::{Error, Grouping, Labels, METRIC_NAME, MatchOp, Matcher, PointValue, Result};

use super::evaluator::Evaluator;
use super::kernel::{Kernel, NewestTimes};
use super::series::OutputSeries;
use super::vector::{VectorSeries, is_absent, labels_text};
use super::window::{Frame, MixedSamples, Samples, Steps, is_stale};
use crate::histogram::Remarks;
use crate::plan;
use crate::syntax::{Node, NodeKind};

const TARGET_INFO: &str = "target_info";
/// Sorted.
const IDENTIFYING: [&str; 2] = ["instance", "job"];

/// The matchers of the second argument.
struct InfoSelector {
    /// Matchers on the info metric's name.
    names: Vec<Matcher>,
    /// Matchers on its other labels; if there are any, only these labels are added.
    labels: Vec<Matcher>,
}

impl InfoSelector {
    fn new(arg: Option<&Node>) -> InfoSelector {
        let matchers = match arg.map(|arg| &arg.kind) {
            Some(NodeKind::Selector(selector)) => selector.matchers.clone(),
            _ => vec![Matcher::equal(METRIC_NAME, TARGET_INFO)],
        };
        let (names, labels) = matchers.into_iter().partition(|m| m.name() == METRIC_NAME);
        InfoSelector { names, labels }
    }

    /// Whether a matcher names the metric positively, and not only by exclusion.
    fn names_something(&self) -> bool {
        self.names.iter().any(|matcher| matches!(matcher.op(), MatchOp::Equal | MatchOp::Regex))
    }

    /// Whether a base series is an info series itself; such a series is returned unchanged.
    fn is_info(&self, labels: &Labels) -> bool {
        let name = labels.metric_name();
        self.names_something() && self.names.iter().all(|matcher| matcher.matches(name))
    }

    fn takes(&self, label: &str) -> bool {
        self.labels.is_empty() || self.labels.iter().any(|matcher| matcher.name() == label)
    }

    /// Whether a base series without info series is kept.
    fn allows_none(&self) -> bool {
        self.labels.iter().all(Matcher::matches_absent)
    }
}

/// Info series with the same name and the same identifying labels; the one with the newest sample
/// is used.
#[derive(Default)]
struct Candidates {
    series: Vec<usize>,
}

impl Evaluator<'_> {
    pub(super) fn info(&mut self, args: &[Node], steps: &Steps) -> Result<Vec<VectorSeries>> {
        let base = self.vector(&args[0], steps)?;
        let info_selector = InfoSelector::new(args.get(1));
        let info = self.info_series(&args[0], &base, &info_selector, steps)?;
        // By metric name, then by identifying labels.
        let mut by_target: BTreeMap<String, BTreeMap<Labels, Candidates>> = BTreeMap::new();
        for (idx, series) in info.iter().enumerate() {
            self.meter.check_canceled()?;
            // Identifying labels and an entry in each of three lists.
            self.meter.reserve_labels(series.labels.as_encoded().len())?;
            self.meter.reserve_entries(3)?;
            let metric = by_target.entry(series.labels.metric_name().to_owned()).or_default();
            metric.entry(target(&series.labels)).or_default().series.push(idx);
        }
        let mut output = OutputSeries::default();
        // The longest label set so far, which is built once more before its slot is found.
        let mut reserved = 0;
        for series in &base {
            self.meter.check_canceled()?;
            if info_selector.is_info(&series.labels) {
                let drop_name = series.drop_name;
                let slot = output.slot(&series.labels, drop_name, steps.count, &mut self.meter)?;
                (0..steps.count).try_for_each(|step| output.copy(slot, step, series))?;
                continue;
            }
            let target = target(&series.labels);
            let matching: Vec<&Candidates> =
                by_target.values().filter_map(|metric| metric.get(&target)).collect();
            let mut last: Option<(Vec<usize>, usize)> = None;
            for step in 0..steps.count {
                self.meter.check_canceled()?;
                if !series.has_point(step) {
                    continue;
                }
                let mut newest = Vec::with_capacity(matching.len());
                for candidates in &matching {
                    newest.extend(candidates.newest(&info, step)?);
                }
                if newest.is_empty() && !info_selector.allows_none() {
                    continue;
                }
                let slot = match &last {
                    Some((same, slot)) if *same == newest => *slot,
                    _ => {
                        let added = newest.iter().map(|&idx| info[idx].labels.as_encoded().len());
                        let label_bytes = added.sum::<usize>() + series.labels.as_encoded().len();
                        self.meter.reserve_labels(label_bytes.saturating_sub(reserved))?;
                        reserved = reserved.max(label_bytes);
                        let labels = enriched(&series.labels, &newest, &info, &info_selector)?;
                        output.slot(&labels, series.drop_name, steps.count, &mut self.meter)?
                    }
                };
                output.copy(slot, step, series)?;
                last = Some((newest, slot));
            }
        }
        output.finish(&self.meter)
    }

    /// The info series of all targets among `base`; their values are the times of their samples in
    /// milliseconds.
    fn info_series(
        &mut self,
        arg: &Node,
        base: &[VectorSeries],
        info_selector: &InfoSelector,
        steps: &Steps,
    ) -> Result<Vec<VectorSeries>> {
        let mut matchers = Vec::new();
        for name in IDENTIFYING {
            let of_base = base.iter().filter(|series| !info_selector.is_info(&series.labels));
            let mut bytes = 0;
            for series in of_base.clone() {
                self.meter.check_canceled()?;
                bytes += series.labels.get(name).map_or(0, str::len);
            }
            // Each value at most three times, escaped: in a set, in the pattern, in its literals.
            self.meter.reserve_items(bytes + base.len() * 24, 6)?;
            let mut values: BTreeSet<String> = BTreeSet::new();
            for series in of_base {
                self.meter.check_canceled()?;
                values.extend(series.labels.get(name).map(regex::escape));
            }
            if !values.is_empty() {
                let any = values.into_iter().collect::<Vec<_>>().join("|");
                matchers.push(Matcher::new(name, MatchOp::Regex, any)?);
            }
        }
        if matchers.is_empty() {
            return Ok(Vec::new());
        }
        matchers.extend(info_selector.labels.iter().cloned());
        if info_selector.names.is_empty() {
            matchers.push(Matcher::equal(METRIC_NAME, TARGET_INFO));
        } else if !info_selector.names_something() {
            // An exclusion alone would match every metric; by convention, info metrics end in
            // `_info`.
            matchers.push(Matcher::new(METRIC_NAME, MatchOp::Regex, ".+_info")?);
        }
        matchers.extend(info_selector.names.iter().cloned());
        let reference = ReferenceTime::of(arg).unwrap_or_default();
        let frame = Frame {
            steps: *steps,
            at: reference.at,
            offset: reference.offset,
            before: self.options.lookback_ms,
            after: 0,
        };
        self.read(&matchers, &frame, &Grouping::Series, true, &InfoTimes)
    }
}

/// The time, in milliseconds, of the newest sample of each window. Info series contain floats.
struct InfoTimes;

const TIMES: NewestTimes = NewestTimes { per_unit_ms: 1.0 };

impl Kernel for InfoTimes {
    fn floats(&self, samples: Samples<'_>, out: &mut [f64]) -> Result<()> {
        TIMES.floats(samples, out)
    }

    fn mixed(
        &self,
        samples: MixedSamples<'_>,
        out: &mut VectorSeries,
        remarks: &mut Remarks,
    ) -> Result<()> {
        let newest =
            samples.windows.iter().filter_map(|window| samples.entries.get(window.last()?));
        let mut values = newest.map(|entry| &entry.value);
        if values.any(|value| matches!(value, PointValue::Histogram(_)) && !is_stale(value)) {
            let labels = labels_text(&out.labels);
            let what = format!("this should be an info metric, with float samples: {labels}");
            return Err(Error::invalid(what));
        }
        TIMES.mixed(samples, out, remarks)
    }

    fn looks_at_windows(&self) -> bool {
        TIMES.looks_at_windows()
    }
}

/// The labels that identify the target of a series.
fn target(labels: &Labels) -> Labels {
    labels.filter(|name| IDENTIFYING.contains(&name))
}

impl Candidates {
    /// The series with the newest sample at a step.
    fn newest(&self, info: &[VectorSeries], step: usize) -> Result<Option<usize>> {
        let mut newest: Option<usize> = None;
        for &idx in &self.series {
            let time = info[idx].values[step];
            if is_absent(time) {
                continue;
            }
            match newest {
                Some(other) if info[other].values[step] > time => {}
                Some(other) if info[other].values[step] == time => {
                    let (a, b) = (labels_text(&info[other].labels), labels_text(&info[idx].labels));
                    return Err(Error::invalid(format!(
                        "found duplicate series for info metric: existing {a} @ {time}, \
                         new {b} @ {time}"
                    )));
                }
                _ => newest = Some(idx),
            }
        }
        Ok(newest)
    }
}

/// `base` with the labels of the info series that `base` lacks.
fn enriched(
    base: &Labels,
    newest: &[usize],
    info: &[VectorSeries],
    info_selector: &InfoSelector,
) -> Result<Labels> {
    let mut added: BTreeMap<&str, &str> = BTreeMap::new();
    for &idx in newest {
        for (name, value) in &info[idx].labels {
            if name == METRIC_NAME || !info_selector.takes(name) || base.get(name).is_some() {
                continue;
            }
            if added.insert(name, value).is_some_and(|known| known != value) {
                return Err(Error::invalid(format!("conflicting label: {name}")));
            }
        }
    }
    Labels::from_pairs(base.iter().chain(added))
}

/// The reference time of the first selector inside an expression.
#[derive(Clone, Copy, Default)]
struct ReferenceTime {
    at: Option<i64>,
    offset: i64,
}

impl ReferenceTime {
    fn of(node: &Node) -> Option<ReferenceTime> {
        match &node.kind {
            NodeKind::Number { .. } | NodeKind::String(_) => None,
            NodeKind::Selector(selector) => Some(ReferenceTime {
                at: plan::fixed_time(selector.at),
                offset: selector.offset.ms(),
            }),
            NodeKind::Matrix(matrix) => Some(ReferenceTime {
                at: plan::fixed_time(matrix.selector.at),
                offset: matrix.selector.offset.ms(),
            }),
            NodeKind::Subquery(subquery) => {
                let inner = ReferenceTime::of(&subquery.expr)?;
                if inner.at.is_some() {
                    return Some(inner);
                }
                let offset = inner.offset.saturating_add(subquery.offset.ms());
                Some(ReferenceTime { at: plan::fixed_time(subquery.at), offset })
            }
            NodeKind::Paren(inner) | NodeKind::Unary { operand: inner, .. } => {
                ReferenceTime::of(inner)
            }
            NodeKind::Binary(binary) => {
                ReferenceTime::of(&binary.lhs).or_else(|| ReferenceTime::of(&binary.rhs))
            }
            NodeKind::Aggregate(aggregate) => ReferenceTime::of(&aggregate.expr),
            NodeKind::Call { args, .. } => args.iter().find_map(ReferenceTime::of),
        }
    }
}
