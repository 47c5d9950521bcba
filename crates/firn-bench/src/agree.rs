//! Compares the answers of two programs, so that no program wins with empty answers.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::pattern::Agreement;
use crate::server::Program;

/// Values by time of one series.
type Points = BTreeMap<i64, f64>;

// Tolerance for another order of additions.
const EXACT: f64 = 1e-9;
// A rate over 5 min from 20 samples against one from 21: within a sample's share.
const RATE: f64 = 0.2;

/// Compares the answer of `other` with that of FirnDB.
///
/// # Errors
/// The first difference.
pub fn check(
    agreement: Agreement,
    ours: &[u8],
    theirs: &[u8],
    other: Program,
) -> Result<(), String> {
    let (ours, theirs) = (parsed(ours)?, parsed(theirs)?);
    if matches!(agreement, Agreement::Labels | Agreement::LabelsWithin) {
        return same_listing(&ours, &theirs, agreement);
    }
    let (ours, theirs) = (series(&ours)?, series(&theirs)?);
    if ours.is_empty() {
        return Err("FirnDB's answer is empty".to_owned());
    }
    let tolerance = match (agreement, other) {
        (Agreement::Rate | Agreement::TopOfRates, Program::VictoriaMetrics) => RATE,
        _ => EXACT,
    };
    if agreement == Agreement::TopOfRates {
        return same_values_by_time(&ours, &theirs, tolerance);
    }
    if !ours.keys().eq(theirs.keys()) {
        let odd = ours.keys().find(|key| !theirs.contains_key(*key));
        return Err(format!("{} series against {}, first odd: {odd:?}", ours.len(), theirs.len()));
    }
    for ((labels, ours), theirs) in ours.iter().zip(theirs.values()) {
        same_points(ours, theirs, tolerance).map_err(|why| format!("{labels}: {why}"))?;
    }
    Ok(())
}

fn parsed(body: &[u8]) -> Result<Value, String> {
    let value: Value = serde_json::from_slice(body).map_err(|e| format!("no JSON: {e}"))?;
    match value["status"].as_str() {
        Some("success") => Ok(value["data"].clone()),
        _ => Err(format!("no success: {value}")),
    }
}

fn same_listing(ours: &Value, theirs: &Value, agreement: Agreement) -> Result<(), String> {
    let list = |data: &Value| {
        let mut labels: Vec<String> =
            data.as_array().into_iter().flatten().map(Value::to_string).collect();
        labels.sort_unstable();
        labels
    };
    let (ours, theirs) = (list(ours), list(theirs));
    let agree = match agreement {
        Agreement::LabelsWithin => ours.iter().all(|one| theirs.binary_search(one).is_ok()),
        _ => ours == theirs,
    };
    match ours.is_empty() || !agree {
        true => Err(format!("{} label sets against {}", ours.len(), theirs.len())),
        false => Ok(()),
    }
}

/// The series of an answer by their labels.
fn series(data: &Value) -> Result<BTreeMap<String, Points>, String> {
    let result = data["result"].as_array().ok_or("no result")?;
    if data["resultType"] == "scalar" {
        let points = point(&data["result"])?;
        return Ok(BTreeMap::from([(String::new(), BTreeMap::from([points]))]));
    }
    let mut found = BTreeMap::new();
    for entry in result {
        let labels = entry["metric"].to_string();
        let points = match entry.get("values") {
            Some(values) => values.as_array().into_iter().flatten().map(point).collect(),
            None => point(&entry["value"]).map(|point| BTreeMap::from([point])),
        };
        if found.insert(labels.clone(), points?).is_some() {
            return Err(format!("{labels} occurs twice"));
        }
    }
    Ok(found)
}

fn point(pair: &Value) -> Result<(i64, f64), String> {
    let ts = pair[0].as_f64().ok_or("a point without time")?;
    let value = pair[1].as_str().and_then(|text| text.parse().ok());
    Ok(((ts * 1e3).round() as i64, value.ok_or("a point without value")?))
}

fn same_points(ours: &Points, theirs: &Points, tolerance: f64) -> Result<(), String> {
    if !ours.keys().eq(theirs.keys()) {
        return Err(format!("{} points against {}", ours.len(), theirs.len()));
    }
    for ((ts, ours), theirs) in ours.iter().zip(theirs.values()) {
        if (ours - theirs).abs() > tolerance * ours.abs().max(theirs.abs()) {
            return Err(format!("{ours} against {theirs} at {ts}"));
        }
    }
    Ok(())
}

/// The same values at each time, in whichever series.
fn same_values_by_time(
    ours: &BTreeMap<String, Points>,
    theirs: &BTreeMap<String, Points>,
    tolerance: f64,
) -> Result<(), String> {
    let by_rank = |series: &BTreeMap<String, Points>| {
        let mut by_time: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
        for (&ts, &value) in series.values().flatten() {
            by_time.entry(ts).or_default().push(value);
        }
        by_time.values_mut().for_each(|values| values.sort_by(|a, b| b.total_cmp(a)));
        by_time
    };
    let (ours, theirs) = (by_rank(ours), by_rank(theirs));
    let points = |by_time: &BTreeMap<i64, Vec<f64>>, rank: usize| -> Points {
        by_time.iter().filter_map(|(&ts, v)| Some((ts, *v.get(rank)?))).collect()
    };
    let ranks = ours.values().chain(theirs.values()).map(Vec::len).max().unwrap_or(0);
    (0..ranks).try_for_each(|rank| {
        same_points(&points(&ours, rank), &points(&theirs, rank), tolerance)
            .map_err(|why| format!("rank {rank}: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(values: &[(&str, f64)]) -> Vec<u8> {
        let series: Vec<Value> = values
            .iter()
            .map(|(name, v)| {
                let values = serde_json::json!([[60.0, v.to_string()], [120.0, "1"]]);
                serde_json::json!({"metric": {"host": name}, "values": values})
            })
            .collect();
        let data = serde_json::json!({"resultType": "matrix", "result": series});
        serde_json::json!({"status": "success", "data": data}).to_string().into_bytes()
    }

    #[test]
    fn a_list_may_have_to_be_within_another() {
        let list = |values: &[&str]| {
            serde_json::json!({"status": "success", "data": values}).to_string().into_bytes()
        };
        let f = |agreement, ours: &[&str], theirs: &[&str]| {
            check(agreement, &list(ours), &list(theirs), Program::Prometheus).is_ok()
        };
        assert!(f(Agreement::Labels, &["b", "a"], &["a", "b"]));
        assert!(!f(Agreement::Labels, &["a"], &["a", "b"]));
        assert!(f(Agreement::LabelsWithin, &["b"], &["b", "a"]));
        assert!(!f(Agreement::LabelsWithin, &["a", "c"], &["a", "b"]));
        assert!(!f(Agreement::LabelsWithin, &[], &["a"]));
    }

    #[test]
    fn differences_in_values_series_and_absence_are_reported() {
        let ours = matrix(&[("a", 100.0), ("b", 2.0)]);
        let f = |agreement, theirs: &[(&str, f64)], other| {
            check(agreement, &ours, &matrix(theirs), other).err().unwrap_or_default()
        };
        let same = [("b", 2.0), ("a", 100.0)];
        assert_eq!(f(Agreement::Exact, &same, Program::Prometheus), "");
        let near = [("a", 101.0), ("b", 2.0)];
        assert!(f(Agreement::Exact, &near, Program::VictoriaMetrics).contains("100 against 101"));
        assert!(f(Agreement::Rate, &near, Program::Prometheus).contains("100 against 101"));
        assert_eq!(f(Agreement::Rate, &near, Program::VictoriaMetrics), "");
        let swapped = [("a", 2.0), ("c", 100.0)];
        assert!(f(Agreement::Exact, &swapped, Program::Prometheus).contains("odd"));
        assert_eq!(f(Agreement::TopOfRates, &swapped, Program::Prometheus), "");
        assert!(f(Agreement::TopOfRates, &near, Program::Prometheus).contains("rank 0"));
        assert!(f(Agreement::Exact, &[], Program::Prometheus).contains("2 series against 0"));
        let nothing = check(Agreement::Exact, &matrix(&[]), &matrix(&[]), Program::Prometheus);
        assert!(nothing.unwrap_err().contains("empty"));
    }
}
