//! A real Prometheus and FirnDB with the same samples and the same queries.
//!
//! `firn_promqltest::expressions` draws queries and data from a seed. Each expression runs at one
//! time and over a range. Values agree to 1e-9, label sets and times exactly, errors in type and
//! text. `known` lists where Prometheus 2 may differ, with the reason. A difference is reduced to
//! the smallest expression that still shows it.
//!
//! The senders of the data have `job` and `instance`, or, in a second run, `site` and `device`:
//! then FirnDB learns the groups, and some of their series stay lone.
//!
//! `FIRN_PROMETHEUS` names another Prometheus than the installed one: against 3.x the whole
//! language is drawn, and samples may be on the edges of windows. `FIRN_SEED=7` runs that seed
//! alone, `FIRN_SEED_COUNT=20` that number of seeds.

mod answer;
mod data;
mod known;
mod metadata;
mod pair;
mod shrink;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use firn_promql::{Expr, parse};
use firn_promqltest::expressions::{DecisionSource, Dialect, Features, Generator, World, features};

use crate::process::{installed, skip};
use answer::{Answer, Question};
use data::SenderLabels;
use pair::Pair;

/// Expressions of one seed, each an instant and a range query.
const EXPRESSION_COUNT: usize = 700;
/// After those, up to this many more are drawn, of which only expressions with a rare feature are
/// run.
const DRAWN_MAX: usize = 20_000;
/// One expression in this many contains a mistake.
const MISTAKE_EVERY: usize = 6;
/// Occurrences of each feature of the language.
const FEATURE_COUNT_MIN: u32 = 20;
/// Differences that are cut down and printed.
const SHOWN_MAX: usize = 30;

#[test]
fn generated_expressions_have_the_answers_of_prometheus() {
    compare(SenderLabels::JobAndInstance);
}

#[test]
fn nor_do_learned_groups_change_an_answer() {
    compare(SenderLabels::SiteAndDevice);
}

fn compare(senders: SenderLabels) {
    let Some(program) = reference() else { return };
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seeds = match number("FIRN_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..1 + number("FIRN_SEED_COUNT").unwrap_or(1),
    };
    for seed in seeds {
        println!("again: FIRN_SEED={seed} cargo test --package firn --test e2e differential");
        compare_seed(&program, seed, senders);
    }
}

/// The Prometheus to compare with.
fn reference() -> Option<PathBuf> {
    match std::env::var_os("FIRN_PROMETHEUS").map(PathBuf::from) {
        Some(path) if path.is_file() => Some(path),
        Some(path) => {
            skip(&format!("FIRN_PROMETHEUS names {}, which is no file", path.display()));
            None
        }
        None => installed("prometheus"),
    }
}

fn compare_seed(program: &Path, seed: u64, senders: SenderLabels) {
    let pair = Pair::start(program, seed, senders);
    let mut generator = Generator::new(&pair.world, pair.dialect, DecisionSource::seeded(seed));
    let times = generator.times();
    let mut count = Count::default();
    let mut differing = Vec::new();
    for idx in 0..DRAWN_MAX {
        if idx >= EXPRESSION_COUNT && count.seldom(pair.dialect).is_empty() {
            break;
        }
        let text = senders.rename(&generator.expression());
        let expr = parse(&text).unwrap_or_else(|e| panic!("{text}\n{e}"));
        if idx < EXPRESSION_COUNT || count.wants(pair.dialect, &expr) {
            count.expression(&expr);
            let mut note = |theirs: &Answer| count.answer(theirs);
            differing.extend(differences(
                &pair,
                &text,
                &questions(&pair.world, &times, idx),
                &mut note,
            ));
        }
        if idx < EXPRESSION_COUNT && idx % MISTAKE_EVERY == 0 {
            let text = senders.rename(&generator.mistake());
            differing.extend(differences(
                &pair,
                &text,
                &questions(&pair.world, &times, idx),
                &mut |_| {},
            ));
        }
    }
    println!("{}", count.line());
    let mut report = report(&pair, &differing);
    report.extend(metadata::differences(&pair));
    assert!(report.is_empty(), "seed {seed}: {}\n", report.join("\n\n"));
    count.check(pair.dialect);
}

/// Runs `text` on both; returns unexpected differences.
fn differences(
    pair: &Pair,
    text: &str,
    questions: &[Question],
    note: &mut dyn FnMut(&Answer),
) -> Vec<(String, Question, String)> {
    let mut found = Vec::new();
    for question in questions {
        let (theirs, ours) = pair.ask(text, question);
        note(&theirs);
        if let Some(difference) = pair.difference(text, &theirs, &ours) {
            found.push((text.to_owned(), *question, difference));
        }
    }
    found
}

/// An instant and a range query at times that depend on `idx`.
fn questions(world: &World, times: &[i64], idx: usize) -> [Question; 2] {
    let ts = times[idx % times.len()];
    let start = times[idx * 7 % times.len()];
    let step_ms = [10_000, 60_000, 150_000, 600_000][idx % 4];
    let end = (start + step_ms * (5 + idx as i64 % 20)).min(world.end);
    [Question::Instant { ts }, Question::Range { start, end, step_ms }]
}

/// One text for each of the first differences, with the smallest expression that shows it.
fn report(pair: &Pair, differing: &[(String, Question, String)]) -> Vec<String> {
    let mut texts = Vec::new();
    for (expression, question, difference) in differing.iter().take(SHOWN_MAX) {
        let small = shrink::shrink(expression, |text| {
            let (theirs, ours) = pair.ask(text, question);
            pair.difference(text, &theirs, &ours).is_some()
        });
        let (theirs, ours) = pair.ask(&small, question);
        let remainder = pair.difference(&small, &theirs, &ours).unwrap_or_default();
        texts.push(format!(
            "{small}\n  {question:?}\n  {remainder}\n  from: {expression}\n  where: {difference}"
        ));
    }
    if differing.len() > SHOWN_MAX {
        texts.push(format!("and {} more answers to queries", differing.len() - SHOWN_MAX));
    }
    texts
}

/// The queries that were run, and their results.
#[derive(Default)]
struct Count {
    used: Features,
    answers: usize,
    empty: usize,
    failed: usize,
}

impl Count {
    fn expression(&mut self, expr: &Expr) {
        for (name, count) in features(expr) {
            *self.used.entry(name).or_default() += count;
        }
    }

    /// The features that were used too rarely, with their counts.
    fn seldom(&self, dialect: Dialect) -> BTreeMap<&'static str, u32> {
        let used = |name: &str| self.used.get(name).copied().unwrap_or(0);
        let wanted =
            Generator::required_features(dialect).into_iter().map(|name| (name, used(name)));
        wanted.filter(|(_, count)| *count < FEATURE_COUNT_MIN).collect()
    }

    /// Whether `expr` uses something that is seldom so far.
    fn wants(&self, dialect: Dialect, expr: &Expr) -> bool {
        let seldom = self.seldom(dialect);
        features(expr).keys().any(|name| seldom.contains_key(name))
    }

    fn answer(&mut self, theirs: &Answer) {
        self.answers += 1;
        match theirs {
            Answer::Error { .. } => self.failed += 1,
            Answer::Data(data) => self.empty += usize::from(data.is_empty()),
        }
    }

    fn line(&self) -> String {
        let Count { answers, empty, failed, used } = self;
        let occurrences: u32 = used.values().sum();
        format!(
            "{answers} answers compared, {empty} of them empty, {failed} errors; {} features of \
             the language, {occurrences} occurrences",
            used.len()
        )
    }

    fn check(&self, dialect: Dialect) {
        assert!(self.empty * 5 < self.answers, "more than a fifth are empty: {}", self.line());
        assert!(self.failed * 20 < self.answers, "more than one in 20 fails: {}", self.line());
        let seldom = self.seldom(dialect);
        assert!(seldom.is_empty(), "less than {FEATURE_COUNT_MIN} times: {seldom:?}");
    }
}
