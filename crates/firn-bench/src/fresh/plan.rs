//! The runs: a product of shape, labelling, size and age, selected by words.

use super::data::{INTERVAL_MS, Part};
use super::query::Class;
use super::shape::{Labelling, SenderShape};

/// The shapes of a run's series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixture {
    /// One shape.
    Alone(SenderShape),
    /// An equal number of series of each shape, without TSBS: one database for many senders.
    Blend,
}

/// The number of series of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// 2,020: to try the program.
    Smoke,
    /// 101,000.
    Usual,
    /// 1,010,000.
    Large,
}

/// The time since the first sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Age {
    /// 7.5 minutes, 30 scrapes: everything is in memory.
    Now,
    /// 15 minutes.
    QuarterHour,
    /// 2 hours.
    TwoHours,
    /// A day: a sample per minute until 7.5 minutes before its end.
    Day,
    /// As [`Age::Now`], after ten generations of other sources, an hour apart.
    Churned,
    /// As [`Age::Churned`], with all samples on FirnDB's slow tier. The others have none.
    SlowTier,
}

/// One load of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its shapes.
    pub mixture: Mixture,
    /// Its labels.
    pub labelling: Labelling,
    /// Its series.
    pub size: Size,
    /// Its time.
    pub age: Age,
}

/// The selected runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Runs with queries, all programs side by side.
    pub queries: Vec<Run>,
    /// Runs with scrapes alone, then SIGKILL and a restart.
    pub ingests: Vec<Run>,
    /// Runs with scrapes alone, with and without a bound on the time of a restart.
    pub bounds: Vec<Run>,
    /// The classes of queries.
    pub classes: Vec<Class>,
    clients: Vec<usize>,
}

/// A kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunKind {
    Queries,
    Ingest,
    Bound,
}

const CLIENTS: [usize; 2] = [1, 16];
const SCRAPES_OF_LARGE: i64 = 16;
const DEAD_GENERATIONS: usize = 10;

const fn run(mixture: Mixture, labelling: Labelling, size: Size, age: Age) -> Run {
    Run { mixture, labelling, size, age }
}

const TSBS: Mixture = Mixture::Alone(SenderShape::Tsbs);
const QUERIES: [Run; 4] = [
    run(TSBS, Labelling::Lone, Size::Usual, Age::Now),
    run(TSBS, Labelling::Grouped, Size::Usual, Age::Now),
    run(Mixture::Blend, Labelling::Mixed, Size::Usual, Age::Now),
    run(TSBS, Labelling::Lone, Size::Usual, Age::TwoHours),
];
const INGESTS: [Run; 3] = [
    run(TSBS, Labelling::Lone, Size::Usual, Age::TwoHours),
    run(TSBS, Labelling::Grouped, Size::Usual, Age::TwoHours),
    run(TSBS, Labelling::Lone, Size::Large, Age::Now),
];

/// The values of one axis that are among the words, which are marked.
fn selected<T: Copy>(words: &mut [(String, bool)], values: &[(&str, T)]) -> Vec<T> {
    let mut take = |name: &str| {
        let mut named = words.iter_mut().filter(|(word, _)| word == name).peekable();
        let is_named = named.peek().is_some();
        named.for_each(|(_, is_known)| *is_known = true);
        is_named
    };
    values.iter().filter(|(name, _)| take(name)).map(|(_, value)| *value).collect()
}

impl Plan {
    /// The runs that `words` select, separated by commas or blanks. A word is a value of an axis.
    /// An axis without a word keeps its default. Without a word for shape, labelling, size or age,
    /// the default runs are selected; `queries`, `ingest` or `bound` selects one kind of them.
    ///
    /// # Errors
    /// The unknown word and all known ones.
    pub fn of(words: &str) -> Result<Plan, String> {
        let separators = |c: char| c == ',' || c.is_whitespace();
        let words = words.split(separators).filter(|word| !word.is_empty());
        let mut words: Vec<_> = words.map(|word| (word.to_lowercase(), false)).collect();
        let mixtures = selected(&mut words, &MIXTURES);
        let labellings = selected(&mut words, &LABELLINGS);
        let sizes = selected(&mut words, &SIZES);
        let ages = selected(&mut words, &AGES);
        let classes = selected(&mut words, &Class::ALL.map(|class| (class.name(), class)));
        let clients = selected(&mut words, &[("one", 1), ("sixteen", 16)]);
        let kinds = selected(&mut words, &KINDS);
        if let Some((word, _)) = words.iter().find(|(_, is_known)| !is_known) {
            return Err(format!("unknown word {word:?}; {}", Plan::help()));
        }
        let is_default =
            mixtures.is_empty() && labellings.is_empty() && sizes.is_empty() && ages.is_empty();
        let (queries, ingests) = if is_default {
            (QUERIES.to_vec(), INGESTS.to_vec())
        } else {
            let mut all = Vec::new();
            for mixture in or(mixtures, &[TSBS]) {
                for size in or(sizes.clone(), &[Size::Usual]) {
                    for age in or(ages.clone(), &[Age::Now]) {
                        // Both labellings of the largest runs take more than 15 minutes.
                        let is_long = size == Size::Large || age == Age::Day;
                        let usual: &[Labelling] = match is_long {
                            true => &[Labelling::Lone],
                            false => &[Labelling::Lone, Labelling::Grouped],
                        };
                        for labelling in or(labellings.clone(), usual) {
                            all.push(run(mixture, labelling, size, age));
                        }
                    }
                }
            }
            let has_ingest = |run: &Run| run.age <= Age::TwoHours;
            (all.clone(), all.into_iter().filter(has_ingest).collect())
        };
        let kinds = match kinds.is_empty() {
            false => kinds,
            // A class or a number of clients selects queries.
            true if classes.is_empty() && clients.is_empty() => {
                vec![RunKind::Queries, RunKind::Ingest]
            }
            true => vec![RunKind::Queries],
        };
        let of = |kind, runs: Vec<Run>| if kinds.contains(&kind) { runs } else { Vec::new() };
        Ok(Plan {
            queries: of(RunKind::Queries, queries),
            ingests: of(RunKind::Ingest, ingests.clone()),
            bounds: of(RunKind::Bound, ingests),
            classes: or(classes, &Class::ALL),
            clients,
        })
    }

    /// The words and their axes.
    pub fn help() -> String {
        let names = |names: Vec<&str>| names.join(" ");
        format!(
            "shapes: {}; labels: {}; series: {}; ages: {}; classes: {}; clients: one sixteen; \
             kinds: {}",
            names(MIXTURES.map(|(name, _)| name).to_vec()),
            names(LABELLINGS.map(|(name, _)| name).to_vec()),
            names(SIZES.map(|(name, _)| name).to_vec()),
            names(AGES.map(|(name, _)| name).to_vec()),
            names(Class::ALL.map(Class::name).to_vec()),
            names(KINDS.map(|(name, _)| name).to_vec()),
        )
    }

    /// The numbers of clients of a run with queries. By default sixteen query the newest data of
    /// one shape, except for a million series; elsewhere their answers cost as much as those of
    /// one client.
    pub fn client_counts(&self, run: &Run) -> Vec<usize> {
        let is_usual =
            run.age == Age::Now && run.mixture != Mixture::Blend && run.size != Size::Large;
        match (self.clients.is_empty(), is_usual) {
            (false, _) => self.clients.clone(),
            (true, true) => CLIENTS.to_vec(),
            (true, false) => vec![1],
        }
    }
}

fn or<T: Copy>(found: Vec<T>, default: &[T]) -> Vec<T> {
    if found.is_empty() { default.to_vec() } else { found }
}

const MIXTURES: [(&str, Mixture); 7] = [
    ("tsbs", TSBS),
    ("telegraf", Mixture::Alone(SenderShape::Telegraf)),
    ("otlp", Mixture::Alone(SenderShape::Otlp)),
    ("cadvisor", Mixture::Alone(SenderShape::Cadvisor)),
    ("iot", Mixture::Alone(SenderShape::Iot)),
    ("random", Mixture::Alone(SenderShape::Random)),
    ("blend", Mixture::Blend),
];
const LABELLINGS: [(&str, Labelling); 3] =
    [("grouped", Labelling::Grouped), ("lone", Labelling::Lone), ("mixed", Labelling::Mixed)];
const SIZES: [(&str, Size); 3] = [("2k", Size::Smoke), ("101k", Size::Usual), ("1m", Size::Large)];
const AGES: [(&str, Age); 6] = [
    ("now", Age::Now),
    ("15m", Age::QuarterHour),
    ("2h", Age::TwoHours),
    ("1d", Age::Day),
    ("churn", Age::Churned),
    ("slow", Age::SlowTier),
];
const KINDS: [(&str, RunKind); 3] =
    [("queries", RunKind::Queries), ("ingest", RunKind::Ingest), ("bound", RunKind::Bound)];

fn name_of<T: PartialEq>(values: &[(&'static str, T)], wanted: &T) -> &'static str {
    values.iter().find(|(_, value)| value == wanted).map_or("", |(name, _)| name)
}

impl Size {
    /// The word of the command line.
    pub fn name(self) -> &'static str {
        name_of(&SIZES, &self)
    }

    /// The number of series; a run has up to one source less.
    pub fn series_count(self) -> usize {
        match self {
            Size::Smoke => 2_020,
            Size::Usual => 101_000,
            Size::Large => 1_010_000,
        }
    }
}

impl Age {
    /// The word of the command line.
    pub fn name(self) -> &'static str {
        name_of(&AGES, &self)
    }

    /// The number of scrapes in it.
    pub fn scrape_count(self) -> i64 {
        match self {
            Age::Now | Age::Churned | Age::SlowTier => 30,
            Age::QuarterHour => 60,
            Age::TwoHours => 480,
            Age::Day => 5_760,
        }
    }

    /// The generations of sources that have ended before it.
    pub fn dead_generation_count(self) -> usize {
        if matches!(self, Age::Churned | Age::SlowTier) { DEAD_GENERATIONS } else { 0 }
    }

    /// The interval of its samples before the last 30 scrapes.
    pub fn history_interval_ms(self) -> i64 {
        if self == Age::Day { 4 * INTERVAL_MS } else { INTERVAL_MS }
    }
}

impl Run {
    /// Its words.
    pub fn name(&self) -> String {
        let (mixture, labels) =
            (name_of(&MIXTURES, &self.mixture), name_of(&LABELLINGS, &self.labelling));
        format!("{mixture} {labels} {} {}", self.size.name(), self.age.name())
    }

    /// Its sources.
    pub fn parts(&self) -> Vec<Part> {
        let shapes: Vec<SenderShape> = match self.mixture {
            Mixture::Alone(shape) => vec![shape],
            Mixture::Blend => {
                SenderShape::ALL.into_iter().filter(|s| *s != SenderShape::Tsbs).collect()
            }
        };
        let series_count = self.size.series_count() / shapes.len();
        let part = |shape: SenderShape| {
            let source_count = (series_count / shape.series_per_source()).max(1);
            Part { shape, source_count }
        };
        shapes.into_iter().map(part).collect()
    }

    /// The scrapes of a run without queries.
    pub fn ingest_scrape_count(&self) -> i64 {
        match (self.size, self.age) {
            (Size::Large, Age::Now) => SCRAPES_OF_LARGE,
            (_, age) => age.scrape_count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(runs: &[Run]) -> Vec<String> {
        runs.iter().map(Run::name).collect()
    }

    #[test]
    fn words_select_values_of_axes() {
        let plan = Plan::of("").unwrap();
        assert_eq!(
            (plan.queries.as_slice(), plan.ingests.as_slice()),
            (&QUERIES[..], &INGESTS[..])
        );
        assert_eq!(plan.classes, Class::ALL);
        assert_eq!(plan.client_counts(&QUERIES[0]), [1, 16]);
        assert_eq!(plan.client_counts(&QUERIES[2]), [1]);

        let plan = Plan::of("iot,lone 1M, 1d sixteen list").unwrap();
        assert_eq!(names(&plan.queries), ["iot lone 1m 1d"]);
        assert_eq!(plan.client_counts(&plan.queries[0]), [16]);
        assert_eq!((plan.classes, plan.ingests), (vec![Class::List], Vec::new()));

        let plan = Plan::of("1m queries").unwrap();
        assert_eq!(names(&plan.queries), ["tsbs lone 1m now"]);
        assert_eq!(plan.client_counts(&plan.queries[0]), [1]);
        let plan = Plan::of("2k grouped 1d churn slow").unwrap();
        let ages = ["1d", "churn", "slow"].map(|age| format!("tsbs grouped 2k {age}"));
        assert_eq!((names(&plan.queries), plan.ingests.len()), (ages.to_vec(), 0));

        let plan = Plan::of("otlp blend now 15m").unwrap();
        assert_eq!(plan.queries.len(), 2 * 2 * 2);
        assert_eq!(plan.ingests, plan.queries);

        let plan = Plan::of("ingest").unwrap();
        assert_eq!((plan.queries.len(), plan.ingests.as_slice()), (0, &INGESTS[..]));
        let plan = Plan::of("bound").unwrap();
        assert_eq!((plan.ingests.len(), plan.bounds.as_slice()), (0, &INGESTS[..]));
        let plan = Plan::of("queries lone").unwrap();
        assert_eq!(
            (names(&plan.queries), plan.ingests.len()),
            (vec!["tsbs lone 101k now".into()], 0)
        );

        let error = Plan::of("lone fast").unwrap_err();
        assert!(error.contains("\"fast\"") && error.contains("sixteen"), "{error}");
    }

    #[test]
    fn runs_have_as_many_series_as_they_claim() {
        for size in [Size::Smoke, Size::Usual, Size::Large] {
            for (_, mixture) in MIXTURES {
                let parts = run(mixture, Labelling::Lone, size, Age::Now).parts();
                let all =
                    parts.iter().map(|part| part.source_count * part.shape.series_per_source());
                let all: usize = all.sum();
                let most = size.series_count();
                assert!(
                    all <= most && all + 130 * parts.len() > most,
                    "{mixture:?} {all} of {most}"
                );
            }
        }
    }
}
