//! Tests of the generator with our own parser and evaluator.

use firn_model::QueryContext;
use firn_promql::{EvalOptions, Value, ValueType, eval, parse};

use super::*;

fn expressions(seed: u64, dialect: Dialect, count: usize) -> Vec<String> {
    let world = World::new(1, TimeAlignment::Off);
    let mut generator = Generator::new(&world, dialect, DecisionSource::seeded(seed));
    (0..count).map(|_| generator.expression()).collect()
}

#[test]
fn expressions_are_well_typed_and_round_trip_as_text() {
    for (seed, dialect) in [(1, Dialect::V2), (2, Dialect::V3)] {
        for text in expressions(seed, dialect, 400) {
            let expr = parse(&text).unwrap_or_else(|e| panic!("{text}\n{e}"));
            assert!(matches!(expr.value_type(), ValueType::Vector | ValueType::Scalar), "{text}");
            let printed = expr.to_string();
            let again = parse(&printed).unwrap_or_else(|e| panic!("{text}\n{printed}\n{e}"));
            assert_eq!(again.to_string(), printed, "{text}");
            assert_eq!(features(&again), features(&expr), "{text}");
            assert_eq!(tree(&again), tree(&expr), "{text}\n{printed}");
        }
    }
}

#[test]
fn expressions_mostly_have_an_answer_and_soon_have_used_everything() {
    let world = World::new(1, TimeAlignment::Off);
    let store = world.to_select();
    for dialect in [Dialect::V2, Dialect::V3] {
        let mut generator = Generator::new(&world, dialect, DecisionSource::seeded(5));
        let times = generator.times();
        let (mut used, mut empty, mut failed) = (Features::new(), Vec::new(), Vec::new());
        let (asked, drawn) = (300, 4_000);
        for idx in 0..drawn {
            let text = generator.expression();
            let expr = parse(&text).unwrap_or_else(|e| panic!("{text}\n{e}"));
            for (name, count) in features(&expr) {
                *used.entry(name).or_default() += count;
            }
            if idx >= asked {
                continue;
            }
            let options = EvalOptions::instant(times[idx % times.len()]);
            match eval(&expr, &store, &options, &QueryContext::unbounded()) {
                Err(error) => failed.push(format!("{text}\n    {error}")),
                Ok(output) => match output.value {
                    Value::Vector(vector) if vector.is_empty() => empty.push(text),
                    _ => {}
                },
            }
        }
        assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
        assert!(empty.len() * 5 < asked, "{} are empty:\n{}", empty.len(), empty.join("\n"));
        let seldom: Vec<_> = Generator::required_features(dialect)
            .into_iter()
            .map(|name| (name, used.get(name).copied().unwrap_or(0)))
            .filter(|(_, count)| *count < 20)
            .collect();
        assert!(seldom.is_empty(), "{dialect:?}: used less than 20 times: {seldom:?}");
    }
}

#[test]
fn a_fuzzers_bytes_always_end_in_an_expression() {
    let world = World::new(1, TimeAlignment::Off);
    let mut choices = DecisionSource::seeded(9);
    for len in 0..200 {
        let bytes: Vec<u8> = (0..len).map(|_| choices.below(256) as u8).collect();
        let mut generator = Generator::new(&world, Dialect::V3, DecisionSource::from_bytes(&bytes));
        let text = generator.expression();
        assert!(parse(&text).is_ok(), "{text}");
        let _ = parse(&generator.mistake());
    }
}
