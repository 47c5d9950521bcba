//! FirnDB beside Prometheus and VictoriaMetrics on data without tuning: label shapes of six
//! senders, ages from now to a day, after churn and on the slow tier, with and without `job` and
//! `instance`, every class of queries, one client and sixteen; the cost of samples and of new
//! series; and a restart after SIGKILL, with the price of its bound.
//!
//! `--only words` selects runs ([`Plan::of`]); `--programs words` starts the programs with such
//! names only, and always ours. `PROMETHEUS` and `VICTORIA_METRICS` name other binaries. Progress
//! is on the standard error, the result on the standard output, the worst ratio of each class
//! first.
//!
//! Method: `docs/benchmarks/fresh.md`.

use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use firn_bench::agree;
use firn_bench::client::{Connection, post_all};
use firn_bench::contest::{Contender, Rounds, measure, wait_until_quiet};
use firn_bench::fresh::data::{Data, INTERVAL_MS};
use firn_bench::fresh::figures::{
    BoundCost, BoundFigure, FreshFigures, GroupFigure, IngestFigure, QueryFigure, RestartFigure,
};
use firn_bench::fresh::plan::{Age, Plan, Run};
use firn_bench::fresh::query::{Extent, FreshQuery};
use firn_bench::index::process_cpu_ns;
use firn_bench::pattern::Agreement;
use firn_bench::report::finish_with;
use firn_bench::server::Program;
use serde_json::Value;

const CONNECTIONS: usize = 4;
// A request of history has at most this many samples, so that the requests of all series that wait
// for the programs stay below 200 MB.
const HISTORY_SAMPLES_MAX: i64 = 4_000_000;
// The scrapes at the end of a run, after the history; they are in memory as rows.
const SCRAPES: i64 = 30;
// The sources of the generations that have ended began an hour apart and sent this many samples.
const GENERATION_MS: i64 = 3_600_000;
const DEAD_SAMPLES: i64 = 4;
// Answers that are compared, per query.
const CHECKED: u64 = 2;
const COMPLETE_TIME_MAX: Duration = Duration::from_secs(60);
const UPLOAD_TIME_MAX: Duration = Duration::from_secs(120);
const UNBOUNDED: &str = "--restart-time-max=1h";

/// The words of the command line.
#[derive(Default)]
struct Arguments {
    only: String,
    programs: Vec<String>,
}

impl Arguments {
    fn of(mut arguments: impl Iterator<Item = String>) -> io::Result<Arguments> {
        let mut parsed = Arguments::default();
        while let Some(argument) = arguments.next() {
            let words = arguments.next().unwrap_or_default().to_lowercase();
            match argument.as_str() {
                "--only" => parsed.only = words,
                "--programs" => {
                    let words = words.split([',', ' ']).filter(|word| !word.is_empty());
                    parsed.programs.extend(words.map(String::from));
                }
                _ => return Err(io::Error::other(format!("unknown argument {argument}"))),
            }
        }
        Ok(parsed)
    }

    fn names(&self, program: Program) -> bool {
        let name = program.name().to_lowercase();
        self.programs.iter().any(|word| name.contains(word))
    }
}

fn main() -> io::Result<()> {
    let started = Instant::now();
    let arguments = Arguments::of(std::env::args().skip(1))?;
    let plan = Plan::of(&arguments.only).map_err(io::Error::other)?;
    let mut programs = Vec::new();
    for program in Program::ALL {
        let is_wanted = arguments.programs.is_empty() || arguments.names(program);
        if program != Program::Firn && !is_wanted {
            continue;
        }
        if program.path().is_none() {
            println!("{}: not installed: `make deps`", program.name());
            continue;
        }
        println!("{}: {}", program.name(), program.version());
        programs.push(program);
    }
    let mut figures = FreshFigures::default();
    for run in &plan.queries {
        eprintln!("{} s: {}: queries", started.elapsed().as_secs(), run.name());
        query_run(run, &plan, &programs, &mut figures)?;
    }
    // The other programs take minutes for these samples: only if they are named.
    let named = |program: &Program| *program == Program::Firn || arguments.names(*program);
    let programs: Vec<Program> = programs.into_iter().filter(named).collect();
    for run in &plan.ingests {
        eprintln!("{} s: {}: ingest", started.elapsed().as_secs(), run.name());
        ingest_run(run, &programs, &mut figures)?;
    }
    for run in &plan.bounds {
        eprintln!("{} s: {}: bound", started.elapsed().as_secs(), run.name());
        bound_run(run, &mut figures)?;
    }
    println!("\n{}", figures.render());
    println!("all of it took {} s", started.elapsed().as_secs());
    finish_with("fresh", &figures.aims(), Some(figures.to_json()))
}

/// Starts the programs, FirnDB with `more` arguments; none of them has series of its own.
fn start(programs: &[Program], more: &[&str]) -> io::Result<Vec<Contender>> {
    let more = [&["--self-scrape=never"][..], more].concat();
    let start = |&program: &Program| {
        let more: &[&str] = if program == Program::Firn { &more } else { &[] };
        Ok(Contender { program, server: program.start_with(more)? })
    };
    programs.iter().map(start).collect()
}

/// Loads a run into all programs and measures its queries.
fn query_run(
    run: &Run,
    plan: &Plan,
    programs: &[Program],
    figures: &mut FreshFigures,
) -> io::Result<()> {
    let contenders = match run.age {
        Age::Churned => start(programs, &["--enable-admin-api"])?,
        Age::SlowTier => start(&[Program::Firn], &["--enable-admin-api", "--upload-age-max=1s"])?,
        _ => start(programs, &[])?,
    };
    let load = Load { run, scrape_count: run.age.scrape_count(), has_history: true };
    let extent = load.send(&contenders, figures);
    let queries: Vec<FreshQuery> = run
        .parts()
        .into_iter()
        .enumerate()
        .flat_map(|(idx, part)| {
            FreshQuery::of(part).into_iter().filter(move |q| idx == 0 || !q.is_of_all_shapes())
        })
        .filter(|query| plan.classes.contains(&query.class))
        .collect();
    for query in &queries {
        let target = |number| query.request(extent, number).target();
        let name = format!("{} {}", query.part.shape.name(), query.name);
        let name = format!("{} {}", query.class.name(), name.trim_end());
        let agreement = match (run.age, query.agreement) {
            (Age::Churned, Agreement::Labels) => Agreement::LabelsWithin,
            (_, agreement) => agreement,
        };
        let answering = if query.is_for_firn_alone() { 1 } else { contenders.len() };
        let contenders = &contenders[..answering];
        figures.difference_count += check(contenders, agreement, &name, &target);
        for client_count in plan.client_counts(run) {
            let rounds =
                Rounds { count: 3, cpu_s: 0.2, time: Duration::from_millis(800), client_count };
            let costs = measure(contenders, rounds, &target);
            let costs: Vec<_> =
                contenders.iter().map(|contender| contender.program).zip(costs).collect();
            let cpu: Vec<String> = costs
                .iter()
                .map(|(program, cost)| format!("{} {:.3}", program.name(), cost.cpu_ms))
                .collect();
            eprintln!("  {name}, {client_count} clients, CPU ms: {}", cpu.join(", "));
            let (query, class) = (name.clone(), query.class);
            figures.queries.push(QueryFigure { run: *run, class, query, client_count, costs });
        }
    }
    Ok(())
}

/// Sends all samples of a run as scrapes, then kills the programs and starts them again.
fn ingest_run(run: &Run, programs: &[Program], figures: &mut FreshFigures) -> io::Result<()> {
    let mut contenders = start(programs, &[])?;
    let scrape_count = run.ingest_scrape_count();
    let extent = Load { run, scrape_count, has_history: false }.send(&contenders, figures);
    restart(run, &mut contenders, extent, figures)
}

/// The samples of a run of scrapes, in millions.
fn samples_m(run: &Run) -> f64 {
    let series =
        run.parts().into_iter().map(|part| part.source_count * part.shape.series_per_source());
    series.sum::<usize>() as f64 * run.ingest_scrape_count() as f64 / 1e6
}

/// Sends the same scrapes to a server with the default `--restart-time-max` and to one without a
/// bound, by turns, then kills both.
fn bound_run(run: &Run, figures: &mut FreshFigures) -> io::Result<()> {
    let mut contenders = start(&[Program::Firn], &[])?;
    contenders.append(&mut start(&[Program::Firn], &[UNBOUNDED])?);
    let load = Load { run, scrape_count: run.ingest_scrape_count(), has_history: false };
    let mut of_both = FreshFigures::default();
    let extent = load.send(&contenders, &mut of_both);
    // CPU from the start: a flush during the first scrape counts too.
    let cost = |contender: &Contender| BoundCost {
        cpu_s: contender.server.cpu_s() / samples_m(run),
        flush_count: metric(contender, "firn_flushes_total").unwrap_or_default() as u64,
        complete_s: 0.0,
    };
    let [mut bounded, mut unbounded] = [0, 1].map(|idx| cost(&contenders[idx]));
    restart(run, &mut contenders, extent, &mut of_both)?;
    bounded.complete_s = of_both.restarts[0].complete_s;
    unbounded.complete_s = of_both.restarts[1].complete_s;
    figures.bounds.push(BoundFigure { run: *run, bounded, unbounded });
    Ok(())
}

/// Kills the programs and starts them again.
fn restart(
    run: &Run,
    contenders: &mut [Contender],
    extent: Extent,
    figures: &mut FreshFigures,
) -> io::Result<()> {
    let parts = run.parts();
    let samples_m = samples_m(run);
    let targets: Vec<String> =
        parts.into_iter().map(|part| FreshQuery::sample_count(part, extent).target()).collect();
    for Contender { program, server } in contenders {
        // Newer versions of VictoriaMetrics add the duration to an answer: only data is compared.
        let answers = |connection: &mut Connection| -> Vec<Value> {
            let mut data =
                |target: &str| match serde_json::from_slice::<Value>(connection.get(target)) {
                    Ok(answer) => answer["data"].clone(),
                    Err(_) => Value::Null,
                };
            targets.iter().map(|target| data(target)).collect()
        };
        let before = answers(&mut Connection::open(server.address));
        let started = Instant::now();
        let ready_s = server.kill_and_restart()?.as_secs_f64();
        let mut connection = Connection::open(server.address);
        let mut complete_s = f64::INFINITY;
        while complete_s.is_infinite() && started.elapsed() < COMPLETE_TIME_MAX {
            if answers(&mut connection) == before {
                complete_s = started.elapsed().as_secs_f64();
            }
        }
        let (run, program) = (*run, *program);
        figures.restarts.push(RestartFigure { run, program, samples_m, ready_s, complete_s });
    }
    Ok(())
}

/// The samples of a run: a scrape that defines all series, then history, then scrapes.
struct Load<'a> {
    run: &'a Run,
    scrape_count: i64,
    /// Whether samples before the last scrapes are sent as history: many samples of a series in a
    /// request, which costs less.
    has_history: bool,
}

/// CPU seconds of the programs, and of the generator for each of them.
struct Meter {
    server_s: Vec<f64>,
    generator_s: Vec<f64>,
}

impl Load<'_> {
    /// Sends the samples to all programs, one program after another in each scrape.
    fn send(&self, contenders: &[Contender], figures: &mut FreshFigures) -> Extent {
        let (run, scrape_count) = (self.run, self.scrape_count);
        let idle: Vec<u64> = contenders.iter().map(|c| c.server.memory().anonymous).collect();
        let parts = run.parts();
        let now_ms =
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
        let span_ms = scrape_count * INTERVAL_MS;
        let end_ms = (now_ms - 60_000) / INTERVAL_MS * INTERVAL_MS;
        let start_ms = end_ms - span_ms;
        for generation in (1..=run.age.dead_generation_count()).rev() {
            let mut dead = Data::new(&parts, run.labelling, generation);
            let first_ms = start_ms - generation as i64 * GENERATION_MS;
            post_to_all(contenders, &dead.history(first_ms, DEAD_SAMPLES, INTERVAL_MS));
            flush(contenders);
        }
        let mut data = Data::new(&parts, run.labelling, 0);
        let metadata = Data::metadata(&parts, run.labelling);
        post_to_all(contenders, &[metadata]);
        let mut meter = Meter::new(contenders);
        meter.scrape(contenders, &mut data, start_ms);
        let first = Meter::new(contenders).since(&mut meter);
        let scrapes = if self.has_history { scrape_count.min(SCRAPES) } else { scrape_count };
        let last_ms = end_ms - (scrapes - 1) * INTERVAL_MS;
        self.send_history(contenders, &mut data, start_ms + INTERVAL_MS, last_ms);
        let mut meter = Meter::new(contenders);
        for scrape in 0..scrapes - 1 {
            meter.scrape(contenders, &mut data, last_ms + scrape * INTERVAL_MS);
        }
        if run.age == Age::SlowTier {
            flush(contenders);
            wait_until_uploaded(contenders);
        }
        wait_until_quiet(contenders, Duration::from_secs(5));
        let rest = Meter::new(contenders).since(&mut meter);
        let series_count = data.series_count() as f64;
        let sample_millions = series_count * (scrapes - 1) as f64 / 1e6;
        // A history has its own costs: senders send scrapes. So have series that have ended.
        let is_measured = scrapes == scrape_count && run.age.dead_generation_count() == 0;
        for (idx, contender) in contenders.iter().enumerate().filter(|_| is_measured) {
            let used = contender.server.memory().anonymous.saturating_sub(idle[idx]);
            figures.ingests.push(IngestFigure {
                run: *run,
                is_whole: !self.has_history,
                program: contender.program,
                cpu_s: rest.server_s[idx] / sample_millions,
                generator_s: rest.generator_s[idx] / sample_millions,
                new_us: first.server_s[idx] * 1e6 / series_count,
                settled_bytes: used as f64 / series_count,
                groups: (contender.program == Program::Firn).then(|| groups(contender)),
            });
        }
        Extent { end_ms, span_ms, labelling: run.labelling }
    }

    fn send_history(&self, contenders: &[Contender], data: &mut Data, start_ms: i64, end_ms: i64) {
        let interval_ms = self.run.age.history_interval_ms();
        let count_max = (HISTORY_SAMPLES_MAX / data.series_count() as i64).clamp(1, 40);
        let mut next_ms = start_ms;
        while next_ms < end_ms {
            let count = ((end_ms - next_ms) / interval_ms).clamp(1, count_max);
            post_to_all(contenders, &data.history(next_ms, count, interval_ms));
            next_ms += count * interval_ms;
        }
    }
}

impl Meter {
    /// The current CPU of the programs, and nothing of the generator.
    fn new(contenders: &[Contender]) -> Meter {
        let server_s = contenders.iter().map(|contender| contender.server.cpu_s()).collect();
        Meter { server_s, generator_s: vec![0.0; contenders.len()] }
    }

    /// Sends a scrape to one program after the other. The generator's CPU is that of the scrape
    /// and of its sending to one program.
    fn scrape(&mut self, contenders: &[Contender], data: &mut Data, start_ms: i64) {
        let before = process_cpu_ns();
        let bodies = data.scrape(start_ms);
        let made_s = (process_cpu_ns() - before) / 1e9;
        for (contender, generator_s) in contenders.iter().zip(&mut self.generator_s) {
            let before = process_cpu_ns();
            let (address, path) = (contender.server.address, contender.program.write_path());
            post_all(address, path, &bodies, CONNECTIONS);
            *generator_s += made_s + (process_cpu_ns() - before) / 1e9;
        }
    }

    /// The CPU from `earlier` until this moment.
    fn since(mut self, earlier: &mut Meter) -> Meter {
        for (now_s, before_s) in self.server_s.iter_mut().zip(&earlier.server_s) {
            *now_s -= before_s;
        }
        self.generator_s = std::mem::take(&mut earlier.generator_s);
        self
    }
}

/// Posts requests to all programs at once.
fn post_to_all(contenders: &[Contender], bodies: &[Vec<u8>]) {
    std::thread::scope(|scope| {
        for Contender { program, server } in contenders {
            scope.spawn(|| post_all(server.address, program.write_path(), bodies, 2));
        }
    });
}

/// Makes FirnDB write its samples to tables: a snapshot begins with a flush.
fn flush(contenders: &[Contender]) {
    for contender in contenders.iter().filter(|contender| contender.program == Program::Firn) {
        contender.connect().post("/api/v1/admin/tsdb/snapshot", &[]);
    }
}

/// Waits until all tables of FirnDB are on its slow tier.
///
/// # Panics
/// If they are not after two minutes.
fn wait_until_uploaded(contenders: &[Contender]) {
    let started = Instant::now();
    let waits = |contender: &Contender| {
        metric(contender, "firn_upload_waiting_since_timestamp_seconds").is_some()
    };
    while contenders.iter().any(waits) {
        assert!(started.elapsed() < UPLOAD_TIME_MAX, "tables wait for their upload");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// A metric of FirnDB without labels.
fn metric(contender: &Contender, name: &str) -> Option<f64> {
    let mut connection = contender.connect();
    let text = String::from_utf8_lossy(connection.get("/metrics"));
    let values = text.lines().filter_map(|line| line.split_once(' '));
    values.filter(|(found, _)| *found == name).find_map(|(_, value)| value.parse().ok())
}

/// The members of all groups of FirnDB.
fn groups(contender: &Contender) -> GroupFigure {
    let mut connection = contender.connect();
    let list: Value =
        serde_json::from_slice(connection.get("/api/v1/groups?lone=true")).unwrap_or_default();
    let members = list["data"].as_array().into_iter().flatten();
    GroupFigure::of(members.filter_map(|group| group["members"].as_u64()).collect())
}

/// The number of answers that differ from FirnDB's. Also warms up all programs.
fn check(
    contenders: &[Contender],
    agreement: Agreement,
    name: &str,
    target: &dyn Fn(u64) -> String,
) -> usize {
    let mut difference_count = 0;
    for number in 0..CHECKED {
        let target = target(number);
        let answers: Vec<(Program, Vec<u8>)> =
            contenders.iter().map(|c| (c.program, c.connect().get(&target).to_vec())).collect();
        let Some(((_, ours), others)) = answers.split_first() else { continue };
        for (program, theirs) in others {
            if let Err(why) = agree::check(agreement, ours, theirs, *program) {
                println!("{name}: {} differs from FirnDB: {why}", program.name());
                difference_count += 1;
            }
        }
    }
    difference_count
}
