//! One answer of the query API, and when two are the same.

use std::collections::BTreeMap;

use serde_json::Value;

/// When an expression is evaluated, milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Question {
    Instant { ts: i64 },
    Range { start: i64, end: i64, step_ms: i64 },
}

/// The response of a server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Data(Data),
    Error { status: u16, kind: String, text: String },
}

/// The `data` of a good answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Data {
    Scalar(i64, f64),
    Text(String),
    /// The points of each series, and the series in the order of the response, which matters behind
    /// `sort`.
    Series {
        points: BTreeMap<String, Points>,
        order: Vec<String>,
    },
}

type Points = Vec<(i64, f64)>;

/// Values agree to this, relative to the larger one.
const TOLERANCE: f64 = 1e-9;
/// Rounding error of a sum whose terms cancel: none of its digits is right, on either side.
const NOISE: f64 = 1e-11;

impl Answer {
    pub(super) fn read(status: u16, body: &str) -> Answer {
        let json: Value = serde_json::from_str(body).unwrap_or(Value::Null);
        if json["status"] != "success" {
            let text = |name: &str| json[name].as_str().unwrap_or(body).to_owned();
            return Answer::Error { status, kind: text("errorType"), text: text("error") };
        }
        let data = &json["data"];
        let result = &data["result"];
        Answer::Data(match data["resultType"].as_str() {
            Some("scalar") => {
                let (ts, value) = point(result);
                Data::Scalar(ts, value)
            }
            Some("string") => Data::Text(result[1].as_str().unwrap_or_default().to_owned()),
            _ => series(result),
        })
    }
}

impl Data {
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Data::Series { points, .. } if points.is_empty())
    }
}

fn series(result: &Value) -> Data {
    let (mut points, mut order) = (BTreeMap::new(), Vec::new());
    for series in result.as_array().into_iter().flatten() {
        let labels = series["metric"].to_string();
        let of_series = match series["values"].as_array() {
            Some(values) => values.iter().map(point).collect(),
            None => vec![point(&series["value"])],
        };
        order.push(labels.clone());
        let before = points.insert(labels.clone(), of_series);
        assert!(before.is_none(), "{labels} twice in one answer");
    }
    Data::Series { points, order }
}

fn point(sample: &Value) -> (i64, f64) {
    let ts = (sample[0].as_f64().unwrap_or(f64::NAN) * 1000.0).round() as i64;
    (ts, sample[1].as_str().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN))
}

/// The difference, if there is one. `is_ordered` if the order of series is part of the result.
pub(super) fn difference(theirs: &Answer, ours: &Answer, is_ordered: bool) -> Option<String> {
    match (theirs, ours) {
        (Answer::Data(theirs), Answer::Data(ours)) => data_difference(theirs, ours, is_ordered),
        _ if theirs == ours => None,
        _ => Some(format!("Prometheus: {}\n  FirnDB: {}", short(theirs), short(ours))),
    }
}

fn data_difference(theirs: &Data, ours: &Data, is_ordered: bool) -> Option<String> {
    match (theirs, ours) {
        (Data::Scalar(their_ts, theirs), Data::Scalar(our_ts, ours)) => {
            let same = their_ts == our_ts && close(*theirs, *ours);
            (!same).then(|| format!("Prometheus {theirs} @ {their_ts}, FirnDB {ours} @ {our_ts}"))
        }
        (
            Data::Series { points: theirs, order: their_order },
            Data::Series { points: ours, order: our_order },
        ) => {
            if let Some(labels) = theirs.keys().find(|labels| !ours.contains_key(*labels)) {
                return Some(format!("only Prometheus has {labels} {}", some(&theirs[labels])));
            }
            if let Some(labels) = ours.keys().find(|labels| !theirs.contains_key(*labels)) {
                return Some(format!("only FirnDB has {labels} {}", some(&ours[labels])));
            }
            for (labels, theirs) in theirs {
                let ours = &ours[labels];
                let differs = theirs.len() != ours.len();
                let mut both = theirs.iter().zip(ours);
                let at = both.find(|(t, o)| t.0 != o.0 || !close(t.1, o.1));
                if let Some((t, o)) = at {
                    return Some(format!("{labels}: Prometheus {t:?}, FirnDB {o:?}"));
                }
                if differs {
                    let (theirs, ours) = (some(theirs), some(ours));
                    return Some(format!("{labels}: Prometheus {theirs}, FirnDB {ours}"));
                }
            }
            // Equal values may be in any order: sorting promises the sequence of values only.
            let values = |order: &[String]| -> Vec<f64> {
                order.iter().map(|labels| theirs[labels][0].1).collect()
            };
            let (theirs, ours) = (values(their_order), values(our_order));
            let same = theirs.iter().zip(&ours).all(|(t, o)| close(*t, *o));
            (is_ordered && !same).then(|| format!("order: Prometheus {theirs:?}, FirnDB {ours:?}"))
        }
        _ if theirs == ours => None,
        _ => Some(format!("Prometheus {theirs:?}, FirnDB {ours:?}")),
    }
}

pub(super) fn close(a: f64, b: f64) -> bool {
    a == b
        || (a.is_nan() && b.is_nan())
        || (a - b).abs() <= NOISE.max(TOLERANCE * a.abs().max(b.abs()))
}

fn some(points: &Points) -> String {
    match points.as_slice() {
        [first, .., last] => format!("{} points from {first:?} to {last:?}", points.len()),
        few => format!("{few:?}"),
    }
}

fn short(answer: &Answer) -> String {
    match answer {
        Answer::Error { status, kind, text } => format!("{status} {kind}: {text}"),
        Answer::Data(Data::Series { points, .. }) => format!("{} series", points.len()),
        Answer::Data(data) => format!("{data:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_differ_by_series_time_value_and_order() {
        let read = |result: &str| {
            let data = format!(r#"{{"resultType":"vector","result":[{result}]}}"#);
            Answer::read(200, &format!(r#"{{"status":"success","data":{data}}}"#))
        };
        let one = r#"{"metric":{"a":"1"},"value":[1.5,"0.30000000000000004"]}"#;
        let two = r#"{"metric":{"a":"2"},"value":[1.5,"NaN"]}"#;
        let both = read(&format!("{one},{two}"));
        let turned = read(&format!("{two},{one}"));
        assert_eq!(difference(&both, &turned, false), None);
        assert!(difference(&both, &turned, true).unwrap().starts_with("order"));
        let rounded = read(&one.replace("0000000000000004", ""));
        assert_eq!(difference(&read(one), &rounded, true), None);
        assert!(difference(&read(one), &read(&one.replace("0.3", "0.31")), false).is_some());
        assert!(difference(&read(one), &read(&one.replace("1.5", "1.6")), false).is_some());
        assert!(difference(&read(one), &both, false).unwrap().starts_with("only FirnDB has"));
        let error = Answer::read(422, r#"{"status":"error","errorType":"execution","error":"x"}"#);
        assert!(difference(&both, &error, false).unwrap().contains("422 execution: x"));
    }
}
