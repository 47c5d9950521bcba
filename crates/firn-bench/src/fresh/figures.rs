//! Measured costs, their ratios to those of the other programs, and the aims.

use std::cmp::Ordering;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::contest::Cost;
use crate::report::Aim;
use crate::server::Program;

use super::plan::{Age, Mixture, Run, Size};
use super::query::Class;
use super::shape::{Labelling, SenderShape};

/// The cost of one query in each program.
#[derive(Clone, Debug)]
pub struct QueryFigure {
    /// The data.
    pub run: Run,
    /// The class of the query.
    pub class: Class,
    /// Its shape and name.
    pub query: String,
    /// The connections that queried at the same time.
    pub client_count: usize,
    /// The cost in each program.
    pub costs: Vec<(Program, Cost)>,
}

/// The cost of the samples of a run in one program.
#[derive(Clone, Debug)]
pub struct IngestFigure {
    /// The data.
    pub run: Run,
    /// Whether the run had scrapes only, flushes and merges included.
    pub is_whole: bool,
    /// The program.
    pub program: Program,
    /// Server CPU seconds per million samples, without the first scrape.
    pub cpu_s: f64,
    /// CPU seconds of the generator for the same samples: encoding, snappy, sending.
    pub generator_s: f64,
    /// CPU microseconds per series of the first scrape.
    pub new_us: f64,
    /// Anonymous memory per series above that of the empty program, once it is quiet.
    pub settled_bytes: f64,
    /// The groups of FirnDB.
    pub groups: Option<GroupFigure>,
}

/// The groups that the series of a run have joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFigure {
    /// Series in all.
    pub series: u64,
    /// Series in groups of two or more.
    pub grouped: u64,
    /// Series in groups of a sensible size.
    pub well_grouped: u64,
    /// The members of the group in which the middle series is; 1: a lone series.
    pub median: u64,
}

const MEMBERS_GOOD: u64 = 8;

impl GroupFigure {
    /// Of the number of members of each group, 1 for a lone series.
    pub fn of(mut members: Vec<u64>) -> GroupFigure {
        members.sort_unstable();
        let in_groups_of =
            |least: u64| members.iter().filter(|&&count| count >= least).sum::<u64>();
        let series = in_groups_of(0);
        let mut before = 0;
        let median = members.iter().find(|&&count| {
            before += count;
            2 * before >= series
        });
        GroupFigure {
            series,
            grouped: in_groups_of(2),
            well_grouped: in_groups_of(MEMBERS_GOOD),
            median: median.copied().unwrap_or(0),
        }
    }

    fn percent(&self, count: u64) -> f64 {
        100.0 * count as f64 / self.series.max(1) as f64
    }
}

/// A restart after SIGKILL.
#[derive(Clone, Debug)]
pub struct RestartFigure {
    /// The data.
    pub run: Run,
    /// The program.
    pub program: Program,
    /// Samples in millions.
    pub samples_m: f64,
    /// Seconds from the start of the process until it is ready.
    pub ready_s: f64,
    /// Seconds until its answers are those before the kill.
    pub complete_s: f64,
}

/// The same samples with the default `--restart-time-max` and without a bound, in two servers.
#[derive(Clone, Copy, Debug)]
pub struct BoundFigure {
    /// The data.
    pub run: Run,
    /// With the default.
    pub bounded: BoundCost,
    /// Without a bound.
    pub unbounded: BoundCost,
}

/// The cost of a bound on the time of a restart, and its effect.
#[derive(Clone, Copy, Debug)]
pub struct BoundCost {
    /// Server CPU seconds per million samples, of all samples and all flushes and merges.
    pub cpu_s: f64,
    /// Flushes.
    pub flush_count: u64,
    /// As [`RestartFigure::complete_s`].
    pub complete_s: f64,
}

/// All figures.
#[derive(Clone, Debug, Default)]
pub struct FreshFigures {
    /// Of queries.
    pub queries: Vec<QueryFigure>,
    /// Of samples.
    pub ingests: Vec<IngestFigure>,
    /// Of restarts.
    pub restarts: Vec<RestartFigure>,
    /// Of `--restart-time-max`.
    pub bounds: Vec<BoundFigure>,
    /// Answers that differ from FirnDB's.
    pub difference_count: usize,
}

const PEERS: [Program; 2] = [Program::Prometheus, Program::VictoriaMetrics];

impl QueryFigure {
    fn cpu_ms(&self, wanted: Program) -> Option<f64> {
        self.costs.iter().find(|(program, _)| *program == wanted).map(|(_, cost)| cost.cpu_ms)
    }

    /// FirnDB's CPU over that of another program.
    pub fn ratio(&self, to: Program) -> Option<f64> {
        Some(self.cpu_ms(Program::Firn)? / self.cpu_ms(to)?)
    }

    /// By how much the worst ratio exceeds its aim; above 1: missed.
    fn excess(&self) -> f64 {
        let excess = |peer| Some(self.ratio(peer)? / aim_of(self.class, self.run.age, peer));
        PEERS.into_iter().filter_map(excess).fold(0.0, f64::max)
    }

    fn place(&self) -> String {
        let clients = if self.client_count == 1 { "" } else { ", 16 clients" };
        format!("{} in {}{clients}", self.query, self.run.name())
    }
}

/// The highest share of another program's CPU that a query may take.
fn aim_of(class: Class, age: Age, peer: Program) -> f64 {
    let is_recent = !matches!(age, Age::TwoHours | Age::Day);
    match (class, peer) {
        (Class::List, Program::Prometheus) => 2.0,
        (_, Program::VictoriaMetrics) => 1.0,
        (Class::Narrow, _) if is_recent => 1.0 / 2.0,
        (Class::Wide | Class::Topk, _) if !is_recent => 1.0 / 8.0,
        _ => 1.0 / 3.0,
    }
}

impl FreshFigures {
    /// The worst ratios of each class, then all figures, the worst first.
    pub fn render(&self) -> String {
        let mut out = String::new();
        self.render_worst(&mut out);
        self.render_queries(&mut out);
        self.render_ingests(&mut out);
        self.render_restarts(&mut out);
        self.render_bounds(&mut out);
        out
    }

    fn render_worst(&self, out: &mut String) {
        let mut classes: Vec<(f64, Class)> = Class::ALL
            .into_iter()
            .filter_map(|class| {
                let of_class = self.queries.iter().filter(|figure| figure.class == class);
                Some((of_class.map(QueryFigure::excess).max_by(f64::total_cmp)?, class))
            })
            .collect();
        classes.sort_by(|a, b| b.0.total_cmp(&a.0));
        if classes.is_empty() {
            return;
        }
        line(out, format_args!("worst ratio of each class, CPU of FirnDB / peer"));
        for (_, class) in classes {
            for peer in PEERS {
                let of_class = self.queries.iter().filter(|figure| figure.class == class);
                let ratios = of_class.filter_map(|figure| Some((figure.ratio(peer)?, figure)));
                if let Some((ratio, figure)) = ratios.max_by(|a, b| a.0.total_cmp(&b.0)) {
                    let (class, peer, place) = (class.name(), peer.name(), figure.place());
                    line(out, format_args!("  {class:8} {ratio:>8.2} of {peer:15}  {place}"));
                }
            }
        }
    }

    fn render_queries(&self, out: &mut String) {
        if self.queries.is_empty() {
            return;
        }
        line(
            out,
            format_args!(
                "\n{:8} {:>9} {:>9} {:>9} {:>7} {:>7} {:>9}  query",
                "class", "FirnDB ms", "Prom. ms", "VM ms", "/ Prom.", "/ VM", "delay ms"
            ),
        );
        let mut sorted: Vec<&QueryFigure> = self.queries.iter().collect();
        sorted.sort_by(|a, b| match a.class.cmp(&b.class) {
            Ordering::Equal => b.excess().total_cmp(&a.excess()),
            other => other,
        });
        for figure in sorted {
            let ms = |program| cell(figure.cpu_ms(program), 3);
            let delay = figure.costs.first().map(|(_, cost)| cost.latency_ms);
            line(
                out,
                format_args!(
                    "{:8} {:>9} {:>9} {:>9} {:>7} {:>7} {:>9}  {}",
                    figure.class.name(),
                    ms(Program::Firn),
                    ms(Program::Prometheus),
                    ms(Program::VictoriaMetrics),
                    cell(figure.ratio(Program::Prometheus), 2),
                    cell(figure.ratio(Program::VictoriaMetrics), 2),
                    cell(delay, 2),
                    figure.place()
                ),
            );
        }
    }

    fn render_ingests(&self, out: &mut String) {
        if self.ingests.is_empty() {
            return;
        }
        line(
            out,
            format_args!(
                "\n{:24} {:16} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9} {:>7}",
                "samples",
                "program",
                "S, CPU/M",
                "G, CPU/M",
                "S/G",
                "us/new",
                "B/series",
                "grouped %",
                "members"
            ),
        );
        for figure in &self.ingests {
            let name = match figure.is_whole {
                true => figure.run.name() + " *",
                false => figure.run.name(),
            };
            line(
                out,
                format_args!(
                    "{name:24} {:16} {:>9.3} {:>9.3} {:>7.2} {:>9.2} {:>9.0} {:>9} {:>7}",
                    figure.program.name(),
                    figure.cpu_s,
                    figure.generator_s,
                    figure.cpu_s / figure.generator_s,
                    figure.new_us,
                    figure.settled_bytes,
                    cell(figure.groups.map(|groups| groups.percent(groups.well_grouped)), 1),
                    cell(figure.groups.map(|groups| groups.median as f64), 0),
                ),
            );
        }
        line(
            out,
            format_args!("  * every sample of the run by scrapes, flushes and merges included"),
        );
    }

    fn render_restarts(&self, out: &mut String) {
        if self.restarts.is_empty() {
            return;
        }
        let (samples, ready) = ("samples M", "ready s");
        line(
            out,
            format_args!(
                "\n{:24} {:16} {samples:>9} {ready:>9} {:>11}",
                "SIGKILL", "program", "complete s"
            ),
        );
        for RestartFigure { run, program, samples_m, ready_s, complete_s } in &self.restarts {
            let (run, program) = (run.name(), program.name());
            line(
                out,
                format_args!(
                    "{run:24} {program:16} {samples_m:>9.1} {ready_s:>9.2} {complete_s:>11.2}"
                ),
            );
        }
    }

    fn render_bounds(&self, out: &mut String) {
        if self.bounds.is_empty() {
            return;
        }
        line(
            out,
            format_args!(
                "\n{:32} {:>9} {:>9} {:>11}",
                "--restart-time-max", "S, CPU/M", "flushes", "complete s"
            ),
        );
        for BoundFigure { run, bounded, unbounded } in &self.bounds {
            for (name, cost) in [("default", bounded), ("1h", unbounded)] {
                let BoundCost { cpu_s, flush_count, complete_s } = cost;
                line(
                    out,
                    format_args!(
                        "{:32} {cpu_s:>9.3} {flush_count:>9} {complete_s:>11.2}",
                        format!("{} {name}", run.name())
                    ),
                );
            }
        }
    }

    /// The aims of the measured classes, each with the worst figure.
    pub fn aims(&self) -> Vec<Aim> {
        let mut aims = Vec::new();
        let mut add = |name: String, figures: Vec<f64>, at_most: f64| {
            if let Some(figure) = figures.into_iter().max_by(f64::total_cmp) {
                aims.push(Aim { name, figure, at_most });
            }
        };
        for age in [Age::Now, Age::QuarterHour, Age::TwoHours, Age::Day, Age::Churned] {
            for class in Class::ALL {
                for peer in PEERS {
                    let of = |figure: &&QueryFigure| figure.class == class && figure.run.age == age;
                    let ratios = self.queries.iter().filter(of).filter_map(|f| f.ratio(peer));
                    let name = format!(
                        "CPU of {} queries, {}, FirnDB / {}",
                        class.name(),
                        age.name(),
                        peer.name()
                    );
                    add(name, ratios.collect(), aim_of(class, age, peer));
                }
            }
        }
        for (peer, share) in [(Program::Prometheus, 25.0), (Program::VictoriaMetrics, 12.0)] {
            let ratios = self.ratios_of_ingests(peer, |figure| figure.cpu_s);
            add(format!("CPU per sample, FirnDB / {}", peer.name()), ratios, 1.0 / share);
        }
        let ours = |figure: &&IngestFigure| figure.program == Program::Firn;
        for (labelling, name, at_most) in [
            (Labelling::Grouped, "grouped", 2.0),
            (Labelling::Lone, "lone", 3.0),
            (Labelling::Mixed, "mixed", 3.0),
        ] {
            let whole = self.ingests.iter().filter(ours).filter(|figure| {
                figure.is_whole
                    && figure.run.labelling == labelling
                    && figure.run.size != Size::Large
            });
            let ratios = whole.map(|figure| figure.cpu_s / figure.generator_s).collect();
            add(format!("CPU of samples / CPU of their generator, {name}"), ratios, at_most);
        }
        for size in [Size::Smoke, Size::Usual, Size::Large] {
            let of_size = self.ingests.iter().filter(ours).filter(|f| f.run.size == size);
            let name = format!("CPU us per new series, {}", size.name());
            add(name, of_size.map(|figure| figure.new_us).collect(), 6.0);
        }
        let groups = |is_random: bool, percent: fn(&GroupFigure) -> f64| {
            let of = self.ingests.iter().filter(|figure| match figure.run.mixture {
                Mixture::Alone(shape) => (shape == SenderShape::Random) == is_random,
                Mixture::Blend => false,
            });
            of.filter_map(|figure| figure.groups.as_ref()).map(percent).collect()
        };
        let lone = groups(false, |groups| groups.percent(groups.series - groups.well_grouped));
        add(format!("% of series outside of groups of {MEMBERS_GOOD}"), lone, 5.0);
        let wrong = groups(true, |groups| groups.percent(groups.grouped));
        add("% of random series in groups".to_owned(), wrong, 5.0);
        let memory = self.ratios_of_ingests(Program::Prometheus, |figure| figure.settled_bytes);
        add("memory per settled series, FirnDB / Prometheus".to_owned(), memory, 0.5);
        for (size, at_most) in [(Size::Smoke, 1.0), (Size::Usual, 1.0), (Size::Large, 2.0)] {
            let of_size = self.restarts.iter().filter(|f| f.run.size == size);
            let ours = of_size.filter(|figure| figure.program == Program::Firn);
            let name = format!("s until answers are complete after SIGKILL, {}", size.name());
            add(name, ours.map(|figure| figure.complete_s).collect(), at_most);
        }
        let of_bound = |figure: &BoundFigure| figure.bounded.cpu_s / figure.unbounded.cpu_s;
        let name = "CPU per sample, default --restart-time-max / 1h".to_owned();
        add(name, self.bounds.iter().map(of_bound).collect(), 1.1);
        if !self.queries.is_empty() {
            let name = "answers that differ from FirnDB's".to_owned();
            add(name, vec![self.difference_count as f64], 0.0);
        }
        aims
    }

    /// FirnDB's figure of each run over that of `peer` in the same run.
    fn ratios_of_ingests(&self, peer: Program, of: fn(&IngestFigure) -> f64) -> Vec<f64> {
        let ours = self.ingests.iter().filter(|figure| figure.program == Program::Firn);
        ours.filter_map(|ours| {
            let theirs = self.ingests.iter().find(|theirs| {
                (theirs.program, theirs.run, theirs.is_whole) == (peer, ours.run, ours.is_whole)
            })?;
            Some(of(ours) / of(theirs))
        })
        .collect()
    }

    /// All figures for the report's file.
    pub fn to_json(&self) -> Value {
        let costs = |figure: &QueryFigure| -> Value {
            let cost = |(program, cost): &(Program, Cost)| {
                let figures = json!({
                    "cpu_ms": cost.cpu_ms,
                    "latency_ms": cost.latency_ms,
                    "memory_bytes": cost.memory_bytes,
                });
                (program.name().to_owned(), figures)
            };
            Value::Object(figure.costs.iter().map(cost).collect())
        };
        let queries = self.queries.iter().map(|figure| {
            json!({
                "run": figure.run.name(),
                "class": figure.class.name(),
                "query": figure.query,
                "clients": figure.client_count,
                "costs": costs(figure),
            })
        });
        let ingests = self.ingests.iter().map(|figure| {
            json!({
                "run": figure.run.name(),
                "whole": figure.is_whole,
                "program": figure.program.name(),
                "cpu_s_per_million": figure.cpu_s,
                "generator_cpu_s_per_million": figure.generator_s,
                "new_series_cpu_us": figure.new_us,
                "settled_series_bytes": figure.settled_bytes,
                "well_grouped_percent": figure.groups.map(|of| of.percent(of.well_grouped)),
                "median_members": figure.groups.map(|of| of.median),
            })
        });
        let restarts = self.restarts.iter().map(|figure| {
            json!({
                "run": figure.run.name(),
                "program": figure.program.name(),
                "samples_m": figure.samples_m,
                "ready_s": figure.ready_s,
                "complete_s": figure.complete_s,
            })
        });
        let bounds = self.bounds.iter().map(|BoundFigure { run, bounded, unbounded }| {
            let cost = |cost: &BoundCost| {
                json!({
                    "cpu_s_per_million": cost.cpu_s,
                    "flushes": cost.flush_count,
                    "complete_s": cost.complete_s,
                })
            };
            json!({"run": run.name(), "default": cost(bounded), "1h": cost(unbounded)})
        });
        json!({
            "queries": queries.collect::<Vec<_>>(),
            "ingests": ingests.collect::<Vec<_>>(),
            "restarts": restarts.collect::<Vec<_>>(),
            "bounds": bounds.collect::<Vec<_>>(),
        })
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a text grows");
}

fn cell(figure: Option<f64>, decimals: usize) -> String {
    figure.map_or("-".to_owned(), |figure| format!("{figure:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(labelling: Labelling, size: Size, age: Age) -> Run {
        Run { mixture: Mixture::Alone(SenderShape::Iot), labelling, size, age }
    }

    fn query(class: Class, age: Age, client_count: usize, cpu_ms: &[f64]) -> QueryFigure {
        let cost = |&cpu_ms: &f64| Cost {
            latency_ms: 2.0 * cpu_ms,
            cpu_ms,
            memory_bytes: 0,
            page_faults: 0.0,
        };
        QueryFigure {
            run: run(Labelling::Lone, Size::Usual, age),
            class,
            query: format!("{} iot", class.name()),
            client_count,
            costs: Program::ALL.into_iter().zip(cpu_ms.iter().map(cost)).collect(),
        }
    }

    fn ingest(program: Program, labelling: Labelling, is_whole: bool, cpu_s: f64) -> IngestFigure {
        IngestFigure {
            run: run(labelling, Size::Usual, Age::Now),
            is_whole,
            program,
            cpu_s,
            generator_s: 0.25,
            new_us: 10.0 * cpu_s,
            settled_bytes: 100.0 * cpu_s,
            groups: (program == Program::Firn).then(|| GroupFigure::of(vec![1, 20, 2, 1, 20])),
        }
    }

    fn figures() -> FreshFigures {
        FreshFigures {
            queries: vec![
                query(Class::Wide, Age::Now, 1, &[1.0, 10.0, 5.0]),
                query(Class::Wide, Age::Now, 16, &[2.0, 10.0, 1.0]),
                query(Class::List, Age::Now, 1, &[60.0, 0.3, 1.2]),
                query(Class::Narrow, Age::TwoHours, 1, &[0.2, 1.0, 2.0]),
            ],
            ingests: vec![
                ingest(Program::Firn, Labelling::Lone, false, 0.5),
                ingest(Program::Prometheus, Labelling::Lone, false, 10.0),
                ingest(Program::Firn, Labelling::Grouped, true, 0.4),
            ],
            restarts: vec![RestartFigure {
                run: run(Labelling::Lone, Size::Large, Age::Now),
                program: Program::Firn,
                samples_m: 16.0,
                ready_s: 3.0,
                complete_s: 3.5,
            }],
            bounds: vec![BoundFigure {
                run: run(Labelling::Lone, Size::Usual, Age::TwoHours),
                bounded: BoundCost { cpu_s: 0.6, flush_count: 9, complete_s: 0.9 },
                unbounded: BoundCost { cpu_s: 0.5, flush_count: 3, complete_s: 4.0 },
            }],
            difference_count: 2,
        }
    }

    #[test]
    fn the_worst_ratio_of_each_class_is_first() {
        let text = figures().render();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1].trim(),
            "list       200.00 of Prometheus       list iot in iot lone 101k now"
        );
        assert_eq!(
            lines[3..5].iter().map(|line| line.trim()).collect::<Vec<_>>(),
            [
                "wide         0.20 of Prometheus       wide iot in iot lone 101k now, 16 clients",
                "wide         2.00 of VictoriaMetrics  wide iot in iot lone 101k now, 16 clients"
            ]
        );
        assert!(lines[5].trim().starts_with("narrow "), "{text}");
        let bound = "iot lone 101k 2h default             0.600         9        0.90";
        let ratios = "1.200  200.00   50.00";
        for wanted in ["SIGKILL", "samples", "iot grouped 101k now *", ratios, bound] {
            assert!(text.contains(wanted), "{wanted} in\n{text}");
        }
        assert_eq!(FreshFigures::default().render(), "");
    }

    #[test]
    fn aims_have_the_worst_figure_of_what_was_measured() {
        let aims = figures().aims();
        let list: Vec<_> =
            aims.iter().map(|aim| (aim.name.as_str(), aim.figure, aim.at_most)).collect();
        assert_eq!(
            list,
            [
                ("CPU of wide queries, now, FirnDB / Prometheus", 0.2, 1.0 / 3.0),
                ("CPU of wide queries, now, FirnDB / VictoriaMetrics", 2.0, 1.0),
                ("CPU of list queries, now, FirnDB / Prometheus", 200.0, 2.0),
                ("CPU of list queries, now, FirnDB / VictoriaMetrics", 50.0, 1.0),
                ("CPU of narrow queries, 2h, FirnDB / Prometheus", 0.2, 1.0 / 3.0),
                ("CPU of narrow queries, 2h, FirnDB / VictoriaMetrics", 0.1, 1.0),
                ("CPU per sample, FirnDB / Prometheus", 0.05, 1.0 / 25.0),
                ("CPU of samples / CPU of their generator, grouped", 1.6, 2.0),
                ("CPU us per new series, 101k", 5.0, 6.0),
                ("% of series outside of groups of 8", 100.0 * 4.0 / 44.0, 5.0),
                ("memory per settled series, FirnDB / Prometheus", 0.05, 0.5),
                ("s until answers are complete after SIGKILL, 1m", 3.5, 2.0),
                ("CPU per sample, default --restart-time-max / 1h", 1.2, 1.1),
                ("answers that differ from FirnDB's", 2.0, 0.0),
            ]
        );
    }

    #[test]
    fn a_lone_series_is_a_group_of_one() {
        let of = |members: &[u64]| GroupFigure::of(members.to_vec());
        let expected = GroupFigure { series: 44, grouped: 42, well_grouped: 40, median: 20 };
        assert_eq!(of(&[1, 20, 2, 1, 20]), expected);
        assert_eq!(of(&[1, 1, 3]).median, 3);
        assert_eq!(of(&[1, 1, 2]).median, 1);
        assert_eq!((of(&[]).median, of(&[]).percent(0)), (0, 0.0));
    }

    #[test]
    fn without_other_programs_there_are_figures_but_no_ratios() {
        let mut alone = figures();
        alone.queries.iter_mut().for_each(|figure| figure.costs.truncate(1));
        alone.ingests.retain(|figure| figure.program == Program::Firn);
        let text = alone.render();
        assert!(text.contains("60.000") && text.contains(" - "), "{text}");
        assert!(alone.aims().iter().all(|aim| !aim.name.contains(" / Prometheus")));
        let json = alone.to_json();
        assert_eq!(json["queries"][2]["costs"]["FirnDB"]["cpu_ms"], 60.0);
        assert_eq!(json["restarts"][0]["complete_s"], 3.5);
        assert_eq!(json["bounds"][0]["1h"]["flushes"], 3);
    }
}
