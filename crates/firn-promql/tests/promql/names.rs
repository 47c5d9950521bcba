//! The time at which the metric's name is dropped: at once (Prometheus' default), or at the very
//! end.

use firn_model::{Labels, QueryContext};
use firn_promql::{EvalOptions, Value, eval, parse};
use firn_promqltest::MemorySelect;

fn evaluate(query: &str, delayed_name_removal: bool) -> Result<Vec<String>, String> {
    let mut store = MemorySelect::new();
    for name in ["a_total", "b_total"] {
        let labels = Labels::from_pairs([("__name__", name), ("env", name)]).unwrap();
        let same = Labels::from_pairs([("__name__", name), ("env", "x")]).unwrap();
        for step in 0..20 {
            store.push(&labels, step * 15_000, step as f64);
            store.push(&same, step * 15_000, step as f64);
        }
    }
    let options = EvalOptions { delayed_name_removal, ..EvalOptions::instant(285_000) };
    let output = eval(&parse(query).unwrap(), &store, &options, &QueryContext::unbounded())
        .map_err(|error| error.to_string())?;
    let Value::Vector(vector) = output.value else { panic!("no vector") };
    let mut labels: Vec<String> = vector.iter().map(|point| point.labels.to_string()).collect();
    labels.sort();
    Ok(labels)
}

#[test]
fn at_once_is_the_default() {
    let same = Err("vector cannot contain metrics with the same labelset".to_owned());
    let f = |query| evaluate(query, false);
    assert_eq!(f("rate(a_total{env!=\"x\"}[1m])"), Ok(vec!["{env=\"a_total\"}".to_owned()]));
    assert_eq!(f("sum by (__name__) (rate(a_total[1m]))"), Ok(vec!["{}".to_owned()]));
    assert_eq!(f("rate({env=\"x\"}[1m])"), same);
    assert_eq!(f("-{env=\"x\"}"), same);
    assert_eq!(f("abs({env=\"x\"})"), same);
    assert_eq!(f("sum(abs({env=\"x\"}))"), same);
    assert_eq!(
        f("label_replace(rate(a_total[1m]), \"n\", \"$1\", \"__name__\", \"(.+)\")"),
        Ok(vec!["{env=\"a_total\"}".to_owned(), "{env=\"x\"}".to_owned()])
    );
}

#[test]
fn delayed_removal_keeps_the_name_for_the_query() {
    let same = Err("vector cannot contain metrics with the same labelset".to_owned());
    let f = |query| evaluate(query, true);
    assert_eq!(f("rate({env=\"x\"}[1m])"), same);
    assert_eq!(f("sum(abs({env=\"x\"}))"), Ok(vec!["{}".to_owned()]));
    assert_eq!(
        f("label_replace(rate({env=\"x\"}[1m]), \"n\", \"$1\", \"__name__\", \"(.+)\")"),
        Ok(vec!["{env=\"x\",n=\"a_total\"}".to_owned(), "{env=\"x\",n=\"b_total\"}".to_owned()])
    );
}
