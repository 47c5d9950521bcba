//! Scraping and rules beside Prometheus and VictoriaMetrics' scraper: 1,000 targets with 1,000
//! series every 15 s, then the same with churn and faults, then 20,000 rules every 30 s.
//!
//! `--programs words` starts the programs with such names only, and always ours; `PROMETHEUS` and
//! `VICTORIA_METRICS` name other binaries. The programs run one after another, because the targets
//! need a core of their own.
//!
//! Method: `docs/benchmarks/collect.md`.

use std::io;
use std::time::{Duration, Instant};

use firn_bench::client::Connection;
use firn_bench::collect::files::{Files, RULE_GROUPS, SCRAPE_S};
use firn_bench::collect::page::{FIRST, LAST, METRICS, SERIES};
use firn_bench::collect::targets::{FAILING_FROM, LARGE_FROM, SLOW_FROM, Targets};
use firn_bench::report::{Aim, finish_with};
use firn_bench::server::{Program, Server};
use serde_json::{Value, json};

const TARGETS: u64 = 1_000;
const MEASURED: Duration = Duration::from_secs(60);
// Two scrapes, so that all series exist.
const FIRST_SCRAPES: Duration = Duration::from_secs(2 * SCRAPE_S + 5);
// The targets that are replaced at a time: a tenth of all in a minute.
const REPLACED: u64 = 10;
const REPLACE_PAUSE: Duration = Duration::from_secs(6);
// Rules have been evaluated once, which creates their series.
const FIRST_EVALUATIONS: Duration = Duration::from_secs(50);
const VISIBILITY_CHECKS: usize = 100;

/// The figures of one program.
struct Figures {
    program: Program,
    /// CPU microseconds per series of the first scrapes.
    new_us: f64,
    /// CPU seconds per million samples.
    scrape_cpu_s: f64,
    /// Anonymous memory per series above the idle process, bytes.
    series_bytes: f64,
    /// p99 of the delay of a scrape, ms.
    delay_ms: f64,
    /// Answers with a half scrape.
    half_count: u64,
    /// As above, with churn and faults.
    fault_cpu_s: f64,
    fault_delay_ms: f64,
    rules: Option<RuleFigures>,
}

struct RuleFigures {
    /// CPU seconds of the rules in a second, without those of scraping.
    cpu_s: f64,
    /// Series of recording rules.
    series_count: u64,
}

fn main() -> io::Result<()> {
    let started = Instant::now();
    let mut words = String::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--programs" => words = arguments.next().unwrap_or_default().to_lowercase(),
            _ => return Err(io::Error::other(format!("unknown argument {argument}"))),
        }
    }
    let mut figures = Vec::new();
    for program in Program::ALL {
        let name = program.name().to_lowercase();
        let is_named = words.split([',', ' ']).any(|word| !word.is_empty() && name.contains(word));
        if program != Program::Firn && !words.trim().is_empty() && !is_named {
            continue;
        }
        if program.path().is_none() {
            println!("{}: not installed: `make deps`", program.name());
            continue;
        }
        println!("{}: {}", program.name(), program.version());
        figures.push(measure(program, started)?);
    }
    print_table(&figures);
    println!("all of it took {} s", started.elapsed().as_secs());
    let single: Vec<Value> = figures.iter().map(Figures::to_json).collect();
    finish_with("collect", &aims(&figures), Some(Value::Array(single)))
}

/// Runs all parts with one program.
fn measure(program: Program, started: Instant) -> io::Result<Figures> {
    let say = |what: &str| {
        eprintln!("{} s: {}: {what}", started.elapsed().as_secs(), program.name());
    };
    let targets = Targets::start()?;
    let files = Files::new(targets.address)?;
    let server = program.start_collecting(&files.config())?;
    let idle_bytes = server.memory().anonymous;
    say("new series");
    let cpu_before_s = server.cpu_s();
    let first = Instant::now();
    files.set_targets(0..TARGETS)?;
    std::thread::sleep(FIRST_SCRAPES);
    let series = (TARGETS as usize * SERIES) as f64;
    // The second scrape of the same series is part of it.
    let new_us = (server.cpu_s() - cpu_before_s) * 1e6 / series;
    if (targets.requests(first, SCRAPE).count as u64) < TARGETS {
        return Err(io::Error::other(format!("{} has not scraped all targets", program.name())));
    }
    say("scraping");
    let steady = Span::measure(&server, &targets, || std::thread::sleep(MEASURED));
    let series_bytes = server.memory().anonymous.saturating_sub(idle_bytes) as f64 / series;
    let half_count = half_scrapes(&server);
    say("scraping with churn and faults");
    let faulty = Span::measure(&server, &targets, || churn(&files));
    files.set_targets(0..TARGETS)?;
    let rules = if program == Program::VictoriaMetrics {
        None
    } else {
        say("rules");
        Some(rules(&server, &files, &targets, &steady)?)
    };
    Ok(Figures {
        program,
        new_us,
        scrape_cpu_s: steady.cpu_per_million_s(),
        series_bytes,
        delay_ms: steady.delay_ms,
        half_count,
        fault_cpu_s: faulty.cpu_per_million_s(),
        fault_delay_ms: faulty.delay_ms,
        rules,
    })
}

const SCRAPE: Duration = Duration::from_secs(SCRAPE_S);

/// Some scrapes.
struct Span {
    seconds: f64,
    cpu_s: f64,
    samples: f64,
    delay_ms: f64,
}

impl Span {
    fn measure(server: &Server, targets: &Targets, wait: impl FnOnce()) -> Span {
        let (start, before_s) = (Instant::now(), server.cpu_s());
        wait();
        let (seconds, cpu_s) = (start.elapsed().as_secs_f64(), server.cpu_s() - before_s);
        let requests = targets.requests(start, SCRAPE);
        let samples = (requests.count * SERIES) as f64;
        Span { seconds, cpu_s, samples, delay_ms: requests.p99_s() * 1e3 }
    }

    fn cpu_per_million_s(&self) -> f64 {
        self.cpu_s / self.samples * 1e6
    }
}

/// The answers in which the two marks of a scrape differ.
fn half_scrapes(server: &Server) -> u64 {
    let mut connection = Connection::open(server.address);
    let target = format!("/api/v1/query?query={FIRST}%20!=%20{LAST}");
    let mut is_half = || result_len(connection.get(&target)) > 0;
    (0..VISIBILITY_CHECKS).filter(|_| is_half()).count() as u64
}

/// A tenth of the targets is replaced in a minute; 50 fail, 5 never end, one is large.
fn churn(files: &Files) {
    let started = Instant::now();
    let mut first = 0;
    while started.elapsed() < MEASURED {
        first += REPLACED;
        let faulty = (FAILING_FROM..FAILING_FROM + TARGETS / 20).chain(SLOW_FROM..SLOW_FROM + 5);
        let all = (first..first + TARGETS).chain(faulty).chain([LARGE_FROM]);
        files.set_targets(all).expect("the folder is writable");
        std::thread::sleep(REPLACE_PAUSE);
    }
}

/// The costs of all rules, while the targets are scraped.
fn rules(
    server: &Server,
    files: &Files,
    targets: &Targets,
    steady: &Span,
) -> io::Result<RuleFigures> {
    files.set_rules(0..RULE_GROUPS)?;
    server.reload()?;
    std::thread::sleep(FIRST_EVALUATIONS);
    let span = Span::measure(server, targets, || std::thread::sleep(MEASURED));
    let scraping_s = steady.cpu_per_million_s() * span.samples / 1e6;
    let target = "/api/v1/query?query=count(%7B__name__=~%22shard:.%2B%22%7D)";
    let answer: Value =
        serde_json::from_slice(Connection::open(server.address).get(target)).unwrap_or_default();
    let count = answer["data"]["result"][0]["value"][1].as_str().unwrap_or("0");
    Ok(RuleFigures {
        cpu_s: (span.cpu_s - scraping_s) / span.seconds,
        series_count: count.parse().unwrap_or(0),
    })
}

fn result_len(answer: &[u8]) -> usize {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    answer["data"]["result"].as_array().map_or(0, Vec::len)
}

fn print_table(figures: &[Figures]) {
    println!(
        "\n| program | us per new series | CPU s per M samples | B per series | p99 delay ms | \
         CPU s per M, faults | p99 delay ms, faults | CPU of rules | series of rules |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for f in figures {
        let (cpu, count) = match &f.rules {
            Some(rules) => (format!("{:.3}", rules.cpu_s), rules.series_count.to_string()),
            None => ("-".to_owned(), "-".to_owned()),
        };
        println!(
            "| {} | {:.1} | {:.3} | {:.0} | {:.1} | {:.3} | {:.1} | {cpu} | {count} |",
            f.program.name(),
            f.new_us,
            f.scrape_cpu_s,
            f.series_bytes,
            f.delay_ms,
            f.fault_cpu_s,
            f.fault_delay_ms,
        );
    }
}

impl Figures {
    fn to_json(&self) -> Value {
        json!({
            "program": self.program.name(),
            "new_us": self.new_us,
            "scrape_cpu_s": self.scrape_cpu_s,
            "series_bytes": self.series_bytes,
            "delay_ms": self.delay_ms,
            "half_count": self.half_count,
            "fault_cpu_s": self.fault_cpu_s,
            "fault_delay_ms": self.fault_delay_ms,
            "rule_cpu_s": self.rules.as_ref().map(|rules| rules.cpu_s),
            "rule_series": self.rules.as_ref().map(|rules| rules.series_count),
        })
    }
}

fn aims(figures: &[Figures]) -> Vec<Aim> {
    let mut aims = Vec::new();
    let mut aim = |name: &str, figure: f64, at_most: f64| {
        aims.push(Aim { name: name.to_owned(), figure, at_most });
    };
    let Some((ours, others)) = figures.split_first() else { return aims };
    for other in others {
        let at_most = if other.program == Program::Prometheus { 1.0 / 15.0 } else { 0.2 };
        let name = other.program.name();
        aim(
            &format!("CPU per scraped sample, of {name}"),
            ours.scrape_cpu_s / other.scrape_cpu_s,
            at_most,
        );
        if let (Some(ours), Some(theirs)) = (&ours.rules, &other.rules) {
            aim(&format!("CPU of rules, of {name}"), ours.cpu_s / theirs.cpu_s, 0.2);
        }
    }
    aim("memory per series, bytes", ours.series_bytes, 60.0);
    aim("p99 of a scrape's delay, ms", ours.delay_ms, 50.0);
    aim("the same with churn and faults, ms", ours.fault_delay_ms, 50.0);
    aim("answers with half a scrape", ours.half_count as f64, 0.0);
    if let Some(rules) = &ours.rules {
        let missing = (METRICS as u64 * TARGETS).saturating_sub(rules.series_count);
        aim("missing series of rules", missing as f64, 0.0);
    }
    aims
}
