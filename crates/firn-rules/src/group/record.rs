//! The samples of a recording rule.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use firn_model::METRIC_NAME;
use firn_promql::{Expr, VectorPoint};

use super::ResultRow;

/// A recording rule, its labels with those of its group.
#[derive(Clone, Debug)]
pub struct RecordingRule {
    /// The name of the recorded metric.
    pub name: String,
    /// The expression.
    pub expr: Arc<Expr>,
    /// Labels that replace those of the result. An empty value removes a label.
    pub labels: BTreeMap<String, String>,
}

impl RecordingRule {
    /// The memory of the name and the labels in `count` results.
    pub(super) fn added_bytes(&self, count: usize) -> u64 {
        let labels = self.labels.iter().map(|(name, value)| name.len() + value.len());
        (labels.sum::<usize>() + self.name.len()).saturating_mul(count) as u64
    }
}

/// The rows that `rule` records for the result `points`.
///
/// # Errors
/// Prometheus' text if two rows have the same labels, or if there are more than `limit`, unless it
/// is 0.
pub(super) fn record(
    rule: &RecordingRule,
    points: Vec<VectorPoint>,
    limit: usize,
) -> Result<Vec<ResultRow>, String> {
    let mut seen = BTreeSet::new();
    let mut rows = Vec::with_capacity(points.len());
    for point in points {
        let labels = rule
            .labels
            .iter()
            .fold(point.labels.with(METRIC_NAME, &rule.name), |labels, (name, value)| {
                labels.with(name, value)
            });
        if !seen.insert(labels.clone()) {
            return Err(
                "vector contains metrics with the same labelset after applying rule labels"
                    .to_owned(),
            );
        }
        rows.push(ResultRow { labels, value: point.value });
    }
    if limit > 0 && rows.len() > limit {
        return Err(format!("exceeded limit of {limit} with {} series", rows.len()));
    }
    Ok(rows)
}
