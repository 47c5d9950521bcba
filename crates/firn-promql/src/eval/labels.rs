//! Functions that change labels or the order of series.

use std::cmp::Ordering;

use firn_model::{Error, METRIC_NAME, Result};

use super::evaluator::Evaluator;
use super::vector::{VectorSeries, is_absent, keep_floats, merge_same_labels};
use super::window::Steps;
use crate::functions::natural;
use crate::syntax::{FunctionId, Node, NodeKind, Span};

/// The bytes of a string argument.
pub(super) fn text(args: &[Node], idx: usize) -> Result<&[u8]> {
    match args.get(idx).map(|arg| &arg.kind) {
        Some(NodeKind::String(bytes)) => Ok(bytes),
        _ => Err(Error::internal("a text was expected; type checks come first")),
    }
}

/// A string argument that names a label.
fn label_name<'a>(args: &'a [Node], idx: usize, what: &str) -> Result<&'a str> {
    let bytes = text(args, idx)?;
    std::str::from_utf8(bytes).ok().filter(|name| !name.is_empty()).ok_or_else(|| {
        Error::invalid(format!("invalid {what}: {}", String::from_utf8_lossy(bytes)))
    })
}

impl Evaluator<'_> {
    pub(super) fn label_replace(
        &mut self,
        args: &[Node],
        steps: &Steps,
    ) -> Result<Vec<VectorSeries>> {
        let template = String::from_utf8_lossy(text(args, 2)?).into_owned();
        let source = String::from_utf8_lossy(text(args, 3)?).into_owned();
        let pattern = String::from_utf8_lossy(text(args, 4)?).into_owned();
        let regex = regex::RegexBuilder::new(&format!("^(?s:{pattern})$"))
            .size_limit(16 << 20)
            .build()
            .map_err(|_| {
                let what = format!("invalid regular expression in label_replace(): {pattern}");
                Error::invalid(what)
            })?;
        let target = label_name(args, 1, "destination label name in label_replace()")?;
        let mut series = self.vector(&args[0], steps)?;
        for one in &mut series {
            let value = one.labels.get(&source).unwrap_or("");
            let Some(captures) = regex.captures(value) else { continue };
            let mut replaced = String::new();
            captures.expand(&template, &mut replaced);
            one.labels = one.labels.with(target, &replaced);
            one.drop_name &= target != METRIC_NAME;
        }
        merge_same_labels(series)
    }

    pub(super) fn label_join(&mut self, args: &[Node], steps: &Steps) -> Result<Vec<VectorSeries>> {
        let separator = String::from_utf8_lossy(text(args, 2)?).into_owned();
        let sources = (3..args.len())
            .map(|idx| label_name(args, idx, "source label name in label_join()"))
            .collect::<Result<Vec<_>>>()?;
        let target = label_name(args, 1, "destination label name in label_join()")?;
        let mut series = self.vector(&args[0], steps)?;
        for one in &mut series {
            let values: Vec<&str> =
                sources.iter().map(|name| one.labels.get(name).unwrap_or("")).collect();
            one.labels = one.labels.with(target, &values.join(&separator));
            one.drop_name &= target != METRIC_NAME;
        }
        merge_same_labels(series)
    }

    /// `sort`, `sort_desc`, `sort_by_label`, `sort_by_label_desc`: only an instant query keeps this
    /// order.
    pub(super) fn sort(
        &mut self,
        span: Span,
        function: FunctionId,
        args: &[Node],
        steps: &Steps,
    ) -> Result<Vec<VectorSeries>> {
        if self.options.step_ms.is_some() {
            let text = "sort is ineffective for range queries since results are always ordered \
                        by labels";
            self.notes.warn(span, text);
        }
        let mut series = self.vector(&args[0], steps)?;
        if matches!(function, FunctionId::Sort | FunctionId::SortDesc) {
            keep_floats(&mut series);
            let descending = function == FunctionId::SortDesc;
            let value = |series: &VectorSeries| {
                series.values.first().copied().filter(|value| !is_absent(*value))
            };
            series.sort_by(|a, b| by_value(descending, value(a), value(b)));
            return Ok(series);
        }
        let names = (1..args.len())
            .map(|idx| Ok(String::from_utf8_lossy(text(args, idx)?).into_owned()))
            .collect::<Result<Vec<_>>>()?;
        series.sort_by(|a, b| {
            let by_name = |name: &String| {
                let value =
                    |series: &VectorSeries| series.labels.get(name).unwrap_or("").to_owned();
                natural::compare(&value(a), &value(b))
            };
            let order = names
                .iter()
                .map(by_name)
                .find(|order| order.is_ne())
                .unwrap_or_else(|| a.labels.cmp(&b.labels));
            if function == FunctionId::SortByLabelDesc { order.reverse() } else { order }
        });
        Ok(series)
    }
}

/// NaN last in both directions.
fn by_value(descending: bool, a: Option<f64>, b: Option<f64>) -> Ordering {
    let (a, b) = (a.unwrap_or(f64::NAN), b.unwrap_or(f64::NAN));
    let order = if descending { b.partial_cmp(&a) } else { a.partial_cmp(&b) };
    order.unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}
