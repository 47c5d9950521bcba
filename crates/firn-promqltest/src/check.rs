//! Compares a result with the expectation.

use std::collections::BTreeMap;
use std::sync::Arc;

use firn_model::{Labels, Timestamp};
use firn_promql::notation::{SeriesItem, SeriesLine};
use firn_promql::{Annotations, PointValue, Series, Value, VectorPoint};

use super::compare::almost_equal;
use super::histogram;
use super::script::{Case, TextPattern};

/// The difference from the expectation, if any.
pub(super) type Verdict = Result<(), String>;

/// The last line for each label set.
fn by_labels(lines: &[SeriesLine]) -> BTreeMap<&Labels, &SeriesLine> {
    lines.iter().map(|line| (&line.labels, line)).collect()
}

/// The expected points of a line, at `start`, `start + step_ms`, ...
fn points(line: &SeriesLine, start: Timestamp, step_ms: i64) -> Vec<(Timestamp, &SeriesItem)> {
    let place = |(idx, item)| (start + idx as i64 * step_ms, item);
    line.items.iter().enumerate().map(place).filter(|point| *point.1 != SeriesItem::Gap).collect()
}

fn same_value(expected: &SeriesItem, got: &PointValue) -> bool {
    match (expected, got) {
        (SeriesItem::Float(wanted), PointValue::Float(got)) => almost_equal(*wanted, *got),
        (SeriesItem::Histogram(wanted), PointValue::Histogram(got)) => histogram::same(wanted, got),
        _ => false,
    }
}

/// Checks the result of the query itself, at its own time.
pub(super) fn value(case: &Case, got: &Value) -> Verdict {
    if let Some((start, end, step_ms)) = case.range_vector {
        let Value::Matrix(matrix) = got else { return Err(format!("no range vector: {got:?}")) };
        return self::matrix(case, matrix, (start, end, step_ms));
    }
    match got {
        Value::String { value, .. } => match &case.text {
            Some(wanted) if wanted == value => Ok(()),
            wanted => Err(format!("got string {value:?}, expected {wanted:?}")),
        },
        Value::Scalar { value, .. } => scalar(case, *value),
        Value::Vector(vector) => self::vector(case, vector),
        Value::Matrix(matrix) => match case.when {
            super::script::EvalTime::Range { start, end, step_ms } => {
                self::matrix(case, matrix, (start, end, step_ms))
            }
            super::script::EvalTime::Instant(_) => Err("got a range vector".to_owned()),
        },
    }
}

pub(super) fn scalar(case: &Case, got: f64) -> Verdict {
    match case.scalar {
        Some(wanted) if almost_equal(wanted, got) => Ok(()),
        wanted => Err(format!("got scalar {got}, expected {wanted:?}")),
    }
}

pub(super) fn vector(case: &Case, got: &[VectorPoint]) -> Verdict {
    if let Some(wanted) = case.scalar {
        return Err(format!("got a vector, expected scalar {wanted}"));
    }
    let expected = by_labels(&case.series);
    if got.len() != expected.len() {
        let labels: Vec<_> = got.iter().map(|point| &point.labels).collect();
        return Err(format!("got {} series, expected {}: {labels:?}", got.len(), expected.len()));
    }
    for (idx, point) in got.iter().enumerate() {
        let Some(line) = expected.get(&point.labels) else {
            return Err(format!("got {}, which is not expected", point.labels));
        };
        match line.items.as_slice() {
            [item] if same_value(item, &point.value) => {}
            items => {
                return Err(format!("{}: got {:?}, expected {items:?}", point.labels, point.value));
            }
        }
        if case.ordered && case.series.get(idx).is_none_or(|line| line.labels != point.labels) {
            return Err(format!("{} is at position {}", point.labels, idx + 1));
        }
    }
    Ok(())
}

/// Checks a matrix; `times` are start, end and step of the expected points.
fn matrix(case: &Case, got: &[Series], times: (Timestamp, Timestamp, i64)) -> Verdict {
    let (start, end, step_ms) = times;
    let expected = by_labels(&case.series);
    if got.len() != expected.len() {
        let labels: Vec<_> = got.iter().map(|series| &series.labels).collect();
        return Err(format!("got {} series, expected {}: {labels:?}", got.len(), expected.len()));
    }
    if !got.is_sorted_by(|a, b| a.labels <= b.labels) {
        return Err("the series are not sorted".to_owned());
    }
    for series in got {
        let Some(line) = expected.get(&series.labels) else {
            return Err(format!("got {}, which is not expected", series.labels));
        };
        let wanted = points(line, start, step_ms);
        if wanted.last().is_some_and(|point| point.0 > end) {
            return Err(format!("{}: more values than steps are expected", series.labels));
        }
        let got = series_points(series);
        let same = wanted.len() == got.len()
            && wanted
                .iter()
                .zip(&got)
                .all(|(wanted, got)| wanted.0 == got.0 && same_value(wanted.1, &got.1));
        if !same {
            return Err(format!("{}: got {got:?}, expected {wanted:?}", series.labels));
        }
    }
    Ok(())
}

/// All points of a series in time order.
pub(super) fn series_points(series: &Series) -> Vec<(Timestamp, PointValue)> {
    let floats = series.floats.iter().map(|sample| (sample.ts, PointValue::Float(sample.value)));
    let histograms = series.histograms.iter();
    let histograms =
        histograms.map(|point| (point.ts, PointValue::Histogram(Arc::clone(&point.histogram))));
    let mut points: Vec<_> = floats.chain(histograms).collect();
    points.sort_by_key(|point| point.0);
    points
}

/// Checks the annotations.
pub(super) fn annotations(case: &Case, got: &Annotations) -> Verdict {
    let warnings: Vec<String> = got.warnings().collect();
    let infos: Vec<String> = got.infos().collect();
    texts("warnings", &case.warnings, case.no_warnings, &warnings)?;
    texts("infos", &case.infos, case.no_infos, &infos)
}

fn texts(what: &str, expected: &[TextPattern], none: bool, got: &[String]) -> Verdict {
    if none && !got.is_empty() {
        return Err(format!("unexpected {what}: {got:?}"));
    }
    if expected.is_empty() {
        return Ok(());
    }
    let each_found = expected.iter().all(|wording| got.iter().any(|text| wording.fits(text)));
    let none_left = got.iter().all(|text| expected.iter().any(|wording| wording.fits(text)));
    if each_found && none_left {
        return Ok(());
    }
    Err(format!("{what} are {got:?}, expected {expected:?}"))
}
